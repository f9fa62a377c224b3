//! Jobs and their runs: a change locks the job's row and the run that it ends, and then writes all
//! of it or nothing. Times are whole milliseconds, words mean one thing. What a column says that no
//! program writes is [`LedgerError::Broken`].

use std::borrow::Cow;
use std::time::{Duration, Instant, SystemTime};

use super::{Sql, SqlSession, checked, first, rows_at, sql};
use crate::PooledLedger;
use crate::rows::{Cell, SqlRow};
use onedrop_core::ledger::{
    JobChange, JobOutcome, JobPause, JobRow, JobRun, JobTrigger, Jobs, JobsOnRecord, LedgerError,
    kept_time, of_millis,
};
use onedrop_core::text;

/// What [`job_row`] reads.
const JOB_COLUMNS: &str = "name, revision, schedule, {millis(paused_at)}, pause_note,
    {millis(paused_until)}, {millis(last_paused_at)}, {millis(resumed_at)}, epoch,
    {millis(open_due)}, open_try,
    {millis(next_due)}, next_try, {millis(retry_at)}, {millis(first_seen)}, {millis(seen_at)},
    {millis(last_start)}, {millis(last_end)}, {millis(last_success)}, {millis(last_success_due)},
    last_exit, last_error, errors, runs, open_host, {millis(unheld_at)}, stop_epoch, stop_by,
    hooks_state";
/// What [`job_run`] reads.
const RUN_COLUMNS: &str = "job, {millis(due_at)}, try, triggered_by, epoch, host, pid,
    {millis(started_at)}, {millis(ended_at)}, outcome, exit_status, exit_signal, output, reason,
    {millis(last_due_at)}, occurrences";

/// Whether a change with this value was made, as far as the rows still show.
const IS_MADE: &str = "
SELECT EXISTS (SELECT 1 FROM onedrop_job WHERE name = ?1 AND value = ?2)
    OR EXISTS (SELECT 1 FROM onedrop_job_run
               WHERE job = ?1 AND due_at = ?3 AND try = ?4 AND end_value = ?2)
    OR EXISTS (SELECT 1 FROM onedrop_job_run
               WHERE job = ?1 AND due_at = ?5 AND try = ?6 AND begin_value = ?2)";

/// What comes after it sees what was committed before it got the row.
const REVISION: &str = "SELECT revision FROM onedrop_job WHERE name = ?1 {locked(onedrop_job)}";

/// A run whose end is not known.
const OPEN: &str = "
SELECT id FROM onedrop_job_run
WHERE job = ?1 AND due_at = ?2 AND try = ?3 AND (ended_at IS NULL OR outcome = 'crashed')
{locked(onedrop_job_run)}";

const INSERT: &str = "
INSERT INTO onedrop_job (name, revision, value, schedule, paused_at, pause_note, last_paused_at,
    resumed_at, epoch, open_due, open_try, next_due, next_try, retry_at, first_seen, seen_at,
    last_start, last_end, last_success, last_success_due, last_exit, last_error, errors, runs,
    open_host, unheld_at, paused_until, stop_epoch, stop_by, hooks_state)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20,
    ?21, ?22, ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30)";

const UPDATE: &str = "
UPDATE onedrop_job SET revision = ?2, value = ?3, schedule = ?4, paused_at = ?5, pause_note = ?6,
    last_paused_at = ?7, resumed_at = ?8, epoch = ?9, open_due = ?10, open_try = ?11,
    next_due = ?12, next_try = ?13, retry_at = ?14, first_seen = ?15, seen_at = ?16,
    last_start = ?17, last_end = ?18, last_success = ?19, last_success_due = ?20, last_exit = ?21,
    last_error = ?22, errors = ?23, runs = ?24, open_host = ?25, unheld_at = ?26,
    paused_until = ?27, stop_epoch = ?28, stop_by = ?29, hooks_state = ?30
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

/// Rows that another session is taking out are its own affair.
const TO_PRUNE: &str = "
SELECT id FROM onedrop_job_run WHERE ended_at < {before(?1)}
ORDER BY ended_at LIMIT ?2 {locked_or_left(onedrop_job_run)}";

