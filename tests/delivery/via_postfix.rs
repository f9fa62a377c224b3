//! `deliver.via` with a real Postfix: pipe(8) starts a process for each recipient, which hands its
//! message to `onedrop lmtp` where that runs, and delivers by itself where it does not.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::support::letters::{self, ANN, from_lisa};
use crate::support::lmtp::Lmtp;
use crate::support::postfix::{Postfix, PostfixSpec};
use crate::support::site::{STORY, Site, run};
use crate::support::trial::LETTERS;
use crate::support::{onedrop_path, wait_until};

const LONG: Duration = Duration::from_secs(240);
const LISA: &str = "lisa@gmail.com";

struct MailHost {
    site: Site,
    lmtp: Lmtp,
    postfix: Postfix,
}

impl MailHost {
    fn start(more: &str, retry_secs: Option<u32>) -> MailHost {
        let site = Site::with_own_dovecot();
        let lmtp = site.server(more);
        let via = format!("{more}\n[deliver]\nvia = \"{}\"\n", lmtp.socket().display());
        let config: Option<PathBuf> = Some(site.config("etc", &via));
        let postfix =
            Postfix::start(&PostfixSpec { config, retry_secs, ..PostfixSpec::new(onedrop_path()) });
        MailHost { site, lmtp, postfix }
    }

    /// How many attempts were made by the server that runs now, and how many by others.
    fn attempts(&self) -> (usize, usize) {
        let pids = self.site.postgres.psql("SELECT pid FROM onedrop_attempt");
        let ours = self.lmtp.pid().to_string();
        let (by_server, by_others): (Vec<&str>, Vec<&str>) =
            pids.lines().partition(|pid| *pid == ours);
        (by_server.len(), by_others.len())
    }
}

#[test]
fn lisas_mail_is_delivered_by_the_server_once_each() {
    let host = MailHost::start(STORY, None);
    let to = ["scuba@mail.axial.net", "doug+jazz@mail.axial.net"];
    let queue_id = host.postfix.send(LISA, &to, &from_lisa("story"));
    assert!(host.postfix.wait_until_queue_empty(LONG), "{}", host.postfix.log());
    host.site.story_is_told("story");
    let log = host.postfix.log();
    assert!(
        !log.contains("status=deferred") && log.contains("stored account=scuba mailbox=INBOX uid="),
        "{log}"
    );
    // How it ended is put on record after the replies.
    let config = host.site.config("trace", STORY);
    let mut trace = String::new();
    let told = wait_until(LONG, || {
        trace = String::from_utf8_lossy(&run(&config, &["trace", &queue_id]).stdout).into_owned();
        trace.contains("story@mail.gmail.com") && trace.matches("delivered 2.0.0").count() == 2
    });
    assert!(told, "{trace}");
    assert_eq!(host.attempts(), (2, 0), "all by the server");
}

#[test]
fn many_recipients_have_one_copy_each() {
    let host = MailHost::start(STORY, None);
    let to: Vec<String> = (1..=30).map(|n| format!("r{n}@mail.axial.net")).collect();
    let to: Vec<&str> = to.iter().map(String::as_str).collect();
    host.postfix.send(LISA, &to, &from_lisa("crowd"));
    assert!(host.postfix.wait_until_queue_empty(LONG), "{}", host.postfix.log());
    assert!(!host.postfix.log().contains("status=deferred"), "{}", host.postfix.log());
    assert_eq!(host.site.ledger_copies("crowd"), "31 of 31");
    for n in 1..=30 {
        let account = format!("r{n}");
        letters::stand_in(&host.site.dovecot, &account, "INBOX", [from_lisa("crowd")]);
    }
    letters::stand_in(&host.site.dovecot, "lisa", "Sent", [from_lisa("crowd")]);
}

