//! What an engine brings: one connection to the ledger, used by one thread at a time, with what
//! each engine does its own way: records, receipts, turns, the schema. All else is asked by
//! statements that are written once ([`SqlSession`](crate::sql::SqlSession)). Every call returns
//! before the `until` that the session was opened, renewed or reopened with.
//!
//! One that fails with `Contended`, or that is refused as a statement, leaves the session usable.

use std::os::unix::net::UnixDatagram;
use std::time::{Instant, SystemTime};

use onedrop_core::directory::Destination;
use onedrop_core::ledger::claim::TurnState;
use onedrop_core::ledger::{
    Attempt, Claim, Confirmed, Entry, LeaseTerms, LedgerError, PlannedStep, Program, Recorded,
    SchemaVersion, ToConfirm,
};
use onedrop_core::lock_key::Hash;

/// One message to be recorded.
#[derive(Debug, Clone, Copy)]
pub struct ToRecord<'a> {
    pub entry: Entry<'a>,
    pub attempt: &'a Attempt,
    pub destinations: &'a [Destination],
    pub terms: LeaseTerms,
}

/// How many records and receipts go into one call of [`Session::record_and_confirm`] at most.
pub const MOST_TOGETHER: usize = 8;

/// The results of [`Session::record_and_confirm`], in argument order. `None`: nothing was done, it
/// has to be done alone. One that is alone has a result.
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
    fn record_and_confirm(
        &mut self,
        records: &[ToRecord<'_>],
        receipts: &[ToConfirm<'_>],
    ) -> Result<Committed, LedgerError>;

    /// After [`TurnState::Ours`] the lock is held until the copy is confirmed, [`leave`] is
    /// called, another call begins a transaction of its own, or the session is lost.
    ///
    /// [`leave`]: Session::leave
    fn take_turn(&mut self, claim: &Claim, copy_key: &Hash) -> Result<TurnState, LedgerError>;

    /// Gives up the turn, or the lock, that this session holds, if any.
    fn leave(&mut self) -> Result<(), LedgerError>;

    /// Hands an idle session on to another process: whether it went out. It must not be used then.
    fn hand_on(&mut self, _to: &UnixDatagram) -> Result<bool, LedgerError> {
        Ok(false)
    }

    /// For which program it is.
    fn program(&self) -> &Program;

    fn schema_version(&mut self) -> Result<SchemaVersion, LedgerError>;

    fn migrate(&mut self) -> Result<Vec<String>, LedgerError>;

    /// [`Schema::clock`](onedrop_core::ledger::Schema::clock) of this session's ledger.
    fn clock(&mut self) -> Result<Option<SystemTime>, LedgerError>;

    fn planned_migration(&mut self) -> Result<Vec<PlannedStep>, LedgerError>;

    /// Takes the lock called `name` until [`leave`](Session::leave).
    ///
    /// # Errors
    /// [`LedgerError::Contended`]: another session holds it.
    fn try_lock(&mut self, name: &str) -> Result<(), LedgerError>;
}
