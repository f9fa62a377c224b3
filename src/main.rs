//! argv to a command to an exit status; the only place that chooses adapters.

use std::sync::Arc;
use std::time::Instant;

use onedrop::cli::{self, Adapters, OpenedLedger, StoreMaker};
use onedrop::config::{self, LedgerUrl, Loaded, StoreUrl};
use onedrop::exit;
use onedrop::ledger::postgres::{PostgresLedger, PostgresSettings};
use onedrop::ledger::sqlite::SqliteLedger;
use onedrop::store::imap::{Connector, ImapSettings, Tls, old::ImapStore};
use onedrop::store::{StoreError, maildir::old::MaildirStore};

fn main() {
    // Mail is nobody else's to read: files are made for their owner alone.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    exit::survive_file_size_limit();
    let outcome =
        exit::guard(|| cli::run(std::env::args_os(), Adapters { open_ledger, open_store }));
    exit::end(&outcome)
}

fn open_ledger(loaded: &Loaded, until: Instant) -> OpenedLedger {
    match loaded.config.ledger.engine() {
        LedgerUrl::Sqlite { path } => Ok(Box::new(SqliteLedger::open(&path, until)?)),
        LedgerUrl::Postgres { url } => {
            let password = loaded.ledger_password().cloned();
            let ledger = &loaded.config.ledger;
            let settings = PostgresSettings {
                url,
                password,
                ca_file: ledger.ca_file.clone(),
                prepare: ledger.prepare,
            };
            Ok(Box::new(PostgresLedger::open(settings, until)?))
        }
    }
}

fn open_store(loaded: &Loaded) -> Result<StoreMaker, StoreError> {
    let settings = &loaded.config.store;
    match settings.kind() {
        StoreUrl::Maildir { root } => {
            let create = settings.create_mailboxes;
            Ok(Box::new(move || Box::new(MaildirStore::new(root.clone(), create))))
        }
        StoreUrl::Imap { host, port, tls } => {
            let password = loaded.store_password().cloned();
            let password = password.ok_or_else(|| {
                StoreError::NotStored("no password for the IMAP server".to_owned())
            })?;
            let tls = match tls {
                config::Tls::Implicit => Tls::Implicit,
                config::Tls::StartTls => Tls::StartTls,
                config::Tls::None => Tls::None,
            };
            let connector = Arc::new(Connector::new(ImapSettings {
                host,
                port,
                tls,
                ca_file: settings.ca_file.clone(),
                user: settings.user.clone(),
                login: settings.login.clone(),
                password,
                create_mailboxes: settings.create_mailboxes,
                dedup_by: loaded.config.dedup.by,
            }));
            Ok(Box::new(move || Box::new(ImapStore::through(Arc::clone(&connector)))))
        }
    }
}
