//! The crash table of `crates/core/src/deliver/protocol.rs`, row by row; and everything fails
//! once, wherever it can.

use onedrop_core::deliver::How;
use onedrop_core::directory::Destination;
use onedrop_core::store::Store;

use crate::ports::{inbox, mail, sent};
use crate::script::{LedgerFault, StoreFault};
use crate::world::{Before, World};

#[test]
fn crash_after_reading_the_message_leaves_nothing() {
    for world in World::both() {
        let crashed =
            world.delivery().failing_ledger(0, LedgerFault::Crash).run(&mail("m"), &[inbox()]);
        assert!(crashed.expect_temp_fail().store_calls.is_empty());
        assert!(world.traces(&mail("m")).is_empty());
        let again = world.deliver(&mail("m"), &[inbox()]).expect_delivered();
        assert_eq!((again.hows(), again.store_calls), (vec![How::Stored], vec!["append"]));
    }
}

#[test]
fn crash_after_record_leaves_leases_that_run_out_in_doubt() {
    for world in World::both() {
        let destinations = [inbox(), sent()];
        world
            .delivery()
            .failing_ledger(0, LedgerFault::CrashAfter)
            .run(&mail("m"), &destinations)
            .expect_temp_fail();
        assert!(world.copies(&mail("m")).iter().all(|copy| copy.state == "leased"));
        assert_eq!((world.count(&inbox()), world.count(&sent())), (0, 0));
        if !world.store.append_is_idempotent() {
            let early = world.deliver(&mail("m"), &destinations).expect_temp_fail();
            assert!(early.store_calls.is_empty(), "a live lease keeps others from the mailbox");
            world.expire_leases();
            assert!(world.copies(&mail("m")).iter().all(|copy| copy.state == "in doubt"));
        }
        let again = world.deliver(&mail("m"), &destinations).expect_delivered();
        assert_eq!(again.hows(), [How::Stored, How::Stored]);
        assert_eq!(again.store_calls, ["look", "append", "look", "append"]);
    }
}

#[test]
fn crash_in_append_before_its_last_bytes_leaves_no_copy() {
    for world in World::both() {
        world
            .delivery()
            .failing_store(0, StoreFault::Crash)
            .run(&mail("m"), &[inbox()])
            .expect_temp_fail();
        assert_eq!(world.count(&inbox()), 0);
        world.expire_leases();
        let again = world.deliver(&mail("m"), &[inbox()]).expect_delivered();
        assert_eq!((again.hows(), again.store_calls), (vec![How::Stored], vec!["look", "append"]));
        assert_eq!(world.count(&inbox()), 1);
    }
}

#[test]
fn crash_in_append_after_its_last_bytes_leaves_a_copy_or_none() {
    for world in World::both() {
        for (fault, how) in [(StoreFault::CrashAfter, How::Found), (StoreFault::Crash, How::Stored)]
        {
            let mail = mail(&format!("{how:?}"));
            let destination = Destination::inbox(&format!("{how:?}"));
            let destinations = [destination.clone()];
            world.delivery().failing_store(0, fault).run(&mail, &destinations).expect_temp_fail();
            world.expire_leases();
            assert_eq!(world.deliver(&mail, &destinations).expect_delivered().hows(), [how]);
            assert_eq!(world.count(&destination), 1);
        }
    }
}

#[test]
fn crash_after_the_ok_leaves_a_copy_that_the_look_finds() {
    for world in World::both() {
        let crashing = world.delivery().failing_ledger(world.confirm_at(), LedgerFault::Crash);
        assert_eq!(
            crashing.run(&mail("m"), &[inbox()]).expect_temp_fail().ledger_calls,
            world.calls()
        );
        assert_eq!(
            (world.count(&inbox()), world.copies(&mail("m"))[0].state.as_str()),
            (1, "leased")
        );
        world.expire_leases();
        let again = world.deliver(&mail("m"), &[inbox()]).expect_delivered();
        assert_eq!((again.hows(), again.store_calls), (vec![How::Found], vec!["look"]));
        assert!(world.copies(&mail("m"))[0].found_by_look);
        assert_eq!(world.count(&inbox()), 1);
    }
}

#[test]
fn crash_after_confirm_leaves_a_placed_copy_and_nobody_touches_the_mailbox() {
    for world in World::both() {
        let crashing = world.delivery().failing_ledger(world.confirm_at(), LedgerFault::CrashAfter);
        assert_eq!(
            crashing.run(&mail("m"), &[inbox()]).expect_temp_fail().ledger_calls,
            world.calls()
        );
        assert_eq!(
            (world.count(&inbox()), world.copies(&mail("m"))[0].state.as_str()),
            (1, "placed")
        );
        let again = world.deliver(&mail("m"), &[inbox()]).expect_delivered();
        assert_eq!(again.hows(), [How::AlreadyThere]);
        assert!(again.store_calls.is_empty());
        assert_eq!(world.count(&inbox()), 1);
    }
}

