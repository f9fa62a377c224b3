//! The server's own connection ([`ClientConnection`]) without a socket, a ledger or a store: a
//! script says what the client sends and when, the time is the script's, and a transcript has what
//! the server does. Every reply is checked for what must hold of all replies.

use std::io;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use onedrop::config::{Config, LmtpSettings};
use onedrop::deliver::Failure;
use onedrop::lmtp::server::connection::{ClientConnection, ConnectionSettings, Peer};
use onedrop::lmtp::server::protocol::Transaction;
use onedrop::message::Bytes;
use onedrop::net::lmtp::reply;
use onedrop::outcome::{Outcome, Status};

/// The recipients that the directory knows.
#[derive(Debug, Clone, Default)]
pub struct Directory {
    pub known: Vec<String>,
    /// Cannot be looked up now.
    pub later: Vec<String>,
    /// Cannot be looked up before an administrator mends the set-up.
    pub broken: Vec<String>,
}

/// Read once: the fuzzer asks for it thousands of times.
static DEFAULTS: LazyLock<LmtpSettings> = LazyLock::new(|| Config::default().lmtp);

/// A host `host` with a limit of recipients and of bytes for a message (0: none), and the other
/// defaults.
pub fn settings(host: &str, recipients: usize, message_bytes: u64) -> ConnectionSettings {
    let lmtp = LmtpSettings {
        recipients,
        idle_secs: 300,
        spool_bytes: u64::MAX,
        spool_dir: "/nonexistent".into(),
        ..DEFAULTS.clone()
    };
    let help = Arc::new([]);
    ConnectionSettings { host: host.to_owned(), lmtp, message_bytes, counts_refused: false, help }
}

/// What the client does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Says(Vec<u8>),
    /// Says nothing for this time.
    Waits(Duration),
    /// The server begins to stop.
    Stop,
    /// Reads what there is: the next step begins.
    Step,
}

/// Where the events come from; it sees what has come of those before. `None`: the client has closed
/// its end.
pub trait Script {
    fn next(&mut self, transcript: &[String]) -> Option<Event>;
}

impl<I: Iterator<Item = Event>> Script for I {
    fn next(&mut self, _transcript: &[String]) -> Option<Event> {
        Iterator::next(self)
    }
}

/// What the server does, in order: `S: reply`, `E: envelope`, `B: message` or `F: why there is
/// none`, and `X:` where it closes the connection.
pub type Transcript = Vec<String>;

/// Runs a connection to its end; gives the transcript of each step.
pub fn run(
    settings: ConnectionSettings,
    directory: Directory,
    script: impl Script,
) -> Vec<Transcript> {
    let mut world = World {
        script,
        directory,
        now: Instant::now(),
        silence: Duration::ZERO,
        unread: Vec::new(),
        is_over: false,
        is_stopping: false,
        transcript: Transcript::new(),
        steps: Vec::new(),
    };
    let ended = ClientConnection::new(&mut world, settings).run();
    if !world.is_over {
        world.transcript.push(match ended {
            Ok(()) => "X:".to_owned(),
            Err(error) => format!("X: {error}"),
        });
    }
    world.by_steps()
}

/// [`run`], without steps.
pub fn transcript(
    settings: ConnectionSettings,
    directory: Directory,
    script: impl Script,
) -> Transcript {
    run(settings, directory, script).concat()
}

struct World<S> {
    script: S,
    directory: Directory,
    now: Instant,
    /// What is left of the client's silence.
    silence: Duration,
    /// What the client has said and the server has not read yet.
    unread: Vec<u8>,
    /// The client has closed its end.
    is_over: bool,
    is_stopping: bool,
    transcript: Transcript,
    /// How long the transcript was when each step began, but for the first.
    steps: Vec<usize>,
}

impl<S: Script> World<S> {
    /// Lets things happen until there is something to read, or the end of it; with `heeds_stop`
    /// until the server begins to stop: then false.
    fn pass(&mut self, until: Instant, heeds_stop: bool) -> io::Result<bool> {
        loop {
            if !self.unread.is_empty() || self.is_over {
                return Ok(true);
            }
            if heeds_stop && self.is_stopping {
                return Ok(false);
            }
            let time = self.silence.min(until.saturating_duration_since(self.now));
            self.now += time;
            self.silence -= time;
            if !self.silence.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match self.script.next(&self.transcript) {
                Some(Event::Says(bytes)) => self.unread = bytes,
                Some(Event::Waits(time)) => self.silence = time,
                Some(Event::Stop) => self.is_stopping = true,
                Some(Event::Step) => self.steps.push(self.transcript.len()),
                None => self.is_over = true,
            }
        }
    }

