//! What was put off before it was on record: `status`, `trace` and the metrics show it all the
//! same, by this host's journal. One that the ledger refuses for another configuration is on
//! record.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use crate::command_line::{Admin, Ended, SCUBA};
use crate::support::journal::{self, told_to_the_journal};
use crate::support::{fixture, set_mode};

const ARGS: [&str; 7] =
    ["deliver", "-f", "lisa@gmail.com", "-d", "Scuba@mail.axial.net", "--queue-id", "4Early"];

/// What `deliver` sends to journald as it fails, as journalctl prints it.
fn put_off(admin: &Admin, variable: &str, value: &str) -> Value {
    let mut command = admin.command(&ARGS);
    let (status, told) =
        told_to_the_journal(command.env(variable, value), &fixture("fixtures/mail/welcome.eml"));
    assert_eq!((status.code(), told.len()), (Some(75), 1), "{told:?}");
    let pairs = told[0].lines().filter_map(|line| line.split_once('='));
    let mut record: Map<String, Value> =
        pairs.map(|(name, value)| (name.to_owned(), json!(value))).collect();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    record.insert("__REALTIME_TIMESTAMP".to_owned(), json!(now.as_micros().to_string()));
    record.insert("_HOSTNAME".to_owned(), json!("mx9"));
    record.insert("_PID".to_owned(), json!("77"));
    record.into()
}

fn journalctl(admin: &Admin, records: &[Value]) {
    journal::journalctl(&admin.site.root, records);
}

fn run(admin: &Admin, args: &[&str]) -> Ended {
    let mut command = admin.command(args);
    with_path(admin, &mut command);
    Ended::of(&command.output().expect("onedrop"))
}

fn with_path(admin: &Admin, command: &mut Command) {
    let bin = admin.site.root.join("bin");
    // Postfix' queue is another test's.
    fs::write(bin.join("postqueue"), "#!/bin/sh\n").expect("a program");
    set_mode(&bin.join("postqueue"), 0o755);
    command.env("PATH", format!("{}:/usr/bin:/bin", bin.display())).stdin(Stdio::null());
}

