//! Compares the ledger with the mailboxes and repairs what Onedrop wrote. Outside the protocol's
//! promise (a process frozen past its lease, a late server, a ledger that lost a commit) a mailbox
//! may have two copies; so each placed copy that was leased more than once gets a second look after
//! its last lease.
//!
//! Relies on the ledger's rows. It writes only shared copies whose bytes the ledger keeps, by the
//! delivery's own code. It settles a doubt as a delivery does: lease, the copy's lock, look,
//! receipt. It removes a double only if Onedrop wrote it: not the copy on record, equal by
//! identity, with the date that the append sets, not older than the day before the record, not
//! marked as deleted, and only while the copy on record is in the mailbox and unmarked. If the UID
//! on record is another message, it removes nothing. A crash leaves less to do for the next run.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use jiff::{Span, SpanRelativeTo, Timestamp, civil::Date, tz::TimeZone};

use crate::clock::Clock;
use crate::ledger::{
    AnyLedger, Attempt, CopyOnRecord, LedgerError, SCHEMA_VERSION, Standing, Window,
};
use crate::lock_key::Hash;
use crate::store::{AnyStore, CopySearch, FoundCopy, Proof, Receipt, StoreError};

mod difference;
mod doubt;
mod kept;
mod settle;

pub use difference::{Difference, Level, News, Tally, Topic};
pub use settle::settle;

/// How long a call to the store may take.
const STORE_TIME: Duration = Duration::from_secs(60);
/// How long a call to the ledger may take.
pub const LEDGER_TIME: Duration = Duration::from_secs(300);
/// Rows that are held in memory.
const PAGE: u32 = 500;
/// Copies of one message in one mailbox that a run deals with.
const MOST_COPIES: usize = 100;
/// A copy that no look has seen for so long is taken for deleted by its owner, and not looked for
/// any more.
const OUT_OF_SIGHT: Duration = Duration::from_secs(7 * 24 * 3600);

/// What to verify, and how.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    pub window: Window<'a>,
    /// Mend what is found.
    pub repair: bool,
    /// How long a lease is that is taken here.
    pub lease: Duration,
    /// How long the placing of a kept copy may take, and the part of that kept for the store's
    /// answer.
    pub time: (Duration, Duration),
    pub clock: &'a Arc<dyn Clock>,
    /// Who takes leases; a run comes to each copy once, so it never finds again what it left in
    /// doubt.
    pub by: &'a Attempt,
}

/// Verifies everything in the window, an account after the other.
///
/// # Errors
/// The ledger cannot be read or written. What the store refuses is told and counted.
pub fn verify<'a>(
    plan: &Plan<'a>,
    ledger: &dyn AnyLedger,
    store: &dyn AnyStore,
    tell: &mut dyn FnMut(News<'_>),
) -> Result<Tally, LedgerError> {
    let mut verification = Verification::new(plan, ledger, store, tell)?;
    verification.all(
        |last, until| ledger.copies_to_verify(&plan.window, last, PAGE, until),
        &BTreeSet::new(),
        Verification::one,
    )?;
    Ok(verification.tally)
}

impl Plan<'_> {
    fn ledger_until(&self) -> Instant {
        self.clock.now() + LEDGER_TIME
    }

    fn store_until(&self) -> Instant {
        self.clock.now() + STORE_TIME
    }
}

/// The point in time that `text` names, for a window to begin: a duration back from `now` (`24h`,
/// `7d`), a day or an instant.
pub fn since(text: &str, now: SystemTime) -> Option<SystemTime> {
    if let Ok(instant) = text.parse::<Timestamp>() {
        return Some(instant.into());
    }
    if let Ok(day) = text.parse::<Date>() {
        return Some(day.to_zoned(TimeZone::system()).ok()?.timestamp().into());
    }
    let back = text.parse::<Span>().ok()?.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    now.checked_sub(Duration::try_from(back).ok()?)
}

struct Verification<'a, 'p> {
    plan: &'a Plan<'p>,
    ledger: &'a dyn AnyLedger,
    store: &'a dyn AnyStore,
    /// An account whose mailboxes cannot be used.
    out_of_reach: Option<String>,
    tell: &'a mut dyn FnMut(News<'_>),
    tally: Tally,
}

