//! What `onedrop purge`, `onedrop forget` and `onedrop replay` ask of a ledger in memory.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::MemoryLedger;
use super::rows::{CopyRow, Rows};
use crate::ledger::claim;
use crate::ledger::retention::LATE;
use crate::ledger::{
    BatchTerms, CopyFacts, ForgetBatch, ForgetWhat, ForgottenCopy, LedgerError, PassedBy,
    PurgeBatch, PurgeCursor, PurgeWhat, RandomValue, RawMessage, Remembered, Retention, units,
    wanted_hashes,
};
use crate::message::Facts;
use crate::receipt::Receipt;

impl Retention for MemoryLedger {
    fn purge(
        &self,
        what: PurgeWhat,
        older_than: Duration,
        after: Option<PurgeCursor>,
        how: BatchTerms,
        _until: Instant,
    ) -> Result<PurgeBatch, LedgerError> {
        self.call("purge", || Ok(self.rows().purge(what, older_than, after, how)))
    }

    fn note_purge(&self, _until: Instant) -> Result<(), LedgerError> {
        self.call("note_purge", || {
            let mut rows = self.rows();
            rows.purged_at = Some(rows.time.wall_clock());
            Ok(())
        })
    }

    fn forget_hosts(
        &self,
        not_seen_for: Duration,
        dry_run: bool,
        _until: Instant,
    ) -> Result<u64, LedgerError> {
        self.call("forget_hosts", || {
            let mut rows = self.rows();
            let now = rows.time.now();
            let is_gone = |seen_at: &Duration| now.saturating_sub(*seen_at) > not_seen_for;
            let count = rows.hosts.values().filter(|(_, seen_at)| is_gone(seen_at)).count();
            if !dry_run {
                rows.hosts.retain(|_, (_, seen_at)| !is_gone(seen_at));
            }
            Ok(count as u64)
        })
    }

    fn remembered(&self, _until: Instant) -> Result<Remembered, LedgerError> {
        self.call("remembered", || {
            let rows = self.rows();
            let now = rows.time.wall_clock();
            let ago = |at: SystemTime| now.duration_since(at).unwrap_or_default();
            let since_ago = rows.remembers_since.map_or(Duration::MAX, ago);
            let purged_ago = rows.purged_at.map(ago);
            Ok(Remembered { since: rows.remembers_since, since_ago, purged_ago })
        })
    }

    fn be_first(&self, _until: Instant) -> Result<bool, LedgerError> {
        self.call("be_first", || {
            let mut rows = self.rows();
            let is_new = rows.messages.is_empty() && rows.purged_at.is_none();
            if is_new {
                rows.remembers_since = Some(UNIX_EPOCH);
            }
            Ok(is_new)
        })
    }

    fn forget(
        &self,
        what: ForgetWhat<'_>,
        after: i64,
        how: BatchTerms,
        _until: Instant,
    ) -> Result<ForgetBatch, LedgerError> {
        self.call("forget", || Ok(self.rows().forget(what, after, how)))
    }

    fn next_raw(
        &self,
        since: SystemTime,
        after: i64,
        _until: Instant,
    ) -> Result<Option<RawMessage>, LedgerError> {
        self.call("next_raw", || {
            let rows = self.rows();
            let next = rows.messages.range(after + 1..).find_map(|(number, row)| {
                let (bytes, _) = row.raw.as_ref().filter(|_| row.recorded_at >= since)?;
                Some((*number, row, bytes))
            });
            Ok(next.map(|(message, row, bytes)| RawMessage {
                message,
                identity: row.identity.clone(),
                recorded_at: row.recorded_at,
                sender: rows.sender_of(message),
                bytes: bytes.clone(),
                copies: rows
                    .copies_of(message)
                    .map(|copy| (copy.destination.clone(), copy.receipt.clone()))
                    .collect(),
            }))
        })
    }
}

