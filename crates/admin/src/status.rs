//! Is all well, and if not, which command next: what `onedrop status` shows, and the page's front.
//!
//! [`LedgerFacts`] reads the ledger, within a time that does not grow with what is on record;
//! [`LedgerFacts::findings`] judges. What only this host knows (its mail store, Postfix' queue) is
//! in [`of_this_host`]. A finding is a value: the command line and the page show the same ones. It
//! changes nothing, and reads no message.

use std::time::{Duration, Instant, SystemTime};

use onedrop_core::duration::brief;
use onedrop_core::ledger::{
    HOSTS_FOR, HostRow, LedgerError, Numbered, OpenCopies, RecentAttempts, Remembered,
    SchemaVersion, StatusLedger,
};
use onedrop_core::text;
use onedrop_locks::jobs::job_status::JobsSeen;
use onedrop_site::config::{JobSettings, Loaded};

mod figures;
mod findings;
mod queue;
mod store;
mod unrecorded;

pub use figures::{SeenByHost, StatusFigures, StatusGauges};
pub use findings::{unread_jobs, verify_since};
pub use queue::of_output as of_postqueue;
pub use store::{root_is_known, serves as store_serves};
pub use unrecorded::{
    count as unrecorded_count, finding as unrecorded_finding, trace as unrecorded_trace,
};

/// How far back attempts are counted.
pub const HOUR: Duration = Duration::from_secs(3600);
/// How far back copies are looked through: `onedrop verify`'s window as a job.
pub const WINDOW: Duration = Duration::from_secs(48 * 3600);
/// A server says each minute that it is there.
pub const SILENT: Duration = Duration::from_secs(300);
/// A Sent copy that waits for longer needs somebody.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);
/// Bytes of a finding's sentence.
const LONGEST: usize = 300;

/// What a finding asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StatusLevel {
    Ok,
    /// A person should look.
    Attention,
    /// It could not be found out.
    Failed,
}

impl StatusLevel {
    /// The word for it on the command line and the page.
    pub fn word(self) -> &'static str {
        match self {
            StatusLevel::Ok => "ok",
            StatusLevel::Attention => "ATTENTION",
            StatusLevel::Failed => "FAILED",
        }
    }
}

/// One line: what is so, and the command that comes next.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct StatusFinding {
    pub level: StatusLevel,
    pub topic: &'static str,
    /// A sentence on one line.
    pub text: String,
    /// The next command; always there where the level is not [`StatusLevel::Ok`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

impl StatusFinding {
    fn ok(topic: &'static str, sentence: impl AsRef<str>) -> StatusFinding {
        let text = text::shortened(sentence.as_ref(), LONGEST).into_owned();
        StatusFinding { level: StatusLevel::Ok, topic, text, command: None }
    }

    /// A person should look.
    pub fn attention(
        topic: &'static str,
        sentence: impl AsRef<str>,
        command: impl Into<String>,
    ) -> StatusFinding {
        let command = Some(command.into());
        let level = StatusLevel::Attention;
        StatusFinding { level, command, ..StatusFinding::ok(topic, sentence) }
    }

    /// A finding that something could not be found out; `sentence` says why.
    pub fn failed(
        topic: &'static str,
        sentence: impl AsRef<str>,
        command: impl Into<String>,
    ) -> StatusFinding {
        let level = StatusLevel::Failed;
        StatusFinding { level, ..StatusFinding::attention(topic, sentence, command) }
    }
}

/// The facts on record by which the findings are judged.
#[derive(Debug)]
pub struct LedgerFacts {
    pub schema: SchemaVersion,
    pub hosts: Vec<HostRow>,
    pub attempts: RecentAttempts,
    pub open: OpenCopies,
    pub remembered: Remembered,
    /// Whether any message is on record.
    pub has_messages: bool,
    pub jobs: JobsSeen,
}

impl LedgerFacts {
    /// Reads them, by a few calls.
    ///
    /// # Errors
    /// The ledger cannot be asked, or its schema is not this program's to read.
    pub fn read(ledger: &dyn StatusLedger, until: Instant) -> Result<LedgerFacts, LedgerError> {
        let facts = LedgerFacts::without_attempts(ledger, until)?;
        let hosts = ledger.hosts(HOSTS_FOR, until)?;
        Ok(LedgerFacts { hosts, attempts: ledger.recent_attempts(HOUR, until)?, ..facts })
    }

    /// What the gauges need, which are asked for each minute: no hosts, and no attempts.
    ///
    /// # Errors
    /// Those of [`read`](LedgerFacts::read).
    pub fn without_attempts(
        ledger: &dyn StatusLedger,
        until: Instant,
    ) -> Result<LedgerFacts, LedgerError> {
        let schema = ledger.schema_version(until)?;
        schema.check()?;
        let (reach, now) = (Duration::ZERO, SystemTime::UNIX_EPOCH);
        Ok(LedgerFacts {
            schema,
            hosts: Vec::new(),
            attempts: RecentAttempts { now, reach, counts: Vec::new(), hosts: Vec::new() },
            open: ledger.open_copies(WINDOW, KEPT_FOR, until)?,
            remembered: ledger.remembered(until)?,
            has_messages: ledger.last_row(Numbered::Message, until)?.is_some(),
            jobs: JobsSeen::read(ledger, until)?,
        })
    }

    /// What there is to say about them, with the jobs of the configuration.
    pub fn findings(&self, jobs: &[JobSettings]) -> Vec<StatusFinding> {
        findings::of_ledger(self, jobs)
    }

    /// The figures in them.
    pub fn figures(&self, jobs: &[JobSettings]) -> StatusFigures {
        StatusFigures::of(self, jobs)
    }
}

/// The finding that stands for all of [`LedgerFacts::findings`] where they cannot be read.
pub fn without_ledger(error: &LedgerError) -> StatusFinding {
    let command = match error {
        LedgerError::Version(_) => "onedrop migrate --dry-run",
        _ => "onedrop check",
    };
    StatusFinding::failed("ledger", error.to_string(), command)
}

/// What this host alone knows, each within `time`: whether its mail store answers, and Postfix'
/// queue.
pub fn of_this_host(loaded: &Loaded, time: Duration) -> Vec<StatusFinding> {
    let store = &loaded.config.store;
    std::thread::scope(|scope| {
        let until = Instant::now() + time;
        let queue = scope.spawn(move || queue::finding(loaded, until));
        let log = scope.spawn(move || unrecorded::finding(&loaded.shown_file(), until));
        let found = match store::answers(&loaded.config, until) {
            Ok(()) => StatusFinding::ok("store", format!("{} answers", store.kind())),
            Err(why) => StatusFinding::attention("store", why, "onedrop check"),
        };
        let found = [log.join().unwrap_or(None), Some(found), queue.join().unwrap_or(None)];
        found.into_iter().flatten().collect()
    })
}

/// The worst of them.
pub fn level(findings: &[StatusFinding]) -> StatusLevel {
    findings.iter().map(|finding| finding.level).max().unwrap_or(StatusLevel::Ok)
}

/// `3 copies`, `1 copy`.
fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// How long ago, for people.
fn ago(time: Duration) -> String {
    format!("{} ago", brief(time))
}
