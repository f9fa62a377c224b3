//! Accounts that do not exist, with the real Dovecot: by its user database (`directory.userdb`) and
//! by what it says at a login (`directory.unknown_account`). Mail is returned for those that never
//! were there, and waits for those that were.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::dovecot::{Dovecot, users_in, write_users};
use crate::support::letters::from_ann;
use crate::support::site::{Files, Site, deliver, run};
use crate::support::{TempRoot, set_mode};

/// How a delivery ends, and what it says.
fn ended(config: &Path, to: &[&str], name: &str) -> (Option<i32>, String) {
    let args: Vec<&str> = to.iter().flat_map(|to| ["-d", to]).collect();
    let output = deliver(config, &args, from_ann(name).as_bytes());
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[track_caller]
fn ends(config: &Path, to: &str, name: &str, status: i32, says: &str) {
    let (ended, said) = ended(config, &[to], name);
    assert_eq!(ended, Some(status), "{to}: {said}");
    assert!(said.contains(says), "{to}: {said}");
}

/// Users in a file, whose names Dovecot has in lower case and without their domain.
struct Users(TempRoot);

impl Users {
    fn of(accounts: &[&str]) -> Users {
        let users = Users(TempRoot::new());
        users.are(accounts);
        users
    }

    fn are(&self, accounts: &[&str]) {
        write_users(&self.0.join("users"), &[accounts, &["rig-probe"]].concat());
    }

    fn conf(&self) -> String {
        let users = users_in(&self.0.join("users"));
        format!("auth_cache_size = 0\nauth_username_format = %Ln\n{users}")
    }
}

/// A stand-in for a user database: what it says of whoever is asked for can change.
struct Answers(Arc<Mutex<String>>);

impl Answers {
    fn at(socket: &Path) -> Answers {
        let listener = UnixListener::bind(socket).expect("a socket");
        let answers = Answers(Arc::default());
        let answer = Arc::clone(&answers.0);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.expect("a client");
                let asked = stream.read(&mut [0; 4096]).expect("a question");
                assert!(asked > 0, "it asks at once");
                let answer = answer.lock().expect("no panic").clone();
                let said = format!("VERSION\t1\t1\nSPID\t42\n{answer}\n");
                stream.write_all(said.as_bytes()).expect("a client that listens");
            }
        });
        answers
    }

    fn say(&self, answer: &str) {
        answer.clone_into(&mut self.0.lock().expect("no panic"));
    }
}

/// A ledger in a file and Maildirs, with this Dovecot's user database.
fn by_userdb(site: &Site<Files>, name: &str, socket: &Path, more: &str) -> PathBuf {
    let userdb = socket.display();
    site.config(name, &format!("[directory]\nuserdb = \"unix:{userdb}\"\n{more}\n"))
}

#[test]
fn dovecots_users_get_mail_and_others_do_not() {
    let users = Users::of(&["doug", "scuba"]);
    let mut dovecot = Dovecot::start_with_users(&users.conf());
    let (site, socket) = (Site::embedded(), dovecot.userdb_socket());
    let config = by_userdb(
        &site,
        "etc",
        &socket,
        "domains = [\"a.example\"]\naccount = \"{address}\"\n\
         accounts = { \"info@b.example\" = \"front\" }",
    );
    ends(&config, "Doug+x@a.example", "1", 0, "stored account=doug mailbox=INBOX");
    ends(&config, "ghost@a.example", "2", 67, "5.1.1 unknown recipient ghost@a.example");
    ends(&config, "doug@elsewhere.example", "3", 67, "5.1.1 unknown recipient");
    // Listed accounts are taken as they are.
    ends(&config, "info@b.example", "4", 0, "stored account=front mailbox=INBOX");
    site.inbox_has("doug", [from_ann("1")]);
    // Where it is away all mail waits, also that for an unknown account.
    dovecot.kill();
    for to in ["doug@a.example", "ghost@a.example"] {
        ends(&config, to, "5", 75, "4.3.0 directory.userdb: ");
    }
    let waits =
        "SELECT recipient || ' ' || reason FROM onedrop_attempt_text WHERE outcome = 'tempfail'";
    assert_eq!(site.ledger(waits), ["doug@a.example directory", "ghost@a.example directory"]);
    ends(&config, "info@b.example", "4", 0, "already there");
    site.inbox_has("doug", [from_ann("1")]);
}

