//! Claims and leases: which delivery may place a copy, for how long, and in which doubt.

use super::*;

pub fn a_live_lease_is_busy_for_others(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let claim = a.claim(&mail("busy"), &inbox());
    assert_eq!((claim.epoch, claim.in_doubt), (1, false));
    let recorded = b.record(&mail("busy"), &[inbox(), sent()]);
    assert_eq!(recorded.copies[0], CopyState::Busy);
    assert!(matches!(recorded.copies[1], CopyState::Claimed(_)), "another copy is free");
    assert_eq!(
        b.claim_again(recorded.message, &[inbox()], &attempt("mx2"), LEASE),
        [CopyState::Busy]
    );
    assert_eq!(a.turn(&claim, &copy_key(&mail("busy"), &inbox())), OURS, "asking changed nothing");
}

pub fn a_lease_that_ran_out_leaves_a_doubt_and_raises_the_epoch(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let mail = mail("expired");
    let first = a.claim(&mail, &inbox());
    for round in 2..5 {
        rig.expire_leases();
        let claim = b.claim(&mail, &inbox());
        assert_eq!((claim.copy, claim.epoch, claim.in_doubt), (first.copy, round, true));
        assert_eq!(a.turn(&first, &copy_key(&mail, &inbox())), TurnState::EpochGone);
    }
}

pub fn a_released_copy_is_free_with_the_doubt_as_before(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let mail = mail("released");
    let first = a.claim(&mail, &inbox());
    a.release(&[first]);
    let second = b.claim(&mail, &inbox());
    assert_eq!((second.epoch, second.in_doubt), (2, false), "nobody may have written");
    rig.expire_leases();
    let third = a.claim(&mail, &inbox());
    assert!(third.in_doubt);
    a.release(&[third]);
    let fourth = b.claim(&mail, &inbox());
    assert_eq!((fourth.epoch, fourth.in_doubt), (4, true), "the second may have written");
    b.release(&[fourth]);
    b.release(&[fourth]);
    assert!(a.claim(&mail, &inbox()).in_doubt);
}

pub fn a_joined_lease_keeps_its_epoch_and_is_in_doubt(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let mail = mail("joined");
    let fresh = a.try_record(&mail, &[inbox()], JOIN).expect("record").copies;
    let fresh = claimed(&fresh[0]);
    assert_eq!((fresh.epoch, fresh.in_doubt), (1, false), "nobody to join");
    let joined = b.try_record(&mail, &[inbox()], JOIN).expect("record");
    assert_eq!(joined.copies, [CopyState::Claimed(Claim { in_doubt: true, ..fresh })]);
    let again = b.claim_again(joined.message, &[inbox()], &attempt("mx2"), JOIN);
    assert_eq!(again, [CopyState::Claimed(Claim { in_doubt: true, ..fresh })]);
    // One of them giving up takes nothing from the other, and leaves the doubt.
    a.release(&[fresh]);
    let claim = claimed(&again[0]);
    let turn = b.turn(&claim, &copy_key(&mail, &inbox()));
    assert_eq!(turn, OURS_IN_DOUBT);
    assert_eq!(turn.confirm(&claim, &Receipt::name("n")), Confirmed::Recorded);
    let placed = a.try_record(&mail, &[inbox()], JOIN).expect("record").copies;
    assert_eq!(placed, [CopyState::Placed(Receipt::name("n"))]);
}

pub fn a_delivery_that_was_joined_learns_of_the_doubt_in_its_turn(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let mail = mail("joined");
    let key = copy_key(&mail, &inbox());
    let fresh = claimed(&a.try_record(&mail, &[inbox()], JOIN).expect("record").copies[0]);
    let joined = claimed(&b.try_record(&mail, &[inbox()], JOIN).expect("record").copies[0]);
    assert_eq!(b.turn(&joined, &key), OURS_IN_DOUBT);
    // It may write now, and vanish before it can say so.
    drop(b);
    assert!(!fresh.in_doubt);
    assert_eq!(a.turn_when_free(&fresh, &key), OURS_IN_DOUBT);
    // Nor does the doubt go when the delivery that was joined gives back what it has.
    a.release(&[fresh]);
    assert!(claimed(&a.try_record(&mail, &[inbox()], JOIN).expect("record").copies[0]).in_doubt);
}

