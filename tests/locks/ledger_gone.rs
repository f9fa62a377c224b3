//! The ledger cannot be reached: the command ends before its lease does, and a waiter goes on
//! asking.

use std::time::Duration;

use crate::place::{Held, Place, SOON, ended};
use crate::support::postgres::Postgres;
use crate::support::wait_until;

fn place(postgres: &Postgres) -> Place {
    Place::with(&format!("[ledger]\nurl = \"{}\"\n", postgres.url_socket()))
}

#[test]
fn without_the_ledger_the_command_ends_before_its_lease() {
    for freezes in [false, true] {
        let mut postgres = Postgres::start();
        let place = place(&postgres);
        let mut held = place.beating(&["n", "--ttl", "6s", "--grace", "0"]);
        // Renewed at least once.
        std::thread::sleep(Duration::from_millis(2500));
        match freezes {
            true => postgres.pause(),
            false => postgres.stop_immediate(),
        }
        assert_eq!(held.code(), Some(201), "freezes: {freezes}");
        match freezes {
            true => postgres.resume(),
            false => postgres.restart(),
        }
        let next = place.next_holder("n");
        for beats in ["beats", "deep"] {
            let last = place.last_beat(beats);
            assert!(last > 0 && last < next, "{beats}, freezes: {freezes}");
        }
    }
}

#[test]
fn a_ledger_that_comes_back_in_time_costs_nothing() {
    let mut postgres = Postgres::start();
    let place = place(&postgres);
    let script = "touch began; while [ ! -e go ]; do sleep 0.02; done; exit 3";
    let args = ["n", "--ttl", "30s", "--", "sh", "-c", script];
    let mut held = Held { child: place.with_lock(&args).spawn().expect("binary") };
    assert!(wait_until(SOON, || place.path("began").exists()));
    postgres.restart();
    std::thread::sleep(Duration::from_secs(12));
    assert_eq!(place.lock(&["assert", "n#1:1", "--min", "15s"]).code, Some(0), "it was renewed");
    std::fs::write(place.path("go"), "").expect("a file");
    assert_eq!(held.code(), Some(3));
    assert_eq!(place.lock(&["holder", "n"]).code, Some(1), "given back in a new session");
}

#[test]
fn a_waiter_says_that_the_ledger_is_gone_and_goes_on() {
    let mut postgres = Postgres::start();
    let place = place(&postgres);
    postgres.stop_immediate();
    let end = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            ended(&mut place.with_lock(&["n", "--wait", "60s", "--", "sh", "-c", "exit 8"]))
        });
        std::thread::sleep(Duration::from_secs(2));
        postgres.restart();
        waiting.join().expect("no panic")
    });
    assert_eq!(end.code, Some(8), "{end:?}");
    assert!(end.err.starts_with("onedrop: waiting for n: ledger: cannot be reached"), "{end:?}");
    assert_eq!(end.err.lines().count(), 1, "said once: {end:?}");
}
