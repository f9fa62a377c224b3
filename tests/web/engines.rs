//! What the pages ask of each ledger: by a role that may only read (`reader.rs`); by indexes,
//! in a ledger with many rows; and never by counting a table.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::pages::hostile_letter;
use crate::reader;
use crate::served::{Answer, Served};
use crate::support::mariadb::Mariadb;
use crate::support::postgres::Postgres;
use crate::support::site::{Files, Site, deliver, delivered};
use crate::support::{letters, set_mode, wait_until};

const SCUBA: &str = "scuba@mail.axial.net";
const PROJECT: &str = env!("CARGO_MANIFEST_DIR");

const PATHS: [&str; 14] = [
    "/",
    "/failures",
    "/failures?reason=4.3.0",
    "/failures?before=100&q=scuba",
    "/search?q=scuba@mail.axial.net",
    "/search?q=doug",
    "/search?q=hostile@x.example",
    "/search?q=elsewhere&by=sender",
    "/search?q=script&by=subject",
    "/doubts",
    "/locks",
    "/jobs",
    "/hosts",
    "/healthz",
];

/// The block of docs/web.md that makes the role, for the engine whose name it begins with.
fn grants(engine: &str) -> String {
    let page = fs::read_to_string(Path::new(PROJECT).join("docs/web.md")).expect("the page");
    let begin = format!("```sql\n-- {engine}");
    let (_, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("no block for {engine}"));
    let (block, _) = rest.split_once("```").expect("an end");
    block.split_once('\n').expect("lines").1.to_owned()
}

/// A site whose ledger is there, with a little of everything, and the pages by another login.
fn served(site: &Site<Files>, ledger: &str, reader: &str) -> Served {
    let jobs = "[jobs.mine]\nevery = \"1h\"\ncommand = [\"true\"]\n";
    let config = site.config("writer", &format!("{ledger}{jobs}"));
    let letter = hostile_letter("hostile");
    delivered(&config, &["-d", SCUBA, "-f", "ann@elsewhere.example"], letter.as_bytes());
    delivered(&config, &["-d", "doug@mail.axial.net"], letters::from_ann("two").as_bytes());
    let ran = crate::support::site::run(&config, &["jobs", "run", "mine", "--force"]);
    assert!(ran.status.success(), "{ran:?}");
    site.block("blocked");
    let to = ["-d", "blocked@mail.axial.net"];
    assert_eq!(deliver(&config, &to, letters::from_ann("bad").as_bytes()).status.code(), Some(75));
    Served::start(&site.config("reader", reader), &[])
}

#[track_caller]
fn all_pages_answer(served: &Served) {
    for path in PATHS {
        let answer = served.get(path);
        assert!([200, 303].contains(&answer.status), "{path}: {answer:?}");
        for word in ["does not answer", "The ledger: "] {
            assert!(!answer.body.contains(word), "{path}: {answer:?}");
        }
    }
    let found = served.get("/search?q=hostile@x.example");
    let story = served.page(found.field("location").unwrap_or_else(|| panic!("{found:?}")));
    for part in ["&#60;script&#62;", "placed", "delivered", "scuba"] {
        assert!(story.contains(part), "{part}: {story}");
    }
    assert!(served.page("/failures").contains("blocked@mail.axial.net"));
    assert_eq!(served.get("/search?q=doug").status, 303);
}

/// Without a grant of the page's some page is not shown, and says why; with it again, all are.
/// `onedrop_schema` is read of ledgers of an older form alone.
#[track_caller]
fn each_grant_is_missed(served: &Served, grants: &str, change: impl Fn(&str, &str)) {
    let whole = grants.split(';').filter_map(|one| {
        let (_, rest) = one.split_once("GRANT SELECT ON ")?;
        Some(rest.split_once(" TO ")?.0)
    });
    let tables: Vec<&str> = whole
        .flat_map(|tables| tables.split(','))
        .map(|table| table.trim().trim_start_matches("onedrop."))
        .filter(|table| *table != "onedrop_schema")
        .collect();
    assert!(tables.len() > 8, "{tables:?}");
    let mut spare = Vec::new();
    for table in tables {
        change("REVOKE", table);
        let mut pages = PATHS.iter().chain(&["/m/1"]).map(|path| served.get(path));
        let says = |page: &Answer| {
            page.body.contains("lacks a grant for our role: ")
                && page.body.contains(table)
                && page.body.contains("onedrop_reader")
                && page.body.contains("docs/rights.md")
        };
        if !pages.any(|page| says(&page)) {
            spare.push(table);
        }
        change("GRANT", table);
    }
    assert_eq!(spare, Vec::<&str>::new(), "nothing is missed without these");
    all_pages_answer(served);
}

