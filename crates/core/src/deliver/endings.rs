//! How a delivery ends for each recipient: known, and reported, as soon as all copies that concern
//! it have ended. It is given how each copy ended, from any thread, and knows nothing of how a copy
//! is placed. And what the ledger is to keep as the end of an attempt.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::request::{DeliveryRequest, Ending, Phases, Watch};
use super::{CopyEnd, Failure, How, Placed};
use crate::deadline::Deadline;
use crate::directory::Destination;
use crate::exit;
use crate::ledger::{AttemptEnd, CopyState, LedgerError, Recorded};
use crate::outcome::{Outcome, Reason};

/// The endings of one delivery, while they come.
pub(super) struct Endings<'a> {
    job: &'a DeliveryRequest<'a>,
    watch: &'a dyn Watch,
    deadline: &'a Deadline,
    /// Another message with the same Message-ID is on record.
    collision: bool,
    /// What recording took.
    recording: Phases,
    /// How each copy ended.
    copies: Vec<OnceLock<(CopyEnd, Phases)>>,
    /// Of a copy whose mailbox is not there: the number of the copy of this delivery that has it
    /// instead.
    stand_ins: Vec<OnceLock<usize>>,
    /// How it ended for each recipient.
    recipients: Vec<OnceLock<Ending>>,
    /// A receipt put the attempt's end on record as well.
    is_recorded: AtomicBool,
}

