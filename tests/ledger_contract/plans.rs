//! How Postgres and MariaDB go about what `onedrop verify` asks, and whether an account has a copy,
//! in a ledger of which the window is a small part: by indexes, as the server's own log of plans
//! says (auto_explain; the slow query log).

use std::time::Duration;

use onedrop::ledger::{
    BatchTerms, ForgetWhat, JobChange, JobOutcome, JobRow, JobRun, JobTrigger, LockHolder,
    LockRequest, LockTheft, LockTry, PurgeWhat,
};

use super::*;
use onedrop::ledger::{FailureFilter, MessagePart, Numbered};

/// Of the messages, 40 are of the last hour.
const MANY: &str = "
INSERT INTO onedrop_message OVERRIDING SYSTEM VALUE
SELECT one.* FROM onedrop_message m, generate_series(1, 20000) n,
LATERAL jsonb_populate_record(m, jsonb_build_object('id', m.id + n,
    'id_hash', '\\x' || md5(n::text) || md5(n::text), 'digest', '\\x' || repeat('00', 32),
    'recorded_at', clock_timestamp() - (20000 - n) * interval '90 seconds')) one;
INSERT INTO onedrop_copy OVERRIDING SYSTEM VALUE
SELECT one.* FROM onedrop_copy c, generate_series(1, 20000) n,
LATERAL jsonb_populate_record(c, jsonb_build_object('id', c.id + n, 'message_id', c.message_id + n,
    'account', 'user' || n % 50, 'receipt_kind', 'uid', 'receipt', '1/' || n)) one;
INSERT INTO onedrop_attempt (message_id, id_hash, recipient, queue_id, host, pid, outcome)
SELECT CASE WHEN n < 5000 THEN m.id + n END, m.id_hash,
       CASE WHEN n < 5000 THEN 'user' || n % 50 ELSE 'ghost' END || '@x.example', '', 'mx1', n,
       CASE WHEN n < 5000 THEN 'tempfail' ELSE 'permfail' END
FROM onedrop_message m, generate_series(1, 20000) n WHERE m.message_id LIKE 'model@%' OR m.id = 1;
VACUUM (ANALYZE) onedrop_message, onedrop_copy, onedrop_attempt, onedrop_unsettled, onedrop_kept;";

#[test]
fn verify_reads_the_window_by_indexes() {
    let rig = PostgresRig::with(
        "session_preload_libraries = 'auto_explain'\nauto_explain.log_min_duration = 0\n\
         auto_explain.log_analyze = on\n",
    );
    let host = Host::of(&rig);
    let claim = host.claim(&mail("model"), &inbox());
    host.confirm(&claim, &uid(1));
    for statement in MANY.split_inclusive(';') {
        rig.postgres.psql(statement);
    }
    let begun = rig.postgres.whole_log().len();
    let hour = Duration::from_secs(3600);
    let window = Window { since: SystemTime::now() - hour, all: true };
    let copies = host.copies_by(&window, 500);
    assert!((30..60).contains(&copies.len()), "{}", copies.len());
    assert!(host.copies_by(&Window { all: false, ..window }, 500).is_empty());
    for (account, is_placed) in [("user7", true), ("nobody", false)] {
        assert_eq!(host.has_placed_copy(account), is_placed);
    }
    let log = rig.postgres.whole_log().split_off(begun);
    let plans = log.matches("plan:").count();
    assert!(plans > 2 && log.contains("FROM wanted"), "{log}");
    for index in ["onedrop_message_recorded_at", "onedrop_copy_account"] {
        assert!(log.contains(&format!("using {index}")), "{index}: {log}");
    }
    for table in ["onedrop_message", "onedrop_copy"] {
        assert!(!log.contains(&format!("Seq Scan on {table} ")), "{table}: {log}");
    }
    // An address that is refused again and again costs no more than another.
    let begun = rig.postgres.whole_log().len();
    assert_eq!(host.account_reached(&["ghost@x.example", "ghost@x"]), None);
    assert_eq!(host.account_reached(&["user7@x.example"]), None);
    let plan = rig.postgres.whole_log().split_off(begun);
    assert_eq!(plan.matches("onedrop_attempt_by_recipient").count(), 2, "{plan}");
    // Whose ledger has 20,000 messages, each with its attempts, and 20,000 that recorded none.
    let begun = rig.postgres.whole_log().len();
    assert_eq!(host.trace_one("model@example.org").attempts.len(), 1001);
    let traced = rig.postgres.whole_log().split_off(begun);
    assert!(traced.contains("onedrop_attempt_message_id"), "{traced}");
    assert!(!traced.contains("Seq Scan on onedrop_attempt"), "{traced}");
    let removed = plan.split("Rows Removed by Filter: ").skip(1);
    let removed = removed.filter_map(|rest| rest.lines().next()?.parse::<u64>().ok()).max();
    assert!(!plan.contains("Seq Scan") && removed.is_none_or(|most| most < 200), "{plan}");
    let begun = rig.postgres.whole_log().len();
    let before = host.0.receipt_before(
        claim.copy + 20_000,
        (&Destination::inbox("user7"), "uid"),
        Duration::ZERO,
        soon(),
    );
    before.expect("an answer");
    let plan = rig.postgres.whole_log().split_off(begun);
    assert!(
        plan.contains("Scan on onedrop_copy_account")
            || plan.contains("using onedrop_copy_account"),
        "{plan}"
    );
    assert!(!plan.contains("Seq Scan"), "{plan}");
    // No step has read more rows than the day before the window has.
    let most = most_rows(&log);
    assert!(most.is_some_and(|most| most < 1200), "{most:?} rows: {log}");
}

