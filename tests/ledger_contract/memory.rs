//! What the ledger in memory promises besides: a clock that a test moves, sessions that it ends.

use onedrop::ledger::Ledger;
use onedrop::ledger::memory::MemoryLedger;

use super::*;

#[test]
fn its_clock_goes_as_a_test_says_and_never_before_its_beginning() {
    let ledger = MemoryLedger::default();
    let now = || {
        ledger.release(&[], soon()).expect("a call");
        ledger.time()
    };
    let began = now();
    ledger.advance(Duration::from_secs(10));
    assert_eq!(now(), began + Duration::from_secs(10));
    ledger.set_back(Duration::from_secs(4));
    assert_eq!(now(), began + Duration::from_secs(6));
    ledger.set_back(Duration::from_secs(3600));
    assert_eq!(now(), began);
    ledger.advance(Duration::from_secs(1));
    assert_eq!(now(), began + Duration::from_secs(1));
}

#[test]
fn a_lease_is_over_at_its_last_moment() {
    let (ledger, mail) = (MemoryLedger::default(), mail("m"));
    let host = |ledger: &MemoryLedger| Host(Arc::new(ledger.clone()));
    host(&ledger).claim(&mail, &inbox());
    ledger.advance(LEASE.lease - Duration::from_nanos(1));
    assert_eq!(host(&ledger).record(&mail, &[inbox()]).copies, [CopyState::Busy]);
    ledger.advance(Duration::from_nanos(1));
    assert!(host(&ledger).claim(&mail, &inbox()).in_doubt);
}

#[test]
fn a_session_that_is_lost_takes_no_lock_of_another() {
    let (one, mail) = (MemoryLedger::default(), mail("m"));
    let (other, key) = (one.clone(), copy_key(&mail, &inbox()));
    let claim = Host(Arc::new(one.clone())).claim(&mail, &inbox());
    let turn = one.take_turn(&claim, &key, soon()).expect("a turn");
    other.lose_session();
    assert!(matches!(other.take_turn(&claim, &key, soon()), Err(LedgerError::Contended)));
    one.lose_session();
    assert!(matches!(other.take_turn(&claim, &key, soon()), Ok(Turn::Ours { .. })));
    drop(turn);
}
