//! Where a recipient's own copy and a shared copy begin, and what a server is handed over.

use onedrop_core::message::{DedupBy, Message, ReadError};

use super::message;

#[test]
fn a_shared_copy_names_no_recipient_and_an_mbox_line_is_skipped() {
    let bytes = b"From lisa@gmail.com Sat Nov 21 10:00:00 2026\nReturn-Path: <l@g>\n\
        X-Original-To: doug\n\t(folded)\nDelivered-To: doug@x\nReceived: by x\n\
        Delivered-To: forged@x\nSubject: s\n\nbody";
    let message = message(bytes);
    assert!(message.own_copy().starts_with(b"Return-Path:"));
    assert!(message.shared_copy().starts_with(b"Received: by x\nDelivered-To: forged"));
    assert_eq!(message.first("delivered-to").as_deref(), Some(&b"doug@x"[..]));
    assert_eq!(message.received(), bytes);
}

#[test]
fn a_message_handed_over_lacks_the_fields_that_the_server_prepends_and_stays_the_same() {
    let whole = message(
        b"From x\nReturn-Path: <l@g>\nX-Original-To: doug\nDelivered-To: doug@x\n\
          Received: by x\nDelivered-To: forged@x\n\nbody\n",
    );
    let pieces = whole.to_hand_over().expect("pieces").concat();
    assert_eq!(pieces, b"X-Original-To: doug\nReceived: by x\nDelivered-To: forged@x\n\nbody\n");
    let there = message(&pieces);
    assert_eq!((there.identity(), there.shared_copy()), (whole.identity(), whole.shared_copy()));
    // A server would read an mbox line, continue its own field, or add a line end.
    for odd in [
        &b"Return-Path: <>\nFrom here on\nx\n"[..],
        b" A: 1\n\nbody\n",
        b"\tA: 1\n\nbody\n",
        b"A: 1\n\nbody",
        b"",
    ] {
        assert_eq!(message(odd).to_hand_over(), None);
    }
}

#[test]
fn a_from_line_that_local_never_writes_belongs_to_the_message() {
    for line in ["From lisa\n", "From lisa\r\n"] {
        let bytes = format!("{line}A: 1\r\n");
        assert_eq!(message(bytes.as_bytes()).own_copy(), b"A: 1\r\n");
    }
    for own in [
        &b"From lisa"[..],
        b"From lisa\n",
        b"From lisa\r\n",
        b"From lisa\rA: 1\r\rbody\r",
        b"From lisa\rA: 1\r\rbody\nmore\n",
        // A field in obsolete syntax (RFC 5322 section 4.5).
        b"From : lisa@gmail.com\n\n",
        b"from lisa\n\n",
        b"From",
        b"",
    ] {
        let message = message(own);
        assert_eq!((message.own_copy(), message.shared_copy()), (own, own));
    }
}

#[test]
fn a_message_over_the_limit_is_read_to_its_end_and_refused() {
    let mut input = &b"0123456789"[..];
    let error = Message::read(&mut input, 5, DedupBy::Content).unwrap_err();
    assert!(matches!(error, ReadError::TooLarge { limit: 5 }));
    assert!(input.is_empty());
    assert!(Message::read(&b"01234"[..], 5, DedupBy::Content).is_ok());
}
