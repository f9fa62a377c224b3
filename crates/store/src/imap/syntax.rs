//! How IMAP writes things down: mailbox names, strings, dates, response codes, and the CRLF
//! form of a message. Whatever comes from a message or from the configuration passes through here
//! before it becomes part of a command, and whatever a server says passes through [`clean`] before
//! it becomes part of an error. Values only; no I/O.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Utc};

use crate::utf7::modified_utf7;
use onedrop_core::text;

/// Longest text of a server's that goes into an error, in bytes.
const LONGEST_TEXT: usize = 200;

/// A mailbox name as a command may carry it: modified UTF-7, quoted. `None` when it is empty or
/// holds a control character, which no mailbox name may.
pub fn mailbox(name: &str) -> Option<String> {
    let fine = !name.is_empty() && !name.chars().any(char::is_control);
    fine.then(|| quote(&modified_utf7(name)))
}

/// `text` as a quoted string. Only for printable ASCII.
pub fn quote(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A point in time as APPEND takes it (RFC 3501, date-time), in UTC.
pub fn date_time(time: SystemTime) -> String {
    utc(time).format("%d-%b-%Y %H:%M:%S +0000").to_string()
}

/// The day before `time` as SEARCH takes it (RFC 3501, date), in UTC. Servers compare with the day
/// in the message's own or in their time zone; a day earlier covers every zone.
pub fn day_before(time: SystemTime) -> String {
    utc(time.checked_sub(Duration::from_secs(24 * 3600)).unwrap_or(UNIX_EPOCH))
        .format("%d-%b-%Y")
        .to_string()
}

/// A set of UIDs (RFC 3501, sequence-set) that rise.
pub fn uid_set(uids: &[u32]) -> String {
    let runs = uids.chunk_by(|one, next| one.checked_add(1) == Some(*next));
    let written = runs.map(|run| match run {
        [first, .., last] => format!("{first}:{last}"),
        run => run.iter().map(u32::to_string).collect(),
    });
    written.collect::<Vec<_>>().join(",")
}

/// The point in time of an INTERNALDATE: what [`date_time`] writes, in any zone.
pub fn parse_date_time(text: &[u8]) -> Option<SystemTime> {
    let text = std::str::from_utf8(text).ok()?;
    DateTime::parse_from_str(text.trim(), "%d-%b-%Y %H:%M:%S %z").ok().map(SystemTime::from)
}

fn utc(time: SystemTime) -> DateTime<Utc> {
    // The end of the year 9999: later years have no four digits.
    let secs = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().min(253_402_300_799);
    DateTime::from_timestamp(secs as i64, 0).unwrap_or_default()
}

/// What a server said, fit for an error.
pub fn clean(said: &[u8]) -> String {
    text::of_bytes(said.trim_ascii(), LONGEST_TEXT).trim_end().to_owned()
}

/// A response code (RFC 3501 section 7.1) at the start of a status response's text: name in upper
/// case, arguments.
pub fn response_code(text: &str) -> Option<(String, String)> {
    let (code, _) = text.strip_prefix('[')?.split_once(']')?;
    let (name, arguments) = code.split_once(' ').unwrap_or((code, ""));
    Some((name.to_ascii_uppercase(), arguments.trim().to_owned()))
}

/// Gives `bytes` to `sink` piece by piece as they travel in a literal: bare LF as CRLF, NUL as 0x80
/// (a literal cannot hold it), all else as it is.
///
/// # Errors
/// The sink's.
pub fn literal_form<E>(
    bytes: &[u8],
    mut sink: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut from = 0;
    for at in memchr::memchr2_iter(b'\n', 0, bytes) {
        let replacement: &[u8] = match bytes[at] {
            0 => b"\x80",
            _ if at > 0 && bytes[at - 1] == b'\r' => continue,
            _ => b"\r\n",
        };
        sink(&bytes[from..at])?;
        sink(replacement)?;
        from = at + 1;
    }
    sink(&bytes[from..])
}

/// How many bytes [`literal_form`] gives.
pub fn literal_size(bytes: &[u8]) -> usize {
    let mut size = 0;
    let Ok(()) = literal_form(bytes, |piece| {
        size += piece.len();
        Ok::<(), std::convert::Infallible>(())
    });
    size
}
