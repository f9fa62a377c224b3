//! `onedrop jobs list`, `show` and `audit`.

use super::*;

/// The words of a line.
fn words(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|word| !word.is_empty()).collect()
}

#[test]
fn a_list_has_a_line_for_each_job() {
    let office = Office::new();
    office.all_well();
    office.change("report", |row| row.errors = 2);
    office.begin("verify", 2 * DAY + 3 * HOUR);
    let list = office.jobs(&["list"]);
    assert_eq!((list.status, list.err.as_str()), (Some(0), ""));
    let lines: Vec<_> = list.out.lines().map(words).collect();
    assert_eq!(lines[0], ["NAME", "STATE", "LAST", "NEXT", "ERRORS", "HOLDER"]);
    assert_eq!(lines[1][..2], ["purge", "ok"], "{list:?}");
    assert!(lines[1][2].ends_with(" ago, took 1m 2s"), "{list:?}");
    assert!(lines[1][3].starts_with("in ") && lines[1][4..] == ["0", "-"], "{list:?}");
    assert_eq!((&lines[2][..2], lines[2][4]), (&["report", "failing"][..], "2"));
    assert_eq!(lines[3][..3], ["verify", "running", "since 2d 3h"]);
    assert_eq!(lines[3][4..], ["0", "mx1:4711"]);
    assert_eq!(lines.len(), 4);
}

#[test]
fn what_is_not_on_record_and_what_is_not_configured_are_in_the_list() {
    let office = Office::new();
    let list = office.jobs(&["list"]).out;
    let lines: Vec<_> = list.lines().skip(1).map(words).collect();
    assert_eq!(lines[0], ["purge", "new", "-", "at its first tick", "0", "-"]);
    office.all_well();
    let now = office.now();
    let pause = onedrop::ledger::JobPause { at: now, note: "new\ndisks".to_owned(), until: None };
    office.change("purge", |row| row.paused = Some(pause));
    let config = office.site.config("fewer", "[jobs.purge]\nevery = \"15m\"\ncommand = [\"x\"]");
    let office = Office { config, ..office };
    let list = office.jobs(&["list"]).out;
    let lines: Vec<_> = list.lines().skip(1).map(words).collect();
    assert_eq!(lines[0][..2], ["purge", "paused"]);
    assert!(lines[0][3].starts_with("paused ") && lines[0][3].ends_with(": new disks"), "{list}");
    assert_eq!((lines[1][0], lines[1][1], lines[2][0]), ("report", "ghost", "verify"), "{list}");
    assert_eq!(Office::with("").jobs(&["list"]).out, "");
}

#[test]
fn a_list_for_programs_has_what_is_on_record() {
    let office = Office::new();
    office.all_well();
    let claim = office.begin("verify", HOUR);
    let list = office.json(&["list"]);
    let [purge, report, verify] = &list.as_array().expect("a list")[..] else { panic!("{list}") };
    assert_eq!((&purge["name"], &purge["state"]), (&"purge".into(), &"ok".into()));
    assert_eq!(purge["holder"], serde_json::Value::Null);
    let next: jiff::Timestamp = report["next"].as_str().expect("a time").parse().expect("RFC 3339");
    assert_eq!(SystemTime::from(next), office.row("report").next_due.expect("a time"));
    assert_eq!((&verify["state"], &verify["runs"]), (&"running".into(), &8.into()));
    let holder = &verify["holder"];
    assert_eq!((&holder["host"], &holder["epoch"]), (&"mx1".into(), &claim.epoch.into()));
}

#[test]
fn a_job_is_shown_with_its_times_and_its_runs() {
    let office = Office::new();
    office.all_well();
    let mut failed = ended_run(&office, "report", 2 * HOUR, JobOutcome::Failed);
    failed.output = "line one\nline \u{1b}[31mtwo\n".to_owned();
    failed.reason = "exit status 75".to_owned();
    failed.exit = Some(75);
    let skips: Vec<JobRun> = (1..12)
        .map(|n| {
            let reason = "the job was paused".to_owned();
            let skip = ended_run(&office, "report", DAY + n * HOUR, JobOutcome::SkippedPaused);
            JobRun { reason, last_due: skip.due + HOUR / 2, occurrences: 31, ..skip }
        })
        .collect();
    let mut row = office.row("report");
    let due: jiff::Timestamp = "2099-03-01T23:30:00Z".parse().expect("a time");
    (row.errors, row.last_exit, row.next_due) = (1, Some(75), Some(due.into()));
    row.last_error = "exit status 75: no\nroom".to_owned();
    office.put(&row, &[&skips[..], &[failed]].concat());
    let shown = office.jobs(&["show", "report"]);
    assert_eq!((shown.status, shown.err.as_str()), (Some(0), ""));
    let out = &shown.out;
    for line in [
        "job          report: failing",
        "schedule     at 05:00 (Asia/Kolkata) (0 5 * * * Asia/Kolkata)",
        "last error   1 in a row (exit 75): exit status 75: no room",
        "due          2099-03-01 23:30:00 UTC  2099-03-02 05:00:00 +05:30",
        "             2099-03-05 23:30:00 UTC  2099-03-06 05:00:00 +05:30",
        "  line one",
        "  line \\u001b[31mtwo",
    ] {
        assert!(out.lines().any(|one| one == line), "{line}\n{out}");
    }
    assert!(!out.contains("2099-03-06 23:30:00"), "five times\n{out}");
    let skipped = out.lines().filter(|line| line.contains("skipped_paused")).count();
    assert_eq!((skipped, out.matches(" failed (75) ").count()), (9, 1), "ten runs\n{out}");
    assert!(out.contains("(31)") && out.contains("the job was paused"), "{out}");
    let json = office.json(&["show", "report"]);
    assert_eq!(json["last_runs"].as_array().map(Vec::len), Some(10));
    assert_eq!(json["last_runs"][0]["output"], "line one\nline \u{1b}[31mtwo\n");
    assert_eq!(json["due"][0], "2099-03-01T23:30:00Z");
    assert_eq!(json["last_runs"][1]["occurrences"], 31);
}

