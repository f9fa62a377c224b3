//! What a delivery is asked to do, what it works with, and how it answers; and what all its steps
//! share once its message is on record.

use std::ops::AddAssign;
use std::time::{Duration, Instant, SystemTime};

use super::{CopyEnd, LookBackEnd, LookBacks, Placed};
use crate::deadline::Deadline;
use crate::directory::Destination;
use crate::envelope::Envelope;
use crate::ledger::{
    Attempt, Claim, CopyState, Entry, LeaseTerms, Ledger, LedgerError, RandomValue, Recorded,
};
use crate::lock_key::Hash;
use crate::message::{self, Facts, Message};
use crate::outcome::{Outcome, OverQuota, Reason, UnknownAccount};
use crate::store::{Copy, HandOff, Store};

/// What the configuration says about a delivery.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    pub lease: Duration,
    /// How long to wait, in all, for others that hold a lock or a lease. Zero: try once.
    pub wait: Duration,
    pub keep_raw: bool,
    /// How long a shared copy is left to the sender's own mail program (`onedrop settle`). Zero: it
    /// is placed now.
    pub sent_after: Duration,
    /// `verdict.rs` alone asks for it, and for the next.
    pub over_quota: OverQuota,
    pub unknown_account: UnknownAccount,
    /// Whether the store begins on a single copy while the ledger records the message.
    pub begins_early: bool,
    /// Whether a delivery that waits for another process keeps the store's sessions that it has for
    /// the next message. A mail server may have no more for this account.
    pub keeps_sessions: bool,
    /// How many copies of one message are placed side by side: with ten recipients a message, 1.1
    /// to 2.6 times as many in a second.
    pub side_by_side: usize,
}

/// One message for its recipients.
#[derive(Debug, Clone, Copy)]
pub struct DeliveryRequest<'a> {
    pub message: &'a Message,
    pub envelope: &'a Envelope,
    /// The mailbox of each of the envelope's recipients; `None`: the address is unknown. One at
    /// least has a mailbox.
    pub own: &'a [Option<Destination>],
    /// These mailboxes, and last the shared ones; each once.
    pub destinations: &'a [Destination],
    /// Trace fields to prepend to recipients' own copies, for each destination; empty where they
    /// stand in the message.
    pub heads: &'a [Vec<u8>],
    /// This host's name.
    pub host: &'a str,
    pub started: Instant,
    /// See [`Entry::oldest`](crate::ledger::Entry::oldest).
    pub oldest: Option<SystemTime>,
    /// All recipients share one ending, the process' exit status; else each has its own.
    pub one_ending: bool,
}

impl<'a> DeliveryRequest<'a> {
    /// What names each destination's copy in all the world.
    pub(super) fn copy_keys(&self) -> Vec<Hash> {
        let identity = self.message.identity();
        let key = |one: &Destination| identity.copy_key(&one.account, &one.mailbox);
        self.destinations.iter().map(key).collect()
    }