fn password_file(site: &Site<Files>, name: &str, password: &str) -> String {
    let file = site.root.write(name, password);
    set_mode(&file, 0o600);
    file.display().to_string()
}

/// The configuration of deliveries, whose password is not there, with a role of the pages.
fn as_reader(site: &Site<Files>, ledger: &str, url: &str) -> String {
    let file = password_file(site, "reader.password", "a-password");
    let lines = ledger.lines().map(|line| match line.starts_with("password_file") {
        true => "password_file = \"/nonexistent\"\n".to_owned(),
        false => format!("{line}\n"),
    });
    lines.collect::<String>()
        + &format!(
            "[web]\nshow_subjects = true\nledger_url = \"{url}\"\n\
             ledger_password_file = \"{file}\"\n"
        )
}

/// Twenty thousand messages, each with a copy and two attempts, of the last three weeks.
const MANY: &str = "
INSERT INTO onedrop_message OVERRIDING SYSTEM VALUE
SELECT one.* FROM onedrop_message m, generate_series(1, 20000) n,
LATERAL jsonb_populate_record(m, jsonb_build_object('id', m.id + 100 + n,
    'id_hash', '\\x' || md5(n::text) || md5(n::text), 'digest', '\\x' || repeat('00', 32),
    'recorded_at', clock_timestamp() - (20000 - n) * interval '90 seconds')) one
WHERE m.id = 1;
INSERT INTO onedrop_copy OVERRIDING SYSTEM VALUE
SELECT one.* FROM onedrop_copy c, generate_series(1, 20000) n,
LATERAL jsonb_populate_record(c, jsonb_build_object('id', c.id + 100 + n,
    'message_id', c.message_id + 100 + n, 'account', 'user' || n % 50,
    'receipt_kind', 'uid', 'receipt', '1/' || n, 'recipient', 'user' || n % 50 || '@x.example',
    'queue_id', 'Q' || n, 'attempt_ms', 5,
    'began_at', clock_timestamp() - (20000 - n) * interval '90 seconds')) one
WHERE c.message_id = 1;
INSERT INTO onedrop_attempt (message_id, recipient, queue_id, host, pid, outcome, started_at)
SELECT 101 + n, 'user' || n % 50 || '@x.example', 'Q' || n, 'mx1', n,
       CASE WHEN n % 1000 = 0 THEN 'tempfail' END,
       clock_timestamp() - (20000 - n) * interval '90 seconds'
FROM generate_series(1, 20000) n;
VACUUM (ANALYZE) onedrop_message, onedrop_copy, onedrop_attempt, onedrop_unsettled, onedrop_kept;";

