//! Several domains: people with the same local part in two of them are two accounts, by Maildir, by
//! IMAP and by a query; a detail changes no account.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::site::{Files, Site, deliver, delivered, run};

const DOMAINS: &str =
    "[directory]\ndomains = [\"a.example\", \"b.example\"]\naccount = \"{address}\"\n";

fn letter(id: &str) -> Vec<u8> {
    format!(
        "From: lisa@gmail.com\nTo: info@a.example\nSubject: {id}\nMessage-ID: <{id}@x>\n\nbody\n"
    )
    .into_bytes()
}

/// In the form in which an IMAP server keeps it.
fn with_crlf(message: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(message).replace('\n', "\r\n").into_bytes()
}

/// With Maildirs at `store` below the site's folder.
fn embedded(site: &Site<Files>, store: &str, more: &str) -> PathBuf {
    let store = format!("store.url = \"maildir://{}{store}\"\n", site.root.display());
    site.config("etc", &(store + more))
}

/// What is in the Maildir at `path`.
fn mails(path: &Path) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(path.join("new"))
        .map(|entries| entries.map(|entry| entry.expect("entry").path()));
    entries.map_or(Vec::new(), |paths| paths.map(|path| fs::read(path).expect("a mail")).collect())
}

#[test]
fn each_domain_has_maildirs_of_its_own() {
    for (store, folder) in [
        (
            "/mail",
            (|local, domain| format!("mail/{local}@{domain}/Maildir")) as fn(&str, &str) -> String,
        ),
        ("/mail/{domain}/{local}", |local, domain| format!("mail/{domain}/{local}")),
        ("/mail/{domain}/u-{local}/Maildir", |local, domain| {
            format!("mail/{domain}/u-{local}/Maildir")
        }),
    ] {
        let site = Site::embedded();
        let config = embedded(&site, store, DOMAINS);
        let to = [
            "-f",
            "",
            "-d",
            "info@a.example",
            "-d",
            "Info+lists@B.example",
            "-d",
            "doug@b.example",
        ];
        delivered(&config, &to, &letter("both"));
        delivered(&config, &["-d", "info@b.example"], &letter("one"));
        let again = delivered(&config, &["-d", "info+x@b.example"], &letter("one"));
        assert!(again.contains("already there"), "{again}");
        let inbox = |local, domain| mails(&site.root.join(folder(local, domain)));
        assert_eq!(inbox("info", "a.example"), [letter("both")], "{store}");
        let mut others = inbox("info", "b.example");
        others.sort();
        assert_eq!(others, [letter("both"), letter("one")], "{store}");
        assert_eq!(inbox("doug", "b.example"), [letter("both")], "{store}");
        let verified = run(&config, &["verify"]);
        assert!(verified.status.success(), "{verified:?}");
        let checked = run(&config, &["check", "--account", "info@b.example"]);
        let told = String::from_utf8_lossy(&checked.stdout).into_owned();
        let shown = site.root.join(folder("info", "b.example")).display().to_string();
        assert!(told.contains(&format!("{shown} exists")), "{told}");
    }
}

#[test]
fn a_mailbox_of_an_account_is_in_its_maildir_wherever_that_is() {
    let site = Site::embedded();
    let more = format!("{DOMAINS}[sent]\ntrust = \"header\"\n");
    let config = embedded(&site, "/mail/{domain}/{local}", &more);
    let message = b"From: info@b.example\nMessage-ID: <sent@x>\n\nbody\n".to_vec();
    delivered(&config, &["-d", "info@a.example"], &message);
    let sent = site.root.join("mail/b.example/info/.Sent");
    let copies = fs::read_dir(sent.join("cur")).expect("Sent").count();
    assert_eq!((copies, sent.join("maildirfolder").exists()), (1, true));
    let subscribed =
        fs::read_to_string(site.root.join("mail/b.example/info/subscriptions")).expect("a file");
    assert_eq!(subscribed, "Sent\n");
}

