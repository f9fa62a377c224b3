//! The protocol: record the message, then place each copy once, whoever else is trying and wherever a process dies.
//! Nothing here knows an engine; the ledger gives locks, leases and receipts, the store appends and looks.
//!
//! | crash after                        | left behind                              | next attempt                           |
//! |------------------------------------|------------------------------------------|----------------------------------------|
//! | reading the message                | nothing                                  | from the start                         |
//! | `record`                           | message, leased copies, no copy anywhere | lease runs out: in doubt: looks, appends |
//! | `append`: before its last bytes    | as above                                 | as above                               |
//! | `append`: last bytes sent, no OK   | a copy, or none                          | looks: finds it and confirms, or appends |
//! | `append`: OK seen                  | one copy, no receipt on record           | looks: finds it and confirms           |
//! | `confirm`                          | one copy, placed                         | sees `placed`, touches no mailbox      |
//!
//! Where the store's append is idempotent (Maildir: the copy's key names the file) a live lease is joined instead of
//! waited for; the copy's lock and the name exclude a second copy.
//!
//! `tests/model.rs` checks this protocol exhaustively. Its steps have the names used here: `record`, `take_turn`, `look`,
//! `check`, `last bytes`, `OK`, `confirm`, `undo`, `give_back`, `claim_busy`. Whoever changes one changes it there.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::thread;
use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::directory::Destination;
use crate::ledger::{
    Attempt, AttemptEnd, Claim, Confirmed, CopyFacts, CopyState, Entry, LeaseTerms, Ledger, LedgerError, Recorded, Turn,
};
use crate::message::{Facts, Message};
use crate::outcome::{Failure, Outcome, OverQuota};
use crate::store::{Copy, Receipt, Store, StoreError};

/// Between two tries to reach a ledger that was lost while a copy was written.
const CONFIRM_PAUSE: Duration = Duration::from_millis(250);

/// What the configuration says about a delivery.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    pub lease: Duration,
    /// How long to wait, in all, for others who hold a lock or a lease. Zero: try once.
    pub wait: Duration,
    pub keep_raw: bool,
    pub over_quota: OverQuota,
}

/// One message for some destinations.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    pub message: &'a Message,
    pub facts: &'a Facts,
    pub attempt: &'a Attempt,
    pub destinations: &'a [Destination],
    pub started: Instant,
}

/// How a copy came to be in its mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// This delivery wrote it.
    Stored,
    /// An earlier or parallel delivery placed it.
    AlreadyThere,
    /// An earlier delivery wrote it and could not record so.
    Found,
}

/// A copy that is in its mailbox, with its receipt on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    pub destination: Destination,
    pub receipt: Receipt,
    pub how: How,
}

impl std::fmt::Display for Placed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = match self.how {
            How::Stored => "stored",
            How::AlreadyThere => "already there",
            How::Found => "found",
        };
        write!(f, "{how} {} {}", self.destination, self.receipt)
    }
}

/// What a delivery came to: one end for each destination, in their order.
#[derive(Debug)]
pub struct Report {
    pub recorded: Recorded,
    pub destinations: Vec<Destination>,
    pub ends: Vec<Result<Placed, Failure>>,
}

impl Report {
    /// Delivered if and only if every copy is placed; but a shared copy that its own account cannot take (full, closed, not
    /// there) must not keep or bounce the mail of the recipients, who did not ask for it. Then the text says so.
    pub fn outcome(&self, over_quota: OverQuota) -> Outcome {
        self.ends
            .iter()
            .zip(&self.destinations)
            .map(|(end, destination)| match end {
                Ok(placed) => Outcome::Delivered(placed.to_string()),
                Err(Failure::Store(error)) if destination.shared && error.is_the_accounts() => {
                    Outcome::Delivered(format!("no copy in {destination}: {error}"))
                }
                Err(failure) => Outcome::of(failure, over_quota),
            })
            .reduce(Outcome::worst)
            .unwrap_or_else(|| Outcome::Delivered("nothing to do".to_owned()))
    }
}

