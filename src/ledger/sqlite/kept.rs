//! The bytes of shared copies that could not be placed.

use rusqlite::{Connection, OptionalExtension, params};

use crate::ledger::LedgerError;

/// [`Ledger::keep`](crate::ledger::Ledger::keep).
pub(super) fn keep(
    tx: &Connection,
    now: f64,
    message: i64,
    bytes: &[u8],
    why: &str,
) -> Result<bool, LedgerError> {
    // Only if they are not kept: writing the row again would write all its bytes.
    if let Some(known) = kept(tx, message)? {
        if known != why {
            tx.execute(
                "UPDATE onedrop_kept SET why = ?2 WHERE message_id = ?1",
                params![message, why],
            )?;
        }
        return Ok(true);
    }
    let rows = tx.execute(
        "INSERT INTO onedrop_kept (message_id, bytes, why, kept_at) SELECT ?1, ?2, ?3, ?4
         WHERE EXISTS (SELECT 1 FROM onedrop_copy
                       WHERE message_id = ?1 AND shared AND placed_at IS NULL)",
        params![message, bytes, why, now],
    )?;
    Ok(rows > 0)
}

/// [`Ledger::kept`](crate::ledger::Ledger::kept).
pub(super) fn kept(connection: &Connection, message: i64) -> Result<Option<String>, LedgerError> {
    let sql = "SELECT why FROM onedrop_kept WHERE message_id = ?1";
    Ok(connection.query_row(sql, [message], |row| row.get(0)).optional()?)
}

/// [`Ledger::kept_bytes`](crate::ledger::Ledger::kept_bytes).
pub(super) fn bytes(connection: &Connection, message: i64) -> Result<Option<Vec<u8>>, LedgerError> {
    let sql = "SELECT bytes FROM onedrop_kept WHERE message_id = ?1";
    Ok(connection.query_row(sql, [message], |row| row.get(0)).optional()?)
}
