//! An envelope as commands for an LMTP server, which reads back exactly what was meant; or the
//! envelope cannot be said, and there are no commands.

use super::{LONGEST_LINE, path};
use crate::xtext;
use onedrop_core::envelope::Envelope;

/// XFORWARD's longest value (Postfix's XFORWARD_README).
const LONGEST_IDENT: usize = 255;

/// The commands from the queue id to DATA, for all `recipients`, to be sent as they are, ahead of
/// their replies (RFC 2920); `None` for an envelope that LMTP cannot say, or not so that the server
/// understands the same. Each has one reply. XFORWARD comes first, and is left out without a queue
/// id.
pub fn commands(envelope: &Envelope, recipients: &[&str], pieces: &[&[u8]]) -> Option<Vec<u8>> {
    let ident = xtext::encode(&envelope.queue_id);
    let mut lines = Vec::new();
    if (1..=LONGEST_IDENT).contains(&ident.len()) {
        lines.push(format!("XFORWARD IDENT={ident}"));
    }
    lines.push(mail(envelope, recipients, pieces)?);
    for recipient in recipients {
        lines.push(format!("RCPT TO:{}", path::written(recipient)?));
    }
    lines.push("DATA".to_owned());
    let is_sayable =
        |line: &String| line.len() + 2 <= LONGEST_LINE && !line.contains(char::is_control);
    lines.iter().all(is_sayable).then(|| (lines.join("\r\n") + "\r\n").into_bytes())
}

fn mail(envelope: &Envelope, recipients: &[&str], pieces: &[&[u8]]) -> Option<String> {
    let sender = path::of_sender(&envelope.sender)?;
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
