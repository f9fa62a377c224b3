//! A filled ledger of the base version: this program delivers and verifies on it, migrates it,
//! delivers and purges, and the next version's migrates it further. `fixtures/base-ledger` is
//! written anew only with the base itself: the schema goes on by migrations.

use std::fs;
use std::path::Path;

use super::upgrades::{Server, UpgradedSite, Version, letter};
use crate::support::mariadb::Mariadb;
use crate::support::postgres::Postgres;
use crate::support::{TempRoot, base_ledger};

const MESSAGES: usize = 10;

/// Continues `[directory]`.
const MORE: &str = "accounts = { \"lisa@gmail.com\" = \"lisa\" }\n[sent]\ntrust = \"header\"\n\
     [jobs.note]\nevery = \"1h\"\ncommand = [\"/bin/true\"]\n";

fn recipients(n: usize) -> &'static [&'static str] {
    if n.is_multiple_of(2) { &["scuba", "doug"] } else { &["scuba"] }
}

fn deliver(site: &UpgradedSite, version: Version, config: &Path, n: usize) -> String {
    let mut told = String::new();
    for recipient in recipients(n) {
        let to = format!("{recipient}@mail.axial.net");
        let end = site.run(version, config, &["deliver", "-d", &to], &letter(n));
        assert_eq!(end.status.code(), Some(0), "{n}: {end:?}");
        told.push_str(&String::from_utf8_lossy(&end.stdout));
    }
    told
}

fn well(site: &UpgradedSite, version: Version, config: &Path, args: &[&str]) -> String {
    let end = site.run(version, config, args, b"");
    assert_eq!(end.status.code(), Some(0), "{args:?}: {end:?}");
    String::from_utf8_lossy(&end.stdout).into_owned()
}

fn load(site: &UpgradedSite) {
    match &site.server {
        Server::Postgres(server) => base_ledger::load_into_postgres(server),
        Server::Mariadb(server) => base_ledger::load_into_mariadb(server, server.database()),
        Server::None => {
            let ledger = rusqlite::Connection::open(site.root.join("ledger.db")).expect("a file");
            base_ledger::load_into_sqlite(&ledger);
        }
    }
}

fn rows(site: &UpgradedSite, sql: &str) -> Vec<String> {
    let text = match &site.server {
        Server::Postgres(server) => server.psql(sql),
        Server::Mariadb(server) => server.sql(sql),
        Server::None => {
            let ledger = rusqlite::Connection::open(site.root.join("ledger.db")).expect("a file");
            let mut query = ledger.prepare(sql).expect("SQL");
            let numbers = query.query_map([], |row| row.get::<_, i64>(0)).expect("rows");
            return numbers.map(|number| number.expect("a number").to_string()).collect();
        }
    };
    text.lines().map(str::to_owned).collect()
}

const VERSION: &str = "SELECT version FROM onedrop_ledger";

/// Puts the message into the mailboxes where deliveries have `told` that it is already.
fn restore_mail(site: &UpgradedSite, n: usize, told: &str) {
    for copy in told.split(['\n', ';']).filter(|copy| !copy.trim().is_empty()) {
        let value = |key| {
            let mut words = copy.split(' ').filter_map(|word| word.strip_prefix(key));
            words.next().unwrap_or_else(|| panic!("{key} {copy}"))
        };
        let (account, name) = (value("account="), value("name="));
        let (folder, name) = match value("mailbox=") {
            "INBOX" => (format!("mail/{account}/Maildir"), format!("new/{name}")),
            mailbox => (format!("mail/{account}/Maildir/.{mailbox}"), format!("cur/{name}:2,S")),
        };
        for part in ["new", "cur", "tmp"] {
            fs::create_dir_all(site.root.join(&folder).join(part)).expect("a folder");
        }
        site.root.write(&format!("{folder}/{name}"), letter(n));
    }
}

#[test]
fn a_ledger_of_the_base_version_in_postgres_is_used_and_migrated() {
    used_and_migrated(Server::Postgres(Postgres::shared_and_empty()));
}

#[test]
fn a_ledger_of_the_base_version_in_mariadb_is_used_and_migrated() {
    used_and_migrated(Server::Mariadb(Mariadb::shared_and_empty()));
}

#[test]
fn a_ledger_of_the_base_version_in_sqlite_is_used_and_migrated() {
    used_and_migrated(Server::None);
}

fn used_and_migrated(server: Server) {
    let site = UpgradedSite { server, root: TempRoot::new() };
    load(&site);
    for account in ["scuba", "doug", "lisa"] {
        fs::create_dir_all(site.root.join("mail").join(account)).expect("a folder");
    }
    let config = site.config("etc", MORE);
    // The store has moved since.
    let (code, said) = site.deliver(Version::Own, &config, 0);
    assert!(code == Some(75) && said.contains("store.url is "), "{said}");
    rows(&site, "UPDATE onedrop_ledger SET config = NULL");
    for n in 0..MESSAGES {
        let told = deliver(&site, Version::Own, &config, n);
        assert!(told.starts_with("already there") && !told.contains("stored"), "{told}");
        restore_mail(&site, n, &told);
    }
    let verified =
        well(&site, Version::Own, &config, &["verify", "--since", "2026-01-01", "--all"]);
    assert_eq!(rows(&site, VERSION), ["10"]);
    let migrated = well(&site, Version::Own, &config, &["migrate"]);
    assert!(migrated.starts_with("applied 0011_by_recipient\n"), "{migrated}");
    assert_eq!(rows(&site, VERSION), ["11"]);
    for n in 0..MESSAGES {
        assert!(deliver(&site, Version::Own, &config, n).starts_with("already there"));
    }
    well(&site, Version::Next, &config, &["migrate"]);
    let left = "SELECT count(*) FROM onedrop_message WHERE next_note IS NULL";
    assert_eq!(rows(&site, left), ["0"]);
    deliver(&site, Version::Own, &config, MESSAGES);
    deliver(&site, Version::Next, &config, MESSAGES);
    let purged = well(&site, Version::Own, &config, &["purge"]);
    let count = rows(&site, "SELECT count(*) FROM onedrop_message");
    assert_eq!(count, ["1"], "{verified}{purged}");
    for recipient in ["scuba", "doug"] {
        let its = (0..=MESSAGES).filter(|n| recipients(*n).contains(&recipient));
        site.have(&[recipient], &its.map(letter).collect::<Vec<_>>());
    }
}
