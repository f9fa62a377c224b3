//! A filled ledger of the base version, as a dump for each engine in `fixtures/base-ledger`: this
//! program delivers, verifies and purges on it, and the next version's migrates it. The dumps stay
//! as they are when the schema goes on. `ONEDROP_WRITE_DUMPS=1` writes them anew, which is right
//! only while no release has the base version.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use super::upgrades::{Server, UpgradedSite, Version, letter};
use super::wall_clock::WallClock;
use crate::support::mariadb::Mariadb;
use crate::support::postgres::Postgres;
use crate::support::{TempRoot, run};

/// 2026-01-15 12:00 UTC: longer ago than `retention.days`.
const FILLED_AT: Duration = Duration::from_secs(1_768_478_400);

const MESSAGES: usize = 10;

/// Continues `[directory]`.
const MORE: &str = "accounts = { \"lisa@gmail.com\" = \"lisa\" }\n[sent]\ntrust = \"header\"\n\
     [jobs.note]\nevery = \"1h\"\ncommand = [\"/bin/true\"]\n";

/// What a dump leaves out: MariaDB's slots, which are always the same.
const SLOTS: &str = "INSERT INTO onedrop_slot (n) SELECT seq FROM seq_0_to_65535;\n";

fn dump_of(engine: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fixtures/base-ledger/{engine}.sql"))
}

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

#[test]
fn dumps_are_written_anew_where_that_is_asked_for() {
    if std::env::var_os("ONEDROP_WRITE_DUMPS").is_none() {
        return;
    }
    for engine in ["postgres", "mariadb", "sqlite"] {
        let root = TempRoot::new();
        let clock = WallClock::start(&root, "clock");
        clock.set(UNIX_EPOCH + FILLED_AT);
        let server = match engine {
            "postgres" => Server::Postgres(Postgres::start_by(|server| clock.shown_to(server))),
            "mariadb" => Server::Mariadb(Mariadb::start_by(|server| clock.shown_to(server))),
            _ => Server::None,
        };
        let site = UpgradedSite { server, root, clock: Some(clock) };
        let config = site.config("etc", MORE);
        well(&site, Version::Own, &config, &["migrate"]);
        for n in 0..MESSAGES {
            deliver(&site, Version::Own, &config, n);
        }
        well(&site, Version::Own, &config, &["with-lock", "billing", "--", "/bin/true"]);
        well(&site, Version::Own, &config, &["jobs", "run", "note"]);
        write_dump(&site, &dump_of(engine));
    }
}

fn write_dump(site: &UpgradedSite, path: &Path) {
    let text = match &site.server {
        Server::Postgres(server) => {
            let mut dump = Command::new("pg_dump");
            dump.args(["--no-owner", "--no-privileges", "--inserts", "--dbname"]);
            run(dump.arg(server.url_socket()))
        }
        Server::Mariadb(server) => {
            let mut dump = Command::new("mariadb-dump");
            dump.args(["--no-defaults", "-uroot", "--skip-comments", "--routines", "--hex-blob"]);
            dump.args(["--ignore-table-data=onedrop.onedrop_slot", "-S"]).arg(server.socket());
            run(dump.arg("onedrop")) + SLOTS
        }
        Server::None => run(Command::new("sqlite3").arg(site.root.join("ledger.db")).arg(".dump")),
    };
    // What psql of other releases does not know.
    let lines = text.lines().filter(|line| !line.contains("restrict "));
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, text).expect("a dump");
}

fn load(site: &UpgradedSite, path: &Path) {
    let (mut command, sqlite) = (Command::new("psql"), site.root.join("ledger.db"));
    match &site.server {
        Server::Postgres(server) => {
            let url = server.url_socket();
            command.args(["-Xq", "-v", "ON_ERROR_STOP=1", "-d", &url, "-f"]).arg(path);
        }
        Server::Mariadb(server) => {
            command = Command::new("mariadb");
            command.args(["--no-defaults", "-uroot", "-S"]).arg(server.socket()).arg("onedrop");
            command.stdin(Stdio::from(File::open(path).expect("the dump")));
        }
        Server::None => {
            let text = fs::read_to_string(path).expect("the dump");
            let ledger = rusqlite::Connection::open(sqlite).expect("a file");
            return ledger.execute_batch(&text).expect("the dump");
        }
    }
    run(&mut command);
}

fn rows(site: &UpgradedSite, sql: &str) -> Vec<String> {
    let text = match &site.server {
        Server::Postgres(server) => server.psql(sql),
        Server::Mariadb(server) => server.sql(sql),
        Server::None => run(Command::new("sqlite3").arg(site.root.join("ledger.db")).arg(sql)),
    };
    text.lines().map(str::to_owned).collect()
}

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
    used_and_migrated(Server::Postgres(Postgres::start()), "postgres");
}

#[test]
fn a_ledger_of_the_base_version_in_mariadb_is_used_and_migrated() {
    used_and_migrated(Server::Mariadb(Mariadb::start()), "mariadb");
}

#[test]
fn a_ledger_of_the_base_version_in_sqlite_is_used_and_migrated() {
    used_and_migrated(Server::None, "sqlite");
}

fn used_and_migrated(server: Server, engine: &str) {
    let site = UpgradedSite { server, root: TempRoot::new(), clock: None };
    load(&site, &dump_of(engine));
    let config = site.config("etc", MORE);
    // The store has moved since.
    let (code, said) = site.deliver(Version::Own, &config, 0);
    assert!(code == Some(75) && said.contains("store.url is "), "{said}");
    well(&site, Version::Own, &config, &["migrate", "--accept-config"]);
    for n in 0..MESSAGES {
        let told = deliver(&site, Version::Own, &config, n);
        assert!(told.starts_with("already there") && !told.contains("stored"), "{told}");
        restore_mail(&site, n, &told);
    }
    let verified =
        well(&site, Version::Own, &config, &["verify", "--since", "2026-01-01", "--all"]);
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
