//! What the web pages ask of Postgres. Everything is asked in read-only transactions with a time
//! limit: settings of the session would stay with a pooler's connection, and those at its start a
//! pooler may refuse.

use std::ops::Range;
use std::time::{Instant, SystemTime};

use postgres::Row;
use postgres::types::Type;

use super::PostgresLedger;
use super::columns::INDEXED;
use super::connection::Statement;
use super::dialect::DIALECT;
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

/// Copies are asked for by each message: EXISTS may become a hash of the whole table.
const LINE: &str = "
SELECT m.id, m.message_id, {recorded_at}, m.sender, m.subject, m.size_bytes,
       (SELECT true FROM onedrop_copy c WHERE c.message_id = m.id AND c.placed_at IS NULL
        LIMIT 1) IS NOT NULL";

/// By Message-ID ($1: hashes), queue id, recipient or account ($2), below $3, at most $4. OFFSET
/// keeps the server from walking through all messages to the few that have the name. What a
/// recipient got is read a message at a time: that never sorts all of it.
const NAMED: &str = "
FROM (
    (SELECT id FROM (SELECT id FROM onedrop_message WHERE id_hash = ANY ($1) OFFSET 0) one
     WHERE id < $3 ORDER BY id DESC LIMIT $4)
    UNION
    (SELECT DISTINCT message_id FROM (SELECT message_id FROM onedrop_attempt
                                      WHERE queue_id = $2 AND queue_id <> '' OFFSET 0) one
     WHERE message_id < $3 ORDER BY message_id DESC LIMIT $4)
    UNION
    (WITH RECURSIVE got (message_id) AS (
         SELECT max(message_id) FROM onedrop_attempt
         WHERE lower(recipient) = lower($2) AND message_id IS NOT NULL AND message_id < $3
         UNION ALL
         SELECT (SELECT max(message_id) FROM onedrop_attempt
                 WHERE lower(recipient) = lower($2) AND message_id IS NOT NULL
                   AND message_id < got.message_id)
         FROM got WHERE got.message_id IS NOT NULL)
     SELECT message_id FROM got WHERE message_id IS NOT NULL LIMIT $4)
    UNION
    (SELECT DISTINCT message_id FROM onedrop_copy WHERE account = $2 AND message_id < $3
     ORDER BY message_id DESC LIMIT $4)
    UNION
    (SELECT DISTINCT message_id FROM onedrop_copy WHERE account = lower($2) AND message_id < $3
     ORDER BY message_id DESC LIMIT $4)
    ORDER BY 1 DESC LIMIT $4) wanted (id)
    CROSS JOIN LATERAL (SELECT * FROM onedrop_message WHERE id = wanted.id OFFSET 0) m
ORDER BY m.id DESC";

/// From $1 to below $2 with $3, at most $4.
const WITH_PART: &str = "
FROM onedrop_message m
WHERE m.id >= $1 AND m.id < $2 AND {part} ORDER BY m.id DESC LIMIT $4";

const SENDER: &str = "(position(lower($3) IN lower(m.sender)) > 0 OR EXISTS (
    SELECT FROM json_array_elements(m.addresses::json) a
    WHERE a->>0 = 'from' AND position(lower($3) IN lower(a->>1)) > 0))";

const SUBJECT: &str = "position(lower($3) IN lower(m.subject)) > 0";

/// From $1 to below $2, by reason $3, name $4 with its hashes $5, unrecorded $6, at most $7.
const FAILURES: &str = "
SELECT id, message_id, {started_at}, recipient, queue_id, host, pid::bigint, duration_ms::bigint,
       outcome, coalesce(status, ''), coalesce(detail, ''), coalesce(reason, status, '')
FROM onedrop_attempt
WHERE id >= $1 AND id < $2 AND outcome IN ('tempfail', 'permfail')
  AND ($3::text IS NULL OR coalesce(reason, status, '') = $3)
  AND ($4::text IS NULL OR queue_id = $4 OR lower(recipient) = lower($4) OR id_hash = ANY ($5))
  AND (NOT $6 OR message_id IS NULL)
ORDER BY id DESC LIMIT $7";

/// From $1 to below $2, begun from $3 to before $4.
const ACTIVITY: &str = "
SELECT minute, outcome, reason, slowness, count(id) FROM (
    SELECT a.id, floor(extract(epoch FROM a.started_at) / 60)::bigint AS minute,
           CASE WHEN c.id IS NULL THEN a.outcome ELSE 'delivered' END AS outcome,
           CASE WHEN a.outcome <> 'delivered' THEN coalesce(a.reason, a.status) END AS reason,
           ({slowness})::bigint AS slowness
    FROM onedrop_attempt a
         LEFT JOIN onedrop_copy c ON c.message_id = a.message_id AND c.attempt_id = a.id
                                  AND a.outcome IS NULL
    WHERE a.id >= $1 AND a.id < $2
      AND a.started_at >= to_timestamp($3) AND a.started_at < to_timestamp($4)
) one GROUP BY 1, 2, 3, 4";

/// Of messages from $1 to below $2, at most $3.
const UNPLACED: &str = "
WITH wanted AS (
    SELECT id FROM onedrop_copy
    WHERE message_id >= $1 AND message_id < $2 AND placed_at IS NULL
    ORDER BY message_id, id LIMIT $3)
{copy} ORDER BY c.message_id, c.id";

