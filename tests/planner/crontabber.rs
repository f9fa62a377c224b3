//! The cases of two systems that came before, crontabber's and its successor cronrun's, by the
//! names of their tests: what each asserts, or what was found wrong with it. Those of two processes
//! at once are in `twice.rs`, those of configurations in `fixtures/config`.

use std::collections::BTreeMap;

use onedrop::exit::PluginStatus;
use onedrop::jobs::job_status::{JobStanding, JobsSeen};
use onedrop::jobs::plan::{self, JobStep, LockSight};
use onedrop::ledger::JobOutcome;

use crate::world::{World, jobs, shown, try_jobs, utc};

/// The jobs of a configuration, in the order of a pass.
fn order(text: &str) -> Vec<String> {
    jobs(text).into_iter().map(|job| job.name).collect()
}

/// Jobs by name, and what each depends on.
fn depending(jobs: &[(&str, &[&str])]) -> String {
    let lines = jobs.iter().map(|(name, others)| {
        format!("[{name}]\nschedule = \"@daily\"\ndepends_on = {others:?}\n")
    });
    lines.collect()
}

#[test]
fn topological_sort() {
    let sorted = |jobs: &[(&str, &[&str])]| order(&depending(jobs)).join(" ");
    assert_eq!(sorted(&[("a", &[]), ("b", &["a"]), ("c", &["b"])]), "a b c", "already right");
    assert_eq!(sorted(&[("a", &["b"]), ("b", &["c"]), ("c", &[])]), "c b a", "reversed");
    let levels: &[(&str, &[&str])] =
        &[("a", &["d"]), ("b", &[]), ("c", &["b"]), ("d", &["b", "c"])];
    assert_eq!(sorted(levels), "b c d a", "three levels");
    let trees: &[(&str, &[&str])] = &[("a", &["x"]), ("b", &["a"]), ("x", &[]), ("y", &["x"])];
    assert_eq!(sorted(trees), "x a b y", "two trees");
    // test_reorder_dag_on_joblist: whatever the order in the file.
    assert_eq!(sorted(&[("z", &[]), ("a", &["z"])]), "z a");
}

/// test_circular_no_roots, test_circular_one_root_still_circular: the error has file and line.
#[test]
fn circular() {
    let no_roots = [("a", &["b"][..]), ("b", &["c"]), ("c", &["a"])];
    let one_root = [("r", &[][..]), ("x", &["r", "y"]), ("y", &["x"])];
    for (circle, named) in [(no_roots, "a -> b -> c -> a"), (one_root, "x -> y -> x")] {
        let errors = try_jobs(&depending(&circle)).expect_err("a circle");
        assert!(errors.contains(&format!("each waits for the next for ever: {named}")), "{errors}");
    }
}

#[test]
fn basic_run_job() {
    let mut world = World::new("[a]\nschedule = \"@daily\"", "2026-05-01 12:00");
    world.run_until("2026-05-03 12:00");
    assert_eq!(world.story("a"), ["ok 2026-05-02 00:00", "ok 2026-05-03 00:00"]);
}

#[test]
fn run_with_excess_whitespace() {
    let world = World::new("[a]\nschedule = \"  0   3  * *\\t* \"", "2026-05-01 12:00");
    assert_eq!(world.next("a"), "2026-05-02 03:00");
}

/// test_basic_run_job_with_hour, `3d|04:00`: days count from the last start, at the clock's time
/// also where clocks are put forward, and a run that fails or is late moves no time of the day.
#[test]
fn basic_run_job_with_hour() {
    let text = "[a]\nevery = \"3d at 04:00\"\ntimezone = \"Europe/London\"\nretry = \"30m\"";
    let mut world = World::new(text, "2026-03-26 12:00");
    assert_eq!(world.next("a"), "2026-03-27 04:00", "a new one waits for the time of the day");
    world.run_until("2026-03-30 02:59");
    world.at("2026-03-30 03:01").tick();
    world.at("2026-03-30 03:05").fail("a");
    world.run_until("2026-04-04 12:00");
    // No host was there.
    world.at("2026-04-07 09:00").run_all();
    world.run_until("2026-04-10 12:00");
    let story = [
        "ok 2026-03-27 04:00",
        "failed 2026-03-30 03:00",
        "ok 2026-03-30 03:00 try 2 retry",
        "ok 2026-04-02 03:00",
        "ok 2026-04-05 03:00 backfill",
        "ok 2026-04-10 03:00",
    ];
    assert_eq!(world.story("a"), story);
}

/// A run for 23:59 that starts after midnight is still that day's: the next comes in time.
#[test]
fn a_start_after_midnight_is_of_the_day_before() {
    let mut world = World::new("[a]\nevery = \"1d at 23:59\"", "2026-03-26 12:00");
    for day in 27..30 {
        world.at(&format!("2026-03-{day} 00:00:30")).run_all();
    }
    let story = ["ok 2026-03-26 23:59", "ok 2026-03-27 23:59", "ok 2026-03-28 23:59"];
    assert_eq!(world.story("a"), story);
}

