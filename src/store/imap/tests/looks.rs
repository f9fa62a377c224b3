//! What the store asks when it looks for a copy, and what it takes for an answer.

use super::*;
use crate::store::Proof;

const FOUND: &[u8] =
    b"Return-Path: <a@b.other>\r\nMessage-ID: <a@b>\r\nSubject: s\r\n\r\nbody\x80\r\n";

impl Peer {
    fn search(&mut self, criteria: &str, hits: &str) {
        let tag = self.expect(&format!("UID SEARCH SINCE 20-Nov-2026 {criteria}"));
        self.say(format!("* SEARCH{hits}\r\n{tag} OK done\r\n"));
    }

    fn fetch(&mut self, uid: u32, bytes: &[u8]) {
        let tag = self.expect(&format!(
            "UID FETCH {uid} (FLAGS INTERNALDATE RFC822.SIZE BODY.PEEK[]<0.1048576>)"
        ));
        self.say(format!(
            "* 9 FETCH (FLAGS (\\Seen))\r\n* 1 FETCH (UID {uid} RFC822.SIZE {} BODY[]<0> {{{}}}\r\n",
            bytes.len(),
            bytes.len()
        ));
        self.say(bytes);
        self.say(format!(")\r\n{tag} OK done\r\n"));
    }
}

fn look(world: &World, letter: &[u8]) -> Result<Option<Receipt>, StoreError> {
    let message = Message::new(letter.to_vec(), DedupBy::Content);
    let (inbox, deadline) = (inbox(), deadline());
    let slot = world.store.reserve(&inbox, copy_of(&message), Need::Look, &deadline)?;
    slot.expect("a slot").look(soon())
}

#[test]
fn a_copy_is_found_by_what_it_is_newest_first() {
    let world = World::logged_in(CAPABILITIES, |peer| {
        peer.open("EXAMINE");
        peer.search("HEADER Message-ID \"<a@b>\"", " 2 5 4");
        peer.fetch(5, b"Message-ID: <a@b>\r\nSubject: another\r\n\r\nbody\r\n");
        // Gone by now.
        peer.answer(
            "UID FETCH 4 (FLAGS INTERNALDATE RFC822.SIZE BODY.PEEK[]<0.1048576>)",
            "OK nothing",
        );
        peer.fetch(2, FOUND);
    });
    assert_eq!(look(&world, LETTER).unwrap(), Some(Receipt::Uid { validity: 7, uid: 2 }));
    world.end();
}

#[test]
fn a_hit_that_is_another_message_is_no_copy() {
    let world = World::logged_in(CAPABILITIES, |peer| {
        peer.open("EXAMINE");
        peer.search("HEADER Message-ID \"<a@b>\"", " 5");
        peer.fetch(5, b"Message-ID: <aa@b>\r\nSubject: s\r\n\r\nbody\x80\r\n");
        let tag = peer.append();
        peer.last_bytes();
        peer.say(format!("* 4 EXISTS\r\n{tag} OK [APPENDUID 7 6] done\r\n"));
    });
    assert_eq!(look(&world, LETTER).unwrap(), None);
    assert_eq!(world.append(&inbox()).unwrap(), Receipt::Uid { validity: 7, uid: 6 });
    world.end();
}

#[test]
fn a_missing_mailbox_holds_no_copy_but_a_refusal_is_an_error() {
    let listed = |tag: String| format!("* LIST () \"/\" \"INBOX\"\r\n{tag} OK\r\n");
    let world = World::logged_in(CAPABILITIES, move |peer| {
        peer.answer("EXAMINE \"INBOX\"", "NO [NONEXISTENT] none");
        peer.answer("EXAMINE \"INBOX\"", "NO [TRYCREATE] none");
        peer.answer("EXAMINE \"INBOX\"", "NO Mailbox does not exist");
        peer.answer("LIST \"\" \"INBOX\"", "OK none");
        peer.answer("EXAMINE \"INBOX\"", "NO on holiday");
        let tag = peer.expect("LIST \"\" \"INBOX\"");
        peer.say(listed(tag));
        peer.answer("EXAMINE \"INBOX\"", "NO on holiday");
        peer.answer("LIST \"\" \"INBOX\"", "NO on holiday");
        peer.answer("EXAMINE \"INBOX\"", "NO [UNAVAILABLE] on holiday");
        peer.answer("EXAMINE \"INBOX\"", "OK without UIDVALIDITY");
    });
    for _ in 0..3 {
        assert_eq!(look(&world, LETTER).unwrap(), None);
    }
    for _ in 0..4 {
        assert!(is_not_stored(&look(&world, LETTER).unwrap_err()));
    }
    world.end();
}

