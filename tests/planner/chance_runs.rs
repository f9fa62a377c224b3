//! Any schedule, any absence of all hosts, any pass, any failure, crash and pause: from the first
//! sight of a job on, each of its times is run or skipped, once, in order, and what a skip gives as
//! its reason was so.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use onedrop::jobs::plan::{self, JobStep, LockSight, delay};
use onedrop::ledger::{JobOutcome, JobRun, JobTrigger};

use crate::chance::Chance;
use crate::world::{World, shown, utc};

const JOBS: usize = 400;
const LOCK: Duration = Duration::from_secs(65);

const SCHEDULES: [&str; 9] = [
    "*/15 * * * *",
    "0 * * * *",
    "7,37 * * * *",
    "30 1 * * *",
    "15 2 * * *",
    "0 0,12 * * *",
    "0 */6 * * MON-FRI",
    "@daily",
    "0 4 1,15 * *",
];
const ZONES: [&str; 4] = ["UTC", "Europe/London", "Antarctica/Troll", "Australia/Lord_Howe"];
/// Before changes of clocks, and in quiet times.
const BEGINS: [&str; 4] =
    ["2026-03-27 20:11:13", "2026-04-03 09:00", "2026-10-23 23:59:59.999", "2026-06-01 00:00"];

const OUTCOMES: [&str; 10] = [
    "ok",
    "failed",
    "timeout",
    "crashed",
    "marked",
    "skipped_late",
    "skipped_missed",
    "skipped_busy",
    "skipped_paused",
    "skipped_most",
];

fn one_of<'a>(chance: &mut Chance, of: &[&'a str]) -> &'a str {
    of[chance.pick(of.len())]
}

/// A job, and a word for each of its keys.
fn any_job(chance: &mut Chance) -> String {
    format!(
        "[a]\nschedule = \"{}\"\ntimezone = \"{}\"\nbackfill = \"{}\"\nlate = \"{}\"\n\
         backfill_most = {}\nsplay = \"{}\"\nretry = \"{}\"\nretry_most = \"3h\"",
        one_of(chance, &SCHEDULES),
        one_of(chance, &ZONES),
        one_of(chance, &["none", "latest", "all"]),
        one_of(chance, &["", "", "30m", "7h", "2d"]),
        chance.between(1, 12),
        one_of(chance, &["0", "0", "90s", "40m"]),
        one_of(chance, &["0", "5m", "5m", "90m"]),
    )
}

/// What was so, as the test did it.
#[derive(Default)]
struct Truth {
    pauses: Vec<(SystemTime, SystemTime)>,
    /// From the start to the end on record.
    runs: Vec<(SystemTime, SystemTime)>,
}

/// What a job's life leads to.
struct Life {
    world: World,
    truth: Truth,
    /// The latest that the clock has shown, where it steps back by up to a day; else it does not.
    latest: Option<SystemTime>,
    /// When the open run began, and when it ends; `None`: its process is gone.
    open: Option<(SystemTime, Option<(SystemTime, JobOutcome)>)>,
}

impl Life {
    /// Time goes by until a host looks next.
    fn pass(&mut self, chance: &mut Chance) {
        let gap = match chance.between(0, 100) {
            0..80 => 60,
            80..92 => chance.between(1, 7200),
            92..98 => chance.between(3600, 2 * 86_400),
            _ => chance.between(86_400, 12 * 86_400),
        };
        let next = self.world.now + Duration::from_secs(gap);
        self.end_until(next);
        self.world.now = next;
        if let Some(latest) = &mut self.latest {
            *latest = next.max(*latest);
            if chance.percent(5) {
                let back = Duration::from_secs(chance.between(1, 23 * 3600));
                self.world.now = (next - back).max(*latest - Duration::from_secs(23 * 3600));
            }
        }
        if chance.percent(2) {
            self.pause_or_resume();
        }
        if self.open.is_none() && chance.percent(2) {
            self.force_or_mark(chance);
            return;
        }
        let next = self.world.now;
        let gone = matches!(self.open, Some((began, None)) if next >= began + LOCK);
        let lock = if gone { LockSight::Ours } else { LockSight::NotOurs };
        let was_open = self.open.map(|(began, _)| began);
        if self.world.starts("a", lock) {
            let how = match chance.between(0, 10) {
                0..6 => Some(JobOutcome::Ok),
                6..8 => Some(JobOutcome::Failed),
                8 => Some(JobOutcome::Timeout),
                _ => None,
            };
            let long = if chance.percent(10) { 10 * 3600 } else { 600 };
            let end = next + Duration::from_secs(chance.between(0, long));
            self.open = Some((next, how.map(|how| (end, how))));
        } else if gone {
            self.open = None;
        }
        if let Some(began) = was_open.filter(|_| gone) {
            self.truth.runs.push((began, next));
        }
    }