/// A first run that crashed left no next time there, and the job never ran again.
#[test]
fn run_into_error_first_time() {
    let mut world = World::new("[a]\nschedule = \"@daily\"", "2026-05-01 12:00");
    world.at("2026-05-02 00:00").tick();
    world.at("2026-05-02 00:01").fail("a");
    let row = world.row("a");
    assert_eq!((row.errors, row.last_success), (1, None));
    assert_eq!(row.next_due, Some(utc("2026-05-02 00:00")));
    world.run_until("2026-05-02 00:30");
    assert_eq!(world.story("a"), ["failed 2026-05-02 00:00", "ok 2026-05-02 00:00 try 2 retry"]);
}

/// test_retry_errors_sooner
#[test]
fn retry_errors_sooner() {
    let mut world = World::new("[a]\nschedule = \"0 0 * * 1\"", "2026-05-01 12:00");
    world.at("2026-05-04 00:00").tick();
    world.fail("a");
    assert_eq!(world.next("a"), "2026-05-04 00:05", "not next week");
}

/// test_run_all_with_failing_dependency: the first failed, so the second does not run; once it has
/// succeeded, it does.
#[test]
fn dependency_failed() {
    let mut world = World::new(&depending(&[("foo", &[]), ("bar", &["foo"])]), "2026-05-01 12:00");
    world.at("2026-05-02 00:00");
    assert_eq!(world.tick(), ["foo"]);
    world.fail("foo");
    assert!(world.tick().is_empty());
    let step = world.plan("bar", LockSight::NotOurs).step;
    assert_eq!(step, JobStep::WaitsFor(vec!["foo (failed)".to_owned()]));
    world.run_until("2026-05-02 00:30");
    assert_eq!(world.story("bar"), ["ok 2026-05-02 00:00"]);
}

/// test_run_all_with_failing_dependency_without_errors_but_old: it succeeded, a long time ago.
#[test]
fn dependency_overdue() {
    let text = depending(&[("foo", &[]), ("bar", &["foo"])]);
    let mut world = World::new(&text, "2026-05-01 12:00");
    world.at("2026-05-02 00:00").run_all();
    assert_eq!(world.story("bar"), ["ok 2026-05-02 00:00"]);
    // Two days later bar alone is looked at.
    world.at("2026-05-04 12:00");
    assert!(!world.starts("bar", LockSight::NotOurs));
    let step = world.plan("bar", LockSight::NotOurs).step;
    assert_eq!(step, JobStep::WaitsFor(vec!["foo".to_owned()]));
    let order = world.tick();
    assert_eq!(order, ["foo"]);
    world.succeed("foo");
    assert_eq!(world.tick(), ["bar"]);
}

/// test_run_all_basic_with_failing_dependency_without_errors: a dependency that has never run.
#[test]
fn dependency_that_has_never_run() {
    let text = "[foo]\nschedule = \"0 5 * * *\"\n[bar]\nevery = \"1h\"\ndepends_on = [\"foo\"]";
    let mut world = World::new(text, "2026-05-01 12:00");
    for _ in 0..20 {
        assert!(world.passes(1800).tick().is_empty());
    }
    world.at("2026-05-02 05:00").run_all();
    assert_eq!(world.story("bar").len(), 1);
}

/// test_basic_job_at_specific_hour, test_basic_run_job_with_hour: late one day, on time the next.
#[test]
fn job_at_a_specific_hour() {
    let mut world = World::new("[a]\nschedule = \"5 18 * * *\"", "2026-05-01 12:00");
    world.at("2026-05-01 19:40").run_all();
    assert_eq!(world.next("a"), "2026-05-02 18:05");
    world.at("2026-05-02 18:04:59").run_all();
    world.at("2026-05-02 18:05").run_all();
    assert_eq!(world.story("a"), ["ok 2026-05-01 18:05 backfill", "ok 2026-05-02 18:05"]);
}

const BACKFILL: &str = "[a]\nschedule = \"0 10 * * *\"\nbackfill = \"all\"";

/// test_automatic_backfill_basic_job, test_postgres_job_with_backfill_3_days_back: each day that
/// was missed gets a run with its own date.
#[test]
fn automatic_backfill() {
    let mut world = World::new(BACKFILL, "2026-05-01 12:00");
    world.at("2026-05-02 10:00").run_all();
    world.at("2026-05-05 10:00").run_all();
    assert_eq!(
        world.story("a"),
        [
            "ok 2026-05-02 10:00",
            "ok 2026-05-03 10:00 backfill",
            "ok 2026-05-04 10:00 backfill",
            "ok 2026-05-05 10:00",
        ]
    );
}

