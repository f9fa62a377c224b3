//! Converts the port's values to columns and back. Text from a command line or a header is cleaned
//! before it is stored, so that Postgres refuses no message because of it; a stored value that
//! makes no sense is an error.

use std::time::UNIX_EPOCH;

use postgres::Row;
use postgres::types::{FromSql, Type};

use super::connection::Statement;
use crate::ledger::{
    Attempt, AttemptEnd, Entry, LedgerError, RandomValue, no_receipt, receipt_columns,
};
use crate::receipt::Receipt;
use crate::text;

/// Bytes of a text in an indexed column; Postgres allows 2704, and `lower()` may lengthen a text.
pub(super) const INDEXED: usize = 1000;
/// Bytes of a text in any other column.
pub(super) const LONGEST: usize = 4000;

/// A message as it is recorded, its addresses and parts: 19 columns.
pub(super) struct MessageColumns<'a> {
    message_id: Option<&'a [u8]>,
    message_id_text: Option<String>,
    sender: String,
    subject: Option<String>,
    date: Option<f64>,
    in_reply_to: Option<String>,
    references: Option<String>,
    size_bytes: i64,
    recorded_at: Option<i64>,
    nul_runs: Option<&'a [u8]>,
    roles: Vec<&'a str>,
    names: Vec<Option<String>>,
    addresses: Vec<Option<String>>,
    paths: Vec<String>,
    content_types: Vec<String>,
    part_names: Vec<Option<String>>,
    part_sizes: Vec<i64>,
}

impl<'a> MessageColumns<'a> {
    pub fn of(entry: &Entry<'a>, attempt: &Attempt) -> MessageColumns<'a> {
        let facts = entry.facts;
        let plain = |value: &Option<String>| {
            value.as_deref().map(|value| text::within(value, LONGEST).into_owned())
        };
        let indexed = |value: &Option<String>| {
            value.as_deref().map(|value| text::within(value, INDEXED).into_owned())
        };
        MessageColumns {
            message_id: entry.identity.message_id.as_deref(),
            message_id_text: entry
                .identity
                .message_id
                .as_deref()
                .map(|id| text::of_bytes(id, INDEXED)),
            sender: text::within(&attempt.sender, INDEXED).into_owned(),
            subject: plain(&facts.subject),
            date: facts.date.and_then(date_secs),
            in_reply_to: indexed(&facts.in_reply_to),
            references: plain(&facts.references),
            size_bytes: clamped(entry.size_bytes),
            recorded_at: entry
                .at
                .and_then(|at| i64::try_from(at.duration_since(UNIX_EPOCH).ok()?.as_secs()).ok()),
            nul_runs: entry.nul_runs,
            roles: facts.addresses.iter().map(|one| one.role).collect(),
            names: facts.addresses.iter().map(|one| plain(&one.name)).collect(),
            addresses: facts.addresses.iter().map(|one| indexed(&one.address)).collect(),
            paths: facts
                .parts
                .iter()
                .map(|one| text::within(&one.path, INDEXED).into_owned())
                .collect(),
            content_types: facts
                .parts
                .iter()
                .map(|one| text::within(&one.content_type, LONGEST).into_owned())
                .collect(),
            part_names: facts.parts.iter().map(|one| plain(&one.name)).collect(),
            part_sizes: facts.parts.iter().map(|one| clamped(one.size_bytes)).collect(),
        }
    }

    /// `keeps_raw` and `raw`: whether the message's bytes are kept, and the bytes.
    pub fn bind<'s>(
        &'s self,
        statement: Statement<'s>,
        keeps_raw: &'s bool,
        raw: &'s Option<&[u8]>,
    ) -> Statement<'s> {
        statement
            .with(&self.message_id, Type::BYTEA)
            .with(&self.message_id_text, Type::TEXT)
            .with(&self.sender, Type::TEXT)
            .with(&self.subject, Type::TEXT)
            .with(&self.date, Type::FLOAT8)
            .with(&self.in_reply_to, Type::TEXT)
            .with(&self.references, Type::TEXT)
            .with(&self.size_bytes, Type::INT8)
            .with(&self.recorded_at, Type::INT8)
            .with(keeps_raw, Type::BOOL)
            .with(raw, Type::BYTEA)
            .with(&self.nul_runs, Type::BYTEA)
            .with(&self.roles, Type::TEXT_ARRAY)
            .with(&self.names, Type::TEXT_ARRAY)
            .with(&self.addresses, Type::TEXT_ARRAY)
            .with(&self.paths, Type::TEXT_ARRAY)
            .with(&self.content_types, Type::TEXT_ARRAY)
            .with(&self.part_names, Type::TEXT_ARRAY)
            .with(&self.part_sizes, Type::INT8_ARRAY)
    }
}

/// The Date field, if its year is 1 to 9999.
fn date_secs(date: i64) -> Option<f64> {
    (-62_135_596_800..=253_402_300_799).contains(&date).then_some(date as f64)
}

fn clamped(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// An attempt, as five columns. Arguments and environment variables may hold any text.
pub(super) struct AttemptColumns {
    texts: [String; 4],
    pid: i64,
}

impl AttemptColumns {
    pub fn of(attempt: &Attempt) -> AttemptColumns {
        let texts = [&attempt.recipient, &attempt.sender, &attempt.queue_id, &attempt.host];
        AttemptColumns {
            texts: texts.map(|value| text::within(value, INDEXED).into_owned()),
            pid: i64::from(attempt.pid),
        }
    }

    pub fn bind<'s>(&'s self, statement: Statement<'s>) -> Statement<'s> {
        let statement =
            self.texts.iter().fold(statement, |statement, value| statement.with(value, Type::TEXT));
        statement.with(&self.pid, Type::INT8)
    }
}

/// How an attempt ended, as four columns.
#[derive(Default)]
pub(super) struct EndColumns {
    duration_ms: i64,
    texts: [String; 3],
}

impl EndColumns {
    pub fn of(end: &AttemptEnd) -> EndColumns {
        EndColumns {
            duration_ms: i64::try_from(end.duration.as_millis()).unwrap_or(i64::MAX),
            texts: [end.outcome, &end.status, &end.text]
                .map(|value| text::within(value, LONGEST).into_owned()),
        }
    }

    pub fn bind<'s>(&'s self, statement: Statement<'s>) -> Statement<'s> {
        let statement = statement.with(&self.duration_ms, Type::INT8);
        self.texts.iter().fold(statement, |statement, value| statement.with(value, Type::TEXT))
    }
}

/// The receipt in the three columns from `at`.
pub(super) fn receipt(row: &Row, at: usize) -> Result<Receipt, LedgerError> {
    let receipt = receipt_columns::receipt(cell(row, at)?, cell(row, at + 1)?, cell(row, at + 2)?);
    receipt.ok_or_else(no_receipt)
}

/// The random value of a row.
pub(super) fn value(row: &Row, at: usize) -> Result<RandomValue, LedgerError> {
    RandomValue::of(cell(row, at)?)
}

/// A column of the type that the SQL says it has.
pub(super) fn cell<'r, T: FromSql<'r>>(row: &'r Row, at: usize) -> Result<T, LedgerError> {
    row.try_get(at).map_err(|error| LedgerError::Broken(format!("column {at}: {error}")))
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
