//! Records and receipts at the same time, with closures in place of a ledger. Who leads, and for
//! how long others wait, `group_commit` tests.

use std::sync::Mutex;
use std::thread;

use super::*;
use onedrop_core::ledger::{AttemptKey, MessageKey, RandomValue};
use onedrop_core::message::{DedupBy, Message};

const LATER: Duration = Duration::from_secs(60);

type Made = Result<Committed, LedgerError>;

/// Confirms copy `copy` by `call`, in `left`.
fn confirm(
    commits: &Commits,
    copy: i64,
    left: Duration,
    call: &Call<'_>,
) -> Option<Result<Confirmed, LedgerError>> {
    let claim =
        Claim { copy, value: RandomValue::default(), epoch: 1, in_doubt: false, looks_back: false };
    let (receipt, facts) = (&Receipt::UNNAMED, CopyFacts::default());
    commits.confirm(
        ToConfirm { claim, receipt, facts, end: None, may_be_lost: false },
        Instant::now() + left,
        call,
    )
}

/// Records a message, whose row `made` takes from its size.
fn record(commits: &Commits, row: u64, call: &Call<'_>) -> Option<Result<Recorded, LedgerError>> {
    let text = format!("Message-ID: <{row}@y>\n\nhi\n").into_bytes();
    let message = Message::new(text, DedupBy::MessageId);
    let (identity, facts, attempt) = (message.identity(), message.facts(), Attempt::default());
    let entry = Entry {
        identity,
        facts: &facts,
        size_bytes: row,
        raw: None,
        nul_runs: None,
        at: None,
        oldest: None,
        fields: None,
    };
    let terms = LeaseTerms { lease: LATER, join: false, due: false };
    let one = ToRecord { entry, attempt: &attempt, destinations: &[], terms };
    commits.record(one, Instant::now() + LATER, call)
}

/// Odd copies are on record, even ones are gone.
fn made(records: &[ToRecord<'_>], receipts: &[ToConfirm<'_>]) -> Made {
    let recorded = records.iter().map(|one| {
        let (recorded_at, copies) = (SystemTime::UNIX_EPOCH, Vec::new());
        let number = i64::try_from(one.entry.size_bytes).unwrap();
        let message = MessageKey::new(number, one.entry.identity);
        Some(Ok(Recorded {
            message,
            recorded_at,
            is_new: true,
            collision: false,
            attempt: AttemptKey::Row(1),
            copies,
        }))
    });
    let confirmed = receipts.iter().map(|one| match one.claim.copy % 2 {
        1 => Some(Ok(Confirmed::Recorded)),
        _ => Some(Ok(Confirmed::Superseded { by: Receipt::UNNAMED })),
    });
    Ok(Committed { recorded: recorded.collect(), confirmed: confirmed.collect() })
}

/// Confirms four copies in one call.
fn in_company(call: &(dyn Fn() -> Made + Sync)) -> Vec<thread::Result<bool>> {
    let commits = &Commits::with(1, LATER);
    let first = commits.0.wait(|| panic!("it is the first"), Instant::now());
    let one = |copy| confirm(commits, copy, LATER, &|_, _, _| call()).is_some();
    thread::scope(|scope| {
        let all = [1, 2, 3, 4].map(|copy| scope.spawn(move || one(copy)));
        until(|| commits.0.count().1 == 4);
        drop(first);
        all.map(thread::ScopedJoinHandle::join).into()
    })
}

fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_fails_in_company_is_tried_by_each_alone() {
    let failed = in_company(&|| Err(LedgerError::Unavailable("gone".to_owned())));
    assert!(failed.into_iter().all(|has_outcome| !has_outcome.unwrap()));
    let failed = in_company(&|| panic!("as the test wants it"));
    assert_eq!(failed.iter().filter(|one| one.is_err()).count(), 1, "the leader");
    assert!(failed.into_iter().flatten().all(|has_outcome| !has_outcome));
}

#[test]
fn a_call_for_one_alone_is_its_own() {
    let commits = Commits::with(2, LATER);
    let failed = confirm(&commits, 1, LATER, &|_, _, _| Err(LedgerError::Contended));
    assert!(matches!(failed, Some(Err(LedgerError::Contended))), "{failed:?}");
}

#[test]
fn records_and_receipts_go_together_and_each_gets_its_own_outcome() {
    let (commits, made_for) = (&Commits::with(1, LATER), Mutex::new(Vec::new()));
    let call = &|records: &[ToRecord<'_>], receipts: &[ToConfirm<'_>], ends: Instant| {
        assert!(ends <= Instant::now() + IN_COMPANY);
        made_for.lock().unwrap().push((records.len(), receipts.len()));
        let keys: Vec<_> = records.iter().map(|one| one.entry.identity.id_hash).collect();
        let copies: Vec<_> = receipts.iter().map(|one| one.claim.copy).collect();
        assert!(keys.is_sorted() && copies.is_sorted(), "{keys:?} {copies:?}");
        made(records, receipts)
    };
    let first = commits.0.wait(|| panic!("it is the first"), Instant::now());
    thread::scope(|scope| {
        // In no order of their keys.
        let came = |number| until(|| commits.0.count().1 == number);
        let recorded = [7, 8, 9, 10].map(|row| {
            let outcome = scope.spawn(move || record(commits, row, call));
            came(row as usize - 6);
            (row, outcome)
        });
        let confirmed = [2, 1].map(|copy| {
            let outcome = scope.spawn(move || confirm(commits, copy, LATER, call));
            came(7 - copy as usize);
            outcome
        });
        drop(first);
        for (row, outcome) in recorded {
            let outcome = outcome.join().unwrap();
            let recorded = outcome.as_ref().and_then(|one| one.as_ref().ok());
            let own = recorded.map(|one| one.message.number);
            assert_eq!(own, Some(row as i64), "{outcome:?}");
        }
        let [two, one] = confirmed.map(|outcome| outcome.join().unwrap());
        assert!(matches!(one, Some(Ok(Confirmed::Recorded))), "{one:?}");
        assert!(matches!(two, Some(Ok(Confirmed::Superseded { .. }))), "{two:?}");
    });
    assert_eq!(*made_for.lock().unwrap(), [(4, 2)]);
}

#[test]
fn a_call_with_little_time_goes_alone() {
    let commits = Commits::with(2, LATER);
    let outcome = confirm(&commits, 1, LEAST / 2, &|_, _, _| panic!("in company"));
    assert!(outcome.is_none());
}
