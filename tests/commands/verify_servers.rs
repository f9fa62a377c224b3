//! `onedrop verify` through the real binary: every finding at once with Postgres and Dovecot; with
//! SQLite and Maildir what is different there; and how it ends.

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

use crate::support::onedrop;
use crate::support::site::{Site, delivered, run};

#[track_caller]
fn verify_site(config: &Path, args: &[&str]) -> (i32, Vec<serde_json::Value>, String) {
    verify_with(config, &[&["--all"], args].concat())
}

#[track_caller]
fn verify_with(config: &Path, args: &[&str]) -> (i32, Vec<serde_json::Value>, String) {
    let output = run(config, &[&["verify", "--json"], args].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let code = output.status.code().expect("a status");
    if code == 75 {
        return (code, Vec::new(), said);
    }
    let json = String::from_utf8_lossy(&output.stdout).into_owned();
    (
        code,
        serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}\n{said}")),
        said,
    )
}

/// What was found about a message, as `level topic`.
fn about(findings: &[serde_json::Value], name: &str) -> Vec<String> {
    let mine = findings.iter().filter(|finding| finding["message_id"] == format!("<{name}@x>"));
    mine.map(|finding| format!("{} {}", finding["level"], finding["topic"]).replace('"', ""))
        .collect()
}

fn letter(name: &str) -> Vec<u8> {
    format!(
        "From: a@b\nTo: scuba@mail.axial.net\nSubject: {name}\nMessage-ID: <{name}@x>\n\nHello \
             {name}\n"
    )
    .into_bytes()
}

const SCUBA: [&str; 4] = ["-d", "scuba@mail.axial.net", "-f", "a@b"];

