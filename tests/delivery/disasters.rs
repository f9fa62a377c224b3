//! The three disasters of docs/backup.md on Postgres and IMAP, in the order and in the words of
//! that page; on SQLite and Maildirs they are in `retention.rs`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::letters::from_ann;
use crate::support::postgres::bin;
use crate::support::site::{Site, delivered, run};

const TO: [&str; 2] = ["-d", "scuba@mail.axial.net"];
const DOUG: [&str; 2] = ["-d", "doug@mail.axial.net"];

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/backup.md");
    fs::read_to_string(path).expect("the page")
}

/// What the page says of a ledger that was restored.
pub fn step_4() -> String {
    let page = page();
    let step = page.split_once("   ```sql\n").and_then(|(_, rest)| rest.split_once("   ```"));
    let (statements, _) = step.expect("step 4 of the page");
    assert!(statements.contains("remembers_since = now();"), "{statements}");
    statements.to_owned()
}

/// A program of Postgres, as its superuser.
fn postgres(site: &Site, program: &str, args: &[&str]) {
    let mut command = Command::new(bin(program));
    command.arg("-h").arg(site.postgres.socket_dir()).args(["-U", "postgres"]);
    crate::support::run(command.args(["-p", &site.postgres.port().to_string()]).args(args));
}

/// An administrator's command that must succeed; returns all it said.
fn onedrop(config: &Path, args: &[&str]) -> String {
    let output = run(config, args);
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{args:?}: {said}");
    said
}

#[test]
fn a_ledger_on_postgres_that_was_lost_costs_no_second_copy() {
    let site = Site::with_own_postgres();
    let config = site.config("etc", "");
    let mail = from_ann("lost");
    delivered(&config, &TO, mail.as_bytes());
    let before = site.dovecot.messages("scuba", "INBOX");
    postgres(&site, "dropdb", &["--force", "onedrop"]);
    postgres(&site, "createdb", &["--owner=onedrop", "onedrop"]);
    assert!(page().contains("Make a new one: `onedrop migrate --accept-config`,"));
    onedrop(&config, &["migrate", "--accept-config"]);
    let said = delivered(&config, &TO, mail.as_bytes());
    assert!(said.starts_with("found "), "{said}");
    assert_eq!(site.dovecot.messages("scuba", "INBOX"), before, "byte for byte");
}

#[test]
fn a_ledger_on_postgres_that_is_older_than_the_mailboxes_costs_no_second_copy() {
    let site = Site::with_own_postgres();
    let config = site.config("etc", "");
    delivered(&config, &TO, from_ann("first").as_bytes());
    // What was under way when the backup was made: of the one, Doug's copy came after it; the
    // other had been given back, and was written after it.
    delivered(&config, &TO, from_ann("both").as_bytes());
    delivered(&config, &TO, from_ann("tried").as_bytes());
    site.postgres.psql(
        "UPDATE onedrop_copy SET placed_at = NULL, receipt_kind = NULL, receipt = NULL,
             attempt_id = NULL, in_doubt = false
         WHERE message_id = (SELECT id FROM onedrop_message WHERE subject = 'tried')",
    );
    let backup = site.root.join("backup.sql");
    let file = format!("--file={}", backup.display());
    postgres(&site, "pg_dump", &[&file, "onedrop"]);
    delivered(&config, &TO, from_ann("second").as_bytes());
    delivered(&config, &DOUG, from_ann("both").as_bytes());
    let all = || ["scuba", "doug"].map(|account| site.dovecot.messages(account, "INBOX"));
    let before = all();

    postgres(&site, "dropdb", &["--force", "onedrop"]);
    postgres(&site, "createdb", &["--owner=onedrop", "onedrop"]);
    postgres(&site, "psql", &["-qX", "-v", "ON_ERROR_STOP=1", "-d", "onedrop", &file]);
    onedrop(&config, &["migrate"]);
    site.postgres.psql(&step_4());
    for (to, name) in [(TO, "second"), (DOUG, "both"), (TO, "tried")] {
        let said = delivered(&config, &to, from_ann(name).as_bytes());
        assert!(said.starts_with("found "), "{name}: {said}");
    }
    let said = delivered(&config, &TO, from_ann("first").as_bytes());
    assert!(said.starts_with("already there "), "{said}");
    assert_eq!(all(), before);
}

#[test]
fn mailboxes_on_dovecot_that_are_older_than_the_ledger_get_back_what_it_kept() {
    let mut site = Site::with_own_postgres();
    let config = site.config("etc", "[ledger]\nkeep_raw = true\n");
    delivered(&config, &TO, from_ann("kept").as_bytes());
    let (maildir, backup) = (site.dovecot.maildir("scuba"), site.root.join("backup"));
    let copy = |from: &Path, to: &Path| {
        crate::support::run(Command::new("cp").arg("-a").args([from, to]));
    };
    copy(&maildir, &backup);
    delivered(&config, &TO, from_ann("missing").as_bytes());
    let mut before = site.dovecot.messages("scuba", "INBOX");
    before.sort();
    site.dovecot.stop();
    fs::remove_dir_all(&maildir).expect("lost");
    copy(&backup, &maildir);
    site.dovecot.start_again();
    assert_eq!(site.dovecot.messages("scuba", "INBOX").len(), 1);
    let said = delivered(&config, &TO, from_ann("missing").as_bytes());
    assert!(said.starts_with("already there "), "the page says so: {said}");

    for command in ["onedrop forget --since", "onedrop replay --from-ledger"] {
        assert!(page().contains(command), "{command}");
    }
    let dry = onedrop(&config, &["forget", "--since", "1h", "--dry-run"]);
    assert!(dry.contains("2 copies would be forgotten"), "{dry}");
    let forgotten = onedrop(&config, &["forget", "--since", "1h"]);
    assert!(forgotten.contains("2 copies forgotten"), "{forgotten}");
    for _ in 0..2 {
        onedrop(&config, &["replay", "--from-ledger"]);
        let mut is = site.dovecot.messages("scuba", "INBOX");
        is.sort();
        assert_eq!(is, before, "byte for byte, and nothing twice");
    }
}
