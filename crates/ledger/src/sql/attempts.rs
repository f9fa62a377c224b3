//! Attempts: that they began, and how they ended.

use std::borrow::Cow;
use std::time::Duration;

use super::claims::{OfMessage, ReadCopy};
use super::{Sql, SqlSession, Value, sql, values};
use crate::rows::{self, INDEXED, LONGEST};
use onedrop_core::ledger::{Attempt, AttemptEnd, LedgerError, PLAIN_STATUS, stored_text};
use onedrop_core::message::Identity;
use onedrop_core::outcome::Reason;
use onedrop_core::receipt::Receipt;
use onedrop_core::text;

/// Reads what no index has: MariaDB would lock the entry of the index alone.
const STAY: &str = "
SELECT looks_back FROM onedrop_message WHERE {hashed(id_hash, ?1)} AND digest = ?2 {stay}";

const END: &str = "
UPDATE onedrop_attempt SET duration_ms = ?4, outcome = ?5, status = ?6, detail = ?7,
       reason = ?8{own_end}
WHERE id = ?3 AND message_id = (
    SELECT id FROM onedrop_message WHERE {hashed(id_hash, ?1)} AND digest = ?2)";

const INSERT: &str = "
INSERT INTO onedrop_attempt (message_id, recipient, sender, queue_id, host, pid, started_at)
VALUES ({message}, {given(?1, ?2)}, ?3, ?4, ?5, ?6, {now})
RETURNING {int(message_id)}, {int(id)}";

/// The hash only where there is no message, the sender only where it is not the message's.
const INSERT_ENDED: &str = "
INSERT INTO onedrop_attempt (message_id, id_hash, recipient, sender, queue_id, host, pid,
                             started_at, duration_ms, outcome, status, detail, reason)
SELECT m.id, CASE WHEN m.id IS NULL THEN ?1 END, {given(?3, ?4)}, NULLIF(?5, m.sender), ?6, ?7, ?8,
       {before(?9)}, ?10, ?11, ?12, ?13, ?14
FROM (SELECT 1) one LEFT JOIN onedrop_message m ON {hashed(m.id_hash, ?1)} AND m.digest = ?2";

const TELL_COPY: &str = "
UPDATE onedrop_copy SET attempt_id = ?2, attempt_ms = ?3 WHERE id = ?1 AND attempt_id IS NULL";

const END_UNLESS_TOLD: &str = "
UPDATE onedrop_attempt SET duration_ms = ?3, outcome = ?4, status = ?5, detail = ?6, reason = ?7
WHERE id = ?2 AND NOT EXISTS (
    SELECT 1 FROM onedrop_copy c WHERE c.id = ?1 AND c.attempt_id = ?2)";

/// Longer than any attempt takes, within the range of every engine's columns.
const LONGEST_ATTEMPT: Duration = Duration::from_millis(i32::MAX.unsigned_abs() as u64);

/// [`Ledger::finish`](onedrop_core::ledger::Ledger::finish).
pub(crate) fn finish<S: SqlSession>(
    session: &mut S,
    identity: &Identity,
    recorded: Option<(i64, &AttemptEnd)>,
    others: &[(Attempt, AttemptEnd)],
) -> Result<(), LedgerError> {
    let (id_hash, digest) = (&identity.id_hash, &identity.digest);
    // The message's row first, as a purge locks it: neither waits for the other crosswise.
    let mut statements = vec![sql!(STAY, id_hash, digest)];
    statements.extend(others.iter().map(|(attempt, end)| insert_ended(identity, attempt, end)));
    statements.extend(recorded.map(|(attempt, end)| {
        let [outcome, status, detail] = texts(end);
        let (reason, took) = (end.reason.map(Reason::word), rows::millis(took(end)));
        sql!(END, id_hash, digest, attempt, took, outcome, status, detail, reason)
    }));
    session.write(&statements).map(drop)
}

/// Puts an attempt on record that has begun now; the numbers of the message and the attempt. The
/// sender only where it is not the one that the message was first recorded with (`None`: by this
/// attempt).
pub(crate) fn insert<'a>(
    message: OfMessage<'_>,
    by: &'a Attempt,
    first_sender: Option<&str>,
) -> Sql<'a> {
    let [recipient, lower, sender, queue_id, host, pid] = of(by);
    let is_another = first_sender.is_some_and(|first| first != text::within(&by.sender, INDEXED));
    let sender = if is_another { sender } else { Value::Text(None) };
    let mut values = vec![recipient, lower, sender, queue_id, host, pid];
    let message = message.with(&mut values);
    Sql { text: INSERT.replace("{message}", &message).into(), values }
}

/// How an attempt ended that recorded this copy's `receipt`. Where it has no more to say than that
/// it stored the copy, the copy's row has it, if that has no other.
pub(crate) fn ending(
    copy: &ReadCopy,
    receipt: &Receipt,
    (attempt, end): (i64, &AttemptEnd),
) -> Vec<Sql<'static>> {
    let is_plain = end.outcome == "delivered"
        && end.status == PLAIN_STATUS
        && end.text == stored_text(&copy.destination, receipt);
    let [outcome, status, detail] = texts(end).map(Cow::into_owned);
    let (reason, took) = (end.reason.map(Reason::word), rows::millis(took(end)));
    let told = is_plain.then(|| sql!(TELL_COPY, copy.number, attempt, took));
    let ended = sql!(END_UNLESS_TOLD, copy.number, attempt, took, outcome, status, detail, reason);
    told.into_iter().chain([ended]).collect()
}

fn insert_ended<'a>(identity: &'a Identity, by: &'a Attempt, end: &'a AttemptEnd) -> Sql<'a> {
    let [outcome, status, detail] = texts(end);
    let mut values = values![&identity.id_hash, &identity.digest];
    values.extend(of(by));
    values.extend(values![
        took(end).as_secs_f64(),
        rows::millis(took(end)),
        outcome,
        status,
        detail,
        end.reason.map(Reason::word),
    ]);
    Sql { text: INSERT_ENDED.into(), values }
}

/// The recipient, also in lower case, the sender, the queue's id, the host, the process.
fn of<'a>(by: &'a Attempt) -> [Value<'a>; 6] {
    let indexed = |text: &'a str| Value::from(text::within(text, INDEXED));
    let lower = text::within(&by.recipient.to_lowercase(), INDEXED).into_owned();
    let pid = i64::from(i32::try_from(by.pid).unwrap_or(i32::MAX));
    [
        indexed(&by.recipient),
        lower.into(),
        indexed(&by.sender),
        indexed(&by.queue_id),
        indexed(&by.host),
        pid.into(),
    ]
}

fn took(end: &AttemptEnd) -> Duration {
    end.duration.min(LONGEST_ATTEMPT)
}

/// Outcome, status, detail. Arguments and environment variables may hold any text.
fn texts(end: &AttemptEnd) -> [Cow<'_, str>; 3] {
    [end.outcome, &*end.status, &*end.text].map(|text| text::within(text, LONGEST))
}
