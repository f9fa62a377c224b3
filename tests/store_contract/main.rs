//! What every store promises (`crates/core/src/store.rs`), as one suite that each adapter runs. A
//! new adapter needs a [`Rig`] and a line at the end of this file.

mod append;
mod find;
mod look;
mod mailboxes;
mod maildir;
mod many;
mod pool;
mod refusals;
mod removal;
mod rigs;
mod slots;
mod verified;

use std::collections::HashSet;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use onedrop::deadline::Deadline;
use onedrop::directory::Destination;
use onedrop::lock_key::Hash;
use onedrop::message::{DedupBy, Identity, Message};
use onedrop::store::memory::MemoryStore;
use onedrop::store::{AnyStore, LookBack, LookedBack, Mark, Need, Slot};
use onedrop::store::{Copy, CopySearch, FoundCopy, Proof, Receipt, StoreError, Unindexed};
use onedrop_core::testing::ports;
use onedrop_kit as support;

use ports::{inbox, mail, mail_with_body, message, sent, soon};
use rigs::{ImapRig, MaildirRig, MemoryRig};

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

    /// The date of each message in a mailbox; `None` where the rig cannot read it.
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
            append {
                                a_copy_is_stored_byte_for_byte,
                                an_empty_message_is_stored_or_refused,
                                a_shared_copy_is_marked_as_read_and_an_own_one_is_not,
                                a_copy_has_the_date_of_its_first_recording,
                                copies_that_come_together_are_each_what_they_would_be_alone,
                                a_second_append_is_as_the_store_says,
                                without_time_for_the_answer_nothing_is_stored,
                                an_append_tells_the_watchdog_that_it_waits_for_the_answer,
                                many_append_to_one_mailbox_at_once,
                                a_copy_appended_by_many_at_once_is_as_the_store_says,
                            }
                            mailboxes {
                                a_missing_mailbox_is_made,
                                a_mailbox_that_may_not_be_made_is_refused,
                                a_recipients_mailbox_other_than_inbox_is_never_made,
                                a_missing_mailbox_holds_no_copy,
                                many_make_one_mailbox_at_once,
                                odd_names_are_stored_safely_or_refused,
                                preparing_changes_nothing,
                                a_check_writes_no_message,
                            }
                            look {
                                the_look_finds_a_copy_whatever_way_it_took,
                                the_look_finds_what_a_reader_has_touched,
                                the_look_takes_no_other_message_for_the_copy,
                                the_look_finds_a_copy_without_a_message_id,
                                the_look_finds_odd_copies,
                    a_look_finds_a_copy_that_another_record_was_for,
                    a_look_back_finds_a_copy_of_any_date,
                                the_look_finds_one_among_many,
                                the_look_keeps_to_its_mailbox,
                                a_look_back_and_the_look_after_it_are_one,
                                looks_and_appends_do_not_disturb_each_other,
                            }
                            find {
                                all_copies_of_a_message_are_found,
                                a_copy_is_found_with_its_date_and_its_deletion,
                                a_copy_is_found_by_what_a_ledger_knows,
                                a_copy_is_found_by_the_hashes_on_record,
                                another_message_with_its_id_is_found_where_that_is_asked_for,
                    an_equal_message_with_another_date_is_not_as_ours,
                    what_is_sought_together_is_found_as_alone,
                            }
                            removal {
                                a_removal_takes_out_the_one_it_names,
                                a_removal_by_a_strange_receipt_takes_out_nothing,
                    a_removal_of_what_is_another_message_by_now_takes_out_nothing,
                                a_double_is_taken_out_while_its_keeper_stands,
                                ours_is_taken_out_while_another_with_its_id_stands,
                            }
                            slots {
                                a_copy_that_is_reserved_is_nobody_elses_where_copies_have_locks,
                                a_slot_stores_nothing_before_its_append,
                                one_slot_looks_and_then_appends,
                                a_slot_is_for_its_own_date,
                            }
                        }
        }
    };
}

macro_rules! stamp {
    ($rig:expr; $($subject:ident { $($fact:ident),* $(,)? })*) => {
        $($(
            #[test]
            fn $fact() {
                $subject::$fact(&$rig);
            }
        )*)*
    };
}

const MANY: usize = 16;

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
    let reservation = (need, recorded_at, deadline);
    try_reserve_back(store, destination, mail, (false, None), reservation, with)
}

