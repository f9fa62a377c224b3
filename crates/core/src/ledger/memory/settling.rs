//! What `onedrop settle` asks of a ledger in memory.

use std::time::{Duration, Instant};

use super::MemoryLedger;
use super::rows::{CopyRow, Rows};
use crate::ledger::{Claim, CopyOnRecord, LedgerError, SETTLED_WITHIN, Settling};
use crate::receipt::Receipt;

impl Settling for MemoryLedger {
    fn copies_to_settle(
        &self,
        watched: bool,
        after: Option<&CopyOnRecord>,
        limit: u32,
        _until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        self.call("copies_to_settle", || {
            let rows = self.rows();
            Ok(rows.page(after, limit, |copy, row| rows.is_to_settle(copy, row, watched)))
        })
    }

    fn doubts_to_settle(
        &self,
        after: Option<&CopyOnRecord>,
        limit: u32,
        _until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        self.call("doubts_to_settle", || {
            let rows = self.rows();
            let now = rows.time.wall_clock();
            let is_recent = |row: &CopyRow| {
                let message = rows.messages.get(&row.message);
                message.is_some_and(|message| message.recorded_at + SETTLED_WITHIN >= now)
            };
            Ok(rows.page(after, limit, |_, row| {
                row.is_left_in_doubt(rows.time.of_leases()) && is_recent(row)
            }))
        })
    }

    fn look_again(
        &self,
        copy: &CopyOnRecord,
        after: Option<Duration>,
        _until: Instant,
    ) -> Result<(), LedgerError> {
        self.call("look_again", || {
            let mut rows = self.rows();
            let now = rows.time.now();
            let Ok(row) = rows.copy(copy.copy, copy.value) else { return Ok(()) };
            let is_over = row.receipt.is_some()
                && (row.settled || row.by_sender || !row.doubt().may_be_double());
            match after {
                Some(after) => {
                    rows.unsettled.entry(copy.copy).and_modify(|at| *at = now + after);
                }
                None if is_over => drop(rows.unsettled.remove(&copy.copy)),
                None => {}
            }
            Ok(())
        })
    }

    fn leave_to_sender(
        &self,
        claim: &Claim,
        was: Option<&Receipt>,
        receipt: &Receipt,
        _until: Instant,
    ) -> Result<bool, LedgerError> {
        self.call("leave_to_sender", || {
            let mut rows = self.rows();
            let now = rows.time.now();
            let Ok(row) = rows.copy(claim.copy, claim.value) else { return Ok(false) };
            if row.epoch != claim.epoch {
                return Ok(false);
            }
            if row.receipt.as_ref() != was {
                return Ok(row.by_sender && row.receipt.as_ref() == Some(receipt));
            }
            if row.receipt.is_none() {
                row.placed_at = now;
                row.placed_epoch = claim.epoch;
            }
            row.receipt = Some(receipt.clone());
            row.leased_until = None;
            row.in_doubt = false;
            row.by_sender = true;
            // There is nothing of ours for a second look to find; `settle` looks for a late one.
            row.settled = true;
            row.facts.found_by_look = false;
            let (message, may_come_late) = (row.message, row.prior_doubt);
            if !may_come_late {
                rows.unsettled.remove(&claim.copy);
            }
            rows.forget_kept(message)?;
            Ok(true)
        })
    }

    fn has_namesake(&self, copy: &CopyOnRecord, _until: Instant) -> Result<bool, LedgerError> {
        self.call("has_namesake", || {
            let rows = self.rows();
            let has_its_id = |row: &CopyRow| {
                let message = rows.messages.get(&row.message);
                message.is_some_and(|one| one.identity.id_hash == copy.identity.id_hash)
            };
            Ok(rows.copies.values().any(|row| {
                let at = &row.destination;
                at.account == copy.destination.account
                    && (at.shared || at.place() != "INBOX")
                    && row.message != copy.message
                    && has_its_id(row)
            }))
        })
    }
}

impl CopyRow {
    fn is_left_in_doubt(&self, now: Duration) -> bool {
        self.receipt.is_none()
            && self.leased_until.is_some_and(|until| until <= now)
            && !self.destination.shared
            && self.due_at.is_none()
    }
}

impl Rows {
    /// The next copies that are `wanted`, by account and then by row.
    fn page(
        &self,
        after: Option<&CopyOnRecord>,
        limit: u32,
        wanted: impl Fn(i64, &CopyRow) -> bool,
    ) -> Vec<CopyOnRecord> {
        fn place(copy: &CopyOnRecord) -> (&str, i64) {
            (&copy.destination.account, copy.copy)
        }
        let mut copies: Vec<CopyOnRecord> = self
            .copies
            .iter()
            .filter(|(id, row)| wanted(**id, row))
            .filter_map(|(id, row)| self.row_on_record(*id, row))
            .filter(|copy| after.is_none_or(|last| place(copy) > place(last)))
            .collect();
        copies.sort_by(|a, b| place(a).cmp(&place(b)));
        copies.truncate(limit as usize);
        copies
    }

    fn is_to_settle(&self, copy: i64, row: &CopyRow, watched: bool) -> bool {
        let now = self.time.now();
        let look_has_come = self.unsettled.get(&copy).is_some_and(|at| *at <= now);
        let message = self.messages.get(&row.message);
        match (&row.receipt, row.due_at) {
            (None, Some(due_at)) => !watched && look_has_come && due_at <= now,
            (None, None) => {
                !watched && message.is_some_and(|message| message.kept_of(row).is_some())
            }
            (Some(_), Some(_)) => {
                let may_come_late = row.prior_doubt || !row.settled;
                watched && look_has_come && (!row.by_sender || may_come_late)
            }
            (Some(_), None) => false,
        }
    }
}
