//! Turns: one delivery at a time places a copy that is in doubt.

use super::*;

pub fn a_turn_excludes_others_until_it_is_dropped(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let mail = mail("turn");
    let key = copy_key(&mail, &inbox());
    let other_key = copy_key(&mail, &sent());
    let copies = a.record(&mail, &[inbox(), sent()]).copies;
    let (claim, other) = (claimed(&copies[0]), claimed(&copies[1]));
    let turn = a.turn(&claim, &key);
    assert_eq!(turn, OURS);
    assert!(matches!(b.try_turn(&claim, &key), Err(LedgerError::Contended)));
    let again = a.try_turn(&claim, &key);
    assert!(matches!(again, Err(LedgerError::Contended)), "its own handle is no exception");
    assert_eq!(
        b.turn(&other, &other_key),
        OURS,
        "another copy's turn, by a handle whose call just failed"
    );
    drop(turn);
    let turn = b.turn(&claim, &key);
    assert_eq!(turn, OURS, "free after the drop");
    assert_eq!(turn.confirm(&claim, &uid(1)), Confirmed::Recorded);
    assert_eq!(a.turn(&claim, &key), TurnState::Placed(uid(1)), "free after confirm");
    // And after a confirm that came second.
    let turn = a.turn(&other, &other_key);
    assert_eq!(turn, OURS);
    assert_eq!(turn.confirm(&claim, &uid(2)), Confirmed::Superseded { by: uid(1) });
    assert_eq!(b.turn(&other, &other_key), OURS);
}

pub fn a_thread_that_panics_gives_up_its_turn(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let mail = mail("panic");
    let key = copy_key(&mail, &inbox());
    let claim = a.claim(&mail, &inbox());
    let panicked = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let _turn = a.turn(&claim, &key);
            panic!("in its turn, as the test wants it");
        });
        thread.join()
    });
    assert!(panicked.is_err());
    assert_eq!(b.turn_when_free(&claim, &key), OURS);
    assert_eq!(a.turn_when_free(&claim, &key), OURS, "the handle goes on");
}

pub fn a_handle_that_is_dropped_leaves_no_lock(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let mail = mail("dropped");
    let key = copy_key(&mail, &inbox());
    let claim = a.claim(&mail, &inbox());
    assert_eq!(a.turn(&claim, &key), OURS);
    assert!(a.0.prove_exclusion("dropped", soon()).is_ok());
    drop(a);
    assert_eq!(b.turn_when_free(&claim, &key), OURS);
}

pub fn a_turn_whose_session_was_lost_is_free_and_its_receipt_can_still_be_recorded(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let mail = mail("lost");
    let key = copy_key(&mail, &inbox());
    let claim = a.claim(&mail, &inbox());
    let turn = a.turn(&claim, &key);
    assert_eq!(turn, OURS);
    if !rig.lose_sessions() {
        return;
    }
    assert_eq!(b.turn_when_free(&claim, &key), OURS);
    let confirmed = turn.try_confirm(&claim, &uid(1));
    assert!(
        matches!(confirmed, Ok(Confirmed::Recorded) | Err(LedgerError::Unavailable(_))),
        "{confirmed:?}"
    );
    assert_eq!(a.confirm(&claim, &uid(1)), Confirmed::Recorded, "again, without the turn");
    assert_eq!(b.turn(&claim, &key), TurnState::Placed(uid(1)));
}

pub fn a_turn_that_is_not_ours_holds_nothing(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let mail = mail("not-ours");
    let key = copy_key(&mail, &inbox());
    let stale = a.claim(&mail, &inbox());
    rig.expire_leases();
    let live = b.claim(&mail, &inbox());
    let gone = a.turn(&stale, &key);
    assert_eq!(gone, TurnState::EpochGone);
    let turn = b.turn(&live, &key);
    assert_eq!(turn, OURS_IN_DOUBT);
    assert_eq!(turn.confirm(&live, &uid(4)), Confirmed::Recorded);
    let placed = a.turn(&stale, &key);
    assert_eq!(placed, TurnState::Placed(uid(4)), "placed counts more than a lost epoch");
    assert_eq!(b.turn(&live, &key), TurnState::Placed(uid(4)));
    // Nor does a turn on a row that does not exist.
    let nowhere = Claim { copy: i64::MAX, ..live };
    assert!(matches!(a.try_turn(&nowhere, &key), Err(LedgerError::Forgotten)));
    assert_eq!(b.turn(&live, &key), TurnState::Placed(uid(4)));
}

