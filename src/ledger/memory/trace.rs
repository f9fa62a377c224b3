//! What `onedrop trace` asks of a ledger in memory.

use std::time::Duration;

use super::rows::{AttemptRow, CopyRow, MessageRow, Rows, wall_clock};
use crate::ledger::{
    Trace, TraceAddress, TraceAttempt, TraceCopy, TraceFilter, TracePart, copy_state, wanted_hashes,
};
use crate::lock_key::{self, Hash};

impl Rows {
    pub fn trace(&self, filter: &TraceFilter<'_>, limit: u32) -> Vec<Trace> {
        if filter.name == Some("") {
            return Vec::new();
        }
        let now = self.time.now();
        let hashes = filter.name.map(wanted_hashes).unwrap_or_default();
        let lower = filter.name.map(str::to_lowercase);
        let names = |row: &AttemptRow| {
            filter.name.is_some_and(|name| row.attempt.queue_id == name)
                || lower
                    .as_ref()
                    .is_some_and(|lower| row.attempt.recipient.to_lowercase() == *lower)
        };
        let is_recorded =
            |row: &AttemptRow| self.messages.iter().any(|message| message.id_hash == row.id_hash);
        let wants = |row: &&AttemptRow| {
            let is_named = match filter.name {
                Some(_) => hashes.contains(&row.id_hash) || names(row),
                None => !is_recorded(row),
            };
            let sender = filter.sender.is_none_or(|sender| holds(&row.attempt.sender, sender));
            let since = filter.since.is_none_or(|since| wall_clock(row.at) >= since);
            is_named
                && sender
                && since
                && filter.subject.is_none()
                && (!filter.failed || !is_recorded(row))
        };
        let unrecorded: Vec<&AttemptRow> =
            self.attempts.iter().filter(|row| row.message.is_none()).collect();
        let mut found: Vec<Hash> = Vec::new();
        let mut traces = Vec::new();
        for (id, row) in
            self.messages.iter().enumerate().rev().map(|(index, row)| (index as i64 + 1, row))
        {
            let of = || self.attempts.iter().filter(move |row| row.message == Some(id));
            let copies = || self.copies.iter().filter(move |copy| copy.message == id);
            let wants_account = |copy: &CopyRow| {
                [filter.name, lower.as_deref()].contains(&Some(copy.destination.account.as_str()))
            };
            let is_named = filter.name.is_none()
                || hashes.contains(&row.id_hash)
                || of().any(names)
                || copies().any(wants_account);
            let is_done =
                |row: &AttemptRow| row.end.as_ref().is_some_and(|end| end.outcome == "delivered");
            let recipient = |row: &AttemptRow| row.attempt.recipient.to_lowercase();
            let is_last = |at: usize, one: &AttemptRow| {
                !of().skip(at + 1).any(|later| recipient(later) == recipient(one) && is_done(later))
            };
            let failed = || {
                copies().any(|copy| copy.receipt.is_none())
                    || of().enumerate().any(|(at, one)| !is_done(one) && is_last(at, one))
            };
            let from = || {
                row.facts
                    .addresses
                    .iter()
                    .filter(|one| one.role == "from")
                    .filter_map(|one| one.address.as_ref())
            };
            let is_by = |sender: &str| {
                of().next().is_some_and(|first| holds(&first.attempt.sender, sender))
                    || from().any(|one| holds(one, sender))
            };
            if !is_named
                || filter.since.is_some_and(|since| row.recorded_at < since)
                || filter.sender.is_some_and(|sender| !is_by(sender))
                || filter.subject.is_some_and(|text| {
                    !holds(row.facts.subject.as_deref().unwrap_or_default(), text)
                })
                || filter.failed && !failed()
            {
                continue;
            }
            let is_first = !found.contains(&row.id_hash);
            found.push(row.id_hash);
            let of_none =
                unrecorded.iter().copied().filter(|one| is_first && one.id_hash == row.id_hash);
            traces.push(Trace {
                copies: copies().map(|copy| copy.trace(now, row)).collect(),
                collision: self.collides(row),
                attempts: of().chain(of_none).map(AttemptRow::trace).collect(),
                ..row.trace(id)
            });
        }
        // Attempts at messages that are not on record.
        let mut others: Vec<&AttemptRow> = unrecorded.into_iter().filter(wants).collect();
        others.retain(|row| !found.contains(&row.id_hash));
        while let Some(id_hash) = others.first().map(|row| row.id_hash) {
            let (one, rest): (Vec<_>, _) =
                others.into_iter().partition(|row| row.id_hash == id_hash);
            others = rest;
            traces.push(Trace {
                attempts: one.into_iter().map(AttemptRow::trace).collect(),
                ..Trace::default()
            });
        }
        traces.truncate(limit as usize);
        traces
    }
}

/// Whether `part` is in `text`, whatever its case.
fn holds(text: &str, part: &str) -> bool {
    text.to_lowercase().contains(&part.to_lowercase())
}

impl MessageRow {
    fn trace(&self, id: i64) -> Trace {
        Trace {
            message: id,
            message_id: self
                .message_id
                .as_deref()
                .map(|id| String::from_utf8_lossy(id).into_owned()),
            digest: lock_key::hex(&self.digest),
            subject: self.facts.subject.clone(),
            size_bytes: self.size_bytes as i64,
            in_reply_to: self.facts.in_reply_to.clone(),
            references: self.facts.references.clone(),
            raw_kept: self.raw.is_some(),
            addresses: self.facts.addresses.iter().map(TraceAddress::from).collect(),
            parts: self.facts.parts.iter().map(TracePart::from).collect(),
            ..Trace::default()
        }
    }
}

impl CopyRow {
    fn trace(&self, now: Duration, message: &MessageRow) -> TraceCopy {
        let leased = self.leased_until.is_some_and(|until| until > now);
        TraceCopy {
            account: self.destination.account.clone(),
            mailbox: self.destination.mailbox.clone(),
            state: copy_state(self.receipt.is_some(), leased, self.in_doubt).to_owned(),
            receipt: self.receipt.as_ref().map(ToString::to_string),
            epoch: self.epoch,
            owner: self.owner.clone(),
            nul_replaced: self.facts.nul_replaced,
            found_by_look: self.facts.found_by_look,
            kept: message.kept_of(self).map(str::to_owned),
            ..TraceCopy::default()
        }
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
            status: self.end.as_ref().map(|end| end.status.clone()),
            text: self.end.as_ref().map(|end| end.text.clone()),
            ..TraceAttempt::default()
        }
    }
}
