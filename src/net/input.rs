//! What a peer sent and nobody has used yet: read in blocks, used as lines or as pieces.
//!
//! Promise: a line ends in LF or CRLF and is bounded; what is too long is dropped as it comes, so
//! that an endless line fills no memory. Each byte is searched once for the end of its line,
//! however small the pieces are in which it comes. By hand: `BufRead` can neither bound a line nor
//! read on after a deadline has interrupted one.

use std::io;

/// See the module.
#[derive(Debug, Default)]
pub struct Input {
    block: Vec<u8>,
    /// Where in the block that begins what was read and not used yet, and where it ends.
    from: usize,
    end: usize,
    /// How much of that was searched for a line's end.
    searched: usize,
    /// The line that has begun is too long, and its beginning was dropped.
    is_too_long: bool,
}

/// What has come of a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// All of it; here without its end.
    Whole(Vec<u8>),
    /// All of it, but it was too long.
    TooLong,
    /// Nothing, or its beginning: more has to be read.
    Incomplete,
}

impl Input {
    /// What was read and not used yet.
    pub fn rest(&self) -> &[u8] {
        &self.block[self.from..self.end]
    }

    /// The first `bytes` of the rest are used.
    pub fn take(&mut self, bytes: usize) {
        self.from = (self.from + bytes).min(self.end);
        self.searched = 0;
    }

    /// The next line, of at most `longest` bytes with its end.
    pub fn line(&mut self, longest: usize) -> Line {
        let rest = &self.block[self.from..self.end];
        let Some(at) = memchr::memchr(b'\n', &rest[self.searched..]) else {
            self.searched = rest.len();
            if rest.len() >= longest {
                self.is_too_long = true;
                self.take(rest.len());
            }
            return Line::Incomplete;
        };
        let end = self.searched + at;
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        let line = match self.is_too_long || end >= longest {
            true => Line::TooLong,
            false => Line::Whole(line.to_vec()),
        };
        self.take(end + 1);
        self.is_too_long = false;
        line
    }

    /// Whether a line has begun and not ended.
    pub fn has_begun(&self) -> bool {
        self.is_too_long || self.from < self.end
    }

    /// Whether the line that has begun is known to be too long.
    pub fn is_too_long(&self) -> bool {
        self.is_too_long
    }

    /// Adds what `read` puts into the space it is given, of at most `most` bytes. 0: it read
    /// nothing.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn fill(
        &mut self,
        most: usize,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.block.copy_within(self.from..self.end, 0);
        (self.from, self.end) = (0, self.end - self.from);
        if self.block.len() < self.end + most {
            self.block.resize(self.end + most, 0);
        }
        let read = read(&mut self.block[self.end..self.end + most])?.min(most);
        self.end += read;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]], longest: usize) -> Vec<Line> {
        let (mut input, mut lines) = (Input::default(), Vec::new());
        for piece in pieces {
            let fill = input.fill(piece.len(), |into| {
                into.copy_from_slice(piece);
                Ok(piece.len())
            });
            assert_eq!(fill.expect("memory"), piece.len());
            loop {
                match input.line(longest) {
                    Line::Incomplete => break,
                    line => lines.push(line),
                }
            }
        }
        lines
    }

    #[test]
    fn lines_are_the_same_in_any_pieces() {
        let whole = |text: &[u8]| Line::Whole(text.to_vec());
        let text = b"a\r\nbc\n\n\r\nd\re\r\r\n12345\n123456\r\n1234567\nf\ng";
        let expected = [
            whole(b"a"),
            whole(b"bc"),
            whole(b""),
            whole(b""),
            whole(b"d\re\r"),
            whole(b"12345"),
            Line::TooLong,
            Line::TooLong,
            whole(b"f"),
        ];
        for size in 1..=text.len() {
            let pieces: Vec<&[u8]> = text.chunks(size).collect();
            assert_eq!(lines(&pieces, 6), expected, "in pieces of {size}");
        }
    }

    #[test]
    fn an_endless_line_fills_no_memory() {
        let mut input = Input::default();
        assert!(!input.has_begun());
        for _ in 0..10_000 {
            assert_eq!(input.fill(100, |into| Ok(into.len())).expect("memory"), 100);
            assert_eq!(input.line(1000), Line::Incomplete);
        }
        assert!(input.is_too_long() && input.has_begun());
        assert!(input.block.len() <= 1100, "{}", input.block.len());
    }

    #[test]
    fn pieces_and_lines_share_what_was_read() {
        let mut input = Input::default();
        let text = b"5\r\nhello, next\r\n";
        input
            .fill(64, |into| {
                into[..text.len()].copy_from_slice(text);
                Ok(text.len())
            })
            .expect("memory");
        assert_eq!(input.line(100), Line::Whole(b"5".to_vec()));
        assert_eq!(&input.rest()[..5], b"hello");
        input.take(7);
        assert_eq!(input.line(100), Line::Whole(b"next".to_vec()));
        assert!(!input.has_begun());
    }
}
