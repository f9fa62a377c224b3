//! The administrator's query for an account. It runs in a read-only transaction and returns one
//! column of text, whatever types the site's tables have (the client would have to look up another
//! type in the catalogue, with a prepared statement).

use std::time::Instant;

use postgres::types::Type;

use super::PostgresLedger;
use super::connection::{Connection, Statement};
use super::errors::is_late;
use crate::directory::Asked;
use crate::ledger::rows::SqlRow;
use crate::ledger::{Accounts, LedgerError};

impl Accounts for PostgresLedger {
    fn account_by_query(
        &self,
        query: &str,
        asked: &Asked,
        until: Instant,
    ) -> Result<Option<String>, LedgerError> {
        self.call(until, |connection| by_query(connection, query, asked))
    }
}

fn by_query(
    connection: &mut Connection,
    query: &str,
    asked: &Asked,
) -> Result<Option<String>, LedgerError> {
    if asked.given.contains('\0') {
        return Ok(None); // text in Postgres cannot hold it
    }
    // The line end closes a comment at the end of the query.
    let query = query.trim_end_matches(|c: char| c == ';' || c.is_whitespace());
    let sql = format!("SELECT unnest(ARRAY({query}\n)::text[])");
    // Postgres refuses a parameter that the statement does not use.
    let mut statement = Statement::new(sql).with(&asked.address, Type::TEXT);
    if query.contains("$2") {
        statement = statement.with(&asked.given, Type::TEXT);
    }
    let rows = connection.query(statement).map_err(explained)?;
    let mut accounts = Vec::new();
    for row in &rows {
        accounts.extend(row.cell::<Option<String>>(0)?.filter(|account| !account.is_empty()));
    }
    accounts.dedup();
    match accounts.len() {
        0 | 1 => Ok(accounts.pop()),
        _ => Err(LedgerError::Refused(
            "the directory's query names more than one account".to_owned(),
        )),
    }
}

fn explained(error: LedgerError) -> LedgerError {
    match error {
        LedgerError::Refused(text) if text.contains("must return only one column") => {
            LedgerError::Refused(
                "the directory's query must return one column, the account".to_owned(),
            )
        }
        late if is_late(&late) => LedgerError::TookTooLong("directory.query".to_owned()),
        // On a standby the same error means another thing; this transaction is always read-only.
        LedgerError::Unavailable(text) if text.starts_with("25006") => {
            LedgerError::Refused(format!("the directory's query must not write: {text}"))
        }
        LedgerError::Refused(text) => {
            LedgerError::Refused(format!("the directory's query: {text}"))
        }
        other => other,
    }
}
