//! The schema, and ledgers of other versions.

use super::*;

pub fn a_ledger_has_its_schema_once(rig: &dyn Rig) {
    let host = Host::of(rig);
    host.record(&mail("kept"), &[inbox()]);
    assert_eq!(host.schema_version(), SCHEMA_VERSION);
    for _ in 0..2 {
        assert!(host.migrate().expect("migrate").is_empty());
    }
    assert_eq!(host.schema_version(), SCHEMA_VERSION);
    host.trace_one("kept@example.org");
}

pub fn a_ledger_without_a_schema_says_so(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    for host in [&a, &b] {
        // A connection that is open, for an empty file is made a ledger when it is opened.
        assert_eq!(host.schema_version(), SCHEMA_VERSION);
    }
    if !rig.forget_schema() {
        return;
    }
    assert_eq!(a.schema_version(), 0);
    let refused = a.try_record(&mail("early"), &[inbox()], LEASE);
    assert!(matches!(refused, Err(LedgerError::Version { found: 0 })), "{refused:?}");
    assert_eq!(b.migrate().expect("migrate"), ["0010_base"]);
    assert_eq!(b.schema_version(), SCHEMA_VERSION);
    assert!(a.record(&mail("early"), &[inbox()]).is_new);
}

pub fn two_that_migrate_at_once_do_it_once(rig: &dyn Rig) {
    let hosts: Vec<Host> = (0..4).map(|_| Host::of(rig)).collect();
    for host in &hosts {
        assert_eq!(host.schema_version(), SCHEMA_VERSION);
    }
    if !rig.forget_schema() {
        return;
    }
    let (barrier, applied) = (Barrier::new(hosts.len()), AtomicU32::new(0));
    thread::scope(|scope| {
        for host in hosts {
            let (barrier, applied) = (&barrier, &applied);
            scope.spawn(move || {
                barrier.wait();
                let names = host.migrate().expect("migrate");
                applied.fetch_add(names.len() as u32, Ordering::SeqCst);
                assert_eq!(host.schema_version(), SCHEMA_VERSION);
            });
        }
    });
    assert_eq!(i64::from(applied.into_inner()), SCHEMA_VERSION - BASE_VERSION + 1);
}

pub fn a_schema_from_the_future_is_refused(rig: &dyn Rig) {
    let host = Host::of(rig);
    if !rig.sql("UPDATE onedrop_ledger SET version = 99") {
        return;
    }
    assert_eq!(host.schema_version(), 99);
    let refused = host.try_record(&mail("early"), &[inbox()], LEASE);
    assert!(matches!(refused, Err(LedgerError::Version { found: 99 })), "{refused:?}");
    assert!(matches!(host.migrate(), Err(LedgerError::Version { found: 99 })));
    assert!(rig.sql(&format!("UPDATE onedrop_ledger SET version = {SCHEMA_VERSION}")));
    assert!(host.record(&mail("early"), &[inbox()]).is_new, "the refusal left nothing locked");
}

pub fn a_ledger_from_before_the_first_release_is_refused(rig: &dyn Rig) {
    let host = Host::of(rig);
    let before = host.record(&mail("before"), &[inbox()]);
    if !rig.sql("ALTER TABLE onedrop_ledger RENAME TO not_there_yet") {
        return;
    }
    for old in 1..BASE_VERSION {
        rig.sql(&format!("UPDATE onedrop_schema SET version = {old}"));
        assert_eq!(host.schema_version(), old);
        let refused = host.try_record(&mail("refused"), &[inbox()], LEASE);
        assert!(matches!(refused, Err(LedgerError::Version { found }) if found == old));
        let refused = host.migrate().expect_err("another version");
        assert_eq!(
            refused.to_string(),
            format!(
                "has schema version {old}, of a trial before the first release, which cannot be \
                 migrated to version {SCHEMA_VERSION}: drain Postfix's queue, name a new, empty \
                 database in ledger.url, and run `onedrop migrate`"
            )
        );
    }
    rig.sql(&format!(
        "UPDATE onedrop_schema SET version = {SCHEMA_VERSION};
         ALTER TABLE not_there_yet RENAME TO onedrop_ledger"
    ));
    let again = host.record(&mail("before"), &[inbox()]);
    assert_eq!((again.message, again.copies), (before.message, vec![CopyState::Busy]));
}
