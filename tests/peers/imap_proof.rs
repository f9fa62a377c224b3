//! Nothing is written through a mail server that was not seen to heed for whom we log in: by both
//! doors, with real servers.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use crate::courier::Courier;
use crate::support::dovecot::Dovecot;
use crate::support::lmtp::Launch;
use crate::support::site::{Files, Site};
use crate::support::{onedrop, set_mode, wait_until};

const MESSAGE: &[u8] =
    b"Return-Path: <lisa@gmail.com>\nMessage-ID: <proof@b>\nSubject: s\n\nbody\n";

/// A ledger in a file, and a mail server.
pub struct Mail {
    site: Site<Files>,
    config: PathBuf,
}

impl Mail {
    /// The mail server at this port.
    pub fn at(port: u16, more: &str) -> Mail {
        Mail::with(port, "", more)
    }

    /// The same, with further keys of `[store]`.
    pub fn with(port: u16, keys: &str, more: &str) -> Mail {
        let site = Site::embedded();
        set_mode(&site.root.write("password", "store-secret"), 0o600);
        let store = format!(
            "[store]\nurl = \"imap://127.0.0.1:{port}\"\npassword_file = \"{}/password\"\n{keys}",
            site.root.display()
        );
        let directory = "[directory]\ndomains = [\"b.example\"]\n";
        let config = site.config("etc", &format!("{store}{directory}{more}\n"));
        let mail = Mail { site, config };
        let migrated = mail.run(&["migrate"], b"");
        assert_eq!(migrated.0, 0, "{migrated:?}");
        mail
    }

    /// Lets all leases run out.
    pub fn expire_leases(&self) {
        self.execute("UPDATE onedrop_copy SET leased_until = leased_until - 1e6");
    }

    /// How many rows of the ledger this changes.
    pub fn execute(&self, sql: &str) -> usize {
        self.site.sqlite().execute(sql, []).expect("SQL")
    }

    /// Exit status and output.
    pub fn run(&self, args: &[&str], input: &[u8]) -> (i32, String) {
        use std::io::Write;
        let mut command = onedrop();
        command.args(args).arg("--config").arg(&self.config);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("binary");
        child.stdin.take().expect("a pipe").write_all(input).expect("a message");
        let output = child.wait_with_output().expect("an end");
        let said = [output.stdout, output.stderr].concat();
        (output.status.code().expect("a status"), String::from_utf8_lossy(&said).into_owned())
    }

    fn deliver(&self, account: &str) -> (i32, String) {
        self.run(&["deliver", "-d", &format!("{account}@b.example")], MESSAGE)
    }

    fn proofs(&self) -> i64 {
        let ledger = self.site.sqlite();
        ledger
            .query_row("SELECT count(*) FROM onedrop_proof", [], |row| row.get(0))
            .expect("a count")
    }
}

#[track_caller]
fn is((status, said): &(i32, String), expected: i32, start: &str) {
    assert!(*status == expected && said.starts_with(start), "{status}: {said}");
}

const IGNORES: &str = "ignores for whom: mail would land in mda's own mailbox";

#[test]
fn a_server_that_ignores_the_account_gets_no_mail() {
    let courier = Courier::start(&["lisa", "doug"]);
    let mail = Mail::at(courier.port(), "");
    for account in ["lisa", "doug"] {
        let refused = mail.deliver(account);
        is(&refused, 75, "4.3.5 store: ");
        assert!(refused.1.contains(IGNORES) && refused.1.contains("store.login"), "{}", refused.1);
    }
    let own = mail.deliver("mda");
    is(&own, 75, "4.3.5 store: ");
    let checked = mail.run(&["check", "--account", "lisa"], b"");
    assert!(
        checked.0 != 0 && checked.1.contains("error   store: the mail server at"),
        "{checked:?}"
    );
    assert!(checked.1.contains(IGNORES), "{}", checked.1);
    let lmtp = Launch::of(&mail.config).start();
    for _ in 0..2 {
        let replies =
            lmtp.client().deliver("lisa@gmail.com", &["lisa@b.example", "doug@b.example"], MESSAGE);
        for reply in replies.expect("replies") {
            let text = format!("{reply:?}");
            assert!(text.contains("451") && text.contains("4.3.5"), "{text}");
        }
    }
    drop(lmtp);
    for account in ["lisa", "doug", "mda"] {
        assert_eq!(courier.messages(account), Vec::<Vec<u8>>::new(), "{account}");
        assert_eq!(courier.folders(account), Vec::<String>::new(), "{account}");
    }
    assert_eq!(mail.proofs(), 0);
    let traced = mail.run(&["trace", "lisa@b.example"], b"");
    assert!(traced.1.contains("4.3.5"), "{}", traced.1);
}

