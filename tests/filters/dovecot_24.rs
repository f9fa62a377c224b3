//! A Dovecot 2.4 with the files that are shipped for it: what is handed over to its LMTP is
//! filtered, and a copy in doubt is found in whatever mailbox a filter has filed it, by the look or
//! by the guard. As `guard` and `stories` for 2.3, with less of each.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use onedrop::userdb::Userdb;

use crate::guard::{copy_is, is_taken, with};
use crate::support::dovecot_24::Dovecot24;
use crate::support::filters::{Filters, Guard};
use crate::support::imap::Imap;
use crate::support::letters::{self, ANN, from_ann};
use crate::support::lmtp_client::LmtpClient;
use crate::support::proxy::{Fault, Proxy, Stage, Upstream};
use crate::support::site::{Files, Site, deliver, run};
use crate::support::{free_port, onedrop, set_mode};

const FORWARDS: &str = "redirect \"far@elsewhere.example\";\n";
const FILES: &str = "require [\"fileinto\", \"mailbox\"];\nfileinto :create \"Lists/rust\";\n";

struct Handing {
    site: Site<Files>,
    filters: Filters,
    dovecot: Dovecot24,
}

impl Handing {
    /// A site with these accounts; the ledger is a file.
    fn to(accounts: &[&str], guard: Guard) -> Handing {
        let (site, filters) = (Site::embedded(), Filters::new());
        site.remember_for_ever();
        let dovecot = Dovecot24::start(accounts, &filters.conf_24(guard));
        Handing { site, filters, dovecot }
    }

    /// A configuration that hands over to this port.
    fn config(&self, name: &str, lmtp_port: u16, more: &str) -> PathBuf {
        let config = self.site.config(
            name,
            &format!(
                "[store]\nurl = \"imap://127.0.0.1:{}\"\nlmtp = \"lmtp://127.0.0.1:{lmtp_port}\"\n\
                 user = \"mda\"\npassword_file = \"$DIR/store.password\"\n[lock]\nwait_secs = 0\n\
                 [directory]\ndomains = [\"mail.axial.net\"]\n{more}",
                self.dovecot.imap_port()
            ),
        );
        let password = config.with_file_name("store.password");
        fs::write(&password, self.dovecot.password()).expect("a password");
        set_mode(&password, 0o600);
        config
    }

    fn count(&self, account: &str, mailbox: &str) -> usize {
        self.dovecot.messages(account, mailbox).len()
    }

    fn end_leases(&self) {
        let sql = "UPDATE onedrop_copy SET leased_until = leased_until - 1e6";
        self.site.sqlite().execute(sql, []).expect("leases");
    }
}

