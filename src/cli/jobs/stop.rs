//! `onedrop jobs stop`: ends the run of a job, on whatever host it is. The wish is a mark in the
//! job's row; the run reads it every ten seconds, or third of `ttl` if that is less, and puts on
//! record that it was stopped.

use std::thread;
use std::time::{Duration, Instant};

use super::change::{NOTE, RowChange, asker, change, row_of};
use super::{CommandOutcome, configured, ended};
use onedrop_core::ledger::{JobLedger, JobOutcome, of_the_ledger};
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
    let seen = JobsSeen::read(ledger, until).map_err(of_the_ledger)?;
    // Here or on the host where it runs its section may be gone, so that it does not start again.
    let job = configured(name, jobs);
    if let (None, Err(why)) = (seen.row(name), &job) {
        return Err(why.clone());
    }
    let running = seen.row(name).zip(seen.holders.get(name));
    let Some((row, holder)) = running.filter(|(row, holder)| is_running(row, Some(holder))) else {
        let err = format!("{name} does not run");
        return Ok(CommandOutcome { err, ..ended(String::new(), false) });
    };
    let epoch = row.epoch;
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
    // Its lock lasts for the ttl that the run's own host has.
    let third = holder.lease / 3;
    let grace = job.map_or(third, |job| job.grace);
    let end = Instant::now() + third.min(ASKED_FOR_THE_END) + grace + SLACK;
    while Instant::now() < end {
        let runs = ledger.job_runs(name, 10, end + SLACK).map_err(of_the_ledger)?;
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
    let host = text::shown(&holder.holder.host);
    Err(format!("{name} has not ended yet on {host}: it does not hear of it"))
}
