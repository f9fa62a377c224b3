//! What a delivery holds while it writes: the copy's turn in the ledger, and its lock in a store
//! that has locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use onedrop_core::deadline::Deadline;
use onedrop_core::deliver::How;
use onedrop_core::ledger::{Claim, CopyState, Ledger, LedgerError, RandomValue};
use onedrop_core::lock_key::Hash;
use onedrop_core::store::{Copy, Need, Store};

use crate::ports::{JOIN, LEASE, inbox, mail, sent, soon};
use crate::script::StoreFault;
use crate::world::{Before, NO_TURN, TURN_TAKEN, World};

/// The key of the copy of `mail("m")` in doug's INBOX.
fn inbox_key() -> Hash {
    mail("m").identity().copy_key("doug", "INBOX")
}

/// Reserves the copy of `mail("m")` in doug's INBOX for as long as `then` takes; false, and nothing
/// done, where another delivery has it.
fn reserving(world: &World, then: impl FnOnce()) -> bool {
    let (mail, key, destination) = (mail("m"), inbox_key(), inbox());
    let deadline = Deadline::new(Duration::from_secs(60), Duration::from_secs(20));
    let copy = Copy {
        key: &key,
        head: b"",
        bytes: mail.own_copy(),
        identity: mail.identity(),
        recorded_at: UNIX_EPOCH,
        looks_back: false,
        handed: None,
        looked: None,
        newer_than: None,
    };
    let slot = world.store.reserve(&destination, copy, Need::Write, &deadline).expect("a store");
    let is_free = slot.is_some();
    if is_free {
        then();
    }
    is_free
}

fn is_reserved(world: &World) -> bool {
    !reserving(world, || {})
}

#[test]
fn a_turn_is_taken_in_doubt_or_where_leases_are_joined() {
    for (which, before) in (0..2).flat_map(|which| Before::ALL.map(|before| (which, before))) {
        let world = World::both()[which].clone();
        before.set_up(&world, &mail("m"), &[inbox()]);
        // From a session of its own: does the delivery hold the copy's lock while it writes or
        // looks?
        let (other, held) = (world.ledger.clone(), Arc::new(AtomicBool::new(false)));
        let seen = Arc::clone(&held);
        let call = if before == Before::CopyWithoutReceipt { "look" } else { "append" };
        let delivery = world.delivery().before(call, move || {
            let claim = Claim {
                copy: 1,
                value: RandomValue::default(),
                epoch: 1,
                in_doubt: false,
                looks_back: false,
            };
            let turn = other.take_turn(&claim, &inbox_key(), soon());
            seen.store(matches!(turn, Err(LedgerError::Contended)), Ordering::SeqCst);
        });
        let ended = delivery.run(&mail("m"), &[inbox()]).expect_delivered();
        let takes_turn = before != Before::Nothing || world.store.append_is_idempotent();
        let calls = match before {
            Before::Nothing => world.calls(),
            _ => world.calls_in_doubt(),
        };
        assert_eq!(ended.ledger_calls, calls, "{before:?}, store {which}");
        assert_eq!(held.load(Ordering::SeqCst), takes_turn, "{before:?}, store {which}");
        assert_eq!(world.count(&inbox()), 1);
    }
}

/// A delivery that waited for the store in its turn would keep the ledger from all others.
#[test]
fn what_the_store_needs_is_reserved_before_the_turn() {
    let mail = mail("m");
    let world = World::like_imap();
    Before::CopyWithoutReceipt.set_up(&world, &mail, &[inbox()]);
    let failing = world.delivery().failing_reserve(0, StoreFault::Refused);
    let ended = failing.run(&mail, &[inbox()]).expect_temp_fail();
    assert_eq!(ended.ledger_calls, ["record", "receipt_before", "release", "finish"], "no turn");
    assert_eq!(world.copies(&mail)[0].state, "in doubt", "as before");
    assert_eq!(world.deliver(&mail, &[inbox()]).expect_delivered().hows(), [How::Found]);

    // Busy first, and in doubt when it is free.
    let world = World::like_imap();
    world.record(&mail, &[inbox()], LEASE);
    let late = world.clone();
    let failing = world.delivery().failing_reserve(0, StoreFault::Refused);
    let delivery = failing.waiting(Duration::from_secs(30));
    let ended = delivery.before("claim", move || late.expire_leases()).run(&mail, &[inbox()]);
    let ended = ended.expect_temp_fail();
    assert_eq!(ended.ledger_calls, ["record", "claim", "receipt_before", "release", "finish"]);
    assert_eq!(ended.reserved, ["reserve"], "nothing while it waits");
    assert_eq!(world.deliver(&mail, &[inbox()]).expect_delivered().hows(), [How::Stored]);
}

#[test]
fn a_copy_that_is_reserved_since_before_the_record_takes_no_turn() {
    let world = World::like_maildir();
    let assert_reserved = |world: &World| {
        let world = world.clone();
        move || assert!(is_reserved(&world), "no other may look for it and append it")
    };
    let delivery = world.delivery().early().before("append", assert_reserved(&world));
    let delivery = delivery.before("confirm", assert_reserved(&world));
    let ended = delivery.run(&mail("m"), &[inbox()]).expect_delivered();
    assert_eq!((ended.ledger_calls, ended.store_calls), (NO_TURN.to_vec(), vec!["append"]));
    assert_eq!(ended.reserved, ["begin"]);
    assert!(world.count(&inbox()) == 1 && !is_reserved(&world));

    // In doubt it takes one all the same.
    let world = World::like_maildir();
    Before::CopyWithoutReceipt.set_up(&world, &mail("m"), &[inbox()]);
    let delivery = world.delivery().early().before("look", assert_reserved(&world));
    let ended = delivery.run(&mail("m"), &[inbox()]).expect_delivered();
    assert_eq!((ended.hows(), ended.ledger_calls), (vec![How::Found], TURN_TAKEN.to_vec()));

    // Of several copies none begins before the record.
    let ended = world.delivery().early().run(&mail("n"), &[inbox(), sent()]).expect_delivered();
    assert_eq!(ended.ledger_calls, ["record", "take_turn", "confirm", "take_turn", "confirm"]);
    assert_eq!(ended.reserved, ["reserve", "reserve"]);
}

