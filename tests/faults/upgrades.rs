//! A site of four hosts that share one ledger and one folder of Maildirs is upgraded while mail
//! goes on: programs of this version and of the next one ([`next`]) deliver the same messages at
//! the same moment, the ledger is migrated in the middle, one host goes back. No delivery fails for
//! it, and every mailbox holds each message once, byte for byte. With SQLite the hosts are one
//! host's processes.
//!
//! A program of a later version is this test's own executable: it runs the command line with that
//! program's adapters where [`ARGUMENTS`] is set.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use onedrop::config::{LedgerUrl, Loaded, StoreUrl};
use onedrop::ledger::mariadb::{MariadbLedger, MariadbSettings};
use onedrop::ledger::postgres::{PostgresLedger, PostgresSettings, Prepare};
use onedrop::ledger::sqlite::SqliteLedger;
use onedrop::ledger::{AnyLedger, LedgerError, Migration};
use onedrop::net::pool::Limits;
use onedrop::service::Adapters;
use onedrop::store::maildir::MaildirStore;
use onedrop::store::{AnyStore, StoreError};
use onedrop::{cli, exit};

use crate::next;
use crate::support::lmtp::Launch;
use crate::support::mariadb::Mariadb;
use crate::support::postgres::Postgres;
use crate::support::{TempRoot, is_full, letters, maildir_copies, onedrop};

/// What the program's arguments are, with 0x1F between them.
const ARGUMENTS: &str = "ONEDROP_TEST_ARGUMENTS_OF_NEXT";

/// Set: the program is of the version after the next one.
const IS_AFTER_NEXT: &str = "ONEDROP_TEST_IS_AFTER_NEXT";

const RECIPIENTS: [&str; 2] = ["scuba", "doug"];

#[test]
fn program_of_a_later_version() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else { return };
    let argv = ["onedrop"].into_iter().chain(arguments.split('\x1f')).map(Into::into);
    let adapters = Adapters { ledger, reading: ledger, accounts: |_, _| Ok(None), store };
    exit::end(&exit::guard(|| cli::run(argv, adapters)))
}

fn ledger(loaded: &Loaded, limits: Limits) -> Result<Arc<dyn AnyLedger>, LedgerError> {
    let of = |next: &'static [Migration], after: &'static [Migration]| {
        let migrations = if std::env::var_os(IS_AFTER_NEXT).is_some() { after } else { next };
        next::program(Some(loaded.config.shared()), migrations)
    };
    let password = loaded.ledger_password().cloned();
    match loaded.config.ledger.url.clone() {
        LedgerUrl::Postgres { url } => {
            let prepare = Prepare::Auto;
            let settings =
                PostgresSettings { url, password, ca_file: None, prepare, notify: false };
            let program = of(next::POSTGRES, next::POSTGRES_AFTER);
            Ok(Arc::new(PostgresLedger::of(settings, program, limits)?))
        }
        LedgerUrl::Mysql { url } => {
            let settings = MariadbSettings { url, password, ca_file: None };
            let program = of(next::MARIADB, next::MARIADB_AFTER);
            Ok(Arc::new(MariadbLedger::of(settings, program, limits)?))
        }
        LedgerUrl::Sqlite { path } => {
            let program = of(next::SQLITE, next::SQLITE_AFTER);
            Ok(Arc::new(SqliteLedger::of(path, program, limits)))
        }
    }
}

fn store(loaded: &Loaded, _limits: Limits) -> Result<Arc<dyn AnyStore>, StoreError> {
    match loaded.config.store.kind() {
        StoreUrl::Maildir { root } => Ok(Arc::new(MaildirStore::new(root, true))),
        _ => Err(StoreError::Setup("Maildirs only".to_owned())),
    }
}

#[derive(Clone, Copy, PartialEq)]
pub enum Version {
    Own,
    Next,
    AfterNext,
}

use Version::{AfterNext, Next, Own};

pub enum Server {
    Postgres(Postgres),
    Mariadb(Mariadb),
    /// SQLite needs none.
    None,
}

pub struct UpgradedSite {
    pub server: Server,
    pub root: TempRoot,
}

impl UpgradedSite {
    fn with(server: Server) -> UpgradedSite {
        let site = UpgradedSite { server, root: TempRoot::new() };
        let migrated = site.run(Own, &site.config("etc", ""), &["migrate"], b"");
        assert!(migrated.status.success(), "{migrated:?}");
        for account in RECIPIENTS {
            fs::create_dir(site.root.join("mail").join(account)).expect("an account's folder");
        }
        site
    }

    pub fn config(&self, name: &str, more: &str) -> PathBuf {
        let at = self.root.display();
        let ledger = match &self.server {
            Server::Postgres(server) => server.toml(),
            Server::Mariadb(server) => server.toml(),
            Server::None => format!("[ledger]\nurl = \"sqlite://{at}/ledger.db\"\n"),
        };
        self.root.write(
            &format!("{name}.toml"),
            format!(
                "{ledger}[store]\nurl = \"maildir://{at}/mail\"\n[lock]\nwait_secs = 20\n\
                 [directory]\ndomains = [\"mail.axial.net\"]\n{more}"
            ),
        )
    }

