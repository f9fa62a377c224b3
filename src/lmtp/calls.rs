//! Records and receipts of deliveries at the same time, in one transaction: one commit for all. Where that comes to nothing,
//! or would keep somebody waiting, each goes alone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

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
    records: Shared<OwnedRecord, Recorded>,
    receipts: Shared<OwnedReceipt, Confirmed>,
    /// The ledger was seen to work together.
    together: AtomicBool,
}

impl Default for Calls {
    fn default() -> Calls {
        Calls::with(PATIENCE)
    }
}

impl Calls {
    fn with(patience: Duration) -> Calls {
        let together = AtomicBool::new(false);
        Calls { records: Shared::new(patience), receipts: Shared::new(patience), together }
    }

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
        let goes = one.entry.raw.is_none() && self.go_together(until);
        goes.then(|| self.records.join(one, until, call)).flatten()
    }

    /// As [`record`](Calls::record), for a receipt.
    pub fn confirm(
        &self,
        one: ToConfirm<'_>,
        until: Instant,
        call: impl FnOnce(&[ToConfirm<'_>], Instant) -> All<Confirmed>,
    ) -> Told<Confirmed> {
        self.go_together(until).then(|| self.receipts.join(one, until, call)).flatten()
    }

    fn go_together(&self, until: Instant) -> bool {
        self.together.load(Ordering::Relaxed) && until.saturating_duration_since(Instant::now()) > LEAST
    }
}

/// Calls of one kind.
struct Shared<O, T> {
    patience: Duration,
    group: Group<Job<O>, Told<T>>,
}

/// A call that somebody else may make, and when it must have ended.
struct Job<O> {
    owned: O,
    until: Instant,
}

impl<O: Owned, T> Shared<O, T> {
    fn new(patience: Duration) -> Shared<O, T> {
        Shared { patience, group: Group::new(TOGETHER, || None) }
    }

    fn join(
        &self,
        one: O::Borrowed<'_>,
        until: Instant,
        call: impl FnOnce(&[O::Borrowed<'_>], Instant) -> All<T>,
    ) -> Told<T> {
        match self.group.wait(|| Job { owned: O::of(&one), until }, Instant::now() + self.patience) {
            Waited::Told(told) => told,
            Waited::InVain => None,
            Waited::Leads(lead) if lead.is_alone() => told(call(&[one], until), 1).next().flatten(),
            Waited::Leads(lead) => {
                let mine = O::of(&one);
                let all: Vec<_> = [&mine].into_iter().chain(lead.others().map(|job| &job.owned)).collect();
                let all: Vec<_> = all.into_iter().map(O::borrowed).collect();
                let until = lead.others().map(|job| job.until).fold(until, Instant::min);
                let mut told = told(call(&all, until), all.len());
                let own = told.next().flatten();
                lead.tell(told);
                own
            }
        }
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

/// What another thread needs to make a call for us.
trait Owned: 'static {
    type Borrowed<'a>;

    fn of(one: &Self::Borrowed<'_>) -> Self;

    fn borrowed(&self) -> Self::Borrowed<'_>;
}

struct OwnedRecord {
    identity: Identity,
    facts: Facts,
    size_bytes: u64,
    at: Option<SystemTime>,
    attempt: Attempt,
    destinations: Vec<Destination>,
}

impl Owned for OwnedRecord {
    type Borrowed<'a> = ToRecord<'a>;

    fn of(one: &ToRecord<'_>) -> OwnedRecord {
        OwnedRecord {
            identity: one.entry.identity.clone(),
            facts: one.entry.facts.clone(),
            size_bytes: one.entry.size_bytes,
            at: one.entry.at,
            attempt: one.attempt.clone(),
            destinations: one.destinations.to_vec(),
        }
    }

    fn borrowed(&self) -> ToRecord<'_> {
        let OwnedRecord { identity, facts, size_bytes, at, attempt, destinations } = self;
        let entry = Entry { identity, facts, size_bytes: *size_bytes, raw: None, at: *at };
        ToRecord { entry, attempt, destinations }
    }
}

struct OwnedReceipt {
    claim: Claim,
    receipt: Receipt,
    facts: CopyFacts,
    end: Option<(i64, AttemptEnd)>,
}

impl Owned for OwnedReceipt {
    type Borrowed<'a> = ToConfirm<'a>;

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
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    const LATER: Duration = Duration::from_secs(60);

    fn calls(patience: Duration) -> Calls {
        let calls = Calls::with(patience);
        calls.learn(true);
        calls
    }

    /// Confirms copy `copy` by `call`, in `left`.
    fn confirm(
        calls: &Calls,
        copy: i64,
        left: Duration,
        call: impl FnOnce(&[ToConfirm<'_>], Instant) -> All<Confirmed>,
    ) -> Told<Confirmed> {
        let claim = Claim { copy, epoch: 1, in_doubt: false };
        let one = ToConfirm { claim, receipt: &Receipt::Unnamed, facts: CopyFacts::default(), end: None };
        calls.confirm(one, Instant::now() + left, call)
    }

    /// Odd copies are on record, even ones are gone.
    fn by_number(all: &[ToConfirm<'_>]) -> All<Confirmed> {
        let confirmed = |one: &ToConfirm<'_>| match one.claim.copy % 2 {
            1 => Confirmed::Recorded,
            _ => Confirmed::EpochGone { recorded: None },
        };
        Ok(all.iter().map(|one| Ok(confirmed(one))).collect())
    }

    /// What copies 1 to 4 come to when `call` is made for them while copy 0 is under way, until that many wait.
    fn meanwhile(
        calls: &Calls,
        wait: usize,
        call: impl Fn(&[ToConfirm<'_>], Instant) -> All<Confirmed> + Sync,
    ) -> Vec<Told<Confirmed>> {
        let (begun, has_begun) = channel();
        let (go, gone) = channel::<()>();
        thread::scope(|scope| {
            let first = scope.spawn(move || {
                confirm(calls, 0, LATER, |all, _| {
                    begun.send(()).unwrap();
                    gone.recv().unwrap();
                    by_number(all)
                })
            });
            has_begun.recv().unwrap();
            let call = &call;
            let others: Vec<_> = (1..5).map(|copy| scope.spawn(move || confirm(calls, copy, LATER, call))).collect();
            while wait > 0 && calls.receipts.group.waiting() != wait {
                thread::sleep(Duration::from_millis(1));
            }
            let told = |others: Vec<thread::ScopedJoinHandle<'_, _>>| {
                others.into_iter().map(|other| other.join().unwrap()).collect()
            };
            if wait == 0 {
                let told = told(others);
                go.send(()).unwrap();
                return told;
            }
            go.send(()).unwrap();
            assert!(matches!(first.join().unwrap(), Some(Ok(_))));
            told(others)
        })
    }

    #[test]
    fn each_hears_of_its_own() {
        let told = meanwhile(&calls(LATER), 4, |all, _| by_number(all));
        for (copy, told) in (1..).zip(told) {
            let recorded = matches!(told, Some(Ok(Confirmed::Recorded)));
            assert!(told.is_some() && recorded == (copy % 2 == 1), "{copy}: {told:?}");
        }
    }

    #[test]
    fn what_fails_for_all_is_tried_by_each_alone_unless_the_ledger_is_gone() {
        let told = meanwhile(&calls(LATER), 4, |_, _| Err(LedgerError::Contended));
        assert!(told.iter().all(Option::is_none), "{told:?}");
        let told = meanwhile(&calls(LATER), 4, |_, _| Err(LedgerError::Unavailable("gone".to_owned())));
        let gone = |one: &Told<_>| matches!(one, Some(Err(LedgerError::Unavailable(why))) if why == "gone");
        assert!(told.iter().all(gone), "{told:?}");
    }

    #[test]
    fn nobody_waits_for_one_that_hangs() {
        let told = meanwhile(&calls(Duration::from_millis(50)), 0, |_, _| panic!("it hangs"));
        assert!(told.iter().all(Option::is_none), "{told:?}");
    }

    #[test]
    fn who_has_little_time_goes_alone_and_who_goes_along_shortens_the_call() {
        let calls = calls(LATER);
        assert!(confirm(&calls, 1, LEAST / 2, |_, _| panic!("in company")).is_none());
        let until = Instant::now() + LATER;
        meanwhile(&calls, 4, |all, ends| {
            assert!(ends >= until && ends < Instant::now() + LATER, "the first of theirs");
            by_number(all)
        });
    }

    #[test]
    fn a_ledger_that_does_not_work_together_is_left_alone() {
        assert!(confirm(&Calls::default(), 1, LATER, |_, _| panic!("in company")).is_none());
    }
}
