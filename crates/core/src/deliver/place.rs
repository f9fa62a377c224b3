//! Placing the copies of a recorded message: each in its turn, looked for if in doubt, appended,
//! confirmed. Any number of threads may work; each takes the next copy. See the parent for the
//! protocol, and for what a crash leaves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{
    CopyResult, DeliveryRequest, Early, Ending, Failure, How, Means, Phases, Placed, guard, note,
};
use crate::directory::Destination;
use crate::ledger::{
    Attempt, Claim, Confirmed, CopyFacts, CopyState, Due, LedgerError, OpenTurn, Recorded,
    ToConfirm, Turn,
};
use crate::lock_key::Hash;
use crate::outcome::UnknownAccount;
use crate::store::{Copy, HandOff, Need, Receipt, Slot, StoreError};
use crate::text;

/// Between two tries to reach a ledger that was lost while a copy was written.
const CONFIRM_PAUSE: Duration = Duration::from_millis(250);

/// Why a shared copy is kept that is left to `onedrop settle`.
const FOR_THE_SENDER: &str = "the sender's mail program may save its own";

/// What a try at a copy came to.
pub(super) enum Step {
    Ended(CopyResult),
    /// What the copy's row says. Unless it is placed, this delivery waits and tries again.
    Now(CopyState),
    /// Leased to this delivery, which waits as well: the mail server has no place for one more
    /// session of the account, or for one more delivery, and says so.
    Refused(Claim, String),
}

/// What has the copy of a mailbox that is not there.
pub(super) enum StandIn {
    /// Another one of this delivery's copies, by its number.
    Other(usize),
    /// A mailbox that no other recipient of this delivery has, and its copy's key.
    Apart(Destination, Hash),
}

/// A copy that is to be tried, or waits for another delivery.
pub(super) struct Waiting {
    pub copy: usize,
    pub step: Step,
    pub phases: Phases,
}

