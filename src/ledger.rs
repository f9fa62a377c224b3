//! The ledger port: the SQL record of messages, their copies and every attempt to deliver them, and
//! the locks and leases that keep two deliveries from writing the same copy. It speaks of claims,
//! leases and receipts, never of an engine. A copy without doubt is its lease's holder's; its lock
//! is for copies in doubt and for leases that are joined. Adapters: `postgres`, `sqlite`, `memory`;
//! all run `tests/ledger_contract`.
//!
//! A copy's row moves like this (`doubt` = a lease that ended without a receipt and without a
//! release): free --claim--> leased --confirm--> placed; leased --release--> free (doubt as before
//! the claim); leased --lease runs out--> free, in doubt.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::{Duration, Instant, SystemTime};

use crate::directory::{Asked, Destination};
use crate::lock_key::{self, Hash};
use crate::message::{Facts, Identity};
use crate::store::{Receipt, Way};

pub mod memory;
mod on_record;
pub mod port;
pub mod postgres;
pub mod sqlite;
mod told;

pub use on_record::{CopyOnRecord, Standing, Window};
pub use told::{Trace, TraceAddress, TraceAttempt, TraceCopy, TraceFilter, TracePart};

/// The schema version this program reads and writes; `onedrop migrate` brings a ledger to it.
pub const SCHEMA_VERSION: i64 = 5;

/// What went wrong in the ledger, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// Another session holds the lock that was tried; trying again soon may succeed. The session is
    /// still usable.
    #[error("contended")]
    Contended,
    /// The ledger has another schema version (0: none).
    #[error("{}", version_text(*.found))]
    Version { found: i64 },
    /// The ledger cannot be reached, or the session was lost: open it again.
    #[error("cannot be reached: {0}")]
    Unavailable(String),
    /// The ledger answers, but does not let us in: user, password or database are not what it
    /// knows.
    #[error("refuses our login: {0}")]
    Login(String),
    /// None of the sessions that are shared came free in time.
    #[error("in use by other deliveries: {0}")]
    Busy(String),
    /// The ledger is there, but what it was asked took longer than there was time; what, in words.
    #[error("{0} took too long")]
    TookTooLong(String),
    /// The ledger answered with an error to a statement; nothing of the transaction holds.
    #[error("{0}")]
    Refused(String),
    /// The ledger holds what no version of this program writes.
    #[error("holds what it should not: {0}")]
    Broken(String),
}

fn version_text(found: i64) -> String {
    if found == 0 {
        format!(
            "has no schema yet, this program needs version {SCHEMA_VERSION}: run `onedrop migrate`"
        )
    } else if found < SCHEMA_VERSION {
        format!(
            "has schema version {found}, this program needs {SCHEMA_VERSION}: run `onedrop migrate`"
        )
    } else {
        format!(
            "has schema version {found}, this program knows {SCHEMA_VERSION} only: install a newer onedrop"
        )
    }
}

/// What is recorded of a message when it is first seen.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    pub identity: &'a Identity,
    pub facts: &'a Facts,
    /// As received, before any change of line ends.
    pub size_bytes: u64,
    /// The bytes as received, when they are to be kept.
    pub raw: Option<&'a [u8]>,
    /// Where NUL bytes stand in the message ([`NulRuns::encode`](crate::message::NulRuns::encode)).
    pub nul_runs: Option<&'a [u8]>,
    /// When it was received, by the caller's clock in whole seconds. Put on record as the time of a
    /// new message where the ledger's own clock says the same, give or take [`CLOCKS_DIFFER_BY`].
    pub at: Option<SystemTime>,
}

/// See [`Entry::at`].
pub const CLOCKS_DIFFER_BY: Duration = Duration::from_secs(2);

/// One try to deliver one message: who tries, for whom.
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

/// What [`Ledger::record`] is given, for [`Ledger::together`].
#[derive(Debug, Clone, Copy)]
pub struct ToRecord<'a> {
    pub entry: Entry<'a>,
    pub attempt: &'a Attempt,
    pub destinations: &'a [Destination],
    pub terms: LeaseTerms,
}

