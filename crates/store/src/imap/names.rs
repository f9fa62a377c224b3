//! How a server calls a mailbox. In the configuration and the ledger `/` stands between the levels
//! of a name, on every server; here it becomes the server's separator, after the prefix of the
//! account's own namespace (NAMESPACE, RFC 2342: with prefix `INBOX.` and separator `.` the mailbox
//! `Archive/2026` is `INBOX.Archive.2026`). A session asks once. `\Sent` is a role: the mailbox
//! that the server marks so (SPECIAL-USE, RFC 6154) among the account's own, asked for each time,
//! as its owner may move the mark. What goes over all of an account's mailboxes begins here, too:
//! [`list`], and [`Namespace::is_own`].

use std::time::Instant;

use super::error::ImapError;
use super::namespace::{ListedMailbox, Namespace, the_one};
use super::session::{CommandOutput, ImapSession};
use super::syntax;
use onedrop_core::directory::SENT_ROLE;
use onedrop_core::store::StoreError;

/// `mailbox` as a command in this session may carry it.
///
/// # Errors
/// The server can have no mailbox of that name, or does not say how it calls it.
pub fn in_command(
    session: &mut ImapSession,
    mailbox: &str,
    until: Instant,
) -> Result<String, ImapError> {
    if mailbox == "INBOX" {
        return Ok(syntax::quote(mailbox));
    }
    let namespace = personal(session, until)?;
    let refused = |why| ImapError::Final(StoreError::Refused, why);
    if mailbox != SENT_ROLE {
        return namespace.name(mailbox).map(|name| syntax::quote(&name)).map_err(refused);
    }
    let plain = namespace.name("Sent").map_err(refused)?;
    let marked = marked_as_sent(session, &namespace, until)?;
    Ok(syntax::quote(&the_one(marked, plain)))
}

/// The namespace of the account's own mailboxes.
///
/// # Errors
/// The server did not answer.
pub fn personal(session: &mut ImapSession, until: Instant) -> Result<Namespace, ImapError> {
    if let Some(known) = &session.namespace {
        return Ok(known.clone());
    }
    let namespace = match session.capabilities().has("NAMESPACE") {
        false => None,
        true => match session.run("NAMESPACE", until) {
            Err(ImapError::Refused(_)) => None,
            answer => answer?.responses.iter().find_map(|response| {
                Namespace::parse(&response.after("NAMESPACE")?, &response.literals)
            }),
        },
    };
    let namespace = namespace.unwrap_or_default();
    session.namespace = Some(namespace.clone());
    Ok(namespace)
}

/// All mailboxes that the server shows in this session, others' and shared ones too, with the
/// attributes that mark their use where the server has them.
///
/// # Errors
/// The list did not come to its end.
pub fn list(session: &mut ImapSession, until: Instant) -> Result<Vec<ListedMailbox>, ImapError> {
    let answer = listing(session, until)?;
    let listed = answer
        .responses
        .iter()
        .filter_map(|response| ListedMailbox::parse(&response.after("LIST")?, &response.literals));
    Ok(listed.collect())
}

/// The answer to the LIST command, not parsed.
///
/// # Errors
/// Those of [`list`].
pub fn listing(session: &mut ImapSession, until: Instant) -> Result<CommandOutput, ImapError> {
    let can = session.capabilities();
    // Without LIST-EXTENDED a server may send the attributes unasked.
    let returns = match can.has("SPECIAL-USE") && can.has("LIST-EXTENDED") {
        true => " RETURN (SPECIAL-USE)",
        false => "",
    };
    session.run_large(&format!("LIST \"\" \"*\"{returns}"), until)
}

/// The account's own mailboxes that are marked as the one for sent mail.
pub fn marked_as_sent(
    session: &mut ImapSession,
    namespace: &Namespace,
    until: Instant,
) -> Result<Vec<String>, ImapError> {
    if !session.capabilities().has("SPECIAL-USE") {
        return Ok(Vec::new());
    }
    let marked = list(session, until)?.into_iter().filter(|mailbox| {
        mailbox.is_there() && mailbox.has("\\sent") && namespace.is_own(&mailbox.name)
    });
    Ok(marked.map(|mailbox| mailbox.name).collect())
}

/// Facts about the names of mailboxes, for an administrator, one a line.
///
/// # Errors
/// The server did not answer.
pub fn facts(session: &mut ImapSession, until: Instant) -> Result<Vec<String>, ImapError> {
    let namespace = personal(session, until)?;
    let separator = namespace.separator.map_or("none".to_owned(), String::from);
    let names = format!("prefix {:?}, separator {separator}", namespace.prefix);
    let sent = match session.capabilities().has("SPECIAL-USE") {
        false => "the server has no SPECIAL-USE, so that it means Sent".to_owned(),
        true => match marked_as_sent(session, &namespace, until)? {
            marked if marked.is_empty() => "no mailbox is marked, so that it means Sent".to_owned(),
            marked => format!(
                "{:?} (marked: {})",
                the_one(marked.clone(), namespace.name("Sent").unwrap_or_default()),
                marked.len()
            ),
        },
    };
    Ok(vec![format!("imap: names of mailboxes: {names}"), format!("imap: \\Sent: {sent}")])
}
