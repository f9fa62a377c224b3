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

/// Reads what follows DATA, or the chunks that follow BDAT (RFC 3030): one reader for a message.
#[derive(Debug)]
pub struct DataReader {
    held: Undecided,
    has_dots: bool,
}

impl DataReader {
    /// For DATA: a dot that starts a line means something.
    pub fn with_dots() -> DataReader {
        DataReader { held: Undecided::LineStart, has_dots: true }
    }

    pub fn of_chunks() -> DataReader {
        DataReader { held: Undecided::LineStart, has_dots: false }
    }

    /// Takes `input`, of chunks nothing but their own bytes, and appends the message's bytes to
    /// `into`. `Some(n)` when the dot that ends the data was seen: it took `n` bytes of `input`,
    /// and what follows them are commands. After the end nothing more is taken.
    pub fn feed(&mut self, input: &[u8], into: &mut Vec<u8>) -> Option<usize> {
        if self.held == Undecided::End {
            return Some(0);
        }
        let mut at = 0;
        while let Some(&byte) = input.get(at) {
            at += 1;
            self.held = match (self.held, byte) {
                (Undecided::LineStart, b'.') if self.has_dots => Undecided::Dot,
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

    /// The last chunk was read: a CR that was its last byte is part of the message.
    pub fn end(&mut self, into: &mut Vec<u8>) {
        if std::mem::replace(&mut self.held, Undecided::End) == Undecided::Cr {
            into.push(b'\r');
        }
    }
}

/// Writes a message as what follows DATA, to its final dot: lines end in CRLF, dots at their start
/// are doubled (RFC 5321 section 4.5.2), a CR within a line stays what it is. The last write holds
/// the final dot: where it fails, the dot's line end was not sent.
pub fn write(pieces: &[&[u8]], out: &mut impl Write) -> io::Result<()> {
    let last = write_up_to_the_last(pieces, out)?;
    out.write_all(&last)
}

/// Writes all of that but the last block, which holds the final dot, and returns it.
pub fn write_up_to_the_last(pieces: &[&[u8]], out: &mut impl Write) -> io::Result<Vec<u8>> {
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
    Ok(block)
}
