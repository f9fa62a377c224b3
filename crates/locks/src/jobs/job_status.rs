//! How jobs stand, for people and for monitoring systems: a job of the configuration beside what
//! the ledger has on record of it and of its lock. Asking takes no lock and changes nothing.
//!
//! A run is taken for crashed only if its row is open and its lock free at one moment: a run begins
//! and ends under its lock.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use super::held_job;
use super::plan::{self, JobStep, LockSight, ON_TIME};
use crate::jobs::{Backfill, JobSettings};
use onedrop_core::duration::brief;
use onedrop_core::exit::PluginStatus;
use onedrop_core::ledger::{JobRow, Jobs, JobsOnRecord, LedgerError, LockRow, Locks};

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
        let mut record = ledger.jobs(until)?;
        for _ in 0..READS {
            let mut holders = BTreeMap::new();
            for row in ledger.lock_rows(None, until)? {
                if let Some(job) = held_job(&row).map(str::to_owned) {
                    holders.insert(job, row);
                }
            }
            let JobsOnRecord { now, jobs } = record;
            // Whether a tick has put the end of a pause on record or not.
            let rows = jobs.into_iter().map(|row| plan::resumed(row, now)).collect();
            let seen = JobsSeen { now, rows, holders };
            if seen.rows.iter().all(|row| seen.agrees(row)) {
                return Ok(seen);
            }
            // What a row says before and after was so between, when the locks were read.
            let after = ledger.jobs(until)?;
            let is_same = |row: &JobRow| {
                after.jobs.iter().any(|other| {
                    (&other.name, other.open, other.epoch) == (&row.name, row.open, row.epoch)
                })
            };
            if seen.rows.iter().all(|row| seen.agrees(row) || is_same(row)) {
                return Ok(seen);
            }
            record = after;
        }
        Err(LedgerError::TookTooLong("reading jobs that begin and end all the time".to_owned()))
    }

    /// Whether a job has an open run and the lock of that, or neither.
    fn agrees(&self, row: &JobRow) -> bool {
        let holder = self.holders.get(&row.name);
        is_running(row, holder) || row.open.is_none() && holder.is_none()
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

    /// Failures in a row, with a crash that is not settled yet.
    pub fn failures(&self) -> u32 {
        self.row.map_or(0, |row| row.errors.saturating_add(u32::from(self.is_crash())))
    }

    /// Its run went away, and was not to end.
    fn is_crash(&self) -> bool {
        let is_to_stop = |row: &JobRow| row.is_to_stop(row.epoch);
        self.state == JobState::Crashed && !self.row.is_some_and(is_to_stop)
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
    pub fn is_on(&self) -> bool {
        self.job.enabled && self.row.is_none_or(|row| row.paused.is_none())
    }

    /// The status for a monitoring system. A job that makes up for every time that it has missed
    /// gets a second try before its failure is critical.
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

    /// A sentence: what is wrong with it.
    pub fn trouble(&self) -> String {
        let name = &self.job.name;
        let Some(row) = self.row else {
            return format!("{name} is not on record yet (does onedrop jobs tick run?)");
        };
        let mut said = Vec::new();
        if self.failures() > 0 {
            let how = match row.last_exit {
                _ if self.is_crash() => " (crashed)".to_owned(),
                Some(status) => format!(" (exit {status})"),
                None => String::new(),
            };
            said.push(format!("failed {}x{how}", self.failures()));
        }
        if let Some(by) = self.overdue {
            said.push(format!("overdue by {}", brief(by)));
        }
        format!("{name} {}", said.join(" and "))
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
    since(next, job.schedule.next_after(next))
}

/// The time at which it is due next.
fn next_due(job: &JobSettings, row: &JobRow) -> Option<SystemTime> {
    match row.open {
        _ if !is_current(job, row) => Some(job.schedule.next_after(row.seen_at)),
        None => row.next_due,
        // Of `every` it counts from the start.
        Some((due, _)) => {
            let start = row.last_start.filter(|_| job.schedule.goes_by_starts());
            Some(job.schedule.next_after(start.unwrap_or(due)))
        }
    }
}

/// The time at which it may start next.
fn next_start(job: &JobSettings, row: &JobRow) -> Option<SystemTime> {
    if !job.enabled || row.paused.is_some() {
        return None;
    }
    let retry_at = row.retry_at.filter(|_| row.open.is_none());
    let not_before = retry_at.max(row.resumed_at).unwrap_or(SystemTime::UNIX_EPOCH);
    Some((next_due(job, row)? + plan::delay(job)).max(not_before))
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
    // Those that it waits for have findings of their own.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::jobs::lock_name;
    use onedrop_core::hook::{Call, Hook};
    use onedrop_core::ledger::memory::MemoryLedger;
    use onedrop_core::ledger::{
        JobChange, JobOutcome, JobPause, JobRun, JobTrigger, LockClaim, LockHolder, LockRequest,
        LockTry, RandomValue, kept_time,
    };

    const HOUR: Duration = Duration::from_secs(3600);

    fn soon() -> Instant {
        Instant::now() + HOUR
    }

    /// A job whose next run begins, or whose run ends, just before somebody asks for locks.
    struct Between(MemoryLedger, AtomicU32, fn(&MemoryLedger));

    impl Hook<LedgerError> for Between {
        fn before(&self, call: &Call<'_>) -> Result<(), LedgerError> {
            if call.name == "lock_rows" && self.1.fetch_add(1, Ordering::SeqCst) == 0 {
                (self.2)(&self.0);
            }
            Ok(())
        }
    }

    fn begin(ledger: &MemoryLedger) {
        let claim = lock(ledger);
        let row = row(ledger);
        let run = run(claim.epoch);
        let row = JobRow { open: Some((run.due, 1)), epoch: claim.epoch, ..row };
        change(ledger, &row, &[run], None);
    }

    fn end(ledger: &MemoryLedger) {
        let row = row(ledger);
        let ended_at = Some(SystemTime::UNIX_EPOCH + HOUR);
        let run = JobRun { ended_at, outcome: Some(JobOutcome::Ok), ..run(row.epoch) };
        let row = JobRow { open: None, ..row };
        change(ledger, &row, &[], Some(&run));
        let held = ledger.lock_rows(None, soon()).unwrap().remove(0);
        let LockRow { name, slot, epoch, owner, .. } = held;
        assert!(ledger.release_lock(&LockClaim { name, slot, epoch, owner }, soon()).unwrap());
    }

    fn row(ledger: &MemoryLedger) -> JobRow {
        ledger.jobs(soon()).unwrap().jobs.remove(0)
    }

    fn run(epoch: i64) -> JobRun {
        let (start, due) = (SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + HOUR);
        JobRun { epoch, pid: 1, ..JobRun::new("verify", due, JobTrigger::Schedule, start) }
    }

    fn change(ledger: &MemoryLedger, row: &JobRow, added: &[JobRun], ended: Option<&JobRun>) {
        let seen = Some(row.revision).filter(|revision| *revision > 0);
        let change = JobChange { seen, value: RandomValue::default(), row, added, ended };
        assert!(ledger.change_job(&change, soon()).unwrap());
    }

    fn lock(ledger: &MemoryLedger) -> LockClaim {
        let (name, holder) = (lock_name("verify").unwrap(), LockHolder::default());
        let owner = RandomValue::default();
        let request = LockRequest {
            name: &name,
            slots: &[1],
            owner,
            lease: HOUR,
            holder: &holder,
            waiting: None,
        };
        match ledger.take_lock(&request, soon()).unwrap() {
            LockTry::Taken { claim, .. } => claim,
            LockTry::Busy(rows) => panic!("{rows:?}"),
        }
    }

    /// What is seen where this happens between two questions, as state.
    fn seen(ledger: &MemoryLedger, between: fn(&MemoryLedger)) -> &'static str {
        let hook = Between(ledger.clone(), AtomicU32::new(0), between);
        let asked = ledger.with_hook(Arc::new(hook));
        let seen = JobsSeen::read(&asked, soon()).unwrap();
        let (row, holder) = (seen.row("verify").unwrap(), seen.holders.get("verify"));
        match (row.open.is_some(), is_running(row, holder), holder.is_some()) {
            (true, true, _) => "running",
            (true, false, _) => "crashed",
            (false, _, true) => "locked",
            (false, _, false) => "idle",
        }
    }

    /// Also where no tick has put the end of the pause on record, or looked since.
    #[test]
    fn a_pause_that_is_over_hides_nothing() {
        let ledger = MemoryLedger::default();
        let job = JobSettings::hourly("verify");
        let all = std::slice::from_ref(&job);
        let now = kept_time(ledger.jobs(soon()).unwrap().now);
        let new = JobRow::new("verify", job.schedule.to_string(), now - 100 * HOUR, now);
        let due = JobRow { next_due: Some(now - 90 * HOUR), ..new };
        let seen = |row: &JobRow| {
            let rows = vec![plan::resumed(row.clone(), now)];
            JobsSeen { now, rows, holders: BTreeMap::new() }
        };
        let paused_until = |until| {
            let paused = Some(JobPause { at: now - 99 * HOUR, note: String::new(), until });
            JobRow { paused, ..due.clone() }
        };
        for (row, state, overdue) in [
            (paused_until(None), JobState::Paused, None),
            (paused_until(Some(now + HOUR)), JobState::Paused, None),
            (paused_until(Some(now - 48 * HOUR)), JobState::Overdue, Some(48 * HOUR)),
            (JobRow { resumed_at: Some(now), ..due.clone() }, JobState::Ok, None),
            (due.clone(), JobState::Overdue, Some(90 * HOUR)),
        ] {
            let seen = seen(&row);
            let standing = JobStanding::of(&job, all, &seen);
            assert_eq!((standing.state, standing.overdue), (state, overdue), "{row:?}");
        }
        change(&ledger, &paused_until(Some(now - 48 * HOUR)), &[], None);
        assert!(JobsSeen::read(&ledger, soon()).unwrap().rows[0].paused.is_none());
    }

    #[test]
    fn that_a_run_went_away_is_no_failure_where_it_was_to_stop() {
        let job = JobSettings::hourly("verify");
        let now = SystemTime::UNIX_EPOCH + 100 * HOUR;
        let new = JobRow::new("verify", job.schedule.to_string(), now, now);
        for (stop_epoch, errors, failures) in [(0, 0, 1), (4, 0, 1), (5, 0, 0), (5, 1, 1)] {
            let open = Some((now, 1));
            let row = JobRow { open, epoch: 5, stop_epoch, errors, ..new.clone() };
            let seen = JobsSeen { now, rows: vec![row], holders: BTreeMap::new() };
            let standing = JobStanding::of(&job, std::slice::from_ref(&job), &seen);
            assert_eq!((standing.state, standing.failures()), (JobState::Crashed, failures));
            let is_told = standing.trouble().contains("crashed");
            assert_eq!(is_told, stop_epoch != 5, "{}", standing.trouble());
        }
    }

    #[test]
    fn what_changes_between_two_questions_is_asked_for_again() {
        let ledger = MemoryLedger::default();
        let now = SystemTime::UNIX_EPOCH;
        let new = JobRow::new("verify", String::new(), now, now);
        change(&ledger, &new, &[], None);
        let nothing = |_: &MemoryLedger| {};
        assert_eq!(seen(&ledger, nothing), "idle");
        assert_eq!(seen(&ledger, begin), "running");
        assert_eq!(seen(&ledger, nothing), "running");
        assert_eq!(seen(&ledger, end), "idle");
        let claim = lock(&ledger);
        assert_eq!(seen(&ledger, nothing), "locked");
        assert!(ledger.release_lock(&claim, soon()).unwrap());
        let row = JobRow { open: Some((now, 1)), epoch: claim.epoch, ..row(&ledger) };
        change(&ledger, &row, &[], None);
        assert_eq!(seen(&ledger, nothing), "crashed");
        lock(&ledger);
        assert_eq!(seen(&ledger, nothing), "crashed", "another has the lock");
    }
}
