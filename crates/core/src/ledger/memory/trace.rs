//! What `onedrop trace` asks of a ledger in memory.

use std::time::{Duration, Instant};

use super::MemoryLedger;
use super::rows::{AttemptRow, CopyRow, MessageRow, Rows};
use super::time::wall_clock;
use crate::clock;
use crate::ledger::trace::ATTEMPTS;
use crate::ledger::{
    LedgerError, OVERDUE, Records, Trace, TraceAddress, TraceAttempt, TraceCopy, TraceFilter,
    TracePart, open_state, receipt_state, wanted_hashes,
};
use crate::lock_key::{self, Hash};

impl Records for MemoryLedger {
    fn trace(
        &self,
        filter: &TraceFilter<'_>,
        limit: u32,
        _until: Instant,
    ) -> Result<Vec<Trace>, LedgerError> {
        self.call("trace", || Ok(self.rows().trace(filter, limit)))
    }
}

impl Rows {
    fn trace(&self, filter: &TraceFilter<'_>, limit: u32) -> Vec<Trace> {
        if filter.message.is_none() && filter.name == Some("") {
            return Vec::new();
        }
        let hashes = filter.name.map(wanted_hashes).unwrap_or_default();
        let lower = filter.name.map(str::to_lowercase);
        let names = |one: &TraceAttempt| {
            filter.name.is_some_and(|name| one.queue_id == name)
                || lower.as_ref() == Some(&one.recipient.to_lowercase())
        };
        let names_account = |copy: &TraceCopy| {
            [filter.name, lower.as_deref()].contains(&Some(copy.account.as_str()))
        };
        let is_since = |at| filter.since.is_none_or(|since| at >= since);
        let is_wanted = |row: &MessageRow, trace: &Trace| {
            (filter.message.is_some()
                || filter.name.is_none()
                || hashes.contains(&row.identity.id_hash)
                || trace.attempts.iter().any(names)
                || trace.copies.iter().any(names_account))
                && is_since(row.recorded_at)
                && filter.sender.is_none_or(|sender| is_by(trace, sender))
                && filter.subject.is_none_or(|part| holds(trace.subject.as_ref(), part))
                && (!filter.failed || self.is_open(trace) || failed(trace))
        };
        let mut found: Vec<(Hash, Trace)> = Vec::new();
        let is_meant = |number: &i64| filter.message.is_none_or(|wanted| wanted == *number);
        for (number, row) in self.messages.iter().rev().filter(|(number, _)| is_meant(number)) {
            let trace = self.message_trace(row, *number);
            if is_wanted(row, &trace) {
                found.push((row.identity.id_hash, trace));
            }
        }
        // An attempt that recorded no message is shown with the newest one of its Message-ID, or
        // with the others of it that recorded none.
        for row in self.attempts.values().filter(|row| row.message.is_none()) {
            let is_recorded =
                || self.messages.values().any(|message| message.identity.id_hash == row.id_hash);
            let trace = row.trace();
            let is_named = match filter.name {
                _ if filter.message.is_some() => false,
                Some(_) => hashes.contains(&row.id_hash) || names(&trace),
                None => !is_recorded(),
            };
            let is_wanted = is_named
                && filter.sender.is_none_or(|sender| holds(Some(&trace.sender), sender))
                && is_since(wall_clock(row.at))
                && filter.subject.is_none()
                && (!filter.failed || !is_recorded());
            let known = found.iter_mut().find(|(id_hash, _)| *id_hash == row.id_hash);
            match known {
                Some((_, of)) if is_wanted || of.message > 0 => of.attempts.push(trace),
                None if is_wanted => {
                    let of = Trace { attempts: vec![trace], ..Trace::default() };
                    found.push((row.id_hash, of));
                }
                _ => {}
            }
        }
        found.into_iter().map(|(_, trace)| self.newest(trace)).take(limit as usize).collect()
    }

    /// With the newest attempts alone, of those that recorded the message and of the others.
    fn newest(&self, mut trace: Trace) -> Trace {
        let recorded = self.attempts.values().filter(|row| row.message == Some(trace.message));
        let others = trace.attempts.split_off(recorded.count());
        for attempts in [std::mem::take(&mut trace.attempts), others] {
            let left = attempts.len().saturating_sub(ATTEMPTS);
            trace.attempts_left += left as u64;
            trace.attempts.extend(attempts.into_iter().skip(left));
        }
        trace
    }

    /// Whether a copy is not placed that should be.
    fn is_open(&self, trace: &Trace) -> bool {
        let is_awaited =
            |row: &CopyRow| row.due_at.is_none_or(|at| at + OVERDUE <= self.time.now());
        let of_it = self.copies.values().filter(|row| row.message == trace.message);
        of_it.filter(|row| row.receipt.is_none()).any(is_awaited)
    }

