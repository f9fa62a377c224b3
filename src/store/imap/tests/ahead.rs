//! Appends that are begun before it is decided whether they are to take effect.

use super::*;

/// A world with a session at hand, in which `letter` was begun; the peer has all of it but the last
/// bytes.
fn begun(script: impl FnOnce(TcpListener, Peer, String) + Send + 'static) -> (World, Message) {
    let mut world = World::new(move |listener| {
        let mut peer = Peer::accept(&listener);
        peer.log_in(CAPABILITIES);
        let tag = peer.append();
        peer.last_bytes();
        peer.say(format!("{tag} OK [APPENDUID 7 41] done\r\n"));
        let tag = peer.append();
        script(listener, peer, tag);
    });
    let letter = Message::new(LETTER.to_vec(), DedupBy::Content);
    // Without a session at hand nothing is begun.
    world.store.begin_append(&inbox(), &copy_of(&letter), &deadline());
    assert_eq!(world.append(&inbox()).unwrap(), Receipt::Uid { validity: 7, uid: 41 });
    world.store.begin_append(&inbox(), &copy_of(&letter), &deadline());
    (world, letter)
}

/// A new session with an append of its own.
fn afresh(listener: &TcpListener) {
    let mut again = Peer::accept(listener);
    again.log_in(CAPABILITIES);
    let tag = again.append();
    again.last_bytes();
    again.say(format!("{tag} OK [APPENDUID 7 43] done\r\n"));
}

#[test]
fn the_same_append_has_only_its_last_bytes_to_send() {
    let (mut world, _) = begun(|_, mut peer, tag| {
        peer.last_bytes();
        peer.say(format!("{tag} OK [APPENDUID 7 42] done\r\n"));
    });
    assert_eq!(world.append(&inbox()).unwrap(), Receipt::Uid { validity: 7, uid: 42 });
    world.end();
}

#[test]
fn what_is_not_appended_is_given_up_without_a_word() {
    let (world, _) =
        begun(|_, mut peer, _| assert!(peer.rest().is_empty(), "any line would end the command"));
    world.end();
}

#[test]
fn another_append_or_a_look_gives_it_up_and_takes_a_new_session() {
    let (mut world, letter) = begun(|listener, mut peer, _| {
        assert!(peer.rest().is_empty());
        let mut again = Peer::accept(&listener);
        again.log_in(CAPABILITIES);
        again.answer("APPEND \"INBOX\" \"21-Nov-2026 00:00:01 +0000\" {40+}", "NO not now");
        again.rest();
    });
    // The ledger's clock has said otherwise.
    let copy = Copy { recorded_at: recorded_at() + Duration::from_secs(1), ..copy_of(&letter) };
    let error = world.store.append(&inbox(), &copy, &deadline()).unwrap_err();
    assert!(is_not_stored(&error), "{error}");
    world.end();

    let (mut world, letter) = begun(|listener, mut peer, _| {
        assert!(peer.rest().is_empty());
        let mut again = Peer::accept(&listener);
        again.log_in(CAPABILITIES);
        again.answer("EXAMINE \"INBOX\"", "NO [NONEXISTENT] none");
        again.rest();
    });
    assert_eq!(world.store.look(&inbox(), &copy_of(&letter), soon()).unwrap(), None);
    world.end();
}

#[test]
fn a_session_that_ends_before_the_last_bytes_costs_nothing() {
    let (ended, ending) = channel();
    let (mut world, _) = begun(move |listener, mut peer, _| {
        peer.say("* BYE idle for too long\r\n");
        peer.hang_up();
        ended.send(()).unwrap();
        afresh(&listener);
    });
    ending.recv().unwrap();
    assert_eq!(world.append(&inbox()).unwrap(), Receipt::Uid { validity: 7, uid: 43 });
    world.end();
}

#[test]
fn too_late_it_does_not_take_effect() {
    let (mut world, _) = begun(|_, mut peer, _| assert!(peer.rest().is_empty()));
    let late = Deadline::overslept(Duration::from_millis(1500), Duration::from_millis(500));
    let error = world.append_within(&inbox(), &late).unwrap_err();
    assert!(is_not_stored(&error) && !late.is_answering(), "{error}");
    world.end();
}

#[test]
fn an_answer_before_the_last_bytes_is_doubt() {
    let (said, saying) = channel();
    let (mut world, _) = begun(move |_, mut peer, tag| {
        peer.say(format!("{tag} OK [APPENDUID 7 42] already\r\n"));
        said.send(()).unwrap();
        peer.rest();
    });
    saying.recv().unwrap();
    assert!(matches!(world.append(&inbox()), Err(StoreError::InDoubt(_))));
    world.end();
}
