//! Copies: claims, the turn, the receipt, and the bytes of shared ones that could not be placed, or
//! are due later.

use std::time::Duration;

use rusqlite::{Connection, params};

use super::dialect::SqliteTransaction;
use super::{SqliteSession, attempts, execute};
use crate::rows::{self, SqlRow};
use crate::sql::SqlSession;
use crate::sql::claims::{self, OfMessage};
use onedrop_core::directory::Destination;
use onedrop_core::ledger::claim::TurnState;
use onedrop_core::ledger::{
    Attempt, Claim, Confirmed, CopyState, Due, LeaseTerms, LedgerError, ToConfirm,
};
use onedrop_core::receipt::Receipt;

/// Claims the copies of a message in their order; a new one has none on record.
pub(super) fn claim(
    tx: &SqliteTransaction<'_>,
    (message, is_new, looks_back): (i64, bool, bool),
    destinations: &[Destination],
    owner: &Attempt,
    terms: LeaseTerms,
) -> Result<Vec<CopyState>, LedgerError> {
    let of_message = OfMessage::Number(message);
    let on_record = match is_new {
        true => Vec::new(),
        false => claims::on_record(&tx.run_all(&claims::read_copies(of_message, destinations))?)?,
    };
    let terms = (terms, looks_back);
    let claims = claims::claim(on_record, of_message, destinations, owner, terms);
    let answers = tx.run_all(&claims.statements)?;
    claims.states(&answers)
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

/// What the row says once the copy's lock is held.
pub(super) fn turn(session: &mut SqliteSession, claim: &Claim) -> Result<TurnState, LedgerError> {
    claims::turn(claim, &session.rows(&claims::read_claimed(claim, false))?)
}

/// What comes of the receipt; the transaction is to be committed in any case.
pub(super) fn confirm(
    tx: &SqliteTransaction<'_>,
    one: &ToConfirm<'_>,
) -> Result<Result<Confirmed, LedgerError>, LedgerError> {
    let ToConfirm { claim, receipt, end, .. } = *one;
    let read = claims::claimed(&tx.run(&claims::read_claimed(&claim, true))?.rows)?;
    let (confirmed, statements) = claims::confirm(read.as_ref(), one);
    claims::is_written(&statements, &tx.run_all(&statements)?)?;
    if let (Ok(Confirmed::Recorded), Some((attempt, end)), Some(read)) = (&confirmed, end, read) {
        // The copy's row tells it, where nothing more is to be said and it tells of no other.
        let is_told = attempts::is_plain(end, &read.destination, receipt)
            && execute(
                tx,
                "UPDATE onedrop_copy SET attempt_id = ?2, attempt_ms = ?3
                 WHERE id = ?1 AND coalesce(attempt_id, ?2) = ?2",
                params![claim.copy, attempt, rows::millis(end.duration)],
            )? > 0;
        if !is_told {
            attempts::end(tx, attempt, end)?;
        }
    }
    Ok(confirmed)
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
    (destination, kind): (&Destination, &str),
    earlier: Duration,
) -> Result<Option<Receipt>, LedgerError> {
    let params = params![message, destination.account, destination.mailbox, kind];
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
    let sql = "SELECT placed_at IS NOT NULL, receipt_kind, receipt, CAST(due_at AS INTEGER),
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
