//! What is to be done about a job, by what is on record of it and what time it is: values in,
//! values out.
//!
//! Promise: from the moment a job is first seen, each time of its schedule is run or skipped, once,
//! in order; a skip is a row with its reason. A plan makes nothing happen: the ledger takes the row
//! that it gives only if it was not changed since, and one run of a due time and try, so that any
//! number of hosts may plan at once.
//!
//! Reliance: all times are by one clock, the ledger's. Where that steps back by up to a day, times
//! that were dealt with are not dealt with again; by more, the schedule goes on from then.

mod change;
mod commands;
mod others;
mod skips;

use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use crate::jobs::{Backfill, JobSettings};
use crate::lock::END_KEPT_WITHIN;
use crate::schedule::Schedule;
use onedrop_core::ledger::{JobOutcome, JobRow, JobRun, JobTrigger, kept_time};

use others::{Others, has_succeeded};

pub use commands::{force, mark_done, pause, reset, resume, resumed, stop, succeeded_elsewhere};
pub use skips::MOST_COUNTED;

/// How long after its time a run is on time: hosts look every minute.
pub const ON_TIME: Duration = Duration::from_secs(120);
/// Minimum interval between two updates of a row's `seen_at`.
const SEEN_EVERY: Duration = Duration::from_secs(3600);
const CHANGED: &str = "the schedule was changed before it had run";
const DISABLED: &str = "the job was disabled";
/// What counts, at most, of the time between two sights of an open run without its lock: its host
/// may have been without the ledger for all of it, and looks again within a minute. Of the 90 s for
/// which others wait by default, that minute is left after any outage.
const IN_TOUCH: Duration = Duration::from_secs(30);
/// What the ledger keeps of a time.
const MILLI: Duration = Duration::from_millis(1);

/// Whether the caller has the job's lock, so that no other process can be running it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockSight {
    Ours,
    NotOurs,
}

/// Which of the ends of runs that this host keeps have been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndsRead {
    All,
    /// What kept it from reading the others is in the log.
    NotAll,
}

