//! Records and receipts of deliveries at the same time, in one transaction: one commit for all.
//! Where that comes to nothing, or would keep somebody waiting, each goes alone.

use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use super::together::{Group, Waited};
use crate::directory::Destination;
use crate::ledger::{
    Attempt, AttemptEnd, Claim, Confirmed, CopyFacts, Entry, LeaseTerms, LedgerError, Recorded,
    TOGETHER, ToConfirm, ToRecord, Together,
};
use crate::message::{Facts, Identity};
use crate::store::Receipt;

/// So many calls at the same time: the server can work on one while it writes the other to disk.
const AT_ONCE: usize = 2;
/// Who is at it for longer than that is waited for no more: its session may hang.
const PATIENCE: Duration = Duration::from_millis(250);
/// A call in company takes no longer than that; then each goes alone.
const IN_COMPANY: Duration = Duration::from_secs(10);
/// Who has less time left than that goes alone at once.
const LEAST: Duration = Duration::from_secs(20);

/// What a call for records and receipts has come to, or what kept all of them from anything.
type Made = Result<Together, LedgerError>;

/// See the module.
pub struct Calls {
    group: Group<Owned, Option<Told>>,
    /// The ledger was seen to work together.
    together: AtomicBool,
}

/// What one has come to.
enum Told {
    Recorded(Result<Recorded, LedgerError>),
    Confirmed(Result<Confirmed, LedgerError>),
}

impl Default for Calls {
    fn default() -> Calls {
        Calls::with(AT_ONCE, PATIENCE)
    }
}

impl Calls {
    fn with(at_once: usize, patience: Duration) -> Calls {
        Calls {
            group: Group::new(at_once, TOGETHER, Some(patience), || None),
            together: AtomicBool::new(false),
        }
    }

    /// What a session knows of that.
    pub fn learn(&self, together: bool) {
        if together && !self.together.load(Ordering::Relaxed) {
            self.together.store(true, Ordering::Relaxed);
        }
    }

    /// Has `one` recorded by `call`, perhaps with others, or by somebody else's; every call must
    /// end by the time it is given, which is before `until`. `None`: to be done alone.
    pub fn record(
        &self,
        one: ToRecord<'_>,
        until: Instant,
        call: impl FnOnce(&[ToRecord<'_>], &[ToConfirm<'_>], Instant) -> Made,
    ) -> Option<Result<Recorded, LedgerError>> {
        // Bytes that are kept travel by themselves.
        if one.entry.raw.is_some() {
            return None;
        }
        match self.join(One::Record(one), until, call) {
            Some(Told::Recorded(told)) => Some(told),
            Some(Told::Confirmed(_)) | None => None,
        }
    }

    /// As [`record`](Calls::record), for a receipt.
    pub fn confirm(
        &self,
        one: ToConfirm<'_>,
        until: Instant,
        call: impl FnOnce(&[ToRecord<'_>], &[ToConfirm<'_>], Instant) -> Made,
    ) -> Option<Result<Confirmed, LedgerError>> {
        match self.join(One::Receipt(one), until, call) {
            Some(Told::Confirmed(told)) => Some(told),
            Some(Told::Recorded(_)) | None => None,
        }
    }

