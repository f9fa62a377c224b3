//! A delivery that was frozen, or cut off from its ledger, while it talks to the store.

use std::thread;
use std::time::Duration;

use onedrop_core::deadline::Deadline;
use onedrop_core::deliver::How;
use onedrop_core::ledger::{Confirmed, CopyFacts, CopyState, LeaseTerms, Ledger, ToConfirm};
use onedrop_core::store::{Receipt, Store, StoreError};

use crate::ports::{JOIN, LEASE, inbox, mail, soon};
use crate::script::StoreFault;
use crate::world::{Before, Delivery, World};

/// A delivery that is frozen before an append, and all its locks and leases gone when it goes on.
fn frozen(world: &World, meanwhile: impl FnOnce() + Send + 'static) -> Delivery {
    let (delivery, ledger) = (world.delivery(), world.ledger.clone());
    let lose_locks = delivery.lose_locks();
    delivery.before("append", move || {
        lose_locks();
        ledger.advance(2 * LEASE.lease);
        meanwhile();
    })
}

/// Another delivery has a copy of its own on record, whatever brought it there.
fn confirms(world: &World, terms: LeaseTerms, receipt: &Receipt) {
    let recorded = world.record(&mail("m"), &[inbox()], terms);
    let CopyState::Claimed(claim) = recorded.copies[0] else { panic!("a claim") };
    let one =
        ToConfirm { claim, receipt, facts: CopyFacts::default(), end: None, may_be_lost: false };
    assert_eq!(world.ledger.confirm(&one, soon()).expect("confirm"), Confirmed::Recorded);
}

#[test]
fn a_late_copy_is_taken_out_again_by_whoever_wrote_it() {
    let cases: [(Before, &[&str]); 2] = [
        (Before::Nothing, &["append", "remove"]),
        (Before::LeasesRanOut, &["look", "append", "remove"]),
    ];
    for (before, calls) in cases {
        let world = World::like_imap();
        before.set_up(&world, &mail("m"), &[inbox()]);
        let (delivery, other) = (world.delivery(), world.clone());
        // Without a turn it is enough that the ledger's clock alone has gone on.
        let lose_locks = (before != Before::Nothing).then(|| delivery.lose_locks());
        let frozen = delivery.before("append", move || {
            lose_locks.into_iter().for_each(|lose_locks| lose_locks());
            other.expire_leases();
            other.deliver(&mail("m"), &[inbox()]).expect_delivered();
        });
        let ended = frozen.run(&mail("m"), &[inbox()]).expect_temp_fail();
        assert_eq!(ended.store_calls, calls);
        assert_eq!(world.count(&inbox()), 1);
        let kept = world.store.copies("doug", "INBOX")[0].uid;
        assert_eq!(
            world.copies(&mail("m"))[0].receipt,
            Some(format!("uid={kept}")),
            "the one on record"
        );
        let frozen = &world.trace(&mail("m")).attempts[usize::from(before != Before::Nothing)];
        assert_eq!(frozen.outcome.as_deref(), Some("tempfail"));
        assert_eq!(
            world.deliver(&mail("m"), &[inbox()]).expect_delivered().hows(),
            [How::AlreadyThere]
        );
    }
}

#[test]
fn a_late_copy_that_cannot_be_taken_out_is_told() {
    let failing = || StoreError::NotStored("told to fail".to_owned());
    for world in [World::like_imap(), World::without_uidplus()] {
        let other = world.clone();
        let frozen = frozen(&world, move || {
            other.deliver(&mail("m"), &[inbox()]).expect_delivered();
        });
        let frozen = frozen.refusing("remove", failing());
        let ended = frozen.run(&mail("m"), &[inbox()]).expect_temp_fail();
        assert!(ended.outcome.text().contains("may stand"), "{:?}", ended.outcome);
        let attempt = &world.trace(&mail("m")).attempts[0];
        assert!(
            attempt.text.as_deref().is_some_and(|text| text.contains("may stand")),
            "on record: {attempt:?}"
        );
        assert_eq!(world.count(&inbox()), 2);
        world.deliver(&mail("m"), &[inbox()]).expect_delivered();
        assert_eq!(world.count(&inbox()), 2, "settled by verify, not by a delivery");
    }
}

