//! Mailboxes that hang, several at once and with several messages each: their recipients are put
//! off within the time that a delivery has, and no other recipient waits for them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::dovecot::Dovecot;
use crate::support::letters::{self, ANN, from_ann};
use crate::support::lmtp::Lmtp;
use crate::support::lmtp_client::Reply;
use crate::support::site::Site;
use crate::support::trial::LETTERS;
use crate::support::wait_until;

/// A delivery gives up a hanging append `answer_secs` after its last bytes, and one that waits for
/// its turn `answer_secs` before the deadline: long enough for all others to be served meanwhile on
/// a busy machine.
const LIMITS: &str =
    "[lock]\nwait_secs = 3\nlease_secs = 44\n[limits]\ndeadline_secs = 30\nanswer_secs = 12\n";
/// Deadline and answer.
const LONGEST: Duration = Duration::from_secs(30 + 12);
const SLACK: Duration = Duration::from_secs(6);
const ACCOUNTS: usize = 30;
const HANGING: usize = 2;
/// With the one to all: as many sessions as an account has by default (pool.per_account); for both
/// accounts together fewer than there are with the ledger (pool.ledger).
const MORE_TO_EACH: usize = 3;

fn address(account: &str) -> String {
    format!("{account}@mail.axial.net")
}

/// One message by a connection of its own, and how long its replies took.
fn deliver(lmtp: &Lmtp, to: &[String], name: &str) -> (Vec<Reply>, Duration) {
    let mut client = lmtp.client();
    let to: Vec<&str> = to.iter().map(String::as_str).collect();
    let accepted = client.begin(ANN, &to).expect("recipients");
    client.send_message(from_ann(name)).expect("a message");
    let began = Instant::now();
    (client.finish(accepted).expect("replies"), began.elapsed())
}

#[track_caller]
fn is_put_off(reply: &Reply, took: Duration) {
    assert!(reply.code == 451 && reply.text.starts_with("4."), "{reply:?}");
    assert!(took < LONGEST + SLACK, "{took:?}");
}

#[test]
fn mailboxes_that_hang_put_off_their_own_mail_alone() {
    let site = Site::with(Dovecot::start_that_waits_for_locks(0));
    let lmtp = site.server(&format!("{LETTERS}{LIMITS}"));
    let all: Vec<String> = (0..ACCOUNTS).map(|number| address(&format!("u{number}"))).collect();
    let (first, _) = deliver(&lmtp, &all[..HANGING], "first");
    assert!(first.iter().all(Reply::is_ok), "the mailboxes are made: {first:?}");
    let locks: Vec<_> =
        (0..HANGING).map(|number| site.dovecot.lock_mailbox(&format!("u{number}"))).collect();

    let put_off = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (lmtp, all, put_off) = (&lmtp, &all, &put_off);
        let to_all = scope.spawn(move || {
            let replies = deliver(lmtp, all, "to-all");
            put_off.fetch_add(1, Ordering::SeqCst);
            replies
        });
        for (number, more) in
            (0..HANGING).flat_map(|number| (0..MORE_TO_EACH).map(move |more| (number, more)))
        {
            scope.spawn(move || {
                let (replies, took) =
                    deliver(lmtp, &all[number..=number], &format!("more.{number}.{more}"));
                put_off.fetch_add(1, Ordering::SeqCst);
                is_put_off(&replies[0], took);
            });
        }
        // All others' copies of the same message.
        let placed = || {
            (HANGING..ACCOUNTS)
                .filter(|number| site.dovecot.files(&format!("u{number}")) == 1)
                .count()
        };
        let at_once = wait_until(LONGEST, || placed() == ACCOUNTS - HANGING);
        assert!(at_once, "{} placed\n{}", placed(), lmtp.log());
        // Others' messages to others.
        thread::scope(|scope| {
            for client in 0..4 {
                scope.spawn(move || {
                    for number in 0..5 {
                        let name = format!("other.{client}.{number}");
                        let (replies, _) = deliver(lmtp, &[address(&format!("v{client}"))], &name);
                        assert!(replies[0].is_ok(), "{replies:?}");
                    }
                });
            }
        });
        assert_eq!(put_off.load(Ordering::SeqCst), 0, "all that before anybody was put off");
        let (replies, took) = to_all.join().expect("replies");
        for (number, reply) in replies.iter().enumerate() {
            match number {
                0..HANGING => is_put_off(reply, took),
                _ => assert!(reply.is_ok(), "u{number}: {reply:?}"),
            }
        }
    });

    // Nothing of it is lost or there twice, once the mailboxes are well.
    drop(locks);
    let mut last = Vec::new();
    let mut names = vec![(0..ACCOUNTS, "to-all".to_owned())];
    for number in 0..HANGING {
        names.extend(
            (0..MORE_TO_EACH).map(|more| (number..number + 1, format!("more.{number}.{more}"))),
        );
    }
    for (to, name) in names {
        let again = || {
            last = deliver(&lmtp, &all[to.clone()], &name).0;
            last.iter().all(Reply::is_ok)
        };
        assert!(wait_until(Duration::from_secs(150), again), "{name}: {last:?}");
    }
    for number in 0..ACCOUNTS {
        let own = (0..MORE_TO_EACH).map(|more| format!("more.{number}.{more}"));
        let own = own.chain(["first".to_owned()]).filter(|_| number < HANGING);
        let expected = own.chain(["to-all".to_owned()]).map(|name| from_ann(&name));
        letters::stand_in(&site.dovecot, &format!("u{number}"), "INBOX", expected);
    }
    for client in 0..4 {
        let expected = (0..5).map(|number| from_ann(&format!("other.{client}.{number}")));
        letters::stand_in(&site.dovecot, &format!("v{client}"), "INBOX", expected);
    }
}

