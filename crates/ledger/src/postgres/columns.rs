//! The parameters of the schema's functions, and what they return. Text from a command line or a
//! header is cleaned before it is stored, so that Postgres refuses no message because of it.

use std::borrow::Cow;

use postgres::Row;
use postgres::types::Type;

use super::connection::Statement;
use crate::facts as json;
use crate::rows::{self, SqlRow};
use crate::{ToRecord, TurnState};
use onedrop_core::directory::Destination;
use onedrop_core::ledger::{
    Attempt, AttemptEnd, Claim, Confirmed, CopyState, LeaseTerms, LedgerError, Program, Recorded,
    ToConfirm,
};
use onedrop_core::lock_key::advisory_key;
use onedrop_core::outcome::Reason;
use onedrop_core::text;

pub(super) use crate::rows::{INDEXED, LONGEST};

/// How many parameters `onedrop_record` has, with [`Connection::patience_ms`], and
/// `onedrop_confirm`.
///
/// [`Connection::patience_ms`]: super::connection::Connection::patience_ms
pub(super) const RECORD: usize = 32;
pub(super) const CONFIRM: usize = 16;

/// Columns of the result of `onedrop_record`, behind the number of its call.
const OLDEST_PROGRAM: usize = 19;
const CONFIG: usize = 20;

/// The result of `onedrop_confirm`, in the columns of `onedrop_record`.
pub(super) const CONFIRM_AS_RECORD: &str = "NULL::integer, f.recorded, f.ended, NULL::bigint, \
     NULL::bigint, NULL::boolean, NULL::boolean, NULL::bigint, NULL::bigint, NULL::boolean, \
     f.epoch, NULL::boolean, f.is_placed, f.uid_validity, f.uid, f.file_name, NULL::bytea, \
     NULL::boolean, NULL::integer, NULL::text";

/// All parameters of `onedrop_record` but the first three; `with_raw`: also the bytes, if they are
/// to be kept; `notify`: a new message is announced.
pub(super) fn record<'a>(
    statement: Statement<'a>,
    one: &ToRecord<'a>,
    with_raw: bool,
    notify: bool,
) -> Statement<'a> {
    let ToRecord { entry, attempt, destinations, terms } = *one;
    let (identity, facts) = (entry.identity, entry.facts);
    let statement = statement
        .with(advisory_key(&identity.id_hash), Type::INT8)
        .with(identity.id_hash.as_slice(), Type::BYTEA)
        .with(identity.digest.as_slice(), Type::BYTEA)
        .with(identity.message_id.as_deref(), Type::BYTEA)
        .with(within(&facts.subject, LONGEST), Type::TEXT)
        .with(facts.date.and_then(date_secs), Type::FLOAT8)
        .with(json::in_reply_to(facts).map(|text| text::within(text, INDEXED)), Type::TEXT)
        .with(within(&facts.references, LONGEST), Type::TEXT)
        .with(clamped(entry.size_bytes), Type::INT8)
        .with(entry.at.map(rows::whole_secs), Type::INT8)
        .with(entry.oldest.map(rows::whole_secs), Type::INT8)
        .with(entry.raw.is_some(), Type::BOOL)
        .with(entry.raw.filter(|_| with_raw), Type::BYTEA)
        .with(entry.nul_runs, Type::BYTEA)
        .with(json::addresses(&facts.addresses), Type::TEXT)
        .with(json::parts(&facts.parts), Type::TEXT)
        .with(notify, Type::BOOL);
    claims(by(statement, attempt), destinations, attempt, terms)
}

fn list<'a, T, U>(all: &'a [T], column: impl Fn(&'a T) -> U) -> Vec<U> {
    all.iter().map(column).collect()
}

fn within(value: &Option<String>, longest: usize) -> Option<Cow<'_, str>> {
    value.as_deref().map(|value| text::within(value, longest))
}

/// The Date field, if its year is 1 to 9999.
fn date_secs(date: i64) -> Option<f64> {
    (-62_135_596_800..=253_402_300_799).contains(&date).then_some(date as f64)
}

fn clamped(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// An attempt: five parameters. Arguments and environment variables may hold any text.
pub(super) fn by<'a>(statement: Statement<'a>, attempt: &'a Attempt) -> Statement<'a> {
    [&attempt.recipient, &attempt.sender, &attempt.queue_id, &attempt.host]
        .into_iter()
        .fold(statement, |statement, value| {
            statement.with(text::within(value, INDEXED), Type::TEXT)
        })
        .with(i32::try_from(attempt.pid).unwrap_or(i32::MAX), Type::INT4)
}

/// How an attempt ended, if it did: five parameters.
pub(super) fn end<'a>(statement: Statement<'a>, end: Option<&'a AttemptEnd>) -> Statement<'a> {
    statement
        .with(end.map(|end| rows::millis(end.duration)), Type::INT8)
        .with(end.map(|end| text::within(end.outcome, LONGEST)), Type::TEXT)
        .with(end.map(|end| text::within(&end.status, LONGEST)), Type::TEXT)
        .with(end.map(|end| text::within(&end.text, LONGEST)), Type::TEXT)
        .with(end.and_then(|end| end.reason).map(Reason::word), Type::TEXT)
}

/// The destinations' indexes, sorted so that all sessions lock rows in the same order.
fn lock_order(destinations: &[Destination]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..destinations.len()).collect();
    order.sort_by_key(|at| (&destinations[*at].account, &destinations[*at].mailbox));
    order
}