/// test_backfilling_failling_midway: Tuesday succeeds, Wednesday fails, Thursday is not tried; on
/// Friday it goes on with Wednesday, and does not do Tuesday again.
#[test]
fn backfilling_failing_midway() {
    let mut world = World::new(BACKFILL, "2026-05-04 12:00");
    world.at("2026-05-07 12:00");
    assert_eq!(world.tick(), ["a"]);
    world.succeed("a");
    assert_eq!(world.row("a").last_success_due, Some(utc("2026-05-05 10:00")));
    assert_eq!(world.tick(), ["a"]);
    world.fail("a");
    assert!(world.tick().is_empty(), "Thursday waits for Wednesday");
    assert_eq!(world.row("a").last_success_due, Some(utc("2026-05-05 10:00")));
    world.at("2026-05-08 12:00").run_all();
    assert_eq!(
        world.story("a"),
        [
            "ok 2026-05-05 10:00 backfill",
            "failed 2026-05-06 10:00 backfill",
            "ok 2026-05-06 10:00 try 2 retry",
            "ok 2026-05-07 10:00 backfill",
            "ok 2026-05-08 10:00 backfill",
        ]
    );
}

/// test_backfilling_with_configured_time_slow_job, test_slow_backfilled_timed_daily_job: it starts
/// two minutes late one day and a second early another; no day is left out and none is twice.
#[test]
fn slow_backfilled_timed_daily_job() {
    let mut world = World::new(BACKFILL, "2026-05-01 12:00");
    for (start, end) in [
        ("2026-05-02 10:02", "2026-05-02 11:00"),
        ("2026-05-03 10:00:01", "2026-05-03 10:02:30"),
        ("2026-05-04 10:00", "2026-05-05 10:30"),
        ("2026-05-05 10:31", "2026-05-05 10:32"),
    ] {
        assert_eq!(world.at(start).tick(), ["a"]);
        world.at(end).succeed("a");
    }
    let days: Vec<_> = world.runs.iter().map(|run| shown(run.due)).collect();
    let expected = ["2026-05-02 10:00", "2026-05-03 10:00", "2026-05-04 10:00", "2026-05-05 10:00"];
    assert_eq!(days, expected);
}

/// test_slow_backfilled_timed_daily_job_first_failure: without a success on record, it goes on from
/// its first day.
#[test]
fn backfill_whose_first_run_failed() {
    let mut world = World::new(BACKFILL, "2026-05-01 12:00");
    world.at("2026-05-02 10:00").tick();
    world.fail("a");
    world.at("2026-05-03 10:00").run_all();
    assert_eq!(
        world.story("a"),
        ["failed 2026-05-02 10:00", "ok 2026-05-02 10:00 try 2 retry", "ok 2026-05-03 10:00",]
    );
}

/// test_reset_job: its state is forgotten; that it was seen before is not.
#[test]
fn reset_job() {
    let mut world = World::new(BACKFILL, "2026-05-01 12:00");
    world.at("2026-05-04 12:00").tick();
    world.fail("a");
    let row = plan::reset(&world.job("a"), world.row("a"), "root on mx1", world.now);
    let (row, skipped) = row;
    world.write(row, skipped, None);
    assert_eq!(world.row("a").errors, 0);
    assert_eq!(world.next("a"), "2026-05-05 10:00", "nothing is made up for");
}

/// test_audit_ghosts: a job that was taken out of the configuration is on record, runs no more and
/// keeps nothing else from running. Back again, it goes on where it was.
#[test]
fn removed_job() {
    let both = "[a]\nschedule = \"0 10 * * *\"\n[b]\nschedule = \"0 10 * * *\"";
    let mut world = World::new(both, "2026-05-01 12:00");
    world.jobs = jobs("[b]\nschedule = \"0 10 * * *\"");
    world.run_until("2026-05-03 12:00");
    assert_eq!(world.story("b").len(), 2);
    assert_eq!(world.story("a").len(), 0);
    assert_eq!(world.rows.len(), 2, "the ghost stays until somebody removes it");
    world.jobs = jobs(both);
    world.run_until("2026-05-03 12:10");
    let story = ["skipped_missed 2026-05-02 10:00", "ok 2026-05-03 10:00 backfill"];
    assert_eq!(world.story("a"), story);
}

/// cronrun: `--force` went past the lock. Here it plans a run only for the holder of the lock, and
/// never beside one that is on record as open.
#[test]
fn force_keeps_the_lock() {
    let mut world = World::new("[a]\nschedule = \"0 10 * * *\"", "2026-05-01 12:00");
    world.at("2026-05-02 10:00").tick();
    let plan = plan::force(&world.job("a"), &world.rows, None, world.now, LockSight::NotOurs);
    let plan = plan.expect("a plan");
    assert_eq!((plan.step, plan.changed), (JobStep::Open, false));
}

