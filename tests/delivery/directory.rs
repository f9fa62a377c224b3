//! `directory.url`: users in the tables of well-known programs, on another server than the
//! ledger's, which only has to answer; and what becomes of mail where it does not.

use std::path::{Path, PathBuf};

use rusqlite::Connection;

use crate::support::directory::{TABLES, query};
use crate::support::letters::from_lisa;
use crate::support::mariadb::Mariadb;
use crate::support::postgres::Postgres;
use crate::support::site::{Files, Site, deliver, run};
use crate::support::{free_port, set_mode};

const SHORT: &str =
    "[lock]\nwait_secs = 0\nlease_secs = 4\n[limits]\ndeadline_secs = 3\nanswer_secs = 1\n";
const PASSWORD: &str = "reader-secret";

/// A ledger in a file, with the query asked at `url`.
fn config(site: &Site<Files>, name: &str, url: &str, query: &str) -> PathBuf {
    let password = site.root.write("directory.password", PASSWORD);
    set_mode(&password, 0o600);
    let password = password.display();
    let directory = format!("url = \"{url}\"\npassword_file = \"{password}\"\nquery = \"{query}\"");
    site.config(name, &format!("[directory]\n{directory}\n{SHORT}"))
}

/// The exit status of a delivery, and what it said.
fn delivery(config: &Path, to: &str) -> (Option<i32>, String) {
    let output = deliver(config, &["-d", to], &from_lisa(&to.replace('@', "-at-")));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!said.contains(PASSWORD), "{said}");
    (output.status.code(), said)
}

/// A MariaDB that could keep no ledger, with a user who may read the tables.
fn with_tables() -> Mariadb {
    let mariadb = Mariadb::start_with(&["--innodb-flush-log-at-trx-commit=2", "--read-only=1"]);
    mariadb.sql(TABLES);
    mariadb.sql(&format!("CREATE USER reader@'%' IDENTIFIED BY '{PASSWORD}'"));
    for database in ["mailserver", "postfix", "mailcow"] {
        mariadb.sql(&format!("GRANT SELECT ON {database}.* TO reader@'%'"));
    }
    mariadb
}

#[test]
fn users_in_another_server_get_mail() {
    let (mariadb, postgres) = (with_tables(), Postgres::shared_and_empty());
    postgres.psql(
        "CREATE TABLE mailbox (username varchar(255) PRIMARY KEY, active boolean NOT NULL);
         INSERT INTO mailbox VALUES ('doug@a.example', true), ('gone@a.example', false);
         GRANT SELECT ON mailbox TO onedrop",
    );
    let site = Site::embedded();
    let file = site.root.join("users.db");
    let users = Connection::open(&file).expect("a database");
    let table = "CREATE TABLE virtual_users (email TEXT PRIMARY KEY);
                 INSERT INTO virtual_users VALUES ('doug@a.example')";
    users.execute_batch(table).expect("a table");
    let at = |database: &str| {
        let url =
            mariadb.url_socket().replace("//onedrop@/onedrop?", &format!("//reader@/{database}?"));
        assert!(url.contains("reader"), "{url}");
        url
    };
    let tcp = mariadb.url_tcp().replace("onedrop@", "reader@").replace("/onedrop", "/postfix");
    // The page's form for tables on the ledger's MariaDB.
    let in_postfix = query("PostfixAdmin", "MariaDB").replace("FROM ", "FROM postfix.");
    for (name, url, query, knows) in [
        ("ispmail", at("mailserver"), query("ISPmail", "MariaDB"), "doug"),
        ("postfixadmin", tcp, query("PostfixAdmin", "MariaDB"), "doug"),
        ("another-database", at("mailserver"), in_postfix, "doug"),
        ("mailcow", at("mailcow"), query("mailcow", "MariaDB"), "doug inner"),
        ("postgres", postgres.url_socket(), query("PostfixAdmin", "Postgres"), "doug"),
        ("file", format!("sqlite://{}", file.display()), query("ISPmail", "MariaDB"), "doug"),
    ] {
        // A ledger of its own: what had mail is never unknown for good.
        let site = Site::embedded();
        let config = config(&site, name, &url, &query);
        for user in ["Doug+x", "inner", "gone", "' OR '1' = '1"] {
            let account = user.split('+').next().expect("a name").to_lowercase();
            let (status, said) = delivery(&config, &format!("{user}@a.example"));
            match knows.split(' ').any(|known| known == account) {
                true => assert!(
                    status == Some(0) && said.contains(&format!("account={account}@a.example")),
                    "{name}, {user}: {said}"
                ),
                false => assert_eq!((status, &said[..6]), (Some(67), "5.1.1 "), "{name}, {user}"),
            }
        }
        let found = run(&config, &["check"]);
        let found = String::from_utf8_lossy(&found.stdout).into_owned();
        assert!(found.contains("directory: directory.query at "), "{name}: {found}");
        assert!(found.contains(" answers"), "{name}: {found}");
        assert!(!found.contains(PASSWORD) && !found.contains("reader"), "{name}: {found}");
    }
    // Nothing was made beside the file that was read.
    let beside = std::fs::read_dir(&*site.root).expect("folder").flatten();
    let beside = beside.filter(|entry| entry.file_name().to_string_lossy().starts_with("users.db"));
    assert_eq!(beside.count(), 1);
}

