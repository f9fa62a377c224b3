//! The queries of `onedrop purge`, `onedrop forget` and `onedrop replay`. Each batch is one
//! immediate transaction, so no delivery writes between what it reads and what it takes out.

use std::time::{Duration, Instant, SystemTime};

use rusqlite::{Connection, params};

use super::Classified;
use super::copies::copys_lease_end;
use super::{BootTime, SqliteLedger, read};
use crate::rows;
use crate::rows::{HAS_RAW, NEEDED_BY_SENT, SqlRow};
use onedrop_core::ledger::LATE;
use onedrop_core::ledger::{
    BatchTerms, ForgetBatch, ForgetWhat, LedgerError, PurgeBatch, PurgeCursor, PurgeWhat,
    RawMessage, Remembered, Retention, wanted_hashes,
};

/// What is old enough: its time, its number, and whether it is to be passed by. ?1: before when;
/// ?2, ?3: from behind; ?4: at most; ?5: the time by the boot whose id is ?6.
fn old(what: PurgeWhat) -> &'static str {
    match what {
        PurgeWhat::Messages => {
            "SELECT m.recorded_at, m.id,
                 EXISTS (SELECT 1 FROM onedrop_kept k WHERE k.message_id = m.id)
                 OR EXISTS (SELECT 1 FROM onedrop_copy c WHERE c.message_id = m.id
                            AND c.placed_at IS NULL AND {lease_end} > ?5 - {late})
             FROM onedrop_message m
             WHERE m.recorded_at < ?1 AND (m.recorded_at, m.id) > (?2, ?3)
             ORDER BY m.recorded_at, m.id LIMIT ?4"
        }
        PurgeWhat::Facts => {
            "SELECT m.recorded_at, m.id, 0 AND ?5 AND ?6 FROM onedrop_message m
             WHERE m.recorded_at >= (SELECT facts_since FROM onedrop_ledger)
               AND m.recorded_at < ?1 AND (m.recorded_at, m.id) > (?2, ?3)
             ORDER BY m.recorded_at, m.id LIMIT ?4"
        }
        // Of messages whose facts are erased few have any left; their ids come first.
        PurgeWhat::Attempts => {
            "SELECT 0, a.id, 0 AND ?5 AND ?6 FROM onedrop_attempt a
             WHERE a.id IN (
                 SELECT n.id FROM onedrop_attempt n WHERE n.message_id IS NULL
                 UNION ALL
                 SELECT e.id FROM onedrop_attempt e CROSS JOIN onedrop_message o
                     ON o.id = e.message_id
                 WHERE o.recorded_at < (SELECT facts_since FROM onedrop_ledger)
                   AND e.message_id < (
                     SELECT m.id FROM onedrop_message m
                     WHERE m.recorded_at >= (SELECT facts_since FROM onedrop_ledger)
                     ORDER BY m.recorded_at, m.id LIMIT 1))
               AND a.started_at < ?1 AND (0, a.id) > (?2, ?3)
             ORDER BY a.id LIMIT ?4"
        }
        PurgeWhat::Raw => {
            "SELECT 0, m.id, 0 AND ?5 AND ?6 FROM onedrop_message m
             WHERE m.id IN (SELECT message_id FROM onedrop_raw) AND m.recorded_at < ?1
               AND (0, m.id) > (?2, ?3)
             ORDER BY m.id LIMIT ?4"
        }
        PurgeWhat::Kept => {
            "SELECT 0, k.message_id,
                 EXISTS (SELECT 1 FROM onedrop_copy c WHERE c.message_id = k.message_id
                         AND c.shared AND c.placed_at IS NULL
                         AND ({lease_end} > ?5 - {late} OR c.due_at > ?1 OR c.epoch = 0))
             FROM onedrop_kept k
             WHERE k.kept_at < ?1 AND (0, k.message_id) > (?2, ?3)
             ORDER BY k.message_id LIMIT ?4"
        }
    }
}

/// What takes out the row ?1; older than ?2.
fn take_out(what: PurgeWhat) -> &'static [&'static str] {
    match what {
        PurgeWhat::Messages => &["DELETE FROM onedrop_message WHERE id = ?1 AND ?2 > 0"],
        PurgeWhat::Attempts => &["DELETE FROM onedrop_attempt WHERE id = ?1 AND ?2 > 0"],
        PurgeWhat::Raw => &["DELETE FROM onedrop_raw WHERE message_id = ?1 AND ?2 > 0"],
        PurgeWhat::Kept => &["DELETE FROM onedrop_kept WHERE message_id = ?1 AND ?2 > 0"],
        PurgeWhat::Facts => &[
            "DELETE FROM onedrop_attempt WHERE message_id = ?1 AND started_at < ?2",
            "UPDATE onedrop_message SET sender = '', subject = NULL, date = NULL,
                 in_reply_to = NULL, reference_ids = NULL, addresses = NULL, parts = NULL
             WHERE id = ?1 AND ?2 > 0",
        ],
    }
}