    fn end_until(&mut self, now: SystemTime) {
        if let Some((began, Some((end, how)))) = self.open
            && end <= now
        {
            self.world.now = end;
            self.world.end("a", how);
            self.truth.runs.push((began, end));
            self.open = None;
        }
    }

    /// A run by hand, with success, or the word of an administrator that times are done.
    fn force_or_mark(&mut self, chance: &mut Chance) {
        let (job, now) = (self.world.job("a"), self.world.now);
        if chance.percent(50) {
            let plan = plan::force(&job, &self.world.rows, None, now, LockSight::Ours);
            assert!(self.world.take(plan.expect("a plan")));
            self.world.succeed("a");
            return;
        }
        let until = match chance.percent(50) {
            true => None,
            false => {
                let far = Duration::from_secs(chance.between(0, 3 * 86_400));
                job.schedule.newest_until(now + far)
            }
        };
        if let Ok((row, run)) = plan::mark_done(&job, &self.world.rows, until, now) {
            self.world.write(row, run, None);
        }
    }

    fn pause_or_resume(&mut self) {
        let now = self.world.now;
        let world = &mut self.world;
        let row = match &world.row("a").paused {
            Some(pause) => {
                self.truth.pauses.push((pause.at, now));
                plan::resume(world.row("a"), now)
            }
            None => plan::pause(&world.job("a"), Some(world.row("a")), "by chance", None, now),
        };
        world.write(row, Vec::new(), None);
    }

    /// Everybody is there, nothing fails, until nothing is due.
    fn settle(&mut self) {
        self.world.now = self.latest.unwrap_or(self.world.now).max(self.world.now);
        if let Some((began, _)) = self.open.take() {
            self.world.now = self.world.now.max(began + LOCK);
            self.truth.runs.push((began, self.world.now));
            if self.world.starts("a", LockSight::Ours) {
                self.world.succeed("a");
            }
        }
        if self.world.row("a").paused.is_some() {
            self.pause_or_resume();
        }
        for _ in 0..10_000 {
            match self.world.plan("a", LockSight::NotOurs).step {
                JobStep::Run { .. } => {
                    assert!(self.world.starts("a", LockSight::NotOurs));
                    self.world.succeed("a");
                }
                JobStep::NotBefore(time) if self.world.row("a").next_try > 1 => {
                    assert!(time > self.world.now, "it says that it waits, and does not");
                    self.world.now = time;
                }
                _ => {
                    self.world.tick();
                    return;
                }
            }
        }
        panic!("it comes to no end");
    }

    fn judge(&self) {
        let job = self.world.job("a");
        let delay = delay(&job);
        let row = self.world.row("a");
        let next = row.next_due.expect("a next time");
        assert!(next + delay > self.world.now, "all that has come is dealt with");
        // Marked ones may lie in times to come.
        let mut times = Vec::new();
        let mut at = job.schedule.next_after(row.first_seen);
        while at < next {
            times.push(at);
            at = job.schedule.next_after(at);
        }
        assert_eq!(at, next, "it is a time of the schedule");
        // What stands for each time: its first run, or the skip whose range it is in.
        let mut stands_for: BTreeMap<SystemTime, &JobRun> = BTreeMap::new();
        let mut before = SystemTime::UNIX_EPOCH;
        for run in &self.world.runs {
            let is_extra = run.trigger == JobTrigger::Manual && !times.contains(&run.due);
            if is_extra {
                assert_eq!((run.last_due, run.occurrences), (run.due, 1), "{run:?}");
                continue;
            }
            let of = || times.iter().filter(|time| (run.due..=run.last_due).contains(*time));
            assert_eq!(of().count() as u64, run.occurrences, "{run:?}");
            // A later try stands for nothing more, but for what is marked with it.
            for time in of().filter(|time| run.try_no == 1 || **time > run.due) {
                let other = stands_for.insert(*time, run);
                assert!(other.is_none(), "{} twice: {other:?} and {run:?}", shown(*time));
                assert!(*time > before, "{run:?} comes after {}", shown(before));
                before = *time;
            }
            if self.latest.is_none() {
                self.judge_reason(run, &times, delay);
            }
        }
        for time in &times {
            assert!(stands_for.contains_key(time), "{} is lost", shown(*time));
        }
        for run in self.world.runs.iter().filter(|run| run.try_no > 1) {
            assert!(run.outcome.is_some_and(|outcome| !outcome.is_skip()), "{run:?}");
        }
    }

