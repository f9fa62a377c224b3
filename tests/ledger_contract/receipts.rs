//! Receipts: the first one on record wins.

use std::time::Duration;

use super::*;

pub fn receipts_come_back_as_they_were(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let receipts = [
        Receipt::uid(1, 1),
        Receipt::uid(u32::MAX, u32::MAX),
        Receipt::name("1700000000.0123456789abcdef01234567.onedrop"),
        Receipt::name("it's \"é\" {x} \\ 日本"),
        Receipt::handed("07.3 \"Lists\"/12"),
        Receipt::UNNAMED,
        Receipt::elsewhere("INBOX"),
    ];
    for (n, receipt) in receipts.into_iter().enumerate() {
        let mail = mail(&format!("receipt{n}"));
        let key = copy_key(&mail, &inbox());
        let claim = a.claim(&mail, &inbox());
        let turn = a.turn(&claim, &key);
        assert_eq!(turn, OURS);
        assert_eq!(turn.confirm(&claim, &receipt), Confirmed::Recorded);
        assert_eq!(b.record(&mail, &[inbox()]).copies, [CopyState::Placed(receipt.clone())]);
        assert_eq!(b.turn(&claim, &key), TurnState::Placed(receipt.clone()));
        let copy = &b.trace_one(&format!("receipt{n}@example.org")).copies[0];
        let state = match receipt.kind() {
            "instead" => "elsewhere",
            "lmtp" => "handed over",
            _ => "placed",
        };
        assert_eq!(
            (copy.receipt.as_deref(), copy.state.as_str()),
            (Some(receipt.to_string().as_str()), state)
        );
    }
}

pub fn a_receipt_can_be_confirmed_again_after_its_turn(rig: &dyn Rig) {
    // As when the answer to a commit was lost: it may or may not have happened.
    let host = Host::of(rig);
    for (n, receipt) in [uid(5), Receipt::name("n"), Receipt::UNNAMED].into_iter().enumerate() {
        for happened in [false, true] {
            let mail = mail(&format!("again{n}{happened}"));
            let recorded = host.record(&mail, &[inbox()]);
            let claim = claimed(&recorded.copies[0]);
            let turn = host.turn(&claim, &copy_key(&mail, &inbox()));
            assert_eq!(turn, OURS);
            match happened {
                true => assert_eq!(turn.confirm(&claim, &receipt), Confirmed::Recorded),
                false => drop(turn),
            }
            let end = delivered();
            let again = host.confirm_with(
                &claim,
                &receipt,
                CopyFacts::default(),
                Some((recorded.attempt, &end)),
            );
            assert_eq!(again, Confirmed::Recorded, "{receipt:?} {happened}");
            assert_eq!(host.record(&mail, &[inbox()]).copies, [CopyState::Placed(receipt.clone())]);
            let trace = host.trace_one(&format!("again{n}{happened}@example.org"));
            assert_eq!(trace.attempts[0].outcome.as_deref(), Some("delivered"));
        }
    }
}

pub fn a_receipt_is_never_replaced(rig: &dyn Rig) {
    let host = Host::of(rig);
    let mail = mail("replaced");
    let claim = host.claim(&mail, &inbox());
    assert_eq!(host.confirm(&claim, &uid(6)), Confirmed::Recorded);
    for other in [uid(7), Receipt::name("6"), Receipt::UNNAMED] {
        assert_eq!(host.confirm(&claim, &other), Confirmed::Superseded { by: uid(6) });
    }
    rig.expire_leases();
    assert_eq!(host.record(&mail, &[inbox()]).copies, [CopyState::Placed(uid(6))]);
}

