//! The ledger's SQL, written once for all engines: statements with `?1` for their first value and
//! `{now}` or `{secs(m.recorded_at)}` for what engines spell differently, which each one's
//! [`Dialect`] says. An engine brings the sessions ([`SqlSession`]); what is asked and what is done
//! with the answers stands here.

mod dialect;
mod overview;
mod proof;
mod statement;

pub use dialect::Dialect;
pub use statement::{Sql, Value};
pub(crate) use statement::{sql, values};

use crate::Session;
use crate::rows::{Cell, SqlRow};
use onedrop_core::ledger::LedgerError;

/// What a session of an SQL engine does with statements. Each call is one round trip, if the engine
/// has round trips; an error ends the transaction, and nothing of it stands. If the session was
/// lost ([`LedgerError::Unavailable`]) what was to be committed may stand.
pub trait SqlSession: Session {
    type Row: SqlRow;

    fn dialect() -> &'static Dialect;

    /// Runs queries in a read-only transaction in which all see the same state.
    fn read(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Self::Row>>, LedgerError>;

    /// Runs statements in one transaction of their own, and commits it.
    fn write(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Self::Row>>, LedgerError>;

    /// Begins a transaction with `statements`. Each statement sees what was committed before it.
    fn begin(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Self::Row>>, LedgerError>;

    /// Runs `statements` in the open transaction.
    fn go_on(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Self::Row>>, LedgerError>;

    /// Runs `statements` in the open transaction, and commits it.
    fn commit(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Self::Row>>, LedgerError>;

    /// Ends the open transaction, if any; nothing of it stands.
    fn rollback(&mut self) -> Result<(), LedgerError>;

    /// The rows of one query.
    fn rows(&mut self, query: &Sql<'_>) -> Result<Vec<Self::Row>, LedgerError> {
        let answers = SqlSession::read(self, std::slice::from_ref(query))?;
        Ok(answers.into_iter().next().map(|answer| answer.rows).unwrap_or_default())
    }

    /// The first column of a query's first row.
    fn value<T: Cell>(&mut self, query: &Sql<'_>) -> Result<Option<T>, LedgerError> {
        self.rows(query)?.first().map(|row| row.cell(0)).transpose()
    }

    /// Runs one statement in a transaction of its own; how many rows it inserted, deleted or, by
    /// its condition, meant to change.
    fn change(&mut self, statement: &Sql<'_>) -> Result<u64, LedgerError> {
        let answers = SqlSession::write(self, std::slice::from_ref(statement))?;
        Ok(answers.first().map_or(0, |answer| answer.count))
    }

    /// The same, for what is said again soon: where a commit waits for a disk, this one need not.
    fn change_unsynced(&mut self, statement: &Sql<'_>) -> Result<u64, LedgerError> {
        self.change(statement)
    }
}

/// What came back of one statement.
#[derive(Debug)]
pub struct Answer<R> {
    /// Of a query, or of what `RETURNING` names.
    pub rows: Vec<R>,
    /// How many rows a statement inserted, deleted, or meant to change, also where they were so
    /// before. Of a query nothing.
    pub count: u64,
}
