//! A mail server's LMTP that refuses, is silent, closes or lies, and what that means for a copy
//! that is handed over to it (`store.lmtp`).

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use onedrop::deadline::Deadline;
use onedrop::directory::Destination;
use onedrop::hook::{Call, Hook};
use onedrop::message::{DedupBy, Message};
use onedrop::net::lmtp::LmtpPlace;
use onedrop::net::pool::Limits;
use onedrop::store::lmtp::{HandOffSettings, LmtpStore};
use onedrop::store::memory::MemoryStore;
use onedrop::store::{Access, Copy, HandOff, Need, Receipt, Store, StoreError};

use crate::imap_script::{copy_of, deadline_of_a_test, letter, overslept};
use crate::support::TempRoot;
use crate::support::dovecot::Dovecot;
use crate::support::lmtp_peer::{Act, LmtpPeer};

const LETTER: &[u8] = b"From: ann@x\nSubject: dots\n\n.one\n..two\n.\nbye\n";
/// The same as handed over.
const HANDED: &str = "X-Onedrop-Copy: 07070707070707070707070707070707\r\nX-Onedrop-Try: 3\r\n\
     From: ann@x\r\nSubject: dots\r\n\r\n.one\r\n..two\r\n.\r\nbye\r\n";

const TRY: HandOff<'static> = HandOff {
    value: [7; 16],
    epoch: 3,
    again: false,
    sender: "",
    recipient: "Doug+lists@mail.axial.net",
    filter_fields: "",
};

struct Rig {
    peer: LmtpPeer,
    store: LmtpStore,
    _root: TempRoot,
}

impl Rig {
    fn new() -> Rig {
        Rig::beside(MemoryStore::default())
    }

    /// Mailboxes are in `inner`.
    fn beside(inner: MemoryStore) -> Rig {
        let root = TempRoot::new();
        let peer = LmtpPeer::start(&root.join("lmtp"));
        inner.make_mailbox("doug", "lists");
        let store = store_at(&root.join("lmtp"), inner);
        Rig { peer, store, _root: root }
    }

    /// Hands over a message from `sender` to doug.
    fn hand_over(&self, message: &Message, sender: &str) -> Result<Receipt, StoreError> {
        // Ample, but for an answer that does not come.
        let deadline = Deadline::new(Duration::from_secs(30), Duration::from_millis(500));
        self.hand_over_to("doug", message, sender, &deadline)
    }

    fn hand_over_to(
        &self,
        account: &str,
        message: &Message,
        sender: &str,
        deadline: &Deadline,
    ) -> Result<Receipt, StoreError> {
        hand_over(&self.store, account, message, sender, deadline)
    }
}

fn store_at(socket: &Path, inner: MemoryStore) -> LmtpStore {
    let settings = HandOffSettings {
        place: LmtpPlace::Unix(socket.to_owned()),
        starttls: true,
        ca_file: None,
        host: "mx.example".to_owned(),
    };
    let idle = Duration::from_secs(60);
    let limits = Limits { used: 9, per_key: 9, kept: 9, idle };
    LmtpStore::new(settings, Box::new(inner), limits)
}

fn hand_over(
    store: &LmtpStore,
    account: &str,
    message: &Message,
    sender: &str,
    deadline: &Deadline,
) -> Result<Receipt, StoreError> {
    let copy = Copy { handed: Some(HandOff { sender, ..TRY }), ..copy_of(message) };
    let inbox = Destination::inbox(account);
    assert!(store.hands_over(&inbox));
    let slot = store.reserve(&inbox, copy, Need::Write, deadline);
    slot.expect("a slot").expect("a slot").append()
}

