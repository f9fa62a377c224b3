//! Compares the ledger with the mailboxes and repairs what Onedrop wrote. Outside the protocol's
//! promise (a process frozen past its lease, a late server) a mailbox may have two copies; so each
//! placed copy that was leased more than once gets a second look after its last lease. A ledger
//! that lost a commit does not know that a copy was leased twice.
//!
//! Relies on the ledger's rows. It writes only shared copies whose bytes the ledger keeps, by the
//! delivery's own code. It settles a doubt as a delivery does: lease, the copy's lock, look,
//! receipt. It removes a double only if Onedrop wrote it: not the copy on record, equal by
//! identity, with the date that the append sets, not older than the day before the record, not
//! marked as deleted, and only while the copy on record is in the mailbox and unmarked. If the UID
//! on record is another message, it removes nothing. A crash leaves less to do for the next run.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use jiff::{Span, SpanRelativeTo, Timestamp, civil::DateTime, tz::TimeZone};

use crate::clock::Clock;
use crate::deliver::Failure;
use crate::ledger::{Attempt, CopyOnRecord, LedgerError, Standing, VerifyLedger, Window};
use crate::lock_key::Hash;
use crate::message::SoughtVariant;
use crate::store::{AnyStore, CopySearch, FoundCopy, Receipt, StoreError, Unindexed};

mod difference;
mod doubt;
mod handed;
mod in_order;
mod kept;
mod placed;
mod run;
mod settle;

pub use difference::{Difference, Level, News, Tally, Topic};
pub use run::verify;
pub use settle::settle;

/// How long a call to the store may take.
const STORE_TIME: Duration = Duration::from_secs(60);
/// How long a call to the ledger may take.
pub const LEDGER_TIME: Duration = Duration::from_secs(300);
/// And how much longer for each copy that it is to find.
const STORE_TIME_EACH: Duration = Duration::from_millis(50);
/// Rows that a worker holds in memory, and copies that are looked for in a mailbox together.
const PAGE: u32 = 2_000;
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Copies of one message in one mailbox that a run deals with.
const MOST_COPIES: usize = 100;

/// What to verify, and how.
#[derive(Clone, Copy)]
pub struct VerifyTask<'a> {
    pub window: Window,
    /// This account's copies only.
    pub account: Option<&'a str>,
    /// Only the accounts that the ledger has after this one.
    pub behind: Option<&'a str>,
    /// Accounts that are verified at a time.
    pub parallel: usize,
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
    /// Whether copies may be written, asked before each: the folder above all mailboxes may go at
    /// any time.
    pub may_write: &'a (dyn Fn(Instant) -> Result<(), Failure> + Sync),
}

impl VerifyTask<'_> {
    fn ledger_until(&self) -> Instant {
        self.clock.now() + LEDGER_TIME
    }

    fn store_until(&self) -> Instant {
        self.clock.now() + STORE_TIME
    }

    /// The time limit of a call of the store for this number of copies.
    fn store_until_for(&self, copies: usize) -> Instant {
        let copies = u32::try_from(copies).unwrap_or(u32::MAX);
        self.store_until() + STORE_TIME_EACH.saturating_mul(copies)
    }
}

/// The point in time that `text` names, for a window to begin: a duration back from `now` (`24h`,
/// `7d`), a day, a time of this host's clocks (`2026-11-21 03:00`) or an instant.
pub fn since(text: &str, now: SystemTime) -> Option<SystemTime> {
    if let Ok(instant) = text.parse::<Timestamp>() {
        return Some(instant.into());
    }
    if let Ok(time) = text.parse::<DateTime>() {
        return Some(time.to_zoned(TimeZone::system()).ok()?.timestamp().into());
    }
    let back = text.parse::<Span>().ok()?.to_duration(SpanRelativeTo::days_are_24_hours()).ok()?;
    now.checked_sub(Duration::try_from(back).ok()?)
}

/// One worker's part of a run.
struct Verification<'a, 'p> {
    task: &'a VerifyTask<'p>,
    ledger: &'a dyn VerifyLedger,
    store: &'a dyn AnyStore,
    /// An account whose mailboxes cannot be used.
    out_of_reach: Option<String>,
    /// The fields on record, once they distinguish a copy.
    filter_fields: String,
    tell: &'a mut dyn FnMut(News),
    tally: Tally,
}

