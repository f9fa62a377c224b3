//! Finding copies that were handed over to the server's own delivery: they lie in whatever mailbox
//! of the account's personal namespaces its owner's filters have chosen. All of these are searched,
//! many in one round trip (200 mailboxes take less than a second), but for those that show what
//! lies in others: a message that is taken out there is gone from where it lies. Every hit's first
//! X-Onedrop-Copy is read and must be the sought value: equal content alone would take the sender's
//! own Sent for the recipient's copy. And its content must be the copy's, as the value is known to
//! whoever a filter forwards it to. Where a mailbox vanishes meanwhile, it may have another name
//! now: what is new is searched as well. One that cannot be opened for another reason fails the
//! look, as the copy may lie in it, and so does a hit that is gone before it was read. Where SEARCH
//! may not show what is stored, all that came since is read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Instant, SystemTime};

use super::candidates::{self, Judge};
use super::error::ImapError;
use super::fetch;
use super::listing::{self, TWO_DAYS};
use super::look::{self, AnswerTime};
use super::names;
use super::namespace::ListedMailbox;
use super::search::{hits, searchable_id};
use super::session::ImapSession;
use super::syntax;
use super::unindexed::{self, OpenedMailbox};
use onedrop_core::directory::Destination;
use onedrop_core::lock_key::hex;
use onedrop_core::message::fields;
use onedrop_core::store::TrustSearch;
use onedrop_core::store::Unindexed;
use onedrop_core::store::{
    CopySearch, FoundCopy, HandedCopy, LookedBack, Mark, Naming, Proof, Receipt,
};

/// Mailboxes that are searched in one round trip.
const TOGETHER: usize = 50;
/// Messages whose fields, or whose dates, are read in one round trip.
const READ_TOGETHER: usize = 500;
const DATED_TOGETHER: u32 = 10_000;
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
    trust: TrustSearch,
    until: Instant,
) -> Result<Vec<Vec<FoundCopy>>, ImapError> {
    let mut mailboxes = own_mailboxes(session, until)?;
    let mut all = Vec::new();
    for one in sought {
        let is_trusted = one.sought.unindexed == Unindexed::Nothing
            || unindexed::is_search_trusted(session, trust, until)?;
        let (mut found, mut unseen) = (Vec::new(), mailboxes.clone());
        while !unseen.is_empty() {
            let mut look = Tour { session, one, is_trusted, until, is_one_gone: false };
            look.find(&unseen, &mut found)?;
            if one.sought.looks_back {
                look.find_equal(&unseen, &mut found)?;
            }
            if !look.is_one_gone {
                break;
            }
            unseen = own_mailboxes(session, until)?;
            unseen.retain(|name| !mailboxes.contains(name));
            mailboxes.extend_from_slice(&unseen);
        }
        found.sort_by_key(|one: &FoundCopy| one.of_try().unwrap_or(i64::MAX));
        all.push(found);
    }
    Ok(all)
}

/// Looks back for what is `sought` in its mailbox; what was handed over, in all of them.
///
/// # Errors
/// Those of [`find_all`].
pub fn look_back(
    session: &mut ImapSession,
    destination: &Destination,
    sought: &CopySearch<'_>,
    trust: TrustSearch,
    until: Instant,
) -> Result<LookedBack, ImapError> {
    let Some(value) = sought.handed else {
        let mailbox = names::in_command(session, destination.place(), until)?;
        return look::look_back(session, &mailbox, sought, trust, until);
    };
    let mut marks = BTreeMap::new();
    for mailboxes in own_mailboxes(session, until)?.chunks(TOGETHER) {
        let names: Vec<String> = mailboxes.iter().map(|name| syntax::quote(name)).collect();
        let commands: Vec<String> = names.iter().map(|name| format!("EXAMINE {name}")).collect();
        let answers = session.run_together(&commands, until)?;
        for (name, answer) in names.into_iter().zip(answers) {
            let opened = answer.ok().and_then(|answer| look::opened(&answer));
            // One that cannot be opened now has no mark, and is read in the turn.
            marks.extend(opened.and_then(|opened| opened.mark()).map(|mark| (name, mark)));
        }
    }
    let found = find_all(session, &[HandedSearch { sought, value }], trust, until)?;
    let found = found.into_iter().flatten().next();
    Ok(LookedBack { found, marks })
}

/// A look for one copy in mailbox after mailbox.
struct Tour<'a> {
    session: &'a mut ImapSession,
    one: &'a HandedSearch<'a>,
    /// SEARCH shows what is stored.
    is_trusted: bool,
    until: Instant,
    /// A mailbox was gone when it was to be opened.
    is_one_gone: bool,
}