#[test]
fn on_postgres_a_role_that_reads_has_all_pages_by_indexes() {
    let postgres = Postgres::start_with(
        "session_preload_libraries = 'auto_explain'\nauto_explain.log_min_duration = 0\n",
    );
    let site = Site::embedded();
    let owner = password_file(&site, "owner", postgres.password());
    let ledger =
        format!("[ledger]\nurl = \"{}\"\npassword_file = \"{owner}\"\n", postgres.url_socket());
    crate::support::site::run(&site.config("writer", &ledger), &["migrate"]);
    postgres.remember_for_ever();
    postgres.psql(&grants("Postgres"));
    // The rig trusts who comes over its socket.
    let url = postgres.url_socket().replace("onedrop@", "onedrop_reader@");
    let reader = as_reader(&site, &ledger, &url);
    let served = served(&site, &ledger, &reader);
    all_pages_answer(&served);
    reader::changes_nothing_on_postgres(&postgres, &url);
    each_grant_is_missed(&served, &grants("Postgres"), |change, table| {
        let to = if change == "GRANT" { "TO" } else { "FROM" };
        postgres.psql(&format!("{change} SELECT ON {table} {to} onedrop_reader"));
    });
    for statement in MANY.split_inclusive(';') {
        postgres.psql(statement);
    }
    let begun = postgres.whole_log().len();
    all_pages_answer(&served);
    for path in ["/m/5000", "/search?q=user7", "/search?q=user7@x.example", "/search?q=Q77"] {
        assert!([200, 303].contains(&served.get(path).status), "{path}");
    }
    let log = postgres.whole_log().split_off(begun);
    assert!(log.matches("plan:").count() > 30, "{log}");
    assert!(!log.contains(" onedrop@onedrop "), "not by the pages' role: {log}");
    // A span is the whole of so small a table; what names something goes by its index.
    let plans: Vec<&str> = log.split("duration: ").filter(|one| one.contains("plan:")).collect();
    for plan in plans.iter().filter(|plan| !plan.contains("id >= $1 AND")) {
        for table in ["onedrop_message", "onedrop_copy", "onedrop_attempt"] {
            assert!(!plan.contains(&format!("Seq Scan on {table} ")), "{table}: {plan}");
        }
    }
    for index in ["onedrop_attempt_pkey", "onedrop_message_pkey", "onedrop_copy_account"] {
        assert!(log.contains(index), "{index}: {log}");
    }
    // A statement that waits for a lock ends, and its page says so.
    let holder = thread::spawn({
        let url = postgres.url_socket();
        move || {
            let psql = crate::support::postgres::bin("psql");
            let sql = "BEGIN; LOCK TABLE onedrop_message; SELECT pg_sleep(20)";
            std::process::Command::new(psql).args([&url, "-c", sql]).output().expect("psql")
        }
    });
    let is_locked = || {
        let sql = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted
                   AND relation = 'onedrop_message'::regclass";
        postgres.psql(sql).trim() == "1"
    };
    assert!(crate::support::wait_until(Duration::from_secs(60), is_locked));
    let answer = served.get("/m/1");
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(answer.body.contains("does not answer"), "{answer:?}");
    assert!(is_locked(), "the lock was gone before the page");
    postgres.psql(
        "SELECT pg_terminate_backend(pid) FROM pg_locks
                   WHERE mode = 'AccessExclusiveLock' AND relation = 'onedrop_message'::regclass",
    );
    holder.join().expect("a holder");
    assert_eq!(served.get("/m/1").status, 200);
}

const MANY_ON_MARIADB: &str = "
INSERT INTO onedrop_message (id, id_hash, digest, message_id, sender, size_bytes, recorded_at)
SELECT 100 + seq, UNHEX(SHA2(seq, 256)), m.digest, m.message_id, m.sender, m.size_bytes,
       UTC_TIMESTAMP() - INTERVAL (20000 - seq) * 90 SECOND
FROM onedrop_message m, seq_1_to_20000 WHERE m.message_id LIKE '%hostile%';
INSERT INTO onedrop_copy (id, value, message_id, account, mailbox, shared, epoch, owner, in_doubt,
                          prior_doubt, placed_at, placed_epoch, receipt_kind, receipt, recipient,
                          queue_id, host, pid, attempt_ms, began_at)
SELECT 100 + seq, RANDOM_BYTES(16), 100 + seq, CONCAT('user', seq % 50), 'INBOX', FALSE, 1, '',
       FALSE, FALSE, UTC_TIMESTAMP(6), 1, 'uid', CONCAT('1/', seq),
       CONCAT('user', seq % 50, '@x.example'), CONCAT('Q', seq), 'mx1', seq, 5,
       UTC_TIMESTAMP(6) - INTERVAL (20000 - seq) * 90 SECOND
FROM seq_1_to_20000;
INSERT INTO onedrop_attempt (message_id, id_hash, recipient, queue_id, host, pid, started_at,
                             duration_ms, outcome)
SELECT 100 + seq, NULL, CONCAT('user', seq % 50, '@x.example'), CONCAT('Q', seq), 'mx1', seq,
       UTC_TIMESTAMP(6) - INTERVAL (20000 - seq) * 90 SECOND, 5,
       IF(seq % 1000 = 0, 'tempfail', 'delivered') FROM seq_1_to_20000;