pub fn the_same_receipt_by_another_counts_as_ours(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let mail = mail("same");
    let late = a.record(&mail, &[inbox()]);
    let late_claim = claimed(&late.copies[0]);
    rig.expire_leases();
    let finder = b.claim(&mail, &inbox());
    let facts = CopyFacts { found_by_look: true, nul_replaced: true, wrapped: true };
    assert_eq!(b.confirm_with(&finder, &uid(8), facts, None), Confirmed::Recorded);
    let end = delivered();
    let confirmed =
        a.confirm_with(&late_claim, &uid(8), CopyFacts::default(), Some((late.attempt, &end)));
    assert_eq!(confirmed, Confirmed::Recorded);
    let trace = a.trace_one("same@example.org");
    assert_eq!(trace.attempts[0].outcome.as_deref(), Some("delivered"));
    let copy = &trace.copies[0];
    assert!(copy.found_by_look && copy.nul_replaced && copy.wrapped, "as first recorded");
}

pub fn the_first_receipt_wins_whatever_its_epoch(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    for (name, late_is_first) in [("late", true), ("later", false)] {
        let mail = mail(name);
        let key = copy_key(&mail, &inbox());
        let late = a.claim(&mail, &inbox());
        let turn = a.turn(&late, &key);
        assert_eq!(turn, OURS);
        rig.expire_leases();
        let claim = b.claim(&mail, &inbox());
        drop(turn);
        let turn = b.turn(&claim, &key);
        assert_eq!(turn, OURS_IN_DOUBT);
        drop(turn);
        let (first, second) = if late_is_first { (&late, &claim) } else { (&claim, &late) };
        let (by_first, by_second) = if late_is_first { (&a, &b) } else { (&b, &a) };
        assert_eq!(by_first.confirm(first, &uid(10)), Confirmed::Recorded, "{name}");
        assert_eq!(
            by_second.confirm(second, &uid(11)),
            Confirmed::Superseded { by: uid(10) },
            "{name}"
        );
        assert_eq!(by_first.confirm(first, &uid(10)), Confirmed::Recorded, "{name}, again");
        assert_eq!(b.record(&mail, &[inbox()]).copies, [CopyState::Placed(uid(10))], "{name}");
        let copy =
            b.copies(&ALL).into_iter().find(|copy| copy.copy == claim.copy).expect("the copy");
        assert!(copy.may_be_double && !copy.settled, "{name}: two may have written");
    }
}

pub fn a_receipt_that_comes_second_leaves_a_doubt(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    for receipts in [[uid(1), uid(2)], [Receipt::UNNAMED, Receipt::UNNAMED]] {
        let mail = mail(&format!("doubt{}", receipts[0]));
        let late = a.claim(&mail, &inbox());
        rig.expire_leases();
        let claim = b.claim(&mail, &inbox());
        // The one whose lease is over is first.
        assert_eq!(a.confirm(&late, &receipts[0]), Confirmed::Recorded);
        assert_eq!(a.confirm(&late, &receipts[0]), Confirmed::Recorded, "its answer was lost");
        let on_record = |host: &Host| {
            host.copies(&ALL).into_iter().find(|copy| copy.copy == late.copy).expect("the copy")
        };
        let read_before = on_record(&a);
        assert!(a.settle(&read_before, &receipts[0]));
        assert!(on_record(&a).settled);
        // Two copies without a name may be two copies, under its own epoch as well.
        assert_eq!(
            b.confirm(&claim, &receipts[1]),
            Confirmed::Superseded { by: receipts[0].clone() }
        );
        let doubted = on_record(&a);
        assert!(doubted.may_be_double && !doubted.settled, "{doubted:?}");
        assert!(!a.settle(&read_before, &receipts[0]), "a look of before the doubt");
        assert!(!on_record(&a).settled);
        assert!(a.settle(&doubted, &receipts[0]));
        assert!(on_record(&a).settled);
        assert_eq!(a.confirm(&late, &receipts[0]), Confirmed::Recorded);
        assert!(on_record(&a).settled, "a repeated confirm is no doubt");
    }
}

