//! Finding the copies of messages in a mailbox. A look opens the mailbox read-only and afresh (so
//! that it shows what another session has just stored; [`open_afresh`]), lets the server search
//! (or, for many messages, lists what is there: `listing`), and compares every hit by identity:
//! SEARCH HEADER matches parts of a value in any case, and a hit alone proves nothing. Nothing from
//! a message reaches a command unless it is printable ASCII in quotes. An error, or an answer we do
//! not understand, says nothing about the copy. After a look the mailbox is closed, if the server
//! can do that alone ([`ImapSession::unselect`]); one that stays open disturbs no APPEND, and the
//! next look opens it anew.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::candidates::{self, Judge};
use super::error::ImapError;
use super::fetch::{self, Fetched};
use super::listing::{self, TOGETHER};
use super::namespace::ListedMailbox;
use super::search::{criteria, hits, searchable_id};
use super::session::{CommandOutput, ImapSession};
use super::syntax;
use super::unindexed::{self, OpenedMailbox};
use onedrop_core::clock::{Clock, SystemClock};
use onedrop_core::message::OUR_RECEIVED;
use onedrop_core::store::TrustSearch;
use onedrop_core::store::{
    CopySearch, FoundCopy, LookedBack, Naming, Proof, Receipt, StoreError, Unindexed,
};

/// An opening that takes as long as the server waits for a mailbox's lock, less this, may have
/// waited for it in vain. Dovecot counts in whole seconds: with a `mail_max_lock_timeout` of two it
/// waits for more than one.
const LESS: Duration = Duration::from_millis(1100);
/// How often a mailbox is opened that may be shown as it was.
const OPENINGS: usize = 3;

/// Finds what is `sought` in `mailbox` (as it is in a command), each for itself, the newest first.
///
/// # Errors
/// The search did not come to its end.
pub fn find_all(
    session: &mut ImapSession,
    mailbox: &str,
    sought: &[CopySearch<'_>],
    trust: TrustSearch,
    until: Instant,
) -> Result<Vec<Vec<FoundCopy>>, ImapError> {
    let Some(opened) = open_afresh(session, "EXAMINE", mailbox, until)? else {
        return Ok(vec![Vec::new(); sought.len()]);
    };
    let OpenedMailbox { validity, next_uid, .. } = opened;
    let on_record = |sought: &CopySearch<'_>| {
        let (recorded, uid) = sought.on_record?.as_uid()?;
        (recorded == validity).then_some(uid)
    };
    let recorded = dated(session, sought.iter().filter_map(on_record).collect(), until)?;
    let shown = listing::shown(session, sought, until)?;
    let mut all = Vec::new();
    for (sought, shown) in sought.iter().zip(shown) {
        let on_record = on_record(sought);
        let fetched = on_record.and_then(|uid| Some((uid, recorded.get(&uid)?.clone())));
        let (seen, found) = (BTreeSet::new(), Vec::new());
        let next = sought.looked.and_then(|looked| looked.next_in(mailbox, validity, next_uid));
        let mut look = Look { session, sought, next, until, on_record, seen, found };
        look.find(shown, fetched.as_ref().map(|(uid, _)| *uid))?;
        // One that a search shows is enough, unless all are sought.
        let is_enough = !look.found.is_empty() && !sought.needs_proof && !sought.by_id;
        if !is_enough && sought.unindexed != Unindexed::Nothing {
            look.find_unindexed(mailbox, validity, trust)?;
        }
        if let Some((uid, fetched)) = fetched {
            let proof = look.proof(uid)?;
            look.found.push((uid, fetched, proof));
        }
        let mut found = look.found;
        found.sort_by_key(|(uid, ..)| std::cmp::Reverse(*uid));
        let copy = |(uid, fetched, proof): (u32, Fetched, Proof)| FoundCopy {
            receipt: Receipt::uid(validity, uid),
            naming: Naming::Alone,
            has_our_date: fetched.date == Some(sought.recorded_at),
            marked_deleted: fetched.is_deleted == Some(true),
            is_wrapped: fetched.is_wrapped,
            proof,
            handed: None,
        };
        all.push(found.into_iter().map(copy).collect());
    }
    Ok(all)
}

