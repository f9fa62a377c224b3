//! Attempts: that they began, and how they ended. One that records a message with one copy lives in
//! the copy's row, and ends there with the copy's receipt, if it has no more to say. Any other, and
//! one that ended otherwise, has a row of its own.

use std::borrow::Cow;
use std::time::Duration;

use super::{Sql, SqlSession, Value, sql, values};
use crate::rows::{self, INDEXED, LONGEST};
use onedrop_core::directory::Destination;
use onedrop_core::ledger::{
    Attempt, AttemptEnd, AttemptKey, LedgerError, PLAIN_STATUS, ToConfirm, stored_text,
};
use onedrop_core::message::Identity;
use onedrop_core::outcome::Reason;
use onedrop_core::receipt::Receipt;
use onedrop_core::text;

/// Reads what no index has: MariaDB would lock the entry of the index alone.
const STAY: &str = "
SELECT looks_back FROM onedrop_message
WHERE {hashed(id_hash, ?1)} AND {digested(digest, ?2)} {stay}";

const END: &str = "
UPDATE onedrop_attempt SET duration_ms = ?2, outcome = ?3, status = ?4, detail = ?5, reason = ?6
WHERE id = ?1";

/// Not of another message, process or recipient: after a fail-over that lost the last commits the
/// number may be given out again.
const OURS: &str = "host = ?9 AND pid = ?10 AND recipient = {given(?11, ?12)}
    AND message_id = (
        SELECT id FROM onedrop_message
        WHERE {hashed(id_hash, ?7)} AND {digested(digest, ?8)})";

const END_IN_COPY: &str = "
UPDATE onedrop_copy SET attempt_ms = ?2 WHERE id = ?1 AND recipient IS NOT NULL";

/// Gives those that live in rows of copies `c` rows of their own.
const MOVE: &str = "
INSERT INTO onedrop_attempt (message_id, recipient, queue_id, host, pid, started_at, duration_ms,
                             outcome, status, detail, reason)
SELECT c.message_id, c.recipient, c.queue_id, c.host, c.pid, c.began_at, {end}
FROM onedrop_copy c WHERE c.recipient IS NOT NULL AND {which}";

/// None lives there any more.
const EMPTY: &str = "
UPDATE onedrop_copy AS c SET recipient = NULL, queue_id = NULL, host = NULL, pid = NULL,
    began_at = NULL, attempt_ms = NULL
WHERE c.recipient IS NOT NULL AND {which}";

const INSERT: &str = "
INSERT INTO onedrop_attempt (message_id, recipient, sender, queue_id, host, pid, started_at)
VALUES ({message}, {given(?1, ?2)}, ?3, ?4, ?5, ?6, {now})
RETURNING {int(id)}, {int(message_id)}";

/// The hash only where there is no message, the sender only where it is not the message's.
const INSERT_ENDED: &str = "
INSERT INTO onedrop_attempt (message_id, id_hash, recipient, sender, queue_id, host, pid,
                             started_at, duration_ms, outcome, status, detail, reason)
SELECT m.id, CASE WHEN m.id IS NULL THEN ?1 END, {given(?3, ?4)}, NULLIF(?5, m.sender), ?6, ?7, ?8,
       {before(?9)}, ?10, ?11, ?12, ?13, ?14
FROM (SELECT 1) one
     LEFT JOIN onedrop_message m ON {hashed(m.id_hash, ?1)} AND {digested(m.digest, ?2)}";

