//! The ledger's SQL, written once for all engines: statements with `?1` for their first value and
//! `{now}` or `{secs(m.recorded_at)}` for what engines spell differently, which each one's
//! [`Dialect`] says. An engine brings the sessions ([`SqlSession`]); what is asked and what is done
//! with the answers stands here.

pub(crate) mod asked;
pub(crate) mod attempts;
pub(crate) mod claims;
mod dialect;
mod jobs;
pub(crate) mod kept;
mod locks;
mod overview;
mod pages;
mod proof;
pub(crate) mod record;
pub(crate) mod retention;
pub(crate) mod settling;
pub(crate) mod shared;
mod statement;
mod trace;
pub(crate) mod verify;

pub(crate) use dialect::ACCOUNTS;
pub use dialect::Dialect;
pub use statement::{Sql, Value};
pub(crate) use statement::{sql, values};
pub(crate) use trace::story;

use std::os::fd::BorrowedFd;

use crate::Session;
use crate::rows::{self, Cell, SqlRow};
use onedrop_core::ledger::{LedgerError, SchemaVersion};
use onedrop_core::message::Identity;

/// What a session of an SQL engine does with statements. Each call is one round trip, if the engine
/// has round trips; an error of one ends the transaction, and nothing of it stands. If the session
/// was lost ([`LedgerError::Unavailable`]) what was to be committed may stand. After an error of
/// our own between two calls the transaction is open, and the pool closes the session.
pub trait SqlSession: Session {
    type Row: SqlRow;

    fn dialect() -> &'static Dialect;

