//! Reads a FETCH response (RFC 3501 section 7.4.2) for what we ask: UID, FLAGS, INTERNALDATE,
//! RFC822.SIZE and one piece of the body. Other items are stepped over, as servers send them
//! unasked. Values only; what cannot be read is no FETCH response. By hand, because the `imap`
//! crate's parser gives up on text that is not ASCII.

use std::time::SystemTime;

use super::session::Response;
use super::syntax;

/// What one FETCH response says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    pub uid: Option<u32>,
    pub size: Option<usize>,
    /// INTERNALDATE.
    pub date: Option<SystemTime>,
    /// Whether FLAGS has `\Deleted`; `None` without FLAGS.
    pub is_deleted: Option<bool>,
    pub body: Option<Vec<u8>>,
}

/// Reads `response`; `None` when it is something else.
pub fn parse(response: Response) -> Option<Fetched> {
    let Response { line, literals } = response;
    let start = memchr::memmem::find(&line, b" ")?;
    let (number, rest) = line.split_at(start);
    if !number.iter().all(u8::is_ascii_digit) || !rest.get(..8)?.eq_ignore_ascii_case(b" FETCH (") {
        return None;
    }
    let mut items = Items { rest: &rest[8..], literals: literals.into_iter() };
    let mut fetched = Fetched::default();
    while let Some((name, value)) = items.next()? {
        match name.as_str() {
            "UID" => fetched.uid = value.number(),
            "RFC822.SIZE" => fetched.size = value.number(),
            "INTERNALDATE" => {
                fetched.date = value.string().and_then(|text| syntax::parse_date_time(&text))
            }
            "FLAGS" => fetched.is_deleted = Some(value.has_word("\\Deleted")),
            name if name.starts_with("BODY[]") => fetched.body = value.string(),
            _ => {}
        }
    }
    Some(fetched)
}

enum Value {
    Atom(String),
    String(Vec<u8>),
    /// All between the parentheses.
    List(Vec<u8>),
}

impl Value {
    fn number<T: std::str::FromStr>(self) -> Option<T> {
        match self {
            Value::Atom(atom) => atom.parse().ok(),
            Value::String(_) | Value::List(_) => None,
        }
    }

    /// The string; empty for NIL.
    fn string(self) -> Option<Vec<u8>> {
        match self {
            Value::String(bytes) => Some(bytes),
            Value::Atom(atom) => atom.eq_ignore_ascii_case("NIL").then(Vec::new),
            Value::List(_) => None,
        }
    }

    /// Whether it is a list of words with `word`, in any case, among them.
    fn has_word(&self, word: &str) -> bool {
        let Value::List(list) = self else { return false };
        list.split(|byte| *byte == b' ').any(|one| one.eq_ignore_ascii_case(word.as_bytes()))
    }
}

struct Items<'a> {
    rest: &'a [u8],
    literals: std::vec::IntoIter<Vec<u8>>,
}

