//! Mailboxes that are missing, made by several at once, or oddly named; and what writes nothing.

use super::*;

pub fn a_missing_mailbox_is_made(rig: &dyn Rig) {
    let store = rig.store();
    let deep = Destination::sent("zoe", "Archive/2026");
    for destination in [inbox(), sent(), Destination::inbox("lisa"), deep] {
        append(store.as_ref(), &destination, &mail("first"));
        append(rig.store().as_ref(), &destination, &mail("second"));
        assert_eq!(subjects(rig, &destination), ["first", "second"], "{destination}");
    }
}

pub fn a_mailbox_that_may_not_be_made_is_refused(rig: &dyn Rig) {
    let Some(store) = rig.store_that_makes_nothing() else { return };
    append(rig.store().as_ref(), &Destination::inbox("lisa"), &mail("there"));
    // An account without any mailbox is another matter: some stores give every account an
    // INBOX.
    let refused = try_append(store.as_ref(), &sent(), &mail("refused"));
    assert!(refused.is_err_and(|error| error.certainly_not_stored()));
    assert!(find(store.as_ref(), &sent(), &mail("refused"), None).is_empty());
    assert!(rig.messages("lisa", "Sent").is_empty());
    append(store.as_ref(), &Destination::inbox("lisa"), &mail("accepted"));
    assert_eq!(
        subjects(rig, &Destination::inbox("lisa")),
        ["accepted", "there"],
        "the session lives on"
    );
    append(rig.store().as_ref(), &sent(), &mail("made"));
    append(store.as_ref(), &sent(), &mail("later"));
    assert_eq!(subjects(rig, &sent()), ["later", "made"]);
}

pub fn a_recipients_mailbox_other_than_inbox_is_never_made(rig: &dyn Rig) {
    let (store, other) = (rig.store(), rig.store());
    let lists = Destination { mailbox: "lists".to_owned(), ..inbox() };
    for _ in 0..2 {
        let refused = try_append(store.as_ref(), &lists, &mail("refused"));
        assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
        assert_eq!(look(store.as_ref(), &lists, &mail("refused")), None);
    }
    assert!(rig.messages("doug", "lists").is_empty());
    // Where copies have locks, no delivery writes one while another finds no mailbox for it.
    let made = Destination { shared: true, ..lists.clone() };
    reserve(store.as_ref(), &lists, &mail("held"), Need::Write, |slot| {
        append(other.as_ref(), &made, &mail("makes it"));
        let is_free = is_free(other.as_ref(), &lists, &mail("held"));
        assert_ne!(is_free, store.append_is_idempotent());
        drop(slot.expect("a slot").append());
    });
    let receipt = append(store.as_ref(), &lists, &mail("there"));
    assert_eq!(look(other.as_ref(), &lists, &mail("there")), Some(receipt));
    let subjects = subjects(rig, &lists);
    assert!(subjects.contains(&"there".to_owned()), "{subjects:?}");
    assert!(!subjects.contains(&"refused".to_owned()), "{subjects:?}");
}

pub fn a_missing_mailbox_holds_no_copy(rig: &dyn Rig) {
    let store = rig.store();
    for destination in [inbox(), sent()] {
        assert_eq!(look(store.as_ref(), &destination, &mail("nowhere")), None);
    }
    // Not the INBOX: an IMAP server has one for everybody, with a UIDVALIDITY of its own.
    let gone = append(store.as_ref(), &Destination::inbox("zoe"), &mail("elsewhere"));
    store.remove(&sent(), &gone, None, soon()).expect("gone already");
}

pub fn many_make_one_mailbox_at_once(rig: &dyn Rig) {
    let barrier = Barrier::new(MANY);
    thread::scope(|scope| {
        for n in 0..MANY {
            let barrier = &barrier;
            scope.spawn(move || {
                let store = rig.store();
                barrier.wait();
                append(store.as_ref(), &sent(), &mail(&format!("m{n}")));
                append(store.as_ref(), &Destination::inbox(&format!("account{n}")), &mail("own"));
            });
        }
    });
    assert_eq!(subjects(rig, &sent()).len(), MANY);
}

