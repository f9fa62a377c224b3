//! One message in an LMTP connection, with its point of no return: the final dot. Commands go ahead
//! of their replies where the server takes that (RFC 2920), so a delivery costs two round trips.
//!
//! What stands before the message are two fields of ours, by which it is found wherever a filter
//! files it and however often it was tried: X-Onedrop-Copy first, X-Onedrop-Try second. NUL bytes
//! go as 0x80, as into IMAP literals: RFC 5321 (section 4.5.2) has none in a message.

use std::borrow::Cow;
use std::io::Write;
use std::time::Instant;

use super::replies;
use super::session::{GOODBYE, LmtpSession, in_words};
use onedrop_core::deadline::Deadline;
use onedrop_core::lock_key::hex;
use onedrop_core::store::{HandOff, StoreError};
use onedrop_net::lmtp::read::DialogError;
use onedrop_net::lmtp::{LmtpPlace, data, path};
use onedrop_net::xtext;

/// Stands after the number of the try, of a copy that was found.
const AGAIN: &str = " again";

/// Cyrus (3.4 to 3.8, imap/spool.c) reads pieces of 8189 bytes and takes each for a line.
const LONGEST_LINE: usize = 8000;

/// A message and its envelope, as LMTP says them.
pub struct HandedMail<'a> {
    /// The account, as a path.
    recipient: String,
    /// The sender, as a path.
    sender: String,
    /// Whom it was for, as ORCPT says it.
    original: String,
    /// Names the try in the server's log.
    id: String,
    /// Of the claim.
    epoch: i64,
    /// X-Onedrop-Copy and X-Onedrop-Try.
    fields: String,
    pieces: [Cow<'a, [u8]>; 2],
}

/// Why a mail was not handed over, or may have been.
pub enum HandOffError {
    /// The connection ended before the final dot.
    Lost(String),
    /// The server does not take ORCPT; without it the mail may be tried again.
    WithoutOriginal(String),
    /// The server has said so, or the time is over.
    Refused(StoreError),
    /// The server does not take such a message.
    Content(StoreError),
    /// The server may take a line of the message for its end, and what follows for commands.
    Unsafe,
}

impl HandOffError {
    /// What it means for the copy, by the server at `place`.
    pub fn of(self, place: &LmtpPlace) -> StoreError {
        let say = |why: String| format!("handing over to {place}: {why}");
        match self {
            HandOffError::Lost(why) | HandOffError::WithoutOriginal(why) => {
                StoreError::NotStored(say(why))
            }
            HandOffError::Refused(error) | HandOffError::Content(error) => error.map(say),
            HandOffError::Unsafe => StoreError::NotStored(say(
                "a line of the message may end it too early for this server".to_owned(),
            )),
        }
    }
}

impl<'a> HandedMail<'a> {
    /// The message is what `pieces` hold, one after the other.
    ///
    /// # Errors
    /// LMTP cannot name the account.
    pub fn new(
        account: &str,
        pieces: [&'a [u8]; 2],
        handed: &HandOff<'_>,
    ) -> Result<HandedMail<'a>, StoreError> {
        let recipient = path::of_account(account).ok_or_else(|| {
            StoreError::Refused(format!("account {account:?} cannot be named in LMTP"))
        })?;
        let HandOff { value, epoch, again, sender, recipient: original, .. } = handed;
        let (value, again) = (hex(value), if *again { AGAIN } else { "" });
        Ok(HandedMail {
            recipient,
            // What is no address to LMTP gets no answers.
            sender: path::of_sender(sender)
                .filter(|path| !path.contains(char::is_control))
                .unwrap_or_else(|| "<>".to_owned()),
            original: match original.is_ascii() && !original.is_empty() {
                true => format!("rfc822;{}", xtext::encode(original)),
                false => String::new(),
            },
            id: format!("{value}.{epoch}"),
            epoch: *epoch,
            fields: format!("X-Onedrop-Copy: {value}\r\nX-Onedrop-Try: {epoch}{again}\r\n"),
            pieces: pieces.map(without_nul),
        })
    }

    fn pieces(&self) -> [&[u8]; 3] {
        [self.fields.as_bytes(), &self.pieces[0], &self.pieces[1]]
    }

    /// What stands before the message in a mailbox, with what an LMTP server prepends (RFC 5321
    /// section 4.4).
    pub fn stored_fields(&self) -> String {
        let to = self.recipient.trim_start_matches('<').trim_end_matches('>');
        format!("Return-Path: {}\r\nDelivered-To: {to}\r\n{}", self.sender, self.fields)
    }

    /// Whether a line of it has a carriage return alone, or is long enough for a server to read it
    /// as several: `.` at the beginning of such a one is not doubled, and ends the message.
    fn may_be_cut(&self) -> bool {
        self.pieces.iter().any(|piece| {
            let ends = memchr::memchr_iter(b'\n', piece).chain([piece.len()]);
            let mut start = 0;
            let is_long = ends.into_iter().any(|end| {
                let length = end - std::mem::replace(&mut start, end);
                length >= LONGEST_LINE
            });
            let is_alone = |at: usize| piece.get(at + 1) != Some(&b'\n');
            is_long || memchr::memchr_iter(b'\r', piece).any(is_alone)
        })
    }