/// It may have taken a part of the message for all of it, and stored that.
#[test]
fn a_yes_before_the_end_of_the_message_is_a_doubt() {
    for (early, is_doubt) in [("250 2.0.0 <doug> cut Saved", true), ("452 4.2.2 no room", false)] {
        let root = TempRoot::new();
        let listener = UnixListener::bind(root.join("lmtp")).expect("a socket");
        let server = thread::spawn(move || {
            let (mut client, _) = listener.accept().expect("a client");
            let mut lines = BufReader::new(client.try_clone().expect("a socket"));
            let mut say = |text| client.write_all(format!("{text}\r\n").as_bytes()).expect("said");
            say("220 x LMTP");
            let mut line = String::new();
            while line != "DATA\r\n" {
                line.clear();
                lines.read_line(&mut line).expect("a command");
                say(if line == "DATA\r\n" { "354 go" } else { "250 2.0.0 ok" });
            }
            lines.read_exact(&mut [0; 1000]).expect("a part");
            say(early);
            let _ = std::io::copy(&mut lines, &mut std::io::sink());
        });
        let large = ["From: ann@x\n\n", &"a line of it\n".repeat(400_000)].concat();
        let deadline = Deadline::new(Duration::from_secs(60), Duration::from_secs(30));
        let store = store_at(&root.join("lmtp"), MemoryStore::default());
        let message = letter(large.as_bytes());
        let error = hand_over(&store, "doug", &message, "ann@x", &deadline).expect_err(early);
        assert_eq!(matches!(error, StoreError::InDoubt(_)), is_doubt, "{error}");
        assert!(error.to_string().contains("before it had the message"), "{error}");
        drop(store);
        server.join().expect("no panic");
    }
}

/// What a server may read as several lines goes by IMAP, whose literals have a length.
#[test]
fn what_a_server_may_take_for_the_end_of_a_message_is_not_said_to_it() {
    let long = ["x".repeat(8189), ".".to_owned()].concat();
    for body in [&*long, "one\r.\nMAIL FROM:<>", "one\rtwo"] {
        let rig = Rig::new();
        let receipt = rig.hand_over(&letter(format!("\n{body}\n").as_bytes()), "ann@x");
        let receipt = receipt.expect("stored");
        assert!(receipt.shown().starts_with("INBOX/"), "{receipt:?}");
        assert!(rig.peer.taken().is_empty(), "{:?}", rig.peer.taken());
    }
    // A Dovecot reads a line of any length as one.
    let short = ["x".repeat(7000), ".".to_owned()].concat();
    for (body, greeting) in [(&short, "220 peer"), (&long, "220 Dovecot ready.")] {
        let rig = Rig::new();
        rig.peer.plan("220", Act::say(greeting));
        let receipt = rig.hand_over(&letter(format!("\n{body}\r\n").as_bytes()), "ann@x");
        assert_eq!(receipt.expect("handed over"), Receipt::handed("peer-id"));
    }
}

/// There is no guard in that way, which would drop the second one.
#[test]
fn what_was_written_by_imap_and_is_found_is_not_written_again() {
    let rig = Rig::new();
    let message = letter(b"Message-ID: <found@x>\n\none\rtwo\n");
    rig.hand_over(&message, "ann@x").expect("stored");
    let deadline = Deadline::new(Duration::from_secs(30), Duration::from_secs(1));
    let copy = Copy { handed: Some(HandOff { epoch: 4, ..TRY }), ..copy_of(&message) };
    let inbox = Destination::inbox("doug");
    let slot = rig.store.reserve(&inbox, copy, Need::Look, &deadline);
    let mut slot = slot.expect("a slot").expect("a slot");
    let found = slot.look(Instant::now() + Duration::from_secs(30)).expect("a look");
    assert!(found.is_some());
    assert_eq!(Some(slot.append().expect("no second one")), found);
    assert!(rig.peer.taken().is_empty());
}

#[test]
fn it_hands_over_the_message_with_its_two_fields() {
    let rig = Rig::new();
    for _ in 0..2 {
        let receipt = rig.hand_over(&letter(LETTER), "ann@elsewhere.example").expect("handed over");
        assert_eq!(receipt, Receipt::handed("peer-id"));
    }
    let envelope = [
        "MAIL FROM:<ann@elsewhere.example>",
        "RCPT TO:<doug> ORCPT=rfc822;Doug+2Blists@mail.axial.net",
    ];
    for taken in rig.peer.taken() {
        assert_eq!(taken.envelope, envelope);
        assert_eq!(String::from_utf8(taken.bytes).expect("text"), HANDED);
    }
    assert_eq!((rig.peer.taken().len(), rig.peer.connections()), (2, 1), "one connection serves");
}

