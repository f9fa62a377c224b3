//! Copies that were handed over: of two tries in one mailbox the first one's stays.

use onedrop_core::ledger::Ledger;
use onedrop_core::ledger::memory::MemoryLedger;
use onedrop_core::store::memory::Stored;
use onedrop_core::verify::{Level, Topic};

use super::{DAY, Site};
use crate::handed::{BREAKS_OFF, INTO_INBOX, LIST, counts, note_guard, save_as_of_try, spam};
use crate::ports::{LEASE, inbox, mail, sent};
use crate::script::StoreFault;
use crate::world::World;

fn broken_off() -> (World, Site) {
    let world = World::handing_over(BREAKS_OFF);
    note_guard(&world, Some(7 * DAY));
    world.deliver(&mail("m"), &[inbox(), sent()]).expect_temp_fail();
    world.expire_leases();
    let site = Site::of(world.ledger.clone(), world.store.clone());
    (world, site)
}

#[test]
fn the_later_of_two_tries_in_one_mailbox_is_taken_out_and_nothing_else() {
    let (world, site) = broken_off();
    let told = site.verify(true);
    assert_eq!(told.topics(), [(Level::Info, Topic::Lease)], "{told:?}");
    assert!(told.findings[0].text.contains("the next attempt hands it over again"), "{told:?}");
    world.deliver(&mail("m"), &[inbox(), sent()]).expect_delivered();
    // Another's, with a try that was never made, and so the mailbox has three.
    save_as_of_try(&world, &mail("m"), 9);
    assert_eq!(counts(&world), [3, 1]);
    let first = world.store.copies("doug", "Copies")[0].uid;
    let told = site.verify(false);
    assert_eq!((told.topics(), counts(&world)), (vec![(Level::Error, Topic::Double)], [3, 1]));
    let told = site.verify(true);
    assert_eq!(told.topics(), [(Level::Repaired, Topic::Double)], "{told:?}");
    let copies = world.store.copies("doug", "Copies");
    assert_eq!((copies[0].uid, counts(&world)), (first, [2, 1]));
    // Not before its last lease is over, and once.
    for (settled, wait) in [(0, 2 * LEASE.lease), (1, DAY), (0, DAY)] {
        let told = site.verify(true);
        assert_eq!((told.findings, told.tally.settled), (vec![], settled));
        world.ledger.advance(wait);
    }
    assert_eq!(counts(&world), [2, 1]);
}

#[test]
fn a_doubt_about_an_old_message_is_not_ended_by_one_that_filters_tell_apart_from_it() {
    let earlier = World::handing_over(INTO_INBOX);
    earlier.deliver(&mail("m"), &[inbox()]).expect_delivered();
    let anew = World { ledger: MemoryLedger::default(), store: earlier.store };
    let world = anew.of_host([(LIST, "x-spam-flag")]);
    world.ledger.remembers_since(world.ledger.time());
    let dies = world.delivery().failing_store(0, StoreFault::Crash);
    dies.run(&spam("m"), &[inbox()]).expect_temp_fail();
    world.expire_leases();
    let site = Site::of(world.ledger.clone(), world.store.clone());
    let told = site.verify(true);
    assert_eq!(told.topics(), [(Level::Error, Topic::Lease)], "{told:?}");
    assert!(told.findings[0].text.contains("no copy is there"), "{told:?}");
}

#[test]
fn a_copy_that_is_nowhere_is_not_looked_for_after_a_week() {
    let (world, site) = broken_off();
    world.deliver(&mail("m"), &[inbox(), sent()]).expect_delivered();
    for mailbox in ["Copies", "INBOX"] {
        let mark = |one: &mut Stored| one.marked_deleted = true;
        world.store.meddle("doug", mailbox, |stored| stored.iter_mut().for_each(mark));
    }
    world.expire_leases();
    for settled in [0, 1] {
        let told = site.verify(true);
        assert_eq!(
            (told.topics(), told.tally.settled),
            (vec![(Level::Info, Topic::Moved)], settled)
        );
        world.ledger.advance(8 * DAY);
    }
}
