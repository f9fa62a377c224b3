//! A sender's copy that is left to the mail program first, and to `onedrop settle` then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use onedrop_core::directory::Destination;
use onedrop_core::ledger::{Audit, Claim, Confirmed, CopyFacts, Ledger, ToConfirm, Window};
use onedrop_core::message::Message;
use onedrop_core::outcome::Reason;
use onedrop_core::store::{Receipt, Store, StoreError};
use onedrop_core::verify::{Level, Topic};

use crate::ports::{LEASE, inbox, mail, mail_with_body, message, sent, soon};
use crate::script::{LedgerFault, StoreFault};
use crate::world::{Ended, Settled, World};

const AFTER: Duration = Duration::from_secs(600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The message as the sender's mail program saves it: with fields that the sent one has not, of
/// which one is content.
fn saved(mail: &Message) -> Vec<u8> {
    [b"Bcc: boss@x\r\nContent-Language: en\r\n", mail.own_copy()].concat()
}

impl World {
    fn deliver_due(&self, mail: &Message, destinations: &[Destination]) -> Ended {
        self.delivery().leaving_sent(AFTER).run(mail, destinations)
    }

    /// The mail program saves its copy.
    fn save(&self, mail: &Message) {
        self.store.save("lisa", "Sent", &saved(mail), SystemTime::UNIX_EPOCH + 3 * AFTER);
    }

    fn settle(&self) -> Settled {
        self.delivery().settle()
    }

    /// What stands in Sent.
    fn in_sent(&self) -> Vec<Vec<u8>> {
        self.store.copies("lisa", "Sent").into_iter().map(|stored| stored.bytes).collect()
    }
}

impl Settled {
    fn told(&self) -> Vec<(Level, Topic)> {
        self.findings.iter().map(|finding| (finding.level, finding.topic)).collect()
    }
}

const WRITTEN: (Level, Topic) = (Level::Settled, Topic::Due);
const TAKEN_OUT: (Level, Topic) = (Level::Settled, Topic::Double);

/// The folder above all mailboxes may have gone since the run began.
#[test]
fn where_nothing_may_be_written_a_due_copy_stays_as_it_is() {
    for world in World::both() {
        world.deliver_due(&mail("m"), &[inbox(), sent()]).expect_delivered();
        world.ledger.advance(AFTER);
        let gone = |_| Err(StoreError::Setup("it lacks the mark".to_owned()).into());
        let settled = world.delivery().settle_where(true, &gone);
        assert_eq!(settled.failed.len(), 1, "{:?}", settled.failed);
        assert!(settled.failed[0].contains("it lacks the mark"), "{:?}", settled.failed);
        assert_eq!((settled.told(), world.count(&sent())), (vec![], 0));
        assert_eq!(world.copies(&mail("m"))[1].state, "due", "and nobody has leased it");
        assert_eq!(world.settle().told(), [WRITTEN]);
    }
}

#[test]
fn a_due_copy_is_no_condition_of_a_delivery_and_nothing_is_written_before_its_time() {
    for world in World::both() {
        let first = world.deliver_due(&mail("m"), &[inbox(), sent()]).expect_delivered();
        assert_eq!((world.count(&inbox()), world.count(&sent())), (1, 0));
        let text = first.outcome.text();
        assert!(text.contains("; due account=lisa mailbox=Sent at=20"), "{text}");
        assert_eq!(first.store_calls, ["append"], "the store hears of the INBOX alone");
        let trace = world.trace(&mail("m"));
        assert_eq!(trace.attempts[0].text.as_deref(), Some(&*text), "what Postfix heard");
        let copy = &trace.copies[1];
        assert_eq!((copy.state.as_str(), copy.epoch), ("due", 0));
        // Other recipients, with whatever the configuration says by then.
        for (account, after) in [("zoe", AFTER), ("amy", 3 * AFTER), ("bob", Duration::ZERO)] {
            let to = [Destination::inbox(account), sent()];
            let next = world.delivery().leaving_sent(after).run(&mail("m"), &to);
            let next = next.expect_delivered();
            assert_eq!((world.count(&to[0]), world.count(&sent())), (1, 0), "{account}");
            assert_eq!(next.store_calls, ["append"]);
        }
        assert_eq!(world.copies(&mail("m"))[1].due_at, copy.due_at, "the first time counts");
        let early = world.settle();
        assert_eq!((early.told(), world.count(&sent())), (vec![], 0));
        world.ledger.advance(AFTER);
        assert_eq!(world.settle().told(), [WRITTEN]);
        assert_eq!(world.in_sent(), [mail("m").shared_copy()]);
        let late = world.deliver_due(&mail("m"), &[Destination::inbox("eve"), sent()]);
        assert!(late.outcome.text().contains("already there account=lisa mailbox=Sent"));
        assert_eq!(world.count(&sent()), 1);
    }
}

/// The sender has sent it to its own address with the detail `Sent`, too.
#[test]
fn a_recipients_copy_in_the_mailbox_that_is_due_waits_for_settle_and_is_one() {
    for world in World::both() {
        world.deliver_due(&mail("m"), &[inbox(), sent()]).expect_delivered();
        let own = [Destination { shared: false, ..sent() }];
        let waits = world.deliver_due(&mail("m"), &own).expect_temp_fail();
        assert_eq!(waits.endings[0].reason, Some(Reason::Contended));
        assert_eq!(world.count(&sent()), 0);
        world.ledger.advance(AFTER);
        assert_eq!(world.settle().told(), [WRITTEN]);
        world.deliver_due(&mail("m"), &own).expect_delivered();
        assert_eq!(world.count(&sent()), 1);
    }
}

#[test]
fn the_mail_programs_own_copy_is_the_one_whenever_it_comes() {
    for world in World::both() {
        let names = ["before", "after", "never"];
        world.save(&mail("before"));
        for name in names {
            world.deliver_due(&mail(name), &[inbox(), sent()]).expect_delivered();
        }
        world.ledger.advance(AFTER);
        let first = world.settle();
        assert_eq!(first.told(), [WRITTEN; 3]);
        assert!(first.findings[0].text.starts_with("is the mail program's own, "), "{first:?}");
        assert_eq!(world.count(&sent()), 3);
        world.save(&mail("after"));
        assert_eq!(world.count(&sent()), 4);
        let second = world.settle();
        assert_eq!(second.told(), [TAKEN_OUT], "{second:?}");
        let mut expected = vec![
            saved(&mail("before")),
            saved(&mail("after")),
            mail("never").shared_copy().to_vec(),
        ];
        expected.sort();
        let mut standing = world.in_sent();
        standing.sort();
        assert_eq!(standing, expected, "one of each, whoever wrote it");
        for name in names {
            let copy = &world.copies(&mail(name))[1];
            assert_eq!((copy.state.as_str(), copy.by_sender), ("placed", name != "never"));
            // A later delivery writes none.
            world.deliver_due(&mail(name), &[Destination::inbox("zoe"), sent()]);
        }
        assert_eq!(world.count(&sent()), 3);
        // For two days, and no longer.
        assert_eq!(world.settle().told(), []);
        world.ledger.advance(2 * DAY);
        let over = world.settle();
        assert_eq!((over.told(), over.store_calls), (vec![], vec![]));
        world.save(&mail("never"));
        assert_eq!(world.settle().told(), []);
        assert_eq!(world.count(&sent()), 4, "too late: both stay");
    }
}

#[test]
fn a_dry_run_says_what_would_be_done_and_does_nothing() {
    for world in World::both() {
        for name in ["theirs", "none"] {
            world.deliver_due(&mail(name), &[inbox(), sent()]);
        }
        world.save(&mail("theirs"));
        world.ledger.advance(AFTER);
        let dry = world.delivery().settle_as(false);
        assert_eq!(dry.told(), [(Level::Info, Topic::Due); 2]);
        assert_eq!(world.count(&sent()), 1);
        assert!(dry.ledger_calls.iter().all(|call| *call != "claim"), "{dry:?}");
        world.settle();
        world.save(&mail("none"));
        let dry = world.delivery().settle_as(false);
        assert_eq!(dry.told(), [(Level::Info, Topic::Double)]);
        assert_eq!(world.count(&sent()), 3);
    }
}

#[test]
fn a_sent_that_refuses_keeps_the_copy_due_until_it_takes_it() {
    for world in World::both() {
        world.deliver_due(&mail("m"), &[inbox(), sent()]);
        world.ledger.advance(AFTER);
        let refused = StoreError::Refused("no right".to_owned());
        let failed = world.delivery().refusing("append", refused).settle();
        assert_eq!(failed.told(), [(Level::Info, Topic::Due)], "it waits, and the run succeeds");
        let copy = &world.copies(&mail("m"))[1];
        assert_eq!(copy.state, "due", "and no delivery leases it");
        assert!(copy.kept.as_deref().is_some_and(|why| why.contains("no right")), "{copy:?}");
        let next = world.deliver(&mail("m"), &[Destination::inbox("zoe"), sent()]);
        assert_eq!((next.expect_delivered().appended.len(), world.count(&sent())), (1, 0));
        // A look that does not come to its end writes nothing.
        let away = StoreError::NotStored("away".to_owned());
        let failed = world.delivery().refusing("find", away).settle();
        assert_eq!((failed.failed.len(), failed.tally.map(|tally| tally.failed)), (1, Some(1)));
        assert_eq!(world.count(&sent()), 0);
        assert_eq!(world.settle().told(), [WRITTEN], "and left no lease");
        assert_eq!(world.in_sent(), [mail("m").shared_copy()]);
    }
}

#[test]
fn a_copy_that_could_not_be_placed_at_its_delivery_is_placed() {
    for fault in [StoreFault::Refused, StoreFault::DoneInDoubt, StoreFault::LostInDoubt] {
        for world in World::both() {
            world.delivery().failing_store(1, fault).run(&mail("m"), &[inbox(), sent()]);
            world.expire_leases();
            assert_eq!(world.settle().told(), [(Level::Repaired, Topic::Kept)], "{fault:?}");
            assert_eq!(world.in_sent(), [mail("m").shared_copy()], "{fault:?}");
            assert_eq!(world.settle().told(), []);
        }
    }
}

/// What the mail program does, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Saves {
    Before,
    /// After ours was written.
    After,
    /// Right before the how many-th call of the store in the run that fails.
    AtCall(usize),
    Never,
}

