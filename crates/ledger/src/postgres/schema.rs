//! The schema's version, in one row, which every record of a message reads.

use postgres::Row;

use super::connection::{Connection, Statement};
use crate::rows::{self, SqlRow};
use onedrop_core::ledger::{LedgerError, SchemaVersion};

/// SQLSTATE undefined_table and undefined_function.
const NOT_THERE: [&str; 2] = ["42P01", "42883"];

const VERSION: &str = "SELECT version::bigint, oldest_program::bigint FROM onedrop_ledger";

/// Of ledgers before the base version, which have no `onedrop_ledger`.
const OLD_VERSION: &str = "SELECT max(version)::bigint FROM onedrop_schema";

/// Whether this is how Postgres refuses a statement that another schema does not know.
pub(super) fn is_of_another(refusal: &str) -> bool {
    NOT_THERE.iter().any(|code| refusal.starts_with(code))
}

/// [`Schema::schema_version`](onedrop_core::ledger::Schema::schema_version).
pub(super) fn version(connection: &mut Connection) -> Result<SchemaVersion, LedgerError> {
    match connection.query(Statement::new(VERSION)) {
        Ok(rows) => seen(connection, rows.first()),
        Err(LedgerError::Refused(why)) if is_of_another(&why) => {
            match connection.query(Statement::new(OLD_VERSION)) {
                Ok(rows) => {
                    let found = rows.first().map_or(Ok(None), |row| row.cell::<Option<i64>>(0))?;
                    Ok(connection.program().sees_bare(found.unwrap_or(0)))
                }
                Err(LedgerError::Refused(why)) if is_of_another(&why) => {
                    Ok(connection.program().sees_bare(0))
                }
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

fn seen(connection: &Connection, row: Option<&Row>) -> Result<SchemaVersion, LedgerError> {
    let row = row.ok_or_else(rows::no_ledger)?;
    Ok(connection.program().sees(row.cell(0)?, row.cell(1)?))
}
