//! The administrator's query for an account.

use std::time::Instant;

use rusqlite::ToSql;

use super::SqliteLedger;
use crate::directory::Asked;
use crate::ledger::rows::SqlRow;
use crate::ledger::{Accounts, LedgerError};

impl Accounts for SqliteLedger {
    fn account_by_query(
        &self,
        query: &str,
        asked: &Asked,
        until: Instant,
    ) -> Result<Option<String>, LedgerError> {
        self.call(until, |session| {
            let mut statement = session.connection.prepare(query)?;
            // SQLite numbers $NAMEs by appearance, so each is bound by its name.
            let mut parameters: Vec<(&str, &dyn ToSql)> =
                vec![("$1", &asked.address), ("$2", &asked.given)];
            parameters.retain(|(name, _)| matches!(statement.parameter_index(name), Ok(Some(_))));
            let has_others = statement.parameter_count() > parameters.len();
            if !statement.readonly() || statement.column_count() != 1 || has_others {
                let text = "directory.query must be a SELECT of one column with $1 and $2 only";
                return Err(LedgerError::Refused(text.to_owned()));
            }
            let mut rows = statement.query(parameters.as_slice())?;
            let account: Option<String> = rows.next()?.map_or(Ok(None), |row| row.cell(0))?;
            Ok(account.filter(|account| !account.is_empty()))
        })
    }
}
