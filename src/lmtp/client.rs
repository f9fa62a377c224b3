//! A message by way of the LMTP server on this host (`deliver.via`), which has its connections open
//! already. The call is made before the message is read.
//!
//! Until the data's final dot is sent nothing is handed over: where nobody listens, or the server
//! is busy, drains, goes away or does not understand, the process delivers by itself
//! ([`NotTaken`](HandOverError::NotTaken)). After the dot the server may deliver, whatever becomes
//! of the connection: then a lost answer is a temporary failure, never a second delivery in the
//! same run, and the next try finds by lease and look what this one left. The server says before it
//! does anything that a message is too large for it; then this process's own limit decides.

use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use super::wire::data;
use super::wire::reply::{self, Reply};
use super::wire::write::{self, Commands};
use crate::deadline::Deadline;
use crate::deliver::Failure;
use crate::envelope::Envelope;
use crate::message::Message;
use crate::net::input::{Input, Line};
use crate::net::socket::{Socket, Timed};
use crate::outcome::{Outcome, OverQuota, Status};

/// How long to stand in the queue of a server that accepts nobody, and how long to wait for its
/// first words, before the process delivers by itself: a socket that systemd keeps takes calls for
/// a server that cannot start.
const CONNECT_SECS: u64 = 2;
/// A reply line has 512 bytes at most (RFC 5321 section 4.5.3.1.5); more is no reply.
const LONGEST_LINE: usize = 4096;
/// Nor are this many lines.
const MOST_LINES: usize = 100;
/// What the server must offer, as ours does; another one may keep no ledger.
const NEEDED: [&str; 5] = ["PIPELINING", "ENHANCEDSTATUSCODES", "8BITMIME", "SMTPUTF8", "XFORWARD"];

/// Why the server did not deliver the message.
#[derive(Debug)]
pub enum HandOverError {
    /// Certainly nothing was handed over; why.
    NotTaken(String),
    /// The delivery has failed.
    Failed(Failure),
}

/// A call to the server, which may not have said a word yet.
pub struct Call(Conversation);

impl Call {
    /// Calls the server at `path` and says hello without waiting for its greeting, which any server
    /// of ours lets pass: by the time the message has been read it has answered. What is said there
    /// ends by the `deadline` of `deadline_secs`.
    ///
    /// # Errors
    /// Nobody is there, in words.
    pub fn start(
        path: &Path,
        host: &str,
        deadline: &Deadline,
        deadline_secs: u64,
    ) -> Result<Call, String> {
        let name = path.display().to_string();
        let socket = Socket::connect_unix(path, Duration::from_secs(CONNECT_SECS))
            .map_err(|error| format!("{name}: {error}"))?;
        let mut stream = Timed::new(socket, Instant::now() + deadline.left());
        // A server that has gone again has said why, which is read instead of a greeting.
        let _ = stream.write_all(format!("LHLO {host}\r\n").as_bytes());
        Ok(Call(Conversation {
            stream,
            input: Input::default(),
            deadline: deadline.clone(),
            deadline_secs,
            name,
        }))
    }

    /// Hands the message over and waits for the replies: how it ended for each of the envelope's
    /// recipients.
    ///
    /// # Errors
    /// See [`HandOverError`].
    pub fn hand_over(
        self,
        message: &Message,
        envelope: &Envelope,
    ) -> Result<Vec<Outcome>, HandOverError> {
        let Call(mut conversation) = self;
        conversation.greeted()?;
        let recipients: Vec<&str> = envelope.recipients.iter().map(String::as_str).collect();
        if recipients.is_empty() {
            return Err(HandOverError::NotTaken("no recipient".to_owned()));
        }
        let cannot = || HandOverError::NotTaken("LMTP cannot say it".to_owned());
        let pieces = message.to_hand_over().ok_or_else(cannot)?;
        let commands = write::commands(envelope, &recipients, &pieces).ok_or_else(cannot)?;
        conversation.hand_over(&commands, &recipients, &pieces)
    }
}

/// What broke a conversation.
#[derive(Debug)]
enum Broken {
    Lost(io::Error),
    Late,
    NotUnderstood(String),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Broken {
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Broken::Late,
            _ => Broken::Lost(error),
        }
    }
}

struct Conversation {
    stream: Timed,
    input: Input,
    deadline: Deadline,
    deadline_secs: u64,
    /// The socket.
    name: String,
}

impl Conversation {
    /// The greeting, and what the server offers.
    fn greeted(&mut self) -> Result<(), HandOverError> {
        let whole = self.deadline.clone();
        self.deadline = Deadline::new(Duration::from_secs(CONNECT_SECS), Duration::ZERO);
        let greeting = self.reply().map_err(|broken| self.before_hello(broken))?;
        self.expect(&greeting, 220)?;
        let offer = self.reply().map_err(|broken| self.before_hello(broken))?;
        self.expect(&offer, 250)?;
        self.deadline = whole;
        let offers = |keyword: &str| {
            offer.lines.iter().skip(1).any(|line| {
                line.split(' ').next().is_some_and(|word| word.eq_ignore_ascii_case(keyword))
            })
        };
        match NEEDED.into_iter().find(|keyword| !offers(keyword)) {
            None => Ok(()),
            Some(missing) => Err(HandOverError::NotTaken(format!(
                "{} is no server of ours: no {missing}",
                self.name
            ))),
        }
    }

