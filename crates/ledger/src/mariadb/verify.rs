//! The queries of `onedrop verify`: accounts, pages of their copies, and the end of a second look.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::connection::rows_at;
use super::kept;
use super::statement::{SqlBatch, Value, values};
use super::{MariadbLedger, connection};
use crate::doubts;
use crate::rows;
use crate::rows::SqlRow;
use onedrop_core::ledger::{
    Audit, CLAIMED_WITHIN, CopyOnRecord, LedgerError, Standing, WATCH, Window,
};
use onedrop_core::receipt::Receipt;

/// Of copies of the window (rows c, with m), but for the account; ?1 and ?2 are the window, and ?3
/// is when it begins for a copy's message. The first message comes from the index of times, and
/// from there on ids rise with the times.
const RECENT: &str = "
    c.message_id >= (SELECT id FROM onedrop_message WHERE recorded_at >= ?3
        ORDER BY recorded_at, id LIMIT 1)
    AND (m.recorded_at >= ?1 OR c.placed_at IS NULL AND c.leased_until >= ?1)
    AND (?2 OR c.placed_at IS NULL OR c.epoch > 1 OR c.prior_doubt)";

/// What is to be compared however old it is: the small tables come first, whatever the server knows
/// of their sizes.
const OPEN: &str = "
    (SELECT c.id, c.account, c.message_id
     FROM onedrop_unsettled u STRAIGHT_JOIN onedrop_copy c ON c.id = u.copy_id
     WHERE (c.placed_at IS NOT NULL AND (c.epoch > 1 OR c.prior_doubt) AND c.settled_at IS NULL
            OR c.placed_at IS NULL AND c.leased_until >= ?1) AND {of}
     UNION
     SELECT c.id, c.account, c.message_id
     FROM onedrop_kept k STRAIGHT_JOIN onedrop_copy c ON c.message_id = k.message_id
     WHERE c.shared AND c.placed_at IS NULL AND {of})";

/// Those that have a copy of a message of the window, whether it is to be compared or not: the
/// server goes from one account to the next by the index, and to the last copy of each (Using index
/// for group-by). Nothing brings it to begin each account's part of the index in the middle.
const ACCOUNTS: &str = "
(SELECT account FROM onedrop_copy WHERE account > ?4
 GROUP BY account HAVING MAX(message_id) >= (SELECT id FROM onedrop_message WHERE recorded_at >= ?3
     ORDER BY recorded_at, id LIMIT 1)
 ORDER BY account LIMIT ?5)
UNION SELECT open.account FROM {open} open
ORDER BY account LIMIT ?5";

/// A page for each reason; the result is the first page of all.
const COPIES: &str = "
WITH wanted AS (
    (SELECT c.id FROM onedrop_copy c JOIN onedrop_message m ON m.id = c.message_id
     WHERE c.account = ?4 AND {recent} AND {page} ORDER BY c.message_id, c.id LIMIT ?7)
    UNION
    (SELECT c.id FROM {open} c WHERE {page} ORDER BY c.message_id, c.id LIMIT ?7)
)
{copy}
ORDER BY c.message_id, c.id LIMIT ?7";

/// The first term is for the index.
const PAGE: &str = "c.message_id >= ?5 AND (c.message_id > ?5 OR c.message_id = ?5 AND c.id > ?6)";

/// Of the rows of `wanted`.
const COPY: &str = "
SELECT c.id, c.message_id, m.message_id, m.id_hash, m.digest, m.size_bytes,
       TIMESTAMPDIFF(SECOND, '1970-01-01', m.recorded_at), c.account, c.mailbox, c.shared, c.epoch,
       c.owner, c.settled_at IS NOT NULL,
       TIMESTAMPDIFF(MICROSECOND, c.placed_at, UTC_TIMESTAMP(6)) / 1000000,
       COALESCE(c.leased_until > UTC_TIMESTAMP(6), 0), c.leased_until IS NOT NULL, {in_doubt},
       c.uid_validity, c.uid, c.file_name,
       c.epoch > 1 OR c.prior_doubt OR c.placed_at IS NULL AND c.in_doubt, c.value, c.lease_ms,
       k.why, TIMESTAMPDIFF(SECOND, '1970-01-01', c.due_at), c.due_at <= UTC_TIMESTAMP(6),
       c.by_sender, c.found_by_look, c.looks_back
FROM wanted JOIN onedrop_copy c ON c.id = wanted.id JOIN onedrop_message m ON m.id = c.message_id
     LEFT JOIN onedrop_kept k ON k.message_id = c.message_id AND c.shared AND c.placed_at IS NULL";

/// Only if the row is unchanged.
const SETTLE: &str = "
UPDATE onedrop_copy SET settled_at = UTC_TIMESTAMP(6), uid_validity = ?3, uid = ?4, file_name = ?5
WHERE id = ?1 AND epoch = ?2 AND value = ?9 AND placed_at IS NOT NULL
  AND uid_validity <=> ?6 AND uid <=> ?7 AND file_name <=> ?8";

/// Once a look has settled the copy; `onedrop settle` may still watch it.
const GONE: &str = "
DELETE u FROM onedrop_unsettled u JOIN onedrop_copy c ON c.id = u.copy_id
WHERE c.id = ?1 AND c.settled_at IS NOT NULL
  AND (c.due_at IS NULL OR c.placed_at <= TIMESTAMPADD(SECOND, -?2, UTC_TIMESTAMP(6)))";

/// Whether the statement before changed a row.
pub(super) const CHANGED: &str = "SELECT ROW_COUNT() > 0";

/// The query for the copies whose rows are `wanted`.
pub(super) fn copy() -> String {
    COPY.replace("{in_doubt}", doubts::IN_DOUBT)
}

/// From when on the message of a copy of the window may have been recorded.
fn claimed_since(window: &Window) -> SystemTime {
    window.since.checked_sub(CLAIMED_WITHIN).map_or(UNIX_EPOCH, |since| since.max(UNIX_EPOCH))
}

impl Audit for MariadbLedger {
    fn accounts_to_verify(
        &self,
        window: &Window,
        after: Option<&str>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<String>, LedgerError> {
        let sql = ACCOUNTS.replace("{open}", &OPEN.replace("{of}", "c.account > ?4"));
        let after = after.unwrap_or_default().as_bytes();
        self.call(until, |connection| {
            let values = values![window.since, window.all, claimed_since(window), after, limit];
            connection.query(&sql, values)?.iter().map(|row| row.cell(0)).collect()
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
        let sql = COPIES
            .replace("{open}", &OPEN.replace("{of}", "c.account = ?4"))
            .replace("{recent}", RECENT)
            .replace("{page}", PAGE)
            .replace("{copy}", &copy());
        let (message, copy) = after.map_or((0i64, 0i64), |last| (last.message, last.copy));
        self.call(until, |connection| {
            let values = values![
                window.since,
                window.all,
                claimed_since(window),
                account.as_bytes(),
                message,
                copy,
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
                is.2.clone(),
                was.0,
                was.1,
                was.2.clone(),
                copy.value.bytes(),
            ];
            let mut batch = SqlBatch::of(SETTLE, values);
            batch.add(CHANGED, &[]);
            batch.add(GONE, values![copy.copy, rows::millis(WATCH) / 1000]);
            let answers = connection.write(batch)?;
            Ok(connection::first(rows_at(&answers, 1))? == Some(true))
        })
    }

    fn kept_bytes(&self, message: i64, until: Instant) -> Result<Option<Vec<u8>>, LedgerError> {
        self.call(until, |connection| kept::kept_bytes(connection, message))
    }
}
