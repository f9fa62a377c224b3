//! Reads a FETCH response (RFC 3501 section 7.4.2) for what we ask: UID, FLAGS, INTERNALDATE,
//! RFC822.SIZE, one piece of the body and one of header fields. Other items are stepped over, as
//! servers send them unasked. Values only; what cannot be read is no FETCH response. By hand,
//! because the `imap` crate's parser gives up on text that is not ASCII.

use std::time::SystemTime;

use super::session::{CommandOutput, Response};
use super::syntax;

/// What one FETCH response says.
#[derive(Debug, Clone, Default)]
pub struct Fetched {
    uid: Option<u32>,
    pub size: Option<usize>,
    /// INTERNALDATE.
    pub date: Option<SystemTime>,
    /// Whether FLAGS has `\Deleted`; `None` without FLAGS.
    pub is_deleted: Option<bool>,
    pub body: Option<Vec<u8>>,
    /// Fields of the header, or a piece of them.
    pub ids: Option<Vec<u8>>,
    /// Its body is a wrapper of ours.
    pub is_wrapped: bool,
}

/// What `answer` says, with the UID of which message. Of one there may be several responses.
pub fn each(answer: CommandOutput) -> impl Iterator<Item = (u32, Fetched)> {
    let fetched = answer.responses.into_iter().filter_map(parse);
    fetched.filter_map(|fetched| fetched.uid.map(|uid| (uid, fetched)))
}

/// What `answer` says of messages whose dates were asked for, without what a server adds unasked:
/// that somebody marks an old one meanwhile.
pub fn dated(answer: CommandOutput) -> impl Iterator<Item = (u32, Fetched)> {
    each(answer).filter(|(_, fetched)| fetched.date.is_some() || fetched.is_deleted.is_none())
}

/// What `answer` says of message `uid`.
pub fn all_of(answer: CommandOutput, uid: u32) -> impl Iterator<Item = Fetched> {
    each(answer).filter(move |(found, _)| *found == uid).map(|(_, fetched)| fetched)
}

/// Reads `response`; `None` when it is something else.
fn parse(response: Response) -> Option<Fetched> {
    let Response { line, literals } = response;
    let start = memchr::memchr(b' ', &line)?;
    let (number, rest) = line.split_at(start);
    if !number.iter().all(u8::is_ascii_digit) || !rest.get(..8)?.eq_ignore_ascii_case(b" FETCH (") {
        return None;
    }
    let mut items = Items { rest: &rest[8..], literals: literals.into_iter() };
    let mut fetched = Fetched::default();
    while let Some((name, value)) = items.next()? {
        match name.as_str() {
            "UID" => fetched.uid = number_in(&value),
            "RFC822.SIZE" => fetched.size = number_in(&value),
            "INTERNALDATE" => fetched.date = syntax::parse_date_time(&value),
            "FLAGS" => {
                let mut flags = value.split(|byte| *byte == b' ');
                fetched.is_deleted =
                    Some(flags.any(|flag| flag.eq_ignore_ascii_case(b"\\Deleted")));
            }
            name if name.starts_with("BODY[]") => fetched.body = Some(value),
            name if name.starts_with("BODY[HEADER.FIELDS") => fetched.ids = Some(value),
            _ => {}
        }
    }
    Some(fetched)
}

fn number_in<T: std::str::FromStr>(value: &[u8]) -> Option<T> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

struct Items<'a> {
    rest: &'a [u8],
    literals: std::vec::IntoIter<Vec<u8>>,
}

impl Items<'_> {
    /// The next name (in upper case) and value; `Some(None)` at the closing parenthesis, `None`
    /// when unreadable.
    fn next(&mut self) -> Option<Option<(String, Vec<u8>)>> {
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

    /// What a string holds, what stands between the parentheses of a list, or an atom; nothing for
    /// NIL.
    fn value(&mut self) -> Option<Vec<u8>> {
        match self.rest.first()? {
            b'"' => self.quoted(),
            b'{' | b'~' => self.literal(),
            b'(' => self.list(),
            _ => {
                let end = self.rest.iter().position(|byte| matches!(byte, b' ' | b')'))?;
                let (atom, rest) = self.rest.split_at(end);
                self.rest = rest;
                Some(if atom.eq_ignore_ascii_case(b"NIL") { Vec::new() } else { atom.to_vec() })
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

    fn list(&mut self) -> Option<Vec<u8>> {
        let mut depth = 0usize;
        let whole = self.rest;
        loop {
            match self.rest.first()? {
                b'"' => drop(self.quoted()?),
                b'{' => drop(self.literal()?),
                byte => {
                    match byte {
                        b'(' => depth += 1,
                        b')' => depth -= 1,
                        _ => {}
                    }
                    self.rest = &self.rest[1..];
                }
            }
            if depth == 0 {
                return Some(whole[1..whole.len() - self.rest.len() - 1].to_vec());
            }
        }
    }
}
