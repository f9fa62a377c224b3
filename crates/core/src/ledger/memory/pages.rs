//! What the web pages ask of a ledger in memory.

use std::ops::Range;
use std::time::{Instant, SystemTime};

use super::MemoryLedger;
use super::rows::{AttemptRow, MessageRow, Rows};
use super::time::wall_clock;
use crate::clock;
use crate::ledger::pages::{
    ActivityRow, AttemptLine, FailureFilter, MessageLine, MessagePart, Numbered, Pages, SLOWER_MS,
};
use crate::ledger::{
    CopyOnRecord, LedgerError, Records, Standing, Trace, TraceFilter, units, wanted_hashes,
};

impl Rows {
    fn message_line(&self, number: i64, row: &MessageRow) -> MessageLine {
        let mut copies = self.copies.values().filter(|copy| copy.message == number);
        let message_id = row.identity.message_id.as_deref();
        MessageLine {
            number,
            message_id: message_id.map(|id| String::from_utf8_lossy(id).into_owned()),
            recorded_at: clock::utc(row.recorded_at),
            sender: self.sender_of(number),
            subject: row.facts.subject.clone(),
            size_bytes: row.size_bytes as i64,
            is_open: copies.any(|copy| copy.receipt.is_none()),
        }
    }

    /// The envelope sender of a message's first attempt.
    pub fn sender_of(&self, message: i64) -> String {
        let first = self.attempts.values().find(|attempt| attempt.message == Some(message));
        first.map(|attempt| attempt.attempt.sender.clone()).unwrap_or_default()
    }

    /// The newest of these that `wants` takes.
    fn message_lines(
        &self,
        numbers: Range<i64>,
        limit: u32,
        wants: impl Fn(i64, &MessageRow, &MessageLine) -> bool,
    ) -> Vec<MessageLine> {
        let lines = self.messages.range(numbers).rev().filter_map(|(number, row)| {
            let line = self.message_line(*number, row);
            wants(*number, row, &line).then_some(line)
        });
        lines.take(limit as usize).collect()
    }

    fn copies_on_record(
        &self,
        limit: u32,
        wants: impl Fn(i64, &CopyOnRecord) -> bool,
    ) -> Vec<CopyOnRecord> {
        let on_record = self.copies.iter().filter_map(|(copy, row)| {
            self.row_on_record(*copy, row).filter(|one| wants(*copy, one))
        });
        on_record.take(limit as usize).collect()
    }
}

impl AttemptRow {
    fn line(&self, number: i64) -> Option<AttemptLine> {
        let end = self.end.as_ref().filter(|end| end.outcome != "delivered")?;
        Some(AttemptLine {
            number,
            message: self.message,
            started_at: clock::utc(wall_clock(self.at)),
            recipient: self.attempt.recipient.clone(),
            queue_id: self.attempt.queue_id.clone(),
            host: self.attempt.host.clone(),
            pid: i64::from(self.attempt.pid),
            duration_ms: Some(units::millis(end.duration)),
            outcome: end.outcome.to_owned(),
            status: end.status.clone(),
            text: end.text.clone(),
            reason: end
                .reason
                .map_or_else(|| end.status.clone(), |reason| reason.word().to_owned()),
        })
    }
}

fn holds(text: &str, part: &str) -> bool {
    text.to_lowercase().contains(&part.to_lowercase())
}

impl Pages for MemoryLedger {
    fn story(&self, message: i64, until: Instant) -> Result<Option<Trace>, LedgerError> {
        let filter = TraceFilter { message: Some(message), ..TraceFilter::default() };
        Ok(self.trace(&filter, 1, until)?.pop())
    }

    fn messages_named(
        &self,
        name: &str,
        before: i64,
        limit: u32,
        _until: Instant,
    ) -> Result<Vec<MessageLine>, LedgerError> {
        let (hashes, lower) = (wanted_hashes(name), name.to_lowercase());
        self.call("messages_named", || {
            let rows = self.rows();
            Ok(rows.message_lines(0..before, limit, |number, row, _| {
                let is_named = |attempt: &AttemptRow| {
                    attempt.attempt.queue_id == name && !name.is_empty()
                        || attempt.attempt.recipient.to_lowercase() == lower
                };
                let mut attempts =
                    rows.attempts.values().filter(|attempt| attempt.message == Some(number));
                let mut copies = rows.copies.values().filter(|copy| copy.message == number);
                hashes.contains(&row.identity.id_hash)
                    || attempts.any(is_named)
                    || copies.any(|copy| [name, &lower].contains(&&*copy.destination.account))
            }))
        })
    }

