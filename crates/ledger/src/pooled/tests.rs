//! The pool over an engine that misbehaves.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, SystemTime};

use super::*;
use crate::sql::{Answer, Dialect, Kept, Sql};
use crate::sqlite::SqliteSession;
use onedrop_core::ledger::{CopyFacts, Program, RandomValue};
use onedrop_core::receipt::Receipt;

/// The locks of one server, and what its sessions do wrong.
#[derive(Default)]
struct Server {
    locks: Mutex<BTreeSet<String>>,
    keeps_locks: bool,
    refuses_locks: bool,
    /// What the next calls come to, the last one first.
    ends: Mutex<Vec<LedgerError>>,
}

/// A session of the server.
struct FakeSession {
    server: Arc<Server>,
    holds: Option<String>,
}

impl FakeSession {
    fn end<T>(&self, value: T) -> Result<T, LedgerError> {
        match self.server.ends.lock().unwrap().pop() {
            Some(error) => Err(error),
            None => Ok(value),
        }
    }
}

type SqliteRow = <SqliteSession as SqlSession>::Row;

const UNUSED: &str = "no test calls this";

impl Session for FakeSession {
    fn renew(&mut self, _: Instant) -> Result<(), LedgerError> {
        Ok(())
    }

    fn reopen(&mut self, _: Instant) -> Result<(), LedgerError> {
        Ok(())
    }

