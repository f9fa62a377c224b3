//! A message on the general path, for what the fast one ([`super::newly`]) left.

use super::connection::MariadbSession;
use super::dialect::spelt;
use super::statement::{SqlBatch, values};
use crate::session::ToRecord;
use crate::sql;
use onedrop_core::ledger::{LedgerError, Recorded};
use onedrop_core::lock_key::Hash;

/// Locks a slot without waiting (error 1205 where another session holds it).
pub(super) fn lock_slot(batch: &mut SqlBatch, hash: &Hash) {
    let slot = i64::from(u16::from_be_bytes([hash[0], hash[1]]));
    batch.add("SELECT n FROM onedrop_slot WHERE n = ?1 FOR UPDATE NOWAIT", values![slot]);
}

/// [`Ledger::record`](onedrop_core::ledger::Ledger::record), whatever is on record; in the open
/// transaction, if one is open.
pub(super) fn record(
    connection: &mut MariadbSession,
    one: &ToRecord<'_>,
) -> Result<Recorded, LedgerError> {
    sql::record::record(connection, one, |connection, statements| {
        let mut batch = SqlBatch::default();
        lock_slot(&mut batch, &one.entry.identity.id_hash);
        batch.append(spelt(statements));
        Ok(connection.begin_or_go_on(batch)?.split_off(1))
    })
}
