//! What the Content-Length of a message in an mbox says about its end. It is not believed, but one
//! that leads to exactly the begin of another message is of an mbox without quotes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::from_line::{NO_FROM_LINE, is_from_line};

/// The field's value, if the line is that field.
pub fn content_length(line: &[u8]) -> Option<u64> {
    const NAME: &[u8] = b"content-length:";
    let (name, value) = line.split_at_checked(NAME.len())?;
    let value = name.eq_ignore_ascii_case(NAME).then_some(value.trim_ascii())?;
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Where a message ends whose Content-Length leads beyond its `end` to exactly the begin of another
/// one, or the end of the file, which has `size` bytes; `None` for all others.
///
/// # Errors
/// The file cannot be read.
pub fn end_of_unquoted(
    file: &File,
    end: u64,
    claimed_end: Option<u64>,
    size: u64,
) -> io::Result<Option<u64>> {
    let Some(end) = claimed_end.filter(|claimed| (end + 1..=size).contains(claimed)) else {
        return Ok(None);
    };
    let mut behind = Vec::new();
    let part = size.min(end + NO_FROM_LINE as u64) - end;
    behind.resize(usize::try_from(part).unwrap_or(0), 0);
    file.read_exact_at(&mut behind, end)?;
    // The mbox' own empty line.
    let empty = [&b"\r\n"[..], b"\n"].into_iter().find(|empty| behind.starts_with(empty));
    let empty = empty.map_or(0, <[u8]>::len);
    let line = behind[empty..].split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
    let is_end = line.is_empty() || is_from_line(line);
    Ok(is_end.then_some(end + empty as u64))
}
