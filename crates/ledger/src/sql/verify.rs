//! The queries of `onedrop verify`: accounts, pages of their copies, and the end of a second look.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::{Kept, SqlSession, has_changed, sql};
use crate::PooledLedger;
use crate::rows::{self, SqlRow};
use onedrop_core::ledger::{
    Audit, CLAIMED_WITHIN, CopyOnRecord, LedgerError, Standing, WATCH, Window,
};
use onedrop_core::receipt::Receipt;

/// The first message that a copy of the window may be of: from there on ids rise with the times,
/// but not within the seconds by which the times of two hosts may differ. Of the messages of the
/// window's first seconds it is thus the least. ?3 is when the window begins for a copy's message.
/// `+ 0` keeps an engine from walking the primary key up to the first one that is in time.
pub(crate) const FIRST: &str = "(SELECT min(id + 0) FROM onedrop_message
    WHERE recorded_at >= ?3 AND recorded_at <= (
        SELECT {soon} FROM onedrop_message WHERE recorded_at >= ?3 ORDER BY recorded_at LIMIT 1))";

/// Of copies of the window (rows c, with m), but for the account; ?1 and ?2 are the window.
const RECENT: &str = "
    c.message_id >= {first}
    AND (m.recorded_at >= ?1 OR c.placed_at IS NULL AND {lease_left(c.)} >= -{ago(?1)})
    AND (?2 OR c.placed_at IS NULL OR {may_be_double})";

/// What is to be compared however old it is: the small tables come first, whatever an engine knows
/// of their sizes.
const OPEN: &str = "
    (SELECT c.id, c.account, c.message_id
     FROM onedrop_unsettled u {with_copies(c.id = u.copy_id)}
     WHERE (c.placed_at IS NOT NULL AND {may_be_double} AND c.settled_at IS NULL
            OR c.placed_at IS NULL AND {lease_left(c.)} >= -{ago(?1)}) AND {of}
     UNION
     SELECT c.id, c.account, c.message_id
     FROM onedrop_kept k {with_copies(c.message_id = k.message_id)}
     WHERE c.shared AND c.placed_at IS NULL AND {of})";

/// Those that have a copy of a message of the window, on some engines whether it is to be compared
/// or not, and those of which something is open.
const ACCOUNTS: &str = "
SELECT account FROM ({accounts(?4, ?2, {first})} LIMIT ?5) recent
UNION SELECT account FROM {open} few
ORDER BY account LIMIT ?5";

/// A page for each reason; the result is the first page of all.
const COPIES: &str = "
WITH wanted AS (
    SELECT id FROM (
        SELECT c.id FROM onedrop_copy c JOIN onedrop_message m ON m.id = c.message_id
        WHERE c.account = ?4 AND {recent} AND {page} ORDER BY c.message_id, c.id LIMIT ?7) recent
    UNION
    SELECT id FROM (
        SELECT o.id FROM {open} o WHERE {page_of_open} ORDER BY o.message_id, o.id LIMIT ?7) few
)
{copy}
ORDER BY c.message_id, c.id LIMIT ?7";

/// The first term is for the index.
const PAGE: &str = "c.message_id >= ?5 AND (c.message_id > ?5 OR c.id > ?6)";

/// Copies as [`rows::copy_on_record`] reads them, of the rows of `wanted`.
pub(crate) const COPY: &str = "
SELECT c.id, c.message_id, m.message_id, m.id_hash, m.digest, m.size_bytes,
       {whole(m.recorded_at)}, c.account, c.mailbox, c.shared, {int(c.epoch)},
       coalesce(c.owner, ''), c.settled_at IS NOT NULL, {ago(c.placed_at)},
       coalesce({lease_left(c.)} > 0, FALSE), c.leased_until IS NOT NULL, {in_doubt},
       c.receipt_kind, c.receipt,
       {may_be_double} OR c.placed_at IS NULL AND c.in_doubt, c.value,
       {int(c.lease_ms)}, k.why, {whole(c.due_at)}, c.due_at <= {now}, c.by_sender,
       c.found_by_look, c.looks_back
