//! The protocol: record the message, place each of its copies, put the endings on record. What a
//! crash leaves stands at [`deliver`].
//!
//! A copy without doubt is placed under its lease alone, so that no transaction of the ledger is
//! open while a mail server takes its time. In doubt, and where leases are joined, it takes a turn.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::copy::{CopyInHand, Early};
use super::endings::{self, Endings};
use super::named::Named;
use super::request::{Delivery, DeliveryRequest, Ending, Means, Phases, attempt_for, note};
use super::{CopyEnd, Failure, left};
use crate::deadline::Deadline;
use crate::directory::Destination;
use crate::envelope::Envelope;
use crate::ledger::{AnyLedger, Attempt, Entry, FilterFields, LedgerError, Recorded};
use crate::lock_key::Hash;
use crate::message::Message;
use crate::store::Need;

/// Delivers one message: records it, places each copy, and puts on record how that ended for each
/// recipient. Returns the endings in the envelope's order; for a recipient it is "delivered" if and
/// only if every copy that concerns it is placed, or left for later.
///
/// | crash after                 | what is left           | next attempt               |
/// |-----------------------------|------------------------|----------------------------|
/// | reading the message         | nothing                | from the start             |
/// | `record`                    | message, leased copies | lease ends: looks, appends |
/// | `append`: before last bytes | as above               | as above                   |
/// | `append`: sent, no OK seen  | a copy, or none        | looks: confirms or appends |
/// | `append`: OK seen           | a copy, no receipt     | looks: confirms            |
/// | `confirm`                   | a copy, placed         | sees `placed`              |
/// | the same, ledger crashes    | a copy, no receipt     | looks: confirms            |
///
/// In the last row the message was delivered and Postfix has no attempt left: `onedrop settle` and
/// `verify` look. Which receipts a crash may undo says
/// [`may_be_lost`](crate::ledger::claim::may_be_lost).
///
/// A message that is older than what the ledger remembers, and one whose record was forgotten, is
/// claimed in doubt, and its look has no bound of date, at every attempt: the mailbox remembers.
///
/// A recipient's copy whose mailbox is not there, or not open to us, goes to INBOX: first its row
/// gets the receipt [`elsewhere`](crate::store::Receipt::elsewhere), then INBOX is claimed as for
/// any other recipient, so that several who mean INBOX, now or later, come to one copy there. After
/// a crash between the two the row says where to go on, also if the mailbox is there by then.
///
/// A shared copy (Sent) may be left to `onedrop settle` ([`Policy::sent_after`]): then its bytes go
/// on record, with the time from which on it is due, and no delivery leases it.
///
/// A shared copy that the store does not take, or that is in doubt or out of reach, keeps no
/// mail from a recipient: its bytes go on record before its lease is given back, and `onedrop
/// verify --repair` places it. Where another delivery holds it, Postfix comes again.
///
/// A recipient's account that the store does not know is refused for good only as configured
/// ([`Policy::unknown_account`]), and never one with a placed copy on record.
///
/// A single copy may be reserved before the record: nothing of it is stored until its last bytes,
/// so up to there a crash leaves what the record leaves. Where the store's append is idempotent
/// (Maildir: the copy's key names the file) a live lease is joined instead of waited for; then the
/// reserved copy is locked, from before its row is read until its receipt is on record. That lock
/// ends with its process, not with the ledger's session.
///
/// [`Policy::sent_after`]: super::Policy::sent_after
/// [`Policy::unknown_account`]: super::Policy::unknown_account
pub fn deliver(job: &DeliveryRequest<'_>, means: Means<'_>) -> Vec<Ending> {
    match Named::new(job, means, false) {
        Ok(named) => deliver_named(job, &named, means, true),
        Err(error) => fail(job, &error.into(), means),
    }
}

/// Does what [`deliver`] does, to copies of these names. If the ledger says that they are named by
/// a list of fields that is not on record any more, they are named once more.
fn deliver_named(
    plain: &DeliveryRequest<'_>,
    named: &Named,
    means: Means<'_>,
    may_rename: bool,
) -> Vec<Ending> {
    let job = &named.request(plain);
    let keys = &job.copy_keys();
    let mut early = begin_early(job, keys, means);
    let attempt = &job.attempt(job.first());
    let mut phases = Phases::default();
    let fields = named.fields.as_ref();
    let recorded = match record(job, attempt, fields, means, &mut early, &mut phases) {
        Ok(recorded) => recorded,
        Err(failure) => {
            if let Some(anew) = named.anew(plain, means, &failure).filter(|_| may_rename) {
                return deliver_named(plain, &anew, means, false);
            }
            means.watch.not_recorded(phases.waits);
            return fail(job, &failure, means);
        }
    };
    means.watch.recorded(&recorded, &phases);
    let delivery = Delivery { job, means, keys, attempt, recorded: &recorded };
    let endings = Endings::new(job, (means.watch, means.deadline), &recorded, phases);
    let next = AtomicUsize::new(0);
    match job.destinations.len() {
        0 | 1 => work(delivery, &endings, &next, early),
        copies => {
            let threads = means.policy.side_by_side.clamp(1, copies);
            let work = || work(delivery, &endings, &next, None);
            means.deadline.clock().side_by_side(threads, &work);
        }
    }
    finish(&delivery, &endings)
}

