//! Copies that belong into other mailboxes than INBOX, and those whose mailbox is not there: by the
//! command and by the server, into Maildirs and by IMAP, with a public namespace and its rights.

use std::fs;

use crate::support::TempRoot;
use crate::support::dovecot::{Dovecot, MAIL_USER};
use crate::support::letters::{from_lisa, stand_in};
use crate::support::lmtp_client::LmtpClient;
use crate::support::site::{Files, Site, deliver, delivered, finish_delivery, run, start_delivery};

const DOUG: &str = "doug@mail.axial.net";
const LISTS: &str = "doug+lists@mail.axial.net";
const BY_DETAIL: &str = "[directory]\ndomains = [\"mail.axial.net\"]\ndetail = \"mailbox\"\n";
const JUNK: &str = "[[file]]\nheader = \"X-Spam-Flag\"\nis = \"YES\"\nmailbox = \"Junk\"\n";

/// Makes a folder as its owner's mail program does.
fn make_folder(site: &Site<Files>, account: &str, name: &str) {
    for sub in ["cur", "new", "tmp"] {
        let folder = site.root.join(format!("mail/{account}/Maildir/{name}/{sub}"));
        fs::create_dir_all(folder).expect("a folder");
    }
}

/// The copies in Doug's INBOX and in his `lists`.
fn counts(site: &Site<Files>) -> (usize, usize) {
    (site.inbox("doug").len(), site.copies("doug", ".lists").len())
}

#[test]
fn a_detail_is_the_mailbox_of_that_name_or_inbox() {
    let site = Site::embedded();
    site.remember_for_ever();
    let config = site.config("etc", BY_DETAIL);
    let said = delivered(&config, &["-d", LISTS], &from_lisa("missing"));
    assert!(said.starts_with("stored account=doug mailbox=INBOX name="), "{said}");
    assert!(said.trim_end().ends_with(" instead_of=lists"), "{said}");
    assert_eq!(counts(&site), (1, 0));
    assert!(!site.root.join("mail/doug/Maildir/.lists").exists(), "a detail makes no mailbox");
    make_folder(&site, "doug", ".lists");
    // What is decided holds.
    let said = delivered(&config, &["-d", LISTS, "-d", DOUG], &from_lisa("missing"));
    assert_eq!(said.matches("already there account=doug mailbox=INBOX").count(), 2, "{said}");
    assert_eq!(counts(&site), (1, 0));
    let said = delivered(&config, &["-d", LISTS, "-d", DOUG], &from_lisa("both"));
    assert!(said.contains("stored account=doug mailbox=lists name="), "{said}");
    assert_eq!(counts(&site), (2, 1));
    let said = delivered(&config, &["-d", "doug+Lists@mail.axial.net"], &from_lisa("case"));
    assert!(said.trim_end().ends_with("mailbox=INBOX") || said.contains("instead_of=Lists"));
    assert_eq!(counts(&site), (3, 1));
    let trace = run(&config, &["trace", LISTS]);
    let trace = String::from_utf8_lossy(&trace.stdout).into_owned();
    assert!(trace.contains("mailbox=lists: not there or not open to us"), "{trace}");
    assert!(trace.contains("instead=INBOX"), "{trace}");
}

#[test]
fn no_detail_leads_out_of_the_accounts_mailboxes() {
    let site = Site::embedded();
    site.remember_for_ever();
    let config = site.config("etc", BY_DETAIL);
    delivered(&config, &["-d", "lisa@mail.axial.net"], &from_lisa("hers"));
    let details =
        ["../../lisa/Maildir", "..", ".", "/etc", "a/../b", ".x", "a\u{1}b", "inbox", "*"];
    for (n, detail) in details.iter().enumerate() {
        let to = format!("doug+{detail}@mail.axial.net");
        let said = delivered(&config, &["-d", &to], &from_lisa(&format!("odd{n}")));
        assert!(said.starts_with("stored account=doug mailbox=INBOX name="), "{detail}: {said}");
        assert!(!said.contains("instead_of"), "{detail}: {said}");
    }
    assert_eq!(site.inbox("doug").len(), details.len());
    assert_eq!(site.inbox("lisa").len(), 1);
    let folders = fs::read_dir(site.root.join("mail/doug/Maildir")).expect("doug's");
    let folders = folders.filter(|one| one.as_ref().is_ok_and(|one| one.path().is_dir()));
    assert_eq!(folders.count(), 3, "cur, new and tmp");
}

