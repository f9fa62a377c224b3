//! A sender's own copy (Sent) that its mailbox does not take, with a real Dovecot and a real
//! Postgres: by pipe and by LMTP no recipient waits for it, it is said and on record, and `verify
//! --repair` places it once it can.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use crate::support::dovecot::Dovecot;
use crate::support::letters::from_lisa;
use crate::support::lmtp::{Launch, Lmtp};
use crate::support::lmtp_client::LmtpClient;
use crate::support::site::{Site, deliver, run};

const LISA: &str = "lisa@gmail.com";
const KEPT: &str = "no copy yet in account=lisa mailbox=Sent, kept for later: store: ";

/// Access control lists; what a test says of a mailbox stands in its `dovecot-acl`.
const ACL: &str = "mail_plugins = $mail_plugins acl\nprotocol imap {\n  mail_plugins = \
                   $mail_plugins imap_acl\n}\n\
                   plugin {\n  acl = vfile\n  acl_user = %u\n}\n";
/// Two messages an account.
const QUOTA: &str = "mail_plugins = quota\nprotocol imap {\n  mail_plugins = quota imap_quota\n}\n\
                     plugin {\n  quota = count:User quota\n  quota_rule = *:messages=2\n  \
                     quota_vsizes = yes\n}\n";

/// How the message comes in.
#[derive(Debug, Clone, Copy)]
enum Door {
    Pipe,
    Lmtp,
}

struct MailHost {
    site: Site,
    config: PathBuf,
}

impl MailHost {
    /// `store`: further settings of the store.
    fn new(dovecot: Dovecot, store: &str) -> MailHost {
        let site = Site::with(dovecot);
        let config = site.config("etc", &format!("[store]\n{store}\n"));
        MailHost { site, config }
    }

    /// Delivers Lisa's message to these, by a server or by a process for each; what is said to
    /// each, good news all.
    fn delivers(&self, door: Door, lmtp: Option<&Lmtp>, id: &str, to: &[&str]) -> Vec<String> {
        match door {
            Door::Pipe => to
                .iter()
                .map(|recipient| {
                    let args = ["-f", LISA, "-d", recipient];
                    let message =
                        [format!("Delivered-To: {recipient}\n").as_bytes(), &from_lisa(id)]
                            .concat();
                    let output = deliver(&self.config, &args, &message);
                    assert_eq!(output.status.code(), Some(0), "{door:?}: {}", said(&output));
                    said(&output)
                })
                .collect(),
            Door::Lmtp => {
                let mut client: LmtpClient = lmtp.expect("a server").client();
                let replies = client.deliver(LISA, to, from_lisa(id)).expect("replies");
                client.quit();
                assert!(replies.iter().all(|reply| reply.code == 250), "{door:?}: {replies:?}");
                replies.into_iter().map(|reply| reply.text).collect()
            }
        }
    }

    fn lmtp(&self, door: Door) -> Option<Lmtp> {
        matches!(door, Door::Lmtp).then(|| Launch::of(&self.config).start())
    }

    /// Scuba and Doug each have the message once, whole; Lisa has `sent` copies of it.
    #[track_caller]
    fn stands(&self, id: &str, sent: usize) {
        let whole = String::from_utf8(from_lisa(id)).expect("text").replace('\n', "\r\n");
        for account in ["scuba", "doug"] {
            let mails = with_id(self.site.dovecot.messages(account, "INBOX"), id);
            assert_eq!(mails.len(), 1, "{account}");
            assert!(mails[0].ends_with(&whole), "{account}: {}", mails[0]);
        }
        let mails = with_id(self.site.dovecot.messages("lisa", "Sent"), id);
        assert_eq!(mails.len(), sent);
        // As it came in, without what names one recipient; a server's own Received stands in
        // recipients' copies only.
        assert!(mails.iter().all(|mail| *mail == whole), "{mails:?}");
    }

    fn verify(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = run(&self.config, &[&["verify", "--since", "1h"], args].concat());
        (output.status.code(), said(&output))
    }

