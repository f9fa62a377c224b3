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
use super::{PER_RECIPIENT, fields, split};

/// Longest encoded value, in bytes.
pub const LONGEST: usize = 64 * 1024;

const VERSION: u8 = 1;
const RUNS_LEFT_OUT: u8 = 1;
/// The byte that IMAP servers get for a NUL.
const REPLACEMENT: u8 = 0x80;

/// One run of NUL bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NulRun {
    /// Bytes before it, counted as described in the module's header.
    pub offset: u64,
    /// Number of NUL bytes, at least one.
    pub length: u64,
}

/// The runs of NUL bytes in a message, in order and not adjacent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NulRuns {
    runs: Vec<NulRun>,
    left_out: bool,
}

/// Why bytes are not an encoded [`NulRuns`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NulRunsError {
    #[error("positions of NUL bytes: unknown version {0}")]
    Version(u8),
    #[error("positions of NUL bytes: unknown flags {0:#04x}")]
    Flags(u8),
    #[error("positions of NUL bytes: {0} bytes, more than {LONGEST}")]
    TooLong(usize),
    #[error("positions of NUL bytes: cut or malformed at byte {0}")]
    Malformed(usize),
}

/// The runs do not belong to this copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the message of these NUL bytes: byte {offset} is missing or neither 0x80 nor NUL")]
pub struct Mismatch {
    pub offset: u64,
}

impl NulRuns {
    /// The runs in `copy`, as many as fit; `None` if there is no NUL.
    pub(super) fn of(copy: &[u8]) -> Option<NulRuns> {
        memchr::memchr(0, copy)?;
        let (leading, shared) = copy.split_at(shared_start(copy));
        let mut found =
            NulRuns { runs: Vec::new(), left_out: memchr::memchr(0, leading).is_some() };
        let mut encoded_bytes = 2;
        let (mut rest, mut offset) = (shared, 0);
        while let Some(at) = memchr::memchr(0, rest) {
            let gap = counted(&rest[..at]);
            let length = rest[at..].iter().take_while(|byte| **byte == 0).count();
            encoded_bytes += varint_length(gap) + varint_length(length as u64);
            if encoded_bytes > LONGEST {
                found.left_out = true;
                break;
            }
            offset += gap;
            found.runs.push(NulRun { offset, length: length as u64 });
            offset += length as u64;
            rest = &rest[at + length..];
        }
        Some(found)
    }

    pub fn runs(&self) -> &[NulRun] {
        &self.runs
    }

    /// Whether the message has more runs than these.
    pub fn has_more(&self) -> bool {
        self.left_out
    }

    /// At most [`LONGEST`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION, if self.left_out { RUNS_LEFT_OUT } else { 0 }];
        let mut end = 0;
        for run in &self.runs {
            put_varint(&mut out, run.offset - end);
            put_varint(&mut out, run.length);
            end = run.offset + run.length;
        }
        out
    }

    /// Reads what [`NulRuns::encode`] wrote.
    ///
    /// # Errors
    /// Another version, or bytes that `encode` never writes.
    pub fn decode(bytes: &[u8]) -> Result<NulRuns, NulRunsError> {
        if bytes.len() > LONGEST {
            return Err(NulRunsError::TooLong(bytes.len()));
        }
        let [version, flags, ..] = *bytes else { return Err(NulRunsError::Malformed(bytes.len())) };
        if version != VERSION {
            return Err(NulRunsError::Version(version));
        }
        if flags & !RUNS_LEFT_OUT != 0 {
            return Err(NulRunsError::Flags(flags));
        }
        let mut found = NulRuns { runs: Vec::new(), left_out: flags == RUNS_LEFT_OUT };
        let (mut at, mut end) = (2, 0u64);
        while at < bytes.len() {
            let malformed = NulRunsError::Malformed(at);
            let gap = take_varint(bytes, &mut at).ok_or(malformed)?;
            let length = take_varint(bytes, &mut at).ok_or(malformed)?;
            let is_adjacent = gap == 0 && !found.runs.is_empty();
            let offset = end.checked_add(gap).ok_or(malformed)?;
            end = offset.checked_add(length).ok_or(malformed)?;
            if is_adjacent || length == 0 {
                return Err(malformed);
            }
            found.runs.push(NulRun { offset, length });
        }
        Ok(found)
    }

    /// Restores the NUL bytes in `copy`, any copy of the message with lines in LF or CRLF.
    ///
    /// # Errors
    /// A byte at these positions is neither 0x80 nor NUL; then `copy` is unchanged.
    pub fn put_back(&self, copy: &mut [u8]) -> Result<(), Mismatch> {
        let mut places = Vec::new();
        let (mut at, mut offset) = (shared_start(copy), 0);
        for run in &self.runs {
            let mismatch = Mismatch { offset: run.offset };
            while offset < run.offset {
                at += if copy[at..].starts_with(b"\r\n") { 2 } else { 1 };
                offset += 1;
                if at >= copy.len() {
                    return Err(mismatch);
                }
            }
            let length = usize::try_from(run.length).map_err(|_| mismatch)?;
            let end = at.checked_add(length).filter(|end| *end <= copy.len()).ok_or(mismatch)?;
            if !copy[at..end].iter().all(|byte| matches!(*byte, 0 | REPLACEMENT)) {
                return Err(mismatch);
            }
            places.push(at..end);
            (at, offset) = (end, run.offset + run.length);
        }
        for place in places {
            copy[place].fill(0);
        }
        Ok(())
    }
}

