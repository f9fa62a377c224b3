//! A session in which every wait is bounded: connecting (name, socket, TLS, login) and each round
//! trip end at `until`. mysql_async runs on a private single-threaded runtime that turns only
//! during a call. A session without an answer in time is cancelled and closed: its transaction and
//! locks end, and its COMMIT may stand.
//! The statements of a round trip go in one packet: the server stops at the first that fails, and
//! then the transaction is rolled back, because MariaDB undoes that statement alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Params, Row, Value as Param};

use super::errors::meaning_of;
use super::link::MariadbLink;
use super::statement::{SqlBatch, Value, values};
use super::target::{MariadbTarget, PACKET_BYTES};
use crate::given_up::{for_cancelling, no_answer};
use crate::rows::SqlRow;
use crate::sql::Answer;
use onedrop_core::deadline::UNACKNOWLEDGED;
use onedrop_core::ledger::QUESTION;
use onedrop_core::ledger::{LedgerError, Program};

/// A session that has answered within this time is not asked for a sign of life.
const JUST: Duration = Duration::from_secs(1);

/// The answer to each statement.
pub type Answers = Vec<Answer<Row>>;

/// A session with a MariaDB server, opened when it is first needed.
pub struct MariadbSession {
    target: Arc<MariadbTarget>,
    until: Instant,
    link: Option<MariadbLink>,
    answered_at: Instant,
    in_transaction: bool,
    seen: Option<Seen>,
}

/// What a record found of the ledger as a whole, and found to fit this program: the schema's
/// version and oldest program, and the configuration that all hosts have alike.
#[derive(Clone, PartialEq, Eq)]
pub struct Seen {
    pub version: (i64, i64),
    pub config: Option<String>,
}

impl MariadbSession {
    pub(super) fn open(
        target: Arc<MariadbTarget>,
        until: Instant,
    ) -> Result<MariadbSession, LedgerError> {
        target.given_up.may_begin(until).map_err(no_answer)?;
        let link = Some(MariadbLink::to(&target, until)?);
        let answered_at = Instant::now();
        Ok(MariadbSession { target, until, link, answered_at, in_transaction: false, seen: None })
    }

    /// [`Session::reopen`](crate::session::Session::reopen).
    pub fn reopen(&mut self, until: Instant) -> Result<(), LedgerError> {
        self.lose();
        self.target.given_up.may_begin(until).map_err(no_answer)?;
        self.until = until;
        self.link = Some(MariadbLink::to(&self.target, until)?);
        self.answered_at = Instant::now();
        Ok(())
    }

    /// [`Session::renew`](crate::session::Session::renew). If a session that has answered just now
    /// is dead, the next call shows it, and the pool makes that once more; if its server is silent,
    /// that call takes all its time.
    pub fn renew(&mut self, until: Instant) -> Result<(), LedgerError> {
        self.target.given_up.may_begin(until).map_err(no_answer)?;
        self.until = until;
        match self.link.is_some() && self.answered_at.elapsed() < JUST {
            true => Ok(()),
            false => self.revive(),
        }
    }

    /// Opens the session again if it has died. The driver does not let its socket have a
    /// TCP_USER_TIMEOUT: a server that is gone without a word is asked for a word, and given as
    /// much time.
    pub fn revive(&mut self) -> Result<(), LedgerError> {
        let soon = self.until.min(Instant::now() + UNACKNOWLEDGED);
        match self.link.as_mut().map(|link| link.run(soon, async |conn| conn.ping().await)) {
            Some(Ok(Some(Ok(())))) => Ok(()),
            _ => self.reopen(self.until),
        }
    }

    /// Begins a transaction with `statements`; the next ones go on with it. An error ends it.
    pub fn begin(&mut self, statements: SqlBatch) -> Result<Answers, LedgerError> {
        self.rollback()?;
        let mut all = self.beginning();
        let own = all.count();
        all.append(statements);
        self.in_transaction = true;
        self.send_or_roll_back(all).map(|answers| behind(answers, own))
    }

    /// Goes on with the open transaction, or begins one.
    pub fn begin_or_go_on(&mut self, statements: SqlBatch) -> Result<Answers, LedgerError> {
        match self.in_transaction {
            true => self.go_on(statements),
            false => self.begin(statements),
        }
    }

    /// Does what [`write`](MariadbSession::write) does, but where a statement is refused all before
    /// it stays done, in a transaction that is open still: the caller goes on with it or ends it.
    pub fn write_as_far_as_it_goes(
        &mut self,
        statements: SqlBatch,
    ) -> Result<Answers, LedgerError> {
        self.rollback()?;
        let mut all = self.beginning();
        let own = all.count();
        all.append(statements);
        all.add("COMMIT", &[]);
        self.in_transaction = true;
        let answers = self.send(all);
        match &answers {
            Ok(_) => self.in_transaction = false,
            Err(LedgerError::Refused(_)) => {}
            Err(_) => self.rollback_or_lose(),
        }
        answers.map(|answers| behind(answers, own))
    }