const SURPLUS: &str = "
SELECT id FROM onedrop_job_run WHERE job = ?1 AND ended_at IS NOT NULL
ORDER BY id DESC LIMIT ?2 OFFSET ?3";

/// An age before which nothing is: what every engine can take off its clock.
const LONGEST_AGE: Duration = Duration::from_secs(1000 * 365 * 86_400);

impl<S: SqlSession + 'static> Jobs for PooledLedger<S> {
    fn jobs(&self, until: Instant) -> Result<JobsOnRecord, LedgerError> {
        self.call(until, |session| {
            let answers = checked(
                session,
                S::read,
                [
                    sql!(format!("SELECT {JOB_COLUMNS} FROM onedrop_job")),
                    sql!("SELECT {millis({now})}"),
                ],
            )?;
            let jobs = rows_at(&answers, 0).iter().map(job_row).collect::<Result<Vec<_>, _>>();
            // By bytes, whatever the database's collation is.
            let mut jobs: Vec<JobRow> = jobs?;
            jobs.sort_by(|one, other| one.name.cmp(&other.name));
            Ok(JobsOnRecord { now: of_millis(first(&answers, 1)?.unwrap_or(0)), jobs })
        })
    }

    fn change_job(&self, change: &JobChange<'_>, until: Instant) -> Result<bool, LedgerError> {
        let row = change.row.kept();
        let ended = change.ended.map(JobRun::kept);
        let added: Vec<JobRun> = change.added.iter().map(JobRun::kept).collect();
        let kept = JobChange { row: &row, added: &added, ended: ended.as_ref(), ..*change };
        undeterred(self, until, |session| match change_job(session, &kept) {
            // The job, or a run of the same due time and try, is there.
            Err(error) if S::is_duplicate(&error) => Ok(false),
            result => result,
        })
    }

    fn job_runs(&self, job: &str, limit: u32, until: Instant) -> Result<Vec<JobRun>, LedgerError> {
        let query = sql!(
            format!(
                "SELECT {RUN_COLUMNS} FROM onedrop_job_run WHERE job = ?1 ORDER BY id DESC LIMIT ?2"
            ),
            job,
            limit,
        );
        self.call(until, |session| {
            let answers = checked(session, S::read, [query.clone()])?;
            rows_at(&answers, 0).iter().map(job_run).collect()
        })
    }

    fn last_try(&self, job: &str, due: SystemTime, until: Instant) -> Result<u32, LedgerError> {
        let query = sql!(
            "SELECT coalesce(max(try), 0) FROM onedrop_job_run WHERE job = ?1 AND due_at = ?2",
            job,
            kept_time(due),
        );
        self.call(until, |session| {
            let answers = checked(session, S::read, [query.clone()])?;
            rows_at(&answers, 0).first().map_or(Ok(0), |row| Cells { row, at: 0 }.number())
        })
    }

    fn remove_job(&self, job: &str, seen: i64, until: Instant) -> Result<bool, LedgerError> {
        let remove = sql!("DELETE FROM onedrop_job WHERE name = ?1 AND revision = ?2", job, seen);
        undeterred(self, until, |session| {
            let answers = checked(session, S::begin, [sql!(REVISION, job)])?;
            let known = first::<i64, _>(&answers, 0)?;
            SqlSession::commit(session, std::slice::from_ref(&remove))?;
            Ok(known.is_none_or(|known| known == seen))
        })
    }

    fn prune_job_runs(
        &self,
        older_than: Duration,
        most: u32,
        until: Instant,
    ) -> Result<u64, LedgerError> {
        let secs = older_than.min(LONGEST_AGE).as_secs_f64();
        undeterred(self, until, |session| take_out(session, sql!(TO_PRUNE, secs, most)))
    }

    fn prune_runs_of(
        &self,
        job: &str,
        kept: u32,
        most: u32,
        until: Instant,
    ) -> Result<u64, LedgerError> {
        undeterred(self, until, |session| take_out(session, sql!(SURPLUS, job, most, kept)))
    }
}

