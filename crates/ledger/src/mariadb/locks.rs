//! Named locks. A claim is one transaction: the slot's row is locked without waiting, so that a
//! transaction which has asserted the lock makes it busy; the lease is taken if it has run out; the
//! row follows the lease. Renewals and releases write the lease alone.

use std::time::{Duration, Instant};

use super::attempts::LONGEST;
use super::connection::{MariadbSession, rows_at};
use super::statement::{SqlBatch, Value, values};
use super::{MariadbLedger, schema};
use crate::locks::lock_row;
use crate::rows::{SqlRow, millis};
use onedrop_core::ledger::LedgerError;
use onedrop_core::ledger::{
    LockClaim, LockRequest, LockRow, LockTheft, LockTry, Locks, first_free,
};
use onedrop_core::lock_name::LockName;
use onedrop_core::text;

const ROWS: &str = "
SELECT k.name, k.slot, k.epoch, k.host, k.pid, k.command, k.note, k.slots,
       TIMESTAMPDIFF(MICROSECOND, '1970-01-01', k.acquired_at) / 1000000, l.owner, l.lease_ms,
       TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), l.lease_until) / 1000000
FROM onedrop_lock k JOIN onedrop_lock_lease l ON l.name_hash = k.name_hash AND l.slot = k.slot
WHERE l.lease_until IS NOT NULL AND (?1 IS NULL OR k.name_hash = ?1)
ORDER BY k.name, k.slot";

/// A slot that nobody has claimed yet. Where it is there nothing changes; the row is locked for the
/// statement's own transaction, which ends at once.
const NEW_SLOT: &str = "
INSERT INTO onedrop_lock (name_hash, slot, name, epoch)
SELECT ?1, ?2, ?3, 0 FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM onedrop_lock WHERE name_hash = ?1 AND slot = ?2)";
const NEW_LEASE: &str = "
INSERT INTO onedrop_lock_lease (name_hash, slot, epoch)
SELECT ?1, ?2, 0 FROM DUAL
WHERE NOT EXISTS (SELECT 1 FROM onedrop_lock_lease WHERE name_hash = ?1 AND slot = ?2)";

/// Fails (1205) while a transaction that has asserted the lock is open, or another claims it.
const LOCK_SLOT: &str = "
SELECT epoch FROM onedrop_lock WHERE name_hash = ?1 AND slot = ?2 FOR UPDATE NOWAIT";

/// The newest lease: its epoch, its owner, whether it lasts and whether it was not given back.
const LEASE: &str = "
SELECT epoch, owner, COALESCE(lease_until > UTC_TIMESTAMP(6), 0), lease_until IS NOT NULL
FROM onedrop_lock_lease WHERE name_hash = ?1 AND slot = ?2 FOR UPDATE";

const TAKE_LEASE: &str = "
UPDATE onedrop_lock_lease
SET epoch = ?3, owner = ?4, lease_ms = ?5, renewed_at = UTC_TIMESTAMP(6),
    lease_until = TIMESTAMPADD(MICROSECOND, 1000 * ?5, UTC_TIMESTAMP(6))
WHERE name_hash = ?1 AND slot = ?2";

const TAKE_SLOT: &str = "
UPDATE onedrop_lock
SET epoch = ?3, acquired_at = UTC_TIMESTAMP(6), host = ?4, pid = ?5, command = ?6, note = ?7,
    slots = ?8
WHERE name_hash = ?1 AND slot = ?2";

const RENEW: &str = "
UPDATE onedrop_lock_lease
SET lease_ms = ?5, renewed_at = UTC_TIMESTAMP(6),
    lease_until = TIMESTAMPADD(MICROSECOND, 1000 * ?5, UTC_TIMESTAMP(6))
WHERE name_hash = ?1 AND slot = ?2 AND epoch = ?3 AND owner = ?4 AND lease_until IS NOT NULL";

/// Whether the lease is that of the claim and was not given back.
const IS_OURS: &str = "
SELECT 1 FROM onedrop_lock_lease
WHERE name_hash = ?1 AND slot = ?2 AND epoch = ?3 AND owner = ?4 AND lease_until IS NOT NULL
FOR UPDATE";

/// The same, given back or not.
const WAS_OURS: &str = "
SELECT 1 FROM onedrop_lock_lease
WHERE name_hash = ?1 AND slot = ?2 AND epoch = ?3 AND owner = ?4 FOR UPDATE";

const RELEASE: &str = "
UPDATE onedrop_lock_lease SET lease_until = NULL
WHERE name_hash = ?1 AND slot = ?2 AND epoch = ?3 AND owner = ?4";

const STEAL_LEASE: &str = "
UPDATE onedrop_lock_lease SET epoch = ?3, owner = ?4, lease_until = NULL
WHERE name_hash = ?1 AND slot = ?2";

const STEAL_SLOT: &str = "
UPDATE onedrop_lock SET epoch = ?3, acquired_at = UTC_TIMESTAMP(6), note = ?4
WHERE name_hash = ?1 AND slot = ?2";

