//! What is made of due times, rule by rule.

use std::time::Duration;

use onedrop::jobs::plan::{self, JobStep, LockSight, delay};
use onedrop::ledger::{JobOutcome, JobTrigger};

use crate::world::{World, jobs, shown, utc};

const DAILY: &str = "[a]\nschedule = \"0 3 * * *\"";

#[test]
fn a_job_by_the_clock_waits_for_its_first_time() {
    let mut world = World::new(DAILY, "2026-05-01 03:00");
    assert_eq!(world.next("a"), "2026-05-02 03:00", "it was seen at that very time");
    assert!(world.at("2026-05-02 02:59:59.999").tick().is_empty());
    assert_eq!(world.at("2026-05-02 03:00").tick(), ["a"]);
    assert_eq!(world.plan("a", LockSight::NotOurs).step, JobStep::Open);
    world.at("2026-05-02 03:04:05").succeed("a");
    assert_eq!(world.story("a"), ["ok 2026-05-02 03:00"]);
    assert_eq!(world.next("a"), "2026-05-03 03:00");
    let row = world.row("a");
    assert_eq!((row.runs, row.errors, row.next_try), (1, 0, 1));
    assert_eq!(row.last_start, Some(utc("2026-05-02 03:00")));
    assert_eq!(row.last_end, Some(utc("2026-05-02 03:04:05")));
    assert_eq!(row.last_success, row.last_end);
    assert_eq!(row.last_success_due, row.last_start);
}

#[test]
fn every_counts_from_the_start_and_begins_at_once() {
    let mut world =
        World::unseen(crate::world::jobs("[a]\nevery = \"15m\""), utc("2026-05-01 12:00:07"));
    assert_eq!(world.tick(), ["a"]);
    world.at("2026-05-01 12:05").succeed("a");
    assert_eq!(world.next("a"), "2026-05-01 12:15:07");
    world.at("2026-05-01 12:16").tick();
    world.at("2026-05-01 12:50").succeed("a");
    assert_eq!(world.tick(), ["a"], "it took longer than that");
    world.succeed("a");
    // No tick came for three days: it is due once.
    assert_eq!(world.at("2026-05-04 12:00").tick(), ["a"]);
    world.succeed("a");
    assert_eq!(world.next("a"), "2026-05-04 12:15");
    assert_eq!(
        world.story("a"),
        [
            "ok 2026-05-01 12:00:07",
            "ok 2026-05-01 12:15:07",
            "ok 2026-05-01 12:31",
            "ok 2026-05-01 13:05 backfill"
        ]
    );
}

#[test]
fn missed_times_by_backfill() {
    let missed = |backfill: &str| {
        let mut world =
            World::new(&format!("{DAILY}\nbackfill = \"{backfill}\""), "2026-05-01 12:00");
        world.run_until("2026-05-02 12:00");
        // All hosts are down until the fifth, 09:00.
        world.at("2026-05-05 09:00").run_all();
        world.run_until("2026-05-06 12:00");
        world.story("a")
    };
    assert_eq!(
        missed("none"),
        [
            "ok 2026-05-02 03:00",
            "skipped_missed 2026-05-03 03:00 to 2026-05-05 03:00, 3 times",
            "ok 2026-05-06 03:00",
        ]
    );
    assert_eq!(
        missed("latest"),
        [
            "ok 2026-05-02 03:00",
            "skipped_missed 2026-05-03 03:00 to 2026-05-04 03:00, 2 times",
            "ok 2026-05-05 03:00 backfill",
            "ok 2026-05-06 03:00",
        ]
    );
    assert_eq!(
        missed("all"),
        [
            "ok 2026-05-02 03:00",
            "ok 2026-05-03 03:00 backfill",
            "ok 2026-05-04 03:00 backfill",
            "ok 2026-05-05 03:00 backfill",
            "ok 2026-05-06 03:00",
        ]
    );
}

