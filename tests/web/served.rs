//! `onedrop web` as a process, and a client that sends what a test gives it.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::server::{Server, guarded, tail};
use crate::support::{free_port, onedrop_path, remove_variables};

/// A running server.
pub struct Served {
    pub server: Server,
    pub port: u16,
    pub log: PathBuf,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// In lower case, with their values.
    pub fields: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    #[track_caller]
    pub fn of(bytes: &[u8]) -> Answer {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
        let field = |line: &str| {
            let (name, value) = line.split_once(": ")?;
            Some((name.to_lowercase(), value.to_owned()))
        };
        Answer {
            status: status.unwrap_or_else(|| panic!("{text:?}")),
            fields: lines.filter_map(field).collect(),
            body: body.to_owned(),
        }
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

impl Served {
    /// Listens on a port of this host, with further arguments, until it answers.
    pub fn start(config: &Path, args: &[&str]) -> Served {
        Served::start_with(config, args, |_| ())
    }

    /// The same with a command that is changed before it is run.
    pub fn start_with(config: &Path, args: &[&str], change: impl FnOnce(&mut Command)) -> Served {
        let port = free_port();
        let place = format!("127.0.0.1:{port}");
        let args = [&["--listen", &place], args].concat();
        let mut served = Served::begin_with(config, &args, port, change);
        served.server.wait_ready(|| TcpStream::connect(("127.0.0.1", port)).is_ok());
        served
    }

    pub fn begin(config: &Path, args: &[&str], port: u16) -> Served {
        Served::begin_with(config, args, port, |_| ())
    }

    fn begin_with(
        config: &Path,
        args: &[&str],
        port: u16,
        change: impl FnOnce(&mut Command),
    ) -> Served {
        let log = config.with_file_name("web.log");
        let mut command = guarded(onedrop_path(), None, Signal::SIGKILL);
        command.arg("web").arg("--config").arg(config).args(args);
        remove_variables(&mut command);
        change(&mut command);
        let file = OpenOptions::new().create(true).append(true).open(&log).expect("log");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let server = Server::start("onedrop web", command, Signal::SIGTERM, &log);
        Served { server, port, log }
    }

    pub fn connect(&self) -> TcpStream {
        let client = TcpStream::connect(("127.0.0.1", self.port)).expect("a server");
        client.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
        client
    }

    /// Sends `request` and reads what comes until the connection ends.
    pub fn send(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        let mut client = self.connect();
        client.write_all(request)?;
        let mut answer = Vec::new();
        // A server that refuses what it has not read resets the connection after its answer.
        match client.read_to_end(&mut answer) {
            Err(error) if answer.is_empty() => Err(error),
            _ => Ok(answer),
        }
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        self.get_with(path, "")
    }

    /// With further fields, each with its line end.
    #[track_caller]
    pub fn get_with(&self, path: &str, fields: &str) -> Answer {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
        let answer = self.send(request.as_bytes());
        Answer::of(&answer.unwrap_or_else(|error| panic!("{error}: {}", tail(&self.log))))
    }

    /// The page at `path`, which is there.
    #[track_caller]
    pub fn page(&self, path: &str) -> String {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {answer:?}\n{}", tail(&self.log));
        match answer.field("transfer-encoding") {
            Some("chunked") => without_chunks(&answer.body),
            _ => answer.body,
        }
    }
}

/// What is in the chunks of a page that began before its rows were there (RFC 9112, section 7.1).
#[track_caller]
fn without_chunks(mut body: &str) -> String {
    let mut whole = String::new();
    loop {
        let (size, rest) = body.split_once("\r\n").expect("a chunk's size");
        let size = usize::from_str_radix(size, 16).expect("a number");
        if size == 0 {
            return whole;
        }
        whole.push_str(&rest[..size]);
        body = rest[size..].strip_prefix("\r\n").expect("a chunk's end");
    }
}
