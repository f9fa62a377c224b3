//! Many processes at once, on two working folders that share nothing but the servers. All have read
//! their messages before the first one goes on. One copy each, byte for byte, whoever wins.

use std::path::PathBuf;
use std::process::Output;

use crate::start_line::StartLine;
use crate::support::maildir_copies;
use crate::support::mariadb::Mariadb;
use crate::support::pgbouncer::PgBouncer;
use crate::support::site::{Files, Site, delivered};

const PROCESSES: usize = 40;
/// Longer than all of them need one after the other on a busy machine.
const PATIENT: &str = "[lock]\nwait_secs = 80\nlease_secs = 180\n[limits]\ndeadline_secs = 110\n";
/// Whoever meets another ends with 75, which may be all of them: into a Maildir one may hold the
/// copy and another the message.
const STRICT: &str = "[lock]\nwait_secs = 0\n";

/// Where the deliveries go, by two configurations each.
trait Mailboxes {
    fn configs(&self, name: &str, times: &str) -> [PathBuf; 2];
    /// All copies in a mailbox, as the store holds them.
    fn copies(&self, account: &str, mailbox: &str) -> Vec<Vec<u8>>;
    /// A message as the store holds it.
    fn stored(&self, message: &str) -> Vec<u8>;
}

struct Served {
    site: Site,
    pooler: Option<PgBouncer>,
    /// Where the ledger is, if not in Postgres.
    mariadb: Option<Mariadb>,
}

impl Mailboxes for Served {
    fn configs(&self, name: &str, times: &str) -> [PathBuf; 2] {
        let url = match (&self.pooler, &self.mariadb) {
            (Some(pooler), _) => pooler.url(),
            (None, Some(mariadb)) => mariadb.url_socket(),
            (None, None) => self.site.postgres.url_socket(),
        };
        let password = match self.mariadb {
            Some(_) => "ledger.password_file = \"$DIR/ledger.password\"\n",
            None => "",
        };
        let more = format!("ledger.url = \"{url}\"\n{password}{times}");
        ["a", "b"].map(|host| self.site.config(&format!("{name}-{host}"), &more))
    }

    fn copies(&self, account: &str, mailbox: &str) -> Vec<Vec<u8>> {
        self.site.dovecot.messages(account, mailbox)
    }

    fn stored(&self, message: &str) -> Vec<u8> {
        message.replace('\n', "\r\n").into_bytes()
    }
}

impl Mailboxes for Site<Files> {
    fn configs(&self, name: &str, times: &str) -> [PathBuf; 2] {
        ["a", "b"].map(|host| self.config(&format!("{name}-{host}"), times))
    }

    fn copies(&self, account: &str, mailbox: &str) -> Vec<Vec<u8>> {
        let folder = if mailbox == "INBOX" { String::new() } else { format!(".{mailbox}") };
        let tmp = self.root.join("mail").join(account).join("Maildir").join(&folder).join("tmp");
        let litter = std::fs::read_dir(tmp).map_or(0, Iterator::count);
        assert_eq!(litter, 0, "{account}/{mailbox} has litter");
        maildir_copies(&self.root.join("mail"), account, &folder)
    }

    fn stored(&self, message: &str) -> Vec<u8> {
        message.as_bytes().to_owned()
    }
}

/// What Lisa wrote, with an identity of its own.
fn shared(id: &str) -> String {
    format!(
        "Authentication-Results: mail.axial.net; dmarc=pass header.from=gmail.com\n\
         From: lisa@gmail.com\nTo: all\nSubject: race\n\
         Message-ID: <{id}@x>\n\nOne of {PROCESSES} will be first.\n"
    )
}

/// The same as Postfix hands it over for one recipient.
fn own(id: &str, recipient: &str) -> String {
    format!("Return-Path: <lisa@gmail.com>\nDelivered-To: {recipient}\n{}", shared(id))
}

