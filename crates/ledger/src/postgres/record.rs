//! A message and a receipt on the general path, for what the fast one ([`super::fast`]) left.

use super::connection::Connection;
use crate::ToRecord;
use crate::sql::{self, Answer, Sql, SqlSession, claims, first, sql};
use onedrop_core::ledger::{Confirmed, LedgerError, Recorded, ToConfirm};
use onedrop_core::lock_key::{Hash, advisory_key};
use postgres::Row;

/// [`Ledger::record`](onedrop_core::ledger::Ledger::record), whatever is on record.
pub(super) fn record(
    connection: &mut Connection,
    one: &ToRecord<'_>,
) -> Result<Recorded, LedgerError> {
    let hash = &one.entry.identity.id_hash;
    let recorded = sql::record::record(connection, one, |connection, statements| {
        begin_locked(connection, hash, statements)
    });
    if recorded.is_err() {
        connection.rollback_or_lose();
    }
    recorded
}

/// Begins a transaction with the lock of this hash, and then `statements`.
///
/// # Errors
/// [`LedgerError::Contended`]: another session holds the lock. Nothing is done then.
pub(super) fn begin_locked(
    connection: &mut Connection,
    hash: &Hash,
    statements: &[Sql<'_>],
) -> Result<Vec<Answer<Row>>, LedgerError> {
    let mut all = vec![sql!("SELECT pg_try_advisory_xact_lock(?1)", advisory_key(hash))];
    all.extend_from_slice(statements);
    let mut answers = SqlSession::begin(connection, &all)?;
    if first(&answers, 0)? == Some(true) {
        return Ok(answers.split_off(1));
    }
    connection.rollback_or_lose();
    Err(LedgerError::Contended)
}

/// A receipt, whatever is on record.
pub(super) fn confirm(
    connection: &mut Connection,
    one: &ToConfirm<'_>,
) -> Result<Confirmed, LedgerError> {
    let confirmed = claims::confirm_alone(connection, one);
    if confirmed.is_err() {
        connection.rollback_or_lose();
    }
    confirmed
}