#[test]
fn without_backfill_it_starts_up_to_two_minutes_late() {
    let text = format!("{DAILY}\nbackfill = \"none\"");
    let mut world = World::new(&text, "2026-05-01 12:00");
    assert_eq!(world.at("2026-05-02 03:02").tick(), ["a"]);
    world.succeed("a");
    assert!(world.at("2026-05-03 03:02:00.001").tick().is_empty());
    assert_eq!(world.story("a"), ["ok 2026-05-02 03:00", "skipped_missed 2026-05-03 03:00"]);
    assert_eq!(world.next("a"), "2026-05-04 03:00");
}

#[test]
fn what_starts_too_late_is_left_out() {
    for backfill in ["none", "latest", "all"] {
        let text = format!("{DAILY}\nbackfill = \"{backfill}\"\nlate = \"6h\"");
        let mut world = World::new(&text, "2026-05-01 12:00");
        assert!(world.at("2026-05-04 09:00:00.001").tick().is_empty());
        assert_eq!(
            world.story("a"),
            ["skipped_late 2026-05-02 03:00 to 2026-05-04 03:00, 3 times"]
        );
        assert_eq!(world.next("a"), "2026-05-05 03:00");
        let reason = &world.runs[0].reason;
        assert_eq!(reason, "it could not start within 6h of its time (late)");
    }
    let mut world = World::new(&format!("{DAILY}\nlate = \"6h\""), "2026-05-01 12:00");
    assert_eq!(world.at("2026-05-04 09:00").tick(), ["a"]);
    // A retry that would start too late is none.
    world.at("2026-05-04 09:30").fail("a");
    assert_eq!(world.row("a").retry_at, Some(utc("2026-05-04 09:35")));
    assert!(world.at("2026-05-04 09:40").tick().is_empty());
    assert_eq!(world.next("a"), "2026-05-05 03:00");
    assert_eq!(world.row("a").errors, 1, "it is still failing");
    assert_eq!(
        world.story("a"),
        [
            "skipped_late 2026-05-02 03:00 to 2026-05-03 03:00, 2 times",
            "failed 2026-05-04 03:00 backfill",
        ]
    );
}

#[test]
fn no_more_than_the_newest_hundred_are_made_up() {
    let text = format!("{DAILY}\nbackfill = \"all\"\nbackfill_most = 3");
    let mut world = World::new(&text, "2026-05-01 12:00");
    world.at("2026-05-12 12:00").run_all();
    assert_eq!(
        world.story("a"),
        [
            "skipped_most 2026-05-02 03:00 to 2026-05-09 03:00, 8 times",
            "ok 2026-05-10 03:00 backfill",
            "ok 2026-05-11 03:00 backfill",
            "ok 2026-05-12 03:00 backfill",
        ]
    );
}

#[test]
fn a_failure_is_tried_again_later_and_later() {
    let text = "[a]\nschedule = \"0 3 * * *\"\nretry = \"10m\"\nretry_most = \"25m\"";
    let mut world = World::new(text, "2026-05-01 12:00");
    world.at("2026-05-02 03:00").tick();
    world.at("2026-05-02 03:01").fail("a");
    assert!(world.at("2026-05-02 03:10:59").tick().is_empty());
    for (start, end) in
        [("03:11", "03:12"), ("03:32", "03:33"), ("03:58", "03:59"), ("04:24", "04:25")]
    {
        assert_eq!(world.next("a"), format!("2026-05-02 {start}"));
        assert_eq!(world.at(&format!("2026-05-02 {start}")).tick(), ["a"]);
        world.at(&format!("2026-05-02 {end}")).fail("a");
    }
    assert_eq!(world.row("a").errors, 5);
    assert_eq!(world.row("a").last_error, "it exited 1");
    assert_eq!(world.row("a").last_exit, Some(1));
    world.at("2026-05-02 04:50").tick();
    world.succeed("a");
    assert_eq!(world.row("a").errors, 0);
    assert_eq!(world.row("a").last_error, "");
    assert_eq!(world.next("a"), "2026-05-03 03:00");
    assert_eq!(world.story("a").last().unwrap(), "ok 2026-05-02 03:00 try 6 retry");
}

