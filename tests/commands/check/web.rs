//! `[web]` in `onedrop check`: the password's files, and whether `web.ledger_url` is the ledger of
//! deliveries.

use std::fs;

use super::{CheckSite, USER};
use crate::support::mariadb::Mariadb;
use crate::support::postgres::Postgres;
use crate::support::{chown_recursive, letters, set_mode, unix_user};

const DIFFERENT: &str =
    " is another ledger than ledger.url: the pages show nothing of these deliveries\n";

impl CheckSite {
    /// The findings about the pages, with these settings; mail would not wait for any of them.
    #[track_caller]
    fn of_pages(&self, settings: &[(&str, &str)]) -> String {
        let mut command = self.command_with(settings);
        let output = command.output().expect("onedrop");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        self.about("web", &mut command)
    }

    /// A command on the ledger at `url`.
    #[track_caller]
    fn on(&self, url: &str, password: Option<&str>, args: &[&str], input: &[u8]) {
        // Root delivers into no folder of another's.
        chown_recursive(&self.folder, "root");
        let config = self.path("onedrop.toml");
        let mut command = crate::support::onedrop();
        command.args(args).args(["--config", &config]).env("ONEDROP__LEDGER__URL", url);
        if let Some(file) = password {
            command.env("ONEDROP__LEDGER__PASSWORD_FILE", file);
        }
        let mut child = command
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("onedrop");
        let mut stdin = child.stdin.take().expect("stdin");
        let _ = std::io::Write::write_all(&mut stdin, input);
        drop(stdin);
        assert!(child.wait().expect("an end").success(), "{args:?}");
        chown_recursive(&self.folder, USER);
    }
}

#[test]
fn the_passwords_of_the_pages_are_looked_at_and_nothing_is_said_without() {
    let site = CheckSite::good();
    site.deliver_once();
    assert_eq!(site.of_pages(&[]), "");
    assert_eq!(site.of_pages(&[("WEB__LISTEN", "127.0.0.1:9726")]), "");
    let asked = || site.of_pages(&[("WEB__PASSWORD_FILE", "$DIR/password")]);
    assert_eq!(asked(), "warning web.password_file: $DIR/password: no such file\n");
    site.password();
    assert_eq!(asked(), "ok      web.password_file: $DIR/password\n");
    fs::write(site.path("password"), "").expect("a file");
    assert_eq!(asked(), "warning web.password_file: $DIR/password is empty\n");
    set_mode(site.path("password").as_ref(), 0o604);
    let open = "$DIR/password is open to group or others (mode 0604; expected 0600 or 0400)";
    assert_eq!(asked(), format!("warning web.password_file: {open}\n"));
}

#[test]
fn on_sqlite_another_file_is_told_and_none_is_made() {
    let site = CheckSite::good();
    site.deliver_once();
    let asked = |path: &str| site.of_pages(&[("WEB__LEDGER_URL", &format!("sqlite://{path}"))]);
    let before = site.files();
    let same = "ok      web.ledger_url: sqlite://$DIR/ledger.db is the ledger of ledger.url\n";
    assert_eq!(asked("$DIR/ledger.db"), same);
    let other = format!("warning web.ledger_url: sqlite://$DIR/other.db{DIFFERENT}");
    assert_eq!(asked("$DIR/other.db"), other);
    assert_eq!(site.files(), before);
}

