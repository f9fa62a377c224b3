//! One command line, read. The paths of MAIL and RCPT are read by `path`; smtp-proto knows the
//! parameters of both, and the verbs without any. Decided here is what it gets wrong or leaves
//! open: BDAT (a size too large for it wraps around), arguments where none belong, parameters that
//! were not offered. Addresses beyond ASCII need no SMTPUTF8: Postfix says them as they came where
//! its smtputf8_enable is off.
//!
//! lmtp(8) returns a mail for any 5xx to LHLO, MAIL, RCPT or DATA (smtp_proto.c and smtp_trouble.c
//! in its sources), where pipe(8) hands over whatever the address is. So what is not understood of
//! MAIL and RCPT is 4xx, and LHLO takes any name.

use smtp_proto::{
    Error, MAIL_BODY_7BIT, MAIL_BODY_8BITMIME, MAIL_SMTPUTF8, MailFrom, RcptTo, Request,
};

use super::path;
use crate::net::xtext;

/// A command that was understood.
#[derive(Debug, PartialEq, Eq)]
pub enum Command<'a> {
    Lhlo(String),
    Mail(Mail),
    Rcpt(String),
    Data,
    Bdat { bytes: u64, last: bool },
    XForward(Vec<&'a str>),
    Rset,
    Noop,
    Vrfy,
    Help,
    Quit,
}

impl Command<'_> {
    /// Whether it is a step on the way to a message.
    pub fn is_of_a_transaction(&self) -> bool {
        match self {
            Command::Mail(_)
            | Command::Rcpt(_)
            | Command::Data
            | Command::Bdat { .. }
            | Command::XForward(_) => true,
            Command::Lhlo(_)
            | Command::Rset
            | Command::Noop
            | Command::Vrfy
            | Command::Help
            | Command::Quit => false,
        }
    }
}

/// MAIL FROM with its parameters.
#[derive(Debug, PartialEq, Eq)]
pub struct Mail {
    /// Empty for the null sender.
    pub sender: String,
    /// Empty for none and for `<>`.
    pub auth: String,
    pub smtputf8: bool,
    pub eight_bit: bool,
}

/// Why a command is not carried out, as the peer is told.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    pub text: &'static str,
    /// Counts as an error of the peer's. What depends on an address does not: nor does what a
    /// pipelining peer cannot know yet.
    pub counts: bool,
}

impl Refusal {
    pub const fn error(text: &'static str) -> Refusal {
        Refusal { text, counts: true }
    }

    pub const fn excused(text: &'static str) -> Refusal {
        Refusal { text, counts: false }
    }
}

/// What every path is called while smtp-proto reads the parameters.
const STAND_IN: &str = "<path@stand-in.invalid>";

/// Reads the line `text`, given without its line end.
///
/// # Errors
/// The reply to give instead.
pub fn read(text: &str) -> Result<Command<'_>, Refusal> {
    let verb = text.split_ascii_whitespace().next().unwrap_or_default().to_ascii_uppercase();
    let arguments = text.trim_ascii_start().get(verb.len()..).unwrap_or_default();
    match verb.as_str() {
        "LHLO" => lhlo(arguments),
        "MAIL" => mail(arguments),
        "RCPT" => rcpt(arguments),
        _ if text.bytes().any(|byte| byte.is_ascii_control()) => {
            Err(Refusal::error("500 5.5.2 Control character in a command"))
        }
        "BDAT" => bdat(&arguments.split_ascii_whitespace().collect::<Vec<_>>()),
        "XFORWARD" => Ok(Command::XForward(arguments.split_ascii_whitespace().collect())),
        // RFC 2033 section 4.1.
        "HELO" | "EHLO" => Err(Refusal::error("500 5.5.1 This is LMTP, say LHLO")),
        "DATA" | "RSET" | "QUIT" if !arguments.trim_ascii().is_empty() => {
            Err(Refusal::error("501 5.5.4 No argument allowed"))
        }
        _ => without_arguments(text),
    }
}

/// Whether `line`, which was refused, is a BDAT: then nobody knows where the next command starts.
pub fn is_bdat(line: &[u8]) -> bool {
    let start = line.trim_ascii_start();
    start.get(..4).is_some_and(|verb| verb.eq_ignore_ascii_case(b"BDAT"))
}

fn bdat<'a>(words: &[&str]) -> Result<Command<'a>, Refusal> {
    let (size, last) = match words {
        [size] => (size, false),
        [size, last] if last.eq_ignore_ascii_case("LAST") => (size, true),
        _ => return Err(Refusal::error("501 5.5.4 Syntax: BDAT size [LAST]")),
    };
    match size.parse() {
        Ok(bytes) if size.bytes().all(|byte| byte.is_ascii_digit()) => {
            Ok(Command::Bdat { bytes, last })
        }
        _ => Err(Refusal::error("501 5.5.4 Bad size in BDAT")),
    }
}

