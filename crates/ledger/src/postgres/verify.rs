//! The queries of `onedrop verify`: accounts, pages of their copies, and the end of a second look.

use std::time::Instant;

use postgres::types::Type;

use super::PostgresLedger;
use super::connection::Statement;
use super::retention::bytes_in;
use crate::doubts;
use crate::rows::{self, SqlRow};
use onedrop_core::ledger::{
    Audit, CLAIMED_WITHIN, CopyOnRecord, LedgerError, Standing, WATCH, Window,
};
use onedrop_core::receipt::Receipt;

/// Of copies of the window (rows c, with m), but for the account; $1 and $2 are the window. The
/// first message comes from the index of times, and from there on ids rise with the times.
const RECENT: &str = "
    c.message_id >= (SELECT id FROM onedrop_message
        WHERE recorded_at >= to_timestamp($1::float8) - interval '{claimed_within} seconds'
        ORDER BY recorded_at, id LIMIT 1)
    AND (m.recorded_at >= to_timestamp($1)
         OR c.placed_at IS NULL AND c.leased_until >= to_timestamp($1))
    AND ($2 OR c.placed_at IS NULL OR c.epoch > 1 OR c.prior_doubt)";

/// What is to be compared however old it is. OFFSET keeps the server from joining all copies where
/// it does not know how few rows the small tables have.
const OPEN: &str = "
    (SELECT c.id, c.account, c.message_id
     FROM onedrop_unsettled u
          CROSS JOIN LATERAL (SELECT * FROM onedrop_copy WHERE id = u.copy_id OFFSET 0) c
     WHERE (c.placed_at IS NOT NULL AND (c.epoch > 1 OR c.prior_doubt) AND c.settled_at IS NULL
            OR c.placed_at IS NULL AND c.leased_until >= to_timestamp($1)) AND {of}
     UNION
     SELECT c.id, c.account, c.message_id
     FROM onedrop_kept k
          CROSS JOIN LATERAL (SELECT * FROM onedrop_copy WHERE message_id = k.message_id OFFSET 0) c
     WHERE c.shared AND c.placed_at IS NULL AND {of})";

/// From one account to the next by the index, and not by all rows of each. A subquery with a LIMIT
/// is asked for each account; EXISTS may become a join of whole tables.
const ACCOUNTS: &str = "
WITH RECURSIVE every (account) AS (
    (SELECT account FROM onedrop_copy WHERE account > $3 ORDER BY account LIMIT 1)
    UNION ALL
    SELECT (SELECT c.account FROM onedrop_copy c WHERE c.account > every.account
            ORDER BY c.account LIMIT 1)
    FROM every WHERE every.account IS NOT NULL
), recent AS (
    SELECT account FROM every WHERE (
        SELECT true FROM onedrop_copy c JOIN onedrop_message m ON m.id = c.message_id
        WHERE c.account = every.account AND {recent} LIMIT 1)
    LIMIT $4
)
SELECT account FROM recent UNION SELECT account FROM {open} AS open
ORDER BY account LIMIT $4";

/// A page for each reason; the result is the first page of all.
const COPIES: &str = "
WITH wanted AS (
    (SELECT c.id FROM onedrop_copy c JOIN onedrop_message m ON m.id = c.message_id
     WHERE c.account = $3 AND {recent} AND {page} ORDER BY c.message_id, c.id LIMIT $6)
    UNION
    (SELECT c.id FROM {open} AS c WHERE {page} ORDER BY c.message_id, c.id LIMIT $6)
)
{copy}
ORDER BY c.message_id, c.id LIMIT $6";

/// The first term is for the index.
const PAGE: &str = "c.message_id >= $4::bigint AND (c.message_id, c.id) > ($4, $5::bigint)";

