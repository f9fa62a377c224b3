//! Receipts of copies.

use super::attempts;
use super::connection::{MariadbSession, first, rows_at};
use super::dialect::spelt;
use super::statement::{SqlBatch, values};
use crate::sql::claims;
use onedrop_core::ledger::{Confirmed, LedgerError, ToConfirm};

/// Puts a receipt on record, in the open turn or in a transaction of its own, which it ends: in one
/// round trip, if no receipt is on record and the copy is only its account's. This fast way
/// must do what [`claim::confirm`](onedrop_core::ledger::claim::confirm) says of such a row.
pub(super) fn confirm(
    connection: &mut MariadbSession,
    one: &ToConfirm<'_>,
) -> Result<Confirmed, LedgerError> {
    let ToConfirm { claim, receipt, end, .. } = *one;
    let mut batch = SqlBatch::default();
    store_receipt(&mut batch, one);
    batch.add("SELECT @onedrop_placed := ROW_COUNT()", &[]);
    let placed = batch.count() - 1;
    if let Some((attempt, end)) = end {
        attempts::end(&mut batch, attempt, end, (claim.copy, receipt));
    }
    let answers = match connection.is_in_transaction() {
        true => connection.commit(batch)?,
        false => connection.write(batch)?,
    };
    match first::<i64>(rows_at(&answers, placed))? {
        Some(1) => Ok(Confirmed::Recorded),
        _ => confirm_whatever(connection, one),
    }
}

fn store_receipt(batch: &mut SqlBatch, one: &ToConfirm<'_>) {
    let ToConfirm { claim, receipt, facts, .. } = *one;
    batch.add(
        "UPDATE onedrop_copy SET placed_at = UTC_TIMESTAMP(6), leased_until = NULL,
             lease_value = NULL, owner = '',
             in_doubt = FALSE, receipt_kind = ?3, receipt = ?4, nul_replaced = ?5,
             found_by_look = ?6, wrapped = ?7, placed_epoch = ?8
         WHERE id = ?1 AND value = ?2 AND placed_at IS NULL AND NOT shared",
        values![
            claim.copy,
            claim.value.bytes(),
            receipt.kind(),
            receipt.text(),
            facts.nul_replaced,
            facts.found_by_look,
            facts.wrapped,
            claim.epoch
        ],
    );
}

/// The same, whatever is on record.
fn confirm_whatever(
    connection: &mut MariadbSession,
    one: &ToConfirm<'_>,
) -> Result<Confirmed, LedgerError> {
    let ToConfirm { claim, receipt, end, .. } = *one;
    let answers = connection.begin(spelt(&[claims::read_claimed(&claim, true)]))?;
    let read = claims::claimed(rows_at(&answers, 0))?;
    let (confirmed, statements) = claims::confirm(read.as_ref(), one);
    let (change, others) = statements.split_at(statements.len().min(1));
    let mut batch = spelt(change);
    // The attempt says that it delivered only if the receipt is on record.
    batch.add("SELECT @onedrop_placed := ?1 OR ROW_COUNT() > 0", values![change.is_empty()]);
    batch.append(spelt(others));
    if let (Ok(Confirmed::Recorded), Some((attempt, end))) = (&confirmed, end) {
        attempts::end(&mut batch, attempt, end, (claim.copy, receipt));
    }
    claims::is_written(!statements.is_empty(), &connection.commit(batch)?)?;
    confirmed
}
