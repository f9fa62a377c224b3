//! Several records and receipts in one transaction.

use std::path::Path;
use std::time::{Duration, Instant};

use onedrop_core::directory::Destination;
use onedrop_core::ledger::{
    Attempt, Confirmed, CopyFacts, CopyState, Entry, LeaseTerms, LedgerError, Recorded, Schema,
    ToConfirm,
};
use onedrop_core::lock_key::advisory_key;
use onedrop_core::message::{Facts, Identity};
use onedrop_core::receipt::Receipt;
use onedrop_net::pool::Limits;

use super::{SqliteLedger, SqliteSession};
use crate::{Session, ToRecord};

const TERMS: LeaseTerms = LeaseTerms { lease: Duration::from_secs(90), join: false, due: false };

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn process(file: &Path) -> SqliteLedger {
    let limits = Limits { used: 1, per_key: 1, kept: 1, idle: Duration::from_secs(60) };
    SqliteLedger::new(file.to_owned(), limits)
}

fn identity(number: u8) -> Identity {
    Identity { message_id: None, id_hash: [number; 32], digest: [number; 32] }
}

/// Commits in the WAL, which begins with 32 bytes and has 24 before each page: those of the last
/// page of a commit say how long the file is then (the file format's section 4.1).
fn commits(file: &Path) -> usize {
    let wal = std::fs::read(file.with_extension("db-wal")).expect("a WAL");
    let frames = wal[32..].chunks_exact(24 + 4096);
    frames.filter(|frame| frame[4..8] != [0; 4] && frame[8..16] == wal[16..24]).count()
}

fn to_record<'a>(
    identity: &'a Identity,
    facts: &'a Facts,
    attempt: &'a Attempt,
    destinations: &'a [Destination],
) -> ToRecord<'a> {
    let entry = Entry {
        identity,
        facts,
        size_bytes: 1,
        raw: None,
        nul_runs: None,
        at: None,
        oldest: None,
        fields: None,
    };
    ToRecord { entry, attempt, destinations, terms: TERMS }
}

#[test]
fn several_wait_for_the_disk_once_and_each_has_an_end_of_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ledger.db");
    let (ours, others) = (process(&file), process(&file));
    ours.migrate(soon()).expect("a ledger");
    let plain = rusqlite::Connection::open(&file).expect("the ledger");
    let fails = "CREATE TRIGGER fails BEFORE INSERT ON onedrop_message WHEN NEW.sender = 'fails'
                 BEGIN SELECT RAISE(ABORT, 'as a test wants'); END";
    plain.execute_batch(fails).expect("SQL");

    let facts = Facts::default();
    let identities = [1, 2, 3, 4, 5].map(identity);
    let [old, first, failing, held, last] = identities.each_ref();
    let plain_attempt = Attempt::default();
    let fails = Attempt { sender: "fails".to_owned(), ..Attempt::default() };
    let inbox =
        [Destination { account: "doug".to_owned(), mailbox: "INBOX".to_owned(), shared: false }];
    let one = |identity, attempt| to_record(identity, &facts, attempt, &inbox);
    let make = |records: &[ToRecord<'_>], receipts: &[ToConfirm<'_>]| {
        ours.call(soon(), |session| session.record_and_confirm(records, receipts))
            .expect("a commit")
    };
    let recorded = make(&[one(old, &plain_attempt)], &[]).recorded.remove(0);
    let copies = recorded.expect("an end").expect("recorded").copies;
    let [CopyState::Claimed(claim)] = copies[..] else { panic!("{copies:?}") };
    let receipt = Receipt::uid(1, 7);
    let receipt = ToConfirm {
        claim,
        receipt: &receipt,
        facts: CopyFacts::default(),
        end: None,
        may_be_lost: true,
    };
    let key = |identity: &Identity| advisory_key(&identity.id_hash);
    let take = |identity: &Identity| {
        others.call(soon(), |session: &mut SqliteSession| session.lock(key(identity)))
    };
    take(held).expect("it is free");
    let before = commits(&file);
    let all = [one(first, &plain_attempt), one(failing, &fails), one(held, &plain_attempt)];
    let all = [&all[..], &[one(last, &plain_attempt)]].concat();
    let done = make(&all, &[receipt]);
    assert_eq!(commits(&file) - before, 1);

    let is_new = |one: &Option<Result<Recorded, LedgerError>>| match one {
        Some(Ok(recorded)) => Some(recorded.is_new),
        _ => None,
    };
    let [one, alone, contended, other] = &done.recorded[..] else { panic!("{done:?}") };
    assert_eq!([one, other].map(is_new), [Some(true); 2], "{done:?}");
    assert!(alone.is_none(), "{alone:?}");
    assert!(matches!(contended, Some(Err(LedgerError::Contended))), "{contended:?}");
    assert!(matches!(done.confirmed[..], [Some(Ok(Confirmed::Recorded))]), "{done:?}");
    let count = |sql: &str| plain.query_row(sql, [], |row| row.get::<_, i64>(0)).expect("a number");
    assert_eq!(count("SELECT count(*) FROM onedrop_message"), 3);
    assert_eq!(count("SELECT count(*) FROM onedrop_attempt_text"), 3);
    assert_eq!(count("SELECT count(*) FROM onedrop_copy WHERE receipt = '1/7'"), 1);
    assert_eq!(count("SELECT count(*) FROM onedrop_copy WHERE leased_until > 0"), 2);
    for identity in [first, failing, last] {
        take(identity).expect("no lock is held any more");
    }
}

/// The disk is full, or goes away: nothing of it stands, and the end of none says that it does.
#[test]
fn where_the_transaction_ends_amid_several_none_is_on_record() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ledger.db");
    let ours = process(&file);
    ours.migrate(soon()).expect("a ledger");
    let plain = rusqlite::Connection::open(&file).expect("the ledger");
    let ends = "CREATE TRIGGER ends BEFORE INSERT ON onedrop_message WHEN NEW.sender = 'ends'
                BEGIN SELECT RAISE(ROLLBACK, 'as a test wants'); END";
    plain.execute_batch(ends).expect("SQL");
    let facts = Facts::default();
    let identities = [1, 2, 3].map(identity);
    let ends = Attempt { sender: "ends".to_owned(), ..Attempt::default() };
    let goes_on = Attempt::default();
    let records: Vec<ToRecord<'_>> = identities
        .iter()
        .zip([&goes_on, &ends, &goes_on])
        .map(|(identity, attempt)| to_record(identity, &facts, attempt, &[]))
        .collect();
    let done = ours.call(soon(), |session| session.record_and_confirm(&records, &[]));
    assert!(done.is_err(), "{done:?}");
    let sql = "SELECT count(*) FROM onedrop_message";
    assert_eq!(plain.query_row(sql, [], |row| row.get::<_, i64>(0)), Ok(0));
    let alone = ours.call(soon(), |session| session.record_and_confirm(&records[2..], &[]));
    assert!(matches!(alone.expect("a commit").recorded[..], [Some(Ok(_))]));
}
