//! Whose mailboxes a session shows: a server that can be made to behave in every way.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::thread;

use crate::imap_script::{LOGIN, ScriptedServer, listen, soon};
use onedrop::store::{Access, MailboxOwner, StoreError};

/// How the server behaves.
#[derive(Clone, Copy)]
struct Ways {
    /// It acts for the user that logs in, whatever account is named.
    ignores: bool,
    /// What it says to the user itself; empty: it lets it in.
    to_itself: &'static str,
    /// UIDVALIDITY of an INBOX, by how many times one was opened before; 0: there is none.
    validity: fn(user: &str, opened: u32) -> u32,
    /// What it says to NAMESPACE, and what the mailbox's name begins with then.
    namespaces: (&'static str, &'static str),
    create: &'static str,
    lists: bool,
    delete: &'static str,
}

const PLAIN: Ways = Ways {
    ignores: false,
    to_itself: "",
    validity: |_, _| 7,
    namespaces: ("((\"INBOX.\" \".\")) NIL NIL", "INBOX."),
    create: "OK",
    lists: true,
    delete: "OK",
};

#[derive(Default)]
struct Mailboxes {
    opened: u32,
    /// Mailboxes with their users.
    made: BTreeSet<(String, String)>,
    logins: Vec<&'static str>,
}

/// Asks whose mailboxes doug's session shows; returns also what the server has at the end.
fn ask(ways: Ways) -> (Result<MailboxOwner, StoreError>, Mailboxes) {
    let (listener, store) = listen(2, |_| {});
    let mailboxes = Arc::<Mutex<Mailboxes>>::default();
    let served = Arc::clone(&mailboxes);
    thread::spawn(move || {
        loop {
            let mut server = ScriptedServer::accept(&listener);
            let mailboxes = Arc::clone(&served);
            thread::spawn(move || serve(&mut server, ways, &mailboxes));
        }
    });
    let owner = store.whose_mailboxes("doug", soon());
    let mailboxes = std::mem::take(&mut *mailboxes.lock().expect("the server's end"));
    (owner, mailboxes)
}

fn serve(server: &mut ScriptedServer, ways: Ways, mailboxes: &Mutex<Mailboxes>) {
    server.say("* OK [CAPABILITY IMAP4rev1 SASL-IR NAMESPACE] ready\r\n");
    let mut user = "";
    loop {
        let line = server.line();
        if line.ends_with(" (the end)") {
            return;
        }
        let mut words = line.splitn(3, ' ');
        let [Some(tag), Some(command), rest] = [(); 3].map(|()| words.next()) else { return };
        let rest = rest.unwrap_or_default();
        let mut mailboxes = mailboxes.lock().expect("the mailboxes");
        let mailbox = |name: &str| (user.to_owned(), name.to_owned());
        let answer = match command {
            "AUTHENTICATE" => {
                let named = if rest.ends_with(LOGIN) { "doug" } else { "mda" };
                mailboxes.logins.push(named);
                user = if ways.ignores { "mda" } else { named };
                match (named, ways.to_itself) {
                    ("mda", refusal) if !refusal.is_empty() => refusal,
                    _ => "OK [CAPABILITY IMAP4rev1 NAMESPACE] in",
                }
            }
            "EXAMINE" => {
                mailboxes.opened += 1;
                let validity = (ways.validity)(user, mailboxes.opened);
                server.say(format!("* OK [UIDVALIDITY {validity}] fine\r\n"));
                if validity == 0 { "NO [NONEXISTENT] none" } else { "OK" }
            }
            "NAMESPACE" => {
                server.say(format!("* NAMESPACE {}\r\n", ways.namespaces.0));
                "OK"
            }
            "CREATE" => {
                assert_eq!(user, "mda", "nothing is made in an account");
                if ways.create == "OK" {
                    mailboxes.made.insert(mailbox(rest));
                }
                ways.create
            }
            "LIST" => {
                let name = rest.strip_prefix("\"\" ").expect("no reference");
                assert!(name.starts_with(&format!("\"{}onedrop-", ways.namespaces.1)), "{name}");
                if ways.lists && mailboxes.made.contains(&mailbox(name)) {
                    server.say(format!("* LIST () \".\" {name}\r\n"));
                }
                "OK"
            }
            "DELETE" => {
                if ways.delete == "OK" {
                    mailboxes.made.remove(&mailbox(rest));
                }
                ways.delete
            }
            "LOGOUT" => return,
            other => panic!("{other}"),
        };
        drop(mailboxes);
        server.say(format!("{tag} {answer}\r\n"));
    }
}

