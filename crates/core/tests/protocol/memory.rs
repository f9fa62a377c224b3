//! What the ledger does not remember, the mailbox does: mail that is older than the ledger's memory
//! or was forgotten, at every step at which a delivery of it may fail.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use onedrop_core::deliver::{How, LookBackEnd, LookBackRequest, LookBacks};
use onedrop_core::directory::Destination;
use onedrop_core::hook::{Call, Hook};
use onedrop_core::ledger::memory::MemoryLedger;
use onedrop_core::ledger::{
    BatchTerms, Confirmed, CopyFacts, CopyState, ForgetWhat, Ledger, LedgerError, PurgeWhat,
    Retention, ToConfirm, TraceCopy,
};
use onedrop_core::message::Message;
use onedrop_core::outcome::Reason;
use onedrop_core::retention::{self, Ages};
use onedrop_core::store::memory::Filters;
use onedrop_core::store::{Receipt, Store, StoreError};

use crate::ports::{LEASE, inbox, message, sent, soon};
use crate::script::{LedgerFault, StoreFault};
use crate::world::{Impatient, World};

const DAY: Duration = Duration::from_secs(86_400);

/// Written a year before the ledgers in memory begin.
fn old_mail() -> Message {
    message(
        "From: lisa@gmail.com\r\nDate: Mon, 14 Nov 2022 22:13:20 +0000\r\n\
         Message-ID: <last-year@example.org>\r\nSubject: last year\r\n\r\nHello\r\n",
    )
}

/// 2020-09-13.
fn before_it() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_600_000_000)
}

/// Last year's copies stand in the mailboxes, and the ledger was born long after.
fn with_a_new_ledger(world: &World) -> World {
    world.deliver(&old_mail(), &[inbox(), sent()]).expect_delivered();
    let ledger = MemoryLedger::default();
    ledger.advance(400 * DAY);
    let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000) + 400 * DAY;
    ledger.remembers_since(now);
    World { ledger, store: world.store.clone() }
}

/// One copy in each mailbox, as it was written.
fn assert_as_it_was(world: &World, context: &str) {
    let bytes = |mailbox: &str, account: &str| -> Vec<Vec<u8>> {
        world.store.copies(account, mailbox).into_iter().map(|copy| copy.bytes).collect()
    };
    let mail = old_mail();
    assert_eq!(bytes("INBOX", "doug"), [mail.own_copy()], "{context}");
    assert_eq!(bytes("Sent", "lisa"), [mail.shared_copy()], "{context}");
}

#[test]
fn an_archive_of_last_year_sent_in_again_leaves_the_copies_that_stand() {
    for world in World::both() {
        let world = with_a_new_ledger(&world);
        let again = world.deliver(&old_mail(), &[inbox(), sent()]).expect_delivered();
        assert_eq!(again.hows(), [How::Found, How::Found]);
        // What is found outside of the turn is not looked for in it.
        let look = if Store::append_is_idempotent(&world.store) { "look" } else { "look_back" };
        assert_eq!(again.store_calls, [look; 2]);
        assert_as_it_was(&world, "the first time");
        let again = world.deliver(&old_mail(), &[inbox(), sent()]).expect_delivered();
        assert_eq!(again.hows(), [How::AlreadyThere, How::AlreadyThere]);
        assert_as_it_was(&world, "the second time");
    }
}

#[test]
fn an_archive_of_last_year_leaves_the_copies_that_stand_whatever_fails_in_between() {
    let sites: [fn() -> World; 2] = [World::like_imap, World::like_maildir];
    for site in sites {
        for at in 0..6 {
            for fault in LedgerFault::ALL {
                let world = with_a_new_ledger(&site());
                let delivery = world.delivery().failing_ledger(at, fault);
                delivery.run(&old_mail(), &[inbox(), sent()]);
                let context = format!("{fault:?} at call {at} of the ledger");
                assert_as_it_was(&world, &context);
                world.expire_leases();
                world.deliver(&old_mail(), &[inbox(), sent()]).expect_delivered();
                assert_as_it_was(&world, &format!("after {context}"));
            }
        }
        for at in 0..2 {
            for fault in StoreFault::ALL {
                let world = with_a_new_ledger(&site());
                let delivery = world.delivery().failing_store(at, fault);
                delivery.run(&old_mail(), &[inbox(), sent()]);
                world.expire_leases();
                world.deliver(&old_mail(), &[inbox(), sent()]).expect_delivered();
                assert_as_it_was(&world, &format!("{fault:?} at call {at} of the store"));
            }
        }
    }
}

