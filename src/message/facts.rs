//! What the ledger records of a message beside its identity, from the header block alone, by
//! `mail-parser`. Display values: decoded, clean UTF-8 without NUL, bounded; never the source of a
//! key. A parser that panics costs the facts, not the message.

use std::panic::{AssertUnwindSafe, catch_unwind};

use mail_parser::{Address, HeaderName, HeaderValue, MessageParser};

use super::parts::{self, PartFact, clean};
use super::{Message, split};

/// The longest header block that is parsed; of a longer one only the start counts.
const LONGEST_HEADER: usize = 256 * 1024;
/// The most addresses kept of one message.
const MOST_ADDRESSES: usize = 1000;

/// Facts of one message.
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
        // mail-parser has panicked on odd input before; its reports are read, its panics must not
        // end a delivery.
        let mut facts = catch_unwind(AssertUnwindSafe(|| header_facts(header))).unwrap_or_default();
        facts.parts = catch_unwind(AssertUnwindSafe(|| parts::scan(bytes))).unwrap_or_default();
        facts
    }
}

/// The mailbox in the From field, in lower case, if there is exactly one such field and one address
/// in it.
pub fn from_addresses(message: &Message) -> Vec<String> {
    let mut from = message.fields().filter(|field| field.is(b"from"));
    let (Some(field), None) = (from.next(), from.next()) else { return Vec::new() };
    // What two parsers may read in two ways is believed in neither: comments, groups and quoted
    // strings with an address of their own, control characters; an address that does not stand
    // there byte for byte, has blanks or lacks a part.
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
    let parser = MessageParser::new()
        .with_address_headers()
        .with_date_headers()
        .header_text(HeaderName::Subject)
        .header_id(HeaderName::InReplyTo)
        .header_id(HeaderName::References)
        .default_header_ignore();
    let Some(parsed) = parser.parse_headers(header) else { return Facts::default() };
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
    let ids: Vec<String> = match value {
        HeaderValue::Text(id) => vec![format!("<{id}>")],
        HeaderValue::TextList(ids) => ids.iter().map(|id| format!("<{id}>")).collect(),
        _ => return,
    };
    into.get_or_insert_with(|| clean(&ids.join(" ")));
}
