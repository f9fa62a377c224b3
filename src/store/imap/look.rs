//! Finding the copies of a message in a mailbox. A look opens the mailbox read-only and afresh (so
//! that it shows what another session has just stored), lets the server search, and compares every
//! hit by identity: SEARCH HEADER matches parts of a value in any case, and a hit alone proves
//! nothing. Nothing from a message reaches a command unless it is printable ASCII in quotes. An
//! error, or an answer we do not understand, says nothing about the copy. After a look the mailbox
//! stays open read-only; that disturbs no APPEND, and the next look opens it anew.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::message::{DedupBy, Identity};
use crate::store::{CopySearch, FoundCopy, Proof, Receipt};

use super::fetch::{self, Fetched};
use super::session::{CommandError, CommandOutput, Refusal, Session};
use super::syntax;

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
    session: &mut Session,
    mailbox: &str,
    sought: &CopySearch<'_>,
    by: DedupBy,
    until: Instant,
) -> Result<Vec<FoundCopy>, CommandError> {
    let Some(validity) = open(session, "EXAMINE", mailbox, until)? else { return Ok(Vec::new()) };
    let on_record = match sought.on_record {
        Some(Receipt::Uid { validity: recorded, uid }) if *recorded == validity => Some(*uid),
        _ => None,
    };
    let mut look =
        Look { session, sought, by, until, on_record, seen: BTreeSet::new(), found: Vec::new() };
    let recorded = match on_record {
        Some(uid) => {
            fetch_one(look.session, uid, "(FLAGS INTERNALDATE)", until)?.map(|seen| (uid, seen))
        }
        None => None,
    };
    let id = searchable_id(sought);
    look.search(id)?;
    let is_shown =
        recorded.as_ref().map_or(!look.found.is_empty(), |(uid, _)| look.seen.contains(uid));
    if id.is_some() && sought.needs_proof && !is_shown {
        look.search(None)?;
    }
    if let Some((uid, seen)) = recorded {
        let proof = look.proof(uid)?;
        look.found.push((uid, seen, proof));
    }
    let mut found = look.found;
    found.sort_by_key(|(uid, ..)| std::cmp::Reverse(*uid));
    let copy = |(uid, seen, proof): (u32, Fetched, Proof)| FoundCopy {
        receipt: Receipt::Uid { validity, uid },
        has_our_date: seen.date == Some(sought.recorded_at),
        marked_deleted: seen.is_deleted == Some(true),
        proof,
    };
    Ok(found.into_iter().map(copy).collect())
}

/// One look at an open mailbox.
struct Look<'a> {
    session: &'a mut Session,
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
    fn search(&mut self, id: Option<&str>) -> Result<(), CommandError> {
        let command = format!("UID SEARCH {}", criteria(self.sought, self.by, id));
        let answer = self.session.run_large(&command, self.until)?;
        let mut hits = hits(&answer).map_err(|why| CommandError::Lost(self.session.close(why)))?;
        hits.sort_unstable();
        for uid in hits.into_iter().rev() {
            if !self.seen.insert(uid)
                || Some(uid) == self.on_record
                || self.found.len() >= self.sought.at_most
            {
                continue;
            }
            if let Some(seen) = candidate(self.session, uid, self.sought, self.by, self.until)? {
                self.found.push((uid, seen, Proof::Equal));
            }
        }
        Ok(())
    }

    /// What message `uid`, which is on record, is. A UID stays with its message only as long as
    /// nobody puts an older state of the mailbox back; so it is compared before another copy counts
    /// as a double.
    fn proof(&mut self, uid: u32) -> Result<Proof, CommandError> {
        if self.found.is_empty() && !self.sought.needs_proof {
            return Ok(Proof::Assumed);
        }
        Ok(match candidate(self.session, uid, self.sought, self.by, self.until)? {
            None => Proof::Foreign,
            Some(_) if self.seen.contains(&uid) => Proof::Equal,
            Some(_) => Proof::Hidden,
        })
    }
}

