//! Finding the copies of a message in a mailbox. A look opens the mailbox read-only and afresh (so
//! that it shows what another session has just stored), lets the server search, and compares every
//! hit by identity: SEARCH HEADER matches parts of a value in any case, and a hit alone proves
//! nothing. Nothing from a message reaches a command unless it is printable ASCII in quotes. An
//! error, or an answer we do not understand, says nothing about the copy. After a look the mailbox
//! stays open read-only; that disturbs no APPEND, and the next look opens it anew.

use std::collections::BTreeSet;
use std::time::{Instant, UNIX_EPOCH};

use super::error::ImapError;
use super::fetch::{self, Fetched};
use super::session::{CommandOutput, ImapSession};
use super::syntax;
use crate::message::{DedupBy, Identity};
use crate::store::{CopySearch, FoundCopy, Proof, Receipt};

/// A candidate is fetched in pieces of this size.
const PIECE: usize = 1024 * 1024;
/// Copies of one message differ in their trace fields; by no more than this.
const TRACE_BYTES: u64 = 64 * 1024;
/// The same, where the search itself is by size and would find too much.
const SEARCH_BAND: u64 = 8 * 1024;
/// A longer Message-ID does not go into a command.
const LONGEST_SEARCHED_ID: usize = 500;

/// Finds what is `sought` in `mailbox` (as it is in a command), the newest first.
///
/// # Errors
/// The search did not come to its end.
pub fn find(
    session: &mut ImapSession,
    mailbox: &str,
    sought: &CopySearch<'_>,
    by: DedupBy,
    until: Instant,
) -> Result<Vec<FoundCopy>, ImapError> {
    let Some(validity) = open(session, "EXAMINE", mailbox, until)? else { return Ok(Vec::new()) };
    let on_record = match sought.on_record {
        Some(Receipt::Uid { validity: recorded, uid }) if *recorded == validity => Some(*uid),
        _ => None,
    };
    let (seen, found) = (BTreeSet::new(), Vec::new());
    let mut look = Look { session, sought, by, until, on_record, seen, found };
    let recorded = match on_record {
        Some(uid) => look.fetch(uid, "(FLAGS INTERNALDATE)")?.map(|fetched| (uid, fetched)),
        None => None,
    };
    let id = searchable_id(sought);
    look.search(id)?;
    let is_shown =
        recorded.as_ref().map_or(!look.found.is_empty(), |(uid, _)| look.seen.contains(uid));
    if id.is_some() && sought.needs_proof && !is_shown {
        look.search(None)?;
    }
    if let Some((uid, fetched)) = recorded {
        let proof = look.proof(uid)?;
        look.found.push((uid, fetched, proof));
    }
    let mut found = look.found;
    found.sort_by_key(|(uid, ..)| std::cmp::Reverse(*uid));
    let copy = |(uid, fetched, proof): (u32, Fetched, Proof)| FoundCopy {
        receipt: Receipt::Uid { validity, uid },
        has_our_date: fetched.date == Some(sought.recorded_at),
        marked_deleted: fetched.is_deleted == Some(true),
        proof,
    };
    Ok(found.into_iter().map(copy).collect())
}

/// One look at an open mailbox.
struct Look<'a> {
    session: &'a mut ImapSession,
    sought: &'a CopySearch<'a>,
    by: DedupBy,
    until: Instant,
    /// UID of the copy on record, which is found apart from what the search shows.
    on_record: Option<u32>,
    /// All that a search has shown.
    seen: BTreeSet<u32>,
    /// What is equal, but for the one on record.
    found: Vec<(u32, Fetched, Proof)>,
}

impl Look<'_> {
    /// Searches, by `id` if there is one, and compares what was not seen before.
    fn search(&mut self, id: Option<&str>) -> Result<(), ImapError> {
        let command = format!("UID SEARCH {}", criteria(self.sought, self.by, id));
        let answer = self.session.run_large(&command, self.until)?;
        let mut hits = hits(&answer).map_err(|why| self.session.lost(why))?;
        hits.sort_unstable();
        for uid in hits.into_iter().rev() {
            if self.seen.insert(uid)
                && Some(uid) != self.on_record
                && self.found.len() < self.sought.at_most
                && let Some((fetched, proof)) = self.candidate(uid)?
            {
                self.found.push((uid, fetched, proof));
            }
        }
        Ok(())
    }

    /// What message `uid`, which is on record, is. A UID stays with its message only as long as
    /// nobody puts an older state of the mailbox back; so it is compared before another copy counts
    /// as a double.
    fn proof(&mut self, uid: u32) -> Result<Proof, ImapError> {
        if self.found.is_empty() && !self.sought.needs_proof {
            return Ok(Proof::Assumed);
        }
        Ok(match self.candidate(uid)? {
            None => Proof::Foreign,
            Some((_, Proof::Equal)) if !self.seen.contains(&uid) => Proof::Hidden,
            Some((_, proof)) => proof,
        })
    }

    /// What FETCH says of message `uid`, without its bytes, and whether it is equal or has the same
    /// Message-ID only; `None` when it is gone or another message.
    fn candidate(&mut self, uid: u32) -> Result<Option<(Fetched, Proof)>, ImapError> {
        let first = format!("(FLAGS INTERNALDATE RFC822.SIZE {})", piece(0));
        let Some(mut fetched) = self.fetch(uid, &first)? else { return Ok(None) };
        let (mut bytes, size) =
            (fetched.body.take().unwrap_or_default(), fetched.size.unwrap_or(0));
        let sought = self.sought;
        let is_same = sought.by_id && sought.identity.has_same_id(&bytes);
        let (least, most) = (self.sought.size_bytes.start(), self.sought.size_bytes.end());
        let likely = least.saturating_sub(TRACE_BYTES)..=most.saturating_add(TRACE_BYTES);
        if self.by == DedupBy::Content && !likely.contains(&(size as u64)) {
            return Ok(is_same.then_some((fetched, Proof::SameId)));
        }
        let mut last = bytes.len();
        // RFC822.SIZE is wrong on some servers: what ends a message is a short piece that reaches
        // it, or an empty one.
        while last == PIECE || (last > 0 && bytes.len() < size) {
            if bytes.len() as u64 > (size as u64).max(*most).saturating_add(PIECE as u64) {
                return Err(self.session.lost(format!("message {uid} does not end at its size")));
            }
            let next = self.fetch(uid, &format!("({})", piece(bytes.len())))?;
            let Some(body) = next.and_then(|next| next.body) else { return Ok(None) };
            last = body.len();
            bytes.extend_from_slice(&body);
        }
        let is_equal = match sought.by_id {
            true => sought.identity.is_that_of(&bytes),
            false => Identity::of(&bytes, self.by) == *sought.identity,
        };
        let proof = match is_equal {
            true if is_same && fetched.date != Some(sought.recorded_at) => Proof::SameContent,
            true => Proof::Equal,
            false => Proof::SameId,
        };
        Ok((is_equal || is_same).then_some((fetched, proof)))
    }

    /// Fetches `items` of message `uid`; `None` when the server does not tell the last of them.
    fn fetch(&mut self, uid: u32, items: &str) -> Result<Option<Fetched>, ImapError> {
        let answer = self.session.run_large(&format!("UID FETCH {uid} {items}"), self.until)?;
        let is_whole = |fetched: &Fetched| match items.contains("BODY") {
            true => fetched.body.is_some(),
            false => fetched.date.is_some(),
        };
        Ok(fetch::all_of(answer, uid).find(is_whole))
    }
}

