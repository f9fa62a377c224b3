//! One copy's life, from its claim to its end: reserved, a turn and a look if in doubt, appended,
//! confirmed; and what it comes to where that fails. One thread has a copy at a time. `protocol.rs`
//! says what a crash leaves.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::endings::{Endings, attempt_end};
use super::guard::GuardOnRecord;
use super::request::{Delivery, Means, Phases, note};
use super::{CopyEnd, Failure, How, LookBackEnd, LookBackRequest, Placed, guard, left, stand_in};
use crate::directory::Destination;
use crate::ledger::{
    AttemptKey, Claim, Confirmed, CopyFacts, CopyState, Entry, LeaseTerms, LedgerError, OpenTurn,
    ToConfirm, Turn,
};
use crate::lock_key::Hash;
use crate::store::{Copy, HandOff, LookBack, LookedBack, Need, Receipt, Slot, StoreError};
use crate::text;

/// A slot for a single copy, reserved before the record with the date that the record should have.
pub(super) type Early<'a> = Option<(SystemTime, Box<dyn Slot + 'a>)>;

/// What a try at a copy came to.
enum Step {
    Ended(CopyEnd),
    /// What the copy's row says. Unless it is placed, this delivery waits and tries again.
    Now(CopyState),
    /// Leased to this delivery, which waits as well: the mail server has no place for one more
    /// session of the account, or for one more delivery, and says so.
    Refused(Claim, String),
}

/// A part of a try, or what the try came to before its end.
type Tried<T> = Result<T, Box<Step>>;

/// One copy of a message that is on record, and how far it is.
pub(super) struct CopyInHand<'a> {
    delivery: Delivery<'a>,
    endings: &'a Endings<'a>,
    /// Its number among the delivery's destinations.
    index: usize,
    /// The mailbox that it goes to where the one that is meant is not there, and no other recipient
    /// of this delivery has; and its copy's key.
    stand_in: Option<(Destination, Hash)>,
    step: Step,
    phases: Phases,
}

