//! What goes to an LMTP server as bytes: an envelope as commands, a message as what follows DATA.
//! The server reads back exactly what was meant, or the envelope cannot be said and there are no
//! commands.

use std::io::{self, Write};

use crate::envelope::Envelope;
use crate::net::xtext;

/// What the server takes as one line, its line end included.
const LONGEST_COMMAND: usize = super::LONGEST_LINE;
/// XFORWARD's longest value (Postfix's XFORWARD_README).
const LONGEST_IDENT: usize = 255;
/// Written at once.
const BLOCK: usize = 64 * 1024;

/// What `${sender}` is for the null sender where pipe(8) was not told otherwise (its attribute
/// `null_sender`).
const PIPES_NULL_SENDER: &str = "MAILER-DAEMON";

/// The commands from the queue id to DATA, for all `recipients`; `None` for an envelope that LMTP
/// cannot say, or not so that the server understands the same. XFORWARD is left out without a queue
/// id. Each has one reply.
pub fn commands(envelope: &Envelope, recipients: &[&str], pieces: &[&[u8]]) -> Option<Commands> {
    let ident = Some(xtext::encode(&envelope.queue_id))
        .filter(|ident| (1..=LONGEST_IDENT).contains(&ident.len()));
    let mut lines = Vec::new();
    lines.extend(ident.as_ref().map(|ident| format!("XFORWARD IDENT={ident}")));
    lines.push(mail(envelope, recipients, pieces)?);
    for recipient in recipients {
        lines.push(format!("RCPT TO:{}", path(recipient)?));
    }
    lines.push("DATA".to_owned());
    let says_all = lines
        .iter()
        .all(|line| line.len() + 2 <= LONGEST_COMMAND && !line.contains(char::is_control));
    let bytes = says_all.then(|| lines.join("\r\n") + "\r\n")?.into_bytes();
    Some(Commands { bytes, has_xforward: ident.is_some() })
}

/// Commands to be sent as they are, ahead of their replies (RFC 2920).
#[derive(Debug)]
pub struct Commands {
    pub bytes: Vec<u8>,
    pub has_xforward: bool,
}

fn mail(envelope: &Envelope, recipients: &[&str], pieces: &[&[u8]]) -> Option<String> {
    let sender = match envelope.sender.as_str() {
        "" => "<>".to_owned(),
        sender if sender.eq_ignore_ascii_case(PIPES_NULL_SENDER) => "<>".to_owned(),
        sender => path(sender)?,
    };
    // An estimate by RFC 1870 (section 6.1). With LF alone for a line's end it is what
    // limits.message_bytes counts, so a message that passed the limit here passes it there.
    let size: usize = pieces.iter().map(|piece| piece.len()).sum();
    let mut line = format!("MAIL FROM:{sender} SIZE={size}");
    if !pieces.iter().all(|piece| piece.is_ascii()) {
        line.push_str(" BODY=8BITMIME");
    }
    if !envelope.sender.is_ascii() || recipients.iter().any(|recipient| !recipient.is_ascii()) {
        line.push_str(" SMTPUTF8");
    }
    if !envelope.sasl_username.is_empty() {
        line.push_str(&format!(" AUTH={}", xtext::encode(&envelope.sasl_username)));
    }
    Some(line)
}

/// `address` as a path (RFC 5321 section 4.1.2): the local part is quoted where it has to be, as
/// pipe(8) gives it unquoted.
fn path(address: &str) -> Option<String> {
    if address.eq_ignore_ascii_case("postmaster") {
        return Some(format!("<{address}>"));
    }
    let (local, domain) = address.rsplit_once('@')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c) || !c.is_ascii();
    let literal = |c: char| c.is_ascii_alphanumeric() || "-.:".contains(c);
    let is_literal = domain.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let says_domain =
        is_literal.map_or_else(|| domain.chars().all(plain), |inside| inside.chars().all(literal));
    if domain.is_empty() || local.is_empty() || !says_domain {
        return None;
    }
    let atom =
        |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(c) || !c.is_ascii();
    if local.split('.').all(|word| !word.is_empty() && word.chars().all(atom)) {
        return Some(format!("<{address}>"));
    }
    let quoted = local.replace('\\', "\\\\").replace('"', "\\\"");
    Some(format!("<\"{quoted}\"@{domain}>"))
}

