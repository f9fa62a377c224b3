//! All copies of a message in a mailbox, as `verify` asks for them.

use super::*;

pub fn all_copies_of_a_message_are_found(rig: &dyn Rig) {
    let store = rig.store();
    for destination in [inbox(), sent()] {
        let (account, mailbox) = (&destination.account, &destination.mailbox);
        assert_eq!(find(store.as_ref(), &destination, &mail("two"), None), []);
        append(store.as_ref(), &destination, &mail("before"));
        let first = append(store.as_ref(), &destination, &mail("two"));
        append(store.as_ref(), &destination, &mail_with_body("two", "other content"));
        // Of an idempotent store's names one may be taken twice, once a reader has touched the
        // first.
        rig.read(account, mailbox);
        append(store.as_ref(), &destination, &mail("two"));
        append(store.as_ref(), &destination, &mail("two"));
        let standing =
            subjects(rig, &destination).iter().filter(|subject| *subject == "two").count() - 1;
        for on_record in [None, Some(&first)] {
            let found = find(store.as_ref(), &destination, &mail("two"), on_record);
            assert_eq!(found.len(), standing, "{destination}: {found:?}");
            assert!(found.iter().all(|one| one.has_our_date && !one.marked_deleted), "{found:?}");
            assert_eq!(found.last().map(|one| &one.receipt), Some(&first), "the oldest comes last");
            let names: HashSet<String> =
                found.iter().map(|one| format!("{:?}", one.receipt)).collect();
            assert_eq!(names.len(), standing, "each can be told from the others: {found:?}");
        }
        let others = subjects(rig, &destination).len() - standing;
        for one in find(store.as_ref(), &destination, &mail("two"), None) {
            if one.receipt != first {
                store.remove(&destination, &one.receipt, None, soon()).expect("remove");
            }
        }
        let left = find(rig.store().as_ref(), &destination, &mail("two"), None);
        assert_eq!(left.iter().map(|one| &one.receipt).collect::<Vec<_>>(), [&first]);
        assert_eq!(subjects(rig, &destination).len(), others + 1);
        store.remove(&destination, &first, None, soon()).expect("remove");
        assert_eq!(find(store.as_ref(), &destination, &mail("two"), Some(&first)), []);
        assert_eq!(subjects(rig, &destination).len(), others);
    }
}

pub fn a_copy_is_found_with_its_date_and_its_deletion(rig: &dyn Rig) {
    let store = rig.store();
    let at = |store: &dyn AnyStore, recorded_at: SystemTime| {
        append_as(store, &inbox(), &mail("dated"), (recorded_at, &ample())).expect("append")
    };
    let day = Duration::from_secs(24 * 3600);
    let ours = at(store.as_ref(), recorded_at());
    at(store.as_ref(), recorded_at() + Duration::from_secs(1));
    let long_ago = at(store.as_ref(), recorded_at() - 3 * day);
    let found = find(store.as_ref(), &inbox(), &mail("dated"), None);
    let dated: Vec<bool> =
        found.iter().filter(|one| one.receipt != ours).map(|one| one.has_our_date).collect();
    assert!(found.iter().any(|one| one.receipt == ours && one.has_our_date));
    // A store that goes by names finds the one it would have written.
    assert!(dated.iter().all(|ours| !ours) && dated.len() <= 1, "{found:?}");
    assert!(store.append_is_idempotent() || dated.len() == 1, "{found:?}");
    if !store.append_is_idempotent() {
        let found = find(store.as_ref(), &inbox(), &mail("dated"), Some(&long_ago));
        assert!(
            found.iter().any(|one| one.receipt == long_ago && !one.has_our_date),
            "on record: {found:?}"
        );
    }
    rig.mark_deleted("doug", "INBOX");
    let found = find(store.as_ref(), &inbox(), &mail("dated"), Some(&ours));
    assert!(found.iter().all(|one| one.marked_deleted), "{found:?}");
    assert_eq!(
        look(store.as_ref(), &inbox(), &mail("dated")),
        Some(found[0].receipt.clone()),
        "it was delivered"
    );
}

pub fn a_copy_is_found_by_what_a_ledger_knows(rig: &dyn Rig) {
    let store = rig.store();
    let mails: Vec<Message> = odd_messages().into_iter().map(message).collect();
    let receipts: Vec<_> =
        mails.iter().map(|mail| append(store.as_ref(), &inbox(), mail)).collect();
    for (receipt, mail) in receipts.iter().zip(&mails) {
        for (on_record, needs_proof) in
            [(None, false), (Some(receipt), false), (None, true), (Some(receipt), true)]
        {
            let found = find_as(store.as_ref(), &inbox(), mail, on_record, (needs_proof, false));
            let receipts: Vec<_> = found.iter().map(|one| &one.receipt).collect();
            assert_eq!(receipts, [receipt], "{:.100?}", mail.own_copy().escape_ascii());
            assert!(
                found[0].proof == Proof::Equal || !needs_proof && found[0].proof == Proof::Assumed
            );
        }
    }
}