/// What the threads of one delivery share.
pub(super) struct Placing<'a> {
    pub job: &'a DeliveryRequest<'a>,
    pub means: Means<'a>,
    /// Of each destination.
    pub keys: &'a [Hash],
    pub attempt: &'a Attempt,
    pub recorded: &'a Recorded,
    /// What recording took.
    pub recording: Phases,
    /// How each copy ended.
    pub ends: Vec<OnceLock<(CopyResult, Phases)>>,
    /// How it ended for each recipient.
    pub endings: Vec<OnceLock<Ending>>,
    /// Of a copy whose mailbox is not there, what has it instead.
    pub stand_ins: Vec<OnceLock<StandIn>>,
    /// The copy that is to be taken next.
    next: AtomicUsize,
    /// A confirm put the attempt's end on record as well.
    pub end_recorded: AtomicBool,
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
        let placing = Placing {
            job,
            means,
            keys,
            attempt,
            recorded,
            recording,
            ends: keys.iter().map(|_| OnceLock::new()).collect(),
            endings: job.envelope.recipients.iter().map(|_| OnceLock::new()).collect(),
            stand_ins: keys.iter().map(|_| OnceLock::new()).collect(),
            next: AtomicUsize::new(0),
            end_recorded: AtomicBool::new(false),
        };
        for (copy, state) in recorded.copies.iter().enumerate() {
            if let CopyState::Placed(receipt) = state
                && !matches!(receipt, Receipt::Elsewhere(_))
            {
                let placed = placing.placed(copy, receipt.clone(), How::AlreadyThere);
                placing.end(copy, Ok(placed), Phases::default());
            }
        }
        placing.end_recipients(|own| own.is_none() || keys.is_empty());
        placing
    }

    /// Takes copy after copy, the recipients' own first, and then waits for those that others hold.
    /// Gives back what is claimed and not used.
    pub fn work(&self, mut early: Early<'a>) {
        let mut waiting = Vec::new();
        loop {
            let copy = self.next.fetch_add(1, Ordering::Relaxed);
            match self.recorded.copies.get(copy) {
                Some(_) if self.ends[copy].get().is_some() => {}
                Some(state) => {
                    let (step, phases) = (Step::Now(state.clone()), Phases::default());
                    waiting.extend(self.try_one(Waiting { copy, step, phases }, &mut early));
                }
                None if copy < self.ends.len() => self.leave_until_due(copy),
                None => break,
            }
        }
        drop(early);
        self.wait_for_others(waiting);
    }

    /// One try at a copy; comes back with it if it has to wait.
    pub(super) fn try_one(&self, one: Waiting, early: &mut Early<'a>) -> Option<Waiting> {
        let Waiting { copy, mut step, mut phases } = one;
        if let Step::Now(CopyState::Claimed(claim)) | Step::Refused(claim, _) = step {
            let place = || self.place(copy, &claim, early, &mut phases);
            // A panic is a failure of this copy and of no other.
            step = catch_unwind(AssertUnwindSafe(place))
                .unwrap_or_else(|panic| Step::Ended(Err(Failure::Internal(text::of_panic(panic)))));
        }
        if let Step::Now(CopyState::Placed(Receipt::Elsewhere(mailbox))) = &step {
            // Reserved for the mailbox that was meant.
            *early = None;
            let step = self.go_on_in(copy, mailbox)?;
            return self.try_one(Waiting { copy, step, phases }, early);
        }
        let end = match step {
            Step::Ended(end) => end,
            Step::Now(CopyState::Placed(receipt)) => {
                Ok(self.placed(copy, receipt, How::AlreadyThere))
            }
            Step::Now(CopyState::Claimed(_) | CopyState::Busy) | Step::Refused(..) => {
                return Some(Waiting { copy, step, phases });
            }
        };
        self.end(copy, end, phases);
        None
    }

    /// Places one copy: reserved, a turn and a look if in doubt, append, confirm.
    ///
    /// Step `take_turn` of the model: the lock, and the row re-read under it. A lease without doubt
    /// is a turn already if no other delivery may join it, or if the store has reserved the copy
    /// for us since before we had the lease: then no other gets as far as this one's append, and
    /// the check of the clock before the last bytes is that of the lease. So no transaction of the
    /// ledger is open while a store takes its time. What a turn needs of the store is reserved
    /// before it.
    fn place(
        &self,
        index: usize,
        claim: &Claim,
        early: &mut Early<'a>,
        phases: &mut Phases,
    ) -> Step {
        let Means { ledger, store, deadline, .. } = self.means;
        let destination = self.destination(index);
        let handed = store.hands_over(destination).then_some(claim);
        let copy = self.job.copy(index, self.keys, self.recorded.recorded_at, handed);
        let before = self.receipt_before(index, claim, handed.is_some());
        let fields = match self.filter_fields(claim, handed.is_some()) {
            Ok(fields) => fields,
            Err(error) => return self.failed(index, claim, error.into()),
        };
        let handed = copy.handed.map(|handed| HandOff { filter_fields: &fields, ..handed });
        let (key, looks_back) = (self.key(index), claim.looks_back);
        let copy = Copy { key, looks_back, newer_than: before.as_ref(), handed, ..copy };
        // One that was reserved early is not held while it is looked back.
        let early = early.take().filter(|(at, _)| *at == copy.recorded_at && !claim.in_doubt);
        let looked = match self.look_back(index, claim, &copy, phases) {
            Ok(looked) => looked,
            Err(step) => return *step,
        };
        let copy = Copy { looked: looked.as_deref(), ..copy };
        let takes_turn = claim.in_doubt || (early.is_none() && self.means.terms().join);
        let need = if claim.in_doubt { Need::Look } else { Need::Write };
        let reserved = self.means.timed(&mut phases.append, || match early {
            Some((_, slot)) => Ok(Some(slot)),
            None => store.reserve(destination, copy, need, deadline),
        });
        let mut slot = match reserved {
            Ok(Some(slot)) => slot,
            Ok(None) => return Step::Now(CopyState::Claimed(*claim)),
            Err(StoreError::Contended(why)) => return Step::Refused(*claim, why),
            Err(error) => return self.not_written(index, claim, error, None),
        };
        let (mut in_doubt, mut turn) = (claim.in_doubt, None);
        if takes_turn {
            let take = || ledger.take_turn(claim, copy.key, deadline.end());
            match self.means.timed(&mut phases.lock, take) {
                Ok(Turn::Ours { in_doubt: joined, turn: ours }) => {
                    in_doubt |= joined;
                    turn = Some(ours);
                }
                Ok(Turn::Placed(receipt)) => return Step::Now(CopyState::Placed(receipt)),
                Ok(Turn::EpochGone) => return Step::Now(CopyState::Busy),
                Err(LedgerError::Contended) => return Step::Now(CopyState::Claimed(*claim)),
                Err(error) => return self.failed(index, claim, error.into()),
            }
        }
        let write = || self.write(slot.as_mut(), in_doubt.then_some(claim), destination);
        let step = match self.means.timed(&mut phases.append, write) {
            Ok((receipt, how)) => {
                let how = (how, slot.is_wrapped());
                let confirm = || self.confirm(index, claim, receipt, how, turn);
                Step::Ended(self.means.timed(&mut phases.commit, confirm))
            }
            // The server has no place for another session or delivery: certainly nothing was
            // written.
            Err(StoreError::Contended(why)) => {
                tracing::debug!(%why, "waiting for another delivery");
                Step::Refused(*claim, why)
            }
            // Still with the slot: nobody can write there as long as it is held, where leases are
            // joined.
            Err(error) => self.not_written(index, claim, error, turn),
        };
        // Others may have it, now that the receipt is on record or the lease given back.
        drop(slot);
        deadline.answered();
        if looked.is_some() && matches!(step, Step::Ended(Ok(_))) {
            self.means.look_backs.is_placed(claim.value);
        }
        step
    }

    /// Looks if in doubt, and appends unless the look found the copy, all of it. The deadline ends
    /// long before the lease that was taken after it began (the configuration is refused
    /// otherwise), so the deadline's check of the clock, right before the last bytes, is the check
    /// of the lease as well. Steps `look`, `check`, `last bytes` and `OK` of the model.
    fn write(
        &self,
        slot: &mut dyn Slot,
        in_doubt: Option<&Claim>,
        destination: &Destination,
    ) -> Result<(Receipt, How), StoreError> {
        if let Some(claim) = in_doubt {
            let found = slot.look(self.means.deadline.look_until());
            if let Some(receipt) = found.map_err(|error| in_look(error, destination))?
                && !self.may_be_half_done(slot.found_try(), claim)?
            {
                return Ok((receipt, How::Found));
            }
        }
        Ok((slot.append()?, How::Stored))
    }

    /// See [`guard`].
    fn may_be_half_done(&self, found: Option<i64>, claim: &Claim) -> Result<bool, StoreError> {
        let (Means { ledger, store, deadline, .. }, at) = (self.means, self.recorded.recorded_at);
        // Nothing was handed over under this claim.
        let known = (found, claim.epoch - 1, at);
        let half_done = guard::may_be_half_done(ledger, store, known, deadline.end());
        half_done.map_err(|error| {
            StoreError::NotStored(format!("whether the copy that was found is all: {error}"))
        })
    }

    /// What a copy comes to that was not placed. The bytes of a shared one are put on record first.
    pub fn failed(&self, index: usize, claim: &Claim, failure: Failure) -> Step {
        let Means { ledger, deadline, .. } = self.means;
        let destination = self.destination(index);
        let is_in_doubt =
            matches!(&failure, Failure::Store(error) if !error.certainly_not_stored());
        let failure = match failure {
            Failure::Store(error) if destination.shared => match self.keep(destination, &error) {
                Some(failure) => failure,
                // Another delivery has placed it: a claim tells where.
                None => {
                    if is_in_doubt {
                        self.leave_doubt(claim);
                    } else {
                        self.release(claim);
                    }
                    return self.claim_busy(&[index]).remove(0);
                }
            },
            Failure::Store(StoreError::NoAccount(why)) => self.unknown_account(destination, why),
            failure => failure,
        };
        // Step `in doubt` of the model: the lease stays until it has run out, and then the look
        // decides. After its steps `check` (too late) and `not stored` certainly nothing was
        // written, and the next attempt need not wait.
        if !is_in_doubt {
            self.release(claim);
        } else if deadline.left().is_zero() {
            // So late its lease may have run out before its last bytes went out.
            let turn = ledger.take_turn(claim, self.key(index), self.insist_until());
            if matches!(turn, Ok(Turn::Placed(_))) {
                self.leave_doubt(claim);
            }
        }
        Step::Ended(Err(failure))
    }

    /// The store has no such account. One that had mail, or whose address had, is a fault of the
    /// set-up, or was closed: an administrator decides.
    fn unknown_account(&self, destination: &Destination, why: String) -> Failure {
        let Means { policy, ledger, deadline, .. } = self.means;
        let account = destination.account.clone();
        match ledger.has_placed_copy(&account, deadline.end()) {
            Ok(true) => return Failure::AccountGone { account, why },
            Ok(false) if policy.unknown_account == UnknownAccount::Reject => {}
            Ok(false) => return StoreError::NoAccount(why).into(),
            Err(error) => {
                note(Err(error));
                return StoreError::NoAccount(why).into();
            }
        }
        let is_its = |own: &Option<Destination>| {
            own.as_ref().is_some_and(|own| own.account == destination.account)
        };
        let recipients = self.job.envelope.recipients.iter().zip(self.job.own);
        let addresses: Vec<&str> =
            recipients.filter(|(_, own)| is_its(own)).map(|(one, _)| one.as_str()).collect();
        match ledger.account_reached(&addresses, deadline.end()) {
            Ok(None) => Failure::NoSuchAccount { account, why },
            Ok(Some(account)) => {
                Failure::AddressGone { address: addresses.join(", "), account, why }
            }
            Err(error) => {
                note(Err(error));
                StoreError::NoAccount(why).into()
            }
        }
    }

    /// What this delivery may have written beside the copy that another one has placed leaves a
    /// doubt on record, as an unnamed receipt.
    fn leave_doubt(&self, claim: &Claim) {
        let (receipt, facts) = (&Receipt::Unnamed, CopyFacts::default());
        let unnamed = ToConfirm { claim: *claim, receipt, facts, end: None };
        note(self.insisting(|until| self.means.ledger.confirm(&unnamed, until)).map(drop));
    }

    /// Puts a shared copy's bytes on record. Only if that fails do the recipients' deliveries wait
    /// for the copy. `None`: it is placed by now.
    fn keep(&self, destination: &Destination, error: &StoreError) -> Option<Failure> {
        let (message, bytes) = (self.recorded.message, self.job.message.shared_copy());
        let why = error.to_string();
        match self.insisting(|until| self.means.ledger.keep(message, bytes, &why, until)) {
            Ok(true) => Some(Failure::KeptForLater { destination: destination.to_string(), why }),
            Ok(false) => None,
            Err(error) => Some(error.into()),
        }
    }

    /// Leaves a shared copy to `onedrop settle`: its bytes and its time go on record. Step
    /// `keep_until_due`. Only if that fails do the recipients' deliveries wait for the copy.
    fn leave_until_due(&self, copy: usize) {
        let (ledger, after) = (self.means.ledger, self.means.policy.sent_after);
        let (message, destination) = (self.recorded.message, &self.job.destinations[copy]);
        let kept = (self.job.message.shared_copy(), FOR_THE_SENDER);
        let left =
            self.insisting(|until| ledger.keep_until_due(message, destination, kept, after, until));
        let end = match left {
            Ok(Due::At(at)) => Err(Failure::Due { destination: destination.to_string(), at }),
            Ok(Due::Placed(receipt)) => Ok(self.placed(copy, receipt, How::AlreadyThere)),
            Err(error) => Err(error.into()),
        };
        self.end(copy, end, Phases::default());
    }

    /// A call on which a mail's fate hangs: a ledger that was lost, or a row that another session
    /// holds, is worth another try. Step `reopen` of the model.
    pub fn insisting<T>(
        &self,
        mut call: impl FnMut(Instant) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let (deadline, until) = (self.means.deadline, self.insist_until());
        loop {
            match call(until) {
                Err(
                    LedgerError::Unavailable(_) | LedgerError::Busy(_) | LedgerError::Contended,
                ) if deadline.now() < until => {
                    deadline.clock().sleep(CONFIRM_PAUSE);
                }
                result => return result,
            }
        }
    }

    /// Last bytes may have gone out just in time: then the deadline is over when their answer is.
    pub fn insist_until(&self) -> Instant {
        match self.means.deadline.left().is_zero() {
            true => self.means.deadline.answer_until(),
            false => self.means.deadline.end(),
        }
    }

    /// Puts the receipt on record; when another copy is on record by now, takes our own out again.
    /// Step `confirm` of the model.
    fn confirm(
        &self,
        index: usize,
        claim: &Claim,
        receipt: Receipt,
        (how, wrapped): (How, bool),
        mut turn: Option<Box<dyn OpenTurn + '_>>,
    ) -> CopyResult {
        let placed = self.placed(index, receipt, how);
        let is_imap = !matches!(placed.receipt, Receipt::Name(_));
        let facts = CopyFacts {
            nul_replaced: is_imap && self.job.message.has_nul(),
            found_by_look: how == How::Found,
            wrapped,
        };
        let end = self.last_end(index, &placed);
        let end = end.as_ref().map(|end| (self.recorded.attempt, end));
        let one = ToConfirm { claim: *claim, receipt: &placed.receipt, facts, end };
        // The copy is in its mailbox: only its record is missing.
        let until = self.insist_until();
        let confirmed = self.insisting(|until| match turn.take() {
            Some(turn) => turn.confirm(&one, until),
            None => self.means.ledger.confirm(&one, until),
        });
        match confirmed? {
            Confirmed::Recorded => {
                if end.is_some() {
                    self.end_recorded.store(true, Ordering::SeqCst);
                }
                Ok(placed)
            }
            Confirmed::Superseded { .. } => Err(self.undo(&placed, until)),
        }
    }

    /// Our lease ran out while we wrote, and another copy is on record: ours is one too many. Of
    /// two copies without a name nobody can tell whether they are one. The confirm has left a
    /// doubt, which a second look settles, whatever comes of this. Step `undo` of the model.
    fn undo(&self, placed: &Placed, until: Instant) -> Failure {
        let held = format!("the copy {}", placed.destination);
        if self.means.terms().join {
            return Failure::Contended(held);
        }
        let removed = match placed.how {
            How::Stored => self.means.store.remove(&placed.destination, &placed.receipt, until),
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

    /// Gives back a lease under which certainly nothing was written, so that the next attempt need
    /// not wait for it.
    pub(super) fn release(&self, claim: &Claim) {
        let Means { ledger, deadline, .. } = self.means;
        note(ledger.release(std::slice::from_ref(claim), deadline.end()));
    }

    pub(super) fn placed(&self, index: usize, receipt: Receipt, how: How) -> Placed {
        let destination = self.destination(index).clone();
        let instead_of = None;
        self.as_meant(index, &Placed { destination, receipt, how, instead_of })
    }
}

/// A failure of a look. A mailbox that is not open to us never will tell: then INBOX is better than
/// a queue, from which the mail would be returned.
pub(super) fn in_look(error: StoreError, destination: &Destination) -> StoreError {
    match error {
        refused @ StoreError::Refused(_) if destination.stand_in().is_some() => refused,
        // A login for the look says the same of account and set-up as one for the append.
        login @ (StoreError::Contended(_) | StoreError::Setup(_) | StoreError::NoAccount(_)) => {
            login
        }
        error => StoreError::NotStored(format!("looking for an earlier copy: {error}")),
    }
}
