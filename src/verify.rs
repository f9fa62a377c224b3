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

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use jiff::{Span, SpanRelativeTo, Timestamp, civil::Date, tz::TimeZone};

use crate::clock::Clock;
use crate::ledger::{
    AnyLedger, Attempt, CopyOnRecord, LedgerError, SCHEMA_VERSION, Standing, Window,
};
use crate::lock_key::Hash;
use crate::store::{AnyStore, CopySearch, FoundCopy, Proof, Receipt, StoreError};

use in_order::InOrder;

mod difference;
mod doubt;
mod in_order;
mod kept;
mod settle;

pub use difference::{Difference, Level, News, Tally, Topic};
pub use settle::settle;

/// How long a call to the store may take.
const STORE_TIME: Duration = Duration::from_secs(60);
/// How long a call to the ledger may take.
pub const LEDGER_TIME: Duration = Duration::from_secs(300);
/// And how much longer for each copy that it is to find.
const STORE_TIME_EACH: Duration = Duration::from_millis(50);
/// Rows that a worker holds in memory, and copies that are looked for in a mailbox together.
const PAGE: u32 = 2_000;
/// Accounts that are read from the ledger at a time.
const ACCOUNTS: u32 = 500;
/// Copies of one message in one mailbox that a run deals with.
const MOST_COPIES: usize = 100;
/// A copy that no look has seen for so long is taken for deleted by its owner, and not looked for
/// any more.
const OUT_OF_SIGHT: Duration = Duration::from_secs(7 * 24 * 3600);

/// What to verify, and how.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    pub window: Window,
    /// This account's copies only.
    pub account: Option<&'a str>,
    /// Only the accounts that the ledger has behind this one.
    pub behind: Option<&'a str>,
    /// So many accounts at a time.
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
}

/// Verifies everything in the window, some accounts at a time; what is found is told in the order
/// of the accounts, and of an account in that of its messages.
///
/// # Errors
/// The ledger cannot be read or written. What the store refuses is told and counted.
pub fn verify(
    plan: &Plan<'_>,
    ledger: &dyn AnyLedger,
    store: &dyn AnyStore,
    tell: &mut (dyn FnMut(News) + Send),
) -> Result<Tally, LedgerError> {
    check_version(plan, ledger)?;
    let accounts = AccountQueue {
        read: plan.account.map(str::to_owned).into_iter().collect(),
        taken: 0,
        last: plan.behind.map(str::to_owned),
        is_over: plan.account.is_some(),
        error: None,
    };
    let told = InOrder::new(tell);
    let run = Run { plan, ledger, store, accounts: Mutex::new(accounts), told: &told };
    plan.clock.side_by_side(plan.parallel, &|| run.work());
    let ended = run.accounts().error.take();
    ended.map_or(Ok(told.tally()), Err)
}

fn check_version(plan: &Plan<'_>, ledger: &dyn AnyLedger) -> Result<(), LedgerError> {
    match ledger.schema_version(plan.ledger_until())? {
        SCHEMA_VERSION => Ok(()),
        found => Err(LedgerError::Version { found }),
    }
}

/// What the workers of a verification share.
struct Run<'a> {
    plan: &'a Plan<'a>,
    ledger: &'a dyn AnyLedger,
    store: &'a dyn AnyStore,
    accounts: Mutex<AccountQueue>,
    told: &'a InOrder<'a>,
}

/// The accounts that are still to be verified.
struct AccountQueue {
    /// Read from the ledger, and nobody's yet.
    read: VecDeque<String>,
    /// How many were somebody's.
    taken: usize,
    /// The last that was read.
    last: Option<String>,
    /// There are no more to be read.
    is_over: bool,
    /// Why the run ends early.
    error: Option<LedgerError>,
}

impl Run<'_> {
    fn work(&self) {
        while let Some((number, account)) = self.next() {
            let mut tell = |news| self.told.tell(number, news);
            let mut verification = Verification::new(self.plan, self.ledger, self.store, &mut tell);
            let ended = verification.account(&account, |tally| self.told.count(&account, tally));
            match ended {
                Ok(()) => self.told.over(number, &account),
                Err(error) => {
                    let mut accounts = self.accounts();
                    accounts.is_over = true;
                    accounts.read.clear();
                    accounts.error.get_or_insert(error);
                    drop(accounts);
                    self.told.end();
                }
            }
        }
    }

    /// An account for a worker, with its number in their order.
    fn next(&self) -> Option<(usize, String)> {
        let mut accounts = self.accounts();
        if accounts.read.is_empty() && !accounts.is_over {
            let (window, until) = (&self.plan.window, self.plan.ledger_until());
            let last = accounts.last.as_deref();
            match self.ledger.accounts_to_verify(window, last, ACCOUNTS, until) {
                Ok(more) => {
                    accounts.is_over = more.is_empty();
                    accounts.last = more.last().cloned().or(accounts.last.take());
                    accounts.read = more.into();
                }
                Err(error) => {
                    accounts.is_over = true;
                    accounts.error.get_or_insert(error);
                }
            }
        }
        let account = accounts.read.pop_front()?;
        accounts.taken += 1;
        Some((accounts.taken - 1, account))
    }

    fn accounts(&self) -> MutexGuard<'_, AccountQueue> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Plan<'_> {
    fn ledger_until(&self) -> Instant {
        self.clock.now() + LEDGER_TIME
    }

    fn store_until(&self) -> Instant {
        self.clock.now() + STORE_TIME
    }

    /// For so many copies at once.
    fn store_until_for(&self, copies: usize) -> Instant {
        let copies = u32::try_from(copies).unwrap_or(u32::MAX);
        self.store_until() + STORE_TIME_EACH.saturating_mul(copies)
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

/// One worker's part of a run.
struct Verification<'a, 'p> {
    plan: &'a Plan<'p>,
    ledger: &'a dyn AnyLedger,
    store: &'a dyn AnyStore,
    /// An account whose mailboxes cannot be used.
    out_of_reach: Option<String>,
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
        plan: &'a Plan<'p>,
        ledger: &'a dyn AnyLedger,
        store: &'a dyn AnyStore,
        tell: &'a mut dyn FnMut(News),
    ) -> Verification<'a, 'p> {
        Verification { plan, ledger, store, out_of_reach: None, tell, tally: Tally::default() }
    }

    /// Verifies an account's copies, and hands over what is counted after each page of them.
    fn account(&mut self, account: &str, mut count: impl FnMut(Tally)) -> Result<(), LedgerError> {
        let mut last: Option<CopyOnRecord> = None;
        loop {
            let (window, until) = (&self.plan.window, self.plan.ledger_until());
            let page = self.ledger.copies_to_verify(window, account, last.as_ref(), PAGE, until)?;
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
            let sought: Vec<CopySearch<'_>> = (copies.iter().zip(&keys))
                .map(|(copy, key)| search(copy, key, on_record(copy)))
                .collect();
            let until = self.plan.store_until_for(copies.len());
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
            (Standing::Placed { receipt, ago }, _) => {
                let found = found.unwrap_or_else(|| self.find(copy, Some(receipt)))?;
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

    /// The copies in the mailbox, newest first.
    fn find(
        &self,
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

/// Whether its mailbox is asked for it whatever comes of it.
fn is_looked_for(copy: &CopyOnRecord) -> bool {
    match copy.standing {
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

fn search<'a>(
    copy: &'a CopyOnRecord,
    key: &'a Hash,
    on_record: Option<&'a Receipt>,
) -> CopySearch<'a> {
    CopySearch {
        key,
        identity: &copy.identity,
        recorded_at: copy.recorded_at,
        looks_back: copy.looks_back,
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