impl<'a> Endings<'a> {
    /// Copies that earlier deliveries have placed have ended already, and recipients without any.
    pub fn new(
        job: &'a DeliveryRequest<'a>,
        (watch, deadline): (&'a dyn Watch, &'a Deadline),
        recorded: &Recorded,
        recording: Phases,
    ) -> Endings<'a> {
        fn unknown<T>(count: usize) -> Vec<OnceLock<T>> {
            (0..count).map(|_| OnceLock::new()).collect()
        }
        let copies = job.destinations.len();
        let endings = Endings {
            job,
            watch,
            deadline,
            collision: recorded.collision,
            recording,
            copies: unknown(copies),
            stand_ins: unknown(copies),
            recipients: unknown(job.envelope.recipients.len()),
            is_recorded: AtomicBool::new(false),
        };
        for (copy, state) in recorded.copies.iter().enumerate() {
            if let CopyState::Placed(receipt) = state
                && !receipt.is_elsewhere()
            {
                let (destination, receipt) = (job.destinations[copy].clone(), receipt.clone());
                let how = How::AlreadyThere;
                let placed = Placed { destination, receipt, how, instead_of: None };
                endings.copy_ended(copy, CopyEnd::Placed(placed), Phases::default());
            }
        }
        endings.report(|own| own.is_none() || copies == 0);
        endings
    }

    /// A copy's end, and with it perhaps that of recipients.
    pub fn copy_ended(&self, copy: usize, end: CopyEnd, phases: Phases) {
        self.watch.copy_ended(&end, &phases);
        // One thread has each copy.
        let _ = self.copies[copy].set((end, phases));
        let is_shared = self.job.destinations[copy].shared;
        let stands_in = |other: &usize| self.stand_ins[*other].get() == Some(&copy);
        let others: Vec<usize> = (0..self.stand_ins.len()).filter(stands_in).collect();
        self.report(|own| {
            is_shared || self.is_its(copy, own) || others.iter().any(|at| self.is_its(*at, own))
        });
    }

    /// A copy ends as another one of this delivery does, which stands in for it.
    pub fn ends_as(&self, copy: usize, other: usize) {
        let _ = self.stand_ins[copy].set(other);
        self.report(|own| self.is_its(copy, own));
    }

    pub fn has_ended(&self, copy: usize) -> bool {
        self.copies[copy].get().is_some()
    }

    /// The attempt's end, when `placed` is the last copy that was missing and there is one
    /// recipient: it goes with the receipt, and one transaction less is needed.
    pub fn last_end(&self, copy: usize, placed: &Placed) -> Option<AttemptEnd> {
        if self.job.envelope.recipients.len() != 1 {
            return None;
        }
        let mut ends = Vec::new();
        for (other, end) in self.copies.iter().enumerate() {
            let placed = if other == copy { placed } else { end.get()?.0.placed()? };
            ends.push(Outcome::delivered(placed.to_string()));
        }
        Some(attempt_end(&Outcome::worst(ends), Some(Reason::Delivered), self.took()))
    }

    /// What [`last_end`](Endings::last_end) gave is on record.
    pub fn set_recorded(&self) {
        self.is_recorded.store(true, Ordering::SeqCst);
    }

    pub fn is_recorded(&self) -> bool {
        self.is_recorded.load(Ordering::SeqCst)
    }

    /// Whether the ledger has just kept a copy from its end.
    pub fn lack_the_ledger(&self) -> bool {
        let failed = |(end, _): &(CopyEnd, Phases)| {
            matches!(end, CopyEnd::Failed(Failure::Ledger(_) | Failure::Contended(_)))
        };
        self.copies.iter().any(|end| end.get().is_some_and(failed))
    }

    /// How it ended for each recipient. No copy ends any more.
    pub fn all(&self) -> Vec<Ending> {
        // A copy and the one that stands in for it may have ended in the same moment.
        self.report(|_| true);
        let left = || not_ended().ending();
        self.recipients.iter().map(|one| one.get().cloned().unwrap_or_else(left)).collect()
    }

    /// The end of the only copy.
    pub fn only_end(self) -> CopyEnd {
        let end = self.copies.into_iter().next().and_then(OnceLock::into_inner);
        end.map_or_else(|| CopyEnd::Failed(not_ended()), |(end, _)| end)
    }

    /// Whether the caller hears the end only once it is on record. Of several recipients each hears
    /// how it ended for it as soon as that is decided, before the record.
    pub fn are_recorded_first(&self) -> bool {
        self.job.one_ending || self.recipients.len() == 1
    }

    /// Reports those recipients, by their mailbox, for which all is decided.
    fn report(&self, concerns: impl Fn(&Option<Destination>) -> bool) {
        for (recipient, known) in self.recipients.iter().enumerate() {
            if known.get().is_none()
                && concerns(&self.job.own[recipient])
                && let Some(ending) = self.ending(recipient)
                && known.set(ending.clone()).is_ok()
                && !self.are_recorded_first()
            {
                self.watch.ended(recipient, &ending);
            }
        }
    }

    /// How the delivery to a recipient ended; `None` as long as one of its copies has not.
    fn ending(&self, recipient: usize) -> Option<Ending> {
        let Some(mailbox) = &self.job.own[recipient] else {
            return Some(unknown(self.job, recipient));
        };
        let (mut ends, mut own, mut phases) = (Vec::new(), None, self.recording);
        for (copy, destination) in self.job.destinations.iter().enumerate() {
            let is_own = destination.is_same_mailbox(mailbox);
            if destination.shared || is_own {
                let (outcome, reason, placed, took) = self.end_of(copy)?;
                ends.push((outcome, reason));
                if is_own {
                    own = placed;
                }
                phases += took;
            }
        }
        let outcome = Outcome::worst(ends.iter().map(|(outcome, _)| outcome.clone()));
        Some(Ending {
            reason: Some(reason_of(&outcome, &ends)),
            outcome,
            account: Some(mailbox.account.clone()),
            own,
            collision: self.collision,
            unrecorded: false,
            phases,
        })
    }

    /// How the copy ended, or the one that stands in for it.
    fn end_of(&self, copy: usize) -> Option<(Outcome, Reason, Option<Placed>, Phases)> {
        let other = self.stand_ins[copy].get();
        let (end, took) = self.copies[other.copied().unwrap_or(copy)].get()?;
        let meant = other.map(|_| self.job.destinations[copy].place().to_owned());
        match (end, meant) {
            (CopyEnd::Placed(placed), Some(meant)) => {
                let placed = Placed { instead_of: Some(meant), ..placed.clone() };
                let outcome = Outcome::delivered(placed.to_string());
                Some((outcome, end.reason(), Some(placed), *took))
            }
            (end, _) => Some((end.outcome(), end.reason(), end.placed().cloned(), *took)),
        }
    }

    /// Whether the copy is the one in the recipient's own mailbox.
    fn is_its(&self, copy: usize, own: &Option<Destination>) -> bool {
        own.as_ref().is_some_and(|own| own.is_same_mailbox(&self.job.destinations[copy]))
    }

    pub fn took(&self) -> Duration {
        self.deadline.now() - self.job.started
    }
}

