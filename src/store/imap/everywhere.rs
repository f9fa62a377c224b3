//! Finding copies that were handed over to the server's own delivery: they lie in whatever mailbox
//! of the account's personal namespace its owner's filters have chosen. All of these are searched,
//! many in one round trip (200 mailboxes take less than a second). Every hit's first X-Onedrop-Copy
//! is read and must be the sought value: equal content alone would take the sender's own Sent for
//! the recipient's copy. A mailbox that vanishes meanwhile holds no copy; one that cannot be opened
//! for another reason fails the look, as the copy may lie in it.
//!
//! What SEARCH does not show is not found: a server whose index of header fields lags may hide a
//! copy here. [`hits_in`] is the one place that believes it.

use std::collections::BTreeMap;
use std::time::Instant;

use super::error::ImapError;
use super::fetch;
use super::look;
use super::names;
use super::namespace::ListedMailbox;
use super::search::{hits, searchable_id};
use super::session::ImapSession;
use super::syntax;
use crate::lock_key::hex;
use crate::message::{DedupBy, fields};
use crate::store::{CopySearch, FoundCopy, HandedCopy, Proof, Receipt, Unsearched};
use crate::trust_search::TrustSearch;

/// Mailboxes that are searched in one round trip.
const TOGETHER: usize = 50;
/// What is fetched of our fields.
const FIELD_BYTES: usize = 4096;

/// A copy that is sought by the value of its row.
pub struct HandedSearch<'a> {
    pub sought: &'a CopySearch<'a>,
    pub value: [u8; 16],
}

