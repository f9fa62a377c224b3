//! A look finds the copy whatever has become of it, and takes no other message for it.

use super::*;

pub fn the_look_finds_a_copy_whatever_way_it_took(rig: &dyn Rig) {
    let store = rig.store();
    let body = "Message-ID: <way@x>\r\nDate: Sun, 22 Nov 2026 10:00:00 +0000\r\nFrom: \
                lisa@gmail.com\r\nSubject: way\r\n\r\nHello\r\n";
    let first = message(format!("Delivered-To: a@x\r\nReceived: from a by b; now\r\n{body}"));
    let second = message(format!(
        "Return-Path: <x@y>\r\nDelivered-To: bb@x\r\nReceived: from c by d;\r\n\tlater\r\n\
         X-Spam-Flag: NO\r\n{body}\r\n\r\n"
    ));
    let unix = message(body.replace("\r\n", "\n"));
    for destination in [inbox(), sent()] {
        append(store.as_ref(), &destination, &mail("before"));
        let receipt = append(store.as_ref(), &destination, &first);
        append(store.as_ref(), &destination, &mail("after"));
        for other in [&first, &second, &unix] {
            assert_eq!(look(store.as_ref(), &destination, other), Some(receipt.clone()));
            assert_eq!(look(rig.store().as_ref(), &destination, other), Some(receipt.clone()));
        }
    }
}

pub fn the_look_finds_what_a_reader_has_touched(rig: &dyn Rig) {
    let store = rig.store();
    for destination in [inbox(), sent()] {
        let receipt = append(store.as_ref(), &destination, &mail("read"));
        assert_eq!(look(store.as_ref(), &destination, &mail("read")), Some(receipt.clone()));
        rig.read(&destination.account, &destination.mailbox);
        assert_eq!(look(store.as_ref(), &destination, &mail("read")), Some(receipt.clone()));
        assert_eq!(look(rig.store().as_ref(), &destination, &mail("read")), Some(receipt.clone()));
        store.remove(&destination, &receipt, None, soon()).expect("remove");
        assert!(rig.messages(&destination.account, &destination.mailbox).is_empty());
    }
}

pub fn the_look_takes_no_other_message_for_the_copy(rig: &dyn Rig) {
    let store = rig.store();
    let wanted = mail_with_body("same", "wanted");
    for other in [
        mail_with_body("same", "another"),
        mail_with_body("same", "wanteD"),
        mail("SAME"),
        mail("same2"),
        mail("2same"),
        message("Subject: quoted\r\n\r\nMessage-ID: <same@example.org>\r\n\r\nwanted"),
        message(
            "Subject: second\r\nMessage-ID: <x@x>\r\nMessage-ID: <same@example.org>\r\n\r\nwanted",
        ),
    ] {
        append(store.as_ref(), &inbox(), &other);
    }
    assert_eq!(look(store.as_ref(), &inbox(), &wanted), None);
    let receipt = append(store.as_ref(), &inbox(), &wanted);
    append(store.as_ref(), &inbox(), &mail_with_body("same", "a third"));
    assert_eq!(look(store.as_ref(), &inbox(), &wanted), Some(receipt));
}

pub fn the_look_finds_a_copy_without_a_message_id(rig: &dyn Rig) {
    let store = rig.store();
    let wanted = message("Subject: none\n\nbody 1\n");
    append(store.as_ref(), &inbox(), &message("Subject: none\n\nbody 2\n"));
    append(store.as_ref(), &inbox(), &mail("with"));
    assert_eq!(look(store.as_ref(), &inbox(), &wanted), None);
    let receipt = append(store.as_ref(), &inbox(), &wanted);
    append(store.as_ref(), &inbox(), &message("Subject: none\n\nbody 3\n"));
    assert_eq!(look(store.as_ref(), &inbox(), &wanted), Some(receipt));
}