#[test]
fn a_newer_time_takes_the_place_of_a_failed_one() {
    let text = "[a]\nschedule = \"0 * * * *\"\nretry = \"2h\"\nretry_most = \"2h\"";
    for backfill in ["none", "latest"] {
        let mut world =
            World::new(&format!("{text}\nbackfill = \"{backfill}\""), "2026-05-01 00:30");
        world.at("2026-05-01 01:00").tick();
        world.at("2026-05-01 01:10").fail("a");
        assert_eq!(world.next("a"), "2026-05-01 02:00");
        assert_eq!(world.at("2026-05-01 02:00").tick(), ["a"]);
        assert_eq!(world.row("a").open, Some((utc("2026-05-01 02:00"), 1)));
        world.succeed("a");
        assert_eq!(world.story("a"), ["failed 2026-05-01 01:00", "ok 2026-05-01 02:00"]);
    }
    let mut world = World::new(&format!("{text}\nbackfill = \"all\""), "2026-05-01 00:30");
    world.at("2026-05-01 01:00").tick();
    world.at("2026-05-01 01:10").fail("a");
    assert_eq!(world.next("a"), "2026-05-01 03:10");
    world.at("2026-05-01 03:10").run_all();
    assert_eq!(
        world.story("a"),
        [
            "failed 2026-05-01 01:00",
            "ok 2026-05-01 01:00 try 2 retry",
            "ok 2026-05-01 02:00 backfill",
            "ok 2026-05-01 03:00 backfill",
        ]
    );
}

#[test]
fn without_retry_it_waits_for_its_next_time() {
    let text = "[a]\nschedule = \"0 * * * *\"\nretry = \"0\"";
    let mut world = World::new(text, "2026-05-01 00:30");
    world.at("2026-05-01 01:00").tick();
    world.at("2026-05-01 01:01").fail("a");
    assert_eq!(world.next("a"), "2026-05-01 02:00");
    world.at("2026-05-01 02:00").run_all();
    assert_eq!(world.story("a"), ["failed 2026-05-01 01:00", "ok 2026-05-01 02:00"]);
    // All in order: the failed one goes first.
    let mut world = World::new(&format!("{text}\nbackfill = \"all\""), "2026-05-01 00:30");
    world.at("2026-05-01 01:00").tick();
    world.at("2026-05-01 01:01").fail("a");
    assert_eq!(world.next("a"), "2026-05-01 02:00");
    world.at("2026-05-01 02:00").run_all();
    let story =
        ["failed 2026-05-01 01:00", "ok 2026-05-01 01:00 try 2 retry", "ok 2026-05-01 02:00"];
    assert_eq!(world.story("a"), story);
    let mut world = World::new("[a]\nevery = \"1h\"\nretry = \"0\"", "2026-05-01 01:00");
    world.fail("a");
    assert_eq!(world.next("a"), "2026-05-01 02:00");
}

#[test]
fn what_came_while_it_ran_was_busy() {
    let mut world = World::new("[a]\nschedule = \"*/10 * * * *\"", "2026-05-01 00:05");
    world.at("2026-05-01 00:10").tick();
    world.at("2026-05-01 00:45").succeed("a");
    world.tick();
    assert_eq!(
        world.story("a"),
        [
            "ok 2026-05-01 00:10",
            "skipped_busy 2026-05-01 00:20 to 2026-05-01 00:30, 2 times",
            "open 2026-05-01 00:40",
        ]
    );
    let text = "[a]\nschedule = \"*/10 * * * *\"\nbackfill = \"none\"";
    let mut world = World::new(text, "2026-05-01 00:05");
    world.at("2026-05-01 00:10").tick();
    world.at("2026-05-01 00:45").succeed("a");
    assert!(world.tick().is_empty());
    assert_eq!(
        world.story("a"),
        ["ok 2026-05-01 00:10", "skipped_busy 2026-05-01 00:20 to 2026-05-01 00:40, 3 times",]
    );
}