#[test]
fn nothing_but_printable_ascii_gets_from_a_message_into_a_search() {
    let by_header = [
        ("<q\"u\\o@b>", "\"<q\\\"u\\\\o@b>\""),
        ("<b{5}@b>", "\"<b{5}@b>\""),
        ("<b{5}", "\"<b{5}\""),
    ];
    for (id, searched) in by_header {
        let criteria = format!("HEADER Message-ID {searched}");
        let world = World::logged_in(CAPABILITIES, move |peer| {
            peer.open("EXAMINE");
            peer.search(&criteria, "");
        });
        assert_eq!(look(&world, format!("Message-ID: {id}\n\n").as_bytes()).unwrap(), None);
        world.end();
    }
    let long = "x".repeat(501);
    let by_size: [&[u8]; 9] = [
        b"Message-ID: <a\r\n a2 DELETE INBOX@b>\n\n",
        b"Message-ID: <a\ra2 DELETE INBOX@b>\n\n",
        b"Message-ID: <a b@c>\n\n",
        b"Message-ID: <\xfc@b>\n\n",
        b"Message-ID: <\0@b>\n\n",
        b"Message-ID: <=?utf-8?q?a?=@b>\n\n",
        b"Message-ID: <a@b>\nMessage-ID: <c@d>\n\n",
        b"Subject: none\n\n",
        &[b"Message-ID: ", long.as_bytes(), b"\n\n"].concat(),
    ];
    for letter in by_size {
        let size = syntax::literal_size(letter);
        let criteria = format!("LARGER 0 SMALLER {}", size + 8192);
        let world = World::logged_in(CAPABILITIES, move |peer| {
            peer.open("EXAMINE");
            peer.search(&criteria, "");
        });
        assert_eq!(look(&world, letter).unwrap(), None);
        world.end();
    }
}

#[test]
fn a_large_copy_is_fetched_in_pieces() {
    let mut letter = b"Message-ID: <a@b>\r\n\r\n".to_vec();
    letter.resize(1024 * 1024 + 10, b'x');
    let stored = letter.clone();
    let world = World::logged_in(CAPABILITIES, move |peer| {
        peer.open("EXAMINE");
        peer.search("HEADER Message-ID \"<a@b>\"", " 5 (MODSEQ 917)");
        for (offset, first) in [(0, "FLAGS INTERNALDATE RFC822.SIZE "), (1024 * 1024, "")] {
            let tag = peer.expect(&format!("UID FETCH 5 ({first}BODY.PEEK[]<{offset}.1048576>)"));
            let piece = &stored[offset..stored.len().min(offset + 1024 * 1024)];
            let size =
                if offset == 0 { format!("RFC822.SIZE {} ", stored.len()) } else { String::new() };
            peer.say(format!("* 1 FETCH ({size}BODY[]<{offset}> {{{}}}\r\n", piece.len()));
            peer.say(piece);
            peer.say(format!(" UID 5)\r\n{tag} OK done\r\n"));
        }
    });
    assert_eq!(look(&world, &letter).unwrap(), Some(Receipt::Uid { validity: 7, uid: 5 }));
    world.end();
}

#[test]
fn an_answer_that_is_not_understood_says_nothing_about_the_copy() {
    for answer in ["* SEARCH 2 x", "* ESEARCH (TAG \"a3\") UID ALL 2", "* SEARCH 99999999999"] {
        let world = World::logged_in(CAPABILITIES, move |peer| {
            peer.open("EXAMINE");
            let tag = peer.expect("UID SEARCH SINCE 20-Nov-2026 HEADER Message-ID \"<a@b>\"");
            peer.say(format!("{answer}\r\n{tag} OK done\r\n"));
            assert!(peer.rest().is_empty());
        });
        assert!(is_not_stored(&look(&world, LETTER).unwrap_err()));
        world.end();
    }
}