/// Places the only copy of a message that is on record already, for no recipient.
pub fn place(
    job: &DeliveryRequest<'_>,
    means: Means<'_>,
    attempt: &Attempt,
    recorded: &Recorded,
) -> CopyEnd {
    let keys = &job.copy_keys();
    let delivery = Delivery { job, means, keys, attempt, recorded };
    let watched = (means.watch, means.deadline);
    let endings = Endings::new(job, watched, recorded, Phases::default());
    work(delivery, &endings, &AtomicUsize::new(0), None);
    endings.only_end()
}

/// Has the store begin on a single copy while the ledger records the message; the stores say what
/// that brings. What stands in the way shows when the copy is placed.
fn begin_early<'a>(job: &'a DeliveryRequest<'a>, keys: &'a [Hash], means: Means<'a>) -> Early<'a> {
    let ([destination], [key]) = (job.destinations, keys) else { return None };
    // What is handed over says by which claim.
    if !means.policy.begins_early || means.store.hands_over(destination) {
        return None;
    }
    let at = means.ledger.time();
    let copy = job.copy(0, key, at, None);
    let slot = means.store.reserve(destination, copy, Need::Early, means.deadline);
    Some((at, slot.ok().flatten()?))
}

/// Records the message and claims its copies; from here a crash leaves a trace. Step `record` of
/// the model.
///
/// # Errors
/// Nothing is on record; or the ledger was lost, and it is not known.
fn record(
    job: &DeliveryRequest<'_>,
    attempt: &Attempt,
    fields: Option<&FilterFields>,
    means: Means<'_>,
    early: &mut Early<'_>,
    phases: &mut Phases,
) -> Result<Recorded, Failure> {
    let Means { policy, ledger, deadline, .. } = means;
    let (terms, claimed) = (means.terms(), job.claimed(policy));
    let nul_runs = job.message.nul_runs();
    let at = early.as_ref().map(|(at, _)| *at);
    let facts = &job.message.facts();
    let entry = Entry { fields, ..job.entry(policy, (facts, nul_runs.as_deref()), at) };
    let mut patience = Patience::new(policy.wait, deadline);
    loop {
        let began = deadline.now();
        match ledger.record(&entry, attempt, claimed, terms, deadline.end()) {
            Err(LedgerError::Contended) => {}
            recorded => {
                phases.record += deadline.now() - began;
                return Ok(recorded?);
            }
        }
        // While it waits, a delivery holds nothing that others need.
        *early = None;
        if !patience.wait() {
            return Err(Failure::Contended("the lock on its Message-ID".to_owned()));
        }
        phases.waits += 1;
        phases.lock += deadline.now() - began;
    }
}

/// Takes copy after copy, the recipients' own first, and then waits for those that others hold.
/// Gives back what is claimed and not used. Any number of threads may work; `next` is the copy that
/// the next one of them takes.
fn work<'a>(
    delivery: Delivery<'a>,
    endings: &'a Endings<'a>,
    next: &AtomicUsize,
    mut early: Early<'a>,
) {
    let mut waiting = Vec::new();
    loop {
        let copy = next.fetch_add(1, Ordering::Relaxed);
        let Some(destination) = delivery.job.destinations.get(copy) else { break };
        match delivery.recorded.copies.get(copy) {
            Some(_) if endings.has_ended(copy) => {}
            Some(state) => {
                let one = CopyInHand::new(delivery, endings, copy, state.clone());
                waiting.extend(one.try_once(&mut early));
            }
            None => {
                let end = left::leave_until_due(&delivery, destination);
                endings.copy_ended(copy, end, Phases::default());
            }
        }
    }
    drop(early);
    wait_for_others(&delivery, waiting);
}

/// Waits for copies that other deliveries hold, with pauses at random, until each has ended or
/// there is no more patience: they are claimed again, and tried where they are free by then. A
/// delivery that waits holds no session that others need.
fn wait_for_others(delivery: &Delivery<'_>, waiting: Vec<CopyInHand<'_>>) {
    let Means { policy, store, deadline, .. } = delivery.means;
    let mut waiting: Vec<_> = waiting.into_iter().filter_map(CopyInHand::unless_kept).collect();
    let mut patience = Patience::new(policy.wait, deadline);
    loop {
        let began = deadline.now();
        if !policy.keeps_sessions {
            waiting.iter().for_each(|one| store.let_go(&one.destination().account));
        }
        if waiting.is_empty() || !patience.wait() {
            break;
        }
        let waited = deadline.now() - began;
        waiting.iter_mut().for_each(|one| one.waited(waited));
        claim_busy(delivery, &mut waiting);
        waiting = waiting.into_iter().filter_map(|one| one.try_once(&mut None)).collect();
    }
    // All are asked for first: to give one up may keep the message's bytes.
    let waiting: Vec<_> = waiting.into_iter().filter_map(CopyInHand::unless_kept).collect();
    waiting.into_iter().for_each(CopyInHand::give_up);
}