#[test]
fn a_paused_job_starts_nothing_and_makes_up_by_backfill() {
    for (backfill, after) in [
        (
            "latest",
            vec![
                "skipped_paused 2026-05-02 03:00 to 2026-05-04 03:00, 3 times",
                "ok 2026-05-05 03:00 backfill",
            ],
        ),
        ("none", vec!["skipped_paused 2026-05-02 03:00 to 2026-05-05 03:00, 4 times"]),
        (
            "all",
            vec![
                "ok 2026-05-02 03:00 backfill",
                "ok 2026-05-03 03:00 backfill",
                "ok 2026-05-04 03:00 backfill",
                "ok 2026-05-05 03:00 backfill",
            ],
        ),
    ] {
        let mut world =
            World::new(&format!("{DAILY}\nbackfill = \"{backfill}\""), "2026-05-01 12:00");
        let row =
            plan::pause(&world.job("a"), Some(world.row("a")), "the store moves", None, world.now);
        world.write(row, Vec::new(), None);
        world.at("2026-05-05 12:00");
        assert!(world.tick().is_empty());
        assert_eq!(world.plan("a", LockSight::NotOurs).step, JobStep::Paused);
        let row = plan::resume(world.row("a"), world.now);
        world.write(row, Vec::new(), None);
        world.run_all();
        assert_eq!(world.story("a"), after);
    }
}

#[test]
fn a_disabled_job_does_not_run() {
    let mut world = World::new(&format!("{DAILY}\nenabled = false"), "2026-05-01 12:00");
    assert!(world.at("2026-05-03 12:00").tick().is_empty());
    assert_eq!(world.plan("a", LockSight::NotOurs).step, JobStep::Paused);
    let forced = plan::force(&world.job("a"), &world.rows, None, world.now, LockSight::Ours);
    assert_eq!(forced, Err("disabled in the configuration".to_owned()));
    world.jobs = crate::world::jobs(DAILY);
    world.run_all();
    let skips = "skipped_missed 2026-05-02 03:00 to 2026-05-03 03:00, 2 times";
    assert_eq!(world.story("a"), [skips]);
    assert_eq!(world.runs[0].reason, "the job was disabled");
    assert_eq!(world.next("a"), "2026-05-04 03:00");
}

/// A backlog and a retry end where the job is disabled; with `every` it is due once.
#[test]
fn a_job_that_was_disabled_makes_up_for_nothing() {
    for backfill in ["none", "latest", "all"] {
        let text = format!("{DAILY}\nbackfill = \"{backfill}\"");
        let mut world = World::new(&text, "2026-05-01 12:00");
        world.at("2026-05-02 03:00").tick();
        world.fail("a");
        world.jobs = crate::world::jobs(&format!("{text}\nenabled = false"));
        for day in ["03 12:00", "09 03:01", "21 12:00"] {
            assert!(world.at(&format!("2026-05-{day}")).tick().is_empty());
        }
        world.jobs = crate::world::jobs(&text);
        world.at("2026-05-22 12:00").run_all();
        let skips = "skipped_missed 2026-05-03 03:00 to 2026-05-22 03:00, 20 times";
        assert_eq!(world.story("a"), ["failed 2026-05-02 03:00", skips], "{backfill}");
        world.run_until("2026-05-23 04:00");
        assert_eq!(world.story("a")[2..], ["ok 2026-05-23 03:00"]);
    }
    let every = "[a]\nevery = \"1h\"";
    let mut world = World::new(every, "2026-05-01 12:00");
    world.succeed("a");
    world.jobs = crate::world::jobs(&format!("{every}\nenabled = false"));
    world.at("2026-05-01 12:30").tick();
    world.jobs = crate::world::jobs(every);
    assert!(world.at("2026-05-01 12:40").tick().is_empty());
    assert_eq!(world.next("a"), "2026-05-01 13:00");
}

#[test]
fn splay_delays_each_job_by_its_own_part() {
    let job = "schedule = \"0 3 * * *\"\nsplay = \"1h\"";
    let mut world = World::new(&format!("[a]\n{job}\n[b]\n{job}"), "2026-05-01 12:00");
    let (a, b) = (delay(&world.job("a")), delay(&world.job("b")));
    assert!(a != b && a < Duration::from_secs(3600) && b < Duration::from_secs(3600));
    assert_eq!(world.next("a"), shown(utc("2026-05-02 03:00") + a));
    world.now = utc("2026-05-02 03:00") + a - Duration::from_millis(1);
    assert!(!world.tick().contains(&"a".to_owned()));
    world.now = utc("2026-05-02 03:00") + a;
    assert!(world.tick().contains(&"a".to_owned()));
    assert_eq!(world.row("a").open, Some((utc("2026-05-02 03:00"), 1)), "due is due");
}

