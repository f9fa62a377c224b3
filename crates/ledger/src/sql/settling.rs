//! The queries of `onedrop settle`.

use std::time::{Duration, Instant};

use super::{SqlSession, claims, has_changed, sql, verify};
use crate::PooledLedger;
use crate::rows;
use onedrop_core::ledger::{Claim, CopyOnRecord, LedgerError, SETTLED_WITHIN, Settling};
use onedrop_core::receipt::Receipt;

/// What is due, and what is kept.
const COPIES: &str = "
WITH wanted AS (
    SELECT id FROM (
        SELECT c.id FROM onedrop_unsettled u {with_copies(c.id = u.copy_id)}
        WHERE u.look_at <= {now} AND c.placed_at IS NULL AND c.due_at <= {now} AND {page}) due
    UNION
    SELECT id FROM (
        SELECT c.id FROM onedrop_kept k {with_copies(c.message_id = k.message_id)}
        WHERE c.shared AND c.placed_at IS NULL AND c.due_at IS NULL AND {page}) kept
)
{copy}
ORDER BY c.account, c.id LIMIT ?3";

const WATCHED: &str = "
WITH wanted AS (
    SELECT c.id FROM onedrop_unsettled u {with_copies(c.id = u.copy_id)}
    WHERE u.look_at <= {now} AND c.placed_at IS NOT NULL AND c.due_at IS NOT NULL
      AND (NOT c.by_sender OR c.prior_doubt OR c.settled_at IS NULL) AND {page}
)
{copy}
ORDER BY c.account, c.id LIMIT ?3";

/// The first term is for the index. ?4: how old a message may be.
const DOUBTS: &str = "
WITH wanted AS (
    SELECT c.id FROM onedrop_copy c {copy_key}
    WHERE c.message_id >= {first}
      AND c.placed_at IS NULL AND {lease_left(c.)} <= 0 AND NOT c.shared AND c.due_at IS NULL
      AND {page}
)
{copy}
ORDER BY c.account, c.id LIMIT ?3";

const PAGE: &str = "(?1 IS NULL OR c.account > ?1 OR c.account = ?1 AND c.id > ?2)
    ORDER BY c.account, c.id LIMIT ?3";

const LOOK_AGAIN: &str = "
UPDATE onedrop_unsettled SET look_at = {later(?3)} WHERE copy_id = ?1
  AND EXISTS (SELECT 1 FROM onedrop_copy c WHERE c.id = ?1 AND c.value = ?2)";

const LOOK_NO_MORE: &str = "
DELETE FROM onedrop_unsettled WHERE copy_id = ?1
  AND EXISTS (SELECT 1 FROM onedrop_copy c
      WHERE c.id = ?1 AND c.value = ?2 AND c.placed_at IS NOT NULL
        AND (c.settled_at IS NOT NULL OR c.by_sender OR NOT {may_be_double}))";

/// Only if the row is as it was, or as a call before has made it. MariaDB's assignments see those
/// before them.
const LEAVE: &str = "
UPDATE onedrop_copy
SET placed_epoch = CASE WHEN placed_at IS NULL THEN epoch ELSE placed_epoch END,
    placed_at = coalesce(placed_at, {now}), {no_lease}, in_doubt = FALSE,
    found_by_look = FALSE, by_sender = TRUE, settled_at = {now},
    receipt_kind = ?5, receipt = ?6
WHERE id = ?1 AND value = ?2 AND epoch = ?3
  AND ((placed_at IS NOT NULL) = ?4 AND {same(receipt_kind, ?7)} AND {same(receipt, ?8)}
       OR by_sender AND receipt_kind = ?5 AND receipt = ?6)";

/// The message of a shared copy.
const SHARED_BY: &str = "(SELECT s.message_id FROM onedrop_copy s WHERE s.id = ?1 AND s.shared)";

/// A copy of ours may still come to stand where an attempt ended in doubt.
const LEFT: &str = "
DELETE FROM onedrop_unsettled WHERE copy_id = ?1
  AND EXISTS (SELECT 1 FROM onedrop_copy c
      WHERE c.id = ?1 AND c.by_sender AND c.settled_at IS NOT NULL AND NOT c.prior_doubt)";

const NAMESAKE: &str = "
SELECT 1 FROM onedrop_message m JOIN onedrop_copy c ON c.message_id = m.id
WHERE {hashed(m.id_hash, ?1)} AND m.id <> ?2 AND c.account = ?3
  AND (c.shared OR c.mailbox <> 'INBOX' AND substr(c.mailbox, 1, 6) <> ?4) LIMIT 1";

/// Of [`Settling::copies_to_settle`].
pub(crate) fn copies_to_settle(watched: bool) -> String {
    let sql = if watched { WATCHED } else { COPIES };
    sql.replace("{page}", PAGE).replace("{copy}", verify::COPY)
}

/// Of [`Settling::doubts_to_settle`].
pub(crate) fn doubts_to_settle() -> String {
    let first = verify::FIRST.replace("?3", "{before(?4)}");
    DOUBTS.replace("{first}", &first).replace("{page}", PAGE).replace("{copy}", verify::COPY)
}

impl<S: SqlSession + 'static> Settling for PooledLedger<S> {
    fn copies_to_settle(
        &self,
        watched: bool,
        after: Option<&CopyOnRecord>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        let query = sql!(
            copies_to_settle(watched),
            after.map(|last| last.destination.account.as_str()),
            after.map(|last| last.copy),
            limit,
        );
        self.call(until, |session| session.rows(&query)?.iter().map(rows::copy_on_record).collect())
    }

    fn doubts_to_settle(
        &self,
        after: Option<&CopyOnRecord>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        let query = sql!(
            doubts_to_settle(),
            after.map(|last| last.destination.account.as_str()),
            after.map(|last| last.copy),
            limit,
            SETTLED_WITHIN.as_secs_f64(),
        );
        self.call(until, |session| session.rows(&query)?.iter().map(rows::copy_on_record).collect())
    }

    fn look_again(
        &self,
        copy: &CopyOnRecord,
        after: Option<Duration>,
        until: Instant,
    ) -> Result<(), LedgerError> {
        let (id, value) = (copy.copy, copy.value.bytes());
        let statement = match after {
            Some(after) => sql!(LOOK_AGAIN, id, value, after.as_secs_f64()),
            None => sql!(LOOK_NO_MORE, id, value),
        };
        self.call(until, |session| session.change(&statement).map(drop))
    }

    fn leave_to_sender(
        &self,
        claim: &Claim,
        was: Option<&Receipt>,
        receipt: &Receipt,
        until: Instant,
    ) -> Result<bool, LedgerError> {
        let (id, value) = (claim.copy, claim.value.bytes());
        let is_placed = was.is_some();
        let leave = sql!(
            LEAVE,
            id,
            value,
            claim.epoch,
            is_placed,
            receipt.kind(),
            receipt.text(),
            was.map(Receipt::kind),
            was.map(Receipt::text),
        );
        let [lock_kept, forget_kept] = claims::forget_kept(SHARED_BY, id);
        let statements = [leave, lock_kept, forget_kept, sql!(LEFT, id)];
        self.call(until, |session| Ok(has_changed(&session.write(&statements)?, 0)))
    }

    fn has_namesake(&self, copy: &CopyOnRecord, until: Instant) -> Result<bool, LedgerError> {
        let (id_hash, account) = (&copy.identity.id_hash, &copy.destination.account);
        // A variant of INBOX.
        let query = sql!(NAMESAKE, id_hash, copy.message, account, "INBOX\\");
        self.call(until, |session| Ok(!session.rows(&query)?.is_empty()))
    }
}
