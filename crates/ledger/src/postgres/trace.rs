//! Reads what is on record about messages: two round trips, each in a transaction that sees one
//! state.

use std::time::{Instant, UNIX_EPOCH};

use postgres::Row;
use postgres::types::Type;

use super::PostgresLedger;
use super::columns::INDEXED;
use super::connection::{Connection, Statement};
use crate::doubts;
use crate::{TraceBuilder, rows};
use onedrop_core::ledger::ATTEMPTS;
use onedrop_core::ledger::{LedgerError, OVERDUE, Records, Trace, TraceFilter, wanted_hashes};
use onedrop_core::text;

/// Messages by Message-ID ($1: hashes), queue id, recipient or account ($2), at most $3 of each.
const NAMED: &str = "
WITH wanted AS (
    SELECT id FROM onedrop_message WHERE id_hash = ANY ($1)
    UNION
    (SELECT message_id FROM onedrop_attempt WHERE queue_id = $2 AND message_id IS NOT NULL
     GROUP BY message_id ORDER BY message_id DESC LIMIT $3)
    UNION
    (SELECT message_id FROM onedrop_attempt WHERE lower(recipient) = lower($2)
       AND message_id IS NOT NULL
     GROUP BY message_id ORDER BY message_id DESC LIMIT $3)
    UNION
    (SELECT message_id FROM onedrop_copy WHERE account IN ($2, lower($2))
     GROUP BY message_id ORDER BY message_id DESC LIMIT $3)
)";

/// The newest $4 of them, or of all, since $5 (seconds since 1970), that match sender ($6), subject
/// ($7) and "not everything is delivered" ($8). Without a name the index on `recorded_at` bounds
/// the scan.
const MESSAGES: &str = "
SELECT m.id, id_hash, message_id, digest, {recorded_at}, subject, {date}, size_bytes,
       in_reply_to, reference_ids,
       message_id IS NOT NULL AND EXISTS (
           SELECT FROM onedrop_message o WHERE o.id_hash = m.id_hash AND o.digest <> m.digest),
       EXISTS (SELECT FROM onedrop_raw r WHERE r.message_id = m.id), addresses, parts
FROM {wanted}
WHERE m.recorded_at >= to_timestamp($5)
  AND ($6::text IS NULL OR position(lower($6) IN lower(m.sender)) > 0 OR EXISTS (
       SELECT FROM json_array_elements(m.addresses::json) a
       WHERE a->>0 = 'from' AND position(lower($6) IN lower(a->>1)) > 0))
  AND ($7::text IS NULL OR position(lower($7) IN lower(m.subject)) > 0)
  AND (NOT $8
       OR EXISTS (SELECT FROM onedrop_copy c WHERE c.message_id = m.id AND c.placed_at IS NULL
                    AND (c.due_at IS NULL
                         OR c.due_at <= clock_timestamp() - {overdue} * interval '1 second'))
       OR EXISTS (SELECT FROM onedrop_attempt_text a
                  WHERE a.message_id = m.id AND a.outcome IS DISTINCT FROM 'delivered'
                    AND NOT EXISTS (SELECT FROM onedrop_attempt_text later
                                    WHERE later.message_id = m.id
                                    AND lower(later.recipient) = lower(a.recipient)
                                      AND later.id > a.id AND later.outcome = 'delivered')))
ORDER BY m.recorded_at DESC, m.id DESC LIMIT $4";

/// With further conditions, this many of the newest messages of a recipient or account are read.
const LOOKED_AT: i64 = 10_000;

const COPIES: &str = "
SELECT message_id, account, mailbox, placed_at IS NOT NULL,
       coalesce(leased_until > clock_timestamp(), false), {in_doubt}, uid_validity, uid, file_name,
       {placed_at}, epoch::bigint, coalesce(owner, ''), {leased_until}, nul_replaced, found_by_look,
       (SELECT why FROM onedrop_kept k
        WHERE k.message_id = c.message_id AND c.shared AND c.placed_at IS NULL),
       {due_at}, by_sender, wrapped
FROM onedrop_copy c WHERE message_id = ANY ($1) ORDER BY shared, id";

/// The newest {attempts} attempts of each message ($1), and those without a message row, at most so
/// many: with the same Message-IDs ($2) and {others}, unless one message alone is asked for: by
/// Message-ID ($3), queue id or recipient ($4); without a name, all of them. Further conditions as
/// above ($5 to $8; attempts have no subject).
const ATTEMPTS_OF: &str = "
SELECT a.message_id, NULL::bytea, {started_at}, recipient, coalesce(a.sender, m.sender), queue_id,
       host, pid::bigint, coalesce(duration_ms, c.attempt_ms)::bigint,
       CASE WHEN c.id IS NULL THEN outcome ELSE 'delivered' END, status, detail, c.account,
       c.mailbox, c.uid_validity, c.uid, c.file_name, counted.on_record, reason
FROM unnest($1) AS wanted (id)
     CROSS JOIN LATERAL (
         SELECT n.id, count(*) OVER () AS on_record FROM onedrop_attempt n
         WHERE n.message_id = wanted.id ORDER BY n.id DESC LIMIT {attempts}) counted
     JOIN onedrop_attempt a ON a.id = counted.id
     JOIN onedrop_message m ON m.id = a.message_id
     LEFT JOIN onedrop_copy c ON c.message_id = a.message_id AND c.attempt_id = a.id
                              AND a.outcome IS NULL
