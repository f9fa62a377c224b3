//! What SQLite promises besides: a file that many open at once, a writer that never ends.

use std::fs;
use std::path::Path;

use onedrop::ledger::Schema;
use onedrop::ledger::sqlite::SqliteLedger;

use super::support::TempRoot;
use super::*;

#[test]
fn a_file_that_many_open_at_once_becomes_a_ledger() {
    const MANY: usize = 20;
    // Each round is one chance to meet in the moment in which the file is turned to WAL. In one the
    // many are processes, in the other threads of a server.
    for round in 0..10 {
        let folder = TempRoot::new();
        let path = folder.join("new/ledger.db");
        let open = || Host(Arc::new(SqliteLedger::new(path.clone(), limits(MANY))));
        let server = open();
        at_once(MANY, |n| {
            let host = if round % 2 == 0 { open() } else { server.clone() };
            assert!(host.record(&mail(&format!("many{n}")), &[inbox()]).is_new);
        });
    }
}

/// Those whose folder it is could not open it.
#[test]
fn root_makes_no_ledger_in_anothers_folder_and_uses_one_that_is_there() {
    let (folder, owner) = (TempRoot::new(), Some(65534));
    let path = folder.join("ledger.db");
    let host = || Host(Arc::new(SqliteLedger::new(path.clone(), limits(1))));
    std::os::unix::fs::chown(&*folder, owner, owner).expect("chown");
    let refused = host().try_record(&mail("early"), &[inbox()], LEASE).expect_err("root");
    let told = format!("{} is not there: {} belongs", path.display(), folder.display());
    assert!(refused.to_string().contains(&told), "{refused}");
    assert_eq!(fs::read_dir(&*folder).expect("a folder").count(), 0);
    std::os::unix::fs::chown(&*folder, Some(0), Some(0)).expect("chown");
    assert!(host().record(&mail("first"), &[inbox()]).is_new);
    std::os::unix::fs::chown(&*folder, owner, owner).expect("chown");
    assert!(host().record(&mail("second"), &[inbox()]).is_new);
    fs::remove_file(folder.join("ledger.db-locks")).expect("removal");
    assert!(host().try_record(&mail("third"), &[inbox()], LEASE).is_err(), "they would be root's");
}

/// What is committed to a file that has lost its name is lost.
#[test]
fn a_session_whose_file_was_replaced_goes_on_in_the_one_that_has_its_name() {
    let folder = TempRoot::new();
    let path = folder.join("ledger.db");
    let host = || Host(Arc::new(SqliteLedger::new(path.clone(), limits(1))));
    let kept = host();
    assert!(kept.record(&mail("first"), &[inbox()]).is_new);
    let aside = folder.join("aside");
    fs::create_dir(&aside).expect("a folder");
    for name in ["ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db-locks"] {
        fs::rename(folder.join(name), aside.join(name)).expect("a file");
    }
    assert!(host().record(&mail("other"), &[inbox()]).is_new);
    assert!(kept.record(&mail("first"), &[inbox()]).is_new, "the new one does not know it");
    assert!(!host().record(&mail("first"), &[inbox()]).is_new);
}

#[test]
fn a_writer_that_never_ends_makes_the_ledger_unavailable_and_leaves_no_lock() {
    let rig = SqliteRig::new();
    let mail = mail("blocked");
    let key = copy_key(&mail, &inbox());
    let claim = Host::of(&rig).claim(&mail, &inbox());
    let hurried = Host::of(&rig);
    let hurry = || Instant::now() + Duration::from_millis(20);
    let mut writer = rig.connection();
    let held = writer
        .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
        .expect("the write lock");
    let turn = hurried.turn(&claim, &key);
    assert_eq!(turn, OURS, "reading waits for no writer");
    let confirmed = turn.try_confirm_until(&claim, &uid(1), hurry());
    assert!(matches!(confirmed, Err(LedgerError::Unavailable(_))), "{confirmed:?}");
    let facts = mail.facts();
    let entry = entry(mail.identity(), &facts);
    let recorded = hurried.0.record(&entry, &attempt("mx1"), &[inbox()], LEASE, hurry());
    assert!(matches!(recorded, Err(LedgerError::Unavailable(_))), "{recorded:?}");
    drop(held);
    let other = Host::of(&rig);
    let recorded = other.record(&mail, &[inbox()]);
    assert_eq!(recorded.copies, [CopyState::Busy], "the message's lock is free");
    assert_eq!(other.turn(&claim, &key), OURS, "the copy's lock is free");
    assert_eq!(hurried.confirm(&claim, &uid(1)), Confirmed::Recorded);
}