pub fn claim_says_the_same_as_record(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let mail = mail("claim");
    let recorded = a.record(&mail, &[inbox()]);
    let claim = |terms| b.claim_again(recorded.message, &[inbox(), sent()], &attempt("mx2"), terms);
    let states = claim(LEASE);
    assert_eq!(states[0], CopyState::Busy);
    assert_eq!((claimed(&states[1]).epoch, claimed(&states[1]).in_doubt), (1, false), "a new row");
    rig.expire_leases();
    let states = claim(LEASE);
    assert_eq!((claimed(&states[0]).epoch, claimed(&states[0]).in_doubt), (2, true));
    let ours = claimed(&states[0]);
    b.turn(&ours, &copy_key(&mail, &inbox())).confirm(&ours, &uid(9));
    let states = b.claim_again(recorded.message, &[sent(), inbox()], &attempt("mx2"), LEASE);
    assert_eq!(states, [CopyState::Busy, CopyState::Placed(uid(9))]);
    assert!(b.claim_again(recorded.message, &[], &attempt("mx2"), LEASE).is_empty());
}

pub fn a_claim_names_its_row_by_its_value_as_well(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let (mail, key) = (mail("number"), copy_key(&mail("number"), &inbox()));
    let claim = a.claim(&mail, &inbox());
    // As if the row had gone and another message's had its number now.
    let other = Claim { value: RandomValue::default(), ..claim };
    assert!(matches!(b.try_turn(&other, &key), Err(LedgerError::Forgotten)));
    let receipt = ToConfirm {
        claim: other,
        receipt: &uid(1),
        facts: CopyFacts::default(),
        end: None,
        may_be_lost: false,
    };
    assert!(matches!(b.0.confirm(&receipt, soon()), Err(LedgerError::Forgotten)));
    let _ = b.0.release(&[other], soon());
    assert_eq!(b.record(&mail, &[inbox()]).copies, [CopyState::Busy], "nothing was given back");
    assert_eq!(a.confirm(&claim, &uid(2)), Confirmed::Recorded);
    let copy = b.copies(&ALL).remove(0);
    assert!(copy.may_be_double, "what the other wrote may stand there");
    let elsewhere = CopyOnRecord { value: RandomValue::default(), ..copy };
    assert!(!matches!(b.0.settle(&elsewhere, &uid(3), soon()), Ok(true)));
    assert_eq!(b.record(&mail, &[inbox()]).copies, [CopyState::Placed(uid(2))]);
}

/// It stands in mail, and who sees one must not know the next.
pub fn a_rows_value_cannot_be_guessed(rig: &dyn Rig) {
    let hosts = [Host::of(rig), Host::of(rig)];
    let values: Vec<u128> = (0..16)
        .map(|at: usize| hosts[at % 2].claim(&mail(&format!("guess-{at}")), &inbox()).value)
        .map(|value| u128::from_be_bytes(value.array()))
        .collect();
    for (at, value) in values.iter().enumerate() {
        for other in &values[..at] {
            let differ = (value ^ other).count_ones();
            assert!(differ >= 24, "{value:x} and {other:x} differ in {differ} bits");
        }
    }
}

pub fn a_call_made_again_finds_its_own_lease(rig: &dyn Rig) {
    // As when the answer to its commit was lost.
    let mail = mail("made-again");
    let (a, b) = (Host::of(rig), Host::of(rig));
    let us = attempt("mx1");
    let record = |host: &Host, by: &Attempt| {
        host.try_record_by(&mail, by, &[inbox(), sent()], LEASE).expect("record")
    };
    let first = record(&a, &us);
    let second = record(&b, &us);
    assert_eq!(second.copies, first.copies, "the same claims, without a doubt");
    assert_eq!(b.claim_again(first.message, &[inbox()], &us, LEASE), first.copies[..1]);
    // The same host and process id are another attempt's.
    let others = Attempt { value: RandomValue::default(), ..us.clone() };
    assert_eq!(record(&a, &others).copies, [CopyState::Busy, CopyState::Busy]);
    // Once it has run out, or was given back, it is taken anew.
    rig.expire_leases();
    let late = claimed(&record(&a, &us).copies[0]);
    assert_eq!((late.epoch, late.in_doubt), (2, true));
    assert_eq!(claimed(&record(&b, &us).copies[0]), late, "the doubt stays");
    a.release(&[late]);
    let again = claimed(&record(&b, &us).copies[0]);
    assert_eq!((again.epoch, again.in_doubt), (3, true));
    assert_eq!(b.confirm(&again, &uid(1)), Confirmed::Recorded);
    assert_eq!(record(&a, &us).copies[0], CopyState::Placed(uid(1)));
}

