//! One connection to the mail server, shared: the `imap` crate owns one handle and sends commands
//! through it; we keep another, read the answers and send message literals ourselves. Beside the
//! socket's deadline it keeps a byte budget, so that no endless line or flood fills our memory.
//! What the crate reads is handed over line by line (nothing that we want to read ends up in its
//! buffers), in 7 bits, and the end of a command as its status alone: the crate's parser gives up
//! on text that it does not know, and on none at all. The lines as they came are kept.
//! An error says that the connection is gone, the deadline has passed or the budget is used up.
//! Dropping or closing a wire sends nothing, also not what was put and not sent.

use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustls::ClientConfig;

use onedrop_net::input::{Input, InputLine};
use onedrop_net::socket::{Socket, Timed};
use onedrop_net::tls::{Transport, closed};

/// Output is collected up to this size before it is sent; the only copy of a message's bytes we
/// make.
const OUTPUT: usize = 64 * 1024;
/// Read at once.
const BLOCK: usize = 16 * 1024;

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
    /// What the crate has read; the budget bounds it.
    tapped: Vec<u8>,
    /// The rest of a line that the crate reads.
    for_crate: Vec<u8>,
}

/// A shared handle to one connection.
#[derive(Clone)]
pub struct Wire(Arc<Mutex<Inner>>);

impl Wire {
    /// Connects to the first address of `host` that answers.
    pub fn connect(host: &str, port: u16, until: Instant) -> Result<Wire, String> {
        let socket = Socket::connect_tcp(host, port, until).map_err(|error| error.to_string())?;
        let socket = Timed::new(socket, until);
        Ok(Wire(Arc::new(Mutex::new(Inner {
            transport: Transport::Clear(socket),
            input: Input::default(),
            output: Vec::new(),
            sent: false,
            budget: 0,
            crate_flushes: true,
            tapped: Vec::new(),
            for_crate: Vec::new(),
        }))))
    }

    /// Goes over to TLS and verifies that the peer is `host`.
    pub fn start_tls(&self, config: Arc<ClientConfig>, host: &str) -> Result<(), String> {
        self.with(|inner| {
            if !inner.input.rest().is_empty() {
                // RFC 3501 section 6.2.1 says to forget it; but no honest server sends it.
                return Err(io::Error::other("the server sent data in clear before TLS began"));
            }
            let transport = std::mem::replace(&mut inner.transport, Transport::Closed);
            inner.transport = transport.start_tls(config, host)?;
            Ok(())
        })
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

    /// From now on a server that is silent for `silence` is given up.
    pub fn bound_silence(&self, silence: Duration) {
        if let Ok(socket) = self.lock().transport.socket() {
            socket.silence = Some(silence);
        }
    }

    /// From now on the crate only writes, and its output is sent by [`send`](Wire::send), together
    /// with what [`put`](Wire::put) adds.
    pub fn collect_output(&self) {
        let mut inner = self.lock();
        inner.crate_flushes = false;
        inner.tapped = Vec::new();
    }

    /// What was put and not sent yet.
    pub fn unsent(&self) -> Vec<u8> {
        self.lock().output.clone()
    }

    /// Adds to the output, and sends it whenever it has grown large.
    pub fn put(&self, bytes: &[u8]) -> Result<(), String> {
        self.with(|inner| inner.put(bytes))
    }

    /// Sends all output.
    pub fn send(&self) -> Result<(), String> {
        self.with(Inner::send)
    }

    /// Whether anything was sent since [`begin`](Wire::begin).
    pub fn has_sent(&self) -> bool {
        self.lock().sent
    }

    /// The next line, without its end.
    pub fn read_line(&self) -> Result<Vec<u8>, String> {
        self.with(|inner| {
            loop {
                // The budget bounds it.
                if let Some(InputLine::Whole(line)) = inner.input.line(usize::MAX) {
                    return Ok(line);
                }
                inner.fill()?;
            }
        })
    }

    /// Exactly `count` bytes. That there are more than the budget allows is known beforehand.
    pub fn read_exactly(&self, count: usize) -> Result<Vec<u8>, String> {
        self.with(|inner| {
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
        })
    }

    /// Whether something of the peer's is there that was not read; does not wait.
    pub fn has_input(&self) -> Result<bool, String> {
        self.with(|inner| {
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
        })
    }

    /// The lines that the crate has read, with their ends.
    pub fn tapped(&self) -> Vec<String> {
        let inner = self.lock();
        let lines = inner.tapped.split_inclusive(|byte| *byte == b'\n');
        let whole = lines.filter(|line| line.ends_with(b"\n"));
        whole.map(|line| String::from_utf8_lossy(line).into_owned()).collect()
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

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> io::Result<T>) -> Result<T, String> {
        work(&mut self.lock()).map_err(|error| error.to_string())
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
}

/// For the crate: at most up to the end of a line.
impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut inner = self.lock();
        if inner.for_crate.is_empty() {
            let line = loop {
                // The budget bounds it.
                if let Some(InputLine::Whole(line)) = inner.input.line(usize::MAX) {
                    break line;
                }
                match inner.fill() {
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                    filled => filled?,
                }
            };
            inner.tapped.extend_from_slice(&line);
            inner.tapped.extend_from_slice(b"\r\n");
            inner.for_crate = as_the_crate_reads_it(line);
        }
        let count = inner.for_crate.len().min(into.len());
        into[..count].copy_from_slice(&inner.for_crate[..count]);
        inner.for_crate.drain(..count);
        Ok(count)
    }
}

/// Of a tagged line the tag and the status.
fn as_the_crate_reads_it(mut line: Vec<u8>) -> Vec<u8> {
    if !line.starts_with(b"* ") && !line.starts_with(b"+") {
        let mut blanks = memchr::memchr_iter(b' ', &line);
        let end = blanks.nth(1).unwrap_or(line.len());
        line.truncate(end);
        line.extend_from_slice(b" -");
    }
    for byte in line.iter_mut().filter(|byte| !byte.is_ascii()) {
        *byte = b'?';
    }
    line.extend_from_slice(b"\r\n");
    line
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
    io::Error::other("the server sends more than it should")
}
