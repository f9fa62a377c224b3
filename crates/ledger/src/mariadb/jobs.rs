//! Jobs and their runs. A change is one transaction: it locks the job's row, and the run that it
//! ends, and then writes all of it. Times count by the server's clock.

use std::time::{Duration, Instant, SystemTime};

use super::connection::{MariadbSession, first, rows_at};
use super::errors::is_duplicate;
use super::statement::{SqlBatch, Value, values};
use super::{MariadbLedger, schema};
use crate::jobs::{self, job_columns, job_row, job_run, run_columns, signed};
use crate::rows::{SqlRow, millis};
use onedrop_core::ledger::LedgerError;
use onedrop_core::ledger::{JobChange, JobRow, JobRun, Jobs, JobsOnRecord, of_millis};

fn column_millis(column: &str) -> String {
    format!("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {column}) DIV 1000")
}

const NOW: &str = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000";

/// Whether a change with this value was made, as far as the rows still tell.
const IS_MADE: &str = "
SELECT EXISTS (SELECT 1 FROM onedrop_job WHERE name = ?1 AND value = ?2)
    OR EXISTS (SELECT 1 FROM onedrop_job_run
               WHERE job = ?1 AND due_at = ?3 AND try = ?4 AND end_value = ?2)
    OR EXISTS (SELECT 1 FROM onedrop_job_run
               WHERE job = ?1 AND due_at = ?5 AND try = ?6 AND begin_value = ?2)";

const REVISION: &str = "SELECT revision FROM onedrop_job WHERE name = ?1 FOR UPDATE";

/// A run that has not ended.
const OPEN: &str = "
SELECT id FROM onedrop_job_run
WHERE job = ?1 AND due_at = ?2 AND try = ?3 AND ended_at IS NULL FOR UPDATE";

const INSERT: &str = "
INSERT INTO onedrop_job (name, revision, value, schedule, paused_at, pause_note, last_paused_at,
    resumed_at, epoch, open_due, open_try, next_due, next_try, retry_at, first_seen, seen_at,
    last_start, last_end, last_success, last_success_due, last_exit, last_error, errors, runs)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20,
    ?21, ?22, ?23, ?24)";

const UPDATE: &str = "
UPDATE onedrop_job SET revision = ?2, value = ?3, schedule = ?4, paused_at = ?5, pause_note = ?6,
    last_paused_at = ?7, resumed_at = ?8, epoch = ?9, open_due = ?10, open_try = ?11,
    next_due = ?12, next_try = ?13, retry_at = ?14, first_seen = ?15, seen_at = ?16,
    last_start = ?17, last_end = ?18, last_success = ?19, last_success_due = ?20, last_exit = ?21,
    last_error = ?22, errors = ?23, runs = ?24
WHERE name = ?1";

const END: &str = "
UPDATE onedrop_job_run
SET ended_at = ?2, outcome = ?3, exit_status = ?4, exit_signal = ?5, output = ?6, reason = ?7,
    end_value = ?8
WHERE id = ?1";

const ADD: &str = "
INSERT INTO onedrop_job_run (job, due_at, try, triggered_by, epoch, host, pid, started_at, ended_at,
    outcome, exit_status, exit_signal, output, reason, last_due_at, occurrences, begin_value)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)";

const LAST_TRY: &str =
    "SELECT COALESCE(MAX(try), 0) FROM onedrop_job_run WHERE job = ?1 AND due_at = ?2";

const REMOVE: &str = "DELETE FROM onedrop_job WHERE name = ?1 AND revision = ?2";

/// Rows that another session is taking out are its own affair.
const TO_PRUNE: &str = "
SELECT id FROM onedrop_job_run
WHERE ended_at < TIMESTAMPADD(MICROSECOND, -1000 * ?1, UTC_TIMESTAMP(6))
ORDER BY ended_at LIMIT ?2 FOR UPDATE SKIP LOCKED";