/// Copies in doubt need a turn, and with it a session with the ledger for as long as the mail
/// server takes: no more of them than there are sessions for the account.
#[test]
fn copies_in_doubt_for_a_mailbox_that_hangs_leave_the_ledger_to_others() {
    const MANY: usize = 6;
    let site = Site::with(Dovecot::start_that_waits_for_locks(0));
    let limits =
        "[lock]\nwait_secs = 1\nlease_secs = 44\n[limits]\ndeadline_secs = 30\nanswer_secs = 12\n";
    let lmtp = site.server(&format!("{LETTERS}{limits}[pool]\nledger = 4\nper_account = 2\n"));
    let doug = [address("doug")];
    assert!(deliver(&lmtp, &doug, "first").0[0].is_ok());
    let lock = site.dovecot.lock_mailbox("doug");
    thread::scope(|scope| {
        for number in 0..MANY {
            let (lmtp, doug) = (&lmtp, &doug);
            scope.spawn(move || {
                assert_eq!(deliver(lmtp, doug, &format!("doubt.{number}")).0[0].code, 451)
            });
        }
    });
    let doubt = "in_doubt = true, leased_until = clock_timestamp() - interval '1 second'";
    site.postgres.psql(&format!("UPDATE onedrop_copy SET {doubt} WHERE placed_at IS NULL"));
    let put_off = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (lmtp, doug, put_off) = (&lmtp, &doug, &put_off);
        for number in 0..MANY {
            scope.spawn(move || {
                let code = deliver(lmtp, doug, &format!("doubt.{number}")).0[0].code;
                put_off.fetch_add(1, Ordering::SeqCst);
                assert_eq!(code, 451);
            });
        }
        let turns = "SELECT count(*) FROM pg_stat_activity
                     WHERE datname = current_database() AND state = 'idle in transaction'";
        assert!(
            wait_until(Duration::from_secs(10), || site.postgres.psql(turns) == "2"),
            "{}",
            lmtp.log()
        );
        thread::scope(|scope| {
            for client in 0..4 {
                scope.spawn(move || {
                    let (replies, _) = deliver(
                        lmtp,
                        &[address(&format!("v{client}"))],
                        &format!("other.{client}"),
                    );
                    assert!(replies[0].is_ok(), "{replies:?}");
                });
            }
        });
        assert_eq!(put_off.load(Ordering::SeqCst), 0, "all that before anybody was put off");
        assert_eq!(site.postgres.psql(turns), "2", "the others wait without one");
    });
    drop(lock);
}
