//! A real Postfix hands mail to `onedrop lmtp`, by Unix socket and by TCP, which records it in a
//! real Postgres and places it in a real Dovecot: the stories of `delivery/end_to_end.rs`, where
//! pipe(8) starts a process for each recipient.

use std::time::Duration;

use crate::support::letters::{self, from_lisa};
use crate::support::lmtp::{Launch, Lmtp};
use crate::support::postfix::{Delivery, Postfix, PostfixSpec};
use crate::support::site::{STORY, Site, run};
use crate::support::{onedrop_path, wait_until};

const LONG: Duration = Duration::from_secs(240);
const LISA: &str = "lisa@gmail.com";
/// Fields to which Postfix adds none but Received.
const ANNS: &str = "From: ann@elsewhere.example\nTo: scuba@mail.axial.net\nDate: Sun, 22 Nov 2026 \
                    12:00:00 +0000\n";

#[derive(Clone, Copy)]
enum Way {
    Unix,
    Tcp,
}

/// Each case by both ways, as tests of their own.
macro_rules! by {
    ($way:ident in $module:ident: $($case:ident),+ $(,)?) => {
        mod $module {
            $(#[test] fn $case() { super::$case(super::Way::$way) })+
        }
    };
}

by!(Unix in by_unix_socket:
    lisa_writes_to_scuba_and_doug,
    one_message_to_10_and_to_50_recipients_defers_nothing,
    a_store_that_is_down_defers_and_then_gets_one_copy,
    a_ledger_that_is_down_defers_and_then_gets_one_copy,
    an_unknown_recipient_is_returned_with_5_1_1,
    odd_bytes_arrive_as_they_were_sent,
    a_message_just_below_the_limit_is_not_returned,
    mail_of_this_host_is_traced_by_its_queue_id,
    addresses_beyond_ascii_need_no_smtputf8,
);
// Postfix and Onedrop say the same through it.
by!(Tcp in by_tcp:
    lisa_writes_to_scuba_and_doug,
    one_message_to_10_and_to_50_recipients_defers_nothing,
);

fn postfix(lmtp: &Lmtp, way: Way, retry_secs: Option<u32>) -> Postfix {
    postfix_with(lmtp, way, retry_secs, "")
}

fn postfix_with(lmtp: &Lmtp, way: Way, retry_secs: Option<u32>, main_cf: &str) -> Postfix {
    let nexthop = match way {
        Way::Unix => format!("unix:{}", lmtp.socket().display()),
        Way::Tcp => format!("inet:127.0.0.1:{}", lmtp.port()),
    };
    let spec = PostfixSpec::new(onedrop_path());
    Postfix::start(&PostfixSpec {
        delivery: Delivery::Lmtp(nexthop),
        retry_secs,
        main_cf: main_cf.to_owned(),
        ..spec
    })
}

fn lisa_writes_to_scuba_and_doug(way: Way) {
    let site = Site::with_servers();
    let lmtp = site.server(STORY);
    let postfix = postfix(&lmtp, way, None);
    let queue_id = postfix.send(
        LISA,
        &["scuba@mail.axial.net", "doug+jazz@mail.axial.net"],
        &from_lisa("story"),
    );
    assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());

    site.story_is_told("story");
    for (account, mailbox) in [("scuba", "INBOX"), ("doug", "INBOX"), ("lisa", "Sent")] {
        letters::stand_in(&site.dovecot, account, mailbox, [from_lisa("story")]);
    }

    let attempts = postfix.attempts(&queue_id);
    assert_eq!(attempts.len(), 2, "{attempts:#?}");
    for account in ["scuba", "doug"] {
        let line = attempts
            .iter()
            .find(|line| line.contains(&format!("to=<{account}")))
            .expect("an attempt for each");
        assert!(line.contains("dsn=2.") && line.contains("status=sent"), "{line}");
        assert!(line.contains(&format!("stored account={account} mailbox=INBOX uid=")), "{line}");
    }
    for account in ["scuba", "doug"] {
        let fields = format!(" ACCOUNT={account} MAILBOX=INBOX UID=1 HOW=stored ");
        assert!(wait_until(LONG, || lmtp.log().contains(&fields)), "{fields:?} in {}", lmtp.log());
    }
    // How it ended is put on record after the replies.
    let config = site.config("trace", STORY);
    let mut trace = String::new();
    let told = wait_until(LONG, || {
        trace = String::from_utf8_lossy(&run(&config, &["trace", &queue_id]).stdout).into_owned();
        trace.contains("story@mail.gmail.com") && trace.matches("delivered 2.0.0").count() == 2
    });
    assert!(told, "{trace}");
}

