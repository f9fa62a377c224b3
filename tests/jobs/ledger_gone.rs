//! The ledger cannot be reached: nothing starts, nothing that has ended is forgotten while its lock
//! lasts, and what cannot be put on record is told.

use std::time::Duration;

use onedrop::ledger::JobOutcome;

use crate::place::{SOON, ended, timed};
use crate::site::{JobSite, exists, job};
use crate::support::wait_until;

const WAITS: &str = "touch began; while [ ! -e go ]; do sleep 0.02; done; touch ended; exit 4";

#[test]
fn without_it_nothing_starts() {
    let mut site = JobSite::with_postgres(&job("j", "touch ran", ""));
    site.postgres().stop_immediate();
    let end = site.run(&["j"]);
    assert_eq!((end.code, &*end.out), (Some(125), ""), "{end:?}");
    assert!(end.err.starts_with("onedrop: ledger: cannot be reached"), "{end:?}");
    let end = site.tick();
    assert_eq!((end.code, &*end.out), (Some(75), ""), "{end:?}");
    assert!(end.err.contains("ledger: cannot be reached"), "{end:?}");
    assert!(!site.path("ran").exists());
    site.postgres().restart();
    assert_eq!(site.tick().code, Some(0));
    assert_eq!(site.outcomes("j"), [Some(JobOutcome::Ok)]);
}

#[test]
fn an_outage_while_the_command_runs_costs_nothing() {
    let mut site = JobSite::with_postgres(&job("j", WAITS, ""));
    let mut run = site.started(&["run", "j"]);
    assert!(exists(&site.path("began")));
    site.postgres().stop_immediate();
    std::thread::sleep(Duration::from_secs(2));
    site.postgres().restart();
    site.touch("go");
    assert_eq!(run.code(), Some(4));
    let run = site.only_run("j");
    assert_eq!((run.outcome, run.exit), (Some(JobOutcome::Failed), Some(4)));
    assert!(!site.is_locked("j"));
}

/// The result waits for the ledger, also where that hangs and does not refuse.
#[test]
fn an_end_that_the_ledger_cannot_take_is_told_again() {
    for hangs in [false, true] {
        let mut site = JobSite::with_postgres(&job("j", WAITS, ""));
        let mut run = site.started(&["run", "j"]);
        assert!(exists(&site.path("began")));
        match hangs {
            true => site.postgres().pause(),
            false => site.postgres().stop_immediate(),
        }
        site.touch("go");
        assert!(exists(&site.path("ended")));
        std::thread::sleep(Duration::from_secs(3));
        assert!(run.child.try_wait().expect("our child").is_none(), "it waits for the ledger");
        match hangs {
            true => site.postgres().resume(),
            false => site.postgres().restart(),
        }
        assert_eq!(run.code(), Some(4), "hangs: {hangs}");
        let run = site.only_run("j");
        assert_eq!((run.outcome, run.exit), (Some(JobOutcome::Failed), Some(4)));
        assert!(!site.is_locked("j"));
    }
}

/// A monitoring system gives its plugins 10 s, also where the ledger hangs after the login.
#[test]
fn a_check_ends_in_time_where_a_table_is_locked() {
    let mut site = JobSite::with_postgres(&job("j", "true", ""));
    assert_eq!(site.tick().code, Some(0));
    let mut check = site.jobs(&["check"]);
    let postgres = &*site.postgres();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            postgres.psql("BEGIN; LOCK TABLE onedrop_job; SELECT pg_sleep(15); COMMIT");
        });
        let locks = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock'
                     AND relation = 'onedrop_job'::regclass";
        assert!(wait_until(SOON, || postgres.psql(locks).trim() == "1"));
        let end = ended(&mut check);
        assert_eq!((end.code, &*end.err), (Some(3), ""), "{end:?}");
        assert!(end.out.starts_with("JOBS UNKNOWN: ledger: "), "{end:?}");
    });
    assert_eq!(ended(&mut check).code, Some(0));
}

/// After that nobody knows whether the run was the last one.
#[test]
fn an_end_that_could_not_be_put_on_record_is_201_and_says_so() {
    let mut site = JobSite::with_postgres(&job("j", WAITS, ""));
    let child = site.jobs(&["run", "j"]).spawn().expect("binary");
    assert!(exists(&site.path("began")));
    site.postgres().stop_immediate();
    site.touch("go");
    let (end, took) = timed(|| crate::place::end(child.wait_with_output().expect("its end")));
    assert_eq!(end.code, Some(201), "{end:?}");
    assert!(end.err.contains("(exit status 4) is not on record"), "{end:?}");
    assert!(took > Duration::from_secs(20) && took < Duration::from_secs(100), "{took:?}");
    site.postgres().restart();
    site.expire_locks();
    assert_eq!(site.tick().code, Some(0));
    assert_eq!(site.outcomes("j"), [Some(JobOutcome::Crashed)]);
}