#[test]
fn a_dependency_has_succeeded_for_the_same_time() {
    let text =
        "[k]\nschedule = \"0 3 * * *\"\n[j]\nschedule = \"0 3,15 * * *\"\ndepends_on = [\"k\"]";
    let mut world = World::new(text, "2026-05-01 12:00");
    // k has not run since it was first seen.
    assert!(world.at("2026-05-01 15:00").tick().is_empty());
    let waits = JobStep::WaitsFor(vec!["k".to_owned()]);
    assert_eq!(world.plan("j", LockSight::NotOurs).step, waits);
    assert_eq!(world.at("2026-05-02 03:00").tick(), ["k"], "j waits while it runs");
    assert_eq!(world.plan("j", LockSight::NotOurs).step, waits);
    world.at("2026-05-02 03:20").fail("k");
    let failed = JobStep::WaitsFor(vec!["k (failed)".to_owned()]);
    assert_eq!(world.plan("j", LockSight::NotOurs).step, failed);
    world.at("2026-05-02 03:25").run_all();
    assert_eq!(world.story("j"), ["skipped_dependency 2026-05-01 15:00", "ok 2026-05-02 03:00"]);
    assert_eq!(world.runs.iter().find(|run| run.job == "j").unwrap().reason, "it waited for k");
    // The newest time of k up to 15:00 is that of 03:00.
    assert_eq!(world.at("2026-05-02 15:00").tick(), ["j"]);
    world.succeed("j");
    let row = plan::pause(&world.job("k"), Some(world.row("k")), "", None, world.now);
    world.write(row, Vec::new(), None);
    world.at("2026-05-03 03:00");
    let paused = JobStep::WaitsFor(vec!["k (paused)".to_owned()]);
    assert_eq!(world.plan("j", LockSight::NotOurs).step, paused);
    for job in world.jobs.iter_mut().filter(|job| job.name == "k") {
        job.enabled = false;
    }
    let disabled = JobStep::WaitsFor(vec!["k (disabled)".to_owned()]);
    assert_eq!(world.plan("j", LockSight::NotOurs).step, disabled);
}

/// What it waited for is the reason as long as ticks looked; afterwards it has missed its times.
#[test]
fn waiting_is_no_absence() {
    let text = "[k]\nschedule = \"0 3 * * *\"\n\
                [j]\nschedule = \"*/10 * * * *\"\ndepends_on = [\"k\"]";
    let mut world = World::new(text, "2026-05-01 12:05");
    world.at("2026-05-01 12:10").tick();
    world.at("2026-05-01 12:20").tick();
    assert_eq!(world.story("j"), ["skipped_dependency 2026-05-01 12:10"]);
    world.at("2026-05-01 18:20").tick();
    assert_eq!(
        world.story("j")[1..],
        [
            "skipped_dependency 2026-05-01 12:20 to 2026-05-01 13:00, 5 times",
            "skipped_missed 2026-05-01 13:10 to 2026-05-01 18:10, 31 times",
        ]
    );
}

#[test]
fn a_dependency_with_every_is_not_overdue() {
    let text = "[k]\nevery = \"1h\"\n[j]\nschedule = \"30 * * * *\"\ndepends_on = [\"k\"]";
    let mut world = World::new(text, "2026-05-01 12:00");
    world.succeed("k");
    assert_eq!(world.at("2026-05-01 12:30").tick(), ["j"]);
    world.succeed("j");
    world.at("2026-05-01 14:30");
    assert_eq!(world.tick(), ["k"], "that of 13:00 has not started");
    world.succeed("k");
    assert_eq!(world.tick(), ["j"]);
}

