//! `deliver` and `verify` as they are, over a ledger and a store in memory, on one to four hosts,
//! in a time of their own: a scheduler owns every call of a port, every sleep and every thread, and
//! chance decides their order and what goes wrong (the habit of FoundationDB and TigerBeetle).
//! Processes crash, are frozen or suspended, lose sessions and answers; servers append late; the
//! ledger's clock steps; a host restarts; owners move and delete; Postfix comes again; `verify
//! --repair` runs at any time.
//!
//! Inside of the promise there is one copy in each mailbox when all is over, outside of it one
//! after `verify`; of mailboxes that come and go each has its copy, or INBOX has it; and the
//! server's own delivery carries out once what is handed over to it. A seed repeats its run and
//! prints its steps: `ONEDROP_SEED=n cargo nextest run --test simulation a_seed --no-capture`.
//! `ONEDROP_FULL=1`: a million runs, and every order of two processes' calls with one fault;
//! otherwise a part of these runs, another one with each commit.

mod judge;
mod plan;
mod scheduler;
mod service;
mod without;
mod world;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use onedrop_core::testing::chance;
use onedrop_kit::{is_full, sample};

use chance::Chance;
use judge::Doubles;
use plan::{Kind, Plan, Without};
use scheduler::{Pool, lock};
use world::World;

/// Of a full run's runs; each of its parts has everything happen that must ([`HAPPENS`]).
const PARTS: u64 = 100;
/// Within which a rule that is taken away is missed.
const MISSED: u64 = 20_000;

/// What has to happen in them, so that what holds does not hold for want of trying.
const HAPPENS: [&str; 16] = [
    "a crash",
    "a receipt is lost",
    "an append outlives its sender",
    "an outage",
    "begin",
    "claim",
    "copies_to_settle",
    "found by a look",
    "keep",
    "keep_until_due",
    "kept_bytes",
    "leave_to_sender",
    "release",
    "save",
    "settle",
    "take_turn",
];

/// The result of one run.
struct Ran {
    wrong: Vec<String>,
    steps: Vec<String>,
    doubles: Doubles,
    seen: Seen,
}

/// How often what happened.
type Seen = BTreeMap<&'static str, usize>;

fn run(kind: Kind, without: Option<Without>, seed: u64, pool: &Arc<Pool>, is_told: bool) -> Ran {
    let mut chance = Chance::Seeded(seed);
    let plan = Plan::new(kind, without, &mut chance);
    run_to_its_end(&World::new(plan, pool, chance, is_told))
}

fn run_to_its_end(world: &Arc<World>) -> Ran {
    world.tell(|| format!("{:?}", world.plan));
    world.run();
    let doubles = judge::judge(world);
    let mut known = scheduler::lock(&world.known);
    let (wrong, steps) = (std::mem::take(&mut known.wrong), std::mem::take(&mut known.steps));
    Ran { wrong, steps, doubles, seen: std::mem::take(&mut known.seen) }
}

/// The result of many runs.
#[derive(Default)]
struct Runs {
    /// The first seed whose run went wrong.
    wrong: Option<u64>,
    doubles: Doubles,
    seen: Seen,
}

/// Runs these seeds, up to the first that goes wrong.
fn runs(kind: Kind, without: Option<Without>, seeds: Range<u64>) -> Runs {
    let (next, first) = (AtomicU64::new(seeds.start), AtomicU64::new(seeds.end));
    let all = Mutex::new(Runs::default());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                let pool = Arc::<Pool>::default();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first.load(Ordering::Relaxed) {
                        break;
                    }
                    let ran = run(kind, without, seed, &pool, false);
                    let mut all = lock(&all);
                    if !ran.wrong.is_empty() {
                        first.fetch_min(seed, Ordering::Relaxed);
                        all.wrong = all.wrong.into_iter().chain([seed]).min();
                    }
                    all.doubles.unsettled += ran.doubles.unsettled;
                    all.doubles.settled += ran.doubles.settled;
                    for (what, times) in ran.seen {
                        *all.seen.entry(what).or_default() += times;
                    }
                }
            });
        }
    });
    all.into_inner().expect("no panic")
}

/// The steps of one run, and what is wrong with it.
fn told(kind: Kind, without: Option<Without>, seed: u64) -> String {
    let ran = run(kind, without, seed, &Arc::default(), true);
    format!("{kind:?}, seed {seed}:\n{}\n{:#?}", ran.steps.join("\n"), ran.wrong)
}

fn holds(kind: Kind, number: u64) {
    let first = sample::part(PARTS) * number;
    let seeds = if is_full() { 0..PARTS * number } else { first..first + number };
    let ran = runs(kind, None, seeds.clone());
    if let Some(seed) = ran.wrong {
        panic!("{}", told(kind, None, seed));
    }
    println!("{kind:?}, seeds {seeds:?}: {:?} {:?}", ran.doubles, ran.seen);
    let restarts = (kind == Kind::OneHost).then_some("a restart");
    let goes = (kind == Kind::Filed).then_some("a copy goes to INBOX");
    let drops = (kind == Kind::Handed).then_some("the guard drops a copy");
    let happens = HAPPENS.into_iter().chain(restarts).chain(goes).chain(drops);
    // What is handed over is not begun early, and its receipts wait for the disk.
    let is_none = ["begin", "a receipt is lost"];
    let happens = happens.filter(|what| kind != Kind::Handed || !is_none.contains(what));
    let missing: Vec<_> = happens.filter(|what| !ran.seen.contains_key(what)).collect();
    assert!(missing.is_empty(), "{missing:?} never happened");
}

