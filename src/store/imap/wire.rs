//! One connection to the mail server, shared: the `imap` crate owns one handle and sends commands
//! through it; we keep another, read the answers and send message literals ourselves. Beside the
//! socket's deadline it keeps a byte budget, so that no endless line or flood fills our memory.
//! What the crate reads is handed over line by line (nothing that we want to read ends up in its
//! buffers) and in 7 bits (its parser gives up on anything else); the last lines it saw are kept.
//! Dropping or closing a wire sends nothing, also not what was put and not sent.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustls::ClientConfig;

use crate::net::input::{Input, InputLine};
use crate::net::socket::{Socket, Timed};
use crate::net::tls::{Transport, closed};

/// Output is collected up to this size before it is sent; the only copy of a message's bytes we
/// make.
const OUTPUT: usize = 64 * 1024;
/// Read at once.
const BLOCK: usize = 16 * 1024;
/// Lines of the crate's input that are kept, and how much of each.
const TAPPED_LINES: usize = 8;
const TAPPED_BYTES: usize = 8 * 1024;

struct Inner {
    transport: Transport,
    input: Input,
    output: Vec<u8>,
    /// Something was sent since the bounds were set.
    sent: bool,
    /// How many bytes may still come in.
    budget: usize,
    /// Whether the crate's flush sends, or leaves the output for [`Wire::send`].
    crate_flushes: bool,
    tap: VecDeque<Vec<u8>>,
    tapping: Vec<u8>,
}

/// A shared handle to one connection.
#[derive(Clone)]
pub struct Wire(Arc<Mutex<Inner>>);

impl Wire {
    /// Connects to the first address of `host` that answers.
    ///
    /// # Errors
    /// No address, none that answers, or no time left.
    pub fn connect(host: &str, port: u16, until: Instant) -> io::Result<Wire> {
        let socket = Timed::new(Socket::connect_tcp(host, port, until)?, until);
        Ok(Wire(Arc::new(Mutex::new(Inner {
            transport: Transport::Clear(socket),
            input: Input::default(),
            output: Vec::new(),
            sent: false,
            budget: 0,
            crate_flushes: true,
            tap: VecDeque::new(),
            tapping: Vec::new(),
        }))))
    }

