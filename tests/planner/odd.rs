//! Odd cases: clocks that are wrong, configurations that change, and long absences.

use std::time::{Duration, Instant, SystemTime};

use onedrop::jobs::plan::{self, EndsRead, JobStep, LockSight, MOST_COUNTED};
use onedrop::ledger::{JobRow, JobTrigger};

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

/// Hours that are on record already, from a clock that was ahead, do not run again; what is skipped
/// on the way to them is on record all the same.
#[test]
fn hours_that_ran_under_a_clock_that_was_ahead() {
    for (backfill, before) in [
        ("none", vec!["skipped_missed 2026-05-03 09:00 to 2026-05-03 11:00, 3 times"]),
        ("latest", vec!["skipped_missed 2026-05-03 09:00 to 2026-05-03 11:00, 3 times"]),
        (
            "all",
            vec![
                "ok 2026-05-03 09:00 backfill",
                "ok 2026-05-03 10:00 backfill",
                "ok 2026-05-03 11:00 backfill",
            ],
        ),
    ] {
        let text = format!("{HOURLY}\nbackfill = \"{backfill}\"");
        let mut world = World::new(&text, "2026-05-03 08:30");
        world.at("2026-05-03 12:30");
        let due = Some((utc("2026-05-03 12:00"), 0));
        world.force("a", due).expect("a run");
        world.succeed("a");
        world.at("2026-05-03 12:00:30").run_all();
        world.run_all();
        let story = world.story("a");
        assert_eq!(story[0], "ok 2026-05-03 12:00 manual");
        assert_eq!(story[1..], before, "{backfill}");
        assert_eq!(world.next("a"), "2026-05-03 13:00", "{backfill}");
    }
}

/// A run by hand for a newer time than the one that is due next.
#[test]
fn a_time_that_was_run_by_hand_is_dealt_with() {
    let text = "[a]\nschedule = \"0 6 * * *\"\nbackfill = \"latest\"";
    let mut world = World::new(text, "2026-12-01 12:00");
    world.at("2026-12-06 09:00").force("a", Some((utc("2026-12-06 06:00"), 0))).expect("a run");
    world.succeed("a");
    world.run_all();
    let skips = "skipped_missed 2026-12-02 06:00 to 2026-12-05 06:00, 4 times";
    assert_eq!(world.story("a"), ["ok 2026-12-06 06:00 manual", skips]);
    assert_eq!(world.next("a"), "2026-12-07 06:00");
    // In the middle of what is skipped.
    world.at("2026-12-10 09:00").force("a", Some((utc("2026-12-08 06:00"), 0))).expect("a run");
    world.succeed("a");
    world.run_all();
    assert_eq!(
        world.story("a")[2..],
        [
            "ok 2026-12-08 06:00 manual",
            "skipped_missed 2026-12-07 06:00 to 2026-12-09 06:00, 3 times",
            "ok 2026-12-10 06:00 backfill",
        ]
    );
    // At its beginning: that is where the ledger refuses.
    world.at("2026-12-13 09:00").force("a", Some((utc("2026-12-13 06:00"), 0))).expect("a run");
    world.fail("a");
    assert_eq!(world.row("a").errors, 0, "an extra run's failure is its own");
    assert_eq!(world.tick(), ["a"], "a failed one is tried again");
    world.succeed("a");
    assert_eq!(
        world.story("a")[5..],
        [
            "failed 2026-12-13 06:00 manual",
            "skipped_missed 2026-12-11 06:00 to 2026-12-12 06:00, 2 times",
            "ok 2026-12-13 06:00 try 2 retry",
        ]
    );
}

#[test]
fn a_time_to_come_is_not_forced() {
    let mut world = World::new(HOURLY, "2026-05-01 11:30");
    let error = world.force("a", Some((utc("2026-05-01 12:00"), 0))).unwrap_err();
    assert_eq!(error, "2026-05-01T12:00:00Z has not come yet");
}

