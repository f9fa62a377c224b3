//! Taking one message out of a mailbox: UID STORE and UID EXPUNGE (UIDPLUS) of that message alone.
//! Only CLOSE and a bare EXPUNGE, which we never send, would take out what others have marked. A
//! session that breaks between the two steps leaves the message marked as deleted; a refusal does
//! not.

use std::time::Instant;

use super::candidates::{self, Judge};
use super::error::ImapError;
use super::fetch;
use super::look::open_afresh;
use super::session::ImapSession;
use super::syntax;
use onedrop_core::store::{CopySearch, FoundCopy};

/// Takes out message `uid` of `mailbox` if its UIDVALIDITY is `validity`, and it is what is
/// `sought`; that there is none is fine.
///
/// # Errors
/// [`ImapError::Refused`] also when the mailbox has another UIDVALIDITY, and when it is another
/// message.
pub fn remove(
    session: &mut ImapSession,
    mailbox: &str,
    validity: u32,
    uid: u32,
    sought: Option<&CopySearch<'_>>,
    until: Instant,
) -> Result<(), ImapError> {
    if !select(session, mailbox, validity, until)? {
        return Ok(());
    }
    if let Some(sought) = sought
        && candidates::equal(session, &Judge { sought }, &[uid], 1, until)?.is_empty()
    {
        return match is_there(session, uid, until)? {
            true => Err(ImapError::refused(format!("uid {uid} is another message now"))),
            false => Ok(()),
        };
    }
    mark(session, uid, until)?;
    expunge(session, uid, until)
}

/// Takes out message `uid` if message `keeper` stands beside it. The keeper is looked at once `uid`
/// is marked: where two processes each take the other's keeper for the double, at least one sees
/// the other's mark.
///
/// # Errors
/// [`ImapError::Refused`] also when either is gone or marked as deleted by another, or the
/// mailbox has another UIDVALIDITY.
pub fn remove_double(
    session: &mut ImapSession,
    mailbox: &str,
    validity: u32,
    uid: u32,
    keeper: u32,
    until: Instant,
) -> Result<(), ImapError> {
    if !select(session, mailbox, validity, until)? {
        return Err(ImapError::refused("the mailbox is gone"));
    }
    // A mark that is not ours must not be taken back below.
    if !stands(session, uid, until)? {
        return Err(ImapError::refused(format!(
            "uid {uid} is gone or marked as deleted by now, try again"
        )));
    }
    mark(session, uid, until)?;
    match stands(session, keeper, until) {
        Ok(true) => expunge(session, uid, until),
        Ok(false) => {
            let why =
                format!("uid {keeper}, which was to stay, is gone or marked as deleted by now");
            Err(unmark(session, uid, why, until))
        }
        Err(ImapError::Refused(no)) => Err(unmark(session, uid, no.text, until)),
        Err(broken) => Err(broken),
    }
}

/// Where a message is that was handed over.
#[derive(Debug, PartialEq, Eq)]
pub struct Place {
    /// The name as commands have it.
    pub mailbox: String,
    validity: u32,
    pub uid: u32,
}

impl Place {
    pub fn of(found: &FoundCopy) -> Option<Place> {
        let (handed, (validity, uid)) = found.handed.as_ref().zip(found.receipt.as_uid())?;
        Some(Place { mailbox: syntax::quote(&handed.mailbox), validity, uid })
    }
}

/// Does what [`remove_double`] does for two messages in one mailbox of any name: the only copy in a
/// mailbox may be all that a filter had still to do there.
///
/// # Errors
/// Those of [`remove_double`].
pub fn remove_handed_double(
    session: &mut ImapSession,
    double: &Place,
    keeper: &Place,
    until: Instant,
) -> Result<(), ImapError> {
    let Place { mailbox, validity, uid } = double;
    let is_beside = (mailbox, validity) == (&keeper.mailbox, &keeper.validity);
    if !is_beside || *uid == keeper.uid {
        return Err(ImapError::refused("the two do not stand side by side"));
    }
    remove_double(session, mailbox, *validity, *uid, keeper.uid, until)
}

/// Opens the mailbox to write; false when it does not exist.
fn select(
    session: &mut ImapSession,
    mailbox: &str,
    validity: u32,
    until: Instant,
) -> Result<bool, ImapError> {
    match open_afresh(session, "SELECT", mailbox, until)?.map(|opened| opened.validity) {
        Some(other) if other != validity => Err(ImapError::refused(format!(
            "the mailbox has UIDVALIDITY {other}, the copy was stored under {validity}"
        ))),
        found => Ok(found.is_some()),
    }
}

/// Whether message `uid` is there and, as the server expressly says, not marked as deleted.
fn stands(session: &mut ImapSession, uid: u32, until: Instant) -> Result<bool, ImapError> {
    let answer = session.run(&format!("UID FETCH {uid} (FLAGS)"), until)?;
    let marks: Vec<bool> =
        fetch::all_of(answer, uid).filter_map(|fetched| fetched.is_deleted).collect();
    Ok(!marks.is_empty() && marks.iter().all(|is_deleted| !is_deleted))
}

fn mark(session: &mut ImapSession, uid: u32, until: Instant) -> Result<(), ImapError> {
    session.run(&format!("UID STORE {uid} +FLAGS.SILENT (\\Deleted)"), until).map(drop)
}

fn expunge(session: &mut ImapSession, uid: u32, until: Instant) -> Result<(), ImapError> {
    let answer = match session.run(&format!("UID EXPUNGE {uid}"), until) {
        Err(ImapError::Refused(no)) => return Err(unmark(session, uid, no.text, until)),
        answer => answer?,
    };
    if answer.responses.iter().any(|response| says_that_one_went(&response.line)) {
        return Ok(());
    }
    // Without the right to delete, a server may say OK to both commands and do nothing (RFC 4314
    // section 4).
    if !is_there(session, uid, until)? {
        return Ok(());
    }
    let why = format!(
        "the server says OK and leaves uid {uid} there: store.user may lack the rights to delete \
         (t and e)"
    );
    Err(unmark(session, uid, why, until))
}

fn is_there(session: &mut ImapSession, uid: u32, until: Instant) -> Result<bool, ImapError> {
    let answer = session.run(&format!("UID FETCH {uid} (FLAGS)"), until)?;
    Ok(fetch::all_of(answer, uid).next().is_some())
}

/// `* 3 EXPUNGE`, or `* VANISHED 41` (RFC 7162).
fn says_that_one_went(line: &[u8]) -> bool {
    line.to_ascii_uppercase().ends_with(b" EXPUNGE")
        || line.get(..9).is_some_and(|start| start.eq_ignore_ascii_case(b"VANISHED "))
}

/// Takes our mark back, as the message stays; returns why it does.
fn unmark(session: &mut ImapSession, uid: u32, why: String, until: Instant) -> ImapError {
    match session.run(&format!("UID STORE {uid} -FLAGS.SILENT (\\Deleted)"), until) {
        Ok(_) => ImapError::refused(why),
        Err(ImapError::Refused(no)) => {
            ImapError::refused(format!("{why}; uid {uid} stays marked as deleted: {}", no.text))
        }
        Err(broken) => {
            broken.map(|broken| format!("{why}; uid {uid} may stay marked as deleted: {broken}"))
        }
    }
}