impl Locks for MariadbLedger {
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
            connection.revive()?;
            let mut batch = of_claim(WAS_OURS, claim, None);
            batch.append(of_claim(RELEASE, claim, None));
            let answers = connection.write(batch)?;
            Ok(!rows_at(&answers, 0).is_empty())
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
    connection: &mut MariadbSession,
    name: Option<&LockName>,
) -> Result<Vec<LockRow>, LedgerError> {
    let hash = name.map(|name| name.hash().to_vec());
    let batch = SqlBatch::of(ROWS, values![hash.as_deref()]);
    let answers = schema::checked(connection, MariadbSession::read, batch)?;
    rows_at(&answers, 0).iter().map(lock_row).collect()
}

/// Claims a slot if it is free; its epoch.
fn claim(
    connection: &mut MariadbSession,
    request: &LockRequest<'_>,
    slot: u32,
) -> Result<Option<i64>, LedgerError> {
    let LockRequest { name, owner, lease, holder, .. } = request;
    let hash = name.hash().to_vec();
    let mut lock = SqlBatch::of(LOCK_SLOT, values![&*hash, slot]);
    lock.add(LEASE, values![&*hash, slot]);
    let locked = match connection.begin(lock) {
        Ok(answers) if rows_at(&answers, 0).is_empty() || rows_at(&answers, 1).is_empty() => {
            // Nobody has claimed the slot yet.
            connection.rollback()?;
            make(connection, &hash, name, slot)?;
            let mut lock = SqlBatch::of(LOCK_SLOT, values![&*hash, slot]);
            lock.add(LEASE, values![&*hash, slot]);
            connection.begin(lock)
        }
        answers => answers,
    };
    let answers = match locked {
        Err(LedgerError::Contended) => return Ok(None),
        answers => answers?,
    };
    let Some(row) = rows_at(&answers, 1).first() else {
        connection.rollback()?;
        return Ok(None);
    };
    if row.cell(2)? {
        connection.rollback()?;
        return Ok(None);
    }
    let epoch = row.cell::<i64>(0)? + 1;
    let lease_ms = millis(*lease);
    let mut batch = SqlBatch::of(TAKE_LEASE, values![&*hash, slot, epoch, owner.bytes(), lease_ms]);
    batch.add(
        TAKE_SLOT,
        values![
            &*hash,
            slot,
            epoch,
            text::within(&holder.host, LONGEST),
            holder.pid,
            text::within(&holder.command, LONGEST),
            text::within(&holder.note, LONGEST),
            holder.slots,
        ],
    );
    connection.commit(batch)?;
    Ok(Some(epoch))
}

/// Makes the rows of a slot, in a transaction of its own; another session may do so at the same
/// time.
fn make(
    connection: &mut MariadbSession,
    hash: &[u8],
    name: &LockName,
    slot: u32,
) -> Result<(), LedgerError> {
    let mut batch = SqlBatch::of(NEW_SLOT, values![hash, slot, name.as_str().as_bytes()]);
    batch.add(NEW_LEASE, values![hash, slot]);
    match connection.write(batch) {
        Err(error) if super::errors::is_duplicate(&error) => Ok(()),
        Err(LedgerError::Contended) => Ok(()),
        result => result.map(drop),
    }
}

fn renew(
    connection: &mut MariadbSession,
    claim: &LockClaim,
    lease: Duration,
) -> Result<bool, LedgerError> {
    // A renewal within the same microsecond changes no row and holds all the same.
    let mut batch = of_claim(IS_OURS, claim, None);
    batch.append(of_claim(RENEW, claim, Some(lease)));
    let answers = connection.write(batch)?;
    Ok(!rows_at(&answers, 0).is_empty())
}

fn steal(
    connection: &mut MariadbSession,
    theft: &LockTheft<'_>,
) -> Result<Option<i64>, LedgerError> {
    let LockTheft { name, slot, force, value, note } = *theft;
    let hash = name.hash().to_vec();
    let mut lock = SqlBatch::of(LOCK_SLOT, values![&*hash, slot]);
    lock.add(LEASE, values![&*hash, slot]);
    let answers = connection.begin(lock)?;
    let Some(row) = rows_at(&answers, 1).first() else {
        connection.rollback()?;
        return Ok(None);
    };
    let (last, owner): (i64, Option<Vec<u8>>) = (row.cell(0)?, row.cell(1)?);
    let (lasts, is_held): (bool, bool) = (row.cell(2)?, row.cell(3)?);
    let is_done = owner.as_deref() == Some(value.bytes());
    if is_done || !is_held || lasts && !force {
        connection.rollback()?;
        return Ok(is_done.then_some(last));
    }
    let epoch = last + 1;
    let mut batch = SqlBatch::of(STEAL_LEASE, values![&*hash, slot, epoch, value.bytes()]);
    batch.add(STEAL_SLOT, values![&*hash, slot, epoch, text::within(note, LONGEST)]);
    connection.commit(batch)?;
    Ok(Some(epoch))
}

fn of_claim(sql: &str, claim: &LockClaim, lease: Option<Duration>) -> SqlBatch {
    let LockClaim { name, slot, epoch, owner } = claim;
    let hash = name.hash().to_vec();
    let mut values = vec![
        Value::from(&*hash),
        Value::from(*slot),
        Value::from(*epoch),
        Value::from(owner.bytes()),
    ];
    values.extend(lease.map(|lease| Value::from(millis(lease))));
    SqlBatch::of(sql, &values)
}
