//! One client: lines and bytes from its end of the connection to the protocol, and the replies
//! back. Every wait is bounded: a line, once begun, must end in the idle time, and data must come
//! at a rate that gets it done. Replies go out when the client has nothing more to say for now, and
//! each recipient's as soon as it is decided.
//!
//! Generic over the other end with its clock ([`Peer`]) and over what becomes of what it says
//! ([`Handler`]): the server runs this over sockets (`client`), the tests and the fuzzer over
//! scripts, without a socket and without waiting.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::pace::Pace;
use super::protocol::{self, Admit, Next, Protocol, Transaction};
use super::spool::Spool;
use crate::deliver::Failure;
use crate::lmtp::wire::data::{ChunkReader, DotReader};
use crate::lmtp::wire::{LONGEST_LINE, reply};
use crate::message::Bytes;
use crate::net::input::{self, Input};
use crate::outcome::Outcome;

const SHUTTING_DOWN: &str = "421 4.3.2 Shutting down, try again";
/// How long a client may still begin a message when the server stops.
const LAST_WORD: Duration = Duration::from_millis(250);
/// Read from the peer at once.
const BLOCK: usize = 16 * 1024;
/// Replies that are kept back while the client sends ahead.
const MOST_REPLIES: usize = 64 * 1024;

/// The other end of a connection, and the clock by which it is waited for.
pub trait Peer {
    /// What the time is.
    fn now(&self) -> Instant;

    /// Reads what is there; waits for it until `until`. 0: the peer has said all.
    ///
    /// # Errors
    /// The connection is gone, or nothing came in time.
    fn read(&mut self, into: &mut [u8], until: Instant) -> io::Result<usize>;

    /// Writes all of `bytes`; waits for the peer to read until `until`.
    ///
    /// # Errors
    /// The connection is gone, or the peer did not read in time.
    fn write_all(&mut self, bytes: &[u8], until: Instant) -> io::Result<()>;

    /// Waits until there is something to read, or the end.
    ///
    /// # Errors
    /// Nothing came in time.
    fn wait(&mut self, until: Instant) -> io::Result<()>;

    /// As [`wait`](Peer::wait), and until the server stops; false when that came, and nothing from
    /// the peer.
    ///
    /// # Errors
    /// Nothing came in time.
    fn wait_or_stop(&mut self, until: Instant) -> io::Result<bool>;
}

/// What becomes of what the peer says.
pub trait Handler: Admit {
    /// No message is under way, and the peer has said something: what is remembered for the last
    /// one may go. Settings that are other than the ones told before.
    fn new_settings(&mut self) -> Option<Settings>;

    /// Whether the server stops, and only what is under way is done.
    fn is_draining(&self) -> bool;

    /// Delivers, and calls `say` with the outcome for each of the transaction's recipients in
    /// order, as soon as it is known. In place of the message there may be why there is none.
    ///
    /// # Errors
    /// What `say` returned, or the connection cannot go on.
    fn deliver(
        &mut self,
        transaction: Transaction,
        message: Result<Bytes, Failure>,
        say: &mut dyn FnMut(&Outcome) -> io::Result<()>,
    ) -> io::Result<()>;
}

/// What a connection needs from the configuration.
#[derive(Debug, Clone)]
pub struct Settings {
    pub protocol: protocol::Settings,
    /// How long the peer may say nothing.
    pub idle: Duration,
    /// A larger message, in bytes, waits in a file in `spool_dir`.
    pub spool_bytes: u64,
    pub spool_dir: PathBuf,
    /// The largest message, in bytes; 0: no limit.
    pub message_bytes: u64,
}

/// See the module.
pub struct Connection<'a, P, H> {
    protocol: Protocol,
    settings: Settings,
    handler: &'a mut H,
    peer: P,
    input: Input,
    out: Vec<u8>,
    chunks: Option<(ChunkReader, Spool)>,
    /// Nothing was said since the last message.
    has_just_delivered: bool,
}

/// What a line came to.
enum Line {
    Whole(Vec<u8>),
    TooLong,
    End,
}

