//! Odd cases: clocks that are wrong, configurations that change, and long absences.

use std::time::{Duration, Instant, SystemTime};

use onedrop::jobs::plan::{self, JobStep, LockSight, MOST_COUNTED};
use onedrop::ledger::JobTrigger;

use crate::world::{World, jobs, shown, utc};

const HOURLY: &str = "[a]\nschedule = \"0 * * * *\"";

/// What ran in the hour that comes again does not run again.
#[test]
fn a_clock_that_steps_back_an_hour() {
    for text in [HOURLY, "[a]\nschedule = \"0 * * * *\"\nbackfill = \"all\""] {
        let mut world = World::new(text, "2026-05-01 11:30");
        world.run_until("2026-05-01 13:30");
        let before = world.story("a");
        world.at("2026-05-01 12:30").run_all();
        world.run_until("2026-05-01 13:59");
        assert_eq!(world.story("a"), before);
        world.run_until("2026-05-01 14:10");
        assert_eq!(world.story("a").len(), before.len() + 1);
    }
    // In the middle of a run, and while a retry waits.
    let mut world = World::new(HOURLY, "2026-05-01 11:30");
    world.at("2026-05-01 12:00").tick();
    world.at("2026-05-01 11:10").fail("a");
    let row = world.row("a");
    assert_eq!(row.retry_at, Some(utc("2026-05-01 11:15")));
    world.at("2026-05-01 11:15").run_all();
    assert_eq!(world.story("a").last().unwrap(), "ok 2026-05-01 12:00 try 2 retry");
    let mut world = World::new("[a]\nevery = \"15m\"", "2026-05-01 12:00");
    world.succeed("a");
    world.at("2026-05-01 11:00").tick();
    assert_eq!(world.next("a"), "2026-05-01 11:15", "not in 75 minutes");
}

/// The ledger's clock was a year ahead for a while. Once it is right, the schedule goes on.
#[test]
fn a_clock_that_was_a_year_ahead() {
    for backfill in ["none", "latest", "all"] {
        let text = format!("{HOURLY}\nbackfill = \"{backfill}\"\nbackfill_most = 2");
        let mut world = World::new(&text, "2026-05-01 11:30");
        world.at("2026-05-01 12:00").run_all();
        world.at("2027-05-01 12:00:30").run_all();
        world.at("2027-05-01 13:00").tick();
        world.fail("a");
        assert!(world.row("a").retry_at > Some(utc("2027-05-01 13:00")));
        world.at("2026-05-01 13:20").run_all();
        assert_eq!(world.next("a"), "2026-05-01 14:00", "{backfill}");
        world.run_until("2026-05-01 15:10");
        let story = world.story("a");
        let last = ["ok 2026-05-01 14:00", "ok 2026-05-01 15:00"];
        assert_eq!(story[story.len() - 2..], last, "{backfill}");
    }
    let mut world = World::new("[a]\nevery = \"15m\"", "2026-05-01 12:00");
    world.succeed("a");
    world.at("2027-05-01 12:00").run_all();
    world.at("2026-05-01 12:10").run_all();
    assert_eq!(world.next("a"), "2026-05-01 12:25");
}

/// A year later come the hours that are on record already. The ledger refuses a second run of one,
/// and it is passed over; the job stands still at none.
#[test]
fn hours_that_ran_under_a_clock_that_was_ahead() {
    for backfill in ["none", "latest", "all"] {
        let text = format!("{HOURLY}\nbackfill = \"{backfill}\"");
        let mut world = World::new(&text, "2026-05-01 11:30");
        world.at("2026-05-01 12:30");
        world.at("2026-05-02 14:00");
        // As if these had run.
        let job = world.job("a");
        let plan = plan::force(
            &job,
            &world.rows,
            Some((utc("2026-05-03 12:00"), 0)),
            world.now,
            LockSight::Ours,
        );
        world.take(plan.expect("a plan"));
        world.succeed("a");
        let row = plan::reset(&job, world.row("a"), utc("2026-05-03 11:30"));
        world.write(row, Vec::new(), None);
        world.at("2026-05-03 12:00");
        let refused = world.plan("a", LockSight::NotOurs);
        assert!(matches!(refused.step, JobStep::Run { try_no: 1, .. }), "{backfill}");
        let passed = plan::pass_over(&job, refused);
        assert!(passed.changed);
        let again = plan::pass_over(&job, passed.clone());
        assert_eq!(again.row, passed.row, "once is enough");
        world.take(passed);
        assert_eq!(world.next("a"), "2026-05-03 13:00", "{backfill}");
    }
}