/// Somebody has deleted the rows of runs, also that of the one that is open.
#[test]
fn a_crashed_run_that_is_not_on_record_any_more() {
    let mut world = World::new(HOURLY, "2026-05-01 11:30");
    world.at("2026-05-01 12:00").tick();
    world.runs.clear();
    let plan = world.at("2026-05-01 13:00").plan("a", LockSight::Ours);
    assert!(plan.crashed.is_some());
    assert!(world.take(plan), "the next time runs");
    world.succeed("a");
    assert_eq!(world.story("a"), ["ok 2026-05-01 13:00"]);
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
    let row = plan::pause(&world.job("a"), Some(world.row("a")), "", None, utc("2026-02-01 00:00"));
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

/// `load` is not satisfied by a run of `fetch` for another day than its own.
#[test]
fn a_dependency_has_dealt_with_all_up_to_its_time() {
    let text = "[k]\nschedule = \"0 2 * * *\"\nbackfill = \"all\"\n\
                [j]\nschedule = \"0 2 * * *\"\ndepends_on = [\"k\"]";
    let mut world = World::new(text, "2026-12-01 12:00");
    let waits = JobStep::WaitsFor(vec!["k".to_owned()]);
    // No tick came for three days, and k has run for the newest by hand.
    world.at("2026-12-04 12:00").force("k", Some((utc("2026-12-04 02:00"), 0))).expect("a run");
    world.succeed("k");
    assert_eq!(world.plan("j", LockSight::NotOurs).step, waits);
    // A clock that was ahead.
    let mut row = world.row("k").clone();
    row.last_success_due = Some(utc("2026-12-31 02:00"));
    world.write(row, Vec::new(), None);
    assert_eq!(world.plan("j", LockSight::NotOurs).step, waits);
    while !world.starts("j", LockSight::NotOurs) {
        assert!(world.row("k").next_due <= Some(utc("2026-12-04 02:00")));
        if world.starts("k", LockSight::NotOurs) {
            world.succeed("k");
        }
    }
    assert_eq!(world.row("k").next_due, Some(utc("2026-12-05 02:00")));
}

/// The backlog of the old schedule has its row.
#[test]
fn a_changed_schedule_skips_the_backlog_of_the_old_one() {
    let old = "[a]\nschedule = \"0 3 * * *\"\ntimezone = \"Europe/London\"\nbackfill = \"all\"";
    let new = "[a]\nschedule = \"0 3 * * *\"\nbackfill = \"all\"";
    let mut world = World::new(old, "2026-06-01 12:00");
    world.jobs = jobs(new);
    let plan = world.at("2026-06-05 12:00").plan("a", LockSight::NotOurs);
    assert_eq!(plan.replaced.as_deref(), Some("0 3 * * * Europe/London"));
    world.run_all();
    let skips = "skipped_missed 2026-06-02 02:00 to 2026-06-05 02:00, 4 times";
    assert_eq!(world.story("a"), [skips]);
    assert_eq!(world.runs[0].reason, "the schedule was changed before it had run");
    assert_eq!(world.next("a"), "2026-06-06 03:00");
    // One that was tried has its row already.
    world.at("2026-06-06 03:00").tick();
    world.fail("a");
    world.jobs = jobs(old);
    world.at("2026-06-08 12:00").run_all();
    let skips = "skipped_missed 2026-06-07 03:00 to 2026-06-08 03:00, 2 times";
    assert_eq!(world.story("a")[1..], ["failed 2026-06-06 03:00", skips]);
    // In a zone that this host does not know.
    let mut row = world.row("a").clone();
    row.schedule = "0 3 * * * Mars/Olympus".to_owned();
    world.write(row, Vec::new(), None);
    world.at("2026-06-12 12:00").run_all();
    assert_eq!(world.story("a")[3..], ["skipped_missed 2026-06-09 02:00"]);
    assert_eq!(
        world.runs.last().map(|run| run.reason.as_str()),
        Some(
            "the schedule was changed before it had run; those after it are not known on this host"
        )
    );
}

/// Two hosts look in turns, a minute apart, each with its own configuration: what both have is run.
#[test]
fn hosts_that_write_a_schedule_differently_run_it() {
    let alike = [
        ("17 3 * * *", "17  03 * * *"),
        ("@daily", "0 0 * * *"),
        ("0 4 * JAN,MAY SUN", "00 4 ? 5,1 7"),
        ("*/1 3 * * mon-fri", "* 3 * * 1-5"),
    ];
    for (one, other) in alike {
        let of = |schedule: &str| jobs(&format!("[a]\nschedule = \"{schedule}\""));
        assert_eq!(of(one)[0].schedule.to_string(), of(other)[0].schedule.to_string());
    }
    let differ = [("17 3 * * *", "17 3,15 * * *"), ("*/30 * * * *", "0 * * * *")];
    for (one, other) in differ {
        let of = |schedule: &str| jobs(&format!("[a]\nschedule = \"{schedule}\""));
        let both = of(other)[0].schedule.clone();
        let mut world = World::new(&format!("[a]\nschedule = \"{one}\""), "2026-05-01 12:00:20");
        let hosts = [of(one), of(other)];
        for minute in 0..(3 * 1440) {
            world.jobs = hosts[minute % 2].clone();
            world.passes(60).run_all();
        }
        let mut due = utc("2026-05-01 12:00:20");
        let times = [&hosts[0][0].schedule, &both];
        loop {
            due = times[0].next_after(due);
            if due > utc("2026-05-04 12:00") {
                break;
            }
            let is_ok = |run: &&onedrop::ledger::JobRun| {
                run.due == due && run.outcome == Some(onedrop::ledger::JobOutcome::Ok)
            };
            let count = world.runs.iter().filter(is_ok).count();
            if times[1].newest_until(due) == Some(due) {
                assert_eq!(count, 1, "{} of {one} and {other}: {:?}", shown(due), world.story("a"));
            }
        }
    }
}

/// A time of one host's schedule alone: the other's look forgets that it was tried.
#[test]
fn hosts_that_differ_begin_no_time_again_whose_last_try_has_failed() {
    for (keys, is_final) in
        [("tries = 1", true), ("final_status = \"1\"", true), ("retry = \"0\"", true), ("", false)]
    {
        let of = |schedule: &str| jobs(&format!("[a]\nschedule = \"{schedule}\"\n{keys}"));
        let hosts = ["*/30 * * * *", "0 * * * *"].map(of);
        let mut world = World::unseen(hosts[0].clone(), utc("2026-05-01 12:10"));
        assert!(world.tick().is_empty());
        assert_eq!(world.at("2026-05-01 12:30").tick(), ["a"]);
        world.fail("a");
        world.jobs = hosts[1].clone();
        assert!(world.at("2026-05-01 12:30:30").tick().is_empty());
        world.jobs = hosts[0].clone();
        assert_eq!(world.at("2026-05-01 12:31").tick().is_empty(), is_final, "{keys}");
        let mut story = vec!["failed 2026-05-01 12:30"];
        match is_final {
            true => assert_eq!(world.next("a"), "2026-05-01 13:00", "{keys}"),
            false => story.push("open 2026-05-01 12:30 try 2 retry"),
        }
        assert_eq!(world.story("a"), story, "{keys}");
    }
}

/// The process of its own host may hang in a call of the ledger, and its end not be on the disk.
#[test]
fn a_run_without_its_lock_is_called_crashed_when_its_end_is_late() {
    let (now, secs) = (utc("2026-05-01 12:00"), Duration::from_secs);
    let mut row = JobRow::new("a", String::new(), now, now);
    row.open_host = "mx1".to_owned();
    let cases = [
        ("mx1", EndsRead::All, 90, 15),
        ("mx1", EndsRead::All, 5, 5),
        ("mx1", EndsRead::All, 0, 0),
        ("mx1", EndsRead::NotAll, 90, 90),
        ("mx2", EndsRead::All, 90, 90),
    ];
    for (host, read, settle, wait) in cases {
        let at = |row: &JobRow, now| plan::crashed_at(row, host, read, secs(settle), now);
        assert_eq!(at(&row, now), now + secs(wait), "{host} {read:?} {settle}");
        let later = now + secs(20);
        assert_eq!(at(&plan::unheld(&row, now), later), now + secs(wait), "since it was found so");
    }
}

/// Its host puts nothing on record while the ledger is away.
#[test]
fn the_wait_for_an_end_goes_on_when_the_ledger_is_back() {
    let (now, secs) = (utc("2026-05-01 12:00"), Duration::from_secs);
    let mut row = JobRow::new("a", String::new(), now, now);
    row.open_host = "mx1".to_owned();
    let at = |row: &JobRow, host, now| {
        let at = plan::crashed_at(row, host, EndsRead::All, secs(90), now);
        at.duration_since(now).unwrap_or_default().as_secs()
    };
    let seen = |ticks: &[u64]| {
        ticks.iter().fold(row.clone(), |row, tick| plan::unheld(&row, now + secs(*tick)))
    };
    // Two hosts, each minute.
    assert_eq!(at(&seen(&[0, 30, 60]), "mx2", now + secs(80)), 10);
    // It is away for a while: the other host has a minute after it.
    for away in [61, 85, 140] {
        for ticks in [&[0][..], &[0, away], &[0, away, away]] {
            assert_eq!(at(&seen(ticks), "mx2", now + secs(away)), 60, "{away}: {ticks:?}");
        }
    }
    assert_eq!(at(&seen(&[0, 140, 170]), "mx2", now + secs(200)), 0);
    // What its own host keeps it can read all the time.
    assert_eq!(at(&seen(&[0]), "mx1", now + secs(140)), 0);
    // A tick every ten minutes calls it crashed too.
    let slow: Vec<u64> = (0..9).map(|tick| 600 * tick).collect();
    assert_eq!(at(&seen(&slow), "mx2", now + secs(5400)), 0);
}