#[test]
fn what_no_lmtp_can_say_is_said_otherwise() {
    let rig = Rig::new();
    rig.hand_over(&letter(b"Subject: \0\n\nno line end"), "MAILER-DAEMON").expect("handed over");
    rig.hand_over(&letter("\n\nü".as_bytes()), "no address").expect("handed over");
    let taken = rig.peer.taken();
    assert!(taken[0].bytes.ends_with(b"Subject: \x80\r\n\r\nno line end\r\n"), "{taken:?}");
    assert_eq!(taken[0].envelope[0], "MAIL FROM:<> BODY=8BITMIME");
    assert_eq!(taken[1].envelope[0], "MAIL FROM:<> BODY=8BITMIME");
}

/// What a server's answer means, at which command. A reply after the dot is certain only if it
/// names a reason for which nothing is stored.
#[test]
fn each_ending_is_what_it_means() {
    type Is = fn(&StoreError) -> bool;
    let not_stored: Is = |error| matches!(error, StoreError::NotStored(_));
    let over_quota: Is = |error| matches!(error, StoreError::OverQuota(_));
    let no_account: Is = |error| matches!(error, StoreError::NoAccount(_));
    let too_big: Is = |error| matches!(error, StoreError::TooBig(_));
    let contended: Is = |error| matches!(error, StoreError::Contended(_));
    let rejected: Is = |error| matches!(error, StoreError::Rejected(_));
    let in_doubt: Is = |error| matches!(error, StoreError::InDoubt(_));
    let busy = "451 4.3.0 <doug> Too many concurrent deliveries for user";
    let cases: [(&str, &str, Is); 26] = [
        ("220", "421 4.3.2 too busy", not_stored),
        ("LHLO", "500 5.5.1 who?", not_stored),
        ("MAIL", "451 4.3.0 not now", not_stored),
        ("MAIL", "552 5.3.4 too big", too_big),
        ("RCPT", "550 5.1.1 <doug> User doesn't exist: doug", no_account),
        ("RCPT", "552 5.2.2 <doug> Quota exceeded", over_quota),
        ("RCPT", "452 4.2.2 <doug> Quota exceeded", over_quota),
        ("RCPT", busy, contended),
        ("RCPT", "451 4.3.0 <doug> Temporary internal error", not_stored),
        ("RCPT", "550 5.7.1 <doug> Access denied", not_stored),
        ("RCPT", "421 4.3.2 shutting down", not_stored),
        ("DATA", "451 4.3.0 not now", not_stored),
        ("DATA", "550 5.1.1 nobody", no_account),
        (".", "552 5.2.2 <doug> Quota exceeded", over_quota),
        (".", "552 5.3.4 too big after all", too_big),
        (".", "550 5.7.1 <doug> I do not want it", rejected),
        (".", "550 5.1.1 <doug> is gone", no_account),
        (".", "554 5.6.0 cannot be stored", not_stored),
        (".", "452 4.2.2 <doug> Quota exceeded", in_doubt),
        (".", "451 4.2.0 <doug> Temporary internal error", in_doubt),
        (".", "451 4.3.0 Too many concurrent deliveries", in_doubt),
        (".", "550 no status", in_doubt),
        (".", "554 5.5.0 what?", in_doubt),
        (".", "250-half a reply", in_doubt),
        (".", "hello", in_doubt),
        (".", "421 4.3.2 shutting down", in_doubt),
    ];
    for (command, answer, is_it) in cases {
        let rig = Rig::new();
        rig.peer.plan(command, Act::say(answer));
        let error = rig.hand_over(&letter(LETTER), "ann@x.example").expect_err(answer);
        assert!(is_it(&error), "{command}: {answer}: {error:?}");
        assert_eq!(rig.peer.taken().len(), usize::from(command == "."), "{command}: {answer}");
        if command != "." {
            assert!(error.certainly_not_stored());
            // The next delivery is not disturbed, be it in the same connection or in a new one.
            rig.hand_over(&letter(LETTER), "ann@x.example").expect(answer);
            assert_eq!(rig.peer.taken()[0].bytes, HANDED.as_bytes());
        }
    }
}

