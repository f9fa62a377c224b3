//! A slot is a promise: for its copy and its date, stored by `append` alone, given up when dropped.

use super::*;

pub fn a_copy_that_is_reserved_is_nobody_elses_where_copies_have_locks(rig: &dyn Rig) {
    let [one, other] = ["one", "other"].map(mail);
    let (store, second) = (rig.store(), rig.store());
    let are_shared = !store.append_is_idempotent();
    for destination in [inbox(), sent()] {
        for need in [Need::Early, Need::Write, Need::Look] {
            let context = format!("{destination} {need:?}");
            reserve(store.as_ref(), &destination, &one, need, |slot| {
                assert!(slot.is_some() || are_shared, "{context}: nobody has it");
                for another in [&store, &second] {
                    let another = another.as_ref();
                    assert_eq!(is_free(another, &destination, &one), are_shared, "{context}");
                    assert!(is_free(another, &destination, &other), "{context}: another copy");
                    let elsewhere = Destination::inbox("zoe");
                    assert!(is_free(another, &elsewhere, &one), "{context}: elsewhere");
                }
            });
            assert!(is_free(second.as_ref(), &destination, &one), "{context}: given up");
        }
        assert!(subjects(rig, &destination).is_empty());
    }
    // The copy in Sent may be its author's, who sent it there as well.
    append(store.as_ref(), &sent(), &other);
    let own = Destination { shared: false, ..sent() };
    for (destination, another) in [(sent(), &own), (own.clone(), &sent())] {
        reserve(store.as_ref(), &destination, &one, Need::Write, |_| {
            assert_eq!(is_free(second.as_ref(), another, &one), are_shared, "{destination}");
        });
    }
    rig.assert_nothing_outside();
}

pub fn a_slot_stores_nothing_before_its_append(rig: &dyn Rig) {
    for destination in [inbox(), sent()] {
        let (store, other) = (rig.store(), rig.store());
        append(store.as_ref(), &destination, &mail("a"));
        let mut expected = vec!["a".to_owned()];
        for (need, name) in [(Need::Early, "early"), (Need::Write, "write"), (Need::Look, "z")] {
            let context = format!("{destination} {need:?}");
            reserve(store.as_ref(), &destination, &mail("dropped"), need, |_| {});
            let appended = reserve(store.as_ref(), &destination, &mail(name), need, |slot| {
                let slot = slot?;
                assert_eq!(subjects(rig, &destination), expected, "{context}");
                let receipt = slot.append().expect("append");
                expected.push(name.to_owned());
                assert_eq!(subjects(rig, &destination), expected, "{context}");
                // Its receipt is not on record yet.
                let is_free = is_free(other.as_ref(), &destination, &mail(name));
                assert_eq!(is_free, !store.append_is_idempotent(), "{context}");
                Some(receipt)
            });
            let found = look(other.as_ref(), &destination, &mail(name));
            assert_eq!(found, appended, "{context}");
            let is_early = need == Need::Early && !store.append_is_idempotent();
            assert!(found.is_some() || is_early, "{context}");
        }
        let messages = rig.messages(&destination.account, &destination.mailbox);
        for name in &expected {
            let whole = (rig.stored_form(mail(name).own_copy()), destination.shared);
            assert!(messages.contains(&whole), "{destination} {name}: its bytes and flags");
        }
        if let Some(dates) = rig.dates(&destination.account, &destination.mailbox) {
            assert_eq!(dates, vec![recorded_at(); expected.len()], "{destination}");
        }
    }
    rig.assert_nothing_outside();
}

pub fn one_slot_looks_and_then_appends(rig: &dyn Rig) {
    let store = rig.store();
    append(store.as_ref(), &inbox(), &mail("before"));
    for need in [Need::Early, Need::Write, Need::Look] {
        let mail = mail(&format!("{need:?}"));
        let appended = reserve(store.as_ref(), &inbox(), &mail, need, |slot| {
            let slot = slot?;
            for _ in 0..2 {
                assert_eq!(slot.look(soon()).expect("look"), None, "{need:?}");
            }
            let receipt = slot.append().expect("append");
            assert_eq!(slot.look(soon()).expect("look").as_ref(), Some(&receipt), "{need:?}");
            Some(receipt)
        });
        assert_eq!(look(rig.store().as_ref(), &inbox(), &mail), appended, "{need:?}");
    }
}

pub fn a_slot_is_for_its_own_date(rig: &dyn Rig) {
    for destination in [inbox(), sent()] {
        let store = rig.store();
        let later = recorded_at() + Duration::from_secs(2);
        let early = (Need::Early, later, &ample());
        let begun = try_reserve(store.as_ref(), &destination, &mail("dated"), early, |_| {});
        begun.expect("reserve");
        let receipt = append(store.as_ref(), &destination, &mail("dated"));
        assert_eq!(subjects(rig, &destination), ["dated"], "{destination}");
        if let Some(dates) = rig.dates(&destination.account, &destination.mailbox) {
            assert_eq!(dates, [recorded_at()], "{destination}");
        }
        let found = find(rig.store().as_ref(), &destination, &mail("dated"), None);
        let receipts: Vec<_> = found.iter().map(|one| &one.receipt).collect();
        assert_eq!(receipts, [&receipt], "{destination}: its name");
    }
    rig.assert_nothing_outside();
}
