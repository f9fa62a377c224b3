//! Where deliveries go: the embedded ledger and Maildirs, or a Postgres and a Dovecot; and what must be there afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::world::{World, deliver};
use crate::support::{TempRoot, wait_until};
use crate::{Kind, TIMES, message};

/// Where deliveries go.
pub trait Site: Sync {
    fn name(&self) -> &'static str;
    /// A place for delivery `id`: its configuration and its recipient.
    fn place(&self, id: &str) -> (PathBuf, String);
    /// Makes it so that delivery `id` finds what its kind says.
    fn prepare(&self, _id: &str, kind: Kind) {
        assert!(!kind.is_in_doubt(), "not here");
    }
    /// Nothing but the one copy each in the recipient's INBOX and the author's Sent, as the ledger says.
    fn judge(&self, id: &str, kind: Kind) -> Result<(), String>;
}

/// A new ledger and new Maildirs for each delivery: making them is among the steps.
pub struct Embedded(pub TempRoot);

impl Embedded {
    fn at(&self, id: &str) -> PathBuf {
        self.0.join(id)
    }
}

impl Site for Embedded {
    fn name(&self) -> &'static str {
        "SQLite + Maildir"
    }

    fn place(&self, id: &str) -> (PathBuf, String) {
        let at = self.at(id);
        let text = format!(
            "[ledger]\nurl = \"sqlite://{0}/ledger/ledger.db\"\n[store]\nurl = \"maildir://{0}/mail\"\n[directory]\n\
             domains = [\"mail.axial.net\"]\n[sent]\ntrust = \"authenticated\"\nauthserv_id = \"mail.axial.net\"\n{TIMES}",
            at.display()
        );
        (self.0.write(&format!("{id}/onedrop.toml"), text), format!("to-{id}@mail.axial.net"))
    }

    fn judge(&self, id: &str, kind: Kind) -> Result<(), String> {
        let mail = self.at(id).join("mail");
        let ledger =
            rusqlite::Connection::open(self.at(id).join("ledger/ledger.db")).map_err(|error| error.to_string())?;
        let clean = "SELECT file_name FROM onedrop_copy WHERE account = ?1 AND mailbox = ?2 AND placed_at NOT NULL \
                     AND in_doubt = 0 AND leased_until IS NULL AND (SELECT count(*) FROM onedrop_copy) = 2 \
                     AND (SELECT count(*) FROM onedrop_message) = 1";
        for (account, mailbox, folder, sub) in
            [(format!("to-{id}"), "INBOX", "Maildir", "new"), (format!("from-{id}"), "Sent", "Maildir/.Sent", "cur")]
        {
            let name: String = ledger
                .query_row(clean, (&account, mailbox), |row| row.get(0))
                .map_err(|error| format!("ledger of {account}/{mailbox}: {error}"))?;
            let folder = mail.join(&account).join(folder);
            let files: Vec<String> = ["new", "cur"].iter().flat_map(|sub| files(&folder.join(sub))).collect();
            let [file] = files.as_slice() else { return Err(format!("{account}/{mailbox}: {files:?}")) };
            if file.split(':').next() != Some(&*name) {
                return Err(format!("{account}/{mailbox}: the ledger names {name}, there is {file}"));
            }
            if fs::read(folder.join(sub).join(file)).map_err(|error| error.to_string())? != message(id, kind) {
                return Err(format!("{account}/{mailbox}: not the message's bytes"));
            }
        }
        let litter = litter(&mail);
        if !litter.is_empty() {
            return Err(format!("litter: {litter:?}"));
        }
        let mut beside = files(&self.at(id).join("ledger"));
        beside.retain(|file| !["ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db-locks"].contains(&&**file));
        if beside.is_empty() { Ok(()) } else { Err(format!("beside the ledger: {beside:?}")) }
    }
}

fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// What is left under any `tmp/` below.
fn litter(folder: &Path) -> Vec<PathBuf> {
    let mut left = Vec::new();
    for name in files(folder) {
        let path = folder.join(&name);
        if name == "tmp" {
            left.extend(files(&path).into_iter().map(|file| path.join(file)));
        } else if path.is_dir() {
            left.extend(litter(&path));
        }
    }
    left
}

/// One Postgres and one Dovecot; each delivery has accounts of its own.
pub struct Servers {
    world: World,
    config: PathBuf,
    /// The same with a store that nobody serves.
    without_store: PathBuf,
}

impl Servers {
    pub fn start() -> Servers {
        let world = World::start();
        let directory = "[directory]\ndomains = [\"mail.axial.net\"]\n[sent]\ntrust = \"authenticated\"\nauthserv_id = \"mail.axial.net\"\n";
        let more = format!("{directory}{TIMES}");
        let (config, ledger) = (world.config("host", &more), format!("url = \"{}\"", world.postgres.url_socket()));
        let nobody = "url = \"imap://127.0.0.1:1\"\nstarttls = false";
        let without_store = world.config_by("without-store", &ledger, nobody, &more);
        Servers { world, config, without_store }
    }
}

impl Site for Servers {
    fn name(&self) -> &'static str {
        "Postgres + IMAP"
    }

    fn place(&self, id: &str) -> (PathBuf, String) {
        (self.config.clone(), format!("to-{id}@mail.axial.net"))
    }

    fn prepare(&self, id: &str, kind: Kind) {
        let (config, status) = match kind {
            Kind::Small | Kind::Large => return,
            Kind::InDoubt => (&self.without_store, 75),
            Kind::InDoubtWithCopies => (&self.config, 0),
        };
        let output = deliver(config, &["-d", &format!("to-{id}@mail.axial.net")], &message(id, kind));
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        self.world.forget_receipts(&format!("account IN ('to-{id}', 'from-{id}')"));
    }

    fn judge(&self, id: &str, kind: Kind) -> Result<(), String> {
        let (World { postgres, dovecot, .. }, message) = (&self.world, message(id, kind));
        let wire = String::from_utf8_lossy(&message).replace('\n', "\r\n");
        for (account, mailbox) in [(format!("to-{id}"), "INBOX"), (format!("from-{id}"), "Sent")] {
            let uids = dovecot.uids(&account, mailbox);
            let [uid] = uids.as_slice() else { return Err(format!("{account}/{mailbox}: UIDs {uids:?}")) };
            if dovecot.messages(&account, mailbox) != [wire.as_bytes()] {
                return Err(format!("{account}/{mailbox}: not the message's bytes"));
            }
            let row = postgres.psql(&format!(
                "SELECT uid, in_doubt, leased_until IS NULL, placed_at IS NOT NULL FROM onedrop_copy \
                 WHERE account = '{account}' AND mailbox = '{mailbox}'"
            ));
            if row != format!("{uid}|f|t|t") {
                return Err(format!("{account}/{mailbox}: UID {uid}, and the ledger says {row}"));
            }
            let tmp = || litter(&dovecot.mail_root().join(&account));
            // Dovecot clears away what a cut connection left when it notices.
            if !wait_until(Duration::from_secs(5), || tmp().is_empty()) {
                return Err(format!("litter: {:?}", tmp()));
            }
        }
        Ok(())
    }
}
