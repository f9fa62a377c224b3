//! A job's and a run's row as columns, and back: times are whole milliseconds, words mean one
//! thing. What a column says that no program writes is [`LedgerError::Broken`].

use std::borrow::Cow;
use std::time::SystemTime;

use onedrop_core::ledger::{
    JobOutcome, JobPause, JobRow, JobRun, JobTrigger, LedgerError, of_millis,
};
use onedrop_core::text;

use crate::rows::{Cell, SqlRow};

/// A number that columns hold as signed.
pub fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// What [`job_row`] reads; times are marked.
const JOB_COLUMNS: &str = "name, revision, schedule, @paused_at, pause_note, @last_paused_at, \
    @resumed_at, epoch, @open_due, open_try, @next_due, next_try, @retry_at, @first_seen, \
    @seen_at, @last_start, @last_end, @last_success, @last_success_due, last_exit, last_error, \
    errors, runs";
/// What [`job_run`] reads; times are marked.
const RUN_COLUMNS: &str = "job, @due_at, try, triggered_by, epoch, host, pid, @started_at, \
    @ended_at, outcome, exit_status, exit_signal, output, reason, @last_due_at, occurrences";

/// The columns of [`job_row`]; `millis`: how an engine selects a time as milliseconds since 1970.
pub fn job_columns(millis: fn(&str) -> String) -> String {
    columns(JOB_COLUMNS, millis)
}

/// The same of [`job_run`].
pub fn run_columns(millis: fn(&str) -> String) -> String {
    columns(RUN_COLUMNS, millis)
}

fn columns(list: &str, millis: fn(&str) -> String) -> String {
    let column = |name: &str| match name.strip_prefix('@') {
        Some(time) => millis(time),
        None => name.to_owned(),
    };
    list.split(", ").map(column).collect::<Vec<_>>().join(", ")
}

/// A row of [`job_columns`].
pub fn job_row(row: &impl SqlRow) -> Result<JobRow, LedgerError> {
    let mut cells = Cells { row, at: 0 };
    Ok(JobRow {
        name: cells.text()?,
        revision: cells.number()?,
        schedule: cells.text()?,
        paused: match (cells.time_if_any()?, cells.text()?) {
            (Some(at), note) => Some(JobPause { at, note }),
            (None, _) => None,
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
    })
}

/// A number of a column.
pub fn number<T: TryFrom<i64>>(row: &impl SqlRow, at: usize) -> Result<T, LedgerError> {
    Cells { row, at }.number()
}

/// A row of [`run_columns`].
pub fn job_run(row: &impl SqlRow) -> Result<JobRun, LedgerError> {
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
