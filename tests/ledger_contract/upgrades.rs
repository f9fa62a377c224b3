//! Upgrades on the engines themselves: a program of the next version beside this one, a migration
//! that is cut off at each step, and deliveries that go on meanwhile.

use std::sync::atomic::{AtomicBool, AtomicUsize};

use onedrop::ledger::Program;

use ::postgres::{Client, NoTls};

use super::support::is_full;
use super::*;
use crate::next;

impl PostgresRig {
    fn of_program(&self, next: &'static [Migration]) -> Host {
        Host(self.ledger_for(self.url(), next::program(None, next), limits(20)))
    }

    /// A transaction that has run `sql`, until it is dropped.
    fn in_transaction(&self, sql: &str) -> Client {
        let url = format!("{}&application_name=blocker", self.postgres.url_socket());
        let mut client = Client::connect(&url, NoTls).expect("a session");
        client.batch_execute(&format!("BEGIN; {sql}")).expect("SQL");
        client
    }

    fn is(&self, condition: &str) -> bool {
        self.postgres.psql(&format!("SELECT {condition}")) == "t"
    }

    /// The column is there and filled, the index is whole, the version is on record.
    fn is_migrated(&self) {
        assert!(self.is("NOT EXISTS (SELECT FROM onedrop_message WHERE next_note IS NULL)"));
        assert!(self.is("(SELECT indisvalid FROM pg_index \
              WHERE indexrelid = 'onedrop_message_next_note'::regclass)"));
        assert!(self.is("(SELECT steps = 3 AND applied_at IS NOT NULL FROM onedrop_schema \
                          ORDER BY version DESC LIMIT 1)"));
    }

    /// Up to the index: a migration was killed there.
    fn is_left_at_the_index(&self) {
        let MigrationStep::Transaction(first) = next::POSTGRES[0].steps[0] else {
            unreachable!("the first step is a transaction")
        };
        self.sql(first);
        self.sql("UPDATE onedrop_message SET next_note = 'old'");
        let hash = lock_key::hex(&next::POSTGRES[0].sha256());
        self.sql(&format!(
            "INSERT INTO onedrop_schema (version, name, sha256, steps)
             VALUES (12, 'x', decode('{hash}', 'hex'), 2)"
        ));
    }

    /// Adds this number of messages.
    fn fill(&self, messages: u64) {
        self.sql(&format!(
            "INSERT INTO onedrop_message (id_hash, digest, sender, size_bytes, message_id)
             SELECT sha256(n::text::bytea), sha256(n::text::bytea), 'a@b', 1, n::text::bytea
             FROM generate_series(1, {messages}) n;
             INSERT INTO onedrop_copy (message_id, account, mailbox, shared, epoch, owner, in_doubt,
                                       prior_doubt, placed_at)
             SELECT id, 'filled', 'INBOX', false, 1, 'x', false, false, now() FROM onedrop_message;
             ANALYZE onedrop_message"
        ));
    }
}

impl MariadbRig {
    /// Adds this number of messages.
    fn fill(&self, messages: u64) {
        self.sql(&format!(
            "INSERT INTO onedrop_message (id_hash, digest, sender, size_bytes, message_id,
                                          collision, recorded_at, looks_back)
             SELECT UNHEX(SHA2(seq, 256)), UNHEX(SHA2(seq, 256)), 'a@b', 1, seq, FALSE,
                    UTC_TIMESTAMP(), FALSE
             FROM seq_1_to_{messages}"
        ));
    }
}

