//! More copies than one: which of them stays, and when a second look is over.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use onedrop_core::clock::Clock;
use onedrop_core::deadline::Deadline;
use onedrop_core::directory::Destination;
use onedrop_core::ledger::{Audit, Ledger, Window};
use onedrop_core::store::Store;
use onedrop_core::verify::{Level, Tally, Topic};

use super::{ALL, DAY, Site, not_stored, uid};
use crate::ports::{LEASE, inbox, mail, mail_with_body, sent, soon};
use crate::script::StoreFault;
use crate::world::{Delivery, Impatient, World};

#[test]
fn of_two_copies_the_one_on_record_stays() {
    for first_is_on_record in [true, false] {
        let site = Site::new();
        site.claim(&mail("two"), &inbox());
        site.ledger.advance(2 * LEASE.lease);
        let (claim, date) = site.claim(&mail("two"), &inbox());
        let receipts =
            [site.append(&mail("two"), &inbox(), date), site.append(&mail("two"), &inbox(), date)];
        let keeper = &receipts[usize::from(!first_is_on_record)];
        site.confirm(&claim, keeper);
        let verified = site.verify(false);
        assert_eq!(verified.topics(), [(Level::Error, Topic::Double)]);
        assert_eq!(verified.findings[0].message_id.as_deref(), Some("<two@example.org>"));
        assert_eq!(site.uids(&inbox()).len(), 2, "without --repair nothing is removed");
        assert_eq!(site.verify(true).topics(), [(Level::Repaired, Topic::Double)]);
        assert_eq!(site.uids(&inbox()), [uid(keeper)]);
        assert_eq!(site.verify(false).findings, []);
    }
}

#[test]
fn a_late_copy_beside_the_one_that_inbox_has_instead_is_told_and_stays() {
    let world = World::like_imap();
    let site = Site::of(world.ledger.clone(), world.store.clone());
    let lists = Destination { mailbox: "lists".to_owned(), ..inbox() };
    world.store.make_mailbox("doug", "lists");
    let lost = world.delivery().failing_store(0, StoreFault::LostInDoubt);
    lost.run(&mail("m"), std::slice::from_ref(&lists)).expect_temp_fail();
    world.expire_leases();
    world.store.delete_mailbox("doug", "lists");
    world.deliver(&mail("m"), std::slice::from_ref(&lists)).expect_delivered();
    assert_eq!(site.verify(true).tally.settled, 0, "it may still come");
    world.store.make_mailbox("doug", "lists");
    world.store.take_effect(world.store.under_way()[0]);
    world.store.save("doug", "lists", mail("m").own_copy(), world.ledger.time() + DAY);
    world.expire_leases();
    let told = site.verify(true);
    assert_eq!((told.topics(), told.tally.settled), (vec![(Level::Error, Topic::Double)], 0));
    assert!(told.findings[0].text.contains("stands beside the copy in INBOX"), "{told:?}");
    assert_eq!(world.count(&lists), 2);
    world.store.meddle("doug", "lists", |stored| stored[0].marked_deleted = true);
    let told = site.verify(true);
    assert_eq!((told.topics(), told.tally.settled), (vec![], 1));
    // One that a single lease has sent there needs no second look.
    world.store.delete_mailbox("doug", "lists");
    world.deliver(&mail("once"), std::slice::from_ref(&lists)).expect_delivered();
    world.expire_leases();
    assert_eq!(site.verify(true).tally.settled, 0);
}

/// They stand in copies that filters have forwarded.
#[test]
fn our_fields_in_a_strangers_mail_take_nothing_out() {
    let site = Site::new();
    let (date, receipt) = site.placed(&mail("m"), &inbox(), 2);
    let copies = site.ledger.copies_to_verify(&ALL, "doug", None, 9, soon()).expect("copies");
    let value = format!("{:?}", copies[0].value);
    for number in [0, 1, 2, 99] {
        let forged = format!(
            "X-Onedrop-Copy: {value}\r\nX-Onedrop-Try: {number}\r\nFrom: lisa@gmail.com\r\n\
             Message-ID: <m@example.org>\r\nSubject: m\r\n\r\nforged\r\n"
        );
        site.store.save("doug", "INBOX", forged.as_bytes(), date);
    }
    for _ in 0..2 {
        site.ledger.advance(2 * LEASE.lease);
        assert_eq!(site.verify(true).findings, []);
        assert_eq!((site.uids(&inbox()).len(), site.uids(&inbox())[0]), (5, uid(&receipt)));
    }
}

/// A mail program may save what it sent within the second in which we recorded it.
#[test]
fn an_equal_copy_stays_where_one_delivery_at_most_has_written() {
    let site = Site::new();
    let (date, _) = site.placed(&mail("own"), &inbox(), 1);
    site.append(&mail("own"), &inbox(), date);
    assert_eq!(site.verify(true).topics(), [(Level::Info, Topic::Other)]);
    assert_eq!(site.uids(&inbox()).len(), 2);
}

