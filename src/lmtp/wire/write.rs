//! An envelope as commands for an LMTP server, which reads back exactly what was meant; or the
//! envelope cannot be said, and there are no commands.

use super::path;
use crate::envelope::Envelope;
use crate::net::xtext;

/// What the server takes as one line, its line end included.
const LONGEST_COMMAND: usize = super::LONGEST_LINE;
/// XFORWARD's longest value (Postfix's XFORWARD_README).
const LONGEST_IDENT: usize = 255;

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
        lines.push(format!("RCPT TO:{}", path::written(recipient)?));
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
        sender => path::written(sender)?,
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

#[cfg(test)]
mod tests {
    use super::*;

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
        let expected = "XFORWARD IDENT=4Q+3D\r\nMAIL FROM:<lé+sa@gmail.com> SIZE=8 BODY=8BITMIME \
                        SMTPUTF8 AUTH=do+20ug+2Bx@b\r\n\
                        RCPT TO:<doug@b.org>\r\nRCPT TO:<\"a b\"@c.org>\r\nDATA\r\n";
        assert_eq!(String::from_utf8_lossy(&said.bytes), expected);
        let bounce = commands(&Envelope::default(), &["doug@b.org"], &[b"\n"]).expect("commands");
        assert_eq!(
            String::from_utf8_lossy(&bounce.bytes),
            "MAIL FROM:<> SIZE=1\r\nRCPT TO:<doug@b.org>\r\nDATA\r\n"
        );
    }

    #[test]
    fn what_does_not_fit_on_a_line_is_not_said() {
        let newline = Envelope { sender: "a\r\nRSET@b.org".into(), ..Envelope::default() };
        assert!(commands(&newline, &["doug@b.org"], &[]).is_none());
        let long = format!("{}@b.org", "x".repeat(LONGEST_COMMAND));
        assert!(commands(&Envelope::default(), &[&long], &[]).is_none());
    }
}
