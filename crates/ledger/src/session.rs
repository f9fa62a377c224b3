//! What an engine brings: one connection to the ledger, used by one thread at a time. `pooled`
//! makes of it the [`Ledger`](onedrop_core::ledger::Ledger) and the
//! [`Schema`](onedrop_core::ledger::Schema); the other traits of the port each engine implements
//! itself, for its `PooledLedger`. Every call returns before the `until` that the session was
//! opened, renewed or reopened with.
//!
//! A call means what the port's of the same name means. One that fails with `Contended`, or that is
//! refused as a statement, leaves the session usable.

use std::time::{Duration, Instant, SystemTime};

use onedrop_core::directory::Destination;
use onedrop_core::ledger::claim::TurnState;
use onedrop_core::ledger::{
    Attempt, AttemptEnd, Claim, Confirmed, CopyState, Due, Entry, LeaseTerms, LedgerError,
    MessageKey, PlannedStep, Program, Recorded, SchemaVersion, ToConfirm,
};
use onedrop_core::lock_key::Hash;
use onedrop_core::message::Identity;
use onedrop_core::receipt::Receipt;

/// One message to be recorded.
#[derive(Debug, Clone, Copy)]
pub struct ToRecord<'a> {
    pub entry: Entry<'a>,
    pub attempt: &'a Attempt,
    pub destinations: &'a [Destination],
    pub terms: LeaseTerms,
}

/// How many records and receipts go into one call of [`Session::commit`] at most.
pub const MOST_TOGETHER: usize = 8;

/// The results of [`Session::commit`], in argument order. `None`: nothing was done, it has to be
/// done alone. One that is alone has a result.
#[derive(Debug, Default)]
pub struct Committed {
    pub recorded: Vec<Option<Result<Recorded, LedgerError>>>,
    pub confirmed: Vec<Option<Result<Confirmed, LedgerError>>>,
}

/// One connection of an engine to the ledger.
pub trait Session: Send {
    /// Begins another use of a session that was idle, or goes on with its turn: calls on it return
    /// before `until`. Where the session is seen to be lost, it is opened again.
    fn renew(&mut self, until: Instant) -> Result<(), LedgerError>;

    /// Drops the connection and opens another; calls on it return before `until`.
    fn reopen(&mut self, until: Instant) -> Result<(), LedgerError>;

    /// Several records, and then several receipts of copies that no session has a turn for, each
    /// with its own outcome; in one transaction, where that costs less than one for each. A receipt
    /// alone may be that of this session's turn, which ends whatever comes of it.
    ///
    /// # Errors
    /// What kept all of them from being on record; after [`LedgerError::Unavailable`] it is not
    /// known. Each may be tried alone then.
    fn commit(
        &mut self,
        records: &[ToRecord<'_>],
        receipts: &[ToConfirm<'_>],
    ) -> Result<Committed, LedgerError>;

    fn claim(
        &mut self,
        message: &MessageKey,
        destinations: &[Destination],
        owner: &Attempt,
        terms: LeaseTerms,
    ) -> Result<Vec<CopyState>, LedgerError>;

    /// After [`TurnState::Ours`] the lock is held until the copy is confirmed, [`leave`] is
    /// called, another call begins a transaction of its own, or the session is lost.
    ///
    /// [`leave`]: Session::leave
    fn take_turn(&mut self, claim: &Claim, copy_key: &Hash) -> Result<TurnState, LedgerError>;

    /// Gives up the turn, or the lock, that this session holds, if any.
    fn leave(&mut self) -> Result<(), LedgerError>;

    fn keep(&mut self, message: &MessageKey, bytes: &[u8], why: &str) -> Result<bool, LedgerError>;

    fn kept(&mut self, message: &MessageKey) -> Result<Option<String>, LedgerError>;

    fn keep_until_due(
        &mut self,
        message: &MessageKey,
        destination: &Destination,
        kept: (&[u8], &str),
        after: Duration,
    ) -> Result<Due, LedgerError>;

    fn has_copy(
        &mut self,
        identity: &Identity,
        destination: &Destination,
    ) -> Result<bool, LedgerError>;

    fn has_placed_copy(&mut self, account: &str) -> Result<bool, LedgerError>;

    fn account_reached(&mut self, addresses: &[&str]) -> Result<Option<String>, LedgerError>;

    fn receipt_before(
        &mut self,
        message: i64,
        place: (&Destination, &str),
        earlier: Duration,
    ) -> Result<Option<Receipt>, LedgerError>;

    fn release(&mut self, claims: &[Claim]) -> Result<(), LedgerError>;

    fn finish(
        &mut self,
        identity: &Identity,
        recorded: Option<(i64, &AttemptEnd)>,
        others: &[(Attempt, AttemptEnd)],
    ) -> Result<(), LedgerError>;

    /// For which program it is.
    fn program(&self) -> &Program;

    fn schema_version(&mut self) -> Result<SchemaVersion, LedgerError>;

    fn migrate(&mut self) -> Result<Vec<String>, LedgerError>;

    /// [`Schema::clock`](onedrop_core::ledger::Schema::clock) of this session's ledger.
    fn clock(&mut self) -> Result<Option<SystemTime>, LedgerError>;

    fn planned_migration(&mut self) -> Result<Vec<PlannedStep>, LedgerError>;

    /// What is on record of the configuration that all hosts share, if the schema fits.
    fn shared_config(&mut self) -> Result<Option<String>, LedgerError>;

    /// Puts `json` there, if `read` is there still.
    fn share_config(&mut self, json: &str, read: Option<&str>) -> Result<(), LedgerError>;

    /// Takes the lock called `name` until [`leave`](Session::leave).
    ///
    /// # Errors
    /// [`LedgerError::Contended`]: another session holds it.
    fn try_lock(&mut self, name: &str) -> Result<(), LedgerError>;
}
