//! Jobs and their runs in the file. A change is one transaction that holds the write lock from its
//! start. Times count by the host's clock.

use std::time::{Duration, Instant, SystemTime};

use rusqlite::{Connection, params};

use super::Classified;
use super::{SqliteLedger, SqliteSession, first, read};
use crate::jobs::{self, job_columns, job_row, job_run, run_columns, signed};
use onedrop_core::ledger::LedgerError;
use onedrop_core::ledger::{JobChange, JobRow, JobRun, Jobs, JobsOnRecord, kept_time, time_millis};

fn column_millis(column: &str) -> String {
    format!("CAST(round({column} * 1000) AS INTEGER)")
}

/// Whether a change with this value was made, as far as the rows still tell.
const IS_MADE: &str = "
SELECT EXISTS (SELECT 1 FROM onedrop_job WHERE name = ?1 AND value = ?2)
    OR EXISTS (SELECT 1 FROM onedrop_job_run
               WHERE job = ?1 AND due_at = ?3 AND try = ?4 AND end_value = ?2)
    OR EXISTS (SELECT 1 FROM onedrop_job_run
               WHERE job = ?1 AND due_at = ?5 AND try = ?6 AND begin_value = ?2)";

const REVISION: &str = "SELECT revision FROM onedrop_job WHERE name = ?1";

const PUT: &str = "
INSERT INTO onedrop_job (name, revision, value, schedule, paused_at, pause_note, last_paused_at,
    resumed_at, epoch, open_due, open_try, next_due, next_try, retry_at, first_seen, seen_at,
    last_start, last_end, last_success, last_success_due, last_exit, last_error, errors, runs)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20,
    ?21, ?22, ?23, ?24)
ON CONFLICT DO UPDATE SET revision = excluded.revision, value = excluded.value,
    schedule = excluded.schedule, paused_at = excluded.paused_at, pause_note = excluded.pause_note,
    last_paused_at = excluded.last_paused_at, resumed_at = excluded.resumed_at,
    epoch = excluded.epoch, open_due = excluded.open_due, open_try = excluded.open_try,
    next_due = excluded.next_due, next_try = excluded.next_try, retry_at = excluded.retry_at,
    first_seen = excluded.first_seen, seen_at = excluded.seen_at, last_start = excluded.last_start,
    last_end = excluded.last_end, last_success = excluded.last_success,
    last_success_due = excluded.last_success_due, last_exit = excluded.last_exit,
    last_error = excluded.last_error, errors = excluded.errors, runs = excluded.runs";

const END: &str = "
UPDATE onedrop_job_run
SET ended_at = ?4, outcome = ?5, exit_status = ?6, exit_signal = ?7, output = ?8, reason = ?9,
    end_value = ?10
WHERE job = ?1 AND due_at = ?2 AND try = ?3 AND ended_at IS NULL";

const ADD: &str = "
INSERT INTO onedrop_job_run (job, due_at, try, triggered_by, epoch, host, pid, started_at, ended_at,
    outcome, exit_status, exit_signal, output, reason, last_due_at, occurrences, begin_value)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)";

/// How SQLite says that a run of the same due time and try is there.
const IS_THERE: &str = "UNIQUE constraint failed: onedrop_job_run";

const LAST_TRY: &str =
    "SELECT coalesce(max(try), 0) FROM onedrop_job_run WHERE job = ?1 AND due_at = ?2";

const REMOVE: &str = "DELETE FROM onedrop_job WHERE name = ?1 AND revision = ?2";

const PRUNE: &str = "
DELETE FROM onedrop_job_run
WHERE id IN (SELECT id FROM onedrop_job_run WHERE ended_at < ?1 ORDER BY ended_at LIMIT ?2)";

impl Jobs for SqliteLedger {
    fn jobs(&self, until: Instant) -> Result<JobsOnRecord, LedgerError> {
        self.call(until, |session| {
            session.check_program()?;
            let sql =
                format!("SELECT {} FROM onedrop_job ORDER BY name", job_columns(column_millis));
            let jobs = read(&session.connection, &sql, [], |row| job_row(row))?;
            Ok(JobsOnRecord { now: kept_time(session.clocks.wall()), jobs })
        })
    }

    fn change_job(&self, change: &JobChange<'_>, until: Instant) -> Result<bool, LedgerError> {
        let row = change.row.kept();
        let ended = change.ended.map(JobRun::kept);
        let added: Vec<JobRun> = change.added.iter().map(JobRun::kept).collect();
        let kept = JobChange { row: &row, added: &added, ended: ended.as_ref(), ..*change };
        self.call(until, |session| match change_job(session, &kept) {
            Err(LedgerError::Refused(why)) if why.starts_with(IS_THERE) => Ok(false),
            result => result,
        })
    }

