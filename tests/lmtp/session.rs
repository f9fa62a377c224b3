//! A connection without a socket: gives the protocol lines, data and chunks as the daemon does, from input in any
//! pieces, and writes down what comes of it. Whatever is said, it asserts what holds for every reply.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::time::Instant;

use onedrop::lmtp::data::{ChunkReader, DotReader};
use onedrop::lmtp::protocol::{Admission, Admit, LONGEST_LINE, Next, Protocol, Settings, Transaction, reply};
use onedrop::outcome::{Outcome, Status};

/// Who there is.
#[derive(Debug, Clone, Default)]
pub struct Directory {
    pub known: Vec<String>,
    pub later: Vec<String>,
}

impl Admit for Directory {
    fn admit(&mut self, address: &str) -> Admission {
        if self.later.iter().any(|one| one == address) {
            return Admission::TryLater("the directory is away".into());
        }
        if self.known.iter().any(|one| one == address) { Admission::Known } else { Admission::Unknown }
    }
}

/// What the connection reads now.
enum Reading {
    Line { skip: bool },
    Data(DotReader),
    Chunk { left: u64, last: bool, keep: bool },
    Nothing,
}

pub struct Session {
    protocol: Protocol,
    directory: Directory,
    reading: Reading,
    line: Vec<u8>,
    chunks: ChunkReader,
    message: Vec<u8>,
    /// What the time is.
    pub now: Instant,
    /// `S: reply`, `E: envelope`, `B: message` and `X:` (closed), in order.
    pub transcript: Vec<String>,
}

impl Session {
    pub fn new(settings: Settings, directory: Directory) -> Session {
        let protocol = Protocol::new(settings);
        let mut session = Session {
            protocol,
            directory,
            reading: Reading::Line { skip: false },
            line: Vec::new(),
            chunks: ChunkReader::new(),
            message: Vec::new(),
            now: Instant::now(),
            transcript: Vec::new(),
        };
        let greeting = session.protocol.greeting();
        assert_eq!(session.said(greeting.as_bytes()), 1);
        session
    }

    pub fn feed(&mut self, mut input: &[u8]) {
        while !input.is_empty() {
            let taken = match &mut self.reading {
                Reading::Nothing => return,
                Reading::Line { .. } => self.read_line(input),
                Reading::Data(reader) => match reader.feed(input, &mut self.message) {
                    None => input.len(),
                    Some(taken) => {
                        self.delivered();
                        self.reading = Reading::Line { skip: false };
                        taken
                    }
                },
                Reading::Chunk { left, keep, .. } => {
                    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                    if *keep {
                        self.chunks.feed(&input[..taken], &mut self.message);
                    }
                    *left -= taken as u64;
                    self.chunk_end();
                    taken
                }
            };
            input = &input[taken..];
        }
    }

    fn read_line(&mut self, input: &[u8]) -> usize {
        let Reading::Line { skip } = self.reading else { unreachable!() };
        let end = input.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(input.len(), |end| end + 1);
        if !skip {
            self.line.extend_from_slice(&input[..taken]);
        }
        if skip {
            self.reading = Reading::Line { skip: end.is_none() };
        } else if self.line.len() > LONGEST_LINE {
            let mut out = Vec::new();
            let next = self.protocol.line_too_long(&mut out);
            assert_eq!(self.said(&out), 1);
            self.line.clear();
            self.reading = Reading::Line { skip: end.is_none() };
            if next == Next::Close {
                self.close();
            }
        } else if end.is_some() {
            let line = std::mem::take(&mut self.line);
            let line = line.strip_suffix(b"\n").unwrap();
            self.command(line.strip_suffix(b"\r").unwrap_or(line));
        }
        taken
    }

