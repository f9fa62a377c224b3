//! Calls that threads make at the same time may share a transaction. Each comes to what it would
//! have come to alone, one after the other.

use super::*;

/// Runs rounds of calls at the same time, each with messages of its own, until some of them shared
/// a transaction, where any may.
pub fn until_shared(rig: &dyn Rig, round: impl Fn(usize)) {
    const ROUNDS: usize = 20;
    rig.slow_commits();
    for n in 0..ROUNDS {
        round(n);
        if rig.shared_transactions() != Some(false) {
            return;
        }
    }
    panic!("no two calls shared a transaction in {ROUNDS} rounds");
}

/// Records as a delivery does: it tries again where another one records the same message.
fn record(host: &Host, mail: &Message, destinations: &[Destination]) -> Recorded {
    record_entry(host, &entry(mail.identity(), &mail.facts()), destinations)
}

fn record_entry(host: &Host, entry: &Entry<'_>, destinations: &[Destination]) -> Recorded {
    let (by, begun) = (attempt("mx1"), Instant::now());
    loop {
        match host.0.record(entry, &by, destinations, LEASE, soon()) {
            Err(LedgerError::Contended) if begun.elapsed() < Duration::from_secs(60) => {
                thread::sleep(Duration::from_millis(1));
            }
            recorded => return recorded.expect("recorded"),
        }
    }
}

fn is_claimed(state: &CopyState) -> bool {
    matches!(state, CopyState::Claimed(_))
}

fn ends(host: &Host, name: &str) -> usize {
    let trace = host.trace_one(&format!("{name}@example.org"));
    trace.attempts.iter().filter(|one| one.outcome.is_some()).count()
}

pub fn messages_recorded_at_once_are_each_what_they_would_be_alone(rig: &dyn Rig) {
    let host = Host::of(rig);
    until_shared(rig, |round| recorded_at_once(&host, round));
}

pub fn recorded_at_once(host: &Host, round: usize) {
    let named = |name: &str| mail(&format!("{name}{round}"));
    let pair = |body: &str| mail_with_body(&format!("pair{round}"), body);
    let zoe = Destination::inbox("zoe");
    let all = [
        (named("first"), vec![inbox(), sent()]),
        (named("first"), vec![inbox(), zoe.clone()]),
        (pair("one"), vec![inbox()]),
        (pair("two"), vec![inbox()]),
        (named("nobody's"), vec![]),
        (named("kept"), vec![zoe, inbox()]),
    ];
    let recorded = at_once(all.len(), |at| {
        let (mail, destinations) = &all[at];
        let facts = mail.facts();
        let raw = (at == 5).then_some(&b"bytes \0 \xff"[..]);
        let entry = Entry { raw, ..entry(mail.identity(), &facts) };
        record_entry(host, &entry, destinations)
    });
    let [first, again, one, two, none, kept] = &recorded[..] else { panic!("{recorded:?}") };
    assert_eq!(first.message, again.message);
    assert!(first.is_new != again.is_new, "{first:?}, {again:?}");
    let both = [&first.copies[0], &again.copies[0]];
    assert_eq!(both.iter().filter(|state| is_claimed(state)).count(), 1, "{both:?}");
    assert!(both.contains(&&CopyState::Busy), "leased by the other one: {both:?}");
    assert!(is_claimed(&first.copies[1]) && is_claimed(&again.copies[1]));
    assert!(one.is_new && two.is_new && one.message != two.message);
    assert!(one.collision || two.collision, "whichever was second is marked");
    assert!(is_claimed(&one.copies[0]) && is_claimed(&two.copies[0]));
    assert!(none.is_new && !none.collision && none.copies.is_empty());
    assert!(kept.is_new && kept.copies.iter().all(is_claimed) && kept.copies.len() == 2);
    for (name, attempts) in [("first", 2), ("nobody's", 1), ("kept", 1)] {
        let trace = host.trace_one(&format!("{name}{round}@example.org"));
        let subject = format!("{name}{round}");
        assert_eq!((trace.attempts.len(), trace.subject), (attempts, Some(subject)));
        assert_eq!(trace.raw_kept, name == "kept");
        assert_eq!(trace.addresses.len(), 1);
    }
    let pair = host.trace(&format!("pair{round}@example.org"));
    assert_eq!(pair.len(), 2);
    assert!(pair.iter().all(|trace| trace.collision), "both are marked");
    let copies = host.copies_by(&ALL, 1000);
    let account = |state: &CopyState| {
        let claim = claimed(state);
        let copy = copies.iter().find(|copy| copy.copy == claim.copy).expect("a copy");
        copy.destination.account.as_str()
    };
    assert_eq!([account(&kept.copies[0]), account(&kept.copies[1])], ["zoe", "doug"]);
}

