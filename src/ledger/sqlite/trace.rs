//! What `onedrop trace` reads from an SQLite ledger. Reads only.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use rusqlite::{Connection, Row, params};

use crate::ledger::{
    LedgerError, Trace, TraceAddress, TraceAttempt, TraceCopy, TraceFilter, TracePart, copy_state,
    receipt_columns, wanted_hashes,
};
use crate::lock_key::{self, Hash};

const TIME: &str = "'%Y-%m-%dT%H:%M:%SZ'";

pub(super) fn trace(
    connection: &Connection,
    filter: &TraceFilter<'_>,
    limit: u32,
) -> Result<Vec<Trace>, LedgerError> {
    if filter.name == Some("") {
        return Ok(Vec::new());
    }
    let hashes = filter.name.map(wanted_hashes).unwrap_or_default();
    let wanted = TraceKey {
        hashes: [hashes.first(), hashes.last()].map(Option::<&Hash>::copied),
        filter,
        lower: filter.name.map(str::to_lowercase),
        since: filter
            .since
            .unwrap_or(UNIX_EPOCH)
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs(),
    };
    let messages = wanted.messages(connection, limit)?;
    let mut unrecorded = wanted.unrecorded(connection, &messages)?;
    let mut traces = Vec::new();
    for (id_hash, message) in messages {
        let id = message.message;
        let mut attempts = rows(connection, &attempts_sql("message_id = ?1"), id, attempt)?;
        attempts.extend(unrecorded.remove(&id_hash).unwrap_or_default());
        attempts.sort_by(|a, b| a.started_at.cmp(&b.started_at));
        traces.push(Trace {
            addresses: rows(
                connection,
                "SELECT role, name, address FROM onedrop_address WHERE message_id = ?1
                 ORDER BY position",
                id,
                |row| {
                    Ok(TraceAddress { role: row.get(0)?, name: row.get(1)?, address: row.get(2)? })
                },
            )?,
            parts: rows(
                connection,
                "SELECT path, content_type, name, size_bytes FROM onedrop_part
                 WHERE message_id = ?1 ORDER BY position",
                id,
                |row| {
                    Ok(TracePart {
                        path: row.get(0)?,
                        content_type: row.get(1)?,
                        name: row.get(2)?,
                        size_bytes: row.get(3)?,
                    })
                },
            )?,
            copies: rows(connection, &copies_sql(), id, copy)?,
            attempts,
            ..message
        });
    }
    // Attempts for messages that are not on record.
    traces.extend(unrecorded.into_values().map(|attempts| Trace {
        recorded_at: attempts.first().map(|attempt| attempt.started_at.clone()).unwrap_or_default(),
        attempts,
        ..Trace::default()
    }));
    traces.sort_by(|a, b| b.recorded_at.cmp(&a.recorded_at).then(b.message.cmp(&a.message)));
    traces.truncate(limit as usize);
    Ok(traces)
}

fn rows<T>(
    connection: &Connection,
    sql: &str,
    key: impl rusqlite::ToSql,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, LedgerError> {
    let mut statement = connection.prepare(sql)?;
    let rows = statement.query_map([key], read)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Messages by name: ?1 and ?2 are hashes of a Message-ID, ?3 and ?4 a queue id, recipient or
/// account.
const NAMED: &str = "(id_hash IN (?1, ?2)
    OR id IN (SELECT message_id FROM onedrop_attempt WHERE queue_id = ?3 AND queue_id <> '')
    OR id IN (SELECT message_id FROM onedrop_attempt WHERE recipient = ?4)
    OR id IN (SELECT message_id FROM onedrop_copy WHERE account IN (?3, ?4)))
    AND recorded_at >= ?5";

/// Further conditions: ?6 sender, ?7 subject, ?8 not everything is delivered.
const CONDITIONS: &str = "(?6 IS NULL OR instr(lower(sender), lower(?6)) > 0 OR EXISTS (
        SELECT 1 FROM onedrop_address a
        WHERE a.message_id = m.id AND a.role = 'from' AND instr(lower(a.address), lower(?6)) > 0))
    AND (?7 IS NULL OR instr(lower(subject), lower(?7)) > 0)
    AND (NOT ?8
         OR EXISTS (SELECT 1 FROM onedrop_copy c WHERE c.message_id = m.id AND c.placed_at IS NULL)
         OR EXISTS (SELECT 1 FROM onedrop_attempt a
                    WHERE a.message_id = m.id AND a.outcome IS NOT 'delivered'
                      AND NOT EXISTS (SELECT 1 FROM onedrop_attempt later
                                      WHERE later.message_id = m.id
                                        AND later.recipient = a.recipient
                                        AND later.id > a.id AND later.outcome = 'delivered')))";

