//! The IMAP store against a scripted server on loopback, where time, sessions or threads count;
//! what is said and answered otherwise stands in `fixtures/imap`. A script panics when the store
//! sends something else than it expects.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::*;
use crate::lock_key::Hash;
use crate::message::Message;

mod early;
mod grouped;
mod hostile;
mod looks;
mod proof;
mod sessions;

const CAPABILITIES: &str = "IMAP4rev1 SASL-IR LITERAL+ UIDPLUS UNSELECT";
const LETTER: &[u8] = b"Message-ID: <a@b>\nSubject: s\n\nbody\0\n";
/// `LETTER` as it travels.
const LETTER_SENT: &[u8] = b"Message-ID: <a@b>\r\nSubject: s\r\n\r\nbody\x80\r\n";

/// The server's end of one connection.
struct Peer {
    stream: TcpStream,
    input: BufReader<TcpStream>,
}

impl Peer {
    fn accept(listener: &TcpListener) -> Peer {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.set_nodelay(true).unwrap();
        Peer { input: BufReader::new(stream.try_clone().unwrap()), stream }
    }

    fn say(&mut self, text: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(text.as_ref());
    }

    /// The next line, without its CRLF; empty at the end of the connection.
    fn line(&mut self) -> String {
        let mut line = Vec::new();
        let _ = self.input.read_until(b'\n', &mut line);
        String::from_utf8(line).unwrap().trim_end_matches("\r\n").to_owned()
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.input.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Everything up to the end of the connection.
    fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let _ = self.input.read_to_end(&mut rest);
        rest
    }

    /// Reads a command, checks it and returns its tag.
    fn expect(&mut self, command: &str) -> String {
        let line = self.line();
        let (tag, rest) = line.split_once(' ').unwrap_or(("", &line));
        assert_eq!(rest, command);
        tag.to_owned()
    }

    fn answer(&mut self, command: &str, answer: &str) {
        let tag = self.expect(command);
        self.say(format!("{tag} {answer}\r\n"));
    }

    fn log_in(&mut self, capabilities: &str) {
        self.say(format!("* OK [CAPABILITY {capabilities}] ready\r\n"));
        // base64 of doug, mda, secret with NUL in between
        self.answer(
            "AUTHENTICATE PLAIN ZG91ZwBtZGEAc2VjcmV0",
            &format!("OK [CAPABILITY {capabilities}] in"),
        );
    }

    /// Reads an APPEND of `LETTER` to `mailbox` up to its literal.
    fn append_to(&mut self, mailbox: &str, plus: &str) -> String {
        self.expect(&format!(
            "APPEND {mailbox} \"21-Nov-2026 00:00:00 +0000\" {{{}{plus}}}",
            LETTER_SENT.len()
        ))
    }

    /// Reads an APPEND to INBOX with its literal, but not the CRLF after it.
    fn append(&mut self) -> String {
        let tag = self.append_to("\"INBOX\"", "+");
        assert_eq!(self.bytes(LETTER_SENT.len()), LETTER_SENT);
        tag
    }

    /// Reads an APPEND to INBOX to its end and answers it.
    fn answer_append(&mut self, answer: &str) {
        let tag = self.append();
        self.last_bytes();
        self.say(format!("{tag} {answer}\r\n"));
    }

    fn last_bytes(&mut self) {
        assert_eq!(self.bytes(2), b"\r\n");
    }

    fn open(&mut self, how: &str) {
        let tag = self.expect(&format!("{how} \"INBOX\""));
        let noise =
            "* FLAGS (\\Seen $ä)\r\n* 3 EXISTS\r\n* OK [PERMANENTFLAGS ()] none\r\n* NO odd\r\n";
        self.say(format!("{noise}* OK [UIDVALIDITY 7] fine\r\n{tag} OK [READ-ONLY] done\r\n"));
    }