/// Records a message in the ledger at `path`, which no process has opened before.
fn record_in(path: &Path, until: Instant) -> Result<Recorded, LedgerError> {
    let (host, mail) = (Host(Arc::new(SqliteLedger::new(path.to_owned(), limits(1)))), mail("m"));
    let facts = mail.facts();
    host.0.record(&entry(mail.identity(), &facts), &attempt("mx1"), &[inbox()], LEASE, until)
}

#[test]
fn a_file_that_is_no_ledger_is_broken() {
    let folder = TempRoot::new();
    let path = folder.join("ledger.db");
    let text = "This is no database. ".repeat(1000);
    fs::write(&path, &text).expect("a file");
    let began = Instant::now();
    let recorded = record_in(&path, soon());
    assert!(matches!(recorded, Err(LedgerError::Broken(_))), "{recorded:?}");
    assert!(began.elapsed() < Duration::from_secs(60), "waiting mends nothing");
    assert_eq!(fs::read_to_string(&path).expect("a file"), text, "it stays as it is");
}

/// SQLite itself does not wait where it turns a file to WAL.
#[test]
fn a_file_that_cannot_be_turned_to_wal_now_is_waited_for() {
    let folder = TempRoot::new();
    let path = folder.join("ledger.db");
    let reader = rusqlite::Connection::open(&path).expect("a file");
    reader
        .execute_batch("PRAGMA user_version = 1; BEGIN; SELECT count(*) FROM sqlite_schema")
        .expect("a lock");
    let (began, wait) = (Instant::now(), Duration::from_millis(400));
    let recorded = record_in(&path, began + wait);
    assert!(matches!(recorded, Err(LedgerError::Unavailable(_))), "{recorded:?}");
    assert!(began.elapsed() >= wait, "{:?}", began.elapsed());
    thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(wait);
            drop(reader);
        });
        assert!(record_in(&path, soon()).expect("a record").is_new);
    });
}

#[test]
fn a_schema_that_cannot_be_read_is_not_taken_for_none() {
    let folder = TempRoot::new();
    let path = folder.join("ledger.db");
    let other = rusqlite::Connection::open(&path).expect("a file");
    let version = || SqliteLedger::new(path.clone(), limits(1)).schema_version(soon());
    other.execute_batch("CREATE TABLE another (x)").expect("a table");
    assert_eq!(version().expect("none").found, 0);
    other.execute_batch("CREATE TABLE onedrop_schema (x)").expect("a table");
    assert!(matches!(version(), Err(LedgerError::Refused(_))), "{:?}", version());
    other.execute_batch("CREATE TABLE onedrop_ledger (x)").expect("a table");
    assert!(matches!(version(), Err(LedgerError::Refused(_))), "{:?}", version());
}

#[test]
fn a_second_claim_has_its_owner_and_its_value_and_shortens_no_lease() {
    let rig = SqliteRig::new();
    let host = Host::of(&rig);
    let message = host.record(&mail("m"), &[inbox()]).message;
    let claim = |wanted: &[Destination], owner: &Attempt, terms: LeaseTerms| {
        host.0.claim(&message, wanted, owner, terms, soon()).expect("a claim")
    };
    rig.pass(2 * LEASE.lease.as_secs() as i64);
    let (second, third) = (attempt("mx2"), attempt("mx3"));
    let first = claim(&[inbox()], &second, LEASE);
    assert!(matches!(first[..], [CopyState::Claimed(_)]), "{first:?}");
    assert_eq!(claim(&[inbox()], &second, LEASE), first, "the call is made again");
    let all = Window { since: UNIX_EPOCH, all: true };
    let rows = host.copies(&all);
    assert_eq!(rows[0].owner, "mx2:42");

    // Joined, for a shorter time; named twice, which leases it once.
    let short = LeaseTerms { lease: Duration::from_secs(10), join: true, due: false };
    claim(&[inbox(), inbox()], &third, short);
    let again = claim(&[inbox()], &third, LeaseTerms { join: false, ..short });
    assert!(matches!(again[..], [CopyState::Claimed(_)]), "its own lease: {again:?}");
    rig.pass(60);
    assert_eq!(claim(&[inbox()], &attempt("mx4"), LEASE), [CopyState::Busy]);
}
