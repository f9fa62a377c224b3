//! The rows of a delivery: message and facts, claims, receipt, attempts. Each function works in the
//! given transaction, or opens and commits one of its own.

use std::time::{Duration, UNIX_EPOCH};

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{SqliteSession, schema_version};
use crate::directory::Destination;
use crate::ledger::{
    Attempt, AttemptEnd, Claim, Confirmed, CopyFacts, CopyState, Entry, LeaseTerms, LedgerError,
    RandomValue, Recorded, SCHEMA_VERSION, ToConfirm, ToRecord, no_receipt, receipt_columns,
    recorded_secs,
};
use crate::message::{Facts, Identity};
use crate::receipt::Receipt;
use crate::text;

pub(super) fn record_locked(
    ledger: &mut SqliteSession,
    one: &ToRecord<'_>,
) -> Result<Recorded, LedgerError> {
    let ToRecord { entry, attempt, destinations, terms } = *one;
    let (tx, now) = ledger.begin()?;
    let version = schema_version(&tx)?;
    if version != SCHEMA_VERSION {
        return Err(LedgerError::Version { found: version });
    }
    let identity = entry.identity;
    let collision = collides(&tx, identity)?;
    let known = find_message(&tx, identity)?;
    let (message, recorded_at) = match known {
        Some(known) => known,
        None => insert_message(&tx, now, &entry, attempt, collision)?,
    };
    let attempt_row = insert_attempt(&tx, now, Some(message), identity, attempt)?;
    let copies = claim_copies(&tx, now, message, destinations, attempt, terms)?;
    tx.commit()?;
    Ok(Recorded {
        message,
        recorded_at: UNIX_EPOCH + Duration::from_secs(recorded_at.max(0).unsigned_abs()),
        is_new: known.is_none(),
        collision,
        attempt: attempt_row,
        copies,
    })
}

/// Row id and time of recording.
type MessageRow = (i64, i64);

/// Whether another message with the same Message-ID and other content is on record.
fn collides(tx: &Connection, identity: &Identity) -> Result<bool, LedgerError> {
    let sql =
        "SELECT ?3 AND EXISTS (SELECT 1 FROM onedrop_message WHERE id_hash = ?1 AND digest <> ?2)";
    let params = params![identity.id_hash, identity.digest, identity.message_id.is_some()];
    Ok(tx.query_row(sql, params, |row| row.get(0))?)
}