/// Looks back for what is `sought` in `mailbox`.
///
/// # Errors
/// Those of [`find_all`].
pub fn look_back(
    session: &mut ImapSession,
    mailbox: &str,
    sought: &CopySearch<'_>,
    trust: TrustSearch,
    until: Instant,
) -> Result<LookedBack, ImapError> {
    let opened = open_afresh(session, "EXAMINE", mailbox, until)?;
    let mark = opened.and_then(|opened| opened.mark());
    let marks = mark.map(|mark| (mailbox.to_owned(), mark)).into_iter().collect();
    let sought = std::slice::from_ref(sought);
    let found = find_all(session, mailbox, sought, trust, until)?;
    let found = found.into_iter().flatten().next();
    Ok(LookedBack { found, marks })
}

/// The last message in INBOX that seems to have fields of ours. Most copies have none, and a
/// message that came by another site's Onedrop has some as well.
///
/// # Errors
/// The search did not come to its end.
pub fn find_trace_of_ours(
    session: &mut ImapSession,
    until: Instant,
) -> Result<Option<u32>, ImapError> {
    if open_afresh(session, "EXAMINE", "\"INBOX\"", until)?.is_none() {
        return Ok(None);
    }
    let ours = format!("HEADER Received {}", syntax::quote(OUR_RECEIVED));
    let command = format!("UID SEARCH OR HEADER X-Onedrop-Copy \"\" {ours}");
    let answer = session.run_large(&command, until)?;
    Ok(hits(&answer).map_err(|why| session.lost(why))?.into_iter().max())
}

/// The messages of `uids` that are there, with their flags and dates.
fn dated(
    session: &mut ImapSession,
    mut uids: Vec<u32>,
    until: Instant,
) -> Result<BTreeMap<u32, Fetched>, ImapError> {
    uids.sort_unstable();
    let mut dated = BTreeMap::new();
    for uids in uids.chunks(TOGETHER) {
        let command = format!("UID FETCH {} (FLAGS INTERNALDATE)", syntax::uid_set(uids));
        let answer = session.run_large(&command, until)?;
        for (uid, fetched) in fetch::each(answer).filter(|(_, fetched)| fetched.date.is_some()) {
            dated.entry(uid).or_insert(fetched);
        }
    }
    Ok(dated)
}

/// One look at an open mailbox.
struct Look<'a> {
    session: &'a mut ImapSession,
    sought: &'a CopySearch<'a>,
    /// The lowest UID of what is looked at; `None`: all.
    next: Option<u32>,
    until: Instant,
    /// UID of the copy on record, which is found apart from what the search shows.
    on_record: Option<u32>,
    /// All that a search has shown.
    seen: BTreeSet<u32>,
    /// What is equal, but for the one on record.
    found: Vec<(u32, Fetched, Proof)>,
}