/// Whichever `dedup.by` was in force when it was recorded, and where its Message-ID was forgotten.
pub fn a_copy_is_found_by_the_hashes_on_record(rig: &dyn Rig) {
    let (store, of) = (rig.store(), |mail: &Message| mail.own_copy().len() as u64);
    let unnamed = message("Subject: none\r\n\r\nno name\r\n");
    let by_id = |name| Message::new(mail(name).own_copy().to_vec(), DedupBy::MessageId);
    for mail in [mail("two"), by_id("three"), unnamed] {
        append(store.as_ref(), &inbox(), &mail_with_body("two", "other content\r\n"));
        let receipt = append(store.as_ref(), &inbox(), &mail);
        let forgotten = Identity { message_id: None, ..mail.identity().clone() };
        for identity in [mail.identity(), &forgotten] {
            for (on_record, needs_proof) in [(None, false), (None, true), (Some(&receipt), true)] {
                let (sought, how) = ((identity, of(&mail)), (needs_proof, false));
                let found = find_identity(store.as_ref(), &inbox(), sought, on_record, how);
                let found: Vec<_> = found.iter().map(|one| (&one.receipt, one.proof)).collect();
                assert_eq!(found, [(&receipt, Proof::Equal)], "{identity:?}");
            }
        }
    }
}

/// Saved by a mail program, by whatever name and date, with the very content: it is not as
/// ours.
pub fn an_equal_message_with_another_date_is_not_as_ours(rig: &dyn Rig) {
    let (store, mail) = (rig.store(), mail("two"));
    let theirs = message([&b"Bcc: boss@x\r\n"[..], mail.own_copy()].concat());
    let time = recorded_at() + Duration::from_secs(60);
    let theirs = append_as(store.as_ref(), &sent(), &theirs, (time, &ample())).expect("append");
    let found = find_by_id(store.as_ref(), &sent(), &mail, None);
    let [one] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&one.receipt, one.proof, one.has_our_date), (&theirs, Proof::SameContent, false));
}

/// What a mail program saved of a message that it sent: with the same Message-ID, another content
/// and whatever date it likes.
pub fn another_message_with_its_id_is_found_where_that_is_asked_for(rig: &dyn Rig) {
    let store = rig.store();
    let day = Duration::from_secs(24 * 3600);
    assert_eq!(find_by_id(store.as_ref(), &sent(), &mail("two"), None), []);
    for name in ["before", "two2", "xtwo"] {
        append(store.as_ref(), &sent(), &mail(name));
    }
    let second = "Message-ID: <first@example.org>\r\nMessage-ID: <two@example.org>\r\n\r\nx\r\n";
    append(store.as_ref(), &sent(), &message(second));
    assert_eq!(find_by_id(store.as_ref(), &sent(), &mail("two"), None), [], "the first counts");
    let ours = append(store.as_ref(), &sent(), &mail("two"));
    let found = find_by_id(store.as_ref(), &sent(), &mail("two"), Some(&ours));
    let [one] = &found[..] else { panic!("{found:?}") };
    assert!(one.receipt == ours && one.has_our_date, "{one:?}");
    let times = [recorded_at() - 5 * day, recorded_at(), recorded_at() + 5 * day];
    let theirs: Vec<Receipt> = times
        .into_iter()
        .enumerate()
        .map(|(n, time)| {
            let other = mail_with_body("two", &format!("other content {n}\r\n"));
            append_as(store.as_ref(), &sent(), &other, (time, &ample())).expect("append")
        })
        .collect();
    for on_record in [None, Some(&ours)] {
        let found = find_by_id(store.as_ref(), &sent(), &mail("two"), on_record);
        assert_eq!(found.len(), 4, "{found:?}");
        for one in &found {
            let is_ours = one.receipt == ours;
            assert_eq!(one.proof == Proof::Equal, is_ours, "{one:?}");
            assert_eq!(one.proof == Proof::SameId, theirs.contains(&one.receipt), "{one:?}");
            let is_dated = is_ours || one.receipt == theirs[1];
            assert_eq!(one.has_our_date, is_dated, "{one:?}");
            assert!(!one.marked_deleted && one.is_lasting(), "{one:?}");
        }
        let equal = find(store.as_ref(), &sent(), &mail("two"), on_record);
        assert_eq!(equal.len(), 1, "not asked for: {equal:?}");
    }
    // Without a Message-ID, what is equal.
    let none = message("Subject: none\r\n\r\nno name\r\n");
    let receipt = append(store.as_ref(), &sent(), &none);
    append(store.as_ref(), &sent(), &message("Subject: other\r\n\r\nno name\r\n"));
    let found = find_by_id(store.as_ref(), &sent(), &none, None);
    assert_eq!(found.iter().map(|one| &one.receipt).collect::<Vec<_>>(), [&receipt]);
    rig.mark_deleted("lisa", "Sent");
    let found = find_by_id(store.as_ref(), &sent(), &mail("two"), Some(&ours));
    assert!(found.len() == 4 && found.iter().all(|one| one.marked_deleted), "{found:?}");
}

