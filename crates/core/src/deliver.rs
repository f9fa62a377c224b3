//! The protocol: record the message, then place each copy once, however many others try and
//! wherever a process dies. The command and the server run it. It knows no engine: the ledger gives
//! leases, turns and receipts, the store looks and appends. What a crash leaves stands at
//! [`deliver`].
//!
//! A copy without doubt is placed under its lease alone, so that no transaction of the ledger is
//! open while a mail server takes its time. In doubt, and where leases are joined, it takes a turn.
//!
//! `tests/model` is a model of this protocol that is checked exhaustively, `tests/simulation` runs
//! this code under faults. The model's steps have the names used here: `begin`, `record`,
//! `take_turn`, `look`, `check`, `not stored`, `last bytes`, `OK`, `in doubt`, `confirm`, `reopen`,
//! `keep`, `undo`, `expunge`, `give_back`, `claim_busy`. A change here is made there as well.

use std::ops::AddAssign;
use std::time::{Duration, Instant, SystemTime};

use crate::deadline::Deadline;
use crate::directory::Destination;
use crate::envelope::Envelope;
use crate::ledger::{
    Attempt, Claim, Entry, FilterFields, LeaseTerms, Ledger, LedgerError, Recorded,
};
use crate::lock_key::Hash;
use crate::message::{self, Message};
use crate::outcome::{Outcome, OverQuota, Reason, UnknownAccount};
use crate::store::{Copy, HandOff, Need, Slot, Store};

mod endings;
pub mod guard;
mod look_back;
mod named;
mod place;
mod placed;
mod stand_in;
mod verdict;
mod waiting;

pub use endings::{fail, note_unrouted};
pub use look_back::{LookBackEnd, LookBackRequest, LookBacks};
use named::Named;
use place::Placing;
pub use placed::{How, Placed};
pub use verdict::Failure;

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
    /// The mailbox of each of the envelope's recipients; `None`: nobody has that address. One at
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
    /// As in [`Entry`].
    pub oldest: Option<SystemTime>,
    /// All recipients share one ending, the process' exit status; else each has its own.
    pub one_ending: bool,
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

/// How the placing of one copy ended.
pub type CopyResult = Result<Placed, Failure>;

/// How the delivery to one recipient ended, and what it took.
#[derive(Debug, Clone)]
pub struct Ending {
    pub outcome: Outcome,
    /// `None`: another process delivered, and its reply says the outcome alone.
    pub reason: Option<Reason>,
    /// The recipient's; `None` where nobody has the address.
    pub account: Option<String>,
    /// The recipient's own copy, if it is placed.
    pub own: Option<Placed>,
    /// Another message with the same Message-ID is on record.
    pub collision: bool,
    /// No ledger has it: this host's log alone tells it.
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

    fn copy_ended(&self, _end: &CopyResult, _phases: &Phases) {}

    /// All is decided for a recipient, by its number in the envelope.
    fn ended(&self, _recipient: usize, _ending: &Ending) {}
}

/// Nobody needs to hear of the steps.
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

/// Delivers one message: records it, places each copy, and puts on record how that ended for each
/// recipient. Returns the endings in the envelope's order; for a recipient it is "delivered" if and
/// only if every copy that concerns it is placed, or kept for later.
///
/// | crash after                 | left behind            | next attempt               |
/// |-----------------------------|------------------------|----------------------------|
/// | reading the message         | nothing                | from the start             |
/// | `record`                    | message, leased copies | lease ends: looks, appends |
/// | `append`: before last bytes | as above               | as above                   |
/// | `append`: sent, no OK seen  | a copy, or none        | looks: confirms or appends |
/// | `append`: OK seen           | a copy, no receipt     | looks: confirms            |
/// | `confirm`                   | a copy, placed         | sees `placed`              |
///
/// A message that is older than what the ledger remembers, and one whose record was forgotten, is
/// claimed in doubt, and its look has no bound of date, at every attempt: the mailbox remembers.
///
/// A recipient's copy whose mailbox is not there, or not open to us, goes to INBOX: first its row
/// gets the receipt [`Elsewhere`](crate::store::Receipt::Elsewhere), then INBOX is claimed as for
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
pub fn deliver(job: &DeliveryRequest<'_>, means: Means<'_>) -> Vec<Ending> {
    match Named::new(job, means, false) {
        Ok(named) => deliver_named(job, &named, means, true),
        Err(error) => fail(job, &error.into(), means),
    }
}