    fn job_runs(&self, job: &str, limit: u32, until: Instant) -> Result<Vec<JobRun>, LedgerError> {
        self.call(until, |session| {
            session.check_program()?;
            let columns = run_columns(column_millis);
            let sql = format!(
                "SELECT {columns} FROM onedrop_job_run WHERE job = ?1 ORDER BY id DESC LIMIT ?2"
            );
            read(&session.connection, &sql, params![job, limit], |row| job_run(row))
        })
    }

    fn last_try(&self, job: &str, due: SystemTime, until: Instant) -> Result<u32, LedgerError> {
        self.call(until, |session| {
            session.check_program()?;
            let tries = read(&session.connection, LAST_TRY, params![job, secs(due)], |row| {
                jobs::number(row, 0)
            })?;
            Ok(tries.into_iter().next().unwrap_or(0))
        })
    }

    fn remove_job(&self, job: &str, seen: i64, until: Instant) -> Result<bool, LedgerError> {
        self.call(until, |session| {
            session.write_checked(|tx, _| {
                tx.execute(REMOVE, params![job, seen]).classified()?;
                Ok(first::<i64>(tx, REVISION, [job])?.is_none())
            })
        })
    }

    fn prune_job_runs(
        &self,
        older_than: Duration,
        most: u32,
        until: Instant,
    ) -> Result<u64, LedgerError> {
        self.call(until, |session| {
            session.write_checked(|tx, now| {
                Ok(tx.execute(PRUNE, params![now - older_than.as_secs_f64(), most]).classified()?
                    as u64)
            })
        })
    }
}

/// An error undoes it all.
fn change_job(session: &mut SqliteSession, change: &JobChange<'_>) -> Result<bool, LedgerError> {
    let JobChange { seen, value, row, added, ended } = *change;
    let name = row.name.as_str();
    session.write_checked(|tx, _| {
        let of = |run: Option<&JobRun>| (run.map(|run| secs(run.due)), run.map(|run| run.try_no));
        let ((end_due, end_try), (add_due, add_try)) = (of(ended), of(added.first()));
        let params = params![name, value.bytes(), end_due, end_try, add_due, add_try];
        if first(tx, IS_MADE, params)?.unwrap_or(false) {
            return Ok(true);
        }
        if first::<i64>(tx, REVISION, [name])? != seen {
            return Ok(false);
        }
        // Nothing is written before it.
        if let Some(run) = ended
            && end_run(tx, name, run, value.bytes())? == 0
        {
            return Ok(false);
        }
        put_job(tx, row, seen.unwrap_or(0) + 1, value.bytes())?;
        for run in added {
            add_run(tx, name, run, value.bytes())?;
        }
        Ok(true)
    })
}

fn put_job(tx: &Connection, row: &JobRow, revision: i64, value: &[u8]) -> Result<(), LedgerError> {
    let of = |time: Option<SystemTime>| time.map(secs);
    tx.execute(
        PUT,
        params![
            row.name,
            revision,
            value,
            row.schedule,
            of(row.paused.as_ref().map(|pause| pause.at)),
            row.paused.as_ref().map_or("", |pause| pause.note.as_str()),
            of(row.last_paused_at),
            of(row.resumed_at),
            row.epoch,
            of(row.open.map(|(due, _)| due)),
            row.open.map_or(0, |(_, try_no)| try_no),
            of(row.next_due),
            row.next_try,
            of(row.retry_at),
            secs(row.first_seen),
            secs(row.seen_at),
            of(row.last_start),
            of(row.last_end),
            of(row.last_success),
            of(row.last_success_due),
            row.last_exit,
            row.last_error,
            row.errors,
            signed(row.runs),
        ],
    )
    .classified()?;
    Ok(())
}

fn add_run(tx: &Connection, job: &str, run: &JobRun, value: &[u8]) -> Result<(), LedgerError> {
    tx.execute(
        ADD,
        params![
            job,
            secs(run.due),
            run.try_no,
            run.trigger.as_str(),
            run.epoch,
            run.host,
            run.pid,
            secs(run.started_at),
            run.ended_at.map(secs),
            run.outcome.map(|outcome| outcome.as_str()),
            run.exit,
            run.signal,
            run.output,
            run.reason,
            secs(run.last_due),
            signed(run.occurrences),
            value,
        ],
    )
    .classified()?;
    Ok(())
}

/// Ends a run that is open; how many rows that were.
fn end_run(tx: &Connection, job: &str, run: &JobRun, value: &[u8]) -> Result<usize, LedgerError> {
    tx.execute(
        END,
        params![
            job,
            secs(run.due),
            run.try_no,
            run.ended_at.map(secs),
            run.outcome.map(|outcome| outcome.as_str()),
            run.exit,
            run.signal,
            run.output,
            run.reason,
            value,
        ],
    )
    .classified()
}

/// As columns have it, to the millisecond.
fn secs(time: SystemTime) -> f64 {
    time_millis(time) as f64 / 1000.0
}
