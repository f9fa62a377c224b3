//! What is on record, to be shown.

use super::*;

pub fn a_message_is_found_by_what_an_administrator_knows(rig: &dyn Rig) {
    let host = Host::of(rig);
    let by = Attempt {
        recipient: "Doug+List@Mail.Axial.NET".to_owned(),
        queue_id: "Q1".to_owned(),
        ..attempt("mx1")
    };
    host.try_record_by(&mail("found"), &by, &[Destination::inbox("dougs-account")], LEASE)
        .expect("record");
    let other =
        Attempt { recipient: "zoe@x".to_owned(), queue_id: String::new(), ..attempt("mx1") };
    host.try_record_by(&mail("other"), &other, &[Destination::inbox("zoe")], LEASE)
        .expect("record");
    let knows = [
        "<found@example.org>",
        "found@example.org",
        "Q1",
        "doug+list@mail.axial.net",
        "DOUG+LIST@MAIL.AXIAL.NET",
        "Doug+List@Mail.Axial.NET",
        "dougs-account",
    ];
    for wanted in knows {
        assert_eq!(host.trace_one(wanted).subject.as_deref(), Some("found"), "{wanted}");
    }
    for wanted in
        ["", "<>", "FOUND@example.org", "q", "%", "_oug", "doug+list", "mail.axial.net", "*"]
    {
        assert!(host.trace(wanted).is_empty(), "{wanted:?}");
    }
    assert_eq!(host.trace_one("ZOE@X").subject.as_deref(), Some("other"));
    // Several attempts at one message are one message.
    host.try_record_by(&mail("found"), &by, &[], LEASE).expect("record");
    assert_eq!(host.trace_one("Q1").attempts.len(), 2);
}

pub fn a_trace_is_newest_first_and_limited(rig: &dyn Rig) {
    let host = Host::of(rig);
    for n in 0..5 {
        host.record(&mail(&format!("n{n}")), &[inbox()]);
    }
    let subjects = |limit, host: &Host| -> Vec<_> {
        let traces = host.traces(&TraceFilter::of("4Xyz12"), limit);
        traces.into_iter().filter_map(|trace| trace.subject).collect()
    };
    assert_eq!(subjects(10, &host), ["n4", "n3", "n2", "n1", "n0"]);
    assert_eq!(subjects(2, &host), ["n4", "n3"]);
    assert!(subjects(0, &host).is_empty());
}

pub fn of_very_many_attempts_a_trace_has_the_newest_and_says_how_many_are_left(rig: &dyn Rig) {
    let host = Host::of(rig);
    let end = AttemptEnd { outcome: "tempfail", ..delivered() };
    let note = |name: &str, pids: std::ops::Range<u32>| {
        let ended: Vec<_> =
            pids.map(|pid| (Attempt { pid, ..attempt("mx1") }, end.clone())).collect();
        ended.chunks(500).for_each(|ended| host.note(&mail(name), ended));
    };
    let pids = |trace: &Trace| {
        let mut pids: Vec<i64> = trace.attempts.iter().map(|one| one.pid).collect();
        pids.sort_unstable();
        (pids.first().copied(), pids.last().copied(), pids.len(), trace.attempts_left)
    };
    // Some recorded no message, and belong to it all the same.
    note("many", 1000..2100);
    let trace = host.trace_one("many@example.org");
    assert_eq!(pids(&trace), (Some(1100), Some(2099), 1000, 100));
    host.record(&mail("many"), &[inbox()]);
    note("many", 3000..4100);
    let trace = host.trace_one("many@example.org");
    assert_eq!(pids(&trace), (Some(1100), Some(4099), 2000, 201));
    assert_eq!(trace.copies.len(), 1);
    // Each message has its own.
    host.record(&mail("few"), &[inbox()]);
    note("few", 5000..5002);
    let traces = host.trace("doug@mail.axial.net");
    let of = |name: &str| {
        let found = traces.iter().find(|one| one.subject.as_deref() == Some(name));
        pids(found.expect("a trace"))
    };
    assert_eq!((of("few").2, of("few").3), (3, 0));
    assert_eq!((of("many").2, of("many").3), (2000, 201));
}

