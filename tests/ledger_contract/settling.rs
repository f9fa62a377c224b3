//! Shared copies that are left to `onedrop settle`.

use super::*;

const LATER: Duration = Duration::from_secs(600);
const NOW: Duration = Duration::ZERO;

pub fn a_copy_that_is_due_is_leased_by_no_delivery_and_its_bytes_are_kept(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let message = a.record(&mail("due"), &[inbox()]).message;
    let before = SystemTime::now();
    let due = a.keep_until_due(message, &sent(), b"the bytes", LATER);
    let Due::At(at) = due else { panic!("{due:?}") };
    if !matches!(a.0.time().duration_since(before), Ok(ahead) if ahead > LATER) {
        let ahead = at.duration_since(a.0.time()).expect("ahead");
        assert!(ahead > LATER / 2 && ahead < LATER * 2, "{ahead:?}");
    }
    for host in [&a, &b] {
        let again = host.keep_until_due(message, &sent(), b"other bytes", 3 * LATER);
        assert_eq!(again, due, "the first time counts");
        assert_eq!(host.kept(message).as_deref(), Some("later"));
        assert_eq!(host.kept_bytes(message).as_deref(), Some(&b"the bytes"[..]));
        for terms in [LEASE, JOIN] {
            let state = host.try_record(&mail("due"), &[sent()], terms).expect("record").copies;
            assert_eq!(state, [CopyState::Busy], "no delivery leases it");
            let state = host.claim_again(message, &[sent()], &attempt("mx1"), terms);
            assert_eq!(state, [CopyState::Busy], "nor one that asks again");
        }
    }
    assert_eq!(a.to_settle(), [], "not yet due");
    let copy = &a.trace_one("due@example.org").copies[1];
    assert_eq!((copy.state.as_str(), copy.epoch, copy.owner.as_str()), ("due", 0, ""));
    assert_eq!(copy.kept.as_deref(), Some("later"));
    assert!(copy.due_at.as_deref().is_some_and(|at| at.ends_with('Z')), "{copy:?}");
    let failed = TraceFilter { failed: true, ..TraceFilter::of("due@example.org") };
    let open = |copy: &TraceCopy| copy.receipt.is_none() && copy.state != "due";
    let failed_but_for_sent = a.traces(&failed, 10).iter().any(|one| one.copies.iter().any(open));
    assert!(failed_but_for_sent, "the INBOX is not placed");

    let claim = claimed(&b.claim_due(message, &sent()));
    assert_eq!((claim.epoch, claim.in_doubt), (1, false), "nobody has written it before");
    assert_eq!(a.claim_due(message, &sent()), CopyState::Busy);
    assert_eq!(b.confirm(&claim, &uid(7)), Confirmed::Recorded);
    assert_eq!((a.kept(message), a.kept_bytes(message)), (None, None));
    let again = a.keep_until_due(message, &sent(), b"the bytes", LATER);
    assert_eq!(again, Due::Placed(uid(7)));
    assert_eq!(a.kept(message), None, "nothing is kept of what is placed");
    assert_eq!(a.record(&mail("due"), &[sent()]).copies, [CopyState::Placed(uid(7))]);
}

pub fn a_copy_that_was_claimed_is_made_due_with_its_lease_and_its_doubt(rig: &dyn Rig) {
    let host = Host::of(rig);
    // Whoever has the lease may still place it.
    let claim = host.claim(&mail("live"), &sent());
    let message = host.record(&mail("live"), &[]).message;
    assert!(matches!(host.keep_until_due(message, &sent(), b"1", NOW), Due::At(_)));
    assert_eq!(host.claim_due(message, &sent()), CopyState::Busy);
    assert_eq!(host.confirm(&claim, &uid(1)), Confirmed::Recorded);
    assert_eq!(host.kept(message), None);
    // One that was in doubt stays so.
    host.claim(&mail("doubt"), &sent());
    let message = host.record(&mail("doubt"), &[]).message;
    host.keep_until_due(message, &sent(), b"2", NOW);
    rig.expire_leases();
    assert_eq!(host.record(&mail("doubt"), &[sent()]).copies, [CopyState::Busy]);
    let claim = claimed(&host.claim_due(message, &sent()));
    assert_eq!((claim.epoch, claim.in_doubt), (2, true));
    // What is kept for another reason keeps it.
    let claim = host.claim(&mail("refused"), &sent());
    let message = host.record(&mail("refused"), &[]).message;
    assert!(host.keep(message, b"kept", "no right"));
    host.release(&[claim]);
    host.keep_until_due(message, &sent(), b"3", NOW);
    assert_eq!(host.kept(message).as_deref(), Some("no right"));
    assert_eq!(host.kept_bytes(message).as_deref(), Some(&b"kept"[..]));
}