#[test]
fn postgres_and_dovecot_agree_again() {
    let site = Site::with_servers();
    let config = site.config("verify", "");
    let names = [
        "fine",
        "double",
        "own",
        "moved",
        "deleted",
        "doubt-copy",
        "doubt-none",
        "marked",
        "twice",
    ];
    for name in names {
        delivered(&config, &SCUBA, &letter(name));
    }
    let psql = |sql: &str| site.postgres.psql(sql);
    let of = |name: &str| {
        format!("message_id = (SELECT id FROM onedrop_message WHERE message_id = '<{name}@x>')")
    };
    let (code, findings, said) = verify_site(&config, &[]);
    assert_eq!((code, findings.len()), (0, 0), "{said}");

    // What a zombie and an owner leave, by hand.
    let date_of = |name: &str, later_secs: u32| {
        psql(&format!(
            "SELECT to_char((recorded_at + {later_secs} * interval '1 s') AT TIME ZONE 'UTC', \
             'DD-Mon-YYYY HH24:MI:SS') || ' +0000' FROM onedrop_message WHERE message_id = \
             '<{name}@x>'"
        ))
    };
    let mut scuba = site.dovecot.session("scuba");
    let mut append = |name: &str, later_secs: u32, trace: &str| {
        let text = format!("{trace}{}", String::from_utf8(letter(name)).expect("text"))
            .replace('\n', "\r\n");
        let options = format!("\"{}\"", date_of(name, later_secs).trim());
        let answer = scuba.append("INBOX", &options, text.as_bytes()).expect("append");
        assert!(answer.is_ok(), "{answer:?}");
    };
    append("double", 0, "X-Spam-Flag: NO\n");
    append("own", 7, "");
    append("twice", 0, "");
    append("marked", 0, "");
    // An equal Message-ID with other content is another message, whatever its date.
    append("fine", 0, "Subject: forged\n");
    let uid_of = |name: &str| -> String {
        let uid = "split_part(receipt, '/', 2)";
        psql(&format!("SELECT {uid} FROM onedrop_copy WHERE {}", of(name))).trim().to_owned()
    };
    for command in [
        "CREATE Kept".to_owned(),
        "SELECT INBOX".to_owned(),
        format!("UID MOVE {} Kept", uid_of("moved")),
        format!("UID STORE {} +FLAGS (\\Deleted)", uid_of("deleted")),
        format!("UID EXPUNGE {}", uid_of("deleted")),
        format!("UID STORE {} +FLAGS (\\Deleted)", uid_of("marked")),
        format!("UID STORE {} +FLAGS (\\Deleted)", uid_of("doubt-none")),
        format!("UID EXPUNGE {}", uid_of("doubt-none")),
    ] {
        let answer = scuba.command(&command).expect("a command");
        assert!(answer.is_ok(), "{command}: {answer:?}");
    }
    let forgotten = "placed_at = NULL, receipt_kind = NULL, receipt = NULL, in_doubt = true, \
                     leased_until = clock_timestamp() - interval '1 second'";
    for name in ["doubt-copy", "doubt-none"] {
        psql(&format!("UPDATE onedrop_copy SET {forgotten} WHERE {}", of(name)));
    }
    psql(&format!(
        "UPDATE onedrop_copy SET epoch = 2, placed_at = placed_at - interval '1 hour' WHERE {}",
        of("twice")
    ));
    psql(&format!("UPDATE onedrop_copy SET epoch = 2 WHERE {}", of("double")));
    let before = site.dovecot.flags("scuba", "INBOX");

    let (code, findings, said) = verify_site(&config, &[]);
    assert_eq!(code, 1, "{said}");
    let expected = [
        ("fine", vec![]),
        ("double", vec!["error double"]),
        ("own", vec!["info other"]),
        ("moved", vec!["info moved"]),
        ("deleted", vec!["info moved"]),
        ("doubt-copy", vec!["error lease"]),
        ("doubt-none", vec!["error lease"]),
        ("marked", vec!["info moved"]),
        ("twice", vec!["error double"]),
    ];
    for (name, expected) in &expected {
        assert_eq!(about(&findings, name), *expected, "{name}: {findings:#?}");
    }
    assert_eq!(site.dovecot.flags("scuba", "INBOX"), before, "without --repair nothing changes");
    // What one delivery wrote and put on record is not looked for, unless that is asked for.
    let (code, findings, said) = verify_with(&config, &["--parallel", "1"]);
    assert!(code == 1 && said.contains("4 copies compared"), "{said}");
    for (name, expected) in &expected {
        let is_doubtful = ["double", "doubt-copy", "doubt-none", "twice"].contains(name);
        let expected = if is_doubtful { expected.clone() } else { vec![] };
        assert_eq!(about(&findings, name), expected, "{name}: {findings:#?}");
    }
    let out = run(&config, &["verify", "--all"]);
    let lines = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(1));
    assert!(
        lines.contains("error    double: account=scuba mailbox=INBOX <double@x>: uid="),
        "{lines}"
    );
    assert!(String::from_utf8_lossy(&out.stderr).contains("9 copies compared"), "{out:?}");
    assert!(!String::from_utf8_lossy(&out.stderr).contains('\r'), "no progress line into a file");

    let (code, findings, said) = verify_site(&config, &["--repair"]);
    assert_eq!(code, 1, "a doubt without a copy waits for Postfix: {said}");
    assert_eq!(about(&findings, "double"), ["repaired double"]);
    assert_eq!(about(&findings, "twice"), ["repaired double"]);
    assert_eq!(about(&findings, "doubt-copy"), ["repaired lease"]);
    assert_eq!(about(&findings, "doubt-none"), ["error lease"]);
    let count = |name: &str| {
        let bodies = site.dovecot.messages("scuba", "INBOX");
        let needle = format!("\r\n\r\nHello {name}\r\n");
        bodies.iter().filter(|body| String::from_utf8_lossy(body).contains(&needle)).count()
    };
    let counts = names.map(|name| (name, count(name)));
    let expected = [
        ("fine", 2),
        ("double", 1),
        ("own", 2),
        ("moved", 0),
        ("deleted", 0),
        ("doubt-copy", 1),
        ("doubt-none", 0),
        ("marked", 2),
        ("twice", 1),
    ];
    assert_eq!(counts, expected);
    let deleted: usize = site
        .dovecot
        .flags("scuba", "INBOX")
        .iter()
        .filter(|flags| flags.iter().any(|flag| flag == "\\Deleted"))
        .count();
    assert_eq!(
        deleted, 1,
        "what its owner has marked as deleted is not expunged: that were a bare EXPUNGE"
    );
    for name in ["double", "twice"] {
        assert!(
            site.dovecot.uids("scuba", "INBOX").contains(&uid_of(name).parse().expect("a uid")),
            "the one on record"
        );
    }
    let settled =
        || psql("SELECT count(*) FROM onedrop_copy WHERE settled_at IS NOT NULL").trim().to_owned();
    assert_eq!(settled(), "0", "the next look sees that what was taken out is gone");

    // The next attempt of Postfix delivers what is missing, and all is well.
    delivered(&config, &SCUBA, &letter("doubt-none"));
    let (code, findings, said) = verify_site(&config, &["--repair"]);
    assert_eq!((code, count("doubt-none")), (0, 1), "{said} {findings:#?}");
    let (code, findings, _) = verify_site(&config, &["--account", "nobody"]);
    assert_eq!((code, findings.len()), (0, 0));
    let (code, _, said) = verify_site(&config, &["--since", "soon"]);
    assert!(code == 75 && said.contains("--since soon"), "{said}");
}