/// After an outage each part of a chain makes up for the days in their order.
#[test]
fn a_chain_makes_up_day_by_day() {
    let text = "[k]\nschedule = \"0 3 * * *\"\nbackfill = \"all\"\n\
                [j]\nschedule = \"0 4 * * *\"\nbackfill = \"all\"\ndepends_on = [\"k\"]";
    let mut world = World::new(text, "2026-05-01 12:00");
    world.at("2026-05-04 12:00");
    let mut order = Vec::new();
    loop {
        let begun = world.tick();
        if begun.is_empty() {
            break;
        }
        for name in begun {
            order.push(format!("{name} {}", &shown(world.row(&name).open.unwrap().0)[8..10]));
            world.passes(60).succeed(&name);
        }
    }
    for day in ["02", "03", "04"] {
        let at = |job: &str| order.iter().position(|line| *line == format!("{job} {day}"));
        assert!(at("k").is_some() && at("k") < at("j"), "{order:?}");
    }
    assert_eq!(order.len(), 6);
}

#[test]
fn a_crash_is_settled_with_the_lock_and_tried_again() {
    let mut world = World::new(DAILY, "2026-05-01 12:00");
    world.at("2026-05-02 03:00").tick();
    world.at("2026-05-02 03:02");
    let open = world.plan("a", LockSight::NotOurs);
    assert_eq!((open.step, open.changed), (JobStep::Open, false));
    assert!(!world.starts("a", LockSight::Ours), "the retry is not due yet");
    assert_eq!(world.story("a"), ["crashed 2026-05-02 03:00"]);
    assert_eq!(world.next("a"), "2026-05-02 03:05", "5m after it began");
    assert_eq!(world.row("a").errors, 1);
    world.at("2026-05-02 03:05").tick();
    // The next crash is found late: the next try begins at once.
    world.at("2026-05-02 04:05");
    assert!(world.starts("a", LockSight::Ours));
    world.succeed("a");
    let story = [
        "crashed 2026-05-02 03:00",
        "crashed 2026-05-02 03:00 try 2 retry",
        "ok 2026-05-02 03:00 try 3 retry",
    ];
    assert_eq!(world.story("a"), story);
}

#[test]
fn a_forced_run_takes_what_is_due_or_is_an_extra_one() {
    let mut world = World::new(DAILY, "2026-05-01 12:00");
    let force = |world: &World, due| {
        plan::force(&world.job("a"), &world.rows, due, world.now, LockSight::Ours)
    };
    let plan = force(&world, None).unwrap();
    assert!(world.take(plan));
    assert_eq!(world.plan("a", LockSight::NotOurs).step, JobStep::Open);
    world.fail("a");
    assert_eq!(world.row("a").errors, 0, "nothing waits for an extra one");
    assert_eq!(world.next("a"), "2026-05-02 03:00", "an extra one is not tried again");
    world.at("2026-05-02 03:00").tick();
    world.fail("a");
    // It is due again at 03:05, and now; so is a paused one.
    let row = plan::pause(&world.job("a"), Some(world.row("a")), "", None, world.now);
    world.write(row, Vec::new(), None);
    world.at("2026-05-02 03:01");
    let plan = force(&world, None).unwrap();
    assert!(world.take(plan));
    world.succeed("a");
    assert_eq!(
        world.story("a"),
        [
            "failed 2026-05-01 12:00 manual",
            "failed 2026-05-02 03:00",
            "ok 2026-05-02 03:00 try 2 manual",
        ]
    );
    assert_eq!(world.row("a").next_due, Some(utc("2026-05-03 03:00")));
    // A day once more.
    let plan = force(&world, Some((utc("2026-05-02 03:00"), 2))).unwrap();
    assert_eq!(
        plan.step,
        JobStep::Run { due: utc("2026-05-02 03:00"), try_no: 3, trigger: JobTrigger::Manual }
    );
    assert!(world.take(plan));
    world.succeed("a");
    assert_eq!(world.row("a").next_due, Some(utc("2026-05-03 03:00")));
    // It does not make older what the job has done.
    world.at("2026-05-04 12:00");
    let row = plan::resume(world.row("a"), world.now);
    world.write(row, Vec::new(), None);
    world.run_all();
    let plan = force(&world, Some((utc("2026-05-02 03:00"), 3))).unwrap();
    world.take(plan);
    world.succeed("a");
    assert_eq!(world.row("a").last_success_due, Some(utc("2026-05-04 03:00")));
    let error = force(&world, Some((utc("2026-05-02 04:00"), 0))).unwrap_err();
    assert_eq!(
        error,
        "2026-05-02T04:00:00Z is no time of its schedule; the nearest are 2026-05-02T03:00:00Z and \
         2026-05-03T03:00:00Z"
    );
}