/// Somebody has deleted the rows of runs, also that of the one that is open.
#[test]
fn a_crashed_run_that_is_not_on_record_any_more() {
    let mut world = World::new(HOURLY, "2026-05-01 11:30");
    world.at("2026-05-01 12:00").tick();
    world.runs.clear();
    let plan = world.at("2026-05-01 13:00").plan("a", LockSight::Ours);
    let passed = plan::pass_over(&world.job("a"), plan);
    assert!(passed.crashed.is_some(), "it may be there");
    let passed = plan::pass_over(&world.job("a"), passed);
    assert_eq!(passed.crashed, None);
    world.take(passed);
    assert_eq!(world.next("a"), "2026-05-01 14:00");
}

#[test]
fn a_due_time_in_a_far_past() {
    for backfill in ["none", "latest", "all"] {
        let text = format!(
            "[a]\nschedule = \"* * * * *\"\nbackfill = \"{backfill}\"\nbackfill_most = 10000"
        );
        let mut world = World::new(&text, "2026-05-01 11:30");
        for due in [SystemTime::UNIX_EPOCH, utc("1999-12-31 23:59:59.999")] {
            let mut row = world.row("a").clone();
            row.next_due = Some(due);
            world.write(row, Vec::new(), None);
            let start = Instant::now();
            let plan = world.plan("a", LockSight::NotOurs);
            assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
            let [skip] = &plan.skipped[..] else { panic!("{:?}", plan.skipped) };
            assert_eq!((skip.due, skip.occurrences), (due, MOST_COUNTED));
            let JobStep::Run { due, .. } = plan.step else { panic!("{:?}", plan.step) };
            let expected = if backfill == "all" { "2026-04-24 12:51" } else { "2026-05-01 11:30" };
            assert_eq!(shown(due), expected);
            assert_eq!(skip.last_due, due - Duration::from_secs(60));
        }
    }
}

/// A year of minutes, five times a reason.
#[test]
fn thousands_of_missed_times_are_planned_at_once() {
    let text = "[a]\nschedule = \"* * * * *\"\ntimezone = \"Europe/London\"\nlate = \"300d\"";
    let mut world = World::new(text, "2025-05-01 11:30:30");
    world.at("2025-05-01 11:31").tick();
    world.at("2025-12-01 12:00").succeed("a");
    let row = plan::pause(&world.job("a"), Some(world.row("a")), "", utc("2026-02-01 00:00"));
    world.write(row, Vec::new(), None);
    let row = plan::resume(world.row("a"), utc("2026-03-01 00:00"));
    world.write(row, Vec::new(), None);
    world.at("2026-05-01 11:30");
    let start = Instant::now();
    let plan = world.plan("a", LockSight::NotOurs);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    let mut skips = plan.skipped.iter().map(|skip| {
        (skip.outcome.unwrap().as_str(), shown(skip.due), shown(skip.last_due), skip.occurrences)
    });
    let mut next = |outcome, due: &str, last: &str| {
        let expected = (outcome, due.to_owned(), last.to_owned(), MOST_COUNTED);
        assert_eq!(skips.next(), Some(expected));
    };
    next("skipped_late", "2025-05-01 11:32", "2025-07-05 11:29");
    next("skipped_busy", "2025-07-05 11:30", "2025-12-01 11:59");
    next("skipped_missed", "2025-12-01 12:00", "2026-01-31 23:59");
    next("skipped_paused", "2026-02-01 00:00", "2026-02-28 23:59");
    next("skipped_missed", "2026-03-01 00:00", "2026-05-01 11:29");
    assert_eq!(skips.next(), None);
    assert!(matches!(plan.step, JobStep::Run { trigger: JobTrigger::Schedule, .. }));
}

