//! Reads what is on record about messages: two round trips, each in a transaction that sees one
//! state.

use std::time::{Instant, UNIX_EPOCH};

use mysql_async::Row;

use super::MariadbLedger;
use super::attempts::INDEXED;
use super::connection::{MariadbSession, rows_at};
use super::statement::{SqlBatch, Value, list, values};
use crate::TraceBuilder;
use crate::doubts;
use onedrop_core::ledger::ATTEMPTS;
use onedrop_core::ledger::{LedgerError, OVERDUE, Records, Trace, TraceFilter, wanted_hashes};
use onedrop_core::text;

/// Messages by Message-ID ({hashes}), queue id, recipient or account (?1, in lower case ?2), at
/// most ?3 of each.
const NAMED: &str = "
WITH wanted AS (
    SELECT id FROM onedrop_message WHERE id_hash IN {hashes}
    UNION
    (SELECT message_id FROM onedrop_attempt WHERE queue_id = ?1 AND message_id IS NOT NULL
     GROUP BY message_id ORDER BY message_id DESC LIMIT ?3)
    UNION
    (SELECT message_id FROM onedrop_attempt WHERE recipient = ?2 AND message_id IS NOT NULL
     GROUP BY message_id ORDER BY message_id DESC LIMIT ?3)
    UNION
    (SELECT message_id FROM onedrop_copy
     WHERE account IN (CAST(?1 AS BINARY), CAST(?2 AS BINARY))
     GROUP BY message_id ORDER BY message_id DESC LIMIT ?3)
)";

/// The newest ?4 of them, or of all, since ?5, that match sender (?6), subject (?7) and "not
/// everything is delivered" (?8). Without a name the index on `recorded_at` bounds the scan.
const MESSAGES: &str = "
SELECT m.id, m.id_hash, m.message_id, m.digest, {recorded_at}, m.subject, {date}, m.size_bytes,
       m.in_reply_to, m.reference_ids,
       m.message_id IS NOT NULL AND EXISTS (
           SELECT 1 FROM onedrop_message o WHERE o.id_hash = m.id_hash AND o.digest <> m.digest),
       EXISTS (SELECT 1 FROM onedrop_raw r WHERE r.message_id = m.id), m.addresses, m.parts
FROM {wanted}
WHERE m.recorded_at >= ?5
  AND (?6 IS NULL OR LOCATE(LOWER(?6), LOWER(m.sender)) > 0 OR EXISTS (
       SELECT 1 FROM onedrop_address a
       WHERE a.message_id = m.id AND a.role = 'from' AND LOCATE(LOWER(?6), LOWER(a.address)) > 0))
  AND (?7 IS NULL OR LOCATE(LOWER(?7), LOWER(m.subject)) > 0)
  AND (NOT ?8
       OR EXISTS (SELECT 1 FROM onedrop_copy c WHERE c.message_id = m.id AND c.placed_at IS NULL
                    AND (c.due_at IS NULL
                         OR c.due_at <= TIMESTAMPADD(SECOND, -{overdue}, UTC_TIMESTAMP(6))))
       OR EXISTS (SELECT 1 FROM onedrop_attempt a
                  WHERE a.message_id = m.id AND NOT a.outcome <=> 'delivered'
                    AND NOT EXISTS (SELECT 1 FROM onedrop_attempt later
                                    WHERE later.message_id = m.id
                                      AND later.recipient = a.recipient
                                      AND later.id > a.id AND later.outcome = 'delivered')))
ORDER BY m.recorded_at DESC, m.id DESC LIMIT ?4";

/// With further conditions, this many of the newest messages of a recipient or account are read.
const LOOKED_AT: i64 = 10_000;

const COPIES: &str = "
SELECT message_id, account, mailbox, placed_at IS NOT NULL,
       COALESCE(leased_until > UTC_TIMESTAMP(6), 0), {in_doubt}, uid_validity, uid, file_name,
       {placed_at}, epoch, owner, {leased_until}, nul_replaced, found_by_look,
       (SELECT why FROM onedrop_kept k
        WHERE k.message_id = c.message_id AND c.shared AND c.placed_at IS NULL),
       {due_at}, by_sender, wrapped
FROM onedrop_copy c WHERE message_id IN {ids} ORDER BY shared, id";

/// The newest {attempts} attempts of each message, and those without a message row, at most so
/// many: with the same Message-IDs and {others}, unless one message alone is asked for: by
/// Message-ID, queue id or recipient; without a name, all of them. Further conditions as above
/// (attempts have no subject).
const ATTEMPTS_OF: &str = "
(SELECT a.message_id, a.id_hash, {started_at}, a.recipient, COALESCE(a.sender, m.sender),
        a.queue_id, a.host, a.pid, a.duration_ms, a.outcome, a.status, a.detail, c.account,
        c.mailbox, c.uid_validity, c.uid, c.file_name, counted.on_record, a.reason, a.id
 FROM (SELECT id, ROW_NUMBER() OVER (PARTITION BY message_id ORDER BY id DESC) AS behind,
              COUNT(*) OVER (PARTITION BY message_id) AS on_record
       FROM onedrop_attempt WHERE message_id IN {ids}) counted
      JOIN onedrop_attempt a ON a.id = counted.id AND counted.behind <= {attempts}
      JOIN onedrop_message m ON m.id = a.message_id
      LEFT JOIN onedrop_copy c ON c.id = a.copy_id AND a.detail IS NULL)
