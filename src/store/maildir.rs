//! Mailboxes as Maildirs: ROOT/ACCOUNT/Maildir, or what the folder template of `store.url` says, is
//! the INBOX, other mailboxes are Maildir++ folders in it. A copy's file is named after its key, so
//! a second append of one copy finds the name taken: the append is idempotent by itself, until a
//! reader renames the first. So whoever looks for a copy and appends it holds its lock from before
//! it was read in the ledger until its receipt is on record there.
//!
//! A file is written without a name (O_TMPFILE), synced, linked into its folder, and the folder is
//! synced: a crash before the link leaves nothing at all, one after it a whole message. Where the
//! file system has no unnamed files, a name under `tmp/` is used and a crash may leave it there
//! (Maildir readers remove such files after 36 hours).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;

use super::utf7::modified_utf7;
use super::{Copy, Found, Receipt, Sought, Store, StoreError, Way, Whose};
use crate::deadline::Deadline;
use crate::directory::{Destination, FolderTemplate, TemplateError};
use crate::durable::{sync_folder, sync_way_to};
use crate::lock_key::{self, Hash};

use copies::{entries, is_named};
use file::Unlinked;
use lock::{CopyLock, LOCKS};
use sync::Syncing;

mod copies;
mod file;
mod lock;
mod sync;

/// Maildir++: tells a folder from an INBOX.
const FOLDER_MARK: &str = "maildirfolder";

/// A file that was written ahead, for that date, and is being synced.
#[derive(Debug)]
struct Begun {
    recorded_at: SystemTime,
    file: Unlinked,
    syncing: Syncing,
}

impl Begun {
    fn end(self) -> io::Result<Unlinked> {
        self.syncing.end()?;
        Ok(self.file)
    }
}

/// Maildirs under one root.
#[derive(Debug)]
pub struct MaildirStore {
    place: Result<FolderTemplate, TemplateError>,
    create_mailboxes: bool,
    held: Option<Held>,
}

/// A copy whose lock is held.
#[derive(Debug)]
struct Held {
    key: Hash,
    begun: Option<Begun>,
    /// Given up after the file.
    _lock: CopyLock,
}

impl MaildirStore {
    /// `place`: a folder or a [`FolderTemplate`]. `create_mailboxes`: make a missing Maildir or
    /// folder, and subscribe to the folder.
    pub fn new(place: impl AsRef<Path>, create_mailboxes: bool) -> MaildirStore {
        MaildirStore { place: FolderTemplate::parse(place.as_ref()), create_mailboxes, held: None }
    }

    fn place(&self) -> Result<&FolderTemplate, StoreError> {
        self.place.as_ref().map_err(|error| StoreError::NotStored(format!("store.url {error}")))
    }

    /// The folder of a mailbox: Maildir++ puts `Archive/2026` into `.Archive.2026`.
    fn folder(&self, destination: &Destination) -> Result<PathBuf, StoreError> {
        let place = self.place()?;
        let Some(inbox) = place.folder(&destination.account) else {
            let why = if place.needs_domain() { " (store.url needs local@domain)" } else { "" };
            return Err(StoreError::NotStored(format!(
                "{:?} cannot name a folder{why}",
                destination.account
            )));
        };
        if destination.mailbox.eq_ignore_ascii_case("INBOX") {
            return Ok(inbox);
        }
        let name = modified_utf7(&destination.mailbox.replace('/', "."));
        if name.is_empty() || name.starts_with('.') || name.chars().any(char::is_control) {
            return Err(StoreError::NotStored(format!(
                "{:?} cannot name a mailbox",
                destination.mailbox
            )));
        }
        Ok(inbox.join(format!(".{name}")))
    }

    fn ensure(&self, folder: &Path, destination: &Destination) -> Result<(), StoreError> {
        // What is made last tells that all of it was: a crash in between must not leave a mailbox
        // unsubscribed.
        let is_inbox = destination.mailbox == "INBOX";
        if if is_inbox { folder.join("new").is_dir() } else { folder.join(FOLDER_MARK).exists() } {
            // Whoever made it may have died before its name was durable; the lock file is made
            // after that.
            return match folder.join(LOCKS).exists() {
                true => Ok(()),
                false => sync_way_to(folder).map_err(|error| at(folder, &error)),
            };
        }
        if !self.create_mailboxes {
            let text =
                format!("{} is no Maildir and store.create_mailboxes is false", folder.display());
            return Err(StoreError::Refused(text));
        }
        create_maildir(folder).map_err(|error| not_stored(folder, &error))?;
        match folder.parent() {
            Some(inbox) if !is_inbox => {
                self.ensure(inbox, &Destination::inbox(&destination.account))?;
                subscribe(inbox, &destination.mailbox).map_err(|error| at(inbox, &error))?;
                File::create(folder.join(FOLDER_MARK))
                    .map(drop)
                    .map_err(|error| at(folder, &error))?;
            }
            Some(_) | None => {}
        }
        // The names of all that was made must be as durable as the mail in it.
        sync_way_to(folder).map_err(|error| at(folder, &error))
    }
}

