//! What the store asks when it looks for a copy, where that hangs on the copy.

use super::*;

impl Peer {
    fn search(&mut self, criteria: &str, hits: &str) {
        let tag = self.expect(&format!("UID SEARCH SINCE 20-Nov-2026 {criteria}"));
        self.say(format!("* SEARCH{hits}\r\n{tag} OK done\r\n"));
    }
}

fn look(world: &World, letter: &[u8]) -> Result<Option<Receipt>, StoreError> {
    let message = Message::new(letter.to_vec(), DedupBy::Content);
    let (inbox, deadline) = (inbox(), deadline());
    let slot = world.store.reserve(&inbox, copy_of(&message), Need::Look, &deadline)?;
    slot.expect("a slot").look(soon())
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
