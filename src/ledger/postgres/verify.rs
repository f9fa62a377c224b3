//! The queries of `onedrop verify`: a page of copies, in one transaction that sees one state, and
//! the end of a second look.

use std::time::Instant;

use postgres::types::Type;

use super::PostgresLedger;
use super::connection::Statement;
use crate::ledger::rows::{self, SqlRow};
use crate::ledger::{Audit, CopyOnRecord, LedgerError, Standing, Window};
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
{copy}";

/// Of the rows of `wanted`.
pub(super) const COPY: &str = "
SELECT c.id, c.message_id, m.message_id, m.id_hash, m.digest, m.size_bytes,
       extract(epoch FROM m.recorded_at)::bigint, c.account, c.mailbox, c.shared, c.epoch, c.owner,
       c.settled_at IS NOT NULL, extract(epoch FROM clock_timestamp() - c.placed_at)::float8,
       coalesce(c.leased_until > clock_timestamp(), false), c.leased_until IS NOT NULL, c.in_doubt,
       c.uid_validity, c.uid, c.file_name,
       c.epoch > 1 OR c.prior_doubt OR c.placed_at IS NULL AND c.in_doubt, c.value, c.lease_ms,
       k.why, extract(epoch FROM c.due_at)::bigint, c.due_at <= clock_timestamp(), c.by_sender,
       c.found_by_look
FROM wanted JOIN onedrop_copy c USING (id) JOIN onedrop_message m ON m.id = c.message_id
     LEFT JOIN onedrop_kept k ON k.message_id = c.message_id AND c.shared AND c.placed_at IS NULL
ORDER BY c.account, c.id LIMIT $5";

pub(super) const PAGE: &str = "($2::text IS NULL OR c.account = $2)
     AND ($3::text IS NULL OR (c.account, c.id) > ($3, $4::bigint))
     ORDER BY c.account, c.id LIMIT $5";

/// Only if the row is unchanged.
const SETTLE: &str = "
UPDATE onedrop_copy SET settled_at = clock_timestamp(), uid_validity = $3, uid = $4, file_name = $5
WHERE id = $1 AND epoch = $2 AND value = $9 AND placed_at IS NOT NULL
  AND (uid_validity, uid, file_name) IS NOT DISTINCT FROM ($6::bigint, $7::bigint, $8::text)
RETURNING id";

impl Audit for PostgresLedger {
    fn copies_to_verify(
        &self,
        window: &Window<'_>,
        after: Option<&CopyOnRecord>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        if window.account.is_some_and(|account| account.contains('\0')) {
            return Ok(Vec::new()); // text in Postgres cannot hold it
        }
        let sql = COPIES.replace("{page}", PAGE).replace("{copy}", COPY);
        let account = after.map(|last| last.destination.account.as_str());
        self.call(until, |connection| {
            let statement = Statement::new(&sql)
                .with(rows::secs(window.since), Type::FLOAT8)
                .with(window.account, Type::TEXT)
                .with(account, Type::TEXT)
                .with(after.map(|last| last.copy), Type::INT8)
                .with(i64::from(limit), Type::INT8);
            connection.query(statement)?.iter().map(rows::copy_on_record).collect()
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
            let statement = Statement::new(SETTLE)
                .with(copy.copy, Type::INT8)
                .with(copy.epoch, Type::INT8)
                .with(is.0, Type::INT8)
                .with(is.1, Type::INT8)
                .with(is.2, Type::TEXT)
                .with(was.0, Type::INT8)
                .with(was.1, Type::INT8)
                .with(was.2, Type::TEXT)
                .with(copy.value.bytes(), Type::BYTEA);
            Ok(connection.write(&[statement])?.iter().flatten().next().is_some())
        })
    }

    fn kept_bytes(&self, message: i64, until: Instant) -> Result<Option<Vec<u8>>, LedgerError> {
        let sql = "SELECT bytes FROM onedrop_kept WHERE message_id = $1";
        self.call(until, |connection| {
            let rows = connection.query(Statement::new(sql).with(message, Type::INT8))?;
            rows.first().map(|row| row.cell(0)).transpose()
        })
    }
}
