//! Proofs about mail servers, and the copies that `onedrop check` looks for.

use std::time::Instant;

use postgres::types::Type;

use super::PostgresLedger;
use super::connection::Statement;
use crate::rows;
use onedrop_core::directory::Destination;
use onedrop_core::ledger::{LedgerError, Proofs};
use onedrop_core::login::Way;
use onedrop_core::receipt::Receipt;

const IS_PROVEN: &str =
    "SELECT 1 FROM onedrop_proof WHERE server = $1 AND login_user = $2 AND way = $3";
const PUT: &str =
    "INSERT INTO onedrop_proof (server, login_user, way, host) VALUES ($1, $2, $3, $4)
     ON CONFLICT (server, login_user, way) DO UPDATE SET proven_at = clock_timestamp(),
     host = excluded.host";
const TAKE: &str = "DELETE FROM onedrop_proof WHERE server = $1 AND login_user = $2 AND way = $3";

fn of<'a>(sql: &'a str, way: &'a Way) -> Statement<'a> {
    Statement::new(sql)
        .with(&way.server, Type::TEXT)
        .with(&way.login_user, Type::TEXT)
        .with(&way.form, Type::TEXT)
}

impl Proofs for PostgresLedger {
    fn is_proven(&self, way: &Way, until: Instant) -> Result<bool, LedgerError> {
        self.call(until, |connection| Ok(!connection.query(of(IS_PROVEN, way))?.is_empty()))
    }

    fn note_proof(
        &self,
        way: &Way,
        holds: bool,
        host: &str,
        until: Instant,
    ) -> Result<(), LedgerError> {
        self.call(until, |connection| {
            let statement = match holds {
                true => of(PUT, way).with(host, Type::TEXT),
                false => of(TAKE, way),
            };
            connection.write(&[statement]).map(drop)
        })
    }

    fn latest_copies(
        &self,
        limit: u32,
        until: Instant,
    ) -> Result<Vec<(Destination, Receipt)>, LedgerError> {
        let sql = "SELECT account, mailbox, shared, uid_validity, uid, file_name FROM onedrop_copy
                   WHERE placed_at IS NOT NULL ORDER BY id DESC LIMIT $1";
        self.call(until, |connection| {
            let statement = Statement::new(sql).with(i64::from(limit), Type::INT8);
            connection.query(statement)?.iter().map(rows::placed_copy).collect()
        })
    }
}
