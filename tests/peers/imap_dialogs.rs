//! What the IMAP store says and what it makes of the answers, as dialogs in `fixtures/imap`. A file
//! holds several, each under its name (`= name`):
//!
//! - `can: WORD...` the server's capabilities: a client logs in first. Without it the dialog begins
//!   with the connection; `again: WORD...` is another one, with a login.
//! - `tls: starttls`, `without: create_mailboxes`: how the store is set up.
//! - `C: ` a command, without its tag; `c: ` another line from the client, or nothing but its CRLF.
//! - `A: MAILBOX SIZE` an APPEND of the letter up to its literal; `L:` the letter itself.
//! - `S: ` a line from the server, `$` in it being the last command's tag; `s: ` bytes from it,
//!   with the escapes of `escapes.rs`; `M: UID ` a message that it fetches, with those; `X:` it
//!   hangs up; `Z:` the client says nothing more and goes away.
//! - `? append [MAILBOX]`, `? look`, `? find [proven]` (with uid 4 on record), `? remove RECEIPT`,
//!   `? double RECEIPT KEEPER`, `? check`: what the store is asked, and behind ` -> ` what comes of
//!   it; of an error, its kind and a part of its text.
//! - `with: A | B...` runs the dialog with `%1` and `%2` replaced, once for each such line.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::escapes::unescaped;
use onedrop::deadline::Deadline;
use onedrop::directory::Destination;
use onedrop::login::LoginForm;
use onedrop::message::{DedupBy, Message};
use onedrop::pool::Limits;
use onedrop::store::imap::{ImapSettings, ImapStore, Tls};
use onedrop::store::{Access, Mailboxes, Need, Store};
use onedrop::store::{Copy, CopySearch, FoundCopy, Receipt, StoreError};

const LETTER: &[u8] = b"Message-ID: <a@b>\nSubject: s\n\nbody\0\n";
/// `LETTER` as it travels.
const LETTER_SENT: &[u8] = b"Message-ID: <a@b>\r\nSubject: s\r\n\r\nbody\x80\r\n";
/// doug, mda, secret in base64, with NUL in between
const LOGIN: &str = "AUTHENTICATE PLAIN ZG91ZwBtZGEAc2VjcmV0";

struct Dialog {
    name: String,
    settings: ImapSettings,
    /// What is said, in order.
    script: Vec<(String, String)>,
    /// What the store is asked, and what must come of it.
    asked: Vec<(String, String)>,
}

/// The dialogs in `text`, each with the values it is to be run with in place.
fn parse(text: &str) -> Vec<Dialog> {
    let mut dialogs = Vec::new();
    for part in text.split("\n= ").skip(1) {
        let (name, rest) = part.split_once('\n').expect("a name");
        let lines: Vec<(&str, &str)> = rest
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(|line| match line.strip_prefix("? ") {
                Some(asked) => ("?", asked),
                None => line.split_once(':').unwrap_or_else(|| panic!("{name}: {line}")),
            })
            .map(|(word, rest)| (word, rest.strip_prefix(' ').unwrap_or(rest)))
            .collect();
        let with: Vec<&str> =
            lines.iter().filter(|(word, _)| *word == "with").map(|(_, values)| *values).collect();
        for values in if with.is_empty() { vec![""] } else { with } {
            let replaced = |text: &str| {
                values.split(" | ").zip(1..).fold(text.to_owned(), |text, (value, number)| {
                    text.replace(&format!("%{number}"), value)
                })
            };
            let mut dialog = Dialog {
                name: format!("{name} {values}"),
                settings: settings(),
                script: Vec::new(),
                asked: Vec::new(),
            };
            for (word, rest) in &lines {
                let rest = replaced(rest);
                match (*word, rest.as_str()) {
                    ("with", _) => {}
                    ("tls", "starttls") => dialog.settings.tls = Tls::StartTls,
                    ("without", "create_mailboxes") => dialog.settings.create_mailboxes = false,
                    ("?", asked) => {
                        let (asked, expected) = asked.split_once(" -> ").expect("an outcome");
                        dialog.asked.push((asked.to_owned(), expected.to_owned()));
                    }
                    (word, _) => dialog.script.push((word.to_owned(), rest)),
                }
            }
            dialogs.push(dialog);
        }
    }
    dialogs
}

