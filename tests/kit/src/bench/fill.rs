//! Synthetic mail for a ledger, recorded and confirmed with as many deliveries open as a server has
//! at once: 2.6 addresses, 1.8 MIME parts and one attempt a message. What it says about a ledger is
//! exact for the bytes and for updates that touch no index.
//!
//! The limits are those of a message with one recipient: one copy, one attempt. That is what most
//! mail is, and it leaves no room for an average that hides a costly kind. Mail of senders who have
//! a Sent here as well (0.15 copies a message more) is measured beside it.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

use onedrop::directory::Destination;
use onedrop::ledger::{
    AnyLedger, Attempt, AttemptEnd, Confirmed, CopyFacts, CopyState, Entry, LeaseTerms,
    RandomValue, Recorded, ToConfirm,
};
use onedrop::lock_key::{content_hash, message_hash};
use onedrop::message::{AddressFact, Facts, Identity, PartFact};
use onedrop::outcome::Reason;
use onedrop::receipt::Receipt;

/// Deliveries that have recorded their message and not yet confirmed it.
const AT_ONCE: usize = 20;

const ACCOUNTS: u64 = 5000;

/// How many mailboxes a message belongs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mail {
    OneRecipient,
    /// Three of twenty senders have a Sent here.
    WithSent,
}

/// Delivers the messages with these numbers.
pub fn deliver(ledger: &dyn AnyLedger, mail: Mail, messages: std::ops::Range<u64>) {
    let mut open = VecDeque::new();
    for number in messages {
        open.push_back(record(ledger, mail, number));
        if open.len() == AT_ONCE {
            confirm(ledger, &open.pop_front().expect("twenty"));
        }
    }
    open.iter().for_each(|one| confirm(ledger, one));
}

struct Open {
    number: u64,
    recorded: Recorded,
    destinations: Vec<Destination>,
}

fn until() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// The number, spread: accounts do not come in turn.
fn mixed(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

fn record(ledger: &dyn AnyLedger, mail: Mail, number: u64) -> Open {
    let spread = mixed(number);
    let account = format!("user{}", spread % ACCOUNTS);
    let message_id = format!("<20261122.{spread}.{number}@mail.example.org>").into_bytes();
    let identity = Identity {
        id_hash: message_hash(&message_id),
        digest: content_hash(&message_hash(&message_id)),
        message_id: Some(message_id),
    };
    let sender = format!("someone.{}@lists.example.org", spread % 10_000);
    let answered = || format!("<20261121.{}.{number}@mail.example.org>", mixed(number + 1));
    let address = |role, name: Option<&str>, address: String| AddressFact {
        role,
        name: name.map(str::to_owned),
        address: Some(address),
    };
    let part = |path: &str, content_type: &str, size_bytes| PartFact {
        path: path.to_owned(),
        content_type: content_type.to_owned(),
        name: None,
        size_bytes,
    };
    let mut addresses = vec![
        address("from", Some("Some One"), sender.clone()),
        address("to", None, format!("{account}@mail.axial.net")),
    ];
    if number % 5 < 3 {
        let other = format!("other.{}@example.net", spread % 777);
        addresses.push(address("cc", Some("Other Person"), other));
    }
    let mut parts = vec![part("1", "text/plain", 2345)];
    if !number.is_multiple_of(5) {
        parts.push(part("2", "text/html", 5678));
    }
    let is_answer = number % 5 < 2;
    let facts = Facts {
        subject: Some(format!("Re: the subject of message {number} of today")),
        date: Some(1_795_000_000 + number as i64),
        in_reply_to: is_answer.then(answered),
        references: is_answer.then(answered),
        addresses,
        parts,
    };
    let attempt = Attempt {
        value: RandomValue::default(),
        recipient: format!("{account}@mail.axial.net"),
        sender,
        queue_id: format!("4Q{:010X}", spread.wrapping_mul(number)),
        host: "mx1.axial.net".to_owned(),
        pid: (number % 30_000) as u32 + 300,
    };
    let mut destinations = vec![Destination::inbox(&account)];
    if mail == Mail::WithSent && number % 20 < 3 {
        destinations.push(Destination::sent(&format!("user{}", mixed(spread) % ACCOUNTS), "Sent"));
    }
    let entry = Entry {
        identity: &identity,
        facts: &facts,
        size_bytes: 12_345,
        raw: None,
        nul_runs: None,
        at: None,
        oldest: Some(SystemTime::now()),
        fields: None,
    };
    let terms = LeaseTerms { lease: Duration::from_secs(90), join: false, due: false };
    let recorded = ledger.record(&entry, &attempt, &destinations, terms, until()).expect("record");
    assert!(recorded.is_new, "each message is another one");
    Open { number, recorded, destinations }
}

/// The shared copy's receipt first, and the attempt's end with the recipient's own.
fn confirm(ledger: &dyn AnyLedger, open: &Open) {
    let Open { number, recorded, destinations } = open;
    let uid = mixed(*number) as u32 % 100_000 + 1;
    let receipt = Receipt::uid(1_700_000_000, uid);
    let said: Vec<String> =
        destinations.iter().map(|one| format!("stored {one} {receipt}")).collect();
    let end = AttemptEnd {
        outcome: "delivered",
        reason: Some(Reason::Delivered),
        status: "2.0.0".to_owned(),
        text: said.join("; "),
        duration: Duration::from_millis(123),
    };
    for (at, state) in recorded.copies.iter().enumerate().rev() {
        let CopyState::Claimed(claim) = state else { panic!("{state:?}") };
        let end = (at == 0).then_some((recorded.attempt, &end));
        let facts = CopyFacts::default();
        let receipt =
            ToConfirm { claim: *claim, receipt: &receipt, facts, end, may_be_lost: false };
        assert_eq!(ledger.confirm(&receipt, until()).expect("confirm"), Confirmed::Recorded);
    }
}
