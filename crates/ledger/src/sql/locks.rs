//! Named locks. A claim is one transaction, sent in one round trip: the slot's row is locked
//! without waiting, so that a transaction which has asserted the lock makes it busy; the lease is
//! taken if it has run out; the row follows the lease. Before that it is read who has the lock and
//! who waits for it, unless it was just given back. Renewals and releases write the lease alone.
//! Places in the line are rows of a table of their own, whose numbers are their order.

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant, SystemTime};

use super::{Sql, SqlSession, Value, checked, first, has_changed, rows_at, sql};
use crate::PooledLedger;
use crate::rows::{self, LONGEST, SqlRow, length, millis};
use onedrop_core::ledger::{
    LedgerError, LockClaim, LockHolder, LockRequest, LockRow, LockTheft, LockTry, LockWaiter,
    Locks, PLACE_LASTS, RandomValue, first_free, must_keep_its_place,
};
use onedrop_core::lock_key::hex;
use onedrop_core::lock_name::LockName;
use onedrop_core::text;

const ROWS: &str = "
SELECT k.name, {int(k.slot)}, k.epoch, k.host, k.pid, k.command, k.note, {int(k.slots)},
       {secs(k.acquired_at)}, l.owner, l.lease_ms, {lock_left(l.)}
FROM onedrop_lock k JOIN onedrop_lock_lease l ON l.name_hash = k.name_hash AND l.slot = k.slot
WHERE l.lease_until IS NOT NULL";

const WAITERS: &str = "
SELECT w.name, w.owner, w.host, w.pid, w.command, w.note, {int(w.slots)}, {int(w.others)},
       {secs(w.since)}, {lock_left(w.)}
FROM onedrop_lock_waiter w WHERE {lock_left(w.)} > 0";

/// Of claims that are gone.
const CLEAR_LINE: &str = "
DELETE FROM onedrop_lock_waiter WHERE name_hash = ?1 AND {lock_left()} <= 0";

const NEW_PLACE: &str = "
INSERT INTO onedrop_lock_waiter (name_hash, name, owner, host, pid, command, note, slots, others,
                                 since, lease_ms)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0, {now}, 0 FROM onedrop_ledger
WHERE NOT EXISTS (SELECT 1 FROM onedrop_lock_waiter WHERE name_hash = ?1 AND owner = ?3)";

const KEEP_PLACE: &str = "
UPDATE onedrop_lock_waiter SET others = ?3, lease_ms = ?4, {lock_lasts(?5)}
WHERE name_hash = ?1 AND owner = ?2 AND (lease_until IS NULL OR {lock_left()} > 0)";

const LEAVE_LINE: &str = "DELETE FROM onedrop_lock_waiter WHERE name_hash = ?1 AND owner = ?2";

/// A slot that has no rows yet; `onedrop_ledger` has one.
const NEW_SLOT: &str = "
INSERT INTO onedrop_lock (name_hash, slot, name, epoch) SELECT ?1, ?2, ?3, 0 FROM onedrop_ledger
WHERE NOT EXISTS (SELECT 1 FROM onedrop_lock WHERE name_hash = ?1 AND slot = ?2)";
const NEW_LEASE: &str = "
INSERT INTO onedrop_lock_lease (name_hash, slot, epoch) SELECT name_hash, slot, epoch
FROM onedrop_lock WHERE name_hash = ?1 AND slot = ?2
  AND NOT EXISTS (SELECT 1 FROM onedrop_lock_lease WHERE name_hash = ?1 AND slot = ?2)";
const HAS_LEASE: &str = "SELECT epoch FROM onedrop_lock_lease WHERE name_hash = ?1 AND slot = ?2";

/// Fails while a transaction that has asserted the lock is open, or another claims it.
const LOCK_SLOT: &str = "
SELECT epoch FROM onedrop_lock WHERE name_hash = ?1 AND slot = ?2 {locked_at_once(onedrop_lock)}";

const TAKE_LEASE: &str = "
UPDATE onedrop_lock_lease
SET epoch = epoch + 1, owner = ?3, lease_ms = ?4, renewed_at = {now}, {lock_lasts(?5)}
WHERE name_hash = ?1 AND slot = ?2 AND (lease_until IS NULL OR {lock_left()} <= 0)";

/// And no other claim waits for it.
const UNLESS_AWAITED: &str = "
  AND NOT EXISTS (SELECT 1 FROM onedrop_lock_waiter w
                  WHERE w.name_hash = ?1 AND w.owner <> ?3 AND {lock_left(w.)} > 0)";

/// The newest lease of the slot, if it is the owner's ?3.
const NEW_EPOCH: &str = "
SELECT l.epoch FROM onedrop_lock_lease l
WHERE l.name_hash = ?1 AND l.slot = ?2 AND l.owner = ?3";