#[test]
fn old_and_new_programs_work_side_by_side_before_and_after_the_migration() {
    let rig = PostgresRig::shared_by_default();
    let (old, new) = (Host::of(&rig), rig.of_program(next::POSTGRES));
    let both = |name: &str| {
        let first = old.record(&mail(name), &[inbox()]);
        assert!(first.is_new);
        let again = new.record(&mail(name), &[inbox()]);
        assert_eq!((again.message, again.copies), (first.message, vec![CopyState::Busy]));
        for host in [&old, &new] {
            host.0.check_program(soon()).expect("it may");
            host.0.lock_rows(None, soon()).expect("it may");
        }
    };
    both("before");
    rig.fill(100);
    let planned = new.0.planned_migration(soon()).expect("a plan");
    let whats: Vec<&str> = planned.iter().map(|step| step.what.as_str()).collect();
    let index = "index onedrop_message_next_note on onedrop_message";
    assert_eq!(whats, ["one transaction", "rows of onedrop_message, in batches", index]);
    assert_eq!(planned[1].rows, Some(101));
    assert_eq!(new.schema_version(), SCHEMA_VERSION, "a plan changes nothing");
    assert_eq!(new.migrate().expect("migrate"), [next::NAME]);
    assert!(new.migrate().expect("migrate").is_empty());
    assert!(new.0.planned_migration(soon()).expect("a plan").is_empty());
    rig.is_migrated();
    both("after");
    rig.is_migrated();
}

#[test]
fn a_migration_that_is_cut_off_at_any_step_goes_on_there() {
    for (steps, blocker) in [
        (0, "LOCK TABLE onedrop_message IN ROW EXCLUSIVE MODE"),
        (1, "LOCK TABLE onedrop_message IN SHARE MODE"),
        // It leaves an index that is not valid.
        (2, "LOCK TABLE onedrop_message IN ROW EXCLUSIVE MODE"),
    ] {
        let rig = PostgresRig::shared_by_default();
        let (old, new) = (Host::of(&rig), rig.of_program(next::POSTGRES));
        rig.fill(100);
        if steps > 0 {
            // Up to the step before.
            let until = next::POSTGRES[0].steps;
            let done = match until[0] {
                MigrationStep::Transaction(sql) => sql,
                _ => unreachable!("the first step is a transaction"),
            };
            rig.sql(done);
            let filled =
                if steps == 2 { "UPDATE onedrop_message SET next_note = 'old';" } else { "" };
            rig.sql(filled);
            let hash = lock_key::hex(&next::POSTGRES[0].sha256());
            rig.sql(&format!(
                "INSERT INTO onedrop_schema (version, name, sha256, steps)
                 VALUES (12, 'x', decode('{hash}', 'hex'), {steps})"
            ));
        }
        let blocks = rig.in_transaction(blocker);
        thread::scope(|scope| {
            let migrating = scope.spawn(|| new.migrate());
            let waits = match steps {
                2 => "EXISTS (SELECT FROM pg_index WHERE NOT indisvalid)",
                _ => {
                    "EXISTS (SELECT FROM pg_stat_activity
                             WHERE wait_event_type = 'Lock' AND datname = current_database())"
                }
            };
            assert!(
                crate::support::wait_until(Duration::from_secs(60), || rig.is(waits)),
                "{steps}"
            );
            rig.sql(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
                 WHERE application_name = 'onedrop' AND datname = current_database()",
            );
            let cut_off = migrating.join().expect("no panic");
            assert!(matches!(cut_off, Err(LedgerError::Unavailable(_))), "{steps}: {cut_off:?}");
        });
        drop(blocks);
        assert_eq!(rig.is("EXISTS (SELECT FROM pg_index WHERE NOT indisvalid)"), steps == 2);
        assert_eq!(old.schema_version(), SCHEMA_VERSION);
        assert!(old.record(&mail("meanwhile"), &[inbox()]).is_new);
        assert_eq!(new.migrate().expect("migrate"), [next::NAME], "{steps}");
        rig.is_migrated();
    }
}

