//! Attempts, in the given transaction.

use rusqlite::{Connection, params};

use super::execute;
use crate::rows::INDEXED;
use onedrop_core::ledger::{Attempt, LedgerError};
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
