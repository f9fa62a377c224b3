//! A message that a mail server does not take as it came, inside one that it takes. Cyrus refuses a
//! header with a line that is no field; for such a message every try would end the same way, and
//! after days it would go back to its sender. So it goes into the mailbox attached
//! (message/rfc822), as it came, below a header of ours with its Message-ID and its Date.
//!
//! The wrapper's header follows from the message alone, so that a wrapper can be distinguished from
//! what a stranger sends: that has trace fields, or another header than this.

use super::fields::{Field, fields, split};
use super::identity::is_authored;

const SUBJECT: &str = "A message whose header is damaged, attached as it came";
/// Stands where the message does not say who has written it.
const NOBODY: &str = "MAILER-DAEMON";
const BODY: &str = "MIME-Version: 1.0\r\n\
                    Content-Type: message/rfc822\r\n\
                    Content-Transfer-Encoding: 8bit\r\n\
                    Content-Disposition: inline\r\n\
                    \r\n";
/// Bytes of a value that is repeated.
const LONGEST: usize = 500;

/// Whether a server may refuse a message for its header: it ends with a line that is no field, or
/// with the message, and not by an empty line; or a blank stands before a colon (RFC 5322 section
/// 4.5); or its Message-ID is empty (Cyrus, imap/lmtpengine.c).
pub fn is_damaged(bytes: &[u8]) -> bool {
    let (header, body) = split(bytes);
    let is_separated = header.len() + body.len() < bytes.len();
    let has_blank = |field: Field<'_>| {
        let name = field.raw.split(|byte| *byte == b':').next();
        name.is_some_and(|name| name.ends_with(b" ") || name.ends_with(b"\t"))
    };
    let has_no_id = |field: &Field<'_>| field.is(b"message-id") && field.unfolded().is_empty();
    !bytes.is_empty()
        && (!is_separated || fields(header).any(|field| has_no_id(&field) || has_blank(field)))
}

/// What stands before a message, for it to be wrapped.
pub fn wrapper(bytes: &[u8]) -> Vec<u8> {
    let (header, _) = split(bytes);
    let value = |name: &str| {
        let lower = name.to_ascii_lowercase();
        let field = fields(header).find(|field| field.is(lower.as_bytes()))?;
        let value = String::from_utf8(field.relaxed()).ok()?;
        let is_plain = value.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        (is_plain && !value.is_empty() && value.len() <= LONGEST).then_some(value)
    };
    let mut text = format!("From: {}\r\n", value("From").as_deref().unwrap_or(NOBODY));
    for name in ["To", "Date", "Message-ID"] {
        if let Some(value) = value(name) {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    text.push_str(&format!("Subject: {SUBJECT}\r\n{BODY}"));
    text.into_bytes()
}

/// The message in a wrapper of ours; `None` where `bytes` are none.
pub fn inner(bytes: &[u8]) -> Option<&[u8]> {
    let end = memchr::memmem::find(bytes, BODY.as_bytes())? + BODY.len();
    let (header, message) = bytes.split_at(end);
    (header == wrapper(message)).then_some(message)
}

/// What a message may have been before Cyrus' LMTP gave it a Message-ID, a Date, or both, after its
/// last field (imap/lmtpengine.c, savemsg).
pub fn without_added(bytes: &[u8]) -> Vec<Vec<u8>> {
    let (header, _) = split(bytes);
    let is_added = |field: &Field<'_>| {
        let is_id = || field.unfolded().starts_with(b"<cmu-lmtpd-");
        field.is(b"date") || field.is(b"message-id") && is_id()
    };
    let all: Vec<Field<'_>> = fields(header).collect();
    let (rest, mut end) = (&bytes[header.len()..], header.len());
    let added = all.iter().rev().take(2).take_while(|field| is_added(field));
    added
        .map(|field| {
            end -= field.raw.len();
            [&header[..end], rest].concat()
        })
        .collect()
}

/// A message that was handed over, without what was put before it: the server's trace fields, and
/// ours, the last of which is called `last` (in lower case) and has one line. All of `bytes` where
/// a field that counts for the identity stands before that one: then a stranger wrote it.
pub fn handed<'a>(bytes: &'a [u8], last: &str) -> &'a [u8] {
    let mut end = 0;
    for field in fields(split(bytes).0).take_while(|field| !is_authored(field)) {
        if field.is(last.as_bytes()) {
            // What continues it is the message's.
            let line = memchr::memchr(b'\n', field.raw).map_or(field.raw.len(), |at| at + 1);
            return &bytes[end + line..];
        }
        end += field.raw.len();
    }
    bytes
}

