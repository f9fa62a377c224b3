//! The queries of `onedrop verify`.

use std::time::Instant;

use rusqlite::params;

use super::Classified;
use super::copies::copys_lease_end;
use super::{SqliteLedger, first, read};
use crate::doubts;
use crate::rows;
use crate::rows::SqlRow;
use onedrop_core::ledger::{
    Audit, CLAIMED_WITHIN, CopyOnRecord, LedgerError, Standing, WATCH, Window,
};
use onedrop_core::receipt::Receipt;

/// Of one row; ?6 is the time, ?7 that of the boot whose id is ?8.
const COPY: &str = "
SELECT c.id, c.message_id, m.message_id, m.id_hash, m.digest, m.size_bytes, m.recorded_at,
       c.account, c.mailbox, c.shared, c.epoch, coalesce(c.owner, ''),
       c.settled_at IS NOT NULL, ?6 - c.placed_at,
       coalesce({lease_end} > ?7, 0), c.leased_until IS NOT NULL, {in_doubt},
       c.uid_validity, c.uid, c.file_name,
       c.epoch > 1 OR c.prior_doubt OR c.placed_at IS NULL AND c.in_doubt, c.value, c.lease_ms,
       k.why, CAST(c.due_at AS INTEGER), c.due_at <= ?6, c.by_sender, c.found_by_look,
       c.looks_back
FROM onedrop_copy c JOIN onedrop_message m ON m.id = c.message_id
     LEFT JOIN onedrop_kept k ON k.message_id = c.message_id AND c.shared AND c.placed_at IS NULL";

/// Of copies of the window (rows c, with m), but for the account; ?1 and ?2 are the window, and ?3
/// is how much before it a copy's message may have been recorded. The first message comes from the
/// index of times, and from there on ids rise with the times.
const RECENT: &str = "
    c.message_id >= (SELECT id FROM onedrop_message WHERE recorded_at >= ?1 - ?3
        ORDER BY recorded_at, id LIMIT 1)
    AND (m.recorded_at >= ?1 OR c.placed_at IS NULL AND ?6 - ?7 + {lease_end} >= ?1)
    AND (?2 OR c.placed_at IS NULL OR c.epoch > 1 OR c.prior_doubt)";

/// What is to be compared however old it is. CROSS JOIN keeps SQLite from reading all copies.
const OPEN: &str = "
    (SELECT c.id, c.account, c.message_id
     FROM onedrop_unsettled u CROSS JOIN onedrop_copy c ON c.id = u.copy_id
     WHERE (c.placed_at IS NOT NULL AND (c.epoch > 1 OR c.prior_doubt) AND c.settled_at IS NULL
            OR c.placed_at IS NULL AND ?6 - ?7 + {lease_end} >= ?1) AND {of}
     UNION
     SELECT c.id, c.account, c.message_id
     FROM onedrop_kept k CROSS JOIN onedrop_copy c ON c.message_id = k.message_id
     WHERE c.shared AND c.placed_at IS NULL AND {of})";

/// From one account to the next by the index, and not by all rows of each.
const ACCOUNTS: &str = "
WITH RECURSIVE every (account) AS (
    SELECT min(account) FROM onedrop_copy WHERE account > ?4
    UNION ALL
    SELECT (SELECT min(c.account) FROM onedrop_copy c WHERE c.account > every.account)
    FROM every WHERE every.account IS NOT NULL
), recent AS (
    SELECT account FROM every WHERE account IS NOT NULL AND EXISTS (
        SELECT 1 FROM onedrop_copy c JOIN onedrop_message m ON m.id = c.message_id
        WHERE c.account = every.account AND {recent})
    LIMIT ?5
)
SELECT account FROM recent UNION SELECT account FROM {open}
ORDER BY account LIMIT ?5";

/// A page for each reason; the result is the first page of all.
const COPIES: &str = "
WHERE c.id IN (SELECT id FROM (
    SELECT * FROM (
        SELECT c.id, c.message_id FROM onedrop_copy c JOIN onedrop_message m ON m.id = c.message_id
        WHERE c.account = ?4 AND {recent} AND {page} ORDER BY c.message_id, c.id LIMIT ?10)
    UNION
    SELECT open.id, open.message_id FROM {open} AS open
    WHERE (open.message_id, open.id) > (?5, ?9)
    ORDER BY 2, 1 LIMIT ?10))
