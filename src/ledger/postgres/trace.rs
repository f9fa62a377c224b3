//! Reads what is on record about messages: two round trips, each in a transaction that sees one
//! state.

use std::collections::HashMap;
use std::time::UNIX_EPOCH;

use postgres::Row;
use postgres::types::Type;

use super::columns::INDEXED;
use super::columns::{cell, receipt};
use super::connection::{Connection, Statement};
use crate::ledger::{
    LedgerError, Trace, TraceAddress, TraceAttempt, TraceCopy, TraceFilter, TracePart,
    wanted_hashes,
};
use crate::text;

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
SELECT m.id, id_hash, message_id_text, encode(digest, 'hex'), {recorded_at}, subject, {date},
       size_bytes, in_reply_to,
       reference_ids,
       message_id IS NOT NULL AND EXISTS (
           SELECT FROM onedrop_message o WHERE o.id_hash = m.id_hash AND o.digest <> m.digest),
       raw IS NOT NULL
FROM {wanted}
WHERE m.recorded_at >= to_timestamp($5)
  AND ($6::text IS NULL OR position(lower($6) IN lower(m.sender)) > 0 OR EXISTS (
       SELECT FROM onedrop_address a
       WHERE a.message_id = m.id AND a.role = 'from'
         AND position(lower($6) IN lower(a.address)) > 0))
  AND ($7::text IS NULL OR position(lower($7) IN lower(m.subject)) > 0)
  AND (NOT $8
       OR EXISTS (SELECT FROM onedrop_copy c WHERE c.message_id = m.id AND c.placed_at IS NULL)
       OR EXISTS (SELECT FROM onedrop_attempt a
                  WHERE a.message_id = m.id AND a.outcome IS DISTINCT FROM 'delivered'
                    AND NOT EXISTS (SELECT FROM onedrop_attempt later
                                    WHERE later.message_id = m.id
                                    AND lower(later.recipient) = lower(a.recipient)
                                      AND later.id > a.id AND later.outcome = 'delivered')))
ORDER BY m.recorded_at DESC, m.id DESC LIMIT $4";

/// With further conditions, this many of the newest messages of a recipient or account are read.
const LOOKED_AT: i64 = 10_000;

const ADDRESSES: &str = "
SELECT message_id, role, name, address FROM onedrop_address WHERE message_id = ANY ($1)
ORDER BY message_id, position";

const PARTS: &str = "
SELECT message_id, path, content_type, name, size_bytes FROM onedrop_part
WHERE message_id = ANY ($1)";

const COPIES: &str = "
SELECT message_id, account, mailbox,
       CASE WHEN placed_at IS NOT NULL THEN 'placed'
            WHEN leased_until > clock_timestamp() THEN 'leased'
            WHEN in_doubt THEN 'in doubt' ELSE 'free' END,
       placed_at IS NOT NULL, uid_validity, uid, file_name, {placed_at}, epoch, owner,
       {leased_until}, nul_replaced,
       found_by_look,
       (SELECT why FROM onedrop_kept k WHERE k.message_id = c.message_id AND c.shared
       AND c.placed_at IS NULL)
FROM onedrop_copy c WHERE message_id = ANY ($1) ORDER BY shared, id";

/// Attempts for the messages ($1), and attempts without a message row: with the same Message-IDs
/// ($2), or by Message-ID ($3), queue id or recipient ($4); without a name, all of them. Further
/// conditions as above ($5 to $8; attempts have no subject).
const ATTEMPTS: &str = "
SELECT message_id, id_hash, {started_at}, recipient, sender, queue_id, host, pid, duration_ms,
       outcome, status, detail
FROM onedrop_attempt WHERE message_id = ANY ($1)
UNION ALL
(SELECT message_id, id_hash, {started_at}, recipient, sender, queue_id, host, pid, duration_ms,
outcome, status, detail
 FROM onedrop_attempt a
 WHERE message_id IS NULL AND (
       id_hash = ANY ($2)
       OR CASE WHEN $4::text IS NULL THEN {unrecorded}
               ELSE $4 <> '' AND (id_hash = ANY ($3) OR queue_id = $4
                                  OR lower(recipient) = lower($4)) END
          AND started_at >= to_timestamp($5) AND $7::text IS NULL AND (NOT $8 OR {unrecorded})
          AND ($6::text IS NULL OR position(lower($6) IN lower(sender)) > 0))
 ORDER BY id DESC LIMIT 1000)