/// Why a copy was not verified to the end.
#[derive(Debug, thiserror::Error)]
enum Unverified {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl<'a, 'p> Verification<'a, 'p> {
    /// # Errors
    /// The ledger cannot be read, or has another version.
    fn new(
        plan: &'a Plan<'p>,
        ledger: &'a dyn AnyLedger,
        store: &'a dyn AnyStore,
        tell: &'a mut dyn FnMut(News<'_>),
    ) -> Result<Verification<'a, 'p>, LedgerError> {
        let found = ledger.schema_version(plan.ledger_until())?;
        if found != SCHEMA_VERSION {
            return Err(LedgerError::Version { found });
        }
        Ok(Verification { plan, ledger, store, out_of_reach: None, tell, tally: Tally::default() })
    }

    /// Does `work` for each copy of all pages that is not `over`.
    fn all(
        &mut self,
        page: impl Fn(Option<&CopyOnRecord>, Instant) -> Result<Vec<CopyOnRecord>, LedgerError>,
        over: &BTreeSet<i64>,
        work: impl Fn(&mut Self, &CopyOnRecord) -> Result<(), Unverified>,
    ) -> Result<(), LedgerError> {
        let mut last: Option<CopyOnRecord> = None;
        loop {
            let page = page(last.as_ref(), self.plan.ledger_until())?;
            for copy in page.iter().filter(|copy| !over.contains(&copy.copy)) {
                self.each(copy, &work)?;
            }
            match page.into_iter().next_back() {
                Some(copy) => last = Some(copy),
                None => return Ok(()),
            }
        }
    }
}

impl Verification<'_, '_> {
    fn each(
        &mut self,
        copy: &CopyOnRecord,
        work: impl Fn(&mut Self, &CopyOnRecord) -> Result<(), Unverified>,
    ) -> Result<(), LedgerError> {
        (self.tell)(News::Next { copy, tally: &self.tally });
        if self.out_of_reach.as_ref() == Some(&copy.destination.account) {
            self.tally.failed += 1;
            return Ok(());
        }
        match work(self, copy) {
            Ok(()) => self.tally.copies += 1,
            Err(Unverified::Ledger(error)) => return Err(error),
            Err(Unverified::Store(why)) => {
                self.tally.failed += 1;
                self.out_of_reach = Some(copy.destination.account.clone());
                (self.tell)(News::Failed { destination: &copy.destination, why });
            }
        }
        Ok(())
    }

    fn one(&mut self, copy: &CopyOnRecord) -> Result<(), Unverified> {
        match (&copy.standing, &copy.kept) {
            (Standing::Placed { .. }, _) if copy.is_left_to_settle() => Ok(()),
            (Standing::Placed { receipt, ago }, _) => {
                let found = self.find(copy, Some(receipt))?;
                self.placed(copy, receipt, *ago, &found)
            }
            (Standing::Leased, _) => {
                self.busy(copy, format!("leased by {}", copy.owner));
                Ok(())
            }
            _ if copy.is_left_to_settle() => {
                self.due(copy);
                Ok(())
            }
            (Standing::Free | Standing::InDoubt { .. }, Some(why)) => {
                self.kept(copy, why, Level::Error)
            }
            (Standing::InDoubt { lease_left_over }, None) => self.doubt(copy, *lease_left_over),
            (Standing::Free, None) => {
                let text = "not placed: the last attempt gave up before it wrote anything, Postfix \
                            has it or has returned it";
                self.found(copy, Level::Info, Topic::Missing, None, text);
                Ok(())
            }
        }
    }

    /// The copies in the mailbox, newest first.
    fn find(
        &mut self,
        copy: &CopyOnRecord,
        on_record: Option<&Receipt>,
    ) -> Result<Vec<FoundCopy>, StoreError> {
        let until = self.plan.store_until();
        self.store.find(&copy.destination, &search(copy, &copy_key(copy), on_record), until)
    }

    /// As `find`, and also what has the same first Message-ID and came since then.
    fn find_by_id(
        &self,
        copy: &CopyOnRecord,
        on_record: Option<&Receipt>,
        since: Option<SystemTime>,
    ) -> Result<Vec<FoundCopy>, StoreError> {
        let key = copy_key(copy);
        let search = search(copy, &key, on_record);
        let sought = CopySearch { by_id: true, since, needs_proof: false, ..search };
        self.store.find(&copy.destination, &sought, self.plan.store_until())
    }

