//! The mailboxes that the configuration names, as `onedrop check` sees them: mail for one that is
//! not there goes to INBOX. What a query names is not known before it is asked.

use std::collections::BTreeSet;

use super::CheckContext;
use super::finding::{Finding, Severity};
use onedrop_core::directory::Destination;

/// How many mailboxes are looked for.
const MOST: usize = 50;

/// A finding for each mailbox that is not there: those of `directory.accounts`, and those of
/// `[[file]]` of the `account` that is checked.
pub(super) fn findings(check: &CheckContext, account: &str) -> Vec<Finding> {
    let config = &check.site.loaded.config;
    let named = config.directory.accounts.values().filter(|home| home.mailbox.is_some());
    let mut places: BTreeSet<(String, String)> = named
        .map(|home| home.destination())
        .chain(config.file.iter().map(|rule| {
            let mailbox = rule.mailbox.clone();
            Destination { mailbox, ..Destination::inbox(account) }
        }))
        .filter(|one| one.stand_in().is_some())
        .map(|one| (one.account, one.mailbox))
        .collect();
    let count = places.len();
    while places.len() > MOST {
        places.pop_last();
    }
    let mut findings = Vec::new();
    for (account, mailbox) in places {
        let destination = Destination { mailbox, ..Destination::inbox(&account) };
        let asked = destination.clone();
        let is_there = check.ask(move |check, until| {
            let store = check.site.store()?;
            store.has_mailbox(&asked, until)
        });
        let text = match is_there {
            Ok(Ok(true)) => continue,
            Ok(Ok(false)) => "is not there: its mail goes to INBOX".to_owned(),
            Ok(Err(error)) => format!("cannot be looked into: {error}"),
            Err(why) => format!("cannot be looked into: {why}"),
        };
        findings.push(Finding::new(Severity::Warning, "store", format!("{destination} {text}")));
    }
    if count > MOST {
        let text = format!("of {count} mailboxes that are named, {MOST} were looked for");
        findings.push(Finding::new(Severity::Untested, "store", text));
    }
    findings
}
