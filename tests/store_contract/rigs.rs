//! A server or a folder for each adapter, and what the suite wants of it.

use std::fs;
use std::path::{Path, PathBuf};

use onedrop::login::LoginForm;
use onedrop::net::pool::Limits;
use onedrop::store::TrustSearch;
use onedrop::store::imap::{ImapSettings, ImapStore, Tls};
use onedrop::store::maildir::MaildirStore;

use super::*;
use crate::support::TempRoot;
use crate::support::dovecot::Dovecot;

pub struct MemoryRig(pub MemoryStore);

impl Rig for MemoryRig {
    fn store(&self) -> Box<dyn AnyStore> {
        Box::new(self.0.clone())
    }

    fn store_that_makes_nothing(&self) -> Option<Box<dyn AnyStore>> {
        None
    }

    fn messages(&self, account: &str, mailbox: &str) -> Vec<(Vec<u8>, bool)> {
        let copies = self.0.copies(account, mailbox);
        copies.into_iter().map(|stored| (stored.bytes, stored.seen)).collect()
    }

    fn dates(&self, account: &str, mailbox: &str) -> Option<Vec<SystemTime>> {
        Some(self.0.copies(account, mailbox).into_iter().map(|stored| stored.date).collect())
    }

    fn read(&self, account: &str, mailbox: &str) {
        self.0.meddle(account, mailbox, |stored| {
            stored.iter_mut().for_each(|one| one.renamed = true)
        });
    }

    fn mark_deleted(&self, account: &str, mailbox: &str) {
        self.0.meddle(account, mailbox, |stored| {
            stored.iter_mut().for_each(|one| one.marked_deleted = true)
        });
    }
}

/// The file of a Maildir's locks.
pub const LOCKS: &str = "onedrop.lock";

/// A root between two folders that no delivery may write to.
pub struct MaildirRig {
    folder: TempRoot,
}

impl MaildirRig {
    pub fn new() -> MaildirRig {
        let rig = MaildirRig { folder: TempRoot::new() };
        fs::create_dir(rig.root()).expect("the root");
        rig
    }

    pub fn root(&self) -> PathBuf {
        self.folder.join("root")
    }

    pub fn folder(&self, account: &str, mailbox: &str) -> PathBuf {
        let inbox = self.root().join(account).join("Maildir");
        if mailbox == "INBOX" {
            inbox
        } else {
            inbox.join(format!(".{}", mailbox.replace('/', ".")))
        }
    }

    pub fn files(&self, account: &str, mailbox: &str) -> Vec<PathBuf> {
        let folder = self.folder(account, mailbox);
        ["new", "cur"].iter().flat_map(|sub| list(&folder.join(sub))).collect()
    }
}

