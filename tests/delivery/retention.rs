//! `purge`, `forget` and `replay` by the real binary, and the three disasters of docs/backup.md, in
//! the order in which that page says what to do.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::disasters;
use crate::support::fixture_text;
use crate::support::letters::from_ann;
use crate::support::site::{Files, Site, delivered, run};

const TO: [&str; 2] = ["-d", "scuba@mail.axial.net"];

fn site(more: &str) -> (Site<Files>, PathBuf) {
    let site = Site::embedded();
    let config =
        site.config("etc", &format!("[directory]\ndomains = [\"mail.axial.net\"]\n{more}"));
    (site, config)
}

fn out(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&text).into_owned()
}

/// The ledger's files, by their names on the page.
fn ledger_files(site: &Site<Files>) -> Vec<PathBuf> {
    let page = fixture_text("docs/backup.md");
    let (_, part) = page.split_once("SQLite:\n   remove ").expect("how SQLite's is restored");
    let (names, _) = part.split_once(", then copy").expect("what is removed");
    let files: Vec<PathBuf> =
        names.split('`').skip(1).step_by(2).map(|name| site.root.join(name)).collect();
    assert_eq!(files.len(), 3, "{names}");
    files
}

#[test]
fn a_ledger_that_was_lost_costs_no_second_copy() {
    let (site, config) = site("");
    let mail = from_ann("lost");
    delivered(&config, &TO, mail.as_bytes());
    let before = site.inbox("scuba");
    for file in ledger_files(&site) {
        let _ = fs::remove_file(file);
    }
    let said = delivered(&config, &TO, mail.as_bytes());
    assert!(said.starts_with("found "), "{said}");
    assert_eq!(site.inbox("scuba"), before, "byte for byte");
}

#[test]
fn a_ledger_that_is_older_than_the_mailboxes_costs_no_second_copy() {
    let (site, config) = site("");
    delivered(&config, &TO, from_ann("first").as_bytes());
    let backup = site.root.join("backup.db");
    site.sqlite().execute("VACUUM INTO ?1", [backup.to_str()]).expect("a backup");
    delivered(&config, &TO, from_ann("second").as_bytes());
    let before = site.inbox("scuba");
    for file in ledger_files(&site) {
        let _ = fs::remove_file(file);
    }
    fs::copy(&backup, site.root.join("ledger.db")).expect("restored");
    let step_4 = disasters::step_4().replace("= now()", "= unixepoch()");
    site.sqlite().execute_batch(&step_4).expect("step 4 of the page");
    let said = delivered(&config, &TO, from_ann("second").as_bytes());
    assert!(said.starts_with("found "), "{said}");
    let said = delivered(&config, &TO, from_ann("first").as_bytes());
    assert!(said.starts_with("already there "), "{said}");
    assert_eq!(site.inbox("scuba"), before);
}

#[test]
fn mailboxes_that_are_older_than_the_ledger_get_back_what_it_kept() {
    let (site, config) = site("[ledger]\nkeep_raw = true\n");
    delivered(&config, &TO, from_ann("kept").as_bytes());
    delivered(&config, &TO, from_ann("missing").as_bytes());
    let before = site.inbox("scuba");
    let folder = site.root.join("mail/scuba/Maildir/new");
    let is_missing = |path: &PathBuf| {
        fs::read_to_string(path).is_ok_and(|text| text.contains("this is missing"))
    };
    let files = fs::read_dir(&folder).expect("a Maildir");
    let lost: Vec<PathBuf> =
        files.map(|file| file.expect("a file").path()).filter(is_missing).collect();
    lost.iter().for_each(|file| fs::remove_file(file).expect("lost"));
    assert_eq!((lost.len(), site.inbox("scuba").len()), (1, 1));
    let said = delivered(&config, &TO, from_ann("missing").as_bytes());
    assert!(said.starts_with("already there "), "{said}");

    let dry = run(&config, &["forget", "--since", "1h", "--dry-run"]);
    assert!(out(&dry).contains("2 copies would be forgotten"), "{}", out(&dry));
    let forgotten = run(&config, &["forget", "--since", "1h"]);
    assert_eq!(forgotten.status.code(), Some(0), "{}", out(&forgotten));
    assert!(out(&forgotten).contains("2 copies forgotten"), "{}", out(&forgotten));
    let dry = run(&config, &["replay", "--from-ledger", "--dry-run"]);
    assert!(out(&dry).contains("2 copies would be delivered"), "{}", out(&dry));
    assert_eq!(site.inbox("scuba").len(), 1, "nothing is written");
    for _ in 0..2 {
        let replayed = run(&config, &["replay", "--from-ledger"]);
        assert_eq!(replayed.status.code(), Some(0), "{}", out(&replayed));
        let mut is = site.inbox("scuba");
        let mut was = before.clone();
        is.sort();
        was.sort();
        assert_eq!(is, was, "byte for byte, and nothing twice");
    }
}