/// That a step of the plans has read (auto_explain).
fn most_rows(log: &str) -> Option<u64> {
    let rows = |part: &str| part.split_once("rows=")?.1.split(' ').next()?.parse::<u64>().ok();
    let removed = log.split("Rows Removed by Filter: ").skip(1);
    let removed = removed.filter_map(|rest| rest.lines().next()?.parse::<u64>().ok());
    log.split("(actual time=").skip(1).filter_map(rows).chain(removed).max()
}

/// A recipient who got a quarter of all messages, beside those of [`MANY`].
const BUSY: &str = "
INSERT INTO onedrop_attempt (message_id, recipient, queue_id, host, pid)
SELECT m.id + 4 * n, 'Busy@x.example', '', 'mx1', n
FROM (SELECT min(id) AS id FROM onedrop_message) m, generate_series(1, 5000) n;
VACUUM (ANALYZE) onedrop_attempt;";

#[test]
fn pages_read_what_they_show() {
    let rig = PostgresRig::with(
        "session_preload_libraries = 'auto_explain'\nauto_explain.log_min_duration = 0\n\
         auto_explain.log_analyze = on\n",
    );
    let host = Host::of(&rig);
    host.confirm(&host.claim(&mail("model"), &inbox()), &uid(1));
    for statement in MANY.split_inclusive(';').chain(BUSY.split_inclusive(';')) {
        rig.postgres.psql(statement);
    }
    let most_of = |ask: &dyn Fn()| {
        let begun = rig.postgres.whole_log().len();
        ask();
        let log = rig.postgres.whole_log().split_off(begun);
        most_rows(&log).unwrap_or_else(|| panic!("no plan: {log}"))
    };
    let (first, last) = (host.page_of("busy@x.example", i64::MAX), host.newest());
    assert_eq!(first.len(), 51);
    for before in [i64::MAX, last / 2, last / 10] {
        let most = most_of(&|| assert_eq!(host.page_of("BUSY@x.example", before).len(), 51));
        assert!(most < 200, "{most} rows");
    }
    let most = most_of(&|| assert_eq!(host.page_of("user7", i64::MAX).len(), 51));
    assert!(most < 200, "{most} rows of an account");
    // A message whose ledger has 15,000 attempts that recorded none.
    let most = most_of(&|| assert!(host.0.story(last, soon()).expect("an answer").is_some()));
    assert!(most < 200, "{most} rows of a story");
    // Three that want a look, and all that a report asks beside.
    rig.postgres.psql(
        "INSERT INTO onedrop_unsettled (copy_id, look_at)
             SELECT id, clock_timestamp() FROM onedrop_copy ORDER BY id DESC LIMIT 3;
         UPDATE onedrop_copy SET placed_at = NULL, in_doubt = true
             WHERE id IN (SELECT copy_id FROM onedrop_unsettled);",
    );
    for (what, bound, ask) in reports(&host) {
        let begun = rig.postgres.whole_log().len();
        ask();
        let log = rig.postgres.whole_log().split_off(begun);
        let most = most_rows(&log).unwrap_or_else(|| panic!("no plan: {log}"));
        assert!(most < bound, "{what}: {most} rows: {log}");
        for table in ["onedrop_message", "onedrop_copy", "onedrop_attempt"] {
            let reads_all = log.contains(&format!("Seq Scan on {table} "));
            assert!(!reads_all || bound > 20_000, "{what}: {log}");
        }
    }
}

type Ask<'h> = Box<dyn Fn() + 'h>;