/// What was found of a page's copies, by their rows; a row that is not in it was not looked for.
type FoundByRow = HashMap<i64, Result<Vec<FoundCopy>, StoreError>>;

/// Why a copy was not verified to the end.
#[derive(Debug, thiserror::Error)]
enum Unverified {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl<'a, 'p> Verification<'a, 'p> {
    fn new(
        task: &'a VerifyTask<'p>,
        ledger: &'a dyn VerifyLedger,
        store: &'a dyn AnyStore,
        tell: &'a mut dyn FnMut(News),
    ) -> Verification<'a, 'p> {
        let (out_of_reach, filter_fields, tally) = (None, String::new(), Tally::default());
        Verification { task, ledger, store, out_of_reach, filter_fields, tell, tally }
    }

    /// Verifies an account's copies, and hands over what is counted after each page of them.
    fn account(&mut self, account: &str, mut count: impl FnMut(Tally)) -> Result<(), LedgerError> {
        let mut last: Option<CopyOnRecord> = None;
        loop {
            let (window, until) = (&self.task.window, self.task.ledger_until());
            let page = self.ledger.copies_to_verify(window, account, last.as_ref(), PAGE, until)?;
            if page.iter().any(|copy| self.is_told_by_fields(copy)) {
                self.filter_fields = self.ledger.filter_fields(false, until)?.list;
            }
            let mut found = self.find_page(&page);
            for copy in &page {
                let found = found.remove(&copy.copy);
                self.each(copy, |this, copy| this.one(copy, found))?;
            }
            count(std::mem::take(&mut self.tally));
            match page.into_iter().next_back() {
                Some(copy) => last = Some(copy),
                None => return Ok(()),
            }
        }
    }

    /// Looks for the page's copies, a mailbox after the other. An error stands for the first copy
    /// of its mailbox, and ends it: the account is out of reach from that copy on.
    fn find_page(&self, page: &[CopyOnRecord]) -> FoundByRow {
        let mut by_mailbox: BTreeMap<&str, Vec<(usize, &CopyOnRecord)>> = BTreeMap::new();
        if page.first().is_some_and(|copy| self.is_out_of_reach(copy)) {
            return FoundByRow::new();
        }
        for (at, copy) in page.iter().enumerate().filter(|(_, copy)| is_looked_for(copy)) {
            by_mailbox.entry(&copy.destination.mailbox).or_default().push((at, copy));
        }
        let mut mailboxes: Vec<_> = by_mailbox.into_values().collect();
        mailboxes.sort_by_key(|copies| copies.first().map(|(at, _)| *at));
        let mut found = FoundByRow::new();
        for copies in mailboxes {
            let copies: Vec<&CopyOnRecord> = copies.into_iter().map(|(_, copy)| copy).collect();
            let Some(first) = copies.first() else { continue };
            let keys: Vec<Hash> = copies.iter().map(|copy| copy_key(copy)).collect();
            let before: Vec<_> =
                copies.iter().map(|copy| self.receipt_before(copy, Some(Duration::ZERO))).collect();
            let sought: Vec<CopySearch<'_>> = (copies.iter().zip(&keys).zip(&before))
                .map(|((copy, key), before)| self.search(copy, key, on_record(copy), before))
                .collect();
            let until = self.task.store_until_for(copies.len());
            match self.store.find_all(&first.destination, &sought, until) {
                Ok(all) => {
                    found.extend(copies.iter().map(|copy| copy.copy).zip(all.into_iter().map(Ok)));
                }
                Err(error) => {
                    found.insert(first.copy, Err(error));
                    break;
                }
            }
        }
        found
    }

    fn is_out_of_reach(&self, copy: &CopyOnRecord) -> bool {
        self.out_of_reach.as_ref() == Some(&copy.destination.account)
    }