#[test]
fn a_connection_that_ends_before_the_dot_has_stored_nothing_and_after_it_is_a_doubt() {
    for (command, is_doubt) in [("220", false), ("LHLO", false), ("RCPT", false), (".", true)] {
        let rig = Rig::new();
        rig.peer.plan(command, Act::Cut);
        let error = rig.hand_over(&letter(LETTER), "ann@x.example").expect_err(command);
        assert_eq!(error.certainly_not_stored(), !is_doubt, "{command}: {error}");
    }
    let rig = Rig::new();
    rig.peer.plan(".", Act::Hang);
    let error = rig.hand_over(&letter(LETTER), "ann@x.example").expect_err("no answer");
    assert!(matches!(error, StoreError::InDoubt(_)), "{error}");
}

#[test]
fn a_kept_connection_that_has_ended_is_replaced() {
    for (command, act) in [
        ("MAIL", Act::Cut),
        ("RCPT", Act::Cut),
        ("MAIL", Act::SayAndCut("421 4.4.2 idle for too long\r\n".to_owned())),
    ] {
        let rig = Rig::new();
        rig.hand_over(&letter(LETTER), "ann@x.example").expect("handed over");
        rig.peer.plan(command, act);
        rig.hand_over(&letter(LETTER), "ann@x.example").expect("handed over in a new connection");
        assert_eq!((rig.peer.taken().len(), rig.peer.connections()), (2, 2));
    }
}

#[test]
fn a_server_that_takes_no_orcpt_is_not_given_any() {
    let rig = Rig::new();
    rig.peer.plan("RCPT", Act::say("555 5.5.4 Unsupported parameters"));
    for _ in 0..2 {
        rig.hand_over(&letter(LETTER), "ann@x.example").expect("handed over");
    }
    let taken = rig.peer.taken();
    assert!(taken.iter().all(|taken| taken.envelope[1] == "RCPT TO:<doug>"), "{taken:?}");
    assert_eq!((taken.len(), rig.peer.connections()), (2, 1));
}

/// It was about the recipient then: others' mail keeps it, as filters may ask for it.
#[test]
fn a_recipient_that_is_refused_without_orcpt_as_well_takes_it_from_no_other() {
    let rig = Rig::new();
    for _ in 0..2 {
        rig.peer.plan("RCPT", Act::say("501 5.1.3 Invalid address"));
    }
    let error = rig.hand_over(&letter(LETTER), "ann@x.example").expect_err("refused");
    assert!(matches!(error, StoreError::NotStored(_)), "{error}");
    rig.hand_over(&letter(LETTER), "ann@x.example").expect("handed over");
    let taken = rig.peer.taken();
    assert!(taken[0].envelope[1].starts_with("RCPT TO:<doug> ORCPT="), "{taken:?}");
    assert_eq!((taken.len(), rig.peer.connections()), (1, 1));
}

/// The rest of its answers would be taken for those to the next message.
#[test]
fn a_server_that_says_yes_to_something_else_is_left() {
    for (command, answer) in
        [("MAIL", "354 go"), ("RCPT", "220 ready"), ("DATA", "250 2.0.0 <doug> early Saved")]
    {
        let rig = Rig::new();
        rig.peer.plan(command, Act::say(answer));
        let error = rig.hand_over(&letter(LETTER), "ann@x.example").expect_err(answer);
        assert!(error.certainly_not_stored(), "{answer}: {error}");
        rig.hand_over(&letter(LETTER), "ann@x.example").expect("handed over");
        let taken = rig.peer.taken();
        assert_eq!((taken.len(), rig.peer.connections()), (1, 2), "{command}: {answer}");
        assert_eq!(taken[0].bytes, HANDED.as_bytes());
    }
}

