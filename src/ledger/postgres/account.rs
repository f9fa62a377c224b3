//! The administrator's query for an account. It runs in a read-only transaction and returns one
//! column of text, whatever types the site's tables have (the client would have to look up another
//! type in the catalogue, with a prepared statement).

use postgres::types::Type;

use super::columns::cell;
use super::connection::{Connection, Statement};
use super::errors::is_late;
use crate::directory::Asked;
use crate::ledger::LedgerError;

/// [`Ledger::account_by_query`](crate::ledger::Ledger::account_by_query).
pub(super) fn by_query(
    connection: &mut Connection,
    query: &str,
    asked: &Asked,
) -> Result<Option<String>, LedgerError> {
    if asked.given.contains('\0') {
        return Ok(None); // text in Postgres cannot hold it
    }
    // The line end closes a comment at the end of the query.
    let query = query.trim_end_matches(|c: char| c == ';' || c.is_whitespace());
    let sql = format!("SELECT ARRAY({query}\n)::text[]");
    // Postgres refuses a parameter that the statement does not use.
    let (address, given) = (asked.address.as_str(), asked.given.as_str());
    let mut statement = Statement::new(&sql).with(&address, Type::TEXT);
    if query.contains("$2") {
        statement = statement.with(&given, Type::TEXT);
    }
    let rows = connection.read(&[statement]).map_err(explained)?;
    let answer: Vec<Option<String>> = match rows.first().and_then(|rows| rows.first()) {
        Some(row) => cell(row, 0)?,
        None => Vec::new(),
    };
    let mut accounts = answer.into_iter().flatten().filter(|account| !account.is_empty());
    let Some(account) = accounts.next() else { return Ok(None) };
    match accounts.all(|other| other == account) {
        true => Ok(Some(account)),
        false => Err(LedgerError::Refused(
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
