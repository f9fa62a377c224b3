//! Asking for the lock: until it is ours, the time to wait is over, or it cannot be had. A claim
//! that had no answer is made once more, and given back if it is not needed.

use std::time::{Duration, Instant};

use super::{
    CALL, LEAVE, LockNews, LockWish, PAUSE, TROUBLE_PAUSE, TakenLock, Work, copy_of,
    may_have_done_it, may_pass,
};
use crate::lock::since_boot;
use onedrop_core::clock::{Clock, SystemClock};
use onedrop_core::ledger::{LedgerError, LockClaim, LockRequest, LockRow, LockTry};

impl Work {
    pub(super) fn take(&self) -> Option<TakenLock> {
        let mut is_unclear = false;
        let taken = self.ask(&mut is_unclear);
        if taken.is_none() && is_unclear {
            self.give_back_what_is_ours();
        }
        taken
    }

    /// Asks until it has the lock, or need not ask any more. `is_unclear`: the last claim had no
    /// answer, and may have taken it.
    fn ask(&self, is_unclear: &mut bool) -> Option<TakenLock> {
        let LockWish { name, slots, terms, wait, owner, holder } = &self.wish;
        let (began, mut trouble, mut is_last) = (Instant::now(), None, false);
        let patience = terms.ttl / 3;
        loop {
            let order = shuffled(*slots);
            let request =
                LockRequest { name, slots: &order, owner: *owner, lease: terms.ttl, holder };
            let (asked, asked_since_boot) = (Instant::now(), since_boot());
            let answer = self.ledger.take_lock(&request, asked + patience.min(CALL));
            *is_unclear = match &answer {
                Ok(LockTry::Busy(_)) => false,
                Ok(LockTry::Taken { .. }) => asked_since_boot.is_err(),
                Err(error) => *is_unclear || may_have_done_it(error),
            };
            let (last, pause) = match (answer, asked_since_boot) {
                (Ok(LockTry::Taken { claim, others }), Ok(asked_since_boot)) => {
                    return Some(TakenLock { claim, others, asked, asked_since_boot });
                }
                (Ok(LockTry::Busy(others)), _) => {
                    trouble = None;
                    (LockNews::Busy(others), jittered())
                }
                (Err(error), _) if may_pass(&error) => {
                    let pause =
                        trouble.map_or(PAUSE.1, |pause: Duration| (pause * 2).min(TROUBLE_PAUSE));
                    if trouble.replace(pause).is_none() && !wait.is_zero() {
                        self.tell(LockNews::Waits(copy_of(&error)));
                    }
                    (LockNews::Failed(error), pause)
                }
                (Err(error), _) => {
                    self.tell(LockNews::Failed(error));
                    return None;
                }
                (Ok(LockTry::Taken { .. }), Err(error)) => {
                    self.tell(LockNews::Failed(LedgerError::Unavailable(error.to_string())));
                    return None;
                }
            };
            let left = wait.saturating_sub(began.elapsed());
            // A claim without an answer is made once more: with the same owner, it finds its own.
            if left.is_zero() && (is_last || !*is_unclear) {
                self.tell(last);
                return None;
            }
            is_last = left.is_zero();
            let pause = if is_last { PAUSE.1 } else { pause.min(left) };
            if self.sleep(pause).is_some() {
                return None;
            }
        }
    }

    /// After a claim that had no answer: else the lock would be held without a holder until its
    /// lease ends.
    fn give_back_what_is_ours(&self) {
        let LockWish { name, owner, .. } = &self.wish;
        let until = Instant::now() + LEAVE;
        let rows = self.ledger.lock_rows(Some(name), until).unwrap_or_default();
        for LockRow { name, slot, epoch, owner, .. } in
            rows.into_iter().filter(|row| row.owner == *owner)
        {
            let released = self.ledger.release_lock(&LockClaim { name, slot, epoch, owner }, until);
            tracing::info!(?released, "a claim that had no answer was given back");
        }
    }
}

pub fn jittered() -> Duration {
    let spread = (PAUSE.1 - PAUSE.0).as_micros() as u64;
    PAUSE.0 + Duration::from_micros(SystemClock.random() % spread)
}

/// The slots in random order: where several come at once, each tries another one first.
pub fn shuffled(slots: u32) -> Vec<u32> {
    let mut all: Vec<u32> = (1..=slots).collect();
    for at in (1..all.len()).rev() {
        let other = SystemClock.random() % (at as u64 + 1);
        all.swap(at, other as usize);
    }
    all
}
