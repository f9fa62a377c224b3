//! `onedrop lmtp` under load from a real Postfix, while it or its servers are restarted and killed:
//! no message is lost, none is there twice, and where the server ends in order Postfix does not
//! notice. A mailbox that hangs holds up its recipient's mail alone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::dovecot::Dovecot;
use crate::support::letters;
use crate::support::lmtp::{Launch, Lmtp};
use crate::support::postfix::{Delivery, Postfix, PostfixSpec};
use crate::support::postgres::Postgres;
use crate::support::site::{Site, settle_lost};
use crate::support::trial::LETTERS;
use crate::support::{TempRoot, is_full, onedrop_path, wait_until};

const LONG: Duration = Duration::from_secs(240);
/// Doubts are settled soon after a crash: a lease that has run out.
const SHORT: &str =
    "[lock]\nwait_secs = 3\nlease_secs = 15\n[limits]\ndeadline_secs = 12\nanswer_secs = 7\n";
const ACCOUNTS: usize = 50;
const SENDERS: usize = 4;
/// What Postfix says when a server is not where it was, or goes away amid a conversation.
const NOTICED: [&str; 5] =
    ["status=deferred", "suspended", "lost connection", "Connection refused", "timed out"];

struct MailHost {
    site: Site,
    lmtp: Lmtp,
    postfix: Postfix,
}

impl MailHost {
    fn start(sockets: fn(Launch) -> Launch) -> MailHost {
        // For less than an answer takes, and for long enough to see that a mailbox is shown as it
        // was, as the shipped file says with times that are not shortened: a killed Dovecot leaves
        // locks, and Dovecot believes them until their holders are reaped.
        let dovecot = Dovecot::start_that_waits_for_locks(2);
        let site = Site::of(Postgres::start(), dovecot, TempRoot::new());
        let store = "store.lock_timeout_secs = 2\n";
        let lmtp = sockets(site.launch(&format!("{store}{LETTERS}{SHORT}"))).start();
        let delivery = Delivery::Lmtp(format!("unix:{}", lmtp.socket().display()));
        let postfix = Postfix::start(&PostfixSpec {
            delivery,
            retry_secs: Some(1),
            ..PostfixSpec::new(onedrop_path())
        });
        MailHost { site, lmtp, postfix }
    }

    /// Sends `messages`; each time another `step` of them are delivered, `disturb` does its worst:
    /// a third as many, and as often, where not all is wanted. Returns when Postfix has got rid of
    /// all, and each is in its mailbox once.
    fn under_load(
        &mut self,
        messages: usize,
        step: usize,
        mut disturb: impl FnMut(&mut Site, &mut Lmtp),
    ) {
        let (messages, step) = if is_full() { (messages, step) } else { (messages / 3, step / 3) };
        let MailHost { site, lmtp, postfix } = self;
        let postfix = &*postfix;
        let next = AtomicUsize::new(0);
        let mut disturbed = 0;
        thread::scope(|scope| {
            for _ in 0..SENDERS {
                scope.spawn(|| {
                    while let Some(number) =
                        Some(next.fetch_add(1, Ordering::SeqCst)).filter(|n| *n < messages)
                    {
                        let to = format!("u{}@mail.axial.net", number % ACCOUNTS);
                        postfix.send("ann@elsewhere.example", &[&to], message(number).as_bytes());
                    }
                });
            }
            for at in (step..messages).step_by(step) {
                assert!(
                    wait_until(LONG, || postfix.sent() >= at),
                    "{} of {at}\n{}",
                    postfix.sent(),
                    lmtp.log()
                );
                disturb(site, lmtp);
                disturbed += 1;
            }
        });
        postfix.flush();
        assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());
        let log = postfix.log();
        let deferred: Vec<&str> =
            log.lines().filter(|line| line.contains(" status=deferred ")).collect();
        println!(
            "{messages} messages, disturbed {disturbed} times: {} attempts deferred",
            deferred.len()
        );
        for line in deferred.iter().take(3) {
            println!("  {line}");
        }
        settle_lost(&site.root.join("server/onedrop.toml"), |sql| site.postgres.psql(sql));
        each_stands_once(site, messages);
    }

    #[track_caller]
    fn postfix_has_not_noticed(&self) {
        let log = self.postfix.log();
        // The side where mail comes in knows lost connections of its own: the rig looks whether it
        // is up.
        let lines = log.lines().filter(|line| !line.contains("postfix/smtpd["));
        let noticed: Vec<&str> =
            lines.filter(|line| NOTICED.iter().any(|word| line.contains(word))).take(20).collect();
        assert!(noticed.is_empty(), "{noticed:#?}");
    }
}

fn message(number: usize) -> String {
    letters::one_of_many("load", number)
}

#[track_caller]
fn each_stands_once(site: &Site, messages: usize) {
    for account in 0..ACCOUNTS {
        let its_own = (account..messages).step_by(ACCOUNTS).map(message);
        letters::stand_in(&site.dovecot, &format!("u{account}"), "INBOX", its_own);
    }
    let ledger =
        site.postgres.psql("SELECT count(placed_at) || ' of ' || count(*) FROM onedrop_copy");
    assert_eq!(ledger, format!("{messages} of {messages}"));
}

