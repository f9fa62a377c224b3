//! A session whose every wait is bounded: connecting (name, socket, TLS, login) and each round trip
//! end at `until`. tokio-postgres runs on a private single-threaded runtime that turns only while a
//! call is waiting. A session that did not answer in time is dropped with its connection, and so
//! are its transaction and its locks; it has to be opened again. Statements of one round trip are
//! sent before the first answer is read; they go unnamed and with the types they have, so a pooler
//! may put each transaction on another server connection, unless the target says otherwise.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use postgres::error::{DbError, Severity};
use postgres::types::{ToSql, Type};
use postgres::{Error, Row, SimpleQueryMessage, SimpleQueryRow};
use tokio::time::timeout_at;

use super::errors::{meaning_of, no_answer, unavailable};
use super::link::Link;
use super::target::Target;
use crate::ledger::LedgerError;

/// A statement with its parameters, numbered `$1` up in their order.
pub struct Statement<'a> {
    sql: &'a str,
    params: Vec<(&'a (dyn ToSql + Sync), Type)>,
    /// The text, of a statement worth keeping prepared where the connection can.
    kept: Option<&'static str>,
}

impl<'a> Statement<'a> {
    pub fn new(sql: &'a str) -> Statement<'a> {
        Statement { sql, params: Vec::new(), kept: None }
    }

    /// One that most deliveries run.
    pub fn kept(sql: &'static str) -> Statement<'a> {
        Statement { sql, params: Vec::new(), kept: Some(sql) }
    }

    pub fn with(mut self, value: &'a (dyn ToSql + Sync), kind: Type) -> Statement<'a> {
        self.params.push((value, kind));
        self
    }
}

/// What a transaction is for.
#[derive(Clone, Copy)]
pub enum Access {
    /// Every statement sees what was committed before it.
    Write,
    /// All statements see the same state.
    Read,
}

/// See the module.
pub struct Connection {
    target: Arc<Target>,
    until: Instant,
    link: Option<Link>,
    in_transaction: bool,
    /// The server's own transactions are not READ COMMITTED: [`call`](Connection::call) has to open
    /// one that is.
    calls_begin: bool,
}

impl Connection {
    pub(super) fn open(target: Arc<Target>, until: Instant) -> Result<Connection, LedgerError> {
        let link = Some(Link::to(&target, until)?);
        Ok(Connection { target, until, link, in_transaction: false, calls_begin: false })
    }

    pub fn reopen(&mut self, until: Instant) -> Result<(), LedgerError> {
        self.lose();
        self.until = until;
        self.link = Some(Link::to(&self.target, until)?);
        Ok(())
    }

    /// See [`Ledger::renew`](crate::ledger::Ledger::renew).
    pub fn renew(&mut self, until: Instant) -> Result<(), LedgerError> {
        self.until = until;
        match self.link.as_ref().is_some_and(Link::is_alive) {
            true => Ok(()),
            false => self.reopen(until),
        }
    }

    /// Opens a transaction and runs `sql` in it, all in one round trip; returns the rows of each
    /// statement of `sql`, of which there must be `results`. An error ends the transaction.
    pub fn begin(
        &mut self,
        sql: &str,
        results: usize,
    ) -> Result<Vec<Vec<SimpleQueryRow>>, LedgerError> {
        self.rollback()?;
        let sql = format!("{} {sql}", self.begin_sql(Access::Write));
        self.in_transaction = true;
        let outcome = self.batch(&sql).and_then(|mut sets| {
            let own = sets.len().checked_sub(results).map(|start| sets.split_off(start));
            own.ok_or_else(|| {
                LedgerError::Broken(format!("{} results, {results} expected", sets.len()))
            })
        });
        if outcome.is_err() {
            self.rollback_or_lose();
        }
        outcome
    }

    /// Opens a transaction and runs `statement` in it, in one round trip. An error ends the
    /// transaction.
    pub fn begin_with(&mut self, statement: &Statement<'_>) -> Result<Vec<Row>, LedgerError> {
        self.rollback()?;
        self.prepare(&[statement])?;
        self.in_transaction = true;
        let answered = self.run(async |link| {
            let begin = "BEGIN ISOLATION LEVEL READ COMMITTED";
            let begin: Sent<'_> =
                Box::pin(async { link.client.batch_execute(begin).await.map(|()| Vec::new()) });
            Ok(in_one_go([begin, sent(link, statement)].into_iter()).await)
        })?;
        let outcome = match answered.into_iter().collect::<Result<Vec<_>, Error>>() {
            Ok(rows) => only(rows),
            Err(error) => Err(self.explain(&error)),
        };
        if outcome.is_err() {
            self.rollback_or_lose();
        }
        outcome
    }

    /// Calls a function of the schema that does all of a step, in a transaction of its own. It says
    /// itself when that is none that it can work in (see the migration); then it gets one.
    pub fn call(&mut self, statement: &Statement<'_>) -> Result<Vec<Row>, LedgerError> {
        self.rollback()?;
        if !self.calls_begin {
            self.prepare(&[statement])?;
            let answered = self.run(async |link| Ok(sent(link, statement).await))?;
            match answered {
                Ok(rows) => return Ok(rows),
                Err(error) if error.code().is_some_and(|code| code.code() == WRONG_ISOLATION) => {
                    self.calls_begin = true;
                }
                Err(error) => return Err(self.explain(&error)),
            }
        }
        self.commit(std::slice::from_ref(statement)).and_then(only)
    }

    /// As [`call`](Connection::call), and where a transaction is open, in it and as its end.
    pub fn commit_call(&mut self, statement: &Statement<'_>) -> Result<Vec<Row>, LedgerError> {
        if !self.in_transaction {
            return self.call(statement);
        }
        self.commit(std::slice::from_ref(statement)).and_then(only)
    }

    /// How long the server may wait for a lock, in milliseconds: a bit more than we wait ourselves.
    /// For what we left behind.
    pub fn patience_ms(&self) -> i64 {
        i64::from(millis(self.left() + Duration::from_secs(1)))
    }

    /// How long the server may wait for us in a transaction. A host that vanished frees its locks
    /// by this.
    pub fn idle_ms(&self) -> i64 {
        i64::from(millis(self.left() + Duration::from_secs(5)))
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Has the server keep those of `statements` that are worth it, where it can.
    fn prepare(&mut self, statements: &[&Statement<'_>]) -> Result<(), LedgerError> {
        if !self.target.prepare {
            return Ok(());
        }
        for statement in statements {
            let Some(sql) = statement.kept else { continue };
            if self.link.as_ref().is_some_and(|link| link.prepared.contains_key(sql)) {
                continue;
            }
            let types: Vec<Type> = statement.params.iter().map(|(_, kind)| kind.clone()).collect();
            let prepared = self.run(async |link| link.client.prepare_typed(sql, &types).await)?;
            if let Some(link) = &mut self.link {
                link.prepared.insert(sql, prepared);
            }
        }
        Ok(())
    }

    /// Runs the statements in `sql`, which take no parameters; returns the rows of each.
    pub fn batch(&mut self, sql: &str) -> Result<Vec<Vec<SimpleQueryRow>>, LedgerError> {
        self.run(async |link| link.client.simple_query(sql).await).map(result_sets)
    }

    /// Runs `statements` in the open transaction, or in one of their own, and commits, all in one
    /// round trip; returns each one's rows. Any error rolls all of them back, and ends the
    /// transaction; where the session was lost, they may hold nevertheless.
    pub fn commit(&mut self, statements: &[Statement<'_>]) -> Result<Vec<Vec<Row>>, LedgerError> {
        self.send_and_end(Access::Write, statements)
    }

    /// Runs `statements` in a transaction of their own that changes nothing.
    pub fn read(&mut self, statements: &[Statement<'_>]) -> Result<Vec<Vec<Row>>, LedgerError> {
        self.rollback()?;
        self.send_and_end(Access::Read, statements)
    }

    /// Ends the open transaction, if any, and gives its locks back. Without a session there is
    /// none.
    pub fn rollback(&mut self) -> Result<(), LedgerError> {
        if !self.in_transaction {
            return Ok(());
        }
        self.in_transaction = false;
        self.run(async |link| link.client.batch_execute("ROLLBACK").await)
    }

    /// For the way out of a failure that matters more: the session is usable or gone.
    pub fn rollback_or_lose(&mut self) {
        if self.rollback().is_err() {
            self.lose();
        }
    }

    fn send_and_end(
        &mut self,
        access: Access,
        statements: &[Statement<'_>],
    ) -> Result<Vec<Vec<Row>>, LedgerError> {
        self.prepare(&statements.iter().collect::<Vec<_>>())?;
        let begin = if self.in_transaction { None } else { Some(self.begin_sql(access)) };
        self.in_transaction = false;
        let answered = self.run(async |link| {
            let client = &link.client;
            let begin = begin.iter().map(|sql| -> Sent<'_> {
                Box::pin(async move { client.batch_execute(sql).await.map(|()| Vec::new()) })
            });
            let own = statements.iter().map(|one| sent(link, one));
            let commit: Sent<'_> =
                Box::pin(async { client.batch_execute("COMMIT").await.map(|()| Vec::new()) });
            Ok(in_one_go(begin.chain(own).chain([commit])).await)
        })?;
        let skip = answered.len().saturating_sub(statements.len() + 1);
        match answered.into_iter().collect::<Result<Vec<_>, Error>>() {
            // Each wanted statement had its answer, and so had COMMIT.
            Ok(rows) if skip == usize::from(begin.is_some()) => {
                Ok(rows.into_iter().skip(skip).take(statements.len()).collect())
            }
            Ok(_) => Err(LedgerError::Broken("a statement without an answer".to_owned())),
            Err(error) => Err(self.explain(&error)),
        }
    }

    fn begin_sql(&self, access: Access) -> String {
        let (statement_ms, idle_ms) = (self.patience_ms(), self.idle_ms());
        let limits = format!(
            "SET LOCAL idle_in_transaction_session_timeout = {idle_ms}; SET LOCAL statement_timeout = {statement_ms};"
        );
        match access {
            // The level is spelled out because a server's default may be another, and then a row
            // re-read under a lock would show the past. A commit that the server may forget must
            // not let a copy be written.
            Access::Write => format!(
                "BEGIN ISOLATION LEVEL READ COMMITTED; {limits} SELECT set_config('synchronous_commit', 'on', true) \
                 WHERE current_setting('synchronous_commit') = 'off';"
            ),
            Access::Read => format!("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {limits}"),
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
        link.budget.renew();
        let answer = link.runtime.block_on(async { timeout_at(until.into(), work(link)).await });
        match answer {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(self.explain(&error)),
            Err(_) => {
                self.lose();
                Err(no_answer(began.elapsed()))
            }
        }
    }

    /// What `error` means; drops the session where it means its end.
    fn explain(&mut self, error: &Error) -> LedgerError {
        let meaning = meaning_of(error);
        let closed =
            error.is_closed() || self.link.as_ref().is_none_or(|link| link.client.is_closed());
        let answered = error.as_db_error();
        let fatal =
            |db: &DbError| matches!(db.parsed_severity(), Some(Severity::Fatal | Severity::Panic));
        if !closed && answered.is_some_and(|db| !fatal(db)) {
            return meaning;
        }
        // Without an answer of the server to this very statement the connection's own end may say
        // more.
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
        // Say goodbye (a pooler then keeps its server connection), but wait for nothing. In a
        // transaction the closed connection is what rolls it back.
        if let Some(link) = self.link.take().filter(|_| !self.in_transaction) {
            link.say_goodbye();
        }
    }
}

/// The rows of the last statement.
fn only(mut rows: Vec<Vec<Row>>) -> Result<Vec<Row>, LedgerError> {
    rows.pop().ok_or_else(|| LedgerError::Broken("a statement without an answer".to_owned()))
}

/// What the schema's functions say in a transaction that is not READ COMMITTED.
const WRONG_ISOLATION: &str = "OD001";

fn sent<'a>(link: &'a Link, statement: &'a Statement<'_>) -> Sent<'a> {
    match statement.kept.and_then(|sql| link.prepared.get(sql)) {
        Some(prepared) => Box::pin(async move {
            let params: Vec<&(dyn ToSql + Sync)> =
                statement.params.iter().map(|(value, _)| *value).collect();
            link.client.query(prepared, &params).await
        }),
        None => Box::pin(link.client.query_typed(statement.sql, &statement.params)),
    }
}

type Sent<'a> = Pin<Box<dyn Future<Output = Result<Vec<Row>, Error>> + 'a>>;

/// Waits for all of `requests`, which are sent in their order before the first answer is read:
/// tokio-postgres queues a request when its future is first polled. After one that could not be
/// sent the rest, and with it COMMIT, is not sent either: then the answers are fewer, and the last
/// is that error.
async fn in_one_go<'a>(requests: impl Iterator<Item = Sent<'a>>) -> Vec<Result<Vec<Row>, Error>> {
    let mut waiting: Vec<Sent<'a>> = Vec::new();
    let mut answers: Vec<Option<Result<Vec<Row>, Error>>> = Vec::new();
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

/// The rows of each statement of a simple query.
fn result_sets(messages: Vec<SimpleQueryMessage>) -> Vec<Vec<SimpleQueryRow>> {
    let (mut sets, mut set) = (Vec::new(), Vec::new());
    for message in messages {
        match message {
            SimpleQueryMessage::Row(row) => set.push(row),
            SimpleQueryMessage::CommandComplete(_) => sets.push(std::mem::take(&mut set)),
            _ => {}
        }
    }
    sets
}

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
                Ok(Vec::new())
            }),
            Box::pin(async { refused.map_or(Ok(Vec::new()), Err) }),
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
