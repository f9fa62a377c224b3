//! The fields that final delivery prepends (RFC 5321 section 4.4). pipe(8) prepends its own; an
//! LMTP server has to do it itself.

use std::borrow::Cow;
use std::fmt::Write;

use jiff::Zoned;
use jiff::fmt::rfc2822;

use crate::text;

/// Marks our own Received fields, which never count for a message's identity.
pub const OUR_RECEIVED: &str = "(Onedrop) with ";

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
