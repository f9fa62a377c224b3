//! Placing the copies of a recorded message: each in its turn, looked for if in doubt, appended,
//! confirmed. Any number of threads may work; each takes the next copy. See the parent for the
//! protocol, and for what a crash leaves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{
    CopyResult, DeliveryRequest, Early, Ending, Failure, How, Means, Patience, Phases, Placed,
    Policy, Watch, note,
};
use crate::deadline::Deadline;
use crate::directory::Destination;
use crate::ledger::{
    Attempt, AttemptEnd, Claim, Confirmed, CopyFacts, CopyState, LeaseTerms, Ledger, LedgerError,
    OpenTurn, RandomValue, Recorded, ToConfirm, Turn,
};
use crate::lock_key::Hash;
use crate::outcome::Outcome;
use crate::store::{Copy, Need, Receipt, Slot, Store, StoreError};
use crate::text;

/// Between two tries to reach a ledger that was lost while a copy was written.
const CONFIRM_PAUSE: Duration = Duration::from_millis(250);

/// Where one copy stands in this delivery.
enum Step {
    /// Leased by another delivery; wait and claim again.
    Busy,
    /// Leased to us, nothing written yet.
    Claimed(Claim),
    Ended(CopyResult),
}

/// A copy that waits for another delivery.
struct Waiting {
    copy: usize,
    step: Step,
    phases: Phases,
}

/// What the threads of one delivery share.
pub(super) struct Placing<'a> {
    job: &'a DeliveryRequest<'a>,
    policy: &'a Policy,
    ledger: &'a dyn Ledger,
    store: &'a dyn Store,
    deadline: &'a Deadline,
    watch: &'a dyn Watch,
    /// Of each destination.
    keys: &'a [Hash],
    attempt: &'a Attempt,
    recorded: &'a Recorded,
    /// What recording took.
    recording: Phases,
    terms: LeaseTerms,
    /// How each copy ended.
    ends: Vec<OnceLock<(CopyResult, Phases)>>,
    /// How it ended for each recipient.
    endings: Vec<OnceLock<Ending>>,
    /// The copy that is to be taken next.
    next: AtomicUsize,
    /// A confirm put the attempt's end on record as well.
    end_recorded: AtomicBool,
}

