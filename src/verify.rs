//! Compares the ledger with the mailboxes, and mends what is ours to mend. Outside of what the protocol promises (a
//! process frozen past its lease, a server that appends late, a ledger that forgot a commit) two copies of a message may
//! stand; here each placed copy that was leased more than once gets its second look, after its last lease.
//!
//! Relies on the ledger's rows alone, and has no message's bytes: it never writes a copy. A doubt is settled as a delivery
//! would settle it (a lease that nobody has, the copy's lock, the look, the receipt), so that the two cannot meet. What is
//! too many goes only if it is ours: another than the copy on record, equal by identity, not older than the day before
//! the message was recorded, with exactly the date that our append sets, not marked as deleted, and while the copy that
//! stays is in its mailbox, not marked as deleted either. A crash leaves less to do for the next run.

use std::time::{Duration, Instant};

use crate::ledger::{
    Attempt, Claim, Confirmed, CopyFacts, CopyOnRecord, CopyState, LeaseTerms, Ledger, LedgerError, SCHEMA_VERSION,
    Standing, Turn, Window,
};
use crate::lock_key::Hash;
use crate::store::{Found, Receipt, Sought, Store, StoreError};

mod finding;
mod since;

pub use finding::{Finding, Level, News, Tally, Topic};
pub use since::since;

/// How long a call to the store may take.
const STORE_TIME: Duration = Duration::from_secs(60);
/// For how long a session with the ledger is opened.
pub const LEDGER_TIME: Duration = Duration::from_secs(300);
/// Rows that are held in memory.
const PAGE: u32 = 500;
/// Copies of one message in one mailbox that a run deals with.
const MOST_COPIES: usize = 100;

/// What to verify, and how.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    pub window: Window<'a>,
    /// Mend what is found.
    pub repair: bool,
    /// How long a lease is: until it has passed, whoever had one before may still write.
    pub lease: Duration,
    /// Who takes leases.
    pub by: &'a Attempt,
}

/// Verifies everything in the window, an account after the other, each with a store of its own from `open_store`.
/// `ledger` was opened for [`LEDGER_TIME`] just now.
///
/// # Errors
/// The ledger cannot be read or written. What the store refuses is told and counted.
pub fn verify<'a>(
    plan: &Plan<'a>,
    ledger: &mut dyn Ledger,
    open_store: &mut dyn FnMut() -> Result<Box<dyn Store>, StoreError>,
    tell: &mut dyn FnMut(News<'_>),
) -> Result<Tally, LedgerError> {
    let found = ledger.schema_version()?;
    if found != SCHEMA_VERSION {
        return Err(LedgerError::Version { found });
    }
    let mut verification = Verification {
        plan,
        ledger,
        ledger_until: Instant::now() + LEDGER_TIME,
        store: None,
        account: None,
        is_out_of_reach: false,
        tell,
        tally: Tally::default(),
    };
    let mut last: Option<CopyOnRecord> = None;
    loop {
        verification.renew_ledger()?;
        let page = verification.ledger.copies_to_verify(&plan.window, last.as_ref(), PAGE)?;
        for copy in &page {
            verification.one(copy, open_store)?;
        }
        match page.into_iter().next_back() {
            Some(copy) => last = Some(copy),
            None => return Ok(verification.tally),
        }
    }
}

struct Verification<'a, 'p> {
    plan: &'a Plan<'p>,
    ledger: &'a mut dyn Ledger,
    ledger_until: Instant,
    /// Of the account at hand.
    store: Option<Box<dyn Store>>,
    account: Option<String>,
    is_out_of_reach: bool,
    tell: &'a mut dyn FnMut(News<'_>),
    tally: Tally,
}

/// Why a copy was not verified to the end.
enum Trouble {
    Store(StoreError),
    Ledger(LedgerError),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Trouble::Store(error)
    }
}

impl From<LedgerError> for Trouble {
    fn from(error: LedgerError) -> Self {
        Trouble::Ledger(error)
    }
}

impl Verification<'_, '_> {
    /// A session's calls end at a fixed time, and a window may hold hours of work.
    fn renew_ledger(&mut self) -> Result<(), LedgerError> {
        if self.ledger_until.saturating_duration_since(Instant::now()) < LEDGER_TIME / 2 {
            self.ledger_until = Instant::now() + LEDGER_TIME;
            self.ledger.reopen(self.ledger_until)?;
        }
        Ok(())
    }