pub fn a_trace_can_be_filtered(rig: &dyn Rig) {
    let host = Host::of(rig);
    let end = |outcome| AttemptEnd { outcome, ..delivered() };
    let lost = Attempt {
        sender: "zoe@lost.example".to_owned(),
        queue_id: "Q2".to_owned(),
        ..attempt("mx2")
    };
    for (name, by) in [("unrecorded", &lost), ("done", &lost)] {
        host.note(&mail(name), &[(by.clone(), end("tempfail"))]);
    }
    let record = |name: &str, from: &str, sender: &str, outcomes: &[&'static str]| {
        let mail = mail(name);
        let address = |role, address: &str| AddressFact {
            role,
            name: None,
            address: Some(address.to_owned()),
        };
        let facts = Facts {
            subject: Some(format!("About {name}")),
            addresses: vec![address("from", from), address("to", "lisa@gmail.com")],
            ..Facts::default()
        };
        let by = Attempt { sender: sender.to_owned(), queue_id: "Q1".to_owned(), ..attempt("mx1") };
        let entry = entry(mail.identity(), &facts);
        let mut at = None;
        for outcome in outcomes {
            let recorded = host.record_entry(&entry, &by, &[inbox()], LEASE);
            at.get_or_insert(recorded.recorded_at);
            let claim = claimed(&recorded.copies[0]);
            match *outcome {
                "delivered" => {
                    assert_eq!(host.confirm(&claim, &uid(1)), Confirmed::Recorded)
                }
                _ => host.release(&[claim]),
            }
            host.finish(&mail, recorded.attempt, &end(outcome));
        }
        at.expect("a record")
    };
    record("done", "Zoe@Example.org", "bounces@list.example", &["delivered"]);
    record("undone", "doug@mail.axial.net", "", &["tempfail"]);
    let at = record(
        "done later",
        "%@mail.axial.net",
        "zoe@example.org",
        &["tempfail", "permfail", "delivered"],
    );
    let all = TraceFilter::default();
    let second = Duration::from_secs(1);
    let cases: [(TraceFilter<'_>, &[&str]); 14] = [
        (all, &["done later", "undone", "done", "(none)"]),
        (
            TraceFilter { since: Some(at - 60 * second), ..all },
            &["done later", "undone", "done", "(none)"],
        ),
        (TraceFilter { since: Some(at + 3600 * second), ..all }, &[]),
        (TraceFilter { since: Some(at + 3600 * second), ..TraceFilter::of("Q1") }, &[]),
        (TraceFilter { failed: true, ..all }, &["undone", "(none)"]),
        (TraceFilter { failed: true, ..TraceFilter::of("Q1") }, &["undone"]),
        (TraceFilter { subject: Some("LATER"), ..all }, &["done later"]),
        (
            TraceFilter { subject: Some("about "), ..TraceFilter::of("Q1") },
            &["done later", "undone", "done"],
        ),
        (TraceFilter { subject: Some("%"), ..all }, &[]),
        (TraceFilter { sender: Some("zoe@EXAMPLE"), ..all }, &["done later", "done"]),
        (TraceFilter { sender: Some("lisa@gmail.com"), ..all }, &[]),
        (TraceFilter { sender: Some("zoe@lost"), ..all }, &["(none)"]),
        (TraceFilter { sender: Some("%"), ..all }, &["done later"]),
        (
            TraceFilter {
                sender: Some("zoe"),
                subject: Some("done"),
                failed: true,
                ..TraceFilter::of("Q1")
            },
            &[],
        ),
    ];
    for (filter, expected) in cases {
        let traces = host.traces(&filter, 10);
        let mut subjects: Vec<_> =
            traces.iter().map(|trace| trace.subject.as_deref().unwrap_or("(none)")).collect();
        // When it was begun counts for one that is not recorded.
        subjects.sort_by_key(|subject| *subject == "(none)");
        let subjects: Vec<&str> = subjects
            .into_iter()
            .map(|subject| subject.strip_prefix("About ").unwrap_or(subject))
            .collect();
        assert_eq!(subjects, expected, "{filter:?}");
        if let Some(done) =
            traces.iter().find(|trace| trace.subject.as_deref() == Some("About done"))
        {
            assert_eq!(
                done.attempts.len(),
                2,
                "{filter:?}: those that recorded nothing are shown with it"
            );
        }
    }
    let two = host.traces(&all, 2);
    assert_eq!(two.len(), 2);
}

/// A crash of the ledger may lose the receipt of an attempt after Postfix heard of its end. Postfix
/// does not try again, and `settle` finds the copy.
pub fn what_was_found_without_an_end_of_its_attempt_has_not_failed(rig: &dyn Rig) {
    let host = Host::of(rig);
    for (name, found_by_look) in [("found", true), ("written", false)] {
        let id = format!("{name}@example.org");
        let failed = TraceFilter { failed: true, ..TraceFilter::of(&id) };
        let claim = host.claim(&mail(name), &inbox());
        assert_eq!(host.traces(&failed, 10).len(), 1, "it is not placed");
        let facts = CopyFacts { found_by_look, ..CopyFacts::default() };
        assert_eq!(host.confirm_with(&claim, &uid(1), facts, None), Confirmed::Recorded);
        assert_eq!(host.traces(&failed, 10).is_empty(), found_by_look, "{name}");
    }
}

pub fn a_trace_shows_the_state_of_a_copy(rig: &dyn Rig) {
    let host = Host::of(rig);
    let mail = mail("stands");
    let state = |host: &Host| host.trace_one("stands@example.org").copies.remove(0);
    let claim = host.claim(&mail, &inbox());
    let leased = state(&host);
    assert_eq!(
        (leased.state.as_str(), leased.epoch, leased.owner.as_str()),
        ("leased", 1, "mx1:42")
    );
    assert_eq!(
        (leased.account.as_str(), leased.mailbox.as_str(), leased.receipt),
        ("doug", "INBOX", None)
    );
    host.release(&[claim]);
    assert_eq!(state(&host).state, "free");
    let claim = host.claim(&mail, &inbox());
    rig.expire_leases();
    assert_eq!(state(&host).state, "in doubt");
    assert_eq!(host.confirm(&claim, &uid(77)), Confirmed::Recorded);
    let placed = state(&host);
    assert_eq!(
        (placed.state.as_str(), placed.epoch, placed.receipt.as_deref()),
        ("placed", 2, Some("uid=77"))
    );
}
