//! A session that one process hands on to another: it is the server's own, and nothing of the first
//! one is left in it; and whatever is wrong with it, the other has a session of its own.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixDatagram, UnixStream};

use onedrop::connections::Connections as _;
use onedrop::ledger::postgres::PostgresLedger;
use onedrop::ledger::{LockHolder, LockRequest, LockTry, Locks as _, RandomValue};

use super::support::TempRoot;
use super::support::pgbouncer::PgBouncer;
use super::support::postgres::Postgres;
use super::*;

/// A process' handle, with one connection.
fn process(url: &str) -> PostgresLedger {
    PostgresLedger::new(Postgres::settings(url), limits(1)).expect("a ledger")
}

/// Two ends that the processes have.
fn way() -> (UnixDatagram, UnixDatagram) {
    UnixDatagram::pair().expect("a pair")
}

const SESSIONS: &str = "
SELECT string_agg(pid::text, ' ' ORDER BY pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'onedrop'";

fn takes_a_lock(process: &PostgresLedger) -> bool {
    let (name, holder) = ("n".parse().expect("a name"), LockHolder::default());
    let (owner, lease) = (RandomValue::default(), Duration::from_secs(60));
    let request =
        LockRequest { name: &name, slots: &[1], owner, lease, holder: &holder, waiting: None };
    matches!(process.take_lock(&request, soon()), Ok(LockTry::Taken { .. }))
}

fn opens_a_session(process: &PostgresLedger) {
    process.lock_rows(None, soon()).expect("an answer");
}

#[test]
fn the_next_process_goes_on_in_the_session_of_the_one_before() {
    let rig = PostgresRig::shared();
    let url = rig.postgres.url_socket();
    let processes = [(); 3].map(|()| process(&url));
    opens_a_session(&processes[0]);
    let session = rig.postgres.psql(SESSIONS);
    for pair in processes.windows(2) {
        let (to, from) = way();
        // What it listens for, and has prepared, is nothing to the next one.
        let name = "n".parse().expect("a name");
        let (rung, _ringing) = UnixStream::pair().expect("a pair");
        pair[0].wait_for_release(&name, &[rung.as_fd()], soon());
        pair[0].hand_session_on(&to, soon());
        assert_eq!(pair[0].count(), (0, 0));
        let said = format!("SELECT query FROM pg_stat_activity WHERE pid = {session}");
        assert_eq!(rig.postgres.psql(&said), "DISCARD ALL");
        pair[1].take_session_over(&from, soon());
        assert_eq!(pair[1].count(), (0, 1));
        opens_a_session(&pair[1]);
        assert_eq!(rig.postgres.psql(SESSIONS), session);
    }
    assert!(takes_a_lock(&processes[2]));
    opens_a_session(&processes[0]);
    assert_ne!(rig.postgres.psql(SESSIONS), session, "the first has another one now");
}

/// Through a pooler a session is not the process' own, and there is another way to keep it.
#[test]
fn a_poolers_session_is_not_handed_on() {
    let rig = PostgresRig::shared();
    for mode in ["transaction", "session"] {
        let bouncer = PgBouncer::start_in(&rig.postgres, mode);
        let process = process(&bouncer.url());
        opens_a_session(&process);
        let (to, from) = way();
        process.hand_session_on(&to, soon());
        from.set_nonblocking(true).expect("a socket");
        assert!(from.recv(&mut [0; 64]).is_err(), "{mode}");
        assert_eq!(process.count(), (0, 1), "{mode}");
    }
}

/// In another root the same address may lead to another server: two would have one lock.
#[test]
fn a_session_with_another_server_is_not_taken_over() {
    let (rig, other) = (PostgresRig::shared(), PostgresRig::with(""));
    let folder = TempRoot::new();
    let socket = folder.join(".s.PGSQL.5432");
    let leads_to = |rig: &PostgresRig| {
        let _ = fs::remove_file(&socket);
        let port = rig.postgres.port();
        symlink(rig.postgres.socket_dir().join(format!(".s.PGSQL.{port}")), &socket)
            .expect("a link");
    };
    let database = rig.postgres.database();
    other.postgres.psql(&format!("CREATE DATABASE {database}"));
    let url = format!("postgres://onedrop@/{database}?host={}&port=5432", folder.display());
    leads_to(&rig);
    let (first, second) = (process(&url), process(&url));
    opens_a_session(&first);
    leads_to(&other);
    let (to, from) = way();
    first.hand_session_on(&to, soon());
    assert_eq!(first.count(), (0, 0), "it went out");
    second.take_session_over(&from, soon());
    assert!(second.lock_rows(None, soon()).is_err(), "no ledger is there");
}

#[test]
fn one_that_dies_on_its_way_costs_nothing_but_another_session() {
    let rig = PostgresRig::shared();
    let url = rig.postgres.url_socket();
    let (first, second) = (process(&url), process(&url));
    opens_a_session(&first);
    let (to, from) = way();
    first.hand_session_on(&to, soon());
    rig.lose_sessions();
    second.take_session_over(&from, soon());
    assert!(takes_a_lock(&second));
}

/// What else comes in by that way is no session.
#[test]
fn what_is_no_session_is_not_used() {
    let rig = PostgresRig::shared();
    let process = process(&rig.postgres.url_socket());
    for bytes in [&b""[..], &[0; 40], &[7; 41]] {
        let (to, from) = way();
        to.send(bytes).expect("a socket");
        process.take_session_over(&from, soon());
        assert_eq!(process.count(), (0, 0));
    }
    opens_a_session(&process);
}
