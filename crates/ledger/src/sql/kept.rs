//! The bytes of shared copies (Sent) that could not be placed, or are due later: their rows and
//! what is kept are read and locked, `claim.rs` decides, and what it says is written in the same
//! transaction. Whoever records a receipt at the same moment waits for one of these rows, and then
//! sees what came first.

use std::time::Duration;

use super::attempts::OfMessage;
use super::{SqlSession, claims, contended_if_duplicate, first, rows_at, sql};
use crate::rows::{self, LONGEST};
use onedrop_core::directory::Destination;
use onedrop_core::ledger::claim::{self, DueIn, Row};
use onedrop_core::ledger::{Due, LedgerError, MessageKey};
use onedrop_core::text;

const LOCK_KEPT: &str = "SELECT 1 FROM onedrop_kept k WHERE message_id = ?1 {locked(k)}";

const SAY_WHY: &str = "UPDATE onedrop_kept SET why = ?2 WHERE message_id = ?1 AND why <> ?2";

const DUE_AT: &str = "
SELECT {whole(due_at)} FROM onedrop_copy WHERE message_id = ?1 AND account = ?2 AND mailbox = ?3";

/// [`Ledger::kept`](onedrop_core::ledger::Ledger::kept).
pub(crate) fn kept<S: SqlSession>(
    session: &mut S,
    message: &MessageKey,
) -> Result<Option<String>, LedgerError> {
    let kept = "SELECT k.why FROM onedrop_message m JOIN onedrop_kept k ON k.message_id = m.id";
    session.value(&claims::named(kept, message, ""))
}

/// [`Ledger::keep`](onedrop_core::ledger::Ledger::keep).
pub(crate) fn keep<S: SqlSession>(
    session: &mut S,
    key: &MessageKey,
    bytes: &[u8],
    why: &str,
) -> Result<bool, LedgerError> {
    let (message, why) = (key.number, text::within(why, LONGEST));
    // The message's row first, as a purge locks it.
    let stay = claims::named("SELECT 1 FROM onedrop_message m", key, "{stay}");
    let statements = [stay, claims::read_shared(message), sql!(LOCK_KEPT, message)];
    let answers = SqlSession::begin(session, &statements)?;
    if rows_at(&answers, 0).is_empty() {
        SqlSession::rollback(session)?;
        return Err(LedgerError::Forgotten);
    }
    if !rows_at(&answers, 2).is_empty() {
        SqlSession::commit(session, &[sql!(SAY_WHY, message, &*why)])?;
        return Ok(true);
    }
    let copies = claims::all_claimed(answers.get(1..2).unwrap_or_default())?;
    if !copies.iter().any(|copy| copy.row.wants_bytes()) {
        SqlSession::rollback(session)?;
        return Ok(false);
    }
    session.put_kept(message, bytes, &why).map_err(contended_if_duplicate::<S>)?;
    SqlSession::commit(session, &[])?;
    Ok(true)
}

/// [`Ledger::keep_until_due`](onedrop_core::ledger::Ledger::keep_until_due).
pub(crate) fn keep_until_due<S: SqlSession>(
    session: &mut S,
    key: &MessageKey,
    destination: &Destination,
    (bytes, why): (&[u8], &str),
    after: Duration,
) -> Result<Due, LedgerError> {
    let (message, places) = (key.number, std::slice::from_ref(destination));
    // Whoever else may insert the copy's row waits for this, or this for them.
    let lock = claims::named("SELECT looks_back FROM onedrop_message m", key, "{locked(m)}");
    let mut statements = vec![lock, sql!(LOCK_KEPT, message)];
    statements.splice(1..1, claims::read_copies(OfMessage::Number(message), places));
    let answers = SqlSession::begin(session, &statements)?;
    let Some(looks_back) = first(&answers, 0)? else {
        SqlSession::rollback(session)?;
        return Err(LedgerError::Forgotten);
    };
    let read = claims::on_record(answers.get(1..2).unwrap_or_default())?.pop();
    let row = read.as_ref().map_or_else(|| Row::new(looks_back), |read| read.row.clone());
    let (due, change) = claim::keep_until_due(&row, after);
    if let DueIn::Placed(receipt) = due {
        SqlSession::rollback(session)?;
        return Ok(Due::Placed(receipt));
    }
    let mut statements = Vec::new();
    if let Some(change) = change {
        statements = claims::make_due(read.as_ref(), message, destination, &change);
        if rows_at(&answers, 2).is_empty() {
            let why = text::within(why, LONGEST);
            session.put_kept(message, bytes, &why).map_err(contended_if_duplicate::<S>)?;
        }
    }
    let Destination { account, mailbox, .. } = destination;
    statements.push(sql!(DUE_AT, message, account, mailbox));
    let answers = SqlSession::commit(session, &statements);
    let answers = answers.map_err(contended_if_duplicate::<S>)?;
    let at = first::<Option<i64>, _>(&answers, statements.len() - 1)?.flatten();
    at.map(|at| Due::At(rows::time(at))).ok_or(LedgerError::Contended)
}
