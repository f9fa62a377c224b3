//! What a handle does for its callers: connections that are kept, shared and opened again, and the
//! ledger's clock.

use super::*;

/// One of each kind of call, on what [`Prepared`] has made ready.
pub type Call = Box<dyn Fn(&dyn AnyLedger, Instant) -> Result<(), LedgerError> + Send + Sync>;

/// Rows for one of each kind of call.
pub struct Prepared {
    pub mail: Message,
    pub by: Attempt,
    pub recorded: Recorded,
    pub own: Claim,
    pub shared: Claim,
    pub placed: CopyOnRecord,
}

impl Prepared {
    pub fn by(host: &Host, name: &str) -> Arc<Prepared> {
        let (mail, by) = (mail(name), attempt("mx1"));
        let zoe = Destination::inbox("zoe");
        let recorded =
            host.try_record_by(&mail, &by, &[inbox(), sent(), zoe], LEASE).expect("record");
        let [own, shared, of_zoe] = [0, 1, 2].map(|at: usize| claimed(&recorded.copies[at]));
        assert_eq!(host.confirm(&of_zoe, &uid(9)), Confirmed::Recorded);
        let mut copies = host.copies(&ALL).into_iter();
        let placed = copies.find(|copy| copy.copy == of_zoe.copy).expect("the placed copy");
        Arc::new(Prepared { mail, by, recorded, own, shared, placed })
    }
}

/// All kinds of calls but `time`, which asks no server.
pub fn calls(prepared: &Arc<Prepared>) -> Vec<(&'static str, Call)> {
    let way = || Way {
        server: "imap.example.net:993".to_owned(),
        login_user: "mda".to_owned(),
        form: "sasl".to_owned(),
    };
    let call = |work: fn(&Prepared, &dyn AnyLedger, Instant) -> Result<(), LedgerError>| -> Call {
        let prepared = Arc::clone(prepared);
        Box::new(move |ledger, until| work(&prepared, ledger, until))
    };
    let way_call = |work: fn(&Way, &dyn AnyLedger, Instant) -> Result<(), LedgerError>| -> Call {
        let way = way();
        Box::new(move |ledger, until| work(&way, ledger, until))
    };
    vec![
        (
            "record",
            call(|own, ledger, until| {
                let facts = own.mail.facts();
                let entry = entry(own.mail.identity(), &facts);
                ledger.record(&entry, &own.by, &[inbox()], LEASE, until).map(drop)
            }),
        ),
        (
            "claim",
            call(|own, ledger, until| {
                ledger.claim(&own.recorded.message, &[inbox()], &own.by, LEASE, until).map(drop)
            }),
        ),
        (
            "take_turn",
            call(|own, ledger, until| {
                let key = copy_key(&own.mail, &inbox());
                ledger.take_turn(&own.own, &key, until).map(drop)
            }),
        ),
        (
            "confirm",
            call(|own, ledger, until| {
                let facts = CopyFacts::default();
                let one = ToConfirm {
                    claim: own.own,
                    receipt: &uid(1),
                    facts,
                    end: None,
                    may_be_lost: false,
                };
                ledger.confirm(&one, until).map(drop)
            }),
        ),
        ("release", call(|own, ledger, until| ledger.release(&[own.shared], until))),
        (
            "keep",
            call(|own, ledger, until| {
                ledger.keep(&own.recorded.message, b"bytes", "why", until).map(drop)
            }),
        ),
        ("kept", call(|own, ledger, until| ledger.kept(&own.recorded.message, until).map(drop))),
        (
            "kept_bytes",
            call(|own, ledger, until| {
                ledger.kept_bytes(own.recorded.message.number, until).map(drop)
            }),
        ),
        (
            "finish",
            call(|own, ledger, until| {
                let end = delivered();
                let recorded = Some((own.recorded.attempt, &own.by, &end));
                ledger.finish(own.mail.identity(), recorded, &[], until)
            }),
        ),
        (
            "finish of others",
            call(|own, ledger, until| {
                let others = [(attempt("mx2"), delivered())];
                ledger.finish(own.mail.identity(), None, &others, until)
            }),
        ),
        ("trace", call(|_, ledger, until| ledger.trace(&TraceFilter::of("x"), 1, until).map(drop))),
        ("jobs", call(|_, ledger, until| ledger.jobs(until).map(drop))),
        ("job_runs", call(|_, ledger, until| ledger.job_runs("x", 1, until).map(drop))),
        ("last_try", call(|_, ledger, until| ledger.last_try("x", UNIX_EPOCH, until).map(drop))),
        ("remove_job", call(|_, ledger, until| ledger.remove_job("x", 1, until).map(drop))),
        (
            "prune_job_runs",
            call(|_, ledger, until| ledger.prune_job_runs(LEASE.lease, 1, until).map(drop)),
        ),
        (
            "copies_to_verify",
            call(|_, ledger, until| ledger.copies_to_verify(&ALL, "a", None, 9, until).map(drop)),
        ),
        (
            "accounts_to_verify",
            call(|_, ledger, until| ledger.accounts_to_verify(&ALL, None, 9, until).map(drop)),
        ),
        ("settle", call(|own, ledger, until| ledger.settle(&own.placed, &uid(9), until).map(drop))),
        ("latest_copies", call(|_, ledger, until| ledger.latest_copies(1, until).map(drop))),
        ("has_placed_copy", call(|_, ledger, until| ledger.has_placed_copy("a", until).map(drop))),
        (
            "account_reached",
            call(|_, ledger, until| ledger.account_reached(&["a@b"], until).map(drop)),
        ),
        ("is_proven", way_call(|way, ledger, until| ledger.is_proven(way, until).map(drop))),
        ("note_proof", way_call(|way, ledger, until| ledger.note_proof(way, true, "mx1", until))),
        ("schema_version", call(|_, ledger, until| ledger.schema_version(until).map(drop))),
        ("clock", call(|_, ledger, until| ledger.clock(until).map(drop))),
        ("migrate", call(|_, ledger, until| ledger.migrate(until).map(drop))),
        (
            "prove_exclusion",
            call(|_, ledger, until| {
                let proof = ledger.prove_exclusion("calls", until);
                proof.map_err(LedgerError::Unavailable)
            }),
        ),
    ]
}