pub fn a_confirm_that_fails_ends_the_turn(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let mail = mail("failed-confirm");
    let key = copy_key(&mail, &inbox());
    let claim = a.claim(&mail, &inbox());
    let turn = a.turn(&claim, &key);
    assert_eq!(turn, OURS);
    let nowhere = Claim { copy: i64::MAX, ..claim };
    assert!(turn.try_confirm(&nowhere, &uid(1)).is_err());
    assert_eq!(b.turn_when_free(&claim, &key), OURS);
    assert_eq!(a.confirm(&claim, &uid(1)), Confirmed::Recorded, "the handle goes on");
}

pub fn a_handle_has_several_turns_and_each_ends_for_itself(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let mail = mail("open");
    let (first_key, second_key) = (copy_key(&mail, &inbox()), copy_key(&mail, &sent()));
    let copies = a.record(&mail, &[inbox(), sent()]).copies;
    let (first, second) = (claimed(&copies[0]), claimed(&copies[1]));
    let (one, two) = (a.turn(&first, &first_key), a.turn(&second, &second_key));
    assert_eq!(one, OURS);
    assert_eq!(two, OURS);
    let is_contended = |claim, key| matches!(b.try_turn(claim, key), Err(LedgerError::Contended));
    drop(one);
    assert_eq!(b.turn(&first, &first_key), OURS);
    assert!(is_contended(&second, &second_key), "the other one is still open");
    // Whatever else the handle is used for meanwhile.
    a.record(&message("Message-ID: <else@x>\n\nx\n"), &[inbox()]);
    a.release(&[first]);
    assert_eq!(a.trace("open@example.org").len(), 1);
    assert!(a.0.prove_exclusion("open", soon()).is_ok());
    assert!(is_contended(&second, &second_key));
    assert_eq!(two.confirm(&second, &uid(1)), Confirmed::Recorded);
    assert_eq!(b.turn(&second, &second_key), TurnState::Placed(uid(1)));
}

pub fn a_turn_ignores_a_lease_that_only_ran_out(rig: &dyn Rig) {
    // The clock is the caller's to check; what counts here is whether another has claimed the copy
    // since.
    let host = Host::of(rig);
    let mail = mail("ran-out");
    let claim = host.claim(&mail, &inbox());
    rig.expire_leases();
    let turn = host.turn(&claim, &copy_key(&mail, &inbox()));
    assert_eq!(turn, OURS);
    assert_eq!(turn.confirm(&claim, &uid(3)), Confirmed::Recorded);
}

pub fn exclusion_is_proven_and_leaves_no_lock(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    for name in ["check", "check", "other \0 'é"] {
        a.0.prove_exclusion(name, soon()).expect("exclusion");
        b.0.prove_exclusion(name, soon()).expect("exclusion");
    }
    let claim = a.claim(&mail("check"), &inbox());
    let turn = a.turn(&claim, &lock_key::name_hash("check"));
    assert_eq!(turn, OURS, "the lock is free");
    assert!(b.0.prove_exclusion("check", soon()).is_err(), "the lock is taken");
    b.0.prove_exclusion("other", soon()).expect("exclusion by another lock");
    drop(turn);
    b.0.prove_exclusion("check", soon()).expect("exclusion");
}

pub fn twenty_processes_that_take_turns_are_never_two(rig: &dyn Rig) {
    taking_turns(rig, &|| Host::of(rig));
}

pub fn twenty_threads_that_take_turns_are_never_two(rig: &dyn Rig) {
    let server = Host::of(rig);
    taking_turns(rig, &|| server.clone());
}

fn taking_turns(rig: &dyn Rig, host: &(dyn Fn() -> Host + Sync)) {
    const MANY: usize = 20;
    let mail = mail("turns");
    let key = copy_key(&mail, &inbox());
    let claim = Host::of(rig).claim(&mail, &inbox());
    let (barrier, inside, turns) = (Barrier::new(MANY), AtomicU32::new(0), AtomicU32::new(0));
    let take_one = || {
        let host = host();
        barrier.wait();
        let begun = Instant::now();
        loop {
            match host.try_turn(&claim, &key) {
                Ok(turn) => {
                    assert_eq!(turn, OURS);
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                    thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    turns.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                Err(LedgerError::Contended) => {
                    assert!(begun.elapsed() < Duration::from_secs(60), "never its turn");
                    thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("{error}"),
            }
        }
    };
    thread::scope(|scope| (0..MANY).for_each(|_| drop(scope.spawn(take_one))));
    assert_eq!(turns.into_inner() as usize, MANY);
}
