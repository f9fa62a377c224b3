//! A real Postfix hands mail to the real binary, which records it in a real MariaDB and places it
//! in a real Dovecot.

use std::path::PathBuf;
use std::time::Duration;

use crate::support::letters::from_lisa;
use crate::support::mariadb::Mariadb;
use crate::support::postfix::{Postfix, PostfixSpec};
use crate::support::site::{STORY, Site, run};
use crate::support::{onedrop_path, wait_until};

/// See `end_to_end.rs`.
const LONG: Duration = Duration::from_secs(240);
const LISA: &str = "lisa@gmail.com";

/// A site whose ledger is in MariaDB.
struct MariadbSite {
    site: Site,
    mariadb: Mariadb,
}

impl MariadbSite {
    fn start() -> MariadbSite {
        let at = MariadbSite { site: Site::with_servers(), mariadb: Mariadb::start() };
        let migrated = run(&at.config("migrate", STORY), &["migrate"]);
        assert!(migrated.status.success(), "{migrated:?}");
        at
    }

    fn config(&self, name: &str, more: &str) -> PathBuf {
        let url = self.mariadb.url_socket();
        // The passwords of both rigs' databases are the same.
        let ledger = format!("[ledger]\nurl = \"{url}\"\npassword_file = \"$DIR/ledger.password\"");
        assert_eq!(self.mariadb.password(), self.site.postgres.password());
        self.site.config(name, &format!("{ledger}\n{more}"))
    }

    fn postfix(&self, more: &str) -> Postfix {
        let config = Some(self.config("etc", more));
        Postfix::start(&PostfixSpec {
            config,
            retry_secs: Some(1),
            ..PostfixSpec::new(onedrop_path())
        })
    }

    /// Copies placed, copies in all.
    fn copies(&self, message_id: &str) -> String {
        self.mariadb.sql(&format!(
            "SELECT CONCAT(COUNT(c.placed_at), ' of ', COUNT(*)) FROM onedrop_message m
             JOIN onedrop_copy c ON c.message_id = m.id
             WHERE CAST(m.message_id AS CHAR) LIKE '%{message_id}%'"
        ))
    }
}

#[test]
fn lisa_writes_to_scuba_and_doug_and_then_mariadb_crashes() {
    let mut at = MariadbSite::start();
    let postfix = at.postfix(STORY);
    let to = ["scuba@mail.axial.net", "doug+jazz@mail.axial.net"];
    let queue_id = postfix.send(LISA, &to, &from_lisa("story"));
    assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());
    assert_eq!(at.site.dovecot.count("scuba", "INBOX"), 1);
    assert_eq!(at.site.dovecot.count("doug", "INBOX"), 1);
    assert_eq!(at.site.dovecot.count("lisa", "Sent"), 1);
    assert_eq!(at.copies("story"), "3 of 3");
    assert!(!postfix.log().contains("status=deferred"), "{}", postfix.log());
    let trace = run(&at.config("trace", STORY), &["trace", &queue_id]);
    let trace = String::from_utf8_lossy(&trace.stdout).into_owned();
    assert!(
        trace.contains("story@mail.gmail.com") && trace.matches("delivered 2.0.0").count() == 2,
        "{trace}"
    );
    // Sent again, as Postfix does where an answer was lost: nothing is added.
    postfix.send(LISA, &to, &from_lisa("story"));
    assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());
    assert_eq!(
        (at.site.dovecot.count("scuba", "INBOX"), at.copies("story").as_str()),
        (1, "3 of 3")
    );

    at.mariadb.stop_immediate();
    let queue_id = postfix.send(LISA, &["scuba@mail.axial.net"], &from_lisa("crash"));
    let is_deferred = || {
        let attempts = postfix.attempts(&queue_id);
        attempts.iter().any(|line| line.contains("status=deferred") && line.contains("4.3.0"))
    };
    assert!(wait_until(LONG, is_deferred), "{}", postfix.log());
    assert!(!postfix.log().contains(at.mariadb.password()));
    at.mariadb.restart();
    postfix.flush();
    assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());
    assert_eq!(at.site.dovecot.count("scuba", "INBOX"), 2);
    assert_eq!(at.copies("crash"), "2 of 2");
    let verified = run(&at.config("verify", STORY), &["verify"]);
    assert!(verified.status.success(), "{verified:?}");
}

/// What the program refuses when it delivers, `check` has said before.
#[test]
fn check_tells_of_a_server_that_may_lose_commits() {
    let at = MariadbSite::start();
    let check = |name: &str| {
        let output = run(&at.config(name, STORY), &["check"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let good = check("good");
    let place = format!("mysql:///onedrop?socket={}", at.mariadb.socket().display());
    assert!(good.contains(&format!("{place}, schema version")), "{good}");
    assert!(good.contains("two sessions exclude each other"), "{good}");
    at.mariadb.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 2");
    let bad = check("bad");
    assert!(bad.contains("innodb_flush_log_at_trx_commit is 2 (set it to 1)"), "{bad}");
    assert!(!bad.contains("two sessions exclude each other"), "{bad}");
    assert!(!bad.contains(at.mariadb.password()), "{bad}");
}
