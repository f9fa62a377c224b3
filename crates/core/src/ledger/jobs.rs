//! The port of jobs' state and history (`onedrop jobs`): a row for each job, compared and set by
//! its revision, and a row for each run and each skip.
//!
//! Promise: a change of a job, the run that it ends and those that it adds are on record together
//! or not at all; a job has one run of an occurrence and try; a run ends once, and one that was
//! called crashed may still get the end that it had. A change made again with the same random
//! value, because its first answer was lost, finds its own. Reliance: what a row should say next is
//! the caller's affair, and that one process runs a job, a named lock's.
//!
//! Times are whole milliseconds of the years 1970 to 9999; others become the nearest of these.

use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use super::{LedgerError, RandomValue};

/// Bytes of a run's output; what goes before its last is left out.
pub const OUTPUT_BYTES: usize = 4096;
/// Bytes of any other text.
const TEXT_BYTES: usize = 4000;
/// The last millisecond of the year 9999.
const LAST_MILLIS: i64 = 253_402_300_799_999;

/// Every job on record, by name, and what the ledger's clock said as they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobsOnRecord {
    pub now: SystemTime,
    pub jobs: Vec<JobRow>,
}

/// What is on record of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRow {
    pub name: String,
    /// Set by the ledger: 1, and one more with each change.
    pub revision: i64,
    /// Schedule and time zone, as text, that `next_due` was computed by.
    pub schedule: String,
    pub paused: Option<JobPause>,
    /// The last pause that has ended.
    pub last_paused_at: Option<SystemTime>,
    pub resumed_at: Option<SystemTime>,
    /// Of the lock under which the last run began; 0: none did.
    pub epoch: i64,
    /// Due time and try of the run that has begun and not ended.
    pub open: Option<(SystemTime, u32)>,
    /// Where that run is; empty: none is open.
    pub open_host: String,
    /// When a tick first found that run without its lock.
    pub unheld_at: Option<SystemTime>,
    /// The run of this epoch is to end; 0: none is.
    pub stop_epoch: i64,
    /// Who wants that, and why.
    pub stop_by: String,
    /// `ok` or `failing`, the state that its hooks were last called for; empty: they never were.
    pub hooks_state: String,
    pub next_due: Option<SystemTime>,
    /// 0: the job is disabled.
    pub next_try: u32,
    /// Not before; `None`: when it is due.
    pub retry_at: Option<SystemTime>,
    /// When a configuration first had it.
    pub first_seen: SystemTime,
    /// When a configuration last had it, to the hour.
    pub seen_at: SystemTime,
    pub last_start: Option<SystemTime>,
    pub last_end: Option<SystemTime>,
    pub last_success: Option<SystemTime>,
    /// The newest due time that it has succeeded for.
    pub last_success_due: Option<SystemTime>,
    /// Exit status of the last run; 128 + n where signal n ended it.
    pub last_exit: Option<i32>,
    pub last_error: String,
    /// Failures since the last success.
    pub errors: u32,
    pub runs: u64,
}

/// Nothing starts until an administrator resumes the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPause {
    pub at: SystemTime,
    pub note: String,
    /// It is resumed by itself then.
    pub until: Option<SystemTime>,
}

/// A run of a job for one of its due times, or due times that were skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRun {
    pub job: String,
    pub due: SystemTime,
    /// From 1.
    pub try_no: u32,
    pub trigger: JobTrigger,
    /// Of the lock that it runs under.
    pub epoch: i64,
    pub host: String,
    pub pid: u32,
    pub started_at: SystemTime,
    pub ended_at: Option<SystemTime>,
    /// `None`: it has not ended.
    pub outcome: Option<JobOutcome>,
    pub exit: Option<i32>,
    pub signal: Option<i32>,
    /// The last [`OUTPUT_BYTES`] of what it wrote.
    pub output: String,
    /// Why it was skipped, or failed: a sentence.
    pub reason: String,
    /// The last due time that a skip stands for; of a run its own.
    pub last_due: SystemTime,
    /// How many due times it stands for.
    pub occurrences: u64,
}

