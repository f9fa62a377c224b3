//! What comparing the ledger with mailboxes needs, and the proof of the way into the store.

use super::*;

pub fn copies_to_verify_come_in_pages_by_account(rig: &dyn Rig) {
    let host = Host::of(rig);
    assert_eq!(host.copies(&ALL), []);
    for (n, account) in ["zoe", "doug", "é", "doug", "lisa", "zoe", "doug"].iter().enumerate() {
        host.record(&mail(&format!("page{n}")), &[Destination::inbox(account)]);
    }
    let all = host.copies(&ALL);
    assert_eq!(all.len(), 7);
    let mut accounts: Vec<&str> =
        all.iter().map(|copy| copy.destination.account.as_str()).collect();
    assert!(all.windows(2).all(|two| accounts_differ(two) || two[0].message < two[1].message));
    accounts.dedup();
    assert_eq!(accounts.len(), 4, "each account's copies follow each other: {accounts:?}");
    for limit in [1, 2, 3, 6, 7, 8] {
        assert_eq!(host.copies_by(&ALL, limit), all, "{limit} a page");
    }
    let of_doug = host.copies_of(&ALL, "doug", 2);
    assert_eq!(of_doug.len(), 3);
    assert!(of_doug.iter().all(|copy| copy.destination.account == "doug"));
    for nobody in ["DOUG", "", "d\0", "' OR '1'='1"] {
        assert_eq!(host.copies_of(&ALL, nobody, 9), [], "{nobody:?}");
    }
}

/// Of two messages the first on record can have the later second: the clocks of two hosts differ.
pub fn a_copy_is_verified_though_a_later_message_has_an_earlier_second(rig: &dyn Rig) {
    let host = Host::of(rig);
    let mut recorded = Vec::new();
    loop {
        let number = recorded.len();
        let first = host.record(&mail(&format!("first{number}")), &[inbox()]);
        let mail = mail(&format!("second{number}"));
        let (identity, facts) = (mail.identity(), mail.facts());
        let at = first.recorded_at - Duration::from_secs(1);
        let entry = Entry { at: Some(at), ..entry(identity, &facts) };
        let second = host.record_entry(&entry, &attempt("mx2"), &[inbox()], LEASE);
        recorded.extend([first.message.number, second.message.number]);
        // On a busy machine the ledger's clock may be too far from it by then.
        if second.recorded_at == at {
            break;
        }
    }
    let copies = host.copies(&ALL);
    assert_eq!(copies.iter().map(|copy| copy.message).collect::<Vec<i64>>(), recorded);
}

pub fn the_latest_copies_are_those_placed_of_the_newest_rows(rig: &dyn Rig) {
    let host = Host::of(rig);
    assert_eq!(host.latest(10), []);
    let receipts = [uid(1), Receipt::name("2.onedrop"), Receipt::UNNAMED];
    let all = ["zoe", "doug", "lisa", "never"].map(Destination::inbox);
    for (number, destination) in all.iter().enumerate() {
        let claim = host.claim(&mail(&format!("latest{number}")), destination);
        if let Some(receipt) = receipts.get(number) {
            host.confirm(&claim, receipt);
        }
    }
    let mut expected: Vec<_> = all.into_iter().zip(receipts).collect();
    expected.reverse();
    assert_eq!(host.latest(10), expected);
    assert_eq!(host.latest(2), expected[..2]);
}

