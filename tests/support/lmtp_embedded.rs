//! A site without servers of others: a ledger in a file and Maildirs, both the mail user's, for
//! `onedrop lmtp`.

use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use onedrop::lock_key::advisory_key;
use onedrop::message::{Bytes, DedupBy, Message};

use super::dovecot::MAIL_USER;
use super::{TempRoot, set_mode};

pub struct Embedded {
    pub root: TempRoot,
}

/// Another delivery's lock on a message, until dropped.
pub struct Held {
    _locks: File,
}

impl Embedded {
    pub fn new() -> Self {
        let root = TempRoot::new();
        root.dir_for("var", MAIL_USER, 0o755);
        Self { root }
    }

    /// Writes the configuration; the one before it is replaced.
    pub fn config(&self, more: &str) -> PathBuf {
        let at = self.root.join("var");
        let at = at.display();
        let text = format!(
            "[ledger]\nurl = \"sqlite://{at}/ledger.db\"\n[store]\nurl = \"maildir://{at}/mail\"\n{more}\n"
        );
        self.root.write("etc/onedrop.toml", text)
    }

    /// The copies in an account's mailbox (its name in Maildir++: empty, or `.Sent`).
    pub fn copies(&self, account: &str, mailbox: &str) -> Vec<Vec<u8>> {
        super::maildir_copies(&self.root.join("var/mail"), account, mailbox)
    }

    /// How many messages there are in an account's INBOX.
    pub fn count(&self, account: &str) -> usize {
        self.copies(account, "").len()
    }

    /// Another session with the ledger; there must have been one before.
    pub fn ledger(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.root.join("var/ledger.db")).expect("ledger")
    }

    /// A file stands where the account's Maildir should be: nothing can be stored for it.
    pub fn block(&self, account: &str) {
        self.root.dir_for("var/mail", MAIL_USER, 0o700);
        let path =
            self.root.dir_for(&format!("var/mail/{account}"), MAIL_USER, 0o700).join("Maildir");
        fs::write(&path, "no folder").expect("file");
        set_mode(&path, 0o600);
    }

    /// Takes a message's lock, as another delivery of it would (`ledger/sqlite.rs`); there must
    /// have been a delivery.
    pub fn hold(&self, message: &[u8]) -> Held {
        let locks = OpenOptions::new()
            .write(true)
            .open(self.root.join("var/ledger.db-locks"))
            .expect("locks");
        let message = Message::new(Bytes::Memory(message.to_vec()), DedupBy::Content);
        let key = advisory_key(&message.identity().id_hash);
        let range = libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: key & i64::MAX,
            l_len: 1,
            l_pid: 0,
        };
        fcntl(&locks, FcntlArg::F_OFD_SETLK(&range)).expect("nobody has it");
        Held { _locks: locks }
    }
}
