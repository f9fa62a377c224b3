//! Messages that a server's search may not show. Some servers answer SEARCH from an index that
//! another task fills (Stalwart, James, Dovecot with some full-text indexes): a copy that was just
//! stored is not found, and a second one would follow. FETCH shows what is committed. So where the
//! server is not known to search the mailbox itself, the messages above a UID that was on record
//! before the copy's first lease are listed, the newest first, and those that may be the copy are
//! compared. A server is known by the name that it gives itself (ID, RFC 2971): Dovecot and Cyrus,
//! unless they announce SEARCH=FUZZY, as with an index. An index that does not announce itself is
//! unknown to us: `store.trust_search`.

use std::time::Instant;

use super::candidates::is_likely_size;
use super::error::ImapError;
use super::fetch::{self, Fetched};
use super::listing::{ID_BYTES, TOGETHER, TWO_DAYS, id_fields};
use super::namespace::{Token, tokens};
use super::search::searchable_id;
use super::session::ImapSession;
use onedrop_core::message::fields;
use onedrop_core::store::TrustSearch;
use onedrop_core::store::{CopySearch, Mark, Unindexed};

/// Names of servers that search the mailbox itself, in lower case; more words may follow.
const SEARCH_THEMSELVES: [&str; 2] = ["dovecot", "cyrus"];
/// What is in the name of a server that is no Dovecot, in lower case.
const OTHERS: [&str; 3] = ["cyrus", "james", "stalwart"];
/// Messages in the first list, and without their Message-IDs at most in one: mostly few are new.
const FIRST: u32 = 100;
const MOST: u32 = 10_000;

/// A mailbox as it was when it was opened.
pub struct OpenedMailbox {
    pub validity: u32,
    /// How many messages there are.
    pub count: u32,
    /// The next message's UID, or a lower one; `None` if the server does not say.
    pub next_uid: Option<u32>,
    /// The server warned of something (an untagged NO): Dovecot does where it shows old mail alone.
    pub has_warned: bool,
}

impl OpenedMailbox {
    /// The mark after the messages that it holds now; `None` if the server gives no UIDNEXT.
    pub fn mark(&self) -> Option<Mark> {
        self.next_uid.map(|next| Mark { validity: self.validity, next })
    }
}

/// Whether SEARCH shows all that is committed, as far as is known.
///
/// # Errors
/// The server did not answer.
pub fn is_search_trusted(
    session: &mut ImapSession,
    trust: TrustSearch,
    until: Instant,
) -> Result<bool, ImapError> {
    match trust {
        TrustSearch::Always => return Ok(true),
        TrustSearch::Never => return Ok(false),
        TrustSearch::Auto => {}
    }
    if session.capabilities().has("SEARCH=FUZZY") {
        return Ok(false);
    }
    let is_it = |name: &str| SEARCH_THEMSELVES.iter().any(|it| name.split(' ').next() == Some(it));
    Ok(server_name(session, until)?.is_some_and(|name| is_it(&name)))
}

/// Whether it may be Dovecot, which says what its `imap_id_send` says: any name, or none.
///
/// # Errors
/// The server did not answer.
pub fn may_be_dovecot(session: &mut ImapSession, until: Instant) -> Result<bool, ImapError> {
    let is_another = |name: &str| OTHERS.iter().any(|other| name.contains(other));
    Ok(server_name(session, until)?.is_some_and(|name| !is_another(&name)))
}

/// Whether it says that it is Dovecot, or nothing.
///
/// # Errors
/// The server did not answer.
pub fn is_like_dovecot(session: &mut ImapSession, until: Instant) -> Result<bool, ImapError> {
    let is_it = |name: &str| name.is_empty() || name.starts_with(SEARCH_THEMSELVES[0]);
    Ok(server_name(session, until)?.is_some_and(|name| is_it(&name)))
}

