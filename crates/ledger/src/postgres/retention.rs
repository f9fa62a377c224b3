//! The queries of `onedrop purge`, `onedrop forget` and `onedrop replay`. A delivery holds its
//! message (FOR KEY SHARE) from before it claims a copy until it commits: so a purge first locks
//! messages, past those that are held, and reads their copies in a second statement, which sees all
//! claims that were committed.

use std::time::{Duration, Instant, SystemTime};

use postgres::types::Type;

use super::PostgresLedger;
use super::connection::{Connection, Statement};
use crate::rows::{self, HAS_RAW, NEEDED_BY_SENT, SqlRow};
use onedrop_core::ledger::LATE;
use onedrop_core::ledger::{
    BatchTerms, ForgetBatch, ForgetWhat, LedgerError, PurgeBatch, PurgeCursor, PurgeWhat,
    RawMessage, Remembered, Retention, wanted_hashes,
};

/// What is old enough, from behind a row: its time and its number. $1: how old, in seconds; $2, $3:
/// from behind; $4: at most. Of messages by now(), one reading for the transaction: what it moves
/// on says of the same ones.
fn old(what: PurgeWhat) -> &'static str {
    match what {
        PurgeWhat::Messages => {
            "SELECT extract(epoch FROM m.recorded_at)::bigint, m.id FROM onedrop_message m
             WHERE m.recorded_at < now() - $1 * interval '1 second'
               AND (m.recorded_at, m.id) > (to_timestamp($2), $3)
             ORDER BY m.recorded_at, m.id LIMIT $4"
        }
        PurgeWhat::Facts => {
            "SELECT extract(epoch FROM m.recorded_at)::bigint, m.id FROM onedrop_message m
             WHERE m.recorded_at >= (SELECT facts_since FROM onedrop_ledger)
               AND m.recorded_at < now() - $1 * interval '1 second'
               AND (m.recorded_at, m.id) > (to_timestamp($2), $3)
             ORDER BY m.recorded_at, m.id LIMIT $4"
        }
        // Of messages whose facts are erased few have any left; their ids come first.
        PurgeWhat::Attempts => {
            "SELECT 0::bigint, a.id FROM onedrop_attempt a
             WHERE a.id IN (
                 SELECT n.id FROM onedrop_attempt n WHERE n.message_id IS NULL
                 UNION ALL
                 SELECT e.id FROM onedrop_attempt e JOIN onedrop_message o ON o.id = e.message_id
                 WHERE o.recorded_at < (SELECT facts_since FROM onedrop_ledger)
                   AND e.message_id < (
                     SELECT m.id FROM onedrop_message m
                     WHERE m.recorded_at >= (SELECT facts_since FROM onedrop_ledger)
                     ORDER BY m.recorded_at, m.id LIMIT 1))
               AND a.started_at < clock_timestamp() - $1 * interval '1 second'
               AND (0::float8, a.id) > ($2, $3)
             ORDER BY a.id LIMIT $4"
        }
        PurgeWhat::Raw => {
            "SELECT 0::bigint, m.id FROM onedrop_message m
             WHERE m.id IN (SELECT r.message_id FROM onedrop_raw r)
               AND m.recorded_at < now() - $1 * interval '1 second'
               AND (0::float8, m.id) > ($2, $3)
             ORDER BY m.id LIMIT $4"
        }
        PurgeWhat::Kept => {
            "SELECT 0::bigint, k.message_id FROM onedrop_kept k
             WHERE k.kept_at < clock_timestamp() - $1 * interval '1 second'
               AND (0::float8, k.message_id) > ($2, $3)
             ORDER BY k.message_id LIMIT $4"
        }
    }
}

/// Of the rows $1 those that may go. $2: how old, in seconds; $3: seconds after a lease.
fn going(what: PurgeWhat) -> &'static str {
    match what {
        PurgeWhat::Messages => {
            "onedrop_message d WHERE d.id = ANY ($1) AND $2::float8 >= 0
             AND NOT EXISTS (SELECT FROM onedrop_kept k WHERE k.message_id = d.id)
             AND NOT EXISTS (
                 SELECT FROM onedrop_copy c WHERE c.message_id = d.id AND c.placed_at IS NULL
                 AND c.leased_until > clock_timestamp() - $3 * interval '1 second')"
        }
        PurgeWhat::Kept => {
            "onedrop_kept d WHERE d.message_id = ANY ($1)
             AND NOT EXISTS (
                 SELECT FROM onedrop_copy c
                 WHERE c.message_id = d.message_id AND c.shared AND c.placed_at IS NULL
                 AND (c.leased_until > clock_timestamp() - $3 * interval '1 second' OR c.epoch = 0
                      OR c.due_at > clock_timestamp() - $2 * interval '1 second'))"
        }
        PurgeWhat::Attempts => {
            "onedrop_attempt d WHERE d.id = ANY ($1) AND $2::float8 >= 0 AND $3::float8 >= 0"
        }
        PurgeWhat::Raw => {
            "onedrop_raw d WHERE d.message_id = ANY ($1) AND $2::float8 >= 0 AND $3::float8 >= 0"
        }
        PurgeWhat::Facts => {
            "onedrop_message d WHERE d.id = ANY ($1) AND $2::float8 >= 0 AND $3::float8 >= 0"
        }
    }
}

