//! The ledger: the SQL record of messages, their copies and every attempt to deliver them, and the
//! locks and leases that keep two deliveries from writing the same copy. Here stand the values that
//! its [`port`] speaks in. Adapters: `postgres`, `mariadb` and `sqlite`, each the sessions of one
//! engine in `pooled`, and `memory`; all run the ledger's contract suite.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::{Duration, SystemTime};

use crate::lock_key::{self, Hash};
use crate::message::{Facts, Identity};
use crate::outcome::Reason;
use crate::receipt::Receipt;

pub mod claim;
mod doubts;
mod durability;
mod jobs;
mod locks;
#[cfg(any(test, feature = "memory"))]
pub mod memory;
mod migration;
mod on_record;
mod overview;
mod pages;
mod port;
mod retention;
mod schema_version;
mod settling;
mod shared_config;
mod trace;
pub mod units;

pub use doubts::CopyDoubt;
pub use durability::{Durability, Lasting};
pub use jobs::{
    JobChange, JobOutcome, JobPause, JobRow, JobRun, JobTrigger, Jobs, JobsOnRecord, OUTPUT_BYTES,
    kept_time, of_millis, time_millis,
};
pub use locks::{
    BusyLock, LockClaim, LockHolder, LockRequest, LockRow, LockTheft, LockTry, LockWaiter, Locks,
    PLACE_LASTS, first_free, must_keep_its_place,
};
pub use migration::{ANOTHER_MIGRATION, Migration, MigrationStep, PlannedStep, Program, row_count};
pub use on_record::{
    CLAIMED_WITHIN, CopyOnRecord, DueTime, SETTLED_WITHIN, Standing, WATCH, Window,
};
pub use overview::{
    AttemptCount, HOSTS_FOR, HostRow, MOST_ATTEMPTS, MOST_COPIES, MOST_HOSTS, MOST_OPEN,
    OpenCopies, Overview, RecentAttempts,
};
pub use pages::{
    ActivityRow, AttemptLine, FailureFilter, MessageLine, MessagePart, Numbered, Pages, QUESTION,
    SLOWER_MS, first_since,
};
pub use port::{
    AccountServer, Accounts, AnyLedger, Audit, JobLedger, Ledger, MigrateLedger, OpenTurn,
    PagesLedger, Proofs, Records, ReplayLedger, RoutingLedger, Schema, StatusLedger, ToConfirm,
    Turn, VerifyLedger,
};
pub use retention::{
    BatchTerms, ForgetBatch, ForgetWhat, ForgottenCopy, LATE, PassedBy, PurgeBatch, PurgeCursor,
    PurgeWhat, RawMessage, Remembered, Retention,
};
pub use schema_version::{BASE_VERSION, SCHEMA_VERSION, SchemaVersion};
pub use settling::{Due, Settling};
pub use shared_config::{ConfigMismatch, FilterFields, SharedConfig};
pub use trace::{
    ATTEMPTS, PLAIN_STATUS, Trace, TraceAddress, TraceAttempt, TraceCopy, TraceFilter, TracePart,
    stored_text,
};

/// What went wrong in the ledger, by what the caller can do about it.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LedgerError {
    /// Another session holds the lock that was tried; trying again soon may succeed. The session is
    /// still usable.
    #[error("contended")]
    Contended,
    /// The ledger's schema and this program do not fit.
    #[error("{0}")]
    Version(SchemaVersion),
    /// This host's configuration differs from what the ledger keeps for all hosts
    /// ([`SharedConfig`]): which keys, with both values.
    #[error("{0}: {SAME_ON_ALL_HOSTS}")]
    OtherConfig(String),
    /// The ledger cannot be reached, or the session was lost: open it again.
    #[error("{CANNOT_BE_REACHED}: {0}")]
    Unavailable(String),
    /// The ledger answers, but does not let us in: user, password or database are not what it
    /// knows.
    #[error("{REFUSES_OUR_LOGIN}: {0}")]
    Login(String),
    /// The role that we log in as lacks a grant; its name is in it, and what it may not touch.
    #[error("lacks a grant for our role: {0} (see docs/rights.md)")]
    Denied(String),
    /// None of the sessions that are shared came free in time.
    #[error("in use by other deliveries: {0}")]
    Busy(String),
    /// The ledger is there, but this call took longer than there was time.
    #[error("{0} took too long")]
    TookTooLong(String),
    /// This host keeps from us what leases count by; a sentence.
    #[error("cannot tell which leases live: {0}")]
    Clock(String),
    /// The ledger answered with an error to a statement; nothing of the transaction holds.
    #[error("{0}")]
    Refused(String),
    /// The row that a claim, or a delivery, names was purged or forgotten meanwhile: nothing was
    /// changed but that a doubt is on record where a copy may stand.
    #[error("the record of this delivery was purged or forgotten before it ended")]
    Forgotten,
    /// The ledger holds what no version of this program writes.
    #[error("a row is damaged, or was changed by hand: {0}")]
    Broken(String),
}