/// The process decides, and says so as it does without the server.
#[test]
fn an_unknown_recipient_is_returned_with_5_1_1() {
    let known = "[directory]\naccounts = { \"scuba@mail.axial.net\" = \"scuba\" }\n";
    let host = MailHost::start(known, None);
    let queue_id = host.postfix.send(
        LISA,
        &["nobody@mail.axial.net", "scuba@mail.axial.net"],
        &from_lisa("unknown"),
    );
    assert!(host.postfix.wait_until_queue_empty(LONG), "{}", host.postfix.log());
    let attempts = host.postfix.attempts(&queue_id);
    let bounced =
        attempts.iter().find(|line| line.contains("to=<nobody@")).expect("an attempt for nobody");
    assert!(bounced.contains("dsn=5.1.1") && bounced.contains("status=bounced"), "{bounced}");
    assert!(bounced.contains("unknown recipient nobody@mail.axial.net"), "{bounced}");
    let sent =
        attempts.iter().find(|line| line.contains("to=<scuba@")).expect("an attempt for scuba");
    assert!(sent.contains("status=sent"), "{sent}");
    letters::stand_in(&host.site.dovecot, "scuba", "INBOX", [from_lisa("unknown")]);
}

const ACCOUNTS: usize = 10;

fn send(postfix: &Postfix, number: usize) -> String {
    let to = format!("u{}@mail.axial.net", number % ACCOUNTS);
    postfix.send(ANN, &[&to], letters::one_of_many("via", number).as_bytes())
}

/// Stopped in order or killed amid the mail, and started again: nothing is lost, nothing is there
/// twice, and while no server listens the processes deliver by themselves.
#[test]
fn a_server_that_comes_and_goes_loses_nothing() {
    // One of each kind: stopped in order, and killed.
    const ROUNDS: usize = 2;
    const AMID: usize = 16;
    const ALONE: usize = 5;
    let short =
        "[lock]\nwait_secs = 3\nlease_secs = 9\n[limits]\ndeadline_secs = 6\nanswer_secs = 2\n";
    let mut host = MailHost::start(&format!("{LETTERS}{short}"), Some(1));
    let MailHost { site, lmtp, postfix } = &mut host;
    for round in 0..ROUNDS {
        let (first, before) = (round * (AMID + ALONE), postfix.sent());
        thread::scope(|scope| {
            let sender = &*postfix;
            let in_order = round % 2 == 0;
            if !in_order {
                site.dovecot.pause();
            }
            scope
                .spawn(move || (first..first + AMID).for_each(|number| drop(send(sender, number))));
            if in_order {
                assert!(wait_until(LONG, || postfix.sent() >= before + 3), "{}", postfix.log());
                assert!(lmtp.stop().status.success(), "{}", lmtp.log());
            } else {
                // With messages in its hands.
                let used = "onedrop_pool_sessions{pool=\"store\",state=\"used\"}";
                assert!(
                    wait_until(LONG, || lmtp.metric(used).is_some_and(|used| used >= 2.0)),
                    "{}",
                    lmtp.metrics()
                );
                lmtp.kill();
                site.dovecot.resume();
            }
        });
        for number in first + AMID..first + AMID + ALONE {
            let queue_id = send(postfix, number);
            let is_sent =
                || postfix.attempts(&queue_id).iter().any(|line| line.contains("status=sent"));
            assert!(wait_until(LONG, is_sent), "{}", postfix.log());
        }
        lmtp.start_again();
    }
    postfix.flush();
    assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());
    assert!(!postfix.log().contains("status=bounced"), "{}", postfix.log());
    let messages = ROUNDS * (AMID + ALONE);
    for account in 0..ACCOUNTS {
        let its_own = (account..messages).step_by(ACCOUNTS);
        let expected = its_own.map(|number| letters::one_of_many("via", number));
        letters::stand_in(&site.dovecot, &format!("u{account}"), "INBOX", expected);
    }
    let ledger =
        site.postgres.psql("SELECT count(placed_at) || ' of ' || count(*) FROM onedrop_copy");
    assert_eq!(ledger, format!("{messages} of {messages}"));
}
