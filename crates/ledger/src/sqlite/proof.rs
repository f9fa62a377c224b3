//! Proofs about mail servers, and the copies that `onedrop check` looks for.

use std::time::Instant;

use rusqlite::params;

use super::Classified;
use super::{SqliteLedger, first, read};
use crate::rows;
use onedrop_core::directory::Destination;
use onedrop_core::ledger::{LedgerError, Proofs};
use onedrop_core::login::Way;
use onedrop_core::receipt::Receipt;

impl Proofs for SqliteLedger {
    fn is_proven(&self, way: &Way, until: Instant) -> Result<bool, LedgerError> {
        let sql = "SELECT 1 FROM onedrop_proof WHERE server = ?1 AND login_user = ?2 AND way = ?3";
        let params = [&way.server, &way.login_user, &way.form];
        self.call(until, |session| Ok(first::<i64>(&session.connection, sql, params)?.is_some()))
    }

    fn note_proof(
        &self,
        way: &Way,
        holds: bool,
        host: &str,
        until: Instant,
    ) -> Result<(), LedgerError> {
        let Way { server, login_user, form } = way;
        let note = |tx: &rusqlite::Connection, _| {
            match holds {
                true => tx.execute(
                    "INSERT INTO onedrop_proof (server, login_user, way, host, proven_at)
                     VALUES (?1, ?2, ?3, ?4, unixepoch('subsec'))
                     ON CONFLICT DO UPDATE SET proven_at = excluded.proven_at,
                         host = excluded.host",
                    params![server, login_user, form, host],
                ).classified()?,
                false => tx.execute(
                    "DELETE FROM onedrop_proof WHERE server = ?1 AND login_user = ?2 AND way = ?3",
                    params![server, login_user, form],
                ).classified()?,
            };
            Ok(())
        };
        self.call(until, |session| session.write(note))
    }

    fn latest_copies(
        &self,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<(Destination, Receipt)>, LedgerError> {
        let sql = "SELECT account, mailbox, shared, uid_validity, uid, file_name FROM onedrop_copy
                   WHERE placed_at IS NOT NULL ORDER BY id DESC LIMIT ?1";
        self.call(until, |session| {
            read(&session.connection, sql, [limit], |row| rows::placed_copy(row))
        })
    }
}