fn one_message_to_10_and_to_50_recipients_defers_nothing(way: Way) {
    let site = Site::with_servers();
    let lmtp = site.server(STORY);
    let postfix = postfix(&lmtp, way, None);
    for count in [10, 50] {
        let to: Vec<String> = (1..=count).map(|n| format!("r{n}@mail.axial.net")).collect();
        let to: Vec<&str> = to.iter().map(String::as_str).collect();
        postfix.send(LISA, &to, &from_lisa(&format!("crowd-{count}")));
        assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());
        assert!(!postfix.log().contains("status=deferred"), "{}", postfix.log());
        assert_eq!(site.ledger_copies(&format!("crowd-{count}")), format!("{0} of {0}", count + 1));
    }
    for n in 1..=50 {
        let crowds: &[u8] = if n <= 10 { &[10, 50] } else { &[50] };
        let its_own = crowds.iter().map(|count| from_lisa(&format!("crowd-{count}")));
        letters::stand_in(&site.dovecot, &format!("r{n}"), "INBOX", its_own);
    }
    letters::stand_in(
        &site.dovecot,
        "lisa",
        "Sent",
        [from_lisa("crowd-10"), from_lisa("crowd-50")],
    );
}

fn is_deferred(postfix: &Postfix, queue_id: &str) -> bool {
    wait_until(LONG, || {
        postfix.attempts(queue_id).iter().any(|line| line.contains("status=deferred"))
    })
}

fn a_store_that_is_down_defers_and_then_gets_one_copy(way: Way) {
    let mut site = Site::with_own_dovecot();
    let lmtp = site.server(STORY);
    let postfix = postfix(&lmtp, way, Some(1));
    // A session with the store that the server may have kept is dead by then.
    postfix.send(LISA, &["scuba@mail.axial.net"], &from_lisa("before"));
    assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());
    site.dovecot.stop();
    let queue_id = postfix.send(LISA, &["scuba@mail.axial.net"], &from_lisa("down"));
    assert!(is_deferred(&postfix, &queue_id), "{}", postfix.log());
    let log = postfix.log();
    assert!(log.contains("4.3.0") && log.contains("store: "), "{log}");
    site.dovecot.start_again();
    postfix.flush();
    assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());
    for (account, mailbox) in [("scuba", "INBOX"), ("lisa", "Sent")] {
        letters::stand_in(
            &site.dovecot,
            account,
            mailbox,
            [from_lisa("before"), from_lisa("down")],
        );
    }
    assert_eq!(site.ledger_copies("down"), "2 of 2");
}

fn a_ledger_that_is_down_defers_and_then_gets_one_copy(way: Way) {
    let mut site = Site::with_own_postgres();
    let lmtp = site.server(STORY);
    let postfix = postfix(&lmtp, way, Some(1));
    postfix.send(LISA, &["scuba@mail.axial.net"], &from_lisa("before"));
    assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());
    site.postgres.stop_immediate();
    let queue_id = postfix.send(LISA, &["scuba@mail.axial.net"], &from_lisa("ledger"));
    assert!(is_deferred(&postfix, &queue_id), "{}", postfix.log());
    site.postgres.restart();
    postfix.flush();
    assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());
    for (account, mailbox) in [("scuba", "INBOX"), ("lisa", "Sent")] {
        letters::stand_in(
            &site.dovecot,
            account,
            mailbox,
            [from_lisa("before"), from_lisa("ledger")],
        );
    }
    assert_eq!(site.ledger_copies("ledger"), "2 of 2");
}

fn an_unknown_recipient_is_returned_with_5_1_1(way: Way) {
    let site = Site::with_servers();
    let known = "[directory]\naccounts = { \"scuba@mail.axial.net\" = \"scuba\" }\n";
    let lmtp = site.server(known);
    let postfix = postfix(&lmtp, way, None);
    let queue_id = postfix.send(
        LISA,
        &["nobody@mail.axial.net", "scuba@mail.axial.net"],
        &from_lisa("unknown"),
    );
    assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());
    let attempts = postfix.attempts(&queue_id);
    let bounced =
        attempts.iter().find(|line| line.contains("to=<nobody@")).expect("an attempt for nobody");
    assert!(bounced.contains("dsn=5.1.1") && bounced.contains("status=bounced"), "{bounced}");
    assert!(bounced.contains("unknown recipient"), "{bounced}");
    letters::stand_in(&site.dovecot, "scuba", "INBOX", [from_lisa("unknown")]);
    assert_eq!(site.dovecot.count("lisa", "Sent"), 0, "lisa has no account here");
}