ORDER BY c.message_id, c.id";

/// The first term is for the index.
const PAGE: &str = "c.message_id >= ?5 AND (c.message_id, c.id) > (?5, ?9)";

/// Only if the row is unchanged.
const SETTLE: &str = "
UPDATE onedrop_copy SET settled_at = ?10, uid_validity = ?3, uid = ?4, file_name = ?5
WHERE id = ?1 AND epoch = ?2 AND value = ?9 AND placed_at IS NOT NULL
  AND uid_validity IS ?6 AND uid IS ?7 AND file_name IS ?8";

/// `onedrop settle` may still watch the copy.
const GONE: &str = "
DELETE FROM onedrop_unsettled WHERE copy_id = (SELECT id FROM onedrop_copy
    WHERE id = ?1 AND (due_at IS NULL OR placed_at <= ?2))";

/// The query for copies that meet the condition.
pub(super) fn copies(condition: &str) -> String {
    format!("{COPY}{condition}")
        .replace("{in_doubt}", doubts::IN_DOUBT)
        .replace("{lease_end}", &lease_end())
}

/// Of [`Audit::accounts_to_verify`].
pub(super) fn accounts_of_window() -> String {
    ACCOUNTS
        .replace("{open}", &OPEN.replace("{of}", "c.account > ?4"))
        .replace("{recent}", RECENT)
        .replace("{lease_end}", &lease_end())
}

/// Of [`Audit::copies_to_verify`].
pub(super) fn copies_of_window() -> String {
    let condition = COPIES
        .replace("{open}", &OPEN.replace("{of}", "c.account = ?4"))
        .replace("{recent}", RECENT)
        .replace("{page}", PAGE);
    copies(&condition)
}

fn lease_end() -> String {
    copys_lease_end("c.", "?7", "?8")
}

impl Audit for SqliteLedger {
    fn accounts_to_verify(
        &self,
        window: &Window,
        after: Option<&str>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<String>, LedgerError> {
        let since = rows::secs(window.since);
        let sql = accounts_of_window();
        self.call(until, |session| {
            let (now, boot) = (rows::secs(session.clocks.wall()), session.clocks.boot()?);
            let (all, within) = (window.all, CLAIMED_WITHIN.as_secs_f64());
            let (after, boot, boot_id) = (after.unwrap_or_default(), boot.secs, boot.id);
            let params = params![since, all, within, after, limit, now, boot, boot_id];
            read(&session.connection, &sql, params, |row| row.cell(0))
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
        let since = rows::secs(window.since);
        let (message, copy) = after.map_or((0, 0), |last| (last.message, last.copy));
        let sql = copies_of_window();
        self.call(until, |session| {
            let (now, boot) = (rows::secs(session.clocks.wall()), session.clocks.boot()?);
            let (all, within) = (window.all, CLAIMED_WITHIN.as_secs_f64());
            let (boot, boot_id) = (boot.secs, boot.id);
            let params =
                params![since, all, within, account, message, now, boot, boot_id, copy, limit];
            read(&session.connection, &sql, params, |row| rows::copy_on_record(row))
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
        let (id, epoch, value) = (copy.copy, copy.epoch, copy.value.bytes());
        self.call(until, |session| {
            session.write(|tx, now| {
                let params =
                    params![id, epoch, is.0, is.1, is.2.clone(), was.0, was.1, was.2, value, now];
                let is_settled = tx.execute(SETTLE, params).classified()? > 0;
                if is_settled {
                    tx.execute(GONE, params![id, now - WATCH.as_secs_f64()]).classified()?;
                }
                Ok(is_settled)
            })
        })
    }

    fn kept_bytes(&self, message: i64, until: Instant) -> Result<Option<Vec<u8>>, LedgerError> {
        let sql = "SELECT bytes FROM onedrop_kept WHERE message_id = ?1";
        self.call(until, |session| first(&session.connection, sql, [message]))
    }
}
