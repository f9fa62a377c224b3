//! The queries of `onedrop settle`.

use std::time::{Duration, Instant};

use postgres::types::Type;

use super::PostgresLedger;
use super::connection::Statement;
use super::verify;
use crate::rows::{self, SqlRow};
use onedrop_core::ledger::{Claim, CopyOnRecord, LedgerError, Settling};
use onedrop_core::receipt::Receipt;

/// What is due, and what is kept.
const COPIES: &str = "
WITH wanted AS (
    (SELECT c.account, c.id FROM onedrop_unsettled u JOIN onedrop_copy c ON c.id = u.copy_id
     WHERE u.look_at <= clock_timestamp()
       AND c.placed_at IS NULL AND c.due_at <= clock_timestamp() AND {page})
    UNION
    (SELECT c.account, c.id FROM onedrop_kept k JOIN onedrop_copy c ON c.message_id = k.message_id
     WHERE c.shared AND c.placed_at IS NULL AND c.due_at IS NULL AND {page})
)
{copy}
ORDER BY c.account, c.id LIMIT $3";

const PAGE: &str = "($1::text IS NULL OR (c.account, c.id) > ($1, $2::bigint))
     ORDER BY c.account, c.id LIMIT $3";

const WATCHED: &str = "
WITH wanted AS (
    SELECT c.account, c.id FROM onedrop_unsettled u JOIN onedrop_copy c ON c.id = u.copy_id
    WHERE u.look_at <= clock_timestamp() AND c.placed_at IS NOT NULL AND c.due_at IS NOT NULL
      AND (NOT c.by_sender OR c.prior_doubt OR c.settled_at IS NULL) AND {page}
)
{copy}
ORDER BY c.account, c.id LIMIT $3";

const LOOK_AGAIN: &str = "
UPDATE onedrop_unsettled u SET look_at = clock_timestamp() + $3 * interval '1 second'
FROM onedrop_copy c WHERE c.id = $1 AND c.value = $2 AND u.copy_id = c.id";

const LOOK_NO_MORE: &str = "
DELETE FROM onedrop_unsettled u USING onedrop_copy c
WHERE c.id = $1 AND c.value = $2 AND u.copy_id = c.id AND c.placed_at IS NOT NULL
  AND (c.settled_at IS NOT NULL OR c.epoch = 1 AND NOT c.prior_doubt)";

/// Only if the row is as it was, or as this makes it.
const LEAVE: &str = "
UPDATE onedrop_copy SET placed_at = coalesce(placed_at, clock_timestamp()),
    placed_epoch = CASE WHEN placed_at IS NULL THEN epoch ELSE placed_epoch END,
    leased_until = NULL, in_doubt = false, found_by_look = false, by_sender = true,
    settled_at = clock_timestamp(),
    uid_validity = $5, uid = $6, file_name = $7
WHERE id = $1 AND value = $2 AND epoch = $3
  AND ((placed_at IS NOT NULL) = $4
       AND (uid_validity, uid, file_name)
           IS NOT DISTINCT FROM ($8::bigint, $9::bigint, $10::text)
       OR by_sender AND (uid_validity, uid, file_name)
           IS NOT DISTINCT FROM ($5::bigint, $6::bigint, $7::text))
RETURNING id";

/// In the same transaction, but a statement of its own: it must see what LEAVE made.
const FORGET: &str = "
SELECT onedrop_forget_kept(message_id)
FROM onedrop_copy WHERE id = $1 AND shared AND placed_at IS NOT NULL";

/// As FORGET; a copy of ours may still come to stand where an attempt ended in doubt.
const LEFT: &str = "
DELETE FROM onedrop_unsettled u USING onedrop_copy c
WHERE c.id = $1 AND u.copy_id = c.id
  AND c.by_sender AND c.settled_at IS NOT NULL AND NOT c.prior_doubt";

const NAMESAKE: &str = "
SELECT EXISTS (SELECT FROM onedrop_message m JOIN onedrop_copy c ON c.message_id = m.id
    WHERE m.id_hash = $1 AND m.id <> $2 AND c.account = $3 AND c.mailbox = $4)";

impl Settling for PostgresLedger {
    fn copies_to_settle(
        &self,
        watched: bool,
        after: Option<&CopyOnRecord>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        let sql = if watched { WATCHED } else { COPIES };
        let sql = sql.replace("{page}", PAGE).replace("{copy}", &verify::copy());
        let account = after.map(|last| last.destination.account.as_str());
        self.call(until, |connection| {
            let statement = Statement::new(&sql)
                .with(account, Type::TEXT)
                .with(after.map(|last| last.copy), Type::INT8)
                .with(i64::from(limit), Type::INT8);
            connection.query(statement)?.iter().map(rows::copy_on_record).collect()
        })
    }

    fn look_again(
        &self,
        copy: &CopyOnRecord,
        after: Option<Duration>,
        until: Instant,
    ) -> Result<(), LedgerError> {
        let sql = if after.is_some() { LOOK_AGAIN } else { LOOK_NO_MORE };
        self.call(until, |connection| {
            let mut statement = Statement::new(sql)
                .with(copy.copy, Type::INT8)
                .with(copy.value.bytes(), Type::BYTEA);
            if let Some(after) = after {
                statement = statement.with(after.as_secs_f64(), Type::FLOAT8);
            }
            connection.write(&[statement]).map(drop)
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
            let statement = Statement::new(LEAVE)
                .with(claim.copy, Type::INT8)
                .with(claim.value.bytes(), Type::BYTEA)
                .with(claim.epoch, Type::INT8)
                .with(was.is_some(), Type::BOOL)
                .with(is.0, Type::INT8)
                .with(is.1, Type::INT8)
                .with(is.2.clone(), Type::TEXT)
                .with(old.0, Type::INT8)
                .with(old.1, Type::INT8)
                .with(old.2.clone(), Type::TEXT);
            let forget = Statement::new(FORGET).with(claim.copy, Type::INT8);
            let over = Statement::new(LEFT).with(claim.copy, Type::INT8);
            let answers = connection.write(&[statement, forget, over])?;
            Ok(answers.first().is_some_and(|rows| !rows.is_empty()))
        })
    }

    fn has_namesake(&self, copy: &CopyOnRecord, until: Instant) -> Result<bool, LedgerError> {
        let place = &copy.destination;
        self.call(until, |connection| {
            let statement = Statement::new(NAMESAKE)
                .with(copy.identity.id_hash.as_slice(), Type::BYTEA)
                .with(copy.message, Type::INT8)
                .with(place.account.as_str(), Type::TEXT)
                .with(place.mailbox.as_str(), Type::TEXT);
            let rows = connection.query(statement)?;
            Ok(rows.first().map(|row| row.cell(0)).transpose()? == Some(true))
        })
    }
}
