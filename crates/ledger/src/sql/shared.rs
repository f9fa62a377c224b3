//! What all hosts' configurations have alike, in the ledger's one row.

use super::{Sql, SqlSession, sql};
use onedrop_core::ledger::LedgerError;

/// Answers JSON, or NULL.
pub(crate) const CONFIG: &str = "SELECT config FROM onedrop_ledger";

/// Puts `json` there, where `read` is there still.
pub(crate) fn share<'a>(json: &'a str, read: Option<&'a str>) -> Sql<'a> {
    sql!("UPDATE onedrop_ledger SET config = ?1 WHERE {same(config, ?2)}", json, read)
}

/// What is on record of the configuration that all hosts share, if the schema fits.
pub(crate) fn config<S: SqlSession>(session: &mut S) -> Result<Option<String>, LedgerError> {
    session.value::<Option<String>>(&sql!(CONFIG)).map(Option::flatten)
}
