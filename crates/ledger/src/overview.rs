//! Questions and rows of `onedrop status`, which differ between engines in a few fragments.

use std::time::{Duration, SystemTime};

use onedrop_core::ledger::{
    AttemptCount, HostRow, LedgerError, MOST_ATTEMPTS, MOST_COPIES, OpenCopies,
};

use crate::rows::SqlRow;

/// How an engine writes what the queries here need.
pub struct Dialect {
    /// Between `low` and `high`, whole numbers.
    pub middle: &'static str,
    /// Of a time, the first parameter many seconds ago.
    pub then: &'static str,
    /// The seconds since the time in `{}`.
    pub ago: &'static str,
    /// Now, in seconds since 1970.
    pub now: &'static str,
}

impl Dialect {
    fn ago(&self, time: &str) -> String {
        self.ago.replace("{}", time)
    }

    /// The first attempt to count: now, its number, and, if there are more, how many seconds ago it
    /// began. `search` goes by halves between the lowest and the highest number.
    pub fn first_attempt(&self) -> String {
        let Dialect { middle, then, now, .. } = self;
        let is_old = format!(
            "(SELECT a.started_at FROM onedrop_attempt a WHERE a.id >= {middle}
              ORDER BY a.id LIMIT 1) < {then}"
        );
        let first_of_most = format!("top - {MOST_ATTEMPTS} + 1");
        let ago = self.ago("a.started_at");
        format!(
            "WITH RECURSIVE search (low, high, top) AS (
                 SELECT (SELECT MIN(id) FROM onedrop_attempt),
                        (SELECT MAX(id) FROM onedrop_attempt) + 1,
                        (SELECT MAX(id) FROM onedrop_attempt)
                 UNION ALL
                 SELECT CASE WHEN {is_old} THEN {middle} + 1 ELSE low END,
                        CASE WHEN {is_old} THEN high ELSE {middle} END, top
                 FROM search WHERE low < high
             )
             SELECT {now}, CASE WHEN low < {first_of_most} THEN {first_of_most} ELSE low END,
                    CASE WHEN low < {first_of_most} THEN
                        (SELECT {ago} FROM onedrop_attempt a WHERE a.id >= {first_of_most}
                         ORDER BY a.id LIMIT 1) END
             FROM (SELECT 1 AS one) one LEFT JOIN search ON low >= high"
        )
    }

    /// The first copy to look through: its number, and, if there are more, how many seconds ago its
    /// message was recorded.
    pub fn first_copy(&self) -> String {
        let then = self.then;
        let first_of_most = format!("top - {MOST_COPIES} + 1");
        let ago = self.ago("m.recorded_at");
        format!(
            "SELECT CASE WHEN first IS NULL THEN top + 1
                         WHEN first < {first_of_most} THEN {first_of_most} ELSE first END,
                    CASE WHEN first < {first_of_most} THEN
                        (SELECT {ago} FROM onedrop_copy c JOIN onedrop_message m
                             ON m.id = c.message_id
                         WHERE c.id >= {first_of_most} ORDER BY c.id LIMIT 1) END
             FROM (SELECT (
                 SELECT MIN(c.id) FROM onedrop_copy c WHERE c.message_id = (
                     SELECT f.message_id FROM onedrop_copy f WHERE f.message_id >= (
                         SELECT m.id FROM onedrop_message m WHERE m.recorded_at >= {then}
                         ORDER BY m.recorded_at, m.id LIMIT 1)
                     ORDER BY f.message_id LIMIT 1)) AS first,
                 (SELECT MAX(id) FROM onedrop_copy) AS top) bounds"
        )
    }
}

/// Reads [`Dialect::first_attempt`]; the number is `None` where there are no attempts.
pub fn first_attempt(
    row: &impl SqlRow,
) -> Result<(SystemTime, Option<i64>, Option<Duration>), LedgerError> {
    let now = SystemTime::UNIX_EPOCH + seconds(row.cell(0)?);
    Ok((now, row.cell(1)?, row.cell::<Option<f64>>(2)?.map(seconds)))
}

/// Reads [`Dialect::first_copy`]; without a copy the number is 0.
pub fn first_copy(row: &impl SqlRow) -> Result<(i64, Option<Duration>), LedgerError> {
    Ok((row.cell::<Option<i64>>(0)?.unwrap_or(0), row.cell::<Option<f64>>(1)?.map(seconds)))
}

