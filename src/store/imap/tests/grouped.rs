//! Several messages for one mailbox in one APPEND (MULTIAPPEND, RFC 3502).

use super::*;
use crate::store::imap::grouped::Appends;

const MULTI: &str = "IMAP4rev1 SASL-IR LITERAL+ UIDPLUS MULTIAPPEND";

/// Reads an APPEND of two messages, to its last bytes.
fn both(peer: &mut Peer) -> String {
    let tag = peer.append();
    let announced = format!(" \"21-Nov-2026 00:00:00 +0000\" {{{}+}}", LETTER_SENT.len());
    assert_eq!(peer.line(), announced);
    assert_eq!(peer.bytes(LETTER_SENT.len()), LETTER_SENT);
    peer.last_bytes();
    tag
}

/// Appends one copy, and by `deadlines` two others that wait meanwhile; returns what came of those,
/// by `script`.
fn two_wait(
    capabilities: &'static str,
    deadlines: [&Deadline; 2],
    script: impl FnOnce(&TcpListener, &mut Peer) + Send + 'static,
) -> [Result<Receipt, StoreError>; 2] {
    let (go, gone) = channel::<()>();
    let world = World::new(move |listener| {
        let mut peer = Peer::accept(&listener);
        peer.log_in(capabilities);
        let tag = peer.append();
        peer.last_bytes();
        gone.recv().unwrap();
        peer.say(format!("{tag} OK [APPENDUID 7 41] done\r\n"));
        script(&listener, &mut peer);
    });
    world.store.prepare("doug", soon());
    // The login tells what the server can do.
    while world.store.count() != (0, 1) {
        thread::sleep(Duration::from_millis(1));
    }
    let ended = thread::scope(|scope| {
        let first = scope.spawn(|| world.append(&inbox()));
        while world.store.count() != (1, 0) {
            thread::sleep(Duration::from_millis(1));
        }
        let mut waiting = 0;
        let others = deadlines.map(|deadline| {
            let other = scope.spawn(|| world.append_within(&inbox(), deadline));
            waiting += 1;
            while world.store.appends.waiting() != waiting {
                thread::sleep(Duration::from_millis(1));
            }
            other
        });
        go.send(()).unwrap();
        assert_eq!(first.join().unwrap().unwrap(), uid(41));
        others.map(|other| other.join().unwrap())
    });
    assert!(!world.store.appends.is_busy(), "nothing is kept of a mailbox");
    world.end();
    ended
}

#[test]
fn messages_that_wait_for_one_mailbox_go_in_one_command() {
    let deadlines = [deadline(), deadline()];
    let stored = two_wait(MULTI, deadlines.each_ref(), |_, peer| {
        let tag = both(peer);
        peer.say(format!("{tag} OK [APPENDUID 7 42:43] done\r\n"));
    });
    let mut stored = stored.map(Result::unwrap);
    stored.sort_by_key(|receipt| receipt.to_string());
    assert_eq!(stored, [uid(42), uid(43)]);
    assert!(deadlines.iter().all(Deadline::is_answering), "until the receipts are on record");
}

#[test]
fn what_is_refused_in_company_is_tried_alone() {
    let deadlines = [deadline(), deadline()];
    let stored = two_wait(MULTI, deadlines.each_ref(), |_, peer| {
        let tag = both(peer);
        peer.say(format!("{tag} NO [OVERQUOTA] one is too many\r\n"));
        peer.answer_append("OK [APPENDUID 7 42] done");
        peer.answer_append("NO [OVERQUOTA] full");
    });
    let refused = |one: &Result<Receipt, StoreError>| matches!(one, Err(StoreError::OverQuota(_)));
    let is_stored =
        |one: &Result<Receipt, StoreError>| matches!(one, Ok(there) if *there == uid(42));
    assert!(stored.iter().any(refused) && stored.iter().any(is_stored), "{stored:?}");
    for (deadline, stored) in deadlines.iter().zip(&stored) {
        assert_eq!(deadline.is_answering(), stored.is_ok());
    }
}

#[test]
fn without_an_answer_all_are_in_doubt() {
    let stored = two_wait(MULTI, [&deadline(), &deadline()], |_, peer| {
        both(peer);
        peer.hang_up();
    });
    assert!(stored.iter().all(|one| matches!(one, Err(StoreError::InDoubt(_)))), "{stored:?}");
}