#[test]
fn whatever_fails_wherever_in_settle_one_copy_is_left() {
    let store_faults = StoreFault::ALL.map(Some).into_iter().map(|fault| (fault, None));
    let ledger_faults = LedgerFault::ALL.map(Some).into_iter().map(|fault| (None, fault));
    let faults: Vec<_> = store_faults.chain(ledger_faults).collect();
    let saves = [Saves::Before, Saves::After, Saves::Never, Saves::AtCall(2), Saves::AtCall(3)];
    let mut failed_at = BTreeMap::new();
    for saves in saves {
        for (store_fault, ledger_fault) in &faults {
            for at in 0.. {
                let mut reached = 0;
                for world in World::both() {
                    let context = format!("{saves:?} {store_fault:?} {ledger_fault:?} at {at}");
                    if saves == Saves::Before {
                        world.save(&mail("m"));
                    }
                    world.deliver_due(&mail("m"), &[inbox(), sent()]).expect_delivered();
                    world.ledger.advance(AFTER);
                    if saves == Saves::After {
                        world.settle();
                        world.save(&mail("m"));
                    }
                    let mut run = world.delivery();
                    let has_saved = Arc::new(AtomicBool::new(!matches!(saves, Saves::Never)));
                    if let Saves::AtCall(nth) = saves {
                        let (other, is_called) = (world.clone(), Arc::clone(&has_saved));
                        is_called.store(false, Ordering::SeqCst);
                        let call = if nth == 2 { "append" } else { "confirm" };
                        run = run.before(call, move || {
                            is_called.store(true, Ordering::SeqCst);
                            other.save(&mail("m"));
                        });
                    }
                    if let Some(fault) = store_fault {
                        run = run.failing_store(at, *fault);
                    }
                    if let Some(fault) = ledger_fault {
                        run = run.failing_ledger(at, *fault);
                    }
                    let failed = run.settle();
                    let calls = match store_fault {
                        Some(_) => &failed.store_calls,
                        None => &failed.ledger_calls,
                    };
                    if let Some(call) = calls.get(at) {
                        reached += 1;
                        *failed_at.entry(*call).or_insert(0) += 1;
                    }
                    assert!(world.count(&sent()) <= 2, "{context}");
                    // At once, and when its lease has run out.
                    world.settle();
                    assert!(world.count(&sent()) <= 2, "{context}");
                    world.expire_leases();
                    for _ in 0..2 {
                        world.settle();
                    }
                    // The call that the mail program waits for may never have come.
                    let expected = match has_saved.load(Ordering::SeqCst) {
                        true => saved(&mail("m")),
                        false => mail("m").shared_copy().to_vec(),
                    };
                    assert_eq!(world.in_sent(), [expected], "{context}: {failed:#?}");
                    let copy = &world.copies(&mail("m"))[1];
                    assert_eq!((copy.state.as_str(), &copy.kept), ("placed", &None), "{context}");
                    assert_eq!(world.settle().told(), [], "{context}: nothing is left to do");
                }
                if reached == 0 {
                    break;
                }
            }
        }
    }
    for call in ["claim", "find", "append", "confirm", "leave_to_sender", "remove_double"] {
        assert!(failed_at.contains_key(call), "{call} never failed: {failed_at:?}");
    }
}