/// The mail program may have saved its own: `settle` looks for that first.
#[test]
fn a_copy_that_is_due_is_not_written_from_the_ledger() {
    let (site, config) =
        site("[ledger]\nkeep_raw = true\n[sent]\ntrust = \"header\"\nafter = \"10m\"\n");
    let letter = "From: Doug <doug@mail.axial.net>\nSubject: due\nMessage-ID: <due@x>\n\ndue\n";
    let said = delivered(&config, &["-f", "doug@mail.axial.net", TO[0], TO[1]], letter.as_bytes());
    assert!(said.contains("due account=doug mailbox=Sent at="), "{said}");
    let replayed = run(&config, &["replay", "--from-ledger"]);
    assert_eq!(replayed.status.code(), Some(0), "{}", out(&replayed));
    let left = "0 copies delivered, 1 left to onedrop settle";
    assert!(out(&replayed).contains(left), "{}", out(&replayed));
    assert!(site.copies("doug", "Sent").is_empty());
    // Nor is one that was forgotten: the mail program's own may stand there.
    let forgotten = "UPDATE onedrop_copy SET due_at = NULL WHERE mailbox = 'Sent'";
    assert_eq!(site.sqlite().execute(forgotten, []).expect("SQL"), 1);
    let replayed = run(&config, &["replay", "--from-ledger"]);
    assert!(out(&replayed).contains(left), "{}", out(&replayed));
    assert!(site.copies("doug", "Sent").is_empty());
}

/// A store that is away ends it: it does not wait for each of many messages.
#[test]
fn what_the_ledger_kept_is_not_tried_message_by_message_where_no_mailbox_can_be_written() {
    let (site, config) = site("[ledger]\nkeep_raw = true\n");
    let accounts = ["scuba", "doug", "zoe", "max"];
    for number in 0..6 {
        for account in accounts {
            let to = ["-d".to_owned(), format!("{account}@mail.axial.net")];
            let letter = from_ann(&format!("{account}-{number}"));
            delivered(&config, &[to[0].as_str(), to[1].as_str()], letter.as_bytes());
        }
    }
    let forgotten = run(&config, &["forget", "--since", "1h"]);
    assert!(out(&forgotten).contains("24 copies forgotten"), "{}", out(&forgotten));
    let (mail, aside) = (site.root.join("mail"), site.root.join("aside"));
    fs::rename(&mail, &aside).expect("renamed");
    fs::write(&mail, "no folder").expect("a file");
    let replayed = run(&config, &["replay", "--from-ledger"]);
    assert_eq!(replayed.status.code(), Some(75), "{}", out(&replayed));
    let said = out(&replayed);
    assert_eq!(said.matches(": failed store: ").count(), 10, "{said}");
    assert!(said.contains("0 copies delivered, 10 failed\nstopped: "), "{said}");

    // One account's mailbox alone.
    fs::remove_file(&mail).expect("removed");
    fs::rename(&aside, &mail).expect("renamed");
    let (maildir, kept) = (mail.join("doug/Maildir"), mail.join("doug/aside"));
    fs::rename(&maildir, &kept).expect("renamed");
    fs::write(&maildir, "no folder").expect("a file");
    let replayed = run(&config, &["replay", "--from-ledger"]);
    assert_eq!(replayed.status.code(), Some(1), "{}", out(&replayed));
    assert!(out(&replayed).contains("18 copies delivered, 6 failed"), "{}", out(&replayed));
    fs::remove_file(&maildir).expect("removed");
    fs::rename(&kept, &maildir).expect("renamed");
    let replayed = run(&config, &["replay", "--from-ledger", "--json"]);
    assert_eq!(replayed.status.code(), Some(0), "{}", out(&replayed));
    let lines: serde_json::Value = serde_json::from_slice(&replayed.stdout).expect("JSON");
    assert_eq!(lines.as_array().map(Vec::len), Some(6), "{lines}");
    for account in accounts {
        assert_eq!(site.inbox(account).len(), 6, "{account}");
    }
}