impl<'a> CopyInHand<'a> {
    /// A copy whose row says `state`.
    pub fn new(
        delivery: Delivery<'a>,
        endings: &'a Endings<'a>,
        index: usize,
        state: CopyState,
    ) -> CopyInHand<'a> {
        let (stand_in, step, phases) = (None, Step::Now(state), Phases::default());
        CopyInHand { delivery, endings, index, stand_in, step, phases }
    }

    /// Where it goes.
    pub fn destination(&self) -> &Destination {
        match &self.stand_in {
            Some((other, _)) => other,
            None => &self.delivery.job.destinations[self.index],
        }
    }

    /// One try; comes back with the copy if it has to wait.
    pub fn try_once(mut self, early: &mut Early<'a>) -> Option<CopyInHand<'a>> {
        loop {
            if let Step::Now(CopyState::Claimed(claim)) | Step::Refused(claim, _) = self.step {
                let mut phases = self.phases;
                let place = || self.place(&claim, early, &mut phases);
                // A panic is a failure of this copy and of no other.
                let step = catch_unwind(AssertUnwindSafe(place)).unwrap_or_else(|panic| {
                    Step::Ended(Failure::Internal(text::of_panic(panic)).into())
                });
                (self.step, self.phases) = (step, phases);
            }
            let Step::Now(CopyState::Placed(receipt)) = &self.step else {
                return self.unless_ended();
            };
            let Some(mailbox) = receipt.mailbox_instead().map(str::to_owned) else {
                return self.unless_ended();
            };
            // Reserved for the mailbox that was meant.
            *early = None;
            self.step = self.go_on_in(&mailbox)?;
        }
    }

    /// Another delivery has it.
    pub fn is_busy(&self) -> bool {
        matches!(self.step, Step::Now(CopyState::Busy))
    }

    /// The result of claiming it again.
    pub fn claimed(&mut self, state: Result<CopyState, LedgerError>) {
        self.step = match state {
            Ok(state) => Step::Now(state),
            Err(error) => Step::Ended(error.into()),
        };
    }

    /// It was waited for.
    pub fn waited(&mut self, took: Duration) {
        self.phases.waits += 1;
        self.phases.lock += took;
    }

    /// Ends it if its bytes are [kept](left::is_kept); else comes back with it.
    pub fn unless_kept(self) -> Option<CopyInHand<'a>> {
        match left::is_kept(&self.delivery, self.destination()) {
            Some(left) => self.leave(CopyEnd::Left(left)),
            None => return Some(self),
        }
        None
    }

    /// Ends a copy for which there is no more patience.
    pub fn give_up(mut self) {
        if let Step::Refused(claim, why) = &self.step {
            // A shared one is kept for later, as where the store fails in another way.
            let step = self.failed(claim, StoreError::Contended(why.clone()).into());
            self.step = step;
        }
        if let Some(open) = self.unless_ended() {
            let held = format!("the copy {}", open.destination());
            open.leave(Failure::Contended(held).into());
        }
    }

    /// Ends it, and gives back its lease, if this delivery has it.
    fn leave(self, end: CopyEnd) {
        if let Step::Now(CopyState::Claimed(claim)) | Step::Refused(claim, _) = &self.step {
            self.delivery.release(claim);
        }
        self.endings.copy_ended(self.index, end, self.phases);
    }

    /// Says how it ended, if it did; else comes back with it.
    fn unless_ended(mut self) -> Option<CopyInHand<'a>> {
        let end = match self.step {
            Step::Ended(end) => end,
            Step::Now(CopyState::Placed(ref receipt)) => {
                CopyEnd::Placed(self.placed(receipt.clone(), How::AlreadyThere))
            }
            step @ (Step::Now(CopyState::Claimed(_) | CopyState::Busy) | Step::Refused(..)) => {
                self.step = step;
                return Some(self);
            }
        };
        self.endings.copy_ended(self.index, end, self.phases);
        None
    }

    fn place(&self, claim: &Claim, early: &mut Early<'a>, phases: &mut Phases) -> Step {
        self.place_step_by_step(claim, early, phases).unwrap_or_else(|step| *step)
    }

    /// Reserve, turn and look if in doubt, append, confirm.
    ///
    /// Step `take_turn` of the model: the lock, and the row re-read under it. A lease without doubt
    /// is a turn already if no other delivery may join it, or if the store has reserved the copy
    /// for us since before we had the lease: then no other gets as far as this one's append, and
    /// the check of the clock before the last bytes is that of the lease. So no transaction of the
    /// ledger is open while a store takes its time. What a turn needs of the store is reserved
    /// before it.
    fn place_step_by_step(
        &self,
        claim: &Claim,
        early: &mut Early<'a>,
        phases: &mut Phases,
    ) -> Tried<Step> {
        let Means { store, deadline, look_backs, .. } = self.delivery.means;
        let is_handed = store.hands_over(self.destination());
        let newer_than = self.receipt_before(claim, is_handed);
        let filter_fields = self.filter_fields(claim, is_handed)?;
        let copy = self.copy(claim, is_handed, newer_than.as_ref(), &filter_fields);
        // One that was reserved early is not held while it is looked back.
        let early = early.take().filter(|(at, _)| *at == copy.recorded_at && !claim.in_doubt);
        let guards = self.guards(claim, is_handed)?;
        let looked = self.look_back(claim, &copy, phases)?;
        let copy = Copy { looked: looked.as_deref(), ..copy };
        let takes_turn = claim.in_doubt || (early.is_none() && self.delivery.means.terms().join);
        let mut slot = match early {
            Some((_, slot)) => slot,
            None => self.reserve(claim, copy, phases)?,
        };
        let (in_doubt, turn) = match takes_turn {
            true => self.take_turn(claim, phases)?,
            false => (false, None),
        };
        // The turn has a session of the ledger. Who asks the ledger for another one in a turn may
        // wait for one that all others hold who do the same.
        let write = || self.write(slot.as_mut(), in_doubt.then_some((claim, &*guards)));
        let step = match self.delivery.means.timed(&mut phases.append, write) {
            Ok((receipt, how)) => {
                let how = (how, slot.is_wrapped());
                let confirm = || self.confirm(claim, receipt, how, turn);
                Step::Ended(self.delivery.means.timed(&mut phases.commit, confirm))
            }
            // The server has no place for another session or delivery: certainly nothing was
            // written.
            Err(StoreError::Contended(why)) => {
                tracing::debug!(%why, "waiting for another delivery");
                Step::Refused(*claim, why)
            }
            // Still with the slot: no other can write there as long as it is held, where leases are
            // joined.
            Err(error) => self.not_written(claim, error, turn),
        };
        // Others may have it, now that the receipt is on record or the lease given back.
        drop(slot);
        deadline.answered();
        if looked.is_some() && matches!(step, Step::Ended(CopyEnd::Placed(_))) {
            look_backs.is_placed(claim.value);
        }
        Ok(step)
    }

    /// What is to stand in the mailbox.
    fn copy<'c>(
        &'c self,
        claim: &Claim,
        is_handed: bool,
        newer_than: Option<&'c Receipt>,
        filter_fields: &'c str,
    ) -> Copy<'c> {
        let Delivery { job, recorded, .. } = self.delivery;
        let handed = is_handed.then_some(claim);
        let copy = job.copy(self.index, self.key(), recorded.recorded_at, handed);
        let handed = copy.handed.map(|handed| HandOff { filter_fields, ..handed });
        Copy { looks_back: claim.looks_back, newer_than, handed, ..copy }
    }

    /// A receipt of the mailbox from before the message came. Of use for a look in one mailbox that
    /// numbers what comes.
    fn receipt_before(&self, claim: &Claim, is_handed: bool) -> Option<Receipt> {
        let Means { ledger, store, deadline, .. } = self.delivery.means;
        let numbered = store.numbered_by().filter(|_| !is_handed)?;
        if !claim.in_doubt || claim.looks_back {
            return None;
        }
        let (message, until) = (self.delivery.recorded.message.number, deadline.end());
        let place = (self.destination(), numbered);
        let before = ledger.receipt_before(message, place, Duration::ZERO, until);
        // Without it the look reads more; a ledger that is away shows at the turn.
        before.unwrap_or_else(|error| {
            tracing::warn!(%error, "no receipt before the copy is known");
            None
        })
    }

    /// Which fields set the copy apart from others of its content, where it may be found as one
    /// that was handed over for another row.
    fn filter_fields(&self, claim: &Claim, is_handed: bool) -> Tried<String> {
        let Means { ledger, deadline, .. } = self.delivery.means;
        match claim.looks_back && claim.in_doubt && is_handed {
            true => match ledger.filter_fields(false, deadline.end()) {
                Ok(fields) => Ok(fields.list),
                Err(error) => Err(Box::new(self.failed(claim, error.into()))),
            },
            false => Ok(String::new()),
        }
    }

    /// What is on record of the guard, where a look may find a copy that was handed over.
    fn guards(&self, claim: &Claim, is_handed: bool) -> Tried<Vec<GuardOnRecord>> {
        let Means { ledger, store, deadline, .. } = self.delivery.means;
        match claim.in_doubt && is_handed {
            true => guard::known(ledger, store, deadline.end())
                .map_err(|error| Box::new(self.failed(claim, error.into()))),
            false => Ok(Vec::new()),
        }
    }

    /// What may be older than its row is looked for first, with no turn and nothing else that
    /// others need; the look in the turn has what came since. Step `looks back` of the model.
    fn look_back(
        &self,
        claim: &Claim,
        copy: &Copy<'_>,
        phases: &mut Phases,
    ) -> Tried<Option<Arc<LookedBack>>> {
        let Means { store, deadline, watch, look_backs, .. } = self.delivery.means;
        if !claim.looks_back || !claim.in_doubt || store.append_is_idempotent() {
            return Ok(None);
        }
        let destination = self.destination();
        let (sought, message) = (LookBack::of(copy), self.delivery.recorded.message.number);
        let (row, until) = (claim.value, deadline.look_until());
        let request = LookBackRequest { destination, row, sought, message, until };
        let look = || look_backs.look_back(request, store);
        let end = self.delivery.means.timed(&mut phases.append, look);
        watch.looked_back(&end);
        Err(Box::new(match end {
            LookBackEnd::Looked(looked) => return Ok(looked),
            // The server has no place for another session.
            LookBackEnd::Failed(StoreError::Contended(why)) => Step::Refused(*claim, why),
            LookBackEnd::Failed(error) => {
                self.not_written(claim, in_look(error, destination), None)
            }
            // No recipient's mail waits for a copy in Sent.
            LookBackEnd::Later(why) if destination.shared => {
                let why = format!("looking for an earlier copy: {why}");
                self.not_written(claim, StoreError::NotStored(why), None)
            }
            LookBackEnd::Later(why) => self.failed(claim, Failure::LooksBack(why)),
        }))
    }

    fn reserve<'c>(
        &'c self,
        claim: &Claim,
        copy: Copy<'c>,
        phases: &mut Phases,
    ) -> Tried<Box<dyn Slot + 'c>> {
        let Means { store, deadline, .. } = self.delivery.means;
        let need = if claim.in_doubt { Need::Look } else { Need::Write };
        let reserve = || store.reserve(self.destination(), copy, need, deadline);
        Err(Box::new(match self.delivery.means.timed(&mut phases.append, reserve) {
            Ok(Some(slot)) => return Ok(slot),
            Ok(None) => Step::Now(CopyState::Claimed(*claim)),
            Err(StoreError::Contended(why)) => Step::Refused(*claim, why),
            Err(error) => self.not_written(claim, error, None),
        }))
    }

    /// The turn, and whether the copy is in doubt: by its claim, or by another delivery that has
    /// joined the lease.
    fn take_turn(
        &self,
        claim: &Claim,
        phases: &mut Phases,
    ) -> Tried<(bool, Option<Box<dyn OpenTurn + 'a>>)> {
        let Means { ledger, deadline, .. } = self.delivery.means;
        let take = || ledger.take_turn(claim, self.key(), deadline.end());
        Err(Box::new(match self.delivery.means.timed(&mut phases.lock, take) {
            Ok(Turn::Ours { in_doubt, turn }) => {
                return Ok((claim.in_doubt || in_doubt, Some(turn)));
            }
            Ok(Turn::Placed(receipt)) => Step::Now(CopyState::Placed(receipt)),
            Ok(Turn::EpochGone) => Step::Now(CopyState::Busy),
            Err(LedgerError::Contended) => Step::Now(CopyState::Claimed(*claim)),
            Err(error) => self.failed(claim, error.into()),
        }))
    }

    /// Looks if in doubt, and appends unless the look found the copy, all of it. The deadline ends
    /// long before the lease that was taken after it began (the configuration is refused
    /// otherwise), so the deadline's check of the clock, right before the last bytes, is the check
    /// of the lease as well. Steps `look`, `check`, `last bytes` and `OK` of the model.
    fn write(
        &self,
        slot: &mut dyn Slot,
        in_doubt: Option<(&Claim, &[GuardOnRecord])>,
    ) -> Result<(Receipt, How), StoreError> {
        let mut begun = None;
        if let Some((claim, guards)) = in_doubt {
            let Delivery { means: Means { ledger, deadline, .. }, recorded, .. } = self.delivery;
            let found = slot.look(deadline.look_until());
            let found = found.map_err(|error| in_look(error, self.destination()))?;
            // Nothing was handed over under this claim.
            let row = (slot.found_try(), claim.epoch - 1, recorded.recorded_at);
            match found {
                Some(_) if guard::may_be_half_done(guards, row, ledger.time()) => begun = found,
                Some(receipt) => return Ok((receipt, How::Found)),
                None => {}
            }
        }
        match (slot.append(), begun) {
            // Its owner has the message: its sender must not hear that it was refused.
            (Err(error), Some(receipt)) if self.delivery.means.policy.returns(&error) => {
                tracing::warn!(%error, "what filters had still to do with {receipt} is not done");
                Ok((receipt, How::Found))
            }
            (end, _) => Ok((end?, How::Stored)),
        }
    }

    /// Puts the receipt on record; when another copy is on record by now, takes our own out again.
    /// Step `confirm` of the model.
    fn confirm(
        &self,
        claim: &Claim,
        receipt: Receipt,
        (how, wrapped): (How, bool),
        mut turn: Option<Box<dyn OpenTurn + '_>>,
    ) -> CopyEnd {
        let Delivery { job, means, recorded, .. } = self.delivery;
        let placed = self.placed(receipt, how);
        let facts = CopyFacts {
            nul_replaced: !means.store.keeps_nul() && job.message.has_nul(),
            found_by_look: how == How::Found,
            wrapped,
        };
        let end = self.endings.last_end(self.index, &placed);
        let end = end.as_ref().map(|end| (recorded.attempt, end));
        // A look may not find what a filter has done with a copy.
        let may_be_lost = how == How::Stored && !placed.receipt.is_handed() && !claim.in_doubt;
        let one = ToConfirm { claim: *claim, receipt: &placed.receipt, facts, end, may_be_lost };
        // The copy is in its mailbox: only its record is missing.
        let until = means.insist_until();
        let confirmed = means.insisting(|until| match turn.take() {
            Some(turn) => turn.confirm(&one, until),
            None => means.ledger.confirm(&one, until),
        });
        match confirmed {
            Ok(Confirmed::Recorded) => {
                if end.is_some() {
                    self.endings.set_recorded();
                }
                CopyEnd::Placed(placed)
            }
            Ok(Confirmed::Superseded { .. }) => CopyEnd::Failed(self.undo(claim, &placed, until)),
            Err(LedgerError::Forgotten) => CopyEnd::Failed(self.unrecorded(claim, &placed, until)),
            Err(error) => error.into(),
        }
    }

    /// The copy's row is gone: the attempt of its second record ends as this does.
    fn unrecorded(&self, claim: &Claim, placed: &Placed, until: Instant) -> Failure {
        let Delivery { job, means, attempt, .. } = self.delivery;
        let (is_other_placed, again) = match self.record_in_doubt(&placed.receipt) {
            Ok(recorded) => recorded,
            Err(error) => {
                note(Err::<(), _>(error));
                return LedgerError::Forgotten.into();
            }
        };
        let failure = match is_other_placed {
            true => self.undo(claim, placed, until),
            false => LedgerError::Forgotten.into(),
        };
        let ended = failure.ending();
        let end = attempt_end(&ended.outcome, ended.reason, self.endings.took());
        let ended = Some((again, attempt, &end));
        note(means.ledger.finish(job.message.identity(), ended, &[], means.insist_until()));
        failure
    }

    /// The copy is in its mailbox, and its row is gone: purged, forgotten, or lost in a fail-over.
    /// Like a message that is older than the ledger's memory it is recorded once more, so that the
    /// next attempt looks before it writes. The lease stays until it has run out: in a row that
    /// another delivery has made meanwhile it is all that leaves a doubt. One that lives there is
    /// joined: its holder may write as well, and then a second look is due. `ours` is not put on
    /// record: `verify` may have taken that copy out because of a receipt that the fail-over lost.
    /// Step `record in doubt` of the model.
    ///
    /// # Returns
    /// Whether another copy is on record by now, whose receipt lasts as this record does; and where
    /// the attempt is on record.
    fn record_in_doubt(&self, ours: &Receipt) -> Result<(bool, AttemptKey), LedgerError> {
        let Delivery { job, means, attempt, recorded, .. } = self.delivery;
        let (facts, nul_runs) = (job.message.facts(), job.message.nul_runs());
        let known = (&facts, nul_runs.as_deref());
        let entry = job.entry(means.policy, known, Some(recorded.recorded_at));
        let entry = Entry { oldest: None, ..entry };
        let terms = LeaseTerms { join: true, ..means.terms() };
        let copy = std::slice::from_ref(self.destination());
        let record = |until| means.ledger.record(&entry, attempt, copy, terms, until);
        let recorded = means.insisting(record)?;
        let is_other = |by: &Receipt| by != ours && !by.is_elsewhere();
        let placed = matches!(recorded.copies.first(), Some(CopyState::Placed(by)) if is_other(by));
        Ok((placed, recorded.attempt))
    }

    /// Our lease ran out, or our record was lost, while we wrote, and another copy is on record:
    /// ours is one too many. Of two copies without a name it cannot be known whether they are one.
    /// A confirm has left a doubt, which a second look settles, whatever comes of this; where the
    /// record was lost, there is none. Step `undo` of the model.
    fn undo(&self, claim: &Claim, placed: &Placed, until: Instant) -> Failure {
        let held = format!("the copy {}", placed.destination);
        let means = self.delivery.means;
        if means.terms().join {
            return Failure::Contended(held);
        }
        let removed = match placed.how {
            How::Stored => {
                let ours = self.copy(claim, false, None, "").sought();
                let Placed { destination, receipt, .. } = placed;
                means.store.remove(destination, receipt, Some(&ours), until)
            }
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

    /// What a copy comes to that the store did not take: it goes elsewhere, or is not placed.
    fn not_written(
        &self,
        claim: &Claim,
        error: StoreError,
        turn: Option<Box<dyn OpenTurn + '_>>,
    ) -> Step {
        let meant = self.destination();
        let (StoreError::Refused(why), Some(other)) = (&error, meant.stand_in()) else {
            drop(turn);
            return self.failed(claim, error.into());
        };
        let (means, row) = (self.delivery.means, (claim, self.key()));
        match stand_in::send_to(&other, means, row, turn) {
            Ok(state) => {
                if matches!(&state, CopyState::Placed(on_record) if on_record.is_elsewhere()) {
                    tracing::warn!(%why, "no copy in {meant}: it goes to INBOX");
                }
                Step::Now(state)
            }
            Err(error) => self.failed(claim, error.into()),
        }
    }

    /// Its row says that it belongs into another mailbox of its account. `None`: this delivery has
    /// that copy already, and it ends as that one does.
    fn go_on_in(&mut self, mailbox: &str) -> Option<Step> {
        let job = self.delivery.job;
        let meant = &job.destinations[self.index];
        let (account, mailbox) = (meant.account.clone(), mailbox.to_owned());
        let other = Destination { account, mailbox, shared: false };
        let same = |one: &Destination| one.is_same_mailbox(&other);
        if self.stand_in.is_some() || same(meant) {
            let error = LedgerError::Broken(format!("{other} is elsewhere, again"));
            return Some(Step::Ended(error.into()));
        }
        if let Some(at) = job.destinations.iter().position(same) {
            self.endings.ends_as(self.index, at);
            return None;
        }
        let key = job.message.identity().copy_key(&other.account, &other.mailbox);
        self.stand_in = Some((other, key));
        Some(self.claim_again())
    }

    /// What a copy comes to that was not placed. The bytes of a shared one are put on record first.
    fn failed(&self, claim: &Claim, failure: Failure) -> Step {
        let Means { ledger, deadline, .. } = self.delivery.means;
        let destination = self.destination();
        let is_in_doubt =
            matches!(&failure, Failure::Store(error) if !error.certainly_not_stored());
        let end = match failure {
            Failure::Store(error) if destination.shared => {
                match left::keep(&self.delivery, destination, &error) {
                    Some(end) => end,
                    // Another delivery has placed it: a claim has where.
                    None => {
                        if is_in_doubt {
                            self.leave_doubt(claim);
                        } else {
                            self.delivery.release(claim);
                        }
                        return self.claim_again();
                    }
                }
            }
            Failure::Store(error) => self.refused(error).into(),
            failure => failure.into(),
        };
        // Step `in doubt` of the model: the lease stays until it has run out, and then the look
        // decides. After its steps `check` (too late) and `not stored` certainly nothing was
        // written, and the next attempt need not wait.
        if !is_in_doubt {
            self.delivery.release(claim);
        } else if deadline.left().is_zero() {
            // So late its lease may have run out before its last bytes went out.
            let until = self.delivery.means.insist_until();
            if matches!(ledger.take_turn(claim, self.key(), until), Ok(Turn::Placed(_))) {
                self.leave_doubt(claim);
            }
        }
        Step::Ended(end)
    }

    /// The configuration says what it means that the store does not take a recipient's copy.
    fn refused(&self, error: StoreError) -> Failure {
        let Means { policy, ledger, deadline, .. } = self.delivery.means;
        let Delivery { job, .. } = self.delivery;
        let account = self.destination().account.as_str();
        let addresses: Vec<&str> = job
            .own
            .iter()
            .zip(&job.envelope.recipients)
            .filter(|(own, _)| own.as_ref().is_some_and(|own| own.account == account))
            .map(|(_, address)| address.as_str())
            .collect();
        policy.of_store_error(error, (account, &addresses), ledger, deadline.end())
    }

    /// What this delivery may have written beside the copy that another one has placed leaves a
    /// doubt on record, as an unnamed receipt.
    fn leave_doubt(&self, claim: &Claim) {
        let means = self.delivery.means;
        let (receipt, facts) = (&Receipt::UNNAMED, CopyFacts::default());
        let unnamed = ToConfirm { claim: *claim, receipt, facts, end: None, may_be_lost: false };
        note(means.insisting(|until| means.ledger.confirm(&unnamed, until)).map(drop));
    }

    fn claim_again(&self) -> Step {
        match self.delivery.claim(std::slice::from_ref(self.destination())) {
            Ok(states) => Step::Now(states.into_iter().next().unwrap_or(CopyState::Busy)),
            Err(error) => Step::Ended(error.into()),
        }
    }

    fn placed(&self, receipt: Receipt, how: How) -> Placed {
        let meant = &self.delivery.job.destinations[self.index];
        let instead_of = self.stand_in.as_ref().map(|_| meant.place().to_owned());
        Placed { destination: self.destination().clone(), receipt, how, instead_of }
    }

    fn key(&self) -> &Hash {
        match &self.stand_in {
            Some((_, key)) => key,
            None => &self.delivery.keys[self.index],
        }
    }
}

/// A failure of a look. A mailbox that is not open to us never answers: then INBOX is better than
/// a queue, from which the mail would be returned.
fn in_look(error: StoreError, destination: &Destination) -> StoreError {
    match error {
        refused @ StoreError::Refused(_) if destination.stand_in().is_some() => refused,
        // A login for the look says the same of account and set-up as one for the append.
        login @ (StoreError::Contended(_) | StoreError::Setup(_) | StoreError::NoAccount(_)) => {
            login
        }
        error => StoreError::NotStored(format!("looking for an earlier copy: {error}")),
    }
}