    fn messages_with(
        &self,
        part: MessagePart<'_>,
        numbers: &Range<i64>,
        limit: u32,
        _until: Instant,
    ) -> Result<Vec<MessageLine>, LedgerError> {
        self.call("messages_with", || {
            Ok(self.rows().message_lines(numbers.clone(), limit, |_, row, line| match part {
                MessagePart::Subject(part) => {
                    line.subject.as_ref().is_some_and(|subject| holds(subject, part))
                }
                MessagePart::Sender(part) => {
                    let mut from = row.facts.addresses.iter().filter(|one| one.role == "from");
                    holds(&line.sender, part)
                        || from.any(|one| one.address.as_ref().is_some_and(|at| holds(at, part)))
                }
            }))
        })
    }

    fn failures(
        &self,
        filter: &FailureFilter<'_>,
        numbers: &Range<i64>,
        limit: u32,
        _until: Instant,
    ) -> Result<Vec<AttemptLine>, LedgerError> {
        let hashes = filter.name.map(wanted_hashes).unwrap_or_default();
        self.call("failures", || {
            let rows = self.rows();
            let attempts = rows.attempts.range(numbers.clone()).rev();
            let lines = attempts.filter_map(|(number, row)| {
                let line = row.line(*number)?;
                let is_named = filter.name.is_none_or(|name| {
                    line.queue_id == name
                        || line.recipient.to_lowercase() == name.to_lowercase()
                        || line.message.is_none() && hashes.contains(&row.id_hash)
                });
                let is_wanted = is_named
                    && filter.reason.is_none_or(|reason| line.reason == reason)
                    && (!filter.unrecorded || line.message.is_none());
                is_wanted.then_some(line)
            });
            Ok(lines.take(limit as usize).collect())
        })
    }

    fn activity(
        &self,
        _messages: &Range<i64>,
        times: &Range<SystemTime>,
        _until: Instant,
    ) -> Result<Vec<ActivityRow>, LedgerError> {
        self.call("activity", || {
            let rows = self.rows();
            let mut found: Vec<ActivityRow> = Vec::new();
            for (number, row) in &rows.attempts {
                let began = wall_clock(row.at);
                if !times.contains(&began) {
                    continue;
                }
                let slowness = row.end.as_ref().map(|end| {
                    let took = u64::try_from(end.duration.as_millis()).unwrap_or(u64::MAX);
                    SLOWER_MS.iter().take_while(|bound| took >= **bound).count()
                });
                let one = ActivityRow {
                    minute: units::whole_secs(began) / 60,
                    outcome: row.end.as_ref().map(|end| end.outcome.to_owned()),
                    reason: row.line(*number).map(|line| line.reason),
                    slowness,
                    attempts: 0,
                };
                let is_alike = |other: &&mut ActivityRow| {
                    ActivityRow { attempts: 0, ..(**other).clone() } == one
                };
                match found.iter_mut().find(is_alike) {
                    Some(known) => known.attempts += 1,
                    None => found.push(ActivityRow { attempts: 1, ..one }),
                }
            }
            Ok(found)
        })
    }

    fn unplaced_copies(
        &self,
        messages: &Range<i64>,
        limit: u32,
        _until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        self.call("unplaced_copies", || {
            let mut copies = self.rows().copies_on_record(u32::MAX, |_, one| {
                messages.contains(&one.message) && !matches!(one.standing, Standing::Placed { .. })
            });
            copies.sort_by_key(|one| (one.message, one.copy));
            copies.truncate(limit as usize);
            Ok(copies)
        })
    }

    fn unsettled_copies(
        &self,
        after: i64,
        limit: u32,
        _until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        self.call("unsettled_copies", || {
            let rows = self.rows();
            let wants_a_look =
                |copy: &i64| rows.copies.get(copy).is_some_and(|row| row.doubt().wants_a_look());
            Ok(rows.copies_on_record(limit, |copy, _| {
                copy > after && rows.unsettled.contains_key(&copy) && wants_a_look(&copy)
            }))
        })
    }

    fn row_from(
        &self,
        of: Numbered,
        number: i64,
        _until: Instant,
    ) -> Result<Option<(i64, SystemTime)>, LedgerError> {
        self.call("row_from", || {
            let rows = self.rows();
            Ok(match of {
                Numbered::Message => rows
                    .messages
                    .range(number..)
                    .next()
                    .map(|(number, row)| (*number, row.recorded_at)),
                Numbered::Attempt => rows
                    .attempts
                    .range(number..)
                    .next()
                    .map(|(number, row)| (*number, wall_clock(row.at))),
            })
        })
    }

    fn last_row(
        &self,
        of: Numbered,
        _until: Instant,
    ) -> Result<Option<(i64, SystemTime)>, LedgerError> {
        self.call("last_row", || {
            let rows = self.rows();
            Ok(match of {
                Numbered::Message => {
                    rows.messages.last_key_value().map(|(number, row)| (*number, row.recorded_at))
                }
                Numbered::Attempt => rows
                    .attempts
                    .last_key_value()
                    .map(|(number, row)| (*number, wall_clock(row.at))),
            })
        })
    }
}
