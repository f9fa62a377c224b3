//! One command line, read. smtp-proto knows the verbs, the paths and the parameters of MAIL; decided here is what it
//! gets wrong or leaves open: domain literals (it refuses them), `<postmaster>` and `<>` (it gives the same for both),
//! BDAT (a size too large for it wraps around), arguments where none belong, parameters that were not offered. Addresses
//! beyond ASCII need no SMTPUTF8: Postfix says them as they came where its smtputf8_enable is off.

use smtp_proto::{Error, MAIL_BODY_7BIT, MAIL_BODY_8BITMIME, MAIL_SMTPUTF8, MailFrom, RcptTo, Request};

/// A command that was understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command<'a> {
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
            Command::Mail(_) | Command::Rcpt(_) | Command::Data | Command::Bdat { .. } | Command::XForward(_) => true,
            Command::Lhlo(_) | Command::Rset | Command::Noop | Command::Vrfy | Command::Help | Command::Quit => false,
        }
    }
}

/// MAIL FROM with its parameters.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mail {
    /// Empty for the null sender.
    pub sender: String,
    /// Empty for none and for `<>`.
    pub auth: String,
    pub smtputf8: bool,
    pub eight_bit: bool,
}

/// Why a command is not carried out, as the peer is told.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub text: &'static str,
    /// Counts as an error of the peer's. What depends on an address does not: nor does what a pipelining peer cannot
    /// know yet.
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

/// What a domain literal is called while smtp-proto reads the line.
const STAND_IN: &str = "literal.invalid";

/// Reads the line `text`, given without its line end.
///
/// # Errors
/// The reply to give instead.
pub(super) fn read(text: &str) -> Result<Command<'_>, Refusal> {
    if text.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(Refusal::error("500 5.5.2 Control character in a command"));
    }
    let mut words = text.split_ascii_whitespace();
    match words.next().unwrap_or_default().to_ascii_uppercase().as_str() {
        "BDAT" => bdat(&words.collect::<Vec<_>>()),
        "XFORWARD" => Ok(Command::XForward(words.collect())),
        // RFC 2033 section 4.1.
        "HELO" | "EHLO" => Err(Refusal::error("500 5.5.1 This is LMTP, say LHLO")),
        "DATA" | "RSET" | "QUIT" if words.next().is_some() => Err(Refusal::error("501 5.5.4 No argument allowed")),
        _ => request(text),
    }
}

/// Whether `line`, which was refused, is a BDAT: then nobody knows where the next command starts.
pub(super) fn is_bdat(line: &[u8]) -> bool {
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
        Ok(bytes) if size.bytes().all(|byte| byte.is_ascii_digit()) => Ok(Command::Bdat { bytes, last }),
        _ => Err(Refusal::error("501 5.5.4 Bad size in BDAT")),
    }
}

fn request(text: &str) -> Result<Command<'_>, Refusal> {
    match parse(text).map_err(|error| refused(&error))? {
        Request::Lhlo { host } => Ok(Command::Lhlo(host)),
        Request::Mail { from } => mail(text, from).map(Command::Mail),
        Request::Rcpt { to } => rcpt(text, to),
        Request::Data => Ok(Command::Data),
        Request::Rset => Ok(Command::Rset),
        Request::Noop { .. } => Ok(Command::Noop),
        Request::Vrfy { .. } => Ok(Command::Vrfy),
        Request::Help { .. } => Ok(Command::Help),
        Request::Quit => Ok(Command::Quit),
        Request::Helo { .. }
        | Request::Ehlo { .. }
        | Request::Bdat { .. }
        | Request::Auth { .. }
        | Request::Expn { .. }
        | Request::Etrn { .. }
        | Request::Atrn { .. }
        | Request::Burl { .. }
        | Request::StartTls => Err(Refusal::error("502 5.5.1 Command not offered")),
    }
}

fn refused(error: &Error) -> Refusal {
    match error {
        Error::UnknownCommand => Refusal::error("500 5.5.2 Unknown command"),
        Error::InvalidSenderAddress => BAD_SENDER,
        Error::InvalidRecipientAddress => BAD_RECIPIENT,
        Error::UnsupportedParameter { .. } => NOT_OFFERED,
        Error::InvalidParameter { .. } => Refusal::error("501 5.5.4 Bad parameter"),
        Error::NeedsMoreData { .. }
        | Error::SyntaxError { .. }
        | Error::ResponseTooLong
        | Error::InvalidResponse { .. } => Refusal::error("501 5.5.4 Syntax error"),
    }
}

