//! Attempts: each in the given transaction.

use rusqlite::{Connection, params};

use super::execute;
use crate::rows;
use onedrop_core::directory::Destination;
use onedrop_core::ledger::{Attempt, AttemptEnd, LedgerError};
use onedrop_core::ledger::{PLAIN_STATUS, stored_text};
use onedrop_core::message::Identity;
use onedrop_core::outcome::Reason;
use onedrop_core::receipt::Receipt;

pub(super) fn insert(
    tx: &Connection,
    now: f64,
    message: Option<i64>,
    identity: &Identity,
    attempt: &Attempt,
) -> Result<i64, LedgerError> {
    execute(
        tx,
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
            end.outcome,
            end.status,
            end.text,
            end.reason.map(Reason::word)
        ],
    )?;
    Ok(())
}

/// Of a recipient. The text of an attempt that delivered names the accounts of its copies.
pub(super) const REACHED: &str = "SELECT account FROM (
    SELECT (SELECT c.account FROM onedrop_copy c
            WHERE c.message_id = a.message_id AND NOT c.shared AND c.placed_at IS NOT NULL
              AND (c.attempt_id = a.id OR a.outcome = 'delivered'
                   AND instr(a.detail, 'account=' || c.account || ' ') > 0)
            LIMIT 1) AS account
    FROM onedrop_attempt a WHERE a.recipient = ?1 AND a.message_id IS NOT NULL
      AND coalesce(a.outcome, 'delivered') = 'delivered'
) WHERE account IS NOT NULL LIMIT 1";

/// [`Ledger::account_reached`](onedrop_core::ledger::Ledger::account_reached).
pub(super) fn reached(
    connection: &Connection,
    addresses: &[&str],
) -> Result<Option<String>, LedgerError> {
    for address in addresses {
        let account = super::first(connection, REACHED, [address.to_lowercase()])?;
        if account.is_some() {
            return Ok(account);
        }
    }
    Ok(None)
}