impl Jobs for MariadbLedger {
    fn jobs(&self, until: Instant) -> Result<JobsOnRecord, LedgerError> {
        let sql = format!("SELECT {} FROM onedrop_job ORDER BY name", job_columns(column_millis));
        self.call(until, |connection| {
            let mut batch = SqlBatch::of(&sql, &[]);
            batch.add(NOW, &[]);
            let answers = schema::checked(connection, MariadbSession::read, batch)?;
            let now = first::<i64>(rows_at(&answers, 1))?.unwrap_or(0);
            let jobs = rows_at(&answers, 0).iter().map(job_row).collect::<Result<_, _>>()?;
            Ok(JobsOnRecord { now: of_millis(now), jobs })
        })
    }

    fn change_job(&self, change: &JobChange<'_>, until: Instant) -> Result<bool, LedgerError> {
        let row = change.row.kept();
        let ended = change.ended.map(JobRun::kept);
        let added: Vec<JobRun> = change.added.iter().map(JobRun::kept).collect();
        let kept = JobChange { row: &row, added: &added, ended: ended.as_ref(), ..*change };
        self.call(until, |connection| {
            match undeterred(connection, |connection| change_job(connection, &kept)) {
                // The job, or a run of the same due time and try, is there.
                Err(error) if is_duplicate(&error) => Ok(false),
                result => result,
            }
        })
    }

    fn job_runs(&self, job: &str, limit: u32, until: Instant) -> Result<Vec<JobRun>, LedgerError> {
        let columns = run_columns(column_millis);
        let sql = format!(
            "SELECT {columns} FROM onedrop_job_run WHERE job = ?1 ORDER BY id DESC LIMIT ?2"
        );
        self.call(until, |connection| {
            let batch = SqlBatch::of(&sql, values![job.as_bytes(), limit]);
            let answers = schema::checked(connection, MariadbSession::read, batch)?;
            rows_at(&answers, 0).iter().map(job_run).collect()
        })
    }

    fn last_try(&self, job: &str, due: SystemTime, until: Instant) -> Result<u32, LedgerError> {
        self.call(until, |connection| {
            let batch = SqlBatch::of(LAST_TRY, values![job.as_bytes(), due]);
            let answers = schema::checked(connection, MariadbSession::read, batch)?;
            rows_at(&answers, 0).first().map_or(Ok(0), |row| jobs::number(row, 0))
        })
    }

    fn remove_job(&self, job: &str, seen: i64, until: Instant) -> Result<bool, LedgerError> {
        self.call(until, |connection| {
            undeterred(connection, |connection| {
                let lock = SqlBatch::of(REVISION, values![job.as_bytes()]);
                let answers = schema::checked(connection, MariadbSession::begin, lock)?;
                let known = first::<i64>(rows_at(&answers, 0))?;
                let remove = SqlBatch::of(REMOVE, values![job.as_bytes(), seen]);
                connection.commit(remove)?;
                Ok(known.is_none_or(|known| known == seen))
            })
        })
    }

    fn prune_job_runs(
        &self,
        older_than: Duration,
        most: u32,
        until: Instant,
    ) -> Result<u64, LedgerError> {
        let millis = millis(older_than).min(i64::MAX / 2000);
        self.call(until, |connection| {
            undeterred(connection, |connection| {
                let batch = SqlBatch::of(TO_PRUNE, values![millis, most]);
                let answers = schema::checked(connection, MariadbSession::begin, batch)?;
                let old = rows_at(&answers, 0);
                let ids =
                    old.iter().map(|row| row.cell::<i64>(0)).collect::<Result<Vec<_>, _>>()?;
                let mut batch = SqlBatch::default();
                for id in &ids {
                    batch.add("DELETE FROM onedrop_job_run WHERE id = ?1", values![*id]);
                }
                connection.commit(batch)?;
                Ok(ids.len() as u64)
            })
        })
    }
}

/// How often a transaction is made again that the server has ended for the sake of another.
const TRIES: usize = 10;

