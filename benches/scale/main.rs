//! What one Postgres does for many hosts: messages a second, and what each costs the server, with
//! nothing but the ledger's calls (record, receipt). A host is a ledger handle with up to ten
//! deliveries at once. There is no mail store: this is where the ledger's wall would be.
//!
//! `cargo bench --bench scale`. It needs what `tests/run` installs and root.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use onedrop::ledger::postgres::PostgresLedger;
use onedrop::ledger::{AnyLedger, Schema as _};
use onedrop::net::pool::Limits;
use onedrop_kit::{
    self as support,
    bench::{cases, fill as load},
};
use support::pgbouncer::PgBouncer;
use support::postgres::Postgres;

/// In each row, spread evenly.
const MESSAGES: u64 = 20_000;

fn main() {
    cases::run(&[("ledger", run)], cases::words());
}

fn run() {
    let postgres = Postgres::start_with("max_connections = 100");
    let bouncer = PgBouncer::start(&postgres);
    let direct = postgres.url_socket();
    let migrating = handle(&direct, 1);
    migrating.migrate(Instant::now() + Duration::from_secs(60)).expect("migrate");
    postgres.remember_for_ever();
    println!(
        "| hosts | deliveries at once on each | sessions of Postgres | messages/s | processor ms \
         a message: Postgres | WAL bytes | syncs a message |\n|---:|---:|---|---:|---:|---:|---:|"
    );
    let mut from = 0;
    for (hosts, at_once, url) in [
        (1, 1, &direct),
        (1, 10, &direct),
        (4, 1, &direct),
        (4, 10, &direct),
        (4, 10, &bouncer.url()),
        (40, 1, &bouncer.url()),
    ] {
        let sessions = match *url == direct {
            true => (hosts * at_once).to_string(),
            false => "5, through PgBouncer".to_owned(),
        };
        let ledgers: Vec<_> = (0..hosts).map(|_| handle(url, at_once)).collect();
        let threads = (hosts * at_once) as u64;
        let mut share = |each: u64| {
            let parts = (0..threads).map(|n| from + n * each..from + (n + 1) * each).collect();
            from += threads * each;
            parts
        };
        load_all(&ledgers, at_once, share(20)); // Connects, plans.
        let parts = share(MESSAGES / threads);
        let before = Figures::of(&postgres);
        let took = load_all(&ledgers, at_once, parts);
        let after = Figures::of(&postgres);
        println!(
            "| {hosts} | {at_once} | {sessions} | {:.0} | {:.2} | {:.0} | {:.2} |",
            MESSAGES as f64 / took.as_secs_f64(),
            (after.cpu - before.cpu).as_secs_f64() * 1000.0 / MESSAGES as f64,
            (after.wal - before.wal) / MESSAGES as f64,
            (after.syncs - before.syncs) / MESSAGES as f64,
        );
    }
}

/// A host's handle, of at most that many sessions.
fn handle(url: &str, sessions: usize) -> PostgresLedger {
    let idle = Duration::from_secs(600);
    let limits = Limits { used: sessions, per_key: sessions, kept: sessions, idle };
    PostgresLedger::new(Postgres::settings(url), limits).expect("a ledger")
}

/// Every thread delivers its part through its host's handle; all start together.
fn load_all(
    ledgers: &[PostgresLedger],
    at_once: usize,
    parts: Vec<std::ops::Range<u64>>,
) -> Duration {
    let start = Barrier::new(parts.len() + 1);
    let began = thread::scope(|scope| {
        for (n, part) in parts.into_iter().enumerate() {
            let (ledger, start): (&dyn AnyLedger, _) = (&ledgers[n / at_once], &start);
            scope.spawn(move || {
                start.wait();
                load::deliver(ledger, load::Mail::OneRecipient, part);
            });
        }
        start.wait();
        Instant::now()
    });
    began.elapsed()
}

/// Of the server, until now.
struct Figures {
    cpu: Duration,
    /// Bytes.
    wal: f64,
    syncs: f64,
}

impl Figures {
    fn of(postgres: &Postgres) -> Figures {
        let number = |sql: &str| postgres.psql(sql).parse().expect("a number");
        Figures {
            cpu: postgres.cpu(),
            wal: number("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')"),
            syncs: number("SELECT wal_sync FROM pg_stat_wal"),
        }
    }
}
