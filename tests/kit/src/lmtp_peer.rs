//! A mail server's LMTP as a stand-in on a Unix socket, which says what a test wants at one point
//! of the dialog. It keeps what the client said, and may pass messages on to a real server first.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::lmtp_client::LmtpClient;

/// What Dovecot offers to whom it does not trust.
pub const PLAIN: &str = "250-peer\r\n250-8BITMIME\r\n250-ENHANCEDSTATUSCODES\r\n250 PIPELINING\r\n";

/// What the peer does in place of its answer to a command, or to the end of the data (`.`).
#[derive(Clone, Debug)]
pub enum Act {
    Say(String),
    /// And then closes the connection.
    SayAndCut(String),
    /// Closes it.
    Cut,
    /// Says nothing more, and keeps the connection open until the client closes it.
    Hang,
    /// Waits for the other one there, and then answers as usual.
    Meet(Arc<Barrier>),
}

impl Act {
    pub fn say(line: &str) -> Act {
        Act::Say(format!("{line}\r\n"))
    }
}

/// A message that the peer has taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// MAIL and RCPT as they came.
    pub envelope: Vec<String>,
    /// With CRLF as its line ends.
    pub bytes: Vec<u8>,
}

#[derive(Default)]
struct State {
    /// Beginnings of commands, in upper case.
    plan: Vec<(String, Act)>,
    said: Vec<String>,
    taken: Vec<Taken>,
    connections: usize,
    /// Where messages are passed on to before the end of the data is answered.
    upstream: Option<PathBuf>,
}

pub struct LmtpPeer {
    socket: PathBuf,
    state: Arc<Mutex<State>>,
}

impl LmtpPeer {
    /// Listens at `socket`, whose folder is there.
    pub fn start(socket: &Path) -> LmtpPeer {
        let listener = UnixListener::bind(socket).expect("socket");
        super::set_mode(socket, 0o666);
        let state = Arc::<Mutex<State>>::default();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                lock(&state).connections += 1;
                thread::spawn(move || drop(serve(&client, &state)));
            }
        });
        LmtpPeer { socket: socket.to_owned(), state }
    }

    /// Passes messages on to the server at `upstream`, whose answer is the peer's.
    pub fn pass_on_to(&self, upstream: &Path) {
        lock(&self.state).upstream = Some(upstream.to_owned());
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Once, in answer to the next command that begins so (`.`: to the end of the data, after the
    /// message was passed on; `220`: in place of the greeting).
    pub fn plan(&self, command: &str, act: Act) {
        lock(&self.state).plan.push((command.to_owned(), act));
    }

    /// Commands as they came.
    pub fn said(&self) -> Vec<String> {
        lock(&self.state).said.clone()
    }

    pub fn taken(&self) -> Vec<Taken> {
        lock(&self.state).taken.clone()
    }

    pub fn connections(&self) -> usize {
        lock(&self.state).connections
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One connection; an error ends it.
fn serve(client: &UnixStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut input = BufReader::new(client.try_clone()?);
    let answer = |command: &str, usual: &str| -> std::io::Result<bool> {
        let planned = {
            let mut state = lock(state);
            let upper = command.to_ascii_uppercase();
            let at = state.plan.iter().position(|(begins, _)| upper.starts_with(begins.as_str()));
            at.map(|at| state.plan.remove(at).1)
        };
        let (said, ends) = match planned {
            None => (usual.to_owned(), false),
            Some(Act::Meet(other)) => {
                other.wait();
                (usual.to_owned(), false)
            }
            Some(Act::Say(text)) => (text, false),
            Some(Act::SayAndCut(text)) => (text, true),
            Some(Act::Cut) => (String::new(), true),
            Some(Act::Hang) => {
                let mut silent = BufReader::new(client.try_clone()?);
                std::io::copy(&mut silent, &mut std::io::sink())?;
                return Err(std::io::Error::other("hung"));
            }
        };
        (&*client).write_all(said.as_bytes())?;
        match ends {
            true => {
                client.shutdown(std::net::Shutdown::Both)?;
                Err(std::io::Error::other("cut"))
            }
            // Whether that was a yes.
            false => Ok(said.starts_with('2') || said.starts_with("354")),
        }
    };
    answer("220", "220 peer\r\n")?;
    let mut taken = Taken::default();
    loop {
        let mut line = Vec::new();
        if input.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        lock(state).said.push(line.clone());
        let verb = line.split([' ', ':']).next().unwrap_or_default().to_ascii_uppercase();
        match verb.as_str() {
            "LHLO" => drop(answer(&line, PLAIN)?),
            "XCLIENT" => drop(answer(&line, "220 peer\r\n")?),
            "MAIL" => {
                taken = Taken::default();
                if answer(&line, "250 2.1.0 OK\r\n")? {
                    taken.envelope.push(line);
                }
            }
            "RCPT" | "DATA" if taken.envelope.is_empty() => {
                answer("", "503 5.5.0 MAIL needed first\r\n")?;
            }
            "RCPT" => {
                if answer(&line, "250 2.1.5 OK\r\n")? {
                    taken.envelope.push(line);
                }
            }
            "DATA" if taken.envelope.len() < 2 => {
                answer("", "503 5.5.0 No valid recipients\r\n")?;
            }
            "DATA" => {
                if !answer(&line, "354 OK\r\n")? {
                    continue;
                }
                taken.bytes = read_data(&mut input)?;
                let upstream = lock(state).upstream.clone();
                let reply = match upstream {
                    Some(path) => pass_on(&path, &taken)?,
                    None => "250 2.0.0 <peer> peer-id Saved\r\n".to_owned(),
                };
                lock(state).taken.push(std::mem::take(&mut taken));
                answer(".", &reply)?;
            }
            "QUIT" => return answer(&line, "221 2.0.0 Bye\r\n").map(drop),
            "RSET" => {
                taken = Taken::default();
                answer(&line, "250 2.0.0 OK\r\n")?;
            }
            _ => drop(answer(&line, "500 5.5.1 Unknown command\r\n")?),
        }
    }
}

/// Up to the final dot, without the dots that were doubled.
fn read_data(input: &mut impl BufRead) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let mut line = Vec::new();
        if input.read_until(b'\n', &mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        match line.strip_prefix(b".") {
            Some(b"\r\n") => return Ok(bytes),
            Some(rest) => bytes.extend_from_slice(rest),
            None => bytes.extend_from_slice(&line),
        }
    }
}

fn pass_on(upstream: &Path, taken: &Taken) -> std::io::Result<String> {
    let mut client = LmtpClient::unix(upstream, Duration::from_secs(60))?;
    client.command("LHLO peer")?;
    for line in &taken.envelope {
        let reply = client.command(line)?;
        if !reply.is_ok() {
            return Ok(format!("{} {}\r\n", reply.code, reply.text));
        }
    }
    client.command("DATA")?;
    let mut data = Vec::new();
    for line in taken.bytes.split_inclusive(|byte| *byte == b'\n') {
        if line.starts_with(b".") {
            data.push(b'.');
        }
        data.extend_from_slice(line);
    }
    data.extend_from_slice(b".\r\n");
    client.send(&data)?;
    let reply = client.reply()?;
    Ok(format!("{} {}\r\n", reply.code, reply.text))
}
