//! A real Postfix hands mail to the real binary, which records it in a real Postgres and places it
//! in a real Dovecot.

use std::fs;
use std::time::Duration;

use crate::support::dovecot::{Dovecot, MAIL_USER};
use crate::support::letters::{from_ann, from_lisa};
use crate::support::postfix::{Delivery, Postfix, PostfixSpec, UNIX_DOMAIN};
use crate::support::site::{STORY, Site, deliver, delivered, run};
use crate::support::{TempRoot, onedrop_path, wait_until};

const LONG: Duration = Duration::from_secs(240);
const LISA: &str = "lisa@gmail.com";

fn spec(site: &Site, more: &str) -> PostfixSpec {
    PostfixSpec { config: Some(site.config("etc", more)), ..PostfixSpec::new(onedrop_path()) }
}

fn recipients(count: usize) -> Vec<String> {
    (1..=count).map(|n| format!("r{n}@mail.axial.net")).collect()
}

#[test]
fn lisa_writes_to_scuba_and_doug() {
    let site = Site::with_servers();
    let postfix = Postfix::start(&spec(&site, STORY));
    let queue_id = postfix.send(
        LISA,
        &["scuba@mail.axial.net", "doug+jazz@mail.axial.net"],
        &from_lisa("story"),
    );
    assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());

    site.story_is_told("story");

    let log = postfix.log();
    assert!(!log.contains("status=deferred"), "{log}");
    assert!(log.contains("stored account=scuba mailbox=INBOX uid="), "{log}");
    let trace = run(&site.config("trace", STORY), &["trace", &queue_id]);
    let trace = String::from_utf8_lossy(&trace.stdout).into_owned();
    assert!(
        trace.contains("story@mail.gmail.com") && trace.matches("delivered 2.0.0").count() == 2,
        "{trace}"
    );
}

#[test]
fn one_message_to_10_and_to_50_recipients_defers_nothing() {
    let site = Site::with_servers();
    // On a busy machine fifty need longer than the defaults, one after the other.
    let patient = "[lock]\nwait_secs = 80\nlease_secs = 180\n[limits]\ndeadline_secs = 110\n";
    for (count, more) in [(10, ""), (50, patient)] {
        let postfix = Postfix::start(&spec(&site, &format!("{STORY}\n{more}")));
        let to = recipients(count);
        let to: Vec<&str> = to.iter().map(String::as_str).collect();
        postfix.send(LISA, &to, &from_lisa(&format!("crowd-{count}")));
        assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());
        assert!(!postfix.log().contains("status=deferred"), "{}", postfix.log());
        assert_eq!(site.ledger_copies(&format!("crowd-{count}")), format!("{0} of {0}", count + 1));
    }
    for n in 1..=50 {
        assert_eq!(site.dovecot.count(&format!("r{n}"), "INBOX"), if n <= 10 { 2 } else { 1 });
    }
    assert_eq!(site.dovecot.count("lisa", "Sent"), 2);
}

#[test]
fn without_patience_some_tries_end_in_75_and_all_mail_arrives() {
    let site = Site::with_servers();
    let strict = format!("{STORY}\n[lock]\nwait_secs = 0\n");
    let postfix = Postfix::start(&PostfixSpec { retry_secs: Some(1), ..spec(&site, &strict) });
    let to = recipients(10);
    let to: Vec<&str> = to.iter().map(String::as_str).collect();
    for round in 0..10 {
        postfix.send(LISA, &to, &from_lisa(&format!("strict-{round}-")));
        if postfix.log().contains("status=deferred") {
            break;
        }
    }
    assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());
    let log = postfix.log();
    assert!(
        log.contains("status=deferred") && log.contains("another delivery of this message holds"),
        "{log}"
    );
    let rounds = site
        .postgres
        .psql("SELECT count(*) FROM onedrop_message")
        .parse::<usize>()
        .expect("a number");
    for n in 1..=10 {
        assert_eq!(site.dovecot.count(&format!("r{n}"), "INBOX"), rounds);
    }
    assert_eq!(site.dovecot.count("lisa", "Sent"), rounds);
}