impl Tour<'_> {
    /// What has the sought value.
    fn find(&mut self, mailboxes: &[String], found: &mut Vec<FoundCopy>) -> Result<(), ImapError> {
        let hits = match self.is_trusted {
            true => self.hits_in(mailboxes)?,
            false => self.all_in(mailboxes)?,
        };
        for (mailbox, hits) in hits {
            found.extend(self.compare(&mailbox, &hits)?);
        }
        Ok(())
    }

    /// What a search for the value shows in each of the mailboxes.
    fn hits_in(&mut self, mailboxes: &[String]) -> Result<Vec<(String, Vec<u32>)>, ImapError> {
        let CopySearch { looks_back, recorded_at, .. } = *self.one.sought;
        let since = (!looks_back).then(|| syntax::day_before(recorded_at));
        let since = since.map(|since| format!("SINCE {since} ")).unwrap_or_default();
        let value = hex(&self.one.value);
        self.search_in(mailboxes, &format!("{since}HEADER X-Onedrop-Copy {value}"))
    }

    /// The mailboxes in which `criteria` have hits, with these.
    fn search_in(
        &mut self,
        mailboxes: &[String],
        criteria: &str,
    ) -> Result<Vec<(String, Vec<u32>)>, ImapError> {
        let search = format!("UID SEARCH {criteria}");
        let looked_back = self.one.sought.looked;
        let mark = |name: &str| looked_back?.marks.get(&syntax::quote(name));
        let mut found = Vec::new();
        for mailboxes in mailboxes.chunks(TOGETHER) {
            let commands: Vec<String> = mailboxes
                .iter()
                .flat_map(|name| {
                    let search = match mark(name) {
                        Some(Mark { next, .. }) => format!("UID SEARCH UID {next}:* {criteria}"),
                        None => search.clone(),
                    };
                    [format!("EXAMINE {}", syntax::quote(name)), search]
                })
                .collect();
            let waited = AnswerTime::begin();
            let answers = self.session.run_together(&commands, self.until)?;
            let has_warned =
                answers.iter().flatten().filter_map(look::opened).any(|one| one.has_warned);
            // Answers that were read late seem to have come together: the time of all counts.
            let may_be_old = waited.in_vain(self.session, has_warned, self.until)?;
            for (mailbox, answers) in mailboxes.iter().zip(answers.chunks(2)) {
                let uids = match answers {
                    [Ok(_), Ok(_)] if may_be_old => self.search_alone(mailbox, &search)?,
                    [Ok(opened), Ok(answer)] => {
                        let next = look::opened(opened).and_then(|opened| {
                            let OpenedMailbox { validity, next_uid, .. } = opened;
                            looked_back?.next_in(&syntax::quote(mailbox), validity, next_uid)
                        });
                        if next.is_none() && mark(mailbox).is_some() {
                            // Made anew, or restored, meanwhile.
                            self.search_alone(mailbox, &search)?
                        } else {
                            let mut uids = hits(answer).map_err(|why| self.session.lost(why))?;
                            uids.retain(|uid| next.is_none_or(|next| *uid >= next));
                            uids
                        }
                    }
                    [Ok(_), Err(no)] => {
                        let why = format!("searching {mailbox}: {}", no.text);
                        return Err(ImapError::refused(why));
                    }
                    // It may be gone, or have been in use.
                    _ => self.search_alone(mailbox, &search)?,
                };
                if !uids.is_empty() {
                    found.push((mailbox.clone(), uids));
                }
            }
        }
        Ok(found)
    }

    fn search_alone(&mut self, mailbox: &str, search: &str) -> Result<Vec<u32>, ImapError> {
        if self.open(mailbox)?.is_none() {
            return Ok(Vec::new());
        }
        let answer = self.session.run_large(search, self.until)?;
        hits(&answer).map_err(|why| self.session.lost(why))
    }

    /// `None` of one that is gone.
    fn open(&mut self, mailbox: &str) -> Result<Option<OpenedMailbox>, ImapError> {
        let opened =
            look::open_afresh(self.session, "EXAMINE", &syntax::quote(mailbox), self.until);
        let opened =
            opened.map_err(|error| error.map(|why| format!("opening {mailbox}: {why}")))?;
        self.is_one_gone |= opened.is_none();
        Ok(opened)
    }

    /// All that may be the copy by its date.
    fn all_in(&mut self, mailboxes: &[String]) -> Result<Vec<(String, Vec<u32>)>, ImapError> {
        let CopySearch { looks_back, recorded_at, .. } = *self.one.sought;
        let earliest = recorded_at.checked_sub(TWO_DAYS);
        let is_recent =
            |date: Option<SystemTime>| looks_back || date.is_none_or(|at| Some(at) >= earliest);
        let mut all = Vec::new();
        for mailbox in mailboxes {
            let Some(opened) = self.open(mailbox)? else { continue };
            let (mut uids, mut last) = (Vec::new(), opened.count);
            let looked = self.one.sought.looked;
            let name = syntax::quote(mailbox);
            let OpenedMailbox { validity, next_uid, .. } = opened;
            let next = looked.and_then(|looked| looked.next_in(&name, validity, next_uid));
            let next = next.unwrap_or(0);
            while last > 0 {
                let first = last.saturating_sub(DATED_TOGETHER - 1).max(1);
                let command = format!("FETCH {first}:{last} (UID INTERNALDATE)");
                let answer = self.session.run_large(&command, self.until)?;
                let mut lowest = u32::MAX;
                for (uid, fetched) in fetch::dated(answer) {
                    lowest = lowest.min(uid);
                    if uid >= next && is_recent(fetched.date) {
                        uids.push(uid);
                    }
                }
                last = if lowest < next { 0 } else { first - 1 };
            }
            if !uids.is_empty() {
                all.push((mailbox.clone(), uids));
            }
        }
        Ok(all)
    }

    /// Those of `hits` whose first X-Onedrop-Copy is the sought value, and whose content is that of
    /// the copy: the value alone proves nothing, as it leaves the site with what a filter forwards.
    fn compare(&mut self, mailbox: &str, hits: &[u32]) -> Result<Vec<FoundCopy>, ImapError> {
        let value = hex(&self.one.value);
        let Some(OpenedMailbox { validity, .. }) = self.open(mailbox)? else {
            return Ok(Vec::new());
        };
        let (marks, read) = self::marks(self.session, hits, self.until)?;
        // Where all is read, most of it is other mail.
        if self.is_trusted {
            all_read(mailbox, hits, &read)?;
        }
        let is_it = |uid: &&u32| marks[*uid].value == value.as_bytes();
        let uids: Vec<u32> = marks.keys().filter(is_it).copied().collect();
        // Of the value's own row all is one variant, whatever a filter has done to its fields.
        let sought = &CopySearch { variant: None, ..self.one.sought.clone() };
        let judge = Judge { sought };
        let mut found = Vec::new();
        for uids in uids.chunks(listing::TOGETHER) {
            let equal = candidates::equal(self.session, &judge, uids, uids.len(), self.until)?;
            let mut others = uids.to_vec();
            others.retain(|uid| !equal.iter().any(|(equal, ..)| equal == uid));
            if !others.is_empty() {
                let (_, still) = self::marks(self.session, &others, self.until)?;
                all_read(mailbox, &others, &still)?;
            }
            found.extend(equal.into_iter().map(|(uid, fetched, _)| FoundCopy {
                receipt: Receipt::uid(validity, uid),
                naming: Naming::Alone,
                // By its value, whatever date its delivery or its owner gave it.
                has_our_date: true,
                marked_deleted: fetched.is_deleted == Some(true),
                is_wrapped: fetched.is_wrapped,
                proof: Proof::Equal,
                handed: Some(HandedCopy {
                    mailbox: mailbox.to_owned(),
                    epoch: marks.get(&uid).and_then(|mark| mark.epoch),
                }),
            }));
        }
        Ok(found)
    }

    /// Of a copy whose row may have had another value: the equal ones (to filters, too) that were
    /// handed over with any, and those in INBOX, where an earlier way of delivery wrote them.
    fn find_equal(
        &mut self,
        mailboxes: &[String],
        found: &mut Vec<FoundCopy>,
    ) -> Result<(), ImapError> {
        let (sought, until) = (self.one.sought, self.until);
        let likely: Vec<String> = match searchable_id(sought).filter(|_| self.is_trusted) {
            Some(id) => {
                let criteria = format!("HEADER Message-ID {}", syntax::quote(id));
                let hits = self.search_in(mailboxes, &criteria)?;
                hits.into_iter().map(|(mailbox, _)| mailbox).collect()
            }
            None => mailboxes.to_vec(),
        };
        let (trust, unindexed) = match self.is_trusted {
            true => (TrustSearch::Always, Unindexed::Nothing),
            false => (TrustSearch::Never, Unindexed::All),
        };
        for mailbox in likely {
            let sought = CopySearch { at_most: MOST_EQUAL, unindexed, ..sought.clone() };
            let name = syntax::quote(&mailbox);
            let equal = look::find_all(self.session, &name, &[sought], trust, until)?;
            let equal = equal.into_iter().flatten().collect::<Vec<_>>();
            let uids = equal.iter().filter_map(uid_of).collect::<Vec<_>>();
            let (marks, read) = marks(self.session, &uids, until)?;
            all_read(&mailbox, &uids, &read)?;
            let is_inbox = mailbox.eq_ignore_ascii_case("INBOX");
            for copy in equal {
                let mark = uid_of(&copy).and_then(|uid| marks.get(&uid));
                let is_known = found.iter().any(|other| {
                    let place = other.handed.as_ref().map(|handed| &handed.mailbox);
                    place == Some(&mailbox) && other.receipt == copy.receipt
                });
                if !is_known && (is_inbox || mark.is_some()) {
                    // Another value's try says nothing about this one's.
                    let handed = Some(HandedCopy { mailbox: mailbox.clone(), epoch: None });
                    found.push(FoundCopy { handed, ..copy });
                }
            }
        }
        Ok(())
    }
}

