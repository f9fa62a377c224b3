//! What a client of the LMTP server says, from its first byte on, to the server's own connection
//! (the kit's `script`, which asserts what holds for each reply).

use onedrop::lmtp::server::connection::ConnectionSettings;
use onedrop_kit::dialog;
pub use onedrop_kit::script;

use self::script::{Directory, Event, Script, Transcript};
use super::harness::Target;
use super::lmtp_data::{cut, simplest};

pub const TARGET: Target = Target { seeds, dictionary: DICTIONARY, check };

/// What matters to the protocol or to the readers.
pub const DICTIONARY: &[&[u8]] = &[
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

/// What is said in the dialogs.
fn seeds() -> Vec<Vec<u8>> {
    let inputs = dialog::all().iter().map(dialog::Dialog::input).collect::<Vec<_>>();
    inputs.into_iter().filter(|input| input.len() < 8192).collect()
}

/// What a connection that is given `input` does, however that is cut: it panics nowhere, says the
/// same, gives each command its reply before the next is read, and says no more than 1 KiB and 32
/// bytes for each byte.
pub fn check(input: &[u8]) {
    let limits = [(1, 0), (3, 100), (0, 0)];
    for (recipients, bytes) in limits {
        let settings = script::settings("mx", recipients, bytes);
        let whole = transcript(&settings, says([input]));
        // It costs the most, and what it may find has nothing to do with limits.
        if recipients == 0 {
            assert_eq!(whole, transcript(&settings, says(input.chunks(1))), "byte by byte");
        }
        assert_eq!(whole, transcript(&settings, says(cut(input))), "in pieces");
        assert_eq!(whole, transcript(&settings, Lockstep::new(input)), "command by command");
        let said: usize =
            whole.iter().filter(|line| line.starts_with("S: ")).map(String::len).sum();
        assert!(said <= 1024 + 32 * input.len(), "{said} bytes for {}", input.len());
    }
}

fn transcript(settings: &ConnectionSettings, script: impl Script) -> Transcript {
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

/// A client that waits for its replies: it says one command, or all of a message or of a chunk, and
/// sees that this has been answered as it should be before it says the next.
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

    /// Looks at the server's answer to what was said last: the reply, where there is one alone.
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
            (Said::Nothing | Said::Command { .. } | Said::Chunk, None) => {
                assert_eq!(replies.len(), 1, "{new:?}")
            }
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
        let is_over =
            now.is_empty() || transcript.last().is_some_and(|line| line.starts_with("X:"));
        (!is_over).then(|| Event::Says(now.to_vec()))
    }
}