ANALYZE TABLE onedrop_message, onedrop_copy, onedrop_attempt, onedrop_unsettled, onedrop_kept";

#[test]
fn on_mariadb_a_role_that_reads_has_all_pages_by_indexes() {
    let mariadb = Mariadb::start_with(&[
        "--slow-query-log=1",
        "--slow-query-log-file=slow.log",
        "--long-query-time=0",
        "--log-slow-verbosity=query_plan,explain",
    ]);
    let site = Site::embedded();
    crate::support::site::run(&site.config("writer", &mariadb.toml()), &["migrate"]);
    mariadb.remember_for_ever();
    for statement in grants("MariaDB").split_inclusive(';').filter(|one| one.len() > 5) {
        mariadb.sql(statement);
    }
    let url = mariadb.url_tcp().replace("onedrop@", "onedrop_reader@");
    let reader = as_reader(&site, &mariadb.toml(), &url);
    let served = served(&site, &mariadb.toml(), &reader);
    all_pages_answer(&served);
    reader::changes_nothing_on_mariadb(&mariadb, "a-password");
    each_grant_is_missed(&served, &grants("MariaDB"), |change, table| {
        let to = if change == "GRANT" { "TO" } else { "FROM" };
        mariadb.sql(&format!("{change} SELECT ON {table} {to} onedrop_reader@'%'"));
    });
    mariadb.sql(MANY_ON_MARIADB);
    let begun = mariadb.data_file("slow.log").len();
    all_pages_answer(&served);
    for path in ["/m/5000", "/search?q=user7", "/search?q=user7@x.example", "/search?q=Q77"] {
        assert!([200, 303].contains(&served.get(path).status), "{path}");
    }
    let log = mariadb.data_file("slow.log").split_off(begun);
    let plans: Vec<Vec<&str>> = log
        .lines()
        .filter_map(|line| Some(line.strip_prefix("# explain: ")?.split('\t').collect()))
        .collect();
    assert!(plans.len() > 30, "{log}");
    for plan in plans.iter().filter(|plan| plan.len() > 5) {
        let is_large = ["m", "c"].contains(&plan[2]) || plan[2].starts_with("onedrop_attempt");
        assert!(!is_large || plan[3] != "ALL", "{plan:?}: {log}");
    }
}

/// All pages are shown, the findings among them, and probes agree.
#[track_caller]
fn a_replica_is_shown(served: &Served) {
    all_pages_answer(served);
    assert_eq!(served.page("/healthz"), "ok\n");
    let front = served.page("/");
    assert!(!front.contains("</span> failed</span>"), "{front}");
}

#[test]
fn a_replica_of_mariadb_is_shown() {
    let (site, mariadb) = (Site::embedded(), Mariadb::start());
    let ledger = mariadb.toml();
    crate::support::site::run(&site.config("writer", &ledger), &["migrate"]);
    mariadb.remember_for_ever();
    let pages = format!("{ledger}[web]\nshow_subjects = true\n");
    drop(served(&site, &ledger, &pages));
    // A server that keeps no ledger: nothing is written there, or not as it was given.
    for unfit in ["SET GLOBAL read_only = 1", "ALTER DATABASE onedrop CHARACTER SET latin1"] {
        mariadb.sql(unfit);
        let writer = site.config("writer", &ledger);
        let refused = crate::support::site::run(&writer, &["migrate", "--dry-run"]);
        assert!(!refused.status.success(), "{unfit}: {refused:?}");
        a_replica_is_shown(&Served::start(&site.config("reader", &pages), &[]));
        mariadb.sql("SET GLOBAL read_only = 0");
    }
}

