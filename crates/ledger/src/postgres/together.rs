//! Group commit: one statement, and so one round trip and one commit, for the records and receipts
//! of one or several deliveries. The functions are volatile: each call sees what was committed
//! before it began and what the calls before it did.
//!
//! Every row begins with the number of its call, from 0, then has the columns of `onedrop_record`;
//! results of `onedrop_confirm` use the columns of the same kind.

use postgres::Row;
use postgres::types::Type;

use super::columns;
use super::connection::{Connection, Statement};
use super::schema;
use crate::rows::SqlRow;
use crate::{Committed, ToRecord};
use onedrop_core::ledger::{LedgerError, ToConfirm};

/// Milliseconds that a group waits for another session's lock; a single call may wait longer. It is
/// longer than a commit on a slow disk, because commits with NOTIFY wait for each other. A deadlock
/// of two groups is ended by `deadlock_timeout` or by this.
const IN_COMPANY_MS: i64 = 2000;

/// [`Session::commit`](crate::session::Session::commit). A receipt alone ends the turn.
pub(super) fn commit(
    connection: &mut Connection,
    records: &[ToRecord<'_>],
    receipts: &[ToConfirm<'_>],
) -> Result<Committed, LedgerError> {
    if !records.is_empty() {
        connection.rollback()?;
    }
    // The bytes of a message that is already on record are not sent again.
    let rows = match call(connection, records, false, receipts) {
        Err(LedgerError::Refused(why)) if schema::is_of_another(&why) => {
            return Err(schema::version(connection)?
                .check()
                .err()
                .unwrap_or(LedgerError::Refused(why)));
        }
        rows => rows?,
    };
    let answers = answers(&rows, records.len() + receipts.len())?;
    let (of_records, of_receipts) = answers.split_at(records.len());
    let recorded = records.iter().zip(of_records).map(|(one, rows)| {
        if let Some(recorded) = columns::recorded(one, connection.program(), rows)? {
            return Ok(recorded);
        }
        let rows = call(connection, &[*one], true, &[])?;
        let still = || LedgerError::Broken("bytes wanted that were given".to_owned());
        columns::recorded(one, connection.program(), &rows)?.ok_or_else(still)
    });
    let recorded = recorded.collect();
    let confirmed = of_receipts.iter().map(|rows| columns::confirmed(rows)).collect();
    Ok(Committed { recorded, confirmed })
}

fn call(
    connection: &mut Connection,
    records: &[ToRecord<'_>],
    with_raw: bool,
    receipts: &[ToConfirm<'_>],
) -> Result<Vec<Row>, LedgerError> {
    let patience = match records.len() + receipts.len() {
        1 => connection.patience_ms(),
        _ => connection.patience_ms().min(IN_COMPANY_MS),
    };
    let (program, ours) = (connection.program().version(), connection.program().config.clone());
    let mut statement = Statement::kept(text(records.len(), receipts.len()));
    for one in records {
        let config = ours.as_ref().map(|ours| ours.with(one.entry.fields));
        statement = statement
            .with(patience, Type::INT8)
            .with(program as i32, Type::INT4)
            .with(config.map(|config| config.json().to_owned()), Type::TEXT);
        statement = columns::record(statement, one, with_raw, connection.notifies());
    }
    for one in receipts {
        statement = columns::confirm(statement.with(patience, Type::INT8), one);
    }
    connection.call(&statement)
}

/// The statement for this many records, then this many receipts.
fn text(records: usize, receipts: usize) -> String {
    let mut used = 0;
    let mut parameters = |count: usize| {
        let numbers: Vec<String> =
            (used + 1..=used + count).map(|number| format!("${number}")).collect();
        used += count;
        numbers.join(", ")
    };
    let calls: Vec<String> = (0..records + receipts)
        .map(|number| match number < records {
            true => format!(
                "SELECT {number}, f.* FROM onedrop_record({}) f",
                parameters(columns::RECORD)
            ),
            false => format!(
                "SELECT {number}, {} FROM onedrop_confirm({}) f",
                columns::CONFIRM_AS_RECORD,
                parameters(columns::CONFIRM)
            ),
        })
        .collect();
    calls.join(" UNION ALL ")
}

/// The rows of each of `count` calls.
fn answers(rows: &[Row], count: usize) -> Result<Vec<&[Row]>, LedgerError> {
    let number =
        |row: &Row| row.cell::<i32>(0).ok().and_then(|number| usize::try_from(number).ok());
    let mut answers: Vec<&[Row]> = vec![&[]; count];
    for rows in rows.chunk_by(|row, next| number(row) == number(next)) {
        let answer = number(&rows[0]).and_then(|own| answers.get_mut(own));
        *answer.ok_or_else(|| LedgerError::Broken("an answer to no call".to_owned()))? = rows;
    }
    Ok(answers)
}
