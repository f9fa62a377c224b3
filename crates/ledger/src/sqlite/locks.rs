//! Named locks in the file. Their leases count by the boot clock, as those of copies do (`clock`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::{Connection, params};

use super::Classified;
use super::clock::lease_end;
use super::{BootTime, SqliteLedger, SqliteSession, read};
use crate::locks::lock_row;
use crate::rows::{SqlRow, millis};
use onedrop_core::ledger::LedgerError;
use onedrop_core::ledger::{
    LockClaim, LockRequest, LockRow, LockTheft, LockTry, Locks, first_free,
};
use onedrop_core::lock_name::LockName;

const ROWS: &str = "
SELECT k.name, k.slot, k.epoch, k.host, k.pid, k.command, k.note, k.slots, k.acquired_at, l.owner,
       l.lease_ms,
       {lease_end} - ?3
FROM onedrop_lock k JOIN onedrop_lock_lease l ON l.name_hash = k.name_hash AND l.slot = k.slot
WHERE l.lease_until IS NOT NULL AND (?1 IS NULL OR k.name_hash = ?1) ORDER BY k.name, k.slot";

/// The newest lease of a slot: epoch, owner, seconds that are left of it, or null.
const LEASE: &str = "
SELECT epoch, owner, {lease_end} - ?3
FROM onedrop_lock_lease l WHERE name_hash = ?1 AND slot = ?4";

const RENEW: &str = "
UPDATE onedrop_lock_lease SET lease_ms = ?5, renewed_at = ?6, lease_until = ?7, boot_id = ?8
WHERE name_hash = ?1 AND slot = ?2 AND epoch = ?3 AND owner = ?4 AND lease_until IS NOT NULL";

const RELEASE: &str = "
UPDATE onedrop_lock_lease SET lease_until = NULL
WHERE name_hash = ?1 AND slot = ?2 AND epoch = ?3 AND owner = ?4";

