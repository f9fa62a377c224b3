//! Waiters: how soon after a release one starts, what a hundred cost the ledger, and how long a
//! hundred wait that come again at once, beside flock(1).

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::place::{Place, timed};
use crate::process::program;
use crate::support::wait_until;
use crate::table::{Times, verdict};

const ROUNDS: u32 = 40;
/// How long a waiter has waited for a lock of another host: it asks least often by then.
const LONG: Duration = Duration::from_secs(5);
const MANY: usize = 100;
/// How long the hundred are watched.
const WATCHED: Duration = Duration::from_secs(10);
/// How often their sessions are counted.
const LOOKED: Duration = Duration::from_millis(500);
/// How long each that has a turn holds the lock: sleep(1)'s argument.
const HOLD: &str = "0.02";

/// From the end of the holder's command to the start of the waiter's.
pub fn release() {
    let place = Place::new();
    place.print_probes();
    println!("| a waiter starts after a release | median ms | least ms | most ms | target |");
    println!("|---|---:|---:|---:|---|");
    for (name, config, is_here) in [
        ("SQLite", &place.sqlite, true),
        ("Postgres by socket", &place.socket, true),
        ("Postgres through PgBouncer", &place.pooled, true),
        ("MariaDB", &place.mariadb, true),
        ("of another host, Postgres by socket", &place.socket, false),
        ("of another host, Postgres through PgBouncer", &place.pooled, false),
        ("of another host, MariaDB", &place.mariadb, false),
    ] {
        let rounds = if is_here { ROUNDS } else { ROUNDS / 4 };
        let mut times: Vec<Duration> =
            (0..rounds).map(|n| once(&place, config, is_here, n)).collect();
        times.sort();
        let most = times.last().map_or(0.0, |time| time.as_secs_f64() * 1000.0);
        let times = Times::of(times);
        println!(
            "| {name}, {rounds} | {:.0} | {:.0} | {most:.0} | median {}; most {} |",
            times.median_ms(),
            times.least_ms(),
            verdict(times.median_ms(), Some(20.0)),
            verdict(most, Some(300.0))
        );
    }
}

fn once(place: &Place, config: &Path, is_here: bool, round: u32) -> Duration {
    let mut holder = place.holder(config, is_here);
    let mut first = [0; 5];
    holder.stdout.as_mut().expect("a pipe").read_exact(&mut first).expect("that it is held");
    let mut waiter = place.with_lock(config, &["--wait", "60s", "--", "date", "+%s%N"]);
    let waiter = waiter.stdout(Stdio::piped()).spawn().expect("our program");
    // Not in step with the waiter's pauses.
    let waited = if is_here { Duration::from_millis(400) } else { LONG };
    thread::sleep(waited + Duration::from_millis(u64::from(round * 37 % 250)));
    drop(holder.stdin.take());
    let (released, started) = (nanos(holder), nanos(waiter));
    Duration::from_nanos(started.checked_sub(released).expect("one after the other"))
}

/// The time that its command said.
fn nanos(child: Child) -> u64 {
    let output = child.wait_with_output().expect("our child");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a time")
}

/// The processor time of Postgres while a hundred wait for one name.
pub fn many() {
    let place = Place::new();
    place.print_probes();
    let mut holder = place.holder(&place.socket, true);
    let mut first = [0; 5];
    holder.stdout.as_mut().expect("a pipe").read_exact(&mut first).expect("that it is held");
    let mut waiters: Vec<Child> = (0..MANY)
        .map(|_| place.with_lock(&place.socket, &["--wait", "5m", "--", "true"]).spawn())
        .collect::<Result<_, _>>()
        .expect("our program");
    let number = |sql| place.postgres.psql(sql).parse::<usize>().unwrap_or_default();
    // The first waits for the lock, the others for its turn.
    let waiting = || number("SELECT 1 + max(others) FROM onedrop_lock_waiter");
    assert!(wait_until(Duration::from_secs(60), || waiting() == MANY), "{} wait", waiting());
    // What they took to begin is over.
    thread::sleep(Duration::from_secs(2));
    let (before, began) = (place.postgres.cpu(), Instant::now());
    thread::sleep(WATCHED);
    let spent = place.postgres.cpu().saturating_sub(before).as_secs_f64();
    let cores = spent / began.elapsed().as_secs_f64();
    let sessions = sessions(&place);
    println!(
        "{MANY} waiters: {sessions} sessions with the holder's, {cores:.2} cores of Postgres ({})",
        verdict(cores, Some(0.15))
    );
    drop(holder.stdin.take());
    let began = Instant::now();
    for waiter in &mut waiters {
        assert!(waiter.wait().expect("our child").success());
    }
    assert!(holder.wait().expect("our child").success());
    println!("all {MANY} have run, one after the other, in {:.1} s", began.elapsed().as_secs_f64());
}

