//! What `onedrop status` asks, and the rows of hosts: by row numbers, and by the indexes of the
//! times when messages were recorded and attempts began. Each bound goes as a value into the next
//! statement: an engine plans for what it is, and MariaDB would else read a whole index to it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use super::{SqlSession, first, rows_at, sql};
use crate::PooledLedger;
use crate::rows::{INDEXED, SqlRow, length};
use onedrop_core::ledger::{
    AttemptCount, HostRow, LedgerError, MOST_ATTEMPTS, MOST_COPIES, MOST_HOSTS, MOST_OPEN,
    OpenCopies, Overview, RecentAttempts, SCHEMA_VERSION,
};
use onedrop_core::text;

/// How long ago the attempt with number ?1, or the next, began, if there are some before it.
const BEGAN: &str = "
SELECT {ago(started_at)} FROM onedrop_attempt
WHERE id >= ?1 AND EXISTS (SELECT 1 FROM onedrop_attempt WHERE id < ?1)
ORDER BY id LIMIT 1";

/// How the attempts ended that began at most ?1 seconds ago; of those in copies' rows, from copy ?2
/// on.
const COUNTS: &str = "
SELECT outcome, reason, status, {int(duration_ms)}, COUNT(*)
FROM onedrop_attempt WHERE started_at >= {since(?1)} GROUP BY 1, 2, 3, 4
UNION ALL
SELECT CASE WHEN attempt_ms IS NOT NULL THEN 'delivered' END,
       CASE WHEN attempt_ms IS NOT NULL THEN 'delivered' END,
       CASE WHEN attempt_ms IS NOT NULL THEN '2.0.0' END, {int(attempt_ms)}, COUNT(*)
FROM onedrop_copy WHERE id >= ?2 AND recipient IS NOT NULL AND began_at >= {since(?1)}
GROUP BY attempt_ms";

/// Likewise how many each host began.
const HOSTS_OF: &str = "
SELECT host, COUNT(*) FROM onedrop_attempt WHERE started_at >= {since(?1)} GROUP BY host
UNION ALL
SELECT host, COUNT(*) FROM onedrop_copy
WHERE id >= ?2 AND recipient IS NOT NULL AND began_at >= {since(?1)} GROUP BY host";

/// The first message that was recorded at most ?1 seconds ago: its number, or a null.
const FIRST_MESSAGE: &str = "
SELECT (SELECT m.id FROM onedrop_message m WHERE m.recorded_at >= {since(?1)}
        ORDER BY m.recorded_at, m.id LIMIT 1)";

/// The first copy of the first message from ?1 on that has one, and the last copy of all.
const FIRST_COPY: &str = "
SELECT (SELECT MIN(c.id) FROM onedrop_copy c WHERE c.message_id = (
            SELECT f.message_id FROM onedrop_copy f WHERE f.message_id >= ?1
            ORDER BY f.message_id LIMIT 1)),
       (SELECT MAX(id) FROM onedrop_copy)";

/// How many seconds ago the message of the first copy from ?1 on was recorded.
const RECORDED: &str = "
SELECT {ago(m.recorded_at)}
FROM (SELECT message_id FROM onedrop_copy WHERE id >= ?1 ORDER BY id LIMIT 1) first
     JOIN onedrop_message m ON m.id = first.message_id";

/// How many seconds ago the first attempt began that lives in the row of a copy from ?1 on.
const BEGAN_IN: &str = "
SELECT {ago(began_at)} FROM onedrop_copy WHERE id >= ?1 AND recipient IS NOT NULL
ORDER BY id LIMIT 1";

/// Of copies from ?1 on, and of those before that are looked at again, ?2 each at most: whether its
/// lease was given back, and how many seconds ago its message was recorded.
const OPEN: &str = "
SELECT o.leased_until IS NULL, {ago(m.recorded_at)} FROM (
    SELECT * FROM (SELECT c.message_id, c.leased_until FROM onedrop_copy c
                   WHERE c.id >= ?1 AND {is_open} LIMIT ?2) late
    UNION ALL
    SELECT * FROM (SELECT c.message_id, c.leased_until
                   FROM onedrop_unsettled u {with_copies(c.id = u.copy_id)}
                   WHERE u.copy_id < ?1 AND {is_open} LIMIT ?2) early
) o {message_of(o.message_id)}";