#[test]
fn a_server_of_postgres_that_only_reads_is_shown() {
    let (site, postgres) = (Site::embedded(), Postgres::start());
    let ledger = postgres.toml();
    crate::support::site::run(&site.config("writer", &ledger), &["migrate"]);
    postgres.remember_for_ever();
    let pages = format!("{ledger}[web]\nshow_subjects = true\n");
    drop(served(&site, &ledger, &pages));
    let standby = postgres.standby();
    let copy = pages.replace(&postgres.url_socket(), &standby.url_socket());
    let of_copy = Served::start(&site.config("standby", &copy), &[]);
    a_replica_is_shown(&of_copy);
    // What is recorded from now on is seen there, too: the standby follows.
    let letter = letters::from_ann("streamed");
    delivered(&site.config("writer", &ledger), &["-d", SCUBA], letter.as_bytes());
    let is_there = || of_copy.page(&format!("/search?q={SCUBA}")).contains("streamed");
    assert!(wait_until(Duration::from_secs(10), is_there));
    drop((of_copy, standby));
    postgres.psql("ALTER SYSTEM RESET synchronous_standby_names");
    postgres.psql("SELECT pg_reload_conf()");
    postgres.psql("ALTER DATABASE onedrop SET default_transaction_read_only = on");
    a_replica_is_shown(&Served::start(&site.config("reader", &pages), &[]));
}

/// A table of hosts that is read without an end.
const ENDLESS: &str = "
DROP TABLE onedrop_host;
CREATE VIEW onedrop_host AS
WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)
SELECT 'mx' || x AS host, '1' AS program_version, 10 AS schema_version, 1e12 AS seen_at,
       0 AS clock_offset_ms FROM n";

#[test]
fn on_sqlite_a_question_without_an_end_is_given_up_and_no_delivery_waits_for_it() {
    let site = Site::embedded();
    site.remember_for_ever();
    let served = Served::start(&site.config("web", ""), &[]);
    assert_eq!(served.get("/hosts").status, 200);
    site.sqlite().execute_batch(ENDLESS).expect("a view");
    thread::scope(|scope| {
        let asked = scope.spawn(|| served.get("/hosts"));
        let letter = letters::from_ann("meanwhile");
        delivered(&site.config("deliver", ""), &["-d", SCUBA], letter.as_bytes());
        let answer = asked.join().expect("an answer");
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.body.contains("The ledger: a question took too long."), "{answer:?}");
    });
    // The session is as good as before.
    for path in ["/doubts", "/m/1", "/healthz"] {
        assert_eq!(served.get(path).status, 200, "{path}");
    }
}

#[test]
fn on_sqlite_pages_go_on_when_another_client_was_the_last_but_them() {
    let site = Site::embedded();
    site.remember_for_ever();
    let config = site.config("deliver", "");
    delivered(&config, &["-d", SCUBA], letters::from_ann("first").as_bytes());
    let served = Served::start(&site.config("web", ""), &[]);
    let ledger = site.root.join("ledger.db");
    let sessions = || {
        let open = fs::read_dir(format!("/proc/{}/fd", served.server.pid())).expect("descriptors");
        let paths = open.flatten().filter_map(|one| fs::read_link(one.path()).ok());
        paths.filter(|path| *path == ledger).count()
    };
    // Pages at once have sessions of their own: one is opened beside another.
    let two = || {
        thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| served.get("/failures?q=scuba"));
            }
        });
        sessions() > 1
    };
    assert!(crate::support::wait_until(Duration::from_secs(60), two), "{} sessions", sessions());
    let wal = site.root.join("ledger.db-wal");
    let other = std::process::Command::new("python3")
        .arg("-c")
        .arg(
            "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); \
              print(c.execute('SELECT count(*) FROM onedrop_message').fetchone()[0]); c.close()",
        )
        .arg(site.root.join("ledger.db"))
        .output()
        .expect("python3");
    assert!(other.status.success(), "{other:?}");
    // The sessions of the pages keep their locks, so it was not the last one.
    assert!(wal.exists());
    delivered(&config, &["-d", SCUBA], letters::from_ann("second").as_bytes());
    assert_eq!(served.get("/m/2").status, 200);
}

#[test]
fn nothing_is_counted_but_rows_of_a_span() {
    let file = Path::new(PROJECT).join("crates/ledger/src/sql/pages.rs");
    let text = fs::read_to_string(&file).expect("a source").to_lowercase();
    assert!(text.contains("select "), "{}", file.display());
    for word in ["count(*)", "count (*)", "sum(", " offset "] {
        assert!(!text.contains(word), "{word} in {}", file.display());
    }
    let counting = text.lines().filter(|line| line.contains("count(")).count();
    assert_eq!(counting, 1, "only how attempts of a span ended: {}", file.display());
}