    /// Runs a program of that version with `input`.
    pub fn run(&self, version: Version, config: &Path, args: &[&str], input: &[u8]) -> Output {
        let mut command = if version == Own {
            let mut command = onedrop();
            command.arg(args[0]).arg("--config").arg(config).args(&args[1..]);
            command
        } else {
            let mut command = Command::new(std::env::current_exe().expect("our own path"));
            let own = ["upgrades::program_of_a_later_version", "--exact", "--nocapture"];
            let config = config.display().to_string();
            let words = [&args[..1], &["--config", &config], &args[1..]].concat();
            command.args(own).env(ARGUMENTS, words.join("\x1f"));
            if version == AfterNext {
                command.env(IS_AFTER_NEXT, "yes");
            }
            command
        };
        let streams = (Stdio::piped(), Stdio::piped(), Stdio::piped());
        let mut child = command
            .stdin(streams.0)
            .stdout(streams.1)
            .stderr(streams.2)
            .spawn()
            .expect("a program");
        drop(child.stdin.take().expect("stdin").write_all(input));
        child.wait_with_output().expect("an end")
    }

    /// Exit status, and what Postfix would read.
    pub fn deliver(&self, version: Version, config: &Path, n: usize) -> (Option<i32>, String) {
        let end = self.run(version, config, &["deliver", "-d", "scuba@mail.axial.net"], &letter(n));
        (end.status.code(), String::from_utf8_lossy(&end.stdout).into_owned())
    }

    pub fn have(&self, recipients: &[&str], letters: &[Vec<u8>]) {
        for recipient in recipients {
            let copies = maildir_copies(&self.root.join("mail"), recipient, "");
            letters::are_these(recipient, &copies, letters.iter().cloned());
        }
    }
}

pub fn letter(n: usize) -> Vec<u8> {
    format!("From: lisa@gmail.com\nMessage-ID: <{n}@upgrade>\nSubject: {n}\n\nBody {n}\n").into()
}

#[test]
fn four_hosts_are_upgraded_and_one_goes_back_while_mail_goes_on() {
    upgraded_while_mail_goes_on(Server::Postgres(Postgres::shared_and_empty()), 8);
}

#[test]
fn four_hosts_with_mariadb_are_upgraded_and_one_goes_back_while_mail_goes_on() {
    upgraded_while_mail_goes_on(Server::Mariadb(Mariadb::shared_and_empty()), 8);
}

#[test]
fn four_processes_with_sqlite_are_upgraded_and_one_goes_back_while_mail_goes_on() {
    upgraded_while_mail_goes_on(Server::None, 8);
}

fn upgraded_while_mail_goes_on(server: Server, messages: usize) {
    let site = UpgradedSite::with(server);
    let config = site.config("etc", "");
    let messages = if is_full() { 400 } else { messages };
    // Host 0 is upgraded first; 1 and 2 while mail goes on; 3 never; 0 goes back at the end.
    let is_next = [true, false, false, false].map(AtomicBool::new);
    let (taken, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let has_failed = AtomicBool::new(false);
    let wait_for = |count: usize| {
        while done.load(Ordering::SeqCst) < count && !has_failed.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
    };
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let n = taken.fetch_add(1, Ordering::SeqCst);
                    if n >= messages {
                        return;
                    }
                    // Each recipient on two hosts at the same moment.
                    thread::scope(|scope| {
                        for at in 0..4 {
                            let (site, config, is_next) = (&site, &config, &is_next);
                            let has_failed = &has_failed;
                            scope.spawn(move || {
                                let to = format!("{}@mail.axial.net", RECIPIENTS[at / 2]);
                                let host = (n + at * 3) % 4;
                                let is_next = is_next[host].load(Ordering::SeqCst);
                                let version = if is_next { Next } else { Own };
                                let args = ["deliver", "-d", to.as_str()];
                                let end = site.run(version, config, &args, &letter(n));
                                let code = end.status.code();
                                has_failed.fetch_or(code != Some(0), Ordering::SeqCst);
                                assert_eq!(code, Some(0), "{n} host {host}: {end:?}");
                            });
                        }
                    });
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        wait_for(messages / 4);
        is_next[1].store(true, Ordering::SeqCst);
        is_next[2].store(true, Ordering::SeqCst);
        let planned = site.run(Next, &config, &["migrate", "--dry-run"], b"");
        let planned = String::from_utf8_lossy(&planned.stdout);
        for told in [
            "would do 0012_next: one transaction, about 1s\n",
            "would do 0012_next: rows of onedrop_message, in batches (about ",
            "would do 0012_next: index onedrop_message_next_note on onedrop_message (about ",
            "estimates from the ledger's statistics of its rows; after it, programs of version 11 ",
            "the ledger has schema version 11, the one before this program's: ",
        ] {
            assert!(planned.contains(told), "{told}\n{planned}");
        }
        let migrated = site.run(Next, &config, &["migrate"], b"");
        assert!(migrated.status.success(), "{migrated:?}");
        let migrated = String::from_utf8_lossy(&migrated.stdout);
        let told = "applied 0012_next\nthe ledger has schema version 12 and takes programs of \
                    version 11 and later\n";
        assert!(migrated.contains(told), "{migrated}");
        wait_for(messages * 3 / 4);
        is_next[0].store(false, Ordering::SeqCst);
    });
    let checked = site.run(Own, &config, &["check"], b"");
    let told = String::from_utf8_lossy(&checked.stdout);
    let after = "has schema version 12, the one after this program's, which may still use it";
    assert!(told.contains(after), "{told}");
    let letters: Vec<_> = (0..messages).map(letter).collect();
    site.have(&RECIPIENTS, &letters);
}

