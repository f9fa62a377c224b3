//! How jobs stand, for people and for monitoring systems: a job of the configuration beside what
//! the ledger has on record of it and of its lock. Asking takes no lock and changes nothing.
//!
//! A run is taken for crashed only if its row is open and its lock free at one moment: a run begins
//! and ends under its lock.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use super::job_of;
use super::plan::{self, JobStep, LockSight, ON_TIME};
use crate::config::{Backfill, JobSettings};
use crate::exit::PluginStatus;
use crate::ledger::{JobRow, Jobs, LedgerError, LockRow, Locks};

/// How often what is on record is read again before what changes all the time is believed.
const READS: usize = 5;

/// What is on record of all jobs at one moment.
#[derive(Debug)]
pub struct JobsSeen {
    /// By the ledger's clock.
    pub now: SystemTime,
    pub rows: Vec<JobRow>,
    /// Who holds the locks of jobs, by job.
    pub holders: BTreeMap<String, LockRow>,
}

impl JobsSeen {
    /// Reads it.
    ///
    /// # Errors
    /// The ledger cannot be asked.
    pub fn read<L: Jobs + Locks + ?Sized>(
        ledger: &L,
        until: Instant,
    ) -> Result<JobsSeen, LedgerError> {
        let mut before = ledger.jobs(until)?;
        for _ in 0..READS {
            let mut holders = BTreeMap::new();
            for row in ledger.lock_rows(None, until)? {
                if row.left.is_some()
                    && let Some(job) = job_of(&row.name)
                {
                    holders.insert(job.to_owned(), row);
                }
            }
            let after = ledger.jobs(until)?;
            // What was open before and after was so between, when the locks were read.
            let is_steady = |row: &JobRow| {
                row.open.is_none()
                    || after.jobs.iter().any(|other| {
                        (&other.name, other.open, other.epoch) == (&row.name, row.open, row.epoch)
                    })
            };
            if before.jobs.iter().all(is_steady) {
                return Ok(JobsSeen { now: before.now, rows: before.jobs, holders });
            }
            before = after;
        }
        Err(LedgerError::TookTooLong("reading jobs that begin and end all the time".to_owned()))
    }

    pub fn row(&self, job: &str) -> Option<&JobRow> {
        self.rows.iter().find(|row| row.name == job)
    }
}

/// How a job stands, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// `enabled = false`
    Disabled,
    /// On record, and not in the configuration.
    Ghost,
    /// Not on record: nothing has looked for jobs that are due since it is in the configuration.
    New,
    Running,
    /// A run is on record as open, and its process is gone.
    Crashed,
    Paused,
    /// Another command holds its lock.
    Locked,
    Failing,
    Overdue,
    Ok,
}

impl JobState {
    pub fn as_str(self) -> &'static str {
        match self {
            JobState::Disabled => "disabled",
            JobState::Ghost => "ghost",
            JobState::New => "new",
            JobState::Running => "running",
            JobState::Crashed => "crashed",
            JobState::Paused => "paused",
            JobState::Locked => "locked",
            JobState::Failing => "failing",
            JobState::Overdue => "overdue",
            JobState::Ok => "ok",
        }
    }
}

/// A job of the configuration as it stands.
#[derive(Debug)]
pub struct JobStanding<'a> {
    pub job: &'a JobSettings,
    pub row: Option<&'a JobRow>,
    pub holder: Option<&'a LockRow>,
    pub state: JobState,
    /// When it may start next, if anything says so; also a time that has passed.
    pub next: Option<SystemTime>,
    /// It is due, and waits for these: `fetch`, `fetch (paused)`.
    pub waits_for: Vec<String>,
    /// By how much that is past the time when it should have started.
    pub overdue: Option<Duration>,
}