/// Seconds by which the clock may have been set back between two messages with rising row numbers.
const CLOCK_STEP_SECS: u64 = 3600;

/// The filter, in the forms in which its values may be on record.
struct TraceKey<'a> {
    hashes: [Option<Hash>; 2],
    filter: &'a TraceFilter<'a>,
    lower: Option<String>,
    since: u64,
}

impl TraceKey<'_> {
    /// The messages, newest first, each with the hash of its Message-ID. Without a name, messages
    /// are read from the newest to the first one that is too old: row numbers rise with time, and
    /// times have no index.
    fn messages(
        &self,
        connection: &Connection,
        limit: u32,
    ) -> Result<Vec<(Hash, Trace)>, LedgerError> {
        let which = match self.filter.name {
            Some(_) => format!("{NAMED} AND {CONDITIONS}"),
            None => format!("recorded_at < ?5 OR {CONDITIONS}"),
        };
        let sql = format!(
            "SELECT id, message_id_text, digest, strftime({TIME}, recorded_at, 'unixepoch'),
                    subject, strftime({TIME}, date, 'unixepoch'), size_bytes, in_reply_to,
                    reference_ids,
                    message_id IS NOT NULL AND EXISTS (
                        SELECT 1 FROM onedrop_message o
                        WHERE o.id_hash = m.id_hash AND o.digest <> m.digest),
                    raw IS NOT NULL, id_hash, recorded_at
             FROM onedrop_message m WHERE {which} ORDER BY id DESC"
        );
        let mut statement = connection.prepare(&sql)?;
        let ([first, last], filter) = (self.hashes, self.filter);
        let parameters = params![
            first,
            last,
            filter.name,
            self.lower,
            self.since as i64,
            filter.sender,
            filter.subject,
            filter.failed
        ];
        let mut rows = statement.query(parameters)?;
        let mut messages = Vec::new();
        while messages.len() < limit as usize
            && let Some(row) = rows.next()?
        {
            let recorded = row.get::<_, i64>(12)?.max(0).unsigned_abs();
            if recorded + CLOCK_STEP_SECS < self.since {
                break;
            }
            if recorded >= self.since {
                messages.push((row.get(11)?, message(row)?));
            }
        }
        Ok(messages)
    }

    /// Attempts that recorded no message, by the hash of its Message-ID: those for messages that
    /// were found, and those that match the filter.
    fn unrecorded(
        &self,
        connection: &Connection,
        found: &[(Hash, Trace)],
    ) -> Result<BTreeMap<Hash, Vec<TraceAttempt>>, LedgerError> {
        const UNRECORDED: &str = "NOT EXISTS
            (SELECT 1 FROM onedrop_message m WHERE m.id_hash = onedrop_attempt.id_hash)";
        let sql = attempts_sql(&format!(
            "message_id IS NULL AND (id_hash = ?9
              OR ?9 IS NULL AND started_at >= ?5 AND ?7 IS NULL AND (NOT ?8 OR {UNRECORDED})
                 AND (?6 IS NULL OR instr(lower(sender), lower(?6)) > 0)
                 AND CASE WHEN ?3 IS NULL THEN {UNRECORDED}
                          ELSE id_hash IN (?1, ?2) OR queue_id = ?3 AND queue_id <> ''
                               OR recipient = ?4 END)"
        ));
        let mut statement = connection.prepare(&sql)?;
        let ([first, last], filter) = (self.hashes, self.filter);
        let mut attempts = BTreeMap::<Hash, Vec<TraceAttempt>>::new();
        for at in found.iter().map(|(id_hash, _)| Some(*id_hash)).chain([None]) {
            let parameters = params![
                first,
                last,
                filter.name,
                self.lower,
                self.since as i64,
                filter.sender,
                filter.subject,
                filter.failed,
                at
            ];
            let rows = statement
                .query_map(parameters, |row| Ok((row.get::<_, Hash>(10)?, attempt(row)?)))?;
            for row in rows {
                let (id_hash, attempt) = row?;
                // Attempts for messages that were found are in the map already.
                if at.is_some() || !found.iter().any(|(found, _)| *found == id_hash) {
                    attempts.entry(id_hash).or_default().push(attempt);
                }
            }
        }
        Ok(attempts)
    }
}

