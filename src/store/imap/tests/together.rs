//! Several messages in one APPEND (MULTIAPPEND, RFC 3502).

use super::*;

const MULTI: &str = "IMAP4rev1 SASL-IR LITERAL+ UIDPLUS MULTIAPPEND";

/// Two copies of `LETTER`, appended together by `deadlines`.
fn append_two(world: &mut World, deadlines: [&Deadline; 2]) -> Vec<Result<Receipt, StoreError>> {
    let message = Message::new(LETTER.to_vec(), DedupBy::Content);
    let copies = deadlines.map(|deadline| (copy_of(&message), deadline));
    world.store.append_all(&inbox(), &copies)
}

/// Reads an APPEND of both, to its last bytes.
fn both(peer: &mut Peer) -> String {
    let tag = peer.append();
    let announced = format!(" \"21-Nov-2026 00:00:00 +0000\" {{{}+}}", LETTER_SENT.len());
    assert_eq!(peer.line(), announced);
    assert_eq!(peer.bytes(LETTER_SENT.len()), LETTER_SENT);
    peer.last_bytes();
    tag
}

fn one(peer: &mut Peer, answer: &str) {
    let tag = peer.append();
    peer.last_bytes();
    peer.say(format!("{tag} {answer}\r\n"));
}

fn uid(uid: u32) -> Receipt {
    Receipt::Uid { validity: 7, uid }
}

#[test]
fn messages_for_one_mailbox_go_in_one_command() {
    let mut world = World::logged_in(MULTI, |peer| {
        let tag = both(peer);
        peer.say(format!("{tag} OK [APPENDUID 7 42:43] done\r\n"));
    });
    let deadlines = [deadline(), deadline()];
    let stored = append_two(&mut world, deadlines.each_ref());
    assert!(
        matches!(stored.as_slice(), [Ok(a), Ok(b)] if (a, b) == (&uid(42), &uid(43))),
        "{stored:?}"
    );
    assert!(deadlines.iter().all(Deadline::is_answering), "until the receipts are on record");
    world.end();
}

#[test]
fn what_is_refused_together_is_tried_alone() {
    let mut world = World::logged_in(MULTI, |peer| {
        let tag = both(peer);
        peer.say(format!("{tag} NO [OVERQUOTA] one is too many\r\n"));
        one(peer, "OK [APPENDUID 7 42] done");
        one(peer, "NO [OVERQUOTA] full");
    });
    let deadlines = [deadline(), deadline()];
    let stored = append_two(&mut world, deadlines.each_ref());
    assert!(
        matches!(stored.as_slice(), [Ok(a), Err(StoreError::OverQuota(_))] if *a == uid(42)),
        "{stored:?}"
    );
    assert!(deadlines[0].is_answering() && !deadlines[1].is_answering());
    world.end();
}

#[test]
fn without_an_answer_all_are_in_doubt() {
    let mut world = World::logged_in(MULTI, |peer| {
        both(peer);
        peer.hang_up();
    });
    let deadlines = [deadline(), deadline()];
    let stored = append_two(&mut world, deadlines.each_ref());
    assert!(stored.iter().all(|one| matches!(one, Err(StoreError::InDoubt(_)))), "{stored:?}");
    world.end();
}

#[test]
fn one_that_is_too_late_keeps_no_other_back() {
    let mut world = World::new(|listener| {
        let mut peer = Peer::accept(&listener);
        peer.log_in(MULTI);
        assert!(peer.rest().is_empty());
        // Each by itself: with a session of its own after one that was given up.
        let mut again = Peer::accept(&listener);
        again.log_in(MULTI);
        one(&mut again, "OK [APPENDUID 7 42] done");
        assert!(again.rest().is_empty());
    });
    let late = Deadline::overslept(Duration::from_millis(1500), Duration::from_millis(500));
    let stored = append_two(&mut world, [&deadline(), &late]);
    assert!(
        matches!(stored.as_slice(), [Ok(a), Err(StoreError::NotStored(_))] if *a == uid(42)),
        "{stored:?}"
    );
    assert!(!late.is_answering());
    world.end();
}

#[test]
fn where_the_server_cannot_each_goes_alone() {
    for capabilities in [CAPABILITIES, "IMAP4rev1 SASL-IR UIDPLUS MULTIAPPEND"] {
        let mut world = World::logged_in(capabilities, move |peer| {
            for uid in [42, 43] {
                let tag = match capabilities.contains("LITERAL+") {
                    true => peer.append(),
                    false => {
                        let tag = peer.append_to("\"INBOX\"", "");
                        peer.say("+ go on\r\n");
                        assert_eq!(peer.bytes(LETTER_SENT.len()), LETTER_SENT);
                        tag
                    }
                };
                peer.last_bytes();
                peer.say(format!("{tag} OK [APPENDUID 7 {uid}] done\r\n"));
            }
        });
        let deadlines = [deadline(), deadline()];
        let stored = append_two(&mut world, deadlines.each_ref());
        assert!(
            matches!(stored.as_slice(), [Ok(a), Ok(b)] if (a, b) == (&uid(42), &uid(43))),
            "{stored:?}"
        );
        world.end();
    }
}
