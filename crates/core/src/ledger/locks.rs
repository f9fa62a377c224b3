//! The port of named locks (`onedrop with-lock`): a lock of N slots, each held under a lease that
//! is renewed, with an epoch that only grows.
//!
//! Promise: no two claims of a slot are live at a time by the ledger's clock; an epoch is given out
//! once; asking takes nothing. A claim made again with the same random value, because its first
//! answer was lost, finds its own. A crash leaves a lease that runs out.
//!
//! A claim that waits has a place in a line: a free slot goes to no claim that came after it, also
//! where that one does not wait. A place is a lease, too, and short ([`PLACE_LASTS`]): one that
//! waits asks again before it ends, and a dead one keeps no other waiting for longer. The order is
//! fairness alone: exclusion does not depend on it.

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant, SystemTime};

use super::{LedgerError, RandomValue};
use crate::lock_name::LockName;

/// What a claim asks for.
#[derive(Debug, Clone, Copy)]
pub struct LockRequest<'a> {
    pub name: &'a LockName,
    /// The slots to try, in this order; the smallest is 1.
    pub slots: &'a [u32],
    /// Of this claim, and of no other.
    pub owner: RandomValue,
    pub lease: Duration,
    pub holder: &'a LockHolder,
    /// The claim waits for its turn; how many of its host wait for this one's.
    pub waiting: Option<u32>,
}

/// How long a place in the line lasts without another call.
pub const PLACE_LASTS: Duration = Duration::from_secs(3);

/// Who wants or has a lock, for people.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockHolder {
    pub host: String,
    pub pid: u32,
    /// The program that runs under the lock.
    pub command: String,
    pub note: String,
    /// Of how many slots it wants one.
    pub slots: u32,
}

/// A slot that is ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockClaim {
    pub name: LockName,
    pub slot: u32,
    /// Higher than all before it in this slot: a fencing token.
    pub epoch: i64,
    pub owner: RandomValue,
}

/// The result of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockTry {
    /// Ours. `others` hold other slots.
    Taken { claim: LockClaim, others: Vec<LockRow> },
    /// None of the slots is free for this claim.
    Busy(BusyLock),
}

/// Why a claim was not granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BusyLock {
    /// Who has the slots, as far as they are held. A slot that is only kept by a transaction which
    /// has asserted an earlier epoch, or for claims that came before this one, has no row here.
    pub held: Vec<LockRow>,
    /// How many claims wait for the lock that came before this one.
    pub before: usize,
}

/// A place in the line of those that wait for a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockWaiter {
    pub name: LockName,
    pub owner: RandomValue,
    pub holder: LockHolder,
    /// How many of its host wait for this one's turn.
    pub others: u32,
    pub since: SystemTime,
    /// What is left of its place.
    pub left: Duration,
}

/// A slot that was not given back: held, or its lease has run out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRow {
    pub name: LockName,
    pub slot: u32,
    pub epoch: i64,
    pub owner: RandomValue,
    pub holder: LockHolder,
    pub acquired_at: SystemTime,
    /// What the holder asked for.
    pub lease: Duration,
    /// What is left of the lease; `None`: it has run out, and others may claim the slot.
    pub left: Option<Duration>,
}