/// Seeks `LETTER` as verify does, with uid 4 on record.
fn find(world: &World, is_thorough: bool) -> Vec<Found> {
    let message = Message::new(LETTER.to_vec(), DedupBy::Content);
    let receipt = Receipt::Uid { validity: 7, uid: 4 };
    let copy = copy_of(&message);
    let sought = Sought { is_thorough, on_record: Some(&receipt), at_most: 3, ..copy.sought() };
    world.store.find(&inbox(), &sought, soon()).unwrap()
}

fn proofs(found: &[Found]) -> Vec<(u32, Proof)> {
    let uid = |one: &Found| match one.receipt {
        Receipt::Uid { uid, .. } => uid,
        _ => 0,
    };
    found.iter().map(|one| (uid(one), one.proof)).collect()
}

const BY_ID: &str = "HEADER Message-ID \"<a@b>\"";
const BY_SIZE: &str = "LARGER 0 SMALLER 8232";

impl Peer {
    /// Whether the copy on record is there.
    fn recorded(&mut self, is_there: bool) {
        let tag = self.expect("UID FETCH 4 (FLAGS INTERNALDATE)");
        let told = "* 1 FETCH (UID 4 FLAGS () INTERNALDATE \"21-Nov-2026 00:00:00 +0000\")\r\n";
        self.say(format!("{}{tag} OK done\r\n", if is_there { told } else { "" }));
    }
}

#[test]
fn the_copy_on_record_is_compared_before_another_counts() {
    const OTHER: &[u8] = b"Message-ID: <z@b>\r\nSubject: another\r\n\r\nbody\r\n";
    for (on_record, hits, expected) in
        [(FOUND, " 4 9", Proof::Equal), (OTHER, " 9", Proof::Foreign), (FOUND, " 9", Proof::Hidden)]
    {
        let world = World::logged_in(CAPABILITIES, move |peer| {
            peer.open("EXAMINE");
            peer.recorded(true);
            peer.search(BY_ID, hits);
            peer.fetch(9, FOUND);
            peer.fetch(4, on_record);
        });
        assert_eq!(proofs(&find(&world, false)), [(9, Proof::Equal), (4, expected)]);
        world.end();
    }
    let world = World::logged_in(CAPABILITIES, |peer| {
        peer.open("EXAMINE");
        peer.recorded(true);
        peer.search(BY_ID, " 4");
    });
    assert_eq!(proofs(&find(&world, false)), [(4, Proof::Assumed)], "alone, it needs no proof");
    world.end();
}

/// A server may index another of two Message-ID fields than the first.
#[test]
fn where_the_search_is_blind_for_the_copy_on_record_it_is_by_size() {
    let world = World::logged_in(CAPABILITIES, |peer| {
        peer.open("EXAMINE");
        peer.recorded(true);
        peer.search(BY_ID, "");
        peer.search(BY_SIZE, " 9 4");
        peer.fetch(9, FOUND);
        peer.fetch(4, FOUND);
        // Gone, and nothing is shown.
        peer.open("EXAMINE");
        peer.recorded(false);
        peer.search(BY_ID, "");
        peer.search(BY_SIZE, " 9");
        peer.fetch(9, FOUND);
        // Shown: once is enough.
        peer.open("EXAMINE");
        peer.recorded(true);
        peer.search(BY_ID, " 4");
        peer.fetch(4, FOUND);
        // There, and no search shows it.
        peer.open("EXAMINE");
        peer.recorded(true);
        peer.search(BY_ID, "");
        peer.search(BY_SIZE, "");
        peer.fetch(4, FOUND);
    });
    assert_eq!(proofs(&find(&world, true)), [(9, Proof::Equal), (4, Proof::Equal)]);
    assert_eq!(proofs(&find(&world, true)), [(9, Proof::Equal)]);
    assert_eq!(proofs(&find(&world, true)), [(4, Proof::Equal)]);
    assert_eq!(proofs(&find(&world, true)), [(4, Proof::Hidden)]);
    world.end();
}

#[test]
fn the_copy_on_record_is_told_however_many_there_are() {
    let world = World::logged_in(CAPABILITIES, |peer| {
        peer.open("EXAMINE");
        peer.recorded(true);
        peer.search(BY_ID, " 4 5 6 7 8 9");
        for uid in [9, 8, 7, 4] {
            peer.fetch(uid, FOUND);
        }
    });
    let uids: Vec<u32> = proofs(&find(&world, false)).into_iter().map(|(uid, _)| uid).collect();
    assert_eq!(uids, [9, 8, 7, 4]);
    world.end();
}
