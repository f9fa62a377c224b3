//! A server's replies as a client reads them: whole ones, bounded in lines and bytes.

use std::io::{self, Read};

use super::reply::{self, Reply};
use crate::input::{Input, InputLine};

/// A reply line has 512 bytes at most (RFC 5321 section 4.5.3.1.5); more is no reply.
const LONGEST_LINE: usize = 4096;
/// Nor are this many lines.
const MOST_LINES: usize = 100;

/// What broke the dialog with a server.
#[derive(Debug)]
pub enum DialogError {
    Lost(io::Error),
    Late,
    NotUnderstood(String),
}

impl From<io::Error> for DialogError {
    fn from(error: io::Error) -> DialogError {
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => DialogError::Late,
            _ => DialogError::Lost(error),
        }
    }
}

/// The next reply, of what is in `input` and what `stream` brings.
///
/// # Errors
/// None came, or what came is none.
pub fn reply(input: &mut Input, stream: &mut impl Read) -> Result<Reply, DialogError> {
    let mut reply = Reply { code: 0, lines: Vec::new() };
    loop {
        let line = line(input, stream)?;
        match reply::parse(&line) {
            Some((code, is_last, text))
                if reply.lines.is_empty()
                    || code == reply.code && reply.lines.len() < MOST_LINES =>
            {
                reply.code = code;
                reply.lines.push(text.to_owned());
                if is_last {
                    return Ok(reply);
                }
            }
            _ => return Err(DialogError::NotUnderstood(line)),
        }
    }
}

fn line(input: &mut Input, stream: &mut impl Read) -> Result<String, DialogError> {
    loop {
        match input.line(LONGEST_LINE) {
            Some(InputLine::Whole(line)) => {
                return Ok(String::from_utf8_lossy(&line).into_owned());
            }
            None if !input.is_too_long() => {}
            None | Some(InputLine::TooLong) => {
                return Err(DialogError::NotUnderstood("an endless line".to_owned()));
            }
        }
        if input.fill(LONGEST_LINE, |into| stream.read(into))? == 0 {
            return Err(DialogError::Lost(io::Error::other("the connection was closed")));
        }
    }
}
