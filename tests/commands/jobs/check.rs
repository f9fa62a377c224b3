//! `onedrop jobs check`, as a monitoring system runs it.

use serde_json::{Value, json};

use super::*;

#[track_caller]
fn says(office: &Office, names: &[&str], status: i32, line: &str) {
    let ended = office.jobs(&[&["check"], names].concat());
    let out = ended.out.split(" last_success_age=").next().unwrap_or_default();
    let out = to_the_minute(out.trim_end());
    assert_eq!((ended.status, out.as_str(), ended.err.as_str()), (Some(status), line, ""));
    assert_eq!(ended.out.lines().count(), 1, "{ended:?}");
}

/// `10m 1s` is `10m`: seconds may pass before the program asks for the time.
fn to_the_minute(line: &str) -> String {
    let without = |line: String, secs| line.replace(&format!("m {secs}s,"), "m,");
    (1..60).fold(line.to_owned(), without)
}

fn age(office: &Office) -> u64 {
    let out = office.jobs(&["check"]).out;
    let age = out.split(" last_success_age=").nth(1).expect("an age").trim_end();
    age.strip_suffix('s').and_then(|age| age.parse().ok()).expect("seconds")
}

#[test]
fn all_is_well_where_every_job_has_succeeded() {
    let office = Office::new();
    office.all_well();
    says(&office, &[], 0, "JOBS OK: purge ok, report ok, verify ok | failed=0 overdue=0");
    says(&office, &["verify"], 0, "JOBS OK: verify ok | failed=0 overdue=0");
    let none = Office::with("");
    says(&none, &[], 0, "JOBS OK: no jobs in the configuration | failed=0 overdue=0");
}

/// crontabber's rule: such a job gets a second try before it is critical.
#[test]
fn one_failure_of_a_job_that_makes_up_for_all_is_a_warning_and_any_other_is_critical() {
    let office = Office::new();
    office.all_well();
    office.change("report", |row| (row.errors, row.last_exit) = (1, Some(75)));
    let rest = "purge ok, verify ok | failed=1 overdue=0";
    says(&office, &[], 1, &format!("JOBS WARNING: report failed 1x (exit 75), {rest}"));
    office.change("report", |row| row.errors = 2);
    says(&office, &[], 2, &format!("JOBS CRITICAL: report failed 2x (exit 75), {rest}"));
    office.change("report", |row| row.errors = 1);
    office.change("verify", |row| (row.errors, row.last_exit) = (3, Some(124)));
    let rest = "report failed 1x (exit 75), purge ok | failed=2 overdue=0";
    says(&office, &[], 2, &format!("JOBS CRITICAL: verify failed 3x (exit 124), {rest}"));
    says(&office, &["purge"], 0, "JOBS OK: purge ok | failed=0 overdue=0");
}

#[test]
fn a_job_that_did_not_start_is_a_warning_for_its_interval_and_then_critical() {
    let office = Office::new();
    office.all_well();
    let due = |secs_ago: u64| {
        let next = office.now() - Duration::from_secs(secs_ago);
        office.change("purge", |row| row.next_due = Some(next));
    };
    let rest = "report ok, verify ok | failed=0 overdue";
    // Ticks come every minute.
    due(60);
    says(&office, &[], 0, &format!("JOBS OK: purge ok, {rest}=0"));
    due(5 * 60);
    says(&office, &[], 1, &format!("JOBS WARNING: purge overdue by 5m, {rest}=1"));
    due(26 * 3600 + 300);
    says(&office, &[], 2, &format!("JOBS CRITICAL: purge overdue by 1d 2h, {rest}=1"));
    office.change("purge", |row| row.retry_at = row.next_due.map(|due| due + 27 * HOUR));
    says(&office, &[], 0, &format!("JOBS OK: purge ok, {rest}=0"));
    let overdue = office.now() - 25 * HOUR;
    office.change("verify", |row| (row.next_due, row.errors) = (Some(overdue), 1));
    office.change("verify", |row| row.last_exit = None);
    let line = "JOBS CRITICAL: verify failed 1x and overdue by 1d 1h, purge ok, report ok";
    says(&office, &[], 2, &format!("{line} | failed=1 overdue=1"));
}

