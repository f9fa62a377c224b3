//! What a server says of its mailboxes' names: its namespaces (NAMESPACE, RFC 2342) and its lists
//! (LIST, RFC 3501 section 7.2.2). Values only. By hand, because the `imap` crate knows no
//! NAMESPACE, and its parser gives up on text that is not ASCII.

use crate::utf7::modified_utf7;

/// Names as they travel, in modified UTF-7.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// What the names of the account's own mailboxes begin with, but for INBOX.
    pub prefix: String,
    /// Stands between the levels of a name; `None`: there are none.
    pub separator: Option<char>,
    /// What the names of the account's own mailboxes begin with in any of its namespaces.
    own: Vec<String>,
    /// What the names of mailboxes begin with that are others' or everybody's.
    foreign: Vec<String>,
    /// Of each namespace that `prefix` is not of, and that begins a level of names: its prefix and
    /// separator, the longest first.
    others: Vec<(String, char)>,
}

/// A mailbox as LIST shows it.
#[derive(Debug, PartialEq, Eq)]
pub struct ListedMailbox {
    /// The name on the wire: for [`syntax::quote`].
    pub name: String,
    /// In lower case.
    pub attributes: Vec<String>,
}

/// Of several that are marked, the one with the usual name, else the shortest; without any, the
/// usual name.
pub fn the_one(marked: Vec<String>, plain: String) -> String {
    if marked.contains(&plain) {
        return plain;
    }
    let shortest = marked
        .into_iter()
        .min_by(|one, other| one.len().cmp(&other.len()).then_with(|| one.cmp(other)));
    shortest.unwrap_or(plain)
}

impl Default for Namespace {
    fn default() -> Namespace {
        let (own, foreign, others) = (vec![String::new()], Vec::new(), Vec::new());
        Namespace { prefix: String::new(), separator: Some('/'), own, foreign, others }
    }
}

impl Namespace {
    /// Reads what follows NAMESPACE in a response. Of several personal namespaces new mailboxes go
    /// into the one without a prefix, else into the first.
    pub fn parse(line: &str, literals: &[Vec<u8>]) -> Option<Namespace> {
        let mut tokens = tokens(line, literals)?.into_iter();
        let own = namespaces(&mut tokens)?;
        let mut foreign = namespaces(&mut tokens).unwrap_or_default();
        foreign.extend(namespaces(&mut tokens).unwrap_or_default());
        let (prefix, separator) =
            own.iter().find(|(prefix, _)| prefix.is_empty()).or(own.first())?.clone();
        let mut others: Vec<(String, char)> = own
            .iter()
            .chain(&foreign)
            .filter_map(|(one, separator)| Some((one.clone(), (*separator)?)))
            .filter(|(one, separator)| one.ends_with(*separator) && *one != prefix)
            .collect();
        others.sort_by_key(|(one, _)| std::cmp::Reverse(one.len()));
        let own = own.into_iter().map(|(prefix, _)| prefix).collect();
        let foreign = foreign.into_iter().map(|(prefix, _)| prefix);
        let foreign = foreign.filter(|prefix| !prefix.is_empty()).collect();
        Some(Namespace { prefix, separator, own, foreign, others })
    }

    /// Whether `name`, as it travels, is one of the account's own mailboxes.
    pub fn is_own(&self, name: &str) -> bool {
        let is_foreign = self.foreign.iter().any(|prefix| name.starts_with(prefix.as_str()));
        let is_own = self.own.iter().any(|prefix| begins_with(name, prefix));
        name.eq_ignore_ascii_case("INBOX") || is_own && !is_foreign
    }

    /// What the server calls `mailbox`: one of the account's own, unless its first level is the
    /// prefix of another namespace: with `/`, or as the server writes it, if that is a dot. A name
    /// that has its own prefix already, as the server writes it with one of these, is taken as it
    /// is. (With other separators a recipient's detail could be such a name: it holds neither.)
    pub fn name(&self, mailbox: &str) -> Result<String, String> {
        let encoded = modified_utf7(mailbox);
        for (prefix, separator) in &self.others {
            let with_slashes = prefix.replace(*separator, "/");
            if *separator == '.' && begins_with(&encoded, prefix) {
                return Ok(encoded);
            }
            if begins_with(&encoded, &with_slashes) {
                return within(prefix, Some(*separator), &encoded[with_slashes.len()..], mailbox);
            }
        }
        let is_plain = matches!(self.separator, None | Some('.' | '/'));
        if is_plain && !self.prefix.is_empty() && begins_with(&encoded, &self.prefix) {
            return Ok(encoded);
        }
        within(&self.prefix, self.separator, &encoded, mailbox)
    }
}