fn message(row: &Row<'_>) -> rusqlite::Result<Trace> {
    Ok(Trace {
        message: row.get(0)?,
        message_id: row.get(1)?,
        digest: lock_key::hex(&row.get::<_, Vec<u8>>(2)?),
        recorded_at: row.get(3)?,
        subject: row.get(4)?,
        date: row.get(5)?,
        size_bytes: row.get(6)?,
        in_reply_to: row.get(7)?,
        references: row.get(8)?,
        collision: row.get(9)?,
        raw_kept: row.get(10)?,
        ..Trace::default()
    })
}

fn copies_sql() -> String {
    format!(
        "SELECT account, mailbox, placed_at IS NOT NULL,
                coalesce(leased_until > unixepoch('subsec'), 0), in_doubt,
                uid_validity, uid, file_name, strftime({TIME}, placed_at, 'unixepoch'), epoch,
                owner, strftime({TIME}, leased_until, 'unixepoch'), nul_replaced, found_by_look,
                (SELECT why FROM onedrop_kept k
                 WHERE k.message_id = c.message_id AND c.shared AND c.placed_at IS NULL)
         FROM onedrop_copy c WHERE message_id = ?1 ORDER BY id"
    )
}

fn copy(row: &Row<'_>) -> rusqlite::Result<TraceCopy> {
    let placed = row.get(2)?;
    let receipt = receipt_columns::receipt(row.get(5)?, row.get(6)?, row.get(7)?);
    // A receipt that cannot be read must not hide the copy.
    let receipt =
        receipt.map_or_else(|| "not understood".to_owned(), |receipt| receipt.to_string());
    Ok(TraceCopy {
        account: row.get(0)?,
        mailbox: row.get(1)?,
        state: copy_state(placed, row.get(3)?, row.get(4)?).to_owned(),
        receipt: placed.then_some(receipt),
        placed_at: row.get(8)?,
        epoch: row.get(9)?,
        owner: row.get(10)?,
        leased_until: row.get(11)?,
        nul_replaced: row.get(12)?,
        found_by_look: row.get(13)?,
        kept: row.get(14)?,
    })
}

fn attempts_sql(filter: &str) -> String {
    format!(
        "SELECT strftime({TIME}, started_at, 'unixepoch'), recipient, sender, queue_id, host, pid,
                duration_ms, outcome, status, detail, id_hash
         FROM onedrop_attempt WHERE {filter} ORDER BY id"
    )
}

fn attempt(row: &Row<'_>) -> rusqlite::Result<TraceAttempt> {
    Ok(TraceAttempt {
        started_at: row.get(0)?,
        recipient: row.get(1)?,
        sender: row.get(2)?,
        queue_id: row.get(3)?,
        host: row.get(4)?,
        pid: row.get(5)?,
        duration_ms: row.get(6)?,
        outcome: row.get(7)?,
        status: row.get(8)?,
        text: row.get(9)?,
    })
}
