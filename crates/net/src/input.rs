//! What a peer sent and was not used yet: read in blocks, used as lines or as pieces.
//!
//! Promise: a line ends in LF or CRLF and is bounded; what is too long is dropped as it comes, so
//! that an endless line fills no memory. Each byte is searched once for the end of its line,
//! however small the pieces are in which it comes. By hand: `BufRead` can neither bound a line nor
//! read on after a deadline has interrupted one.

use std::io;

/// Bytes of a peer that wait to be used as lines or pieces.
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

/// A line that has come to its end.
#[derive(Debug, PartialEq, Eq)]
pub enum InputLine {
    /// Without its end.
    Whole(Vec<u8>),
    TooLong,
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

    /// The next line, of at most `longest` bytes with its end; `None`: more has to be read.
    pub fn line(&mut self, longest: usize) -> Option<InputLine> {
        let rest = &self.block[self.from..self.end];
        let Some(at) = memchr::memchr(b'\n', &rest[self.searched..]) else {
            self.searched = rest.len();
            if rest.len() >= longest {
                self.is_too_long = true;
                self.take(rest.len());
            }
            return None;
        };
        let end = self.searched + at;
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        let line = match self.is_too_long || end >= longest {
            true => InputLine::TooLong,
            false => InputLine::Whole(line.to_vec()),
        };
        self.take(end + 1);
        self.is_too_long = false;
        Some(line)
    }

    /// Whether nothing was ever read: there is no block yet.
    pub fn is_unused(&self) -> bool {
        self.block.is_empty()
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
    /// nothing. An error is that of `read`.
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
