//! The three disasters of docs/backup.md on Postgres and IMAP, in the order and in the words of
//! that page; on SQLite and Maildirs they are in `retention.rs`.

use std::fs;
use std::path::Path;
use std::process::Command;

use jiff::fmt::rfc2822;
use jiff::{ToSpan, Zoned};

use crate::support::TempRoot;
use crate::support::dovecot::{Dovecot, MAIL_USER};
use crate::support::letters::{self, from_ann};
use crate::support::lmtp_client::Reply;
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

/// Drops the ledger's database and makes an empty one of the same name.
fn make_the_database_anew(site: &Site) {
    let name = site.postgres.database();
    postgres(site, "dropdb", &["--force", name]);
    postgres(site, "createdb", &["--owner=onedrop", name]);
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
    let site = Site::with_servers();
    let config = site.config("etc", "");
    let mail = from_ann("lost");
    delivered(&config, &TO, mail.as_bytes());
    let before = site.dovecot.messages("scuba", "INBOX");
    make_the_database_anew(&site);
    assert!(page().contains("Make a new one: `onedrop migrate --accept-config`,"));
    onedrop(&config, &["migrate", "--accept-config"]);
    let said = delivered(&config, &TO, mail.as_bytes());
    assert!(said.starts_with("found "), "{said}");
    assert_eq!(site.dovecot.messages("scuba", "INBOX"), before, "byte for byte");
}

/// A Received as Postfix writes it, with that queue id, of that many minutes ago.
fn received(queue_id: &str, minutes: i64) -> String {
    let at = Zoned::now().saturating_sub(minutes.minutes());
    let date = rfc2822::to_string(&at).expect("a date");
    format!(
        "Received: from x (y [192.0.2.1])\n\tby mx.mail.axial.net (Postfix) with ESMTP id \
         {queue_id}\n\tfor <scuba@mail.axial.net>; {date}\n"
    )
}

/// Makes a new ledger in the place of the one that is lost, or that no one has made yet.
fn with_a_new_ledger(site: &Site, config: &Path, option: &str) {
    make_the_database_anew(site);
    onedrop(config, &["migrate", option]);
}

/// Subjects of the messages on record that were looked for, or that were not.
fn looked_for(site: &Site, is: bool) -> String {
    site.postgres.psql(&format!(
        "SELECT coalesce(string_agg(subject, ' ' ORDER BY subject), '') FROM onedrop_message
         WHERE looks_back = {is}"
    ))
}

#[test]
fn a_new_ledger_looks_for_all_but_what_our_own_postfix_took_since_its_birth() {
    let site = Site::with_servers();
    let config = site.config("etc", "");
    let to = |name: &str| -> [String; 4] {
        ["-d", "scuba@mail.axial.net", "--queue-id", &format!("4{name}")].map(str::to_owned)
    };
    let given = |name: &str, mail: &str| {
        let args = to(name);
        delivered(&config, &args.each_ref().map(String::as_str), mail.as_bytes())
    };
    let mail = |name: &str, above: &str| format!("{above}{}", from_ann(name));
    // Postfix left its own field out above what a sender wrote with our name.
    let before = [
        ("ours", mail("ours", &received("4ours", 15))),
        ("forged", mail("forged", &received("4guess", 5))),
        ("none", mail("none", "")),
    ];
    for (name, mail) in &before {
        given(name, mail);
    }
    let stood = site.dovecot.messages("scuba", "INBOX");
    with_a_new_ledger(&site, &config, "--accept-config");
    site.postgres.psql("UPDATE onedrop_ledger SET remembers_since = now() - interval '10 minutes'");
    for (name, mail) in &before {
        let said = given(name, mail);
        assert!(said.starts_with("found "), "{name}: {said}");
    }
    assert_eq!(site.dovecot.messages("scuba", "INBOX"), stood, "byte for byte");
    let said = given("young", &mail("young", &received("4young", 5)));
    assert!(said.starts_with("stored "), "{said}");
    assert_eq!(looked_for(&site, false), "young");
}

