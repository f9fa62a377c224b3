//! What the web pages ask, in read-only transactions. A page goes by row numbers, or by the index
//! of what is asked for, never through all that is on record.

use std::ops::Range;
use std::time::{Instant, SystemTime};

use super::verify::COPY;
use super::{Sql, SqlSession, sql, story};
use crate::PooledLedger;
use crate::rows::{self, INDEXED, SqlRow};
use onedrop_core::ledger::{
    ActivityRow, AttemptLine, CopyOnRecord, FailureFilter, LedgerError, MessageLine, MessagePart,
    Numbered, Pages, SLOWER_MS, Trace, wanted_hashes,
};
use onedrop_core::text;

/// Bytes of a Message-ID that are shown in a line.
const ID_BYTES: usize = 200;

/// Copies are asked for by each message: EXISTS may become a hash of the whole table.
const LINE: &str = "
SELECT m.id, m.message_id, {iso(m.recorded_at)}, m.sender, m.subject, m.size_bytes,
       (SELECT 1 FROM onedrop_copy c WHERE c.message_id = m.id AND c.placed_at IS NULL
        LIMIT 1) IS NOT NULL";

/// By queue id, recipient or account (?1, in lower case ?2), or the hash of a Message-ID (?5, ?6),
/// below ?3, at most ?4.
const NAMED: &str = "
FROM (
    SELECT * FROM (SELECT id FROM (SELECT id FROM onedrop_message
                                   WHERE {hashed(id_hash, ?5)} OR {hashed(id_hash, ?6)} {fence}) one
                   WHERE id < ?3 ORDER BY id DESC LIMIT ?4) named
    UNION
    SELECT * FROM (SELECT DISTINCT message_id
                   FROM (SELECT message_id FROM onedrop_attempt
                         WHERE queue_id = ?1 AND queue_id <> '' {fence}) one
                   WHERE message_id < ?3 ORDER BY message_id DESC LIMIT ?4) queued
    UNION
    SELECT * FROM (SELECT message_id
                   FROM (SELECT message_id FROM onedrop_copy
                         WHERE queue_id = ?1 AND queue_id <> '' {fence}) one
                   WHERE message_id < ?3 ORDER BY message_id DESC LIMIT ?4) queued_once
    UNION
    SELECT * FROM ({received(?1, ?2, ?3, ?4)}) received
    UNION
    SELECT * FROM (SELECT message_id FROM onedrop_copy
                   WHERE {folded(recipient)} = {fold(?1, ?2)} AND message_id < ?3
                   ORDER BY message_id DESC LIMIT ?4) received_once
    UNION
    SELECT * FROM (SELECT DISTINCT message_id FROM onedrop_copy
                   WHERE account = ?1 AND message_id < ?3
                   ORDER BY message_id DESC LIMIT ?4) placed
    UNION
    SELECT * FROM (SELECT DISTINCT message_id FROM onedrop_copy
                   WHERE account = {fold(?1, ?2)} AND message_id < ?3
                   ORDER BY message_id DESC LIMIT ?4) lower
    ORDER BY 1 DESC LIMIT ?4) wanted {message_of(wanted.id)}
ORDER BY m.id DESC";

/// From ?1 to below ?2 with ?3, at most ?4.
const WITH_PART: &str = "
FROM onedrop_message m
WHERE m.id >= ?1 AND m.id < ?2 AND {part} ORDER BY m.id DESC LIMIT ?4";

const SENDER: &str = "({has(m.sender, ?3)} OR {from_has(m, ?3)})";

const SUBJECT: &str = "{has(m.subject, ?3)}";

/// From ?1 to below ?2, by reason ?3, name ?4 (in lower case ?5) with its hashes ?6 and ?7,
/// unrecorded ?8, at most ?9.
const FAILURES: &str = "
SELECT id, message_id, {iso_ms(started_at)}, recipient, queue_id, host, {int(pid)},
       {int(duration_ms)}, outcome, coalesce(status, ''), coalesce(detail, ''),
       coalesce(reason, status, '')
FROM onedrop_attempt
WHERE id >= ?1 AND id < ?2 AND outcome IN ('tempfail', 'permfail')
  AND (?3 IS NULL OR coalesce(reason, status, '') = ?3)
  AND (?4 IS NULL OR queue_id = ?4 OR {folded(recipient)} = {fold(?4, ?5)}
       OR id_hash IN (?6, ?7))
  AND (NOT ?8 OR message_id IS NULL)
