//! The identity of a message: the raw first Message-ID, and a digest of what its author wrote. Both
//! are part of the ledger's frozen format: if one byte of a hash changed, everything in flight
//! would be delivered a second time. `fixtures/identity` holds messages with their hashes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use super::Message;
use super::fields::{Field, fields, split};
use super::{Bytes, date, head};
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

/// Seconds by which a Date may be earlier than the oldest Received: a first server that hides its
/// own Received may queue for five days, and a clock be two days off. What is older comes from a
/// clock that stands where its battery left it.
const EARLIEST_DATE: i64 = 7 * 86_400;

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
    /// Raw bytes of the first Message-ID field, unfolded and trimmed; `None` if absent or too long,
    /// or if it names nothing.
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
        let digest = content_digest(header, body, is_separated, received.as_ref(), NUL_IN_IMAP);
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

    /// Whether it was made by the Message-ID alone: the content may be any. A ledger's rows may be
    /// older than the `dedup.by` in force.
    pub fn is_by_id(&self) -> bool {
        self.digest == self.id_hash
    }

    fn by(&self) -> DedupBy {
        if self.is_by_id() { DedupBy::MessageId } else { DedupBy::Content }
    }

    /// The message of this identity, if that is in `bytes`.
    pub fn message_in(&self, bytes: impl Into<Bytes>) -> Option<Message> {
        Some(Message::new(bytes, self.by())).filter(|message| message.identity() == self)
    }

    /// Whether it is that of the message in `bytes`, whichever `dedup.by` it was made by.
    pub fn is_that_of(&self, bytes: &[u8]) -> bool {
        Identity::of(bytes, self.by()) == *self
    }

    /// Whether the message in `bytes`, whose header is enough, has this first Message-ID; never
    /// where there is none.
    pub fn has_same_id(&self, bytes: &[u8]) -> bool {
        let (header, _) = split(bytes);
        first_message_id(header).is_some_and(|id| self.has_id(&id))
    }

    /// By the hash: of a message whose facts were forgotten it alone is known.
    fn has_id(&self, id: &[u8]) -> bool {
        lock_key::message_hash(id) == self.id_hash
    }

    /// Whether a message that begins with `start` may be this one, or have the same first
    /// Message-ID. False only where `start` shows another first Message-ID, or that there is none.
    pub fn may_begin_with(&self, start: &[u8]) -> bool {
        let (header, _) = split(start);
        let mut end = 0;
        let first = fields(header).find(|field| {
            end += field.raw.len();
            field.is(b"message-id")
        });
        let is_shown = match first {
            // What follows it does not continue it.
            Some(_) => end < start.len(),
            // The line that ends the header is whole.
            None => start[header.len()..].contains(&b'\n'),
        };
        !is_shown
            || match first_message_id(header) {
                Some(id) => self.has_id(&id),
                None => lock_key::content_hash(&self.digest) == self.id_hash,
            }
    }

    /// Names this message's copy in one mailbox.
    pub fn copy_key(&self, account: &str, mailbox: &str) -> Hash {
        lock_key::copy_hash(&self.id_hash, &self.digest, account, mailbox)
    }
}

fn first_message_id(header: &[u8]) -> Option<Vec<u8>> {
    let mut id = fields(header).find(|field| field.is(b"message-id"))?.unfolded();
    replace_nul(&mut id, NUL_IN_IMAP);
    (names_something(&id) && id.len() <= LONGEST_MESSAGE_ID).then_some(id)
}

/// Whether a letter, a digit or a byte that is not ASCII stands before the first `@`, comments in
/// front of it aside. Broken mailers write `<>`, `<@host>` or `()` into every message.
fn names_something(id: &[u8]) -> bool {
    let id = without_leading_comments(id);
    let left = memchr::memchr(b'@', id).map_or(id, |at| &id[..at]);
    left.iter().any(|byte| byte.is_ascii_alphanumeric() || !byte.is_ascii())
}

/// `id` without the comments (RFC 5322 section 3.2.2) in front of it; one that does not end stays.
fn without_leading_comments(id: &[u8]) -> &[u8] {
    let (mut depth, mut is_escaped) = (0usize, false);
    let mut rest = id;
    for (at, byte) in id.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if depth > 0 => is_escaped = true,
            b'(' => depth += 1,
            b')' if depth > 0 => {
                depth -= 1;
                if depth == 0 {
                    rest = &id[at + 1..];
                }
            }
            b' ' | b'\t' => {}
            _ if depth > 0 => {}
            _ => break,
        }
    }
    rest
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

