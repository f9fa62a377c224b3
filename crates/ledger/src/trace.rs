//! Rows of traces.

use std::collections::HashMap;

use onedrop_core::directory::Destination;
use onedrop_core::ledger::{
    LedgerError, PLAIN_STATUS, Trace, TraceAddress, TraceAttempt, TraceCopy, TracePart, open_state,
    receipt_state, stored_text,
};
use onedrop_core::lock_key;
use onedrop_core::outcome::Reason;
use onedrop_core::text;

use crate::facts;
use crate::rows::{self, SqlRow};

/// Bytes of a Message-ID that are shown.
const ID_BYTES: usize = 1000;

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