pub fn a_session_that_died_while_it_was_kept_costs_no_call_an_error(rig: &dyn Rig) {
    let host = Host::of(rig);
    let prepared = Prepared::by(&host, "died");
    for (name, call) in calls(&prepared) {
        if !rig.lose_sessions() {
            return;
        }
        let result = call(&*host.0, soon());
        assert!(result.is_ok(), "{name}: {result:?}");
    }
    assert_eq!(host.record(&prepared.mail, &[inbox()]).copies, [CopyState::Placed(uid(1))]);
}

pub fn a_connection_is_used_again(rig: &dyn Rig) {
    let Some(ledger) = rig.ledger_with(limits(3)) else { return };
    let host = Host(ledger);
    assert_eq!(host.0.count(), (0, 0), "none is opened before the first call");
    assert!(host.record(&mail("first"), &[inbox()]).is_new);
    assert_eq!(host.0.count(), (0, 1));
    let claim = host.claim(&mail("second"), &inbox());
    assert_eq!(host.0.count(), (0, 1));
    let turn = host.turn(&claim, &copy_key(&mail("second"), &inbox()));
    assert_eq!(host.0.count(), (1, 0), "a turn keeps its own");
    drop(turn);
    assert_eq!(host.0.count(), (0, 1));
}

pub fn a_call_waits_for_a_connection_and_says_when_none_came_free(rig: &dyn Rig) {
    let Some(ledger) = rig.ledger_with(limits(1)) else { return };
    let host = Host(ledger);
    let mail = mail("limit");
    let claim = host.claim(&mail, &inbox());
    let turn = host.turn(&claim, &copy_key(&mail, &inbox()));
    assert_eq!(turn, OURS);
    let began = Instant::now();
    let busy = host.0.has_placed_copy("doug", began + Duration::from_millis(100));
    assert!(began.elapsed() >= Duration::from_millis(100));
    assert!(matches!(busy, Err(LedgerError::Busy(_))), "{busy:?}");
    assert_eq!(
        busy.expect_err("busy").to_string(),
        "in use by other deliveries: all 1 sessions (pool.ledger)"
    );
    let waits = thread::scope(|scope| {
        let waiting = scope.spawn(|| host.record(&message("Message-ID: <w@x>\n\nx\n"), &[]));
        assert_eq!(host.0.count(), (1, 0));
        drop(turn);
        waiting.join().expect("no panic")
    });
    assert!(waits.is_new);
    assert_eq!(host.0.count(), (0, 1));
}

