//! The guard in `conf/dovecot/`, with no Onedrop in the way: what Dovecot does with a message whose
//! X-Onedrop-Copy it has seen before.

use std::sync::Barrier;
use std::thread;

use crate::support::dovecot::Dovecot;
use crate::support::filters::{Filters, Guard};
use crate::support::lmtp_client::LmtpClient;
use crate::support::set_mode;

const FORWARDS: &str = "require \"copy\";\nredirect :copy \"far@elsewhere.example\";\n";

/// A message of Ann's, with these fields before it.
pub fn with(fields: &str, name: &str) -> String {
    format!(
        "{fields}From: ann@elsewhere.example\nTo: scuba@mail.axial.net\nSubject: {name}\n\
         Message-ID: <{name}@x>\n\nthis is {name}\n"
    )
}

pub fn copy_is(value: u8) -> String {
    format!("X-Onedrop-Copy: {}\nX-Onedrop-Try: 1\n", format!("{value:02x}").repeat(16))
}

/// Hands the message over; what Dovecot says after the dot.
fn hand_over(dovecot: &Dovecot, account: &str, message: &str) -> String {
    let mut client = LmtpClient::welcome(&dovecot.lmtp_socket());
    let replies = client.deliver("ann@elsewhere.example", &[account], message).expect("a dialog");
    let [reply] = &replies[..] else { panic!("{replies:?}") };
    reply.to_string()
}

#[track_caller]
pub fn is_taken(reply: &str) {
    assert!(reply.starts_with("250 "), "{reply}");
}

#[test]
fn what_is_handed_over_twice_is_filtered_once() {
    let filters = Filters::new();
    let mut dovecot = Dovecot::start_with(&filters.conf(Guard::On));
    dovecot.make_home("scuba");
    filters.script("scuba", FORWARDS);
    let message = with(&copy_is(1), "first");
    is_taken(&hand_over(&dovecot, "scuba", &message));
    // Also where Dovecot has nothing in memory.
    dovecot.kill();
    dovecot.start_again();
    is_taken(&hand_over(&dovecot, "scuba", &message));
    // The value counts and nothing else.
    is_taken(&hand_over(&dovecot, "scuba", &with(&copy_is(1), "another")));
    assert_eq!(dovecot.count("scuba", "INBOX"), 1);
    assert_eq!(filters.sent_to("far@").len(), 1);
    // Another account has its own memory.
    dovecot.make_home("doug");
    is_taken(&hand_over(&dovecot, "doug", &message));
    assert_eq!(dovecot.count("doug", "INBOX"), 1);
    // The first field of the name counts: what a sender wrote below it does not.
    is_taken(&hand_over(&dovecot, "scuba", &with(&(copy_is(2) + &copy_is(1)), "second")));
    is_taken(&hand_over(&dovecot, "scuba", &with(&(copy_is(3) + &copy_is(2)), "third")));
    assert_eq!(dovecot.count("scuba", "INBOX"), 3);
    // Mail of others has no such field, and is never dropped.
    for name in ["plain", "as-plain"] {
        is_taken(&hand_over(&dovecot, "scuba", &with("", name)));
    }
    assert_eq!(dovecot.count("scuba", "INBOX"), 5);
    assert_eq!(filters.sent_to("far@").len(), 5);
}

/// One of them is still being carried out when the others come.
#[test]
fn what_is_handed_over_in_parallel_is_filtered_once() {
    const TOGETHER: usize = 4;
    let filters = Filters::new();
    let dovecot = Dovecot::start_with(&filters.conf(Guard::On));
    dovecot.make_home("scuba");
    filters.script("scuba", FORWARDS);
    for round in 0..3 {
        let (message, barrier) =
            (with(&copy_is(round), &format!("round-{round}")), Barrier::new(TOGETHER));
        let taken = thread::scope(|scope| {
            let all: Vec<_> = (0..TOGETHER)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        hand_over(&dovecot, "scuba", &message)
                    })
                })
                .collect();
            let all = all.into_iter().map(|one| one.join().expect("a dialog"));
            all.filter(|reply| reply.starts_with("250 ")).count()
        });
        // The server may have deferred the others: one delivery for an account at a time.
        assert!(taken >= 1, "round {round}");
        is_taken(&hand_over(&dovecot, "scuba", &message));
        let rounds = usize::from(round) + 1;
        assert_eq!(dovecot.count("scuba", "INBOX"), rounds);
        assert_eq!(filters.sent_to("far@").len(), rounds);
    }
}

