//! Placing one copy: the turn, the receipt, the release of the lease. A turn is a transaction that
//! holds the copy's lock and no row lock while the store works; the receipt and COMMIT end it in
//! one round trip. Without a turn no transaction is open meanwhile, and the receipt has its own. A
//! crash leaves the lease, and whatever is in the store.

use postgres::Row;
use postgres::types::Type;

use super::columns::{EndColumns, cell, receipt};
use super::connection::{Connection, Statement};
use crate::ledger::{Claim, Confirmed, LedgerError, SessionTurn, ToConfirm, receipt_columns};
use crate::lock_key::{Hash, advisory_key, name_hash};

const TURN: &str = "SELECT * FROM onedrop_turn($1, $2, $3, $4, $5)";

/// The parameters of `onedrop_confirm`: [`Connection::patience_ms`], the claim (3), the receipt
/// (3), the facts (2), the end (5).
pub(super) const PARAMETERS: usize = 14;

/// The result of `onedrop_confirm`, in the columns of `onedrop_record`.
pub(super) const AS_RECORD: &str = "NULL::integer, f.recorded, f.ended, NULL::bigint, \
     NULL::bigint, NULL::boolean, NULL::boolean, NULL::bigint, NULL::bigint, NULL::boolean, \
     f.epoch, NULL::boolean, f.is_placed, f.uid_validity, f.uid, f.file_name, NULL::bytea";

/// Locks rows in the same order as claims.
const RELEASE: &str = r#"
UPDATE onedrop_copy c SET leased_until = NULL, in_doubt = c.prior_doubt
FROM (
    SELECT c.id FROM onedrop_copy c JOIN unnest($1::bigint[], $2::bytea[], $3::bigint[])
         AS ours (id, value, epoch) USING (id, value, epoch)
    WHERE c.placed_at IS NULL
    ORDER BY c.account COLLATE "C", c.mailbox COLLATE "C"
    FOR UPDATE OF c
) ours
WHERE c.id = ours.id"#;

/// [`Ledger::take_turn`](crate::ledger::Ledger::take_turn).
pub(super) fn take_turn(
    connection: &mut Connection,
    claim: &Claim,
    copy_key: &Hash,
) -> Result<SessionTurn, LedgerError> {
    let (patience, idle, lock) =
        (connection.patience_ms(), connection.idle_ms(), advisory_key(copy_key));
    let value = claim.value.bytes();
    let statement = Statement::kept(TURN)
        .with(&patience, Type::INT8)
        .with(&idle, Type::INT8)
        .with(&lock, Type::INT8)
        .with(&claim.copy, Type::INT8)
        .with(&value, Type::BYTEA);
    let rows = connection.begin_with(&statement)?;
    let found = rows.first().ok_or_else(|| no_copy(claim)).and_then(|row| turn(claim, row));
    if !matches!(found, Ok(SessionTurn::Ours { .. })) {
        connection.rollback_or_lose();
    }
    found
}

fn turn(claim: &Claim, row: &Row) -> Result<SessionTurn, LedgerError> {
    if !cell(row, 0)? {
        return Err(LedgerError::Contended);
    }
    let Some(epoch) = cell::<Option<i64>>(row, 1)? else { return Err(no_copy(claim)) };
    if cell(row, 2)? {
        return Ok(SessionTurn::Placed(receipt(row, 3)?));
    }
    Ok(if epoch == claim.epoch {
        SessionTurn::Ours { in_doubt: cell(row, 6)? }
    } else {
        SessionTurn::EpochGone
    })
}

fn no_copy(claim: &Claim) -> LedgerError {
    LedgerError::Broken(format!("no copy {}", claim.copy))
}

/// One receipt's parameters, except the first.
pub(super) struct ConfirmColumns<'a> {
    of: &'a ToConfirm<'a>,
    value: &'a [u8],
    validity: Option<i64>,
    uid: Option<i64>,
    name: Option<&'a str>,
    attempt: Option<i64>,
    ended: EndColumns,
}

impl<'a> ConfirmColumns<'a> {
    pub fn of(one: &'a ToConfirm<'a>) -> ConfirmColumns<'a> {
        let (validity, uid, name) = receipt_columns::columns(one.receipt);
        let attempt = one.end.map(|(attempt, _)| attempt);
        let ended = one.end.map(|(_, end)| EndColumns::of(end)).unwrap_or_default();
        ConfirmColumns {
            of: one,
            value: one.claim.value.bytes(),
            validity,
            uid,
            name,
            attempt,
            ended,
        }
    }

    pub fn bind<'s>(&'s self, statement: Statement<'s>) -> Statement<'s> {
        let statement = statement
            .with(&self.of.claim.copy, Type::INT8)
            .with(&self.value, Type::BYTEA)
            .with(&self.of.claim.epoch, Type::INT8)
            .with(&self.validity, Type::INT8)
            .with(&self.uid, Type::INT8)
            .with(&self.name, Type::TEXT)
            .with(&self.of.facts.nul_replaced, Type::BOOL)
            .with(&self.of.facts.found_by_look, Type::BOOL)
            .with(&self.attempt, Type::INT8);
        self.ended.bind(statement)
    }
}

/// Reads the result of `onedrop_confirm` for one receipt, and records the attempt's end if that is
/// left to do.
pub(super) fn confirmed(
    connection: &mut Connection,
    one: &ToConfirm<'_>,
    rows: &[Row],
) -> Result<Confirmed, LedgerError> {
    let claim = &one.claim;
    let row = rows.first().ok_or_else(|| no_copy(claim))?;
    if !cell(row, 2)? {
        return match cell::<Option<bool>>(row, 13)? {
            Some(true) => Ok(Confirmed::Superseded { by: receipt(row, 14)? }),
            _ => Err(no_copy(claim)),
        };
    }
    // Another delivery has recorded the receipt; the attempt's end is not on record yet.
    let has_ended: bool = cell(row, 3)?;
    if let Some((attempt, end)) = one.end.filter(|_| !has_ended) {
        super::record::finish(connection, attempt, end)?;
    }
    Ok(Confirmed::Recorded)
}

/// [`Ledger::release`](crate::ledger::Ledger::release).
pub(super) fn release(connection: &mut Connection, claims: &[Claim]) -> Result<(), LedgerError> {
    connection.rollback()?;
    if claims.is_empty() {
        return Ok(());
    }
    let copies: Vec<i64> = claims.iter().map(|claim| claim.copy).collect();
    let values: Vec<&[u8]> = claims.iter().map(|claim| claim.value.bytes()).collect();
    let epochs: Vec<i64> = claims.iter().map(|claim| claim.epoch).collect();
    let statement = Statement::new(RELEASE)
        .with(&copies, Type::INT8_ARRAY)
        .with(&values, Type::BYTEA_ARRAY)
        .with(&epochs, Type::INT8_ARRAY);
    connection.commit(&[statement]).map(drop)
}

/// [`Ledger::try_lock`](crate::ledger::Ledger::try_lock).
pub(super) fn try_lock(connection: &mut Connection, name: &str) -> Result<(), LedgerError> {
    let sets = connection.begin(
        &format!("SELECT pg_try_advisory_xact_lock({});", advisory_key(&name_hash(name))),
        1,
    )?;
    if sets[0].first().and_then(|row| row.get(0)) == Some("t") {
        return Ok(());
    }
    connection.rollback_or_lose();
    Err(LedgerError::Contended)
}
