//! What a server says that it is (ID, RFC 2971), and what that and its capabilities mean for
//! copies; for `onedrop check`, nothing else asks.

use std::time::Instant;

use super::error::ImapError;
use super::namespace::{Token, tokens};
use super::session::{Capabilities, ImapSession, Response};
use super::unindexed::value_in;
use super::{ImapSettings, Tls};
use onedrop_core::text;

/// Bytes of a name or a version.
const LONGEST: usize = 60;

/// Lines for an administrator.
///
/// # Errors
/// The session was lost; a server that does not say what it is, is none.
pub fn told(session: &mut ImapSession, until: Instant) -> Result<Vec<String>, ImapError> {
    let id = match session.capabilities().has("ID") {
        true => match session.run("ID NIL", until) {
            Ok(answer) => {
                let id = |told: &Response| tokens(&told.after("ID")?, &told.literals);
                answer.responses.iter().find_map(id)
            }
            Err(ImapError::Refused(_)) => None,
            Err(error) => return Err(error),
        },
        false => None,
    };
    let name = id.as_deref().and_then(name);
    let mut lines = vec![match &name {
        Some(name) => format!("imap: the server is {name}"),
        None => "imap: the server does not say what it is".to_owned(),
    }];
    if let Some(advice) = name.as_deref().and_then(advice) {
        lines.push(format!("imap: {advice}"));
    }
    lines.push(together(session.capabilities()));
    Ok(lines)
}

/// How we are logged in, and what the server offers for copies.
pub fn facts(
    session: &ImapSession,
    settings: &ImapSettings,
    account: &str,
    inbox: Option<u32>,
) -> Vec<String> {
    let ImapSettings { host, port, user, tls, .. } = settings;
    let has = |name| session.capabilities().has(name);
    let tls = match tls {
        Tls::Implicit => "TLS",
        Tls::StartTls => "STARTTLS",
        Tls::None => "no TLS",
    };
    let inbox = inbox.map_or("does not exist yet".to_owned(), |validity| {
        format!("can be opened, uidvalidity={validity}")
    });
    let uidplus = match has("UIDPLUS") {
        true => "yes, copies have receipts",
        false => "no, a copy cannot be named nor taken out again",
    };
    let literals = match (has("LITERAL+"), has("LITERAL-")) {
        (true, _) => "LITERAL+: yes",
        (false, true) => "LITERAL-: yes, messages over 4096 bytes cost one more round trip",
        (false, false) => "LITERAL+: no, each message costs one more round trip",
    };
    let limit = session.capabilities().append_limit();
    let limit = limit.map_or("none told".to_owned(), |limit| format!("{limit} bytes"));
    vec![
        format!("imap: logged in to {host}:{port} ({tls}) as {user} for {account}"),
        format!("imap: INBOX {inbox}"),
        format!("imap: UIDPLUS: {uidplus}"),
        format!("imap: {literals}"),
        format!("imap: APPENDLIMIT: {limit}"),
    ]
}

/// Name and version in the answer to ID; what is not printable ASCII throughout has none.
fn name(id: &[Token]) -> Option<String> {
    let value = |field| value_in(id, field).map(|one| text::within(&one, LONGEST).into_owned());
    let name = value("name").filter(|name| !name.trim().is_empty())?;
    Some(value("version").map_or(name.clone(), |version| format!("{name} {version}")))
}

/// What is to be known of a server by its name.
fn advice(name: &str) -> Option<&'static str> {
    let lower = name.to_ascii_lowercase();
    let is = |part: &str| lower.contains(part);
    if is("cyrus") {
        Some(
            "set munge8bit: no in imapd.conf, or Cyrus changes 8-bit header bytes and a copy in \
             doubt is not found again; a message with a damaged header is attached to another one",
        )
    } else if is("stalwart") || is("james") {
        Some("its search may lag behind its mailboxes: do not set store.trust_search to always")
    } else {
        None
    }
}

fn together(capabilities: &Capabilities) -> String {
    let is = match capabilities.has("MULTIAPPEND") {
        true => "yes, small copies for one mailbox go in one command",
        false => "no, each copy goes by itself",
    };
    format!("imap: MULTIAPPEND: {is}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_named_by_what_it_says() {
        let named = |id: &str| name(&tokens(id, &[])?);
        let cyrus = "(\"name\" \"Cyrus IMAPD\" \"version\" \"3.6.1\" \"vendor\" \"Project\")";
        assert_eq!(named(cyrus).as_deref(), Some("Cyrus IMAPD 3.6.1"));
        assert_eq!(named("(\"NAME\" \"Dovecot\")").as_deref(), Some("Dovecot"));
        let by_nil = named("(\"vendor\" NIL \"name\" \"Cyrus IMAPD\" \"version\" NIL)");
        assert_eq!(by_nil.as_deref(), Some("Cyrus IMAPD"));
        for nothing in [
            "NIL",
            "",
            "(\"name\" NIL \"version\" \"1\")",
            "(\"name\" NIL)",
            "(\"name\" \" \")",
            "(\"name\" \"\u{1b}[1m\r\n* OK\")",
            "(\"name\"",
        ] {
            assert_eq!(named(nothing), None, "{nothing}");
        }
        let long = format!("(\"name\" \"{}\")", "x".repeat(1000));
        assert_eq!(named(&long).map(|shown| shown.len()), Some(LONGEST));
    }

    #[test]
    fn what_a_server_cannot_is_said() {
        assert!(together(&Capabilities::parse("MULTIAPPEND")).contains(": yes, "));
        assert!(together(&Capabilities::parse("IMAP4rev1")).contains(": no, "));
        assert!(advice("Cyrus IMAPD 3.6.1").is_some_and(|text| text.contains("munge8bit: no")));
        assert!(advice("Stalwart IMAP4rev2").is_some_and(|text| text.contains("trust_search")));
        assert!(advice("Dovecot").is_none());
    }
}