    fn hang_up(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// A server with a script, and a store that uses it.
struct World {
    store: ImapStore,
    script: JoinHandle<()>,
}

fn settings(port: u16) -> ImapSettings {
    ImapSettings {
        host: "127.0.0.1".to_owned(),
        port,
        tls: Tls::None,
        ca_file: None,
        user: "mda".to_owned(),
        login: LoginForm::Sasl,
        password: "secret".to_owned().into(),
        create_mailboxes: true,
        dedup_by: DedupBy::Content,
    }
}

impl World {
    fn new(script: impl FnOnce(TcpListener) + Send + 'static) -> World {
        World::with(script, |_| {})
    }

    fn with(
        script: impl FnOnce(TcpListener) + Send + 'static,
        change: impl FnOnce(&mut ImapSettings),
    ) -> World {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut settings = settings(listener.local_addr().unwrap().port());
        change(&mut settings);
        World {
            store: ImapStore::new(settings, LIMITS),
            script: thread::spawn(move || script(listener)),
        }
    }

    /// A server that logs one client in and then does `script`.
    fn logged_in(
        capabilities: &'static str,
        script: impl FnOnce(&mut Peer) + Send + 'static,
    ) -> World {
        World::new(move |listener| {
            let mut peer = Peer::accept(&listener);
            peer.log_in(capabilities);
            script(&mut peer);
        })
    }

    fn append(&self, destination: &Destination) -> Result<Receipt, StoreError> {
        self.append_within(destination, &deadline())
    }

    fn append_within(
        &self,
        destination: &Destination,
        deadline: &Deadline,
    ) -> Result<Receipt, StoreError> {
        append(&self.store, destination, LETTER, deadline)
    }

    /// The script must have come to its end, and the client have closed what it had open.
    /// Whether the script is not over.
    fn is_served(&self) -> bool {
        !self.script.is_finished()
    }

    fn end(self) {
        drop(self.store);
        if let Err(panic) = self.script.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

const LIMITS: Limits =
    Limits { used: usize::MAX, per_key: 2, kept: 2, idle: Duration::from_secs(60) };

fn append(
    store: &ImapStore,
    destination: &Destination,
    letter: &[u8],
    deadline: &Deadline,
) -> Result<Receipt, StoreError> {
    let message = Message::new(letter.to_vec(), DedupBy::Content);
    let slot = store.reserve(destination, copy_of(&message), Need::Write, deadline)?;
    slot.expect("a slot").append()
}

const KEY: Hash = [0; 32];

fn copy_of(message: &Message) -> Copy<'_> {
    Copy {
        key: &KEY,
        head: b"",
        bytes: message.own_copy(),
        identity: message.identity(),
        recorded_at: recorded_at(),
    }
}

fn recorded_at() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_795_219_200)
}

/// Time enough for loopback, and an answer that is given up soon.
fn deadline() -> Deadline {
    Deadline::new(Duration::from_millis(1500), Duration::from_millis(500))
}

/// One that passed while the machine was suspended.
fn overslept() -> Deadline {
    Deadline::overslept(Duration::from_millis(1500), Duration::from_millis(500))
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(1500)
}

fn inbox() -> Destination {
    Destination::inbox("doug")
}

fn uid(uid: u32) -> Receipt {
    Receipt::Uid { validity: 7, uid }
}

fn is_not_stored(error: &StoreError) -> bool {
    matches!(error, StoreError::NotStored(_))
}

#[test]
fn a_copy_is_appended_in_one_round_trip_after_the_login() {
    let world = World::logged_in(CAPABILITIES, |peer| {
        peer.answer_append("OK [APPENDUID 7 42] done");
        peer.expect("LOGOUT");
        assert!(peer.rest().is_empty());
    });
    world.store.prepare("doug", soon());
    let deadline = deadline();
    assert_eq!(
        world.append_within(&inbox(), &deadline).unwrap(),
        Receipt::Uid { validity: 7, uid: 42 }
    );
    assert!(deadline.is_answering(), "the receipt is not on record yet");
    world.end();
}

#[test]
fn without_literal_plus_the_literal_waits_for_the_plus() {
    let world = World::logged_in("IMAP4rev1 SASL-IR UIDPLUS", |peer| {
        let tag = peer.append_to("\"INBOX\"", "");
        peer.say("* 17 EXISTS\r\n* NO disk is nearly full {5}\r\n* OK Übrigens\r\n");
        peer.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert!(peer.input.read(&mut [0]).is_err(), "nothing comes before the plus");
        peer.stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        peer.say("+ go on\r\n");
        assert_eq!(peer.bytes(LETTER_SENT.len()), LETTER_SENT);
        peer.last_bytes();
        peer.say(format!("* 18 EXISTS\r\n{tag} OK [APPENDUID 7 42] größer als gedacht\r\n"));
    });
    assert_eq!(world.append(&inbox()).unwrap(), Receipt::Uid { validity: 7, uid: 42 });
    world.end();
}

#[test]
fn too_late_for_an_answer_the_last_bytes_are_not_sent() {
    let large = [&b"Subject: large\r\n\r\n"[..], &b"x".repeat(100_000)].concat();
    for (bytes, goes_ahead) in [(LETTER.to_vec(), false), (large, true)] {
        let size = syntax::literal_size(&bytes);
        let world = World::logged_in(CAPABILITIES, move |peer| {
            // What is small goes out with its last bytes or not at all.
            if goes_ahead {
                peer.expect(&format!(
                    "APPEND \"INBOX\" \"21-Nov-2026 00:00:00 +0000\" {{{size}+}}"
                ));
                peer.bytes(size);
            }
            assert!(peer.rest().is_empty());
        });
        let deadline = overslept();
        let error = append(&world.store, &inbox(), &bytes, &deadline).unwrap_err();
        assert!(is_not_stored(&error) && !deadline.is_answering(), "{error}");
        world.end();
    }
}

/// Without LITERAL+ the server speaks before the literal comes, so that its end before the last
/// bytes is one for certain.
#[test]
fn a_kept_session_that_ends_under_an_append_costs_none_but_not_after_the_last_bytes() {
    fn literal(peer: &mut Peer) -> String {
        let tag = peer.append_to("\"INBOX\"", "");
        peer.say("+ go on\r\n");
        peer.bytes(LETTER_SENT.len());
        peer.last_bytes();
        tag
    }
    for after_last_bytes in [false, true] {
        let world = World::new(move |listener| {
            let mut peer = Peer::accept(&listener);
            peer.log_in("IMAP4rev1 SASL-IR UIDPLUS");
            let tag = literal(&mut peer);
            peer.say(format!("{tag} OK [APPENDUID 7 42] done\r\n"));
            if after_last_bytes {
                literal(&mut peer);
                return peer.hang_up();
            }
            peer.append_to("\"INBOX\"", "");
            peer.hang_up();
            let mut again = Peer::accept(&listener);
            again.log_in("IMAP4rev1 SASL-IR UIDPLUS");
            let tag = literal(&mut again);
            again.say(format!("{tag} OK [APPENDUID 7 43] done\r\n"));
        });
        assert_eq!(world.append(&inbox()).unwrap(), Receipt::Uid { validity: 7, uid: 42 });
        match (after_last_bytes, world.append(&inbox())) {
            (false, Ok(receipt)) => assert_eq!(receipt, Receipt::Uid { validity: 7, uid: 43 }),
            (true, Err(StoreError::InDoubt(_))) => {}
            (_, other) => panic!("after the last bytes: {after_last_bytes}: {other:?}"),
        }
        world.end();
    }
}

#[test]
fn a_session_that_ended_while_idle_is_opened_again() {
    for goodbye in ["", "* BYE idle for too long\r\n", "a2 OK stale\r\n"] {
        let (ended, ending) = channel();
        let world = World::new(move |listener| {
            let mut peer = Peer::accept(&listener);
            peer.log_in(CAPABILITIES);
            peer.answer_append("OK");
            peer.say(goodbye);
            if goodbye.is_empty() {
                peer.hang_up();
            }
            ended.send(()).unwrap();
            let mut again = Peer::accept(&listener);
            again.log_in(CAPABILITIES);
            again.answer_append("OK [APPENDUID 7 43] done");
        });
        assert_eq!(world.append(&inbox()).unwrap(), Receipt::Unnamed);
        ending.recv().unwrap();
        assert_eq!(
            world.append(&inbox()).unwrap(),
            Receipt::Uid { validity: 7, uid: 43 },
            "{goodbye}"
        );
        world.end();
    }
}

/// An append goes out whole before anything comes back, its last bytes with it: what was never read
/// must not be in doubt.
#[test]
fn a_session_that_was_idle_is_asked_first_and_replaced_without_an_answer() {
    for is_there in [true, false] {
        let world = World::new(move |listener| {
            let mut peer = Peer::accept(&listener);
            let stored = |peer: &mut Peer, uid: u32| {
                peer.answer_append(&format!("OK [APPENDUID 7 {uid}] done"));
            };
            peer.log_in(CAPABILITIES);
            stored(&mut peer, 42);
            if is_there {
                peer.answer("NOOP", "OK still here");
                return stored(&mut peer, 43);
            }
            peer.expect("NOOP");
            peer.hang_up();
            let mut again = Peer::accept(&listener);
            again.log_in(CAPABILITIES);
            stored(&mut again, 43);
        });
        let mut world = world;
        world.store.idle = Duration::ZERO;
        for uid in [42, 43] {
            assert_eq!(
                world.append(&inbox()).unwrap(),
                Receipt::Uid { validity: 7, uid },
                "is there: {is_there}"
            );
        }
        world.end();
    }
}