pub fn a_recipients_copy_that_a_lease_has_left_in_doubt_is_for_settle(rig: &dyn Rig) {
    let host = Host::of(rig);
    let doubts = |after: Option<&CopyOnRecord>, limit| {
        host.0.doubts_to_settle(after, limit, soon()).expect("doubts")
    };
    let inbox_of = |account: &str| Destination { account: account.to_owned(), ..inbox() };
    let claims: Vec<Claim> =
        ["zoe", "amy"].map(|account| host.claim(&mail(account), &inbox_of(account))).into();
    let given_back = host.claim(&mail("given back"), &inbox());
    host.release(&[given_back]);
    let placed = host.claim(&mail("placed"), &inbox());
    host.confirm(&placed, &uid(1));
    host.claim(&mail("shared"), &sent());
    assert_eq!(doubts(None, 100), [], "a lease lives");
    rig.expire_leases();
    let all = doubts(None, 100);
    let accounts: Vec<&str> = all.iter().map(|copy| copy.destination.account.as_str()).collect();
    assert_eq!(accounts, ["amy", "zoe"]);
    for copy in &all {
        assert_eq!(copy.standing, Standing::InDoubt { lease_left_over: true });
    }
    let first = doubts(None, 1);
    assert_eq!((&first[..], &doubts(first.last(), 100)[..]), (&all[..1], &all[1..]));
    host.confirm(&claims[0], &uid(2));
    assert_eq!(doubts(None, 100), all[..1]);
}

pub fn what_settle_has_to_do_comes_in_pages_by_account(rig: &dyn Rig) {
    let host = Host::of(rig);
    assert_eq!(host.to_settle(), []);
    let sent_of = |account: &str| Destination::sent(account, "Sent");
    for (n, account) in ["zoe", "doug", "é", "doug", "lisa"].iter().enumerate() {
        let message = host.record(&mail(&format!("page{n}")), &[]).message;
        host.keep_until_due(message, &sent_of(account), b"x", NOW);
    }
    let later = host.record(&mail("later"), &[]).message;
    host.keep_until_due(later, &sent_of("doug"), b"x", LATER);
    let refused = host.claim(&mail("refused"), &sent_of("amy"));
    let message = host.record(&mail("refused"), &[]).message;
    assert!(host.keep(message, b"x", "no right"));
    host.release(&[refused]);
    host.claim(&mail("own"), &inbox());
    let all = host.to_settle();
    assert_eq!(all.len(), 6, "those that are due, and the one that is kept: {all:#?}");
    for copy in &all {
        let is_kept = copy.destination.account == "amy";
        assert_eq!(copy.due.is_none(), is_kept);
        assert_eq!(copy.due.is_some_and(|due| due.has_come), !is_kept);
        assert_eq!(copy.standing, Standing::Free);
        assert_eq!(copy.kept.as_deref(), Some(if is_kept { "no right" } else { "later" }));
    }
    for limit in [1, 2, 5, 6, 7] {
        let (mut paged, mut last) = (Vec::new(), None);
        loop {
            let page = host.0.copies_to_settle(false, last.as_ref(), limit, soon()).expect("page");
            assert!(page.len() <= limit as usize);
            let Some(end) = page.last() else { break };
            last = Some(end.clone());
            paged.extend(page);
        }
        assert_eq!(paged, all, "{limit} a page");
    }
    // Placed by us: watched, for a time. Placed by the sender's program: over, unless a copy of
    // ours may stand.
    let of = |account: &str| {
        let all = host.to_settle();
        all.into_iter().find(|copy| copy.destination.account == account).expect("to settle")
    };
    let ours = of("zoe");
    let claim = claimed(&host.claim_due(ours.message_key(), &ours.destination));
    host.confirm(&claim, &uid(1));
    assert!(matches!(of("zoe").standing, Standing::Placed { .. }));
    let theirs = of("lisa");
    let claim = claimed(&host.claim_due(theirs.message_key(), &theirs.destination));
    assert!(host.leave_to_sender(&claim, None, &uid(2)));
    let doubtful = of("é");
    host.claim_due(doubtful.message_key(), &doubtful.destination);
    rig.expire_leases();
    let claim = claimed(&host.claim_due(doubtful.message_key(), &doubtful.destination));
    assert!(host.leave_to_sender(&claim, None, &uid(3)));
    let (zoe, e) = (of("zoe"), of("é"));
    assert!(!zoe.by_sender && e.by_sender && e.may_be_double && e.settled);
    let accounts = |copies: Vec<CopyOnRecord>| -> Vec<String> {
        copies.into_iter().map(|copy| copy.destination.account).collect()
    };
    assert_eq!(accounts(host.due()), ["amy", "doug", "doug"]);
    let mut watched = accounts(host.watched());
    watched.sort();
    assert_eq!(watched, ["zoe", "é"]);
}

