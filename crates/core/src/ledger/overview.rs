//! The port of what `onedrop status` asks of a ledger, and of the rows of hosts.
//!
//! Promise: a question costs what the asked time holds, and no more than [`MOST_ATTEMPTS`] or
//! [`MOST_COPIES`] rows, however much is on record. Row numbers rise with time; where numbers and
//! times disagree (a clock that was set back) an answer may leave out what lies at its beginning.

use std::time::{Duration, Instant, SystemTime};

use super::LedgerError;

/// Maximum number of attempts counted, the newest: of first attempts, and of others.
pub const MOST_ATTEMPTS: u32 = 50_000;
/// Maximum number of copies looked through, the newest.
pub const MOST_COPIES: u32 = 100_000;
/// Maximum number of open copies, and of kept ones, counted.
pub const MOST_OPEN: u32 = 10_000;
/// Maximum number of hosts listed.
pub const MOST_HOSTS: u32 = 200;

/// A host that was not seen for longer is not listed any more, and the next purge forgets it.
pub const HOSTS_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// How attempts ended that began of late.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentAttempts {
    /// By the ledger's clock.
    pub now: SystemTime,
    /// They reach back so far: less than was asked where there are more than [`MOST_ATTEMPTS`].
    pub reach: Duration,
    pub counts: Vec<AttemptCount>,
    /// How many attempts each host began.
    pub hosts: Vec<(String, u64)>,
}

/// Attempts that ended the same way, and took as long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptCount {
    /// `None`: no end is on record; the process is at work or was killed.
    pub outcome: Option<String>,
    pub reason: Option<String>,
    pub status: Option<String>,
    pub millis: Option<u64>,
    pub count: u64,
}

impl AttemptCount {
    /// The key that distinguishes it from others.
    pub fn key(&self) -> (&Option<String>, &Option<String>, &Option<String>, Option<u64>) {
        (&self.outcome, &self.reason, &self.status, self.millis)
    }
}

/// Copies that may stand in their mailbox without a receipt on record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenCopies {
    /// Whose lease was given back in doubt.
    pub in_doubt: u64,
    /// Whose lease ran out without an end.
    pub leases_over: u64,
    /// How long ago the oldest one's message was recorded.
    pub oldest: Option<Duration>,
    /// Copies of messages recorded that long ago or later were looked through, less than was asked
    /// where there are more than [`MOST_COPIES`]; and those that were leased twice, however old.
    pub reach: Duration,
    /// Messages whose shared copy (Sent) is kept until it can be placed, and has been so for that
    /// long at least.
    pub kept: u64,
}

/// A host that uses the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRow {
    pub host: String,
    pub program_version: String,
    pub schema_version: i64,
    /// How long ago it said so.
    pub seen_ago: Duration,
    /// Its clock less the ledger's, in milliseconds; `None`: the ledger goes by its clock.
    pub clock_offset_ms: Option<i64>,
}

/// What `onedrop status` asks.
pub trait Overview: Send + Sync {
    /// How the attempts ended that began at most `back` ago.
    fn recent_attempts(
        &self,
        back: Duration,
        until: Instant,
    ) -> Result<RecentAttempts, LedgerError>;

    /// The open copies of messages recorded at most `back` ago, and those that are kept for longer
    /// than `kept_for`.
    fn open_copies(
        &self,
        back: Duration,
        kept_for: Duration,
        until: Instant,
    ) -> Result<OpenCopies, LedgerError>;

    /// The hosts seen at most `back` ago, by name.
    fn hosts(&self, back: Duration, until: Instant) -> Result<Vec<HostRow>, LedgerError>;

    /// Puts on record that this program, on the host of that name, uses the ledger now.
    fn note_host(&self, host: &str, version: &str, until: Instant) -> Result<(), LedgerError>;
}
