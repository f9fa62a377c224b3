//! What every store promises (`src/store.rs`), as one suite that each adapter runs. A new adapter
//! needs a [`Rig`] and a line at the end of this file.

#[path = "../ports/mod.rs"]
mod ports;
#[path = "../support/mod.rs"]
mod support;

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use onedrop::deadline::Deadline;
use onedrop::directory::Destination;
use onedrop::login::LoginForm;
use onedrop::message::{DedupBy, Message};
use onedrop::pool::Limits;
use onedrop::store::imap::{ImapSettings, ImapStore, Tls};
use onedrop::store::maildir::MaildirStore;
use onedrop::store::memory::MemoryStore;
use onedrop::store::port::{AnyStore, Need, Slot};
use onedrop::store::{Copy, Found, Proof, Receipt, Sought, StoreError};
use support::dovecot::Dovecot;

use ports::{inbox, mail, mail_with_body, message, sent, soon};

/// A store of its own for one test. Accounts `doug`, `lisa`, `zoe` and `account0` to `account15`
/// may be used in it; none of them has a mailbox yet.
trait Rig: Sync {
    /// A handle of its own, as another process has it. Missing mailboxes are made.
    fn store(&self) -> Box<dyn AnyStore>;

    /// One that makes no mailboxes; `None` where that cannot be.
    fn store_that_makes_nothing(&self) -> Option<Box<dyn AnyStore>>;

    /// The bytes of each message in a mailbox, and whether it is marked as read. A missing mailbox
    /// has none.
    fn messages(&self, account: &str, mailbox: &str) -> Vec<(Vec<u8>, bool)>;

    /// The date of each message in a mailbox; `None` where the rig cannot tell.
    fn dates(&self, account: &str, mailbox: &str) -> Option<Vec<SystemTime>>;

    /// What the store makes of the bytes.
    fn stored_form(&self, bytes: &[u8]) -> Vec<u8> {
        bytes.to_vec()
    }

    /// Does what a mail reader does to each message of a mailbox: sees it, and marks it as read and
    /// answered.
    fn read(&self, account: &str, mailbox: &str);

    /// Does what a mail reader does to delete each message of a mailbox, but for taking it out.
    fn mark_deleted(&self, account: &str, mailbox: &str);

    /// Panics if anything was written where no mailbox is.
    fn assert_nothing_outside(&self) {}
}

macro_rules! store_contract {
    ($adapter:ident, $rig:expr) => {
        mod $adapter {
            use super::*;

            stamp! { $rig;
                a_copy_is_stored_byte_for_byte,
                an_empty_message_is_stored_or_refused,
                a_shared_copy_is_marked_as_read_and_an_own_one_is_not,
                a_copy_has_the_date_of_its_first_recording,
                copies_that_come_together_are_each_what_they_would_be_alone,
                a_missing_mailbox_is_made,
                a_mailbox_that_may_not_be_made_is_refused,
                a_missing_mailbox_holds_no_copy,
                the_look_finds_a_copy_whatever_way_it_took,
                the_look_finds_what_a_reader_has_touched,
                the_look_takes_no_other_message_for_the_copy,
                the_look_finds_a_copy_without_a_message_id,
                the_look_finds_odd_copies,
                the_look_finds_one_among_many,
                the_look_keeps_to_its_mailbox,
                looks_and_appends_do_not_disturb_each_other,
                all_copies_of_a_message_are_found,
                a_copy_is_found_with_its_date_and_its_deletion,
                a_copy_is_found_by_what_a_ledger_knows,
                a_removal_takes_out_the_one_it_names,
                a_removal_by_a_strange_receipt_takes_out_nothing,
                a_double_is_taken_out_while_its_keeper_stands,
                a_second_append_is_as_the_store_says,
                odd_names_are_stored_safely_or_refused,
                without_time_for_the_answer_nothing_is_stored,
                an_append_tells_the_watchdog_that_it_waits_for_the_answer,
                many_append_to_one_mailbox_at_once,
                many_make_one_mailbox_at_once,
                a_copy_appended_by_many_at_once_is_as_the_store_says,
                a_copy_that_is_reserved_is_nobody_elses_where_copies_have_locks,
                a_slot_stores_nothing_before_its_append,
                one_slot_looks_and_then_appends,
                a_slot_is_for_its_own_date,
                preparing_changes_nothing,
                a_check_writes_no_message,
            }
        }
    };
}

macro_rules! stamp {
    ($rig:expr; $($fact:ident),* $(,)?) => {
        $(
            #[test]
            fn $fact() {
                suite::$fact(&$rig);
            }
        )*
    };
}

/// 2023-11-14 22:13:20 UTC.
fn recorded_at() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

fn ample() -> Deadline {
    Deadline::new(Duration::from_secs(120), Duration::from_secs(20))
}

