//! The ledger cannot be reached: the command ends before its lease does, and a waiter goes on
//! asking.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::place::{Held, Place, SOON, ended, is_alive, timed};
use crate::support::postgres::Postgres;
use crate::support::proxy::{Fault, Proxy, Stage, Upstream};
use crate::support::wait_until;

fn place(postgres: &Postgres) -> Place {
    Place::with(&postgres.toml())
}

#[test]
fn without_the_ledger_the_command_ends_before_its_lease() {
    let ends = |freezes: bool| {
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
    };
    std::thread::scope(|scope| {
        scope.spawn(|| ends(false));
        scope.spawn(|| ends(true));
    });
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
    // Without a renewal it would have 18 s and less.
    let is_renewed = || place.lock(&["assert", "n#1:1", "--min", "20s"]).code == Some(0);
    assert!(wait_until(SOON, is_renewed));
    std::fs::write(place.path("go"), "").expect("a file");
    assert_eq!(held.code(), Some(3));
    assert_eq!(place.lock(&["holder", "n"]).code, Some(1), "given back in a new session");
}

#[test]
fn a_lock_whose_wrapper_is_killed_without_the_ledger_lasts_for_its_time() {
    let mut postgres = Postgres::start();
    let place = place(&postgres);
    let mut held = place.beating(&["n", "--grace", "0"]);
    let guardian = held.guardian();
    postgres.stop_immediate();
    held.child.kill().expect("our child");
    held.child.wait().expect("its end");
    // It tries for some seconds.
    assert!(wait_until(SOON, || !is_alive(guardian)), "the guardian goes on");
    let last = (place.last_beat("beats"), place.last_beat("deep"));
    postgres.restart();
    assert_eq!(place.lock(&["assert", "n#1:1"]).code, Some(0));
    assert_eq!((place.last_beat("beats"), place.last_beat("deep")), last);
}

/// No answer comes; the time is far below that of a call.
#[test]
fn a_waiter_ends_at_once_though_the_ledger_hangs() {
    let mut postgres = Postgres::start();
    let place = place(&postgres);
    let wait = ["n", "--wait", "forever", "--", "touch", "ran"];
    let first = place.with_lock(&["n", "--", "sleep", "600"]).spawn().expect("binary");
    let _first = Held { child: first };
    assert!(wait_until(SOON, || place.lock(&["holder", "n"]).code == Some(0)));
    let mut waiting = Held { child: place.with_lock(&wait).spawn().expect("binary") };
    std::thread::sleep(Duration::from_secs(1));
    postgres.pause();
    std::thread::sleep(Duration::from_secs(1));
    waiting.signal(Signal::SIGTERM);
    let (code, took) = timed(|| waiting.code());
    postgres.resume();
    assert_eq!(code, Some(143));
    // A call of the ledger may take ten.
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert!(!place.path("ran").exists());
}

/// Its claim has taken the lock, and it ends before it hears of that.
#[test]
fn a_waiter_that_ends_before_its_claim_is_answered_leaves_the_lock_free() {
    let postgres = Postgres::shared();
    let place = place(&postgres);
    assert_eq!(ended(&mut place.with_lock(&["n", "--", "true"])).code, Some(0));
    let socket = postgres.socket_dir().join(format!(".s.PGSQL.{}", postgres.port()));
    let begin = |answer: usize| {
        let proxy = Proxy::start(Upstream::Postgres(socket.clone()));
        proxy.plan(Stage::Reply(answer), Fault::Hold);
        let (port, database) = (proxy.port(), postgres.database());
        let url = format!("postgres://onedrop@127.0.0.1:{port}/{database}?sslmode=disable");
        let mut command = place.with_lock(&["n", "--wait", "forever", "--", "touch", "ran"]);
        let child = command.env("ONEDROP__LEDGER__URL", url).spawn().expect("binary");
        let waiting = Held { child };
        proxy.wait_reached();
        // Other sessions, such as the one that gives the lock back, are answered.
        proxy.plan(Stage::Request(usize::MAX), Fault::Cut);
        (waiting, proxy)
    };
    let is_held = || place.lock(&["holder", "n"]).code == Some(0);
    let unanswered = (1..=20).map(begin).find(|_| is_held());
    let (mut waiting, proxy) = unanswered.expect("a claim among the first answers");
    waiting.signal(Signal::SIGTERM);
    let (code, took) = timed(|| waiting.code());
    assert_eq!(code, Some(143));
    assert!(took < Duration::from_secs(8), "{took:?}");
    // Long before its lease ends.
    assert!(wait_until(SOON, || !is_held()), "{}", place.lock(&["list"]).out);
    assert!(!place.path("ran").exists());
    drop(proxy);
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

/// The server lets no other in: that is said once, and asked for less and less often; of a host's
/// waiters the first alone asks.
#[test]
fn a_waiter_beyond_the_ledgers_connections_says_so_and_backs_off() {
    const WAITERS: usize = 4;
    const LOOK: Duration = Duration::from_secs(8);
    // Two for us, beside those for the superuser.
    let postgres = Postgres::start_with("max_connections = 5\nlog_connections = on");
    let place = place(&postgres);
    let script = "touch began; while [ ! -e go ]; do sleep 0.02; done";
    let mut held =
        Held { child: place.with_lock(&["n", "--", "sh", "-c", script]).spawn().expect("binary") };
    assert!(wait_until(SOON, || place.path("began").exists()));
    let other = ::postgres::Client::connect(&postgres.url_socket(), ::postgres::NoTls);
    let other = other.expect("the other connection");
    let refused = || {
        postgres.whole_log().matches("too many clients").count()
            + postgres.whole_log().matches("remaining connection slots").count()
    };
    let waiters: Vec<_> = (0..WAITERS)
        .map(|_| place.with_lock(&["n", "--wait", "90s", "--", "true"]).spawn().expect("binary"))
        .collect();
    let mut since = Instant::now();
    let is_refused = wait_until(SOON, || {
        let (now, is_refused) = (Instant::now(), refused() > 0);
        since = if is_refused { since } else { now };
        is_refused
    });
    assert!(is_refused, "none was refused");
    // Without a pause it would be refused thousands of times. What a slow host adds to these
    // seconds comes after pauses of five.
    std::thread::sleep(LOOK);
    let (count, took) = (refused() as u64, since.elapsed());
    let most = 20 + took.saturating_sub(LOOK).as_secs();
    assert!(count <= most, "refused {count} times in {took:?}");
    drop(other);
    std::fs::write(place.path("go"), "").expect("a file");
    assert_eq!(held.code(), Some(0));
    let mut told = 0;
    for waiter in waiters {
        let end = crate::place::end(waiter.wait_with_output().expect("our child"));
        assert_eq!(end.code, Some(0), "{end:?}");
        assert!(end.err.lines().count() <= 1, "said once: {end:?}");
        told += usize::from(end.err.starts_with("onedrop: waiting for n: ledger: "));
    }
    assert!(told >= 1, "none has said why it waits");
}