#[test]
fn a_copy_that_was_not_to_be_had_before_the_record_takes_a_turn() {
    // Another has it when the append begins, and not any more when the message is on record.
    let world = World::like_maildir();
    let early = world.delivery().early();
    let (first, go_on) = mpsc::channel();
    let early = early.before("record", move || first.send(()).expect("a listener"));
    let script = Arc::clone(&early.script);
    thread::scope(|scope| {
        let (holding, held) = mpsc::channel();
        let holder = world.clone();
        scope.spawn(move || {
            let is_free = reserving(&holder, || {
                holding.send(()).expect("a listener");
                script.wait_for("record", 1);
            });
            assert!(is_free);
            go_on.recv().expect("a word");
        });
        held.recv().expect("reserved");
        let ended = early.waiting(Duration::from_secs(60)).run(&mail("m"), &[inbox()]);
        assert!(ended.expect_delivered().ledger_calls.contains(&"take_turn"));
    });
    assert_eq!(world.count(&inbox()), 1);

    // Or it was given up, to wait for the message's lock.
    let world = World::like_maildir();
    let other = Arc::new(world.ledger.clone());
    let claimed = world.record(&mail("other"), &[inbox()], JOIN).copies.remove(0);
    let CopyState::Claimed(claim) = claimed else { panic!("a claim") };
    let turn = other.take_turn(&claim, &mail("m").identity().id_hash, soon()).expect("a turn");
    let (holder, its) = (Arc::clone(&other), world.clone());
    let delivery = world.delivery().early().waiting(Duration::from_secs(60));
    let delivery = delivery.before_nth("record", 2, move || {
        assert!(!is_reserved(&its), "while it waits, a delivery holds nothing that others need");
        holder.lose_session();
    });
    let ended = delivery.run(&mail("m"), &[inbox()]).expect_delivered();
    assert!(ended.ledger_calls.ends_with(TURN_TAKEN), "{:?}", ended.ledger_calls);
    assert_eq!(ended.reserved, ["begin", "reserve"]);
    assert!(world.count(&inbox()) == 1 && !is_reserved(&world));
    drop(turn);
}

#[test]
fn a_copy_that_another_has_reserved_is_not_written_and_its_claim_is_given_back() {
    let world = World::like_maildir();
    // The lock of another copy may be the same byte.
    reserving(&world, || {
        let ended = world.delivery().early().run(&mail("m"), &[inbox()]).expect_temp_fail();
        assert!(ended.outcome.text().contains("another delivery"), "{:?}", ended.outcome);
        assert_eq!(ended.ledger_calls, ["record", "release", "finish"]);
        assert_eq!(ended.reserved, ["begin", "reserve"]);
        assert_eq!((ended.store_calls, world.count(&inbox())), (vec![], 0));
        assert_eq!(world.copies(&mail("m"))[0].state, "free");
    });

    // While another is about to write: what comes then has joined its lease, and spoils nothing.
    let other = world.clone();
    let first = world.delivery().early().before("append", move || {
        let ended = other.delivery().early().run(&mail("m"), &[inbox()]).expect_temp_fail();
        assert_eq!(ended.ledger_calls, ["record", "release", "finish"]);
        assert!(ended.store_calls.is_empty());
        assert_eq!(other.copies(&mail("m"))[0].state, "in doubt", "a copy is written or will be");
    });
    let ended = first.run(&mail("m"), &[inbox()]).expect_delivered();
    assert_eq!(ended.ledger_calls, NO_TURN);
    assert_eq!((world.copies(&mail("m"))[0].state.as_str(), world.count(&inbox())), ("placed", 1));
}

#[test]
fn a_copy_that_another_has_reserved_is_waited_for_and_seen_placed() {
    let (world, (tell, told)) = (World::like_maildir(), mpsc::channel());
    let second = world.delivery().early().waiting(Duration::from_secs(60));
    let script = Arc::clone(&second.script);
    let first = world.delivery().early().before("append", move || {
        thread::spawn(move || tell.send(second.run(&mail("m"), &[inbox()])).expect("a listener"));
        // Tried, and tried again after a wait.
        script.wait_for("reserve", 2);
    });
    assert_eq!(first.run(&mail("m"), &[inbox()]).expect_delivered().hows(), [How::Stored]);
    let ended = told.recv().expect("an end").expect_delivered();
    assert_eq!((ended.hows(), ended.store_calls), (vec![How::AlreadyThere], vec![]));
    assert_eq!(ended.ledger_calls, ["record", "take_turn", "finish"], "no turn without the lock");
    assert!(ended.reserved.starts_with(&["begin", "reserve", "reserve"]), "{:?}", ended.reserved);
    assert!(world.count(&inbox()) == 1 && !is_reserved(&world));
}
