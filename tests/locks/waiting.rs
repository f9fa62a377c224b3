//! Those that wait for a lock: in order, one session for all of a host, none kept waiting by one
//! that is gone.

use std::process::{Command, Stdio};

use nix::sys::signal::Signal;

use crate::place::{Held, Place, SOON};
use crate::support::postgres::Postgres;
use crate::support::wait_until;

/// A command that holds `n` until its standard input ends.
fn holder(place: &Place) -> Held {
    let mut command = place.shell(&["n"], "touch held; read line");
    let held = Held { child: command.stdin(Stdio::piped()).spawn().expect("binary") };
    assert!(wait_until(SOON, || place.path("held").exists()));
    held
}

fn gives_back(mut held: Held) {
    drop(held.child.stdin.take());
    held.code();
}

/// Whether one waits, and `others` more of this host wait for its turn.
fn waiting(place: &Place, others: u32) -> bool {
    let list = place.lock(&["list"]).out;
    list.contains(&match others {
        0 => " waits for 1/1 ".to_owned(),
        others => format!(", {others} more of this host"),
    })
}

/// One that waits, and says in the journal that it had its turn.
fn waiter(place: &Place, name: &str) -> Command {
    place.shell(&["n", "--wait", "60s", "--note", name], &format!("echo {name} >>journal"))
}

/// Starts them one after another.
fn waiters(place: &Place, names: &[&str]) -> Vec<Held> {
    let start = |(others, name): (u32, &&str)| {
        let held = Held { child: waiter(place, name).spawn().expect("binary") };
        assert!(wait_until(SOON, || waiting(place, others)), "{name}");
        held
    };
    (0..).zip(names).map(start).collect()
}

#[test]
fn waiters_of_a_host_come_in_order_and_one_alone_has_a_session() {
    let postgres = Postgres::shared();
    let place = Place::with(&postgres.toml());
    let held = holder(&place);
    let names = ["a", "b", "c", "d", "e", "f"];
    let mut all = waiters(&place, &names);
    let sessions = "SELECT count(*) FROM pg_stat_activity
                    WHERE datname = current_database() AND pid <> pg_backend_pid()";
    // The holder's and the first waiter's.
    assert!(
        wait_until(SOON, || postgres.psql(sessions).trim() == "2"),
        "{}",
        postgres.psql(sessions)
    );
    let list = place.lock(&["list"]).out;
    let line = list.lines().find(|line| line.contains(" waits for 1/1 ")).expect("a waiter");
    assert!(
        line.starts_with("n waits for 1/1 ") && line.ends_with(", 5 more of this host  a"),
        "{line}"
    );
    gives_back(held);
    for one in &mut all {
        assert_eq!(one.code(), Some(0));
    }
    assert_eq!(place.text("journal"), "a\nb\nc\nd\ne\nf\n");
    assert_eq!(place.lock(&["list"]).out, "");
}

#[test]
fn a_waiter_that_is_killed_or_leaves_keeps_no_other_waiting() {
    let place = Place::new();
    let held = holder(&place);
    let mut all = waiters(&place, &["a", "b", "c", "d"]);
    // The first by surprise, one in the middle by a signal that it hears.
    all[0].signal(Signal::SIGKILL);
    all[2].signal(Signal::SIGTERM);
    assert_eq!((all[0].code(), all[2].code()), (None, Some(143)));
    assert!(wait_until(SOON, || place.lock(&["list"]).out.contains("more of this host  b")));
    gives_back(held);
    assert_eq!((all[1].code(), all[3].code()), (Some(0), Some(0)));
    assert_eq!(place.text("journal"), "b\nd\n");
}

#[test]
fn a_waiter_whose_time_is_over_says_who_is_before_it() {
    let place = Place::new();
    let held = holder(&place);
    let all = waiters(&place, &["a", "b"]);
    let end = crate::place::ended(&mut place.with_lock(&["n", "--wait", "1s", "--", "true"]));
    assert_eq!(end.code, Some(200), "{end:?}");
    assert_eq!(end.err, "onedrop: n is busy: 2 of this host wait for it still\n");
    drop((held, all));
}

/// A crontab's number of slots has just grown on this host.
#[test]
fn one_that_wants_another_number_of_slots_does_not_wait_for_a_slot_that_is_free() {
    let place = Place::new();
    let held = holder(&place);
    let first = waiters(&place, &["a"]);
    let args = ["n", "--slots", "2", "--wait", "60s", "--", "true"];
    assert_eq!(crate::place::ended(&mut place.with_lock(&args)).code, Some(0));
    assert!(waiting(&place, 0), "the first waits still");
    gives_back(held);
    for mut one in first {
        assert_eq!(one.code(), Some(0));
    }
}

