//! What is said on an LMTP connection (RFC 2033), as a state machine without a socket: the caller
//! reads lines and bytes and writes what is in the output buffer. Every command gets its replies in
//! order, so a peer may send commands ahead (RFC 2920). Relies on its caller to read data and
//! chunks as [`Next`] says. Holds nothing that a crash could lose: no message is accepted before
//! the caller writes the recipients' replies.

use std::time::{Duration, Instant};

use super::pace::SLOWEST;
use crate::lmtp::wire::command::{self, Command, Mail, Refusal};
use crate::lmtp::wire::reply::line;
use crate::lmtp::wire::xforward::{self, Forwarded, harmless};
use crate::outcome::Outcome;

use crate::lmtp::wire::{Client, reply};

/// Errors allowed between two messages; the next one ends the connection.
pub const ERRORS: u32 = 20;

/// Commands between two messages that bring none nearer; the next one ends the connection
/// (smtpd_junk_command_limit in Postfix).
pub const IN_VAIN: u32 = 100;

/// What may pass from the first word of a transaction to its data.
pub const TRANSACTION: Duration = Duration::from_mins(10);

/// The longest domain name (RFC 5321 section 4.5.3.1.2).
const LONGEST_NAME: usize = 255;

/// What the protocol needs from the configuration.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This host's name, as the greeting says it.
    pub host: String,
    /// The most recipients of one message; 0: no limit. RFC 5321 section 4.5.3.1.8 asks for 100.
    pub recipients: usize,
}

/// Asked for each recipient.
pub trait Admit {
    /// `recipient` as a person reads it (`local@domain`, or `postmaster`), of the transaction so
    /// far.
    ///
    /// # Errors
    /// How the delivery to it has ended: nobody has the address, or nobody can tell now.
    fn admit(&mut self, recipient: &str, transaction: &Transaction) -> Result<(), Outcome>;
}

/// What the connection does next; the replies so far are in the output buffer. Before anything is
/// read that the peer sends only after a reply, the buffer must be written out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Reads the next command line.
    Command,
    /// Reads a message to its end with a new [`DotReader`](crate::lmtp::wire::data::DotReader),
    /// then calls [`Protocol::take`].
    Data,
    /// Reads `bytes` bytes with the message's
    /// [`ChunkReader`](crate::lmtp::wire::data::ChunkReader); then, if this is the last chunk, ends
    /// it and calls [`Protocol::take`], else [`Protocol::chunk_read`]. With the `first` chunk a
    /// message starts: what may be kept of one that was never completed (RSET) is thrown away.
    Chunk { bytes: u64, first: bool, last: bool },
    /// Reads `bytes` bytes, throws them away, and calls [`Protocol::chunk_read`].
    Discard { bytes: u64 },
    /// Writes the replies and closes the connection. What else was read is ignored.
    Close,
}

/// One message's envelope.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Empty for the null sender.
    pub sender: String,
    /// In the order of their RCPT commands, which is the order of the replies; one that was named
    /// twice is in it twice.
    pub recipients: Vec<String>,
    /// XFORWARD's IDENT; empty when not given.
    pub queue_id: String,
    /// MAIL's AUTH parameter; empty when not given and for `<>`.
    pub sasl_username: String,
    /// Who the peer got the message from.
    pub client: Client,
    /// The name the peer gave itself, safe to put in a header field.
    pub lhlo: String,
    pub smtputf8: bool,
    pub eight_bit: bool,
}

/// A transaction between MAIL and its end.
#[derive(Debug)]
struct Open {
    transaction: Transaction,
    /// Bytes of all chunks so far; `None` before the first BDAT.
    chunked: Option<u64>,
}

const TOO_MANY: &str = "421 4.7.0 Too many commands without a message";
const CHUNK_TAKEN: &str = "250 2.0.0 Chunk taken";
const NO_RECIPIENTS: &str = "503 5.5.1 No valid recipients";

/// One connection's state.
#[derive(Debug)]
pub struct Protocol {
    settings: Settings,
    lhlo: Option<String>,
    forwarded: Forwarded,
    open: Option<Open>,
    /// What is said once a chunk is read.
    chunk_reply: &'static str,
    errors: u32,
    in_vain: u32,
    /// When the client said the first word of a transaction, or of what it thinks is one.
    began: Option<Instant>,
}

impl Protocol {
    pub fn new(settings: Settings) -> Protocol {
        let mut protocol = Protocol {
            settings: settings.clone(),
            lhlo: None,
            forwarded: Forwarded::default(),
            open: None,
            chunk_reply: CHUNK_TAKEN,
            errors: 0,
            in_vain: 0,
            began: None,
        };
        protocol.set(settings);
        protocol
    }