/// Opens `mailbox` and returns its UIDVALIDITY; `None` when there is no such mailbox.
///
/// # Errors
/// Refused for another reason, or no UIDVALIDITY.
pub fn open(
    session: &mut ImapSession,
    how: &str,
    mailbox: &str,
    until: Instant,
) -> Result<Option<u32>, ImapError> {
    let answer = match session.run(&format!("{how} {mailbox}"), until) {
        Err(ImapError::Refused(no)) if no.is_missing_mailbox() => return Ok(None),
        Err(ImapError::Refused(no)) if no.code.is_empty() && !exists(session, mailbox, until)? => {
            return Ok(None);
        }
        answer => answer?,
    };
    let codes = answer
        .responses
        .iter()
        .filter_map(|response| syntax::response_code(&response.after("OK")?));
    let validity =
        codes.filter(|(name, _)| name == "UIDVALIDITY").find_map(|(_, number)| number.parse().ok());
    match validity.filter(|validity| *validity > 0) {
        Some(validity) => Ok(Some(validity)),
        None => Err(ImapError::refused("the mailbox has no UIDVALIDITY")),
    }
}

/// Asks whether the server lists `mailbox`: a NO without a code says nothing about why. Wildcards
/// in the name can only make this say yes.
pub fn exists(session: &mut ImapSession, mailbox: &str, until: Instant) -> Result<bool, ImapError> {
    let answer = session.run(&format!("LIST \"\" {mailbox}"), until)?;
    Ok(answer.responses.iter().any(|response| response.after("LIST").is_some()))
}

/// What to search for: a Message-ID, or without one messages of about the sought size.
fn criteria(sought: &CopySearch<'_>, by: DedupBy, id: Option<&str>) -> String {
    let since = match sought.since {
        since if sought.by_id => since.unwrap_or(UNIX_EPOCH),
        _ => sought.recorded_at,
    };
    let since = syntax::day_before(since);
    if let Some(id) = id.filter(|_| sought.by_id) {
        // A mail program dates its copy as it likes.
        return format!("HEADER Message-ID {}", syntax::quote(id));
    }
    if let Some(id) = id {
        return format!("SINCE {since} HEADER Message-ID {}", syntax::quote(id));
    }
    if by == DedupBy::MessageId && sought.identity.message_id.is_some() {
        // Copies with this Message-ID may be of any size.
        return format!("SINCE {since}");
    }
    // A mail program's copy has no trace fields.
    let band = if sought.by_id { TRACE_BYTES } else { SEARCH_BAND };
    let over = sought.size_bytes.start().saturating_sub(band);
    let under = sought.size_bytes.end().saturating_add(band);
    // RFC 3501 knows numbers of 32 bits only.
    let [over, under] = [over, under].map(|size| size.min(u64::from(u32::MAX)));
    format!("SINCE {since} LARGER {over} SMALLER {under}")
}

/// The Message-ID, if a search for it finds every message that has it: one word of printable ASCII,
/// nothing that a server would decode first (RFC 2047), and from the only such field, as servers
/// differ in which of several they see.
fn searchable_id<'a>(sought: &CopySearch<'a>) -> Option<&'a str> {
    let id = std::str::from_utf8(sought.identity.message_id.as_deref()?).ok()?;
    let plain = id.len() <= LONGEST_SEARCHED_ID
        && id.bytes().all(|byte| byte.is_ascii_graphic())
        && !id.contains("=?");
    (plain && !sought.has_several_ids).then_some(id)
}

fn hits(answer: &CommandOutput) -> Result<Vec<u32>, String> {
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

fn piece(offset: usize) -> String {
    format!("BODY.PEEK[]<{offset}.{PIECE}>")
}
