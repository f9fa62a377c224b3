//! Named locks. A claim is one transaction, sent in one round trip: the slot's row is locked
//! without waiting, so that a transaction which has asserted the lock makes it busy; the lease is
//! taken if it has run out; the row follows the lease. Renewals and releases write the lease alone.

use std::time::{Duration, Instant};

use postgres::Row;
use postgres::types::Type;

use super::columns::LONGEST;
use super::connection::{Connection, Statement};
use super::{PostgresLedger, schema};
use crate::locks::lock_row;
use crate::rows::{Cell, SqlRow, millis};
use onedrop_core::ledger::LedgerError;
use onedrop_core::ledger::{
    LockClaim, LockRequest, LockRow, LockTheft, LockTry, Locks, first_free,
};
use onedrop_core::lock_name::LockName;
use onedrop_core::text;

const ROWS: &str = "
SELECT k.name, k.slot::bigint, k.epoch, k.host, k.pid, k.command, k.note, k.slots::bigint,
       extract(epoch FROM k.acquired_at)::double precision, l.owner, l.lease_ms,
       extract(epoch FROM l.lease_until - clock_timestamp())::double precision
FROM onedrop_lock k JOIN onedrop_lock_lease l ON l.name_hash = k.name_hash AND l.slot = k.slot
WHERE l.lease_until IS NOT NULL AND ($1::bytea IS NULL OR k.name_hash = $1)
ORDER BY k.name COLLATE \"C\", k.slot";

/// A slot that nobody has claimed yet.
const NEW_SLOT: &str = "
INSERT INTO onedrop_lock (name_hash, slot, name, epoch) VALUES ($1, $2::bigint, $3, 0)
ON CONFLICT DO NOTHING";
const NEW_LEASE: &str = "
INSERT INTO onedrop_lock_lease (name_hash, slot, epoch) VALUES ($1, $2::bigint, 0)
ON CONFLICT DO NOTHING";

/// Fails (55P03) while a transaction that has asserted the lock is open, or another claims it.
const LOCK_SLOT: &str = "
SELECT epoch FROM onedrop_lock WHERE name_hash = $1 AND slot = $2::bigint FOR UPDATE NOWAIT";

const TAKE_LEASE: &str = "
UPDATE onedrop_lock_lease
SET epoch = epoch + 1, owner = $3, lease_ms = $4, renewed_at = clock_timestamp(),
    lease_until = clock_timestamp() + $4 * interval '1 millisecond'
WHERE name_hash = $1 AND slot = $2::bigint
  AND (lease_until IS NULL OR lease_until <= clock_timestamp())";

const TAKE_SLOT: &str = "
UPDATE onedrop_lock k
SET epoch = l.epoch, acquired_at = clock_timestamp(), host = $4, pid = $5, command = $6, note = $7,
    slots = $8::bigint
FROM onedrop_lock_lease l
WHERE k.name_hash = $1 AND k.slot = $2::bigint AND l.name_hash = k.name_hash AND l.slot = k.slot
  AND l.owner = $3 AND l.epoch > k.epoch
RETURNING k.epoch";

const RENEW: &str = "
UPDATE onedrop_lock_lease
SET lease_ms = $5, renewed_at = clock_timestamp(),
    lease_until = clock_timestamp() + $5 * interval '1 millisecond'
WHERE name_hash = $1 AND slot = $2::bigint AND epoch = $3 AND owner = $4 AND lease_until IS NOT NULL
RETURNING epoch";

/// The transaction's commit waits for no disk and no standby.
const UNSYNCED: &str = "SET LOCAL synchronous_commit = off";

const RELEASE: &str = "
UPDATE onedrop_lock_lease SET lease_until = NULL
WHERE name_hash = $1 AND slot = $2::bigint AND epoch = $3 AND owner = $4
RETURNING epoch";

const STEAL_LEASE: &str = "
UPDATE onedrop_lock_lease SET epoch = epoch + 1, owner = $3, lease_until = NULL
WHERE name_hash = $1 AND slot = $2::bigint AND lease_until IS NOT NULL
  AND ($4 OR lease_until <= clock_timestamp())";

const STEAL_SLOT: &str = "
UPDATE onedrop_lock k SET epoch = l.epoch, acquired_at = clock_timestamp(), note = $4
FROM onedrop_lock_lease l
WHERE k.name_hash = $1 AND k.slot = $2::bigint AND l.name_hash = k.name_hash AND l.slot = k.slot
  AND l.owner = $3 AND l.epoch > k.epoch";

/// Also for a theft that is made again.
const STOLEN: &str = "
SELECT epoch FROM onedrop_lock_lease
WHERE name_hash = $1 AND slot = $2::bigint AND owner = $3";

