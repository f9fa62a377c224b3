//! Who a message is: the raw first Message-ID, and a digest over what its author wrote.

use sha2::{Digest, Sha256};

use super::fields::{Field, fields, split};
use super::head;
use crate::lock_key::{self, Hash};

/// Fields whose content the author chose, or who sent it again (besides `content-*` and `resent-*`).
const AUTHORED: [&[u8]; 11] = [
    b"from",
    b"sender",
    b"reply-to",
    b"to",
    b"cc",
    b"subject",
    b"date",
    b"message-id",
    b"in-reply-to",
    b"references",
    b"mime-version",
];

/// A Message-ID longer than this is not usable as one; RFC 5322 allows 998 bytes a line.
const LONGEST_MESSAGE_ID: usize = 4096;

/// What makes two messages the same (`dedup.by`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DedupBy {
    /// Message-ID and content digest.
    #[default]
    Content,
    /// Message-ID alone; without one, the content digest.
    MessageId,
}

/// Who a message is. Equal identities are one message.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Raw bytes of the first Message-ID field, unfolded and trimmed; `None` when absent, empty or unusable.
    pub message_id: Option<Vec<u8>>,
    /// Hash of the Message-ID, or of the digest in its place. Its first eight bytes are the lock key.
    pub id_hash: Hash,
    /// SHA-256 over what the author wrote; under [`DedupBy::MessageId`] the `id_hash` stands in for it.
    pub digest: Hash,
}

impl PartialEq for Identity {
    fn eq(&self, other: &Identity) -> bool {
        self.id_hash == other.id_hash && self.digest == other.digest
    }
}

impl Eq for Identity {}

impl Identity {
    /// The identity of the message in `bytes`.
    pub fn of(bytes: &[u8], by: DedupBy) -> Identity {
        let (header, body) = split(bytes);
        let message_id = first_message_id(header);
        let is_separated = header.len() + body.len() < bytes.len();
        let digest = content_digest(header, body, is_separated, message_id.is_none());
        let id_hash = match &message_id {
            Some(id) => lock_key::message_hash(id),
            None => lock_key::content_hash(&digest),
        };
        let digest = match by {
            DedupBy::MessageId if message_id.is_some() => id_hash,
            DedupBy::MessageId | DedupBy::Content => digest,
        };
        Identity { message_id, id_hash, digest }
    }

    /// Names this message's copy in one mailbox.
    pub fn copy_key(&self, account: &str, mailbox: &str) -> Hash {
        lock_key::copy_hash(&self.id_hash, &self.digest, account, mailbox)
    }
}

fn first_message_id(header: &[u8]) -> Option<Vec<u8>> {
    let mut id = fields(header).find(|field| field.is(b"message-id"))?.unfolded();
    // What an IMAP server makes of NUL, so that the identity survives the store.
    for byte in &mut id {
        if *byte == 0 {
            *byte = 0x80;
        }
    }
    (!id.is_empty() && id.len() <= LONGEST_MESSAGE_ID).then_some(id)
}

/// SHA-256 over the authored fields in their order, relaxed as in DKIM (RFC 6376 section 3.4.2), and the body with line
/// ends as CRLF, NUL as 0x80 and without trailing empty lines. CRs before a line's end count as part of it.
///
/// A message with neither Message-ID nor Date is no message of its own by what its author wrote: an alarm reads the same
/// each time. There the top-most Received counts as well, which Postfix wrote, once for all recipients.
fn content_digest(header: &[u8], body: &[u8], is_separated: bool, is_anonymous: bool) -> Hash {
    let mut digest = CanonicalDigest { sha: Sha256::new(), buffer: Vec::with_capacity(BUFFER) };
    for field in fields(header).filter(is_authored) {
        digest.put_field(&field);
    }
    if is_anonymous && !fields(header).any(|field| field.is(b"date")) {
        let received = fields(header).find(|field| field.is(b"received") && !is_our_own(field));
        received.iter().for_each(|field| digest.put_field(field));
    }
    // Without the empty line a mail reader may take the body's start for header fields.
    digest.put(if is_separated || body.is_empty() { b"\r\n" } else { b"\n" });
    let mut empty_lines = 0usize;
    for line in body.split_inclusive(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let trailing_crs = line.iter().rev().take_while(|byte| **byte == b'\r').count();
        let line = &line[..line.len() - trailing_crs];
        if line.is_empty() {
            empty_lines += 1;
            continue;
        }
        for _ in 0..empty_lines {
            digest.put(b"\r\n");
        }
        empty_lines = 0;
        digest.put(line);
        digest.put(b"\r\n");
    }
    digest.finish()
}

/// Whether a Received field is one that this program prepended, which each try does anew.
pub(super) fn is_our_own(received: &Field<'_>) -> bool {
    memchr::memmem::find(&received.unfolded(), head::OUR_RECEIVED).is_some()
}

fn is_authored(field: &Field<'_>) -> bool {
    let name = field.name_lower();
    AUTHORED.contains(&name.as_slice()) || name.starts_with(b"content-") || name.starts_with(b"resent-")
}

const BUFFER: usize = 16 * 1024;

/// Collects small pieces before hashing them, and turns NUL into 0x80.
struct CanonicalDigest {
    sha: Sha256,
    buffer: Vec<u8>,
}

