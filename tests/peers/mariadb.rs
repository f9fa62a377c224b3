//! A MariaDB that breaks, hangs, lies, or is another than the one that was meant, against the
//! binary with Maildirs: each run ends in 75 by its deadline with one sentence, and once the server
//! is well again tries until 0 leave one copy in each mailbox.

use std::path::{Path, PathBuf};

use crate::support::dovecot::certificate;
use crate::support::mariadb::Mariadb;
use crate::support::proxy::{Fault, Proxy, Stage, Upstream};
use crate::support::site::{Files, Site, run};
use crate::support::trial::{End, LETTERS, Letter, PATIENT, for_each};
use crate::support::{TempRoot, chown_recursive, is_full};

const DEADLINE_SECS: u64 = 3;
const SHORT: &str =
    "[lock]\nwait_secs = 0\nlease_secs = 4\n[limits]\ndeadline_secs = 3\nanswer_secs = 1\n";

/// Maildirs, and a ledger in a MariaDB.
struct MariadbSite {
    site: Site<Files>,
    mariadb: Mariadb,
}

impl MariadbSite {
    /// With a ledger at this URL; `more` belongs to `[ledger]`.
    fn config(&self, name: &str, url: &str, more: &str) -> PathBuf {
        let ledger = self.mariadb.toml_at(url);
        self.site.config(name, &format!("{ledger}{more}{LETTERS}{SHORT}"))
    }

    /// With the ledger by way of this proxy.
    fn by(&self, name: &str, proxy: &Proxy, times: &str) -> PathBuf {
        let url = format!("mysql://{0}@127.0.0.1:{1}/{0}", self.mariadb.database(), proxy.port());
        let ledger = self.mariadb.toml_at(&url);
        self.site.config(name, &format!("{ledger}{LETTERS}{times}"))
    }

    fn of(mariadb: Mariadb) -> MariadbSite {
        let at = MariadbSite { site: Site::embedded(), mariadb };
        let config = at.config("migrate", &at.mariadb.url_socket(), "");
        let migrated = run(&config, &["migrate"]);
        assert!(migrated.status.success(), "{migrated:?}");
        at
    }

    #[track_caller]
    fn stands_once(&self, letter: &Letter) {
        assert_eq!(self.site.copies(&letter.recipient(), "").len(), 1, "{letter:?}");
        assert_eq!(self.site.copies(&letter.author(), ".Sent").len(), 1, "{letter:?}");
    }

    fn messages(&self) -> String {
        self.mariadb.sql("SELECT COUNT(*) FROM onedrop_message")
    }
}

/// TLS with `key.pem` and `cert.pem` in the folder, on two addresses of this host, which take no
/// login in clear text.
fn with_tls(keys: &Path) -> Mariadb {
    chown_recursive(keys, "mysql");
    Mariadb::start_with(&[
        &format!("--ssl-cert={}", keys.join("cert.pem").display()),
        &format!("--ssl-key={}", keys.join("key.pem").display()),
        "--require-secure-transport=1",
        "--bind-address=127.0.0.1,127.0.0.2",
    ])
}

