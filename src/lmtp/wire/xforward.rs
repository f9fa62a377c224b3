//! XFORWARD: what Postfix says about the client it got a message from (Postfix's XFORWARD_README
//! and src/smtpd/smtpd.c). The attributes hold for one transaction: after its end, RSET and LHLO
//! included, they are gone.

use crate::net::xtext;
use crate::text;

/// The names offered in the reply to LHLO.
pub const ATTRIBUTES: &str = "NAME ADDR PORT PROTO HELO SOURCE IDENT";

/// As in Postfix: longer values are refused.
const LONGEST_VALUE: usize = 255;
const LONGEST_PROTO: usize = 64;

/// Who Postfix got the message from. All empty for a message that was submitted on its own host;
/// otherwise each is empty when unknown. Printable ASCII without what means something in a header
/// field (`<>()\";@` are `?`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Client {
    pub name: String,
    /// Without brackets; `IPv6:` in front of an IPv6 address.
    pub addr: String,
    pub port: String,
    pub proto: String,
    pub helo: String,
    /// `LOCAL` or `REMOTE`.
    pub source: String,
}

/// The attributes given since the last transaction.
#[derive(Debug, Clone, Default)]
pub struct Forwarded {
    client: Client,
    ident: String,
}

impl Forwarded {
    /// Takes the `attribute=value` words of one command.
    ///
    /// # Errors
    /// The reply, which says which part is wrong; then nothing was taken.
    pub fn take(&mut self, words: &[&str]) -> Result<(), &'static str> {
        if words.is_empty() {
            return Err("501 5.5.4 Syntax: XFORWARD attribute=value...");
        }
        let mut changed = self.clone();
        for word in words {
            let (name, value) = word.split_once('=').ok_or("501 5.5.4 attribute=value expected")?;
            if value.is_empty() || value.len() > LONGEST_VALUE {
                return Err("501 5.5.4 Attribute value missing or too long");
            }
            // Postfix before 2.3 sent values unencoded.
            let decoded = xtext::decode(value).unwrap_or_else(|| value.to_owned());
            changed.set(&name.to_ascii_uppercase(), harmless(&decoded))?;
        }
        *self = changed;
        Ok(())
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), &'static str> {
        let value = if value.eq_ignore_ascii_case("[UNAVAILABLE]") { String::new() } else { value };
        let client = &mut self.client;
        match name {
            "NAME" => client.name = value,
            "ADDR" => client.addr = value,
            "PORT" if value.bytes().all(|byte| byte.is_ascii_digit()) => client.port = value,
            "PORT" => return Err("501 5.5.4 Bad PORT"),
            "PROTO" if value.len() <= LONGEST_PROTO => client.proto = value,
            "PROTO" => return Err("501 5.5.4 Bad PROTO"),
            "HELO" => client.helo = value,
            "SOURCE" => match value.to_ascii_uppercase().as_str() {
                source @ ("LOCAL" | "REMOTE" | "") => client.source = source.to_owned(),
                _ => return Err("501 5.5.4 Bad SOURCE"),
            },
            "IDENT" => self.ident = value,
            _ => return Err("501 5.5.4 Unknown attribute name"),
        }
        Ok(())
    }

    /// The client. Without an address the message was submitted where the peer runs, and the rest
    /// says nothing (XFORWARD_README, server operation).
    pub fn client(&self) -> Client {
        if self.client.addr.is_empty() { Client::default() } else { self.client.clone() }
    }

    /// The peer's queue id; empty when unknown.
    pub fn queue_id(&self) -> &str {
        &self.ident
    }
}

/// `value` as it may stand in a header field or a log line.
pub fn harmless(value: &str) -> String {
    text::ascii(value).replace(|c| " <>()\\\";@".contains(c), "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_word_changes_nothing() {
        let mut forwarded = Forwarded::default();
        forwarded.take(&["ADDR=192.0.2.1", "IDENT=A1"]).unwrap();
        for wrong in ["FOO=1", "NAME", "NAME=", "PORT=x", "SOURCE=moon"] {
            assert!(forwarded.take(&["IDENT=B2", wrong]).is_err(), "{wrong}");
        }
        let long = format!("PROTO={}", "p".repeat(65));
        assert!(forwarded.take(&["IDENT=B2", &long]).is_err());
        let long = format!("NAME={}", "n".repeat(256));
        assert!(forwarded.take(&["IDENT=B2", &long]).is_err());
        assert!(forwarded.take(&[]).is_err());
        assert_eq!(forwarded.queue_id(), "A1");
    }

    #[test]
    fn values_are_decoded_and_made_harmless() {
        let mut forwarded = Forwarded::default();
        forwarded.take(&["name=a+2Bb+0D+0A+28x+29", "ADDR=IPv6:2001:db8::1", "HELO=1+zz"]).unwrap();
        let client = forwarded.client();
        assert_eq!(client.name, "a+b???x?");
        assert_eq!(client.addr, "IPv6:2001:db8::1");
        assert_eq!(client.helo, "1+zz");
    }

    #[test]
    fn without_an_address_the_message_is_a_local_one() {
        let mut forwarded = Forwarded::default();
        forwarded.take(&["NAME=localhost", "ADDR=[Unavailable]", "IDENT=C3"]).unwrap();
        assert_eq!(forwarded.client(), Client::default());
        assert_eq!(forwarded.queue_id(), "C3");
    }
}
