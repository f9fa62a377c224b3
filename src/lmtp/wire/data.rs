//! From the bytes on the wire to the bytes of a message, and back. Reading, each CRLF becomes LF,
//! as pipe(8) hands messages over; a CR or LF alone stays what it is, and ends nothing: only CRLF
//! `.` CRLF does (RFC 5321 section 4.1.1.4), so no other form of it can smuggle a second message
//! in. Input may come in any pieces; what a reader remembers between them is at most two bytes. By
//! hand: smtp-proto's reader takes a dot on the first line for text.

use std::io::{self, Write};

use memchr::memchr;

/// Written at once.
const BLOCK: usize = 64 * 1024;

/// What was read last, and is not yet in the message because what follows decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Undecided {
    /// Nothing, at the start of a line: at the start of the data, or after CRLF.
    LineStart,
    /// Nothing, within a line.
    Text,
    /// A CR.
    Cr,
    /// A dot that starts a line.
    Dot,
    /// A dot that starts a line, and a CR.
    DotCr,
    /// The end of the data was read.
    End,
}

/// Reads what follows DATA.
#[derive(Debug)]
pub struct DotReader {
    held: Undecided,
}

impl Default for DotReader {
    fn default() -> DotReader {
        DotReader::new()
    }
}

impl DotReader {
    pub fn new() -> DotReader {
        DotReader { held: Undecided::LineStart }
    }

    /// Takes `input` and appends the message's bytes to `into`. `Some(n)` when the end of the data
    /// was seen: it took `n` bytes of `input`, and what follows them are commands. After the end
    /// nothing more is taken.
    pub fn feed(&mut self, input: &[u8], into: &mut Vec<u8>) -> Option<usize> {
        if self.held == Undecided::End {
            return Some(0);
        }
        let mut at = 0;
        while let Some(&byte) = input.get(at) {
            at += 1;
            self.held = match (self.held, byte) {
                (Undecided::LineStart, b'.') => Undecided::Dot,
                (Undecided::Dot, b'\r') => Undecided::DotCr,
                (Undecided::Cr, b'\n') => {
                    into.push(b'\n');
                    Undecided::LineStart
                }
                (Undecided::DotCr, b'\n') => {
                    self.held = Undecided::End;
                    return Some(at);
                }
                // Text. A dot that starts a line and is not the end is no part of it (RFC 5321
                // section 4.5.2).
                (held, _) => {
                    if matches!(held, Undecided::Cr | Undecided::DotCr) {
                        into.push(b'\r');
                    }
                    let text = &input[at - 1..];
                    let end = memchr(b'\r', text).unwrap_or(text.len());
                    into.extend_from_slice(&text[..end]);
                    at += end;
                    if end < text.len() { Undecided::Cr } else { Undecided::Text }
                }
            };
        }
        None
    }
}

/// Reads the chunks that follow BDAT (RFC 3030): one reader for all chunks of a message.
#[derive(Debug, Default)]
pub struct ChunkReader {
    /// The last byte read was a CR, not yet in the message.
    cr: bool,
}

impl ChunkReader {
    pub fn new() -> ChunkReader {
        ChunkReader::default()
    }

    /// Takes all of `input`, which must be of the chunk alone, and appends the message's bytes to
    /// `into`.
    pub fn feed(&mut self, input: &[u8], into: &mut Vec<u8>) {
        let mut rest = input;
        while let Some(&byte) = rest.first() {
            if self.cr && byte != b'\n' {
                into.push(b'\r');
            }
            self.cr = false;
            let end = memchr(b'\r', rest).unwrap_or(rest.len());
            into.extend_from_slice(&rest[..end]);
            self.cr = end < rest.len();
            rest = rest.get(end + 1..).unwrap_or_default();
        }
    }

    /// The message is complete: a CR that was its last byte is part of it.
    pub fn end(&mut self, into: &mut Vec<u8>) {
        if std::mem::take(&mut self.cr) {
            into.push(b'\r');
        }
    }
}