#[test]
fn one_that_does_not_wait_leaves_a_free_lock_to_those_that_do() {
    let place = Place::new();
    let ledger = place.site.sqlite();
    let in_line = "INSERT INTO onedrop_lock_waiter (name_hash, name, owner, host, pid, command,
            note, slots, others, since, lease_ms, lease_until, boot_id)
        SELECT name_hash, name, zeroblob(16), 'mx9', 1, 'x', '', 1, 0, 0, 3000, 1e9, boot_id
        FROM onedrop_lock JOIN onedrop_lock_lease USING (name_hash, slot)";
    assert_eq!(crate::place::ended(&mut place.with_lock(&["n", "--", "true"])).code, Some(0));
    ledger.execute(in_line, []).expect("SQL");
    let end = crate::place::ended(&mut place.with_lock(&["n", "--", "true"]));
    assert_eq!(end.code, Some(200), "{end:?}");
    assert!(end.err.starts_with("onedrop: n is busy: others wait for it, "), "{end:?}");
    let json = place.lock(&["list", "--json"]).out;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json[0]["host"], &json[0]["others"]), (&"mx9".into(), &0.into()), "{json}");
    // It is gone.
    ledger.execute("UPDATE onedrop_lock_waiter SET lease_until = 0", []).expect("SQL");
    assert_eq!(crate::place::ended(&mut place.with_lock(&["n", "--", "true"])).code, Some(0));
}

/// The numbers of the server's processes that sessions of ours have.
fn sessions(postgres: &Postgres) -> Vec<String> {
    let sql = "SELECT pid FROM pg_stat_activity
               WHERE datname = current_database() AND application_name = 'onedrop' ORDER BY pid";
    postgres.psql(sql).lines().map(str::to_owned).collect()
}

/// To open a session costs a server more than a turn. Whoever is not to look yet is stopped.
#[test]
fn the_session_of_one_that_gives_the_lock_back_goes_to_the_one_that_is_first_next() {
    let postgres = Postgres::shared();
    let place = Place::with(&postgres.toml());
    let held = holder(&place);
    let wait = |name: &str, others: u32| {
        let script = format!("touch {name}; read line");
        let mut command = place.shell(&["n", "--wait", "60s"], &script);
        let held = Held { child: command.stdin(Stdio::piped()).spawn().expect("binary") };
        assert!(wait_until(SOON, || waiting(&place, others)), "{name}");
        held
    };
    let (first, second, third) = (wait("first", 0), wait("second", 1), wait("third", 2));
    let has_begun = |name: &str| assert!(wait_until(SOON, || place.path(name).exists()), "{name}");
    assert!(wait_until(SOON, || sessions(&postgres).len() == 2));
    let both = sessions(&postgres);
    for one in [&first, &second, &third] {
        one.signal(Signal::SIGSTOP);
    }
    gives_back(held);
    assert_eq!(sessions(&postgres), both, "the second has the holder's, and waits for its turn");
    first.signal(Signal::SIGCONT);
    has_begun("first");
    second.signal(Signal::SIGCONT);
    // It is the first now, and has asked for itself.
    assert!(wait_until(SOON, || waiting(&place, 1)));
    assert_eq!(sessions(&postgres), both);
    second.signal(Signal::SIGSTOP);
    gives_back(first);
    assert_eq!(sessions(&postgres), both, "the third has the first's");
    second.signal(Signal::SIGCONT);
    has_begun("second");
    third.signal(Signal::SIGCONT);
    assert!(wait_until(SOON, || waiting(&place, 0)));
    assert_eq!(sessions(&postgres), both);
    gives_back(second);
    has_begun("third");
    gives_back(third);
    assert!(wait_until(SOON, || sessions(&postgres).is_empty()), "there is none to have it");
}

/// Of a host's waiters each that is the first asks at once, not when another one's slot is free.
#[test]
fn of_several_slots_none_lies_free_while_another_is_held() {
    let place = Place::new();
    let start = |name: &str| {
        let script = format!("touch {name}; read line");
        let mut command = place.shell(&["n", "--slots", "3", "--wait", "60s"], &script);
        Held { child: command.stdin(Stdio::piped()).spawn().expect("binary") }
    };
    let all = ["a", "b", "c"].map(start);
    for name in ["a", "b", "c"] {
        assert!(wait_until(SOON, || place.path(name).exists()), "{name}");
    }
    all.into_iter().for_each(gives_back);
}
