//! A ledger that refuses the login of the pages: what they say names the key that helps.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use onedrop::config::Config;
use onedrop::hook::{Call, Hook};
use onedrop::ledger::LedgerError;
use onedrop::web;

use crate::served::Served;
use crate::support::mariadb::Mariadb;
use crate::support::postgres::Postgres;
use crate::support::site::{Files, Site};
use crate::support::{set_mode, wait_until};
use crate::wire::{InProcess, LONG};

const OWN_ROLE: &str = "; give the pages a role of their own (web.ledger_url)";
const THEIR_ROLE: &str = " (this is the login of web.ledger_url)";

/// Answers every question with this.
struct Fails(LedgerError);

impl Hook<LedgerError> for Fails {
    fn before(&self, _: &Call<'_>) -> Result<(), LedgerError> {
        Err(self.0.clone())
    }
}

#[test]
fn where_the_login_is_refused_the_key_that_helps_is_named() {
    let own = Config::default();
    let mut theirs = Config::default();
    theirs.web.ledger_url = Some("postgres://reader@db/onedrop".parse().expect("a URL"));
    let login = LedgerError::Login("28P01 no".to_owned());
    let denied = LedgerError::Denied("42501 no".to_owned());
    let away = LedgerError::Unavailable("no route".to_owned());
    for (config, error, hint) in [
        (&own, &login, OWN_ROLE),
        (&own, &denied, OWN_ROLE),
        (&own, &away, ""),
        (&theirs, &login, THEIR_ROLE),
        (&theirs, &denied, THEIR_ROLE),
        (&theirs, &away, ""),
    ] {
        let served = InProcess::with(config, web::LIMITS, Arc::new(Fails(error.clone())));
        let health = served.get("/healthz");
        assert_eq!((health.status, health.body), (503, format!("ledger: {error}{hint}\n")));
        for path in ["/", "/failures", "/search?q=x", "/doubts", "/locks", "/jobs", "/hosts"] {
            let page = served.get(path);
            let says = format!("<p>The ledger: {error}{hint}.</p>");
            assert!(page.body.contains(&says), "{path}: {says}: {page:?}");
        }
        served.end();
    }
}

/// The pages of a ledger whose login is refused, by this `[ledger]` and `[web]`, say so, and end
/// with the hint: to probes, and in the log.
#[track_caller]
fn is_told(site: &Site<Files>, more: &str, says: &str, hint: &str) {
    let config = site.config("web", more);
    let _ = fs::remove_file(config.with_file_name("web.log"));
    let served = Served::start(&config, &[]);
    let health = served.get("/healthz");
    assert_eq!(health.status, 503, "{health:?}");
    assert!(health.body.contains(says), "{says}: {health:?}");
    assert!(health.body.ends_with(&format!("{hint}\n")), "{hint}: {health:?}");
    let log = || fs::read_to_string(&served.log).expect("a log");
    let is_in_log = || log().lines().any(|line| line.contains(says) && line.contains(hint));
    assert!(wait_until(LONG, is_in_log), "{hint}: {}", log());
}

fn password_file(site: &Site<Files>, name: &str, password: &str) -> String {
    let file: PathBuf = site.root.write(name, password);
    set_mode(&file, 0o600);
    file.display().to_string()
}

#[test]
fn on_postgres_a_wrong_password_and_a_missing_grant_are_told_with_the_key() {
    let postgres = Postgres::shared();
    let site = Site::embedded();
    let [right, wrong] = [("right", postgres.password()), ("wrong", "no")]
        .map(|(name, password)| password_file(&site, name, password));
    let ledger = |file: &str| {
        format!("[ledger]\nurl = \"{}\"\npassword_file = \"{file}\"\n", postgres.url_tcp())
    };
    let refused = "refuses our login: ";
    is_told(&site, &ledger(&wrong), refused, OWN_ROLE);
    let web = format!(
        "{}[web]\nledger_url = \"{}\"\nledger_password_file = \"{wrong}\"\n",
        ledger(&right),
        postgres.url_tcp()
    );
    is_told(&site, &web, refused, THEIR_ROLE);
    // One that may log in, and read nothing.
    let nobody = format!("nobody_{}", postgres.database());
    postgres.psql(&format!("CREATE ROLE {nobody} LOGIN"));
    let url = postgres.url_socket().replace("onedrop@", &format!("{nobody}@"));
    let web = format!("{}[web]\nledger_url = \"{url}\"\n", ledger(&right));
    is_told(&site, &web, "lacks a grant for our role: ", THEIR_ROLE);
    let alone = format!("[ledger]\nurl = \"{url}\"\n");
    is_told(&site, &alone, "lacks a grant for our role: ", OWN_ROLE);
}

#[test]
fn on_mariadb_a_wrong_password_is_told_with_the_key() {
    let mariadb = Mariadb::shared();
    let site = Site::embedded();
    let wrong = password_file(&site, "wrong", "no");
    let url = mariadb.url_tcp();
    let ledger = format!("[ledger]\nurl = \"{url}\"\npassword_file = \"{wrong}\"\n");
    is_told(&site, &ledger, ": 1045 Access denied ", OWN_ROLE);
    let web = format!(
        "{}[web]\nledger_url = \"{url}\"\nledger_password_file = \"{wrong}\"\n",
        mariadb.toml()
    );
    is_told(&site, &web, ": 1045 Access denied ", THEIR_ROLE);
}