    /// A copy that has a receipt: is it there, is it alone?
    fn placed(
        &mut self,
        copy: &CopyOnRecord,
        on_record: &Receipt,
        ago: Duration,
        found: &[FoundCopy],
    ) -> Result<(), Unverified> {
        let is_foreign = |one: &FoundCopy| one.proof == Proof::Foreign;
        // What its owner has marked as deleted may be gone at any time: nothing else is removed for
        // it.
        let standing: Vec<&FoundCopy> =
            found.iter().filter(|one| !one.marked_deleted && !is_foreign(one)).collect();
        let mut lasting = standing.iter().copied().filter(|one| one.receipt.is_lasting());
        let named = lasting.clone().find(|one| one.receipt == *on_record);
        let keeper = named.or_else(|| lasting.rfind(|one| one.has_our_date));
        if named.is_none() && *on_record != Receipt::Unnamed {
            self.moved(copy, on_record, found, keeper);
        }
        let mut is_alone = true;
        let is_other =
            |one: &&&FoundCopy| keeper.is_none_or(|keeper| one.receipt != keeper.receipt);
        for one in standing.iter().filter(is_other) {
            let receipt = &one.receipt;
            // Where one delivery at most can have written, an equal copy is its owner's, even with
            // our date: a mail program may save what it sent within the same second.
            match keeper.filter(|_| one.has_our_date && copy.may_be_double) {
                Some(_) if found.iter().any(is_foreign) => {
                    is_alone = false;
                    let text = format!(
                        "{receipt} is one too many; it stays, as {on_record} is another message"
                    );
                    self.found(copy, Level::Error, Topic::Double, Some(receipt), text);
                }
                Some(keeper) => {
                    is_alone = false;
                    self.double(copy, one, keeper);
                }
                None => {
                    let text = format!(
                        "{receipt} is equal and not one of ours: its owner's own copy? It stays"
                    );
                    self.found(copy, Level::Info, Topic::Other, Some(receipt), text);
                }
            }
        }
        let receipt =
            keeper.filter(|_| self.plan.repair).map_or(on_record, |keeper| &keeper.receipt);
        let is_over = self.is_all(copy, found) & self.is_seen(copy, keeper, found, ago);
        // That a double is gone the next look has to see: a server says OK to the removal of what
        // somebody unmarked, too.
        if is_alone
            && is_over
            && ago >= copy.lease.max(self.plan.lease)
            && (needs_a_look(copy) || receipt != on_record)
        {
            let settled = self.ledger.settle(copy, receipt, self.plan.ledger_until())?;
            self.tally.settled += u64::from(settled && needs_a_look(copy));
        }
        Ok(())
    }

    /// Whether there can be no copy of ours beside those found; reports why not.
    fn is_all(&mut self, copy: &CopyOnRecord, found: &[FoundCopy]) -> bool {
        let hidden = found.iter().find(|one| one.proof == Proof::Hidden && needs_a_look(copy));
        let text = match hidden {
            _ if found.len() >= MOST_COPIES && copy.may_be_double => {
                format!("there may be more than these {} copies: verify it again", found.len())
            }
            Some(FoundCopy { receipt, .. }) => format!(
                "the server's search does not show {receipt}, which is there: it may hide another \
                 copy"
            ),
            None => return true,
        };
        self.found(copy, Level::Error, Topic::Double, None, text);
        false
    }

    /// Whether the look saw a copy of ours and none that may come back. Where it saw none its owner
    /// has most likely deleted it; but the mailbox may be out of sight today (not mounted, renamed,
    /// being restored) and come back with two.
    fn is_seen(
        &mut self,
        copy: &CopyOnRecord,
        keeper: Option<&FoundCopy>,
        found: &[FoundCopy],
        ago: Duration,
    ) -> bool {
        let may_return =
            |one: &&FoundCopy| one.marked_deleted && one.has_our_date && copy.may_be_double;
        let is_seen = keeper.is_some() && !found.iter().any(|one| may_return(&one));
        if keeper.is_some() {
            for FoundCopy { receipt, .. } in found.iter().filter(may_return) {
                let text = format!("{receipt} is marked as deleted beside the one that stays");
                self.found(copy, Level::Info, Topic::Double, Some(receipt), text);
            }
        }
        is_seen || ago >= OUT_OF_SIGHT
    }

