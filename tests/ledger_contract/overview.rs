//! What `onedrop status` asks.

use onedrop::ledger::{AttemptCount, OpenCopies, RecentAttempts};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn recent(host: &Host) -> RecentAttempts {
    host.0.recent_attempts(HOUR, soon()).expect("an answer")
}

fn open(host: &Host, kept_for: Duration) -> OpenCopies {
    host.0.open_copies(48 * HOUR, kept_for, soon()).expect("an answer")
}

fn count(
    outcome: Option<&str>,
    reason: Option<&str>,
    status: Option<&str>,
    n: u64,
) -> AttemptCount {
    let [outcome, reason, status] = [outcome, reason, status].map(|one| one.map(str::to_owned));
    let millis = outcome.is_some().then_some(7);
    AttemptCount { outcome, reason, status, millis, count: n }
}

pub fn attempts_of_late_are_counted_by_their_ends(rig: &dyn Rig) {
    let host = Host::of(rig);
    let none = recent(&host);
    assert_eq!((none.counts, none.hosts, none.reach), (vec![], vec![], HOUR), "an empty ledger");
    let full = AttemptEnd {
        outcome: "tempfail",
        reason: Some(Reason::OverQuota),
        status: "4.2.2".to_owned(),
        ..delivered()
    };
    // Some of long ago, and what is between two times has no number near the middle.
    for name in ["old", "older"] {
        host.record(&mail(name), &[inbox()]);
    }
    host.note(&mail("old"), &[(attempt("mx3"), full.clone())]);
    rig.pass(7200);
    assert_eq!(recent(&host).counts, []);
    // One whose end is in the copy's row, one that says more, three that failed, one without an
    // end.
    for (name, at) in [("plain", 1), ("found", 2)] {
        let recorded = host.record(&mail(name), &[inbox()]);
        let text = match name {
            "plain" => format!("stored {} {}", inbox(), uid(at)),
            name => format!("{name} {} {}", inbox(), uid(at)),
        };
        let end = AttemptEnd { text, ..delivered() };
        let (claim, receipt) = (claimed(&recorded.copies[0]), uid(at));
        let end = Some((recorded.attempt, &end));
        let confirmed = ToConfirm {
            claim,
            receipt: &receipt,
            facts: CopyFacts::default(),
            end,
            may_be_lost: false,
        };
        assert_eq!(host.0.confirm(&confirmed, soon()).expect(name), Confirmed::Recorded);
    }
    let failed = [attempt("mx1"), attempt("mx2"), attempt("mx2")].map(|one| (one, full.clone()));
    host.note(&mail("full"), &failed);
    host.record(&mail("open"), &[inbox()]);
    let mut told = recent(&host);
    told.counts.sort_by_key(|one| one.count);
    told.counts.sort_by_key(|one| one.outcome.clone());
    assert_eq!(
        told.counts,
        [
            count(None, None, None, 1),
            count(Some("delivered"), Some("delivered"), Some("2.0.0"), 2),
            count(Some("tempfail"), Some("over_quota"), Some("4.2.2"), 3),
        ]
    );
    assert_eq!(told.hosts, [("mx1".to_owned(), 4), ("mx2".to_owned(), 2)]);
    assert_eq!(told.reach, HOUR);
}

pub fn open_copies_are_counted_by_what_left_them(rig: &dyn Rig) {
    let host = Host::of(rig);
    assert_eq!(open(&host, HOUR), OpenCopies { reach: 48 * HOUR, ..OpenCopies::default() });
    // One that is placed, one that is released without a doubt, one whose lease lives.
    host.confirm(&host.claim(&mail("placed"), &inbox()), &uid(1));
    host.release(&[host.claim(&mail("free"), &inbox())]);
    host.claim(&mail("left over"), &inbox());
    assert_eq!(open(&host, HOUR).oldest, None);
    rig.expire_leases();
    let left = open(&host, HOUR);
    assert_eq!((left.in_doubt, left.leases_over), (0, 1));
    assert!(left.oldest.is_some_and(|ago| ago < HOUR), "{left:?}");
    // Leased again and given back, it keeps the doubt that it had.
    host.release(&[host.claim(&mail("left over"), &inbox())]);
    let given_back = open(&host, HOUR);
    assert_eq!((given_back.in_doubt, given_back.leases_over), (1, 0));
    // However old: it was leased twice. Another that was leased once is left to what verify said.
    host.claim(&mail("once"), &inbox());
    rig.expire_leases();
    assert_eq!(open(&host, HOUR).leases_over, 1);
    rig.pass(72 * 3600);
    let old = open(&host, HOUR);
    assert_eq!((old.in_doubt, old.leases_over), (1, 0));
    assert!(old.oldest.is_some_and(|ago| ago > 70 * HOUR), "{old:?}");
}

