//! What `onedrop trace` reads from an SQLite ledger. Reads only.

use std::collections::BTreeMap;

use rusqlite::{Connection, Row, params};

use crate::ledger::{LedgerError, Trace, TraceAddress, TraceAttempt, TraceCopy, TracePart, copy_state, wanted_hashes};
use crate::lock_key::{self, Hash};
use crate::store::Receipt;

const TIME: &str = "'%Y-%m-%dT%H:%M:%SZ'";

pub(super) fn trace(connection: &Connection, wanted: &str, limit: u32) -> Result<Vec<Trace>, LedgerError> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let hashes = wanted_hashes(wanted);
    let wanted = Wanted {
        hashes: [hashes.first(), hashes.last()].map(|hash| hash.copied().unwrap_or_default()),
        text: wanted,
        lower: wanted.to_lowercase(),
    };
    let mut unrecorded = wanted.unrecorded(connection)?;
    let mut traces = Vec::new();
    for (id_hash, message) in wanted.messages(connection, limit)? {
        let id = message.message;
        let mut attempts = rows(connection, &attempts_sql("message_id = ?1"), id, attempt)?;
        attempts.extend(unrecorded.remove(&id_hash).unwrap_or_default());
        traces.push(Trace {
            addresses: rows(
                connection,
                "SELECT role, name, address FROM onedrop_address WHERE message_id = ?1 ORDER BY position",
                id,
                |row| Ok(TraceAddress { role: row.get(0)?, name: row.get(1)?, address: row.get(2)? }),
            )?,
            parts: rows(
                connection,
                "SELECT path, content_type, name, size_bytes FROM onedrop_part WHERE message_id = ?1 ORDER BY position",
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
    // Attempts at messages that are not on record.
    traces.extend(unrecorded.into_values().map(|attempts| Trace { attempts, ..Trace::default() }));
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

/// What was asked for, in the forms in which it may be on record.
struct Wanted<'a> {
    hashes: [Hash; 2],
    text: &'a str,
    lower: String,
}

impl Wanted<'_> {
    /// The messages, newest first, each with the hash of its Message-ID.
    fn messages(&self, connection: &Connection, limit: u32) -> Result<Vec<(Hash, Trace)>, LedgerError> {
        let sql = format!(
            "SELECT id, message_id_text, digest, strftime({TIME}, recorded_at, 'unixepoch'), subject,
                    strftime({TIME}, date, 'unixepoch'), size_bytes, in_reply_to, reference_ids,
                    message_id IS NOT NULL AND EXISTS (
                        SELECT 1 FROM onedrop_message o WHERE o.id_hash = m.id_hash AND o.digest <> m.digest),
                    raw IS NOT NULL, id_hash
             FROM onedrop_message m
             WHERE id_hash IN (?1, ?2)
                OR id IN (SELECT message_id FROM onedrop_attempt WHERE queue_id = ?3 AND queue_id <> '')
                OR id IN (SELECT message_id FROM onedrop_attempt WHERE recipient = ?4)
                OR id IN (SELECT message_id FROM onedrop_copy WHERE account IN (?3, ?4))
             ORDER BY id DESC LIMIT ?5"
        );
        let mut statement = connection.prepare(&sql)?;
        let [first, last] = self.hashes;
        let rows = statement.query_map(params![first, last, self.text, self.lower, limit], |row| {
            let trace = Trace {
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
            };
            Ok((row.get(11)?, trace))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Attempts that came to record no message, by the hash of its Message-ID.
    fn unrecorded(&self, connection: &Connection) -> Result<BTreeMap<Hash, Vec<TraceAttempt>>, LedgerError> {
        let sql = attempts_sql(
            "message_id IS NULL
             AND (id_hash IN (?1, ?2) OR queue_id = ?3 AND queue_id <> '' OR recipient = ?4)",
        );
        let mut statement = connection.prepare(&sql)?;
        let [first, last] = self.hashes;
        let rows = statement.query_map(params![first, last, self.text, self.lower], |row| {
            Ok((row.get::<_, Hash>(10)?, attempt(row)?))
        })?;
        let mut attempts = BTreeMap::<Hash, Vec<TraceAttempt>>::new();
        for row in rows {
            let (id_hash, attempt) = row?;
            attempts.entry(id_hash).or_default().push(attempt);
        }
        Ok(attempts)
    }
}

fn copies_sql() -> String {
    format!(
        "SELECT account, mailbox, placed_at IS NOT NULL, coalesce(leased_until > unixepoch('subsec'), 0), in_doubt,
                uid_validity, uid, file_name, strftime({TIME}, placed_at, 'unixepoch'), epoch, owner,
                strftime({TIME}, leased_until, 'unixepoch'), nul_replaced, found_by_look,
                (SELECT why FROM onedrop_kept k WHERE k.message_id = c.message_id AND c.shared AND c.placed_at IS NULL)
         FROM onedrop_copy c WHERE message_id = ?1 ORDER BY id"
    )
}

fn copy(row: &Row<'_>) -> rusqlite::Result<TraceCopy> {
    let placed = row.get(2)?;
    let receipt = Receipt::from_columns(row.get(5)?, row.get(6)?, row.get(7)?);
    // Whatever is on record is told.
    let receipt = receipt.map_or_else(|| "not understood".to_owned(), |receipt| receipt.to_string());
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
        "SELECT strftime({TIME}, started_at, 'unixepoch'), recipient, sender, queue_id, host, pid, duration_ms, outcome,
                status, detail, id_hash
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
