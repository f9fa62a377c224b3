//! The queries of `onedrop purge`, `onedrop forget` and `onedrop replay`. A delivery holds its
//! message (LOCK IN SHARE MODE) from before it claims a copy until it commits: so a purge first
//! locks messages, past those that are held, and then reads their copies, with all claims that
//! were committed.

use std::time::{Duration, Instant, SystemTime};

use super::MariadbLedger;
use super::connection::{MariadbSession, first, rows_at};
use super::statement::{SqlBatch, Value, list, values};
use crate::rows::{self, HAS_RAW, NEEDED_BY_SENT, SqlRow};
use onedrop_core::ledger::LATE;
use onedrop_core::ledger::{
    BatchTerms, ForgetBatch, ForgetWhat, LedgerError, PurgeBatch, PurgeCursor, PurgeWhat,
    RandomValue, RawMessage, Remembered, Retention, wanted_hashes,
};

/// So many seconds ago.
const AGO: &str = "TIMESTAMPADD(SECOND, -?1, UTC_TIMESTAMP(6))";

/// An hour ago.
const LATELY: &str = "TIMESTAMPADD(SECOND, -?2, UTC_TIMESTAMP(6))";

/// What is old enough, from behind a row: its time and its number. {before}: before when; ?2, ?3:
/// from behind; ?4: at most.
fn old(what: PurgeWhat) -> String {
    let behind = "(m.recorded_at > TIMESTAMPADD(SECOND, ?2, '1970-01-01')
                   OR m.recorded_at = TIMESTAMPADD(SECOND, ?2, '1970-01-01') AND m.id > ?3)";
    let since = "m.recorded_at >= (SELECT l.facts_since FROM onedrop_ledger l)";
    let message = |condition: &str| {
        format!(
            "SELECT TIMESTAMPDIFF(SECOND, '1970-01-01', m.recorded_at), m.id
             FROM onedrop_message m
             WHERE m.recorded_at < {{before}} AND {behind} AND {condition}
             ORDER BY m.recorded_at, m.id LIMIT ?4"
        )
    };
    match what {
        PurgeWhat::Messages => message("TRUE"),
        PurgeWhat::Facts => message(since),
        // Of messages whose facts are erased few have any left; their ids come first.
        PurgeWhat::Attempts => format!(
            "SELECT 0, a.id FROM onedrop_attempt a
             JOIN (SELECT n.id FROM onedrop_attempt n WHERE n.message_id IS NULL
                   UNION ALL
                   SELECT e.id FROM onedrop_attempt e JOIN onedrop_message o ON o.id = e.message_id
                   WHERE o.recorded_at < (SELECT l.facts_since FROM onedrop_ledger l)
                     AND e.message_id < (
                       SELECT m.id FROM onedrop_message m
                       WHERE {since} ORDER BY m.recorded_at, m.id LIMIT 1)) w ON w.id = a.id
             WHERE a.started_at < {{before}} AND ?2 < 1 AND a.id > ?3
             ORDER BY a.id LIMIT ?4"
        ),
        PurgeWhat::Raw => "SELECT 0, r.message_id FROM onedrop_raw r
             WHERE r.position = 0 AND r.kept_at < {before} AND ?2 < 1 AND r.message_id > ?3
             ORDER BY r.message_id LIMIT ?4"
            .to_owned(),
        PurgeWhat::Kept => "SELECT 0, k.message_id FROM onedrop_kept k
             WHERE k.kept_at < {before} AND ?2 < 1 AND k.message_id > ?3
             ORDER BY k.message_id LIMIT ?4"
            .to_owned(),
    }
}

/// Of `rows` those that may go, as a table and a condition.
fn going(what: PurgeWhat, rows: &str) -> (&'static str, String) {
    match what {
        PurgeWhat::Messages => (
            "onedrop_message",
            format!(
                "id IN {rows}
                 AND NOT EXISTS (SELECT 1 FROM onedrop_kept k
                                 WHERE k.message_id = onedrop_message.id)
                 AND NOT EXISTS (SELECT 1 FROM onedrop_copy c
                                 WHERE c.message_id = onedrop_message.id
                                   AND c.placed_at IS NULL AND c.leased_until > {LATELY})"
            ),
        ),
        PurgeWhat::Kept => (
            "onedrop_kept",
            format!(
                "message_id IN {rows}
                 AND NOT EXISTS (SELECT 1 FROM onedrop_copy c
                                 WHERE c.message_id = onedrop_kept.message_id
                                   AND c.shared AND c.placed_at IS NULL
                                   AND (c.leased_until > {LATELY} OR c.epoch = 0
                                        OR c.due_at > {{before}}))"
            ),
        ),
        PurgeWhat::Attempts => ("onedrop_attempt", format!("id IN {rows}")),
        PurgeWhat::Raw => ("onedrop_raw", format!("message_id IN {rows} AND position = 0")),
        PurgeWhat::Facts => ("onedrop_message", format!("id IN {rows}")),
    }
}

