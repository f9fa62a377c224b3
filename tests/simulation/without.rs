//! Ledger and store as a delivery sees them: calls that came to nothing are made again, and one of
//! its rules may be taken away.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use onedrop::deadline::Deadline;
use onedrop::directory::Destination;
use onedrop::ledger::memory::MemoryLedger;
use onedrop::ledger::{
    Attempt, AttemptEnd, AttemptKey, Audit, Claim, Confirmed, CopyState, Due, Entry, FilterFields,
    LeaseTerms, Ledger, LedgerError, MessageKey, OpenTurn, Proofs, RandomValue, Recorded,
    ToConfirm, Turn, Window,
};
use onedrop::lock_key::{self, Hash};
use onedrop::login::Way;
use onedrop::message::Identity;
use onedrop::store::memory::MemoryStore;
use onedrop::store::{
    Copy, CopySearch, LookBack, LookedBack, Need, Receipt, Slot, Store, StoreError, StoreTraits,
};

use crate::plan::Without;

/// Without the epoch, whoever has the newest claim is as good as the one before; without the copy's
/// lock, no delivery holds it.
pub struct DeliverysLedger {
    pub without: Option<Without>,
    pub calls_again: bool,
    pub ledger: Arc<MemoryLedger>,
    /// The same rows, of which no hook hears.
    pub all: MemoryLedger,
}

impl DeliverysLedger {
    /// A call, and perhaps once more.
    fn call<T>(&self, call: impl Fn() -> Result<T, LedgerError>) -> Result<T, LedgerError> {
        match call() {
            Err(LedgerError::Unavailable(_)) if self.calls_again => call(),
            result => result,
        }
    }

    /// The claim, with the row's epoch.
    fn renewed(&self, claim: &Claim) -> Claim {
        let window = Window { since: UNIX_EPOCH, all: true };
        let (all, until) = (&self.all, Instant::now());
        let accounts = all.accounts_to_verify(&window, None, u32::MAX, until);
        let rows = accounts.into_iter().flatten().map(|account| {
            all.copies_to_verify(&window, &account, None, u32::MAX, until).unwrap_or_default()
        });
        let row = rows.flatten().find(|row| row.copy == claim.copy);
        match (self.without, row) {
            (Some(Without::Epoch | Without::EpochAndCopyLock), Some(row)) => {
                Claim { epoch: row.epoch, ..*claim }
            }
            _ => *claim,
        }
    }
}

/// Of a copy that is written without a row.
const NO_ROW: i64 = -1;

/// A turn in which that a copy goes elsewhere is not put on record.
struct Unrecorded<'a>(Box<dyn OpenTurn + 'a>);

impl OpenTurn for Unrecorded<'_> {
    fn confirm(
        self: Box<Self>,
        receipt: &ToConfirm<'_>,
        until: Instant,
    ) -> Result<Confirmed, LedgerError> {
        match receipt.receipt.is_elsewhere() {
            true => Ok(Confirmed::Recorded),
            false => self.0.confirm(receipt, until),
        }
    }
}

impl Proofs for DeliverysLedger {
    fn is_proven(&self, way: &Way, until: Instant) -> Result<bool, LedgerError> {
        self.ledger.is_proven(way, until)
    }

    fn proven_forms(
        &self,
        server: &str,
        login_user: &str,
        until: Instant,
    ) -> Result<Vec<String>, LedgerError> {
        match self.without {
            Some(Without::Guard) => Ok(Vec::new()),
            _ => self.ledger.proven_forms(server, login_user, until),
        }
    }

    fn note_proof(
        &self,
        way: &Way,
        holds: bool,
        host: &str,
        until: Instant,
    ) -> Result<(), LedgerError> {
        self.ledger.note_proof(way, holds, host, until)
    }

    fn latest_copies(
        &self,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<(Destination, Receipt)>, LedgerError> {
        self.ledger.latest_copies(limit, until)
    }
}

impl Ledger for DeliverysLedger {
    fn time(&self) -> SystemTime {
        self.ledger.time()
    }

    fn record(
        &self,
        entry: &Entry<'_>,
        attempt: &Attempt,
        destinations: &[Destination],
        terms: LeaseTerms,
        until: Instant,
    ) -> Result<Recorded, LedgerError> {
        self.call(|| self.ledger.record(entry, attempt, destinations, terms, until))
    }

    fn claim(
        &self,
        message: &MessageKey,
        destinations: &[Destination],
        owner: &Attempt,
        terms: LeaseTerms,
        until: Instant,
    ) -> Result<Vec<CopyState>, LedgerError> {
        if self.without == Some(Without::InboxRow) && destinations == [Destination::inbox("r0")] {
            let value = RandomValue::default();
            let (epoch, in_doubt, looks_back) = (1, false, false);
            let claim = Claim { copy: NO_ROW, value, epoch, in_doubt, looks_back };
            return Ok(vec![CopyState::Claimed(claim)]);
        }
        self.call(|| self.ledger.claim(message, destinations, owner, terms, until))
    }