#[test]
fn a_forced_start_of_every_counts() {
    let mut world = World::new("[a]\nevery = \"1h\"", "2026-05-01 12:00");
    world.succeed("a");
    world.at("2026-05-01 12:30");
    let plan = plan::force(&world.job("a"), &world.rows, None, world.now, LockSight::Ours).unwrap();
    world.take(plan);
    world.at("2026-05-01 12:40").succeed("a");
    assert_eq!(world.next("a"), "2026-05-01 13:30");
}

#[test]
fn marking_done_moves_past_a_time() {
    let mut world = World::new(&format!("{DAILY}\nbackfill = \"all\""), "2026-05-01 12:00");
    let mark =
        |world: &World, until| plan::mark_done(&world.job("a"), &world.rows, until, world.now);
    assert_eq!(mark(&world, None).unwrap_err(), "nothing is due before 2026-05-02T03:00:00Z");
    world.at("2026-05-04 12:00").tick();
    assert_eq!(mark(&world, None).unwrap_err(), "a run is on record as open");
    world.fail("a");
    let (row, runs) = mark(&world, Some(utc("2026-05-02 03:00"))).unwrap();
    world.write(row, runs, None);
    assert_eq!(world.row("a").errors, 0);
    world.run_all();
    assert_eq!(
        world.story("a"),
        [
            "failed 2026-05-02 03:00 backfill",
            "marked 2026-05-02 03:00 try 2 manual",
            "ok 2026-05-03 03:00 backfill",
            "ok 2026-05-04 03:00 backfill",
        ]
    );
    assert!(
        mark(&world, Some(utc("2026-05-04 03:00"))).unwrap_err().ends_with("has been dealt with")
    );
    // The next three, before they come.
    let (row, mut runs) = mark(&world, Some(utc("2026-05-07 03:00"))).unwrap();
    let run = runs.pop().expect("the mark");
    assert_eq!(
        (run.due, run.last_due, run.occurrences),
        (utc("2026-05-05 03:00"), utc("2026-05-07 03:00"), 3)
    );
    assert_eq!(runs, []);
    world.write(row, vec![run], None);
    assert_eq!(world.next("a"), "2026-05-08 03:00");
}

/// The next run is when the scheduler that ran it before would have made it.
#[test]
fn a_job_that_succeeded_elsewhere_goes_on_from_there() {
    for (job, at, first) in [
        ("every = \"3d\"", "2026-05-01 09:30", "ok 2026-05-04 09:30"),
        ("every = \"3d at 04:00\"", "2026-05-01 04:01", "ok 2026-05-04 04:00"),
        ("schedule = \"0 2 * * *\"", "2026-05-02 02:01", "ok 2026-05-03 02:00"),
        // Its next time has passed.
        ("every = \"5m\"", "2026-05-02 11:50", "ok 2026-05-02 11:55 backfill"),
        ("schedule = \"0 2 * * *\"", "2026-05-01 02:01", "ok 2026-05-02 02:00 backfill"),
        (
            "schedule = \"0 2 * * *\"\nbackfill = \"all\"",
            "2026-04-29 02:00",
            "ok 2026-04-30 02:00 backfill",
        ),
    ] {
        // Seen by a tick, or not yet.
        for seen in [false, true] {
            let jobs = jobs(&format!("[a]\n{job}"));
            let mut world = World::unseen(jobs, utc("2026-05-02 12:00"));
            if seen {
                let row = plan::pause(&world.job("a"), None, "", None, world.now);
                world.write(plan::resume(&row, world.now), Vec::new(), None);
            }
            let (row, runs) =
                plan::succeeded_elsewhere(&world.job("a"), &world.rows, utc(at), world.now)
                    .unwrap();
            world.write(row, runs, None);
            assert_eq!(world.row("a").last_success, Some(utc(at)), "{job}");
            world.run_until("2026-05-05 12:00");
            let story = world.story("a");
            assert!(story[0].starts_with("marked ") && story[1] == first, "{job} {at}: {story:?}");
        }
    }
}