const TAKE_SLOT: &str = "
UPDATE onedrop_lock
SET epoch = ({new_epoch}), acquired_at = {now}, host = ?4, pid = ?5, command = ?6, note = ?7,
    slots = ?8
WHERE name_hash = ?1 AND slot = ?2 AND epoch < ({new_epoch})";

const RENEW: &str = "
UPDATE onedrop_lock_lease SET lease_ms = ?5, renewed_at = {now}, {lock_lasts(?6)}
WHERE name_hash = ?1 AND slot = ?2 AND epoch = ?3 AND owner = ?4 AND lease_until IS NOT NULL";

const RELEASE: &str = "
UPDATE onedrop_lock_lease SET lease_until = NULL
WHERE name_hash = ?1 AND slot = ?2 AND epoch = ?3 AND owner = ?4";

const STEAL_LEASE: &str = "
UPDATE onedrop_lock_lease SET epoch = epoch + 1, owner = ?3, lease_until = NULL
WHERE name_hash = ?1 AND slot = ?2 AND lease_until IS NOT NULL AND (?4 OR {lock_left()} <= 0)";

const STEAL_SLOT: &str = "
UPDATE onedrop_lock SET epoch = ({new_epoch}), acquired_at = {now}, note = ?4
WHERE name_hash = ?1 AND slot = ?2 AND epoch < ({new_epoch})";

impl<S: SqlSession + 'static> Locks for PooledLedger<S> {
    fn take_lock(&self, request: &LockRequest<'_>, until: Instant) -> Result<LockTry, LedgerError> {
        self.call(until, |session| take(session, request))
    }

    fn prepare_to_take(&self, until: Instant) -> Result<(), LedgerError> {
        self.call(until, |session| checked(session, S::read, []).map(drop))
    }

    fn take_free_lock(
        &self,
        request: &LockRequest<'_>,
        until: Instant,
    ) -> Result<LockTry, LedgerError> {
        let LockRequest { name, slots, owner, .. } = *request;
        let [slot] = *slots else { return self.take_lock(request, until) };
        self.call(until, |session| {
            let take_lease = [TAKE_LEASE, UNLESS_AWAITED].concat();
            match try_claim(&take_lease, session, request, slot)? {
                Some(epoch) => {
                    let claim = LockClaim { name: name.clone(), slot, epoch, owner };
                    Ok(LockTry::Taken { claim, others: Vec::new() })
                }
                None => take(session, request),
            }
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
        self.call_once(until, |session| {
            session.revive()?;
            Ok(session.change_unsynced(&of_claim(RELEASE, claim))? > 0)
        })
    }

    fn lock_rows(
        &self,
        name: Option<&LockName>,
        until: Instant,
    ) -> Result<Vec<LockRow>, LedgerError> {
        self.call(until, |session| {
            lock_rows(rows_at(&checked(session, S::read, [rows_of(name)])?, 0))
        })
    }

    fn stop_waiting(
        &self,
        name: &LockName,
        owner: RandomValue,
        until: Instant,
    ) -> Result<(), LedgerError> {
        let leave = sql!(LEAVE_LINE, name.hash().to_vec(), owner.bytes());
        self.call(until, |session| session.change_unsynced(&leave).map(drop))
    }

    fn wait_for_release(&self, name: &LockName, others: &[BorrowedFd<'_>], until: Instant) -> bool {
        // As the schema names it: onedrop_lock_free().
        let channel = format!("onedrop_lock_{}", &hex(&name.hash())[..32]);
        let heard = self.call(until, |session| session.wait_for_word(&channel, others));
        heard.unwrap_or_else(|error| {
            tracing::debug!(%error, lock = %name, "no word of the ledger");
            false
        })
    }

    fn hand_session_on(&self, to: &UnixDatagram, until: Instant) {
        PooledLedger::hand_session_on(self, to, until);
    }

    fn take_session_over(&self, from: &UnixDatagram, until: Instant) {
        PooledLedger::take_session_over(self, from, until);
    }

    fn lock_waiters(
        &self,
        name: Option<&LockName>,
        until: Instant,
    ) -> Result<Vec<LockWaiter>, LedgerError> {
        self.call(until, |session| {
            waiters(rows_at(&checked(session, S::read, [waiters_of(name)])?, 0))
        })
    }

    fn steal_lock(
        &self,
        theft: &LockTheft<'_>,
        until: Instant,
    ) -> Result<Option<i64>, LedgerError> {
        self.call(until, |session| steal(session, theft))
    }
}

/// The rows that `text` has of a lock, or of all.
fn of_lock<'a>(text: &'a str, hash: &str, end: &str, name: Option<&LockName>) -> Sql<'a> {
    match name {
        Some(name) => sql!(format!("{text} AND {hash} = ?1{end}"), name.hash().to_vec()),
        None => sql!(format!("{text}{end}")),
    }
}

