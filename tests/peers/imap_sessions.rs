//! How the IMAP store's sessions are shared, and what a server that hangs, drips or floods costs.

use std::io::Write;
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use crate::imap_script::{
    CAPABILITIES, LETTER, ScriptedServer, World, copy_of, deadline, deadline_of_a_test, inbox,
    is_not_stored, letter, soon, uid,
};
use onedrop::connections::Connections;
use onedrop::deadline::Deadline;
use onedrop::deliver::{self, DeliveryRequest, Means, Policy};
use onedrop::envelope::Envelope;
use onedrop::ledger::memory::MemoryLedger;
use onedrop::outcome::{Outcome, OverQuota, UnknownAccount};
use onedrop::store::imap::Tls;
use onedrop::store::{
    Access, Copy, FoundCopy, HandedCopy, LookedBack, Naming, Need, Proof, Slot, Store, StoreError,
};

/// Reserves a slot for a letter and calls `with` on it, if there is one.
fn reserve<T>(
    world: &World,
    (need, bytes): (Need, &[u8]),
    with: impl FnOnce(Option<&mut (dyn Slot + '_)>) -> T,
) -> T {
    let (letter, inbox, deadline) = (letter(bytes), inbox(), deadline());
    let mut slot =
        world.store.reserve(&inbox, copy_of(&letter), need, &deadline).expect("a slot or none");
    with(slot.as_deref_mut())
}

const LOOK: (Need, &[u8]) = (Need::Look, LETTER);
const EARLY: (Need, &[u8]) = (Need::Early, LETTER);

#[test]
fn a_slot_to_look_has_its_session_before_and_gives_it_back_with_the_append() {
    let world = World::new(|listener| {
        let mut server = ScriptedServer::logged_in(&listener, CAPABILITIES);
        server.answer("EXAMINE \"INBOX\"", "NO [NONEXISTENT] none");
        server.answer_append(1, "OK [APPENDUID 7 42] done");
        server.expect("LOGOUT");
    });
    reserve(&world, LOOK, |slot| {
        let slot = slot.expect("a slot");
        assert_eq!(world.store.count(), (1, 0));
        assert_eq!(slot.look(soon()).expect("a look"), None);
        assert_eq!(world.store.count(), (1, 0));
        assert_eq!(slot.append().expect("a receipt"), uid(42));
        assert_eq!(world.store.count(), (0, 1));
    });
    world.store.retire();
    assert_eq!(world.store.count(), (0, 0));
    world.end();
}

#[test]
fn more_than_so_many_sessions_of_an_account_are_waited_for_and_no_longer_than_last_bytes_may_go() {
    let world = World::new(|listener| {
        let servers = [(); 2].map(|()| ScriptedServer::logged_in(&listener, CAPABILITIES));
        for mut server in servers {
            server.expect("LOGOUT");
        }
    });
    let late = Deadline::new(Duration::from_millis(600), Duration::from_millis(500));
    reserve(&world, LOOK, |_| {
        reserve(&world, LOOK, |_| {
            let (letter, inbox) = (letter(LETTER), inbox());
            let waited = world.store.reserve(&inbox, copy_of(&letter), Need::Look, &late);
            let error = waited.map(drop).expect_err("two are the most");
            let all = "all 2 sessions of account=doug (pool.per_account)";
            assert!(is_not_stored(&error) && error.to_string().contains(all), "{error}");
            assert!(!late.left().is_zero());
        });
    });
    world.store.close_idle();
    assert_eq!(world.store.count(), (0, 2), "not for long enough");
    world.end();
}

#[test]
fn one_append_to_a_mailbox_begins_early_and_no_second() {
    let world = World::new(|listener| {
        let [mut used, mut unused] =
            [(); 2].map(|()| ScriptedServer::logged_in(&listener, CAPABILITIES));
        used.append(1);
        used.expect_end();
        unused.expect("LOGOUT");
    });
    reserve(&world, LOOK, |_| reserve(&world, LOOK, |_| ()));
    reserve(&world, EARLY, |slot| {
        assert!(slot.is_some() && world.store.count() == (1, 1));
        assert!(!reserve(&world, EARLY, |slot| slot.is_some()));
    });
    world.end();
}

/// By this a delivery knows what an earlier try may have left half done.
#[test]
fn a_look_says_which_try_wrote_what_it_found() {
    let world = World::new(|_| ());
    let (letter, inbox, deadline) = (letter(LETTER), inbox(), deadline());
    for epoch in [None, Some(1), Some(7)] {
        let found = FoundCopy {
            receipt: uid(42),
            naming: Naming::Alone,
            has_our_date: true,
            marked_deleted: false,
            is_wrapped: false,
            proof: Proof::Equal,
            handed: Some(HandedCopy { mailbox: "INBOX".to_owned(), epoch }),
        };
        // What a look back has found is not looked for again.
        let looked = LookedBack { found: Some(found), ..LookedBack::default() };
        let copy = Copy { looks_back: true, looked: Some(&looked), ..copy_of(&letter) };
        let slot = world.store.reserve(&inbox, copy, Need::Write, &deadline).expect("a store");
        let mut slot = slot.expect("a slot");
        slot.look(deadline.end()).expect("a look");
        assert_eq!(slot.found_try(), epoch);
    }
    world.end();
}

/// Delivers a letter to doug.
fn deliver_letter(world: &World, ledger: &MemoryLedger, keeps_sessions: bool) -> Outcome {
    let (letter, inbox, deadline) = (letter(LETTER), inbox(), deadline_of_a_test());
    let envelope = Envelope { recipients: vec!["doug@x".to_owned()], ..Envelope::default() };
    let job = DeliveryRequest {
        message: &letter,
        envelope: &envelope,
        own: &[Some(inbox.clone())],
        destinations: &[inbox],
        heads: &[],
        host: "mx1",
        started: deadline.now(),
        oldest: None,
        one_ending: true,
    };
    let policy = Policy {
        lease: Duration::from_secs(90),
        wait: Duration::from_millis(5),
        keep_raw: false,
        sent_after: Duration::ZERO,
        over_quota: OverQuota::Defer,
        unknown_account: UnknownAccount::Defer,
        begins_early: false,
        keeps_sessions,
        side_by_side: 1,
    };
    let means = Means {
        policy: &policy,
        ledger,
        store: &world.store,
        deadline: &deadline,
        watch: &(),
        look_backs: &(),
    };
    deliver::deliver(&job, means).remove(0).outcome
}

/// The server may allow the account no more, and the other process may need one.
#[test]
fn a_delivery_that_waits_closes_idle_sessions_unless_its_process_keeps_them() {
    for keeps_sessions in [false, true] {
        let world = World::new(|listener| {
            let mut first = ScriptedServer::logged_in(&listener, CAPABILITIES);
            first.line();
            first.hang_up();
            let mut idle = ScriptedServer::logged_in(&listener, CAPABILITIES);
            idle.expect("LOGOUT");
        });
        let ledger = MemoryLedger::default();
        // It leaves the copy in doubt, and leased.
        let ended = deliver_letter(&world, &ledger, keeps_sessions);
        assert!(ended.text().contains("in doubt"), "{ended:?}");
        reserve(&world, LOOK, |_| ());
        assert_eq!(world.store.count(), (0, 1));
        let ended = deliver_letter(&world, &ledger, keeps_sessions);
        assert!(ended.text().contains("another delivery of this message holds"), "{ended:?}");
        assert_eq!(world.store.count(), (0, usize::from(keeps_sessions)));
        world.end();
    }
}

/// The text of an error that a call's own time has ended, as nothing else does.
const IN_TIME: &str = "no answer in time";
const TOO_MUCH: &str = "more than it should";

const SHORT: Duration = Duration::from_millis(300);
/// Where something else is to come first, however busy the machine is.
const LONG: Duration = Duration::from_secs(60);

/// Appends against a server that has read the last bytes when it does `then`: the copy must be in
/// doubt, for this reason.
fn leaves_doubt(
    reason: &str,
    deadline: &Deadline,
    then: impl FnOnce(&mut ScriptedServer) + Send + 'static,
) {
    let world = World::new(|listener| {
        let mut server = ScriptedServer::logged_in(&listener, CAPABILITIES);
        server.append(1);
        server.expect_bytes(b"\r\n");
        then(&mut server);
    });
    let error = world.append(deadline).expect_err("no answer");
    assert!(
        matches!(error, StoreError::InDoubt(_)) && error.to_string().ends_with(reason),
        "{error}"
    );
    world.end();
}

/// Checks, for `time`, against a server that does `then` with a new connection; the check must
/// fail for this reason.
fn fails(
    reason: &str,
    tls: Tls,
    time: Duration,
    then: impl FnOnce(&mut ScriptedServer) + Send + 'static,
) {
    let world = World::with(
        |listener| then(&mut ScriptedServer::accept(&listener)),
        |settings| settings.tls = tls,
    );
    let error = world.store.check("doug", Instant::now() + time).expect_err("no session");
    assert!(is_not_stored(&error) && error.to_string().ends_with(reason), "{tls:?}: {error}");
    world.end();
}

/// Says `text` byte by byte until the client goes away.
fn drip(server: &mut ScriptedServer, text: &str) {
    for byte in text.bytes().cycle() {
        if server.stream.write_all(&[byte]).is_err() {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn flood(server: &mut ScriptedServer, text: &str) {
    while server.stream.write_all(text.as_bytes()).is_ok() {}
}

#[test]
fn a_silent_server_is_given_up_in_time() {
    leaves_doubt(IN_TIME, &deadline(), ScriptedServer::expect_end);
    for tls in [Tls::None, Tls::StartTls] {
        fails(IN_TIME, tls, SHORT, ScriptedServer::expect_end);
    }
    // What it hears is TLS's.
    fails(IN_TIME, Tls::Implicit, SHORT, |server| drop(server.rest()));
}

#[test]
fn a_drip_does_not_stretch_the_deadline() {
    leaves_doubt(IN_TIME, &deadline(), |server| drip(server, "* OK patience\r\n"));
    // A TLS record of 16 KB, a byte at a time.
    fails(IN_TIME, Tls::Implicit, SHORT, |server| {
        server.say(b"\x16\x03\x03\x40\x00");
        drip(server, "x");
    });
}

#[test]
fn a_flood_is_cut_off() {
    let patient = deadline_of_a_test();
    for text in
        ["x".repeat(64 * 1024), "* OK x\r\n".repeat(1024), "* 1 FETCH {9999999999}\r\n".to_owned()]
    {
        leaves_doubt(TOO_MUCH, &patient, move |server| flood(server, &text));
    }
    fails(TOO_MUCH, Tls::None, LONG, |server| flood(server, &"x".repeat(4096)));
}

#[test]
fn what_hangs_before_the_last_bytes_leaves_the_time_for_an_answer() {
    let greets_nobody = |listener: TcpListener| ScriptedServer::accept(&listener).expect_end();
    let says_no_plus = |listener: TcpListener| {
        let mut server = ScriptedServer::logged_in(&listener, "IMAP4rev1 SASL-IR");
        server.line();
        server.expect_end();
    };
    for script in [greets_nobody as fn(TcpListener), says_no_plus as fn(TcpListener)] {
        let world = World::new(script);
        let deadline = Deadline::new(Duration::from_secs(60), Duration::from_millis(58_500));
        let error = world.append(&deadline).expect_err("no answer");
        assert!(is_not_stored(&error), "{error}");
        assert!(deadline.left() > Duration::from_secs(30), "only {:?} left", deadline.left());
        world.end();
    }
}

#[test]
fn a_login_in_the_background_is_not_waited_for_beyond_the_deadline() {
    let world = World::new(|listener| ScriptedServer::accept(&listener).expect_end());
    world.store.prepare("doug", soon());
    let until = Instant::now() + Duration::from_millis(100);
    let error = world.store.check("doug", until).expect_err("no session");
    assert!(is_not_stored(&error) && error.to_string().ends_with("not logged in in time"));
    assert!(!world.script.is_finished(), "the login itself goes on");
    world.end();
}
