//! The door's part of a delivery: the command's and the server's are one [`Service`], under a
//! configuration, with the adapters in memory in place of its own.

use std::fs;
use std::sync::{Arc, LazyLock};

use jiff::Zoned;
use onedrop::config::{Config, Loaded};
use onedrop::deadline::Deadline;
use onedrop::deliver::Ending;
use onedrop::envelope::Envelope;
use onedrop::ledger::memory::MemoryLedger;
use onedrop::message::{Message, ReceivedClauses};
use onedrop::service::{Adapters, Mail, Service, Site};
use onedrop::store::memory::MemoryStore;
use onedrop_kit::TempRoot;

use crate::plan::Plan;

/// Without a Sent for the author, and with one.
static LOADED: LazyLock<[Arc<Loaded>; 2]> = LazyLock::new(|| {
    ["never", "header"].map(|trust| {
        let text = format!(
            "[ledger]\nurl = \"sqlite:///nowhere/ledger.db\"\n\
             [store]\nurl = \"maildir:///nowhere/mail\"\n\
             [directory]\ndomains = [\"mail.axial.net\"]\n\
             accounts = {{ \"lisa@gmail.com\" = \"lisa\" }}\n\
             [sent]\ntrust = \"{trust}\"\n"
        );
        let folder = TempRoot::new();
        let file = folder.join("onedrop.toml");
        fs::write(&file, text).expect("a file");
        let loaded = Config::load_from(Some(&file), std::iter::empty());
        Arc::new(loaded.unwrap_or_else(|errors| panic!("{errors}")))
    })
});

/// No delivery connects to these.
const ADAPTERS: Adapters = Adapters {
    ledger: |_, _| Ok(Arc::new(MemoryLedger::default())),
    reading: |_, _| Ok(Arc::new(MemoryLedger::default())),
    accounts: |_, _| Ok(None),
    store: |_, _| Ok(Arc::new(MemoryStore::default())),
};

/// Delivers a message to one recipient, as the command does, or to several, as the server does.
pub fn deliver(
    plan: &Plan,
    message: &Message,
    envelope: &Envelope,
    ledger: Arc<MemoryLedger>,
    store: MemoryStore,
    deadline: &Deadline,
) -> Vec<Ending> {
    let loaded = Arc::clone(&LOADED[usize::from(plan.has_sent)]);
    let is_alone = envelope.recipients.len() == 1;
    let make = if is_alone { Service::for_one } else { Service::new };
    let mut service = make(&Site::new(loaded, ADAPTERS)).expect("a service");
    service.ledger = ledger;
    service.store = Arc::new(store);
    service.policy.wait = plan.wait;
    service.policy.sent_after = plan.sent_after;
    service.policy.begins_early = plan.begins_early;
    let home = |address: &String| service.account_of(address, deadline.end());
    let homes: Result<Vec<_>, _> = envelope.recipients.iter().map(home).collect();
    let clauses = ReceivedClauses {
        from: "mx".to_owned(),
        by: "here".to_owned(),
        protocol: "LMTP",
        id: "1".to_owned(),
    };
    let now = Zoned::now();
    let mail = Mail {
        message,
        envelope,
        homes: &homes.expect("known without asking"),
        clauses: (!is_alone).then_some((&clauses, &now)),
        started: deadline.now(),
        one_ending: is_alone,
        own_copies_alone: false,
    };
    service.deliver(mail, deadline, &())
}
