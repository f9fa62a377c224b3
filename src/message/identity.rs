//! The identity of a message: the raw first Message-ID, and a digest of what its author wrote. Both
//! are part of the ledger's frozen format: if one byte of a hash changed, everything in flight
//! would be delivered a second time. `fixtures/identity` holds messages with their hashes.

use sha2::{Digest, Sha256};

use super::fields::{Field, fields, split};
use super::{date, head};
use crate::lock_key::{self, Hash};

/// Fields that the author writes, besides [`AUTHORED_KINDS`]. The last five direct answers, keys
/// and receipts: if they did not count, an attacker who knows a message could send it first with
/// other values in them.
const AUTHORED: [&[u8]; 16] = [
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
    b"mail-followup-to",
    b"mail-reply-to",
    b"autocrypt",
    b"disposition-notification-to",
    b"return-receipt-to",
];

/// Prefixes of the names of further authored fields: about the body, and about a resent message.
const AUTHORED_KINDS: [&[u8]; 2] = [b"content-", b"resent-"];

/// The exceptions: mail stores write Content-Length, and only some recipients see Resent-Bcc.
const NOT_AUTHORED: [&[u8]; 2] = [b"content-length", b"resent-bcc"];

/// 1990-01-01 00:00 UTC, in seconds since 1970. An earlier Date comes from a clock that was never
/// set.
const FIRST_DATE: i64 = 631_152_000;

/// Seconds by which a Date may be later than the oldest Received: wrong time zones, and clocks that
/// are a day off.
const LATEST_DATE: i64 = 2 * 86_400;

/// A longer Message-ID is ignored; RFC 5322 allows 998 bytes in a line.
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

/// The identity of a message. Equal identities are one message.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Raw bytes of the first Message-ID field, unfolded and trimmed; `None` if absent, empty or
    /// too long.
    pub message_id: Option<Vec<u8>>,
    /// Hash of the Message-ID, or of the digest if there is none. Its first eight bytes are the
    /// lock key.
    pub id_hash: Hash,
    /// SHA-256 of what the author wrote; under [`DedupBy::MessageId`] the `id_hash` takes its
    /// place.
    pub digest: Hash,
}

impl PartialEq for Identity {
    fn eq(&self, other: &Identity) -> bool {
        self.id_hash == other.id_hash && self.digest == other.digest
    }
}

impl Eq for Identity {}

impl Identity {
    pub fn of(bytes: &[u8], by: DedupBy) -> Identity {
        let (header, body) = split(bytes);
        let message_id = first_message_id(header);
        let is_separated = header.len() + body.len() < bytes.len();
        let received = received_that_counts(header, message_id.is_some());
        let digest = content_digest(header, body, is_separated, received.as_ref());
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
    // IMAP servers store NUL as 0x80; the identity must be the same in the store.
    for byte in &mut id {
        if *byte == 0 {
            *byte = 0x80;
        }
    }
    (!id.is_empty() && id.len() <= LONGEST_MESSAGE_ID).then_some(id)
}

/// The oldest (bottom-most) Received that is not ours, if the Message-ID is missing or the Date
/// does not distinguish messages. An alarm from a machine without a clock has the same text each
/// time, and each one must be delivered. The first server's Received distinguishes them; it is the
/// same for all recipients and retries, and forwarding adds its fields above it.
fn received_that_counts(header: &[u8], has_message_id: bool) -> Option<Field<'_>> {
    let oldest =
        fields(header).filter(|field| field.is(b"received") && !is_our_own(field)).last()?;
    (!has_message_id || !has_date(header, &oldest)).then_some(oldest)
}

/// Whether the first Date distinguishes messages: it can be read, and is not that of a wrong clock.
/// Without a readable date in the Received, no Date is too late.
fn has_date(header: &[u8], oldest: &Field<'_>) -> bool {
    let Some(field) = fields(header).find(|field| field.is(b"date")) else { return false };
    let Some(date) = date::seconds(&field.unfolded()) else { return false };
    let received = oldest.unfolded();
    // RFC 5322 section 3.6.7: the date follows the last semicolon.
    let received =
        memchr::memrchr(b';', &received).and_then(|at| date::seconds(&received[at + 1..]));
    date >= FIRST_DATE
        && received.is_none_or(|received| date <= received.saturating_add(LATEST_DATE))
}