/// Delivers to all `accounts` (one may be there several times) at one moment, in turn by either
/// configuration; those that were deferred are delivered again one after the other. Returns how
/// many were.
fn race(site: &dyn Mailboxes, id: &str, accounts: &[String], times: &str) -> usize {
    let configs = site.configs(id, times);
    let recipients: Vec<String> =
        accounts.iter().map(|account| format!("{account}@mail.axial.net")).collect();
    let mut line = StartLine::default();
    for (n, recipient) in recipients.iter().enumerate() {
        line.add(
            &configs[n % 2],
            &["-d", recipient, "-f", "lisa@gmail.com"],
            own(id, recipient).as_bytes(),
        );
    }
    let mut deferred = Vec::new();
    for (n, Output { status, stdout, .. }) in line.go().into_iter().enumerate() {
        let said = String::from_utf8_lossy(&stdout).into_owned();
        match status.code() {
            Some(0) => {}
            Some(75) if said.starts_with("4.3.0 another delivery of this message holds ") => {
                deferred.push(n)
            }
            other => panic!("{id}: {other:?}: {said}"),
        }
    }
    for n in &deferred {
        delivered(
            &configs[n % 2],
            &["-d", &recipients[*n], "-f", "lisa@gmail.com"],
            own(id, &recipients[*n]).as_bytes(),
        );
    }
    let mut distinct = accounts.to_vec();
    distinct.dedup();
    for account in &distinct {
        let own = site.stored(&own(id, &format!("{account}@mail.axial.net")));
        let here: Vec<Vec<u8>> = with_id(site.copies(account, "INBOX"), id);
        assert!(here == [own], "{id}: {account}/INBOX: {:?}", texts(&here));
    }
    let sent = with_id(site.copies("lisa", "Sent"), id);
    assert!(sent == [site.stored(&shared(id))], "{id}: lisa/Sent: {:?}", texts(&sent));
    deferred.len()
}

/// Those of one race: the mailboxes serve several, and nothing else may be in them.
fn with_id(copies: Vec<Vec<u8>>, id: &str) -> Vec<Vec<u8>> {
    let id = format!("Message-ID: <{id}@x>");
    copies.into_iter().filter(|copy| String::from_utf8_lossy(copy).contains(&id)).collect()
}

fn texts(copies: &[Vec<u8>]) -> Vec<String> {
    copies.iter().map(|copy| String::from_utf8_lossy(copy).into_owned()).collect()
}

/// One recipient's message in many processes, and one message to many recipients; with patience,
/// and without.
fn races(site: &dyn Mailboxes) {
    let one = vec!["scuba".to_owned(); PROCESSES];
    let many: Vec<String> = (0..PROCESSES).map(|n| format!("r{n}")).collect();
    for (name, accounts) in [("one", &one), ("many", &many)] {
        let deferred = race(site, &format!("patient-{name}"), accounts, PATIENT);
        assert_eq!(deferred, 0, "{name}: whoever waits is delivered");
        let deferred = race(site, &format!("strict-{name}"), accounts, STRICT);
        eprintln!("{name}: {deferred} of {PROCESSES} had to try again");
        assert!(deferred > 0, "{name}: they did not meet");
    }
    // Nothing but the copies of the four races is there.
    assert_eq!(site.copies("scuba", "INBOX").len(), 2);
    assert_eq!(site.copies("lisa", "Sent").len(), 4);
}

#[test]
fn forty_at_once_on_postgres_and_imap_leave_one_copy_each() {
    races(&Served { site: Site::with_servers(), pooler: None, mariadb: None });
}

/// Through a pooler that hands each transaction to another server connection.
#[test]
fn forty_at_once_through_pgbouncer_leave_one_copy_each() {
    let site = Site::with_servers();
    let pooler = Some(PgBouncer::shared(&site.postgres));
    races(&Served { site, pooler, mariadb: None });
}

#[test]
fn forty_at_once_on_mariadb_and_imap_leave_one_copy_each() {
    let served =
        Served { site: Site::with_servers(), pooler: None, mariadb: Some(Mariadb::shared()) };
    races(&served);
}

/// The embedded default: SQLite and Maildir on one host.
#[test]
fn forty_at_once_on_sqlite_and_maildir_leave_one_copy_each() {
    races(&Site::embedded());
}