impl Rows {
    fn purge(
        &mut self,
        what: PurgeWhat,
        older_than: Duration,
        after: Option<PurgeCursor>,
        BatchTerms { limit, dry_run }: BatchTerms,
    ) -> PurgeBatch {
        let (clock, now) = (self.time.wall_clock(), self.time.now());
        let before = clock.checked_sub(older_than).unwrap_or(SystemTime::UNIX_EPOCH);
        let is_before = |at: Duration| at + older_than < now;
        let has_facts = |message: Option<i64>| {
            let message = message.and_then(|message| self.messages.get(&message));
            message.is_some_and(|message| message.has_facts)
        };
        let secs = |at: SystemTime| units::whole_secs(at);
        let mut old: Vec<PurgeCursor> = match what {
            PurgeWhat::Messages | PurgeWhat::Facts => self
                .messages
                .iter()
                .filter(|(_, row)| row.recorded_at < before)
                .filter(|(_, row)| what == PurgeWhat::Messages || row.has_facts)
                .map(|(row, message)| PurgeCursor { secs: secs(message.recorded_at), row: *row })
                .collect(),
            PurgeWhat::Raw | PurgeWhat::Kept => self
                .messages
                .iter()
                .filter(|(_, row)| match what {
                    PurgeWhat::Raw => row.raw.as_ref().is_some_and(|(_, at)| is_before(*at)),
                    _ => row.kept.is_some() && is_before(row.kept_at),
                })
                .map(|(row, _)| PurgeCursor { secs: 0, row: *row })
                .collect(),
            PurgeWhat::Attempts => self
                .attempts
                .iter()
                .filter(|(_, row)| is_before(row.at) && !has_facts(row.message))
                .map(|(row, _)| PurgeCursor { secs: 0, row: *row })
                .collect(),
        };
        old.retain(|one| after.is_none_or(|last| *one > last));
        old.sort();
        old.truncate(limit as usize);
        let next = old.last().copied().filter(|_| old.len() == limit as usize);
        let mut batch = PurgeBatch { next, ..PurgeBatch::default() };
        for PurgeCursor { row, .. } in old {
            if self.is_protected(row, what, older_than) {
                batch.passed_by += 1;
                continue;
            }
            batch.gone += 1;
            if !dry_run {
                self.take_out(row, what, older_than);
            }
        }
        if what == PurgeWhat::Messages && !dry_run {
            self.remembers_since = self.remembers_since.map(|since| since.max(before));
        }
        batch
    }

    fn copies_of(&self, message: i64) -> impl Iterator<Item = &CopyRow> {
        self.copies.values().filter(move |copy| copy.message == message)
    }

    fn is_protected(&self, row: i64, what: PurgeWhat, older_than: Duration) -> bool {
        match what {
            PurgeWhat::Messages => {
                let is_kept = self.messages.get(&row).is_some_and(|one| one.kept.is_some());
                is_kept || self.copies_of(row).any(|copy| self.may_be_written(copy))
            }
            PurgeWhat::Kept => self.copies_of(row).any(|copy| {
                let waits = copy.due_at.is_some_and(|at| at + older_than > self.time.now())
                    || copy.epoch == 0;
                let is_open = copy.destination.shared && copy.receipt.is_none();
                is_open && (waits || self.may_be_written(copy))
            }),
            PurgeWhat::Facts | PurgeWhat::Raw | PurgeWhat::Attempts => false,
        }
    }

    /// Its lease lives, or ended less than an hour ago.
    fn may_be_written(&self, copy: &CopyRow) -> bool {
        copy.receipt.is_none()
            && copy.leased_until.is_some_and(|until| until + LATE > self.time.of_leases())
    }

    /// Another account's Sent needs the Message-ID.
    fn is_needed_by_sent(&self, copy: &CopyRow) -> bool {
        let is_kept = self.messages.get(&copy.message).is_some_and(|one| one.kept.is_some());
        let of_it = self.copies.iter().filter(|(_, other)| other.message == copy.message);
        let mut others = of_it.filter(|(_, other)| {
            other.destination.shared && other.destination.account != copy.destination.account
        });
        others.any(|(number, other)| match other.receipt {
            None => is_kept,
            Some(_) => other.due_at.is_some() && self.unsettled.contains_key(number),
        })
    }

