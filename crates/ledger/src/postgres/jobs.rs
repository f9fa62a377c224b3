//! Jobs and their runs. A change is one transaction, sent in one round trip: it locks the job's
//! row, and each statement after that is one whose condition is what the one before has done, so
//! that all of them take effect or none. Works through PgBouncer in transaction pooling.

use std::time::{Duration, Instant, SystemTime};

use postgres::Row;
use postgres::types::Type;

use super::connection::{Connection, Statement};
use super::{PostgresLedger, schema};
use crate::jobs::{self, job_columns, job_row, job_run, run_columns, signed};
use crate::rows::{Cell, SqlRow, millis};
use onedrop_core::ledger::LedgerError;
use onedrop_core::ledger::{JobChange, JobRow, JobRun, Jobs, JobsOnRecord, kept_time, of_millis};

/// SQLSTATE unique_violation: a run of the same due time and try is there.
const IS_THERE: &str = "23505";

/// An age before which nothing is: what the server can subtract from its clock.
const LONGEST_AGE: Duration = Duration::from_secs(1000 * 365 * 86_400);

const NOW: &str =
    "SELECT (extract(epoch FROM date_trunc('milliseconds', clock_timestamp())) * 1000)::bigint";

fn column_millis(column: &str) -> String {
    format!("(extract(epoch FROM {column}) * 1000)::bigint")
}

/// The first parameters of every statement of a change: name, seen revision (0: none), this
/// program's schema version, the change's value; due time and try of the run that ends, if any.
macro_rules! if_seen {
    () => {
        concat!(
            "EXISTS (SELECT 1 FROM onedrop_job WHERE name = $1 AND revision = $2)
         AND ",
            schema::fits!("$3")
        )
    };
}

/// What holds after [`END`], if it ended the run that it was to end.
macro_rules! if_ended {
    () => {
        concat!(
            if_seen!(),
            " AND ($5::timestamptz IS NULL OR EXISTS (
                  SELECT 1 FROM onedrop_job_run
                  WHERE job = $1 AND due_at = $5 AND try = $6 AND end_value = $4))"
        )
    };
}

/// A job that is not on record yet: a row with the revision 0, which no other session ever sees.
/// Without a row there is no run that may end.
const NEW_JOB: &str = concat!(
    "INSERT INTO onedrop_job (name, revision, first_seen, seen_at)
     SELECT $1, 0, clock_timestamp(), clock_timestamp()
     WHERE $5::timestamptz IS NULL AND ",
    schema::fits!("$3"),
    " ON CONFLICT DO NOTHING"
);

/// The statements after it see what was committed before it got the row.
const LOCK_JOB: &str = "SELECT revision FROM onedrop_job WHERE name = $1 FOR UPDATE";

const END: &str = concat!(
    "UPDATE onedrop_job_run
     SET ended_at = $7, outcome = $8, exit_status = $9, exit_signal = $10, output = $11,
         reason = $12, end_value = $4
     WHERE job = $1 AND due_at = $5 AND try = $6 AND ended_at IS NULL AND ",
    if_seen!()
);

const ADD: &str = concat!(
    "INSERT INTO onedrop_job_run (job, begin_value, ended_at, outcome, exit_status, exit_signal,
         output, reason, triggered_by, epoch, host, pid, started_at, last_due_at, occurrences,
         due_at, try)
     SELECT $1, $4, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21 WHERE ",
    if_ended!()
);

const CHANGE: &str = concat!(
    "UPDATE onedrop_job
     SET revision = revision + 1, value = $4, schedule = $7, paused_at = $8, pause_note = $9,
         last_paused_at = $10, resumed_at = $11, epoch = $12, open_due = $13, open_try = $14,
         next_due = $15, next_try = $16, retry_at = $17, first_seen = $18, seen_at = $19,
         last_start = $20, last_end = $21, last_success = $22, last_success_due = $23,
         last_exit = $24, last_error = $25, errors = $26, runs = $27
     WHERE name = $1 AND ",
    if_ended!()
);

/// Whether this change was made, now or before, as far as the rows still tell.
const IS_MADE: &str = "
SELECT EXISTS (SELECT 1 FROM onedrop_job WHERE name = $1 AND value = $4)
    OR EXISTS (SELECT 1 FROM onedrop_job_run
               WHERE job = $1 AND due_at = $5 AND try = $6 AND end_value = $4)
    OR EXISTS (SELECT 1 FROM onedrop_job_run
               WHERE job = $1 AND due_at = $7 AND try = $8 AND begin_value = $4)";

const LAST_TRY: &str =
    "SELECT coalesce(max(try), 0) FROM onedrop_job_run WHERE job = $1 AND due_at = $2";

