//! What should have been and was not: a verify that is not run, hosts that are all gone, jobs that
//! cannot be read.

use std::fs;
use std::process::Stdio;

use serde_json::Value;

use super::{Line, line_after, lines, status};
use crate::command_line::{Admin, Ended};

/// The line `verify` and the exit status after this SQL, where nothing else wants attention.
fn verify_after(admin: &Admin, sql: &str) -> (String, String, Option<i32>) {
    let sql = format!("{sql}; UPDATE onedrop_ledger SET purged_at = $NOW");
    let (level, text) = line_after(admin, &sql, "verify");
    (level, text, status(admin, "", &[]).status)
}

fn told(level: &str, text: &str, exit: i32) -> (String, String, Option<i32>) {
    (level.to_owned(), text.to_owned(), Some(exit))
}

/// A job on record whose last run ended with 0 `ago` seconds ago.
fn succeeded(job: &str, ago: u64) -> String {
    format!(
        "INSERT OR REPLACE INTO onedrop_job (name, revision, value, schedule, pause_note, \
         paused_at, epoch, open_try, next_try, first_seen, seen_at, last_start, last_end, \
         last_success, last_exit, last_error, errors, runs)
         VALUES ('{job}', 1, x'00', '', '', $NOW, 1, 0, 1, $NOW, $NOW, $NOW - {ago}, $NOW - {ago}, \
         $NOW - {ago}, 0, '', 0, 1)"
    )
}

const DAY: u64 = 86_400;

#[test]
fn a_verify_that_nobody_runs_wants_attention() {
    let admin = Admin::new();
    let age = |secs: u64| format!("UPDATE onedrop_ledger SET remembers_since = $NOW - {secs}");
    let after = |sql: &str| verify_after(&admin, sql);
    assert_eq!(after(&age(2 * DAY - 600)), told("ok", "no job has run it", 0));
    let never = "no job has run it, and the ledger remembers for 40d  -> onedrop verify --since \
                 41d --repair";
    assert_eq!(after(&age(40 * DAY)), told("ATTENTION", never, 1));
    let figures = status(&admin, "", &["--json"]).out;
    let figures: Value = serde_json::from_str(&figures).expect("JSON");
    let unverified = figures["figures"]["unverified_secs"].as_u64().expect("seconds");
    assert!((40 * DAY..40 * DAY + 3600).contains(&unverified), "{unverified}");
    // Of what there is not nothing can be in doubt.
    let none = "DELETE FROM onedrop_message";
    assert_eq!(after(none), told("ok", "no job has run it", 0));
}

#[test]
fn a_verify_that_runs_no_more_wants_attention() {
    let admin = Admin::with(
        "[jobs.nightly]\nschedule = \"@daily\"\n\
         command = [\"sh\", \"-c\", \"/usr/bin/onedrop --color never verify --since 48h\"]\n\
         [jobs.backup]\nschedule = \"@daily\"\ncommand = [\"pgbackrest\", \"verify\"]\n\
         [jobs.asked]\nschedule = \"@daily\"\n\
         command = [\"onedrop\", \"jobs\", \"check\", \"verify\"]\n",
    );
    let age = format!("UPDATE onedrop_ledger SET remembers_since = $NOW - {}", 40 * DAY);
    let after = |sql: String| verify_after(&admin, &format!("{age}; {sql}"));
    // The shipped job, also on a host that does not have it in its configuration.
    let stopped = "ended 30d ago, and no job has run it since  -> onedrop verify --since 33d \
                   --repair";
    let others = ["backup", "asked"].map(|name| succeeded(name, 600)).join(";");
    let paused = [succeeded("nightly", 35 * DAY), succeeded("verify", 30 * DAY), others].join(";");
    assert_eq!(after(paused), told("ATTENTION", stopped, 1));
    let well = told("ok", "ended 1d 23h ago, nothing left to repair", 0);
    assert_eq!(after(succeeded("verify", 2 * DAY - 600)), well);
    assert_eq!(after(succeeded("verify", 30 * DAY)).0, "ATTENTION");
    assert_eq!(after(succeeded("nightly", 2 * DAY - 600)), well);
}

