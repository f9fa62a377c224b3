//! Clocks: the ledger's counts, and steps of it cost no copy and make none twice. In a file it is
//! that of the boot, which no step moves.

use super::*;

pub fn a_callers_time_counts_only_where_the_ledgers_clock_says_so_too(rig: &dyn Rig) {
    let host = Host::of(rig);
    let hour = Duration::from_secs(3600);
    for name in ["close", "behind", "ahead"] {
        // The ledger's clock, which need not be ours.
        let clock = host.record(&mail(&format!("clock-{name}")), &[inbox()]).recorded_at;
        let at = match name {
            "close" => clock - Duration::from_secs(1),
            "behind" => clock - hour,
            _ => clock + hour,
        };
        let mail = mail(name);
        let (identity, facts) = (mail.identity(), mail.facts());
        let entry = Entry { at: Some(at), ..entry(identity, &facts) };
        let recorded = host.record_entry(&entry, &attempt("mx1"), &[inbox()], LEASE).recorded_at;
        // A caller's own time is kept, since its files are already called after it; another's
        // clock is not believed. On a busy machine a second may have become more than two.
        let is_the_callers = name == "close" && recorded == at;
        let is_the_ledgers =
            recorded.duration_since(clock).is_ok_and(|later| later < Duration::from_secs(60));
        let may_be_either = name != "close" || recorded > clock;
        assert!(
            is_the_callers || is_the_ledgers && may_be_either,
            "{name}: {recorded:?}, {clock:?}"
        );
    }
}

pub fn a_clock_that_steps_never_makes_a_live_lease_free_without_a_doubt(rig: &dyn Rig) {
    // A day for clocks to be set back in.
    rig.step_clock(86_400);
    let (a, b) = (Host::of(rig), Host::of(rig));
    for (step_secs, late_is_first) in
        [-7200, -3600, -60, -1, 1, 60, 3600, 7200].into_iter().zip([true, false].repeat(4))
    {
        let mail = mail(&format!("step{step_secs}"));
        let late = a.claim(&mail, &inbox());
        rig.step_clock(step_secs);
        let receipts = match b.claim_state(&mail, &inbox()) {
            CopyState::Busy => {
                assert_eq!(a.confirm(&late, &uid(1)), Confirmed::Recorded);
                [uid(1), uid(1)]
            }
            CopyState::Claimed(claim) => {
                assert!(rig.steps_move_leases(), "{step_secs} s");
                assert!(
                    claim.in_doubt && claim.epoch == 2,
                    "{step_secs} s: {claim:?}: it looks before it writes"
                );
                let (first, second) = if late_is_first { (&late, &claim) } else { (&claim, &late) };
                assert_eq!(a.confirm(first, &uid(1)), Confirmed::Recorded, "{step_secs} s");
                assert_eq!(
                    b.confirm(second, &uid(2)),
                    Confirmed::Superseded { by: uid(1) },
                    "{step_secs} s"
                );
                [uid(1), uid(2)]
            }
            placed => panic!("{placed:?}"),
        };
        assert_eq!(
            b.claim_state(&mail, &inbox()),
            CopyState::Placed(receipts[0].clone()),
            "{step_secs} s"
        );
        rig.step_clock(-step_secs);
    }
}

pub fn a_lease_ends_though_the_clock_was_set_back(rig: &dyn Rig) {
    rig.step_clock(86_400);
    let (a, b) = (Host::of(rig), Host::of(rig));
    let late = a.claim(&mail("back"), &inbox());
    rig.step_clock(-3600);
    // However the ledger takes that: with time it comes free, and is looked for.
    let lease = LEASE.lease.as_secs() as i64;
    rig.pass(if rig.steps_move_leases() { 3600 + 2 * lease } else { lease + 1 });
    let claim = b.claim(&mail("back"), &inbox());
    assert_eq!((claim.copy, claim.in_doubt), (late.copy, true));
}

pub fn a_host_whose_clock_differs_by_an_hour_is_not_believed(rig: &dyn Rig) {
    let host = Host::of(rig);
    let by_ledger = host.record(&mail("by the ledger"), &[]).recorded_at;
    for (n, differs) in [-3600i64, -5, 0, 5, 3600].into_iter().enumerate() {
        let mail = mail(&format!("host{n}"));
        let facts = mail.facts();
        let by = Duration::from_secs(differs.unsigned_abs());
        let at = Some(if differs > 0 { by_ledger + by } else { by_ledger - by });
        let identity = mail.identity();
        let entry = Entry { at, ..entry(identity, &facts) };
        let recorded = host.record_entry(&entry, &attempt("mx1"), &[inbox()], LEASE);
        let off =
            recorded.recorded_at.max(by_ledger).duration_since(recorded.recorded_at.min(by_ledger));
        assert!(off.expect("a time") < Duration::from_secs(60), "{differs} s: {recorded:?}");
        // Nor does its lease end sooner or later for that.
        assert_eq!(Host::of(rig).claim_state(&mail, &inbox()), CopyState::Busy, "{differs} s");
    }
}

pub fn a_servers_clock_is_told_and_a_file_has_none(rig: &dyn Rig) {
    let host = Host::of(rig);
    let clock = || host.0.clock(soon()).expect("an answer");
    let recorded = host.record(&mail("now"), &[]).recorded_at;
    match clock() {
        Some(now) => {
            let since = now.duration_since(recorded - Duration::from_secs(1));
            assert!(since.is_ok_and(|since| since < Duration::from_secs(60)), "{now:?}");
            assert!(clock() >= Some(now));
        }
        None => assert!(!rig.steps_move_leases()),
    }
}

