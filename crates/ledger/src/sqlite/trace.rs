//! What `onedrop trace` reads from an SQLite ledger. Reads only.

use std::time::{Instant, UNIX_EPOCH};

use rusqlite::{Connection, Params, params};

use super::Classified;
use super::copies::copys_lease_end;
use super::{BootTime, SqliteLedger, read};
use crate::TraceBuilder;
use crate::doubts;
use crate::rows::{self, SqlRow};
use onedrop_core::ledger::ATTEMPTS;
use onedrop_core::ledger::{LedgerError, OVERDUE, Records, Trace, TraceFilter, wanted_hashes};
use onedrop_core::lock_key::hex;

impl Records for SqliteLedger {
    fn trace(
        &self,
        filter: &TraceFilter<'_>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<Trace>, LedgerError> {
        match filter.name {
            Some("") => Ok(Vec::new()),
            _ => self.call(until, |session| {
                trace(&session.connection, &session.clocks.boot()?, filter, limit)
            }),
        }
    }
}

/// Messages by name: ?1 and ?2 are hashes of a Message-ID, ?3 and ?4 a queue id, recipient or
/// account.
const NAMED: &str = "(substr(id_hash, 1, 8) IN (substr(?1, 1, 8), substr(?2, 1, 8))
        AND id_hash IN (?1, ?2)
    OR id IN (SELECT message_id FROM onedrop_attempt WHERE queue_id = ?3 AND queue_id <> '')
    OR id IN (SELECT message_id FROM onedrop_attempt
              WHERE recipient = ?4 AND message_id IS NOT NULL)
    OR id IN (SELECT message_id FROM onedrop_copy WHERE account IN (?3, ?4)))
    AND recorded_at >= ?5";

/// Further conditions: ?6 sender, ?7 subject, ?8 not everything is delivered.
const CONDITIONS: &str = "(?6 IS NULL OR instr(lower(sender), lower(?6)) > 0 OR EXISTS (
        SELECT 1 FROM json_each(m.addresses) a
        WHERE a.value->>0 = 'from' AND instr(lower(a.value->>1), lower(?6)) > 0))
    AND (?7 IS NULL OR instr(lower(subject), lower(?7)) > 0)
    AND (NOT ?8
         OR EXISTS (SELECT 1 FROM onedrop_copy c WHERE c.message_id = m.id AND c.placed_at IS NULL
                      AND (c.due_at IS NULL OR c.due_at <= unixepoch('subsec') - {overdue}))
         OR EXISTS (SELECT 1 FROM onedrop_attempt_text a
                    WHERE a.message_id = m.id AND a.outcome IS NOT 'delivered'
                      AND NOT EXISTS (SELECT 1 FROM onedrop_attempt_text later
                                      WHERE later.message_id = m.id
                                        AND later.recipient = a.recipient
                                        AND later.id > a.id AND later.outcome = 'delivered')))";

/// ?2 is the time of the boot whose id is ?3.
const COPIES: &str = "
SELECT message_id, account, mailbox, placed_at IS NOT NULL,
       coalesce({lease_end} > ?2, 0), {in_doubt}, uid_validity, uid, file_name,
       {placed_at}, epoch, coalesce(owner, ''),
       strftime('%Y-%m-%dT%H:%M:%SZ', unixepoch('subsec') - ?2 + {lease_end}, 'unixepoch'),
       nul_replaced, found_by_look,
       (SELECT why FROM onedrop_kept k
        WHERE k.message_id = c.message_id AND c.shared AND c.placed_at IS NULL),
       {due_at}, by_sender, wrapped
FROM onedrop_copy c WHERE message_id IN (SELECT value FROM json_each(?1)) ORDER BY id";

/// The newest {attempts} attempts of each message in ?9, and those that recorded none, at most so
/// many: for messages with the hashes in ?10 and, unless one message alone is asked for, {others}:
/// those that match the filter.
const ATTEMPTS_OF: &str = "
WITH counted AS (
    SELECT id, row_number() OVER (PARTITION BY message_id ORDER BY id DESC) AS behind,
           count(*) OVER (PARTITION BY message_id) AS on_record
    FROM onedrop_attempt WHERE message_id IN (SELECT value FROM json_each(?9))
), unrecorded AS (
    SELECT a.id, 0, count(*) OVER (PARTITION BY a.id_hash)
    FROM onedrop_attempt a {by}
    WHERE a.message_id IS NULL
      AND (a.id_hash IN (SELECT unhex(value) FROM json_each(?10)) {others})
    ORDER BY a.id DESC LIMIT {attempts}
), shown AS (
    SELECT * FROM counted WHERE behind <= {attempts} UNION ALL SELECT * FROM unrecorded
)
SELECT a.message_id, a.id_hash, {started_at}, recipient, coalesce(a.sender, m.sender, ''), queue_id,
       host, pid, coalesce(duration_ms, c.attempt_ms),
       CASE WHEN c.id IS NULL THEN outcome ELSE 'delivered' END, status, detail, c.account,
       c.mailbox, c.uid_validity, c.uid, c.file_name, shown.on_record, reason
FROM shown CROSS JOIN onedrop_attempt a ON a.id = shown.id
     LEFT JOIN onedrop_message m ON m.id = a.message_id
     LEFT JOIN onedrop_copy c ON c.message_id = a.message_id AND c.attempt_id = a.id
                              AND a.outcome IS NULL
ORDER BY a.message_id IS NULL, a.id";

