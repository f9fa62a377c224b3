//! Proofs about mail servers, and the copies that `onedrop check` looks for.

use std::time::Instant;

use super::{SqlSession, sql};
use crate::PooledLedger;
use crate::rows::{self, INDEXED, SqlRow};
use onedrop_core::directory::Destination;
use onedrop_core::ledger::{LedgerError, Proofs};
use onedrop_core::login::Way;
use onedrop_core::receipt::Receipt;
use onedrop_core::text;

impl<S: SqlSession + 'static> Proofs for PooledLedger<S> {
    fn is_proven(&self, way: &Way, until: Instant) -> Result<bool, LedgerError> {
        let Way { server, login_user, form } = way;
        let query = sql!(
            "SELECT 1 FROM onedrop_proof WHERE server = ?1 AND login_user = ?2 AND way = ?3",
            server,
            login_user,
            form,
        );
        self.call(until, |session| Ok(!session.rows(&query)?.is_empty()))
    }

    fn proven_forms(
        &self,
        server: &str,
        login_user: &str,
        until: Instant,
    ) -> Result<Vec<String>, LedgerError> {
        let query = sql!(
            "SELECT way FROM onedrop_proof WHERE server = ?1 AND login_user = ?2",
            server,
            login_user,
        );
        self.call(until, |session| session.rows(&query)?.iter().map(|row| row.cell(0)).collect())
    }

    fn note_proof(
        &self,
        way: &Way,
        holds: bool,
        host: &str,
        until: Instant,
    ) -> Result<(), LedgerError> {
        let Way { server, login_user, form } = way;
        let statement = match holds {
            true => sql!(
                "INSERT INTO onedrop_proof (server, login_user, way, host, proven_at)
                 VALUES (?1, ?2, ?3, ?4, {now})
                 {upsert(server, login_user, way)} proven_at = {new(proven_at)},
                     host = {new(host)}",
                server,
                login_user,
                form,
                text::within(host, INDEXED),
            ),
            false => sql!(
                "DELETE FROM onedrop_proof WHERE server = ?1 AND login_user = ?2 AND way = ?3",
                server,
                login_user,
                form,
            ),
        };
        self.call(until, |session| session.change(&statement).map(drop))
    }

    fn latest_copies(
        &self,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<(Destination, Receipt)>, LedgerError> {
        let query = sql!(
            "SELECT account, mailbox, shared, receipt_kind, receipt FROM onedrop_copy
             WHERE placed_at IS NOT NULL ORDER BY id DESC LIMIT ?1",
            limit,
        );
        self.call(until, |session| session.rows(&query)?.iter().map(rows::placed_copy).collect())
    }
}