/// Hands Ann's message over for `account`.
fn to(config: &std::path::Path, account: &str, name: &str) -> (Option<i32>, String) {
    let recipient = format!("{account}@mail.axial.net");
    let output = deliver(config, &["-f", ANN, "-d", &recipient], from_ann(name).as_bytes());
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn what_is_handed_over_is_filtered_and_stands_as_it_came() {
    let handing = Handing::to(&["doug", "scuba"], Guard::On);
    handing.filters.script("doug", FILES);
    let config = handing.config("etc", handing.dovecot.lmtp_port(), "");
    for (account, mailbox) in [("doug", "Lists/rust"), ("scuba", "INBOX")] {
        let (status, said) = to(&config, account, account);
        assert_eq!(status, Some(0), "{said}");
        assert!(said.contains(&format!("handed over account={account} lmtp=")), "{said}");
        let [copy] = &handing.dovecot.messages(account, mailbox)[..] else { panic!("{mailbox}") };
        let copy = String::from_utf8_lossy(copy).replace("\r\n", "\n");
        let (head, letter) = copy.split_at(copy.find("From: ").expect("its first field"));
        assert_eq!(letter, from_ann(account));
        let expected = format!("Return-Path: <{ANN}>\nDelivered-To: {account}@mail.axial.net\n");
        assert!(head.starts_with(&expected), "{head}");
        // Our name of the copy stands in Dovecot's log.
        let value = head.split_once("X-Onedrop-Copy: ").expect(head).1;
        let value = value.lines().next().expect("a value");
        assert!(said.contains(value), "{said} {value}");
    }
}

/// The answer to a hand-over is lost, and it is tried until it succeeds.
#[test]
fn after_a_lost_answer_the_look_finds_what_lies_there_and_the_guard_stops_the_rest() {
    for guard in [Guard::On, Guard::Off] {
        let handing = Handing::to(&["filed", "forwarded"], guard);
        handing.filters.script("filed", FILES);
        handing.filters.script("forwarded", FORWARDS);
        for (account, again) in [("filed", "found"), ("forwarded", "handed over")] {
            let proxy = Proxy::start(Upstream::Lmtp(handing.dovecot.lmtp_port()));
            let config = handing.config(account, proxy.port(), "");
            proxy.plan(Stage::Answer, Fault::Cut);
            let (status, said) = to(&config, account, account);
            assert!(status == Some(75) && said.contains("in doubt"), "{said}");
            proxy.heal();
            handing.end_leases();
            let (status, said) = to(&config, account, account);
            assert_eq!(status, Some(0), "{said}");
            assert!(said.contains(&format!("{again} account={account} ")), "{said}");
        }
        assert_eq!(handing.count("filed", "Lists/rust"), 1);
        assert_eq!(handing.count("filed", "INBOX"), 0);
        assert_eq!(handing.filters.sent_to("far@").len(), 1);
        // Pigeonhole sends nothing on twice, and keeps it instead.
        let kept = usize::from(guard == Guard::Off);
        assert_eq!(handing.count("forwarded", "INBOX"), kept, "{guard:?}");
    }
}

#[test]
fn the_guard_drops_what_is_handed_over_twice() {
    for (guard, copies) in [(Guard::On, 1), (Guard::Off, 2)] {
        let filters = Filters::new();
        let dovecot = Dovecot24::start(&["scuba", "doug"], &filters.conf_24(guard));
        filters.script("scuba", FILES);
        let hand_over = |account: &str, message: &str| {
            let mut client = LmtpClient::welcome(&dovecot.lmtp_socket());
            let replies = client.deliver(ANN, &[account], message).expect("a dialog");
            is_taken(&replies[0].to_string());
        };
        for _ in 0..2 {
            hand_over("scuba", &with(&copy_is(1), "first"));
        }
        assert_eq!(dovecot.messages("scuba", "Lists/rust").len(), copies, "{guard:?}");
        // The value counts and nothing else, and for each account by itself.
        hand_over("scuba", &with(&copy_is(2), "first"));
        hand_over("doug", &with(&copy_is(1), "first"));
        assert_eq!(dovecot.messages("scuba", "Lists/rust").len(), copies + 1, "{guard:?}");
        assert_eq!(dovecot.messages("doug", "INBOX").len(), 1);
    }
}

/// While a delivery to an account is carried out, Dovecot takes no other.
#[test]
fn one_delivery_for_an_account_is_carried_out_at_a_time() {
    let handing = Handing::to(&["scuba"], Guard::On);
    handing.filters.script("scuba", FORWARDS);
    handing.filters.hold_senders();
    let config = handing.config("etc", handing.dovecot.lmtp_port(), "");
    let message = with(&copy_is(7), "late");
    thread::scope(|scope| {
        let late = scope.spawn(|| {
            let mut client = LmtpClient::welcome(&handing.dovecot.lmtp_socket());
            client.deliver(ANN, &["scuba"], &message).expect("a dialog")[0].to_string()
        });
        handing.filters.wait_held();
        let (status, said) = to(&config, "scuba", "next");
        assert!(status == Some(75) && said.contains("Too many concurrent deliveries"), "{said}");
        handing.filters.let_go();
        is_taken(&late.join().expect("a dialog"));
    });
    let (status, said) = to(&config, "scuba", "next");
    assert_eq!(status, Some(0), "{said}");
    assert_eq!(handing.filters.sent_to("far@").len(), 2);
}

/// Like `forged` for 2.3: what a stranger writes takes no mail out, and is not taken for the copy.
#[test]
fn what_a_stranger_writes_takes_no_mail_out() {
    let handing = Handing::to(&["scuba"], Guard::On);
    // It was deferred once, so a forged one may be of an earlier try.
    let (status, said) = to(&handing.config("refused", free_port(), ""), "scuba", "real");
    assert_eq!(status, Some(75), "{said}");
    let config = handing.config("etc", handing.dovecot.lmtp_port(), "");
    let (status, said) = to(&config, "scuba", "real");
    assert_eq!(status, Some(0), "{said}");
    let ledger = handing.site.sqlite();
    let value: String = ledger
        .query_row("SELECT lower(hex(value)) FROM onedrop_copy WHERE epoch = 2", [], |row| {
            row.get(0)
        })
        .expect("a copy");
    let due = "INSERT OR REPLACE INTO onedrop_unsettled (copy_id, look_at) SELECT id, 0 FROM \
               onedrop_copy";
    ledger.execute(due, []).expect("SQL");
    let port = handing.dovecot.imap_port();
    let session = Imap::login_as(port, "scuba", "mda", handing.dovecot.password());
    let mut session = session.expect("a login");
    for (mailbox, message) in letters::forgeries(&value, &from_ann("real")) {
        let _ = session.command(&format!("CREATE {mailbox}"));
        let saved = session.append(mailbox, "", message.replace('\n', "\r\n").as_bytes());
        assert!(saved.expect("an answer").is_ok(), "{mailbox}");
    }
    let mailboxes = ["INBOX", "Sent", "Lists", "Archive"];
    let counts = || mailboxes.map(|mailbox| handing.count("scuba", mailbox));
    let before = counts();
    for _ in 0..2 {
        let args = ["verify", "--since", "48h", "--all", "--repair", "--json"];
        let verified = run(&config, &args);
        assert!(verified.status.success(), "{verified:?}");
        assert_eq!(counts(), before, "{verified:?}");
    }
    let first = handing.dovecot.messages("scuba", "INBOX").remove(0);
    assert!(String::from_utf8_lossy(&first).contains("this is real"), "the real one stands");
}

#[test]
fn check_sees_whether_the_guard_is_in_force() {
    for guard in [Guard::On, Guard::Off] {
        let handing = Handing::to(&["doug", "mda"], guard);
        let config = handing.config("etc", handing.dovecot.lmtp_port(), "");
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", handing.dovecot.programs().display());
        let mut check: Command = onedrop();
        check.args(["check", "--account", "doug", "--config"]).arg(&config).env("PATH", path);
        let output = check.arg("--dovecot").arg(handing.dovecot.config_file()).output();
        let told = output.expect("a check").stdout;
        let told = String::from_utf8_lossy(&told);
        let about: Vec<&str> = told.lines().filter(|line| line.contains(" dovecot: ")).collect();
        match guard {
            Guard::On => assert_eq!(about, ["ok      dovecot: its settings fit"], "{told}"),
            Guard::Off => {
                let [about] = about[..] else { panic!("{told}") };
                let missing = "warning dovecot: no script that runs before users' own is the guard";
                assert!(about.starts_with(missing), "{told}");
            }
        }
        assert!(told.contains("lmtp: takes mail for doug"), "{told}");
        assert!(told.contains("the server is Dovecot"), "{told}");
    }
}

#[test]
fn its_user_database_tells_who_has_an_account() {
    let handing = Handing::to(&["doug"], Guard::On);
    let socket = handing.dovecot.userdb_socket();
    let userdb = Userdb::new(socket.clone());
    let ask = |name| userdb.user(name, Instant::now() + Duration::from_secs(30)).expect("it tells");
    assert_eq!(ask("doug").as_deref(), Some("doug"));
    for nobody in ["ghost", "do ug", "do\tug"] {
        assert_eq!(ask(nobody), None, "{nobody:?}");
    }
    let more = format!("userdb = \"unix:{}\"\n", socket.display());
    let config = handing.config("etc", handing.dovecot.lmtp_port(), &more);
    let (status, said) = to(&config, "doug", "known");
    assert_eq!(status, Some(0), "{said}");
    let (status, said) = to(&config, "ghost", "unknown");
    assert_eq!(status, Some(67), "{said}");
    assert_eq!(handing.count("doug", "INBOX"), 1);
    let trace = run(&config, &["trace", "doug"]);
    let trace = String::from_utf8_lossy(&trace.stdout).into_owned();
    assert!(trace.contains("handed over account=doug lmtp="), "{trace}");
}