/// Whatever name the peer gives itself; it is a text for people here.
fn lhlo<'a>(arguments: &str) -> Result<Command<'a>, Refusal> {
    match arguments.trim_ascii() {
        "" => Err(Refusal::error("501 5.5.4 Syntax: LHLO name")),
        name => Ok(Command::Lhlo(name.to_owned())),
    }
}

fn without_arguments(text: &str) -> Result<Command<'_>, Refusal> {
    match parse(text) {
        Ok(Request::Data) => Ok(Command::Data),
        Ok(Request::Rset) => Ok(Command::Rset),
        Ok(Request::Noop { .. }) => Ok(Command::Noop),
        Ok(Request::Vrfy { .. }) => Ok(Command::Vrfy),
        Ok(Request::Help { .. }) => Ok(Command::Help),
        Ok(Request::Quit) => Ok(Command::Quit),
        Ok(_) => Err(Refusal::error("502 5.5.1 Command not offered")),
        Err(Error::UnknownCommand) => Err(Refusal::error("500 5.5.2 Unknown command")),
        Err(_) => Err(Refusal::error("501 5.5.4 Syntax error")),
    }
}

const BAD_SENDER: Refusal = Refusal::excused("451 4.5.2 Sender address not understood");
const BAD_RECIPIENT: Refusal = Refusal::excused("451 4.5.2 Recipient address not understood");
const BAD_PARAMETER: Refusal = Refusal::error("451 4.5.4 Parameter not offered, or not understood");

fn parse(text: &str) -> Result<Request<String>, Error> {
    Request::parse(&mut format!("{text}\n").as_bytes().iter()).map(Request::into_owned)
}

/// Splits the arguments of MAIL or RCPT after `keyword` (`FROM:`, `TO:`): the address, and the
/// parameters.
fn path_after<'a>(keyword: &str, arguments: &'a str) -> Option<(String, &'a str)> {
    let arguments = arguments.trim_ascii_start();
    let is_there =
        arguments.get(..keyword.len()).is_some_and(|start| start.eq_ignore_ascii_case(keyword));
    path::read(arguments.get(keyword.len()..).filter(|_| is_there)?)
}

/// The parameters of `command` (`MAIL FROM:`, `RCPT TO:`), which stand after its path.
fn parameters(command: &str, parameters: &str) -> Result<Request<String>, Refusal> {
    if parameters.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(BAD_PARAMETER);
    }
    parse(&format!("{command}{STAND_IN}{parameters}")).map_err(|_| BAD_PARAMETER)
}

fn mail<'a>(arguments: &str) -> Result<Command<'a>, Refusal> {
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
    let auth = auth.unwrap_or_default();
    Ok(Command::Mail(Mail {
        sender,
        // A name that no account can have is nobody's.
        auth: if auth.chars().any(char::is_control) { String::new() } else { auth },
        smtputf8: from.flags & MAIL_SMTPUTF8 != 0,
        eight_bit: from.flags & MAIL_BODY_8BITMIME != 0,
    }))
}

/// Who logged in, by the parameter AUTH (RFC 4954 section 5) among `parameters`.
fn auth_parameter(parameters: &str) -> Option<String> {
    let mut words = parameters.split_ascii_whitespace().filter_map(|word| word.split_once('='));
    let (_, value) = words.rfind(|(name, _)| name.eq_ignore_ascii_case("AUTH"))?;
    xtext::decode(value)
}