impl<'a> Placing<'a> {
    /// Copies that earlier deliveries have placed have ended already.
    pub fn new(
        job: &'a DeliveryRequest<'a>,
        means: Means<'a>,
        keys: &'a [Hash],
        attempt: &'a Attempt,
        recorded: &'a Recorded,
        recording: Phases,
    ) -> Placing<'a> {
        let Means { policy, ledger, store, deadline, watch } = means;
        let placing = Placing {
            job,
            policy,
            ledger,
            store,
            deadline,
            watch,
            keys,
            attempt,
            recorded,
            recording,
            terms: means.terms(),
            ends: keys.iter().map(|_| OnceLock::new()).collect(),
            endings: job.envelope.recipients.iter().map(|_| OnceLock::new()).collect(),
            next: AtomicUsize::new(0),
            end_recorded: AtomicBool::new(false),
        };
        placing.end_what_is_placed();
        placing
    }

    /// Ends the copies that earlier deliveries have placed.
    fn end_what_is_placed(&self) {
        for (copy, state) in self.recorded.copies.iter().enumerate() {
            if let CopyState::Placed(receipt) = state {
                let placed = self.placed(copy, receipt.clone(), How::AlreadyThere);
                self.end(copy, Ok(placed), Phases::default());
            }
        }
        self.end_recipients(|account| account.is_none() || self.keys.is_empty());
    }

    /// Takes copy after copy, the recipients' own first, and then waits for those that others hold.
    /// Gives back what is claimed and not used.
    pub fn work(&self, mut early: Early<'a>) {
        let mut waiting = Vec::new();
        loop {
            let copy = self.next.fetch_add(1, Ordering::Relaxed);
            let step = match self.recorded.copies.get(copy) {
                None => break,
                Some(CopyState::Placed(_)) => continue,
                Some(CopyState::Claimed(claim)) => Step::Claimed(*claim),
                Some(CopyState::Busy) => Step::Busy,
            };
            let one = Waiting { copy, step, phases: Phases::default() };
            waiting.extend(self.try_one(one, &mut early));
        }
        drop(early);
        let mut patience = Patience::new(self.policy.wait, self.deadline);
        let mut has_waited = false;
        while !waiting.is_empty() {
            let began = self.deadline.now();
            if !has_waited {
                waiting = self.leave_what_is_kept(waiting);
            }
            if waiting.is_empty() || !patience.wait() {
                break;
            }
            has_waited = true;
            let waited = self.deadline.now() - began;
            for one in &mut waiting {
                one.phases.waits += 1;
                one.phases.lock += waited;
            }
            self.claim_busy(&mut waiting);
            let again = std::mem::take(&mut waiting);
            waiting.extend(again.into_iter().filter_map(|one| self.try_one(one, &mut None)));
        }
        for one in self.leave_what_is_kept(waiting) {
            if let Step::Claimed(claim) = one.step {
                self.release(&claim);
            }
            let held = format!("the copy {}", self.job.destinations[one.copy]);
            self.end(one.copy, Err(Failure::Contended(held)), one.phases);
        }
    }

    /// One try at a copy; comes back with it if it has to wait.
    fn try_one(&self, one: Waiting, early: &mut Early<'a>) -> Option<Waiting> {
        let Waiting { copy, step, mut phases } = one;
        let step = match step {
            Step::Claimed(claim) => {
                let place = || self.place(copy, &claim, early, &mut phases);
                // A panic is a failure of this copy and of no other.
                catch_unwind(AssertUnwindSafe(place)).unwrap_or_else(|panic| {
                    Step::Ended(Err(Failure::Internal(text::of_panic(panic))))
                })
            }
            step => step,
        };
        match step {
            Step::Ended(end) => {
                self.end(copy, end, phases);
                None
            }
            step => Some(Waiting { copy, step, phases }),
        }
    }

    /// Places one copy: a turn and a look if in doubt, append, confirm.
    fn place(
        &self,
        index: usize,
        claim: &Claim,
        early: &mut Early<'a>,
        phases: &mut Phases,
    ) -> Step {
        let destination = &self.job.destinations[index];
        let copy = self.job.copy(index, self.keys, self.recorded.recorded_at);
        let early = early.take().filter(|(at, _)| *at == copy.recorded_at && !claim.in_doubt);
        let turn = self.turn(destination, &copy, claim, early.map(|(_, slot)| slot), phases);
        let ReservedCopy { mut slot, in_doubt, turn } = match turn {
            Ok(TurnResult::Ours(ours)) => ours,
            Ok(TurnResult::Placed(receipt)) => {
                return Step::Ended(Ok(self.placed(index, receipt, How::AlreadyThere)));
            }
            Ok(TurnResult::EpochGone) => return Step::Busy,
            Err(Failure::Ledger(LedgerError::Contended)) => return Step::Claimed(*claim),
            Err(failure) => return self.failed(index, claim, failure),
        };
        let began = self.deadline.now();
        let written = self.write(slot.as_mut(), in_doubt);
        phases.append += self.deadline.now() - began;
        let step = match written {
            Ok((receipt, how)) => {
                let began = self.deadline.now();
                let end = self.confirm(index, claim, receipt, how, turn);
                phases.commit += self.deadline.now() - began;
                Step::Ended(end)
            }
            Err(error) => {
                drop(turn);
                self.failed(index, claim, error.into())
            }
        };
        // Others may have it, now that the receipt is on record or the lease given back.
        drop(slot);
        self.deadline.answered();
        step
    }

    /// Step `take_turn` of the model: the lock, and the row re-read under it. A lease without doubt
    /// is a turn already if no other delivery may join it, or if the store has reserved the copy
    /// for us since before we had the lease: then no other gets as far as this one's append, and
    /// the check of the clock before the last bytes is that of the lease. So no transaction of the
    /// ledger is open while a store takes its time. What a turn needs of the store is reserved
    /// before it.
    fn turn<'t>(
        &'t self,
        destination: &'t Destination,
        copy: &Copy<'t>,
        claim: &Claim,
        early: Option<Box<dyn Slot + 't>>,
        phases: &mut Phases,
    ) -> Result<TurnResult<'t>, Failure> {
        let is_turn = !claim.in_doubt && (early.is_some() || !self.terms.join);
        let need = if claim.in_doubt { Need::Look } else { Need::Write };
        let began = self.deadline.now();
        let slot = match early {
            Some(slot) => Some(slot),
            None => self.store.reserve(destination, *copy, need, self.deadline)?,
        };
        let slot = slot.ok_or(Failure::Ledger(LedgerError::Contended))?;
        let reserved = self.deadline.now();
        phases.append += reserved - began;
        if is_turn {
            return Ok(TurnResult::Ours(ReservedCopy { slot, in_doubt: false, turn: None }));
        }
        let turn = self.ledger.take_turn(claim, copy.key, self.deadline.end());
        phases.lock += self.deadline.now() - reserved;
        Ok(match turn? {
            Turn::Ours { in_doubt, turn } => {
                let in_doubt = in_doubt || claim.in_doubt;
                TurnResult::Ours(ReservedCopy { slot, in_doubt, turn: Some(turn) })
            }
            Turn::Placed(receipt) => TurnResult::Placed(receipt),
            Turn::EpochGone => TurnResult::EpochGone,
        })
    }

    /// Looks if in doubt, and appends unless the look found the copy. The deadline ends long before
    /// the lease that was taken after it began (the configuration is refused otherwise), so the
    /// deadline's check of the clock, right before the last bytes, is the check of the lease as
    /// well. Steps `look`, `check`, `last bytes` and `OK` of the model.
    fn write(&self, slot: &mut dyn Slot, in_doubt: bool) -> Result<(Receipt, How), StoreError> {
        if in_doubt {
            let found = slot.look(self.deadline.look_until());
            let failed =
                |error| StoreError::NotStored(format!("looking for an earlier copy: {error}"));
            if let Some(receipt) = found.map_err(failed)? {
                return Ok((receipt, How::Found));
            }
        }
        Ok((slot.append()?, How::Stored))
    }

    /// What a copy comes to that was not placed. The bytes of a shared one are put on record first.
    fn failed(&self, index: usize, claim: &Claim, failure: Failure) -> Step {
        let destination = &self.job.destinations[index];
        let is_in_doubt =
            matches!(&failure, Failure::Store(error) if !error.certainly_not_stored());
        let failure = match failure {
            Failure::Store(error) if destination.shared => {
                match self.keep(destination, &error) {
                    Some(failure) => failure,
                    // Another delivery has placed it: a claim tells where.
                    None => {
                        self.release(claim);
                        let (step, phases) = (Step::Busy, Phases::default());
                        let mut one = [Waiting { copy: index, step, phases }];
                        self.claim_busy(&mut one);
                        let [one] = one;
                        return one.step;
                    }
                }
            }
            failure => failure,
        };
        // Step `in doubt` of the model: the lease stays until it has run out, and then the look
        // decides. After its steps `check` (too late) and `not stored` certainly nothing was
        // written, and the next attempt need not wait.
        if !is_in_doubt {
            self.release(claim);
        }
        Step::Ended(Err(failure))
    }

    /// Puts a shared copy's bytes on record. Only if that fails do the recipients' deliveries wait
    /// for the copy. `None`: it is placed by now.
    fn keep(&self, destination: &Destination, error: &StoreError) -> Option<Failure> {
        let (why, bytes) = (error.to_string(), self.job.message.shared_copy());
        let kept =
            self.insisting(|until| self.ledger.keep(self.recorded.message, bytes, &why, until));
        match kept {
            Ok(true) => Some(Failure::KeptForLater { destination: destination.to_string(), why }),
            Ok(false) => None,
            Err(error) => Some(error.into()),
        }
    }

    /// A call on which a mail's fate hangs: a ledger that was lost is worth another try. Step
    /// `reopen` of the model.
    fn insisting<T>(
        &self,
        mut call: impl FnMut(Instant) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let until = self.insist_until();
        loop {
            match call(until) {
                Err(LedgerError::Unavailable(_) | LedgerError::Busy(_))
                    if self.deadline.now() < until =>
                {
                    self.deadline.sleep(CONFIRM_PAUSE);
                }
                result => return result,
            }
        }
    }

    /// Last bytes may have gone out just in time: then the deadline is over when their answer is.
    fn insist_until(&self) -> Instant {
        match self.deadline.left().is_zero() {
            true => self.deadline.answer_until(),
            false => self.deadline.end(),
        }
    }

    /// A shared copy that another delivery has, and whose bytes are on record, need not be waited
    /// for: that one failed, and its lease is left over. Returns the others.
    fn leave_what_is_kept(&self, waiting: Vec<Waiting>) -> Vec<Waiting> {
        let mut others = Vec::new();
        for one in waiting {
            let destination = &self.job.destinations[one.copy];
            let kept = match destination.shared {
                true => self.ledger.kept(self.recorded.message, self.deadline.end()),
                false => Ok(None),
            };
            match kept {
                Ok(Some(why)) => {
                    if let Step::Claimed(claim) = &one.step {
                        self.release(claim);
                    }
                    let destination = destination.to_string();
                    let kept = Failure::KeptForLater { destination, why };
                    self.end(one.copy, Err(kept), one.phases);
                }
                Ok(None) => others.push(one),
                Err(error) => {
                    note(Err(error));
                    others.push(one);
                }
            }
        }
        others
    }

    /// Puts the receipt on record; when another copy is on record by now, takes our own out again.
    /// Step `confirm` of the model.
    fn confirm(
        &self,
        index: usize,
        claim: &Claim,
        receipt: Receipt,
        how: How,
        turn: Option<Box<dyn OpenTurn + '_>>,
    ) -> CopyResult {
        let placed = self.placed(index, receipt, how);
        let is_imap = matches!(placed.receipt, Receipt::Uid { .. } | Receipt::Unnamed);
        let facts = CopyFacts {
            nul_replaced: is_imap && self.job.message.has_nul(),
            found_by_look: how == How::Found,
        };
        let end = self.last_end(index, &placed);
        let end = end.as_ref().map(|end| (self.recorded.attempt, end));
        let one = ToConfirm { claim: *claim, receipt: &placed.receipt, facts, end };
        // The copy is in its mailbox: only its record is missing.
        let mut turn = turn;
        let until = self.insist_until();
        let confirmed = self.insisting(|until| match turn.take() {
            Some(turn) => turn.confirm(&one, until),
            None => self.ledger.confirm(&one, until),
        });
        match confirmed {
            Ok(Confirmed::Recorded) => {
                if end.is_some() {
                    self.end_recorded.store(true, Ordering::SeqCst);
                }
                Ok(placed)
            }
            Ok(Confirmed::Superseded { .. }) => Err(self.undo(&placed, until)),
            Err(error) => Err(error.into()),
        }
    }

    /// Our lease ran out while we wrote, and another copy is on record: ours is one too many. Of
    /// two copies without a name nobody can tell whether they are one. The confirm has left a
    /// doubt, which a second look settles, whatever comes of this. Step `undo` of the model.
    fn undo(&self, placed: &Placed, until: Instant) -> Failure {
        let held = format!("the copy {}", placed.destination);
        if self.terms.join {
            return Failure::Contended(held);
        }
        let removed = match placed.how {
            How::Stored => self.store.remove(&placed.destination, &placed.receipt, until),
            // The delivery that wrote it takes it out, or is dead.
            How::Found | How::AlreadyThere => {
                Err(StoreError::NotStored("written by another delivery".to_owned()))
            }
        };
        Failure::Contended(match removed {
            Ok(()) => format!("{held}; its own late one was taken out again"),
            Err(error) => {
                format!("{held}; a second one may stand as {}: {error}", placed.receipt)
            }
        })
    }

    /// The attempt's end, when `placed` is the last copy that was missing and there is one
    /// recipient: one transaction less.
    fn last_end(&self, index: usize, placed: &Placed) -> Option<AttemptEnd> {
        if self.job.envelope.recipients.len() != 1 {
            return None;
        }
        let mut ends = Vec::new();
        for (other, end) in self.ends.iter().enumerate() {
            let end = if other == index { placed } else { end.get()?.0.as_ref().ok()? };
            ends.push(Outcome::Delivered(end.to_string()));
        }
        let outcome = ends.into_iter().reduce(Outcome::worst)?;
        Some(self.job.attempt_end(&outcome, self.deadline))
    }

    /// Gives back a lease under which certainly nothing was written, so that the next attempt need
    /// not wait for it.
    fn release(&self, claim: &Claim) {
        note(self.ledger.release(std::slice::from_ref(claim), self.deadline.end()));
    }

    /// Claims the busy copies again: placed meanwhile, free meanwhile, or still busy. Step
    /// `claim_busy` of the model.
    fn claim_busy(&self, waiting: &mut [Waiting]) {
        let mut busy: Vec<&mut Waiting> =
            waiting.iter_mut().filter(|one| matches!(one.step, Step::Busy)).collect();
        if busy.is_empty() {
            return;
        }
        let wanted: Vec<Destination> =
            busy.iter().map(|one| self.job.destinations[one.copy].clone()).collect();
        // Its leases are another call's than the record's: what that one left in doubt stays
        // leased.
        let owner = Attempt { value: RandomValue::default(), ..self.attempt.clone() };
        let until = self.insist_until();
        match self.ledger.claim(self.recorded.message, &wanted, &owner, self.terms, until) {
            Ok(states) => {
                for (one, state) in busy.into_iter().zip(states) {
                    one.step = match state {
                        CopyState::Placed(receipt) => {
                            let how = How::AlreadyThere;
                            Step::Ended(Ok(self.placed(one.copy, receipt, how)))
                        }
                        CopyState::Claimed(claim) => Step::Claimed(claim),
                        CopyState::Busy => Step::Busy,
                    };
                }
            }
            Err(error) => {
                for one in &mut busy {
                    let destination = &self.job.destinations[one.copy];
                    let held = format!("the copy {destination}: {error}");
                    one.step = Step::Ended(Err(Failure::Contended(held)));
                }
            }
        }
    }

    /// A copy's end, and with it perhaps that of recipients.
    fn end(&self, copy: usize, end: CopyResult, phases: Phases) {
        self.watch.copy_ended(&end, &phases);
        // One thread has each copy.
        let _ = self.ends[copy].set((end, phases));
        let Destination { account, shared, .. } = &self.job.destinations[copy];
        self.end_recipients(|one| *shared || one.as_ref() == Some(account));
    }

    /// Tells of those recipients, by their account, for which all is decided.
    fn end_recipients(&self, concerns: impl Fn(&Option<String>) -> bool) {
        for (recipient, known) in self.endings.iter().enumerate() {
            if concerns(&self.job.accounts[recipient])
                && known.get().is_none()
                && let Some(ending) = self.ending(recipient)
            {
                let mut is_new = false;
                let ending = known.get_or_init(|| {
                    is_new = true;
                    ending
                });
                if is_new {
                    self.watch.ended(recipient, ending);
                }
            }
        }
    }

    /// How the delivery to a recipient ended; `None` as long as one of its copies has not.
    fn ending(&self, recipient: usize) -> Option<Ending> {
        let Some(account) = &self.job.accounts[recipient] else {
            return Some(self.job.unknown(recipient, self.policy));
        };
        let (mut outcomes, mut own, mut phases) = (Vec::new(), None, self.recording);
        for (destination, end) in self.job.destinations.iter().zip(&self.ends) {
            if destination.shared || destination.account == *account {
                let (end, took) = end.get()?;
                if !destination.shared {
                    own = end.as_ref().ok().cloned();
                }
                outcomes.push(match end {
                    Ok(placed) => Outcome::Delivered(placed.to_string()),
                    Err(failure) => failure.outcome(self.policy.over_quota),
                });
                phases += *took;
            }
        }
        let nothing = || Outcome::Delivered("nothing to do".to_owned());
        Some(Ending {
            outcome: outcomes.into_iter().reduce(Outcome::worst).unwrap_or_else(nothing),
            account: Some(account.clone()),
            own,
            collision: self.recorded.collision,
            phases,
        })
    }

    /// Puts on record how it ended for each recipient.
    pub fn finish(self) -> Vec<Ending> {
        let first = self.job.first();
        let endings: Vec<Ending> = self
            .endings
            .iter()
            .map(|ending| {
                ending.get().cloned().unwrap_or_else(|| {
                    // No thread came to it.
                    let failure = Failure::Internal("a copy was left".to_owned());
                    Ending::of(failure.outcome(self.policy.over_quota))
                })
            })
            .collect();
        let end = |at: usize| self.job.attempt_end_of(at, &endings, self.deadline);
        let others: Vec<_> = (0..endings.len())
            .filter(|at| *at != first)
            .map(|at| (self.job.attempt(at), end(at)))
            .collect();
        let own = (!self.end_recorded.load(Ordering::SeqCst)).then(|| end(first));
        if own.is_some() || !others.is_empty() {
            let own = own.as_ref().map(|end| (self.recorded.attempt, end));
            let identity = self.job.message.identity();
            note(self.ledger.finish(identity, own, &others, self.insist_until()));
        }
        endings
    }

    /// One for each destination.
    pub fn ends(self) -> Vec<CopyResult> {
        let left = || Err(Failure::Internal("a copy was left".to_owned()));
        self.ends
            .into_iter()
            .map(|end| end.into_inner().map_or_else(left, |(end, _)| end))
            .collect()
    }

    fn placed(&self, index: usize, receipt: Receipt, how: How) -> Placed {
        Placed { destination: self.job.destinations[index].clone(), receipt, how }
    }
}

/// What came of taking a copy's turn.
enum TurnResult<'a> {
    Ours(ReservedCopy<'a>),
    Placed(Receipt),
    EpochGone,
}

/// A copy that this delivery may write, with what writing it needs.
struct ReservedCopy<'a> {
    slot: Box<dyn Slot + 'a>,
    in_doubt: bool,
    turn: Option<Box<dyn OpenTurn + 'a>>,
}