/// Delivers one message to its destinations.
///
/// # Errors
/// The message could not be recorded; nothing was placed. Failures of single copies are in the [`Report`].
pub fn deliver(
    job: &Job<'_>,
    policy: &Policy,
    ledger: &mut dyn Ledger,
    store: &mut dyn Store,
    deadline: &Deadline,
) -> Result<Report, Failure> {
    let mut patience = Patience::new(policy.wait, deadline);
    let terms = LeaseTerms { lease: policy.lease, join: store.append_is_idempotent() };
    let recorded = record(job, policy, terms, ledger, &mut patience)?;
    let mut delivery = Delivery { job, recorded, terms, deadline, copies: Vec::new(), end_recorded: false };
    delivery.copies = delivery.recorded.copies.iter().cloned().map(Step::from).collect();
    loop {
        delivery.place_claimed(ledger, store);
        if !delivery.is_waiting() || !patience.wait() {
            break;
        }
        delivery.claim_busy(ledger);
    }
    Ok(delivery.end(policy, ledger))
}

/// Records the message and claims its copies; from here a crash leaves a trace. Step `record` of the model.
fn record(
    job: &Job<'_>,
    policy: &Policy,
    terms: LeaseTerms,
    ledger: &mut dyn Ledger,
    patience: &mut Patience<'_>,
) -> Result<Recorded, Failure> {
    let message = job.message;
    let keep_raw = policy.keep_raw || message.has_nul();
    let entry = Entry {
        identity: message.identity(),
        facts: job.facts,
        size_bytes: message.own_copy().len() as u64,
        raw: keep_raw.then(|| message.received()),
    };
    loop {
        match ledger.record(&entry, job.attempt, job.destinations, terms) {
            Err(LedgerError::Contended) if patience.wait() => {}
            Err(LedgerError::Contended) => {
                let failure = Failure::Contended("the lock on its Message-ID".to_owned());
                let outcome = Outcome::of(&failure, policy.over_quota);
                note(ledger.finish_unrecorded(message.identity(), job.attempt, &job.attempt_end(&outcome)));
                return Err(failure);
            }
            Err(error) => return Err(error.into()),
            Ok(recorded) => return Ok(recorded),
        }
    }
}

impl Job<'_> {
    fn attempt_end(&self, outcome: &Outcome) -> AttemptEnd {
        AttemptEnd {
            outcome: outcome.name(),
            status: outcome.status().to_string(),
            text: outcome.text().to_owned(),
            duration: self.started.elapsed(),
        }
    }
}

/// Where one copy stands in this delivery.
enum Step {
    /// Leased by another; wait and claim again.
    Busy,
    /// Leased to us, nothing written yet.
    Claimed(Claim),
    Ended(Result<Placed, Failure>),
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

struct Delivery<'a> {
    job: &'a Job<'a>,
    recorded: Recorded,
    terms: LeaseTerms,
    deadline: &'a Deadline,
    copies: Vec<Step>,
    /// The last confirm put the attempt's end on record as well.
    end_recorded: bool,
}

