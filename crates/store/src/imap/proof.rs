//! Whose mailboxes a session shows. Some servers take SASL's authorization identity and ignore it:
//! they let our user in, say OK, and everybody's mail would lie in that user's INBOX. So before
//! anything is written, a session for an account and one for the user itself must be seen not to
//! show the same mailboxes.
//!
//! Proof is, in this order: the server refuses the user itself, between two logins for the account;
//! the INBOXes have another UIDVALIDITY each (or the user has none), read for the account, the user
//! and the account again, in a new session each, for one may be made up as long as it is not on
//! disk; a mailbox of a random name that is made for the user does not show for the account. That
//! one is deleted again; a crash leaves it, empty, and never in another's account.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Instant;

use super::error::{ImapError, Rejection};
use super::login::Connector;
use super::session::ImapSession;
use super::{look, names, syntax};
use onedrop_core::store::{MailboxOwner, StoreError};

/// See [`Access::whose_mailboxes`](onedrop_core::store::Access::whose_mailboxes). It is an error of
/// the set-up that this server's answer for good proves nothing.
pub fn whose_mailboxes(
    connector: &Connector,
    account: &str,
    until: Instant,
) -> Result<MailboxOwner, StoreError> {
    let user = &connector.settings.user;
    if is_same_person(account, user) {
        let why = format!("{account} is the account of {user} itself; another account can tell");
        return Err(StoreError::Setup(why));
    }
    let mut session = connector.open(account, until)?;
    let mut own = match connector.open_own(until) {
        Ok(own) => own,
        Err(no) => return refused_itself(connector, account, no, until),
    };
    let before = inbox(&mut session, account, until)?;
    drop(session);
    let theirs = inbox(&mut own, user, until)?;
    let again = inbox(&mut connector.open(account, until)?, account, until)?;
    if before.is_some() && before == again && before != theirs {
        let [ours, theirs] = [before, theirs]
            .map(|inbox| inbox.map_or("none".to_owned(), |validity| validity.to_string()));
        return Ok(MailboxOwner::Accounts(format!(
            "INBOX of {account} has uidvalidity {ours}, that of {user} {theirs}"
        )));
    }
    by_a_mailbox(connector, &mut own, account, until)
}

/// See [`Access::are_apart`](onedrop_core::store::Access::are_apart). Read for the one, the other
/// and the one again, as above.
pub fn are_apart(
    connector: &Connector,
    one: &str,
    other: &str,
    until: Instant,
) -> Result<bool, StoreError> {
    let user = &connector.settings.user;
    let is_one = |(a, b): &(&str, &str)| is_same_person(a, b);
    if [(one, other), (one, user.as_str()), (other, user.as_str())].iter().any(is_one) {
        return Ok(false);
    }
    let read = |account| inbox(&mut connector.open(account, until)?, account, until);
    let (before, theirs, again) = (read(one)?, read(other)?, read(one)?);
    Ok(before.is_some() && theirs.is_some() && before == again && before != theirs)
}

/// The server does not let the user in for itself. If it would ignore for whom, the account's login
/// would be the same.
fn refused_itself(
    connector: &Connector,
    account: &str,
    no: ImapError,
    until: Instant,
) -> Result<MailboxOwner, StoreError> {
    match no {
        // The server denies that this user may log in (RFC 5530), and says nothing else.
        ImapError::Refused(Rejection { code, .. })
            if ["AUTHENTICATIONFAILED", "AUTHORIZATIONFAILED"].contains(&code.as_str()) =>
        {
            drop(connector.open(account, until)?);
        }
        ImapError::Refused(no) if !is_temporary(&no.code) && !no.has_no_place() => {
            return Err(StoreError::Setup(format!(
                "{}; an account of its own for this user on the mail server would tell",
                no.text
            )));
        }
        no => return Err(StoreError::NotStored(no.text())),
    }
    let user = &connector.settings.user;
    Ok(MailboxOwner::Accounts(format!("{user} may log in for {account} and not for itself")))
}

fn by_a_mailbox(
    connector: &Connector,
    own: &mut ImapSession,
    account: &str,
    until: Instant,
) -> Result<MailboxOwner, StoreError> {
    let user = &connector.settings.user;
    let namespace =
        names::personal(own, until).map_err(|error| error.while_doing("asking for namespaces"))?;
    let name = format!("{}onedrop-{:016x}", namespace.prefix, random());
    let mailbox = syntax::quote(&name);
    match own.run(&format!("CREATE {mailbox}"), until) {
        Ok(_) => {}
        Err(ImapError::Refused(Rejection { code, text })) if !is_temporary(&code) => {
            let why = format!("{user} cannot make a mailbox {name} of its own: {text}");
            return Err(StoreError::Setup(why));
        }
        Err(error) => return Err(error.while_doing(&format!("making a mailbox for {user}"))),
    }
    let seen = look_for(connector, own, account, &mailbox, until);
    // Also after an error: nothing else takes it away.
    if let Err(error) = own.run(&format!("DELETE {mailbox}"), until) {
        let error = error.while_doing("deleting it");
        tracing::warn!("the mailbox {name} of {user}, made for a test, is left behind: {error}");
    }
    Ok(match seen? {
        true => {
            MailboxOwner::Users(format!("{account} has the very mailbox that {user} has just made"))
        }
        false => {
            MailboxOwner::Accounts(format!("a mailbox that {user} made did not show for {account}"))
        }
    })
}

/// Whether `mailbox`, which `own` shows before and after, shows for the account.
fn look_for(
    connector: &Connector,
    own: &mut ImapSession,
    account: &str,
    mailbox: &str,
    until: Instant,
) -> Result<bool, StoreError> {
    let shows = |session: &mut ImapSession| {
        look::exists(session, mailbox, until)
            .map_err(|error| error.while_doing("listing a mailbox"))
    };
    let before = shows(own)?;
    let seen = shows(&mut connector.open(account, until)?)?;
    if seen || (before && shows(own)?) {
        return Ok(seen);
    }
    let user = &connector.settings.user;
    let why = format!("the server does not list a mailbox that it has made for {user}");
    Err(StoreError::Setup(why))
}

/// UIDVALIDITY of the session's INBOX; `None` where there is none.
fn inbox(
    session: &mut ImapSession,
    whose: &str,
    until: Instant,
) -> Result<Option<u32>, StoreError> {
    look::open(session, "EXAMINE", "\"INBOX\"", until)
        .map_err(|error| error.while_doing(&format!("opening INBOX of {whose}")))
}

/// Whether two names may be one person's, with a domain or without one.
fn is_same_person(account: &str, user: &str) -> bool {
    let local = |name: &str| name.split('@').next().unwrap_or_default().to_lowercase();
    match account.contains('@') == user.contains('@') {
        true => account.to_lowercase() == user.to_lowercase(),
        false => local(account) == local(user),
    }
}

/// Codes (RFC 5530) of a server that may say something else soon.
fn is_temporary(code: &str) -> bool {
    ["UNAVAILABLE", "INUSE", "SERVERBUG", "LIMIT", "CONTACTADMIN"].contains(&code)
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