/// Takes out the runs that `query` finds.
fn take_out<S: SqlSession>(session: &mut S, query: Sql<'_>) -> Result<u64, LedgerError> {
    let answers = checked(session, S::begin, [query])?;
    let old = rows_at(&answers, 0).iter().map(|row| row.cell::<i64>(0));
    let mut values = Vec::new();
    let places = Sql::list(&mut values, old.collect::<Result<Vec<_>, _>>()?);
    let text = format!("DELETE FROM onedrop_job_run WHERE id IN ({places})");
    let answers = SqlSession::commit(session, &[Sql { text: text.into(), values }])?;
    Ok(answers.first().map_or(0, |answer| answer.count))
}

/// How often a transaction is made again that the server has ended for the sake of another.
const TRIES: usize = 10;

/// Does `work` again where a deadlock has undone all of it.
fn undeterred<S: SqlSession + 'static, T>(
    ledger: &PooledLedger<S>,
    until: Instant,
    mut work: impl FnMut(&mut S) -> Result<T, LedgerError>,
) -> Result<T, LedgerError> {
    ledger.call(until, |session| {
        for _ in 1..TRIES {
            match work(session) {
                Err(LedgerError::Contended) if Instant::now() < until => {}
                result => return result,
            }
        }
        work(session)
    })
}

/// An error undoes it all.
fn change_job<S: SqlSession>(session: &mut S, change: &JobChange<'_>) -> Result<bool, LedgerError> {
    let JobChange { seen, value, row, added, ended } = *change;
    let (name, value) = (row.name.as_str(), value.bytes());
    let of = |run: Option<&JobRun>| (run.map(|run| run.due), run.map(|run| run.try_no));
    let ((end_due, end_try), (add_due, add_try)) = (of(ended), of(added.first()));
    let lock = [
        sql!(REVISION, name),
        sql!(IS_MADE, name, value, end_due, end_try, add_due, add_try),
        sql!(OPEN, name, end_due, end_try),
    ];
    let answers = checked(session, S::begin, lock)?;
    let is_as_seen = first::<i64, _>(&answers, 0)? == seen;
    let is_made = first(&answers, 1)? == Some(true);
    let open = first::<i64, _>(&answers, 2)?;
    if is_made || !is_as_seen || ended.is_some() && open.is_none() {
        session.rollback()?;
        return Ok(is_made);
    }
    let end = ended.zip(open).map(|(run, id)| end_of(id, run, value));
    let add = added.iter().map(|run| new_run(name, run, value));
    let statements: Vec<Sql<'_>> =
        end.into_iter().chain([new_row(row, seen, value)]).chain(add).collect();
    SqlSession::commit(session, &statements)?;
    Ok(true)
}

fn new_row<'a>(row: &'a JobRow, seen: Option<i64>, value: &'a [u8]) -> Sql<'a> {
    sql!(
        if seen.is_some() { UPDATE } else { INSERT },
        &row.name,
        seen.unwrap_or(0) + 1,
        value,
        &row.schedule,
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
        &row.last_error,
        row.errors,
        signed(row.runs),
        &row.open_host,
        row.unheld_at,
        row.paused.as_ref().and_then(|pause| pause.until),
        row.stop_epoch,
        &row.stop_by,
        &row.hooks_state,
    )
}

fn new_run<'a>(job: &'a str, run: &'a JobRun, value: &'a [u8]) -> Sql<'a> {
    sql!(
        ADD,
        job,
        run.due,
        run.try_no,
        run.trigger.as_str(),
        run.epoch,
        &run.host,
        run.pid,
        run.started_at,
        run.ended_at,
        run.outcome.map(|outcome| outcome.as_str()),
        run.exit.map(i64::from),
        run.signal.map(i64::from),
        &run.output,
        &run.reason,
        run.last_due,
        signed(run.occurrences),
        value,
    )
}

fn end_of<'a>(id: i64, run: &'a JobRun, value: &'a [u8]) -> Sql<'a> {
    sql!(
        END,
        id,
        run.ended_at,
        run.outcome.map(|outcome| outcome.as_str()),
        run.exit.map(i64::from),
        run.signal.map(i64::from),
        &run.output,
        &run.reason,
        value,
    )
}

