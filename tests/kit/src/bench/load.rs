//! The load, the servers it goes to, and what must have arrived.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::world::{MESSAGE_BYTES, STRANGER};
use crate::dovecot::Dovecot;

const DOMAIN: &str = "mail.axial.net";
/// How many mailboxes the load with many goes to.
pub const MAILBOXES: usize = 200;
/// How many recipients a message has that has several.
pub const TEN: usize = 10;
/// Addresses for Dovecot's LMTP are accounts without their domain, as for us.
pub const LOCAL_PARTS: &str = "auth_username_format = %Ln\n";

/// Dovecot's LMTP server tuned as the shipped file tunes its imap: processes that wait for
/// connections (one each, which is how it works), that serve one after the other without end, and
/// that need not change their user for each message. With the same syncs, which are set for all of
/// Dovecot.
pub const TUNED_LMTP: &str = "service lmtp {\n  user = nobody\n  service_count = 0\n  client_limit \
                              = 1\n  process_min_avail = 10\n}\n";
/// And nothing runs at delivery.
pub const NO_PLUGINS: &str = "protocol lmtp {\n  mail_plugins =\n}\n";

/// How a load comes.
#[derive(Clone, Copy, Debug)]
pub struct Clients {
    /// Connections at a time.
    pub sessions: usize,
    /// The next message goes over the same connection, as Postfix does it under load; else each has
    /// one of its own.
    pub kept: bool,
}

/// Where a load goes.
#[derive(Clone, Debug)]
pub enum Target {
    /// One account.
    One(String),
    /// Each message to ten accounts: 10NAME to 2NAME, and NAME.
    Ten(String),
    /// The accounts 1NAME to 200NAME in turn.
    Many(String),
}

impl Target {
    pub fn accounts(&self) -> Vec<String> {
        match self {
            Target::One(account) => vec![account.clone()],
            Target::Ten(name) => {
                let numbered = (2..=TEN).map(|number| format!("{number}{name}"));
                numbered.chain([name.clone()]).collect()
            }
            Target::Many(name) => (1..=MAILBOXES).map(|number| format!("{number}{name}")).collect(),
        }
    }

    /// How many messages are in its accounts' mailboxes.
    pub fn count(&self, dovecot: &Dovecot) -> usize {
        self.accounts().iter().map(|account| dovecot.all_files(account)).sum()
    }
}

/// A third of the time.
pub fn short() -> bool {
    std::env::var_os("ONEDROP_BENCH").is_some_and(|value| value == "short")
}

/// All peers in turn, every other round backwards.
pub fn turns(round: usize, peers: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..peers).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// A server under load.
pub struct Peer<'a> {
    pub name: &'a str,
    pub socket: PathBuf,
    /// A part of the names of its accounts: no two peers share a mailbox.
    pub tag: &'a str,
}

/// Sends what makes `copies` (with several mailboxes: a multiple of their number) and returns how
/// long that took; panics unless each is in its mailbox.
pub fn send(
    peer: &Peer<'_>,
    dovecot: &Dovecot,
    target: &Target,
    clients: Clients,
    copies: usize,
) -> Duration {
    let before = target.count(dovecot);
    let began = Instant::now();
    let number = target.accounts().len();
    assert_eq!(copies % number, 0, "as many copies for each mailbox");
    match target {
        Target::One(account) => smtp_source(&peer.socket, clients, copies, account, &[]),
        // They are numbered down to the last one, which has none.
        Target::Ten(name) => {
            let recipients = ["-r", &TEN.to_string()];
            smtp_source(&peer.socket, clients, copies / TEN, name, &recipients);
        }
        // It counts its recipients from 1 in every run and has no other way to choose among them.
        Target::Many(name) => {
            for _ in 0..copies / MAILBOXES {
                smtp_source(&peer.socket, clients, MAILBOXES, name, &["-N"]);
            }
        }
    }
    let took = began.elapsed();
    assert_eq!(
        target.count(dovecot) - before,
        copies,
        "{}: what arrived, of {copies} sent",
        peer.name
    );
    took
}

/// Brings Dovecot's index of each mailbox up to date, as the next reader does, and returns how long
/// that took. Dovecot's own LMTP server has written most of it while it delivered; a file that was
/// put into a Maildir is not in it.
pub fn index(dovecot: &Dovecot, target: &Target) -> Duration {
    let users = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(users.path(), target.accounts().join("\n") + "\n").expect("the accounts");
    let began = Instant::now();
    dovecot.doveadm(&["index", "-F", &users.path().display().to_string(), "INBOX"]);
    began.elapsed()
}

fn smtp_source(socket: &Path, clients: Clients, messages: usize, account: &str, more: &[&str]) {
    let mut command = Command::new("/usr/sbin/smtp-source");
    // -L: LMTP; -d: the next message over the same connection; -N: a number before the recipient.
    command.args(["-L", "-M", "bench.example", "-f", STRANGER]);
    if clients.kept {
        command.arg("-d");
    }
    command.args([
        "-s",
        &clients.sessions.to_string(),
        "-m",
        &messages.to_string(),
        "-l",
        &MESSAGE_BYTES.to_string(),
    ]);
    let output = command
        .args(["-t", &format!("{account}@{DOMAIN}")])
        .args(more)
        .arg(format!("unix:{}", socket.display()))
        .stdin(Stdio::null())
        .output()
        .expect("smtp-source");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{command:?}: {}: {said}", output.status);
}