    /// The reason of a skip was so.
    fn judge_reason(&self, run: &JobRun, times: &[SystemTime], delay: Duration) {
        let job = self.world.job("a");
        let starts = times.iter().filter(|time| (run.due..=run.last_due).contains(*time));
        let planned = run.started_at;
        let held = |spans: &[(SystemTime, SystemTime)], start: SystemTime| {
            spans.iter().any(|(from, to)| *from <= start && start < *to)
        };
        for time in starts {
            let start = *time + delay;
            let late = job.late.is_some_and(|late| start + late < planned);
            let is_so = match run.outcome {
                Some(JobOutcome::SkippedLate) => late,
                Some(JobOutcome::SkippedMost) => {
                    let newer =
                        times.iter().filter(|other| *other >= time && **other + delay <= planned);
                    !late && newer.count() > job.backfill_most as usize
                }
                Some(JobOutcome::SkippedPaused) => !late && held(&self.truth.pauses, start),
                Some(JobOutcome::SkippedBusy) => !late && held(&self.truth.runs, start),
                Some(JobOutcome::SkippedMissed) => !late,
                Some(outcome) => !outcome.is_skip(),
                None => false,
            };
            assert!(is_so, "{} of {run:?}", shown(*time));
        }
        let is_bounded = job.late.is_none_or(|late| planned <= run.due + delay + late);
        let is_skip = run.outcome.is_some_and(JobOutcome::is_skip);
        let by_hand = run.trigger == JobTrigger::Manual;
        assert!(is_skip || is_bounded || by_hand, "it started too late: {run:?}");
    }
}

#[test]
fn each_time_is_run_or_skipped_once() {
    let came_to = lives(false);
    // What has happened often enough to have been tried.
    for outcome in OUTCOMES {
        assert!(came_to.get(outcome).is_some_and(|count| *count >= 50), "{outcome}: {came_to:?}");
    }
}

/// Also under a clock that steps back again and again, by less than a day.
#[test]
fn each_time_is_run_or_skipped_once_by_a_clock_that_steps_back() {
    lives(true);
}

/// How often each came of many lives.
fn lives(steps: bool) -> BTreeMap<&'static str, u64> {
    let mut came_to: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..JOBS as u64 {
        let mut chance = Chance::Seeded(seed);
        let text = any_job(&mut chance);
        let begin = one_of(&mut chance, &BEGINS);
        println!("seed {seed}, from {begin}:\n{text}");
        let world = World::unseen(crate::world::jobs(&text), utc(begin));
        let latest = steps.then_some(world.now);
        let mut life = Life { world, truth: Truth::default(), latest, open: None };
        life.world.tick();
        for _ in 0..150 {
            life.pass(&mut chance);
        }
        life.settle();
        life.judge();
        for run in &life.world.runs {
            *came_to.entry(run.outcome.map_or("open", JobOutcome::as_str)).or_default() += 1;
        }
    }
    came_to
}

/// The same of `every`: one run is due at a time, and successes are at least that far apart.
#[test]
fn every_is_that_long_after_the_last_start() {
    for seed in 0..JOBS as u64 {
        let mut chance = Chance::Seeded(seed);
        let every = one_of(&mut chance, &["1s", "15m", "1h", "1d", "1d at 23:59", "3d at 02:30"]);
        let retry = one_of(&mut chance, &["0", "5m", "90m"]);
        let text = format!("[a]\nevery = \"{every}\"\nretry = \"{retry}\"\nretry_most = \"3h\"");
        let world = World::unseen(crate::world::jobs(&text), utc("2026-03-27 20:11:13"));
        let mut life = Life { world, truth: Truth::default(), latest: None, open: None };
        life.world.tick();
        life.open = Some((life.world.now, None));
        for _ in 0..100 {
            life.pass(&mut chance);
        }
        life.settle();
        let job = life.world.job("a");
        let is_run = |run: &&JobRun| run.try_no == 1 && run.trigger != JobTrigger::Manual;
        let first_tries = life.world.runs.iter().filter(is_run);
        for (one, next) in first_tries.clone().zip(first_tries.skip(1)) {
            assert!(
                next.started_at >= job.schedule.next_after(one.started_at),
                "seed {seed}: {one:?} {next:?}"
            );
            assert!(next.due <= next.started_at, "seed {seed}: {next:?}");
        }
        assert!(life.world.runs.iter().all(|run| run.occurrences == 1));
        assert!(life.world.row("a").next_due > Some(life.world.now), "seed {seed}");
    }
}
