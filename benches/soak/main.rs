//! `soak`: a million messages by LMTP into Maildirs while as much is purged as comes. Each must
//! stand in its mailboxes once, byte for byte; what the server and its ledger use in the last tenth
//! is put beside the first. `purge`: a full load while a purge takes a day out of a ledger of a
//! million messages, beside the same load without.
//!
//! `cargo bench --bench soak` runs both, `cargo bench --bench soak -- soak` one;
//! `ONEDROP_MESSAGES=50000` for fewer messages. It needs what `tests/run` installs and root; all
//! servers are the test rig's own.

mod purge;

use onedrop_kit::bench::{cases, table};
use onedrop_kit::soak as rig;

use rig::{Outcome, Plan, Tenth};

const CASES: [cases::Case; 2] = [("soak", soak), ("purge", purge::run)];

fn main() {
    cases::run(&CASES, cases::words());
}

/// How many messages there are.
fn messages() -> u64 {
    cases::messages(1_000_000)
}

fn soak() {
    let plan = Plan::of(messages());
    let outcome = rig::run(plan);
    let Outcome { took, copies, deferred, purges, wrong, unplaced, on_record, .. } = &outcome;
    println!(
        "{} messages, {copies} copies, {deferred} deferred, {:.0} s; the ledger remembers {:.0} s: \
         {} purged, {} passed by, {on_record} on record, {unplaced} not placed",
        plan.messages,
        took.as_secs_f64(),
        plan.memory.as_secs_f64(),
        purges.messages,
        purges.passed_by
    );
    assert!(wrong.is_empty() && *unplaced == 0, "{} wrong: {wrong:#?}", wrong.len());
    println!("Each stands in its mailboxes once, byte for byte.\n");
    table(&outcome);
}

/// A figure, and what its last tenth may be of its first.
type Line = (&'static str, fn(&Tenth) -> f64, fn(f64) -> bool);

const LINES: [Line; 9] = [
    ("messages a second", |one| one.messages_a_second, |ratio| ratio >= 0.9),
    ("server: allocated MB", |one| one.own_mb, |ratio| ratio <= 1.1),
    ("server: with its share of files, MB", |one| one.pss_mb, |ratio| ratio <= 1.1),
    ("server: open files, at most", |one| one.files, |ratio| ratio <= 1.1),
    ("server: processor ms a message", |one| one.server_ms, |ratio| ratio <= 1.1),
    ("Postgres: processor ms a message", |one| one.postgres_ms, |ratio| ratio <= 1.1),
    ("WAL bytes a message", |one| one.wal_bytes, |ratio| ratio <= 1.1),
    ("ledger: MB for a message each ms", one_size, |ratio| ratio <= 1.3),
    ("ledger: dead rows of 100", |one| one.dead, |ratio| ratio <= 1.3),
];

/// What the ledger remembers is a time: it is the larger, the more comes in it.
fn one_size(one: &Tenth) -> f64 {
    one.ledger_mb / one.messages_a_second * 1000.0
}

fn table(outcome: &Outcome) {
    let tenths = &outcome.tenths;
    let (first, last) = (&tenths[0], &tenths[tenths.len() - 1]);
    println!("| | first tenth | last tenth | ratio | |");
    println!("|---|---:|---:|---:|---|");
    for (name, of, is_flat) in LINES {
        let ratio = of(last) / of(first);
        let verdict = if is_flat(ratio) { "flat" } else { "NOT FLAT" };
        println!("| {name} | {:.2} | {:.2} | {ratio:.2} | {verdict} |", of(first), of(last));
    }
    let mean = tenths.iter().map(one_size).sum::<f64>() / tenths.len() as f64;
    let most = tenths.iter().map(one_size).fold(0.0, f64::max);
    let verdict = if most / mean <= 1.3 { "flat" } else { "NOT FLAT" };
    println!(
        "| the same, mean and most of all tenths | {mean:.2} | {most:.2} | {:.2} | {verdict} |",
        most / mean
    );
    let (half, other) = outcome.files;
    println!("\nOpen files at most: {half} in the first half, {other} in the last.\n");
    println!(
        "| tenth | messages a second | allocated MB | open files | WAL bytes | ledger MB | dead |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|");
    for (at, one) in (1..).zip(tenths) {
        println!(
            "| {at} | {:.0} | {:.2} | {:.0} | {:.0} | {:.1} | {:.1} |",
            one.messages_a_second, one.own_mb, one.files, one.wal_bytes, one.ledger_mb, one.dead
        );
    }
}
