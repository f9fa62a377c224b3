//! The store's part of `onedrop check`: a login for one account, without writing a message.

use std::time::{Duration, Instant};

use super::finding::{Finding, Severity};
use super::{CheckContext, filing, ledger};
use onedrop_core::deliver::{Failure, guard};
use onedrop_core::directory::is_account_name;
use onedrop_core::ledger::{AnyLedger, HOSTS_FOR, LedgerError};
use onedrop_core::login_proof;
use onedrop_core::mail_root::MailRoot;
use onedrop_core::os::host_name;
use onedrop_core::store::StoreError;

/// Findings about the store, for `account`, one of the directory, or one on record.
pub(super) fn findings(check: &CheckContext, account: Option<&str>) -> Vec<Finding> {
    let config = &check.site.loaded.config;
    let place = config.store.kind().to_string();
    let finding = |severity, text: &str| Finding::new(severity, "store", format!("{place}{text}"));
    let named = || config.directory.accounts.values().next().map(|home| home.account.clone());
    let account = account.map(str::to_owned).or_else(named);
    let Some(account) = account.or_else(|| ledger::account_on_record(check)) else {
        let text = ": nothing was tested: directory.accounts names no account and no copy is on \
                    record; pass --account NAME";
        return vec![finding(Severity::Untested, text)];
    };
    if !is_account_name(&account) {
        let text = format!(": {account:?} cannot be an account; pass --account NAME");
        return vec![finding(Severity::Error, &text)];
    }
    if let Some(why) = of_the_root(check).err().or_else(|| has_no_place(check, &account)) {
        return vec![finding(Severity::Error, &format!(", account {account}: {why}"))];
    }
    let name = account.clone();
    let checked = check.ask(move |check, until| {
        let store = check.site.store();
        store.and_then(|store| store.check(&name, until)).map_err(|error| cause(&error.to_string()))
    });
    let about = |severity, line: &str| {
        let colon = if line.is_empty() { "" } else { ": " };
        finding(severity, &format!(", account {account}{colon}{line}"))
    };
    let mut findings: Vec<_> = match checked.and_then(|checked| checked) {
        Ok(lines) if lines.is_empty() => vec![about(Severity::Ok, "")],
        Ok(lines) => lines.iter().map(|line| about(Severity::Ok, line)).collect(),
        Err(why) => return vec![about(Severity::Error, &why)],
    };
    findings.extend(filing::findings(check, &account));
    findings.extend(of_the_way(check, account));
    findings
}

/// Whether the folder above all mailboxes is the one that the ledger knows.
fn of_the_root(check: &CheckContext) -> Result<(), String> {
    let known = check.ask(|check, until| -> Result<(), Failure> {
        let store = check.site.store()?;
        let Some(root) = store.root() else { return Ok(()) };
        let ledger = check.site.ledger()?;
        let found = MailRoot::find(root).map_err(StoreError::NotStored)?;
        match found.is_known(root, &*ledger, until) {
            // A problem of the ledger has a finding there.
            Err(Failure::Ledger(_)) => Ok(()),
            known => known,
        }
    });
    known?.map_err(|failure| cause(&failure.to_string()))
}

/// Why mail for the account waits, where nothing but its domain names it.
fn has_no_place(check: &CheckContext, account: &str) -> Option<String> {
    if check.site.loaded.config.directory.names(account) {
        return None;
    }
    let name = account.to_owned();
    let place = check.ask(move |check, _| {
        let store = check.site.store();
        store.and_then(|store| store.missing_place(&name))
    });
    let place = place.ok()?.ok().flatten()?;
    Some(format!(
        "nothing but its domain names it, and {} is not there: its mail does not arrive; make that \
         folder, as the user that delivers",
        place.display()
    ))
}

/// An error of the store without its name, which the topic says already.
fn cause(error: &str) -> String {
    error.strip_prefix("store: ").unwrap_or(error).to_owned()
}

/// Puts on record for deliveries whether the guard is in force at the server to which copies are
/// handed over, and for how long it remembers. Not that of a server of this host alone, where other
/// hosts use the ledger: what they have handed over it does not know.
pub(super) fn of_the_guard(check: &CheckContext, remembers: Option<Duration>) -> Option<Finding> {
    let noted = check.ask(move |check, until| -> Result<_, Failure> {
        let store = check.site.store()?;
        let Some(server) = store.traits().hands_over_to else { return Ok(None) };
        let (ledger, host) = (check.site.ledger()?, host_name());
        let other = match server.ends_with(&format!(" at {host}")) {
            true => another_host(&*ledger, &host, until)?,
            false => None,
        };
        let counts = remembers.filter(|_| other.is_none());
        guard::note(&*ledger, &server, counts, &host, until)?;
        Ok(Some((server, other)))
    });
    let cause = match noted {
        Ok(Ok(None)) => return None,
        Ok(Ok(Some((server, other)))) => {
            let (severity, text) = match (remembers, other) {
                (Some(time), None) => (
                    Severity::Ok,
                    format!(
                        "is in force and remembers {} seconds, which is on record for deliveries",
                        time.as_secs()
                    ),
                ),
                (Some(_), Some(other)) => (
                    Severity::Warning,
                    format!(
                        "is in force, and does not go on record for deliveries: {other} has used \
                         this ledger in the last week, and a Dovecot of its own would know nothing \
                         of what this one has delivered; have one Dovecot deliver for an account, \
                         and name it in store.lmtp by an address that all hosts reach \
                         (docs/set-up-filters.md)"
                    ),
                ),
                (None, _) => (
                    Severity::Warning,
                    "is not in force, which is on record for deliveries".to_owned(),
                ),
            };
            return Some(Finding::new(severity, "store", format!("{server}: the guard {text}")));
        }
        Ok(Err(failure)) => cause(&failure.to_string()),
        Err(why) => why,
    };
    let text = format!("whether the guard of store.lmtp is in force is not on record: {cause}");
    Some(Finding::new(Severity::Warning, "store", text))
}

/// A host other than `own` that uses the ledger, by what it says of itself, or by its deliveries.
fn another_host(
    ledger: &dyn AnyLedger,
    own: &str,
    until: Instant,
) -> Result<Option<String>, LedgerError> {
    let known = ledger.hosts(HOSTS_FOR, until)?.into_iter().map(|row| row.host);
    let delivering = ledger.recent_attempts(HOSTS_FOR, until)?.hosts;
    let mut hosts = known.chain(delivering.into_iter().map(|(host, _)| host));
    Ok(hosts.find(|host| host != own))
}

/// Whether the server honours the authorization identity; the result is recorded for deliveries.
fn of_the_way(check: &CheckContext, account: String) -> Option<Finding> {
    let renewed = check.ask(move |check, until| -> Result<Option<String>, Failure> {
        let store = check.site.store()?;
        if store.way().is_none() {
            return Ok(None);
        }
        let ledger = check.site.ledger()?;
        Ok(login_proof::renew(&[&account], &host_name(), &*ledger, &*store, until)?)
    });
    let why = match renewed {
        Ok(Ok(proof)) => return proof.map(|proof| Finding::new(Severity::Ok, "store", proof)),
        Ok(Err(failure)) => {
            let why = cause(&failure.to_string());
            format!("{why}; without a proof on record nothing is written")
        }
        Err(why) => format!("for whom the server lets us act: {why}"),
    };
    Some(Finding::new(Severity::Error, "store", why))
}
