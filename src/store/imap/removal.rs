//! Taking one message out of a mailbox: UID STORE and UID EXPUNGE (UIDPLUS) of that message alone.
//! The mailbox stays open read-write, which disturbs no APPEND; only CLOSE and a bare EXPUNGE,
//! which we never send, would take out what others have marked. A session that breaks between the
//! two steps leaves the message marked as deleted; a refusal does not.

use std::time::Instant;

use super::fetch;
use super::look::{open, refused};
use super::session::{CommandError, Refusal, Session};

/// Takes out message `uid` of `mailbox` if its UIDVALIDITY is `validity`; that there is none is
/// fine.
///
/// # Errors
/// [`CommandError::Refused`] also when the mailbox has another UIDVALIDITY.
pub fn remove(
    session: &mut Session,
    mailbox: &str,
    validity: u32,
    uid: u32,
    until: Instant,
) -> Result<(), CommandError> {
    if !select(session, mailbox, validity, until)? {
        return Ok(());
    }
    mark(session, uid, until)?;
    expunge(session, uid, until)
}

/// Takes out message `uid` if message `keeper` stands beside it. The keeper is looked at once `uid`
/// is marked: where two processes each take the other's keeper for the double, at least one sees
/// the other's mark.
///
/// # Errors
/// [`CommandError::Refused`] also when either is gone or marked as deleted by another, or the
/// mailbox has another UIDVALIDITY.
pub fn remove_double(
    session: &mut Session,
    mailbox: &str,
    validity: u32,
    uid: u32,
    keeper: u32,
    until: Instant,
) -> Result<(), CommandError> {
    if !select(session, mailbox, validity, until)? {
        return Err(refused("the mailbox is gone".to_owned()));
    }
    // A mark that is not ours must not be taken back below.
    if !stands(session, uid, until)? {
        return Err(refused(format!("uid {uid} is gone or marked as deleted by now, try again")));
    }
    mark(session, uid, until)?;
    match stands(session, keeper, until) {
        Ok(true) => expunge(session, uid, until),
        Ok(false) => {
            let why =
                format!("uid {keeper}, which was to stay, is gone or marked as deleted by now");
            Err(unmark(session, uid, why, until))
        }
        Err(CommandError::Refused(refusal)) => Err(unmark(session, uid, refusal.text, until)),
        Err(broken) => Err(broken),
    }
}

/// Opens the mailbox to write; false when it does not exist.
fn select(
    session: &mut Session,
    mailbox: &str,
    validity: u32,
    until: Instant,
) -> Result<bool, CommandError> {
    match open(session, "SELECT", mailbox, until)? {
        Some(other) if other != validity => Err(refused(format!(
            "the mailbox has UIDVALIDITY {other}, the copy was stored under {validity}"
        ))),
        found => Ok(found.is_some()),
    }
}

/// Whether message `uid` is there and, as the server expressly says, not marked as deleted.
fn stands(session: &mut Session, uid: u32, until: Instant) -> Result<bool, CommandError> {
    let answer = session.run(&format!("UID FETCH {uid} (FLAGS)"), until)?;
    let fetched = answer
        .responses
        .into_iter()
        .filter_map(fetch::parse)
        .filter(|fetched| fetched.uid == Some(uid));
    let marks: Vec<bool> = fetched.filter_map(|fetched| fetched.is_deleted).collect();
    Ok(!marks.is_empty() && marks.iter().all(|is_deleted| !is_deleted))
}

fn mark(session: &mut Session, uid: u32, until: Instant) -> Result<(), CommandError> {
    session.run(&format!("UID STORE {uid} +FLAGS.SILENT (\\Deleted)"), until).map(drop)
}

fn expunge(session: &mut Session, uid: u32, until: Instant) -> Result<(), CommandError> {
    match session.run(&format!("UID EXPUNGE {uid}"), until) {
        Err(CommandError::Refused(Refusal { text, .. })) => Err(unmark(session, uid, text, until)),
        expunged => expunged.map(drop),
    }
}

/// Takes our mark back, as the message stays; returns why it does.
fn unmark(session: &mut Session, uid: u32, why: String, until: Instant) -> CommandError {
    match session.run(&format!("UID STORE {uid} -FLAGS.SILENT (\\Deleted)"), until) {
        Ok(_) => refused(why),
        Err(CommandError::Refused(refusal)) => {
            refused(format!("{why}; uid {uid} stays marked as deleted: {}", refusal.text))
        }
        Err(no @ CommandError::ConnectError(_)) => no,
        Err(CommandError::Lost(broken)) => {
            CommandError::Lost(format!("{why}; uid {uid} may stay marked as deleted: {broken}"))
        }
    }
}