#[test]
fn of_two_copies_without_the_one_on_record_the_oldest_stays_and_is_recorded() {
    let site = Site::new();
    let (date, gone) = site.placed(&mail("two"), &inbox(), 2);
    let oldest = site.append(&mail("two"), &inbox(), date);
    site.append(&mail("two"), &inbox(), date);
    site.store.remove(&inbox(), &gone, None, soon()).expect("remove");
    site.ledger.advance(2 * LEASE.lease);
    assert_eq!(
        site.verify(true).topics(),
        [(Level::Info, Topic::Moved), (Level::Repaired, Topic::Double)]
    );
    assert_eq!(site.uids(&inbox()), [uid(&oldest)]);
    // The next look sees that it is alone.
    assert_eq!(site.verify(true).topics(), [(Level::Info, Topic::Moved)]);
    assert_eq!(site.receipt().as_ref(), Some(&oldest));
}

#[test]
fn an_equal_message_of_another_date_or_content_stays() {
    let site = Site::new();
    let (date, receipt) = site.placed(&mail("mine"), &inbox(), 1);
    let others = [
        site.append(&mail("mine"), &inbox(), date + Duration::from_secs(1)),
        site.append(&mail("mine"), &inbox(), date - 2 * DAY),
        site.append(&mail_with_body("mine", "other content"), &inbox(), date),
        site.append(&mail("another"), &inbox(), date),
    ];
    let verified = site.verify(true);
    assert_eq!(
        verified.topics(),
        [(Level::Info, Topic::Other)],
        "older than the window, it is not even seen"
    );
    assert_eq!(
        site.uids(&inbox()),
        [&receipt, &others[0], &others[1], &others[2], &others[3]].map(uid)
    );
    // Not even when the copy on record is gone: nothing shows that one of them is ours.
    site.store.remove(&inbox(), &receipt, None, soon()).expect("remove");
    assert_eq!(
        site.verify(true).topics(),
        [(Level::Info, Topic::Moved), (Level::Info, Topic::Other)]
    );
    assert_eq!(site.uids(&inbox()).len(), 4);
}

#[test]
fn nothing_is_removed_for_a_copy_that_its_owner_has_marked_as_deleted() {
    let site = Site::new();
    let (date, on_record) = site.placed(&mail("marked"), &inbox(), 1);
    let other = site.append(&mail("marked"), &inbox(), date);
    let mark = |wanted: u32| {
        site.store.meddle("doug", "INBOX", |stored| {
            stored.iter_mut().for_each(|one| one.marked_deleted = one.uid == wanted);
        });
    };
    mark(uid(&on_record));
    let verified = site.verify(true);
    assert_eq!(
        verified.topics(),
        [(Level::Info, Topic::Moved)],
        "the other one is all that will be left"
    );
    assert!(verified.findings[0].text.contains("is marked as deleted by its owner"));
    mark(uid(&other));
    assert_eq!(site.verify(true).findings, [], "the owner is at it");
    assert_eq!(site.uids(&inbox()).len(), 2);
    // What is marked is the other one; the one on record is gone.
    site.store.remove(&inbox(), &on_record, None, soon()).expect("remove");
    let verified = site.verify(true);
    assert_eq!(verified.topics(), [(Level::Info, Topic::Moved)]);
    assert!(verified.findings[0].text.contains("moved or deleted by its owner"));
}

#[test]
fn a_copy_leased_twice_gets_its_second_look_after_its_last_lease() {
    let site = Site::new();
    let (date, receipt) = site.placed(&mail("second"), &inbox(), 2);
    let verified = site.verify(false);
    assert_eq!(
        (verified.tally.settled, verified.topics()),
        (0, vec![]),
        "a zombie may still write"
    );
    // The zombie's copy, after the window in which the message was recorded.
    site.append(&mail("second"), &inbox(), date);
    site.ledger.advance(2 * LEASE.lease);
    let recent = Window { since: date + DAY, all: true };
    let verified = site.verify_in(recent, false);
    assert_eq!(
        (verified.tally.settled, verified.topics()),
        (0, vec![(Level::Error, Topic::Double)])
    );
    assert!(!site.is_settled());
    let verified = site.verify_in(recent, true);
    assert_eq!(
        (verified.tally.settled, verified.topics()),
        (0, vec![(Level::Repaired, Topic::Double)])
    );
    assert_eq!(site.uids(&inbox()), [uid(&receipt)]);
    let verified = site.verify_in(recent, true);
    assert_eq!(
        (verified.tally.settled, verified.topics()),
        (1, vec![]),
        "a look has seen that it is gone"
    );
    assert_eq!(site.verify_in(recent, true).tally, Tally::default(), "once is enough");
}