/// To one account one at a time, and to others meanwhile.
#[test]
fn hand_overs_to_one_account_wait_for_each_other() {
    const OTHERS: usize = 20;
    let rig = Rig::new();
    let met = Arc::new(Barrier::new(2));
    let deadline = || Deadline::new(Duration::from_secs(60), Duration::from_secs(30));
    let to = |account| rig.hand_over_to(account, &letter(LETTER), "ann@x.example", &deadline());
    rig.peer.plan(".", Act::Meet(Arc::clone(&met)));
    thread::scope(|scope| {
        let first = scope.spawn(|| to("doug"));
        while rig.peer.taken().is_empty() && !first.is_finished() {
            thread::yield_now();
        }
        let second = scope.spawn(|| to("doug"));
        for _ in 0..OTHERS {
            to("lisa").expect("another account's");
        }
        met.wait();
        for thread in [first, second] {
            thread.join().expect("a thread").expect("handed over");
        }
    });
    let taken = rig.peer.taken();
    let accounts = taken.iter().map(|taken| &taken.envelope[1]["RCPT TO:<".len()..][..4]);
    let lisas = std::iter::repeat_n("lisa", OTHERS);
    let expected = ["doug"].into_iter().chain(lisas).chain(["doug"]);
    assert_eq!(accounts.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

/// A server for mailboxes that does not answer.
struct Hangs(Barrier);

impl Hook<StoreError> for Hangs {
    fn before(&self, call: &Call<'_>) -> Result<(), StoreError> {
        if call.name == "reserve" {
            self.0.wait();
            self.0.wait();
        }
        Ok(())
    }
}

#[test]
fn a_server_for_mailboxes_that_hangs_keeps_no_fresh_mail_waiting() {
    let hangs = Arc::new(Hangs(Barrier::new(2)));
    let rig = Rig::beside(MemoryStore::default().with_hook(hangs.clone()));
    let message = letter(LETTER);
    thread::scope(|scope| {
        let in_doubt = scope.spawn(|| {
            let inbox = Destination::inbox("doug");
            let handed = HandOff { value: [8; 16], epoch: 4, ..TRY };
            let copy = Copy { handed: Some(handed), ..copy_of(&message) };
            let deadline = deadline_of_a_test();
            let slot = rig.store.reserve(&inbox, copy, Need::Look, &deadline);
            slot.expect("a slot").expect("a slot").look(deadline.look_until())
        });
        hangs.0.wait();
        let fresh = rig.hand_over(&message, "ann@x.example");
        hangs.0.wait();
        fresh.expect("handed over");
        assert_eq!(in_doubt.join().expect("a thread").expect("a look"), None);
    });
}

/// No delivery holds the ledger's turn meanwhile, which is taken after the slot.
#[test]
fn one_in_doubt_has_its_accounts_turn_with_its_slot() {
    let rig = Rig::new();
    let met = Arc::new(Barrier::new(2));
    let message = letter(LETTER);
    let inbox = Destination::inbox("doug");
    let handed = HandOff {
        value: [7; 16],
        epoch: 4,
        again: false,
        sender: "",
        recipient: "doug@x.example",
        filter_fields: "",
    };
    let copy = Copy { handed: Some(handed), ..copy_of(&message) };
    let look = |secs| {
        let deadline = Deadline::new(Duration::from_secs(secs), Duration::from_millis(1));
        let slot = rig.store.reserve(&inbox, copy, Need::Look, &deadline);
        slot.map(|slot| slot.expect("a slot").look(deadline.look_until()).expect("a look"))
    };
    rig.peer.plan(".", Act::Meet(Arc::clone(&met)));
    let deadline = Deadline::new(Duration::from_secs(60), Duration::from_secs(30));
    let first = || rig.hand_over_to("doug", &message, "ann@x.example", &deadline);
    thread::scope(|scope| {
        let first = scope.spawn(first);
        while rig.peer.taken().is_empty() && !first.is_finished() {
            thread::yield_now();
        }
        let late = look(1).expect_err("another delivery to the account is under way");
        assert!(late.to_string().contains("other deliveries to account=doug"), "{late}");
        met.wait();
        first.join().expect("a thread").expect("handed over");
    });
    // A slot keeps the turn until it is used or given up.
    for _ in 0..2 {
        assert_eq!(look(30).expect("a slot"), None);
    }
    rig.hand_over(&message, "ann@x.example").expect("handed over");
}

#[test]
fn what_the_server_offers_is_used() {
    let rig = Rig::new();
    let offers = "250-peer\r\n250-PIPELINING\r\n250-SIZE 1000\r\n250-SMTPUTF8\r\n250-8BITMIME\r\n\
                  250 XCLIENT ADDR SESSION TIMEOUT\r\n";
    rig.peer.plan("LHLO", Act::Say(offers.to_owned()));
    rig.hand_over(&letter(LETTER), "änn@x.example").expect("handed over");
    let error = rig.hand_over(&letter(&[b'x'; 2000]), "ann@x.example").expect_err("too big");
    assert!(matches!(error, StoreError::TooBig(_)), "{error}");
    let said = rig.peer.said();
    let timeout =
        said[1].strip_prefix("XCLIENT SESSION=07070707070707070707070707070707.3 TIMEOUT=");
    let timeout: u64 = timeout.and_then(|secs| secs.parse().ok()).expect(&said[1]);
    assert!((1..=30).contains(&timeout), "{said:?}");
    assert_eq!(said[2], "LHLO mx.example");
    let size = HANDED.replace("\r\n", "\n").len() + 2;
    assert_eq!(said[3], format!("MAIL FROM:<änn@x.example> SIZE={size} SMTPUTF8"));
}

#[test]
fn a_server_that_distrusts_xclient_is_served_without() {
    let rig = Rig::new();
    rig.peer.plan("LHLO", Act::Say("250-peer\r\n250 XCLIENT SESSION TIMEOUT\r\n".to_owned()));
    rig.peer.plan("XCLIENT", Act::say("550 5.7.14 You are not from trusted IP"));
    for _ in 0..2 {
        rig.hand_over(&letter(LETTER), "ann@x.example").expect("handed over");
    }
    let asked = rig.peer.said().iter().filter(|line| line.starts_with("XCLIENT")).count();
    assert_eq!((rig.peer.taken().len(), asked), (2, 1));
}

#[test]
fn without_time_for_the_answer_nothing_is_handed_over() {
    let rig = Rig::new();
    let message = letter(LETTER);
    let handed = HandOff {
        value: [7; 16],
        epoch: 1,
        again: false,
        sender: "",
        recipient: "",
        filter_fields: "",
    };
    let copy = Copy { handed: Some(handed), ..copy_of(&message) };
    let (doug, late) =
        (Destination::inbox("doug"), Deadline::new(Duration::from_secs(1), Duration::from_secs(2)));
    let slot = rig.store.reserve(&doug, copy, Need::Write, &late).expect("a slot");
    let error = slot.expect("a slot").append().expect_err("too late");
    assert!(error.certainly_not_stored(), "{error}");
    assert_eq!(rig.peer.taken(), []);
}

/// The last look at the clock: the machine slept, which no time-out of a socket sees.
#[test]
fn a_process_that_has_slept_sends_no_final_dot() {
    let rig = Rig::new();
    let handed = rig.hand_over_to("doug", &letter(LETTER), "ann@x.example", &overslept());
    let error = handed.expect_err("too late");
    assert!(error.certainly_not_stored(), "{error}");
    rig.hand_over(&letter(LETTER), "ann@x.example").expect("handed over");
    assert_eq!((rig.peer.taken().len(), rig.peer.connections()), (1, 2));
}

/// What is on record of a host's own server says nothing of another host's.
#[test]
fn a_server_on_this_host_is_told_from_those_on_others() {
    let named = |place| {
        let host = "mx.example".to_owned();
        let settings = HandOffSettings { place, starttls: true, ca_file: None, host };
        let limits = Limits { used: 9, per_key: 9, kept: 9, idle: Duration::from_secs(60) };
        LmtpStore::new(settings, Box::new(MemoryStore::default()), limits).traits().hands_over_to
    };
    let by_tcp = |host: &str| named(LmtpPlace::Tcp { host: host.to_owned(), port: 24 });
    let unix = named(LmtpPlace::Unix("/run/lmtp".into()));
    assert_eq!(unix.as_deref(), Some("unix:/run/lmtp at mx.example"));
    assert_eq!(by_tcp("127.0.0.1").as_deref(), Some("lmtp://127.0.0.1:24 at mx.example"));
    assert_eq!(by_tcp("::1").as_deref(), Some("lmtp://[::1]:24 at mx.example"));
    assert_eq!(by_tcp("imap.example").as_deref(), Some("lmtp://imap.example:24"));
}

/// By TCP, with a real Dovecot. `check` asks and sends nothing.
#[test]
fn tls_is_used_where_it_is_offered_and_check_asks_for_an_account() {
    let dovecot = Dovecot::start();
    let store = |ca_file| {
        let place = LmtpPlace::Tcp { host: "127.0.0.1".to_owned(), port: dovecot.lmtp_port() };
        let host = "mx.example".to_owned();
        let settings = HandOffSettings { place, starttls: true, ca_file, host };
        let limits = Limits { used: 9, per_key: 9, kept: 9, idle: Duration::from_secs(60) };
        LmtpStore::new(settings, Box::new(MemoryStore::default()), limits)
    };
    let until = || Instant::now() + Duration::from_secs(30);
    let trusting = store(Some(dovecot.ca_file()));
    let facts = trusting.check("doug", until()).expect("a check").join("\n");
    assert!(facts.contains("(TLS)") && facts.contains("lmtp: takes mail for doug"), "{facts}");
    assert_eq!(dovecot.count("doug", "INBOX"), 0);

    let (message, deadline) = (letter(LETTER), deadline_of_a_test());
    let handed = HandOff {
        value: [7; 16],
        epoch: 3,
        again: false,
        sender: "",
        recipient: "doug@x.example",
        filter_fields: "",
    };
    let copy = Copy { handed: Some(handed), ..copy_of(&message) };
    let doug = Destination::inbox("doug");
    let hand_over = |store: &LmtpStore| {
        let slot = store.reserve(&doug, copy, Need::Write, &deadline);
        slot.expect("a slot").expect("a slot").append()
    };
    let error = hand_over(&store(None)).expect_err("nobody vouches for its certificate");
    assert!(error.certainly_not_stored() && error.to_string().contains("TLS"), "{error}");
    assert_eq!(dovecot.count("doug", "INBOX"), 0);
    hand_over(&trusting).expect("handed over");
    let [stored] = &dovecot.messages("doug", "INBOX")[..] else { panic!("one copy") };
    assert!(stored.ends_with(HANDED.as_bytes()), "{}", stored.escape_ascii());
}

#[test]
fn sent_and_other_mailboxes_are_the_inner_stores() {
    let rig = Rig::new();
    let [sent, inbox] = [Destination::sent("doug", "Sent"), Destination::inbox("doug")];
    let lists = Destination { mailbox: "lists".to_owned(), ..inbox.clone() };
    assert!(!rig.store.hands_over(&sent) && !rig.store.hands_over(&lists));
    let message = Message::new(LETTER.to_vec(), DedupBy::Content);
    let deadline = Deadline::new(Duration::from_secs(30), Duration::from_secs(1));
    for destination in [sent, lists] {
        let slot = rig.store.reserve(&destination, copy_of(&message), Need::Write, &deadline);
        slot.expect("a slot").expect("a slot").append().expect("stored");
    }
    assert_eq!((rig.peer.taken().len(), rig.peer.connections()), (0, 0));
}
