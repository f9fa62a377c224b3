//! Attempts: every try is on record with its end.

use onedrop::ledger::ForgetWhat;

use super::*;

pub fn an_attempts_end_is_on_record(rig: &dyn Rig) {
    let host = Host::of(rig);
    let recorded = host.record(&mail("ended"), &[inbox()]);
    let open = host.trace_one("ended@example.org").attempts.remove(0);
    assert_eq!((open.outcome, open.status, open.text, open.duration_ms), (None, None, None, None));
    assert_eq!((open.sender.as_str(), open.queue_id.as_str()), ("lisa@gmail.com", "4Xyz12"));
    assert_eq!(
        (open.recipient.as_str(), open.host.as_str(), open.pid),
        ("doug@mail.axial.net", "mx1", 42)
    );
    for text in hostile_texts() {
        let end = AttemptEnd { text, ..failed(Reason::StoreDown) };
        host.finish(&mail("ended"), recorded.attempt, &end);
    }
    let ended = host.trace_one("ended@example.org").attempts.remove(0);
    assert_eq!(
        (ended.outcome.as_deref(), ended.status.as_deref(), ended.reason.as_deref()),
        (Some("tempfail"), Some("4.3.0"), Some("store_down"))
    );
    assert_eq!((ended.duration_ms, ended.pid), (Some(7), 42));
}

/// Of whichever row says how an attempt ended: its own, or the copy's.
pub fn each_attempts_reason_is_on_record(rig: &dyn Rig) {
    let host = Host::of(rig);
    let text = |at: u32| format!("stored {} {}", inbox(), uid(at));
    let kept = format!("{}; no copy yet in {}, kept for later: full", text(2), sent());
    for (name, at, reason, text) in [
        ("plain", 1, Reason::Delivered, text(1)),
        ("kept", 2, Reason::Kept, kept),
        ("found", 3, Reason::Delivered, format!("found {} {}", inbox(), uid(3))),
        ("both", 4, Reason::Delivered, format!("stored {} {}; {}", sent(), uid(5), text(4))),
    ] {
        let recorded = host.record(&mail(name), &[inbox()]);
        let end = AttemptEnd { reason: Some(reason), text: text.clone(), ..delivered() };
        let (claim, receipt, facts) = (claimed(&recorded.copies[0]), uid(at), CopyFacts::default());
        let ended = |attempt: AttemptKey| {
            let end = Some((attempt, &end));
            let confirmed = ToConfirm { claim, receipt: &receipt, facts, end, may_be_lost: false };
            assert_eq!(host.0.confirm(&confirmed, soon()).expect(name), Confirmed::Recorded);
            for shown in host.trace_one(&format!("{name}@example.org")).attempts {
                assert_eq!(shown.reason.as_deref(), Some(reason.word()), "{name}");
                assert_eq!(shown.text.as_deref(), Some(text.as_str()), "{name}");
            }
        };
        ended(recorded.attempt);
        // The copy's row has another one's end by then.
        ended(host.record(&mail(name), &[inbox()]).attempt);
    }
    // Of what was handed over, the mailbox is not known.
    let receipt = Receipt::handed("q1");
    let recorded = host.record(&mail("handed"), &[inbox()]);
    let text = format!("handed over account=doug {receipt}");
    let end = AttemptEnd { text: text.clone(), ..delivered() };
    let claim = claimed(&recorded.copies[0]);
    let end = Some((recorded.attempt, &end));
    assert_eq!(host.confirm_with(&claim, &receipt, CopyFacts::default(), end), Confirmed::Recorded);
    let shown = host.trace_one("handed@example.org").attempts.remove(0);
    assert_eq!((shown.text, shown.duration_ms), (Some(text), Some(7)));
    let others: Vec<_> =
        Reason::ALL.iter().map(|reason| (attempt("mx1"), failed(*reason))).collect();
    host.note(&mail("all"), &others);
    let shown = host.trace_one("all@example.org").attempts;
    let mut shown: Vec<_> = shown.iter().filter_map(|one| one.reason.as_deref()).collect();
    let mut words: Vec<_> = Reason::ALL.iter().map(|reason| reason.word()).collect();
    shown.sort_unstable();
    words.sort_unstable();
    assert_eq!(shown, words);
    let open = host.record(&mail("open"), &[inbox()]);
    assert_eq!(host.trace_one("open@example.org").attempts[0].reason, None, "{open:?}");
}

