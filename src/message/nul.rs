//! Where the NUL bytes of a message stood. IMAP literals cannot hold NUL, so each goes to the
//! server as 0x80; the ledger keeps the places, in at most [`LONGEST`] bytes whatever the message,
//! so that they can be put back.
//!
//! An offset counts from the first byte that all copies of a message share: behind the leading
//! fields that name one recipient (Return-Path, X-Original-To, Delivered-To) and the Received that
//! this program wrote. CRLF counts as one byte, as LF does. So an offset is the same in the bytes
//! as received, in every recipient's copy, in the copy in Sent and in what an IMAP server made of
//! any of them.
//!
//! Encoded: the version (1), flags (1: runs were left out), and for each run the bytes since the
//! end of the one before and its length, both as unsigned LEB128. The runs are the first ones. A
//! format of the ledger's: frozen.

use super::identity::is_our_own;
use super::{PER_RECIPIENT, fields, split};

/// The most bytes of an encoded value.
pub const LONGEST: usize = 64 * 1024;

const VERSION: u8 = 1;
const RUNS_LEFT_OUT: u8 = 1;
/// What a NUL becomes on its way into an IMAP server.
const REPLACEMENT: u8 = 0x80;

/// One run of NUL bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NulRun {
    /// Bytes before it, counted as the module says.
    pub offset: u64,
    /// Its bytes, at least one.
    pub length: u64,
}

/// The runs of NUL bytes in a message, in their order and not adjacent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NulRuns {
    runs: Vec<NulRun>,
    left_out: bool,
}

/// Why bytes are no encoded [`NulRuns`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NulRunsError {
    #[error("places of NUL bytes: version {0} is not known")]
    Version(u8),
    #[error("places of NUL bytes: flags {0:#04x} are not known")]
    Flags(u8),
    #[error("places of NUL bytes: {0} bytes, more than {LONGEST}")]
    TooLong(usize),
    #[error("places of NUL bytes: cut or malformed at byte {0}")]
    Malformed(usize),
}

/// The bytes are not those that the places belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "no NUL stood here: byte {offset} of the message is neither 0x80 nor NUL, or the message ends before it"
)]
pub struct Mismatch {
    pub offset: u64,
}

impl NulRuns {
    /// The runs in `copy`, as many as fit; `None` without a NUL.
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

    /// What [`NulRuns::encode`] wrote, and nothing else.
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

    /// Makes NUL of the bytes at these places in `copy`, which are 0x80 there (or NUL already): any
    /// copy of the message, its lines ending in LF or CRLF.
    ///
    /// # Errors
    /// Another byte stands at one of them; then `copy` is as it was.
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

/// Where the bytes begin that all copies of a message share.
fn shared_start(copy: &[u8]) -> usize {
    fields(split(copy).0)
        .take_while(|field| {
            PER_RECIPIENT.iter().any(|name| field.is(name))
                || (field.is(b"received") && is_our_own(field))
        })
        .map(|field| field.raw.len())
        .sum()
}

/// The length of `bytes`, CRLF as one.
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

/// The number at `at`, which moves behind it; none where it is cut, too large or longer than it
/// need be.
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

    /// As an IMAP server holds it.
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
    fn without_nul_there_is_nothing_and_with_it_the_places_are_told() {
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
    fn places_are_the_same_in_every_copy() {
        let shared = b"Received: by mx\nSubject: a\0b\n\none\n\0two\0\0\r\n\0\n";
        let ours = b"Return-Path: <>\nDelivered-To: a@b\nReceived: from x\n\tby y (Onedrop) with LMTP id 1; now\n";
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
    fn other_bytes_are_left_as_they_are() {
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
        // Two bytes a run, and two before: exactly as many as fit, and one more.
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
    fn a_nul_in_a_field_that_names_one_recipient_is_one_that_is_left_out() {
        let found = runs(b"Delivered-To: a\0@b\nSubject: x\n\n").expect("NUL");
        assert_eq!((found.runs(), found.has_more()), (&[][..], true));
    }

    #[test]
    fn lengths_are_those_of_the_encoding() {
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
    fn what_was_never_encoded_is_refused() {
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