ORDER BY 3";

const UNRECORDED: &str = "NOT EXISTS (SELECT FROM onedrop_message m WHERE m.id_hash = a.id_hash)";

/// [`Ledger::trace`](crate::ledger::Ledger::trace).
pub(super) fn trace(
    connection: &mut Connection,
    filter: &TraceFilter<'_>,
    limit: u32,
) -> Result<Vec<Trace>, LedgerError> {
    let hashes: Vec<Vec<u8>> = filter
        .name
        .map(wanted_hashes)
        .unwrap_or_default()
        .iter()
        .map(|hash| hash.to_vec())
        .collect();
    let name = filter.name.map(|name| text::within(name.trim(), INDEXED));
    if name.as_deref() == Some("") {
        return Ok(Vec::new());
    }
    let TraceFilter { since, sender, subject, failed, .. } = *filter;
    let is_plain = since.is_none() && sender.is_none() && subject.is_none() && !failed;
    let rows_limit = i64::from(limit);
    let of_each = if is_plain { rows_limit } else { LOOKED_AT };
    let since =
        since.unwrap_or(UNIX_EPOCH).duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let [sender, subject] =
        [sender, subject].map(|text| text.map(|text| text::within(text, INDEXED)));
    let sql = with_times(MESSAGES);
    let sql = match name {
        Some(_) => format!(
            "{NAMED}{}",
            sql.replace("{wanted}", "onedrop_message m JOIN wanted USING (id)")
        ),
        None => sql.replace("{wanted}", "onedrop_message m"),
    };
    let rows = connection.read(&[Statement::new(&sql)
        .with(&hashes, Type::BYTEA_ARRAY)
        .with(&name, Type::TEXT)
        .with(&of_each, Type::INT8)
        .with(&rows_limit, Type::INT8)
        .with(&since, Type::FLOAT8)
        .with(&sender, Type::TEXT)
        .with(&subject, Type::TEXT)
        .with(&failed, Type::BOOL)])?;
    let mut found = TraceBuilder::default();
    for row in rows.iter().flatten() {
        found.message(row)?;
    }
    let ids: Vec<i64> = found.traces.iter().map(|trace| trace.message).collect();
    let found_hashes: Vec<Vec<u8>> = found.by_hash.keys().cloned().collect();
    let (copies, attempts) =
        (with_times(COPIES), with_times(ATTEMPTS).replace("{unrecorded}", UNRECORDED));
    let about = |sql| Statement::new(sql).with(&ids, Type::INT8_ARRAY);
    let answers = connection.read(&[
        about(ADDRESSES),
        about(PARTS),
        about(&copies),
        about(&attempts)
            .with(&found_hashes, Type::BYTEA_ARRAY)
            .with(&hashes, Type::BYTEA_ARRAY)
            .with(&name, Type::TEXT)
            .with(&since, Type::FLOAT8)
            .with(&sender, Type::TEXT)
            .with(&subject, Type::TEXT)
            .with(&failed, Type::BOOL),
    ])?;
    for (rows, add) in answers.iter().zip([
        TraceBuilder::address,
        TraceBuilder::part,
        TraceBuilder::copy,
        TraceBuilder::attempt,
    ]) {
        rows.iter().try_for_each(|row| add(&mut found, row))?;
    }
    let mut traces = found.newest_first();
    traces.truncate(limit as usize);
    Ok(traces)
}

