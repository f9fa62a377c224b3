//! Waiters: how soon after a release one starts, and what a hundred cost the ledger.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::place::Place;
use crate::support::wait_until;
use crate::table::{Times, verdict};

const ROUNDS: u32 = 40;
const MANY: usize = 100;
/// How long the hundred are watched.
const WATCHED: Duration = Duration::from_secs(10);

/// From the end of the holder's command to the start of the waiter's.
pub fn release() {
    let place = Place::new();
    place.print_probes();
    println!("| a waiter starts after a release | median ms | least ms | most ms | target |");
    println!("|---|---:|---:|---:|---|");
    for (name, config) in [("SQLite", &place.sqlite), ("Postgres by socket", &place.socket)] {
        let mut times: Vec<Duration> = (0..ROUNDS).map(|n| once(&place, config, n)).collect();
        times.sort();
        let most = times.last().map_or(0.0, |time| time.as_secs_f64() * 1000.0);
        let times = Times::of(times);
        println!(
            "| {name}, {ROUNDS} | {:.0} | {:.0} | {most:.0} | median {}; most {} |",
            times.median_ms(),
            times.least_ms(),
            verdict(times.median_ms(), Some(20.0)),
            verdict(most, Some(300.0))
        );
    }
}

fn once(place: &Place, config: &Path, round: u32) -> Duration {
    let mut holder = place.holder(config);
    let mut first = [0; 5];
    holder.stdout.as_mut().expect("a pipe").read_exact(&mut first).expect("that it is held");
    let mut waiter = place.with_lock(config, &["--wait", "60s", "--", "date", "+%s%N"]);
    let waiter = waiter.stdout(Stdio::piped()).spawn().expect("our program");
    // Not in step with the waiter's pauses.
    thread::sleep(Duration::from_millis(400 + u64::from(round * 37 % 250)));
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
    let mut holder = place.holder(&place.socket);
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
    let sessions = number("SELECT count(*) FROM pg_stat_activity WHERE usename = 'onedrop'");
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
