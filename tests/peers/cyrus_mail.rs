//! Mail into a real Cyrus: what it takes, what it changes, and what it refuses, which then stands
//! there attached to a message that it takes.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use onedrop::deadline::Deadline;
use onedrop::directory::Destination;
use onedrop::message::{self, DedupBy, Message};
use onedrop::net::pool::Limits;
use onedrop::store::imap::{ImapSettings, ImapStore};
use onedrop::store::{Copy, CopySearch, Mailboxes, Need, Proof, Receipt, Store, StoreError};

use crate::cyrus::Cyrus;
use crate::imap_proof::Mail;
use crate::imap_script;
use crate::support::corpus::corpus;
use crate::support::imap::over_imap;
use crate::support::proxy::{Fault, Proxy, Stage, Upstream};

fn store(cyrus: &Cyrus) -> ImapStore {
    let settings = ImapSettings {
        port: cyrus.port(),
        password: "store-secret".into(),
        ..imap_script::settings(0)
    };
    let idle = Duration::from_secs(60);
    ImapStore::new(settings, Limits { used: 8, per_key: 4, kept: 8, idle })
}

/// Appends it, or looks for it; whether it is wrapped.
fn place(
    store: &ImapStore,
    destination: &Destination,
    message: &Message,
    need: Need,
) -> Result<(Option<Receipt>, bool), StoreError> {
    let key = message.identity().copy_key(&destination.account, &destination.mailbox);
    let copy = Copy {
        key: &key,
        head: b"",
        bytes: message.own_copy(),
        identity: message.identity(),
        recorded_at: recorded_at(),
        looks_back: false,
        handed: None,
        looked: None,
        newer_than: None,
    };
    let deadline = Deadline::new(Duration::from_secs(60), Duration::from_secs(20));
    let mut slot = store.reserve(destination, copy, need, &deadline)?.expect("a slot");
    let receipt = match need {
        Need::Look => slot.look(deadline.end())?,
        _ => Some(slot.append()?),
    };
    deadline.answered();
    Ok((receipt, slot.is_wrapped()))
}

/// IMAP has whole seconds.
fn recorded_at() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000)
}

fn is_same(stands: &[u8], message: &Message, is_wrapped: bool) {
    let own = over_imap(message.own_copy());
    let wrapper = if is_wrapped { message::wrapper(&own) } else { Vec::new() };
    let expected = [wrapper, own].concat();
    assert!(
        stands == expected,
        "{}\n-- and not\n{}",
        String::from_utf8_lossy(stands),
        String::from_utf8_lossy(&expected)
    );
}

const ODD: [(&[u8], bool); 15] = [
    (b"From: a@b\nSubject: a bare line end\n\nbody\n", false),
    (b"From: a@b\nSubject: NUL\n\nbo\0dy\n", false),
    (b"From: a@b\nSub\0ject: NUL in a name\n\nbody\n", false),
    (b"From: a@b\nSubject: a bare\rCR\n\nbo\rdy\n", false),
    (b"From: a@b\nSubject: 8 bits \xe9\n\n\xff\n", false),
    (b"From: a@b\nno colon\nMessage-ID: <behind@it>\nSubject: s\n\nbody\n", true),
    (b"Message-ID: <before@it>\nDate: Mon, 23 Nov 2026 07:00:00 +0000\nno colon\n\nbody", true),
    (b"Message-ID: < odd\t id >\nFrom: a@b\nno colon\n\nbody\n", true),
    (b"From: a@b\nSubject: no line end", true),
    (b"From: a@b\nSubject: no empty line\n", false),
    (b"just text\nin two lines\n", true),
    (b"Foo bar: a blank in a name\nSubject: s\n\nbody\n", true),
    (b">From a@b Mon Nov 23 07:00:00 2026\nSubject: s\n\nbody\n", true),
    (b"From: a@b\nSubject : a blank before a colon\n\nbody\n", true),
    (b": no name\nSubject: s\n\nbody\n", true),
];

#[test]
fn what_cyrus_refuses_stands_there_attached() {
    let cyrus = Cyrus::start(&["lisa"]);
    let (store, inbox) = (store(&cyrus), Destination::inbox("lisa"));
    let messages: Vec<Message> =
        ODD.iter().map(|(bytes, _)| Message::new(bytes.to_vec(), DedupBy::Content)).collect();
    for (message, (bytes, is_wrapped)) in messages.iter().zip(ODD) {
        let name = String::from_utf8_lossy(bytes);
        assert_eq!(place(&store, &inbox, message, Need::Look).expect("a look"), (None, false));
        let (receipt, wrapped) = place(&store, &inbox, message, Need::Write).expect("an append");
        assert_eq!(wrapped, is_wrapped, "{name}");
        // The next attempt finds it, and verify does.
        let found = place(&store, &inbox, message, Need::Look).expect("a look");
        assert_eq!(found, (receipt.clone(), is_wrapped), "{name}");
    }
    let stands = cyrus.messages("lisa", "INBOX");
    assert_eq!(stands.len(), ODD.len());
    for ((message, stands), (_, is_wrapped)) in messages.iter().zip(&stands).zip(ODD) {
        is_same(stands, message, is_wrapped);
    }
    // All at once, as verify asks.
    let keys: Vec<_> =
        messages.iter().map(|one| one.identity().copy_key("lisa", "INBOX")).collect();
    let sought: Vec<CopySearch<'_>> = messages
        .iter()
        .zip(&keys)
        .map(|(message, key)| {
            let copy = Copy {
                key,
                head: b"",
                bytes: message.own_copy(),
                identity: message.identity(),
                recorded_at: recorded_at(),
                looks_back: false,
                handed: None,
                looked: None,
                newer_than: None,
            };
            CopySearch { needs_proof: true, at_most: 5, ..copy.sought() }
        })
        .collect();
    let until = std::time::Instant::now() + Duration::from_secs(30);
    let found = store.find_all(&inbox, &sought, until).expect("a look");
    for (found, (bytes, is_wrapped)) in found.iter().zip(ODD) {
        let name = String::from_utf8_lossy(bytes);
        let [one] = &found[..] else { panic!("{name}: {found:?}") };
        assert_eq!((one.proof, one.is_wrapped, one.has_our_date), (Proof::Equal, is_wrapped, true));
    }
}

