//! The rows of a delivery: the message with its facts, the claims, the receipt, the attempts. Each function works in the
//! transaction it is given, or opens one of its own and commits it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, OptionalExtension, params};

use super::{SqliteLedger, now, schema_version};
use crate::directory::Destination;
use crate::ledger::{
    Attempt, AttemptEnd, Claim, Confirmed, CopyFacts, CopyState, Entry, LeaseTerms, LedgerError, Recorded,
    SCHEMA_VERSION, recorded_secs,
};
use crate::message::{Facts, Identity};
use crate::store::Receipt;

pub(super) fn record_locked(
    ledger: &mut SqliteLedger,
    entry: &Entry<'_>,
    attempt: &Attempt,
    destinations: &[Destination],
    terms: LeaseTerms,
) -> Result<Recorded, LedgerError> {
    let tx = ledger.begin()?;
    let version = schema_version(&tx)?;
    if version != SCHEMA_VERSION {
        return Err(LedgerError::Version { found: version });
    }
    let identity = entry.identity;
    let known = find_message(&tx, identity)?;
    let (message, recorded_at, collision) = match known {
        Some(known) => known,
        None => insert_message(&tx, entry, attempt)?,
    };
    let attempt_row = insert_attempt(&tx, Some(message), identity, attempt)?;
    let copies = destinations
        .iter()
        .map(|destination| claim_copy(&tx, message, destination, attempt, terms))
        .collect::<Result<_, _>>()?;
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

/// Row id, time of recording, collision.
type MessageRow = (i64, i64, bool);

fn find_message(tx: &Connection, identity: &Identity) -> Result<Option<MessageRow>, LedgerError> {
    let row = tx
        .query_row(
            "SELECT id, recorded_at, collision FROM onedrop_message WHERE id_hash = ?1 AND digest = ?2",
            params![identity.id_hash, identity.digest],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .optional()?;
    Ok(row)
}

fn insert_message(tx: &Connection, entry: &Entry<'_>, attempt: &Attempt) -> Result<MessageRow, LedgerError> {
    let (identity, facts) = (entry.identity, entry.facts);
    let mut collision = false;
    if identity.message_id.is_some() {
        let others = tx.execute("UPDATE onedrop_message SET collision = 1 WHERE id_hash = ?1", [identity.id_hash])?;
        collision = others > 0;
    }
    let recorded_at = recorded_secs(entry.at, SystemTime::now()) as i64;
    let text = identity.message_id.as_deref().map(|id| String::from_utf8_lossy(id).replace('\0', "\u{FFFD}"));
    tx.execute(
        "INSERT INTO onedrop_message (id_hash, digest, message_id, message_id_text, sender, subject, date, in_reply_to,
             reference_ids, size_bytes, collision, raw, recorded_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
        params![
            identity.id_hash,
            identity.digest,
            identity.message_id,
            text,
            attempt.sender,
            facts.subject,
            facts.date,
            facts.in_reply_to,
            facts.references,
            entry.size_bytes as i64,
            collision,
            entry.raw,
            recorded_at,
        ],
    )?;
    let message = tx.last_insert_rowid();
    insert_facts(tx, message, facts)?;
    Ok((message, recorded_at, collision))
}

fn insert_facts(tx: &Connection, message: i64, facts: &Facts) -> Result<(), LedgerError> {
    let mut address = tx.prepare("INSERT INTO onedrop_address VALUES (?1, ?2, ?3, ?4, ?5)")?;
    for (position, fact) in facts.addresses.iter().enumerate() {
        address.execute(params![message, position as i64, fact.role, fact.name, fact.address])?;
    }
    let mut part = tx.prepare("INSERT INTO onedrop_part VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
    for (position, fact) in facts.parts.iter().enumerate() {
        let size_bytes = fact.size_bytes as i64;
        part.execute(params![message, position as i64, fact.path, fact.content_type, fact.name, size_bytes])?;
    }
    Ok(())
}

/// Leases a copy to `owner` if it is free, joins a live lease where the terms say so, or tells where it stands.
pub(super) fn claim_copy(
    tx: &Connection,
    message: i64,
    destination: &Destination,
    owner: &Attempt,
    terms: LeaseTerms,
) -> Result<CopyState, LedgerError> {
    let (now, owner) = (now(), format!("{}:{}", owner.host, owner.pid));
    let until = now + terms.lease.as_secs_f64();
    let leased = tx
        .query_row(
            "INSERT INTO onedrop_copy (message_id, account, mailbox, shared, epoch, owner, leased_until, in_doubt, prior_doubt)
             VALUES (?1, ?2, ?3, ?4, 1, ?5, ?6, 1, 0)
             ON CONFLICT (message_id, account, mailbox) DO UPDATE SET
                 epoch = epoch + (leased_until IS NULL OR leased_until <= ?7 OR leased_until > ?9),
                 prior_doubt = in_doubt, in_doubt = 1, owner = ?5, leased_until = ?6
             WHERE placed_at IS NULL AND (leased_until IS NULL OR leased_until <= ?7 OR leased_until > ?9 OR ?8)
             RETURNING id, epoch, prior_doubt",
            params![
                message,
                destination.account,
                destination.mailbox,
                destination.shared,
                owner,
                until,
                now,
                terms.join,
                // No lease ends so late: the clock was set back.
                now + 2.0 * terms.lease.as_secs_f64(),
            ],
            |row| Ok(Claim { copy: row.get(0)?, epoch: row.get(1)?, in_doubt: row.get(2)? }),
        )
        .optional()?;
    if let Some(claim) = leased {
        return Ok(CopyState::Claimed(claim));
    }
    let id: i64 = tx.query_row(
        "SELECT id FROM onedrop_copy WHERE message_id = ?1 AND account = ?2 AND mailbox = ?3",
        params![message, destination.account, destination.mailbox],
        |row| row.get(0),
    )?;
    Ok(copy_row(tx, id)?.receipt.map_or(CopyState::Busy, CopyState::Placed))
}

pub(super) struct CopyRow {
    pub epoch: i64,
    pub prior_doubt: bool,
    /// If it is placed.
    pub receipt: Option<Receipt>,
}

pub(super) fn copy_row(connection: &Connection, copy: i64) -> Result<CopyRow, LedgerError> {
    connection
        .query_row(
            "SELECT epoch, prior_doubt, placed_at IS NOT NULL, uid_validity, uid, file_name
             FROM onedrop_copy WHERE id = ?1",
            [copy],
            |row| {
                let placed: bool = row.get(2)?;
                let receipt = Receipt::from_columns(row.get(3)?, row.get(4)?, row.get(5)?);
                Ok(CopyRow { epoch: row.get(0)?, prior_doubt: row.get(1)?, receipt: placed.then_some(receipt) })
            },
        )
        .optional()?
        .ok_or_else(|| LedgerError::Broken(format!("copy {copy} is gone")))
}

pub(super) fn confirm(
    ledger: &mut SqliteLedger,
    claim: &Claim,
    receipt: &Receipt,
    facts: CopyFacts,
    end: Option<(i64, &AttemptEnd)>,
) -> Result<Confirmed, LedgerError> {
    let tx = ledger.begin()?;
    let CopyRow { epoch, receipt: recorded, .. } = copy_row(&tx, claim.copy)?;
    let (ours, same) = (epoch == claim.epoch, recorded.as_ref() == Some(receipt));
    if ours && recorded.is_none() {
        store_receipt(&tx, claim.copy, receipt, facts)?;
    } else if !same || !ours && *receipt == Receipt::Unnamed {
        return Ok(Confirmed::EpochGone { recorded });
    }
    if let Some((attempt, end)) = end {
        finish_attempt(&tx, attempt, end)?;
    }
    tx.commit()?;
    Ok(Confirmed::Recorded)
}

fn store_receipt(tx: &Connection, copy: i64, receipt: &Receipt, facts: CopyFacts) -> Result<(), LedgerError> {
    let (validity, uid, name) = receipt.columns();
    tx.execute(
        "UPDATE onedrop_copy SET placed_at = ?2, leased_until = NULL, in_doubt = 0, uid_validity = ?3, uid = ?4,
             file_name = ?5, nul_replaced = ?6, found_by_look = ?7
         WHERE id = ?1",
        params![copy, now(), validity, uid, name, facts.nul_replaced, facts.found_by_look],
    )?;
    Ok(())
}

pub(super) fn insert_attempt(
    tx: &Connection,
    message: Option<i64>,
    identity: &Identity,
    attempt: &Attempt,
) -> Result<i64, LedgerError> {
    tx.execute(
        "INSERT INTO onedrop_attempt (message_id, id_hash, recipient, sender, queue_id, host, pid, started_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        params![
            message,
            identity.id_hash,
            attempt.recipient.to_lowercase(),
            attempt.sender,
            attempt.queue_id,
            attempt.host,
            attempt.pid,
            now()
        ],
    )?;
    Ok(tx.last_insert_rowid())
}

pub(super) fn finish_attempt(tx: &Connection, attempt: i64, end: &AttemptEnd) -> Result<(), LedgerError> {
    tx.execute(
        "UPDATE onedrop_attempt SET duration_ms = ?2, outcome = ?3, status = ?4, detail = ?5 WHERE id = ?1",
        params![attempt, end.duration.as_millis() as i64, end.outcome, end.status, end.text],
    )?;
    Ok(())
}
