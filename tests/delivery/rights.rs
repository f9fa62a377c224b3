//! The least that the mail server must let Onedrop do: Dovecot's ACL plugin holds the master user
//! to what `conf/dovecot/onedrop.acl` says, whoever it acts for.

use std::process::Output;

use crate::support::dovecot::Dovecot;
use crate::support::imap::Imap;
use crate::support::site::{STORY, Site, deliver, delivered, run};
use crate::support::{TempRoot, fixture, fixture_text};

const RECIPIENTS: [&str; 4] = ["-d", "scuba@mail.axial.net", "-d", "doug@mail.axial.net"];
const LISA: [&str; 2] = ["-f", "lisa@gmail.com"];

/// A Dovecot in which these rights count for the master user.
fn dovecot(root: &TempRoot, rights: &str) -> Dovecot {
    let file = root.write("onedrop.acl", rights);
    crate::support::set_mode(root, 0o755);
    crate::support::set_mode(&file, 0o644);
    Dovecot::start_with(
        &fixture_text("conf/dovecot/onedrop-rights.conf")
            .replace("/etc/dovecot/onedrop.acl", &file.display().to_string()),
    )
}

fn shipped() -> String {
    fixture_text("conf/dovecot/onedrop.acl")
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// A site whose Lisa has made a Sent by herself.
fn site(root: &TempRoot, rights: &str) -> Site {
    let site = Site::with(dovecot(root, rights));
    for folder in ["Sent", "Private"] {
        let made = own(&site, "lisa").command(&format!("CREATE {folder}")).expect("an answer");
        assert!(made.is_ok(), "{made:?}");
    }
    site
}

/// A session of the account's owner, who needs no master user.
fn own(site: &Site, account: &str) -> Imap {
    let mut session = Imap::connect(site.dovecot.imap_port()).expect("a session");
    assert!(may(&mut session, &format!("LOGIN {account} user-secret")), "{account}");
    session
}

fn as_master(site: &Site, account: &str) -> Imap {
    let (port, dovecot) = (site.dovecot.imap_port(), &site.dovecot);
    let session = Imap::login_as(port, account, dovecot.master_user(), dovecot.password());
    session.expect("a session")
}

/// Whether the server does it.
fn may(session: &mut Imap, command: &str) -> bool {
    session.command(command).expect("an answer").is_ok()
}

fn count(site: &Site, account: &str, mailbox: &str) -> usize {
    let mut session = own(site, account);
    let answer = session.command(&format!("STATUS {mailbox} (MESSAGES)")).expect("an answer");
    let text = format!("{answer:?}");
    let number = text.split("MESSAGES ").nth(1).expect("a number");
    number.chars().take_while(char::is_ascii_digit).collect::<String>().parse().expect("a number")
}

#[test]
fn the_shipped_rights_are_enough_and_let_it_do_nothing_else() {
    let root = TempRoot::new();
    let site = site(&root, &shipped());
    let config = site.config("host", &STORY.replace("authenticated", "header"));
    let message = fixture("fixtures/mail/welcome.eml");
    let args = [&LISA[..], &RECIPIENTS].concat();
    let said = delivered(&config, &args, &message);
    assert_eq!(said.matches("stored account=").count(), 3, "{said}");
    // In doubt, it looks, and finds them.
    site.forget_receipts("true");
    let said = delivered(&config, &args, &message);
    assert_eq!(said.matches("found account=").count(), 3, "{said}");
    for (account, mailbox) in [("scuba", "INBOX"), ("doug", "INBOX"), ("lisa", "Sent")] {
        assert_eq!(count(&site, account, mailbox), 1, "{account} {mailbox}");
    }
    let mut lisa = own(&site, "lisa");
    assert!(may(&mut lisa, "SELECT Sent"));
    let flags = format!("{:?}", lisa.command("FETCH 1 FLAGS"));
    assert!(flags.contains("\\\\Seen"), "{flags}");
    let check = run(&config, &["check", "--account", "lisa"]);
    assert!(!told(&check).contains("error"), "{}", told(&check));

    // With the master user's password in the wrong hands: no other mailbox, and nothing is deleted.
    let mut thief = as_master(&site, "lisa");
    let seen = format!("{:?}", thief.command("LIST \"\" *"));
    assert!(seen.contains("INBOX") && !seen.contains("Private"), "{seen}");
    for denied in ["SELECT Private", "CREATE Mine", "DELETE Sent", "RENAME Sent Gone"] {
        assert!(!may(&mut thief, denied), "{denied}");
    }
    assert!(!may(&mut thief, "SETACL Sent user=mda lrwstipekxa"));
    let mut thief = as_master(&site, "scuba");
    assert!(may(&mut thief, "SELECT INBOX"));
    drop(thief.command("STORE 1 +FLAGS (\\Deleted \\Seen)"));
    drop(thief.command("EXPUNGE"));
    assert_eq!(count(&site, "scuba", "INBOX"), 1);
    assert!(may(&mut own(&site, "scuba"), "CREATE Any"), "an owner lost rights");
}

/// How a delivery to Scuba ends, that Lisa has written, with a right less; it writes her Sent, too.
fn without(right: &str, in_doubt: bool) -> (Option<i32>, String) {
    let root = TempRoot::new();
    let (line, fewer) = right.split_once(" -> ").expect("a change");
    assert!(shipped().contains(line), "{line}");
    let site = site(&root, &shipped().replace(line, fewer));
    let config = site.config("host", &STORY.replace("authenticated", "header"));
    let message = fixture("fixtures/mail/welcome.eml");
    let args = [&LISA[..], &RECIPIENTS[..2]].concat();
    if in_doubt {
        assert!(deliver(&config, &args, &message).status.success());
        site.forget_receipts("true");
    }
    let output = deliver(&config, &args, &message);
    let sent = own(&site, "lisa").fetch_all("Sent", "FLAGS");
    (output.status.code(), format!("{}{sent:?}", told(&output)))
}

#[test]
fn each_right_is_needed() {
    // Nothing is written without i, and nothing in doubt is looked for without r: Postfix keeps the
    // mail, and gets the reason.
    for (right, in_doubt) in [
        ("INBOX user=mda lri -> INBOX user=mda lr", false),
        ("INBOX user=mda lri -> INBOX user=mda li", true),
    ] {
        let (code, said) = without(right, in_doubt);
        assert_eq!(code, Some(75), "{right}: {said}");
        assert!(
            said.contains("4.3.0 store: ") && said.contains("Permission denied"),
            "{right}: {said}"
        );
    }
    // A Sent that refuses holds up no recipient's mail.
    let (code, said) = without("Sent user=mda lris -> Sent user=mda lrs", false);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("no copy yet in account=lisa mailbox=Sent, kept for later"), "{said}");
    // Without s the copy is there as unread.
    let (code, said) = without("Sent user=mda lris -> Sent user=mda lri", false);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("stored account=lisa mailbox=Sent") && !said.contains("Seen"), "{said}");
}