#[test]
fn a_store_that_is_down_defers_and_then_gets_one_copy() {
    let mut site = Site::with_own_dovecot();
    let postfix = Postfix::start(&PostfixSpec { retry_secs: Some(1), ..spec(&site, STORY) });
    site.dovecot.stop();
    let queue_id = postfix.send(LISA, &["scuba@mail.axial.net"], &from_lisa("down"));
    assert!(wait_until(LONG, || postfix
        .attempts(&queue_id)
        .iter()
        .any(|line| line.contains("status=deferred"))));
    let log = postfix.log();
    assert!(log.contains("4.3.0") && log.contains("store: "), "{log}");
    site.dovecot.start_again();
    postfix.flush();
    assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());
    assert_eq!(site.dovecot.count("scuba", "INBOX"), 1);
    assert_eq!(site.dovecot.count("lisa", "Sent"), 1);
    assert_eq!(site.ledger_copies("down"), "2 of 2");
}

#[test]
fn users_live_in_a_table_of_the_ledgers_database_and_mail_to_others_is_returned() {
    let site = Site::with_servers();
    site.postgres
        .psql("CREATE TABLE users (address text, login text); GRANT SELECT ON users TO onedrop");
    site.postgres.psql(
        "INSERT INTO users VALUES ('scuba@mail.axial.net', 'u17'), ('lisa@gmail.com', 'u18')",
    );
    let asked = "[directory]\nquery = \"SELECT login FROM users WHERE address = $1\"\n[sent]\n\
                 trust = \"authenticated\"\nauthserv_id = \"mail.axial.net\"\n";
    let postfix = Postfix::start(&spec(&site, asked));
    let queue_id =
        postfix.send(LISA, &["Scuba+x@mail.axial.net", "doug@mail.axial.net"], &from_lisa("table"));
    assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());
    assert_eq!(site.dovecot.count("u17", "INBOX"), 1);
    assert_eq!(site.dovecot.count("u18", "Sent"), 1);
    let attempts = postfix.attempts(&queue_id);
    let unknown = attempts.iter().find(|line| line.contains("to=<doug@")).expect("an attempt");
    assert!(unknown.contains("dsn=5.1.1") && unknown.contains("status=bounced"), "{unknown}");
    assert!(unknown.contains("unknown recipient doug@mail.axial.net"), "{unknown}");
}

/// A directory.query that takes its time is not a ledger that is down.
#[test]
fn a_slow_query_is_named() {
    let site = Site::with_servers();
    let asked = "[directory]\nquery = \"SELECT 'scuba' FROM pg_sleep(60) WHERE $1 <> ''\"\n\
                 [limits]\ndeadline_secs = 3\nanswer_secs = 1\n[lock]\nwait_secs = 0\n";
    let config = site.config("slow", asked);
    let output = deliver(&config, &["-d", "scuba@mail.axial.net"], &from_lisa("slow"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(75), "{said}");
    assert_eq!(said, "4.3.0 ledger: directory.query took too long\n");
}

#[test]
fn local_delivers_by_mailbox_command() {
    let site = Site::with_servers();
    let local = STORY.replace("[\"mail.axial.net\"]", &format!("[\"{UNIX_DOMAIN}\"]"));
    let config = site.config("etc", &local);
    let command = format!("{} deliver --config {}", onedrop_path().display(), config.display());
    let postfix = Postfix::start(&PostfixSpec {
        delivery: Delivery::MailboxCommand(command),
        ..spec(&site, &local)
    });
    postfix.send(LISA, &[&format!("nobody@{UNIX_DOMAIN}")], &from_lisa("local"));
    assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());
    let mails = site.dovecot.messages("nobody", "INBOX");
    assert_eq!(mails.len(), 1, "{}", postfix.log());
    let text = String::from_utf8_lossy(&mails[0]);
    assert!(
        text.starts_with("Return-Path: <lisa@gmail.com>\r\n"),
        "the mbox line is stripped: {text}"
    );
    assert_eq!(site.dovecot.count("lisa", "Sent"), 1);
    // local(8) logs no output of a command that succeeded; the ledger has it.
    let trace = run(&config, &["trace", &format!("nobody@{UNIX_DOMAIN}")]);
    assert!(
        String::from_utf8_lossy(&trace.stdout).contains("stored account=nobody mailbox=INBOX uid="),
        "{trace:?}"
    );
}

