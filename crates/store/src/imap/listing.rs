//! Finding many messages at once by their Message-IDs: one SEARCH for what came since the earliest
//! of them, and a FETCH of these messages' Message-ID fields, some hundred messages at a time. It
//! costs one pass over that part of the mailbox however many are sought, and memory for one FETCH.
//! A hit proves no more than that of a search for the Message-ID: `look` compares each.

use std::collections::HashMap;
use std::time::{Duration, Instant, UNIX_EPOCH};

use super::error::ImapError;
use super::fetch::{self, Fetched};
use super::search::{hits, searchable_id};
use super::session::ImapSession;
use super::syntax;
use onedrop_core::message::fields;
use onedrop_core::store::CopySearch;

/// So few Message-IDs are each searched for by the server, which then sends nothing but hits.
const FEW: usize = 4;
/// Messages in a FETCH: its line stays below 8 kB.
pub const TOGETHER: usize = 400;
/// What is fetched of a message's Message-ID fields; more only of one that has more.
pub const ID_BYTES: usize = 4096;
/// And at most, of one.
const MOST_ID_BYTES: usize = 1024 * 1024;
/// What is older than its copy's record by that much is no hit, whatever the server's time zone.
pub const TWO_DAYS: Duration = Duration::from_secs(48 * 3600);

/// The hits for each that is sought; `None`: it is to be searched for alone.
///
/// # Errors
/// The listing did not come to its end.
pub fn shown(
    session: &mut ImapSession,
    sought: &[CopySearch<'_>],
    until: Instant,
) -> Result<Vec<Option<Vec<u32>>>, ImapError> {
    let mut shown = vec![None; sought.len()];
    let mut by_id: HashMap<&[u8], Vec<usize>> = HashMap::new();
    // One that looks back may stand anywhere in the mailbox.
    let is_listed = |one: &CopySearch<'_>| !one.by_id && !one.looks_back;
    for (at, one) in sought.iter().enumerate().filter(|(_, one)| is_listed(one)) {
        if let Some(id) = searchable_id(one) {
            by_id.entry(id.as_bytes()).or_default().push(at);
        }
    }
    if by_id.len() <= FEW {
        return Ok(shown);
    }
    by_id.values().flatten().for_each(|at| shown[*at] = Some(Vec::new()));
    let since = by_id.values().flatten().map(|at| sought[*at].recorded_at).min();
    let since = syntax::day_before(since.unwrap_or(UNIX_EPOCH));
    let answer = session.run_large(&format!("UID SEARCH SINCE {since}"), until)?;
    let mut uids = hits(&answer).map_err(|why| session.lost(why))?;
    uids.sort_unstable();
    uids.dedup();
    let mut add = |uid: u32, fetched: &Fetched| {
        let named = fetched.ids.as_deref().into_iter().flat_map(fields);
        for field in named.filter(|field| field.is(b"message-id")) {
            for at in by_id.get(field.unfolded().as_slice()).into_iter().flatten() {
                let earliest = sought[*at].recorded_at.checked_sub(TWO_DAYS);
                if fetched.date.is_none_or(|date| Some(date) >= earliest) {
                    shown[*at].get_or_insert_default().push(uid);
                }
            }
        }
    };
    for uids in uids.chunks(TOGETHER) {
        for (uid, fetched) in fetch_ids(session, &syntax::uid_set(uids), ID_BYTES, until)? {
            if fetched.ids.as_ref().is_some_and(|ids| ids.len() < ID_BYTES) {
                add(uid, &fetched);
                continue;
            }
            // The one that counts may be further down.
            for (_, whole) in fetch_ids(session, &uid.to_string(), MOST_ID_BYTES, until)? {
                add(uid, &whole);
            }
        }
    }
    Ok(shown)
}

/// Fetches the Message-ID fields of messages, up to a size.
fn fetch_ids(
    session: &mut ImapSession,
    set: &str,
    size: usize,
    until: Instant,
) -> Result<Vec<(u32, Fetched)>, ImapError> {
    let command = format!("UID FETCH {set} (INTERNALDATE {})", id_fields(size));
    let answer = session.run_large(&command, until)?;
    Ok(fetch::each(answer).filter(|(_, fetched)| fetched.ids.is_some()).collect())
}

/// Asks for Message-ID fields, up to a size.
pub fn id_fields(size: usize) -> String {
    format!("BODY.PEEK[HEADER.FIELDS (MESSAGE-ID)]<0.{size}>")
}