/// What made a run begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobTrigger {
    Schedule,
    Retry,
    Backfill,
    Manual,
}

/// How a run ended, or why there was none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobOutcome {
    Ok,
    Failed,
    Timeout,
    /// An administrator has ended it.
    Stopped,
    /// Its lock was lost.
    Lost,
    /// Its process went without a word.
    Crashed,
    /// An administrator said that it is done.
    Marked,
    SkippedLate,
    SkippedMissed,
    SkippedBusy,
    SkippedPaused,
    SkippedDependency,
    SkippedMost,
}

impl JobTrigger {
    pub const ALL: [JobTrigger; 4] =
        [JobTrigger::Schedule, JobTrigger::Retry, JobTrigger::Backfill, JobTrigger::Manual];

    pub fn as_str(self) -> &'static str {
        match self {
            JobTrigger::Schedule => "schedule",
            JobTrigger::Retry => "retry",
            JobTrigger::Backfill => "backfill",
            JobTrigger::Manual => "manual",
        }
    }
}

impl fmt::Display for JobTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl JobOutcome {
    pub const ALL: [JobOutcome; 13] = [
        JobOutcome::Ok,
        JobOutcome::Failed,
        JobOutcome::Timeout,
        JobOutcome::Stopped,
        JobOutcome::Lost,
        JobOutcome::Crashed,
        JobOutcome::Marked,
        JobOutcome::SkippedLate,
        JobOutcome::SkippedMissed,
        JobOutcome::SkippedBusy,
        JobOutcome::SkippedPaused,
        JobOutcome::SkippedDependency,
        JobOutcome::SkippedMost,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            JobOutcome::Ok => "ok",
            JobOutcome::Failed => "failed",
            JobOutcome::Timeout => "timeout",
            JobOutcome::Stopped => "stopped",
            JobOutcome::Lost => "lost",
            JobOutcome::Crashed => "crashed",
            JobOutcome::Marked => "marked",
            JobOutcome::SkippedLate => "skipped_late",
            JobOutcome::SkippedMissed => "skipped_missed",
            JobOutcome::SkippedBusy => "skipped_busy",
            JobOutcome::SkippedPaused => "skipped_paused",
            JobOutcome::SkippedDependency => "skipped_dependency",
            JobOutcome::SkippedMost => "skipped_most",
        }
    }

    /// There was no run.
    pub fn is_skip(self) -> bool {
        match self {
            JobOutcome::Ok
            | JobOutcome::Failed
            | JobOutcome::Timeout
            | JobOutcome::Stopped
            | JobOutcome::Lost
            | JobOutcome::Crashed
            | JobOutcome::Marked => false,
            JobOutcome::SkippedLate
            | JobOutcome::SkippedMissed
            | JobOutcome::SkippedBusy
            | JobOutcome::SkippedPaused
            | JobOutcome::SkippedDependency
            | JobOutcome::SkippedMost => true,
        }
    }
}

impl fmt::Display for JobOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What [`Jobs::change_job`] is given.
#[derive(Debug, Clone, Copy)]
pub struct JobChange<'a> {
    /// The revision that the caller has seen; `None`: there is no row yet.
    pub seen: Option<i64>,
    /// Of this change: made again, it finds that it has been made.
    pub value: RandomValue,
    /// What the row is to say; its `revision` means nothing.
    pub row: &'a JobRow,
    /// Runs of this job that begin, and skips.
    pub added: &'a [JobRun],
    /// A run of this job that is on record as open, or as crashed, as it ends: with its time,
    /// outcome, exit, signal, output and reason. What is on record of its beginning stays.
    pub ended: Option<&'a JobRun>,
}

/// Jobs and their runs on record.
pub trait Jobs: Send + Sync {
    /// Every job on record.
    ///
    /// # Errors
    /// [`LedgerError::Version`], and what makes a ledger unusable.
    fn jobs(&self, until: Instant) -> Result<JobsOnRecord, LedgerError>;