fn settings() -> ImapSettings {
    ImapSettings {
        host: "127.0.0.1".to_owned(),
        port: 0,
        tls: Tls::None,
        ca_file: None,
        user: "mda".to_owned(),
        login: LoginForm::Sasl,
        password: "secret".into(),
        create_mailboxes: true,
        dedup_by: DedupBy::Content,
    }
}

/// The server's end of a connection.
struct Peer {
    stream: TcpStream,
    input: BufReader<TcpStream>,
    tag: String,
}

impl Peer {
    fn accept(listener: &TcpListener) -> Peer {
        let (stream, _) = listener.accept().expect("a client");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time-out");
        stream.set_nodelay(true).expect("no delay");
        let input = BufReader::new(stream.try_clone().expect("another handle"));
        Peer { input, stream, tag: String::new() }
    }

    fn log_in(&mut self, capabilities: &str) {
        self.say(format!("* OK [CAPABILITY {capabilities}] ready\r\n").as_bytes());
        self.expect(LOGIN);
        self.say(format!("{} OK [CAPABILITY {capabilities}] in\r\n", self.tag).as_bytes());
    }

    fn say(&mut self, bytes: &[u8]) {
        // A client that goes away early does not hear it.
        let _ = self.stream.write_all(bytes);
    }

    fn line(&mut self) -> String {
        let mut line = Vec::new();
        let _ = self.input.read_until(b'\n', &mut line);
        let line = String::from_utf8(line).expect("ASCII");
        line.strip_suffix("\r\n").map_or(format!("{line} (the end)"), str::to_owned)
    }

    fn expect(&mut self, command: &str) {
        let line = self.line();
        let (tag, rest) = line.split_once(' ').unwrap_or(("", &line));
        assert_eq!(rest, command);
        self.tag = tag.to_owned();
    }
}

/// Plays the server.
fn serve(listener: &TcpListener, script: &[(String, String)]) {
    let is_login = |word: &str| word == "can" || word == "again";
    let mut peer = Peer::accept(listener);
    for (number, (word, rest)) in script.iter().enumerate() {
        if is_login(word) && number > 0 {
            peer = Peer::accept(listener);
        }
        match word.as_str() {
            word if is_login(word) => peer.log_in(rest),
            "C" => peer.expect(rest),
            "c" => assert_eq!(peer.line(), *rest),
            "A" => {
                let (mailbox, size) = rest.rsplit_once(' ').expect("a size");
                let date = "\"21-Nov-2026 00:00:00 +0000\"";
                peer.expect(&format!("APPEND {mailbox} {date} {{{size}}}"));
            }
            "L" => {
                let mut letter = vec![0; LETTER_SENT.len()];
                peer.input.read_exact(&mut letter).expect("the letter");
                assert_eq!(letter, LETTER_SENT);
            }
            "S" => {
                let line = format!("{}\r\n", rest.replace('$', &peer.tag));
                peer.say(line.as_bytes());
            }
            "s" => peer.say(&unescaped(&rest.replace('$', &peer.tag))),
            "M" => {
                let (uid, text) = rest.split_once(' ').expect("a UID");
                let bytes = unescaped(text);
                let size = bytes.len();
                let head =
                    format!("* 1 FETCH (UID {uid} RFC822.SIZE {size} BODY[]<0> {{{size}}}\r\n");
                let tail = format!(")\r\n{} OK done\r\n", peer.tag);
                peer.say(&[head.as_bytes(), &bytes, tail.as_bytes()].concat());
            }
            "X" => drop(peer.stream.shutdown(Shutdown::Both)),
            "Z" => {
                let mut rest = Vec::new();
                let _ = peer.input.read_to_end(&mut rest);
                assert!(rest.is_empty(), "{}", rest.escape_ascii());
            }
            _ => panic!("{word}: {rest}"),
        }
    }
}