UNION ALL
(SELECT message_id, id_hash, {started_at}, recipient, coalesce(sender, ''), queue_id, host,
        pid::bigint, duration_ms::bigint, outcome, status, detail, NULL, NULL, NULL, NULL, NULL,
        count(*) OVER (PARTITION BY id_hash), reason
 FROM onedrop_attempt a
 WHERE message_id IS NULL AND (id_hash = ANY ($2) {others})
 ORDER BY id DESC LIMIT {attempts})
ORDER BY 3";

const OTHERS: &str = "OR CASE WHEN $4::text IS NULL THEN {unrecorded}
                            ELSE $4 <> '' AND (id_hash = ANY ($3) OR queue_id = $4
                                               OR lower(recipient) = lower($4)) END
    AND started_at >= to_timestamp($5) AND $7::text IS NULL AND (NOT $8 OR {unrecorded})
    AND ($6::text IS NULL OR position(lower($6) IN lower(sender)) > 0)";

const UNRECORDED: &str = "NOT EXISTS (SELECT FROM onedrop_message m WHERE m.id_hash = a.id_hash)";

impl Records for PostgresLedger {
    fn trace(
        &self,
        filter: &TraceFilter<'_>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<Trace>, LedgerError> {
        self.call(until, |connection| trace(connection, filter, limit))
    }
}

/// [`Pages::story`](onedrop_core::ledger::Pages::story).
pub(super) fn story(
    connection: &mut Connection,
    message: i64,
) -> Result<Option<Trace>, LedgerError> {
    let filter = TraceFilter { message: Some(message), ..TraceFilter::default() };
    Ok(trace(connection, &filter, 1)?.pop())
}

fn trace(
    connection: &mut Connection,
    filter: &TraceFilter<'_>,
    limit: u32,
) -> Result<Vec<Trace>, LedgerError> {
    let name = filter.name.map(|name| text::within(name.trim(), INDEXED));
    let name = if filter.message.is_some() { Some("".into()) } else { name };
    if filter.message.is_none() && name.as_deref() == Some("") {
        return Ok(Vec::new());
    }
    let hashes = filter.name.map(wanted_hashes).unwrap_or_default();
    let hashes: Vec<&[u8]> = hashes.iter().map(|hash| hash.as_slice()).collect();
    let TraceFilter { since, sender, subject, failed, .. } = filter;
    let is_plain = since.is_none() && sender.is_none() && subject.is_none() && !failed;
    let of_each = if is_plain { i64::from(limit) } else { LOOKED_AT };
    let sql = with_times(MESSAGES);
    let sql = match (name.as_deref(), filter.message) {
        (_, Some(message)) => {
            let one = format!("(SELECT * FROM onedrop_message WHERE id = {message}) m");
            sql.replace("{wanted}", &one)
        }
        (Some(_), None) => format!(
            "{NAMED}{}",
            sql.replace("{wanted}", "onedrop_message m JOIN wanted USING (id)")
        ),
        (None, None) => sql.replace("{wanted}", "onedrop_message m"),
    };
    let wanted = Statement::new(&sql)
        .with(&hashes, Type::BYTEA_ARRAY)
        .with(&name, Type::TEXT)
        .with(of_each, Type::INT8)
        .with(i64::from(limit), Type::INT8);
    let mut found = TraceBuilder::default();
    connection.query(conditions(wanted, filter))?.iter().try_for_each(|row| found.message(row))?;
    let ids = found.messages();
    let about = |sql: &str| Statement::new(with_times(sql)).with(&ids, Type::INT8_ARRAY);
    let others = if filter.message.is_some() { "" } else { OTHERS };
    let attempts = about(&ATTEMPTS_OF.replace("{others}", others))
        .with(found.hashes(), Type::BYTEA_ARRAY)
        .with(&hashes, Type::BYTEA_ARRAY)
        .with(&name, Type::TEXT);
    let attempts = conditions(attempts, filter);
    let answers = connection.read(&[about(COPIES), attempts])?;
    type Add = fn(&mut TraceBuilder, &Row) -> Result<(), LedgerError>;
    let adds: [Add; 2] = [TraceBuilder::copy, TraceBuilder::attempt];
    for (rows, add) in answers.iter().zip(adds) {
        rows.iter().try_for_each(|row| add(&mut found, row))?;
    }
    Ok(found.newest_first(limit))
}

/// The parameters of further conditions.
fn conditions<'a>(statement: Statement<'a>, filter: &TraceFilter<'a>) -> Statement<'a> {
    let within = |text: Option<&'a str>| text.map(|text| text::within(text, INDEXED));
    statement
        .with(rows::secs(filter.since.unwrap_or(UNIX_EPOCH)), Type::FLOAT8)
        .with(within(filter.sender), Type::TEXT)
        .with(within(filter.subject), Type::TEXT)
        .with(filter.failed, Type::BOOL)
}

/// Replaces each `{column}` that is a time by its ISO 8601 text in UTC, and `{unrecorded}`.
pub(super) fn with_times(sql: &str) -> String {
    let times = [("recorded_at", ""), ("date", ""), ("placed_at", ".MS"), ("leased_until", ".MS")];
    let sql = sql.replace("{in_doubt}", doubts::IN_DOUBT);
    let sql = sql.replace("{unrecorded}", UNRECORDED).replace("{attempts}", &ATTEMPTS.to_string());
    let mut sql = sql.replace("{overdue}", &OVERDUE.as_secs().to_string());
    for (column, millis) in times.into_iter().chain([("started_at", ".MS"), ("due_at", "")]) {
        let text = format!(
            r#"to_char({column} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS{millis}"Z"')"#
        );
        sql = sql.replace(&format!("{{{column}}}"), &text);
    }
    sql
}