impl Locks for PostgresLedger {
    fn take_lock(&self, request: &LockRequest<'_>, until: Instant) -> Result<LockTry, LedgerError> {
        self.call(until, |connection| {
            let rows = lock_rows(connection, Some(request.name))?;
            first_free(connection, request, rows, renew, claim)
        })
    }

    fn renew_lock(
        &self,
        claim: &LockClaim,
        lease: Duration,
        until: Instant,
    ) -> Result<bool, LedgerError> {
        self.call(until, |connection| renew(connection, claim, lease))
    }

    fn release_lock(&self, claim: &LockClaim, until: Instant) -> Result<bool, LedgerError> {
        self.call_once(until, |connection| {
            let rows = connection.write(&[Statement::new(UNSYNCED), of_claim(RELEASE, claim)])?;
            Ok(last::<i64>(&rows)?.is_some())
        })
    }

    fn lock_rows(
        &self,
        name: Option<&LockName>,
        until: Instant,
    ) -> Result<Vec<LockRow>, LedgerError> {
        self.call(until, |connection| lock_rows(connection, name))
    }

    fn steal_lock(
        &self,
        theft: &LockTheft<'_>,
        until: Instant,
    ) -> Result<Option<i64>, LedgerError> {
        self.call(until, |connection| steal(connection, theft))
    }
}

fn lock_rows(
    connection: &mut Connection,
    name: Option<&LockName>,
) -> Result<Vec<LockRow>, LedgerError> {
    let hash = name.map(|name| name.hash().to_vec());
    let rows = Statement::new(ROWS).with(hash, Type::BYTEA);
    let answers = schema::checked(connection, Connection::read, [rows])?;
    answers.iter().flatten().map(lock_row).collect()
}

/// Claims a slot if it is free; its epoch.
fn claim(
    connection: &mut Connection,
    request: &LockRequest<'_>,
    slot: u32,
) -> Result<Option<i64>, LedgerError> {
    let LockRequest { name, owner, lease, holder, .. } = request;
    let of = |sql| of_slot(sql, name, slot);
    let claimed = connection.write(&[
        of(NEW_SLOT).with(name.as_str(), Type::TEXT),
        of(NEW_LEASE),
        of(LOCK_SLOT),
        of(TAKE_LEASE).with(owner.bytes(), Type::BYTEA).with(millis(*lease), Type::INT8),
        of(TAKE_SLOT)
            .with(owner.bytes(), Type::BYTEA)
            .with(text::within(&holder.host, LONGEST), Type::TEXT)
            .with(i64::from(holder.pid), Type::INT8)
            .with(text::within(&holder.command, LONGEST), Type::TEXT)
            .with(text::within(&holder.note, LONGEST), Type::TEXT)
            .with(i64::from(holder.slots), Type::INT8),
    ]);
    match claimed {
        Ok(rows) => last(&rows),
        Err(LedgerError::Contended) => Ok(None),
        Err(error) => Err(error),
    }
}

fn renew(
    connection: &mut Connection,
    claim: &LockClaim,
    lease: Duration,
) -> Result<bool, LedgerError> {
    let statement = of_claim(RENEW, claim).with(millis(lease), Type::INT8);
    Ok(last::<i64>(&connection.write(&[statement])?)?.is_some())
}

fn steal(connection: &mut Connection, theft: &LockTheft<'_>) -> Result<Option<i64>, LedgerError> {
    let LockTheft { name, slot, force, value, note } = theft;
    let of = |sql| of_slot(sql, name, *slot);
    let rows = connection.write(&[
        of(LOCK_SLOT),
        of(STEAL_LEASE).with(value.bytes(), Type::BYTEA).with(*force, Type::BOOL),
        of(STEAL_SLOT)
            .with(value.bytes(), Type::BYTEA)
            .with(text::within(note, LONGEST), Type::TEXT),
        of(STOLEN).with(value.bytes(), Type::BYTEA),
    ])?;
    last(&rows)
}

fn of_slot<'a>(sql: &'a str, name: &LockName, slot: u32) -> Statement<'a> {
    let hash = name.hash().to_vec();
    Statement::new(sql).with(hash, Type::BYTEA).with(i64::from(slot), Type::INT8)
}

fn of_claim<'a>(sql: &'a str, claim: &'a LockClaim) -> Statement<'a> {
    of_slot(sql, &claim.name, claim.slot)
        .with(claim.epoch, Type::INT8)
        .with(claim.owner.bytes(), Type::BYTEA)
}

/// The first column of the first row.
fn first<T: Cell>(rows: &[Row]) -> Result<Option<T>, LedgerError> {
    rows.first().map(|row| row.cell(0)).transpose()
}

/// The same of the last statement.
fn last<T: Cell>(rows: &[Vec<Row>]) -> Result<Option<T>, LedgerError> {
    first(rows.last().map_or(&[], Vec::as_slice))
}
