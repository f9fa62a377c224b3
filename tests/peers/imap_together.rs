//! Several messages for one mailbox in one APPEND (MULTIAPPEND, RFC 3502).

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use crate::imap_script::{
    CAPABILITIES, ScriptedServer, TestClock, World, deadline, deadline_by, is_not_stored,
    overslept, soon, uid,
};
use onedrop::connections::Connections;
use onedrop::deadline::Deadline;
use onedrop::store::{Receipt, Store, StoreError};

const MULTI: &str = "IMAP4rev1 SASL-IR LITERAL+ UIDPLUS MULTIAPPEND";

type Appended = Result<Receipt, StoreError>;

fn until(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "it does not come to that");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `then` while an append waits for the server's answer, which comes once `then` calls its
/// function; the server goes on by `script`.
fn while_one_appends(
    script: impl FnOnce(&TcpListener, &mut ScriptedServer) + Send + 'static,
    then: impl FnOnce(&World, &dyn Fn()),
) {
    let (go, gone) = channel::<()>();
    let world = World::new(move |listener| {
        let mut server = ScriptedServer::logged_in(&listener, MULTI);
        server.append(1);
        server.expect_bytes(b"\r\n");
        gone.recv().expect("a word");
        server.reply("OK [APPENDUID 7 41] done");
        script(&listener, &mut server);
    });
    world.store.prepare("doug", soon());
    // At the login the server says what it can do.
    until(|| world.store.count() == (0, 1));
    thread::scope(|scope| {
        let first = scope.spawn(|| world.append(&deadline()));
        until(|| world.store.count() == (1, 0));
        then(&world, &|| go.send(()).expect("the server"));
        assert_eq!(first.join().expect("an end").expect("a receipt"), uid(41));
    });
    world.end();
}

/// How copies end that are appended by `deadlines` and wait for the one before; `None`: it
/// panicked. The server goes on by `script`.
fn all_wait(
    deadlines: &[Deadline],
    script: impl FnOnce(&TcpListener, &mut ScriptedServer) + Send + 'static,
) -> Vec<Option<Appended>> {
    let mut ended = Vec::new();
    while_one_appends(script, |world, go| {
        thread::scope(|scope| {
            let append = |deadline| {
                // What waits is kept with its deadline, and so with the clock of that.
                let clock = Deadline::clock(deadline);
                let others = Arc::strong_count(clock);
                let append = scope.spawn(move || world.append(deadline));
                until(|| Arc::strong_count(clock) > others);
                append
            };
            let appends: Vec<_> = deadlines.iter().map(append).collect();
            // From there to its place in the queue it is some steps of the last one's thread.
            thread::sleep(Duration::from_millis(10));
            go();
            ended.extend(appends.into_iter().map(|append| append.join().ok()));
        });
    });
    ended
}

fn is_in_doubt(ended: &Option<Appended>) -> bool {
    matches!(ended, Some(Err(StoreError::InDoubt(_))))
}

fn is_stored(ended: &Option<Appended>, as_uid: u32) -> bool {
    matches!(ended, Some(Ok(receipt)) if *receipt == uid(as_uid))
}

#[test]
fn messages_that_wait_for_one_mailbox_go_in_one_command() {
    let deadlines = [deadline(), deadline()];
    let ended =
        all_wait(&deadlines, |_, server| server.answer_append(2, "OK [APPENDUID 7 42:43] done"));
    assert!((42..44).all(|uid| ended.iter().any(|one| is_stored(one, uid))), "{ended:?}");
    assert!(deadlines.iter().all(Deadline::is_answering), "until the receipts are on record");
}

#[test]
fn at_most_sixteen_go_together() {
    let deadlines: Vec<Deadline> = (0..17).map(|_| deadline()).collect();
    let ended = all_wait(&deadlines, |_, server| {
        server.answer_append(16, "OK [APPENDUID 7 42:57] done");
        server.answer_append(1, "OK [APPENDUID 7 58] done");
    });
    assert!((42..59).all(|uid| ended.iter().any(|one| is_stored(one, uid))), "{ended:?}");
}