/// What is to be done about a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPlan {
    /// What the job's row is to say.
    pub row: JobRow,
    /// Times that are skipped, oldest first.
    pub skipped: Vec<JobRun>,
    /// The run that was on record as open, settled; only with the lock.
    pub crashed: Option<JobRun>,
    /// Whether there is anything to write, also where nothing runs.
    pub changed: bool,
    /// The schedule that was on record, where the configuration has another by now.
    pub replaced: Option<String>,
    pub step: JobStep,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobStep {
    /// Run it for this time.
    Run { due: SystemTime, try_no: u32, trigger: JobTrigger },
    /// Nothing is to be done before this time, if nothing changes.
    NotBefore(SystemTime),
    /// It is due, and waits for these: `fetch`, `fetch (paused)`.
    WaitsFor(Vec<String>),
    /// An administrator has paused it, or it is disabled in the configuration.
    Paused,
    /// A run is on record as open: it goes on, or the holder of the lock may settle it.
    Open,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunEnd {
    pub outcome: JobOutcome,
    pub exit: Option<i32>,
    pub signal: Option<i32>,
    pub output: String,
    /// Why it failed: a sentence.
    pub reason: String,
}

/// What is to be done about `job`, one of `all`, at `now`. `rows` are all on record. With the lock,
/// a run that is on record as open has crashed.
pub fn plan(
    job: &JobSettings,
    rows: &[JobRow],
    all: &[JobSettings],
    now: SystemTime,
    lock: LockSight,
) -> JobPlan {
    let mut planner = match Planner::new(job, rows, now, lock) {
        Ok(planner) => planner,
        Err(open) => return *open,
    };
    if !job.enabled || planner.row.paused.is_some() {
        return planner.finish(JobStep::Paused);
    }
    let others = Others { job, rows, all };
    let step = match planner.choose(&others) {
        Choice::NotBefore(time) => JobStep::NotBefore(time),
        Choice::Due(_, Some(retry_at)) => JobStep::NotBefore(retry_at),
        Choice::Due(due, None) => match others.waited_for(due) {
            missing if missing.is_empty() => planner.run(due, &others),
            missing => JobStep::WaitsFor(missing),
        },
    };
    planner.finish(step)
}

/// The rows as a run begins: the job's, what is added (the run is the last of these), and the
/// crashed one, ended. Of a plan without a run, what there is to write.
pub fn begin(
    plan: JobPlan,
    epoch: i64,
    host: &str,
    pid: u32,
    now: SystemTime,
) -> (JobRow, Vec<JobRun>, Option<JobRun>) {
    let JobPlan { mut row, skipped: mut added, crashed, step, .. } = plan;
    let now = kept_time(now);
    if let JobStep::Run { due, try_no, trigger } = step {
        row.open = Some((due, try_no));
        row.open_host = host.to_owned();
        row.unheld_at = None;
        row.stop_epoch = 0;
        row.stop_by = String::new();
        row.epoch = epoch;
        row.last_start = Some(now);
        row.runs += 1;
        if row.next_due == Some(due) {
            row.next_try = try_no;
            row.retry_at = None;
        }
        added.push(JobRun {
            epoch,
            host: host.to_owned(),
            pid,
            try_no,
            ..JobRun::new(&row.name, due, trigger, now)
        });
    }
    (row, added, crashed)
}

/// The rows as a run has ended: of `row`, what another has changed while it ran stays.
pub fn end(
    job: &JobSettings,
    row: &JobRow,
    run: &JobRun,
    how: &RunEnd,
    now: SystemTime,
) -> (JobRow, JobRun) {
    let now = kept_time(now);
    ended(job, row, run, how, now, now)
}

/// The rows where the end of a run comes to light that was called crashed meanwhile: a success
/// counts, and no further try begins; one that has begun by then is the last.
pub fn end_of_a_crashed(
    job: &JobSettings,
    row: &JobRow,
    run: &JobRun,
    how: &RunEnd,
    ended_at: SystemTime,
) -> (JobRow, JobRun) {
    let ended_at = kept_time(ended_at);
    let what = match (how.outcome, how.exit) {
        (JobOutcome::Ok, _) => "ended 0".to_owned(),
        (_, Some(status)) if how.reason.is_empty() => format!("exit status {status}"),
        _ => how.reason.clone(),
    };
    let run = with_end(
        run,
        &RunEnd { reason: format!("{what}, after it was taken"), ..how.clone() },
        ended_at,
    );
    let mut row = row.clone();
    let is_pending = row.next_due == Some(run.due);
    let is_last = is_pending || row.last_start == Some(run.started_at);
    match how.outcome == JobOutcome::Ok {
        true if is_last => {
            let last_success = row.last_success;
            set_success(&mut row, run.due, ended_at);
            row.last_success = row.last_success.max(last_success);
        }
        true => {
            row.last_success = row.last_success.max(Some(ended_at));
            row.last_success_due = row.last_success_due.max(Some(run.due));
        }
        false => {}
    }
    if row.last_start == Some(run.started_at) {
        row.last_exit = how.exit.or(how.signal.map(|signal| 128 + signal));
        if how.outcome != JobOutcome::Ok {
            row.last_error.clone_from(&run.reason);
        }
    }
    if is_pending && how.outcome == JobOutcome::Ok {
        set_done(job, &mut row, run.due);
    }
    (row, run)
}

/// When a run that is on record as open, and whose lock is free, may be called crashed: `settle`
/// after it was first found so, but for the time in which the ledger was away. On its own host
/// earlier, if all ends that it keeps are `read`: each is there until the ledger has it, and soon
/// after the lock has run out.
pub fn crashed_at(
    row: &JobRow,
    host: &str,
    read: EndsRead,
    settle: Duration,
    now: SystemTime,
) -> SystemTime {
    let (first, in_touch) = unheld_since(row, now).unwrap_or((now, now));
    match row.open_host == host && read == EndsRead::All {
        true => first + settle.min(END_KEPT_WITHIN),
        false => in_touch + settle,
    }
}

/// Since when the lock of an open run is known to be free (by a clock that was ahead, not at all);
/// and later by what does not count of the time for which no host has seen it.
fn unheld_since(row: &JobRow, now: SystemTime) -> Option<(SystemTime, SystemTime)> {
    let at = row.unheld_at.filter(|at| *at <= now)?;
    let unseen = now.duration_since(row.seen_at).unwrap_or_default();
    Some((at, (at + unseen.saturating_sub(IN_TOUCH)).min(now)))
}

/// The row of a job whose open run was found without its lock.
pub fn unheld(row: &JobRow, now: SystemTime) -> JobRow {
    let now = kept_time(now);
    let at = unheld_since(row, now).map_or(now, |(_, in_touch)| in_touch);
    JobRow { unheld_at: Some(at), seen_at: row.seen_at.max(now), ..row.clone() }
}

/// For when the ledger refuses a plan, although the row is unchanged: some of it is on record
/// already, from a run by hand, or from a time when the ledger's clock was wrong. A time that was
/// dealt with is passed over, one that failed is tried again unless that was its last try, and what
/// is skipped is the rest. A crashed run that is not on record any more is forgotten.
pub fn pass_over(job: &JobSettings, plan: JobPlan, on_record: &[JobRun]) -> JobPlan {
    let JobPlan { mut row, skipped, crashed, replaced, mut step, .. } = plan;
    let is_open = |crashed: &JobRun| {
        let key = (crashed.due, crashed.try_no);
        on_record.iter().any(|run| run.ended_at.is_none() && (run.due, run.try_no) == key)
    };
    let crashed = crashed.filter(is_open);
    let old = replaced.as_deref().and_then(Schedule::on_record);
    let known: Vec<_> = on_record.iter().map(|run| (run.due, run.last_due)).collect();
    let rest = |skip: JobRun| {
        let by_old = old.as_ref().filter(|_| skip.reason == CHANGED || skip.reason == DISABLED);
        skips::without(skip, by_old.unwrap_or(&job.schedule), &known)
    };
    let skipped = skipped.into_iter().flat_map(rest).collect();
    if let JobStep::Run { due, try_no, trigger } = step {
        let tries = || on_record.iter().filter(|run| run.due == due && run.try_no >= try_no);
        let is_done = |run: &JobRun| match run.outcome {
            Some(JobOutcome::Ok | JobOutcome::Stopped | JobOutcome::Marked) => true,
            outcome => {
                outcome.is_some_and(JobOutcome::is_skip) || is_last_try(job, run.try_no, run.exit)
            }
        };
        let is_manual = trigger == JobTrigger::Manual;
        step = match tries().map(|run| run.try_no).max() {
            None => step,
            Some(_) if !is_manual && tries().any(is_done) => {
                set_done(job, &mut row, due);
                JobStep::NotBefore(row.next_due.unwrap_or(due) + delay(job))
            }
            Some(last) => {
                let trigger = if is_manual { trigger } else { JobTrigger::Retry };
                JobStep::Run { due, try_no: last.saturating_add(1), trigger }
            }
        };
    }
    JobPlan { row, skipped, crashed, changed: true, replaced, step }
}

/// How long after its times a job starts: of `splay`, the part that its name gives.
pub fn delay(job: &JobSettings) -> Duration {
    let most = u64::try_from(job.splay.as_millis()).unwrap_or(u64::MAX);
    if most == 0 {
        return Duration::ZERO;
    }
    let hash = Sha256::digest(format!("onedrop/1/splay\0{}", job.name));
    let number = hash.iter().take(8).fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    Duration::from_millis(number % most)
}

/// What to do about the times that are due.
enum Choice {
    NotBefore(SystemTime),
    /// This one; not before the second.
    Due(SystemTime, Option<SystemTime>),
}

/// A plan as it is made.
struct Planner<'a> {
    job: &'a JobSettings,
    now: SystemTime,
    delay: Duration,
    before: Option<&'a JobRow>,
    row: JobRow,
    skipped: Vec<JobRun>,
    crashed: Option<JobRun>,
    replaced: Option<String>,
}

