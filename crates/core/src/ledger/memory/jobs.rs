//! Jobs and their runs in memory.

use std::time::{Duration, Instant, SystemTime};

use super::MemoryLedger;
use super::rows::{Rows, RunRow};
use crate::ledger::jobs::{JobChange, JobOutcome, JobRow, JobRun, Jobs, JobsOnRecord, kept_time};
use crate::ledger::{LedgerError, RandomValue};

impl RunRow {
    fn is(&self, other: &JobRun) -> bool {
        let JobRun { job, due, try_no, .. } = &self.run;
        (job, due, try_no) == (&other.job, &other.due, &other.try_no)
    }
}

impl Rows {
    fn change_job(&mut self, change: &JobChange<'_>) -> bool {
        let JobChange { seen, value, .. } = *change;
        let name = &change.row.name;
        let of_job = |run: &JobRun| JobRun { job: name.clone(), ..run.kept() };
        let ended = change.ended.map(of_job);
        let added: Vec<JobRun> = change.added.iter().map(of_job).collect();
        if self.has_made(name, value) {
            return true;
        }
        if self.jobs.get(name).map(|(row, _)| row.revision) != seen {
            return false;
        }
        let may_end = |row: &RunRow| matches!(row.run.outcome, None | Some(JobOutcome::Crashed));
        let is_open = |row: &RunRow, run| row.is(run) && may_end(row);
        let at = ended.as_ref().map(|run| self.job_runs.iter().position(|row| is_open(row, run)));
        if at == Some(None) {
            return false;
        }
        let is_there = |run: &JobRun| self.job_runs.iter().any(|row| row.is(run));
        let is_twice = |at: usize| {
            let one = &added[at];
            added[..at].iter().any(|other| (other.due, other.try_no) == (one.due, one.try_no))
        };
        if added.iter().any(is_there) || (0..added.len()).any(is_twice) {
            return false;
        }
        if let (Some(run), Some(Some(at))) = (ended, at) {
            let row = &mut self.job_runs[at];
            row.ended_by = Some(value);
            let JobRun { ended_at, outcome, exit, signal, output, reason, .. } = run;
            let began = row.run.clone();
            row.run = JobRun { ended_at, outcome, exit, signal, output, reason, ..began };
        }
        let new = |run| RunRow { run, added_by: value, ended_by: None };
        self.job_runs.extend(added.into_iter().map(new));
        let row = JobRow { revision: seen.unwrap_or(0) + 1, ..change.row.kept() };
        self.jobs.insert(name.clone(), (row, value));
        true
    }

    /// Whether a change with this value was made, as far as the rows still show.
    fn has_made(&self, job: &str, value: RandomValue) -> bool {
        let is_by = |row: &RunRow| row.added_by == value || row.ended_by == Some(value);
        self.jobs.get(job).is_some_and(|(_, last)| *last == value)
            || self.job_runs.iter().any(|row| row.run.job == job && is_by(row))
    }

    fn prune_job_runs(&mut self, older_than: Duration, most: u32) -> u64 {
        let Some(before) = self.time.wall_clock().checked_sub(older_than) else { return 0 };
        let is_old = |row: &RunRow| row.run.ended_at.is_some_and(|at| at < before);
        let mut old: Vec<usize> =
            (0..self.job_runs.len()).filter(|at| is_old(&self.job_runs[*at])).collect();
        old.sort_by_key(|at| self.job_runs[*at].run.ended_at);
        old.truncate(most as usize);
        self.take_runs_out(&old)
    }

    fn prune_runs_of(&mut self, job: &str, kept: u32, most: u32) -> u64 {
        let has_ended = |row: &RunRow| row.run.job == job && row.run.ended_at.is_some();
        let ended = (0..self.job_runs.len()).rev().filter(|at| has_ended(&self.job_runs[*at]));
        let surplus: Vec<usize> = ended.skip(kept as usize).take(most as usize).collect();
        self.take_runs_out(&surplus)
    }

    fn take_runs_out(&mut self, places: &[usize]) -> u64 {
        let mut at = 0;
        self.job_runs.retain(|_| {
            at += 1;
            !places.contains(&(at - 1))
        });
        places.len() as u64
    }
}

impl Jobs for MemoryLedger {
    fn jobs(&self, _: Instant) -> Result<JobsOnRecord, LedgerError> {
        self.call("jobs", || {
            let rows = self.rows();
            Ok(JobsOnRecord {
                now: kept_time(rows.time.wall_clock()),
                jobs: rows.jobs.values().map(|(row, _)| row.clone()).collect(),
            })
        })
    }

    fn change_job(&self, change: &JobChange<'_>, _: Instant) -> Result<bool, LedgerError> {
        self.call("change_job", || Ok(self.rows().change_job(change)))
    }

    fn job_runs(&self, job: &str, limit: u32, _: Instant) -> Result<Vec<JobRun>, LedgerError> {
        self.call("job_runs", || {
            let rows = self.rows();
            let of_job = rows.job_runs.iter().rev().filter(|row| row.run.job == job);
            Ok(of_job.take(limit as usize).map(|row| row.run.clone()).collect())
        })
    }

    fn last_try(&self, job: &str, due: SystemTime, _: Instant) -> Result<u32, LedgerError> {
        self.call("last_try", || {
            let (rows, due) = (self.rows(), kept_time(due));
            let tries = rows.job_runs.iter().map(|row| &row.run);
            let tries = tries.filter(|run| run.job == job && run.due == due);
            Ok(tries.map(|run| run.try_no).max().unwrap_or(0))
        })
    }

    fn remove_job(&self, job: &str, seen: i64, _: Instant) -> Result<bool, LedgerError> {
        self.call("remove_job", || {
            let mut rows = self.rows();
            if rows.jobs.get(job).is_some_and(|(row, _)| row.revision != seen) {
                return Ok(false);
            }
            rows.jobs.remove(job);
            rows.job_runs.retain(|row| row.run.job != job);
            Ok(true)
        })
    }

    fn prune_job_runs(
        &self,
        older_than: Duration,
        most: u32,
        _: Instant,
    ) -> Result<u64, LedgerError> {
        self.call("prune_job_runs", || Ok(self.rows().prune_job_runs(older_than, most)))
    }

    fn prune_runs_of(
        &self,
        job: &str,
        kept: u32,
        most: u32,
        _: Instant,
    ) -> Result<u64, LedgerError> {
        self.call("prune_runs_of", || Ok(self.rows().prune_runs_of(job, kept, most)))
    }
}
