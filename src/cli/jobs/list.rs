//! `onedrop jobs list`: a line a job; those that the configuration does not have come last.

use std::time::{Instant, SystemTime};

use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::{CommandOutcome, ended, local, paint, rfc_3339};
use crate::cli::terminal::Screen;
use onedrop_core::duration::brief;
use onedrop_core::ledger::{JobLedger, JobRow, LockRow, of_the_ledger};
use onedrop_core::text;
use onedrop_locks::jobs::job_status::{JobStanding, JobState, JobsSeen, since};
use onedrop_site::config::JobSettings;

pub(super) fn run(
    jobs: &[JobSettings],
    ledger: &dyn JobLedger,
    json: bool,
    until: Instant,
    screen: Screen,
) -> Result<CommandOutcome, String> {
    let seen = JobsSeen::read(ledger, until).map_err(of_the_ledger)?;
    let standings: Vec<_> = jobs.iter().map(|job| JobStanding::of(job, jobs, &seen)).collect();
    let ghosts = seen.rows.iter().filter(|row| jobs.iter().all(|job| job.name != row.name));
    if json {
        let all = standings.iter().map(as_json).chain(ghosts.map(|row| ghost_as_json(row, &seen)));
        return Ok(ended(format!("{:#}", Value::from_iter(all)), true));
    }
    let head = ["NAME", "STATE", "LAST", "NEXT", "ERRORS", "HOLDER"].map(str::to_owned).to_vec();
    let mut rows = vec![head];
    rows.extend(standings.iter().map(|standing| line(standing, seen.now, screen)));
    for row in ghosts {
        let holder = seen.holders.get(&row.name);
        let state = screen.painted(JobState::Ghost.as_str(), paint(JobState::Ghost));
        rows.push(cells(row, state, "-".to_owned(), holder, seen.now));
    }
    let out = if rows.len() > 1 { screen.table(&rows) } else { String::new() };
    Ok(ended(out, true))
}

fn line(standing: &JobStanding<'_>, now: SystemTime, screen: Screen) -> Vec<String> {
    let JobStanding { job, row, holder, state, .. } = standing;
    let state = screen.painted(state.as_str(), paint(*state));
    match row {
        Some(row) => cells(row, state, next(standing, now), *holder, now),
        None => {
            let next = if job.enabled { "at its first tick" } else { "-" };
            let cells = [&job.name, &state, "-", next, "0", &holder_of(*holder)];
            cells.map(str::to_owned).to_vec()
        }
    }
}

fn cells(
    row: &JobRow,
    state: String,
    next: String,
    holder: Option<&LockRow>,
    now: SystemTime,
) -> Vec<String> {
    vec![
        text::shown(&row.name).into_owned(),
        state,
        last(row, now),
        next,
        row.errors.to_string(),
        holder_of(holder),
    ]
}

/// The last run: when it began or ended, and how long it took.
fn last(row: &JobRow, now: SystemTime) -> String {
    match (row.last_start, row.last_end) {
        (None, _) => "-".to_owned(),
        (Some(start), _) if row.open.is_some() => {
            format!("since {}", brief(since(start, now)))
        }
        (Some(start), Some(end)) if end >= start => {
            format!("{} ago, took {}", brief(since(end, now)), brief(since(start, end)))
        }
        (Some(start), _) => format!("began {} ago", brief(since(start, now))),
    }
}

pub(super) fn next(standing: &JobStanding<'_>, now: SystemTime) -> String {
    let paused = standing.row.and_then(|row| row.paused.as_ref());
    match (paused, standing.next) {
        _ if !standing.job.enabled => "-".to_owned(),
        (Some(pause), _) => {
            let note = match text::shown(&pause.note) {
                note if note.is_empty() => String::new(),
                note => format!(": {note}"),
            };
            let until = pause.until.map(|until| format!(" until {}", local(until, &TimeZone::UTC)));
            let ago = brief(since(pause.at, now));
            format!("paused {ago} ago{}{note}", until.unwrap_or_default())
        }
        (None, _) if !standing.waits_for.is_empty() => {
            format!("waits for {}", standing.waits_for.join(", "))
        }
        (None, None) => "-".to_owned(),
        (None, Some(next)) if next > now => format!("in {}", brief(since(now, next))),
        (None, Some(next)) => format!("due {} ago", brief(since(next, now))),
    }
}

fn holder_of(holder: Option<&LockRow>) -> String {
    let named = |row: &LockRow| {
        let host = text::shown(&row.holder.host);
        format!("{host}:{}", row.holder.pid)
    };
    holder.map_or("-".to_owned(), named)
}

pub(super) fn as_json(standing: &JobStanding<'_>) -> Value {
    let JobStanding { job, row, holder, state, next, waits_for, overdue } = standing;
    let mut value = record_as_json(&job.name, *row, *holder);
    value["state"] = state.as_str().into();
    value["enabled"] = job.enabled.into();
    value["configured_schedule"] = job.schedule.to_string().into();
    value["next"] = next.map(rfc_3339).into();
    value["waits_for"] = waits_for.clone().into();
    value["overdue_secs"] = overdue.map(|by| by.as_secs()).into();
    value
}

pub(super) fn ghost_as_json(row: &JobRow, seen: &JobsSeen) -> Value {
    let mut value = record_as_json(&row.name, Some(row), seen.holders.get(&row.name));
    value["state"] = JobState::Ghost.as_str().into();
    value
}

/// What the ledger has on record.
fn record_as_json(name: &str, row: Option<&JobRow>, holder: Option<&LockRow>) -> Value {
    let holder = holder.map(|row| {
        json!({
            "host": row.holder.host,
            "pid": row.holder.pid,
            "command": row.holder.command,
            "epoch": row.epoch,
            "since": rfc_3339(row.acquired_at),
        })
    });
    let Some(row) = row else {
        return json!({ "name": name, "on_record": false, "holder": holder });
    };
    let time = |time: Option<SystemTime>| time.map(rfc_3339);
    json!({
        "name": name,
        "on_record": true,
        "schedule": row.schedule,
        "paused_at": time(row.paused.as_ref().map(|pause| pause.at)),
        "paused_until": time(row.paused.as_ref().and_then(|pause| pause.until)),
        "pause_note": row.paused.as_ref().map(|pause| &pause.note),
        "epoch": row.epoch,
        "open_due": time(row.open.map(|(due, _)| due)),
        "open_try": row.open.map(|(_, try_no)| try_no),
        "next_due": time(row.next_due),
        "next_try": row.next_try,
        "retry_at": time(row.retry_at),
        "first_seen": rfc_3339(row.first_seen),
        "seen_at": rfc_3339(row.seen_at),
        "last_start": time(row.last_start),
        "last_end": time(row.last_end),
        "last_success": time(row.last_success),
        "last_success_due": time(row.last_success_due),
        "last_exit": row.last_exit,
        "last_error": row.last_error,
        "errors": row.errors,
        "runs": row.runs,
        "holder": holder,
    })
}
