//! What is said on an LMTP connection (RFC 2033), as a state machine without a socket: the caller
//! reads lines and bytes and writes what is in the output buffer. Every command gets its replies in
//! order, so a peer may send commands ahead (RFC 2920). Relies on its caller to read data and
//! chunks as [`Next`] says. Holds nothing that a crash could lose: no message is accepted before
//! the caller writes the recipients' replies.

use std::sync::Arc;
use std::time::{Duration, Instant};

use onedrop_core::outcome::Outcome;
use onedrop_net::lmtp::ServerReply;
use onedrop_net::lmtp::command::{self, CommandError, LmtpCommand};
use onedrop_net::lmtp::reply;
use onedrop_net::lmtp::reply::line;
use onedrop_net::lmtp::xforward::{self, Forwarded, SmtpClient, harmless};

/// Errors allowed between two messages; the next one ends the connection.
const ERRORS: u32 = 20;
/// Commands between two messages that bring none nearer; the next one ends the connection
/// (smtpd_junk_command_limit in Postfix).
const IN_VAIN: u32 = 100;
/// What may pass from the first word of a transaction to its data.
const TRANSACTION: Duration = Duration::from_mins(10);
/// Data beyond the idle time must come at this rate, in bytes a second.
pub const SLOWEST: u64 = 10_000;
/// The longest domain name (RFC 5321 section 4.5.3.1.2).
const LONGEST_NAME: usize = 255;

/// Asked for each recipient, as a person reads it (`local@domain`, or `postmaster`), of the
/// transaction so far. An error is how the delivery to it has ended: the address does not exist, or
/// it cannot be found out now.
pub type Admit<'a> = dyn FnMut(&str, &Transaction) -> Result<(), Outcome> + 'a;

/// What the connection does next; the replies so far are in the output buffer. Before anything is
/// read that the peer sends only after a reply, the buffer must be written out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Reads the next command line.
    Command,
    /// Reads a message to its end, then calls [`Protocol::take`].
    Data,
    /// Reads `bytes` bytes of the message's chunks; after the `last` chunk it calls
    /// [`Protocol::take`], else [`Protocol::chunk_read`].
    Chunk { bytes: u64, last: bool },
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
    pub client: SmtpClient,
    /// The name the peer gave itself, safe to put in a header field.
    pub lhlo: String,
    pub smtputf8: bool,
}

const IS_OPEN: CommandError = CommandError::counted(ServerReply::TransactionOpen);

/// One connection's state.
#[derive(Debug, Default)]
pub struct Protocol {
    host: String,
    /// The most recipients of one message; 0: no limit. RFC 5321 section 4.5.3.1.8 asks for 100.
    recipients: usize,
    /// A recipient that is refused counts as an error of the client's.
    counts_refused: bool,
    /// Lines before its last one.
    help: Arc<[String]>,
    lhlo: Option<String>,
    forwarded: Forwarded,
    /// A transaction between MAIL and its end.
    open: Option<Transaction>,
    /// Bytes of all its chunks so far; `None` before the first BDAT.
    chunked: Option<u64>,
    /// The reply once a chunk is read, where that is not taken.
    chunk_error: Option<ServerReply>,
    errors: u32,
    in_vain: u32,
    /// When the client said the first word of a transaction, or of what it thinks is one.
    began: Option<Instant>,
}

impl Protocol {
    /// Whether no transaction is open.
    pub fn is_idle(&self) -> bool {
        self.open.is_none()
    }

    /// This host's name, as the greeting says it, the most recipients, whether one that is refused
    /// counts as an error, and what HELP says, from the next message on.
    pub fn set(
        &mut self,
        host: &str,
        recipients: usize,
        counts_refused: bool,
        help: &Arc<[String]>,
    ) {
        self.help = Arc::clone(help);
        self.counts_refused = counts_refused;
        self.host = harmless(host).chars().take(LONGEST_NAME).collect();
        self.recipients = recipients;
    }

    /// The first line of the connection, with its CRLF.
    pub fn greeting(&self) -> String {
        format!("220 {} LMTP Onedrop\r\n", self.host)
    }