pub fn one_that_is_contended_keeps_the_others_from_nothing(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    until_shared(rig, |round| {
        let mails: Vec<Message> = (0..6).map(|n| mail(&format!("m{round}-{n}"))).collect();
        let other = a.claim(&mail(&format!("other{round}")), &inbox());
        let turn = a.turn(&other, &mails[3].identity().id_hash);
        assert_eq!(turn, OURS);
        let recorded = at_once(mails.len(), |n| b.try_record(&mails[n], &[inbox()], LEASE));
        for (n, recorded) in recorded.iter().enumerate() {
            match n {
                3 => assert!(matches!(recorded, Err(LedgerError::Contended)), "{recorded:?}"),
                _ => assert!(recorded.is_ok(), "{n}: {recorded:?}"),
            }
        }
        assert!(b.trace(&format!("m{round}-3@example.org")).is_empty());
        drop(turn);
        let states = mails.iter().map(|mail| a.claim_state(mail, &inbox()));
        let busy: Vec<bool> = states.map(|state| state == CopyState::Busy).collect();
        assert_eq!(busy, [true, true, true, false, true, true], "on record");
    });
}

pub fn more_than_may_share_a_transaction_are_each_on_record(rig: &dyn Rig) {
    const MANY: usize = 20;
    let host = Host::of(rig);
    until_shared(rig, |round| {
        let mails: Vec<Message> = (0..MANY).map(|n| mail(&format!("m{round}-{n}"))).collect();
        let recorded = at_once(MANY, |n| record(&host, &mails[n], &[inbox()]));
        let confirmed = at_once(MANY, |n| {
            let (end, one) = (delivered(), &recorded[n]);
            let receipt = uid(n as u32 + 1);
            let end = Some((one.attempt, &end));
            host.confirm_with(&claimed(&one.copies[0]), &receipt, CopyFacts::default(), end)
        });
        for n in 0..MANY {
            assert_eq!(confirmed[n], Confirmed::Recorded);
            let trace = host.trace_one(&format!("m{round}-{n}@example.org"));
            assert_eq!((trace.message, trace.attempts.len()), (recorded[n].message.number, 1));
            assert_eq!(trace.attempts[0].outcome.as_deref(), Some("delivered"));
            let placed = CopyState::Placed(uid(n as u32 + 1));
            assert_eq!(host.claim_state(&mails[n], &inbox()), placed);
        }
    });
}