const IS_OPEN: &str = "c.placed_at IS NULL AND {in_doubt} AND c.due_at IS NULL
    AND (c.leased_until IS NULL OR {lease_left(c.)} <= 0)";

/// How many, at most ?2, are kept for ?1 seconds or longer. Copies are asked for by each message:
/// EXISTS may become a hash of the whole table.
const KEPT: &str = "
SELECT COUNT(*) FROM (
    SELECT k.message_id FROM onedrop_kept k
    WHERE k.kept_at <= {since(?1)}
      AND (SELECT 1 FROM onedrop_copy c
           WHERE c.message_id = k.message_id AND c.shared AND c.placed_at IS NULL
             AND (c.due_at IS NULL OR c.due_at <= {since(?1)}) LIMIT 1) IS NOT NULL
    LIMIT ?2) kept";

const HOSTS: &str = "
SELECT host, program_version, {int(schema_version)}, {ago(seen_at)}, clock_offset_ms
FROM onedrop_host WHERE seen_at >= {since(?1)} ORDER BY host LIMIT ?2";

const NOTE: &str = "
INSERT INTO onedrop_host (host, program_version, schema_version, seen_at, clock_offset_ms)
VALUES (?1, ?2, ?3, {now}, {ahead_ms(?4)})
{upsert(host)} program_version = {new(program_version)}, schema_version = {new(schema_version)},
    seen_at = {new(seen_at)}, clock_offset_ms = {new(clock_offset_ms)}";

impl<S: SqlSession + 'static> Overview for PooledLedger<S> {
    fn recent_attempts(
        &self,
        back: Duration,
        until: Instant,
    ) -> Result<RecentAttempts, LedgerError> {
        self.call(until, |session| {
            let asked = [
                sql!("SELECT {secs({now})}, (SELECT MAX(id) FROM onedrop_attempt)"),
                sql!(FIRST_MESSAGE, secs(back)),
            ];
            let answers = SqlSession::read(session, &asked)?;
            let row = only(rows_at(&answers, 0))?;
            let now = SystemTime::UNIX_EPOCH + length(row.cell(0)?);
            let before_most = row.cell::<Option<i64>>(1)?.unwrap_or(0) - i64::from(MOST_ATTEMPTS);
            let oldest = session.value::<f64>(&sql!(BEGAN, before_most + 1))?.map(length);
            let message = first_message(first(&answers, 1)?);
            let (copy, reach) = first_copy(session, message, (MOST_ATTEMPTS, BEGAN_IN))?;
            let reach = [oldest, reach].into_iter().flatten().fold(back, Duration::min);
            let asked = [sql!(COUNTS, secs(reach), copy), sql!(HOSTS_OF, secs(reach), copy)];
            let answers = SqlSession::read(session, &asked)?;
            let counts = rows_at(&answers, 0).iter().map(attempt_count);
            let counts = counts.collect::<Result<_, LedgerError>>()?;
            let mut hosts = BTreeMap::new();
            for row in rows_at(&answers, 1) {
                *hosts.entry(row.cell(0)?).or_default() +=
                    row.cell::<i64>(1)?.max(0).unsigned_abs();
            }
            let hosts = hosts.into_iter().collect();
            Ok(RecentAttempts { now, reach, counts: merged(counts), hosts })
        })
    }

    fn open_copies(
        &self,
        back: Duration,
        kept_for: Duration,
        until: Instant,
    ) -> Result<OpenCopies, LedgerError> {
        self.call(until, |session| {
            let asked = [sql!(FIRST_MESSAGE, secs(back)), sql!(KEPT, secs(kept_for), MOST_OPEN)];
            let answers = SqlSession::read(session, &asked)?;
            let of = |at: usize| answers.get(at).and_then(|answer| answer.rows.first());
            let message = first_message(of(0).map(|row| row.cell(0)).transpose()?);
            let kept: Option<i64> = of(1).map(|row| row.cell(0)).transpose()?;
            let (copy, reach) = first_copy(session, message, (MOST_COPIES, RECORDED))?;
            let mut open = OpenCopies {
                reach: reach.unwrap_or(back),
                kept: kept.unwrap_or(0).max(0).unsigned_abs(),
                ..OpenCopies::default()
            };
            let copies = sql!(OPEN.replace("{is_open}", IS_OPEN), copy, MOST_OPEN);
            session.rows(&copies)?.iter().try_for_each(|row| add_open_copy(&mut open, row))?;
            Ok(open)
        })
    }

    fn hosts(&self, back: Duration, until: Instant) -> Result<Vec<HostRow>, LedgerError> {
        let query = sql!(HOSTS, secs(back), MOST_HOSTS);
        self.call(until, |session| session.rows(&query)?.iter().map(host_row).collect())
    }

    fn note_host(&self, host: &str, version: &str, until: Instant) -> Result<(), LedgerError> {
        self.call(until, |session| {
            let host = text::within(host, INDEXED);
            let note = sql!(NOTE, host, version, SCHEMA_VERSION, SystemTime::now());
            session.change_unsynced(&note).map(drop)
        })
    }
}