pub fn what_a_sent_did_not_take_is_kept_until_it_is_placed(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let mail = mail("kept");
    let recorded = a.record(&mail, &[inbox(), sent()]);
    let [own, shared] = [0, 1].map(|at: usize| claimed(&recorded.copies[at]));
    let bytes = [&b"a\0b\xff"[..], &b"x".repeat(100_000)].concat();
    assert_eq!(b.kept(recorded.message), None);
    assert_eq!(b.kept_bytes(recorded.message), None);
    let keep = |host: &Host, bytes: &[u8], why: &str| host.keep(recorded.message, bytes, why);
    assert!(keep(&a, &bytes, "over quota: nul\0 \u{1}é"));
    assert!(keep(&a, b"others", "no right"));
    a.release(&[shared]);
    assert_eq!(a.confirm(&own, &uid(1)), Confirmed::Recorded);
    assert_eq!(b.kept(recorded.message).as_deref(), Some("no right"));
    assert_eq!(b.kept_bytes(recorded.message), Some(bytes));
    let future = Window { since: SystemTime::now() + Duration::from_secs(86_400), all: true };
    let found = b.copies(&future);
    assert_eq!(found.len(), 1, "found whatever the window: {found:#?}");
    assert_eq!((found[0].copy, found[0].kept.as_deref()), (shared.copy, Some("no right")));
    let trace = b.trace_one("kept@example.org");
    let kept: Vec<_> =
        trace.copies.iter().map(|copy| (copy.account.as_str(), copy.kept.as_deref())).collect();
    assert_eq!(kept, [("doug", None), ("lisa", Some("no right"))]);
    let again = claimed(&b.claim_state(&mail, &sent()));
    assert!(!again.in_doubt);
    assert_eq!(b.confirm(&again, &uid(7)), Confirmed::Recorded);
    assert_eq!(a.kept(recorded.message), None);
    assert_eq!(a.kept_bytes(recorded.message), None);
    assert_eq!(a.trace_one("kept@example.org").copies[1].kept, None);
    assert!(!keep(&a, b"too late", "no right"), "it is placed");
    // An INBOX may be an account's own mailbox in one delivery and its Sent in the next.
    let both = b.record(&message("Message-ID: <both@x>\n\nx\n"), &[Destination::inbox("lisa")]);
    b.release(&[claimed(&both.copies[0])]);
    assert!(!b.keep(both.message, b"x", "no"), "nobody shares it");
    b.record(&message("Message-ID: <both@x>\n\nx\n"), &[Destination::sent("lisa", "INBOX")]);
    assert!(b.keep(both.message, b"x", "no"));
    assert_eq!(b.kept(recorded.message), None);
}

pub fn a_copy_without_a_name_is_ours_only_under_our_epoch(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let mail = mail("unnamed");
    let late = a.claim(&mail, &inbox());
    rig.expire_leases();
    let claim = b.claim(&mail, &inbox());
    assert_eq!(b.confirm(&claim, &Receipt::UNNAMED), Confirmed::Recorded);
    assert_eq!(b.confirm(&claim, &Receipt::UNNAMED), Confirmed::Recorded);
    // Two copies without a name may be two copies.
    let other = Confirmed::Superseded { by: Receipt::UNNAMED };
    assert_eq!(a.confirm(&late, &Receipt::UNNAMED), other);
    assert_eq!(a.confirm(&late, &uid(1)), other);
}