#[test]
fn inside_of_the_promise_there_is_one_copy() {
    holds(Kind::Inside, 5_000);
}

#[test]
fn on_one_host_that_restarts_and_whose_clock_steps_there_is_one_copy() {
    holds(Kind::OneHost, 1_000);
}

#[test]
fn of_mailboxes_that_come_and_go_each_has_its_copy_or_inbox_has_it() {
    holds(Kind::Filed, 2_000);
}

#[test]
fn what_is_handed_over_is_carried_out_once() {
    holds(Kind::Handed, 2_000);
}

#[test]
fn outside_of_the_promise_there_is_one_copy_after_verify() {
    holds(Kind::Outside, 2_000);
}

/// Every order of the calls of two processes, each with every fault in every place.
fn every_order(maildir: bool, begins_in_doubt: bool) {
    let (pool, mut number) = (Arc::<Pool>::default(), 0);
    let mut next = Some(Chance::first());
    while let Some(chance) = next {
        let world =
            World::new(Plan::listed(maildir, begins_in_doubt), &pool, chance.clone(), false);
        let ran = run_to_its_end(&world);
        let decided = world.scheduler.decided();
        if !ran.wrong.is_empty() {
            let plan = Plan::listed(maildir, begins_in_doubt);
            let steps = run_to_its_end(&World::new(plan, &pool, chance, true)).steps.join("\n");
            panic!("after {number} orders:\n{steps}\n{:#?}", ran.wrong);
        }
        number += 1;
        next = decided.following();
    }
    println!("Maildir: {maildir}, in doubt: {begins_in_doubt}: {number} orders");
}

#[test]
fn every_order_of_two_deliveries_with_one_fault() {
    every_order(false, false);
    if is_full() {
        every_order(true, false);
    }
}

#[test]
fn every_order_of_two_deliveries_in_doubt_with_one_fault() {
    every_order(false, true);
    if is_full() {
        every_order(true, true);
    }
}

#[test]
fn a_seed_repeats_its_run() {
    let seed = std::env::var("ONEDROP_SEED").ok().map(|seed| seed.parse().expect("a number"));
    for kind in [Kind::Inside, Kind::OneHost, Kind::Filed, Kind::Handed, Kind::Outside] {
        for seed in seed.map_or(0..50, |seed: u64| seed..seed + 1) {
            let (once, again) = (told(kind, None, seed), told(kind, None, seed));
            assert_eq!(once, again);
            if std::env::var_os("ONEDROP_SEED").is_some() {
                println!("{once}");
            }
        }
    }
}

#[test]
fn a_rule_that_is_taken_away_is_missed_inside_of_the_promise() {
    for (kind, without) in [
        (Kind::Inside, Without::Look),
        (Kind::Inside, Without::Lease),
        (Kind::Inside, Without::ClockCheck),
        (Kind::OneHost, Without::BootClock),
        (Kind::OneHost, Without::LeaseAfterRestart),
        (Kind::Filed, Without::EpochAndCopyLock),
        (Kind::Filed, Without::Elsewhere),
        (Kind::Filed, Without::InboxRow),
        (Kind::Handed, Without::Look),
        (Kind::Handed, Without::Value),
        (Kind::Handed, Without::Guard),
        (Kind::Handed, Without::Doubt),
        (Kind::Handed, Without::Lease),
    ] {
        let ran = runs(kind, Some(without), 0..MISSED);
        let seed = ran.wrong.unwrap_or_else(|| panic!("{without:?} is not missed"));
        println!("without {without:?}: seed {seed}");
    }
}

/// They matter for frozen processes only: the undo takes late copies out again, the copy's lock
/// lets fewer be written, and the epoch stands in for the lock. Printed is what each saves.
#[test]
fn what_epoch_undo_and_lock_are_for() {
    let rules =
        [Without::Epoch, Without::Undo, Without::CopyLock, Without::EpochAndCopyLock].map(Some);
    let number = if is_full() { 10_000 } else { 500 };
    for without in [None].into_iter().chain(rules) {
        let ran = runs(Kind::Frozen, without, 0..number);
        if let Some(seed) = ran.wrong {
            panic!("{}", told(Kind::Frozen, without, seed));
        }
        let times = |what| ran.seen.get(what).copied().unwrap_or_default();
        let rule = without.map_or("every rule".to_owned(), |rule| format!("all but {rule:?}"));
        println!(
            "{number} runs with frozen processes, {rule}: {} times two copies at a time, {} taken \
             out again at once, {} unsettled, {} after verify",
            times("two copies at a time"),
            times("remove"),
            ran.doubles.unsettled,
            ran.doubles.settled,
        );
    }
}
