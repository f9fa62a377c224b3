//! One command line, read. The paths of MAIL and RCPT are read by `path`; smtp-proto knows the
//! parameters of both, and the verbs without any. Decided here is what it gets wrong or leaves
//! open: BDAT (a size too large for it wraps around), arguments where none belong, parameters that
//! were not offered. Addresses beyond ASCII need no SMTPUTF8: Postfix sends them as they came where
//! its smtputf8_enable is off.
//!
//! pipe(8) hands over whatever the address is, and lmtp(8) is to return no mail that pipe(8) would
//! deliver. So what is not understood of MAIL and RCPT is 4xx ([`ServerReply`]), and LHLO takes any
//! name.

use smtp_proto::{
    Error, MAIL_BODY_7BIT, MAIL_BODY_8BITMIME, MAIL_SMTPUTF8, MailFrom, RcptTo, Request,
};

use super::{ServerReply, path};
use crate::xtext;

/// A command that was understood.
#[derive(Debug, PartialEq, Eq)]
pub enum LmtpCommand<'a> {
    Lhlo(&'a str),
    /// `sender` is empty for the null sender, `auth` for none and for `<>`.
    Mail {
        sender: String,
        auth: String,
        smtputf8: bool,
    },
    Rcpt(String),
    Data,
    Bdat {
        bytes: u64,
        last: bool,
    },
    XForward(Vec<&'a str>),
    Rset,
    Noop,
    Vrfy,
    Help,
    Quit,
}

/// The reply to a command that is not carried out.
#[derive(Debug, PartialEq, Eq)]
pub struct CommandError {
    pub reply: ServerReply,
    /// Counts as an error of the peer's. What depends on an address does not: nor does what a
    /// pipelining peer cannot know yet.
    pub counts: bool,
}

impl CommandError {
    pub const fn counted(reply: ServerReply) -> CommandError {
        CommandError { reply, counts: true }
    }

    pub const fn excused(reply: ServerReply) -> CommandError {
        CommandError { reply, counts: false }
    }
}

const BAD_SENDER: CommandError = CommandError::excused(ServerReply::BadSender);
const BAD_RECIPIENT: CommandError = CommandError::excused(ServerReply::BadRecipient);
const BAD_PARAMETER: CommandError = CommandError::counted(ServerReply::BadParameter);

/// What every path is called while smtp-proto reads the parameters.
const STAND_IN: &str = "<path@stand-in.invalid>";

/// Reads the line `text`, given without its line end; an error is the reply to give instead.
pub fn read(text: &str) -> Result<LmtpCommand<'_>, CommandError> {
    let verb = text.split_ascii_whitespace().next().unwrap_or_default().to_ascii_uppercase();
    let arguments = text.trim_ascii_start().get(verb.len()..).unwrap_or_default();
    let error = |reply| Err(CommandError::counted(reply));
    match (verb.as_str(), arguments.trim_ascii()) {
        ("LHLO", "") => error(ServerReply::LhloSyntax),
        // Whatever name the peer gives itself; it is a text for people here.
        ("LHLO", name) => Ok(LmtpCommand::Lhlo(name)),
        ("MAIL", _) => mail(arguments),
        ("RCPT", _) => rcpt(arguments),
        _ if text.bytes().any(|byte| byte.is_ascii_control()) => {
            error(ServerReply::ControlCharacter)
        }
        ("BDAT", words) => bdat(&words.split_ascii_whitespace().collect::<Vec<_>>()),
        ("XFORWARD", words) => Ok(LmtpCommand::XForward(words.split_ascii_whitespace().collect())),
        // RFC 2033 section 4.1.
        ("HELO" | "EHLO", _) => error(ServerReply::NotLmtp),
        ("DATA" | "RSET" | "QUIT", words) if !words.is_empty() => error(ServerReply::NoArgument),
        _ => match parse(text) {
            Ok(Request::Data) => Ok(LmtpCommand::Data),
            Ok(Request::Rset) => Ok(LmtpCommand::Rset),
            Ok(Request::Noop { .. }) => Ok(LmtpCommand::Noop),
            Ok(Request::Vrfy { .. }) => Ok(LmtpCommand::Vrfy),
            Ok(Request::Help { .. }) => Ok(LmtpCommand::Help),
            Ok(Request::Quit) => Ok(LmtpCommand::Quit),
            Ok(_) => error(ServerReply::NotOffered),
            Err(Error::UnknownCommand) => error(ServerReply::UnknownCommand),
            Err(_) => error(ServerReply::BadSyntax),
        },
    }
}

