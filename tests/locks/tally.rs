//! Many at once: at no time do more than N commands run under a name. Each command takes a lock of
//! the file system on the slot that it was given, which must be free.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use crate::place::{Held, Place, children};
use crate::support::mariadb::Mariadb;
use crate::support::postgres::Postgres;
use crate::support::wait_until;

/// Says what it did in the journal; 9 where the slot's file is locked: two run in one slot.
const WORK: &str = "exec 9>slot.$ONEDROP_LOCK_SLOT; flock -n 9 || { echo twice >>faults; exit 9; }
    echo $ONEDROP_LOCK_SLOT $ONEDROP_LOCK_EPOCH >>journal; sleep 0.05";

fn tally(place: &Place, workers: u32, slots: u32, kills: bool) {
    let (slots_text, ended_well, killed) =
        (slots.to_string(), AtomicU32::new(0), AtomicU32::new(0));
    let end = Instant::now() + Duration::from_secs(12);
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let (slots_text, ended_well, killed) = (&slots_text, &ended_well, &killed);
            scope.spawn(move || {
                let mut round = worker;
                while Instant::now() < end {
                    round = round.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let args = ["n", "--slots", slots_text, "--wait", "30s", "--ttl", "6s"];
                    let args = [&args[..], &["--grace", "0"]].concat();
                    let mut held =
                        Held { child: place.shell(&args, WORK).spawn().expect("binary") };
                    let victim = (round >> 16) % 8;
                    if kills && victim < 3 {
                        std::thread::sleep(Duration::from_millis(u64::from((round >> 8) % 120)));
                        let guardian = children(held.pid()).first().copied();
                        let command = guardian.and_then(|one| children(one).first().copied());
                        let target = [Some(held.pid()), guardian, command][victim as usize];
                        if let Some(target) = target {
                            let _ = kill(target, Signal::SIGKILL);
                            killed.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                    let mut status = None;
                    assert!(wait_until(Duration::from_secs(60), || {
                        status = held.child.try_wait().expect("our child");
                        status.is_some()
                    }));
                    match status.and_then(|status| status.code()) {
                        Some(0) => drop(ended_well.fetch_add(1, Ordering::SeqCst)),
                        code => assert_ne!(code, Some(9), "two in one slot"),
                    }
                }
            });
        }
    });
    let (journal, faults) = (place.text("journal"), place.text("faults"));
    assert_eq!(faults, "", "{workers} workers, {slots} slots");
    let mut entries: Vec<&str> = journal.lines().collect();
    let count = entries.len();
    assert!(count >= ended_well.into_inner() as usize, "{count}");
    entries.sort_unstable();
    entries.dedup();
    assert_eq!(entries.len(), count, "an epoch was given out twice");
    assert!(count > 5, "{count} ran");
    println!("{workers} workers, {slots} slots: {count} ran, {} killed", killed.into_inner());
}

#[test]
fn with_the_ledger_in_a_file_no_more_run_than_there_are_slots() {
    std::thread::scope(|scope| {
        for (workers, slots) in [(3, 1), (8, 2)] {
            scope.spawn(move || tally(&Place::new(), workers, slots, true));
        }
    });
}

#[test]
fn with_postgres_no_more_run_than_there_are_slots() {
    std::thread::scope(|scope| {
        for (workers, slots, kills) in [(8, 5, false), (3, 2, true)] {
            scope.spawn(move || {
                let postgres = Postgres::shared();
                let ledger = format!("[ledger]\nurl = \"{}\"\n", postgres.url_socket());
                tally(&Place::with(&ledger), workers, slots, kills);
            });
        }
    });
}

#[test]
fn with_mariadb_no_more_run_than_there_are_slots() {
    let mariadb = Mariadb::shared();
    let place = Place::with(&mariadb.toml());
    tally(&place, 3, 2, true);
}