/// The message that attempts and copies belong to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OfMessage<'a> {
    Number(i64),
    /// Which may be about to be recorded.
    Named(&'a Identity),
    /// SQL for the number.
    #[cfg_attr(not(feature = "mariadb"), expect(dead_code))]
    Sql(&'a str),
}

/// Longer than any attempt takes, within the range of every engine's columns.
const LONGEST_ATTEMPT: Duration = Duration::from_millis(i32::MAX.unsigned_abs() as u64);

/// [`Ledger::finish`](onedrop_core::ledger::Ledger::finish).
pub(crate) fn finish<S: SqlSession>(
    session: &mut S,
    identity: &Identity,
    recorded: Option<(AttemptKey, &Attempt, &AttemptEnd)>,
    others: &[(Attempt, AttemptEnd)],
) -> Result<(), LedgerError> {
    let (id_hash, digest) = (&identity.id_hash, &identity.digest);
    // The message's row first, as a purge locks it: neither waits for the other crosswise.
    let mut statements = vec![sql!(STAY, id_hash, digest)];
    statements.extend(others.iter().map(|(attempt, end)| insert_ended(identity, attempt, end)));
    if let Some((key, by, end)) = recorded {
        let (AttemptKey::Row(number) | AttemptKey::Copy(number)) = key;
        let [recipient, lower, _, _, host, pid] = of(by);
        let by = vec![host, pid, recipient, lower];
        let values = [of_end(number, end), values![id_hash, digest], by].concat();
        let which = format!("c.id = ?1 AND {OURS}");
        let sql = |text: String| Sql { text: text.into(), values: values.clone() };
        match key {
            AttemptKey::Row(_) => statements.push(sql(format!("{END} AND {OURS}"))),
            AttemptKey::Copy(_) => {
                let lock = "SELECT c.id FROM onedrop_copy c WHERE {which} {locked(c)}";
                statements.push(sql(lock.replace("{which}", &which)));
                statements.extend(moved(&which, OF_END, values.clone()));
            }
        }
    }
    session.write(&statements).map(drop)
}

/// The columns of a copy's row in which an attempt lives that begins with it, and their values.
pub(crate) fn in_copy<'a>(by: &'a Attempt, values: &mut Vec<Value<'a>>) -> [String; 2] {
    let [recipient, lower, _, queue_id, host, pid] = of(by);
    let first = values.len() + 1;
    values.extend([recipient, lower, queue_id, host, pid]);
    let at = |n: usize| format!("?{}", first + n);
    let recipient = format!("{{given({}, {})}}", at(0), at(1));
    [
        "recipient, queue_id, host, pid, began_at".to_owned(),
        format!("{recipient}, {}, {}, {}, {{now}}", at(2), at(3), at(4)),
    ]
}

/// Puts an attempt on record that has begun now; its number and the message's. The sender only
/// where it is not the one that the message was first recorded with (`None`: by this attempt).
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

/// How the attempt ended that put a receipt on record, of a copy of this message.
pub(crate) fn ending(one: &ToConfirm<'_>, message: i64) -> Vec<Sql<'static>> {
    match one.end {
        None => Vec::new(),
        Some((AttemptKey::Row(attempt), end)) => vec![end_of_row(attempt, end)],
        Some((AttemptKey::Copy(copy), end)) if ends_in_copy(one) => {
            vec![sql!(END_IN_COPY, copy, millis(end))]
        }
        Some((AttemptKey::Copy(copy), end)) => {
            let values = [of_end(copy, end), values![message]].concat();
            moved("c.id = ?1 AND c.message_id = ?7", OF_END, values).to_vec()
        }
    }
}

/// How the attempt ended that has the row with this number.
pub(crate) fn end_of_row(attempt: i64, end: &AttemptEnd) -> Sql<'static> {
    Sql { text: END.into(), values: of_end(attempt, end) }
}

/// Whether the receipt ends the attempt that lives in its copy's row: it is that copy's alone, and
/// has no more to say than that it was stored ([`stored_text`]).
pub(crate) fn ends_in_copy(one: &ToConfirm<'_>) -> bool {
    let Some((AttemptKey::Copy(copy), end)) = one.end else { return false };
    let how = if one.receipt.is_handed() { "handed over account=" } else { "stored account=" };
    let stored = end.text.strip_prefix(how);
    let place = stored.and_then(|stored| stored.strip_suffix(&format!(" {}", one.receipt)));
    copy == one.claim.copy
        && end.outcome == "delivered"
        && end.status == PLAIN_STATUS
        && end.reason == Some(Reason::Delivered)
        && place.is_some_and(|place| !place.contains("; "))
}

/// Whether the receipt leaves the attempt in a copy's row with more to say: it gets a row of its
/// own, by the general path.
pub(crate) fn is_moved(one: &ToConfirm<'_>) -> bool {
    matches!(one.end, Some((AttemptKey::Copy(_), _))) && !ends_in_copy(one)
}

/// Whether an attempt lives in the row of the only copy that it records with a new message.
pub(crate) fn lives_in_copy(is_new: bool, destinations: &[Destination]) -> bool {
    is_new && destinations.len() == 1
}