#[test]
fn a_message_of_ours_with_the_same_id_is_not_the_mail_programs() {
    for world in World::both() {
        let other = mail_with_body("m", "another content");
        for one in [&mail("m"), &other] {
            world.deliver_due(one, &[inbox(), sent()]).expect_delivered();
        }
        world.ledger.advance(AFTER);
        assert_eq!(world.settle().told(), [WRITTEN; 2]);
        assert_eq!(world.settle().told(), [], "neither counts as the other's");
        let mut both = world.in_sent();
        both.sort();
        let mut expected = [mail("m").shared_copy().to_vec(), other.shared_copy().to_vec()];
        expected.sort();
        assert_eq!(both, expected, "nobody suppresses a mail by another with its Message-ID");
        // Of two that are sent, one is saved: the other's content stays.
        let theirs = [&b"Bcc: boss@x\r\n"[..], mail("m").own_copy()].concat();
        world.store.save("lisa", "Sent", &theirs, SystemTime::UNIX_EPOCH + 3 * AFTER);
        assert_eq!(world.settle().told(), [TAKEN_OUT]);
        let mut both = world.in_sent();
        both.sort();
        let mut expected = [theirs, other.shared_copy().to_vec()];
        expected.sort();
        assert_eq!(both, expected);
        assert_eq!(world.settle().told(), []);
    }
}

