//! What is on record about a message, as `onedrop trace` shows it.

use std::collections::HashMap;
use std::time::SystemTime;

use super::rows::{self, SqlRow};
use super::{LedgerError, facts, open_state, receipt_state};
use crate::directory::Destination;
use crate::lock_key;
use crate::message::{AddressFact, PartFact};
use crate::outcome::Reason;
use crate::receipt::Receipt;
use crate::text;

/// Bytes of a Message-ID that are shown.
const ID_BYTES: usize = 1000;

/// So many attempts at a message are shown, the newest, and as many that recorded none.
pub const ATTEMPTS: usize = 1000;

/// The status of an attempt that delivered.
pub const PLAIN_STATUS: &str = "2.0.0";

/// What an attempt says that stored a copy and has no more to say. Its row does not repeat it
/// (`onedrop_confirm` of the schema compares).
pub fn stored_text(destination: &Destination, receipt: &Receipt) -> String {
    format!("stored {destination} {receipt}")
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
    /// The mailbox that is meant. Where one lies that was handed over, only a look tells.
    pub mailbox: String,
    /// `placed`, `handed over`, `elsewhere`, `leased`, `in doubt`, `due` or `free`.
    pub state: String,
    pub receipt: Option<String>,
    pub placed_at: Option<String>,
    pub epoch: i64,
    /// Of the last lease; nobody once it is placed.
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
    /// In a word; see [`Reason`].
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

fn address(facts::Address(role, address, name): facts::Address) -> TraceAddress {
    TraceAddress { role, name, address }
}

fn part(facts::Part(path, content_type, size_bytes, name): facts::Part) -> TracePart {
    TracePart { path, content_type, name, size_bytes }
}

/// Collects traces from the rows of an SQL engine: first the messages, then what belongs to them.
#[derive(Default)]
pub struct TraceBuilder {
    traces: Vec<Trace>,
    /// Indexes in `traces`.
    of_message: HashMap<i64, usize>,
    /// By the hash of a Message-ID, the newest message, or the attempts that recorded none.
    of_hash: HashMap<Vec<u8>, usize>,
    /// How many attempts are on record, with a message or without, by the index in `traces`.
    on_record: HashMap<(usize, bool), u64>,
}

impl TraceBuilder {
    /// The messages' row numbers.
    pub fn messages(&self) -> Vec<i64> {
        self.traces.iter().map(|trace| trace.message).collect()
    }

    /// The hashes of their Message-IDs.
    pub fn hashes(&self) -> Vec<Vec<u8>> {
        self.of_hash.keys().cloned().collect()
    }

    /// Adds a message: id, hash of the Message-ID, Message-ID, digest, time of recording, subject,
    /// date, size, In-Reply-To, References, collision, whether its bytes are kept, addresses,
    /// parts.
    pub fn message(&mut self, row: &impl SqlRow) -> Result<(), LedgerError> {
        self.of_message.insert(row.cell(0)?, self.traces.len());
        self.of_hash.entry(row.cell(1)?).or_insert(self.traces.len());
        let references: Option<String> = row.cell(9)?;
        self.traces.push(Trace {
            message: row.cell(0)?,
            message_id: row.cell::<Option<Vec<u8>>>(2)?.map(|id| text::of_bytes(&id, ID_BYTES)),
            digest: lock_key::hex(&row.cell::<Vec<u8>>(3)?),
            recorded_at: row.cell(4)?,
            subject: row.cell(5)?,
            date: row.cell(6)?,
            size_bytes: row.cell(7)?,
            in_reply_to: facts::read_in_reply_to(row.cell(8)?, references.as_deref()),
            references,
            collision: row.cell(10)?,
            raw_kept: row.cell(11)?,
            addresses: facts::read_addresses(row.cell(12)?)?.into_iter().map(address).collect(),
            parts: facts::read_parts(row.cell(13)?)?.into_iter().map(part).collect(),
            ..Trace::default()
        });
        Ok(())
    }

    /// The index of the message whose id is the row's first column.
    fn of(&self, row: &impl SqlRow) -> Result<usize, LedgerError> {
        let id: i64 = row.cell(0)?;
        self.of_message.get(&id).copied().ok_or_else(|| {
            LedgerError::Broken(format!("a row of message {id}, which was not asked for"))
        })
    }

    /// Message, account, mailbox, whether it is placed, leased, in doubt, its receipt (3), when it
    /// was placed, epoch, owner, end of the lease, the facts (2), why its bytes are kept, when
    /// it is due, whether the sender's mail program saved it, whether it is wrapped.
    pub fn copy(&mut self, row: &impl SqlRow) -> Result<(), LedgerError> {
        let placed = row.cell(3)?;
        // A receipt that cannot be read must not hide the copy.
        let receipt = rows::receipt(row, 6).ok();
        let due_at: Option<String> = row.cell(16)?;
        let state = match placed {
            true => receipt_state(receipt.as_ref()),
            false => open_state(row.cell(4)?, row.cell(5)?, due_at.is_some()),
        };
        let receipt =
            receipt.map_or_else(|| "not understood".to_owned(), |receipt| receipt.to_string());
        let copy = TraceCopy {
            account: row.cell(1)?,
            mailbox: row.cell(2)?,
            state: state.to_owned(),
            receipt: placed.then_some(receipt),
            placed_at: row.cell(9)?,
            epoch: row.cell(10)?,
            owner: if placed { String::new() } else { row.cell(11)? },
            leased_until: row.cell(12)?,
            nul_replaced: row.cell(13)?,
            found_by_look: row.cell(14)?,
            kept: row.cell(15)?,
            due_at,
            by_sender: row.cell(17)?,
            wrapped: row.cell(18)?,
        };
        let at = self.of(row)?;
        self.traces[at].copies.push(copy);
        Ok(())
    }

    /// Message (or NULL), hash of its Message-ID where there is none, begin, recipient, sender,
    /// queue id, host, process id, duration, outcome, status, text; account, mailbox and receipt
    /// (3) of the copy that it stored, where that is all there is to be said; how many there are of
    /// its message, or of those without one that have its hash; reason. One without a message
    /// belongs to the newest with this Message-ID, or is shown with the others that recorded none.
    pub fn attempt(&mut self, row: &impl SqlRow) -> Result<(), LedgerError> {
        let mut attempt = TraceAttempt {
            started_at: row.cell(2)?,
            recipient: row.cell(3)?,
            sender: row.cell(4)?,
            queue_id: row.cell(5)?,
            host: row.cell(6)?,
            pid: row.cell(7)?,
            duration_ms: row.cell(8)?,
            outcome: row.cell(9)?,
            reason: row.cell(18)?,
            status: row.cell(10)?,
            text: row.cell(11)?,
        };
        if let Some(account) = row.cell::<Option<String>>(12)? {
            let destination = Destination { account, mailbox: row.cell(13)?, shared: false };
            attempt.status = Some(PLAIN_STATUS.to_owned());
            attempt.reason = Some(Reason::Delivered.word().to_owned());
            attempt.text = Some(stored_text(&destination, &rows::receipt(row, 14)?));
        }
        let is_recorded = row.cell::<Option<i64>>(0)?.is_some();
        let at = match is_recorded {
            true => self.of(row)?,
            false => *self.of_hash.entry(row.cell(1)?).or_insert(self.traces.len()),
        };
        let on_record = u64::try_from(row.cell::<i64>(17)?).unwrap_or(0);
        self.on_record.insert((at, is_recorded), on_record);
        if at == self.traces.len() {
            let recorded_at = attempt.started_at.clone();
            self.traces.push(Trace { recorded_at, ..Trace::default() });
        }
        self.traces[at].attempts.push(attempt);
        Ok(())
    }

    /// The traces, at most `limit`. Times sort as text.
    pub fn newest_first(self, limit: u32) -> Vec<Trace> {
        let mut traces = self.traces;
        for ((at, _), on_record) in self.on_record {
            traces[at].attempts_left += on_record;
        }
        for trace in &mut traces {
            trace.attempts_left = trace.attempts_left.saturating_sub(trace.attempts.len() as u64);
            trace.attempts.sort_by(|a, b| a.started_at.cmp(&b.started_at));
            trace.parts.sort_by_key(|part| {
                part.path.split('.').map(|n| n.parse().unwrap_or(0)).collect::<Vec<u32>>()
            });
        }
        traces.sort_by(|a, b| b.recorded_at.cmp(&a.recorded_at).then(b.message.cmp(&a.message)));
        traces.truncate(limit as usize);
        traces
    }
}