/// Does `work` again where a deadlock has undone all of it.
fn undeterred<T>(
    connection: &mut MariadbSession,
    mut work: impl FnMut(&mut MariadbSession) -> Result<T, LedgerError>,
) -> Result<T, LedgerError> {
    for _ in 1..TRIES {
        match work(connection) {
            Err(LedgerError::Contended) if !connection.left().is_zero() => {}
            result => return result,
        }
    }
    work(connection)
}

/// An error undoes it all.
fn change_job(
    connection: &mut MariadbSession,
    change: &JobChange<'_>,
) -> Result<bool, LedgerError> {
    let JobChange { seen, value, row, added, ended } = *change;
    let name = row.name.as_bytes();
    let of = |run: Option<&JobRun>| (run.map(|run| run.due), run.map(|run| run.try_no));
    let ((end_due, end_try), (add_due, add_try)) = (of(ended), of(added.first()));
    let mut lock = SqlBatch::of(REVISION, values![name]);
    lock.add(IS_MADE, values![name, value.bytes(), end_due, end_try, add_due, add_try]);
    lock.add(OPEN, values![name, end_due, end_try]);
    let answers = schema::checked(connection, MariadbSession::begin, lock)?;
    let is_made = first(rows_at(&answers, 1))? == Some(true);
    let is_as_seen = first::<i64>(rows_at(&answers, 0))? == seen;
    let open = first::<i64>(rows_at(&answers, 2))?;
    if is_made || !is_as_seen || ended.is_some() && open.is_none() {
        connection.rollback()?;
        return Ok(is_made);
    }
    let mut batch = SqlBatch::default();
    if let (Some(run), Some(id)) = (ended, open) {
        end_run(&mut batch, id, run, value.bytes());
    }
    put_job(&mut batch, row, seen, value.bytes());
    for run in added {
        add_run(&mut batch, name, run, value.bytes());
    }
    connection.commit(batch)?;
    Ok(true)
}

fn put_job(batch: &mut SqlBatch, row: &JobRow, seen: Option<i64>, value: &[u8]) {
    let (name, revision) = (row.name.as_bytes(), seen.unwrap_or(0) + 1);
    batch.add(
        if seen.is_some() { UPDATE } else { INSERT },
        values![
            name,
            revision,
            value,
            row.schedule.as_str(),
            row.paused.as_ref().map(|pause| pause.at),
            row.paused.as_ref().map_or("", |pause| pause.note.as_str()),
            row.last_paused_at,
            row.resumed_at,
            row.epoch,
            row.open.map(|(due, _)| due),
            row.open.map_or(0, |(_, try_no)| try_no),
            row.next_due,
            row.next_try,
            row.retry_at,
            row.first_seen,
            row.seen_at,
            row.last_start,
            row.last_end,
            row.last_success,
            row.last_success_due,
            row.last_exit.map(i64::from),
            row.last_error.as_str(),
            row.errors,
            signed(row.runs),
        ],
    );
}

fn add_run(batch: &mut SqlBatch, job: &[u8], run: &JobRun, value: &[u8]) {
    batch.add(
        ADD,
        values![
            job,
            run.due,
            run.try_no,
            run.trigger.as_str(),
            run.epoch,
            run.host.as_str(),
            run.pid,
            run.started_at,
            run.ended_at,
            run.outcome.map(|outcome| outcome.as_str()),
            run.exit.map(i64::from),
            run.signal.map(i64::from),
            run.output.as_str(),
            run.reason.as_str(),
            run.last_due,
            signed(run.occurrences),
            value,
        ],
    );
}

fn end_run(batch: &mut SqlBatch, id: i64, run: &JobRun, value: &[u8]) {
    let values: &[Value<'_>] = values![
        id,
        run.ended_at,
        run.outcome.map(|outcome| outcome.as_str()),
        run.exit.map(i64::from),
        run.signal.map(i64::from),
        run.output.as_str(),
        run.reason.as_str(),
        value,
    ];
    batch.add(END, values);
}
