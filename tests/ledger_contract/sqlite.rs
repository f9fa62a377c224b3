//! What SQLite promises besides: a file that many open at once, a writer that never ends.

use onedrop::ledger::sqlite::SqliteLedger;

use super::*;

#[test]
fn a_file_that_many_open_at_once_becomes_a_ledger() {
    const MANY: usize = 20;
    // Each round is one chance to meet in the moment in which the file is turned to WAL. In one the
    // many are processes, in the other threads of a server.
    for round in 0..10 {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("new/ledger.db");
        let open = || Host(Arc::new(SqliteLedger::new(path.clone(), limits(MANY))));
        let server = open();
        at_once(MANY, |n| {
            let host = if round % 2 == 0 { open() } else { server.clone() };
            assert!(host.record(&mail(&format!("many{n}")), &[inbox()]).is_new);
        });
    }
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