/// As [`deliver`], to copies of these names. If the ledger says that they are named by a list of
/// fields that is not on record any more, they are named once more.
fn deliver_named(
    plain: &DeliveryRequest<'_>,
    named: &Named,
    means: Means<'_>,
    may_rename: bool,
) -> Vec<Ending> {
    let job = &named.request(plain);
    let keys = job.copy_keys();
    let mut early = begin_early(job, &keys, means);
    let attempt = job.attempt(job.first());
    let mut phases = Phases::default();
    let fields = named.fields.as_ref();
    let recorded = match record(job, &attempt, fields, means, &mut early, &mut phases) {
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
    let placing = Placing::new(job, means, &keys, &attempt, &recorded, phases);
    match job.destinations.len() {
        0 | 1 => placing.work(early),
        copies => {
            let threads = means.policy.side_by_side.clamp(1, copies);
            means.deadline.clock().side_by_side(threads, &|| placing.work(None));
        }
    }
    placing.finish()
}

/// Places the only copy of a message that is on record already, for no recipient.
pub fn place(
    job: &DeliveryRequest<'_>,
    means: Means<'_>,
    attempt: &Attempt,
    recorded: &Recorded,
) -> CopyResult {
    let keys = job.copy_keys();
    let placing = Placing::new(job, means, &keys, attempt, recorded, Phases::default());
    placing.work(None);
    placing.only_end()
}

/// A slot for a single copy, reserved before the record with the date that the record should have.
type Early<'a> = Option<(SystemTime, Box<dyn Slot + 'a>)>;

/// Has the store begin on a single copy while the ledger records the message; the stores say what
/// that brings. What stands in the way shows when the copy is placed.
fn begin_early<'a>(job: &'a DeliveryRequest<'a>, keys: &'a [Hash], means: Means<'a>) -> Early<'a> {
    let [destination] = job.destinations else { return None };
    // What is handed over says by which claim.
    if !means.policy.begins_early || means.store.hands_over(destination) {
        return None;
    }
    let at = means.ledger.time();
    let copy = job.copy(0, keys, at, None);
    let slot = means.store.reserve(destination, copy, Need::Early, means.deadline);
    Some((at, slot.ok().flatten()?))
}

/// Records the message and claims its copies; from here a crash leaves a trace. Step `record` of
/// the model.
///
/// # Errors
/// Nothing is on record; or the ledger was lost, and nobody knows.
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
    let entry = Entry {
        identity: job.message.identity(),
        facts: &job.message.facts(),
        size_bytes: job.message.own_copy().len() as u64,
        raw: policy.keep_raw.then(|| job.message.received()),
        nul_runs: nul_runs.as_deref(),
        at: early.as_ref().map(|(at, _)| *at),
        oldest: job.oldest,
        fields,
    };
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

impl Means<'_> {
    /// How leases are taken.
    pub fn terms(&self) -> LeaseTerms {
        let join = self.store.append_is_idempotent();
        LeaseTerms { lease: self.policy.lease, join, due: false }
    }

    /// Runs `work` and adds to `phase` how long it took.
    fn timed<T>(&self, phase: &mut Duration, work: impl FnOnce() -> T) -> T {
        let began = self.deadline.now();
        let result = work();
        *phase += self.deadline.now() - began;
        result
    }
}

impl<'a> DeliveryRequest<'a> {
    /// What names each destination's copy in all the world.
    fn copy_keys(&self) -> Vec<Hash> {
        let identity = self.message.identity();
        let key = |one: &Destination| identity.copy_key(&one.account, &one.mailbox);
        self.destinations.iter().map(key).collect()
    }

    /// The destinations that are claimed now. The others are left to `onedrop settle`; they are
    /// shared, and so they are the last ones.
    fn claimed(&self, policy: &Policy) -> &'a [Destination] {
        let now = match policy.sent_after.is_zero() {
            true => self.destinations.len(),
            false => self.destinations.iter().take_while(|one| !one.shared).count(),
        };
        &self.destinations[..now]
    }

    /// What is to stand in a destination, or, with the claim of a copy that the store hands over,
    /// what the mail server's own delivery is given: without the fields that it adds itself.
    fn copy(
        &self,
        at: usize,
        keys: &'a [Hash],
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
        let (key, identity) = (&keys[at], self.message.identity());
        let (looks_back, looked, newer_than) = (false, None, None);
        Copy { key, head, bytes, identity, recorded_at, looks_back, looked, newer_than, handed }
    }
}

/// Bookkeeping that failed: the mail's fate does not hang on it, but an operator should see it.
fn note(result: Result<(), LedgerError>) {
    if let Err(error) = result {
        tracing::warn!(%error, "ledger bookkeeping failed");
    }
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