#[test]
fn the_index_by_recipient_takes_the_place_of_the_one_before_beside_readers_and_deliveries() {
    let rig = PostgresRig::shared_by_default();
    let (host, other) = (Host::of(&rig), Host::of(&rig));
    // Not begun, begun, and cut off between its steps.
    for done in [None, Some(0), Some(1)] {
        rig.sql(
            "CREATE INDEX onedrop_attempt_recipient ON onedrop_attempt (lower(recipient))
                 WHERE message_id IS NOT NULL;
             UPDATE onedrop_ledger SET version = 10",
        );
        match done {
            None => rig.sql("DELETE FROM onedrop_schema WHERE version = 11"),
            Some(steps) => rig.sql(&format!(
                "UPDATE onedrop_schema SET steps = {steps}, applied_at = NULL WHERE version = 11"
            )),
        };
        if done != Some(1) {
            rig.sql("DROP INDEX onedrop_attempt_by_recipient");
        }
        rig.sql("DROP FUNCTION onedrop_lock_free CASCADE");
        let reads = rig.in_transaction("SELECT count(*) FROM onedrop_attempt");
        thread::scope(|scope| {
            let migrating = scope.spawn(|| host.migrate());
            let waits = "EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'
                         AND datname = current_database()
                         AND query LIKE 'DROP INDEX CONCURRENTLY%')";
            assert!(crate::support::wait_until(Duration::from_secs(60), || rig.is(waits)));
            assert!(other.record(&mail(&format!("beside {done:?}")), &[inbox()]).is_new);
            assert!(rig.is(waits), "nobody waits for it");
            drop(reads);
            let applied = migrating.join().expect("no panic").expect("migrate");
            assert_eq!(applied, ["0011_by_recipient"]);
        });
        assert_eq!(host.schema_version(), SCHEMA_VERSION);
        assert!(rig.is("to_regclass('onedrop_attempt_recipient') IS NULL"));
        assert!(rig.is("(SELECT indisvalid FROM pg_index
                         WHERE indexrelid = 'onedrop_attempt_by_recipient'::regclass)"));
        assert!(rig.is("EXISTS (SELECT FROM pg_trigger WHERE tgname = 'onedrop_lock_freed')"));
    }
}

#[test]
fn limits_that_the_role_has_cut_no_index_off() {
    let rig = PostgresRig::shared_by_default();
    rig.fill(100);
    for limit in ["statement_timeout = '1s'", "lock_timeout = '1s'"] {
        rig.sql(&format!("ALTER ROLE onedrop IN DATABASE {} SET {limit}", rig.postgres.database()));
    }
    let new = rig.of_program(next::POSTGRES);
    let blocks = rig.in_transaction(
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM onedrop_copy",
    );
    thread::scope(|scope| {
        let migrating = scope.spawn(|| new.migrate());
        // Building waits for the other one's transaction, longer than the limits are.
        let builds = "EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX%'
                      AND datname = current_database()
                      AND clock_timestamp() - query_start > interval '2 s')";
        let is_seen = || migrating.is_finished() || rig.is(builds);
        assert!(crate::support::wait_until(Duration::from_secs(60), is_seen));
        drop(blocks);
        assert_eq!(migrating.join().expect("no panic").expect("migrate"), [next::NAME]);
    });
    rig.is_migrated();
}

#[test]
fn several_hosts_that_migrate_at_once_do_it_once_also_by_way_of_pgbouncer() {
    for rig in [PostgresRig::shared_by_default(), PostgresRig::pooled()] {
        rig.fill(100);
        let old = Host::of(&rig);
        let applied = at_once(4, |_| rig.of_program(next::POSTGRES).migrate().expect("migrate"));
        assert_eq!(applied.concat(), [next::NAME]);
        rig.is_migrated();
        assert!(old.record(&mail("after"), &[inbox()]).is_new);
    }
}

#[test]
fn a_ledger_in_a_schema_of_another_name_is_made_used_and_migrated() {
    let rig = PostgresRig::shared_by_default();
    rig.sql(&format!(
        "CREATE SCHEMA \"Mail\" AUTHORIZATION onedrop;
         ALTER ROLE onedrop IN DATABASE {} SET search_path = \"Mail\"",
        rig.postgres.database()
    ));
    let (old, new) = (Host::of(&rig), rig.of_program(next::POSTGRES));
    assert_eq!(old.migrate().expect("migrate"), ["0010_base", "0011_by_recipient"]);
    let first = old.record(&mail("elsewhere"), &[inbox()]);
    assert_eq!(old.confirm(&claimed(&first.copies[0]), &uid(1)), Confirmed::Recorded);
    assert_eq!(new.migrate().expect("migrate"), [next::NAME]);
    assert!(new.record(&mail("after"), &[inbox()]).is_new);
    let versions = "SELECT (SELECT version FROM \"Mail\".onedrop_ledger),
                           (SELECT version FROM public.onedrop_ledger)";
    assert_eq!(rig.postgres.psql(versions), "12|11");
    rig.sql("DELETE FROM \"Mail\".onedrop_message");
    assert_eq!(rig.postgres.psql("SELECT count(*) FROM \"Mail\".onedrop_copy"), "0");
}