pub fn a_watched_copy_is_looked_at_again_when_its_time_has_come(rig: &dyn Rig) {
    let host = Host::of(rig);
    let due = |name: &str| {
        let message = host.record(&mail(name), &[]).message;
        host.keep_until_due(message, &sent(), b"x", NOW);
        message
    };
    let message = due("one");
    host.confirm(&claimed(&host.claim_due(message, &sent())), &uid(1));
    let watched = host.watched();
    let [copy] = &watched[..] else { panic!("{watched:?}") };
    host.look_again(copy, Some(LATER));
    assert_eq!(host.watched(), [], "not before its time");
    host.look_again(copy, Some(NOW));
    assert_eq!(host.watched().len(), 1);
    // Its owner has moved it: that is put on record, and it stays watched.
    assert!(host.settle(copy, &uid(2)));
    let moved = host.watched().remove(0);
    assert!(matches!(&moved.standing, Standing::Placed { receipt, .. } if *receipt == uid(2)));
    host.look_again(&moved, None);
    host.look_again(&moved, Some(NOW));
    assert_eq!(host.watched(), [], "once is for good");
    // Its second look is still to come.
    let message = due("two");
    host.claim_due(message, &sent());
    rig.expire_leases();
    host.confirm(&claimed(&host.claim_due(message, &sent())), &uid(3));
    let copy = host.watched().remove(0);
    host.look_again(&copy, None);
    let far = Window { since: SystemTime::now() + 1000 * LATER, all: false };
    let needs_a_look = host.copies(&far);
    assert_eq!(needs_a_look.len(), 1, "{needs_a_look:?}");
    assert!(host.settle(&needs_a_look[0], &uid(3)));
    assert_eq!(host.copies(&far), []);
    // One of ours came beside the mail program's own: settle alone looks for it, and ends that.
    let message = due("three");
    let late = claimed(&host.claim_due(message, &sent()));
    rig.expire_leases();
    let claim = claimed(&host.claim_due(message, &sent()));
    assert!(host.leave_to_sender(&claim, None, &uid(4)));
    assert_eq!(host.confirm(&late, &uid(5)), Confirmed::Superseded { by: uid(4) });
    let watched = || host.watched().into_iter().find(|copy| copy.message == message.number);
    let copy = watched().expect("watched again");
    assert!(copy.by_sender && !copy.settled);
    host.look_again(&copy, None);
    assert_eq!((watched(), host.copies(&far)), (None, vec![]));
}

pub fn a_copy_is_left_to_the_sender_where_it_is_as_it_was_read(rig: &dyn Rig) {
    let host = Host::of(rig);
    let message = host.record(&mail("own"), &[]).message;
    host.keep_until_due(message, &sent(), b"x", NOW);
    let claim = claimed(&host.claim_due(message, &sent()));
    let other = Claim { epoch: claim.epoch + 1, ..claim };
    assert!(!host.leave_to_sender(&other, None, &uid(4)), "another has claimed it since");
    assert!(!host.leave_to_sender(&claim, Some(&uid(3)), &uid(4)), "it is not placed");
    assert_eq!(host.kept(message).as_deref(), Some("later"));
    assert!(host.leave_to_sender(&claim, None, &uid(4)));
    assert!(host.leave_to_sender(&claim, None, &uid(4)), "the answer was lost");
    assert!(!host.leave_to_sender(&claim, None, &uid(5)));
    assert_eq!((host.kept(message), host.kept_bytes(message)), (None, None));
    assert_eq!(host.record(&mail("own"), &[sent()]).copies, [CopyState::Placed(uid(4))]);
    assert_eq!(host.keep_until_due(message, &sent(), b"x", NOW), Due::Placed(uid(4)));
    let copy = &host.trace_one("own@example.org").copies[0];
    assert_eq!((copy.state.as_str(), copy.by_sender), ("placed", true));
    assert_eq!(host.confirm(&claim, &uid(6)), Confirmed::Superseded { by: uid(4) });

    // One of ours, beside which another has come to stand.
    let message = host.record(&mail("beside"), &[]).message;
    host.keep_until_due(message, &sent(), b"x", NOW);
    let claim = claimed(&host.claim_due(message, &sent()));
    let ours = Receipt::name("ours");
    host.confirm(&claim, &ours);
    let theirs = Receipt::name("theirs");
    assert!(!host.leave_to_sender(&claim, None, &theirs), "it is placed");
    assert!(!host.leave_to_sender(&claim, Some(&uid(9)), &theirs), "as another receipt");
    assert!(host.leave_to_sender(&claim, Some(&ours), &theirs));
    assert!(host.leave_to_sender(&claim, Some(&ours), &theirs));
    assert_eq!(host.record(&mail("beside"), &[sent()]).copies, [CopyState::Placed(theirs)]);
}