/// Nothing of the messages $1 but their hashes and their times.
const ERASE: [&str; 5] = [
    "DELETE FROM onedrop_copy WHERE message_id = ANY ($1) AND id = ANY ($2)",
    "DELETE FROM onedrop_kept k WHERE message_id = ANY ($1) AND cardinality($2::bigint[]) > 0
     AND NOT EXISTS (SELECT FROM onedrop_copy c
                     WHERE c.message_id = k.message_id AND c.shared AND c.placed_at IS NULL)",
    "DELETE FROM onedrop_attempt
     WHERE message_id = ANY ($1) AND cardinality($2::bigint[]) > 0",
    "DELETE FROM onedrop_raw WHERE message_id = ANY ($1) AND cardinality($2::bigint[]) > 0",
    "UPDATE onedrop_message SET message_id = NULL, sender = '', subject = NULL, date = NULL,
         in_reply_to = NULL, reference_ids = NULL, addresses = NULL, parts = NULL,
         looks_back = true
     WHERE id = ANY ($1) AND cardinality($2::bigint[]) > 0",
];

/// What copies say of attempts' ends, for the attempts' own rows.
const ENDS: &str = "
UPDATE onedrop_attempt a
SET outcome = t.outcome, status = t.status, detail = t.detail, duration_ms = t.duration_ms
FROM onedrop_copy c JOIN onedrop_attempt_text t ON t.id = c.attempt_id
WHERE c.id = ANY ($1) AND a.id = t.id";

/// Free, in doubt, and of another value, so that no claim of before counts. What settle has not
/// written yet stays due.
const FORGET: &str = "
UPDATE onedrop_copy SET value = uuid_send(gen_random_uuid()),
    due_at = CASE WHEN placed_at IS NULL THEN due_at END, placed_at = NULL, placed_epoch = NULL,
    uid_validity = NULL, uid = NULL, file_name = NULL, nul_replaced = false, wrapped = false,
    found_by_look = false, by_sender = false, settled_at = NULL, leased_until = NULL,
    in_doubt = true, prior_doubt = true, looks_back = true,
    attempt_id = NULL, attempt_ms = NULL
WHERE id = ANY ($1)";

const REMEMBERED: &str = "
SELECT CASE WHEN remembers_since = '-infinity' THEN -1
            ELSE extract(epoch FROM remembers_since) END::float8,
       CASE WHEN remembers_since = '-infinity' THEN 1e15
            ELSE extract(epoch FROM clock_timestamp() - remembers_since) END::float8,
       extract(epoch FROM clock_timestamp() - purged_at)::float8
FROM onedrop_ledger";

const RAW: &str = "
SELECT m.id, m.message_id, id_hash, digest, extract(epoch FROM recorded_at)::bigint, ''::bytea
FROM onedrop_raw r JOIN onedrop_message m ON m.id = r.message_id
WHERE r.message_id > $1 AND recorded_at >= to_timestamp($2)
ORDER BY r.message_id LIMIT 1";

const COPIES: &str = "
SELECT account, mailbox, shared, placed_at IS NOT NULL, uid_validity, uid, file_name
FROM onedrop_copy WHERE message_id = $1 ORDER BY id";

