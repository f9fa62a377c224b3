//! Dovecot's user database, asked over the master socket of its auth service as dovecot-lda asks:
//! whatever the site has there (passwd, SQL, LDAP) counts without being set up twice. By hand: the
//! protocol (lines of tabs, src/lib-auth/auth-master.c) is Dovecot's own, and no crate speaks it.
//!
//! Promise: "no such user" is returned only for an answer that says so, to this very question, in a
//! connection that was in step from its first line. Silence, garbage, an end, another version and
//! an answer to another question are failures. Lines are bounded, calls end by the time given. Each
//! question has a connection of its own: a process of Dovecot's that is to end, or to read its
//! configuration again, goes on with what it has, and what it knows, as long as a client stays. A
//! crash leaves nothing.

use std::io;
use std::path::PathBuf;
use std::time::Instant;

use onedrop_core::directory::UserdbError;
use onedrop_core::text;
use onedrop_net::input::{Input, InputLine};
use onedrop_net::socket::Socket;

/// The version that is spoken: another major one is another protocol.
const MAJOR: &str = "1";
/// Of the one question that a connection is for.
const ID: &str = "1";
/// Longest line: what Dovecot's own client takes (MAX_INBUF_SIZE).
const LONGEST_LINE: usize = 8192;
/// Lines of a greeting at most; there are two, and others may come to be.
const GREETING: usize = 16;
/// Bytes read at a time.
const BLOCK: usize = 4096;

/// A client of Dovecot's user database.
pub struct Userdb {
    path: PathBuf,
}

impl Userdb {
    /// Connects to nothing yet.
    pub fn new(path: PathBuf) -> Userdb {
        Userdb { path }
    }

    /// The user's name as the database has it; `None` where there is no such user.
    ///
    /// # Errors
    /// It is not known.
    pub fn user(&self, name: &str, until: Instant) -> Result<Option<String>, UserdbError> {
        let at = |why: String| format!("{}: {why}", self.path.display());
        self.connect(until)?.ask(name, until).map_err(|trouble| match trouble {
            UserdbError::Away(why) => UserdbError::Away(at(why)),
            UserdbError::Setup(why) => UserdbError::Setup(at(why)),
            not_now @ UserdbError::NotNow(_) => not_now,
        })
    }

    fn connect(&self, until: Instant) -> Result<UserdbConnection, UserdbError> {
        let left = until.saturating_duration_since(Instant::now());
        let error = match Socket::connect_unix(&self.path, left) {
            Ok(socket) => return Ok(UserdbConnection { socket, input: Input::default() }),
            Err(error) => error,
        };
        let (shown, name) = (self.path.display(), self.path.file_name().unwrap_or_default());
        Err(match error.kind() {
            io::ErrorKind::PermissionDenied => UserdbError::Setup(format!(
                "{shown}: permission denied; in Dovecot set service auth {{ unix_listener {} {{ \
                 mode = 0660, group = ... }} }} with a group of the user that Onedrop runs as, who \
                 must also be let into the folders above it",
                name.display()
            )),
            io::ErrorKind::WouldBlock => {
                UserdbError::Away(format!("{shown}: nobody takes a connection in time"))
            }
            _ => UserdbError::Away(format!("{shown}: cannot connect: {error}")),
        })
    }
}

struct UserdbConnection {
    socket: Socket,
    input: Input,
}

impl UserdbConnection {
    fn ask(&mut self, name: &str, until: Instant) -> Result<Option<String>, UserdbError> {
        let name_sent = escaped(name);
        let question = format!("VERSION\t{MAJOR}\t1\nUSER\t{ID}\t{name_sent}\tservice=lda\n");
        self.socket.write_all(question.as_bytes(), until).map_err(|error| of_io(&error))?;
        self.greeting(until)?;
        let line = self.line(until)?;
        let fields: Vec<Vec<u8>> = line.split(|byte| *byte == b'\t').map(unescaped).collect();
        let field = |at: usize| fields.get(at).map_or(&b""[..], Vec::as_slice);
        if let b"CUID" | b"COOKIE" | b"DONE" | b"MECH" = field(0) {
            return Err(UserdbError::Setup(NOT_A_MASTER.to_owned()));
        }
        // What comes after its first two fields may be a secret of the user's (imapc_password).
        let no_answer = || {
            let first: Vec<String> = fields.iter().take(2).map(|field| shown(field)).collect();
            UserdbError::Away(format!("no answer to the question: {}", first.join(" ")))
        };
        if field(1) != ID.as_bytes() {
            return Err(no_answer());
        }
        match (field(0), std::str::from_utf8(field(2))) {
            (b"NOTFOUND", _) => Ok(None),
            (b"USER", Ok(user)) if !user.is_empty() => Ok(Some(user.to_owned())),
            (b"FAIL", _) => {
                let reason = fields.iter().find_map(|field| field.strip_prefix(b"reason="));
                let unknown = || "no reason is told, Dovecot's log has it".to_owned();
                let reason = reason.map_or_else(unknown, shown);
                let why = format!("nothing can be said of {name:?} now: {reason}");
                Err(UserdbError::NotNow(why))
            }
            _ => Err(no_answer()),
        }
    }

