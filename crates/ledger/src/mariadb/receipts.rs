//! Receipts of copies, and leases that are given back.

use std::time::Duration;

use super::attempts;
use super::claims::{self, LockedCopy, look_again};
use super::connection::{MariadbSession, first, rows_at};
use super::kept::forget_kept;
use super::statement::{SqlBatch, Value, values};
use crate::rows;
use onedrop_core::directory::Destination;
use onedrop_core::ledger::{Claim, Confirmed, CopyFacts, LedgerError, ToConfirm};
use onedrop_core::receipt::Receipt;

/// Puts a receipt on record, in the open turn or in a transaction of its own, which it ends: in one
/// round trip, if no receipt is on record and the copy is nobody's but its account's.
pub(super) fn confirm(
    connection: &mut MariadbSession,
    one: &ToConfirm<'_>,
) -> Result<Confirmed, LedgerError> {
    let ToConfirm { claim, receipt, facts, end } = *one;
    let mut batch = SqlBatch::default();
    store_receipt(&mut batch, &claim, receipt, facts, "placed_at IS NULL AND NOT shared");
    batch.add("SELECT @onedrop_placed := ROW_COUNT()", &[]);
    let placed = batch.count() - 1;
    if let Some((attempt, end)) = end {
        let stored = Some((claim.copy, receipt));
        attempts::end(&mut batch, attempt, end, stored, "@onedrop_placed = 1");
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

/// The same, whatever is on record: the first receipt wins, whatever its epoch.
fn confirm_whatever(
    connection: &mut MariadbSession,
    one: &ToConfirm<'_>,
) -> Result<Confirmed, LedgerError> {
    let ToConfirm { claim, receipt, facts, end } = *one;
    let mut batch = SqlBatch::default();
    claims::of_claim(&mut batch, &claim, true);
    let answers = connection.begin(batch)?;
    let Some(row) = rows_at(&answers, 0).first() else {
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
        None => {
            store_receipt(&mut batch, &claim, receipt, facts, "TRUE");
            if copy.shared {
                forget_kept(&mut batch, &copy.message.to_string());
            }
        }
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
        attempts::end(&mut batch, attempt, end, Some((copy.id, receipt)), "TRUE");
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

/// Where `condition` (SQL) holds of the row that the claim names.
fn store_receipt(
    batch: &mut SqlBatch,
    claim: &Claim,
    receipt: &Receipt,
    facts: CopyFacts,
    condition: &str,
) {
    let (validity, uid, name) = rows::columns(receipt);
    batch.add(
        &format!(
            "UPDATE onedrop_copy SET placed_at = UTC_TIMESTAMP(6), leased_until = NULL,
                 lease_value = NULL,
                 in_doubt = FALSE, uid_validity = ?3, uid = ?4, file_name = ?5, nul_replaced = ?6,
                 found_by_look = ?7, wrapped = ?8, placed_epoch = ?9
             WHERE id = ?1 AND value = ?2 AND {condition}"
        ),
        values![
            claim.copy,
            claim.value.bytes(),
            validity,
            uid,
            name,
            facts.nul_replaced,
            facts.found_by_look,
            facts.wrapped,
            claim.epoch
        ],
    );
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
            &format!(
                "UPDATE onedrop_copy SET {}
                 WHERE id = ?1 AND value = ?2 AND epoch = ?3 AND placed_at IS NULL",
                rows::GIVE_BACK
            ),
            values![claim.copy, claim.value.bytes(), claim.epoch],
        );
    }
    connection.write(batch).map(drop)
}

/// As [`Session::receipt_before`](crate::session::Session::receipt_before).
pub(super) fn before(
    connection: &mut MariadbSession,
    message: i64,
    destination: &Destination,
    earlier: Duration,
) -> Result<Option<Receipt>, LedgerError> {
    let secs = rows::secs_before(earlier);
    let sql = rows::receipt_before_sql(&format!("m.recorded_at - INTERVAL {secs} SECOND"));
    let values = values![message, &*destination.account, &*destination.mailbox];
    connection.query(&sql, values)?.first().map(|row| rows::receipt(row, 0)).transpose()
}
