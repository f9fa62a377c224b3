//! The queries of `onedrop settle`.

use std::time::{Duration, Instant};

use super::MariadbLedger;
use super::connection::{first, rows_at};
use super::kept::forget_kept;
use super::statement::{SqlBatch, values};
use super::verify;
use crate::rows;
use crate::rows::SqlRow;
use onedrop_core::ledger::{Claim, CopyOnRecord, LedgerError, Settling};
use onedrop_core::receipt::Receipt;

/// What is due, and what is kept.
const COPIES: &str = "
WITH wanted AS (
    (SELECT c.account, c.id FROM onedrop_unsettled u JOIN onedrop_copy c ON c.id = u.copy_id
     WHERE u.look_at <= UTC_TIMESTAMP(6)
       AND c.placed_at IS NULL AND c.due_at <= UTC_TIMESTAMP(6) AND {page})
    UNION
    (SELECT c.account, c.id FROM onedrop_kept k JOIN onedrop_copy c ON c.message_id = k.message_id
     WHERE c.shared AND c.placed_at IS NULL AND c.due_at IS NULL AND {page})
)
{copy}
ORDER BY c.account, c.id LIMIT ?3";

const WATCHED: &str = "
WITH wanted AS (
    SELECT c.account, c.id FROM onedrop_unsettled u JOIN onedrop_copy c ON c.id = u.copy_id
    WHERE u.look_at <= UTC_TIMESTAMP(6) AND c.placed_at IS NOT NULL AND c.due_at IS NOT NULL
      AND (NOT c.by_sender OR c.prior_doubt OR c.settled_at IS NULL) AND {page}
)
{copy}
ORDER BY c.account, c.id LIMIT ?3";

const PAGE: &str = "(?1 IS NULL OR c.account > ?1 OR c.account = ?1 AND c.id > ?2)
     ORDER BY c.account, c.id LIMIT ?3";

const LOOK_AGAIN: &str = "
UPDATE onedrop_unsettled u JOIN onedrop_copy c ON c.id = u.copy_id
SET u.look_at = TIMESTAMPADD(MICROSECOND, 1000 * ?3, UTC_TIMESTAMP(6))
WHERE c.id = ?1 AND c.value = ?2";

const LOOK_NO_MORE: &str = "
DELETE u FROM onedrop_unsettled u JOIN onedrop_copy c ON c.id = u.copy_id
WHERE c.id = ?1 AND c.value = ?2 AND c.placed_at IS NOT NULL
  AND (c.settled_at IS NOT NULL OR c.epoch = 1 AND NOT c.prior_doubt)";

/// A copy of ours may still come to stand where an attempt ended in doubt.
const LEFT: &str = "
DELETE u FROM onedrop_unsettled u JOIN onedrop_copy c ON c.id = u.copy_id
WHERE c.id = ?1 AND c.by_sender AND c.settled_at IS NOT NULL AND NOT c.prior_doubt";

/// Only if the row is as it was, or as a call before has made it.
const IS_AS_IT_WAS: &str = "
SELECT message_id, shared FROM onedrop_copy
WHERE id = ?1 AND value = ?2 AND epoch = ?3
  AND ((placed_at IS NOT NULL) = ?4
       AND uid_validity <=> ?8 AND uid <=> ?9 AND file_name <=> ?10
       OR by_sender AND uid_validity <=> ?5 AND uid <=> ?6 AND file_name <=> ?7)
FOR UPDATE";

/// Assignments see those before them.
const LEAVE: &str = "
UPDATE onedrop_copy SET placed_epoch = IF(placed_at IS NULL, epoch, placed_epoch),
    placed_at = COALESCE(placed_at, UTC_TIMESTAMP(6)), leased_until = NULL, in_doubt = FALSE,
    found_by_look = FALSE, by_sender = TRUE, settled_at = UTC_TIMESTAMP(6),
    uid_validity = ?2, uid = ?3, file_name = ?4
WHERE id = ?1";

const NAMESAKE: &str = "
SELECT EXISTS (SELECT 1 FROM onedrop_message m JOIN onedrop_copy c ON c.message_id = m.id
    WHERE m.id_hash = ?1 AND m.id <> ?2 AND c.account = ?3 AND c.mailbox = ?4)";

impl Settling for MariadbLedger {
    fn copies_to_settle(
        &self,
        watched: bool,
        after: Option<&CopyOnRecord>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        let sql = if watched { WATCHED } else { COPIES };
        let sql = sql.replace("{page}", PAGE).replace("{copy}", &verify::copy());
        self.call(until, |connection| {
            let values = values![
                after.map(|last| last.destination.account.as_bytes()),
                after.map(|last| last.copy),
                limit,
            ];
            connection.query(&sql, values)?.iter().map(rows::copy_on_record).collect()
        })
    }

    fn look_again(
        &self,
        copy: &CopyOnRecord,
        after: Option<Duration>,
        until: Instant,
    ) -> Result<(), LedgerError> {
        let (id, value) = (copy.copy, copy.value.bytes());
        self.call(until, |connection| {
            let batch = match after {
                Some(after) => SqlBatch::of(LOOK_AGAIN, values![id, value, rows::millis(after)]),
                None => SqlBatch::of(LOOK_NO_MORE, values![id, value]),
            };
            connection.write(batch).map(drop)
        })
    }

    fn leave_to_sender(
        &self,
        claim: &Claim,
        was: Option<&Receipt>,
        receipt: &Receipt,
        until: Instant,
    ) -> Result<bool, LedgerError> {
        let (is, old) = (rows::columns(receipt), was.map_or((None, None, None), rows::columns));
        self.call(until, |connection| {
            let values = values![
                claim.copy,
                claim.value.bytes(),
                claim.epoch,
                was.is_some(),
                is.0,
                is.1,
                is.2.clone(),
                old.0,
                old.1,
                old.2.clone(),
            ];
            let found = connection.begin(SqlBatch::of(IS_AS_IT_WAS, values))?;
            let Some(row) = rows_at(&found, 0).first() else {
                connection.rollback()?;
                return Ok(false);
            };
            let (message, is_shared): (i64, bool) = (row.cell(0)?, row.cell(1)?);
            let mut batch = SqlBatch::of(LEAVE, values![claim.copy, is.0, is.1, is.2.clone()]);
            if is_shared {
                forget_kept(&mut batch, &message.to_string());
            }
            batch.add(LEFT, values![claim.copy]);
            connection.commit(batch)?;
            Ok(true)
        })
    }

    fn has_namesake(&self, copy: &CopyOnRecord, until: Instant) -> Result<bool, LedgerError> {
        let place = &copy.destination;
        self.call(until, |connection| {
            let values = values![
                &copy.identity.id_hash,
                copy.message,
                place.account.as_bytes(),
                place.mailbox.as_bytes(),
            ];
            Ok(first(&connection.query(NAMESAKE, values)?)? == Some(true))
        })
    }
}