    fn record_and_confirm(
        &mut self,
        records: &[ToRecord<'_>],
        receipts: &[ToConfirm<'_>],
    ) -> Result<Committed, LedgerError> {
        assert_eq!((records.len(), receipts.len()), (0, 1));
        thread::sleep(Duration::from_millis(2));
        Ok(Committed { recorded: Vec::new(), confirmed: vec![Some(Ok(Confirmed::Recorded))] })
    }

    fn leave(&mut self) -> Result<(), LedgerError> {
        if let Some(name) = self.holds.take_if(|_| !self.server.keeps_locks) {
            self.server.locks.lock().unwrap().remove(&name);
        }
        Ok(())
    }

    fn take_turn(&mut self, _: &Claim, _: &Hash) -> Result<TurnState, LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn program(&self) -> &Program {
        unimplemented!("{UNUSED}")
    }

    fn schema_version(&mut self) -> Result<SchemaVersion, LedgerError> {
        self.end(ONE)
    }

    fn planned_migration(&mut self) -> Result<Vec<PlannedStep>, LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn migrate(&mut self) -> Result<Vec<String>, LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn clock(&mut self) -> Result<Option<SystemTime>, LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn try_lock(&mut self, name: &str) -> Result<(), LedgerError> {
        if self.server.refuses_locks {
            return Err(LedgerError::Refused("not allowed".to_owned()));
        }
        if !self.server.locks.lock().unwrap().insert(name.to_owned()) {
            return Err(LedgerError::Contended);
        }
        self.holds = Some(name.to_owned());
        Ok(())
    }
}

impl SqlSession for FakeSession {
    type Row = SqliteRow;

    fn dialect() -> &'static Dialect {
        unimplemented!("{UNUSED}")
    }

    fn read(&mut self, _: &[Sql<'_>]) -> Result<Vec<Answer<SqliteRow>>, LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn write(&mut self, _: &[Sql<'_>]) -> Result<Vec<Answer<SqliteRow>>, LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn begin(&mut self, _: &[Sql<'_>]) -> Result<Vec<Answer<SqliteRow>>, LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn go_on(&mut self, _: &[Sql<'_>]) -> Result<Vec<Answer<SqliteRow>>, LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn commit(&mut self, _: &[Sql<'_>]) -> Result<Vec<Answer<SqliteRow>>, LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn rollback(&mut self) -> Result<(), LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn revive(&mut self) -> Result<(), LedgerError> {
        unimplemented!("{UNUSED}")
    }

    fn is_duplicate(_: &LedgerError) -> bool {
        unimplemented!("{UNUSED}")
    }

    fn bytes_of(&mut self, _: i64, _: Kept) -> Result<Option<Vec<u8>>, LedgerError> {
        unimplemented!("{UNUSED}")
    }
}

const ONE: SchemaVersion = SchemaVersion { found: 1, oldest_program: 1, program: 1 };

fn until() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// A ledger whose every session is one of what `server` returns.
fn over(
    server: impl Fn() -> Arc<Server> + Send + Sync + 'static,
    traits: Traits,
) -> PooledLedger<FakeSession> {
    let open = move |_, _| Ok(FakeSession { server: server(), holds: None });
    let limits = Limits { used: 9, per_key: 9, kept: 9, idle: Duration::MAX };
    PooledLedger::over(Arc::new(open), traits, limits)
}

const ALONE: Traits = Traits { commits_together: None, is_a_file: false };

fn on(server: Server) -> PooledLedger<FakeSession> {
    let server = Arc::new(server);
    over(move || Arc::clone(&server), ALONE)
}

#[test]
fn exclusion_is_proven_by_sessions_that_exclude_each_other_and_give_their_locks_back() {
    let ledger = on(Server::default());
    for _ in 0..2 {
        assert_eq!(ledger.prove_exclusion("x", until()), Ok(()));
    }
    let keeps_locks = Server { keeps_locks: true, ..Server::default() };
    let refuses_locks = Server { refuses_locks: true, ..Server::default() };
    for (ledger, expected) in [
        (over(Arc::default, ALONE), "deliveries would not exclude each other"),
        (on(keeps_locks), "a lock that was given back cannot be taken: contended"),
        (on(refuses_locks), "a session cannot take a lock that nobody holds: not allowed"),
    ] {
        let why = ledger.prove_exclusion("x", until()).unwrap_err();
        assert!(why.contains(expected), "{why}");
    }
}

#[test]
fn a_session_is_kept_after_a_contention_and_after_no_other_error() {
    let gone = || LedgerError::Unavailable("gone".to_owned());
    let cases = [
        (LedgerError::Contended, 1),
        (LedgerError::Refused("wrong".to_owned()), 0),
        (LedgerError::Broken("bad".to_owned()), 0),
        (LedgerError::Version(SchemaVersion::bare(0, 1)), 0),
        (gone(), 0),
    ];
    for (error, kept) in cases {
        let text = error.to_string();
        let ledger = on(Server { ends: Mutex::new(vec![error]), ..Server::default() });
        assert_eq!(ledger.schema_version(until()).unwrap_err().to_string(), text);
        assert_eq!(ledger.count(), (0, kept), "{text}");
    }
}

#[test]
fn a_call_in_a_kept_session_that_is_lost_is_made_once_more() {
    let gone = || LedgerError::Unavailable("gone".to_owned());
    let server = Arc::new(Server { ends: Mutex::new(vec![gone(), gone()]), ..Server::default() });
    let other = Arc::clone(&server);
    let ledger = over(move || Arc::clone(&other), ALONE);
    assert!(matches!(ledger.schema_version(until()), Err(LedgerError::Unavailable(_))));
    assert_eq!(server.ends.lock().unwrap().len(), 1, "one call in a new session");
    assert!(matches!(ledger.schema_version(until()), Err(LedgerError::Unavailable(_))));
    assert_eq!(ledger.schema_version(until()).unwrap(), ONE);
    *server.ends.lock().unwrap() = vec![LedgerError::Contended, gone()];
    assert!(matches!(ledger.schema_version(until()), Err(LedgerError::Contended)));
    *server.ends.lock().unwrap() = vec![gone(), gone(), gone()];
    assert!(matches!(ledger.schema_version(until()), Err(LedgerError::Unavailable(_))));
    assert_eq!(server.ends.lock().unwrap().len(), 1, "two calls in a kept one, and no more");
}

#[test]
fn a_call_that_must_not_be_repeated_is_made_once_in_a_kept_session_too() {
    let gone = || LedgerError::Unavailable("gone".to_owned());
    let server = Arc::new(Server::default());
    let other = Arc::clone(&server);
    let ledger = over(move || Arc::clone(&other), ALONE);
    assert_eq!(ledger.schema_version(until()).unwrap(), ONE);
    *server.ends.lock().unwrap() = vec![gone()];
    let answer = ledger.call_once(until(), Session::schema_version);
    assert!(matches!(answer, Err(LedgerError::Unavailable(_))), "{answer:?}");
    assert_eq!(ledger.call_once(until(), Session::schema_version).unwrap(), ONE);
}

/// A commit whose sync failed must not be taken for durable by whoever opens the file next.
#[test]
fn a_file_goes_on_after_an_error_and_no_call_in_it_is_made_twice() {
    let gone = || LedgerError::Unavailable("disk I/O error".to_owned());
    let server = Arc::new(Server::default());
    let other = Arc::clone(&server);
    let ledger = over(move || Arc::clone(&other), Traits { is_a_file: true, ..ALONE });
    assert_eq!(ledger.schema_version(until()).unwrap(), ONE);
    *server.ends.lock().unwrap() = vec![gone()];
    assert!(matches!(ledger.schema_version(until()), Err(LedgerError::Unavailable(_))));
    assert_eq!(ledger.count(), (0, 1), "it is still open");
}

#[test]
fn an_engine_that_commits_each_alone_is_not_asked_for_several() {
    let ledger = on(Server::default());
    let claim = Claim {
        copy: 1,
        value: RandomValue::default(),
        epoch: 1,
        in_doubt: false,
        looks_back: false,
    };
    let (receipt, facts) = (&Receipt::UNNAMED, CopyFacts::default());
    let one = ToConfirm { claim, receipt, facts, end: None, may_be_lost: false };
    let confirm = || assert_eq!(ledger.confirm(&one, until()).unwrap(), Confirmed::Recorded);
    thread::scope(|scope| (0..9).for_each(|_| drop(scope.spawn(confirm))));
}
