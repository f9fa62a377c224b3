//! The queries of `onedrop verify`: a page of copies, in one transaction that sees one state, and
//! the end of a second look; and the newest copies for `onedrop check`.

use std::time::{Duration, SystemTime};

use postgres::Row;
use postgres::types::Type;

use super::columns::{cell, receipt, value};
use super::connection::{Connection, Statement};
use crate::directory::Destination;
use crate::ledger::receipt_columns::columns;
use crate::ledger::{CopyOnRecord, LedgerError, Standing, Window};
use crate::lock_key::Hash;
use crate::message::Identity;
use crate::receipt::Receipt;

/// A page for each of four reasons, each with its own index; the result is the first page of all.
const COPIES: &str = "
WITH wanted AS (
    (SELECT c.account, c.id FROM onedrop_message m JOIN onedrop_copy c ON c.message_id = m.id
     WHERE m.recorded_at >= to_timestamp($1) AND {page})
    UNION
    (SELECT c.account, c.id FROM onedrop_copy c
     WHERE c.placed_at IS NULL AND c.leased_until >= to_timestamp($1) AND {page})
    UNION
    (SELECT c.account, c.id FROM onedrop_copy c
     WHERE c.placed_at IS NOT NULL AND (c.epoch > 1 OR c.prior_doubt)
       AND c.settled_at IS NULL AND {page})
    UNION
    (SELECT c.account, c.id FROM onedrop_kept k JOIN onedrop_copy c ON c.message_id = k.message_id
     WHERE c.shared AND c.placed_at IS NULL AND {page})
)
SELECT c.id, c.message_id, m.message_id, m.id_hash, m.digest, m.size_bytes,
       extract(epoch FROM m.recorded_at)::bigint, c.account, c.mailbox, c.shared, c.epoch, c.owner,
       c.settled_at IS NOT NULL, extract(epoch FROM clock_timestamp() - c.placed_at)::float8,
       coalesce(c.leased_until > clock_timestamp(), false), c.leased_until IS NOT NULL, c.in_doubt,
       c.uid_validity, c.uid, c.file_name,
       c.epoch > 1 OR c.prior_doubt OR c.placed_at IS NULL AND c.in_doubt, c.value, c.lease_ms,
       k.why
FROM wanted JOIN onedrop_copy c USING (id) JOIN onedrop_message m ON m.id = c.message_id
     LEFT JOIN onedrop_kept k ON k.message_id = c.message_id AND c.shared AND c.placed_at IS NULL
ORDER BY c.account, c.id LIMIT $5";

const PAGE: &str = "($2::text IS NULL OR c.account = $2)
     AND ($3::text IS NULL OR (c.account, c.id) > ($3, $4::bigint))
     ORDER BY c.account, c.id LIMIT $5";

const LATEST: &str = "
SELECT account, mailbox, shared, uid_validity, uid, file_name FROM onedrop_copy
WHERE placed_at IS NOT NULL
ORDER BY id DESC LIMIT $1";

/// Only if the row is unchanged.
const SETTLE: &str = "
UPDATE onedrop_copy SET settled_at = clock_timestamp(), uid_validity = $3, uid = $4, file_name = $5
WHERE id = $1 AND epoch = $2 AND value = $9 AND placed_at IS NOT NULL
  AND (uid_validity, uid, file_name) IS NOT DISTINCT FROM ($6::bigint, $7::bigint, $8::text)
RETURNING id";

/// [`Ledger::copies_to_verify`](crate::ledger::Ledger::copies_to_verify).
pub(super) fn copies(
    connection: &mut Connection,
    window: &Window<'_>,
    after: Option<&CopyOnRecord>,
    limit: u32,
) -> Result<Vec<CopyOnRecord>, LedgerError> {
    let sql = COPIES.replace("{page}", PAGE);
    let since =
        window.since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let (account, copy) =
        (after.map(|last| last.destination.account.as_str()), after.map(|last| last.copy));
    let limit = i64::from(limit);
    if window.account.is_some_and(|account| account.contains('\0')) {
        return Ok(Vec::new()); // text in Postgres cannot hold it
    }
    let statement = Statement::new(&sql)
        .with(&since, Type::FLOAT8)
        .with(&window.account, Type::TEXT)
        .with(&account, Type::TEXT)
        .with(&copy, Type::INT8)
        .with(&limit, Type::INT8);
    connection.read(&[statement])?.into_iter().flatten().map(|row| on_record(&row)).collect()
}

