//! What holds for every input of the LMTP server, whatever it is: of a connection ([`session`]; `script.rs` asserts what
//! holds for each reply) and of the readers of messages ([`data`]). The tests call these with input of their own making,
//! the fuzzer (`fuzz/`) with what it finds.

#![allow(dead_code, reason = "each target uses a part of it")]

use onedrop::lmtp::connection::Settings;
use onedrop::lmtp::data::{ChunkReader, DotReader};

use super::script::{self, Directory, Event, Script, Transcript};

/// What a connection that is given `input` does, however that is cut: it panics nowhere, says the same, gives each
/// command its reply before the next is read, and says no more than so much for each byte. Returns its transcript
/// without limits.
pub fn session(input: &[u8]) -> Transcript {
    let limits = [(1, 0), (3, 100), (0, 0)];
    let [_, _, unlimited] = limits.map(|(recipients, bytes)| {
        let settings = script::settings("mx", recipients, bytes);
        let whole = transcript(&settings, says([input]));
        assert_eq!(whole, transcript(&settings, says(input.chunks(1))), "byte by byte");
        assert_eq!(whole, transcript(&settings, says(cut(input))), "in pieces");
        assert_eq!(whole, transcript(&settings, Lockstep::new(input)), "command by command");
        let said: usize = whole.iter().filter(|line| line.starts_with("S: ")).map(String::len).sum();
        assert!(said <= 1024 + 32 * input.len(), "{said} bytes for {}", input.len());
        whole
    });
    unlimited
}

fn transcript(settings: &Settings, script: impl Script) -> Transcript {
    let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let directory = Directory {
        known: list(&[
            "scuba@mail.axial.net",
            "doug@mail.axial.net",
            "full@mail.axial.net",
            "d\u{f6}g@mail.axial.net",
            "postmaster",
            "root@[192.0.2.1]",
        ]),
        later: list(&["slow@mail.axial.net"]),
        broken: list(&["broken@mail.axial.net"]),
    };
    script::transcript(settings.clone(), directory, script)
}

fn says<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> impl Iterator<Item = Event> {
    let events: Vec<Event> = parts.into_iter().map(|part| Event::Says(part.to_vec())).collect();
    events.into_iter()
}

/// What the client has just said all of.
#[derive(Debug, Clone, Copy)]
enum Said {
    /// Nothing yet: the greeting is due.
    Nothing,
    Command {
        is_bdat: bool,
    },
    Data,
    Chunk,
    /// A part of something whose end is not in the input: nothing is due.
    Part,
}

/// A client that waits for its replies: it says one command, or all of a message or of a chunk, and sees that this has been
/// answered as it should be before it says the next.
struct Lockstep<'a> {
    rest: &'a [u8],
    said: Said,
    /// Bytes of the chunk that the last command began.
    chunk: usize,
    /// Lines of the transcript that were looked at.
    seen: usize,
}

impl<'a> Lockstep<'a> {
    fn new(input: &'a [u8]) -> Lockstep<'a> {
        Lockstep { rest: input, said: Said::Nothing, chunk: 0, seen: 0 }
    }

    /// Looks at what came of what was said last: the reply, where there is one alone.
    fn look<'t>(&mut self, transcript: &'t [String]) -> Option<&'t str> {
        let new = &transcript[self.seen..];
        self.seen = transcript.len();
        // The last line of a reply has a space after its code.
        let lines = new.iter().filter_map(|line| line.strip_prefix("S: "));
        let replies: Vec<&str> = lines.filter(|line| line.as_bytes()[3] == b' ').collect();
        let envelope = new.iter().find_map(|line| line.strip_prefix("E: ")).map(|words| {
            let recipients = words.split(" to=").nth(1).unwrap().split(' ').next().unwrap();
            recipients.split(',').count()
        });
        match (self.said, envelope) {
            (Said::Command { .. } | Said::Data | Said::Chunk, Some(recipients)) => {
                assert_eq!(replies.len(), recipients)
            }
            (Said::Data, None) => panic!("data came to nothing: {new:?}"),
            // Its chunk comes first.
            (Said::Command { is_bdat: true }, None) if replies.is_empty() => {}
            (Said::Nothing | Said::Command { .. } | Said::Chunk, None) => assert_eq!(replies.len(), 1, "{new:?}"),
            (Said::Part, _) => assert!(replies.is_empty() && envelope.is_none(), "{new:?}"),
            (Said::Nothing, Some(_)) => panic!("a message without a word: {new:?}"),
        }
        replies.first().copied().filter(|_| envelope.is_none())
    }
}

impl Script for Lockstep<'_> {
    fn next(&mut self, transcript: &[String]) -> Option<Event> {
        let before = self.said;
        let reply = self.look(transcript);
        let (said, length) = match before {
            Said::Command { .. } if reply.is_some_and(|reply| reply.starts_with("354 ")) => {
                (Said::Data, simplest(self.rest).1)
            }
            Said::Command { is_bdat: true } if reply.is_none() && self.chunk > 0 => {
                (Said::Chunk, Some(self.chunk).filter(|bytes| *bytes <= self.rest.len()))
            }
            Said::Nothing | Said::Command { .. } | Said::Data | Said::Chunk => {
                let end = self.rest.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
                let line = String::from_utf8_lossy(&self.rest[..end.unwrap_or(0)]);
                let mut words = line.split_ascii_whitespace();
                let is_bdat = words.next().is_some_and(|word| word.eq_ignore_ascii_case("BDAT"));
                self.chunk = words.next().and_then(|size| size.parse().ok()).unwrap_or(0);
                (Said::Command { is_bdat }, end)
            }
            Said::Part => return None,
        };
        let (now, rest) = self.rest.split_at(length.unwrap_or(self.rest.len()));
        self.rest = rest;
        self.said = if length.is_some() { said } else { Said::Part };
        let is_over = now.is_empty() || transcript.last().is_some_and(|line| line.starts_with("X:"));
        (!is_over).then(|| Event::Says(now.to_vec()))
    }
}

