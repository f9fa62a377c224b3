//! Records and receipts of deliveries at the same time, in one transaction: one commit for all. Where that comes to nothing,
//! or would keep somebody waiting, each goes alone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::together::{Group, Waited};
use crate::directory::Destination;
use crate::ledger::{
    Attempt, AttemptEnd, Claim, Confirmed, CopyFacts, Entry, LedgerError, Recorded, TOGETHER, ToConfirm, ToRecord,
};
use crate::message::{Facts, Identity};
use crate::store::Receipt;

/// Who waits for longer than that goes alone: whoever is at it may have a session that hangs.
const PATIENCE: Duration = Duration::from_millis(250);
/// Who has less time left than that goes alone: in company it would cut short the others' call.
const LEAST: Duration = Duration::from_secs(5);

/// What all together have come to, or what kept all of them from anything.
type All<T> = Result<Vec<Result<T, LedgerError>>, LedgerError>;

/// What one has come to; `None`: to be done alone.
type Told<T> = Option<Result<T, LedgerError>>;

/// See the module.
pub struct Calls {
    records: Group<OwnedRecord, Told<Recorded>>,
    receipts: Group<OwnedReceipt, Told<Confirmed>>,
    /// The ledger was seen to work together.
    together: AtomicBool,
}

impl Default for Calls {
    fn default() -> Calls {
        Calls {
            records: Group::new(TOGETHER, || None),
            receipts: Group::new(TOGETHER, || None),
            together: AtomicBool::new(false),
        }
    }
}

impl Calls {
    /// What a session knows of that.
    pub fn learn(&self, together: bool) {
        if together && !self.together.load(Ordering::Relaxed) {
            self.together.store(true, Ordering::Relaxed);
        }
    }

    /// Has `one` recorded by `call`, perhaps with others, or by somebody else's; every call must end by the time it is
    /// given. All have the same terms.
    pub fn record(
        &self,
        one: ToRecord<'_>,
        until: Instant,
        call: impl FnOnce(&[ToRecord<'_>], Instant) -> All<Recorded>,
    ) -> Told<Recorded> {
        // Bytes that are kept travel by themselves.
        if one.entry.raw.is_some() || !self.go_together(until) {
            return None;
        }
        match self.records.wait(|| OwnedRecord::of(&one, until), Instant::now() + PATIENCE) {
            Waited::Told(told) => told,
            Waited::InVain => None,
            Waited::Leads(lead) => {
                let all: Vec<_> = [one].into_iter().chain(lead.others().map(OwnedRecord::borrowed)).collect();
                let until = lead.others().map(|other| other.until).fold(until, Instant::min);
                let mut told = told(call(&all, until), all.len());
                let own = told.next().flatten();
                lead.tell(told);
                own
            }
        }
    }

    /// As [`record`](Calls::record), for a receipt.
    pub fn confirm(
        &self,
        one: ToConfirm<'_>,
        until: Instant,
        call: impl FnOnce(&[ToConfirm<'_>], Instant) -> All<Confirmed>,
    ) -> Told<Confirmed> {
        if !self.go_together(until) {
            return None;
        }
        match self.receipts.wait(|| OwnedReceipt::of(&one, until), Instant::now() + PATIENCE) {
            Waited::Told(told) => told,
            Waited::InVain => None,
            Waited::Leads(lead) => {
                let all: Vec<_> = [one].into_iter().chain(lead.others().map(OwnedReceipt::borrowed)).collect();
                let until = lead.others().map(|other| other.until).fold(until, Instant::min);
                let mut told = told(call(&all, until), all.len());
                let own = told.next().flatten();
                lead.tell(told);
                own
            }
        }
    }

    fn go_together(&self, until: Instant) -> bool {
        self.together.load(Ordering::Relaxed) && until.saturating_duration_since(Instant::now()) > LEAST
    }
}

/// What each of `count` is told.
fn told<T>(all: All<T>, count: usize) -> impl Iterator<Item = Told<T>> {
    let (results, failure) = match all {
        Ok(results) => (results, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    let failures = (0..if failure.is_some() { count } else { 0 }).map(move |_| match &failure {
        Some(LedgerError::Unavailable(why)) => Some(Err(LedgerError::Unavailable(why.clone()))),
        Some(LedgerError::Busy(why)) => Some(Err(LedgerError::Busy(why.clone()))),
        Some(LedgerError::Version { found }) => Some(Err(LedgerError::Version { found: *found })),
        // Nothing is on record. It may be one of them that does not go, or two that only do not go together.
        Some(LedgerError::Contended | LedgerError::Refused(_) | LedgerError::Broken(_)) | None => None,
    });
    results.into_iter().map(Some).chain(failures)
}

/// A record that somebody else may make.
struct OwnedRecord {
    identity: Identity,
    facts: Facts,
    size_bytes: u64,
    at: Option<std::time::SystemTime>,
    attempt: Attempt,
    destinations: Vec<Destination>,
    until: Instant,
}

impl OwnedRecord {
    fn of(one: &ToRecord<'_>, until: Instant) -> OwnedRecord {
        OwnedRecord {
            identity: one.entry.identity.clone(),
            facts: one.entry.facts.clone(),
            size_bytes: one.entry.size_bytes,
            at: one.entry.at,
            attempt: one.attempt.clone(),
            destinations: one.destinations.to_vec(),
            until,
        }
    }

    fn borrowed(&self) -> ToRecord<'_> {
        let OwnedRecord { identity, facts, size_bytes, at, attempt, destinations, .. } = self;
        let entry = Entry { identity, facts, size_bytes: *size_bytes, raw: None, at: *at };
        ToRecord { entry, attempt, destinations }
    }
}

/// A receipt that somebody else may put on record.
struct OwnedReceipt {
    claim: Claim,
    receipt: Receipt,
    facts: CopyFacts,
    end: Option<(i64, AttemptEnd)>,
    until: Instant,
}

impl OwnedReceipt {
    fn of(one: &ToConfirm<'_>, until: Instant) -> OwnedReceipt {
        let end = one.end.map(|(attempt, end)| (attempt, end.clone()));
        OwnedReceipt { claim: one.claim, receipt: one.receipt.clone(), facts: one.facts, end, until }
    }

    fn borrowed(&self) -> ToConfirm<'_> {
        let end = self.end.as_ref().map(|(attempt, end)| (*attempt, end));
        ToConfirm { claim: self.claim, receipt: &self.receipt, facts: self.facts, end }
    }
}
