//! `onedrop jobs show`: one job, its schedule, its last runs, what the last one wrote.

use std::time::{Instant, SystemTime};

use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::{CommandOutcome, configured, ended, list, local, paint, rfc_3339};
use crate::cli::terminal::{Paint, Screen};
use onedrop_core::duration::brief;
use onedrop_core::ledger::{JobLedger, JobOutcome, JobRow, JobRun, of_the_ledger};
use onedrop_core::text;
use onedrop_locks::jobs::job_status::{JobStanding, JobState, JobsSeen, since};
use onedrop_site::config::JobSettings;

/// How many runs are shown.
const RUNS: u32 = 10;
/// How many of its next times.
const TIMES: usize = 5;

pub(super) fn run(
    name: &str,
    jobs: &[JobSettings],
    ledger: &dyn JobLedger,
    json: bool,
    until: Instant,
    screen: Screen,
) -> Result<CommandOutcome, String> {
    let seen = JobsSeen::read(ledger, until).map_err(of_the_ledger)?;
    let runs = ledger.job_runs(name, RUNS, until).map_err(of_the_ledger)?;
    let job = match configured(name, jobs) {
        Ok(job) => job,
        Err(why) => {
            let row = seen.row(name).ok_or(why)?;
            return Ok(ended(ghost(row, &runs, &seen, json, screen), true));
        }
    };
    let standing = JobStanding::of(job, jobs, &seen);
    let times = times(&standing, seen.now);
    let out = match json {
        true => as_json(&standing, &times, &runs),
        false => for_people(&standing, &times, &runs, seen.now, screen),
    };
    Ok(ended(out, true))
}

/// A job that the configuration does not have: what is on record of it.
fn ghost(row: &JobRow, runs: &[JobRun], seen: &JobsSeen, json: bool, screen: Screen) -> String {
    if json {
        let mut value = list::ghost_as_json(row, seen);
        value["last_runs"] = Value::from_iter(runs.iter().map(run_as_json));
        return format!("{value:#}");
    }
    let state = JobState::Ghost;
    let state = screen.painted(state.as_str(), paint(state));
    let (name, since) = (text::shown(&row.name), local(row.first_seen, &TimeZone::UTC));
    let line = |what: &str, text: String| {
        let first = format!("{what:<13}");
        screen.line(&first, Paint::Name, &text, first.len())
    };
    line("job", format!("{name}: {state}"))
        + &line("on record", format!("since {since}"))
        + &history(runs, seen.now, screen)
}

/// Its next times, the first of which may have passed.
fn times(standing: &JobStanding<'_>, now: SystemTime) -> Vec<SystemTime> {
    let schedule = &standing.job.schedule;
    let due = standing.next_due();
    let first = match due {
        Some(due) => due,
        None if schedule.goes_by_starts() => return Vec::new(),
        None => schedule.next_after(now),
    };
    // Of `every` the later ones count from a start that is to come.
    let count = if schedule.goes_by_starts() { 1 } else { TIMES };
    std::iter::successors(Some(first), |time| Some(schedule.next_after(*time)))
        .take(count)
        .collect()
}

fn for_people(
    standing: &JobStanding<'_>,
    times: &[SystemTime],
    runs: &[JobRun],
    now: SystemTime,
    screen: Screen,
) -> String {
    let JobStanding { job, row, holder, state, .. } = standing;
    let mut out = String::new();
    let mut say = |what: &str, text: String| {
        let first = format!("{what:<13}");
        out.push_str(&screen.line(&first, Paint::Name, &text, first.len()));
    };
    let ago = |time: Option<SystemTime>| match time {
        Some(time) => format!("{}, {} ago", local(time, &TimeZone::UTC), brief(since(time, now))),
        None => "never".to_owned(),
    };
    say("job", format!("{}: {}", job.name, screen.painted(state.as_str(), paint(*state))));
    say("schedule", format!("{} ({})", job.schedule.describe(), job.schedule));
    if let Some(row) = row {
        let runs = match row.runs {
            1 => "1 run".to_owned(),
            runs => format!("{runs} runs"),
        };
        say("on record", format!("since {}, {runs}", local(row.first_seen, &TimeZone::UTC)));
        if let Some(pause) = &row.paused {
            let note = text::shown(&pause.note);
            let note = if note.is_empty() { String::new() } else { format!(": {note}") };
            say("paused", format!("{}{note}", ago(Some(pause.at))));
        }
        say("last success", ago(row.last_success));
        if row.errors > 0 {
            let status = row.last_exit.map_or(String::new(), |exit| format!(" (exit {exit})"));
            let why = text::shown(&row.last_error);
            say("last error", format!("{} in a row{status}: {why}", row.errors));
        }
        if let Some((due, try_no)) = row.open {
            let what = match state {
                JobState::Crashed => "crashed",
                _ => "running",
            };
            let due = local(due, &TimeZone::UTC);
            say(what, format!("for {due}, try {try_no}, begun {}", ago(row.last_start)));
        }
        if let Some(retry_at) = row.retry_at {
            say("next try", format!("not before {}", local(retry_at, &TimeZone::UTC)));
        }
    } else {
        say("on record", "not yet: its first tick puts it there".to_owned());
    }
    if let Some(holder) = holder {
        let (host, command) = (text::shown(&holder.holder.host), &holder.holder.command);
        let command = text::shown(command);
        say("lock", format!("held by {host} pid {} ({command})", holder.holder.pid));
    }
    say("next", list::next(standing, now));
    if !job.depends_on.is_empty() {
        say("depends on", job.depends_on.join(", "));
    }
    out.push_str(&due_times(job, times, screen));
    out.push_str(&history(runs, now, screen));
    out
}