impl Store for MaildirStore {
    fn append_is_idempotent(&self) -> bool {
        true
    }

    fn prepare(&mut self, _account: &str, _until: Instant) {}

    fn find(
        &mut self,
        destination: &Destination,
        sought: &Sought<'_>,
        _until: Instant,
    ) -> Result<Vec<Found>, StoreError> {
        let name = file_name(sought.key, sought.recorded_at);
        copies::find(&self.folder(destination)?, &name, sought)
    }

    fn append(
        &mut self,
        destination: &Destination,
        copy: &Copy<'_>,
        deadline: &Deadline,
    ) -> Result<Receipt, StoreError> {
        let folder = self.folder(destination)?;
        if !self.holds(copy.key) {
            self.ensure(&folder, destination)?;
        }
        let name = file_name(copy.key, copy.recorded_at);
        // New mail goes to new/; a file with flags belongs in cur/.
        let target = if destination.shared {
            folder.join("cur").join(format!("{name}:2,S"))
        } else {
            folder.join("new").join(&name)
        };
        let held = self.held.as_mut().filter(|held| held.key == *copy.key);
        let begun = held
            .and_then(|held| held.begun.take())
            .filter(|begun| begun.recorded_at == copy.recorded_at);
        let file = match begun {
            Some(begun) => begun.end(),
            None => {
                Unlinked::write(&folder, &name, copy).and_then(|file| file.sync().map(|()| file))
            }
        };
        let file = file.map_err(|error| not_stored(&folder, &error))?;
        deadline
            .pass_point_of_no_return()
            .map_err(|error| StoreError::NotStored(error.to_string()))?;
        match file.link(&target, &folder, &name, copy) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // Over NFS the answer may be lost and the link made; the caller will look.
            Err(error) if !is_refusal(&error) => {
                return Err(StoreError::InDoubt(format!("{}: {error}", target.display())));
            }
            Err(error) => return Err(not_stored(&target, &error)),
        }
        let sub = target.parent().unwrap_or(&folder);
        sync_folder(sub)
            .map_err(|error| StoreError::InDoubt(format!("{}: {error}", sub.display())))?;
        Ok(Receipt::Name(name))
    }

    fn begin_append(&mut self, destination: &Destination, copy: &Copy<'_>, deadline: &Deadline) {
        self.let_go();
        if let Ok(true) = self.hold(destination, copy.key, deadline)
            && let Ok(folder) = self.folder(destination)
            && let Some(held) = &mut self.held
        {
            let file = Unlinked::write(&folder, &file_name(copy.key, copy.recorded_at), copy);
            held.begun = file.ok().map(|file| Begun {
                recorded_at: copy.recorded_at,
                syncing: file.begin_sync(),
                file,
            });
        }
    }

    fn holds(&self, key: &Hash) -> bool {
        self.held.as_ref().is_some_and(|held| held.key == *key)
    }

    fn hold(
        &mut self,
        destination: &Destination,
        key: &Hash,
        _deadline: &Deadline,
    ) -> Result<bool, StoreError> {
        if self.holds(key) {
            return Ok(true);
        }
        self.let_go();
        let folder = self.folder(destination)?;
        self.ensure(&folder, destination)?;
        let lock = CopyLock::try_take(&folder, key)
            .map_err(|error| not_stored(&folder.join(LOCKS), &error))?;
        self.held = lock.map(|lock| Held { key: *key, begun: None, _lock: lock });
        Ok(self.held.is_some())
    }

    fn let_go(&mut self) {
        self.held = None;
    }

    fn remove(
        &mut self,
        destination: &Destination,
        receipt: &Receipt,
        _until: Instant,
    ) -> Result<(), StoreError> {
        let Receipt::Name(name) = receipt else {
            return Err(StoreError::NotStored(format!("receipt {receipt} names no file")));
        };
        let folder = self.folder(destination)?;
        if let Some((sub @ ("new" | "cur"), file)) = name.split_once('/') {
            return if file.contains('/') {
                Ok(())
            } else {
                remove_file(&folder.join(sub).join(file))
            };
        }
        // As in the look: a reader may rename it meanwhile.
        for sub in ["new", "cur", "cur"] {
            let sub = folder.join(sub);
            for entry in entries(&sub)?.iter().filter(|entry| is_named(entry, name)) {
                remove_file(&sub.join(entry))?;
            }
        }
        Ok(())
    }

    fn remove_double(
        &mut self,
        destination: &Destination,
        double: &Receipt,
        keeper: &Receipt,
        _until: Instant,
    ) -> Result<(), StoreError> {
        match (double, keeper) {
            (Receipt::Name(double), Receipt::Name(keeper)) => {
                copies::remove_double(&self.folder(destination)?, double, keeper)
            }
            _ => Err(StoreError::NotStored(format!("{double} and {keeper} name no two files"))),
        }
    }

    fn way(&self) -> Option<Way> {
        None
    }

    fn whose_mailboxes(&mut self, _: &str, _: Instant) -> Result<Whose, StoreError> {
        Ok(Whose::Accounts("no server stands between".to_owned()))
    }

    fn check(&mut self, account: &str, _until: Instant) -> Result<Vec<String>, StoreError> {
        let inbox = self.folder(&Destination::inbox(account))?;
        let exists = inbox.join("new").is_dir();
        let nearest = inbox.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        let writable = nix::unistd::access(nearest, nix::unistd::AccessFlags::W_OK);
        writable.map_err(|errno| at(nearest, &io::Error::from(errno)))?;
        let state = if exists { "exists" } else { "will be made at the first delivery" };
        let folder = format!("{} {state}; {} is writable", inbox.display(), nearest.display());
        let path = inbox.join(LOCKS);
        match CopyLock::keeps_others_out(&inbox).map_err(|error| at(&path, &error))? {
            Some(true) => {
                Ok(vec![folder, format!("locks in {} exclude each other", path.display())])
            }
            Some(false) => {
                let text =
                    format!("{}: locks keep nobody out (NFS without locking?)", path.display());
                Err(StoreError::NotStored(text))
            }
            None if exists => {
                Ok(vec![folder, format!("{} will be made by the next delivery", path.display())])
            }
            None => Ok(vec![folder]),
        }
    }
}

