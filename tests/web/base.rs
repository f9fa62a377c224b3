//! The pages of a ledger that is not of this program's schema version: one of the version before is
//! shown as it is, and for another the page says what to do.

use crate::served::Served;
use crate::support::mariadb::Mariadb;
use crate::support::postgres::Postgres;
use crate::support::site::{Files, Site};
use crate::support::{base_ledger, wait_until};
use crate::wire::LONG;

/// Each page, and what it has of the ten messages that are there.
const PAGES: [(&str, &[&str]); 9] = [
    ("/healthz", &["ok\n"]),
    ("/", &["The last day"]),
    ("/search?q=scuba@mail.axial.net", &["&#60;9@upgrade&#62;", "&#60;0@upgrade&#62;"]),
    ("/search?q=doug", &["&#60;8@upgrade&#62;", "&#60;0@upgrade&#62;"]),
    ("/failures", &["<h1>Failures</h1>"]),
    ("/doubts", &["<h1>Doubts</h1>"]),
    ("/jobs", &["note"]),
    ("/locks", &["<h1>Locks</h1>"]),
    ("/hosts", &["<h1>Hosts</h1>"]),
];

/// Serves a ledger whose schema is of version 10, and then says that it is of another.
#[track_caller]
fn all_is_shown(site: &Site<Files>, ledger: &str, sql: impl Fn(&str)) {
    let served = Served::start(&site.config("web", ledger), &[]);
    for (path, parts) in PAGES {
        let page = served.page(path);
        for part in parts {
            assert!(page.contains(part), "{path}: {part}: {page}");
        }
        assert!(!page.contains("The ledger: "), "{path}: {page}");
    }
    let found = served.get("/search?q=2@upgrade");
    let story = served.page(found.field("location").unwrap_or_else(|| panic!("{found:?}")));
    for part in ["&#60;2@upgrade&#62;", "scuba", "doug", "placed", "delivered"] {
        assert!(story.contains(part), "{part}: {story}");
    }
    assert_eq!(served.page("/search?q=doug").matches("@upgrade&#62;</a>").count(), 5);
    // Neither an older nor a newer one is guessed at.
    for (version, says) in [
        (9, "has schema version 9, of a trial before the first release"),
        (13, "has schema version 13, which takes programs of version 13 and later"),
    ] {
        sql(&format!("UPDATE onedrop_ledger SET version = {version}, oldest_program = {version}"));
        // An answer is kept for a while.
        let is_told = || {
            let health = served.get("/healthz");
            health.status == 503 && health.body.starts_with(&format!("ledger: {says}"))
        };
        assert!(wait_until(LONG, is_told), "{:?}", served.get("/healthz"));
        for (path, _) in &PAGES[1..] {
            let page = served.get(path);
            let is_begun = page.field("transfer-encoding").is_some();
            assert!(page.status == 503 || is_begun, "{version} {path}: {page:?}");
            let told = page.body.matches(&format!("<p>The ledger: {says}")).count();
            assert_eq!(told, 1, "{version} {path}: {page:?}");
        }
    }
}

#[test]
fn a_ledger_of_the_version_before_is_shown_on_sqlite() {
    let site = Site::embedded();
    let ledger = rusqlite::Connection::open(site.root.join("ledger.db")).expect("a file");
    base_ledger::load_into_sqlite(&ledger);
    ledger.pragma_update(None, "journal_mode", "wal").expect("WAL");
    all_is_shown(&site, "", |sql| ledger.execute_batch(sql).expect("a change"));
}

#[test]
fn a_ledger_of_the_version_before_is_shown_on_postgres() {
    let (site, postgres) = (Site::embedded(), Postgres::shared_and_empty());
    base_ledger::load_into_postgres(&postgres);
    all_is_shown(&site, &postgres.toml(), |sql| drop(postgres.psql(sql)));
}

#[test]
fn a_ledger_of_the_version_before_is_shown_on_mariadb() {
    let (site, mariadb) = (Site::embedded(), Mariadb::shared_and_empty());
    base_ledger::load_into_mariadb(&mariadb, mariadb.database());
    all_is_shown(&site, &mariadb.toml(), |sql| drop(mariadb.sql(sql)));
}

#[test]
fn a_database_without_a_schema_is_to_be_migrated() {
    let (site, postgres) = (Site::embedded(), Postgres::shared_and_empty());
    let served = Served::start(&site.config("web", &postgres.toml()), &[]);
    let says = "has no schema yet, this program needs version 11: run `onedrop migrate`";
    assert_eq!(served.get("/healthz").body, format!("ledger: {says}\n"));
    for path in ["/", "/m/1", "/search?q=x", "/locks", "/jobs", "/hosts"] {
        let page = served.get(path);
        assert_eq!(page.status, 503, "{page:?}");
        assert!(page.body.contains(&format!("<p>The ledger: {says}.</p>")), "{path}: {page:?}");
    }
}
