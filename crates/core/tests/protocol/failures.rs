//! What a failure leaves for the next attempt, and what is on record of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use onedrop_core::deadline::Deadline;
use onedrop_core::deliver::{Failure, How};
use onedrop_core::directory::Destination;
use onedrop_core::ledger::{Attempt, AttemptEnd, Ledger as _};
use onedrop_core::outcome::{Outcome, OverQuota, Status, UnknownAccount};
use onedrop_core::store::StoreError;

use crate::ports::{attempt, delivered, inbox, mail, mail_with_body, sent, soon};
use crate::script::{LedgerFault, StoreFault};
use crate::world::{Before, Ended, TURN_TAKEN, World};

#[test]
fn a_copy_that_certainly_was_not_stored_needs_neither_waiting_nor_a_look() {
    for world in World::both() {
        let refused =
            world.delivery().failing_store(0, StoreFault::Refused).run(&mail("m"), &[inbox()]);
        refused.expect_temp_fail();
        assert_eq!(world.copies(&mail("m"))[0].state, "free");
        let again = world.deliver(&mail("m"), &[inbox()]).expect_delivered();
        assert_eq!(again.store_calls, ["append"]);
    }
}

#[test]
fn a_look_that_failed_gives_the_lease_back_and_keeps_the_doubt() {
    let world = World::like_imap();
    Before::CopyWithoutReceipt.set_up(&world, &mail("m"), &[inbox()]);
    let failed =
        world.delivery().failing_store(0, StoreFault::LostInDoubt).run(&mail("m"), &[inbox()]);
    assert_eq!(failed.expect_temp_fail().store_calls, ["look"], "no append without a look");
    assert_eq!(world.copies(&mail("m"))[0].state, "in doubt");
    let again = world.deliver(&mail("m"), &[inbox()]).expect_delivered();
    assert_eq!(again.hows(), [How::Found], "no waiting for a lease");
}

#[test]
fn a_copy_in_doubt_waits_for_its_lease_and_is_looked_for() {
    let cases: [(Before, usize, &[&str]); 2] = [
        (Before::Nothing, 0, &["record", "finish"]),
        (Before::LeasesRanOut, 1, &["record", "receipt_before", "take_turn", "finish"]),
    ];
    for (fault, how) in
        [(StoreFault::DoneInDoubt, How::Found), (StoreFault::LostInDoubt, How::Stored)]
    {
        for (before, append, calls) in cases {
            let world = World::like_imap();
            before.set_up(&world, &mail("m"), &[inbox()]);
            let ended = world
                .delivery()
                .failing_store(append, fault)
                .run(&mail("m"), &[inbox()])
                .expect_temp_fail();
            assert_eq!(ended.ledger_calls, calls, "a lock is let go, the lease is not");
            assert_eq!(world.copies(&mail("m"))[0].state, "leased");
            let early = world.deliver(&mail("m"), &[inbox()]).expect_temp_fail();
            assert!(early.store_calls.is_empty());
            world.expire_leases();
            assert_eq!(world.deliver(&mail("m"), &[inbox()]).expect_delivered().hows(), [how]);
            assert_eq!(world.count(&inbox()), 1);
        }
    }
}

#[test]
fn where_appends_are_idempotent_doubt_needs_no_waiting() {
    for fault in [
        StoreFault::DoneInDoubt,
        StoreFault::LostInDoubt,
        StoreFault::Crash,
        StoreFault::CrashAfter,
    ] {
        let world = World::like_maildir();
        world.delivery().failing_store(0, fault).run(&mail("m"), &[inbox()]).expect_temp_fail();
        let again = world.deliver(&mail("m"), &[inbox()]).expect_delivered();
        assert_eq!(again.store_calls[0], "look", "{fault:?}");
        assert_eq!(world.count(&inbox()), 1);
    }
}

#[test]
fn one_copy_that_fails_keeps_no_other_from_its_mailbox() {
    let destinations = [inbox(), Destination::inbox("zoe"), sent()];
    for fault in [StoreFault::Refused, StoreFault::DoneInDoubt, StoreFault::LostInDoubt] {
        for world in World::both() {
            let ended = world
                .delivery()
                .failing_store(0, fault)
                .run(&mail("m"), &destinations)
                .expect_temp_fail();
            assert_eq!(ended.appended, destinations);
            let placed: Vec<_> = ended.placed.iter().map(|one| &one.destination).collect();
            assert_eq!(placed, [&destinations[1], &destinations[2]]);
            assert_eq!(world.trace(&mail("m")).attempts[0].outcome.as_deref(), Some("tempfail"));
            world.assert_mends(&mail("m"), &destinations, &format!("{fault:?}"));
        }
    }
}