/// What else pages and traces ask, by name, and how many rows a step of it may read: within the
/// newest 500 messages or attempts, or of an account with a fiftieth of all messages.
fn reports(host: &Host) -> Vec<(&'static str, u64, Ask<'_>)> {
    const FEW: u64 = 1600;
    // Attempts that recorded no message are no account's: where they may be a recipient's, all of
    // them are looked at.
    const WITH_UNRECORDED: u64 = 25_000;
    // Some of 500 attempts may have their ends in copies, few enough here to read all.
    const WITH_COPIES: u64 = 25_000;
    let numbers = |of| {
        let last = host.0.last_row(of, soon()).expect("an answer").expect("a row").0;
        last - 499..last + 1
    };
    let (messages, attempts) = (numbers(Numbered::Message), numbers(Numbered::Attempt));
    let (from, all) = (messages.clone(), attempts.clone());
    let with = move |part| {
        let lines = host.0.messages_with(part, &from, 50, soon()).expect("messages");
        assert_eq!(lines, []);
    };
    let with_subject = with.clone();
    let any = FailureFilter::default();
    let failures = |filter: FailureFilter<'static>| {
        let attempts = attempts.clone();
        move || drop(host.0.failures(&filter, &attempts, 50, soon()).expect("failures"))
    };
    let trace = |filter: TraceFilter<'static>| move || drop(host.traces(&filter, 50));
    let user7 = TraceFilter::of("user7");
    let of_late = TraceFilter {
        since: Some(SystemTime::now() - Duration::from_secs(3600)),
        subject: Some("nothing"),
        ..TraceFilter::default()
    };
    let activity = move || {
        let times = UNIX_EPOCH..SystemTime::now() + Duration::from_secs(60);
        assert!(!host.0.activity(&all, &times, soon()).expect("rows").is_empty());
    };
    let unplaced = move || {
        assert_eq!(host.0.unplaced_copies(&messages, 50, soon()).expect("copies").len(), 3);
    };
    let unsettled = || {
        assert_eq!(host.0.unsettled_copies(0, 50, soon()).expect("copies").len(), 3);
    };
    vec![
        ("sender", FEW, Box::new(move || with(MessagePart::Sender("nobody@x")))),
        ("subject", FEW, Box::new(move || with_subject(MessagePart::Subject("nothing")))),
        ("failures", FEW, Box::new(failures(any))),
        ("by name", FEW, Box::new(failures(FailureFilter { name: Some("ghost@x"), ..any }))),
        ("unrecorded", FEW, Box::new(failures(FailureFilter { unrecorded: true, ..any }))),
        ("activity", WITH_COPIES, Box::new(activity)),
        ("unplaced", FEW, Box::new(unplaced)),
        ("unsettled", FEW, Box::new(unsettled)),
        ("trace of late", FEW, Box::new(trace(of_late))),
        ("trace", WITH_UNRECORDED, Box::new(trace(user7))),
        (
            "trace by sender",
            WITH_UNRECORDED,
            Box::new(trace(TraceFilter { sender: Some("nobody@x"), ..user7 })),
        ),
        (
            "trace of failures",
            WITH_UNRECORDED,
            Box::new(trace(TraceFilter { failed: true, ..user7 })),
        ),
    ]
}

impl Host {
    fn page_of(&self, name: &str, before: i64) -> Vec<i64> {
        let lines = self.0.messages_named(name, before, 51, soon()).expect("messages");
        lines.iter().map(|line| line.number).collect()
    }

    fn newest(&self) -> i64 {
        let of = onedrop::ledger::Numbered::Message;
        self.0.last_row(of, soon()).expect("an answer").expect("a message").0
    }
}

const MANY_ON_MARIADB: &str = "
INSERT INTO onedrop_message (id, id_hash, digest, message_id, sender, size_bytes, recorded_at)
SELECT m.id + seq, UNHEX(SHA2(seq, 256)), m.digest, m.message_id, m.sender, m.size_bytes,
       UTC_TIMESTAMP() - INTERVAL (20000 - seq) * 90 SECOND
FROM onedrop_message m, seq_1_to_20000 WHERE m.message_id LIKE '%model@%';
INSERT INTO onedrop_copy (id, value, message_id, account, mailbox, shared, epoch, owner, in_doubt,
                          prior_doubt, placed_at, placed_epoch, receipt_kind, receipt)
SELECT c.id + seq, RANDOM_BYTES(16), c.message_id + seq, CONCAT('user', seq % 50), c.mailbox,
       c.shared, c.epoch, c.owner, FALSE, FALSE, c.placed_at, 1, 'uid',
       CONCAT('1/', seq)
FROM onedrop_copy c, seq_1_to_20000 WHERE c.mailbox = 'INBOX';
INSERT INTO onedrop_attempt (message_id, id_hash, recipient, queue_id, host, pid, started_at,
                             outcome)
