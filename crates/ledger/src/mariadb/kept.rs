//! The bytes of shared copies (Sent) that could not be placed, or are due later. They stand in
//! pieces.

use std::time::Duration;

use super::attempts::LONGEST;
use super::connection::{MariadbSession, first, rows_at};
use super::errors::contended_if_duplicate;
use super::statement::{SqlBatch, values};
use crate::rows;
use onedrop_core::directory::Destination;
use onedrop_core::ledger::{Due, LedgerError, RandomValue};
use onedrop_core::text;

/// Bytes of a piece of a message: with two digits for each, a packet holds several, also where an
/// administrator has made packets small.
const PIECE_BYTES: usize = 256 * 1024;

/// Locks the shared copies that are not placed, so that a receipt recorded at the same moment
/// deletes the kept bytes.
const UNPLACED: &str = "
SELECT id FROM onedrop_copy WHERE message_id = ?1 AND shared AND placed_at IS NULL FOR UPDATE";

const WHY: &str = "SELECT why FROM onedrop_kept WHERE message_id = ?1";

pub(super) fn keep(
    connection: &mut MariadbSession,
    message: i64,
    bytes: &[u8],
    why: &str,
) -> Result<bool, LedgerError> {
    let why = text::within(why, LONGEST);
    let mut batch = SqlBatch::of(UNPLACED, values![message]);
    batch.add(&format!("{WHY} FOR UPDATE"), values![message]);
    let answers = connection.begin(batch)?;
    let (unplaced, known) = (rows_at(&answers, 0), first::<String>(rows_at(&answers, 1))?);
    if known.is_some() {
        let sql = "UPDATE onedrop_kept SET why = ?2 WHERE message_id = ?1";
        connection.commit(SqlBatch::of(sql, values![message, &*why]))?;
        return Ok(true);
    }
    if unplaced.is_empty() {
        connection.rollback()?;
        return Ok(false);
    }
    put_kept(connection, message, bytes, &why)?;
    connection.commit(SqlBatch::default()).map_err(contended_if_duplicate)?;
    Ok(true)
}

const KEEP_PIECE: &str =
    "INSERT INTO onedrop_kept_bytes (message_id, position, bytes) VALUES (?1, ?2, ?3)";

/// Puts the bytes into the open transaction.
fn put_kept(
    connection: &mut MariadbSession,
    message: i64,
    bytes: &[u8],
    why: &str,
) -> Result<(), LedgerError> {
    let sql = "INSERT INTO onedrop_kept (message_id, why, kept_at)
               VALUES (?1, ?2, UTC_TIMESTAMP(6))";
    connection.go_on(SqlBatch::of(sql, values![message, why])).map_err(contended_if_duplicate)?;
    put_pieces(connection, KEEP_PIECE, Some(message), bytes)
}

/// Puts `bytes` into the open transaction, a row for each piece: a packet, and so a value, may be
/// shorter than a message. `sql` takes the message, the position and the piece.
pub(super) fn put_pieces(
    connection: &mut MariadbSession,
    sql: &str,
    message: Option<i64>,
    bytes: &[u8],
) -> Result<(), LedgerError> {
    let pieces = if bytes.is_empty() { vec![bytes] } else { bytes.chunks(PIECE_BYTES).collect() };
    for (position, piece) in (0i64..).zip(pieces) {
        connection.go_on(SqlBatch::of(sql, values![message, position, piece]))?;
    }
    Ok(())
}

pub(super) fn kept(
    connection: &mut MariadbSession,
    message: i64,
) -> Result<Option<String>, LedgerError> {
    first(&connection.query(WHY, values![message])?)
}

/// Where the copy stands.
const DUE: &str = "
SELECT placed_at IS NOT NULL, receipt_kind, receipt,
       TIMESTAMPDIFF(SECOND, '1970-01-01', due_at),
       EXISTS (SELECT 1 FROM onedrop_kept k WHERE k.message_id = c.message_id), id
FROM onedrop_copy c WHERE message_id = ?1 AND account = ?2 AND mailbox = ?3";

pub(super) fn keep_until_due(
    connection: &mut MariadbSession,
    message: i64,
    destination: &Destination,
    (bytes, why): (&[u8], &str),
    after: Duration,
) -> Result<Due, LedgerError> {
    let place = (destination.account.as_bytes(), destination.mailbox.as_bytes());
    let why = text::within(why, LONGEST);
    // Asked first, so that the bytes are sent only once.
    if let Some(row) = connection.query(DUE, values![message, place.0, place.1])?.first()
        && let Some(due) = rows::due(row)?
    {
        return Ok(due);
    }
    let after_ms = rows::millis(after).min(i64::MAX / 2000);
    let mut batch = SqlBatch::of(
        "SELECT id FROM onedrop_message WHERE id = ?1 LOCK IN SHARE MODE",
        values![message],
    );
    batch.add(
        "INSERT INTO onedrop_copy (message_id, account, mailbox, shared, epoch, owner, in_doubt,
             prior_doubt, looks_back, value, due_at)
         SELECT id, ?2, ?3, TRUE, 0, '', looks_back, looks_back, looks_back, ?4,
             TIMESTAMPADD(MICROSECOND, 1000 * ?5, UTC_TIMESTAMP(6))
         FROM onedrop_message WHERE id = ?1
         ON DUPLICATE KEY UPDATE
             shared = IF(placed_at IS NULL, TRUE, shared),
             due_at = IF(placed_at IS NULL, COALESCE(due_at, VALUES(due_at)), due_at)",
        values![message, place.0, place.1, RandomValue::default().bytes(), after_ms],
    );
    batch.add(UNPLACED, values![message]);
    // A receipt recorded at the same moment must not delete it.
    batch.add(&format!("{WHY} FOR UPDATE"), values![message]);
    batch.add(
        "INSERT INTO onedrop_unsettled (copy_id, look_at)
         SELECT id, due_at FROM onedrop_copy
         WHERE message_id = ?1 AND account = ?2 AND mailbox = ?3 AND placed_at IS NULL
         ON DUPLICATE KEY UPDATE look_at = LEAST(look_at, VALUES(look_at))",
        values![message, place.0, place.1],
    );
    let answers = connection.begin(batch)?;
    let is_kept = !rows_at(&answers, 3).is_empty();
    if !is_kept && !rows_at(&answers, 2).is_empty() {
        put_kept(connection, message, bytes, &why)?;
    }
    let answers = connection.commit(SqlBatch::of(DUE, values![message, place.0, place.1]))?;
    let due = rows_at(&answers, 0).first().map(rows::due).transpose()?.flatten();
    due.ok_or(LedgerError::Forgotten)
}