/// Notes what its transaction is held to.
const NOTED: &[Migration] = &[Migration {
    version: SCHEMA_VERSION + 1,
    oldest_program: SCHEMA_VERSION,
    name: next::NAME,
    steps: &[MigrationStep::Transaction(
        "CREATE TABLE noted AS SELECT name, setting::bigint AS ms FROM pg_settings
         WHERE name IN ('lock_timeout', 'statement_timeout',
                        'idle_in_transaction_session_timeout')",
    )],
}];

#[test]
fn a_transaction_that_may_hold_a_table_ends_soon_also_if_its_host_has_vanished() {
    let rig = PostgresRig::shared_by_default();
    rig.of_program(NOTED).migrate().expect("migrate");
    assert!(rig.is("(SELECT count(*) = 3 FROM noted WHERE ms BETWEEN 1 AND 10000)"));
    // What queues for the table waits for both at most.
    assert!(rig.is("(SELECT sum(ms) < 1000 FROM noted
                     WHERE name IN ('lock_timeout', 'statement_timeout'))"));
}

const COUNTED: &[Migration] = &[Migration {
    steps: &[MigrationStep::Transaction("INSERT INTO counted VALUES (1)")],
    ..NOTED[0]
}];

#[test]
fn of_two_programs_that_lost_their_lock_one_does_a_step() {
    let rig = PostgresRig::shared_by_default();
    let new = rig.of_program(COUNTED);
    let hash = lock_key::hex(&COUNTED[0].sha256());
    rig.sql(&format!(
        "CREATE TABLE counted (n int);
         GRANT ALL ON counted TO onedrop;
         INSERT INTO onedrop_schema (version, name, sha256, steps)
         VALUES (12, 'x', decode('{hash}', 'hex'), 0)"
    ));
    let blocks = rig.in_transaction("LOCK TABLE counted IN SHARE MODE");
    let until_one_waits = || {
        let waits = "EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
                             WHERE NOT l.granted AND a.datname = current_database())";
        assert!(crate::support::wait_until(Duration::from_secs(60), || rig.is(waits)));
    };
    thread::scope(|scope| {
        let migrating = scope.spawn(|| new.migrate());
        until_one_waits();
        let mut other =
            rig.in_transaction("UPDATE onedrop_schema SET steps = 1 WHERE version = 12");
        drop(blocks);
        other.batch_execute("INSERT INTO counted VALUES (1)").expect("SQL");
        until_one_waits();
        other.batch_execute("COMMIT").expect("SQL");
        let late = migrating.join().expect("no panic");
        assert!(matches!(late, Err(LedgerError::Busy(_))), "{late:?}");
    });
    assert!(rig.is("(SELECT count(*) = 1 FROM counted)"));
}

#[test]
fn a_program_that_lost_its_lock_and_comes_late_sets_no_version_back() {
    let rig = PostgresRig::shared_by_default();
    rig.fill(100);
    let new = rig.of_program(next::POSTGRES);
    rig.is_left_at_the_index();
    let blocks = rig.in_transaction("LOCK TABLE onedrop_message IN ROW EXCLUSIVE MODE");
    thread::scope(|scope| {
        let migrating = scope.spawn(|| new.migrate());
        let builds = "EXISTS (SELECT FROM pg_index WHERE NOT indisvalid)";
        assert!(crate::support::wait_until(Duration::from_secs(60), || rig.is(builds)));
        // Meanwhile another one has done the rest, and a program of the version after it came.
        rig.sql(
            "UPDATE onedrop_schema SET steps = 3, applied_at = now() WHERE version = 12;
             UPDATE onedrop_ledger SET version = 13, oldest_program = 12",
        );
        drop(blocks);
        migrating.join().expect("no panic").expect("migrate");
    });
    assert_eq!(new.schema_version(), 13);
    assert!(rig.is("(SELECT oldest_program = 12 FROM onedrop_ledger)"));
}

