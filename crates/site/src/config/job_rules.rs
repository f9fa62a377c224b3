//! What the keys of a job must agree on, and jobs among each other: one of `schedule` and `every`,
//! a command, dependencies that are there and lead into no circle. Runs on all layers together.
//!
//! As in `rules.rs`, a rule is skipped where one of its keys has been refused, and a problem is
//! reported where the last of the keys in question was set.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use ::config::ValueKind;

use super::jobs::{find, full, octal, status_ranges};
use super::layer::Reading;
use super::suggest::closest;
use super::{Backfill, JobSettings};
use onedrop_core::duration;
use onedrop_locks::lock::{LONGEST_TTL, LockTerms};
use onedrop_locks::schedule::Schedule;

/// The jobs, each after those that it depends on, else by name. What is wrong between keys and
/// between jobs is a problem in `reading`.
pub(super) fn read(timezone: &str, reading: &mut Reading) -> Vec<JobSettings> {
    if reading.incomplete {
        return Vec::new();
    }
    let tables = std::mem::take(&mut reading.jobs);
    let names: BTreeSet<&str> = tables.keys().map(String::as_str).collect();
    let jobs: Vec<_> =
        tables.iter().filter_map(|(name, set)| job(name, set, timezone, reading)).collect();
    for job in &jobs {
        dependencies(job, &names, reading);
    }
    in_order(jobs, reading)
}

/// How often a host looks for jobs that are due.
const LOOKS_EVERY: Duration = Duration::from_secs(60);

/// A job's values, over the defaults.
struct Values<'a> {
    job: &'a str,
    set: &'a BTreeMap<&'static str, ValueKind>,
}

impl Values<'_> {
    fn full(&self, key: &str) -> String {
        full(self.job, key)
    }

    fn get(&self, key: &str) -> ValueKind {
        let default = || find(key).and_then(|key| key.default_value().ok());
        self.set.get(key).cloned().or_else(default).unwrap_or(ValueKind::Nil)
    }

    fn text(&self, key: &str) -> Option<String> {
        match self.get(key) {
            ValueKind::String(text) => Some(text),
            _ => None,
        }
    }

    fn list(&self, key: &str) -> Vec<String> {
        match self.get(key) {
            ValueKind::Array(items) => items.into_iter().map(|item| item.to_string()).collect(),
            _ => Vec::new(),
        }
    }

    fn time(&self, key: &str) -> Option<Duration> {
        duration::parse(&self.text(key)?).ok()
    }

    fn count(&self, key: &str) -> Option<u32> {
        match self.get(key) {
            ValueKind::U64(count) => u32::try_from(count).ok(),
            _ => None,
        }
    }

    fn is_set(&self, key: &str) -> bool {
        !matches!(self.get(key), ValueKind::Nil) && self.set.contains_key(key)
    }
}

fn job(
    name: &str,
    set: &BTreeMap<&'static str, ValueKind>,
    timezone: &str,
    reading: &mut Reading,
) -> Option<JobSettings> {
    let values = Values { job: name, set };
    let whole = values.full("");
    let schedule = schedule(&values, timezone, reading);
    let command = values.list("command");
    if command.is_empty() {
        let text = format!("{whole}: needs a command, such as command = [\"onedrop\", \"verify\"]");
        reading.broken(&[&whole, &values.full("command")], text);
    } else if command[0].is_empty() {
        let key = values.full("command");
        reading.broken(&[&key], format!("{key}: begins with an empty word in place of a program"));
    } else if command[0].contains('/') && !command[0].starts_with('/') {
        let key = values.full("command");
        let text = format!("{key}: the program's path is relative to the working folder");
        reading.doubtful(&[&key], text);
    }
    let (retry, retry_most) = (values.time("retry")?, values.time("retry_most")?);
    if retry > retry_most {
        let keys = [values.full("retry"), values.full("retry_most")];
        let (one, most) = (duration::shown(retry), duration::shown(retry_most));
        let text = format!("{} ({one}) must not be more than {} ({most})", keys[0], keys[1]);
        reading.broken(&[&keys[0], &keys[1]], text);
    }
    let (ttl, grace) = (values.time("ttl")?, values.time("grace")?);
    if ttl > LONGEST_TTL {
        let key = values.full("ttl");
        let text = format!("{key} ({}) must not be more than 7d", duration::shown(ttl));
        reading.broken(&[&key], text);
    } else if LockTerms::new(ttl, grace).is_err() {
        let keys = [values.full("ttl"), values.full("grace")];
        let (ttl, grace) = (duration::shown(ttl), duration::shown(grace));
        let text = format!(
            "{} ({ttl}) is too short: a third of it must be 2s longer than {} ({grace})",
            keys[0], keys[1]
        );
        reading.broken(&[&keys[0], &keys[1]], text);
    }
    Some(JobSettings {
        name: name.to_owned(),
        schedule: schedule?,
        command,
        timeout: values.time("timeout"),
        retry,
        retry_most,
        tries: values.count("tries")?,
        final_status: match values.text("final_status") {
            Some(text) => status_ranges(&text)?,
            None => Vec::new(),
        },
        backfill: match values.text("backfill")?.as_str() {
            "none" => Backfill::None,
            "all" => Backfill::All,
            _ => Backfill::Latest,
        },
        late: values.time("late"),
        backfill_most: values.count("backfill_most")?,
        splay: values.time("splay")?,
        depends_on: values.list("depends_on"),
        ttl,
        grace,
        env: {
            let pair = |text: &String| text.split_once('=').map(|(a, b)| (a.into(), b.into()));
            values.list("env").iter().filter_map(pair).collect()
        },
        cwd: values.text("cwd").map(PathBuf::from),
        user: values.text("user"),
        umask: values.text("umask").and_then(|text| octal(&text)),
        nice: u8::try_from(values.count("nice")?).ok()?,
        keep: values.count("keep")?,
        on_failure: values.list("on_failure"),
        on_success: values.list("on_success"),
        on_recovery: values.list("on_recovery"),
        enabled: values.get("enabled") == ValueKind::Boolean(true),
    })
}