#[test]
fn an_account_that_cannot_have_a_folder_waits_and_says_why() {
    let site = Site::embedded();
    let directory = "[directory]\nquery = \"SELECT 'info' WHERE $1 <> ''\"\n";
    let config = embedded(&site, "/mail/{domain}/{local}", directory);
    let output = deliver(&config, &["-d", "info@a.example"], &letter("nowhere"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(75), "{said}");
    assert!(
        said.contains("\"info\" cannot name a folder (store.url needs local@domain)"),
        "{said}"
    );
}

#[test]
fn whole_addresses_are_accounts_of_an_imap_server() {
    let site = Site::with_servers();
    let config = site.config("etc", &format!("{DOMAINS}[sent]\ntrust = \"authenticated\"\n"));
    let login = ["--sasl-username", "info@b.example"];
    let to = ["-f", "", "-d", "info@a.example", "-d", "Info+lists@B.example"];
    let message = b"From: info@b.example\nMessage-ID: <both@x>\n\nbody\n".to_vec();
    delivered(&config, &[&to[..], &login[..]].concat(), &message);
    for account in ["info@a.example", "info@b.example"] {
        assert_eq!(site.dovecot.messages(account, "INBOX"), [with_crlf(&message)], "{account}");
    }
    // Who logged in is an account by its whole name as well.
    assert_eq!(site.dovecot.messages("info@b.example", "Sent"), [with_crlf(&message)]);
    assert_eq!(site.dovecot.count("info@a.example", "Sent"), 0);
    assert_eq!(site.dovecot.count("info", "INBOX"), 0);
    let verified = run(&config, &["verify"]);
    assert!(verified.status.success(), "{verified:?}");
}

/// A table with a person and a catch-all, as many sites have it.
const USERS: &str = "CREATE TABLE users (address text, login text); \
     INSERT INTO users VALUES ('info@a.example', 'info'), ('@a.example', 'rest')";

/// Exact addresses first; `$2` sends one list's mail elsewhere.
const CATCH_ALL: &str = "[directory]\nquery = \"\"\"SELECT CASE WHEN $2 = 'info+boss@a.example' \
                         THEN 'boss' ELSE login END FROM users WHERE address = $1 OR (address = \
                         '@a.example' AND $1 LIKE '%@a.example') ORDER BY length(address) DESC \
                         LIMIT 1\"\"\"\n";

const ASKED: [(&str, &str); 5] = [
    ("info@a.example", "info"),
    ("Info+lists@a.example", "info"),
    ("info+boss@a.example", "boss"),
    ("other@a.example", "rest"),
    ("other+x@a.example", "rest"),
];

#[test]
fn a_catch_all_takes_no_mail_with_a_detail_from_sqlite() {
    let site = Site::embedded();
    let config = embedded(&site, "/mail", CATCH_ALL);
    let made = deliver(&config, &["-d", "info@a.example"], &letter("early"));
    assert_eq!(made.status.code(), Some(75), "no such table yet: {made:?}");
    let ledger = site.sqlite();
    ledger.execute_batch(USERS).expect("a table");
    for (number, (address, account)) in ASKED.into_iter().enumerate() {
        let message = letter(&format!("n{number}"));
        delivered(&config, &["-d", address], &message);
        assert!(site.inbox(account).contains(&message), "{address} is {account}'s");
    }
    assert_eq!(
        [site.inbox("info").len(), site.inbox("boss").len(), site.inbox("rest").len()],
        [2, 1, 2]
    );
    let unknown = deliver(&config, &["-d", "info@b.example"], &letter("unknown"));
    assert_eq!(unknown.status.code(), Some(67), "{unknown:?}");
}

#[test]
fn a_catch_all_takes_no_mail_with_a_detail_from_postgres() {
    let site = Site::with_servers();
    site.postgres.psql(&format!("{USERS}; GRANT SELECT ON users TO onedrop"));
    let config = site.config("etc", CATCH_ALL);
    for (number, (address, account)) in ASKED.into_iter().enumerate() {
        let message = letter(&format!("n{number}"));
        delivered(&config, &["-d", address], &message);
        let expected = with_crlf(&message);
        assert!(
            site.dovecot.messages(account, "INBOX").contains(&expected),
            "{address} is {account}'s"
        );
    }
    let counts = ["info", "boss", "rest"].map(|account| site.dovecot.count(account, "INBOX"));
    assert_eq!(counts, [2, 1, 2]);
    let unknown = deliver(&config, &["-d", "info@b.example"], &letter("unknown"));
    assert_eq!(unknown.status.code(), Some(67), "{unknown:?}");
}
