//! A sender's own copy, which no recipient asked for.

use onedrop_core::directory::Destination;
use onedrop_core::ledger::CopyState;
use onedrop_core::store::StoreError;

use crate::ports::{LEASE, inbox, mail, sent};
use crate::script::{LedgerFault, StoreFault};
use crate::world::World;

/// The store's call for Sent, which comes after the one for the recipient's own mailbox.
const SENT: usize = 1;

#[test]
fn a_sent_that_cannot_take_its_copy_defers_no_recipient_and_its_bytes_are_kept() {
    for (fault, in_mailbox) in
        [(StoreFault::Refused, 0), (StoreFault::DoneInDoubt, 1), (StoreFault::LostInDoubt, 0)]
    {
        for world in World::both() {
            let both = [inbox(), sent()];
            let first = world
                .delivery()
                .failing_store(SENT, fault)
                .run(&mail("m"), &both)
                .expect_delivered();
            assert_eq!((world.count(&inbox()), world.count(&sent())), (1, in_mailbox), "{fault:?}");
            let text = first.outcome.text();
            assert!(
                text.contains("no copy yet in account=lisa mailbox=Sent, kept for later: store: "),
                "{text}"
            );
            let trace = world.trace(&mail("m"));
            assert_eq!(trace.attempts[0].outcome.as_deref(), Some("delivered"), "{fault:?}");
            assert_eq!(trace.attempts[0].reason.as_deref(), Some("kept"), "{fault:?}");
            assert_eq!(
                trace.attempts[0].text.as_deref(),
                Some(&*text),
                "what Postfix heard is on record"
            );
            assert!(
                trace.copies[1].kept.as_deref().is_some_and(|why| why.contains("told to fail")),
                "{trace:?}"
            );
            // The next recipient comes at once, while the lease of the copy in doubt may be left
            // over.
            let zoe = Destination::inbox("zoe");
            let next = world.deliver(&mail("m"), &[zoe.clone(), sent()]).expect_delivered();
            world.assert_honest(&next, &mail("m"), &[zoe, sent()], &format!("{fault:?}, the next"));
            world.assert_mends(&mail("m"), &both, &format!("{fault:?}"));
        }
    }
}

#[test]
fn a_sent_whose_bytes_cannot_be_kept_defers() {
    let both = [inbox(), sent()];
    for fault in LedgerFault::ALL {
        let world = World::like_imap();
        let delivery = world.delivery().failing_store(SENT, StoreFault::Refused);
        // Which of the ledger's calls keeps the bytes: in a world of its own, as it counts.
        let keep = {
            let other = World::like_imap();
            let ended =
                other.delivery().failing_store(SENT, StoreFault::Refused).run(&mail("m"), &both);
            ended.ledger_calls.iter().position(|call| *call == "keep").expect("kept")
        };
        let ended = delivery.failing_ledger(keep, fault).run(&mail("m"), &both);
        assert!(ended.ledger_calls.contains(&"keep"));
        // A session that is lost is opened again, as for a receipt.
        let is_kept = matches!(fault, LedgerFault::Lost | LedgerFault::LostAfter);
        assert_eq!(ended.is_delivered(), is_kept, "{fault:?}: {:?}", ended.outcome);
        assert_eq!((world.count(&inbox()), world.count(&sent())), (1, 0));
        world.assert_mends(&mail("m"), &both, &format!("{fault:?}"));
    }
}

#[test]
fn where_the_store_has_no_place_until_patience_ends_a_sent_is_kept_and_an_own_copy_comes_again() {
    let no_place = || StoreError::Contended("told to fail".to_owned());
    for world in World::both() {
        let delivery = world.delivery().refusing("append", no_place());
        let ended = delivery.run(&mail("m"), &[inbox()]).expect_temp_fail();
        assert_eq!(ended.outcome.text(), "store: contended: told to fail");
        assert_eq!(world.copies(&mail("m"))[0].state, "free", "its lease is given back");
        world.deliver(&mail("m"), &[inbox()]).expect_delivered();

        let both = [inbox(), sent()];
        let delivery = world.delivery().refusing("append", no_place());
        let ended = delivery.run(&mail("m"), &both).expect_delivered();
        assert!(
            ended.outcome.text().ends_with(
                "no copy yet in account=lisa mailbox=Sent, kept for later: store: contended: told \
                 to fail"
            ),
            "{:?}",
            ended.outcome
        );
        assert_eq!((world.count(&inbox()), world.count(&sent())), (1, 0));
        world.assert_mends(&mail("m"), &both, "no place");
    }
}

#[test]
fn a_sent_that_another_delivery_holds_is_waited_for_and_defers() {
    let world = World::like_imap();
    let claimed = world.record(&mail("m"), &[sent()], LEASE).copies.remove(0);
    assert!(matches!(claimed, CopyState::Claimed(_)));
    let ended = world.delivery().run(&mail("m"), &[inbox(), sent()]).expect_temp_fail();
    assert!(ended.outcome.text().contains("another delivery"), "{:?}", ended.outcome);
    assert_eq!((world.count(&inbox()), world.count(&sent())), (1, 0));
    world.assert_mends(&mail("m"), &[inbox(), sent()], "contended");
}

#[test]
fn a_recipients_own_copy_is_never_kept_instead_of_delivered() {
    let world = World::like_imap();
    let ended = world
        .delivery()
        .failing_store(0, StoreFault::Refused)
        .run(&mail("m"), &[inbox(), sent()])
        .expect_temp_fail();
    assert!(!ended.ledger_calls.contains(&"keep"), "{:?}", ended.ledger_calls);
    assert_eq!((world.count(&inbox()), world.count(&sent())), (0, 1));
}