/// Writes a message as what follows DATA, to its final dot: lines end in CRLF, dots at their start
/// are doubled (RFC 5321 section 4.5.2), a CR within a line stays what it is. The last write holds
/// the final dot: where it fails, the dot's line end was not sent.
pub fn write(pieces: &[&[u8]], out: &mut impl Write) -> io::Result<()> {
    let mut block = Vec::with_capacity(BLOCK);
    for line in pieces.iter().flat_map(|piece| piece.split_inclusive(|byte| *byte == b'\n')) {
        if line.starts_with(b".") {
            block.push(b'.');
        }
        let text =
            line.strip_suffix(b"\n").map_or(line, |text| text.strip_suffix(b"\r").unwrap_or(text));
        block.extend_from_slice(text);
        block.extend_from_slice(b"\r\n");
        if block.len() >= BLOCK {
            out.write_all(&block)?;
            block.clear();
        }
    }
    block.extend_from_slice(b".\r\n");
    out.write_all(&block)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Input after DATA, the message, how many bytes of the input were the data's.
    const DATA: [(&[u8], &[u8], Option<usize>); 22] = [
        (b".\r\n", b"", Some(3)),
        (b"\r\n.\r\n", b"\n", Some(5)),
        (b"a\r\n.\r\nQUIT\r\n", b"a\n", Some(6)),
        (b"..\r\n.\r\n", b".\n", Some(7)),
        (b"a\r\n..b\r\n.\r\n", b"a\n.b\n", Some(11)),
        (b"a\r\n.b\r\n.\r\n", b"a\nb\n", Some(10)),
        (b"a\r\n...\r\n.\r\n", b"a\n..\n", Some(11)),
        (b"a\n.\nb\r\n.\r\n", b"a\n.\nb\n", Some(10)),
        (b"a\n.\r\nb\r\n.\r\n", b"a\n.\nb\n", Some(11)),
        (b"a\r.\rb\r\n.\r\n", b"a\r.\rb\n", Some(10)),
        (b"a\r\n.\nb\r\n.\r\n", b"a\n\nb\n", Some(11)),
        (b"a\r\n.\rb\r\n.\r\n", b"a\n\rb\n", Some(11)),
        (b"a\r\n.\r\r\n.\r\n", b"a\n\r\n", Some(10)),
        (b"a\r\r\n.\r\n", b"a\r\n", Some(7)),
        (b"a\n\r\n.\r\n", b"a\n\n", Some(7)),
        (b"a\n\r.\r\nb\r\n.\r\n", b"a\n\r.\nb\n", Some(12)),
        (b"\0\x80\xff\r\n.\r\n", b"\0\x80\xff\n", Some(8)),
        (b"a\r\n.\r", b"a\n", None),
        (b"a\r\n.", b"a\n", None),
        (b"a\r", b"a", None),
        (b"a.\r\n", b"a.\n", None),
        (b"", b"", None),
    ];

    #[test]
    fn only_crlf_dot_crlf_ends_the_data_however_it_is_cut() {
        for (input, message, end) in DATA {
            for cut in 0..=input.len() {
                let (mut reader, mut read) = (DotReader::new(), Vec::new());
                let first = reader.feed(&input[..cut], &mut read);
                let second = match first {
                    Some(_) => first,
                    None => reader.feed(&input[cut..], &mut read).map(|taken| cut + taken),
                };
                let case = format!("{:?} cut at {cut}", input.escape_ascii().to_string());
                assert_eq!(second, end, "{case}");
                assert_eq!(
                    read.escape_ascii().to_string(),
                    message.escape_ascii().to_string(),
                    "{case}"
                );
            }
        }
    }

    #[test]
    fn after_the_end_nothing_more_is_taken() {
        let (mut reader, mut read) = (DotReader::new(), Vec::new());
        assert_eq!(reader.feed(b".\r\n", &mut read), Some(3));
        assert_eq!(reader.feed(b"QUIT\r\n", &mut read), Some(0));
        assert!(read.is_empty());
    }

    #[test]
    fn chunks_are_one_message_however_they_are_cut() {
        let cases: [(&[u8], &[u8]); 8] = [
            (b"a\r\nb\r\n", b"a\nb\n"),
            (b"\r\n.\r\n..", b"\n.\n.."),
            (b"a\rb\nc\n\rd", b"a\rb\nc\n\rd"),
            (b"\r\r\n", b"\r\n"),
            (b"a\r", b"a\r"),
            (b"\r", b"\r"),
            (b"\n\r\n", b"\n\n"),
            (b"", b""),
        ];
        for (input, message) in cases {
            for cut in 0..=input.len() {
                let (mut reader, mut read) = (ChunkReader::new(), Vec::new());
                reader.feed(&input[..cut], &mut read);
                reader.feed(&input[cut..], &mut read);
                reader.end(&mut read);
                assert_eq!(read, message, "{:?} cut at {cut}", input.escape_ascii().to_string());
            }
        }
    }

    #[test]
    fn the_server_reads_what_was_written() {
        let cases: [(&[u8], &[u8]); 8] = [
            (b"A: b\n\n.\n..\n.x\ny\n", b"A: b\n\n.\n..\n.x\ny\n"),
            (b"a\r\n.\r\nb\r\n", b"a\n.\nb\n"),
            (b"a\rb\r\r\n\0\x80\xff\n", b"a\rb\r\n\0\x80\xff\n"),
            (b"a\r.\r\n", b"a\r.\n"),
            (b"no end", b"no end\n"),
            (b"cr\r", b"cr\r\n"),
            (b".", b".\n"),
            (b"", b""),
        ];
        for (message, expected) in cases {
            let (mut wire, mut read) = (Vec::new(), Vec::new());
            write(&[message], &mut wire).expect("memory");
            assert_eq!(
                DotReader::new().feed(&wire, &mut read),
                Some(wire.len()),
                "{}",
                message.escape_ascii()
            );
            assert_eq!(read.escape_ascii().to_string(), expected.escape_ascii().to_string());
        }
    }

    #[test]
    fn long_messages_are_written_in_blocks() {
        let message = b"a line of the message\n".repeat(10_000);
        let (mut wire, mut read) = (Vec::new(), Vec::new());
        write(&[&message[..22], &message[22..]], &mut wire).expect("memory");
        assert_eq!(DotReader::new().feed(&wire, &mut read), Some(wire.len()));
        assert!(read == message);
    }
}