#[test]
fn a_late_receipt_wins_while_no_other_is_on_record() {
    // Whoever claimed it since may be about to find and record this very copy: taking it out would
    // lose the message.
    let world = World::like_imap();
    let other = world.clone();
    let frozen = frozen(&world, move || {
        let claimed = other.record(&mail("m"), &[inbox()], LEASE).copies.remove(0);
        assert!(matches!(claimed, CopyState::Claimed(_)));
    });
    let ended = frozen.run(&mail("m"), &[inbox()]).expect_delivered();
    assert_eq!(ended.store_calls, ["append"]);
    assert_eq!(world.count(&inbox()), 1);
    assert_eq!(
        world.deliver(&mail("m"), &[inbox()]).expect_delivered().hows(),
        [How::AlreadyThere]
    );
    assert_eq!(world.count(&inbox()), 1);
}

#[test]
fn a_copy_found_by_the_look_is_never_taken_out() {
    let world = World::like_imap();
    Before::CopyWithoutReceipt.set_up(&world, &mail("m"), &[inbox()]);
    let found = world.store.copies("doug", "INBOX")[0].uid;
    let (delivery, other) = (world.delivery(), world.clone());
    let lose_locks = delivery.lose_locks();
    let frozen = delivery.after("look", move || {
        lose_locks();
        other.expire_leases();
        confirms(&other, LEASE, &Receipt::uid(1, 77));
    });
    let ended = frozen.run(&mail("m"), &[inbox()]).expect_temp_fail();
    assert_eq!(ended.store_calls, ["look"]);
    assert_eq!(world.store.copies("doug", "INBOX")[0].uid, found);
}

#[test]
fn a_copy_that_two_found_is_delivered_by_both() {
    let world = World::like_imap();
    Before::CopyWithoutReceipt.set_up(&world, &mail("m"), &[inbox()]);
    let (delivery, other) = (world.delivery(), world.clone());
    let lose_locks = delivery.lose_locks();
    let frozen = delivery.after("look", move || {
        lose_locks();
        other.expire_leases();
        assert_eq!(other.deliver(&mail("m"), &[inbox()]).expect_delivered().hows(), [How::Found]);
    });
    frozen.run(&mail("m"), &[inbox()]).expect_delivered();
    assert_eq!(world.count(&inbox()), 1);
}

#[test]
fn a_copy_that_another_found_before_its_writer_could_confirm_is_delivered_by_both() {
    let world = World::like_imap();
    let (delivery, other) = (world.delivery(), world.clone());
    let lose_locks = delivery.lose_locks();
    let frozen = delivery.after("append", move || {
        lose_locks();
        other.expire_leases();
        assert_eq!(other.deliver(&mail("m"), &[inbox()]).expect_delivered().hows(), [How::Found]);
    });
    let ended = frozen.run(&mail("m"), &[inbox()]).expect_delivered();
    assert_eq!(ended.store_calls, ["append"], "nothing is taken out");
    assert_eq!(world.count(&inbox()), 1);
}

#[test]
fn a_reserved_copy_keeps_others_away_from_a_delivery_that_is_frozen_past_its_lease() {
    let world = World::like_maildir();
    let other = world.clone();
    let frozen = frozen(&world, move || {
        let kept_away = other.deliver(&mail("m"), &[inbox()]).expect_temp_fail();
        assert!(kept_away.store_calls.is_empty());
    });
    let ended = frozen.run(&mail("m"), &[inbox()]).expect_delivered();
    assert_eq!(ended.store_calls, ["append"]);
    assert_eq!(world.count(&inbox()), 1);
}

#[test]
fn where_appends_are_idempotent_a_late_copy_is_the_same_copy() {
    // Over a network's file system the lock may be lost with the answer.
    let world = World::like_maildir();
    world.delivery().failing_store(0, StoreFault::LostInDoubt).run(&mail("m"), &[inbox()]);
    world.deliver(&mail("m"), &[inbox()]).expect_delivered();
    for append in world.store.under_way() {
        world.store.take_effect(append);
    }
    assert_eq!(world.count(&inbox()), 1);
}

#[test]
fn where_appends_are_idempotent_nothing_is_taken_out() {
    // Both names may be of the one file there is.
    let world = World::like_maildir();
    let other = world.clone();
    let frozen = frozen(&world, move || {
        confirms(&other, JOIN, &Receipt::name("another"));
    });
    assert_eq!(frozen.run(&mail("m"), &[inbox()]).expect_temp_fail().store_calls, ["append"]);
    assert_eq!(world.count(&inbox()), 1);
}