#[test]
fn a_success_elsewhere_does_not_undo_a_run_here() {
    let mut world = World::new("[a]\nevery = \"1h\"", "2026-05-01 12:00");
    let mark = |world: &World, at| {
        plan::succeeded_elsewhere(&world.job("a"), &world.rows, utc(at), world.now).map(drop)
    };
    assert_eq!(mark(&world, "2026-05-01 11:30").unwrap_err(), "a run is on record as open");
    world.succeed("a");
    world.at("2026-05-01 12:30");
    let why = "it has run here since, at 2026-05-01T12:00:00Z";
    assert_eq!(mark(&world, "2026-05-01 12:00").unwrap_err(), why);
    assert_eq!(mark(&world, "2026-05-01 12:01"), Ok(()));
    let why = "2026-05-01T12:31:00Z has not come yet";
    assert_eq!(mark(&world, "2026-05-01 12:31").unwrap_err(), why);
}

#[test]
fn a_reset_job_forgets_failures_and_what_was_due() {
    let mut world = World::new(DAILY, "2026-05-01 12:00");
    world.at("2026-05-02 03:00").tick();
    world.at("2026-05-02 03:01").fail("a");
    let (row, skipped) =
        plan::reset(&world.job("a"), world.row("a"), "root on mx1", utc("2026-05-02 03:02"));
    assert_eq!(skipped, [], "it was tried");
    world.write(row, skipped, None);
    assert_eq!((world.row("a").errors, world.row("a").last_exit), (0, None));
    assert_eq!(world.next("a"), "2026-05-03 03:00");
    assert_eq!(world.story("a").len(), 1, "what it did stays");
    world.now = utc("2026-05-05 09:00");
    let (row, skipped) = plan::reset(&world.job("a"), world.row("a"), "root on mx1", world.now);
    world.write(row, skipped, None);
    let skips = "skipped_missed 2026-05-03 03:00 to 2026-05-05 03:00, 3 times";
    assert_eq!(world.story("a")[1..], [skips]);
    assert_eq!(world.runs[1].reason, "root on mx1 has reset the job");
}

/// What another command has changed while a run went on stays.
#[test]
fn an_end_keeps_what_changed_meanwhile() {
    let mut world = World::new(DAILY, "2026-05-01 12:00");
    world.at("2026-05-02 03:00").tick();
    let row = plan::pause(&world.job("a"), Some(world.row("a")), "why", None, world.now);
    world.write(row, Vec::new(), None);
    world.at("2026-05-02 03:10").end("a", JobOutcome::Timeout);
    assert_eq!(world.row("a").paused.as_ref().map(|pause| pause.note.as_str()), Some("why"));
    assert_eq!(world.row("a").errors, 1);
    assert!(world.at("2026-05-02 09:00").tick().is_empty());
}

/// `jobs pause --until`: times that come while it is paused are skipped as such, and the first tick
/// after its end resumes it.
#[test]
fn a_pause_with_an_end_is_over_then() {
    let mut world = World::new("[a]\nschedule = \"0 * * * *\"", "2026-05-01 00:30");
    let until = Some(utc("2026-05-01 03:30"));
    world.rows[0] = plan::pause(&world.job("a"), Some(world.row("a")), "disks", until, world.now);
    assert_eq!(world.at("2026-05-01 03:29").plan("a", LockSight::NotOurs).step, JobStep::Paused);
    let plan = world.at("2026-05-01 04:00").plan("a", LockSight::NotOurs);
    assert_eq!((plan.row.paused, plan.row.resumed_at), (None, until));
    let due = utc("2026-05-01 04:00");
    assert!(matches!(plan.step, JobStep::Run { due: at, .. } if at == due), "{:?}", plan.step);
    let skipped: Vec<_> =
        plan.skipped.iter().map(|skip| (skip.outcome, skip.occurrences)).collect();
    assert_eq!(skipped, [(Some(JobOutcome::SkippedPaused), 3)]);
}