/// A hundred that ask for one name again as soon as they have had it.
pub fn turns() {
    let place = Place::new();
    place.print_probes();
    let file = place.root.join("file").display().to_string();
    let locked = |config| place.with_lock(config, &["--wait", "60s", "--", "sleep", HOLD]);
    println!(
        "| {MANY}, each for {HOLD} s | turns/s | fewest | median s | p99 s | to flock | cores of \
         Postgres | its sessions |"
    );
    println!("|---|---:|---:|---:|---:|---|---|---|");
    let flock = in_turns(&|| program("flock", &[&file, "sleep", HOLD]));
    print_turns("flock FILE", &flock, ["", "", ""]);
    for (name, config) in [
        ("SQLite", &place.sqlite),
        ("Postgres by socket", &place.socket),
        ("Postgres through PgBouncer", &place.pooled),
    ] {
        let before = place.postgres.cpu();
        let (turns, most) = most_sessions(&place, || in_turns(&|| locked(config)));
        let spent = place.postgres.cpu().saturating_sub(before).as_secs_f64();
        let told = |value: f64, target| format!("{value:.2}, {}", verdict(value, Some(target)));
        let ratio = told(turns.p99() / flock.p99(), 1.5);
        let cores = told(spent / turns.took.as_secs_f64(), 0.15);
        let sessions = format!("{most}, {}", verdict(most as f64, Some(3.0)));
        print_turns(name, &turns, [&ratio, &cores, &sessions]);
    }
}

fn sessions(place: &Place) -> usize {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'onedrop'";
    place.postgres.psql(sql).parse().unwrap_or_default()
}

/// The most that were seen meanwhile.
fn most_sessions<T>(place: &Place, does: impl FnOnce() -> T) -> (T, usize) {
    let (ended, end) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let most = scope.spawn(move || {
            let mut most = 0;
            while end.recv_timeout(LOOKED).is_err_and(|why| why == RecvTimeoutError::Timeout) {
                most = most.max(sessions(place));
            }
            most
        });
        let done = does();
        drop(ended);
        (done, most.join().expect("a thread"))
    })
}

struct Turns {
    /// Of each of the hundred, with the time that it held the lock.
    waits: Vec<Vec<Duration>>,
    took: Duration,
}

impl Turns {
    /// In seconds.
    fn p99(&self) -> f64 {
        Times::of(self.waits.concat()).share_ms(0.99) / 1000.0
    }
}

fn in_turns(turn: &(impl Fn() -> Command + Sync)) -> Turns {
    let began = Instant::now();
    let one = || {
        let mut waits = Vec::new();
        while began.elapsed() < WATCHED {
            waits.push(timed(turn().stdout(Stdio::null())));
        }
        waits
    };
    let waits = thread::scope(|scope| {
        let all: Vec<_> = (0..MANY).map(|_| scope.spawn(one)).collect();
        all.into_iter().map(|one| one.join().expect("a thread")).collect()
    });
    Turns { waits, took: began.elapsed() }
}

fn print_turns(name: &str, turns: &Turns, more: [&str; 3]) {
    let all = turns.waits.concat();
    let fewest = turns.waits.iter().map(Vec::len).min().unwrap_or_default();
    let rate = all.len() as f64 / turns.took.as_secs_f64();
    let (median, p99) = (Times::of(all).median_ms() / 1000.0, turns.p99());
    let more = more.join(" | ");
    println!("| {name} | {rate:.0} | {fewest} | {median:.2} | {p99:.2} | {more} |");
}
