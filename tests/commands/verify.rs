//! What `onedrop verify` compares by its command line: by default what is recent and was leased
//! more than once, and with `--resume` only what an earlier run did not come to.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::support::letters::from_ann;
use crate::support::site::{Files, Site, delivered, run};

/// Three accounts with a letter each, of which the first came four days ago; their owners have
/// deleted them.
fn site() -> (Site<Files>, PathBuf) {
    let site = Site::embedded();
    // Or each first lease would be in doubt for its message's age.
    site.remember_for_ever();
    let config = site.config("etc", "[directory]\ndomains = [\"mail.axial.net\"]\n");
    for (account, days) in [("ada", 4), ("bea", 0), ("cis", 0)] {
        delivered(
            &config,
            &["-d", &format!("{account}@mail.axial.net")],
            from_ann(account).as_bytes(),
        );
        let new = site.root.join("mail").join(account).join("Maildir/new");
        fs::remove_dir_all(&new).and_then(|()| fs::create_dir(&new)).expect("a Maildir");
        let ages = format!(
            "UPDATE onedrop_message SET recorded_at = recorded_at - {days} * 86400
             WHERE subject = '{account}'"
        );
        assert_eq!(site.sqlite().execute(&ages, []).expect("SQL"), 1);
    }
    (site, config)
}

/// The accounts in the findings.
fn told(config: &Path, args: &[&str]) -> Vec<String> {
    let output = run(config, &[&["verify", "--json"], args].concat());
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{args:?}: {error}: {output:?}"));
    let account = |one: &Value| one["account"].as_str().expect("an account").to_owned();
    findings.iter().map(account).collect()
}

#[test]
fn what_one_clean_lease_wrote_is_compared_only_where_all_is_asked_for() {
    let (site, config) = site();
    assert_eq!(told(&config, &["--since", "7d"]), [""; 0]);
    assert_eq!(told(&config, &["--since", "7d", "--all"]), ["ada", "bea", "cis"]);
    // One that was leased twice is asked for.
    let twice = "UPDATE onedrop_copy SET epoch = 2 WHERE account = 'bea'";
    site.sqlite().execute(twice, []).expect("SQL");
    assert_eq!(told(&config, &[]), ["bea"]);
}

#[test]
fn what_is_older_than_the_window_is_not_compared() {
    let (_site, config) = site();
    assert_eq!(told(&config, &["--all"]), ["bea", "cis"], "two days, if nothing is said");
    assert_eq!(told(&config, &["--all", "--since", "5d"]), ["ada", "bea", "cis"]);
}

#[test]
fn a_run_that_is_resumed_goes_on_behind_the_account_where_the_last_one_stood() {
    let (site, config) = site();
    let file = site.root.join("position");
    let path = file.to_str().expect("a path");
    let since = SystemTime::now() - std::time::Duration::from_secs(7 * 86_400);
    let stood = |account: &str| json!({"since": since, "all": true, "account": account});
    for (account, expected) in [("ada", &["bea", "cis"][..]), ("bea", &["cis"]), ("cis", &[])] {
        fs::write(&file, stood(account).to_string()).expect("a file");
        assert_eq!(told(&config, &["--all", "--resume", path]), expected, "behind {account}");
        assert!(!file.exists(), "the run came to its end");
    }
    // The window is the one of the run that it goes on with.
    fs::write(&file, stood("").to_string()).expect("a file");
    assert_eq!(told(&config, &["--all", "--resume", path]), ["ada", "bea", "cis"]);
}

/// The summary says what was passed over, and why; it is no finding to look into.
#[test]
fn a_copy_that_a_delivery_holds_is_counted_as_such() {
    let (site, config) = site();
    // Of another boot, a lease lasts its own length from this one's begin on.
    let held = "UPDATE onedrop_copy SET leased_until = 1, lease_boot = 'another', placed_at = NULL,
                       lease_ms = 1000000000000 WHERE account = 'bea'";
    assert_eq!(site.sqlite().execute(held, []).expect("SQL"), 1);
    let output = run(&config, &["verify", "--all", "--account", "bea"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("1 copy compared, 1 held by a delivery and passed over"), "{told}");
}