    fn each(
        &mut self,
        copy: &CopyOnRecord,
        work: impl FnOnce(&mut Self, &CopyOnRecord) -> Result<(), Unverified>,
    ) -> Result<(), LedgerError> {
        if self.is_out_of_reach(copy) {
            self.tally.failed += 1;
            return Ok(());
        }
        match work(self, copy) {
            Ok(()) => self.tally.copies += 1,
            // Of this copy alone: the others are still to be compared.
            Err(Unverified::Ledger(LedgerError::Forgotten)) => {
                self.tally.copies += 1;
                self.busy(copy, "purged or forgotten meanwhile");
            }
            Err(Unverified::Ledger(LedgerError::Contended)) => {
                self.tally.copies += 1;
                self.busy(copy, "its row is held by another session");
            }
            Err(Unverified::Ledger(error)) => return Err(error),
            Err(Unverified::Store(why)) => {
                self.tally.failed += 1;
                self.out_of_reach = Some(copy.destination.account.clone());
                (self.tell)(News::Failed { destination: copy.destination.clone(), why });
            }
        }
        Ok(())
    }

    /// What is found of a copy is `found`, if it was looked for with others.
    fn one(
        &mut self,
        copy: &CopyOnRecord,
        found: Option<Result<Vec<FoundCopy>, StoreError>>,
    ) -> Result<(), Unverified> {
        match (&copy.standing, &copy.kept) {
            (Standing::Placed { .. }, _) if copy.is_left_to_settle() => Ok(()),
            (Standing::Placed { receipt, .. }, _)
                if receipt.is_elsewhere() && !needs_a_look(copy) =>
            {
                Ok(())
            }
            (Standing::Placed { receipt, ago }, _) => {
                let found = found.unwrap_or_else(|| self.find(copy, Some(receipt)))?;
                self.compare(copy, receipt, *ago, &found)
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
            (Standing::InDoubt { lease_left_over }, None) => {
                let found = found.unwrap_or_else(|| self.find(copy, None))?;
                self.doubt(copy, *lease_left_over, &found)
            }
            (Standing::Free, None) => {
                let text = "not placed: the last attempt gave up before it wrote anything, Postfix \
                            has it or has returned it";
                self.found(copy, Level::Info, Topic::Missing, None, text);
                Ok(())
            }
        }
    }

    /// A copy that has a receipt, with what was found of it.
    fn compare(
        &mut self,
        copy: &CopyOnRecord,
        receipt: &Receipt,
        ago: Duration,
        found: &[FoundCopy],
    ) -> Result<(), Unverified> {
        if receipt.is_handed() {
            self.handed(copy, receipt, ago, found)
        } else if receipt.is_elsewhere() {
            self.elsewhere(copy, receipt, ago, found)
        } else {
            self.placed(copy, receipt, ago, found)
        }
    }

    /// The copies in the mailbox, newest first.
    fn find(
        &self,
        copy: &CopyOnRecord,
        on_record: Option<&Receipt>,
    ) -> Result<Vec<FoundCopy>, StoreError> {
        let (key, before) = (copy_key(copy), self.receipt_before(copy, Some(Duration::ZERO)));
        let sought = self.search(copy, &key, on_record, &before);
        self.store.find(&copy.destination, &sought, self.task.store_until())
    }

    /// What is sought of a copy, if a receipt of its mailbox was on record `before` it.
    fn search<'c>(
        &self,
        copy: &'c CopyOnRecord,
        key: &'c Hash,
        on_record: Option<&'c Receipt>,
        before: &'c Option<Receipt>,
    ) -> CopySearch<'c> {
        CopySearch {
            key,
            identity: &copy.identity,
            recorded_at: copy.recorded_at,
            looks_back: copy.looks_back,
            looked: None,
            handed: self.is_handed(copy).then(|| copy.value.array()),
            variant: self
                .is_told_by_fields(copy)
                .then(|| SoughtVariant::named(copy.destination.variant(), &self.filter_fields)),
            // The ledger does not know how many line ends became CRLF.
            size_bytes: copy.size_bytes..=copy.size_bytes.saturating_mul(2),
            // Nor how many Message-ID fields there are: where it matters, the search must not stop
            // at one that may be blind.
            has_several_ids: false,
            needs_proof: needs_proof(copy),
            on_record,
            by_id: false,
            since: None,
            at_most: MOST_COPIES,
            unindexed: match needs_proof(copy) {
                true => unindexed(before),
                false => Unindexed::Nothing,
            },
        }
    }