    /// What the server says of itself: its version first, its process last.
    fn greeting(&mut self, until: Instant) -> Result<(), UserdbError> {
        for number in 0..GREETING {
            let line = self.line(until)?;
            let mut fields = line.split(|byte| *byte == b'\t');
            match (number, fields.next().unwrap_or_default()) {
                (0, b"VERSION") if fields.next() == Some(MAJOR.as_bytes()) => {}
                (0, b"VERSION") => {
                    let why = format!("it speaks another version, {}", shown(&line));
                    return Err(UserdbError::Setup(why));
                }
                (0, _) => {
                    let why = format!("this is no auth socket of Dovecot: {}", shown(&line));
                    return Err(UserdbError::Away(why));
                }
                (_, b"MECH") => return Err(UserdbError::Setup(NOT_A_MASTER.to_owned())),
                (_, b"SPID") => return Ok(()),
                _ => {}
            }
        }
        Err(UserdbError::Away("its greeting has no end".to_owned()))
    }

    fn line(&mut self, until: Instant) -> Result<Vec<u8>, UserdbError> {
        loop {
            match self.input.line(LONGEST_LINE) {
                Some(InputLine::Whole(line)) => return Ok(line),
                None if !self.input.is_too_long() => {}
                Some(InputLine::TooLong) | None => {
                    let why = format!("a line of more than {LONGEST_LINE} bytes");
                    return Err(UserdbError::Away(why));
                }
            }
            // What drips is there at each read.
            if Instant::now() >= until {
                return Err(UserdbError::Away("no answer in time".to_owned()));
            }
            let socket = &self.socket;
            match self.input.fill(BLOCK, |into| socket.read(into, until)) {
                Ok(0) => return Err(UserdbError::Away("it ended without an answer".to_owned())),
                Ok(_) => {}
                Err(error) => return Err(of_io(&error)),
            }
        }
    }
}

/// Where only clients that log in may ask.
const NOT_A_MASTER: &str =
    "this is Dovecot's socket for logins; directory.userdb needs that of auth-userdb";

fn of_io(error: &io::Error) -> UserdbError {
    UserdbError::Away(match error.kind() {
        io::ErrorKind::TimedOut => "no answer in time".to_owned(),
        _ => error.to_string(),
    })
}

/// What a peer said, for people.
fn shown(line: &[u8]) -> String {
    text::shortened(&String::from_utf8_lossy(line), 200).into_owned()
}

/// A field of a line (str_tabescape in Dovecot's src/lib/strescape.c).
fn escaped(field: &str) -> String {
    let mut escaped = String::with_capacity(field.len());
    for c in field.chars() {
        match c {
            '\u{1}' => escaped.push_str("\u{1}1"),
            '\t' => escaped.push_str("\u{1}t"),
            '\n' => escaped.push_str("\u{1}n"),
            '\r' => escaped.push_str("\u{1}r"),
            '\0' => escaped.push_str("\u{1}0"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// The same back.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let (mut unescaped, mut rest) = (Vec::with_capacity(field.len()), field.iter());
    while let Some(byte) = rest.next() {
        unescaped.push(match byte {
            1 => match rest.next() {
                Some(b'0') => 0,
                Some(b't') => b'\t',
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(other) if *other != b'1' => *other,
                Some(_) => 1,
                None => break,
            },
            other => *other,
        });
    }
    unescaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_comes_back_as_it_was() {
        for field in ["", "doug", "a\tb", "\u{1}", "\u{1}t\r\n\0é", "t\u{1}1"] {
            let escaped = escaped(field);
            assert!(!escaped.contains(['\t', '\n', '\r', '\0']), "{escaped:?}");
            assert_eq!(unescaped(escaped.as_bytes()), field.as_bytes());
        }
        assert_eq!(unescaped(b"a\x01"), b"a");
    }
}