impl<'a> Planner<'a> {
    /// With the row as it is by now; `Err`: a run is on record as open.
    fn new(
        job: &'a JobSettings,
        rows: &'a [JobRow],
        now: SystemTime,
        lock: LockSight,
    ) -> Result<Planner<'a>, Box<JobPlan>> {
        let now = kept_time(now);
        let before = rows.iter().find(|row| row.name == job.name);
        let row = before.cloned().unwrap_or_else(|| first_sight(job, now));
        let row = resumed(row, now);
        let (skipped, crashed, replaced, delay) = (Vec::new(), None, None, delay(job));
        let mut planner = Planner { job, now, delay, before, row, skipped, crashed, replaced };
        if let Some((due, try_no)) = planner.row.open {
            if lock == LockSight::NotOurs {
                return Err(Box::new(planner.finish(JobStep::Open)));
            }
            planner.settle_crash(due, try_no);
        }
        match job.enabled {
            true => planner.follow_schedule(),
            false => planner.disable(),
        }
        Ok(planner)
    }

    fn finish(mut self, step: JobStep) -> JobPlan {
        let seen_ago = self.now.duration_since(self.row.seen_at);
        let is_far = |far: Duration| far >= SEEN_EVERY;
        if step != JobStep::Open && seen_ago.map_or_else(|error| is_far(error.duration()), is_far) {
            self.row.seen_at = self.now;
        }
        let changed =
            self.before != Some(&self.row) || !self.skipped.is_empty() || self.crashed.is_some();
        let Planner { row, skipped, crashed, replaced, .. } = self;
        JobPlan { row, skipped, crashed, changed, replaced, step }
    }

    /// The time of the crash is unknown: the wait for the next try counts from its start.
    fn settle_crash(&mut self, due: SystemTime, try_no: u32) {
        let started = self.row.last_start.unwrap_or(due);
        let run = JobRun {
            epoch: self.row.epoch,
            try_no,
            ..JobRun::new(&self.row.name, due, JobTrigger::Schedule, started)
        };
        let how = RunEnd {
            outcome: JobOutcome::Crashed,
            exit: None,
            signal: None,
            output: String::new(),
            reason: "its process, or its host, went away without a word".to_owned(),
        };
        let (row, run) = ended(self.job, &self.row, &run, &how, self.now, started);
        self.row = row;
        self.crashed = Some(run);
    }

    fn is_time(&self, due: SystemTime) -> bool {
        self.job.schedule.newest_until(due) == Some(due)
    }

    fn start_anew(&mut self) {
        self.start_at(fresh_due(self.job, &self.row, self.now));
    }

    fn start_at(&mut self, due: SystemTime) {
        self.row.next_due = Some(due);
        self.row.next_try = 1;
        self.row.retry_at = None;
    }

    /// The time that is to be run for, and skips for those that are left out before it.
    fn choose(&mut self, others: &Others<'_>) -> Choice {
        let first = self.row.next_due.unwrap_or(self.now);
        let is_tried = self.row.next_try > 1;
        if !is_tried && first + self.delay > self.now {
            return Choice::NotBefore(first + self.delay);
        }
        let schedule = &self.job.schedule;
        let (due, next) = match schedule.goes_by_starts() {
            true => {
                let newer = self.row.last_start.map_or(first, |start| schedule.next_after(start));
                let takes_over = is_tried && newer + self.delay <= self.now;
                (if takes_over { newer } else { first }, newer)
            }
            false => {
                let newest = self.newest(first);
                let next = schedule.next_after(newest);
                let chosen = self.chosen(first, newest);
                self.skip_up_to(first, chosen, newest, others);
                let Some(due) = chosen else {
                    set_done(self.job, &mut self.row, newest);
                    return Choice::NotBefore(next + self.delay);
                };
                (due, next)
            }
        };
        if due != first {
            self.row.next_due = Some(due);
            self.row.next_try = 1;
            self.row.retry_at = None;
        }
        let takes_turns = self.job.backfill != Backfill::All || self.job.schedule.goes_by_starts();
        let retry_at = self.row.retry_at.filter(|at| *at > self.now);
        let next = next + self.delay;
        Choice::Due(due, retry_at.map(|at| if takes_turns { at.min(next) } else { at }))
    }

    /// The newest time that may start by now.
    fn newest(&self, first: SystemTime) -> SystemTime {
        let horizon = self.now.checked_sub(self.delay).unwrap_or(SystemTime::UNIX_EPOCH);
        self.job.schedule.newest_until(horizon).map_or(first, |newest| newest.max(first))
    }

    /// Times before this one are too late to start.
    fn cutoff(&self) -> Option<SystemTime> {
        self.now.checked_sub(self.delay)?.checked_sub(self.job.late?)
    }

    /// Which of the times from `first` to `newest` is to be run for, if any.
    fn chosen(&self, first: SystemTime, newest: SystemTime) -> Option<SystemTime> {
        let schedule = &self.job.schedule;
        let cutoff = self.cutoff().unwrap_or(SystemTime::UNIX_EPOCH);
        if newest < cutoff {
            return None;
        }
        let is_retry = newest == first && self.row.next_try > 1;
        match self.job.backfill {
            Backfill::Latest => Some(newest),
            Backfill::None => {
                let is_on_time = self.now <= newest + self.delay + ON_TIME;
                (is_on_time || is_retry).then_some(newest)
            }
            Backfill::All => {
                let oldest = match first < cutoff {
                    true => schedule.next_after(cutoff - MILLI),
                    false => first,
                };
                let mut edge = newest;
                for _ in 1..self.job.backfill_most {
                    match schedule.newest_until(edge - MILLI) {
                        Some(before) if before > oldest => edge = before,
                        _ => return Some(oldest.min(newest)),
                    }
                }
                Some(edge)
            }
        }
    }

    fn run(&self, due: SystemTime, others: &Others<'_>) -> JobStep {
        let try_no = self.row.next_try;
        let newest = self.newest(due);
        // What kept it from starting before is no time that was missed.
        let start = due + self.delay;
        let is_busy = self.row.last_start.is_some_and(|began| began <= start);
        let busy = self.row.last_end.filter(|_| is_busy).unwrap_or(start);
        let ready = start.max(busy).max(others.ready_at().unwrap_or(start));
        let is_missed =
            newest > due && !self.job.schedule.goes_by_starts() || self.now > ready + ON_TIME;
        let trigger = match (try_no, is_missed) {
            (2.., _) => JobTrigger::Retry,
            (_, true) => JobTrigger::Backfill,
            (_, false) => JobTrigger::Schedule,
        };
        JobStep::Run { due, try_no, trigger }
    }
}