/// Where the bytes that all copies of a message share begin.
fn shared_start(copy: &[u8]) -> usize {
    fields(split(copy).0)
        .take_while(|field| {
            PER_RECIPIENT.iter().any(|name| field.is(name))
                || (field.is(b"received") && is_our_own(field))
        })
        .map(|field| field.raw.len())
        .sum()
}

/// The length of `bytes`, each CRLF counted as one.
fn counted(bytes: &[u8]) -> u64 {
    (bytes.len() - memchr::memmem::find_iter(bytes, b"\r\n").count()) as u64
}

fn varint_length(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads the number at `at` and advances `at`; `None` if it is cut, too large or not in the
/// shortest form.
fn take_varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
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
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{DedupBy, Message};

    fn runs(bytes: &[u8]) -> Option<NulRuns> {
        Message::new(bytes.to_vec(), DedupBy::Content).nul_runs()
    }

    fn places(bytes: &[u8]) -> Vec<(u64, u64)> {
        runs(bytes).expect("NUL").runs().iter().map(|run| (run.offset, run.length)).collect()
    }

    fn replaced(bytes: &[u8]) -> Vec<u8> {
        bytes.iter().map(|byte| if *byte == 0 { REPLACEMENT } else { *byte }).collect()
    }

    /// As an IMAP server stores it.
    fn crlf(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for (at, byte) in bytes.iter().enumerate() {
            if *byte == b'\n' && (at == 0 || bytes[at - 1] != b'\r') {
                out.push(b'\r');
            }
            out.push(*byte);
        }
        out
    }

    #[test]
    fn a_message_has_runs_only_if_it_holds_nul() {
        assert_eq!(runs(b"Subject: x\n\nbody\x80\n"), None);
        assert_eq!(places(b"\0a\0\0b\0"), [(0, 1), (2, 2), (5, 1)]);
        assert_eq!(places(b"A: b\n\n\r\nx\r\0\n\0"), [(9, 1), (11, 1)]);
        assert_eq!(runs(b"x\0\0").expect("NUL").encode(), [1, 0, 1, 2]);
        assert_eq!(
            runs(&[&[b'x'; 300][..], &[0; 128], b"y\0"].concat()).expect("NUL").encode(),
            [1, 0, 0xac, 2, 0x80, 1, 1, 1]
        );
    }

    #[test]
    fn positions_are_the_same_in_every_copy() {
        let shared = b"Received: by mx\nSubject: a\0b\n\none\n\0two\0\0\r\n\0\n";
        let ours = b"Return-Path: <>\nDelivered-To: a@b\n\
            Received: from x\n\tby y (Onedrop) with LMTP id 1; now\n";
        let expected = places(shared);
        assert_eq!(expected, [(26, 1), (34, 1), (38, 2), (41, 1)]);
        for leading in [
            &b""[..],
            b"Delivered-To: scuba@b\n",
            b"From x\nReturn-Path: <l@g>\nX-Original-To: d@b\n",
            ours,
        ] {
            let copy = [leading, shared].concat();
            assert_eq!(places(&copy), expected);
            assert_eq!(places(&crlf(&copy)), expected);
            let own = copy.strip_prefix(b"From x\n").unwrap_or(&copy);
            for whole in [own.to_vec(), crlf(own)] {
                let mut stored = replaced(&whole);
                runs(shared).expect("NUL").put_back(&mut stored).expect("its copy");
                assert_eq!(stored, whole);
            }
        }
    }

    #[test]
    fn the_bytes_of_another_message_stay_unchanged() {
        let found = runs(b"a\0bc\0\0").expect("NUL");
        for other in [
            &b""[..],
            b"a",
            b"a\x80",
            b"a\x80bc\x80",
            b"a\x80bc\x80d",
            b"axbc\x80\x80",
            b"\x80abc\x80\x80",
        ] {
            let mut bytes = other.to_vec();
            assert!(found.put_back(&mut bytes).is_err(), "{}", other.escape_ascii());
            assert_eq!(bytes, other);
        }
        assert_eq!(found.put_back(&mut b"a\x80bc\x80d".to_vec()), Err(Mismatch { offset: 4 }));
        let far = NulRuns::decode(&[[1, 0].as_slice(), &[0xff; 9], &[1, 0]].concat());
        assert_eq!(far, Err(NulRunsError::Malformed(2)));
        let far = NulRuns::decode(&[&[1, 0][..], &[0xff; 8], &[0x7f, 5]].concat()).expect("valid");
        assert!(far.put_back(&mut b"abc".to_vec()).is_err());
        let long = NulRuns::decode(&[&[1, 0, 1][..], &[0xff; 8], &[0x7f]].concat()).expect("valid");
        assert!(long.put_back(&mut b"a\x80".to_vec()).is_err());
    }

    #[test]
    fn an_encoded_value_is_read_back_and_stays_below_its_limit() {
        for message in [&b"\0"[..], b"x\0", b"Subject: \0\0\n\n\0", &[0; 70_000]] {
            let found = runs(message).expect("NUL");
            assert!(!found.has_more());
            assert_eq!(NulRuns::decode(&found.encode()), Ok(found));
        }
        assert_eq!(LONGEST, 65_536);
        // Two bytes a run after two bytes of header: as many as fit, then one more.
        let most = (LONGEST - 2) / 2;
        let fits = runs(&b"x\0".repeat(most)).expect("NUL");
        assert_eq!((fits.encode().len(), fits.has_more()), (LONGEST, false));
        let beyond = runs(&b"x\0".repeat(most + 1)).expect("NUL");
        assert_eq!((beyond.encode().len(), beyond.has_more()), (LONGEST, true));
        assert_eq!(beyond.runs(), fits.runs());
        assert_eq!(NulRuns::decode(&beyond.encode()), Ok(beyond.clone()));
        let mut stored = replaced(&b"x\0".repeat(most + 1));
        beyond.put_back(&mut stored).expect("its copy");
        assert_eq!(stored, [&b"x\0".repeat(most)[..], b"x\x80"].concat());
    }

    #[test]
    fn a_nul_in_a_per_recipient_field_counts_as_left_out() {
        let found = runs(b"Delivered-To: a\0@b\nSubject: x\n\n").expect("NUL");
        assert_eq!((found.runs(), found.has_more()), (&[][..], true));
    }

    #[test]
    fn varint_lengths_match_the_encoding() {
        for value in (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, u64::MAX >> bit]) {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(varint_length(value), out.len());
            let mut at = 0;
            assert_eq!((take_varint(&out, &mut at), at), (Some(value), out.len()));
            assert_eq!(take_varint(&out[..out.len() - 1], &mut 0), None);
        }
    }

    #[test]
    fn bytes_that_encode_never_writes_are_refused() {
        let cases: [(&[u8], NulRunsError); 10] = [
            (b"", NulRunsError::Malformed(0)),
            (&[1], NulRunsError::Malformed(1)),
            (&[2, 0], NulRunsError::Version(2)),
            (&[1, 2], NulRunsError::Flags(2)),
            (&[1, 0, 5], NulRunsError::Malformed(2)),
            (&[1, 0, 5, 0], NulRunsError::Malformed(2)),
            (&[1, 0, 5, 1, 0, 1], NulRunsError::Malformed(4)),
            (&[1, 0, 0x85, 0, 1], NulRunsError::Malformed(2)),
            (
                &[1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 1],
                NulRunsError::Malformed(2),
            ),
            (
                &[1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x81, 1],
                NulRunsError::Malformed(2),
            ),
        ];
        for (bytes, expected) in cases {
            assert_eq!(NulRuns::decode(bytes), Err(expected), "{bytes:?}");
        }
        assert_eq!(NulRuns::decode(&[1; LONGEST + 1]), Err(NulRunsError::TooLong(LONGEST + 1)));
        assert_eq!(NulRuns::decode(&[1, 1]).map(|found| found.has_more()), Ok(true));
    }
}
