//! Every move of the table in the header of `claim`.

use super::*;

const TERMS: LeaseTerms = LeaseTerms { lease: Duration::from_secs(90), join: false, due: false };
const JOIN: LeaseTerms = LeaseTerms { join: true, ..TERMS };

fn by(attempt: u8) -> RandomValue {
    RandomValue::from([attempt; 16])
}

fn wanted(attempt: u8, terms: LeaseTerms) -> Wanted {
    Wanted { by: by(attempt), again: false, shared: false, terms }
}

fn uid(uid: u32) -> Receipt {
    Receipt::uid(7, uid)
}

/// A copy that attempt 1 has leased in this epoch, with `left_secs` of 90 seconds left.
fn leased(epoch: i64, left_secs: u64) -> Row {
    let (length, left) = (TERMS.lease, Duration::from_secs(left_secs));
    Row {
        epoch,
        lease: Some(Lease { by: Some(by(1)), length, left }),
        in_doubt: true,
        ..Row::new(false)
    }
}

fn placed(epoch: i64, receipt: Receipt) -> Row {
    Row { epoch, placed_epoch: epoch, receipt: Some(receipt), ..Row::new(false) }
}

/// The row and the time of a look after a claim that leases.
fn leases(row: &Row, wanted: &Wanted) -> (Row, Option<Duration>) {
    let (claimed, change) = claim(row, wanted);
    assert_eq!(claimed, Claimed::Leased);
    let change = change.expect("a change");
    assert!(!change.frees_kept);
    (change.row, change.look_after)
}

#[test]
fn a_free_copy_is_leased_and_keeps_its_doubt_for_the_look() {
    for looks_back in [false, true] {
        let free = Row::new(looks_back);
        let (row, look_after) = leases(&free, &wanted(2, TERMS));
        let length = TERMS.lease;
        let lease = Some(Lease { by: Some(by(2)), length, left: length });
        let expected = Row { epoch: 1, lease, in_doubt: true, ..free.clone() };
        assert_eq!(row, expected);
        assert_eq!(look_after, looks_back.then_some(length));
        let claim = row.claim(9);
        let (copy, value, epoch) = (9, free.value, 1);
        assert_eq!(claim, Claim { copy, value, epoch, in_doubt: looks_back, looks_back });
    }
}

#[test]
fn a_lease_that_ran_out_is_anothers_in_the_next_epoch_and_in_doubt() {
    for terms in [TERMS, JOIN] {
        for attempt in [1, 2] {
            let short = LeaseTerms { lease: Duration::from_secs(5), ..terms };
            let (row, look_after) = leases(&leased(1, 0), &wanted(attempt, short));
            let (by, length) = (Some(by(attempt)), short.lease);
            assert_eq!(row.lease, Some(Lease { by, length, left: length }), "its own length");
            assert_eq!((row.epoch, row.prior_doubt, row.in_doubt), (2, true, true));
            assert_eq!(look_after, Some(short.lease));
        }
    }
}

#[test]
fn a_copy_that_was_given_back_is_leased_without_a_doubt_and_looked_at_again() {
    let free = Row { epoch: 1, placed_epoch: 1, ..Row::new(false) };
    let (row, look_after) = leases(&free, &wanted(2, TERMS));
    assert_eq!((row.epoch, row.prior_doubt), (2, false));
    assert_eq!(look_after, Some(TERMS.lease), "leased more than once");
}

#[test]
fn a_live_lease_is_busy_for_others_to_its_last_moment() {
    let left = Duration::from_nanos(1);
    let mut row = leased(1, 60);
    row.lease = row.lease.map(|lease| Lease { left, ..lease });
    assert_eq!(claim(&row, &wanted(2, TERMS)), (Claimed::Busy, None));
    row.lease = row.lease.map(|lease| Lease { by: None, ..lease });
    assert_eq!(claim(&row, &wanted(2, TERMS)), (Claimed::Busy, None));
}