    /// Runs `statements` in the open transaction, which stays open. An error ends it.
    pub fn go_on(&mut self, statements: SqlBatch) -> Result<Answers, LedgerError> {
        self.send_or_roll_back(statements)
    }

    /// Runs `statements` in the open transaction and commits, in one round trip. An error rolls all
    /// of it back; if the session was lost, it may be committed.
    pub fn commit(&mut self, mut statements: SqlBatch) -> Result<Answers, LedgerError> {
        statements.add("COMMIT", &[]);
        let answers = self.send_or_roll_back(statements)?;
        self.in_transaction = false;
        Ok(answers)
    }

    /// Does what [`commit`](MariadbSession::commit) does, in a transaction of their own.
    pub fn write(&mut self, mut statements: SqlBatch) -> Result<Answers, LedgerError> {
        statements.add("COMMIT", &[]);
        let answers = self.begin(statements)?;
        self.in_transaction = false;
        Ok(answers)
    }

    /// Runs `statements` in a read-only transaction in which all see the same state.
    pub fn read(&mut self, statements: SqlBatch) -> Result<Answers, LedgerError> {
        self.rollback()?;
        let mut all = SqlBatch::default();
        self.limits(&mut all);
        all.add("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", &[]);
        all.add("START TRANSACTION READ ONLY", &[]);
        let own = all.count();
        all.append(statements);
        all.add("COMMIT", &[]);
        self.in_transaction = true;
        let answers = self.send_or_roll_back(all)?;
        self.in_transaction = false;
        Ok(behind(answers, own))
    }

