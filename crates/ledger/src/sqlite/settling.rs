//! The queries of `onedrop settle`.

use std::time::{Duration, Instant};

use rusqlite::params;
use rusqlite::types::Null;

use super::Classified;
use super::{SqliteLedger, copies, first, read, verify};
use crate::rows;
use onedrop_core::ledger::{Claim, CopyOnRecord, LedgerError, Settling};
use onedrop_core::receipt::Receipt;

/// CROSS JOIN keeps SQLite from reading all copies.
const COPIES: &str = "
WHERE c.id IN (
    SELECT w.id FROM onedrop_unsettled u CROSS JOIN onedrop_copy w ON w.id = u.copy_id
    WHERE u.look_at <= ?6 AND w.due_at <= ?6 AND w.placed_at IS NULL
    UNION
    SELECT w.id FROM onedrop_kept CROSS JOIN onedrop_copy w USING (message_id)
    WHERE w.shared AND w.placed_at IS NULL AND w.due_at IS NULL)
  AND (?3 IS NULL OR (c.account, c.id) > (?3, ?4))
ORDER BY c.account, c.id LIMIT ?5";

const WATCHED: &str = "
WHERE c.id IN (SELECT copy_id FROM onedrop_unsettled WHERE look_at <= ?6)
  AND c.placed_at IS NOT NULL AND c.due_at IS NOT NULL
  AND (NOT c.by_sender OR c.prior_doubt OR c.settled_at IS NULL)
  AND (?3 IS NULL OR (c.account, c.id) > (?3, ?4))
ORDER BY c.account, c.id LIMIT ?5";

const LOOK_AGAIN: &str = "
UPDATE onedrop_unsettled SET look_at = ?3 WHERE copy_id = ?1
  AND EXISTS (SELECT 1 FROM onedrop_copy WHERE id = ?1 AND value = ?2)";

const LOOK_NO_MORE: &str = "
DELETE FROM onedrop_unsettled WHERE copy_id = ?1
  AND EXISTS (SELECT 1 FROM onedrop_copy WHERE id = ?1 AND value = ?2 AND placed_at IS NOT NULL
      AND (settled_at IS NOT NULL OR epoch = 1 AND NOT prior_doubt))";

/// A copy of ours may still come to stand where an attempt ended in doubt.
const LEFT: &str = "
DELETE FROM onedrop_unsettled WHERE copy_id = ?1
  AND EXISTS (SELECT 1 FROM onedrop_copy WHERE id = ?1 AND by_sender AND settled_at IS NOT NULL
      AND NOT prior_doubt)";

/// Only if the row is as it was, or as this makes it.
const LEAVE: &str = "
UPDATE onedrop_copy SET placed_at = coalesce(placed_at, ?11),
    placed_epoch = CASE WHEN placed_at IS NULL THEN epoch ELSE placed_epoch END,
    leased_until = NULL, lease_boot = NULL, in_doubt = 0, found_by_look = 0, by_sender = 1,
    settled_at = ?11, uid_validity = ?5, uid = ?6, file_name = ?7
WHERE id = ?1 AND value = ?2 AND epoch = ?3
  AND ((placed_at IS NOT NULL) = ?4
       AND uid_validity IS ?8 AND uid IS ?9 AND file_name IS ?10
       OR by_sender AND uid_validity IS ?5 AND uid IS ?6 AND file_name IS ?7)";

const NAMESAKE: &str = "
SELECT EXISTS (SELECT 1 FROM onedrop_message m JOIN onedrop_copy c ON c.message_id = m.id
    WHERE substr(m.id_hash, 1, 8) = substr(?1, 1, 8) AND m.id_hash = ?1 AND m.id <> ?2
      AND c.account = ?3 AND c.mailbox = ?4)";

/// Of [`Settling::copies_to_settle`].
pub(super) fn copies_to_settle(watched: bool) -> String {
    verify::copies(if watched { WATCHED } else { COPIES })
}

impl Settling for SqliteLedger {
    fn copies_to_settle(
        &self,
        watched: bool,
        after: Option<&CopyOnRecord>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        let account = after.map(|last| &last.destination.account);
        let copy = after.map(|last| last.copy);
        let sql = copies_to_settle(watched);
        self.call(until, |session| {
            let (now, boot) = (rows::secs(session.clocks.wall()), session.clocks.boot()?);
            let params = params![Null, Null, account, copy, limit, now, boot.secs, boot.id];
            read(&session.connection, &sql, params, |row| rows::copy_on_record(row))
        })
    }

    fn look_again(
        &self,
        copy: &CopyOnRecord,
        after: Option<Duration>,
        until: Instant,
    ) -> Result<(), LedgerError> {
        let (id, value) = (copy.copy, copy.value.bytes());
        self.call(until, |session| {
            session.write(|tx, now| {
                match after {
                    Some(after) => tx
                        .execute(LOOK_AGAIN, params![id, value, now + after.as_secs_f64()])
                        .classified()?,
                    None => tx.execute(LOOK_NO_MORE, params![id, value]).classified()?,
                };
                Ok(())
            })
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
        let (id, value, epoch) = (claim.copy, claim.value.bytes(), claim.epoch);
        self.call(until, |session| {
            session.write(|tx, now| {
                let params = params![
                    id,
                    value,
                    epoch,
                    was.is_some(),
                    is.0,
                    is.1,
                    is.2.clone(),
                    old.0,
                    old.1,
                    old.2.clone(),
                    now
                ];
                let is_left = tx.execute(LEAVE, params).classified()? > 0;
                if is_left {
                    copies::forget_kept(tx, claim)?;
                    tx.execute(LEFT, [id]).classified()?;
                }
                Ok(is_left)
            })
        })
    }

    fn has_namesake(&self, copy: &CopyOnRecord, until: Instant) -> Result<bool, LedgerError> {
        let (place, id_hash) = (&copy.destination, copy.identity.id_hash);
        self.call(until, |session| {
            let params = params![id_hash, copy.message, place.account, place.mailbox];
            Ok(first(&session.connection, NAMESAKE, params)? == Some(true))
        })
    }
}
