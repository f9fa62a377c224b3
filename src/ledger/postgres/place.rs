//! Placing one copy: the turn, the receipt, the lease given back. The turn is a transaction that holds the copy's lock
//! and no row lock, however long the store takes; the receipt and COMMIT end it in one round trip. A crash in a turn
//! leaves the lease, and whatever the store has.

use postgres::types::Type;

use super::columns::{EndColumns, cell, receipt, receipt_columns, receipt_of};
use super::session::{Session, Statement};
use crate::ledger::{AttemptEnd, Claim, Confirmed, CopyFacts, LedgerError, Turn};
use crate::lock_key::{Hash, advisory_key, name_hash};
use crate::store::Receipt;

/// The receipt, where the epoch is still the claim's and no other receipt is there; with it the attempt's end ($8),
/// which must not say `delivered` where the receipt is not recorded.
const CONFIRM: &str = "
WITH placed AS (
    UPDATE onedrop_copy SET
        placed_at = coalesce(placed_at, clock_timestamp()), leased_until = NULL, in_doubt = false,
        uid_validity = $3, uid = $4, file_name = $5,
        nul_replaced = CASE WHEN placed_at IS NULL THEN $6 ELSE nul_replaced END,
        found_by_look = CASE WHEN placed_at IS NULL THEN $7 ELSE found_by_look END
    WHERE id = $1 AND epoch = $2
      AND (placed_at IS NULL OR (uid_validity, uid, file_name) IS NOT DISTINCT FROM ($3, $4, $5))
    RETURNING id
), ended AS (
    UPDATE onedrop_attempt SET duration_ms = $9, outcome = $10, status = $11, detail = $12
    WHERE id = $8 AND EXISTS (SELECT FROM placed)
    RETURNING id
)
SELECT (SELECT count(*) FROM placed), (SELECT count(*) FROM ended)";

const READ_COPY: &str = "
SELECT epoch, placed_at IS NOT NULL, uid_validity, uid, file_name FROM onedrop_copy WHERE id = $1";

/// The rows are locked in the order in which claims lock them.
const RELEASE: &str = "
UPDATE onedrop_copy c SET leased_until = NULL, in_doubt = c.prior_doubt
FROM (
    SELECT c.id FROM onedrop_copy c JOIN unnest($1::bigint[], $2::bigint[]) AS ours (id, epoch) USING (id, epoch)
    WHERE c.placed_at IS NULL
    ORDER BY c.account, c.mailbox
    FOR UPDATE OF c
) ours
WHERE c.id = ours.id";

/// [`Ledger::take_turn`](crate::ledger::Ledger::take_turn).
pub(super) fn take_turn(session: &mut Session, claim: &Claim, copy_key: &Hash) -> Result<Turn, LedgerError> {
    // Two statements: the second one's view of the row begins after the lock is ours.
    let sql = format!(
        "SELECT pg_try_advisory_xact_lock({}); SELECT epoch, placed_at IS NOT NULL, uid_validity, uid, file_name, \
         prior_doubt FROM onedrop_copy WHERE id = {};",
        advisory_key(copy_key),
        claim.copy
    );
    let sets = session.begin(&sql, 2)?;
    let found = match (sets[0].first().and_then(|row| row.get(0)), sets[1].first()) {
        (Some("t"), Some(row)) => turn(claim, [0, 1, 2, 3, 4, 5].map(|at| row.get(at))),
        (Some("t"), None) => Err(LedgerError::Broken(format!("no copy {}", claim.copy))),
        _ => Err(LedgerError::Contended),
    };
    if !matches!(found, Ok(Turn::Ours { .. })) {
        session.rollback_or_lose();
    }
    found
}

/// What the row's epoch, `placed`, UIDVALIDITY, UID, file name and `prior_doubt` say, as text.
fn turn(claim: &Claim, row: [Option<&str>; 6]) -> Result<Turn, LedgerError> {
    let number = |at: usize| row[at].map(str::parse::<i64>).transpose();
    let broken = |_| LedgerError::Broken("a number that is none".to_owned());
    let epoch = number(0).map_err(broken)?;
    if row[1] == Some("t") {
        let (validity, uid) = (number(2).map_err(broken)?, number(3).map_err(broken)?);
        let receipt = receipt_of(validity, uid, row[4].map(str::to_owned));
        let receipt = receipt.ok_or_else(|| LedgerError::Broken("a receipt that is half a UID".to_owned()))?;
        return Ok(Turn::Placed(receipt));
    }
    let in_doubt = row[5] == Some("t");
    Ok(if epoch == Some(claim.epoch) { Turn::Ours { in_doubt } } else { Turn::EpochGone })
}

/// [`Ledger::confirm`](crate::ledger::Ledger::confirm).
pub(super) fn confirm(
    session: &mut Session,
    claim: &Claim,
    ours: &Receipt,
    facts: CopyFacts,
    end: Option<(i64, &AttemptEnd)>,
) -> Result<Confirmed, LedgerError> {
    let (validity, uid, name) = receipt_columns(ours);
    let attempt = end.map(|(attempt, _)| attempt);
    let ended = end.map(|(_, end)| EndColumns::of(end)).unwrap_or_default();
    let statement = Statement::new(CONFIRM)
        .with(&claim.copy, Type::INT8)
        .with(&claim.epoch, Type::INT8)
        .with(&validity, Type::INT8)
        .with(&uid, Type::INT8)
        .with(&name, Type::TEXT)
        .with(&facts.nul_replaced, Type::BOOL)
        .with(&facts.found_by_look, Type::BOOL)
        .with(&attempt, Type::INT8);
    let rows = session.commit(&[ended.bind(statement)])?;
    let gone = || LedgerError::Broken(format!("no copy {}", claim.copy));
    let counts = rows.first().and_then(|rows| rows.first()).ok_or_else(gone)?;
    let (placed, has_ended): (i64, i64) = (cell(counts, 0)?, cell(counts, 1)?);
    if placed == 0 {
        // What the row says now can only be newer than what kept the receipt out.
        let rows = session.read(&[Statement::new(READ_COPY).with(&claim.copy, Type::INT8)])?;
        let copy = rows.first().and_then(|rows| rows.first()).ok_or_else(gone)?;
        let recorded = if cell(copy, 1)? { Some(receipt(copy, 2)?) } else { None };
        if !is_ours(claim, ours, cell(copy, 0)?, recorded.as_ref()) {
            return Ok(Confirmed::EpochGone { recorded });
        }
    }
    // The receipt is there, by another's hand: the end still has to be.
    if let Some((attempt, end)) = end.filter(|_| has_ended == 0) {
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