/// Nothing of a message but its hashes and its time.
const ERASE: [&str; 5] = [
    "DELETE FROM onedrop_copy WHERE id = ?2 AND message_id = ?1",
    "DELETE FROM onedrop_kept WHERE message_id = ?1 AND ?2 > 0 AND NOT EXISTS (
         SELECT 1 FROM onedrop_copy c
         WHERE c.message_id = ?1 AND c.shared AND c.placed_at IS NULL)",
    "DELETE FROM onedrop_attempt WHERE message_id = ?1 AND ?2 > 0",
    "DELETE FROM onedrop_raw WHERE message_id = ?1 AND ?2 > 0",
    "UPDATE onedrop_message SET message_id = NULL, sender = '', subject = NULL, date = NULL,
         in_reply_to = NULL, reference_ids = NULL, addresses = NULL, parts = NULL,
         looks_back = 1 WHERE id = ?1 AND ?2 > 0",
];

/// What a copy says of an attempt's end, for the attempt's own row.
const END: &str = "
UPDATE onedrop_attempt SET (outcome, status, detail, duration_ms) = (
    SELECT outcome, status, detail, duration_ms FROM onedrop_attempt_text t
    WHERE t.id = onedrop_attempt.id)
WHERE id = (SELECT attempt_id FROM onedrop_copy WHERE id = ?1)";

/// Free, in doubt, and of another value, so that no claim of before counts. What settle has not
/// written yet stays due.
const FORGET: &str = "
UPDATE onedrop_copy SET value = randomblob(16),
    due_at = CASE WHEN placed_at IS NULL THEN due_at END, placed_at = NULL, placed_epoch = 0,
    uid_validity = NULL, uid = NULL, file_name = NULL, nul_replaced = 0, found_by_look = 0,
    wrapped = 0, by_sender = 0, settled_at = NULL, leased_until = NULL, in_doubt = 1,
    prior_doubt = 1, looks_back = 1, attempt_id = NULL, attempt_ms = NULL
WHERE id = ?1";

impl Retention for SqliteLedger {
    fn purge(
        &self,
        what: PurgeWhat,
        older_than: Duration,
        after: Option<PurgeCursor>,
        how: BatchTerms,
        until: Instant,
    ) -> Result<PurgeBatch, LedgerError> {
        self.call(until, |session| {
            let boot = session.clocks.boot()?;
            session
                .write(|tx, now| purge(tx, &boot, what, now - older_than.as_secs_f64(), after, how))
        })
    }

    fn note_purge(&self, until: Instant) -> Result<(), LedgerError> {
        self.call(until, |session| {
            session.write(|tx, now| {
                tx.execute("UPDATE onedrop_ledger SET purged_at = ?1", [now]).classified()?;
                Ok(())
            })
        })
    }

    fn forget_hosts(
        &self,
        not_seen_for: Duration,
        dry_run: bool,
        until: Instant,
    ) -> Result<u64, LedgerError> {
        self.call(until, |session| {
            session.write(|tx, now| {
                let before = now - not_seen_for.as_secs_f64();
                let count = "SELECT COUNT(*) FROM onedrop_host WHERE seen_at < ?1";
                let count: i64 = tx.query_row(count, [before], |row| row.get(0)).classified()?;
                if !dry_run {
                    tx.execute("DELETE FROM onedrop_host WHERE seen_at < ?1", [before])
                        .classified()?;
                }
                Ok(count.max(0).unsigned_abs())
            })
        })
    }

    fn remembered(&self, until: Instant) -> Result<Remembered, LedgerError> {
        self.call(until, |session| {
            let now = rows::secs(session.clocks.wall());
            let sql = "SELECT remembers_since, ?1 - remembers_since, ?1 - purged_at
                       FROM onedrop_ledger";
            let rows = read(&session.connection, sql, [now], |row| rows::remembered(row))?;
            rows.into_iter().next().ok_or_else(rows::no_ledger)
        })
    }

    fn forget(
        &self,
        what: ForgetWhat<'_>,
        after: i64,
        how: BatchTerms,
        until: Instant,
    ) -> Result<ForgetBatch, LedgerError> {
        self.call(until, |session| {
            let boot = session.clocks.boot()?;
            session.write(|tx, _| forget(tx, &boot, what, after, how))
        })
    }

    fn next_raw(
        &self,
        since: SystemTime,
        after: i64,
        until: Instant,
    ) -> Result<Option<RawMessage>, LedgerError> {
        let since = rows::whole_secs(since);
        self.call(until, |session| {
            let sql = "SELECT m.id, m.message_id, id_hash, digest, recorded_at, bytes
                       FROM onedrop_raw r JOIN onedrop_message m ON m.id = r.message_id
                       WHERE r.message_id > ?1 AND recorded_at >= ?2
                       ORDER BY r.message_id LIMIT 1";
            let next = read(&session.connection, sql, params![after, since], |row| {
                rows::raw_message(row)
            })?;
            let Some(message) = next.into_iter().next() else { return Ok(None) };
            let sql = "SELECT account, mailbox, shared, placed_at IS NOT NULL, uid_validity, uid,
                           file_name
                       FROM onedrop_copy WHERE message_id = ?1 ORDER BY id";
            let copies =
                read(&session.connection, sql, [message.message], |row| rows::raw_copy(row))?;
            Ok(Some(RawMessage { copies, ..message }))
        })
    }
}

