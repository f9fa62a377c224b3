//! A recipient's mailbox that is not there: its copy goes to INBOX, where the copy of whoever else
//! means INBOX is the same one; whatever fails, in any order, and if the mailbox is made meanwhile.

use std::time::{Duration, UNIX_EPOCH};

use onedrop_core::deliver::How;
use onedrop_core::directory::Destination;
use onedrop_core::ledger::{Confirmed, CopyFacts, CopyState, Ledger, ToConfirm};
use onedrop_core::store::{Receipt, StoreError};

use crate::ports::{LEASE, inbox, mail, soon};
use crate::script::{LedgerFault, StoreFault};
use crate::world::{Ended, World};

fn lists() -> Destination {
    Destination { mailbox: "lists".to_owned(), ..inbox() }
}

fn other() -> Destination {
    Destination { mailbox: "other".to_owned(), ..inbox() }
}

fn counts(world: &World) -> (usize, usize) {
    (world.count(&lists()), world.count(&inbox()))
}

#[test]
fn a_mailbox_that_is_not_there_leaves_its_copy_to_inbox_and_says_so() {
    for world in World::both() {
        let ended = world.deliver(&mail("m"), &[lists()]).expect_delivered();
        assert_eq!(counts(&world), (0, 1));
        let placed = ended.endings[0].own.as_ref().expect("placed");
        assert_eq!((placed.destination.clone(), placed.how), (inbox(), How::Stored));
        assert_eq!(placed.instead_of.as_deref(), Some("lists"));
        let receipt = placed.receipt.to_string();
        let said = format!("stored account=doug mailbox=INBOX {receipt} instead_of=lists");
        assert_eq!(ended.outcome.text(), said);
        let trace = world.trace(&mail("m"));
        assert_eq!(trace.attempts[0].text.as_deref(), Some(said.as_str()));
        let copies = trace.copies.iter().map(|copy| {
            let receipt = copy.receipt.as_deref().expect("placed");
            (copy.mailbox.as_str(), copy.state.as_str(), receipt)
        });
        let expected =
            [("lists", "elsewhere", "instead=INBOX"), ("INBOX", "placed", receipt.as_str())];
        assert_eq!(copies.collect::<Vec<_>>(), expected);
        // Once on record that holds, also if the mailbox is there by now.
        world.store.make_mailbox("doug", "lists");
        let again = world.deliver(&mail("m"), &[lists()]).expect_delivered();
        assert_eq!(again.outcome.text(), said.replace("stored", "already there"));
        assert!(again.store_calls.is_empty());
        assert_eq!(counts(&world), (0, 1));
    }
}

#[test]
fn all_who_come_to_inbox_have_one_copy_there_in_any_order() {
    let orders: [&[&[Destination]]; 7] = [
        &[&[inbox()], &[lists()]],
        &[&[lists()], &[inbox()]],
        &[&[inbox(), lists()]],
        &[&[lists(), inbox()]],
        &[&[lists(), other()]],
        &[&[lists(), other(), inbox()]],
        &[&[lists()], &[other()], &[inbox()], &[lists(), inbox()]],
    ];
    for order in orders {
        for world in World::both() {
            for destinations in order {
                let ended = world.deliver(&mail("m"), destinations).expect_delivered();
                for (ending, meant) in ended.endings.iter().zip(*destinations) {
                    let own = ending.own.as_ref().expect("its own");
                    assert_eq!(own.destination, inbox(), "{order:?}");
                    let instead_of = Some(&meant.mailbox).filter(|one| *one != "INBOX");
                    assert_eq!(own.instead_of.as_ref(), instead_of, "{order:?}");
                }
            }
            assert_eq!(counts(&world), (0, 1), "{order:?}");
        }
    }
}

#[test]
fn two_mailboxes_that_are_there_have_a_copy_each() {
    for world in World::both() {
        world.store.make_mailbox("doug", "lists");
        let ended = world.deliver(&mail("m"), &[inbox(), lists()]).expect_delivered();
        assert_eq!(ended.hows(), [How::Stored, How::Stored]);
        assert_eq!(counts(&world), (1, 1));
        let texts: Vec<_> = ended.endings.iter().map(|one| one.outcome.text()).collect();
        assert!(texts[0].contains("mailbox=INBOX") && !texts[0].contains("lists"), "{texts:?}");
        assert!(texts[1].contains("mailbox=lists") && !texts[1].contains("INBOX"), "{texts:?}");
    }
}

