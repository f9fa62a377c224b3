//! Named locks in memory.

use std::time::{Duration, Instant};

use super::MemoryLedger;
use super::rows::{Rows, SlotRow};
use super::time::wall_clock;
use crate::ledger::locks::{
    LockClaim, LockRequest, LockRow, LockTheft, LockTry, LockWaiter, Locks, PLACE_LASTS,
    first_free, must_keep_its_place,
};
use crate::ledger::{LedgerError, RandomValue};
use crate::lock_key::Hash;
use crate::lock_name::LockName;

impl Rows {
    fn slot_of(&mut self, claim: &LockClaim) -> Option<&mut SlotRow> {
        self.slot(&claim.name, claim.slot)
            .filter(|row| row.owner == claim.owner && row.epoch == claim.epoch)
    }

    fn slot(&mut self, name: &LockName, slot: u32) -> Option<&mut SlotRow> {
        self.slots.get_mut(&(name.hash(), slot))
    }

    fn claim_slot(
        &mut self,
        request: &LockRequest<'_>,
        slot: u32,
    ) -> Result<Option<i64>, LedgerError> {
        let now = self.time.now();
        let row = self.slots.get(&(request.name.hash(), slot));
        if row.is_some_and(|row| row.until.is_some_and(|until| until > now)) {
            return Ok(None);
        }
        let epoch = row.map_or(0, |row| row.epoch) + 1;
        let row = SlotRow {
            name: request.name.clone(),
            epoch,
            owner: request.owner,
            holder: request.holder.clone(),
            acquired_at: now,
            lease: request.lease,
            until: Some(now + request.lease),
        };
        self.slots.insert((request.name.hash(), slot), row);
        self.stop_waiting(request.name, request.owner)?;
        Ok(Some(epoch))
    }

    fn keep_place(&mut self, request: &LockRequest<'_>) {
        let now = self.time.now();
        let until = now + PLACE_LASTS;
        let others = request.waiting.unwrap_or_default();
        self.waiters.retain(|(_, until)| *until > now);
        let is_its = |waiter: &LockWaiter| waiter.owner == request.owner;
        match self.waiters.iter_mut().find(|(waiter, _)| is_its(waiter)) {
            Some((waiter, lasts)) => (waiter.others, *lasts) = (others, until),
            None => {
                let waiter = LockWaiter {
                    name: request.name.clone(),
                    owner: request.owner,
                    holder: request.holder.clone(),
                    others,
                    since: wall_clock(now),
                    left: PLACE_LASTS,
                };
                self.waiters.push((waiter, until));
            }
        }
    }

    fn stop_waiting(&mut self, name: &LockName, owner: RandomValue) -> Result<(), LedgerError> {
        self.waiters.retain(|(waiter, _)| waiter.owner != owner || waiter.name != *name);
        Ok(())
    }

    fn lock_waiters(&mut self, name: Option<&LockName>) -> Result<Vec<LockWaiter>, LedgerError> {
        let now = self.time.now();
        let left = |(waiter, until): &(LockWaiter, Duration)| {
            let left = until.checked_sub(now).filter(|left| !left.is_zero())?;
            Some(LockWaiter { left, ..waiter.clone() })
        };
        let mut waiters: Vec<_> = self.waiters.iter().filter_map(left).collect();
        waiters.retain(|waiter| name.is_none_or(|name| waiter.name == *name));
        waiters.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(waiters)
    }
}

fn shown((key, row): (&(Hash, u32), &SlotRow), now: Duration) -> Option<LockRow> {
    Some(LockRow {
        name: row.name.clone(),
        slot: key.1,
        epoch: row.epoch,
        owner: row.owner,
        holder: row.holder.clone(),
        acquired_at: wall_clock(row.acquired_at),
        lease: row.lease,
        left: row.until?.checked_sub(now).filter(|left| !left.is_zero()),
    })
}

impl Rows {
    fn take_lock(&mut self, request: &LockRequest<'_>) -> Result<LockTry, LedgerError> {
        let rows = self.lock_rows(Some(request.name))?;
        let waiters = self.lock_waiters(Some(request.name))?;
        let answer = first_free(self, request, rows, &waiters, Rows::renew_lock, Rows::claim_slot)?;
        if matches!(answer, LockTry::Busy(_)) && must_keep_its_place(request, &waiters) {
            self.keep_place(request);
        }
        Ok(answer)
    }

    fn renew_lock(&mut self, claim: &LockClaim, lease: Duration) -> Result<bool, LedgerError> {
        let now = self.time.now();
        let row = self.slot_of(claim).filter(|row| row.until.is_some());
        Ok(row.map(|row| row.until = Some(now + lease)).is_some())
    }

    fn release_lock(&mut self, claim: &LockClaim) -> Result<bool, LedgerError> {
        Ok(self.slot_of(claim).map(|row| row.until = None).is_some())
    }

    fn lock_rows(&mut self, name: Option<&LockName>) -> Result<Vec<LockRow>, LedgerError> {
        let now = self.time.now();
        let mut rows: Vec<_> = self.slots.iter().filter_map(|entry| shown(entry, now)).collect();
        rows.retain(|row| name.is_none_or(|name| row.name == *name));
        rows.sort_by(|a, b| (&a.name, a.slot).cmp(&(&b.name, b.slot)));
        Ok(rows)
    }

    fn steal_lock(&mut self, theft: &LockTheft<'_>) -> Result<Option<i64>, LedgerError> {
        let now = self.time.now();
        let Some(row) = self.slot(theft.name, theft.slot) else { return Ok(None) };
        if row.owner != theft.value {
            if row.until.is_none_or(|until| until > now && !theft.force) {
                return Ok(None);
            }
            row.epoch += 1;
            row.acquired_at = now;
            (row.owner, row.until) = (theft.value, None);
            theft.note.clone_into(&mut row.holder.note);
        }
        Ok(Some(row.epoch))
    }
}

impl Locks for MemoryLedger {
    fn take_lock(&self, request: &LockRequest<'_>, _: Instant) -> Result<LockTry, LedgerError> {
        self.call("take_lock", || self.rows().take_lock(request))
    }

    fn prepare_to_take(&self, _: Instant) -> Result<(), LedgerError> {
        self.call("prepare_to_take", || Ok(()))
    }

    fn renew_lock(
        &self,
        claim: &LockClaim,
        lease: Duration,
        _: Instant,
    ) -> Result<bool, LedgerError> {
        self.call("renew_lock", || self.rows().renew_lock(claim, lease))
    }

    fn release_lock(&self, claim: &LockClaim, _: Instant) -> Result<bool, LedgerError> {
        self.call("release_lock", || self.rows().release_lock(claim))
    }

    fn stop_waiting(
        &self,
        name: &LockName,
        owner: RandomValue,
        _: Instant,
    ) -> Result<(), LedgerError> {
        self.call("stop_waiting", || self.rows().stop_waiting(name, owner))
    }

    fn lock_waiters(
        &self,
        name: Option<&LockName>,
        _: Instant,
    ) -> Result<Vec<LockWaiter>, LedgerError> {
        self.call("lock_waiters", || self.rows().lock_waiters(name))
    }

    fn lock_rows(&self, name: Option<&LockName>, _: Instant) -> Result<Vec<LockRow>, LedgerError> {
        self.call("lock_rows", || self.rows().lock_rows(name))
    }

    fn steal_lock(&self, theft: &LockTheft<'_>, _: Instant) -> Result<Option<i64>, LedgerError> {
        self.call("steal_lock", || self.rows().steal_lock(theft))
    }
}