pub fn connections_are_closed_when_nobody_uses_them(rig: &dyn Rig) {
    let Some(ledger) = rig.ledger_with(Limits { idle: Duration::ZERO, ..limits(3) }) else {
        return;
    };
    let host = Host(ledger);
    let claim = host.claim(&mail("idle"), &inbox());
    assert_eq!(host.0.count(), (0, 1));
    host.0.close_idle();
    assert_eq!(host.0.count(), (0, 0));
    let turn = host.turn(&claim, &copy_key(&mail("idle"), &inbox()));
    host.0.retire();
    assert_eq!(host.0.count(), (1, 0), "one in use is left alone");
    assert_eq!(turn.confirm(&claim, &uid(1)), Confirmed::Recorded);
    assert_eq!(host.claim_state(&mail("idle"), &inbox()), CopyState::Placed(uid(1)));
    assert_eq!(host.0.count(), (0, 0), "none is kept any more");
}

pub fn the_ledgers_time_is_known_from_its_first_word_on(rig: &dyn Rig) {
    let is_close = |time: SystemTime, other: SystemTime| {
        let differs = time.max(other).duration_since(time.min(other));
        differs.expect("a difference") <= Duration::from_secs(3)
    };
    rig.step_clock(7200);
    let (a, b) = (Host::of(rig), Host::of(rig));
    let (before, of_host) = (a.0.time(), SystemTime::now());
    let first = a.record(&mail("first"), &[inbox()]).recorded_at;
    assert!(is_close(before, of_host) || is_close(before, first), "{before:?}, {first:?}");
    let time = a.0.time();
    assert!(is_close(time, first), "{time:?}, {first:?}");
    assert_eq!(time.duration_since(UNIX_EPOCH).expect("after 1970").subsec_nanos(), 0);
    // What is dated by it is recorded so.
    let (dated, facts) = (mail("dated"), Facts::default());
    let entry = Entry { at: Some(time), ..entry(dated.identity(), &facts) };
    let recorded_at = a.record_entry(&entry, &attempt("mx1"), &[], LEASE).recorded_at;
    let too_late = recorded_at > time + Duration::from_secs(2);
    assert!(recorded_at == time || too_late, "{recorded_at:?}, {time:?}");
    // The time of a message of before is no word of the clock.
    rig.step_clock(7200);
    assert!(!b.record(&mail("first"), &[inbox()]).is_new);
    let now = Host::of(rig).record(&mail("now"), &[inbox()]).recorded_at;
    let time = b.0.time();
    assert!(is_close(time, now) || is_close(time, SystemTime::now()), "{time:?}, {now:?}");
    // Each handle hears of the step with its next new message.
    for (name, host) in [("by a", &a), ("by b", &b)] {
        host.record(&mail(name), &[inbox()]);
        assert!(is_close(host.0.time(), now), "{name}: {:?}, {now:?}", host.0.time());
    }
}

pub fn threads_share_a_handle(rig: &dyn Rig) {
    const MANY: usize = 20;
    let host = rig.ledger_with(limits(4)).map_or_else(|| Host::of(rig), Host);
    at_once(MANY, |n| {
        let (mail, key) = (mail(&format!("t{n}")), copy_key(&mail(&format!("t{n}")), &inbox()));
        let recorded = host.record(&mail, &[inbox(), sent()]);
        let [own, shared] = [0, 1].map(|at: usize| claimed(&recorded.copies[at]));
        assert!(recorded.is_new);
        if n % 2 == 0 {
            let receipt = uid(n as u32 + 1);
            assert_eq!(host.turn(&own, &key).confirm(&own, &receipt), Confirmed::Recorded);
        } else {
            assert_eq!(host.confirm(&own, &uid(n as u32 + 1)), Confirmed::Recorded);
        }
        assert!(host.keep(recorded.message, mail.own_copy(), &format!("why {n}")));
        host.release(&[shared]);
        host.finish(&mail, recorded.attempt, &delivered());
    });
    assert_eq!(host.0.count().0, 0, "all went back");
    for n in 0..MANY {
        let trace = host.trace_one(&format!("t{n}@example.org"));
        let states: Vec<_> = trace.copies.iter().map(|copy| copy.state.as_str()).collect();
        assert_eq!(states, ["placed", "free"]);
        assert_eq!(trace.copies[0].receipt, Some(uid(n as u32 + 1).to_string()));
        assert_eq!(trace.copies[1].kept, Some(format!("why {n}")));
        assert_eq!(trace.attempts[0].outcome.as_deref(), Some("delivered"));
    }
}