fn purge(
    tx: &Connection,
    boot: &BootTime,
    what: PurgeWhat,
    before: f64,
    after: Option<PurgeCursor>,
    BatchTerms { limit, dry_run }: BatchTerms,
) -> Result<PurgeBatch, LedgerError> {
    let after = after.unwrap_or(PurgeCursor { secs: -1, row: 0 });
    let params = params![before, after.secs, after.row, limit, boot.secs, boot.id];
    let sql = old(what)
        .replace("{lease_end}", &copys_lease_end("c.", "?5", "?6"))
        .replace("{late}", &LATE.as_secs().to_string());
    let old = read(tx, &sql, params, |row| {
        let cursor = PurgeCursor { secs: row.cell(0)?, row: row.cell(1)? };
        Ok((cursor, row.cell::<bool>(2)?))
    })?;
    let next = old.last().map(|(last, _)| *last).filter(|_| old.len() == limit as usize);
    let going: Vec<i64> = old.iter().filter(|(_, stays)| !stays).map(|(one, _)| one.row).collect();
    let gone = going.len() as u64;
    let batch = PurgeBatch { gone, passed_by: old.len() as u64 - gone, next };
    if dry_run {
        return Ok(batch);
    }
    for sql in take_out(what) {
        let mut statement = tx.prepare(sql).classified()?;
        for row in &going {
            statement.execute(params![row, before]).classified()?;
        }
    }
    let moves_on = match what {
        PurgeWhat::Messages => {
            "UPDATE onedrop_ledger SET remembers_since = ?1
                                WHERE remembers_since < ?1"
        }
        PurgeWhat::Facts => "UPDATE onedrop_ledger SET facts_since = ?1 WHERE facts_since < ?1",
        PurgeWhat::Attempts | PurgeWhat::Raw | PurgeWhat::Kept => return Ok(batch),
    };
    let to = match (what, next) {
        (PurgeWhat::Facts, Some(next)) => next.secs as f64,
        _ => before,
    };
    tx.execute(moves_on, [to]).classified()?;
    Ok(batch)
}

fn forget(
    tx: &Connection,
    boot: &BootTime,
    what: ForgetWhat<'_>,
    after: i64,
    BatchTerms { limit, dry_run }: BatchTerms,
) -> Result<ForgetBatch, LedgerError> {
    let hashes = match what {
        ForgetWhat::Message(name) => wanted_hashes(name),
        ForgetWhat::Since(_) | ForgetWhat::Account(_) => Vec::new(),
    };
    let (hash, other) = (hashes.first(), hashes.last());
    let (since, account) = match what {
        ForgetWhat::Message(_) => (None, None),
        ForgetWhat::Since(since) => (Some(rows::secs(since)), None),
        ForgetWhat::Account(account) => (None, Some(account)),
    };
    let wanted = match what {
        ForgetWhat::Message(_) => {
            "substr(m.id_hash, 1, 8) IN (substr(?4, 1, 8), substr(?5, 1, 8))
             AND m.id_hash IN (?4, ?5)"
        }
        ForgetWhat::Since(_) => "c.placed_at >= ?6",
        ForgetWhat::Account(_) => "c.account = ?7",
    };
    let needed = if account.is_some() { NEEDED_BY_SENT } else { "0" };
    let (lease_end, late) = (copys_lease_end("c.", "?3", "?8"), LATE.as_secs());
    let sql = format!(
        "SELECT c.id, c.message_id, m.message_id, c.account, c.mailbox, c.shared,
             c.placed_at IS NULL AND coalesce({lease_end} > ?3 - {late}, 0), {needed},
             {HAS_RAW}
         FROM onedrop_copy c JOIN onedrop_message m ON m.id = c.message_id
         WHERE c.id > ?1 AND {wanted} AND coalesce(?4, ?5, ?6, ?7, ?8) IS NOT NULL
         ORDER BY c.id LIMIT ?2"
    );
    let params = params![after, limit, boot.secs, hash, other, since, account, boot.id];
    let found = read(tx, &sql, params, |row| {
        Ok((row.cell::<i64>(0)?, row.cell::<i64>(1)?, rows::forgotten(row, 2)?))
    })?;
    for (copy, message, _) in found.iter().filter(|(.., one)| one.passed_by.is_none() && !dry_run) {
        match what {
            ForgetWhat::Account(_) => {
                for sql in ERASE {
                    tx.execute(sql, [message, copy]).classified()?;
                }
            }
            ForgetWhat::Message(_) | ForgetWhat::Since(_) => {
                tx.execute(END, [copy]).classified()?;
                tx.execute(FORGET, [copy]).classified()?;
            }
        }
    }
    let next = found.last().map(|(copy, ..)| *copy).filter(|_| found.len() == limit as usize);
    Ok(ForgetBatch { copies: found.into_iter().map(|(.., one)| one).collect(), next })
}