#[test]
fn a_quota_is_the_policys_to_judge_and_the_lease_is_given_back() {
    let mail = mail("m");
    for (policy, status) in [(OverQuota::Defer, "4.2.2"), (OverQuota::Bounce, "5.2.2")] {
        for world in World::both() {
            let full = StoreError::OverQuota("told to fail".to_owned());
            let mut delivery = world.delivery().refusing("append", full);
            delivery.over_quota = policy;
            let ended = delivery.run(&mail, &[inbox()]);
            assert_eq!(ended.outcome.status().to_string(), status);
            assert_eq!(matches!(ended.outcome, Outcome::PermFail(..)), policy == OverQuota::Bounce);
            assert_eq!(world.copies(&mail)[0].state, "free");
            assert_eq!(world.trace(&mail).attempts[0].status.as_deref(), Some(status));
            assert_eq!(world.deliver(&mail, &[inbox()]).expect_delivered().store_calls, ["append"]);
        }
    }
}

#[test]
fn without_time_left_nothing_is_written_and_the_lease_is_given_back() {
    for world in World::both() {
        let mut delivery = world.delivery();
        delivery.deadline = Deadline::new(Duration::from_secs(10), Duration::from_secs(11));
        delivery.run(&mail("m"), &[inbox()]).expect_temp_fail();
        assert_eq!(
            (world.count(&inbox()), world.copies(&mail("m"))[0].state.as_str()),
            (0, "free")
        );
    }
}

#[test]
fn a_confirm_is_made_again_where_the_ledger_was_lost_or_another_session_held_the_row() {
    for (before, world) in [Before::Nothing, Before::LeasesRanOut]
        .into_iter()
        .flat_map(|b| World::both().map(|w| (b, w)))
    {
        for fault in [LedgerFault::Lost, LedgerFault::LostAfter, LedgerFault::Contended] {
            let mail = mail(&format!("{fault:?}"));
            let destination = Destination::inbox(&format!("{fault:?}"));
            let destinations = std::slice::from_ref(&destination);
            before.set_up(&world, &mail, destinations);
            let calls = match before {
                Before::Nothing => world.calls(),
                _ => world.calls_in_doubt(),
            };
            let ended =
                world.delivery().failing_ledger(calls.len() - 1, fault).run(&mail, destinations);
            let ended = ended.expect_delivered();
            assert_eq!(ended.ledger_calls, [calls, &["confirm"]].concat());
            assert_eq!((ended.hows(), world.count(&destination)), (vec![How::Stored], 1));
            assert_eq!(
                world.trace(&mail).attempts.last().expect("an attempt").outcome.as_deref(),
                Some("delivered")
            );
        }
    }
}

#[test]
fn whoever_asks_the_watchdog_learns_when_an_answer_is_awaited() {
    let world = World::like_imap();
    let delivery = world.delivery();
    let deadline = delivery.deadline.clone();
    let (seen, noted) = (Arc::new(AtomicBool::new(false)), deadline.clone());
    let delivery = delivery.before("confirm", {
        let seen = Arc::clone(&seen);
        move || seen.store(noted.is_answering(), Ordering::SeqCst)
    });
    delivery.run(&mail("m"), &[inbox()]).expect_delivered();
    assert!(seen.load(Ordering::SeqCst), "until the receipt is on record");
    assert!(!deadline.is_answering());
    let delivery = world.delivery().failing_store(0, StoreFault::LostInDoubt);
    let deadline = delivery.deadline.clone();
    delivery.run(&mail("n"), &[inbox()]).expect_temp_fail();
    assert!(!deadline.is_answering());
}

#[test]
fn the_ledger_tells_how_each_attempt_ended() {
    for world in World::both() {
        world
            .delivery()
            .failing_store(0, StoreFault::Refused)
            .run(&mail("m"), &[inbox()])
            .expect_temp_fail();
        world.deliver(&mail("m"), &[inbox(), sent()]).expect_delivered();
        world.deliver(&mail("m"), &[inbox()]).expect_delivered();
        let trace = world.trace(&mail("m"));
        let ends: Vec<_> =
            trace.attempts.iter().map(|attempt| attempt.outcome.as_deref()).collect();
        assert_eq!(ends, [Some("tempfail"), Some("delivered"), Some("delivered")]);
        let texts: Vec<&str> =
            trace.attempts.iter().filter_map(|attempt| attempt.text.as_deref()).collect();
        let reasons: Vec<_> =
            trace.attempts.iter().map(|attempt| attempt.reason.as_deref()).collect();
        assert_eq!(reasons, [Some("store_down"), Some("delivered"), Some("delivered")]);
        assert!(texts[0].contains("told to fail"), "{texts:?}");
        assert!(
            texts[1].contains("stored account=doug") && texts[1].contains("account=lisa"),
            "{texts:?}"
        );
        assert!(texts[2].contains("already there"), "{texts:?}");
    }
}

#[test]
fn the_end_on_record_is_the_end_that_postfix_hears() {
    for world in World::both() {
        let ended = world.deliver(&mail("m"), &[inbox(), sent()]).expect_delivered();
        let attempt = &world.trace(&mail("m")).attempts[0];
        assert_eq!(attempt.text.as_deref(), Some(&*ended.outcome.text()));
        assert_eq!(attempt.status.as_deref(), Some(Status::OK.to_string().as_str()));
        let calls: &[&str] = match world.calls() == TURN_TAKEN {
            true => &["record", "take_turn", "confirm", "take_turn", "confirm"],
            false => &["record", "confirm", "confirm"],
        };
        assert_eq!(ended.ledger_calls, calls, "no call for it alone");
    }
}

