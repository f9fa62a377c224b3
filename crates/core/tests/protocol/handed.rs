//! Copies that are handed over to the mail server's own delivery, whose filters file them: where a
//! server that died begins anew, and which of two messages with one content is which.

use std::time::{Duration, UNIX_EPOCH};

use onedrop_core::deliver::{How, guard};
use onedrop_core::ledger::{Audit, Schema, Window};
use onedrop_core::message::Message;
use onedrop_core::outcome::{OverQuota, UnknownAccount};
use onedrop_core::store::StoreError;
use onedrop_core::store::memory::Filters;

use crate::ports::{LEASE, inbox, mail, message, soon};
use crate::script::StoreFault;
use crate::world::{Ended, World};

const DAY: Duration = Duration::from_secs(86_400);
pub const LIST: &str = "dedup.filter_fields";

pub const INTO_INBOX: Filters = Filters {
    files_into: Some("INBOX"),
    then_into: None,
    dies: false,
    strips: false,
    has_guard: true,
};

/// It dies when it has filed into `Copies`, and INBOX is still to come.
pub const BREAKS_OFF: Filters = Filters {
    files_into: Some("Copies"),
    then_into: Some("INBOX"),
    dies: true,
    strips: false,
    has_guard: true,
};

/// What `check` sees of the guard, before any mail comes.
pub fn note_guard(world: &World, remembers: Option<Duration>) {
    guard::note(&world.ledger, "memory", remembers, "mx1", soon()).expect("noted");
    world.ledger.advance(2 * LEASE.lease);
}

/// The copies in `Copies` and INBOX.
pub fn counts(world: &World) -> [usize; 2] {
    ["Copies", "INBOX"].map(|mailbox| world.store.copies("doug", mailbox).len())
}

/// A copy of `mail` comes into `Copies` by another way, with our fields: of the only row, and of
/// this try.
pub fn save_as_of_try(world: &World, mail: &Message, number: i64) {
    let window = Window { since: UNIX_EPOCH, all: true };
    let rows = world.ledger.copies_to_verify(&window, "doug", None, 9, soon()).expect("rows");
    let ours = format!("X-Onedrop-Copy: {:?}\r\nX-Onedrop-Try: {number}\r\n", rows[0].value);
    let bytes = [ours.as_bytes(), mail.own_copy()].concat();
    world.store.save("doug", "Copies", &bytes, rows[0].recorded_at);
}

/// The same content as that of `mail(name)`, marked as spam.
pub fn spam(name: &str) -> Message {
    message([b"X-Spam-Flag: YES\r\n", mail(name).own_copy()].concat())
}

fn own_how(ended: &Ended) -> How {
    ended.endings[0].own.as_ref().expect("its own copy").how
}

#[test]
fn what_a_dying_server_had_still_to_do_is_done_where_the_guard_is_known_to_be_in_force() {
    let week = Some(7 * DAY);
    for (seen, how, expected) in [
        (&[][..], How::Found, [1, 0]),
        (&[week], How::Stored, [2, 1]),
        (&[week, week], How::Stored, [2, 1]),
        (&[week, None], How::Found, [1, 0]),
        // No longer than clocks may differ by.
        (&[Some(DAY)], How::Found, [1, 0]),
    ] {
        let world = World::handing_over(BREAKS_OFF);
        seen.iter().for_each(|remembers| note_guard(&world, *remembers));
        world.deliver(&mail("m"), &[inbox()]).expect_temp_fail();
        assert_eq!(counts(&world), [1, 0]);
        world.expire_leases();
        let ended = world.deliver(&mail("m"), &[inbox()]).expect_delivered();
        assert_eq!((own_how(&ended), counts(&world)), (how, expected), "{seen:?}");
    }
}

