//! `onedrop jobs stop`: ends the run of a job, on whatever host it is. The wish is a mark in the
//! job's row; the run reads it every ten seconds, or third of `ttl` if that is less, and puts on
//! record that it was stopped.

use std::thread;
use std::time::{Duration, Instant};

use super::change::{NOTE, RowChange, asker, change, row_of};
use super::{CommandOutcome, configured, ended, told};
use onedrop_core::ledger::{JobLedger, JobOutcome};
use onedrop_core::text;
use onedrop_locks::jobs::job_status::{JobsSeen, is_running};
use onedrop_locks::jobs::plan;
use onedrop_locks::lock::ASKED_FOR_THE_END;
use onedrop_site::config::JobSettings;

/// Between two looks whether the run has ended.
const PAUSE: Duration = Duration::from_millis(200);
/// For calls of the ledger, beside the time that the run has to read the mark and to end.
const SLACK: Duration = Duration::from_secs(15);

pub(super) fn run(
    name: &str,
    note: &str,
    jobs: &[JobSettings],
    ledger: &dyn JobLedger,
    until: Instant,
) -> Result<CommandOutcome, String> {
    let job = configured(name, jobs)?;
    let seen = JobsSeen::read(ledger, until).map_err(told)?;
    let running = seen.row(name).filter(|row| is_running(row, seen.holders.get(name)));
    let Some(epoch) = running.map(|row| row.epoch) else {
        let err = format!("{name} does not run");
        return Ok(CommandOutcome { err, ..ended(String::new(), false) });
    };
    let note = text::within(note.trim(), NOTE);
    let by = match note.is_empty() {
        true => asker(),
        false => format!("{}: {note}", asker()),
    };
    let marked = change(name, ledger, until, |rows, _| match row_of(name, rows) {
        Some(row) if row.open.is_some() && row.epoch == epoch => {
            RowChange::to(plan::stop(row, &by), "is to end".to_owned())
        }
        Some(_) | None => Ok(RowChange::Nothing("has just ended".to_owned())),
    })?;
    if !marked.err.is_empty() {
        return Ok(marked);
    }
    let end = Instant::now() + (job.ttl / 3).min(ASKED_FOR_THE_END) + job.grace + SLACK;
    while Instant::now() < end {
        let runs = ledger.job_runs(name, 10, end + SLACK).map_err(told)?;
        let run = runs.iter().find(|run| run.epoch == epoch);
        match run.map(|run| run.outcome) {
            Some(None) => thread::sleep(PAUSE),
            Some(Some(JobOutcome::Stopped)) => {
                return Ok(ended(format!("{name} is stopped"), true));
            }
            Some(Some(outcome)) => {
                let err = format!("{name} ended by itself: {outcome}");
                return Ok(CommandOutcome { err, ..ended(String::new(), false) });
            }
            None => break,
        }
    }
    let holder = seen.holders.get(name).map_or("", |row| &row.holder.host);
    Err(format!("{name} has not ended yet on {}: it does not hear of it", text::shown(holder)))
}
