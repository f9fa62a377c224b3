//! A message as received, and its identity.
//!
//! Promise: the received bytes are never rewritten. A recipient's own copy starts after a leading
//! mbox `From ` line, a shared copy starts after the leading per-recipient fields as well. Any
//! bytes make a message; nothing here fails or panics.
//!
//! The identity is the raw first Message-ID and a digest of what the author wrote. Copies that took
//! different routes are equal, and a forged message with the same Message-ID does not suppress the
//! real one.

use std::io::Read;

mod bytes;
mod date;
mod facts;
mod fields;
mod head;
mod identity;
mod nul;
mod one_address;
mod parts;
mod received;
mod variant;
mod wrapped;

pub use bytes::Bytes;
pub use facts::{AddressFact, Facts, from_addresses};
pub use fields::{Field, fields, split};
pub use head::{OUR_RECEIVED, ReceivedClauses, trace_head};
pub use identity::{DedupBy, Identity, sent_at};
pub use nul::{NulError, restore_nul};
pub use parts::PartFact;
pub use received::taken_at;
pub use variant::{SoughtVariant, filter_variant, nul_variant};
pub use wrapped::{handed, inner, is_damaged, may_be_wrapper, without_added, wrapper};

/// Read at once.
const BLOCK: usize = 16 * 1024;

/// Fields that Postfix prepends for one recipient; a shared copy leaves the leading ones out.
const PER_RECIPIENT: [&[u8]; 3] = [b"return-path", b"x-original-to", b"delivered-to"];

/// The subset that pipe(8) or an LMTP server prepends at final delivery (RFC 5321 section 4.4).
const FINAL_DELIVERY: [&[u8]; 2] = [b"return-path", b"delivered-to"];

/// Why the message could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("larger than {limit} bytes")]
    TooLarge { limit: u64 },
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// A message, its identity, and where its copies begin.
#[derive(Debug)]
pub struct Message {
    bytes: Bytes,
    by: DedupBy,
    identity: Identity,
    start: usize,
    shared_start: usize,
}

impl Message {
    /// Reads `input` to its end. If `limit` is not 0, a longer message is refused; it is read to
    /// its end all the same, so that the writer does not get a broken pipe.
    pub fn read(mut input: impl Read, limit: u64, by: DedupBy) -> Result<Message, ReadError> {
        // Into an empty vector the first reads would be small.
        let mut bytes = Vec::with_capacity(BLOCK);
        if limit == 0 {
            input.read_to_end(&mut bytes)?;
        } else {
            input.by_ref().take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
            if bytes.len() as u64 > limit {
                std::io::copy(&mut input, &mut std::io::sink())?;
                return Err(ReadError::TooLarge { limit });
            }
        }
        Ok(Message::new(bytes, by))
    }

