//! How long the guard of `store.lmtp` has Dovecot remember what it has delivered: the one place
//! that reads it. What counts is what `sievec` made of the script: it writes the period into its
//! output, and cuts it to the `sieve_duplicate_max_period` that it knows of (without -c that of the
//! Dovecot that runs). A script without such a file, or newer than it, Dovecot compiles by itself
//! at each delivery. By hand: `sieve-dump` needs Dovecot's settings, which often only root may
//! read.
//!
//! Source: Pigeonhole, src/lib-sieve/sieve-binary-code.c and plugins/duplicate/tst-duplicate.c (the
//! same bytes in 0.5 and 2.4).

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The compiled guard has some hundred bytes; no more of a file is read.
const LONGEST: u64 = 65_536;

/// What stands before the period: the argument `:header` and its value, `:seconds`, a number.
const BEFORE: &[u8] = b"\x0eX-Onedrop-Copy\0\x01\x01";

/// For how many seconds the guard `script` has Dovecot remember a value, and the compiled file that
/// says so; `None` where the script itself counts.
///
/// # Errors
/// The file cannot be read.
pub(super) fn remembered_secs(script: &Path) -> io::Result<Option<(u64, PathBuf)>> {
    let path = script.with_extension("svbin");
    let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let file = match fs::File::open(&path) {
        Err(error) if is_missing(&error) => return Ok(None),
        file => file?,
    };
    if file.metadata()?.modified()? < fs::metadata(script)?.modified()? {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes)?;
    match period(&bytes) {
        Some(secs) => Ok(Some((secs, path))),
        None => Err(io::Error::other(format!("{} is no compiled guard", path.display()))),
    }
}

/// Seven bits a byte, the highest first; the last byte has no eighth bit.
fn period(bytes: &[u8]) -> Option<u64> {
    let at = memchr::memmem::find(bytes, BEFORE)? + BEFORE.len();
    let mut secs: u64 = 0;
    for byte in bytes[at..].iter().take(9) {
        secs = secs << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some(secs);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_read_whole_or_not_at_all() {
        let of = |number: &[u8]| period(&[b"code", BEFORE, number].concat());
        assert_eq!(of(b"\xa4\xf5\0\0"), Some(604_800));
        assert_eq!(of(b"\x8a\xc6\0"), Some(172_800));
        assert_eq!(of(b"\x05\xff"), Some(5));
        for broken in [&b""[..], b"\xa4", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"] {
            assert_eq!(of(broken), None, "{broken:?}");
        }
        assert_eq!(period(b"X-Onedrop-Copy"), None);
    }
}