    /// Carries out one command line, given without its line end, at the time `now`, and appends the
    /// replies to `out`.
    pub fn line(
        &mut self,
        line: &[u8],
        now: Instant,
        admit: &mut Admit<'_>,
        out: &mut Vec<u8>,
    ) -> Next {
        if self.is_too_slow(now) {
            return self.hang_up(ServerReply::TransactionTooLong, out);
        }
        // Addresses may hold any bytes, as they do on a command line: what is not UTF-8 is no
        // reason to let mail wait.
        let text = String::from_utf8_lossy(line);
        match command::read(&text).and_then(|command| self.carry_out(command, now, admit, out)) {
            Ok(next) => next,
            // Where a BDAT ends whose size cannot be read is unknown: what follows must not be
            // taken for commands.
            Err(error) if command::is_bdat(line) => self.hang_up(error.reply, out),
            Err(error) => self.refuse(&error, out),
        }
    }

    /// A command line was too long. The caller throws away the rest of it.
    pub fn line_too_long(&mut self, out: &mut Vec<u8>) -> Next {
        self.refuse(&CommandError::counted(ServerReply::LineTooLong), out)
    }

    /// The data is complete: gives its transaction out, and is ready for the next. The caller
    /// writes one reply for each recipient, in order.
    pub fn take(&mut self) -> Transaction {
        (self.errors, self.in_vain) = (0, 0);
        self.reset().unwrap_or_default()
    }

    /// A chunk that was not the last, or that was to be thrown away, was read: its reply.
    pub fn chunk_read(&mut self, out: &mut Vec<u8>) {
        line(out, self.chunk_error.take().unwrap_or(ServerReply::ChunkTaken).line());
    }

    /// Ends the transaction; the attributes that XFORWARD gave end with it.
    fn reset(&mut self) -> Option<Transaction> {
        self.forwarded = Forwarded::default();
        (self.began, self.chunked) = (None, None);
        self.open.take()
    }

    fn refuse(&mut self, error: &CommandError, out: &mut Vec<u8>) -> Next {
        if error.counts && self.is_one_error_too_many() {
            return self.hang_up(ServerReply::TooManyErrors, out);
        }
        line(out, error.reply.line());
        Next::Command
    }

    /// Counts an error; true when that has been too much.
    fn is_one_error_too_many(&mut self) -> bool {
        self.errors += 1;
        self.errors > ERRORS
    }

    fn hang_up(&self, reply: ServerReply, out: &mut Vec<u8>) -> Next {
        line(out, reply.line());
        Next::Close
    }

    /// Chunks get the time that they may take to come in.
    fn is_too_slow(&self, now: Instant) -> bool {
        let most = TRANSACTION + Duration::from_secs(self.chunked.unwrap_or(0) / SLOWEST);
        self.began.is_some_and(|began| now.saturating_duration_since(began) > most)
    }

    /// Counts what brings no message nearer; true when that has been too much.
    fn is_one_too_many(&mut self) -> bool {
        self.in_vain += 1;
        self.in_vain > IN_VAIN
    }

