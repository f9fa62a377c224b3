//! Proofs about mail servers, and the copies that `onedrop check` looks for.

use std::time::Instant;

use super::MariadbLedger;
use super::attempts::INDEXED;
use super::statement::{SqlBatch, values};
use crate::rows;
use onedrop_core::directory::Destination;
use onedrop_core::ledger::{LedgerError, Proofs};
use onedrop_core::login::Way;
use onedrop_core::receipt::Receipt;
use onedrop_core::text;

const IS_PROVEN: &str =
    "SELECT 1 FROM onedrop_proof WHERE server = ?1 AND login_user = ?2 AND way = ?3";
const PUT: &str = "
INSERT INTO onedrop_proof (server, login_user, way, host, proven_at)
VALUES (?1, ?2, ?3, ?4, UTC_TIMESTAMP(6))
ON DUPLICATE KEY UPDATE proven_at = VALUES(proven_at), host = VALUES(host)";
const TAKE: &str = "DELETE FROM onedrop_proof WHERE server = ?1 AND login_user = ?2 AND way = ?3";

impl Proofs for MariadbLedger {
    fn is_proven(&self, way: &Way, until: Instant) -> Result<bool, LedgerError> {
        let Way { server, login_user, form } = way;
        self.call(until, |connection| {
            let values = values![server.as_bytes(), login_user.as_bytes(), form.as_bytes()];
            Ok(!connection.query(IS_PROVEN, values)?.is_empty())
        })
    }

    fn note_proof(
        &self,
        way: &Way,
        holds: bool,
        host: &str,
        until: Instant,
    ) -> Result<(), LedgerError> {
        let Way { server, login_user, form } = way;
        self.call(until, |connection| {
            let sql = if holds { PUT } else { TAKE };
            let host = text::within(host, INDEXED);
            let values = values![server.as_bytes(), login_user.as_bytes(), form.as_bytes(), host];
            connection.write(SqlBatch::of(sql, values)).map(drop)
        })
    }

    fn latest_copies(
        &self,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<(Destination, Receipt)>, LedgerError> {
        let sql = "SELECT account, mailbox, shared, uid_validity, uid, file_name FROM onedrop_copy
                   WHERE placed_at IS NOT NULL ORDER BY id DESC LIMIT ?1";
        self.call(until, |connection| {
            connection.query(sql, values![limit])?.iter().map(rows::placed_copy).collect()
        })
    }
}
