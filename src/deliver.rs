//! The protocol: record the message, then place each copy once, whoever else is trying and wherever
//! a process dies. Nothing here knows an engine; the ledger gives locks, leases and receipts, the
//! store appends and looks.
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
//! A shared copy (Sent) that the store does not take, or that is in doubt or out of reach, keeps no
//! mail from a recipient: its bytes go on record, in their own transaction, before its lease is
//! given back; `onedrop verify --repair` places it. Where another delivery holds it, Postfix comes
//! again: that one may have been killed, and the next one places it. A crash before that leaves
//! what stands above, and no recipient has been told "delivered".
//!
//! A copy without doubt is placed under its lease alone: no transaction of the ledger is open while
//! a mail server takes its time. In doubt it takes a turn first (`take_turn`: the copy's lock, and
//! the row re-read), which ends with `confirm`.
//!
//! A single copy's append may begin before the record: nothing of it is stored until its last
//! bytes, so up to there a crash leaves what the record leaves.
//!
//! Where the store's append is idempotent (Maildir: the copy's key names the file) a live lease is
//! joined instead of waited for. Then the store's own lock of the copy keeps others out, held from
//! before the row was read until the receipt is on record: from before the turn (`hold`), or from
//! before the record (`begin`), which makes a claim without doubt a turn already. That lock ends
//! with its process, not with the ledger's session. What hangs before the record, a mailbox' disk
//! say, leaves no trace in the ledger.
//!
//! `tests/model` is a model of this protocol that is checked exhaustively; it shares no code
//! with it. Its steps have the names used here: `begin`, `record`, `take_turn`, `look`, `check`,
//! `not stored`, `last bytes`, `OK`, `in doubt`, `confirm`, `reopen`, `keep`, `undo`, `expunge`,
//! `give_back`, `claim_busy`. Whoever changes one changes it there.

use std::ops::AddAssign;
use std::time::{Duration, Instant, SystemTime};

use crate::config::Config;
use crate::deadline::Deadline;
use crate::directory::Destination;
use crate::ledger::{Attempt, AttemptEnd, Entry, LeaseTerms, Ledger, LedgerError, Recorded};
use crate::lock_key::Hash;
use crate::message::{Facts, Message};
use crate::outcome::{Outcome, OverQuota};
use crate::store::{Copy, Receipt, Store};

mod patience;
mod place;
mod verdict;

pub use patience::Patience;
pub use place::{Placing, place};
pub use verdict::Failure;

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
    /// Trace fields to prepend to recipients' own copies; empty where they stand in the message.
    pub head: &'a [u8],
    pub facts: &'a Facts,
    pub attempt: &'a Attempt,
    pub destinations: &'a [Destination],
    pub started: Instant,
    /// See [`Entry::at`].
    pub at: Option<SystemTime>,
    /// With several recipients only the caller knows how the attempt ended for each, and puts that
    /// on record.
    pub is_part: bool,
}

/// What the parts of a delivery took, and how often it waited for others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Phases {
    /// The copy's turn, if it takes one, and waiting for others who hold a lock or a lease.
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

impl How {
    /// As texts and logs say it.
    pub fn name(self) -> &'static str {
        match self {
            How::Stored => "stored",
            How::AlreadyThere => "already there",
            How::Found => "found",
        }
    }
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
        write!(f, "{} {} {}", self.how.name(), self.destination, self.receipt)
    }
}

/// What a delivery came to: one end for each destination, in their order.
#[derive(Debug)]
pub struct Report {
    pub recorded: Recorded,
    pub destinations: Vec<Destination>,
    pub ends: Vec<End>,
    pub phases: Phases,
}

/// How the placing of one copy ended.
pub type End = Result<Placed, Failure>;

impl Report {
    /// Delivered if and only if every copy is placed, or kept for later.
    pub fn outcome(&self, over_quota: OverQuota) -> Outcome {
        outcome(self.ends.iter(), over_quota)
    }
}

/// Delivered if and only if every copy is placed, or kept for later ([`Failure::KeptForLater`]).
pub fn outcome<'a>(ends: impl Iterator<Item = &'a End>, over_quota: OverQuota) -> Outcome {
    ends.map(|end| match end {
        Ok(placed) => Outcome::Delivered(placed.to_string()),
        Err(failure) => failure.outcome(over_quota),
    })
    .reduce(Outcome::worst)
    .unwrap_or_else(|| Outcome::Delivered("nothing to do".to_owned()))
}