fn rows_of(name: Option<&LockName>) -> Sql<'static> {
    of_lock(ROWS, "k.name_hash", "", name)
}

fn waiters_of(name: Option<&LockName>) -> Sql<'static> {
    of_lock(WAITERS, "w.name_hash", " ORDER BY w.name, w.id", name)
}

fn lock_rows(rows: &[impl SqlRow]) -> Result<Vec<LockRow>, LedgerError> {
    let mut rows = rows.iter().map(lock_row).collect::<Result<Vec<_>, _>>()?;
    rows.sort_by(|one, other| {
        (one.name.as_str(), one.slot).cmp(&(other.name.as_str(), other.slot))
    });
    Ok(rows)
}

fn waiters(rows: &[impl SqlRow]) -> Result<Vec<LockWaiter>, LedgerError> {
    rows.iter().map(waiter).collect()
}

fn keep_place<S: SqlSession>(
    session: &mut S,
    request: &LockRequest<'_>,
) -> Result<(), LedgerError> {
    let LockRequest { name, owner, holder, waiting, .. } = request;
    let hash = || name.hash().to_vec();
    let others = waiting.unwrap_or_default();
    let (ms, secs) = (millis(PLACE_LASTS), PLACE_LASTS.as_secs_f64());
    let keep = sql!(KEEP_PLACE, hash(), owner.bytes(), others, ms, secs);
    if session.change_unsynced(&keep)? > 0 {
        return Ok(());
    }
    let new = sql!(
        NEW_PLACE,
        hash(),
        name.as_str(),
        owner.bytes(),
        text::within(&holder.host, LONGEST),
        holder.pid,
        text::within(&holder.command, LONGEST),
        text::within(&holder.note, LONGEST),
        holder.slots,
    );
    match session.write(&[sql!(CLEAR_LINE, hash()), new, keep]) {
        // Asked again soon.
        Err(LedgerError::Contended) => Ok(()),
        result => result.map(drop),
    }
}

fn take<S: SqlSession>(session: &mut S, request: &LockRequest<'_>) -> Result<LockTry, LedgerError> {
    let name = Some(request.name);
    let answers = checked(session, S::read, [rows_of(name), waiters_of(name)])?;
    let rows = lock_rows(rows_at(&answers, 0))?;
    let waiters = waiters(rows_at(&answers, 1))?;
    let answer = first_free(session, request, rows, &waiters, renew, claim)?;
    if matches!(answer, LockTry::Busy(_)) && must_keep_its_place(request, &waiters) {
        keep_place(session, request)?;
    }
    Ok(answer)
}

/// Claims a slot if it is free; its epoch.
fn claim<S: SqlSession>(
    session: &mut S,
    request: &LockRequest<'_>,
    slot: u32,
) -> Result<Option<i64>, LedgerError> {
    let claimed = try_claim(TAKE_LEASE, session, request, slot)?;
    // No session has claimed it yet; or the row of its lease was taken out by hand, and epochs go
    // on. Rows that another session makes meanwhile may be claimed all the same.
    let has_lease = of_slot(HAS_LEASE, request.name, slot, []);
    if claimed.is_none() && session.value::<i64>(&has_lease)?.is_none() {
        make(session, request.name, slot)?;
        return try_claim(TAKE_LEASE, session, request, slot);
    }
    Ok(claimed)
}

