//! Copies in doubt: settled by the look, or left to the next attempt.

use std::time::Duration;

use onedrop_core::ledger::{Ledger, Records, Standing, TraceFilter};
use onedrop_core::verify::{Level, Topic};

use super::{Site, uid};
use crate::ports::{LEASE, inbox, mail, soon};

#[test]
fn a_doubt_without_a_copy_is_told_and_left_to_the_next_attempt() {
    let site = Site::new();
    let (claim, _) = site.claim(&mail("doubt"), &inbox());
    assert_eq!(site.verify(true).topics(), [(Level::Info, Topic::Busy)], "a delivery is at it");
    site.ledger.advance(2 * LEASE.lease);
    for repair in [false, true] {
        let verified = site.verify(repair);
        assert_eq!(verified.topics(), [(Level::Error, Topic::Lease)]);
        assert!(verified.findings[0].text.contains("mx1:42"), "{:?}", verified.findings);
        assert_eq!(site.standing(), Standing::InDoubt { lease_left_over: true });
    }
    let (again, _) = site.claim(&mail("doubt"), &inbox());
    assert_eq!((again.epoch, again.in_doubt), (claim.epoch + 1, true), "verify took no lease");
    site.ledger.release(&[again], soon()).expect("release");
    assert_eq!(site.verify(false).topics(), [(Level::Error, Topic::Doubt)]);
}

#[test]
fn a_doubt_with_a_copy_is_settled_by_its_receipt() {
    let site = Site::new();
    let (_, date) = site.claim(&mail("doubt"), &inbox());
    let receipt = site.append(&mail("doubt"), &inbox(), date);
    site.ledger.advance(2 * LEASE.lease);
    assert_eq!(site.verify(false).topics(), [(Level::Error, Topic::Lease)]);
    assert_eq!(site.standing(), Standing::InDoubt { lease_left_over: true });
    assert_eq!(site.verify(true).topics(), [(Level::Repaired, Topic::Lease)]);
    assert_eq!(site.receipt().as_ref(), Some(&receipt));
    assert!(!site.is_settled(), "its own lease is not over yet");
    assert_eq!(site.verify(false).findings, []);
    site.ledger.advance(2 * LEASE.lease);
    assert_eq!(site.verify(false).tally.settled, 1);
    assert!(site.is_settled());
    let trace = site
        .ledger
        .clone()
        .trace(&TraceFilter::of("doubt@example.org"), 1, soon())
        .expect("trace")
        .remove(0);
    assert!(trace.copies[0].found_by_look);
}

#[test]
fn a_doubt_with_two_copies_leaves_the_oldest_of_ours() {
    let site = Site::new();
    let (_, date) = site.claim(&mail("doubt"), &inbox());
    let own = site.append(&mail("doubt"), &inbox(), date + Duration::from_secs(1));
    let ours =
        [site.append(&mail("doubt"), &inbox(), date), site.append(&mail("doubt"), &inbox(), date)];
    site.ledger.advance(2 * LEASE.lease);
    let topics = site.verify(true).topics();
    assert_eq!(
        topics,
        [
            (Level::Repaired, Topic::Lease),
            (Level::Repaired, Topic::Double),
            (Level::Info, Topic::Other)
        ]
    );
    assert_eq!(site.uids(&inbox()), [uid(&own), uid(&ours[0])]);
    assert_eq!(site.receipt().as_ref(), Some(&ours[0]));
}

#[test]
fn a_doubt_whose_lock_is_held_is_left_to_its_holder() {
    let site = Site::new();
    let (claim, date) = site.claim(&mail("held"), &inbox());
    site.append(&mail("held"), &inbox(), date);
    site.ledger.advance(2 * LEASE.lease);
    let zombie = site.ledger.clone();
    let key = mail("held").identity().copy_key("doug", "INBOX");
    let turn = zombie.take_turn(&claim, &key, soon()).expect("a turn");
    assert_eq!(site.verify(true).topics(), [(Level::Info, Topic::Busy)]);
    assert_eq!(
        site.standing(),
        Standing::InDoubt { lease_left_over: false },
        "what verify took it gave back"
    );
    drop(turn);
    assert_eq!(site.verify(true).topics(), [(Level::Repaired, Topic::Doubt)]);
}