    fn one(
        &mut self,
        copy: &CopyOnRecord,
        open_store: &mut dyn FnMut() -> Result<Box<dyn Store>, StoreError>,
    ) -> Result<(), LedgerError> {
        (self.tell)(News::Next { copy, tally: &self.tally });
        let account = &copy.destination.account;
        if self.account.as_ref() != Some(account) {
            // Ends the last account's session.
            self.store = None;
            self.account = Some(account.clone());
            self.is_out_of_reach = false;
        }
        self.renew_ledger()?;
        let outcome = match copy.standing {
            _ if self.is_out_of_reach => {
                self.tally.failed += 1;
                return Ok(());
            }
            Standing::Leased => {
                self.found(copy, Level::Info, Topic::Busy, None, format!("leased by {}", copy.owner));
                Ok(())
            }
            Standing::Free => {
                let text = "not placed: the last attempt gave up before it wrote anything, Postfix has it".to_owned();
                self.found(copy, Level::Info, Topic::Missing, None, text);
                Ok(())
            }
            Standing::Placed { .. } | Standing::InDoubt { .. } => self.compare(copy, open_store),
        };
        match outcome {
            Ok(()) => self.tally.copies += 1,
            Err(Trouble::Ledger(error)) => return Err(error),
            Err(Trouble::Store(why)) => {
                self.tally.failed += 1;
                self.is_out_of_reach = true;
                (self.tell)(News::Failed { destination: &copy.destination, why });
            }
        }
        Ok(())
    }

    fn compare(
        &mut self,
        copy: &CopyOnRecord,
        open_store: &mut dyn FnMut() -> Result<Box<dyn Store>, StoreError>,
    ) -> Result<(), Trouble> {
        if self.store.is_none() {
            self.store = Some(open_store()?);
        }
        match &copy.standing {
            Standing::Placed { receipt, ago } => {
                let found = self.find(copy, Some(receipt))?;
                self.placed(copy, receipt, *ago, &found)
            }
            Standing::InDoubt { lease_left_over } => self.doubt(copy, *lease_left_over),
            Standing::Leased | Standing::Free => Ok(()),
        }
    }

    /// The copies in the mailbox, newest first.
    fn find(&mut self, copy: &CopyOnRecord, on_record: Option<&Receipt>) -> Result<Vec<Found>, StoreError> {
        let sought = Sought {
            key: &copy_key(copy),
            identity: &copy.identity,
            recorded_at: copy.recorded_at,
            // The ledger does not know how many line ends became CRLF.
            size_bytes: copy.size_bytes..=copy.size_bytes.saturating_mul(2),
            has_one_id: true,
            on_record,
            at_most: MOST_COPIES,
        };
        match &mut self.store {
            Some(store) => store.find(&copy.destination, &sought, Instant::now() + STORE_TIME),
            None => Err(StoreError::NotStored("no store".to_owned())),
        }
    }

    /// A copy that has a receipt: is it there, is it alone?
    fn placed(
        &mut self,
        copy: &CopyOnRecord,
        on_record: &Receipt,
        ago: Duration,
        found: &[Found],
    ) -> Result<(), Trouble> {
        // What its owner has marked as deleted may be gone at any time: nothing else is removed for it.
        let standing: Vec<&Found> = found.iter().filter(|one| !one.marked_deleted).collect();
        let named = standing.iter().find(|one| one.receipt == *on_record);
        let keeper = named.or_else(|| standing.iter().rev().find(|one| one.has_our_date)).copied();
        if named.is_none() && *on_record != Receipt::Unnamed {
            self.moved(copy, on_record, found, keeper);
        }
        let mut too_many = 0;
        for one in standing.iter().filter(|one| keeper.is_none_or(|keeper| one.receipt != keeper.receipt)) {
            // Where one delivery at most can have written, an equal copy is its owner's, even with our date: a mail program
            // may save what it sent within the same second.
            if keeper.is_some() && one.has_our_date && copy.may_be_double {
                too_many += u64::from(!self.double(copy, one));
            } else {
                let text = format!("{} is equal and not one of ours: its owner's own copy? It stays", one.receipt);
                self.found(copy, Level::Info, Topic::Other, Some(&one.receipt), text);
            }
        }
        let receipt = keeper.map_or(on_record, |keeper| &keeper.receipt);
        let is_new_name = self.plan.repair && receipt != on_record;
        let needs_a_look = copy.may_be_double && !copy.settled;
        if too_many == 0 && ago >= self.plan.lease && (needs_a_look || is_new_name) {
            let receipt = if is_new_name { receipt } else { on_record };
            let settled = self.ledger.settle(copy, receipt)?;
            self.tally.settled += u64::from(settled && needs_a_look);
        }
        Ok(())
    }

    fn moved(&mut self, copy: &CopyOnRecord, on_record: &Receipt, found: &[Found], keeper: Option<&Found>) {
        let text = match keeper {
            _ if found.iter().any(|one| one.receipt == *on_record) => {
                format!("{on_record} is marked as deleted by its owner")
            }
            Some(keeper) => format!("{on_record} is not in the mailbox, the copy is there as {}", keeper.receipt),
            None => format!("{on_record} is not in the mailbox: moved or deleted by its owner"),
        };
        self.found(copy, Level::Info, Topic::Moved, Some(on_record), text);
    }