    /// Changes a job's row and its runs, durably, in one transaction. False, and nothing changed,
    /// where the row's revision is another than was seen, where `ended` is not there or its end is
    /// known already, or where a run of the same due time and try is there. Made again with the
    /// same value: true.
    ///
    /// # Errors
    /// Those of [`Jobs::jobs`].
    fn change_job(&self, change: &JobChange<'_>, until: Instant) -> Result<bool, LedgerError>;

    /// A job's runs and skips, the latest on record first, at most `limit`.
    fn job_runs(&self, job: &str, limit: u32, until: Instant) -> Result<Vec<JobRun>, LedgerError>;

    /// The last try for a due time that is on record; 0: none is.
    fn last_try(&self, job: &str, due: SystemTime, until: Instant) -> Result<u32, LedgerError>;

    /// Takes a job off the record, with its runs, durably; true where it is gone. False, and
    /// nothing changed, where its revision is another than `seen`.
    fn remove_job(&self, job: &str, seen: i64, until: Instant) -> Result<bool, LedgerError>;

    /// Takes runs and skips that ended longer ago than that off the record, the oldest first, at
    /// most `most`; returns how many there were.
    fn prune_job_runs(
        &self,
        older_than: Duration,
        most: u32,
        until: Instant,
    ) -> Result<u64, LedgerError>;

    /// Takes a job's runs and skips off the record, of those that have ended all but the `kept`
    /// latest, at most `most`; returns how many there were.
    fn prune_runs_of(
        &self,
        job: &str,
        kept: u32,
        most: u32,
        until: Instant,
    ) -> Result<u64, LedgerError>;
}

/// Milliseconds since 1970, as a ledger keeps a time.
pub fn time_millis(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(LAST_MILLIS).min(LAST_MILLIS)
}

/// The time of a column with milliseconds since 1970.
pub fn of_millis(millis: i64) -> SystemTime {
    let millis = millis.clamp(0, LAST_MILLIS).unsigned_abs();
    SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
}

/// The time as a ledger keeps it.
pub fn kept_time(time: SystemTime) -> SystemTime {
    of_millis(time_millis(time))
}

/// A text as a ledger keeps it: its first bytes, without NUL.
fn kept_text(text: &str) -> String {
    without_nul(&text[..text.floor_char_boundary(TEXT_BYTES)])
}

fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{FFFD}")
}

/// An output as a ledger keeps it: its last bytes, without NUL, which grows.
fn kept_output(output: &str) -> String {
    let tail = |text: &str| {
        let from = text.len().saturating_sub(OUTPUT_BYTES);
        text[text.ceil_char_boundary(from)..].to_owned()
    };
    tail(&without_nul(&tail(output)))
}

impl JobRow {
    /// Whether its run of this epoch is to end.
    pub fn is_to_stop(&self, epoch: i64) -> bool {
        self.stop_epoch != 0 && self.stop_epoch == epoch
    }

    /// A job that was never seen before `now`.
    pub fn new(name: &str, schedule: String, next_due: SystemTime, now: SystemTime) -> JobRow {
        JobRow {
            name: name.to_owned(),
            revision: 0,
            schedule,
            paused: None,
            last_paused_at: None,
            resumed_at: None,
            epoch: 0,
            open: None,
            open_host: String::new(),
            unheld_at: None,
            stop_epoch: 0,
            stop_by: String::new(),
            hooks_state: String::new(),
            next_due: Some(next_due),
            next_try: 1,
            retry_at: None,
            first_seen: now,
            seen_at: now,
            last_start: None,
            last_end: None,
            last_success: None,
            last_success_due: None,
            last_exit: None,
            last_error: String::new(),
            errors: 0,
            runs: 0,
        }
    }

