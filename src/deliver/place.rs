//! Placing recorded copies: each in its turn, looked for if in doubt, appended, confirmed. See the
//! parent for the protocol, and for what a crash leaves.

use std::thread;
use std::time::{Duration, Instant};

use super::{End, Failure, How, Job, Patience, Phases, Placed, Policy, note};
use crate::deadline::Deadline;
use crate::directory::Destination;
use crate::ledger::{
    Attempt, AttemptEnd, Claim, Confirmed, CopyFacts, CopyState, LeaseTerms, Ledger, LedgerError,
    RandomValue, Recorded, Turn,
};
use crate::lock_key::Hash;
use crate::outcome::Outcome;
use crate::store::{Copy, Receipt, Store, StoreError};

/// Between two tries to reach a ledger that was lost while a copy was written.
const CONFIRM_PAUSE: Duration = Duration::from_millis(250);

/// Where one copy stands in this delivery.
enum Step {
    /// Leased by another; wait and claim again.
    Busy,
    /// Leased to us, nothing written yet.
    Claimed(Claim),
    Ended(End),
    /// As `CopyState::Placed`, before the destination is known to it.
    Seen(Receipt),
}

impl From<CopyState> for Step {
    fn from(state: CopyState) -> Step {
        match state {
            CopyState::Placed(receipt) => Step::Seen(receipt),
            CopyState::Claimed(claim) => Step::Claimed(claim),
            CopyState::Busy => Step::Busy,
        }
    }
}

/// What came of placing.
#[derive(Debug)]
pub struct Placing {
    /// One for each destination, in their order.
    pub ends: Vec<End>,
    /// The last confirm put the attempt's end on record as well.
    pub end_recorded: bool,
    pub phases: Phases,
}

/// Places the copies of a recorded message, one after the other; waits for those that others hold.
/// Gives back what is claimed and not used.
pub fn place(
    job: &Job<'_>,
    policy: &Policy,
    recorded: &Recorded,
    ledger: &mut dyn Ledger,
    store: &mut dyn Store,
    deadline: &Deadline,
    patience: &mut Patience<'_>,
) -> Placing {
    let terms = policy.terms(store.append_is_idempotent());
    let copies = recorded.copies.iter().cloned().map(Step::from).collect();
    let mut delivery = Delivery {
        job,
        recorded,
        terms,
        deadline,
        copies,
        end_recorded: false,
        phases: Phases::default(),
    };
    let mut has_waited = false;
    loop {
        delivery.place_claimed(ledger, store);
        let began = Instant::now();
        if !delivery.is_waiting() {
            break;
        }
        store.let_go();
        if !has_waited {
            delivery.leave_what_is_kept(ledger);
        }
        if !delivery.is_waiting() {
            break;
        }
        if !patience.wait() {
            delivery.leave_what_is_kept(ledger);
            break;
        }
        has_waited = true;
        delivery.phases.waits += 1;
        delivery.phases.lock += began.elapsed();
        delivery.claim_busy(ledger);
    }
    delivery.end(ledger)
}

struct Delivery<'a> {
    job: &'a Job<'a>,
    recorded: &'a Recorded,
    terms: LeaseTerms,
    deadline: &'a Deadline,
    copies: Vec<Step>,
    end_recorded: bool,
    phases: Phases,
}

