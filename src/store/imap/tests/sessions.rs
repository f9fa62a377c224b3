//! How sessions are kept, shared, waited for and replaced.

use super::*;

/// Logs one client in and answers its appends by the UIDs that follow.
fn appends(listener: &TcpListener, uids: impl IntoIterator<Item = u32>) -> Peer {
    let mut peer = Peer::accept(listener);
    peer.log_in(CAPABILITIES);
    for uid in uids {
        peer.answer_append(&format!("OK [APPENDUID 7 {uid}] done"));
    }
    peer
}

fn reserve_look<T>(world: &World, deadline: &Deadline, with: impl FnOnce(&mut dyn Slot) -> T) -> T {
    let (letter, inbox) = (Message::new(LETTER.to_vec(), DedupBy::Content), inbox());
    let slot = world.store.reserve(&inbox, copy_of(&letter), Need::Look, deadline).unwrap();
    with(slot.unwrap().as_mut())
}

#[test]
fn a_call_is_made_again_once_where_its_kept_session_has_ended() {
    for ends_again in [false, true] {
        let world = World::new(move |listener| {
            let mut peer = appends(&listener, [42]);
            peer.expect("EXAMINE \"INBOX\"");
            peer.hang_up();
            let mut again = appends(&listener, []);
            if ends_again {
                again.expect("EXAMINE \"INBOX\"");
                return again.hang_up();
            }
            again.answer("EXAMINE \"INBOX\"", "NO [NONEXISTENT] none");
            again.expect("LOGOUT");
        });
        world.append(&inbox()).unwrap();
        let found = reserve_look(&world, &deadline(), |slot| slot.look(soon()));
        assert_eq!(found.is_err(), ends_again, "{found:?}");
        world.end();
    }
}

#[test]
fn a_new_session_that_ends_is_not_replaced() {
    let world = World::new(|listener| {
        let mut peer = appends(&listener, []);
        peer.expect("EXAMINE \"INBOX\"");
        peer.hang_up();
        listener.set_nonblocking(true).unwrap();
        thread::sleep(Duration::from_millis(100));
        assert!(listener.accept().is_err(), "nobody comes again");
    });
    assert!(world.store.check("doug", soon()).is_err());
    world.end();
}

#[test]
fn a_slot_to_look_has_its_session_before_and_gives_it_back_with_the_append() {
    let world = World::new(|listener| {
        let mut peer = appends(&listener, []);
        peer.answer("EXAMINE \"INBOX\"", "NO [NONEXISTENT] none");
        peer.answer_append("OK [APPENDUID 7 42] done");
        peer.expect("LOGOUT");
    });
    reserve_look(&world, &deadline(), |slot| {
        assert_eq!(world.store.count(), (1, 0));
        assert_eq!(slot.look(soon()).unwrap(), None);
        assert_eq!(world.store.count(), (1, 0));
        assert_eq!(slot.append().unwrap(), uid(42));
        assert_eq!(world.store.count(), (0, 1));
    });
    world.store.retire();
    assert_eq!(world.store.count(), (0, 0));
    world.end();
}

#[test]
fn more_than_so_many_sessions_of_an_account_are_waited_for_and_no_longer_than_last_bytes_may_go() {
    let world = World::new(|listener| {
        let peers = [(); 2].map(|()| appends(&listener, []));
        for mut peer in peers {
            peer.expect("LOGOUT");
        }
    });
    let late = Deadline::new(Duration::from_millis(600), Duration::from_millis(500));
    reserve_look(&world, &deadline(), |_| {
        reserve_look(&world, &deadline(), |_| {
            let (letter, inbox) = (Message::new(LETTER.to_vec(), DedupBy::Content), inbox());
            let waited = world.store.reserve(&inbox, copy_of(&letter), Need::Look, &late);
            let error = waited.map(drop).unwrap_err();
            assert!(
                is_not_stored(&error)
                    && error
                        .to_string()
                        .contains("all 2 sessions of account=doug (pool.per_account)"),
                "{error}"
            );
            assert!(!late.left().is_zero());
        });
    });
    world.store.close_idle();
    assert_eq!(world.store.count(), (0, 2), "not for long enough");
    world.end();
}

#[test]
fn a_session_that_was_prepared_is_the_one_that_is_used() {
    let world = World::new(|listener| {
        let mut peer = appends(&listener, [42]);
        peer.expect("LOGOUT");
    });
    for _ in 0..3 {
        world.store.prepare("doug", soon());
    }
    assert_eq!(world.append(&inbox()).unwrap(), uid(42));
    world.store.prepare("doug", soon());
    assert_eq!(world.store.count(), (0, 1), "there is one");
    world.end();
}

#[test]
fn what_a_login_in_the_background_came_to_is_told_once() {
    let (refused, refusing) = channel();
    let world = World::new(move |listener| {
        let mut peer = Peer::accept(&listener);
        peer.say("* BYE too many\r\n");
        assert!(peer.rest().is_empty());
        refused.send(()).unwrap();
        appends(&listener, [42]);
    });
    world.store.prepare("doug", soon());
    refusing.recv().unwrap();
    let error = world.append(&inbox()).unwrap_err();
    assert!(is_not_stored(&error) && error.to_string().contains("too many"), "{error}");
    assert_eq!(world.append(&inbox()).unwrap(), uid(42));
    world.end();
}

#[test]
fn what_a_login_in_the_background_came_to_long_ago_says_nothing() {
    let (refused, refusing) = channel();
    let world = World::new(move |listener| {
        let mut peer = Peer::accept(&listener);
        peer.say("* BYE too many\r\n");
        assert!(peer.rest().is_empty());
        refused.send(()).unwrap();
        appends(&listener, [42]);
    });
    world.store.prepare("doug", Instant::now() + Duration::from_millis(100));
    refusing.recv().unwrap();
    thread::sleep(Duration::from_millis(100) + TO_SAY_WHY);
    assert_eq!(world.append(&inbox()).unwrap(), uid(42));
    world.end();
}