#[test]
fn a_claim_that_is_gone_before_the_turn_writes_nothing() {
    let cases = [
        (Before::LeasesRanOut, World::like_imap as fn() -> World, LEASE),
        (Before::Nothing, World::like_maildir, JOIN),
        (Before::LeasesRanOut, World::like_maildir, JOIN),
    ];
    for (wait, (before, world, terms)) in [Duration::ZERO, Duration::from_secs(10)]
        .into_iter()
        .flat_map(|wait| cases.map(|case| (wait, case)))
    {
        let world = world();
        before.set_up(&world, &mail("m"), &[inbox()]);
        let other = world.clone();
        // What has reserved a copy keeps others from it.
        let call = if world.store.append_is_idempotent() { "reserve" } else { "take_turn" };
        let frozen = world.delivery().waiting(wait).before(call, move || {
            other.expire_leases();
            other.deliver(&mail("m"), &[inbox()]).expect_delivered();
        });
        let ended = frozen.run(&mail("m"), &[inbox()]).expect_delivered();
        assert!(ended.store_calls.is_empty());
        assert_eq!(ended.hows(), [How::AlreadyThere]);
        // Claimed and not placed yet: busy, until it is placed or the patience is at its end.
        before.set_up(&world, &mail("n"), &[inbox()]);
        let other = world.clone();
        let frozen = world.delivery().before("take_turn", move || {
            other.expire_leases();
            other.record(&mail("n"), &[inbox()], terms);
        });
        let ended = frozen.run(&mail("n"), &[inbox()]).expect_temp_fail();
        assert!(ended.store_calls.is_empty());
        assert_eq!(world.count(&inbox()), 1);
    }
}

/// What others did with a copy while its first delivery was frozen past the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    Leased,
    Placed,
}

#[test]
fn without_a_turn_the_deadline_stops_whoever_was_frozen_before_its_last_check() {
    for meanwhile in [Meanwhile::Nothing, Meanwhile::Leased, Meanwhile::Placed] {
        let world = World::like_imap();
        let (mut delivery, other) = (world.delivery(), world.clone());
        delivery.deadline = Deadline::new(Duration::from_millis(200), Duration::from_millis(100));
        let deadline = delivery.deadline.clone();
        let frozen = delivery.before("append", move || {
            while !deadline.left().is_zero() {
                thread::sleep(deadline.left());
            }
            other.expire_leases();
            match meanwhile {
                Meanwhile::Nothing => {}
                Meanwhile::Leased => drop(other.record(&mail("m"), &[inbox()], LEASE)),
                Meanwhile::Placed => drop(other.deliver(&mail("m"), &[inbox()]).expect_delivered()),
            }
        });
        let ended = frozen.run(&mail("m"), &[inbox()]).expect_temp_fail();
        assert!(ended.outcome.text().contains("too little time left"), "{:?}", ended.outcome);
        assert_eq!(ended.ledger_calls, ["record", "release", "finish"], "{meanwhile:?}");
        let (state, count) = match meanwhile {
            Meanwhile::Nothing => ("free", 0),
            Meanwhile::Leased => ("leased", 0),
            Meanwhile::Placed => ("placed", 1),
        };
        assert_eq!(
            (world.copies(&mail("m"))[0].state.as_str(), world.count(&inbox())),
            (state, count)
        );
        world.assert_mends(&mail("m"), &[inbox()], &format!("{meanwhile:?}"));
    }
}

#[test]
fn a_turn_keeps_others_away_from_whoever_was_frozen_past_its_lease() {
    let world = World::like_imap();
    Before::LeasesRanOut.set_up(&world, &mail("m"), &[inbox()]);
    let other = world.clone();
    let frozen = world.delivery().before("append", move || {
        other.expire_leases();
        let kept_away = other.deliver(&mail("m"), &[inbox()]).expect_temp_fail();
        assert!(kept_away.store_calls.is_empty());
        assert!(kept_away.ledger_calls.contains(&"take_turn"), "{:?}", kept_away.ledger_calls);
    });
    let ended = frozen.run(&mail("m"), &[inbox()]).expect_delivered();
    assert_eq!(ended.store_calls, ["look", "append"], "nothing is taken out");
    assert_eq!(
        world.deliver(&mail("m"), &[inbox()]).expect_delivered().hows(),
        [How::AlreadyThere]
    );
    assert_eq!(world.count(&inbox()), 1);
}
