//! The server's end of IMAP connections as a test writes it, and a store that talks to it. A script
//! panics when the store sends something else than it expects.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use onedrop::clock::Clock;
use onedrop::deadline::Deadline;
use onedrop::directory::Destination;
use onedrop::login::LoginForm;
use onedrop::message::{DedupBy, Message};
use onedrop::net::pool::Limits;
use onedrop::store::TrustSearch;
use onedrop::store::imap::{ImapSettings, ImapStore, Tls};
use onedrop::store::{Copy, Need, Receipt, Store, StoreError};

pub const CAPABILITIES: &str = "IMAP4rev1 SASL-IR LITERAL+ UIDPLUS";
pub const LETTER: &[u8] = b"Message-ID: <a@b>\nSubject: s\n\nbody\0\n";
/// `LETTER` as it travels.
const LETTER_SENT: &[u8] = b"Message-ID: <a@b>\r\nSubject: s\r\n\r\nbody\x80\r\n";
/// When every letter was recorded first.
pub const DATE: &str = "\"21-Nov-2026 00:00:00 +0000\"";
/// doug, mda, secret in base64, with NUL in between.
pub const LOGIN: &str = "ZG91ZwBtZGEAc2VjcmV0";

/// The server's end of one connection.
pub struct ScriptedServer {
    pub stream: TcpStream,
    input: BufReader<TcpStream>,
    /// Of the last command.
    pub tag: String,
}

impl ScriptedServer {
    pub fn accept(listener: &TcpListener) -> ScriptedServer {
        let (stream, _) = listener.accept().expect("a client");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time-out");
        stream.set_nodelay(true).expect("no delay");
        let input = BufReader::new(stream.try_clone().expect("another handle"));
        ScriptedServer { stream, input, tag: String::new() }
    }

    pub fn logged_in(listener: &TcpListener, capabilities: &str) -> ScriptedServer {
        let mut server = ScriptedServer::accept(listener);
        server.log_in(capabilities);
        server
    }

    pub fn log_in(&mut self, capabilities: &str) {
        self.say(format!("* OK [CAPABILITY {capabilities}] ready\r\n"));
        let login = format!("AUTHENTICATE PLAIN {LOGIN}");
        self.answer(&login, &format!("OK [CAPABILITY {capabilities}] in"));
    }

    pub fn say(&mut self, bytes: impl AsRef<[u8]>) {
        // A client that goes away early does not hear it.
        let _ = self.stream.write_all(bytes.as_ref());
    }

    /// Ends the last command.
    pub fn reply(&mut self, answer: &str) {
        self.say(format!("{} {answer}\r\n", self.tag));
    }

    /// The next line, without its CRLF.
    pub fn line(&mut self) -> String {
        let mut line = Vec::new();
        let _ = self.input.read_until(b'\n', &mut line);
        let line = String::from_utf8(line).expect("ASCII");
        line.strip_suffix("\r\n").map_or(format!("{line} (the end)"), str::to_owned)
    }