    /// Whether no message is under way.
    pub fn is_idle(&self) -> bool {
        self.open.is_none()
    }

    /// Other settings, from the next message on.
    pub fn set(&mut self, settings: Settings) {
        let host = harmless(&settings.host).chars().take(LONGEST_NAME).collect();
        self.settings = Settings { host, ..settings };
    }

    /// The first line of the connection, with its CRLF.
    pub fn greeting(&self) -> String {
        format!("220 {} LMTP Onedrop\r\n", self.settings.host)
    }

    /// Carries out one command line, given without its line end, at the time `now`, and appends the
    /// replies to `out`.
    pub fn line(
        &mut self,
        line: &[u8],
        now: Instant,
        admit: &mut dyn Admit,
        out: &mut Vec<u8>,
    ) -> Next {
        if self.is_too_slow(now) {
            return self.hang_up("421 4.4.2 Transaction takes too long", out);
        }
        // Addresses may hold any bytes, as they do on a command line: what is not UTF-8 is no
        // reason to let mail wait.
        let text = String::from_utf8_lossy(line);
        let done =
            command::read(&text).and_then(|command| self.carry_out(command, now, admit, out));
        match done {
            Ok(next) => next,
            // Where a BDAT ends whose size cannot be read is unknown: what follows must not be
            // taken for commands.
            Err(refusal) if command::is_bdat(line) => self.hang_up(refusal.text, out),
            Err(refusal) => self.refuse(&refusal, out),
        }
    }

    /// A command line was too long. The caller throws away the rest of it.
    pub fn line_too_long(&mut self, out: &mut Vec<u8>) -> Next {
        // Not 500: it may be an address, and mail is not returned for that.
        self.refuse(&Refusal::error("451 4.5.2 Line too long"), out)
    }

    /// The data is complete: gives its transaction out, and is ready for the next. The caller
    /// writes one reply for each recipient, in order.
    pub fn take(&mut self) -> Transaction {
        (self.errors, self.in_vain) = (0, 0);
        self.reset().unwrap_or_default()
    }

    /// A chunk that was not the last, or that was to be thrown away, was read: its reply.
    pub fn chunk_read(&mut self, out: &mut Vec<u8>) {
        line(out, std::mem::replace(&mut self.chunk_reply, CHUNK_TAKEN));
    }

    /// Ends the transaction; the attributes that XFORWARD gave end with it.
    fn reset(&mut self) -> Option<Transaction> {
        self.forwarded = Forwarded::default();
        self.began = None;
        self.open.take().map(|open| open.transaction)
    }

    fn refuse(&mut self, refusal: &Refusal, out: &mut Vec<u8>) -> Next {
        self.errors += u32::from(refusal.counts);
        if self.errors > ERRORS {
            return self.hang_up("421 4.7.0 Too many errors", out);
        }
        line(out, refusal.text);
        Next::Command
    }

    fn hang_up(&self, text: &str, out: &mut Vec<u8>) -> Next {
        line(out, text);
        Next::Close
    }

    /// Chunks get the time that they may take to come in.
    fn is_too_slow(&self, now: Instant) -> bool {
        let bytes = self.open.as_ref().and_then(|open| open.chunked).unwrap_or(0);
        let most = TRANSACTION + Duration::from_secs(bytes / SLOWEST);
        self.began.is_some_and(|began| now.saturating_duration_since(began) > most)
    }

    /// Counts what brings no message nearer; true when that has been too much.
    fn is_one_too_many(&mut self) -> bool {
        self.in_vain += 1;
        self.in_vain > IN_VAIN
    }

    fn carry_out(
        &mut self,
        command: Command,
        now: Instant,
        admit: &mut dyn Admit,
        out: &mut Vec<u8>,
    ) -> Result<Next, Refusal> {
        if command.is_of_a_transaction() {
            self.began.get_or_insert(now);
        } else if command != Command::Quit && self.is_one_too_many() {
            return Ok(self.hang_up(TOO_MANY, out));
        }
        match command {
            Command::Lhlo(host) => self.hello(&host, out),
            Command::Mail(mail) => {
                self.mail(mail)?;
                line(out, "250 2.1.0 Sender taken");
            }
            Command::Rcpt(recipient) => match self.rcpt(recipient, admit)? {
                Ok(()) => line(out, "250 2.1.5 Recipient taken"),
                Err(outcome) => out.extend_from_slice(&reply(&outcome)),
            },
            Command::Data => {
                self.data()?;
                line(out, "354 End data with <CR><LF>.<CR><LF>");
                return Ok(Next::Data);
            }
            Command::Bdat { bytes, last } => return Ok(self.bdat(bytes, last, out)),
            Command::XForward(words) => {
                self.xforward(&words)?;
                line(out, "250 2.0.0 Attributes taken");
            }
            Command::Rset => {
                self.reset();
                line(out, "250 2.0.0 Reset");
            }
            Command::Noop => line(out, "250 2.0.0 Nothing done"),
            Command::Vrfy => line(out, "252 2.5.0 Send a message to find out"),
            Command::Help => line(out, "214 2.0.0 RFC 2033"),
            Command::Quit => return Ok(self.hang_up("221 2.0.0 Bye", out)),
        }
        Ok(Next::Command)
    }