/// A number that columns hold as signed.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A row of [`JOB_COLUMNS`].
fn job_row(row: &impl SqlRow) -> Result<JobRow, LedgerError> {
    let mut cells = Cells { row, at: 0 };
    Ok(JobRow {
        name: cells.text()?,
        revision: cells.number()?,
        schedule: cells.text()?,
        paused: match (cells.time_if_any()?, cells.text()?, cells.time_if_any()?) {
            (Some(at), note, until) => Some(JobPause { at, note, until }),
            (None, ..) => None,
        },
        last_paused_at: cells.time_if_any()?,
        resumed_at: cells.time_if_any()?,
        epoch: cells.number()?,
        open: match (cells.time_if_any()?, cells.number()?) {
            (Some(due), try_no) => Some((due, try_no)),
            (None, _) => None,
        },
        next_due: cells.time_if_any()?,
        next_try: cells.number()?,
        retry_at: cells.time_if_any()?,
        first_seen: cells.time()?,
        seen_at: cells.time()?,
        last_start: cells.time_if_any()?,
        last_end: cells.time_if_any()?,
        last_success: cells.time_if_any()?,
        last_success_due: cells.time_if_any()?,
        last_exit: cells.number_if_any()?,
        last_error: cells.text()?,
        errors: cells.number()?,
        runs: cells.number()?,
        open_host: cells.text()?,
        unheld_at: cells.time_if_any()?,
        stop_epoch: cells.number()?,
        stop_by: cells.text()?,
        hooks_state: cells.text()?,
    })
}

/// A row of [`RUN_COLUMNS`].
fn job_run(row: &impl SqlRow) -> Result<JobRun, LedgerError> {
    let mut cells = Cells { row, at: 0 };
    Ok(JobRun {
        job: cells.text()?,
        due: cells.time()?,
        try_no: cells.number()?,
        trigger: {
            let word = cells.text()?;
            let known = JobTrigger::ALL.into_iter().find(|one| one.as_str() == word);
            known.ok_or_else(|| unknown_word("trigger", &word))?
        },
        epoch: cells.number()?,
        host: cells.text()?,
        pid: cells.number()?,
        started_at: cells.time()?,
        ended_at: cells.time_if_any()?,
        outcome: match cells.text_if_any()? {
            None => None,
            Some(word) => {
                let known = JobOutcome::ALL.into_iter().find(|one| one.as_str() == word);
                Some(known.ok_or_else(|| unknown_word("outcome", &word))?)
            }
        },
        exit: cells.number_if_any()?,
        signal: cells.number_if_any()?,
        output: cells.text()?,
        reason: cells.text()?,
        last_due: cells.time()?,
        occurrences: cells.number()?,
    })
}

fn unknown_word(what: &str, word: &str) -> LedgerError {
    let word: Cow<'_, str> = text::shortened(word, 100);
    LedgerError::Broken(format!("a job's run with the unknown {what} \"{word}\""))
}

/// The columns of a row, one after the other. Engines select times as milliseconds since 1970.
struct Cells<'r, R> {
    row: &'r R,
    at: usize,
}

impl<R: SqlRow> Cells<'_, R> {
    fn next<T: Cell>(&mut self) -> Result<T, LedgerError> {
        self.at += 1;
        self.row.cell(self.at - 1)
    }

    fn text(&mut self) -> Result<String, LedgerError> {
        self.next()
    }

    fn text_if_any(&mut self) -> Result<Option<String>, LedgerError> {
        self.next()
    }

    fn time(&mut self) -> Result<SystemTime, LedgerError> {
        Ok(of_millis(self.next()?))
    }

    fn time_if_any(&mut self) -> Result<Option<SystemTime>, LedgerError> {
        Ok(self.next::<Option<i64>>()?.map(of_millis))
    }

    fn number<T: TryFrom<i64>>(&mut self) -> Result<T, LedgerError> {
        let missing = format!("column {} is null", self.at);
        self.number_if_any()?.ok_or(LedgerError::Broken(missing))
    }

    fn number_if_any<T: TryFrom<i64>>(&mut self) -> Result<Option<T>, LedgerError> {
        let at = self.at;
        let number: Option<i64> = self.next()?;
        let fits = |number: i64| {
            let broken = |_| LedgerError::Broken(format!("column {at}: {number}"));
            T::try_from(number).map_err(broken)
        };
        number.map(fits).transpose()
    }
}