    /// Writes the reply lines in `bytes` down.
    fn hear(&mut self, bytes: &[u8]) {
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            assert!(
                line.len() <= 512 && line.ends_with(b"\r\n"),
                "{:?}",
                line.escape_ascii().to_string()
            );
            let text = &line[..line.len() - 2];
            let shown = String::from_utf8_lossy(text);
            assert!(
                text.iter().all(|byte| (b' '..=b'~').contains(byte)),
                "{:?}",
                text.escape_ascii().to_string()
            );
            assert!(
                text.len() > 4
                    && text[..3].iter().all(u8::is_ascii_digit)
                    && b" -".contains(&text[3]),
                "{shown}"
            );
            // The status of a reply that has one is of the same class.
            if text[4..].starts_with(b"2.")
                || text[4..].starts_with(b"4.")
                || text[4..].starts_with(b"5.")
            {
                assert_eq!(text[0], text[4], "{shown}");
            }
            self.transcript.push(format!("S: {shown}"));
        }
    }

    /// The transcript in its steps, those that the connection did not live to see included.
    fn by_steps(&mut self) -> Vec<Transcript> {
        while let Some(event) = self.script.next(&self.transcript) {
            if event == Event::Step {
                self.steps.push(self.transcript.len());
            }
        }
        let starts = std::iter::once(0).chain(self.steps.iter().copied());
        let ends = self.steps.iter().copied().chain([self.transcript.len()]);
        starts.zip(ends).map(|(start, end)| self.transcript[start..end].to_vec()).collect()
    }
}

/// Writes down what is to be delivered, and delivers it nowhere.
impl<S: Script> Peer for &mut World<S> {
    fn now(&self) -> Instant {
        self.now
    }

    fn read(&mut self, into: &mut [u8], until: Instant) -> io::Result<usize> {
        self.pass(until, false)?;
        let length = self.unread.len().min(into.len());
        into[..length].copy_from_slice(&self.unread[..length]);
        self.unread.drain(..length);
        Ok(length)
    }

    fn write_all(&mut self, bytes: &[u8], _until: Instant) -> io::Result<()> {
        self.hear(bytes);
        Ok(())
    }

    fn wait(&mut self, until: Instant, heeds_stop: bool) -> io::Result<bool> {
        self.pass(until, heeds_stop)
    }

    fn new_settings(&mut self) -> Option<ConnectionSettings> {
        None
    }

    fn is_draining(&self) -> bool {
        self.is_stopping
    }

    fn admit(&mut self, recipient: &str, _transaction: &Transaction) -> Result<(), Outcome> {
        let is_in = |list: &[String]| list.iter().any(|one| one == recipient);
        let failure = match recipient {
            _ if is_in(&self.directory.known) => return Ok(()),
            _ if is_in(&self.directory.later) => {
                Failure::Server("the directory is away".to_owned())
            }
            _ if is_in(&self.directory.broken) => {
                Failure::Setup("the directory is not set up".to_owned())
            }
            nobody => Failure::UnknownRecipient(nobody.to_owned()),
        };
        Err(failure.outcome())
    }

    fn deliver(
        &mut self,
        transaction: Transaction,
        message: Result<Bytes, Failure>,
    ) -> io::Result<()> {
        assert!(!transaction.recipients.is_empty());
        let (line, failure) = match message {
            Ok(bytes) => (format!("B: {}", bytes.escape_ascii()).trim_end().to_owned(), None),
            Err(failure) => (format!("F: {failure}"), Some(failure)),
        };
        self.transcript.extend([format!("E: {}", envelope(&transaction)), line]);
        for recipient in &transaction.recipients {
            self.hear(&reply(&match &failure {
                Some(failure) => failure.outcome(),
                None => outcome(recipient),
            }));
        }
        Ok(())
    }
}

/// Mailboxes of `full...` are full; the others take everything.
fn outcome(recipient: &str) -> Outcome {
    if recipient.starts_with("full") {
        return Outcome::TempFail(Status::MAILBOX_FULL, format!("no room for {recipient}"));
    }
    Outcome::delivered(format!("stored for {recipient}"))
}

/// What is set in `transaction`, one word each; control characters as in Rust.
fn envelope(transaction: &Transaction) -> String {
    let client = &transaction.client;
    let mut words =
        vec![format!("from=<{}> to={}", transaction.sender, transaction.recipients.join(","))];
    let pairs = [
        ("id", &transaction.queue_id),
        ("auth", &transaction.sasl_username),
        ("lhlo", &transaction.lhlo),
        ("name", &client.name),
        ("addr", &client.addr),
        ("helo", &client.helo),
    ];
    words.extend(
        pairs
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| format!("{name}={value}")),
    );
    words.extend(transaction.smtputf8.then(|| "smtputf8".into()));
    let shown =
        |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    words.join(" ").chars().map(shown).collect()
}
