//! Copies in Maildirs that a Courier serves: its users see them, once and byte for byte.

use std::time::Duration;

use onedrop::deadline::Deadline;
use onedrop::directory::Destination;
use onedrop::store::maildir::MaildirStore;
use onedrop::store::{Need, Store};

use crate::courier::Courier;
use crate::imap_script;
use crate::support::chown_recursive;

#[test]
fn what_is_delivered_into_maildirs_is_what_courier_shows() {
    let courier = Courier::start(&["lisa", "doug"]);
    // Root writes into no mailbox of another's.
    chown_recursive(&courier.mail_root(), "root");
    let store = MaildirStore::new(courier.mail_root(), true);
    let letter = imap_script::letter(imap_script::LETTER);
    let copy = imap_script::copy_of(&letter);
    let deadline = Deadline::new(Duration::from_secs(30), Duration::from_secs(10));
    for destination in [Destination::inbox("lisa"), Destination::sent("lisa", "Sent")] {
        for _ in 0..2 {
            let slot = store.reserve(&destination, copy, Need::Write, &deadline);
            slot.expect("a slot").expect("a slot").append().expect("an append");
        }
    }
    let mut session = courier.session("lisa");
    for (mailbox, seen) in [("INBOX", false), ("INBOX.Sent", true)] {
        let opened = session.command(&format!("EXAMINE {mailbox}")).expect("EXAMINE");
        assert!(opened.untagged.iter().any(|line| line.text == "* 1 EXISTS"), "{opened:?}");
        let fetched = session.command("FETCH 1 (FLAGS BODY.PEEK[])").expect("FETCH");
        let line = fetched.untagged.first().expect("a message");
        assert_eq!(line.text.contains("\\Seen"), seen, "{}", line.text);
        let bytes = copy.bytes.to_vec();
        let with_crlf = String::from_utf8(bytes).expect("text").replace('\n', "\r\n");
        assert_eq!(String::from_utf8_lossy(&line.literals[0]), with_crlf);
    }
    let opened = courier.session("doug").command("EXAMINE INBOX").expect("EXAMINE");
    assert!(opened.untagged.iter().any(|line| line.text == "* 0 EXISTS"), "{opened:?}");
}
