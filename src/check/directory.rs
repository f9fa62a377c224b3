//! `directory.query` in `onedrop check`: it is run for an address that nobody has, because a query
//! that fails would defer all mail, and one that knows every address takes mail for wrong ones.

use std::time::Instant;

use super::CheckContext;
use super::finding::{Finding, Severity};
use crate::directory::Asked;
use crate::ledger::{Accounts, LedgerError};
use crate::service::ONE;

/// In the ledger's database, if it is asked there.
pub(super) fn in_the_ledger(check: &CheckContext) -> Option<Finding> {
    let directory = &check.loaded.config.directory;
    let sql = directory.query.clone().filter(|_| directory.url.is_none())?;
    let asked = check.ask_ledger(move |ledger, until| by(&sql, ledger, until));
    Some(finding("ledger", "directory.query", asked))
}

/// Where `directory.url` says, if it says anything.
pub(super) fn findings(check: &CheckContext) -> Option<Finding> {
    let directory = &check.loaded.config.directory;
    let (sql, url) = (directory.query.clone()?, directory.url.as_ref()?);
    let asked =
        check.ask(move |check, until| match (check.adapters.accounts)(&check.loaded, ONE)? {
            Some(server) => by(&sql, &*server, until),
            None => Ok(None),
        });
    let asked = asked.map_err(LedgerError::Unavailable).flatten();
    Some(finding("directory", &format!("directory.query at {url}"), asked))
}

fn by(
    sql: &str,
    accounts: &(impl Accounts + ?Sized),
    until: Instant,
) -> Result<Option<String>, LedgerError> {
    accounts.account_by_query(sql, &Asked::plain("nobody@onedrop-check.invalid"), until)
}

fn finding(topic: &'static str, what: &str, asked: Result<Option<String>, LedgerError>) -> Finding {
    let (severity, text) = match asked {
        Ok(None) => (Severity::Ok, " answers".to_owned()),
        Ok(Some(account)) => (
            Severity::Warning,
            format!(" knows an address that nobody has, as account {account:?}"),
        ),
        Err(error) => (Severity::Error, format!(": {error}")),
    };
    Finding::new(severity, topic, format!("{what}{text}"))
}