const NO_FACTS: &str = "sender = '', subject = NULL, date = NULL, in_reply_to = NULL,
    reference_ids = NULL, addresses = NULL, parts = NULL";

/// What copies say of attempts' ends, for the attempts' own rows.
const ENDS: &str = "
UPDATE onedrop_attempt a JOIN onedrop_copy c ON c.id = a.copy_id
SET a.status = '2.0.0', a.copy_id = NULL,
    a.detail = CONCAT('stored account=', CONVERT(c.account USING utf8mb4), ' mailbox=',
                      CONVERT(c.mailbox USING utf8mb4), ' ',
                      COALESCE(CONCAT('uid=', c.uid), CONCAT('name=', c.file_name), 'uid=?'))
WHERE a.detail IS NULL AND c.id IN ";

/// Free, in doubt, and of another value, so that no claim of before counts: each row's comes of ?1,
/// which is random. What settle has not written yet stays due: MariaDB assigns from left to right.
const FORGET: &str = "
UPDATE onedrop_copy SET value = UNHEX(LEFT(SHA2(CONCAT(?1, id), 256), 32)),
    due_at = CASE WHEN placed_at IS NULL THEN due_at END, placed_at = NULL, placed_epoch = 0,
    uid_validity = NULL, uid = NULL, file_name = NULL, nul_replaced = FALSE, found_by_look = FALSE,
    wrapped = FALSE,
    by_sender = FALSE, settled_at = NULL, leased_until = NULL, in_doubt = TRUE,
    prior_doubt = TRUE, looks_back = TRUE
WHERE id IN ";

const REMEMBERED: &str = "
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', remembers_since) / 1000000,
       TIMESTAMPDIFF(MICROSECOND, remembers_since, UTC_TIMESTAMP(6)) / 1000000,
       TIMESTAMPDIFF(MICROSECOND, purged_at, UTC_TIMESTAMP(6)) / 1000000
FROM onedrop_ledger";

impl Retention for MariadbLedger {
    fn purge(
        &self,
        what: PurgeWhat,
        older_than: Duration,
        after: Option<PurgeCursor>,
        how: BatchTerms,
        until: Instant,
    ) -> Result<PurgeBatch, LedgerError> {
        self.call(until, |connection| purge(connection, what, older_than, after, how))
    }

    fn note_purge(&self, until: Instant) -> Result<(), LedgerError> {
        let sql = "UPDATE onedrop_ledger SET purged_at = UTC_TIMESTAMP(6)";
        self.call(until, |connection| connection.write(SqlBatch::of(sql, &[])).map(drop))
    }

    fn forget_hosts(
        &self,
        not_seen_for: Duration,
        dry_run: bool,
        until: Instant,
    ) -> Result<u64, LedgerError> {
        let secs = i64::try_from(not_seen_for.as_secs()).unwrap_or(i64::MAX / 1000);
        let gone = format!("FROM onedrop_host WHERE seen_at < {AGO}");
        self.call(until, |connection| {
            let mut batch = SqlBatch::of(&format!("SELECT COUNT(*) {gone}"), values![secs]);
            if !dry_run {
                batch = SqlBatch::of(&format!("DELETE {gone}"), values![secs]);
                batch.add("SELECT ROW_COUNT()", &[]);
            }
            let answers = connection.write(batch)?;
            let count = first::<i64>(rows_at(&answers, usize::from(!dry_run)))?;
            Ok(count.unwrap_or(0).max(0).unsigned_abs())
        })
    }

    fn remembered(&self, until: Instant) -> Result<Remembered, LedgerError> {
        self.call(until, |connection| {
            let rows = connection.query(REMEMBERED, &[])?;
            rows::remembered(rows.first().ok_or_else(rows::no_ledger)?)
        })
    }

    fn forget(
        &self,
        what: ForgetWhat<'_>,
        after: i64,
        how: BatchTerms,
        until: Instant,
    ) -> Result<ForgetBatch, LedgerError> {
        self.call(until, |connection| forget(connection, what, after, how))
    }

    fn next_raw(
        &self,
        since: SystemTime,
        after: i64,
        until: Instant,
    ) -> Result<Option<RawMessage>, LedgerError> {
        let since = rows::whole_secs(since);
        self.call(until, |connection| next_raw(connection, since, after))
    }
}