/// Finds each of `sought` in all mailboxes: the first tries first.
///
/// # Errors
/// The search did not come to its end in one of them.
pub fn find_all(
    session: &mut ImapSession,
    sought: &[HandedSearch<'_>],
    by: DedupBy,
    until: Instant,
) -> Result<Vec<Vec<FoundCopy>>, ImapError> {
    let mailboxes = own_mailboxes(session, until)?;
    let mut all = Vec::new();
    for one in sought {
        let mut found = Vec::new();
        for (mailbox, hits) in hits_in(session, &mailboxes, one, until)? {
            found.extend(compare(session, &mailbox, hits, one, until)?);
        }
        if one.sought.looks_back {
            find_equal(session, &mailboxes, one, by, until, &mut found)?;
        }
        let epoch = |one: &FoundCopy| one.handed.as_ref().and_then(|handed| handed.epoch);
        found.sort_by_key(|one| epoch(one).unwrap_or(i64::MAX));
        all.push(found);
    }
    Ok(all)
}

/// What a search for the value shows in each of the mailboxes.
fn hits_in(
    session: &mut ImapSession,
    mailboxes: &[String],
    one: &HandedSearch<'_>,
    until: Instant,
) -> Result<Vec<(String, Vec<u32>)>, ImapError> {
    let value = hex(&one.value);
    let since = (!one.sought.looks_back).then(|| syntax::day_before(one.sought.recorded_at));
    let since = since.map(|since| format!("SINCE {since} ")).unwrap_or_default();
    search_in(session, mailboxes, &format!("{since}HEADER X-Onedrop-Copy {value}"), until)
}

/// The mailboxes in which `criteria` have hits, with these.
fn search_in(
    session: &mut ImapSession,
    mailboxes: &[String],
    criteria: &str,
    until: Instant,
) -> Result<Vec<(String, Vec<u32>)>, ImapError> {
    let search = format!("UID SEARCH {criteria}");
    let mut found = Vec::new();
    for mailboxes in mailboxes.chunks(TOGETHER) {
        let commands: Vec<String> = mailboxes
            .iter()
            .flat_map(|name| [format!("EXAMINE {}", syntax::quote(name)), search.clone()])
            .collect();
        let answers = session.run_together(&commands, until)?;
        for (mailbox, answers) in mailboxes.iter().zip(answers.chunks(2)) {
            let uids = match answers {
                [Ok(_), Ok(answer)] => hits(answer).map_err(|why| session.lost(why))?,
                [Ok(_), Err(no)] => {
                    let why = format!("searching {mailbox}: {}", no.text);
                    return Err(ImapError::refused(why));
                }
                // It may be gone, or have been in use.
                _ => search_alone(session, mailbox, &search, until)?,
            };
            if !uids.is_empty() {
                found.push((mailbox.clone(), uids));
            }
        }
    }
    Ok(found)
}

/// A mailbox that is gone has no hits.
fn search_alone(
    session: &mut ImapSession,
    mailbox: &str,
    search: &str,
    until: Instant,
) -> Result<Vec<u32>, ImapError> {
    let opened = look::open(session, "EXAMINE", &syntax::quote(mailbox), until);
    let opened = opened.map_err(|error| error.map(|why| format!("opening {mailbox}: {why}")))?;
    if opened.is_none() {
        return Ok(Vec::new());
    }
    let answer = session.run_large(search, until)?;
    hits(&answer).map_err(|why| session.lost(why))
}

/// Those of `hits` whose first X-Onedrop-Copy is the sought value.
fn compare(
    session: &mut ImapSession,
    mailbox: &str,
    hits: Vec<u32>,
    one: &HandedSearch<'_>,
    until: Instant,
) -> Result<Vec<FoundCopy>, ImapError> {
    let value = hex(&one.value);
    let Some(validity) = look::open(session, "EXAMINE", &syntax::quote(mailbox), until)? else {
        return Ok(Vec::new());
    };
    let marks = marks(session, &hits, until)?;
    let is_it = |mark: &Mark| mark.value == value.as_bytes();
    let found = marks.iter().filter(|(_, mark)| is_it(mark)).map(|(uid, mark)| FoundCopy {
        receipt: Receipt::Uid { validity, uid: *uid },
        // By its value, whatever date its delivery or its owner gave it.
        has_our_date: true,
        marked_deleted: mark.marked_deleted,
        is_wrapped: false,
        proof: Proof::Equal,
        handed: Some(HandedCopy { mailbox: mailbox.to_owned(), epoch: mark.epoch }),
    });
    Ok(found.collect())
}

/// Our fields in a message.
struct Mark {
    value: Vec<u8>,
    epoch: Option<i64>,
    marked_deleted: bool,
}

/// The first of our fields of each message that has them.
fn marks(
    session: &mut ImapSession,
    uids: &[u32],
    until: Instant,
) -> Result<BTreeMap<u32, Mark>, ImapError> {
    let mut uids = uids.to_vec();
    uids.sort_unstable();
    uids.dedup();
    let mut marks = BTreeMap::new();
    for uids in uids.chunks(TOGETHER) {
        let set = syntax::uid_set(uids);
        let names = "BODY.PEEK[HEADER.FIELDS (X-ONEDROP-COPY X-ONEDROP-TRY)]";
        let command = format!("UID FETCH {set} (FLAGS {names}<0.{FIELD_BYTES}>)");
        let answer = session.run_large(&command, until)?;
        for (uid, fetched) in fetch::each(answer) {
            let Some(header) = &fetched.ids else { continue };
            let first = |name: &[u8]| fields(header).find(|field| field.is(name));
            let Some(value) = first(b"x-onedrop-copy") else { continue };
            let epoch = first(b"x-onedrop-try").and_then(|field| {
                let text = String::from_utf8(field.unfolded()).ok()?;
                text.split_ascii_whitespace().next()?.parse().ok()
            });
            let (value, marked_deleted) = (value.unfolded(), fetched.is_deleted == Some(true));
            marks.insert(uid, Mark { value, epoch, marked_deleted });
        }
    }
    Ok(marks)
}

/// Of a copy whose row may have had another value: the equal ones that were handed over with any,
/// and those in INBOX, where an earlier way of delivery wrote them.
fn find_equal(
    session: &mut ImapSession,
    mailboxes: &[String],
    one: &HandedSearch<'_>,
    by: DedupBy,
    until: Instant,
    found: &mut Vec<FoundCopy>,
) -> Result<(), ImapError> {
    let likely: Vec<String> = match searchable_id(one.sought) {
        Some(id) => {
            let criteria = format!("HEADER Message-ID {}", syntax::quote(id));
            let hits = search_in(session, mailboxes, &criteria, until)?;
            hits.into_iter().map(|(mailbox, _)| mailbox).collect()
        }
        None => mailboxes.to_vec(),
    };
    for mailbox in likely {
        let unsearched = Unsearched::Nothing;
        let sought =
            CopySearch { handed: None, at_most: MOST_EQUAL, unsearched, ..one.sought.clone() };
        let (name, terms) = (syntax::quote(&mailbox), (by, TrustSearch::Always));
        let equal = look::find_all(session, &name, &[sought], terms, until)?.remove(0);
        let uids = equal.iter().filter_map(uid_of).collect::<Vec<_>>();
        let marks = marks(session, &uids, until)?;
        let is_inbox = mailbox.eq_ignore_ascii_case("INBOX");
        for copy in equal {
            let mark = uid_of(&copy).and_then(|uid| marks.get(&uid));
            let is_known = found.iter().any(|other| {
                let place = other.handed.as_ref().map(|handed| &handed.mailbox);
                place == Some(&mailbox) && other.receipt == copy.receipt
            });
            if !is_known && (is_inbox || mark.is_some()) {
                let epoch = mark.and_then(|mark| mark.epoch);
                let handed = Some(HandedCopy { mailbox: mailbox.clone(), epoch });
                found.push(FoundCopy { handed, ..copy });
            }
        }
    }
    Ok(())
}

/// Equal messages of one mailbox that are looked at.
const MOST_EQUAL: usize = 20;

fn uid_of(copy: &FoundCopy) -> Option<u32> {
    match copy.receipt {
        Receipt::Uid { uid, .. } => Some(uid),
        _ => None,
    }
}

/// All mailboxes of the account's own that can be opened, as the server writes them.
///
/// # Errors
/// The server did not say, or lists one that no command of ours can name.
fn own_mailboxes(session: &mut ImapSession, until: Instant) -> Result<Vec<String>, ImapError> {
    let namespace = names::personal(session, until)?;
    let answer = session.run_large("LIST \"\" \"*\"", until)?;
    let mut mailboxes = Vec::new();
    for response in &answer.responses {
        let Some(told) = response.after("LIST") else { continue };
        let Some(listed) = ListedMailbox::parse(&told, &response.literals) else {
            let told = syntax::clean(told.as_bytes());
            return Err(ImapError::refused(format!(
                "a mailbox is listed that has no name: {told}"
            )));
        };
        let is_own = namespace.is_own(&listed.name) && !mailboxes.contains(&listed.name);
        if listed.is_there() && is_own {
            mailboxes.push(listed.name);
        }
    }
    // Most lie there.
    if let Some(at) = mailboxes.iter().position(|name| name.eq_ignore_ascii_case("INBOX")) {
        mailboxes.swap(0, at);
    }
    Ok(mailboxes)
}