SELECT NULL, UNHEX(SHA2(seq, 256)), 'ghost@x.example', '', 'mx1', seq, UTC_TIMESTAMP(6), 'permfail'
FROM seq_1_to_20000;
ANALYZE TABLE onedrop_message, onedrop_copy, onedrop_attempt, onedrop_unsettled, onedrop_kept";

#[test]
fn verify_reads_the_window_by_indexes_on_mariadb() {
    let rig = MariadbRig::with(&[
        "--slow-query-log=1",
        "--slow-query-log-file=slow.log",
        "--long-query-time=0",
        "--log-slow-verbosity=query_plan,explain",
    ]);
    let host = Host::of(&rig);
    // One that is old and in doubt.
    let old = host.claim(&mail("old"), &sent());
    rig.expire_leases();
    let again = host.claim(&mail("old"), &sent());
    assert_eq!((old.epoch, again.epoch), (1, 2));
    host.confirm(&again, &uid(2));
    rig.sql("UPDATE onedrop_message SET recorded_at = recorded_at - INTERVAL 30 DAY");
    let claim = host.claim(&mail("model"), &inbox());
    host.confirm(&claim, &uid(1));
    rig.sql(MANY_ON_MARIADB);
    let begun = rig.mariadb.data_file("slow.log").len();
    let hour = Duration::from_secs(3600);
    let window = Window { since: SystemTime::now() - hour, all: true };
    let copies = host.copies_by(&window, 500);
    assert!((30..60).contains(&copies.len()), "{}", copies.len());
    let doubtful = host.copies_by(&Window { all: false, ..window }, 500);
    let old: Vec<_> = doubtful.iter().map(|one| (one.copy, one.epoch)).collect();
    assert_eq!(old, [(again.copy, 2)], "however old it is");
    for (account, is_placed) in [("user7", true), ("nobody", false)] {
        assert_eq!(host.has_placed_copy(account), is_placed);
    }
    // An address that is refused again and again costs no more than another.
    assert_eq!(host.account_reached(&["ghost@x.example", "ghost@x"]), None);
    let before = host.0.receipt_before(
        claim.copy + 20_000,
        (&Destination::inbox("user7"), "uid"),
        Duration::ZERO,
        soon(),
    );
    before.expect("an answer");
    let log = rig.mariadb.data_file("slow.log").split_off(begun);
    assert!(log.contains("WITH wanted AS"), "{log}");
    // id, select_type, table, type, possible_keys, key, ...
    let plans: Vec<Vec<&str>> = log
        .lines()
        .filter_map(|line| Some(line.strip_prefix("# explain: ")?.split('\t').collect()))
        .collect();
    assert!(plans.len() > 20, "{log}");
    for key in ["onedrop_message_recorded_at", "onedrop_copy_account", "onedrop_attempt_recipient"]
    {
        assert!(plans.iter().any(|plan| plan.get(5) == Some(&key)), "{key}: {log}");
    }
    for plan in plans.iter().filter(|plan| plan.len() > 5) {
        let is_large = ["c", "m", "onedrop_message", "onedrop_copy"].contains(&plan[2]);
        // By the whole of an index, or of the table.
        assert!(!is_large || !["ALL", "index"].contains(&plan[3]), "{plan:?}: {log}");
    }
    // The server says how before it says what.
    let (before, _) = log.split_once("AND message_id < ").expect("the receipt before");
    let before = before.rsplit("# Query_time").next().unwrap_or_default();
    let recent = before.lines().find(|line| line.contains("\tonedrop_copy\t")).unwrap_or_default();
    let is_by_account = recent.split('\t').nth(5) == Some("onedrop_copy_account");
    assert!(is_by_account && !recent.contains("filesort"), "{before}");
    // No statement has read more rows than the day before the window has, of each of two tables.
    let rows = |part: &str| part.split_whitespace().next()?.parse::<u64>().ok();
    let most = log.split("Rows_examined: ").skip(1).filter_map(rows).max();
    assert!(most.is_some_and(|most| most < 2400), "{most:?} rows: {log}");
    // A trace reads attempts by their message.
    let begun = rig.mariadb.data_file("slow.log").len();
    assert_eq!(host.trace_one("model@example.org").attempts.len(), 1);
    let log = rig.mariadb.data_file("slow.log").split_off(begun);
    let explained = log.lines().filter_map(|line| line.strip_prefix("# explain: "));
    let of_attempts: Vec<Vec<&str>> = explained
        .map(|line| line.split('\t').collect::<Vec<&str>>())
        .filter(|plan| plan.len() > 5 && plan[2] == "onedrop_attempt")
        .collect();
    assert!(of_attempts.iter().any(|plan| plan[5] == "onedrop_attempt_message"), "{log}");
    assert!(of_attempts.iter().all(|plan| !["ALL", "index"].contains(&plan[3])), "{log}");
}