#[test]
fn on_postgres_another_database_of_the_server_is_known_by_what_it_has() {
    let postgres = Postgres::start();
    let site = CheckSite::good();
    let url = |database: &str| postgres.url_socket().replace("/onedrop?", &format!("/{database}?"));
    let asked = |theirs: &str, more: &[(&str, &str)]| {
        let ours = postgres.url_socket();
        let settings = [("LEDGER__URL", &*ours), ("WEB__LEDGER_URL", theirs)];
        let told = site.of_pages(&[&settings, more].concat());
        let port = format!(":{}", postgres.port());
        told.replace(&*postgres.socket_dir().to_string_lossy(), "$SOCKETS").replace(&port, ":PORT")
    };
    let says = |told: String, starts: &str, ends: &str| {
        let is_it = told.lines().count() == 1 && told.starts_with(starts) && told.ends_with(ends);
        assert!(is_it, "{told}");
    };
    const OK: &str = "ok      web.ledger_url: postgres://";
    const WARNING: &str = "warning web.ledger_url: postgres://";
    const SAME: &str = " is the ledger of ledger.url\n";
    let deliver = |database: &str, id: &str| {
        let letter = letters::from_ann(id);
        site.on(&url(database), None, &["deliver", "-d", "lisa@gmail.com"], letter.as_bytes());
    };
    // Both without a message, made one minute after the other.
    site.on(&url("onedrop"), None, &["migrate"], b"");
    postgres.psql("CREATE DATABASE other OWNER onedrop");
    site.on(&url("other"), None, &["migrate"], b"");
    postgres.psql_in(
        "other",
        "UPDATE onedrop_ledger SET remembers_since = remembers_since + interval '1 minute'",
    );
    says(asked(&url("onedrop"), &[]), OK, SAME);
    says(asked(&url("other"), &[]), WARNING, DIFFERENT);
    // By a role that may read alone, as a purge moves on what is remembered.
    deliver("onedrop", "one");
    let page = crate::support::fixture_text("docs/web.md");
    let grants = page.split_once("```sql\n-- Postgres").expect("a block").1;
    let grants = grants.split_once("```").expect("an end").0.split_once('\n').expect("lines").1;
    postgres.psql(grants);
    let reader = url("onedrop").replace("onedrop@", "onedrop_reader@");
    says(asked(&reader, &[]), OK, SAME);
    site.on(&url("onedrop"), None, &["purge"], b"");
    says(asked(&reader, &[]), OK, SAME);
    // A copy of the ledger passes for it until it lags, or goes its own way.
    postgres.psql("CREATE DATABASE copy TEMPLATE onedrop OWNER onedrop");
    says(asked(&url("copy"), &[]), OK, SAME);
    deliver("onedrop", "two");
    says(asked(&url("copy"), &[]), OK, SAME);
    postgres.psql(
        "UPDATE onedrop_message SET recorded_at = recorded_at + interval '3 hours'
         WHERE id = (SELECT max(id) FROM onedrop_message)",
    );
    let behind = " behind ledger.url: a copy of the ledger, or a standby that lags\n";
    says(asked(&url("copy"), &[]), WARNING, behind);
    deliver("copy", "three");
    says(asked(&url("copy"), &[]), WARNING, DIFFERENT);
    // `check` reports a login that is refused, also without a password: no service is here that it
    // could be for.
    let stranger = url("onedrop").replace("onedrop@", "stranger@");
    let told = asked(&stranger, &[]);
    assert!(told.starts_with(WARNING) && told.contains(": refuses our login: "), "{told}");
    let wrong = site.password();
    let told = asked(&postgres.url_tcp(), &[("WEB__LEDGER_PASSWORD_FILE", &wrong)]);
    let refused = told
        .lines()
        .any(|line| line.starts_with(WARNING) && line.contains(": refuses our login: "));
    assert!(refused, "{told}");
    // Another user's password is not for this one.
    let user = unix_user(USER);
    let ids = [format!("--reuid={}", user.uid), format!("--regid={}", user.gid)];
    let by = ["/usr/bin/setpriv", "--clear-groups", &ids[0], &ids[1]];
    let mut command = site.command_by(&by);
    let settings = [
        ("LEDGER__URL", &*postgres.url_socket()),
        ("WEB__LEDGER_URL", &postgres.url_tcp()),
        ("WEB__LEDGER_PASSWORD_FILE", &wrong),
    ];
    site.set(&mut command, &settings);
    let told = site.about("web", &mut command);
    let denied = format!("$DIR/password: permission denied to the user {USER}\n");
    assert!(told.starts_with("ok      web.ledger_password_file: $DIR/password\n"), "{told}");
    assert!(told.contains(" was not asked: ") && told.ends_with(&denied), "{told}");
    // Where deliveries' own does not answer, that is all there is to be known.
    let nowhere = "postgres://onedrop@/onedrop?host=/nonexistent";
    let mut command =
        site.command_with(&[("LEDGER__URL", nowhere), ("WEB__LEDGER_URL", &url("onedrop"))]);
    let told = site.about("web", &mut command);
    let unknown = "is not known, which does not answer\n";
    assert!(told.starts_with("ok ") && told.ends_with(unknown), "{told}");
}

#[test]
fn on_mariadb_another_database_of_the_server_is_told() {
    let mariadb = Mariadb::shared_and_empty();
    let names = [mariadb.database().to_owned(), format!("{}_other", mariadb.database())];
    mariadb.create_database(&names[1]);
    let site = CheckSite::good();
    site.write("password", mariadb.password().as_bytes());
    set_mode(site.path("password").as_ref(), 0o600);
    let password = &*site.path("password");
    let ours = mariadb.url_socket();
    let other = ours.replace(&format!("/{}?", names[0]), &format!("/{}?", names[1]));
    for (url, letter) in [(&ours, "one"), (&other, "two")] {
        let letter = letters::from_ann(letter);
        site.on(url, Some(password), &["migrate"], b"");
        site.on(url, Some(password), &["deliver", "-d", "lisa@gmail.com"], letter.as_bytes());
    }
    // Even of the same age, and each with as many messages.
    for database in &names {
        let age = "UPDATE onedrop_ledger SET remembers_since = '2026-11-01 00:00:00'";
        mariadb.sql_in(database, age);
    }
    let asked = |theirs: &str| {
        let told = site.of_pages(&[
            ("LEDGER__URL", &ours),
            ("LEDGER__PASSWORD_FILE", password),
            ("WEB__LEDGER_URL", theirs),
            ("WEB__LEDGER_PASSWORD_FILE", password),
        ]);
        told.lines().find(|line| line.contains("web.ledger_url: ")).unwrap_or_default().to_owned()
    };
    let told = asked(&ours);
    assert!(told.starts_with("ok ") && told.ends_with(" is the ledger of ledger.url"), "{told}");
    let told = asked(&other);
    assert!(told.starts_with("warning ") && told.ends_with(DIFFERENT.trim_end()), "{told}");
}
