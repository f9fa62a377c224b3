//! What `onedrop check` says of the ledger's memory: beside the time that mail waits in queues, as
//! the installed postconf prints it, and beside the last purge.

use super::{CheckSite, fixture_text};
use crate::support::site::run;

const SHORT: &str = "costs a look into its whole mailbox";

impl CheckSite {
    /// With this many days and this `maximal_queue_lifetime`.
    fn memory(&self, days: &str, lifetime: &str) -> String {
        let main = fixture_text("fixtures/postfix/good/main.cf");
        self.write_postfix("main.cf", &format!("{main}\nmaximal_queue_lifetime = {lifetime}\n"));
        let days = [("RETENTION__DAYS", days), ("RETENTION__FACTS_DAYS", "1")];
        self.about("postfix", &mut self.command_with(&days))
    }

    /// With the times in the ledger's row as SQL says, seen from now.
    fn purged(&self, set: &str) -> String {
        let ledger = rusqlite::Connection::open(self.path("ledger.db")).expect("a ledger");
        ledger.execute(&format!("UPDATE onedrop_ledger SET {set}"), []).expect("a row");
        drop(ledger);
        self.about("ledger", &mut self.command())
    }
}

#[test]
fn a_memory_shorter_than_mail_may_wait_is_told() {
    let site = CheckSite::good();
    for (lifetime, enough, short) in
        [("5d", "11", "10"), ("60h", "6", "5"), ("2w", "29", "28"), ("3", "7", "6")]
    {
        let told = site.memory(enough, lifetime);
        assert!(!told.contains(SHORT), "{lifetime}: {told}");
        let told = site.memory(short, lifetime);
        let said =
            format!("warning maximal_queue_lifetime = {lifetime}, and retention.days = {short}: ");
        let line = told.lines().find(|line| line.contains(SHORT));
        let line = line.unwrap_or_else(|| panic!("{lifetime}: {told}"));
        assert!(line.contains(said.trim_start_matches("warning ")), "{line}");
        assert!(line.starts_with("warning "), "{line}");
        assert!(line.ends_with(&format!("set retention.days to {enough} or more")), "{line}");
    }
}

#[test]
fn a_purge_that_has_not_come_for_two_days_is_told() {
    let site = CheckSite::good();
    site.deliver_once();
    let hours = |hours: u32| format!("unixepoch() - {hours} * 3600");
    let told = site.purged(&format!("purged_at = {}", hours(47)));
    assert!(!told.contains("purge"), "{told}");
    let told = site.purged(&format!("purged_at = {}", hours(50)));
    let line = "warning the last purge ended 2d 2h ago: it grows; run \"onedrop purge\" daily";
    assert!(told.contains(line), "{told}");

    // A ledger that was never purged: its age counts.
    let told = site.purged(&format!("purged_at = NULL, remembers_since = {}", hours(47)));
    assert!(!told.contains("purge"), "{told}");
    let told = site.purged(&format!("remembers_since = {}", hours(72)));
    assert!(told.contains("warning nothing has purged it in the 3d of its life"), "{told}");

    let purged = run(site.path("onedrop.toml").as_ref(), &["purge"]);
    assert!(purged.status.success(), "{purged:?}");
    let told = site.purged("version = version");
    assert!(!told.contains("purge"), "{told}");
}
