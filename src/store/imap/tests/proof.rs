//! Whose mailboxes a session shows: a server that can be made to behave in every way.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use super::*;
use crate::store::MailboxOwner;

/// How the server behaves.
#[derive(Clone, Copy)]
struct Ways {
    /// It acts for the user that logs in, whatever account is named.
    ignores: bool,
    /// What it says to the user itself; empty: it lets it in.
    to_itself: &'static str,
    /// UIDVALIDITY of an INBOX, by how many times one was opened before; 0: there is none.
    validity: fn(user: &str, opened: u32) -> u32,
    create: &'static str,
    lists: bool,
    delete: &'static str,
}

const PLAIN: Ways = Ways {
    ignores: false,
    to_itself: "",
    validity: |_, _| 7,
    create: "OK",
    lists: true,
    delete: "OK",
};

#[derive(Default)]
struct Mailboxes {
    opened: u32,
    /// Mailboxes with their users.
    made: BTreeSet<(String, String)>,
    logins: Vec<String>,
}

/// What [`whose`] found, and the server's end.
struct ProofTest {
    whose: Result<MailboxOwner, StoreError>,
    mailboxes: Mailboxes,
}

fn whose(ways: Ways) -> ProofTest {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mailboxes = Arc::new(Mutex::new(Mailboxes::default()));
    let served = Arc::clone(&mailboxes);
    thread::spawn(move || {
        loop {
            let mut peer = Peer::accept(&listener);
            let mailboxes = Arc::clone(&served);
            thread::spawn(move || serve(&mut peer, ways, &mailboxes));
        }
    });
    let whose = ImapStore::new(settings(port), LIMITS).whose_mailboxes("doug", soon());
    let mailboxes = std::mem::take(&mut *mailboxes.lock().unwrap());
    ProofTest { whose, mailboxes }
}

fn serve(peer: &mut Peer, ways: Ways, mailboxes: &Mutex<Mailboxes>) {
    peer.say("* OK [CAPABILITY IMAP4rev1 SASL-IR NAMESPACE] ready\r\n");
    let mut user = String::new();
    loop {
        let line = peer.line();
        let Some((tag, command)) = line.split_once(' ') else { return };
        let mut mailboxes = mailboxes.lock().unwrap();
        let answer = match command.split(' ').next().unwrap() {
            "AUTHENTICATE" => {
                let named = if command.ends_with("ZG91ZwBtZGEAc2VjcmV0") { "doug" } else { "mda" };
                mailboxes.logins.push(named.to_owned());
                user = if ways.ignores { "mda" } else { named }.to_owned();
                match (named, ways.to_itself) {
                    ("mda", refusal) if !refusal.is_empty() => refusal.to_owned(),
                    _ => "OK [CAPABILITY IMAP4rev1 NAMESPACE] in".to_owned(),
                }
            }
            "EXAMINE" => {
                mailboxes.opened += 1;
                match (ways.validity)(&user, mailboxes.opened) {
                    0 => "NO [NONEXISTENT] none".to_owned(),
                    validity => {
                        peer.say(format!("* OK [UIDVALIDITY {validity}] fine\r\n"));
                        "OK".to_owned()
                    }
                }
            }
            "NAMESPACE" => {
                peer.say("* NAMESPACE ((\"INBOX.\" \".\")) NIL NIL\r\n");
                "OK".to_owned()
            }
            "CREATE" => {
                assert_eq!(user, "mda", "nothing is made in an account");
                if ways.create == "OK" {
                    mailboxes.made.insert((user.clone(), command["CREATE ".len()..].to_owned()));
                }
                ways.create.to_owned()
            }
            "LIST" => {
                let name = command["LIST \"\" ".len()..].to_owned();
                assert!(name.starts_with("\"INBOX.onedrop-"), "{name}");
                if ways.lists && mailboxes.made.contains(&(user.clone(), name.clone())) {
                    peer.say(format!("* LIST () \".\" {name}\r\n"));
                }
                "OK".to_owned()
            }
            "DELETE" => {
                if ways.delete == "OK" {
                    mailboxes.made.remove(&(user.clone(), command["DELETE ".len()..].to_owned()));
                }
                ways.delete.to_owned()
            }
            "LOGOUT" => return,
            other => panic!("{other}"),
        };
        drop(mailboxes);
        peer.say(format!("{tag} {answer}\r\n"));
    }
}