/// The service manager holds the sockets, as it does with a socket unit: clients of the next server
/// wait in its queue.
#[test]
fn restarts_under_load_lose_nothing_and_postfix_does_not_notice() {
    let mut host = MailHost::start(Launch::with_sockets_of_the_rig);
    host.under_load(800, 80, |_, lmtp| {
        let ended = lmtp.stop();
        assert!(ended.status.success(), "{ended:?}\n{}", lmtp.log());
        assert!(ended.took < Duration::from_secs(10), "{ended:?}");
        lmtp.start_again();
    });
    host.postfix_has_not_noticed();
}

/// Without a service manager that holds them, clients are refused in between: Postfix comes again.
#[test]
fn restarts_with_sockets_of_its_own_lose_nothing() {
    let mut host = MailHost::start(|launch| launch);
    host.under_load(400, 80, |_, lmtp| {
        lmtp.stop();
        lmtp.start_again();
    });
}

#[test]
fn kills_under_load_lose_nothing_and_leave_nothing_twice() {
    let mut host = MailHost::start(Launch::with_sockets_of_the_rig);
    host.under_load(600, 100, |_, lmtp| {
        lmtp.kill();
        lmtp.start_again();
    });
}

#[test]
fn a_postgres_that_restarts_under_load_loses_nothing() {
    let mut host = MailHost::start(Launch::with_sockets_of_the_rig);
    let pid = host.lmtp.pid();
    host.under_load(600, 150, |site, _| {
        site.postgres.stop_immediate();
        site.postgres.restart();
    });
    assert_eq!((host.lmtp.has_ended(), host.lmtp.pid()), (false, pid), "{}", host.lmtp.log());
}

#[test]
fn a_dovecot_that_is_killed_under_load_loses_nothing() {
    let mut host = MailHost::start(Launch::with_sockets_of_the_rig);
    host.under_load(600, 150, |site, _| {
        site.dovecot.kill();
        site.dovecot.start_again();
    });
    assert!(!host.lmtp.has_ended(), "{}", host.lmtp.log());
}

/// SIGHUP under load: the configuration is read again, and connections go on.
#[test]
fn reloads_under_load_are_not_noticed() {
    let mut host = MailHost::start(|launch| launch);
    let pid = host.lmtp.pid();
    host.under_load(400, 50, |_, lmtp| lmtp.reload());
    host.postfix_has_not_noticed();
    assert_eq!((host.lmtp.has_ended(), host.lmtp.pid()), (false, pid), "{}", host.lmtp.log());
}

/// Somebody's mail program holds the first recipient's mailbox (Dovecot waits for its lock): the
/// other 49 copies are in their mailboxes at once, and each recipient has its reply.
#[test]
fn one_mailbox_that_hangs_defers_its_recipient_alone() {
    let site = Site::with(Dovecot::start_that_waits_for_locks(0));
    let limits =
        "[lock]\nwait_secs = 3\nlease_secs = 30\n[limits]\ndeadline_secs = 25\nanswer_secs = 10\n";
    let lmtp = site.server(&format!("{LETTERS}{limits}"));
    let mut client = lmtp.client();
    let first =
        client.deliver("ann@elsewhere.example", &["u0@mail.axial.net"], message(0).as_bytes());
    assert!(first.expect("an answer")[0].is_ok(), "the mailbox is made");
    let lock = site.dovecot.lock_mailbox("u0");

    let to: Vec<String> = (0..ACCOUNTS).map(|number| format!("u{number}@mail.axial.net")).collect();
    let to: Vec<&str> = to.iter().map(String::as_str).collect();
    let began = Instant::now();
    let accepted = client.begin("ann@elsewhere.example", &to).expect("recipients");
    client.send_message(message(1)).expect("the message");
    // The first one's reply comes last in time, and first in order.
    let placed =
        || (1..ACCOUNTS).filter(|number| site.dovecot.files(&format!("u{number}")) == 1).count();
    assert!(
        wait_until(Duration::from_secs(10), || placed() == ACCOUNTS - 1),
        "{} placed\n{}",
        placed(),
        lmtp.log()
    );
    let replies = client.finish(accepted).expect("replies");
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    assert_eq!(replies.len(), ACCOUNTS);
    assert!(replies[0].code == 451 && replies[0].text.starts_with("4."), "{:?}", replies[0]);
    for (recipient, reply) in to.iter().zip(&replies).skip(1) {
        assert!(reply.code == 250 && reply.text.starts_with("2."), "{recipient}: {reply:?}");
    }

    drop(lock);
    let mut last = Vec::new();
    let delivered = wait_until(Duration::from_secs(90), || {
        let mut client = lmtp.client();
        last =
            client.deliver("ann@elsewhere.example", &to, message(1).as_bytes()).expect("replies");
        last.iter().all(crate::support::lmtp_client::Reply::is_ok)
    });
    assert!(delivered, "{last:?}");
    letters::stand_in(&site.dovecot, "u0", "INBOX", [message(0), message(1)]);
    for number in 1..ACCOUNTS {
        letters::stand_in(&site.dovecot, &format!("u{number}"), "INBOX", [message(1)]);
    }
}