/// An end that is none of a copy's.
fn failed(reason: Reason) -> AttemptEnd {
    let (outcome, status) = ("tempfail", "4.3.0".to_owned());
    AttemptEnd { outcome, status, reason: Some(reason), ..delivered() }
}

pub fn an_attempt_that_recorded_nothing_is_on_record(rig: &dyn Rig) {
    let host = Host::of(rig);
    let end = AttemptEnd { outcome: "tempfail", status: "4.3.0".to_owned(), ..delivered() };
    host.note(&mail("unrecorded"), &[(attempt("mx1"), end)]);
    for wanted in
        ["unrecorded@example.org", "<unrecorded@example.org>", "4Xyz12", "doug@mail.axial.net"]
    {
        let trace = host.trace_one(wanted);
        assert!(trace.copies.is_empty());
        assert_eq!(trace.attempts.len(), 1, "{wanted}");
        assert_eq!(trace.attempts[0].outcome.as_deref(), Some("tempfail"), "{wanted}");
    }
    assert!(host.trace("other@example.org").is_empty());
    assert!(host.record(&mail("unrecorded"), &[inbox()]).is_new, "it is no record of the message");
    let attempts: usize =
        host.trace("unrecorded@example.org").iter().map(|trace| trace.attempts.len()).sum();
    assert_eq!(attempts, 2);
}

pub fn each_recipient_of_one_run_has_an_attempt_of_its_own(rig: &dyn Rig) {
    let host = Host::of(rig);
    host.record(&mail("crowd"), &[inbox()]);
    let to = |name: &str| Attempt { recipient: format!("{name}@mail.axial.net"), ..attempt("mx1") };
    let full = AttemptEnd { outcome: "tempfail", status: "4.2.2".to_owned(), ..delivered() };
    let ended = [(to("Anna"), delivered()), (to("bert"), full)];
    host.note(&mail("crowd"), &ended);
    for (name, outcome) in [("anna", "delivered"), ("bert", "tempfail")] {
        let trace = host.trace_one(&format!("{name}@mail.axial.net"));
        let own = trace
            .attempts
            .iter()
            .find(|attempt| attempt.recipient.to_lowercase().starts_with(name))
            .expect("an attempt");
        assert_eq!((own.outcome.as_deref(), trace.attempts.len()), (Some(outcome), 3));
    }
    host.note(&mail("crowd"), &[]);
}

pub fn an_attempt_that_lost_the_race_belongs_to_the_message(rig: &dyn Rig) {
    let host = Host::of(rig);
    host.record(&mail("raced"), &[inbox()]);
    let late = Attempt { queue_id: "LATE".to_owned(), pid: 43, ..attempt("mx2") };
    host.note(&mail("raced"), &[(late.clone(), delivered())]);
    assert_eq!(host.trace_one("LATE").attempts.len(), 2);
    assert_eq!(host.trace_one("raced@example.org").copies.len(), 1);
}

pub fn the_attempt_on_record_and_the_others_end_in_one_call(rig: &dyn Rig) {
    let host = Host::of(rig);
    let mail = mail("both");
    let recorded = host.record(&mail, &[inbox()]);
    let duration = Duration::from_secs(3600);
    let status = "4.2.2".to_owned();
    let full = AttemptEnd { outcome: "tempfail", status, duration, ..delivered() };
    let bert = Attempt { recipient: "bert@mail.axial.net".to_owned(), ..attempt("mx1") };
    let (end, others) = (delivered(), [(bert, full)]);
    let by = attempt("mx1");
    let own = Some((recorded.attempt, &by, &end));
    host.0.finish(mail.identity(), own, &others, soon()).expect("finish");
    let trace = host.trace_one("both@example.org");
    let mut ends: Vec<_> = trace
        .attempts
        .iter()
        .map(|one| (one.recipient.as_str(), one.outcome.as_deref(), one.status.as_deref()))
        .collect();
    ends.sort_unstable();
    assert_eq!(
        ends,
        [
            ("bert@mail.axial.net", Some("tempfail"), Some("4.2.2")),
            ("doug@mail.axial.net", Some("delivered"), Some("2.0.0")),
        ]
    );
    // What took an hour began an hour ago. In memory no times are shown.
    let began = |name: &str| {
        let mut attempts = trace.attempts.iter();
        let one = attempts.find(|one| one.recipient.starts_with(name)).expect("an attempt");
        one.started_at.clone()
    };
    assert!(began("doug").is_empty() || began("bert") < began("doug"), "{trace:?}");
}