#[test]
fn a_purge_forgets_what_is_old_and_the_mailbox_remembers_it() {
    let (site, config) = site("");
    delivered(&config, &TO, from_ann("old").as_bytes());
    site.sqlite()
        .execute("UPDATE onedrop_message SET recorded_at = recorded_at - 40 * 86400", [])
        .expect("40 days ago");
    delivered(&config, &TO, from_ann("new").as_bytes());
    let before = site.inbox("scuba");
    let host = "INSERT INTO onedrop_host (host, program_version, schema_version, seen_at)
                VALUES (?1, '0.1.0', 10, unixepoch() - ?2 * 86400)";
    for (name, days) in [("gone", 8), ("here", 6)] {
        site.sqlite().execute(host, rusqlite::params![name, days]).expect("a host");
    }
    let dry = run(&config, &["purge", "--dry-run"]);
    assert_eq!(out(&dry), "1 message would be forgotten, 1 host\n");
    let early = run(&config, &["purge", "--older-than", "1h"]);
    assert_eq!(early.status.code(), Some(75), "{}", out(&early));
    let purged = run(&config, &["purge", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&purged.stdout).expect("JSON");
    assert_eq!(json["messages"], 1, "{json}");
    assert_eq!((&json["passed_by"], &json["hosts"]), (&0.into(), &1.into()), "{json}");
    assert_eq!(site.ledger("SELECT host FROM onedrop_host"), ["here"]);
    assert_eq!(site.ledger("SELECT CAST(count(*) AS TEXT) FROM onedrop_message"), ["1"]);
    let said = delivered(&config, &TO, from_ann("old").as_bytes());
    assert!(said.starts_with("found "), "{said}");
    assert_eq!(site.inbox("scuba"), before);
}

#[test]
fn bytes_facts_and_messages_go_each_at_its_age() {
    let (site, config) = site("[ledger]\nkeep_raw = true\n[retention]\nfacts_days = 20\n");
    for (name, days) in [("new", 0), ("week-old", 8), ("month-old", 25), ("old", 40)] {
        delivered(&config, &TO, from_ann(name).as_bytes());
        let ago = |set: &str, which: &str| {
            let sql = format!("UPDATE {set} - {days} * 86400 WHERE {which}");
            assert_eq!(site.sqlite().execute(&sql, []).expect("SQL"), 1, "{sql}");
        };
        let message = format!("SELECT id FROM onedrop_message WHERE subject = '{name}'");
        ago("onedrop_copy SET began_at = began_at", &format!("message_id = ({message})"));
        ago("onedrop_raw SET kept_at = kept_at", &format!("message_id = ({message})"));
        ago("onedrop_message SET recorded_at = recorded_at", &format!("subject = '{name}'"));
    }
    let counts = |args: &[&str]| -> [u64; 3] {
        let output = run(&config, &[&["purge", "--json"], args].concat());
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(
            (&json["passed_by"], &json["kept"], &json["attempts"]),
            (&0.into(), &0.into(), &0.into())
        );
        ["messages", "facts", "raw"].map(|name| json[name].as_u64().expect("a number"))
    };
    let on_record = |sql: &str| site.ledger(sql);
    let subjects = "SELECT coalesce(subject, '') FROM onedrop_message ORDER BY id";
    let raw =
        "SELECT subject FROM onedrop_message WHERE id IN (SELECT message_id FROM onedrop_raw)";
    // What goes as a whole is counted among the others, too.
    assert_eq!(counts(&["--dry-run"]), [1, 2, 3]);
    assert_eq!(counts(&["--dry-run", "--older-than", "7d"]), [3, 0, 3]);
    assert_eq!(on_record(subjects), ["new", "week-old", "month-old", "old"], "only told");

    assert_eq!(counts(&[]), [1, 2, 3]);
    assert_eq!(on_record(subjects), ["new", "week-old", ""]);
    assert_eq!(on_record(raw), ["new"]);
    let attempts = "SELECT m.subject FROM onedrop_attempt_text a JOIN onedrop_message m
                    ON m.id = a.message_id ORDER BY m.id";
    assert_eq!(on_record(attempts), ["new", "week-old"]);
    assert_eq!(counts(&[]), [0, 0, 0]);

    let early = run(&config, &["purge", "--older-than", "7d"]);
    let said = out(&early);
    assert!(said.starts_with("2 messages forgotten"), "{said}");
    assert_eq!(on_record(subjects), ["new"]);
    for name in ["week-old", "month-old", "old"] {
        let said = delivered(&config, &TO, from_ann(name).as_bytes());
        assert!(said.starts_with("found "), "{name}: {said}");
    }
    let said = delivered(&config, &TO, from_ann("new").as_bytes());
    assert!(said.starts_with("already there "), "{said}");
    assert_eq!(site.inbox("scuba").len(), 4);
}

#[test]
fn an_account_that_is_forgotten_is_on_record_nowhere() {
    let (site, config) = site("");
    delivered(&config, &TO, from_ann("private").as_bytes());
    let none = run(&config, &["forget", "--account", "nobody"]);
    assert_eq!(none.status.code(), Some(1), "{}", out(&none));
    let both = run(&config, &["forget", "--account", "scuba", "--since", "1h"]);
    assert_eq!(both.status.code(), Some(75), "{}", out(&both));
    let forgotten = run(&config, &["forget", "--account", "scuba", "--json"]);
    assert_eq!(forgotten.status.code(), Some(0), "{}", out(&forgotten));
    site.sqlite().execute_batch("PRAGMA wal_checkpoint(TRUNCATE); VACUUM").expect("written");
    let file = fs::read(site.root.join("ledger.db")).expect("the ledger");
    let holds = |text: &str| file.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(!holds("scuba") && !holds("private") && !holds("ann@"), "{:?}", ["scuba", "private"]);
    let said = delivered(&config, &TO, from_ann("private").as_bytes());
    assert!(said.starts_with("found "), "{said}");
    assert_eq!(site.inbox("scuba").len(), 1);
}

#[test]
fn forget_says_what_a_replay_cannot_deliver_and_what_anothers_sent_still_needs() {
    let (site, config) = site("[ledger]\nkeep_raw = true\n");
    for name in ["kept", "gone"] {
        delivered(&config, &TO, from_ann(name).as_bytes());
    }
    site.sqlite()
        .execute_batch(
            "DELETE FROM onedrop_raw WHERE message_id = 2;
             INSERT INTO onedrop_copy (message_id, account, mailbox, shared, epoch, in_doubt,
                                       prior_doubt, due_at)
             VALUES (1, 'ann', 'Sent', 1, 0, 0, 0, 4e9);
             INSERT INTO onedrop_kept (message_id, why, kept_at, bytes)
             VALUES (1, 'due', 4e9, x'')",
        )
        .expect("a copy that is due");
    let dry = run(&config, &["forget", "--since", "1h", "--dry-run"]);
    let says = "2 copies would be forgotten; of 1 the ledger has no bytes";
    assert!(out(&dry).contains(says), "{}", out(&dry));
    let forgotten = run(&config, &["forget", "--account", "scuba", "--json"]);
    let said = String::from_utf8_lossy(&forgotten.stderr).into_owned();
    assert_eq!(forgotten.status.code(), Some(1), "{said}");
    let says = "1 copy forgotten; passed by 1 other, which another account's Sent still needs: try \
                again when `onedrop settle` is done";
    assert!(said.contains(says), "{said}");
    let lines: serde_json::Value = serde_json::from_slice(&forgotten.stdout).expect("JSON");
    let why = "another account's Sent still needs its Message-ID";
    assert_eq!((&lines[0]["passed_by"], &lines[0]["why"]), (&true.into(), &why.into()));
    assert_eq!((&lines[1]["passed_by"], lines[1]["why"].is_null()), (&false.into(), true));
    site.sqlite().execute_batch("DELETE FROM onedrop_kept").expect("settled");
    let forgotten = run(&config, &["forget", "--account", "scuba"]);
    assert_eq!(forgotten.status.code(), Some(0), "{}", out(&forgotten));
}

#[test]
fn a_migration_of_a_file_says_that_it_waits() {
    let (site, config) = site("");
    delivered(&config, &TO, from_ann("one").as_bytes());
    let writer = site.sqlite();
    writer.execute_batch("BEGIN IMMEDIATE").expect("a writer");
    let mut command = Command::new(env!("CARGO_BIN_EXE_onedrop"));
    let mut migrate = command
        .args(["migrate", "--config"])
        .arg(&config)
        .stderr(Stdio::piped())
        .spawn()
        .expect("onedrop");
    let mut line = String::new();
    let mut told = BufReader::new(migrate.stderr.take().expect("its standard error"));
    told.read_line(&mut line).expect("a line");
    let says = "another process writes to this ledger, perhaps another `onedrop migrate`: waiting";
    assert!(line.starts_with(says), "{line}");
    writer.execute_batch("ROLLBACK").expect("an end");
    assert!(migrate.wait().expect("an end").success());
}