/// Fails where one is gone: its owner may just have moved it into a mailbox that was searched
/// before.
fn all_read(mailbox: &str, hits: &[u32], read: &BTreeSet<u32>) -> Result<(), ImapError> {
    if hits.iter().all(|uid| read.contains(uid)) {
        return Ok(());
    }
    Err(ImapError::refused(format!("what may be the copy was in {mailbox} and is gone")))
}

/// Our fields in a message.
struct HandedFields {
    value: Vec<u8>,
    epoch: Option<i64>,
}

/// The first of our fields of each message that has them, and which messages were read.
fn marks(
    session: &mut ImapSession,
    uids: &[u32],
    until: Instant,
) -> Result<(BTreeMap<u32, HandedFields>, BTreeSet<u32>), ImapError> {
    let mut uids = uids.to_vec();
    uids.sort_unstable();
    uids.dedup();
    let (mut marks, mut read) = (BTreeMap::new(), BTreeSet::new());
    for uids in uids.chunks(READ_TOGETHER) {
        let set = syntax::uid_set(uids);
        let names = "BODY.PEEK[HEADER.FIELDS (X-ONEDROP-COPY X-ONEDROP-TRY)]";
        let command = format!("UID FETCH {set} ({names}<0.{FIELD_BYTES}>)");
        let answer = session.run_large(&command, until)?;
        for (uid, fetched) in fetch::each(answer) {
            let Some(header) = &fetched.ids else { continue };
            read.insert(uid);
            let first = |name: &[u8]| fields(header).find(|field| field.is(name));
            let Some(value) = first(b"x-onedrop-copy") else { continue };
            let epoch = first(b"x-onedrop-try").and_then(|field| {
                let text = String::from_utf8(field.unfolded()).ok()?;
                text.split_ascii_whitespace().next()?.parse().ok()
            });
            marks.insert(uid, HandedFields { value: value.unfolded(), epoch });
        }
    }
    Ok((marks, read))
}