#[test]
fn what_is_marked_as_spam_goes_to_junk_for_all_where_there_is_one() {
    let site = Site::embedded();
    site.remember_for_ever();
    let config = site.config("etc", &format!("{BY_DETAIL}{JUNK}"));
    delivered(&config, &["-d", DOUG], &from_lisa("first"));
    make_folder(&site, "doug", ".Junk");
    make_folder(&site, "doug", ".lists");
    let spam = [b"X-Spam-Flag: Yes\r\n".to_vec(), from_lisa("spam")].concat();
    let to = ["-d", DOUG, "-d", LISTS, "-d", "scuba@mail.axial.net"];
    let said = delivered(&config, &to, &spam);
    assert!(said.contains("account=doug mailbox=Junk name="), "{said}");
    assert!(said.contains("account=scuba mailbox=INBOX name="), "{said}");
    assert_eq!(site.copies("doug", ".Junk").len(), 1, "one mailbox, one copy");
    assert_eq!((counts(&site), site.inbox("scuba").len()), ((1, 0), 1));
}

#[test]
fn the_server_files_as_the_command_does() {
    let site = Site::embedded();
    site.remember_for_ever();
    let server = site.server(BY_DETAIL);
    let mut client: LmtpClient = server.client();
    let replies = |client: &mut LmtpClient, to: &[&str], name: &str| {
        let replies = client.deliver("lisa@gmail.com", to, from_lisa(name)).expect("replies");
        replies.into_iter().map(|reply| reply.text).collect::<Vec<_>>()
    };
    let said = replies(&mut client, &[LISTS, DOUG], "missing");
    assert!(said[0].contains("mailbox=INBOX") && said[0].contains("instead_of=lists"), "{said:?}");
    assert!(said[1].contains("mailbox=INBOX") && !said[1].contains("lists"), "{said:?}");
    assert_eq!(counts(&site), (1, 0));
    make_folder(&site, "doug", ".lists");
    let said = replies(&mut client, &[LISTS, DOUG], "there");
    assert!(said[0].contains("mailbox=lists") && said[1].contains("mailbox=INBOX"), "{said:?}");
    assert_eq!(counts(&site), (2, 1));
}

#[test]
fn two_that_mean_inbox_and_a_missing_mailbox_race_for_one_copy() {
    let site = Site::embedded();
    site.remember_for_ever();
    let hosts = [site.config("host-a", BY_DETAIL), site.config("host-b", BY_DETAIL)];
    let to = [DOUG, LISTS, "doug+other@mail.axial.net", LISTS];
    for round in 0..8 {
        let message = from_lisa(&format!("race{round}"));
        let started: Vec<_> = (to.iter().enumerate())
            .map(|(n, to)| start_delivery(&hosts[n % 2], &["-d", to]))
            .collect();
        for child in started {
            let output = finish_delivery(child, &message);
            assert!(output.status.success(), "{output:?}");
        }
        assert_eq!(counts(&site), (round + 1, 0));
    }
}

/// A public namespace whose mailboxes are these, with what the account `post` may do there.
fn with_public(mailboxes: &[(&str, &str)]) -> (TempRoot, Site) {
    with_public_beside(mailboxes, "", '/')
}