impl From<ConfigMismatch> for LedgerError {
    fn from(mismatch: ConfigMismatch) -> LedgerError {
        match mismatch {
            ConfigMismatch::Keys(keys) => LedgerError::OtherConfig(keys),
            ConfigMismatch::Unreadable(why) => {
                LedgerError::Broken(format!("onedrop_ledger.config: {why}"))
            }
        }
    }
}

/// What is said of an error where nothing else says that it is the ledger's.
pub fn of_the_ledger(error: LedgerError) -> String {
    format!("ledger: {error}")
}

pub const CANNOT_BE_REACHED: &str = "cannot be reached";
pub const REFUSES_OUR_LOGIN: &str = "refuses our login";
const SAME_ON_ALL_HOSTS: &str = "set it to the same value on every host; to change it for all of \
     them, let Postfix's queues run empty, change it everywhere and run `onedrop migrate \
     --accept-config`";

/// A copy that has been due for longer than that is one that nothing settles.
pub const OVERDUE: Duration = Duration::from_secs(3600);

/// What is recorded of a message when it is first seen.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    pub identity: &'a Identity,
    pub facts: &'a Facts,
    /// The size as received, before any change of line ends.
    pub size_bytes: u64,
    /// The bytes as received, when they are to be kept.
    pub raw: Option<&'a [u8]>,
    /// Where NUL bytes are in the message, as
    /// [`Message::nul_runs`](crate::message::Message::nul_runs) gives it.
    pub nul_runs: Option<&'a [u8]>,
    /// When it was received, by the caller's clock in whole seconds. Put on record as the time of a
    /// new message where the ledger's own clock says the same, give or take [`CLOCKS_DIFFER_BY`].
    pub at: Option<SystemTime>,
    /// The oldest time at which it may have been recorded before, by clocks of unknown hosts, or
    /// as [`taken_by_us`] says; `None`: at any. If the ledger
    /// may have forgotten what was recorded then, the copies of a new message are claimed in doubt,
    /// and [look back](Claim::looks_back).
    pub oldest: Option<SystemTime>,
    /// By which the destinations are named: what is on record must be just that. `None`: none of
    /// them hangs on it.
    pub fields: Option<&'a FilterFields>,
}

/// By how much a message may seem younger than it is: clocks of hosts that it came by differ.
pub const MEMORY_MARGIN: Duration = Duration::from_secs(3600);

/// By how much clocks of the site's own hosts may differ, of which one is the ledger's.
const OWN_CLOCKS_DIFFER_BY: Duration = Duration::from_secs(120);

/// [`Entry::oldest`] of a message that the site's own Postfix took at that time, by what is known
/// of the ledger's time `now`: no delivery of this message can have begun before. `None`, any time,
/// where it lies ahead: then that clock is wrong.
pub fn taken_by_us(at: SystemTime, now: SystemTime) -> Option<SystemTime> {
    (at <= now + CLOCKS_DIFFER_BY).then(|| at + (MEMORY_MARGIN - OWN_CLOCKS_DIFFER_BY))
}

/// Whether a message may have been recorded before the time since which a ledger remembers all
/// (`None`: it remembers for ever). One without a time may be of any age.
pub fn is_older_than_memory(
    oldest: Option<SystemTime>,
    remembers_since: Option<SystemTime>,
) -> bool {
    let is_older = |since| oldest.is_none_or(|oldest| oldest < since + MEMORY_MARGIN);
    remembers_since.is_some_and(is_older)
}

/// See [`Entry::at`].
pub const CLOCKS_DIFFER_BY: Duration = Duration::from_secs(2);

/// One try to deliver one message, by a process for a recipient.
#[derive(Debug, Clone, Default)]
pub struct Attempt {
    /// Leases are known by this: the same call made again, because its first answer was lost, finds
    /// its own.
    pub value: RandomValue,
    /// Case means nothing in it; a ledger may keep it in lower case.
    pub recipient: String,
    pub sender: String,
    pub queue_id: String,
    pub host: String,
    pub pid: u32,
}

/// 128 random bits, unlike any others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RandomValue([u8; 16]);

impl RandomValue {
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The same, by value.
    pub fn array(&self) -> [u8; 16] {
        self.0
    }
}

impl From<[u8; 16]> for RandomValue {
    /// One that is on record.
    fn from(value: [u8; 16]) -> RandomValue {
        RandomValue(value)
    }
}

impl Default for RandomValue {
    /// A new one.
    fn default() -> RandomValue {
        let mut value = [0; 16];
        // The kernel's, which is there from the first second on (getrandom(2)). Should it be
        // refused, by a sandbox say, the seed of the standard library's hash maps differs from
        // process to process as well.
        if getrandom::fill(&mut value).is_err() {
            for half in value.chunks_mut(8) {
                half.copy_from_slice(&RandomState::new().build_hasher().finish().to_ne_bytes());
            }
        }
        RandomValue(value)
    }
}

impl std::fmt::Debug for RandomValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&lock_key::hex(&self.0))
    }
}