/// Both readers agree with the simplest ones there are, however `input` is cut; what was read, encoded again, is what
/// came; and as a message `input` comes back from the wire as it went.
pub fn data(input: &[u8]) {
    let (message, end) = simplest(input);
    for parts in [vec![input], input.chunks(1).collect(), cut(input)] {
        let (read, taken) = dots(parts);
        assert_eq!((shown(&read), taken), (shown(&message), end));
    }
    assert!(message.len() <= input.len());
    if let Some(end) = end {
        let wire = [&dot_stuffed(&message)[..], b".\r\n"].concat();
        assert!(
            !is_canonical(&input[..end - 3]) || wire == input[..end],
            "{} was {}",
            shown(&wire),
            shown(&input[..end])
        );
    }
    let message = [input, b"\n"].concat();
    let wire = [&dot_stuffed(&message)[..], b".\r\nQUIT\r\n"].concat();
    assert_eq!(dots(vec![&wire]), (message, Some(wire.len() - 6)));
    chunks(input);
}

fn chunks(input: &[u8]) {
    let message = lines(input).join(&b'\n');
    for parts in [vec![input], input.chunks(1).collect(), cut(input)] {
        let (mut reader, mut read) = (ChunkReader::new(), Vec::new());
        for part in parts {
            reader.feed(part, &mut read);
        }
        reader.end(&mut read);
        assert_eq!(shown(&read), shown(&message));
    }
    let is_bare = |at: usize| input[at] == b'\n' && (at == 0 || input[at - 1] != b'\r');
    if !(0..input.len()).any(is_bare) {
        assert_eq!(shown(&message.split(|byte| *byte == b'\n').collect::<Vec<_>>().join(&b"\r\n"[..])), shown(input));
    }
}

/// What follows DATA: the message, and how much of the input was the data's, if its end came.
fn dots(parts: Vec<&[u8]>) -> (Vec<u8>, Option<usize>) {
    let (mut reader, mut read, mut taken) = (DotReader::new(), Vec::new(), 0);
    for part in parts {
        match reader.feed(part, &mut read) {
            None => taken += part.len(),
            Some(bytes) => return (read, Some(taken + bytes)),
        }
    }
    (read, None)
}

/// The data up to CRLF `.` CRLF, line by line: without the dot that starts one, with LF at its end; and its length. Where
/// the end does not come, what may yet become a line's end or a first dot is not in it.
fn simplest(input: &[u8]) -> (Vec<u8>, Option<usize>) {
    // The data stands after the CRLF of DATA.
    let data = [b"\r\n", input].concat();
    let end = data.windows(5).position(|bytes| bytes == b"\r\n.\r\n");
    let mut message = Vec::new();
    let whole = &data[..end.unwrap_or(data.len())];
    for line in &lines(whole)[1..] {
        message.extend_from_slice(line.strip_prefix(b".").unwrap_or(line));
        message.push(b'\n');
    }
    if end.is_none() {
        // The last line has no end yet.
        message.pop();
        if data.ends_with(b"\r") {
            message.pop();
        }
    }
    (message, end.map(|end| end + 5 - 2))
}

fn lines(data: &[u8]) -> Vec<&[u8]> {
    let mut lines = Vec::new();
    let mut start = 0;
    for at in 0..data.len() {
        if data[at..].starts_with(b"\r\n") {
            lines.push(&data[start..at]);
            start = at + 2;
        }
    }
    lines.push(&data[start..]);
    lines
}

/// RFC 5321 section 4.5.2, for a message whose lines end in LF.
fn dot_stuffed(message: &[u8]) -> Vec<u8> {
    let mut wire = Vec::new();
    for line in message.split_inclusive(|byte| *byte == b'\n') {
        wire.extend_from_slice(if line.starts_with(b".") { b"." } else { b"" });
        wire.extend_from_slice(line.strip_suffix(b"\n").unwrap_or(line));
        wire.extend_from_slice(b"\r\n");
    }
    wire
}

/// Whether the data is as a good client sends it: each LF after a CR, each first dot doubled.
fn is_canonical(data: &[u8]) -> bool {
    let good = |line: &&[u8]| !line.contains(&b'\n') && (!line.starts_with(b".") || line.starts_with(b".."));
    lines(data).iter().all(good)
}

/// `input` in pieces of lengths that it says itself.
fn cut(input: &[u8]) -> Vec<&[u8]> {
    let mut rest = input;
    let mut parts = Vec::new();
    while let Some(first) = rest.first() {
        let length = [1, 2, 3, 7, 60][usize::from(*first) % 5];
        let (part, more) = rest.split_at(length.min(rest.len()));
        parts.push(part);
        rest = more;
    }
    parts
}

fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}
