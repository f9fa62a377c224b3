//! Group commit: one statement, and so one round trip and one commit, for the records and receipts
//! of one or several deliveries. The functions are volatile: each call sees what was committed
//! before it began and what the calls before it did.
//!
//! Every row begins with the number of its call, from 0, then has the columns of `onedrop_record`;
//! results of `onedrop_confirm` use the columns of the same kind ([`place`]).

use std::sync::OnceLock;

use postgres::Row;
use postgres::types::Type;

use super::columns::cell;
use super::connection::{Connection, Statement};
use super::place::{self, ConfirmColumns};
use super::record::{self, RecordColumns, RecordResult};
use super::schema;
use crate::ledger::{Committed, LedgerError, MOST_TOGETHER, SCHEMA_VERSION, ToConfirm, ToRecord};

/// Milliseconds that a group waits for another session's lock; a single call may wait longer. It is
/// longer than a commit on a slow disk, because commits with NOTIFY wait for each other. A deadlock
/// of two groups is ended by `deadlock_timeout` or by this.
const IN_COMPANY_MS: i64 = 2000;

/// SQLSTATE undefined_function.
const NO_FUNCTION: &str = "42883";

/// [`Session::commit`](crate::ledger::session::Session::commit). A receipt alone ends the turn.
pub(super) fn commit(
    connection: &mut Connection,
    records: &[ToRecord<'_>],
    receipts: &[ToConfirm<'_>],
) -> Result<Committed, LedgerError> {
    if !records.is_empty() {
        connection.rollback()?;
    }
    let columns: Vec<RecordColumns<'_>> = records.iter().map(RecordColumns::of).collect();
    let all: Vec<&RecordColumns<'_>> = columns.iter().collect();
    // The bytes of a message that is already on record are not sent again.
    let rows = match call(connection, &all, false, receipts) {
        Err(LedgerError::Refused(why)) if why.starts_with(NO_FUNCTION) => {
            // An older schema has no functions.
            let found = schema::version(connection)?;
            return Err(if found == SCHEMA_VERSION {
                LedgerError::Refused(why)
            } else {
                LedgerError::Version { found }
            });
        }
        rows => rows?,
    };
    let answers = answers(&rows, all.len() + receipts.len())?;
    let (of_records, of_receipts) = answers.split_at(all.len());
    let recorded = columns.iter().zip(of_records).map(|(one, rows)| match one.answer(rows)? {
        RecordResult::Recorded(recorded) => Ok(recorded),
        RecordResult::WantsRaw => match one.answer(&call(connection, &[one], true, &[])?)? {
            RecordResult::Recorded(recorded) => Ok(recorded),
            RecordResult::WantsRaw => {
                Err(LedgerError::Broken("bytes wanted that were given".to_owned()))
            }
        },
    });
    let recorded = recorded.collect();
    let confirmed = receipts
        .iter()
        .zip(of_receipts)
        .map(|(one, rows)| place::confirmed(connection, one, rows))
        .collect();
    Ok(Committed { recorded, confirmed })
}

fn call(
    connection: &mut Connection,
    records: &[&RecordColumns<'_>],
    with_raw: bool,
    receipts: &[ToConfirm<'_>],
) -> Result<Vec<Row>, LedgerError> {
    let patience = match records.len() + receipts.len() {
        1 => connection.patience_ms(),
        _ => connection.patience_ms().min(IN_COMPANY_MS),
    };
    let receipts: Vec<ConfirmColumns<'_>> = receipts.iter().map(ConfirmColumns::of).collect();
    let mut statement = Statement::kept(text(records.len(), receipts.len())?);
    for one in records {
        statement = one.bind(statement.with(&patience, Type::INT8), with_raw);
    }
    for one in &receipts {
        statement = one.bind(statement.with(&patience, Type::INT8));
    }
    connection.commit_call(&statement)
}

/// The statement for this many records, then this many receipts.
fn text(records: usize, receipts: usize) -> Result<&'static str, LedgerError> {
    static TEXTS: [[OnceLock<String>; MOST_TOGETHER + 1]; MOST_TOGETHER + 1] =
        [const { [const { OnceLock::new() }; MOST_TOGETHER + 1] }; MOST_TOGETHER + 1];
    let calls = records + receipts;
    let text = TEXTS
        .get(records)
        .and_then(|texts| texts.get(receipts))
        .filter(|_| (1..=MOST_TOGETHER).contains(&calls));
    let text = text.ok_or_else(|| {
        LedgerError::Broken(format!("{calls} calls in one, {MOST_TOGETHER} at most"))
    })?;
    Ok(text.get_or_init(|| {
        let mut used = 0;
        let mut parameters = |count: usize| {
            let numbers =
                (used + 1..=used + count).map(|number| format!("${number}")).collect::<Vec<_>>();
            used += count;
            numbers.join(", ")
        };
        let records = (0..records).map(|number| {
            let parameters = parameters(record::PARAMETERS);
            format!("SELECT {number}, f.* FROM onedrop_record({parameters}) f")
        });
        let mut calls: Vec<String> = records.collect();
        let before = calls.len();
        calls.extend((0..receipts).map(|number| {
            let (number, parameters) = (before + number, parameters(place::PARAMETERS));
            format!("SELECT {number}, {} FROM onedrop_confirm({parameters}) f", place::AS_RECORD)
        }));
        calls.join(" UNION ALL ")
    }))
}

/// The rows of each of `count` calls.
fn answers(rows: &[Row], count: usize) -> Result<Vec<&[Row]>, LedgerError> {
    let mut answers: Vec<&[Row]> = vec![&[]; count];
    let mut rest = rows;
    while let Some(row) = rest.first() {
        let number =
            |row: &Row| cell::<i32>(row, 0).ok().and_then(|number| usize::try_from(number).ok());
        let own = number(row);
        let many = rest.iter().take_while(|row| number(row) == own).count();
        let (rows, others) = rest.split_at(many);
        let answer = own.and_then(|own| answers.get_mut(own));
        *answer.ok_or_else(|| LedgerError::Broken("an answer to no call".to_owned()))? = rows;
        rest = others;
    }
    Ok(answers)
}

/// The result of the only call.
pub(super) fn only<T>(all: Vec<Result<T, LedgerError>>) -> Result<T, LedgerError> {
    let missing = || Err(LedgerError::Broken("a call without an answer".to_owned()));
    all.into_iter().next().unwrap_or_else(missing)
}