/// The record has as much as in the tests above, and each attempt is as old as its message.
#[test]
fn status_reads_its_hour_and_its_window_by_indexes() {
    let rig = PostgresRig::with(
        "session_preload_libraries = 'auto_explain'\nauto_explain.log_min_duration = 0\n\
         auto_explain.log_analyze = on\n",
    );
    let host = Host::of(&rig);
    host.confirm(&host.claim(&mail("model"), &inbox()), &uid(1));
    for statement in MANY.split_inclusive(';') {
        rig.postgres.psql(statement);
    }
    rig.postgres.psql(
        "UPDATE onedrop_attempt a SET started_at = clock_timestamp()
             - ((SELECT max(id) FROM onedrop_attempt) - a.id) * interval '90 seconds';",
    );
    rig.postgres.psql("VACUUM (ANALYZE) onedrop_attempt;");
    let begun = rig.postgres.whole_log().len();
    let hour = Duration::from_secs(3600);
    let recent = host.0.recent_attempts(hour, soon()).expect("an answer");
    let counted: u64 = recent.counts.iter().map(|one| one.count).sum();
    assert!((30..60).contains(&counted), "{recent:?}");
    host.0.open_copies(24 * hour, hour, soon()).expect("an answer");
    let log = rig.postgres.whole_log().split_off(begun);
    assert!(log.matches("plan:").count() >= 5, "{log}");
    for table in ["onedrop_message", "onedrop_copy", "onedrop_attempt"] {
        assert!(!log.contains(&format!("Seq Scan on {table} ")), "{table}: {log}");
    }
    // No step has read more rows than the window has.
    let most = most_rows(&log);
    assert!(most.is_some_and(|most| most < 1200), "{most:?} rows: {log}");
}

#[test]
fn status_reads_its_hour_and_its_window_by_indexes_on_mariadb() {
    let rig = MariadbRig::with(&[
        "--slow-query-log=1",
        "--slow-query-log-file=slow.log",
        "--long-query-time=0",
        "--log-slow-verbosity=query_plan,explain",
    ]);
    let host = Host::of(&rig);
    host.confirm(&host.claim(&mail("model"), &inbox()), &uid(1));
    rig.sql(MANY_ON_MARIADB);
    rig.sql(
        "UPDATE onedrop_attempt a, (SELECT MAX(id) AS top FROM onedrop_attempt) b
             SET a.started_at = UTC_TIMESTAMP(6) - INTERVAL 90 * (b.top - a.id) SECOND;
         ANALYZE TABLE onedrop_attempt",
    );
    let begun = rig.mariadb.data_file("slow.log").len();
    let hour = Duration::from_secs(3600);
    let recent = host.0.recent_attempts(hour, soon()).expect("an answer");
    let counted: u64 = recent.counts.iter().map(|one| one.count).sum();
    assert!((30..60).contains(&counted), "{recent:?}");
    host.0.open_copies(24 * hour, hour, soon()).expect("an answer");
    let log = rig.mariadb.data_file("slow.log").split_off(begun);
    let explained = log.lines().filter_map(|line| line.strip_prefix("# explain: "));
    let plans: Vec<Vec<&str>> = explained.map(|line| line.split('\t').collect()).collect();
    assert!(plans.len() > 10, "{log}");
    let large = ["a", "c", "f", "m", "onedrop_message", "onedrop_copy", "onedrop_attempt"];
    for plan in plans.iter().filter(|plan| plan.len() > 5 && large.contains(&plan[2])) {
        assert!(!["ALL", "index"].contains(&plan[3]), "{plan:?}: {log}");
    }
    let rows = |part: &str| part.split_whitespace().next()?.parse::<u64>().ok();
    let most = log.split("Rows_examined: ").skip(1).filter_map(rows).max();
    assert!(most.is_some_and(|most| most < 2400), "{most:?} rows: {log}");
}

