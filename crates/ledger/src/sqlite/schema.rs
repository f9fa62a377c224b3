//! The schema's version, and what the ledger keeps for all configurations: one row, which every
//! record of a message reads.

use rusqlite::Connection;

use super::Classified;
use super::{first, read};
use crate::rows::{self, SqlRow};
use onedrop_core::ledger::{LedgerError, Program, SchemaVersion};

/// [`Schema::schema_version`](onedrop_core::ledger::Schema::schema_version).
pub(super) fn version(
    connection: &Connection,
    program: &Program,
) -> Result<SchemaVersion, LedgerError> {
    let sql = "SELECT version, oldest_program FROM onedrop_ledger";
    match read(connection, sql, [], |row| Ok(program.sees(row.cell(0)?, row.cell(1)?))) {
        Ok(rows) => rows.into_iter().next().ok_or_else(rows::no_ledger),
        Err(error) if is_no_table(&error) => {
            // A ledger of before the base version, or none.
            match first(connection, "SELECT max(version) FROM onedrop_schema", []) {
                Ok(found) => Ok(program.sees_bare(found.flatten().unwrap_or(0))),
                Err(error) if is_no_table(&error) => Ok(program.sees_bare(0)),
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

/// [`Session::shared_config`](crate::session::Session::shared_config).
pub(super) fn shared_config(connection: &Connection) -> Result<Option<String>, LedgerError> {
    Ok(first(connection, "SELECT config FROM onedrop_ledger", [])?.flatten())
}

/// Where `read` is on record.
pub(super) fn share_config(
    tx: &Connection,
    json: &str,
    read: Option<&str>,
) -> Result<(), LedgerError> {
    let sql = "UPDATE onedrop_ledger SET config = ?1 WHERE config IS ?2";
    tx.execute(sql, rusqlite::params![json, read]).map(drop).classified()
}

fn is_no_table(error: &LedgerError) -> bool {
    error.to_string().contains("no such table")
}
