//! Rows of SQL engines, read into the port's values: every engine selects the same columns in the
//! same order. Columns count from 0. A value on record that makes no sense is
//! [`LedgerError::Broken`].

use std::time::Duration;

use onedrop_core::directory::Destination;
pub use onedrop_core::ledger::units::{THERE_BEFORE, millis, secs, time, whole_secs};
use onedrop_core::ledger::{
    CopyOnRecord, DueTime, ForgottenCopy, LedgerError, PassedBy, RandomValue, RawMessage,
    Remembered, Standing,
};
use onedrop_core::message::Identity;
use onedrop_core::receipt::Receipt;

/// Bytes of a text in an indexed column: Postgres allows 2704, and `lower()` may lengthen a text.
pub const INDEXED: usize = 1000;
/// Bytes of a text in any other column.
pub const LONGEST: usize = 4000;

/// A row of any engine.
pub trait SqlRow {
    fn cell<T: Cell>(&self, at: usize) -> Result<T, LedgerError>;
}

/// A type that a column has in every engine.
pub trait Cell:
    for<'r> postgres::types::FromSql<'r> + rusqlite::types::FromSql + MariadbCell
{
}

impl<T> Cell for T where
    T: for<'r> postgres::types::FromSql<'r> + rusqlite::types::FromSql + MariadbCell
{
}

#[cfg(feature = "mariadb")]
pub use mysql_async::prelude::FromValue as MariadbCell;

/// Any type, in a program without MariaDB.
#[cfg(not(feature = "mariadb"))]
pub trait MariadbCell {}

#[cfg(not(feature = "mariadb"))]
impl<T> MariadbCell for T {}

#[cfg(feature = "mariadb")]
impl SqlRow for mysql_async::Row {
    fn cell<T: Cell>(&self, at: usize) -> Result<T, LedgerError> {
        let broken = |why: &str| LedgerError::Broken(format!("column {at}: {why}"));
        match self.get_opt(at) {
            Some(Ok(value)) => Ok(value),
            Some(Err(_)) => Err(broken("another type than expected, or null")),
            None => Err(broken("no such column")),
        }
    }
}

impl SqlRow for postgres::Row {
    fn cell<T: Cell>(&self, at: usize) -> Result<T, LedgerError> {
        self.try_get(at).map_err(|error| LedgerError::Broken(format!("column {at}: {error}")))
    }
}

impl SqlRow for rusqlite::Row<'_> {
    fn cell<T: Cell>(&self, at: usize) -> Result<T, LedgerError> {
        self.get(at).map_err(|error| LedgerError::Broken(format!("column {at}: {error}")))
    }
}

/// A length in seconds; none for a time that has passed, or makes no sense.
pub fn length(secs: f64) -> Duration {
    Duration::try_from_secs_f64(secs).unwrap_or_default()
}

/// A receipt in the two columns from `at`.
pub fn receipt(row: &impl SqlRow, at: usize) -> Result<Receipt, LedgerError> {
    let (kind, text): (Option<String>, Option<String>) = (row.cell(at)?, row.cell(at + 1)?);
    let receipt = kind.zip(text).map(|(kind, text)| Receipt::new(kind, text));
    receipt.ok_or_else(|| LedgerError::Broken("a placed copy without a receipt".to_owned()))
}

/// A copy's random value.
pub fn random_value(row: &impl SqlRow, at: usize) -> Result<RandomValue, LedgerError> {
    bytes(row, at).map(RandomValue::from)
}

fn bytes<const N: usize>(row: &impl SqlRow, at: usize) -> Result<[u8; N], LedgerError> {
    let bytes: Vec<u8> = row.cell(at)?;
    bytes.try_into().map_err(|bytes: Vec<u8>| {
        LedgerError::Broken(format!("column {at} has {} bytes, not {N}", bytes.len()))
    })
}

/// Account, mailbox, whether it is shared.
pub fn destination(row: &impl SqlRow, at: usize) -> Result<Destination, LedgerError> {
    let (account, mailbox) = (row.cell(at)?, row.cell(at + 1)?);
    Ok(Destination { account, mailbox, shared: row.cell(at + 2)? })
}

/// A destination and the receipt of the copy there.
pub fn placed_copy(row: &impl SqlRow) -> Result<(Destination, Receipt), LedgerError> {
    Ok((destination(row, 0)?, receipt(row, 3)?))
}

/// A destination, whether the copy there is placed, and its receipt (2).
pub fn raw_copy(row: &impl SqlRow) -> Result<(Destination, Option<Receipt>), LedgerError> {
    let receipt = if row.cell(3)? { Some(receipt(row, 4)?) } else { None };
    Ok((destination(row, 0)?, receipt))
}