/// In UTC, and in the zone of the schedule if that is another.
fn due_times(job: &JobSettings, times: &[SystemTime], screen: Screen) -> String {
    let zone = job.schedule.zone().filter(|zone| **zone != TimeZone::UTC);
    let mut rows: Vec<Vec<String>> = Vec::new();
    for (at, time) in times.iter().enumerate() {
        let what = if at == 0 { "due" } else { "" };
        let name = screen.painted(what, Paint::Name);
        let blanks = " ".repeat(11 - what.len());
        let mut row = vec![name + &blanks, local(*time, &TimeZone::UTC)];
        row.extend(zone.map(|zone| local(*time, zone)));
        rows.push(row);
    }
    screen.table(&rows)
}

fn history(runs: &[JobRun], now: SystemTime, screen: Screen) -> String {
    let Some(last) = runs.first() else { return "no runs yet\n".to_owned() };
    let head = ["DUE (UTC)", "TRY", "BY", "OUTCOME", "TOOK", "WHERE", "WHY"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(runs.iter().map(|run| line(run, now, screen)));
    let mut out = format!("\n{}", screen.table(&rows));
    let with_output = if last.ended_at.is_none() { runs.get(1) } else { Some(last) };
    let with_output = with_output.filter(|run| !run.output.trim().is_empty());
    if let Some(run) = with_output {
        out.push_str(&format!("\noutput of the run for {}:\n", local(run.due, &TimeZone::UTC)));
        for line in run.output.trim_end().lines() {
            out.push_str(&format!("  {}\n", text::shown(line)));
        }
    }
    out
}

fn line(run: &JobRun, now: SystemTime, screen: Screen) -> Vec<String> {
    let time = |time| local(time, &TimeZone::UTC).trim_end_matches(" UTC").to_owned();
    let due = match run.occurrences {
        0 | 1 => time(run.due),
        count => format!("{} to {} ({count})", time(run.due), time(run.last_due)),
    };
    let is_skip = run.outcome.is_some_and(JobOutcome::is_skip);
    let outcome = match (run.outcome, run.exit) {
        (None, _) => "open".to_owned(),
        (Some(JobOutcome::Failed), Some(exit)) => {
            screen.painted(&format!("failed ({exit})"), Paint::Bad)
        }
        (Some(JobOutcome::Ok), _) => screen.painted(JobOutcome::Ok.as_str(), Paint::Good),
        (Some(outcome), _) => outcome.to_string(),
    };
    let took = match run.ended_at {
        _ if is_skip => "-".to_owned(),
        Some(end) => brief(since(run.started_at, end)),
        None => format!("{} so far", brief(since(run.started_at, now))),
    };
    let place = match is_skip {
        true => "-".to_owned(),
        false => format!("{}:{}", text::shown(&run.host), run.pid),
    };
    let why = text::shown(&run.reason).into_owned();
    vec![due, run.try_no.to_string(), run.trigger.to_string(), outcome, took, place, why]
}

fn as_json(standing: &JobStanding<'_>, times: &[SystemTime], runs: &[JobRun]) -> String {
    let mut value = list::as_json(standing);
    value["described"] = standing.job.schedule.describe().into();
    value["depends_on"] = standing.job.depends_on.clone().into();
    value["due"] = times.iter().copied().map(rfc_3339).collect::<Vec<_>>().into();
    value["last_runs"] = Value::from_iter(runs.iter().map(run_as_json));
    format!("{value:#}")
}

fn run_as_json(run: &JobRun) -> Value {
    json!({
        "due": rfc_3339(run.due),
        "try": run.try_no,
        "trigger": run.trigger.as_str(),
        "epoch": run.epoch,
        "host": run.host,
        "pid": run.pid,
        "started_at": rfc_3339(run.started_at),
        "ended_at": run.ended_at.map(rfc_3339),
        "outcome": run.outcome.map(JobOutcome::as_str),
        "exit": run.exit,
        "signal": run.signal,
        "output": run.output,
        "reason": run.reason,
        "last_due": rfc_3339(run.last_due),
        "occurrences": run.occurrences,
    })
}
