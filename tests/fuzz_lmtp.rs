//! The LMTP protocol and its readers under hostile input: the dialogs in `fixtures/dialogs`, spoilt by a seeded
//! generator, so every run is the same; `ONEDROP_FUZZ=N` makes N times as many. What holds for every reply is asserted
//! by `lmtp/session.rs`. Input worth keeping is in `fixtures/corpus-lmtp` and runs first.

#[path = "lmtp/dialog.rs"]
mod dialog;
#[path = "lmtp/session.rs"]
mod session;

use std::fs;
use std::path::Path;

use onedrop::lmtp::data::{ChunkReader, DotReader};
use onedrop::lmtp::protocol::{Settings, reply};
use onedrop::outcome::{Outcome, Status};
use session::{Directory, Session};

const ROUNDS: u64 = 4000;

/// What matters to the protocol or to the readers.
const PIECES: [&[u8]; 40] = [
    b"\r\n",
    b"\r",
    b"\n",
    b".",
    b"\r\n.\r\n",
    b"\r\n..",
    b"\n.\n",
    b"\r.\r",
    b"\r\n.\n",
    b"\0",
    b"\xff",
    b" ",
    b"<",
    b">",
    b"\"",
    b"\\",
    b"@",
    b":",
    b"+",
    b"=",
    b"[",
    b"]",
    b"\xc3\xa9",
    b"LHLO mx\r\n",
    b"MAIL FROM:<lisa@gmail.com>",
    b"MAIL FROM:<>\r\nRCPT TO:<scuba@mail.axial.net>\r\n",
    b"RCPT TO:<scuba@mail.axial.net>\r\n",
    b"RCPT TO:<nobody@mail.axial.net>\r\n",
    b"RCPT TO:<root@[192.0.2.1]>\r\n",
    b"DATA\r\n",
    b"BDAT 3\r\n",
    b"BDAT 0 LAST\r\n",
    b"BDAT 7 LAST\r\n",
    b"RSET\r\n",
    b"QUIT\r\n",
    b"XFORWARD ADDR=192.0.2.1 IDENT=A+2B\r\n",
    b" SIZE=99999999999999999999",
    b" AUTH=+C3+A9",
    b" SMTPUTF8",
    b"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
];

/// SplitMix64: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `end`, which is not 0.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Spoils `input` a few times: pieces and parts of other inputs put in, parts cut out or doubled, bytes changed.
    fn spoilt(&mut self, mut input: Vec<u8>, others: &[Vec<u8>]) -> Vec<u8> {
        for _ in 0..=self.below(6) {
            let at = self.below(input.len() + 1);
            let end = at + self.below((input.len() - at).min(40) + 1);
            match self.below(6) {
                0 | 1 => drop(input.splice(at..at, PIECES[self.below(PIECES.len())].iter().copied())),
                2 => drop(input.drain(at..end)),
                3 => {
                    let part = input[at..end].to_vec();
                    input.splice(at..at, part);
                }
                4 if at < input.len() => input[at] = self.next() as u8,
                _ => {
                    let other = &others[self.below(others.len())];
                    let start = self.below(other.len() + 1);
                    let stop = start + self.below((other.len() - start).min(200) + 1);
                    input.splice(at..end, other[start..stop].iter().copied());
                }
            }
        }
        input
    }

    /// Pieces alone.
    fn pieces(&mut self) -> Vec<u8> {
        (0..self.below(24)).flat_map(|_| PIECES[self.below(PIECES.len())]).copied().collect()
    }

    /// `input` cut at random places, often into single bytes.
    fn cut<'a>(&mut self, input: &'a [u8]) -> Vec<&'a [u8]> {
        let most = [1, 2, 5, 60][self.below(4)];
        let mut rest = input;
        let mut parts = Vec::new();
        while !rest.is_empty() {
            let (part, more) = rest.split_at((1 + self.below(most)).min(rest.len()));
            parts.push(part);
            rest = more;
        }
        parts
    }
}

/// Runs `check` for each round with a generator of its own.
fn rounds(mut check: impl FnMut(&mut Random)) {
    let times = std::env::var("ONEDROP_FUZZ").map_or(1, |times| times.parse().expect("ONEDROP_FUZZ is a number"));
    for round in 0..ROUNDS * times {
        check(&mut Random(round));
    }
}

fn transcript<'a>(
    settings: &Settings,
    directory: &Directory,
    parts: impl IntoIterator<Item = &'a [u8]>,
) -> Vec<String> {
    let mut session = Session::new(settings.clone(), directory.clone());
    parts.into_iter().for_each(|part| session.feed(part));
    session.transcript
}