    /// LHLO ends a transaction like RSET (RFC 5321 section 4.1.4). No size is told, and what MAIL
    /// says of one is not asked: it counts line ends as on the wire, or Postfix's records (which
    /// also refuses by itself what is over a size told, for good), where the limit counts them as
    /// one byte each.
    fn hello(&mut self, host: &str, out: &mut Vec<u8>) {
        self.reset();
        self.lhlo = Some(harmless(host).chars().take(LONGEST_NAME).collect());
        line(out, &format!("250-{}", self.settings.host));
        for keyword in
            ["PIPELINING", "ENHANCEDSTATUSCODES", "SIZE", "8BITMIME", "SMTPUTF8", "CHUNKING"]
        {
            line(out, &format!("250-{keyword}"));
        }
        line(out, &format!("250 XFORWARD {}", xforward::ATTRIBUTES));
    }

    fn mail(&mut self, mail: Mail) -> Result<(), Refusal> {
        let Some(lhlo) = &self.lhlo else { return Err(Refusal::error("503 5.5.1 Say LHLO first")) };
        if self.open.is_some() {
            return Err(Refusal::error("503 5.5.1 A transaction is open"));
        }
        let transaction = Transaction {
            sender: mail.sender,
            recipients: Vec::new(),
            queue_id: self.forwarded.queue_id().to_owned(),
            sasl_username: mail.auth,
            client: self.forwarded.client(),
            lhlo: lhlo.clone(),
            smtputf8: mail.smtputf8,
            eight_bit: mail.eight_bit,
        };
        self.open = Some(Open { transaction, chunked: None });
        Ok(())
    }

    /// Adds the recipient, or says how the delivery to it has ended.
    fn rcpt(
        &mut self,
        recipient: String,
        admit: &mut dyn Admit,
    ) -> Result<Result<(), Outcome>, Refusal> {
        let Some(open) = &mut self.open else {
            return Err(Refusal::excused("503 5.5.1 Say MAIL first"));
        };
        if open.chunked.is_some() {
            return Err(Refusal::excused("503 5.5.1 The message has begun"));
        }
        let most = self.settings.recipients;
        if most != 0 && open.transaction.recipients.len() >= most {
            return Err(Refusal::excused("452 4.5.3 Too many recipients"));
        }
        let admitted = admit.admit(&recipient, &open.transaction);
        if admitted.is_ok() {
            open.transaction.recipients.push(recipient);
        }
        Ok(admitted)
    }

    fn data(&self) -> Result<(), Refusal> {
        match &self.open {
            None => Err(Refusal::excused("503 5.5.1 Say MAIL first")),
            // RFC 3030 section 2.
            Some(open) if open.chunked.is_some() => {
                Err(Refusal::excused("503 5.5.1 DATA after BDAT"))
            }
            Some(open) if open.transaction.recipients.is_empty() => {
                Err(Refusal::excused(NO_RECIPIENTS))
            }
            Some(_) => Ok(()),
        }
    }

    /// The chunk follows its command without waiting for a reply, so it must be read also where it
    /// is refused (RFC 3030 section 2).
    fn bdat(&mut self, bytes: u64, last: bool, out: &mut Vec<u8>) -> Next {
        self.chunk_reply = match &mut self.open {
            Some(open) => {
                let first = open.chunked.is_none();
                open.chunked = Some(open.chunked.unwrap_or(0).saturating_add(bytes));
                if !open.transaction.recipients.is_empty() {
                    return Next::Chunk { bytes, first, last };
                }
                NO_RECIPIENTS
            }
            None => "503 5.5.1 Say MAIL first",
        };
        if last {
            self.reset();
            if self.is_one_too_many() {
                return self.hang_up(TOO_MANY, out);
            }
        }
        Next::Discard { bytes }
    }

    fn xforward(&mut self, words: &[&str]) -> Result<(), Refusal> {
        if self.open.is_some() {
            return Err(Refusal::error("503 5.5.1 A transaction is open"));
        }
        self.forwarded.take(words).map_err(Refusal::error)
    }
}
