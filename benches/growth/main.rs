//! What a message costs the ledger: bytes with all indexes, write-ahead log without page images,
//! receipts that touch no index (HOT), and processor time of the server for record and receipt.
//! `load.rs` says of which mail. Nothing is asserted here; what is exact is asserted by
//! `tests/ledger_contract/growth.rs`.
//!
//! `cargo bench --bench growth` measures Postgres and SQLite, with `-- sqlite` one of them. It
//! needs what `tests/run` installs and root.

use std::time::Duration;

use onedrop_kit::bench::{cases, fill as load, measured};

use load::Mail;
use measured::{MeasuredPostgres, MeasuredSqlite};

const MESSAGES: u64 = 50_000;

fn main() {
    cases::run(&[("postgres", postgres), ("sqlite", sqlite)], cases::words());
}

fn row(what: &str, value: f64, target: &str) {
    println!("| {what} | {value:.2} | {target} |");
}

fn micros(of: Duration) -> f64 {
    of.as_secs_f64() * 1e6 / MESSAGES as f64
}

/// Each kind of mail in a ledger of its own.
const KINDS: [(Mail, &str); 2] =
    [(Mail::OneRecipient, "one recipient"), (Mail::WithSent, "1.15 copies")];

fn heading(kind: &str) {
    println!("\n| a message, {kind}, {MESSAGES} of them | | target |\n|---|---:|---:|");
}

fn postgres() {
    for (mail, kind) in KINDS {
        let measured = MeasuredPostgres::start("");
        let ledger = measured.ledger();
        load::deliver(ledger.as_ref(), mail, 0..1000); // Connects, plans, makes the first pages.
        let before = measured.figures();
        load::deliver(ledger.as_ref(), mail, 1000..1000 + MESSAGES);
        let after = measured.figures();
        let each = |figure: fn(&measured::Figures) -> u64| {
            (figure(&after) - figure(&before)) as f64 / MESSAGES as f64
        };
        heading(kind);
        row("bytes, with indexes", each(|one| one.bytes), "850");
        row("bytes of WAL", each(|one| one.wal), "1500");
        row("updates", each(|one| one.updates), "");
        row("HOT updates", each(|one| one.hot), "all");
        row("server's processor microseconds", micros(after.cpu - before.cpu), "");
        println!("\n{}", measured.relations(MESSAGES));
    }
}

fn sqlite() {
    for (mail, kind) in KINDS {
        let measured = MeasuredSqlite::below(&std::env::temp_dir());
        let ledger = measured.ledger();
        load::deliver(ledger.as_ref(), mail, 0..1000);
        let (bytes, cpu) = (measured.bytes(), measured::own_cpu());
        load::deliver(ledger.as_ref(), mail, 1000..1000 + MESSAGES);
        let cpu = measured::own_cpu() - cpu;
        heading(kind);
        row("bytes, with indexes", (measured.bytes() - bytes) as f64 / MESSAGES as f64, "650");
        row("processor microseconds, ours", micros(cpu), "");
    }
}