    fn take_out(&mut self, row: i64, what: PurgeWhat, older_than: Duration) {
        match what {
            PurgeWhat::Messages => {
                self.messages.remove(&row);
                self.copies.retain(|_, copy| copy.message != row);
                self.attempts.retain(|_, attempt| attempt.message != Some(row));
            }
            PurgeWhat::Attempts => drop(self.attempts.remove(&row)),
            PurgeWhat::Facts => {
                let now = self.time.now();
                self.attempts.retain(|_, attempt| {
                    attempt.message != Some(row) || attempt.at + older_than >= now
                });
                if let Some(message) = self.messages.get_mut(&row) {
                    message.facts = Facts::default();
                    message.has_facts = false;
                }
            }
            PurgeWhat::Raw | PurgeWhat::Kept => {
                if let Some(message) = self.messages.get_mut(&row) {
                    match what {
                        PurgeWhat::Raw => message.raw = None,
                        _ => message.kept = None,
                    }
                }
            }
        }
    }

    fn forget(
        &mut self,
        what: ForgetWhat<'_>,
        after: i64,
        BatchTerms { limit, dry_run }: BatchTerms,
    ) -> ForgetBatch {
        let hashes = match what {
            ForgetWhat::Message(name) => wanted_hashes(name),
            ForgetWhat::Since(_) | ForgetWhat::Account(_) => Vec::new(),
        };
        let is_here = |copy: &CopyRow| !copy.receipt.as_ref().is_some_and(Receipt::is_elsewhere);
        let is_wanted = |copy: &CopyRow| match what {
            ForgetWhat::Message(_) => {
                let message = self.messages.get(&copy.message);
                message.is_some_and(|one| hashes.contains(&one.identity.id_hash)) && is_here(copy)
            }
            ForgetWhat::Since(since) => {
                copy.receipt.is_some()
                    && super::time::wall_clock(copy.placed_at) >= since
                    && is_here(copy)
            }
            ForgetWhat::Account(account) => copy.destination.account == account,
        };
        let wanted: Vec<i64> = self
            .copies
            .range(after + 1..)
            .filter(|(_, copy)| is_wanted(copy))
            .map(|(number, _)| *number)
            .take(limit as usize)
            .collect();
        let next = wanted.last().copied().filter(|_| wanted.len() == limit as usize);
        let mut batch = ForgetBatch { next, copies: Vec::new() };
        for number in wanted {
            let Some(copy) = self.copies.get(&number) else { continue };
            let message = copy.message;
            let is_needed = matches!(what, ForgetWhat::Account(_)) && self.is_needed_by_sent(copy);
            let passed_by = match self.may_be_written(copy) {
                true => Some(PassedBy::Lease),
                false => is_needed.then_some(PassedBy::Sent),
            };
            let has_raw = self.messages.get(&message).is_some_and(|one| one.raw.is_some());
            let message_id = self.messages.get(&message).map(|one| one.identity.message_id.clone());
            batch.copies.push(ForgottenCopy {
                message_id: message_id.flatten(),
                destination: copy.destination.clone(),
                passed_by,
                has_raw,
            });
            match what {
                _ if passed_by.is_some() || dry_run => {}
                ForgetWhat::Account(_) => self.erase(number, message),
                ForgetWhat::Message(_) | ForgetWhat::Since(_) => {
                    if let Some(row) = self.rules(number) {
                        let change = claim::forget(&row, RandomValue::default());
                        if let Some(copy) = self.write(number, change) {
                            copy.by_sender = false;
                            copy.facts = CopyFacts::default();
                        }
                    }
                }
            }
        }
        batch
    }

    fn erase(&mut self, copy: i64, message: i64) {
        self.copies.remove(&copy);
        self.attempts.retain(|_, attempt| attempt.message != Some(message));
        let is_open = self.has_unplaced_shared(message);
        if let Some(row) = self.messages.get_mut(&message) {
            row.identity.message_id = None;
            row.facts = Facts::default();
            row.has_facts = false;
            row.raw = None;
            row.looks_back = true;
            if !is_open {
                row.kept = None;
            }
        }
    }
}