/// A difference's seconds without its days made a job of 25 h one hour old.
#[test]
fn ages_are_whole() {
    let office = Office::new();
    office.all_well();
    let then = office.now() - Duration::from_secs(93_600);
    office.change("verify", |row| row.last_success = Some(then));
    let told = age(&office);
    assert!((93_600..94_600).contains(&told), "{told}");
    // One that never has: since it came on record.
    office.change("report", |row| row.last_success = None);
    let told = age(&office);
    assert!((30 * 86_400..30 * 86_400 + 1000).contains(&told), "{told}");
}

#[test]
fn a_job_that_nothing_is_expected_of_is_no_trouble() {
    let jobs = JOBS.replace("[jobs.purge]", "[jobs.purge]\nenabled = false");
    let office = Office::with(&jobs);
    office.all_well();
    let long_ago = office.now() - 100 * DAY;
    office.change("purge", |row| (row.errors, row.next_due) = (9, Some(long_ago)));
    let pause = onedrop::ledger::JobPause { at: long_ago, note: "a | b".to_owned(), until: None };
    office.change("verify", |row| (row.errors, row.paused) = (2, Some(pause)));
    let line = "JOBS OK: purge disabled, report ok, verify paused | failed=0 overdue=0";
    says(&office, &[], 0, line);
}

#[test]
fn a_job_that_nothing_ticks_for_is_told() {
    let office = Office::with("[jobs.verify]\nevery = \"1h\"\ncommand = [\"true\"]\n");
    let line = "JOBS WARNING: verify is not on record yet (does onedrop jobs tick run?)";
    says(&office, &[], 1, &format!("{line} | failed=0 overdue=0"));
}

#[test]
fn a_run_is_well_while_it_has_its_lock_and_crashed_without() {
    let office = Office::new();
    office.all_well();
    let claim = office.begin("verify", Duration::from_secs(60));
    let rest = "purge ok, report ok, verify running | failed=0 overdue=0";
    says(&office, &[], 0, &format!("JOBS OK: {rest}"));
    assert!(office.ledger.release_lock(&claim, soon()).expect("an answer"));
    let rest = "purge ok, report ok | failed=1 overdue=0";
    says(&office, &[], 2, &format!("JOBS CRITICAL: verify failed 1x (crashed), {rest}"));
    // Another's hold of the lock is not its.
    let _other = office.hold("verify");
    says(&office, &[], 2, &format!("JOBS CRITICAL: verify failed 1x (crashed), {rest}"));
}

/// `onedrop with-lock jobs/verify --slots 2 -- ...`, beside the run.
#[test]
fn a_command_in_another_slot_of_its_lock_is_not_its_run() {
    let office = Office::new();
    office.all_well();
    office.begin("verify", Duration::from_secs(60));
    office.hold_slot("verify", 2);
    office.hold_slot("purge", 2);
    let rest = "purge ok, report ok, verify running | failed=0 overdue=0";
    says(&office, &[], 0, &format!("JOBS OK: {rest}"));
    assert_eq!(office.json(&["show", "verify"])["state"], "running");
}

#[test]
fn a_run_that_goes_on_past_its_next_time_is_overdue() {
    let office = Office::new();
    office.all_well();
    office.begin("purge", 25 * Duration::from_secs(60));
    let figures = "report ok, verify ok | failed=0 overdue=1";
    says(&office, &[], 1, &format!("JOBS WARNING: purge overdue by 10m, {figures}"));
    assert_eq!(office.json(&["show", "purge"])["state"], "running");
}

#[test]
fn one_that_waits_for_others_is_told_only_when_they_are_not() {
    let jobs = format!("{JOBS}[jobs.mail]\nschedule = \"0 6 * * *\"\ncommand = [\"x\"]\n");
    let office = Office::with(&format!("{jobs}depends_on = [\"verify\"]\n"));
    office.all_well();
    let now = office.now();
    let mail = JobRow {
        name: "mail".to_owned(),
        schedule: "0 6 * * * UTC".to_owned(),
        revision: 0,
        next_due: Some(now - 3 * HOUR),
        ..office.row("verify")
    };
    office.put(&mail, &[]);
    office.change("verify", |row| row.last_success_due = Some(now - 10 * DAY));
    let rest = "purge ok, report ok";
    let figures = "| failed=0 overdue=0";
    says(&office, &[], 0, &format!("JOBS OK: {rest}, verify ok, mail ok {figures}"));
    let list = office.jobs(&["list"]).out;
    let line = list.lines().find(|line| line.starts_with("mail "));
    assert!(line.is_some_and(|line| line.contains("  waits for verify  ")), "{list}");
    let pause = onedrop::ledger::JobPause { at: now, note: String::new(), until: None };
    office.change("verify", |row| row.paused = Some(pause));
    let figures = "| failed=0 overdue=1";
    let line = format!("JOBS WARNING: mail overdue by 3h, {rest}, verify paused {figures}");
    says(&office, &[], 1, &line);
}

