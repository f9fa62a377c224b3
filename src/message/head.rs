//! The fields that final delivery prepends (RFC 5321 section 4.4). pipe(8) prepends its own; an
//! LMTP server has to do it itself.

use std::borrow::Cow;
use std::fmt::Write;

use jiff::Zoned;
use jiff::fmt::rfc2822;

use crate::text;

/// Marks our own Received fields, which never count for a message's identity.
pub(super) const OUR_RECEIVED: &[u8] = b"(Onedrop) with ";

/// Characters of each text in the Received field.
const LONGEST: usize = 255;

/// The clauses of our Received field.
#[derive(Debug, Clone, Default)]
pub struct ReceivedClauses {
    /// The client's name in LHLO, or the original client's name and address (XFORWARD).
    pub from: String,
    /// This host.
    pub by: String,
    /// `LMTP`, `UTF8LMTP` (RFC 6531 section 4.3).
    pub protocol: &'static str,
    /// Names the delivery in our logs.
    pub id: String,
}

/// Return-Path, Delivered-To and Received, each with its line end.
pub fn trace_head(
    sender: &str,
    recipient: &str,
    received: &ReceivedClauses,
    now: &Zoned,
) -> Vec<u8> {
    let mut head = String::with_capacity(400);
    let date = rfc2822::to_string(now).unwrap_or_default();
    let ReceivedClauses { from, by, protocol, id } = received;
    // Writing to a String cannot fail.
    let _ = write!(
        head,
        "Return-Path: <{}>\nDelivered-To: {}\n\
         Received: from {}\n\tby {} (Onedrop) with {protocol} id {}\n\tfor <{}>; {date}\n",
        text::without_controls(&quoted(sender)),
        text::without_controls(recipient),
        short(from),
        short(by),
        short(id),
        short(&quoted(recipient)),
    );
    head.into_bytes()
}

/// `address` in the form for angle brackets, the local part quoted if necessary (RFC 5321 section
/// 4.1.2).
fn quoted(address: &str) -> Cow<'_, str> {
    let (local, domain) = address.split_at(address.rfind('@').unwrap_or(address.len()));
    if address.is_empty() || local.split('.').all(is_atom) {
        return Cow::Borrowed(address);
    }
    let escaped = local.replace('\\', "\\\\").replace('"', "\\\"");
    Cow::Owned(format!("\"{escaped}\"{domain}"))
}

fn is_atom(text: &str) -> bool {
    let fits =
        |c: char| c.is_ascii_alphanumeric() || !c.is_ascii() || "!#$%&'*+-/=?^_`{|}~".contains(c);
    !text.is_empty() && text.chars().all(fits)
}

/// A text cut to [`LONGEST`]. Return-Path and Delivered-To are never cut: a part of an address may
/// be another valid address.
fn short(text: &str) -> String {
    text::without_controls(text).chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{DedupBy, Identity};

    fn head(sender: &str, recipient: &str) -> Vec<u8> {
        let received = ReceivedClauses {
            from: "mx (x [1.2.3.4])".into(),
            by: "mda".into(),
            protocol: "LMTP",
            id: "4Q".into(),
        };
        let now = "2026-11-21T12:00:00+01:00[+01:00]".parse::<Zoned>().expect("a time");
        trace_head(sender, recipient, &received, &now)
    }

    #[test]
    fn the_head_is_three_fields_whatever_the_envelope_holds() {
        let expected = "Return-Path: <>\nDelivered-To: doug@b\n\
            Received: from mx (x [1.2.3.4])\n\tby mda (Onedrop) with LMTP id 4Q\n\t\
            for <doug@b>; Sat, 21 Nov 2026 12:00:00 +0100\n";
        assert_eq!(String::from_utf8_lossy(&head("", "doug@b")), expected);
        let odd = head("a\r\nBcc: x", "doug@b\n\n");
        assert_eq!(odd.iter().filter(|byte| **byte == b'\n').count(), 5);
    }

    #[test]
    fn a_local_part_is_quoted_where_necessary() {
        let cases = [
            ("", ""),
            ("a.b+c@d.org", "a.b+c@d.org"),
            ("a b@c.org", "\"a b\"@c.org"),
            ("a..b@c.org", "\"a..b\"@c.org"),
            ("a@b@c.org", "\"a@b\"@c.org"),
            ("a\"\\@c.org", "\"a\\\"\\\\\"@c.org"),
            ("a>b<@c.org", "\"a>b<\"@c.org"),
            ("a@[192.0.2.1]", "a@[192.0.2.1]"),
        ];
        for (address, expected) in cases {
            let head = String::from_utf8(head(address, "doug@b")).unwrap();
            assert!(head.starts_with(&format!("Return-Path: <{expected}>\n")), "{head}");
        }
    }

    #[test]
    fn an_address_is_never_cut() {
        let long = format!("{}@d.org", "x".repeat(2000));
        let head = String::from_utf8(head(&long, &long)).unwrap();
        assert!(
            head.starts_with(&format!("Return-Path: <{long}>\nDelivered-To: {long}\nReceived: ")),
            "{head}"
        );
        assert!(head.contains(&format!("\tfor <{}>; ", "x".repeat(LONGEST))), "{head}");
    }

    #[test]
    fn the_prepended_fields_change_no_identity_even_without_a_message_id() {
        for message in [
            &b"Message-ID: <a@b>\n\nbody\n"[..],
            b"Received: from a by b; now\nSubject: disk full\n\nx\n",
            b"\nx\n",
        ] {
            let delivered = [&head("lisa@gmail.com", "doug@b"), message].concat();
            assert_eq!(
                Identity::of(&delivered, DedupBy::Content),
                Identity::of(message, DedupBy::Content)
            );
        }
    }
}