/// The same of a slot that has its rows.
fn try_claim<S: SqlSession>(
    take_lease: &str,
    session: &mut S,
    request: &LockRequest<'_>,
    slot: u32,
) -> Result<Option<i64>, LedgerError> {
    let LockRequest { name, owner, lease, holder, waiting, .. } = request;
    let take_slot = TAKE_SLOT.replace("{new_epoch}", NEW_EPOCH);
    let mut statements = vec![
        of_slot(LOCK_SLOT, name, slot, []),
        of_slot(
            take_lease,
            name,
            slot,
            [owner.bytes().into(), millis(*lease).into(), lease.as_secs_f64().into()],
        ),
        of_slot(
            &take_slot,
            name,
            slot,
            [
                owner.bytes().into(),
                text::within(&holder.host, LONGEST).into(),
                holder.pid.into(),
                text::within(&holder.command, LONGEST).into(),
                text::within(&holder.note, LONGEST).into(),
                holder.slots.into(),
            ],
        ),
        of_slot(NEW_EPOCH, name, slot, [owner.bytes().into()]),
    ];
    if waiting.is_some() {
        statements.push(sql!(LEAVE_LINE, name.hash().to_vec(), owner.bytes()));
    }
    match session.write(&statements) {
        Ok(answers) if has_changed(&answers, 2) => first(&answers, 3),
        Ok(_) | Err(LedgerError::Contended) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes the rows of a slot; another session may do so at the same time.
fn make<S: SqlSession>(session: &mut S, name: &LockName, slot: u32) -> Result<(), LedgerError> {
    let new =
        [of_slot(NEW_SLOT, name, slot, [name.as_str().into()]), of_slot(NEW_LEASE, name, slot, [])];
    match session.write(&new) {
        Err(error) if S::is_duplicate(&error) => Ok(()),
        Err(LedgerError::Contended) => Ok(()),
        result => result.map(drop),
    }
}

fn renew<S: SqlSession>(
    session: &mut S,
    claim: &LockClaim,
    lease: Duration,
) -> Result<bool, LedgerError> {
    let mut statement = of_claim(RENEW, claim);
    statement.values.extend([millis(lease).into(), lease.as_secs_f64().into()]);
    Ok(session.change(&statement)? > 0)
}

fn steal<S: SqlSession>(
    session: &mut S,
    theft: &LockTheft<'_>,
) -> Result<Option<i64>, LedgerError> {
    let LockTheft { name, slot, force, value, note } = theft;
    let steal_slot = STEAL_SLOT.replace("{new_epoch}", NEW_EPOCH);
    let answers = session.write(&[
        of_slot(LOCK_SLOT, name, *slot, []),
        of_slot(STEAL_LEASE, name, *slot, [value.bytes().into(), (*force).into()]),
        of_slot(
            &steal_slot,
            name,
            *slot,
            [value.bytes().into(), text::within(note, LONGEST).into()],
        ),
        // Also of a theft that is made again.
        of_slot(NEW_EPOCH, name, *slot, [value.bytes().into()]),
    ])?;
    first(&answers, 3)
}

/// A statement of a slot, whose values are the name's hash, the slot, and `more`.
fn of_slot<'a, const N: usize>(
    text: &'a str,
    name: &LockName,
    slot: u32,
    more: [Value<'a>; N],
) -> Sql<'a> {
    let mut statement = sql!(text, name.hash().to_vec(), slot);
    statement.values.extend(more);
    statement
}

/// The same of a claim, whose epoch and owner follow.
fn of_claim<'a>(text: &'a str, claim: &'a LockClaim) -> Sql<'a> {
    let LockClaim { name, slot, epoch, owner } = claim;
    of_slot(text, name, *slot, [(*epoch).into(), owner.bytes().into()])
}

/// A row of [`ROWS`].
fn lock_row(row: &impl SqlRow) -> Result<LockRow, LedgerError> {
    Ok(LockRow {
        name: name_at(row, 0)?,
        slot: number_at(row, 1)?,
        epoch: row.cell(2)?,
        holder: LockHolder {
            host: row.cell(3)?,
            pid: number_at(row, 4)?,
            command: row.cell(5)?,
            note: row.cell(6)?,
            slots: number_at(row, 7)?,
        },
        acquired_at: SystemTime::UNIX_EPOCH + length(row.cell(8)?),
        owner: owner(row, 9),
        lease: Duration::from_millis(row.cell::<i64>(10)?.max(0).unsigned_abs()),
        left: Some(length(row.cell(11)?)).filter(|left| !left.is_zero()),
    })
}

/// A row of [`WAITERS`].
fn waiter(row: &impl SqlRow) -> Result<LockWaiter, LedgerError> {
    Ok(LockWaiter {
        name: name_at(row, 0)?,
        owner: owner(row, 1),
        holder: LockHolder {
            host: row.cell(2)?,
            pid: number_at(row, 3)?,
            command: row.cell(4)?,
            note: row.cell(5)?,
            slots: number_at(row, 6)?,
        },
        others: number_at(row, 7)?,
        since: SystemTime::UNIX_EPOCH + length(row.cell(8)?),
        left: length(row.cell(9)?),
    })
}

/// Whose the lease is. A program may have written a name of its own there, which no claim of ours
/// has.
fn owner(row: &impl SqlRow, at: usize) -> RandomValue {
    rows::random_value(row, at).unwrap_or_default()
}

fn name_at(row: &impl SqlRow, at: usize) -> Result<LockName, LedgerError> {
    row.cell::<String>(at)?.parse().map_err(LedgerError::Broken)
}

fn number_at(row: &impl SqlRow, at: usize) -> Result<u32, LedgerError> {
    let number = row.cell::<i64>(at)?;
    u32::try_from(number).map_err(|_| LedgerError::Broken(format!("column {at}: {number}")))
}
