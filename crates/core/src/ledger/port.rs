//! The ledger port: the SQL record of messages, their copies and every attempt to deliver them, and
//! the locks and leases that keep two deliveries from writing the same copy. It speaks of claims,
//! leases, turns and receipts, never of an engine.
//!
//! A ledger is a handle that threads share. How it keeps connections, opens them again and commits
//! what comes at the same time together is its own affair. Every call returns before the time it is
//! given; one that ended in [`LedgerError::Unavailable`] may have taken effect, and may be made
//! again: it finds its own. All adapters run the ledger's contract suite.
//!
//! What a claim, a turn, a receipt and a release do to a copy's row: [`claim`](super::claim).

use std::time::{Duration, Instant, SystemTime};

use super::durability::Durability;
use super::jobs::Jobs;
use super::locks::Locks;
use super::pages::Pages;
use super::retention::Retention;
use super::settling::{Due, Settling};
use super::{
    Attempt, AttemptEnd, AttemptKey, Claim, Confirmed, CopyFacts, CopyOnRecord, CopyState, Entry,
    FilterFields, LeaseTerms, LedgerError, MessageKey, Overview, PlannedStep, Recorded,
    SchemaVersion, Trace, TraceFilter, Window,
};
use crate::connections::Connections;
use crate::directory::{Asked, Destination, Home};
use crate::lock_key::Hash;
use crate::login::Way;
use crate::message::Identity;
use crate::receipt::Receipt;

/// What a delivery needs of a ledger.
pub trait Ledger: Proofs + Send + Sync {
    /// What the ledger's clock says, in whole seconds, as far as it is known: by its last word, and
    /// before the first by this host's clock.
    fn time(&self) -> SystemTime;

    /// Records, in one durable transaction under the message's lock: the message (once), the
    /// attempt, and the claims on `destinations`.
    ///
    /// # Errors
    /// [`LedgerError::Contended`]: another delivery records this message right now.
    /// [`LedgerError::Version`], [`LedgerError::OtherConfig`].
    fn record(
        &self,
        entry: &Entry<'_>,
        attempt: &Attempt,
        destinations: &[Destination],
        terms: LeaseTerms,
        until: Instant,
    ) -> Result<Recorded, LedgerError>;

    /// Claims again copies of a recorded message that were busy; durable.
    ///
    /// # Errors
    /// [`LedgerError::Forgotten`]: the message is not on record any more. So say [`Ledger::keep`]
    /// and [`Ledger::keep_until_due`].
    fn claim(
        &self,
        message: &MessageKey,
        destinations: &[Destination],
        owner: &Attempt,
        terms: LeaseTerms,
        until: Instant,
    ) -> Result<Vec<CopyState>, LedgerError>;