/// A line of 5,000 characters stays one, a lone dot and bytes of eight bits stay what they are.
fn odd_bytes_arrive_as_they_were_sent(way: Way) {
    let site = Site::with_servers();
    let lmtp = site.server(STORY);
    let postfix = postfix(&lmtp, way, None);
    let body = [
        "long ".repeat(1000),
        ".".to_owned(),
        "..two".to_owned(),
        "gr\u{fc}n".to_owned(),
        String::new(),
    ];
    let body = body.join("\r\n");
    let message = format!("{ANNS}Message-ID: <odd@x>\n\n{body}end\r\n")
        .replace("\r\n", "\n")
        .replace('\n', "\r\n");
    postfix.send("ann@elsewhere.example", &["scuba@mail.axial.net"], message.as_bytes());
    assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());
    letters::stand_in(&site.dovecot, "scuba", "INBOX", [message]);
}

/// Postfix counts two bytes for each line's end, and itself returns a message that is over a size
/// that the server offers.
fn a_message_just_below_the_limit_is_not_returned(way: Way) {
    let site = Site::with_servers();
    let lmtp = site.server(&format!("{STORY}[limits]\nmessage_bytes = 16000\n"));
    let postfix = postfix(&lmtp, way, None);
    let message = format!("{ANNS}Message-ID: <size@x>\n\n{}", "\n".repeat(15_000)).into_bytes();
    postfix.send("ann@elsewhere.example", &["scuba@mail.axial.net"], &message);
    assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());
    letters::stand_in(&site.dovecot, "scuba", "INBOX", [&message]);
    let larger =
        [&b"From: ann@elsewhere.example\nMessage-ID: <larger@x>\n\n"[..], &b"\n".repeat(16_000)]
            .concat();
    let queue_id = postfix.send("ann@elsewhere.example", &["scuba@mail.axial.net"], &larger);
    assert!(postfix.wait_until_queue_empty(LONG), "{}", postfix.log());
    let attempts = postfix.attempts(&queue_id);
    assert!(attempts.len() == 1 && attempts[0].contains("dsn=5.3.4"), "{attempts:?}");
    assert!(attempts[0].contains("limits.message_bytes"), "{attempts:?}");
}

/// Postfix says nothing by XFORWARD of what came without a client.
fn mail_of_this_host_is_traced_by_its_queue_id(way: Way) {
    let site = Site::with_servers();
    let config = site.config("etc", STORY);
    let lmtp = Launch::of(&config).start();
    let postfix = postfix(&lmtp, way, None);
    postfix.submit(
        "root@mail.axial.net",
        "scuba@mail.axial.net",
        b"Subject: cron\nMessage-ID: <local@x>\n\nbody\n",
    );
    let line = postfix.wait_for_log(" status=sent ", LONG);
    let queue_id =
        line.split_once("lmtp[").and_then(|(_, rest)| rest.split(' ').nth(1)).unwrap_or_default();
    let queue_id = queue_id.trim_end_matches(':');
    let mut trace = String::new();
    let told = wait_until(LONG, || {
        trace = String::from_utf8_lossy(&run(&config, &["trace", queue_id]).stdout).into_owned();
        trace.contains("local@x") && trace.contains("delivered 2.0.0")
    });
    assert!(told, "{line}: {trace}");
    let logged = wait_until(LONG, || lmtp.log().contains(&format!(" QUEUE_ID={queue_id} ")));
    assert!(logged, "{}", lmtp.log());
}

fn addresses_beyond_ascii_need_no_smtputf8(way: Way) {
    let site = Site::with_servers();
    let lmtp = site.server(STORY);
    let postfix = postfix_with(&lmtp, way, None, "smtputf8_enable = no");
    let message = b"Subject: x\nMessage-ID: <utf8@x>\n\nbody\n";
    postfix.submit("l\u{ef}sa@mail.axial.net", "scuba+\u{f6}@mail.axial.net", message);
    let line = postfix.wait_for_log(" status=", LONG);
    assert!(line.contains(" status=sent "), "{line}");
    let mails = site.dovecot.messages("scuba", "INBOX");
    assert_eq!(mails.len(), 1, "{}", postfix.log());
    let head =
        "Return-Path: <l\u{ef}sa@mail.axial.net>\r\nDelivered-To: scuba+\u{f6}@mail.axial.net\r\n";
    assert!(mails[0].starts_with(head.as_bytes()), "{}", String::from_utf8_lossy(&mails[0]));
}
