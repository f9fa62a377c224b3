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
    assert!(matches!(refused, Err(LedgerError::Version(seen)) if seen.found == 0), "{refused:?}");
    assert_eq!(b.migrate().expect("migrate"), ["0010_base", "0011_by_recipient"]);
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
    let is = |version: i64, oldest_program: i64| {
        rig.sql(&format!(
            "UPDATE onedrop_ledger SET version = {version}, oldest_program = {oldest_program}"
        ))
    };
    let next = SCHEMA_VERSION + 1;
    for (version, oldest) in [(99, 98), (next + 1, SCHEMA_VERSION), (next, next)] {
        if !is(version, oldest) {
            return;
        }
        assert_eq!(host.schema_version(), version);
        let of_it = |answer: Result<(), LedgerError>| match answer {
            Err(LedgerError::Version(seen)) => seen.found == version,
            other => panic!("{other:?}"),
        };
        assert!(of_it(host.try_record(&mail("early"), &[inbox()], LEASE).map(drop)));
        assert!(of_it(host.0.check_program(soon())));
        assert!(of_it(host.migrate().map(drop)));
        assert!(of_it(host.0.planned_migration(soon()).map(drop)));
    }
    assert!(is(SCHEMA_VERSION, SCHEMA_VERSION));
    assert!(host.record(&mail("early"), &[inbox()]).is_new, "the refusal left nothing locked");
}

pub fn the_next_schema_is_used_as_long_as_it_lets_older_programs(rig: &dyn Rig) {
    let host = Host::of(rig);
    let next = SCHEMA_VERSION + 1;
    let sql = format!("UPDATE onedrop_ledger SET version = {next}, oldest_program = {}", next - 1);
    if !rig.sql(&sql) {
        return;
    }
    assert!(host.record(&mail("beside"), &[inbox()]).is_new);
    assert!(host.0.check_program(soon()).is_ok() && host.0.lock_rows(None, soon()).is_ok());
    let row = host.new_job("beside");
    assert!(host.0.remove_job("beside", row.revision, soon()).is_ok_and(|is_gone| is_gone));
    assert!(matches!(host.migrate(), Err(LedgerError::Version(seen)) if seen.found == next));
}

