//! Whose mailboxes a session shows. Some servers take SASL's authorization identity and ignore it:
//! they let our user in, say OK, and everybody's mail would lie in that user's INBOX. So before
//! anything is written, a session for an account and one for the user itself must be seen not to
//! show the same mailboxes.
//!
//! Proof is, in this order: the server refuses the user itself, between two logins for the account;
//! the INBOXes have another UIDVALIDITY each (or the user has none), read for the account, the user
//! and the account again, in a new session each, for one may be made up as long as it is not on
//! disk; a mailbox of a random name that is made for the user does not show for the account. That
//! one is deleted again; a crash leaves it behind, empty, and never in another's account.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Instant;

use super::login::{Connector, LoginError};
use super::session::{CommandError, Refusal, Session};
use super::{failed, look, syntax};
use crate::store::{MailboxOwner, StoreError};

/// See [`Store::whose_mailboxes`](crate::store::Store::whose_mailboxes).
pub fn whose_mailboxes(
    connector: &Connector,
    account: &str,
    until: Instant,
) -> Result<MailboxOwner, StoreError> {
    let user = &connector.settings.user;
    if is_same_person(account, user) {
        return Err(cannot(format!(
            "{account} is the account of {user} itself; another account can tell"
        )));
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
        let uidvalidity =
            |inbox: Option<u32>| inbox.map_or("none".to_owned(), |validity| validity.to_string());
        let (ours, theirs) = (uidvalidity(before), uidvalidity(theirs));
        return Ok(MailboxOwner::Accounts(format!(
            "INBOX of {account} has uidvalidity {ours}, that of {user} {theirs}"
        )));
    }
    by_a_mailbox(connector, &mut own, account, until)
}

/// The server does not let the user in for itself. If it would ignore for whom, the account's login
/// would be the same.
fn refused_itself(
    connector: &Connector,
    account: &str,
    no: LoginError,
    until: Instant,
) -> Result<MailboxOwner, StoreError> {
    match no {
        no if no.denies_identity() => drop(connector.open(account, until)?),
        LoginError::Refused(Refusal { code, text }) if !is_temporary(&code) => {
            return Err(cannot(format!(
                "{text}; an account of its own for this user on the mail server would tell"
            )));
        }
        no => return Err(StoreError::NotStored(no.why())),
    }
    Ok(MailboxOwner::Accounts(format!(
        "{} may log in for {account} and not for itself",
        connector.settings.user
    )))
}

fn by_a_mailbox(
    connector: &Connector,
    own: &mut Session,
    account: &str,
    until: Instant,
) -> Result<MailboxOwner, StoreError> {
    let user = &connector.settings.user;
    let name = format!("{}onedrop-{:016x}", prefix(own, until)?, random());
    let mailbox = syntax::quote(&name);
    match own.run(&format!("CREATE {mailbox}"), until) {
        Ok(_) => {}
        Err(CommandError::Refused(Refusal { code, text })) if !is_temporary(&code) => {
            return Err(cannot(format!("{user} cannot make a mailbox {name} of its own: {text}")));
        }
        Err(error) => return Err(failed(&format!("making a mailbox for {user}"), error)),
    }
    let seen = look_for(connector, own, account, &mailbox, until);
    // Also after an error: nothing else takes it away.
    let deleted = own.run(&format!("DELETE {mailbox}"), until);
    if let Err(error) = deleted {
        let error = failed("deleting it", error);
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
    own: &mut Session,
    account: &str,
    mailbox: &str,
    until: Instant,
) -> Result<bool, StoreError> {
    let shows = |session: &mut Session| {
        look::exists(session, mailbox, until).map_err(|error| failed("listing a mailbox", error))
    };
    let before = shows(own)?;
    let seen = shows(&mut connector.open(account, until)?)?;
    let is_listed = seen || (before && shows(own)?);
    if !is_listed {
        return Err(cannot(format!(
            "the server does not list a mailbox that it has made for {}",
            connector.settings.user
        )));
    }
    Ok(seen)
}

/// UIDVALIDITY of the session's INBOX; `None` where there is none.
fn inbox(session: &mut Session, whose: &str, until: Instant) -> Result<Option<u32>, StoreError> {
    look::open(session, "EXAMINE", "\"INBOX\"", until)
        .map_err(|error| failed(&format!("opening INBOX of {whose}"), error))
}

/// What the names of one's own mailboxes begin with (RFC 2342).
fn prefix(session: &mut Session, until: Instant) -> Result<String, StoreError> {
    if !session.capabilities().has("NAMESPACE") {
        return Ok(String::new());
    }
    match session.run("NAMESPACE", until) {
        Ok(answer) => {
            let namespaces =
                answer.responses.iter().find_map(|response| response.after("NAMESPACE"));
            Ok(namespaces.as_deref().and_then(personal_prefix).unwrap_or_default())
        }
        Err(CommandError::Refused(Refusal { .. })) => Ok(String::new()),
        Err(error) => Err(failed("asking for namespaces", error)),
    }
}

/// The prefix of the first personal namespace: printable ASCII without quotes, which a command may
/// carry.
fn personal_prefix(namespaces: &str) -> Option<String> {
    let (prefix, _) = namespaces.strip_prefix("((\"")?.split_once('"')?;
    prefix
        .bytes()
        .all(|byte| matches!(byte, b' '..=b'~') && byte != b'\\')
        .then(|| prefix.to_owned())
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

/// It is this server's answer for good that proves nothing.
fn cannot(why: String) -> StoreError {
    StoreError::Setup(why)
}

fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        for (namespaces, prefix) in [
            ("((\"INBOX.\" \".\")) NIL NIL", Some("INBOX.")),
            ("((\"\" \"/\")) ((\"user/\" \"/\")) NIL", Some("")),
            ("NIL NIL NIL", None),
            ("((\"a\\\\\" \".\"))", None),
            ("((\"a", None),
            ("", None),
        ] {
            assert_eq!(personal_prefix(namespaces).as_deref(), prefix, "{namespaces}");
        }
    }

    #[test]
    fn the_users_own_account_is_known_by_its_name() {
        for (account, user) in
            [("mda", "mda"), ("MDA", "mda"), ("mda", "mda@mail.axial.net"), ("mda@a", "MDA")]
        {
            assert!(is_same_person(account, user), "{account} {user}");
        }
        for (account, user) in [("lisa", "mda"), ("mda@a", "mda@b"), ("mda2", "mda"), ("", "mda")] {
            assert!(!is_same_person(account, user), "{account} {user}");
        }
    }
}
