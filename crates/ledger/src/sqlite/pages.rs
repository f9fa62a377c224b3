//! What the web pages ask of an SQLite ledger. Reads only.

use std::ops::Range;
use std::time::{Instant, SystemTime};

use rusqlite::{Params, Row, params};

use super::trace::{story, with_times};
use super::{SqliteLedger, SqliteSession, read};
use crate::doubts;
use crate::pages::{self};
use crate::rows;
use crate::sql::{SqlSession, sql, verify};
use onedrop_core::ledger::{
    ActivityRow, AttemptLine, FailureFilter, MessageLine, MessagePart, Numbered, Pages,
};
use onedrop_core::ledger::{CopyOnRecord, LedgerError, Trace, wanted_hashes};

const LINE: &str = "
SELECT m.id, m.message_id, {recorded_at}, m.sender, m.subject, m.size_bytes,
       EXISTS (SELECT 1 FROM onedrop_copy c WHERE c.message_id = m.id AND c.placed_at IS NULL)
FROM onedrop_message m";

/// By Message-ID (?1 and ?2 are hashes), queue id, recipient or account (?3, in lower case ?4),
/// below ?5, at most ?6.
const NAMED: &str = "
WHERE m.id IN (SELECT id FROM (
    SELECT * FROM (SELECT id FROM onedrop_message
     WHERE substr(id_hash, 1, 8) IN (substr(?1, 1, 8), substr(?2, 1, 8)) AND id_hash IN (?1, ?2)
       AND id < ?5 ORDER BY id DESC LIMIT ?6)
    UNION
    SELECT * FROM (SELECT DISTINCT message_id FROM onedrop_attempt
     WHERE queue_id = ?3 AND queue_id <> '' AND message_id < ?5 ORDER BY message_id DESC LIMIT ?6)
    UNION
    SELECT * FROM (SELECT DISTINCT message_id FROM onedrop_attempt
     WHERE recipient = ?4 AND message_id IS NOT NULL AND message_id < ?5
     ORDER BY message_id DESC LIMIT ?6)
    UNION
    SELECT * FROM (SELECT DISTINCT message_id FROM onedrop_copy
     WHERE account = ?3 AND message_id < ?5 ORDER BY message_id DESC LIMIT ?6)
    UNION
    SELECT * FROM (SELECT DISTINCT message_id FROM onedrop_copy
     WHERE account = ?4 AND message_id < ?5 ORDER BY message_id DESC LIMIT ?6)))
ORDER BY m.id DESC LIMIT ?6";

/// From ?1 to below ?2 with ?3, at most ?4.
const WITH_PART: &str = "
WHERE m.id >= ?1 AND m.id < ?2 AND {part} ORDER BY m.id DESC LIMIT ?4";

const SENDER: &str = "(instr(lower(m.sender), lower(?3)) > 0 OR EXISTS (
    SELECT 1 FROM json_each(m.addresses) a
    WHERE a.value->>0 = 'from' AND instr(lower(a.value->>1), lower(?3)) > 0))";

const SUBJECT: &str = "instr(lower(m.subject), lower(?3)) > 0";

/// From ?1 to below ?2, by reason ?3, name ?4 (in lower case ?5) with its hashes ?6 and ?7,
/// unrecorded ?8, at most ?9.
const FAILURES: &str = "
SELECT id, message_id, {started_at}, recipient, queue_id, host, pid, duration_ms,
       outcome, coalesce(status, ''), coalesce(detail, ''), coalesce(reason, status, '')
FROM onedrop_attempt
WHERE id >= ?1 AND id < ?2 AND outcome IN ('tempfail', 'permfail')
  AND (?3 IS NULL OR coalesce(reason, status, '') = ?3)
  AND (?4 IS NULL OR queue_id = ?4 OR recipient = ?5 OR id_hash IN (?6, ?7))
  AND (NOT ?8 OR message_id IS NULL)
ORDER BY id DESC LIMIT ?9";

/// From ?1 to below ?2, begun from ?3 to before ?4.
const ACTIVITY: &str = "
SELECT minute, outcome, reason, slowness, count(id) FROM (
    SELECT a.id, CAST(a.started_at / 60 AS INTEGER) AS minute,
           CASE WHEN c.id IS NULL THEN a.outcome ELSE 'delivered' END AS outcome,
           CASE WHEN a.outcome <> 'delivered' THEN coalesce(a.reason, a.status) END AS reason,
           {slowness} AS slowness
    FROM onedrop_attempt a
         LEFT JOIN onedrop_copy c ON c.message_id = a.message_id AND c.attempt_id = a.id
                                  AND a.outcome IS NULL
    WHERE a.id >= ?1 AND a.id < ?2 AND a.started_at >= ?3 AND a.started_at < ?4
) GROUP BY 1, 2, 3, 4";

/// Of messages from ?1 to below ?2, at most ?3; ?6 is the time, ?7 that of the boot whose id is ?8.
const UNPLACED: &str = "
WHERE c.id IN (SELECT id FROM onedrop_copy
    WHERE message_id >= ?1 AND message_id < ?2 AND placed_at IS NULL
    ORDER BY message_id, id LIMIT ?3)
ORDER BY c.message_id, c.id";

/// Behind ?1, at most ?2.
const UNSETTLED: &str = "
WHERE c.id IN (SELECT u.copy_id
    FROM onedrop_unsettled u CROSS JOIN onedrop_copy c ON c.id = u.copy_id
    WHERE u.copy_id > ?1 AND {wants_a_look}
    ORDER BY u.copy_id LIMIT ?2)
ORDER BY c.id";

