//! How a delivery ended for each recipient: reported as soon as all copies that concern it have
//! ended, and put on record as the end of its attempt. See the parent for the protocol.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::place::Placing;
use super::{CopyResult, DeliveryRequest, Ending, Failure, Means, Phases, Placed, Policy, note};
use crate::deadline::Deadline;
use crate::directory::Destination;
use crate::envelope::Envelope;
use crate::exit;
use crate::ledger::{AnyLedger, Attempt, AttemptEnd, RandomValue};
use crate::message::Message;
use crate::outcome::{Outcome, Reason};

impl Placing<'_> {
    /// A copy's end, and with it perhaps that of recipients.
    pub(super) fn end(&self, copy: usize, end: CopyResult, phases: Phases) {
        self.means.watch.copy_ended(&end, &phases);
        // One thread has each copy.
        let _ = self.ends[copy].set((end, phases));
        let is_its = |at: usize, own: &Option<Destination>| {
            own.as_ref().is_some_and(|own| own.is_same_mailbox(&self.job.destinations[at]))
        };
        let is_shared = self.job.destinations[copy].shared;
        let standing_in = self.stood_in_by(copy);
        self.end_recipients(|own| {
            is_shared || is_its(copy, own) || standing_in.iter().any(|at| is_its(*at, own))
        });
    }

    /// Reports those recipients, by their mailbox, for which all is decided.
    pub(super) fn end_recipients(&self, concerns: impl Fn(&Option<Destination>) -> bool) {
        for (recipient, known) in self.endings.iter().enumerate() {
            if known.get().is_none()
                && concerns(&self.job.own[recipient])
                && let Some(ending) = self.ending(recipient)
                && known.set(ending.clone()).is_ok()
                && !self.is_recorded_first()
            {
                self.means.watch.ended(recipient, &ending);
            }
        }
    }

    /// Whether the end is told once it is on record. Of several recipients each hears how it ended
    /// for it as soon as that is decided, before the record.
    fn is_recorded_first(&self) -> bool {
        self.job.one_ending || self.endings.len() == 1
    }

    /// How the delivery to a recipient ended; `None` as long as one of its copies has not.
    fn ending(&self, recipient: usize) -> Option<Ending> {
        let over_quota = self.means.policy.over_quota;
        let Some(mailbox) = &self.job.own[recipient] else {
            return Some(self.job.unknown(recipient, self.means.policy));
        };
        let (mut outcomes, mut own, mut phases) = (Vec::new(), None, self.recording);
        for (copy, destination) in self.job.destinations.iter().enumerate() {
            let is_own = destination.is_same_mailbox(mailbox);
            if destination.shared || is_own {
                let (end, took) = self.ended(copy)?;
                let placed = end.as_ref().map(|placed| self.as_meant(copy, placed));
                outcomes.push(match &placed {
                    Ok(placed) => (Outcome::delivered(placed.to_string()), Reason::Delivered),
                    Err(failure) => (failure.outcome(over_quota), failure.reason()),
                });
                if is_own {
                    own = placed.ok();
                }
                phases += *took;
            }
        }
        let outcome = Outcome::worst(outcomes.iter().map(|(outcome, _)| outcome.clone()));
        Some(Ending {
            reason: Some(reason_of(&outcome, &outcomes)),
            outcome,
            account: Some(mailbox.account.clone()),
            own,
            collision: self.recorded.collision,
            unrecorded: false,
            phases,
        })
    }

    /// The attempt's end, when `placed` is the last copy that was missing and there is one
    /// recipient: one transaction less.
    pub(super) fn last_end(&self, index: usize, placed: &Placed) -> Option<AttemptEnd> {
        if self.job.envelope.recipients.len() != 1 {
            return None;
        }
        let mut ends = Vec::new();
        for (other, end) in self.ends.iter().enumerate() {
            let end = if other == index { placed } else { end.get()?.0.as_ref().ok()? };
            ends.push(Outcome::delivered(end.to_string()));
        }
        let outcome = Outcome::worst(ends);
        Some(self.job.attempt_end(&outcome, Some(Reason::Delivered), self.means.deadline))
    }

    /// Puts on record how it ended for each recipient. Nobody is told "delivered" of whom that is
    /// not on record, if all have one ending: Postfix comes again, and finds the copies placed.
    pub(super) fn finish(self) -> Vec<Ending> {
        let Means { policy, ledger, deadline, watch, .. } = self.means;
        // A copy and the one that stands in for it may have ended in the same moment.
        self.end_recipients(|_| true);
        let left = || not_ended().ending(policy.over_quota);
        let mut endings: Vec<Ending> =
            self.endings.iter().map(|ending| ending.get().cloned().unwrap_or_else(left)).collect();
        let first = self.job.first();
        let end = |at: usize| self.job.attempt_end_of(at, &endings, deadline);
        let others: Vec<_> = (0..endings.len())
            .filter(|at| *at != first)
            .map(|at| (self.job.attempt(at), end(at)))
            .collect();
        let own = (!self.end_recorded.load(Ordering::SeqCst)).then(|| end(first));
        if own.is_some() || !others.is_empty() {
            let own = own.as_ref().map(|end| (self.recorded.attempt, end));
            let identity = self.job.message.identity();
            let finish = |until| ledger.finish(identity, own, &others, until);
            let recorded = match (self.lacks_the_ledger(), others.is_empty()) {
                (true, _) => finish(deadline.end()),
                // A second call would put the others on record twice.
                (false, false) => finish(self.insist_until()),
                (false, true) => self.insisting(finish),
            };
            if let (Err(error), true) = (&recorded, self.is_recorded_first()) {
                let delivered = endings
                    .iter_mut()
                    .filter(|ending| matches!(ending.outcome, Outcome::Delivered(_)));
                for ending in delivered {
                    let failed = Failure::NotOnRecord(error.clone()).ending(policy.over_quota);
                    (ending.outcome, ending.reason) = (failed.outcome, failed.reason);
                }
            }
            note(recorded);
        }
        if self.is_recorded_first() {
            endings.iter().enumerate().for_each(|(at, ending)| watch.ended(at, ending));
        }
        endings
    }

    /// The ledger has just kept a copy from its end. It is not asked once more after the deadline:
    /// the process ends then, and nobody would be left to cancel the call.
    fn lacks_the_ledger(&self) -> bool {
        let failed =
            |end: &CopyResult| matches!(end, Err(Failure::Ledger(_) | Failure::Contended(_)));
        self.ends.iter().any(|end| end.get().is_some_and(|(end, _)| failed(end)))
    }

    /// The end of the only copy.
    pub(super) fn only_end(self) -> CopyResult {
        let end = self.ends.into_iter().next().and_then(|end| end.into_inner());
        end.map_or_else(|| Err(not_ended()), |(end, _)| end)
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

/// The endings where nothing could be recorded, or nothing may be written. They go on record if the
/// ledger is there.
pub fn fail(job: &DeliveryRequest<'_>, failure: &Failure, means: Means<'_>) -> Vec<Ending> {
    let Means { policy, ledger, deadline, watch, .. } = means;
    let ending = |(recipient, own): (usize, &Option<Destination>)| match own {
        Some(own) => {
            Ending { account: Some(own.account.clone()), ..failure.ending(policy.over_quota) }
        }
        None => job.unknown(recipient, policy),
    };
    let endings: Vec<Ending> = job.own.iter().enumerate().map(ending).collect();
    for (recipient, ending) in endings.iter().enumerate() {
        watch.ended(recipient, ending);
    }
    if !failure.is_unrecorded() {
        let ended: Vec<_> = (0..endings.len())
            .map(|at| (job.attempt(at), job.attempt_end_of(at, &endings, deadline)))
            .collect();
        note(ledger.finish(job.message.identity(), None, &ended, deadline.end()));
    }
    endings
}

/// Puts on record how it ended for those recipients, by their places in the envelope, of whom
/// nobody can tell now where their mail goes.
pub fn note_unrouted(
    message: &Message,
    envelope: &Envelope,
    host: &str,
    ended: &[(usize, Ending)],
    took: Duration,
    ledger: &dyn AnyLedger,
    until: Instant,
) {
    let ends: Vec<_> = ended
        .iter()
        .map(|(at, ending)| {
            let attempt = attempt_for(envelope, *at, host);
            (attempt, attempt_end(&ending.outcome, ending.reason, took))
        })
        .collect();
    note(ledger.finish(message.identity(), None, &ends, until));
}

/// The try to deliver to one of the envelope's recipients.
fn attempt_for(envelope: &Envelope, recipient: usize, host: &str) -> Attempt {
    Attempt {
        value: RandomValue::default(),
        recipient: envelope.recipients.get(recipient).map_or("", String::as_str).to_lowercase(),
        sender: envelope.sender.clone(),
        queue_id: envelope.queue_id.clone(),
        host: host.to_owned(),
        pid: std::process::id(),
    }
}

fn attempt_end(outcome: &Outcome, reason: Option<Reason>, duration: Duration) -> AttemptEnd {
    AttemptEnd {
        outcome: outcome.name(),
        reason,
        status: outcome.status().to_string(),
        text: outcome.text().into_owned(),
        duration,
    }
}

impl DeliveryRequest<'_> {
    /// The first recipient that has a mailbox.
    pub(super) fn first(&self) -> usize {
        self.own.iter().position(Option::is_some).unwrap_or(0)
    }

    /// The try to deliver to a recipient.
    pub(super) fn attempt(&self, recipient: usize) -> Attempt {
        attempt_for(self.envelope, recipient, self.host)
    }

    /// How an attempt ended, until now.
    fn attempt_end(
        &self,
        outcome: &Outcome,
        reason: Option<Reason>,
        deadline: &Deadline,
    ) -> AttemptEnd {
        attempt_end(outcome, reason, deadline.now() - self.started)
    }

    /// How the attempt for one recipient ended, and what Postfix heard where that is something
    /// else.
    fn attempt_end_of(&self, at: usize, endings: &[Ending], deadline: &Deadline) -> AttemptEnd {
        let Ending { outcome: own, reason, .. } = &endings[at];
        let mut end = self.attempt_end(own, *reason, deadline);
        if self.one_ending {
            let addresses = self.envelope.recipients.iter().map(String::as_str);
            let outcomes = endings.iter().map(|ending| ending.outcome.clone());
            let all = Outcome::of_all(&addresses.zip(outcomes).collect::<Vec<_>>());
            if (own.name(), own.status()) != (all.name(), all.status()) {
                let (exit, status) = (exit::status(&all) as i32, all.status());
                let count = endings.len();
                end.text
                    .push_str(&format!("; ended in {exit} {status} for all {count} recipients"));
            }
        }
        end
    }

    /// Nobody has the address.
    fn unknown(&self, recipient: usize, policy: &Policy) -> Ending {
        let failure = match self.envelope.recipients.get(recipient) {
            Some(address) if !address.is_empty() => Failure::UnknownRecipient(address.clone()),
            Some(_) | None => Failure::NoRecipient,
        };
        failure.ending(policy.over_quota)
    }
}