    /// The row as a ledger keeps it.
    pub fn kept(&self) -> JobRow {
        let time = |time: Option<SystemTime>| time.map(kept_time);
        JobRow {
            name: self.name.clone(),
            revision: self.revision,
            schedule: kept_text(&self.schedule),
            paused: self.paused.as_ref().map(|pause| JobPause {
                at: kept_time(pause.at),
                note: kept_text(&pause.note),
                until: time(pause.until),
            }),
            last_paused_at: time(self.last_paused_at),
            resumed_at: time(self.resumed_at),
            epoch: self.epoch,
            open: self.open.map(|(due, try_no)| (kept_time(due), try_no)),
            open_host: kept_text(&self.open_host),
            unheld_at: time(self.unheld_at),
            stop_epoch: self.stop_epoch,
            stop_by: kept_text(&self.stop_by),
            hooks_state: kept_text(&self.hooks_state),
            next_due: time(self.next_due),
            next_try: self.next_try,
            retry_at: time(self.retry_at),
            first_seen: kept_time(self.first_seen),
            seen_at: kept_time(self.seen_at),
            last_start: time(self.last_start),
            last_end: time(self.last_end),
            last_success: time(self.last_success),
            last_success_due: time(self.last_success_due),
            last_exit: self.last_exit,
            last_error: kept_text(&self.last_error),
            errors: self.errors,
            runs: self.runs,
        }
    }
}

impl JobRun {
    /// The first try, as it begins.
    pub fn new(job: &str, due: SystemTime, trigger: JobTrigger, now: SystemTime) -> JobRun {
        JobRun {
            job: job.to_owned(),
            due,
            try_no: 1,
            trigger,
            epoch: 0,
            host: String::new(),
            pid: 0,
            started_at: now,
            ended_at: None,
            outcome: None,
            exit: None,
            signal: None,
            output: String::new(),
            reason: String::new(),
            last_due: due,
            occurrences: 1,
        }
    }

    /// The run as a ledger keeps it.
    pub fn kept(&self) -> JobRun {
        JobRun {
            due: kept_time(self.due),
            host: kept_text(&self.host),
            started_at: kept_time(self.started_at),
            ended_at: self.ended_at.map(kept_time),
            output: kept_output(&self.output),
            reason: kept_text(&self.reason),
            last_due: kept_time(self.last_due),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_kept_to_the_millisecond_and_within_the_calendar() {
        let at = |millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
        let exact = at(1_700_000_000_123);
        assert_eq!(kept_time(exact), exact);
        assert_eq!(kept_time(exact + Duration::from_nanos(999_999)), exact);
        assert_eq!(kept_time(SystemTime::UNIX_EPOCH - Duration::from_secs(5)), at(0));
        let last = LAST_MILLIS.unsigned_abs();
        assert_eq!(kept_time(at(last)), at(last));
        assert_eq!(kept_time(at(last + 1)), at(last));
        assert_eq!(kept_time(at(u64::MAX / 2)), at(last));
    }

    #[test]
    fn of_a_text_the_beginning_is_kept_and_of_an_output_the_end() {
        let text = "ä".repeat(3000);
        assert_eq!(kept_text(&text), "ä".repeat(2000));
        assert_eq!(kept_text("a\0b\nc\u{1b}"), "a\u{FFFD}b\nc\u{1b}");
        let output = format!("{}end\n", "ä".repeat(3000));
        let kept = kept_output(&output);
        assert_eq!(kept, format!("{}end\n", "ä".repeat(2046)));
        let kept = kept_output(&"\0".repeat(5000));
        assert!(kept.len() <= OUTPUT_BYTES && kept.chars().all(|c| c == '\u{FFFD}'), "{kept:?}");
    }

    #[test]
    fn every_word_on_record_means_one_thing() {
        let mut words: Vec<_> = JobOutcome::ALL.iter().map(|one| one.as_str()).collect();
        words.extend(JobTrigger::ALL.iter().map(|one| one.as_str()));
        words.sort_unstable();
        assert!(words.windows(2).all(|pair| pair[0] != pair[1]), "{words:?}");
    }
}
