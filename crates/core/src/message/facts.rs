//! What the ledger records of a message besides its identity. `mail-parser` reads it from the
//! header block. The values are for display: decoded UTF-8 without control characters, bounded, and
//! never the source of a key. If the parser panics, the facts are empty and the delivery goes on.

use std::panic::{AssertUnwindSafe, catch_unwind};

use mail_parser::{Address, HeaderName, HeaderValue, MessageParser};

use super::Message;
use super::fields::split;
use super::parts::{self, MOST_READ, PartFact, clean, parsable};

/// Only this many bytes of a header block are parsed.
const LONGEST_HEADER: usize = 256 * 1024;
/// Further addresses of a message are not recorded.
const MOST_ADDRESSES: usize = 1000;
/// What is read of a header.
const FIELDS: [&[u8]; 10] = [
    b"from",
    b"sender",
    b"reply-to",
    b"to",
    b"cc",
    b"bcc",
    b"subject",
    b"date",
    b"in-reply-to",
    b"references",
];

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    pub subject: Option<String>,
    /// The Date field, in seconds since 1970.
    pub date: Option<i64>,
    /// Ids in angle brackets, separated by blanks.
    pub in_reply_to: Option<String>,
    /// Ids in angle brackets, separated by blanks.
    pub references: Option<String>,
    pub addresses: Vec<AddressFact>,
    pub parts: Vec<PartFact>,
}

/// One address of a header field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressFact {
    /// The field in lower case: `from`, `sender`, `reply-to`, `to`, `cc`, `bcc`.
    pub role: &'static str,
    pub name: Option<String>,
    pub address: Option<String>,
}

impl Facts {
    pub(super) fn of(bytes: &[u8]) -> Facts {
        let (header, _) = split(bytes);
        let header = &header[..header.len().min(LONGEST_HEADER)];
        // Releases of mail-parser have panicked on malformed input; that must not end a delivery.
        let mut facts = catch_unwind(AssertUnwindSafe(|| header_facts(header))).unwrap_or_default();
        facts.parts = catch_unwind(AssertUnwindSafe(|| parts::scan(bytes))).unwrap_or_default();
        facts
    }
}

/// The addresses of the From field in lower case; none unless there is exactly one From field and
/// two parsers would read the same address in it.
pub fn from_addresses(message: &Message) -> Vec<String> {
    let mut from = message.fields().filter(|field| field.is(b"from"));
    let (Some(field), None) = (from.next(), from.next()) else { return Vec::new() };
    // Parsers disagree on a second address in a comment, group or quoted string, on control
    // characters, and on an address that is encoded, has blanks or lacks a part: all are rejected.
    let value = field.unfolded();
    if memchr::memchr_iter(b'@', &value).count() != 1
        || value.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t')
    {
        return Vec::new();
    }
    let unfolded = [b"From: ", &value[..], b"\n"].concat();
    let facts = catch_unwind(AssertUnwindSafe(|| header_facts(&unfolded))).unwrap_or_default();
    let addresses = facts.addresses.into_iter().filter_map(|fact| fact.address);
    addresses
        .filter(|address| memchr::memmem::find(&value, address.as_bytes()).is_some())
        .filter(|address| {
            !address.starts_with('@') && !address.ends_with('@') && !address.contains(' ')
        })
        .map(|address| address.to_lowercase())
        .collect()
}

fn header_facts(header: &[u8]) -> Facts {
    let header = parsable(header, &FIELDS, &mut { MOST_READ });
    let parser = MessageParser::new()
        .with_address_headers()
        .with_date_headers()
        .header_text(HeaderName::Subject)
        .header_id(HeaderName::InReplyTo)
        .header_id(HeaderName::References)
        .default_header_ignore();
    let Some(parsed) = parser.parse_headers(&header) else { return Facts::default() };
    let mut facts = Facts::default();
    for header in parsed.headers() {
        match (&header.name, &header.value) {
            (HeaderName::Subject, HeaderValue::Text(text)) => {
                facts.subject.get_or_insert_with(|| clean(text));
            }
            (HeaderName::Date, HeaderValue::DateTime(date)) => {
                facts.date.get_or_insert_with(|| date.to_timestamp());
            }
            (HeaderName::InReplyTo, value) => set_ids(&mut facts.in_reply_to, value),
            (HeaderName::References, value) => set_ids(&mut facts.references, value),
            (name, HeaderValue::Address(address)) => {
                if let Some(role) = role(name) {
                    add_addresses(&mut facts.addresses, role, address);
                }
            }
            _ => {}
        }
    }
    facts
}

fn role(name: &HeaderName<'_>) -> Option<&'static str> {
    match name {
        HeaderName::From => Some("from"),
        HeaderName::Sender => Some("sender"),
        HeaderName::ReplyTo => Some("reply-to"),
        HeaderName::To => Some("to"),
        HeaderName::Cc => Some("cc"),
        HeaderName::Bcc => Some("bcc"),
        _ => None,
    }
}

fn add_addresses(into: &mut Vec<AddressFact>, role: &'static str, address: &Address<'_>) {
    for one in address.iter() {
        if into.len() == MOST_ADDRESSES {
            return;
        }
        let text = |value: &Option<std::borrow::Cow<'_, str>>| {
            value.as_deref().map(clean).filter(|t| !t.is_empty())
        };
        let fact = AddressFact { role, name: text(&one.name), address: text(&one.address) };
        if fact.name.is_some() || fact.address.is_some() {
            into.push(fact);
        }
    }
}

fn set_ids(into: &mut Option<String>, value: &HeaderValue<'_>) {
    let Some(ids) = value.as_text_list() else { return };
    let ids: Vec<String> = ids.iter().map(|id| format!("<{id}>")).collect();
    into.get_or_insert_with(|| clean(&ids.join(" ")));
}