/// Prints the input if what runs while this lives panics.
struct Shown<'a>(&'a [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("input: {}", self.0.escape_ascii());
        }
    }
}

#[test]
fn whatever_is_said_each_command_has_its_replies_in_any_pieces() {
    let dialogs = dialog::all();
    let inputs: Vec<Vec<u8>> = dialogs.iter().map(dialog::Dialog::input).filter(|input| input.len() < 8192).collect();
    let mut directory = Directory { known: vec!["root@[192.0.2.1]".into()], later: Vec::new() };
    for dialog in &dialogs {
        directory.known.extend(dialog.directory.known.clone());
        directory.later.extend(dialog.directory.later.clone());
    }
    let settings = |recipients| Settings { host: "mx".into(), recipients };
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/corpus-lmtp");
    for entry in fs::read_dir(kept).unwrap() {
        let input = fs::read(entry.unwrap().path()).unwrap();
        let _shown = Shown(&input);
        let whole = transcript(&settings(0), &directory, [&input[..]]);
        assert_eq!(whole, transcript(&settings(0), &directory, input.chunks(1)));
        assert!(!whole.iter().any(|line| line.contains("secret")), "{whole:?}");
    }
    let mut messages = 0;
    rounds(|random| {
        let start = inputs[random.below(inputs.len())].clone();
        let input = random.spoilt(start, &inputs);
        let _shown = Shown(&input);
        let settings = settings(random.below(4));
        let whole = transcript(&settings, &directory, [&input[..]]);
        assert_eq!(whole, transcript(&settings, &directory, random.cut(&input)));
        messages += whole.iter().filter(|line| line.starts_with("E: ")).count() as u64;
    });
    // Spoilt, but not so much that nothing gets through.
    assert!(messages > ROUNDS / 2, "{messages} messages");
}

#[test]
fn data_is_read_as_by_the_simplest_reader_there_is() {
    rounds(|random| {
        let mut input = random.pieces();
        input.extend_from_slice(b"\r\n.\r\nQUIT\r\n");
        let _shown = Shown(&input);
        let (message, end) = simplest(&input);
        let (mut reader, mut read, mut taken) = (DotReader::new(), Vec::new(), 0);
        for part in random.cut(&input) {
            match reader.feed(part, &mut read) {
                None => taken += part.len(),
                Some(bytes) => {
                    taken += bytes;
                    break;
                }
            }
        }
        assert_eq!((read.escape_ascii().to_string(), taken), (message.escape_ascii().to_string(), end));
    });
}

/// The data up to CRLF `.` CRLF, line by line: without the dot that starts one, with LF at its end; and its length.
fn simplest(input: &[u8]) -> (Vec<u8>, usize) {
    let data = [b"\r\n", input].concat();
    let end = data.windows(5).position(|bytes| bytes == b"\r\n.\r\n").unwrap();
    let mut message = Vec::new();
    // Before the first line stands the CRLF that was put there.
    for line in &lines(&data[..end])[1..] {
        message.extend_from_slice(line.strip_prefix(b".").unwrap_or(line));
        message.push(b'\n');
    }
    (message, end + 5 - 2)
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

#[test]
fn chunks_are_read_as_by_the_simplest_reader_there_is() {
    rounds(|random| {
        let input = random.pieces();
        let _shown = Shown(&input);
        let (mut reader, mut read) = (ChunkReader::new(), Vec::new());
        for part in random.cut(&input) {
            reader.feed(part, &mut read);
        }
        reader.end(&mut read);
        assert_eq!(read.escape_ascii().to_string(), lines(&input).join(&b'\n').escape_ascii().to_string());
    });
}

#[test]
fn a_reply_is_one_harmless_line() {
    rounds(|random| {
        let text = String::from_utf8_lossy(&[random.pieces(), random.pieces()].concat()).into_owned();
        let outcome = match random.below(3) {
            0 => Outcome::Delivered(text),
            1 => Outcome::TempFail(Status::TEMPORARY, text),
            _ => Outcome::PermFail(Status::UNKNOWN_MAILBOX, text),
        };
        let line = reply(&outcome);
        let (text, end) = line.split_at(line.len() - 2);
        assert!(line.len() <= 512 && end == b"\r\n" && text.iter().all(|byte| (b' '..=b'~').contains(byte)));
        let class = outcome.status().to_string().as_bytes()[0];
        assert!(text[0] == class && text[3] == b' ' && text[4] == class);
    });
}