/// Equal messages of one mailbox that are looked at.
const MOST_EQUAL: usize = 20;

fn uid_of(copy: &FoundCopy) -> Option<u32> {
    copy.receipt.as_uid().map(|(_, uid)| uid)
}

/// The marks of mailboxes that show messages of others (RFC 6154 section 2), in lower case.
const SHOW_OTHERS: [&str; 2] = ["\\all", "\\flagged"];

/// All mailboxes of the account's own that can be opened, as the server writes them, but for those
/// that show what lies in others, and the one of what it sends: copies go there by another way,
/// with whatever fields their senders wrote.
///
/// # Errors
/// The server did not say, or lists one that no command of ours can name.
fn own_mailboxes(session: &mut ImapSession, until: Instant) -> Result<Vec<String>, ImapError> {
    let namespace = names::personal(session, until)?;
    let answer = names::listing(session, until)?;
    let mut own: Vec<ListedMailbox> = Vec::new();
    for response in &answer.responses {
        let Some(told) = response.after("LIST") else { continue };
        let Some(listed) = ListedMailbox::parse(&told, &response.literals) else {
            let told = syntax::clean(told.as_bytes());
            return Err(ImapError::refused(format!(
                "a mailbox is listed that has no name: {told}"
            )));
        };
        let is_known = own.iter().any(|known| known.name == listed.name);
        if listed.is_there() && namespace.is_own(&listed.name) && !is_known {
            own.push(listed);
        }
    }
    let is_marked = |listed: &ListedMailbox| listed.has("\\sent");
    let plain = match own.iter().any(is_marked) {
        true => None,
        false => namespace.name("Sent").ok(),
    };
    let shows_others = |listed: &ListedMailbox| SHOW_OTHERS.iter().any(|mark| listed.has(mark));
    own.retain(|listed| {
        !is_marked(listed) && !shows_others(listed) && plain.as_ref() != Some(&listed.name)
    });
    let mut mailboxes: Vec<String> = own.into_iter().map(|listed| listed.name).collect();
    // Most lie there.
    if let Some(at) = mailboxes.iter().position(|name| name.eq_ignore_ascii_case("INBOX")) {
        mailboxes.swap(0, at);
    }
    Ok(mailboxes)
}