const OTHERS: &str = "OR started_at >= ?5 AND ?7 IS NULL AND (NOT ?8 OR {unrecorded})
    AND (?6 IS NULL OR instr(lower(a.sender), lower(?6)) > 0)
    AND CASE WHEN ?3 IS NULL THEN {unrecorded}
             ELSE a.id_hash IN (?1, ?2) OR queue_id = ?3 AND queue_id <> ''
                  OR recipient = ?4 END";

const UNRECORDED: &str = "NOT EXISTS
    (SELECT 1 FROM onedrop_message o
     WHERE substr(o.id_hash, 1, 8) = substr(a.id_hash, 1, 8) AND o.id_hash = a.id_hash)";

/// Seconds by which the clock may have been set back between two messages with rising row numbers.
const CLOCK_STEP_SECS: i64 = 3600;

/// [`Pages::story`](onedrop_core::ledger::Pages::story).
pub(super) fn story(
    connection: &Connection,
    boot: &BootTime,
    message: i64,
) -> Result<Option<Trace>, LedgerError> {
    let filter = TraceFilter { message: Some(message), ..TraceFilter::default() };
    Ok(trace(connection, boot, &filter, 1)?.pop())
}

fn trace(
    connection: &Connection,
    boot: &BootTime,
    filter: &TraceFilter<'_>,
    limit: u32,
) -> Result<Vec<Trace>, LedgerError> {
    let hashes = filter.name.map(wanted_hashes).unwrap_or_default();
    let (first, last) = (hashes.first(), hashes.last());
    let name = if filter.message.is_some() { Some("") } else { filter.name };
    let lower = name.map(str::to_lowercase);
    let since = rows::whole_secs(filter.since.unwrap_or(UNIX_EPOCH));
    let TraceFilter { sender, subject, failed, .. } = *filter;
    let mut found = TraceBuilder::default();
    let wanted = params![first, last, name, lower, since, sender, subject, failed];
    messages(connection, filter, wanted, since, limit, &mut found)?;
    let of = serde_json::json!(found.messages()).to_string();
    let ids: Vec<String> = found.hashes().iter().map(|hash| hex(hash)).collect();
    let ids = serde_json::json!(ids).to_string();
    let sql = COPIES.replace("{lease_end}", &copys_lease_end("", "?2", "?3"));
    let copies = params![of, boot.secs, boot.id];
    read(connection, &with_times(&sql), copies, |row| found.copy(row))?;
    let sql = attempts_of(filter.message.is_some());
    let wanted = params![first, last, name, lower, since, sender, subject, failed, of, ids];
    read(connection, &sql, wanted, |row| found.attempt(row))?;
    Ok(found.newest_first(limit))
}

/// See [`ATTEMPTS_OF`].
pub(super) fn attempts_of(of_one: bool) -> String {
    // By itself SQLite takes all that recorded no message for few.
    let (by, others) =
        if of_one { ("INDEXED BY onedrop_attempt_id_hash", "") } else { ("", OTHERS) };
    let sql = with_times(ATTEMPTS_OF).replace("{by}", by).replace("{others}", others);
    let sql = sql.replace("{unrecorded}", UNRECORDED);
    sql.replace("{attempts}", &ATTEMPTS.to_string())
}

/// The messages, newest first. Without a name, messages are read from the newest to the first one
/// that is too old: row numbers rise with time, and times have no index.
fn messages(
    connection: &Connection,
    filter: &TraceFilter<'_>,
    wanted: impl Params,
    since: i64,
    limit: u32,
    found: &mut TraceBuilder,
) -> Result<(), LedgerError> {
    let which = match (filter.message, filter.name) {
        (Some(message), _) => format!("id = {message} AND {CONDITIONS}"),
        (None, Some(_)) => format!("{NAMED} AND {CONDITIONS}"),
        (None, None) => format!("recorded_at < ?5 OR {CONDITIONS}"),
    };
    let sql = format!(
        "SELECT id, id_hash, message_id, digest, {{recorded_at}}, subject, {{date}},
                size_bytes, in_reply_to, reference_ids,
                message_id IS NOT NULL AND EXISTS (
                    SELECT 1 FROM onedrop_message o
                    WHERE substr(o.id_hash, 1, 8) = substr(m.id_hash, 1, 8)
                      AND o.id_hash = m.id_hash AND o.digest <> m.digest),
                EXISTS (SELECT 1 FROM onedrop_raw r WHERE r.message_id = m.id), addresses,
                parts, recorded_at
         FROM onedrop_message m WHERE {which} ORDER BY id DESC"
    );
    let mut statement = connection.prepare(&with_times(&sql)).classified()?;
    let (mut rows, mut left) = (statement.query(wanted).classified()?, limit);
    while left > 0
        && let Some(row) = rows.next().classified()?
    {
        let recorded: i64 = row.cell(14)?;
        if recorded.saturating_add(CLOCK_STEP_SECS) < since {
            break;
        }
        if recorded >= since {
            found.message(row)?;
            left -= 1;
        }
    }
    Ok(())
}

/// Replaces each `{column}` that is a time by its ISO 8601 text in UTC.
pub(super) fn with_times(sql: &str) -> String {
    let sql = sql.replace("{in_doubt}", doubts::IN_DOUBT);
    let columns = ["recorded_at", "date", "placed_at", "started_at", "due_at"];
    columns.iter().fold(sql.replace("{overdue}", &OVERDUE.as_secs().to_string()), |sql, column| {
        let text = format!("strftime('%Y-%m-%dT%H:%M:%SZ', {column}, 'unixepoch')");
        sql.replace(&format!("{{{column}}}"), &text)
    })
}