/// Writes a message as what follows DATA, to its final dot: lines end in CRLF, dots at their start
/// are doubled (RFC 5321 section 4.5.2), a CR within a line stays what it is. The last write holds
/// the final dot: where it fails, the dot's line end was not sent.
pub fn write_data(pieces: &[&[u8]], out: &mut impl Write) -> io::Result<()> {
    let mut block = Vec::with_capacity(BLOCK);
    for line in pieces.iter().flat_map(|piece| piece.split_inclusive(|byte| *byte == b'\n')) {
        if line.starts_with(b".") {
            block.push(b'.');
        }
        let text =
            line.strip_suffix(b"\n").map_or(line, |text| text.strip_suffix(b"\r").unwrap_or(text));
        block.extend_from_slice(text);
        block.extend_from_slice(b"\r\n");
        if block.len() >= BLOCK {
            out.write_all(&block)?;
            block.clear();
        }
    }
    block.extend_from_slice(b".\r\n");
    out.write_all(&block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lmtp::wire::data::DotReader;

    #[test]
    fn the_server_reads_what_was_written() {
        let cases: [(&[u8], &[u8]); 8] = [
            (b"A: b\n\n.\n..\n.x\ny\n", b"A: b\n\n.\n..\n.x\ny\n"),
            (b"a\r\n.\r\nb\r\n", b"a\n.\nb\n"),
            (b"a\rb\r\r\n\0\x80\xff\n", b"a\rb\r\n\0\x80\xff\n"),
            (b"a\r.\r\n", b"a\r.\n"),
            (b"no end", b"no end\n"),
            (b"cr\r", b"cr\r\n"),
            (b".", b".\n"),
            (b"", b""),
        ];
        for (message, expected) in cases {
            let (mut wire, mut read) = (Vec::new(), Vec::new());
            write_data(&[message], &mut wire).expect("memory");
            assert_eq!(
                DotReader::new().feed(&wire, &mut read),
                Some(wire.len()),
                "{}",
                message.escape_ascii()
            );
            assert_eq!(read.escape_ascii().to_string(), expected.escape_ascii().to_string());
        }
    }

    #[test]
    fn long_messages_are_written_in_blocks() {
        let message = b"a line of the message\n".repeat(10_000);
        let (mut wire, mut read) = (Vec::new(), Vec::new());
        write_data(&[&message[..22], &message[22..]], &mut wire).expect("memory");
        assert_eq!(DotReader::new().feed(&wire, &mut read), Some(wire.len()));
        assert!(read == message);
    }

    #[test]
    fn an_envelope_becomes_commands() {
        let envelope = Envelope {
            sender: "lé+sa@gmail.com".into(),
            queue_id: "4Q=".into(),
            sasl_username: "do ug+x@b".into(),
            ..Envelope::default()
        };
        let said = commands(&envelope, &["doug@b.org", "a b@c.org"], &[b"X: y\n", b"\n\xe9\n"])
            .expect("commands");
        let expected = "XFORWARD IDENT=4Q+3D\r\nMAIL FROM:<lé+sa@gmail.com> SIZE=8 BODY=8BITMIME SMTPUTF8 AUTH=do+20ug+2Bx@b\r\n\
                        RCPT TO:<doug@b.org>\r\nRCPT TO:<\"a b\"@c.org>\r\nDATA\r\n";
        assert_eq!(String::from_utf8_lossy(&said.bytes), expected);
        let bounce = commands(&Envelope::default(), &["doug@b.org"], &[b"\n"]).expect("commands");
        assert_eq!(
            String::from_utf8_lossy(&bounce.bytes),
            "MAIL FROM:<> SIZE=1\r\nRCPT TO:<doug@b.org>\r\nDATA\r\n"
        );
    }

    #[test]
    fn an_address_is_said_so_that_it_stays_one_or_not_at_all() {
        let cases = [
            ("scuba+x@mail.axial.net", Some("<scuba+x@mail.axial.net>")),
            ("o'brien@b.org", Some("<o'brien@b.org>")),
            ("a..b@c.org", Some("<\"a..b\"@c.org>")),
            ("a\"b\\@c.org", Some("<\"a\\\"b\\\\\"@c.org>")),
            ("@relay:a@b.org", Some("<\"@relay:a\"@b.org>")),
            ("root@[IPv6:2001:db8::1]", Some("<root@[IPv6:2001:db8::1]>")),
            ("Postmaster", Some("<Postmaster>")),
            ("doug", None),
            ("@b.org", None),
            ("a@", None),
            ("a@b.org> SIZE=1", None),
            ("<a@b.org>", None),
        ];
        for (address, expected) in cases {
            assert_eq!(path(address).as_deref(), expected, "{address}");
        }
        let newline = Envelope { sender: "a\r\nRSET@b.org".into(), ..Envelope::default() };
        assert!(commands(&newline, &["doug@b.org"], &[]).is_none());
        let long = format!("{}@b.org", "x".repeat(LONGEST_COMMAND));
        assert!(commands(&Envelope::default(), &[&long], &[]).is_none());
    }
}
