//! What is said and put on record for each recipient.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use onedrop_core::deliver::How;
use onedrop_core::directory::Destination;
use onedrop_core::ledger::{CopyState, Ledger, TraceAttempt};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;

use crate::ports::{LEASE, inbox, mail, sent, soon};
use crate::script::{LedgerFault, StoreFault, Watched};
use crate::world::World;

#[test]
fn addresses_that_nobody_has_end_by_themselves_and_are_on_record() {
    let world = World::like_imap();
    let mut delivery = world.delivery();
    delivery.strangers = vec!["Nobody@x", ""];
    let ended = delivery.run(&mail("m"), &[inbox()]);
    let said: Vec<_> = ended
        .endings
        .iter()
        .map(|one| (one.account.as_deref(), one.outcome.status().to_string(), one.outcome.text()))
        .collect();
    assert_eq!(said[0], (None, "5.1.1".to_owned(), "unknown recipient Nobody@x".into()));
    assert_eq!((said[1].0, said[1].1.as_str()), (None, "4.3.5"), "{said:?}");
    assert!(said[1].2.starts_with("no recipient"), "{said:?}");
    assert_eq!((said[2].0, said[2].1.as_str()), (Some("doug"), "2.0.0"), "{said:?}");

    // The one that has an account stands for the record, the others come with the end.
    let attempts = world.trace(&mail("m")).attempts;
    let ends: Vec<_> = attempts
        .iter()
        .map(|one| (one.recipient.as_str(), one.status.as_deref().expect("an end")))
        .collect();
    assert_eq!(ends, [("doug@x", "2.0.0"), ("nobody@x", "5.1.1"), ("", "4.3.5")]);
    let texts: Vec<_> = attempts.iter().map(|one| one.text.as_deref().expect("an end")).collect();
    assert!(texts[0].ends_with(" for all 3 recipients"), "{texts:?}");
    for one in &attempts {
        let pid = i64::from(std::process::id());
        assert_eq!(
            (one.sender.as_str(), one.host.as_str(), one.pid),
            ("lisa@gmail.com", "mx1", pid)
        );
        assert_eq!(one.queue_id, "4Xyz12");
    }
}

#[test]
fn where_nothing_is_recorded_each_recipient_keeps_its_account() {
    let world = World::like_imap();
    let recorded = world.record(&mail("other"), &[inbox()], LEASE);
    let CopyState::Claimed(claim) = recorded.copies[0] else { panic!("a claim") };
    let holder = Arc::new(world.ledger.clone());
    let _turn = holder.take_turn(&claim, &mail("m").identity().id_hash, soon()).expect("a turn");
    let mut delivery = world.delivery();
    delivery.strangers = vec!["nobody@x"];
    let ended = delivery.run(&mail("m"), &[inbox()]);
    let said: Vec<_> = ended
        .endings
        .iter()
        .map(|one| (one.account.as_deref(), one.outcome.status().to_string()))
        .collect();
    assert_eq!(said, [(None, "5.1.1".to_owned()), (Some("doug"), "4.3.0".to_owned())]);
}

#[test]
fn a_recipients_own_copy_is_not_the_shared_one() {
    for world in World::both() {
        let ended = world.deliver(&mail("m"), &[inbox(), sent()]).expect_delivered();
        let own = ended.endings[0].own.as_ref().expect("a copy");
        assert_eq!(own.destination, inbox());
    }
}

/// The store may have begun on the copy with the date of another record.
#[test]
fn a_copy_that_was_begun_early_has_the_date_of_its_first_record() {
    let world = World::like_maildir();
    let refused = world.delivery().failing_store(0, StoreFault::Refused);
    refused.run(&mail("m"), &[inbox()]).expect_temp_fail();
    let first = world.record(&mail("m"), &[], LEASE).recorded_at;
    world.ledger.advance(Duration::from_secs(3600));
    // Its handle has heard of the time by now.
    world.ledger.release(&[], soon()).expect("a call");
    let early = world.delivery().early().run(&mail("m"), &[inbox()]).expect_delivered();
    assert_eq!(early.reserved, ["begin", "reserve"]);
    assert_eq!(world.store.copies("doug", "INBOX")[0].date, first);
}

/// A mailbox that is named twice is leased once. What the first of them left in doubt is not the
/// second's to write.
#[test]
fn what_is_in_doubt_is_not_claimed_again_by_the_same_delivery() {
    let world = World::like_imap();
    let twice = [inbox(), inbox()];
    let delivery = world.delivery().failing_store(0, StoreFault::DoneInDoubt);
    let ended = delivery.waiting(Duration::from_millis(20)).run(&mail("m"), &twice);
    assert_eq!(ended.expect_temp_fail().appended, [inbox()]);
    assert_eq!(world.count(&inbox()), 1);
}