/// SHA-256 of the authored fields in their order, relaxed as in DKIM (RFC 6376 section 3.4.2), then
/// `received`, then the body with line ends as CRLF, NUL as 0x80 and without trailing empty lines.
/// CRs right before a line end belong to it.
fn content_digest(
    header: &[u8],
    body: &[u8],
    is_separated: bool,
    received: Option<&Field<'_>>,
) -> Hash {
    let mut digest = CanonicalDigest { sha: Sha256::new(), buffer: Vec::with_capacity(BUFFER) };
    for field in fields(header).filter(is_authored) {
        digest.put_field(&field);
    }
    if let Some(received) = received {
        digest.put_field(received);
    }
    // If the empty line is missing, a mail program may read the start of the body as header fields.
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

/// Whether this program prepended the Received field; each attempt writes another one.
pub(super) fn is_our_own(received: &Field<'_>) -> bool {
    memchr::memmem::find(&received.relaxed(), head::OUR_RECEIVED).is_some()
}

fn is_authored(field: &Field<'_>) -> bool {
    let name = field.name_lower();
    let is_of_a_kind = AUTHORED_KINDS.iter().any(|kind| name.starts_with(kind));
    (is_of_a_kind && !NOT_AUTHORED.contains(&name.as_slice()))
        || AUTHORED.contains(&name.as_slice())
}

const BUFFER: usize = 16_384;

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
        // Blanks are significant in boundaries and file names.
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
        for byte in &mut self.buffer {
            if *byte == 0 {
                *byte = 0x80;
            }
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
    fn trace_fields_line_ends_and_folding_do_not_change_the_identity() {
        let plain = b"Message-ID: <a@b>\nDate: 1 Mar 2026 10:00 GMT\nSubject: one two\n\nbody\n";
        let travelled = b"Return-Path: <x@y>\r\nDelivered-To: doug@b\r\n\
            Received: from a by b;\r\n\tnow\r\nMESSAGE-ID:\r\n <a@b>\r\nX-Spam-Flag: NO\r\n\
            Date: 1 Mar\r\n\t 2026 10:00 GMT\r\nSubject: one\r\n  two \r\n\r\nbody\r\n\r\n\r\n";
        assert_eq!(identity(plain), identity(travelled));
        assert_eq!(identity(plain), identity(plain.trim_ascii_end()));
    }

    #[test]
    fn other_content_by_the_author_makes_another_message() {
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

    /// Written out, so that the code's lists are not compared with themselves.
    const WRITTEN_BY_THE_AUTHOR: [&str; 30] = [
        "From",
        "Sender",
        "Reply-To",
        "To",
        "Cc",
        "Subject",
        "Date",
        "Message-ID",
        "In-Reply-To",
        "References",
        "MIME-Version",
        "Mail-Followup-To",
        "Mail-Reply-To",
        "Autocrypt",
        "Disposition-Notification-To",
        "Return-Receipt-To",
        "Content-Type",
        "Content-Transfer-Encoding",
        "Content-Disposition",
        "Content-ID",
        "Content-Language",
        "Content-Lengths",
        "Resent-From",
        "Resent-Sender",
        "Resent-To",
        "Resent-Cc",
        "Resent-Date",
        "Resent-Message-ID",
        "Resent-Reply-To",
        "Resent-Bccs",
    ];

    const ADDED_ON_THE_WAY: [&str; 38] = [
        "Return-Path",
        "Delivered-To",
        "X-Original-To",
        "Envelope-To",
        "Received",
        "Received-SPF",
        "Authentication-Results",
        "DKIM-Signature",
        "DomainKey-Signature",
        "ARC-Seal",
        "ARC-Message-Signature",
        "ARC-Authentication-Results",
        "X-Spam-Status",
        "X-Spam-Flag",
        "X-Virus-Scanned",
        "X-Mailer",
        "X-Message-ID",
        "X-Content-Type",
        "Errors-To",
        "Precedence",
        "List-Id",
        "List-Post",
        "List-Help",
        "List-Subscribe",
        "List-Unsubscribe",
        "List-Unsubscribe-Post",
        "List-Archive",
        "List-Owner",
        "Bcc",
        "Resent-Bcc",
        "Content-Length",
        "Lines",
        "Status",
        "X-Status",
        "X-UID",
        "Apparently-To",
        "Importance",
        "User-Agent",
    ];

    /// The digests with this line above, between and below the other header lines.
    fn digests_with(line: &str) -> [Hash; 3] {
        let [one, two] = [
            "Message-ID: <a@b>\nDate: 1 Mar 2026 10:00 +0000\n",
            "From: lisa@gmail.com\nSubject: x\n",
        ];
        [[line, one, two], [one, line, two], [one, two, line]]
            .map(|lines| identity(format!("{}\nbody\n", lines.concat()).as_bytes()).digest)
    }

    #[test]
    fn each_field_of_the_authors_counts() {
        for name in WRITTEN_BY_THE_AUTHOR {
            let digests =
                ["", "one@x", "two@x"].map(|value| digests_with(&format!("{name}: {value}\n")));
            for other in [digests[1], digests[2], digests_with("")] {
                for (at, digest) in other.iter().enumerate() {
                    assert_ne!(digests[0][at], *digest, "{name}");
                }
            }
            assert_ne!(digests[1], digests[2], "{name}");
            // The name's case and blanks before the colon do not matter.
            for name in [name.to_uppercase(), name.to_lowercase(), format!("{name} ")] {
                assert_eq!(digests_with(&format!("{name}: one@x\n")), digests[1], "{name}");
            }
        }
    }

    #[test]
    fn no_field_that_is_added_on_the_way_counts() {
        let plain = digests_with("");
        for name in ADDED_ON_THE_WAY {
            for value in
                ["", "one@x", "by mx.example (Postfix) id A1; Sun, 1 Mar 2026 10:00:05 +0000"]
            {
                assert_eq!(digests_with(&format!("{name}: {value}\n")), plain, "{name}: {value}");
            }
        }
    }

    const ID: &str = "Message-ID: <a@b>\n";
    const DATE: &str = "Date: Sun, 1 Mar 2026 10:00:00 +0000\n";

    /// Whether an alarm with these fields is two messages if it arrives twice. Each time the first
    /// server and a relay prepend a Received.
    fn is_new_each_time(fields: &str) -> bool {
        let alarm = |id: &str, minute: u8| {
            let received = format!(
                "Received: from relay by mx id {id}2; Sun, 1 Mar 2026 10:{minute:02}:30 +0000\n\
                 Received: from ups by relay id {id};\n\tSun, 1 Mar 2026 10:{minute:02}:00 +0000\n"
            );
            identity(format!("{received}Subject: on battery\n{fields}\nbody\n").as_bytes())
        };
        assert_eq!(alarm("A", 0), alarm("A", 0));
        alarm("A", 0) != alarm("B", 5)
    }

    #[test]
    fn an_alarm_without_a_usable_id_or_date_is_new_each_time_it_arrives() {
        assert!(!is_new_each_time(&[ID, DATE].concat()));
        for without in ["", ID, DATE] {
            assert!(is_new_each_time(without), "{without}");
        }
        let longest = format!("Message-ID: {}\n", "x".repeat(LONGEST_MESSAGE_ID));
        assert!(!is_new_each_time(&[&longest, DATE].concat()));
        let longer = format!("Message-ID: {}\n", "x".repeat(LONGEST_MESSAGE_ID + 1));
        for id in
            ["Message-ID:\n", "Message-ID: \n\t \n", "Message-ID:\nMessage-ID: <a@b>\n", &longer]
        {
            assert!(is_new_each_time(&[id, DATE].concat()), "{id}");
        }
        for date in ["", " ", "now", "Sun Mar  1 10:00:00 2026", "Sun, 1 Mar 2026 10:00:00"] {
            assert!(is_new_each_time(&format!("{ID}Date: {date}\n{DATE}")), "{date}");
        }
    }

    #[test]
    fn the_date_of_a_wrong_clock_does_not_count() {
        for (date, says_nothing) in [
            ("1 Jan 1970 00:00:00 +0000", true),
            ("31 Dec 1989 23:59:59 +0000", true),
            ("1 Jan 1990 00:00:00 +0000", false),
            ("31 Dec 1989 23:00:00 -0100", false),
            ("1 Jan 1990 00:59:59 +0100", true),
            ("1 Mar 2025 10:00:00 +0000", false),
            ("3 Mar 2026 10:00:00 +0000", false),
            ("3 Mar 2026 10:05:01 +0000", true),
            ("3 Mar 2026 05:05:01 EST", true),
            ("19 Jan 2038 03:14:07 +0000", true),
        ] {
            assert_eq!(is_new_each_time(&format!("{ID}Date: {date}\n")), says_nothing, "{date}");
        }
        // The limit is exact to the second.
        let with = |date: &str, received: &str| {
            identity(format!("Received: by x; {received}\n{ID}Date: {date}\n\nbody\n").as_bytes())
        };
        let without = |date: &str| identity(format!("{ID}Date: {date}\n\nbody\n").as_bytes());
        for (date, received, counts) in [
            ("3 Mar 2026 10:00:00 +0000", "1 Mar 2026 10:00:00 +0000", false),
            ("3 Mar 2026 10:00:01 +0000", "1 Mar 2026 10:00:00 +0000", true),
            ("3 Mar 2026 10:00:01 +0000", "1 Mar 2026 10:00:01 +0000 (a comment)", false),
            // Without a readable date in the Received no Date is too late.
            ("3 Mar 2036 10:00:00 +0000", "some day", false),
            ("3 Mar 2036 10:00:00 +0000", "", false),
        ] {
            assert_eq!(with(date, received) != without(date), counts, "{date}, {received}");
        }
    }

    #[test]
    fn the_date_of_a_received_follows_its_last_semicolon() {
        let late = format!("{ID}Date: 3 Mar 2036 10:00:00 +0000\n");
        let counts = |received: &str| {
            identity(format!("Received: {received}\n{late}\n").as_bytes())
                != identity(format!("{late}\n").as_bytes())
        };
        assert!(counts("by x (a; b); 1 Mar 2026 10:00:00 +0000"));
        assert!(counts("; 1 Mar 2026 10:00:00 +0000"));
        assert!(!counts("by x 1 Mar 2026 10:00:00 +0000"));
        assert!(!counts("by x; 1 Mar 2026 10:00:00 +0000; y"));
    }

    /// Copies for two recipients, a retry and a forwarded copy have the same oldest Received.
    #[test]
    fn only_the_oldest_received_that_is_not_ours_counts() {
        let first = "Received: from ups by mx\n\tid A1; Sun, 1 Mar 2026 10:00:00 +0000\n";
        let alarm = |above: &str| {
            identity(format!("{above}{first}Subject: on battery\n\nbody\n").as_bytes())
        };
        let ours = "Received: from mx by mda (Onedrop) with LMTP id 4Q\n\tfor <a@b>; now\n";
        for above in [
            "Received: from mx by other id B2; Sun, 1 Mar 2026 10:00:02 +0000\n",
            "Delivered-To: doug@x\nReceived: by other; x\nReceived: by third; y\n",
            ours,
        ] {
            assert_eq!(alarm(above), alarm(""), "{above}");
        }
        let plain = identity(b"Subject: on battery\n\nbody\n");
        assert_ne!(alarm(""), plain);
        let below = |below: &str| {
            identity(format!("{first}Subject: on battery\n{below}\nbody\n").as_bytes())
        };
        assert_ne!(below("Received: by older; x\n"), alarm(""));
        assert_eq!(below(ours), alarm(""));
        // Our own field never counts, however it is folded.
        for ours in [ours, "Received: from mx by mda (Onedrop)\n\twith LMTP id 4Q; now\n"] {
            assert_eq!(identity(format!("{ours}Subject: on battery\n\nbody\n").as_bytes()), plain);
        }
    }

    #[test]
    fn a_resent_message_is_another_one() {
        assert_ne!(
            identity(b"Message-ID: <a@b>\n\nbody"),
            identity(b"Resent-Message-ID: <c@d>\nMessage-ID: <a@b>\n\nbody")
        );
    }

    #[test]
    fn content_that_mail_programs_show_differently_is_different() {
        assert_ne!(identity(b"A: b\nno field\n\nrest"), identity(b"A: b\n\nno field\n\nrest"));
        assert_ne!(
            identity(b"Content-Type: x; b=\"a  b\"\n\n"),
            identity(b"Content-Type: x; b=\"a b\"\n\n")
        );
        assert_eq!(
            identity(b"Content-Type: x;\n b=c\n\n"),
            identity(b"Content-Type: x;\r\n b=c\r\n\r\n")
        );
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
        for none in [
            &b"Subject: x\n\nbody"[..],
            b"Message-ID:\nSubject: x\n\nbody",
            b"Message-ID: \n \nSubject: x\n\nbody",
        ] {
            let identity = identity(none);
            assert_eq!(identity.message_id, None);
            assert_eq!(identity.id_hash, lock_key::content_hash(&identity.digest));
        }
    }

    #[test]
    fn nul_counts_as_the_byte_that_imap_servers_store() {
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
