//! What a message costs the ledger, as far as it is exact: bytes with all indexes, and receipts
//! that touch no index (`cargo bench --bench growth` prints the rest).

use std::path::Path;

use onedrop_kit::bench::{fill as load, measured};

use load::Mail;
use measured::{MeasuredPostgres, MeasuredSqlite};

/// Before the first measurement, so that what a table costs however small it is does not count.
const BEFORE: u64 = 300;

/// Enough to make the last, half empty page of each table and index little.
const MESSAGES: u64 = 1000;

#[test]
fn a_message_in_postgres_takes_at_most_1000_bytes_and_no_receipt_touches_an_index() {
    let measured = MeasuredPostgres::start("fsync = off");
    let ledger = measured.ledger();
    load::deliver(ledger.as_ref(), Mail::OneRecipient, 0..BEFORE);
    let before = measured.figures();
    load::deliver(ledger.as_ref(), Mail::OneRecipient, BEFORE..BEFORE + MESSAGES);
    let after = measured.figures();
    let bytes = (after.bytes - before.bytes) / MESSAGES;
    assert!(bytes <= 1000, "{bytes}:\n{}", measured.relations(MESSAGES));
    let wal = (after.wal - before.wal) / MESSAGES;
    println!("{bytes} bytes, {wal} of WAL");
    assert!(wal <= 1800, "{wal}");
    // A receipt for each message, which ends its attempt, and nothing else is updated.
    let (updates, hot) = (after.updates - before.updates, after.hot - before.hot);
    assert_eq!((updates, hot), (MESSAGES, updates));
}

#[test]
fn a_message_in_sqlite_takes_at_most_800_bytes() {
    // In memory, where a sync costs nothing.
    let memory = Path::new("/dev/shm");
    let below = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let measured = MeasuredSqlite::below(&below);
    let ledger = measured.ledger();
    load::deliver(ledger.as_ref(), Mail::OneRecipient, 0..BEFORE);
    let before = measured.bytes();
    load::deliver(ledger.as_ref(), Mail::OneRecipient, BEFORE..BEFORE + MESSAGES);
    let bytes = (measured.bytes() - before) / MESSAGES;
    println!("{bytes} bytes");
    assert!(bytes <= 800, "{bytes}");
}
