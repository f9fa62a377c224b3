//! `[[file]]`: which field of a message names its mailbox.

use onedrop::filing::{FileRule, mailbox_by_rule};
use onedrop::message::{DedupBy, Message};

fn rules() -> Vec<FileRule> {
    let rule = |header: &str, is: &str, mailbox: &str| FileRule {
        header: header.to_owned(),
        is: is.to_owned(),
        mailbox: mailbox.to_owned(),
    };
    vec![
        rule("x-spam-flag", "YES", "Junk"),
        rule("List-Id", "<rust.example.org>", "lists/rust"),
        rule("X-Spam", "Yes", "Also"),
    ]
}

#[test]
fn the_first_rule_that_applies_names_the_mailbox() {
    for (head, mailbox) in [
        ("X-Spam-Flag: YES", Some("Junk")),
        ("X-SPAM-FLAG:yes ", Some("Junk")),
        ("X-Spam-Flag:\r\n Yes", Some("Junk")),
        ("X-Spam: yes\r\nX-Spam-Flag: YES", Some("Junk")),
        // A sender has put one of its own on top; the filter's comes after it.
        ("X-Spam-Flag: NO\r\nSubject: x\r\nX-Spam-Flag: YES", Some("Junk")),
        ("List-ID: <Rust.example.org>", Some("lists/rust")),
        ("X-Spam: Yes\r\nList-Id: <rust.example.org>", Some("lists/rust")),
        ("X-Spam: Yes", Some("Also")),
        ("X-Spam-Flag: NO", None),
        ("X-Spam-Flag: YES, score=9", None),
        ("X-Spam-Flags: YES", None),
        ("Subject: x\r\n\r\nX-Spam-Flag: YES", None),
        ("X-Spam-Flag:", None),
    ] {
        let message =
            Message::new(format!("{head}\r\n\r\nbody\r\n").into_bytes(), DedupBy::Content);
        assert_eq!(mailbox_by_rule(&rules(), &message), mailbox, "{head:?}");
    }
}
