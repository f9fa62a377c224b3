//! Records and receipts at the same time, with closures in place of a ledger.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use super::*;
use crate::ledger::RandomValue;
use crate::message::{DedupBy, Message};

const LATER: Duration = Duration::from_secs(60);

/// Confirms copy `copy` by `call`, in `left`.
fn confirm(
    commits: &Commits,
    copy: i64,
    left: Duration,
    call: impl Fn(&[ToConfirm<'_>], Instant) -> Result<Committed, LedgerError>,
) -> Option<Result<Confirmed, LedgerError>> {
    let claim = Claim { copy, value: RandomValue::default(), epoch: 1, in_doubt: false };
    let one =
        ToConfirm { claim, receipt: &Receipt::Unnamed, facts: CopyFacts::default(), end: None };
    commits.confirm(one, Instant::now() + left, &|_, receipts, until| call(receipts, until))
}

/// Odd copies are on record, even ones are gone.
fn by_number(all: &[ToConfirm<'_>]) -> Result<Committed, LedgerError> {
    let confirmed = |one: &ToConfirm<'_>| match one.claim.copy % 2 {
        1 => Confirmed::Recorded,
        _ => Confirmed::Superseded { by: Receipt::Unnamed },
    };
    let confirmed = all.iter().map(|one| Ok(confirmed(one))).collect();
    Ok(Committed { recorded: Vec::new(), confirmed })
}

/// While copy 0 is confirmed: starts copies 1 to 4, made by `call`, and does `then`; returns what
/// they came to.
fn meanwhile(
    commits: &Commits,
    call: impl Fn(&[ToConfirm<'_>], Instant) -> Result<Committed, LedgerError> + Sync,
    then: impl FnOnce(&dyn Fn() -> bool, &dyn Fn()),
) -> Vec<thread::Result<Option<Result<Confirmed, LedgerError>>>> {
    let (begun, has_begun) = channel();
    let (go, gone) = channel::<()>();
    thread::scope(|scope| {
        let first = scope.spawn(move || {
            confirm(commits, 0, LATER, |all, _| {
                begun.send(()).unwrap();
                gone.recv().unwrap();
                by_number(all)
            })
        });
        has_begun.recv().unwrap();
        let call = &call;
        let others: Vec<_> =
            (1..5).map(|copy| scope.spawn(move || confirm(commits, copy, LATER, call))).collect();
        then(&|| others.iter().all(thread::ScopedJoinHandle::is_finished), &|| {
            go.send(()).unwrap()
        });
        let outcomes = others.into_iter().map(thread::ScopedJoinHandle::join).collect();
        assert!(matches!(first.join().unwrap(), Some(Ok(_))));
        outcomes
    })
}

/// As [`meanwhile`], with copies 1 to 4 in one call.
fn in_company(
    call: impl Fn(&[ToConfirm<'_>], Instant) -> Result<Committed, LedgerError> + Sync,
) -> Vec<thread::Result<Option<Result<Confirmed, LedgerError>>>> {
    let commits = Commits::with(1, LATER);
    meanwhile(&commits, call, |_, go| {
        until(|| commits.0.count().1 == 4);
        go();
    })
}

fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn each_gets_its_own_outcome() {
    let outcomes = in_company(|all, ends| {
        assert_eq!(all.len(), 4);
        assert!(ends <= Instant::now() + IN_COMPANY);
        by_number(all)
    });
    for (copy, outcome) in (1..).zip(outcomes) {
        let outcome = outcome.unwrap();
        let recorded = matches!(outcome, Some(Ok(Confirmed::Recorded)));
        assert!(outcome.is_some() && recorded == (copy % 2 == 1), "{copy}: {outcome:?}");
    }
}

#[test]
fn what_fails_in_company_is_tried_by_each_alone() {
    for outcome in in_company(|_, _| Err(LedgerError::Unavailable("gone".to_owned()))) {
        assert!(outcome.unwrap().is_none());
    }
    let outcomes = in_company(|_, _| panic!("as the test wants it"));
    assert_eq!(outcomes.iter().filter(|one| one.is_err()).count(), 1, "the leader");
    assert!(outcomes.into_iter().flatten().all(|outcome| outcome.is_none()));
}

#[test]
fn a_call_for_one_alone_is_its_own() {
    let failed =
        confirm(&Commits::with(AT_ONCE, LATER), 1, LATER, |_, _| Err(LedgerError::Contended));
    assert!(matches!(failed, Some(Err(LedgerError::Contended))), "{failed:?}");
}

#[test]
fn a_call_that_hangs_blocks_no_other() {
    let commits = Commits::with(1, Duration::from_millis(50));
    let outcomes = meanwhile(
        &commits,
        |all, _| by_number(all),
        |all_ended, go| {
            until(all_ended);
            // Nor one that comes later.
            let later = confirm(&commits, 5, LATER, |all, _| by_number(all));
            assert!(matches!(later, Some(Ok(Confirmed::Recorded))), "{later:?}");
            go();
        },
    );
    assert!(outcomes.into_iter().all(|outcome| matches!(outcome.unwrap(), Some(Ok(_)))));
}

#[test]
fn several_that_wait_go_ahead_beside_one_that_takes_its_time() {
    let commits = Commits::with(AT_ONCE, LATER);
    let (confirmed, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let outcomes = meanwhile(
        &commits,
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
    assert_eq!(
        outcomes.into_iter().filter(|outcome| matches!(outcome, Ok(Some(Ok(_))))).count(),
        4
    );
}

#[test]
fn records_and_receipts_go_together_and_each_gets_its_own_outcome() {
    let commits = Commits::with(1, LATER);
    let made_for = Mutex::new(Vec::new());
    // A message's row is its size; see `by_number`.
    let made = |records: &[ToRecord<'_>], receipts: &[ToConfirm<'_>], _: Instant| {
        made_for.lock().unwrap().push((records.len(), receipts.len()));
        let recorded = records.iter().map(|one| {
            let (recorded_at, copies) = (SystemTime::UNIX_EPOCH, Vec::new());
            let message = i64::try_from(one.entry.size_bytes).unwrap();
            Ok(Recorded {
                message,
                recorded_at,
                is_new: true,
                collision: false,
                attempt: 1,
                copies,
            })
        });
        Ok(Committed { recorded: recorded.collect(), ..by_number(receipts)? })
    };
    let record = |size_bytes: u64| {
        let message = Message::new(b"Message-ID: <x@y>\n\nhi\n".to_vec(), DedupBy::MessageId);
        let (facts, attempt) = (message.facts(), Attempt::default());
        let entry = Entry {
            identity: message.identity(),
            facts: &facts,
            size_bytes,
            raw: None,
            nul_runs: None,
            at: None,
        };
        let terms = LeaseTerms { lease: LATER, join: false };
        let one = ToRecord { entry, attempt: &attempt, destinations: &[], terms };
        commits.record(one, Instant::now() + LATER, &made)
    };
    let confirm = |copy: i64| {
        let claim = Claim { copy, value: RandomValue::default(), epoch: 1, in_doubt: false };
        let one =
            ToConfirm { claim, receipt: &Receipt::Unnamed, facts: CopyFacts::default(), end: None };
        commits.confirm(one, Instant::now() + LATER, &made)
    };
    let first = commits.0.wait(|| panic!("it is the first"), Instant::now());
    thread::scope(|scope| {
        let (record, confirm) = (&record, &confirm);
        let recorded = [7, 8].map(|row| (row, scope.spawn(move || record(row))));
        let confirmed = [1, 2].map(|copy| scope.spawn(move || confirm(copy)));
        until(|| commits.0.count().1 == 4);
        drop(first);
        for (row, outcome) in recorded {
            let outcome = outcome.join().unwrap();
            assert!(
                matches!(&outcome, Some(Ok(one)) if one.message == row as i64),
                "{row}: {outcome:?}"
            );
        }
        let [one, two] = confirmed.map(|outcome| outcome.join().unwrap());
        assert!(matches!(one, Some(Ok(Confirmed::Recorded))), "{one:?}");
        assert!(matches!(two, Some(Ok(Confirmed::Superseded { .. }))), "{two:?}");
    });
    assert_eq!(*made_for.lock().unwrap(), [(2, 2)]);
}

#[test]
fn a_call_with_little_time_goes_alone() {
    assert!(
        confirm(&Commits::with(AT_ONCE, LATER), 1, LEAST / 2, |_, _| panic!("in company"))
            .is_none()
    );
}