impl<'a, P: Peer, H: Handler> Connection<'a, P, H> {
    pub fn new(peer: P, handler: &'a mut H, settings: Settings) -> Connection<'a, P, H> {
        Connection {
            protocol: Protocol::new(settings.protocol.clone()),
            settings,
            handler,
            peer,
            input: Input::default(),
            out: Vec::new(),
            chunks: None,
            has_just_delivered: false,
        }
    }

    /// Serves the client to its end.
    ///
    /// # Errors
    /// The connection is gone, or the peer is too slow.
    pub fn run(mut self) -> io::Result<()> {
        self.out.extend_from_slice(self.protocol.greeting().as_bytes());
        loop {
            if self.protocol.is_idle() {
                self.chunks = None;
            }
            let line = match self.line() {
                Err(error) if is_timeout(&error) => {
                    return self.say_goodbye("421 4.4.2 Idle for too long");
                }
                line => line?,
            };
            // lmtp(8) says RSET to see whether a kept connection is good, and takes another when it
            // is not.
            if self.has_just_delivered && self.handler.is_draining() {
                return self.say_goodbye(SHUTTING_DOWN);
            }
            // A new configuration may have come while the client said nothing.
            if self.protocol.is_idle()
                && let Some(settings) = self.handler.new_settings()
            {
                self.protocol.set(settings.protocol.clone());
                self.settings = settings;
            }
            let next = match line {
                Line::End if self.handler.is_draining() => return self.say_goodbye(SHUTTING_DOWN),
                Line::End => return self.flush(),
                Line::TooLong => self.protocol.line_too_long(&mut self.out),
                Line::Whole(line) => {
                    self.protocol.line(&line, self.peer.now(), self.handler, &mut self.out)
                }
            };
            self.has_just_delivered = false;
            match next {
                Next::Command => {}
                Next::Data => self.data()?,
                Next::Chunk { bytes, first, last } => {
                    if first {
                        self.chunks = None;
                    }
                    self.chunk(bytes, last)?;
                }
                Next::Discard { bytes } => {
                    let mut nowhere = Spool::new(&self.settings.spool_dir, u64::MAX, 0);
                    self.read_exactly(bytes, |_, _| {}, &mut nowhere)?;
                    self.protocol.chunk_read(&mut self.out);
                }
                Next::Close => return self.flush(),
            }
        }
    }

    /// The next line, without its line end. Replies go out before anything is waited for.
    fn line(&mut self) -> io::Result<Line> {
        let mut until = self.idle_from_now();
        loop {
            match self.input.line(LONGEST_LINE) {
                input::Line::Whole(line) => return Ok(Line::Whole(line)),
                input::Line::TooLong => return Ok(Line::TooLong),
                input::Line::Incomplete => {}
            }
            self.flush()?;
            if !self.input.has_begun() && self.protocol.is_idle() {
                if self.is_told_to_go(until)? {
                    return Ok(Line::End);
                }
                // The line begins now.
                until = self.idle_from_now();
            }
            if self.fill(until)? == 0 {
                return Ok(Line::End);
            }
        }
    }

    /// Waits between two messages: until the client says something, or the server stops. A client
    /// that has spoken since its last message may be about to begin another (lmtp(8) says RSET to
    /// see whether a kept connection is good, and then takes no second look): it gets the time to.
    /// One that has not goes at once, or under load it would never go.
    fn is_told_to_go(&mut self, until: Instant) -> io::Result<bool> {
        let peer = &mut self.peer;
        if self.has_just_delivered && self.handler.is_draining() {
            return Ok(peer.wait(peer.now()).is_err());
        }
        let stopped = !peer.wait_or_stop(until)?;
        Ok(stopped && (self.has_just_delivered || peer.wait(peer.now() + LAST_WORD).is_err()))
    }

    fn data(&mut self) -> io::Result<()> {
        self.flush()?;
        let mut spool = self.spool();
        let mut reader = DotReader::new();
        let pace = self.pace();
        let mut read = 0;
        loop {
            let rest = self.input.rest();
            let taken = reader.feed(rest, spool.memory());
            let used = taken.unwrap_or(rest.len());
            self.input.take(used);
            read += used as u64;
            spool.settle();
            if taken.is_some() {
                return self.message(spool);
            }
            if self.fill(pace.until(read, self.peer.now()))? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn chunk(&mut self, bytes: u64, last: bool) -> io::Result<()> {
        let (mut reader, mut spool) = match self.chunks.take() {
            Some(chunks) => chunks,
            None => (ChunkReader::new(), self.spool()),
        };
        self.read_exactly(bytes, |piece, spool| reader.feed(piece, spool.memory()), &mut spool)?;
        if last {
            reader.end(spool.memory());
            spool.settle();
            return self.message(spool);
        }
        self.protocol.chunk_read(&mut self.out);
        self.chunks = Some((reader, spool));
        Ok(())
    }

    fn read_exactly(
        &mut self,
        bytes: u64,
        mut take: impl FnMut(&[u8], &mut Spool),
        spool: &mut Spool,
    ) -> io::Result<()> {
        let pace = self.pace();
        let mut left = bytes;
        while left > 0 {
            if self.input.rest().is_empty() {
                self.flush()?;
                if self.fill(pace.until(bytes - left, self.peer.now()))? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            let rest = self.input.rest();
            let piece = &rest[..rest.len().min(usize::try_from(left).unwrap_or(usize::MAX))];
            let taken = piece.len();
            take(piece, spool);
            self.input.take(taken);
            left -= taken as u64;
            spool.settle();
        }
        Ok(())
    }

    /// Waits for more, and reads it; 0 when the client has said all.
    fn fill(&mut self, until: Instant) -> io::Result<usize> {
        // A client that has said nothing yet costs no block.
        self.peer.wait(until)?;
        let peer = &mut self.peer;
        self.input.fill(BLOCK, |into| peer.read(into, until))
    }

    fn spool(&self) -> Spool {
        Spool::new(&self.settings.spool_dir, self.settings.spool_bytes, self.settings.message_bytes)
    }

    fn pace(&self) -> Pace {
        Pace::new(self.peer.now(), self.settings.idle)
    }

    fn idle_from_now(&self) -> Instant {
        self.peer.now() + self.settings.idle
    }

    /// Delivers, and replies for each recipient in order, as soon as it is decided.
    fn message(&mut self, spool: Spool) -> io::Result<()> {
        let transaction = self.protocol.take();
        self.has_just_delivered = true;
        // Should the server answer in our place, nothing must stand before that.
        self.flush()?;
        let (peer, idle) = (&mut self.peer, self.settings.idle);
        let mut say = |outcome: &Outcome| {
            let until = peer.now() + idle;
            peer.write_all(&reply(outcome), until)
        };
        self.handler.deliver(transaction, spool.finish(), &mut say)
    }

    fn say_goodbye(&mut self, text: &str) -> io::Result<()> {
        self.out.extend_from_slice(format!("{text}\r\n").as_bytes());
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

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}