#[test]
fn mail_waits_for_the_server_that_knows_the_users() {
    let (mariadb, site) = (with_tables(), Site::embedded());
    let url = mariadb.url_tcp().replace("onedrop@", "reader@").replace("/onedrop", "/postfix");
    let query = query("PostfixAdmin", "MariaDB");
    let nowhere = url.replace(&mariadb.port().to_string(), &free_port().to_string());
    let file = format!("sqlite://{}/none.db", site.root.display());
    let users = site.root.join("users.db");
    let table = Connection::open(&users).expect("a database");
    table.execute_batch("CREATE TABLE mailbox (username TEXT)").expect("a table");
    let users = format!("sqlite://{}", users.display());
    let locked = mariadb.begin("LOCK TABLES postfix.mailbox WRITE");
    for (name, url, query, says) in [
        ("slow", &url, query.as_str(), "4.3.0 directory.url: directory.query took too long"),
        ("gone", &nowhere, &query, "4.3.0 directory.url: cannot be reached: 127.0.0.1:"),
        (
            "table",
            &url,
            "SELECT $1 FROM nowhere",
            "4.3.0 directory.url: the directory's query: 1146 ",
        ),
        (
            "quoted",
            &url,
            "SELECT username FROM mailbox WHERE username = '$1'",
            "4.3.0 directory.url: the directory's query does not use $1: in quotes ",
        ),
        ("wrong", &url, "SELEC $1", "4.3.0 directory.url: the directory's query: 1064 "),
        (
            "writes",
            &url,
            "DELETE FROM mailbox WHERE username = $1",
            "4.3.5 directory.url: lacks a grant for our role: 1142 ",
        ),
        ("file", &file, &query, "4.3.0 directory.url: cannot be reached: "),
        (
            "quoted-file",
            &users,
            "SELECT username FROM mailbox WHERE username = '$1'",
            "4.3.0 directory.url: directory.query does not use $1: in quotes ",
        ),
    ] {
        let config = config(&site, name, url, query);
        let (status, said) = delivery(&config, "doug@a.example");
        assert!(status == Some(75) && said.starts_with(says), "{name}: {said}");
        if name != "slow" {
            let found = run(&config, &["check"]);
            let found = String::from_utf8_lossy(&found.stdout).into_owned();
            let says = says[says.find("url: ").expect("a reason") + 5..].trim_start();
            let line = found.lines().find(|line| line.contains("directory.query at "));
            assert!(line.is_some_and(|line| line.contains(says)), "{name}: {found}");
        }
    }
    drop(locked);
    let config = config(&site, "right", &url, &query);
    let password = site.root.write("directory.password", "another-secret");
    set_mode(&password, 0o600);
    let (status, said) = delivery(&config, "doug@a.example");
    assert!(said.starts_with("4.3.5 directory.url: refuses our login: ") && status == Some(75));
    assert!(!said.contains("another-secret"), "{said}");
    set_mode(&site.root.write("directory.password", PASSWORD), 0o600);
    assert_eq!(delivery(&config, "doug@a.example").0, Some(0));
}

/// The server keeps its connections from one question to the next.
#[test]
fn the_server_keeps_its_connections_to_the_users() {
    let (mariadb, site) = (with_tables(), Site::embedded());
    let url = mariadb.url_socket().replace("//onedrop@/onedrop?", "//reader@/postfix?");
    let text =
        std::fs::read_to_string(config(&site, "etc", &url, &query("PostfixAdmin", "MariaDB")));
    let server = site.server(&text.expect("a configuration"));
    let connections = || {
        let sql = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS \
                   WHERE VARIABLE_NAME = 'CONNECTIONS'";
        mariadb.sql(sql).parse::<u64>().expect("a number")
    };
    let before = connections();
    for n in 0..5 {
        let name = format!("kept-{n}");
        let mut client = server.client();
        let replies = client.deliver("lisa@gmail.com", &["doug@a.example"], from_lisa(&name));
        assert!(replies.expect("replies").iter().all(|one| one.is_ok()), "{}", server.log());
    }
    // One for the questions, one for each look at the counter.
    assert_eq!(connections() - before, 2, "{}", server.log());
    assert!(server.metrics().contains("pool=\"directory\""), "{}", server.metrics());
}