/// However many are sought together, each is found as if it were sought alone.
pub fn what_is_sought_together_is_found_as_alone(rig: &dyn Rig) {
    let store = rig.store();
    let day = Duration::from_secs(24 * 3600);
    let mut mails: Vec<Message> = odd_messages().into_iter().map(message).collect();
    // Its Message-ID is far from its name, or not the only one, or part of another's.
    let fold = "\r\n ".repeat(3000);
    mails.push(message(format!("Message-ID:{fold}<far@x>\r\nSubject: far\r\n\r\n")));
    mails.push(message("Message-ID: <part@x>\r\nSubject: part\r\n\r\n"));
    mails.push(message("Message-ID: <a.part@x>\r\nSubject: part\r\n\r\n"));
    mails.push(mail_with_body("same", "one\r\n"));
    mails.push(mail_with_body("same", "two\r\n"));
    let absent = mails.len();
    mails.push(mail("absent"));
    mails.push(mail("long ago"));
    let mut receipts: Vec<Option<Receipt>> =
        mails[..absent].iter().map(|mail| Some(append(store.as_ref(), &inbox(), mail))).collect();
    receipts.extend([None, None]);
    let again = |mail: &Message, at: SystemTime| {
        append_as(store.as_ref(), &inbox(), mail, (at, &ample())).expect("append")
    };
    again(&mails[absent + 1], recorded_at() - 3 * day);
    // Of every second one there is another, and of some a later one.
    rig.read("doug", "INBOX");
    for (n, mail) in mails[..absent].iter().enumerate() {
        if n % 2 == 0 {
            again(mail, recorded_at());
        }
        if n % 5 == 0 {
            again(mail, recorded_at() + day);
        }
    }
    let keys: Vec<_> = mails.iter().map(|mail| mail.identity().copy_key("doug", "INBOX")).collect();
    for (knows_receipts, needs_proof) in
        [(false, false), (true, false), (false, true), (true, true)]
    {
        let sought: Vec<CopySearch<'_>> = (mails.iter().zip(&keys).zip(&receipts))
            .map(|((mail, key), receipt)| {
                let size_bytes = mail.own_copy().len() as u64;
                CopySearch {
                    key,
                    identity: mail.identity(),
                    recorded_at: recorded_at(),
                    looks_back: false,
                    looked: None,
                    handed: None,
                    variant: None,
                    size_bytes: size_bytes..=2 * size_bytes,
                    has_several_ids: false,
                    needs_proof,
                    on_record: receipt.as_ref().filter(|_| knows_receipts),
                    by_id: false,
                    since: None,
                    at_most: 100,
                    unindexed: Unindexed::Nothing,
                }
            })
            .collect();
        let together = store.find_all(&inbox(), &sought, soon()).expect("find");
        assert_eq!(together.len(), sought.len());
        for (n, (sought, together)) in sought.iter().zip(together).enumerate() {
            let alone = store.find(&inbox(), sought, soon()).expect("find");
            let subject = mails[n].own_copy().escape_ascii();
            assert_eq!(together, alone, "{n} {knows_receipts} {needs_proof} {subject:.200}");
            assert_eq!(alone.is_empty(), n >= absent, "{n} {subject:.200}");
            if n % 2 == 0 && n < absent {
                assert!(alone.len() > 1, "{n}: {alone:?} {subject:.200}");
            }
        }
    }
    assert_eq!(store.find_all(&inbox(), &[], soon()).expect("find"), Vec::<Vec<_>>::new());
    let nowhere = Destination::inbox("zoe");
    let sought: Vec<CopySearch<'_>> = (mails.iter().zip(&keys))
        .map(|(mail, key)| CopySearch {
            key,
            identity: mail.identity(),
            recorded_at: recorded_at(),
            looks_back: false,
            looked: None,
            handed: None,
            variant: None,
            size_bytes: 0..=1000,
            has_several_ids: false,
            needs_proof: true,
            on_record: None,
            by_id: false,
            since: None,
            at_most: 100,
            unindexed: Unindexed::Nothing,
        })
        .collect();
    let found = store.find_all(&nowhere, &sought, soon()).expect("find");
    assert_eq!(found, vec![Vec::new(); mails.len()], "a mailbox that is not there");
}