    fn join(
        &self,
        one: One<'_>,
        until: Instant,
        call: impl FnOnce(&[ToRecord<'_>], &[ToConfirm<'_>], Instant) -> Made,
    ) -> Option<Told> {
        if !self.together.load(Ordering::Relaxed)
            || until.saturating_duration_since(Instant::now()) <= LEAST
        {
            return None;
        }
        match self.group.wait(|| one.owned(), until) {
            Waited::Told(told) => told,
            Waited::InVain => None,
            Waited::Leads(lead) if lead.is_alone() => match one {
                One::Record(one) => match call(&[one], &[], until) {
                    Ok(mut made) => made.recorded.pop().map(Told::Recorded),
                    Err(error) => Some(Told::Recorded(Err(error))),
                },
                One::Receipt(one) => match call(&[], &[one], until) {
                    Ok(mut made) => made.confirmed.pop().map(Told::Confirmed),
                    Err(error) => Some(Told::Confirmed(Err(error))),
                },
            },
            Waited::Leads(lead) => {
                let mine = one.owned();
                let (mut records, mut receipts) = (Vec::new(), Vec::new());
                for one in iter::once(&mine).chain(lead.others()) {
                    match one {
                        Owned::Record(one) => records.push(one.borrowed()),
                        Owned::Receipt(one) => receipts.push(one.borrowed()),
                    }
                }
                // Who fails in company is told nothing: one may have kept the others from it, or
                // the session been dead.
                let made = call(&records, &receipts, until.min(Instant::now() + IN_COMPANY))
                    .unwrap_or_default();
                let (mut recorded, mut confirmed) =
                    (made.recorded.into_iter(), made.confirmed.into_iter());
                let mut told = iter::once(&mine).chain(lead.others()).map(|one| match one {
                    Owned::Record(_) => recorded.next().map(Told::Recorded),
                    Owned::Receipt(_) => confirmed.next().map(Told::Confirmed),
                });
                let own = told.next().flatten();
                lead.tell(told);
                own
            }
        }
    }
}

/// A call to be made.
enum One<'a> {
    Record(ToRecord<'a>),
    Receipt(ToConfirm<'a>),
}

impl One<'_> {
    fn owned(&self) -> Owned {
        match self {
            One::Record(one) => Owned::Record(Box::new(OwnedRecord::of(one))),
            One::Receipt(one) => Owned::Receipt(OwnedReceipt::of(one)),
        }
    }
}

/// What another thread needs to make a call for us.
enum Owned {
    Record(Box<OwnedRecord>),
    Receipt(OwnedReceipt),
}

struct OwnedRecord {
    identity: Identity,
    facts: Facts,
    size_bytes: u64,
    nul_runs: Option<Vec<u8>>,
    at: Option<SystemTime>,
    attempt: Attempt,
    destinations: Vec<Destination>,
    terms: LeaseTerms,
}

impl OwnedRecord {
    fn of(one: &ToRecord<'_>) -> OwnedRecord {
        OwnedRecord {
            identity: one.entry.identity.clone(),
            facts: one.entry.facts.clone(),
            size_bytes: one.entry.size_bytes,
            nul_runs: one.entry.nul_runs.map(<[u8]>::to_vec),
            at: one.entry.at,
            attempt: one.attempt.clone(),
            destinations: one.destinations.to_vec(),
            terms: one.terms,
        }
    }

    fn borrowed(&self) -> ToRecord<'_> {
        let OwnedRecord { identity, facts, size_bytes, nul_runs, at, attempt, destinations, terms } =
            self;
        let nul_runs = nul_runs.as_deref();
        let entry =
            Entry { identity, facts, size_bytes: *size_bytes, raw: None, nul_runs, at: *at };
        ToRecord { entry, attempt, destinations, terms: *terms }
    }
}

struct OwnedReceipt {
    claim: Claim,
    receipt: Receipt,
    facts: CopyFacts,
    end: Option<(i64, AttemptEnd)>,
}

impl OwnedReceipt {
    fn of(one: &ToConfirm<'_>) -> OwnedReceipt {
        let end = one.end.map(|(attempt, end)| (attempt, end.clone()));
        OwnedReceipt { claim: one.claim, receipt: one.receipt.clone(), facts: one.facts, end }
    }

    fn borrowed(&self) -> ToConfirm<'_> {
        let end = self.end.as_ref().map(|(attempt, end)| (*attempt, end));
        ToConfirm { claim: self.claim, receipt: &self.receipt, facts: self.facts, end }
    }
}

#[cfg(test)]
mod tests;
