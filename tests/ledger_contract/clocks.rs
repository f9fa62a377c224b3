//! Clocks: the ledger's counts, and steps of it cost no copy and make none twice.

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
    rig.step_clock(3600 + 2 * LEASE.lease.as_secs() as i64);
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