pub fn a_way_that_was_proven_is_on_record_until_it_was_seen_to_be_wrong(rig: &dyn Rig) {
    let (host, other) = (Host::of(rig), Host::of(rig));
    let way = |server: &str, login_user: &str, form: &str| Way {
        server: server.to_owned(),
        login_user: login_user.to_owned(),
        form: form.to_owned(),
    };
    let ours = way("imap.example.net:993", "mda", "sasl");
    let others = [
        way("imap.example.net:143", "mda", "sasl"),
        way("imap.example.net:993", "MDA", "sasl"),
        way("imap.example.net:993", "mda", "{account}*{user}"),
    ];
    assert!(!host.is_proven(&ours));
    // Renewed as often as a host looks.
    for name in ["a", "b"] {
        host.note_proof(&ours, true, name);
    }
    assert!(other.is_proven(&ours));
    for other_way in &others {
        assert!(!other.is_proven(other_way), "{other_way}");
        other.note_proof(other_way, false, "a");
    }
    assert!(host.is_proven(&ours));
    for way in &others {
        host.note_proof(way, true, "a");
    }
    let server = ours.server.as_str();
    assert_eq!(other.proven_forms(server, "mda"), ["sasl", "{account}*{user}"]);
    other.note_proof(&ours, false, "c");
    assert!(!host.is_proven(&ours));
    assert_eq!(host.proven_forms(server, "mda"), ["{account}*{user}"]);
}

fn accounts_differ(two: &[CopyOnRecord]) -> bool {
    two[0].destination.account != two[1].destination.account
}

pub fn a_copy_to_verify_comes_as_it_is_on_record(rig: &dyn Rig) {
    let host = Host::of(rig);
    let mail = message("From: lisa@gmail.com\r\nSubject: no id\r\n\r\nHello\r\n");
    let to = |name: &str| Destination::inbox(name);
    let all = ["doubt", "free", "given-back", "leased", "placed"].map(to);
    let recorded = host.record(&mail, &all[..3]);
    host.release(&[claimed(&recorded.copies[1])]);
    rig.expire_leases();
    let again = host.record(&mail, &all[2..]);
    host.release(&[claimed(&again.copies[0])]);
    let claim = claimed(&again.copies[2]);
    assert_eq!(host.confirm(&claim, &uid(7)), Confirmed::Recorded);
    let read = host.copies(&ALL);
    assert_eq!(read.len(), 5);
    for (copy, destination) in read.iter().zip(&all) {
        assert_eq!(copy.destination, *destination);
        assert_eq!((copy.message, &copy.identity), (recorded.message.number, mail.identity()));
        assert_eq!(copy.identity.message_id, None);
        assert_eq!(
            (copy.recorded_at, copy.size_bytes),
            (recorded.recorded_at, mail.own_copy().len() as u64)
        );
        let owner = match copy.standing {
            Standing::Placed { .. } => "",
            _ => "mx1:42",
        };
        assert_eq!((copy.owner.as_str(), copy.settled), (owner, false));
    }
    assert_eq!(read.iter().map(|copy| copy.epoch).collect::<Vec<_>>(), [1, 1, 2, 1, 1]);
    assert_eq!(read[0].standing, Standing::InDoubt { lease_left_over: true });
    assert_eq!(read[1].standing, Standing::Free);
    assert_eq!(read[2].standing, Standing::InDoubt { lease_left_over: false });
    assert_eq!(read[3].standing, Standing::Leased);
    let Standing::Placed { receipt, ago } = &read[4].standing else { panic!("{:?}", read[4]) };
    assert!(*receipt == uid(7) && *ago < Duration::from_secs(60), "{ago:?}");
    assert_eq!(read[4].copy, claim.copy);
    let mail = ports::mail("id");
    host.record(&mail, &[to("zoe")]);
    let read = host.copies_of(&ALL, "zoe", 9);
    assert_eq!(read[0].identity.message_id, mail.identity().message_id);
}