impl Delivery<'_> {
    /// One try at every copy that is leased to us: the recipients' own mailboxes first, shared ones last.
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

    /// Places one copy under its lock: re-read, look if in doubt, append, confirm.
    fn place(&mut self, index: usize, claim: &Claim, ledger: &mut dyn Ledger, store: &mut dyn Store) -> Step {
        let destination = &self.job.destinations[index];
        let identity = self.job.message.identity();
        let key = identity.copy_key(&destination.account, &destination.mailbox);
        // Step `take_turn` of the model: the lock, and the row re-read under it.
        let in_doubt = match ledger.take_turn(claim, &key) {
            Ok(Turn::Ours { in_doubt }) => claim.in_doubt || in_doubt,
            Ok(Turn::Placed(receipt)) => return Step::Ended(Ok(self.placed(index, receipt, How::AlreadyThere))),
            Ok(Turn::EpochGone) => return Step::Busy,
            Err(LedgerError::Contended) => return Step::Claimed(*claim),
            Err(error) => return self.give_back(claim, error.into(), ledger),
        };
        let message = self.job.message;
        let bytes = if destination.shared { message.shared_copy() } else { message.own_copy() };
        let copy = Copy { key: &key, bytes, identity, recorded_at: self.recorded.recorded_at };
        match write(destination, &copy, in_doubt, store, self.deadline) {
            Ok((receipt, how)) => {
                let end = self.confirm(index, claim, receipt, how, ledger, store);
                self.deadline.answered();
                Step::Ended(end)
            }
            Err(error) => {
                self.deadline.answered();
                note(ledger.leave());
                if error.certainly_not_stored() {
                    return self.give_back(claim, error.into(), ledger);
                }
                // Step `in doubt` of the model: the lease stays until it has run out, and then the look decides.
                Step::Ended(Err(error.into()))
            }
        }
    }

    /// Puts the receipt on record; when another claimed the copy meanwhile, takes our own copy out again. Step `confirm` of
    /// the model, with `reopen` for each new session.
    fn confirm(
        &mut self,
        index: usize,
        claim: &Claim,
        receipt: Receipt,
        how: How,
        ledger: &mut dyn Ledger,
        store: &mut dyn Store,
    ) -> Result<Placed, Failure> {
        let placed = self.placed(index, receipt, how);
        let facts = CopyFacts {
            nul_replaced: matches!(placed.receipt, Receipt::Uid { .. } | Receipt::Unnamed)
                && self.job.message.has_nul(),
            found_by_look: how == How::Found,
        };
        let end = self.last_end(index, &placed).map(|end| (self.recorded.attempt, end));
        let end = end.as_ref().map(|(attempt, end)| (*attempt, end));
        // The copy is in its mailbox: only its record is missing, so a lost ledger is worth another try.
        let until = if self.deadline.left().is_zero() { self.deadline.answer_until() } else { self.deadline.end() };
        let confirmed = loop {
            match ledger.confirm(claim, &placed.receipt, facts, end) {
                Err(LedgerError::Unavailable(_)) if Instant::now() < until => {
                    thread::sleep(CONFIRM_PAUSE);
                    note(ledger.reopen(until));
                }
                result => break result,
            }
        };
        match confirmed {
            Ok(Confirmed::Recorded) => {
                self.end_recorded = end.is_some();
                Ok(placed)
            }
            Ok(Confirmed::EpochGone { recorded }) => Err(self.undo(&placed, recorded, store, until)),
            Err(error) => Err(error.into()),
        }
    }

    /// Our lease ran out while we wrote. If another copy is on record, ours is one too many; of two copies without a name
    /// nobody can tell whether they are one. Step `undo` of the model.
    fn undo(&self, placed: &Placed, recorded: Option<Receipt>, store: &mut dyn Store, until: Instant) -> Failure {
        let held = format!("the copy {}", placed.destination);
        match recorded {
            Some(other)
                if (other != placed.receipt || other == Receipt::Unnamed)
                    && placed.how == How::Stored
                    && !store.append_is_idempotent() =>
            {
                match store.remove(&placed.destination, &placed.receipt, until) {
                    Ok(()) => Failure::Contended(format!("{held}; its own late one was taken out again")),
                    Err(error) => Failure::Store(StoreError::InDoubt(format!(
                        "a second copy {} may stand as {}: {error}",
                        placed.destination, placed.receipt
                    ))),
                }
            }
            Some(_) | None => Failure::Contended(held),
        }
    }

    /// The attempt's end, when `placed` is the last copy that was missing: one transaction less.
    fn last_end(&self, index: usize, placed: &Placed) -> Option<AttemptEnd> {
        let mut outcome = Outcome::Delivered(String::new());
        for (other, step) in self.copies.iter().enumerate() {
            let one = match step {
                _ if other == index => placed.to_string(),
                Step::Ended(Ok(placed)) => placed.to_string(),
                Step::Seen(receipt) => self.placed(other, receipt.clone(), How::AlreadyThere).to_string(),
                Step::Ended(Err(_)) | Step::Claimed(_) | Step::Busy => return None,
            };
            outcome = match outcome {
                Outcome::Delivered(text) if text.is_empty() => Outcome::Delivered(one),
                outcome => outcome.worst(Outcome::Delivered(one)),
            };
        }
        Some(self.job.attempt_end(&outcome))
    }

    /// Ends a copy under whose claim certainly nothing was written, so that the next attempt need not wait for it. What
    /// the model's steps `check` (too late) and `not stored` lead to.
    fn give_back(&self, claim: &Claim, failure: Failure, ledger: &mut dyn Ledger) -> Step {
        note(ledger.release(std::slice::from_ref(claim)));
        Step::Ended(Err(failure))
    }

    fn is_waiting(&self) -> bool {
        self.copies.iter().any(|step| matches!(step, Step::Busy | Step::Claimed(_)))
    }

    /// Claims the busy copies again: placed meanwhile, free meanwhile, or still busy. Step `claim_busy` of the model.
    fn claim_busy(&mut self, ledger: &mut dyn Ledger) {
        let busy: Vec<usize> = (0..self.copies.len()).filter(|i| matches!(self.copies[*i], Step::Busy)).collect();
        if busy.is_empty() {
            return;
        }
        let wanted: Vec<Destination> = busy.iter().map(|index| self.job.destinations[*index].clone()).collect();
        match ledger.claim(self.recorded.message, &wanted, self.job.attempt, self.terms) {
            Ok(states) => {
                for (index, state) in busy.into_iter().zip(states) {
                    self.copies[index] = Step::from(state);
                }
            }
            Err(error) => {
                let text = error.to_string();
                for index in busy {
                    let failure = Failure::Contended(format!("the copy {}: {text}", self.job.destinations[index]));
                    self.copies[index] = Step::Ended(Err(failure));
                }
            }
        }
    }

    /// Gives back what is still claimed, and records the end unless the last confirm did.
    fn end(self, policy: &Policy, ledger: &mut dyn Ledger) -> Report {
        let unused: Vec<Claim> = self
            .copies
            .iter()
            .filter_map(|step| if let Step::Claimed(claim) = step { Some(*claim) } else { None })
            .collect();
        if !unused.is_empty() {
            note(ledger.release(&unused));
        }
        let (job, end_recorded) = (self.job, self.end_recorded);
        let ends: Vec<Result<Placed, Failure>> = self
            .copies
            .into_iter()
            .zip(job.destinations)
            .map(|(step, destination)| match step {
                Step::Ended(end) => end,
                Step::Seen(receipt) => Ok(Placed { destination: destination.clone(), receipt, how: How::AlreadyThere }),
                Step::Busy | Step::Claimed(_) => Err(Failure::Contended(format!("the copy {destination}"))),
            })
            .collect();
        let report = Report { recorded: self.recorded, destinations: job.destinations.to_vec(), ends };
        let outcome = report.outcome(policy.over_quota);
        if !end_recorded {
            note(ledger.finish(report.recorded.attempt, &job.attempt_end(&outcome)));
        }
        report
    }

    fn placed(&self, index: usize, receipt: Receipt, how: How) -> Placed {
        Placed { destination: self.job.destinations[index].clone(), receipt, how }
    }
}

