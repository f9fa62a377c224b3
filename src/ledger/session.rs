//! What an engine brings: one connection to the ledger, used by one thread at a time. `pooled`
//! makes of it the ledger that everybody else sees. Every call returns before the `until` that the
//! session was opened, renewed or reopened with.
//!
//! A call means what the port's of the same name means. One that fails with `Contended`, or that is
//! refused as a statement, leaves the session usable.

use std::time::Instant;

use super::{
    Attempt, AttemptEnd, Claim, Confirmed, CopyOnRecord, CopyState, Entry, LeaseTerms, LedgerError,
    Recorded, ToConfirm, Trace, TraceFilter, Window,
};
use crate::directory::{Asked, Destination};
use crate::lock_key::Hash;
use crate::login::Way;
use crate::message::Identity;
use crate::receipt::Receipt;

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

/// What came of [`Session::commit`], for each in its order.
#[derive(Debug, Default)]
pub struct Committed {
    pub recorded: Vec<Result<Recorded, LedgerError>>,
    pub confirmed: Vec<Result<Confirmed, LedgerError>>,
}

/// As [`Turn`](super::Turn), in this session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionTurn {
    Ours { in_doubt: bool },
    Placed(Receipt),
    EpochGone,
}

/// See the module.
pub trait Session: Send {
    /// Begins another use of a session that was idle, or goes on with its turn: calls on it return
    /// before `until`. Where the session is seen to be lost, it is opened again.
    fn renew(&mut self, until: Instant) -> Result<(), LedgerError>;

    /// Drops the connection and opens another; calls on it return before `until`.
    fn reopen(&mut self, until: Instant) -> Result<(), LedgerError>;

    fn record(&mut self, one: &ToRecord<'_>) -> Result<Recorded, LedgerError>;

    /// Confirms, and ends the turn, if there is one, whatever comes of it.
    fn confirm(&mut self, one: &ToConfirm<'_>) -> Result<Confirmed, LedgerError>;

    /// Several records, and then several receipts of copies that nobody has a turn for, each with
    /// its own outcome; in one transaction, where that costs less than one for each.
    ///
    /// # Errors
    /// What kept all of them from being on record; after [`LedgerError::Unavailable`] nobody knows.
    /// Each may be tried alone then.
    fn commit(
        &mut self,
        records: &[ToRecord<'_>],
        receipts: &[ToConfirm<'_>],
    ) -> Result<Committed, LedgerError>;

    fn claim(
        &mut self,
        message: i64,
        destinations: &[Destination],
        owner: &Attempt,
        terms: LeaseTerms,
    ) -> Result<Vec<CopyState>, LedgerError>;

    /// After [`SessionTurn::Ours`] the lock is held until the copy is confirmed, [`leave`] is
    /// called, another call begins a transaction of its own, or the session is lost.
    ///
    /// [`leave`]: Session::leave
    fn take_turn(&mut self, claim: &Claim, copy_key: &Hash) -> Result<SessionTurn, LedgerError>;

    /// Gives up the turn, or the lock, that this session holds, if any.
    fn leave(&mut self) -> Result<(), LedgerError>;

    fn keep(&mut self, message: i64, bytes: &[u8], why: &str) -> Result<bool, LedgerError>;

    fn kept(&mut self, message: i64) -> Result<Option<String>, LedgerError>;

    fn kept_bytes(&mut self, message: i64) -> Result<Option<Vec<u8>>, LedgerError>;

    fn release(&mut self, claims: &[Claim]) -> Result<(), LedgerError>;

    /// Records how the attempt in row `attempt` ended.
    fn finish(&mut self, attempt: i64, end: &AttemptEnd) -> Result<(), LedgerError>;

    /// Records attempts that ended, and that have no row yet.
    fn note_attempts(
        &mut self,
        identity: &Identity,
        ended: &[(Attempt, AttemptEnd)],
    ) -> Result<(), LedgerError>;

    fn account_by_query(
        &mut self,
        query: &str,
        asked: &Asked,
    ) -> Result<Option<String>, LedgerError>;

    fn trace(&mut self, filter: &TraceFilter<'_>, limit: u32) -> Result<Vec<Trace>, LedgerError>;

    fn copies_to_verify(
        &mut self,
        window: &Window<'_>,
        after: Option<&CopyOnRecord>,
        limit: u32,
    ) -> Result<Vec<CopyOnRecord>, LedgerError>;

    fn latest_copies(&mut self, limit: u32) -> Result<Vec<(Destination, Receipt)>, LedgerError>;

    fn settle(&mut self, copy: &CopyOnRecord, receipt: &Receipt) -> Result<bool, LedgerError>;

    fn is_proven(&mut self, way: &Way) -> Result<bool, LedgerError>;

    fn note_proof(&mut self, way: &Way, holds: bool, host: &str) -> Result<(), LedgerError>;

    fn schema_version(&mut self) -> Result<i64, LedgerError>;

    fn migrate(&mut self) -> Result<Vec<String>, LedgerError>;

    /// Takes the lock called `name` until [`leave`](Session::leave).
    ///
    /// # Errors
    /// [`LedgerError::Contended`]: another session holds it.
    fn try_lock(&mut self, name: &str) -> Result<(), LedgerError>;
}