pub fn a_copy_that_only_looks_back_is_no_doubt_anywhere(rig: &dyn Rig) {
    let host = Host::of(rig);
    rig.remember_since(SystemTime::now());
    let old = |name: &str| host.record_aged(&mail(name), None, &[inbox()]);
    let unsettled = || -> Vec<i64> {
        let copies = host.0.unsettled_copies(0, 9, soon()).expect("copies");
        copies.iter().map(|copy| copy.message).collect()
    };
    let standing = |message: i64| {
        let copies = host.copies(&ALL);
        copies.into_iter().find(|copy| copy.message == message).expect("a copy").standing
    };
    let state =
        |name: &str| host.trace_one(&format!("<{name}@example.org>")).copies.remove(0).state;
    // One that is placed, and one whose attempts end before they write anything.
    let placed = claimed(&old("placed").copies[0]);
    assert!(placed.in_doubt && placed.looks_back, "it looks before it writes");
    host.confirm(&placed, &uid(1));
    assert_eq!(unsettled(), [0i64; 0]);
    for _ in 0..3 {
        let failed = old("failed");
        let claim = claimed(&failed.copies[0]);
        assert!(claim.in_doubt && claim.looks_back, "{claim:?}");
        host.release(&[claim]);
        assert_eq!(open(&host, HOUR).in_doubt, 0);
        assert_eq!(standing(failed.message.number), Standing::Free);
        assert_eq!(state("failed"), "free");
    }
    // One that may have been written stays in doubt, whatever its next attempts come to.
    let killed = old("killed").message;
    rig.expire_leases();
    assert_eq!(open(&host, HOUR).leases_over, 1);
    assert_eq!(standing(killed.number), Standing::InDoubt { lease_left_over: true });
    for _ in 0..2 {
        host.release(&[claimed(&old("killed").copies[0])]);
        assert_eq!(open(&host, HOUR).in_doubt, 1);
        assert_eq!(standing(killed.number), Standing::InDoubt { lease_left_over: false });
        assert_eq!(state("killed"), "in doubt");
    }
    assert!(unsettled().contains(&killed.number));
    let late = claimed(&old("killed").copies[0]);
    host.confirm(&late, &uid(2));
    assert_eq!(open(&host, HOUR).in_doubt, 0);
    assert!(unsettled().contains(&killed.number), "two may have written it");
}

pub fn a_sent_that_is_kept_for_long_is_counted(rig: &dyn Rig) {
    let host = Host::of(rig);
    let recorded = host.record(&mail("kept"), &[sent()]);
    assert!(host.0.keep(&recorded.message, b"bytes", "full", soon()).expect("kept"));
    assert_eq!(open(&host, HOUR).kept, 0);
    rig.pass(7200);
    assert_eq!(open(&host, HOUR).kept, 1);
    assert_eq!(open(&host, 3 * HOUR).kept, 0);
    host.confirm(&host.claim(&mail("kept"), &sent()), &uid(1));
    assert_eq!(open(&host, HOUR).kept, 0);
}

pub fn a_host_is_on_record_with_its_program(rig: &dyn Rig) {
    let host = Host::of(rig);
    let hosts = |back| host.0.hosts(back, soon()).expect("an answer");
    assert_eq!(hosts(HOUR), []);
    for (name, version) in [("mx2", "1.0"), ("mx1", "1.0"), ("mx2", "1.1")] {
        host.0.note_host(name, version, soon()).expect("on record");
    }
    let told: Vec<_> = hosts(HOUR)
        .into_iter()
        .map(|one| (one.host, one.program_version, one.schema_version, one.seen_ago < HOUR))
        .collect();
    let row =
        |name: &str, version: &str| (name.to_owned(), version.to_owned(), SCHEMA_VERSION, true);
    assert_eq!(told, [row("mx1", "1.0"), row("mx2", "1.1")]);
    // By the one clock that both have here.
    let offsets = hosts(HOUR).into_iter().filter_map(|one| one.clock_offset_ms);
    assert!(offsets.into_iter().all(|ms| ms.abs() < 60_000), "{:?}", hosts(HOUR));
    rig.pass(7200);
    assert_eq!(hosts(HOUR), []);
    host.0.note_host("mx1", "1.1", soon()).expect("on record");
    assert_eq!(hosts(HOUR).len(), 1);
    assert!(hosts(3 * HOUR)[1].seen_ago >= 2 * HOUR, "{:?}", hosts(3 * HOUR));
}

pub fn a_host_that_is_gone_for_long_is_forgotten(rig: &dyn Rig) {
    const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);
    let host = Host::of(rig);
    let forget = |dry_run| host.0.forget_hosts(WEEK, dry_run, soon()).expect("an answer");
    let names = || {
        let rows = host.0.hosts(10 * WEEK, soon()).expect("an answer");
        rows.into_iter().map(|row| row.host).collect::<Vec<_>>()
    };
    assert_eq!(forget(false), 0, "an empty ledger");
    for name in ["mx1", "mx2", "mx3"] {
        host.0.note_host(name, "1.0", soon()).expect("on record");
    }
    rig.pass(6 * 24 * 3600);
    host.0.note_host("mx2", "1.0", soon()).expect("on record");
    assert_eq!(forget(false), 0, "all were seen within a week");
    rig.pass(2 * 24 * 3600);
    assert_eq!(forget(true), 2);
    assert_eq!(names(), ["mx1", "mx2", "mx3"], "only counted");
    assert_eq!((forget(false), names()), (2, vec!["mx2".to_owned()]));
    assert_eq!(forget(false), 0);
}