/// What [`FIRST_MESSAGE`] says; above all numbers where there is none.
fn first_message(found: Option<Option<i64>>) -> i64 {
    found.flatten().unwrap_or(i64::MAX)
}

/// The first copy to look through, of messages from this number on, and, if there are more than
/// `most`, what `ago` says of it: [`RECORDED`] or [`BEGAN_IN`].
fn first_copy<S: SqlSession>(
    session: &mut S,
    message: i64,
    (most, ago): (u32, &str),
) -> Result<(i64, Option<Duration>), LedgerError> {
    let rows = session.rows(&sql!(FIRST_COPY, message))?;
    let row = only(&rows)?;
    let (first, top) = (row.cell::<Option<i64>>(0)?, row.cell::<Option<i64>>(1)?.unwrap_or(0));
    let first_of_most = top - i64::from(most) + 1;
    match first {
        None => Ok((top + 1, None)),
        Some(first) if first >= first_of_most => Ok((first, None)),
        Some(_) => {
            let ago: Option<f64> = session.value(&sql!(ago, first_of_most))?;
            Ok((first_of_most, ago.map(length)))
        }
    }
}

/// Those that ended alike, counted together.
fn merged(mut counts: Vec<AttemptCount>) -> Vec<AttemptCount> {
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
fn only<R>(rows: &[R]) -> Result<&R, LedgerError> {
    rows.first().ok_or_else(|| LedgerError::Broken("a question without an answer".to_owned()))
}

/// Outcome, reason, status, milliseconds, count.
fn attempt_count(row: &impl SqlRow) -> Result<AttemptCount, LedgerError> {
    let unsigned = |number: i64| number.max(0).unsigned_abs();
    Ok(AttemptCount {
        outcome: row.cell(0)?,
        reason: row.cell(1)?,
        status: row.cell(2)?,
        millis: row.cell::<Option<i64>>(3)?.map(unsigned),
        count: unsigned(row.cell(4)?),
    })
}

/// Adds a row of [`OPEN`].
fn add_open_copy(open: &mut OpenCopies, row: &impl SqlRow) -> Result<(), LedgerError> {
    let ago = length(row.cell(1)?);
    if row.cell(0)? {
        open.in_doubt += 1;
    } else {
        open.leases_over += 1;
    }
    open.oldest = open.oldest.max(Some(ago));
    Ok(())
}

/// A row of [`HOSTS`].
fn host_row(row: &impl SqlRow) -> Result<HostRow, LedgerError> {
    Ok(HostRow {
        host: row.cell(0)?,
        program_version: row.cell(1)?,
        schema_version: row.cell(2)?,
        seen_ago: length(row.cell(3)?),
        clock_offset_ms: row.cell(4)?,
    })
}

/// The value of it: within what each engine can take from its time.
fn secs(back: Duration) -> f64 {
    back.as_secs_f64().min(1e9)
}
