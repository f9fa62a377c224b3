//! Ticks: what is due runs once, whoever ticks and when; what waited follows; a tick that gets
//! SIGTERM ends its jobs.

use std::process::Command;
use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;
use onedrop::ledger::{JobOutcome, JobTrigger};

use crate::place::{SOON, children, end, ended, timed};
use crate::site::{JobSite, exists, job};
use crate::support::wait_until;

const DONE: Option<JobOutcome> = Some(JobOutcome::Ok);

/// Two hosts at the same moment and 0.1 s apart, a job's first run and a later one: one run each.
#[test]
fn two_ticks_at_once_or_apart_run_a_job_once() {
    for has_postgres in [false, true] {
        let jobs = job("j", "echo ran >>journal; sleep 0.3", "every = \"1d\"");
        let site = match has_postgres {
            true => JobSite::with_postgres(&jobs),
            false => JobSite::new(&jobs),
        };
        let mut rounds = 0;
        for apart in [0, 100, 0, 100] {
            let first = site.jobs(&["tick"]).spawn().expect("binary");
            std::thread::sleep(Duration::from_millis(apart));
            let second = site.jobs(&["tick"]).spawn().expect("binary");
            for tick in [first, second] {
                let end = end(tick.wait_with_output().expect("its end"));
                assert_eq!(end.code, Some(0), "{end:?}");
            }
            rounds += 1;
            assert_eq!(site.lines("journal").len(), rounds, "{apart} ms apart");
            assert_eq!(site.outcomes("j"), vec![DONE; rounds]);
            site.change("j", |row| row.next_due = Some(SystemTime::now()));
        }
    }
}

#[test]
fn a_tick_says_that_its_host_is_there() {
    let site = JobSite::new(&job("later", "true", "schedule = \"0 0 1 1 *\""));
    assert_eq!(site.tick().code, Some(0));
    let hosts = site
        .ledger()
        .hosts(Duration::from_secs(60), std::time::Instant::now() + SOON)
        .expect("hosts");
    let told: Vec<_> =
        hosts.iter().map(|row| (row.host.as_str(), row.program_version.as_str())).collect();
    let host = nix::unistd::gethostname().expect("a name").into_string().expect("text");
    assert_eq!(told, [(host.as_str(), env!("CARGO_PKG_VERSION"))]);
}

#[test]
fn a_tick_runs_what_is_due_and_a_second_one_finds_nothing() {
    let jobs = [
        job("well", "echo well >>journal", ""),
        job("later", "echo later >>journal", "schedule = \"0 0 1 1 *\""),
        job("fails", "echo fails >>journal; echo why >&2; exit 3", ""),
    ];
    let site = JobSite::new(&jobs.concat());
    let end = site.tick();
    assert_eq!(end.code, Some(1), "a job has failed: {end:?}");
    assert!(
        end.err.contains("why\n") && end.err.contains("fails failed: exit status 3"),
        "{end:?}"
    );
    let mut lines = site.lines("journal");
    lines.sort();
    assert_eq!(lines, ["fails", "well"]);
    let end = site.tick();
    assert_eq!((end.code, &*end.out, &*end.err), (Some(0), "", ""));
    assert_eq!(site.lines("journal").len(), 2);
    assert_eq!(site.runs("later"), []);
    // Its next try, at its time.
    site.wait_is_over("fails");
    assert_eq!(site.tick().code, Some(1));
    let runs = site.runs("fails");
    let tries: Vec<_> = runs.iter().map(|run| (run.due, run.try_no, run.trigger)).collect();
    let due = runs[0].due;
    assert_eq!(tries, [(due, 1, JobTrigger::Schedule), (due, 2, JobTrigger::Retry)]);
}

/// The run is held (strace) between the end that it keeps and the ledger.
#[test]
fn a_failure_is_told_also_where_a_tick_has_put_it_on_record() {
    let site = JobSite::new(&job("fails", "exit 3", ""));
    let run = site.jobs(&["run", "fails"]);
    let mut held = Command::new("strace");
    held.args(["-f", "-qqq", "-o", "/dev/null", "-e", "trace=/^renameat"]);
    held.args(["-e", "inject=/^renameat:delay_exit=3000000"]);
    held.arg(run.get_program()).args(run.get_args());
    let run = site.prepared(held).spawn().expect("strace");
    let is_kept = || {
        let files = std::fs::read_dir(site.path("state")).into_iter().flatten().flatten();
        files.into_iter().any(|file| file.path().extension().is_some_and(|end| end == "end"))
    };
    assert!(wait_until(SOON, is_kept));
    site.tick();
    assert_eq!(site.only_run("fails").outcome, Some(JobOutcome::Failed));
    let end = end(run.wait_with_output().expect("its end"));
    assert_eq!(end.code, Some(3), "{end:?}");
    assert!(end.err.contains("fails failed: exit status 3; it is tried again at "), "{end:?}");
}