/// The server's process builds on when the `migrate` that it works for was killed. The next one
/// waits for it, and it for that one.
#[test]
fn an_index_that_a_killed_migration_still_builds_is_built() {
    let rig = PostgresRig::shared_by_default();
    rig.fill(100);
    // The later of the two finds the deadlock later.
    let database = rig.postgres.database();
    rig.sql(&format!("ALTER ROLE onedrop IN DATABASE {database} SET deadlock_timeout = '3s'"));
    let new = rig.of_program(next::POSTGRES);
    rig.is_left_at_the_index();
    let MigrationStep::Index { name, table, on } = next::POSTGRES[0].steps[2] else {
        unreachable!("the last step is the index")
    };
    let mut left = Client::connect(&rig.postgres.url_socket(), NoTls).expect("a session");
    let blocks = rig.in_transaction("LOCK TABLE onedrop_message IN ROW EXCLUSIVE MODE");
    thread::scope(|scope| {
        // On a busy machine the server may end this one.
        scope.spawn(move || {
            left.batch_execute(&format!("CREATE INDEX CONCURRENTLY {name} ON {table} {on}"))
        });
        let builds = "EXISTS (SELECT FROM pg_index WHERE NOT indisvalid)";
        assert!(crate::support::wait_until(Duration::from_secs(60), || rig.is(builds)));
        let migrating = scope.spawn(|| new.migrate());
        let waits = "EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'
                     AND datname = current_database()
                     AND query LIKE 'DROP INDEX CONCURRENTLY%')";
        assert!(crate::support::wait_until(Duration::from_secs(60), || rig.is(waits)));
        drop(blocks);
        assert_eq!(migrating.join().expect("no panic").expect("migrate"), [next::NAME]);
    });
    rig.is_migrated();
}

/// The statements of the migration's long steps that deliveries were seen to wait for, by looks at
/// the server until `is_over`; not the moments in which a table's file grows.
fn long_steps_waited_for(rig: &PostgresRig, is_over: &AtomicBool) -> Vec<String> {
    let mut watcher = rig.in_transaction("ROLLBACK");
    let sql = "SELECT other.query
               FROM pg_locks JOIN pg_stat_activity one USING (pid)
               JOIN pg_stat_activity other ON other.pid = ANY (pg_blocking_pids(one.pid))
               WHERE NOT granted AND locktype <> 'extend' AND one.application_name = 'onedrop'
                 AND other.query ~ '^(CREATE INDEX|WITH changed)'";
    let mut seen = Vec::new();
    while !is_over.load(Ordering::SeqCst) {
        let rows = watcher.query(sql, &[]).expect("locks");
        seen.extend(rows.iter().map(|row| row.get::<_, String>(0)));
        thread::sleep(Duration::from_millis(10));
    }
    seen
}

/// Ends `reads` when the migration waits for it and deliveries go on all the same: after one that
/// never gives up they would queue for as long.
fn deliveries_go_on_beside(rig: &PostgresRig, reads: Client) {
    let waits = "EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'
                 AND datname = current_database() AND query LIKE 'ALTER TABLE%')";
    let it_waits = crate::support::wait_until(Duration::from_secs(60), || rig.is(waits));
    let copies = || rig.postgres.psql("SELECT max(id) FROM onedrop_copy").parse::<i64>();
    let before = copies().expect("a number");
    let they_go_on = crate::support::wait_until(Duration::from_secs(60), || {
        copies().expect("a number") >= before + 20
    });
    drop(reads);
    assert!(it_waits && they_go_on, "the migration waits: {it_waits}");
}