/// Whether `line`, which was refused, is a BDAT: then the start of the next command is unknown.
pub fn is_bdat(line: &[u8]) -> bool {
    let start = line.trim_ascii_start();
    start.get(..4).is_some_and(|verb| verb.eq_ignore_ascii_case(b"BDAT"))
}

fn bdat<'a>(words: &[&str]) -> Result<LmtpCommand<'a>, CommandError> {
    let (size, last) = match words {
        [size] => (size, false),
        [size, last] if last.eq_ignore_ascii_case("LAST") => (size, true),
        _ => return Err(CommandError::counted(ServerReply::BdatSyntax)),
    };
    match size.parse() {
        Ok(bytes) if size.bytes().all(|byte| byte.is_ascii_digit()) => {
            Ok(LmtpCommand::Bdat { bytes, last })
        }
        _ => Err(CommandError::counted(ServerReply::BdatSize)),
    }
}

fn parse(text: &str) -> Result<Request<String>, Error> {
    Request::parse(&mut format!("{text}\n").as_bytes().iter()).map(Request::into_owned)
}

/// Splits the arguments of MAIL or RCPT after `keyword` (`FROM:`, `TO:`): the address, and the
/// parameters.
fn path_after<'a>(keyword: &str, arguments: &'a str) -> Option<(String, &'a str)> {
    let (start, rest) = arguments.trim_ascii_start().split_at_checked(keyword.len())?;
    path::read(Some(rest).filter(|_| start.eq_ignore_ascii_case(keyword))?)
}

/// The parameters of `command` (`MAIL FROM:`, `RCPT TO:`), which follow its path.
fn parameters(command: &str, parameters: &str) -> Result<Request<String>, CommandError> {
    if parameters.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(BAD_PARAMETER);
    }
    parse(&format!("{command}{STAND_IN}{parameters}")).map_err(|_| BAD_PARAMETER)
}

fn mail<'a>(arguments: &str) -> Result<LmtpCommand<'a>, CommandError> {
    let (sender, rest) = path_after("FROM:", arguments).ok_or(BAD_SENDER)?;
    let Request::Mail { from } = parameters("MAIL FROM:", rest)? else { return Err(BAD_PARAMETER) };
    let offered = MailFrom {
        address: from.address.clone(),
        flags: from.flags & (MAIL_BODY_7BIT | MAIL_BODY_8BITMIME | MAIL_SMTPUTF8),
        size: from.size,
        auth: from.auth.clone(),
        ..MailFrom::default()
    };
    if from != offered {
        return Err(BAD_PARAMETER);
    }
    // smtp-proto makes one character of each byte of an xtext, which is UTF-8.
    let auth = from.auth.filter(|auth| auth != "<>").and_then(|_| auth_parameter(rest));
    // No account has a name with control characters: such a name counts as none.
    let auth = auth.filter(|auth| !auth.contains(char::is_control)).unwrap_or_default();
    Ok(LmtpCommand::Mail { sender, auth, smtputf8: from.flags & MAIL_SMTPUTF8 != 0 })
}

/// The user who logged in, by the parameter AUTH (RFC 4954 section 5) among `parameters`.
fn auth_parameter(parameters: &str) -> Option<String> {
    let mut words = parameters.split_ascii_whitespace().filter_map(|word| word.split_once('='));
    let (_, value) = words.rfind(|(name, _)| name.eq_ignore_ascii_case("AUTH"))?;
    xtext::decode(value)
}

fn rcpt<'a>(arguments: &str) -> Result<LmtpCommand<'a>, CommandError> {
    let (recipient, rest) = path_after("TO:", arguments).ok_or(BAD_RECIPIENT)?;
    let Request::Rcpt { to } = parameters("RCPT TO:", rest)? else { return Err(BAD_PARAMETER) };
    if to != (RcptTo { address: to.address.clone(), ..RcptTo::default() }) {
        return Err(BAD_PARAMETER);
    }
    // RCPT TO:<> has no recipient to reply for.
    if recipient.is_empty() { Err(BAD_RECIPIENT) } else { Ok(LmtpCommand::Rcpt(recipient)) }
}