    /// Opens the placing of a copy for which the lease alone is not enough (it is in doubt, or
    /// others may join the lease): takes the lock named `copy_key` and re-reads the row. The lock
    /// is held as long as what comes back in [`Turn::Ours`], and no longer than the connection to
    /// the ledger lives. Whether the lease has run out is not asked: the caller watches its clock.
    ///
    /// # Errors
    /// [`LedgerError::Contended`]: another delivery has the turn.
    fn take_turn<'a>(
        &'a self,
        claim: &Claim,
        copy_key: &Hash,
        until: Instant,
    ) -> Result<Turn<'a>, LedgerError>;

    /// Puts the receipt on record where no other one is there, durably: the first receipt wins,
    /// whatever its epoch. With `end`, the attempt's end goes into the same transaction, if the
    /// receipt is on record. What is [kept](Ledger::keep) goes with the last shared copy. Where
    /// another receipt is on record, the same transaction leaves a doubt: a second copy may stand
    /// until a look has settled it, and a look that began before settles nothing.
    fn confirm(&self, receipt: &ToConfirm<'_>, until: Instant) -> Result<Confirmed, LedgerError>;

    /// Gives back leases under which certainly nothing was written: the rows are free again, as
    /// much in doubt as before the claim.
    fn release(&self, claims: &[Claim], until: Instant) -> Result<(), LedgerError>;

    /// Keeps the bytes of a recorded message's shared copy, and `why` it could not be placed,
    /// durably, until all its receipts are on record. Where they are kept already, only `why`
    /// changes. False, and nothing kept, where its receipt is there.
    fn keep(
        &self,
        message: &MessageKey,
        bytes: &[u8],
        why: &str,
        until: Instant,
    ) -> Result<bool, LedgerError>;

    /// Why the message's shared copy could not be placed, if its bytes are [kept](Ledger::keep).
    fn kept(&self, message: &MessageKey, until: Instant) -> Result<Option<String>, LedgerError>;

    /// Keeps the bytes of a recorded message's shared copy, and `why`, for `onedrop settle`, which
    /// has it from `after` now on; in one durable transaction. No delivery leases it from here on;
    /// a lease that lives, and a doubt, stay. Where it is due already, its time and its bytes stay.
    fn keep_until_due(
        &self,
        message: &MessageKey,
        destination: &Destination,
        kept: (&[u8], &str),
        after: Duration,
        until: Instant,
    ) -> Result<Due, LedgerError>;

    /// Which fields distinguish a copy that goes through filters from another ([`Entry::fields`]):
    /// as read before, or `anew`.
    fn filter_fields(&self, anew: bool, until: Instant) -> Result<FilterFields, LedgerError>;

    /// Whether a copy of the message in this mailbox is on record, placed or not.
    fn has_copy(
        &self,
        identity: &Identity,
        destination: &Destination,
        until: Instant,
    ) -> Result<bool, LedgerError>;

    /// Whether a copy for `account` is placed, whichever it is. What it costs does not grow with
    /// what is on record for others.
    fn has_placed_copy(&self, account: &str, until: Instant) -> Result<bool, LedgerError>;

    /// The account that mail to one of these addresses, in whatever case, has reached: by an
    /// attempt on record that delivered, and a recipient's copy that is placed. What it costs does
    /// not grow with what is on record for others, nor with refusals of these.
    fn account_reached(
        &self,
        addresses: &[&str],
        until: Instant,
    ) -> Result<Option<String>, LedgerError>;

    /// A receipt in this mailbox that was on record before the message was, and so before a copy of
    /// it was leased, and by this much `earlier` (whole seconds): of those of this kind that are
    /// found soon, the last one. `None`: none was found.
    fn receipt_before(
        &self,
        message: i64,
        place: (&Destination, &str),
        earlier: Duration,
        until: Instant,
    ) -> Result<Option<Receipt>, LedgerError>;

    /// Puts on record how attempts to deliver a message ended: of `recorded`, the one that
    /// [`record`](Ledger::record) put there, and of `others`, for which it did not: it could not,
    /// or they are those for the other recipients of the same message. A row that is gone, with its
    /// message, is no error, nor is one that is another message's or process's by now.
    fn finish(
        &self,
        identity: &Identity,
        recorded: Option<(AttemptKey, &Attempt, &AttemptEnd)>,
        others: &[(Attempt, AttemptEnd)],
        until: Instant,
    ) -> Result<(), LedgerError>;
}

/// What [`Ledger::confirm`] is given.
#[derive(Debug, Clone, Copy)]
pub struct ToConfirm<'a> {
    pub claim: Claim,
    pub receipt: &'a Receipt,
    pub facts: CopyFacts,
    pub end: Option<(AttemptKey, &'a AttemptEnd)>,
    /// The copy is on the store's disk, and a look finds it. So a crash of the ledger's server may
    /// undo this receipt where [`may_be_lost`](super::claim::may_be_lost) says so of the row: its
    /// commit then need not wait for a disk or a standby, and the next one that waits brings it
    /// there.
    pub may_be_lost: bool,
}

/// What the row said when the copy's lock was held.
pub enum Turn<'a> {
    /// The lease is still ours: write, after a look if in doubt. The doubt is the claim's, or that
    /// of another delivery that has joined the lease since, may have written, and is gone.
    Ours { in_doubt: bool, turn: Box<dyn OpenTurn + 'a> },
    /// Another delivery placed it meanwhile.
    Placed(Receipt),
    /// Another delivery claimed it after us.
    EpochGone,
}

/// A turn that is open: the copy's lock is held until this is dropped.
pub trait OpenTurn {
    /// Does what [`Ledger::confirm`] does, in this turn, which it ends in any case.
    fn confirm(
        self: Box<Self>,
        receipt: &ToConfirm<'_>,
        until: Instant,
    ) -> Result<Confirmed, LedgerError>;
}

/// The site's own query for accounts (`directory.query`).
pub trait Accounts: Send + Sync {
    /// Runs the administrator's query with the address asked for as its parameters.
    ///
    /// # Returns
    /// The account, and the mailbox if there is a second column with a name in it; or `None`
    /// without a row.
    fn account_by_query(
        &self,
        query: &str,
        asked: &Asked,
        until: Instant,
    ) -> Result<Option<Home>, LedgerError>;
}

/// A server of its own for that query (`directory.url`).
pub trait AccountServer: Accounts + Connections {}

impl<A: Accounts + Connections> AccountServer for A {}

/// What is on record about the way into the store.
pub trait Proofs: Send + Sync {
    /// Whether it is on record that a login through `way` acts for the account that it names.
    fn is_proven(&self, way: &Way, until: Instant) -> Result<bool, LedgerError>;

    /// The forms of all ways to this server for this user that are on record.
    fn proven_forms(
        &self,
        server: &str,
        login_user: &str,
        until: Instant,
    ) -> Result<Vec<String>, LedgerError>;

    /// Puts that on record, seen just now by `host`; or takes it off the record where `holds` is
    /// not so.
    fn note_proof(
        &self,
        way: &Way,
        holds: bool,
        host: &str,
        until: Instant,
    ) -> Result<(), LedgerError>;

