//! Many processes at once, on two working folders that share nothing but the servers: one copy, whoever wins.

mod support;

use std::path::{Path, PathBuf};
use std::process::Child;

use support::world::{STORY, World, deliver, delivered, finish_delivery, start_delivery};

const MESSAGE: &[u8] = b"From: lisa@gmail.com\nAuthentication-Results: mail.axial.net; dmarc=pass header.from=gmail.com\nTo: all\nSubject: race\nMessage-ID: <race@x>\n\nbody\n";
const PROCESSES: usize = 40;

/// Delivers `message` to each recipient at the same time, in turn from either folder; whoever was told to try again does.
fn race(configs: &[PathBuf; 2], recipients: &[String], message: &[u8]) {
    let config_of = |n: usize| -> &Path { &configs[n % 2] };
    let children: Vec<Child> = recipients
        .iter()
        .enumerate()
        .map(|(n, recipient)| start_delivery(config_of(n), &["-d", recipient, "-f", "lisa@gmail.com"]))
        .collect();
    let mut delivered_at_once = 0;
    for (n, child) in children.into_iter().enumerate() {
        let output = finish_delivery(child, message);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.code() {
            Some(0) => delivered_at_once += 1,
            Some(75) => {
                assert!(said.starts_with("4.3.0 "), "{said}");
                delivered(config_of(n), &["-d", &recipients[n]], message);
            }
            other => panic!("{other:?}: {said}"),
        }
    }
    assert!(delivered_at_once > 0);
}

fn two_folders(world: &World, more: &str) -> [PathBuf; 2] {
    ["host-a", "host-b"].map(|name| world.config(name, &format!("{STORY}{more}")))
}

#[test]
fn forty_processes_deliver_one_message_to_one_recipient_once() {
    let world = World::start();
    let configs = two_folders(&world, "");
    let recipients = vec!["scuba@mail.axial.net".to_owned(); PROCESSES];
    race(&configs, &recipients, MESSAGE);
    assert_eq!(world.dovecot.count("scuba", "INBOX"), 1);
    assert_eq!(world.dovecot.count("lisa", "Sent"), 1);
    assert_eq!(world.ledger_copies("race"), "2 of 2");
}

#[test]
fn forty_processes_deliver_one_message_to_forty_recipients_once_each() {
    let world = World::start();
    let configs = two_folders(&world, "");
    let recipients: Vec<String> = (0..PROCESSES).map(|n| format!("r{n}@mail.axial.net")).collect();
    race(&configs, &recipients, MESSAGE);
    for n in 0..PROCESSES {
        assert_eq!(world.dovecot.count(&format!("r{n}"), "INBOX"), 1, "r{n}");
    }
    assert_eq!(world.dovecot.count("lisa", "Sent"), 1);
    assert_eq!(world.ledger_copies("race"), format!("{0} of {0}", PROCESSES + 1));
}

#[test]
fn without_patience_the_race_is_settled_by_tries() {
    let world = World::start();
    let configs = two_folders(&world, "[lock]\nwait_secs = 0\n");
    let recipients = vec!["scuba@mail.axial.net".to_owned(); PROCESSES];
    race(&configs, &recipients, MESSAGE);
    assert_eq!(world.dovecot.count("scuba", "INBOX"), 1);
    assert_eq!(world.dovecot.count("lisa", "Sent"), 1);
}

/// Through a pooler that hands each transaction to another server connection.
#[test]
fn forty_processes_through_pgbouncer_deliver_once() {
    let world = World::start();
    let bouncer = support::pgbouncer::PgBouncer::start(&world.postgres);
    let ledger = format!("url = \"{}\"", bouncer.url());
    let configs = ["host-a", "host-b"].map(|name| world.config_with(name, &ledger, STORY));
    let recipients = vec!["scuba@mail.axial.net".to_owned(); PROCESSES];
    race(&configs, &recipients, MESSAGE);
    assert_eq!(world.dovecot.count("scuba", "INBOX"), 1);
    assert_eq!(world.dovecot.count("lisa", "Sent"), 1);
}

/// The embedded default: SQLite and Maildir on one host.
#[test]
fn forty_processes_on_sqlite_and_maildir_deliver_once() {
    let root = support::TempRoot::new();
    let at = root.display();
    let text = format!("[ledger]\nurl = \"sqlite://{at}/ledger.db\"\n[store]\nurl = \"maildir://{at}/mail\"\n{STORY}");
    let configs = ["a", "b"].map(|name| root.write(&format!("{name}/onedrop.toml"), &text));
    let recipients: Vec<String> = (0..PROCESSES).map(|n| format!("r{}@mail.axial.net", n / 2)).collect();
    race(&configs, &recipients, MESSAGE);
    let files = |path: &str| std::fs::read_dir(root.join("mail").join(path)).map_or(0, Iterator::count);
    for n in 0..PROCESSES / 2 {
        assert_eq!(files(&format!("r{n}/Maildir/new")), 1, "r{n}");
        assert_eq!(files(&format!("r{n}/Maildir/tmp")), 0, "r{n}");
    }
    assert_eq!(files("lisa/Maildir/.Sent/cur"), 1);
    assert_eq!(deliver(&configs[0], &["-d", "r0@mail.axial.net"], MESSAGE).status.code(), Some(0));
    assert_eq!(files("r0/Maildir/new"), 1);
}
