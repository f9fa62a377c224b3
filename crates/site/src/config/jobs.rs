//! `[jobs.NAME]`: commands that run on one host at a time, when they are due. Their tables have the
//! same keys, whatever their names: each key's default, check and type is here. Rules between keys
//! and between jobs are in `config/job_rules.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use ::config::ValueKind;

use super::problem::{ensure, no_control_characters, shown_name};
use super::schema::Kind::{Choice, Count, Flag, List, OptionalText, Text};
use super::schema::{Key, key, time_zone};
use super::suggest::closest;
use onedrop_core::duration;
use onedrop_locks::schedule::Schedule;

/// Where jobs are.
pub(super) const SECTION: &str = "jobs";

/// The values of each job that are set, by key.
pub(super) type JobTables = BTreeMap<String, BTreeMap<&'static str, ValueKind>>;

/// Every key of a job, in the order in which `conf/onedrop.toml` shows them.
const KEYS: &[Key] = &[
    key("jobs.NAME.schedule", "", OptionalText(expression)),
    key("jobs.NAME.every", "", OptionalText(interval)),
    key("jobs.NAME.command", "", List(word)),
    key("jobs.NAME.timeout", "", OptionalText(positive_time)),
    key("jobs.NAME.retry", "5m", Text(time)),
    key("jobs.NAME.retry_most", "1h", Text(positive_time)),
    key("jobs.NAME.backfill", "latest", Choice(&["none", "latest", "all"])),
    key("jobs.NAME.late", "", OptionalText(positive_time)),
    key("jobs.NAME.backfill_most", "100", Count(1..=10_000)),
    key("jobs.NAME.splay", "0", Text(time)),
    key("jobs.NAME.depends_on", "", List(dependency)),
    key("jobs.NAME.timezone", "", OptionalText(time_zone)),
    key("jobs.NAME.enabled", "true", Flag),
];

/// Bytes of a job's name.
const LONGEST_NAME: usize = 100;
/// Ten years.
const LONGEST_TIME: Duration = Duration::from_secs(3650 * 86_400);

/// The names of a job's keys with their defaults, as a variable would say them, in the order of
/// `conf/onedrop.toml`.
pub fn job_keys() -> impl Iterator<Item = (&'static str, &'static str)> {
    KEYS.iter().map(|key| (key.name(), key.default))
}

/// The key of this exact name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name() == name)
}

/// The full name of a job's key; of the job with an empty one.
pub(super) fn full(job: &str, key: &str) -> String {
    match key {
        "" => format!("{SECTION}.{job}"),
        key => format!("{SECTION}.{job}.{key}"),
    }
}

/// What to say about a key that jobs do not have.
pub(super) fn unknown(job: &str, name: &str, is_table: bool) -> String {
    let known = || KEYS.iter().map(Key::name);
    let hint = match closest(name, known()) {
        Some(known) => format!("did you mean {known}?"),
        None if is_table => {
            format!("did you mean [jobs.\"{}\"]?", shown_name(&format!("{job}.{name}")))
        }
        None => format!("known keys: {}", known().collect::<Vec<_>>().join(", ")),
    };
    format!("unknown key {} ({hint})", shown_name(&full(job, name)))
}

/// Whether a job may have this name.
///
/// # Errors
/// Why not.
pub(super) fn name(name: &str) -> Result<(), String> {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if begins_well && name.bytes().all(is_fit) && name.len() <= LONGEST_NAME {
        return Ok(());
    }
    Err(format!(
        "\"{}\" cannot be a job's name (1 to {LONGEST_NAME} letters, digits, \"-\", \"_\" and \
         \".\", the first a letter or a digit)",
        shown_name(name)
    ))
}

fn expression(text: &str) -> Result<(), String> {
    Schedule::cron(text, "UTC").map(drop)
}

fn interval(text: &str) -> Result<(), String> {
    let (length, _) = text.split_once(" at ").unwrap_or((text, ""));
    Schedule::every(text, "UTC")?;
    time(length)
}

fn time(text: &str) -> Result<(), String> {
    let time = duration::parse(text)?;
    ensure(time <= LONGEST_TIME, "must not be more than ten years (3650d)")
}

fn positive_time(text: &str) -> Result<(), String> {
    ensure(!duration::parse(text)?.is_zero(), "must be more than 0")?;
    time(text)
}

fn word(text: &str) -> Result<String, String> {
    ensure(!text.contains('\0'), "must not hold a NUL")?;
    Ok(text.to_owned())
}

fn dependency(text: &str) -> Result<String, String> {
    no_control_characters(text)?;
    name(text)?;
    Ok(text.to_owned())
}
