//! The administrator's query for an account. It runs in a read-only transaction; its columns come
//! back as text, whatever types and names they have in the site's tables (the client would have to
//! look up another type in the catalogue, with a prepared statement).

use std::time::Instant;

use postgres::types::Type;

use super::PostgresLedger;
use super::connection::{Connection, Statement};
use super::errors::is_late;
use crate::rows::SqlRow;
use onedrop_core::directory::{Asked, Home};
use onedrop_core::ledger::{Accounts, LedgerError};

impl Accounts for PostgresLedger {
    fn account_by_query(
        &self,
        query: &str,
        asked: &Asked,
        until: Instant,
    ) -> Result<Option<Home>, LedgerError> {
        self.call(until, |connection| by_query(connection, query, asked))
    }
}

fn by_query(
    connection: &mut Connection,
    query: &str,
    asked: &Asked,
) -> Result<Option<Home>, LedgerError> {
    if asked.given.contains('\0') {
        return Ok(None); // text in Postgres cannot hold it
    }
    // The line end closes a comment at the end of the query.
    let query = query.trim_end_matches(|c: char| c == ';' || c.is_whitespace());
    let sql = format!("{AS_TEXT}{query}\n) AS q) AS r");
    // Postgres refuses a parameter that the statement does not use.
    let mut statement = Statement::new(sql).with(&asked.address, Type::TEXT);
    if query.contains("$2") {
        statement = statement.with(&asked.given, Type::TEXT);
    }
    let rows = connection.query(statement).map_err(explained)?;
    let mut homes = Vec::new();
    for row in &rows {
        let text =
            |at| row.cell::<Option<String>>(at).map(|text| text.filter(|text| !text.is_empty()));
        if row.cell::<i32>(2)? > 2 {
            let text = "the directory's query must return one column, the account, or two, the \
                        account and a mailbox";
            return Err(LedgerError::Refused(text.to_owned()));
        }
        let mailbox = text(1)?;
        homes.extend(text(0)?.map(|account| Home { account, mailbox }));
    }
    homes.dedup();
    match homes.len() {
        0 | 1 => Ok(homes.pop()),
        _ => Err(LedgerError::Refused(
            "the directory's query names more than one account".to_owned(),
        )),
    }
}

/// The first two columns of a query, which follows, and how many it has. Blanks that only fill a
/// column up do not count.
const AS_TEXT: &str = "
SELECT v[1], v[2], cardinality(v) FROM (
    SELECT ARRAY(SELECT rtrim(e.value, ' ')
                 FROM json_each_text(row_to_json(q)) WITH ORDINALITY AS e (key, value, n)
                 ORDER BY e.n) AS v
    FROM (";

fn explained(error: LedgerError) -> LedgerError {
    match error {
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