pub fn list(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

impl Rig for MaildirRig {
    fn store(&self) -> Box<dyn AnyStore> {
        Box::new(MaildirStore::new(self.root(), true))
    }

    fn store_that_makes_nothing(&self) -> Option<Box<dyn AnyStore>> {
        Some(Box::new(MaildirStore::new(self.root(), false)))
    }

    fn messages(&self, account: &str, mailbox: &str) -> Vec<(Vec<u8>, bool)> {
        let is_seen = |path: &Path| {
            path.to_string_lossy().rsplit_once(":2,").is_some_and(|(_, flags)| flags.contains('S'))
        };
        let files = self.files(account, mailbox);
        files
            .into_iter()
            .map(|path| (fs::read(&path).expect("a message"), is_seen(&path)))
            .collect()
    }

    fn dates(&self, account: &str, mailbox: &str) -> Option<Vec<SystemTime>> {
        let modified =
            |path: PathBuf| fs::metadata(path).and_then(|data| data.modified()).expect("a date");
        Some(self.files(account, mailbox).into_iter().map(modified).collect())
    }

    fn read(&self, account: &str, mailbox: &str) {
        for path in self.files(account, mailbox) {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let base = name.split(':').next().expect("a base").to_owned();
            // Dovecot adds sizes as well.
            let to =
                self.folder(account, mailbox).join("cur").join(format!("{base},S=100,W=105:2,RS"));
            fs::rename(path, to).expect("a rename");
        }
    }

    fn mark_deleted(&self, account: &str, mailbox: &str) {
        for path in self.files(account, mailbox) {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let (base, flags) = name.split_once(":2,").unwrap_or((&name, ""));
            let to = self.folder(account, mailbox).join("cur").join(format!("{base}:2,{flags}T"));
            fs::rename(path, to).expect("a rename");
        }
    }

    fn assert_nothing_outside(&self) {
        assert_eq!(list(&self.folder), [self.root()], "beside the root");
        for account in list(&self.root()) {
            assert_eq!(list(&account), [account.join("Maildir")], "beside a Maildir");
            for entry in list(&account.join("Maildir")) {
                let name = entry.file_name().expect("a name").to_string_lossy().into_owned();
                let is_part = ["new", "cur", "tmp"].contains(&name.as_str());
                let is_known = is_part
                    || name.starts_with('.')
                    || ["subscriptions", LOCKS].contains(&name.as_str());
                assert!(is_known, "{} in a Maildir", entry.display());
                if is_part {
                    assert!(
                        list(&entry).iter().all(|path| path.is_file()),
                        "a folder in {}",
                        entry.display()
                    );
                }
                if name == "tmp" {
                    assert!(list(&entry).is_empty(), "litter");
                }
            }
        }
    }
}

/// A real Dovecot, reached as the shipped settings recommend.
pub struct ImapRig {
    dovecot: Dovecot,
}

impl ImapRig {
    pub fn new() -> ImapRig {
        ImapRig { dovecot: Dovecot::shared_that_keeps_line_ends() }
    }

    pub fn maildir(&self, account: &str) -> PathBuf {
        self.dovecot.maildir(account)
    }

    fn open(&self, create_mailboxes: bool) -> Box<dyn AnyStore> {
        let settings = ImapSettings {
            host: "127.0.0.1".to_owned(),
            port: self.dovecot.imap_port(),
            tls: Tls::None,
            ca_file: None,
            user: self.dovecot.master_user().to_owned(),
            login: LoginForm::Sasl,
            password: self.dovecot.password().into(),
            create_mailboxes,
            // So that both ways are tried.
            trust_search: TrustSearch::Never,
            lock_timeout: Duration::from_secs(5),
        };
        let idle = Duration::from_secs(60);
        Box::new(ImapStore::new(settings, Limits { used: usize::MAX, per_key: 4, kept: 8, idle }))
    }

    fn fetched(&self, account: &str, mailbox: &str, item: &str) -> Vec<String> {
        let mut session = self.dovecot.session(account);
        session.command(&format!("EXAMINE {}", support::imap::quoted(mailbox))).expect("examine");
        let answer = session.command(&format!("FETCH 1:* {item}")).expect("fetch");
        answer
            .untagged
            .into_iter()
            .map(|line| line.text)
            .filter(|text| text.contains("FETCH ("))
            .collect()
    }
}

impl Rig for ImapRig {
    fn store(&self) -> Box<dyn AnyStore> {
        self.open(true)
    }

    fn store_that_makes_nothing(&self) -> Option<Box<dyn AnyStore>> {
        Some(self.open(false))
    }

    fn messages(&self, account: &str, mailbox: &str) -> Vec<(Vec<u8>, bool)> {
        if self.dovecot.count(account, mailbox) == 0 {
            return Vec::new();
        }
        let seen = self
            .dovecot
            .flags(account, mailbox)
            .into_iter()
            .map(|flags| flags.iter().any(|f| f == "\\Seen"));
        self.dovecot.messages(account, mailbox).into_iter().zip(seen).collect()
    }

    fn dates(&self, account: &str, mailbox: &str) -> Option<Vec<SystemTime>> {
        let lines = self.fetched(account, mailbox, "INTERNALDATE");
        let date = |line: String| {
            let text = line.split('"').nth(1).expect("a quoted date").trim().to_owned();
            let time =
                chrono::DateTime::parse_from_str(&text, "%d-%b-%Y %H:%M:%S %z").expect("a date");
            SystemTime::from(time)
        };
        Some(lines.into_iter().map(date).collect())
    }

    fn stored_form(&self, bytes: &[u8]) -> Vec<u8> {
        support::imap::over_imap(bytes)
    }

    fn mark_deleted(&self, account: &str, mailbox: &str) {
        let mut session = self.dovecot.session(account);
        session.command(&format!("SELECT {}", support::imap::quoted(mailbox))).expect("select");
        session.command("STORE 1:* +FLAGS (\\Seen \\Deleted)").expect("store");
    }

    fn read(&self, account: &str, mailbox: &str) {
        let mut session = self.dovecot.session(account);
        session.command(&format!("SELECT {}", support::imap::quoted(mailbox))).expect("select");
        session.command("STORE 1:* +FLAGS (\\Seen \\Answered)").expect("store");
    }
}