impl Delivery<'_> {
    /// One try at every copy that is leased to us: the recipients' own mailboxes first, shared ones
    /// last.
    fn place_claimed(&mut self, ledger: &mut dyn Ledger, store: &mut dyn Store) {
        let mut order: Vec<usize> = (0..self.copies.len()).collect();
        order.sort_by_key(|index| self.job.destinations[*index].shared);
        for index in order {
            match &self.copies[index] {
                Step::Seen(receipt) => {
                    let placed = self.placed(index, receipt.clone(), How::AlreadyThere);
                    self.copies[index] = Step::Ended(Ok(placed));
                }
                Step::Claimed(claim) => {
                    let claim = *claim;
                    self.copies[index] = self.place(index, &claim, ledger, store);
                }
                Step::Busy | Step::Ended(_) => {}
            }
        }
    }

    /// Places one copy: a turn and a look if in doubt, append, confirm.
    fn place(
        &mut self,
        index: usize,
        claim: &Claim,
        ledger: &mut dyn Ledger,
        store: &mut dyn Store,
    ) -> Step {
        let destination = &self.job.destinations[index];
        let key = self.job.copy_key(destination);
        let in_doubt = match self.turn(destination, claim, &key, ledger, store) {
            Ok(Turn::Ours { in_doubt }) => claim.in_doubt || in_doubt,
            Ok(Turn::Placed(receipt)) => {
                return Step::Ended(Ok(self.placed(index, receipt, How::AlreadyThere)));
            }
            Ok(Turn::EpochGone) => return Step::Busy,
            Err(Failure::Ledger(LedgerError::Contended)) => return Step::Claimed(*claim),
            Err(failure) => return self.failed(destination, claim, failure, ledger),
        };
        let copy = self.job.copy(destination, &key, self.recorded.recorded_at);
        let began = Instant::now();
        let written = write(destination, &copy, in_doubt, store, self.deadline);
        self.phases.append += began.elapsed();
        match written {
            Ok((receipt, how)) => {
                let began = Instant::now();
                let end = self.confirm(index, claim, receipt, how, ledger, store);
                self.phases.commit += began.elapsed();
                self.deadline.answered();
                Step::Ended(end)
            }
            Err(error) => {
                note(ledger.leave());
                let failed = self.failed(destination, claim, error.into(), ledger);
                self.deadline.answered();
                failed
            }
        }
    }

    /// What a copy comes to that was not placed. The bytes of a shared one are put on record first.
    fn failed(
        &self,
        destination: &Destination,
        claim: &Claim,
        failure: Failure,
        ledger: &mut dyn Ledger,
    ) -> Step {
        let is_in_doubt =
            matches!(&failure, Failure::Store(error) if !error.certainly_not_stored());
        let failure = match failure {
            Failure::Store(error) if destination.shared => {
                match self.keep(destination, &error, ledger) {
                    Some(failure) => failure,
                    // Another delivery has placed it: the next claim tells where.
                    None => {
                        note(ledger.release(std::slice::from_ref(claim)));
                        return Step::Busy;
                    }
                }
            }
            failure => failure,
        };
        // Step `in doubt` of the model: the lease stays until it has run out, and then the look
        // decides.
        match is_in_doubt {
            true => Step::Ended(Err(failure)),
            false => self.give_back(claim, failure, ledger),
        }
    }

    /// Puts a shared copy's bytes on record. Only if that fails do the recipients' deliveries wait
    /// for the copy. `None`: it is placed by now.
    fn keep(
        &self,
        destination: &Destination,
        error: &StoreError,
        ledger: &mut dyn Ledger,
    ) -> Option<Failure> {
        let why = error.to_string();
        let kept = self.insisting(ledger, |ledger| {
            ledger.keep(self.recorded.message, self.job.message.shared_copy(), &why)
        });
        match kept {
            Ok(true) => Some(Failure::KeptForLater { destination: destination.to_string(), why }),
            Ok(false) => None,
            Err(error) => Some(error.into()),
        }
    }

    /// A call on which a mail's fate hangs: a ledger that was lost is worth another try, by another
    /// session.
    fn insisting<T>(
        &self,
        ledger: &mut dyn Ledger,
        call: impl Fn(&mut dyn Ledger) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let until = self.insist_until();
        loop {
            match call(ledger) {
                Err(LedgerError::Unavailable(_) | LedgerError::Busy(_))
                    if Instant::now() < until =>
                {
                    thread::sleep(CONFIRM_PAUSE);
                    note(ledger.reopen(until));
                }
                result => return result,
            }
        }
    }

    /// Last bytes may have gone out just in time: then the deadline is over when their answer is.
    fn insist_until(&self) -> Instant {
        if self.deadline.left().is_zero() {
            self.deadline.answer_until()
        } else {
            self.deadline.end()
        }
    }

    /// A shared copy that another delivery has, and whose bytes are on record, need not be waited
    /// for: that one failed, and its lease is left over.
    fn leave_what_is_kept(&mut self, ledger: &mut dyn Ledger) {
        for (destination, step) in self.job.destinations.iter().zip(&mut self.copies) {
            if !destination.shared || !matches!(step, Step::Busy | Step::Claimed(_)) {
                continue;
            }
            match ledger.kept(self.recorded.message) {
                Ok(Some(why)) => {
                    if let Step::Claimed(claim) = step {
                        note(ledger.release(std::slice::from_ref(claim)));
                    }
                    let destination = destination.to_string();
                    *step = Step::Ended(Err(Failure::KeptForLater { destination, why }));
                }
                Ok(None) => {}
                Err(error) => note(Err(error)),
            }
        }
    }

    /// Step `take_turn` of the model: the lock, and the row re-read under it. A lease without doubt
    /// is a turn already if nobody may join it, or if the store has kept the copy for us since
    /// before we had the lease: nobody else gets as far as this one's append, and the check of the
    /// clock before the last bytes is that of the lease. So no transaction of the ledger is open
    /// while a store takes its time. What a turn needs of the store is held before it.
    fn turn(
        &mut self,
        destination: &Destination,
        claim: &Claim,
        key: &Hash,
        ledger: &mut dyn Ledger,
        store: &mut dyn Store,
    ) -> Result<Turn, Failure> {
        if !claim.in_doubt && (!store.append_is_idempotent() || store.holds(key)) {
            return Ok(Turn::Ours { in_doubt: false });
        }
        let began = Instant::now();
        let turn = match store.hold(destination, key, self.deadline) {
            Ok(true) => ledger.take_turn(claim, key).map_err(Failure::Ledger),
            Ok(false) => Err(Failure::Ledger(LedgerError::Contended)),
            Err(error) => Err(error.into()),
        };
        if !matches!(turn, Ok(Turn::Ours { .. })) {
            store.let_go();
        }
        self.phases.lock += began.elapsed();
        turn
    }

    /// Puts the receipt on record; when another copy is on record by now, takes our own out again.
    /// Step `confirm` of the model, with `reopen` for each new session.
    fn confirm(
        &mut self,
        index: usize,
        claim: &Claim,
        receipt: Receipt,
        how: How,
        ledger: &mut dyn Ledger,
        store: &mut dyn Store,
    ) -> End {
        let placed = self.placed(index, receipt, how);
        let facts = CopyFacts {
            nul_replaced: matches!(placed.receipt, Receipt::Uid { .. } | Receipt::Unnamed)
                && self.job.message.has_nul(),
            found_by_look: how == How::Found,
        };
        let end = self.last_end(index, &placed).map(|end| (self.recorded.attempt, end));
        let end = end.as_ref().map(|(attempt, end)| (*attempt, end));
        // The copy is in its mailbox: only its record is missing.
        let until = self.insist_until();
        let confirmed =
            self.insisting(ledger, |ledger| ledger.confirm(claim, &placed.receipt, facts, end));
        match confirmed {
            Ok(Confirmed::Recorded) => {
                self.end_recorded = end.is_some();
                Ok(placed)
            }
            Ok(Confirmed::Superseded { .. }) => Err(self.undo(&placed, store, until)),
            Err(error) => Err(error.into()),
        }
    }

    /// Our lease ran out while we wrote, and another copy is on record: ours is one too many. Of
    /// two copies without a name nobody can tell whether they are one. The confirm has left a
    /// doubt, which a second look settles, whatever comes of this. Step `undo` of the model.
    fn undo(&self, placed: &Placed, store: &mut dyn Store, until: Instant) -> Failure {
        let held = format!("the copy {}", placed.destination);
        if store.append_is_idempotent() {
            return Failure::Contended(held);
        }
        let removed = match placed.how {
            How::Stored => store.remove(&placed.destination, &placed.receipt, until),
            // Whoever wrote it takes it out, or is dead.
            How::Found | How::AlreadyThere => {
                Err(StoreError::NotStored("written by another delivery".to_owned()))
            }
        };
        match removed {
            Ok(()) => Failure::Contended(format!("{held}; its own late one was taken out again")),
            Err(error) => Failure::Contended(format!(
                "{held}; a second one may stand as {}: {error}",
                placed.receipt
            )),
        }
    }

    /// The attempt's end, when `placed` is the last copy that was missing: one transaction less.
    fn last_end(&self, index: usize, placed: &Placed) -> Option<AttemptEnd> {
        if self.job.is_part {
            return None;
        }
        let mut outcome = Outcome::Delivered(String::new());
        for (other, step) in self.copies.iter().enumerate() {
            let one = match step {
                _ if other == index => placed.to_string(),
                Step::Ended(Ok(placed)) => placed.to_string(),
                Step::Seen(receipt) => {
                    self.placed(other, receipt.clone(), How::AlreadyThere).to_string()
                }
                Step::Ended(Err(_)) | Step::Claimed(_) | Step::Busy => return None,
            };
            outcome = match outcome {
                Outcome::Delivered(text) if text.is_empty() => Outcome::Delivered(one),
                outcome => outcome.worst(Outcome::Delivered(one)),
            };
        }
        Some(self.job.attempt_end(&outcome))
    }

    /// Ends a copy under whose claim certainly nothing was written, so that the next attempt need
    /// not wait for it. What the model's steps `check` (too late) and `not stored` lead to.
    fn give_back(&self, claim: &Claim, failure: Failure, ledger: &mut dyn Ledger) -> Step {
        note(ledger.release(std::slice::from_ref(claim)));
        Step::Ended(Err(failure))
    }

    fn is_waiting(&self) -> bool {
        self.copies.iter().any(|step| matches!(step, Step::Busy | Step::Claimed(_)))
    }

    /// Claims the busy copies again: placed meanwhile, free meanwhile, or still busy. Step
    /// `claim_busy` of the model.
    fn claim_busy(&mut self, ledger: &mut dyn Ledger) {
        let busy: Vec<usize> =
            (0..self.copies.len()).filter(|i| matches!(self.copies[*i], Step::Busy)).collect();
        if busy.is_empty() {
            return;
        }
        let wanted: Vec<Destination> =
            busy.iter().map(|index| self.job.destinations[*index].clone()).collect();
        // Its leases are another call's than the record's: what that one left in doubt stays
        // leased.
        let owner = Attempt { value: RandomValue::default(), ..self.job.attempt.clone() };
        match ledger.claim(self.recorded.message, &wanted, &owner, self.terms) {
            Ok(states) => {
                for (index, state) in busy.into_iter().zip(states) {
                    self.copies[index] = Step::from(state);
                }
            }
            Err(error) => {
                let text = error.to_string();
                for index in busy {
                    let failure = Failure::Contended(format!(
                        "the copy {}: {text}",
                        self.job.destinations[index]
                    ));
                    self.copies[index] = Step::Ended(Err(failure));
                }
            }
        }
    }

    /// Gives back what is still claimed.
    fn end(self, ledger: &mut dyn Ledger) -> Placing {
        let unused: Vec<Claim> = self
            .copies
            .iter()
            .filter_map(|step| if let Step::Claimed(claim) = step { Some(*claim) } else { None })
            .collect();
        if !unused.is_empty() {
            note(ledger.release(&unused));
        }
        let ends = self.copies.into_iter().zip(self.job.destinations);
        let ends = ends.map(|(step, destination)| match step {
            Step::Ended(end) => end,
            Step::Seen(receipt) => {
                Ok(Placed { destination: destination.clone(), receipt, how: How::AlreadyThere })
            }
            Step::Busy | Step::Claimed(_) => {
                Err(Failure::Contended(format!("the copy {destination}")))
            }
        });
        Placing { ends: ends.collect(), end_recorded: self.end_recorded, phases: self.phases }
    }

    fn placed(&self, index: usize, receipt: Receipt, how: How) -> Placed {
        Placed { destination: self.job.destinations[index].clone(), receipt, how }
    }
}

/// Looks if in doubt, and appends unless the look found the copy. The deadline ends long before the
/// lease that was taken after it began (the configuration is refused otherwise), so the deadline's
/// check of the clock, right before the last bytes, is the check of the lease as well.
fn write(
    destination: &Destination,
    copy: &Copy<'_>,
    in_doubt: bool,
    store: &mut dyn Store,
    deadline: &Deadline,
) -> Result<(Receipt, How), StoreError> {
    if in_doubt && let Some(receipt) = look(destination, copy, store, deadline)? {
        return Ok((receipt, How::Found));
    }
    // Steps `check` (`Deadline::pass_point_of_no_return`), `last bytes` and `OK` of the model.
    Ok((store.append(destination, copy, deadline)?, How::Stored))
}

/// A look that fails has written nothing. Step `look` of the model.
fn look(
    destination: &Destination,
    copy: &Copy<'_>,
    store: &mut dyn Store,
    deadline: &Deadline,
) -> Result<Option<Receipt>, StoreError> {
    store
        .look(destination, copy, deadline.look_until())
        .map_err(|error| StoreError::NotStored(format!("looking for an earlier copy: {error}")))
}