    fn carry_out(
        &mut self,
        command: LmtpCommand<'_>,
        now: Instant,
        admit: &mut Admit<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Next, CommandError> {
        use LmtpCommand::{Bdat, Data, Help, Lhlo, Mail, Noop, Quit, Rcpt, Rset, Vrfy, XForward};
        if matches!(command, Mail { .. } | Rcpt(_) | Data | Bdat { .. } | XForward(_)) {
            self.began.get_or_insert(now);
        } else if command != Quit && self.is_one_too_many() {
            return Ok(self.hang_up(ServerReply::TooManyCommands, out));
        }
        match command {
            Lhlo(host) => self.hello(host, out),
            Mail { sender, auth, smtputf8 } => {
                self.mail(sender, auth, smtputf8)?;
                line(out, ServerReply::SenderTaken.line());
            }
            Rcpt(recipient) => return self.rcpt(recipient, admit, out),
            Data => {
                self.data()?;
                line(out, ServerReply::SendData.line());
                return Ok(Next::Data);
            }
            Bdat { bytes, last } => return Ok(self.bdat(bytes, last, out)),
            XForward(_) if self.open.is_some() => return Err(IS_OPEN),
            XForward(words) => {
                self.forwarded.take(&words).map_err(CommandError::counted)?;
                line(out, ServerReply::AttributesTaken.line());
            }
            Rset => {
                self.reset();
                line(out, ServerReply::Reset.line());
            }
            Noop => line(out, ServerReply::NothingDone.line()),
            Vrfy => line(out, ServerReply::CannotVerify.line()),
            Help => {
                self.help.iter().for_each(|one| line(out, &format!("214-2.0.0 {one}")));
                line(out, ServerReply::Help.line());
            }
            Quit => return Ok(self.hang_up(ServerReply::Bye, out)),
        }
        Ok(Next::Command)
    }

    /// LHLO ends a transaction like RSET (RFC 5321 section 4.1.4). SIZE is offered without a limit,
    /// and MAIL's SIZE is ignored: it counts line ends as on the wire, or Postfix's records, where
    /// our limit counts them as one byte each; and over a limit that is offered Postfix itself
    /// returns the mail.
    fn hello(&mut self, host: &str, out: &mut Vec<u8>) {
        self.reset();
        self.lhlo = Some(harmless(host).chars().take(LONGEST_NAME).collect());
        line(out, &format!("250-{}", self.host));
        for keyword in
            ["PIPELINING", "ENHANCEDSTATUSCODES", "SIZE", "8BITMIME", "SMTPUTF8", "CHUNKING"]
        {
            line(out, &format!("250-{keyword}"));
        }
        line(out, &format!("250 XFORWARD {}", xforward::ATTRIBUTES));
    }

    fn mail(&mut self, sender: String, auth: String, smtputf8: bool) -> Result<(), CommandError> {
        let Some(lhlo) = self.lhlo.clone() else {
            return Err(CommandError::counted(ServerReply::LhloFirst));
        };
        if self.open.is_some() {
            return Err(IS_OPEN);
        }
        self.open = Some(Transaction {
            sender,
            recipients: Vec::new(),
            queue_id: self.forwarded.queue_id.clone(),
            sasl_username: auth,
            client: self.forwarded.client(),
            lhlo,
            smtputf8,
        });
        Ok(())
    }

    /// Adds the recipient, or replies how the delivery to it has ended.
    fn rcpt(
        &mut self,
        recipient: String,
        admit: &mut Admit<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Next, CommandError> {
        let open = self.open.as_mut().ok_or(CommandError::excused(ServerReply::MailFirst))?;
        if self.chunked.is_some() {
            return Err(CommandError::excused(ServerReply::MessageBegun));
        }
        if self.recipients != 0 && open.recipients.len() >= self.recipients {
            return Err(CommandError::excused(ServerReply::TooManyRecipients));
        }
        match admit(&recipient, open) {
            Ok(()) => {
                open.recipients.push(recipient);
                line(out, ServerReply::RecipientTaken.line());
            }
            Err(_) if self.counts_refused && self.is_one_error_too_many() => {
                return Ok(self.hang_up(ServerReply::TooManyErrors, out));
            }
            Err(outcome) => out.extend_from_slice(&reply(&outcome)),
        }
        Ok(Next::Command)
    }

    fn data(&self) -> Result<(), CommandError> {
        match &self.open {
            None => Err(CommandError::excused(ServerReply::MailFirst)),
            // RFC 3030 section 2.
            Some(_) if self.chunked.is_some() => {
                Err(CommandError::excused(ServerReply::DataAfterBdat))
            }
            Some(open) if open.recipients.is_empty() => {
                Err(CommandError::excused(ServerReply::NoRecipients))
            }
            Some(_) => Ok(()),
        }
    }

    /// The chunk follows its command without waiting for a reply, so it must be read also where it
    /// is refused (RFC 3030 section 2).
    fn bdat(&mut self, bytes: u64, last: bool, out: &mut Vec<u8>) -> Next {
        self.chunk_error = Some(match &self.open {
            None => ServerReply::MailFirst,
            Some(open) => {
                self.chunked = Some(self.chunked.unwrap_or(0).saturating_add(bytes));
                if !open.recipients.is_empty() {
                    return Next::Chunk { bytes, last };
                }
                ServerReply::NoRecipients
            }
        });
        if last {
            self.reset();
            if self.is_one_too_many() {
                return self.hang_up(ServerReply::TooManyCommands, out);
            }
        }
        Next::Discard { bytes }
    }
}