impl CanonicalDigest {
    fn put_field(&mut self, field: &Field<'_>) {
        let name = field.name_lower();
        self.put(&name);
        self.put(b":");
        // A blank more or less in a boundary or a file name is another boundary or name.
        self.put(&if name.starts_with(b"content-") { field.unfolded() } else { field.relaxed() });
        self.put(b"\r\n");
    }

    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let take = bytes.len().min(BUFFER - self.buffer.len());
            self.buffer.extend_from_slice(&bytes[..take]);
            bytes = &bytes[take..];
            if self.buffer.len() == BUFFER {
                self.flush();
            }
        }
    }

    fn flush(&mut self) {
        let mut from = 0;
        while let Some(at) = memchr::memchr(0, &self.buffer[from..]) {
            self.buffer[from + at] = 0x80;
            from += at + 1;
        }
        self.sha.update(&self.buffer);
        self.buffer.clear();
    }

    fn finish(mut self) -> Hash {
        self.flush();
        self.sha.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(bytes: &[u8]) -> Identity {
        Identity::of(bytes, DedupBy::Content)
    }

    #[test]
    fn trace_fields_line_ends_and_folding_do_not_change_who_a_message_is() {
        let plain = b"Message-ID: <a@b>\nSubject: one two\n\nbody\n";
        let travelled = b"Return-Path: <x@y>\r\nDelivered-To: doug@b\r\nReceived: from a by b;\r\n\tnow\r\nMESSAGE-ID:\r\n <a@b>\r\nX-Spam-Flag: NO\r\nSubject: one\r\n  two \r\n\r\nbody\r\n\r\n\r\n";
        assert_eq!(identity(plain), identity(travelled));
        assert_eq!(identity(plain), identity(b"Message-ID: <a@b>\nSubject: one two\n\nbody"));
    }

    #[test]
    fn what_the_author_wrote_makes_another_message() {
        let one = identity(b"Message-ID: <a@b>\nSubject: one\n\nbody\n");
        for other in [
            &b"Message-ID: <a@b>\nSubject: two\n\nbody\n"[..],
            b"Message-ID: <a@b>\nSubject: one\n\nbody \n",
            b"Message-ID: <a@b>\nSubject: one\nCc: lisa@gmail.com\n\nbody\n",
        ] {
            let other = identity(other);
            assert_eq!(one.id_hash, other.id_hash);
            assert_ne!(one, other);
        }
    }

    #[test]
    fn an_alarm_without_id_and_date_is_new_each_time_it_comes_in() {
        let alarm = |received: &str, date: &str| {
            identity(format!("Delivered-To: x\nReceived: {received}\n{date}Subject: on battery\n\nbody\n").as_bytes())
        };
        assert_eq!(alarm("by mx id A1; 10:00", ""), alarm("by mx id A1;\n\t10:00", ""));
        assert_ne!(alarm("by mx id A1; 10:00", ""), alarm("by mx id B2; 10:05", ""));
        assert_eq!(alarm("by mx id A1; 10:00", "Date: now\n"), alarm("by mx id B2; 10:05", "Date: now\n"));
    }

    #[test]
    fn a_message_sent_again_is_another() {
        assert_ne!(
            identity(b"Message-ID: <a@b>\n\nbody"),
            identity(b"Resent-Message-ID: <c@d>\nMessage-ID: <a@b>\n\nbody")
        );
    }

    #[test]
    fn what_a_reader_may_see_differently_is_different() {
        assert_ne!(identity(b"A: b\nno field\n\nrest"), identity(b"A: b\n\nno field\n\nrest"));
        assert_ne!(identity(b"Content-Type: x; b=\"a  b\"\n\n"), identity(b"Content-Type: x; b=\"a b\"\n\n"));
        assert_eq!(identity(b"Content-Type: x;\n b=c\n\n"), identity(b"Content-Type: x;\r\n b=c\r\n\r\n"));
        assert_eq!(identity(b"Subject: x\n"), identity(b"Subject: x\r\n\r\n"));
    }

    #[test]
    fn the_first_message_id_field_counts_and_case_matters() {
        let two = identity(b"Message-ID: <A@b>\nMessage-ID: <c@d>\n\n");
        assert_eq!(two.message_id.as_deref(), Some(&b"<A@b>"[..]));
        assert_ne!(two.id_hash, identity(b"Message-ID: <a@b>\n\n").id_hash);
    }

    #[test]
    fn without_a_message_id_the_content_names_the_message() {
        for none in
            [&b"Subject: x\n\nbody"[..], b"Message-ID:\nSubject: x\n\nbody", b"Message-ID: \n \nSubject: x\n\nbody"]
        {
            let identity = identity(none);
            assert_eq!(identity.message_id, None);
            assert_eq!(identity.id_hash, lock_key::content_hash(&identity.digest));
        }
    }

    #[test]
    fn nul_counts_as_what_an_imap_server_makes_of_it() {
        assert_eq!(identity(b"Subject: x\n\na\0b\n"), identity(b"Subject: x\n\na\x80b\n"));
        assert_eq!(identity(b"Message-ID: <a\0b>\n\n"), identity(b"Message-ID: <a\x80b>\n\n"));
    }

    #[test]
    fn by_message_id_content_does_not_matter() {
        let one = Identity::of(b"Message-ID: <a@b>\n\none", DedupBy::MessageId);
        assert_eq!(one, Identity::of(b"Message-ID: <a@b>\n\ntwo", DedupBy::MessageId));
        assert_ne!(
            Identity::of(b"Subject: a\n\n", DedupBy::MessageId),
            Identity::of(b"Subject: b\n\n", DedupBy::MessageId)
        );
    }
}
