//! A raw IMAP client for tests: as small as it can be, and independent of the one in `src/`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// What a server holds of a message: CRLF for a bare LF, and 0x80 for NUL.
pub fn over_imap(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 40);
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'\n' if at == 0 || bytes[at - 1] != b'\r' => out.extend_from_slice(b"\r\n"),
            0 => out.push(0x80),
            other => out.push(*other),
        }
    }
    out
}

/// One response line with its literals cut out: `text` has `{n}` where `literals[i]` stood.
#[derive(Debug, Clone)]
pub struct Line {
    pub text: String,
    pub literals: Vec<Vec<u8>>,
}

/// The answer to one command: the untagged lines, and the tagged one without its tag (`OK ...`, `NO
/// ...`, `BAD ...`).
#[derive(Debug, Clone)]
pub struct Answer {
    pub untagged: Vec<Line>,
    pub tagged: String,
}

impl Answer {
    pub fn is_ok(&self) -> bool {
        self.tagged.starts_with("OK")
    }
}

pub struct Imap {
    stream: BufReader<TcpStream>,
    tags: u32,
    pub greeting: String,
}

impl Imap {
    /// Connects over plain TCP; every read and write may take two minutes, as one answer may list
    /// thousands of messages.
    pub fn connect(port: u16) -> std::io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        stream.set_write_timeout(Some(Duration::from_secs(120)))?;
        stream.set_nodelay(true)?;
        let mut imap = Self { stream: BufReader::new(stream), tags: 0, greeting: String::new() };
        imap.greeting = imap.line()?.text;
        Ok(imap)
    }

    /// Logs in by SASL PLAIN: `user` authenticates and acts as `account`.
    pub fn login_as(port: u16, account: &str, user: &str, password: &str) -> std::io::Result<Self> {
        let mut imap = Self::connect(port)?;
        let token = base64(format!("{account}\0{user}\0{password}").as_bytes());
        let answer = imap.command(&format!("AUTHENTICATE PLAIN {token}"))?;
        if answer.is_ok() { Ok(imap) } else { Err(std::io::Error::other(answer.tagged)) }
    }

    /// Sends one command (without tag and line end) and reads up to its tagged answer.
    pub fn command(&mut self, command: &str) -> std::io::Result<Answer> {
        let tag = self.next_tag();
        write!(self.stream.get_mut(), "{tag} {command}\r\n")?;
        self.answer(&tag)
    }

    /// APPEND with a non-synchronising literal. `options` comes between mailbox and literal, e.g.
    /// `(\Seen)`.
    pub fn append(
        &mut self,
        mailbox: &str,
        options: &str,
        message: &[u8],
    ) -> std::io::Result<Answer> {
        let tag = self.next_tag();
        let mailbox = quoted(mailbox);
        let options = if options.is_empty() { String::new() } else { format!("{options} ") };
        let mut bytes =
            format!("{tag} APPEND {mailbox} {options}{{{}+}}\r\n", message.len()).into_bytes();
        bytes.extend_from_slice(message);
        bytes.extend_from_slice(b"\r\n");
        self.stream.get_mut().write_all(&bytes)?;
        self.answer(&tag)
    }

    /// What FETCH says of every message of a mailbox, in order of UID; nothing where there is no
    /// such mailbox. Ends the session.
    pub fn fetch_all(&mut self, mailbox: &str, items: &str) -> Vec<Line> {
        let selected = self.command(&format!("EXAMINE {}", quoted(mailbox))).expect("EXAMINE");
        let mut lines = Vec::new();
        if selected.is_ok() {
            // Sequence numbers, which are in order of UID; an empty mailbox has no "1:*" that
            // Dovecot accepts.
            if !selected.untagged.iter().any(|line| line.text == "* 0 EXISTS") {
                let fetched = self.command(&format!("FETCH 1:* ({items})")).expect("FETCH");
                assert!(fetched.is_ok(), "FETCH {mailbox}: {}", fetched.tagged);
                lines = fetched
                    .untagged
                    .into_iter()
                    .filter(|line| line.text.contains(" FETCH ("))
                    .collect();
            }
        } else {
            let missing = selected.tagged.contains("doesn't exist")
                || selected.tagged.contains("[NONEXISTENT]");
            assert!(missing, "EXAMINE {mailbox}: {}", selected.tagged);
        }
        let _ = self.command("LOGOUT");
        lines
    }

    fn next_tag(&mut self) -> String {
        self.tags += 1;
        format!("t{}", self.tags)
    }

    fn answer(&mut self, tag: &str) -> std::io::Result<Answer> {
        let mut untagged = Vec::new();
        loop {
            let line = self.line()?;
            if let Some(tagged) =
                line.text.strip_prefix(tag).and_then(|rest| rest.strip_prefix(' '))
            {
                return Ok(Answer { tagged: tagged.to_owned(), untagged });
            }
            untagged.push(line);
        }
    }

    fn line(&mut self) -> std::io::Result<Line> {
        let mut line = Line { text: String::new(), literals: Vec::new() };
        loop {
            let mut bytes = Vec::new();
            if self.stream.read_until(b'\n', &mut bytes)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            line.text.push_str(String::from_utf8_lossy(&bytes).trim_end_matches(['\r', '\n']));
            let size = line
                .text
                .strip_suffix('}')
                .and_then(|text| text.rsplit_once('{'))
                .map(|(_, size)| size.parse());
            let Some(Ok(size)) = size else { return Ok(line) };
            let mut literal = vec![0; size];
            self.stream.read_exact(&mut literal)?;
            line.literals.push(literal);
        }
    }
}

pub fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

pub fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}