/// The lease's length is the owner's, whatever others are configured with.
pub fn another_lease_time_ends_no_lease_sooner_or_later(rig: &dyn Rig) {
    let (a, b) = (Host::of(rig), Host::of(rig));
    let terms = |secs| LeaseTerms { lease: Duration::from_secs(secs), join: false, due: false };
    for (ours, theirs) in [(300, 90), (600, 2), (90, 300), (2000, 20)] {
        let mail = mail(&format!("lease{ours}"));
        let recorded = a.try_record(&mail, &[inbox()], terms(ours)).expect("record");
        let late = claimed(&recorded.copies[0]);
        rig.pass(ours as i64 - 30);
        let theirs = terms(theirs);
        let again = b.try_record(&mail, &[inbox()], theirs).expect("record");
        assert_eq!(again.copies, [CopyState::Busy], "{ours} s");
        let claim = || b.claim_again(recorded.message, &[inbox()], &attempt("mx2"), theirs);
        assert_eq!(claim(), [CopyState::Busy], "{ours} s");
        rig.pass(31);
        let claim = claimed(&claim()[0]);
        assert_eq!((claim.copy, claim.epoch, claim.in_doubt), (late.copy, 2, true), "{ours} s");
    }
}

#[test]
fn after_a_restart_a_lease_lasts_its_own_length_from_the_boot_on() {
    let rig = SqliteRig::new();
    let host = Host::of(&rig);
    let (mail, lease) = (mail("restart"), LEASE.lease.as_secs_f64());
    let late = host.claim(&mail, &inbox());
    // Whenever that is, and whatever the wall clock says then.
    rig.step_clock(-86_400);
    rig.clocks().boot("second", 5.0);
    let leased = || {
        let shown = host.trace_one("restart@example.org").copies.remove(0);
        (host.copies(&ALL).remove(0).standing, shown.state, shown.leased_until.is_some())
    };
    assert_eq!(leased(), (Standing::Leased, "leased".to_owned(), true));
    rig.clocks().boot("second", lease - 20.0);
    assert_eq!(host.claim_state(&mail, &inbox()), CopyState::Busy);
    rig.clocks().boot("second", lease + 1.0);
    let in_doubt = Standing::InDoubt { lease_left_over: true };
    assert_eq!(leased(), (in_doubt, "in doubt".to_owned(), true));
    let claim = host.claim(&mail, &inbox());
    assert_eq!((claim.copy, claim.epoch, claim.in_doubt), (late.copy, 2, true));
    // The new lease is of the boot in which it began.
    rig.clocks().boot("second", 2.0 * lease - 20.0);
    assert_eq!(host.claim_state(&mail, &inbox()), CopyState::Busy);
    rig.clocks().boot("second", 2.0 * lease + 20.0);
    assert_eq!(host.claim(&mail, &inbox()).epoch, 3);
}

#[test]
fn after_a_restart_a_maildirs_copy_is_free_at_once_and_looked_for() {
    let rig = SqliteRig::new();
    let (host, mail) = (Host::of(&rig), mail("joined"));
    let late = claimed(&host.try_record(&mail, &[inbox()], JOIN).expect("record").copies[0]);
    rig.clocks().boot("second", 5.0);
    let claim = claimed(&host.try_record(&mail, &[inbox()], JOIN).expect("record").copies[0]);
    assert_eq!((claim.copy, claim.in_doubt), (late.copy, true));
    assert_eq!(host.turn(&claim, &copy_key(&mail, &inbox())), OURS_IN_DOUBT);
    // Joined, it lasts from now on.
    rig.clocks().boot("second", LEASE.lease.as_secs_f64() - 1.0);
    assert_eq!(host.claim_state(&mail, &inbox()), CopyState::Busy);
}

/// In a container some processes may see another boot id than the others.
#[test]
fn a_lease_of_another_boot_that_may_be_of_this_one_lasts_as_if_it_were() {
    let rig = SqliteRig::new();
    let (host, mail) = (Host::of(&rig), mail("container"));
    host.claim(&mail, &inbox());
    let up = rig.clocks().boot_id(Some("as a container sees it")).expect("a time").secs;
    assert_eq!(host.claim_state(&mail, &inbox()), CopyState::Busy);
    rig.clocks().boot("as a container sees it", up + LEASE.lease.as_secs_f64() + 1.0);
    assert!(host.claim(&mail, &inbox()).in_doubt);
}

#[test]
fn without_a_boots_id_nothing_is_leased_and_receipts_are_still_recorded() {
    let rig = SqliteRig::new();
    let host = Host::of(&rig);
    let (known, unknown) = (mail("known"), mail("unknown"));
    let claim = host.claim(&known, &inbox());
    let message = host.copies(&ALL)[0].message_key();
    rig.clocks().boot_id(None).expect_err("unread");
    let is_told = |error: Option<LedgerError>| {
        assert!(matches!(error, Some(LedgerError::Clock(_))), "{error:?}")
    };
    is_told(host.try_record(&unknown, &[inbox()], LEASE).err());
    let wanted = [inbox()];
    is_told(host.0.claim(&message, &wanted, &attempt("mx2"), LEASE, soon()).err());
    is_told(host.0.copies_to_verify(&ALL, "doug", None, 10, soon()).err());
    is_told(host.0.clock(soon()).err());
    is_told(host.0.trace(&TraceFilter::of("known@example.org"), 10, soon()).err());
    assert_eq!(host.confirm(&claim, &uid(1)), Confirmed::Recorded);
    rig.clocks().boot_id(Some("first")).expect("a time");
    assert!(host.record(&unknown, &[inbox()]).is_new, "nothing of it was on record");
    assert_eq!(host.record(&known, &[inbox()]).copies, [CopyState::Placed(uid(1))]);
}
