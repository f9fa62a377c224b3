//! Files that are plainly no message, or may be several. A message without a header field, or with
//! a damaged first line, is one: what is delivered is what its owner calls so. But what a mail
//! program keeps packed or in a form of its own would be garbage in a mailbox, and on record as
//! delivered.

use std::io::{self, BufRead, Read};

use super::from_line::{is_field, is_from_line};
use super::mbox::MboxReader;
use onedrop_site::command_line::MboxQuoting;

/// How files begin that are packed, or were written by an editor.
const NO_TEXT: [(&[u8], &str); 9] = [
    (b"\x1f\x8b", "packed by gzip, as Dovecot's mail_compress does"),
    (b"BZh", "packed by bzip2"),
    (b"\xfd7zXZ\0", "packed by xz"),
    (b"\x28\xb5\x2f\xfd", "packed by zstd, as Dovecot's mail_compress does"),
    (b"\x04\x22\x4d\x18", "packed by lz4"),
    (b"Dovecot-LZ4\r\n", "packed by lz4, as Dovecot's mail_compress does"),
    // Its first field would be none: a message without a sender or a subject, say.
    (b"\xef\xbb\xbf", "no message: it begins with a byte order mark (take out these three bytes)"),
    (b"\xff\xfe", "no message: it is in UTF-16, as an editor writes it"),
    (b"\xfe\xff", "no message: it is in UTF-16, as an editor writes it"),
];

/// What begins with no header field, and has bytes so early that no text has, is no message.
const BINARY_WITHIN: usize = 200;

/// What a file is, if it is no message.
pub fn what_it_is(bytes: &[u8]) -> Option<&'static str> {
    if let Some((_, what)) = NO_TEXT.iter().find(|(begins, _)| bytes.starts_with(begins)) {
        return Some(what);
    }
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let mut first = lines.next().unwrap_or_default();
    if is_from_line(first) {
        first = lines.next().unwrap_or_default();
    }
    let begins = first.trim_ascii();
    let is_number = !begins.is_empty() && begins.iter().all(u8::is_ascii_digit);
    match begins {
        [b'{' | b'[', ..] => Some("no message: it begins as JSON does"),
        [b'<', ..] => Some("no message: it begins as XML or HTML does"),
        // The number of its bytes comes first, and what the program knows of it last.
        _ if is_number && lines.next().is_some_and(is_field) => Some("an .emlx file of Apple Mail"),
        _ if is_field(first) => None,
        _ if bytes.iter().take(BINARY_WITHIN).any(|byte| is_binary(*byte)) => {
            Some("no message: it begins with binary data")
        }
        _ => None,
    }
}

const SEVERAL: &str = "an mbox: say how it is quoted, --mbox rd or --mbox o";
const NO_DATE: &str = "begins with From, as an mbox does, but that line has no date that can be \
                       read: correct it in a copy (an mbox needs --mbox as well), or take it out";

/// Why a file that is to be one message may be an mbox with more than one.
///
/// # Errors
/// It cannot be read.
pub fn why_not_one(mut input: impl BufRead) -> io::Result<Option<&'static str>> {
    let mut line = Vec::new();
    (&mut input).take(4096).read_until(b'\n', &mut line)?;
    if !is_from_line(&line) {
        let rest = line.strip_prefix(b"From ").map(<[u8]>::trim_ascii_start);
        // "From : ann@..." is a field, as it was once written.
        let is_doubtful = rest.is_some_and(|rest| !rest.starts_with(b":"));
        return Ok(is_doubtful.then_some(NO_DATE));
    }
    // Of no message more is kept than this.
    let mut reader = MboxReader::new((&line[..]).chain(input), 0, MboxQuoting::O, 1);
    let mut count = 0;
    while count < 2 && reader.next_message().is_ok_and(|message| message.is_some()) {
        count += 1;
    }
    Ok((count > 1).then_some(SEVERAL))
}

/// Whether it stands in no text, of whatever charset.
fn is_binary(byte: u8) -> bool {
    byte.is_ascii_control() && !matches!(byte, b'\t' | b'\n' | b'\r' | 0x0c | 0x1b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_message_is_named() {
        for (bytes, word) in [
            (&b"\x1f\x8b\x08\0\0\0\0\0\0\x03"[..], "gzip"),
            (b"\x28\xb5\x2f\xfd\x24", "zstd"),
            (b"1234      \nReturn-Path: <ann@x>\n\nbody\n<?xml", ".emlx"),
            (b"\xef\xbb\xbfFrom: ann@x\n\nbody\n", "byte order mark"),
            (b"\xff\xfeF\0r\0o\0m\0:\0", "UTF-16"),
            (b"\xfe\xff\0F\0r\0o\0m\0:", "UTF-16"),
            (b"F\0r\0o\0m\0:\0 \0a\0\n\0", "binary"),
            (b"{\"a\": 1}\n", "JSON"),
            (b"<!DOCTYPE html>\n", "HTML"),
            (b"\x89PNG\r\n\x1a\n\0\0", "binary"),
            (b"\x7fELF\x02\x01\x01\0\n", "binary"),
            (b"From ann Mon Jan  5 10:00:00 2015\n\0\0\n", "binary"),
        ] {
            assert!(what_it_is(bytes).is_some_and(|what| what.contains(word)), "{bytes:?}");
        }
    }

    #[test]
    fn what_may_be_a_message_is_one() {
        for text in [
            "",
            "\nno header\n",
            "Subject: a\n\nbody\n",
            "Subject: a\0\n\nbody\n",
            "From ann Mon Jan  5 10:00:00 2015\nSubject: a\n\n\0\n",
            " From: ann\nSubject: a\n\nx\n",
            "This is a simple message not having headers.\n",
            "1234\n5678\n",
            "Subject: \x1b$B%F\x1b(B \u{e9}\n\n",
            "// Not an RFC-822 Document",
        ] {
            assert_eq!(what_it_is(text.as_bytes()), None, "{text:?}");
        }
    }
}
