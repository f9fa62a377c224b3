//! Receipts of copies, and leases that are given back.

use std::time::Duration;

use mysql_async::Row;

use super::attempts;
use super::claims::{LockedCopy, look_again};
use super::connection::MariadbSession;
use super::kept::forget_kept;
use super::statement::{SqlBatch, Value, values};
use crate::ledger::rows;
use crate::ledger::{Claim, Confirmed, CopyFacts, LedgerError, ToConfirm};
use crate::receipt::Receipt;

/// Puts a receipt on record in the open transaction, which `row` was read and locked in, and ends
/// it: the first receipt wins, whatever its epoch.
pub(super) fn confirm(
    connection: &mut MariadbSession,
    row: Option<&Row>,
    one: &ToConfirm<'_>,
) -> Result<Confirmed, LedgerError> {
    let ToConfirm { claim, receipt, facts, end } = *one;
    let Some(row) = row else {
        // Forgotten since: what was written under the old value leaves a doubt.
        let (which, values) = ("id = ?1 AND value <> ?2", values![claim.copy, claim.value.bytes()]);
        let mut batch = SqlBatch::default();
        second_copy(&mut batch, which, values);
        connection.commit(batch)?;
        return Err(LedgerError::Forgotten);
    };
    let copy = LockedCopy::read(row)?;
    let mut batch = SqlBatch::default();
    match copy.receipt {
        None => store_receipt(&mut batch, &copy, &claim, receipt, facts),
        // Receipts without a name are equal only if no other claim can have been placed.
        Some(by)
            if by != *receipt
                || *receipt == Receipt::Unnamed && copy.placed_epoch != claim.epoch =>
        {
            second_copy(&mut batch, "id = ?1", values![claim.copy]);
            connection.commit(batch)?;
            return Ok(Confirmed::Superseded { by });
        }
        Some(_) => {}
    }
    if let Some((attempt, end)) = end {
        let (account, mailbox) = &copy.place;
        let stored = (copy.id, account.as_slice(), mailbox.as_slice(), receipt);
        attempts::end(&mut batch, attempt, end, Some(stored));
    }
    connection.commit(batch)?;
    Ok(Confirmed::Recorded)
}

/// A second copy may stand: a look has to settle that, and one that has read the row before this
/// settles nothing.
fn second_copy(batch: &mut SqlBatch, which: &str, values: &[Value<'_>]) {
    let sql = "UPDATE onedrop_copy SET epoch = epoch + 1, settled_at = NULL WHERE";
    batch.add(&format!("{sql} {which}"), values);
    look_again(batch, which, values, Duration::ZERO);
}

fn store_receipt(
    batch: &mut SqlBatch,
    copy: &LockedCopy,
    claim: &Claim,
    receipt: &Receipt,
    facts: CopyFacts,
) {
    let (validity, uid, name) = rows::columns(receipt);
    batch.add(
        "UPDATE onedrop_copy SET placed_at = UTC_TIMESTAMP(6), leased_until = NULL,
             lease_value = NULL,
             in_doubt = FALSE, uid_validity = ?2, uid = ?3, file_name = ?4, nul_replaced = ?5,
             found_by_look = ?6, placed_epoch = ?7
         WHERE id = ?1",
        values![
            claim.copy,
            validity,
            uid,
            name,
            facts.nul_replaced,
            facts.found_by_look,
            claim.epoch
        ],
    );
    if copy.shared {
        forget_kept(batch, &copy.message.to_string());
    }
}

/// Gives back leases, in the order in which claims lock rows.
pub(super) fn release(
    connection: &mut MariadbSession,
    claims: &[Claim],
) -> Result<(), LedgerError> {
    let mut order: Vec<&Claim> = claims.iter().collect();
    order.sort_by_key(|claim| claim.copy);
    let mut batch = SqlBatch::default();
    for claim in order {
        batch.add(
            "UPDATE onedrop_copy SET leased_until = NULL, in_doubt = prior_doubt
             WHERE id = ?1 AND value = ?2 AND epoch = ?3 AND placed_at IS NULL",
            values![claim.copy, claim.value.bytes(), claim.epoch],
        );
    }
    connection.write(batch).map(drop)
}