#[test]
fn pages_read_what_they_show_on_mariadb() {
    let rig = MariadbRig::with(&[
        "--slow-query-log=1",
        "--slow-query-log-file=slow.log",
        "--long-query-time=0",
    ]);
    let host = Host::of(&rig);
    host.confirm(&host.claim(&mail("model"), &inbox()), &uid(1));
    rig.sql(MANY_ON_MARIADB);
    rig.sql(
        "INSERT INTO onedrop_attempt (message_id, recipient, queue_id, host, pid, started_at)
             SELECT m.id + 4 * seq, 'busy@x.example', '', 'mx1', seq, UTC_TIMESTAMP(6)
             FROM (SELECT MIN(id) AS id FROM onedrop_message) m, seq_1_to_5000;
         ANALYZE TABLE onedrop_attempt",
    );
    let last = host.newest();
    let most_of = |ask: &dyn Fn()| {
        let begun = rig.mariadb.data_file("slow.log").len();
        ask();
        let log = rig.mariadb.data_file("slow.log").split_off(begun);
        let rows = |part: &str| part.split_whitespace().next()?.parse::<u64>().ok();
        let most = log.split("Rows_examined: ").skip(1).filter_map(rows).max();
        most.unwrap_or_else(|| panic!("no statement: {log}"))
    };
    // Further back the server may come down from the newest, as long as these are so few.
    let most = most_of(&|| assert_eq!(host.page_of("BUSY@x.example", i64::MAX).len(), 51));
    assert!(most < 1000, "{most} rows");
    let most = most_of(&|| assert_eq!(host.page_of("user7", i64::MAX).len(), 51));
    assert!(most < 1000, "{most} rows of an account");
    // A message whose ledger has 20,000 attempts that recorded none.
    let most = most_of(&|| assert!(host.0.story(last, soon()).expect("an answer").is_some()));
    assert!(most < 1000, "{most} rows of a story");
    // Three that want a look, and all that a report asks beside. The log has a statement only after
    // its answer: the last one here is none that reads rows.
    rig.sql(
        "INSERT INTO onedrop_unsettled (copy_id, look_at)
             SELECT id, UTC_TIMESTAMP(6) FROM onedrop_copy ORDER BY id DESC LIMIT 3;
         UPDATE onedrop_copy SET placed_at = NULL, in_doubt = TRUE
             WHERE id IN (SELECT copy_id FROM onedrop_unsettled);
         DO 0",
    );
    for (what, bound, ask) in reports(&host) {
        let most = most_of(&|| ask());
        assert!(most < bound, "{what}: {most} rows");
    }
}

/// Beside those of [`MANY`]: bytes of each message, locks, and runs of one job.
const MANY_BESIDE: &str = "
INSERT INTO onedrop_raw (message_id, bytes) SELECT id, '\\x00' FROM onedrop_message;
INSERT INTO onedrop_kept (message_id, why, bytes)
SELECT id, 'full', '\\x00' FROM onedrop_message ORDER BY id DESC LIMIT 3;
INSERT INTO onedrop_unsettled (copy_id, look_at)
SELECT id, clock_timestamp() FROM onedrop_copy ORDER BY id LIMIT 3;
INSERT INTO onedrop_lock (name_hash, slot, name, epoch)
SELECT decode(md5(n::text) || md5(n::text), 'hex'), 1, 'lock' || n, 1
FROM generate_series(1, 20000) n;
INSERT INTO onedrop_lock_lease (name_hash, slot, epoch) SELECT name_hash, 1, 1 FROM onedrop_lock;
INSERT INTO onedrop_job_run (job, due_at, try, triggered_by, epoch, host, pid, started_at, ended_at,
    outcome, output, reason, last_due_at, occurrences, begin_value)
SELECT j.name, clock_timestamp() - n * interval '1 hour', 1, 'schedule', 1, 'mx1', 1,
    clock_timestamp() - n * interval '1 hour', clock_timestamp() - n * interval '1 hour', 'ok', '',
    '', clock_timestamp(), 1, '\\x00'
FROM onedrop_job j, generate_series(1, 20000) n WHERE j.name = 'nightly';
VACUUM (ANALYZE) onedrop_raw, onedrop_kept, onedrop_unsettled, onedrop_lock, onedrop_lock_lease,
    onedrop_job, onedrop_job_run;";

const MANY_BESIDE_ON_MARIADB: &str = "
INSERT INTO onedrop_raw (message_id, position, bytes, kept_at)
SELECT id, 0, '', recorded_at FROM onedrop_message;
INSERT INTO onedrop_kept (message_id, why, kept_at)
SELECT id, 'full', UTC_TIMESTAMP(6) FROM onedrop_message ORDER BY id DESC LIMIT 3;
INSERT IGNORE INTO onedrop_unsettled (copy_id, look_at)
SELECT id, UTC_TIMESTAMP(6) FROM onedrop_copy ORDER BY id LIMIT 3;
INSERT INTO onedrop_lock (name_hash, slot, name, epoch)
SELECT UNHEX(SHA2(seq, 256)), 1, CONCAT('lock', seq), 1 FROM seq_1_to_20000;
INSERT INTO onedrop_lock_lease (name_hash, slot, epoch) SELECT name_hash, 1, 1 FROM onedrop_lock;
INSERT INTO onedrop_job_run (job, due_at, try, triggered_by, epoch, host, pid, started_at, ended_at,
    outcome, output, reason, last_due_at, occurrences, begin_value)