#[test]
fn mail_that_is_old_and_stands_nowhere_is_written_once() {
    for world in World::both() {
        world.ledger.remembers_since(UNIX_EPOCH + Duration::from_secs(1_700_000_000));
        let first = world.deliver(&old_mail(), &[inbox()]).expect_delivered();
        // A Maildir's look is over soon, and is done in the turn alone.
        let calls = match Store::append_is_idempotent(&world.store) {
            true => vec!["look", "append"],
            false => vec!["look_back", "look", "append"],
        };
        assert_eq!((first.hows(), first.store_calls), (vec![How::Stored], calls));
        let again = world.deliver(&old_mail(), &[inbox()]).expect_delivered();
        assert_eq!(again.hows(), [How::AlreadyThere]);
        assert_eq!(world.count(&inbox()), 1);
    }
}

/// Others are looked back for first.
struct Later;

impl LookBacks for Later {
    fn look_back(&self, _: LookBackRequest<'_>, _: &dyn Store) -> LookBackEnd {
        LookBackEnd::Later("others come first".to_owned())
    }
}

#[test]
fn who_waits_for_a_look_back_is_deferred_and_no_mail_waits_for_that_of_a_sent_copy() {
    let world = with_a_new_ledger(&World::like_imap());
    let later = || world.delivery().looking_back_in(&Later);
    let ended = later().run(&old_mail(), &[inbox()]).expect_temp_fail();
    assert_eq!(ended.endings[0].reason, Some(Reason::LooksBack));
    world.deliver(&old_mail(), &[inbox()]).expect_delivered();
    later().run(&old_mail(), &[inbox(), sent()]).expect_delivered();
    let kept = world.copies(&old_mail())[1].kept.clone();
    let why = "looking for an earlier copy: others come first";
    assert!(kept.as_deref().is_some_and(|kept| kept.contains(why)), "{kept:?}");
    assert_as_it_was(&world, "and neither is written a second time");
}

#[test]
fn a_look_back_takes_no_copy_for_one_that_filters_tell_apart_from_it() {
    let filters = Filters {
        files_into: Some("INBOX"),
        then_into: None,
        dies: false,
        strips: false,
        has_guard: true,
    };
    let world = with_a_new_ledger(&World::handing_over(filters));
    let world = world.of_host([("dedup.filter_fields", "x-spam-flag")]);
    let spam = message([b"X-Spam-Flag: YES\r\n", old_mail().own_copy()].concat());
    for (mail, how) in [(&spam, How::Stored), (&old_mail(), How::Found)] {
        let ended = world.deliver(mail, &[inbox()]).expect_delivered();
        assert_eq!(ended.endings[0].own.as_ref().expect("its own copy").how, how);
        assert_eq!(world.count(&inbox()), 2);
    }
}

