//! Why times of a schedule were left out: a row for each range of them with one reason.
//!
//! A reason holds from one moment to another (a pause, a run that went on, the limit of `late`), so
//! the times between two such moments have the same, and thousands of them cost little.

use std::time::SystemTime;

use super::{MILLI, Others, Planner, SEEN_EVERY, has_succeeded, skip};
use crate::jobs::Backfill;
use crate::schedule::Schedule;
use onedrop_core::duration;
use onedrop_core::ledger::{JobOutcome, JobRun};

/// Beyond this the times of a range are not counted.
pub const MOST_COUNTED: u64 = 10_000;

impl Planner<'_> {
    /// Skips what comes before the chosen time, or all up to `newest` if none is. The first is no
    /// part of it if it was tried: the failed run is its record.
    pub(super) fn skip_up_to(
        &mut self,
        first: SystemTime,
        chosen: Option<SystemTime>,
        newest: SystemTime,
        others: &Others<'_>,
    ) {
        let schedule = &self.job.schedule;
        let from = if self.row.next_try > 1 { schedule.next_after(first) } else { first };
        let to = match chosen {
            Some(due) if from >= due => return,
            Some(due) => schedule.newest_until(due - MILLI).unwrap_or(from).max(from),
            None => newest,
        };
        let changes = self.changes(others);
        let mut at = from;
        while at <= to {
            let change = changes.iter().copied().filter(|change| *change > at).min();
            let last = match change {
                Some(change) if change <= to => {
                    schedule.newest_until(change - MILLI).map_or(at, |last| last.max(at))
                }
                _ => to,
            };
            let (outcome, reason) = self.why(at, others);
            let occurrences = count(schedule, at, last);
            match self.skipped.last_mut() {
                Some(range) if range.outcome == Some(outcome) && range.reason == reason => {
                    range.last_due = last;
                    range.occurrences = MOST_COUNTED.min(range.occurrences + occurrences);
                }
                _ => self.skipped.push(JobRun {
                    outcome: Some(outcome),
                    reason,
                    last_due: last,
                    occurrences,
                    ..skip(&self.row.name, at, self.now)
                }),
            }
            let next = schedule.next_after(last);
            if next <= last {
                return; // the schedule has come to its end
            }
            at = next;
        }
    }

    /// The moments at which the reason of a skip may become another.
    fn changes(&self, others: &Others<'_>) -> Vec<SystemTime> {
        let row = &self.row;
        let started = [
            row.paused.as_ref().map(|pause| pause.at),
            row.last_paused_at,
            row.resumed_at,
            row.last_start,
            row.last_end,
            Some(row.seen_at + SEEN_EVERY),
        ];
        let started = started.into_iter().flatten();
        let mut changes: Vec<_> = started.filter_map(|time| time.checked_sub(self.delay)).collect();
        changes.extend(self.cutoff());
        for (_, job, row) in others.each() {
            let (Some(job), Some(row)) = (job, row) else { continue };
            changes.extend(match job.schedule.goes_by_starts() {
                true => row.next_due,
                false => row.last_success_due.map(|due| job.schedule.next_after(due)),
            });
            changes.extend(row.next_due);
            changes.extend(row.last_success.and_then(|time| self.replaced_until(time)));
        }
        changes
    }

    /// The times before this one had given way to a later one by then.
    fn replaced_until(&self, time: SystemTime) -> Option<SystemTime> {
        self.job.schedule.newest_until(time.checked_sub(self.delay)?.checked_sub(MILLI)?)
    }

    fn why(&self, due: SystemTime, others: &Others<'_>) -> (JobOutcome, String) {
        let (job, row) = (self.job, &self.row);
        if self.cutoff().is_some_and(|cutoff| due < cutoff) {
            let late = duration::shown(job.late.unwrap_or_default());
            let reason = format!("it could not start within {late} of its time (late)");
            return (JobOutcome::SkippedLate, reason);
        }
        if job.backfill == Backfill::All {
            let reason = format!("more than {} were due (backfill_most)", job.backfill_most);
            return (JobOutcome::SkippedMost, reason);
        }
        let start = due + self.delay;
        let is_within = |from: Option<SystemTime>, to: Option<SystemTime>| {
            from.is_some_and(|from| from <= start) && to.is_none_or(|to| start < to)
        };
        let is_paused = row.paused.as_ref().is_some_and(|pause| pause.at <= start)
            || row.resumed_at.is_some() && is_within(row.last_paused_at, row.resumed_at);
        if is_paused {
            return (JobOutcome::SkippedPaused, "the job was paused".to_owned());
        }
        if row.last_end.is_some() && is_within(row.last_start, row.last_end) {
            return (JobOutcome::SkippedBusy, "the run before was still going on".to_owned());
        }
        let waited_for = others.each().find(|(_, job, other)| {
            let (Some(job), Some(other)) = (job, other) else { return true };
            let is_ready = job.enabled
                && other.paused.is_none()
                && other.errors == 0
                && has_succeeded(job, other, due);
            let came_too_late = || other.last_success.and_then(|time| self.replaced_until(time));
            !is_ready || came_too_late().is_some_and(|until| due < until)
        });
        // Later, no host looked: after an outage it is unknown what would have been.
        if let Some((name, _, _)) = waited_for
            && start < row.seen_at + SEEN_EVERY
        {
            return (JobOutcome::SkippedDependency, format!("it waited for {name}"));
        }
        let reason = match job.backfill {
            Backfill::None => "it was not started within 2m of its time",
            _ => "it was not started before its next time came",
        };
        (JobOutcome::SkippedMissed, reason.to_owned())
    }
}

/// How many times there are, both ends included.
pub(super) fn count(schedule: &Schedule, from: SystemTime, to: SystemTime) -> u64 {
    let (mut count, mut at) = (1, from);
    while count < MOST_COUNTED {
        let next = schedule.next_after(at);
        if next > to || next <= at {
            break;
        }
        (at, count) = (next, count + 1);
    }
    count
}

/// What a skip stands for but these times, from the first of each to the second.
pub(super) fn without(
    skip: JobRun,
    schedule: &Schedule,
    times: &[(SystemTime, SystemTime)],
) -> Vec<JobRun> {
    let is_in = |(from, to): &&(SystemTime, SystemTime)| *from <= skip.last_due && *to >= skip.due;
    let mut times: Vec<_> = times.iter().filter(is_in).copied().collect();
    if times.is_empty() {
        return vec![skip];
    }
    if schedule.goes_by_starts() {
        return Vec::new();
    }
    times.sort_unstable();
    let part = |from: SystemTime, to: SystemTime| JobRun {
        due: from,
        last_due: to,
        occurrences: count(schedule, from, to),
        ..skip.clone()
    };
    let (mut parts, mut at) = (Vec::new(), skip.due);
    for (from, to) in times {
        let before = schedule.newest_until(from - MILLI).filter(|before| *before >= at);
        // The first need not be a time by today's rules of the zone.
        let before = before.or_else(|| (at < from && at == skip.due).then_some(at));
        if let Some(before) = before {
            parts.push(part(at, before));
        }
        if to >= at {
            at = schedule.next_after(to);
        }
    }
    if at <= skip.last_due {
        parts.push(part(at, skip.last_due));
    }
    parts
}