    /// The destinations that are claimed now. The others are left to `onedrop settle`; they are
    /// shared, and so they are the last ones.
    pub fn claimed(&self, policy: &Policy) -> &'a [Destination] {
        let now = match policy.sent_after.is_zero() {
            true => self.destinations.len(),
            false => self.destinations.iter().take_while(|one| !one.shared).count(),
        };
        &self.destinations[..now]
    }

    /// What goes on record of the message; no copy's name hangs on fields.
    pub(super) fn entry<'e>(
        &'e self,
        policy: &Policy,
        (facts, nul_runs): (&'e Facts, Option<&'e [u8]>),
        at: Option<SystemTime>,
    ) -> Entry<'e> {
        Entry {
            identity: self.message.identity(),
            facts,
            size_bytes: self.message.own_copy().len() as u64,
            raw: policy.keep_raw.then(|| self.message.received()),
            nul_runs,
            at,
            oldest: self.oldest,
            fields: None,
        }
    }

    /// What is to stand in a destination, or, with the claim of a copy that the store hands over,
    /// what the mail server's own delivery is given: without the fields that it adds itself.
    pub(super) fn copy(
        &self,
        at: usize,
        key: &'a Hash,
        recorded_at: SystemTime,
        handed: Option<&Claim>,
    ) -> Copy<'a> {
        let destination = &self.destinations[at];
        let head = self.heads.get(at).map_or(&b""[..], Vec::as_slice);
        let (head, bytes) = match (destination.shared, handed) {
            (true, _) => (&b""[..], self.message.shared_copy()),
            (false, Some(_)) => (message::without_recipient(head), self.message.shared_copy()),
            (false, None) => (head, self.message.own_copy()),
        };
        let is_its = |own: &Option<Destination>| {
            own.as_ref().is_some_and(|own| own.is_same_mailbox(destination))
        };
        let recipient = self.own.iter().position(is_its).unwrap_or(0);
        let handed = handed.map(|claim| HandOff {
            value: claim.value.array(),
            epoch: claim.epoch,
            again: false,
            sender: &self.envelope.sender,
            recipient: self.envelope.recipients.get(recipient).map_or("", String::as_str),
            filter_fields: "",
        });
        let identity = self.message.identity();
        let (looks_back, looked, newer_than) = (false, None, None);
        Copy { key, head, bytes, identity, recorded_at, looks_back, looked, newer_than, handed }
    }

    /// The first recipient that has a mailbox.
    pub(super) fn first(&self) -> usize {
        self.own.iter().position(Option::is_some).unwrap_or(0)
    }

    /// The try to deliver to a recipient.
    pub(super) fn attempt(&self, recipient: usize) -> Attempt {
        attempt_for(self.envelope, recipient, self.host)
    }
}

/// The try to deliver to one of the envelope's recipients.
pub(super) fn attempt_for(envelope: &Envelope, recipient: usize, host: &str) -> Attempt {
    Attempt {
        value: RandomValue::default(),
        recipient: envelope.recipients.get(recipient).map_or("", String::as_str).to_lowercase(),
        sender: envelope.sender.clone(),
        queue_id: envelope.queue_id.clone(),
        host: host.to_owned(),
        pid: std::process::id(),
    }
}

/// What the parts of a delivery took, and how often it waited for others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Phases {
    /// The copy's turn, if it takes one, and waiting for others that hold a lock or a lease.
    pub lock: Duration,
    /// The record: the message's lock, the message, the claims, their commit.
    pub record: Duration,
    /// The store: an append, and the look before it.
    pub append: Duration,
    /// The receipt and its commit.
    pub commit: Duration,
    pub waits: u32,
}

impl AddAssign for Phases {
    fn add_assign(&mut self, other: Phases) {
        self.lock += other.lock;
        self.record += other.record;
        self.append += other.append;
        self.commit += other.commit;
        self.waits += other.waits;
    }
}

/// How the delivery to one recipient ended, and what it took.
#[derive(Debug, Clone)]
pub struct Ending {
    pub outcome: Outcome,
    /// `None`: another process delivered, and its reply says the outcome alone.
    pub reason: Option<Reason>,
    /// The recipient's; `None` where the address is unknown.
    pub account: Option<String>,
    /// The recipient's own copy, if it is placed.
    pub own: Option<Placed>,
    /// Another message with the same Message-ID is on record.
    pub collision: bool,
    /// No ledger has it: only this host's log does.
    pub unrecorded: bool,
    pub phases: Phases,
}

impl Ending {
    /// With nothing known but how it ended.
    pub fn of(outcome: Outcome) -> Ending {
        Ending {
            outcome,
            reason: None,
            account: None,
            own: None,
            collision: false,
            unrecorded: false,
            phases: Phases::default(),
        }
    }
}