/// The same, beside personal mailboxes whose names begin with `prefix`.
fn with_public_beside(
    mailboxes: &[(&str, &str)],
    prefix: &str,
    separator: char,
) -> (TempRoot, Site) {
    let root = TempRoot::new();
    root.dir_for("public", MAIL_USER, 0o755);
    for (name, rights) in mailboxes {
        for sub in ["", "/cur", "/new", "/tmp"] {
            root.dir_for(&format!("public/.{name}{sub}"), MAIL_USER, 0o755);
        }
        let rights =
            if rights.is_empty() { String::new() } else { format!("user=post {rights}\n") };
        root.write(
            &format!("public/.{name}/dovecot-acl"),
            format!("user=keeper lrwstipekxa\n{rights}"),
        );
    }
    let at = root.join("public").display().to_string();
    let dovecot = Dovecot::start_with(&format!(
        "mail_plugins = $mail_plugins acl\nplugin {{\n  acl = vfile\n  acl_user = %u\n}}\n\
         namespace inbox {{\n  prefix = {prefix}\n  separator = {separator}\n}}\n\
         namespace public {{\n  type = public\n  separator = {separator}\n  \
         prefix = Public{separator}\n  location = maildir:{at}\n  subscriptions = no\n}}\n"
    ));
    (root, Site::with(dovecot))
}