#[test]
fn what_waited_for_a_job_follows_in_the_same_tick() {
    let jobs = [
        job("c", "echo c >>journal", "depends_on = [\"a\", \"b\"]"),
        job("a", "sleep 0.5; echo a >>journal", ""),
        job("b", "echo b >>journal", "depends_on = [\"a\"]"),
        job("d", "echo d >>journal", "depends_on = [\"bad\"]"),
        job("bad", "exit 9", ""),
    ];
    let site = JobSite::new(&jobs.concat());
    assert_eq!(site.tick().code, Some(1));
    assert_eq!(site.lines("journal"), ["a", "b", "c"]);
    assert_eq!(site.runs("d"), []);
}

/// Each missed time has its run, oldest first; the one that fails stops those after it, in this
/// process and in the next ones, until it has succeeded.
#[test]
fn backfill_stops_at_a_failure_and_goes_on_there() {
    let script = "echo $ONEDROP_JOB_DUE $ONEDROP_JOB_TRY >>journal
        [ $(wc -l <journal) != 3 ]";
    let keys = "schedule = \"0 0 * * *\"\nbackfill = \"all\"";
    let site = JobSite::new(&job("days", script, keys));
    assert_eq!(site.tick().code, Some(0));
    let newest = site.row("days").next_due.expect("a time");
    let day = Duration::from_secs(86_400);
    let oldest = newest - 5 * day;
    site.change("days", |row| {
        row.next_due = Some(oldest);
        row.first_seen = oldest;
    });
    assert_eq!(site.tick().code, Some(1));
    let dues = |count: u32| {
        let due = move |at: u32| {
            let due = jiff::Timestamp::try_from(oldest + at * day).expect("a time");
            due.to_string()
        };
        (0..count).map(due)
    };
    let mut expected: Vec<String> = dues(3).map(|due| format!("{due} 1")).collect();
    assert_eq!(site.lines("journal"), expected);
    assert_eq!(site.tick().code, Some(0));
    assert_eq!(site.lines("journal"), expected, "not before its retry");
    site.wait_is_over("days");
    assert_eq!(site.tick().code, Some(0));
    let dues: Vec<String> = dues(5).collect();
    expected.push(format!("{} 2", dues[2]));
    expected.extend(dues[3..].iter().map(|due| format!("{due} 1")));
    assert_eq!(site.lines("journal"), expected);
    let failed = Some(JobOutcome::Failed);
    assert_eq!(site.outcomes("days"), [DONE, DONE, failed, DONE, DONE, DONE]);
}