#[test]
fn every_message_of_the_corpus_stands_in_cyrus_as_it_came_or_attached() {
    let Some(files) = corpus() else { return };
    let cyrus = Cyrus::start(&["lisa"]);
    let (store, inbox) = (store(&cyrus), Destination::inbox("lisa"));
    let read =
        |file: &PathBuf| fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let messages = files.iter().map(read).filter(|bytes| !bytes.is_empty());
    let messages: Vec<Message> =
        messages.map(|bytes| Message::new(bytes, DedupBy::Content)).collect();
    let mut wrapped = Vec::new();
    for message in &messages {
        let placed = place(&store, &inbox, message, Need::Write);
        let name = || String::from_utf8_lossy(message.own_copy());
        wrapped.push(placed.unwrap_or_else(|error| panic!("{error}\n{}", name())).1);
    }
    let stands = cyrus.messages("lisa", "INBOX");
    assert_eq!(stands.len(), messages.len());
    for ((message, stands), is_wrapped) in messages.iter().zip(&stands).zip(&wrapped) {
        is_same(stands, message, *is_wrapped);
        assert!(!is_wrapped || message::is_damaged(message.own_copy()));
    }
    let count = wrapped.iter().filter(|is_wrapped| **is_wrapped).count();
    println!("{count} of {} messages are attached", messages.len());
    assert!(count > 10, "{count}");
    for (message, is_wrapped) in messages.iter().zip(&wrapped).filter(|(_, wrapped)| **wrapped) {
        let found = place(&store, &inbox, message, Need::Look).expect("a look");
        assert!(found.0.is_some() && found.1 == *is_wrapped, "{:?}", message.identity());
    }
}

const DAMAGED: &[u8] = b"Return-Path: <ann@a>\nMessage-ID: <damaged@a>\nno colon\n\nbody\n";

#[test]
fn a_crash_after_a_wrapped_append_leaves_one_copy_and_the_row_says_what_it_is() {
    let cyrus = Cyrus::start(&["lisa"]);
    let proxy = Proxy::start(Upstream::Imap(cyrus.port()));
    let limits = "[lock]\nwait_secs = 2\nlease_secs = 6\n[limits]\ndeadline_secs = 5\n\
                  answer_secs = 2\n";
    let mail = Mail::at(proxy.port(), limits);
    // The answer to the first APPEND, which refuses it, comes through; that to the second is lost.
    let refusals_alone = |said: &[u8]| match String::from_utf8_lossy(said).contains(" NO ") {
        true => said.to_vec(),
        false => Vec::new(),
    };
    proxy.plan(Stage::Answer, Fault::Edit(refusals_alone));
    let lost = mail.run(&["deliver", "-d", "lisa@b.example"], DAMAGED);
    assert_eq!(lost.0, 75, "{lost:?}");
    proxy.heal();
    assert_eq!(cyrus.messages("lisa", "INBOX").len(), 1);
    mail.expire_leases();
    let again = mail.run(&["deliver", "-d", "lisa@b.example"], DAMAGED);
    assert!(again.0 == 0 && again.1.contains("found account=lisa"), "{again:?}");
    let stands = cyrus.messages("lisa", "INBOX");
    let message = Message::new(DAMAGED.to_vec(), DedupBy::Content);
    assert_eq!(stands.len(), 1);
    is_same(&stands[0], &message, true);
    let traced = mail.run(&["trace", "damaged@a"], b"");
    assert!(traced.1.contains("attached to a message of ours"), "{}", traced.1);
    let verified = mail.run(&["verify", "--all"], b"");
    assert_eq!(verified.0, 0, "{verified:?}");
}

#[test]
fn with_munge8bit_cyrus_changes_a_header_and_a_second_copy_may_come_of_a_doubt() {
    let cyrus = Cyrus::start_with(&["lisa"], "munge8bit: yes\n");
    let (store, inbox) = (store(&cyrus), Destination::inbox("lisa"));
    let bytes = b"From: a@b\nMessage-ID: <8@b>\nSubject: caf\xe9\n\ncaf\xe9\n".to_vec();
    let message = Message::new(bytes, DedupBy::Content);
    place(&store, &inbox, &message, Need::Write).expect("an append");
    let stands = cyrus.messages("lisa", "INBOX");
    assert!(stands[0].ends_with(b"Subject: cafX\r\n\r\ncaf\xe9\r\n"), "{stands:?}");
    // docs/stores.md says to set it to no.
    assert_eq!(place(&store, &inbox, &message, Need::Look).expect("a look"), (None, false));
}
