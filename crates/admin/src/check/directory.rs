//! `directory.query` and `directory.userdb` in `onedrop check`: they are asked for an address that
//! no account has, because one that fails would defer all mail, and one that knows every address
//! takes mail for wrong ones. The userdb is asked as well for accounts that have mail: one that it
//! does not know is a fault of the set-up, or was closed.

use std::time::Instant;
use std::{fs, io};

use super::CheckContext;
use super::finding::{Finding, Severity};
use onedrop_core::directory::UserdbError;
use onedrop_core::directory::{Asked, Directory, FolderTemplate, Home};
use onedrop_core::ledger::{Accounts, LedgerError};
use onedrop_core::outcome::UnknownAccount;
use onedrop_core::text::shell::word;
use onedrop_site::config::StoreUrl;
use onedrop_site::service::ONE;
use onedrop_site::userdb::Userdb;

/// An address that no account has.
const NOBODY: &str = "nobody@onedrop-check.invalid";
/// The accounts of this number of newest copies are asked for.
const COPIES: u32 = 20;

/// In the ledger's database, if it is asked there.
pub(super) fn in_the_ledger(check: &CheckContext) -> Option<Finding> {
    let directory = &check.site.loaded.config.directory;
    let sql = directory.query.clone().filter(|_| directory.url.is_none())?;
    let asked = check.ask_ledger(move |ledger, until| by(&sql, ledger, until));
    Some(finding("ledger", "directory.query", asked))
}

/// Where `directory.url` says, if it says anything.
pub(super) fn findings(check: &CheckContext) -> Option<Finding> {
    let directory = &check.site.loaded.config.directory;
    let (sql, url) = (directory.query.clone()?, directory.url.as_ref()?);
    let asked = check.ask(move |check, until| match check.site.accounts(ONE)? {
        Some(server) => by(&sql, &*server, until),
        None => Ok(None),
    });
    let asked = asked.map_err(LedgerError::Unavailable).flatten();
    Some(finding("directory", &format!("directory.query at {url}"), asked))
}

/// What says which addresses have an account, where nothing but a domain and folders do.
pub(super) fn of_folders(check: &CheckContext) -> Option<Finding> {
    let config = &check.site.loaded.config;
    let directory = &config.directory;
    let StoreUrl::Maildir { root } = config.store.kind() else { return None };
    let is_listed = directory.query.is_some() || directory.userdb.is_some();
    if directory.domains.is_empty() || is_listed || config.deliver.trial {
        return None;
    }
    let template = FolderTemplate::parse(&root).ok()?;
    let found = check.ask(move |_, _| {
        let entries = fs::read_dir(template.root())?;
        let names = entries.map_while(Result::ok).map(|entry| entry.file_name());
        let mut folders = names.filter(|name| !name.as_encoded_bytes().starts_with(b"."));
        io::Result::Ok(folders.next().is_some())
    });
    let has_any = matches!(found, Ok(Ok(true))) || !directory.accounts.is_empty();
    let others = match directory.unknown_account {
        UnknownAccount::Defer => "waits",
        UnknownAccount::Reject => "is returned",
    };
    let (severity, none) = match has_any {
        true => (Severity::Ok, ""),
        false => (Severity::Warning, "there is none: "),
    };
    let text = format!(
        "accounts are those with a folder in {}, and in directory.accounts: {none}mail for others \
         {others} (directory.unknown_account)",
        config.store.kind()
    );
    Some(Finding::new(severity, "directory", text))
}

fn by(
    sql: &str,
    accounts: &(impl Accounts + ?Sized),
    until: Instant,
) -> Result<Option<Home>, LedgerError> {
    accounts.account_by_query(sql, &Asked::plain(NOBODY), until)
}

fn finding(topic: &'static str, what: &str, asked: Result<Option<Home>, LedgerError>) -> Finding {
    let (severity, text) = match asked {
        Ok(None) => (Severity::Ok, " answers".to_owned()),
        Ok(Some(Home { account, .. })) => (
            Severity::Warning,
            format!(" knows an address that nobody has, as account {account:?}"),
        ),
        Err(error) => (Severity::Error, format!(": {error}")),
    };
    Finding::new(severity, topic, format!("{what}{text}"))
}

/// Findings about `directory.userdb`.
pub(super) fn of_userdb(check: &CheckContext) -> Vec<Finding> {
    let directory = &check.site.loaded.config.directory;
    let Some(path) = directory.userdb.clone() else { return Vec::new() };
    let what = format!("directory.userdb at {}", path.display());
    let about = |severity, text: &str| Finding::new(severity, "directory", format!("{what}{text}"));
    let userdb = Userdb::new(path);
    let (nobody, accounts) = (name_of_nobody(directory), accounts_to_ask(check));
    let asked = check.ask(move |_, until| -> Result<_, UserdbError> {
        let answer = userdb.user(&nobody, until)?.map(|account| (nobody, account));
        let mut unknown = Vec::new();
        for account in accounts {
            if userdb.user(&account, until)?.is_none() {
                unknown.push(account);
            }
        }
        Ok((answer, unknown))
    });
    let (answer, unknown) = match asked {
        Ok(Ok(told)) => told,
        Ok(Err(error @ UserdbError::NotNow(_))) => {
            let text = format!(
                ": {error}; a socket of mode 0666 tells Dovecot's own and root alone about others \
                 (set mode = 0660 and a group), and a static userdb needs a passdb that can be \
                 asked without a password"
            );
            return vec![about(Severity::Error, &text)];
        }
        Ok(Err(error)) => return vec![about(Severity::Error, &format!(": {error}"))],
        Err(why) => return vec![about(Severity::Error, &format!(": {why}"))],
    };
    let mut findings = vec![match answer {
        None => about(Severity::Ok, " answers"),
        Some((nobody, account)) => about(
            Severity::Warning,
            &format!(
                " knows {nobody:?}, which nobody is, as {account:?}: it takes mail for wrong \
                 addresses (allow_all_users?)"
            ),
        ),
    }];
    findings.extend(unknown.iter().map(|account| {
        let text = format!(
            " does not know account={account}, which has mail on record: mail for it waits; if it \
             is closed for good: onedrop forget --account={}",
            word(account)
        );
        about(Severity::Error, &text)
    }));
    findings
}

/// The name that the userdb would be asked for an unknown address in the first domain.
fn name_of_nobody(directory: &Directory) -> String {
    let domain = directory.domains.first().map_or("onedrop-check.invalid", String::as_str);
    let asked = Asked::plain(&format!("onedrop-check-nobody@{domain}"));
    directory.name_in_userdb(&asked).unwrap_or_else(|| "onedrop-check-nobody".to_owned())
}

/// Accounts that had mail, as far as deliveries would ask the userdb for them.
fn accounts_to_ask(check: &CheckContext) -> Vec<String> {
    let directory = &check.site.loaded.config.directory;
    if directory.query.is_some() {
        return Vec::new(); // it may have named them
    }
    let copies = check.ask_ledger(|ledger, until| ledger.latest_copies(COPIES, until));
    let mut accounts = Vec::new();
    for (destination, _) in copies.unwrap_or_default() {
        let account = destination.account;
        let is_listed = directory.accounts.values().any(|listed| listed.account == account);
        if !is_listed && !accounts.contains(&account) {
            accounts.push(account);
        }
    }
    accounts
}
