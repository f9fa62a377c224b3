//! `onedrop jobs pause`, `resume`, `reset`, `mark-done`: what an administrator changes in a job's
//! row. Where a tick or a run changes it at the same moment, it is read and planned again. A run
//! that goes on is not touched: its end keeps what was changed here.

use std::time::{Instant, SystemTime};

use jiff::tz::TimeZone;
use nix::unistd::{User, geteuid};

use super::{CommandOutcome, configured, ended, local};
use onedrop_core::ledger::{
    JobChange, JobRow, JobRun, JobTrigger, Jobs, JobsOnRecord, RandomValue, of_the_ledger,
};
use onedrop_core::os::host_name;
use onedrop_core::text;
use onedrop_locks::jobs::plan;
use onedrop_site::config::JobSettings;
use onedrop_site::telemetry;

/// How often a row is planned again that others change all the time.
const TRIES: usize = 20;
/// Bytes of a note.
pub(super) const NOTE: usize = 500;

/// Who asks: a user and a host.
pub(super) fn asker() -> String {
    let uid = geteuid();
    let user = User::from_uid(uid).ok().flatten().map_or(uid.to_string(), |user| user.name);
    format!("{user} on {}", host_name())
}

/// What a command makes of what is on record.
pub(super) enum RowChange {
    To(Box<(JobRow, Vec<JobRun>)>, String),
    /// There is nothing to change; a sentence says why.
    Nothing(String),
}

impl RowChange {
    pub(super) fn to(row: JobRow, said: String) -> Result<RowChange, String> {
        Ok(RowChange::To(Box::new((row, Vec::new())), said))
    }
}

pub(super) fn pause(
    name: &str,
    note: &str,
    end: Option<&str>,
    jobs: &[JobSettings],
    ledger: &dyn Jobs,
    until: Instant,
) -> Result<CommandOutcome, String> {
    let job = configured(name, jobs)?;
    let note = text::within(note.trim(), NOTE);
    let end = end
        .map(|text| job.schedule.named_time(text).map_err(|why| format!("--until: {why}")))
        .transpose()?;
    change(name, ledger, until, |rows, now| {
        if let Some(end) = end.filter(|end| *end <= now) {
            return Err(format!("--until: {} has passed", local(end, &TimeZone::UTC)));
        }
        let row = row_of(name, rows);
        let is_paused = row.is_some_and(|row| row.paused.is_some());
        let said = match end {
            Some(end) => format!("is paused until {}", local(end, &TimeZone::UTC)),
            None => "is paused".to_owned(),
        };
        let said = match (is_paused, row.and_then(|row| row.open)) {
            (true, _) if end.is_some() => format!("was paused already; it {said} now"),
            (true, _) => "was paused already; its note is this one now".to_owned(),
            (false, Some(_)) => format!("{said}; the run that has begun goes on"),
            (false, None) => said,
        };
        RowChange::to(plan::pause(job, row, &note, end, now), said)
    })
}

pub(super) fn resume(
    name: &str,
    jobs: &[JobSettings],
    ledger: &dyn Jobs,
    until: Instant,
) -> Result<CommandOutcome, String> {
    configured(name, jobs)?;
    change(name, ledger, until, |rows, now| match row_of(name, rows) {
        Some(row) if row.paused.is_some() => {
            RowChange::to(plan::resume(row, now), "is paused no longer".to_owned())
        }
        Some(_) | None => Ok(RowChange::Nothing("is not paused".to_owned())),
    })
}

pub(super) fn reset(
    name: &str,
    jobs: &[JobSettings],
    ledger: &dyn Jobs,
    until: Instant,
) -> Result<CommandOutcome, String> {
    let job = configured(name, jobs)?;
    change(name, ledger, until, |rows, now| {
        let Some(row) = row_of(name, rows) else {
            return Ok(RowChange::Nothing("is not on record yet".to_owned()));
        };
        let (row, skipped) = plan::reset(job, row, &asker(), now);
        let said = format!("is as new; {}", due(&row, now));
        Ok(RowChange::To(Box::new((row, skipped)), said))
    })
}

pub(super) fn mark_done(
    name: &str,
    until_due: Option<&str>,
    at: Option<&str>,
    jobs: &[JobSettings],
    ledger: &dyn Jobs,
    until: Instant,
) -> Result<CommandOutcome, String> {
    let job = configured(name, jobs)?;
    let named = |option, text: Option<&str>| {
        let time = text.map(|text| job.schedule.named_time(text)).transpose();
        time.map_err(|why| format!("{option}: {why}"))
    };
    let (until_due, at) = (named("--due", until_due)?, named("--at", at)?);
    change(name, ledger, until, |rows, now| {
        let (row, mut runs) = match at {
            Some(at) => plan::succeeded_elsewhere(job, rows, at, now)?,
            None => plan::mark_done(job, rows, until_due, now)?,
        };
        if let Some(run) = runs.last_mut() {
            run.host = host_name();
            run.pid = std::process::id();
            run.reason = format!("{} said that it is done", asker());
        }
        let Some(run) = runs.last() else { return Ok(RowChange::Nothing("is done".to_owned())) };
        let last = local(run.last_due, &TimeZone::UTC);
        let times = match run.occurrences {
            0 | 1 => last,
            count => format!("{count} times up to {last}"),
        };
        let said = format!("is done for {times}; {}", due(&row, now));
        Ok(RowChange::To(Box::new((row, runs)), said))
    })
}

pub(super) fn row_of<'a>(name: &str, rows: &'a [JobRow]) -> Option<&'a JobRow> {
    rows.iter().find(|row| row.name == name)
}

fn due(row: &JobRow, now: SystemTime) -> String {
    match row.next_due {
        Some(due) if due <= now => "due now".to_owned(),
        Some(due) => format!("due next at {}", local(due, &TimeZone::UTC)),
        None => "due at its next tick".to_owned(),
    }
}

/// Reads, plans and writes, again where the row has changed between.
pub(super) fn change(
    name: &str,
    ledger: &dyn Jobs,
    until: Instant,
    plan: impl Fn(&[JobRow], SystemTime) -> Result<RowChange, String>,
) -> Result<CommandOutcome, String> {
    for _ in 0..TRIES {
        let JobsOnRecord { now, jobs: rows } = ledger.jobs(until).map_err(of_the_ledger)?;
        let seen = row_of(name, &rows).map(|row| row.revision);
        let (changed, said) = match plan(&rows, now).map_err(|why| format!("{name}: {why}"))? {
            RowChange::To(changed, said) => (changed, said),
            RowChange::Nothing(why) => {
                let err = format!("{name} {why}");
                return Ok(CommandOutcome { err, ..ended(String::new(), false) });
            }
        };
        let (row, mut added) = *changed;
        for run in &mut added {
            let tried = ledger.last_try(name, run.due, until).map_err(of_the_ledger)?;
            run.try_no = run.try_no.max(tried.saturating_add(1));
        }
        // What is skipped stands on record already where it was tried.
        added.retain(|run| run.trigger == JobTrigger::Manual || run.try_no == 1);
        let value = RandomValue::default();
        let change = JobChange { seen, value, row: &row, added: &added, ended: None };
        if ledger.change_job(&change, until).map_err(of_the_ledger)? {
            telemetry::start();
            tracing::info!("job {name} {said}: {} said so", asker());
            return Ok(ended(format!("{name} {said}"), true));
        }
    }
    Err(format!("{name} changes all the time; try again"))
}