/// A delivery that is carried out late does so before the next one, or not at all.
#[test]
fn a_delivery_that_is_not_done_yet_keeps_the_next_one_out() {
    let filters = Filters::new();
    let dovecot = Dovecot::start_with(&filters.conf(Guard::On));
    dovecot.make_home("scuba");
    filters.script("scuba", FORWARDS);
    filters.hold_senders();
    let message = with(&copy_is(7), "late");
    thread::scope(|scope| {
        let late = scope.spawn(|| hand_over(&dovecot, "scuba", &message));
        filters.wait_held();
        let mut client = LmtpClient::welcome(&dovecot.lmtp_socket());
        let refused =
            client.deliver("ann@elsewhere.example", &["scuba"], &message).expect("a dialog");
        assert_eq!(refused[0].code, 451, "{refused:?}");
        filters.let_go();
        is_taken(&late.join().expect("a dialog"));
    });
    is_taken(&hand_over(&dovecot, "scuba", &message));
    assert_eq!(dovecot.count("scuba", "INBOX"), 1);
    assert_eq!(filters.sent_to("far@").len(), 1);
}

/// The window that remains: Dovecot dies after it has sent and before it has noted the value.
#[test]
fn a_dovecot_that_dies_while_it_sends_sends_again() {
    let filters = Filters::new();
    let mut dovecot = Dovecot::start_with(&filters.conf(Guard::On));
    dovecot.make_home("scuba");
    filters.script("scuba", FORWARDS);
    filters.hold_senders();
    let message = with(&copy_is(8), "window");
    thread::scope(|scope| {
        let broken = scope.spawn(|| {
            let mut client = LmtpClient::welcome(&dovecot.lmtp_socket());
            client.deliver("ann@elsewhere.example", &["scuba"], &message)
        });
        let pid = filters.wait_held();
        let lmtp = nix::unistd::Pid::from_raw(pid);
        nix::sys::signal::kill(lmtp, nix::sys::signal::Signal::SIGKILL).expect("a process");
        filters.let_go();
        assert!(broken.join().expect("a thread").is_err(), "an answer of the dead");
    });
    dovecot.start_again();
    is_taken(&hand_over(&dovecot, "scuba", &message));
    is_taken(&hand_over(&dovecot, "scuba", &message));
    assert_eq!(filters.sent_to("far@").len(), 2);
}

/// Accounts without a home folder: Dovecot has nowhere to remember anything.
#[test]
fn without_home_folders_the_guard_remembers_nothing() {
    const HOMELESS: &str = "passdb {\n  driver = static\n  args = nopassword=y\n}\n\
         userdb {\n  driver = static\n  args = uid=@USER@ gid=nogroup allow_all_users=yes\n}\n";
    let filters = Filters::new();
    let conf = filters.conf(Guard::On);
    let dovecot = Dovecot::start_with_users(&format!("{HOMELESS}{conf}"));
    for expected in [1, 2] {
        is_taken(&hand_over(&dovecot, "scuba", &with(&copy_is(1), "homeless")));
        assert_eq!(dovecot.count("scuba", "INBOX"), expected);
    }
}

/// The filter's own failure: Dovecot keeps the message in INBOX, and notes nothing.
#[test]
fn what_a_filter_fails_at_is_not_remembered() {
    let filters = Filters::new();
    let dovecot = Dovecot::start_with(&filters.conf(Guard::On));
    dovecot.make_home("scuba");
    filters.script("scuba", "require \"fileinto\";\nfileinto \"Nowhere\";\n");
    for expected in [1, 2] {
        is_taken(&hand_over(&dovecot, "scuba", &with(&copy_is(1), "fails")));
        assert_eq!(dovecot.count("scuba", "INBOX"), expected);
    }
}

/// What was not stored is no second delivery, or the guard would lose it.
#[test]
fn what_could_not_be_stored_is_stored_by_the_next_try() {
    let filters = Filters::new();
    let dovecot = Dovecot::start_with(&filters.conf(Guard::On));
    dovecot.make_home("scuba");
    filters.script("scuba", "require \"fileinto\";\nfileinto \"Lists\";\n");
    dovecot.doveadm(&["mailbox", "create", "-u", "scuba", "Lists"]);
    let lists = dovecot.maildir("scuba").join(".Lists/tmp");
    set_mode(&lists, 0o000);
    let message = with(&copy_is(1), "closed");
    let refused = hand_over(&dovecot, "scuba", &message);
    assert!(refused.starts_with("451 "), "{refused}");
    assert_eq!(dovecot.count("scuba", "INBOX") + dovecot.count("scuba", "Lists"), 0);
    set_mode(&lists, 0o700);
    for _ in 0..2 {
        is_taken(&hand_over(&dovecot, "scuba", &message));
        let counts = ["INBOX", "Lists"].map(|mailbox| dovecot.count("scuba", mailbox));
        assert_eq!(counts, [0, 1]);
    }
}
