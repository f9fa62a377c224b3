//! The same job twice at once, by threads that each do what a process does: claim the job's lock,
//! read, plan, begin, work, end, give the lock back. Processes: `tests/jobs`.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use onedrop::config::JobSettings;
use onedrop::jobs::lock_name;
use onedrop::jobs::plan::{self, JobStep, LockSight, RunEnd};
use onedrop::ledger::memory::MemoryLedger;
use onedrop::ledger::{
    JobChange, JobOutcome, JobRow, JobRun, Jobs, LockClaim, LockHolder, LockRequest, LockTry,
    Locks, RandomValue,
};

use crate::world::jobs;

const LEASE: Duration = Duration::from_secs(60);

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// What one process came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Came {
    ToRun,
    /// Another had the lock.
    TooEarly,
    /// Nothing was due any more.
    TooLate,
}

fn claim(ledger: &MemoryLedger, job: &str) -> Option<LockClaim> {
    let name = lock_name(job).expect("a name");
    let holder = LockHolder::default();
    let owner = RandomValue::default();
    let request = LockRequest {
        name: &name,
        slots: &[1],
        owner,
        lease: LEASE,
        holder: &holder,
        waiting: None,
    };
    match ledger.take_lock(&request, soon()).expect("a ledger") {
        LockTry::Taken { claim, .. } => Some(claim),
        LockTry::Busy(_) => None,
    }
}

fn change(
    ledger: &MemoryLedger,
    seen: Option<i64>,
    (row, added, ended): &(JobRow, Vec<JobRun>, Option<JobRun>),
) -> bool {
    let value = RandomValue::default();
    let change = JobChange { seen, value, row, added, ended: ended.as_ref() };
    ledger.change_job(&change, soon()).expect("a ledger")
}

/// Begins what is due of the job, and writes what else there is to write; `None`: nothing is due,
/// or another has begun it.
fn begins(ledger: &MemoryLedger, job: &JobSettings, epoch: i64) -> Option<JobRun> {
    let read = ledger.jobs(soon()).expect("a ledger");
    let seen = read.jobs.iter().find(|row| row.name == job.name).map(|row| row.revision);
    let all = std::slice::from_ref(job);
    let plan = plan::plan(job, &read.jobs, all, read.now, LockSight::Ours);
    let (is_due, is_new) = (matches!(plan.step, JobStep::Run { .. }), plan.changed);
    let begun = plan::begin(plan, epoch, "mx1", 7, read.now);
    let is_written = (is_due || is_new) && change(ledger, seen, &begun);
    (is_written && is_due).then(|| begun.1.last().expect("a run").clone())
}

/// Ends a run; false: it is not ours any more.
fn ends(ledger: &MemoryLedger, job: &JobSettings, run: &JobRun) -> bool {
    let read = ledger.jobs(soon()).expect("a ledger");
    let row = read.jobs.iter().find(|row| row.name == job.name).expect("a row");
    if row.epoch != run.epoch || row.open != Some((run.due, run.try_no)) {
        return false;
    }
    let (output, reason) = (String::new(), String::new());
    let how = RunEnd { outcome: JobOutcome::Ok, exit: Some(0), signal: None, output, reason };
    let (row_after, run) = plan::end(job, row, run, &how, read.now);
    change(ledger, Some(row.revision), &(row_after, Vec::new(), Some(run)))
}

/// One process, whose command takes until `works` returns.
fn process(ledger: &MemoryLedger, job: &JobSettings, works: impl FnOnce()) -> Came {
    let Some(claim) = claim(ledger, &job.name) else { return Came::TooEarly };
    let run = begins(ledger, job, claim.epoch);
    let came = match &run {
        Some(run) => {
            works();
            assert!(ends(ledger, job, run), "nobody else could end it");
            Came::ToRun
        }
        None => Came::TooLate,
    };
    assert!(ledger.release_lock(&claim, soon()).expect("a ledger"));
    came
}

