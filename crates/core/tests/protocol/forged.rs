//! Mail of a stranger with our fields in its header, as they stand in copies that filters have
//! forwarded: whatever takes a message out, it never goes by them. Of `verify` see
//! `verify/doubles`, and `tests/filters/forged.rs` for copies that are handed over.

use std::time::{Duration, SystemTime};

use onedrop_core::ledger::{Audit, Window};
use onedrop_core::message::Message;

use crate::ports::{inbox, mail, message, sent, soon};
use crate::world::World;

const AFTER: Duration = Duration::from_secs(600);

/// Another message with the Message-ID of `mail("m")` and the value of its copy.
fn forged(world: &World, number: i64) -> Message {
    let window = Window { since: SystemTime::UNIX_EPOCH, all: true };
    let accounts = world.ledger.accounts_to_verify(&window, None, 9, soon()).expect("accounts");
    let copies = accounts.iter().flat_map(|account| {
        world.ledger.copies_to_verify(&window, account, None, 9, soon()).expect("copies")
    });
    let value = copies.map(|copy| copy.value).next().map(|value| format!("{value:?}"));
    message(format!(
        "X-Onedrop-Copy: {}\r\nX-Onedrop-Try: {number}\r\nFrom: lisa@gmail.com\r\n\
         Message-ID: <m@example.org>\r\nSubject: m\r\n\r\nforged\r\n",
        value.unwrap_or_default()
    ))
}

#[test]
fn an_undo_takes_out_what_it_wrote_and_nothing_else() {
    let world = World::like_imap();
    let (delivery, other) = (world.delivery(), world.clone());
    let frozen = delivery.before("append", move || {
        other.expire_leases();
        other.deliver(&mail("m"), &[inbox()]).expect_delivered();
        let date = other.store.copies("doug", "INBOX")[0].date;
        other.store.save("doug", "INBOX", forged(&other, 1).own_copy(), date);
    });
    let ended = frozen.run(&mail("m"), &[inbox()]).expect_temp_fail();
    assert_eq!(ended.store_calls, ["append", "remove"]);
    let stands = world.store.copies("doug", "INBOX");
    assert_eq!(stands.len(), 2);
    assert!(stands.iter().any(|one| one.bytes == mail("m").own_copy()), "the real one stands");
}

/// A mail server that fails over forgets its last messages, and gives their UIDs out again.
#[test]
fn an_undo_takes_out_no_message_that_has_the_uid_of_a_lost_copy() {
    let world = World::like_imap();
    let (other, server) = (world.clone(), world.clone());
    let frozen = world.delivery().before("append", move || {
        other.expire_leases();
        other.deliver(&mail("m"), &[inbox()]).expect_delivered();
    });
    let frozen = frozen.before("remove", move || {
        let date = server.store.copies("doug", "INBOX")[1].date;
        server.store.save("doug", "INBOX", mail("x").own_copy(), date);
        server.store.meddle("doug", "INBOX", |all| {
            let lost = all.remove(1);
            all[1].uid = lost.uid;
        });
    });
    let ended = frozen.run(&mail("m"), &[inbox()]).expect_temp_fail();
    assert_eq!(ended.store_calls, ["append", "remove"]);
    let stands = world.store.copies("doug", "INBOX").into_iter().map(|one| one.bytes);
    assert_eq!(
        stands.collect::<Vec<_>>(),
        [mail("m"), mail("x")].map(|one| one.own_copy().to_vec())
    );
}

#[test]
fn settle_takes_ours_out_for_no_strangers_message() {
    for world in World::both() {
        let due = |mail: &Message| {
            let delivery = world.delivery().leaving_sent(AFTER);
            delivery.run(mail, &[inbox(), sent()]).expect_delivered();
        };
        due(&mail("m"));
        world.ledger.advance(AFTER);
        world.delivery().settle();
        // It comes through Onedrop, in the sender's name.
        due(&forged(&world, 0));
        world.ledger.advance(AFTER);
        for _ in 0..2 {
            world.delivery().settle();
            assert_eq!(world.count(&sent()), 2);
            world.ledger.advance(AFTER);
        }
        let stands = world.store.copies("lisa", "Sent");
        assert!(stands.iter().any(|one| one.bytes == mail("m").shared_copy()), "ours stands");
    }
}