#[test]
fn what_is_too_many_is_removed_only_with_the_rights_to_delete() {
    let root = TempRoot::new();
    let message = fixture("fixtures/mail/welcome.eml");
    for (rights, exit) in [("lri", 1), ("lrite", 0)] {
        let site = site(
            &root,
            &shipped().replace("INBOX user=mda lri", &format!("INBOX user=mda {rights}")),
        );
        let config = site.config("host", "");
        let args = ["-f", "", "-d", "scuba@mail.axial.net"];
        delivered(&config, &args, &message);
        double(&site);
        let verify = run(&config, &["verify", "--repair"]);
        assert_eq!(verify.status.code(), Some(exit), "{rights}: {}", told(&verify));
        let left = count(&site, "scuba", "INBOX");
        assert_eq!(left, if exit == 0 { 1 } else { 2 }, "{rights}: {}", told(&verify));
    }
}

/// A second copy in Scuba's INBOX, as a server leaves it that executed an append late.
fn double(site: &Site) {
    let mut scuba = as_master(site, "scuba");
    assert!(may(&mut scuba, "SELECT INBOX") && may(&mut scuba, "COPY 1 INBOX"));
    let ago = "placed_at = placed_at - interval '1 hour'";
    site.postgres.psql(&format!("UPDATE onedrop_copy SET epoch = 2, {ago}, settled_at = NULL"));
}