SELECT 'nightly', UTC_TIMESTAMP(3) - INTERVAL seq HOUR, 1, 'schedule', 1, 'mx1', 1,
    UTC_TIMESTAMP(3) - INTERVAL seq HOUR, UTC_TIMESTAMP(3) - INTERVAL seq HOUR, 'ok', '', '',
    UTC_TIMESTAMP(3), 1, RANDOM_BYTES(16)
FROM seq_1_to_20000;
ANALYZE TABLE onedrop_raw, onedrop_kept, onedrop_unsettled, onedrop_lock, onedrop_lock_lease,
    onedrop_job, onedrop_job_run";

/// Tables that grow with the mail, the locks or the runs.
const LARGE: [&str; 7] = [
    "onedrop_message",
    "onedrop_copy",
    "onedrop_attempt",
    "onedrop_raw",
    "onedrop_lock",
    "onedrop_lock_lease",
    "onedrop_job_run",
];

impl Host {
    fn has_a_job(&self) {
        let now = SystemTime::now();
        let row = JobRow::new("nightly", "@daily UTC".to_owned(), now, now);
        let value = RandomValue::default();
        let change = JobChange { seen: None, value, row: &row, added: &[], ended: None };
        assert!(self.0.change_job(&change, soon()).expect("an answer"));
    }

    /// What `settle` asks and does.
    fn settles(&self) {
        for copies in [self.due(), self.watched(), self.to_settle()] {
            for copy in copies {
                assert!(!self.has_namesake(&copy));
                self.look_again(&copy, Some(Duration::from_secs(60)));
                self.look_again(&copy, None);
            }
        }
        let hour = Duration::from_secs(3600);
        let window = Window { since: SystemTime::now() - hour, all: true };
        let copies = self.copies_by(&window, 500);
        let copy = copies.first().expect("a copy");
        assert!(self.settle(copy, &uid(77)));
        let claim = Claim {
            copy: copy.copy,
            epoch: copy.epoch,
            in_doubt: false,
            looks_back: false,
            value: copy.value,
        };
        assert!(self.leave_to_sender(&claim, Some(&uid(77)), &uid(78)));
    }

    /// What `purge`, `forget` and `replay` do, 50 at a time.
    fn forgets(&self) {
        let old = Duration::from_secs(19 * 86_400);
        for dry_run in [true, false] {
            let how = BatchTerms { limit: 50, dry_run };
            for what in [
                PurgeWhat::Kept,
                PurgeWhat::Facts,
                PurgeWhat::Messages,
                PurgeWhat::Attempts,
                PurgeWhat::Raw,
            ] {
                self.batch(what, old, None, how);
            }
            for this in [
                ForgetWhat::Message("<nobody@example.org>"),
                ForgetWhat::Since(SystemTime::now() - Duration::from_secs(3600)),
            ] {
                self.0.forget(this, 0, how, soon()).expect("forgotten");
            }
        }
        assert!(self.0.next_raw(UNIX_EPOCH, 0, soon()).expect("an answer").is_some());
        self.0.remembered(soon()).expect("an answer");
    }

    fn locks(&self) {
        let name = "lock".parse().expect("a name");
        let holder = LockHolder {
            host: "mx1".to_owned(),
            pid: 1,
            command: "true".to_owned(),
            note: String::new(),
            slots: 1,
        };
        let lease = Duration::from_secs(60);
        let request = LockRequest {
            name: &name,
            slots: &[1],
            owner: RandomValue::default(),
            lease,
            holder: &holder,
            waiting: None,
        };
        let claim = || match self.0.take_lock(&request, soon()).expect("an answer") {
            LockTry::Taken { claim, .. } => claim,
            LockTry::Busy(rows) => panic!("busy: {rows:?}"),
        };
        let first = claim();
        assert!(self.0.renew_lock(&first, lease, soon()).expect("an answer"));
        assert!(self.0.release_lock(&first, soon()).expect("an answer"));
        let value = RandomValue::default();
        claim();
        let theft = LockTheft { name: &name, slot: 1, force: true, value, note: "" };
        assert!(self.0.steal_lock(&theft, soon()).expect("an answer").is_some());
    }

