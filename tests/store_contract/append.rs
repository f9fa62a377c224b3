//! What an append leaves: the message's bytes, its date and flags, once or twice as the store says.

use super::*;

pub fn a_copy_is_stored_byte_for_byte(rig: &dyn Rig) {
    let store = rig.store();
    let mut expected = Vec::new();
    for bytes in odd_messages() {
        let mail = message(bytes.clone());
        append(store.as_ref(), &inbox(), &mail);
        expected.push(rig.stored_form(&bytes));
    }
    let mut stored: Vec<_> =
        rig.messages("doug", "INBOX").into_iter().map(|(bytes, _)| bytes).collect();
    stored.sort();
    expected.sort();
    assert_eq!(stored.len(), expected.len());
    for (stored, expected) in stored.iter().zip(&expected) {
        assert!(
            stored == expected,
            "{:.200?}\nis not\n{:.200?}",
            stored.escape_ascii(),
            expected.escape_ascii()
        );
    }
}

pub fn an_empty_message_is_stored_or_refused(rig: &dyn Rig) {
    // What Postfix hands over has a field at least; what is left of it for a shared copy may be
    // nothing. An IMAP server may refuse that (RFC 3502 takes an empty literal for a wish to
    // stop).
    let store = rig.store();
    let mail = message("Return-Path: <lisa@gmail.com>\n");
    match try_append(store.as_ref(), &sent(), &mail) {
        Ok(receipt) => {
            assert_eq!(rig.messages("lisa", "Sent"), [(Vec::new(), true)]);
            assert_eq!(look(store.as_ref(), &sent(), &mail), Some(receipt));
        }
        Err(error) => {
            assert!(error.certainly_not_stored(), "{error}");
            assert!(rig.messages("lisa", "Sent").is_empty());
        }
    }
    append(store.as_ref(), &sent(), &super::mail("next"));
    assert!(subjects(rig, &sent()).contains(&"next".to_owned()), "the session lives on");
}

pub fn a_shared_copy_is_marked_as_read_and_an_own_one_is_not(rig: &dyn Rig) {
    let store = rig.store();
    append(store.as_ref(), &inbox(), &mail("own"));
    append(store.as_ref(), &sent(), &mail("shared"));
    let seen = |account, mailbox| -> Vec<bool> {
        rig.messages(account, mailbox).into_iter().map(|(_, seen)| seen).collect()
    };
    assert_eq!(seen("doug", "INBOX"), [false]);
    assert_eq!(seen("lisa", "Sent"), [true]);
}

pub fn a_copy_has_the_date_of_its_first_recording(rig: &dyn Rig) {
    let store = rig.store();
    for destination in [inbox(), sent()] {
        append(store.as_ref(), &destination, &mail("dated"));
        if let Some(dates) = rig.dates(&destination.account, &destination.mailbox) {
            assert_eq!(dates, [recorded_at()], "{destination}");
        }
    }
}

pub fn copies_that_come_together_are_each_what_they_would_be_alone(rig: &dyn Rig) {
    let store = rig.store();
    // The first one makes the mailbox.
    let destination = &Destination::sent("lisa", "Together");
    let barrier = Barrier::new(MANY);
    thread::scope(|scope| {
        for n in 0..MANY {
            let (store, barrier) = (store.as_ref(), &barrier);
            scope.spawn(move || {
                for round in ["a", "b"] {
                    let mail = mail(&format!("{round}{n:02}"));
                    barrier.wait();
                    let receipt = append(store, destination, &mail);
                    let found = look(store, destination, &mail);
                    assert_eq!(found, Some(receipt), "each has its own receipt");
                }
            });
        }
    });
    let names = |round: &'static str| (0..MANY).map(move |n| format!("{round}{n:02}"));
    let expected: Vec<String> = names("a").chain(names("b")).collect();
    assert_eq!(subjects(rig, destination), expected);
    let messages = rig.messages("lisa", "Together");
    assert!(messages.iter().all(|(_, seen)| *seen), "each has its flags");
}

