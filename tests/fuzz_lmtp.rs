//! The LMTP protocol and its readers under hostile input: what must hold is in `lmtp/oracles.rs`. Here the dialogs in
//! `fixtures/dialogs` are spoilt by a seeded generator, so every run is the same; `ONEDROP_FUZZ=N` makes N times as many.
//! Input worth keeping is in `fixtures/corpus-lmtp`, a folder for each oracle, and runs first.
//!
//! With a fuzzer that sees what the code does with its input (libFuzzer, by cargo-fuzz, with a nightly compiler):
//!
//! ```sh
//! cargo install cargo-fuzz
//! mkdir -p fuzz/corpus/lmtp_session fuzz/corpus/lmtp_data
//! cargo +nightly fuzz run lmtp_session fuzz/corpus/lmtp_session fixtures/corpus-lmtp/session
//! cargo +nightly fuzz run lmtp_data fuzz/corpus/lmtp_data fixtures/corpus-lmtp/data
//! ```
//!
//! What it finds goes to `fuzz/artifacts`; made small by `cargo +nightly fuzz tmin`, it belongs into the folder here.

#[path = "lmtp/dialog.rs"]
mod dialog;
#[path = "lmtp/escapes.rs"]
mod escapes;
#[path = "lmtp/oracles.rs"]
mod oracles;
#[path = "lmtp/script.rs"]
mod script;

use std::fs;
use std::path::Path;

use onedrop::lmtp::protocol::reply;
use onedrop::outcome::{Outcome, Status};

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
}

/// Runs `check` for each round with a generator of its own.
fn rounds(mut check: impl FnMut(&mut Random)) {
    let times = std::env::var("ONEDROP_FUZZ").map_or(1, |times| times.parse().expect("ONEDROP_FUZZ is a number"));
    for round in 0..ROUNDS * times {
        check(&mut Random(round));
    }
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

/// The inputs that are kept for an oracle, by name.
fn kept(oracle: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/corpus-lmtp").join(oracle);
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{oracle}");
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

#[test]
fn whatever_is_said_each_command_has_its_replies_in_any_pieces() {
    for input in kept("session") {
        let _shown = Shown(&input);
        let transcript = oracles::session(&input);
        // What was said amid a message that never came to its end.
        assert!(!transcript.iter().any(|line| line.contains("secret")), "{transcript:?}");
    }
    let dialogs = dialog::all();
    let inputs: Vec<Vec<u8>> = dialogs.iter().map(dialog::Dialog::input).filter(|input| input.len() < 8192).collect();
    let mut messages = 0;
    rounds(|random| {
        let start = inputs[random.below(inputs.len())].clone();
        let input = random.spoilt(start, &inputs);
        let _shown = Shown(&input);
        messages += oracles::session(&input).iter().filter(|line| line.starts_with("E: ")).count() as u64;
    });
    // Spoilt, but not so much that nothing gets through.
    assert!(messages > ROUNDS / 2, "{messages} messages");
}

#[test]
fn data_and_chunks_are_read_as_by_the_simplest_readers_there_are() {
    for input in kept("data") {
        let _shown = Shown(&input);
        oracles::data(&input);
    }
    rounds(|random| {
        let mut input = random.pieces();
        // Most come to an end.
        if random.below(4) > 0 {
            input.extend_from_slice(b"\r\n.\r\nQUIT\r\n");
        }
        let _shown = Shown(&input);
        oracles::data(&input);
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