/// Replaces each `{column}` that is a time by its ISO 8601 text in UTC.
fn with_times(sql: &str) -> String {
    let mut sql = sql.to_owned();
    for (column, format) in
        [("recorded_at", "SS"), ("date", "SS"), ("placed_at", "SS.MS"), ("leased_until", "SS.MS")]
            .into_iter()
            .chain([("started_at", "SS.MS")])
    {
        let text =
            format!(r#"to_char({column} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:{format}"Z"')"#);
        sql = sql.replace(&format!("{{{column}}}"), &text);
    }
    sql
}

/// Collects traces from rows.
#[derive(Default)]
struct TraceBuilder {
    traces: Vec<Trace>,
    /// Indexes in `traces`.
    by_id: HashMap<i64, usize>,
    by_hash: HashMap<Vec<u8>, usize>,
    /// Attempts whose message is not on record, by the hash of its Message-ID.
    unrecorded: Vec<(Vec<u8>, Trace)>,
}

impl TraceBuilder {
    fn message(&mut self, row: &Row) -> Result<(), LedgerError> {
        self.by_id.insert(cell(row, 0)?, self.traces.len());
        self.by_hash.entry(cell(row, 1)?).or_insert(self.traces.len());
        self.traces.push(Trace {
            message: cell(row, 0)?,
            message_id: cell(row, 2)?,
            digest: cell(row, 3)?,
            recorded_at: cell(row, 4)?,
            subject: cell(row, 5)?,
            date: cell(row, 6)?,
            size_bytes: cell(row, 7)?,
            in_reply_to: cell(row, 8)?,
            references: cell(row, 9)?,
            collision: cell(row, 10)?,
            raw_kept: cell(row, 11)?,
            ..Trace::default()
        });
        Ok(())
    }

    /// The trace of the message whose id is the row's first column.
    fn of(&mut self, row: &Row) -> Result<&mut Trace, LedgerError> {
        let id: i64 = cell(row, 0)?;
        let found = self.by_id.get(&id).and_then(|at| self.traces.get_mut(*at));
        found.ok_or_else(|| {
            LedgerError::Broken(format!("a row of message {id}, which was not asked for"))
        })
    }

    fn address(&mut self, row: &Row) -> Result<(), LedgerError> {
        let address =
            TraceAddress { role: cell(row, 1)?, name: cell(row, 2)?, address: cell(row, 3)? };
        self.of(row)?.addresses.push(address);
        Ok(())
    }

    fn part(&mut self, row: &Row) -> Result<(), LedgerError> {
        let (path, content_type) = (cell(row, 1)?, cell(row, 2)?);
        let part = TracePart { path, content_type, name: cell(row, 3)?, size_bytes: cell(row, 4)? };
        self.of(row)?.parts.push(part);
        Ok(())
    }

    fn copy(&mut self, row: &Row) -> Result<(), LedgerError> {
        let placed: bool = cell(row, 4)?;
        let copy = TraceCopy {
            account: cell(row, 1)?,
            mailbox: cell(row, 2)?,
            state: cell(row, 3)?,
            receipt: if placed { Some(receipt(row, 5)?.to_string()) } else { None },
            placed_at: cell(row, 8)?,
            epoch: cell(row, 9)?,
            owner: cell(row, 10)?,
            leased_until: cell(row, 11)?,
            nul_replaced: cell(row, 12)?,
            found_by_look: cell(row, 13)?,
            kept: cell(row, 14)?,
        };
        self.of(row)?.copies.push(copy);
        Ok(())
    }

    fn attempt(&mut self, row: &Row) -> Result<(), LedgerError> {
        let attempt = TraceAttempt {
            started_at: cell(row, 2)?,
            recipient: cell(row, 3)?,
            sender: cell(row, 4)?,
            queue_id: cell(row, 5)?,
            host: cell(row, 6)?,
            pid: cell(row, 7)?,
            duration_ms: cell(row, 8)?,
            outcome: cell(row, 9)?,
            status: cell(row, 10)?,
            text: cell(row, 11)?,
        };
        if cell::<Option<i64>>(row, 0)?.is_some() {
            self.of(row)?.attempts.push(attempt);
            return Ok(());
        }
        let hash: Vec<u8> = cell(row, 1)?;
        if let Some(trace) = self.by_hash.get(&hash).and_then(|at| self.traces.get_mut(*at)) {
            trace.attempts.push(attempt);
        } else if let Some((_, trace)) =
            self.unrecorded.iter_mut().find(|(known, _)| *known == hash)
        {
            trace.attempts.push(attempt);
        } else {
            let recorded_at = attempt.started_at.clone();
            self.unrecorded
                .push((hash, Trace { recorded_at, attempts: vec![attempt], ..Trace::default() }));
        }
        Ok(())
    }

    /// All traces, newest first; `recorded_at` sorts as text.
    fn newest_first(self) -> Vec<Trace> {
        let mut traces = self.traces;
        for trace in &mut traces {
            trace.parts.sort_by_key(|part| {
                part.path.split('.').map(|n| n.parse().unwrap_or(0)).collect::<Vec<u32>>()
            });
        }
        traces.extend(self.unrecorded.into_iter().map(|(_, trace)| trace));
        traces.sort_by(|a, b| b.recorded_at.cmp(&a.recorded_at).then(b.message.cmp(&a.message)));
        traces
    }
}