impl Retention for PostgresLedger {
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
        let sql = "UPDATE onedrop_ledger SET purged_at = clock_timestamp()";
        self.call(until, |connection| connection.write(&[Statement::new(sql)]).map(drop))
    }

    fn forget_hosts(
        &self,
        not_seen_for: Duration,
        dry_run: bool,
        until: Instant,
    ) -> Result<u64, LedgerError> {
        let gone = "onedrop_host WHERE seen_at < clock_timestamp() - $1 * interval '1 second'";
        let sql = match dry_run {
            true => format!("SELECT 1 FROM {gone}"),
            false => format!("DELETE FROM {gone} RETURNING 1"),
        };
        self.call(until, |connection| {
            let statement = Statement::new(&*sql).with(not_seen_for.as_secs_f64(), Type::FLOAT8);
            let answers = connection.write(&[statement])?;
            Ok(answers.first().map_or(0, Vec::len) as u64)
        })
    }

    fn remembered(&self, until: Instant) -> Result<Remembered, LedgerError> {
        self.call(until, |connection| {
            let rows = connection.query(Statement::new(REMEMBERED))?;
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
        let since = rows::secs(since);
        self.call(until, |connection| {
            let Some((message, bytes)) = next_whole(connection, since, after)? else {
                return Ok(None);
            };
            let copies = Statement::new(COPIES).with(message.message, Type::INT8);
            let rows = connection.query(copies)?;
            let copies = rows.iter().map(rows::raw_copy).collect::<Result<_, LedgerError>>()?;
            Ok(Some(RawMessage { bytes, copies, ..message }))
        })
    }
}

/// The next message, and its bytes; one that a purge takes out meanwhile is passed by.
fn next_whole(
    connection: &mut Connection,
    since: f64,
    mut after: i64,
) -> Result<Option<(RawMessage, Vec<u8>)>, LedgerError> {
    loop {
        let next = Statement::new(RAW).with(after, Type::INT8).with(since, Type::FLOAT8);
        let rows = connection.query(next)?;
        let Some(row) = rows.first() else { return Ok(None) };
        let message = rows::raw_message(row)?;
        after = message.message;
        if let Some(bytes) = bytes_in(connection, "onedrop_raw", after)? {
            return Ok(Some((message, bytes)));
        }
    }
}

/// Bytes of a message that are asked for at a time: an answer is bounded, a message is not.
const PIECE_BYTES: usize = 4 * 1024 * 1024;

/// What a table keeps of a message, piece by piece. `None`: nothing, or no longer.
pub(super) fn bytes_in(
    connection: &mut Connection,
    table: &str,
    message: i64,
) -> Result<Option<Vec<u8>>, LedgerError> {
    let sql = format!(
        "SELECT substring(bytes FROM $2 FOR {PIECE_BYTES}) FROM {table} WHERE message_id = $1"
    );
    let mut bytes: Vec<u8> = Vec::new();
    loop {
        let from = i32::try_from(bytes.len() + 1).unwrap_or(i32::MAX);
        let piece = Statement::new(&*sql).with(message, Type::INT8).with(from, Type::INT4);
        let rows = connection.query(piece)?;
        let Some(row) = rows.first() else { return Ok(None) };
        let piece: Vec<u8> = row.cell(0)?;
        let is_last = piece.len() < PIECE_BYTES;
        bytes.extend(piece);
        if is_last {
            return Ok(Some(bytes));
        }
    }
}

fn purge(
    connection: &mut Connection,
    what: PurgeWhat,
    older_than: Duration,
    after: Option<PurgeCursor>,
    BatchTerms { limit, dry_run }: BatchTerms,
) -> Result<PurgeBatch, LedgerError> {
    let (secs, late) = (older_than.as_secs_f64(), LATE.as_secs_f64());
    let after = after.unwrap_or(PurgeCursor { secs: -1, row: 0 });
    let lock = match what {
        _ if dry_run => "",
        PurgeWhat::Messages => " FOR UPDATE SKIP LOCKED",
        PurgeWhat::Facts | PurgeWhat::Raw => " FOR NO KEY UPDATE",
        PurgeWhat::Attempts | PurgeWhat::Kept => " FOR UPDATE",
    };
    let statement = Statement::new(format!("{}{lock}", old(what)))
        .with(secs, Type::FLOAT8)
        .with(after.secs as f64, Type::FLOAT8)
        .with(after.row, Type::INT8)
        .with(i64::from(limit), Type::INT8);
    let cursor = |row: &postgres::Row| Ok(PurgeCursor { secs: row.cell(0)?, row: row.cell(1)? });
    let old: Vec<PurgeCursor> =
        connection.begin(&statement)?.iter().map(cursor).collect::<Result<_, LedgerError>>()?;
    let next = old.last().copied().filter(|_| old.len() == limit as usize);
    let numbers: Vec<i64> = old.iter().map(|one| one.row).collect();
    let of_them = |sql: String| {
        Statement::new(sql)
            .with(numbers.clone(), Type::INT8_ARRAY)
            .with(secs, Type::FLOAT8)
            .with(late, Type::FLOAT8)
    };
    let going = going(what);
    let counted = || of_them(format!("SELECT 1 FROM {going}"));
    let statements = match what {
        _ if dry_run => vec![counted()],
        PurgeWhat::Messages | PurgeWhat::Attempts | PurgeWhat::Kept | PurgeWhat::Raw => {
            vec![of_them(format!("DELETE FROM {going} RETURNING 1"))]
        }
        PurgeWhat::Facts => {
            let nothing = "sender = '', subject = NULL, date = NULL, in_reply_to = NULL, \
                           reference_ids = NULL, addresses = NULL, parts = NULL";
            let set = going.replacen(" WHERE", &format!(" SET {nothing} WHERE"), 1);
            let delete = |table: &str, more: &str| {
                of_them(format!(
                    "DELETE FROM {table} d WHERE d.message_id = ANY ($1) AND {more} AND $3 >= 0"
                ))
            };
            let begun = "d.started_at < clock_timestamp() - $2 * interval '1 second'";
            vec![of_them(format!("UPDATE {set} RETURNING 1")), delete("onedrop_attempt", begun)]
        }
    };
    let moves_on = |column: &str| {
        let to = match (what, next) {
            (PurgeWhat::Facts, Some(next)) => format!("to_timestamp({})", next.secs),
            _ => "now() - $1 * interval '1 second'".to_owned(),
        };
        let sql = format!("UPDATE onedrop_ledger SET {column} = {to} WHERE {column} < {to}");
        // Where $1 is not used it must be named all the same.
        Statement::new(format!("{sql} AND $1::float8 >= 0")).with(secs, Type::FLOAT8)
    };
    let moves_on = match what {
        PurgeWhat::Messages if !dry_run => Some(moves_on("remembers_since")),
        PurgeWhat::Facts if !dry_run => Some(moves_on("facts_since")),
        _ => None,
    };
    let answers = connection.commit(&statements.into_iter().chain(moves_on).collect::<Vec<_>>())?;
    let gone = answers.first().map_or(0, Vec::len) as u64;
    Ok(PurgeBatch { gone, passed_by: (old.len() as u64).saturating_sub(gone), next })
}

fn forget(
    connection: &mut Connection,
    what: ForgetWhat<'_>,
    after: i64,
    BatchTerms { limit, dry_run }: BatchTerms,
) -> Result<ForgetBatch, LedgerError> {
    let (wanted, lock) = match what {
        ForgetWhat::Message(_) => ("m.id_hash = ANY ($4::bytea[])", " FOR UPDATE OF c"),
        ForgetWhat::Since(_) => ("c.placed_at >= to_timestamp($4)", " FOR UPDATE OF c"),
        // Nobody claims a new copy of these messages before it is known that they look back.
        ForgetWhat::Account(_) => ("c.account = $4", " FOR UPDATE OF m, c"),
    };
    let needed = if matches!(what, ForgetWhat::Account(_)) { NEEDED_BY_SENT } else { "false" };
    let sql = format!(
        "SELECT c.id, c.message_id, m.message_id, c.account, c.mailbox, c.shared,
             c.placed_at IS NULL
             AND coalesce(c.leased_until > clock_timestamp() - $3 * interval '1 second', false),
             {needed}, {HAS_RAW}
         FROM onedrop_copy c JOIN onedrop_message m ON m.id = c.message_id
         WHERE c.id > $1 AND {wanted} ORDER BY c.id LIMIT $2{}",
        if dry_run { "" } else { lock }
    );
    let statement = Statement::new(sql)
        .with(after, Type::INT8)
        .with(i64::from(limit), Type::INT8)
        .with(LATE.as_secs_f64(), Type::FLOAT8);
    let statement = match what {
        ForgetWhat::Message(name) => {
            let hashes: Vec<Vec<u8>> =
                wanted_hashes(name).into_iter().map(|hash| hash.to_vec()).collect();
            statement.with(hashes, Type::BYTEA_ARRAY)
        }
        ForgetWhat::Since(since) => statement.with(rows::secs(since), Type::FLOAT8),
        // Text in Postgres cannot hold NUL.
        ForgetWhat::Account(account) => statement.with(account.replace('\0', " "), Type::TEXT),
    };
    let found = connection.begin(&statement)?;
    let (mut copies, mut numbers, mut messages) = (Vec::new(), Vec::new(), Vec::new());
    let mut last = None;
    for row in &found {
        let one = rows::forgotten(row, 2)?;
        last = Some(row.cell::<i64>(0)?);
        if one.passed_by.is_none() {
            numbers.push(row.cell::<i64>(0)?);
            messages.push(row.cell::<i64>(1)?);
        }
        copies.push(one);
    }
    let statements: Vec<Statement<'_>> = match what {
        _ if dry_run || numbers.is_empty() => Vec::new(),
        ForgetWhat::Account(_) => ERASE
            .iter()
            .map(|sql| {
                Statement::new(*sql)
                    .with(messages.clone(), Type::INT8_ARRAY)
                    .with(numbers.clone(), Type::INT8_ARRAY)
            })
            .collect(),
        ForgetWhat::Message(_) | ForgetWhat::Since(_) => {
            let with = |sql| Statement::new(sql).with(numbers.clone(), Type::INT8_ARRAY);
            vec![with(ENDS), with(FORGET)]
        }
    };
    connection.commit(&statements)?;
    Ok(ForgetBatch { copies, next: last.filter(|_| found.len() == limit as usize) })
}