pub fn the_look_finds_odd_copies(rig: &dyn Rig) {
    let store = rig.store();
    let mails: Vec<Message> = odd_messages().into_iter().map(message).collect();
    let receipts: Vec<_> =
        mails.iter().map(|mail| append(store.as_ref(), &inbox(), mail)).collect();
    for (receipt, mail) in receipts.into_iter().zip(&mails) {
        let found = look(store.as_ref(), &inbox(), mail);
        assert_eq!(found, Some(receipt), "{:.100?}", mail.own_copy().escape_ascii());
    }
}

pub fn the_look_finds_one_among_many(rig: &dyn Rig) {
    let store = rig.store();
    let mut receipts = Vec::new();
    for n in 0..60 {
        receipts.push(append(store.as_ref(), &inbox(), &mail(&format!("n{n}"))));
    }
    let distinct: HashSet<String> = receipts.iter().map(|receipt| format!("{receipt:?}")).collect();
    assert_eq!(distinct.len(), 60, "each has a receipt of its own");
    let fresh = rig.store();
    for n in [0, 1, 31, 59] {
        assert_eq!(
            look(fresh.as_ref(), &inbox(), &mail(&format!("n{n}"))),
            Some(receipts[n].clone())
        );
    }
    assert_eq!(look(fresh.as_ref(), &inbox(), &mail("n")), None);
}

pub fn the_look_keeps_to_its_mailbox(rig: &dyn Rig) {
    let store = rig.store();
    let others = [
        Destination::inbox("zoe"),
        Destination::sent("doug", "Sent"),
        Destination::sent("doug", "Sent2"),
    ];
    for other in &others {
        append(store.as_ref(), other, &mail("kept"));
    }
    assert_eq!(look(store.as_ref(), &inbox(), &mail("kept")), None);
    let receipt = append(store.as_ref(), &inbox(), &mail("kept"));
    assert_eq!(look(store.as_ref(), &inbox(), &mail("kept")), Some(receipt));
    for other in others {
        assert_eq!(subjects(rig, &other), ["kept"]);
    }
}

pub fn looks_and_appends_do_not_disturb_each_other(rig: &dyn Rig) {
    let store = rig.store();
    let destinations =
        [inbox(), sent(), Destination::inbox("lisa"), Destination::sent("doug", "Sent")];
    for round in 0..3 {
        let mail = mail(&format!("round{round}"));
        for destination in &destinations {
            assert_eq!(look(store.as_ref(), destination, &mail), None);
            let receipt = append(store.as_ref(), destination, &mail);
            assert_eq!(look(store.as_ref(), destination, &mail), Some(receipt));
        }
    }
    for destination in &destinations {
        assert_eq!(subjects(rig, destination), ["round0", "round1", "round2"], "{destination}");
    }
    assert!(
        rig.messages("doug", "INBOX").iter().all(|(_, seen)| !seen),
        "a look marks nothing as read"
    );
}

/// A fail-over may lose the record under which a copy was written: the message is recorded anew, at
/// another time.
pub fn a_look_finds_a_copy_that_another_record_was_for(rig: &dyn Rig) {
    let store = rig.store();
    let mails = [mail("lost"), message("Subject: lost, none\n\nbody\n")];
    for (mail, before) in mails.into_iter().zip([5, 7200]) {
        let lost = recorded_at() - Duration::from_secs(before);
        let receipt = append_as(store.as_ref(), &inbox(), &mail, (lost, &ample()));
        let receipt = receipt.expect("append");
        assert_eq!(look(store.as_ref(), &inbox(), &mail), Some(receipt.clone()));
        for on_record in [None, Some(&receipt)] {
            let found = find(store.as_ref(), &inbox(), &mail, on_record);
            assert!(found.iter().any(|one| one.receipt == receipt), "{on_record:?}: {found:?}");
        }
        // After a change of stores no name is on record: not every copy is looked for by its key.
        if store.append_is_idempotent() {
            assert_eq!(find(store.as_ref(), &inbox(), &mail, Some(&Receipt::uid(7, 1))), []);
        }
    }
}

