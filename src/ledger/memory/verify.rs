//! What `onedrop verify` asks of a ledger in memory, and the newest copies, for `onedrop check`.

use super::rows::{CopyRow, Rows, wall_clock};
use crate::directory::Destination;
use crate::ledger::{CopyOnRecord, LedgerError, Standing, Window};
use crate::message::Identity;
use crate::receipt::Receipt;

impl Rows {
    pub fn copies_to_verify(
        &self,
        window: &Window<'_>,
        after: Option<&CopyOnRecord>,
        limit: u32,
    ) -> Vec<CopyOnRecord> {
        let after = after.map(|last| (last.destination.account.as_str(), last.copy));
        let mut copies: Vec<CopyOnRecord> = (1..)
            .zip(&self.copies)
            .filter_map(|(id, row)| self.on_record(id, row, window))
            .collect();
        copies.retain(|copy| {
            let place = Some((copy.destination.account.as_str(), copy.copy));
            place > after
                && window.account.is_none_or(|account| account == copy.destination.account)
        });
        copies.sort_by(|a, b| {
            (&a.destination.account, a.copy).cmp(&(&b.destination.account, b.copy))
        });
        copies.truncate(limit as usize);
        copies
    }

    pub fn latest_copies(&self, limit: u32) -> Vec<(Destination, Receipt)> {
        let placed = self
            .copies
            .iter()
            .rev()
            .filter_map(|row| Some((row.destination.clone(), row.receipt.clone()?)));
        placed.take(limit as usize).collect()
    }

    fn on_record(&self, copy: i64, row: &CopyRow, window: &Window<'_>) -> Option<CopyOnRecord> {
        let message =
            usize::try_from(row.message - 1).ok().and_then(|index| self.messages.get(index))?;
        let needs_a_look =
            row.receipt.is_some() && (row.epoch > 1 || row.prior_doubt) && !row.settled;
        let lease_ended_since = row.receipt.is_none()
            && row.leased_until.is_some_and(|until| wall_clock(until) >= window.since);
        let is_kept = message.kept_of(row).is_some();
        if !(message.recorded_at >= window.since || lease_ended_since || needs_a_look || is_kept) {
            return None;
        }
        let is_leased = row.leased_until.is_some_and(|until| until > self.time.now());
        let standing = match &row.receipt {
            Some(receipt) => Standing::Placed {
                receipt: receipt.clone(),
                ago: self.time.now().saturating_sub(row.placed_at),
            },
            None if is_leased => Standing::Leased,
            None if row.in_doubt => {
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
            identity: Identity {
                message_id: message.message_id.clone(),
                id_hash: message.id_hash,
                digest: message.digest,
            },
            size_bytes: message.size_bytes,
            recorded_at: message.recorded_at,
            destination: row.destination.clone(),
            epoch: row.epoch,
            owner: row.owner.clone(),
            standing,
            settled: row.settled,
            may_be_double: row.epoch > 1
                || row.prior_doubt
                || row.receipt.is_none() && row.in_doubt,
        })
    }

    pub fn settle(&mut self, copy: &CopyOnRecord, receipt: &Receipt) -> Result<bool, LedgerError> {
        let row = self.copy(copy.copy, copy.value)?;
        let Standing::Placed { receipt: was, .. } = &copy.standing else { return Ok(false) };
        let is_as_told = row.epoch == copy.epoch && row.receipt.as_ref() == Some(was);
        if is_as_told {
            row.receipt = Some(receipt.clone());
            row.settled = true;
        }
        Ok(is_as_told)
    }
}
