//! Something is killed or stopped: a run that died is put down as crashed and tried again, and no
//! two of a job are ever at work.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use onedrop::ledger::{JobOutcome, JobRow};
use onedrop_core::testing::chance::Chance;

use crate::place::{Held, SOON, children};
use crate::site::{JobSite, exists, job};
use crate::support::wait_until;

/// Says 9 where another is at work.
const ALONE: &str = "exec 9>work; flock -n 9 || { echo twice >>faults; exit 9; }
    echo $ONEDROP_JOB_DUE $ONEDROP_JOB_TRY $ONEDROP_LOCK_EPOCH >>journal";

/// A run that has crashed is called so by the next tick.
const AT_ONCE: &str = "[jobs]\nsettle_secs = 0\n";

/// Nothing that [`ALONE`] began runs any more.
fn nobody_is_at_work(site: &JobSite) -> bool {
    let mut command = std::process::Command::new("flock");
    command.arg("-n").arg(site.path("work")).arg("true").status().expect("flock").success()
}

/// The processes of a run: wrapper, guardian, command.
fn processes(run: &Held) -> [Pid; 3] {
    let guardian = run.guardian();
    let command = children(guardian);
    [run.pid(), guardian, *command.first().expect("a command")]
}

fn retry(site: &JobSite, name: &str) {
    site.wait_is_over(name);
    let end = site.tick();
    assert_eq!(end.code, Some(0), "{end:?}");
}

#[test]
fn a_run_whose_wrapper_is_killed_is_crashed_and_tried_again() {
    for has_postgres in [false, true] {
        let script = format!("{ALONE}\n[ -e go ] || {{ touch began; sleep 600; }}");
        let jobs = job("j", &script, "");
        let site = match has_postgres {
            true => JobSite::with_postgres(&jobs),
            false => JobSite::new(&jobs),
        };
        let mut run = site.started(&["run", "j"]);
        assert!(exists(&site.path("began")));
        let [_, guardian, command] = processes(&run);
        run.signal(Signal::SIGKILL);
        let _ = run.child.wait();
        let is_gone = |pid: Pid| kill(pid, None).is_err();
        assert!(wait_until(SOON, || is_gone(guardian) && is_gone(command)), "they end with it");
        assert!(wait_until(SOON, || nobody_is_at_work(&site)), "and what they started");
        site.touch("go");
        assert!(wait_until(SOON, || !site.is_locked("j")), "free before its lease ends");
        assert_eq!(site.tick().code, Some(0));
        assert_eq!(site.outcomes("j"), [None], "its end may still come");
        site.found_free_earlier("j", 16);
        assert_eq!(site.tick().code, Some(0));
        assert_eq!(site.outcomes("j"), [Some(JobOutcome::Crashed)], "and not tried at once");
        assert_eq!(site.row("j").errors, 1);
        retry(&site, "j");
        let crashed = site.runs("j").remove(0);
        assert_eq!(crashed.pid, run.child.id(), "it is still said where it ran");
        assert_eq!(site.outcomes("j"), [Some(JobOutcome::Crashed), Some(JobOutcome::Ok)]);
        let due = jiff::Timestamp::try_from(crashed.due).expect("a time");
        let lines = site.lines("journal");
        assert_eq!(lines.len(), 2, "{lines:?}");
        let tries: Vec<&str> =
            lines.iter().filter_map(|line| Some(line.split_once(' ')?.1)).collect();
        assert_eq!(tries, ["1 1", "2 3"], "due {due}: {lines:?}");
        assert_eq!(site.place.text("faults"), "");
    }
}

#[test]
fn a_command_or_its_guardian_that_is_killed_has_failed() {
    let script = "touch began; sleep 600";
    let site = JobSite::new(&job("j", script, ""));
    for (victim, count) in [(1, 1), (2, 2)] {
        let mut run = site.started(&["run", "j", "--force"]);
        assert!(exists(&site.path("began")));
        kill(processes(&run)[victim], Signal::SIGKILL).expect("a process of ours");
        assert_eq!(run.code(), Some(137));
        let runs = site.runs("j");
        assert_eq!(runs.len(), count);
        let last = &runs[count - 1];
        assert_eq!((last.outcome, last.signal), (Some(JobOutcome::Failed), Some(9)), "{last:#?}");
        std::fs::remove_file(site.path("began")).expect("a file");
    }
}

#[test]
fn a_tick_that_is_killed_leaves_its_runs_alone() {
    let script = format!("{ALONE}\ntouch began; while [ ! -e go ]; do sleep 0.1; done; echo end");
    let site = JobSite::new(&job("j", &script, ""));
    let mut tick = site.started(&["tick"]);
    assert!(exists(&site.path("began")));
    tick.signal(Signal::SIGKILL);
    assert_eq!(tick.code(), None);
    let end = site.tick();
    assert_eq!((end.code, &*end.err), (Some(0), ""), "it still runs: {end:?}");
    site.touch("go");
    assert!(wait_until(SOON, || !site.is_running("j")));
    let run = site.only_run("j");
    assert_eq!((run.outcome, &*run.output), (Some(JobOutcome::Ok), "end\n"));
    assert_eq!(site.lines("journal").len(), 1);
}

