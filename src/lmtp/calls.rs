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

/// While somebody is at it for longer than that, everybody goes alone: its session may hang.
const PATIENCE: Duration = Duration::from_millis(250);
/// A call in company takes no longer than that; then each goes alone.
const IN_COMPANY: Duration = Duration::from_secs(10);
/// Who has less time left than that goes alone at once.
const LEAST: Duration = Duration::from_secs(20);

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
    /// given, which is before `until`. All have the same terms.
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
    group: Group<O, Told<T>>,
}

impl<O: Owned, T> Shared<O, T> {
    fn new(patience: Duration) -> Shared<O, T> {
        Shared { group: Group::new(TOGETHER, Some(patience), || None) }
    }

    fn join(
        &self,
        one: O::Borrowed<'_>,
        until: Instant,
        call: impl FnOnce(&[O::Borrowed<'_>], Instant) -> All<T>,
    ) -> Told<T> {
        match self.group.wait(|| O::of(&one), until) {
            Waited::Told(told) => told,
            Waited::InVain => None,
            Waited::Leads(lead) if lead.is_alone() => match call(&[one], until) {
                Ok(mut results) => results.pop(),
                Err(error) => Some(Err(error)),
            },
            Waited::Leads(lead) => {
                let mine = O::of(&one);
                let all: Vec<O::Borrowed<'_>> = [&mine].into_iter().chain(lead.others()).map(O::borrowed).collect();
                let until = until.min(Instant::now() + IN_COMPANY);
                // Who fails in company is told nothing: one may have kept the others from it, or the session been dead.
                let mut told = call(&all, until).unwrap_or_default().into_iter().map(Some);
                let own = told.next().flatten();
                lead.tell(told);
                own
            }
        }
    }
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

    /// While copy 0 is under way: starts copies 1 to 4, made by `call`, and does `then`; returns what they came to.
    fn meanwhile(
        calls: &Calls,
        call: impl Fn(&[ToConfirm<'_>], Instant) -> All<Confirmed> + Sync,
        then: impl FnOnce(&dyn Fn() -> bool, &dyn Fn()),
    ) -> Vec<thread::Result<Told<Confirmed>>> {
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
            then(&|| others.iter().all(thread::ScopedJoinHandle::is_finished), &|| go.send(()).unwrap());
            let told = others.into_iter().map(thread::ScopedJoinHandle::join).collect();
            assert!(matches!(first.join().unwrap(), Some(Ok(_))));
            told
        })
    }

    /// As [`meanwhile`], with copies 1 to 4 in one call.
    fn in_company(
        call: impl Fn(&[ToConfirm<'_>], Instant) -> All<Confirmed> + Sync,
    ) -> Vec<thread::Result<Told<Confirmed>>> {
        let calls = calls(LATER);
        meanwhile(&calls, call, |_, go| {
            until(|| calls.receipts.group.waiting() == 4);
            go();
        })
    }

    fn until(is_so: impl Fn() -> bool) {
        while !is_so() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn each_hears_of_its_own() {
        let told = in_company(|all, ends| {
            assert_eq!(all.len(), 4);
            assert!(ends <= Instant::now() + IN_COMPANY);
            by_number(all)
        });
        for (copy, told) in (1..).zip(told) {
            let told = told.unwrap();
            let recorded = matches!(told, Some(Ok(Confirmed::Recorded)));
            assert!(told.is_some() && recorded == (copy % 2 == 1), "{copy}: {told:?}");
        }
    }

    #[test]
    fn what_fails_in_company_is_tried_by_each_alone() {
        for told in in_company(|_, _| Err(LedgerError::Unavailable("gone".to_owned()))) {
            assert!(told.unwrap().is_none());
        }
        let told = in_company(|_, _| panic!("told to"));
        assert_eq!(told.iter().filter(|one| one.is_err()).count(), 1, "who led");
        assert!(told.into_iter().flatten().all(|told| told.is_none()));
    }

    #[test]
    fn a_call_for_one_alone_is_its_own() {
        let failed = confirm(&calls(LATER), 1, LATER, |_, _| Err(LedgerError::Contended));
        assert!(matches!(failed, Some(Err(LedgerError::Contended))), "{failed:?}");
    }

    #[test]
    fn nobody_waits_for_one_that_hangs() {
        let calls = calls(Duration::from_millis(50));
        let told = meanwhile(
            &calls,
            |_, _| panic!("it hangs"),
            |all_ended, go| {
                until(all_ended);
                // Nor does who comes later.
                assert!(confirm(&calls, 5, LATER, |_, _| panic!("it hangs")).is_none());
                go();
            },
        );
        assert!(told.into_iter().all(|told| told.unwrap().is_none()));
    }

    #[test]
    fn who_has_little_time_goes_alone() {
        assert!(confirm(&calls(LATER), 1, LEAST / 2, |_, _| panic!("in company")).is_none());
    }

    #[test]
    fn a_ledger_that_does_not_work_together_is_left_alone() {
        assert!(confirm(&Calls::default(), 1, LATER, |_, _| panic!("in company")).is_none());
    }
}