/// Looks if in doubt, and appends unless the look found the copy. The deadline ends long before the lease that was
/// taken after it began (the configuration is refused otherwise), so the deadline's check of the clock, right before the
/// last bytes, is the check of the lease as well.
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
        .look(destination, copy, deadline.end())
        .map_err(|error| StoreError::NotStored(format!("looking for an earlier copy: {error}")))
}

/// Bookkeeping that failed: the mail's fate does not hang on it, but an operator should see it.
fn note(result: Result<(), LedgerError>) {
    if let Err(error) = result {
        tracing::warn!(%error, "ledger bookkeeping failed");
    }
}

/// Waiting for others, with jitter, bounded in all.
struct Patience<'a> {
    left: Duration,
    pause: Duration,
    deadline: &'a Deadline,
}

impl Patience<'_> {
    const FIRST_PAUSE: Duration = Duration::from_millis(4);
    const LONGEST_PAUSE: Duration = Duration::from_millis(100);

    fn new(total: Duration, deadline: &Deadline) -> Patience<'_> {
        Patience { left: total, pause: Self::FIRST_PAUSE, deadline }
    }

    /// Sleeps a little; false when there is no patience left.
    fn wait(&mut self) -> bool {
        let left = self.left.min(self.deadline.left());
        if left.is_zero() {
            return false;
        }
        let random = RandomState::new().build_hasher().finish();
        let half = self.pause / 2;
        let pause = (half + half.mul_f64((random % 1024) as f64 / 512.0)).min(left);
        thread::sleep(pause);
        self.left = self.left.saturating_sub(pause);
        self.pause = (self.pause * 3 / 2).min(Self::LONGEST_PAUSE);
        true
    }
}