fn purge(
    connection: &mut MariadbSession,
    what: PurgeWhat,
    older_than: Duration,
    after: Option<PurgeCursor>,
    BatchTerms { limit, dry_run }: BatchTerms,
) -> Result<PurgeBatch, LedgerError> {
    let secs = i64::try_from(older_than.as_secs()).unwrap_or(i64::MAX / 1000);
    let late = i64::try_from(LATE.as_secs()).unwrap_or(i64::MAX / 1000);
    let after = after.unwrap_or(PurgeCursor { secs: -1, row: 0 });
    let lock = match what {
        _ if dry_run => "",
        PurgeWhat::Messages => " FOR UPDATE SKIP LOCKED",
        _ => " FOR UPDATE",
    };
    // One reading of the clock: what is moved on says of the same messages.
    let ago = format!("SELECT COALESCE(CAST({AGO} AS CHAR), '0001-01-01')");
    let ago = connection.query(&ago, values![secs])?;
    let before = first::<String>(&ago)?.ok_or_else(rows::no_ledger)?;
    let before = format!("TIMESTAMP'{before}'");
    let old = old(what).replace("{before}", &before);
    let batch = SqlBatch::of(&format!("{old}{lock}"), values![secs, after.secs, after.row, limit]);
    let answers = connection.begin(batch)?;
    let cursor = |row: &mysql_async::Row| Ok(PurgeCursor { secs: row.cell(0)?, row: row.cell(1)? });
    let old: Vec<PurgeCursor> =
        rows_at(&answers, 0).iter().map(cursor).collect::<Result<_, LedgerError>>()?;
    let next = old.last().copied().filter(|_| old.len() == limit as usize);
    let numbers = list(old.iter().map(|one| Value::from(one.row)));
    let (table, condition) = going(what, &numbers);
    let condition = condition.replace("{before}", &before);
    let mut batch = SqlBatch::default();
    let ages = values![secs, late];
    if dry_run {
        batch.add(&format!("SELECT COUNT(*) FROM {table} WHERE {condition}"), ages);
    } else {
        match what {
            PurgeWhat::Facts => {
                batch.add(
                    &format!(
                        "DELETE FROM onedrop_attempt
                         WHERE message_id IN {numbers} AND started_at < {before}"
                    ),
                    ages,
                );
                batch.add(&format!("UPDATE {table} SET {NO_FACTS} WHERE {condition}"), ages);
                batch.add(&format!("SELECT COUNT(*) FROM {table} WHERE {condition}"), ages);
            }
            PurgeWhat::Raw => {
                batch.add(&format!("SELECT COUNT(*) FROM {table} WHERE {condition}"), ages);
                batch.add(&format!("DELETE FROM onedrop_raw WHERE message_id IN {numbers}"), ages);
            }
            PurgeWhat::Messages | PurgeWhat::Attempts | PurgeWhat::Kept => {
                batch.add(&format!("DELETE FROM {table} WHERE {condition}"), ages);
                batch.add("SELECT ROW_COUNT()", &[]);
            }
        }
    }
    let counted = match what {
        _ if dry_run => 0,
        PurgeWhat::Facts => 2,
        PurgeWhat::Raw => 0,
        PurgeWhat::Messages | PurgeWhat::Attempts | PurgeWhat::Kept => 1,
    };
    let to = match (what, next) {
        (PurgeWhat::Facts, Some(next)) => {
            format!("TIMESTAMPADD(SECOND, {}, '1970-01-01')", next.secs)
        }
        _ => before,
    };
    for (of, column) in
        [(PurgeWhat::Messages, "remembers_since"), (PurgeWhat::Facts, "facts_since")]
    {
        if what == of && !dry_run {
            batch.add(
                &format!("UPDATE onedrop_ledger SET {column} = GREATEST({column}, {to})"),
                ages,
            );
        }
    }
    let answers = connection.commit(batch)?;
    let gone = first::<i64>(rows_at(&answers, counted))?.unwrap_or(0).max(0).unsigned_abs();
    Ok(PurgeBatch { gone, passed_by: (old.len() as u64).saturating_sub(gone), next })
}

