//! Several records or receipts in one call come to what each would have come to alone, one after
//! the other.

use onedrop::ledger::{TOGETHER, ToConfirm, ToRecord};

use super::*;

/// What a message, its attempt and its destinations are recorded with.
struct One {
    mail: Message,
    facts: Facts,
    attempt: Attempt,
    destinations: Vec<Destination>,
    raw: Option<&'static [u8]>,
}

fn one(mail: Message, destinations: &[Destination]) -> One {
    let facts = mail.facts();
    One { mail, facts, attempt: attempt("mx1"), destinations: destinations.to_vec(), raw: None }
}

fn to_record(one: &One) -> ToRecord<'_> {
    let size_bytes = one.mail.own_copy().len() as u64;
    let entry = Entry {
        identity: one.mail.identity(),
        facts: &one.facts,
        size_bytes,
        raw: one.raw,
        nul_runs: None,
        at: None,
    };
    ToRecord { entry, attempt: &one.attempt, destinations: &one.destinations, terms: LEASE }
}

fn record_all(session: &mut Session, all: &[One]) -> Vec<Result<Recorded, LedgerError>> {
    let all: Vec<ToRecord<'_>> = all.iter().map(to_record).collect();
    let recorded = session.0.together(&all, &[]).expect("a transaction").recorded;
    assert_eq!(recorded.len(), all.len());
    recorded
}

/// Records messages of these names for one mailbox.
pub fn record_names(
    session: &mut Session,
    names: &[&str],
) -> Result<Vec<Result<Recorded, LedgerError>>, LedgerError> {
    let all: Vec<One> = names.iter().map(|name| one(mail(name), &[inbox()])).collect();
    session
        .0
        .together(&all.iter().map(to_record).collect::<Vec<_>>(), &[])
        .map(|made| made.recorded)
}

fn to_confirm<'a>(
    state: &CopyState,
    receipt: &'a Receipt,
    end: Option<(i64, &'a AttemptEnd)>,
) -> ToConfirm<'a> {
    ToConfirm { claim: claimed(state), receipt, facts: CopyFacts::default(), end }
}

pub fn several_messages_are_recorded_at_once(rig: &dyn Rig) {
    let mut session = Session::of(rig);
    let zoe = Destination::inbox("zoe");
    let all = [
        one(mail("first"), &[inbox(), sent()]),
        one(mail_with_body("pair", "one"), &[inbox()]),
        one(mail_with_body("pair", "two"), &[inbox()]),
        one(mail("first"), &[inbox(), zoe.clone()]),
        one(mail("nobody's"), &[]),
        One { raw: Some(b"bytes \0 \xff"), ..one(mail("kept"), &[zoe, inbox()]) },
    ];
    let recorded: Vec<Recorded> =
        record_all(&mut session, &all).into_iter().map(|one| one.expect("recorded")).collect();
    let facts: Vec<_> =
        recorded.iter().map(|one| (one.is_new, one.collision, one.copies.len())).collect();
    let new = |copies| (true, false, copies);
    assert_eq!(facts, [new(2), new(1), (true, true, 1), (false, false, 2), new(0), new(2)]);
    assert_eq!(recorded[3].message, recorded[0].message);
    assert_eq!(recorded[3].copies[0], CopyState::Busy, "leased by the one before");
    let leased = recorded
        .iter()
        .flat_map(|one| &one.copies)
        .filter(|state| matches!(state, CopyState::Claimed(_)));
    assert_eq!(leased.count(), 7);
    for (name, attempts) in [("first", 2), ("nobody's", 1), ("kept", 1)] {
        let trace = session.trace_one(&format!("{name}@example.org"));
        assert_eq!((trace.attempts.len(), trace.subject.as_deref()), (attempts, Some(name)));
        assert_eq!(trace.raw_kept, name == "kept");
        assert_eq!(trace.addresses.len(), 1);
    }
    assert!(
        session.trace("pair@example.org").iter().all(|trace| trace.collision),
        "both are marked"
    );
    let account = |one: &Recorded, at: usize| claimed(&one.copies[at]).copy;
    let copies = session.copies(&ALL);
    let of = |copy: i64| {
        copies.iter().find(|one| one.copy == copy).map(|one| one.destination.account.as_str())
    };
    assert_eq!(
        (of(account(&recorded[5], 0)), of(account(&recorded[5], 1))),
        (Some("zoe"), Some("doug"))
    );
}

pub fn one_that_is_contended_keeps_the_others_from_nothing(rig: &dyn Rig) {
    let (mut a, mut b) = (Session::of(rig), Session::of(rig));
    let wanted = mail("wanted");
    let other = a.claim(&mail("other"), &inbox());
    assert_eq!(a.turn(&other, &wanted.identity().id_hash), OURS);
    let all =
        [one(mail("before"), &[inbox()]), one(wanted, &[inbox()]), one(mail("after"), &[inbox()])];
    let recorded = record_all(&mut b, &all);
    assert!(matches!(&recorded[..], [Ok(_), Err(LedgerError::Contended), Ok(_)]), "{recorded:?}");
    assert!(b.trace("wanted@example.org").is_empty());
    let again: Vec<_> =
        ["before", "after"].map(|name| a.record(&mail(name), &[inbox()]).copies.remove(0)).into();
    assert_eq!(again, [CopyState::Busy, CopyState::Busy], "on record");
}