/// Hears of a delivery's steps while it goes on, from any of its threads.
pub trait Watch: Sync {
    fn recorded(&self, _recorded: &Recorded, _phases: &Phases) {}

    /// The message is not on record; what it waited for others counts nevertheless.
    fn not_recorded(&self, _waits: u32) {}

    /// A copy was to be looked for among all that is in its mailbox.
    fn looked_back(&self, _end: &LookBackEnd) {}

    fn copy_ended(&self, _end: &CopyEnd, _phases: &Phases) {}

    /// All is decided for a recipient, by its number in the envelope.
    fn ended(&self, _recipient: usize, _ending: &Ending) {}
}

/// For a caller that needs no word of the steps.
impl Watch for () {}

/// What a delivery works with.
#[derive(Clone, Copy)]
pub struct Means<'a> {
    pub policy: &'a Policy,
    pub ledger: &'a dyn Ledger,
    pub store: &'a dyn Store,
    pub deadline: &'a Deadline,
    pub watch: &'a dyn Watch,
    pub look_backs: &'a dyn LookBacks,
}

/// Between two tries to reach a ledger that was lost while a copy was written.
const CONFIRM_PAUSE: Duration = Duration::from_millis(250);

impl Means<'_> {
    /// How leases are taken.
    pub fn terms(&self) -> LeaseTerms {
        let join = self.store.append_is_idempotent();
        LeaseTerms { lease: self.policy.lease, join, due: false }
    }

    /// Runs `work` and adds to `phase` how long it took.
    pub(super) fn timed<T>(&self, phase: &mut Duration, work: impl FnOnce() -> T) -> T {
        let began = self.deadline.now();
        let result = work();
        *phase += self.deadline.now() - began;
        result
    }

    /// A call on which a mail's fate hangs: a ledger that was lost, or a row that another session
    /// holds, is worth another try. Step `reopen` of the model.
    pub(super) fn insisting<T>(
        &self,
        mut call: impl FnMut(Instant) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        let (deadline, until) = (self.deadline, self.insist_until());
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
    pub(super) fn insist_until(&self) -> Instant {
        match self.deadline.left().is_zero() {
            true => self.deadline.answer_until(),
            false => self.deadline.end(),
        }
    }
}

/// A delivery whose message is on record: what its threads share, and none of them changes.
#[derive(Clone, Copy)]
pub(super) struct Delivery<'a> {
    pub job: &'a DeliveryRequest<'a>,
    pub means: Means<'a>,
    /// Of each destination.
    pub keys: &'a [Hash],
    pub attempt: &'a Attempt,
    pub recorded: &'a Recorded,
}

impl Delivery<'_> {
    /// Claims copies again that others held: placed by now, free by now, or still busy. Step
    /// `claim_busy` of the model.
    pub fn claim(&self, wanted: &[Destination]) -> Result<Vec<CopyState>, LedgerError> {
        // Its leases are another call's than the record's: what that one left in doubt stays
        // leased.
        let owner = Attempt { value: RandomValue::default(), ..self.attempt.clone() };
        let (terms, until) = (self.means.terms(), self.means.insist_until());
        match self.means.ledger.claim(&self.recorded.message, wanted, &owner, terms, until) {
            // A deadlock that was ended at this call's cost: another delivery has the rows.
            Err(LedgerError::Contended) => Ok(vec![CopyState::Busy; wanted.len()]),
            claimed => claimed,
        }
    }

    /// Gives back a lease under which certainly nothing was written, so that the next attempt need
    /// not wait for it.
    pub fn release(&self, claim: &Claim) {
        let Means { ledger, deadline, .. } = self.means;
        note(ledger.release(std::slice::from_ref(claim), deadline.end()));
    }
}

/// Bookkeeping that failed: the mail's fate does not hang on it, but an operator should see it.
pub(super) fn note(result: Result<(), LedgerError>) {
    if let Err(error) = result {
        tracing::warn!(%error, "ledger bookkeeping failed");
    }
}