#[test]
fn what_cannot_be_removed_is_still_an_error_and_not_settled() {
    let site = Site::new();
    let (date, _) = site.placed(&mail("stuck"), &inbox(), 2);
    site.append(&mail("stuck"), &inbox(), date);
    site.ledger.advance(2 * LEASE.lease);
    let failed = site.verify_failing("remove_double", not_stored());
    assert_eq!(failed.topics(), [(Level::Error, Topic::Double)]);
    assert!(!site.is_settled());
    assert_eq!(site.verify(true).topics(), [(Level::Repaired, Topic::Double)]);
    assert!(!site.is_settled(), "a server says OK to the removal of what is not removed, too");
    assert_eq!(site.verify(true).topics(), []);
    assert!(site.is_settled());
}

#[test]
fn a_mailbox_out_of_sight_is_no_second_look_until_a_week_has_passed() {
    let site = Site::new();
    let (date, receipt) = site.placed(&mail("away"), &inbox(), 2);
    let other = site.append(&mail("away"), &inbox(), date);
    for one in [&receipt, &other] {
        site.store.remove(&inbox(), one, None, soon()).expect("remove");
    }
    site.ledger.advance(2 * LEASE.lease);
    assert_eq!(site.verify(true).topics(), [(Level::Info, Topic::Moved)]);
    assert!(!site.is_settled(), "it may be back tomorrow, with both");
    site.ledger.advance(8 * DAY);
    assert_eq!(site.verify(true).topics(), [(Level::Info, Topic::Moved)]);
    assert!(site.is_settled(), "deleted by its owner");
}

#[test]
fn of_more_copies_than_a_run_deals_with_the_one_on_record_stays() {
    let site = Site::new();
    let (date, on_record) = site.placed(&mail("many"), &inbox(), 2);
    for _ in 0..105 {
        site.append(&mail("many"), &inbox(), date);
    }
    site.ledger.advance(2 * LEASE.lease);
    let verified = site.verify(true);
    assert_eq!(
        (verified.tally.repaired, verified.tally.errors, verified.tally.settled),
        (100, 1, 0)
    );
    assert_eq!((site.uids(&inbox()).len(), site.is_settled()), (6, false));
    assert_eq!(site.verify(true).tally.repaired, 5);
    assert_eq!(site.verify(true).tally.settled, 1);
    assert_eq!((site.uids(&inbox()), site.is_settled()), (vec![uid(&on_record)], true));
}

/// Frozen past its lease at its `nth` append, and then in doubt whether that took effect.
fn late_in_doubt(world: &World, nth: usize, others: [Destination; 2]) -> Delivery {
    let site = Site::of(world.ledger.clone(), world.store.clone());
    let (delivery, other) = (world.delivery(), world.clone());
    delivery.failing_store(nth - 1, StoreFault::DoneInDoubt).before_nth("append", nth, move || {
        other.expire_leases();
        other.deliver(&mail("m"), &others).expect_delivered();
        other.expire_leases();
        assert_eq!(site.verify(true).tally.settled, 1, "nothing is left to look for");
    })
}

fn assert_second_look(world: &World, destination: &Destination) {
    let site = Site::of(world.ledger.clone(), world.store.clone());
    assert_eq!(site.uids(destination).len(), 2);
    // Long after the window in which the message was recorded.
    let window = Window { since: SystemTime::now() + 365 * DAY, all: true };
    assert_eq!(site.verify_in(window, true).topics(), [(Level::Repaired, Topic::Double)]);
    assert_eq!(site.uids(destination).len(), 1);
}

#[test]
fn a_late_sent_in_doubt_beside_a_placed_one_gets_a_second_look_again() {
    let world = World::like_imap();
    let late = late_in_doubt(&world, 2, [Destination::inbox("zoe"), sent()]);
    late.run(&mail("m"), &[inbox(), sent()]).expect_delivered();
    assert_second_look(&world, &sent());
}

#[test]
fn a_late_copy_in_doubt_beside_a_placed_one_gets_a_second_look_again() {
    let (world, clock) = (World::like_imap(), Arc::<Impatient>::default());
    let mut late = late_in_doubt(&world, 1, [inbox(), Destination::inbox("zoe")]);
    let time = Duration::from_secs(60);
    late.deadline = Deadline::by(Arc::clone(&clock) as _, time, time / 3);
    let late = late.after("append", move || clock.sleep(time));
    late.run(&mail("m"), &[inbox()]).expect_temp_fail();
    assert_second_look(&world, &inbox());
    world.deliver(&mail("m"), &[inbox()]).expect_delivered();
    assert_eq!(world.count(&inbox()), 1);
}