/// What Postfix hears of as delivered is on record as delivered, also where the receipt was on
/// record before.
#[test]
fn an_end_that_is_not_on_record_is_not_told() {
    let delivered = |world: &World| {
        let trace = world.trace(&mail("m"));
        let is_so = |one: &&TraceAttempt| one.outcome.as_deref() == Some("delivered");
        trace.attempts.iter().filter(is_so).count()
    };
    for fault in [LedgerFault::Lost, LedgerFault::LostAfter, LedgerFault::Contended] {
        let world = World::like_imap();
        world.deliver(&mail("m"), &[inbox()]).expect_delivered();
        let again = world.delivery().failing_ledger(1, fault).run(&mail("m"), &[inbox()]);
        let again = again.expect_delivered();
        assert_eq!(again.ledger_calls, ["record", "finish", "finish"], "{fault:?}");
        assert_eq!(delivered(&world), 2, "{fault:?}");
    }
    for fault in [LedgerFault::Refused, LedgerFault::LostForGood] {
        let world = World::like_imap();
        world.deliver(&mail("m"), &[inbox()]).expect_delivered();
        let untold = world.delivery().failing_ledger(1, fault).run(&mail("m"), &[inbox()]);
        let untold = untold.expect_temp_fail();
        let text = untold.outcome.text();
        assert!(text.starts_with("all is placed, which the next try will find"), "{text}");
        assert_eq!(delivered(&world), 1, "{fault:?}");
        let told = world.deliver(&mail("m"), &[inbox()]).expect_delivered();
        assert_eq!((told.hows(), delivered(&world)), (vec![How::AlreadyThere], 2), "{fault:?}");
        assert_eq!(world.count(&inbox()), 1);
    }
}

/// Keeps what is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl<S: Subscriber> Layer<S> for Log {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        self.0.lock().expect("no panic").push(format!("{event:?}"));
    }
}

#[test]
fn bookkeeping_that_fails_changes_no_end_and_is_logged() {
    let refused = || {
        let at_release = World::like_imap().delivery().failing_ledger(1, LedgerFault::Refused);
        at_release.failing_store(0, StoreFault::Refused).run(&mail("m"), &[inbox()])
    };
    // An event that another test's thread meets for the first time just when somebody begins to
    // listen is never heard (a race of tracing's registry): so it is met before.
    refused().expect_temp_fail();
    let log = Log::default();
    let listener = Registry::default().with(log.clone());
    let ended = tracing::subscriber::with_default(listener, refused);
    assert_eq!(ended.expect_temp_fail().ledger_calls, ["record", "release", "finish"]);
    let logged = log.0.lock().expect("no panic");
    assert!(logged.len() == 1 && logged[0].contains("bookkeeping failed"), "{logged:?}");
    assert!(logged[0].contains("told to fail"), "{logged:?}");
}

/// `-` is a copy's end, a number that of the recipient.
fn ends_heard(world: &World, by_recipient: bool, destinations: &[Destination]) -> String {
    let delivery = world.delivery();
    let delivery = if by_recipient { delivery.by_recipient() } else { delivery };
    let ended = delivery.run(&mail("m"), destinations).expect_delivered();
    let name = |one: &Watched| match one {
        Watched::Copy(_) => "-".to_owned(),
        Watched::Ended(recipient, _) => recipient.to_string(),
        Watched::Recorded(_) | Watched::NotRecorded(_) => String::new(),
    };
    ended.watched.iter().map(name).collect()
}

#[test]
fn a_recipient_with_an_end_of_its_own_hears_it_once_its_copies_have_ended() {
    let lists = Destination { mailbox: "lists".to_owned(), ..inbox() };
    let zoe = || Destination::inbox("zoe");
    for (destinations, by_recipient, heard) in [
        (vec![inbox(), zoe()], true, ["-0-1", "-0-1"]),
        (vec![inbox(), zoe()], false, ["--01", "--01"]),
        (vec![inbox(), zoe(), sent()], true, ["---01", "---01"]),
        // INBOX stands in for the first one's mailbox, which a later delivery finds out last.
        (vec![lists, inbox(), zoe()], true, ["-01-2", "-1-20"]),
    ] {
        let world = World::like_imap();
        let ends = [(); 2].map(|()| ends_heard(&world, by_recipient, &destinations));
        assert_eq!(ends, heard, "{destinations:?}");
    }
}
