//! A job's next time where the configuration and the row have come apart: another schedule, a job
//! that was disabled, a clock that was wrong, a time zone with other rules.

use std::time::{Duration, SystemTime};

use super::{CHANGED, DISABLED, MILLI, ON_TIME, Planner, skip, skips, wait};
use crate::schedule::Schedule;
use onedrop_core::ledger::{JobOutcome, JobRun};

/// A row that was seen this long after now has its due times from a clock that was wrong.
const CLOCK_WAS_AHEAD: Duration = Duration::from_secs(86_400);

impl Planner<'_> {
    /// The next due time anew, where the one on record cannot come from this schedule and a right
    /// clock.
    pub(super) fn follow_schedule(&mut self) {
        let (job, now) = (self.job, self.now);
        if self.row.schedule != job.schedule.to_string() {
            self.begin_from_now(if self.row.next_try == 0 { DISABLED } else { CHANGED });
        } else if self.row.next_try == 0 {
            self.begin_from_now(DISABLED);
        }
        let Some(due) = self.row.next_due else { return self.start_anew() };
        let is_wrong = match job.schedule.goes_by_starts() {
            true => due > job.schedule.next_after(now) + ON_TIME,
            false => {
                let was_ahead = self.row.seen_at > now + CLOCK_WAS_AHEAD;
                // No time of the schedule: the time zone has other rules by now.
                due > now && (was_ahead || !self.is_time(due))
            }
        };
        if is_wrong {
            // Nor has it succeeded for times to come.
            self.row.last_success_due = self.row.last_success_due.map(|due| due.min(now));
            self.start_anew();
        }
        let longest = match job.retry.is_zero() {
            true => job.schedule.next_after(now),
            false => now + wait(job, self.row.next_try.saturating_sub(1)),
        };
        if self.row.retry_at.is_some_and(|at| at > longest + ON_TIME) {
            self.row.retry_at = Some(longest);
        }
    }

    /// From the first time that was not tried on, nothing is made up for: the row says so by try 0.
    pub(super) fn disable(&mut self) {
        if self.row.next_try > 1
            && !self.job.schedule.goes_by_starts()
            && let Some(due) = self.row.next_due
        {
            let on_record = Schedule::on_record(&self.row.schedule);
            let schedule = on_record.as_ref().unwrap_or(&self.job.schedule);
            self.row.next_due = Some(schedule.next_after(due));
        }
        self.row.next_try = 0;
        self.row.retry_at = None;
    }

    /// By the configuration's schedule, without a backlog. Hosts that have different schedules for
    /// a while come here in turns: a time of both, up to [`ON_TIME`] ago, is run all the same.
    fn begin_from_now(&mut self, reason: &str) {
        let (job, now) = (self.job, self.now);
        let (text, pending) = (job.schedule.to_string(), self.row.next_due);
        let is_changed = self.row.schedule != text;
        let old = Schedule::on_record(&self.row.schedule);
        let first = self.first_untried(old.as_ref());
        if job.schedule.goes_by_starts() {
            self.start_anew();
        } else {
            let oldest = now.checked_sub(self.delay + ON_TIME).unwrap_or(SystemTime::UNIX_EPOCH);
            let oldest = oldest.max(self.row.first_seen + MILLI);
            match pending.filter(|due| (oldest..=now).contains(due) && self.is_time(*due)) {
                Some(_) => self.row.next_try = self.row.next_try.max(1),
                None => {
                    let is_done = |due: SystemTime| {
                        let by_old = || old.as_ref()?.newest_until(due);
                        self.row.last_success_due >= Some(due)
                            || Some(due) < pending && by_old() == Some(due)
                    };
                    let mut due = job.schedule.next_after(oldest - MILLI);
                    while due <= now && is_done(due) {
                        due = job.schedule.next_after(due);
                    }
                    self.start_at(due);
                }
            }
        }
        let kept = self.row.next_due.unwrap_or(now);
        let is_restart = !is_changed && job.schedule.goes_by_starts();
        if let Some(first) = first.filter(|first| *first <= now && !is_restart) {
            self.leave_out(first, old.as_ref(), kept, reason);
        }
        self.replaced = is_changed.then(|| std::mem::replace(&mut self.row.schedule, text));
    }

    /// The first time that no run has begun for; `old` is the schedule on record.
    pub(super) fn first_untried(&self, old: Option<&Schedule>) -> Option<SystemTime> {
        let due = self.row.next_due?;
        let is_tried = self.row.next_try > 1 || self.row.open.is_some_and(|(open, _)| open == due);
        match is_tried {
            false => Some(due),
            true => Some(old.filter(|old| !old.goes_by_starts())?.next_after(due)),
        }
    }

    /// Skips the times from this one until now, but those from `kept` on that the configuration's
    /// schedule has as well.
    pub(super) fn leave_out(
        &mut self,
        first: SystemTime,
        old: Option<&Schedule>,
        kept: SystemTime,
        reason: &str,
    ) {
        let (job, now) = (self.job, self.now);
        let skip = JobRun {
            outcome: Some(JobOutcome::SkippedMissed),
            reason: reason.to_owned(),
            ..skip(&self.row.name, first, now)
        };
        let mut owned = vec![(kept, kept)];
        while let Some((last, _)) = owned.last().filter(|(last, _)| *last <= now) {
            let next = job.schedule.next_after(*last);
            if job.schedule.goes_by_starts() || next <= *last {
                break;
            }
            owned.push((next, next));
        }
        match old {
            Some(old) => {
                let last_due = old.newest_until(now).unwrap_or(first).max(first);
                let occurrences = skips::count(old, first, last_due);
                let skip = JobRun { last_due, occurrences, ..skip };
                self.skipped.extend(skips::without(skip, old, &owned));
            }
            None if owned.iter().any(|(due, _)| *due == first) => {}
            None => {
                let reason = format!("{reason}; those after it are not known on this host");
                self.skipped.push(JobRun { reason, ..skip });
            }
        }
    }
}