    /// An estimate (RFC 1870 section 6.1).
    fn size(&self) -> u64 {
        self.pieces().iter().map(|piece| piece.len() as u64).sum()
    }
}

fn without_nul(bytes: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(0, bytes).is_none() {
        return Cow::Borrowed(bytes);
    }
    Cow::Owned(bytes.iter().map(|byte| if *byte == 0 { 0x80 } else { *byte }).collect())
}

impl LmtpSession {
    /// Hands the mail over, and returns what the server calls the delivery.
    ///
    /// # Errors
    /// [`StoreError::InDoubt`] only after the final dot, or if the server said yes before it.
    pub fn hand_over(
        &mut self,
        mail: &HandedMail<'_>,
        deadline: &Deadline,
    ) -> Result<String, HandOffError> {
        self.wait_until(deadline.last_bytes());
        if !self.is_dovecot() && mail.may_be_cut() {
            return Err(HandOffError::Unsafe);
        }
        if let Some(limit) = self.offers.size.filter(|limit| (1..mail.size()).contains(limit)) {
            let why = format!("{} bytes, the server takes {limit}", mail.size());
            return Err(HandOffError::Refused(StoreError::TooBig(why)));
        }
        let secs = deadline.left().as_secs().max(1);
        match self.announce(mail, secs, true) {
            Err(HandOffError::WithoutOriginal(_)) => {
                let again = self.announce(mail, secs, true);
                // Refused all the same, it may have been about this recipient alone.
                self.offers.orcpt = matches!(again, Err(HandOffError::Refused(_)));
                again?;
            }
            announced => announced?,
        }
        let was_sound = std::mem::replace(&mut self.sound, false);
        let last = data::write_up_to_the_last(&mail.pieces(), &mut self.transport);
        // What it says before the message is whole is no answer to it, and would be taken for one.
        // It may have closed the connection after that.
        if !self.is_silent() {
            if last.is_err() {
                self.wait_until(Instant::now() + GOODBYE);
            }
            let early = self.reply().map_err(|error| self.lost(error))?;
            let why = format!("it answered before it had the message: {}", replies::said(&early));
            return Err(HandOffError::Refused(match early.code / 100 {
                // Of what it took for all of it there may be a copy.
                2 => StoreError::InDoubt(why),
                _ => StoreError::NotStored(why),
            }));
        }
        let last = last.map_err(|error| self.lost(error.into()))?;
        if let Err(late) = deadline.pass_point_of_no_return() {
            return Err(HandOffError::Refused(StoreError::NotStored(late.to_string())));
        }
        let sent = self.transport.write_all(&last).and_then(|()| self.transport.flush());
        if let Err(error) = sent {
            // Within TLS it is not known how much of it went out.
            return Err(match self.is_tls {
                true => HandOffError::Refused(StoreError::InDoubt(error.to_string())),
                false => self.lost(error.into()),
            });
        }
        self.wait_until(deadline.answer_until());
        let in_doubt = |error: DialogError| {
            let why = format!("it has the message and did not answer: {}", in_words(&error));
            HandOffError::Refused(StoreError::InDoubt(why))
        };
        let reply = self.reply().map_err(in_doubt)?;
        self.sound = was_sound && reply.code != 421;
        match reply.code {
            250 => Ok(replies::name_of(&reply, mail.epoch)),
            _ => {
                let error = replies::after_the_dot(&reply);
                Err(match replies::is_about_the_content(&reply) {
                    true => HandOffError::Content(error),
                    false => HandOffError::Refused(error),
                })
            }
        }
    }

    /// Asks whether the server takes mail for the account, and sends none.
    ///
    /// # Errors
    /// It does not.
    pub fn probe(&mut self, account: &str, until: Instant) -> Result<(), HandOffError> {
        let handed = HandOff {
            value: [0; 16],
            epoch: 0,
            again: false,
            sender: "",
            recipient: "",
            filter_fields: "",
        };
        let mail = HandedMail::new(account, [b"", b""], &handed).map_err(HandOffError::Refused)?;
        self.wait_until(until);
        self.announce(&mail, 1, false)
    }

