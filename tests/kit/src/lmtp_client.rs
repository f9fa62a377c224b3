//! An LMTP client for tests (RFC 2033): as small as it can be, and able to send what no good client
//! sends.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::stream::Stream;

const PATIENCE: Duration = Duration::from_secs(90);

/// One reply: its code, and the text of its lines joined by newlines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub code: u16,
    pub text: String,
}

impl Reply {
    pub fn is_ok(&self) -> bool {
        (200..300).contains(&self.code)
    }
}

impl std::fmt::Display for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.code, self.text)
    }
}

pub struct LmtpClient {
    stream: BufReader<Stream>,
    pub greeting: Reply,
}

impl LmtpClient {
    /// Connects and reads the greeting; every read and write may take `patience`.
    pub fn unix(path: &Path, patience: Duration) -> std::io::Result<Self> {
        Self::over(Stream::Unix(UnixStream::connect(path)?), patience)
    }

    /// Like [`LmtpClient::unix`], to 127.0.0.1.
    pub fn tcp(port: u16, patience: Duration) -> std::io::Result<Self> {
        Self::tcp_at((Ipv4Addr::LOCALHOST, port).into(), patience)
    }

    /// Like [`LmtpClient::unix`], to any address.
    pub fn tcp_at(address: SocketAddr, patience: Duration) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Self::over(Stream::Tcp(stream), patience)
    }

    fn over(stream: Stream, patience: Duration) -> std::io::Result<Self> {
        stream.limit(patience)?;
        let none = Reply { code: 0, text: String::new() };
        let mut client = Self { stream: BufReader::new(stream), greeting: none };
        client.greeting = client.reply()?;
        Ok(client)
    }

    /// Connects and says LHLO; panics if the server refuses.
    pub fn welcome(path: &Path) -> Self {
        let mut client = Self::unix(path, PATIENCE).expect("a server");
        assert_eq!(client.greeting.code, 220, "{:?}", client.greeting);
        let reply = client.command("LHLO test.example").expect("an answer");
        assert_eq!(reply.code, 250, "{reply:?}");
        client
    }

    /// Sends one command (without its line end) and reads its reply.
    pub fn command(&mut self, command: &str) -> std::io::Result<Reply> {
        self.send(format!("{command}\r\n").as_bytes())?;
        self.reply()
    }

    /// Sends these bytes.
    pub fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    pub fn reply(&mut self) -> std::io::Result<Reply> {
        let mut texts = Vec::new();
        loop {
            let mut line = Vec::new();
            if self.stream.read_until(b'\n', &mut line)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            let line = String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned();
            let malformed = || std::io::Error::other(format!("not a reply: {line:?}"));
            let code = line.get(..3).and_then(|code| code.parse().ok()).ok_or_else(malformed)?;
            texts.push(line.get(4..).unwrap_or_default().to_owned());
            match line.as_bytes().get(3) {
                Some(b'-') => {}
                Some(b' ') | None => return Ok(Reply { code, text: texts.join("\n") }),
                Some(_) => return Err(malformed()),
            }
        }
    }

    /// One message, pipelined as Postfix does: one reply per recipient, in their order. A recipient
    /// that is refused has its reply to RCPT. `message` is sent with CRLF line ends and doubled
    /// dots.
    pub fn deliver(
        &mut self,
        from: &str,
        recipients: &[&str],
        message: impl AsRef<[u8]>,
    ) -> std::io::Result<Vec<Reply>> {
        let accepted = self.begin(from, recipients)?;
        if accepted.iter().any(Reply::is_ok) {
            self.send_message(message)?;
        }
        self.finish(accepted)
    }

    /// MAIL, RCPT and DATA in one write; the replies to RCPT. With one that is positive, the
    /// message comes next.
    pub fn begin(&mut self, from: &str, recipients: &[&str]) -> std::io::Result<Vec<Reply>> {
        let mut envelope = format!("MAIL FROM:<{from}>\r\n");
        for recipient in recipients {
            envelope.push_str(&format!("RCPT TO:<{recipient}>\r\n"));
        }
        envelope.push_str("DATA\r\n");
        self.send(envelope.as_bytes())?;
        let mail = self.reply()?;
        let accepted =
            recipients.iter().map(|_| self.reply()).collect::<std::io::Result<Vec<_>>>()?;
        let data = self.reply()?;
        let expected = if accepted.iter().any(Reply::is_ok) { 354 } else { 503 };
        if !mail.is_ok() || data.code / 100 != expected / 100 {
            return Err(std::io::Error::other(format!(
                "MAIL: {mail:?}, RCPT: {accepted:?}, DATA: {data:?}"
            )));
        }
        Ok(accepted)
    }

    /// A message and its end, after [`LmtpClient::begin`].
    pub fn send_message(&mut self, message: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.send(&[&dot_stuffed(message.as_ref())[..], b".\r\n"].concat())
    }

    /// The replies after the message's end, in place of the positive ones of [`LmtpClient::begin`].
    pub fn finish(&mut self, mut accepted: Vec<Reply>) -> std::io::Result<Vec<Reply>> {
        for reply in accepted.iter_mut().filter(|reply| reply.is_ok()) {
            *reply = self.reply()?;
        }
        Ok(accepted)
    }

    pub fn shut(&self, part: Shutdown) {
        // It may be closed already.
        let _ = self.stream.get_ref().shut_part(part);
    }

    pub fn set_patience(&self, patience: Duration) {
        self.stream.get_ref().limit(patience).expect("socket");
    }

    pub fn quit(mut self) {
        let _ = self.command("QUIT");
    }
}

/// CRLF line ends (a lone CR stays), dots doubled, the last line ended.
pub fn dot_stuffed(message: &[u8]) -> Vec<u8> {
    let mut wire = Vec::with_capacity(message.len() + message.len() / 32 + 2);
    for line in message.split_inclusive(|byte| *byte == b'\n') {
        if line.starts_with(b".") {
            wire.push(b'.');
        }
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        wire.extend_from_slice(line.strip_suffix(b"\r").unwrap_or(line));
        wire.extend_from_slice(b"\r\n");
    }
    wire
}
