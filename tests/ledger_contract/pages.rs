//! What the web pages ask: each page of a list goes on where the one before it ended, and a range
//! of numbers is all that is read.

use std::ops::Range;

use onedrop::ledger::{
    AttemptLine, FailureFilter, MessageLine, MessagePart, Numbered, first_since,
};
use onedrop::outcome::Reason;

use super::*;

/// All rows that there may be.
const ALL: Range<i64> = 0..1_000_000;

impl Host {
    fn named(&self, name: &str, before: i64, limit: u32) -> Vec<MessageLine> {
        self.0.messages_named(name, before, limit, soon()).expect("messages")
    }

    fn failures(&self, filter: &FailureFilter<'_>, numbers: &Range<i64>) -> Vec<AttemptLine> {
        self.0.failures(filter, numbers, 50, soon()).expect("attempts")
    }

    /// A message whose copy is placed.
    fn placed(&self, name: &str, number: u32) -> i64 {
        let recorded = self.record(&mail(name), &[inbox()]);
        let claim = claimed(&recorded.copies[0]);
        let end = delivered();
        let confirmed = ToConfirm {
            claim,
            receipt: &uid(number),
            facts: CopyFacts::default(),
            end: Some((recorded.attempt, &end)),
            may_be_lost: false,
        };
        assert_eq!(self.0.confirm(&confirmed, soon()).expect(name), Confirmed::Recorded);
        recorded.message.number
    }
}

fn failed(reason: Reason, text: &str) -> AttemptEnd {
    AttemptEnd {
        outcome: "tempfail",
        status: "4.3.0".to_owned(),
        reason: Some(reason),
        text: text.to_owned(),
        ..delivered()
    }
}

pub fn a_name_leads_to_its_messages_page_by_page(rig: &dyn Rig) {
    let host = Host::of(rig);
    let mut numbers: Vec<i64> =
        (0..7).map(|at| host.placed(&format!("page{at}"), at + 1)).collect();
    numbers.reverse();
    for name in ["doug", "DOUG", "doug@mail.axial.net", "Doug@Mail.axial.net", "4Xyz12"] {
        let (mut seen, mut before) = (Vec::new(), i64::MAX);
        loop {
            let page = host.named(name, before, 3);
            let Some(last) = page.last() else { break };
            assert!(page.len() <= 3 && last.number < before, "{name}: {page:?}");
            before = last.number;
            seen.extend(page.iter().map(|line| line.number));
        }
        assert_eq!(seen, numbers, "{name}");
    }
    for name in ["page3@example.org", "<page3@example.org>"] {
        let line = host.named(name, i64::MAX, 10).remove(0);
        assert_eq!(line.number, numbers[3], "{name}");
        assert_eq!(line.message_id.as_deref(), Some("<page3@example.org>"));
        assert_eq!((line.sender.as_str(), line.is_open), ("lisa@gmail.com", false));
    }
    for name in ["", "oug", "page3", "\0", "%", "'", "4Xyz1"] {
        assert!(host.named(name, i64::MAX, 10).is_empty(), "{name:?}");
    }
    let open = host.record(&mail("open"), &[inbox()]);
    let line = host.named("open@example.org", i64::MAX, 10).remove(0);
    assert_eq!((line.number, line.is_open), (open.message.number, true));
}

pub fn a_part_of_a_sender_or_subject_is_found_within_a_range(rig: &dyn Rig) {
    let host = Host::of(rig);
    let numbers: Vec<i64> = (0..4).map(|at| host.placed(&format!("part{at}"), at + 1)).collect();
    let found = |part: MessagePart<'_>, range: Range<i64>, limit: u32| -> Vec<i64> {
        let lines = host.0.messages_with(part, &range, limit, soon()).expect("messages");
        lines.iter().map(|line| line.number).collect()
    };
    let newest: Vec<i64> = numbers.iter().rev().copied().collect();
    assert_eq!(found(MessagePart::Sender("LISA@gm"), ALL, 50), newest);
    assert_eq!(found(MessagePart::Sender("LISA@gm"), ALL, 2), newest[..2]);
    let middle = numbers[1]..numbers[3];
    assert_eq!(found(MessagePart::Sender("lisa"), middle, 50), [numbers[2], numbers[1]]);
    assert!(found(MessagePart::Sender("nobody"), ALL, 50).is_empty());
    let subject = host.0.story(numbers[2], soon()).expect("a story").and_then(|one| one.subject);
    if let Some(subject) = subject {
        assert!(found(MessagePart::Subject(&subject), ALL, 50).contains(&numbers[2]));
    }
    assert!(found(MessagePart::Subject("\u{1f980} no such"), ALL, 50).is_empty());
}