/// Deliveries by programs of both versions while a program of the next one migrates; the longest of
/// them, how many there were, and how long the migration took.
fn deliver_while_migrating(hosts: [&(dyn Fn() -> Host + Sync); 2], new: &Host) -> Load {
    let is_over = AtomicBool::new(false);
    let began = Instant::now();
    thread::scope(|scope| {
        let deliveries: Vec<_> = (0..4)
            .map(|n| {
                let is_over = &is_over;
                scope.spawn(move || {
                    let host = hosts[n % 2]();
                    let (mut longest, mut count) = (Duration::ZERO, 0);
                    while !is_over.load(Ordering::SeqCst) || count < 5 {
                        count += 1;
                        let began = Instant::now();
                        let claim = claim_in_time(&host, &mail(&format!("load{n}of{count}")));
                        assert_eq!(host.confirm(&claim, &uid(count)), Confirmed::Recorded);
                        longest = longest.max(began.elapsed());
                    }
                    (longest, count)
                })
            })
            .collect();
        let migrated = new.0.migrate(Instant::now() + Duration::from_secs(3600));
        let took = began.elapsed();
        is_over.store(true, Ordering::SeqCst);
        assert_eq!(migrated.expect("migrate"), [next::NAME]);
        let ends = deliveries.into_iter().map(|one| one.join().expect("no panic"));
        ends.fold(Load { took, ..Load::default() }, |all, (longest, count)| Load {
            longest: all.longest.max(longest),
            deliveries: all.deliveries + count,
            ..all
        })
    })
}

/// Tries again for `lock.wait_secs`, like a delivery.
fn claim_in_time(host: &Host, mail: &Message) -> Claim {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match host.try_record(mail, &[inbox()], LEASE) {
            Err(LedgerError::Contended) if Instant::now() < until => {
                thread::sleep(Duration::from_millis(20));
            }
            recorded => return claimed(&recorded.expect("record").copies[0]),
        }
    }
}

#[derive(Default)]
struct Load {
    took: Duration,
    deliveries: u32,
    longest: Duration,
}

impl Load {
    fn say(&self, engine: &str) {
        let (messages, Load { took, deliveries, longest }) = (messages_on_record(), self);
        println!(
            "{engine}, {messages} messages: migrated in {took:.1?}; meanwhile {deliveries} \
             deliveries, of which the longest took {longest:.3?}"
        );
    }
}

/// With `ONEDROP_FULL=1`: a million messages.
fn messages_on_record() -> u64 {
    if is_full() { 1_000_000 } else { 2_000 }
}

/// They wait for one step alone, which needs the table for itself, and whose limits are less than
/// a second (`a_transaction_that_may_hold_a_table_ends_soon_also_if_its_host_has_vanished`).
#[test]
fn deliveries_wait_for_a_migration_no_longer_than_a_second() {
    let rig = &PostgresRig::own();
    rig.fill(messages_on_record());
    let new = rig.of_program(next::POSTGRES_LARGE);
    let is_over = AtomicBool::new(false);
    // As a backup does.
    let reads = rig.in_transaction("SELECT FROM onedrop_message LIMIT 1");
    let (load, waited_for) = thread::scope(|scope| {
        let watcher = scope.spawn(|| long_steps_waited_for(rig, &is_over));
        scope.spawn(move || deliveries_go_on_beside(rig, reads));
        let hosts: [&(dyn Fn() -> Host + Sync); 2] =
            [&|| Host::of(rig), &|| rig.of_program(next::POSTGRES_LARGE)];
        let load = deliver_while_migrating(hosts, &new);
        is_over.store(true, Ordering::SeqCst);
        (load, watcher.join().expect("no panic"))
    });
    load.say("postgres");
    rig.is_migrated();
    assert_eq!(waited_for, Vec::<String>::new());
}

#[test]
fn deliveries_go_on_while_mariadb_is_migrated() {
    // A million messages are too many beside others.
    let rig = if is_full() { MariadbRig::own() } else { MariadbRig::shared() };
    rig.fill(messages_on_record());
    let of_next = || Host(rig.of_program(next::program(None, next::MARIADB)));
    let load = deliver_while_migrating([&|| Host::of(&rig), &of_next], &of_next());
    load.say("mariadb");
    let left = "SELECT COUNT(*) FROM onedrop_message WHERE next_note IS NULL";
    assert_eq!(rig.mariadb.sql(left), "0");
}

