//! The schema's version, in one row, which every record of a message reads.

use rusqlite::Connection;

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

fn is_no_table(error: &LedgerError) -> bool {
    error.to_string().contains("no such table")
}