/// Of the rows of `wanted`.
const COPY: &str = "
SELECT c.id, c.message_id, m.message_id, m.id_hash, m.digest, m.size_bytes,
       extract(epoch FROM m.recorded_at)::bigint, c.account, c.mailbox, c.shared, c.epoch::bigint,
       coalesce(c.owner, ''),
       c.settled_at IS NOT NULL, extract(epoch FROM clock_timestamp() - c.placed_at)::float8,
       coalesce(c.leased_until > clock_timestamp(), false), c.leased_until IS NOT NULL, {in_doubt},
       c.uid_validity, c.uid, c.file_name,
       c.epoch > 1 OR c.prior_doubt OR c.placed_at IS NULL AND c.in_doubt, c.value,
       c.lease_ms::bigint,
       k.why, extract(epoch FROM c.due_at)::bigint, c.due_at <= clock_timestamp(), c.by_sender,
       c.found_by_look, c.looks_back
FROM wanted JOIN onedrop_copy c USING (id) JOIN onedrop_message m ON m.id = c.message_id
     LEFT JOIN onedrop_kept k ON k.message_id = c.message_id AND c.shared AND c.placed_at IS NULL";

/// Only if the row is unchanged. `onedrop settle` may still watch the copy.
const SETTLE: &str = "
WITH settled AS (UPDATE onedrop_copy
SET settled_at = clock_timestamp(), uid_validity = $3, uid = $4, file_name = $5
WHERE id = $1 AND epoch = $2 AND value = $9 AND placed_at IS NOT NULL
  AND (uid_validity, uid, file_name) IS NOT DISTINCT FROM ($6::bigint, $7::bigint, $8::text)
RETURNING id, due_at, placed_at
), gone AS (DELETE FROM onedrop_unsettled u USING settled s WHERE u.copy_id = s.id
    AND (s.due_at IS NULL OR s.placed_at <= clock_timestamp() - interval '{watch} seconds'))
SELECT id FROM settled";

/// The query for the copies whose rows are `wanted`.
pub(super) fn copy() -> String {
    COPY.replace("{in_doubt}", doubts::IN_DOUBT)
}

fn recent() -> String {
    RECENT.replace("{claimed_within}", &CLAIMED_WITHIN.as_secs().to_string())
}

impl Audit for PostgresLedger {
    fn accounts_to_verify(
        &self,
        window: &Window,
        after: Option<&str>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<String>, LedgerError> {
        let sql = ACCOUNTS
            .replace("{open}", &OPEN.replace("{of}", "c.account > $3"))
            .replace("{recent}", &recent());
        self.call(until, |connection| {
            let statement = Statement::new(&sql)
                .with(rows::secs(window.since), Type::FLOAT8)
                .with(window.all, Type::BOOL)
                .with(after.unwrap_or_default(), Type::TEXT)
                .with(i64::from(limit), Type::INT8);
            connection.query(statement)?.iter().map(|row| row.cell(0)).collect()
        })
    }

    fn copies_to_verify(
        &self,
        window: &Window,
        account: &str,
        after: Option<&CopyOnRecord>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        if account.contains('\0') {
            return Ok(Vec::new()); // text in Postgres cannot hold it
        }
        let sql = COPIES
            .replace("{open}", &OPEN.replace("{of}", "c.account = $3"))
            .replace("{recent}", &recent())
            .replace("{page}", PAGE)
            .replace("{copy}", &copy());
        let (message, copy) = after.map_or((0, 0), |last| (last.message, last.copy));
        self.call(until, |connection| {
            let statement = Statement::new(&sql)
                .with(rows::secs(window.since), Type::FLOAT8)
                .with(window.all, Type::BOOL)
                .with(account, Type::TEXT)
                .with(message, Type::INT8)
                .with(copy, Type::INT8)
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
            let statement = Statement::new(SETTLE.replace("{watch}", &WATCH.as_secs().to_string()))
                .with(copy.copy, Type::INT8)
                .with(copy.epoch, Type::INT8)
                .with(is.0, Type::INT8)
                .with(is.1, Type::INT8)
                .with(is.2.clone(), Type::TEXT)
                .with(was.0, Type::INT8)
                .with(was.1, Type::INT8)
                .with(was.2.clone(), Type::TEXT)
                .with(copy.value.bytes(), Type::BYTEA);
            Ok(connection.write(&[statement])?.iter().flatten().next().is_some())
        })
    }

    fn kept_bytes(&self, message: i64, until: Instant) -> Result<Option<Vec<u8>>, LedgerError> {
        self.call(until, |connection| bytes_in(connection, "onedrop_kept", message))
    }
}