/// Claims again those that others held.
fn claim_busy(delivery: &Delivery<'_>, waiting: &mut [CopyInHand<'_>]) {
    let mut busy: Vec<_> = waiting.iter_mut().filter(|one| one.is_busy()).collect();
    let wanted: Vec<Destination> = busy.iter().map(|one| one.destination().clone()).collect();
    if wanted.is_empty() {
        return;
    }
    match delivery.claim(&wanted) {
        Ok(states) => busy.iter_mut().zip(states).for_each(|(one, state)| one.claimed(Ok(state))),
        Err(error) => busy.iter_mut().for_each(|one| one.claimed(Err(error.clone()))),
    }
}

/// Puts on record how it ended for each recipient. If all have one ending, no recipient
/// hears "delivered" whose end is not on record: Postfix comes again, and finds the copies placed.
fn finish(delivery: &Delivery<'_>, known: &Endings<'_>) -> Vec<Ending> {
    let Delivery { job, means, recorded, .. } = delivery;
    let Means { ledger, deadline, watch, .. } = *means;
    let mut endings = known.all();
    let first = job.first();
    let took = deadline.now() - job.started;
    let end = |at: usize| endings::attempt_end_of(job, at, &endings, took);
    let others: Vec<_> =
        (0..endings.len()).filter(|at| *at != first).map(|at| (job.attempt(at), end(at))).collect();
    let own = (!known.is_recorded()).then(|| end(first));
    if own.is_some() || !others.is_empty() {
        let own = own.as_ref().map(|end| (recorded.attempt, delivery.attempt, end));
        let identity = job.message.identity();
        let finish = |until| ledger.finish(identity, own, &others, until);
        let finished = match (known.lack_the_ledger(), others.is_empty()) {
            // It is not asked once more after the deadline: the process ends then, and
            // could not cancel the call.
            (true, _) => finish(deadline.end()),
            // A second call would put the others on record twice.
            (false, false) => finish(means.insist_until()),
            (false, true) => means.insisting(finish),
        };
        if let (Err(error), true) = (&finished, known.are_recorded_first()) {
            endings::not_on_record(&mut endings, error);
        }
        note(finished);
    }
    if known.are_recorded_first() {
        endings.iter().enumerate().for_each(|(at, ending)| watch.ended(at, ending));
    }
    endings
}

/// Ends a delivery where nothing could be recorded, or nothing may be written. The endings go on
/// record if the ledger is there.
pub fn fail(job: &DeliveryRequest<'_>, failure: &Failure, means: Means<'_>) -> Vec<Ending> {
    let Means { ledger, deadline, watch, .. } = means;
    let endings = endings::of_failure(job, failure);
    endings.iter().enumerate().for_each(|(at, ending)| watch.ended(at, ending));
    if !failure.is_unrecorded() {
        let took = deadline.now() - job.started;
        let end = |at: usize| endings::attempt_end_of(job, at, &endings, took);
        let ended: Vec<_> = (0..endings.len()).map(|at| (job.attempt(at), end(at))).collect();
        note(ledger.finish(job.message.identity(), None, &ended, deadline.end()));
    }
    endings
}

/// Puts on record how it ended for those recipients, by their places in the envelope, if it
/// is not known now where their mail goes.
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
            (attempt, endings::attempt_end(&ending.outcome, ending.reason, took))
        })
        .collect();
    note(ledger.finish(message.identity(), None, &ends, until));
}

/// Waiting for others, with jitter, bounded in all.
#[derive(Debug)]
struct Patience<'a> {
    left: Duration,
    pause: Duration,
    deadline: &'a Deadline,
}

impl Patience<'_> {
    const FIRST_PAUSE: Duration = Duration::from_millis(4);
    const LONGEST_PAUSE: Duration = Duration::from_millis(100);

    /// Patience of `total`, which ends with the deadline at the latest.
    fn new(total: Duration, deadline: &Deadline) -> Patience<'_> {
        Patience { left: total, pause: Self::FIRST_PAUSE, deadline }
    }

    /// Sleeps a little; false when there is no patience left.
    fn wait(&mut self) -> bool {
        let left = self.left.min(self.deadline.left());
        if left.is_zero() {
            return false;
        }
        let random = self.deadline.clock().random();
        let half = self.pause / 2;
        let pause = (half + half.mul_f64((random % 1024) as f64 / 512.0)).min(left);
        self.deadline.clock().sleep(pause);
        self.left = self.left.saturating_sub(pause);
        self.pause = (self.pause * 3 / 2).min(Self::LONGEST_PAUSE);
        true
    }
}