ORDER BY id DESC LIMIT ?9";

/// Begun from ?3 to before ?4; what lives in copies' rows, of messages from ?1 to below ?2.
const ACTIVITY: &str = "
SELECT minute, outcome, reason, slowness, COUNT(minute) FROM (
    SELECT {minute(started_at)} AS minute, outcome,
           CASE WHEN outcome <> 'delivered' THEN coalesce(reason, status) END AS reason,
           {int({slowness(duration_ms)})} AS slowness
    FROM onedrop_attempt WHERE started_at >= ?3 AND started_at < ?4
    UNION ALL
    SELECT {minute(began_at)}, CASE WHEN attempt_ms IS NOT NULL THEN 'delivered' END, NULL,
           {int({slowness(attempt_ms)})}
    FROM onedrop_copy WHERE message_id >= ?1 AND message_id < ?2 AND recipient IS NOT NULL
      AND began_at >= ?3 AND began_at < ?4
) one GROUP BY 1, 2, 3, 4";

/// Of messages from ?1 to below ?2, at most ?3.
const UNPLACED: &str = "
WITH wanted AS (
    SELECT id FROM onedrop_copy
    WHERE message_id >= ?1 AND message_id < ?2 AND placed_at IS NULL
    ORDER BY message_id, id LIMIT ?3)
{copy} ORDER BY c.message_id, c.id";

/// After ?1, at most ?2.
const UNSETTLED: &str = "
WITH wanted AS (
    SELECT c.id FROM onedrop_unsettled u {with_copies(c.id = u.copy_id)}
    WHERE u.copy_id > ?1 AND {wants_a_look}
    ORDER BY u.copy_id LIMIT ?2)
{copy} ORDER BY c.id";

fn numbered(of: Numbered) -> &'static str {
    match of {
        Numbered::Message => "SELECT id, {whole(recorded_at)} FROM onedrop_message",
        Numbered::Attempt => "SELECT id, {whole(started_at)} FROM onedrop_attempt",
    }
}

fn lines<S: SqlSession + 'static, T>(
    ledger: &PooledLedger<S>,
    until: Instant,
    query: &Sql<'_>,
    line: fn(&S::Row) -> Result<T, LedgerError>,
) -> Result<Vec<T>, LedgerError> {
    ledger.call(until, |session| session.rows(query)?.iter().map(line).collect())
}

