//! A session in which every wait is bounded: connecting (name, socket, TLS, login) and each round
//! trip end at `until`. tokio-postgres runs on a private single-threaded runtime that turns only
//! during a call. A session without an answer in time is cancelled ([`cancel`](super::cancel)) and
//! closed: its transaction and locks end. Its COMMIT may stand, on this server alone.
//! All statements of a round trip are sent before the first answer is read. They are unnamed and
//! carry their types, so a pooler may give each transaction another server connection. The few that
//! every delivery runs are prepared where they come again and the server itself is at the other
//! end ([`Prepare`]).
//!
//! A prepared statement that the server does not know is refused before it has done anything, and
//! with it the transaction that it is in. So such a connection counts as one that died: it is
//! closed, the call is made again in another as after any that died, and this process prepares
//! nothing more.

use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixDatagram;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use postgres::error::{DbError, Severity};
use postgres::types::{ToSql, Type};
use postgres::{Error, Row};
use tokio::time::timeout_at;

use super::errors::{lacks_a_prepared_statement, meaning_of, unavailable};
use super::link::{Link, Listens, cannot_wait};
use super::target::Target;
use crate::given_up::{for_cancelling, no_answer};
use crate::handed::HandedSession;
use crate::rows;
use crate::sql::Answer;
use onedrop_core::ledger::QUESTION;
use onedrop_core::ledger::{LedgerError, Program};

/// A statement and its parameters, `$1` first.
pub struct Statement<'a> {
    sql: Cow<'a, str>,
    params: Vec<(Box<dyn ToSql + Sync + 'a>, Type)>,
    /// Every delivery runs it: it is prepared where the connection can keep it.
    is_kept: bool,
}