#[test]
fn a_saved_copy_stands_for_one_of_several_messages_with_its_id() {
    for saves_first in [true, false] {
        for world in World::both() {
            let other = mail_with_body("m", "another content");
            let (first, second) = if saves_first { (mail("m"), other) } else { (other, mail("m")) };
            let theirs = [&b"Bcc: boss@x\r\n"[..], mail("m").own_copy()].concat();
            world.store.save("lisa", "Sent", &theirs, SystemTime::UNIX_EPOCH + 3 * AFTER);
            for one in [&first, &second] {
                world.deliver_due(one, &[inbox(), sent()]).expect_delivered();
            }
            world.ledger.advance(AFTER);
            assert_eq!(world.settle().told(), [WRITTEN; 2]);
            let mut both = world.in_sent();
            both.sort();
            let other = mail_with_body("m", "another content").shared_copy().to_vec();
            let mut expected = [theirs, other];
            expected.sort();
            assert_eq!(both, expected, "each content is there once");
        }
    }
}

#[test]
fn ours_that_its_owner_moved_away_and_back_stays_watched() {
    let world = World::like_imap();
    world.deliver_due(&mail("m"), &[inbox(), sent()]);
    world.ledger.advance(AFTER);
    world.settle();
    world.store.meddle("lisa", "Sent", |stored| stored[0].uid += 100);
    let dry = world.delivery().settle_as(false);
    assert_eq!(dry.told(), [(Level::Info, Topic::Moved)]);
    assert_eq!(world.settle().told(), [(Level::Info, Topic::Moved)]);
    let copy = &world.copies(&mail("m"))[1];
    assert!(!copy.by_sender, "{copy:?}");
    assert_eq!(world.settle().told(), [], "that is told once");
    world.save(&mail("m"));
    assert_eq!(world.settle().told(), [TAKEN_OUT]);
    assert_eq!(world.in_sent(), [saved(&mail("m"))]);
}