#[test]
fn what_no_ledger_has_is_shown_from_the_journal() {
    let admin = Admin::new();
    let away = "postgres://x@127.0.0.1:9/x?sslmode=disable";
    let config = admin.site.root.join("etc/onedrop.toml").display().to_string();
    let gone = put_off(&admin, "ONEDROP__LEDGER__URL", away);
    let ours = format!("ONEDROP_UNRECORDED={config}");
    assert_eq!(gone["ONEDROP_UNRECORDED"], json!(config));
    let wrong = put_off(&admin, "ONEDROP__STORE__KIND", "none");
    assert_eq!(wrong["ONEDROP_UNRECORDED"], json!(config));

    journalctl(&admin, std::slice::from_ref(&gone));
    let ended = run(&admin, &["status"]);
    let line = "ok         log       last hour: 1 put off before they were on record, the last: \
                4.3.0 ledger: cannot be reached: 127.0.0.1:9: ";
    assert!(ended.out.contains(line) && ended.status == Some(0), "{ended:?}");
    let asked = fs::read_to_string(admin.site.root.join("asked")).expect("a question");
    let fields = asked.lines().find_map(|line| line.strip_prefix("--output-fields="));
    let fields: Vec<&str> = fields.expect("the fields that are read").split(',').collect();
    let read = ["MESSAGE", "_HOSTNAME", "_PID", "ONEDROP_RECIPIENT", "ONEDROP_STATUS"];
    assert!(read.iter().all(|one| fields.contains(one)), "{fields:?}");
    for one in ["--since=-3600s", "--lines=1000", "--output=json", "--all", &ours] {
        assert!(asked.lines().any(|line| line == one), "{one} is not in {asked}");
    }
    // A fault of the set-up wants somebody.
    journalctl(&admin, &[wrong, gone.clone()]);
    let ended = run(&admin, &["status"]);
    let line = "ATTENTION  log       last hour: 2 put off before they were on record, the last: \
                4.3.5 configuration: ";
    let next = format!("  -> journalctl --since -1h '{ours}'\n");
    assert!(ended.out.contains(line) && ended.out.contains(&next), "{ended:?} {next}");
    assert_eq!(ended.status, Some(1));
    let file = admin.site.root.join("onedrop.prom");
    run(&admin, &["status", "--prometheus", &file.display().to_string()]);
    let text = fs::read_to_string(&file).expect("metrics");
    assert!(text.contains("\nonedrop_unrecorded_deliveries 2\n"), "{text}");

    journalctl(&admin, std::slice::from_ref(&gone));
    let ended = run(&admin, &["trace", "--utc", "4Early"]);
    let asked = fs::read_to_string(admin.site.root.join("asked")).expect("a question");
    let matches: Vec<&str> =
        asked.lines().skip_while(|line| !line.starts_with("ONEDROP")).collect();
    let by_name = ["ONEDROP_RECIPIENT=4Early", "ONEDROP_RECIPIENT=4early"];
    let wanted = [&[&*ours, "ONEDROP_QUEUE_ID=4Early", "+", &ours][..], &by_name].concat();
    assert_eq!(matches, wanted, "{asked}");
    for said in [
        "message     not recorded\n",
        " to Scuba@mail.axial.net: tempfail 4.3.0 ledger_down in ",
        "from lisa@gmail.com, mx9 pid 77, queue id 4Early\n",
        "            ledger: cannot be reached: 127.0.0.1:9: ",
        "            not on record: this host's log tells it\n",
    ] {
        assert!(ended.out.contains(said), "{said} is not in {ended:?}");
    }
    assert_eq!(ended.status, Some(0), "{ended:?}");
    // Beside what is on record, and where the ledger cannot be asked.
    let traced = run(&admin, &["trace", "--json", SCUBA]);
    let both: Value = serde_json::from_str(&traced.out).expect("JSON");
    assert_eq!(both.as_array().map(Vec::len), Some(2), "{both}");
    assert_eq!((&both[1]["message"], &both[1]["attempts"][0]["pid"]), (&json!(0), &json!(77)));
    // One that is on record all the same is shown once.
    let (mut known, attempt) = (gone, &both[0]["attempts"][0]);
    known["_PID"] = json!(attempt["pid"].to_string());
    known["ONEDROP_QUEUE_ID"] = attempt["queue_id"].clone();
    known["ONEDROP_RECIPIENT"] = attempt["recipient"].clone();
    journalctl(&admin, std::slice::from_ref(&known));
    let traced = run(&admin, &["trace", "--json", SCUBA]);
    let on_record: Value = serde_json::from_str(&traced.out).expect("JSON");
    assert_eq!(on_record.as_array().map(Vec::len), Some(1), "{on_record}");
    // A server's process makes all tries of a message, each minutes after the one before.
    let mut before = known.clone();
    before["__REALTIME_TIMESTAMP"] = json!("1795700000000000");
    journalctl(&admin, &[known, before]);
    let traced = run(&admin, &["trace", "--json", SCUBA]);
    let both: Value = serde_json::from_str(&traced.out).expect("JSON");
    let times: Vec<&str> = both[1]["attempts"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|one| one["started_at"].as_str())
        .collect();
    assert_eq!(times, ["2026-11-26T13:33:20Z"], "{both}");
    for (by, found) in [("Lisa@", 2), ("nobody@", 0)] {
        let traced = run(&admin, &["trace", "--json", SCUBA, "--sender", by]);
        let traces: Value = serde_json::from_str(&traced.out).expect("JSON");
        assert_eq!(traces.as_array().map(Vec::len), Some(found), "{traces}");
    }
    let traced = run(&admin, &["trace", "--json", SCUBA, "--subject", "e"]);
    assert!(!traced.out.contains("not on record"), "{traced:?}");
    let mut command = admin.command(&["trace", "4Early"]);
    with_path(&admin, &mut command);
    let ended = Ended::of(&command.env("ONEDROP__LEDGER__URL", away).output().expect("onedrop"));
    assert!(ended.out.contains("not on record") && ended.err.contains("cannot be reached"));
    assert_eq!(ended.status, Some(75), "{ended:?}");
}

/// One that is full can be asked, and has none of them on record.
#[test]
fn a_ledger_that_takes_nothing_for_a_while_wants_somebody() {
    let admin = Admin::new();
    let gone =
        put_off(&admin, "ONEDROP__LEDGER__URL", "postgres://x@127.0.0.1:9/x?sslmode=disable");
    let ago = |secs: u64, reason: &str| {
        let at = gone["__REALTIME_TIMESTAMP"].as_str().and_then(|at| at.parse::<u64>().ok());
        let at = at.expect("a time") - secs * 1_000_000;
        let mut one = gone.clone();
        one["__REALTIME_TIMESTAMP"] = json!(at.to_string());
        one["ONEDROP_REASON"] = json!(reason);
        one
    };
    let mut delivered = ago(200, "delivered");
    delivered["ONEDROP_OUTCOME"] = json!("delivered");
    let many: Vec<Value> = (0..1000).map(|secs| ago(10 + secs / 10, "ledger_refused")).collect();
    for (records, level) in [
        (many, "ATTENTION"),
        (vec![ago(10, "ledger_refused"), delivered, ago(320, "ledger_down")], "ok"),
        (vec![ago(10, "ledger_refused"), ago(320, "ledger_down")], "ATTENTION"),
        (vec![ago(10, "ledger_refused"), ago(300, "ledger_refused")], "ok"),
        (vec![ago(1000, "ledger_refused"), ago(2000, "ledger_refused")], "ok"),
        (vec![ago(10, "cut"), ago(320, "ledger_down"), ago(2000, "ledger_down")], "ok"),
    ] {
        journalctl(&admin, &records);
        let ended = run(&admin, &["status"]);
        let is_put_off = |one: &&Value| one["ONEDROP_OUTCOME"] != "delivered";
        let count = match records.iter().filter(is_put_off).count() {
            1000 => "1000 or more".to_owned(),
            count => count.to_string(),
        };
        let line = format!("\n{level:<9}  log       last hour: {count} put off ");
        assert!(ended.out.contains(&line), "{line} {ended:?}");
    }
}

