//! How sessions with an IMAP server begin, against real servers: certificates, whose fault a
//! refused login is, and whose mailboxes a session shows.

use std::fs;
use std::time::{Duration, Instant};

use crate::courier::Courier;
use crate::cyrus::Cyrus;
use crate::imap_script;
use crate::support::TempRoot;
use crate::support::dovecot::{Dovecot, users_in, write_users};
use onedrop::deadline::Deadline;
use onedrop::directory::Destination;
use onedrop::login::LoginForm;
use onedrop::net::pool::Limits;
use onedrop::store::imap::{ImapSettings, ImapStore, Tls};
use onedrop::store::{Access, Need, Store};
use onedrop::store::{MailboxOwner, Receipt, StoreError};

fn settings(dovecot: &Dovecot) -> ImapSettings {
    ImapSettings {
        port: dovecot.imap_port(),
        user: dovecot.master_user().to_owned(),
        password: dovecot.password().into(),
        ..like_dovecots()
    }
}

/// With the user and password that all servers here have.
fn like_dovecots() -> ImapSettings {
    ImapSettings { password: "store-secret".into(), ..imap_script::settings(0) }
}

fn store_with(settings: ImapSettings) -> ImapStore {
    let idle = Duration::from_secs(60);
    ImapStore::new(settings, Limits { used: 8, per_key: 1, kept: 8, idle })
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

#[test]
fn certificates_that_could_not_be_read_are_read_at_the_next_login() {
    let (dovecot, folder) = (Dovecot::shared(), TempRoot::new());
    let ca_file = folder.join("ca.pem");
    let implicit = ImapSettings {
        host: "localhost".to_owned(),
        port: dovecot.imaps_port(),
        tls: Tls::Implicit,
        ca_file: Some(ca_file.clone()),
        ..settings(&dovecot)
    };
    let store = store_with(implicit);
    let refused = store.check("doug", soon()).expect_err("there are no certificates").to_string();
    assert!(refused.contains("CA file") && refused.contains("ca.pem"), "{refused}");
    fs::write(&ca_file, "-----BEGIN CERTIFICATE-----\nnot yet").expect("half a file");
    let refused = store.check("doug", soon()).expect_err("half a file").to_string();
    assert!(refused.contains("ca.pem") || refused.contains("no root certificates"), "{refused}");
    fs::copy(dovecot.ca_file(), &ca_file).expect("the certificate");
    store.check("doug", soon()).expect("the certificates are there now");
}

/// Access control lists; what a test says of an account's mailbox stands in its `dovecot-acl`.
const ACL: &str = "mail_plugins = $mail_plugins acl\n\
     protocol imap {\n  mail_plugins = $mail_plugins imap_acl\n}\n\
     plugin {\n  acl = vfile\n  acl_user = %u\n}\n";

fn append(store: &ImapStore, destination: &Destination) -> Result<Receipt, StoreError> {
    let letter = imap_script::letter(imap_script::LETTER);
    let copy = imap_script::copy_of(&letter);
    let deadline = Deadline::new(Duration::from_secs(30), Duration::from_secs(10));
    store.reserve(destination, copy, Need::Write, &deadline)?.expect("a slot").append()
}

#[test]
fn a_mailbox_without_the_right_to_write_refuses_by_itself() {
    let dovecot = Dovecot::start_with(ACL);
    let store = store_with(settings(&dovecot));
    let sent = Destination::sent("lisa", "Sent");
    append(&store, &sent).expect("there is no list yet");
    let folder = dovecot.maildir("lisa").join(".Sent");
    for rights in ["lrw", ""] {
        fs::write(folder.join("dovecot-acl"), format!("owner {rights}\n")).expect("a list");
        let store = store_with(settings(&dovecot));
        let refused = append(&store, &sent);
        assert!(matches!(&refused, Err(StoreError::Refused(_))), "{rights:?}: {refused:?}");
        append(&store, &Destination::inbox("lisa")).expect("the INBOX has no list");
    }
    fs::remove_file(folder.join("dovecot-acl")).expect("the list");
    append(&store_with(settings(&dovecot)), &sent).expect("the right is back");
    assert_eq!(dovecot.count("lisa", "Sent"), 2);
}

#[test]
fn a_mailbox_that_is_not_there_and_not_to_be_made_refuses_by_itself() {
    let dovecot = Dovecot::shared();
    let store = store_with(ImapSettings { create_mailboxes: false, ..settings(&dovecot) });
    let refused = append(&store, &Destination::sent("lisa", "Sent"));
    assert!(
        matches!(&refused, Err(StoreError::Refused(why)) if why.contains("create_mailboxes")),
        "{refused:?}"
    );
    append(&store, &Destination::inbox("lisa")).expect("the INBOX is there");
}

/// Users in a passwd(5)-like file; those in `accounts` exist.
fn users_in_a_file(folder: &TempRoot, accounts: &[&str]) -> String {
    let file = folder.join("users");
    write_users(&file, accounts);
    users_in(&file)
}

#[test]
fn an_account_that_is_not_there_is_told_from_a_wrong_password() {
    let folder = TempRoot::new();
    let dovecot =
        Dovecot::start_with_users(&users_in_a_file(&folder, &["doug", "scuba", "rig-probe"]));
    let store = store_with(settings(&dovecot));
    let unknown = append(&store, &Destination::inbox("lisa"));
    assert!(matches!(&unknown, Err(StoreError::NotStored(_))), "nobody else is known: {unknown:?}");
    append(&store, &Destination::inbox("doug")).expect("an account");
    let closed = append(&store, &Destination::inbox("lisa"));
    assert!(
        matches!(&closed, Err(StoreError::NoAccount(why)) if why.contains("doug")),
        "{closed:?}"
    );
    // What is remembered is no proof.
    let again = append(&store, &Destination::inbox("lisa"));
    assert!(
        matches!(&again, Err(StoreError::NotStored(why)) if why.contains("not asked again yet")),
        "{again:?}"
    );
    // Doug's session is kept; but his account is gone as well, so nothing is proven.
    write_users(&folder.join("users"), &["scuba"]);
    dovecot.wait_until_unknown("doug");
    let unsure = append(&store, &Destination::inbox("zoe"));
    assert!(matches!(&unsure, Err(StoreError::Setup(_))), "{unsure:?}");
}

/// Whose mailboxes a session for `account` shows, and that finding out leaves no trace in the
/// account, nor a mailbox.
fn whose(dovecot: &Dovecot, settings: ImapSettings, account: &str) -> MailboxOwner {
    let whose = store_with(settings).whose_mailboxes(account, soon()).expect("it can be told");
    let left = dovecot.session(account).command("LIST \"\" onedrop*").expect("LIST");
    assert!(left.is_ok() && left.untagged.is_empty(), "{left:?}");
    whose
}

fn counts(whose: &MailboxOwner, how: &str) {
    assert!(matches!(whose, MailboxOwner::Accounts(why) if why.contains(how)), "{whose:?}");
}

const NOT_FOR_ITSELF: &str = "not for itself";
const UIDVALIDITY: &str = "uidvalidity";
const MAILBOX: &str = "did not show";

#[test]
fn the_account_counts_where_the_master_user_is_none() {
    let folder = TempRoot::new();
    let dovecot =
        Dovecot::start_with_users(&users_in_a_file(&folder, &["lisa", "doug", "rig-probe"]));
    counts(&whose(&dovecot, settings(&dovecot), "lisa"), NOT_FOR_ITSELF);
    let unknown = store_with(settings(&dovecot)).whose_mailboxes("ghost", soon());
    assert!(unknown.is_err(), "{unknown:?}");
}

#[test]
fn the_account_counts_where_every_name_is_an_account() {
    let dovecot = Dovecot::shared();
    counts(&whose(&dovecot, settings(&dovecot), "lisa"), NOT_FOR_ITSELF);
    let master = dovecot.master_user();
    let itself = store_with(settings(&dovecot)).whose_mailboxes(master, soon());
    assert!(
        matches!(&itself, Err(StoreError::Setup(why)) if why.contains(&format!("{master} itself"))),
        "{itself:?}"
    );
}

/// Users in an SQL database, the master user among them.
fn users_in_a_database(folder: &TempRoot) -> String {
    let (database, file) = (folder.join("users.db"), folder.join("sql.conf"));
    let connection = rusqlite::Connection::open(&database).expect("a database");
    let rows =
        ["lisa", "doug", "rig-probe"].map(|name| format!("('{name}', 'user-secret')")).join(", ");
    connection
        .execute_batch(&format!(
            "CREATE TABLE users (name TEXT PRIMARY KEY, password TEXT NOT NULL); \
             INSERT INTO users VALUES {rows}, ('mda', 'store-secret');"
        ))
        .expect("users");
    drop(connection);
    crate::support::set_mode(&database, 0o644);
    let conf = format!(
        "driver = sqlite\nconnect = {}\ndefault_pass_scheme = PLAIN\n\
         password_query = SELECT name AS user, password FROM users WHERE name = '%u'\n\
         user_query = SELECT name AS user FROM users WHERE name = '%u'\n",
        database.display()
    );
    fs::write(&file, conf).expect("sql.conf");
    let args = format!("driver = sql\n  args = {}", file.display());
    let fields = "default_fields = uid=@USER@ gid=nogroup home=@ROOT@/mail/%u";
    format!("passdb {{\n  {args}\n}}\nuserdb {{\n  {args}\n  {fields}\n}}\n")
}

#[test]
fn the_account_counts_where_users_are_in_a_database() {
    let folder = TempRoot::new();
    let users = users_in_a_database(&folder);
    let dovecot = Dovecot::start_with_users(&users);
    // The master user has an account of its own here, and thus an INBOX.
    let number = |account: &str, number: &str| {
        dovecot.doveadm(&["mailbox", "update", "-u", account, "--uid-validity", number, "INBOX"]);
    };
    number("lisa", "77");
    number("mda", "78");
    counts(&whose(&dovecot, settings(&dovecot), "lisa"), UIDVALIDITY);
    number("mda", "77");
    counts(&whose(&dovecot, settings(&dovecot), "lisa"), MAILBOX);
    let left = dovecot.doveadm(&["mailbox", "list", "-u", "mda", "onedrop*"]);
    assert!(left.is_empty(), "{left}");
}

/// Dovecot's other way for master users, with a separator in the name.
#[test]
fn a_template_names_the_account_in_the_login() {
    let folder = TempRoot::new();
    let users = users_in_a_file(&folder, &["lisa", "doug", "li*sa", "rig-probe"]);
    let dovecot = Dovecot::start_with_users(&format!("{users}auth_master_user_separator = *\n"));
    let template = || ImapSettings {
        login: LoginForm::try_from("{account}*{user}".to_owned()).expect("a template"),
        ..settings(&dovecot)
    };
    let store = store_with(template());
    append(&store, &Destination::inbox("lisa")).expect("an account");
    assert_eq!((dovecot.count("lisa", "INBOX"), dovecot.count("doug", "INBOX")), (1, 0));
    let split_elsewhere = append(&store, &Destination::inbox("li*sa"));
    let why = "separates account and user";
    // Nor is it a mailbox that does not take it: another one would not either.
    assert!(
        matches!(&split_elsewhere, Err(StoreError::NotStored(text)) if text.contains(why)),
        "{split_elsewhere:?}"
    );
    assert_eq!(dovecot.files("li"), 0);
    let ghost = append(&store, &Destination::inbox("ghost"));
    assert!(
        matches!(&ghost, Err(StoreError::NoAccount(why)) if why.contains("lisa can log in")),
        "{ghost:?}"
    );
    counts(&whose(&dovecot, template(), "lisa"), NOT_FOR_ITSELF);
    // A server without a separator takes no such login.
    let other = Dovecot::start_with_users(&users);
    let elsewhere = ImapSettings { port: other.imap_port(), ..template() };
    let refused = append(&store_with(elsewhere), &Destination::inbox("lisa"));
    assert!(refused.is_err(), "{refused:?}");
}

#[test]
fn the_account_counts_with_cyrus() {
    let cyrus = Cyrus::start(&["lisa", "doug"]);
    let settings = || ImapSettings { port: cyrus.port(), ..like_dovecots() };
    let told = store_with(settings()).whose_mailboxes("lisa", soon()).expect("it can be told");
    // The user has no INBOX, and may not make one.
    counts(&told, "of mda none");
    let store = store_with(settings());
    append(&store, &Destination::inbox("doug")).expect("an account");
    for (account, count) in [("doug", 1), ("lisa", 0)] {
        let opened = cyrus.session(account).command("EXAMINE INBOX").expect("EXAMINE");
        assert!(
            opened.untagged.iter().any(|line| line.text == format!("* {count} EXISTS")),
            "{account}: {opened:?}"
        );
    }
}

#[test]
fn the_account_does_not_count_with_courier() {
    let courier = Courier::start(&["lisa"]);
    let settings = ImapSettings { port: courier.port(), ..like_dovecots() };
    let told = store_with(settings).whose_mailboxes("lisa", soon()).expect("it can be told");
    assert!(
        matches!(&told, MailboxOwner::Users(why)
            if why.contains("lisa has the very mailbox that mda")),
        "{told:?}"
    );
    assert_eq!(
        (courier.folders("lisa"), courier.folders("mda")),
        (Vec::new(), Vec::new()),
        "nothing is left behind"
    );
}