#[test]
fn in_a_maildir_ours_by_another_name_is_ours() {
    let world = World::like_maildir();
    world.deliver_due(&mail("m"), &[inbox(), sent()]);
    world.ledger.advance(AFTER);
    world.settle();
    let key = mail("another").identity().id_hash;
    world.store.meddle("lisa", "Sent", |stored| stored[0].key = key);
    assert_eq!(world.settle().told(), [(Level::Info, Topic::Moved)]);
    assert!(!world.copies(&mail("m"))[1].by_sender);
}

#[test]
fn the_mail_programs_copy_in_the_place_of_ours_is_not_taken_for_ours() {
    for theirs in [saved(&mail("m")), mail("m").own_copy().to_vec()] {
        let world = World::like_imap();
        world.deliver_due(&mail("m"), &[inbox(), sent()]);
        world.ledger.advance(AFTER);
        world.settle();
        world.store.meddle("lisa", "Sent", Vec::clear);
        world.store.save("lisa", "Sent", &theirs, world.ledger.time());
        assert_eq!(world.settle().told(), [TAKEN_OUT]);
        assert!(world.copies(&mail("m"))[1].by_sender);
    }
}

#[test]
fn a_saved_copy_that_is_marked_as_deleted_does_not_count() {
    for world in World::both() {
        world.save(&mail("m"));
        world.store.meddle("lisa", "Sent", |stored| stored[0].marked_deleted = true);
        world.deliver_due(&mail("m"), &[inbox(), sent()]);
        world.ledger.advance(AFTER);
        assert_eq!(world.settle().told(), [WRITTEN]);
        // It is expunged.
        world.store.meddle("lisa", "Sent", |stored| stored.retain(|one| !one.marked_deleted));
        assert_eq!(world.in_sent(), [mail("m").shared_copy()]);
    }
}

#[test]
fn a_due_copy_without_its_bytes_defers_no_recipient() {
    for world in World::both() {
        world.deliver_due(&mail("m"), &[inbox(), sent()]).expect_delivered();
        world.ledger.give_up_kept();
        let to = [Destination::inbox("zoe"), sent()];
        world.delivery().leaving_sent(Duration::ZERO).run(&mail("m"), &to).expect_delivered();
        assert_eq!(world.in_sent(), [mail("m").shared_copy()]);
        world.ledger.advance(AFTER);
        assert_eq!(world.settle().told(), []);
    }
}

/// `sent.mailbox` was changed between two recipients.
#[test]
fn each_of_two_mailboxes_for_sent_gets_the_copy_that_is_due_in_it() {
    for world in World::both() {
        let items = Destination::sent("lisa", "Sent Items");
        world.deliver_due(&mail("m"), &[inbox(), sent()]).expect_delivered();
        world.deliver_due(&mail("m"), &[Destination::inbox("zoe"), items.clone()]);
        world.ledger.advance(AFTER);
        assert_eq!(world.settle().told(), [WRITTEN; 2]);
        assert_eq!((world.count(&sent()), world.count(&items)), (1, 1));
    }
}

#[test]
fn without_a_message_id_only_what_is_equal_is_the_mail_programs() {
    let letter = "Subject: m\r\n\r\nHello\r\n";
    for (bytes, expected) in [(letter, 1), ("Subject: m\r\n\r\nBye\r\n", 2)] {
        let world = World::like_imap();
        world.store.save("lisa", "Sent", bytes.as_bytes(), world.ledger.time() + AFTER);
        world.deliver_due(&message(letter), &[inbox(), sent()]).expect_delivered();
        world.ledger.advance(AFTER);
        assert_eq!(world.settle().told(), [WRITTEN]);
        assert_eq!(world.count(&sent()), expected, "{bytes}");
    }
}

#[test]
fn without_uidplus_both_stay_and_that_is_said_once() {
    let world = World::without_uidplus();
    world.deliver_due(&mail("m"), &[inbox(), sent()]);
    world.ledger.advance(AFTER);
    assert_eq!(world.settle().told(), [WRITTEN]);
    assert_eq!(world.settle().told(), [], "the one there is ours");
    world.save(&mail("m"));
    let both = world.settle();
    assert_eq!(both.told(), [(Level::Error, Topic::Double)]);
    assert!(both.findings[0].text.contains("no UIDPLUS"), "{both:?}");
    assert_eq!((world.settle().told(), world.count(&sent())), (vec![], 2));
}