/// What [`Ledger::confirm`] is given, for [`Ledger::together`].
#[derive(Debug, Clone, Copy)]
pub struct ToConfirm<'a> {
    pub claim: Claim,
    pub receipt: &'a Receipt,
    pub facts: CopyFacts,
    pub end: Option<(i64, &'a AttemptEnd)>,
}

/// How many records and receipts go into one call of [`Ledger::together`] at most.
pub const TOGETHER: usize = 8;

/// What came of [`Ledger::together`], for each in its order.
#[derive(Debug, Default)]
pub struct Together {
    pub recorded: Vec<Result<Recorded, LedgerError>>,
    pub confirmed: Vec<Result<Confirmed, LedgerError>>,
}

/// 128 random bits, which nobody else has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RandomValue([u8; 16]);

impl RandomValue {
    /// The value in a row.
    ///
    /// # Errors
    /// [`LedgerError::Broken`]: these are not 128 bits.
    pub fn of(bytes: &[u8]) -> Result<RandomValue, LedgerError> {
        let value = bytes.try_into().map(RandomValue);
        value.map_err(|_| {
            LedgerError::Broken(format!("a row's random value has {} bytes", bytes.len()))
        })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Default for RandomValue {
    /// A new one.
    fn default() -> RandomValue {
        let mut value = [0; 16];
        // The kernel's, which is there from the first second on (getrandom(2)). Should it be
        // refused, by a sandbox say, what the standard library seeds its hash maps with tells us
        // from others as well.
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
    /// An earlier lease ended without a receipt and without a release: look before writing.
    pub in_doubt: bool,
}

/// Where a copy stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyState {
    Placed(Receipt),
    /// Leased to us.
    Claimed(Claim),
    /// Leased by a live other.
    Busy,
}

/// What [`Ledger::record`] found or made.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// The message's row.
    pub message: i64,
    /// When the message was first recorded, by the ledger's clock, in whole seconds.
    pub recorded_at: SystemTime,
    /// This call inserted the message.
    pub is_new: bool,
    /// Another message with the same Message-ID and other content is on record.
    pub collision: bool,
    /// The attempt's row.
    pub attempt: i64,
    /// One for each destination, in their order.
    pub copies: Vec<CopyState>,
}

/// What the row said when the copy's lock was held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// The lease is still ours: write, after a look if in doubt. The doubt is the claim's, or that
    /// of somebody who joined the lease since, may have written, and is gone.
    Ours { in_doubt: bool },
    /// Somebody placed it meanwhile.
    Placed(Receipt),
    /// Somebody claimed it after us.
    EpochGone,
}

/// What came of [`Ledger::confirm`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Confirmed {
    /// The receipt is on record, by us or (the same receipt) by another.
    Recorded,
    /// Another receipt is on record, by whoever confirmed first.
    Superseded { by: Receipt },
}

/// What [`Ledger::confirm`] writes beside the receipt.
#[derive(Debug, Clone, Copy, Default)]
pub struct CopyFacts {
    /// NUL bytes went to the store as 0x80.
    pub nul_replaced: bool,
    /// The copy was found by the look, not written by this attempt.
    pub found_by_look: bool,
}

/// A session with the ledger. One delivery uses it at a time; every call returns before the `until`
/// given when the session was opened (or reopened).
pub trait Ledger: Send {
    /// Records, in one durable transaction under the message's lock: the message (once), the
    /// attempt, and the claims on `destinations`. A new message is announced (Postgres: `NOTIFY
    /// onedrop_message`).
    ///
    /// # Errors
    /// [`LedgerError::Contended`]: another session records this message right now.
    /// [`LedgerError::Version`].
    fn record(
        &mut self,
        entry: &Entry<'_>,
        attempt: &Attempt,
        destinations: &[Destination],
        terms: LeaseTerms,
    ) -> Result<Recorded, LedgerError>;

    /// Claims again copies of a recorded message that were busy; durable.
    fn claim(
        &mut self,
        message: i64,
        destinations: &[Destination],
        owner: &Attempt,
        terms: LeaseTerms,
    ) -> Result<Vec<CopyState>, LedgerError>;