#[test]
fn a_forged_from_writes_into_nobodys_sent_and_a_login_into_its_own() {
    let site = Site::with_servers();
    let postfix = Postfix::start(&spec(&site, STORY));
    let forged = b"From: doug@mail.axial.net\nSubject: forged\nMessage-ID: <forged@x>\n\nbody\n";
    postfix.send("doug@mail.axial.net", &["scuba@mail.axial.net"], forged);
    let own = b"From: Doug <doug@mail.axial.net>\nSubject: own\nMessage-ID: <own@x>\n\nbody\n";
    postfix.send_authenticated("doug", "doug@mail.axial.net", &["scuba@mail.axial.net"], own);
    let others = b"From: lisa@gmail.com\nSubject: others\nMessage-ID: <others@x>\n\nbody\n";
    postfix.send_authenticated("doug", "doug@mail.axial.net", &["scuba@mail.axial.net"], others);
    let to_self =
        b"From: otto@mail.axial.net\nTo: otto@mail.axial.net\nSubject: self\nMessage-ID: \
                    <self@x>\n\nbody\n";
    postfix.send_authenticated(
        "otto@mail.axial.net",
        "otto@mail.axial.net",
        &["otto@mail.axial.net"],
        to_self,
    );
    assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());
    assert_eq!(site.dovecot.count("scuba", "INBOX"), 3);
    let sent = site.dovecot.messages("doug", "Sent");
    assert_eq!(sent.len(), 1);
    assert!(String::from_utf8_lossy(&sent[0]).contains("Subject: own"));
    assert_eq!(site.dovecot.count("lisa", "Sent"), 0);
    assert_eq!((site.dovecot.count("otto", "INBOX"), site.dovecot.count("otto", "Sent")), (1, 1));
}

#[test]
fn whose_sent_is_a_matter_of_trust() {
    let site = Site::with_servers();
    let forged = |id: &str| {
        format!("From: Doug <doug@mail.axial.net>\nMessage-ID: <{id}@x>\n\nbody\n").into_bytes()
    };
    let trust = |how: &str| STORY.replace("\"authenticated\"", &format!("\"{how}\""));
    for (how, copies) in [("never", 0), ("authenticated", 0), ("header", 1)] {
        let config = site.config(how, &trust(how));
        delivered(&config, &["-d", "scuba@mail.axial.net", "--sasl-username", ""], &forged(how));
        assert_eq!(site.dovecot.count("doug", "Sent"), copies, "{how}");
    }
    let config = site.config("login", &trust("never"));
    delivered(
        &config,
        &["-d", "scuba@mail.axial.net", "--sasl-username", "doug"],
        &forged("login"),
    );
    assert_eq!(site.dovecot.count("doug", "Sent"), 1);
    assert_eq!(site.dovecot.count("scuba", "INBOX"), 4);
}