/// How an attempt ended.
#[derive(Debug, Clone)]
pub struct AttemptEnd {
    pub outcome: &'static str,
    /// In a word; `None`: not known.
    pub reason: Option<Reason>,
    pub status: String,
    pub text: String,
    pub duration: Duration,
}

/// How a lease is taken.
#[derive(Debug, Clone, Copy)]
pub struct LeaseTerms {
    pub lease: Duration,
    /// Join a live lease instead of waiting for its end. Only for a store whose append is
    /// idempotent: the copy's lock and the copy's name then exclude a second copy, and epochs need
    /// not.
    pub join: bool,
    /// Also a copy that is due ([`Due`]), which no delivery leases.
    pub due: bool,
}

/// The right to place one copy, until the lease runs out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The copy's row.
    pub copy: i64,
    /// The row's random value: whatever has this number later is not it.
    pub value: RandomValue,
    /// Rises with each lease; a row whose epoch is higher than ours was claimed by another after
    /// us.
    pub epoch: i64,
    /// An earlier lease ended without a receipt and without a release, or the ledger does not
    /// remember: look before writing.
    pub in_doubt: bool,
    /// The copy may be older than its row: a look has no bound of date.
    pub looks_back: bool,
}

/// Where a copy stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyState {
    Placed(Receipt),
    /// Leased to us.
    Claimed(Claim),
    /// Leased by a live other, or due ([`Due`]).
    Busy,
}

/// A message on record. Its row's number alone may be another's: a server that lost its last
/// commits in a fail-over gives the number out again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageKey {
    /// The message's row.
    pub number: i64,
    /// See [`Identity`].
    pub id_hash: Hash,
    /// See [`Identity`].
    pub digest: Hash,
}

impl MessageKey {
    /// The row `number` of the message that `identity` names.
    pub fn new(number: i64, identity: &Identity) -> MessageKey {
        let Identity { id_hash, digest, .. } = *identity;
        MessageKey { number, id_hash, digest }
    }
}

/// Where an attempt is on record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptKey {
    /// In a row of its own, with this number.
    Row(i64),
    /// In the row of the copy with this number, the only one that the attempt recorded with its
    /// message.
    Copy(i64),
}

/// What [`Ledger::record`] found or made.
#[derive(Debug, Clone)]
pub struct Recorded {
    pub message: MessageKey,
    /// When the message was first recorded, by the ledger's clock, in whole seconds.
    pub recorded_at: SystemTime,
    /// This call inserted the message.
    pub is_new: bool,
    /// Another message with the same Message-ID and other content is on record.
    pub collision: bool,
    pub attempt: AttemptKey,
    /// One for each destination that was to be claimed, in their order.
    pub copies: Vec<CopyState>,
}

/// The result of [`Ledger::confirm`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Confirmed {
    /// The receipt is on record, by us or (the same receipt) by another.
    Recorded,
    /// Another receipt is on record, of the delivery that confirmed first.
    Superseded { by: Receipt },
}

/// What [`Ledger::confirm`] writes beside the receipt.
#[derive(Debug, Clone, Copy, Default)]
pub struct CopyFacts {
    /// NUL bytes went to the store as 0x80.
    pub nul_replaced: bool,
    /// The message stands attached to another one, because the store did not take it as it came.
    pub wrapped: bool,
    /// The copy was found by the look, not written by this attempt.
    pub found_by_look: bool,
}

/// The time to put on record of a new message ([`Entry::at`]), in seconds since 1970, by a ledger
/// whose clock says `now`.
pub fn recorded_secs(at: Option<SystemTime>, now: SystemTime) -> i64 {
    let now = units::whole_secs(now);
    let is_close = |at: &i64| at.abs_diff(now) <= CLOCKS_DIFFER_BY.as_secs();
    at.map(units::whole_secs).filter(is_close).unwrap_or(now)
}

/// The hashes of the Message-IDs that `wanted` may mean: as it is, and in angle brackets.
pub fn wanted_hashes(wanted: &str) -> Vec<Hash> {
    let mut hashes = vec![lock_key::message_hash(wanted.as_bytes())];
    if !wanted.starts_with('<') {
        hashes.push(lock_key::message_hash(format!("<{wanted}>").as_bytes()));
    }
    hashes
}

/// The state of a copy whose mailbox was not there: INBOX has it.
const ELSEWHERE: &str = "elsewhere";

/// The state of a copy that the mail server's own delivery has, whose filters decide where it lies.
pub const HANDED_OVER: &str = "handed over";

/// The state of a copy with a receipt, in a word.
pub fn receipt_state(receipt: Option<&Receipt>) -> &'static str {
    match receipt {
        Some(receipt) if receipt.is_elsewhere() => ELSEWHERE,
        Some(receipt) if receipt.is_handed() => HANDED_OVER,
        Some(_) | None => "placed",
    }
}

/// The state of a copy without a receipt, in a word.
pub fn open_state(leased: bool, in_doubt: bool, due: bool) -> &'static str {
    match (leased, in_doubt, due) {
        (true, ..) => "leased",
        (_, true, _) => "in doubt",
        (.., true) => "due",
        (false, false, false) => "free",
    }
}