impl<S: SqlSession + 'static> Pages for PooledLedger<S> {
    fn story(&self, message: i64, until: Instant) -> Result<Option<Trace>, LedgerError> {
        self.call(until, |session| story(session, message))
    }

    fn messages_named(
        &self,
        name: &str,
        before: i64,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<MessageLine>, LedgerError> {
        let hashes = wanted_hashes(name);
        let hash = |one: Option<&[u8; 32]>| one.map(|hash| hash.to_vec());
        let name = text::within(name, INDEXED);
        let query = sql!(
            format!("{LINE}{NAMED}"),
            name.as_ref(),
            name.to_lowercase(),
            before,
            limit,
            hash(hashes.first()),
            hash(hashes.last()),
        );
        lines(self, until, &query, message_line)
    }

    fn messages_with(
        &self,
        part: MessagePart<'_>,
        numbers: &Range<i64>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<MessageLine>, LedgerError> {
        let (condition, part) = match part {
            MessagePart::Sender(part) => (SENDER, part),
            MessagePart::Subject(part) => (SUBJECT, part),
        };
        let query = sql!(
            format!("{LINE}{}", WITH_PART.replace("{part}", condition)),
            numbers.start,
            numbers.end,
            text::within(part, INDEXED),
            limit,
        );
        lines(self, until, &query, message_line)
    }

    fn failures(
        &self,
        filter: &FailureFilter<'_>,
        numbers: &Range<i64>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<AttemptLine>, LedgerError> {
        let hashes = filter.name.map(wanted_hashes).unwrap_or_default();
        let hash = |one: Option<&[u8; 32]>| one.map(|hash| hash.to_vec());
        let name = filter.name.map(|name| text::within(name, INDEXED));
        let query = sql!(
            FAILURES,
            numbers.start,
            numbers.end,
            filter.reason.map(|reason| text::within(reason, INDEXED)),
            name.clone(),
            name.map(|name| name.to_lowercase()),
            hash(hashes.first()),
            hash(hashes.last()),
            filter.unrecorded,
            limit,
        );
        lines(self, until, &query, attempt_line)
    }

    fn activity(
        &self,
        messages: &Range<i64>,
        times: &Range<SystemTime>,
        until: Instant,
    ) -> Result<Vec<ActivityRow>, LedgerError> {
        let sql = ["duration_ms", "attempt_ms"].iter().fold(ACTIVITY.to_owned(), |sql, column| {
            sql.replace(&format!("{{slowness({column})}}"), &slowness(column))
        });
        let query = sql!(sql, messages.start, messages.end, times.start, times.end);
        lines(self, until, &query, activity_row)
    }

    fn unplaced_copies(
        &self,
        messages: &Range<i64>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        let sql = UNPLACED.replace("{copy}", COPY);
        let query = sql!(sql, messages.start, messages.end, limit);
        lines(self, until, &query, rows::copy_on_record)
    }

    fn unsettled_copies(
        &self,
        after: i64,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        let query = sql!(UNSETTLED.replace("{copy}", COPY), after, limit);
        lines(self, until, &query, rows::copy_on_record)
    }

    fn row_from(
        &self,
        of: Numbered,
        number: i64,
        until: Instant,
    ) -> Result<Option<(i64, SystemTime)>, LedgerError> {
        let query = sql!(format!("{} WHERE id >= ?1 ORDER BY id LIMIT 1", numbered(of)), number);
        Ok(lines(self, until, &query, numbered_row)?.into_iter().next())
    }

    fn last_row(
        &self,
        of: Numbered,
        until: Instant,
    ) -> Result<Option<(i64, SystemTime)>, LedgerError> {
        let query = sql!(format!("{} ORDER BY id DESC LIMIT 1", numbered(of)));
        Ok(lines(self, until, &query, numbered_row)?.into_iter().next())
    }
}

/// SQL for [`ActivityRow::slowness`] of a column with milliseconds.
fn slowness(column: &str) -> String {
    let cases: String = SLOWER_MS
        .iter()
        .enumerate()
        .map(|(at, bound)| format!(" WHEN {column} < {bound} THEN {at}"))
        .collect();
    format!("CASE WHEN {column} IS NULL THEN NULL{cases} ELSE {} END", SLOWER_MS.len())
}

/// Number, Message-ID, time, sender, subject, size, whether a copy is not placed.
fn message_line(row: &impl SqlRow) -> Result<MessageLine, LedgerError> {
    Ok(MessageLine {
        number: row.cell(0)?,
        message_id: row.cell::<Option<Vec<u8>>>(1)?.map(|id| text::of_bytes(&id, ID_BYTES)),
        recorded_at: row.cell(2)?,
        sender: row.cell(3)?,
        subject: row.cell(4)?,
        size_bytes: row.cell(5)?,
        is_open: row.cell(6)?,
    })
}

/// Number, message, begin, recipient, queue id, host, process id, duration, outcome, status, text,
/// reason.
fn attempt_line(row: &impl SqlRow) -> Result<AttemptLine, LedgerError> {
    Ok(AttemptLine {
        number: row.cell(0)?,
        message: row.cell(1)?,
        started_at: row.cell(2)?,
        recipient: row.cell(3)?,
        queue_id: row.cell(4)?,
        host: row.cell(5)?,
        pid: row.cell(6)?,
        duration_ms: row.cell(7)?,
        outcome: row.cell(8)?,
        status: row.cell(9)?,
        text: row.cell(10)?,
        reason: row.cell(11)?,
    })
}

/// Minute, outcome, reason, slowness, how many.
fn activity_row(row: &impl SqlRow) -> Result<ActivityRow, LedgerError> {
    let slowness: Option<i64> = row.cell(3)?;
    Ok(ActivityRow {
        minute: row.cell(0)?,
        outcome: row.cell(1)?,
        reason: row.cell(2)?,
        slowness: slowness
            .and_then(|at| usize::try_from(at).ok())
            .map(|at| at.min(SLOWER_MS.len())),
        attempts: u64::try_from(row.cell::<i64>(4)?).unwrap_or(0),
    })
}

/// Number, seconds since 1970.
fn numbered_row(row: &impl SqlRow) -> Result<(i64, SystemTime), LedgerError> {
    Ok((row.cell(0)?, rows::time(row.cell(1)?)))
}