impl Look<'_> {
    /// Finds all there is, among the hits of a listing that has `shown` what has its Message-ID, or
    /// else by a search, but for the copy on record, which has the UID `recorded`, if it is there.
    fn find(&mut self, shown: Option<Vec<u32>>, recorded: Option<u32>) -> Result<(), ImapError> {
        let id = searchable_id(self.sought);
        match shown {
            Some(hits) => self.compare(hits)?,
            None => self.search(id)?,
        }
        let is_shown = recorded.map_or(!self.found.is_empty(), |uid| self.seen.contains(&uid));
        if id.is_some() && self.sought.needs_proof && !is_shown {
            self.search(None)?;
        }
        Ok(())
    }

    /// Compares what the search may not show.
    fn find_unindexed(
        &mut self,
        mailbox: &str,
        validity: u32,
        trust: TrustSearch,
    ) -> Result<(), ImapError> {
        if unindexed::is_search_trusted(self.session, trust, self.until)? {
            return Ok(());
        }
        // Afresh: messages are numbered anew where some are gone since.
        let opened = open_afresh(self.session, "EXAMINE", mailbox, self.until)?;
        let Some(opened) = opened.filter(|opened| opened.validity == validity) else {
            return Err(ImapError::refused("the mailbox was made anew during the look"));
        };
        let uids = unindexed::uids(self.session, &opened, self.sought, self.next, self.until)?;
        self.compare(uids)
    }

    /// Searches, by `id` if there is one, and compares what was not seen before.
    fn search(&mut self, id: Option<&str>) -> Result<(), ImapError> {
        let command = format!("UID SEARCH {}", criteria(self.sought, id, self.next));
        let answer = self.session.run_large(&command, self.until)?;
        let hits = hits(&answer).map_err(|why| self.session.lost(why))?;
        self.compare(hits)
    }

    fn compare(&mut self, mut hits: Vec<u32>) -> Result<(), ImapError> {
        hits.sort_unstable();
        // The range `n:*` has the last message in it, whatever its UID.
        hits.retain(|uid| self.next.is_none_or(|next| *uid >= next));
        let is_new = |uid: &u32| self.seen.insert(*uid) && Some(*uid) != self.on_record;
        let hits: Vec<u32> = hits.into_iter().rev().filter(is_new).collect();
        // Mostly the newest is the copy.
        let (newest, others) = hits.split_at(hits.len().min(1));
        for uids in newest.chunks(1).chain(others.chunks(TOGETHER)) {
            let wanted = self.sought.at_most.saturating_sub(self.found.len());
            if wanted == 0 {
                break;
            }
            let judge = Judge { sought: self.sought };
            self.found.extend(candidates::equal(self.session, &judge, uids, wanted, self.until)?);
        }
        Ok(())
    }

    /// What message `uid`, which is on record, is. A UID stays with its message only until an
    /// administrator restores an older state of the mailbox; so it is compared before another copy
    /// counts as a double.
    fn proof(&mut self, uid: u32) -> Result<Proof, ImapError> {
        if self.found.is_empty() && !self.sought.needs_proof {
            return Ok(Proof::Assumed);
        }
        let judge = Judge { sought: self.sought };
        let equal = candidates::equal(self.session, &judge, &[uid], 1, self.until)?;
        Ok(match equal.into_iter().next() {
            None => Proof::Foreign,
            Some((_, _, Proof::Equal)) if !self.seen.contains(&uid) => Proof::Hidden,
            Some((_, _, proof)) => proof,
        })
    }
}

/// How long an opening takes that may have waited for the mailbox's lock in vain.
fn may_be_old(session: &ImapSession) -> Duration {
    session.lock_timeout.saturating_sub(LESS)
}

/// A server's answer, by the time that it took.
pub struct AnswerTime {
    began: Instant,
    /// Goes on while this machine is suspended, as the server does.
    since_boot: Option<Duration>,
}

impl AnswerTime {
    pub fn begin() -> AnswerTime {
        AnswerTime { began: Instant::now(), since_boot: SystemClock.since_boot() }
    }

    /// The server may be Dovecot, and have waited for a mailbox's lock in vain: after
    /// `mail_max_lock_timeout` it says OK and shows the mailbox as it last knew it (seen with
    /// 2.3.19, in `maildir-sync.c`; the lock that it cannot make at all it warns of). What its
    /// owner, alive or killed, has just stored is missing then, and would be stored again.
    ///
    /// # Errors
    /// The server did not answer.
    pub fn in_vain(
        &self,
        session: &mut ImapSession,
        has_warned: bool,
        until: Instant,
    ) -> Result<bool, ImapError> {
        let by_boot = SystemClock.since_boot().zip(self.since_boot);
        let by_boot = by_boot.map(|(now, then)| now.saturating_sub(then)).unwrap_or_default();
        let is_long = self.began.elapsed().max(by_boot) >= may_be_old(session);
        // Others warn of a quota, or of what they like, at each opening.
        Ok(is_long && unindexed::may_be_dovecot(session, until)?
            || has_warned && unindexed::is_like_dovecot(session, until)?)
    }
}