/// More calls than any delivery of these tests makes.
const MOST_CALLS: usize = 40;

/// Runs `one` for call 0, 1, 2, … until a delivery had no such call.
fn at_each_call(mut one: impl FnMut(usize) -> bool) {
    let fired = (0..MOST_CALLS).take_while(|at| one(*at)).count();
    assert!((1..MOST_CALLS).contains(&fired), "{fired} calls failed");
}

#[test]
fn a_ledger_that_fails_once_costs_a_retry_at_most() {
    let destinations = [inbox(), sent()];
    for before in Before::ALL {
        for fault in LedgerFault::ALL {
            for which in 0..2 {
                at_each_call(|at| {
                    let world = World::both()[which].clone();
                    before.set_up(&world, &mail("m"), &destinations);
                    let ended =
                        world.delivery().failing_ledger(at, fault).run(&mail("m"), &destinations);
                    let context = format!(
                        "{before:?}, {fault:?} at {:?}, store {which}",
                        ended.ledger_calls.get(at)
                    );
                    world.assert_honest(&ended, &mail("m"), &destinations, &context);
                    world.assert_mends(&mail("m"), &destinations, &context);
                    ended.ledger_calls.len() > at
                });
            }
        }
    }
}

#[test]
fn a_store_that_fails_once_costs_a_retry_at_most() {
    let destinations = [inbox(), sent()];
    for before in Before::ALL {
        for fault in StoreFault::ALL {
            for which in 0..2 {
                at_each_call(|at| {
                    let world = World::both()[which].clone();
                    before.set_up(&world, &mail("m"), &destinations);
                    let ended =
                        world.delivery().failing_store(at, fault).run(&mail("m"), &destinations);
                    let context = format!(
                        "{before:?}, {fault:?} at {:?}, store {which}",
                        ended.store_calls.get(at)
                    );
                    world.assert_honest(&ended, &mail("m"), &destinations, &context);
                    world.assert_mends(&mail("m"), &destinations, &context);
                    ended.store_calls.len() > at
                });
            }
        }
    }
}

#[test]
fn a_store_that_reserves_nothing_once_costs_a_retry_at_most() {
    let destinations = [inbox(), sent()];
    for before in Before::ALL {
        for fault in [StoreFault::Refused, StoreFault::Crash, StoreFault::CrashAfter] {
            for which in 0..2 {
                at_each_call(|at| {
                    let world = World::both()[which].clone();
                    before.set_up(&world, &mail("m"), &destinations);
                    let ended =
                        world.delivery().failing_reserve(at, fault).run(&mail("m"), &destinations);
                    let context = format!("{before:?}, {fault:?} at {at}, store {which}");
                    world.assert_honest(&ended, &mail("m"), &destinations, &context);
                    world.assert_mends(&mail("m"), &destinations, &context);
                    ended.reserved.len() > at
                });
            }
        }
    }
}

#[test]
fn two_failures_in_a_row_cost_two_retries_at_most() {
    let ledger_faults = [LedgerFault::Refused, LedgerFault::Crash, LedgerFault::CrashAfter];
    let faulty = |world: &World, at: usize| {
        let (ledgers, stores) = (ledger_faults.len() * 6, StoreFault::ALL.len() * 3);
        match at {
            _ if at < ledgers => {
                Some(world.delivery().failing_ledger(at / 3, ledger_faults[at % 3]))
            }
            _ if at < ledgers + stores => Some(
                world
                    .delivery()
                    .failing_store((at - ledgers) / 5, StoreFault::ALL[(at - ledgers) % 5]),
            ),
            _ => None,
        }
    };
    for which in 0..2 {
        for first in 0.. {
            if faulty(&World::like_imap(), first).is_none() {
                break;
            }
            for second in 0.. {
                let world = World::both()[which].clone();
                let Some(delivery) = faulty(&world, second) else { break };
                let context = format!("{first} then {second}, store {which}");
                let ended = faulty(&world, first).expect("checked").run(&mail("m"), &[inbox()]);
                world.assert_honest(&ended, &mail("m"), &[inbox()], &context);
                if first % 2 == second % 2 {
                    world.expire_leases();
                }
                let ended = delivery.run(&mail("m"), &[inbox()]);
                world.assert_honest(&ended, &mail("m"), &[inbox()], &context);
                world.assert_mends(&mail("m"), &[inbox()], &context);
            }
        }
    }
}