pub fn odd_names_are_stored_safely_or_refused(rig: &dyn Rig) {
    let store = rig.store();
    append(store.as_ref(), &inbox(), &mail("victim"));
    append(store.as_ref(), &Destination::sent("doug", "Sent"), &mail("victim"));
    let accounts = [
        "",
        ".",
        "..",
        "../doug",
        "doug/Maildir",
        "doug/../doug",
        "/etc",
        "doug\0",
        "doug\n",
        "do\\ug",
        "\u{7f}",
        "o'brien",
        "a \"b\" c",
        "grüße",
        "a*",
        "a%",
        "~",
        "-rf",
        "$(id)",
        "{3}",
        "doug/",
        "/",
        "DOUG.",
        "日本",
    ];
    let mailboxes = [
        "",
        ".",
        "..",
        "../..",
        "../../doug/Maildir",
        "a/../../b",
        "/",
        "//",
        "/etc",
        "a//b",
        "a/",
        ".a",
        "a..b",
        "Sent\0",
        "Sent\r\nx LOGOUT",
        "o'brien",
        "a \"b\" \\ c",
        "Entwürfe",
        "日本語",
        "a*",
        "a%b",
        "&",
        "&-",
        "~",
        "{3}",
        "a&AOk-",
        "new",
        "cur",
        "tmp",
        "INBOX/sub",
        "a\u{80}b",
        "subscriptions",
    ];
    let long = "x".repeat(5000);
    let mut odd: Vec<Destination> = accounts.map(Destination::inbox).into();
    odd.extend(mailboxes.map(|mailbox| Destination::sent("zoe", mailbox)));
    odd.extend([Destination::inbox(&long), Destination::sent("zoe", &long)]);
    for (n, destination) in odd.iter().enumerate() {
        let mail = mail(&format!("odd{n:02}"));
        let context = format!("{:?} {:?}", destination.account, destination.mailbox);
        match try_append(store.as_ref(), destination, &mail) {
            Ok(receipt) => {
                assert_eq!(look(store.as_ref(), destination, &mail), Some(receipt), "{context}");
                assert!(look(rig.store().as_ref(), destination, &mail).is_some(), "{context}");
            }
            Err(error) => {
                // Dovecot has no word for some of these but that it is in trouble, which it may
                // be at any point.
                let is_trouble = error.to_string().contains("NO [SERVERBUG]");
                assert!(error.certainly_not_stored() || is_trouble, "{context}: {error}");
                // Refused or not there; an odd name finds nothing else either.
                let found = try_look(store.as_ref(), destination, &mail);
                assert!(!matches!(found, Ok(Some(_))), "{context}");
            }
        }
        let _ = store.remove(destination, &Receipt::name("x"), None, soon());
        rig.assert_nothing_outside();
    }
    assert_eq!(subjects(rig, &inbox()), ["victim"]);
    assert_eq!(subjects(rig, &Destination::sent("doug", "Sent")), ["victim"]);
    append(store.as_ref(), &inbox(), &mail("last"));
    assert_eq!(subjects(rig, &inbox()), ["last", "victim"], "the session lives on");
}

pub fn preparing_changes_nothing(rig: &dyn Rig) {
    let store = rig.store();
    for account in ["doug", "../etc", "", "lisa", "doug"] {
        store.prepare(account, soon());
    }
    append(store.as_ref(), &inbox(), &mail("prepared"));
    append(store.as_ref(), &Destination::inbox("zoe"), &mail("not prepared"));
    assert_eq!(subjects(rig, &inbox()), ["prepared"]);
    assert!(rig.messages("lisa", "INBOX").is_empty());
    rig.assert_nothing_outside();
}

pub fn a_check_writes_no_message(rig: &dyn Rig) {
    let store = rig.store();
    for account in ["doug", "lisa"] {
        assert!(!store.check(account, soon()).expect("a check").is_empty());
        assert!(rig.messages(account, "INBOX").is_empty());
    }
    append(store.as_ref(), &inbox(), &mail("checked"));
    assert!(!store.check("doug", soon()).expect("a check").is_empty());
    assert_eq!(subjects(rig, &inbox()), ["checked"]);
}