pub fn a_look_back_finds_a_copy_of_any_date(rig: &dyn Rig) {
    let store = rig.store();
    let last_year = recorded_at() - Duration::from_secs(400 * 24 * 3600);
    let without_id = message("Subject: none\n\nbody 1\n");
    for mail in [mail("old"), without_id] {
        append(store.as_ref(), &inbox(), &mail_with_body("old", "another"));
        let receipt = append_as(store.as_ref(), &inbox(), &mail, (last_year, &ample()));
        let receipt = receipt.expect("append");
        append(store.as_ref(), &inbox(), &message("Subject: none\n\nbody 2\n"));
        assert_eq!(look(store.as_ref(), &inbox(), &mail), None, "it is too old for this look");
        assert_eq!(look_back(store.as_ref(), &inbox(), &mail), Some(receipt));
    }
    assert_eq!(look_back(store.as_ref(), &inbox(), &mail("never")), None);
}

pub fn a_look_back_and_the_look_after_it_are_one(rig: &dyn Rig) {
    let store = rig.store();
    let store = store.as_ref();
    let long_ago = recorded_at() - Duration::from_secs(400 * 86_400);
    for without_id in [false, true] {
        let letter = |name: &str| match without_id {
            true => message(format!("Subject: back {name}\r\n\r\nof long ago\r\n")),
            false => mail(name),
        };
        for destination in [inbox(), sent()] {
            let looked = |letter: &Message| {
                let key = letter.identity().copy_key(&destination.account, &destination.mailbox);
                let copy = Copy {
                    key: &key,
                    head: b"",
                    bytes: letter.own_copy(),
                    identity: letter.identity(),
                    recorded_at: recorded_at(),
                    looks_back: true,
                    looked: None,
                    newer_than: None,
                    handed: None,
                };
                store.look_back(&destination, &LookBack::of(&copy), soon()).expect("look back")
            };
            let Some(nothing) = looked(&letter("late")) else {
                assert!(
                    store.append_is_idempotent(),
                    "only a store whose looks are quick has none"
                );
                return;
            };
            assert_eq!(nothing.found, None);
            assert_eq!(look_since(store, &destination, &letter("late"), Some(&nothing)), None);
            // What was there is found by the look back, whatever its date, what came since by the
            // look, and what was read before is not read again.
            let old = append_as(store, &destination, &letter("old"), (long_ago, &ample()));
            let old = old.expect("append");
            let seen = looked(&letter("old")).expect("looked");
            assert_eq!(seen.found.as_ref().map(|found| found.to_record()), Some(old.clone()));
            assert_eq!(look_since(store, &destination, &letter("old"), Some(&seen)), Some(old));
            let marks = LookedBack { found: None, ..seen };
            assert_eq!(look_since(store, &destination, &letter("old"), Some(&marks)), None);
            let late = append(store, &destination, &letter("late"));
            for looked in [&nothing, &marks] {
                let found = look_since(store, &destination, &letter("late"), Some(looked));
                assert_eq!(found, Some(late.clone()));
            }
            // A mailbox that was made anew is read from its beginning.
            let anew = Mark { validity: 1, next: 1000 };
            let names = marks.marks.keys().map(|name| (name.clone(), anew));
            let anew = LookedBack { found: None, marks: names.collect() };
            // And so is one that was restored, or whose new server lacks what came last.
            let later = |mark: &Mark| Mark { next: mark.next + 1000, ..*mark };
            let names = marks.marks.iter().map(|(name, mark)| (name.clone(), later(mark)));
            let restored = LookedBack { found: None, marks: names.collect() };
            for looked in [&anew, &restored] {
                let found = look_since(store, &destination, &letter("late"), Some(looked));
                assert_eq!(found, Some(late.clone()));
            }
        }
    }
}