#[test]
fn an_attempt_finds_its_own_lease_unless_its_call_names_the_mailbox_twice() {
    let before = leased(1, 60);
    let (row, look_after) = leases(&before, &wanted(1, TERMS));
    let lease = before.lease.map(|lease| Lease { left: TERMS.lease, ..lease });
    assert_eq!(row, Row { lease, ..before.clone() }, "without a doubt, for longer");
    assert_eq!(look_after, None);
    let doubtful = Row { prior_doubt: true, ..before.clone() };
    assert!(leases(&doubtful, &wanted(1, JOIN)).0.prior_doubt, "the doubt stays");
    let again = Wanted { again: true, ..wanted(1, TERMS) };
    assert_eq!(claim(&before, &again), (Claimed::Busy, None));
    let joined = leases(&before, &Wanted { again: true, ..wanted(1, JOIN) }).0;
    assert!(joined.prior_doubt);
}

#[test]
fn a_lease_that_is_joined_keeps_its_epoch_is_in_doubt_and_gets_no_shorter() {
    let short = LeaseTerms { lease: Duration::from_secs(5), ..JOIN };
    let (row, look_after) = leases(&leased(1, 60), &wanted(2, short));
    let (length, left) = (TERMS.lease, Duration::from_secs(60));
    assert_eq!(row.lease, Some(Lease { by: Some(by(2)), length, left }));
    assert_eq!((row.epoch, row.prior_doubt, row.in_doubt), (1, true, true));
    assert_eq!(look_after, Some(short.lease));
    let long = LeaseTerms { lease: Duration::from_secs(150), ..JOIN };
    let (length, left) = (long.lease, long.lease);
    let row = leases(&leased(1, 60), &wanted(2, long)).0;
    assert_eq!(row.lease, Some(Lease { by: Some(by(2)), length, left }));
}

#[test]
fn a_copy_is_shared_once_a_claim_says_so() {
    let shared = Wanted { shared: true, ..wanted(1, TERMS) };
    let row = leases(&Row::new(false), &shared).0;
    assert!(row.shared);
    assert!(leases(&row, &wanted(1, TERMS)).0.shared, "and stays so");
    assert!(!leases(&Row::new(false), &wanted(1, TERMS)).0.shared);
}

#[test]
fn a_copy_that_is_due_and_kept_is_leased_by_settle_alone() {
    let settle = LeaseTerms { due: true, ..TERMS };
    for secs in [0, 60] {
        let due = Row { due_in: Some(Duration::from_secs(secs)), ..Row::new(false) };
        leases(&due, &wanted(1, TERMS));
        let due = Row { kept: true, ..due };
        assert_eq!(claim(&due, &wanted(1, TERMS)), (Claimed::Busy, None));
        assert_eq!(claim(&due, &wanted(1, JOIN)), (Claimed::Busy, None));
        leases(&due, &wanted(1, settle));
    }
    leases(&Row { kept: true, ..Row::new(false) }, &wanted(1, TERMS));
}

#[test]
fn a_placed_copy_says_where_it_is_whatever_is_asked() {
    let due = Row { due_in: Some(Duration::ZERO), kept: true, ..placed(1, uid(3)) };
    for row in [placed(1, uid(3)), due] {
        let (claimed, change) = claim(&row, &wanted(1, JOIN));
        assert_eq!((&claimed, change), (&Claimed::Placed(uid(3)), None));
        assert_eq!(claimed.state(row.claim(9)), CopyState::Placed(uid(3)));
        let turn = turn(Some(&row), &row.claim(9)).expect("a turn");
        assert_eq!(turn, TurnState::Placed(uid(3)));
        assert_eq!(release(Some(&row), &row.claim(9)), None);
        let due = keep_until_due(&row, Duration::from_secs(9));
        assert_eq!(due, (DueIn::Placed(uid(3)), None));
    }
}

#[test]
fn a_state_of_the_port_is_what_was_found() {
    let claim = leased(1, 60).claim(9);
    assert_eq!(Claimed::Leased.state(claim), CopyState::Claimed(claim));
    assert_eq!(Claimed::Busy.state(claim), CopyState::Busy);
}