#[test]
fn what_comes_after_the_look_back_is_found_in_the_turn() {
    let world = World::like_imap();
    world.ledger.remembers_since(UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    let (store, mail) = (world.store.clone(), old_mail());
    let comes = move || store.save("doug", "INBOX", mail.own_copy(), UNIX_EPOCH);
    let found = world.delivery().after("look_back", comes).run(&old_mail(), &[inbox()]);
    let found = found.expect_delivered();
    assert_eq!((found.hows(), found.store_calls), (vec![How::Found], vec!["look_back", "look"]));
    assert_eq!(world.count(&inbox()), 1);
}

#[test]
fn a_delivery_whose_record_was_purged_says_so_and_loses_nothing() {
    for world in World::both() {
        world.ledger.remembers_since(before_it());
        let ledger = world.ledger.clone();
        let purge = move || {
            ledger.advance(40 * DAY);
            let how = BatchTerms { limit: 100, dry_run: false };
            let purged = ledger.purge(PurgeWhat::Messages, 35 * DAY, None, how, soon());
            assert_eq!(purged.expect("purged").gone, 1);
        };
        let late = world.delivery().after("append", purge).run(&old_mail(), &[inbox()]);
        let late = late.expect_temp_fail();
        let text = late.outcome.text();
        assert!(text.contains("purged or forgotten before it ended"), "{text}");
        assert_eq!(world.count(&inbox()), 1);
        world.expire_leases();
        let again = world.deliver(&old_mail(), &[inbox()]).expect_delivered();
        assert_eq!(again.hows(), [How::Found]);
        assert_eq!(world.count(&inbox()), 1);
    }
}

#[test]
fn a_delivery_that_was_forgotten_confirms_nothing_and_loses_nothing() {
    for world in World::both() {
        let ledger = world.ledger.clone();
        let forget = move || {
            ledger.advance(Duration::from_secs(2 * 3600));
            let how = BatchTerms { limit: 100, dry_run: false };
            let what = ForgetWhat::Message("last-year@example.org");
            let forgotten = ledger.forget(what, 0, how, soon()).expect("forgotten");
            assert!(forgotten.copies.iter().all(|copy| copy.passed_by.is_none()));
        };
        let late = world.delivery().after("append", forget).run(&old_mail(), &[inbox()]);
        late.expect_temp_fail();
        assert!(world.copies(&old_mail()).iter().all(|copy| copy.state != "placed"));
        world.expire_leases();
        let again = world.deliver(&old_mail(), &[inbox()]).expect_delivered();
        assert_eq!(again.hows(), [How::Found]);
        assert_eq!(world.count(&inbox()), 1);
    }
}

#[test]
fn a_copy_whose_record_a_fail_over_has_lost_is_looked_for_by_the_next_attempt() {
    for world in [World::like_imap(), World::like_maildir(), World::without_uidplus()] {
        world.ledger.remembers_since(before_it());
        let ledger = world.ledger.clone();
        let late = world.delivery().after("append", move || ledger.fail_over());
        late.run(&old_mail(), &[inbox(), sent()]).expect_temp_fail();
        let attempts = world.trace(&old_mail()).attempts;
        assert!(attempts.iter().all(|one| one.outcome.is_some()), "{attempts:?}");
        world.expire_leases();
        let again = world.deliver(&old_mail(), &[inbox(), sent()]).expect_delivered();
        assert_eq!(again.hows()[0], How::Found);
        assert_as_it_was(&world, "after the fail-over");
    }
}

#[test]
fn where_another_delivery_has_recorded_it_since_a_fail_over_a_second_look_is_due() {
    let world = World::like_imap();
    let (other, holder) = (world.clone(), Arc::new(OnceLock::new()));
    let holds = Arc::clone(&holder);
    let late = world.delivery().after("append", move || {
        other.ledger.fail_over();
        let claimed = other.record(&old_mail(), &[inbox()], LEASE).copies.remove(0);
        let CopyState::Claimed(claim) = claimed else { panic!("{claimed:?}") };
        holds.set(claim).expect("once");
    });
    late.run(&old_mail(), &[inbox()]).expect_temp_fail();
    // The lease is the other's still, and what it writes is on record.
    let claim = *holder.get().expect("recorded");
    let (receipt, facts) = (&Receipt::uid(1, 77), CopyFacts::default());
    let one = ToConfirm { claim, receipt, facts, end: None, may_be_lost: true };
    assert_eq!(world.ledger.confirm(&one, soon()).expect("confirm"), Confirmed::Recorded);
    let copies = world.ledger.copies();
    assert_eq!(copies.len(), 1);
    assert_eq!((copies[0].row.epoch, copies[0].row.prior_doubt), (claim.epoch, true));
    assert!(copies[0].look_in.is_some());
}

#[test]
fn where_another_delivery_has_placed_it_since_a_fail_over_one_copy_stays() {
    let worlds = [World::like_imap(), World::like_maildir(), World::without_uidplus()];
    // What has no name cannot be taken out.
    for (world, stay) in worlds.into_iter().zip([1, 1, 2]) {
        let (other, ledger) = (world.clone(), world.ledger.clone());
        let late = world.delivery().after("append", move || {
            other.ledger.fail_over();
            let ended = other.deliver(&old_mail(), &[inbox()]);
            // A Maildir's file is locked until its receipt is on record.
            assert!(ended.is_delivered() || Store::append_is_idempotent(&other.store));
        });
        let crash = move || assert_eq!(ledger.crash(), 0, "the other's receipt must last");
        // It is out before the ledger is asked again, which may hang.
        let ending = world.clone();
        let is_out = move || assert_eq!(ending.count(&inbox()), stay);
        let late = late.before("remove", crash).before("finish", is_out);
        late.run(&old_mail(), &[inbox()]).expect_temp_fail();
        assert_eq!(world.count(&inbox()), stay);
        world.expire_leases();
        world.deliver(&old_mail(), &[inbox()]).expect_delivered();
        assert_eq!(world.count(&inbox()), stay);
    }
}

#[test]
fn a_copy_stays_whose_record_a_fail_over_lost_while_another_delivery_goes_to_inbox() {
    let world = World::like_imap();
    world.store.make_mailbox("doug", "lists");
    let (lists, other) = (Destination { mailbox: "lists".to_owned(), ..inbox() }, world.clone());
    let to = lists.clone();
    let late = world.delivery().after("append", move || {
        other.ledger.fail_over();
        let refused = StoreError::Refused("no right".to_owned());
        let dies = other.delivery().refusing("append", refused);
        dies.failing_store(1, StoreFault::Crash).run(&old_mail(), &[to]);
    });
    late.run(&old_mail(), std::slice::from_ref(&lists)).expect_temp_fail();
    let state = |copy: &TraceCopy| (copy.mailbox.clone(), copy.state.clone());
    let copies: Vec<_> = world.copies(&old_mail()).iter().map(state).collect();
    assert_eq!(copies[0], ("lists".to_owned(), "elsewhere".to_owned()), "{copies:?}");
    assert_eq!((world.count(&lists), world.count(&inbox())), (1, 0));
}

/// Its batches meet deliveries, that many times.
struct Meets(AtomicU32);

impl Hook<LedgerError> for Meets {
    fn before(&self, call: &Call<'_>) -> Result<(), LedgerError> {
        let left = |left: u32| left.checked_sub(1);
        let is_batch = matches!(call.name, "purge" | "forget");
        match is_batch && self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok() {
            true => Err(LedgerError::Contended),
            false => Ok(()),
        }
    }
}

#[test]
fn a_batch_that_meets_deliveries_comes_again() {
    let world = World::like_imap();
    world.deliver(&old_mail(), &[inbox(), sent()]).expect_delivered();
    world.ledger.advance(40 * DAY);
    let meeting = |times| world.ledger.with_hook(Arc::new(Meets(AtomicU32::new(times))));
    let ages = Ages { messages: 35 * DAY, facts: 35 * DAY, raw: 7 * DAY, kept: 7 * DAY };
    let (clock, mut told) = (Impatient::default(), 0);
    let since = ForgetWhat::Since(UNIX_EPOCH);
    let forgotten = retention::forget(since, false, &meeting(3), &clock, &mut |_| told += 1);
    assert_eq!((forgotten.is_ok(), told), (true, 2));
    let purged = retention::purge(ages, false, &meeting(3), &clock).expect("purged");
    assert_eq!(purged.messages, 1);
    // But not for ever.
    let for_ever = retention::purge(ages, false, &meeting(u32::MAX), &clock);
    assert!(matches!(for_ever, Err(LedgerError::Contended)), "{for_ever:?}");
}

#[test]
fn mailboxes_that_were_restored_get_what_is_missing_and_nothing_twice() {
    for world in World::both() {
        world.deliver(&old_mail(), &[inbox(), sent()]).expect_delivered();
        // The backup had the Sent copy, and not the recipient's.
        world.store.meddle("doug", "INBOX", Vec::clear);
        let lost = world.deliver(&old_mail(), &[inbox(), sent()]).expect_delivered();
        assert_eq!(lost.hows(), [How::AlreadyThere, How::AlreadyThere]);
        let how = BatchTerms { limit: 100, dry_run: false };
        let since = ForgetWhat::Since(UNIX_EPOCH);
        assert_eq!(world.ledger.forget(since, 0, how, soon()).expect("forgotten").copies.len(), 2);
        let again = world.deliver(&old_mail(), &[inbox(), sent()]).expect_delivered();
        assert_eq!(again.hows(), [How::Stored, How::Found]);
        assert_as_it_was(&world, "restored");
    }
}
