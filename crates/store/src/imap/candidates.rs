//! Which messages of an open mailbox are the one that is sought. There may be as many as the
//! mailbox has messages; so first pieces of some hundred are fetched in one command, and most are
//! ruled out by them: a message with another first Message-ID is another message. What remains is
//! fetched to its end, as many at a time as fit an answer, a large one by itself. No more than two
//! answers and one message are in memory. Only what our own scanner reads in the message's bytes
//! decides; a server that refuses to fetch many is asked for one after the other.

use std::collections::BTreeMap;
use std::time::Instant;

use super::error::ImapError;
use super::fetch::{self, Fetched};
use super::search::TRACE_BYTES;
use super::session::ImapSession;
use super::syntax;
use onedrop_core::message;
use onedrop_core::store::{CopySearch, LAST_FIELD, Proof};

/// One message alone is fetched in pieces of this size.
const PIECE: usize = 1024 * 1024;
/// The first piece of one of many; those of [`TOGETHER`](super::listing::TOGETHER) fit an answer.
const FIRST_OF_MANY: usize = 8 * 1024;
/// Further pieces that are fetched together make no more than this.
const REST_BYTES: usize = 3 * 1024 * 1024;

/// What a message must be.
pub struct Judge<'a> {
    pub sought: &'a CopySearch<'a>,
}

/// A message that is being fetched.
struct Candidate {
    uid: u32,
    /// What FETCH says of it, without its bytes.
    fetched: Fetched,
    /// Its bytes up to now.
    bytes: Vec<u8>,
    /// How many the last piece could have had, and had.
    asked: usize,
    last: usize,
}

/// Those of `uids`, in their order and at most `wanted`, that are the sought message, or have the
/// same Message-ID only, where that is asked for. What is gone is none.
///
/// # Errors
/// Not all could be compared.
pub fn equal(
    session: &mut ImapSession,
    judge: &Judge<'_>,
    uids: &[u32],
    wanted: usize,
    until: Instant,
) -> Result<Vec<(u32, Fetched, Proof)>, ImapError> {
    let mut found = Vec::new();
    let open = first_pieces(session, uids, until)?;
    let mut open: Vec<Candidate> = open.into_iter().filter(|one| judge.may_be(one)).collect();
    while found.len() < wanted && !open.is_empty() {
        let mut together: Vec<Candidate> = open.drain(..fitting(&open)).collect();
        fetch_rest(session, &mut together, until)?;
        for one in together {
            if let Some(one) = judge.judge(session, one, until)? {
                found.push(one);
            }
        }
    }
    found.truncate(wanted);
    Ok(found)
}

/// The first pieces of `uids`, in their order, of those that are there.
fn first_pieces(
    session: &mut ImapSession,
    uids: &[u32],
    until: Instant,
) -> Result<Vec<Candidate>, ImapError> {
    let asked = if uids.len() == 1 { PIECE } else { FIRST_OF_MANY };
    let items = format!("(FLAGS INTERNALDATE RFC822.SIZE {})", piece(0, asked));
    let mut fetched = pieces(session, uids, &items, until)?;
    let candidate = |uid: &u32| {
        let mut fetched = fetched.remove(uid)?;
        let bytes = fetched.body.take().unwrap_or_default();
        Some(Candidate { uid: *uid, fetched, asked, last: bytes.len(), bytes })
    };
    Ok(uids.iter().filter_map(candidate).collect())
}

/// How many of the first of `open` are fetched to their ends together.
fn fitting(open: &[Candidate]) -> usize {
    let (mut count, mut most) = (0, 0);
    for one in open {
        most = most.max(one.missing());
        count += 1;
        if count * most > REST_BYTES {
            return (count - 1).max(1);
        }
    }
    count
}

/// Fetches what is missing of several candidates, as far as their known sizes allow. What is gone
/// by now is left out.
fn fetch_rest(
    session: &mut ImapSession,
    together: &mut Vec<Candidate>,
    until: Instant,
) -> Result<(), ImapError> {
    let stands_apart = |one: &Candidate| one.missing() == 0 || one.bytes.len() != FIRST_OF_MANY;
    let missing: Vec<&Candidate> = together.iter().filter(|one| !stands_apart(one)).collect();
    let asked = missing.iter().map(|one| one.missing()).max().unwrap_or(0);
    if missing.len() < 2 || asked > PIECE {
        return Ok(());
    }
    let uids: Vec<u32> = missing.iter().map(|one| one.uid).collect();
    let items = format!("({})", piece(FIRST_OF_MANY, asked));
    let mut rest = pieces(session, &uids, &items, until)?;
    together.retain_mut(|one| {
        if stands_apart(one) {
            return true;
        }
        let Some(body) = rest.remove(&one.uid).and_then(|fetched| fetched.body) else {
            return false;
        };
        one.add(&body, asked);
        true
    });
    Ok(())
}