#[test]
fn a_job_renamed_is_another_job() {
    let mut world = World::new(HOURLY, "2026-05-01 11:30");
    world.run_until("2026-05-01 12:30");
    world.jobs = jobs("[b]\nschedule = \"0 * * * *\"");
    world.at("2026-05-01 15:30").run_all();
    assert_eq!(world.next("b"), "2026-05-01 16:00", "nothing is made up for one that is new");
    assert_eq!(world.story("a"), ["ok 2026-05-01 12:00"]);
}

#[test]
fn a_changed_schedule_begins_from_now() {
    let mut world = World::new(HOURLY, "2026-05-01 11:30");
    world.run_until("2026-05-01 12:30");
    // 13:00 was missed under the old one.
    world.jobs = jobs("[a]\nschedule = \"30 14 * * *\"");
    world.at("2026-05-01 13:10").run_all();
    assert_eq!(world.story("a"), ["ok 2026-05-01 12:00", "skipped_missed 2026-05-01 13:00"]);
    assert_eq!(world.runs[1].reason, "the schedule was changed before it had run");
    assert_eq!(world.next("a"), "2026-05-01 14:30");
    // Another zone is another schedule. A retry of the old one is none any more.
    world.at("2026-05-01 14:30").tick();
    world.fail("a");
    world.jobs = jobs("[a]\nschedule = \"30 14 * * *\"\ntimezone = \"Europe/London\"");
    world.at("2026-05-01 14:40").run_all();
    assert_eq!(world.next("a"), "2026-05-02 13:30");
    assert_eq!(world.row("a").errors, 1, "its last run has failed all the same");
    // `every` counts from the last start.
    world.jobs = jobs("[a]\nevery = \"1h\"");
    world.run_all();
    assert_eq!(world.next("a"), "2026-05-01 15:30");
    world.jobs = jobs("[a]\nevery = \"1m\"");
    assert_eq!(world.tick(), ["a"]);
}

/// A process that was started before the change ends its run under the old schedule.
#[test]
fn a_schedule_that_changes_while_a_run_is_open() {
    let mut world = World::new(HOURLY, "2026-05-01 11:30");
    world.at("2026-05-01 12:00").tick();
    let old = world.jobs.clone();
    world.jobs = jobs("[a]\nschedule = \"30 14 * * *\"");
    assert!(world.at("2026-05-01 12:05").tick().is_empty());
    assert_eq!(world.row("a").schedule, "0 * * * * UTC", "while it is open nothing changes");
    let new = std::mem::replace(&mut world.jobs, old);
    world.at("2026-05-01 12:10").succeed("a");
    world.jobs = new;
    world.tick();
    assert_eq!(world.row("a").schedule, "30 14 * * * UTC");
    assert_eq!(world.next("a"), "2026-05-01 14:30");
    // It crashed, and the configuration changed meanwhile.
    let mut world = World::new(HOURLY, "2026-05-01 11:30");
    world.at("2026-05-01 12:00").tick();
    world.jobs = jobs("[a]\nschedule = \"30 14 * * *\"");
    assert!(!world.at("2026-05-01 12:05").starts("a", LockSight::Ours));
    assert_eq!(world.story("a"), ["crashed 2026-05-01 12:00"]);
    assert_eq!(world.next("a"), "2026-05-01 14:30");
}

/// A run that starts late by its splay is not late.
#[test]
fn late_shorter_than_splay() {
    let text = "[a]\nschedule = \"0 3 * * *\"\nsplay = \"10h\"\nlate = \"1m\"";
    let mut world = World::new(text, "2026-05-01 12:00");
    let delay = plan::delay(&world.job("a"));
    assert!(delay > Duration::from_secs(600), "{delay:?}");
    world.now = utc("2026-05-02 03:00") + delay;
    assert_eq!(world.tick(), ["a"]);
    world.succeed("a");
    world.now = utc("2026-05-03 03:00") + delay + Duration::from_secs(61);
    assert!(world.tick().is_empty());
    assert_eq!(world.story("a"), ["ok 2026-05-02 03:00", "skipped_late 2026-05-03 03:00"]);
}