#[test]
fn the_command_for_a_doubt_reaches_it_for_an_hour_to_come() {
    let admin = Admin::new();
    for (minutes, since) in [(46 * 60, "48h"), (47 * 60 + 30, "3d"), (71 * 60 + 30, "4d")] {
        let sql = format!(
            "UPDATE onedrop_message SET recorded_at = $NOW - {};
             INSERT OR REPLACE INTO onedrop_unsettled SELECT id, 0 FROM onedrop_copy;
             UPDATE onedrop_copy SET placed_at = NULL, receipt_kind = NULL, receipt = NULL,
                 in_doubt = 1, epoch = 2, leased_until = NULL;",
            minutes * 60
        );
        let (level, text) = line_after(&admin, &sql, "doubts");
        assert_eq!(level, "ATTENTION", "{text}");
        let command = format!("  -> onedrop verify --since {since} --repair");
        assert!(text.ends_with(&command), "{minutes}: {text}");
    }
}

#[test]
fn where_all_hosts_are_gone_the_last_one_is_named() {
    let admin = Admin::new();
    let seen = |host: &str, days: u64| {
        format!(
            "INSERT INTO onedrop_host VALUES ('{host}', '0.1.0', 11, $NOW - {}, 0);",
            days * DAY
        )
    };
    let gone = seen("mx1", 2) + &seen("mx2", 3);
    let (level, text) = line_after(&admin, &gone, "hosts");
    assert_eq!(level, "ok", "mail comes by a host that only runs deliver: {text}");
    // It may have run the server until then.
    let of_it = "UPDATE onedrop_host SET host = (SELECT host FROM onedrop_attempt LIMIT 1)
                 WHERE host = 'mx1'";
    let (level, now) = line_after(&admin, of_it, "hosts");
    assert_eq!((&*level, now), ("ok", text));
    let back = "UPDATE onedrop_host SET host = 'mx1' WHERE host <> 'mx2'";
    line_after(&admin, back, "hosts");
    let (level, text) = line_after(&admin, "DELETE FROM onedrop_attempt", "hosts");
    assert_eq!(level, "ATTENTION");
    let last =
        "none seen of late, the last was mx1 2d ago  -> ssh mx1 systemctl status 'onedrop-*'";
    assert_eq!(text, last);
    assert_eq!(status(&admin, "", &[]).status, Some(1));
    let (level, _) = line_after(&admin, "DELETE FROM onedrop_host", "hosts");
    assert_eq!(level, "ok", "a ledger that nobody has used yet");
}

#[test]
fn jobs_that_cannot_be_read_are_one_line_and_a_gauge() {
    let admin = Admin::with("[jobs.report]\nschedule = \"at night\"\ncommand = [\"true\"]\n");
    let ended = status(&admin, "", &[]);
    assert_eq!(ended.status, Some(1), "{ended:?}");
    let lines = lines(&ended.out);
    let jobs: Vec<&Line> = lines.iter().filter(|line| line.1 == "jobs").collect();
    let [Line("ATTENTION", _, text)] = jobs[..] else { panic!("{jobs:?}") };
    assert!(text.starts_with("this host runs no job: ") && text.ends_with("  -> onedrop check"));
    let file = admin.site.root.join("onedrop.prom");
    let gauge = |admin: &Admin| {
        let mut command = admin.command(&["status", "--prometheus"]);
        let ended = Ended::of(&command.arg(&file).stdin(Stdio::null()).output().expect("onedrop"));
        assert_eq!(ended.status, Some(0), "{ended:?}");
        let text = fs::read_to_string(&file).expect("metrics");
        let line = text.lines().find_map(|line| line.strip_prefix("onedrop_jobs_config_ok "));
        line.unwrap_or_else(|| panic!("no gauge in\n{text}")).to_owned()
    };
    assert_eq!(gauge(&admin), "0");
    assert_eq!(gauge(&Admin::new()), "1");
}