    fn works(&self) {
        let (row, due) = (self.0.jobs(soon()).expect("jobs").jobs.remove(0), SystemTime::now());
        let begun = JobRun::new("nightly", due, JobTrigger::Schedule, due);
        let value = RandomValue::default();
        let added = std::slice::from_ref(&begun);
        let change = JobChange { seen: Some(row.revision), value, row: &row, added, ended: None };
        assert!(self.0.change_job(&change, soon()).expect("an answer"));
        let (outcome, ended_at) = (Some(JobOutcome::Ok), Some(due));
        let ended = JobRun { outcome, ended_at, ..begun.clone() };
        let seen = Some(row.revision + 1);
        let value = RandomValue::default();
        let change = JobChange { seen, value, row: &row, added: &[], ended: Some(&ended) };
        assert!(self.0.change_job(&change, soon()).expect("an answer"));
        assert_eq!(self.0.last_try("nightly", due, soon()).expect("an answer"), 1);
        assert_eq!(self.0.job_runs("nightly", 50, soon()).expect("runs").len(), 50);
        let old = Duration::from_secs(30 * 86_400);
        assert_eq!(self.0.prune_job_runs(old, 50, soon()).expect("an answer"), 50);
    }
}

/// The plans of a session that lasts, which are made once for all values, in the functions too.
#[test]
fn a_delivery_reads_by_indexes_with_plans_for_any_value() {
    let rig = PostgresRig::with(
        "session_preload_libraries = 'auto_explain'\nauto_explain.log_min_duration = 0\n\
         auto_explain.log_analyze = on\nauto_explain.log_nested_statements = on\n\
         plan_cache_mode = force_generic_plan\n",
    );
    let host = Host::of(&rig);
    host.confirm(&host.claim(&mail("model"), &inbox()), &uid(1));
    for statement in MANY.split_inclusive(';') {
        rig.postgres.psql(statement);
    }
    for table in ["onedrop_message", "onedrop_copy"] {
        rig.postgres.psql(&format!("ALTER TABLE {table} ALTER id RESTART WITH 100000"));
    }
    let begun = rig.postgres.whole_log().len();
    for number in 1..=4 {
        let mail = mail(&number.to_string());
        let claim = host.claim(&mail, &inbox());
        assert_eq!(host.confirm(&claim, &uid(number)), Confirmed::Recorded);
        assert_eq!(host.record(&mail, &[inbox()]).copies, [CopyState::Placed(uid(number))]);
    }
    let log = rig.postgres.whole_log().split_off(begun);
    assert!(log.contains("(id_hash = p_") || log.contains("(id_hash = $"), "{log}");
    for table in LARGE {
        assert!(!log.contains(&format!("Seq Scan on {table} ")), "{table}: {log}");
    }
    let most = most_rows(&log);
    assert!(most.is_some_and(|most| most < 50), "{most:?} rows: {log}");
}

#[test]
fn settle_purge_locks_and_jobs_read_by_indexes() {
    let rig = PostgresRig::with(
        "session_preload_libraries = 'auto_explain'\nauto_explain.log_min_duration = 0\n\
         auto_explain.log_analyze = on\n",
    );
    let host = Host::of(&rig);
    host.confirm(&host.claim(&mail("model"), &inbox()), &uid(1));
    host.has_a_job();
    for statement in MANY.split_inclusive(';').chain(MANY_BESIDE.split_inclusive(';')) {
        rig.postgres.psql(statement);
    }
    for work in [Host::settles, Host::forgets, Host::locks, Host::works] {
        let begun = rig.postgres.whole_log().len();
        work(&host);
        let log = rig.postgres.whole_log().split_off(begun);
        assert!(log.matches("plan:").count() > 2, "{log}");
        for table in LARGE {
            assert!(!log.contains(&format!("Seq Scan on {table} ")), "{table}: {log}");
        }
        let most = most_rows(&log);
        assert!(most.is_some_and(|most| most < 1200), "{most:?} rows: {log}");
    }
}

#[test]
fn settle_purge_locks_and_jobs_read_by_indexes_on_mariadb() {
    let rig = MariadbRig::with(&[
        "--slow-query-log=1",
        "--slow-query-log-file=slow.log",
        "--long-query-time=0",
        "--log-slow-verbosity=query_plan,explain",
    ]);
    let host = Host::of(&rig);
    host.confirm(&host.claim(&mail("model"), &inbox()), &uid(1));
    host.has_a_job();
    rig.sql(MANY_ON_MARIADB);
    rig.sql(MANY_BESIDE_ON_MARIADB);
    for work in [Host::settles, Host::forgets, Host::locks, Host::works] {
        let begun = rig.mariadb.data_file("slow.log").len();
        work(&host);
        let log = rig.mariadb.data_file("slow.log").split_off(begun);
        let rows = |part: &str| part.split_whitespace().next()?.parse::<u64>().ok();
        let most = log.split("Rows_examined: ").skip(1).filter_map(rows).max();
        assert!(most.is_some_and(|most| most < 2400), "{most:?} rows: {log}");
    }
}