/// A name in a namespace: `/` stands between the levels of `rest`, which is what `mailbox` is
/// called there.
fn within(
    prefix: &str,
    separator: Option<char>,
    rest: &str,
    mailbox: &str,
) -> Result<String, String> {
    match separator {
        None | Some('/') => Ok(format!("{prefix}{rest}")),
        Some(separator) if rest.contains(separator) => Err(format!(
            "no mailbox on this server can be called {mailbox:?}: it puts {separator:?} between \
             the levels of a name (write / there)"
        )),
        Some(separator) => Ok(format!("{prefix}{}", rest.replace('/', &separator.to_string()))),
    }
}

impl ListedMailbox {
    pub fn parse(line: &str, literals: &[Vec<u8>]) -> Option<ListedMailbox> {
        let mut tokens = tokens(line, literals)?.into_iter();
        let mut attributes = Vec::new();
        if tokens.next()? != Token::Open {
            return None;
        }
        loop {
            match tokens.next()? {
                Token::Text(attribute) => attributes.push(attribute.to_ascii_lowercase()),
                Token::Nil => {}
                Token::Close => break,
                Token::Open => return None,
            }
        }
        let _separator = tokens.next()?;
        match tokens.next()? {
            Token::Text(name) => Some(ListedMailbox { name, attributes }),
            _ => None,
        }
    }

    pub fn has(&self, attribute: &str) -> bool {
        self.attributes.iter().any(|one| one == attribute)
    }

    /// Whether it can be opened.
    pub fn is_there(&self) -> bool {
        !self.has("\\nonexistent") && !self.has("\\noselect")
    }
}

/// Whether `name` begins with `prefix`, in which INBOX is compared in any case (RFC 3501 section
/// 5.1).
fn begins_with(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|start| match prefix.get(..5) {
        Some(inbox) if inbox.eq_ignore_ascii_case("INBOX") => start.eq_ignore_ascii_case(prefix),
        _ => start == prefix,
    })
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    Open,
    Close,
    Nil,
    Text(String),
}

/// The prefixes and separators of one kind of namespace; `None` where there is none.
fn namespaces(tokens: &mut impl Iterator<Item = Token>) -> Option<Vec<(String, Option<char>)>> {
    if tokens.next()? != Token::Open {
        return None;
    }
    let mut all = Vec::new();
    while tokens.next()? == Token::Open {
        let Token::Text(prefix) = tokens.next()? else { return None };
        let separator = match tokens.next()? {
            Token::Text(separator) => separator.chars().next(),
            _ => None,
        };
        all.push((prefix, separator));
        // Extensions may follow.
        let mut depth = 1;
        while depth > 0 {
            match tokens.next()? {
                Token::Open => depth += 1,
                Token::Close => depth -= 1,
                _ => {}
            }
        }
    }
    Some(all)
}

