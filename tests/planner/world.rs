//! Jobs whose rows are kept here, on a clock that is set by hand.

use std::time::{Duration, SystemTime};

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use onedrop::config::{Config, JobSettings};
use onedrop::jobs::plan::{self, JobPlan, JobStep, LockSight, RunEnd};
use onedrop::ledger::{JobOutcome, JobRow, JobRun};
use onedrop_kit::TempRoot;

/// `2026-03-29 03:17`, or with seconds, in UTC.
pub fn utc(text: &str) -> SystemTime {
    let time: DateTime = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    time.to_zoned(TimeZone::UTC).expect("a time").timestamp().into()
}

/// In the form that [`utc`] reads, without seconds that are 0.
pub fn shown(time: SystemTime) -> String {
    let time = jiff::Timestamp::try_from(time).expect("a time").to_zoned(TimeZone::UTC);
    let text = time.strftime("%Y-%m-%d %H:%M:%S%.f").to_string();
    text.strip_suffix(":00").unwrap_or(&text).to_owned()
}

/// The jobs of a configuration, by sections without `jobs.` and, where there is none, a command.
pub fn jobs(text: &str) -> Vec<JobSettings> {
    try_jobs(text).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

/// The same, or what is wrong.
pub fn try_jobs(text: &str) -> Result<Vec<JobSettings>, String> {
    let mut full = "[directory]\ndomains = [\"mail.example\"]\n".to_owned();
    for line in text.lines().map(str::trim) {
        full += &match line.strip_prefix('[') {
            Some(name) => format!("[jobs.{name}\ncommand = [\"true\"]\n"),
            None => format!("{line}\n"),
        };
    }
    let folder = TempRoot::new();
    let file = folder.join("onedrop.toml");
    std::fs::write(&file, &full).expect("a file");
    let loaded = Config::load_from(Some(&file), std::iter::empty());
    loaded.map(|loaded| loaded.config.jobs.jobs).map_err(|errors| errors.to_string())
}

pub struct World {
    pub jobs: Vec<JobSettings>,
    pub now: SystemTime,
    pub rows: Vec<JobRow>,
    /// All runs and skips, in the order in which they came on record.
    pub runs: Vec<JobRun>,
    epoch: i64,
}

impl World {
    /// One in which every job has been seen at `now`.
    pub fn new(text: &str, now: &str) -> World {
        let mut world = World::unseen(jobs(text), utc(now));
        world.tick();
        world
    }

    pub fn unseen(jobs: Vec<JobSettings>, now: SystemTime) -> World {
        World { jobs, now, rows: Vec::new(), runs: Vec::new(), epoch: 0 }
    }

    pub fn job(&self, name: &str) -> JobSettings {
        self.jobs.iter().find(|job| job.name == name).expect("a job").clone()
    }

    pub fn row(&self, name: &str) -> &JobRow {
        self.rows.iter().find(|row| row.name == name).expect("a row")
    }

    /// What is to be done about a job now. Nothing changes.
    pub fn plan(&self, name: &str, lock: LockSight) -> JobPlan {
        plan::plan(&self.job(name), &self.rows, &self.jobs, self.now, lock)
    }

    /// A pass over all jobs in their order: writes what is to be written, begins what is to run,
    /// and returns the names of these. A run on record as open goes on.
    pub fn tick(&mut self) -> Vec<String> {
        let names: Vec<String> = self.jobs.iter().map(|job| job.name.clone()).collect();
        names.into_iter().filter(|name| self.starts(name, LockSight::NotOurs)).collect()
    }

    /// One job's part of a pass; true where a run of it begins.
    pub fn starts(&mut self, name: &str, lock: LockSight) -> bool {
        let plan = self.plan(name, lock);
        self.take(plan)
    }

    /// What the ledger refuses of a plan is passed over, as a run and a tick do it.
    fn passed(&self, plan: JobPlan) -> JobPlan {
        let job = self.job(&plan.row.name);
        let runs: Vec<JobRun> =
            self.runs.iter().filter(|run| run.job == job.name).cloned().collect();
        let (_, added, ended) = plan::begin(plan.clone(), 1, "", 1, self.now);
        match self.would_take(&added, ended.as_ref()) {
            true => plan,
            false => plan::pass_over(&job, plan, &runs),
        }
    }

    fn would_take(&self, added: &[JobRun], ended: Option<&JobRun>) -> bool {
        let key = |run: &JobRun| (run.job.clone(), run.due, run.try_no);
        let has = |run: &JobRun| self.runs.iter().any(|other| key(other) == key(run));
        let is_open = |run: &JobRun| {
            self.runs.iter().any(|other| key(other) == key(run) && other.ended_at.is_none())
        };
        !added.iter().any(has) && ended.is_none_or(is_open)
    }

    /// Puts a plan on record; true where a run begins.
    pub fn take(&mut self, plan: JobPlan) -> bool {
        let plan = self.passed(plan);
        let begins = matches!(plan.step, JobStep::Run { .. });
        let changed = plan.changed;
        self.epoch += 1;
        let (row, added, crashed) = plan::begin(plan, self.epoch, "mx1", 7, self.now);
        if begins || changed {
            self.write(row, added, crashed);
        }
        begins
    }

    /// `jobs run --force`, for a due time if one is named, with how many tries of it there are.
    pub fn force(&mut self, name: &str, due: Option<(SystemTime, u32)>) -> Result<(), String> {
        let plan = plan::force(&self.job(name), &self.rows, due, self.now, LockSight::Ours)?;
        assert!(self.take(plan), "it begins");
        Ok(())
    }

    /// Writes them like the ledger.
    pub fn write(&mut self, mut row: JobRow, added: Vec<JobRun>, ended: Option<JobRun>) {
        if let Some(ended) = ended {
            let open = self.runs.iter_mut().find(|run| {
                let same = (&run.job, run.due, run.try_no) == (&ended.job, ended.due, ended.try_no);
                same && run.ended_at.is_none()
            });
            let open = open.unwrap_or_else(|| panic!("no open run of {ended:?}"));
            open.ended_at = ended.ended_at;
            open.outcome = ended.outcome;
            open.exit = ended.exit;
            open.reason = ended.reason;
        }
        for run in added {
            let key = (&run.job, run.due, run.try_no);
            let twice = self.runs.iter().any(|other| (&other.job, other.due, other.try_no) == key);
            assert!(!twice, "{} at {} a second time", run.job, shown(run.due));
            self.runs.push(run);
        }
        row.revision += 1;
        self.rows.retain(|other| other.name != row.name);
        self.rows.push(row);
    }

    /// Ends the job's open run.
    pub fn end(&mut self, name: &str, outcome: JobOutcome) {
        let open = self.runs.iter().rfind(|run| run.job == name && run.ended_at.is_none());
        let run = open.expect("an open run").clone();
        let exit = Some(i32::from(outcome != JobOutcome::Ok));
        let (output, reason) = (String::new(), "it exited 1".to_owned());
        let how = RunEnd { outcome, exit, signal: None, output, reason };
        let (row, run) = plan::end(&self.job(name), self.row(name), &run, &how, self.now);
        self.write(row, Vec::new(), Some(run));
    }

    pub fn succeed(&mut self, name: &str) {
        self.end(name, JobOutcome::Ok);
    }

    pub fn fail(&mut self, name: &str) {
        self.end(name, JobOutcome::Failed);
    }

    /// At each of these times, or so often, everything that is due runs and succeeds at once, all
    /// that follows from it as well.
    pub fn at(&mut self, now: &str) -> &mut World {
        self.now = utc(now);
        self
    }

    pub fn passes(&mut self, seconds: u64) -> &mut World {
        self.now += Duration::from_secs(seconds);
        self
    }

    /// Runs all that is due until nothing is, each with success.
    pub fn run_all(&mut self) {
        loop {
            let names = self.tick();
            if names.is_empty() {
                return;
            }
            for name in names {
                self.succeed(&name);
            }
        }
    }

    /// Each minute from now until then, [`World::run_all`].
    pub fn run_until(&mut self, until: &str) {
        let until = utc(until);
        while self.now < until {
            self.passes(60).run_all();
        }
    }

    /// What is on record of a job, a line each: `ok 2026-03-29 03:17`, with the try if it is not
    /// the first, the trigger if it is not the schedule, and for a range its end and count.
    pub fn story(&self, name: &str) -> Vec<String> {
        let runs = self.runs.iter().filter(|run| run.job == name);
        runs.map(|run| {
            let outcome = run.outcome.map_or("open", JobOutcome::as_str);
            let mut line = format!("{outcome} {}", shown(run.due));
            if run.try_no > 1 {
                line += &format!(" try {}", run.try_no);
            }
            if run.trigger != onedrop::ledger::JobTrigger::Schedule {
                line += &format!(" {}", run.trigger);
            }
            if run.occurrences > 1 {
                line += &format!(" to {}, {} times", shown(run.last_due), run.occurrences);
            }
            line
        })
        .collect()
    }

    /// When a job may start next, if it waits for nothing but time.
    pub fn next(&self, name: &str) -> String {
        match self.plan(name, LockSight::NotOurs).step {
            JobStep::NotBefore(time) => shown(time),
            step => format!("{step:?}"),
        }
    }
}