    /// Says all that stands before the message, up to DATA's 354, or, without `data`, up to RCPT.
    fn announce(
        &mut self,
        mail: &HandedMail<'_>,
        secs: u64,
        data: bool,
    ) -> Result<(), HandOffError> {
        let commands = self.commands(mail, secs, data);
        let were_sound = std::mem::replace(&mut self.sound, false);
        let at_once = if self.offers.pipelining { commands.len() } else { 1 };
        let mut refused: Option<StoreError> = None;
        // A server that takes a message without a recipient, or says yes to something else, is out
        // of step: the connection ends, as what it says later would be taken for another answer.
        let (mut out_of_step, had_orcpt) = (false, self.offers.orcpt);
        let mut accepts_data = false;
        for group in commands.chunks(at_once) {
            if refused.is_some() {
                break;
            }
            let lines: Vec<u8> = group
                .iter()
                .flat_map(|command| [command.line.as_bytes(), b"\r\n"].concat())
                .collect();
            let sent = self.transport.write_all(&lines).and_then(|()| self.transport.flush());
            sent.map_err(|error| self.lost(error.into()))?;
            for command in group {
                let reply = self.reply().map_err(|error| self.lost(error))?;
                match command.step {
                    _ if reply.code == 421 => return Err(self.lost_by(replies::said(&reply))),
                    CommandKind::Client if reply.code != 220 => {
                        // It does not trust us: its words before were for others.
                        (self.offers.session, self.offers.timeout) = (false, false);
                    }
                    CommandKind::Mail if reply.code == 250 => self.needs_reset = true,
                    CommandKind::Data if reply.code == 354 => accepts_data = true,
                    _ if reply.code == command.step.expected() => {}
                    step => {
                        out_of_step |= reply.code < 400;
                        if refused.is_none() && self.refuses_orcpt(step, mail, reply.code) {
                            self.offers.orcpt = false;
                        }
                        refused.get_or_insert_with(|| replies::before_the_dot(&reply));
                    }
                }
            }
        }
        match refused {
            Some(error) if accepts_data || out_of_step => Err(HandOffError::Refused(error)),
            Some(error) => {
                self.sound = were_sound;
                Err(match had_orcpt && !self.offers.orcpt {
                    true => HandOffError::WithoutOriginal(error.to_string()),
                    false => HandOffError::Refused(error),
                })
            }
            None => {
                self.sound = were_sound;
                self.needs_reset = !data;
                Ok(())
            }
        }
    }

    fn commands(&self, mail: &HandedMail<'_>, secs: u64, data: bool) -> Vec<Command> {
        let offers = &self.offers;
        let mut commands = Vec::new();
        let mut say = |step, line: String| commands.push(Command { step, line });
        if self.needs_reset {
            say(CommandKind::Other, "RSET".to_owned());
        }
        if offers.session || offers.timeout {
            let session = offers.session.then(|| format!(" SESSION={}", mail.id));
            let timeout = offers.timeout.then(|| format!(" TIMEOUT={secs}"));
            let attributes = [session, timeout].map(Option::unwrap_or_default).concat();
            say(CommandKind::Client, format!("XCLIENT{attributes}"));
            // The session begins anew after it.
            say(CommandKind::Other, format!("LHLO {}", self.host));
        }
        let can_say = offers.smtputf8 || mail.sender.is_ascii();
        let mut line = format!("MAIL FROM:{}", if can_say { &mail.sender } else { "<>" });
        if offers.size.is_some() {
            line.push_str(&format!(" SIZE={}", mail.size()));
        }
        if offers.eight_bit && !mail.pieces().iter().all(|piece| piece.is_ascii()) {
            line.push_str(" BODY=8BITMIME");
        }
        if offers.smtputf8 && !(mail.sender.is_ascii() && mail.recipient.is_ascii()) {
            line.push_str(" SMTPUTF8");
        }
        say(CommandKind::Mail, line);
        let mut line = format!("RCPT TO:{}", mail.recipient);
        if offers.orcpt && !mail.original.is_empty() {
            line.push_str(&format!(" ORCPT={}", mail.original));
        }
        say(CommandKind::Recipient, line);
        if data {
            say(CommandKind::Data, "DATA".to_owned());
        }
        commands
    }

    /// Whether that is why RCPT is refused (RFC 5321 section 4.1.1.11).
    fn refuses_orcpt(&self, step: CommandKind, mail: &HandedMail<'_>, code: u16) -> bool {
        let has_orcpt = self.offers.orcpt && !mail.original.is_empty();
        matches!(step, CommandKind::Recipient) && has_orcpt && matches!(code, 501 | 504 | 555)
    }

    fn lost(&mut self, error: DialogError) -> HandOffError {
        self.lost_by(in_words(&error))
    }

    fn lost_by(&mut self, why: String) -> HandOffError {
        self.sound = false;
        HandOffError::Lost(why)
    }
}

/// A command line, without its end.
struct Command {
    step: CommandKind,
    line: String,
}

#[derive(Clone, Copy)]
enum CommandKind {
    /// XCLIENT.
    Client,
    Mail,
    Recipient,
    Data,
    /// RSET, LHLO.
    Other,
}

impl CommandKind {
    fn expected(self) -> u16 {
        match self {
            CommandKind::Client => 220,
            CommandKind::Data => 354,
            CommandKind::Mail | CommandKind::Recipient | CommandKind::Other => 250,
        }
    }
}