#[test]
fn ours_that_a_dying_run_has_marked_as_deleted_goes() {
    let world = World::like_imap();
    world.deliver_due(&mail("m"), &[inbox(), sent()]);
    world.ledger.advance(AFTER);
    world.settle();
    world.save(&mail("m"));
    world.store.meddle("lisa", "Sent", |stored| stored[0].marked_deleted = true);
    assert_eq!(world.settle().told(), [TAKEN_OUT]);
    assert_eq!(world.in_sent(), [saved(&mail("m"))]);
}

#[test]
fn ours_stays_where_the_other_is_marked_or_it_is_no_longer_as_it_was_written() {
    for world in World::both() {
        world.deliver_due(&mail("m"), &[inbox(), sent()]);
        world.ledger.advance(AFTER);
        world.settle();
        world.save(&mail("m"));
        world.store.meddle("lisa", "Sent", |stored| stored[1].marked_deleted = true);
        assert_eq!((world.settle().told(), world.count(&sent())), (vec![], 2));
        world.store.meddle("lisa", "Sent", |stored| stored[1].marked_deleted = false);
        if !world.store.append_is_idempotent() {
            // An older state of the mailbox was put back: the UID is another message by now.
            world.store.meddle("lisa", "Sent", |stored| stored[0].date += AFTER);
            assert_eq!(world.settle().told(), [(Level::Info, Topic::Double)]);
            assert_eq!(world.count(&sent()), 2);
        }
    }
}

#[test]
fn an_owner_that_deletes_ours_gets_no_other() {
    for world in World::both() {
        world.deliver_due(&mail("m"), &[inbox(), sent()]);
        world.ledger.advance(AFTER);
        world.settle();
        world.store.meddle("lisa", "Sent", Vec::clear);
        assert_eq!(world.settle().told(), []);
        world.deliver_due(&mail("m"), &[Destination::inbox("zoe"), sent()]);
        assert_eq!((world.settle().told(), world.count(&sent())), (vec![], 0));
    }
}

#[test]
fn what_is_due_comes_before_what_is_watched() {
    let world = World::like_imap();
    let (first, last) = (Destination::sent("amy", "Sent"), Destination::sent("zoe", "Sent"));
    world.deliver_due(&mail("watched"), &[inbox(), first]).expect_delivered();
    world.ledger.advance(AFTER);
    world.settle();
    world.deliver_due(&mail("due"), &[inbox(), last]).expect_delivered();
    world.ledger.advance(AFTER);
    let run = world.settle();
    assert_eq!(run.told(), [WRITTEN]);
    assert_eq!(run.store_calls, ["find", "append", "find"], "and what is written is not sought");
}

/// A run that gave up before it wrote anything leaves nothing that could come late.
#[test]
fn the_senders_own_equal_copies_stay_where_no_attempt_ended_in_doubt() {
    let world = World::like_imap();
    world.deliver_due(&mail("m"), &[inbox(), sent()]);
    world.ledger.advance(AFTER);
    let refused = StoreError::Refused("no right".to_owned());
    world.delivery().refusing("append", refused).settle();
    world.save(&mail("m"));
    assert_eq!(world.settle().told(), [WRITTEN]);
    assert!(world.copies(&mail("m"))[1].by_sender);
    let at = world.record(&mail("m"), &[], LEASE).recorded_at;
    world.store.save("lisa", "Sent", mail("m").own_copy(), at);
    assert_eq!((world.settle().told(), world.count(&sent())), (vec![], 2));
}

/// The server executes an append of a run that died long ago.
#[test]
fn a_late_copy_of_ours_beside_the_mail_programs_goes() {
    let world = World::like_imap();
    world.deliver_due(&mail("m"), &[inbox(), sent()]);
    world.ledger.advance(AFTER);
    let run = world.delivery().failing_store(1, StoreFault::LostInDoubt).settle();
    assert_eq!(run.store_calls, ["find", "append"]);
    world.expire_leases();
    world.save(&mail("m"));
    assert_eq!(world.settle().told(), [WRITTEN]);
    assert!(world.copies(&mail("m"))[1].by_sender);
    let under_way = world.store.under_way();
    world.store.take_effect(under_way[0]);
    // And whatever else its owner saved.
    world.save(&mail("m"));
    world.store.meddle("lisa", "Sent", |stored| stored[0].marked_deleted = true);
    assert_eq!((world.settle().told(), world.count(&sent())), (vec![], 3));
    world.store.meddle("lisa", "Sent", |stored| stored[0].marked_deleted = false);
    assert_eq!(world.settle().told(), [TAKEN_OUT]);
    assert_eq!(world.in_sent(), [saved(&mail("m")), saved(&mail("m"))]);
}