fn counts(ways: Ways, by: &str) -> Mailboxes {
    let told = whose(ways);
    assert!(
        matches!(&told.whose, Ok(MailboxOwner::Accounts(why)) if why.contains(by)),
        "{by}: {:?}",
        told.whose
    );
    assert!(told.mailboxes.made.is_empty(), "{:?}", told.mailboxes.made);
    told.mailboxes
}

fn cannot_be_told(ways: Ways, why: &str) {
    let told = whose(ways);
    assert!(
        matches!(&told.whose, Err(StoreError::Setup(text)) if text.contains(why)),
        "{why}: {:?}",
        told.whose
    );
    assert!(told.mailboxes.made.is_empty(), "{:?}", told.mailboxes.made);
}

#[test]
fn a_user_that_may_not_log_in_for_itself_is_proof_between_two_logins() {
    for refusal in ["NO [AUTHENTICATIONFAILED] no", "NO [authorizationfailed] no"] {
        let mailboxes = counts(Ways { to_itself: refusal, ..PLAIN }, "not for itself");
        assert_eq!(mailboxes.logins, ["doug", "mda", "doug"]);
    }
    // By an ignoring server both logins are the same one; so these say nothing about that.
    for ignores in [false, true] {
        for refusal in ["NO no", "BAD what", "NO [EXPIRED] old"] {
            cannot_be_told(Ways { to_itself: refusal, ignores, ..PLAIN }, "account of its own");
        }
        let told = whose(Ways { to_itself: "NO [UNAVAILABLE] later", ignores, ..PLAIN });
        assert!(
            matches!(&told.whose, Err(StoreError::NotStored(why)) if why.contains("later")),
            "{:?}",
            told.whose
        );
    }
}

#[test]
fn inboxes_with_numbers_of_their_own_are_proof() {
    counts(Ways { validity: |user, _| user.len() as u32, ..PLAIN }, "uidvalidity 4, that of mda 3");
    counts(Ways { validity: |user, _| if user == "doug" { 7 } else { 0 }, ..PLAIN }, "of mda none");
}

#[test]
fn numbers_that_are_made_up_for_each_session_prove_nothing() {
    for ways in [
        Ways { validity: |_, opened| opened, ..PLAIN },
        Ways { validity: |_, opened| if opened < 2 { 8 } else { 9 }, ..PLAIN },
        Ways { validity: |_, _| 0, ..PLAIN },
        Ways { validity: |user, _| if user == "doug" { 0 } else { 7 }, ..PLAIN },
        PLAIN,
    ] {
        counts(ways, "did not show");
        let told = whose(Ways { ignores: true, ..ways });
        assert!(
            matches!(&told.whose, Ok(MailboxOwner::Users(why)) if why.contains("very mailbox")),
            "{:?}",
            told.whose
        );
        assert!(told.mailboxes.made.is_empty());
    }
}

#[test]
fn what_proves_nothing_is_an_error() {
    for ignores in [false, true] {
        cannot_be_told(
            Ways { create: "NO [NOPERM] no", ignores, ..PLAIN },
            "cannot make a mailbox",
        );
        cannot_be_told(Ways { lists: false, ignores, ..PLAIN }, "does not list");
        let told = whose(Ways { create: "NO [UNAVAILABLE] later", ignores, ..PLAIN });
        assert!(
            matches!(&told.whose, Err(StoreError::NotStored(why)) if why.contains("later")),
            "{:?}",
            told.whose
        );
    }
}

#[test]
fn a_mailbox_that_cannot_be_deleted_changes_nothing() {
    let told = whose(Ways { delete: "NO no", ..PLAIN });
    assert!(matches!(told.whose, Ok(MailboxOwner::Accounts(_))), "{:?}", told.whose);
    assert_eq!(told.mailboxes.made.len(), 1);
}
