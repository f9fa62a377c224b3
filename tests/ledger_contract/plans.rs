//! How Postgres and MariaDB go about what `onedrop verify`, `status`, `settle` and `purge` ask,
//! and pages, locks and jobs, in a ledger of which that is a small part: by indexes, as the
//! server's own log of plans says (auto_explain; the slow query log).

use onedrop::ledger::{
    BatchTerms, FailureFilter, ForgetWhat, JobChange, JobOutcome, JobRow, JobRun, JobTrigger,
    LockHolder, LockRequest, LockTheft, LockTry, MessagePart, Numbered, PurgeWhat,
};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

/// A server of its own whose log has the plan of each statement, and the rows that it read.
trait PlanRig: Rig + Sized {
    /// Beside the message `model`: 20,000 messages, 40 of them of the last hour, each with a copy
    /// of one of 50 accounts; 5,000 attempts at them and 15,000 that recorded none, each 90 seconds
    /// older than the next of its kind.
    const MANY: &'static str;
    /// A recipient who got a quarter of all messages.
    const BUSY: &'static str;
    /// Bytes of each message, locks, and runs of one job.
    const BESIDE: &'static str;
    /// How many attempts a trace of `model` has.
    const TRACED: usize;

    /// A step of a plan (Postgres), or a statement with all its tables (MariaDB), reads fewer rows:
    /// of the day before the window, and of a page.
    const DAY: u64;
    const PAGE: u64;
    /// Whether the server may walk along an index from its end until it has what a LIMIT wants. A
    /// plan does not show how far, and rows far from the end cost more.
    const WALKS: bool;

    fn start() -> Self;

    fn run(&self, statements: &str);

    fn log(&self) -> String;

    /// How many statements have their plans there.
    fn plans(log: &str) -> usize;

    /// The most rows that a step, or a statement, has read.
    fn most_rows(log: &str) -> Option<u64>;

    fn uses(log: &str, index: &str) -> bool;

    /// What is read without an index, or by the whole of one, as the plans name it.
    fn whole_tables(log: &str) -> Vec<&str>;

    fn none_is_whole(log: &str, tables: &[&str]) {
        let whole = Self::whole_tables(log);
        assert!(!whole.iter().any(|table| tables.contains(table)), "{whole:?}: {log}");
    }

    fn log_of(&self, ask: impl FnOnce()) -> String {
        let begun = self.log().len();
        ask();
        self.log().split_off(begun)
    }

    /// The log of an ask that reads fewer rows than `bound` at a time.
    fn bounded(&self, what: &str, bound: u64, ask: impl FnOnce()) -> String {
        let log = self.log_of(ask);
        let most = Self::most_rows(&log);
        assert!(most.is_some_and(|most| most < bound), "{what}: {most:?} rows: {log}");
        log
    }

    /// Makes the ledger a large one; returns the claim by which `model` was placed.
    fn with_many(&self, host: &Host) -> Claim {
        let claim = host.claim(&mail("model"), &inbox());
        host.confirm(&claim, &uid(1));
        self.run(Self::MANY);
        claim
    }
}

const AUTO_EXPLAIN: &str = "session_preload_libraries = 'auto_explain'
auto_explain.log_min_duration = 0
auto_explain.log_analyze = on
";

impl PlanRig for PostgresRig {
    const MANY: &'static str = "
INSERT INTO onedrop_message OVERRIDING SYSTEM VALUE
SELECT one.* FROM onedrop_message m, generate_series(1, 20000) n,
LATERAL jsonb_populate_record(m, jsonb_build_object('id', m.id + n,
    'id_hash', '\\x' || md5(n::text) || md5(n::text), 'digest', '\\x' || repeat('00', 32),
    'recorded_at', clock_timestamp() - (20000 - n) * interval '90 seconds')) one
WHERE m.subject = 'model';
INSERT INTO onedrop_copy OVERRIDING SYSTEM VALUE
SELECT one.* FROM onedrop_copy c, generate_series(1, 20000) n,
LATERAL jsonb_populate_record(c, jsonb_build_object('id', c.id + n, 'message_id', c.message_id + n,
    'account', 'user' || n % 50, 'receipt_kind', 'uid', 'receipt', '1/' || n,
    'recipient', 'user' || n % 50 || '@x.example', 'queue_id', 'Q' || n, 'attempt_ms', 5,
    'began_at', clock_timestamp() - (20000 - n) * interval '90 seconds')) one
WHERE c.mailbox = 'INBOX';
INSERT INTO onedrop_attempt (message_id, id_hash, recipient, queue_id, host, pid, outcome,
                             started_at)
SELECT CASE WHEN n < 5000 THEN m.id + n END, m.id_hash,
       CASE WHEN n < 5000 THEN 'user' || n % 50 ELSE 'ghost' END || '@x.example', '', 'mx1', n,
       CASE WHEN n < 5000 THEN 'tempfail' ELSE 'permfail' END,
       clock_timestamp()
           - (CASE WHEN n < 5000 THEN 5000 ELSE 20000 END - n) * interval '90 seconds'
FROM onedrop_message m, generate_series(1, 20000) n
WHERE m.id = (SELECT min(id) FROM onedrop_message WHERE subject = 'model');
VACUUM (ANALYZE) onedrop_message, onedrop_copy, onedrop_attempt, onedrop_unsettled, onedrop_kept;";