const REMOVE: &str =
    concat!("DELETE FROM onedrop_job WHERE name = $1 AND revision = $2 AND ", schema::fits!("$3"));

const IS_GONE: &str = "SELECT NOT EXISTS (SELECT 1 FROM onedrop_job WHERE name = $1)";

/// Two that prune at once take different rows.
const PRUNE: &str = concat!(
    "DELETE FROM onedrop_job_run
     WHERE id IN (SELECT id FROM onedrop_job_run
                  WHERE ended_at < clock_timestamp() - $1 * interval '1 millisecond'
                  ORDER BY ended_at LIMIT $2 FOR UPDATE SKIP LOCKED)
       AND ",
    schema::fits!("$3"),
    " RETURNING id"
);

impl Jobs for PostgresLedger {
    fn jobs(&self, until: Instant) -> Result<JobsOnRecord, LedgerError> {
        let columns = job_columns(column_millis);
        let sql = format!("SELECT {columns} FROM onedrop_job ORDER BY name COLLATE \"C\"");
        self.call(until, |connection| {
            let statements = [Statement::new(NOW), Statement::new(&sql)];
            let answers = schema::checked(connection, Connection::read, statements)?;
            let jobs = last_rows(&answers).iter().map(job_row).collect::<Result<_, _>>()?;
            let now = answers.first().map_or(&[][..], Vec::as_slice);
            Ok(JobsOnRecord { now: of_millis(only(now)?), jobs })
        })
    }

    fn change_job(&self, change: &JobChange<'_>, until: Instant) -> Result<bool, LedgerError> {
        let row = change.row.kept();
        let ended = change.ended.map(JobRun::kept);
        let added: Vec<JobRun> = change.added.iter().map(JobRun::kept).collect();
        let kept = JobChange { row: &row, added: &added, ended: ended.as_ref(), ..*change };
        self.call(until, |connection| change_job(connection, &kept))
    }

    fn job_runs(&self, job: &str, limit: u32, until: Instant) -> Result<Vec<JobRun>, LedgerError> {
        let columns = run_columns(column_millis);
        let sql = format!(
            "SELECT {columns} FROM onedrop_job_run WHERE job = $1 ORDER BY id DESC LIMIT $2"
        );
        self.call(until, |connection| {
            let runs =
                Statement::new(&sql).with(job, Type::TEXT).with(i64::from(limit), Type::INT8);
            let answers = schema::checked(connection, Connection::read, [runs])?;
            last_rows(&answers).iter().map(job_run).collect()
        })
    }

    fn last_try(&self, job: &str, due: SystemTime, until: Instant) -> Result<u32, LedgerError> {
        self.call(until, |connection| {
            let last = Statement::new(LAST_TRY)
                .with(job, Type::TEXT)
                .with(kept_time(due), Type::TIMESTAMPTZ);
            let answers = schema::checked(connection, Connection::read, [last])?;
            last_rows(&answers).first().map_or(Ok(0), |row| jobs::number(row, 0))
        })
    }

    fn remove_job(&self, job: &str, seen: i64, until: Instant) -> Result<bool, LedgerError> {
        self.call(until, |connection| {
            let program = connection.program().version();
            let remove = Statement::new(REMOVE)
                .with(job, Type::TEXT)
                .with(seen, Type::INT8)
                .with(program, Type::INT8);
            let is_gone = Statement::new(IS_GONE).with(job, Type::TEXT);
            let answers = schema::checked(connection, Connection::write, [remove, is_gone])?;
            only(last_rows(&answers))
        })
    }

    fn prune_job_runs(
        &self,
        older_than: Duration,
        most: u32,
        until: Instant,
    ) -> Result<u64, LedgerError> {
        self.call(until, |connection| {
            let program = connection.program().version();
            let prune = Statement::new(PRUNE)
                .with(millis(older_than.min(LONGEST_AGE)), Type::INT8)
                .with(i64::from(most), Type::INT8)
                .with(program, Type::INT8);
            let answers = schema::checked(connection, Connection::write, [prune])?;
            Ok(last_rows(&answers).len() as u64)
        })
    }
}