#[test]
fn one_that_is_too_late_keeps_no_other_back() {
    for is_gone in [false, true] {
        let (own, late) = (deadline(), overslept());
        let stored = two_wait(MULTI, [&own, &late], move |listener, peer| {
            assert!(peer.rest().is_empty());
            if is_gone {
                return;
            }
            // Each by itself: with a session of its own after one that was given up.
            let mut again = Peer::accept(listener);
            again.log_in(MULTI);
            again.answer_append("OK [APPENDUID 7 42] done");
            assert!(again.rest().is_empty());
        });
        match stored {
            [Ok(there), Err(StoreError::NotStored(_))] if !is_gone => assert_eq!(there, uid(42)),
            [Err(StoreError::NotStored(_)), Err(StoreError::NotStored(_))] if is_gone => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(own.is_answering(), !is_gone, "nothing is waited for that was not sent");
        assert!(!late.is_answering());
    }
}

#[test]
fn where_the_server_cannot_each_goes_alone_and_waits_for_none() {
    let world = World::new(|listener| {
        let mut peers = [(); 2].map(|()| {
            let mut peer = Peer::accept(&listener);
            peer.log_in(CAPABILITIES);
            let tag = peer.append();
            peer.last_bytes();
            (peer, tag)
        });
        for (peer, tag) in &mut peers {
            peer.say(format!("{tag} OK [APPENDUID 7 42] done\r\n"));
        }
    });
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert_eq!(world.append(&inbox()).unwrap(), uid(42)));
        }
    });
    world.end();
}

/// Appends a copy without a server, by `append`.
fn append_by(
    appends: &Appends,
    deadline: &Deadline,
    append: impl FnOnce(&[(Copy<'_>, &Deadline)]) -> Vec<Result<Receipt, StoreError>>,
) -> Result<Receipt, StoreError> {
    let letter = Message::new(LETTER.to_vec(), DedupBy::Content);
    appends.append(&inbox(), &copy_of(&letter), deadline, append)
}

/// Runs `then` while an append is under way that ends when it is told to.
fn while_one_appends(then: impl FnOnce(&Appends, &dyn Fn())) {
    let appends = Appends::default();
    let (go, gone) = channel::<()>();
    let (begun, beginning) = channel::<()>();
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            append_by(&appends, &deadline(), move |copies| {
                begun.send(()).unwrap();
                gone.recv().unwrap();
                copies.iter().map(|_| Ok(uid(41))).collect()
            })
        });
        beginning.recv().unwrap();
        then(&appends, &|| go.send(()).unwrap());
        assert_eq!(first.join().unwrap().unwrap(), uid(41));
    });
    assert!(!appends.is_busy());
}

#[test]
fn a_copy_whose_turn_does_not_come_in_time_is_not_stored() {
    while_one_appends(|appends, go| {
        let late = Deadline::new(Duration::from_millis(550), Duration::from_millis(500));
        let waited = append_by(appends, &late, |_| panic!("appended"));
        assert!(
            matches!(&waited, Err(StoreError::NotStored(why)) if why.contains("account=doug")),
            "{waited:?}"
        );
        go();
    });
}

#[test]
fn a_panic_leaves_those_in_doubt_that_went_along() {
    while_one_appends(|appends, go| {
        thread::scope(|scope| {
            let both = [(); 2]
                .map(|()| scope.spawn(|| append_by(appends, &deadline(), |_| panic!("told to"))));
            while appends.waiting() != 2 {
                thread::sleep(Duration::from_millis(1));
            }
            go();
            let ends = both.map(|one| one.join().ok());
            let is_in_doubt = |end: &Option<_>| matches!(end, Some(Err(StoreError::InDoubt(_))));
            assert_eq!(ends.iter().filter(|end| end.is_none()).count(), 1, "{ends:?}");
            assert_eq!(ends.iter().filter(|end| is_in_doubt(end)).count(), 1, "{ends:?}");
        });
    });
}

#[test]
fn at_most_sixteen_go_together() {
    while_one_appends(|appends, go| {
        let sizes = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..17 {
                scope.spawn(|| {
                    let stored = append_by(appends, &deadline(), |copies| {
                        sizes.lock().unwrap().push(copies.len());
                        copies.iter().map(|_| Ok(uid(42))).collect()
                    });
                    assert_eq!(stored.unwrap(), uid(42));
                });
            }
            while appends.waiting() != 17 {
                thread::sleep(Duration::from_millis(1));
            }
            go();
        });
        assert_eq!(sizes.into_inner().unwrap(), [16, 1]);
    });
}