/// Its run was stopped all the time, and says what it wrote.
#[test]
fn a_copy_of_ours_that_comes_when_the_last_look_is_over_goes_and_nothing_is_left() {
    let world = World::like_imap();
    world.deliver_due(&mail("m"), &[inbox(), sent()]);
    world.ledger.advance(AFTER);
    world.delivery().failing_store(1, StoreFault::LostInDoubt).settle();
    world.expire_leases();
    world.save(&mail("m"));
    assert_eq!(world.settle().told(), [WRITTEN]);
    world.ledger.advance(3 * DAY);
    assert_eq!(world.settle().told(), []);
    let left = |since| {
        let window = Window { since, all: true };
        world.ledger.copies_to_verify(&window, "lisa", None, 9, soon()).expect("rows")
    };
    let never = world.ledger.time() + 1000 * DAY;
    assert_eq!(left(never), []);
    let row = left(SystemTime::UNIX_EPOCH).remove(0);
    let (copy, value, looks_back) = (row.copy, row.value, row.looks_back);
    let claim = Claim { copy, value, epoch: 1, in_doubt: false, looks_back };
    world.store.take_effect(world.store.under_way()[0]);
    let (receipt, facts) = (&Receipt::elsewhere("another"), CopyFacts::default());
    let one = ToConfirm { claim, receipt, facts, end: None, may_be_lost: false };
    let confirmed = world.ledger.confirm(&one, soon()).expect("confirm");
    assert!(matches!(confirmed, Confirmed::Superseded { .. }), "{confirmed:?}");
    assert_eq!(left(never).len(), 1);
    assert_eq!(world.settle().told(), [TAKEN_OUT]);
    assert_eq!(world.in_sent(), [saved(&mail("m"))]);
    assert_eq!((world.settle().told(), left(never)), (vec![], vec![]));
}

/// A run that ended in doubt, and what it finds in Sent at the date of ours.
#[test]
fn what_a_run_in_doubt_has_written_is_ours_and_stays_beside_what_may_be_ours() {
    for (fault, by_sender) in [(StoreFault::DoneInDoubt, false), (StoreFault::LostInDoubt, true)] {
        let world = World::like_imap();
        world.deliver_due(&mail("m"), &[inbox(), sent()]);
        world.ledger.advance(AFTER);
        let date = world.record(&mail("m"), &[], LEASE).recorded_at;
        world.delivery().failing_store(1, fault).settle();
        world.expire_leases();
        if by_sender {
            world.store.save("lisa", "Sent", &saved(&mail("m")), date);
        }
        let run = world.settle();
        assert_eq!((run.told(), run.tally.map(|tally| tally.settled)), (vec![WRITTEN], Some(1)));
        assert_eq!(world.copies(&mail("m"))[1].by_sender, by_sender);
        if !by_sender {
            world.store.save("lisa", "Sent", mail("m").own_copy(), date);
            assert_eq!(world.settle().told(), [(Level::Error, Topic::Double)]);
            assert_eq!(world.count(&sent()), 2);
        }
    }
}

/// The second begins wherever the first is.
#[test]
fn two_runs_at_once_leave_one_copy() {
    for saves in [Saves::Before, Saves::After, Saves::Never] {
        let calls = [
            "claim",
            "find",
            "append",
            "confirm",
            "leave_to_sender",
            "remove_double",
            "kept_bytes",
        ];
        for call in calls {
            for world in World::both() {
                if saves == Saves::Before {
                    world.save(&mail("m"));
                }
                world.deliver_due(&mail("m"), &[inbox(), sent()]);
                world.ledger.advance(AFTER);
                if saves == Saves::After {
                    world.settle();
                    world.save(&mail("m"));
                }
                let other = world.clone();
                let both = world.delivery().before(call, move || drop(other.settle())).settle();
                let context = format!("{saves:?} before {call}: {both:#?}");
                let tally = both.tally.as_ref().expect("it came to its end");
                assert_eq!((tally.errors, tally.failed), (0, 0), "{context}");
                world.expire_leases();
                world.settle();
                let expected = match saves {
                    Saves::Never => mail("m").shared_copy().to_vec(),
                    _ => saved(&mail("m")),
                };
                assert_eq!(world.in_sent(), [expected], "{context}");
                assert_eq!(world.settle().told(), [], "{context}");
            }
        }
    }
}