/// Locks that any program may take.
pub trait Locks: Send + Sync {
    /// Claims the first slot that is free and that no claim before this one waits for, durably. If
    /// there is none, a claim that waits has its place in the line, which lasts [`PLACE_LASTS`]
    /// from this call on at most, and half of that at least.
    ///
    /// # Errors
    /// [`LedgerError::Version`], and what makes a ledger unusable; another holder is no error.
    fn take_lock(&self, request: &LockRequest<'_>, until: Instant) -> Result<LockTry, LedgerError>;

    /// Opens what the next call needs, and looks at the schema.
    ///
    /// # Errors
    /// Those of [`Locks::take_lock`].
    fn prepare_to_take(&self, _until: Instant) -> Result<(), LedgerError> {
        Ok(())
    }

    /// [`Locks::take_lock`], sooner where the lock has one slot, which was just given back. It may
    /// not look at the schema: another call has.
    fn take_free_lock(
        &self,
        request: &LockRequest<'_>,
        until: Instant,
    ) -> Result<LockTry, LedgerError> {
        self.take_lock(request, until)
    }

    /// Makes the lease last for `lease` from now on, durably; false where the slot was claimed by
    /// another, stolen or given back. A lease that ran out lasts again if no other claim came after
    /// it.
    fn renew_lock(
        &self,
        claim: &LockClaim,
        lease: Duration,
        until: Instant,
    ) -> Result<bool, LedgerError>;

    /// Gives the slot back; false where another has claimed it since, or it was stolen. A crash of
    /// the ledger soon after it may undo it: then the lease runs out. A handle never makes this
    /// call twice: after an error the slot may be given back, and the false of a further call may
    /// mean a claim that came after that.
    fn release_lock(&self, claim: &LockClaim, until: Instant) -> Result<bool, LedgerError>;

    /// Leaves the line, which a claim that was granted has left already.
    fn stop_waiting(
        &self,
        name: &LockName,
        owner: RandomValue,
        until: Instant,
    ) -> Result<(), LedgerError>;

    /// Waits for the word of the ledger that the lock was given back, on whatever host, for as long
    /// as none of `others` can be read. Only a hint: the first call for a lock returns at once, and
    /// none comes where a transaction that has asserted the lock ends. False, at once: this ledger
    /// gives no such word. `until` bounds what is asked before.
    fn wait_for_release(
        &self,
        _name: &LockName,
        _others: &[BorrowedFd<'_>],
        _until: Instant,
    ) -> bool {
        false
    }

    /// Hands a session that is open here and not used on to another process of this host and user,
    /// which has the other end of `to`: it need not open one of its own. Nothing is sent where
    /// there is none that can go.
    fn hand_session_on(&self, _to: &UnixDatagram, _until: Instant) {}

    /// Keeps a session that was handed on for the next call, if one has come and none is open here;
    /// closes any other.
    fn take_session_over(&self, _from: &UnixDatagram, _until: Instant) {}

    /// Who waits for a lock, or for any, by name and in the order of their turns.
    fn lock_waiters(
        &self,
        name: Option<&LockName>,
        until: Instant,
    ) -> Result<Vec<LockWaiter>, LedgerError>;

    /// The slots of a lock, or of all locks, that were not given back, by name and slot. Takes no
    /// lock.
    fn lock_rows(
        &self,
        name: Option<&LockName>,
        until: Instant,
    ) -> Result<Vec<LockRow>, LedgerError>;

    /// Makes a slot free whose lease has run out, or with `force` any, durably: its epoch rises, so
    /// that its holder has lost it. Returns the new epoch; `None`, and nothing changed, where there
    /// is nothing to steal.
    ///
    /// # Errors
    /// [`LedgerError::Contended`]: a transaction that has asserted the lock is open.
    fn steal_lock(&self, theft: &LockTheft<'_>, until: Instant)
    -> Result<Option<i64>, LedgerError>;
}

/// What [`Locks::steal_lock`] is given.
#[derive(Debug, Clone, Copy)]
pub struct LockTheft<'a> {
    pub name: &'a LockName,
    pub slot: u32,
    /// Also a lease that lasts.
    pub force: bool,
    /// Of this theft: made again, it finds that it has done it.
    pub value: RandomValue,
    /// By whom and why, for people.
    pub note: &'a str,
}

/// How a claim goes, whatever the engine: its own slot that an earlier call has taken, else the
/// first of the request's that is free for it, by the `rows` and `waiters` that were read, and by
/// `claim`, which returns the epoch if it is so.
pub fn first_free<S>(
    session: &mut S,
    request: &LockRequest<'_>,
    rows: Vec<LockRow>,
    waiters: &[LockWaiter],
    renew: impl Fn(&mut S, &LockClaim, Duration) -> Result<bool, LedgerError>,
    claim: impl Fn(&mut S, &LockRequest<'_>, u32) -> Result<Option<i64>, LedgerError>,
) -> Result<LockTry, LedgerError> {
    let LockRequest { name, owner, lease, .. } = *request;
    let of = |slot, epoch| LockClaim { name: name.clone(), slot, epoch, owner };
    let (own, mut others): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.owner == owner);
    others.retain(|row| row.left.is_some());
    if let Some(own) = own.first() {
        let claim = of(own.slot, own.epoch);
        if renew(session, &claim, lease)? {
            return Ok(LockTry::Taken { claim, others });
        }
    }
    let is_free = |slot: &u32| !others.iter().any(|row| row.slot == *slot);
    let free: Vec<u32> = request.slots.iter().copied().filter(is_free).collect();
    let before = || waiters.iter().take_while(|waiter| waiter.owner != owner);
    for slot in &free {
        // The lowest free slots are for those before this claim: were any slot taken of which
        // others were free, two that come at once would leave none.
        let would_take_it = before().any(|waiter| waiter.holder.slots >= *slot);
        let lower = free.iter().filter(|free| *free < slot).count();
        if (!would_take_it || before().count() <= lower)
            && let Some(epoch) = claim(session, request, *slot)?
        {
            return Ok(LockTry::Taken { claim: of(*slot, epoch), others });
        }
    }
    Ok(LockTry::Busy(BusyLock { held: others, before: before().count() }))
}

/// Whether a claim that was not granted has to say once more that it waits.
pub fn must_keep_its_place(request: &LockRequest<'_>, waiters: &[LockWaiter]) -> bool {
    let lasts =
        |waiter: &LockWaiter| waiter.owner == request.owner && waiter.left > PLACE_LASTS / 2;
    request.waiting.is_some() && !waiters.iter().any(lasts)
}
