//! The queries of `onedrop verify`: a page of copies, in one transaction that sees one state, and
//! the end of a second look.

use std::time::Instant;

use super::connection::rows_at;
use super::copies;
use super::statement::{Batch, Value, values};
use super::{MariadbLedger, connection};
use crate::ledger::{Audit, CopyOnRecord, LedgerError, Standing, Window, rows};
use crate::receipt::Receipt;

/// A page for each of four reasons; the result is the first page of all.
const COPIES: &str = "
WITH wanted AS (
    (SELECT c.account, c.id FROM onedrop_message m JOIN onedrop_copy c ON c.message_id = m.id
     WHERE m.recorded_at >= ?1 AND {page})
    UNION
    (SELECT c.account, c.id FROM onedrop_copy c
     WHERE c.placed_at IS NULL AND c.leased_until >= ?1 AND {page})
    UNION
    (SELECT c.account, c.id FROM onedrop_copy c
     WHERE c.placed_at IS NOT NULL AND (c.epoch > 1 OR c.prior_doubt)
       AND c.settled_at IS NULL AND {page})
    UNION
    (SELECT c.account, c.id FROM onedrop_kept k JOIN onedrop_copy c ON c.message_id = k.message_id
     WHERE c.shared AND c.placed_at IS NULL AND {page})
)
{copy}";

/// Of the rows of `wanted`.
pub(super) const COPY: &str = "
SELECT c.id, c.message_id, m.message_id, m.id_hash, m.digest, m.size_bytes,
       TIMESTAMPDIFF(SECOND, '1970-01-01', m.recorded_at), c.account, c.mailbox, c.shared, c.epoch,
       c.owner, c.settled_at IS NOT NULL,
       TIMESTAMPDIFF(MICROSECOND, c.placed_at, UTC_TIMESTAMP(6)) / 1000000,
       COALESCE(c.leased_until > UTC_TIMESTAMP(6), 0), c.leased_until IS NOT NULL, c.in_doubt,
       c.uid_validity, c.uid, c.file_name,
       c.epoch > 1 OR c.prior_doubt OR c.placed_at IS NULL AND c.in_doubt, c.value, c.lease_ms,
       k.why, TIMESTAMPDIFF(SECOND, '1970-01-01', c.due_at), c.due_at <= UTC_TIMESTAMP(6),
       c.by_sender, c.found_by_look
FROM wanted JOIN onedrop_copy c ON c.id = wanted.id JOIN onedrop_message m ON m.id = c.message_id
     LEFT JOIN onedrop_kept k ON k.message_id = c.message_id AND c.shared AND c.placed_at IS NULL
ORDER BY c.account, c.id LIMIT ?5";

pub(super) const PAGE: &str = "(?2 IS NULL OR c.account = ?2)
     AND (?3 IS NULL OR c.account > ?3 OR c.account = ?3 AND c.id > ?4)
     ORDER BY c.account, c.id LIMIT ?5";

/// Only if the row is unchanged.
const SETTLE: &str = "
UPDATE onedrop_copy SET settled_at = UTC_TIMESTAMP(6), uid_validity = ?3, uid = ?4, file_name = ?5
WHERE id = ?1 AND epoch = ?2 AND value = ?9 AND placed_at IS NOT NULL
  AND uid_validity <=> ?6 AND uid <=> ?7 AND file_name <=> ?8";

/// Whether the statement before changed a row.
pub(super) const CHANGED: &str = "SELECT ROW_COUNT() > 0";

impl Audit for MariadbLedger {
    fn copies_to_verify(
        &self,
        window: &Window<'_>,
        after: Option<&CopyOnRecord>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        let sql = COPIES.replace("{page}", PAGE).replace("{copy}", COPY);
        self.call(until, |connection| {
            let values = values![
                window.since,
                window.account.map(str::as_bytes),
                after.map(|last| last.destination.account.as_bytes()),
                after.map(|last| last.copy),
                limit,
            ];
            connection.query(&sql, values)?.iter().map(rows::copy_on_record).collect()
        })
    }

    fn settle(
        &self,
        copy: &CopyOnRecord,
        receipt: &Receipt,
        until: Instant,
    ) -> Result<bool, LedgerError> {
        let Standing::Placed { receipt: was, .. } = &copy.standing else { return Ok(false) };
        let (is, was) = (rows::columns(receipt), rows::columns(was));
        self.call(until, |connection| {
            let values: &[Value<'_>] = values![
                copy.copy,
                copy.epoch,
                is.0,
                is.1,
                is.2,
                was.0,
                was.1,
                was.2,
                copy.value.bytes(),
            ];
            let mut batch = Batch::of(SETTLE, values);
            batch.add(CHANGED, &[]);
            let answers = connection.write(batch)?;
            Ok(connection::first(rows_at(&answers, 1))? == Some(true))
        })
    }

    fn kept_bytes(&self, message: i64, until: Instant) -> Result<Option<Vec<u8>>, LedgerError> {
        self.call(until, |connection| copies::kept_bytes(connection, message))
    }
}
