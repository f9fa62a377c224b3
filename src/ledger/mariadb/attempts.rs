//! Attempts: statements for a transaction.

use super::statement::{SqlBatch, Value};
use crate::directory::Destination;
use crate::ledger::trace::{PLAIN_STATUS, stored_text};
use crate::ledger::{Attempt, AttemptEnd, rows};
use crate::message::Identity;
use crate::receipt::Receipt;
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
         VALUES ({message}, {}, UTC_TIMESTAMP(6))",
        columns(message)
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
         VALUES ({message}, {},
                 TIMESTAMPADD(MICROSECOND, -1000 * LEAST(?7, 1000000000000), UTC_TIMESTAMP(6)),
                 ?7, ?8, ?9, ?10)",
        columns(message)
    );
    let mut values = vec![Value::from(&identity.id_hash)];
    values.extend(of(by));
    values.extend(of_end(ended));
    batch.add(&sql, &values);
}

/// A copy that an attempt has stored: its row, account and mailbox, and its receipt.
pub(super) type Stored<'a> = (i64, &'a [u8], &'a [u8], &'a Receipt);

/// Puts an attempt's end on record. Where all that is to be said is that it stored this copy, the
/// copy's row says it. A row that is gone is no error.
pub(super) fn end(
    batch: &mut SqlBatch,
    attempt: i64,
    ended: &AttemptEnd,
    stored: Option<Stored<'_>>,
) {
    let plain = stored.filter(|_| ended.outcome == "delivered" && ended.status == PLAIN_STATUS);
    let plain = plain.filter(|(_, account, mailbox, receipt)| {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let place = Destination { account: text(account), mailbox: text(mailbox), shared: false };
        ended.text == stored_text(&place, receipt)
    });
    let [duration, outcome, status, text] = of_end(ended);
    let (status, text) = if plain.is_some() { (Value::Null, Value::Null) } else { (status, text) };
    let copy = Value::from(plain.map(|(copy, ..)| copy));
    batch.add(
        "UPDATE onedrop_attempt SET duration_ms = ?2, outcome = ?3, status = ?4, detail = ?5,
             copy_id = ?6
         WHERE id = ?1",
        &[Value::from(attempt), duration, outcome, status, text, copy],
    );
}

/// What names the attempt: the hash only where there is no message, the sender only where it is not
/// the message's. `message` is SQL.
fn columns(message: &str) -> String {
    format!(
        "IF({message} IS NULL, ?1, NULL), ?2,
                 NULLIF(?3, (SELECT m.sender FROM onedrop_message m WHERE m.id = {message})),
                 ?4, ?5, ?6"
    )
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