#[test]
fn two_at_once_come_to_one_copy_though_one_of_them_has_the_mailbox_by_then() {
    for world in World::both() {
        // While it is on its way to INBOX, another one delivers to both.
        let meanwhile = world.clone();
        let delivery = world.delivery().after("append", move || {
            meanwhile.store.make_mailbox("doug", "lists");
            meanwhile.deliver(&mail("m"), &[lists(), inbox()]);
        });
        delivery.run(&mail("m"), &[lists()]);
        world.expire_leases();
        world.deliver(&mail("m"), &[inbox(), lists()]).expect_delivered();
        assert_eq!(counts(&world), (0, 1));
    }
}

#[test]
fn rows_that_send_a_copy_round_in_a_circle_defer() {
    for (meant, instead) in [(inbox(), "INBOX"), (lists(), "other")] {
        let world = World::like_imap();
        let claimed = world.record(&mail("m"), &[inbox()], LEASE).copies.remove(0);
        let CopyState::Claimed(claim) = claimed else { panic!("a claim") };
        let (receipt, facts) = (&Receipt::elsewhere(instead), CopyFacts::default());
        let one = ToConfirm { claim, receipt, facts, end: None, may_be_lost: false };
        assert_eq!(world.ledger.confirm(&one, soon()).expect("confirm"), Confirmed::Recorded);
        let ended = world.deliver(&mail("m"), &[meant]).expect_temp_fail();
        assert!(ended.outcome.text().contains("is elsewhere, again"), "{:?}", ended.outcome);
        assert!(ended.appended.iter().all(|to| *to == lists()), "{:?}", ended.appended);
    }
}

#[test]
fn a_mailbox_that_refuses_the_look_leaves_its_copy_to_inbox() {
    for (meant, is_delivered) in [(lists(), true), (inbox(), false)] {
        let world = World::like_imap();
        world.store.make_mailbox("doug", "lists");
        let to = std::slice::from_ref(&meant);
        world.delivery().failing_store(0, StoreFault::Crash).run(&mail("m"), to);
        world.expire_leases();
        let refused = StoreError::Refused("no right".to_owned());
        let ended = world.delivery().refusing("look", refused).run(&mail("m"), to);
        let placed = (is_delivered, usize::from(is_delivered));
        assert_eq!((ended.is_delivered(), world.count(&inbox())), placed, "{:?}", ended.outcome);
        let is_the_looks = ended.outcome.text().contains("looking for an earlier copy: ");
        assert_eq!(is_the_looks, !is_delivered, "{:?}", ended.outcome);
    }
}

/// Runs a delivery that fails once, wherever it can.
fn fails_once(world: &World, at: usize, run: impl Fn(crate::world::Delivery) -> Ended) -> bool {
    let ledgers = LedgerFault::ALL.len();
    let (call, which) = (at / (ledgers + 5), at % (ledgers + 5));
    let delivery = world.delivery();
    let ended = run(match LedgerFault::ALL.get(which) {
        Some(fault) => delivery.failing_ledger(call, *fault),
        None => delivery.failing_store(call, StoreFault::ALL[which - ledgers]),
    });
    call < ended.ledger_calls.len().max(ended.store_calls.len())
}

#[test]
fn whatever_fails_on_the_way_to_inbox_there_is_one_copy() {
    let mut steps = 0;
    for which in 0..2 {
        for makes_it in [false, true] {
            for destinations in [vec![lists()], vec![lists(), inbox()], vec![inbox(), lists()]] {
                for at in 0.. {
                    let world = World::both()[which].clone();
                    let run = |one: crate::world::Delivery| one.run(&mail("m"), &destinations);
                    if !fails_once(&world, at, run) {
                        break;
                    }
                    steps += 1;
                    let context = format!("step {at}, store {which}, {makes_it} {destinations:?}");
                    if makes_it {
                        world.store.make_mailbox("doug", "lists");
                    }
                    world.deliver(&mail("m"), &[lists()]);
                    world.expire_leases();
                    world.deliver(&mail("m"), &[lists()]).expect_delivered();
                    let (in_lists, in_inbox) = counts(&world);
                    if destinations.len() == 1 {
                        assert_eq!(in_lists + in_inbox, 1, "{context}");
                    }
                    world.deliver(&mail("m"), &[inbox()]).expect_delivered();
                    world.deliver(&mail("m"), &[inbox(), lists()]).expect_delivered();
                    assert_eq!(counts(&world), (in_lists, 1), "{context}");
                    assert!(in_lists == 0 || makes_it, "{context}");
                }
            }
        }
    }
    assert!(steps > 300, "{steps}");
}

