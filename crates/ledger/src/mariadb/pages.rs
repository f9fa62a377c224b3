//! What the web pages ask of MariaDB, in read-only transactions with a time limit.

use std::ops::Range;
use std::time::{Instant, SystemTime};

use mysql_async::Row;

use super::MariadbLedger;
use super::attempts::INDEXED;
use super::dialect::DIALECT;
use super::statement::{Value, list, values};
use super::trace::{story, with_times};
use crate::doubts;
use crate::pages::{self};
use crate::rows;
use crate::sql::verify;
use onedrop_core::ledger::{
    ActivityRow, AttemptLine, FailureFilter, MessageLine, MessagePart, Numbered, Pages,
};
use onedrop_core::ledger::{CopyOnRecord, LedgerError, Trace, wanted_hashes};
use onedrop_core::text;

const LINE: &str = "
SELECT m.id, m.message_id, {recorded_at}, m.sender, m.subject, m.size_bytes,
       EXISTS (SELECT 1 FROM onedrop_copy c WHERE c.message_id = m.id AND c.placed_at IS NULL)
FROM onedrop_message m";

/// By Message-ID ({hashes}), queue id, recipient or account (?1, in lower case ?2), below ?3, at
/// most ?4.
const NAMED: &str = "
JOIN (
    (SELECT id FROM onedrop_message WHERE id_hash IN {hashes} AND id < ?3
     ORDER BY id DESC LIMIT ?4)
    UNION
    (SELECT DISTINCT message_id FROM onedrop_attempt
     WHERE queue_id = ?1 AND queue_id <> '' AND message_id < ?3
     ORDER BY message_id DESC LIMIT ?4)
    UNION
    (SELECT DISTINCT message_id FROM onedrop_attempt WHERE recipient = ?2 AND message_id < ?3
     ORDER BY message_id DESC LIMIT ?4)
    UNION
    (SELECT DISTINCT message_id FROM onedrop_copy
     WHERE account = CAST(?1 AS BINARY) AND message_id < ?3
     ORDER BY message_id DESC LIMIT ?4)
    UNION
    (SELECT DISTINCT message_id FROM onedrop_copy
     WHERE account = CAST(?2 AS BINARY) AND message_id < ?3
     ORDER BY message_id DESC LIMIT ?4)) wanted ON wanted.id = m.id
ORDER BY m.id DESC LIMIT ?4";

/// From ?1 to below ?2 with ?3, at most ?4.
const WITH_PART: &str = "
WHERE m.id >= ?1 AND m.id < ?2 AND {part} ORDER BY m.id DESC LIMIT ?4";

const SENDER: &str = "(LOCATE(LOWER(?3), LOWER(m.sender)) > 0 OR EXISTS (
    SELECT 1 FROM onedrop_address a
    WHERE a.message_id = m.id AND a.role = 'from' AND LOCATE(LOWER(?3), LOWER(a.address)) > 0))";

const SUBJECT: &str = "LOCATE(LOWER(?3), LOWER(m.subject)) > 0";

/// From ?1 to below ?2, by reason ?3, name ?4 (in lower case ?5) with its {hashes}, unrecorded ?6,
/// at most ?7.
const FAILURES: &str = "
SELECT id, message_id, {started_at}, recipient, queue_id, host, pid, duration_ms,
       outcome, COALESCE(status, ''), COALESCE(detail, ''), COALESCE(reason, status, '')
FROM onedrop_attempt
WHERE id >= ?1 AND id < ?2 AND outcome IN ('tempfail', 'permfail')
  AND (?3 IS NULL OR COALESCE(reason, status, '') = ?3)
  AND (?4 IS NULL OR queue_id = ?4 OR recipient = ?5 OR id_hash IN {hashes})
  AND (NOT ?6 OR message_id IS NULL)
ORDER BY id DESC LIMIT ?7";

/// From ?1 to below ?2, begun from ?3 to before ?4.
const ACTIVITY: &str = "
SELECT TIMESTAMPDIFF(MINUTE, '1970-01-01', a.started_at), a.outcome,
       CASE WHEN a.outcome <> 'delivered' THEN COALESCE(a.reason, a.status) END, {slowness},
       COUNT(a.id)
FROM onedrop_attempt a
WHERE a.id >= ?1 AND a.id < ?2 AND a.started_at >= ?3 AND a.started_at < ?4
GROUP BY 1, 2, 3, 4";

/// Of messages from ?1 to below ?2, at most ?3.
const UNPLACED: &str = "
WITH wanted AS (
    SELECT id FROM onedrop_copy
    WHERE message_id >= ?1 AND message_id < ?2 AND placed_at IS NULL
    ORDER BY message_id, id LIMIT ?3)
{copy} ORDER BY c.message_id, c.id";