#[test]
fn an_account_that_had_mail_is_never_unknown_for_good_until_it_is_forgotten() {
    let users = Users::of(&["doug", "scuba"]);
    let dovecot = Dovecot::start_with_users(&users.conf());
    let site = Site::embedded();
    let config = by_userdb(
        &site,
        "etc",
        &dovecot.userdb_socket(),
        "domains = [\"a.example\"]\naccount = \"{address}\"",
    );
    // The name asked for, and the account, are not the same.
    ends(&config, "doug@a.example", "1", 0, "stored account=doug");
    users.are(&["scuba"]);
    dovecot.wait_until_unknown("doug");
    let says = "4.3.5 doug@a.example (account=doug) has mail on record and is unknown now";
    ends(&config, "doug@a.example", "2", 75, says);
    // It keeps no mail from another recipient of the same message, nor the message from its
    // sender for good.
    let (status, said) = ended(&config, &["doug@a.example", "scuba@a.example"], "3");
    assert_eq!(status, Some(75), "{said}");
    assert!(said.contains("unknown now") && said.contains("stored account=scuba"), "{said}");
    site.inbox_has("scuba", [from_ann("3")]);
    // Both stand on record, for those who ask what is wrong.
    let failed = "SELECT recipient || ' ' || reason || ' ' || status FROM onedrop_attempt_text \
                  WHERE outcome = 'tempfail'";
    assert_eq!(site.ledger(failed), ["doug@a.example address_gone 4.3.5"; 2]);
    let told = |args: &[&str]| String::from_utf8_lossy(&run(&config, args).stdout).into_owned();
    let status = told(&["status"]);
    assert!(status.contains("address_gone 2; 2 of them are yours to mend (4.3.5)"), "{status}");
    let traced = told(&["trace", "--failed"]);
    assert!(traced.contains("not recorded") && traced.contains("<3@x>"), "{traced}");
    let checked = run(&config, &["check"]);
    let checked = String::from_utf8_lossy(&checked.stdout).into_owned();
    let line = "does not know account=doug, which has mail on record";
    assert_eq!(checked.matches(line).count(), 1, "{checked}");
    assert_eq!(checked.matches("does not know account").count(), 1, "{checked}");
    assert!(run(&config, &["forget", "--account", "doug"]).status.success());
    ends(&config, "doug@a.example", "4", 67, "5.1.1 unknown recipient doug@a.example");
    site.inbox_has("doug", [from_ann("1")]);
}

/// The user database may give names a domain, take it away, or leave them as they are asked for.
#[test]
fn an_account_that_had_mail_is_known_again_by_whatever_name_it_had() {
    for (asked, account) in [
        ("{local}", "doug@a.example"),
        ("{address}", "doug"),
        ("{local}", "doug"),
        ("{address}", "doug@a.example"),
        ("{local}-{domain}", "doug-a.example"),
    ] {
        let site = Site::embedded();
        let socket = site.root.join("userdb.sock");
        let answers = Answers::at(&socket);
        let more = format!("domains = [\"a.example\"]\naccount = \"{asked}\"");
        let config = by_userdb(&site, "etc", &socket, &more);
        answers.say(&format!("USER\t1\t{account}\thome=/x"));
        ends(&config, "doug@a.example", "1", 0, &format!("stored account={account} "));
        answers.say("NOTFOUND\t1");
        ends(&config, "Doug+x@a.example", "2", 75, "has mail on record and is unknown now");
        ends(&config, "Doug+x@a.example", "2", 75, &format!("account={account}"));
        ends(&config, "ghost@a.example", "3", 67, "5.1.1 unknown recipient ghost@a.example");
    }
}