    pub fn expect_bytes(&mut self, expected: &[u8]) {
        let mut bytes = vec![0; expected.len()];
        self.input.read_exact(&mut bytes).expect("more bytes");
        assert_eq!(bytes.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    /// Everything up to the end of the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let _ = self.input.read_to_end(&mut rest);
        rest
    }

    /// The client says nothing more and goes away.
    pub fn expect_end(&mut self) {
        let rest = self.rest();
        assert!(rest.is_empty(), "{}", rest.escape_ascii());
    }

    /// The client says nothing for a while.
    pub fn expect_silence(&mut self) {
        self.stream.set_read_timeout(Some(Duration::from_millis(100))).expect("a time-out");
        let read = self.input.read(&mut [0]);
        assert!(read.is_err(), "{read:?} came too early");
        self.stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time-out");
    }

    pub fn expect(&mut self, command: &str) {
        let line = self.line();
        let (tag, rest) = line.split_once(' ').unwrap_or(("", &line));
        assert_eq!(rest, command);
        self.tag = tag.to_owned();
    }

    pub fn answer(&mut self, command: &str, answer: &str) {
        self.expect(command);
        self.reply(answer);
    }

    /// Reads an APPEND of this number of letters to INBOX, but not the CRLF that makes it take
    /// effect.
    pub fn append(&mut self, letters: usize) {
        let announced = format!("{DATE} {{{}+}}", LETTER_SENT.len());
        self.expect(&format!("APPEND \"INBOX\" {announced}"));
        self.expect_bytes(LETTER_SENT);
        for _ in 1..letters {
            self.expect_bytes(format!(" {announced}\r\n").as_bytes());
            self.expect_bytes(LETTER_SENT);
        }
    }

    /// Reads an APPEND to its end and answers it.
    pub fn answer_append(&mut self, letters: usize, answer: &str) {
        self.append(letters);
        self.expect_bytes(b"\r\n");
        self.reply(answer);
    }

    pub fn hang_up(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

pub fn settings(port: u16) -> ImapSettings {
    ImapSettings {
        host: "127.0.0.1".to_owned(),
        port,
        tls: Tls::None,
        ca_file: None,
        user: "mda".to_owned(),
        login: LoginForm::Sasl,
        password: "secret".into(),
        create_mailboxes: true,
        trust_search: TrustSearch::Always,
        lock_timeout: Duration::from_secs(5),
    }
}

/// A listener for a script, and a store that will connect to it.
pub fn listen(
    per_account: usize,
    change: impl FnOnce(&mut ImapSettings),
) -> (TcpListener, ImapStore) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut settings = settings(listener.local_addr().expect("an address").port());
    change(&mut settings);
    assert!(!format!("{settings:?}").contains("secret"));
    let idle = Duration::from_secs(60);
    let limits = Limits { used: usize::MAX, per_key: per_account, kept: per_account, idle };
    (listener, ImapStore::new(settings, limits))
}

/// A server with a script, and a store that uses it, with two sessions for an account at most.
pub struct World {
    pub store: ImapStore,
    pub script: JoinHandle<()>,
}

impl World {
    pub fn new(script: impl FnOnce(TcpListener) + Send + 'static) -> World {
        World::with(script, |_| {})
    }

    pub fn with(
        script: impl FnOnce(TcpListener) + Send + 'static,
        change: impl FnOnce(&mut ImapSettings),
    ) -> World {
        let (listener, store) = listen(2, change);
        World { store, script: thread::spawn(move || script(listener)) }
    }

    pub fn append(&self, deadline: &Deadline) -> Result<Receipt, StoreError> {
        let (inbox, letter) = (inbox(), letter(LETTER));
        let slot = self.store.reserve(&inbox, copy_of(&letter), Need::Write, deadline)?;
        slot.expect("a slot").append()
    }

    /// The script must come to its end, and the client close what it has open.
    pub fn end(self) {
        drop(self.store);
        if let Err(panic) = self.script.join() {
            resume_unwind(panic);
        }
    }
}

pub fn letter(bytes: &[u8]) -> Message {
    Message::new(bytes.to_vec(), DedupBy::Content)
}

pub fn copy_of(letter: &Message) -> Copy<'_> {
    Copy {
        key: &[0; 32],
        head: b"",
        bytes: letter.own_copy(),
        identity: letter.identity(),
        recorded_at: SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_219_200),
        looks_back: false,
        handed: None,
        looked: None,
        newer_than: None,
    }
}

pub fn inbox() -> Destination {
    Destination::inbox("doug")
}

pub fn uid(uid: u32) -> Receipt {
    Receipt::uid(7, uid)
}

/// Time enough for loopback, and an answer that is given up soon.
pub fn deadline() -> Deadline {
    deadline_by(&Arc::default())
}

pub fn deadline_by(clock: &Arc<TestClock>) -> Deadline {
    Deadline::by(clock.clone(), Duration::from_millis(1500), Duration::from_millis(500))
}

/// Time enough for a real server on a busy machine.
pub fn deadline_of_a_test() -> Deadline {
    Deadline::new(Duration::from_secs(30), Duration::from_secs(10))
}

/// One that passes while the machine is suspended.
pub fn overslept() -> Deadline {
    let clock = Arc::<TestClock>::default();
    let deadline = deadline_by(&clock);
    clock.has_slept.store(true, Ordering::SeqCst);
    deadline
}

pub fn soon() -> Instant {
    Instant::now() + Duration::from_millis(1500)
}

pub fn is_not_stored(error: &StoreError) -> bool {
    matches!(error, StoreError::NotStored(_))
}

/// The system's clock, but for the machine's sleep.
#[derive(Debug, Default)]
pub struct TestClock {
    pub has_slept: AtomicBool,
    /// The look at the clock before the last bytes panics.
    pub panics: AtomicBool,
}

impl Clock for TestClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn since_boot(&self) -> Option<Duration> {
        assert!(!self.panics.load(Ordering::SeqCst), "told to");
        let hours = if self.has_slept.load(Ordering::SeqCst) { 2 } else { 1 };
        Some(Duration::from_secs(hours * 3600))
    }

    fn sleep(&self, time: Duration) {
        thread::sleep(time);
    }

    fn random(&self) -> u64 {
        0
    }

    fn side_by_side(&self, _: usize, work: &(dyn Fn() + Sync)) {
        work();
    }
}
