//! The bytes of shared copies that could not be placed.

use postgres::types::Type;

use super::columns::LONGEST;
use super::columns::cell;
use super::connection::{Connection, Statement};
use crate::ledger::LedgerError;
use crate::text;

/// Tried first, so that the bytes are sent only once.
const SAY_WHY: &str = "UPDATE onedrop_kept SET why = $2 WHERE message_id = $1 RETURNING message_id";

/// Locks the copy's row, so that a receipt recorded at the same moment deletes the kept bytes.
const KEEP: &str = "
WITH unplaced AS (
    SELECT message_id FROM onedrop_copy WHERE message_id = $1 AND shared
    AND placed_at IS NULL FOR UPDATE
)
INSERT INTO onedrop_kept (message_id, bytes, why) SELECT DISTINCT message_id, $3, $2 FROM unplaced
ON CONFLICT (message_id) DO UPDATE SET why = excluded.why
RETURNING message_id";

/// [`Ledger::keep`](crate::ledger::Ledger::keep).
pub(super) fn keep(
    connection: &mut Connection,
    message: i64,
    bytes: &[u8],
    why: &str,
) -> Result<bool, LedgerError> {
    let why = text::within(why, LONGEST);
    let statement = |sql| Statement::new(sql).with(&message, Type::INT8).with(&why, Type::TEXT);
    connection.rollback()?;
    let known = connection.commit(&[statement(SAY_WHY)])?;
    if known.iter().flatten().next().is_some() {
        return Ok(true);
    }
    let kept = connection.commit(&[statement(KEEP).with(&bytes, Type::BYTEA)])?;
    Ok(kept.iter().flatten().next().is_some())
}

/// [`Ledger::kept`](crate::ledger::Ledger::kept).
pub(super) fn kept(
    connection: &mut Connection,
    message: i64,
) -> Result<Option<String>, LedgerError> {
    one(connection, "SELECT why FROM onedrop_kept WHERE message_id = $1", message)
}

/// [`Ledger::kept_bytes`](crate::ledger::Ledger::kept_bytes).
pub(super) fn bytes(
    connection: &mut Connection,
    message: i64,
) -> Result<Option<Vec<u8>>, LedgerError> {
    one(connection, "SELECT bytes FROM onedrop_kept WHERE message_id = $1", message)
}

fn one<T>(connection: &mut Connection, sql: &str, message: i64) -> Result<Option<T>, LedgerError>
where
    T: for<'r> postgres::types::FromSql<'r>,
{
    let rows = connection.read(&[Statement::new(sql).with(&message, Type::INT8)])?;
    rows.iter().flatten().next().map(|row| cell(row, 0)).transpose()
}
