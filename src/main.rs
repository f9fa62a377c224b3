//! argv to a command to an exit status; the only place that chooses adapters.

use std::sync::Arc;
use std::time::Duration;

use onedrop::cli;
use onedrop::config::{LedgerUrl, Loaded, StoreUrl};
use onedrop::exit;
#[cfg(feature = "mariadb")]
use onedrop::ledger::mariadb::{MariadbLedger, MariadbSettings};
use onedrop::ledger::postgres::{PostgresLedger, PostgresSettings, Prepare};
use onedrop::ledger::sqlite::{SqliteAccounts, SqliteLedger};
use onedrop::ledger::{AccountServer, AnyLedger, LedgerError, Program};
use onedrop::net::pool::Limits;
use onedrop::os::host_name;
use onedrop::service::Adapters;
use onedrop::store::imap::{ImapSettings, ImapStore};
use onedrop::store::lmtp::{HandOffSettings, LmtpStore};
use onedrop::store::{AnyStore, StoreError, maildir::MaildirStore};

fn main() {
    exit::survive_file_size_limit();
    let outcome = exit::guard(|| {
        cli::run(std::env::args_os(), Adapters { ledger, reading, accounts, store })
    });
    exit::end(&outcome)
}

fn ledger(loaded: &Loaded, limits: Limits) -> Result<Arc<dyn AnyLedger>, LedgerError> {
    let program = Program {
        config: Some(loaded.config.shared()),
        waits: Some(cli::say_that_migrate_waits),
        makes: loaded.config.deliver.trial,
        ..Program::default()
    };
    open(&loaded.config.ledger.url, program, loaded, limits)
}

/// The ledger for questions alone: what is shown need not fit this program's configuration.
fn reading(loaded: &Loaded, limits: Limits) -> Result<Arc<dyn AnyLedger>, LedgerError> {
    let program = Program { reads: true, ..Program::default() };
    open(loaded.pages_url(), program, loaded, limits)
}

fn open(
    url: &LedgerUrl,
    program: Program,
    loaded: &Loaded,
    limits: Limits,
) -> Result<Arc<dyn AnyLedger>, LedgerError> {
    let ledger = &loaded.config.ledger;
    let (password, ca_file) = (loaded.ledger_password().cloned(), ledger.ca_file.clone());
    Ok(match url.clone() {
        LedgerUrl::Sqlite { path } => Arc::new(SqliteLedger::of(path, program, limits)),
        LedgerUrl::Postgres { url } => {
            let prepare = if program.reads { Prepare::Never } else { ledger.prepare };
            let settings =
                PostgresSettings { url, password, ca_file, prepare, notify: ledger.notify };
            Arc::new(PostgresLedger::of(settings, program, limits)?)
        }
        #[cfg(feature = "mariadb")]
        LedgerUrl::Mysql { url } => {
            let settings = MariadbSettings { url, password, ca_file };
            Arc::new(MariadbLedger::of(settings, program, limits)?)
        }
        #[cfg(not(feature = "mariadb"))]
        LedgerUrl::Mysql { .. } => return Err(not_built_in()),
    })
}

/// The reader of the configuration has refused it.
#[cfg(not(feature = "mariadb"))]
fn not_built_in() -> LedgerError {
    LedgerError::Refused("mysql:// is not built into this program (feature \"mariadb\")".to_owned())
}

fn accounts(
    loaded: &Loaded,
    limits: Limits,
) -> Result<Option<Arc<dyn AccountServer>>, LedgerError> {
    let directory = &loaded.config.directory;
    let Some(url) = directory.url.clone() else { return Ok(None) };
    let (password, ca_file) = (loaded.directory_password().cloned(), directory.ca_file.clone());
    Ok(Some(match url {
        LedgerUrl::Sqlite { path } => Arc::new(SqliteAccounts::new(path)),
        LedgerUrl::Postgres { url } => {
            let prepare = Prepare::Never;
            let settings = PostgresSettings { url, password, ca_file, prepare, notify: false };
            Arc::new(PostgresLedger::new(settings, limits)?)
        }
        #[cfg(feature = "mariadb")]
        LedgerUrl::Mysql { url } => {
            let settings = MariadbSettings { url, password, ca_file };
            Arc::new(MariadbLedger::for_accounts(settings, limits)?)
        }
        #[cfg(not(feature = "mariadb"))]
        LedgerUrl::Mysql { .. } => return Err(not_built_in()),
    }))
}

fn store(loaded: &Loaded, limits: Limits) -> Result<Arc<dyn AnyStore>, StoreError> {
    let settings = &loaded.config.store;
    let create_mailboxes = settings.create_mailboxes;
    match settings.kind() {
        StoreUrl::Maildir { root } => {
            let store = MaildirStore::new(root, create_mailboxes);
            Ok(Arc::new(store.in_trial(loaded.config.deliver.trial)))
        }
        StoreUrl::Imap { host, port, tls } => {
            let password = loaded.store_password().cloned().ok_or_else(|| {
                StoreError::NotStored("no password for the IMAP server".to_owned())
            })?;
            let settings = ImapSettings {
                host,
                port,
                tls,
                ca_file: settings.ca_file.clone(),
                user: settings.user.clone(),
                login: settings.login.clone(),
                password,
                create_mailboxes,
                trust_search: settings.trust_search,
                lock_timeout: Duration::from_secs(settings.lock_timeout_secs),
            };
            let imap = ImapStore::new(settings, limits);
            let Some(place) = loaded.config.store.lmtp.clone() else { return Ok(Arc::new(imap)) };
            let lmtp = HandOffSettings {
                place,
                starttls: loaded.config.store.starttls,
                ca_file: loaded.config.store.ca_file.clone(),
                host: host_name(),
            };
            Ok(Arc::new(LmtpStore::new(lmtp, Box::new(imap), limits)))
        }
    }
}