#[test]
fn check_finds_nothing_wrong_with_the_shipped_settings_and_names_what_is() {
    let site = Site::with_servers();
    let config = site.config("etc", &format!("{STORY}\n[limits]\ndeadline_secs = 60\n"));
    let postfix = Postfix::start(&spec(&site, STORY));
    let folder = postfix.config_directory().display().to_string();
    let check = |config: &std::path::Path| {
        let output = run(config, &["check", "--account", "scuba", "--postfix", &folder]);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (status, found) = check(&config);
    assert_eq!(status, Some(0), "{found}");
    let version = format!("schema version {}", onedrop::ledger::SCHEMA_VERSION);
    for line in [
        version.as_str(),
        "lock: two sessions exclude each other",
        "logged in to 127.0.0.1:",
        "gets mail",
    ] {
        assert!(found.contains(line), "{line}: {found}");
    }
    let asked = format!("{STORY}\n")
        .replace("[sent]", "query = \"SELECT login FROM no_table WHERE a = $1\"\n[sent]");
    let config = site.config("asks", &asked);
    std::fs::write(config.with_file_name("password"), "wrong\n").expect("password");
    let (status, found) = check(&config);
    assert_eq!(status, Some(75));
    assert!(found.contains("directory.query: ") && found.contains("no_table"), "{found}");
    assert!(found.contains("error   store: ") && found.contains("AUTHENTICATIONFAILED"), "{found}");
    site.postgres.psql("UPDATE onedrop_ledger SET version = 99");
    let (_, found) = check(&config);
    assert!(found.contains("error   schema: ") && found.contains("schema version 99"), "{found}");
}

/// Anybody can send NUL bytes: that must not fill the ledger's disk, outside of every quota.
#[test]
fn a_message_with_nul_bytes_costs_the_ledger_64_kib_at_most() {
    let site = Site::with_servers();
    let embedded = Site::embedded();
    let embedded_config = embedded.config("etc", "");
    // Not the files' length: a checkpoint writes the pages of the WAL once more.
    let in_file = || {
        if !embedded.root.join("ledger.db").exists() {
            return 0;
        }
        let pages = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size";
        embedded.sqlite().query_row(pages, [], |row| row.get::<_, i64>(0)).expect("a size")
    };
    let in_postgres = || {
        let sizes = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname LIKE \
                     'onedrop%' AND relkind = 'r'";
        site.postgres.psql(sizes).parse::<u64>().expect("a size")
    };
    let config = site.config("nul", STORY);
    let mut grown = Vec::new();
    let bodies: [(&str, Vec<u8>); 5] = [
        // What each engine takes once, it takes now.
        ("first", b"x\n".to_vec()),
        ("none", vec![b'x'; 8_000_000]),
        ("one", [&b"\0"[..], &vec![b'x'; 8_000_000]].concat()),
        ("all", vec![0; 8_000_000]),
        ("every other", b"x\0".repeat(4_000_000)),
    ];
    for (name, body) in &bodies {
        let head =
            format!("Message-ID: <{}@nul>\nFrom: x@y\nDate: {DATE}\n\n", name.replace(' ', "-"));
        let message = [head.as_bytes(), body, b"\n"].concat();
        let before = (in_file(), in_postgres());
        delivered(&embedded_config, &["-d", "scuba@mail.axial.net"], &message);
        delivered(&config, &["-d", "scuba@mail.axial.net"], &message);
        grown.push((name, in_file() - before.0, in_postgres() - before.1));
        // The Maildir holds NUL itself, IMAP cannot.
        let copies = embedded.inbox("scuba");
        assert!(copies.contains(&message), "{name}: {} of {} bytes", copies.len(), message.len());
    }
    // Pages come in steps.
    for (name, file, postgres) in &grown[1..] {
        assert!(*file < 2 * 65_536 && *postgres < 3 * 65_536, "{name}: {grown:?}");
    }
    let places = site.postgres.psql(
        "SELECT max(octet_length(nul_runs)) <= 65536 AND count(nul_runs) = 3 FROM onedrop_message",
    );
    assert_eq!(places, "t");
}

const DATE: &str = "Sat, 21 Nov 2026 10:15:00 +0000";

/// With a large mailbox open an APPEND into it takes twice as long.
#[test]
fn a_session_that_looked_leaves_the_mailbox_before_it_appends() {
    let root = TempRoot::new();
    let heard = root.dir_for("heard", MAIL_USER, 0o777);
    let dovecot = Dovecot::start_high_performance_with(&format!(
        "protocol imap {{\n  rawlog_dir = {}\n}}\n",
        heard.display()
    ));
    let site = Site::with(dovecot);
    let config = site.config("etc", "");
    let to_doug = ["-f", "ann@elsewhere.example", "-d", "doug@mail.axial.net"];
    let letter = from_ann("looked");
    delivered(&config, &to_doug, letter.as_bytes());
    site.dovecot.empty("doug");
    site.forget_receipts("account = 'doug'");
    delivered(&config, &to_doug, letter.as_bytes());

    const COMMANDS: [&str; 5] = ["EXAMINE", "SELECT", "UNSELECT", "CLOSE", "APPEND"];
    let sessions = fs::read_dir(&heard).expect("what it heard").filter_map(|file| {
        let path = file.expect("a file").path();
        path.extension().is_some_and(|end| end == "in").then(|| fs::read(path).expect("a file"))
    });
    let commands = sessions.map(|heard| {
        let text = String::from_utf8_lossy(&heard).into_owned();
        let named = text.lines().filter_map(|line| {
            COMMANDS.into_iter().find(|name| {
                line.contains(&format!(" {name} \"INBOX\"")) || line.ends_with(&format!(" {name}"))
            })
        });
        named.collect::<Vec<_>>()
    });
    let looked: Vec<_> = commands.filter(|commands| commands.contains(&"EXAMINE")).collect();
    assert_eq!(looked, [["EXAMINE", "UNSELECT", "APPEND"]]);
    assert_eq!(site.dovecot.count("doug", "INBOX"), 1);
}
