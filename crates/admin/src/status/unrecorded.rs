//! Deliveries that were put off before they were on record, as this host's log has them: the ledger
//! was away or refused, or the configuration could not be read. Each has a record in the journal
//! with the field `ONEDROP_UNRECORDED`, which names the configuration file (`delivery_log.rs`).
//!
//! No delivery waits for it, and journald bounds what it keeps. A host without journald has none,
//! and whoever may not read the journal (group systemd-journal) sees none.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use serde::Deserialize;

use super::{HOUR, SILENT, StatusFinding};
use crate::check::program;
use onedrop_core::ledger::{Trace, TraceAttempt, TraceFilter};
use onedrop_core::outcome::Status;
use onedrop_core::text;
use onedrop_core::text::shell::operand;

/// Records that are read, the newest first.
const MOST: usize = 1000;

/// Postfix has tried again within this time.
const LATELY: Duration = Duration::from_secs(900);

/// What is read of each: whoever writes records with long fields of other names hides none of ours.
const FIELDS: &str = "MESSAGE,_HOSTNAME,_PID,ONEDROP_RECIPIENT,ONEDROP_SENDER,ONEDROP_QUEUE_ID,\
                      ONEDROP_OUTCOME,ONEDROP_REASON,ONEDROP_STATUS,ONEDROP_MILLISECONDS";

/// A record as `journalctl --output=json` prints it; fields that are no text are left out.
#[derive(Deserialize)]
struct JournalRecord {
    #[serde(rename = "__REALTIME_TIMESTAMP")]
    microseconds: Option<String>,
    #[serde(rename = "_HOSTNAME")]
    host: Option<serde_json::Value>,
    #[serde(rename = "_PID")]
    pid: Option<serde_json::Value>,
    #[serde(rename = "MESSAGE")]
    text: Option<serde_json::Value>,
    #[serde(rename = "ONEDROP_RECIPIENT")]
    recipient: Option<serde_json::Value>,
    #[serde(rename = "ONEDROP_SENDER")]
    sender: Option<serde_json::Value>,
    #[serde(rename = "ONEDROP_QUEUE_ID")]
    queue_id: Option<serde_json::Value>,
    #[serde(rename = "ONEDROP_OUTCOME")]
    outcome: Option<serde_json::Value>,
    #[serde(rename = "ONEDROP_REASON")]
    reason: Option<serde_json::Value>,
    #[serde(rename = "ONEDROP_STATUS")]
    status: Option<serde_json::Value>,
    #[serde(rename = "ONEDROP_MILLISECONDS")]
    milliseconds: Option<serde_json::Value>,
}

impl JournalRecord {
    fn attempt(self) -> Option<TraceAttempt> {
        let text = |value: Option<serde_json::Value>| {
            value.as_ref().and_then(|one| one.as_str()).map(|one| text::one_line(one).into_owned())
        };
        let number = |value| text(value).and_then(|number| number.parse::<i64>().ok());
        let at = Timestamp::from_microsecond(self.microseconds?.parse().ok()?).ok()?;
        let (status, said) = (text(self.status), text(self.text)?);
        let told = behind_the_heading(&said).unwrap_or(&said);
        let text_of_all = format!("{told}; not on record: this host's log tells it");
        Some(TraceAttempt {
            started_at: at.to_string(),
            recipient: text(self.recipient).unwrap_or_default(),
            sender: text(self.sender).unwrap_or_default(),
            queue_id: text(self.queue_id).unwrap_or_default(),
            host: text(self.host).unwrap_or_default(),
            pid: number(self.pid).unwrap_or_default(),
            duration_ms: Some(number(self.milliseconds).unwrap_or_default()),
            outcome: text(self.outcome),
            reason: text(self.reason),
            status,
            text: Some(text_of_all),
        })
    }
}

/// The part of a record after its first five words: queue id, recipient, Message-ID, outcome and
/// status. In quotation marks a sender may have written blanks, and any word ([`text::quoted`]).
fn behind_the_heading(said: &str) -> Option<&str> {
    let (mut is_quoted, mut is_escaped, mut words) = (false, false, 0);
    let at = said.find(|c: char| {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words += 1,
            _ => {}
        }
        words == 5
    })?;
    Some(&said[at + 1..])
}

/// What was put off by this configuration file, the newest first; with `name` for that recipient or
/// queue id alone. Nothing where there is no journal.
fn newest(file: &str, back: Duration, name: Option<&str>, until: Instant) -> Vec<TraceAttempt> {
    let Some(journalctl) = program::find("journalctl") else { return Vec::new() };
    let mut command = Command::new(journalctl);
    command.args(["--quiet", "--no-pager", "--output=json", "--reverse"]);
    command.arg(format!("--since=-{}s", back.as_secs())).arg(format!("--lines={MOST}"));
    // Without --all a text of 4096 bytes or more is null: a sender's Message-ID is in it.
    command.args(["--all", &format!("--output-fields={FIELDS}")]);
    let ours = matched(file);
    match name {
        None => command.arg(ours),
        Some(name) => {
            let recipient = |name: &str| format!("ONEDROP_RECIPIENT={name}");
            let queue_id = format!("ONEDROP_QUEUE_ID={name}");
            let by_name = [recipient(name), recipient(&name.to_lowercase())];
            command.args([&ours, &queue_id]).args(["+", &ours]).args(by_name)
        }
    };
    let output = program::output_of(&mut command, "read the journal", until);
    let output = output.map_err(|why| tracing::info!("{}", why.text)).unwrap_or_default();
    let records = output.lines().filter_map(|line| serde_json::from_str(line).ok());
    records.filter_map(JournalRecord::attempt).collect()
}