/// Text that a sender wrote shows no control character, and a broken record is passed over.
#[test]
fn the_journal_is_read_with_care() {
    let admin = Admin::new();
    let evil = json!({
        "__REALTIME_TIMESTAMP": "1795700000000000",
        "MESSAGE": "x: to=<a> message-id= tempfail 4.3.0: \u{1b}[31mred\nok",
        "ONEDROP_STATUS": "4.3.0", "ONEDROP_OUTCOME": "tempfail", "ONEDROP_RECIPIENT": "a\u{7}b",
    });
    let bytes = json!({"__REALTIME_TIMESTAMP": "1795700000000000", "MESSAGE": [1, 2, 3]});
    journalctl(&admin, &[json!(7), json!({}), bytes, evil]);
    let ended = run(&admin, &["trace", "a"]);
    assert!(ended.out.contains(" to a b: tempfail 4.3.0 in 0 ms"), "{ended:?}");
    assert!(!ended.out.contains('\u{1b}') && !ended.out.contains('\u{7}'), "{ended:?}");
    assert!(run(&admin, &["status"]).out.contains("last hour: 1 put off "));
}

/// A Message-ID that reads like the end of a record is none.
#[test]
fn a_senders_words_are_not_told_as_the_reason() {
    let admin = Admin::new();
    let mut command = admin.command(&ARGS);
    command.env("ONEDROP__LEDGER__URL", "postgres://x@127.0.0.1:9/x?sslmode=disable");
    let message =
        b"Message-ID: <a@x \" tempfail 4.3.0: all is lost; call 555 \\\" 4.3.0: now>\n\nbody\n";
    let (_, told) = told_to_the_journal(&command, message);
    let text = told[0].lines().find_map(|line| line.strip_prefix("MESSAGE=")).expect("a text");
    assert!(text.contains("all is lost"), "{text}");
    journalctl(
        &admin,
        &[json!({
            "__REALTIME_TIMESTAMP": "1795700000000000", "MESSAGE": text,
            "ONEDROP_STATUS": "4.3.0", "ONEDROP_OUTCOME": "tempfail", "ONEDROP_RECIPIENT": SCUBA,
        })],
    );
    let ended = run(&admin, &["status"]);
    let line = ", the last: 4.3.0 ledger: cannot be reached: 127.0.0.1:9: ";
    assert!(ended.out.contains(line) && !ended.out.contains("lost"), "{ended:?}");
}

/// A command line in master.cf that cannot be read is found where other mistakes of the set-up are.
#[test]
fn a_wrong_command_line_is_told_to_the_journal_where_postfix_calls() {
    let admin = Admin::new();
    let config = admin.site.root.join("etc/onedrop.toml").display().to_string();
    let with_lock = ["with-lock", "--tll", "5m", "x", "--", "onedrop", "--config", "/other"];
    let deliver = ["deliver", "-d", SCUBA, "--queue-di", "4X"];
    for args in [&deliver[..], &with_lock, &["purge"], &["--help"]] {
        let mut command = admin.command(args);
        let (_, told) = told_to_the_journal(&command, b"\n");
        assert_eq!(told, [""; 0], "who calls it by hand sees the line");
        command.env("MAIL_CONFIG", "/etc/postfix").env("ONEDROP_CONFIG", &config);
        let (status, told) = told_to_the_journal(&command, b"\n");
        let [record] = &told[..] else { panic!("{args:?}: {told:?}") };
        assert_eq!(status.code(), Some(75), "{record}");
        let fields = [&*format!("ONEDROP_UNRECORDED={config}"), "ONEDROP_STATUS=4.3.5"];
        for field in fields.into_iter().chain(["PRIORITY=3"]) {
            assert!(record.lines().any(|line| line == field), "no {field} in {record}");
        }
    }
}

#[test]
fn what_the_ledger_refuses_for_another_configuration_is_on_record() {
    let admin = Admin::new();
    let record = put_off(&admin, "ONEDROP__DEDUP__BY", "message-id");
    assert!(record.get("ONEDROP_UNRECORDED").is_none(), "{record}");
    let ended = admin.run(&["trace", "4Early"]);
    let said = ": tempfail 4.3.5 other_config in ";
    assert!(ended.out.contains(said) && ended.status == Some(0), "{ended:?}");
    let status = admin.run(&["status"]);
    assert!(status.out.contains("other_config 1"), "{status:?}");
}
