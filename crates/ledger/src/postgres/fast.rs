//! The fast ways: a message that is not on record, and the first receipt of a copy, each by a
//! function of the schema (`onedrop_record`, `onedrop_confirm`); those of several deliveries go in
//! one statement, one round trip and one commit. What they leave goes the general path
//! ([`record`], `sql/claims.rs`), alone.
//!
//! They must do what `claim.rs` says of such a copy: the contract's table of claims asks them in
//! every state of a row. The functions are volatile: each call sees what was committed before it
//! began and what the calls before it did.

use postgres::Row;
use postgres::types::{FromSql, Type};

use super::columns;
use super::connection::{Connection, Statement};
use super::{record, schema};
use crate::rows;
use crate::sql::{attempts, claims};
use crate::{Committed, ToRecord};
use onedrop_core::ledger::claim::{self, Wanted};
use onedrop_core::ledger::{
    AttemptKey, Confirmed, CopyState, LedgerError, MessageKey, Recorded, ToConfirm,
};

/// Milliseconds that a group waits for another session's lock; a single call may wait longer. It is
/// longer than a commit on a slow disk, because commits with NOTIFY wait for each other. A deadlock
/// of two groups is ended by `deadlock_timeout` or by this.
const IN_COMPANY_MS: i64 = 2000;

/// A record that may go the fast way.
pub(super) struct NewMessage<'a> {
    pub one: ToRecord<'a>,
    /// Its copies, leased, in the order of the destinations.
    pub copies: Vec<claim::Row>,
}

/// A receipt that may go the fast way.
pub(super) struct FirstReceipt<'a> {
    pub one: &'a ToConfirm<'a>,
    /// It ends the attempt in the copy's row.
    pub ends_in_copy: bool,
}