    const BUSY: &'static str = "
INSERT INTO onedrop_attempt (message_id, recipient, queue_id, host, pid, started_at)
SELECT m.id + 4 * n, 'Busy@x.example', '', 'mx1', n, clock_timestamp() - interval '1 day'
FROM (SELECT min(id) AS id FROM onedrop_message) m, generate_series(1, 5000) n;
VACUUM (ANALYZE) onedrop_attempt;";

    const BESIDE: &'static str = "
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

    const TRACED: usize = 1001;
    const DAY: u64 = 1200;
    const PAGE: u64 = 200;
    const WALKS: bool = false;

    fn start() -> PostgresRig {
        PostgresRig::with(AUTO_EXPLAIN)
    }

    fn run(&self, statements: &str) {
        // VACUUM runs in no transaction, which several statements at once would be.
        for statement in statements.split_inclusive(';') {
            self.postgres.psql(statement);
        }
    }

    fn log(&self) -> String {
        self.postgres.whole_log()
    }

    fn plans(log: &str) -> usize {
        log.matches("plan:").count()
    }

    fn most_rows(log: &str) -> Option<u64> {
        let rows = |part: &str| part.split_once("rows=")?.1.split(' ').next()?.parse::<u64>().ok();
        let removed = log.split("Rows Removed by Filter: ").skip(1);
        let removed = removed.filter_map(|rest| rest.lines().next()?.parse::<u64>().ok());
        log.split("(actual time=").skip(1).filter_map(rows).chain(removed).max()
    }

    fn uses(log: &str, index: &str) -> bool {
        log.contains(&format!("using {index}"))
    }

    fn whole_tables(log: &str) -> Vec<&str> {
        let scans = log.split("Seq Scan on ").skip(1);
        scans.filter_map(|rest| rest.split_whitespace().next()).collect()
    }
}

/// What EXPLAIN says of each table: id, select_type, table, type, possible_keys, key, ...
fn explained(log: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines = log.lines().filter_map(|line| line.strip_prefix("# explain: "));
    lines.map(|line| line.split('\t').collect::<Vec<_>>()).filter(|plan| plan.len() > 5)
}

impl PlanRig for MariadbRig {
    const MANY: &'static str = "
INSERT INTO onedrop_message (id, id_hash, digest, message_id, sender, size_bytes, recorded_at)
SELECT m.id + seq, UNHEX(SHA2(seq, 256)), m.digest, m.message_id, m.sender, m.size_bytes,
       UTC_TIMESTAMP() - INTERVAL (20000 - seq) * 90 SECOND
FROM onedrop_message m, seq_1_to_20000 WHERE m.message_id LIKE '%model@%';
INSERT INTO onedrop_copy (id, value, message_id, account, mailbox, shared, epoch, owner, in_doubt,
                          prior_doubt, placed_at, placed_epoch, receipt_kind, receipt, recipient,
                          queue_id, host, pid, attempt_ms, began_at)
SELECT c.id + seq, RANDOM_BYTES(16), c.message_id + seq, CONCAT('user', seq % 50), c.mailbox,
       c.shared, c.epoch, c.owner, FALSE, FALSE, c.placed_at, 1, 'uid', CONCAT('1/', seq),
       CONCAT('user', seq % 50, '@x.example'), CONCAT('Q', seq), 'mx1', seq, 5,
       UTC_TIMESTAMP(6) - INTERVAL (20000 - seq) * 90 SECOND
FROM onedrop_copy c, seq_1_to_20000 WHERE c.mailbox = 'INBOX';
INSERT INTO onedrop_attempt (message_id, id_hash, recipient, queue_id, host, pid, started_at,
                             outcome)
SELECT IF(seq < 5000, m.id + seq, NULL), UNHEX(SHA2(seq, 256)),
       IF(seq < 5000, CONCAT('user', seq % 50, '@x.example'), 'ghost@x.example'), '', 'mx1', seq,
       UTC_TIMESTAMP(6) - INTERVAL (IF(seq < 5000, 5000, 20000) - seq) * 90 SECOND,
       IF(seq < 5000, 'tempfail', 'permfail')
FROM (SELECT MIN(id) AS id FROM onedrop_message WHERE message_id LIKE '%model@%') m, seq_1_to_20000;
ANALYZE TABLE onedrop_message, onedrop_copy, onedrop_attempt, onedrop_unsettled, onedrop_kept";

