//! Messages with their facts. Each function works in the given transaction.

use std::time::UNIX_EPOCH;

use rusqlite::{Connection, params};

use super::dialect::SqliteTransaction;
use super::{attempts, copies, execute, first, read, schema};
use crate::facts as json;
use crate::rows::{INDEXED, SqlRow};
use crate::sql::shared;
use crate::{ToRecord, rows};
use onedrop_core::ledger::{
    Attempt, Entry, LedgerError, MessageKey, Program, Recorded, recorded_secs,
};
use onedrop_core::message::Identity;
use onedrop_core::text;

/// [`Ledger::record`](onedrop_core::ledger::Ledger::record), under the message's lock.
pub(super) fn record(
    tx: &SqliteTransaction<'_>,
    program: &Program,
    one: &ToRecord<'_>,
) -> Result<Recorded, LedgerError> {
    let now = tx.now;
    let ToRecord { entry, attempt, destinations, terms } = *one;
    schema::version(tx, program)?.check()?;
    if let Some(ours) = &program.config {
        let ours = ours.with(entry.fields);
        match first::<Option<String>>(tx, shared::CONFIG, [])?.flatten() {
            None => drop(tx.run(&shared::share(ours.json(), None))?),
            on_record => ours.check(on_record.as_deref())?,
        }
    }
    let identity = entry.identity;
    let collision = collides(tx, identity)?;
    let known = find_message(tx, identity)?;
    let (message, recorded_at, looks_back) = match known {
        Some(known) => known,
        None => insert_message(tx, now, &entry, attempt, collision)?,
    };
    Ok(Recorded {
        message: MessageKey::new(message, identity),
        recorded_at: rows::time(recorded_at),
        is_new: known.is_none(),
        collision,
        attempt: attempts::insert(tx, now, message, attempt)?,
        copies: copies::claim(
            tx,
            (message, known.is_none(), looks_back),
            destinations,
            attempt,
            terms,
        )?,
    })
}

/// Whether another message with the same Message-ID and other content is on record.
fn collides(tx: &Connection, identity: &Identity) -> Result<bool, LedgerError> {
    let sql = "SELECT ?3 AND EXISTS (
        SELECT 1 FROM onedrop_message
        WHERE substr(id_hash, 1, 8) = substr(?1, 1, 8) AND id_hash = ?1 AND digest <> ?2)";
    let params = params![identity.id_hash, identity.digest, identity.message_id.is_some()];
    Ok(first(tx, sql, params)? == Some(true))
}

/// Row id, time of recording, and whether its copies look back.
type MessageRow = (i64, i64, bool);

fn find_message(tx: &Connection, identity: &Identity) -> Result<Option<MessageRow>, LedgerError> {
    let sql = "SELECT id, recorded_at, looks_back FROM onedrop_message
        WHERE substr(id_hash, 1, 8) = substr(?1, 1, 8) AND id_hash = ?1 AND digest = ?2";
    let params = [&identity.id_hash, &identity.digest];
    let rows = read(tx, sql, params, |row| Ok((row.cell(0)?, row.cell(1)?, row.cell(2)?)))?;
    Ok(rows.into_iter().next())
}

fn insert_message(
    tx: &Connection,
    now: f64,
    entry: &Entry<'_>,
    attempt: &Attempt,
    collision: bool,
) -> Result<MessageRow, LedgerError> {
    let (identity, facts) = (entry.identity, entry.facts);
    let now_secs = now;
    let now = UNIX_EPOCH + rows::length(now);
    let recorded_at = recorded_secs(entry.at, now);
    let inserted = read(
        tx,
        "INSERT INTO onedrop_message (id_hash, digest, message_id, sender, subject, date,
             in_reply_to, reference_ids, size_bytes, collision, addresses, parts, nul_runs,
             recorded_at, looks_back)
         SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14,
                coalesce(?15, -1) < remembers_since + 3600 FROM onedrop_ledger
         RETURNING id, looks_back",
        params![
            identity.id_hash,
            identity.digest,
            identity.message_id,
            text::within(&attempt.sender, INDEXED),
            facts.subject,
            facts.date,
            json::in_reply_to(facts),
            facts.references,
            entry.size_bytes as i64,
            collision,
            json::addresses(&facts.addresses),
            json::parts(&facts.parts),
            entry.nul_runs,
            recorded_at,
            entry.oldest.map(rows::whole_secs),
        ],
        |row| Ok((row.cell(0)?, row.cell(1)?)),
    )?;
    let (message, looks_back) = inserted.into_iter().next().ok_or_else(rows::no_ledger)?;
    if let Some(raw) = entry.raw {
        let sql = "INSERT INTO onedrop_raw (message_id, kept_at, bytes) VALUES (?1, ?2, ?3)";
        execute(tx, sql, params![message, now_secs, raw])?;
    }
    Ok((message, recorded_at, looks_back))
}