#[test]
fn what_stands_already_is_never_refused() {
    let why = || "told to fail".to_owned();
    let returned = (OverQuota::Bounce, UnknownAccount::Reject);
    let put_off = (OverQuota::Defer, UnknownAccount::Defer);
    for (error, policy, is_end) in [
        (StoreError::Rejected(why()), put_off, true),
        (StoreError::TooBig(why()), put_off, true),
        (StoreError::OverQuota(why()), returned, true),
        (StoreError::NoAccount(why()), returned, true),
        // What the filter had still to do comes with a later try.
        (StoreError::OverQuota(why()), put_off, false),
        (StoreError::NoAccount(why()), put_off, false),
    ] {
        let world = World::handing_over(BREAKS_OFF);
        note_guard(&world, Some(7 * DAY));
        world.deliver(&mail("m"), &[inbox()]).expect_temp_fail();
        world.expire_leases();
        let mut delivery = world.delivery().refusing("append", error);
        (delivery.over_quota, delivery.unknown_account) = policy;
        let ended = delivery.run(&mail("m"), &[inbox()]);
        let _ = if is_end { ended.expect_delivered() } else { ended.expect_temp_fail() };
        assert_eq!(counts(&world), [1, 0]);
        let again = world.deliver(&mail("m"), &[inbox()]).expect_delivered();
        let (how, expected) =
            if is_end { (How::AlreadyThere, [1, 0]) } else { (How::Stored, [2, 1]) };
        assert_eq!((own_how(&again), counts(&world)), (how, expected));
    }
}

#[test]
fn what_no_earlier_try_of_ours_wrote_is_no_beginning() {
    for number in [0, 2, 9] {
        let world = World::handing_over(INTO_INBOX);
        note_guard(&world, Some(7 * DAY));
        let dies = world.delivery().failing_store(0, StoreFault::Crash);
        dies.run(&mail("m"), &[inbox()]).expect_temp_fail();
        world.expire_leases();
        save_as_of_try(&world, &mail("m"), number);
        let ended = world.deliver(&mail("m"), &[inbox()]).expect_delivered();
        assert_eq!((own_how(&ended), counts(&world)), (How::Found, [1, 0]), "{number}");
    }
}

#[test]
fn two_messages_that_filters_tell_apart_have_a_copy_each() {
    let world = World::handing_over(INTO_INBOX).of_host([(LIST, "x-spam-flag")]);
    for how in [How::Stored, How::AlreadyThere] {
        for mail in [mail("m"), spam("m")] {
            assert_eq!(own_how(&world.deliver(&mail, &[inbox()]).expect_delivered()), how);
        }
        assert_eq!(counts(&world), [0, 2]);
    }
}

#[test]
fn what_is_in_flight_when_the_list_changes_stays_single_and_what_comes_later_goes_by_the_new_one() {
    let site = World::handing_over(INTO_INBOX);
    let (before, after) = (site.of_host([(LIST, "")]), site.of_host([(LIST, "x-spam-flag")]));
    let unanswered = before.delivery().failing_store(0, StoreFault::DoneInDoubt);
    unanswered.run(&spam("m"), &[inbox()]).expect_temp_fail();
    site.expire_leases();
    after.ledger.share_config(true, soon()).expect("on record");
    let ended = after.deliver(&spam("m"), &[inbox()]).expect_delivered();
    assert_eq!((own_how(&ended), counts(&site)), (How::Found, [0, 1]));
    for mail in [spam("later"), mail("later")] {
        assert_eq!(own_how(&after.deliver(&mail, &[inbox()]).expect_delivered()), How::Stored);
    }
}

#[test]
fn a_list_that_changes_while_a_message_is_recorded_names_its_copy_anew() {
    let site = World::handing_over(INTO_INBOX);
    let earlier = site.of_host([("dedup.by", "content")]);
    earlier.ledger.share_config(true, soon()).expect("on record");
    let host = site.of_host([("dedup.by", "content"), (LIST, "x-spam-flag")]);
    let migrating = host.clone();
    let delivery = host.delivery().before("record", move || {
        migrating.ledger.share_config(false, soon()).expect("on record");
    });
    let ended = delivery.run(&spam("m"), &[inbox()]).expect_delivered();
    assert_eq!(ended.ledger_calls[..2], ["filter_fields", "record"], "refused");
    assert_eq!(own_how(&host.deliver(&mail("m"), &[inbox()]).expect_delivered()), How::Stored);
}
