//! What `onedrop purge`, `onedrop forget` and `onedrop replay` ask of a ledger: that it forgets
//! what is older than it is to remember, lets copies in again, and gives out the bytes that it
//! kept.
//!
//! A message goes as a whole, its key and its copies in one transaction, and with it moves the time
//! since which the ledger remembers: whoever records the message afterwards sees both. No call
//! touches a copy that is not placed and whose lease lives or ended less than [`LATE`] ago: its
//! holder may still write. A crash between two calls leaves less to do for the next run.

use std::time::{Duration, Instant, SystemTime};

use super::LedgerError;
use crate::directory::Destination;
use crate::message::Identity;
use crate::receipt::Receipt;

/// This long after the end of its lease a process is held to be gone.
pub const LATE: Duration = Duration::from_secs(3600);

/// What a purge takes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurgeWhat {
    /// Messages that were recorded before, with their copies, attempts and bytes. One stays whose
    /// bytes are [kept](super::Ledger::keep) for a copy that is not placed, or that has a copy
    /// whose lease lives or ended less than [`LATE`] ago.
    Messages,
    /// Attempts that recorded no message, or one whose facts are erased, and were begun before.
    Attempts,
    /// Who wrote to whom about what, of messages that were recorded before, and their attempts that
    /// were begun before; keys and copies stay.
    Facts,
    /// The bytes of whole messages (`ledger.keep_raw`) that were put there before.
    Raw,
    /// The bytes of shared copies that were put there before and that could not be placed: one that
    /// is due, and was not tried yet, keeps them.
    Kept,
}

impl PurgeWhat {
    /// In the order in which a purge takes them.
    pub const ALL: [PurgeWhat; 5] = [
        PurgeWhat::Raw,
        PurgeWhat::Kept,
        PurgeWhat::Facts,
        PurgeWhat::Messages,
        PurgeWhat::Attempts,
    ];
}

/// Where a purge goes on: the time, in seconds since 1970, and the number of the last row that it
/// has dealt with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PurgeCursor {
    pub secs: i64,
    pub row: i64,
}

/// How much one call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchTerms {
    /// Maximum number of rows.
    pub limit: u32,
    /// Only counts and reports.
    pub dry_run: bool,
}

/// What one call did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PurgeBatch {
    pub gone: u64,
    /// Old enough, and not to be touched yet.
    pub passed_by: u64,
    /// `None`: there is nothing more.
    pub next: Option<PurgeCursor>,
}

/// Since when a ledger remembers, by its clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remembered {
    /// Whatever was recorded since then is on record, or was forgotten by name; of the first ledger
    /// of a site its birth. `None`: for ever.
    pub since: Option<SystemTime>,
    /// How long ago that is.
    pub since_ago: Duration,
    /// How long ago a purge came to its end; `None`: none did.
    pub purged_ago: Option<Duration>,
}

/// What is to be forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForgetWhat<'a> {
    /// The copies of the messages with this Message-ID, in angle brackets or not.
    Message(&'a str),
    /// The copies that were placed since then.
    Since(SystemTime),
    /// All that is known of an account, and of messages that it has or had a copy of.
    Account(&'a str),
}

/// Why a copy is not touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassedBy {
    /// It is not placed, and its lease lives or ended less than [`LATE`] ago.
    Lease,
    /// Erasing an account would erase the Message-ID by which [`Settling`](super::Settling) looks
    /// for the message in another's Sent: its bytes are kept for that, or the copy is watched.
    Sent,
}

/// A copy that was, or would be, forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForgottenCopy {
    pub message_id: Option<Vec<u8>>,
    pub destination: Destination,
    pub passed_by: Option<PassedBy>,
    /// The bytes of its message are on record.
    pub has_raw: bool,
}

/// What one call did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForgetBatch {
    pub copies: Vec<ForgottenCopy>,
    /// The number of the last row that was looked at; `None`: there is nothing more.
    pub next: Option<i64>,
}

/// A message whose bytes are on record (`ledger.keep_raw`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawMessage {
    /// Its row.
    pub message: i64,
    pub identity: Identity,
    pub recorded_at: SystemTime,
    /// The envelope's; empty: the null sender, or it was erased.
    pub sender: String,
    /// The bytes as received.
    pub bytes: Vec<u8>,
    /// Where its copies belong that are on record, each with its receipt if it is placed.
    pub copies: Vec<(Destination, Option<Receipt>)>,
}

/// What purge, forget and replay ask of a ledger.
pub trait Retention: Send + Sync {
    /// Takes out what is older than `older_than` by the ledger's clock, those after `after`, in one
    /// durable transaction. Of messages, what another session holds is left for the next run: it
    /// waits for no delivery. Where another session was in its way nothing of it holds
    /// (`Contended`): the caller tries again.
    fn purge(
        &self,
        what: PurgeWhat,
        older_than: Duration,
        after: Option<PurgeCursor>,
        how: BatchTerms,
        until: Instant,
    ) -> Result<PurgeBatch, LedgerError>;

    /// Puts on record that a purge has come to its end just now.
    fn note_purge(&self, until: Instant) -> Result<(), LedgerError>;

    /// Takes out the hosts that were not seen for this time, or only counts them; says how many.
    fn forget_hosts(
        &self,
        not_seen_for: Duration,
        dry_run: bool,
        until: Instant,
    ) -> Result<u64, LedgerError>;

    fn remembered(&self, until: Instant) -> Result<Remembered, LedgerError>;

    /// Puts on record that the site had no ledger before this one: it has then remembered since
    /// 1970, so that no message of ours is too old for it; one of unknown age still is. False, and
    /// nothing is changed, where it has messages, or a purge may have taken some out: what it
    /// remembers is known better then.
    fn be_first(&self, until: Instant) -> Result<bool, LedgerError>;

    /// Forgets copies, those after the row `after`, in one durable transaction. By Message-ID and
    /// by time: they are free, in doubt and [look back](super::Claim::looks_back), under another
    /// random value, so that no claim of before counts; one that settle has not written yet stays
    /// due. By account: their rows go, with the facts, attempts and bytes of their messages; of
    /// these the hashes and the time stay, and mail of theirs that comes again looks back. What may
    /// not be forgotten yet is [passed by](PassedBy).
    fn forget(
        &self,
        what: ForgetWhat<'_>,
        after: i64,
        how: BatchTerms,
        until: Instant,
    ) -> Result<ForgetBatch, LedgerError>;

    /// The next message, after the row `after`, whose bytes are on record and that was recorded
    /// since then.
    fn next_raw(
        &self,
        since: SystemTime,
        after: i64,
        until: Instant,
    ) -> Result<Option<RawMessage>, LedgerError>;
}