/// Claims: seven parameters.
pub(super) fn claims<'a>(
    statement: Statement<'a>,
    destinations: &'a [Destination],
    owner: &'a Attempt,
    terms: LeaseTerms,
) -> Statement<'a> {
    let order = lock_order(destinations);
    let name = format!("{}:{}", owner.host, owner.pid);
    statement
        .with(list(&order, |at| destinations[*at].account.as_str()), Type::TEXT_ARRAY)
        .with(list(&order, |at| destinations[*at].mailbox.as_str()), Type::TEXT_ARRAY)
        .with(list(&order, |at| destinations[*at].shared), Type::BOOL_ARRAY)
        .with(text::within(&name, INDEXED).into_owned(), Type::TEXT)
        .with(owner.value.bytes(), Type::BYTEA)
        .with(terms.join, Type::BOOL)
        .with(rows::millis(terms.lease), Type::INT8)
}

/// Reads the rows of claims, whose columns from `at` on are: copy, claimed, epoch, doubt, placed,
/// receipt, random value, whether it looks back. No rows: the message is gone.
pub(super) fn claimed(
    destinations: &[Destination],
    rows: &[Row],
    at: usize,
) -> Result<Vec<CopyState>, LedgerError> {
    let order = lock_order(destinations);
    if rows.is_empty() && !order.is_empty() {
        return Err(LedgerError::Forgotten);
    }
    if rows.len() != order.len() {
        let text = format!("{} claims, {} answers", order.len(), rows.len());
        return Err(LedgerError::Broken(text));
    }
    let mut states = vec![CopyState::Busy; rows.len()];
    for (place, row) in order.into_iter().zip(rows) {
        states[place] = match (row.cell(at + 1)?, row.cell(at + 4)?) {
            (true, _) => CopyState::Claimed(Claim {
                copy: row.cell(at)?,
                value: rows::random_value(row, at + 8)?,
                epoch: row.cell(at + 2)?,
                in_doubt: row.cell(at + 3)?,
                looks_back: row.cell(at + 9)?,
            }),
            (false, Some(true)) => CopyState::Placed(rows::receipt(row, at + 5)?),
            (false, Some(false)) => CopyState::Busy,
            // The row was deleted at this moment.
            (false, None) => return Err(LedgerError::Contended),
        };
    }
    Ok(states)
}

/// The result of `onedrop_record`; `None`: it wants the bytes.
pub(super) fn recorded(
    one: &ToRecord<'_>,
    program: &Program,
    rows: &[Row],
) -> Result<Option<Recorded>, LedgerError> {
    let missing = || LedgerError::Broken("a record without an answer".to_owned());
    let row = rows.first().ok_or_else(missing)?;
    let number = |at| Ok::<_, LedgerError>(row.cell::<Option<i32>>(at)?.map_or(0, i64::from));
    program.sees(number(1)?, number(OLDEST_PROGRAM)?).check()?;
    if let (Some(config), Some(on_record)) = (&program.config, row.cell::<Option<String>>(CONFIG)?)
    {
        config.with(one.entry.fields).check(Some(&on_record))?;
    }
    if row.cell::<Option<bool>>(2)? != Some(true) {
        return Err(LedgerError::Contended);
    }
    if row.cell::<Option<bool>>(3)? == Some(true) {
        return Ok(None);
    }
    // Without a destination there is one row all the same.
    let copies: &[Row] = if one.destinations.is_empty() { &[] } else { rows };
    Ok(Some(Recorded {
        message: row.cell(4)?,
        recorded_at: rows::time(row.cell(5)?),
        is_new: row.cell(6)?,
        collision: row.cell(7)?,
        attempt: row.cell(8)?,
        copies: claimed(one.destinations, copies, 9)?,
    }))
}

/// All parameters of `onedrop_confirm` but the first.
pub(super) fn confirm<'a>(statement: Statement<'a>, one: &'a ToConfirm<'a>) -> Statement<'a> {
    let ToConfirm { claim, receipt, facts, end: ended } = one;
    let (validity, uid, name) = rows::columns(receipt);
    let statement = statement
        .with(claim.copy, Type::INT8)
        .with(claim.value.bytes(), Type::BYTEA)
        .with(claim.epoch, Type::INT8)
        .with(validity, Type::INT8)
        .with(uid, Type::INT8)
        .with(name, Type::TEXT)
        .with(facts.nul_replaced, Type::BOOL)
        .with(facts.found_by_look, Type::BOOL)
        .with(facts.wrapped, Type::BOOL)
        .with(ended.map(|(attempt, _)| attempt), Type::INT8);
    end(statement, ended.map(|(_, end)| end))
}

/// The result of `onedrop_confirm`, in the columns of `onedrop_record`.
pub(super) fn confirmed(rows: &[Row]) -> Result<Confirmed, LedgerError> {
    let row = rows.first().ok_or(LedgerError::Forgotten)?;
    if row.cell(2)? {
        return Ok(Confirmed::Recorded);
    }
    match row.cell(13)? {
        Some(true) => Ok(Confirmed::Superseded { by: rows::receipt(row, 14)? }),
        _ => Err(LedgerError::Forgotten),
    }
}

/// The result of `onedrop_turn`.
pub(super) fn turn(claim: &Claim, row: Option<&Row>) -> Result<TurnState, LedgerError> {
    let row = row.ok_or(LedgerError::Forgotten)?;
    if !row.cell(0)? {
        return Err(LedgerError::Contended);
    }
    let epoch: i64 = row.cell::<Option<i64>>(1)?.ok_or(LedgerError::Forgotten)?;
    Ok(if row.cell(2)? {
        TurnState::Placed(rows::receipt(row, 3)?)
    } else if epoch == claim.epoch {
        TurnState::Ours { in_doubt: row.cell(6)? }
    } else {
        TurnState::EpochGone
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_that_no_calendar_shows_is_left_out() {
        assert_eq!(date_secs(0), Some(0.0));
        assert_eq!((date_secs(i64::MAX), date_secs(i64::MIN)), (None, None));
    }
}