#[test]
fn a_turn_is_that_of_the_last_epoch_though_the_lease_ran_out() {
    for left_secs in [0, 60] {
        for prior_doubt in [false, true] {
            let row = Row { prior_doubt, ..leased(2, left_secs) };
            let ours = turn(Some(&row), &row.claim(9)).expect("a turn");
            assert_eq!(ours, TurnState::Ours { in_doubt: prior_doubt });
            for epoch in [1, 3] {
                let claim = Claim { epoch, ..row.claim(9) };
                assert_eq!(turn(Some(&row), &claim).expect("a turn"), TurnState::EpochGone);
            }
        }
    }
    let (row, gone) = (leased(1, 60), Row::new(false).claim(9));
    for row in [Some(&row), None] {
        assert!(matches!(turn(row, &gone), Err(LedgerError::Forgotten)));
    }
}

#[test]
fn the_first_receipt_wins_whatever_its_epoch() {
    let doubtful = Row { prior_doubt: true, looks_back: true, shared: true, ..leased(2, 0) };
    for row in [leased(2, 60), doubtful] {
        for epoch in [1, 2] {
            let claim = Claim { epoch, ..row.claim(9) };
            let (confirmed, change) = confirm(Some(&row), &claim, &uid(3));
            assert_eq!(confirmed.expect("confirmed"), Confirmed::Recorded);
            let change = change.expect("a change");
            let receipt = Some(uid(3));
            let expected =
                Row { receipt, placed_epoch: epoch, lease: None, in_doubt: false, ..row.clone() };
            assert_eq!(change.row, expected);
            assert_eq!((change.look_after, change.frees_kept), (None, row.shared));
        }
    }
}

#[test]
fn a_crash_may_undo_the_receipt_of_a_first_lease_by_which_nothing_goes() {
    let first = leased(1, 90);
    assert!(may_be_lost(&first) && may_be_lost(&Row { lease: None, ..first.clone() }));
    for lasts in [
        leased(2, 90),
        Row { prior_doubt: true, ..first.clone() },
        Row { shared: true, ..first.clone() },
        Row { due_in: Some(Duration::ZERO), ..first.clone() },
        placed(1, uid(1)),
    ] {
        assert!(!may_be_lost(&lasts), "{lasts:?}");
    }
}

#[test]
fn another_receipt_leaves_a_second_copy_to_be_found() {
    let row = Row { settled: true, ..placed(2, uid(3)) };
    let (confirmed, change) = confirm(Some(&row), &row.claim(9), &uid(4));
    assert_eq!(confirmed.expect("confirmed"), Confirmed::Superseded { by: uid(3) });
    let row = Row { epoch: 3, settled: false, ..row };
    let second = Change { row, look_after: Some(Duration::ZERO), frees_kept: false };
    assert_eq!(change, Some(second));
}

#[test]
fn the_same_receipt_counts_as_ours_but_without_a_name_only_in_our_epoch() {
    for receipt in [uid(3), Receipt::UNNAMED] {
        let row = placed(2, receipt.clone());
        let (confirmed, change) = confirm(Some(&row), &row.claim(9), &receipt);
        assert_eq!(confirmed.expect("confirmed"), Confirmed::Recorded);
        assert_eq!(change, None);
    }
    let other = |row: &Row| Claim { epoch: 1, ..row.claim(9) };
    let named = placed(2, uid(3));
    let (confirmed, _) = confirm(Some(&named), &other(&named), &uid(3));
    assert_eq!(confirmed.expect("confirmed"), Confirmed::Recorded);
    let unnamed = placed(2, Receipt::UNNAMED);
    let (confirmed, change) = confirm(Some(&unnamed), &other(&unnamed), &Receipt::UNNAMED);
    let by = Receipt::UNNAMED;
    assert_eq!(confirmed.expect("confirmed"), Confirmed::Superseded { by });
    assert!(change.is_some_and(|change| change.row.epoch == 3));
}

