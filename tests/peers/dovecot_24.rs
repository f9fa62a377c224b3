//! A Dovecot 2.4 with `conf/dovecot/onedrop-2.4.conf`, the file that is shipped, by IMAP. What its
//! LMTP and its filters do: `tests/filters`.

use std::time::{Duration, Instant};

use onedrop::deadline::Deadline;
use onedrop::directory::Destination;
use onedrop::net::pool::Limits;
use onedrop::store::imap::{ImapSettings, ImapStore};
use onedrop::store::{Access, MailboxOwner, Need, Store, StoreError};

use crate::imap_script;
use crate::support::dovecot_24::Dovecot24;

fn store_of(dovecot: &Dovecot24) -> ImapStore {
    let (port, password) = (dovecot.imap_port(), dovecot.password().into());
    let settings = ImapSettings { port, password, ..imap_script::settings(0) };
    let idle = Duration::from_secs(60);
    ImapStore::new(settings, Limits { used: 8, per_key: 4, kept: 8, idle })
}

fn until() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

#[test]
fn the_shipped_file_serves_deliveries() {
    let dovecot = Dovecot24::start(&["lisa", "doug"], "");
    let store = store_of(&dovecot);
    let told = store.check("lisa", until()).expect("a check");
    assert!(told.iter().any(|line| line.contains("the server is Dovecot")), "{told:?}");
    assert!(told.iter().any(|line| line.contains("UIDPLUS: yes")), "{told:?}");
    let owner = store.whose_mailboxes("lisa", until()).expect("it can be told");
    assert!(matches!(owner, MailboxOwner::Accounts(_)), "{owner:?}");
    let letter = imap_script::letter(imap_script::LETTER);
    let copy = imap_script::copy_of(&letter);
    let deadline = Deadline::new(Duration::from_secs(30), Duration::from_secs(10));
    for destination in [Destination::inbox("lisa"), Destination::sent("lisa", "Sent")] {
        let slot = |need| store.reserve(&destination, copy, need, &deadline);
        let receipt = slot(Need::Write).expect("a slot").expect("a slot").append();
        let receipt = receipt.expect("an append");
        let found = slot(Need::Look).expect("a slot").expect("a slot").look(until());
        assert_eq!(found.expect("a look"), Some(receipt.clone()));
        store.remove(&destination, &receipt, None, until()).expect("it can be taken out");
        let found = slot(Need::Look).expect("a slot").expect("a slot").look(until());
        assert_eq!(found.expect("a look"), None);
    }
    // An account that is not there gets no mailbox.
    let nobody = Destination::inbox("ghost");
    let ghost = store.reserve(&nobody, copy, Need::Look, &deadline);
    assert!(matches!(ghost, Err(StoreError::NoAccount(_) | StoreError::NotStored(_))));
    let shown = dovecot.settings();
    for line in [
        "auth_cache_negative_ttl = 1 min",
        "mail_max_lock_timeout = 5 secs",
        "mail_max_userip_connections = 100",
        "restart_request_count = unlimited",
        "result_success = continue",
        "nodelay = yes",
    ] {
        assert!(shown.lines().any(|shown| shown.trim() == line), "{line}\n{shown}");
    }
}
