//! What the tests of the ports and of the protocol share: small messages, destinations, attempts.

use std::time::{Duration, Instant};

use crate::directory::Destination;
use crate::ledger::{Attempt, AttemptEnd, LeaseTerms, RandomValue};
use crate::message::{DedupBy, Message};
use crate::outcome::Reason;

pub const LEASE: LeaseTerms =
    LeaseTerms { lease: Duration::from_secs(90), join: false, due: false };
pub const JOIN: LeaseTerms = LeaseTerms { lease: Duration::from_secs(90), join: true, due: false };

/// Later than any test runs.
pub fn soon() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

/// A message whose Message-ID is `<name@example.org>`.
pub fn mail(name: &str) -> Message {
    mail_with_body(name, "Hello\r\n")
}

pub fn mail_with_body(name: &str, body: &str) -> Message {
    message(format!(
        "From: lisa@gmail.com\r\nMessage-ID: <{name}@example.org>\r\nSubject: {name}\r\n\r\n{body}"
    ))
}

pub fn message(bytes: impl Into<Vec<u8>>) -> Message {
    Message::new(bytes.into(), DedupBy::Content)
}

pub fn inbox() -> Destination {
    Destination::inbox("doug")
}

pub fn sent() -> Destination {
    Destination::sent("lisa", "Sent")
}

/// Another one at each call.
pub fn attempt(host: &str) -> Attempt {
    Attempt {
        value: RandomValue::default(),
        recipient: "doug@mail.axial.net".to_owned(),
        sender: "lisa@gmail.com".to_owned(),
        queue_id: "4Xyz12".to_owned(),
        host: host.to_owned(),
        pid: 42,
    }
}

pub fn delivered() -> AttemptEnd {
    AttemptEnd {
        outcome: "delivered",
        reason: Some(Reason::Delivered),
        status: "2.0.0".to_owned(),
        text: "stored account=doug mailbox=INBOX uid=1".to_owned(),
        duration: Duration::from_millis(7),
    }
}
