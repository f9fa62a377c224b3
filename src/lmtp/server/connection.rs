//! One client: lines and bytes from its end of the connection to the protocol, and the replies
//! back. Every wait is bounded: a line, once begun, must end in the idle time, and data must come
//! at a rate that gets it done. Replies go out when the client has nothing more to say for now, and
//! each recipient's as soon as it is decided.
//!
//! Generic over the other end ([`Peer`]): the server runs this over sockets (`session`), the tests
//! and the fuzzer over scripts, without a socket and without waiting.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::protocol::{Next, Protocol, SLOWEST, Transaction};
use super::spool::Spool;
use onedrop_core::deliver::Failure;
use onedrop_core::message::Bytes;
use onedrop_core::outcome::Outcome;
use onedrop_net::input::{Input, InputLine};
use onedrop_net::lmtp::data::DataReader;
use onedrop_net::lmtp::{LONGEST_LINE, ServerReply};
use onedrop_site::config::LmtpSettings;

/// How long a client may still begin a message when the server stops.
const LAST_WORD: Duration = Duration::from_millis(250);
/// Read from the peer at once.
const BLOCK: usize = 16 * 1024;
/// Replies that are kept back while the client sends ahead.
const MOST_REPLIES: usize = 64 * 1024;

/// The other end of a connection with the clock by which it is waited for, and the handling of what
/// it says. Reading, writing and waiting fail when the connection is gone, and when nothing came or
/// went in time.
pub trait Peer {
    fn now(&self) -> Instant;

    /// Reads what is there; waits for it until `until`. 0: the peer has said all.
    fn read(&mut self, into: &mut [u8], until: Instant) -> io::Result<usize>;

    fn write_all(&mut self, bytes: &[u8], until: Instant) -> io::Result<()>;

    /// Waits until there is something to read, or the end; with `heeds_stop` also until the server
    /// stops: false when only that came.
    fn wait(&mut self, until: Instant, heeds_stop: bool) -> io::Result<bool>;

    /// No transaction is open, and the peer has said something: what is remembered for the last
    /// message may be forgotten. Returns settings that are other than the ones before.
    fn new_settings(&mut self) -> Option<ConnectionSettings>;

    /// Whether the server stops, and only what was begun is done.
    fn is_draining(&self) -> bool;

    /// See [`Admit`](super::protocol::Admit).
    fn admit(&mut self, recipient: &str, transaction: &Transaction) -> Result<(), Outcome>;

    /// Delivers, and writes the reply for each of the transaction's recipients in order, as soon as
    /// it is known. In place of the message there may be why there is none.
    fn deliver(
        &mut self,
        transaction: Transaction,
        message: Result<Bytes, Failure>,
    ) -> io::Result<()>;
}

/// What a connection needs from the configuration.
#[derive(Debug, Clone)]
pub struct ConnectionSettings {
    /// This host's name, as the greeting says it.
    pub host: String,
    pub lmtp: LmtpSettings,
    /// The largest message, in bytes; 0: no limit.
    pub message_bytes: u64,
    /// A recipient that is refused counts as an error of the client's.
    pub counts_refused: bool,
    /// What HELP says, beside its last line.
    pub help: Arc<[String]>,
}

/// One client's connection: the protocol, and the peer that speaks it.
pub struct ClientConnection<P> {
    protocol: Protocol,
    settings: ConnectionSettings,
    peer: P,
    input: Input,
    out: Vec<u8>,
    chunks: Option<(DataReader, Spool)>,
    /// Nothing was said since the last message.
    has_just_delivered: bool,
}

impl<P: Peer> ClientConnection<P> {
    pub fn new(peer: P, settings: ConnectionSettings) -> ClientConnection<P> {
        let mut connection = ClientConnection {
            protocol: Protocol::default(),
            settings,
            peer,
            input: Input::default(),
            out: Vec::new(),
            chunks: None,
            has_just_delivered: false,
        };
        connection.set_protocol();
        connection
    }

    fn set_protocol(&mut self) {
        let ConnectionSettings { host, lmtp, counts_refused, help, .. } = &self.settings;
        self.protocol.set(host, lmtp.recipients, *counts_refused, help);
    }