const BAD_SENDER: Refusal = Refusal::excused("553 5.1.7 Bad sender address");
const BAD_RECIPIENT: Refusal = Refusal::excused("553 5.1.3 Bad recipient address");
const NOT_OFFERED: Refusal = Refusal::error("555 5.5.4 Parameter not offered");

fn parse(text: &str) -> Result<Request<String>, Error> {
    let parse = |text: &str| Request::parse(&mut format!("{text}\n").as_bytes().iter()).map(Request::into_owned);
    match parse(text) {
        Err(error @ (Error::InvalidSenderAddress | Error::InvalidRecipientAddress)) => {
            let Some((before, literal, after)) = literal(text) else { return Err(error) };
            let mut request = parse(&format!("{before}{STAND_IN}{after}"))?;
            match &mut request {
                Request::Mail { from: MailFrom { address, .. } } | Request::Rcpt { to: RcptTo { address, .. } }
                    if address.ends_with(STAND_IN) =>
                {
                    address.truncate(address.len() - STAND_IN.len());
                    address.push_str(literal);
                    Ok(request)
                }
                _ => Err(error),
            }
        }
        result => result,
    }
}

/// Cuts the domain literal out of a path (RFC 5321 section 4.1.3): what is before it, it, what is after it.
fn literal(text: &str) -> Option<(&str, &str, &str)> {
    let start = text.find("@[")? + 1;
    let end = start + text[start..].find("]>")? + 1;
    let literal = &text[start..end];
    let inside = &literal[1..literal.len() - 1];
    let is_plain =
        !inside.is_empty() && inside.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".:-".contains(&byte));
    is_plain.then(|| (&text[..start], literal, &text[end..]))
}

/// The address in a path that smtp-proto calls empty: `<>` and `<postmaster>`; `None` for other ways to say nothing.
fn empty_path(text: &str) -> Option<&'static str> {
    let path = text.split_once('<')?.1.split_once('>')?.0.trim();
    match path.rsplit(':').next().unwrap_or_default() {
        "" if path.is_empty() => Some(""),
        name if name.eq_ignore_ascii_case("postmaster") => Some("postmaster"),
        _ => None,
    }
}

fn mail(text: &str, from: MailFrom<String>) -> Result<Mail, Refusal> {
    let offered = MailFrom {
        address: from.address.clone(),
        flags: from.flags & (MAIL_BODY_7BIT | MAIL_BODY_8BITMIME | MAIL_SMTPUTF8),
        size: from.size,
        auth: from.auth.clone(),
        ..MailFrom::default()
    };
    if from != offered {
        return Err(NOT_OFFERED);
    }
    let sender = match from.address.as_str() {
        "" => empty_path(text).ok_or(BAD_SENDER)?.to_owned(),
        _ => from.address,
    };
    let smtputf8 = from.flags & MAIL_SMTPUTF8 != 0;
    let auth = from.auth.filter(|auth| auth != "<>").map(from_xtext).unwrap_or_default();
    if auth.chars().any(char::is_control) {
        return Err(Refusal::error("501 5.5.4 Bad AUTH"));
    }
    let eight_bit = from.flags & MAIL_BODY_8BITMIME != 0;
    Ok(Mail { sender, auth, smtputf8, eight_bit })
}

/// smtp-proto makes one character of each byte of an xtext; the bytes were UTF-8 (RFC 6533 section 3).
fn from_xtext(value: String) -> String {
    let bytes: Option<Vec<u8>> = value.chars().map(|c| u8::try_from(c).ok()).collect();
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or(value)
}

