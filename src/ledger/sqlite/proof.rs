//! What was proven of mail servers: see [`Ledger::is_proven`](crate::ledger::Ledger::is_proven).

use rusqlite::{Connection, OptionalExtension, params};

use crate::ledger::LedgerError;
use crate::login::Way;

pub(super) fn is_proven(connection: &Connection, way: &Way) -> Result<bool, LedgerError> {
    let found = connection
        .query_row(
            "SELECT 1 FROM onedrop_proof WHERE server = ?1 AND login_user = ?2 AND way = ?3",
            params![way.server, way.login_user, way.form],
            |_| Ok(()),
        )
        .optional()?;
    Ok(found.is_some())
}

pub(super) fn note(tx: &Connection, way: &Way, holds: bool, host: &str) -> Result<(), LedgerError> {
    let Way { server, login_user, form } = way;
    match holds {
        true => tx.execute(
            "INSERT INTO onedrop_proof (server, login_user, way, host, proven_at)
             VALUES (?1, ?2, ?3, ?4, unixepoch('subsec'))
             ON CONFLICT DO UPDATE SET proven_at = excluded.proven_at, host = excluded.host",
            params![server, login_user, form, host],
        )?,
        false => tx.execute(
            "DELETE FROM onedrop_proof WHERE server = ?1 AND login_user = ?2 AND way = ?3",
            params![server, login_user, form],
        )?,
    };
    Ok(())
}