    /// Whether only fields that steer filters distinguish it from another copy of its content.
    fn is_told_by_fields(&self, copy: &CopyOnRecord) -> bool {
        copy.looks_back && self.is_handed(copy)
    }

    /// Whether it was handed over, or may have been: then it lies in any mailbox of its account.
    fn is_handed(&self, copy: &CopyOnRecord) -> bool {
        match &copy.standing {
            Standing::Placed { receipt, .. } => receipt.is_handed(),
            Standing::Leased | Standing::InDoubt { .. } | Standing::Free => {
                self.store.hands_over(&copy.destination)
            }
        }
    }

    /// Finds what `find` does, and also what has the same first Message-ID and came since then.
    fn find_by_id(
        &self,
        copy: &CopyOnRecord,
        on_record: Option<&Receipt>,
        since: Option<SystemTime>,
    ) -> Result<Vec<FoundCopy>, StoreError> {
        let earlier = since.map(|since| copy.recorded_at.duration_since(since).unwrap_or_default());
        let (key, before) = (copy_key(copy), self.receipt_before(copy, earlier));
        let search = self.search(copy, &key, on_record, &before);
        let unindexed = unindexed(&before);
        let sought = CopySearch {
            by_id: true,
            since,
            needs_proof: false,
            handed: None,
            variant: None,
            unindexed,
            ..search
        };
        self.store.find(&copy.destination, &sought, self.task.store_until())
    }

    /// A receipt of the copy's mailbox that was on record by this much `earlier` than its message:
    /// what came before it need not be read where the server's search may not show all. `None`:
    /// none is known, or none will do.
    fn receipt_before(&self, copy: &CopyOnRecord, earlier: Option<Duration>) -> Option<Receipt> {
        let numbered = self.store.numbered_by().filter(|_| !self.is_handed(copy))?;
        let is_read = needs_proof(copy) || copy.is_left_to_settle();
        if copy.looks_back || !is_read {
            return None;
        }
        // Whole days, so that the ledger's statements are few.
        let days = earlier?.as_secs().div_ceil(DAY.as_secs());
        let earlier = DAY.saturating_mul(u32::try_from(days).unwrap_or(u32::MAX));
        let until = self.task.ledger_until();
        let place = (&copy.destination, numbered);
        let found = self.ledger.receipt_before(copy.message, place, earlier, until);
        // Without it more is read; a ledger that is away shows at the next call.
        found.unwrap_or_else(|error| {
            tracing::warn!(%error, "no receipt before the copy is known");
            None
        })
    }

    /// Another delivery has the copy.
    fn busy(&mut self, copy: &CopyOnRecord, text: impl Into<String>) {
        self.found(copy, Level::Info, Topic::Busy, None, text);
        self.tally.busy += 1;
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

/// Whether its mailbox is asked for it whatever comes of it.
fn is_looked_for(copy: &CopyOnRecord) -> bool {
    match &copy.standing {
        Standing::Placed { receipt, .. } if receipt.is_elsewhere() => needs_a_look(copy),
        Standing::Placed { .. } => !copy.is_left_to_settle(),
        Standing::InDoubt { .. } => !copy.is_left_to_settle() && copy.kept.is_none(),
        Standing::Leased | Standing::Free => false,
    }
}

fn on_record(copy: &CopyOnRecord) -> Option<&Receipt> {
    match &copy.standing {
        Standing::Placed { receipt, .. } => Some(receipt),
        _ => None,
    }
}

/// Whether all copies of it are to be found.
fn needs_proof(copy: &CopyOnRecord) -> bool {
    needs_a_look(copy) || matches!(copy.standing, Standing::InDoubt { .. })
}

fn unindexed(before: &Option<Receipt>) -> Unindexed<'_> {
    before.as_ref().map_or(Unindexed::All, Unindexed::After)
}

fn copy_key(copy: &CopyOnRecord) -> Hash {
    copy.identity.copy_key(&copy.destination.account, &copy.destination.mailbox)
}
