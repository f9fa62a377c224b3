//! The bytes of messages: as they came, and of shared copies (Sent) that could not be placed, or
//! are due later. They stand in pieces.

use super::connection::{MariadbSession, first, rows_at};
use super::statement::{SqlBatch, values};
use onedrop_core::ledger::LedgerError;

/// Bytes of a piece of a message: with two digits for each, a packet holds several, also where an
/// administrator has made packets small.
const PIECE_BYTES: usize = 256 * 1024;

const KEEP_PIECE: &str =
    "INSERT INTO onedrop_kept_bytes (message_id, position, bytes) VALUES (?1, ?2, ?3)";

/// Puts the bytes into the open transaction.
pub(super) fn put_kept(
    connection: &mut MariadbSession,
    message: i64,
    bytes: &[u8],
    why: &str,
) -> Result<(), LedgerError> {
    let sql = "INSERT INTO onedrop_kept (message_id, why, kept_at)
               VALUES (?1, ?2, UTC_TIMESTAMP(6))";
    connection.go_on(SqlBatch::of(sql, values![message, why]))?;
    put_pieces(connection, KEEP_PIECE, Some(message), bytes)
}

/// Puts the bytes as they came into the open transaction: the message goes first, by `statements`,
/// and its bytes by themselves.
pub(super) fn put_raw(
    connection: &mut MariadbSession,
    statements: SqlBatch,
    bytes: &[u8],
) -> Result<(), LedgerError> {
    let sql = "INSERT INTO onedrop_raw (message_id, position, bytes, kept_at)
               VALUES (?1, ?2, ?3, UTC_TIMESTAMP())";
    let inserted = connection.go_on(statements)?;
    put_pieces(connection, sql, first(rows_at(&inserted, 0))?, bytes)
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