pub fn a_lease_is_as_long_as_its_owner_said(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let mail = mail("length");
    let long = LeaseTerms { lease: Duration::from_secs(150), join: false, due: false };
    let short = LeaseTerms { lease: Duration::from_secs(5), join: false, due: false };
    assert!(matches!(
        a.try_record(&mail, &[inbox()], long).expect("record").copies[0],
        CopyState::Claimed(_)
    ));
    assert_eq!(b.try_record(&mail, &[inbox()], short).expect("record").copies, [CopyState::Busy]);
    assert_eq!(b.copies(&ALL)[0].lease, long.lease);
    let join = LeaseTerms { join: true, ..short };
    assert!(matches!(
        b.try_record(&mail, &[inbox()], join).expect("record").copies[0],
        CopyState::Claimed(_)
    ));
    assert_eq!(b.copies(&ALL)[0].lease, long.lease, "joined");
    rig.expire_leases();
    assert!(matches!(
        b.try_record(&mail, &[inbox()], short).expect("record").copies[0],
        CopyState::Claimed(_)
    ));
    assert_eq!(b.copies(&ALL)[0].lease, short.lease, "its own");
}

pub fn a_release_changes_nothing_that_is_not_ours(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let mail = mail("not-released");
    let stale = a.claim(&mail, &inbox());
    rig.expire_leases();
    let live = b.claim(&mail, &inbox());
    a.release(&[stale]);
    assert_eq!(a.record(&mail, &[inbox()]).copies, [CopyState::Busy], "claimed by another since");
    assert_eq!(b.confirm(&live, &uid(1)), Confirmed::Recorded);
    b.release(&[live]);
    assert_eq!(a.record(&mail, &[inbox()]).copies, [CopyState::Placed(uid(1))], "placed is placed");
    a.release(&[]);
}

pub fn release_takes_several_claims(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let mail = mail("several");
    let destinations = [inbox(), sent(), Destination::inbox("zoe")];
    let claims: Vec<Claim> = a.record(&mail, &destinations).copies.iter().map(claimed).collect();
    a.release(&claims[..2]);
    let states = b.record(&mail, &destinations).copies;
    assert!(
        matches!(states[..], [CopyState::Claimed(_), CopyState::Claimed(_), CopyState::Busy]),
        "{states:?}"
    );
}

pub fn of_twenty_that_want_one_copy_one_gets_it(rig: &dyn Rig) {
    const MANY: usize = 20;
    let (barrier, states) = (Barrier::new(MANY), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for n in 0..MANY {
            let (barrier, states) = (&barrier, &states);
            scope.spawn(move || {
                let host = Host::of(rig);
                let own = Destination::inbox(&format!("account{n}"));
                barrier.wait();
                let begun = Instant::now();
                let recorded = loop {
                    match host.try_record(&mail("crowd"), &[sent(), own.clone()], LEASE) {
                        Err(LedgerError::Contended)
                            if begun.elapsed() < Duration::from_secs(60) =>
                        {
                            thread::sleep(Duration::from_millis(1));
                        }
                        result => break result.expect("record"),
                    }
                };
                states.lock().expect("states").push(recorded);
            });
        }
    });
    let states = states.into_inner().expect("states");
    let first = &states[0];
    assert!(
        states.iter().all(|s| (s.message, s.recorded_at) == (first.message, first.recorded_at))
    );
    assert_eq!(states.iter().filter(|s| s.is_new).count(), 1);
    assert!(
        states
            .iter()
            .all(|s| matches!(s.copies[1], CopyState::Claimed(Claim { in_doubt: false, .. })))
    );
    let winners: Vec<_> = states.iter().filter(|s| s.copies[0] != CopyState::Busy).collect();
    assert_eq!(winners.len(), 1);
    assert_eq!(claimed(&winners[0].copies[0]).epoch, 1);
}