#[test]
fn a_job_whose_lock_is_held_is_left_alone_and_the_pass_goes_on() {
    let jobs = [job("busy", "touch ran", ""), job("free", "echo free >>journal", "")];
    let site = JobSite::new(&jobs.concat());
    let hold = ["jobs/busy", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.1; done"];
    let mut holder = crate::place::Held { child: site.place.with_lock(&hold).spawn().expect("it") };
    assert!(wait_until(SOON, || site.is_locked("busy")));
    let end = site.tick();
    assert_eq!((end.code, &*end.err), (Some(0), ""), "{end:?}");
    assert_eq!(site.lines("journal"), ["free"]);
    assert!(!site.path("ran").exists());
    site.touch("go");
    assert_eq!(holder.code(), Some(0));
    assert_eq!(site.tick().code, Some(0));
    assert!(site.path("ran").exists());
}

/// A job that takes long keeps the others from nothing: the same tick goes on looking.
#[test]
fn while_a_job_runs_the_others_have_their_times() {
    let jobs = [
        job("long", "touch began; while [ ! -e go ]; do sleep 0.1; done", "every = \"1d\""),
        job("often", "echo often >>journal", "every = \"2s\""),
    ];
    let site = JobSite::new(&jobs.concat());
    let mut tick = site.started(&["tick"]);
    assert!(exists(&site.path("began")));
    assert!(wait_until(SOON, || site.lines("journal").len() > 2), "{:?}", site.lines("journal"));
    // One that is new in the configuration as well.
    let added = job("new", "touch new", "");
    site.set_jobs(&format!("{}{added}", jobs.concat()));
    assert!(exists(&site.path("new")));
    let other = site.tick();
    assert_eq!(other.code, Some(0), "{other:?}");
    assert!(site.is_running("long"));
    site.touch("go");
    assert_eq!(tick.code(), Some(0));
    assert_eq!(site.outcomes("long"), [DONE]);
}

/// cron mails each line.
#[test]
fn a_job_that_is_late_is_mentioned_once_by_the_tick_that_runs_it() {
    let late = "touch began; while [ ! -e go ]; do sleep 0.1; done";
    let often = "echo often >>journal";
    let jobs = [job("late", late, "every = \"1s\""), job("often", often, "every = \"1s\"")];
    let site = JobSite::new(&jobs.concat());
    let tick = site.jobs(&["tick"]).spawn().expect("binary");
    // It looks at all jobs again after each.
    assert!(wait_until(SOON, || site.lines("journal").len() > 3), "{:?}", site.lines("journal"));
    let says = "job late has run for ";
    let other = site.tick();
    assert!(other.code == Some(0) && !other.err.contains(says), "{other:?}");
    site.set_jobs(&job("late", late, "every = \"1d\""));
    site.touch("go");
    let end = end(tick.wait_with_output().expect("its end"));
    assert_eq!((end.code, end.err.matches(says).count()), (Some(0), 1), "{end:?}");
}

#[test]
fn a_tick_that_is_told_to_end_ends_its_jobs_and_gives_their_locks_back() {
    let script = "touch began-$ONEDROP_JOB_NAME; sleep 600";
    let site = JobSite::new(&format!("{}{}", job("a", script, ""), job("b", script, "")));
    let mut tick = site.started(&["tick"]);
    assert!(["a", "b"].iter().all(|name| exists(&site.path(&format!("began-{name}")))));
    let runs = children(tick.pid());
    assert_eq!(runs.len(), 2);
    tick.signal(Signal::SIGTERM);
    let (code, took) = timed(|| tick.code());
    assert_eq!(code, Some(1), "they have failed");
    assert!(took < Duration::from_secs(20), "{took:?}");
    for name in ["a", "b"] {
        let run = site.only_run(name);
        assert_eq!((run.outcome, run.signal), (Some(JobOutcome::Failed), Some(15)), "{run:#?}");
        assert!(!site.is_locked(name));
    }
    assert!(runs.iter().all(|pid| nix::sys::signal::kill(*pid, None).is_err()), "none is left");
}

/// cron starts a tick with a pipe for input, and some have MAIL_CONFIG in their crontab.
#[test]
fn a_tick_works_below_cron() {
    let site = JobSite::new(&job("j", "umask >mask; echo \"$MAIL_CONFIG\" >>mask", ""));
    let line = "$ONEDROP --config \"$CONFIG\" jobs tick";
    let cron = |line: &str, variable: &str| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", line]).env("CONFIG", &site.place.config);
        let mut shell = site.prepared(shell);
        shell.env("MAIL_CONFIG", variable).stdin(std::process::Stdio::piped());
        ended(&mut shell)
    };
    let end = cron(line, "/etc/postfix");
    assert_eq!(end.code, Some(75), "{end:?}");
    assert!(end.out.contains("use </dev/null"), "{end:?}");
    let end = cron(&format!("umask 027; {line} </dev/null"), "/etc/postfix");
    assert_eq!((end.code, &*end.out, &*end.err), (Some(0), "", ""));
    assert_eq!(site.place.text("mask"), "0027\n/etc/postfix\n", "the tick's, not ours");
}

/// All of them, and while a job still runs.
#[test]
fn many_old_runs_are_taken_off_the_record_by_a_tick_that_does_not_end() {
    let old = job("old", "true", "every = \"1d\"");
    let site = JobSite::new(&old);
    assert_eq!(site.tick().code, Some(0));
    site.sql(
        "WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 3500)
         INSERT INTO onedrop_job_run (job, due_at, try, triggered_by, epoch, host, pid, started_at,
             ended_at, outcome, output, reason, last_due_at, occurrences, begin_value)
         SELECT 'old', n, 1, 'schedule', 1, '', 1, n, n, 'ok', '', '', n, 1, x'' FROM number",
    );
    let long = job("long", "while [ ! -e go ]; do sleep 0.1; done", "");
    site.set_jobs(&format!("{old}{long}"));
    let mut tick = site.started(&["tick"]);
    assert!(wait_until(SOON, || site.is_running("long") && site.runs("old").len() == 1));
    assert!(site.is_running("long"));
    site.touch("go");
    assert_eq!(tick.code(), Some(0));
}

#[test]
fn old_runs_are_taken_off_the_record() {
    let site = JobSite::new(&format!(
        "[jobs]\nkeep_runs_days = 3\n{}",
        job("j", "true", "every = \"1s\"")
    ));
    assert_eq!(site.tick().code, Some(0));
    let sql = "UPDATE onedrop_job_run SET ended_at = ended_at - 4 * 86400000";
    let changed = site.place.site.sqlite().execute(sql, []).expect("SQL");
    assert_eq!(changed, 1);
    let old = site.only_run("j");
    site.change("j", |row| row.next_due = Some(SystemTime::now()));
    assert_eq!(site.tick().code, Some(0));
    assert!(site.only_run("j").started_at > old.started_at);
}

#[test]
fn a_tick_has_no_more_runs_going_than_its_concurrency() {
    let script = "mkdir going || echo two >>faults; sleep 0.3; rmdir going; echo ran >>journal";
    let jobs: String = ["a", "b", "c"].map(|name| job(name, script, "")).concat();
    let site = JobSite::new(&format!("[jobs]\nconcurrency = 1\n{jobs}"));
    assert_eq!(site.tick().code, Some(0));
    assert_eq!((site.lines("faults").len(), site.lines("journal").len()), (0, 3));
}
