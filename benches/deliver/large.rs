//! A message of 50 MB: the peak memory of the process and its time, beside dovecot-lda's.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::process::deliver_watched;
use crate::support::dovecot::{Dovecot, MAIL_USER};
use crate::support::postgres::Postgres;
use crate::table::{Times, verdict};
use crate::world::{Bench, STRANGER, lda_command, message};

const SIZE_MB: f64 = 50.0;
const MB: f64 = 1_000_000.0;
const ROUNDS: usize = 5;

pub fn run() {
    let bench = Bench::new();
    let dovecot = Dovecot::start_high_performance();
    let postgres = Postgres::start();
    let imap = bench.imap_config("socket", &postgres, &dovecot);
    let maildir = bench.maildir_config(&dovecot);
    bench.migrate(&imap);
    let contenders = [
        ("onedrop, SQLite + Maildir", bench.deliver_command(&maildir, "scuba"), true),
        ("onedrop, Postgres + IMAP", bench.deliver_command(&imap, "scuba"), true),
        ("dovecot-lda", lda_command(&dovecot.config_file(), "lda"), false),
    ];
    let folder = bench.root.dir_for("large", MAIL_USER, 0o755);
    let mut seen = vec![Vec::new(); contenders.len()];
    for _ in 0..ROUNDS {
        for ((_, command, _), seen) in contenders.iter().zip(&mut seen) {
            seen.push(once(command, &folder.join("message")));
        }
    }
    let limit = 1.5 * SIZE_MB + 20.0;
    println!(
        "| {SIZE_MB} MB, {ROUNDS} in turn | peak MB | of 1.5 sizes + 20 MB | target | median ms | \
         least ms |"
    );
    println!("|---|---:|---:|---|---:|---:|");
    for ((name, _, ours), seen) in contenders.iter().zip(seen) {
        let peak_mb =
            seen.iter().map(|(_, kilobytes)| *kilobytes as f64 * 1024.0 / MB).fold(0.0, f64::max);
        let times = Times::of(seen.iter().map(|(took, _)| *took).collect());
        let target = verdict(peak_mb / limit, ours.then_some(1.0));
        let (median, least) = (times.median_ms(), times.least_ms());
        println!(
            "| {name} | {peak_mb:.1} | {:.2} | {target} | {median:.0} | {least:.0} |",
            peak_mb / limit
        );
    }
}

fn once(command: &Command, path: &Path) -> (Duration, u64) {
    std::fs::write(path, message(STRANGER, (SIZE_MB * MB) as usize)).expect("a message");
    deliver_watched(command, path)
}