/// What must be found.
#[derive(Clone, Copy, Debug)]
enum Found {
    Accounts,
    Users,
    /// The server's set-up does not show it.
    Setup,
    /// It cannot be found out now.
    NotStored,
}
use Found::{Accounts, NotStored, Setup, Users};

/// Asks; it must come to that for this reason, and leave no mailbox.
fn is(expected: Found, reason: &str, ways: Ways) -> Mailboxes {
    let (owner, mailboxes) = ask(ways);
    let why = match (expected, &owner) {
        (Accounts, Ok(MailboxOwner::Accounts(why))) | (Users, Ok(MailboxOwner::Users(why))) => why,
        (Setup, Err(StoreError::Setup(why))) | (NotStored, Err(StoreError::NotStored(why))) => why,
        _ => panic!("{expected:?}: {owner:?}"),
    };
    assert!(why.contains(reason), "{reason}: {why}");
    assert!(ways.delete != "OK" || mailboxes.made.is_empty(), "{:?}", mailboxes.made);
    mailboxes
}

#[test]
fn a_user_that_may_not_log_in_for_itself_is_proof_between_two_logins() {
    for to_itself in ["NO [AUTHENTICATIONFAILED] no", "NO [authorizationfailed] no"] {
        let mailboxes = is(Accounts, "not for itself", Ways { to_itself, ..PLAIN });
        assert_eq!(mailboxes.logins, ["doug", "mda", "doug"]);
    }
    // By an ignoring server both logins are the same one; so these say nothing about that.
    for ignores in [false, true] {
        for to_itself in ["NO no", "BAD what", "NO [EXPIRED] old"] {
            is(Setup, "account of its own", Ways { to_itself, ignores, ..PLAIN });
        }
        is(NotStored, "later", Ways { to_itself: "NO [UNAVAILABLE] later", ignores, ..PLAIN });
    }
}

#[test]
fn inboxes_with_numbers_of_their_own_are_proof() {
    let by_length = Ways { validity: |user, _| user.len() as u32, ..PLAIN };
    is(Accounts, "uidvalidity 4, that of mda 3", by_length);
    let only_dougs = Ways { validity: |user, _| if user == "doug" { 7 } else { 0 }, ..PLAIN };
    is(Accounts, "of mda none", only_dougs);
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
        is(Accounts, "did not show", ways);
        is(Users, "very mailbox", Ways { ignores: true, ..ways });
    }
}

#[test]
fn what_proves_nothing_is_an_error() {
    for ignores in [false, true] {
        let may_not = Ways { create: "NO [NOPERM] no", ignores, ..PLAIN };
        is(Setup, "cannot make a mailbox", may_not);
        is(Setup, "does not list", Ways { lists: false, ignores, ..PLAIN });
        is(NotStored, "later", Ways { create: "NO [UNAVAILABLE] later", ignores, ..PLAIN });
    }
}

#[test]
fn a_mailbox_that_cannot_be_deleted_changes_nothing() {
    let mailboxes = is(Accounts, "did not show", Ways { delete: "NO no", ..PLAIN });
    assert_eq!(mailboxes.made.len(), 1);
}

#[test]
fn the_mailbox_is_in_the_users_own_namespace() {
    for namespaces in [
        ("((\"\" \"/\")) ((\"user/\" \"/\")) NIL", ""),
        ("((\"mail/\" \"/\")) NIL NIL", "mail/"),
        ("NIL NIL NIL", ""),
        ("((\"a\\\\\" \".\"))", "a\\\\"),
        ("((\"a", ""),
        ("", ""),
    ] {
        is(Accounts, "did not show", Ways { namespaces, ..PLAIN });
    }
}

#[test]
fn the_users_own_account_is_known_by_its_name() {
    for (account, user, is_own) in [
        ("mda", "mda", true),
        ("MDA", "mda", true),
        ("mda", "mda@mail.axial.net", true),
        ("mda@a", "MDA", true),
        ("lisa", "mda", false),
        ("mda@a", "mda@b", false),
        ("mda2", "mda", false),
        ("", "mda", false),
    ] {
        let (listener, store) = listen(1, |settings| settings.user = user.to_owned());
        // No other account would get any further.
        drop(listener);
        let refused = store.whose_mailboxes(account, soon()).expect_err("nobody to ask");
        let says_so = refused.to_string().contains("is the account of");
        assert_eq!(says_so, is_own, "{account} {user}: {refused}");
    }
}