/// Opens `mailbox` and returns its UIDVALIDITY; `None` when there is no such mailbox.
///
/// # Errors
/// Refused for another reason, or no UIDVALIDITY.
pub fn open(
    session: &mut Session,
    how: &str,
    mailbox: &str,
    until: Instant,
) -> Result<Option<u32>, CommandError> {
    let answer = match session.run(&format!("{how} {mailbox}"), until) {
        Ok(answer) => answer,
        Err(CommandError::Refused(refusal))
            if refusal.code == "NONEXISTENT" || refusal.code == "TRYCREATE" =>
        {
            return Ok(None);
        }
        Err(CommandError::Refused(refusal))
            if refusal.code.is_empty() && !exists(session, mailbox, until)? =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let codes = answer
        .responses
        .iter()
        .filter_map(|response| syntax::response_code(&response.after("OK")?));
    let validity =
        codes.filter(|(name, _)| name == "UIDVALIDITY").find_map(|(_, number)| number.parse().ok());
    match validity.filter(|validity| *validity > 0) {
        Some(validity) => Ok(Some(validity)),
        None => Err(refused("the mailbox has no UIDVALIDITY".to_owned())),
    }
}

/// Asks whether the server lists `mailbox`: a NO without a code says nothing about why. Wildcards
/// in the name can only make this say yes.
pub fn exists(session: &mut Session, mailbox: &str, until: Instant) -> Result<bool, CommandError> {
    let answer = session.run(&format!("LIST \"\" {mailbox}"), until)?;
    Ok(answer.responses.iter().any(|response| response.after("LIST").is_some()))
}

pub fn refused(text: String) -> CommandError {
    CommandError::Refused(Refusal { code: String::new(), text })
}

/// What to search for: a Message-ID, or without one messages of about the sought size.
fn criteria(sought: &CopySearch<'_>, by: DedupBy, id: Option<&str>) -> String {
    let since = syntax::day_before(sought.recorded_at);
    if let Some(id) = id {
        return format!("SINCE {since} HEADER Message-ID {}", syntax::quote(id));
    }
    match (by, &sought.identity.message_id) {
        // Copies with this Message-ID may be of any size.
        (DedupBy::MessageId, Some(_)) => format!("SINCE {since}"),
        _ => {
            let (least, most) = (sought.size_bytes.start(), sought.size_bytes.end());
            let (over, under) =
                (least.saturating_sub(SEARCH_BAND), most.saturating_add(SEARCH_BAND));
            // RFC 3501 knows numbers of 32 bits only.
            let [over, under] = [over, under].map(|size| size.min(u64::from(u32::MAX)));
            format!("SINCE {since} LARGER {over} SMALLER {under}")
        }
    }
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
    let mut hits = Vec::new();
    for list in answer.responses.iter().filter_map(|response| response.after("SEARCH")) {
        // A server with CONDSTORE may add (MODSEQ n).
        let numbers = list.split('(').next().unwrap_or("");
        for number in numbers.split_ascii_whitespace() {
            hits.push(
                number.parse().map_err(|_| {
                    format!("no answer to SEARCH: {}", syntax::clean(list.as_bytes()))
                })?,
            );
        }
    }
    if answer.responses.iter().any(|response| response.after("ESEARCH").is_some()) {
        return Err("ESEARCH in answer to SEARCH".to_owned());
    }
    Ok(hits)
}

/// What FETCH says of message `uid`, without its bytes; `None` when it is gone or another message.
fn candidate(
    session: &mut Session,
    uid: u32,
    sought: &CopySearch<'_>,
    by: DedupBy,
    until: Instant,
) -> Result<Option<Fetched>, CommandError> {
    let first = format!("(FLAGS INTERNALDATE RFC822.SIZE {})", piece(0));
    let Some(mut seen) = fetch_one(session, uid, &first, until)? else { return Ok(None) };
    let (Some(mut bytes), size) = (seen.body.take(), seen.size.unwrap_or(0)) else {
        return Ok(None);
    };
    let (least, most) = (sought.size_bytes.start(), sought.size_bytes.end());
    let likely = least.saturating_sub(TRACE_BYTES)..=most.saturating_add(TRACE_BYTES);
    if by == DedupBy::Content && !likely.contains(&(size as u64)) {
        return Ok(None);
    }
    let mut last = bytes.len();
    // RFC822.SIZE is wrong on some servers: what ends a message is a short piece that reaches it,
    // or an empty one.
    while last == PIECE || (last > 0 && bytes.len() < size) {
        if bytes.len() as u64 > (size as u64).max(*most).saturating_add(PIECE as u64) {
            return Err(CommandError::Lost(
                session.close(format!("message {uid} does not end at its size")),
            ));
        }
        let next = fetch_one(session, uid, &format!("({})", piece(bytes.len())), until)?;
        let Some(body) = next.and_then(|next| next.body) else { return Ok(None) };
        last = body.len();
        bytes.extend_from_slice(&body);
    }
    Ok((Identity::of(&bytes, by) == *sought.identity).then_some(seen))
}

fn piece(offset: usize) -> String {
    format!("BODY.PEEK[]<{offset}.{PIECE}>")
}

/// Fetches `items` of message `uid`; `None` when the server does not tell the last of them.
pub fn fetch_one(
    session: &mut Session,
    uid: u32,
    items: &str,
    until: Instant,
) -> Result<Option<Fetched>, CommandError> {
    let answer = session.run_large(&format!("UID FETCH {uid} {items}"), until)?;
    let wants_body = items.contains("BODY");
    let fetched = answer
        .responses
        .into_iter()
        .filter_map(fetch::parse)
        .filter(|fetched| fetched.uid == Some(uid));
    let is_whole = |fetched: &Fetched| {
        if wants_body { fetched.body.is_some() } else { fetched.date.is_some() }
    };
    Ok(fetched.into_iter().find(is_whole))
}