FROM wanted {with_copies(c.id = wanted.id)} JOIN onedrop_message m ON m.id = c.message_id
     LEFT JOIN onedrop_kept k ON k.message_id = c.message_id AND c.shared AND c.placed_at IS NULL";

/// Only if the row is unchanged.
const SETTLE: &str = "
UPDATE onedrop_copy SET settled_at = {now}, receipt_kind = ?3, receipt = ?4
WHERE id = ?1 AND epoch = ?2 AND value = ?7 AND placed_at IS NOT NULL
  AND receipt_kind = ?5 AND receipt = ?6";

/// Once a look has settled the copy; `onedrop settle` may still watch it.
const GONE: &str = "
DELETE FROM onedrop_unsettled WHERE copy_id = ?1
  AND EXISTS (SELECT 1 FROM onedrop_copy c
      WHERE c.id = ?1 AND c.value = ?3 AND c.settled_at IS NOT NULL
        AND (c.due_at IS NULL OR c.placed_at <= {before(?2)}))";

/// Of [`Audit::accounts_to_verify`].
pub(crate) fn accounts_of_window() -> String {
    ACCOUNTS.replace("{open}", &OPEN.replace("{of}", "c.account > ?4")).replace("{first}", FIRST)
}

/// Of [`Audit::copies_to_verify`].
pub(crate) fn copies_of_window() -> String {
    COPIES
        .replace("{open}", &OPEN.replace("{of}", "c.account = ?4"))
        .replace("{recent}", RECENT)
        .replace("{first}", FIRST)
        .replace("{page}", PAGE)
        .replace("{page_of_open}", &PAGE.replace("c.", "o."))
        .replace("{copy}", COPY)
}

/// From when on the message of a copy of the window may have been recorded.
fn claimed_since(window: &Window) -> SystemTime {
    window.since.checked_sub(CLAIMED_WITHIN).map_or(UNIX_EPOCH, |since| since.max(UNIX_EPOCH))
}

impl<S: SqlSession + 'static> Audit for PooledLedger<S> {
    fn accounts_to_verify(
        &self,
        window: &Window,
        after: Option<&str>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<String>, LedgerError> {
        let query = sql!(
            accounts_of_window(),
            window.since,
            window.all,
            claimed_since(window),
            after.unwrap_or_default(),
            limit,
        );
        self.call(until, |session| session.rows(&query)?.iter().map(|row| row.cell(0)).collect())
    }

    fn copies_to_verify(
        &self,
        window: &Window,
        account: &str,
        after: Option<&CopyOnRecord>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        let (message, copy) = after.map_or((0i64, 0i64), |last| (last.message, last.copy));
        let query = sql!(
            copies_of_window(),
            window.since,
            window.all,
            claimed_since(window),
            account,
            message,
            copy,
            limit,
        );
        self.call(until, |session| session.rows(&query)?.iter().map(rows::copy_on_record).collect())
    }

    fn settle(
        &self,
        copy: &CopyOnRecord,
        receipt: &Receipt,
        until: Instant,
    ) -> Result<bool, LedgerError> {
        let Standing::Placed { receipt: was, .. } = &copy.standing else { return Ok(false) };
        let (id, value) = (copy.copy, copy.value.bytes());
        let statements = [
            sql!(
                SETTLE,
                id,
                copy.epoch,
                receipt.kind(),
                receipt.text(),
                was.kind(),
                was.text(),
                value
            ),
            sql!(GONE, id, WATCH.as_secs_f64(), value),
        ];
        self.call(until, |session| Ok(has_changed(&session.write(&statements)?, 0)))
    }

    fn kept_bytes(&self, message: i64, until: Instant) -> Result<Option<Vec<u8>>, LedgerError> {
        self.call(until, |session| session.bytes_of(message, Kept::ForCopies))
    }
}