fn find_message(tx: &Connection, identity: &Identity) -> Result<Option<MessageRow>, LedgerError> {
    let row = tx
        .query_row(
            "SELECT id, recorded_at FROM onedrop_message WHERE id_hash = ?1 AND digest = ?2",
            params![identity.id_hash, identity.digest],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()?;
    Ok(row)
}

fn insert_message(
    tx: &Connection,
    now: f64,
    entry: &Entry<'_>,
    attempt: &Attempt,
    collision: bool,
) -> Result<MessageRow, LedgerError> {
    let (identity, facts) = (entry.identity, entry.facts);
    let recorded_at =
        recorded_secs(entry.at, UNIX_EPOCH + Duration::from_secs_f64(now.max(0.0))) as i64;
    let message_id_text = identity
        .message_id
        .as_deref()
        .map(|id| text::one_line(&String::from_utf8_lossy(id)).into_owned());
    tx.execute(
        "INSERT INTO onedrop_message (id_hash, digest, message_id, message_id_text, sender,
         subject, date, in_reply_to,
             reference_ids, size_bytes, collision, raw, nul_runs, recorded_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        params![
            identity.id_hash,
            identity.digest,
            identity.message_id,
            message_id_text,
            attempt.sender,
            facts.subject,
            facts.date,
            facts.in_reply_to,
            facts.references,
            entry.size_bytes as i64,
            collision,
            entry.raw,
            entry.nul_runs,
            recorded_at,
        ],
    )?;
    let message = tx.last_insert_rowid();
    insert_facts(tx, message, facts)?;
    Ok((message, recorded_at))
}

fn insert_facts(tx: &Connection, message: i64, facts: &Facts) -> Result<(), LedgerError> {
    let mut address = tx.prepare("INSERT INTO onedrop_address VALUES (?1, ?2, ?3, ?4, ?5)")?;
    for (position, fact) in facts.addresses.iter().enumerate() {
        address.execute(params![message, position as i64, fact.role, fact.name, fact.address])?;
    }
    let mut part = tx.prepare("INSERT INTO onedrop_part VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
    for (position, fact) in facts.parts.iter().enumerate() {
        let size_bytes = fact.size_bytes as i64;
        part.execute(params![
            message,
            position as i64,
            fact.path,
            fact.content_type,
            fact.name,
            size_bytes
        ])?;
    }
    Ok(())
}

/// Claims the copies in order; a mailbox that is named twice is leased once.
pub(super) fn claim_copies(
    tx: &Connection,
    now: f64,
    message: i64,
    destinations: &[Destination],
    owner: &Attempt,
    terms: LeaseTerms,
) -> Result<Vec<CopyState>, LedgerError> {
    let claim = |(at, destination): (usize, &Destination)| {
        let is_named_before =
            destinations[..at].iter().any(|other| other.is_same_mailbox(destination));
        claim_copy(
            tx,
            now,
            message,
            destination,
            owner,
            (!is_named_before).then_some(owner.value),
            terms,
        )
    };
    destinations.iter().enumerate().map(claim).collect()
}

/// Leases a copy to `owner` if it is free, joins a live lease if the terms allow it, or finds the
/// attempt's own lease (of a call whose answer was lost); otherwise returns the copy's state.
fn claim_copy(
    tx: &Connection,
    now: f64,
    message: i64,
    destination: &Destination,
    owner: &Attempt,
    value: Option<RandomValue>,
    terms: LeaseTerms,
) -> Result<CopyState, LedgerError> {
    let leased = tx
        .query_row(
            &format!(
                "INSERT INTO onedrop_copy AS c
                     (message_id, account, mailbox, shared, epoch, owner, lease_value, lease_ms,
                      leased_until, in_doubt, prior_doubt, value)
             VALUES (?1, ?2, ?3, ?4, 1, ?5, ?6, ?7, ?8, 1, 0, randomblob(16))
             ON CONFLICT (message_id, account, mailbox) DO UPDATE SET
                 epoch = epoch + ({LIVE} IS NOT TRUE),
                 prior_doubt = CASE WHEN lease_value = ?6 AND {LIVE} THEN prior_doubt
                                    ELSE in_doubt END,
                 in_doubt = 1, owner = ?5, lease_value = coalesce(?6, lease_value),
                 lease_ms = CASE WHEN {LIVE} THEN max(lease_ms, ?7) ELSE ?7 END,
                 leased_until = CASE WHEN {LIVE} THEN max(leased_until, ?8) ELSE ?8 END,
                 shared = shared OR ?4
             WHERE placed_at IS NULL
               AND (?10 OR lease_value = ?6
                    OR {LIVE} IS NOT TRUE)
             RETURNING id, value, epoch, prior_doubt"
            ),
            params![
                message,
                destination.account,
                destination.mailbox,
                destination.shared,
                format!("{}:{}", owner.host, owner.pid),
                value.as_ref().map(RandomValue::bytes),
                terms.lease.as_millis() as i64,
                now + terms.lease.as_secs_f64(),
                now,
                terms.join,
            ],
            |row| {
                let (copy, value) = (row.get(0)?, random_value(row, 1)?);
                Ok(Claim { copy, value, epoch: row.get(2)?, in_doubt: row.get(3)? })
            },
        )
        .optional()?;
    if let Some(claim) = leased {
        return Ok(CopyState::Claimed(claim));
    }
    let sql = format!("{COPY_ROW} WHERE message_id = ?1 AND account = ?2 AND mailbox = ?3");
    let row =
        tx.query_row(&sql, params![message, destination.account, destination.mailbox], read_copy)?;
    Ok(row.receipt.map_or(CopyState::Busy, CopyState::Placed))
}

/// Whether the row's lease is live at ?9 (seconds). If it ends later than twice its length from
/// then, the clock was set back, and it is not.
const LIVE: &str = "(leased_until > ?9 AND leased_until <= ?9 + lease_ms / 500.0)";

pub(super) struct CopyRow {
    pub epoch: i64,
    /// The epoch of the claim that confirmed, 0 if none has.
    placed_epoch: i64,
    pub prior_doubt: bool,
    /// If it is placed.
    pub receipt: Option<Receipt>,
}

const COPY_ROW: &str = "SELECT epoch, prior_doubt, placed_at IS NOT NULL, uid_validity, uid,
    file_name, placed_epoch FROM onedrop_copy";

/// The row that the claim names.
pub(super) fn copy_row(connection: &Connection, claim: &Claim) -> Result<CopyRow, LedgerError> {
    let sql = format!("{COPY_ROW} WHERE id = ?1 AND value = ?2");
    let row = connection.query_row(&sql, params![claim.copy, claim.value.bytes()], read_copy);
    row.optional()?.ok_or_else(|| LedgerError::Broken(format!("no copy {}", claim.copy)))
}

fn read_copy(row: &Row<'_>) -> rusqlite::Result<CopyRow> {
    let receipt = match row.get(2)? {
        true => Some(receipt(row, 3)?),
        false => None,
    };
    Ok(CopyRow { epoch: row.get(0)?, placed_epoch: row.get(6)?, prior_doubt: row.get(1)?, receipt })
}

/// The receipt in the three columns from `at`.
pub(super) fn receipt(row: &Row<'_>, at: usize) -> rusqlite::Result<Receipt> {
    let receipt = receipt_columns::receipt(row.get(at)?, row.get(at + 1)?, row.get(at + 2)?);
    receipt.ok_or_else(|| {
        rusqlite::Error::FromSqlConversionFailure(at, Type::Null, no_receipt().into())
    })
}

/// The random value in the column `at`.
pub(super) fn random_value(row: &Row<'_>, at: usize) -> rusqlite::Result<RandomValue> {
    let bytes: Vec<u8> = row.get(at)?;
    RandomValue::of(&bytes)
        .map_err(|why| rusqlite::Error::FromSqlConversionFailure(at, Type::Blob, why.into()))
}

pub(super) fn confirm(
    ledger: &mut SqliteSession,
    one: &ToConfirm<'_>,
) -> Result<Confirmed, LedgerError> {
    let ToConfirm { claim, receipt, facts, end } = *one;
    let (tx, now) = ledger.begin()?;
    let CopyRow { placed_epoch, receipt: recorded, .. } = copy_row(&tx, &claim)?;
    match recorded {
        // The first receipt wins, whatever its epoch.
        None => store_receipt(&tx, now, &claim, receipt, facts)?,
        // Receipts without a name are equal only if no other claim can have been placed.
        Some(by)
            if by != *receipt || *receipt == Receipt::Unnamed && placed_epoch != claim.epoch =>
        {
            // A look that has read the row before this must not settle it.
            tx.execute(
                "UPDATE onedrop_copy SET epoch = epoch + 1, settled_at = NULL WHERE id = ?1",
                [claim.copy],
            )?;
            tx.commit()?;
            return Ok(Confirmed::Superseded { by });
        }
        Some(_) => {}
    }
    if let Some((attempt, end)) = end {
        finish_attempt(&tx, attempt, end)?;
    }
    tx.commit()?;
    Ok(Confirmed::Recorded)
}

fn store_receipt(
    tx: &Connection,
    now: f64,
    claim: &Claim,
    receipt: &Receipt,
    facts: CopyFacts,
) -> Result<(), LedgerError> {
    let (validity, uid, name) = receipt_columns::columns(receipt);
    tx.execute(
        "UPDATE onedrop_copy SET placed_at = ?2, leased_until = NULL, in_doubt = 0,
         uid_validity = ?3, uid = ?4,
             file_name = ?5, nul_replaced = ?6, found_by_look = ?7, placed_epoch = ?8
         WHERE id = ?1",
        params![
            claim.copy,
            now,
            validity,
            uid,
            name,
            facts.nul_replaced,
            facts.found_by_look,
            claim.epoch
        ],
    )?;
    tx.execute(
        "DELETE FROM onedrop_kept WHERE message_id = (SELECT message_id FROM onedrop_copy
         WHERE id = ?1 AND shared)",
        [claim.copy],
    )?;
    Ok(())
}

pub(super) fn insert_attempt(
    tx: &Connection,
    now: f64,
    message: Option<i64>,
    identity: &Identity,
    attempt: &Attempt,
) -> Result<i64, LedgerError> {
    tx.execute(
        "INSERT INTO onedrop_attempt (message_id, id_hash, recipient, sender, queue_id, host, pid,
         started_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        params![
            message,
            identity.id_hash,
            attempt.recipient.to_lowercase(),
            attempt.sender,
            attempt.queue_id,
            attempt.host,
            attempt.pid,
            now
        ],
    )?;
    Ok(tx.last_insert_rowid())
}

pub(super) fn finish_attempt(
    tx: &Connection,
    attempt: i64,
    end: &AttemptEnd,
) -> Result<(), LedgerError> {
    tx.execute(
        "UPDATE onedrop_attempt SET duration_ms = ?2, outcome = ?3, status = ?4, detail = ?5
         WHERE id = ?1",
        params![attempt, end.duration.as_millis() as i64, end.outcome, end.status, end.text],
    )?;
    Ok(())
}