pub fn a_story_is_of_one_message(rig: &dyn Rig) {
    let host = Host::of(rig);
    let (one, other) = (host.placed("one", 1), host.placed("other", 2));
    let end = failed(Reason::Contended, "busy");
    host.note(&mail("unrecorded"), &[(attempt("mx1"), end)]);
    for (number, id) in [(one, "<one@example.org>"), (other, "<other@example.org>")] {
        let story = host.0.story(number, soon()).expect("an answer").expect("a story");
        assert_eq!((story.message, story.message_id.as_deref()), (number, Some(id)));
        assert_eq!((story.copies.len(), story.attempts.len()), (1, 1), "{story:?}");
        assert_eq!(story.copies[0].state, "placed");
    }
    assert!(host.0.story(other + 1000, soon()).expect("an answer").is_none());
    assert!(host.0.story(-1, soon()).expect("an answer").is_none());
}

pub fn failures_are_newest_first_and_by_reason_and_name(rig: &dyn Rig) {
    let host = Host::of(rig);
    host.placed("well", 1);
    let to = |name: &str| Attempt { recipient: format!("{name}@mail.axial.net"), ..attempt("mx1") };
    let ends = [
        ("Doug", failed(Reason::StoreDown, "down")),
        ("scuba", failed(Reason::Contended, "busy")),
        ("doug", AttemptEnd { reason: None, ..failed(Reason::StoreDown, "old") }),
    ];
    for (name, end) in &ends {
        host.note(&mail("unrecorded"), &[(to(name), end.clone())]);
    }
    let recorded = host.record(&mail("recorded"), &[inbox()]);
    host.finish(&mail("recorded"), recorded.attempt, &failed(Reason::Contended, "late"));
    let texts = |filter: &FailureFilter<'_>| -> Vec<String> {
        host.failures(filter, &ALL).into_iter().map(|line| line.text).collect()
    };
    let any = FailureFilter::default();
    assert_eq!(texts(&any), ["late", "old", "busy", "down"]);
    let reason = |reason| FailureFilter { reason: Some(reason), ..any };
    assert_eq!(texts(&reason("contended")), ["late", "busy"]);
    // What an older program put on record has no word.
    assert_eq!(texts(&reason("4.3.0")), ["old"]);
    assert_eq!(texts(&FailureFilter { unrecorded: true, ..any }), ["old", "busy", "down"]);
    let name = |name| FailureFilter { name: Some(name), ..any };
    assert_eq!(texts(&name("DOUG@mail.axial.net")), ["late", "old", "down"]);
    assert_eq!(texts(&name("4Xyz12")), ["late", "old", "busy", "down"]);
    assert_eq!(texts(&name("unrecorded@example.org")), ["old", "busy", "down"]);
    assert!(texts(&name("nobody")).is_empty());
    let lines = host.failures(&any, &ALL);
    let middle = lines[2].number..lines[0].number;
    assert_eq!(host.failures(&any, &middle), lines[1..3]);
    let last = host.0.last_row(Numbered::Attempt, soon()).expect("an answer").expect("a row").0;
    assert_eq!(lines[0].number, last);
    let from = host.0.row_from(Numbered::Attempt, last, soon()).expect("an answer");
    assert_eq!(from.map(|(number, _)| number), Some(last));
    assert_eq!(host.0.row_from(Numbered::Attempt, last + 1, soon()).expect("an answer"), None);
    assert_eq!(lines[0].message, Some(recorded.message.number));
    assert_eq!((lines[0].host.as_str(), lines[0].pid), ("mx1", 42));
    assert_eq!((lines[1].reason.as_str(), lines[1].duration_ms), ("4.3.0", Some(7)));
}