/// The reason of the outcome of several copies: of the first that ended as it did, and said more
/// than that it is delivered.
fn reason_of(outcome: &Outcome, ends: &[(Outcome, Reason)]) -> Reason {
    let of_it = ends.iter().filter(|(one, _)| one.name() == outcome.name());
    let mut reasons = of_it.map(|(_, reason)| *reason);
    reasons.find(|reason| *reason != Reason::Delivered).unwrap_or(Reason::Delivered)
}

/// A thread that was to place the copy ended before it.
fn not_ended() -> Failure {
    Failure::Internal("a copy was left".to_owned())
}

/// The endings where nothing could be recorded, or nothing may be written.
pub(super) fn of_failure(job: &DeliveryRequest<'_>, failure: &Failure) -> Vec<Ending> {
    let ending = |(recipient, own): (usize, &Option<Destination>)| match own {
        Some(own) => Ending { account: Some(own.account.clone()), ..failure.ending() },
        None => unknown(job, recipient),
    };
    job.own.iter().enumerate().map(ending).collect()
}

/// All copies are placed, and only the end of the attempt is not on record: no recipient whose end
/// is missing hears "delivered". Postfix comes again, and finds the copies placed.
pub(super) fn not_on_record(endings: &mut [Ending], error: &LedgerError) {
    for ending in endings {
        if matches!(ending.outcome, Outcome::Delivered(_)) {
            let failed = Failure::NotOnRecord(error.clone()).ending();
            (ending.outcome, ending.reason) = (failed.outcome, failed.reason);
        }
    }
}

/// The address is unknown.
fn unknown(job: &DeliveryRequest<'_>, recipient: usize) -> Ending {
    let failure = match job.envelope.recipients.get(recipient) {
        Some(address) if !address.is_empty() => Failure::UnknownRecipient(address.clone()),
        Some(_) | None => Failure::NoRecipient,
    };
    failure.ending()
}

/// How an attempt ended, for the record.
pub(super) fn attempt_end(
    outcome: &Outcome,
    reason: Option<Reason>,
    duration: Duration,
) -> AttemptEnd {
    AttemptEnd {
        outcome: outcome.name(),
        reason,
        status: outcome.status().to_string(),
        text: outcome.text().into_owned(),
        duration,
    }
}

/// How the attempt for one recipient ended, and what Postfix heard where that is something else.
pub(super) fn attempt_end_of(
    job: &DeliveryRequest<'_>,
    at: usize,
    endings: &[Ending],
    took: Duration,
) -> AttemptEnd {
    let Ending { outcome: own, reason, .. } = &endings[at];
    let mut end = attempt_end(own, *reason, took);
    if job.one_ending {
        let addresses = job.envelope.recipients.iter().map(String::as_str);
        let outcomes = endings.iter().map(|ending| ending.outcome.clone());
        let all = Outcome::of_all(&addresses.zip(outcomes).collect::<Vec<_>>());
        if (own.name(), own.status()) != (all.name(), all.status()) {
            let (exit, status) = (exit::status(&all) as i32, all.status());
            let count = endings.len();
            end.text.push_str(&format!("; ended in {exit} {status} for all {count} recipients"));
        }
    }
    end
}
