//! Placing one copy: the turn, the receipt, the lease given back. The turn, where one is taken, is a transaction that holds
//! the copy's lock and no row lock, however long the store takes; the receipt and COMMIT end it in one round trip. Without a
//! turn no transaction is open meanwhile, and the receipt has its own. A crash leaves the lease, and whatever the store has.

use postgres::Row;
use postgres::types::Type;

use super::columns::{EndColumns, cell, receipt};
use super::session::{Session, Statement};
use crate::ledger::{AttemptEnd, Claim, Confirmed, CopyFacts, LedgerError, Turn};
use crate::lock_key::{Hash, advisory_key, name_hash};
use crate::store::Receipt;

const TURN: &str = "SELECT * FROM onedrop_turn($1, $2, $3, $4)";

const CONFIRM: &str = "SELECT * FROM onedrop_confirm($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)";

/// The rows are locked in the order in which claims lock them.
const RELEASE: &str = r#"
UPDATE onedrop_copy c SET leased_until = NULL, in_doubt = c.prior_doubt
FROM (
    SELECT c.id FROM onedrop_copy c JOIN unnest($1::bigint[], $2::bigint[]) AS ours (id, epoch) USING (id, epoch)
    WHERE c.placed_at IS NULL
    ORDER BY c.account COLLATE "C", c.mailbox COLLATE "C"
    FOR UPDATE OF c
) ours
WHERE c.id = ours.id"#;

/// [`Ledger::take_turn`](crate::ledger::Ledger::take_turn).
pub(super) fn take_turn(session: &mut Session, claim: &Claim, copy_key: &Hash) -> Result<Turn, LedgerError> {
    let (patience, idle, lock) = (session.patience_ms(), session.idle_ms(), advisory_key(copy_key));
    let statement = Statement::kept(TURN)
        .with(&patience, Type::INT8)
        .with(&idle, Type::INT8)
        .with(&lock, Type::INT8)
        .with(&claim.copy, Type::INT8);
    let rows = session.begin_with(&statement)?;
    let found = rows.first().ok_or_else(|| no_copy(claim)).and_then(|row| turn(claim, row));
    if !matches!(found, Ok(Turn::Ours { .. })) {
        session.rollback_or_lose();
    }
    found
}

fn turn(claim: &Claim, row: &Row) -> Result<Turn, LedgerError> {
    if !cell(row, 0)? {
        return Err(LedgerError::Contended);
    }
    let Some(epoch) = cell::<Option<i64>>(row, 1)? else { return Err(no_copy(claim)) };
    if cell(row, 2)? {
        return Ok(Turn::Placed(receipt(row, 3)?));
    }
    Ok(if epoch == claim.epoch { Turn::Ours { in_doubt: cell(row, 6)? } } else { Turn::EpochGone })
}

fn no_copy(claim: &Claim) -> LedgerError {
    LedgerError::Broken(format!("no copy {}", claim.copy))
}

/// [`Ledger::confirm`](crate::ledger::Ledger::confirm).
pub(super) fn confirm(
    session: &mut Session,
    claim: &Claim,
    ours: &Receipt,
    facts: CopyFacts,
    end: Option<(i64, &AttemptEnd)>,
) -> Result<Confirmed, LedgerError> {
    let (validity, uid, name) = ours.columns();
    let attempt = end.map(|(attempt, _)| attempt);
    let ended = end.map(|(_, end)| EndColumns::of(end)).unwrap_or_default();
    let patience = session.patience_ms();
    let statement = Statement::kept(CONFIRM)
        .with(&patience, Type::INT8)
        .with(&claim.copy, Type::INT8)
        .with(&claim.epoch, Type::INT8)
        .with(&validity, Type::INT8)
        .with(&uid, Type::INT8)
        .with(&name, Type::TEXT)
        .with(&facts.nul_replaced, Type::BOOL)
        .with(&facts.found_by_look, Type::BOOL)
        .with(&attempt, Type::INT8);
    let rows = session.commit_call(&ended.bind(statement))?;
    let row = rows.first().ok_or_else(|| no_copy(claim))?;
    if !cell(row, 0)? {
        let Some(epoch) = cell::<Option<i64>>(row, 2)? else { return Err(no_copy(claim)) };
        let recorded = if cell(row, 3)? { Some(receipt(row, 4)?) } else { None };
        if !is_ours(claim, ours, epoch, recorded.as_ref()) {
            return Ok(Confirmed::EpochGone { recorded });
        }
    }
    // The receipt is there, by another's hand: the end still has to be.
    let has_ended: bool = cell(row, 1)?;
    if let Some((attempt, end)) = end.filter(|_| !has_ended) {
        super::record::finish(session, attempt, end)?;
    }
    Ok(Confirmed::Recorded)
}

/// Whether a row that another has written records our very copy. A copy without a name is nobody's, unless no other
/// than ours can have been placed under our epoch.
fn is_ours(claim: &Claim, ours: &Receipt, epoch: i64, recorded: Option<&Receipt>) -> bool {
    match recorded {
        Some(Receipt::Unnamed) => epoch == claim.epoch,
        Some(other) => other == ours,
        None => false,
    }
}

/// [`Ledger::release`](crate::ledger::Ledger::release).
pub(super) fn release(session: &mut Session, claims: &[Claim]) -> Result<(), LedgerError> {
    session.rollback()?;
    if claims.is_empty() {
        return Ok(());
    }
    let copies: Vec<i64> = claims.iter().map(|claim| claim.copy).collect();
    let epochs: Vec<i64> = claims.iter().map(|claim| claim.epoch).collect();
    let statement = Statement::new(RELEASE).with(&copies, Type::INT8_ARRAY).with(&epochs, Type::INT8_ARRAY);
    session.commit(&[statement]).map(drop)
}

/// [`Ledger::try_lock`](crate::ledger::Ledger::try_lock).
pub(super) fn try_lock(session: &mut Session, name: &str) -> Result<(), LedgerError> {
    let sets = session.begin(&format!("SELECT pg_try_advisory_xact_lock({});", advisory_key(&name_hash(name))), 1)?;
    if sets[0].first().and_then(|row| row.get(0)) == Some("t") {
        return Ok(());
    }
    session.rollback_or_lose();
    Err(LedgerError::Contended)
}