/// Another run takes the copy while the first one looks for longer than its lease. The first one
/// would die before it could take its own out again.
#[test]
fn a_run_whose_look_outlasts_its_lease_writes_no_second_copy() {
    for world in World::both() {
        world.deliver_due(&mail("m"), &[inbox(), sent()]);
        world.ledger.advance(AFTER);
        let other = world.clone();
        let outlasted = move || {
            other.expire_leases();
            drop(other.settle());
        };
        let late = world.delivery().after("find", outlasted);
        late.after("append", || panic!("it dies")).settle();
        assert_eq!(world.in_sent(), [mail("m").shared_copy().to_vec()]);
    }
}

#[test]
fn a_due_copy_that_cannot_be_put_on_record_defers() {
    for fault in LedgerFault::ALL {
        for world in World::both() {
            let calls = world.deliver_due(&mail("other"), &[inbox(), sent()]).ledger_calls;
            let at = calls.iter().position(|call| *call == "keep_until_due").expect("kept");
            let run = world.delivery().leaving_sent(AFTER).failing_ledger(at, fault);
            let ended = run.run(&mail("m"), &[inbox(), sent()]);
            let is_kept = matches!(fault, LedgerFault::Lost | LedgerFault::LostAfter);
            assert_eq!(ended.is_delivered(), is_kept, "{fault:?}: {:?}", ended.outcome);
            let again = world.deliver_due(&mail("m"), &[inbox(), sent()]).expect_delivered();
            assert!(again.outcome.text().contains("due account=lisa"), "{fault:?}");
            world.ledger.advance(AFTER);
            assert_eq!(world.settle().told(), [WRITTEN; 2], "{fault:?}");
            assert_eq!(world.count(&sent()), 2, "{fault:?}");
        }
    }
}

#[test]
fn looks_at_what_is_watched_come_at_growing_gaps() {
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    for world in World::both() {
        world.deliver_due(&mail("m"), &[inbox(), sent()]);
        world.ledger.advance(AFTER);
        assert_eq!(world.delivery().settle_by_schedule(true).told(), [WRITTEN]);
        let mut looks = Vec::new();
        for minute in (5..60 * 60).step_by(5) {
            world.ledger.advance(minutes(5));
            let dry = world.delivery().settle_by_schedule(false);
            let run = world.delivery().settle_by_schedule(true);
            assert_eq!((run.told(), &dry.store_calls), (vec![], &run.store_calls));
            if !run.store_calls.is_empty() {
                looks.push(minute);
            }
        }
        let first = [10, 20, 40, 80, 160, 320, 560, 800, 1040, 1280, 1520, 1760];
        assert_eq!(looks[..12], first);
        assert_eq!(looks[12..], [2000, 2240, 2480, 2720, 47 * 60], "the last one");
    }
}

#[test]
fn a_look_that_failed_is_taken_at_the_next_run_and_a_sent_copy_found_ends_them() {
    for world in World::both() {
        world.deliver_due(&mail("m"), &[inbox(), sent()]);
        world.ledger.advance(AFTER);
        world.delivery().settle_by_schedule(true);
        world.ledger.advance(AFTER);
        let away = StoreError::NotStored("away".to_owned());
        let failed = world.delivery().refusing("find", away).settle_by_schedule(true);
        assert_eq!(failed.tally.map(|tally| tally.failed), Some(1));
        world.save(&mail("m"));
        let run = world.delivery().settle_by_schedule(true);
        assert_eq!(run.told(), [TAKEN_OUT]);
        world.ledger.advance(DAY);
        let over = world.delivery().settle_by_schedule(true);
        assert_eq!((over.told(), over.store_calls), (vec![], vec![]));
    }
}
