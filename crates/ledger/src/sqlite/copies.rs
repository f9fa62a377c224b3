//! Copies: claims, the turn, the receipt, and the bytes of shared ones that could not be placed, or
//! are due later.

use std::time::Duration;

use rusqlite::{Connection, Row, params};

use super::clock::lease_end;
use super::{BootTime, attempts, execute};
use crate::rows::{self, SqlRow};
use crate::session::SessionTurn;
use onedrop_core::directory::Destination;
use onedrop_core::ledger::{
    Attempt, Claim, Confirmed, CopyFacts, CopyState, Due, LeaseTerms, LedgerError, RandomValue,
    ToConfirm,
};
use onedrop_core::receipt::Receipt;

/// Claims the copies in order; a mailbox that is named twice is leased once.
pub(super) fn claim(
    tx: &Connection,
    now: f64,
    boot: &BootTime,
    message: i64,
    destinations: &[Destination],
    owner: &Attempt,
    terms: LeaseTerms,
) -> Result<Vec<CopyState>, LedgerError> {
    let claim = |(at, destination): (usize, &Destination)| {
        let is_named_before =
            destinations[..at].iter().any(|other| other.is_same_mailbox(destination));
        let value = (!is_named_before).then_some(owner.value);
        let state = claim_copy(tx, boot, message, destination, owner, value, terms)?;
        if let CopyState::Claimed(claim) = &state
            && (claim.epoch > 1 || claim.in_doubt)
        {
            look_again(tx, claim.copy, now + terms.lease.as_secs_f64())?;
        }
        Ok(state)
    };
    destinations.iter().enumerate().map(claim).collect()
}

/// Leases a copy to `owner` if it is free, joins a live lease if the terms allow it, or finds the
/// attempt's own lease (of a call whose answer was lost); otherwise returns the copy's state.
fn claim_copy(
    tx: &Connection,
    boot: &BootTime,
    message: i64,
    destination: &Destination,
    owner: &Attempt,
    value: Option<RandomValue>,
    terms: LeaseTerms,
) -> Result<CopyState, LedgerError> {
    let end = copys_lease_end("", "?9", "?12");
    let live = format!("({end} > ?9)");
    let sql = format!(
        "INSERT INTO onedrop_copy AS c
             (message_id, account, mailbox, shared, epoch, owner, lease_value, lease_ms,
              leased_until, lease_boot, in_doubt, prior_doubt, looks_back)
         SELECT id, ?2, ?3, ?4, 1, ?5, ?6, ?7, ?8, ?12, 1, looks_back, looks_back
         FROM onedrop_message WHERE id = ?1
         ON CONFLICT (message_id, account, mailbox) DO UPDATE SET
             epoch = epoch + ({live} IS NOT TRUE),
             prior_doubt = CASE WHEN lease_value = ?6 AND {live} THEN prior_doubt
                                ELSE in_doubt END,
             in_doubt = 1, owner = ?5, lease_value = coalesce(?6, lease_value),
             lease_ms = CASE WHEN {live} THEN max(lease_ms, ?7) ELSE ?7 END,
             leased_until = CASE WHEN {live} THEN max({end}, ?8) ELSE ?8 END,
             lease_boot = ?12, shared = shared OR ?4
         WHERE placed_at IS NULL
           AND (due_at IS NULL OR ?11
                OR NOT EXISTS (SELECT 1 FROM onedrop_kept k WHERE k.message_id = c.message_id))
           AND (?10 OR lease_value = ?6 OR {live} IS NOT TRUE)
         RETURNING id, value, epoch, prior_doubt, looks_back"
    );
    let params = params![
        message,
        destination.account,
        destination.mailbox,
        destination.shared,
        format!("{}:{}", owner.host, owner.pid),
        value.as_ref().map(RandomValue::bytes),
        rows::millis(terms.lease),
        boot.secs + terms.lease.as_secs_f64(),
        boot.secs,
        terms.join,
        terms.due,
        boot.id,
    ];
    let claimed = super::read(tx, &sql, params, |row| {
        let (copy, value) = (row.cell(0)?, rows::random_value(row, 1)?);
        let (epoch, in_doubt) = (row.cell(2)?, row.cell(3)?);
        Ok(Claim { copy, value, epoch, in_doubt, looks_back: row.cell(4)? })
    })?;
    if let Some(claim) = claimed.first() {
        return Ok(CopyState::Claimed(*claim));
    }
    let sql = format!("{COPY} WHERE message_id = ?1 AND account = ?2 AND mailbox = ?3");
    let params = params![message, destination.account, destination.mailbox];
    let rows = super::read(tx, &sql, params, copy_row)?;
    let row = rows.into_iter().next().ok_or(LedgerError::Forgotten)?;
    Ok(row.receipt.map_or(CopyState::Busy, CopyState::Placed))
}

