//! Attempts: each in the given transaction.

use rusqlite::{Connection, params};

use crate::ledger::{Attempt, AttemptEnd, LedgerError, rows};
use crate::message::Identity;

pub(super) fn insert(
    tx: &Connection,
    now: f64,
    message: Option<i64>,
    identity: &Identity,
    attempt: &Attempt,
) -> Result<i64, LedgerError> {
    tx.execute(
        "INSERT INTO onedrop_attempt (message_id, id_hash, recipient, sender, queue_id, host, pid,
             started_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        params![
            message,
            identity.id_hash,
            attempt.recipient.to_lowercase(),
            attempt.sender,
            attempt.queue_id,
            attempt.host,
            attempt.pid,
            now
        ],
    )?;
    Ok(tx.last_insert_rowid())
}

/// Puts an attempt's end on record.
pub(super) fn end(tx: &Connection, attempt: i64, end: &AttemptEnd) -> Result<(), LedgerError> {
    tx.execute(
        "UPDATE onedrop_attempt SET duration_ms = ?2, outcome = ?3, status = ?4, detail = ?5
         WHERE id = ?1",
        params![attempt, rows::millis(end.duration), end.outcome, end.status, end.text],
    )?;
    Ok(())
}
