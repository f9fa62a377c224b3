//! A message that comes first with other fields, by which filters decide, keeps none out that comes
//! without them.

use std::path::Path;

use crate::support::dovecot::Dovecot;
use crate::support::filters::{Filters, Guard};
use crate::support::onedrop;
use crate::support::site::{Site, delivered, run};
use crate::support::trial::{End, Run};

const SCRIPT: &str = "require [\"fileinto\", \"mailbox\"];\n\
     if header :contains \"X-Spam-Flag\" \"YES\" { discard; }\n\
     elsif header :contains \"Auto-Submitted\" \"auto-\" { discard; }\n\
     elsif exists \"X-Mine\" { fileinto :create \"Mine\"; }\n";

fn site() -> (Site, Filters) {
    let filters = Filters::new();
    let site = Site::with(Dovecot::start_high_performance_with(&filters.conf(Guard::On)));
    site.dovecot.make_home("scuba");
    site.dovecot.make_home("zoe");
    filters.script("scuba", SCRIPT);
    (site, filters)
}

fn config(site: &Site, more: &str) -> std::path::PathBuf {
    let lmtp = site.dovecot.lmtp_port();
    let more = format!(
        "store.lmtp = \"lmtp://127.0.0.1:{lmtp}\"\n[directory]\ndomains = [\"mail.axial.net\"]\n\
         [sent]\ntrust = \"header\"\n{more}"
    );
    site.config("etc", &more)
}

fn message(fields: &str, name: &str) -> String {
    format!(
        "{fields}From: zoe@mail.axial.net\nTo: scuba@mail.axial.net\n\
         Date: Sun, 22 Nov 2026 12:00:00 +0000\nSubject: {name}\nMessage-ID: <{name}@x>\n\n\
         this is {name}\n"
    )
}

fn deliver(config: &Path, message: &str) -> String {
    delivered(config, &["-d", "scuba@mail.axial.net"], message.as_bytes())
}

#[track_caller]
fn inbox_has(site: &Site, messages: &[&str]) {
    let copies = site.dovecot.messages("scuba", "INBOX");
    let copies = copies.iter().map(|copy| String::from_utf8_lossy(copy).replace("\r\n", "\n"));
    let letters = copies.map(|copy| copy[copy.find("From: ").expect("its From")..].to_owned());
    assert_eq!(letters.collect::<Vec<_>>(), messages);
}

#[test]
fn a_copy_that_filters_discard_keeps_no_other_out() {
    let (site, _filters) = site();
    let config = config(&site, "");
    let real = message("", "real");
    let forged = message("X-Spam-Flag: YES\n", "real");
    for forged in [&forged, &message("Auto-Submitted: no auto-replied\n", "real")] {
        assert!(deliver(&config, forged).starts_with("handed over "));
    }
    inbox_has(&site, &[]);
    assert!(deliver(&config, &real).starts_with("handed over "));
    inbox_has(&site, &[&real]);
    // Neither comes a second time, nor with what says no or is a score.
    let marked = "X-Spam-Flag: NO\nX-Spam-Status: No, score=1\nAuto-Submitted: no\n";
    for again in [&real, &forged, &message(marked, "real"), &message("X-Spam-Score: 9\n", "real")] {
        assert!(deliver(&config, again).starts_with("already there "), "{again}");
    }
    inbox_has(&site, &[&real]);
    // It is one message, with one copy in its author's Sent.
    assert_eq!(site.dovecot.count("zoe", "Sent"), 1);
    assert_eq!(site.postgres.psql("SELECT count(*) FROM onedrop_message"), "1");
    let verified = run(&config, &["verify", "--since", "2d"]);
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
}

/// The ledger has forgotten both: each is found by its content, and not as the other.
#[test]
fn a_look_back_takes_none_for_another() {
    let (site, filters) = site();
    filters.script(
        "scuba",
        "require [\"fileinto\", \"mailbox\"];\n\
         if header :contains \"X-Spam-Flag\" \"YES\" { fileinto :create \"Spam\"; }\n",
    );
    let config = config(&site, "");
    let (real, forged) = (message("", "real"), message("X-Spam-Flag: YES\n", "real"));
    let forget = || {
        let forgotten = run(&config, &["forget", "--account", "scuba"]);
        assert!(forgotten.status.success(), "{}", String::from_utf8_lossy(&forgotten.stderr));
    };
    assert!(deliver(&config, &forged).starts_with("handed over "));
    forget();
    assert!(deliver(&config, &real).starts_with("handed over "));
    forget();
    for again in [&real, &forged] {
        assert!(!deliver(&config, again).starts_with("handed over "), "{again}");
    }
    inbox_has(&site, &[&real]);
    assert_eq!(site.dovecot.count("scuba", "Spam"), 1);
}

#[test]
fn what_is_in_flight_when_the_list_changes_stays_single() {
    let (site, _filters) = site();
    let before = config(&site, "[dedup]\nfilter_fields = []\n");
    let mine = message("X-Mine: on\n", "mine");
    assert!(deliver(&before, &mine).starts_with("handed over "));
    let after = config(&site, "[dedup]\nfilter_fields = [\"X-Mine\"]\n");
    let refused = start(&after, &mine);
    refused.is(75, "4.3.5 ledger: dedup.filter_fields is \"\" in the ledger");
    let migrated = run(&after, &["migrate", "--accept-config"]);
    assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
    for _ in 0..2 {
        assert!(deliver(&after, &mine).starts_with("already there "));
    }
    assert_eq!(site.dovecot.count("scuba", "Mine"), 1);
    // What comes now goes by the new list.
    for (fields, mailbox, copies) in [("X-Mine: on\n", "Mine", 2), ("", "INBOX", 1)] {
        assert!(deliver(&after, &message(fields, "next")).starts_with("handed over "));
        assert_eq!(site.dovecot.count("scuba", mailbox), copies);
    }
}

fn start(config: &Path, message: &str) -> End {
    let mut command = onedrop();
    command.args(["deliver", "-d", "scuba@mail.axial.net", "--config"]).arg(config);
    let mut run = Run::start(command);
    run.feed(message.as_bytes().to_vec());
    run.end()
}
