//! A proxy on loopback between a delivery and a real server, which fails at one chosen point of the
//! conversation.
//!
//! It knows just enough of the protocols: where an IMAP APPEND's literal begins and ends, which
//! command of LMTP an answer answers, where a Postgres answer ends (ReadyForQuery), and where a
//! request to MariaDB begins. Whatever the fault,
//! what the server has got by then it really executes. Connections that a fault has frozen stay
//! open until [`Proxy::heal`] or `Drop`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::stream::Stream;
use super::wait_until;

mod lmtp;

/// The real server.
#[derive(Clone, Debug)]
pub enum Upstream {
    Imap(u16),
    Lmtp(u16),
    /// A Unix socket where no password is asked for.
    Postgres(PathBuf),
    /// A Unix socket.
    Mariadb(PathBuf),
}

/// Where the fault is. Before it the proxy passes everything on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// In place of the first thing the server says.
    Greeting,
    /// In place of the answer to AUTHENTICATE.
    Login,
    /// APPEND does not reach the server.
    Append,
    /// Half of the literal has reached the server; of LMTP's data, the first line.
    MidLiteral,
    /// The whole literal has reached the server, the CRLF after it does not; all of LMTP's data but
    /// the dot.
    LastBytes,
    /// The server has got the whole APPEND, or the dot; in place of its answer.
    Answer,
    /// This command of LMTP does not reach the server.
    Before(&'static str),
    /// In place of the answer to this command of LMTP, which was executed.
    After(&'static str),
    /// In place of Postgres' or MariaDB's n-th answer, which is the one to a request that was
    /// executed. MariaDB's logins do not count.
    Reply(usize),
    /// After the n-th answer: the next request does not reach the server.
    Request(usize),
}

/// What happens there.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The proxy passes nothing on in either direction; the connections stay open.
    Freeze,
    /// Both connections are closed.
    Cut,
    /// The proxy passes the server's words on at one byte a second.
    Drip,
    /// The client hears this, and then nothing more.
    Say(&'static [u8]),
    /// The client hears this, and the connection is closed.
    SayAndCut(&'static [u8]),
    /// The client hears this, and then `x` without an end.
    Flood(&'static [u8]),
    /// The client hears this version of what the server said; the conversation continues.
    Edit(fn(&[u8]) -> Vec<u8>),
    /// All waits until [`Proxy::release`], and then continues.
    Hold,
}

#[derive(Default)]
struct State {
    plan: Mutex<Option<(Stage, Fault)>>,
    reached: AtomicUsize,
    answers: AtomicUsize,
    released: (Mutex<bool>, Condvar),
    open: Mutex<Vec<Stream>>,
    ended: AtomicBool,
}

pub struct Proxy {
    port: u16,
    state: Arc<State>,
}

impl Proxy {
    /// Listens at once; faults come with [`Proxy::plan`].
    pub fn start(upstream: Upstream) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("port");
        let port = listener.local_addr().expect("address").port();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if shared.ended.load(Ordering::SeqCst) {
                    return;
                }
                let server = match &upstream {
                    Upstream::Imap(port) | Upstream::Lmtp(port) => {
                        TcpStream::connect(("127.0.0.1", *port)).map(Stream::Tcp)
                    }
                    Upstream::Postgres(socket) | Upstream::Mariadb(socket) => {
                        UnixStream::connect(socket).map(Stream::Unix)
                    }
                };
                // A server that is away: the client sees its connection closed.
                let Ok(server) = server else { continue };
                Conversation::begin(&shared, Stream::Tcp(client), server, &upstream);
            }
        });
        Proxy { port, state }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Every connection from now on fails so.
    pub fn plan(&self, stage: Stage, fault: Fault) {
        *lock(&self.state.plan) = Some((stage, fault));
    }

    /// Forgets the plan and closes what is still open.
    pub fn heal(&self) {
        *lock(&self.state.plan) = None;
        // Before those go on that are held: what they have is not passed on any more.
        for stream in lock(&self.state.open).drain(..) {
            stream.shut();
        }
        self.release();
    }

    /// How many connections have come to the fault.
    pub fn reached(&self) -> usize {
        self.state.reached.load(Ordering::SeqCst)
    }

    /// Waits until a connection has come to the fault.
    #[track_caller]
    pub fn wait_reached(&self) {
        assert!(
            wait_until(Duration::from_secs(20), || self.reached() > 0),
            "nobody came to the fault"
        );
    }

    /// Lets those go on that a [`Fault::Hold`] holds.
    pub fn release(&self) {
        *lock(&self.state.released.0) = true;
        self.state.released.1.notify_all();
    }

    /// How many answers of Postgres, or requests to MariaDB, went through in all.
    pub fn answers(&self) -> usize {
        self.state.answers.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::SeqCst);
        self.heal();
        // Wakes the listener up, so that it ends.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One connection: a thread for each direction.
struct Conversation {
    state: Arc<State>,
    plan: Option<(Stage, Fault)>,
    /// The fault has begun; the server's words meet it.
    begun: AtomicBool,
    dialog: Mutex<lmtp::Dialog>,
    client: Stream,
    server: Stream,
}

/// Whether a direction continues.
type Flow = std::io::Result<bool>;

impl Conversation {
    fn begin(state: &Arc<State>, client: Stream, server: Stream, upstream: &Upstream) {
        if let Stream::Tcp(tcp) = &client {
            tcp.set_nodelay(true).expect("socket");
        }
        if let Stream::Tcp(tcp) = &server {
            tcp.set_nodelay(true).expect("socket");
        }
        let plan = *lock(&state.plan);
        lock(&state.open).extend([client.another(), server.another()]);
        let begun = AtomicBool::new(match plan {
            Some((Stage::Greeting, _)) => true,
            Some((Stage::Request(0), _)) => !matches!(upstream, Upstream::Mariadb(_)),
            _ => false,
        });
        let (state, dialog) = (Arc::clone(state), Mutex::default());
        let this = Arc::new(Conversation { state, plan, begun, dialog, client, server });
        type Direction = fn(&Conversation) -> Flow;
        let (to_server, to_client): (Direction, Direction) = match upstream {
            Upstream::Imap(_) => (Self::imap_client, Self::imap_server),
            Upstream::Lmtp(_) => (Self::lmtp_client, Self::lmtp_server),
            Upstream::Postgres(_) => (Self::postgres_client, Self::postgres_server),
            Upstream::Mariadb(_) => (Self::mariadb_client, Self::mariadb_server),
        };
        let (up, down) = (Arc::clone(&this), this);
        thread::spawn(move || up.end(&to_server(&up)));
        thread::spawn(move || down.end(&to_client(&down)));
    }

    /// A direction that ended by itself takes the other one with it; a frozen one (`Ok(false)`)
    /// leaves all open.
    fn end(&self, flow: &Flow) {
        if !matches!(flow, Ok(false)) {
            self.client.shut();
            self.server.shut();
        }
    }

    fn at(&self, stage: Stage) -> bool {
        self.plan.is_some_and(|(at, _)| at == stage)
    }

    fn has_begun(&self) -> bool {
        self.begun.load(Ordering::SeqCst)
    }

    /// From here on what the server says meets the fault.
    fn arm(&self) {
        self.begun.store(true, Ordering::SeqCst);
    }

    /// The fault, where the server has said `said`; returns whether this direction continues.
    fn fail(&self, said: &[u8]) -> Flow {
        self.state.reached.fetch_add(1, Ordering::SeqCst);
        let Some((_, fault)) = self.plan else { return Ok(true) };
        let mut client = self.client.another();
        match fault {
            Fault::Freeze => Ok(false),
            Fault::Cut => {
                self.client.shut();
                self.server.shut();
                Ok(false)
            }
            Fault::Drip => {
                for byte in said {
                    client.write_all(&[*byte])?;
                    thread::sleep(Duration::from_secs(1));
                }
                Ok(true)
            }
            Fault::Say(text) => client.write_all(text).map(|()| false),
            Fault::SayAndCut(text) => {
                client.write_all(text)?;
                self.client.shut();
                self.server.shut();
                Ok(false)
            }
            Fault::Flood(text) => {
                client.write_all(text)?;
                loop {
                    client.write_all(&[b'x'; 65536])?;
                }
            }
            Fault::Edit(edit) => {
                self.begun.store(false, Ordering::SeqCst);
                client.write_all(&edit(said)).map(|()| true)
            }
            Fault::Hold => {
                let (released, changed) = &self.state.released;
                let mut held = lock(released);
                while !*held {
                    held = changed.wait(held).unwrap_or_else(PoisonError::into_inner);
                }
                drop(held);
                client.write_all(said).map(|()| true)
            }
        }
    }

    /// The fault, in the client's direction.
    fn fail_here(&self, stage: Stage) -> Flow {
        if !self.at(stage) {
            return Ok(true);
        }
        if !matches!(self.plan, Some((_, Fault::Hold))) {
            self.arm();
        }
        self.fail(b"")
    }

    fn imap_client(&self) -> Flow {
        let mut input = BufReader::new(self.client.another());
        let mut server = self.server.another();
        loop {
            let mut line = Vec::new();
            if input.read_until(b'\n', &mut line)? == 0 {
                return Ok(true);
            }
            let text = String::from_utf8_lossy(&line).into_owned();
            if text.contains(" AUTHENTICATE ") && self.at(Stage::Login) {
                self.arm();
            }
            if !text.contains(" APPEND ") {
                server.write_all(&line)?;
                continue;
            }
            if !self.fail_here(Stage::Append)? {
                return Ok(false);
            }
            let size =
                text.trim_end().rsplit('{').next().unwrap_or("").trim_end_matches(['}', '+']);
            let size: u64 = size.parse().expect("the size of a literal");
            server.write_all(&line)?;
            std::io::copy(&mut input.by_ref().take(size / 2), &mut server)?;
            if !self.fail_here(Stage::MidLiteral)? {
                return Ok(false);
            }
            std::io::copy(&mut input.by_ref().take(size - size / 2), &mut server)?;
            if self.at(Stage::LastBytes) {
                // Only the client's last bytes bring it past its point of no return.
                input.fill_buf()?;
            }
            if !self.fail_here(Stage::LastBytes)? {
                return Ok(false);
            }
            let mut last = Vec::new();
            input.read_until(b'\n', &mut last)?;
            if self.at(Stage::Answer) {
                self.arm();
            }
            server.write_all(&last)?;
        }
    }

    fn imap_server(&self) -> Flow {
        let (mut server, mut client) = (self.server.another(), self.client.another());
        let mut buffer = vec![0; 65536];
        loop {
            let count = server.read(&mut buffer)?;
            if count == 0 {
                return Ok(true);
            }
            if !self.has_begun() {
                client.write_all(&buffer[..count])?;
            } else if self.plan.is_some_and(|(stage, _)| is_clients(stage))
                || !self.fail(&buffer[..count])?
            {
                return Ok(false);
            }
        }
    }

    fn postgres_client(&self) -> Flow {
        let (mut client, mut server) = (self.client.another(), self.server.another());
        let mut buffer = vec![0; 65536];
        loop {
            let count = client.read(&mut buffer)?;
            if count == 0 {
                return Ok(true);
            }
            // Terminate is a goodbye.
            let stops = self.plan.is_some_and(|(stage, _)| matches!(stage, Stage::Request(_)))
                && buffer[0] != b'X';
            if stops && self.has_begun() && !self.fail(b"")? {
                return Ok(false);
            }
            server.write_all(&buffer[..count])?;
        }
    }

    /// Forwards whole packets (length in three bytes, number, content). A request is one with the
    /// number 0; those of a login go on counting what the server began.
    fn mariadb_client(&self) -> Flow {
        let (mut client, mut server) = (self.client.another(), self.server.another());
        let mut requests = 0;
        loop {
            let mut head = [0; 4];
            client.read_exact(&mut head)?;
            let length = u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize;
            let mut content = vec![0; length];
            client.read_exact(&mut content)?;
            // COM_QUIT is a goodbye.
            if head[3] == 0 && content.first() != Some(&1) {
                if self.at(Stage::Request(requests)) && !self.fail(b"")? {
                    return Ok(false);
                }
                requests += 1;
                self.state.answers.fetch_add(1, Ordering::SeqCst);
                if self.at(Stage::Reply(requests)) {
                    self.arm();
                }
            }
            server.write_all(&head)?;
            server.write_all(&content)?;
        }
    }

    /// Where a whole answer ends is not looked for: a server that says nothing more for a moment
    /// has done what it was asked.
    fn mariadb_server(&self) -> Flow {
        const MOMENT: Duration = Duration::from_millis(300);
        let (mut server, mut client) = (self.server.another(), self.client.another());
        let mut buffer = vec![0; 65536];
        loop {
            let count = server.read(&mut buffer)?;
            if count == 0 {
                return Ok(true);
            }
            if !self.has_begun() {
                client.write_all(&buffer[..count])?;
                continue;
            }
            let mut said = buffer[..count].to_vec();
            server.limit(MOMENT)?;
            while let Ok(count @ 1..) = server.read(&mut buffer) {
                said.extend_from_slice(&buffer[..count]);
            }
            server.limit(Duration::from_secs(60))?;
            if !self.fail(&said)? {
                return Ok(false);
            }
        }
    }

    /// Forwards whole answers, each with its ReadyForQuery.
    fn postgres_server(&self) -> Flow {
        let (mut server, mut client) = (self.server.another(), self.client.another());
        let (mut input, mut answered) = (Vec::new(), 0);
        let mut buffer = vec![0; 65536];
        loop {
            let count = server.read(&mut buffer)?;
            if count == 0 {
                // What a server says before it ends, without a ReadyForQuery.
                client.write_all(&input)?;
                return Ok(true);
            }
            input.extend_from_slice(&buffer[..count]);
            while let Some(end) = answer_end(&input) {
                let answer: Vec<u8> = input.drain(..end).collect();
                answered += 1;
                if self.at(Stage::Reply(answered)) || (self.at(Stage::Greeting) && answered == 1) {
                    if !self.fail(&answer)? {
                        return Ok(false);
                    }
                    continue;
                }
                if self.at(Stage::Request(answered)) {
                    self.arm();
                }
                self.state.answers.fetch_add(1, Ordering::SeqCst);
                client.write_all(&answer)?;
            }
        }
    }
}

/// Stages whose fault happens in the client's direction.
fn is_clients(stage: Stage) -> bool {
    matches!(stage, Stage::Append | Stage::MidLiteral | Stage::LastBytes | Stage::Request(_))
}

/// Where the first ReadyForQuery in whole messages (type, length, content) ends.
fn answer_end(input: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let length: [u8; 4] = input.get(at + 1..at + 5)?.try_into().expect("four bytes");
        let kind = *input.get(at)?;
        at += 1 + u32::from_be_bytes(length) as usize;
        if at > input.len() {
            return None;
        }
        if kind == b'Z' {
            return Some(at);
        }
    }
}