/// Behind ?1, at most ?2.
const UNSETTLED: &str = "
WITH wanted AS (
    SELECT c.id FROM onedrop_unsettled u STRAIGHT_JOIN onedrop_copy c ON c.id = u.copy_id
    WHERE u.copy_id > ?1 AND {wants_a_look}
    ORDER BY u.copy_id LIMIT ?2)
{copy} ORDER BY c.id";

/// With the time's column and the table.
fn numbered(of: Numbered) -> &'static str {
    match of {
        Numbered::Message => {
            "SELECT id, TIMESTAMPDIFF(SECOND, '1970-01-01', recorded_at) FROM onedrop_message"
        }
        Numbered::Attempt => {
            "SELECT id, TIMESTAMPDIFF(SECOND, '1970-01-01', started_at) FROM onedrop_attempt"
        }
    }
}

impl MariadbLedger {
    fn lines<T>(
        &self,
        until: Instant,
        sql: &str,
        values: &[Value<'_>],
        line: fn(&Row) -> Result<T, LedgerError>,
    ) -> Result<Vec<T>, LedgerError> {
        self.call(until, |connection| connection.query(sql, values)?.iter().map(line).collect())
    }
}

impl Pages for MariadbLedger {
    fn story(&self, message: i64, until: Instant) -> Result<Option<Trace>, LedgerError> {
        self.call(until, |connection| story(connection, message))
    }

    fn messages_named(
        &self,
        name: &str,
        before: i64,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<MessageLine>, LedgerError> {
        let hashes = list(wanted_hashes(name).iter().map(Value::from));
        let name = text::within(name, INDEXED).into_owned();
        let lower = name.to_lowercase();
        let sql = with_times(&format!("{LINE}{NAMED}")).replace("{hashes}", &hashes);
        let values = values![name.as_str(), lower.as_str(), before, limit];
        self.lines(until, &sql, values, pages::message_line)
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
        let part = text::within(part, INDEXED);
        let sql = with_times(&format!("{LINE}{}", WITH_PART.replace("{part}", condition)));
        let values = values![numbers.start, numbers.end, part, limit];
        self.lines(until, &sql, values, pages::message_line)
    }

    fn failures(
        &self,
        filter: &FailureFilter<'_>,
        numbers: &Range<i64>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<AttemptLine>, LedgerError> {
        let hashes = filter.name.map(wanted_hashes).unwrap_or_default();
        let hashes = list(hashes.iter().map(Value::from));
        let within = |text: Option<&str>| text.map(|text| text::within(text, INDEXED).into_owned());
        let (reason, name) = (within(filter.reason), within(filter.name));
        let lower = name.as_deref().map(str::to_lowercase);
        let sql = with_times(FAILURES).replace("{hashes}", &hashes);
        let values =
            values![numbers.start, numbers.end, reason, name, lower, filter.unrecorded, limit];
        self.lines(until, &sql, values, pages::attempt_line)
    }

    fn activity(
        &self,
        numbers: &Range<i64>,
        times: &Range<SystemTime>,
        until: Instant,
    ) -> Result<Vec<ActivityRow>, LedgerError> {
        let sql = pages::with_slowness(ACTIVITY, "a.duration_ms");
        let values = values![numbers.start, numbers.end, times.start, times.end];
        self.lines(until, &sql, values, pages::activity_row)
    }

    fn unplaced_copies(
        &self,
        messages: &Range<i64>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        let sql = UNPLACED.replace("{copy}", &DIALECT.spell(verify::COPY));
        let values = values![messages.start, messages.end, limit];
        self.lines(until, &sql, values, rows::copy_on_record)
    }

    fn unsettled_copies(
        &self,
        after: i64,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        let sql = UNSETTLED
            .replace("{wants_a_look}", doubts::WANTS_A_LOOK)
            .replace("{copy}", &DIALECT.spell(verify::COPY));
        self.lines(until, &sql, values![after, limit], rows::copy_on_record)
    }

    fn row_from(
        &self,
        of: Numbered,
        number: i64,
        until: Instant,
    ) -> Result<Option<(i64, SystemTime)>, LedgerError> {
        let sql = format!("{} WHERE id >= ?1 ORDER BY id LIMIT 1", numbered(of));
        Ok(self.lines(until, &sql, values![number], pages::numbered_row)?.into_iter().next())
    }

    fn last_row(
        &self,
        of: Numbered,
        until: Instant,
    ) -> Result<Option<(i64, SystemTime)>, LedgerError> {
        let sql = format!("{} ORDER BY id DESC LIMIT 1", numbered(of));
        Ok(self.lines(until, &sql, &[], pages::numbered_row)?.into_iter().next())
    }
}
