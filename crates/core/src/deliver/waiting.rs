//! Waiting for copies that other deliveries hold: with pauses at random they are claimed again, and
//! tried where they are free by then. A delivery that waits holds no session that others need. What
//! it did not get within its patience it gives up, and gives back what it has of it.

use super::place::{Placing, Step, Waiting};
use super::{Failure, How, Means, Patience, note};
use crate::directory::Destination;
use crate::ledger::{Attempt, CopyState, LedgerError, RandomValue};
use crate::store::StoreError;

impl Placing<'_> {
    /// Until each has ended, or there is no more patience.
    pub(super) fn wait_for_others(&self, waiting: Vec<Waiting>) {
        let Means { policy, store, deadline, .. } = self.means;
        let mut waiting = self.leave_what_is_kept(waiting);
        let mut patience = Patience::new(policy.wait, deadline);
        loop {
            let began = deadline.now();
            if !policy.keeps_sessions {
                waiting.iter().for_each(|one| store.let_go(&self.destination(one.copy).account));
            }
            if waiting.is_empty() || !patience.wait() {
                break;
            }
            let waited = deadline.now() - began;
            for one in &mut waiting {
                one.phases.waits += 1;
                one.phases.lock += waited;
            }
            let is_busy = |one: &&mut Waiting| matches!(one.step, Step::Now(CopyState::Busy));
            let busy: Vec<&mut Waiting> = waiting.iter_mut().filter(is_busy).collect();
            let steps = self.claim_busy(&busy.iter().map(|one| one.copy).collect::<Vec<_>>());
            busy.into_iter().zip(steps).for_each(|(one, step)| one.step = step);
            let again = waiting.into_iter().filter_map(|one| self.try_one(one, &mut None));
            waiting = again.collect();
        }
        for one in self.leave_what_is_kept(waiting) {
            let contended =
                || Failure::Contended(format!("the copy {}", self.destination(one.copy)));
            match &one.step {
                // A shared one is kept for later, as where the store fails in another way.
                Step::Refused(claim, why) => {
                    let busy = StoreError::Contended(why.clone()).into();
                    match self.failed(one.copy, claim, busy) {
                        Step::Ended(end) => self.end(one.copy, end, one.phases),
                        Step::Now(CopyState::Placed(receipt)) => {
                            let placed = self.placed(one.copy, receipt, How::AlreadyThere);
                            self.end(one.copy, Ok(placed), one.phases);
                        }
                        Step::Now(_) | Step::Refused(..) => self.give_up(&one, contended()),
                    }
                }
                Step::Now(_) | Step::Ended(_) => self.give_up(&one, contended()),
            }
        }
    }

    /// A shared copy that another delivery has, and whose bytes are on record, need not be waited
    /// for: that one failed, and its lease is left over. Returns the others.
    fn leave_what_is_kept(&self, mut waiting: Vec<Waiting>) -> Vec<Waiting> {
        let Means { ledger, deadline, .. } = self.means;
        waiting.retain(|one| {
            let destination = &self.job.destinations[one.copy];
            let kept = match destination.shared {
                true => ledger.kept(self.recorded.message, deadline.end()),
                false => Ok(None),
            };
            let kept = kept.unwrap_or_else(|error| {
                note(Err(error));
                None
            });
            let Some(why) = kept else { return true };
            let destination = destination.to_string();
            self.give_up(one, Failure::KeptForLater { destination, why });
            false
        });
        waiting
    }

    /// Ends a copy that waits, and gives back its lease, if this delivery has it.
    fn give_up(&self, one: &Waiting, failure: Failure) {
        if let Step::Now(CopyState::Claimed(claim)) | Step::Refused(claim, _) = &one.step {
            self.release(claim);
        }
        self.end(one.copy, Err(failure), one.phases);
    }

    /// Claims busy copies again: placed meanwhile, free meanwhile, or still busy. Step `claim_busy`
    /// of the model.
    pub(super) fn claim_busy(&self, copies: &[usize]) -> Vec<Step> {
        let of = |copy: &usize| self.destination(*copy).clone();
        let wanted: Vec<Destination> = copies.iter().map(of).collect();
        if wanted.is_empty() {
            return Vec::new();
        }
        // Its leases are another call's than the record's: what that one left in doubt stays
        // leased.
        let owner = Attempt { value: RandomValue::default(), ..self.attempt.clone() };
        let (terms, until) = (self.means.terms(), self.insist_until());
        match self.means.ledger.claim(self.recorded.message, &wanted, &owner, terms, until) {
            Ok(states) => states.into_iter().map(Step::Now).collect(),
            // A deadlock that was ended at this call's cost: another delivery has the rows.
            Err(LedgerError::Contended) => {
                wanted.iter().map(|_| Step::Now(CopyState::Busy)).collect()
            }
            Err(error) => wanted.iter().map(|_| Step::Ended(Err(error.clone().into()))).collect(),
        }
    }
}
