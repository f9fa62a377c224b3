//! A message's identity, where its copies begin, and where its NUL bytes are.

use onedrop::message::{DedupBy, Identity, Message, restore_nul};

use super::harness::Target;
use super::message::{DICTIONARY, crlf, folded, seeds, takes_fields_on_top, without_nul};

pub const TARGET: Target = Target { seeds, dictionary: DICTIONARY, check };

const ADDED_ON_THE_WAY: &[u8] = b"Return-Path: <x@y>\nX-Original-To: a@b\r\nDelivered-To: a@b\n\
                                  Received: from a by b (Onedrop)\n\twith LMTP id 1; Sun, 22 Nov \
                                  2026 12:00:00 +0000\nX-Spam-Flag: NO\nList-Id: <l>\nBcc: z\n";
const RECEIVED: &[u8] = b"Received: by another (Postfix) id C3; Sun, 22 Nov 2026 12:00:00 +0000\n";

pub fn check(input: &[u8]) {
    for by in [DedupBy::Content, DedupBy::MessageId] {
        identity(input, by);
    }
    nul(input);
    // As a value of the ledger's: what is read of it is what would be written.
    for runs in [input.to_vec(), [&[1, 0][..], input].concat()] {
        let mut copy = [&b"Subject: x\n\n"[..], &[0x80; 200]].concat();
        let before = copy.clone();
        if restore_nul(&mut copy, &runs).is_err() {
            assert_eq!(copy, before);
        } else if runs.len() > 2 && runs[1] == 0 {
            assert_eq!(Message::new(copy, DedupBy::Content).nul_runs(), Some(runs));
        }
    }
}

fn identity(input: &[u8], by: DedupBy) {
    let message = Message::new(input.to_vec(), by);
    let (own, shared) = (message.own_copy(), message.shared_copy());
    assert!(input.ends_with(own) && own.ends_with(shared));
    assert!(own.len() == input.len() || input.starts_with(b"From "));
    assert!(!own.is_empty() || input.is_empty());
    let of = |bytes: &[u8]| Identity::of(bytes, by);
    let expected = message.identity();
    assert_eq!(of(own), *expected);
    assert_eq!(of(shared), *expected, "as a shared copy");
    assert_eq!(of(&crlf(own)), *expected, "with CRLF");
    assert_eq!(of(&without_nul(own)), *expected, "without NUL");
    assert_eq!(of(&without_nul(&crlf(own))), *expected, "over IMAP");
    assert_eq!(of(&folded(own)), *expected, "folded");
    assert_eq!(of(&[own, b"\n\r\n\n"].concat()), *expected, "with empty lines at its end");
    assert_eq!(Message::new(crlf(input), by).identity(), expected, "with CRLF and an mbox line");
    if takes_fields_on_top(&message) {
        assert_eq!(of(&[ADDED_ON_THE_WAY, own].concat()), *expected, "with trace fields");
        let has_received = message
            .fields()
            .any(|f| f.is(b"received") && !f.relaxed().windows(9).any(|w| w == b"(Onedrop)"));
        if has_received {
            assert_eq!(of(&[RECEIVED, own].concat()), *expected, "sent in again");
        }
    }
    if !own.is_empty() {
        let behind = Message::new([b"From x  Sun Nov 22 10:00:00 2026\n", own].concat(), by);
        assert_eq!((behind.own_copy(), behind.identity()), (own, expected), "behind an mbox line");
    }
    if let Some(pieces) = message.to_hand_over() {
        let there = Message::new(pieces.concat(), by);
        assert_eq!((there.identity(), there.shared_copy()), (expected, shared), "handed over");
    }
    assert_eq!(
        expected.message_id.is_some() && by == DedupBy::MessageId,
        expected.digest == expected.id_hash
    );
}

fn nul(input: &[u8]) {
    let message = Message::new(input.to_vec(), DedupBy::Content);
    let own = message.own_copy();
    let Some(runs) = message.nul_runs() else {
        assert!(!own.contains(&0));
        return;
    };
    assert!(own.contains(&0));
    assert!(runs.len() <= 64 * 1024);
    for whole in [own.to_vec(), crlf(own), message.shared_copy().to_vec()] {
        let mut stored = without_nul(&whole);
        restore_nul(&mut stored, &runs).expect("a copy of its own");
        let some_left_out = runs[1] == 1;
        assert!(some_left_out || stored == whole);
        assert_eq!(without_nul(&stored), without_nul(&whole));
    }
}