/// The journal's match for what was put off under this configuration.
fn matched(file: &str) -> String {
    format!("ONEDROP_UNRECORDED={}", text::one_line(file))
}

/// What of the last hour there is to say; nothing where nothing was put off.
pub fn finding(file: &str, until: Instant) -> Option<StatusFinding> {
    let found = newest(file, HOUR, None, until);
    let last = found.first()?;
    let count =
        if found.len() == MOST { format!("{MOST} or more") } else { found.len().to_string() };
    let (status, why) = (last.status.as_deref().unwrap_or_default(), last.text.as_deref());
    let why = why.unwrap_or_default().split("; ").next().unwrap_or_default();
    let sentence =
        format!("last hour: {count} put off before they were on record, the last: {status} {why}");
    let of_setup = Status::OUR_SETUP.to_string();
    let is_of_setup = found.iter().any(|one| one.status.as_deref() == Some(&of_setup));
    Some(match is_of_setup || is_without_ledger(&found, until) {
        true => {
            let look = format!("journalctl --since -1h {}", operand(&matched(file)));
            StatusFinding::attention("log", sentence, look)
        }
        // As the reasons of those on record: the next try settles it.
        false => StatusFinding::ok("log", sentence),
    })
}

/// Whether the newest have said for a while, and up to now, that the ledger takes nothing, and none
/// was delivered meanwhile. Such a ledger has none of them on record: one that is full can still be
/// asked.
fn is_without_ledger(found: &[TraceAttempt], until: Instant) -> bool {
    let is_its = |one: &&TraceAttempt| {
        one.reason.as_deref().is_some_and(|reason| reason.starts_with("ledger_"))
    };
    let now = Timestamp::now().as_second();
    let age = |one: &TraceAttempt| {
        let at: Timestamp = one.started_at.parse().ok()?;
        u64::try_from(now - at.as_second()).ok().map(Duration::from_secs)
    };
    let ages: Vec<Duration> = found.iter().take_while(is_its).filter_map(age).collect();
    let (Some(newest), Some(first)) = (ages.first(), ages.last()) else { return false };
    // Of more than were read the first one is not known.
    let first = if ages.len() == MOST { (*newest + SILENT).max(*first) } else { *first };
    *newest < LATELY
        && first.saturating_sub(*newest) >= SILENT
        && !is_any_delivered(*newest + SILENT, until)
}

/// Whether this host's log has a delivery of that time, by whatever configuration.
fn is_any_delivered(back: Duration, until: Instant) -> bool {
    let Some(journalctl) = program::find("journalctl") else { return false };
    let mut command = Command::new(journalctl);
    command.args(["--quiet", "--no-pager", "--output=cat", "--lines=1"]);
    command.arg(format!("--since=-{}s", back.as_secs())).arg("ONEDROP_OUTCOME=delivered");
    let output = program::output_of(&mut command, "read the journal", until);
    output.is_ok_and(|said| !said.trim().is_empty())
}

/// How many were put off in the last hour.
pub fn count(file: &str, until: Instant) -> u64 {
    newest(file, HOUR, None, until).len() as u64
}

/// Whether an attempt that began at `started_at`, by the ledger's clock, may be this one of the
/// log, which is dated by its end. A server has one pid for all tries of a message, and Postfix
/// makes the next one minutes later.
fn is_about_the_time(one: &TraceAttempt, started_at: &str) -> bool {
    const CLOCKS: i64 = 60;
    let [Ok(ended), Ok(started)] = [&one.started_at, started_at].map(str::parse::<Timestamp>)
    else {
        return false;
    };
    let took = one.duration_ms.unwrap_or_default() / 1000;
    (ended.as_second() - took - started.as_second()).abs() <= CLOCKS
}

/// Those for the name (a recipient or a queue id), time and sender of `filter`, in the form of what
/// is on record, without those that `on_record` has.
pub fn trace(
    file: &str,
    filter: &TraceFilter<'_>,
    on_record: &[Trace],
    until: Instant,
) -> Option<Trace> {
    let since = filter.since.unwrap_or(SystemTime::UNIX_EPOCH);
    let back = SystemTime::now().duration_since(since).unwrap_or_default();
    let mut attempts = newest(file, back, filter.name, until);
    if let Some(part) = filter.sender.map(str::to_lowercase) {
        attempts.retain(|one| one.sender.to_lowercase().contains(&part));
    }
    let known = |one: &TraceAttempt| {
        let is_same = |other: &TraceAttempt| {
            (other.pid, &other.queue_id) == (one.pid, &one.queue_id)
                && other.recipient.eq_ignore_ascii_case(&one.recipient)
                && is_about_the_time(one, &other.started_at)
        };
        on_record.iter().flat_map(|trace| &trace.attempts).any(is_same)
    };
    attempts.retain(|one| !known(one));
    // As the ledger's own: the oldest first.
    attempts.reverse();
    (!attempts.is_empty()).then(|| Trace { attempts, ..Trace::default() })
}
