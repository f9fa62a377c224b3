//! `deliver.via` with a real Postfix: pipe(8) starts a process for each recipient, which hands its
//! message to `onedrop lmtp` where that runs, and delivers by itself where it does not.

use std::thread;
use std::time::Duration;

use crate::support::letters::{self, ANN};
use crate::support::postfix::{Postfix, PostfixSpec};
use crate::support::site::Site;
use crate::support::trial::LETTERS;
use crate::support::{onedrop_path, wait_until};

const LONG: Duration = Duration::from_secs(240);
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
    let more = format!("{LETTERS}{short}");
    let mut site = Site::with_own_dovecot();
    let mut lmtp = site.server(&more);
    let via = format!("{more}[deliver]\nvia = \"{}\"\n", lmtp.socket().display());
    let postfix = Postfix::start(&PostfixSpec {
        config: Some(site.config("etc", &via)),
        retry_secs: Some(1),
        ..PostfixSpec::new(onedrop_path())
    });
    for round in 0..ROUNDS {
        let (first, before) = (round * (AMID + ALONE), postfix.sent());
        thread::scope(|scope| {
            let sender = &postfix;
            let in_order = round % 2 == 0;
            if !in_order {
                site.dovecot.pause();
            }
            scope
                .spawn(move || (first..first + AMID).for_each(|number| drop(send(sender, number))));
            if in_order {
                assert!(wait_until(LONG, || postfix.sent() >= before + 3), "{}", postfix.log());
                let by_it = "SELECT count(*) FROM onedrop_attempt_text WHERE pid = ";
                let by_it = site.postgres.psql(&format!("{by_it}{}", lmtp.pid()));
                assert_ne!(by_it, "0", "nothing was handed over");
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
            let queue_id = send(&postfix, number);
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