impl<'a> Statement<'a> {
    pub fn new(sql: impl Into<Cow<'a, str>>) -> Statement<'a> {
        Statement { sql: sql.into(), params: Vec::new(), is_kept: false }
    }

    /// A statement that every delivery runs.
    pub fn kept(sql: impl Into<Cow<'a, str>>) -> Statement<'a> {
        Statement { is_kept: true, ..Statement::new(sql) }
    }

    pub fn with(mut self, value: impl ToSql + Sync + 'a, kind: Type) -> Statement<'a> {
        self.params.push((Box::new(value), kind));
        self
    }
}

/// The kind of a transaction.
#[derive(Clone, Copy)]
pub enum TransactionMode {
    /// Every statement sees what was committed before it.
    Write,
    /// All statements see the same state.
    Read,
}

/// A session with a Postgres server, opened when it is first needed.
pub struct Connection {
    target: Arc<Target>,
    until: Instant,
    link: Option<Link>,
    in_transaction: bool,
    /// The server's default isolation is not READ COMMITTED: [`call`](Connection::call) opens a
    /// transaction itself.
    calls_begin: bool,
}

impl Connection {
    /// `handed`: another process has opened it.
    pub(super) fn open(
        target: Arc<Target>,
        handed: Option<HandedSession>,
        until: Instant,
    ) -> Result<Connection, LedgerError> {
        target.may_begin(until)?;
        let link = Some(Link::to(&target, handed, until)?);
        Ok(Connection { target, until, link, in_transaction: false, calls_begin: false })
    }

    /// [`Session::reopen`](crate::session::Session::reopen).
    pub fn reopen(&mut self, until: Instant) -> Result<(), LedgerError> {
        self.lose();
        self.target.may_begin(until)?;
        self.until = until;
        self.link = Some(Link::to(&self.target, None, until)?);
        Ok(())
    }

    /// [`Session::renew`](crate::session::Session::renew). Whether a connection that has just
    /// answered is still there shows in the call itself, which the pool makes once more if not: to
    /// look takes four system calls.
    pub fn renew(&mut self, until: Instant) -> Result<(), LedgerError> {
        self.target.may_begin(until)?;
        self.until = until;
        match self.link.as_ref().is_some_and(|link| link.answered_at.elapsed() < JUST) {
            true => Ok(()),
            false => self.revive(),
        }
    }

    /// Opens the session again if it is seen to have died.
    pub fn revive(&mut self) -> Result<(), LedgerError> {
        match self.link.as_ref().is_some_and(Link::is_alive) {
            true => Ok(()),
            false => self.reopen(self.until),
        }
    }

    /// Opens a transaction and runs `statement` in it, in one round trip. An error ends the
    /// transaction.
    pub fn begin(&mut self, statement: &Statement<'_>) -> Result<Vec<Row>, LedgerError> {
        only(rows_of(self.begin_all(std::slice::from_ref(statement))?))
    }

    /// Does what [`begin`](Connection::begin) does, with several statements.
    pub(super) fn begin_all(
        &mut self,
        statements: &[Statement<'_>],
    ) -> Result<Vec<Answer<Row>>, LedgerError> {
        self.rollback()?;
        let begin = self.begin_sql(TransactionMode::Write);
        let answered = self.send(Some(&begin), statements, None);
        if answered.is_err() {
            self.rollback_or_lose();
        }
        answered
    }

    /// Runs `statements` in the open transaction, which stays open unless one fails.
    pub(super) fn go_on_all(
        &mut self,
        statements: &[Statement<'_>],
    ) -> Result<Vec<Answer<Row>>, LedgerError> {
        let answered = self.send(None, statements, None);
        if answered.is_err() {
            self.rollback_or_lose();
        }
        answered
    }

    /// Calls a function of the schema that does a whole step: in the open transaction, which it
    /// commits, or in one of its own. If the function reports the wrong isolation level, it is
    /// called again in a suitable transaction.
    pub fn call(&mut self, statement: &Statement<'_>) -> Result<Vec<Row>, LedgerError> {
        // A question about the connection shares the transaction: a pooler may make each
        // transaction wait.
        let asks = self.asks_who_answers(std::slice::from_ref(statement));
        if !asks && !self.in_transaction && !self.calls_begin && !self.program().reads {
            self.prepare(std::slice::from_ref(statement))?;
            let answered = self.run(async |link| Ok(sent(link, statement).await))?;
            match answered {
                Ok(answer) => return Ok(answer.rows),
                Err(error) if error.code().is_some_and(|code| code.code() == WRONG_ISOLATION) => {
                    self.calls_begin = true;
                }
                Err(error) => return Err(self.explain(&error)),
            }
        }
        only(self.commit(std::slice::from_ref(statement))?)
    }

    /// For which program it is.
    pub fn program(&self) -> &Program {
        &self.target.program
    }

    /// Another session of the same kind.
    pub fn another(&self) -> Result<Connection, LedgerError> {
        Connection::open(Arc::clone(&self.target), None, self.until)
    }

    pub fn until(&self) -> Instant {
        self.until
    }

    /// Milliseconds that the server may wait for a lock: slightly more than the client waits, so
    /// that it ends statements that the client has given up.
    pub fn patience_ms(&self) -> i64 {
        i64::from(millis(self.left() + Duration::from_secs(1)))
    }

    /// Milliseconds that the server may wait for the client in a transaction; after that a vanished
    /// host's locks are free.
    pub fn idle_ms(&self) -> i64 {
        i64::from(millis(self.left() + Duration::from_secs(5)))
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Whether new messages are announced.
    pub fn notifies(&self) -> bool {
        self.target.notify
    }

    /// Whether it is to be asked, with `statements`, who is at the other end: one of them comes
    /// again, and would be prepared there if it is the server.
    fn asks_who_answers(&self, statements: &[Statement<'_>]) -> bool {
        let Some(link) = &self.link else { return false };
        let comes_again = |one: &Statement<'_>| one.is_kept && link.kept.contains_key(&*one.sql);
        self.target.prepares()
            && link.keeps_prepared.is_none()
            && statements.iter().any(comes_again)
    }

    /// Prepares those of `statements` that come again, in a connection that keeps them.
    fn prepare(&mut self, statements: &[Statement<'_>]) -> Result<(), LedgerError> {
        for statement in statements.iter().filter(|one| one.is_kept) {
            let Some(link) = &mut self.link else { break };
            if !self.target.prepares() {
                link.kept.clear();
                break;
            }
            let sql = statement.sql.as_ref();
            match link.kept.get(sql) {
                None => drop(link.kept.insert(sql.to_owned(), None)),
                Some(None) if link.keeps_prepared == Some(true) => {
                    let types: Vec<Type> =
                        statement.params.iter().map(|(_, kind)| kind.clone()).collect();
                    let prepared =
                        self.run(async |link| link.client.prepare_typed(sql, &types).await)?;
                    if let Some(link) = &mut self.link {
                        link.kept.insert(sql.to_owned(), Some(prepared));
                    }
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// [`SqlSession::wait_for_word`](crate::sql::SqlSession::wait_for_word), by LISTEN. There is no
    /// word through a pooler, nor where the schema says none. Where it is refused it is not asked
    /// for once more in this connection.
    pub fn listen(
        &mut self,
        channel: &str,
        others: &[BorrowedFd<'_>],
    ) -> Result<bool, LedgerError> {
        self.rollback()?;
        let heard = match self.link.as_ref().map(|link| (link, &link.listens)) {
            Some((_, Listens::ToNobody)) => Ok(false),
            Some((link, Listens::To(known))) if known == channel => {
                link.wait_for_word(others).map(|()| true).map_err(cannot_wait)
            }
            _ => self.begin_to_listen(channel),
        };
        match &mut self.link {
            Some(link) if !matches!(heard, Ok(true)) => {
                link.listens = Listens::ToNobody;
                Ok(false)
            }
            _ => heard,
        }
    }

    fn begin_to_listen(&mut self, channel: &str) -> Result<bool, LedgerError> {
        let answered_by = self.query(Statement::new(WHO_ANNOUNCES))?;
        if !self.link.as_ref().is_some_and(|link| link.is_of(&answered_by)) {
            return Ok(false);
        }
        self.batch(&format!("UNLISTEN *; LISTEN {channel}"))?;
        if let Some(link) = &mut self.link {
            link.listens = Listens::To(channel.to_owned());
        }
        Ok(true)
    }

    /// [`Session::hand_on`](crate::session::Session::hand_on). Only a session of the server itself:
    /// a pooler keeps sessions its own way.
    pub fn hand_on(&mut self, to: &UnixDatagram) -> Result<bool, LedgerError> {
        let is_one_of_several = self.target.hosts.len() > 1;
        if is_one_of_several || !self.link.as_ref().is_some_and(Link::has_own_socket) {
            return Ok(false);
        }
        if !self.link.as_ref().is_some_and(|link| link.is_servers) {
            let answered_by = self.query(Statement::new(WHO_ANSWERS))?;
            if !self.link.as_ref().is_some_and(|link| link.is_of(&answered_by)) {
                return Ok(false);
            }
        }
        // After its answer the server says nothing unasked.
        self.batch("DISCARD ALL")?;
        Ok(self.link.take().is_some_and(|link| link.hand_on(to)))
    }

    /// Runs the statements in `sql`, which take no parameters and return nothing.
    pub fn batch(&mut self, sql: &str) -> Result<(), LedgerError> {
        self.run(async |link| link.client.batch_execute(sql).await)
    }

    /// Runs `statements` in the open transaction, or in one of their own, and commits, all in one
    /// round trip; returns each one's rows. An error rolls all of them back and ends the
    /// transaction; if the session was lost, they may be committed.
    pub fn commit(&mut self, statements: &[Statement<'_>]) -> Result<Vec<Vec<Row>>, LedgerError> {
        self.send_and_end(TransactionMode::Write, statements).map(rows_of)
    }

    /// Does what [`commit`](Connection::commit) does, in a transaction of their own.
    pub fn write(&mut self, statements: &[Statement<'_>]) -> Result<Vec<Vec<Row>>, LedgerError> {
        self.rollback()?;
        self.commit(statements)
    }

    /// Runs `statements` in a read-only transaction.
    pub fn read(&mut self, statements: &[Statement<'_>]) -> Result<Vec<Vec<Row>>, LedgerError> {
        self.rollback()?;
        self.send_and_end(TransactionMode::Read, statements).map(rows_of)
    }

    /// Runs one query in a read-only transaction.
    pub fn query(&mut self, statement: Statement<'_>) -> Result<Vec<Row>, LedgerError> {
        only(self.read(&[statement])?)
    }

    pub fn is_in_transaction(&self) -> bool {
        self.in_transaction
    }

    /// Ends the open transaction, if any, and releases its locks.
    pub fn rollback(&mut self) -> Result<(), LedgerError> {
        if !self.in_transaction {
            return Ok(());
        }
        self.in_transaction = false;
        self.batch("ROLLBACK")
    }

    /// After another failure: rolls back, or closes the session.
    pub fn rollback_or_lose(&mut self) {
        if self.rollback().is_err() {
            self.lose();
        }
    }

    pub(super) fn send_and_end(
        &mut self,
        mode: TransactionMode,
        statements: &[Statement<'_>],
    ) -> Result<Vec<Answer<Row>>, LedgerError> {
        let begin = (!self.in_transaction).then(|| self.begin_sql(mode));
        self.send(begin.as_deref(), statements, Some("COMMIT"))
    }

    /// Sends everything in one go; returns the answer to each of `statements`.
    fn send(
        &mut self,
        begin: Option<&str>,
        statements: &[Statement<'_>],
        end: Option<&str>,
    ) -> Result<Vec<Answer<Row>>, LedgerError> {
        let asks = self.asks_who_answers(statements);
        self.prepare(statements)?;
        self.in_transaction = end.is_none();
        let question = asks.then(|| Statement::new(WHO_ANSWERS));
        let answered = self.run(async |link| {
            let plain = |sql| -> Sent<'_> {
                Box::pin(async move {
                    link.client.batch_execute(sql).await?;
                    Ok(Answer { rows: Vec::new(), count: 0 })
                })
            };
            let own = statements.iter().chain(&question).map(|one| sent(link, one));
            Ok(in_one_go(begin.map(plain).into_iter().chain(own).chain(end.map(plain))).await)
        })?;
        let first = usize::from(begin.is_some());
        let own = statements.len() + usize::from(asks);
        let count = first + own + usize::from(end.is_some());
        match answered.into_iter().collect::<Result<Vec<_>, Error>>() {
            Ok(answers) if answers.len() == count => {
                let mut answers: Vec<_> = answers.into_iter().skip(first).take(own).collect();
                if let Some(answer) = question.and_then(|_| answers.pop())
                    && let Some(link) = &mut self.link
                {
                    link.is_answered_by(&answer.rows);
                }
                Ok(answers)
            }
            Ok(_) => Err(no_answer_to_a_statement()),
            Err(error) => Err(self.explain(&error)),
        }
    }

    fn begin_sql(&self, mode: TransactionMode) -> String {
        let only_reads = self.program().reads;
        let most = if only_reads { rows::millis(QUESTION) } else { i64::MAX };
        let (statement_ms, idle_ms) = (self.patience_ms().min(most), self.idle_ms());
        let limits = format!(
            "SET LOCAL idle_in_transaction_session_timeout = {idle_ms};
             SET LOCAL statement_timeout = {statement_ms};"
        );
        match mode {
            // The level is explicit, because under another default a row re-read under a lock would
            // be an old one. A copy must not be written after a commit that the server may lose;
            // that a commit has not waited for its standby is said by a warning alone.
            TransactionMode::Write if !only_reads => format!(
                "BEGIN ISOLATION LEVEL READ COMMITTED; {limits}
                 SET LOCAL client_min_messages = warning;
                 SELECT set_config('synchronous_commit', 'on', true) \
                 WHERE current_setting('synchronous_commit') = 'off';"
            ),
            // Compiling what is planned for many rows takes ten times as long as to run it.
            TransactionMode::Write | TransactionMode::Read => format!(
                "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {limits} SET LOCAL jit = off;"
            ),
        }
    }

    fn run<T>(
        &mut self,
        work: impl AsyncFnOnce(&Link) -> Result<T, Error>,
    ) -> Result<T, LedgerError> {
        let Some(link) = &self.link else {
            return Err(LedgerError::Unavailable("the session was lost".to_owned()));
        };
        let until = self.until;
        let began = Instant::now();
        let left = until.saturating_duration_since(began);
        if left < LEAST {
            // An open transaction ends with its session.
            self.lose();
            return Err(no_answer(Duration::ZERO));
        }
        let answered_by = until.checked_sub(for_cancelling(left)).unwrap_or(until);
        link.budget.renew();
        let answer =
            link.runtime.block_on(async { timeout_at(answered_by.into(), work(link)).await });
        match answer {
            Ok(Ok(_)) if link.has_stopped_waiting() => {
                self.lose();
                Err(LedgerError::Unavailable(STOPPED_WAITING.to_owned()))
            }
            Ok(Ok(value)) => {
                if let Some(link) = &mut self.link {
                    link.answered_at = Instant::now();
                }
                Ok(value)
            }
            Ok(Err(error)) => Err(self.explain(&error)),
            Err(_) => {
                let waited = began.elapsed();
                link.cancel(&self.target, until);
                self.lose();
                self.target.given_up.note(until, waited);
                Err(no_answer(waited))
            }
        }
    }

    /// The meaning of `error`; closes the session if the error ends it.
    fn explain(&mut self, error: &Error) -> LedgerError {
        let meaning = match meaning_of(error) {
            LedgerError::Denied(what) => LedgerError::Denied(self.target.with_role(what)),
            meaning => meaning,
        };
        let closed =
            error.is_closed() || self.link.as_ref().is_none_or(|link| link.client.is_closed());
        if self.target.may_prepare() && lacks_a_prepared_statement(error) {
            self.target.prepare_no_more(error);
            self.lose();
            return unavailable(error);
        }
        let answered = error.as_db_error();
        let fatal =
            |db: &DbError| matches!(db.parsed_severity(), Some(Severity::Fatal | Severity::Panic));
        if !closed && answered.is_some_and(|db| !fatal(db)) {
            return meaning;
        }
        // If the server did not answer this statement, the connection's own error says more.
        let cause = match answered {
            None if closed => self.link.as_mut().and_then(Link::end_cause),
            _ => None,
        };
        self.lose();
        cause.map_or(meaning, |cause| unavailable(&cause))
    }

    fn lose(&mut self) {
        self.in_transaction = false;
        self.link = None;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Terminate, so that a pooler keeps its server connection, but wait for nothing. An open
        // transaction is rolled back by closing the connection.
        if let Some(link) = self.link.take().filter(|_| !self.in_transaction) {
            link.say_goodbye();
        }
    }
}

/// The rows of the last statement.
fn only(mut rows: Vec<Vec<Row>>) -> Result<Vec<Row>, LedgerError> {
    rows.pop().ok_or_else(no_answer_to_a_statement)
}

fn no_answer_to_a_statement() -> LedgerError {
    LedgerError::Broken("a statement without an answer".to_owned())
}

const STOPPED_WAITING: &str = "the server was told not to wait for its synchronous standby: a \
    fail-over may undo this commit";

/// Which process of the server works for the session at this moment.
const WHO_ANSWERS: &str = "SELECT pg_backend_pid()";

/// The same, where the schema announces locks that are given back: not before version 11.
const WHO_ANNOUNCES: &str = "
SELECT pg_backend_pid() WHERE EXISTS (
    SELECT FROM pg_trigger WHERE tgrelid = to_regclass('onedrop_lock_lease')
      AND tgname = 'onedrop_lock_freed' AND tgenabled <> 'D')";

/// SQLSTATE of the schema's functions in a transaction that is not READ COMMITTED.
const WRONG_ISOLATION: &str = "OD001";

fn sent<'a>(link: &'a Link, statement: &'a Statement<'_>) -> Sent<'a> {
    let prepared = link.kept.get(statement.sql.as_ref()).and_then(Option::as_ref);
    Box::pin(async move {
        let params: Vec<(&(dyn ToSql + Sync), Type)> =
            statement.params.iter().map(|(value, kind)| (&**value as _, kind.clone())).collect();
        let stream = match prepared {
            Some(prepared) => {
                link.client.query_raw(prepared, params.iter().map(|(value, _)| *value)).await?
            }
            None => link.client.query_typed_raw(&statement.sql, params).await?,
        };
        let mut stream = pin!(stream);
        let mut rows = Vec::new();
        while let Some(row) = stream.as_mut().try_next().await? {
            rows.push(row);
        }
        let count = stream.rows_affected().unwrap_or_default();
        Ok(Answer { rows, count })
    })
}

fn rows_of(answers: Vec<Answer<Row>>) -> Vec<Vec<Row>> {
    answers.into_iter().map(|answer| answer.rows).collect()
}

type Sent<'a> = Pin<Box<dyn Future<Output = Result<Answer<Row>, Error>> + 'a>>;

/// Sends all `requests` in order before it reads the first answer (tokio-postgres queues a request
/// when its future is first polled), then waits for all answers. After a request that cannot be
/// sent, the rest and with it COMMIT is not sent either; then that error is the last answer.
async fn in_one_go<'a>(
    requests: impl Iterator<Item = Sent<'a>>,
) -> Vec<Result<Answer<Row>, Error>> {
    let mut waiting: Vec<Sent<'a>> = Vec::new();
    let mut answers: Vec<Option<Result<Answer<Row>, Error>>> = Vec::new();
    for mut request in requests {
        let at_once = poll_fn(|context| match request.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => Poll::Ready(None),
        })
        .await;
        let unsent = matches!(at_once, Some(Err(_)));
        waiting.push(request);
        answers.push(at_once);
        if unsent {
            break;
        }
    }
    poll_fn(|context| {
        for (request, answer) in waiting.iter_mut().zip(&mut answers) {
            if answer.is_none()
                && let Poll::Ready(ready) = request.as_mut().poll(context)
            {
                *answer = Some(ready);
            }
        }
        if answers.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    answers.into_iter().flatten().collect()
}

/// A connection that answered within this time is not looked at before it is used.
const JUST: Duration = Duration::from_secs(1);

/// With less time than this nothing is asked: half of it is what a request to cancel needs on a
/// busy host, and PgBouncer 1.18 ends with a fatal error if its sender goes before it is heard.
const LEAST: Duration = Duration::from_millis(250);

/// In the range of the server's limits.
fn millis(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_statement_that_could_not_be_sent_none_is() {
        let refused = "postgres://h:port/".parse::<tokio_postgres::Config>().err();
        let requests: [Sent<'_>; 3] = [
            Box::pin(async {
                tokio::task::yield_now().await;
                Ok(Answer { rows: Vec::new(), count: 0 })
            }),
            Box::pin(async { refused.map_or(Ok(Answer { rows: Vec::new(), count: 0 }), Err) }),
            Box::pin(async { panic!("COMMIT was sent") }),
        ];
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let answers = runtime.block_on(in_one_go(requests.into_iter()));
        assert!(matches!(answers.as_slice(), [Ok(_), Err(_)]));
    }

    #[test]
    fn limits_of_the_server_are_within_its_range() {
        assert_eq!(millis(Duration::MAX), i32::MAX);
        assert_eq!(millis(Duration::from_millis(1500)), 1500);
    }
}