fn rcpt<'a>(text: &str, to: RcptTo<String>) -> Result<Command<'a>, Refusal> {
    if to != (RcptTo { address: to.address.clone(), ..RcptTo::default() }) {
        return Err(NOT_OFFERED);
    }
    let recipient = match to.address.as_str() {
        "" => empty_path(text).filter(|name| !name.is_empty()).ok_or(BAD_RECIPIENT)?.to_owned(),
        _ => to.address,
    };
    Ok(Command::Rcpt(recipient))
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
    fn senders_are_read_as_a_person_reads_them() {
        let cases = [
            ("MAIL FROM:<a@b.org>", Ok("a@b.org")),
            ("mail from: <a@b.org> size=5", Ok("a@b.org")),
            ("MAIL FROM:<>", Ok("")),
            ("MAIL FROM:<postmaster>", Ok("postmaster")),
            ("MAIL FROM:<\"\">", Err("553")),
            ("MAIL FROM:<@x,@y:>", Err("553")),
            ("MAIL FROM:<@x,@y:a@b.org>", Ok("a@b.org")),
            ("MAIL FROM:<\"a b\"@c.org>", Ok("a b@c.org")),
            ("MAIL FROM:<\"a..b\"@c.org>", Ok("a..b@c.org")),
            ("MAIL FROM:<\"a\\\"b\"@c.org>", Ok("a\"b@c.org")),
            ("MAIL FROM:<\"a@b\"@c.org>", Ok("a@b@c.org")),
            ("MAIL FROM:<root@[192.0.2.1]> SIZE=7", Ok("root@[192.0.2.1]")),
            ("MAIL FROM:<root@[IPv6:2001:db8::1]>", Ok("root@[IPv6:2001:db8::1]")),
            ("MAIL FROM:<root@[]>", Err("553")),
            ("MAIL FROM:<root@[a b]>", Err("553")),
            ("MAIL FROM:<\"a@[b]>\"@[c]>", Err("553")),
            ("MAIL FROM:<a>", Err("553")),
            ("MAIL FROM:<a@b@c>", Err("553")),
            ("MAIL FROM:a@b.org", Err("501")),
            ("MAIL FROM", Err("501")),
            ("MAIL", Err("501")),
            ("MAIL FROM:<é@b.org>", Ok("é@b.org")),
            ("MAIL FROM:<é@b.org> SMTPUTF8", Ok("é@b.org")),
            ("MAIL FROM:<a@b.org> BODY=BINARYMIME", Err("555")),
            ("MAIL FROM:<a@b.org> RET=FULL", Err("555")),
            ("MAIL FROM:<a@b.org> FOO=1", Err("555")),
            ("MAIL FROM:<a@b.org> SIZE=x", Err("501")),
            ("MAIL FROM:<a@b.org> BODY=9BIT", Err("501")),
            ("MAIL FROM:<a@b.org> AUTH=a+0Ab", Err("501")),
        ];
        for (line, expected) in cases {
            assert_eq!(sender(line), expected.map(str::to_owned), "{line}");
        }
    }

    #[test]
    fn recipients_are_read_as_a_person_reads_them() {
        let cases = [
            ("RCPT TO:<scuba+x@mail.axial.net>", Ok("scuba+x@mail.axial.net")),
            ("RCPT TO:<postmaster>", Ok("postmaster")),
            ("RCPT TO:<@relay:PostMaster>", Ok("postmaster")),
            ("RCPT TO:<>", Err("553")),
            ("RCPT TO:<\"\">", Err("553")),
            ("RCPT TO:<scuba>", Err("553")),
            ("RCPT TO:<scuba@[192.0.2.1]>", Ok("scuba@[192.0.2.1]")),
            ("RCPT TO:<a@b.org> NOTIFY=NEVER", Err("555")),
            ("RCPT TO:<a@b.org> ORCPT=rfc822;a@b.org", Err("555")),
            ("RCPT TO", Err("501")),
        ];
        for (line, expected) in cases {
            assert_eq!(recipient(line), expected.map(str::to_owned), "{line}");
        }
    }

    #[test]
    fn the_parameters_of_mail_are_read() {
        let line = "MAIL FROM:<a@b.org> SIZE=1000 BODY=8BITMIME SMTPUTF8 AUTH=l+C3+A9a+2Bx";
        let mail = Mail { sender: "a@b.org".into(), auth: "léa+x".into(), smtputf8: true, eight_bit: true };
        assert_eq!(read(line), Ok(Command::Mail(mail)));
    }

    #[test]
    fn a_chunk_has_an_exact_size() {
        assert_eq!(read("bdat 5 last"), Ok(Command::Bdat { bytes: 5, last: true }));
        assert_eq!(read("BDAT 0"), Ok(Command::Bdat { bytes: 0, last: false }));
        assert_eq!(read("BDAT 18446744073709551615"), Ok(Command::Bdat { bytes: u64::MAX, last: false }));
        for wrong in
            ["BDAT", "BDAT x", "BDAT +5", "BDAT -1", "BDAT 5 FIRST", "BDAT 5 LAST x", "BDAT 184467440737095516155"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
            assert!(is_bdat(wrong.as_bytes()));
        }
    }
}
