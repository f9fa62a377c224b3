//! `onedrop jobs`: what it says of jobs, and what it changes on record.

mod asking;
mod changing;
mod check;
mod import;

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use onedrop::ledger::sqlite::SqliteLedger;
use onedrop::ledger::{
    JobChange, JobOutcome, JobRow, JobRun, JobTrigger, Jobs, LockClaim, LockHolder, LockRequest,
    LockTry, Locks, RandomValue,
};
use onedrop::net::pool::Limits;

use crate::command_line::Ended;
use crate::support::onedrop;
use crate::support::site::{Files, Site};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// Two jobs that wait for nothing, and one that makes up for all that it has missed.
const JOBS: &str = r#"
[jobs.verify]
schedule = "17 3 * * *"
command = ["onedrop", "verify"]
[jobs.purge]
every = "15m"
command = ["true"]
[jobs.report]
schedule = "0 5 * * *"
timezone = "Asia/Kolkata"
backfill = "all"
command = ["report"]
"#;

/// An administrator's host with jobs in its configuration and a ledger in a file.
struct Office {
    site: Site<Files>,
    config: PathBuf,
    ledger: SqliteLedger,
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

impl Office {
    fn with(jobs: &str) -> Office {
        let site = Site::embedded();
        let config = site.config("etc", jobs);
        let limits = Limits { used: 4, per_key: 4, kept: 4, idle: Duration::from_secs(60) };
        let ledger = SqliteLedger::new(site.root.join("ledger.db"), limits);
        Office { site, config, ledger }
    }

    fn new() -> Office {
        Office::with(JOBS)
    }

    fn jobs(&self, args: &[&str]) -> Ended {
        let mut command = onedrop();
        command.arg("jobs").args(args).env("ONEDROP_CONFIG", &self.config);
        command.env_remove("MAIL_CONFIG").stdin(Stdio::null());
        Ended::of(&command.output().expect("binary"))
    }

    fn json(&self, args: &[&str]) -> serde_json::Value {
        let ended = self.jobs(&[args, &["--json"]].concat());
        serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
    }

    fn now(&self) -> SystemTime {
        self.ledger.jobs(soon()).expect("jobs").now
    }

    fn row(&self, name: &str) -> JobRow {
        let rows = self.ledger.jobs(soon()).expect("jobs").jobs;
        rows.into_iter().find(|row| row.name == name).expect("the job on record")
    }

    /// Puts a row, and runs, on record.
    fn put(&self, row: &JobRow, added: &[JobRun]) {
        let seen = Some(row.revision).filter(|revision| *revision > 0);
        let change = JobChange { seen, value: RandomValue::default(), row, added, ended: None };
        assert!(self.ledger.change_job(&change, soon()).expect("a change"));
    }

    /// All jobs of [`JOBS`] on record, as they are when all is well.
    fn all_well(&self) {
        let now = self.now();
        for (name, schedule, age, next) in [
            ("verify", "17 3 * * * UTC", 20 * HOUR, 4 * HOUR),
            ("purge", "every 15m", HOUR / 6, HOUR / 12),
            ("report", "0 5 * * * Asia/Kolkata", 5 * HOUR, 19 * HOUR),
        ] {
            let start = now - age;
            self.put(
                &JobRow {
                    epoch: 1,
                    first_seen: now - 30 * DAY,
                    seen_at: now - HOUR / 2,
                    last_start: Some(start),
                    last_end: Some(start + Duration::from_secs(62)),
                    last_success: Some(start + Duration::from_secs(62)),
                    last_success_due: Some(start),
                    last_exit: Some(0),
                    runs: 7,
                    ..JobRow::new(name, schedule.to_owned(), now + next, now)
                },
                &[],
            );
        }
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut JobRow)) {
        let mut row = self.row(name);
        change(&mut row);
        self.put(&row, &[]);
    }

    /// Takes the lock of a job, as its run would.
    fn hold(&self, name: &str) -> LockClaim {
        self.hold_slot(name, 1)
    }

    fn hold_slot(&self, name: &str, slot: u32) -> LockClaim {
        let name = format!("jobs/{name}").parse().expect("a name");
        let holder = LockHolder {
            host: "mx1".to_owned(),
            pid: 4711,
            command: "verify".to_owned(),
            note: String::new(),
            slots: 1,
        };
        let owner = RandomValue::default();
        let lease = Duration::from_secs(600);
        let request = LockRequest {
            name: &name,
            slots: &[slot],
            owner,
            lease,
            holder: &holder,
            waiting: None,
        };
        match self.ledger.take_lock(&request, soon()).expect("a lock") {
            LockTry::Taken { claim, .. } => claim,
            LockTry::Busy(rows) => panic!("{rows:?}"),
        }
    }

    /// A run that has begun, and holds its lock.
    fn begin(&self, name: &str, ago: Duration) -> LockClaim {
        let claim = self.hold(name);
        let start = self.now() - ago;
        let mut row = self.row(name);
        let run = run_of(&row, start, &claim);
        (row.open, row.last_start) = (Some((run.due, 1)), Some(start));
        (row.epoch, row.runs) = (claim.epoch, row.runs + 1);
        self.put(&row, &[run]);
        claim
    }
}

fn run_of(row: &JobRow, start: SystemTime, claim: &LockClaim) -> JobRun {
    let begun = JobRun::new(&row.name, start, JobTrigger::Schedule, start);
    JobRun { epoch: claim.epoch, host: "mx1".to_owned(), pid: 4711, ..begun }
}

/// A run that has ended, or a skip, this long ago.
fn ended_run(office: &Office, name: &str, ago: Duration, outcome: JobOutcome) -> JobRun {
    let start = office.now() - ago;
    let claim = LockClaim {
        name: "x".parse().expect("a name"),
        slot: 1,
        epoch: 1,
        owner: RandomValue::default(),
    };
    JobRun {
        outcome: Some(outcome),
        ended_at: Some(start + Duration::from_secs(3)),
        ..run_of(&office.row(name), start, &claim)
    }
}