/// Delivers one message to its destinations.
///
/// # Errors
/// The message could not be recorded; nothing was placed. Failures of single copies are in the
/// [`Report`].
pub fn deliver(
    job: &Job<'_>,
    policy: &Policy,
    ledger: &mut dyn Ledger,
    store: &mut dyn Store,
    deadline: &Deadline,
) -> Result<Report, Failure> {
    let mut patience = Patience::new(policy.wait, deadline);
    let (recorded, mut phases) = record(job, policy, ledger, store, deadline, &mut patience)?;
    let placing = place(job, policy, &recorded, ledger, store, deadline, &mut patience);
    phases += placing.phases;
    let report =
        Report { recorded, destinations: job.destinations.to_vec(), ends: placing.ends, phases };
    if !placing.end_recorded && !job.is_part {
        let end = job.attempt_end(&report.outcome(policy.over_quota));
        note(ledger.finish(report.recorded.attempt, &end));
    }
    Ok(report)
}

/// Records the message and claims its copies; from here a crash leaves a trace. Step `record` of
/// the model. A single copy's append is begun before, so that the store and the ledger are at it at
/// the same time; only `place` lets it take effect.
///
/// # Errors
/// Nothing is on record but, perhaps, the attempt; or the ledger was lost and nobody knows.
pub fn record(
    job: &Job<'_>,
    policy: &Policy,
    ledger: &mut dyn Ledger,
    store: &mut dyn Store,
    deadline: &Deadline,
    patience: &mut Patience<'_>,
) -> Result<(Recorded, Phases), Failure> {
    if let ([destination], Some(at)) = (job.destinations, job.at) {
        let key = job.copy_key(destination);
        store.begin_append(destination, &job.copy(destination, &key, at), deadline);
    }
    let terms = policy.terms(store.append_is_idempotent());
    let mut phases = Phases::default();
    let message = job.message;
    let nul_runs = message.nul_runs().map(|runs| runs.encode());
    let entry = Entry {
        identity: message.identity(),
        facts: job.facts,
        size_bytes: message.own_copy().len() as u64,
        raw: policy.keep_raw.then(|| message.received()),
        nul_runs: nul_runs.as_deref(),
        at: job.at,
    };
    loop {
        let began = Instant::now();
        let recorded = ledger.record(&entry, job.attempt, job.destinations, terms);
        if matches!(recorded, Err(LedgerError::Contended)) {
            store.let_go();
            if patience.wait() {
                phases.waits += 1;
                phases.lock += began.elapsed();
                continue;
            }
        }
        phases.record += began.elapsed();
        match recorded {
            Err(LedgerError::Contended) => {
                let failure = Failure::Contended("the lock on its Message-ID".to_owned());
                let outcome = failure.outcome(policy.over_quota);
                let ended = (job.attempt.clone(), job.attempt_end(&outcome));
                note(ledger.note_attempts(message.identity(), &[ended]));
                return Err(failure);
            }
            Err(error) => return Err(error.into()),
            Ok(recorded) => return Ok((recorded, phases)),
        }
    }
}

impl Policy {
    pub fn of(config: &Config) -> Policy {
        Policy {
            lease: Duration::from_secs(config.lock.lease_secs),
            wait: Duration::from_secs(config.lock.wait_secs),
            keep_raw: config.ledger.keep_raw,
            over_quota: config.store.over_quota,
        }
    }

    /// How leases are taken in a store whose append is idempotent (`joins`) or is not.
    pub fn terms(&self, joins: bool) -> LeaseTerms {
        LeaseTerms { lease: self.lease, join: joins }
    }
}

impl Job<'_> {
    fn copy_key(&self, destination: &Destination) -> Hash {
        self.message.identity().copy_key(&destination.account, &destination.mailbox)
    }

    /// What is to stand in `destination`.
    fn copy<'a>(
        &'a self,
        destination: &Destination,
        key: &'a Hash,
        recorded_at: SystemTime,
    ) -> Copy<'a> {
        let (head, bytes) = match destination.shared {
            true => (&b""[..], self.message.shared_copy()),
            false => (self.head, self.message.own_copy()),
        };
        Copy { key, head, bytes, identity: self.message.identity(), recorded_at }
    }

    /// How the attempt ended, until now.
    pub fn attempt_end(&self, outcome: &Outcome) -> AttemptEnd {
        AttemptEnd {
            outcome: outcome.name(),
            status: outcome.status().to_string(),
            text: outcome.text().to_owned(),
            duration: self.started.elapsed(),
        }
    }
}

/// Bookkeeping that failed: the mail's fate does not hang on it, but an operator should see it.
pub fn note(result: Result<(), LedgerError>) {
    if let Err(error) = result {
        tracing::warn!(%error, "ledger bookkeeping failed");
    }
}