    const BUSY: &'static str = "
INSERT INTO onedrop_attempt (message_id, recipient, queue_id, host, pid, started_at)
SELECT m.id + 4 * seq, 'busy@x.example', '', 'mx1', seq, UTC_TIMESTAMP(6) - INTERVAL 1 DAY
FROM (SELECT MIN(id) AS id FROM onedrop_message) m, seq_1_to_5000;
ANALYZE TABLE onedrop_attempt";

    const BESIDE: &'static str = "
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

    const TRACED: usize = 1;
    const DAY: u64 = 2400;
    const PAGE: u64 = 1000;
    const WALKS: bool = true;

    fn start() -> MariadbRig {
        MariadbRig::with(&[
            "--slow-query-log=1",
            "--slow-query-log-file=slow.log",
            "--long-query-time=0",
            "--log-slow-verbosity=query_plan,explain",
        ])
    }

    fn run(&self, statements: &str) {
        // The log has a statement only after its answer: the last one reads no rows.
        self.mariadb.sql(&format!("{statements}; DO 0"));
    }

    fn log(&self) -> String {
        self.mariadb.data_file("slow.log")
    }

    fn plans(log: &str) -> usize {
        // Each plan has a heading.
        explained(log).filter(|plan| plan[0] == "id").count()
    }

    fn most_rows(log: &str) -> Option<u64> {
        let rows = |part: &str| part.split_whitespace().next()?.parse::<u64>().ok();
        log.split("Rows_examined: ").skip(1).filter_map(rows).max()
    }

    fn uses(log: &str, index: &str) -> bool {
        explained(log).any(|plan| plan[5] == index)
    }

    fn whole_tables(log: &str) -> Vec<&str> {
        let whole = explained(log).filter(|plan| ["ALL", "index"].contains(&plan[3]));
        whole.map(|plan| plan[2]).collect()
    }
}

/// Tables of mail, and their names in statements, by which MariaDB's plans have them.
const OF_MAIL: [&str; 7] =
    ["onedrop_message", "onedrop_copy", "onedrop_attempt", "m", "c", "a", "f"];

/// Whether an index is used that has one of these names, be it for a bitmap.
fn finds<R: PlanRig>(log: &str, names: &[&str]) -> bool {
    let is_scanned = |index: &str| log.contains(&format!("Scan on {index}"));
    names.iter().any(|index| R::uses(log, index) || is_scanned(index))
}

