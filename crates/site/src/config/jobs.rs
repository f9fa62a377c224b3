//! `[jobs.NAME]`: commands that run on one host at a time, when they are due. Their tables have the
//! same keys, whatever their names: each key's default, check and type is here. Rules between keys
//! and between jobs are in `config/job_rules.rs`.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use ::config::ValueKind;

use super::problem::{ensure, no_control_characters, shown_name};
use super::schema::Kind::{Choice, Count, Flag, List, OptionalText, Text};
use super::schema::{Key, absolute, key, time_zone};
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
    key("jobs.NAME.tries", "0", Count(0..=1000)),
    key("jobs.NAME.final_status", "", OptionalText(statuses)),
    key("jobs.NAME.backfill", "latest", Choice(&["none", "latest", "all"])),
    key("jobs.NAME.late", "", OptionalText(positive_time)),
    key("jobs.NAME.backfill_most", "100", Count(1..=10_000)),
    key("jobs.NAME.splay", "0", Text(time)),
    key("jobs.NAME.depends_on", "", List(dependency)),
    key("jobs.NAME.timezone", "", OptionalText(time_zone)),
    key("jobs.NAME.env", "", List(variable)),
    key("jobs.NAME.cwd", "", OptionalText(absolute)),
    key("jobs.NAME.user", "", OptionalText(no_control_characters)),
    key("jobs.NAME.umask", "", OptionalText(umask)),
    key("jobs.NAME.nice", "0", Count(0..=19)),
    key("jobs.NAME.ttl", "1m", Text(positive_time)),
    key("jobs.NAME.grace", "5s", Text(time)),
    key("jobs.NAME.on_failure", "", List(word)),
    key("jobs.NAME.on_success", "", List(word)),
    key("jobs.NAME.on_recovery", "", List(word)),
    key("jobs.NAME.keep", "0", Count(0..=1_000_000)),
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

/// `64-78, 1`
pub(super) fn status_ranges(text: &str) -> Option<Vec<RangeInclusive<i32>>> {
    let number = |text: &str| text.trim().parse().ok().filter(|status| (1..=255).contains(status));
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(number(first)?..=number(last)?).filter(|range| !range.is_empty())
    };
    text.split(',').map(range).collect()
}

fn statuses(text: &str) -> Result<(), String> {
    let why = "expected exit statuses from 1 to 255, as in \"64-78, 1\"";
    status_ranges(text).map(drop).ok_or_else(|| why.to_owned())
}

fn variable(text: &str) -> Result<String, String> {
    let is_named = text.split_once('=').is_some_and(|(name, _)| !name.is_empty());
    ensure(is_named, "expected variables, as in \"LANG=C.UTF-8\"")?;
    word(text)
}

fn umask(text: &str) -> Result<(), String> {
    octal(text).map(drop).ok_or_else(|| "expected octal digits, as in \"0027\"".to_owned())
}

pub(super) fn octal(text: &str) -> Option<u32> {
    let is_octal = text.bytes().all(|byte| byte.is_ascii_digit());
    u32::from_str_radix(text, 8).ok().filter(|mask| is_octal && *mask <= 0o777)
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