/// Whatever names accounts, and whatever the account was: the address had mail.
#[test]
fn an_address_that_had_mail_is_never_unknown_for_good() {
    let site = Site::embedded();
    let query = "query = \"SELECT login FROM users WHERE lower(address) = $1\"";
    let config = |name: &str, more: &str| {
        site.config(name, &format!("[directory]\naccount = \"{{address}}\"\n{more}\n"))
    };
    let by_query = config("query", &format!("domains = [\"a.example\"]\n{query}"));
    assert!(run(&by_query, &["migrate"]).status.success());
    let users = site.sqlite();
    let table = "CREATE TABLE users (address TEXT PRIMARY KEY, login TEXT);
                 INSERT INTO users VALUES ('info@a.example', 'team'), ('Doug@a.example', 'doug')";
    users.execute_batch(table).expect("users");
    let gone = "has mail on record and is unknown now";
    ends(&by_query, "Info+x@a.example", "1", 0, "stored account=team");
    ends(&by_query, "doug@a.example", "2", 0, "stored account=doug");
    users.execute_batch("DELETE FROM users").expect("nobody");
    let says = format!(
        "4.3.5 INFO+x@a.example (account=team) {gone}: directory.query has no row for \
         info@a.example; if the address is closed for good, let Postfix refuse it"
    );
    ends(&by_query, "INFO+x@a.example", "3", 75, &says);
    ends(
        &by_query,
        "doug+y@a.example",
        "3",
        75,
        &format!("doug+y@a.example (account=doug) {gone}"),
    );
    for ghost in ["ghost@a.example", "info@b.example", "team@a.example", "fo+x@a.example"] {
        ends(&by_query, ghost, "4", 67, &format!("5.1.1 unknown recipient {ghost}"));
        // Refused mail is no mail.
        ends(&by_query, ghost, "4", 67, "5.1.1");
    }
    // An address that the configuration does not know any more.
    let emptied = config("emptied", "domains = [\"b.example\"]\naccounts = { \"x@y\" = \"x\" }");
    ends(&emptied, "info+x@a.example", "5", 75, "does not know it");
    ends(&emptied, "ghost@a.example", "5", 67, "5.1.1");
    // A user database that gives accounts another name, and then has no user.
    let socket = site.root.join("userdb.sock");
    let answers = Answers::at(&socket);
    let more = "domains = [\"a.example\", \"b.example\"]\naccount = \"{address}\"";
    let by_userdb = by_userdb(&site, "userdb", &socket, more);
    answers.say("USER\t1\tfront\thome=/x");
    ends(&by_userdb, "sales@a.example", "6", 0, "stored account=front");
    answers.say("USER\t1\tdoug\thome=/x");
    ends(&by_userdb, "other@a.example", "7", 0, "stored account=doug");
    answers.say("NOTFOUND\t1");
    let says = format!("sales@a.example (account=front) {gone}: directory.userdb has no user");
    ends(&by_userdb, "sales@a.example", "8", 75, &says);
    // The account of that name is another address's.
    ends(&by_userdb, "doug@b.example", "9", 67, "5.1.1 unknown recipient doug@b.example");
    assert!(run(&by_query, &["forget", "--account", "team"]).status.success());
    ends(&by_query, "info@a.example", "10", 67, "5.1.1");
    assert_eq!(site.inbox("team").len() + site.inbox("front").len(), 2);
}

#[test]
fn what_a_user_database_knows_of_a_user_shows_in_no_error() {
    let site = Site::embedded();
    let socket = site.root.join("userdb.sock");
    let answers = Answers::at(&socket);
    let config = by_userdb(&site, "etc", &socket, "domains = [\"a.example\"]");
    for answer in ["USER\t2\tdoug", "USER\t1\t", "USERS\t1\tdoug"] {
        answers.say(&format!("{answer}\timapc_password=secret\tpass=secret"));
        let (status, said) = ended(&config, &["doug@a.example"], "1");
        assert_eq!(status, Some(75), "{said}");
        assert!(said.starts_with("4.3.0 directory.userdb: "), "{said}");
        assert!(!said.contains("secret"), "{said}");
    }
}

#[test]
fn the_query_comes_before_the_userdb() {
    let users = Users::of(&["doug"]);
    let dovecot = Dovecot::start_with_users(&users.conf());
    let site = Site::embedded();
    let query = "SELECT 'shared' WHERE $1 = 'sales@a.example'";
    let config = by_userdb(
        &site,
        "etc",
        &dovecot.userdb_socket(),
        &format!("domains = [\"a.example\"]\nquery = \"{query}\""),
    );
    ends(&config, "sales@a.example", "1", 0, "stored account=shared");
    ends(&config, "doug@a.example", "2", 0, "stored account=doug");
    ends(&config, "ghost@a.example", "3", 67, "5.1.1");
}