/// Attempts that live in rows of copies `c` get rows of their own. In SQL: which, and how they
/// ended.
fn moved<'a>(which: &str, ends: &str, values: Vec<Value<'a>>) -> [Sql<'a>; 2] {
    let add = MOVE.replace("{end}", ends).replace("{which}", which);
    let empty = EMPTY.replace("{which}", which);
    [Sql { text: add.into(), values: values.clone() }, Sql { text: empty.into(), values }]
}

/// What ended in a copy's row stays on record when its receipt is forgotten. What runs stays there.
pub(crate) fn kept_end(copy: i64, place: &Destination, receipt: &Receipt) -> [Sql<'static>; 2] {
    let (text, word) = (stored_text(place, receipt), Reason::Delivered.word());
    let values = values![copy, "delivered", PLAIN_STATUS, text, word];
    let which = "c.id = ?1 AND c.attempt_ms IS NOT NULL";
    moved(which, "c.attempt_ms, ?2, ?3, ?4, ?5", values)
}

/// SQL that takes those away which live in rows of the copies of these messages.
pub(crate) fn erased(messages: &str) -> String {
    EMPTY.replace("{which}", &format!("c.message_id IN ({messages})"))
}

/// An attempt's number or its copy's, how long it took in milliseconds, its outcome, status, detail
/// and reason ([`OF_END`]).
fn of_end(number: i64, end: &AttemptEnd) -> Vec<Value<'static>> {
    let [outcome, status, detail] = texts(end).map(Cow::into_owned);
    let reason = end.reason.map(Reason::word);
    values![number, millis(end), outcome, status, detail, reason]
}

const OF_END: &str = "?2, ?3, ?4, ?5, ?6";

fn insert_ended<'a>(identity: &'a Identity, by: &'a Attempt, end: &'a AttemptEnd) -> Sql<'a> {
    let [outcome, status, detail] = texts(end);
    let mut values = values![&identity.id_hash, &identity.digest];
    values.extend(of(by));
    values.extend(values![
        took(end).as_secs_f64(),
        millis(end),
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

/// How long it took, for a column.
pub(crate) fn millis(end: &AttemptEnd) -> i64 {
    rows::millis(took(end))
}

fn took(end: &AttemptEnd) -> Duration {
    end.duration.min(LONGEST_ATTEMPT)
}

/// Outcome, status, detail. Arguments and environment variables may hold any text.
fn texts(end: &AttemptEnd) -> [Cow<'_, str>; 3] {
    [end.outcome, &*end.status, &*end.text].map(|text| text::within(text, LONGEST))
}

impl OfMessage<'_> {
    /// What stands for it in a statement with these values.
    pub fn with(self, values: &mut Vec<Value<'_>>) -> String {
        match self {
            OfMessage::Number(number) => {
                values.push(number.into());
                format!("?{}", values.len())
            }
            OfMessage::Named(Identity { id_hash, digest, .. }) => {
                values.extend(values![id_hash.to_vec(), digest.to_vec()]);
                let (id_hash, digest) = (values.len() - 1, values.len());
                format!(
                    "(SELECT id FROM onedrop_message
                      WHERE {{hashed(id_hash, ?{id_hash})}} AND {{digested(digest, ?{digest})}})"
                )
            }
            OfMessage::Sql(sql) => sql.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onedrop_core::ledger::{Claim, CopyFacts, RandomValue};

    #[test]
    fn what_says_no_more_than_its_receipt_ends_in_the_copy() {
        let value = RandomValue::default();
        let claim = Claim { copy: 7, value, epoch: 1, in_doubt: false, looks_back: false };
        for receipt in [Receipt::uid(1, 2), Receipt::name("n"), Receipt::handed("q")] {
            let plain = stored_text(&Destination::inbox("doug"), &receipt);
            for (text, is_plain) in [
                (plain.clone(), true),
                (format!("{plain}; {plain}"), false),
                (format!("{plain} more"), false),
            ] {
                let end = AttemptEnd {
                    outcome: "delivered",
                    reason: Some(Reason::Delivered),
                    status: PLAIN_STATUS.to_owned(),
                    text,
                    duration: Duration::ZERO,
                };
                let (facts, end) = (CopyFacts::default(), Some((AttemptKey::Copy(7), &end)));
                let one = ToConfirm { claim, receipt: &receipt, facts, end, may_be_lost: false };
                assert_eq!((ends_in_copy(&one), is_moved(&one)), (is_plain, !is_plain), "{end:?}");
            }
        }
    }
}