    /// Runs queries in a read-only transaction in which all see the same state.
    fn read(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Self::Row>>, LedgerError>;

    /// Runs statements in one transaction of their own, and commits it.
    fn write(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Self::Row>>, LedgerError>;

    /// Begins a transaction with `statements`. Each statement sees what was committed before it.
    fn begin(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Self::Row>>, LedgerError>;

    /// Goes on with the transaction of this session's turn, if there is one; else begins one.
    fn begin_or_go_on(
        &mut self,
        statements: &[Sql<'_>],
    ) -> Result<Vec<Answer<Self::Row>>, LedgerError> {
        SqlSession::begin(self, statements)
    }

    /// Runs `statements` in the open transaction.
    fn go_on(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Self::Row>>, LedgerError>;

    /// Runs `statements` in the open transaction, and commits it.
    fn commit(&mut self, statements: &[Sql<'_>]) -> Result<Vec<Answer<Self::Row>>, LedgerError>;

    /// Ends the open transaction, if any; nothing of it stands.
    fn rollback(&mut self) -> Result<(), LedgerError>;

    /// Opens the session again if it has died unseen: before a call that is never made twice.
    fn revive(&mut self) -> Result<(), LedgerError>;

    /// Waits for the server's word on `channel`, or until one of `others` can be read. The first
    /// call for a channel returns at once: what was said before it listened is not heard. False, at
    /// once: there is no such word.
    fn wait_for_word(
        &mut self,
        _channel: &str,
        _others: &[BorrowedFd<'_>],
    ) -> Result<bool, LedgerError> {
        Ok(false)
    }

    /// Whether a statement was refused because a row with its key is there.
    fn is_duplicate(error: &LedgerError) -> bool;

    /// What is kept of a message, which may be longer than one answer. `None`: nothing, or no
    /// longer.
    fn bytes_of(&mut self, message: i64, kept: Kept) -> Result<Option<Vec<u8>>, LedgerError>;

    /// Puts bytes for a message's shared copies into the open transaction.
    fn put_kept(&mut self, message: i64, bytes: &[u8], why: &str) -> Result<(), LedgerError> {
        let text = "INSERT INTO onedrop_kept (message_id, bytes, why, kept_at)
                    VALUES (?1, ?2, ?3, {now})";
        SqlSession::go_on(self, &[sql!(text, message, bytes, why)]).map(drop)
    }

    /// Puts the bytes of a message, as they came, into the open transaction after `statements`,
    /// which insert it: adds its own to them, or runs and empties them.
    fn put_raw<'a>(
        &mut self,
        statements: &mut Vec<Sql<'a>>,
        message: &'a Identity,
        bytes: &'a [u8],
    ) -> Result<(), LedgerError> {
        let text = "INSERT INTO onedrop_raw (message_id, bytes, kept_at)
                    SELECT id, ?3, {now} FROM onedrop_message
                    WHERE {hashed(id_hash, ?1)} AND {digested(digest, ?2)}";
        statements.push(sql!(text, &message.id_hash, &message.digest, bytes));
        Ok(())
    }

    /// Says to all who listen at the server that this message, which is on record, is new.
    fn announce<'a>(&self, _message: &'a Identity) -> Option<Sql<'a>> {
        None
    }

    /// A record has found this version of the schema, with its oldest program, and this
    /// configuration, and they fit.
    fn saw(&mut self, _version: (i64, i64), _config: Option<String>) {}

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

    /// The same, where the commit need not be on a disk: a crash may undo it, and nothing that was
    /// committed before.
    fn change_unsynced(&mut self, statement: &Sql<'_>) -> Result<u64, LedgerError> {
        self.change(statement)
    }
}

/// Bytes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// For shared copies that are not placed (`onedrop_kept`).
    ForCopies,
    /// The bytes that came (`onedrop_raw`).
    Raw,
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

/// Runs statements by `run` ([`SqlSession::read`] or [`SqlSession::begin`]), in a ledger whose
/// schema goes with the session's program; what came back of each.
///
/// # Errors
/// [`LedgerError::Version`] where it does not.
pub(crate) fn checked<'a, S: SqlSession>(
    session: &mut S,
    run: impl FnOnce(&mut S, &[Sql<'a>]) -> Result<Vec<Answer<S::Row>>, LedgerError>,
    statements: impl IntoIterator<Item = Sql<'a>>,
) -> Result<Vec<Answer<S::Row>>, LedgerError> {
    let version = sql!("SELECT {int(version)}, {int(oldest_program)} FROM onedrop_ledger");
    let all: Vec<Sql<'a>> = [version].into_iter().chain(statements).collect();
    let answers = run(session, &all);
    Ok(fitting(session, answers, 0)?.split_off(1))
}

/// The answers, if the schema goes with the session's program: the row of the one `at` begins with
/// its version and its oldest program.
///
/// # Errors
/// [`LedgerError::Version`] where it does not.
pub(crate) fn fitting<S: SqlSession>(
    session: &mut S,
    answers: Result<Vec<Answer<S::Row>>, LedgerError>,
    at: usize,
) -> Result<Vec<Answer<S::Row>>, LedgerError> {
    let answers = match answers {
        // Another schema may have no such table.
        Err(LedgerError::Refused(why)) => {
            return Err(match session.schema_version().and_then(SchemaVersion::check) {
                Err(error @ LedgerError::Version(_)) => error,
                _ => LedgerError::Refused(why),
            });
        }
        answers => answers?,
    };
    let fits = match rows_at(&answers, at).first() {
        Some(ledger) => session.program().sees(ledger.cell(0)?, ledger.cell(1)?).check(),
        // Its migration was cut short, or it was changed by hand.
        None => session.schema_version()?.check().and(Err(rows::no_ledger())),
    };
    if let Err(error) = fits {
        session.rollback()?;
        return Err(error);
    }
    Ok(answers)
}

/// The rows of a statement.
pub(crate) fn rows_at<R>(answers: &[Answer<R>], at: usize) -> &[R] {
    answers.get(at).map_or(&[], |answer| answer.rows.as_slice())
}

/// The first column of its first row.
pub(crate) fn first<T: Cell, R: SqlRow>(
    answers: &[Answer<R>],
    at: usize,
) -> Result<Option<T>, LedgerError> {
    rows_at(answers, at).first().map(|row| row.cell(0)).transpose()
}

/// Whether it has changed a row.
pub(crate) fn has_changed<R>(answers: &[Answer<R>], at: usize) -> bool {
    answers.get(at).is_some_and(|answer| answer.count > 0)
}

/// Another session has inserted the row in this moment.
pub(crate) fn contended_if_duplicate<S: SqlSession>(error: LedgerError) -> LedgerError {
    if S::is_duplicate(&error) { LedgerError::Contended } else { error }
}