/// The same for a copy that may be older.
fn try_reserve_back<T>(
    store: &dyn AnyStore,
    destination: &Destination,
    mail: &Message,
    (looks_back, looked): (bool, Option<&LookedBack>),
    (need, recorded_at, deadline): (Need, SystemTime, &Deadline),
    with: impl FnOnce(Option<&mut (dyn Slot + '_)>) -> T,
) -> Result<T, StoreError> {
    let key = &mail.identity().copy_key(&destination.account, &destination.mailbox);
    let bytes = if destination.shared { mail.shared_copy() } else { mail.own_copy() };
    let copy = Copy {
        key,
        head: b"",
        bytes,
        identity: mail.identity(),
        recorded_at,
        looks_back,
        looked,
        newer_than: None,
        handed: None,
    };
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

/// Looks for a ledger that does not remember.
fn look_back(store: &dyn AnyStore, destination: &Destination, mail: &Message) -> Option<Receipt> {
    look_since(store, destination, mail, None)
}

/// And completes a look back.
fn look_since(
    store: &dyn AnyStore,
    destination: &Destination,
    mail: &Message,
    looked: Option<&LookedBack>,
) -> Option<Receipt> {
    let reservation = (Need::Look, recorded_at(), &ample());
    let found = try_reserve_back(store, destination, mail, (true, looked), reservation, |slot| {
        slot.expect("a slot").look(soon())
    });
    found.expect("reserve").expect("look")
}

/// All copies that stand in a mailbox, by what a ledger knows of them.
fn find(
    store: &dyn AnyStore,
    destination: &Destination,
    mail: &Message,
    on_record: Option<&Receipt>,
) -> Vec<FoundCopy> {
    find_as(store, destination, mail, on_record, (false, false))
}

/// And all messages with its first Message-ID.
fn find_by_id(
    store: &dyn AnyStore,
    destination: &Destination,
    mail: &Message,
    on_record: Option<&Receipt>,
) -> Vec<FoundCopy> {
    find_as(store, destination, mail, on_record, (false, true))
}

fn find_as(
    store: &dyn AnyStore,
    destination: &Destination,
    mail: &Message,
    on_record: Option<&Receipt>,
    how: (bool, bool),
) -> Vec<FoundCopy> {
    let size_bytes = mail.own_copy().len() as u64;
    find_identity(store, destination, (mail.identity(), size_bytes), on_record, how)
}

fn find_identity(
    store: &dyn AnyStore,
    destination: &Destination,
    (identity, size_bytes): (&Identity, u64),
    on_record: Option<&Receipt>,
    (needs_proof, by_id): (bool, bool),
) -> Vec<FoundCopy> {
    let key = identity.copy_key(&destination.account, &destination.mailbox);
    let sought =
        CopySearch { needs_proof, on_record, by_id, ..sought((identity, size_bytes), &key) };
    store.find(destination, &sought, soon()).expect("find")
}

/// What a ledger knows of a copy.
fn sought<'a>((identity, size_bytes): (&'a Identity, u64), key: &'a Hash) -> CopySearch<'a> {
    CopySearch {
        key,
        identity,
        recorded_at: recorded_at(),
        looks_back: false,
        looked: None,
        handed: None,
        variant: None,
        size_bytes: size_bytes..=2 * size_bytes,
        has_several_ids: false,
        needs_proof: false,
        on_record: None,
        by_id: false,
        since: None,
        at_most: 100,
        unindexed: Unindexed::Nothing,
    }
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
        with(
            b"From the start\r\n\r\nFrom lisa@gmail.com Sat Nov 21 10:00:00 2026\r\n>From \
               quoted\r\n",
        ),
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
        [
            &b"Subject: long\r\n "[..],
            &[b'h'; 100_000],
            b"\r\nMessage-ID: <long@x>\r\n\r\n\
                                                         body\r\n",
        ]
        .concat(),
        [&b"Message-ID: <"[..], &[b'i'; 4000], b"@x>\r\nSubject: id\r\n\r\n"].concat(),
        b"Message-ID: <q\"uo\\te)('*%{3}@x>\r\nSubject: id\r\n\r\n".to_vec(),
        b"Message-ID: <f\r\n old\x80\xff\0@x>\r\nSubject: id\r\n\r\n".to_vec(),
        b"Message-ID:\r\nSubject: empty id\r\n\r\n".to_vec(),
        b"Message-ID: <first@x>\r\nSubject: two ids\r\nMessage-ID: <second@x>\r\n\r\n".to_vec(),
        (0..5000).flat_map(|n| format!("line {n} of many\r\n").into_bytes()).collect(),
    ]
}

store_contract!(on_imap, ImapRig::new());
store_contract!(on_maildir, MaildirRig::new());
store_contract!(on_memory_like_imap, MemoryRig(MemoryStore::default()));
store_contract!(on_memory_like_maildir, MemoryRig(MemoryStore::idempotent()));

/// The name of a file in a Maildir.
fn name_of(receipt: &Receipt) -> String {
    receipt.as_name().expect("a name").to_owned()
}