/// `items`, with a piece of the body, of the messages `uids` that are there.
fn pieces(
    session: &mut ImapSession,
    uids: &[u32],
    items: &str,
    until: Instant,
) -> Result<BTreeMap<u32, Fetched>, ImapError> {
    let mut set = uids.to_vec();
    set.sort_unstable();
    let command = format!("UID FETCH {} {items}", syntax::uid_set(&set));
    let mut fetched = BTreeMap::new();
    let mut take = |answer| {
        for (uid, one) in fetch::each(answer).filter(|(_, one)| one.body.is_some()) {
            if set.binary_search(&uid).is_ok() {
                fetched.entry(uid).or_insert(one);
            }
        }
    };
    match session.run_large(&command, until) {
        // One of them may be gone.
        Err(ImapError::Refused(_)) if uids.len() > 1 => {
            for uid in uids {
                take(session.run_large(&format!("UID FETCH {uid} {items}"), until)?);
            }
        }
        answer => take(answer?),
    }
    Ok(fetched)
}

impl Judge<'_> {
    /// Whether what was fetched of a candidate does not yet show that it is another message.
    fn may_be(&self, one: &Candidate) -> bool {
        (self.sought.by_id || self.has_likely_size(one))
            // Of what was handed over its value has been compared.
            && (self.sought.handed.is_some()
                || self.sought.identity.may_begin_with(&one.bytes)
                || message::may_be_wrapper(&one.bytes))
    }

    fn has_likely_size(&self, one: &Candidate) -> bool {
        one.fetched.size.is_none_or(|size| is_likely_size(self.sought, size))
    }

    /// Fetches a candidate to its end and compares it; `None` when it is gone or another message.
    fn judge(
        &self,
        session: &mut ImapSession,
        mut one: Candidate,
        until: Instant,
    ) -> Result<Option<(u32, Fetched, Proof)>, ImapError> {
        let (sought, most) = (self.sought, *self.sought.size_bytes.end());
        let is_likely = self.has_likely_size(&one);
        // Of one that cannot be equal the header is enough, and as much as may be looked at alone.
        while !one.has_ended() && (is_likely || one.bytes.len() < PIECE) {
            let longest = (one.size() as u64).max(most).saturating_add(PIECE as u64);
            if one.bytes.len() as u64 > longest {
                return Err(session.lost(format!("message {} does not end at its size", one.uid)));
            }
            let items = format!("({})", piece(one.bytes.len(), PIECE));
            let next = pieces(session, &[one.uid], &items, until)?;
            let Some(body) = next.into_values().find_map(|next| next.body) else {
                return Ok(None);
            };
            one.add(&body, PIECE);
        }
        let Candidate { uid, mut fetched, bytes, .. } = one;
        let bytes = match sought.handed {
            Some(_) => message::handed(&bytes, LAST_FIELD),
            None => &bytes,
        };
        let before = match sought.handed {
            Some(_) if !sought.identity.is_that_of(bytes) => message::without_added(bytes),
            _ => Vec::new(),
        };
        let is_it =
            |bytes: &&[u8]| sought.identity.is_that_of(message::inner(bytes).unwrap_or(bytes));
        let bytes = before.iter().map(Vec::as_slice).find(is_it).unwrap_or(bytes);
        let inner = message::inner(bytes);
        fetched.is_wrapped = inner.is_some();
        let bytes = inner.unwrap_or(bytes);
        let is_same = sought.by_id && sought.identity.has_same_id(bytes);
        let is_equal = is_likely
            && sought.identity.is_that_of(bytes)
            && sought.variant.as_ref().is_none_or(|variant| variant.is_that_of(bytes));
        let proof = match is_equal {
            true if is_same && fetched.date != Some(sought.recorded_at) => Proof::SameContent,
            true => Proof::Equal,
            false => Proof::SameId,
        };
        Ok((is_equal || is_same).then_some((uid, fetched, proof)))
    }
}

/// Whether a message of that size may be equal to the sought one.
pub fn is_likely_size(sought: &CopySearch<'_>, size: usize) -> bool {
    let (least, most) = (sought.size_bytes.start(), sought.size_bytes.end());
    let likely = least.saturating_sub(TRACE_BYTES)..=most.saturating_add(TRACE_BYTES);
    sought.identity.is_by_id() || likely.contains(&(size as u64))
}

impl Candidate {
    fn size(&self) -> usize {
        self.fetched.size.unwrap_or(0)
    }

    /// RFC822.SIZE is wrong on some servers: what ends a message is a short piece that reaches it,
    /// or an empty one.
    fn has_ended(&self) -> bool {
        self.last != self.asked && (self.last == 0 || self.bytes.len() >= self.size())
    }

    /// How many bytes to ask for to see its end, by what the server says.
    fn missing(&self) -> usize {
        if self.has_ended() { 0 } else { self.size().saturating_sub(self.bytes.len()) + 1 }
    }

    fn add(&mut self, piece: &[u8], asked: usize) {
        self.bytes.extend_from_slice(piece);
        (self.asked, self.last) = (asked, piece.len());
    }
}

fn piece(offset: usize, size: usize) -> String {
    format!("BODY.PEEK[]<{offset}.{size}>")
}