#[test]
fn the_first_ledger_of_a_site_looks_for_nothing_that_our_own_postfix_took() {
    let root = TempRoot::new();
    let heard = root.dir_for("heard", MAIL_USER, 0o777);
    let rawlog = format!("protocol imap {{\n  rawlog_dir = {}\n}}\n", heard.display());
    let dovecot = Dovecot::start_high_performance_with(&rawlog);
    let site = Site::with(dovecot);
    let config = site.config("etc", "");
    with_a_new_ledger(&site, &config, "--first");
    // Said twice it is as true.
    onedrop(&config, &["migrate", "--first"]);
    let status = run(&config, &["status"]);
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(status.contains("none yet") && !status.contains("never ended"), "{status}");
    let examined = || {
        let files = fs::read_dir(&heard).expect("what it heard");
        let heard = files.map(|file| fs::read(file.expect("a file").path()).expect("a file"));
        heard.map(|heard| String::from_utf8_lossy(&heard).matches(" EXAMINE ").count()).sum()
    };
    let queued = |name: &str| {
        let queue_id = format!("4{name}");
        let mail = format!("{}{}", received(&queue_id, 300), from_ann(name));
        let args = ["-d", "scuba@mail.axial.net", "--queue-id", &queue_id];
        let said = delivered(&config, &args, mail.as_bytes());
        assert!(said.starts_with("stored "), "{said}");
    };
    // The first one proves whose mailboxes a login shows.
    queued("proves");
    let before: usize = examined();
    queued("queued");
    assert_eq!((looked_for(&site, false).as_str(), examined()), ("proves queued", before));
    // Its age is not known.
    delivered(&config, &TO, from_ann("unknown-age").as_bytes());
    assert_eq!(looked_for(&site, true), "unknown-age");

    // What the program of before has placed: a replay looks for whatever is not on record.
    let folder = site.root.join("old");
    fs::create_dir_all(&folder).expect("a folder");
    let old = format!("{}{}", received("4old", 30), from_ann("old"));
    fs::write(folder.join("1.eml"), &old).expect("a message");
    let mut imap = site.dovecot.session("scuba");
    let appended = imap.append("INBOX", "", old.replace('\n', "\r\n").as_bytes());
    assert!(appended.expect("an answer").is_ok());
    let stood = site.dovecot.messages("scuba", "INBOX");
    let file = folder.join("1.eml");
    let file = file.to_str().expect("a path");
    onedrop(&config, &["replay", "--to", "scuba@mail.axial.net", file]);
    assert_eq!(site.dovecot.messages("scuba", "INBOX"), stood, "byte for byte");

    // Now the ledger knows better what it remembers.
    let refused = run(&config, &["migrate", "--first"]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(75), "{why}");
    assert!(why.contains("the ledger has messages"), "{why}");
}

#[test]
fn a_ledger_after_another_is_not_the_first() {
    let site = Site::with_servers();
    let accounts = "[directory]\ndomains = [\"mail.axial.net\"]\n\
                    accounts = { \"scuba@mail.axial.net\" = \"scuba\" }\n";
    let server = site.server(accounts);
    let mut lmtp = server.client();
    let replies = lmtp.deliver(letters::ANN, &[TO[1]], from_ann("x")).expect("a reply");
    assert!(replies.iter().all(Reply::is_ok), "{replies:?}");
    drop((lmtp, server));
    let config = site.config("etc", accounts);
    make_the_database_anew(&site);
    let refused = run(&config, &["migrate", "--first"]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(75), "{why}");
    assert!(why.contains("in INBOX of account=scuba has fields of Onedrop's"), "{why}");
    // The ledger is there, and looks.
    delivered(&config, &TO, from_ann("y").as_bytes());
    assert_eq!(looked_for(&site, true), "y");
}

#[test]
fn a_ledger_on_postgres_that_is_older_than_the_mailboxes_costs_no_second_copy() {
    let site = Site::with_servers();
    let config = site.config("etc", "");
    delivered(&config, &TO, from_ann("first").as_bytes());
    // What was under way when the backup was made: of the one, Doug's copy came after it; the
    // other had been given back, and was written after it.
    delivered(&config, &TO, from_ann("both").as_bytes());
    delivered(&config, &TO, from_ann("tried").as_bytes());
    site.postgres.psql(
        "UPDATE onedrop_copy SET placed_at = NULL, receipt_kind = NULL, receipt = NULL,
             attempt_ms = NULL, in_doubt = false
         WHERE message_id = (SELECT id FROM onedrop_message WHERE subject = 'tried')",
    );
    let backup = site.root.join("backup.sql");
    let file = format!("--file={}", backup.display());
    postgres(&site, "pg_dump", &[&file, site.postgres.database()]);
    delivered(&config, &TO, from_ann("second").as_bytes());
    delivered(&config, &DOUG, from_ann("both").as_bytes());
    let all = || ["scuba", "doug"].map(|account| site.dovecot.messages(account, "INBOX"));
    let before = all();

    make_the_database_anew(&site);
    let database = site.postgres.database();
    postgres(&site, "psql", &["-qX", "-v", "ON_ERROR_STOP=1", "-d", database, &file]);
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
    let mut site = Site::with_own_dovecot();
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
