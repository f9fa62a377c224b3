//! `onedrop jobs check`: the state of jobs in the form of a monitoring plugin (Nagios plugin API):
//! one line, with performance data after `|`, and the exit status 0 to 3. Any failure to find out
//! is UNKNOWN, with 3.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;

use super::{CommandOutcome, configured, open};
use crate::cli::terminal::{Paint, Screen};
use onedrop_core::exit::{PluginStatus, Verdict};
use onedrop_core::ledger::of_the_ledger;
use onedrop_core::text;
use onedrop_locks::jobs::job_status::{JobStanding, JobState, JobsSeen};
use onedrop_site::config::{Config, JobSettings, Opens};
use onedrop_site::service::{Adapters, Site};

/// What the question may take: a monitoring system waits for 10 s.
const TIME: Duration = Duration::from_secs(8);

/// How many jobs that are well are named.
const NAMED: usize = 5;

pub(super) fn run(
    names: &[String],
    json: bool,
    config: Option<&Path>,
    adapters: Adapters,
    screen: Screen,
) -> CommandOutcome {
    judged(names, json, config, adapters, screen).unwrap_or_else(|why| refuse(&why, json, screen))
}

/// UNKNOWN, for this reason.
pub(in crate::cli) fn refuse(why: &str, json: bool, screen: Screen) -> CommandOutcome {
    let why: Vec<&str> = why.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let why = text::shortened(&why.join("; "), 500).replace('|', "/");
    let (status, word) = (PluginStatus::Unknown, word(PluginStatus::Unknown));
    match json {
        true => outcome(status, format!("{:#}", json!({ "status": word, "text": why }))),
        false => outcome(status, line(status, &why, screen)),
    }
}

/// What is on the first line stays there for a monitoring system, which has no terminal.
fn line(status: PluginStatus, text: &str, screen: Screen) -> String {
    let paint = match status {
        PluginStatus::Ok => Paint::Good,
        PluginStatus::Warning | PluginStatus::Unknown => Paint::Doubtful,
        PluginStatus::Critical => Paint::Bad,
    };
    screen.fitted(&format!("JOBS {}: {text}", screen.painted(word(status), paint)), 5)
}

fn word(status: PluginStatus) -> &'static str {
    match status {
        PluginStatus::Ok => "OK",
        PluginStatus::Warning => "WARNING",
        PluginStatus::Critical => "CRITICAL",
        PluginStatus::Unknown => "UNKNOWN",
    }
}

fn outcome(status: PluginStatus, out: String) -> CommandOutcome {
    CommandOutcome { out, err: String::new(), verdict: Verdict::Monitored(status) }
}

fn judged(
    names: &[String],
    json: bool,
    config: Option<&Path>,
    adapters: Adapters,
    screen: Screen,
) -> Result<CommandOutcome, String> {
    let loaded = Config::load(config, Opens::Ledger).map_err(|errors| errors.first_line())?;
    let site = Site::new(loaded, adapters);
    let jobs = &site.loaded.config.jobs.jobs;
    let wanted: Vec<&JobSettings> = match names.is_empty() {
        true => jobs.iter().collect(),
        false => names.iter().map(|name| configured(name, jobs)).collect::<Result<_, _>>()?,
    };
    let ledger = open(&site)?;
    let seen = JobsSeen::read(&*ledger, Instant::now() + TIME).map_err(of_the_ledger)?;
    let standings: Vec<_> =
        wanted.into_iter().map(|job| JobStanding::of(job, jobs, &seen)).collect();
    Ok(verdict(&standings, json, seen.now, screen))
}

fn verdict(
    standings: &[JobStanding<'_>],
    json: bool,
    now: SystemTime,
    screen: Screen,
) -> CommandOutcome {
    let status = standings.iter().map(JobStanding::status).max().unwrap_or(PluginStatus::Ok);
    let (well, mut bad): (Vec<_>, Vec<_>) =
        standings.iter().partition(|standing| standing.status() == PluginStatus::Ok);
    bad.sort_by_key(|standing| std::cmp::Reverse(standing.status()));
    let mut said: Vec<String> = bad.iter().map(|standing| standing.trouble()).collect();
    match well.len() {
        0 if bad.is_empty() => said.push("no jobs in the configuration".to_owned()),
        count if count > NAMED => said.push(format!("{count} jobs ok")),
        _ => said.extend(well.iter().map(|standing| calm(standing))),
    }
    let failed = standings.iter().filter(|one| one.is_failing()).count();
    let overdue = standings.iter().filter(|one| one.overdue.is_some()).count();
    let age = standings.iter().filter_map(|one| one.success_age(now)).max();
    if json {
        let jobs: Vec<_> = standings
            .iter()
            .map(|one| {
                let why = (one.status() != PluginStatus::Ok).then(|| one.trouble());
                json!({
                    "name": one.job.name,
                    "status": word(one.status()),
                    "state": one.state.as_str(),
                    "why": why,
                })
            })
            .collect();
        let all = json!({
            "status": word(status),
            "jobs": jobs,
            "failed": failed,
            "overdue": overdue,
            "last_success_age_secs": age.map(|age| age.as_secs()),
        });
        return outcome(status, format!("{all:#}"));
    }
    // Without thresholds: one failure is a warning of one job, and critical of another.
    let mut figures = format!("failed={failed} overdue={overdue}");
    if let Some(age) = age {
        figures.push_str(&format!(" last_success_age={}s", age.as_secs()));
    }
    outcome(status, line(status, &format!("{} | {figures}", said.join(", ")), screen))
}

fn calm(standing: &JobStanding<'_>) -> String {
    let name = &standing.job.name;
    match standing.state {
        JobState::Disabled | JobState::Running | JobState::Paused | JobState::Locked => {
            format!("{name} {}", standing.state.as_str())
        }
        _ => format!("{name} ok"),
    }
}