/// Reserves what `need` says for the copy of `mail` that belongs in `destination`, and calls `with`
/// on the slot, if there is one.
fn try_reserve<T>(
    store: &dyn AnyStore,
    destination: &Destination,
    mail: &Message,
    (need, recorded_at, deadline): (Need, SystemTime, &Deadline),
    with: impl FnOnce(Option<&mut (dyn Slot + '_)>) -> T,
) -> Result<T, StoreError> {
    let key = &mail.identity().copy_key(&destination.account, &destination.mailbox);
    let bytes = if destination.shared { mail.shared_copy() } else { mail.own_copy() };
    let copy = Copy { key, head: b"", bytes, identity: mail.identity(), recorded_at };
    let mut slot = store.reserve(destination, copy, need, deadline)?;
    Ok(with(slot.as_deref_mut()))
}

fn reserve<T>(
    store: &dyn AnyStore,
    destination: &Destination,
    mail: &Message,
    need: Need,
    with: impl FnOnce(Option<&mut (dyn Slot + '_)>) -> T,
) -> T {
    try_reserve(store, destination, mail, (need, recorded_at(), &ample()), with).expect("reserve")
}

/// Whether the copy can be reserved for each need. A need that has nothing to gain may be left out
/// where copies have no locks.
fn is_free(store: &dyn AnyStore, destination: &Destination, mail: &Message) -> bool {
    let free = [Need::Early, Need::Write, Need::Look]
        .map(|need| reserve(store, destination, mail, need, |slot| slot.is_some()));
    assert!(
        free[1] == free[2] && (free[0] == free[1] || !store.append_is_idempotent()),
        "{free:?}"
    );
    free[1]
}

fn append_as(
    store: &dyn AnyStore,
    destination: &Destination,
    mail: &Message,
    (recorded_at, deadline): (SystemTime, &Deadline),
) -> Result<Receipt, StoreError> {
    let reservation = (Need::Write, recorded_at, deadline);
    try_reserve(store, destination, mail, reservation, |slot| slot.expect("a slot").append())?
}

fn try_append(
    store: &dyn AnyStore,
    destination: &Destination,
    mail: &Message,
) -> Result<Receipt, StoreError> {
    append_as(store, destination, mail, (recorded_at(), &ample()))
}

fn append(store: &dyn AnyStore, destination: &Destination, mail: &Message) -> Receipt {
    try_append(store, destination, mail).expect("append")
}

fn try_look(
    store: &dyn AnyStore,
    destination: &Destination,
    mail: &Message,
) -> Result<Option<Receipt>, StoreError> {
    let reservation = (Need::Look, recorded_at(), &ample());
    try_reserve(store, destination, mail, reservation, |slot| slot.expect("a slot").look(soon()))?
}

fn look(store: &dyn AnyStore, destination: &Destination, mail: &Message) -> Option<Receipt> {
    try_look(store, destination, mail).expect("look")
}

/// All copies that stand in a mailbox, by what a ledger knows of them.
fn find(
    store: &dyn AnyStore,
    destination: &Destination,
    mail: &Message,
    on_record: Option<&Receipt>,
) -> Vec<Found> {
    find_as(store, destination, mail, on_record, false)
}

fn find_as(
    store: &dyn AnyStore,
    destination: &Destination,
    mail: &Message,
    on_record: Option<&Receipt>,
    is_thorough: bool,
) -> Vec<Found> {
    let size_bytes = mail.own_copy().len() as u64;
    let sought = Sought {
        key: &mail.identity().copy_key(&destination.account, &destination.mailbox),
        identity: mail.identity(),
        recorded_at: recorded_at(),
        size_bytes: size_bytes..=2 * size_bytes,
        has_one_id: true,
        is_thorough,
        on_record,
        at_most: 100,
    };
    store.find(destination, &sought, soon()).expect("find")
}

/// The subjects of the messages in a mailbox, sorted.
fn subjects(rig: &dyn Rig, destination: &Destination) -> Vec<String> {
    let subject = |bytes: Vec<u8>| {
        let subject = message(bytes).first("subject").unwrap_or_default();
        String::from_utf8_lossy(&subject).into_owned()
    };
    let messages = rig.messages(&destination.account, &destination.mailbox);
    let mut subjects: Vec<String> = messages.into_iter().map(|(bytes, _)| subject(bytes)).collect();
    subjects.sort();
    subjects
}

/// Messages whose bytes a careless program changes; no two of them are one message.
fn odd_messages() -> Vec<Vec<u8>> {
    let header = b"From: lisa@gmail.com\r\nMessage-ID: <odd@example.org>\r\nSubject: odd\r\n\r\n";
    let with = |body: &[u8]| [&header[..], body].concat();
    let mut all_bytes: Vec<u8> = (0..=255).collect();
    all_bytes.extend_from_slice(b"\r\n");
    vec![
        with(b"Hello\r\n"),
        b"Message-ID: <lf@x>\nSubject: LF\n\nHello\nyou\n".to_vec(),
        b"Message-ID: <mixed@x>\r\nSubject: mixed\n\r\nHello\nyou\r\n\n\r\n".to_vec(),
        with(b"8-bit \x80\xff\xc3\xa9 and broken \xe2\x82\r\n"),
        with(b"bare CR \r in it\r\n"),
        with(b"two CRs\r\r\n\r\r\r\nend\r"),
        with(&[b'x'; 100_000]),
        with(&[&[b'y'; 100_000][..], b"\r\n", &[b'z'; 998], b"\r\n"].concat()),
        with(b"no final newline"),
        with(b"trailing blanks \t \r\n \r\n\r\n\r\n\r\n"),
        with(b"nul \0 \0\0\r\n"),
        with(&all_bytes),
        with(b".\r\n..\r\n.hidden\r\n"),
        with(b"From the start\r\n\r\nFrom lisa@gmail.com Sat Nov 21 10:00:00 2026\r\n>From quoted\r\n"),
        with(b"a1 LOGOUT\r\n{5}\r\n)\r\n* BYE\r\n{99999999+}\r\n"),
        with(b""),
        b"Subject: only a header\r\nMessage-ID: <header@x>\r\n".to_vec(),
        b"Subject: only a header, cut".to_vec(),
        b"\r\nno header at all\r\n".to_vec(),
        b"\nno header, LF\n".to_vec(),
        b"this is no field\r\n\r\nbody\r\n".to_vec(),
        b"\r\n".to_vec(),
        b"\n\nLF\n".to_vec(),
        b"x".to_vec(),
        b"\0".to_vec(),
        [&b"Subject: long\r\n "[..], &[b'h'; 100_000], b"\r\nMessage-ID: <long@x>\r\n\r\nbody\r\n"].concat(),
        [&b"Message-ID: <"[..], &[b'i'; 4000], b"@x>\r\nSubject: id\r\n\r\n"].concat(),
        b"Message-ID: <q\"uo\\te)('*%{3}@x>\r\nSubject: id\r\n\r\n".to_vec(),
        b"Message-ID: <f\r\n old\x80\xff\0@x>\r\nSubject: id\r\n\r\n".to_vec(),
        b"Message-ID:\r\nSubject: empty id\r\n\r\n".to_vec(),
        b"Message-ID: <first@x>\r\nSubject: two ids\r\nMessage-ID: <second@x>\r\n\r\n".to_vec(),
        (0..5000).flat_map(|n| format!("line {n} of many\r\n").into_bytes()).collect(),
    ]
}

mod suite {
    use super::*;

    pub fn a_copy_is_stored_byte_for_byte(rig: &dyn Rig) {
        let store = rig.store();
        let mut expected = Vec::new();
        for bytes in odd_messages() {
            let mail = message(bytes.clone());
            append(store.as_ref(), &inbox(), &mail);
            expected.push(rig.stored_form(&bytes));
        }
        let mut stored: Vec<_> =
            rig.messages("doug", "INBOX").into_iter().map(|(bytes, _)| bytes).collect();
        stored.sort();
        expected.sort();
        assert_eq!(stored.len(), expected.len());
        for (stored, expected) in stored.iter().zip(&expected) {
            assert!(
                stored == expected,
                "{:.200?}\nis not\n{:.200?}",
                stored.escape_ascii(),
                expected.escape_ascii()
            );
        }
    }

    pub fn an_empty_message_is_stored_or_refused(rig: &dyn Rig) {
        // What Postfix hands over has a field at least; what is left of it for a shared copy may be
        // nothing. An IMAP server may refuse that (RFC 3502 takes an empty literal for a wish to
        // stop).
        let store = rig.store();
        let mail = message("Return-Path: <lisa@gmail.com>\n");
        match try_append(store.as_ref(), &sent(), &mail) {
            Ok(receipt) => {
                assert_eq!(rig.messages("lisa", "Sent"), [(Vec::new(), true)]);
                assert_eq!(look(store.as_ref(), &sent(), &mail), Some(receipt));
            }
            Err(error) => {
                assert!(error.certainly_not_stored(), "{error}");
                assert!(rig.messages("lisa", "Sent").is_empty());
            }
        }
        append(store.as_ref(), &sent(), &super::mail("next"));
        assert!(subjects(rig, &sent()).contains(&"next".to_owned()), "the session lives on");
    }

    pub fn a_shared_copy_is_marked_as_read_and_an_own_one_is_not(rig: &dyn Rig) {
        let store = rig.store();
        append(store.as_ref(), &inbox(), &mail("own"));
        append(store.as_ref(), &sent(), &mail("shared"));
        let seen = |account, mailbox| -> Vec<bool> {
            rig.messages(account, mailbox).into_iter().map(|(_, seen)| seen).collect()
        };
        assert_eq!(seen("doug", "INBOX"), [false]);
        assert_eq!(seen("lisa", "Sent"), [true]);
    }

    pub fn a_copy_has_the_date_of_its_first_recording(rig: &dyn Rig) {
        let store = rig.store();
        for destination in [inbox(), sent()] {
            append(store.as_ref(), &destination, &mail("dated"));
            if let Some(dates) = rig.dates(&destination.account, &destination.mailbox) {
                assert_eq!(dates, [recorded_at()], "{destination}");
            }
        }
    }

    pub fn copies_that_come_together_are_each_what_they_would_be_alone(rig: &dyn Rig) {
        let store = rig.store();
        // The first one makes the mailbox.
        let destination = &Destination::sent("lisa", "Together");
        let barrier = Barrier::new(MANY);
        thread::scope(|scope| {
            for n in 0..MANY {
                let (store, barrier) = (store.as_ref(), &barrier);
                scope.spawn(move || {
                    for round in ["a", "b"] {
                        let mail = mail(&format!("{round}{n:02}"));
                        barrier.wait();
                        let receipt = append(store, destination, &mail);
                        let found = look(store, destination, &mail);
                        assert_eq!(found, Some(receipt), "each has its own receipt");
                    }
                });
            }
        });
        let names = |round: &'static str| (0..MANY).map(move |n| format!("{round}{n:02}"));
        let expected: Vec<String> = names("a").chain(names("b")).collect();
        assert_eq!(subjects(rig, destination), expected);
        let messages = rig.messages("lisa", "Together");
        assert!(messages.iter().all(|(_, seen)| *seen), "each has its flags");
    }

    pub fn a_missing_mailbox_is_made(rig: &dyn Rig) {
        let store = rig.store();
        let deep = Destination::sent("zoe", "Archive/2026");
        for destination in [inbox(), sent(), Destination::inbox("lisa"), deep] {
            append(store.as_ref(), &destination, &mail("first"));
            append(rig.store().as_ref(), &destination, &mail("second"));
            assert_eq!(subjects(rig, &destination), ["first", "second"], "{destination}");
        }
    }

    pub fn a_mailbox_that_may_not_be_made_is_refused(rig: &dyn Rig) {
        let Some(store) = rig.store_that_makes_nothing() else { return };
        append(rig.store().as_ref(), &Destination::inbox("lisa"), &mail("there"));
        // An account without any mailbox is another matter: some stores give every account an
        // INBOX.
        let refused = try_append(store.as_ref(), &sent(), &mail("refused"));
        assert!(refused.is_err_and(|error| error.certainly_not_stored()));
        assert!(find(store.as_ref(), &sent(), &mail("refused"), None).is_empty());
        assert!(rig.messages("lisa", "Sent").is_empty());
        append(store.as_ref(), &Destination::inbox("lisa"), &mail("accepted"));
        assert_eq!(
            subjects(rig, &Destination::inbox("lisa")),
            ["accepted", "there"],
            "the session lives on"
        );
        append(rig.store().as_ref(), &sent(), &mail("made"));
        append(store.as_ref(), &sent(), &mail("later"));
        assert_eq!(subjects(rig, &sent()), ["later", "made"]);
    }

    pub fn a_missing_mailbox_holds_no_copy(rig: &dyn Rig) {
        let store = rig.store();
        for destination in [inbox(), sent()] {
            assert_eq!(look(store.as_ref(), &destination, &mail("nowhere")), None);
        }
        // Not the INBOX: an IMAP server has one for everybody, with a UIDVALIDITY of its own.
        let gone = append(store.as_ref(), &Destination::inbox("zoe"), &mail("elsewhere"));
        store.remove(&sent(), &gone, soon()).expect("gone already");
    }

    pub fn the_look_finds_a_copy_whatever_way_it_took(rig: &dyn Rig) {
        let store = rig.store();
        let body = "Message-ID: <way@x>\r\nDate: Sun, 22 Nov 2026 10:00:00 +0000\r\nFrom: lisa@gmail.com\r\nSubject: way\r\n\r\nHello\r\n";
        let first = message(format!("Delivered-To: a@x\r\nReceived: from a by b; now\r\n{body}"));
        let second = message(format!(
            "Return-Path: <x@y>\r\nDelivered-To: bb@x\r\nReceived: from c by d;\r\n\tlater\r\nX-Spam-Flag: NO\r\n{body}\r\n\r\n"
        ));
        let unix = message(body.replace("\r\n", "\n"));
        for destination in [inbox(), sent()] {
            append(store.as_ref(), &destination, &mail("before"));
            let receipt = append(store.as_ref(), &destination, &first);
            append(store.as_ref(), &destination, &mail("after"));
            for other in [&first, &second, &unix] {
                assert_eq!(look(store.as_ref(), &destination, other), Some(receipt.clone()));
                assert_eq!(look(rig.store().as_ref(), &destination, other), Some(receipt.clone()));
            }
        }
    }

    pub fn the_look_finds_what_a_reader_has_touched(rig: &dyn Rig) {
        let store = rig.store();
        for destination in [inbox(), sent()] {
            let receipt = append(store.as_ref(), &destination, &mail("read"));
            assert_eq!(look(store.as_ref(), &destination, &mail("read")), Some(receipt.clone()));
            rig.read(&destination.account, &destination.mailbox);
            assert_eq!(look(store.as_ref(), &destination, &mail("read")), Some(receipt.clone()));
            assert_eq!(
                look(rig.store().as_ref(), &destination, &mail("read")),
                Some(receipt.clone())
            );
            store.remove(&destination, &receipt, soon()).expect("remove");
            assert!(rig.messages(&destination.account, &destination.mailbox).is_empty());
        }
    }

    pub fn the_look_takes_no_other_message_for_the_copy(rig: &dyn Rig) {
        let store = rig.store();
        let wanted = mail_with_body("same", "wanted");
        for other in [
            mail_with_body("same", "another"),
            mail_with_body("same", "wanteD"),
            mail("SAME"),
            mail("same2"),
            mail("2same"),
            message("Subject: quoted\r\n\r\nMessage-ID: <same@example.org>\r\n\r\nwanted"),
            message(
                "Subject: second\r\nMessage-ID: <x@x>\r\nMessage-ID: <same@example.org>\r\n\r\nwanted",
            ),
        ] {
            append(store.as_ref(), &inbox(), &other);
        }
        assert_eq!(look(store.as_ref(), &inbox(), &wanted), None);
        let receipt = append(store.as_ref(), &inbox(), &wanted);
        append(store.as_ref(), &inbox(), &mail_with_body("same", "a third"));
        assert_eq!(look(store.as_ref(), &inbox(), &wanted), Some(receipt));
    }

    pub fn the_look_finds_a_copy_without_a_message_id(rig: &dyn Rig) {
        let store = rig.store();
        let wanted = message("Subject: none\n\nbody 1\n");
        append(store.as_ref(), &inbox(), &message("Subject: none\n\nbody 2\n"));
        append(store.as_ref(), &inbox(), &mail("with"));
        assert_eq!(look(store.as_ref(), &inbox(), &wanted), None);
        let receipt = append(store.as_ref(), &inbox(), &wanted);
        append(store.as_ref(), &inbox(), &message("Subject: none\n\nbody 3\n"));
        assert_eq!(look(store.as_ref(), &inbox(), &wanted), Some(receipt));
    }

    pub fn the_look_finds_odd_copies(rig: &dyn Rig) {
        let store = rig.store();
        let mails: Vec<Message> = odd_messages().into_iter().map(message).collect();
        let receipts: Vec<_> =
            mails.iter().map(|mail| append(store.as_ref(), &inbox(), mail)).collect();
        for (receipt, mail) in receipts.into_iter().zip(&mails) {
            let found = look(store.as_ref(), &inbox(), mail);
            assert_eq!(found, Some(receipt), "{:.100?}", mail.own_copy().escape_ascii());
        }
    }

    pub fn the_look_finds_one_among_many(rig: &dyn Rig) {
        let store = rig.store();
        let mut receipts = Vec::new();
        for n in 0..60 {
            receipts.push(append(store.as_ref(), &inbox(), &mail(&format!("n{n}"))));
        }
        let distinct: HashSet<String> =
            receipts.iter().map(|receipt| format!("{receipt:?}")).collect();
        assert_eq!(distinct.len(), 60, "each has a receipt of its own");
        let fresh = rig.store();
        for n in [0, 1, 31, 59] {
            assert_eq!(
                look(fresh.as_ref(), &inbox(), &mail(&format!("n{n}"))),
                Some(receipts[n].clone())
            );
        }
        assert_eq!(look(fresh.as_ref(), &inbox(), &mail("n")), None);
    }

    pub fn the_look_keeps_to_its_mailbox(rig: &dyn Rig) {
        let store = rig.store();
        let others = [
            Destination::inbox("zoe"),
            Destination::sent("doug", "Sent"),
            Destination::sent("doug", "Sent2"),
        ];
        for other in &others {
            append(store.as_ref(), other, &mail("kept"));
        }
        assert_eq!(look(store.as_ref(), &inbox(), &mail("kept")), None);
        let receipt = append(store.as_ref(), &inbox(), &mail("kept"));
        assert_eq!(look(store.as_ref(), &inbox(), &mail("kept")), Some(receipt));
        for other in others {
            assert_eq!(subjects(rig, &other), ["kept"]);
        }
    }

    pub fn looks_and_appends_do_not_disturb_each_other(rig: &dyn Rig) {
        let store = rig.store();
        let destinations =
            [inbox(), sent(), Destination::inbox("lisa"), Destination::sent("doug", "Sent")];
        for round in 0..3 {
            let mail = mail(&format!("round{round}"));
            for destination in &destinations {
                assert_eq!(look(store.as_ref(), destination, &mail), None);
                let receipt = append(store.as_ref(), destination, &mail);
                assert_eq!(look(store.as_ref(), destination, &mail), Some(receipt));
            }
        }
        for destination in &destinations {
            assert_eq!(subjects(rig, destination), ["round0", "round1", "round2"], "{destination}");
        }
        assert!(
            rig.messages("doug", "INBOX").iter().all(|(_, seen)| !seen),
            "a look marks nothing as read"
        );
    }

    pub fn all_copies_of_a_message_are_found(rig: &dyn Rig) {
        let store = rig.store();
        for destination in [inbox(), sent()] {
            let (account, mailbox) = (&destination.account, &destination.mailbox);
            assert_eq!(find(store.as_ref(), &destination, &mail("two"), None), []);
            append(store.as_ref(), &destination, &mail("before"));
            let first = append(store.as_ref(), &destination, &mail("two"));
            append(store.as_ref(), &destination, &mail_with_body("two", "other content"));
            // Of an idempotent store's names one may be taken twice, once a reader has touched the
            // first.
            rig.read(account, mailbox);
            append(store.as_ref(), &destination, &mail("two"));
            append(store.as_ref(), &destination, &mail("two"));
            let standing =
                subjects(rig, &destination).iter().filter(|subject| *subject == "two").count() - 1;
            for on_record in [None, Some(&first)] {
                let found = find(store.as_ref(), &destination, &mail("two"), on_record);
                assert_eq!(found.len(), standing, "{destination}: {found:?}");
                assert!(
                    found.iter().all(|one| one.has_our_date && !one.marked_deleted),
                    "{found:?}"
                );
                assert_eq!(
                    found.last().map(|one| &one.receipt),
                    Some(&first),
                    "the oldest comes last"
                );
                let names: HashSet<String> =
                    found.iter().map(|one| format!("{:?}", one.receipt)).collect();
                assert_eq!(names.len(), standing, "each can be told from the others: {found:?}");
            }
            let others = subjects(rig, &destination).len() - standing;
            for one in find(store.as_ref(), &destination, &mail("two"), None) {
                if one.receipt != first {
                    store.remove(&destination, &one.receipt, soon()).expect("remove");
                }
            }
            let left = find(rig.store().as_ref(), &destination, &mail("two"), None);
            assert_eq!(left.iter().map(|one| &one.receipt).collect::<Vec<_>>(), [&first]);
            assert_eq!(subjects(rig, &destination).len(), others + 1);
            store.remove(&destination, &first, soon()).expect("remove");
            assert_eq!(find(store.as_ref(), &destination, &mail("two"), Some(&first)), []);
            assert_eq!(subjects(rig, &destination).len(), others);
        }
    }

    pub fn a_copy_is_found_with_its_date_and_its_deletion(rig: &dyn Rig) {
        let store = rig.store();
        let at = |store: &dyn AnyStore, recorded_at: SystemTime| {
            append_as(store, &inbox(), &mail("dated"), (recorded_at, &ample())).expect("append")
        };
        let day = Duration::from_secs(24 * 3600);
        let ours = at(store.as_ref(), recorded_at());
        at(store.as_ref(), recorded_at() + Duration::from_secs(1));
        let long_ago = at(store.as_ref(), recorded_at() - 3 * day);
        let found = find(store.as_ref(), &inbox(), &mail("dated"), None);
        let dated: Vec<bool> =
            found.iter().filter(|one| one.receipt != ours).map(|one| one.has_our_date).collect();
        assert!(found.iter().any(|one| one.receipt == ours && one.has_our_date));
        // A store that goes by names finds the one it would have written.
        assert!(dated.iter().all(|ours| !ours) && dated.len() <= 1, "{found:?}");
        assert!(store.append_is_idempotent() || dated.len() == 1, "{found:?}");
        if !store.append_is_idempotent() {
            let found = find(store.as_ref(), &inbox(), &mail("dated"), Some(&long_ago));
            assert!(
                found.iter().any(|one| one.receipt == long_ago && !one.has_our_date),
                "on record: {found:?}"
            );
        }
        rig.mark_deleted("doug", "INBOX");
        let found = find(store.as_ref(), &inbox(), &mail("dated"), Some(&ours));
        assert!(found.iter().all(|one| one.marked_deleted), "{found:?}");
        assert_eq!(
            look(store.as_ref(), &inbox(), &mail("dated")),
            Some(found[0].receipt.clone()),
            "it was delivered"
        );
    }

    pub fn a_copy_is_found_by_what_a_ledger_knows(rig: &dyn Rig) {
        let store = rig.store();
        let mails: Vec<Message> = odd_messages().into_iter().map(message).collect();
        let receipts: Vec<_> =
            mails.iter().map(|mail| append(store.as_ref(), &inbox(), mail)).collect();
        for (receipt, mail) in receipts.iter().zip(&mails) {
            for (on_record, is_thorough) in
                [(None, false), (Some(receipt), false), (None, true), (Some(receipt), true)]
            {
                let found = find_as(store.as_ref(), &inbox(), mail, on_record, is_thorough);
                let receipts: Vec<_> = found.iter().map(|one| &one.receipt).collect();
                assert_eq!(receipts, [receipt], "{:.100?}", mail.own_copy().escape_ascii());
                assert!(
                    found[0].proof == Proof::Equal
                        || !is_thorough && found[0].proof == Proof::Assumed
                );
            }
        }
    }

    pub fn a_removal_takes_out_the_one_it_names(rig: &dyn Rig) {
        let store = rig.store();
        for destination in [inbox(), sent()] {
            let receipts: Vec<_> = ["a", "b", "c"]
                .map(|name| append(store.as_ref(), &destination, &mail(name)))
                .into();
            append(store.as_ref(), &Destination::inbox("zoe"), &mail("b"));
            for _ in 0..2 {
                store.remove(&destination, &receipts[1], soon()).expect("remove");
                assert_eq!(subjects(rig, &destination), ["a", "c"]);
            }
            assert_eq!(look(store.as_ref(), &destination, &mail("b")), None);
            let again = append(store.as_ref(), &destination, &mail("b"));
            assert_eq!(look(store.as_ref(), &destination, &mail("b")), Some(again.clone()));
            rig.store().remove(&destination, &again, soon()).expect("remove, by another session");
            assert_eq!(subjects(rig, &destination), ["a", "c"]);
        }
        assert!(subjects(rig, &Destination::inbox("zoe")).iter().all(|subject| subject == "b"));
    }

    pub fn a_removal_by_a_strange_receipt_takes_out_nothing(rig: &dyn Rig) {
        let store = rig.store();
        let receipts: Vec<_> =
            ["a", "b"].map(|name| append(store.as_ref(), &inbox(), &mail(name))).into();
        let mut strange = vec![
            Receipt::Unnamed,
            Receipt::Uid { validity: 0, uid: 0 },
            Receipt::Uid { validity: u32::MAX, uid: 1 },
        ];
        let names = [
            "", ".", "..", "../..", "new/", "cur/..", "new/.", "/", "*", "1:*", "../cur", ":2,S",
            "\0", "a\r\nb",
        ];
        strange.extend(names.map(|name| Receipt::Name(name.to_owned())));
        for receipt in &receipts {
            match receipt {
                Receipt::Uid { validity, uid } => {
                    strange.push(Receipt::Uid { validity: *validity, uid: u32::MAX });
                    strange.push(Receipt::Uid { validity: *validity, uid: 0 });
                    strange.push(Receipt::Uid { validity: validity.wrapping_add(1), uid: *uid });
                    strange.push(Receipt::Name(uid.to_string()));
                }
                Receipt::Name(name) => {
                    strange.push(Receipt::Name(name[..name.len() - 1].to_owned()));
                    strange.push(Receipt::Name(format!("{name}x")));
                    strange.push(Receipt::Name(format!("../new/{name}")));
                    strange.push(Receipt::Name(format!("new/../cur/{name}")));
                    strange.push(Receipt::Name(format!("tmp/{name}")));
                }
                Receipt::Unnamed => {}
            }
        }
        for receipt in strange {
            if let Err(error) = store.remove(&inbox(), &receipt, soon()) {
                assert!(matches!(error, StoreError::NotStored(_)), "{receipt:?}: {error}");
            }
            assert_eq!(subjects(rig, &inbox()), ["a", "b"], "{receipt:?}");
        }
        append(store.as_ref(), &inbox(), &mail("c"));
        assert_eq!(subjects(rig, &inbox()), ["a", "b", "c"], "the session lives on");
    }

    pub fn a_double_is_taken_out_while_its_keeper_stands(rig: &dyn Rig) {
        let store = rig.store();
        for destination in [inbox(), sent()] {
            let (account, mailbox) = (&destination.account, &destination.mailbox);
            append(store.as_ref(), &destination, &mail("other"));
            let keeper = append(store.as_ref(), &destination, &mail("two"));
            rig.read(account, mailbox);
            append(store.as_ref(), &destination, &mail("two"));
            let found = find(store.as_ref(), &destination, &mail("two"), Some(&keeper));
            // An idempotent store without readers has none.
            let [double, kept] = &found[..] else { return };
            assert_eq!((&kept.receipt, double.proof), (&keeper, Proof::Equal));
            let double = &double.receipt;
            let nobody = match &keeper {
                Receipt::Uid { validity, .. } => Receipt::Uid { validity: *validity, uid: 9_999 },
                other => Receipt::Name(format!("{other}.9")),
            };
            for (double, keeper) in [
                (double, double),
                (double, &nobody),
                (double, &Receipt::Unnamed),
                (&nobody, &keeper),
            ] {
                let refused = store.remove_double(&destination, double, keeper, soon());
                assert!(
                    matches!(refused, Err(StoreError::NotStored(_))),
                    "{double} {keeper} {refused:?}"
                );
                assert_eq!(subjects(rig, &destination), ["other", "two", "two"]);
            }
            store.remove_double(&destination, double, &keeper, soon()).expect("removal");
            assert_eq!(subjects(rig, &destination), ["other", "two"]);
            assert_eq!(
                find(rig.store().as_ref(), &destination, &mail("two"), None)[0].receipt,
                keeper
            );
            assert!(
                store.remove_double(&destination, double, &keeper, soon()).is_err(),
                "gone, or renamed"
            );
            rig.read(account, mailbox);
            append(store.as_ref(), &destination, &mail("two"));
            rig.mark_deleted(account, mailbox);
            for one in find(store.as_ref(), &destination, &mail("two"), Some(&keeper)) {
                assert!(
                    store.remove_double(&destination, &one.receipt, &keeper, soon()).is_err(),
                    "{one:?}"
                );
            }
            assert_eq!(subjects(rig, &destination).len(), 3, "what is marked counts as gone");
            rig.assert_nothing_outside();
        }
    }

    pub fn a_second_append_is_as_the_store_says(rig: &dyn Rig) {
        let store = rig.store();
        for destination in [inbox(), sent()] {
            let first = append(store.as_ref(), &destination, &mail("again"));
            let second = append(rig.store().as_ref(), &destination, &mail("again"));
            let expected = if store.append_is_idempotent() {
                assert_eq!(first, second);
                1
            } else {
                assert_ne!(first, second, "whoever wrote one too many can name it");
                2
            };
            assert_eq!(subjects(rig, &destination).len(), expected, "{destination}");
            if expected == 2 {
                store.remove(&destination, &second, soon()).expect("remove");
                assert_eq!(look(store.as_ref(), &destination, &mail("again")), Some(first));
            }
        }
        assert_eq!(store.append_is_idempotent(), rig.store().append_is_idempotent());
    }

    pub fn odd_names_are_stored_safely_or_refused(rig: &dyn Rig) {
        let store = rig.store();
        append(store.as_ref(), &inbox(), &mail("victim"));
        append(store.as_ref(), &Destination::sent("doug", "Sent"), &mail("victim"));
        let accounts = [
            "",
            ".",
            "..",
            "../doug",
            "doug/Maildir",
            "doug/../doug",
            "/etc",
            "doug\0",
            "doug\n",
            "do\\ug",
            "\u{7f}",
            "o'brien",
            "a \"b\" c",
            "grüße",
            "a*",
            "a%",
            "~",
            "-rf",
            "$(id)",
            "{3}",
            "doug/",
            "/",
            "DOUG.",
            "日本",
        ];
        let mailboxes = [
            "",
            ".",
            "..",
            "../..",
            "../../doug/Maildir",
            "a/../../b",
            "/",
            "//",
            "/etc",
            "a//b",
            "a/",
            ".a",
            "a..b",
            "Sent\0",
            "Sent\r\nx LOGOUT",
            "o'brien",
            "a \"b\" \\ c",
            "Entwürfe",
            "日本語",
            "a*",
            "a%b",
            "&",
            "&-",
            "~",
            "{3}",
            "a&AOk-",
            "new",
            "cur",
            "tmp",
            "INBOX/sub",
            "a\u{80}b",
            "subscriptions",
        ];
        let long = "x".repeat(5000);
        let mut odd: Vec<Destination> = accounts.map(Destination::inbox).into();
        odd.extend(mailboxes.map(|mailbox| Destination::sent("zoe", mailbox)));
        odd.extend([Destination::inbox(&long), Destination::sent("zoe", &long)]);
        for (n, destination) in odd.iter().enumerate() {
            let mail = mail(&format!("odd{n:02}"));
            let context = format!("{:?} {:?}", destination.account, destination.mailbox);
            match try_append(store.as_ref(), destination, &mail) {
                Ok(receipt) => {
                    assert_eq!(
                        look(store.as_ref(), destination, &mail),
                        Some(receipt),
                        "{context}"
                    );
                    assert!(look(rig.store().as_ref(), destination, &mail).is_some(), "{context}");
                }
                Err(error) => {
                    // Dovecot has no word for some of these but that it is in trouble, which it may
                    // be at any point.
                    let is_trouble = error.to_string().contains("NO [SERVERBUG]");
                    assert!(error.certainly_not_stored() || is_trouble, "{context}: {error}");
                    // Refused or not there; an odd name finds nothing else either.
                    let found = try_look(store.as_ref(), destination, &mail);
                    assert!(!matches!(found, Ok(Some(_))), "{context}");
                }
            }
            let _ = store.remove(destination, &Receipt::Name("x".to_owned()), soon());
            rig.assert_nothing_outside();
        }
        assert_eq!(subjects(rig, &inbox()), ["victim"]);
        assert_eq!(subjects(rig, &Destination::sent("doug", "Sent")), ["victim"]);
        append(store.as_ref(), &inbox(), &mail("last"));
        assert_eq!(subjects(rig, &inbox()), ["last", "victim"], "the session lives on");
    }

    pub fn without_time_for_the_answer_nothing_is_stored(rig: &dyn Rig) {
        let store = rig.store();
        append(store.as_ref(), &inbox(), &mail("before"));
        let spent = Deadline::new(Duration::ZERO, Duration::from_secs(1));
        let short = Deadline::new(Duration::from_secs(60), Duration::from_secs(61));
        for deadline in [short, spent] {
            let late =
                append_as(store.as_ref(), &inbox(), &mail("late"), (recorded_at(), &deadline));
            assert!(matches!(late, Err(StoreError::NotStored(_))), "{late:?}");
            assert!(!deadline.is_answering());
            assert_eq!(subjects(rig, &inbox()), ["before"]);
        }
        let fresh = rig.store();
        assert_eq!(look(fresh.as_ref(), &inbox(), &mail("late")), None);
        append(fresh.as_ref(), &inbox(), &mail("late"));
        assert_eq!(subjects(rig, &inbox()), ["before", "late"]);
    }

    pub fn an_append_tells_the_watchdog_that_it_waits_for_the_answer(rig: &dyn Rig) {
        let deadline = ample();
        let store = rig.store();
        look(store.as_ref(), &inbox(), &mail("told"));
        for need in [Need::Look, Need::Early] {
            let reservation = (need, recorded_at(), &deadline);
            let looked =
                try_reserve(store.as_ref(), &inbox(), &mail("told"), reservation, |slot| {
                    slot.map(|slot| slot.look(soon()).expect("look"))
                });
            looked.expect("reserve");
            assert!(!deadline.is_answering(), "{need:?}");
        }
        append_as(store.as_ref(), &inbox(), &mail("told"), (recorded_at(), &deadline))
            .expect("append");
        assert!(deadline.is_answering(), "until the caller has put the receipt on record");
    }

    const MANY: usize = 16;

    pub fn many_append_to_one_mailbox_at_once(rig: &dyn Rig) {
        append(rig.store().as_ref(), &inbox(), &mail("m"));
        let (barrier, receipts) = (Barrier::new(MANY), Mutex::new(HashSet::new()));
        thread::scope(|scope| {
            for n in 0..MANY {
                let (barrier, receipts) = (&barrier, &receipts);
                scope.spawn(move || {
                    let (store, mail) = (rig.store(), mail(&format!("m{n:02}")));
                    barrier.wait();
                    let receipt = append(store.as_ref(), &inbox(), &mail);
                    assert_eq!(look(store.as_ref(), &inbox(), &mail), Some(receipt.clone()));
                    receipts.lock().expect("receipts").insert(format!("{receipt:?}"));
                });
            }
        });
        assert_eq!(receipts.into_inner().expect("receipts").len(), MANY);
        assert_eq!(subjects(rig, &inbox()).len(), MANY + 1);
    }

    pub fn many_make_one_mailbox_at_once(rig: &dyn Rig) {
        let barrier = Barrier::new(MANY);
        thread::scope(|scope| {
            for n in 0..MANY {
                let barrier = &barrier;
                scope.spawn(move || {
                    let store = rig.store();
                    barrier.wait();
                    append(store.as_ref(), &sent(), &mail(&format!("m{n}")));
                    append(
                        store.as_ref(),
                        &Destination::inbox(&format!("account{n}")),
                        &mail("own"),
                    );
                });
            }
        });
        assert_eq!(subjects(rig, &sent()).len(), MANY);
    }

    pub fn a_copy_appended_by_many_at_once_is_as_the_store_says(rig: &dyn Rig) {
        let barrier = Barrier::new(MANY);
        let is_idempotent = rig.store().append_is_idempotent();
        thread::scope(|scope| {
            for _ in 0..MANY {
                scope.spawn(|| {
                    let store = rig.store();
                    barrier.wait();
                    reserve(
                        store.as_ref(),
                        &sent(),
                        &mail("one"),
                        Need::Write,
                        |slot| match slot {
                            Some(slot) => drop(slot.append().expect("append")),
                            None => assert!(is_idempotent, "only a lock keeps others out"),
                        },
                    );
                });
            }
        });
        let expected = if is_idempotent { 1 } else { MANY };
        assert_eq!(subjects(rig, &sent()).len(), expected);
        assert!(look(rig.store().as_ref(), &sent(), &mail("one")).is_some());
    }

    pub fn a_copy_that_is_reserved_is_nobody_elses_where_copies_have_locks(rig: &dyn Rig) {
        let [one, other] = ["one", "other"].map(mail);
        let (store, second) = (rig.store(), rig.store());
        let are_shared = !store.append_is_idempotent();
        for destination in [inbox(), sent()] {
            for need in [Need::Early, Need::Write, Need::Look] {
                let context = format!("{destination} {need:?}");
                reserve(store.as_ref(), &destination, &one, need, |slot| {
                    assert!(slot.is_some() || are_shared, "{context}: nobody has it");
                    for another in [&store, &second] {
                        let another = another.as_ref();
                        assert_eq!(is_free(another, &destination, &one), are_shared, "{context}");
                        assert!(is_free(another, &destination, &other), "{context}: another copy");
                        let elsewhere = Destination::inbox("zoe");
                        assert!(is_free(another, &elsewhere, &one), "{context}: elsewhere");
                    }
                });
                assert!(is_free(second.as_ref(), &destination, &one), "{context}: given up");
            }
            assert!(subjects(rig, &destination).is_empty());
        }
        rig.assert_nothing_outside();
    }

    pub fn a_slot_stores_nothing_before_its_append(rig: &dyn Rig) {
        for destination in [inbox(), sent()] {
            let (store, other) = (rig.store(), rig.store());
            append(store.as_ref(), &destination, &mail("a"));
            let mut expected = vec!["a".to_owned()];
            for (need, name) in [(Need::Early, "early"), (Need::Write, "write"), (Need::Look, "z")]
            {
                let context = format!("{destination} {need:?}");
                reserve(store.as_ref(), &destination, &mail("dropped"), need, |_| {});
                let appended = reserve(store.as_ref(), &destination, &mail(name), need, |slot| {
                    let slot = slot?;
                    assert_eq!(subjects(rig, &destination), expected, "{context}");
                    let receipt = slot.append().expect("append");
                    expected.push(name.to_owned());
                    assert_eq!(subjects(rig, &destination), expected, "{context}");
                    // Its receipt is not on record yet.
                    let is_free = is_free(other.as_ref(), &destination, &mail(name));
                    assert_eq!(is_free, !store.append_is_idempotent(), "{context}");
                    Some(receipt)
                });
                let found = look(other.as_ref(), &destination, &mail(name));
                assert_eq!(found, appended, "{context}");
                let is_early = need == Need::Early && !store.append_is_idempotent();
                assert!(found.is_some() || is_early, "{context}");
            }
            let messages = rig.messages(&destination.account, &destination.mailbox);
            for name in &expected {
                let whole = (rig.stored_form(mail(name).own_copy()), destination.shared);
                assert!(messages.contains(&whole), "{destination} {name}: its bytes and flags");
            }
            if let Some(dates) = rig.dates(&destination.account, &destination.mailbox) {
                assert_eq!(dates, vec![recorded_at(); expected.len()], "{destination}");
            }
        }
        rig.assert_nothing_outside();
    }

    pub fn one_slot_looks_and_then_appends(rig: &dyn Rig) {
        let store = rig.store();
        append(store.as_ref(), &inbox(), &mail("before"));
        for need in [Need::Early, Need::Write, Need::Look] {
            let mail = mail(&format!("{need:?}"));
            let appended = reserve(store.as_ref(), &inbox(), &mail, need, |slot| {
                let slot = slot?;
                for _ in 0..2 {
                    assert_eq!(slot.look(soon()).expect("look"), None, "{need:?}");
                }
                let receipt = slot.append().expect("append");
                assert_eq!(slot.look(soon()).expect("look").as_ref(), Some(&receipt), "{need:?}");
                Some(receipt)
            });
            assert_eq!(look(rig.store().as_ref(), &inbox(), &mail), appended, "{need:?}");
        }
    }

    pub fn a_slot_is_for_its_own_date(rig: &dyn Rig) {
        for destination in [inbox(), sent()] {
            let store = rig.store();
            let later = recorded_at() + Duration::from_secs(2);
            let early = (Need::Early, later, &ample());
            let begun = try_reserve(store.as_ref(), &destination, &mail("dated"), early, |_| {});
            begun.expect("reserve");
            let receipt = append(store.as_ref(), &destination, &mail("dated"));
            assert_eq!(subjects(rig, &destination), ["dated"], "{destination}");
            if let Some(dates) = rig.dates(&destination.account, &destination.mailbox) {
                assert_eq!(dates, [recorded_at()], "{destination}");
            }
            let found = find(rig.store().as_ref(), &destination, &mail("dated"), None);
            let receipts: Vec<_> = found.iter().map(|one| &one.receipt).collect();
            assert_eq!(receipts, [&receipt], "{destination}: its name");
        }
        rig.assert_nothing_outside();
    }

    pub fn preparing_changes_nothing(rig: &dyn Rig) {
        let store = rig.store();
        for account in ["doug", "../etc", "", "lisa", "doug"] {
            store.prepare(account, soon());
        }
        append(store.as_ref(), &inbox(), &mail("prepared"));
        append(store.as_ref(), &Destination::inbox("zoe"), &mail("not prepared"));
        assert_eq!(subjects(rig, &inbox()), ["prepared"]);
        assert!(rig.messages("lisa", "INBOX").is_empty());
        rig.assert_nothing_outside();
    }

    pub fn a_check_writes_no_message(rig: &dyn Rig) {
        let store = rig.store();
        for account in ["doug", "lisa"] {
            assert!(!store.check(account, soon()).expect("a check").is_empty());
            assert!(rig.messages(account, "INBOX").is_empty());
        }
        append(store.as_ref(), &inbox(), &mail("checked"));
        assert!(!store.check("doug", soon()).expect("a check").is_empty());
        assert_eq!(subjects(rig, &inbox()), ["checked"]);
    }
}

struct MemoryRig(MemoryStore);

impl Rig for MemoryRig {
    fn store(&self) -> Box<dyn AnyStore> {
        Box::new(self.0.clone())
    }

    fn store_that_makes_nothing(&self) -> Option<Box<dyn AnyStore>> {
        None
    }

    fn messages(&self, account: &str, mailbox: &str) -> Vec<(Vec<u8>, bool)> {
        let copies = self.0.copies(account, mailbox);
        copies.into_iter().map(|stored| (stored.bytes, stored.seen)).collect()
    }

    fn dates(&self, account: &str, mailbox: &str) -> Option<Vec<SystemTime>> {
        Some(self.0.copies(account, mailbox).into_iter().map(|stored| stored.date).collect())
    }

    fn read(&self, account: &str, mailbox: &str) {
        self.0.meddle(account, mailbox, |stored| {
            stored.iter_mut().for_each(|one| one.renamed = true)
        });
    }

    fn mark_deleted(&self, account: &str, mailbox: &str) {
        self.0.meddle(account, mailbox, |stored| {
            stored.iter_mut().for_each(|one| one.marked_deleted = true)
        });
    }
}

/// The file of a Maildir's locks.
const LOCKS: &str = "onedrop.lock";

/// A root between two folders that nobody may write to.
struct MaildirRig {
    folder: tempfile::TempDir,
}

impl MaildirRig {
    fn new() -> MaildirRig {
        let rig = MaildirRig { folder: tempfile::tempdir().expect("a folder") };
        fs::create_dir(rig.root()).expect("the root");
        rig
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    fn folder(&self, account: &str, mailbox: &str) -> PathBuf {
        let inbox = self.root().join(account).join("Maildir");
        if mailbox == "INBOX" {
            inbox
        } else {
            inbox.join(format!(".{}", mailbox.replace('/', ".")))
        }
    }

    fn files(&self, account: &str, mailbox: &str) -> Vec<PathBuf> {
        let folder = self.folder(account, mailbox);
        ["new", "cur"].iter().flat_map(|sub| list(&folder.join(sub))).collect()
    }
}

fn list(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

impl Rig for MaildirRig {
    fn store(&self) -> Box<dyn AnyStore> {
        Box::new(MaildirStore::new(self.root(), true))
    }

    fn store_that_makes_nothing(&self) -> Option<Box<dyn AnyStore>> {
        Some(Box::new(MaildirStore::new(self.root(), false)))
    }

    fn messages(&self, account: &str, mailbox: &str) -> Vec<(Vec<u8>, bool)> {
        let is_seen = |path: &Path| {
            path.to_string_lossy().rsplit_once(":2,").is_some_and(|(_, flags)| flags.contains('S'))
        };
        let files = self.files(account, mailbox);
        files
            .into_iter()
            .map(|path| (fs::read(&path).expect("a message"), is_seen(&path)))
            .collect()
    }

    fn dates(&self, account: &str, mailbox: &str) -> Option<Vec<SystemTime>> {
        let modified =
            |path: PathBuf| fs::metadata(path).and_then(|data| data.modified()).expect("a date");
        Some(self.files(account, mailbox).into_iter().map(modified).collect())
    }

    fn read(&self, account: &str, mailbox: &str) {
        for path in self.files(account, mailbox) {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let base = name.split(':').next().expect("a base").to_owned();
            // Dovecot adds sizes as well.
            let to =
                self.folder(account, mailbox).join("cur").join(format!("{base},S=100,W=105:2,RS"));
            fs::rename(path, to).expect("a rename");
        }
    }

    fn mark_deleted(&self, account: &str, mailbox: &str) {
        for path in self.files(account, mailbox) {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let (base, flags) = name.split_once(":2,").unwrap_or((&name, ""));
            let to = self.folder(account, mailbox).join("cur").join(format!("{base}:2,{flags}T"));
            fs::rename(path, to).expect("a rename");
        }
    }

    fn assert_nothing_outside(&self) {
        assert_eq!(list(self.folder.path()), [self.root()], "beside the root");
        for account in list(&self.root()) {
            assert_eq!(list(&account), [account.join("Maildir")], "beside a Maildir");
            for entry in list(&account.join("Maildir")) {
                let name = entry.file_name().expect("a name").to_string_lossy().into_owned();
                let is_part = ["new", "cur", "tmp"].contains(&name.as_str());
                let is_known = is_part
                    || name.starts_with('.')
                    || ["subscriptions", LOCKS].contains(&name.as_str());
                assert!(is_known, "{} in a Maildir", entry.display());
                if is_part {
                    assert!(
                        list(&entry).iter().all(|path| path.is_file()),
                        "a folder in {}",
                        entry.display()
                    );
                }
                if name == "tmp" {
                    assert!(list(&entry).is_empty(), "litter");
                }
            }
        }
    }
}

/// A real Dovecot, reached as the shipped settings recommend.
struct ImapRig {
    dovecot: Dovecot,
}

impl ImapRig {
    fn new() -> ImapRig {
        // What a Maildir with LF cannot hold, Dovecot changes; here it keeps the line ends it is
        // sent.
        ImapRig { dovecot: Dovecot::start_with("mail_save_crlf = yes") }
    }

    fn open(&self, create_mailboxes: bool) -> Box<dyn AnyStore> {
        let settings = ImapSettings {
            host: "127.0.0.1".to_owned(),
            port: self.dovecot.imap_port(),
            tls: Tls::None,
            ca_file: None,
            user: self.dovecot.master_user().to_owned(),
            login: LoginForm::Sasl,
            password: self.dovecot.password().into(),
            create_mailboxes,
            dedup_by: DedupBy::Content,
        };
        let idle = Duration::from_secs(60);
        Box::new(ImapStore::new(settings, Limits { used: usize::MAX, per_key: 4, kept: 8, idle }))
    }

    fn fetched(&self, account: &str, mailbox: &str, item: &str) -> Vec<String> {
        let mut session = self.dovecot.session(account);
        session.command(&format!("EXAMINE {}", support::imap::quoted(mailbox))).expect("examine");
        let answer = session.command(&format!("FETCH 1:* {item}")).expect("fetch");
        answer
            .untagged
            .into_iter()
            .map(|line| line.text)
            .filter(|text| text.contains("FETCH ("))
            .collect()
    }
}

impl Rig for ImapRig {
    fn store(&self) -> Box<dyn AnyStore> {
        self.open(true)
    }

    fn store_that_makes_nothing(&self) -> Option<Box<dyn AnyStore>> {
        Some(self.open(false))
    }

    fn messages(&self, account: &str, mailbox: &str) -> Vec<(Vec<u8>, bool)> {
        if self.dovecot.count(account, mailbox) == 0 {
            return Vec::new();
        }
        let seen = self
            .dovecot
            .flags(account, mailbox)
            .into_iter()
            .map(|flags| flags.iter().any(|f| f == "\\Seen"));
        self.dovecot.messages(account, mailbox).into_iter().zip(seen).collect()
    }

    fn dates(&self, account: &str, mailbox: &str) -> Option<Vec<SystemTime>> {
        let lines = self.fetched(account, mailbox, "INTERNALDATE");
        let date = |line: String| {
            let text = line.split('"').nth(1).expect("a quoted date").trim().to_owned();
            let time =
                chrono::DateTime::parse_from_str(&text, "%d-%b-%Y %H:%M:%S %z").expect("a date");
            SystemTime::from(time)
        };
        Some(lines.into_iter().map(date).collect())
    }

    fn stored_form(&self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        for (at, byte) in bytes.iter().enumerate() {
            match byte {
                b'\n' if at == 0 || bytes[at - 1] != b'\r' => out.extend_from_slice(b"\r\n"),
                0 => out.push(0x80),
                other => out.push(*other),
            }
        }
        out
    }

    fn mark_deleted(&self, account: &str, mailbox: &str) {
        let mut session = self.dovecot.session(account);
        session.command(&format!("SELECT {}", support::imap::quoted(mailbox))).expect("select");
        session.command("STORE 1:* +FLAGS (\\Seen \\Deleted)").expect("store");
    }

    fn read(&self, account: &str, mailbox: &str) {
        let mut session = self.dovecot.session(account);
        session.command(&format!("SELECT {}", support::imap::quoted(mailbox))).expect("select");
        session.command("STORE 1:* +FLAGS (\\Seen \\Answered)").expect("store");
    }
}

store_contract!(imap, ImapRig::new());
store_contract!(maildir, MaildirRig::new());
store_contract!(memory_like_imap, MemoryRig(MemoryStore::default()));
store_contract!(memory_like_maildir, MemoryRig(MemoryStore::idempotent()));

/// Puts a file of that name, with the date of an append of ours, beside the others.
fn put(rig: &MaildirRig, name: &str, date: SystemTime) -> PathBuf {
    let path = rig.folder("doug", "INBOX").join(name);
    fs::write(&path, mail("two").own_copy()).expect("a file");
    fs::File::options()
        .append(true)
        .open(&path)
        .and_then(|file| file.set_modified(date))
        .expect("a date");
    path
}

#[test]
fn maildir_the_copy_that_is_to_stay_goes_by_its_name() {
    let rig = MaildirRig::new();
    let Receipt::Name(name) = append(rig.store().as_ref(), &inbox(), &mail("two")) else {
        panic!("a name")
    };
    fs::remove_file(rig.folder("doug", "INBOX").join("new").join(&name)).expect("removal");
    let later = recorded_at() + Duration::from_secs(1);
    let cases = [
        (("", recorded_at()), (":2,ST", recorded_at()), "new", "the second is marked as deleted"),
        ((":2,", recorded_at()), (":2,S", later), "cur", "the second is not ours"),
        ((":2,S", later), (":2,T", recorded_at()), "cur", "a mark counts for more than a date"),
        (("", recorded_at()), (":2,S", recorded_at()), "cur", "the second was read"),
    ];
    for ((first, first_date), (second, second_date), stays, why) in cases {
        let sub = if first.is_empty() { "new" } else { "cur" };
        let paths = [
            put(&rig, &format!("{sub}/{name}{first}"), first_date),
            put(&rig, &format!("cur/{name}{second}"), second_date),
        ];
        let keeper = if why.starts_with("the second was read") { &paths[1] } else { &paths[0] };
        let store = rig.store();
        let found = find(store.as_ref(), &inbox(), &mail("two"), None);
        let lasting: Vec<bool> = found.iter().map(|one| one.receipt.is_lasting()).collect();
        assert_eq!(lasting, [false, true], "{why}: {found:?}");
        assert_eq!(
            look(store.as_ref(), &inbox(), &mail("two")),
            Some(Receipt::Name(name.clone())),
            "{why}"
        );
        store.remove(&inbox(), &found[0].receipt, soon()).expect("removal");
        assert_eq!(rig.files("doug", "INBOX"), std::slice::from_ref(keeper), "{why}");
        assert!(keeper.parent().is_some_and(|folder| folder.ends_with(stays)), "{why}");
        fs::remove_file(keeper).expect("removal");
    }
}

#[test]
fn maildir_a_double_stays_where_its_keeper_does_not() {
    let rig = MaildirRig::new();
    let Receipt::Name(name) = append(rig.store().as_ref(), &inbox(), &mail("two")) else {
        panic!("a name")
    };
    let double = Receipt::Name(format!("new/{name}"));
    let remove = |double: &Receipt| {
        rig.store().remove_double(&inbox(), double, &Receipt::Name(name.clone()), soon())
    };
    assert!(remove(&double).is_err(), "alone");
    let later = recorded_at() + Duration::from_secs(1);
    for (flags, date) in [(":2,ST", recorded_at()), (":2,S", later)] {
        let other = put(&rig, &format!("cur/{name}{flags}"), date);
        let error = remove(&double).expect_err("no keeper").to_string();
        assert!(error.contains("which was to stay"), "{error}");
        assert_eq!(rig.files("doug", "INBOX").len(), 2, "it is put back");
        rig.assert_nothing_outside();
        fs::remove_file(other).expect("removal");
    }
    assert_eq!(rig.dates("doug", "INBOX"), Some(vec![recorded_at()]), "with its date");
    let keeper = put(&rig, &format!("cur/{name}:2,S"), recorded_at());
    for refused in [Receipt::Name(name.clone()), Receipt::Name(format!("cur/{name}:2,"))] {
        assert!(
            remove(&refused).is_err(),
            "{refused}: both have its name, or a reader has renamed it"
        );
        assert_eq!(rig.files("doug", "INBOX").len(), 2);
    }
    let Receipt::Name(other) = append(rig.store().as_ref(), &inbox(), &mail("other")) else {
        panic!("a name")
    };
    assert!(
        remove(&Receipt::Name(format!("new/{other}"))).is_err(),
        "another message of the same second"
    );
    rig.store().remove(&inbox(), &Receipt::Name(other), soon()).expect("removal");
    remove(&double).expect("removal");
    assert_eq!(rig.files("doug", "INBOX"), [keeper]);
    rig.assert_nothing_outside();
}

#[test]
fn maildir_an_account_without_a_maildir_is_refused_where_none_may_be_made() {
    let rig = MaildirRig::new();
    let store = rig.store_that_makes_nothing().expect("a store");
    let refused = try_append(store.as_ref(), &inbox(), &mail("refused"));
    assert!(matches!(refused, Err(StoreError::Refused(_))), "{refused:?}");
    assert!(list(&rig.root()).is_empty());
}

#[test]
fn maildir_a_made_mailbox_is_subscribed_once_and_private() {
    use std::os::unix::fs::PermissionsExt;
    let rig = MaildirRig::new();
    for name in ["a", "b"] {
        append(rig.store().as_ref(), &sent(), &mail(name));
        append(rig.store().as_ref(), &Destination::sent("lisa", "Other"), &mail(name));
    }
    let inbox = rig.folder("lisa", "INBOX");
    assert_eq!(
        fs::read_to_string(inbox.join("subscriptions")).expect("subscriptions"),
        "Sent\nOther\n"
    );
    assert!(inbox.join(".Sent/maildirfolder").is_file());
    for path in
        rig.files("lisa", "Sent").iter().chain([&inbox.join("new"), &inbox.join(".Sent/cur")])
    {
        let mode = fs::metadata(path).expect("a mode").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}", path.display());
    }
}

#[test]
fn maildir_a_folder_that_cannot_be_written_or_read_is_no_missing_mailbox() {
    let rig = MaildirRig::new();
    append(rig.store().as_ref(), &inbox(), &mail("there"));
    // A file in the place of a folder fails for root as well, whom no permission stops.
    let new = rig.folder("doug", "INBOX").join("new");
    let aside = rig.folder("doug", "INBOX").join("aside");
    fs::rename(&new, &aside).expect("a rename");
    fs::write(&new, "").expect("a file");
    let store = rig.store();
    assert!(try_look(store.as_ref(), &inbox(), &mail("there")).is_err());
    let refused = try_append(store.as_ref(), &inbox(), &mail("refused"));
    assert!(refused.is_err_and(|error| error.certainly_not_stored()));
    fs::remove_file(&new).expect("removal");
    fs::rename(&aside, &new).expect("a rename");
    append(store.as_ref(), &inbox(), &mail("refused"));
    assert_eq!(subjects(&rig, &inbox()), ["refused", "there"]);
}

#[test]
fn maildir_the_file_of_its_locks_leads_nowhere_and_holds_nobody_up() {
    let rig = MaildirRig::new();
    append(rig.store().as_ref(), &inbox(), &mail("there"));
    let locks = rig.folder("doug", "INBOX").join(LOCKS);
    let outside = tempfile::tempdir().expect("a folder");
    let (missing, victim) = (outside.path().join("missing"), outside.path().join("victim"));
    fs::write(&victim, "untouched").expect("a file");
    let plant_link = |target: &Path| std::os::unix::fs::symlink(target, &locks).expect("a link");
    let plants: [(&str, &dyn Fn()); 4] = [
        ("a link to nothing", &|| plant_link(&missing)),
        ("a link to a file", &|| plant_link(&victim)),
        ("a pipe", &|| nix::unistd::mkfifo(&locks, nix::sys::stat::Mode::S_IRWXU).expect("a pipe")),
        ("a folder", &|| fs::create_dir(&locks).expect("a folder")),
    ];
    for (what, plant) in plants {
        let _ = fs::remove_file(&locks);
        plant();
        let (store, (done, is_done)) = (rig.store(), channel());
        // An open of a pipe would wait for ever.
        thread::spawn(move || {
            let reserved = [Need::Look, Need::Early].map(|need| {
                let (held, deadline) = (mail("held"), ample());
                let reservation = (need, recorded_at(), &deadline);
                try_reserve(store.as_ref(), &inbox(), &held, reservation, |slot| slot.is_some())
            });
            let _ = done.send(reserved);
        });
        let [reserved, early] = is_done
            .recv_timeout(Duration::from_secs(60))
            .unwrap_or_else(|_| panic!("{what}: it hangs"));
        let error = reserved.expect_err(what);
        assert!(
            matches!(error, StoreError::NotStored(_)) && error.to_string().contains(LOCKS),
            "{what}: {error}"
        );
        assert!(matches!(early, Ok(false)), "{what}");
        assert_eq!(list(outside.path()), std::slice::from_ref(&victim), "{what}");
        assert_eq!(fs::read_to_string(&victim).expect("a file"), "untouched", "{what}");
        assert_eq!(subjects(&rig, &inbox()), ["there"], "{what}");
        assert!(list(&rig.folder("doug", "INBOX").join("tmp")).is_empty(), "{what}");
    }
    fs::remove_dir(&locks).expect("removal");
    assert!(is_free(rig.store().as_ref(), &inbox(), &mail("held")), "as soon as it is gone");
}

#[test]
fn maildir_the_file_of_its_locks_is_its_owners_though_root_made_it() {
    let rig = MaildirRig::new();
    append(rig.store().as_ref(), &inbox(), &mail("there"));
    let (folder, owner) = (rig.folder("doug", "INBOX"), 65534);
    let _ = fs::remove_file(folder.join(LOCKS));
    std::os::unix::fs::chown(&folder, Some(owner), Some(owner)).expect("chown");
    assert!(is_free(rig.store().as_ref(), &inbox(), &mail("held")));
    let made = fs::metadata(folder.join(LOCKS)).expect("a file");
    assert_eq!((made.uid(), made.gid(), made.mode() & 0o777), (owner, owner, 0o600));
}

#[test]
fn maildir_no_lock_is_taken_where_no_mailbox_may_be_made() {
    let rig = MaildirRig::new();
    append(rig.store().as_ref(), &Destination::inbox("lisa"), &mail("there"));
    let store = rig.store_that_makes_nothing().expect("a store");
    for destination in [inbox(), sent()] {
        let error = try_look(store.as_ref(), &destination, &mail("refused"));
        let error = error.expect_err("no mailbox");
        assert!(
            error.certainly_not_stored() && error.to_string().contains("create_mailboxes"),
            "{error}"
        );
        reserve(store.as_ref(), &destination, &mail("refused"), Need::Early, |slot| {
            assert!(slot.is_none());
        });
    }
    assert_eq!(list(&rig.root()), [rig.root().join("lisa")]);
    assert!(!rig.folder("lisa", "Sent").exists());
    assert!(
        is_free(store.as_ref(), &Destination::inbox("lisa"), &mail("refused")),
        "where there is one"
    );
}
