//! Attempts: statements for a transaction.

use super::statement::{SqlBatch, Value};
use crate::ledger::{Attempt, AttemptEnd, rows};
use crate::message::Identity;
use crate::text;

/// Bytes of a text in an indexed column.
pub(super) const INDEXED: usize = 1000;
/// Bytes of a text in any other column.
pub(super) const LONGEST: usize = 4000;

/// Puts an attempt on record that has begun now; `message` is SQL.
pub(super) fn insert(batch: &mut SqlBatch, message: &str, identity: &Identity, by: &Attempt) {
    let sql = format!(
        "INSERT INTO onedrop_attempt (message_id, id_hash, recipient, sender, queue_id, host, pid,
             started_at)
         VALUES ({message}, ?1, ?2, ?3, ?4, ?5, ?6, UTC_TIMESTAMP(6))"
    );
    let mut values = vec![Value::from(&identity.id_hash)];
    values.extend(of(by));
    batch.add(&sql, &values);
}

/// Puts an attempt on record that has ended now.
pub(super) fn insert_ended(
    batch: &mut SqlBatch,
    message: &str,
    identity: &Identity,
    by: &Attempt,
    ended: &AttemptEnd,
) {
    let sql = format!(
        "INSERT INTO onedrop_attempt (message_id, id_hash, recipient, sender, queue_id, host, pid,
             started_at, duration_ms, outcome, status, detail)
         VALUES ({message}, ?1, ?2, ?3, ?4, ?5, ?6,
                 TIMESTAMPADD(MICROSECOND, -1000 * LEAST(?7, 1000000000000), UTC_TIMESTAMP(6)),
                 ?7, ?8, ?9, ?10)"
    );
    let mut values = vec![Value::from(&identity.id_hash)];
    values.extend(of(by));
    values.extend(of_end(ended));
    batch.add(&sql, &values);
}

/// Puts an attempt's end on record. A row that is gone is no error.
pub(super) fn end(batch: &mut SqlBatch, attempt: i64, ended: &AttemptEnd) {
    let mut values = vec![Value::from(attempt)];
    values.extend(of_end(ended));
    batch.add(
        "UPDATE onedrop_attempt SET duration_ms = ?2, outcome = ?3, status = ?4, detail = ?5
         WHERE id = ?1",
        &values,
    );
}

/// Arguments and environment variables may hold any text.
fn of(by: &Attempt) -> [Value<'_>; 5] {
    let recipient = by.recipient.to_lowercase();
    [
        Value::from(text::within(&recipient, INDEXED).into_owned()),
        Value::from(text::within(&by.sender, INDEXED)),
        Value::from(text::within(&by.queue_id, INDEXED)),
        Value::from(text::within(&by.host, INDEXED)),
        Value::from(by.pid),
    ]
}

fn of_end(ended: &AttemptEnd) -> [Value<'_>; 4] {
    [
        Value::from(rows::millis(ended.duration)),
        Value::from(ended.outcome),
        Value::from(text::within(&ended.status, LONGEST)),
        Value::from(text::within(&ended.text, LONGEST)),
    ]
}
