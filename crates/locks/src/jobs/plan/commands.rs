//! What an administrator's commands make of a job's row.

use std::time::SystemTime;

use jiff::Timestamp;

use super::skips::count;
use super::{
    Choice, JobPlan, JobStep, LockSight, Others, Planner, delay, first_sight, set_done,
    set_success, skip,
};
use crate::jobs::JobSettings;
use crate::schedule::Schedule;
use onedrop_core::ledger::{JobOutcome, JobPause, JobRow, JobRun, JobTrigger, kept_time};

/// A run that an administrator wants now, whatever the schedule, a pause and dependencies say: for
/// the time that is due, else an extra one, which is due now and leaves the job's next time alone.
/// `due` names a time of the schedule instead, with how many tries of it are on record.
///
/// # Errors
/// `due` is no time of the schedule, or has not come, or the job is disabled: that is what hosts
/// agree on.
pub fn force(
    job: &JobSettings,
    rows: &[JobRow],
    due: Option<(SystemTime, u32)>,
    now: SystemTime,
    lock: LockSight,
) -> Result<JobPlan, String> {
    if !job.enabled {
        return Err("disabled in the configuration".to_owned());
    }
    let mut planner = match Planner::new(job, rows, now, lock) {
        Ok(planner) => planner,
        Err(open) => return Ok(*open),
    };
    let (due, try_no) = match due {
        Some((due, tried)) => {
            let due = kept_time(due);
            is_a_time(job, due)?;
            if due > planner.now {
                return Err(format!("{} has not come yet", shown(due)));
            }
            let next_try = match planner.row.next_due == Some(due) {
                true => planner.row.next_try,
                false => 1,
            };
            (due, next_try.max(tried.saturating_add(1)))
        }
        None => match planner.choose(&Others { job, rows, all: &[] }) {
            Choice::Due(due, _) => (due, planner.row.next_try),
            Choice::NotBefore(_) => (planner.now, 1),
        },
    };
    // An extra start counts: the next time is the one after it.
    if job.schedule.goes_by_starts() && planner.row.next_due != Some(due) {
        planner.row.next_due = Some(job.schedule.next_after(planner.now));
    }
    Ok(planner.finish(JobStep::Run { due, try_no, trigger: JobTrigger::Manual }))
}

/// The rows once everything up to a due time counts as done; by default the time that is due now.
/// The last is the one that says so.
///
/// # Errors
/// Nothing is due, or `until` is no time of the schedule, or it was dealt with.
pub fn mark_done(
    job: &JobSettings,
    rows: &[JobRow],
    until: Option<SystemTime>,
    now: SystemTime,
) -> Result<(JobRow, Vec<JobRun>), String> {
    // Times that are too old for a run are marked as well.
    let mut planner = match Planner::new(job, rows, now, LockSight::NotOurs) {
        Ok(planner) => planner,
        Err(_) => return Err("a run is on record as open".to_owned()),
    };
    let first = planner.row.next_due.unwrap_or(planner.now);
    let until = match until.map(kept_time) {
        Some(until) => {
            is_a_time(job, until)?;
            if until < first {
                return Err(format!("{} has been dealt with", shown(until)));
            }
            until
        }
        None if first + delay(job) > planner.now => {
            return Err(format!("nothing is due before {}", shown(first)));
        }
        None if job.schedule.goes_by_starts() => first,
        None => planner.newest(first),
    };
    let run = JobRun {
        last_due: until,
        occurrences: if until > first { count(&job.schedule, first, until) } else { 1 },
        ..mark(&planner, first)
    };
    let now = planner.now;
    set_success(&mut planner.row, until, now);
    set_done(job, &mut planner.row, until);
    if job.schedule.goes_by_starts() {
        planner.row.next_due = Some(job.schedule.next_after(now));
    }
    let JobPlan { row, skipped, .. } = planner.finish(JobStep::Paused);
    Ok((row, skipped.into_iter().chain([run]).collect()))
}