pub fn attempts_are_counted_by_minute_and_end(rig: &dyn Rig) {
    let host = Host::of(rig);
    for at in 0..3 {
        host.placed(&format!("counted{at}"), at + 1);
    }
    host.record(&mail("open"), &[inbox()]);
    let end = failed(Reason::Contended, "busy");
    for _ in 0..2 {
        host.note(&mail("unrecorded"), &[(attempt("mx1"), end.clone())]);
    }
    let (_, at) = host.0.last_row(Numbered::Attempt, soon()).expect("answer").expect("a row");
    let hour = Duration::from_secs(3600);
    let count = |numbers: Range<i64>, times: Range<SystemTime>| {
        let rows = host.0.activity(&numbers, &times, soon()).expect("rows");
        let mut counts: Vec<(Option<String>, Option<String>, u64)> = Vec::new();
        for row in rows {
            assert!((row.minute * 60 - seconds(at)).abs() < 3600, "{row:?}");
            assert_eq!(row.slowness.is_some(), row.outcome.is_some(), "{row:?}");
            let kind = (row.outcome, row.reason);
            match counts.iter_mut().find(|one| (&one.0, &one.1) == (&kind.0, &kind.1)) {
                Some(known) => known.2 += row.attempts,
                None => counts.push((kind.0, kind.1, row.attempts)),
            }
        }
        counts.sort();
        counts
    };
    let word = |word: &str| Some(word.to_owned());
    let around = at - hour..at + hour;
    assert_eq!(
        count(ALL, around.clone()),
        [(None, None, 1), (word("delivered"), None, 3), (word("tempfail"), word("contended"), 2)]
    );
    assert!(count(ALL, at + hour..at + 2 * hour).is_empty());
    // Where a time's messages begin is found without reading them all.
    let (last, at) = host.0.last_row(Numbered::Message, soon()).expect("answer").expect("a row");
    let first = |time| first_since(&*host.0, time, soon()).expect("a number");
    assert!(first(at) <= last);
    assert_eq!(first(at + hour), last + 1);
}

fn seconds(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).expect("a time").as_secs() as i64
}

pub fn copies_that_want_a_look_are_told_the_oldest_first(rig: &dyn Rig) {
    let host = Host::of(rig);
    let placed = host.placed("placed", 1);
    rig.remember_since(SystemTime::now() - Duration::from_secs(864_000));
    let now = Some(SystemTime::now());
    let mut open = Vec::new();
    for name in ["first", "second", "third"] {
        open.push(host.record_aged(&mail(name), now, &[inbox(), sent()]).message.number);
    }
    let unplaced = |numbers: Range<i64>, limit: u32| -> Vec<i64> {
        let copies = host.0.unplaced_copies(&numbers, limit, soon()).expect("copies");
        copies.iter().map(|copy| copy.message).collect()
    };
    let [a, b, c] = [open[0], open[1], open[2]];
    assert_eq!(unplaced(ALL, 50), [a, a, b, b, c, c]);
    assert_eq!(unplaced(ALL, 3), [a, a, b]);
    assert_eq!(unplaced(b..c, 50), [b, b]);
    assert!(unplaced(placed..placed + 1, 50).is_empty());
    let numbers =
        |copies: &[CopyOnRecord]| -> Vec<i64> { copies.iter().map(|copy| copy.copy).collect() };
    let unsettled = |after: i64, limit: u32| -> Vec<CopyOnRecord> {
        host.0.unsettled_copies(after, limit, soon()).expect("copies")
    };
    assert!(unsettled(0, 50).is_empty());
    rig.expire_leases();
    for name in ["first", "second"] {
        let claim = claimed(&host.record_aged(&mail(name), now, &[inbox()]).copies[0]);
        assert_eq!((claim.epoch, claim.in_doubt), (2, true));
        host.confirm(&claim, &uid(claim.copy as u32));
    }
    let copies = unsettled(0, 50);
    assert_eq!(copies.iter().map(|copy| copy.message).collect::<Vec<_>>(), [a, b]);
    assert!(copies.iter().all(|copy| copy.may_be_double && !copy.settled), "{copies:?}");
    assert_eq!(numbers(&unsettled(copies[0].copy, 50)), numbers(&copies[1..]));
    assert_eq!(numbers(&unsettled(0, 1)), numbers(&copies[..1]));
    let receipt = uid(copies[0].copy as u32);
    assert!(host.settle(&copies[0], &receipt));
    assert_eq!(numbers(&unsettled(0, 50)), numbers(&copies[1..]));
}
