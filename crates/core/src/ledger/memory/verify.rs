//! What `onedrop verify` asks of a ledger in memory.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::MemoryLedger;
use super::rows::{CopyRow, Rows};
use super::time::wall_clock;
use crate::directory::Destination;
use crate::ledger::{Audit, CopyOnRecord, DueTime, LedgerError, Standing, WATCH, Window, units};
use crate::receipt::Receipt;

impl Rows {
    /// See [`Ledger::receipt_before`](crate::ledger::Ledger::receipt_before).
    pub fn receipt_before(
        &mut self,
        message: i64,
        (destination, kind): (&Destination, &str),
        earlier: Duration,
    ) -> Result<Option<Receipt>, LedgerError> {
        let Some(row) = self.messages.get(&message) else { return Ok(None) };
        let recorded_at = row.recorded_at;
        let then = recorded_at.checked_sub(earlier.saturating_add(units::THERE_BEFORE));
        let there_before = self.copies.values().filter(|row| {
            row.message < message
                && row.destination.is_same_mailbox(destination)
                && row.receipt.as_ref().is_some_and(|receipt| receipt.kind() == kind)
                && !row.settled
                && Some(wall_clock(row.placed_at)) < then
        });
        let last = there_before.max_by_key(|row| row.placed_at);
        Ok(last.and_then(|row| row.receipt.clone()))
    }
}

impl Audit for MemoryLedger {
    fn accounts_to_verify(
        &self,
        window: &Window,
        after: Option<&str>,
        limit: u32,
        _until: Instant,
    ) -> Result<Vec<String>, LedgerError> {
        self.call("accounts_to_verify", || {
            let rows = self.rows();
            let wanted = rows.copies.iter().filter_map(|(id, row)| {
                rows.on_record(*id, row, window).map(|copy| copy.destination.account)
            });
            let behind = wanted.filter(|account| Some(account.as_str()) > after);
            Ok(behind.collect::<BTreeSet<_>>().into_iter().take(limit as usize).collect())
        })
    }

    fn copies_to_verify(
        &self,
        window: &Window,
        account: &str,
        after: Option<&CopyOnRecord>,
        limit: u32,
        _until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        fn place(copy: &CopyOnRecord) -> (i64, i64) {
            (copy.message, copy.copy)
        }
        self.call("copies_to_verify", || {
            let rows = self.rows();
            let mut copies: Vec<CopyOnRecord> = rows
                .copies
                .iter()
                .filter(|(_, row)| row.destination.account == account)
                .filter_map(|(id, row)| rows.on_record(*id, row, window))
                .filter(|copy| after.is_none_or(|last| place(copy) > place(last)))
                .collect();
            copies.sort_by_key(place);
            copies.truncate(limit as usize);
            Ok(copies)
        })
    }

    fn settle(
        &self,
        copy: &CopyOnRecord,
        receipt: &Receipt,
        _until: Instant,
    ) -> Result<bool, LedgerError> {
        self.call("settle", || {
            let mut rows = self.rows();
            let Ok(row) = rows.copy(copy.copy, copy.value) else { return Ok(false) };
            let Standing::Placed { receipt: was, .. } = &copy.standing else { return Ok(false) };
            let is_as_read = row.epoch == copy.epoch && row.receipt.as_ref() == Some(was);
            if is_as_read {
                row.receipt = Some(receipt.clone());
                row.settled = true;
                let (due_at, placed_at) = (row.due_at, row.placed_at);
                // `onedrop settle` may still watch it.
                if due_at.is_none() || placed_at + WATCH <= rows.time.now() {
                    rows.unsettled.remove(&copy.copy);
                }
            }
            Ok(is_as_read)
        })
    }

    fn kept_bytes(&self, message: i64, _until: Instant) -> Result<Option<Vec<u8>>, LedgerError> {
        self.call("kept_bytes", || {
            let rows = self.rows();
            let kept = rows.messages.get(&message).and_then(|message| message.kept.as_ref());
            Ok(kept.map(|(bytes, _)| bytes.clone()))
        })
    }
}

impl Rows {
    fn on_record(&self, copy: i64, row: &CopyRow, window: &Window) -> Option<CopyOnRecord> {
        let message = self.messages.get(&row.message)?;
        let may_be_double = row.doubt().may_be_double();
        let needs_a_look = row.receipt.is_some()
            && may_be_double
            && !row.settled
            && self.unsettled.contains_key(&copy);
        let lease_ended_since = row.receipt.is_none()
            && row.leased_until.is_some_and(|until| self.time.wall_clock_at(until) >= window.since);
        let is_recent = message.recorded_at >= window.since || lease_ended_since;
        let is_asked_for = window.all || row.receipt.is_none() || may_be_double;
        let is_kept = message.kept_of(row).is_some();
        if !(is_recent && is_asked_for || needs_a_look || is_kept) {
            return None;
        }
        self.row_on_record(copy, row)
    }

    /// A copy's row as it is on record.
    pub fn row_on_record(&self, copy: i64, row: &CopyRow) -> Option<CopyOnRecord> {
        let message = self.messages.get(&row.message)?;
        let is_leased = row.leased_until.is_some_and(|until| until > self.time.of_leases());
        let standing = match &row.receipt {
            Some(receipt) => Standing::Placed {
                receipt: receipt.clone(),
                ago: self.time.now().saturating_sub(row.placed_at),
            },
            None if is_leased => Standing::Leased,
            None if row.doubt().is_in_doubt() => {
                Standing::InDoubt { lease_left_over: row.leased_until.is_some() }
            }
            None => Standing::Free,
        };
        Some(CopyOnRecord {
            copy,
            value: row.value,
            lease: row.lease,
            kept: message.kept_of(row).map(str::to_owned),
            message: row.message,
            identity: message.identity.clone(),
            size_bytes: message.size_bytes,
            recorded_at: message.recorded_at,
            destination: row.destination.clone(),
            epoch: row.epoch,
            owner: row.owner.clone(),
            standing,
            settled: row.settled,
            may_be_double: row.doubt().may_be_double() || row.receipt.is_none() && row.in_doubt,
            due: row.due_at.map(|at| DueTime {
                at: units::time(units::whole_secs(wall_clock(at))),
                has_come: at <= self.time.now(),
            }),
            by_sender: row.by_sender,
            found_by_look: row.facts.found_by_look,
            looks_back: row.looks_back,
        })
    }
}
