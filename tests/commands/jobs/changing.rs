//! `onedrop jobs pause`, `resume`, `reset` and `mark-done`.

use std::sync::Barrier;
use std::thread;

use super::*;
use crate::support::postgres::Postgres;

#[track_caller]
fn done(office: &Office, args: &[&str], said: &str) {
    let ended = office.jobs(args);
    assert_eq!(
        (ended.status, ended.out.trim_end(), ended.err.as_str()),
        (Some(0), said, ""),
        "{args:?}"
    );
}

#[track_caller]
fn refused(office: &Office, args: &[&str], status: i32, why: &str) {
    let ended = office.jobs(args);
    assert_eq!((ended.status, ended.out.as_str()), (Some(status), ""), "{args:?}: {ended:?}");
    assert!(ended.err.contains(why) && ended.err.lines().count() == 1, "{args:?}: {ended:?}");
}

fn time(text: &str) -> SystemTime {
    text.parse::<jiff::Timestamp>().expect("a time").into()
}

#[test]
fn a_job_is_paused_and_resumed() {
    let office = Office::new();
    office.all_well();
    refused(&office, &["resume", "verify"], 1, "verify is not paused");
    done(&office, &["pause", "verify", "--note", "disk\nfull"], "verify is paused");
    let pause = office.row("verify").paused.expect("a pause");
    assert_eq!(pause.note, "disk full");
    done(
        &office,
        &["pause", "verify", "--note", "until Monday"],
        "verify was paused already; its note is this one now",
    );
    let again = office.row("verify").paused.expect("a pause");
    assert_eq!((again.note.as_str(), again.at), ("until Monday", pause.at));
    assert!(office.jobs(&["show", "verify"]).out.contains(": until Monday\n"));
    done(&office, &["resume", "verify"], "verify is paused no longer");
    let row = office.row("verify");
    assert_eq!((row.paused, row.last_paused_at), (None, Some(pause.at)));
    assert!(row.resumed_at.is_some_and(|at| at >= pause.at));
}

#[test]
fn a_job_that_no_tick_has_seen_can_be_paused() {
    let office = Office::new();
    refused(&office, &["resume", "purge"], 1, "purge is not paused");
    refused(&office, &["reset", "purge"], 1, "purge is not on record yet");
    done(&office, &["pause", "purge"], "purge is paused");
    let row = office.row("purge");
    assert!(row.paused.is_some() && row.runs == 0 && row.next_due.is_some(), "{row:?}");
    assert_eq!(row.schedule, "every 15m");
}

/// The run that goes on ends as if nothing had happened.
#[test]
fn a_pause_leaves_the_run_that_goes_on_alone() {
    let office = Office::new();
    office.all_well();
    let claim = office.begin("verify", HOUR);
    let before = office.row("verify");
    done(&office, &["pause", "verify"], "verify is paused; the run that has begun goes on");
    let row = office.row("verify");
    assert_eq!(
        (row.open, row.epoch, row.last_start),
        (before.open, claim.epoch, before.last_start)
    );
    let words = office.jobs(&["list"]).out;
    assert!(words.lines().any(|line| line.starts_with("verify  running ")), "{words}");
    refused(&office, &["mark-done", "verify"], 75, "verify: a run is on record as open");
    let ended = office.jobs(&["reset", "verify"]);
    assert_eq!((ended.status, office.row("verify").open), (Some(0), before.open), "{ended:?}");
}

#[test]
fn a_reset_forgets_failures_and_keeps_the_runs() {
    // No time of this one comes between the run that failed and now, whatever the time is.
    let office = Office::with(&JOBS.replace("0 5 * * *", "0 5 29 2 *"));
    office.all_well();
    let failed = ended_run(&office, "report", HOUR, JobOutcome::Failed);
    let mut row = office.row("report");
    (row.errors, row.last_exit, row.next_try) = (3, Some(1), 4);
    row.schedule = "0 5 29 2 * Asia/Kolkata".to_owned();
    row.last_error = "exit status 1".to_owned();
    row.retry_at = Some(office.now() + HOUR);
    row.next_due = Some(failed.due);
    office.put(&row, std::slice::from_ref(&failed));
    let ended = office.jobs(&["reset", "report"]);
    assert!(ended.out.starts_with("report is as new; due next at ") && ended.status == Some(0));
    let reset = office.row("report");
    assert_eq!((reset.errors, reset.next_try, reset.retry_at), (0, 1, None));
    assert!(reset.next_due.is_some_and(|due| due > office.now()), "{reset:?}");
    assert_eq!((reset.last_success, reset.runs), (row.last_success, row.runs));
    assert_eq!(office.ledger.job_runs("report", 10, soon()).expect("runs"), [failed]);
}

