//! The parameters of the schema's functions. Text from a command line or a header is cleaned before
//! it is stored, so that Postgres refuses no message because of it.

use postgres::types::Type;

use super::connection::{Connection, Statement};
use crate::ToRecord;
use crate::facts as json;
use crate::rows::{self, INDEXED, LONGEST};
use crate::sql::record::{date, within};
use crate::sql::{attempts, claims};
use onedrop_core::ledger::claim::Row;
use onedrop_core::ledger::{Attempt, AttemptEnd, AttemptKey, ToConfirm};
use onedrop_core::lock_key::advisory_key;
use onedrop_core::outcome::Reason;
use onedrop_core::text;

/// How many parameters `onedrop_record` and `onedrop_confirm` have, with
/// [`Connection::patience_ms`], the first one.
pub(super) const RECORD: usize = 30;
pub(super) const CONFIRM: usize = 17;

/// All parameters of `onedrop_record` but the first. The copies are in the order of the
/// destinations, leased.
pub(super) fn record<'a>(
    statement: Statement<'a>,
    (one, copies): (ToRecord<'a>, &[Row]),
    connection: &Connection,
) -> Statement<'a> {
    let ToRecord { entry, attempt, destinations, terms } = one;
    let (identity, facts, program) = (entry.identity, entry.facts, connection.program());
    let config = program.config.as_ref().map(|ours| ours.with(entry.fields).json().to_owned());
    let statement = statement
        .with(program.version() as i32, Type::INT4)
        .with(config, Type::TEXT)
        .with(advisory_key(&identity.id_hash), Type::INT8)
        .with(identity.id_hash.as_slice(), Type::BYTEA)
        .with(identity.digest.as_slice(), Type::BYTEA)
        .with(identity.message_id.as_deref(), Type::BYTEA)
        .with(within(&facts.subject, LONGEST), Type::TEXT)
        .with(date(facts).map(|secs| secs as f64), Type::FLOAT8)
        .with(json::in_reply_to(facts).map(|text| text::within(text, INDEXED)), Type::TEXT)
        .with(within(&facts.references, LONGEST), Type::TEXT)
        .with(i64::try_from(entry.size_bytes).unwrap_or(i64::MAX), Type::INT8)
        .with(entry.at.map(rows::whole_secs), Type::INT8)
        .with(entry.oldest.map(rows::whole_secs), Type::INT8)
        .with(entry.nul_runs, Type::BYTEA)
        .with(json::addresses(&facts.addresses), Type::TEXT)
        .with(json::parts(&facts.parts), Type::TEXT)
        .with(connection.notifies(), Type::BOOL);
    let values = copies.iter().map(|row| row.value.bytes().to_vec());
    by(statement, attempt)
        .with(list(destinations, |to| to.account.as_str()), Type::TEXT_ARRAY)
        .with(list(destinations, |to| to.mailbox.as_str()), Type::TEXT_ARRAY)
        .with(list(destinations, |to| to.shared), Type::BOOL_ARRAY)
        .with(values.collect::<Vec<_>>(), Type::BYTEA_ARRAY)
        .with(claims::owner_name(attempt), Type::TEXT)
        .with(attempt.value.bytes(), Type::BYTEA)
        .with(rows::millis(terms.lease), Type::INT8)
}

fn list<'a, T, U>(all: &'a [T], column: impl Fn(&'a T) -> U) -> Vec<U> {
    all.iter().map(column).collect()
}

/// An attempt: five parameters. Arguments and environment variables may hold any text.
fn by<'a>(statement: Statement<'a>, attempt: &'a Attempt) -> Statement<'a> {
    [&attempt.recipient, &attempt.sender, &attempt.queue_id, &attempt.host]
        .into_iter()
        .fold(statement, |statement, value| {
            statement.with(text::within(value, INDEXED), Type::TEXT)
        })
        .with(i32::try_from(attempt.pid).unwrap_or(i32::MAX), Type::INT4)
}

/// How an attempt with a row of its own ended, if it did: four parameters.
fn end<'a>(statement: Statement<'a>, end: Option<&'a AttemptEnd>) -> Statement<'a> {
    statement
        .with(end.map(|end| text::within(end.outcome, LONGEST)), Type::TEXT)
        .with(end.map(|end| text::within(&end.status, LONGEST)), Type::TEXT)
        .with(end.map(|end| text::within(&end.text, LONGEST)), Type::TEXT)
        .with(end.and_then(|end| end.reason).map(Reason::word), Type::TEXT)
}

/// All parameters of `onedrop_confirm` but the first two.
pub(super) fn confirm<'a>(
    statement: Statement<'a>,
    one: &'a ToConfirm<'a>,
    ends_in_copy: bool,
) -> Statement<'a> {
    let ToConfirm { claim, receipt, facts, end: ended, .. } = one;
    let row = ended.and_then(|(attempt, _)| match attempt {
        AttemptKey::Row(number) => Some(number),
        AttemptKey::Copy(_) => None,
    });
    let statement = statement
        .with(claim.copy, Type::INT8)
        .with(claim.value.bytes(), Type::BYTEA)
        .with(claim.epoch, Type::INT8)
        .with(receipt.kind(), Type::TEXT)
        .with(receipt.text(), Type::TEXT)
        .with(facts.nul_replaced, Type::BOOL)
        .with(facts.found_by_look, Type::BOOL)
        .with(facts.wrapped, Type::BOOL)
        .with(ends_in_copy, Type::BOOL)
        .with(row, Type::INT8)
        .with(ended.map(|(_, end)| attempts::millis(end)), Type::INT8);
    end(statement, row.and(*ended).map(|(_, end)| end))
}