/// What the server calls itself, in lower case: empty where it does not say, `None` if it cannot.
fn server_name(session: &mut ImapSession, until: Instant) -> Result<Option<String>, ImapError> {
    if session.server_name.is_some() || !session.capabilities().has("ID") {
        return Ok(session.server_name.clone());
    }
    let name = match session.run("ID NIL", until) {
        Err(ImapError::Refused(_)) => None,
        answer => answer?
            .responses
            .iter()
            .find_map(|told| value_in(&tokens(&told.after("ID")?, &told.literals)?, "name")),
    };
    session.server_name = Some(name.unwrap_or_default().to_ascii_lowercase());
    Ok(session.server_name.clone())
}

/// Of an answer to ID, pairs of a field and its value, the value of `field`.
pub fn value_in(id: &[Token], field: &str) -> Option<String> {
    let pairs = id.strip_prefix(&[Token::Open])?.chunks_exact(2);
    pairs.into_iter().find_map(|pair| match pair {
        [Token::Text(name), Token::Text(value)] if name.eq_ignore_ascii_case(field) => {
            Some(value.clone())
        }
        _ => None,
    })
}

/// The UIDs of messages that may be the copy, by their sizes and dates, or by their Message-IDs; of
/// those whose UID is `next` or higher.
///
/// # Errors
/// The list did not come to its end.
pub fn uids(
    session: &mut ImapSession,
    opened: &OpenedMailbox,
    sought: &CopySearch<'_>,
    next: Option<u32>,
    until: Instant,
) -> Result<Vec<u32>, ImapError> {
    // Numbered anew, or put back to an older state: the UIDs do not show what is new.
    let still_counts = |&(validity, uid): &(u32, u32)| {
        validity == opened.validity && opened.next_uid.is_none_or(|next| next > uid)
    };
    let mut above = match (next, sought.unindexed) {
        (Some(next), _) => next.saturating_sub(1),
        (None, Unindexed::After(receipt)) => {
            receipt.as_uid().filter(still_counts).map_or(0, |(_, uid)| uid)
        }
        (None, Unindexed::Nothing | Unindexed::All) => 0,
    };
    let id = searchable_id(sought);
    let (items, most) = match id {
        Some(_) => (id_fields(ID_BYTES), TOGETHER as u32),
        None => ("RFC822.SIZE".to_owned(), MOST),
    };
    // A mail program dates its copy as it likes.
    let has_any_date = sought.looks_back || sought.by_id;
    let may_be = |fetched: &Fetched| {
        let earliest = sought.recorded_at.checked_sub(TWO_DAYS);
        let is_recent = has_any_date || fetched.date.is_none_or(|date| Some(date) >= earliest);
        let fits = match (id, &fetched.ids) {
            (None, _) => fetched.size.is_none_or(|size| is_likely_size(sought, size)),
            (Some(id), Some(ids)) if ids.len() < ID_BYTES => {
                let mut ids = fields(ids).filter(|field| field.is(b"message-id")).peekable();
                // A server may see none where the header is damaged.
                ids.peek().is_none() || ids.any(|field| field.unfolded() == id.as_bytes())
            }
            _ => true,
        };
        is_recent && fits
    };
    let (mut uids, mut last, mut many) = (Vec::new(), opened.count, FIRST);
    while last > 0 {
        let first = last.saturating_sub(many - 1).max(1);
        // Not UID FETCH: then the server may not number messages anew meanwhile (RFC 3501 section
        // 7.4.1).
        let command = format!("FETCH {first}:{last} (UID INTERNALDATE {items})");
        let answer = session.run_large(&command, until)?;
        let listed: Vec<(u32, Fetched)> = fetch::dated(answer).collect();
        // A server that failed over has forgotten messages and given their UIDs out again: the
        // copy, or what came after it, stands where the receipt says that all came before it. (The
        // receipt is a minute older than the record.)
        let came_later =
            |(uid, one): &(u32, Fetched)| *uid <= above && one.date >= Some(sought.recorded_at);
        if next.is_none() && listed.iter().any(came_later) {
            above = 0;
        }
        let new = listed.iter().filter(|(uid, fetched)| *uid > above && may_be(fetched));
        uids.extend(new.map(|(uid, _)| *uid));
        if listed.iter().any(|(uid, _)| *uid <= above) {
            break;
        }
        (last, many) = (first - 1, (many * 8).min(most));
    }
    Ok(uids)
}