    /// Runs one query.
    pub fn query(&mut self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>, LedgerError> {
        let answers = self.read(SqlBatch::of(sql, values))?;
        Ok(answers.into_iter().next().map(|answer| answer.rows).unwrap_or_default())
    }

    /// Runs what the schema's file says, or another statement that ends transactions by itself.
    pub fn batch(&mut self, sql: &str) -> Result<Answers, LedgerError> {
        self.rollback()?;
        let mut all = SqlBatch::default();
        self.limits(&mut all);
        let own = all.count();
        all.add(sql, &[]);
        self.send(all).map(|answers| behind(answers, own))
    }

    /// Runs a query of somebody else's in a read-only transaction, with `params` as its parameters.
    ///
    /// # Returns
    /// How many columns it has, and the rows.
    pub fn foreign_query(
        &mut self,
        sql: &str,
        params: Vec<Param>,
    ) -> Result<(usize, Vec<Row>), LedgerError> {
        let mut begin = SqlBatch::default();
        self.rollback()?;
        self.limits(&mut begin);
        begin.add("START TRANSACTION READ ONLY", &[]);
        self.in_transaction = true;
        self.send_or_roll_back(begin)?;
        let answer = self.run(async |conn| {
            let statement = conn.prep(sql).await?;
            let columns = statement.columns().len();
            let params = match params.is_empty() {
                true => Params::Empty,
                false => Params::Positional(params),
            };
            let rows = match columns {
                1 | 2 => {
                    let mut result = conn.exec_iter(&statement, params).await?;
                    let mut budget = PACKET_BYTES;
                    let rows = rows_of(&mut budget, async || result.next().await).await?;
                    result.drop_result().await?;
                    rows
                }
                _ => Vec::new(),
            };
            conn.close(statement).await?;
            Ok((columns, rows))
        });
        self.rollback_or_lose();
        answer
    }

    /// Ends the open transaction, if any, and releases its locks.
    pub fn rollback(&mut self) -> Result<(), LedgerError> {
        if !self.in_transaction {
            return Ok(());
        }
        self.in_transaction = false;
        self.send(SqlBatch::of("ROLLBACK", &[])).map(drop)
    }

    /// After another failure: rolls back, or closes the session.
    pub fn rollback_or_lose(&mut self) {
        if self.rollback().is_err() {
            self.lose();
        }
    }

    /// Whether a transaction is open.
    pub fn is_in_transaction(&self) -> bool {
        self.in_transaction
    }

    /// What the last record in this session has seen.
    pub fn seen(&self) -> Option<&Seen> {
        self.seen.as_ref()
    }

    pub fn saw(&mut self, seen: Seen) {
        self.seen = Some(seen);
    }

    /// For which program it is.
    pub fn program(&self) -> &Program {
        &self.target.program
    }

    /// Time that is left.
    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    fn beginning(&self) -> SqlBatch {
        let mut batch = SqlBatch::default();
        self.limits(&mut batch);
        let begin = match self.program().reads {
            true => "START TRANSACTION READ ONLY",
            false => "START TRANSACTION READ WRITE",
        };
        batch.add(begin, &[]);
        batch
    }

    /// The server waits a little longer than this end does, so that it ends statements, and
    /// transactions of a host that has vanished.
    fn limits(&self, batch: &mut SqlBatch) {
        let secs = i64::try_from(self.left().as_secs()).unwrap_or(i64::MAX / 4).min(86_400) + 1;
        let question = i64::try_from(QUESTION.as_secs()).unwrap_or(secs);
        let secs = if self.program().reads { secs.min(question) } else { secs };
        batch.add(
            "SET innodb_lock_wait_timeout = ?1, lock_wait_timeout = ?1, max_statement_time = ?1,
                 idle_transaction_timeout = ?2",
            values![secs, secs + 5],
        );
    }

    fn send_or_roll_back(&mut self, statements: SqlBatch) -> Result<Answers, LedgerError> {
        let answers = self.send(statements);
        if answers.is_err() {
            self.rollback_or_lose();
        }
        answers
    }

    /// Sends all in one packet; the answer to each statement.
    fn send(&mut self, statements: SqlBatch) -> Result<Answers, LedgerError> {
        let (all, sql) = (statements.count(), statements.into_sql());
        self.run(async |conn| {
            let mut result = conn.query_iter(sql).await?;
            let (mut answers, mut budget) = (Vec::new(), PACKET_BYTES);
            while !result.is_empty() {
                // Reading goes on to the next statement's.
                let count = result.affected_rows();
                let rows = rows_of(&mut budget, async || result.next().await).await?;
                answers.push(Answer { rows, count });
            }
            if answers.len() < all {
                answers.push(Answer { rows: Vec::new(), count: result.affected_rows() });
            }
            result.drop_result().await?;
            Ok(answers)
        })
    }

    fn run<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut Conn) -> Result<T, Error>,
    ) -> Result<T, LedgerError> {
        let Some(link) = &mut self.link else {
            return Err(LedgerError::Unavailable("the session was lost".to_owned()));
        };
        let began = Instant::now();
        let left = self.until.saturating_duration_since(began);
        let answered_by = self.until.checked_sub(for_cancelling(left)).unwrap_or(self.until);
        let error = match link.run(answered_by, work) {
            Ok(Some(Ok(value))) => {
                self.answered_at = Instant::now();
                return Ok(value);
            }
            Ok(Some(Err(error))) => meaning_of(&error),
            Ok(None) => {
                let waited = began.elapsed();
                link.cancel(&self.target, self.until);
                self.target.given_up.note(self.until, waited);
                no_answer(waited)
            }
            Err(error) => error,
        };
        if matches!(error, LedgerError::Unavailable(_)) {
            self.lose();
        }
        Err(error)
    }

    fn lose(&mut self) {
        self.in_transaction = false;
        self.link = None;
        self.seen = None;
    }
}

impl Drop for MariadbSession {
    fn drop(&mut self) {
        // An open transaction is rolled back by closing the connection.
        if let Some(link) = self.link.take().filter(|_| !self.in_transaction) {
            link.say_goodbye();
        }
    }
}

/// The rows up to the end of a result; a server that sends more than anybody asks for is not
/// listened to.
async fn rows_of(
    budget: &mut usize,
    mut next: impl AsyncFnMut() -> Result<Option<Row>, Error>,
) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    while let Some(row) = next().await? {
        let bytes = (0..row.len()).map(|at| match row.as_ref(at) {
            Some(Param::Bytes(bytes)) => bytes.len() + 16,
            _ => 16,
        });
        *budget = budget.checked_sub(bytes.sum::<usize>() + 16).ok_or_else(|| {
            let text = "the server sends more than it should";
            Error::from(std::io::Error::new(std::io::ErrorKind::InvalidData, text))
        })?;
        rows.push(row);
    }
    Ok(rows)
}

/// The answers after our own statements.
fn behind(mut answers: Answers, own: usize) -> Answers {
    answers.drain(..own.min(answers.len()));
    answers
}

/// The rows of a statement.
pub(super) fn rows_at(answers: &Answers, at: usize) -> &[Row] {
    answers.get(at).map_or(&[], |answer| answer.rows.as_slice())
}

/// The first column of the first row.
pub(super) fn first<T: crate::rows::Cell>(rows: &[Row]) -> Result<Option<T>, LedgerError> {
    rows.first().map(|row| row.cell(0)).transpose()
}