    fn command(&mut self, line: &[u8]) {
        let mut out = Vec::new();
        let next = self.protocol.line(line, self.now, &mut self.directory, &mut out);
        assert!(out.len() <= 8 * 512);
        let replies = self.said(&out);
        let expected = if matches!(next, Next::Chunk { .. } | Next::Discard { .. }) { 0 } else { 1 };
        assert_eq!(replies, expected, "replies to {:?}", line.escape_ascii().to_string());
        match next {
            Next::Command => {}
            Next::Data => {
                assert!(out.starts_with(b"354 "));
                self.message.clear();
                self.reading = Reading::Data(DotReader::new());
            }
            Next::Chunk { bytes, first, last } => {
                if first {
                    self.chunks = ChunkReader::new();
                    self.message.clear();
                }
                self.reading = Reading::Chunk { left: bytes, last, keep: true };
                self.chunk_end();
            }
            Next::Discard { bytes } => {
                self.reading = Reading::Chunk { left: bytes, last: false, keep: false };
                self.chunk_end();
            }
            Next::Close => {
                self.close();
                let again = self.protocol.line(b"NOOP", self.now, &mut self.directory, &mut out);
                assert_eq!((again, self.protocol.line_too_long(&mut out)), (Next::Close, Next::Close));
            }
        }
    }

    fn chunk_end(&mut self) {
        let Reading::Chunk { left: 0, last, .. } = self.reading else { return };
        self.reading = Reading::Line { skip: false };
        if last {
            self.chunks.end(&mut self.message);
            self.delivered();
        } else {
            let mut out = Vec::new();
            self.protocol.chunk_read(&mut out);
            assert!(self.said(&out) >= 1);
        }
    }

    fn delivered(&mut self) {
        let transaction = self.protocol.take();
        assert!(!transaction.recipients.is_empty());
        self.transcript.push(format!("E: {}", envelope(&transaction)));
        let message = std::mem::take(&mut self.message);
        self.transcript.push(format!("B: {}", message.escape_ascii()).trim_end().to_owned());
        for recipient in &transaction.recipients {
            assert_eq!(self.said(&reply(&outcome(recipient))), 1);
        }
    }

    fn close(&mut self) {
        self.reading = Reading::Nothing;
        self.transcript.push("X:".into());
    }

    /// Writes the reply lines in `out` down, and counts the replies.
    fn said(&mut self, out: &[u8]) -> usize {
        let mut replies = 0;
        for line in out.split_inclusive(|byte| *byte == b'\n') {
            assert!(line.len() <= 512 && line.ends_with(b"\r\n"), "{:?}", line.escape_ascii().to_string());
            let text = &line[..line.len() - 2];
            assert!(text.iter().all(|byte| (b' '..=b'~').contains(byte)), "{:?}", text.escape_ascii().to_string());
            assert!(text.len() > 4 && text[..3].iter().all(u8::is_ascii_digit) && b" -".contains(&text[3]));
            replies += usize::from(text[3] == b' ');
            self.transcript.push(format!("S: {}", String::from_utf8_lossy(text)));
        }
        replies
    }
}

/// Mailboxes of `full...` are full; the others take everything.
fn outcome(recipient: &str) -> Outcome {
    if recipient.starts_with("full") {
        return Outcome::TempFail(Status::MAILBOX_FULL, format!("no room for {recipient}"));
    }
    Outcome::Delivered(format!("stored for {recipient}"))
}

/// What is set in `transaction`, one word each.
fn envelope(transaction: &Transaction) -> String {
    let client = &transaction.client;
    let mut words = vec![format!("from=<{}> to={}", transaction.sender, transaction.recipients.join(","))];
    let pairs = [
        ("id", &transaction.queue_id),
        ("auth", &transaction.sasl_username),
        ("lhlo", &transaction.lhlo),
        ("name", &client.name),
        ("addr", &client.addr),
        ("port", &client.port),
        ("proto", &client.proto),
        ("helo", &client.helo),
        ("source", &client.source),
    ];
    words.extend(pairs.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| format!("{name}={value}")));
    words.extend(transaction.smtputf8.then(|| "smtputf8".into()));
    words.extend(transaction.eight_bit.then(|| "8bit".into()));
    words.join(" ")
}