    fn hand_over(
        &mut self,
        commands: &Commands,
        recipients: &[&str],
        pieces: &[&[u8]],
    ) -> Result<Vec<Outcome>, HandOverError> {
        self.write_all(&commands.bytes).map_err(|error| self.before(error.into()))?;
        if commands.has_xforward {
            let reply = self.reply().map_err(|broken| self.before(broken))?;
            self.expect(&reply, 250)?;
        }
        let reply = self.reply().map_err(|broken| self.before(broken))?;
        self.expect(&reply, 250)?;
        let refused = self.recipients(recipients)?;
        let accepted = refused.iter().filter(|outcome| outcome.is_none()).count();
        let mut replies = Vec::new();
        if accepted > 0 {
            let reply = self.reply().map_err(|broken| self.before(broken))?;
            self.expect(&reply, 354)?;
            data::write(pieces, self).map_err(|error| self.before(error.into()))?;
            replies = self.replies(accepted);
            // Nobody waits for what it says to that.
            let _ = self.write_all(b"QUIT\r\n");
            if replies
                .iter()
                .any(|outcome| matches!(outcome, Outcome::PermFail(Status::TOO_BIG, _)))
            {
                return Err(HandOverError::NotTaken(format!("too large for {}", self.name)));
            }
        }
        let mut replies = replies.into_iter();
        Ok(refused.into_iter().filter_map(|refused| refused.or_else(|| replies.next())).collect())
    }

    /// The replies to RCPT: how it ended for those that are refused, `None` for those that are
    /// accepted.
    fn recipients(&mut self, recipients: &[&str]) -> Result<Vec<Option<Outcome>>, HandOverError> {
        let mut refused = Vec::new();
        for _ in recipients {
            let reply = self.reply().map_err(|broken| self.before(broken))?;
            refused.push(match reply.outcome() {
                Outcome::Delivered(_) => None,
                // Not that it does not understand us, leaves, or wants fewer at a time.
                outcome @ Outcome::TempFail(status, _)
                    if reply.code / 100 == 4
                        && !status.is_about_the_protocol()
                        && reply.code != 421 =>
                {
                    Some(outcome)
                }
                // Nor that it knows nobody of that name: its configuration may be older than what
                // we have just read.
                Outcome::PermFail(..) | Outcome::TempFail(..) => return Err(self.refused(&reply)),
            });
        }
        Ok(refused)
    }

    /// The replies to the data, one for each accepted recipient (RFC 2033 section 4.2). Those that
    /// do not come are not waited for one by one.
    fn replies(&mut self, accepted: usize) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for left in (1..=accepted).rev() {
            let broken = match self.reply() {
                Ok(reply) => {
                    outcomes.push(reply.outcome());
                    continue;
                }
                Err(broken) => broken,
            };
            let failure = match broken {
                Broken::Lost(error) => Failure::Server(format!(
                    "{} has the message and did not answer: {error}",
                    self.name
                )),
                Broken::Late => self.late(),
                Broken::NotUnderstood(said) => self.not_understood(&said),
            };
            outcomes.extend(vec![failure.outcome(OverQuota::Defer); left]);
            break;
        }
        outcomes
    }

    /// What it means that the conversation broke before it began.
    fn before_hello(&self, broken: Broken) -> HandOverError {
        match broken {
            Broken::Late => {
                HandOverError::NotTaken(format!("{}: no word in {CONNECT_SECS} s", self.name))
            }
            broken => self.before(broken),
        }
    }

    /// What it means that the conversation broke before the final dot was sent.
    fn before(&self, broken: Broken) -> HandOverError {
        match broken {
            Broken::Lost(error) => HandOverError::NotTaken(format!("{}: {error}", self.name)),
            Broken::Late => HandOverError::Failed(self.late()),
            Broken::NotUnderstood(said) => HandOverError::Failed(self.not_understood(&said)),
        }
    }

    fn late(&self) -> Failure {
        Failure::Deadline { secs: self.deadline_secs, doing: format!("waiting for {}", self.name) }
    }

    fn not_understood(&self, said: &str) -> Failure {
        Failure::Server(format!("{} is not understood: {said:?}", self.name))
    }

    fn expect(&self, reply: &Reply, code: u16) -> Result<(), HandOverError> {
        if reply.code == code { Ok(()) } else { Err(self.refused(reply)) }
    }

    /// Before the final dot the server says no, or what makes no sense there.
    fn refused(&self, reply: &Reply) -> HandOverError {
        let said = format!("{} {}", reply.code, reply.lines.join(" "));
        match reply.is_negative() {
            true => HandOverError::NotTaken(format!("{} says {said}", self.name)),
            false => HandOverError::Failed(self.not_understood(&said)),
        }
    }

    fn reply(&mut self) -> Result<Reply, Broken> {
        let mut reply = Reply { code: 0, lines: Vec::new() };
        loop {
            let line = self.line()?;
            let Some((code, is_last, text)) = reply::parse(&line) else {
                return Err(Broken::NotUnderstood(line));
            };
            let is_first = reply.lines.is_empty();
            if !is_first && reply.code != code || reply.lines.len() >= MOST_LINES {
                return Err(Broken::NotUnderstood(line));
            }
            reply.code = code;
            reply.lines.push(text.to_owned());
            if is_last {
                return Ok(reply);
            }
        }
    }

    fn line(&mut self) -> Result<String, Broken> {
        loop {
            match self.input.line(LONGEST_LINE) {
                Line::Whole(line) => return Ok(String::from_utf8_lossy(&line).into_owned()),
                Line::Incomplete if !self.input.is_too_long() => {}
                Line::Incomplete | Line::TooLong => {
                    return Err(Broken::NotUnderstood("an endless line".to_owned()));
                }
            }
            self.stream.until = self.until();
            let stream = &mut self.stream;
            if self.input.fill(LONGEST_LINE, |into| stream.read(into))? == 0 {
                return Err(Broken::Lost(io::Error::other("the connection was closed")));
            }
        }
    }

    fn until(&self) -> Instant {
        Instant::now() + self.deadline.left()
    }
}

/// Each write is over by the deadline.
impl Write for Conversation {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.until = self.until();
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