#[test]
fn files_are_migrated_step_by_step() {
    let rig = SqliteRig::new();
    let old = Host::of(&rig);
    for n in 0..100 {
        old.record(&mail(&format!("old{n}")), &[]);
    }
    let new = Host(rig.of_program(next::program(None, next::SQLITE)));
    let planned = new.0.planned_migration(soon()).expect("a plan");
    assert_eq!((planned.len(), planned[1].rows), (3, Some(100)));
    let applied = at_once(4, |_| new.migrate().expect("migrate"));
    assert!(applied.concat().iter().all(|name| name == next::NAME));
    assert_eq!((old.schema_version(), new.schema_version()), (12, 12));
    assert!(old.record(&mail("beside"), &[inbox()]).is_new);
    assert!(new.record(&mail("after"), &[inbox()]).is_new);
    let count = |sql: &str| rig.connection().query_row(sql, [], |row| row.get::<_, i64>(0));
    let filled = "SELECT count(*) FROM onedrop_message WHERE next_note = 'old'";
    assert_eq!(count(filled).expect("a number"), 100);
    assert_eq!(count("SELECT steps FROM onedrop_schema WHERE version = 12").expect("steps"), 3);
    let index = "SELECT count(*) FROM sqlite_schema WHERE name = 'onedrop_message_next_note'";
    assert_eq!(count(index).expect("a number"), 1);
}

#[test]
fn rows_that_others_hold_cut_no_migration_of_mariadb_off_and_hold_no_delivery_up() {
    let rig = MariadbRig::own();
    rig.fill(2_000);
    let new = Host(rig.of_program(next::program(None, next::MARIADB)));
    // Up to the batches.
    let MigrationStep::Transaction(first) = next::MARIADB[0].steps[0] else {
        unreachable!("the first step is a transaction")
    };
    let hash = lock_key::hex(&next::MARIADB[0].sha256());
    rig.sql(&format!(
        "{first}; INSERT INTO onedrop_schema (version, name, sha256, steps)
         VALUES (12, 'x', UNHEX('{hash}'), 1)"
    ));
    let held = rig.open_transaction("SELECT id FROM onedrop_message WHERE id = 1700 FOR UPDATE");
    thread::scope(|scope| {
        let migrating = scope.spawn(|| new.migrate());
        let left = "SELECT COUNT(*) = 500 FROM onedrop_message WHERE next_note IS NULL";
        assert!(crate::support::wait_until(Duration::from_secs(60), || {
            rig.mariadb.sql(left) == "1"
        }));
        // The batch that finds it held holds no other row while it waits.
        let waits = "SELECT COUNT(*) FROM information_schema.innodb_lock_waits";
        for _ in 0..8 {
            thread::sleep(mariadb::UNSEEN);
            assert_eq!(rig.mariadb.sql(waits), "0");
            rig.sql("SELECT id FROM onedrop_message WHERE id = 1600 LOCK IN SHARE MODE");
        }
        assert!(!migrating.is_finished());
        drop(held);
        assert_eq!(migrating.join().expect("no panic").expect("migrate"), [next::NAME]);
    });
}

static WAITING: AtomicUsize = AtomicUsize::new(0);

#[test]
fn a_migration_that_waits_for_another_one_says_so_once() {
    fn note(_: &str) {
        WAITING.fetch_add(1, Ordering::SeqCst);
    }
    let waits = Some(note as fn(&str));
    let told_while = |first: &Host, second: &Host, held: Box<dyn std::any::Any>| {
        let before = WAITING.load(Ordering::SeqCst);
        thread::scope(|scope| {
            let migrations = [first, second].map(|host| scope.spawn(|| host.migrate()));
            let is_told = || WAITING.load(Ordering::SeqCst) > before;
            assert!(crate::support::wait_until(Duration::from_secs(60), is_told));
            drop(held);
            let applied = migrations.map(|one| one.join().expect("no panic").expect("migrate"));
            assert_eq!(applied.concat(), [next::NAME]);
        });
        assert_eq!(WAITING.load(Ordering::SeqCst), before + 1);
    };
    let postgres = PostgresRig::shared_by_default();
    let program = Program { waits, ..next::program(None, next::POSTGRES) };
    let hosts =
        [(); 2].map(|()| Host(postgres.ledger_for(postgres.url(), program.clone(), limits(20))));
    let held = postgres.in_transaction("LOCK TABLE onedrop_message IN ROW EXCLUSIVE MODE");
    told_while(&hosts[0], &hosts[1], Box::new(held));
    let mariadb = MariadbRig::shared();
    mariadb.fill(1);
    let program = Program { waits, ..next::program(None, next::MARIADB) };
    let hosts = [(); 2].map(|()| Host(mariadb.of_program(program.clone())));
    let held = mariadb.open_transaction("SELECT id FROM onedrop_message WHERE id = 1 FOR UPDATE");
    told_while(&hosts[0], &hosts[1], Box::new(held));
}

