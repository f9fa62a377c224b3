//! What is on record about a message, as `onedrop trace` shows it.

use std::time::SystemTime;

use crate::directory::Destination;
use crate::message::{AddressFact, PartFact};
use crate::receipt::Receipt;

/// Maximum number of attempts at a message that are shown, the newest, and of those that recorded
/// none.
pub const ATTEMPTS: usize = 1000;

/// The status of an attempt that delivered.
pub const PLAIN_STATUS: &str = "2.0.0";

/// What an attempt says that stored a copy, or handed it over, and has no more to say. No row
/// repeats it.
pub fn stored_text(destination: &Destination, receipt: &Receipt) -> String {
    match receipt.is_handed() {
        // Its owner's filters decide in which mailbox it lies.
        true => format!("handed over account={} {receipt}", destination.account),
        false => format!("stored {destination} {receipt}"),
    }
}

/// Which messages are asked for: all that is given must hold. Without a name and without a time,
/// all of them.
#[derive(Debug, Clone, Copy, Default)]
pub struct TraceFilter<'a> {
    /// This message alone, by its row; then `name` and `since` say nothing.
    pub message: Option<i64>,
    /// A Message-ID (with or without its brackets), a queue id, a recipient in any case, or an
    /// account. An empty one names nothing.
    pub name: Option<&'a str>,
    /// Recorded since then; an attempt that came to record no message, begun since then.
    pub since: Option<SystemTime>,
    /// Part of the envelope sender or of an address in From, whatever its case.
    pub sender: Option<&'a str>,
    /// Part of the subject, whatever its case.
    pub subject: Option<&'a str>,
    /// Not all is done: a copy is not placed, or a recipient's last attempt was not "delivered".
    pub failed: bool,
}

impl TraceFilter<'_> {
    pub fn of(name: &str) -> TraceFilter<'_> {
        TraceFilter { name: Some(name), ..TraceFilter::default() }
    }
}

/// A message with its copies and attempts, as `onedrop trace` shows it.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct Trace {
    pub message: i64,
    pub message_id: Option<String>,
    pub digest: String,
    pub recorded_at: String,
    pub subject: Option<String>,
    pub date: Option<String>,
    pub size_bytes: i64,
    pub in_reply_to: Option<String>,
    pub references: Option<String>,
    pub collision: bool,
    pub raw_kept: bool,
    pub addresses: Vec<TraceAddress>,
    pub parts: Vec<TracePart>,
    pub copies: Vec<TraceCopy>,
    pub attempts: Vec<TraceAttempt>,
    /// How many older ones are on record.
    pub attempts_left: u64,
}

#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct TraceAddress {
    pub role: String,
    pub name: Option<String>,
    pub address: Option<String>,
}

#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct TracePart {
    pub path: String,
    pub content_type: String,
    pub name: Option<String>,
    pub size_bytes: i64,
}

#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct TraceCopy {
    pub account: String,
    /// The mailbox that is meant. Only a look shows where a copy lies that was handed over.
    pub mailbox: String,
    /// `placed`, `handed over`, `elsewhere`, `leased`, `in doubt`, `due` or `free`.
    pub state: String,
    pub receipt: Option<String>,
    pub placed_at: Option<String>,
    pub epoch: i64,
    /// The owner of the last lease; empty once it is placed.
    pub owner: String,
    pub leased_until: Option<String>,
    pub nul_replaced: bool,
    pub found_by_look: bool,
    pub wrapped: bool,
    /// Why a shared copy could not be placed whose bytes are kept until it is.
    pub kept: Option<String>,
    /// From when on `onedrop settle` has the copy, or had it.
    pub due_at: Option<String>,
    /// The receipt is that of the copy which the sender's own mail program saved.
    pub by_sender: bool,
}

#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct TraceAttempt {
    pub started_at: String,
    pub recipient: String,
    pub sender: String,
    pub queue_id: String,
    pub host: String,
    pub pid: i64,
    /// `None`: no end is on record; the process is at work or was killed.
    pub duration_ms: Option<i64>,
    pub outcome: Option<String>,
    /// In a word; see [`Reason`](crate::outcome::Reason).
    pub reason: Option<String>,
    pub status: Option<String>,
    pub text: Option<String>,
}

impl From<&AddressFact> for TraceAddress {
    fn from(fact: &AddressFact) -> Self {
        TraceAddress {
            role: fact.role.to_owned(),
            name: fact.name.clone(),
            address: fact.address.clone(),
        }
    }
}

impl From<&PartFact> for TracePart {
    fn from(fact: &PartFact) -> Self {
        TracePart {
            path: fact.path.clone(),
            content_type: fact.content_type.clone(),
            name: fact.name.clone(),
            size_bytes: fact.size_bytes as i64,
        }
    }
}