/// The file's name: time of recording, the copy's key, and who wrote it (Maildir's
/// `time.unique.host`).
fn file_name(key: &Hash, recorded_at: SystemTime) -> String {
    let seconds = recorded_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    format!("{seconds}.{}.onedrop", lock_key::hex(&key[..12]))
}

fn create_maildir(folder: &Path) -> io::Result<()> {
    for sub in ["tmp", "cur", "new"] {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder.join(sub))?;
    }
    Ok(())
}

/// Adds a mailbox to the `subscriptions` file that Maildir++ readers share, in the form that the
/// file has: Dovecot's version 2 puts a tab between the names of a hierarchy, before it there was a
/// dot.
fn subscribe(inbox: &Path, mailbox: &str) -> io::Result<()> {
    let path = inbox.join("subscriptions");
    let known = fs::read_to_string(&path).unwrap_or_default();
    let separator = if known.starts_with("V\t2") { "\t" } else { "." };
    let mailbox = modified_utf7(mailbox).replace('/', separator);
    if known.lines().any(|line| line == mailbox) {
        return Ok(());
    }
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    file.write_all(format!("{mailbox}\n").as_bytes())
}

/// Removes a file; that it is gone is fine.
fn remove_file(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path, &error)),
        _ => Ok(()),
    }
}

/// Whether a link that failed this way was certainly not made.
fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::NotFound
            | Kind::NotADirectory
            | Kind::PermissionDenied
            | Kind::ReadOnlyFilesystem
            | Kind::StorageFull
            | Kind::QuotaExceeded
            | Kind::FileTooLarge
            | Kind::TooManyLinks
            | Kind::CrossesDevices
            | Kind::InvalidInput
            | Kind::InvalidFilename
            | Kind::Unsupported
    )
}

fn at(path: &Path, error: &io::Error) -> StoreError {
    StoreError::NotStored(format!("{}: {error}", path.display()))
}

fn not_stored(path: &Path, error: &io::Error) -> StoreError {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EDQUOT) => StoreError::OverQuota(format!("{}: {error}", path.display())),
        Some(Errno::EFBIG) => StoreError::TooBig(format!("{}: {error}", path.display())),
        _ => at(path, error),
    }
}