/// How many statements of the kind the server has run.
const UPDATES: &str = "(SELECT CAST(variable_value AS SIGNED)
                        FROM information_schema.global_status WHERE variable_name = 'COM_UPDATE')";

#[test]
fn a_migration_of_mariadb_that_is_cut_off_at_any_step_goes_on_there() {
    let each = ["ALTER TABLE", "UPDATE onedrop_message", "CREATE INDEX"];
    for (steps, runs) in each.iter().enumerate() {
        // What the whole server counts is asked, where a migration waits for nothing.
        let rig = if steps == 1 { MariadbRig::own() } else { MariadbRig::shared() };
        rig.fill(100);
        let old = Host::of(&rig);
        let new = Host(rig.of_program(next::program(None, next::MARIADB)));
        let MigrationStep::Transaction(first) = next::MARIADB[0].steps[0] else {
            unreachable!("the first step is a transaction")
        };
        let hash = lock_key::hex(&next::MARIADB[0].sha256());
        let until = [first, "UPDATE onedrop_message SET next_note = 'old'"];
        until[..steps].iter().for_each(|sql| {
            rig.sql(sql);
        });
        rig.sql(&format!(
            "INSERT INTO onedrop_schema (version, name, sha256, steps)
             VALUES (12, 'x', UNHEX('{hash}'), {steps})"
        ));
        let held = rig.open_transaction("SELECT id FROM onedrop_message WHERE id = 1 FOR UPDATE");
        let updates = rig.mariadb.sql(&format!("SELECT {UPDATES}"));
        thread::scope(|scope| {
            let migrating = scope.spawn(|| new.migrate());
            let is_seen = match steps {
                // It waits for no row.
                1 => format!("SELECT {UPDATES} > {updates}"),
                _ => format!(
                    "SELECT COUNT(*) > 0 FROM information_schema.processlist
                     WHERE user = '{}' AND info LIKE '%{runs}%'",
                    rig.mariadb.database()
                ),
            };
            assert!(crate::support::wait_until(Duration::from_secs(60), || {
                rig.mariadb.sql(&is_seen) == "1"
            }));
            rig.lose_sessions();
            let cut_off = migrating.join().expect("no panic");
            assert!(matches!(cut_off, Err(LedgerError::Unavailable(_))), "{runs}: {cut_off:?}");
        });
        drop(held);
        assert_eq!(old.schema_version(), SCHEMA_VERSION);
        assert!(old.record(&mail("meanwhile"), &[inbox()]).is_new);
        let applied = at_once(2, |_| new.migrate().expect("migrate"));
        assert_eq!(applied.concat(), [next::NAME], "{runs}");
        let left = "SELECT COUNT(*) FROM onedrop_message WHERE next_note IS NULL";
        assert_eq!(rig.mariadb.sql(left), "0");
        let index = "SELECT COUNT(*) FROM information_schema.statistics
                     WHERE table_schema = DATABASE() AND index_name = 'onedrop_message_next_note'";
        assert_eq!(rig.mariadb.sql(index), "1");
    }
}

#[test]
fn mariadb_is_migrated_beside_the_old_program() {
    let rig = MariadbRig::shared();
    let old = Host::of(&rig);
    let new = Host(rig.of_program(next::program(None, next::MARIADB)));
    assert!(old.record(&mail("before"), &[inbox()]).is_new);
    rig.fill(100);
    assert_eq!(new.0.planned_migration(soon()).expect("a plan").len(), 3);
    assert_eq!(new.migrate().expect("migrate"), [next::NAME]);
    assert_eq!((old.schema_version(), new.schema_version()), (12, 12));
    assert!(old.record(&mail("beside"), &[inbox()]).is_new);
    assert!(new.record(&mail("after"), &[inbox()]).is_new);
}