impl Items<'_> {
    /// The next name (in upper case) and value; `Some(None)` at the closing parenthesis, `None`
    /// when unreadable.
    fn next(&mut self) -> Option<Option<(String, Value)>> {
        self.rest = self.rest.trim_ascii_start();
        if self.rest.starts_with(b")") {
            return Some(None);
        }
        let mut in_brackets = false;
        let end = self.rest.iter().position(|byte| {
            match byte {
                b'[' => in_brackets = true,
                b']' => in_brackets = false,
                _ => {}
            }
            *byte == b' ' && !in_brackets
        })?;
        let name = String::from_utf8_lossy(&self.rest[..end]).to_ascii_uppercase();
        self.rest = &self.rest[end + 1..];
        let value = self.value()?;
        Some(Some((name, value)))
    }

    fn value(&mut self) -> Option<Value> {
        match self.rest.first()? {
            b'"' => self.quoted().map(Value::String),
            b'{' | b'~' => self.literal().map(Value::String),
            b'(' => self.list(),
            _ => {
                let end = self.rest.iter().position(|byte| matches!(byte, b' ' | b')'))?;
                let (atom, rest) = self.rest.split_at(end);
                self.rest = rest;
                Some(Value::Atom(String::from_utf8_lossy(atom).into_owned()))
            }
        }
    }

    fn quoted(&mut self) -> Option<Vec<u8>> {
        let mut string = Vec::new();
        let mut bytes = self.rest.iter().enumerate().skip(1);
        while let Some((at, byte)) = bytes.next() {
            match byte {
                b'"' => {
                    self.rest = &self.rest[at + 1..];
                    return Some(string);
                }
                b'\\' => string.push(*bytes.next()?.1),
                _ => string.push(*byte),
            }
        }
        None
    }

    /// The `{n}` of a literal, whose bytes stand aside.
    fn literal(&mut self) -> Option<Vec<u8>> {
        let end = memchr::memchr(b'}', self.rest)?;
        self.rest = &self.rest[end + 1..];
        self.literals.next()
    }

    fn list(&mut self) -> Option<Value> {
        let mut depth = 0usize;
        let whole = self.rest;
        loop {
            match self.rest.first()? {
                b'"' => drop(self.quoted()?),
                b'{' => drop(self.literal()?),
                byte => {
                    depth = match byte {
                        b'(' => depth + 1,
                        b')' => depth - 1,
                        _ => depth,
                    };
                    self.rest = &self.rest[1..];
                }
            }
            if depth == 0 {
                let list = &whole[..whole.len() - self.rest.len()];
                return Some(Value::List(list[1..list.len() - 1].to_vec()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fetched(line: &str, literals: &[&str]) -> Option<Fetched> {
        let literals = literals.iter().map(|literal| literal.as_bytes().to_vec()).collect();
        parse(Response { line: line.as_bytes().to_vec(), literals })
    }

    #[test]
    fn items_in_any_order_and_form() {
        let whole = Some(Fetched {
            uid: Some(7),
            size: Some(3),
            body: Some(b"abc".to_vec()),
            ..Fetched::default()
        });
        assert_eq!(fetched("1 FETCH (UID 7 RFC822.SIZE 3 BODY[]<0> {3})", &["abc"]), whole);
        assert_eq!(fetched("1 fetch (BODY[]<0> \"abc\" rfc822.size 3 UID 7)", &[]), whole);
        let odd = "1 FETCH (FLAGS (\\Seen \")\" {2} (x)) BODY[HEADER.FIELDS (A B)] {1} UID 7 \
                   RFC822.SIZE 3 BODY[] ~{3})";
        let flagged = whole.map(|whole| Fetched { is_deleted: Some(false), ..whole });
        assert_eq!(fetched(odd, &["((", "y", "abc"]), flagged);
        let empty = fetched("1 FETCH (UID 7 BODY[]<9> NIL)", &[]);
        assert_eq!(
            empty,
            Some(Fetched { uid: Some(7), body: Some(Vec::new()), ..Fetched::default() })
        );
        assert_eq!(
            fetched("1 FETCH (BODY[] \"a\\\"b\\\\\")", &[]).unwrap().body,
            Some(b"a\"b\\".to_vec())
        );
    }

    #[test]
    fn dates_and_deletions() {
        let dated =
            |line: &str| fetched(line, &[]).map(|fetched| (fetched.date, fetched.is_deleted));
        let at = |secs| Some(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(secs));
        let line = "1 FETCH (FLAGS (\\Seen \\deleted) INTERNALDATE \"21-Nov-2026 01:30:00 +0130\")";
        assert_eq!(dated(line), Some((at(1_795_219_200), Some(true))));
        let line = "1 FETCH (FLAGS (\\Seen) INTERNALDATE \" 1-Jan-1970 00:00:01 +0000\")";
        assert_eq!(dated(line), Some((at(1), Some(false))));
        assert_eq!(
            dated("1 FETCH (FLAGS () INTERNALDATE \"yesterday\" X (\\Deleted))"),
            Some((None, Some(false)))
        );
        assert_eq!(
            dated("1 FETCH (UID 7 INTERNALDATE NIL)"),
            Some((None, None)),
            "no word about flags"
        );
    }

    #[test]
    fn what_cannot_be_read_is_no_fetch() {
        for line in [
            "1 EXISTS",
            "OK FETCH (UID 7)",
            "1 FETCH (UID 7",
            "1 FETCH (BODY[] \"abc",
            "1 FETCH (BODY[] {3})",
            "1 FETCH (UID)",
            "1 FETCH ((",
            "1 FETCH",
            "",
        ] {
            assert_eq!(fetched(line, &[]), None, "{line}");
        }
    }
}