pub fn a_second_append_is_as_the_store_says(rig: &dyn Rig) {
    let store = rig.store();
    for destination in [inbox(), sent()] {
        let first = append(store.as_ref(), &destination, &mail("again"));
        let second = append(rig.store().as_ref(), &destination, &mail("again"));
        let expected = if store.append_is_idempotent() {
            assert_eq!(first, second);
            1
        } else {
            assert_ne!(first, second, "whoever wrote one too many can name it");
            2
        };
        assert_eq!(subjects(rig, &destination).len(), expected, "{destination}");
        if expected == 2 {
            store.remove(&destination, &second, None, soon()).expect("remove");
            assert_eq!(look(store.as_ref(), &destination, &mail("again")), Some(first));
        }
    }
    assert_eq!(store.append_is_idempotent(), rig.store().append_is_idempotent());
}

pub fn without_time_for_the_answer_nothing_is_stored(rig: &dyn Rig) {
    let store = rig.store();
    append(store.as_ref(), &inbox(), &mail("before"));
    let spent = Deadline::new(Duration::ZERO, Duration::from_secs(1));
    let short = Deadline::new(Duration::from_secs(60), Duration::from_secs(61));
    for deadline in [short, spent] {
        let late = append_as(store.as_ref(), &inbox(), &mail("late"), (recorded_at(), &deadline));
        assert!(matches!(late, Err(StoreError::NotStored(_))), "{late:?}");
        assert!(!deadline.is_answering());
        assert_eq!(subjects(rig, &inbox()), ["before"]);
    }
    let fresh = rig.store();
    assert_eq!(look(fresh.as_ref(), &inbox(), &mail("late")), None);
    append(fresh.as_ref(), &inbox(), &mail("late"));
    assert_eq!(subjects(rig, &inbox()), ["before", "late"]);
}

pub fn an_append_tells_the_watchdog_that_it_waits_for_the_answer(rig: &dyn Rig) {
    let deadline = ample();
    let store = rig.store();
    look(store.as_ref(), &inbox(), &mail("told"));
    for need in [Need::Look, Need::Early] {
        let reservation = (need, recorded_at(), &deadline);
        let looked = try_reserve(store.as_ref(), &inbox(), &mail("told"), reservation, |slot| {
            slot.map(|slot| slot.look(soon()).expect("look"))
        });
        looked.expect("reserve");
        assert!(!deadline.is_answering(), "{need:?}");
    }
    append_as(store.as_ref(), &inbox(), &mail("told"), (recorded_at(), &deadline)).expect("append");
    assert!(deadline.is_answering(), "until the caller has put the receipt on record");
}

pub fn many_append_to_one_mailbox_at_once(rig: &dyn Rig) {
    append(rig.store().as_ref(), &inbox(), &mail("m"));
    let (barrier, receipts) = (Barrier::new(MANY), Mutex::new(HashSet::new()));
    thread::scope(|scope| {
        for n in 0..MANY {
            let (barrier, receipts) = (&barrier, &receipts);
            scope.spawn(move || {
                let (store, mail) = (rig.store(), mail(&format!("m{n:02}")));
                barrier.wait();
                let receipt = append(store.as_ref(), &inbox(), &mail);
                assert_eq!(look(store.as_ref(), &inbox(), &mail), Some(receipt.clone()));
                receipts.lock().expect("receipts").insert(format!("{receipt:?}"));
            });
        }
    });
    assert_eq!(receipts.into_inner().expect("receipts").len(), MANY);
    assert_eq!(subjects(rig, &inbox()).len(), MANY + 1);
}

pub fn a_copy_appended_by_many_at_once_is_as_the_store_says(rig: &dyn Rig) {
    let barrier = Barrier::new(MANY);
    let is_idempotent = rig.store().append_is_idempotent();
    thread::scope(|scope| {
        for _ in 0..MANY {
            scope.spawn(|| {
                let store = rig.store();
                barrier.wait();
                reserve(store.as_ref(), &sent(), &mail("one"), Need::Write, |slot| match slot {
                    Some(slot) => drop(slot.append().expect("append")),
                    None => assert!(is_idempotent, "only a lock keeps others out"),
                });
            });
        }
    });
    let expected = if is_idempotent { 1 } else { MANY };
    assert_eq!(subjects(rig, &sent()).len(), expected);
    assert!(look(rig.store().as_ref(), &sent(), &mail("one")).is_some());
}