/// How the attempts ended from number {attempt} on, where a copy's row may tell the end of one
/// ([`AttemptEnd`](onedrop_core::ledger::AttemptEnd) with no more to say): such copies are counted
/// by themselves, as those of the messages from {message} on stand together, and a join would look
/// for each one. `coalesce` keeps an engine from the indexes of messages, where most are older.
pub const COUNTS: &str = "
SELECT outcome, reason, status, duration_ms, COUNT(*)
FROM onedrop_attempt WHERE id >= {attempt} GROUP BY 1, 2, 3, 4
UNION ALL
SELECT 'stored', 'delivered', '2.0.0', attempt_ms, COUNT(*)
FROM onedrop_copy WHERE message_id >= {message} AND attempt_id >= {attempt} GROUP BY attempt_ms
UNION ALL
SELECT 'stored', 'delivered', '2.0.0', ms, COUNT(*) FROM (
    SELECT (SELECT c.attempt_ms FROM onedrop_copy c
            WHERE c.message_id = a.message_id AND c.attempt_id = a.id LIMIT 1) AS ms
    FROM onedrop_attempt a
    WHERE a.id >= {attempt} AND coalesce(a.message_id, {message}) < {message}
      AND a.outcome IS NULL) told
WHERE ms IS NOT NULL GROUP BY ms";

/// The first message that was recorded in the asked time: its number, or a null.
pub fn first_message(then: &str) -> String {
    format!(
        "SELECT (SELECT m.id FROM onedrop_message m WHERE m.recorded_at >= {then}
                 ORDER BY m.recorded_at, m.id LIMIT 1)"
    )
}

/// What the rows of [`COUNTS`] stand for: an attempt whose end a copy tells is one without an end
/// of its own.
pub fn counted(mut counts: Vec<AttemptCount>) -> Vec<AttemptCount> {
    let mut told = 0;
    for one in counts.iter_mut().filter(|one| one.outcome.as_deref() == Some("stored")) {
        one.outcome = Some("delivered".to_owned());
        told += one.count;
    }
    for one in counts.iter_mut().filter(|one| one.outcome.is_none()) {
        let own = one.count.min(told);
        one.count -= own;
        told -= own;
    }
    counts.retain(|one| one.count > 0);
    let mut merged: Vec<AttemptCount> = Vec::new();
    counts.sort_by(|a, b| a.key().cmp(&b.key()));
    for one in counts {
        match merged.last_mut().filter(|last| last.key() == one.key()) {
            Some(last) => last.count += one.count,
            None => merged.push(one),
        }
    }
    merged
}

/// The only row of a query that has one.
pub fn only<R>(rows: &[R]) -> Result<&R, LedgerError> {
    rows.first().ok_or_else(|| LedgerError::Broken("a question without an answer".to_owned()))
}

/// Outcome, reason, status, milliseconds, count.
pub fn attempt_count(row: &impl SqlRow) -> Result<AttemptCount, LedgerError> {
    let unsigned = |number: i64| number.max(0).unsigned_abs();
    Ok(AttemptCount {
        outcome: row.cell(0)?,
        reason: row.cell(1)?,
        status: row.cell(2)?,
        millis: row.cell::<Option<i64>>(3)?.map(unsigned),
        count: unsigned(row.cell(4)?),
    })
}

/// Host, count.
pub fn host_count(row: &impl SqlRow) -> Result<(String, u64), LedgerError> {
    Ok((row.cell(0)?, row.cell::<i64>(1)?.max(0).unsigned_abs()))
}

/// Whether its lease was given back, and how many seconds ago its message was recorded.
pub fn add_open_copy(open: &mut OpenCopies, row: &impl SqlRow) -> Result<(), LedgerError> {
    let ago = seconds(row.cell(1)?);
    if row.cell(0)? {
        open.in_doubt += 1;
    } else {
        open.leases_over += 1;
    }
    open.oldest = open.oldest.max(Some(ago));
    Ok(())
}

/// Host, version, schema version, seconds ago, milliseconds.
pub fn host_row(row: &impl SqlRow) -> Result<HostRow, LedgerError> {
    Ok(HostRow {
        host: row.cell(0)?,
        program_version: row.cell(1)?,
        schema_version: row.cell(2)?,
        seen_ago: seconds(row.cell(3)?),
        clock_offset_ms: row.cell(4)?,
    })
}

pub fn seconds(secs: f64) -> Duration {
    Duration::try_from_secs_f64(secs.max(0.0)).unwrap_or(Duration::MAX)
}