UNION ALL
(SELECT message_id, id_hash, {started_at}, recipient, COALESCE(sender, ''), queue_id, host, pid,
        duration_ms, outcome, status, detail, NULL, NULL, NULL, NULL, NULL,
        COUNT(*) OVER (PARTITION BY id_hash), reason, id
 FROM onedrop_attempt a
 WHERE message_id IS NULL AND (id_hash IN {found} {others})
 ORDER BY id DESC LIMIT {attempts})
ORDER BY 3, 20";

const OTHERS: &str = "OR IF(?1 IS NULL, {unrecorded},
          ?1 <> '' AND (id_hash IN {hashes} OR queue_id = ?1 OR recipient = ?2))
    AND started_at >= ?5 AND ?7 IS NULL AND (NOT ?8 OR {unrecorded})
    AND (?6 IS NULL OR LOCATE(LOWER(?6), LOWER(sender)) > 0)";

const UNRECORDED: &str = "NOT EXISTS (SELECT 1 FROM onedrop_message m WHERE m.id_hash = a.id_hash)";

impl Records for MariadbLedger {
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
    connection: &mut MariadbSession,
    message: i64,
) -> Result<Option<Trace>, LedgerError> {
    let filter = TraceFilter { message: Some(message), ..TraceFilter::default() };
    Ok(trace(connection, &filter, 1)?.pop())
}

fn trace(
    connection: &mut MariadbSession,
    filter: &TraceFilter<'_>,
    limit: u32,
) -> Result<Vec<Trace>, LedgerError> {
    let name = filter.name.map(|name| text::within(name.trim(), INDEXED));
    let name = if filter.message.is_some() { Some("".into()) } else { name };
    if filter.message.is_none() && name.as_deref() == Some("") {
        return Ok(Vec::new());
    }
    let hashes = filter.name.map(wanted_hashes).unwrap_or_default();
    let hashes = list(hashes.iter().map(Value::from));
    let TraceFilter { since, sender, subject, failed, .. } = *filter;
    let is_plain = since.is_none() && sender.is_none() && subject.is_none() && !failed;
    let of_each = if is_plain { i64::from(limit) } else { LOOKED_AT };
    let within = |part: Option<&str>| part.map(|part| text::within(part, INDEXED).into_owned());
    let lower = name.as_deref().map(str::to_lowercase);
    let values = values![
        name.as_deref(),
        lower.as_deref(),
        of_each,
        limit,
        since.unwrap_or(UNIX_EPOCH),
        within(sender),
        within(subject),
        failed,
    ];
    let sql = match (name.as_deref(), filter.message) {
        (_, Some(message)) => {
            let one = format!("(SELECT * FROM onedrop_message WHERE id = {message}) m");
            MESSAGES.replace("{wanted}", &one)
        }
        (Some(_), None) => format!(
            "{NAMED}{}",
            MESSAGES.replace("{wanted}", "onedrop_message m JOIN wanted ON wanted.id = m.id")
        ),
        (None, None) => MESSAGES.replace("{wanted}", "onedrop_message m"),
    };
    let mut found = TraceBuilder::default();
    let sql = with_times(&sql).replace("{hashes}", &hashes);
    connection.query(&sql, values)?.iter().try_for_each(|row| found.message(row))?;
    let ids = list(found.messages().into_iter().map(Value::from));
    let of_found = found.hashes();
    let of_found = list(of_found.iter().map(|hash| Value::from(hash.as_slice())));
    let about = |sql: &str| {
        with_times(sql)
            .replace("{ids}", &ids)
            .replace("{found}", &of_found)
            .replace("{hashes}", &hashes)
    };
    let mut batch = SqlBatch::of(&about(COPIES), &[]);
    let others = if filter.message.is_some() { "" } else { OTHERS };
    batch.add(&about(&ATTEMPTS_OF.replace("{others}", others)), values);
    let answers = connection.read(batch)?;
    type Add = fn(&mut TraceBuilder, &Row) -> Result<(), LedgerError>;
    let adds: [Add; 2] = [TraceBuilder::copy, TraceBuilder::attempt];
    for (at, add) in adds.into_iter().enumerate() {
        rows_at(&answers, at).iter().try_for_each(|row| add(&mut found, row))?;
    }
    Ok(found.newest_first(limit))
}

/// Replaces each `{column}` that is a time by its ISO 8601 text, and `{unrecorded}`.
pub(super) fn with_times(sql: &str) -> String {
    let times = ["recorded_at", "date", "placed_at", "leased_until", "started_at", "due_at"];
    let sql = sql.replace("{in_doubt}", doubts::IN_DOUBT);
    let sql = sql.replace("{unrecorded}", UNRECORDED).replace("{attempts}", &ATTEMPTS.to_string());
    times.into_iter().fold(
        sql.replace("{overdue}", &OVERDUE.as_secs().to_string()),
        |sql, column| {
            let text = format!("DATE_FORMAT({column}, '%Y-%m-%dT%H:%i:%sZ')");
            sql.replace(&format!("{{{column}}}"), &text)
        },
    )
}