/// `wait_from`: what the wait for the next try counts from.
fn ended(
    job: &JobSettings,
    row: &JobRow,
    run: &JobRun,
    how: &RunEnd,
    now: SystemTime,
    wait_from: SystemTime,
) -> (JobRow, JobRun) {
    let mut row = row.clone();
    // Or it ended, or its host died, before it had read the wish.
    let is_stopped = how.outcome == JobOutcome::Stopped
        || row.is_to_stop(run.epoch) && how.outcome != JobOutcome::Ok;
    let run = with_end(run, how, now);
    row.open = None;
    row.open_host = String::new();
    row.unheld_at = None;
    row.stop_epoch = 0;
    row.stop_by = String::new();
    row.last_end = Some(now);
    row.last_exit = how.exit.or(how.signal.map(|signal| 128 + signal));
    let has_succeeded = how.outcome == JobOutcome::Ok;
    // Otherwise it was an extra one, or another has moved the job on meanwhile.
    let is_pending = row.next_due == Some(run.due);
    if has_succeeded {
        set_success(&mut row, run.due, now);
    } else if is_pending && !is_stopped {
        row.errors = row.errors.saturating_add(1);
        row.last_error.clone_from(&run.reason);
    }
    let is_final = is_stopped || is_last_try(job, run.try_no, how.exit);
    match is_pending {
        false => {}
        true if has_succeeded || is_final => {
            set_done(job, &mut row, run.due);
        }
        true => {
            row.next_try = run.try_no.saturating_add(1);
            row.retry_at = Some(match job.retry.is_zero() {
                true => job.schedule.next_after(now),
                false => wait_from + wait(job, run.try_no),
            });
        }
    }
    (row, run)
}