/// Opens `mailbox` by EXAMINE or SELECT (`how`) as it is now: an opening that may be one of those
/// of [`AnswerTime::in_vain`] is made again.
///
/// # Errors
/// Each opening may have been such a one; and those of [`open_at`].
pub fn open_afresh(
    session: &mut ImapSession,
    how: &str,
    mailbox: &str,
    until: Instant,
) -> Result<Option<OpenedMailbox>, ImapError> {
    for _ in 0..OPENINGS {
        let waited = AnswerTime::begin();
        let opened = open_at(session, how, mailbox, until)?;
        let has_warned = opened.as_ref().is_some_and(|opened| opened.has_warned);
        if opened.is_none() || !waited.in_vain(session, has_warned, until)? {
            return Ok(opened);
        }
        tracing::warn!(
            mailbox,
            "its opening took long or came with a warning, and may show it as it was"
        );
    }
    Err(ImapError::refused(format!(
        "each opening of the mailbox took {:.1} s or more (store.lock_timeout_secs less 1.1), or \
         came with a warning: another may hold its lock, and what the server shows may be old",
        may_be_old(session).as_secs_f64()
    )))
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
    Ok(open_at(session, how, mailbox, until)?.map(|opened| opened.validity))
}

/// Opens `mailbox` as [`open`] does; returns the number of its messages and the next UID, too.
pub fn open_at(
    session: &mut ImapSession,
    how: &str,
    mailbox: &str,
    until: Instant,
) -> Result<Option<OpenedMailbox>, ImapError> {
    let answer = match session.run(&format!("{how} {mailbox}"), until) {
        Err(ImapError::Refused(no)) if no.is_missing_mailbox() => return Ok(None),
        Err(ImapError::Refused(no)) if no.code.is_empty() && !exists(session, mailbox, until)? => {
            return Ok(None);
        }
        Err(ImapError::Refused(no)) if no.is_of_the_mailbox() => {
            return Err(ImapError::Final(StoreError::Refused, no.text));
        }
        answer => answer?,
    };
    match opened(&answer) {
        Some(opened) => Ok(Some(opened)),
        None => Err(ImapError::refused("the mailbox has no UIDVALIDITY")),
    }
}

/// What the answer to EXAMINE or SELECT says of the mailbox; `None`: no UIDVALIDITY.
pub fn opened(answer: &CommandOutput) -> Option<OpenedMailbox> {
    let code = |name: &str| {
        let codes = answer
            .responses
            .iter()
            .filter_map(|response| syntax::response_code(&response.after("OK")?));
        codes.filter(|(code, _)| code == name).find_map(|(_, number)| number.parse::<u32>().ok())
    };
    let mut counts = answer.responses.iter().filter_map(|response| {
        let line = String::from_utf8_lossy(&response.line);
        let (count, word) = line.trim().split_once(' ')?;
        word.eq_ignore_ascii_case("EXISTS").then(|| count.parse().ok())?
    });
    let count = counts.next_back().unwrap_or(0);
    let validity = code("UIDVALIDITY").filter(|validity| *validity > 0)?;
    let has_warned = answer.responses.iter().any(|response| response.after("NO").is_some());
    Some(OpenedMailbox { validity, count, next_uid: code("UIDNEXT"), has_warned })
}

/// Asks whether the server lists `mailbox` as one that can be opened: a NO without a code says
/// nothing about why, and Dovecot lists what is but the parent of others. Wildcards in the name can
/// only make this say yes.
pub fn exists(session: &mut ImapSession, mailbox: &str, until: Instant) -> Result<bool, ImapError> {
    let answer = session.run(&format!("LIST \"\" {mailbox}"), until)?;
    let is_there = |told: &str, literals: &[Vec<u8>]| {
        ListedMailbox::parse(told, literals).is_none_or(|mailbox| mailbox.is_there())
    };
    Ok(answer.responses.iter().any(|response| {
        response.after("LIST").is_some_and(|told| is_there(&told, &response.literals))
    }))
}