pub fn an_end_is_on_record_only_with_the_receipt(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let mail = mail("end");
    let late = a.record(&mail, &[inbox()]);
    let late_claim = claimed(&late.copies[0]);
    rig.expire_leases();
    let recorded = b.record(&mail, &[inbox()]);
    let end = delivered();
    let claim = claimed(&recorded.copies[0]);
    let facts = CopyFacts { found_by_look: false, nul_replaced: true, wrapped: false };
    let confirmed = b.confirm_with(&claim, &uid(2), facts, Some((recorded.attempt, &end)));
    assert_eq!(confirmed, Confirmed::Recorded);
    let late =
        a.confirm_with(&late_claim, &uid(1), CopyFacts::default(), Some((late.attempt, &end)));
    assert_eq!(late, Confirmed::Superseded { by: uid(2) });
    let trace = a.trace_one("end@example.org");
    assert_eq!(trace.attempts[0].outcome, None);
    let ended = &trace.attempts[1];
    assert_eq!(
        (ended.outcome.as_deref(), ended.status.as_deref()),
        (Some("delivered"), Some("2.0.0"))
    );
    assert_eq!((ended.duration_ms, ended.text.as_deref()), (Some(7), Some(end.text.as_str())));
    assert!(trace.copies[0].nul_replaced && !trace.copies[0].found_by_look);
}

/// The last receipt of a kind in the mailbox that was there a minute before the message was
/// recorded.
pub fn a_receipt_that_was_there_before_a_message_is_told(rig: &dyn Rig) {
    let host = Host::of(rig);
    let (doug, mut late) = (inbox(), Vec::new());
    let place = |name: &str, destination: &Destination, receipt: Receipt| {
        let claim = host.claim(&mail(name), destination);
        assert_eq!(host.confirm(&claim, &receipt), Confirmed::Recorded);
    };
    let first = host.record(&mail("first"), &[]).message;
    for (name, number) in [("five", 5), ("seven", 7), ("nine", 9)] {
        place(name, &doug, uid(number));
    }
    place("elsewhere", &sent(), uid(100));
    place("another's", &Destination::inbox("zoe"), uid(101));
    place("not there", &doug, Receipt::elsewhere("other"));
    place("never there", &Destination::inbox("never"), Receipt::elsewhere("other"));
    place("file", &Destination::inbox("file"), Receipt::name("n"));
    late.push(host.claim(&mail("late"), &doug));
    rig.pass(120);
    // As late as that it may be the next.
    place("now", &doug, uid(12));
    rig.pass(30);
    let message = host.record(&mail("asked"), &[]).message;
    host.confirm(&late[0], &uid(11));
    place("after", &doug, uid(13));
    let before = |message: i64, destination: &Destination| {
        let place = (destination, "uid");
        host.0.receipt_before(message, place, Duration::ZERO, soon()).expect("an answer")
    };
    assert_eq!(before(message.number, &doug), Some(uid(9)));
    let earlier = |secs| {
        let earlier = Duration::from_secs(secs);
        host.0.receipt_before(message.number, (&doug, "uid"), earlier, soon()).expect("an answer")
    };
    assert_eq!((earlier(60), earlier(120)), (Some(uid(9)), None), "two minutes and a half before");
    assert_eq!(before(message.number, &sent()), Some(uid(100)));
    assert_eq!(before(message.number, &Destination::inbox("file")), None);
    assert_eq!(before(message.number, &Destination::inbox("never")), None);
    assert_eq!(before(message.number, &Destination::inbox("nobody")), None);
    assert_eq!(before(first.number, &doug), None, "it was recorded first");
    rig.pass(120);
    let again = host.record(&mail("asked"), &[]).message;
    assert_eq!(
        (again, before(again.number, &doug)),
        (message, Some(uid(9))),
        "what came since is not"
    );
    let next = host.record(&mail("next"), &[]).message;
    assert_eq!(before(next.number, &doug), Some(uid(13)));
    // Where it was found again, it may have been put after the message.
    let last = Some(uid(13));
    let is_last = |copy: &CopyOnRecord| match &copy.standing {
        Standing::Placed { receipt, .. } => Some(receipt) == last.as_ref(),
        _ => false,
    };
    let last = host.copies(&ALL).into_iter().find(is_last).expect("on record");
    assert!(host.settle(&last, &uid(99)));
    assert_eq!(before(next.number, &doug), Some(uid(11)));
}
