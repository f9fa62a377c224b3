//! Attempts: each in the given transaction.

use rusqlite::{Connection, params};

use super::execute;
use crate::rows::{self, INDEXED, LONGEST};
use onedrop_core::directory::Destination;
use onedrop_core::ledger::{Attempt, AttemptEnd, LedgerError};
use onedrop_core::ledger::{PLAIN_STATUS, stored_text};
use onedrop_core::outcome::Reason;
use onedrop_core::receipt::Receipt;
use onedrop_core::text;

pub(super) fn insert(
    tx: &Connection,
    now: f64,
    message: i64,
    attempt: &Attempt,
) -> Result<i64, LedgerError> {
    execute(
        tx,
        "INSERT INTO onedrop_attempt (message_id, recipient, sender, queue_id, host, pid,
             started_at)
         VALUES (?1, ?2, nullif(?3, (SELECT sender FROM onedrop_message WHERE id = ?1)), ?4, ?5, ?6,
                 ?7)",
        params![
            message,
            text::within(&attempt.recipient.to_lowercase(), INDEXED),
            text::within(&attempt.sender, INDEXED),
            text::within(&attempt.queue_id, INDEXED),
            text::within(&attempt.host, INDEXED),
            attempt.pid,
            now
        ],
    )?;
    Ok(tx.last_insert_rowid())
}

/// Whether an attempt has no more to say than that it stored the copy. Its row does not repeat it.
pub(super) fn is_plain(end: &AttemptEnd, destination: &Destination, receipt: &Receipt) -> bool {
    end.outcome == "delivered"
        && end.status == PLAIN_STATUS
        && end.text == stored_text(destination, receipt)
}

/// Puts an attempt's end on record.
pub(super) fn end(tx: &Connection, attempt: i64, end: &AttemptEnd) -> Result<(), LedgerError> {
    execute(
        tx,
        "UPDATE onedrop_attempt SET duration_ms = ?2, outcome = ?3, status = ?4, detail = ?5,
             reason = ?6
         WHERE id = ?1",
        params![
            attempt,
            rows::millis(end.duration),
            text::within(end.outcome, LONGEST),
            text::within(&end.status, LONGEST),
            text::within(&end.text, LONGEST),
            end.reason.map(Reason::word)
        ],
    )?;
    Ok(())
}