#[test]
fn what_was_written_by_a_former_value_is_in_question_and_confirms_nothing() {
    let late = leased(1, 0).claim(9);
    assert!(matches!(confirm(None, &late, &uid(3)), (Err(LedgerError::Forgotten), None)));
    for row in [leased(2, 60), Row { settled: true, ..placed(2, uid(3)) }] {
        let (confirmed, change) = confirm(Some(&row), &late, &uid(3));
        assert!(matches!(confirmed, Err(LedgerError::Forgotten)));
        let change = change.expect("a change");
        assert_eq!(change.row, Row { epoch: 3, settled: false, ..row });
        assert_eq!(change.look_after, Some(Duration::ZERO));
    }
}

#[test]
fn a_lease_that_is_given_back_leaves_the_doubt_of_before() {
    for prior_doubt in [false, true] {
        let row = Row { prior_doubt, ..leased(1, 60) };
        let change = release(Some(&row), &row.claim(9)).expect("a change");
        let free = Row { lease: None, in_doubt: prior_doubt, placed_epoch: 1, ..row };
        let free = Change { row: free, look_after: None, frees_kept: false };
        assert_eq!(change, free);
    }
}

#[test]
fn only_where_every_lease_was_given_back_the_epoch_says_so() {
    for (given_back, after) in [(0, 0), (1, 1), (2, 3), (3, 3)] {
        let row = Row { placed_epoch: given_back, ..leased(3, 60) };
        let change = release(Some(&row), &row.claim(9)).expect("a change");
        assert_eq!(change.row.placed_epoch, after);
    }
}

#[test]
fn nothing_is_given_back_that_is_not_ours() {
    let row = leased(2, 60);
    let ours = row.claim(9);
    let others = [Claim { epoch: 1, ..ours }, Claim { value: by(4), ..ours }];
    for claim in others {
        assert_eq!(release(Some(&row), &claim), None);
    }
    assert_eq!(release(None, &ours), None);
}

#[test]
fn a_copy_is_made_due_once_with_its_lease_and_its_doubt() {
    let (after, row) = (Duration::from_secs(9), leased(1, 60));
    let (due, change) = keep_until_due(&row, after);
    assert_eq!(due, DueIn::After(after));
    let expected = Row { shared: true, due_in: Some(after), kept: true, ..row };
    let change = change.expect("a change");
    assert_eq!(change.row, expected);
    assert_eq!((change.look_after, change.frees_kept), (Some(after), false));
    let later = Duration::from_secs(60);
    assert_eq!(keep_until_due(&change.row, later), (DueIn::After(after), None));
    // Its bytes are lost.
    let lost = Row { kept: false, ..change.row.clone() };
    let (due, change) = keep_until_due(&lost, later);
    assert_eq!(due, DueIn::After(after));
    assert_eq!(change.expect("a change").row, expected);
}

#[test]
fn a_forgotten_copy_is_free_in_doubt_and_nobodys() {
    let due_in = Some(Duration::ZERO);
    let place = Row { due_in, kept: true, settled: true, ..placed(2, uid(3)) };
    for row in [Row { due_in, ..leased(2, 0) }, place] {
        let change = forget(&row, by(5));
        let expected = Row {
            value: by(5),
            epoch: 2,
            shared: row.shared,
            lease: None,
            in_doubt: true,
            prior_doubt: true,
            looks_back: true,
            receipt: None,
            placed_epoch: 0,
            settled: false,
            due_in: due_in.filter(|_| row.receipt.is_none()),
            kept: row.kept,
        };
        assert_eq!(change.row, expected);
        assert_eq!((change.look_after, change.frees_kept), (None, false));
    }
}

#[test]
fn bytes_are_kept_for_shared_copies_that_are_not_placed() {
    let open = Row { shared: true, ..Row::new(false) };
    assert!(open.wants_bytes());
    assert!(!Row::new(false).wants_bytes());
    assert!(!Row { shared: true, ..placed(1, uid(3)) }.wants_bytes());
}