const TAKE_SLOT: &str = "
INSERT INTO onedrop_lock (name_hash, slot, name, epoch, slots, host, pid, command, note,
                          acquired_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
ON CONFLICT DO UPDATE SET epoch = excluded.epoch, slots = excluded.slots, host = excluded.host,
    pid = excluded.pid, command = excluded.command, note = excluded.note,
    acquired_at = excluded.acquired_at";

const TAKE_LEASE: &str = "
INSERT INTO onedrop_lock_lease (name_hash, slot, epoch, owner, lease_ms, renewed_at, lease_until,
                                boot_id)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT DO UPDATE SET epoch = excluded.epoch, owner = excluded.owner,
    lease_ms = excluded.lease_ms, renewed_at = excluded.renewed_at,
    lease_until = excluded.lease_until, boot_id = excluded.boot_id";

const STEAL_LEASE: &str = "
UPDATE onedrop_lock_lease SET epoch = ?3, owner = ?4, lease_until = NULL
WHERE name_hash = ?1 AND slot = ?2";
const STEAL_SLOT: &str = "
UPDATE onedrop_lock SET epoch = ?3, note = ?4, acquired_at = ?5 WHERE name_hash = ?1 AND slot = ?2";

impl Locks for SqliteLedger {
    fn take_lock(&self, request: &LockRequest<'_>, until: Instant) -> Result<LockTry, LedgerError> {
        self.call(until, |session| {
            let rows = lock_rows(session, Some(request.name))?;
            first_free(session, request, rows, renew, claim)
        })
    }

    fn renew_lock(
        &self,
        claim: &LockClaim,
        lease: Duration,
        until: Instant,
    ) -> Result<bool, LedgerError> {
        self.call(until, |session| renew(session, claim, lease))
    }

    fn release_lock(&self, claim: &LockClaim, until: Instant) -> Result<bool, LedgerError> {
        let LockClaim { name, slot, epoch, owner } = claim;
        let params = params![name.hash(), slot, epoch, owner.bytes()];
        self.call_once(until, |session| {
            session.write_unsynced(|tx, _| Ok(tx.execute(RELEASE, params).classified()? > 0))
        })
    }

    fn lock_rows(
        &self,
        name: Option<&LockName>,
        until: Instant,
    ) -> Result<Vec<LockRow>, LedgerError> {
        self.call(until, |session| lock_rows(session, name))
    }

    fn steal_lock(
        &self,
        theft: &LockTheft<'_>,
        until: Instant,
    ) -> Result<Option<i64>, LedgerError> {
        let steal = |session: &mut SqliteSession| {
            let clocks = Arc::clone(&session.clocks);
            session.write(|tx, now| steal(tx, now, &clocks.boot()?, theft))
        };
        self.call(until, steal)
    }
}

/// The query with the end of leases: ?3 is the time of the boot whose id is ?2.
fn with_lease_end(sql: &str) -> String {
    sql.replace("{lease_end}", &lease_end("l.lease_until", "l.boot_id", "l.lease_ms", "?3", "?2"))
}

fn lock_rows(
    session: &SqliteSession,
    name: Option<&LockName>,
) -> Result<Vec<LockRow>, LedgerError> {
    session.check_program()?;
    let BootTime { secs, id } = session.clocks.boot()?;
    let params = params![name.map(LockName::hash), id, secs];
    read(&session.connection, &with_lease_end(ROWS), params, |row| lock_row(row))
}

/// Of the newest lease of a slot: epoch, owner, and the seconds that are left of it, unless it was
/// given back or stolen.
type Lease = (i64, Option<Vec<u8>>, Option<f64>);

fn lease_of(
    tx: &Connection,
    boot: &BootTime,
    name: &LockName,
    slot: u32,
) -> Result<Option<Lease>, LedgerError> {
    let params = params![name.hash(), boot.id, boot.secs, slot];
    let leases = read(tx, &with_lease_end(LEASE), params, |row| {
        Ok((row.cell(0)?, row.cell(1)?, row.cell(2)?))
    })?;
    Ok(leases.into_iter().next())
}

/// Claims a slot if it is free; its epoch.
fn claim(
    session: &mut SqliteSession,
    request: &LockRequest<'_>,
    slot: u32,
) -> Result<Option<i64>, LedgerError> {
    let LockRequest { name, owner, lease, holder, .. } = request;
    let clocks = Arc::clone(&session.clocks);
    session.write(|tx, now| {
        // After the wait for the write lock.
        let boot = clocks.boot()?;
        let last = match lease_of(tx, &boot, name, slot)? {
            Some((_, _, Some(left))) if left > 0.0 => return Ok(None),
            Some((epoch, ..)) => epoch,
            None => 0,
        };
        let (hash, epoch) = (name.hash(), last + 1);
        let (host, command, note) = (&holder.host, &holder.command, &holder.note);
        tx.execute(
            TAKE_SLOT,
            params![
                hash,
                slot,
                name.as_str(),
                epoch,
                holder.slots,
                host,
                holder.pid,
                command,
                note,
                now
            ],
        )
        .classified()?;
        let until = boot.secs + lease.as_secs_f64();
        let lease_ms = millis(*lease);
        tx.execute(
            TAKE_LEASE,
            params![hash, slot, epoch, owner.bytes(), lease_ms, now, until, boot.id],
        )
        .classified()?;
        Ok(Some(epoch))
    })
}

fn renew(
    session: &mut SqliteSession,
    claim: &LockClaim,
    lease: Duration,
) -> Result<bool, LedgerError> {
    let LockClaim { name, slot, epoch, owner } = claim;
    let clocks = Arc::clone(&session.clocks);
    session.write(|tx, now| {
        let boot = clocks.boot()?;
        let (lease_ms, until) = (millis(lease), boot.secs + lease.as_secs_f64());
        let params =
            params![name.hash(), slot, epoch, owner.bytes(), lease_ms, now, until, boot.id];
        Ok(tx.execute(RENEW, params).classified()? > 0)
    })
}

fn steal(
    tx: &Connection,
    now: f64,
    boot: &BootTime,
    theft: &LockTheft<'_>,
) -> Result<Option<i64>, LedgerError> {
    let LockTheft { name, slot, force, value, note } = *theft;
    let Some((last, owner, left)) = lease_of(tx, boot, name, slot)? else {
        return Ok(None);
    };
    if owner.as_deref() == Some(value.bytes()) {
        return Ok(Some(last));
    }
    if left.is_none_or(|left| left > 0.0 && !force) {
        return Ok(None);
    }
    let epoch = last + 1;
    tx.execute(STEAL_LEASE, params![name.hash(), slot, epoch, value.bytes()]).classified()?;
    tx.execute(STEAL_SLOT, params![name.hash(), slot, epoch, note, now]).classified()?;
    Ok(Some(epoch))
}