    fn take_turn<'a>(
        &'a self,
        claim: &Claim,
        copy_key: &Hash,
        until: Instant,
    ) -> Result<Turn<'a>, LedgerError> {
        let nobodys = lock_key::name_hash(&format!("{:?}", RandomValue::default()));
        let key = match self.without {
            Some(Without::CopyLock | Without::EpochAndCopyLock) => &nobodys,
            _ => copy_key,
        };
        match self.ledger.take_turn(&self.renewed(claim), key, until)? {
            Turn::Ours { in_doubt, turn } if self.without == Some(Without::Elsewhere) => {
                Ok(Turn::Ours { in_doubt, turn: Box::new(Unrecorded(turn)) })
            }
            turn => Ok(turn),
        }
    }

    fn confirm(&self, one: &ToConfirm<'_>, until: Instant) -> Result<Confirmed, LedgerError> {
        if one.claim.copy == NO_ROW {
            return Ok(Confirmed::Recorded);
        }
        self.call(|| self.ledger.confirm(one, until))
    }

    fn release(&self, claims: &[Claim], until: Instant) -> Result<(), LedgerError> {
        let claims: Vec<Claim> = claims.iter().map(|claim| self.renewed(claim)).collect();
        self.call(|| self.ledger.release(&claims, until))
    }

    fn keep(
        &self,
        message: &MessageKey,
        bytes: &[u8],
        why: &str,
        until: Instant,
    ) -> Result<bool, LedgerError> {
        self.ledger.keep(message, bytes, why, until)
    }

    fn kept(&self, message: &MessageKey, until: Instant) -> Result<Option<String>, LedgerError> {
        self.ledger.kept(message, until)
    }

    fn filter_fields(&self, anew: bool, until: Instant) -> Result<FilterFields, LedgerError> {
        self.ledger.filter_fields(anew, until)
    }

    fn has_copy(
        &self,
        identity: &Identity,
        destination: &Destination,
        until: Instant,
    ) -> Result<bool, LedgerError> {
        self.ledger.has_copy(identity, destination, until)
    }

    fn has_placed_copy(&self, account: &str, until: Instant) -> Result<bool, LedgerError> {
        self.ledger.has_placed_copy(account, until)
    }

    fn account_reached(
        &self,
        addresses: &[&str],
        until: Instant,
    ) -> Result<Option<String>, LedgerError> {
        self.ledger.account_reached(addresses, until)
    }

    fn keep_until_due(
        &self,
        message: &MessageKey,
        destination: &Destination,
        kept: (&[u8], &str),
        after: Duration,
        until: Instant,
    ) -> Result<Due, LedgerError> {
        self.ledger.keep_until_due(message, destination, kept, after, until)
    }

    fn receipt_before(
        &self,
        message: i64,
        place: (&Destination, &str),
        earlier: Duration,
        until: Instant,
    ) -> Result<Option<Receipt>, LedgerError> {
        self.call(|| self.ledger.receipt_before(message, place, earlier, until))
    }

    fn finish(
        &self,
        identity: &Identity,
        recorded: Option<(AttemptKey, &Attempt, &AttemptEnd)>,
        others: &[(Attempt, AttemptEnd)],
        until: Instant,
    ) -> Result<(), LedgerError> {
        self.ledger.finish(identity, recorded, others, until)
    }
}

/// Without the look, none finds anything; without the undo, nothing is taken out.
pub struct DeliverysStore {
    pub without: Option<Without>,
    pub store: MemoryStore,
}

struct DeliverysSlot<'a> {
    without: Option<Without>,
    slot: Box<dyn Slot + 'a>,
}

impl Store for DeliverysStore {
    fn traits(&self) -> StoreTraits {
        self.store.traits()
    }

    fn prepare(&self, account: &str, until: Instant) {
        self.store.prepare(account, until);
    }

    fn let_go(&self, account: &str) {
        self.store.let_go(account);
    }

    fn reserve<'a>(
        &'a self,
        destination: &'a Destination,
        copy: Copy<'a>,
        need: Need,
        deadline: &'a Deadline,
    ) -> Result<Option<Box<dyn Slot + 'a>>, StoreError> {
        let slot = self.store.reserve(destination, copy, need, deadline)?;
        let without = self.without;
        Ok(slot.map(|slot| Box::new(DeliverysSlot { without, slot }) as Box<dyn Slot>))
    }

    fn look_back(
        &self,
        destination: &Destination,
        sought: &LookBack,
        until: Instant,
    ) -> Result<Option<LookedBack>, StoreError> {
        match self.without {
            Some(Without::Look | Without::Value) => Ok(None),
            _ => self.store.look_back(destination, sought, until),
        }
    }

    fn remove(
        &self,
        destination: &Destination,
        receipt: &Receipt,
        sought: Option<&CopySearch<'_>>,
        until: Instant,
    ) -> Result<(), StoreError> {
        match self.without {
            Some(Without::Undo) => Err(StoreError::NotStored("nothing is undone".to_owned())),
            _ => self.store.remove(destination, receipt, sought, until),
        }
    }
}

impl Slot for DeliverysSlot<'_> {
    fn look(&mut self, until: Instant) -> Result<Option<Receipt>, StoreError> {
        let found = self.slot.look(until)?;
        match self.without {
            Some(Without::Look) => Ok(None),
            // There always is one.
            Some(Without::Value) => Ok(found.or_else(|| Some(Receipt::handed("an equal one")))),
            _ => Ok(found),
        }
    }

    fn found_try(&self) -> Option<i64> {
        self.slot.found_try()
    }

    fn append(&mut self) -> Result<Receipt, StoreError> {
        match self.slot.append() {
            Err(StoreError::InDoubt(why)) if self.without == Some(Without::Doubt) => {
                Err(StoreError::NotStored(why))
            }
            appended => appended,
        }
    }
}