fn verify_reads_the_window<R: PlanRig>() {
    let rig = R::start();
    let host = Host::of(&rig);
    // One that is old and in doubt.
    let old = host.claim(&mail("old"), &sent());
    rig.expire_leases();
    let again = host.claim(&mail("old"), &sent());
    assert_eq!((old.epoch, again.epoch), (1, 2));
    host.confirm(&again, &uid(2));
    rig.step_clock(30 * 86_400);
    let claim = rig.with_many(&host);
    let window = Window { since: SystemTime::now() - HOUR, all: true };
    let log = rig.bounded("the window", R::DAY, || {
        let copies = host.copies_by(&window, 500);
        assert!((30..60).contains(&copies.len()), "{}", copies.len());
        let doubtful = host.copies_by(&Window { all: false, ..window }, 500);
        let doubtful: Vec<_> = doubtful.iter().map(|one| (one.copy, one.epoch)).collect();
        assert_eq!(doubtful, [(again.copy, 2)], "however old it is");
        for (account, is_placed) in [("user7", true), ("nobody", false)] {
            assert_eq!(host.has_placed_copy(account), is_placed);
        }
    });
    assert!(R::plans(&log) > 20 && log.contains("WITH wanted AS"), "{log}");
    for index in ["onedrop_message_recorded_at", "onedrop_copy_account"] {
        assert!(R::uses(&log, index), "{index}: {log}");
    }
    R::none_is_whole(&log, &OF_MAIL);
    // An address that is refused again and again costs no more than another.
    for (addresses, account) in
        [(&["ghost@x.example", "ghost@x"][..], None), (&["user7@x.example"][..], Some("user7"))]
    {
        let log = rig.bounded("an address", R::PAGE, || {
            assert_eq!(host.account_reached(addresses).as_deref(), account);
        });
        let indexes = ["onedrop_attempt_by_recipient", "onedrop_attempt_recipient"];
        assert!(finds::<R>(&log, &indexes), "{log}");
        assert!(finds::<R>(&log, &["onedrop_copy_recipient"]), "{log}");
        R::none_is_whole(&log, &OF_MAIL);
    }
    let log = rig.bounded("the receipt before", R::DAY, || {
        let place = (&Destination::inbox("user7"), "uid");
        let before = host.0.receipt_before(claim.copy + 20_000, place, Duration::ZERO, soon());
        before.expect("an answer");
    });
    assert!(finds::<R>(&log, &["onedrop_copy_account"]), "{log}");
    R::none_is_whole(&log, &OF_MAIL);
    // MariaDB says at a table that it sorts its rows.
    let is_sorted = |line: &str| line.contains("\tonedrop_copy\t") && line.contains("filesort");
    assert!(!log.lines().any(is_sorted), "{log}");
    // A message whose ledger has 20,000 others, and as many attempts at them and at none.
    let log = rig.log_of(|| {
        assert_eq!(host.trace_one("model@example.org").attempts.len(), R::TRACED);
    });
    let indexes = ["onedrop_attempt_message_id", "onedrop_attempt_message"];
    assert!(finds::<R>(&log, &indexes), "{log}");
    R::none_is_whole(&log, &["onedrop_attempt"]);
}

#[test]
fn verify_reads_the_window_by_indexes() {
    verify_reads_the_window::<PostgresRig>();
}

#[test]
fn verify_reads_the_window_by_indexes_on_mariadb() {
    verify_reads_the_window::<MariadbRig>();
}

fn status_reads_its_hour_and_its_window<R: PlanRig>() {
    let rig = R::start();
    let host = Host::of(&rig);
    rig.with_many(&host);
    let log = rig.bounded("status", R::DAY, || {
        let recent = host.0.recent_attempts(HOUR, soon()).expect("an answer");
        let counted: u64 = recent.counts.iter().map(|one| one.count).sum();
        assert!((90..180).contains(&counted), "{recent:?}");
        host.0.open_copies(24 * HOUR, HOUR, soon()).expect("an answer");
    });
    assert!(R::plans(&log) > 7, "{log}");
    R::none_is_whole(&log, &OF_MAIL);
}

#[test]
fn status_reads_its_hour_and_its_window_by_indexes() {
    status_reads_its_hour_and_its_window::<PostgresRig>();
}

#[test]
fn status_reads_its_hour_and_its_window_by_indexes_on_mariadb() {
    status_reads_its_hour_and_its_window::<MariadbRig>();
}

const WANT_A_LOOK: &str = "
INSERT INTO onedrop_unsettled (copy_id, look_at)
SELECT id, placed_at FROM onedrop_copy ORDER BY id DESC LIMIT 3;
UPDATE onedrop_copy SET placed_at = NULL, in_doubt = TRUE
WHERE id IN (SELECT copy_id FROM onedrop_unsettled)";

fn pages_read_few_rows<R: PlanRig>() {
    let rig = R::start();
    let host = Host::of(&rig);
    rig.with_many(&host);
    rig.run(R::BUSY);
    let (first, last) = (host.page_of("busy@x.example", i64::MAX), host.newest());
    assert_eq!(first.len(), 51);
    let page = |what: &str, name: &str, before: i64| {
        let ask = || assert_eq!(host.page_of(name, before).len(), 51);
        rig.bounded(what, R::PAGE, ask);
    };
    page("the first page", "BUSY@x.example", i64::MAX);
    if !R::WALKS {
        page("from the middle", "BUSY@x.example", last / 2);
        page("from far back", "BUSY@x.example", last / 10);
    }
    page("an account", "user7", i64::MAX);
    // A message whose ledger has 15,000 attempts, or more, that recorded none.
    rig.bounded("a story", R::PAGE, || {
        assert!(host.0.story(last, soon()).expect("an answer").is_some());
    });
    // Three that want a look, and all that a report asks beside.
    rig.run(WANT_A_LOOK);
    for (what, bound, ask) in reports(&host) {
        let log = rig.bounded(what, bound, ask);
        if !R::WALKS && bound <= 20_000 {
            R::none_is_whole(&log, &OF_MAIL);
        }
    }
}