#[test]
fn a_time_is_put_on_record_as_done() {
    let office = Office::new();
    office.all_well();
    refused(&office, &["mark-done", "verify"], 75, "verify: nothing is due before ");
    office.change("verify", |row| row.next_due = Some(time("2020-11-01T03:17:00Z")));
    office.change("verify", |row| (row.errors, row.next_try) = (2, 3));
    office.change("verify", |row| row.last_success_due = Some(time("2020-10-31T03:17:00Z")));
    let args = ["mark-done", "verify", "--due", "2020-11-02T03:17:00Z"];
    let said = "verify is done for 2 times up to 2020-11-02 03:17:00 UTC; due now";
    done(&office, &args, said);
    let row = office.row("verify");
    assert_eq!(row.next_due, Some(time("2020-11-03T03:17:00Z")));
    assert_eq!((row.errors, row.next_try), (0, 1));
    assert_eq!(row.last_success_due, Some(time("2020-11-02T03:17:00Z")));
    let runs = office.ledger.job_runs("verify", 10, soon()).expect("runs");
    assert_eq!((runs.len(), runs[0].outcome), (1, Some(JobOutcome::Marked)));
    assert_eq!(
        (runs[0].due, runs[0].last_due, runs[0].try_no),
        (time("2020-11-01T03:17:00Z"), time("2020-11-02T03:17:00Z"), 3)
    );
    refused(&office, &args, 75, "has been dealt with");
    let ended = office.jobs(&["mark-done", "verify"]);
    assert!(ended.out.contains(" times up to ") && ended.out.contains("due next at"), "{ended:?}");
    assert!(office.row("verify").next_due.is_some_and(|due| due > office.now()));
    // A try of it is on record, and the row does not know: a clock was wrong, or it ran by hand.
    office.change("verify", |row| row.next_due = Some(time("2020-11-01T03:17:00Z")));
    let said = "verify is done for 2020-11-01 03:17:00 UTC; due now";
    done(&office, &["mark-done", "verify", "--due", "2020-11-01T03:17:00Z"], said);
    let runs = office.ledger.job_runs("verify", 1, soon()).expect("runs");
    assert_eq!((runs[0].due, runs[0].try_no), (time("2020-11-01T03:17:00Z"), 4));
}

#[test]
fn a_job_that_succeeded_elsewhere_is_put_on_record() {
    let office = Office::new();
    let at = office.now() - HOUR;
    let text = jiff::Timestamp::try_from(at).expect("a time").strftime("%FT%TZ").to_string();
    let args = ["mark-done", "verify", "--at", &text];
    let ended = office.jobs(&args);
    assert!(ended.out.starts_with("verify is done for ") && ended.status == Some(0), "{ended:?}");
    let row = office.row("verify");
    assert_eq!((row.last_success, row.last_start), (Some(time(&text)), Some(time(&text))));
    assert!(row.next_due.is_some_and(|due| due > at), "{row:?}");
    let run = office.ledger.job_runs("verify", 1, soon()).expect("runs").remove(0);
    assert_eq!(run.outcome, Some(JobOutcome::Marked));
    assert!(run.reason.ends_with(" said that it is done"), "{run:?}");
    refused(&office, &["mark-done", "verify", "--at", "soon"], 75, "--at: expected a time such as");
    let late = "verify: 2100-01-01T00:00:00Z has not come yet";
    refused(&office, &["mark-done", "verify", "--at", "2100-01-01T00:00:00Z"], 75, late);
}

/// By the clocks of the job's zone, or with an offset.
#[test]
fn the_time_that_is_meant_must_be_one_of_the_schedule() {
    let office = Office::new();
    office.all_well();
    office.change("report", |row| row.next_due = Some(time("2020-10-31T23:30:00Z")));
    for wrong in ["yesterday", "2020-11-01", "0"] {
        let why = "--due: expected a time such as";
        refused(&office, &["mark-done", "report", "--due", wrong], 75, why);
    }
    let why = "is no time of its schedule; the nearest are 2020-10-31T23:30:00Z and ";
    refused(&office, &["mark-done", "report", "--due", "2020-11-01 05:01"], 75, why);
    let said = "report is done for 2020-10-31 23:30:00 UTC; due now";
    done(&office, &["mark-done", "report", "--due", "2020-11-01 05:00"], said);
    let ended = office.jobs(&["mark-done", "purge", "--due", "2020-11-01 05:00"]);
    assert!(ended.status == Some(75) && ended.err.contains("purge: "), "{ended:?}");
}

#[test]
fn a_job_that_is_not_there_is_told_and_nothing_is_put_on_record() {
    let office = Office::new();
    for command in ["pause", "resume", "reset", "mark-done"] {
        let why = "no job \"verfy\" in the configuration (did you mean verify?)";
        refused(&office, &[command, "verfy"], 75, why);
    }
    assert_eq!(office.ledger.jobs(soon()).expect("jobs").jobs, []);
}

/// Each reads, plans and compares; whoever comes second does it again.
#[test]
fn what_many_change_at_once_is_all_there() {
    const MANY: usize = 8;
    let office = Office::new();
    office.all_well();
    let before = office.row("verify").revision;
    let barrier = Barrier::new(MANY);
    let (barrier, place) = (&barrier, &office);
    thread::scope(|scope| {
        let pause = |n: usize| {
            scope.spawn(move || {
                barrier.wait();
                place.jobs(&["pause", "verify", "--note", &format!("by {n}")])
            })
        };
        let pauses: Vec<_> = (0..MANY).map(pause).collect();
        for pause in pauses {
            let ended = pause.join().expect("no panic");
            assert_eq!((ended.status, ended.err.as_str()), (Some(0), ""), "{ended:?}");
        }
    });
    assert_eq!(office.row("verify").revision, before + MANY as i64);
}

/// A ledger in a file is made by its first use, one on a server is not. On each engine the
/// contract's `jobs` say what is on record.
#[test]
fn with_postgres_and_no_schema_nothing_is_known_or_changed() {
    let postgres = Postgres::shared_and_empty();
    let office = Office::with(&(postgres.toml() + JOBS));
    for args in [&["list"][..], &["pause", "verify"]] {
        refused(&office, args, 75, "has no schema yet");
    }
    let ended = office.jobs(&["check"]);
    assert!(ended.status == Some(3) && ended.out.contains("has no schema yet"), "{ended:?}");
}
