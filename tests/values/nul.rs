//! Where NUL bytes are in a message, and that they can be restored in any copy of it.

use onedrop::message::{DedupBy, Message, NulError, nul_variant, restore_nul};

use crate::fuzz::message::{crlf, without_nul};

fn message(bytes: &[u8]) -> Message {
    Message::new(bytes.to_vec(), DedupBy::Content)
}

fn runs(bytes: &[u8]) -> Vec<u8> {
    message(bytes).nul_runs().expect("NUL")
}

/// What has been made of a copy.
fn restored(copy: &[u8], runs: &[u8]) -> Result<Vec<u8>, NulError> {
    let mut copy = copy.to_vec();
    let before = copy.clone();
    let result = restore_nul(&mut copy, runs);
    assert!(result.is_ok() || copy == before, "changed in spite of {result:?}");
    result.map(|()| copy)
}

#[test]
fn a_message_has_runs_only_if_it_holds_nul() {
    assert_eq!(message(b"Subject: x\n\nbody\x80\n").nul_runs(), None);
    for (bytes, expected) in [
        (&b"\0a\0\0b\0"[..], &[1, 0, 0, 1, 1, 2, 1, 1][..]),
        (b"A: b\n\n\r\nx\r\0\n\0", &[1, 0, 9, 1, 1, 1]),
        (b"x\0\0", &[1, 0, 1, 2]),
        (&[&[b'x'; 300][..], &[0; 128], b"y\0"].concat(), &[1, 0, 0xac, 2, 0x80, 1, 1, 1]),
        // A NUL in a per-recipient field counts as left out.
        (b"Delivered-To: a\0@b\nSubject: x\n\n", &[1, 1]),
    ] {
        assert_eq!(runs(bytes), expected, "{}", bytes.escape_ascii());
    }
}

#[test]
fn where_nul_is_stored_the_line_before_the_body_counts_as_ever() {
    let separated = nul_variant(&message(b"A: b\n\nno field\0\n"));
    let joined = nul_variant(&message(b"A: b\nno field\0\n"));
    assert!(!separated.is_empty() && !joined.is_empty());
    assert_ne!(separated, joined);
}

#[test]
fn positions_are_the_same_in_every_copy() {
    let shared = b"Received: by mx\nSubject: a\0b\n\none\n\0two\0\0\r\n\0\n";
    let ours = b"Return-Path: <>\nDelivered-To: a@b\n\
        Received: from x\n\tby y (Onedrop) with LMTP id 1; now\n";
    let expected = [1, 0, 26, 1, 7, 1, 3, 2, 1, 1];
    for leading in [
        &b""[..],
        b"Delivered-To: scuba@b\n",
        b"From x\nReturn-Path: <l@g>\nX-Original-To: d@b\n",
        ours,
    ] {
        let copy = [leading, shared].concat();
        assert_eq!(runs(&copy), expected);
        assert_eq!(runs(&crlf(&copy)), expected);
        let own = copy.strip_prefix(b"From x\n").unwrap_or(&copy);
        for whole in [own.to_vec(), crlf(own)] {
            assert_eq!(restored(&without_nul(&whole), &expected), Ok(whole));
        }
    }
}

#[test]
fn the_bytes_of_another_message_stay_unchanged() {
    let runs = runs(b"a\0bc\0\0");
    for other in [
        &b""[..],
        b"a",
        b"a\x80",
        b"a\x80bc\x80",
        b"a\x80bc\x80d",
        b"axbc\x80\x80",
        b"\x80abc\x80\x80",
    ] {
        let result = restored(other, &runs);
        assert_eq!(result, Err(NulError::OtherMessage), "{}", other.escape_ascii());
    }
    for (copy, far) in [
        (&b"abc"[..], [&[1, 0][..], &[0xff; 8], &[0x7f, 5]].concat()),
        (b"a\x80", [&[1, 0, 1][..], &[0xff; 8], &[0x7f]].concat()),
        (b"abc", [&[1, 0][..], &[0x80; 9], &[1, 1]].concat()),
    ] {
        assert_eq!(restored(copy, &far), Err(NulError::OtherMessage));
    }
}

#[test]
fn an_encoded_value_is_read_back_and_stays_below_its_limit() {
    for message in [&b"\0"[..], b"x\0", b"Subject: \0\0\n\n\0", &[0; 128], &[0; 70_000]] {
        assert_eq!(restored(&without_nul(message), &runs(message)), Ok(message.to_vec()));
    }
    // Two bytes a run after two bytes of header: as many as fit, then one more.
    let most = (65_536 - 2) / 2;
    let fits = runs(&b"x\0".repeat(most));
    assert_eq!((fits.len(), &fits[..2]), (65_536, &[1, 0][..]));
    let more = b"x\0".repeat(most + 1);
    let beyond = runs(&more);
    assert_eq!((&beyond[..2], &beyond[2..]), (&[1, 1][..], &fits[2..]));
    let whole = [&b"x\0".repeat(most)[..], b"x\x80"].concat();
    assert_eq!(restored(&without_nul(&more), &beyond), Ok(whole));
}

#[test]
fn bytes_that_nobody_encoded_are_refused() {
    let many = [0xff; 9];
    for (bytes, at) in [
        (&b""[..], 0),
        (&[1], 0),
        (&[2, 0], 0),
        (&[1, 2], 0),
        (&[1, 0, 5], 2),
        (&[1, 0, 5, 0], 2),
        (&[1, 0, 5, 1, 0, 1], 4),
        (&[1, 0, 0x85, 0, 1], 2),
        (&[&[1, 0][..], &many, &[2, 1]].concat(), 2),
        (&[&[1, 0][..], &many, &[0x81, 1]].concat(), 2),
    ] {
        let result = restored(b"12345\x80\x80\x80", bytes);
        assert_eq!(result, Err(NulError::Malformed(at)), "{bytes:?}");
    }
}
