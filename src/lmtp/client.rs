//! A message by way of the LMTP server on this host (`deliver.via`, `deliver --via`), which has its
//! connections open already. The call is made before the message is read.
//!
//! Until the data's final dot is sent nothing is handed over: where no server listens, or the
//! server is busy, drains, goes away or does not understand, the process delivers by itself
//! ([`NotTaken`](HandOverError::NotTaken)). After the dot the server may deliver, even if the
//! connection ends: then a lost answer is a temporary failure, never a second delivery in the same
//! run, and the next try finds by lease and look what this one left. The server says before it does
//! anything that a message is too large for it; then this process's own limit decides.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use onedrop_core::deadline::Deadline;
use onedrop_core::deliver::Failure;
use onedrop_core::envelope::Envelope;
use onedrop_core::message::Message;
use onedrop_core::outcome::{Outcome, Status};
use onedrop_net::input::Input;
use onedrop_net::lmtp::read::{self, DialogError};
use onedrop_net::lmtp::reply::Reply;
use onedrop_net::lmtp::{data, write};
use onedrop_net::socket::{Socket, Timed};

/// How long to wait until the server accepts, and how long for its greeting, before the process
/// delivers by itself: a socket that systemd keeps takes calls for a server that cannot start.
const CONNECT_SECS: u64 = 2;
/// What the server must offer, as ours does; another one may keep no ledger.
const NEEDED: [&str; 5] = ["PIPELINING", "ENHANCEDSTATUSCODES", "8BITMIME", "SMTPUTF8", "XFORWARD"];

/// Why the server did not deliver the message.
#[derive(Debug)]
pub enum HandOverError {
    /// Certainly nothing was handed over; why.
    NotTaken(String),
    /// The server refused the message for its size; how that ends if no other process delivers it.
    TooLarge(Outcome),
    /// The delivery has failed.
    Failed(Failure),
}

/// A connection to the server, which may not have said a word yet.
pub struct ServerConnection {
    /// Reads and writes end by the delivery's deadline.
    stream: Timed,
    input: Input,
    deadline_secs: u64,
    /// The socket.
    name: String,
}

impl ServerConnection {
    /// Connects to the server at `path` and sends LHLO without waiting for its greeting, which any
    /// server of ours allows: by the time the message has been read it has answered. The dialog
    /// ends by the `deadline` of `deadline_secs`.
    ///
    /// # Errors
    /// A sentence: no server is there.
    pub fn start(
        path: &Path,
        host: &str,
        deadline: &Deadline,
        deadline_secs: u64,
    ) -> Result<ServerConnection, String> {
        let name = path.display().to_string();
        let socket = Socket::connect_unix(path, Duration::from_secs(CONNECT_SECS))
            .map_err(|error| format!("{name}: {error}"))?;
        let mut stream = Timed::new(socket, Instant::now() + deadline.left());
        // A server that has gone again has said why, which is read instead of a greeting.
        let _ = stream.write_all(format!("LHLO {host}\r\n").as_bytes());
        Ok(ServerConnection { stream, input: Input::default(), deadline_secs, name })
    }

    /// Hands the message over and waits for the replies: how it ended for each of the envelope's
    /// recipients.
    pub fn hand_over(
        mut self,
        message: &Message,
        envelope: &Envelope,
    ) -> Result<Vec<Outcome>, HandOverError> {
        self.greet()?;
        let recipients: Vec<&str> = envelope.recipients.iter().map(String::as_str).collect();
        if recipients.is_empty() {
            return Err(HandOverError::NotTaken("no recipient".to_owned()));
        }
        let cannot = || HandOverError::NotTaken("LMTP cannot say it".to_owned());
        let pieces = message.to_hand_over().ok_or_else(cannot)?;
        let commands = write::commands(envelope, &recipients, &pieces).ok_or_else(cannot)?;
        self.stream.write_all(&commands).map_err(|error| self.before(error.into()))?;
        if commands.starts_with(b"XFORWARD ") {
            self.expect(250)?;
        }
        self.expect(250)?;
        let refused = self.refused_recipients(recipients.len())?;
        let accepted = refused.iter().filter(|outcome| outcome.is_none()).count();
        let mut replies = Vec::new();
        if accepted > 0 {
            self.expect(354)?;
            data::write(&pieces, &mut self.stream).map_err(|error| self.before(error.into()))?;
            replies = self.replies(accepted);
            // The reply to that is not waited for.
            let _ = self.stream.write_all(b"QUIT\r\n");
            let is_too_big =
                |outcome: &Outcome| matches!(outcome, Outcome::PermFail(Status::TOO_BIG, _));
            if let Some(reply) = replies.iter().find(|reply| is_too_big(reply)) {
                return Err(HandOverError::TooLarge(reply.clone()));
            }
        }
        let mut replies = replies.into_iter();
        Ok(refused.into_iter().filter_map(|refused| refused.or_else(|| replies.next())).collect())
    }