#[test]
fn what_is_refused_in_company_is_tried_alone() {
    let deadlines = [deadline(), deadline()];
    let ended = all_wait(&deadlines, |_, server| {
        server.answer_append(2, "NO [OVERQUOTA] one is too many");
        server.answer_append(1, "OK [APPENDUID 7 42] done");
        server.answer_append(1, "NO [OVERQUOTA] full");
    });
    assert!(ended.iter().any(|one| is_stored(one, 42)), "{ended:?}");
    let refused = ended.iter().any(|one| matches!(one, Some(Err(StoreError::OverQuota(_)))));
    assert!(refused, "{ended:?}");
    for (deadline, ended) in deadlines.iter().zip(&ended) {
        assert_eq!(deadline.is_answering(), is_stored(ended, 42));
    }
}

#[test]
fn what_is_refused_alone_is_not_tried_again() {
    let world = World::new(|listener| {
        let mut server = ScriptedServer::logged_in(&listener, MULTI);
        server.answer_append(1, "NO [OVERQUOTA] full");
    });
    world.store.prepare("doug", soon());
    until(|| world.store.count() == (0, 1));
    let refused = world.append(&deadline());
    assert!(matches!(refused, Err(StoreError::OverQuota(_))), "{refused:?}");
    world.end();
}

#[test]
fn without_an_answer_all_are_in_doubt() {
    let ended = all_wait(&[deadline(), deadline()], |_, server| {
        server.append(2);
        server.expect_bytes(b"\r\n");
        server.hang_up();
    });
    assert!(ended.iter().all(is_in_doubt), "{ended:?}");
}

#[test]
fn a_panic_leaves_those_in_doubt_that_went_along() {
    let clock = Arc::<TestClock>::default();
    let deadlines = [deadline_by(&clock), deadline_by(&clock)];
    clock.panics.store(true, Ordering::SeqCst);
    let ended = all_wait(&deadlines, |_, server| server.expect_end());
    assert!(ended.iter().any(Option::is_none) && ended.iter().any(is_in_doubt), "{ended:?}");
}

#[test]
fn one_that_is_too_late_keeps_no_other_back() {
    for is_gone in [false, true] {
        let deadlines = [deadline(), overslept()];
        let ended = all_wait(&deadlines, move |listener, server| {
            server.expect_end();
            if is_gone {
                return;
            }
            // Each by itself: with a session of its own after one that was given up.
            let mut again = ScriptedServer::logged_in(listener, MULTI);
            again.answer_append(1, "OK [APPENDUID 7 42] done");
            again.expect_end();
        });
        let is_not_stored =
            |ended: &Option<Appended>| matches!(ended, Some(Err(error)) if is_not_stored(error));
        assert!(is_stored(&ended[0], 42) != is_gone && is_not_stored(&ended[1]), "{ended:?}");
        assert!(is_not_stored(&ended[0]) == is_gone, "{ended:?}");
        // Nothing is waited for that was not sent.
        let answering = [&deadlines[0], &deadlines[1]].map(Deadline::is_answering);
        assert_eq!(answering, [!is_gone, false]);
    }
}

#[test]
fn a_copy_whose_turn_does_not_come_in_time_is_not_stored() {
    while_one_appends(
        |_, _| {},
        |world, go| {
            let late = Deadline::new(Duration::from_millis(550), Duration::from_millis(500));
            let error = world.append(&late).expect_err("no turn");
            let turn = "the appends to account=doug mailbox=INBOX before this one take too long";
            assert!(is_not_stored(&error) && error.to_string().contains(turn), "{error}");
            go();
        },
    );
}

#[test]
fn where_the_server_cannot_each_goes_alone_and_waits_for_none() {
    let world = World::new(|listener| {
        let servers = [(); 2].map(|()| {
            let mut server = ScriptedServer::logged_in(&listener, CAPABILITIES);
            server.append(1);
            server.expect_bytes(b"\r\n");
            server
        });
        for mut server in servers {
            server.reply("OK [APPENDUID 7 42] done");
        }
    });
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert_eq!(world.append(&deadline()).expect("a receipt"), uid(42)));
        }
    });
    world.end();
}