pub fn an_attempt_that_is_gone_keeps_no_other_from_its_end(rig: &dyn Rig) {
    // As when its message was taken out while it was delivered.
    let (host, mail, end) = (Host::of(rig), mail("gone"), delivered());
    let others = [(attempt("mx1"), delivered())];
    let own = Some((AttemptKey::Row(i64::MAX), &others[0].0, &end));
    host.0.finish(mail.identity(), own, &others, soon()).expect("finish");
    let trace = host.trace_one("gone@example.org");
    assert_eq!(trace.attempts.len(), 1);
    assert_eq!(trace.attempts[0].outcome.as_deref(), Some("delivered"));
}

pub fn an_address_is_known_by_the_copies_that_its_attempts_delivered(rig: &dyn Rig) {
    let host = Host::of(rig);
    let doug = "doug@mail.axial.net";
    let reached = |address: &str| host.account_reached(&[address]);
    let claim = claimed(&host.record(&mail("first"), &[inbox()]).copies[0]);
    assert_eq!(reached(doug), None, "leased");
    // The end of the attempt says no more than that it stored the copy.
    let recorded = host.record(&mail("first"), &[inbox()]);
    let text = format!("stored {} {}", inbox(), uid(7));
    let end = AttemptEnd { text, ..delivered() };
    let facts = CopyFacts::default();
    let (receipt, end) = (uid(7), Some((recorded.attempt, &end)));
    let confirmed = ToConfirm { claim, receipt: &receipt, facts, end, may_be_lost: false };
    assert_eq!(host.0.confirm(&confirmed, soon()).expect("a receipt"), Confirmed::Recorded);
    for (address, account) in [
        (doug, Some("doug")),
        ("DOUG@mail.Axial.net", Some("doug")),
        ("oug@mail.axial.net", None),
        ("doug@", None),
        ("", None),
        ("d\0", None),
    ] {
        assert_eq!(reached(address).as_deref(), account, "{address:?}");
    }
    let both = ["ghost@mail.axial.net", doug];
    assert_eq!(host.account_reached(&both).as_deref(), Some("doug"));
    assert_eq!(host.account_reached(&[]), None);
    // Of a message to several, each end names its own copies: not of others', nor of a sender's.
    let (zoe, yan) = (Destination::inbox("zoe"), Destination::inbox("yan"));
    let of_all = [zoe.clone(), yan.clone(), sent()];
    for (copy, number) in host.record(&mail("crowd"), &of_all).copies.iter().zip(1..) {
        assert_eq!(host.confirm(&claimed(copy), &uid(number)), Confirmed::Recorded);
    }
    let to = |name: &str| Attempt { recipient: format!("{name}@x.example"), ..attempt("mx1") };
    let ended = |outcome, text: String| AttemptEnd { outcome, text, ..delivered() };
    let author = format!("stored {} {}", sent(), uid(3));
    host.note(
        &mail("crowd"),
        &[
            (to("Info"), ended("delivered", format!("already there {zoe} {}; {author}", uid(1)))),
            (to("late"), ended("tempfail", format!("already there {zoe} {}", uid(1)))),
            (to("author"), ended("delivered", author)),
            (to("other"), ended("delivered", format!("stored {} {}", inbox(), uid(9)))),
        ],
    );
    for (name, account) in
        [("info", Some("zoe")), ("late", None), ("author", None), ("other", None)]
    {
        assert_eq!(reached(&format!("{name}@x.example")).as_deref(), account, "{name}");
    }
    host.forget(ForgetWhat::Account("zoe"), false);
    assert_eq!(reached("info@x.example"), None, "forgotten");
    assert_eq!(reached(doug).as_deref(), Some("doug"));
    host.forget(ForgetWhat::Message("first@example.org"), false);
    assert_eq!(reached(doug), None, "not placed any more");
}