/// When the message was sent, as far as its fields say: the earlier of its first Date and of its
/// oldest Received that is not ours. `None` where no Date can be read, or it comes from a clock
/// that was never set.
pub fn sent_at(message: &Message) -> Option<SystemTime> {
    let date = date::seconds(&message.first("date")?).filter(|date| *date >= FIRST_DATE)?;
    let oldest =
        message.fields().filter(|field| field.is(b"received") && !is_our_own(field)).last();
    let earlier = oldest.as_ref().and_then(received_at).map_or(date, |at| at.min(date));
    let secs = u64::try_from(earlier).ok()?;
    UNIX_EPOCH.checked_add(Duration::from_secs(secs))
}

pub(super) fn received_at(received: &Field<'_>) -> Option<i64> {
    let value = received.unfolded();
    // RFC 5322 section 3.6.7: the date follows the last semicolon.
    memchr::memrchr(b';', &value).and_then(|at| date::seconds(&value[at + 1..]))
}

/// Whether the first Date distinguishes messages: it can be read, and is not that of a wrong clock.
/// Without a readable date in the Received, no Date is too early or too late.
fn has_date(header: &[u8], oldest: &Field<'_>) -> bool {
    let Some(field) = fields(header).find(|field| field.is(b"date")) else { return false };
    let Some(date) = date::seconds(&field.unfolded()) else { return false };
    let received = received_at(oldest);
    let is_near = |received: i64| {
        date >= received.saturating_sub(EARLIEST_DATE)
            && date <= received.saturating_add(LATEST_DATE)
    };
    date >= FIRST_DATE && received.is_none_or(is_near)
}

/// SHA-256 of the authored fields in their order, relaxed as in DKIM (RFC 6376 section 3.4.2), then
/// `received`, then the body with line ends as CRLF, NUL as `nul` and without trailing empty lines.
/// CRs right before a line end belong to it.
fn content_digest(
    header: &[u8],
    body: &[u8],
    is_separated: bool,
    received: Option<&Field<'_>>,
    nul: u8,
) -> Hash {
    let buffer = Vec::with_capacity(2 * BUFFER);
    let mut digest = CanonicalDigest { sha: Sha256::new(), buffer, nul };
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
    memchr::memmem::find(&received.relaxed(), head::OUR_RECEIVED.as_bytes()).is_some()
}

pub(super) fn is_authored(field: &Field<'_>) -> bool {
    let name = field.name_lower();
    let is_of_a_kind = AUTHORED_KINDS.iter().any(|kind| name.starts_with(kind));
    (is_of_a_kind || AUTHORED.contains(&name.as_slice()))
        && !NOT_AUTHORED.contains(&name.as_slice())
}

/// What stands for NUL: IMAP servers store it so, and the identity must be the same in the store.
const NUL_IN_IMAP: u8 = 0x80;

fn replace_nul(bytes: &mut [u8], nul: u8) {
    bytes.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = nul);
}

/// The digest in which NUL and 0x80 are two; `None` where it is the other one, as no NUL counts.
pub(super) fn digest_with_nul(bytes: &[u8]) -> Option<Hash> {
    memchr::memchr(0, bytes)?;
    let (header, body) = split(bytes);
    let is_separated = header.len() + body.len() < bytes.len();
    let received = received_that_counts(header, first_message_id(header).is_some());
    let [with, without] = [0, NUL_IN_IMAP]
        .map(|nul| content_digest(header, body, is_separated, received.as_ref(), nul));
    (with != without).then_some(with)
}

const BUFFER: usize = 16_384;

/// Collects small pieces before hashing them.
struct CanonicalDigest {
    sha: Sha256,
    buffer: Vec<u8>,
    nul: u8,
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

    fn put(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(BUFFER) {
            self.buffer.extend_from_slice(piece);
            if self.buffer.len() >= BUFFER {
                self.flush();
            }
        }
    }

    fn flush(&mut self) {
        replace_nul(&mut self.buffer, self.nul);
        self.sha.update(&self.buffer);
        self.buffer.clear();
    }

    fn finish(mut self) -> Hash {
        self.flush();
        self.sha.finalize().into()
    }
}