    /// The newest copies that are placed, the latest first, at most `limit`: where they are, and by
    /// which receipt.
    fn latest_copies(
        &self,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<(Destination, Receipt)>, LedgerError>;
}

/// What is on record, to be shown.
pub trait Records: Send + Sync {
    /// Everything on record about the messages that are asked for, and about attempts that came to
    /// record no message. Newest first, at most `limit`.
    fn trace(
        &self,
        filter: &TraceFilter<'_>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<Trace>, LedgerError>;
}

/// What comparing the ledger with mailboxes needs.
pub trait Audit: Send + Sync {
    /// The next accounts that have copies to compare with their mailboxes, at most `limit`, in the
    /// ledger's order from after `after`; some may have none to compare. What it costs goes with
    /// the window and the number of accounts, not with what is on record.
    fn accounts_to_verify(
        &self,
        window: &Window,
        after: Option<&str>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<String>, LedgerError>;

    /// The next copies of `account` to compare with their mailboxes, at most `limit`: ordered by
    /// message and then by row, those after `after`. What a page costs goes with its length.
    fn copies_to_verify(
        &self,
        window: &Window,
        account: &str,
        after: Option<&CopyOnRecord>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError>;

    /// Puts on record that a look after the last lease found one copy at most, and `receipt` in
    /// place of the one on record, durably. False, and nothing changed, where the row is no longer
    /// as in `copy`, or not placed.
    fn settle(
        &self,
        copy: &CopyOnRecord,
        receipt: &Receipt,
        until: Instant,
    ) -> Result<bool, LedgerError>;

    /// The bytes that are [kept](Ledger::keep) of the message's shared copy.
    fn kept_bytes(&self, message: i64, until: Instant) -> Result<Option<Vec<u8>>, LedgerError>;
}

/// The ledger's own shape, and what else `onedrop check` asks of it.
pub trait Schema: Send + Sync {
    /// The schema version, and how this program's goes with it.
    fn schema_version(&self, until: Instant) -> Result<SchemaVersion, LedgerError>;

    /// Whether this program, with this configuration, may write here.
    ///
    /// # Errors
    /// [`LedgerError::Version`], [`LedgerError::OtherConfig`].
    fn check_program(&self, until: Instant) -> Result<(), LedgerError>;

    /// Brings the schema to this program's version under a lock, beside deliveries; returns the
    /// names of the migrations applied. One that ended halfway goes on where it stopped.
    fn migrate(&self, until: Instant) -> Result<Vec<String>, LedgerError>;

    /// What the clock of a server says, by which leases count and times are put on record; `None`
    /// where this host's own clocks serve.
    ///
    /// # Errors
    /// [`LedgerError::Clock`].
    fn clock(&self, until: Instant) -> Result<Option<SystemTime>, LedgerError>;

    /// What [`migrate`](Schema::migrate) would do, in its order.
    fn planned_migration(&self, until: Instant) -> Result<Vec<PlannedStep>, LedgerError>;

    /// Puts on record what this program's configuration shares with all hosts, where nothing is, or
    /// in any case with `replace`; keys that are not on record are added.
    ///
    /// # Errors
    /// [`LedgerError::OtherConfig`]: another one is on record.
    fn share_config(&self, replace: bool, until: Instant) -> Result<(), LedgerError>;

    /// Proves that two connections exclude each other by the lock called `name`, as two deliveries
    /// of one message must.
    ///
    /// # Errors
    /// A sentence: what they did instead.
    fn prove_exclusion(&self, name: &str, until: Instant) -> Result<(), String>;
}

/// Defines what several callers need of a ledger together.
macro_rules! needs {
    ($($(#[$doc:meta])* $name:ident: $first:ident $(+ $more:ident)*;)*) => {$(
        $(#[$doc])*
        pub trait $name: $first $(+ $more)* {}

        impl<L: $first $(+ $more)*> $name for L {}
    )*};
}

needs! {
    /// Finding mailboxes: the site's query, and what had mail before.
    RoutingLedger: Accounts + Ledger;
    /// `migrate`: the schema, what the ledger knows of the mail root, and since when it remembers.
    MigrateLedger: Schema + Proofs + Retention;
    /// `verify` and `settle`.
    VerifyLedger: Ledger + Audit + Settling + Schema;
    /// Placing again what the ledger keeps.
    ReplayLedger: Ledger + Retention + Schema;
    /// Running jobs: their rows, their locks, and the row of the host.
    JobLedger: Jobs + Locks + Overview;
    /// To show how things are.
    StatusLedger: JobLedger + Pages + Retention + Schema;
    /// The web pages.
    PagesLedger: StatusLedger + Ledger + Connections;
    /// All that an adapter is; `main` chooses one.
    AnyLedger: PagesLedger + RoutingLedger + MigrateLedger + VerifyLedger + ReplayLedger
        + Records + Durability;
}