pub fn as_many_as_may_go_together_do(rig: &dyn Rig) {
    let mut session = Session::of(rig);
    let all: Vec<One> = (0..TOGETHER).map(|n| one(mail(&format!("many{n}")), &[inbox()])).collect();
    let recorded: Vec<Recorded> =
        record_all(&mut session, &all).into_iter().map(|one| one.expect("recorded")).collect();
    let (receipts, end): (Vec<Receipt>, _) =
        ((1..=TOGETHER as u32).map(uid).collect(), delivered());
    let confirms: Vec<ToConfirm<'_>> = recorded
        .iter()
        .zip(&receipts)
        .map(|(one, receipt)| to_confirm(&one.copies[0], receipt, Some((one.attempt, &end))))
        .collect();
    let confirmed = session.0.together(&[], &confirms).expect("a transaction").confirmed;
    assert_eq!(confirmed.len(), TOGETHER);
    for (n, (one, receipt)) in all.iter().zip(&receipts).enumerate() {
        assert!(matches!(confirmed[n], Ok(Confirmed::Recorded)), "{:?}", confirmed[n]);
        assert_eq!(
            session.record(&one.mail, &[inbox()]).copies,
            [CopyState::Placed(receipt.clone())]
        );
        let trace = session.trace_one(&format!("many{n}@example.org"));
        assert_eq!(
            trace.attempts.iter().filter(|one| one.outcome.as_deref() == Some("delivered")).count(),
            1
        );
    }
}

pub fn each_receipt_has_an_outcome_of_its_own(rig: &dyn Rig) {
    let (mut a, mut b) = (Session::of(rig), Session::of(rig));
    let mails = ["first", "placed", "ours", "same"].map(mail);
    let late: Vec<Recorded> = mails.iter().map(|mail| a.record(mail, &[inbox()])).collect();
    rig.expire_leases();
    let by_b: Vec<Recorded> = [0, 1, 3].map(|n: usize| b.record(&mails[n], &[inbox()])).into();
    assert_eq!(b.confirm(&claimed(&by_b[1].copies[0]), &uid(11)), Confirmed::Recorded);
    assert_eq!(b.confirm(&claimed(&by_b[2].copies[0]), &uid(4)), Confirmed::Recorded);
    let (receipts, end) = ([1, 2, 3, 4].map(uid), delivered());
    let confirms: Vec<ToConfirm<'_>> = late
        .iter()
        .zip(&receipts)
        .map(|(one, receipt)| to_confirm(&one.copies[0], receipt, Some((one.attempt, &end))))
        .collect();
    let confirmed: Vec<Confirmed> =
        a.0.together(&[], &confirms)
            .expect("a transaction")
            .confirmed
            .into_iter()
            .map(|one| one.expect("an outcome"))
            .collect();
    let late = Confirmed::Superseded { by: uid(11) };
    assert_eq!(confirmed, [Confirmed::Recorded, late, Confirmed::Recorded, Confirmed::Recorded]);
    let ended = mails.map(|mail| {
        let id =
            String::from_utf8(mail.identity().message_id.clone().expect("an id")).expect("text");
        a.trace_one(&id).attempts.iter().filter(|one| one.outcome.is_some()).count()
    });
    assert_eq!(ended, [1, 0, 1, 1], "an end is on record only with the receipt");
}

pub fn records_and_receipts_go_in_one_call(rig: &dyn Rig) {
    let (mut a, mut b) = (Session::of(rig), Session::of(rig));
    let [first, second] = ["first", "second"].map(|name| a.record(&mail(name), &[inbox()]));
    let all = [
        one(mail("third"), &[inbox(), sent()]),
        one(mail("nobody's"), &[]),
        one(mail("first"), &[inbox()]),
    ];
    let (receipts, end) = ([1, 2].map(uid), delivered());
    assert_eq!(a.confirm(&claimed(&second.copies[0]), &uid(9)), Confirmed::Recorded);
    let lost = claimed(&second.copies[0]);
    let confirms = [
        to_confirm(&first.copies[0], &receipts[0], Some((first.attempt, &end))),
        ToConfirm {
            claim: lost,
            receipt: &receipts[1],
            facts: CopyFacts::default(),
            end: Some((second.attempt, &end)),
        },
    ];
    let made =
        b.0.together(&all.iter().map(to_record).collect::<Vec<_>>(), &confirms)
            .expect("a transaction");
    let recorded: Vec<Recorded> =
        made.recorded.into_iter().map(|one| one.expect("recorded")).collect();
    let [third, none, again] = &recorded[..] else { panic!("{recorded:?}") };
    assert!(third.is_new && none.is_new && none.copies.is_empty());
    assert!(
        third.copies.iter().all(|state| matches!(state, CopyState::Claimed(_)))
            && third.copies.len() == 2
    );
    assert_eq!(
        (again.is_new, &again.copies[..]),
        (false, &[CopyState::Busy][..]),
        "recorded before the receipt"
    );
    let confirmed: Vec<Confirmed> =
        made.confirmed.into_iter().map(|one| one.expect("an outcome")).collect();
    assert_eq!(confirmed, [Confirmed::Recorded, Confirmed::Superseded { by: uid(9) }]);
    assert_eq!(a.record(&mail("first"), &[inbox()]).copies, [CopyState::Placed(uid(1))]);
    assert_eq!(a.record(&mail("second"), &[inbox()]).copies, [CopyState::Placed(uid(9))]);
    let ends = |session: &mut Session, name: &str| {
        let trace = session.trace_one(&format!("{name}@example.org"));
        trace.attempts.iter().filter(|one| one.outcome.is_some()).count()
    };
    assert_eq!((ends(&mut a, "first"), ends(&mut a, "second")), (1, 0));
}