/// [`Ledger::latest_copies`](crate::ledger::Ledger::latest_copies).
pub(super) fn latest(
    connection: &mut Connection,
    limit: u32,
) -> Result<Vec<(Destination, Receipt)>, LedgerError> {
    let limit = i64::from(limit);
    let statement = Statement::new(LATEST).with(&limit, Type::INT8);
    let rows = connection.read(&[statement])?.into_iter().flatten();
    rows.map(|row| {
        let destination = Destination {
            account: cell(&row, 0)?,
            mailbox: cell(&row, 1)?,
            shared: cell(&row, 2)?,
        };
        Ok((destination, receipt(&row, 3)?))
    })
    .collect()
}

fn on_record(row: &Row) -> Result<CopyOnRecord, LedgerError> {
    let (placed_ago, is_leased): (Option<f64>, bool) = (cell(row, 13)?, cell(row, 14)?);
    let standing = match placed_ago {
        Some(ago) => Standing::Placed {
            receipt: receipt(row, 17)?,
            ago: Duration::try_from_secs_f64(ago).unwrap_or_default(),
        },
        None if is_leased => Standing::Leased,
        None if cell(row, 16)? => Standing::InDoubt { lease_left_over: cell(row, 15)? },
        None => Standing::Free,
    };
    let epoch_secs: i64 = cell(row, 6)?;
    Ok(CopyOnRecord {
        copy: cell(row, 0)?,
        message: cell(row, 1)?,
        identity: Identity {
            message_id: cell(row, 2)?,
            id_hash: hash(row, 3)?,
            digest: hash(row, 4)?,
        },
        size_bytes: cell::<i64>(row, 5)?.max(0).unsigned_abs(),
        recorded_at: SystemTime::UNIX_EPOCH + Duration::from_secs(epoch_secs.max(0).unsigned_abs()),
        destination: Destination {
            account: cell(row, 7)?,
            mailbox: cell(row, 8)?,
            shared: cell(row, 9)?,
        },
        epoch: cell(row, 10)?,
        owner: cell(row, 11)?,
        standing,
        settled: cell(row, 12)?,
        may_be_double: cell(row, 20)?,
        value: value(row, 21)?,
        lease: Duration::from_millis(cell::<i64>(row, 22)?.max(0).unsigned_abs()),
        kept: cell(row, 23)?,
    })
}

fn hash(row: &Row, at: usize) -> Result<Hash, LedgerError> {
    let bytes: &[u8] = cell(row, at)?;
    bytes.try_into().map_err(|_| LedgerError::Broken(format!("a hash of {} bytes", bytes.len())))
}

/// [`Ledger::settle`](crate::ledger::Ledger::settle).
pub(super) fn settle(
    connection: &mut Connection,
    copy: &CopyOnRecord,
    is: &Receipt,
) -> Result<bool, LedgerError> {
    let Standing::Placed { receipt: was, .. } = &copy.standing else { return Ok(false) };
    let ((validity, uid, name), (was_validity, was_uid, was_name)) = (columns(is), columns(was));
    let row_value = copy.value.bytes();
    let statement = Statement::new(SETTLE)
        .with(&copy.copy, Type::INT8)
        .with(&copy.epoch, Type::INT8)
        .with(&validity, Type::INT8)
        .with(&uid, Type::INT8)
        .with(&name, Type::TEXT)
        .with(&was_validity, Type::INT8)
        .with(&was_uid, Type::INT8)
        .with(&was_name, Type::TEXT)
        .with(&row_value, Type::BYTEA);
    connection.rollback()?;
    let rows = connection.commit(&[statement])?;
    Ok(rows.first().is_some_and(|rows| !rows.is_empty()))
}