#[test]
fn a_copy_with_nul_bytes_says_so_and_the_message_is_not_kept_for_it() {
    let world = World::like_imap();
    let nul = mail_with_body("nul", "a\0b");
    world.deliver(&nul, &[inbox()]).expect_delivered();
    world.deliver(&mail("none"), &[inbox()]).expect_delivered();
    let trace = world.trace(&nul);
    assert!(!trace.raw_kept && trace.copies[0].nul_replaced);
    let trace = world.trace(&mail("none"));
    assert!(!trace.raw_kept && !trace.copies[0].nul_replaced);
}

#[test]
fn a_message_for_nobody_is_recorded_and_delivered() {
    let world = World::like_imap();
    world.deliver(&mail("m"), &[]).expect_delivered();
    assert!(world.trace(&mail("m")).copies.is_empty());
}

/// Whether a delivery for doug ends for good, and the ledger's calls, where the store says that
/// there is no such account.
fn without_account(world: &World, policy: UnknownAccount, name: &str) -> (Ended, bool) {
    let mut delivery = world.delivery().refusing("append", StoreError::NoAccount("ghost".into()));
    delivery.unknown_account = policy;
    let ended = delivery.run(&mail(name), &[inbox()]);
    let for_good = match &ended.outcome {
        Outcome::PermFail(status, _) => {
            assert_eq!(*status, Status::UNKNOWN_MAILBOX);
            true
        }
        Outcome::TempFail(..) => false,
        Outcome::Delivered(_) => panic!("{:?}", ended.outcome),
    };
    (ended, for_good)
}

#[test]
fn an_unknown_account_is_refused_for_good_as_configured_and_only_without_a_placed_copy() {
    for (policy, refuses) in [(UnknownAccount::Defer, false), (UnknownAccount::Reject, true)] {
        let world = World::like_imap();
        let (ended, for_good) = without_account(&world, policy, "m");
        assert_eq!(for_good, refuses, "{policy:?}");
        let asked = ["has_placed_copy", "account_reached"];
        let asked = &asked[..if refuses { 2 } else { 1 }];
        assert_eq!(ended.ledger_calls, [&["record"], asked, &["release", "finish"]].concat());
        assert_eq!(world.count(&inbox()), 0);
        // Somebody else's copy says nothing of this account.
        world.deliver(&mail("other"), &[Destination::inbox("lisa")]).expect_delivered();
        assert_eq!(without_account(&world, policy, "m").1, refuses, "{policy:?}: again");
        // It is there after all, and then it is unknown again.
        world.deliver(&mail("m"), &[inbox()]).expect_delivered();
        let (ended, for_good) = without_account(&world, policy, "next");
        assert!(!for_good, "{policy:?}");
        let text = ended.outcome.text();
        assert_eq!(ended.outcome.status(), Status::OUR_SETUP, "{text}");
        assert!(text.contains("onedrop forget --account=doug"), "{text}");
    }
}

/// In a shell.
#[test]
fn a_command_that_a_failure_names_has_the_account_as_one_word() {
    let account = "o'brien; x".to_owned();
    let text = Failure::AccountGone { account, why: "no such user".to_owned() }.to_string();
    assert!(text.starts_with("account=o'brien; x has mail on record"), "{text}");
    assert!(text.ends_with("onedrop forget --account='o'\\''brien; x'"), "{text}");
}

#[test]
fn an_unknown_account_is_not_refused_for_good_whose_address_had_mail() {
    let world = World::like_imap();
    world.deliver(&mail("other"), &[Destination::inbox("lisa")]).expect_delivered();
    assert!(without_account(&world, UnknownAccount::Reject, "m").1);
    let moved = Attempt { recipient: "Doug@X".to_owned(), ..attempt("mx1") };
    let text = "already there account=lisa mailbox=INBOX uid=1".to_owned();
    let others = [(moved, AttemptEnd { text, ..delivered() })];
    world.ledger.finish(mail("other").identity(), None, &others, soon()).expect("on record");
    let (ended, for_good) = without_account(&world, UnknownAccount::Reject, "m");
    assert!(!for_good);
    let text = ended.outcome.text();
    assert_eq!(ended.outcome.status(), Status::OUR_SETUP, "{text}");
    assert!(text.contains("doug@x (account=lisa) has mail on record and is unknown now"), "{text}");
}

#[test]
fn an_unknown_account_is_not_refused_for_good_where_the_ledger_cannot_tell() {
    let world = World::like_imap();
    for fault in [LedgerFault::Refused, LedgerFault::Lost, LedgerFault::LostForGood] {
        let mut delivery = world.delivery().refusing("append", StoreError::NoAccount("x".into()));
        delivery.unknown_account = UnknownAccount::Reject;
        let ended = delivery.failing_ledger(1, fault).run(&mail("m"), &[inbox()]);
        ended.expect_temp_fail();
    }
}