/// Whether a message that begins with `start` may be a wrapper.
pub fn may_be_wrapper(start: &[u8]) -> bool {
    memchr::memmem::find(start, SUBJECT.as_bytes()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{DedupBy, Identity};

    const DAMAGED: &[u8] = b"Received: by x\r\nFrom: Ann\r\n <a@b>\r\nMessage-ID: <1@x>\r\n\
                             no field\r\nDate: Mon, 23 Nov 2026 07:00:00 +0000\r\n\r\nbody\r\n";

    #[test]
    fn a_header_of_fields_that_ends_by_an_empty_line_is_whole() {
        for whole in ["", "A: b\r\n\r\n", "A: b\n\nbody", "\r\nbody", "A: b\r\n c\r\n\r\n"] {
            assert!(!is_damaged(whole.as_bytes()), "{whole:?}");
        }
        for damaged in
            ["A: b", "A: b\r\n", "text\r\n\r\n", "A: b\nc\nD: e\n\n", "a b: c\n\n", "A : b\n\n"]
        {
            assert!(is_damaged(damaged.as_bytes()), "{damaged:?}");
        }
    }

    #[test]
    fn a_wrapper_has_what_is_plain_of_the_message_and_gives_it_back() {
        let wrapped = [&wrapper(DAMAGED)[..], DAMAGED].concat();
        let text = String::from_utf8_lossy(&wrapped);
        let start = format!("From: Ann <a@b>\r\nMessage-ID: <1@x>\r\nSubject: {SUBJECT}\r\nMIME-");
        assert!(text.starts_with(&start), "{text}");
        assert_eq!(inner(&wrapped), Some(DAMAGED));
        assert!(!is_damaged(&wrapped));
        let identity = |bytes| Identity::of(bytes, DedupBy::Content);
        assert_eq!(identity(&wrapped).message_id, identity(DAMAGED).message_id);
        for odd in [&b"From: \xe9@b\r\nMessage-ID: a\0b"[..], b"", b"text"] {
            let wrapped = [&wrapper(odd)[..], odd].concat();
            assert!(wrapped.starts_with(b"From: MAILER-DAEMON\r\nSubject: "));
            assert_eq!(inner(&wrapped), Some(odd));
        }
    }

    #[test]
    fn one_that_was_handed_over_stands_behind_our_fields() {
        let wrapped = [&wrapper(DAMAGED)[..], DAMAGED].concat();
        let last = "x-onedrop-try";
        let before = &b"Return-Path: <>\r\nX-Onedrop-Copy: 0\r\nX-Onedrop-Try: 12\r\n"[..];
        let unwrapped =
            |copy: &[u8]| inner(handed(&[before, copy].concat(), last)).map(<[u8]>::to_vec);
        assert_eq!(unwrapped(&wrapped).as_deref(), Some(DAMAGED));
        let attached = [&b"X-Onedrop-Try: 1\r\n"[..], &wrapped].concat();
        for other in [&[&b"A: b\r\n"[..], &wrapped].concat(), &attached, DAMAGED, b""] {
            assert_eq!(unwrapped(other), None, "{:?}", String::from_utf8_lossy(other));
        }
        // Whatever the message begins with.
        for message in [&b" text\r\n\r\nbody"[..], b"text", b"Subject: a\r\n\r\nbody"] {
            assert_eq!(handed(&[before, message].concat(), last), message);
        }
        // What is shown of it counts.
        let forged = [&b"Subject: another\r\n"[..], before, DAMAGED].concat();
        assert_eq!(handed(&forged, last), forged);
        assert_eq!(handed(DAMAGED, last), DAMAGED);
    }

    #[test]
    fn what_a_stranger_has_sent_is_no_wrapper() {
        let wrapped = [&wrapper(DAMAGED)[..], DAMAGED].concat();
        let received = [&b"Received: by us\r\n"[..], &wrapped].concat();
        let other = [&wrapper(DAMAGED)[..], &DAMAGED.to_ascii_uppercase()].concat();
        for strange in [&received, &other, DAMAGED, b""] {
            assert_eq!(inner(strange), None, "{:?}", String::from_utf8_lossy(strange));
        }
    }
}