/// cronrun: test_zombie. A job whose process is gone is taken over after a while; here as soon as
/// its lock is free, and it counts as a failure.
#[test]
fn zombie() {
    let mut world = World::new("[a]\nschedule = \"0 10 * * *\"", "2026-05-01 12:00");
    world.at("2026-05-02 10:00").tick();
    for hours in [1, 12, 25] {
        world.passes(hours * 3600);
        assert_eq!(world.plan("a", LockSight::NotOurs).step, JobStep::Open, "however old");
    }
    let newest = utc("2026-05-03 10:00");
    let plan = world.plan("a", LockSight::Ours);
    assert!(matches!(plan.step, JobStep::Run { due, try_no: 1, .. } if due == newest));
    assert_eq!(plan.row.errors, 1);
    assert_eq!(plan.crashed.and_then(|run| run.outcome), Some(JobOutcome::Crashed));
}

/// cronrun: ages were the seconds of a day, so a job stuck for 25 hours was one of one hour.
#[test]
fn ages_are_whole() {
    let text = "[a]\nschedule = \"0 10 * * *\"\nlate = \"24h\"";
    let mut world = World::new(text, "2026-05-01 12:00");
    world.at("2026-05-03 09:00");
    let row = plan::pause(&world.job("a"), Some(world.row("a")), "", None, world.now);
    world.write(row, Vec::new(), None);
    let row = plan::resume(world.row("a"), world.now);
    world.write(row, Vec::new(), None);
    assert!(world.at("2026-05-03 10:00").starts("a", LockSight::NotOurs));
    // 25 hours after its time, which is 1 modulo a day.
    let mut world =
        World::new("[a]\nschedule = \"0 10 1 * *\"\nlate = \"24h\"", "2026-05-10 12:00");
    assert!(!world.at("2026-06-02 11:00").starts("a", LockSight::NotOurs));
    assert_eq!(world.story("a"), ["skipped_late 2026-06-01 10:00"]);
}

/// A busy job ended the whole pass there: nothing after it ran.
#[test]
fn a_busy_job_does_not_end_the_pass() {
    let text = "[a]\nschedule = \"* * * * *\"\n[b]\nschedule = \"* * * * *\"";
    let mut world = World::new(text, "2026-05-01 12:00:30");
    assert_eq!(world.at("2026-05-01 12:01").tick(), ["a", "b"]);
    world.succeed("b");
    assert_eq!(world.at("2026-05-01 12:02").tick(), ["b"]);
}

/// How jobs stand for a monitoring system; the lines are in `tests/commands/jobs/check.rs`.
fn nagios(world: &World) -> PluginStatus {
    let (now, rows, holders) = (world.now, world.rows.clone(), BTreeMap::new());
    let seen = JobsSeen { now, rows, holders };
    let all = world.jobs.iter().map(|job| JobStanding::of(job, &world.jobs, &seen).status());
    all.max().expect("a job")
}

/// test_nagios_ok
#[test]
fn nagios_ok() {
    let text = "[basic]\nschedule = \"@daily\"\n[foo]\nschedule = \"@daily\"";
    let mut world = World::new(text, "2026-05-01 12:00");
    world.at("2026-05-02 00:00").run_all();
    assert_eq!(nagios(&world), PluginStatus::Ok);
}

/// test_nagios_warning: a job that makes up for all has failed once; the second failure is
/// critical.
#[test]
fn nagios_warning() {
    let text = "[basic]\nschedule = \"@daily\"\n\
                [trouble]\nschedule = \"@daily\"\nbackfill = \"all\"";
    let mut world = World::new(text, "2026-05-01 12:00");
    assert_eq!(world.at("2026-05-02 00:00").tick(), ["basic", "trouble"]);
    world.succeed("basic");
    world.fail("trouble");
    assert_eq!(nagios(&world), PluginStatus::Warning);
    assert_eq!(world.at("2026-05-02 00:05").tick(), ["trouble"]);
    world.fail("trouble");
    assert_eq!(nagios(&world), PluginStatus::Critical);
}

/// test_nagios_critical, test_nagios_multiple_messages
#[test]
fn nagios_critical() {
    let text = "[basic]\nschedule = \"@daily\"\n[trouble]\nschedule = \"@daily\"";
    let mut world = World::new(text, "2026-05-01 12:00");
    world.at("2026-05-02 00:00").tick();
    world.succeed("basic");
    world.fail("trouble");
    assert_eq!(nagios(&world), PluginStatus::Critical);
    world.at("2026-05-02 00:05").run_all();
    assert_eq!(nagios(&world), PluginStatus::Ok);
}
