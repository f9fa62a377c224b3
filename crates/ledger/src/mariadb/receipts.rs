//! Receipts of copies.

use super::connection::{MariadbSession, first, rows_at};
use super::dialect::spelt;
use super::statement::{SqlBatch, values};
use crate::sql::{attempts, claims};
use onedrop_core::ledger::{AttemptKey, Confirmed, LedgerError, ToConfirm};

/// Puts a receipt on record, in the open turn or in a transaction of its own, which it ends: in one
/// round trip, if no receipt is on record and the copy is only its account's, and an attempt in its
/// row has no more to say. This fast way must do what
/// [`claim::confirm`](onedrop_core::ledger::claim::confirm) says of such a row.
pub(super) fn confirm(
    connection: &mut MariadbSession,
    one: &ToConfirm<'_>,
) -> Result<Confirmed, LedgerError> {
    if attempts::is_moved(one) {
        return claims::confirm_alone(connection, one);
    }
    let ends_in_copy = attempts::ends_in_copy(one);
    let ToConfirm { claim, receipt, facts, end, .. } = *one;
    let mut batch = SqlBatch::default();
    batch.add(
        "UPDATE onedrop_copy SET placed_at = UTC_TIMESTAMP(6), leased_until = NULL,
             lease_value = NULL, owner = '',
             in_doubt = FALSE, receipt_kind = ?3, receipt = ?4, nul_replaced = ?5,
             found_by_look = ?6, wrapped = ?7, placed_epoch = ?8,
             attempt_ms = IF(recipient IS NULL, NULL, ?9)
         WHERE id = ?1 AND value = ?2 AND placed_at IS NULL AND NOT shared",
        values![
            claim.copy,
            claim.value.bytes(),
            receipt.kind(),
            receipt.text(),
            facts.nul_replaced,
            facts.found_by_look,
            facts.wrapped,
            claim.epoch,
            end.filter(|_| ends_in_copy).map(|(_, end)| attempts::millis(end)),
        ],
    );
    batch.add("SELECT @onedrop_placed := ROW_COUNT()", &[]);
    if let Some((AttemptKey::Row(attempt), end)) = end {
        // The attempt says that it delivered only if the receipt is on record.
        let mut ended = attempts::end_of_row(attempt, end);
        ended.text.to_mut().push_str(" AND @onedrop_placed = 1");
        batch.append(spelt(&[ended]));
    }
    let answers = match connection.is_in_transaction() {
        true => connection.commit(batch)?,
        false => connection.write(batch)?,
    };
    match first::<i64>(rows_at(&answers, 1))? {
        Some(1) => Ok(Confirmed::Recorded),
        _ => claims::confirm_alone(connection, one),
    }
}