    /// Opens the placing of a copy for which the lease alone is not enough (it is in doubt, or
    /// others may join the lease): takes the lock named `copy_key` and re-reads the row. After
    /// [`Turn::Ours`] the lock is held until [`confirm`](Ledger::confirm) (whatever comes of it),
    /// [`leave`](Ledger::leave), [`release`](Ledger::release), another turn, or the loss of the
    /// session; after anything else it is free. Whether the lease has run out is not asked: the
    /// caller watches its clock.
    ///
    /// # Errors
    /// [`LedgerError::Contended`]: another session has the turn.
    fn take_turn(&mut self, claim: &Claim, copy_key: &Hash) -> Result<Turn, LedgerError>;

    /// Puts the receipt on record where no other one is there, durably, and ends the turn, if there
    /// is one: the first receipt wins, whatever its epoch. May be called again after
    /// [`reopen`](Ledger::reopen). With `end`, the attempt's end goes into the same transaction, if
    /// the receipt is on record. What was [kept](Ledger::keep) of a shared copy goes. Where another
    /// receipt is on record, the same transaction leaves a doubt: a second copy may stand until a
    /// look has settled it, and a look that began before settles nothing.
    fn confirm(
        &mut self,
        claim: &Claim,
        receipt: &Receipt,
        facts: CopyFacts,
        end: Option<(i64, &AttemptEnd)>,
    ) -> Result<Confirmed, LedgerError>;

    /// Whether several records and receipts in one call cost less than each in its own.
    fn works_together(&self) -> bool {
        false
    }

