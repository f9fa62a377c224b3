//! The queries of `onedrop verify`, and the newest copies for `onedrop check`.

use std::time::{Duration, UNIX_EPOCH};

use rusqlite::{Connection, Row, params};

use super::rows::{random_value, receipt};
use crate::directory::Destination;
use crate::ledger::receipt_columns::columns;
use crate::ledger::{CopyOnRecord, LedgerError, Standing, Window};
use crate::message::Identity;
use crate::receipt::Receipt;

const COPIES: &str = "
SELECT c.id, c.message_id, m.message_id, m.id_hash, m.digest, m.size_bytes, m.recorded_at,
       c.account, c.mailbox, c.shared, c.epoch, c.owner, c.settled_at IS NOT NULL, ?6 - c.placed_at,
       coalesce(c.leased_until > ?6, 0), c.leased_until IS NOT NULL, c.in_doubt,
       c.uid_validity, c.uid, c.file_name,
       c.epoch > 1 OR c.prior_doubt OR c.placed_at IS NULL AND c.in_doubt, c.value, c.lease_ms,
       k.why
FROM onedrop_copy c JOIN onedrop_message m ON m.id = c.message_id
     LEFT JOIN onedrop_kept k ON k.message_id = c.message_id AND c.shared AND c.placed_at IS NULL
WHERE (m.recorded_at >= ?1 OR k.why IS NOT NULL OR c.placed_at IS NULL AND c.leased_until >= ?1
       OR c.placed_at IS NOT NULL AND (c.epoch > 1 OR c.prior_doubt) AND c.settled_at IS NULL)
  AND (?2 IS NULL OR c.account = ?2) AND (?3 IS NULL OR (c.account, c.id) > (?3, ?4))
ORDER BY c.account, c.id LIMIT ?5";

const LATEST: &str = "
SELECT account, mailbox, shared, uid_validity, uid, file_name FROM onedrop_copy
WHERE placed_at IS NOT NULL
ORDER BY id DESC LIMIT ?1";

pub(super) fn copies(
    connection: &Connection,
    now: f64,
    window: &Window<'_>,
    after: Option<&CopyOnRecord>,
    limit: u32,
) -> Result<Vec<CopyOnRecord>, LedgerError> {
    let since = window.since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let (account, copy) =
        (after.map(|last| &last.destination.account), after.map(|last| last.copy));
    let mut statement = connection.prepare(COPIES)?;
    let rows = statement
        .query_map(params![since, window.account, account, copy, limit, now], on_record)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn latest(
    connection: &Connection,
    limit: u32,
) -> Result<Vec<(Destination, Receipt)>, LedgerError> {
    let mut statement = connection.prepare(LATEST)?;
    let rows = statement.query_map([limit], |row| {
        let destination =
            Destination { account: row.get(0)?, mailbox: row.get(1)?, shared: row.get(2)? };
        Ok((destination, receipt(row, 3)?))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn on_record(row: &Row<'_>) -> rusqlite::Result<CopyOnRecord> {
    let (placed_ago, is_leased): (Option<f64>, bool) = (row.get(13)?, row.get(14)?);
    let standing = match placed_ago {
        Some(ago) => Standing::Placed {
            receipt: receipt(row, 17)?,
            ago: Duration::try_from_secs_f64(ago).unwrap_or_default(),
        },
        None if is_leased => Standing::Leased,
        None if row.get(16)? => Standing::InDoubt { lease_left_over: row.get(15)? },
        None => Standing::Free,
    };
    Ok(CopyOnRecord {
        copy: row.get(0)?,
        message: row.get(1)?,
        identity: Identity { message_id: row.get(2)?, id_hash: row.get(3)?, digest: row.get(4)? },
        size_bytes: row.get::<_, i64>(5)?.max(0).unsigned_abs(),
        recorded_at: UNIX_EPOCH + Duration::from_secs(row.get::<_, i64>(6)?.max(0).unsigned_abs()),
        destination: Destination {
            account: row.get(7)?,
            mailbox: row.get(8)?,
            shared: row.get(9)?,
        },
        epoch: row.get(10)?,
        owner: row.get(11)?,
        standing,
        settled: row.get(12)?,
        may_be_double: row.get(20)?,
        value: random_value(row, 21)?,
        lease: Duration::from_millis(row.get::<_, i64>(22)?.max(0).unsigned_abs()),
        kept: row.get(23)?,
    })
}

pub(super) fn settle(
    tx: &Connection,
    now: f64,
    copy: &CopyOnRecord,
    receipt: &Receipt,
) -> Result<bool, LedgerError> {
    let Standing::Placed { receipt: was, .. } = &copy.standing else { return Ok(false) };
    let ((validity, uid, name), (was_validity, was_uid, was_name)) =
        (columns(receipt), columns(was));
    let changed = tx.execute(
        "UPDATE onedrop_copy SET settled_at = ?10, uid_validity = ?3, uid = ?4, file_name = ?5
         WHERE id = ?1 AND epoch = ?2 AND value = ?9 AND placed_at IS NOT NULL
           AND uid_validity IS ?6 AND uid IS ?7 AND file_name IS ?8",
        params![
            copy.copy,
            copy.epoch,
            validity,
            uid,
            name,
            was_validity,
            was_uid,
            was_name,
            copy.value.bytes(),
            now
        ],
    )?;
    Ok(changed > 0)
}