/// Asks the store; returns what came of it in the words of a dialog.
fn ask(store: &ImapStore, asked: &str) -> Result<String, StoreError> {
    let letter = Message::new(LETTER.to_vec(), DedupBy::Content);
    let copy = Copy {
        key: &[0; 32],
        head: b"",
        bytes: letter.own_copy(),
        identity: letter.identity(),
        recorded_at: SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_219_200),
    };
    let inbox = Destination::inbox("doug");
    let until = Instant::now() + Duration::from_millis(1500);
    let deadline = Deadline::new(Duration::from_millis(1500), Duration::from_millis(500));
    let words: Vec<&str> = asked.split(' ').collect();
    match words[..] {
        ["append", ref mailbox @ ..] => {
            let name = String::from_utf8(unescaped(&mailbox.join(" "))).expect("a name");
            let destination =
                if mailbox.is_empty() { inbox } else { Destination::sent("doug", &name) };
            let appended = store
                .reserve(&destination, copy, Need::Write, &deadline)
                .and_then(|slot| slot.expect("a slot").append());
            match &appended {
                Ok(_) => assert!(deadline.is_answering(), "its receipt is not on record"),
                Err(StoreError::InDoubt(_)) => {}
                Err(_) => assert!(!deadline.is_answering(), "nothing is left to wait for"),
            }
            appended.map(|receipt| named(&receipt))
        }
        ["look"] => {
            let slot = store.reserve(&inbox, copy, Need::Look, &deadline)?;
            let found = slot.expect("a slot").look(until)?;
            Ok(found.as_ref().map_or("nothing".to_owned(), named))
        }
        ["find", ref how @ ..] => {
            let receipt = Receipt::Uid { validity: 7, uid: 4 };
            let needs_proof = how == ["proven"];
            let on_record = Some(&receipt);
            let sought = CopySearch { needs_proof, on_record, at_most: 3, ..copy.sought() };
            let found = |one: &FoundCopy| format!("{} {:?}", named(&one.receipt), one.proof);
            let all: Vec<String> = store.find(&inbox, &sought, until)?.iter().map(found).collect();
            Ok(all.join(", "))
        }
        ["remove", which] => {
            store.remove(&inbox, &receipt(which), until).map(|()| "done".to_owned())
        }
        ["double", which, keeper] => store
            .remove_double(&inbox, &receipt(which), &receipt(keeper), until)
            .map(|()| "done".to_owned()),
        ["check"] => store.check("doug", until).map(|facts| facts.join("; ")),
        _ => panic!("{asked}"),
    }
}

fn named(receipt: &Receipt) -> String {
    match receipt {
        Receipt::Uid { validity, uid } => format!("{validity}/{uid}"),
        other => format!("{other:?}"),
    }
}

fn receipt(name: &str) -> Receipt {
    match name.split_once('/') {
        Some((validity, uid)) => Receipt::Uid {
            validity: validity.parse().expect("a number"),
            uid: uid.parse().expect("a number"),
        },
        None if name == "Unnamed" => Receipt::Unnamed,
        None => Receipt::Name(name.to_owned()),
    }
}

/// Plays one dialog; the script must come to its end, and so must the store, in time.
fn play(dialog: &Dialog) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let settings = ImapSettings { port, ..dialog.settings.clone() };
    assert!(!format!("{settings:?}").contains("secret"));
    let limits = Limits { used: 9, per_key: 1, kept: 1, idle: Duration::from_secs(60) };
    thread::scope(|scope| {
        let script = scope.spawn(move || serve(&listener, &dialog.script));
        let store = ImapStore::new(settings, limits);
        for (asked, expected) in &dialog.asked {
            let began = Instant::now();
            let came = match ask(&store, asked) {
                Ok(came) => came,
                Err(error) => {
                    let text = error.to_string();
                    let secrets = ["secret", "ZG91ZwBtZGEAc2VjcmV0"];
                    assert!(!secrets.iter().any(|secret| text.contains(secret)), "{text}");
                    let kind = format!("{error:?}");
                    format!("{} {text}", kind.split('(').next().unwrap_or_default())
                }
            };
            let (kind, text) = expected.split_once(' ').unwrap_or((expected, ""));
            let fits = came == *expected
                || came.split(' ').next() == Some(kind)
                    && text.split(" ... ").all(|part| came.contains(part));
            assert!(fits, "{}: {asked} -> {expected}\nbut {came}", dialog.name);
            assert!(began.elapsed() < Duration::from_secs(3), "{}: {asked}", dialog.name);
        }
        drop(store);
        if script.join().is_err() {
            panic!("{}: the server heard something else", dialog.name);
        }
    });
}

fn play_all(file: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/imap").join(file);
    let text = fs::read_to_string(path).expect("a file of dialogs");
    let dialogs = parse(&text);
    assert!(!dialogs.is_empty());
    dialogs.iter().for_each(play);
}

#[test]
fn appends() {
    play_all("appends.dialog");
}

#[test]
fn refusals() {
    play_all("refusals.dialog");
}

#[test]
fn hostile_servers() {
    play_all("hostile.dialog");
}

#[test]
fn looks() {
    play_all("looks.dialog");
}

#[test]
fn removals() {
    play_all("removals.dialog");
}
