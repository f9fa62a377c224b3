//! Shared copies whose bytes the ledger keeps until they can be placed.

use std::time::{Duration, SystemTime};

use onedrop_core::ledger::{Ledger, OVERDUE, Window};
use onedrop_core::message::Message;
use onedrop_core::store::StoreError;
use onedrop_core::verify::{Level, Topic};

use super::{DAY, Site, uid};
use crate::ports::{LEASE, inbox, mail, message, sent, soon};
use crate::world::World;

/// A Sent that could not take its copy, whose lease was given back or (`in_doubt`) is left over.
fn kept(site: &Site, mail: &Message, in_doubt: bool) -> SystemTime {
    let (claim, date) = site.claim(mail, &sent());
    let id = site.row().message_key();
    site.ledger.keep(&id, mail.shared_copy(), "store: no right", soon()).expect("keep");
    if !in_doubt {
        site.ledger.release(&[claim], soon()).expect("release");
    }
    date
}

#[test]
fn a_kept_copy_is_told_and_placed_by_repair_byte_for_byte() {
    let bytes = b"Return-Path: <l@g>\r\nDelivered-To: doug@x\r\n\
                  Message-ID: <kept@x>\r\nSubject: s\r\n\r\na\0b\r\n";
    let mail = message(bytes.to_vec());
    for in_doubt in [false, true] {
        let site = Site::new();
        let date = kept(&site, &mail, in_doubt);
        site.ledger.advance(2 * LEASE.lease);
        let told = site.verify(false);
        assert_eq!(told.topics(), [(Level::Error, Topic::Kept)]);
        assert!(told.findings[0].text.contains("store: no right"), "{:?}", told.findings);
        assert!(site.uids(&sent()).is_empty());
        // Long after the window has passed.
        let late = Window { since: SystemTime::now() + 365 * DAY, all: true };
        let repaired = site.verify_in(late, true);
        assert_eq!(repaired.topics(), [(Level::Repaired, Topic::Kept)]);
        assert!(repaired.findings[0].text.contains("is stored as uid="), "{:?}", repaired.findings);
        let stored = site.store.copies("lisa", "Sent");
        assert_eq!(stored.len(), 1);
        assert_eq!(
            (stored[0].bytes.as_slice(), stored[0].date, stored[0].seen),
            (mail.shared_copy(), date, true)
        );
        assert!(site.receipt().is_some());
        site.ledger.advance(2 * LEASE.lease);
        assert!(site.verify(true).topics().iter().all(|(_, topic)| *topic != Topic::Kept));
        assert_eq!(site.uids(&sent()).len(), 1);
    }
}

#[test]
fn a_kept_copy_that_was_written_after_all_is_found() {
    let site = Site::new();
    let date = kept(&site, &mail("m"), true);
    let receipt = site.append(&mail("m"), &sent(), date);
    assert_eq!(site.verify(true).topics(), [(Level::Info, Topic::Busy)], "its lease lives");
    site.ledger.advance(2 * LEASE.lease);
    assert_eq!(site.verify(true).topics(), [(Level::Repaired, Topic::Kept)]);
    assert_eq!(site.uids(&sent()), [uid(&receipt)]);
}

#[test]
fn a_kept_copy_that_is_refused_again_stays_kept() {
    let faults: [fn(String) -> StoreError; 5] = [
        StoreError::Refused,
        StoreError::OverQuota,
        StoreError::NoAccount,
        StoreError::Setup,
        StoreError::NotStored,
    ];
    for fault in faults.map(|fault| fault("told to fail".to_owned())) {
        let site = Site::new();
        kept(&site, &mail("m"), false);
        let why = fault.to_string();
        let refused = site.verify_failing("append", fault);
        assert_eq!(refused.topics(), [(Level::Error, Topic::Kept)], "{why}");
        assert!(site.uids(&sent()).is_empty());
        assert_eq!(
            site.verify(true).topics(),
            [(Level::Repaired, Topic::Kept)],
            "{why}: once it can"
        );
        assert_eq!(site.uids(&sent()).len(), 1);
    }
}

#[test]
fn kept_bytes_of_another_identity_are_placed_nowhere() {
    let site = Site::new();
    let (claim, _) = site.claim(&mail("m"), &sent());
    let other = b"Message-ID: <other@x>\r\n\r\nx\r\n";
    site.ledger.keep(&site.row().message_key(), other, "no", soon()).expect("keep");
    site.ledger.release(&[claim], soon()).expect("release");
    assert_eq!(site.verify(true).topics(), [(Level::Error, Topic::Kept)]);
    assert!(site.uids(&sent()).is_empty());
}

#[test]
fn a_kept_copy_that_is_refused_at_once_keeps_no_other_from_its_mailbox() {
    let site = Site::new();
    let (first, second) = (mail("first"), mail("second"));
    kept(&site, &first, false);
    let (claim, _) = site.claim(&second, &sent());
    let row = site.rows().remove(1);
    site.ledger.keep(&row.message_key(), second.shared_copy(), "no right", soon()).expect("keep");
    site.ledger.release(&[claim], soon()).expect("release");
    let verified = site.verify_failing("append", StoreError::Refused("told to fail".to_owned()));
    assert_eq!(verified.topics(), [(Level::Error, Topic::Kept), (Level::Repaired, Topic::Kept)]);
    assert_eq!((verified.tally.failed, site.uids(&sent()).len()), (0, 1));
}

#[test]
fn a_copy_that_is_due_is_settles_and_an_error_only_once_nothing_settles_it() {
    let site = Site::new();
    let (claim, _) = site.claim(&mail("m"), &sent());
    site.ledger.release(&[claim], soon()).expect("release");
    let id = site.row().message_key();
    let kept = (mail("m").shared_copy().to_vec(), "later");
    let after = Duration::from_secs(600);
    site.ledger.keep_until_due(&id, &sent(), (&kept.0, kept.1), after, soon()).expect("due");
    for (wait, level) in [
        (Duration::ZERO, Level::Info),
        (after, Level::Info),
        (OVERDUE - Duration::from_secs(2), Level::Info),
        (Duration::from_secs(2), Level::Error),
    ] {
        site.ledger.advance(wait);
        for repair in [false, true] {
            assert_eq!(site.verify(repair).topics(), [(level, Topic::Due)], "{wait:?}");
            assert!(site.uids(&sent()).is_empty(), "verify writes none");
        }
    }
}

#[test]
fn what_settle_watches_is_settles_alone() {
    let (world, after) = (World::like_imap(), Duration::from_secs(600));
    let due = world.delivery().leaving_sent(after).run(&mail("m"), &[inbox(), sent()]);
    due.expect_delivered();
    world.ledger.advance(after);
    world.delivery().settle();
    world.store.meddle("lisa", "Sent", Vec::clear);
    let site = Site::of(world.ledger.clone(), world.store.clone());
    assert_eq!(site.verify(true).findings, []);
}
