//! Attempts: each in the given transaction.

use rusqlite::{Connection, params};

use super::read;
use crate::directory::Destination;
use crate::ledger::trace::{PLAIN_STATUS, stored_text};
use crate::ledger::{Attempt, AttemptEnd, LedgerError, rows};
use crate::message::Identity;
use crate::receipt::Receipt;

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
         VALUES (?1, ?2, ?3, nullif(?4, (SELECT sender FROM onedrop_message WHERE id = ?1)), ?5, ?6,
                 ?7, ?8)",
        params![
            message,
            message.is_none().then_some(identity.id_hash),
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

/// Puts an attempt's end on record. `stored`: the copy that it has placed; what there is to be said
/// of it stands in its row.
pub(super) fn end(
    tx: &Connection,
    attempt: i64,
    end: &AttemptEnd,
    stored: Option<(i64, &Receipt)>,
) -> Result<(), LedgerError> {
    let mut said = (Some(&end.status), Some(&end.text), None);
    if let Some((copy, receipt)) = stored.filter(|_| end.outcome == "delivered") {
        let sql = "SELECT account, mailbox, shared FROM onedrop_copy WHERE id = ?1";
        let place = read(tx, sql, [copy], |row| rows::destination(row, 0))?;
        let is_plain = |place: &Destination| {
            end.status == PLAIN_STATUS && end.text == stored_text(place, receipt)
        };
        if place.first().is_some_and(is_plain) {
            said = (None, None, Some(copy));
        }
    }
    let (status, text, copy) = said;
    tx.execute(
        "UPDATE onedrop_attempt SET duration_ms = ?2, outcome = ?3, status = ?4, detail = ?5,
             copy_id = ?6
         WHERE id = ?1",
        params![attempt, rows::millis(end.duration), end.outcome, status, text, copy],
    )?;
    Ok(())
}