    /// Reads the greeting, and what the server offers.
    fn greet(&mut self) -> Result<(), HandOverError> {
        let soon = Instant::now() + Duration::from_secs(CONNECT_SECS);
        let whole = std::mem::replace(&mut self.stream.until, soon);
        let offer = match self.expect(220).and_then(|_| self.expect(250)) {
            Err(HandOverError::Failed(Failure::Deadline { .. })) => {
                let why = format!("{}: no word in {CONNECT_SECS} s", self.name);
                return Err(HandOverError::NotTaken(why));
            }
            offer => offer?,
        };
        self.stream.until = whole;
        let offered: Vec<&str> =
            offer.lines.iter().skip(1).filter_map(|line| line.split(' ').next()).collect();
        let is_offered = |needed: &&str| offered.iter().any(|one| one.eq_ignore_ascii_case(needed));
        match NEEDED.into_iter().find(|needed| !is_offered(needed)) {
            None => Ok(()),
            Some(missing) => Err(HandOverError::NotTaken(format!(
                "{} is no server of ours: no {missing}",
                self.name
            ))),
        }
    }

    /// The replies to RCPT: how it ended for those that are refused, `None` for those that are
    /// accepted.
    fn refused_recipients(&mut self, count: usize) -> Result<Vec<Option<Outcome>>, HandOverError> {
        let mut refused = Vec::new();
        for _ in 0..count {
            let reply = self.reply().map_err(|error| self.before(error))?;
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
                // Nor that it knows no such account: its configuration may be older than what we
                // have just read.
                Outcome::PermFail(..) | Outcome::TempFail(..) => return Err(self.refused(&reply)),
            });
        }
        Ok(refused)
    }

    /// The replies to the data, one for each accepted recipient (RFC 2033 section 4.2). Those that
    /// do not come are not waited for one by one.
    fn replies(&mut self, accepted: usize) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        while outcomes.len() < accepted {
            match self.reply() {
                Ok(reply) => outcomes.push(reply.outcome()),
                Err(error) => {
                    outcomes.resize(accepted, self.failure(error).outcome());
                }
            }
        }
        outcomes
    }

    /// Reads a reply before the final dot, which must have this `code`.
    fn expect(&mut self, code: u16) -> Result<Reply, HandOverError> {
        let reply = self.reply().map_err(|error| self.before(error))?;
        if reply.code == code { Ok(reply) } else { Err(self.refused(&reply)) }
    }

    /// What it means that the dialog broke before the final dot was sent.
    fn before(&self, error: DialogError) -> HandOverError {
        match error {
            DialogError::Lost(error) => HandOverError::NotTaken(format!("{}: {error}", self.name)),
            error => HandOverError::Failed(self.failure(error)),
        }
    }

    /// What it means that the dialog broke after that.
    fn failure(&self, error: DialogError) -> Failure {
        match error {
            DialogError::Lost(error) => Failure::Server(format!(
                "{} has the message and did not answer: {error}",
                self.name
            )),
            DialogError::Late => Failure::Deadline {
                secs: self.deadline_secs,
                doing: format!("waiting for {}", self.name),
            },
            DialogError::NotUnderstood(said) => {
                Failure::Server(format!("{} is not understood: {said:?}", self.name))
            }
        }
    }

    /// Before the final dot the server says no, or what makes no sense there.
    fn refused(&self, reply: &Reply) -> HandOverError {
        let said = format!("{} {}", reply.code, reply.lines.join(" "));
        match reply.code {
            400..600 => HandOverError::NotTaken(format!("{} says {said}", self.name)),
            _ => HandOverError::Failed(self.failure(DialogError::NotUnderstood(said))),
        }
    }

    fn reply(&mut self) -> Result<Reply, DialogError> {
        read::reply(&mut self.input, &mut self.stream)
    }
}
