//! The port of the web pages: what they show beside traces, locks and jobs. It only reads.
//!
//! Promise: what a call costs goes with its limit or with the numbers that it is given, not with
//! what is on record. Rows are numbered in the order in which they were put on record, so pages go
//! by number, and a time is found by halving ([`first_since`]); no row is counted but those of a
//! range. Only the search for a name goes through indexes of its own.

use std::ops::Range;
use std::time::{Duration, Instant, SystemTime};

use super::{CopyOnRecord, LedgerError, Trace};

/// What a statement of the pages may take.
pub const QUESTION: Duration = Duration::from_secs(2);

/// Rows with numbers and times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbered {
    Message,
    Attempt,
}

/// A part of what a message says of itself, in whatever case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessagePart<'a> {
    /// The envelope sender, or an address in From.
    Sender(&'a str),
    Subject(&'a str),
}

/// Which failed attempts are asked for: all that is given must hold.
#[derive(Debug, Clone, Copy, Default)]
pub struct FailureFilter<'a> {
    /// The word, or where none is on record the status.
    pub reason: Option<&'a str>,
    /// A queue id, a recipient in whatever case, or a Message-ID of those that recorded none.
    pub name: Option<&'a str>,
    /// Only attempts that came to record no message.
    pub unrecorded: bool,
}

/// A message in a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageLine {
    pub number: i64,
    pub message_id: Option<String>,
    /// RFC 3339, UTC.
    pub recorded_at: String,
    /// Of the envelope.
    pub sender: String,
    pub subject: Option<String>,
    pub size_bytes: i64,
    /// A copy is not placed.
    pub is_open: bool,
}

/// A failed attempt in a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttemptLine {
    pub number: i64,
    /// `None`: it recorded no message.
    pub message: Option<i64>,
    /// RFC 3339, UTC.
    pub started_at: String,
    pub recipient: String,
    pub queue_id: String,
    pub host: String,
    pub pid: i64,
    pub duration_ms: Option<i64>,
    pub outcome: String,
    pub status: String,
    pub text: String,
    /// The word, or where none is on record the status.
    pub reason: String,
}

/// The number of attempts of one minute that ended alike, after about the same time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ActivityRow {
    /// In which they began, since 1970.
    pub minute: i64,
    /// `None`: no end is on record.
    pub outcome: Option<String>,
    /// Of failures: the word, or where none is on record the status.
    pub reason: Option<String>,
    /// Which of [`SLOWER_MS`] was the first that they did not reach; one more for none.
    pub slowness: Option<usize>,
    pub attempts: u64,
}

/// Bounds of times in milliseconds, by which attempts are grouped.
pub const SLOWER_MS: [u64; 15] =
    [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 60_000];

/// What the web pages read.
pub trait Pages: Send + Sync {
    /// Everything on record about one message.
    fn story(&self, message: i64, until: Instant) -> Result<Option<Trace>, LedgerError>;

    /// The newest messages below `before` that `name` means: a Message-ID with or without its
    /// brackets, a queue id, a recipient in whatever case, an account.
    fn messages_named(
        &self,
        name: &str,
        before: i64,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<MessageLine>, LedgerError>;

    /// The newest of these messages that have the part.
    fn messages_with(
        &self,
        part: MessagePart<'_>,
        numbers: &Range<i64>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<MessageLine>, LedgerError>;

    /// The newest of these attempts that failed.
    fn failures(
        &self,
        filter: &FailureFilter<'_>,
        numbers: &Range<i64>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<AttemptLine>, LedgerError>;

    /// How the attempts ended that began within the times. What recorded a message then, recorded
    /// one of these.
    fn activity(
        &self,
        messages: &Range<i64>,
        times: &Range<SystemTime>,
        until: Instant,
    ) -> Result<Vec<ActivityRow>, LedgerError>;

    /// The oldest copies of these messages that are not placed.
    fn unplaced_copies(
        &self,
        messages: &Range<i64>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError>;

    /// The oldest copies with numbers above `after` that want another look, however old they are.
    fn unsettled_copies(
        &self,
        after: i64,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError>;

    /// The first row from this number on, and when it came.
    fn row_from(
        &self,
        of: Numbered,
        number: i64,
        until: Instant,
    ) -> Result<Option<(i64, SystemTime)>, LedgerError>;

    /// The last row, and when it came.
    fn last_row(
        &self,
        of: Numbered,
        until: Instant,
    ) -> Result<Option<(i64, SystemTime)>, LedgerError>;
}

/// By how much a row's time may be before that of one with a lower number.
const DISORDER: Duration = Duration::from_secs(900);

/// A number below which no message came at `time` or later, unless clocks were set back.
pub fn first_since<P: Pages + ?Sized>(
    pages: &P,
    time: SystemTime,
    until: Instant,
) -> Result<i64, LedgerError> {
    let time = time.checked_sub(DISORDER).unwrap_or(SystemTime::UNIX_EPOCH);
    let Some((last, at)) = pages.last_row(Numbered::Message, until)? else { return Ok(0) };
    if at < time {
        return Ok(last + 1);
    }
    let Some((mut low, at)) = pages.row_from(Numbered::Message, 0, until)? else { return Ok(0) };
    if at >= time {
        return Ok(low);
    }
    // The row at `low` is before the time, the one at `high` is not.
    let mut high = last;
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match pages.row_from(Numbered::Message, middle, until)? {
            Some((number, at)) if at < time => low = number.min(high - 1),
            _ => high = middle,
        }
    }
    Ok(high)
}