#[test]
fn a_mariadb_that_cannot_prove_its_name_gets_no_password_and_no_mail() {
    let (keys, others) = (TempRoot::new(), TempRoot::new());
    certificate(&keys);
    certificate(&others);
    let at = MariadbSite::of(with_tls(&keys));
    let port = at.mariadb.port();
    let url = |host: &str, port: u16| {
        format!("mysql://onedrop@{host}:{port}/onedrop?sslmode=verify-full")
    };
    let ca_file = |keys: &TempRoot| format!("ca_file = \"{}\"\n", keys.join("cert.pem").display());
    let bare = Mariadb::shared_and_empty();
    let letter = Letter::new("tls");
    for (name, url, ca_file, why) in [
        ("other-name", url("127.0.0.2", port), ca_file(&keys), "certificate not valid for name"),
        ("other-authority", url("localhost", port), ca_file(&others), "certificate: BadSignature"),
        (
            "the-systems-authorities",
            url("localhost", port),
            String::new(),
            "invalid peer certificate",
        ),
        ("no-tls", url("localhost", bare.port()), ca_file(&keys), "offers no TLS"),
    ] {
        let refused: End = letter.deliver(&at.config(name, &url, &ca_file));
        refused
            .is(75, "4.3.0 ledger: cannot be reached: ")
            .says("TLS")
            .says(why)
            .within(DEADLINE_SECS);
        assert!(!refused.out.contains(at.mariadb.password()), "{refused:?}");
    }
    let clear = at.config("clear", &format!("mysql://onedrop@127.0.0.1:{port}/onedrop"), "");
    letter.deliver(&clear).is(75, "4.3.").says("ledger: ").within(DEADLINE_SECS);
    assert_eq!(at.messages(), "0");
    let trusted = at.config("trusted", &url("localhost", port), &ca_file(&keys));
    letter.deliver_in_the_end(&trusted).is(0, "stored");
    at.stands_once(&letter);
    let by_tls = "SELECT VARIABLE_VALUE > 0 FROM information_schema.GLOBAL_STATUS \
                  WHERE VARIABLE_NAME = 'SSL_FINISHED_ACCEPTS'";
    assert_eq!(at.mariadb.sql(by_tls), "1");
}

/// Requests of a delivery: one begins the session, the rest records, takes turns and confirms.
#[test]
fn a_mariadb_that_fails_at_any_answer_defers_and_then_gets_one_copy() {
    let at = MariadbSite::of(Mariadb::shared_and_empty());
    let proxy = || Proxy::start(Upstream::Mariadb(at.mariadb.socket()));
    let counted = proxy();
    Letter::new("count").deliver(&at.by("count", &counted, PATIENT)).is(0, "stored");
    let requests = counted.answers();
    assert!((5..=20).contains(&requests), "{requests} requests in a delivery");
    let mut cases = Vec::new();
    for request in 1..=requests {
        cases.push((Stage::Reply(request), Fault::Cut));
        cases.push((Stage::Reply(request), Fault::Freeze));
        cases.push((Stage::Request(request - 1), Fault::Freeze));
    }
    for request in [2, requests] {
        cases.push((Stage::Reply(request), Fault::Drip));
        // An empty packet; an error without its text; a row where none was announced; a request
        // for a file of ours; more columns than memory has room for.
        cases.push((Stage::Reply(request), Fault::Say(b"\x00\x00\x00\x01")));
        cases.push((Stage::Reply(request), Fault::Say(b"\x01\x00\x00\x01\xff")));
        cases.push((Stage::Reply(request), Fault::Say(b"\x02\x00\x00\x01\x01x")));
        cases.push((Stage::Reply(request), Fault::Say(b"\x0c\x00\x00\x01\xfb/etc/passwd")));
        let columns = b"\x09\x00\x00\x01\xfe\xff\xff\xff\xff\xff\xff\xff\xff";
        cases.push((Stage::Reply(request), Fault::Say(columns)));
        cases.push((Stage::Reply(request), Fault::Flood(b"\xff\xff\xff\x01\x01")));
    }
    cases.push((Stage::Greeting, Fault::Flood(b"\xff\xff\xff\x00\x0a")));
    let mut cases: Vec<_> = cases.into_iter().enumerate().collect();
    if !is_full() {
        cases.retain(|(number, _)| number % 4 == 0);
    }
    for_each(&cases, cases.len().min(12), |(number, (stage, fault))| {
        let (proxy, name) = (proxy(), format!("my-{number}"));
        let (letter, config) = (Letter::new(&name), at.by(&name, &proxy, SHORT));
        proxy.plan(*stage, *fault);
        let end = letter.deliver(&config);
        assert!(proxy.reached() > 0, "nobody came to the fault: {end:?}");
        // A ledger that is lost while a copy is written may be reached again for the receipt.
        let may_recover = !matches!(fault, Fault::Freeze | Fault::Drip);
        match may_recover && end.status.success() {
            true => end.is(0, "stored"),
            false => end.is(75, "4.3.0 "),
        };
        end.within(DEADLINE_SECS);
        proxy.heal();
        letter.deliver_in_the_end(&config);
        at.stands_once(&letter);
    });
}