pub fn another_message_with_the_same_id_in_the_same_mailbox_is_known(rig: &dyn Rig) {
    let host = Host::of(rig);
    let due = |mail: &Message, account: &str| {
        let message = host.record(mail, &[]).message;
        host.keep_until_due(message, &Destination::sent(account, "Sent"), b"x", NOW);
        message
    };
    let other = |name: &str| message(format!("Message-ID: <{name}@example.org>\r\n\r\nother\r\n"));
    let (one, two) = (due(&mail("one"), "lisa"), due(&other("one"), "lisa"));
    due(&mail("two"), "lisa");
    due(&mail("three"), "lisa");
    due(&other("three"), "zoe");
    // By another name of the mailbox, which a sender chose; and where it cannot be.
    let named = due(&mail("four"), "lisa");
    host.record(
        &other("four"),
        &[Destination { mailbox: "Sent\\9f".to_owned(), ..Destination::inbox("lisa") }],
    );
    for (name, mailbox) in [("six", "INBOX\\9f"), ("seven", "INBOX")] {
        due(&mail(name), "lisa");
        let at = Destination { mailbox: mailbox.to_owned(), ..Destination::inbox("lisa") };
        host.record(&other(name), &[at]);
    }
    due(&mail("five"), "lisa");
    host.record(&other("five"), &[Destination::inbox("lisa")]);
    for copy in host.to_settle() {
        let expected = [one.number, two.number, named.number].contains(&copy.message);
        assert_eq!(host.has_namesake(&copy), expected, "{copy:?}");
    }
}

pub fn what_is_kept_goes_with_the_last_shared_copy_of_the_message(rig: &dyn Rig) {
    let host = Host::of(rig);
    let places = ["Sent", "Sent Items", "Gesendet"].map(|name| Destination::sent("lisa", name));
    let message = host.record(&mail("kept"), &[]).message;
    for place in &places {
        host.keep_until_due(message, place, b"the bytes", NOW);
    }
    let claims = places.each_ref().map(|place| claimed(&host.claim_due(message, place)));
    let still_kept = || {
        assert_eq!(host.kept_bytes(message).as_deref(), Some(&b"the bytes"[..]));
    };
    assert_eq!(host.confirm(&claims[0], &uid(1)), Confirmed::Recorded);
    still_kept();
    assert!(host.leave_to_sender(&claims[1], None, &uid(2)));
    still_kept();
    assert_eq!(host.confirm(&claims[2], &uid(3)), Confirmed::Recorded);
    assert_eq!(host.kept_bytes(message), None);
    // By the sender's program as the last.
    let message = host.record(&mail("left"), &[]).message;
    for place in &places[..2] {
        host.keep_until_due(message, place, b"the bytes", NOW);
    }
    let [one, two] = [0, 1].map(|n| claimed(&host.claim_due(message, &places[n])));
    assert_eq!(host.confirm(&one, &uid(4)), Confirmed::Recorded);
    assert!(host.kept_bytes(message).is_some());
    assert!(host.leave_to_sender(&two, None, &uid(5)));
    assert_eq!(host.kept_bytes(message), None);
}

pub fn of_twenty_that_settle_one_copy_one_gets_it(rig: &dyn Rig) {
    let hosts: Vec<Host> = (0..20).map(|_| Host::of(rig)).collect();
    let message = hosts[0].record(&mail("race"), &[]).message;
    let made = at_once(hosts.len(), |n| {
        hosts[n].keep_until_due(message, &sent(), format!("{n}").as_bytes(), NOW)
    });
    assert!(made.iter().all(|due| *due == made[0]), "one time: {made:?}");
    let states = at_once(hosts.len(), |n| hosts[n].claim_due(message, &sent()));
    let claims: Vec<&CopyState> =
        states.iter().filter(|state| **state != CopyState::Busy).collect();
    assert_eq!(claims.len(), 1, "{states:?}");
    assert_eq!(claimed(claims[0]).epoch, 1);
}