    fn moved(
        &mut self,
        copy: &CopyOnRecord,
        on_record: &Receipt,
        found: &[FoundCopy],
        keeper: Option<&FoundCopy>,
    ) {
        let text = match keeper {
            _ if found.iter().any(|one| one.proof == Proof::Foreign) => {
                format!("{on_record} is another message by now: was the mailbox restored?")
            }
            _ if found.iter().any(|one| one.receipt == *on_record && one.marked_deleted) => {
                format!("{on_record} is marked as deleted by its owner")
            }
            Some(FoundCopy { receipt, .. }) => {
                format!("{on_record} is not in the mailbox, the copy is there as {receipt}")
            }
            None => format!("{on_record} is not in the mailbox: moved or deleted by its owner"),
        };
        self.found(copy, Level::Info, Topic::Moved, Some(on_record), text);
    }

    /// A copy of ours that is too many.
    fn double(&mut self, copy: &CopyOnRecord, one: &FoundCopy, keeper: &FoundCopy) {
        let receipt = &one.receipt;
        let until = self.plan.store_until();
        let removed = self.plan.repair.then(|| match receipt {
            // In a Maildir two copies share the name that lasts.
            Receipt::Name(_) if receipt.is_lasting() => {
                let why = "its name may be that of the copy that stays";
                Err(StoreError::NotStored(why.to_owned()))
            }
            _ => self.store.remove_double(&copy.destination, receipt, &keeper.receipt, until),
        });
        let (level, text) = match removed {
            None => (Level::Error, "is one too many".to_owned()),
            Some(Ok(())) => (Level::Repaired, "was one too many and is taken out".to_owned()),
            Some(Err(error)) => {
                (Level::Error, format!("is one too many and cannot be taken out: {error}"))
            }
        };
        self.found(copy, level, Topic::Double, Some(receipt), format!("{receipt} {text}"));
    }

    /// Another delivery has the copy.
    fn busy(&mut self, copy: &CopyOnRecord, text: impl Into<String>) {
        self.found(copy, Level::Info, Topic::Busy, None, text);
    }

    fn found(
        &mut self,
        copy: &CopyOnRecord,
        level: Level,
        topic: Topic,
        receipt: Option<&Receipt>,
        text: impl Into<String>,
    ) {
        match level {
            Level::Info => self.tally.infos += 1,
            Level::Repaired => self.tally.repaired += 1,
            Level::Settled => self.tally.settled += 1,
            Level::Error => self.tally.errors += 1,
        }
        let message_id =
            copy.identity.message_id.as_deref().map(|id| String::from_utf8_lossy(id).into_owned());
        (self.tell)(News::Found(Difference {
            level,
            topic,
            text: text.into(),
            account: copy.destination.account.clone(),
            mailbox: copy.destination.mailbox.clone(),
            message_id,
            message: copy.message,
            receipt: receipt.map(ToString::to_string),
        }));
    }
}

/// Whether a second look after the last lease is still to come.
fn needs_a_look(copy: &CopyOnRecord) -> bool {
    copy.may_be_double && !copy.settled
}

fn search<'a>(
    copy: &'a CopyOnRecord,
    key: &'a Hash,
    on_record: Option<&'a Receipt>,
) -> CopySearch<'a> {
    CopySearch {
        key,
        identity: &copy.identity,
        recorded_at: copy.recorded_at,
        // The ledger does not know how many line ends became CRLF.
        size_bytes: copy.size_bytes..=copy.size_bytes.saturating_mul(2),
        // Nor how many Message-ID fields there are: where it matters, the search must not stop at
        // one that may be blind.
        has_several_ids: false,
        needs_proof: needs_a_look(copy) || matches!(copy.standing, Standing::InDoubt { .. }),
        on_record,
        by_id: false,
        since: None,
        at_most: MOST_COPIES,
    }
}

fn copy_key(copy: &CopyOnRecord) -> Hash {
    copy.identity.copy_key(&copy.destination.account, &copy.destination.mailbox)
}
