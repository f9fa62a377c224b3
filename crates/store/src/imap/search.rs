//! SEARCH as a look uses it (RFC 3501 section 6.4.4): what to ask for a message that is sought, and
//! the numbers in the answer. Values only.

use std::time::UNIX_EPOCH;

use super::session::CommandOutput;
use super::syntax;
use onedrop_core::store::CopySearch;

/// Copies of one message differ in their trace fields; by no more than this.
pub const TRACE_BYTES: u64 = 64 * 1024;
/// The same, where the search itself is by size and would find too much.
const SEARCH_BAND: u64 = 8 * 1024;
/// A longer Message-ID does not go into a command.
const LONGEST_SEARCHED_ID: usize = 500;

/// What to search for: a Message-ID, or without one messages of about the sought size; of those
/// whose UID is `next` or higher.
pub fn criteria(sought: &CopySearch<'_>, id: Option<&str>, next: Option<u32>) -> String {
    let criteria = all_criteria(sought, id);
    next.map_or(criteria.clone(), |next| format!("UID {next}:* {criteria}"))
}

fn all_criteria(sought: &CopySearch<'_>, id: Option<&str>) -> String {
    let since = match sought.since {
        since if sought.by_id => Some(since.unwrap_or(UNIX_EPOCH)),
        _ => (!sought.looks_back).then_some(sought.recorded_at),
    };
    let since = since.map(|since| format!("SINCE {} ", syntax::day_before(since)));
    let since = since.unwrap_or_default();
    if let Some(id) = id.filter(|_| sought.by_id) {
        // A mail program dates its copy as it likes.
        return format!("HEADER Message-ID {}", syntax::quote(id));
    }
    if let Some(id) = id {
        return format!("{since}HEADER Message-ID {}", syntax::quote(id));
    }
    if sought.identity.is_by_id() {
        // Copies with this Message-ID may be of any size.
        return if since.is_empty() { "ALL".to_owned() } else { since.trim_end().to_owned() };
    }
    // A mail program's copy has no trace fields.
    let band = if sought.by_id { TRACE_BYTES } else { SEARCH_BAND };
    let over = sought.size_bytes.start().saturating_sub(band);
    let under = sought.size_bytes.end().saturating_add(band);
    // RFC 3501 knows numbers of 32 bits only.
    let [over, under] = [over, under].map(|size| size.min(u64::from(u32::MAX)));
    format!("{since}LARGER {over} SMALLER {under}")
}

/// The Message-ID, if a search for it finds every message that has it: one word of printable ASCII,
/// nothing that a server would decode first (RFC 2047), and from the only such field, as servers
/// differ in which of several they see.
pub fn searchable_id<'a>(sought: &CopySearch<'a>) -> Option<&'a str> {
    let id = std::str::from_utf8(sought.identity.message_id.as_deref()?).ok()?;
    let plain = id.len() <= LONGEST_SEARCHED_ID
        && id.bytes().all(|byte| byte.is_ascii_graphic())
        && !id.contains("=?");
    (plain && !sought.has_several_ids).then_some(id)
}

/// The numbers in the answer to a SEARCH.
///
/// # Errors
/// A sentence: it is no such answer.
pub fn hits(answer: &CommandOutput) -> Result<Vec<u32>, String> {
    if answer.responses.iter().any(|response| response.after("ESEARCH").is_some()) {
        return Err("ESEARCH in answer to SEARCH".to_owned());
    }
    let mut hits = Vec::new();
    for list in answer.responses.iter().filter_map(|response| response.after("SEARCH")) {
        // A server with CONDSTORE may add (MODSEQ n).
        for number in list.split('(').next().unwrap_or("").split_ascii_whitespace() {
            let no_number = |_| format!("no answer to SEARCH: {}", syntax::clean(list.as_bytes()));
            hits.push(number.parse().map_err(no_number)?);
        }
    }
    Ok(hits)
}
