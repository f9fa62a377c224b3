//! Deliveries of the same message at the same time.

use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use onedrop_core::deliver::How;
use onedrop_core::directory::Destination;
use onedrop_core::ledger::memory::MemoryLedger;
use onedrop_core::ledger::{CopyState, Ledger, Turn};
use onedrop_core::store::Store;

use crate::ports::{JOIN, LEASE, inbox, mail, mail_with_body, message, sent, soon};
use crate::script::LedgerFault;
use crate::world::{Before, World};

#[test]
fn a_busy_copy_is_waited_for_and_seen_placed() {
    let world = World::like_imap();
    let (at_work, go_on) = (mpsc::channel::<()>(), mpsc::channel::<()>());
    thread::scope(|scope| {
        let (world_of_first, begun, wait_for) = (world.clone(), at_work.0, go_on.1);
        scope.spawn(move || {
            let delivery = world_of_first.delivery().before("append", move || {
                begun.send(()).expect("a listener");
                wait_for.recv().expect("a word");
            });
            assert_eq!(
                delivery.run(&mail("m"), &[inbox()]).expect_delivered().hows(),
                [How::Stored]
            );
        });
        at_work.1.recv().expect("the first at work");
        let strict = world.deliver(&mail("m"), &[inbox()]).expect_temp_fail();
        assert_eq!(strict.ledger_calls, ["record", "finish"], "without patience one try");
        assert!(strict.outcome.text().contains("another delivery"), "{:?}", strict.outcome);
        // The first goes on when the second has found the copy busy more than once.
        let delivery = world.delivery().waiting(Duration::from_secs(30));
        let (script, go_on) = (Arc::clone(&delivery.script), go_on.0);
        scope.spawn(move || {
            script.wait_for("claim", 2);
            go_on.send(()).expect("a listener");
        });
        let waited = delivery.run(&mail("m"), &[inbox()]).expect_delivered();
        assert_eq!(waited.hows(), [How::AlreadyThere]);
        assert!(waited.store_calls.is_empty());
    });
    assert_eq!(world.count(&inbox()), 1);
}

#[test]
fn a_busy_copy_is_waited_for_though_a_deadlock_ends_a_claim() {
    let world = World::like_imap();
    world.record(&mail("m"), &[inbox()], LEASE);
    let other = world.clone();
    let delivery = world
        .delivery()
        .waiting(Duration::from_secs(30))
        .failing_ledger(1, LedgerFault::Contended)
        .before_nth("claim", 2, move || other.expire_leases());
    let ended = delivery.run(&mail("m"), &[inbox()]).expect_delivered();
    assert_eq!(ended.ledger_calls[..3], ["record", "claim", "claim"]);
    assert_eq!(world.count(&inbox()), 1);
}

#[test]
fn a_ledger_that_is_gone_while_a_copy_is_waited_for_is_named() {
    let world = World::like_imap();
    world.record(&mail("m"), &[inbox()], LEASE);
    let delivery = world
        .delivery()
        .waiting(Duration::from_secs(30))
        .failing_ledger(1, LedgerFault::LostForGood);
    let ended = delivery.run(&mail("m"), &[inbox()]).expect_temp_fail();
    assert_eq!(ended.ledger_calls[..2], ["record", "claim"]);
    assert!(ended.outcome.text().starts_with("ledger: cannot be reached: "), "{:?}", ended.outcome);
}

#[test]
fn a_message_that_another_records_right_now_is_waited_for_or_deferred() {
    let world = World::like_imap();
    let other = Arc::new(world.ledger.clone());
    let recorded = world.record(&mail("other"), &[inbox()], LEASE);
    let CopyState::Claimed(claim) = recorded.copies[0] else { panic!("a claim") };
    // A turn under the message's hash holds the message's lock.
    let turn = other.take_turn(&claim, &mail("m").identity().id_hash, soon()).expect("a turn");
    let ended = world.deliver(&mail("m"), &[inbox()]).expect_temp_fail();
    assert_eq!(ended.ledger_calls, ["record", "finish"]);
    assert_eq!(world.trace(&mail("m")).attempts[0].outcome.as_deref(), Some("tempfail"));
    let holder = Arc::clone(&other);
    let delivery =
        world
            .delivery()
            .waiting(Duration::from_secs(30))
            .before_nth("record", 2, move || holder.lose_session());
    assert_eq!(delivery.run(&mail("m"), &[inbox()]).expect_delivered().hows(), [How::Stored]);
    drop(turn);
}

#[test]
fn ten_recipients_at_once_share_one_sent_copy() {
    for world in World::both() {
        let barrier = Barrier::new(10);
        thread::scope(|scope| {
            for n in 0..10 {
                let (barrier, world) = (&barrier, world.clone());
                scope.spawn(move || {
                    let body = "Message-ID: <ten@example.org>\nFrom: lisa@gmail.com\n\nHello\n";
                    let mail = message(format!(
                        "Return-Path: <lisa@gmail.com>\nDelivered-To: r{n}@x\n{body}"
                    ));
                    let own = Destination::inbox(&format!("r{n}"));
                    barrier.wait();
                    world
                        .delivery()
                        .waiting(Duration::from_secs(40))
                        .run(&mail, &[own, sent()])
                        .expect_delivered();
                });
            }
        });
        let copies = world.store.copies("lisa", "Sent");
        assert_eq!(copies.len(), 1);
        assert!(copies[0].bytes.starts_with(b"Message-ID: <ten"), "names no single recipient");
        for n in 0..10 {
            let own = world.store.copies(&format!("r{n}"), "INBOX");
            assert_eq!(own.len(), 1);
            assert!(own[0].bytes.starts_with(b"Return-Path"), "the recipient's own has all of it");
        }
        assert!(world.trace(&mail("ten")).copies.iter().all(|copy| copy.state == "placed"));
    }
}

