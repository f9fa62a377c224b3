//! A double is taken out, and nothing else.

use super::*;

pub fn a_removal_takes_out_the_one_it_names(rig: &dyn Rig) {
    let store = rig.store();
    for destination in [inbox(), sent()] {
        let receipts: Vec<_> =
            ["a", "b", "c"].map(|name| append(store.as_ref(), &destination, &mail(name))).into();
        append(store.as_ref(), &Destination::inbox("zoe"), &mail("b"));
        for _ in 0..2 {
            store.remove(&destination, &receipts[1], None, soon()).expect("remove");
            assert_eq!(subjects(rig, &destination), ["a", "c"]);
        }
        assert_eq!(look(store.as_ref(), &destination, &mail("b")), None);
        let again = append(store.as_ref(), &destination, &mail("b"));
        assert_eq!(look(store.as_ref(), &destination, &mail("b")), Some(again.clone()));
        rig.store().remove(&destination, &again, None, soon()).expect("remove, by another session");
        assert_eq!(subjects(rig, &destination), ["a", "c"]);
    }
    assert!(subjects(rig, &Destination::inbox("zoe")).iter().all(|subject| subject == "b"));
}

pub fn a_removal_by_a_strange_receipt_takes_out_nothing(rig: &dyn Rig) {
    let store = rig.store();
    let receipts: Vec<_> =
        ["a", "b"].map(|name| append(store.as_ref(), &inbox(), &mail(name))).into();
    let mut strange = vec![Receipt::UNNAMED, Receipt::uid(0, 0), Receipt::uid(u32::MAX, 1)];
    let names = [
        "", ".", "..", "../..", "new/", "cur/..", "new/.", "/", "*", "1:*", "../cur", ":2,S", "\0",
        "a\r\nb",
    ];
    strange.extend(names.map(Receipt::name));
    for receipt in &receipts {
        if let Some((validity, uid)) = receipt.as_uid() {
            strange.push(Receipt::uid(validity, u32::MAX));
            strange.push(Receipt::uid(validity, 0));
            strange.push(Receipt::uid(validity.wrapping_add(1), uid));
            strange.push(Receipt::name(uid.to_string()));
        }
        if let Some(name) = receipt.as_name() {
            strange.push(Receipt::name(&name[..name.len() - 1]));
            strange.push(Receipt::name(format!("{name}x")));
            strange.push(Receipt::name(format!("../new/{name}")));
            strange.push(Receipt::name(format!("new/../cur/{name}")));
            strange.push(Receipt::name(format!("tmp/{name}")));
        }
    }
    for receipt in strange {
        if let Err(error) = store.remove(&inbox(), &receipt, None, soon()) {
            assert!(matches!(error, StoreError::NotStored(_)), "{receipt:?}: {error}");
        }
        assert_eq!(subjects(rig, &inbox()), ["a", "b"], "{receipt:?}");
    }
    append(store.as_ref(), &inbox(), &mail("c"));
    assert_eq!(subjects(rig, &inbox()), ["a", "b", "c"], "the session lives on");
}

pub fn a_removal_of_what_is_another_message_by_now_takes_out_nothing(rig: &dyn Rig) {
    let (store, mails) = (rig.store(), ["a", "b"].map(mail));
    let [_, receipt] = mails.each_ref().map(|mail| append(store.as_ref(), &inbox(), mail));
    // A file's name is that of its copy, and no number that may be given anew.
    if receipt.as_uid().is_none() {
        return;
    }
    let removed = |mail: &Message| {
        let key = mail.identity().copy_key("doug", "INBOX");
        let sought = sought((mail.identity(), mail.own_copy().len() as u64), &key);
        store.remove(&inbox(), &receipt, Some(&sought), soon())
    };
    let refused = removed(&mails[0]);
    assert!(matches!(refused, Err(StoreError::NotStored(_))), "{refused:?}");
    assert_eq!(subjects(rig, &inbox()), ["a", "b"]);
    for _ in 0..2 {
        removed(&mails[1]).expect("taken out, or gone");
        assert_eq!(subjects(rig, &inbox()), ["a"]);
    }
}