/// A host that was stopped for longer than its lock, and goes on: how its run ended is on record as
/// after it was taken, and changes nothing of the run that has succeeded meanwhile.
#[test]
fn the_end_of_a_zombie_comes_after_its_run_was_taken() {
    let script = "touch began; [ -e second ] || while [ ! -e go ]; do sleep 0.1; done";
    let site = JobSite::new(&format!("{AT_ONCE}{}", job("j", script, "retry = \"1s\"")));
    let mut zombie = site.started(&["run", "j"]);
    assert!(exists(&site.path("began")));
    let all = processes(&zombie);
    for pid in all {
        kill(pid, Signal::SIGSTOP).expect("a process of ours");
    }
    site.expire_locks();
    site.touch("second");
    assert_eq!(site.tick().code, Some(0));
    retry(&site, "j");
    let before = (site.runs("j"), site.row("j"));
    let outcomes = [Some(JobOutcome::Crashed), Some(JobOutcome::Ok)];
    assert_eq!(site.outcomes("j"), outcomes);
    site.touch("go");
    for pid in all {
        kill(pid, Signal::SIGCONT).expect("a process of ours");
    }
    assert_eq!(zombie.code(), Some(201));
    let (runs, row) = (site.runs("j"), site.row("j"));
    assert_eq!((runs[0].outcome, runs[0].exit), (Some(JobOutcome::Ok), Some(0)));
    assert_eq!(runs[0].reason, "ended 0, after it was taken");
    let same = JobRow { revision: row.revision, last_success: row.last_success, ..before.1 };
    assert_eq!((&runs[1..], &row), (&before.0[1..], &same));
}

/// Kills at random points of wrapper, guardian, command and tick: each start is on record, each
/// that has not ended is settled, and the job gets done.
#[test]
fn whatever_is_killed_when_no_two_run_and_the_job_gets_done() {
    let script = format!("{ALONE}\nsleep 0.1; echo done >>ends");
    let job = job("j", &script, "retry = \"1s\"\nretry_most = \"1s\"");
    let site = JobSite::new(&format!("{AT_ONCE}{job}"));
    let mut chance = Chance::Seeded(20_261_122);
    for round in 0..25 {
        let mut tick = site.started(&["tick"]);
        std::thread::sleep(Duration::from_millis(chance.between(0, 250)));
        let mut chain = vec![tick.pid()];
        while let Some(child) = chain.last().and_then(|pid| children(*pid).first().copied()) {
            chain.push(child);
        }
        let victim = chain[chance.pick(chain.len())];
        let _ = kill(victim, Signal::SIGKILL);
        let _ = tick.code();
        // A run goes on without its tick; one that died keeps its lock, which runs out in time.
        let settled = wait_until(Duration::from_secs(2), || !site.is_locked("j"));
        if !settled {
            site.expire_locks();
        }
        if site.row_if_any("j").is_some_and(|row| row.open.is_none() && row.retry_at.is_some()) {
            site.wait_is_over("j");
        }
        if site.row_if_any("j").is_some_and(|row| row.last_success.is_some()) && round % 3 == 0 {
            site.change("j", |row| row.next_due = Some(std::time::SystemTime::now()));
        }
    }
    site.expire_locks();
    assert!(site.tick().code.is_some());
    if site.row("j").retry_at.is_some() {
        retry(&site, "j");
    }
    assert_eq!(site.place.text("faults"), "");
    assert!(site.row("j").last_success.is_some());
    let runs = site.runs("j");
    assert!(runs.iter().all(|run| run.outcome.is_some()), "{runs:#?}");
    let begun = site.lines("journal");
    let mut unique = begun.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), begun.len(), "a try ran twice: {begun:?}");
    let well = runs.iter().filter(|run| run.outcome == Some(JobOutcome::Ok)).count();
    assert!(site.lines("ends").len() >= well && well > 0, "{runs:#?}");
    assert!(runs.len() >= begun.len(), "{} runs, {} begun", runs.len(), begun.len());
}

/// A clean-up of the tables by hand, or a restored table, leaves such a record.
#[test]
fn a_crash_whose_run_is_not_on_record_as_open_is_settled_all_the_same() {
    let deleted = "DELETE FROM onedrop_job_run";
    let ended = "UPDATE onedrop_job_run SET ended_at = started_at, outcome = 'lost'";
    for has_postgres in [false, true] {
        for (gone, left) in [(deleted, None), (ended, Some(JobOutcome::Lost))] {
            let jobs = format!("{AT_ONCE}{}", job("j", "exit $(cat status)", ""));
            let site = match has_postgres {
                true => JobSite::with_postgres(&jobs),
                false => JobSite::new(&jobs),
            };
            std::fs::write(site.path("status"), "0").expect("a file");
            assert_eq!(site.tick().code, Some(0));
            let run = site.only_run("j");
            site.change("j", |row| {
                (row.open, row.next_due) = (Some((run.due, run.try_no)), Some(run.due));
                row.open_host.clone_from(&run.host);
            });
            site.sql(gone);
            assert_eq!(site.tick().code, Some(0), "{gone}");
            let row = site.row("j");
            assert_eq!((row.open, row.errors), (None, 1), "{gone}: {row:?}");
            retry(&site, "j");
            let outcomes = site.outcomes("j");
            assert_eq!(outcomes.first().copied().flatten().filter(|_| left.is_some()), left);
            assert_eq!(outcomes.last().copied().flatten(), Some(JobOutcome::Ok), "{gone}");
            assert_eq!(site.row("j").errors, 0);
        }
    }
}