/// [`Session::record_and_confirm`](crate::Session::record_and_confirm). A receipt alone ends the
/// turn.
pub(super) fn commit(
    connection: &mut Connection,
    records: &[ToRecord<'_>],
    receipts: &[ToConfirm<'_>],
) -> Result<Committed, LedgerError> {
    if !records.is_empty() {
        connection.rollback()?;
    }
    let is_alone = records.len() + receipts.len() == 1;
    let new: Vec<Option<NewMessage<'_>>> = records.iter().map(NewMessage::of).collect();
    let first: Vec<Option<FirstReceipt<'_>>> = receipts.iter().map(FirstReceipt::of).collect();
    let answer = match call(connection, &new, &first, is_alone) {
        // The memory was moved on in this moment: the general path looks again.
        Err(LedgerError::Contended) if is_alone && receipts.is_empty() => None,
        answer => answer?,
    };
    let mut column = 0..;
    let mut committed = Committed::default();
    for new in &new {
        let recorded = match (new, &answer) {
            (Some(new), Some(answer)) => new.recorded(cell(answer, &mut column)?),
            _ => None,
        };
        committed.recorded.push(recorded);
    }
    for first in &first {
        let is_placed = match (first, &answer) {
            (Some(_), Some(answer)) => cell(answer, &mut column)?,
            _ => false,
        };
        committed.confirmed.push(is_placed.then_some(Ok(Confirmed::Recorded)));
    }
    // An error of one that is alone is the call's: it says whether the session is lost.
    match (records, receipts) {
        ([one], []) if matches!(committed.recorded[..], [None]) => {
            committed.recorded = vec![Some(Ok(record::record(connection, one)?))];
        }
        ([], [one]) if matches!(committed.confirmed[..], [None]) => {
            committed.confirmed = vec![Some(Ok(record::confirm(connection, one)?))];
        }
        _ => {}
    }
    Ok(committed)
}

/// Calls the functions; one column for each, in this order. `None`: nothing to be called.
fn call<'a>(
    connection: &mut Connection,
    new: &[Option<NewMessage<'a>>],
    receipts: &[Option<FirstReceipt<'a>>],
    is_alone: bool,
) -> Result<Option<Row>, LedgerError> {
    let patience = match is_alone {
        true => connection.patience_ms(),
        false => connection.patience_ms().min(IN_COMPANY_MS),
    };
    let new: Vec<&NewMessage<'_>> = new.iter().flatten().collect();
    let receipts: Vec<&FirstReceipt<'_>> = receipts.iter().flatten().collect();
    if new.is_empty() && receipts.is_empty() {
        return Ok(None);
    }
    let mut statement = Statement::kept(text(new.len(), receipts.len()));
    for one in &new {
        statement = columns::record(
            statement.with(patience, Type::INT8),
            (one.one, &one.copies),
            connection,
        );
    }
    // What it is committed with waits for the disk, or none of it does.
    let waits = !new.is_empty() || receipts.iter().any(|receipt| !receipt.one.may_be_lost);
    for receipt in receipts {
        let limits = statement.with(patience, Type::INT8).with(waits, Type::BOOL);
        statement = columns::confirm(limits, receipt.one, receipt.ends_in_copy);
    }
    match connection.call(&statement) {
        Ok(rows) => rows.into_iter().next().map(Some).ok_or_else(no_answer),
        // Another schema has no such function.
        Err(LedgerError::Refused(why)) if schema::is_of_another(&why) => {
            Err(schema::version(connection)?.check().err().unwrap_or(LedgerError::Refused(why)))
        }
        Err(error) => Err(error),
    }
}

/// The statement for this many records, then this many receipts.
fn text(records: usize, receipts: usize) -> String {
    let mut used = 0;
    let mut call = |function: &str, count: usize| {
        let parameters: Vec<String> =
            (used + 1..=used + count).map(|number| format!("${number}")).collect();
        used += count;
        format!("{function}({})", parameters.join(", "))
    };
    let records = (0..records).map(|_| ("onedrop_record", columns::RECORD));
    let receipts = (0..receipts).map(|_| ("onedrop_confirm", columns::CONFIRM));
    let calls: Vec<String> =
        records.chain(receipts).map(|(function, count)| call(function, count)).collect();
    format!("SELECT {}", calls.join(", "))
}

/// The next column of the answer.
fn cell<'r, T: FromSql<'r>>(
    answer: &'r Row,
    column: &mut impl Iterator<Item = usize>,
) -> Result<T, LedgerError> {
    let at = column.next().ok_or_else(no_answer)?;
    answer.try_get(at).map_err(|error| LedgerError::Broken(format!("column {at}: {error}")))
}

fn no_answer() -> LedgerError {
    LedgerError::Broken("a call without an answer".to_owned())
}

impl<'a> FirstReceipt<'a> {
    /// `None`: its attempt gets a row of its own.
    fn of(one: &'a ToConfirm<'a>) -> Option<FirstReceipt<'a>> {
        let ends_in_copy = attempts::ends_in_copy(one);
        (!attempts::is_moved(one)).then_some(FirstReceipt { one, ends_in_copy })
    }
}

impl<'a> NewMessage<'a> {
    /// `None`: it is no matter for the fast way. Bytes that are kept go only where they are known
    /// to be wanted.
    fn of(one: &ToRecord<'a>) -> Option<NewMessage<'a>> {
        let ToRecord { entry, attempt, destinations, terms } = *one;
        if entry.raw.is_some() || claims::name_one_twice(destinations) {
            return None;
        }
        let copies = destinations.iter().map(|to| {
            let wanted = Wanted { by: attempt.value, again: false, shared: to.shared, terms };
            claim::claim(&claim::Row::new(false), &wanted).1.map(|change| change.row)
        });
        Some(NewMessage { one: *one, copies: copies.collect::<Option<_>>()? })
    }

    /// The result of `onedrop_record`. `None`: nothing was done.
    fn recorded(&self, numbers: Option<Vec<i64>>) -> Option<Result<Recorded, LedgerError>> {
        let numbers = numbers?;
        let [message, recorded_at, collision, attempt, ref copies @ ..] = numbers[..] else {
            return Some(Err(LedgerError::Contended));
        };
        let attempt = match (attempt, copies) {
            (0, [copy]) => AttemptKey::Copy(*copy),
            _ => AttemptKey::Row(attempt),
        };
        let claims = self.copies.iter().zip(copies);
        Some(Ok(Recorded {
            message: MessageKey::new(message, self.one.entry.identity),
            recorded_at: rows::time(recorded_at),
            is_new: true,
            collision: collision != 0,
            attempt,
            copies: claims.map(|(row, copy)| CopyState::Claimed(row.claim(*copy))).collect(),
        }))
    }
}