    /// A copy of ours that is too many; true if it is gone.
    fn double(&mut self, copy: &CopyOnRecord, one: &Found) -> bool {
        let receipt = &one.receipt;
        let until = Instant::now() + STORE_TIME;
        let removed = match &mut self.store {
            Some(store) if self.plan.repair => Some(store.remove(&copy.destination, receipt, until)),
            _ => None,
        };
        let (level, text) = match &removed {
            None => (Level::Error, format!("{receipt} is one too many")),
            Some(Ok(())) => (Level::Repaired, format!("{receipt} was one too many and is taken out")),
            Some(Err(error)) => (Level::Error, format!("{receipt} is one too many and cannot be taken out: {error}")),
        };
        self.found(copy, level, Topic::Double, Some(receipt), text);
        level == Level::Repaired
    }

    /// A copy that may stand in its mailbox, under no lease.
    fn doubt(&mut self, copy: &CopyOnRecord, lease_left_over: bool) -> Result<(), Trouble> {
        let topic = if lease_left_over { Topic::Lease } else { Topic::Doubt };
        let why = if lease_left_over {
            format!("in doubt since the lease of {} ran out", copy.owner)
        } else {
            "in doubt since a lease before the last one".to_owned()
        };
        let found = self.find(copy, None)?;
        let Some(seen) = to_record(&found) else {
            let text = format!("{why}, no copy found: the next attempt to deliver it writes one");
            self.found(copy, Level::Error, topic, None, text);
            return Ok(());
        };
        if !self.plan.repair {
            let text = format!("{why}, a copy is there as {}: repair, or the next attempt, records it", seen.receipt);
            self.found(copy, Level::Error, topic, Some(&seen.receipt), text);
            return Ok(());
        }
        let Some(claim) = self.claim(copy)? else {
            self.found(copy, Level::Info, Topic::Busy, None, "leased or placed meanwhile".to_owned());
            return Ok(());
        };
        // Looked for again, now that nobody else may write.
        let found = match self.find(copy, None) {
            Ok(found) => found,
            Err(error) => {
                self.give_back(&claim)?;
                return Err(error.into());
            }
        };
        let Some(seen) = to_record(&found) else {
            self.give_back(&claim)?;
            let text = format!("{why}, a copy was there and is gone: the next attempt to deliver it writes one");
            self.found(copy, Level::Error, topic, None, text);
            return Ok(());
        };
        let facts = CopyFacts { nul_replaced: false, found_by_look: true };
        match self.ledger.confirm(&claim, &seen.receipt, facts, None)? {
            Confirmed::Recorded => {
                let text = format!("was {why}, is recorded as {}", seen.receipt);
                self.found(copy, Level::Repaired, topic, Some(&seen.receipt), text);
                let receipt = seen.receipt.clone();
                // Its second look comes after the lease that was taken just now.
                self.placed(copy, &receipt, Duration::ZERO, &found)
            }
            Confirmed::EpochGone { .. } => {
                self.found(copy, Level::Info, Topic::Busy, None, "leased or placed meanwhile".to_owned());
                Ok(())
            }
        }
    }

    /// Leases a copy and takes its lock, as a delivery does; `None` when somebody else is at it.
    fn claim(&mut self, copy: &CopyOnRecord) -> Result<Option<Claim>, LedgerError> {
        let terms = LeaseTerms { lease: self.plan.lease, join: false };
        let wanted = std::slice::from_ref(&copy.destination);
        let states = self.ledger.claim(copy.message, wanted, self.plan.by, terms)?;
        let Some(CopyState::Claimed(claim)) = states.into_iter().next() else { return Ok(None) };
        match self.ledger.take_turn(&claim, &copy_key(copy)) {
            Ok(Turn::Ours { .. }) => Ok(Some(claim)),
            Ok(Turn::Placed(_) | Turn::EpochGone) => Ok(None),
            Err(LedgerError::Contended) => {
                self.ledger.release(std::slice::from_ref(&claim))?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Nothing was written under the claim: the row is as much in doubt as before.
    fn give_back(&mut self, claim: &Claim) -> Result<(), LedgerError> {
        self.ledger.leave()?;
        self.ledger.release(std::slice::from_ref(claim))
    }

    fn found(&mut self, copy: &CopyOnRecord, level: Level, topic: Topic, receipt: Option<&Receipt>, text: String) {
        match level {
            Level::Info => self.tally.infos += 1,
            Level::Repaired => self.tally.repaired += 1,
            Level::Error => self.tally.errors += 1,
        }
        let message_id = copy.identity.message_id.as_deref().map(|id| String::from_utf8_lossy(id).into_owned());
        (self.tell)(News::Found(Finding {
            level,
            topic,
            text,
            account: copy.destination.account.clone(),
            mailbox: copy.destination.mailbox.clone(),
            message_id,
            message: copy.message,
            receipt: receipt.map(ToString::to_string),
        }));
    }
}

fn copy_key(copy: &CopyOnRecord) -> Hash {
    copy.identity.copy_key(&copy.destination.account, &copy.destination.mailbox)
}

/// Which of the copies found becomes the one on record: the oldest of ours, else what a delivery's look would take.
fn to_record(found: &[Found]) -> Option<&Found> {
    let ours = |one: &&Found| one.has_our_date && !one.marked_deleted;
    found.iter().rev().find(ours).or_else(|| found.first())
}
