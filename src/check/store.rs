//! The store's part of `onedrop check`: a login for one account, without writing a message.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bounded::bounded;
use super::finding::{Finding, Severity};
use super::ledger;
use crate::config::Loaded;
use crate::deliver::Failure;
use crate::directory::is_account_name;
use crate::service::{Adapters, ONE, host_name};
use crate::way;

/// The store's calls end by themselves in time; after this much more a step is given up.
const SLACK: Duration = Duration::from_secs(1);

/// Findings about the store, for `account`, one of the directory, or one on record.
pub(super) fn findings(
    loaded: &Arc<Loaded>,
    account: Option<&str>,
    adapters: Adapters,
    time: Duration,
) -> Vec<Finding> {
    let settings = &loaded.config.store;
    let place = settings.kind().to_string();
    let named = || loaded.config.directory.accounts.values().next().cloned();
    let account = account.map(str::to_owned).or_else(named);
    let Some(account) = account.or_else(|| ledger::account_on_record(loaded, adapters, time))
    else {
        let text = format!(
            "{place}: nothing was tested: directory.accounts names no account and no copy is on \
             record; pass --account NAME"
        );
        return vec![Finding::new(Severity::Untested, "store", text)];
    };
    if !is_account_name(&account) {
        let text = format!("{place}: {account:?} cannot be an account; pass --account NAME");
        return vec![Finding::new(Severity::Error, "store", text)];
    }
    let (for_thread, name) = (loaded.clone(), account.clone());
    let checked = bounded(time + SLACK, move || {
        let until = Instant::now() + time;
        (adapters.store)(&for_thread, ONE).and_then(|store| store.check(&name, until))
    });
    let failed = |why: String| {
        let why = why.strip_prefix("store: ").unwrap_or(&why);
        vec![Finding::new(Severity::Error, "store", format!("{place}, account {account}: {why}"))]
    };
    match checked {
        Ok(Ok(lines)) => {
            let told = |line: &String| {
                Finding::new(Severity::Ok, "store", format!("{place}, account {account}: {line}"))
            };
            let mut findings: Vec<_> = match lines.is_empty() {
                true => {
                    vec![Finding::new(Severity::Ok, "store", format!("{place}, account {account}"))]
                }
                false => lines.iter().map(told).collect(),
            };
            findings.extend(of_the_way(loaded, &account, adapters, time));
            findings
        }
        Ok(Err(error)) => failed(error.to_string()),
        Err(why) => failed(why),
    }
}

/// Whether the server heeds for whom we log in; what comes of it is put on record for deliveries.
fn of_the_way(
    loaded: &Arc<Loaded>,
    account: &str,
    adapters: Adapters,
    time: Duration,
) -> Option<Finding> {
    let (loaded, account) = (loaded.clone(), account.to_owned());
    let renewed = bounded(time + SLACK, move || -> Result<Option<String>, Failure> {
        let until = Instant::now() + time;
        let store = (adapters.store)(&loaded, ONE)?;
        if store.way().is_none() {
            return Ok(None);
        }
        let ledger = (adapters.ledger)(&loaded, ONE)?;
        Ok(way::renew(&[&account], &host_name(), &*ledger, &*store, until)?)
    });
    match renewed {
        Ok(Ok(proof)) => proof.map(|proof| Finding::new(Severity::Ok, "store", proof)),
        Ok(Err(failure)) => {
            let why = failure.to_string();
            let why = why.strip_prefix("store: ").unwrap_or(&why);
            Some(Finding::new(
                Severity::Error,
                "store",
                format!("{why}; without a proof on record nothing is written"),
            ))
        }
        Err(why) => Some(Finding::new(
            Severity::Error,
            "store",
            format!("for whom the server lets us act: {why}"),
        )),
    }
}
