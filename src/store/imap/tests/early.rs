//! Appends that begin before it is decided whether they are to take effect.

use super::*;

/// A world with an idle session, and `then` with a slot whose append of `LETTER` has begun in it:
/// the server has all of it but the last bytes.
fn begun(
    script: impl FnOnce(TcpListener, Peer, String) + Send + 'static,
    deadline: &Deadline,
    then: impl FnOnce(&mut dyn Slot),
) {
    let world = World::new(move |listener| {
        let mut peer = Peer::accept(&listener);
        peer.log_in(CAPABILITIES);
        peer.answer_append("OK [APPENDUID 7 41] done");
        let tag = peer.append();
        script(listener, peer, tag);
    });
    assert_eq!(world.append(&inbox()).unwrap(), uid(41));
    let letter = Message::new(LETTER.to_vec(), DedupBy::Content);
    let inbox = inbox();
    let slot = world.store.reserve(&inbox, copy_of(&letter), Need::Early, deadline).unwrap();
    then(slot.expect("an idle session").as_mut());
    world.end();
}

/// A new session with an append of its own.
fn afresh(listener: &TcpListener) {
    let mut again = Peer::accept(listener);
    again.log_in(CAPABILITIES);
    again.answer_append("OK [APPENDUID 7 43] done");
}

fn is_begun(store: &ImapStore, letter: &[u8]) -> bool {
    let letter = Message::new(letter.to_vec(), DedupBy::Content);
    let (inbox, deadline) = (inbox(), deadline());
    store.reserve(&inbox, copy_of(&letter), Need::Early, &deadline).unwrap().is_some()
}

#[test]
fn the_append_has_only_its_last_bytes_to_send() {
    let script = |_, mut peer: Peer, tag| {
        peer.last_bytes();
        peer.say(format!("{tag} OK [APPENDUID 7 42] done\r\n"));
        peer.expect("LOGOUT");
    };
    begun(script, &deadline(), |slot| assert_eq!(slot.append().unwrap(), uid(42)));
}

#[test]
fn a_slot_that_is_dropped_says_no_word() {
    let script = |_, mut peer: Peer, _| {
        assert!(peer.rest().is_empty(), "any line would end the command");
    };
    begun(script, &deadline(), |_| {});
}

#[test]
fn nothing_begins_that_would_have_to_wait() {
    let world = World::new(|listener| {
        let mut peer = Peer::accept(&listener);
        peer.log_in(CAPABILITIES);
        for _ in 0..2 {
            peer.answer_append("OK [APPENDUID 7 42] done");
        }
        assert!(peer.rest().starts_with(b"a4 APPEND"), "begun, and given up");
    });
    assert!(!is_begun(&world.store, LETTER), "no session is idle");
    world.append(&inbox()).unwrap();
    assert!(!is_begun(&world.store, &b"x".repeat(100_000)), "it is large");
    let other = world.store.appends.begin(&inbox());
    assert!(!is_begun(&world.store, LETTER), "another append is under way");
    drop(other);
    world.append(&inbox()).unwrap();
    assert!(is_begun(&world.store, LETTER));
    assert!(!is_begun(&world.store, LETTER), "the session of the one before is gone");
    world.end();
}

#[test]
fn a_look_gives_the_begun_append_up_and_takes_a_new_session() {
    let script = |listener: TcpListener, mut peer: Peer, _| {
        assert!(peer.rest().is_empty());
        let mut again = Peer::accept(&listener);
        again.log_in(CAPABILITIES);
        again.answer("EXAMINE \"INBOX\"", "NO [NONEXISTENT] none");
        again.answer_append("OK [APPENDUID 7 43] done");
    };
    begun(script, &deadline(), |slot| {
        assert_eq!(slot.look(soon()).unwrap(), None);
        assert_eq!(slot.append().unwrap(), uid(43));
    });
}

#[test]
fn a_session_that_ends_before_the_last_bytes_costs_nothing() {
    let (ended, ending) = channel();
    let script = move |listener, mut peer: Peer, _| {
        peer.say("* BYE idle for too long\r\n");
        peer.hang_up();
        ended.send(()).unwrap();
        afresh(&listener);
    };
    begun(script, &deadline(), |slot| {
        ending.recv().unwrap();
        assert_eq!(slot.append().unwrap(), uid(43));
    });
}

#[test]
fn too_late_it_does_not_take_effect() {
    let late = overslept();
    begun(
        |_, mut peer: Peer, _| assert!(peer.rest().is_empty()),
        &late,
        |slot| {
            let error = slot.append().unwrap_err();
            assert!(is_not_stored(&error) && !late.is_answering(), "{error}");
        },
    );
}

#[test]
fn an_answer_before_the_last_bytes_is_doubt() {
    let (said, saying) = channel();
    let script = move |_, mut peer: Peer, tag| {
        peer.say(format!("{tag} OK [APPENDUID 7 42] already\r\n"));
        said.send(()).unwrap();
        peer.rest();
    };
    begun(script, &deadline(), |slot| {
        saying.recv().unwrap();
        assert!(matches!(slot.append(), Err(StoreError::InDoubt(_))));
    });
}