#[test]
fn check_asks_the_userdb_and_says_what_it_says() {
    let users = Users::of(&["doug"]);
    let dovecot = Dovecot::start_with_users(&users.conf());
    let (site, everybody) = (Site::embedded(), Dovecot::start());
    let lines = |name: &str, socket: &Path| {
        let config = by_userdb(&site, name, socket, "domains = [\"a.example\"]");
        let checked = run(&config, &["check"]);
        let text = String::from_utf8_lossy(&checked.stdout).into_owned();
        let about = text.lines().filter(|line| line.contains("directory.userdb"));
        about.map(|line| format!("{line}\n")).collect::<String>()
    };
    let at =
        |dovecot: &Dovecot| format!("directory.userdb at {}", dovecot.userdb_socket().display());
    let told = lines("good", &dovecot.userdb_socket());
    assert_eq!(told, format!("ok      directory: {} answers\n", at(&dovecot)));
    let told = lines("everybody", &everybody.userdb_socket());
    let expected = format!("warning directory: {} knows \"onedrop-check-nobody\"", at(&everybody));
    assert!(told.starts_with(&expected), "{told}");
    let told = lines("nowhere", &site.root.join("nowhere"));
    assert!(told.starts_with("error   directory: ") && told.contains("cannot connect"), "{told}");
    let failing = site.root.join("failing.sock");
    let listener = UnixListener::bind(&failing).expect("a socket");
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let asked = stream.read(&mut [0; 4096]).expect("a question");
        assert!(asked > 0, "it asks at once");
        let answer = b"VERSION\t1\t1\nSPID\t42\nFAIL\t1\n";
        stream.write_all(answer).expect("a client that listens");
    });
    let told = lines("failing", &failing);
    assert!(told.starts_with("error   directory: ") && told.contains("mode = 0660"), "{told}");
}

#[test]
fn a_login_that_is_refused_returns_mail_only_as_configured_and_proven() {
    let users = Users::of(&["doug", "scuba"]);
    let site = Site::with(Dovecot::start_with_users(&users.conf()));
    let reject = "[directory]\ndomains = [\"mail.axial.net\"]\nunknown_account = \"reject\"\n";
    let (defer, reject) = (site.config("defer", ""), site.config("reject", reject));
    let (ghost, gone) = ("ghost@mail.axial.net", "doug@mail.axial.net");
    // No other account's login can show yet whose fault it is.
    ends(&reject, ghost, "1", 75, "4.3.0 ");
    ends(&reject, gone, "2", 0, "stored account=doug");
    ends(&reject, "scuba@mail.axial.net", "2", 0, "stored account=scuba");
    let says = "5.1.1 the mail server has no account=ghost";
    ends(&reject, ghost, "1", 67, says);
    ends(&reject, ghost, "3", 67, "can log in");
    ends(&defer, ghost, "4", 75, "4.3.0 ");
    // An account that is closed, and had mail: somebody has to say so.
    users.are(&["scuba"]);
    site.dovecot.wait_until_unknown("doug");
    ends(&reject, gone, "5", 75, "4.3.5 account=doug has mail on record and is unknown now");
    // Doug's login cannot show it, but Scuba's can.
    ends(&reject, ghost, "6", 67, "scuba can log in");
    // A password of ours that is wrong returns nothing.
    let folder = reject.parent().expect("a folder");
    fs::write(folder.join("password"), "wrong").expect("a password");
    set_mode(&folder.join("password"), 0o600);
    for (to, name) in [(ghost, "7"), (gone, "8"), ("scuba@mail.axial.net", "9")] {
        let (status, said) = ended(&reject, &[to], name);
        assert_eq!(status, Some(75), "{to}: {said}");
    }
    fs::write(folder.join("password"), site.dovecot.password()).expect("a password");
    // Nor does a user database that has lost its users.
    users.are(&[]);
    site.dovecot.wait_until_unknown("scuba");
    let (status, said) = ended(&reject, &[ghost], "10");
    assert_eq!(status, Some(75), "{said}");
    assert_eq!(site.dovecot.files("doug"), 1);
    assert_eq!(site.dovecot.files("scuba"), 1);
}

/// The LMTP server's word is proven by logins, too.
#[test]
fn who_is_unknown_at_a_hand_over_is_returned_only_as_configured_and_proven() {
    let users = Users::of(&["doug", "scuba"]);
    let site = Site::with(Dovecot::start_with_users(&users.conf()));
    let reject = site.config(
        "reject",
        &format!(
            "[store]\nlmtp = \"unix:{}\"\n[directory]\ndomains = [\"mail.axial.net\"]\n\
             unknown_account = \"reject\"\n",
            site.dovecot.lmtp_socket().display()
        ),
    );
    let ghost = "ghost@mail.axial.net";
    ends(&reject, ghost, "1", 75, "4.3.0 ");
    ends(&reject, "doug@mail.axial.net", "2", 0, "handed over account=doug");
    ends(&reject, ghost, "1", 67, "5.1.1 the mail server has no account=ghost");
    users.are(&[]);
    site.dovecot.wait_until_unknown("doug");
    ends(&reject, ghost, "3", 75, "4.3.");
    ends(&reject, "doug@mail.axial.net", "4", 75, "4.3.");
}