/// Whether no further try follows this one, if it failed with this status.
fn is_last_try(job: &JobSettings, try_no: u32, exit: Option<i32>) -> bool {
    let is_final = |status: i32| job.final_status.iter().any(|range| range.contains(&status));
    // Of times that are made up for in their order each is tried until it succeeds.
    let keeps_order = job.backfill == Backfill::All && !job.schedule.goes_by_starts();
    let is_tried_once = job.retry.is_zero() && !keeps_order;
    is_tried_once || job.tries > 0 && try_no >= job.tries || exit.is_some_and(is_final)
}

/// The run with its end.
pub fn with_end(run: &JobRun, how: &RunEnd, ended_at: SystemTime) -> JobRun {
    JobRun {
        ended_at: Some(ended_at),
        outcome: Some(how.outcome),
        exit: how.exit,
        signal: how.signal,
        output: how.output.clone(),
        reason: how.reason.clone(),
        ..run.clone()
    }
}

fn set_success(row: &mut JobRow, due: SystemTime, now: SystemTime) {
    row.errors = 0;
    row.last_error.clear();
    row.last_success = Some(now);
    row.last_success_due = row.last_success_due.max(Some(due));
}

/// All up to and with `due` has been dealt with.
fn set_done(job: &JobSettings, row: &mut JobRow, due: SystemTime) {
    let start = row.last_start.filter(|_| job.schedule.goes_by_starts());
    row.next_due = Some(job.schedule.next_after(start.unwrap_or(due)));
    row.next_try = 1;
    row.retry_at = None;
}

/// The wait for the next try after `tries` of them, at least one.
fn wait(job: &JobSettings, tries: u32) -> Duration {
    let doubled = 1u32.checked_shl(tries.saturating_sub(1)).unwrap_or(u32::MAX);
    job.retry.saturating_mul(doubled).min(job.retry_most)
}

/// When a job is due for which nothing is to be made up.
fn fresh_due(job: &JobSettings, row: &JobRow, now: SystemTime) -> SystemTime {
    match row.last_start.filter(|_| job.schedule.goes_by_starts()) {
        Some(start) => job.schedule.next_after(start.min(now)),
        None => job.schedule.first_due(now),
    }
}

fn first_sight(job: &JobSettings, now: SystemTime) -> JobRow {
    JobRow::new(&job.name, job.schedule.to_string(), job.schedule.first_due(now), now)
}

/// A time that is skipped.
fn skip(job: &str, due: SystemTime, now: SystemTime) -> JobRun {
    JobRun { ended_at: Some(now), ..JobRun::new(job, due, JobTrigger::Schedule, now) }
}
