//! Copies: claims, the turn, the receipt.

use super::SqliteSession;
use super::dialect::SqliteTransaction;
use crate::sql::claims::{self, OfMessage};
use crate::sql::{SqlSession, attempts};
use onedrop_core::directory::Destination;
use onedrop_core::ledger::claim::TurnState;
use onedrop_core::ledger::{
    Attempt, Claim, Confirmed, CopyState, LeaseTerms, LedgerError, ToConfirm,
};

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

/// What the row says once the copy's lock is held.
pub(super) fn turn(session: &mut SqliteSession, claim: &Claim) -> Result<TurnState, LedgerError> {
    claims::turn(claim, &session.rows(&claims::read_claimed(claim, false))?)
}

/// The result of the receipt; the transaction is to be committed in any case. `None`: nothing was
/// done, as the commit `waits` for no disk and this receipt must.
pub(super) fn confirm(
    tx: &SqliteTransaction<'_>,
    one: &ToConfirm<'_>,
    waits: bool,
) -> Result<Option<Result<Confirmed, LedgerError>>, LedgerError> {
    let ToConfirm { claim, receipt, end, .. } = *one;
    let read = claims::claimed(&tx.run(&claims::read_claimed(&claim, true))?.rows)?;
    let may_be_lost = |read: &claims::ReadCopy| {
        read.row.value == claim.value && onedrop_core::ledger::claim::may_be_lost(&read.row)
    };
    if !waits && !read.as_ref().is_some_and(may_be_lost) {
        return Ok(None);
    }
    let (confirmed, statements) = claims::confirm(read.as_ref(), one);
    claims::is_written(&statements, &tx.run_all(&statements)?)?;
    if let (Ok(Confirmed::Recorded), Some(end), Some(read)) = (&confirmed, end, read) {
        tx.run_all(&attempts::ending(&read, receipt, end))?;
    }
    Ok(Some(confirmed))
}