    /// What was kept is reported, refused again, and placed once it can be; then nothing of it is
    /// reported.
    #[track_caller]
    fn mends(&self, id: &str, allow: impl FnOnce()) {
        let trace = run(&self.config, &["trace", &format!("{id}@mail.gmail.com")]);
        assert!(said(&trace).contains("kept for later"), "{}", said(&trace));
        let (status, told) = self.verify(&[]);
        assert!(
            status == Some(1) && told.contains("kept: account=lisa mailbox=Sent"),
            "{status:?} {told}"
        );
        let (status, told) = self.verify(&["--repair"]);
        assert!(status == Some(1) && told.contains("still not placed"), "{status:?} {told}");
        self.stands(id, 0);
        allow();
        let (status, told) = self.verify(&["--repair"]);
        assert!(status == Some(0) && told.contains("repaired kept"), "{status:?} {told}");
        self.stands(id, 1);
        let (status, told) = self.verify(&["--repair"]);
        assert!(status == Some(0) && !told.contains("kept"), "{status:?} {told}");
        self.stands(id, 1);
        assert_eq!(self.site.dovecot.flags("lisa", "Sent").last().expect("a copy"), &["\\Seen"]);
        assert_eq!(self.site.postgres.psql("SELECT count(*) FROM onedrop_kept"), "0");
        assert_eq!(self.site.ledger_copies(id), "3 of 3");
        let trace = run(&self.config, &["trace", &format!("{id}@mail.gmail.com")]);
        assert!(
            !said(&trace).contains("kept for later:") || said(&trace).contains("placed"),
            "{}",
            said(&trace)
        );
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

fn with_id(mails: Vec<Vec<u8>>, id: &str) -> Vec<String> {
    let texts = mails.into_iter().map(|mail| String::from_utf8(mail).expect("text"));
    texts.filter(|text| text.contains(&format!("<{id}@"))).collect()
}

const BOTH: [&str; 2] = ["scuba@mail.axial.net", "doug@mail.axial.net"];

#[test]
fn a_sent_without_the_right_to_write_keeps_no_mail_from_anybody() {
    let host = MailHost::new(Dovecot::start_high_performance_with(ACL), "");
    drop(host.site.dovecot.session("lisa").command("CREATE Sent"));
    let list = host.site.dovecot.maildir("lisa").join(".Sent/dovecot-acl");
    for door in [Door::Pipe, Door::Lmtp] {
        let id = format!("no-right-{door:?}").to_lowercase();
        fs::write(&list, "owner lr\n").expect("a list");
        let lmtp = host.lmtp(door);
        for told in host.delivers(door, lmtp.as_ref(), &id, &BOTH) {
            assert!(told.contains("stored account=") && told.contains(KEPT), "{told}");
        }
        host.stands(&id, 0);
        host.mends(&id, || fs::remove_file(&list).expect("the list"));
    }
}

#[test]
fn a_sent_that_is_not_there_and_not_to_be_made_keeps_no_mail_from_anybody() {
    let host = MailHost::new(Dovecot::shared(), "create_mailboxes = false");
    for door in [Door::Pipe, Door::Lmtp] {
        let id = format!("no-mailbox-{door:?}").to_lowercase();
        let lmtp = host.lmtp(door);
        for told in host.delivers(door, lmtp.as_ref(), &id, &BOTH) {
            assert!(told.contains("stored account=") && told.contains(KEPT), "{told}");
        }
        host.mends(&id, || {
            assert!(host.site.dovecot.session("lisa").command("CREATE Sent").expect("made").is_ok())
        });
        assert!(host.site.dovecot.session("lisa").command("DELETE Sent").expect("gone").is_ok());
    }
}

#[test]
fn a_sent_over_its_quota_keeps_no_mail_from_anybody() {
    let host =
        MailHost::new(Dovecot::start_high_performance_with(QUOTA), "over_quota = \"bounce\"");
    for _ in 0..2 {
        let full =
            host.site.dovecot.session("lisa").append("INBOX", "", b"Subject: full\r\n\r\nx\r\n");
        assert!(full.expect("an answer").is_ok());
    }
    for door in [Door::Pipe, Door::Lmtp] {
        let id = format!("quota-{door:?}").to_lowercase();
        let lmtp = host.lmtp(door);
        for told in host.delivers(door, lmtp.as_ref(), &id, &BOTH) {
            assert!(
                told.contains("stored account=")
                    && told.contains(KEPT)
                    && told.contains("over quota"),
                "{told}"
            );
        }
        host.stands(&id, 0);
        assert_eq!(
            host.site.postgres.psql("SELECT count(*) FROM onedrop_kept"),
            (1 + door as u32).to_string()
        );
    }
}

/// The store's password is changed while the server has sessions open.
#[test]
fn a_password_changed_under_a_running_server_loses_no_copy() {
    let host = MailHost::new(Dovecot::start_high_performance(), "");
    let lmtp = Launch::of(&host.config).start();
    // A session of Scuba's is kept from here.
    let warm = LmtpClient::deliver(
        &mut lmtp.client(),
        "x@example.org",
        &BOTH[..1],
        b"Subject: warm\n\nx\n",
    );
    assert!(warm.expect("replies")[0].is_ok());
    host.site.dovecot.change_password("another");
    let mut client = lmtp.client();
    let replies = client.deliver(LISA, &BOTH, from_lisa("rotated")).expect("replies");
    assert_eq!(
        (replies[0].code, replies[1].code),
        (250, 451),
        "Scuba's session is open, Doug's is not: {replies:?}"
    );
    assert!(replies[0].text.contains(KEPT) && replies[0].text.contains("password"), "{replies:?}");
    let refused = &replies[1].text;
    assert!(refused.contains("4.3.5") && refused.contains("password is wrong"), "{replies:?}");
    assert!(!refused.contains("no such account"), "{replies:?}");
    // It is no account's fault.
    assert!(replies.iter().all(|reply| !reply.text.contains("can log in")), "{replies:?}");
    host.site.dovecot.change_password(host.site.dovecot.password());
    let again = client.deliver(LISA, &BOTH[1..], from_lisa("rotated")).expect("replies");
    assert_eq!(again[0].code, 250, "{again:?}");
    // The retry of the one who waited has placed it; nothing is left to repair.
    host.stands("rotated", 1);
    assert_eq!(host.site.postgres.psql("SELECT count(*) FROM onedrop_kept"), "0");
    let (status, told) = host.verify(&["--repair"]);
    assert_eq!(status, Some(0), "{told}");
}

/// The copy is that of the role, whatever its mailbox is called: one for both recipients, which is
/// found again after a crash before its record.
#[test]
fn the_mailbox_that_is_marked_has_the_senders_copy_once() {
    let names = "namespace inbox {\n  prefix = INBOX.\n  separator = .\n  mailbox Gesendet {\n    \
                 special_use = \\Sent\n  }\n}\n";
    let site = Site::with(Dovecot::start_with(names));
    let config = site.config("etc", "[sent]\nmailbox = '\\Sent'\n");
    let made = site.dovecot.session("lisa").command("CREATE INBOX.Gesendet").expect("an answer");
    assert!(made.is_ok(), "{}", made.tagged);
    let again = |recipient: &str| {
        let output = deliver(&config, &["-f", LISA, "-d", recipient], &from_lisa("role"));
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert_eq!(site.dovecot.count("lisa", "INBOX.Gesendet"), 1);
        assert_eq!(site.dovecot.count("lisa", "INBOX.Sent"), 0);
    };
    again("scuba@mail.axial.net");
    again("doug@mail.axial.net");
    site.forget_receipts("mailbox = '\\Sent'");
    again("doug@mail.axial.net");
    assert_eq!(site.ledger_copies("role"), "3 of 3");
}