pub fn a_double_is_taken_out_while_its_keeper_stands(rig: &dyn Rig) {
    let store = rig.store();
    for destination in [inbox(), sent()] {
        let (account, mailbox) = (&destination.account, &destination.mailbox);
        append(store.as_ref(), &destination, &mail("other"));
        let keeper = append(store.as_ref(), &destination, &mail("two"));
        rig.read(account, mailbox);
        append(store.as_ref(), &destination, &mail("two"));
        let found = find(store.as_ref(), &destination, &mail("two"), Some(&keeper));
        // An idempotent store without readers has none.
        let [double, kept] = &found[..] else { return };
        assert_eq!((&kept.receipt, double.proof), (&keeper, Proof::Equal));
        let double = &double.receipt;
        let nobody = match keeper.as_uid() {
            Some((validity, _)) => Receipt::uid(validity, 9_999),
            None => Receipt::name(format!("{keeper}.9")),
        };
        for (double, keeper) in
            [(double, double), (double, &nobody), (double, &Receipt::UNNAMED), (&nobody, &keeper)]
        {
            let refused = store.remove_double(&destination, double, keeper, soon());
            assert!(
                matches!(refused, Err(StoreError::NotStored(_))),
                "{double} {keeper} {refused:?}"
            );
            assert_eq!(subjects(rig, &destination), ["other", "two", "two"]);
        }
        store.remove_double(&destination, double, &keeper, soon()).expect("removal");
        assert_eq!(subjects(rig, &destination), ["other", "two"]);
        assert_eq!(find(rig.store().as_ref(), &destination, &mail("two"), None)[0].receipt, keeper);
        assert!(
            store.remove_double(&destination, double, &keeper, soon()).is_err(),
            "gone, or renamed"
        );
        rig.read(account, mailbox);
        append(store.as_ref(), &destination, &mail("two"));
        rig.mark_deleted(account, mailbox);
        for one in find(store.as_ref(), &destination, &mail("two"), Some(&keeper)) {
            assert!(
                store.remove_double(&destination, &one.receipt, &keeper, soon()).is_err(),
                "{one:?}"
            );
        }
        assert_eq!(subjects(rig, &destination).len(), 3, "what is marked counts as gone");
        rig.assert_nothing_outside();
    }
}

pub fn ours_is_taken_out_while_another_with_its_id_stands(rig: &dyn Rig) {
    let store = rig.store();
    let both = || {
        let ours = append(store.as_ref(), &sent(), &mail("two"));
        let theirs = append(store.as_ref(), &sent(), &mail_with_body("two", "as it was saved"));
        (ours, theirs)
    };
    append(store.as_ref(), &sent(), &mail("other"));
    let (ours, theirs) = both();
    store.remove_double(&sent(), &ours, &theirs, soon()).expect("removal");
    assert_eq!(subjects(rig, &sent()), ["other", "two"]);
    let found = find_by_id(rig.store().as_ref(), &sent(), &mail("two"), Some(&ours));
    assert_eq!(found.iter().map(|one| &one.receipt).collect::<Vec<_>>(), [&theirs]);
    assert!(store.remove_double(&sent(), &ours, &theirs, soon()).is_err(), "it is gone");
    // The other is gone: ours stays.
    store.remove(&sent(), &theirs, None, soon()).expect("remove");
    let (ours, theirs) = both();
    store.remove(&sent(), &theirs, None, soon()).expect("remove");
    assert!(store.remove_double(&sent(), &ours, &theirs, soon()).is_err());
    let found = find_by_id(store.as_ref(), &sent(), &mail("two"), Some(&ours));
    assert!(found.len() == 1 && !found[0].marked_deleted, "unmarked: {found:?}");
    // A reader has touched both.
    let theirs = append(store.as_ref(), &sent(), &mail_with_body("two", "as it was saved"));
    rig.read("lisa", "Sent");
    store.remove_double(&sent(), &ours, &theirs, soon()).expect("removal");
    assert_eq!(subjects(rig, &sent()), ["other", "two"]);
    // What is marked as deleted counts as gone.
    let ours = append(store.as_ref(), &sent(), &mail("two"));
    rig.mark_deleted("lisa", "Sent");
    assert!(store.remove_double(&sent(), &ours, &theirs, soon()).is_err());
    assert_eq!(subjects(rig, &sent()), ["other", "two", "two"]);
    rig.assert_nothing_outside();
}