/// With the time's column and the table.
fn numbered(of: Numbered) -> &'static str {
    match of {
        Numbered::Message => "SELECT id, recorded_at FROM onedrop_message",
        Numbered::Attempt => "SELECT id, CAST(started_at AS INTEGER) FROM onedrop_attempt",
    }
}

/// Every statement but those of a story, by what it is for.
pub(super) fn statements() -> Vec<(&'static str, String)> {
    let line = |rest: &str| with_times(&format!("{LINE}{rest}"));
    let part = |condition| line(&WITH_PART.replace("{part}", condition));
    let activity = pages::with_slowness(ACTIVITY, "coalesce(a.duration_ms, c.attempt_ms)");
    let from = |of| format!("{} WHERE id >= ?1 ORDER BY id LIMIT 1", numbered(of));
    let last = |of| format!("{} ORDER BY id DESC LIMIT 1", numbered(of));
    vec![
        ("named", line(NAMED)),
        ("sender", part(SENDER)),
        ("subject", part(SUBJECT)),
        ("failures", with_times(FAILURES)),
        ("activity", activity),
        ("unplaced", copies(UNPLACED)),
        ("unsettled", copies(&UNSETTLED.replace("{wants_a_look}", doubts::WANTS_A_LOOK))),
        ("message from", from(Numbered::Message)),
        ("attempt from", from(Numbered::Attempt)),
        ("last message", last(Numbered::Message)),
        ("last attempt", last(Numbered::Attempt)),
    ]
}

/// The query for copies that meet the condition.
fn copies(condition: &str) -> String {
    let wanted = "FROM wanted {with_copies(c.id = wanted.id)}";
    verify::COPY.replace(wanted, "FROM onedrop_copy c") + condition
}

fn statement(what: &str) -> String {
    let found = statements().into_iter().find(|(name, _)| *name == what);
    found.map(|(_, sql)| sql).unwrap_or_default()
}

fn lines<T>(
    session: &SqliteSession,
    what: &str,
    params: impl Params,
    line: fn(&Row<'_>) -> Result<T, LedgerError>,
) -> Result<Vec<T>, LedgerError> {
    read(&session.connection, &statement(what), params, line)
}

impl Pages for SqliteLedger {
    fn story(&self, message: i64, until: Instant) -> Result<Option<Trace>, LedgerError> {
        self.call(until, |session| story(&session.connection, &session.clocks.boot()?, message))
    }

    fn messages_named(
        &self,
        name: &str,
        before: i64,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<MessageLine>, LedgerError> {
        let hashes = wanted_hashes(name);
        let (first, last, lower) = (hashes.first(), hashes.last(), name.to_lowercase());
        self.call(until, |session| {
            let params = params![first, last, name, lower, before, limit];
            lines(session, "named", params, |row| pages::message_line(row))
        })
    }

    fn messages_with(
        &self,
        part: MessagePart<'_>,
        numbers: &Range<i64>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<MessageLine>, LedgerError> {
        let (what, part) = match part {
            MessagePart::Sender(part) => ("sender", part),
            MessagePart::Subject(part) => ("subject", part),
        };
        self.call(until, |session| {
            let params = params![numbers.start, numbers.end, part, limit];
            lines(session, what, params, |row| pages::message_line(row))
        })
    }

    fn failures(
        &self,
        filter: &FailureFilter<'_>,
        numbers: &Range<i64>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<AttemptLine>, LedgerError> {
        let FailureFilter { reason, name, unrecorded } = *filter;
        let hashes = name.map(wanted_hashes).unwrap_or_default();
        let (first, last, lower) = (hashes.first(), hashes.last(), name.map(str::to_lowercase));
        self.call(until, |session| {
            let (from, to) = (numbers.start, numbers.end);
            let params = params![from, to, reason, name, lower, first, last, unrecorded, limit];
            lines(session, "failures", params, |row| pages::attempt_line(row))
        })
    }

    fn activity(
        &self,
        numbers: &Range<i64>,
        times: &Range<SystemTime>,
        until: Instant,
    ) -> Result<Vec<ActivityRow>, LedgerError> {
        let (from, to) = (rows::secs(times.start), rows::secs(times.end));
        self.call(until, |session| {
            let params = params![numbers.start, numbers.end, from, to];
            lines(session, "activity", params, |row| pages::activity_row(row))
        })
    }

    fn unplaced_copies(
        &self,
        messages: &Range<i64>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        self.call(until, |session| {
            let query = sql!(statement("unplaced"), messages.start, messages.end, limit);
            session.rows(&query)?.iter().map(rows::copy_on_record).collect()
        })
    }

    fn unsettled_copies(
        &self,
        after: i64,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        self.call(until, |session| {
            let query = sql!(statement("unsettled"), after, limit);
            session.rows(&query)?.iter().map(rows::copy_on_record).collect()
        })
    }

    fn row_from(
        &self,
        of: Numbered,
        number: i64,
        until: Instant,
    ) -> Result<Option<(i64, SystemTime)>, LedgerError> {
        let what = match of {
            Numbered::Message => "message from",
            Numbered::Attempt => "attempt from",
        };
        self.call(until, |session| {
            let found = lines(session, what, [number], |row| pages::numbered_row(row))?;
            Ok(found.into_iter().next())
        })
    }

    fn last_row(
        &self,
        of: Numbered,
        until: Instant,
    ) -> Result<Option<(i64, SystemTime)>, LedgerError> {
        let what = match of {
            Numbered::Message => "last message",
            Numbered::Attempt => "last attempt",
        };
        self.call(until, |session| {
            let found = lines(session, what, [], |row| pages::numbered_row(row))?;
            Ok(found.into_iter().next())
        })
    }
}