/// All that ask the ledger.
const COMMANDS: [&[&str]; 12] = [
    &["check"],
    &["trace", "1@upgrade"],
    &["verify"],
    &["settle"],
    &["purge", "--dry-run"],
    &["forget", "1@upgrade"],
    &["replay", "--from-ledger", "--dry-run"],
    &["with-lock", "billing", "--", "/bin/true"],
    &["lock", "list"],
    &["jobs", "list"],
    &["jobs", "check"],
    &["migrate", "--dry-run"],
];

#[test]
fn a_program_two_versions_away_refuses_and_says_what_to_do() {
    for server in [
        Server::Postgres(Postgres::shared_and_empty()),
        Server::Mariadb(Mariadb::shared_and_empty()),
        Server::None,
    ] {
        let site = UpgradedSite::with(server);
        let config = site.config("etc", "");
        let (code, said) = site.deliver(AfterNext, &config, 1);
        let expected = "4.3.5 ledger: has schema version 11, this program works with 12 and 13: \
                        put a release for version 12 on every host and run its `onedrop migrate` \
                        first, which stops no mail";
        assert!(code == Some(75) && said.contains(expected), "{code:?} {said}");
        let migrated = site.run(AfterNext, &config, &["migrate"], b"");
        assert!(migrated.status.success(), "{migrated:?}");
        let (code, said) = site.deliver(Own, &config, 1);
        let expected = "4.3.5 ledger: has schema version 13, which takes programs of version 12 \
                        and later, and this one is of version 11: install a newer onedrop on this \
                        host";
        assert!(code == Some(75) && said.contains(expected), "{code:?} {said}");
        site.have(&["scuba"], &[]);
        for args in COMMANDS {
            let end = site.run(Own, &config, args, b"");
            let said = [end.stdout, end.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            let expected = "has schema version 13, which takes programs of version 12 and later";
            assert!(!end.status.success() && said.contains(expected), "{args:?}: {said}");
        }
        for version in [AfterNext, Next] {
            let (code, said) = site.deliver(version, &config, 1);
            assert_eq!(code, Some(0), "{said}");
        }
        site.have(&["scuba"], &[letter(1)]);
    }
}

#[test]
fn a_host_with_another_configuration_delivers_nothing_until_they_agree() {
    let site = UpgradedSite::with(Server::Postgres(Postgres::shared_and_empty()));
    let other = "[dedup]\nby = \"message-id\"\n";
    let (here, there) = (site.config("etc", ""), site.config("other", other));
    // A server, which read its configuration long ago.
    let server = Launch::of(&here).start();
    let by_server = |n: usize| {
        let to = ["scuba@mail.axial.net"];
        let replies = server.client().deliver("", &to, letter(n)).expect("replies");
        format!("{:?}", replies.last().expect("a reply"))
    };
    let told = by_server(1);
    assert!(told.contains("250"), "{told}");
    let (code, said) = site.deliver(Own, &there, 1);
    let expected = "4.3.5 ledger: dedup.by is \"content\" in the ledger and \"message-id\" on this \
                    host: set it to the same value on every host";
    assert!(code == Some(75) && said.starts_with(expected), "{code:?} {said}");
    let checked = site.run(Own, &there, &["check"], b"");
    let told = String::from_utf8_lossy(&checked.stdout);
    assert!(told.contains("error   config: dedup.by is \"content\""), "{told}");
    for args in [
        &["migrate"][..],
        &["verify"],
        &["settle"],
        &["purge"],
        &["forget", "--account", "scuba"],
        &["replay", "--from-ledger"],
    ] {
        let end = site.run(Own, &there, args, b"");
        let said = String::from_utf8_lossy(&end.stderr);
        assert!(end.status.code() == Some(75) && said.contains("dedup.by is"), "{args:?} {said}");
    }
    let accepted = site.run(Own, &there, &["migrate", "--accept-config"], b"");
    assert!(accepted.status.success(), "{accepted:?}");
    assert_eq!(site.deliver(Own, &there, 2).0, Some(0));
    let (code, said) = site.deliver(Own, &here, 3);
    assert!(code == Some(75) && said.starts_with("4.3.5 ledger: dedup.by is "), "{said}");
    let told = by_server(3);
    assert!(told.contains("4.3.5") && told.contains("dedup.by is"), "{told}");
    site.have(&["scuba"], &[letter(1), letter(2)]);
}