/// Behind $1, at most $2.
const UNSETTLED: &str = "
WITH wanted AS (
    SELECT c.id FROM onedrop_unsettled u
         CROSS JOIN LATERAL (SELECT * FROM onedrop_copy WHERE id = u.copy_id OFFSET 0) c
    WHERE u.copy_id > $1 AND {wants_a_look}
    ORDER BY u.copy_id LIMIT $2)
{copy} ORDER BY c.id";

/// With the time's column and the table.
fn numbered(of: Numbered) -> &'static str {
    match of {
        Numbered::Message => {
            "SELECT id, extract(epoch FROM recorded_at)::bigint FROM onedrop_message"
        }
        Numbered::Attempt => {
            "SELECT id, extract(epoch FROM started_at)::bigint FROM onedrop_attempt"
        }
    }
}

impl PostgresLedger {
    fn lines<T>(
        &self,
        until: Instant,
        statement: impl Fn() -> Statement<'static>,
        line: fn(&Row) -> Result<T, LedgerError>,
    ) -> Result<Vec<T>, LedgerError> {
        self.call(until, |connection| connection.query(statement())?.iter().map(line).collect())
    }
}

impl Pages for PostgresLedger {
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
        let hashes = wanted_hashes(name);
        let hashes: Vec<Vec<u8>> = hashes.iter().map(|hash| hash.to_vec()).collect();
        let name = text::within(name, INDEXED).into_owned();
        let statement = || {
            Statement::new(with_times(&format!("{LINE}{NAMED}")))
                .with(hashes.clone(), Type::BYTEA_ARRAY)
                .with(name.clone(), Type::TEXT)
                .with(before, Type::INT8)
                .with(i64::from(limit), Type::INT8)
        };
        self.lines(until, statement, pages::message_line)
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
        let part = text::within(part, INDEXED).into_owned();
        let sql = format!("{LINE}{}", WITH_PART.replace("{part}", condition));
        let statement = || {
            Statement::new(with_times(&sql))
                .with(numbers.start, Type::INT8)
                .with(numbers.end, Type::INT8)
                .with(part.clone(), Type::TEXT)
                .with(i64::from(limit), Type::INT8)
        };
        self.lines(until, statement, pages::message_line)
    }

    fn failures(
        &self,
        filter: &FailureFilter<'_>,
        numbers: &Range<i64>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<AttemptLine>, LedgerError> {
        let hashes = filter.name.map(wanted_hashes).unwrap_or_default();
        let hashes: Vec<Vec<u8>> = hashes.iter().map(|hash| hash.to_vec()).collect();
        let within = |text: Option<&str>| text.map(|text| text::within(text, INDEXED).into_owned());
        let (reason, name) = (within(filter.reason), within(filter.name));
        let statement = || {
            Statement::new(with_times(FAILURES))
                .with(numbers.start, Type::INT8)
                .with(numbers.end, Type::INT8)
                .with(reason.clone(), Type::TEXT)
                .with(name.clone(), Type::TEXT)
                .with(hashes.clone(), Type::BYTEA_ARRAY)
                .with(filter.unrecorded, Type::BOOL)
                .with(i64::from(limit), Type::INT8)
        };
        self.lines(until, statement, pages::attempt_line)
    }

    fn activity(
        &self,
        numbers: &Range<i64>,
        times: &Range<SystemTime>,
        until: Instant,
    ) -> Result<Vec<ActivityRow>, LedgerError> {
        let sql = pages::with_slowness(ACTIVITY, "coalesce(a.duration_ms, c.attempt_ms)");
        let statement = || {
            Statement::new(sql.clone())
                .with(numbers.start, Type::INT8)
                .with(numbers.end, Type::INT8)
                .with(rows::secs(times.start), Type::FLOAT8)
                .with(rows::secs(times.end), Type::FLOAT8)
        };
        self.lines(until, statement, pages::activity_row)
    }

    fn unplaced_copies(
        &self,
        messages: &Range<i64>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        let statement = || {
            Statement::new(UNPLACED.replace("{copy}", &DIALECT.spell(verify::COPY)))
                .with(messages.start, Type::INT8)
                .with(messages.end, Type::INT8)
                .with(i64::from(limit), Type::INT8)
        };
        self.lines(until, statement, rows::copy_on_record)
    }

    fn unsettled_copies(
        &self,
        after: i64,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        let statement = || {
            Statement::new(
                UNSETTLED
                    .replace("{wants_a_look}", doubts::WANTS_A_LOOK)
                    .replace("{copy}", &DIALECT.spell(verify::COPY)),
            )
            .with(after, Type::INT8)
            .with(i64::from(limit), Type::INT8)
        };
        self.lines(until, statement, rows::copy_on_record)
    }

    fn row_from(
        &self,
        of: Numbered,
        number: i64,
        until: Instant,
    ) -> Result<Option<(i64, SystemTime)>, LedgerError> {
        let sql = format!("{} WHERE id >= $1 ORDER BY id LIMIT 1", numbered(of));
        let statement = || Statement::new(sql.clone()).with(number, Type::INT8);
        Ok(self.lines(until, statement, pages::numbered_row)?.into_iter().next())
    }

    fn last_row(
        &self,
        of: Numbered,
        until: Instant,
    ) -> Result<Option<(i64, SystemTime)>, LedgerError> {
        let sql = format!("{} ORDER BY id DESC LIMIT 1", numbered(of));
        let statement = || Statement::new(sql.clone());
        Ok(self.lines(until, statement, pages::numbered_row)?.into_iter().next())
    }
}