    /// Serves the client to its end, or until it is gone or too slow.
    pub fn run(mut self) -> io::Result<()> {
        self.out.extend_from_slice(self.protocol.greeting().as_bytes());
        loop {
            if self.protocol.is_idle() {
                self.chunks = None;
            }
            let line = match self.line() {
                Err(error)
                    if [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock]
                        .contains(&error.kind()) =>
                {
                    return self.say_goodbye(ServerReply::Idle);
                }
                line => line?,
            };
            // lmtp(8) says RSET to see whether a kept connection is good, and takes another when it
            // is not.
            if self.has_just_delivered && self.peer.is_draining() {
                return self.say_goodbye(ServerReply::ShuttingDown);
            }
            // A new configuration may have come while the client said nothing.
            if self.protocol.is_idle()
                && let Some(settings) = self.peer.new_settings()
            {
                self.settings = settings;
                self.set_protocol();
            }
            let (now, peer) = (self.peer.now(), &mut self.peer);
            let mut admit = |recipient: &str, so_far: &Transaction| peer.admit(recipient, so_far);
            let next = match line {
                Some(InputLine::Whole(line)) => {
                    self.protocol.line(&line, now, &mut admit, &mut self.out)
                }
                Some(InputLine::TooLong) => self.protocol.line_too_long(&mut self.out),
                None if peer.is_draining() => return self.say_goodbye(ServerReply::ShuttingDown),
                None => Next::Close,
            };
            self.has_just_delivered = false;
            match next {
                Next::Command => {}
                Next::Data => {
                    let (mut reader, mut spool) = (DataReader::with_dots(), self.spool());
                    self.receive(Some((&mut reader, &mut spool)), None)?;
                    self.message(spool)?;
                }
                Next::Chunk { bytes, last } => {
                    let chunks = self.chunks.take();
                    let (mut reader, mut spool) =
                        chunks.unwrap_or_else(|| (DataReader::of_chunks(), self.spool()));
                    self.receive(Some((&mut reader, &mut spool)), Some(bytes))?;
                    if last {
                        reader.end(spool.memory());
                        spool.settle();
                        self.message(spool)?;
                    } else {
                        self.protocol.chunk_read(&mut self.out);
                        self.chunks = Some((reader, spool));
                    }
                }
                Next::Discard { bytes } => {
                    self.receive(None, Some(bytes))?;
                    self.protocol.chunk_read(&mut self.out);
                }
                Next::Close => return self.flush(),
            }
        }
    }

    /// The next line; `None` at the end. Replies go out before anything is waited for.
    fn line(&mut self) -> io::Result<Option<InputLine>> {
        let mut until = self.idle_from_now();
        loop {
            if let Some(line) = self.input.line(LONGEST_LINE) {
                return Ok(Some(line));
            }
            self.flush()?;
            if !self.input.has_begun() && self.protocol.is_idle() {
                if self.is_told_to_go(until)? {
                    return Ok(None);
                }
                // The line begins now.
                until = self.idle_from_now();
            }
            if self.fill(until)? == 0 {
                return Ok(None);
            }
        }
    }

    /// Waits between two messages: until the client says something, or the server stops. A client
    /// that has spoken since its last message may be about to begin another (lmtp(8) says RSET to
    /// see whether a kept connection is good, and then takes no second look): it gets the time to.
    /// One that has not goes at once, or under load it would never go.
    fn is_told_to_go(&mut self, until: Instant) -> io::Result<bool> {
        let peer = &mut self.peer;
        if self.has_just_delivered && peer.is_draining() {
            return Ok(peer.wait(peer.now(), false).is_err());
        }
        let stopped = !peer.wait(until, true)?;
        let last = peer.now() + LAST_WORD;
        Ok(stopped && (self.has_just_delivered || peer.wait(last, false).is_err()))
    }

    /// Reads a message's data to its end, or the `bytes` of a chunk, into `target`; without one
    /// they are thrown away. They must come soon, and at the slowest rate on the whole.
    fn receive(
        &mut self,
        mut target: Option<(&mut DataReader, &mut Spool)>,
        bytes: Option<u64>,
    ) -> io::Result<()> {
        let until_first = self.idle_from_now();
        let mut read = 0;
        loop {
            let rest = self.input.rest();
            let left = bytes.map_or(u64::MAX, |bytes| bytes - read);
            let piece = &rest[..rest.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
            let end = match &mut target {
                Some((reader, spool)) => {
                    let end = reader.feed(piece, spool.memory());
                    spool.settle();
                    end
                }
                None => None,
            };
            let used = end.unwrap_or(piece.len());
            self.input.take(used);
            read += used as u64;
            if end.is_some() || bytes == Some(read) {
                return Ok(());
            }
            self.flush()?;
            let whole = until_first + Duration::from_secs(read / SLOWEST);
            if self.fill(whole.min(self.idle_from_now()))? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Waits for more, and reads it; 0 when the client has said all.
    fn fill(&mut self, until: Instant) -> io::Result<usize> {
        // A client that has said nothing yet costs no block.
        if self.input.is_unused() {
            self.peer.wait(until, false)?;
        }
        let peer = &mut self.peer;
        self.input.fill(BLOCK, |into| peer.read(into, until))
    }

    fn spool(&self) -> Spool {
        let ConnectionSettings { lmtp, message_bytes, .. } = &self.settings;
        Spool::new(&lmtp.spool_dir, lmtp.spool_bytes, *message_bytes)
    }

    fn idle_from_now(&self) -> Instant {
        self.peer.now() + Duration::from_secs(self.settings.lmtp.idle_secs)
    }

    fn message(&mut self, spool: Spool) -> io::Result<()> {
        let transaction = self.protocol.take();
        self.has_just_delivered = true;
        // Should the server answer in our place, nothing must stand before that.
        self.flush()?;
        self.peer.deliver(transaction, spool.finish())
    }

    fn say_goodbye(&mut self, reply: ServerReply) -> io::Result<()> {
        self.out.extend_from_slice(format!("{}\r\n", reply.line()).as_bytes());
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.out.is_empty() {
            return Ok(());
        }
        let until = self.idle_from_now();
        let written = self.peer.write_all(&self.out, until);
        self.out.clear();
        // What a client that sends ahead without end made of it is not kept.
        self.out.shrink_to(MOST_REPLIES);
        written
    }
}