    fn message_trace(&self, row: &MessageRow, id: i64) -> Trace {
        let (identity, facts, now) = (&row.identity, &row.facts, self.time.of_leases());
        let message_id = identity.message_id.as_deref();
        let attempts = self.attempts.values().filter(|attempt| attempt.message == Some(id));
        let copies = self.copies.values().filter(|copy| copy.message == id);
        Trace {
            message: id,
            message_id: message_id.map(|id| String::from_utf8_lossy(id).into_owned()),
            digest: lock_key::hex(&identity.digest),
            subject: facts.subject.clone(),
            size_bytes: row.size_bytes as i64,
            in_reply_to: facts.in_reply_to.clone(),
            references: facts.references.clone(),
            collision: self.collides(row),
            raw_kept: row.raw.is_some(),
            addresses: facts.addresses.iter().map(TraceAddress::from).collect(),
            parts: facts.parts.iter().map(TracePart::from).collect(),
            copies: copies.map(|copy| copy.trace(now, row)).collect(),
            attempts: attempts.map(AttemptRow::trace).collect(),
            ..Trace::default()
        }
    }
}

/// Whether the envelope sender or an address in From has `part` in it.
fn is_by(trace: &Trace, part: &str) -> bool {
    let mut from = trace.addresses.iter().filter(|one| one.role == "from");
    holds(trace.attempts.first().map(|first| &first.sender), part)
        || from.any(|one| holds(one.address.as_ref(), part))
}

/// Whether a recipient's last attempt was not "delivered". Of the one that recorded the only copy,
/// which was found, a crash of the ledger may have lost the end.
fn failed(trace: &Trace) -> bool {
    let is_found = matches!(&trace.copies[..], [only] if only.found_by_look);
    let is_done = |one: &TraceAttempt| one.outcome.as_deref() == Some("delivered");
    let recipient = |one: &TraceAttempt| one.recipient.to_lowercase();
    let is_open = |(at, one): (usize, &TraceAttempt)| {
        let is_done_later =
            |later: &TraceAttempt| recipient(later) == recipient(one) && is_done(later);
        let may_be_lost = at == 0 && is_found && one.outcome.is_none();
        !is_done(one) && !may_be_lost && !trace.attempts[at + 1..].iter().any(is_done_later)
    };
    trace.attempts.iter().enumerate().any(is_open)
}

/// Whether `part` is in `text`, whatever its case.
fn holds(text: Option<&String>, part: &str) -> bool {
    text.is_some_and(|text| text.to_lowercase().contains(&part.to_lowercase()))
}

impl CopyRow {
    fn trace(&self, now: Duration, message: &MessageRow) -> TraceCopy {
        let leased = self.leased_until.is_some_and(|until| until > now);
        TraceCopy {
            account: self.destination.account.clone(),
            mailbox: self.destination.mailbox.clone(),
            state: match &self.receipt {
                Some(receipt) => receipt_state(Some(receipt)),
                None => open_state(leased, self.doubt().is_in_doubt(), self.due_at.is_some()),
            }
            .to_owned(),
            receipt: self.receipt.as_ref().map(ToString::to_string),
            epoch: self.epoch,
            owner: self.owner.clone(),
            nul_replaced: self.facts.nul_replaced,
            found_by_look: self.facts.found_by_look,
            wrapped: self.facts.wrapped,
            kept: message.kept_of(self).map(str::to_owned),
            due_at: self.due_at.map(|at| clock::utc(wall_clock(at))),
            by_sender: self.by_sender,
            ..TraceCopy::default()
        }
    }
}

impl Rows {
    /// [`Ledger::account_reached`](crate::ledger::Ledger::account_reached).
    pub fn account_reached(&self, addresses: &[&str]) -> Option<String> {
        let names: Vec<String> = addresses.iter().map(|one| one.to_lowercase()).collect();
        let of_one = |row: &AttemptRow| {
            let text = &row.end.as_ref().filter(|end| end.outcome == "delivered")?.text;
            let copies = self.copies.values().filter(|copy| Some(copy.message) == row.message);
            let mut placed =
                copies.filter(|copy| !copy.destination.shared && copy.receipt.is_some());
            let account = &placed
                .find(|copy| text.contains(&format!("account={} ", copy.destination.account)))?;
            Some(account.destination.account.clone())
        };
        let is_named = |row: &&AttemptRow| names.contains(&row.attempt.recipient.to_lowercase());
        self.attempts.values().filter(is_named).find_map(of_one)
    }
}

impl AttemptRow {
    fn trace(&self) -> TraceAttempt {
        TraceAttempt {
            recipient: self.attempt.recipient.clone(),
            sender: self.attempt.sender.clone(),
            queue_id: self.attempt.queue_id.clone(),
            host: self.attempt.host.clone(),
            pid: i64::from(self.attempt.pid),
            duration_ms: self.end.as_ref().map(|end| end.duration.as_millis() as i64),
            outcome: self.end.as_ref().map(|end| end.outcome.to_owned()),
            reason: self.end.as_ref().and_then(|end| end.reason).map(|one| one.word().to_owned()),
            status: self.end.as_ref().map(|end| end.status.clone()),
            text: self.end.as_ref().map(|end| end.text.clone()),
            ..TraceAttempt::default()
        }
    }
}