#[test]
fn more_than_five_that_are_well_are_a_number() {
    let job = |n| format!("[jobs.j{n}]\nevery = \"1h\"\ncommand = [\"true\"]\nenabled = false\n");
    let many: String = (0..50).map(job).collect();
    says(&Office::with(&many), &[], 0, "JOBS OK: 50 jobs ok | failed=0 overdue=0");
}

#[test]
fn the_same_comes_as_json() {
    let job = |name: &str| format!("[jobs.{name}]\nevery = \"1h\"\ncommand = [\"true\"]\n");
    let office = Office::with(&(job("a") + &job("b") + "enabled = false\n"));
    let ended = office.jobs(&["check", "--json"]);
    let told: Value = serde_json::from_str(&ended.out).expect("JSON");
    assert_eq!(
        (ended.status, ended.err.as_str(), &told["status"]),
        (Some(1), "", &json!("WARNING"))
    );
    let line = office.jobs(&["check"]).out;
    let why = told["jobs"][0]["why"].as_str().expect("a sentence");
    assert!(line.starts_with(&format!("JOBS WARNING: {why}, b disabled | failed=0 ")), "{line}");
    let b = json!({"name": "b", "status": "OK", "state": "disabled", "why": null});
    assert_eq!(told["jobs"][1], b);
    for wrong in [&["check", "--json", "nosuch"][..], &["check", "--json", "--wrong"]] {
        let ended = office.jobs(wrong);
        let told: Value = serde_json::from_str(&ended.out).expect("JSON");
        assert_eq!((ended.status, &told["status"]), (Some(3), &json!("UNKNOWN")), "{told}");
    }
}

/// A monitoring system gives its plugins 10 s.
#[test]
fn a_ledger_that_hangs_is_unknown_in_time() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port();
    let url = format!("postgres://onedrop@127.0.0.1:{port}/onedrop?sslmode=disable");
    let office = Office::with(&format!("[ledger]\nurl = \"{url}\"\n{JOBS}"));
    let began = Instant::now();
    let ended = office.jobs(&["check"]);
    assert!(ended.out.starts_with("JOBS UNKNOWN: ledger: cannot be reached"), "{ended:?}");
    assert_eq!((ended.status, ended.out.lines().count()), (Some(3), 1));
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

#[test]
fn what_keeps_it_from_telling_is_unknown() {
    let office = Office::new();
    office.all_well();
    let line = "JOBS UNKNOWN: no job \"verfy\" in the configuration (did you mean verify?)";
    says(&office, &["purge", "verfy"], 3, line);
    let line =
        "JOBS UNKNOWN: no job \"a / b\\n\" in the configuration (jobs: purge, report, verify)";
    says(&office, &["a | b\n"], 3, line);
    let ended = office.jobs(&["check", "--whatever"]);
    assert_eq!((ended.status, ended.err.as_str()), (Some(3), ""));
    assert!(
        ended.out.starts_with("JOBS UNKNOWN: ") && ended.out.contains("--whatever"),
        "{ended:?}"
    );
    // Others have "check" among their words as well.
    for args in [&["show", "check", "--whatever"][..], &["pause", "verify", "check"]] {
        let ended = office.jobs(args);
        assert_eq!((ended.status, ended.out.as_str()), (Some(75), ""), "{args:?}: {ended:?}");
    }
    let wrong = "[jobs.verify]\nevery = \"1h\"\ncommand = [\"x\"]\nwhat = 1\n";
    std::fs::write(&office.config, wrong).expect("a file");
    let ended = office.jobs(&["check"]);
    assert_eq!((ended.status, ended.err.as_str()), (Some(3), ""));
    assert!(ended.out.starts_with("JOBS UNKNOWN: ") && ended.out.contains(":4:"), "{ended:?}");
    assert_eq!(ended.out.lines().count(), 1);
    let away = office.site.config("away", "[ledger]\nurl = \"sqlite:///proc/none/ledger.db\"\n");
    let office = Office { config: away, ..office };
    let ended = office.jobs(&["check"]);
    assert_eq!((ended.status, ended.err.as_str()), (Some(3), ""));
    assert!(ended.out.starts_with("JOBS UNKNOWN: ledger: "), "{ended:?}");
}