    pub fn new(bytes: impl Into<Bytes>, by: DedupBy) -> Message {
        let bytes = bytes.into();
        let start = mbox_line(&bytes);
        let identity = Identity::of(&bytes[start..], by);
        let shared_start = start + leading(&bytes[start..], is_per_recipient);
        Message { bytes, by, identity, start, shared_start }
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    pub fn dedup_by(&self) -> DedupBy {
        self.by
    }

    /// All bytes as received, a leading mbox `From ` line included.
    pub fn received(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes of a recipient's own copy: as received, without a leading mbox `From ` line.
    pub fn own_copy(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// The bytes of a shared copy: without the leading fields that name one recipient.
    pub fn shared_copy(&self) -> &[u8] {
        &self.bytes[self.shared_start..]
    }

    /// The recipient's own copy, in pieces, for a server that prepends Return-Path and Delivered-To
    /// itself: those two are left out of the leading fields. `None` if the server would change the
    /// message: the first remaining line looks like an mbox line or continues a field, or the last
    /// line has no line end.
    pub fn to_hand_over(&self) -> Option<Vec<&[u8]>> {
        let (leading, rest) = self.bytes[self.start..].split_at(self.shared_start - self.start);
        let kept =
            fields(leading).filter(|field| !FINAL_DELIVERY.iter().any(|name| field.is(name)));
        let mut pieces: Vec<&[u8]> = kept.map(|field| field.raw).collect();
        pieces.push(rest);
        let continues = pieces[0].starts_with(b" ") || pieces[0].starts_with(b"\t");
        let ends = self.bytes.ends_with(b"\n");
        (mbox_line(pieces[0]) == 0 && !continues && ends).then_some(pieces)
    }

    /// Whether the message holds a NUL byte. IMAP literals must not (RFC 3501 section 4.3).
    pub fn has_nul(&self) -> bool {
        memchr::memchr(0, self.own_copy()).is_some()
    }

    /// The positions of the NUL bytes for [`restore_nul`], in at most 64 KiB; `None` if there are
    /// none.
    pub fn nul_runs(&self) -> Option<Vec<u8>> {
        nul::runs(self.own_copy())
    }

    /// The header block's fields, top to bottom.
    pub fn fields(&self) -> impl Iterator<Item = Field<'_>> {
        fields(split(self.own_copy()).0)
    }

    /// The unfolded, trimmed value of the top-most field called `name` (lower case).
    pub fn first(&self, name: &str) -> Option<Vec<u8>> {
        self.fields().find(|field| field.is(name.as_bytes())).map(|field| field.unfolded())
    }

    /// The address in the top-most field called by the first of these `names` (lower case) that is
    /// there, above the first Received, if it is one address. There only the server that delivered
    /// the message writes. What stands below, or in a message that no server has received, anybody
    /// can have written: mail would go into mailboxes, and answers of filters to addresses, that
    /// its sender chose.
    pub fn prepended_address(&self, names: &[&[u8]]) -> Option<String> {
        let above = self.fields().position(|field| field.is(b"received")).unwrap_or(0);
        let said = |name: &&[u8]| {
            let field = self.fields().take(above).find(|field| field.is(name))?;
            let value = String::from_utf8_lossy(&field.unfolded()).trim().to_owned();
            Some(value).filter(|value| !value.is_empty())
        };
        let value = names.iter().find_map(said)?;
        one_address::one_address(&value).map(str::to_owned)
    }

    /// What the ledger records besides the identity: addresses, subject, date, MIME parts. Parses
    /// the header block and scans for MIME boundaries.
    pub fn facts(&self) -> Facts {
        Facts::of(self.own_copy())
    }
}

/// `head` without the leading fields that name one recipient.
pub fn without_recipient(head: &[u8]) -> &[u8] {
    &head[leading(head, is_per_recipient)..]
}

/// Length of the leading mbox `From ` line, 0 if there is none. The line that local(8) prepends
/// ends in LF or CRLF, holds no other CR, and a message follows it. Any other `From ` belongs to
/// the message.
fn mbox_line(bytes: &[u8]) -> usize {
    let Some(rest) = bytes.strip_prefix(b"From ") else { return 0 };
    // "From : lisa@..." is a header field in RFC 5322's obsolete syntax (section 4.5).
    if rest.iter().find(|byte| **byte != b' ') == Some(&b':') {
        return 0;
    }
    let Some(end) = memchr::memchr(b'\n', bytes) else { return 0 };
    let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
    if memchr::memchr(b'\r', line).is_some() || end + 1 == bytes.len() { 0 } else { end + 1 }
}

/// Length of the leading run of fields that `belongs` takes.
fn leading(bytes: &[u8], belongs: impl FnMut(&Field<'_>) -> bool) -> usize {
    fields(split(bytes).0).take_while(belongs).map(|field| field.raw.len()).sum()
}

fn is_per_recipient(field: &Field<'_>) -> bool {
    PER_RECIPIENT.iter().any(|name| field.is(name))
}