    /// Goes over to TLS and verifies that the peer is `host`.
    ///
    /// # Errors
    /// Handshake or verification failed, or the peer sent something in clear before TLS began.
    pub fn start_tls(&self, config: Arc<ClientConfig>, host: &str) -> io::Result<()> {
        let mut inner = self.lock();
        if !inner.input.rest().is_empty() {
            // RFC 3501 section 6.2.1 says to forget it; but no honest server sends it.
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the server sent data in clear before TLS began",
            ));
        }
        let transport = std::mem::replace(&mut inner.transport, Transport::Closed);
        inner.transport = transport.start_tls(config, host)?;
        Ok(())
    }

    /// Bounds what comes now: it must end before `until` and bring at most `budget` bytes.
    pub fn begin(&self, until: Instant, budget: usize) {
        let mut inner = self.lock();
        inner.budget = budget;
        inner.sent = false;
        drop(inner);
        self.wait_until(until);
    }

    /// Moves the deadline.
    pub fn wait_until(&self, until: Instant) {
        if let Ok(socket) = self.lock().transport.socket() {
            socket.until = until;
        }
    }

    /// From now on the crate's output is sent by [`send`](Wire::send) only, together with what
    /// [`put`](Wire::put) adds.
    pub fn collect_output(&self) {
        self.lock().crate_flushes = false;
    }

    /// What was put and not sent yet.
    pub fn unsent(&self) -> Vec<u8> {
        self.lock().output.clone()
    }

    /// Adds to the output, and sends it whenever it has grown large.
    ///
    /// # Errors
    /// The connection is gone or the deadline has passed.
    pub fn put(&self, bytes: &[u8]) -> io::Result<()> {
        self.lock().put(bytes)
    }

    /// Sends all output.
    ///
    /// # Errors
    /// The connection is gone or the deadline has passed.
    pub fn send(&self) -> io::Result<()> {
        self.lock().send()
    }

    /// Whether anything was sent since [`begin`](Wire::begin).
    pub fn has_sent(&self) -> bool {
        self.lock().sent
    }

    /// The next line, without its end.
    ///
    /// # Errors
    /// The connection is gone, the deadline has passed or the budget is used up.
    pub fn read_line(&self) -> io::Result<Vec<u8>> {
        let mut inner = self.lock();
        loop {
            // The budget bounds it.
            if let Some(InputLine::Whole(line)) = inner.input.line(usize::MAX) {
                return Ok(line);
            }
            inner.fill()?;
        }
    }

    /// Exactly `count` bytes.
    ///
    /// # Errors
    /// As for [`read_line`](Wire::read_line); known beforehand when `count` is over the budget.
    pub fn read_exactly(&self, count: usize) -> io::Result<Vec<u8>> {
        let mut inner = self.lock();
        if count > inner.budget.saturating_add(inner.input.rest().len()) {
            return Err(too_much());
        }
        let mut bytes = Vec::with_capacity(count);
        loop {
            let rest = inner.input.rest();
            let piece = &rest[..rest.len().min(count - bytes.len())];
            bytes.extend_from_slice(piece);
            let taken = piece.len();
            inner.input.take(taken);
            if bytes.len() == count {
                return Ok(bytes);
            }
            inner.fill()?;
        }
    }

    /// Whether something of the peer's is there that was not read; does not wait.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn has_input(&self) -> io::Result<bool> {
        let mut inner = self.lock();
        if inner.input.rest().is_empty() {
            inner.transport.socket()?.waits = false;
            let filled = inner.fill();
            inner.transport.socket()?.waits = true;
            match filled {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                filled => filled?,
            }
        }
        Ok(!inner.input.rest().is_empty())
    }

    /// The last lines that the crate has read, oldest first.
    pub fn tapped(&self) -> Vec<Vec<u8>> {
        self.lock().tap.iter().cloned().collect()
    }

    /// Ends the connection. Output that was not sent is dropped, and no more can be sent.
    pub fn close(&self) {
        let mut inner = self.lock();
        if let Ok(timed) = inner.transport.socket() {
            timed.socket.shut();
        }
        inner.transport = Transport::Closed;
        inner.output = Vec::new();
        inner.input = Input::default();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn put(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while self.output.len() + bytes.len() > OUTPUT {
            let (now, later) = bytes.split_at(OUTPUT - self.output.len());
            self.output.extend_from_slice(now);
            self.send()?;
            bytes = later;
        }
        self.output.extend_from_slice(bytes);
        Ok(())
    }

    fn send(&mut self) -> io::Result<()> {
        self.sent = true;
        let sent = self.transport.write_all(&self.output).and_then(|()| self.transport.flush());
        self.output.clear();
        sent
    }

    /// Reads once, into `input`.
    fn fill(&mut self) -> io::Result<()> {
        if self.budget == 0 {
            return Err(too_much());
        }
        let transport = &mut self.transport;
        match self.input.fill(BLOCK.min(self.budget), |into| transport.read(into)) {
            Ok(0) => Err(closed()),
            Ok(read) => {
                self.budget -= read;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(closed()),
            Err(error) => Err(error),
        }
    }

    fn tap(&mut self, bytes: &[u8]) {
        let room = TAPPED_BYTES.saturating_sub(self.tapping.len());
        self.tapping.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if bytes.ends_with(b"\n") {
            if self.tap.len() == TAPPED_LINES {
                self.tap.pop_front();
            }
            self.tap.push_back(std::mem::take(&mut self.tapping));
        }
    }
}

/// For the crate: at most up to the end of a line, in 7 bits.
impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut inner = self.lock();
        if inner.input.rest().is_empty() {
            match inner.fill() {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                filled => filled?,
            }
        }
        let ready = inner.input.rest();
        let line = memchr::memchr(b'\n', ready).map_or(ready.len(), |at| at + 1);
        let count = line.min(into.len());
        into[..count].copy_from_slice(&ready[..count]);
        inner.input.take(count);
        inner.tap(&into[..count]);
        for byte in into[..count].iter_mut().filter(|byte| !byte.is_ascii()) {
            *byte = b'?';
        }
        Ok(count)
    }
}

/// For the crate: its commands, sent at its flush or with what we add to them.
impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lock().put(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut inner = self.lock();
        if inner.crate_flushes { inner.send() } else { Ok(()) }
    }
}

fn too_much() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the server sends more than it should")
}
