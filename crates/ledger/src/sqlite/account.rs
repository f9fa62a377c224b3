//! The administrator's query for an account, in the ledger's file or in one of another program's.

use std::path::PathBuf;
use std::time::Instant;

use rusqlite::{Connection, OpenFlags, ToSql};

use super::Classified;
use super::SqliteLedger;
use crate::rows::SqlRow;
use onedrop_core::connections::Connections;
use onedrop_core::directory::{Asked, Home};
use onedrop_core::ledger::{Accounts, LedgerError};

/// A database of another program, which is only read, and opened for each question: it may be
/// replaced by another file meanwhile.
pub struct SqliteAccounts {
    path: PathBuf,
}

impl SqliteAccounts {
    /// Opens nothing yet.
    pub fn new(path: PathBuf) -> SqliteAccounts {
        SqliteAccounts { path }
    }
}

impl Accounts for SqliteAccounts {
    fn account_by_query(
        &self,
        query: &str,
        asked: &Asked,
        until: Instant,
    ) -> Result<Option<Home>, LedgerError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags).map_err(|error| {
            LedgerError::Unavailable(format!("{}: {error}", self.path.display()))
        })?;
        connection.busy_timeout(until.saturating_duration_since(Instant::now())).classified()?;
        by_query(&connection, query, asked)
    }
}

impl Connections for SqliteAccounts {}

impl Accounts for SqliteLedger {
    fn account_by_query(
        &self,
        query: &str,
        asked: &Asked,
        until: Instant,
    ) -> Result<Option<Home>, LedgerError> {
        self.call(until, |session| by_query(&session.connection, query, asked))
    }
}

fn by_query(
    connection: &Connection,
    query: &str,
    asked: &Asked,
) -> Result<Option<Home>, LedgerError> {
    let mut statement = connection.prepare(query).classified()?;
    // SQLite numbers $NAMEs by appearance, so each is bound by its name.
    let mut parameters: Vec<(&str, &dyn ToSql)> =
        vec![("$1", &asked.address), ("$2", &asked.given)];
    parameters.retain(|(name, _)| matches!(statement.parameter_index(name), Ok(Some(_))));
    let has_others = statement.parameter_count() > parameters.len();
    let columns = statement.column_count();
    if !statement.readonly() || !(1..=2).contains(&columns) || has_others {
        let text = "directory.query must be a SELECT of one column or two, with $1 and $2 only";
        return Err(LedgerError::Refused(text.to_owned()));
    }
    if parameters.is_empty() {
        let text = "directory.query does not use $1: in quotes it is a text like any other";
        return Err(LedgerError::Refused(text.to_owned()));
    }
    let mut rows = statement.query(parameters.as_slice()).classified()?;
    let Some(row) = rows.next().classified()? else { return Ok(None) };
    let text = |at: usize| match at < columns {
        true => row.cell::<Option<String>>(at).map(|text| text.filter(|text| !text.is_empty())),
        false => Ok(None),
    };
    let mailbox = text(1)?;
    Ok(text(0)?.map(|account| Home { account, mailbox }))
}
