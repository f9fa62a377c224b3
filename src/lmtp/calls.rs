//! Records and receipts of deliveries at the same time, in one transaction: one commit for all. Where that comes to nothing,
//! or would keep somebody waiting, each goes alone.

use std::iter;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use super::together::{Group, Waited};
use crate::directory::Destination;
use crate::ledger::{
    Attempt, AttemptEnd, Claim, Confirmed, CopyFacts, Entry, LeaseTerms, LedgerError, Recorded, TOGETHER, ToConfirm,
    ToRecord, Together,
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
        Calls { group: Group::new(at_once, TOGETHER, Some(patience), || None), together: AtomicBool::new(false) }
    }

    /// What a session knows of that.
    pub fn learn(&self, together: bool) {
        if together && !self.together.load(Ordering::Relaxed) {
            self.together.store(true, Ordering::Relaxed);
        }
    }

    /// Has `one` recorded by `call`, perhaps with others, or by somebody else's; every call must end by the time it is
    /// given, which is before `until`. `None`: to be done alone.
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
        if !self.together.load(Ordering::Relaxed) || until.saturating_duration_since(Instant::now()) <= LEAST {
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
                // Who fails in company is told nothing: one may have kept the others from it, or the session been dead.
                let made = call(&records, &receipts, until.min(Instant::now() + IN_COMPANY)).unwrap_or_default();
                let (mut recorded, mut confirmed) = (made.recorded.into_iter(), made.confirmed.into_iter());
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
            at: one.entry.at,
            attempt: one.attempt.clone(),
            destinations: one.destinations.to_vec(),
            terms: one.terms,
        }
    }

    fn borrowed(&self) -> ToRecord<'_> {
        let OwnedRecord { identity, facts, size_bytes, at, attempt, destinations, terms } = self;
        let entry = Entry { identity, facts, size_bytes: *size_bytes, raw: None, at: *at };
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
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;
    use crate::message::{DedupBy, Message};

    const LATER: Duration = Duration::from_secs(60);

    fn calls(at_once: usize, patience: Duration) -> Calls {
        let calls = Calls::with(at_once, patience);
        calls.learn(true);
        calls
    }

    /// Confirms copy `copy` by `call`, in `left`.
    fn confirm(
        calls: &Calls,
        copy: i64,
        left: Duration,
        call: impl FnOnce(&[ToConfirm<'_>], Instant) -> Made,
    ) -> Option<Result<Confirmed, LedgerError>> {
        let claim = Claim { copy, epoch: 1, in_doubt: false };
        let one = ToConfirm { claim, receipt: &Receipt::Unnamed, facts: CopyFacts::default(), end: None };
        calls.confirm(one, Instant::now() + left, |_, receipts, until| call(receipts, until))
    }

    /// Odd copies are on record, even ones are gone.
    fn by_number(all: &[ToConfirm<'_>]) -> Made {
        let confirmed = |one: &ToConfirm<'_>| match one.claim.copy % 2 {
            1 => Confirmed::Recorded,
            _ => Confirmed::EpochGone { recorded: None },
        };
        let confirmed = all.iter().map(|one| Ok(confirmed(one))).collect();
        Ok(Together { recorded: Vec::new(), confirmed })
    }

    /// While copy 0 is under way: starts copies 1 to 4, made by `call`, and does `then`; returns what they came to.
    fn meanwhile(
        calls: &Calls,
        call: impl Fn(&[ToConfirm<'_>], Instant) -> Made + Sync,
        then: impl FnOnce(&dyn Fn() -> bool, &dyn Fn()),
    ) -> Vec<thread::Result<Option<Result<Confirmed, LedgerError>>>> {
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
        call: impl Fn(&[ToConfirm<'_>], Instant) -> Made + Sync,
    ) -> Vec<thread::Result<Option<Result<Confirmed, LedgerError>>>> {
        let calls = calls(1, LATER);
        meanwhile(&calls, call, |_, go| {
            until(|| calls.group.waiting() == 4);
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
        let failed = confirm(&calls(AT_ONCE, LATER), 1, LATER, |_, _| Err(LedgerError::Contended));
        assert!(matches!(failed, Some(Err(LedgerError::Contended))), "{failed:?}");
    }

    #[test]
    fn nobody_waits_for_one_that_hangs() {
        let calls = calls(1, Duration::from_millis(50));
        let told = meanwhile(
            &calls,
            |all, _| by_number(all),
            |all_ended, go| {
                until(all_ended);
                // Nor does who comes later.
                let later = confirm(&calls, 5, LATER, |all, _| by_number(all));
                assert!(matches!(later, Some(Ok(Confirmed::Recorded))), "{later:?}");
                go();
            },
        );
        assert!(told.into_iter().all(|told| matches!(told.unwrap(), Some(Ok(_)))));
    }

    #[test]
    fn of_those_who_wait_two_go_ahead_beside_one_that_takes_its_time() {
        let calls = calls(AT_ONCE, LATER);
        let (confirmed, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let told = meanwhile(
            &calls,
            |all, _| {
                assert!(all.len() > 1 || is_over.load(Ordering::SeqCst), "one waits for company");
                confirmed.fetch_add(all.len(), Ordering::SeqCst);
                by_number(all)
            },
            |_, go| {
                until(|| confirmed.load(Ordering::SeqCst) > 1);
                is_over.store(true, Ordering::SeqCst);
                go();
            },
        );
        assert_eq!(told.into_iter().filter(|told| matches!(told, Ok(Some(Ok(_))))).count(), 4);
    }

    #[test]
    fn records_and_receipts_go_together_and_each_hears_of_its_own() {
        let calls = calls(1, LATER);
        let made_for = Mutex::new(Vec::new());
        // A message's row is its size; see `by_number`.
        let made = |records: &[ToRecord<'_>], receipts: &[ToConfirm<'_>], _: Instant| {
            made_for.lock().unwrap().push((records.len(), receipts.len()));
            let recorded = records.iter().map(|one| {
                let (recorded_at, copies) = (SystemTime::UNIX_EPOCH, Vec::new());
                let message = i64::try_from(one.entry.size_bytes).unwrap();
                Ok(Recorded { message, recorded_at, is_new: true, collision: false, attempt: 1, copies })
            });
            Ok(Together { recorded: recorded.collect(), ..by_number(receipts)? })
        };
        let record = |size_bytes: u64| {
            let message = Message::new(b"Message-ID: <x@y>\n\nhi\n".to_vec(), DedupBy::MessageId);
            let (facts, attempt) = (message.facts(), Attempt::default());
            let entry = Entry { identity: message.identity(), facts: &facts, size_bytes, raw: None, at: None };
            let terms = LeaseTerms { lease: LATER, join: false };
            let one = ToRecord { entry, attempt: &attempt, destinations: &[], terms };
            calls.record(one, Instant::now() + LATER, made)
        };
        let confirm = |copy: i64| {
            let claim = Claim { copy, epoch: 1, in_doubt: false };
            let one = ToConfirm { claim, receipt: &Receipt::Unnamed, facts: CopyFacts::default(), end: None };
            calls.confirm(one, Instant::now() + LATER, made)
        };
        let first = calls.group.wait(|| panic!("it is the first"), Instant::now());
        thread::scope(|scope| {
            let (record, confirm) = (&record, &confirm);
            let recorded = [7, 8].map(|row| (row, scope.spawn(move || record(row))));
            let confirmed = [1, 2].map(|copy| scope.spawn(move || confirm(copy)));
            until(|| calls.group.waiting() == 4);
            drop(first);
            for (row, told) in recorded {
                let told = told.join().unwrap();
                assert!(matches!(&told, Some(Ok(one)) if one.message == row as i64), "{row}: {told:?}");
            }
            let [one, two] = confirmed.map(|told| told.join().unwrap());
            assert!(matches!(one, Some(Ok(Confirmed::Recorded))), "{one:?}");
            assert!(matches!(two, Some(Ok(Confirmed::EpochGone { .. }))), "{two:?}");
        });
        assert_eq!(*made_for.lock().unwrap(), [(2, 2)]);
    }

    #[test]
    fn who_has_little_time_goes_alone() {
        assert!(confirm(&calls(AT_ONCE, LATER), 1, LEAST / 2, |_, _| panic!("in company")).is_none());
    }

    #[test]
    fn a_ledger_that_does_not_work_together_is_left_alone() {
        assert!(confirm(&Calls::default(), 1, LATER, |_, _| panic!("in company")).is_none());
    }
}