/// 28 columns: see the queries.
pub fn copy_on_record(row: &impl SqlRow) -> Result<CopyOnRecord, LedgerError> {
    let (placed_secs_ago, is_leased): (Option<f64>, bool) = (row.cell(13)?, row.cell(14)?);
    let standing = match placed_secs_ago {
        Some(ago) => Standing::Placed { receipt: receipt(row, 17)?, ago: length(ago) },
        None if is_leased => Standing::Leased,
        None if row.cell(16)? => Standing::InDoubt { lease_left_over: row.cell(15)? },
        None => Standing::Free,
    };
    let unsigned = |at| row.cell(at).map(|number: i64| number.max(0).unsigned_abs());
    Ok(CopyOnRecord {
        copy: row.cell(0)?,
        message: row.cell(1)?,
        identity: Identity {
            message_id: row.cell(2)?,
            id_hash: bytes(row, 3)?,
            digest: bytes(row, 4)?,
        },
        size_bytes: unsigned(5)?,
        recorded_at: time(row.cell(6)?),
        destination: destination(row, 7)?,
        epoch: row.cell(10)?,
        owner: if placed_secs_ago.is_some() { String::new() } else { row.cell(11)? },
        settled: row.cell(12)?,
        standing,
        may_be_double: row.cell(19)?,
        value: random_value(row, 20)?,
        lease: Duration::from_millis(unsigned(21)?),
        kept: row.cell(22)?,
        due: match row.cell::<Option<i64>>(23)? {
            Some(at) => Some(DueTime { at: time(at), has_come: row.cell(24)? }),
            None => None,
        },
        by_sender: row.cell(25)?,
        found_by_look: row.cell(26)?,
        looks_back: row.cell(27)?,
    })
}

/// Since when the ledger remembers and what time it is, both in seconds since 1970; how long ago a
/// purge ended; when the ledger was made.
pub fn remembered(row: &impl SqlRow) -> Result<Remembered, LedgerError> {
    let ago = |secs: f64| Duration::try_from_secs_f64(secs.max(0.0)).unwrap_or(Duration::MAX);
    let since = match row.cell::<f64>(0)? {
        // The site's first: nothing was recorded before.
        0.0 => row.cell::<Option<f64>>(3)?.unwrap_or(0.0),
        since => since,
    };
    Ok(Remembered {
        // Before 1970 is for ever.
        since: (since >= 0.0).then(|| time(since as i64)),
        since_ago: ago(row.cell::<f64>(1)? - since),
        purged_ago: row.cell::<Option<f64>>(2)?.map(ago),
    })
}

/// The table that has one row has none.
pub fn no_ledger() -> LedgerError {
    LedgerError::Broken("onedrop_ledger has no row".to_owned())
}

/// Message-ID, destination (3), whether it is passed by for its lease, or for a Sent, whether the
/// bytes of its message are on record.
pub fn forgotten(row: &impl SqlRow, at: usize) -> Result<ForgottenCopy, LedgerError> {
    Ok(ForgottenCopy {
        message_id: row.cell(at)?,
        destination: destination(row, at + 1)?,
        passed_by: match (row.cell(at + 4)?, row.cell(at + 5)?) {
            (true, _) => Some(PassedBy::Lease),
            (false, true) => Some(PassedBy::Sent),
            (false, false) => None,
        },
        has_raw: row.cell(at + 6)?,
    })
}

/// SQL: whether another account's Sent still needs the Message-ID of `m`, where `c`'s account is to
/// be erased.
pub const NEEDED_BY_SENT: &str = "EXISTS (
    SELECT 1 FROM onedrop_copy o
    WHERE o.message_id = m.id AND o.shared AND o.account <> c.account
      AND CASE WHEN o.placed_at IS NULL
               THEN EXISTS (SELECT 1 FROM onedrop_kept k WHERE k.message_id = m.id)
               ELSE o.due_at IS NOT NULL
                    AND EXISTS (SELECT 1 FROM onedrop_unsettled u WHERE u.copy_id = o.id) END)";

/// SQL: whether the bytes of `m` are on record.
pub const HAS_RAW: &str = "EXISTS (SELECT 1 FROM onedrop_raw r WHERE r.message_id = m.id {fence})";

/// Number, Message-ID, its hash, digest, time, sender.
pub fn raw_message(row: &impl SqlRow) -> Result<RawMessage, LedgerError> {
    Ok(RawMessage {
        message: row.cell(0)?,
        identity: Identity {
            message_id: row.cell(1)?,
            id_hash: bytes(row, 2)?,
            digest: bytes(row, 3)?,
        },
        recorded_at: time(row.cell(4)?),
        sender: row.cell(5)?,
        bytes: Vec::new(),
        copies: Vec::new(),
    })
}