/// Two processes, the second started once the first runs, or both at one moment.
fn two(ledger: &MemoryLedger, job: &JobSettings, at_once: bool) -> Vec<Came> {
    let together = Arc::new(Barrier::new(2));
    let threads: Vec<_> = (0..2)
        .map(|at| {
            let (ledger, job, together) = (ledger.clone(), job.clone(), Arc::clone(&together));
            thread::spawn(move || {
                if at_once {
                    together.wait();
                    return process(&ledger, &job, || thread::sleep(Duration::from_millis(100)));
                }
                if at == 0 {
                    // The other one comes and goes while this one works.
                    let works = || {
                        together.wait();
                        together.wait();
                    };
                    return process(&ledger, &job, works);
                }
                together.wait();
                let came = process(&ledger, &job, || ());
                together.wait();
                came
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
}

fn hourly() -> JobSettings {
    jobs("[a]\nevery = \"1h\"").remove(0)
}

fn runs_of(ledger: &MemoryLedger, job: &str) -> Vec<(SystemTime, Option<JobOutcome>)> {
    let runs = ledger.job_runs(job, 1000, soon()).expect("a ledger");
    runs.into_iter().map(|run| (run.due, run.outcome)).collect()
}

/// crontabber: two jobs simultaneously, the first time and the second.
#[test]
fn the_same_job_twice_at_once() {
    for _ in 0..20 {
        let (ledger, job) = (MemoryLedger::default(), hourly());
        for time in 1..=3 {
            let came = two(&ledger, &job, true);
            let ran = came.iter().filter(|came| **came == Came::ToRun).count();
            assert_eq!(ran, 1, "{came:?}, the {time}. time");
            assert_eq!(runs_of(&ledger, "a").len(), time);
            ledger.advance(Duration::from_secs(3600));
        }
    }
}

/// crontabber: two jobs almost simultaneously (0.1 s apart), the first time and the second. Its
/// second one found the first's row unlocked and started as well.
#[test]
fn the_same_job_again_a_moment_later() {
    let (ledger, job) = (MemoryLedger::default(), hourly());
    for time in 1..=3 {
        assert_eq!(two(&ledger, &job, false), [Came::ToRun, Came::TooEarly], "the {time}. time");
        assert_eq!(process(&ledger, &job, || ()), Came::TooLate, "it is not due any more");
        assert_eq!(runs_of(&ledger, "a").len(), time);
        ledger.advance(Duration::from_secs(3600));
    }
}

/// crontabber: two distinct jobs simultaneously.
#[test]
fn two_jobs_run_side_by_side() {
    let all = jobs("[a]\nevery = \"1h\"\n[b]\nevery = \"1h\"");
    let (ledger, together) = (MemoryLedger::default(), Arc::new(Barrier::new(2)));
    let threads: Vec<_> = all
        .into_iter()
        .map(|job| {
            let (ledger, together) = (ledger.clone(), Arc::clone(&together));
            // Each waits for the other while it works.
            thread::spawn(move || {
                process(&ledger, &job, || {
                    together.wait();
                })
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().expect("a thread"), Came::ToRun);
    }
}

/// The lock saves work; without it the row's revision and the unique run decide.
#[test]
fn without_a_lock_one_begins() {
    for _ in 0..20 {
        let (ledger, job) = (MemoryLedger::default(), hourly());
        let together = Arc::new(Barrier::new(8));
        let threads: Vec<_> = (1..=8)
            .map(|epoch| {
                let (ledger, job, together) = (ledger.clone(), job.clone(), Arc::clone(&together));
                thread::spawn(move || {
                    let all = std::slice::from_ref(&job);
                    let read = ledger.jobs(soon()).expect("a ledger");
                    let plan = plan::plan(&job, &read.jobs, all, read.now, LockSight::NotOurs);
                    let begun = plan::begin(plan, epoch, "mx1", 7, read.now);
                    together.wait();
                    change(&ledger, None, &begun)
                })
            })
            .collect();
        let begun = threads.into_iter().map(|thread| thread.join().unwrap());
        assert_eq!(begun.filter(|begun| *begun).count(), 1);
        assert_eq!(runs_of(&ledger, "a").len(), 1);
    }
}

/// crontabber: a job that is still on record as ongoing, since a moment ago, since 12 hours and a
/// second (it was taken over), and since 25 hours (which it took for one). Here nothing goes by
/// age: a run goes on as long as its lock is renewed, and has crashed once another has the lock.
#[test]
fn stuck_for_12_hours_and_for_25() {
    for hours in [0, 12, 25, 36, 48] {
        let (ledger, job) = (MemoryLedger::default(), hourly());
        let first = claim(&ledger, "a").expect("the lock");
        let run = begins(&ledger, &job, first.epoch).expect("a run");
        // It goes on for `hours`, and its lock with it.
        for _ in 0..hours * 120 + 1 {
            ledger.advance(Duration::from_secs(30));
            assert!(ledger.renew_lock(&first, LEASE, soon()).expect("a ledger"));
        }
        assert_eq!(process(&ledger, &job, || ()), Came::TooEarly, "after {hours} h");
        // Its host goes away.
        ledger.advance(LEASE + Duration::from_secs(1));
        let second = claim(&ledger, "a").expect("the lock of a host that is gone");
        let retry = begins(&ledger, &job, second.epoch);
        match hours {
            0 => assert_eq!(retry, None, "the first retry is 5m after the start"),
            _ => {
                // An hour after the start its next time has come, which takes its place.
                let next = retry.expect("a run");
                let due = run.due + Duration::from_secs(3600);
                assert_eq!((next.due, next.try_no), (due, 1));
                assert!(ends(&ledger, &job, &next));
            }
        }
        let crashed = (run.due, Some(JobOutcome::Crashed));
        assert_eq!(runs_of(&ledger, "a").last(), Some(&crashed));
    }
}

/// A process that was frozen, and lost its lock, ends its run: only the end of that run changes.
#[test]
fn a_late_end_is_refused_but_in_place_of_the_crash() {
    let (ledger, job) = (MemoryLedger::default(), hourly());
    let first = claim(&ledger, "a").expect("the lock");
    let frozen = begins(&ledger, &job, first.epoch).expect("a run");
    ledger.advance(Duration::from_secs(600));
    let second = claim(&ledger, "a").expect("the lock");
    let retry = begins(&ledger, &job, second.epoch).expect("a retry");
    assert_eq!((retry.due, retry.try_no), (frozen.due, 2));
    assert!(!ends(&ledger, &job, &frozen));
    let read = ledger.jobs(soon()).expect("a ledger");
    let run = JobRun { outcome: Some(JobOutcome::Ok), ended_at: Some(read.now), ..frozen.clone() };
    let zombie = (read.jobs[0].clone(), Vec::new(), Some(run));
    assert!(!change(&ledger, Some(read.jobs[0].revision - 1), &zombie), "by what it has seen");
    let crashed = [(frozen.due, None), (frozen.due, Some(JobOutcome::Crashed))];
    assert_eq!(runs_of(&ledger, "a"), crashed);
    assert!(change(&ledger, Some(read.jobs[0].revision), &zombie));
    assert_eq!(runs_of(&ledger, "a"), [(frozen.due, None), (frozen.due, Some(JobOutcome::Ok))]);
    assert!(ends(&ledger, &job, &retry));
    assert_eq!(ledger.jobs(soon()).expect("a ledger").jobs[0].errors, 0);
}