#[test]
fn what_cannot_be_reached_or_is_too_old_is_no_clean_bill() {
    let mut site = Site::with_own_dovecot();
    let config = site.config("verify", "");
    delivered(&config, &SCUBA, &letter("fine"));
    site.dovecot.stop();
    let (code, _, said) = verify_site(&config, &[]);
    assert_eq!(code, 75, "{said}");
    assert!(said.contains("failed   account=scuba: ") && said.contains("1 not compared"), "{said}");
    site.postgres.psql("UPDATE onedrop_ledger SET version = 1");
    let (code, _, said) = verify_site(&config, &[]);
    assert!(
        code == 75 && said.contains("schema version 1,") && said.contains("onedrop migrate"),
        "{said}"
    );
}

#[test]
fn sqlite_and_maildir_agree_again() {
    let site = Site::embedded();
    let config = site.config("verify", "[lock]\nlease_secs = 61\n");
    for name in ["fine", "double", "gone", "doubt"] {
        delivered(&config, &SCUBA, &letter(name));
    }
    let (code, findings, said) = verify_site(&config, &[]);
    assert_eq!((code, findings.len()), (0, 0), "{said}");
    let ledger = site.sqlite();
    let name_of = |name: &str| -> String {
        let sql = "SELECT receipt FROM onedrop_copy c JOIN onedrop_message m ON m.id = \
                   c.message_id WHERE CAST(m.message_id AS TEXT) = ?1";
        ledger.query_row(sql, [format!("<{name}@x>")], |row| row.get(0)).expect("a name")
    };
    let inbox = site.root.join("mail/scuba/Maildir");
    let (double, gone) = (name_of("double"), name_of("gone"));
    // A reader moved the first; what was linked again is a second one under the same name.
    let read = inbox.join("cur").join(format!("{double}:2,S"));
    fs::rename(inbox.join("new").join(&double), &read).expect("a rename");
    let modified = fs::metadata(&read).and_then(|file| file.modified()).expect("a date");
    fs::copy(&read, inbox.join("new").join(&double)).expect("a copy");
    fs::File::options()
        .append(true)
        .open(inbox.join("new").join(&double))
        .and_then(|file| file.set_modified(modified))
        .expect("a date");
    fs::remove_file(inbox.join("new").join(gone)).expect("removal");
    let forget = "UPDATE onedrop_copy SET placed_at = NULL, receipt_kind = NULL, receipt = NULL,
                  in_doubt = 1, leased_until = 1 WHERE message_id =
                  (SELECT id FROM onedrop_message WHERE CAST(message_id AS TEXT) = '<doubt@x>')";
    assert_eq!(ledger.execute(forget, []).expect("SQL"), 1);
    // Two deliveries may have written it.
    let joined = "UPDATE onedrop_copy SET prior_doubt = 1 WHERE message_id =
                  (SELECT id FROM onedrop_message WHERE CAST(message_id AS TEXT) = '<double@x>')";
    assert_eq!(ledger.execute(joined, []).expect("SQL"), 1);

    let (code, findings, _) = verify_site(&config, &[]);
    assert_eq!(code, 1);
    let topics = ["fine", "double", "gone", "doubt"].map(|name| about(&findings, name).join(","));
    assert_eq!(topics, ["", "error double", "info moved", "error lease"]);
    let (code, findings, said) = verify_site(&config, &["--repair"]);
    assert_eq!(code, 0, "all is mended: {said} {findings:#?}");
    assert!(
        read.exists() && !inbox.join("new").join(&double).exists(),
        "the one that was read stays"
    );
    assert_eq!(
        name_of("doubt"),
        fs::read_dir(inbox.join("new"))
            .expect("new")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
            .find(|name| *name == name_of("doubt"))
            .expect("the copy")
    );
    let (code, findings, _) = verify_site(&config, &[]);
    assert_eq!((code, findings.len()), (0, 1), "what its owner deleted is told again");
}

#[test]
fn a_message_piped_into_verify_is_deferred_and_nothing_is_done() {
    let site = Site::embedded();
    let config = site.config("verify", "[lock]\nlease_secs = 61\n");
    let mut command = onedrop();
    // As Postfix' pipe(8) and local(8) start it.
    command
        .args(["verify", "--repair", "--config"])
        .arg(&config)
        .env("MAIL_CONFIG", "/etc/postfix");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("binary");
    // It does not read it.
    drop(std::io::Write::write_all(&mut child.stdin.take().expect("stdin"), b"Subject: x\n\nx\n"));
    let output: Output = child.wait_with_output().expect("the end");
    assert_eq!(output.status.code(), Some(75));
    assert!(output.stdout.starts_with(b"4.3.5 "), "{output:?}");
    assert!(!site.root.join("ledger.db").exists());
}