/// The rows of a job that last succeeded at this time, before its runs began here: its next time is
/// the one after that.
///
/// # Errors
/// It has run here since, or `at` has not come.
pub fn succeeded_elsewhere(
    job: &JobSettings,
    rows: &[JobRow],
    at: SystemTime,
    now: SystemTime,
) -> Result<(JobRow, Vec<JobRun>), String> {
    let at = kept_time(at);
    let mut planner = match Planner::new(job, rows, now, LockSight::NotOurs) {
        Ok(planner) => planner,
        Err(_) => return Err("a run is on record as open".to_owned()),
    };
    if at > planner.now {
        return Err(format!("{} has not come yet", shown(at)));
    }
    let start = planner.row.last_start.filter(|_| planner.row.runs > 0);
    if let Some(start) = start.filter(|start| *start >= at) {
        return Err(format!("it has run here since, at {}", shown(start)));
    }
    let due = job.schedule.newest_until(at).unwrap_or(at);
    let run = mark(&planner, due);
    set_success(&mut planner.row, due, at);
    planner.row.last_start = Some(at);
    planner.start_at(job.schedule.next_after(at));
    let JobPlan { row, skipped, .. } = planner.finish(JobStep::Paused);
    Ok((row, skipped.into_iter().chain([run]).collect()))
}

/// What says on record that an administrator has said so.
fn mark(planner: &Planner<'_>, due: SystemTime) -> JobRun {
    JobRun {
        try_no: planner.row.next_try.max(1),
        trigger: JobTrigger::Manual,
        outcome: Some(JobOutcome::Marked),
        reason: "an administrator said that it is done".to_owned(),
        ..skip(&planner.job.name, due, planner.now)
    }
}

/// The row of a job for which nothing is made up, and no failure counts: as if it were seen for the
/// first time. What it has done stays on record; times that were due are skipped, and `by` wanted
/// that.
pub fn reset(job: &JobSettings, row: &JobRow, by: &str, now: SystemTime) -> (JobRow, Vec<JobRun>) {
    let now = kept_time(now);
    let mut planner = Planner {
        job,
        now,
        delay: delay(job),
        before: Some(row),
        row: row.clone(),
        skipped: Vec::new(),
        crashed: None,
        replaced: None,
    };
    let old = Schedule::on_record(&row.schedule);
    let next = job.schedule.first_due(now);
    if let Some(first) = planner.first_untried(old.as_ref()).filter(|first| *first <= now) {
        planner.leave_out(first, old.as_ref(), next, &format!("{by} has reset the job"));
    }
    let row = JobRow {
        schedule: job.schedule.to_string(),
        next_due: Some(next),
        next_try: 1,
        retry_at: None,
        last_exit: None,
        last_error: String::new(),
        errors: 0,
        ..row.clone()
    };
    (row, planner.skipped)
}

/// The row of a job of which no run starts until it is resumed, by itself at `until`; a second
/// pause changes the note and that time.
pub fn pause(
    job: &JobSettings,
    row: Option<&JobRow>,
    note: &str,
    until: Option<SystemTime>,
    now: SystemTime,
) -> JobRow {
    let now = kept_time(now);
    let row = row.cloned().unwrap_or_else(|| first_sight(job, now));
    let at = row.paused.as_ref().map_or(now, |pause| pause.at);
    let until = until.map(kept_time);
    JobRow { paused: Some(JobPause { at, note: note.to_owned(), until }), ..row }
}

/// The row of a job whose open run is to end.
pub fn stop(row: &JobRow, by: &str) -> JobRow {
    JobRow { stop_epoch: row.epoch, stop_by: by.to_owned(), ..row.clone() }
}

/// The row of a job that is paused no longer.
pub fn resume(row: &JobRow, now: SystemTime) -> JobRow {
    match &row.paused {
        Some(pause) => JobRow {
            paused: None,
            last_paused_at: Some(pause.at),
            resumed_at: Some(kept_time(now)),
            ..row.clone()
        },
        None => row.clone(),
    }
}

/// The row as it is by now: a pause with an end may be over.
pub fn resumed(row: JobRow, now: SystemTime) -> JobRow {
    match row.paused.as_ref().and_then(|pause| pause.until) {
        Some(until) if until <= now => resume(&row, until),
        _ => row,
    }
}

fn is_a_time(job: &JobSettings, due: SystemTime) -> Result<(), String> {
    if job.schedule.goes_by_starts() {
        return Err("a job with every has no times by the clock".to_owned());
    }
    let newest = job.schedule.newest_until(due);
    if newest == Some(due) {
        return Ok(());
    }
    let next = shown(job.schedule.next_after(due));
    let around = match newest {
        Some(before) => format!("{} and {next}", shown(before)),
        None => next,
    };
    Err(format!("{} is no time of its schedule; the nearest are {around}", shown(due)))
}

/// RFC 3339 in UTC.
fn shown(time: SystemTime) -> String {
    Timestamp::try_from(time).map_or_else(|_| "that".to_owned(), |time| time.to_string())
}