#[test]
fn pages_read_what_they_show() {
    pages_read_few_rows::<PostgresRig>();
}

#[test]
fn pages_read_what_they_show_on_mariadb() {
    pages_read_few_rows::<MariadbRig>();
}

type Ask<'h> = Box<dyn Fn() + 'h>;

/// What else pages and traces ask, by name, and how many rows a step of it may read: within the
/// newest 500 messages or attempts, or of an account with a fiftieth of all messages.
fn reports(host: &Host) -> Vec<(&'static str, u64, Ask<'_>)> {
    const FEW: u64 = 1600;
    // Attempts that recorded no message are no account's: where they may be a recipient's, all of
    // them are looked at.
    const WITH_UNRECORDED: u64 = 25_000;
    let numbers = |of| {
        let last = host.0.last_row(of, soon()).expect("an answer").expect("a row").0;
        last - 499..last + 1
    };
    let (messages, attempts) = (numbers(Numbered::Message), numbers(Numbered::Attempt));
    let (from, all) = (messages.clone(), messages.clone());
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
        since: Some(SystemTime::now() - HOUR),
        subject: Some("nothing"),
        ..TraceFilter::default()
    };
    let activity = move || {
        let times = SystemTime::now() - 12 * HOUR..SystemTime::now() + Duration::from_secs(60);
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
        // MariaDB counts the rows of its temporary tables along.
        ("activity", 4 * FEW, Box::new(activity)),
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
    fn page_of(&self, name: &str, before: i64) -> Vec<i64> {
        let lines = self.0.messages_named(name, before, 51, soon()).expect("messages");
        lines.iter().map(|line| line.number).collect()
    }

    fn newest(&self) -> i64 {
        self.0.last_row(Numbered::Message, soon()).expect("an answer").expect("a message").0
    }

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
        let window = Window { since: SystemTime::now() - HOUR, all: true };
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
                ForgetWhat::Since(SystemTime::now() - HOUR),
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

fn works_read_by_indexes<R: PlanRig>() {
    let rig = R::start();
    let host = Host::of(&rig);
    rig.with_many(&host);
    host.has_a_job();
    rig.run(R::BESIDE);
    let names = ["settle", "purge", "locks", "jobs"];
    let works: [fn(&Host); 4] = [Host::settles, Host::forgets, Host::locks, Host::works];
    for (what, work) in names.into_iter().zip(works) {
        let log = rig.bounded(what, R::DAY, || work(&host));
        assert!(R::plans(&log) > 2, "{log}");
        if !R::WALKS {
            R::none_is_whole(&log, &LARGE);
        }
    }
}

#[test]
fn settle_purge_locks_and_jobs_read_by_indexes() {
    works_read_by_indexes::<PostgresRig>();
}

#[test]
fn settle_purge_locks_and_jobs_read_by_indexes_on_mariadb() {
    works_read_by_indexes::<MariadbRig>();
}

/// The plans of a session that lasts, which are made once for all values, in the functions too.
#[test]
fn a_delivery_reads_by_indexes_with_plans_for_any_value() {
    let rig = PostgresRig::with(&format!(
        "{AUTO_EXPLAIN}auto_explain.log_nested_statements = on\n\
         plan_cache_mode = force_generic_plan\n"
    ));
    let host = Host::of(&rig);
    rig.with_many(&host);
    for table in ["onedrop_message", "onedrop_copy"] {
        rig.postgres.psql(&format!("ALTER TABLE {table} ALTER id RESTART WITH 100000"));
    }
    let log = rig.bounded("deliveries", 50, || {
        for number in 1..=4 {
            let mail = mail(&number.to_string());
            let claim = host.claim(&mail, &inbox());
            assert_eq!(host.confirm(&claim, &uid(number)), Confirmed::Recorded);
            assert_eq!(host.record(&mail, &[inbox()]).copies, [CopyState::Placed(uid(number))]);
        }
    });
    assert!(log.contains("(id_hash = p_") || log.contains("(id_hash = $"), "{log}");
    PostgresRig::none_is_whole(&log, &LARGE);
}