pub fn the_window_holds_what_is_recent_and_what_needs_a_second_look(rig: &dyn Rig) {
    let host = Host::of(rig);
    let recorded = host.record(&mail("window"), &[inbox(), sent()]);
    host.confirm(&claimed(&recorded.copies[0]), &uid(1));
    let window = |since: SystemTime| Window { since, all: true };
    let (at, second) = (recorded.recorded_at, Duration::from_secs(1));
    assert_eq!(host.copies(&window(at)).len(), 2);
    // The lease of the other one ends later.
    let later = host.copies(&window(at + second));
    assert_eq!(later.iter().map(|copy| &copy.destination).collect::<Vec<_>>(), [&sent()]);
    rig.expire_leases();
    let again = host.record(&mail("window"), &[sent()]);
    host.confirm(&claimed(&again.copies[0]), &uid(2));
    let far = window(at + Duration::from_secs(1_000_000_000));
    let needs_a_look = host.copies(&far);
    assert_eq!(needs_a_look.iter().map(|copy| &copy.destination).collect::<Vec<_>>(), [&sent()]);
    assert!(host.settle(&needs_a_look[0], &uid(2)));
    assert_eq!(host.copies(&far), []);
    let both = host.copies(&ALL);
    assert_eq!(both.iter().map(|copy| copy.settled).collect::<Vec<_>>(), [false, true]);
}

pub fn copies_that_one_lease_placed_are_left_out_unless_all_are_asked_for(rig: &dyn Rig) {
    let host = Host::of(rig);
    let to = Destination::inbox;
    let placed = host.claim(&mail("clean"), &to("clean"));
    host.confirm(&placed, &uid(1));
    host.record(&mail("lapsed"), &[to("lapsed"), to("twice"), to("settled")]);
    let returned = host.claim(&mail("free"), &to("free"));
    host.release(&[returned]);
    rig.expire_leases();
    for (account, number) in [("twice", 2), ("settled", 3)] {
        let claim = host.claim(&mail("lapsed"), &to(account));
        host.confirm(&claim, &uid(number));
    }
    let settled = host.copies_of(&ALL, "settled", 9).remove(0);
    assert!(host.settle(&settled, &uid(3)));
    host.claim(&mail("live"), &to("live"));
    let accounts = |window: &Window| {
        let copies = host.copies(window);
        copies.into_iter().map(|copy| copy.destination.account).collect::<Vec<_>>()
    };
    assert_eq!(accounts(&ALL), ["clean", "free", "lapsed", "live", "settled", "twice"]);
    let doubtful = Window { all: false, ..ALL };
    assert_eq!(accounts(&doubtful), ["free", "lapsed", "live", "settled", "twice"]);
    // However old, what needs its second look.
    let future = SystemTime::now() + Duration::from_secs(30 * 24 * 3600);
    for all in [false, true] {
        assert_eq!(accounts(&Window { since: future, all }), ["twice"]);
    }
}

pub fn a_copy_is_settled_where_it_is_as_it_was_read(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let receipts = [uid(1), uid(2), Receipt::name("n:2,S"), Receipt::UNNAMED, Receipt::uid(2, 2)];
    let claim = a.claim(&mail("settled"), &inbox());
    let leased = a.copies(&ALL).remove(0);
    assert!(!a.settle(&leased, &uid(9)), "not placed");
    a.confirm(&claim, &receipts[0]);
    assert!(!a.settle(&leased, &uid(9)), "changed since it was read");
    for two in receipts.windows(2) {
        let read = a.copies(&ALL).remove(0);
        let same = b.copies(&ALL).remove(0);
        assert!(
            matches!(&read.standing, Standing::Placed { receipt, .. } if *receipt == two[0]),
            "{read:?}"
        );
        assert!(b.settle(&same, &two[0]), "with the same receipt");
        assert!(a.settle(&read, &two[1]));
        assert!(!b.settle(&same, &uid(9)), "another receipt is on record by now");
    }
    let read = a.copies(&ALL).remove(0);
    assert_eq!(b.confirm(&claim, &uid(3)), Confirmed::Superseded { by: receipts[4].clone() });
    assert!(!a.settle(&read, &receipts[4]), "a second copy may have come to stand since");
    let state = b.claim_state(&mail("settled"), &inbox());
    assert_eq!(state, CopyState::Placed(receipts[4].clone()), "a delivery sees the new receipt");
}