/// When the lease in a copy's row ends: see [`lease_end`]. `row` is the table's name with a dot, or
/// empty.
pub(super) fn copys_lease_end(row: &str, now: &str, boot: &str) -> String {
    lease_end!("@leased_until", "@lease_boot", "@lease_ms", "{now}", "{boot}")
        .replace('@', row)
        .replace("{now}", now)
        .replace("{boot}", boot)
}

/// Notes that the copy has to be looked at again at that time (seconds since 1970), or before where
/// that is on record.
fn look_again(tx: &Connection, copy: i64, at: f64) -> Result<(), LedgerError> {
    execute(
        tx,
        "INSERT INTO onedrop_unsettled (copy_id, look_at) VALUES (?1, ?2)
         ON CONFLICT (copy_id) DO UPDATE SET look_at = min(look_at, excluded.look_at)",
        params![copy, at],
    )?;
    Ok(())
}

struct RecordedCopy {
    epoch: i64,
    prior_doubt: bool,
    /// The epoch of the claim that confirmed, 0 if none has.
    placed_epoch: i64,
    /// If it is placed.
    receipt: Option<Receipt>,
    destination: Destination,
    /// The attempt whose end it tells.
    attempt: Option<i64>,
}

const COPY: &str = "SELECT epoch, prior_doubt, placed_epoch, placed_at IS NOT NULL, uid_validity,
    uid, file_name, account, mailbox, shared, attempt_id FROM onedrop_copy";

fn copy_row(row: &Row<'_>) -> Result<RecordedCopy, LedgerError> {
    let receipt = if row.cell(3)? { Some(rows::receipt(row, 4)?) } else { None };
    Ok(RecordedCopy {
        epoch: row.cell(0)?,
        prior_doubt: row.cell(1)?,
        placed_epoch: row.cell(2)?,
        receipt,
        destination: rows::destination(row, 7)?,
        attempt: row.cell(10)?,
    })
}

/// The row that the claim names.
fn claimed(connection: &Connection, claim: &Claim) -> Result<RecordedCopy, LedgerError> {
    let sql = format!("{COPY} WHERE id = ?1 AND value = ?2");
    let rows = super::read(connection, &sql, params![claim.copy, claim.value.bytes()], copy_row)?;
    rows.into_iter().next().ok_or(LedgerError::Forgotten)
}

/// What the row says once the copy's lock is held.
pub(super) fn turn(connection: &Connection, claim: &Claim) -> Result<SessionTurn, LedgerError> {
    Ok(match claimed(connection, claim)? {
        RecordedCopy { receipt: Some(receipt), .. } => SessionTurn::Placed(receipt),
        RecordedCopy { epoch, .. } if epoch != claim.epoch => SessionTurn::EpochGone,
        RecordedCopy { prior_doubt, .. } => SessionTurn::Ours { in_doubt: prior_doubt },
    })
}