/// How often somebody has logged in to the mail server.
fn logins(dovecot: &Dovecot) -> usize {
    let log = fs::read_to_string(dovecot.config_file().with_file_name("dovecot.log")).expect("log");
    log.lines()
        .filter(|line| line.contains("imap-login: ") && line.contains("Login: user=<"))
        .count()
}

/// The same, once its log says no more.
fn settled_logins(dovecot: &Dovecot) -> usize {
    let mut before = logins(dovecot);
    loop {
        thread::sleep(Duration::from_millis(500));
        match logins(dovecot) {
            now if now == before => return now,
            now => before = now,
        }
    }
}

#[test]
fn a_proof_on_record_costs_no_login() {
    let dovecot = Dovecot::start();
    let mail = Mail::at(dovecot.imap_port(), "");
    let own = mail.deliver("mda");
    is(&own, 75, "4.3.5 store: ");
    assert!(own.1.contains("mda is the account of mda itself"), "{}", own.1);
    assert_eq!(mail.proofs(), 0);
    is(&mail.deliver("lisa"), 0, "stored account=lisa");
    assert_eq!(mail.proofs(), 1);
    for account in ["doug", "scuba"] {
        let before = settled_logins(&dovecot);
        is(&mail.deliver(account), 0, &format!("stored account={account}"));
        assert!(wait_until(Duration::from_secs(60), || logins(&dovecot) > before));
        assert_eq!(settled_logins(&dovecot) - before, 1, "{account}");
        assert_eq!(dovecot.count(account, "INBOX"), 1);
    }
}

#[test]
fn the_server_and_check_renew_the_proof() {
    let dovecot = Dovecot::shared();
    let user = format!("user = \"{}\"\n", dovecot.master_user());
    let accounts = "accounts = { \"lisa@gmail.com\" = \"lisa\" }";
    let mail = Mail::with(dovecot.imap_port(), &user, accounts);
    let lmtp = Launch::of(&mail.config).start();
    lmtp.wait_for_log("opens the mailboxes of the account that Onedrop names");
    assert_eq!(mail.proofs(), 1, "before anything was delivered");
    drop(lmtp);
    let checked = mail.run(&["check"], b"");
    assert!(
        checked.1.contains("ok      store: the mail server at")
            && checked.1.contains("opens the mailboxes of the account that Onedrop names"),
        "{checked:?}"
    );
}

/// A server that has taken the place of another one, whose proof is on record.
#[test]
fn a_proof_that_is_no_longer_so_is_taken_off_the_record() {
    let courier = Courier::start(&["lisa"]);
    let mail = Mail::at(courier.port(), "accounts = { \"lisa@gmail.com\" = \"lisa\" }");
    let ledger = mail.site.sqlite();
    let prove = || {
        let sql = "INSERT INTO onedrop_proof (server, login_user, way, host, proven_at) \
                   VALUES (?1, 'mda', 'sasl', 'h', 1)";
        ledger.execute(sql, [format!("127.0.0.1:{}", courier.port())]).expect("a row");
    };
    prove();
    let lmtp = Launch::of(&mail.config).start();
    let replies =
        lmtp.client().deliver("lisa@gmail.com", &["lisa@b.example"], MESSAGE).expect("replies");
    assert!(format!("{replies:?}").contains("4.3.5"), "{replies:?}");
    lmtp.wait_for_log(IGNORES);
    assert_eq!(mail.proofs(), 0);
    drop(lmtp);
    prove();
    assert_ne!(mail.run(&["check"], b"").0, 0);
    assert_eq!(mail.proofs(), 0);
    is(&mail.deliver("lisa"), 75, "4.3.5 store: ");
    assert_eq!(courier.messages("mda"), Vec::<Vec<u8>>::new());
}