pub fn each_receipt_has_an_outcome_of_its_own(rig: &dyn Rig) {
    // More than may go alone side by side, so that some have to share.
    const OF_EACH: usize = 3;
    let (a, b) = (Host::of(rig), Host::of(rig));
    until_shared(rig, |round| {
        let names: Vec<String> = (0..OF_EACH)
            .flat_map(|n| ["first", "placed", "ours", "same"].map(|kind| (kind, n)))
            .map(|(kind, n)| format!("{kind}{round}-{n}"))
            .collect();
        let mails: Vec<Message> = names.iter().map(|name| mail(name)).collect();
        let uids: Vec<Receipt> = (1..=mails.len()).map(|n| uid(n as u32)).collect();
        // One by one: only what receipts share is to be seen.
        let late: Vec<Recorded> = mails.iter().map(|mail| a.record(mail, &[inbox()])).collect();
        rig.expire_leases();
        at_once(mails.len(), |n| {
            // The third of each four is ours still.
            let claim = (n % 4 != 2).then(|| b.claim(&mails[n], &inbox()));
            let placed = [None, Some(uid(99)), None, Some(uids[n].clone())];
            if let (Some(claim), Some(placed)) = (claim, &placed[n % 4]) {
                assert_eq!(b.confirm(&claim, placed), Confirmed::Recorded);
            }
        });
        let end = delivered();
        let confirmed = at_once(late.len(), |n| {
            let (claim, end) = (claimed(&late[n].copies[0]), Some((late[n].attempt, &end)));
            a.confirm_with(&claim, &uids[n], CopyFacts::default(), end)
        });
        for n in 0..mails.len() {
            let (expected, ended) = match n % 4 {
                1 => (Confirmed::Superseded { by: uid(99) }, 0),
                _ => (Confirmed::Recorded, 1),
            };
            assert_eq!(confirmed[n], expected, "{}", names[n]);
            assert_eq!(ends(&a, &names[n]), ended, "an end is on record only with the receipt");
        }
    });
}

pub fn records_and_receipts_at_once_are_each_what_they_would_be_alone(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    until_shared(rig, |round| {
        let named = |name: &str| format!("{name}{round}");
        let [first, second] =
            ["first", "second"].map(|name| a.record(&mail(&named(name)), &[inbox()]));
        let [ours, lost] = [&first, &second].map(|one| claimed(&one.copies[0]));
        assert_eq!(a.confirm(&lost, &uid(9)), Confirmed::Recorded);
        let end = delivered();
        let (recorded, confirmed) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        at_once(5, |n| {
            let record = |name: &str, destinations: &[Destination]| {
                let one = record(&b, &mail(&named(name)), destinations);
                recorded.lock().expect("records").push((n, one));
            };
            let confirm = |claim: &Claim, receipt: &Receipt, attempt: AttemptKey| {
                let end = Some((attempt, &end));
                let one = b.confirm_with(claim, receipt, CopyFacts::default(), end);
                confirmed.lock().expect("receipts").push((n, one));
            };
            match n {
                0 => record("third", &[inbox(), sent()]),
                1 => record("nobody's", &[]),
                2 => record("first", &[inbox()]),
                3 => confirm(&ours, &uid(1), first.attempt),
                _ => confirm(&lost, &uid(2), second.attempt),
            }
        });
        let mut recorded = recorded.into_inner().expect("records");
        recorded.sort_by_key(|(n, _)| *n);
        let [(_, third), (_, none), (_, again)] = &recorded[..] else { panic!("{recorded:?}") };
        assert!(third.is_new && none.is_new && none.copies.is_empty());
        assert!(third.copies.iter().all(is_claimed) && third.copies.len() == 2);
        assert_eq!((again.is_new, again.message), (false, first.message));
        let may_be = [CopyState::Busy, CopyState::Placed(uid(1))];
        assert!(may_be.contains(&again.copies[0]), "{again:?}");
        let mut confirmed = confirmed.into_inner().expect("receipts");
        confirmed.sort_by_key(|(n, _)| *n);
        let second = Confirmed::Superseded { by: uid(9) };
        assert_eq!(confirmed, [(3, Confirmed::Recorded), (4, second)]);
        let state = |name: &str| a.claim_state(&mail(&named(name)), &inbox());
        assert_eq!(state("first"), CopyState::Placed(uid(1)));
        assert_eq!(state("second"), CopyState::Placed(uid(9)));
        assert_eq!((ends(&a, &named("first")), ends(&a, &named("second"))), (1, 0));
    });
}