fn forget(
    connection: &mut MariadbSession,
    what: ForgetWhat<'_>,
    after: i64,
    BatchTerms { limit, dry_run }: BatchTerms,
) -> Result<ForgetBatch, LedgerError> {
    let wanted = match what {
        ForgetWhat::Message(name) => {
            let hashes = wanted_hashes(name);
            format!("m.id_hash IN {}", list(hashes.iter().map(Value::from)))
        }
        ForgetWhat::Since(since) => SqlBatch::of("c.placed_at >= ?1", values![since]).into_sql(),
        ForgetWhat::Account(account) => {
            SqlBatch::of("c.account = ?1", values![account.as_bytes()]).into_sql()
        }
    };
    let needed = if matches!(what, ForgetWhat::Account(_)) { NEEDED_BY_SENT } else { "FALSE" };
    let lock = if dry_run { "" } else { " FOR UPDATE" };
    let late = i64::try_from(LATE.as_secs()).unwrap_or(i64::MAX / 1000);
    let batch = SqlBatch::of(
        &format!(
            "SELECT c.id, c.message_id, m.message_id, c.account, c.mailbox, c.shared,
                 c.placed_at IS NULL AND COALESCE(c.leased_until > {LATELY}, 0), {needed},
                 {HAS_RAW}
             FROM onedrop_copy c JOIN onedrop_message m ON m.id = c.message_id
             WHERE c.id > ?1 AND {wanted} ORDER BY c.id LIMIT ?3{lock}"
        ),
        values![after, late, limit],
    );
    let answers = connection.begin(batch)?;
    let found = rows_at(&answers, 0);
    let (mut copies, mut numbers, mut messages) = (Vec::new(), Vec::new(), Vec::new());
    let mut last = None;
    for row in found {
        let one = rows::forgotten(row, 2)?;
        last = Some(row.cell::<i64>(0)?);
        if one.passed_by.is_none() {
            numbers.push(Value::from(row.cell::<i64>(0)?));
            messages.push(Value::from(row.cell::<i64>(1)?));
        }
        copies.push(one);
    }
    let next = last.filter(|_| found.len() == limit as usize);
    let (numbers, messages) = (list(numbers), list(messages));
    let mut batch = SqlBatch::default();
    match what {
        _ if dry_run => {}
        ForgetWhat::Account(_) => {
            let of_them = format!("message_id IN {messages}");
            batch.add(&format!("DELETE FROM onedrop_copy WHERE id IN {numbers}"), &[]);
            batch.add(
                &format!(
                    "DELETE FROM onedrop_kept WHERE {of_them} AND NOT EXISTS (
                         SELECT 1 FROM onedrop_copy c WHERE c.message_id = onedrop_kept.message_id
                         AND c.shared AND c.placed_at IS NULL)"
                ),
                &[],
            );
            batch.add(&format!("DELETE FROM onedrop_attempt WHERE {of_them}"), &[]);
            batch.add(&format!("DELETE FROM onedrop_raw WHERE {of_them}"), &[]);
            batch.add(
                &format!(
                    "UPDATE onedrop_message SET message_id = NULL,
                         looks_back = TRUE, {NO_FACTS} WHERE id IN {messages}"
                ),
                &[],
            );
        }
        ForgetWhat::Message(_) | ForgetWhat::Since(_) => {
            batch.add(&format!("{ENDS}{numbers}"), &[]);
            let random = RandomValue::default();
            batch.add(&format!("{FORGET}{numbers}"), values![random.bytes()]);
        }
    }
    connection.commit(batch)?;
    Ok(ForgetBatch { copies, next })
}

fn next_raw(
    connection: &mut MariadbSession,
    since: i64,
    after: i64,
) -> Result<Option<RawMessage>, LedgerError> {
    let sql = "SELECT m.id, m.message_id, m.id_hash, m.digest,
                   TIMESTAMPDIFF(SECOND, '1970-01-01', m.recorded_at), r.bytes
               FROM onedrop_raw r JOIN onedrop_message m ON m.id = r.message_id
               WHERE r.message_id > ?1 AND r.position = 0
                 AND m.recorded_at >= TIMESTAMPADD(SECOND, ?2, '1970-01-01')
               ORDER BY r.message_id LIMIT 1";
    let rows = connection.query(sql, values![after, since])?;
    let Some(row) = rows.first() else { return Ok(None) };
    let mut message = rows::raw_message(row)?;
    let sql = "SELECT bytes FROM onedrop_raw WHERE message_id = ?1 AND position = ?2";
    for position in 1i64.. {
        match first::<Vec<u8>>(&connection.query(sql, values![message.message, position])?)? {
            Some(piece) => message.bytes.extend(piece),
            None => break,
        }
    }
    // A purge takes out all pieces at once: then what was read is not the whole.
    if connection.query(sql, values![message.message, 0i64])?.is_empty() {
        return next_raw(connection, since, message.message);
    }
    let sql = "SELECT account, mailbox, shared, placed_at IS NOT NULL, uid_validity, uid, file_name
               FROM onedrop_copy WHERE message_id = ?1 ORDER BY id";
    let rows = connection.query(sql, values![message.message])?;
    message.copies = rows.iter().map(rows::raw_copy).collect::<Result<_, LedgerError>>()?;
    Ok(Some(message))
}