const TEAM: &str = "
[directory]
domains = [\"mail.axial.net\"]
detail = \"mailbox\"
[directory.accounts]
\"team@mail.axial.net\" = { account = \"post\", mailbox = \"Public/team\" }
\"closed@mail.axial.net\" = { account = \"post\", mailbox = \"Public/closed\" }
\"hidden@mail.axial.net\" = { account = \"post\", mailbox = \"Public/hidden\" }
\"drop@mail.axial.net\" = { account = \"post\", mailbox = \"Public/drop\" }
";

#[test]
fn a_public_mailbox_gets_the_copy_of_an_account_that_may_write_there() {
    let (_public, site) = with_public(&[("team", "lri"), ("closed", "lr"), ("hidden", "")]);
    let config = site.config("etc", TEAM);
    let message = from_lisa("team");
    let said = delivered(&config, &["-d", "team@mail.axial.net"], &message);
    assert!(said.starts_with("stored account=post mailbox=Public/team uid="), "{said}");
    stand_in(&site.dovecot, "post", "Public/team", [&message]);
    assert_eq!(site.dovecot.count("post", "INBOX"), 0);
    // A look works there, and so does verify.
    site.forget_receipts("mailbox = 'Public/team'");
    let said = delivered(&config, &["-d", "team@mail.axial.net"], &message);
    assert!(said.starts_with("found account=post mailbox=Public/team uid="), "{said}");
    stand_in(&site.dovecot, "post", "Public/team", [&message]);
    let verified = run(&config, &["verify", "--since", "1h"]);
    assert!(verified.status.success(), "{verified:?}");
    // No right to insert, no right to see: one copy for both, in INBOX.
    let to = ["-d", "closed@mail.axial.net", "-d", "hidden@mail.axial.net"];
    let message = from_lisa("refused");
    let said = delivered(&config, &to, &message);
    assert!(said.contains("instead_of=Public/closed"), "{said}");
    assert!(said.contains("instead_of=Public/hidden"), "{said}");
    stand_in(&site.dovecot, "post", "INBOX", [&message]);
    for mailbox in ["Public/closed", "Public/hidden"] {
        assert_eq!(site.dovecot.count("keeper", mailbox), 0);
    }
}

#[test]
fn a_public_mailbox_is_found_beside_personal_ones_with_a_prefix() {
    let (_public, site) = with_public_beside(&[("team", "lri"), ("closed", "lr")], "INBOX.", '.');
    let more = "\"boss@mail.axial.net\" = { account = \"post\", mailbox = \"Public.team\" }\n\
                \"own@mail.axial.net\" = { account = \"post\", mailbox = \"lists\" }\n";
    let config = site.config("etc", &format!("{TEAM}{more}"));
    assert!(site.dovecot.session("post").command("CREATE INBOX.lists").is_ok());
    let to = |name: &str, message: &[u8]| {
        delivered(&config, &["-d", &format!("{name}@mail.axial.net")], message)
    };
    let messages = ["team", "boss", "own", "closed"].map(from_lisa);
    for (name, message, mailbox) in [
        ("team", &messages[0], "mailbox=Public/team"),
        ("boss", &messages[1], "mailbox=Public.team"),
        ("own", &messages[2], "mailbox=lists"),
    ] {
        let said = to(name, message);
        assert!(said.starts_with(&format!("stored account=post {mailbox} uid=")), "{said}");
    }
    stand_in(&site.dovecot, "post", "Public.team", [&messages[0], &messages[1]]);
    stand_in(&site.dovecot, "post", "INBOX.lists", [&messages[2]]);
    site.forget_receipts("mailbox = 'Public/team'");
    assert!(to("team", &messages[0]).starts_with("found account=post mailbox=Public/team uid="));
    let said = to("closed", &messages[3]);
    assert!(said.contains("instead_of=Public/closed"), "{said}");
    stand_in(&site.dovecot, "post", "INBOX", [&messages[3]]);
    let verified = run(&config, &["verify", "--since", "1h"]);
    assert!(verified.status.success(), "{verified:?}");
    stand_in(&site.dovecot, "post", "Public.team", [&messages[0], &messages[1]]);
}

/// Its account may write and not look: what is in doubt there goes to INBOX, for it could not be
/// looked for at any later time either.
#[test]
fn a_mailbox_that_may_not_be_looked_into_gets_copies_but_none_in_doubt() {
    let (_public, site) = with_public(&[("drop", "li")]);
    let config = site.config("etc", TEAM);
    let (message, to) = (from_lisa("drop"), ["-d", "drop@mail.axial.net"]);
    let said = delivered(&config, &to, &message);
    assert!(said.starts_with("stored account=post mailbox=Public/drop uid="), "{said}");
    stand_in(&site.dovecot, "keeper", "Public/drop", [&message]);
    site.forget_receipts("mailbox = 'Public/drop'");
    for how in ["stored", "already there"] {
        let said = delivered(&config, &to, &message);
        assert!(said.starts_with(&format!("{how} account=post mailbox=INBOX uid=")), "{said}");
        assert!(said.trim_end().ends_with(" instead_of=Public/drop"), "{said}");
        stand_in(&site.dovecot, "post", "INBOX", [&message]);
    }
}

#[test]
fn by_imap_a_detail_is_a_mailbox_that_is_there_or_inbox() {
    let site = Site::with_servers();
    let config = site.config("etc", BY_DETAIL);
    let large = [from_lisa("large"), b"x".repeat(1_200_000), b"\n".to_vec()].concat();
    for (n, message) in [from_lisa("small"), large].into_iter().enumerate() {
        let said = delivered(&config, &["-d", LISTS], &message);
        assert!(said.contains("account=doug mailbox=INBOX uid="), "{said}");
        assert!(said.trim_end().ends_with("instead_of=lists"), "{said}");
        let said = delivered(&config, &["-d", DOUG], &message);
        assert!(said.contains("already there account=doug mailbox=INBOX uid="), "{said}");
        assert_eq!(site.dovecot.count("doug", "INBOX"), n + 1);
    }
    let mut imap = site.dovecot.session("doug");
    let listed = imap.command("LIST \"\" *").expect("LIST").untagged;
    assert!(listed.iter().any(|line| line.text.ends_with(" INBOX")), "{listed:?}");
    assert!(!listed.iter().any(|line| line.text.contains("lists")), "{listed:?}");
    for name in ["lists", "Gr&APYA3w-e"] {
        assert!(imap.command(&format!("CREATE {name}")).expect("CREATE").is_ok());
    }
    let message = from_lisa("there");
    let to = ["-d", LISTS, "-d", DOUG, "-d", "doug+Größe@mail.axial.net"];
    delivered(&config, &to, &message);
    stand_in(&site.dovecot, "doug", "lists", [&message]);
    stand_in(&site.dovecot, "doug", "Gr&APYA3w-e", [&message]);
    assert_eq!(site.dovecot.count("doug", "INBOX"), 3);
}

#[test]
fn by_imap_two_hosts_race_for_one_copy() {
    let site = Site::with_servers();
    let hosts = [site.config("host-a", BY_DETAIL), site.config("host-b", BY_DETAIL)];
    delivered(&hosts[0], &["-d", DOUG], &from_lisa("first"));
    for round in 0..5 {
        let message = from_lisa(&format!("race{round}"));
        let started: Vec<_> = [DOUG, LISTS, LISTS]
            .iter()
            .enumerate()
            .map(|(n, to)| start_delivery(&hosts[n % 2], &["-d", to]))
            .collect();
        for child in started {
            let output = finish_delivery(child, &message);
            assert!(output.status.success(), "{output:?}");
        }
        assert_eq!(site.dovecot.count("doug", "INBOX"), round + 2);
    }
}

#[test]
fn hosts_that_file_otherwise_deliver_nothing() {
    let site = Site::embedded();
    let config = |name: &str, more: &str| site.config(name, more);
    delivered(&config("a", BY_DETAIL), &["-d", DOUG], &from_lisa("one"));
    let without = BY_DETAIL.replace("detail = \"mailbox\"\n", "");
    for (name, more, key) in
        [("b", without, "directory.detail"), ("c", format!("{BY_DETAIL}{JUNK}"), "file")]
    {
        let output = deliver(&config(name, &more), &["-d", DOUG], &from_lisa("two"));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(75), "{said}");
        assert!(said.starts_with("4.3.5 ") && said.contains(&format!("{key} is ")), "{said}");
    }
}