/// `None`: the row was forgotten or purged.
pub(super) fn confirm(
    tx: &Connection,
    now: f64,
    one: &ToConfirm<'_>,
) -> Result<Option<Confirmed>, LedgerError> {
    let ToConfirm { claim, receipt, facts, end } = *one;
    let row = match claimed(tx, &claim) {
        Ok(row) => row,
        Err(LedgerError::Forgotten) => {
            // What was written under the value of before leaves a doubt.
            let is_there = execute(
                tx,
                "UPDATE onedrop_copy SET epoch = epoch + 1, settled_at = NULL
                 WHERE id = ?1 AND value <> ?2",
                params![claim.copy, claim.value.bytes()],
            )?;
            if is_there > 0 {
                look_again(tx, claim.copy, now)?;
            }
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let placed_epoch = row.placed_epoch;
    match row.receipt.clone() {
        // The first receipt wins, whatever its epoch.
        None => store_receipt(tx, now, &claim, receipt, facts)?,
        // Receipts without a name are equal only if no other claim can have been placed.
        Some(by)
            if by != *receipt || *receipt == Receipt::Unnamed && placed_epoch != claim.epoch =>
        {
            // A look that has read the row before this must not settle it.
            execute(
                tx,
                "UPDATE onedrop_copy SET epoch = epoch + 1, settled_at = NULL WHERE id = ?1",
                [claim.copy],
            )?;
            look_again(tx, claim.copy, now)?;
            return Ok(Some(Confirmed::Superseded { by }));
        }
        Some(_) => {}
    }
    match end {
        // The copy's row tells it.
        Some((attempt, end))
            if attempts::is_plain(end, &row.destination, receipt)
                && row.attempt.is_none_or(|told| told == attempt) =>
        {
            execute(
                tx,
                "UPDATE onedrop_copy SET attempt_id = ?2, attempt_ms = ?3 WHERE id = ?1",
                params![claim.copy, attempt, rows::millis(end.duration)],
            )?;
        }
        Some((attempt, end)) => attempts::end(tx, attempt, end)?,
        None => {}
    }
    Ok(Some(Confirmed::Recorded))
}

fn store_receipt(
    tx: &Connection,
    now: f64,
    claim: &Claim,
    receipt: &Receipt,
    facts: CopyFacts,
) -> Result<(), LedgerError> {
    let (validity, uid, name) = rows::columns(receipt);
    let CopyFacts { nul_replaced, found_by_look, wrapped } = facts;
    execute(
        tx,
        "UPDATE onedrop_copy SET placed_at = ?2, leased_until = NULL, lease_boot = NULL,
             lease_value = NULL, owner = NULL, in_doubt = 0,
             uid_validity = ?3, uid = ?4, file_name = ?5,
             nul_replaced = ?6, found_by_look = ?7, wrapped = ?8, placed_epoch = ?9
         WHERE id = ?1",
        params![
            claim.copy,
            now,
            validity,
            uid,
            name,
            nul_replaced,
            found_by_look,
            wrapped,
            claim.epoch
        ],
    )?;
    forget_kept(tx, claim)
}

/// What is kept of a message goes once its last shared copy is placed.
pub(super) fn forget_kept(tx: &Connection, claim: &Claim) -> Result<(), LedgerError> {
    execute(
        tx,
        "DELETE FROM onedrop_kept AS k
         WHERE message_id = (SELECT message_id FROM onedrop_copy WHERE id = ?1 AND shared)
           AND NOT EXISTS (SELECT 1 FROM onedrop_copy c
                           WHERE c.message_id = k.message_id AND c.shared AND c.placed_at IS NULL)",
        [claim.copy],
    )?;
    Ok(())
}

pub(super) fn release(tx: &Connection, claim: &Claim) -> Result<(), LedgerError> {
    execute(
        tx,
        &format!(
            "UPDATE onedrop_copy SET lease_boot = NULL, {}
             WHERE id = ?1 AND value = ?2 AND epoch = ?3 AND placed_at IS NULL",
            rows::GIVE_BACK
        ),
        params![claim.copy, claim.value.bytes(), claim.epoch],
    )?;
    Ok(())
}

pub(super) fn keep(
    tx: &Connection,
    now: f64,
    message: i64,
    bytes: &[u8],
    why: &str,
) -> Result<bool, LedgerError> {
    // Only if they are not kept: writing the row again would write all its bytes.
    if let Some(known) = kept(tx, message)? {
        if known != why {
            execute(
                tx,
                "UPDATE onedrop_kept SET why = ?2 WHERE message_id = ?1",
                params![message, why],
            )?;
        }
        return Ok(true);
    }
    let rows = execute(
        tx,
        "INSERT INTO onedrop_kept (message_id, bytes, why, kept_at) SELECT ?1, ?2, ?3, ?4
         WHERE EXISTS (SELECT 1 FROM onedrop_copy
                       WHERE message_id = ?1 AND shared AND placed_at IS NULL)",
        params![message, bytes, why, now],
    )?;
    Ok(rows > 0)
}

/// Of an account. Those that it was refused come last: the first rows read tell.
pub(super) const A_PLACED_ONE: &str = "SELECT 1 FROM onedrop_copy
    WHERE account = ?1 AND placed_at IS NOT NULL ORDER BY message_id LIMIT 1";

pub(super) fn kept(connection: &Connection, message: i64) -> Result<Option<String>, LedgerError> {
    super::first(connection, "SELECT why FROM onedrop_kept WHERE message_id = ?1", [message])
}

pub(super) fn receipt_before_sql(earlier: Duration) -> String {
    rows::receipt_before_sql(&format!("m.recorded_at - {}", rows::secs_before(earlier)))
}

pub(super) fn receipt_before(
    connection: &Connection,
    message: i64,
    destination: &Destination,
    earlier: Duration,
) -> Result<Option<Receipt>, LedgerError> {
    let params = params![message, destination.account, destination.mailbox];
    let sql = receipt_before_sql(earlier);
    let found = super::read(connection, &sql, params, |row| rows::receipt(row, 0))?;
    Ok(found.into_iter().next())
}

/// Where the copy stands; `None`: it is still to be kept until it is due.
pub(super) fn due(
    connection: &Connection,
    message: i64,
    destination: &Destination,
) -> Result<Option<Due>, LedgerError> {
    let sql = "SELECT placed_at IS NOT NULL, uid_validity, uid, file_name, CAST(due_at AS INTEGER),
            EXISTS (SELECT 1 FROM onedrop_kept k WHERE k.message_id = c.message_id)
        FROM onedrop_copy c WHERE message_id = ?1 AND account = ?2 AND mailbox = ?3";
    let params = params![message, destination.account, destination.mailbox];
    let rows = super::read(connection, sql, params, |row| rows::due(row))?;
    Ok(rows.into_iter().next().flatten())
}

pub(super) fn keep_until_due(
    tx: &Connection,
    now: f64,
    message: i64,
    destination: &Destination,
    (bytes, why): (&[u8], &str),
    after: Duration,
) -> Result<Due, LedgerError> {
    let sql = "INSERT INTO onedrop_copy (message_id, account, mailbox, shared, epoch, owner,
            in_doubt, prior_doubt, looks_back, due_at)
        SELECT id, ?2, ?3, 1, 0, '', looks_back, looks_back, looks_back, ?4
        FROM onedrop_message WHERE id = ?1
        ON CONFLICT (message_id, account, mailbox) DO UPDATE SET
            due_at = coalesce(due_at, excluded.due_at), shared = 1
        WHERE placed_at IS NULL
        RETURNING id, due_at";
    let at = now + after.as_secs_f64();
    let params = params![message, destination.account, destination.mailbox, at];
    for (copy, at) in super::read(tx, sql, params, |row| Ok((row.cell(0)?, row.cell(1)?)))? {
        look_again(tx, copy, at)?;
    }
    if kept(tx, message)?.is_none() {
        keep(tx, now, message, bytes, why)?;
    }
    due(tx, message, destination)?.ok_or(LedgerError::Forgotten)
}
