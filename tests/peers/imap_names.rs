//! How a real Dovecot calls mailboxes: with a prefix and another separator than `/`, and with marks
//! for what they are for.

use std::time::Duration;

use onedrop::directory::{Destination, SENT_ROLE};
use onedrop::net::pool::Limits;
use onedrop::store::imap::{ImapSettings, ImapStore};
use onedrop::store::{Access, CopySearch, Mailboxes, Need, Receipt, Store, StoreError};

use crate::imap_script::{self, LETTER, copy_of, deadline_of_a_test, letter, soon};
use crate::support::dovecot::Dovecot;

fn store(dovecot: &Dovecot) -> ImapStore {
    let settings = ImapSettings {
        password: dovecot.password().into(),
        ..imap_script::settings(dovecot.imap_port())
    };
    let idle = Duration::from_secs(60);
    ImapStore::new(settings, Limits { used: usize::MAX, per_key: 2, kept: 2, idle })
}

fn append(store: &ImapStore, mailbox: &str) -> Result<Receipt, StoreError> {
    let (letter, deadline) = (letter(LETTER), deadline_of_a_test());
    let destination = Destination::sent("doug", mailbox);
    let slot = store.reserve(&destination, copy_of(&letter), Need::Write, &deadline)?;
    slot.expect("a slot").append()
}

fn found(store: &ImapStore, mailbox: &str) -> Vec<Receipt> {
    let letter = letter(LETTER);
    let sought = CopySearch { at_most: 9, ..copy_of(&letter).sought() };
    let destination = Destination::sent("doug", mailbox);
    let found = store.find(&destination, &sought, soon()).expect("a look");
    found.into_iter().map(|one| one.receipt).collect()
}

#[test]
fn a_servers_prefix_and_separator_are_its_own() {
    for (prefix, separator) in [("INBOX.", "."), ("", "."), ("INBOX/", "/"), ("", "/")] {
        let dovecot = Dovecot::start_with(&format!(
            "namespace inbox {{\n  prefix = {prefix}\n  separator = {separator}\n}}\n"
        ));
        let store = store(&dovecot);
        for (mailbox, called) in [
            ("INBOX", "INBOX".to_owned()),
            ("Sent", format!("{prefix}Sent")),
            ("Archive/2026", format!("{prefix}Archive{separator}2026")),
            ("Grüße", format!("{prefix}Gr&APwA3w-e")),
        ] {
            let receipt = append(&store, mailbox).expect("an append");
            assert_eq!(dovecot.count("doug", &called), 1, "{called}");
            assert_eq!(found(&store, mailbox), std::slice::from_ref(&receipt), "{called}");
            let destination = Destination::sent("doug", mailbox);
            store.remove(&destination, &receipt, None, soon()).expect("a removal");
            assert_eq!(dovecot.count("doug", &called), 0, "{called}");
        }
        let dotted = append(&store, "lists.rust");
        match separator {
            "." => assert!(matches!(&dotted, Err(StoreError::Refused(_))), "{dotted:?}"),
            _ => assert!(dotted.is_err(), "Maildir++ has no dots in names: {dotted:?}"),
        }
        let facts = store.check("doug", soon()).expect("a check").join("\n");
        let expected = format!("names of mailboxes: prefix {prefix:?}, separator {separator}");
        assert!(facts.contains(&expected), "{facts}");
    }
}

#[test]
fn the_mailbox_that_is_marked_takes_sent_mail() {
    let dovecot = Dovecot::start_with(
        "namespace inbox {\n  separator = .\n  prefix = INBOX.\n  mailbox \"Sent Messages\" {\n    \
         special_use = \\Sent\n  }\n  mailbox Gesendet {\n    special_use = \\Sent\n  }\n}\n",
    );
    let store = store(&dovecot);
    // Marked are only those that are there.
    append(&store, SENT_ROLE).expect("an append");
    assert_eq!(dovecot.count("doug", "INBOX.Sent"), 1);
    let create = |name: &str| {
        let answer = dovecot.session("doug").command(&format!("CREATE \"{name}\""));
        assert!(answer.expect("an answer").is_ok());
    };
    for (made, taken) in [
        ("INBOX.Sent Messages", "INBOX.Sent Messages"),
        ("INBOX.Gesendet", "INBOX.Gesendet"),
        ("INBOX.Other", "INBOX.Gesendet"),
    ] {
        create(made);
        let before = dovecot.count("doug", taken);
        let receipt = append(&store, "\\sent").expect("an append");
        assert_eq!(dovecot.count("doug", taken), before + 1, "{made}");
        assert_eq!(found(&store, SENT_ROLE).first(), Some(&receipt));
    }
    let facts = store.check("doug", soon()).expect("a check").join("\n");
    assert!(facts.contains("\\Sent: \"INBOX.Gesendet\" (marked: 2)"), "{facts}");
}