pub fn a_ledger_from_before_the_first_release_is_refused(rig: &dyn Rig) {
    let host = Host::of(rig);
    let before = host.record(&mail("before"), &[inbox()]);
    // None of them had the table.
    if !rig.sql("ALTER TABLE onedrop_ledger RENAME TO not_there_yet") {
        return;
    }
    rig.sql(&format!("DELETE FROM onedrop_schema WHERE version > {BASE_VERSION}"));
    for old in 1..BASE_VERSION {
        rig.sql(&format!("UPDATE onedrop_schema SET version = {old}"));
        assert_eq!(host.schema_version(), old);
        let refused = host.try_record(&mail("refused"), &[inbox()], LEASE);
        assert!(matches!(refused, Err(LedgerError::Version(seen)) if seen.found == old));
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

fn shared(by: &str, sent: &str) -> SharedConfig {
    SharedConfig::new([("dedup.by", by.to_owned()), ("sent.mailbox", sent.to_owned())])
}

pub fn the_first_delivery_says_what_all_hosts_have_alike(rig: &dyn Rig) {
    let of = |by, sent| Host(rig.ledger_of(Some(shared(by, sent))));
    let (a, b) = (of("content", "Sent"), of("message-id", "Sent"));
    assert!(b.0.check_program(soon()).is_ok(), "nothing is on record yet");
    a.record(&mail("first"), &[inbox()]);
    of("content", "Sent").record(&mail("alike"), &[inbox()]);
    Host::of(rig).record(&mail("not asked"), &[inbox()]);
    let differs = |answer: Result<(), LedgerError>| match answer {
        Err(LedgerError::OtherConfig(keys)) => keys,
        other => panic!("{other:?}"),
    };
    let keys = differs(b.try_record(&mail("first"), &[inbox()], LEASE).map(drop));
    assert_eq!(keys, r#"dedup.by is "content" in the ledger and "message-id" on this host"#);
    assert_eq!(differs(b.0.check_program(soon())), keys);
    assert_eq!(differs(b.0.share_config(false, soon())), keys);
    a.record(&mail("second"), &[inbox()]);
    b.0.share_config(true, soon()).expect("it is for all now");
    assert!(b.record(&mail("third"), &[inbox()]).is_new);
    differs(a.try_record(&mail("third"), &[inbox()], LEASE).map(drop));
}

pub fn a_record_rests_on_the_list_of_fields_that_is_in_force(rig: &dyn Rig) {
    let of = |list: &str| {
        let keys = [("dedup.by", "content"), ("dedup.filter_fields", list)];
        Host(rig.ledger_of(Some(SharedConfig::new(keys.map(|(key, of)| (key, of.to_owned()))))))
    };
    // A ledger of before the key: no list is in force until `migrate` has put it there.
    Host(rig.ledger_of(Some(SharedConfig::new([("dedup.by", "content".to_owned())]))))
        .record(&mail("before"), &[inbox()]);
    let (a, b) = (of("x-a"), of("x-b"));
    let fields = |host: &Host, anew| host.0.filter_fields(anew, soon()).expect("a list");
    let record = |host: &Host, name: &str, fields: &FilterFields| {
        let (mail, facts) = (mail(name), mail(name).facts());
        let entry = Entry { fields: Some(fields), ..entry(mail.identity(), &facts) };
        host.0.record(&entry, &attempt("mx1"), &[inbox()], LEASE, soon())
    };
    let refused = |answer: Result<Recorded, LedgerError>| match answer {
        Err(LedgerError::OtherConfig(_)) => {}
        other => panic!("{other:?}"),
    };
    let none = fields(&a, false);
    assert_eq!(none.list, "");
    record(&a, "none", &none).expect("by no list");
    a.0.share_config(false, soon()).expect("the key is added");
    refused(record(&a, "none", &none));
    refused(record(&a, "new", &none));
    let first = fields(&a, true);
    assert_eq!((first.list.as_str(), first.former_lists(a.0.time())), ("x-a", vec![String::new()]));
    record(&a, "first", &first).expect("by the list");
    record(&a, "second", &first).expect("by the list");
    refused(record(&b, "first", &fields(&b, false)));
    b.0.share_config(true, soon()).expect("it is for all now");
    refused(record(&a, "first", &first));
    refused(record(&a, "third", &first));
    let second = fields(&b, true);
    let former = second.former_lists(b.0.time());
    assert_eq!((second.list.as_str(), former), ("x-b", vec![String::new(), "x-a".to_owned()]));
    record(&b, "third", &second).expect("by the new list");

    let has = |name: &str, destination: &Destination| {
        b.0.has_copy(mail(name).identity(), destination, soon()).expect("an answer")
    };
    let variant = inbox().of_variant("\\0123456789abcdef");
    assert!(has("first", &inbox()) && !has("first", &variant) && !has("fourth", &inbox()));
    b.record(&mail("first"), std::slice::from_ref(&variant));
    assert!(has("first", &variant));
}

pub fn a_key_of_a_later_version_is_compared_once_it_is_on_record(rig: &dyn Rig) {
    let later = |value: &str| {
        let keys = [("dedup.by", "content"), ("sent.mailbox", "Sent"), ("new.key", value)];
        Host(rig.ledger_of(Some(SharedConfig::new(keys.map(|(key, of)| (key, of.to_owned()))))))
    };
    let (old, a, b) =
        (Host(rig.ledger_of(Some(shared("content", "Sent")))), later("one"), later("two"));
    old.record(&mail("old"), &[inbox()]);
    a.record(&mail("a"), &[inbox()]);
    b.record(&mail("b"), &[inbox()]);
    a.0.share_config(false, soon()).expect("the key is added");
    a.record(&mail("a again"), &[inbox()]);
    old.record(&mail("old again"), &[inbox()]);
    match b.try_record(&mail("b again"), &[inbox()], LEASE) {
        Err(LedgerError::OtherConfig(keys)) => {
            assert_eq!(keys, r#"new.key is "one" in the ledger and "two" on this host"#);
        }
        other => panic!("{other:?}"),
    }
    a.0.share_config(true, soon()).expect("the same again");
    assert!(old.0.check_program(soon()).is_ok());
}

/// What one has read, another may have replaced before it writes.
pub fn of_eight_hosts_that_each_add_a_key_all_keys_stay(rig: &dyn Rig) {
    const HOSTS: usize = 8;
    let of = |keys: &[String], value: &str| {
        let keys = keys.iter().map(|key| (&**key, value.to_owned()));
        Host(rig.ledger_of(Some(SharedConfig::new(keys))))
    };
    let keys: Vec<String> = (0..HOSTS).map(|n| format!("new.key{n}")).collect();
    let hosts: Vec<Host> = keys.iter().map(|key| of(std::slice::from_ref(key), "one")).collect();
    hosts[0].record(&mail("first"), &[inbox()]);
    let shared = at_once(HOSTS, |n| hosts[n].0.share_config(n % 2 == 0, soon()));
    assert!(shared.iter().all(Result::is_ok), "{shared:?}");
    match of(&keys, "two").0.check_program(soon()) {
        Err(LedgerError::OtherConfig(differing)) => {
            let missing: Vec<_> = keys.iter().filter(|key| !differing.contains(*key)).collect();
            assert_eq!(missing, [""; 0], "{differing}");
        }
        other => panic!("{other:?}"),
    }
}

pub fn of_twenty_first_deliveries_that_differ_one_says_what_holds(rig: &dyn Rig) {
    let hosts: Vec<Host> = (0..20)
        .map(|n| Host(rig.ledger_of(Some(shared("content", &format!("Sent{}", n % 2))))))
        .collect();
    let recorded =
        at_once(20, |n| match hosts[n].try_record(&mail(&format!("host{n}")), &[inbox()], LEASE) {
            Ok(_) => true,
            Err(LedgerError::OtherConfig(_)) => false,
            other => panic!("{other:?}"),
        });
    let first = recorded[0];
    assert!((0..20).all(|n| recorded[n] == (first == (n % 2 == 0))), "{recorded:?}");
}