impl<'a> JobStanding<'a> {
    /// How `job` stands, which is one of `all`.
    pub fn of(job: &'a JobSettings, all: &[JobSettings], seen: &'a JobsSeen) -> JobStanding<'a> {
        let row = seen.row(&job.name);
        let holder = seen.holders.get(&job.name);
        let next = row.and_then(|row| next_start(job, row));
        let waits_for = match plan::plan(job, &seen.rows, all, seen.now, LockSight::NotOurs).step {
            JobStep::WaitsFor(others) => others,
            JobStep::Run { .. } | JobStep::NotBefore(_) | JobStep::Paused | JobStep::Open => {
                Vec::new()
            }
        };
        let overdue = row.and_then(|row| overdue(job, row, &waits_for, all, seen));
        let state = match row {
            _ if !job.enabled => JobState::Disabled,
            None => JobState::New,
            Some(row) if is_running(row, holder) => JobState::Running,
            Some(row) if row.open.is_some() => JobState::Crashed,
            Some(row) if row.paused.is_some() => JobState::Paused,
            Some(_) if holder.is_some() => JobState::Locked,
            Some(row) if row.errors > 0 => JobState::Failing,
            Some(_) if overdue.is_some() => JobState::Overdue,
            Some(_) => JobState::Ok,
        };
        JobStanding { job, row, holder, state, next, waits_for, overdue }
    }

    /// Failures in a row, a crash that nobody has settled yet among them.
    pub fn failures(&self) -> u32 {
        let crash = u32::from(self.state == JobState::Crashed);
        self.row.map_or(0, |row| row.errors.saturating_add(crash))
    }

    /// Its last run failed, and it is expected to run.
    pub fn is_failing(&self) -> bool {
        self.is_on() && self.failures() > 0
    }

    /// The time that it is due for next, if anything says so.
    pub fn next_due(&self) -> Option<SystemTime> {
        self.row.and_then(|row| next_due(self.job, row))
    }

    /// Whether anything is expected of it.
    fn is_on(&self) -> bool {
        self.job.enabled && self.row.is_none_or(|row| row.paused.is_none())
    }

    /// What a monitoring system is told. A job that makes up for every time that it has missed gets
    /// a second try before its failure is critical.
    pub fn status(&self) -> PluginStatus {
        if !self.is_on() {
            return PluginStatus::Ok;
        }
        let failed = match (self.failures(), self.job.backfill) {
            (0, _) => PluginStatus::Ok,
            (1, Backfill::All) => PluginStatus::Warning,
            _ => PluginStatus::Critical,
        };
        let late = match (self.overdue, self.interval()) {
            (None, _) if self.row.is_none() => PluginStatus::Warning,
            (None, _) => PluginStatus::Ok,
            (Some(by), interval) if by < interval => PluginStatus::Warning,
            (Some(_), _) => PluginStatus::Critical,
        };
        failed.max(late)
    }

    /// The time between two of its times.
    fn interval(&self) -> Duration {
        let from = self.row.and_then(|row| row.next_due).unwrap_or(SystemTime::UNIX_EPOCH);
        interval(self.job, from)
    }

    /// How long ago it succeeded; if it never did, how long ago it came on record.
    pub fn success_age(&self, now: SystemTime) -> Option<Duration> {
        let row = self.row.filter(|_| self.is_on())?;
        Some(since(row.last_success.unwrap_or(row.first_seen), now))
    }
}

/// From then to `now`; 0 for a time to come.
pub fn since(then: SystemTime, now: SystemTime) -> Duration {
    now.duration_since(then).unwrap_or_default()
}

/// Whether the process of the open run has the lock.
pub fn is_running(row: &JobRow, holder: Option<&LockRow>) -> bool {
    row.open.is_some() && holder.is_some_and(|holder| holder.epoch == row.epoch)
}

/// Whether the schedule on record is the configuration's; else the next tick computes anew.
pub fn is_current(job: &JobSettings, row: &JobRow) -> bool {
    row.schedule == job.schedule.to_string()
}

fn interval(job: &JobSettings, from: SystemTime) -> Duration {
    let next = job.schedule.next_after(from);
    job.schedule.interval().unwrap_or_else(|| since(next, job.schedule.next_after(next)))
}

/// The time at which it is due next.
fn next_due(job: &JobSettings, row: &JobRow) -> Option<SystemTime> {
    match row.open {
        _ if !is_current(job, row) => Some(job.schedule.next_after(row.seen_at)),
        None => row.next_due,
        // Of `every` it counts from the start.
        Some((due, _)) => {
            let from = match job.schedule.interval() {
                Some(_) => row.last_start.unwrap_or(due),
                None => due,
            };
            Some(job.schedule.next_after(from))
        }
    }
}

/// The time at which it may start next.
fn next_start(job: &JobSettings, row: &JobRow) -> Option<SystemTime> {
    if !job.enabled || row.paused.is_some() {
        return None;
    }
    let retry_at = row.retry_at.filter(|_| row.open.is_none());
    let next = next_due(job, row)? + plan::delay(job);
    Some(next.max(retry_at.unwrap_or(SystemTime::UNIX_EPOCH)))
}

/// By how much it is past the time when it should have started.
fn overdue(
    job: &JobSettings,
    row: &JobRow,
    waits_for: &[String],
    all: &[JobSettings],
    seen: &JobsSeen,
) -> Option<Duration> {
    let next = next_start(job, row)?;
    let mut allowed = ON_TIME;
    // Those that it waits for are told by themselves.
    let can_run = |name: &String| {
        let is_enabled = all.iter().any(|one| one.name == *name && one.enabled);
        is_enabled && seen.row(name).is_none_or(|row| row.paused.is_none())
    };
    if !waits_for.is_empty() && job.depends_on.iter().all(can_run) {
        allowed += interval(job, next);
    }
    let by = since(next.checked_add(allowed)?, seen.now);
    (!by.is_zero()).then_some(by + allowed)
}