#[test]
fn a_late_copy_in_a_mailbox_that_was_given_up_is_taken_out_again() {
    let world = World::like_imap();
    world.store.make_mailbox("doug", "lists");
    let other = world.clone();
    let frozen = world.delivery().before("append", move || {
        other.expire_leases();
        other.store.delete_mailbox("doug", "lists");
        other.deliver(&mail("m"), &[lists()]).expect_delivered();
        assert_eq!(counts(&other), (0, 1));
        other.store.make_mailbox("doug", "lists");
    });
    let ended = frozen.run(&mail("m"), &[lists()]).expect_temp_fail();
    assert_eq!(ended.store_calls, ["append", "remove"]);
    assert_eq!(counts(&world), (0, 1));
    world.deliver(&mail("m"), &[lists(), inbox()]).expect_delivered();
    assert_eq!(counts(&world), (0, 1));
}

#[test]
fn where_leases_are_joined_nobody_writes_while_another_finds_the_mailbox_missing() {
    // The one that found it missing holds the copy's lock until its row says so.
    let world = World::like_maildir();
    let other = world.clone();
    let delivery = world.delivery().before_nth("confirm", 1, move || {
        other.store.make_mailbox("doug", "lists");
        let joined = other.deliver(&mail("m"), &[lists()]).expect_temp_fail();
        assert!(joined.store_calls.is_empty(), "{:?}", joined.store_calls);
    });
    delivery.run(&mail("m"), &[lists()]).expect_delivered();
    assert_eq!(counts(&world), (0, 1));
    world.deliver(&mail("m"), &[lists()]).expect_delivered();
    assert_eq!(counts(&world), (0, 1));
}

#[test]
fn one_that_was_frozen_when_it_found_no_mailbox_does_not_overrule_another() {
    let world = World::like_imap();
    let other = world.clone();
    // Its lease has run out by the time that it wants to put on record what it found.
    let frozen = world.delivery().before("take_turn", move || {
        other.expire_leases();
        other.store.make_mailbox("doug", "lists");
        let crashed = other.delivery().failing_ledger(3, LedgerFault::Crash);
        let crashed = crashed.run(&mail("m"), &[lists()]).expect_temp_fail();
        assert_eq!(crashed.ledger_calls, ["record", "receipt_before", "take_turn", "confirm"]);
        assert_eq!(counts(&other), (1, 0), "it wrote, and died before its receipt");
    });
    frozen.run(&mail("m"), &[lists()]).expect_temp_fail();
    world.expire_leases();
    let ended = world.deliver(&mail("m"), &[lists()]).expect_delivered();
    assert_eq!((ended.hows(), counts(&world)), (vec![How::Found], (1, 0)));
}

#[test]
fn a_turn_that_another_delivery_has_is_waited_for_on_the_way_to_inbox_too() {
    for (patience, is_delivered) in [(Duration::ZERO, false), (Duration::from_secs(30), true)] {
        let world = World::like_imap();
        let contended = world.delivery().failing_ledger(1, LedgerFault::Contended);
        let ended = contended.waiting(patience).run(&mail("m"), &[lists()]);
        assert_eq!(ended.ledger_calls[..2], ["record", "take_turn"]);
        assert_eq!(ended.is_delivered(), is_delivered, "{:?}", ended.outcome);
        assert_eq!(counts(&world), (0, usize::from(is_delivered)));
    }
}

#[test]
fn where_a_late_receipt_for_the_meant_mailbox_is_first_nothing_goes_to_inbox() {
    let world = World::like_imap();
    let late = world.record(&mail("m"), &[lists()], LEASE).copies.remove(0);
    let CopyState::Claimed(claim) = late else { panic!("a claim") };
    world.expire_leases();
    let other = world.clone();
    // Its lease has run out, and it puts on record what it wrote, in the midst of another's turn.
    let delivery = world.delivery().before("confirm", move || {
        other.store.save("doug", "lists", mail("m").own_copy(), UNIX_EPOCH);
        let uid = other.store.copies("doug", "lists")[0].uid;
        let receipt = Receipt::uid(1, uid);
        let one = ToConfirm {
            claim,
            receipt: &receipt,
            facts: CopyFacts::default(),
            end: None,
            may_be_lost: false,
        };
        assert_eq!(other.ledger.confirm(&one, soon()).expect("confirm"), Confirmed::Recorded);
    });
    let ended = delivery.run(&mail("m"), &[lists()]).expect_delivered();
    assert_eq!((ended.hows(), counts(&world)), (vec![How::AlreadyThere], (1, 0)));
}