/// The words and lists of a response, if all of it is printable ASCII, as names in modified UTF-7
/// are.
pub fn tokens(line: &str, literals: &[Vec<u8>]) -> Option<Vec<Token>> {
    let mut literals = literals.iter();
    let (mut tokens, mut rest) = (Vec::new(), line);
    while let Some(first) = rest.chars().next() {
        rest = &rest[first.len_utf8()..];
        match first {
            ' ' => {}
            '(' => tokens.push(Token::Open),
            ')' => tokens.push(Token::Close),
            '"' => {
                let (mut text, mut chars) = (String::new(), rest.chars());
                loop {
                    match chars.next()? {
                        '"' => break,
                        '\\' => text.push(chars.next()?),
                        plain => text.push(plain),
                    }
                }
                rest = chars.as_str();
                tokens.push(Token::Text(text));
            }
            '{' => {
                rest = rest.split_once('}')?.1;
                tokens.push(Token::Text(String::from_utf8(literals.next()?.clone()).ok()?));
            }
            _ => {
                let end = rest.find([' ', '(', ')']).unwrap_or(rest.len());
                let atom = format!("{first}{}", &rest[..end]);
                rest = &rest[end..];
                let is_nil = atom.eq_ignore_ascii_case("NIL");
                tokens.push(if is_nil { Token::Nil } else { Token::Text(atom) });
            }
        }
    }
    let is_printable = |token: &Token| match token {
        Token::Text(text) => text.bytes().all(|byte| matches!(byte, b' '..=b'~')),
        _ => true,
    };
    tokens.iter().all(is_printable).then_some(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn literals() -> Vec<Vec<u8>> {
        vec![b"INBOX/".to_vec()]
    }

    fn namespace(prefix: &str, separator: Option<char>, foreign: &[&str]) -> Namespace {
        let foreign: Vec<String> = foreign.iter().map(|one| (*one).to_owned()).collect();
        let level = |one: &String| Some((one.clone(), one.chars().last()?));
        let is_level = |(_, last): &(String, char)| !last.is_alphanumeric() && *last != '~';
        let others = foreign.iter().filter_map(level).filter(is_level).collect();
        let own = vec![prefix.to_owned()];
        Namespace { prefix: prefix.to_owned(), separator, own, foreign, others }
    }

    #[test]
    fn namespaces_are_read_in_any_form() {
        for (line, expected) in [
            (r#"(("INBOX." ".")) NIL NIL"#, namespace("INBOX.", Some('.'), &[])),
            (r#"(("" "/")) (("~" "/")) NIL"#, namespace("", Some('/'), &["~"])),
            (
                r#"(("A/" "/")("" "\\" "X" ("y"))) (("Other/" "/")) (("" ".")("P." "."))"#,
                Namespace {
                    own: vec!["A/".to_owned(), String::new()],
                    others: [("Other/", '/'), ("A/", '/'), ("P.", '.')]
                        .map(|(prefix, separator)| (prefix.to_owned(), separator))
                        .to_vec(),
                    ..namespace("", Some('\\'), &["Other/", "P."])
                },
            ),
            (r#"(("INBOX." NIL)) NIL (("S" NIL))"#, namespace("INBOX.", None, &["S"])),
            (r#"(({6} ".")) nil nil"#, namespace("INBOX/", Some('.'), &[])),
        ] {
            let read = Namespace::parse(line, &literals());
            assert_eq!(read, Some(expected), "{line}");
        }
        for line in ["NIL NIL NIL", "", "((", r#"((""#, r#"(("é" "."))"#, "x", "() NIL NIL"] {
            assert_eq!(Namespace::parse(line, &literals()), None, "{line}");
        }
    }

    #[test]
    fn a_name_gets_prefix_and_separator_once() {
        let dots = namespace("INBOX.", Some('.'), &[]);
        for (mailbox, expected) in [
            ("Sent", "INBOX.Sent"),
            ("Archive/2026", "INBOX.Archive.2026"),
            ("INBOX.Sent", "INBOX.Sent"),
            ("Inbox.Sent", "Inbox.Sent"),
            ("Gesendet/für dich", "INBOX.Gesendet.f&APw-r dich"),
            ("INBOXES", "INBOX.INBOXES"),
        ] {
            assert_eq!(dots.name(mailbox).as_deref(), Ok(expected));
        }
        let why = dots.name("lists.rust").unwrap_err();
        assert!(why.contains("\"lists.rust\"") && why.contains("write /"), "{why}");
        assert!(namespace("INBOX|", Some('|'), &[]).name("INBOX|Trash|2020").is_err());
        assert_eq!(namespace("", None, &[]).name("a/b.c").as_deref(), Ok("a/b.c"));
        assert_eq!(Namespace::default().name("a/b.c").as_deref(), Ok("a/b.c"));
    }

    #[test]
    fn a_mailbox_of_another_namespace_is_named_as_the_account_does_or_with_slashes() {
        let line =
            r#"(("INBOX." ".")("Archive." ".")) (("Other Users." ".")) (("Public." ".")("~" "/"))"#;
        let with_prefix = Namespace::parse(line, &[]).unwrap();
        for (mailbox, expected) in [
            ("Public/team", "Public.team"),
            ("Public/team/2026", "Public.team.2026"),
            ("Public.team", "Public.team"),
            ("Public/Grüße", "Public.Gr&APwA3w-e"),
            ("Other Users/doug/a", "Other Users.doug.a"),
            ("Archive/2026", "Archive.2026"),
            ("INBOX.Public.a", "INBOX.Public.a"),
            ("INBOX/Public", "INBOX.INBOX.Public"),
            ("Public", "INBOX.Public"),
            ("public/a", "INBOX.public.a"),
            ("Publications/a", "INBOX.Publications.a"),
            ("~doug", "INBOX.~doug"),
        ] {
            assert_eq!(with_prefix.name(mailbox).as_deref(), Ok(expected), "{mailbox}");
        }
        let why = with_prefix.name("Public/lists.rust").unwrap_err();
        assert!(why.contains("\"Public/lists.rust\"") && why.contains("write /"), "{why}");
        let piped = Namespace::parse(r#"(("" "|")) NIL (("Public|" "|"))"#, &[]).unwrap();
        assert_eq!(piped.name("Public/team").as_deref(), Ok("Public|team"));
        let why = piped.name("Public|team").unwrap_err();
        assert!(why.contains("no mailbox on this server can be called"), "{why}");
        let plain = Namespace::parse(r#"(("" "/")) NIL (("Public/" "/"))"#, &[]).unwrap();
        for mailbox in ["Public/team", "Public/a.b", "Sent", "a.b"] {
            assert_eq!(plain.name(mailbox).as_deref(), Ok(mailbox));
        }
        let nested = Namespace::parse(r#"(("INBOX." ".")) NIL (("INBOX.Shared." "."))"#, &[]);
        let nested = nested.unwrap();
        for mailbox in ["INBOX/Shared/a", "INBOX.Shared.a"] {
            assert_eq!(nested.name(mailbox).as_deref(), Ok("INBOX.Shared.a"));
        }
    }

    #[test]
    fn what_is_listed_is_read_and_others_mailboxes_are_told_apart() {
        for (line, name, attributes) in [
            (r#"(\HasNoChildren \Sent) "/" Sent"#, "Sent", &["\\hasnochildren", "\\sent"][..]),
            (r#"() NIL "a \"b\" \\c""#, "a \"b\" \\c", &[]),
            (r#"(\Noselect) "." {6}"#, "INBOX/", &["\\noselect"]),
        ] {
            let listed = ListedMailbox::parse(line, &literals()).unwrap();
            assert_eq!(
                (listed.name.as_str(), &listed.attributes[..]),
                (name, &attributes.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>()[..])
            );
        }
        for line in ["", "()", "() \"/\"", "(\\Sent \"/\" x", "x y z", "() \"/\" gr\u{fc}n"] {
            assert_eq!(ListedMailbox::parse(line, &literals()), None, "{line}");
        }
        let line = r#"(("INBOX." ".")("Archive." ".")) NIL (("INBOX.Shared." "."))"#;
        let namespace = Namespace::parse(line, &[]).unwrap();
        for (name, is_own) in [
            ("inbox", true),
            ("INBOX.a", true),
            ("Archive.2025", true),
            ("INBOX.Shared.a", false),
            ("Public.a", false),
        ] {
            assert_eq!(namespace.is_own(name), is_own, "{name}");
        }
    }

    #[test]
    fn of_several_that_are_marked_one_is_the_one() {
        let one = |marked: &[&str]| {
            the_one(marked.iter().map(|name| (*name).to_owned()).collect(), "Sent".to_owned())
        };
        assert_eq!(one(&[]), "Sent");
        assert_eq!(one(&["Out", "Sent", "X"]), "Sent");
        assert_eq!(one(&["Gesendete", "Sent Mail", "Sent Item"]), "Gesendete");
    }
}