    /// [`record`](Ledger::record) for several messages, and then [`confirm`](Ledger::confirm) for
    /// several copies that nobody has a turn for, each with its own outcome; in one transaction
    /// where [`works_together`](Ledger::works_together) says so.
    ///
    /// # Errors
    /// What kept all of them from being on record; where it is [`LedgerError::Unavailable`], nobody
    /// knows. Each may be tried alone after it.
    fn together(
        &mut self,
        records: &[ToRecord<'_>],
        receipts: &[ToConfirm<'_>],
    ) -> Result<Together, LedgerError> {
        let recorded = records
            .iter()
            .map(|one| self.record(&one.entry, one.attempt, one.destinations, one.terms));
        let recorded = recorded.collect();
        let confirmed = receipts
            .iter()
            .map(|one| self.confirm(&one.claim, one.receipt, one.facts, one.end))
            .collect();
        Ok(Together { recorded, confirmed })
    }

    /// Keeps the bytes of a recorded message's shared copy, and `why` it could not be placed,
    /// durably, until its receipt is on record. Where they are kept already, only `why` changes.
    /// False, and nothing kept, where its receipt is there.
    fn keep(&mut self, message: i64, bytes: &[u8], why: &str) -> Result<bool, LedgerError>;

    /// Why the message's shared copy could not be placed, if its bytes are [kept](Ledger::keep).
    fn kept(&mut self, message: i64) -> Result<Option<String>, LedgerError>;

    /// The bytes that are [kept](Ledger::keep) of the message's shared copy.
    fn kept_bytes(&mut self, message: i64) -> Result<Option<Vec<u8>>, LedgerError>;

    /// Ends the turn, if there is one, without a change.
    fn leave(&mut self) -> Result<(), LedgerError>;

    /// Gives back leases under which certainly nothing was written: the rows are free again, as
    /// much in doubt as before the claim.
    fn release(&mut self, claims: &[Claim]) -> Result<(), LedgerError>;

    /// Records how the attempt ended.
    fn finish(&mut self, attempt: i64, end: &AttemptEnd) -> Result<(), LedgerError>;

    /// Records attempts that ended, and that [`record`](Ledger::record) did not: it could not, or
    /// they are those for the other recipients of the same run.
    fn note_attempts(
        &mut self,
        identity: &Identity,
        ended: &[(Attempt, AttemptEnd)],
    ) -> Result<(), LedgerError>;

    /// Begins another use of a session that was idle: calls on it return before `until`. Where the
    /// session is seen to be lost, it is opened again; that costs nothing, for nothing was begun.
    fn renew(&mut self, until: Instant) -> Result<(), LedgerError>;

    /// Drops the session and opens another; calls on it return before `until`.
    fn reopen(&mut self, until: Instant) -> Result<(), LedgerError>;

    /// Runs the administrator's `directory.query` with the address asked for as its parameters.
    ///
    /// # Returns
    /// The account, or `None` without a row.
    fn account_by_query(
        &mut self,
        query: &str,
        asked: &Asked,
    ) -> Result<Option<String>, LedgerError>;

    /// Everything on record about the messages that are asked for, and about attempts that came to
    /// record no message. Newest first, at most `limit`.
    fn trace(&mut self, filter: &TraceFilter<'_>, limit: u32) -> Result<Vec<Trace>, LedgerError>;

    /// The next copies to compare with their mailboxes, at most `limit`: ordered by account and
    /// then by row, from behind the one told last.
    fn copies_to_verify(
        &mut self,
        window: &Window<'_>,
        after: Option<&CopyOnRecord>,
        limit: u32,
    ) -> Result<Vec<CopyOnRecord>, LedgerError>;

    /// The newest copies that are placed, the latest first, at most `limit`: where they are, and by
    /// which receipt.
    fn latest_copies(&mut self, limit: u32) -> Result<Vec<(Destination, Receipt)>, LedgerError>;

    /// Puts on record that a look after the last lease found one copy at most, and `receipt` in
    /// place of the one on record, durably. False, and nothing changed, where the row is no longer
    /// as `copy` told it, or not placed.
    fn settle(&mut self, copy: &CopyOnRecord, receipt: &Receipt) -> Result<bool, LedgerError>;

    /// Whether it is on record that a login through `way` acts for the account that it names.
    fn is_proven(&mut self, way: &Way) -> Result<bool, LedgerError>;

    /// Puts that on record, seen just now by `host`; or takes it off the record where `holds` is
    /// not so.
    fn note_proof(&mut self, way: &Way, holds: bool, host: &str) -> Result<(), LedgerError>;

    /// The schema version, 0 for none.
    fn schema_version(&mut self) -> Result<i64, LedgerError>;

    /// Brings the schema to [`SCHEMA_VERSION`] under a lock; returns the names of the migrations
    /// applied.
    fn migrate(&mut self) -> Result<Vec<String>, LedgerError>;

    /// Takes the lock called `name`, for `check`: held until [`leave`](Ledger::leave).
    ///
    /// # Errors
    /// [`LedgerError::Contended`]: another session holds it.
    fn try_lock(&mut self, name: &str) -> Result<(), LedgerError>;
}

/// The time to put on record of a new message ([`Entry::at`]), in seconds since 1970, by a ledger
/// whose clock says `now`.
fn recorded_secs(at: Option<SystemTime>, now: SystemTime) -> u64 {
    let secs = |time: SystemTime| {
        time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
    };
    let now = secs(now);
    at.map(secs).filter(|at| at.abs_diff(now) <= CLOCKS_DIFFER_BY.as_secs()).unwrap_or(now)
}

/// The hashes of the Message-IDs that somebody who typed `wanted` may mean: as it is, and in angle
/// brackets.
fn wanted_hashes(wanted: &str) -> Vec<Hash> {
    let mut hashes = vec![lock_key::message_hash(wanted.as_bytes())];
    if !wanted.starts_with('<') {
        hashes.push(lock_key::message_hash(format!("<{wanted}>").as_bytes()));
    }
    hashes
}

/// A row's receipt is none that any version of this program writes.
fn no_receipt() -> LedgerError {
    LedgerError::Broken("a receipt that is half a UID".to_owned())
}

/// A copy's state in a word.
fn copy_state(placed: bool, leased: bool, in_doubt: bool) -> &'static str {
    match (placed, leased, in_doubt) {
        (true, _, _) => "placed",
        (_, true, _) => "leased",
        (_, _, true) => "in doubt",
        (false, false, false) => "free",
    }
}