/// Mailboxes of last night, in which that of the detail is there again.
#[test]
fn what_stood_in_inbox_instead_is_replayed_into_inbox_alone() {
    let site = Site::embedded();
    site.remember_for_ever();
    let config = site.config("etc", &format!("{BY_DETAIL}[ledger]\nkeep_raw = true\n"));
    delivered(&config, &["-d", LISTS], &from_lisa("kept"));
    for file in fs::read_dir(site.root.join("mail/doug/Maildir/new")).expect("new") {
        fs::remove_file(file.expect("a file").path()).expect("gone");
    }
    make_folder(&site, "doug", ".lists");
    assert!(run(&config, &["forget", "--since", "1h"]).status.success());
    for _ in 0..2 {
        let replayed = run(&config, &["replay", "--from-ledger"]);
        assert!(replayed.status.success(), "{replayed:?}");
        assert_eq!(counts(&site), (1, 0));
    }
}

#[test]
fn what_the_ledger_keeps_whole_is_replayed_to_where_it_belongs() {
    let site = Site::embedded();
    site.remember_for_ever();
    let config = site.config("etc", &format!("{BY_DETAIL}[ledger]\nkeep_raw = true\n"));
    delivered(&config, &["-d", LISTS], &from_lisa("kept"));
    // As after a crash before INBOX was claimed.
    site.sqlite().execute("DELETE FROM onedrop_copy WHERE mailbox = 'INBOX'", []).expect("gone");
    for file in fs::read_dir(site.root.join("mail/doug/Maildir/new")).expect("new") {
        fs::remove_file(file.expect("a file").path()).expect("gone");
    }
    for _ in 0..2 {
        let replayed = run(&config, &["replay", "--from-ledger"]);
        assert!(replayed.status.success(), "{replayed:?}");
        assert_eq!(counts(&site), (1, 0));
    }
}
