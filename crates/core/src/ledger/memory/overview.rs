//! What `onedrop status` asks, in memory.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::MemoryLedger;
use super::rows::{AttemptRow, CopyRow};
use crate::ledger::overview::{
    AttemptCount, HostRow, MOST_ATTEMPTS, MOST_COPIES, OpenCopies, Overview, RecentAttempts,
};
use crate::ledger::{LedgerError, SCHEMA_VERSION};

impl Overview for MemoryLedger {
    fn recent_attempts(
        &self,
        back: Duration,
        _until: Instant,
    ) -> Result<RecentAttempts, LedgerError> {
        self.call("recent_attempts", || {
            let rows = self.rows();
            let (now, mut reach) = (rows.time.now(), back);
            let is_recent = |row: &&AttemptRow| now.saturating_sub(row.at) <= back;
            let mut recent: Vec<_> = rows.attempts.values().filter(is_recent).collect();
            let left_out = recent.len().saturating_sub(MOST_ATTEMPTS as usize);
            if left_out > 0 {
                recent.drain(..left_out);
                reach = now.saturating_sub(recent[0].at);
            }
            let (mut counts, mut hosts) = (Vec::<AttemptCount>::new(), BTreeMap::new());
            for row in recent {
                *hosts.entry(row.attempt.host.clone()).or_insert(0) += 1;
                let end = row.end.as_ref();
                let one = AttemptCount {
                    outcome: end.map(|end| end.outcome.to_owned()),
                    reason: end.and_then(|end| end.reason).map(|reason| reason.to_string()),
                    status: end.map(|end| end.status.clone()),
                    millis: end.map(|end| end.duration.as_millis() as u64),
                    count: 1,
                };
                let is_same = |other: &&mut AttemptCount| {
                    AttemptCount { count: 1, ..AttemptCount::clone(other) } == one
                };
                match counts.iter_mut().find(is_same) {
                    Some(same) => same.count += 1,
                    None => counts.push(one),
                }
            }
            let (now, hosts) = (rows.time.wall_clock(), hosts.into_iter().collect());
            Ok(RecentAttempts { now, reach, counts, hosts })
        })
    }

    fn open_copies(
        &self,
        back: Duration,
        kept_for: Duration,
        _until: Instant,
    ) -> Result<OpenCopies, LedgerError> {
        self.call("open_copies", || {
            let rows = self.rows();
            let (now, wall) = (rows.time.of_leases(), rows.time.wall_clock());
            let mut open = OpenCopies { reach: back, ..OpenCopies::default() };
            let ago = |message: &i64| {
                let row = rows.messages.get(message)?;
                Some(wall.duration_since(row.recorded_at).unwrap_or_default())
            };
            for (number, row) in rows.copies.iter().rev().take(MOST_COPIES as usize) {
                let is_asked_for = rows.unsettled.contains_key(number)
                    || ago(&row.message).is_some_and(|ago| ago <= back);
                let is_over = row.leased_until.is_none_or(|until| until <= now);
                if is_asked_for && is_over && is_open(row) {
                    match row.leased_until {
                        None => open.in_doubt += 1,
                        Some(_) => open.leases_over += 1,
                    }
                    open.oldest = open.oldest.max(ago(&row.message));
                }
            }
            let then = rows.time.now().checked_sub(kept_for);
            let is_old = |at: Duration| then.is_some_and(|then| at <= then);
            let waits = |number: &i64| {
                rows.copies.values().any(|row| {
                    row.message == *number
                        && row.destination.shared
                        && row.receipt.is_none()
                        && row.due_at.is_none_or(is_old)
                })
            };
            let kept = rows
                .messages
                .iter()
                .filter(|(number, row)| row.kept.is_some() && is_old(row.kept_at) && waits(number));
            open.kept = kept.count() as u64;
            Ok(open)
        })
    }

    fn hosts(&self, back: Duration, _until: Instant) -> Result<Vec<HostRow>, LedgerError> {
        self.call("hosts", || {
            let rows = self.rows();
            let now = rows.time.now();
            let row = |(host, (version, at)): (&String, &(String, Duration))| HostRow {
                host: host.clone(),
                program_version: version.clone(),
                schema_version: SCHEMA_VERSION,
                seen_ago: now.saturating_sub(*at),
                clock_offset_ms: None,
            };
            Ok(rows.hosts.iter().map(row).filter(|row| row.seen_ago <= back).collect())
        })
    }

    fn note_host(&self, host: &str, version: &str, _until: Instant) -> Result<(), LedgerError> {
        self.call("note_host", || {
            let mut rows = self.rows();
            let now = rows.time.now();
            rows.hosts.insert(host.to_owned(), (version.to_owned(), now));
            Ok(())
        })
    }
}

fn is_open(row: &CopyRow) -> bool {
    row.receipt.is_none() && row.doubt().is_in_doubt() && row.due_at.is_none()
}
