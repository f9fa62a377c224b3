//! The queries of `onedrop verify`.

use std::time::Instant;

use rusqlite::params;

use super::copies::copys_lease_end;
use super::{SqliteLedger, first, read};
use crate::ledger::{Audit, CopyOnRecord, LedgerError, Standing, Window, rows};
use crate::receipt::Receipt;

/// Of one row; ?6 is the time, ?7 that of the boot whose id is ?8.
const COPY: &str = "
SELECT c.id, c.message_id, m.message_id, m.id_hash, m.digest, m.size_bytes, m.recorded_at,
       c.account, c.mailbox, c.shared, c.epoch, c.owner, c.settled_at IS NOT NULL, ?6 - c.placed_at,
       coalesce({lease_end} > ?7, 0), c.leased_until IS NOT NULL, c.in_doubt,
       c.uid_validity, c.uid, c.file_name,
       c.epoch > 1 OR c.prior_doubt OR c.placed_at IS NULL AND c.in_doubt, c.value, c.lease_ms,
       k.why, CAST(c.due_at AS INTEGER), c.due_at <= ?6, c.by_sender, c.found_by_look
FROM onedrop_copy c JOIN onedrop_message m ON m.id = c.message_id
     LEFT JOIN onedrop_kept k ON k.message_id = c.message_id AND c.shared AND c.placed_at IS NULL";

const COPIES: &str = "
WHERE (m.recorded_at >= ?1 OR k.why IS NOT NULL
       OR c.placed_at IS NULL AND ?6 - ?7 + {lease_end} >= ?1
       OR c.placed_at IS NOT NULL AND (c.epoch > 1 OR c.prior_doubt) AND c.settled_at IS NULL)
  AND (?2 IS NULL OR c.account = ?2) AND (?3 IS NULL OR (c.account, c.id) > (?3, ?4))
ORDER BY c.account, c.id LIMIT ?5";

/// Only if the row is unchanged.
const SETTLE: &str = "
UPDATE onedrop_copy SET settled_at = ?10, uid_validity = ?3, uid = ?4, file_name = ?5
WHERE id = ?1 AND epoch = ?2 AND value = ?9 AND placed_at IS NOT NULL
  AND uid_validity IS ?6 AND uid IS ?7 AND file_name IS ?8";

/// The query for copies that meet the condition.
pub(super) fn copies(condition: &str) -> String {
    let lease_end = copys_lease_end("c.", "?7", "?8");
    format!("{COPY}{condition}").replace("{lease_end}", &lease_end)
}

impl Audit for SqliteLedger {
    fn copies_to_verify(
        &self,
        window: &Window<'_>,
        after: Option<&CopyOnRecord>,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<CopyOnRecord>, LedgerError> {
        let account = after.map(|last| &last.destination.account);
        let (since, copy) = (rows::secs(window.since), after.map(|last| last.copy));
        self.call(until, |session| {
            let (now, boot) = (rows::secs(session.clocks.wall()), session.clocks.boot()?);
            let params =
                params![since, window.account, account, copy, limit, now, boot.secs, boot.id];
            read(&session.connection, &copies(COPIES), params, |row| rows::copy_on_record(row))
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
                let params = params![id, epoch, is.0, is.1, is.2, was.0, was.1, was.2, value, now];
                Ok(tx.execute(SETTLE, params)? > 0)
            })
        })
    }

    fn kept_bytes(&self, message: i64, until: Instant) -> Result<Option<Vec<u8>>, LedgerError> {
        let sql = "SELECT bytes FROM onedrop_kept WHERE message_id = ?1";
        self.call(until, |session| first(&session.connection, sql, [message]))
    }
}