#[test]
fn the_same_copy_by_ten_at_once_is_one() {
    for world in World::both() {
        let barrier = Barrier::new(10);
        thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| {
                    barrier.wait();
                    let delivery = world.delivery().waiting(Duration::from_secs(40));
                    delivery.run(&mail("m"), &[inbox()]).expect_delivered();
                });
            }
        });
        assert_eq!(world.count(&inbox()), 1);
    }
}

#[test]
fn two_at_once_leave_one_copy_without_a_turn() {
    let world = World::like_imap();
    let barrier = Barrier::new(2);
    let deliveries = [(); 2].map(|()| world.delivery().waiting(Duration::from_secs(40)));
    let scripts = [0, 1].map(|n: usize| Arc::clone(&deliveries[n].script));
    let mut hows = thread::scope(|scope| {
        let (mut others, barrier) = (scripts.into_iter().rev(), &barrier);
        let running = deliveries.map(|delivery| {
            let other = others.next().expect("one each");
            // It writes when the other one has found the copy busy.
            let delivery = delivery.before("append", move || other.wait_for("claim", 1));
            scope.spawn(move || {
                barrier.wait();
                let ended = delivery.run(&mail("m"), &[inbox()]).expect_delivered();
                assert!(!ended.ledger_calls.contains(&"take_turn"), "{:?}", ended.ledger_calls);
                ended.hows()[0]
            })
        });
        running.map(|delivery| delivery.join().expect("delivered"))
    });
    hows.sort_by_key(|how| *how != How::Stored);
    assert_eq!((hows, world.count(&inbox())), ([How::Stored, How::AlreadyThere], 1));
}

#[test]
fn a_destination_named_twice_gets_one_copy() {
    for world in World::both() {
        let twice = [inbox(), inbox()];
        world
            .delivery()
            .waiting(Duration::from_secs(10))
            .run(&mail("m"), &twice)
            .expect_delivered();
        assert_eq!(world.count(&inbox()), 1);
        world.deliver(&mail("n"), &twice);
        world.deliver(&mail("n"), &twice).expect_delivered();
        assert_eq!(world.count(&inbox()), 2);
    }
}

#[test]
fn messages_that_collide_are_both_delivered() {
    for world in World::both() {
        for body in ["one", "two", "one", "two"] {
            let ended = world.deliver(&mail_with_body("m", body), &[inbox()]).expect_delivered();
            assert_eq!(ended.collision, world.count(&inbox()) == 2);
        }
        assert_eq!(world.count(&inbox()), 2);
    }
}

#[test]
fn whoever_holds_only_the_copys_lock_delays_and_suppresses_nothing() {
    // Two hashes may begin with the same 64 bits, and a frozen process may hold a lock past its
    // lease.
    for (before, world) in
        [(Before::LeasesRanOut, World::like_imap()), (Before::Nothing, World::like_maildir())]
    {
        let destinations = [inbox(), sent()];
        before.set_up(&world, &mail("m"), &destinations);
        let turn = hold_lock(&world, &world.ledger);
        let ended = world.deliver(&mail("m"), &destinations).expect_temp_fail();
        assert_eq!(ended.appended, [sent()]);
        let state = if before == Before::Nothing { "free" } else { "in doubt" };
        assert_eq!(world.copies(&mail("m"))[0].state, state, "given back: nothing was written");
        drop(turn);
        let ended = world.deliver(&mail("m"), &destinations).expect_delivered();
        assert_eq!(ended.hows(), [How::Stored, How::AlreadyThere]);
    }
    // And a delivery that needs no lock does not even wait.
    let world = World::like_imap();
    let _turn = hold_lock(&world, &world.ledger);
    let ended = world.deliver(&mail("m"), &[inbox(), sent()]).expect_delivered();
    assert_eq!(ended.hows(), [How::Stored, How::Stored]);
}

/// Takes the lock on the copy of `mail("m")` in doug's INBOX, and nothing else of it.
fn hold_lock<'a>(world: &World, ledger: &'a MemoryLedger) -> Turn<'a> {
    let recorded = world.record(&mail("other"), &[inbox()], LEASE);
    let CopyState::Claimed(claim) = recorded.copies[0] else { panic!("a claim") };
    let key = mail("m").identity().copy_key("doug", "INBOX");
    ledger.take_turn(&claim, &key, soon()).expect("a turn")
}

#[test]
fn a_copy_that_a_joined_delivery_wrote_is_looked_for_by_the_one_that_had_the_lease() {
    // A file that a reader has moved and marked does not stop a second link of its first name: only
    // the look finds it.
    let world = World::like_maildir();
    let other = world.clone();
    let first = world.delivery().before("reserve", move || {
        // It joins, writes, and is gone before it can say so; and the reader is quick.
        let joined = other.delivery().failing_ledger(2, LedgerFault::Crash);
        let ended = joined.run(&mail("m"), &[inbox()]).expect_temp_fail();
        assert_eq!(ended.store_calls, ["look", "append"]);
        other.store.meddle("doug", "INBOX", |mailbox| mailbox[0].renamed = true);
    });
    let ended = first.run(&mail("m"), &[inbox()]).expect_delivered();
    assert_eq!(ended.hows(), [How::Found]);
    assert_eq!(world.count(&inbox()), 1);
}

#[test]
fn a_live_lease_is_joined_only_where_appends_are_idempotent() {
    for world in World::both() {
        world.record(&mail("m"), &[inbox()], JOIN);
        let ended = world.deliver(&mail("m"), &[inbox()]);
        assert_eq!(ended.is_delivered(), world.store.append_is_idempotent());
    }
}
