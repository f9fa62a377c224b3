//! XFORWARD: what Postfix says about the client it got a message from (Postfix's XFORWARD_README
//! and src/smtpd/smtpd.c). The attributes hold for one transaction: after its end, RSET and LHLO
//! included, they are gone.

use super::ServerReply;
use crate::xtext;
use onedrop_core::text;

/// The names offered in the reply to LHLO.
pub const ATTRIBUTES: &str = "NAME ADDR PORT PROTO HELO SOURCE IDENT";

/// Longer values are refused, as Postfix does.
const LONGEST_VALUE: usize = 255;
const LONGEST_PROTO: usize = 64;

/// The client from which Postfix got the message. All empty for a message that was submitted on its
/// own host; otherwise each is empty when unknown. Printable ASCII without what means something in
/// a header field (`<>()\";@` are `?`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SmtpClient {
    pub name: String,
    /// Without brackets; `IPv6:` in front of an IPv6 address.
    pub addr: String,
    pub helo: String,
}

/// The attributes given since the last transaction.
#[derive(Debug, Clone, Default)]
pub struct Forwarded {
    client: SmtpClient,
    /// The peer's queue id; empty when unknown.
    pub queue_id: String,
}

impl Forwarded {
    /// Takes the `attribute=value` words of one command. On error nothing was taken, and the reply
    /// says which part is wrong.
    pub fn take(&mut self, words: &[&str]) -> Result<(), ServerReply> {
        if words.is_empty() {
            return Err(ServerReply::XforwardSyntax);
        }
        let mut changed = self.clone();
        for word in words {
            let (name, value) = word.split_once('=').ok_or(ServerReply::XforwardWord)?;
            if value.is_empty() || value.len() > LONGEST_VALUE {
                return Err(ServerReply::XforwardValue);
            }
            // Postfix before 2.3 sent values unencoded.
            let decoded = xtext::decode(value).unwrap_or_else(|| value.to_owned());
            changed.set(&name.to_ascii_uppercase(), harmless(&decoded))?;
        }
        *self = changed;
        Ok(())
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), ServerReply> {
        let value = if value.eq_ignore_ascii_case("[UNAVAILABLE]") { String::new() } else { value };
        match name {
            "NAME" => self.client.name = value,
            "ADDR" => self.client.addr = value,
            "HELO" => self.client.helo = value,
            "IDENT" => self.queue_id = value,
            // Nothing follows from these.
            "PORT" if value.bytes().all(|byte| byte.is_ascii_digit()) => {}
            "PORT" => return Err(ServerReply::XforwardPort),
            "PROTO" if value.len() <= LONGEST_PROTO => {}
            "PROTO" => return Err(ServerReply::XforwardProto),
            "SOURCE" if ["LOCAL", "REMOTE", ""].contains(&&*value.to_ascii_uppercase()) => {}
            "SOURCE" => return Err(ServerReply::XforwardSource),
            _ => return Err(ServerReply::XforwardName),
        }
        Ok(())
    }

    /// The client. Without an address the message was submitted where the peer runs, and the rest
    /// says nothing (XFORWARD_README, server operation).
    pub fn client(&self) -> SmtpClient {
        if self.client.addr.is_empty() { SmtpClient::default() } else { self.client.clone() }
    }
}

/// `value` as it may stand in a header field or a log line.
pub fn harmless(value: &str) -> String {
    text::ascii(value).replace(|c| " <>()\\\";@".contains(c), "?")
}
