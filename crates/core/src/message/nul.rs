//! The positions of a message's NUL bytes. IMAP literals cannot hold NUL, so each one is sent as
//! 0x80; the ledger keeps the positions, in at most [`LONGEST`] bytes, so that they can be
//! restored.
//!
//! Offsets count from the first byte that all copies share: after the leading per-recipient fields
//! and our own Received. CRLF counts as one byte, like LF. So an offset is the same in the received
//! bytes, in every copy, and in what an IMAP server made of them.
//!
//! Frozen format: version (1), flags (1: runs were left out), then for each of the first runs its
//! distance from the end of the run before and its length, both as unsigned LEB128.

use super::identity::is_our_own;
use super::{is_per_recipient, leading};

/// Longest encoded value, in bytes.
const LONGEST: usize = 64 * 1024;

const VERSION: u8 = 1;
const RUNS_LEFT_OUT: u8 = 1;
/// The byte that IMAP servers get for a NUL.
const REPLACEMENT: u8 = 0x80;

/// Why no NUL bytes were restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NulError {
    #[error("positions of NUL bytes: unknown version or flags, or malformed at byte {0}")]
    Malformed(usize),
    #[error("not the message of these NUL bytes: one of them is missing or neither 0x80 nor NUL")]
    OtherMessage,
}

/// The encoded positions of the NUL bytes in `copy`, as many as fit; `None` if there is no NUL.
pub(super) fn runs(copy: &[u8]) -> Option<Vec<u8>> {
    memchr::memchr(0, copy)?;
    let (leading, mut rest) = copy.split_at(shared_start(copy));
    let mut left_out = memchr::memchr(0, leading).is_some();
    let mut out = vec![VERSION, 0];
    while let Some(at) = memchr::memchr(0, rest) {
        let end = out.len();
        let length = rest[at..].iter().take_while(|byte| **byte == 0).count();
        put_varint(&mut out, counted(&rest[..at]));
        put_varint(&mut out, length);
        if out.len() > LONGEST {
            out.truncate(end);
            left_out = true;
            break;
        }
        rest = &rest[at + length..];
    }
    out[1] = if left_out { RUNS_LEFT_OUT } else { 0 };
    Some(out)
}

/// Restores the NUL bytes in `copy`, any copy of the message with lines in LF or CRLF, from its
/// [`Message::nul_runs`](super::Message::nul_runs). Those that were left out stay 0x80.
///
/// # Errors
/// `copy` is unchanged.
pub fn restore_nul(copy: &mut [u8], nul_runs: &[u8]) -> Result<(), NulError> {
    let [VERSION, 0 | RUNS_LEFT_OUT, ..] = *nul_runs else { return Err(NulError::Malformed(0)) };
    let mut runs = Vec::new();
    let (mut read, mut at) = (2, shared_start(copy));
    while read < nul_runs.len() {
        let malformed = NulError::Malformed(read);
        let gap = take_varint(nul_runs, &mut read).ok_or(malformed)?;
        let length = take_varint(nul_runs, &mut read).ok_or(malformed)?;
        if length == 0 || (gap == 0 && !runs.is_empty()) {
            return Err(malformed);
        }
        for _ in 0..gap {
            at += if copy[at..].starts_with(b"\r\n") { 2 } else { 1 };
            if at >= copy.len() {
                return Err(NulError::OtherMessage);
            }
        }
        let end = at.checked_add(length).filter(|end| *end <= copy.len());
        let run = at..end.ok_or(NulError::OtherMessage)?;
        if !copy[run.clone()].iter().all(|byte| matches!(*byte, 0 | REPLACEMENT)) {
            return Err(NulError::OtherMessage);
        }
        at = run.end;
        runs.push(run);
    }
    for run in runs {
        copy[run].fill(0);
    }
    Ok(())
}

/// Where the bytes that all copies of a message share begin.
fn shared_start(copy: &[u8]) -> usize {
    leading(copy, |field| is_per_recipient(field) || (field.is(b"received") && is_our_own(field)))
}

/// The length of `bytes`, each CRLF counted as one.
fn counted(bytes: &[u8]) -> usize {
    bytes.len() - memchr::memmem::find_iter(bytes, b"\r\n").count()
}

fn put_varint(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads the number at `at` and advances `at`; `None` if it is cut, too large or not in the
/// shortest form.
fn take_varint(bytes: &[u8], at: &mut usize) -> Option<usize> {
    let mut value = 0u64;
    for place in 0..10 {
        let byte = *bytes.get(*at)?;
        *at += 1;
        let bits = u64::from(byte & 0x7f);
        if (place == 9 && bits > 1) || (place > 0 && byte == 0) {
            return None;
        }
        value |= bits << (7 * place);
        if byte < 0x80 {
            return usize::try_from(value).ok();
        }
    }
    None
}