fn rcpt<'a>(arguments: &str) -> Result<Command<'a>, Refusal> {
    let (recipient, rest) = path_after("TO:", arguments).ok_or(BAD_RECIPIENT)?;
    let Request::Rcpt { to } = parameters("RCPT TO:", rest)? else { return Err(BAD_PARAMETER) };
    if to != (RcptTo { address: to.address.clone(), ..RcptTo::default() }) {
        return Err(BAD_PARAMETER);
    }
    // Nobody is told of a mail to nobody.
    if recipient.is_empty() { Err(BAD_RECIPIENT) } else { Ok(Command::Rcpt(recipient)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(line: &str) -> Result<String, &'static str> {
        match read(line) {
            Ok(Command::Mail(mail)) => Ok(mail.sender),
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => Err(&refusal.text[..3]),
        }
    }

    fn recipient(line: &str) -> Result<String, &'static str> {
        match read(line) {
            Ok(Command::Rcpt(recipient)) => Ok(recipient),
            Ok(other) => panic!("{other:?}"),
            Err(refusal) => Err(&refusal.text[..3]),
        }
    }

    #[test]
    fn senders_are_read_as_pipe_would_hand_them_over() {
        let cases = [
            ("MAIL FROM:<a@b.org>", Ok("a@b.org")),
            ("mail from: <a@b.org> size=5", Ok("a@b.org")),
            ("MAIL FROM:<>", Ok("")),
            ("MAIL FROM:<> BODY=8BITMIME", Ok("")),
            ("MAIL FROM:<postmaster>", Ok("postmaster")),
            ("MAIL FROM:<root@[192.0.2.1]> SIZE=7", Ok("root@[192.0.2.1]")),
            ("MAIL FROM:<\"a SIZE=x> b\"@c.org> SIZE=7", Ok("a SIZE=x> b@c.org")),
            ("MAIL FROM:<\"a\u{1b}\tb\"@c.org>", Ok("a\u{1b}\tb@c.org")),
            ("MAIL FROM:<a\0@c.org>", Err("451")),
            ("MAIL FROM:<a", Err("451")),
            ("MAIL FROM:a@b.org", Err("451")),
            ("MAIL FROM", Err("451")),
            ("MAIL FROM:", Err("451")),
            ("MAIL", Err("451")),
            ("MAIL TO:<a@b.org>", Err("451")),
            ("MAIL FROM:<é@b.org>", Ok("é@b.org")),
            ("MAIL FROM:<é@b.org> SMTPUTF8", Ok("é@b.org")),
            ("MAIL FROM:<a@b.org> BODY=BINARYMIME", Err("451")),
            ("MAIL FROM:<a@b.org> RET=FULL", Err("451")),
            ("MAIL FROM:<a@b.org> FOO=1", Err("451")),
            ("MAIL FROM:<a@b.org> SIZE=x", Err("451")),
            ("MAIL FROM:<a@b.org> SIZE=1\t\u{7}", Err("451")),
            ("MAIL FROM:<a@b.org> BODY=9BIT", Err("451")),
            ("MAIL FROM:<a@b.org> AUTH=a+0Ab", Ok("a@b.org")),
        ];
        for (line, expected) in cases {
            assert_eq!(sender(line), expected.map(str::to_owned), "{line}");
        }
    }

    #[test]
    fn recipients_are_read_as_pipe_would_hand_them_over() {
        let cases = [
            ("RCPT TO:<scuba+x@mail.axial.net>", Ok("scuba+x@mail.axial.net")),
            ("RCPT TO:<Postmaster>", Ok("Postmaster")),
            ("RCPT TO:<scuba>", Ok("scuba")),
            ("RCPT TO:<>", Err("451")),
            ("RCPT TO:<\"\">", Err("451")),
            ("RCPT TO:<a@b.org> NOTIFY=NEVER", Err("451")),
            ("RCPT TO:<a@b.org> ORCPT=rfc822;a@b.org", Err("451")),
            ("RCPT TO", Err("451")),
            ("RCPT FROM:<a@b.org>", Err("451")),
        ];
        for (line, expected) in cases {
            assert_eq!(recipient(line), expected.map(str::to_owned), "{line}");
        }
    }

    #[test]
    fn an_authenticated_name_with_control_characters_is_nobodys() {
        let Ok(Command::Mail(mail)) = read("MAIL FROM:<a@b.org> AUTH=a+0Ab") else {
            panic!("refused")
        };
        assert_eq!(mail.auth, "");
    }

    #[test]
    fn a_peer_may_call_itself_what_it_likes() {
        for name in ["mx", "mail_host", "[192.0.2.1]", "two words", &"x".repeat(2000)] {
            assert_eq!(read(&format!("LHLO {name}")), Ok(Command::Lhlo(name.to_owned())));
        }
        assert!(read("LHLO").is_err() && read("LHLO ").is_err());
    }

    #[test]
    fn the_parameters_of_mail_are_read() {
        let line = "MAIL FROM:<a@b.org> SIZE=1000 BODY=8BITMIME SMTPUTF8 AUTH=l+C3+A9a+2Bx";
        let mail = Mail {
            sender: "a@b.org".into(),
            auth: "léa+x".into(),
            smtputf8: true,
            eight_bit: true,
        };
        assert_eq!(read(line), Ok(Command::Mail(mail)));
    }

    #[test]
    fn a_chunk_has_an_exact_size() {
        assert_eq!(read("bdat 5 last"), Ok(Command::Bdat { bytes: 5, last: true }));
        assert_eq!(read("BDAT 0"), Ok(Command::Bdat { bytes: 0, last: false }));
        assert_eq!(
            read("BDAT 18446744073709551615"),
            Ok(Command::Bdat { bytes: u64::MAX, last: false })
        );
        for wrong in [
            "BDAT",
            "BDAT x",
            "BDAT +5",
            "BDAT -1",
            "BDAT 5 FIRST",
            "BDAT 5 LAST x",
            "BDAT 184467440737095516155",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
            assert!(is_bdat(wrong.as_bytes()));
        }
    }
}