fn change_job(connection: &mut Connection, change: &JobChange<'_>) -> Result<bool, LedgerError> {
    let JobChange { row, added, ended, .. } = *change;
    let program = connection.program().version();
    let new_job = change.seen.is_none().then(|| of_change(NEW_JOB, program, change));
    let lock = Statement::new(LOCK_JOB).with(row.name.as_str(), Type::TEXT);
    let end = ended.map(|run| of_end(END, program, change, run));
    let add = added.iter().map(|run| of_run(ADD, program, change, run));
    let first = added.first();
    let is_made = of_change(IS_MADE, program, change)
        .with(first.map(|run| run.due), Type::TIMESTAMPTZ)
        .with(first.map(|run| i64::from(run.try_no)), Type::INT8);
    let statements = new_job
        .into_iter()
        .chain([lock])
        .chain(end)
        .chain(add)
        .chain([of_job(CHANGE, program, change), is_made]);
    match schema::checked(connection, Connection::write, statements) {
        Ok(answers) => only(last_rows(&answers)),
        Err(LedgerError::Refused(why)) if why.starts_with(IS_THERE) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A statement with the parameters 1 to 6.
fn of_change<'a>(sql: &'a str, program: i64, change: &JobChange<'a>) -> Statement<'a> {
    Statement::new(sql)
        .with(change.row.name.as_str(), Type::TEXT)
        .with(change.seen.unwrap_or(0), Type::INT8)
        .with(program, Type::INT8)
        .with(change.value.bytes().to_vec(), Type::BYTEA)
        .with(change.ended.map(|run| run.due), Type::TIMESTAMPTZ)
        .with(change.ended.map(|run| i64::from(run.try_no)), Type::INT8)
}

/// The same, and 6 of how a run has ended.
fn of_end<'a>(
    sql: &'a str,
    program: i64,
    change: &JobChange<'a>,
    run: &'a JobRun,
) -> Statement<'a> {
    of_change(sql, program, change)
        .with(run.ended_at, Type::TIMESTAMPTZ)
        .with(run.outcome.map(|outcome| outcome.as_str()), Type::TEXT)
        .with(run.exit.map(i64::from), Type::INT8)
        .with(run.signal.map(i64::from), Type::INT8)
        .with(run.output.as_str(), Type::TEXT)
        .with(run.reason.as_str(), Type::TEXT)
}

/// The same, and 9 more of a run.
fn of_run<'a>(
    sql: &'a str,
    program: i64,
    change: &JobChange<'a>,
    run: &'a JobRun,
) -> Statement<'a> {
    of_end(sql, program, change, run)
        .with(run.trigger.as_str(), Type::TEXT)
        .with(run.epoch, Type::INT8)
        .with(run.host.as_str(), Type::TEXT)
        .with(i64::from(run.pid), Type::INT8)
        .with(run.started_at, Type::TIMESTAMPTZ)
        .with(run.last_due, Type::TIMESTAMPTZ)
        .with(signed(run.occurrences), Type::INT8)
        .with(run.due, Type::TIMESTAMPTZ)
        .with(i64::from(run.try_no), Type::INT8)
}

/// As [`of_change`], and 21 of the job's row.
fn of_job<'a>(sql: &'a str, program: i64, change: &JobChange<'a>) -> Statement<'a> {
    let row: &JobRow = change.row;
    let pause = row.paused.as_ref();
    of_change(sql, program, change)
        .with(row.schedule.as_str(), Type::TEXT)
        .with(pause.map(|pause| pause.at), Type::TIMESTAMPTZ)
        .with(pause.map_or("", |pause| pause.note.as_str()), Type::TEXT)
        .with(row.last_paused_at, Type::TIMESTAMPTZ)
        .with(row.resumed_at, Type::TIMESTAMPTZ)
        .with(row.epoch, Type::INT8)
        .with(row.open.map(|(due, _)| due), Type::TIMESTAMPTZ)
        .with(row.open.map_or(0, |(_, try_no)| i64::from(try_no)), Type::INT8)
        .with(row.next_due, Type::TIMESTAMPTZ)
        .with(i64::from(row.next_try), Type::INT8)
        .with(row.retry_at, Type::TIMESTAMPTZ)
        .with(row.first_seen, Type::TIMESTAMPTZ)
        .with(row.seen_at, Type::TIMESTAMPTZ)
        .with(row.last_start, Type::TIMESTAMPTZ)
        .with(row.last_end, Type::TIMESTAMPTZ)
        .with(row.last_success, Type::TIMESTAMPTZ)
        .with(row.last_success_due, Type::TIMESTAMPTZ)
        .with(row.last_exit.map(i64::from), Type::INT8)
        .with(row.last_error.as_str(), Type::TEXT)
        .with(i64::from(row.errors), Type::INT8)
        .with(signed(row.runs), Type::INT8)
}

/// The rows of the last statement.
fn last_rows(answers: &[Vec<Row>]) -> &[Row] {
    answers.last().map_or(&[], Vec::as_slice)
}

/// The first column of the only row.
fn only<T: Cell>(rows: &[Row]) -> Result<T, LedgerError> {
    let missing = || LedgerError::Broken("a statement without an answer".to_owned());
    rows.first().ok_or_else(missing)?.cell(0)
}