fn schedule(values: &Values<'_>, timezone: &str, reading: &mut Reading) -> Option<Schedule> {
    let [whole, schedule, every, zone] =
        ["", "schedule", "every", "timezone"].map(|key| values.full(key));
    let zone_name = values.text("timezone").unwrap_or_else(|| timezone.to_owned());
    let mut or_broken = |key: &str, read: Result<Schedule, String>| {
        let keys = [key, &zone, "jobs.timezone"];
        read.map_err(|why| reading.broken(&keys, format!("{key}: {why}"))).ok()
    };
    match (values.text("schedule"), values.text("every")) {
        (Some(text), None) => or_broken(&schedule, Schedule::cron(&text, &zone_name)),
        (None, Some(text)) => {
            let read = or_broken(&every, Schedule::every(&text, &zone_name))?;
            for key in ["timezone", "backfill", "backfill_most", "late"] {
                let is_used = key == "timezone" && read.zone().is_some();
                if values.is_set(key) && !is_used {
                    let key = values.full(key);
                    reading.doubtful(&[&key], format!("{key}: says nothing beside every"));
                }
            }
            if duration::parse(&text).is_ok_and(|time| time < LOOKS_EVERY) {
                let text = format!("{every}: less than a minute, and hosts look once a minute");
                reading.doubtful(&[&every], text);
            }
            Some(read)
        }
        (found, _) => {
            let text = match found {
                Some(_) => format!("{whole}: has schedule and every, of which it takes one"),
                None => format!("{whole}: needs a schedule (\"17 3 * * *\") or every (\"15m\")"),
            };
            reading.broken(&[&whole, &schedule, &every], text);
            None
        }
    }
}

/// Every job that this one depends on is there, once.
fn dependencies(job: &JobSettings, names: &BTreeSet<&str>, reading: &mut Reading) {
    let key = full(&job.name, "depends_on");
    for (at, other) in job.depends_on.iter().enumerate() {
        let text = if *other == job.name {
            format!("{key}: the job itself")
        } else if job.depends_on[..at].contains(other) {
            format!("{key}: {other} is there twice")
        } else if !names.contains(other.as_str()) {
            let others = names.iter().filter(|name| **name != job.name).copied();
            let near = closest(other, others).map(|near| format!(" (did you mean \"{near}\"?)"));
            format!("{key}: there is no job \"{other}\"{}", near.unwrap_or_default())
        } else {
            continue;
        };
        reading.broken(&[&key], text);
    }
}

/// Each after those that it depends on. Jobs in a circle are a problem, one for each circle.
fn in_order(mut left: Vec<JobSettings>, reading: &mut Reading) -> Vec<JobSettings> {
    let mut ordered: Vec<JobSettings> = Vec::new();
    while !left.is_empty() {
        let waits_for = |job: &JobSettings| {
            let is_left =
                |other: &&String| **other != job.name && left.iter().any(|job| job.name == **other);
            job.depends_on.iter().find(is_left).cloned()
        };
        if let Some(at) = left.iter().position(|job| waits_for(job).is_none()) {
            ordered.push(left.remove(at));
            continue;
        }
        // Everyone waits for another one: going on like that leads into a circle.
        let mut path: Vec<String> = vec![left[0].name.clone()];
        let circle = loop {
            let here = left.iter().find(|job| Some(&job.name) == path.last());
            let Some(next) = here.and_then(waits_for) else { break path };
            if let Some(start) = path.iter().position(|name| *name == next) {
                break path.split_off(start);
            }
            path.push(next);
        };
        told(circle.clone(), reading);
        left.retain(|job| !circle.contains(&job.name));
    }
    ordered
}

/// `a -> b -> a: ...`
fn told(mut circle: Vec<String>, reading: &mut Reading) {
    let keys: Vec<String> = circle.iter().map(|name| full(name, "depends_on")).collect();
    circle.extend(circle.first().cloned());
    let text = format!("jobs: each waits for the next for ever: {}", circle.join(" -> "));
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    reading.broken(&keys, text);
}