#[test]
fn a_job_is_shown_before_its_first_tick_and_by_elapsed_time() {
    let office = Office::new();
    let out = office.jobs(&["show", "purge"]).out;
    assert!(out.contains("not yet") && out.contains("no runs yet"), "{out}");
    assert!(!out.lines().any(|line| line.starts_with("due ")), "{out}");
    let out = office.jobs(&["show", "verify"]).out;
    assert_eq!(out.lines().filter(|line| line.contains(" 03:17:00 UTC")).count(), 5, "{out}");
    office.all_well();
    let out = office.jobs(&["show", "purge"]).out;
    assert!(out.contains("15m after the last start (every 15m)"), "{out}");
}

#[test]
fn a_job_that_is_not_there_is_named_with_the_one_that_is_meant() {
    let office = Office::new();
    let ended = office.jobs(&["show", "reprot"]);
    let why = "no job \"reprot\" in the configuration (did you mean report?)\n";
    assert_eq!((ended.status, ended.out.as_str(), ended.err.as_str()), (Some(75), "", why));
    let ended = Office::with("").jobs(&["show", "verify"]);
    assert!(ended.err.contains("it has no [jobs.NAME] at all"), "{ended:?}");
}

#[test]
fn an_audit_finds_where_ledger_and_configuration_differ() {
    let office = Office::new();
    office.all_well();
    let fine = office.jobs(&["audit"]);
    assert_eq!((fine.status, fine.out.as_str(), fine.err.as_str()), (Some(0), "", ""));
    assert_eq!(office.json(&["audit"]), serde_json::json!([]));
    office.change("purge", |row| row.schedule = "every 2h".to_owned());
    office.change("report", |row| (row.last_start, row.runs) = (None, 0));
    let claim = office.begin("verify", HOUR);
    assert!(office.ledger.release_lock(&claim, soon()).expect("an answer"));
    let ghost = JobRow { name: "old".to_owned(), revision: 0, ..office.row("purge") };
    office.put(&ghost, &[]);
    let found = office.jobs(&["audit"]);
    assert_eq!((found.status, found.err.as_str()), (Some(1), ""));
    let lines: Vec<_> = found.out.lines().collect();
    assert_eq!(lines.len(), 4, "{found:?}");
    assert!(lines[0].starts_with("schedule  purge: \"every 2h\" on record, \"every 15m\" here"));
    assert!(lines[1].starts_with("never run report: on record since 30d"), "{found:?}");
    assert!(lines[2].starts_with("open run  verify: try 1, begun 1h ago, has no process"));
    assert!(lines[3].starts_with("ghost     old: not in the configuration"), "{found:?}");
    let json = office.json(&["audit"]);
    assert_eq!((&json[3]["job"], &json[3]["kind"]), (&"old".into(), &"ghost".into()));
}

/// Only another program can have written them.
#[test]
fn ghosts_with_odd_names_are_told_on_a_line_and_can_be_removed() {
    let office = Office::new();
    office.all_well();
    for name in ["", " a\nb\u{1b}[31m ", &"x".repeat(300)] {
        let row = JobRow { name: name.to_owned(), revision: 0, ..office.row("purge") };
        office.put(&row, &[]);
    }
    assert_eq!(office.jobs(&["list"]).out.lines().count(), 7);
    assert!(!office.jobs(&["list"]).out.contains('\u{1b}'));
    let audit = office.jobs(&["audit", "--remove-ghosts"]);
    assert_eq!((audit.status, audit.out.lines().count()), (Some(0), 3), "{audit:?}");
    assert!(!audit.out.contains('\u{1b}'));
    assert_eq!(office.ledger.jobs(soon()).expect("jobs").jobs.len(), 3);
}

#[test]
fn ghosts_are_removed_with_their_runs_unless_their_lock_is_held() {
    let office = Office::new();
    office.all_well();
    for name in ["old", "older"] {
        let row = JobRow { name: name.to_owned(), revision: 0, ..office.row("purge") };
        let run =
            JobRun { job: name.to_owned(), ..ended_run(&office, "purge", HOUR, JobOutcome::Ok) };
        office.put(&row, &[run]);
    }
    let claim = office.hold("old");
    let audit = office.jobs(&["audit", "--remove-ghosts"]);
    assert_eq!(audit.status, Some(1), "{audit:?}");
    let lines: Vec<_> = audit.out.lines().collect();
    assert!(lines[0].contains("old: ") && lines[0].contains("not removed: its lock is held: "));
    assert!(lines[0].contains("mx1 pid 4711"), "{audit:?}");
    assert!(lines[1].contains("older: ") && lines[1].ends_with("removed, with its runs"));
    let names: Vec<_> = office.ledger.jobs(soon()).expect("jobs").jobs;
    assert!(names.iter().any(|row| row.name == "old") && names.len() == 4, "{names:?}");
    assert_eq!(office.ledger.job_runs("older", 10, soon()).expect("runs"), []);
    assert_eq!(office.ledger.job_runs("old", 10, soon()).expect("runs").len(), 1);
    assert!(office.ledger.release_lock(&claim, soon()).expect("an answer"));
    let audit = office.jobs(&["audit", "--remove-ghosts"]);
    assert_eq!(audit.status, Some(0), "{audit:?}");
    assert_eq!(office.jobs(&["audit"]).out, "");
    let held = office.ledger.lock_rows(None, soon()).expect("locks");
    assert!(held.is_empty(), "no lock is left: {held:?}");
}