#[test]
fn every_second() {
    let mut world = World::new("[a]\nevery = \"1s\"", "2026-05-01 12:00");
    world.succeed("a");
    assert!(world.passes(0).tick().is_empty());
    for _ in 0..100 {
        assert_eq!(world.passes(1).tick(), ["a"]);
        world.succeed("a");
    }
    assert_eq!(world.at("2026-06-01 12:00").tick(), ["a"], "once");
    world.fail("a");
    assert_eq!(world.next("a"), "2026-06-01 12:00:01", "its next time, before its retry");
    // One that is due all the time does not starve a job that depends on it.
    let text = "[k]\nevery = \"1s\"\n[j]\nschedule = \"0 * * * *\"\ndepends_on = [\"k\"]";
    let mut world = World::new(text, "2026-05-01 12:00:30");
    world.succeed("k");
    world.at("2026-05-01 13:00:10").tick();
    world.at("2026-05-01 13:00:20").succeed("k");
    assert_eq!(world.tick(), ["k", "j"]);
}

#[test]
fn the_29th_of_february() {
    let mut world = World::new("[a]\nschedule = \"0 0 29 2 *\"", "2026-05-01 12:00");
    assert_eq!(world.next("a"), "2028-02-29 00:00");
    world.at("2033-01-01 00:00").run_all();
    let story = ["skipped_missed 2028-02-29 00:00", "ok 2032-02-29 00:00 backfill"];
    assert_eq!(world.story("a"), story);
    assert_eq!(world.next("a"), "2036-02-29 00:00");
}

/// The next time was computed by rules that hold no more (tzdata was updated): a time to come that
/// the schedule does not have is computed anew, one that has come is run.
#[test]
fn a_time_zone_whose_rules_change() {
    let text = "[a]\nschedule = \"0 3 * * *\"\ntimezone = \"Europe/London\"";
    let mut world = World::new(text, "2026-07-01 12:00");
    for (on_record, next) in [
        ("2026-07-02 03:00", "2026-07-02 02:00"),
        ("2026-07-02 01:00", "2026-07-02 02:00"),
        ("2026-07-02 02:00", "2026-07-02 02:00"),
    ] {
        let mut row = world.row("a").clone();
        row.next_due = Some(utc(on_record));
        world.write(row, Vec::new(), None);
        world.tick();
        assert_eq!(world.next("a"), next, "{on_record} on record");
    }
    let mut row = world.row("a").clone();
    row.next_due = Some(utc("2026-07-02 01:00"));
    world.write(row, Vec::new(), None);
    world.at("2026-07-02 01:00:30").run_all();
    assert_eq!(world.story("a"), ["ok 2026-07-02 01:00"]);
    assert_eq!(world.next("a"), "2026-07-02 02:00");
}

/// Two plans of one moment are equal, and one that is on record gives nothing more to write.
#[test]
fn a_plan_on_record_changes_nothing_more() {
    let text = "[k]\nschedule = \"0 3 * * *\"\n[j]\nschedule = \"0 * * * *\"\ndepends_on = [\"k\"]";
    let mut world = World::new(text, "2026-05-01 12:00");
    world.at("2026-05-01 17:20").tick();
    let plan = world.plan("j", LockSight::NotOurs);
    assert_eq!(plan.step, JobStep::WaitsFor(vec!["k".to_owned()]));
    assert!(!plan.changed && plan.skipped.is_empty());
    world.at("2026-05-01 17:59");
    assert!(!world.plan("j", LockSight::NotOurs).changed);
    assert!(world.at("2026-05-01 18:00").plan("j", LockSight::NotOurs).changed);
}
