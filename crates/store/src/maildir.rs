//! Mailboxes as Maildirs: ROOT/ACCOUNT/Maildir, or what the folder template of `store.url` says, is
//! the INBOX, other mailboxes are Maildir++ folders in it. A copy's file is named after its key, so
//! a second append of one copy finds the name taken: the append is idempotent by itself, until a
//! reader renames the first. So a slot holds the copy's lock: a delivery has it from before it read
//! the copy's row in the ledger until its receipt is on record there.
//!
//! A file is written without a name (O_TMPFILE), synced, linked into its folder, and the folder is
//! synced: a crash before the link leaves nothing at all, one after it a whole message. Where the
//! file system has no unnamed files, a name under `tmp/` is used and a crash may leave it there
//! (Maildir readers remove such files after 36 hours).

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use nix::libc;

use super::utf7::modified_utf7;
use onedrop_core::connections::Connections;
use onedrop_core::deadline::Deadline;
use onedrop_core::directory::{Destination, FolderTemplate, SENT_ROLE};
use onedrop_core::lock_key::{self, Hash};
use onedrop_core::os::durable::{sync_folder, sync_way_to};
use onedrop_core::os::owner;
use onedrop_core::store::{Access, Mailboxes, Need, Slot, Store, StoreTraits};
use onedrop_core::store::{Copy, CopySearch, FoundCopy, LookBack, LookedBack, Receipt, StoreError};

use copies::{entries, is_named};
use file::Unlinked;
use lock::{CopyLock, LOCKS};

mod access;
mod copies;
mod file;
mod lock;
mod same_id;
mod sync;

/// Of a folder, without the dot in front (NAME_MAX).
const LONGEST_NAME: usize = 254;

/// Of a Maildir; the last one that is made is the one that readers look for.
const SUBFOLDERS: [&str; 3] = ["tmp", "cur", "new"];

/// A look that does not look back finds no copy of more than a day before.
const DAY_SECS: u64 = 24 * 3600;

/// What is read of a `subscriptions` file.
const LARGEST_SUBSCRIPTIONS: u64 = 1024 * 1024;

/// A Maildir++ folder has this file, an INBOX has none.
const FOLDER_MARK: &str = "maildirfolder";

/// Maildirs under one root.
#[derive(Debug)]
pub struct MaildirStore {
    template: Result<FolderTemplate, String>,
    create_mailboxes: bool,
    /// The root, and accounts' folders, are made where they are missing.
    trial: bool,
}

/// A copy whose lock is held.
struct MaildirSlot<'a> {
    folder: PathBuf,
    /// There is no such folder, and none is made.
    is_missing: bool,
    /// The name by which its file will be known.
    name: String,
    destination: &'a Destination,
    copy: Copy<'a>,
    deadline: &'a Deadline,
    /// Written, in no mailbox yet, and being synced.
    written: Option<Unlinked>,
    /// Given up after the file.
    _locks: Vec<CopyLock>,
}

impl MaildirStore {
    /// `place`: a folder or a [`FolderTemplate`]. `create_mailboxes`: make a missing Maildir or
    /// folder, and subscribe to the folder.
    pub fn new(place: impl AsRef<Path>, create_mailboxes: bool) -> MaildirStore {
        let template = FolderTemplate::parse(place.as_ref());
        MaildirStore { template, create_mailboxes, trial: false }
    }

    /// With `trial` what is missing above a Maildir is made as well.
    pub fn in_trial(self, trial: bool) -> MaildirStore {
        MaildirStore { trial, ..self }
    }

    /// The folder of a mailbox: Maildir++ puts `Archive/2026` into `.Archive.2026`.
    fn folder(&self, destination: &Destination) -> Result<PathBuf, StoreError> {
        let (account, mailbox) = (&destination.account, name_of(destination));
        let template = self.template.as_ref();
        let template =
            template.map_err(|error| StoreError::NotStored(format!("store.url {error}")))?;
        let Some(inbox) = template.folder(account) else {
            let why = if template.needs_domain() { " (store.url needs local@domain)" } else { "" };
            return Err(StoreError::NotStored(format!("{account:?} cannot name a folder{why}")));
        };
        if mailbox.eq_ignore_ascii_case("INBOX") {
            return Ok(inbox);
        }
        let name = modified_utf7(&mailbox.replace('/', "."));
        if name.is_empty()
            || name.len() > LONGEST_NAME
            || name.starts_with('.')
            || name.chars().any(char::is_control)
        {
            return Err(StoreError::Refused(format!("{mailbox:?} cannot name a mailbox")));
        }
        Ok(inbox.join(format!(".{name}")))
    }

    fn ensure(&self, folder: &Path, destination: &Destination) -> Result<(), StoreError> {
        // What is made last shows that all of it was: a crash in between must not leave a mailbox
        // unsubscribed.
        let is_inbox = destination.place() == "INBOX";
        let mut is_whole = is_inbox || folder.join(FOLDER_MARK).exists();
        for sub in SUBFOLDERS {
            is_whole = is_whole && is_folder(&folder.join(sub))?;
        }
        if is_whole {
            // The process that made it may have died before its name was durable; the lock file is
            // made after that.
            return match folder.join(LOCKS).exists() {
                true => Ok(()),
                false => sync_way_to(folder).map_err(|error| at(folder, &error)),
            };
        }
        if !self.create_mailboxes {
            return Err(StoreError::Refused(no_maildir(folder)));
        }
        // Whoever delivers has seen it; it may be gone since then.
        if let Some(root) = self.root().filter(|root| !root.join(".").is_dir()) {
            return Err(StoreError::NotStored(format!("{} is not there", root.display())));
        }
        make_missing(folder)?;
        if let Some(inbox) = folder.parent().filter(|_| !is_inbox) {
            self.ensure(inbox, &Destination::inbox(&destination.account))?;
            subscribe(inbox, name_of(destination)).map_err(|error| at(inbox, &error))?;
            let mark = own_file().write(true).open(folder.join(FOLDER_MARK));
            mark.map_err(|error| at(folder, &error))?;
        }
        // The names of all that was made must be as durable as the mail in it.
        sync_way_to(folder).map_err(|error| at(folder, &error))
    }
}

impl Store for MaildirStore {
    fn traits(&self) -> StoreTraits {
        StoreTraits { append_is_idempotent: true, keeps_nul: true, ..StoreTraits::default() }
    }

    fn prepare(&self, _account: &str, _until: Instant) {}

    fn let_go(&self, _account: &str) {}

    fn reserve<'a>(
        &'a self,
        destination: &'a Destination,
        copy: Copy<'a>,
        need: Need,
        deadline: &'a Deadline,
    ) -> Result<Option<Box<dyn Slot + 'a>>, StoreError> {
        let mut slot = match self.lock(destination, copy, deadline) {
            Ok(Some(slot)) => slot,
            // What keeps an early one from its lock shows when the copy is to be written.
            Err(error) if need != Need::Early => return Err(error),
            Ok(None) | Err(_) => return Ok(None),
        };
        let begins = match need {
            Need::Early => true,
            Need::Write => sync::is_running(),
            Need::Look => false,
        };
        if begins {
            slot.begin();
        }
        Ok(Some(Box::new(slot)))
    }

    /// 60,000 files are listed in 0.2 s.
    fn look_back(
        &self,
        _destination: &Destination,
        _sought: &LookBack,
        _until: Instant,
    ) -> Result<Option<LookedBack>, StoreError> {
        Ok(None)
    }

    fn remove(
        &self,
        destination: &Destination,
        receipt: &Receipt,
        _sought: Option<&CopySearch<'_>>,
        _until: Instant,
    ) -> Result<(), StoreError> {
        let Some(name) = receipt.as_name() else {
            return Err(StoreError::NotStored(format!("receipt {receipt} names no file")));
        };
        let folder = self.folder(destination)?;
        match name.split_once('/') {
            Some(("new" | "cur", file)) if !file.contains('/') => {
                return remove_file(&folder.join(name));
            }
            Some(_) => return Ok(()),
            None => {}
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
}

impl MaildirStore {
    /// Takes the lock of `copy`; `None`: another has it.
    fn lock<'a>(
        &self,
        destination: &'a Destination,
        copy: Copy<'a>,
        deadline: &'a Deadline,
    ) -> Result<Option<MaildirSlot<'a>>, StoreError> {
        let folder = self.folder(destination)?;
        // One that may be missing has its locks in INBOX: it must not come into being between two
        // deliveries of which one has found it missing. So that copy is locked there as well where
        // it is a shared one for another delivery.
        let stand_in = destination.stand_in();
        let inbox = Destination::inbox(&destination.account);
        let keepers: &[&Destination] = match &stand_in {
            None if destination.place() != inbox.place() => &[&inbox, destination],
            _ => &[&inbox],
        };
        let mut locks = Vec::new();
        for keeper in keepers {
            let at = self.folder(keeper)?;
            let others = owner::keeps_root_out(&at).or_else(|| owner::keeps_root_out(&folder));
            if let Some(why) = others {
                return Err(StoreError::Setup(why));
            }
            self.ensure(&at, keeper)?;
            let lock = CopyLock::try_take(&at, copy.key)
                .map_err(|error| not_stored(&at.join(LOCKS), &error))?;
            let Some(lock) = lock else { return Ok(None) };
            locks.push(lock);
        }
        let name = file_name(copy.key, copy.recorded_at);
        let is_missing = stand_in.is_some() && !is_folder(&folder.join("new"))?;
        if stand_in.is_some() && !is_missing && self.create_mailboxes {
            make_missing(&folder)?;
        }
        Ok(Some(MaildirSlot {
            folder,
            is_missing,
            name,
            destination,
            copy,
            deadline,
            written: None,
            _locks: locks,
        }))
    }
}

impl MaildirSlot<'_> {
    /// Writes the file and begins to sync it, so that the disk works while the ledger is asked:
    /// 4 to 7 % more messages a second. An error shows when that is done again for the append.
    fn begin(&mut self) {
        self.written = Unlinked::write(&self.folder, &self.name, &self.copy).ok();
        if let Some(file) = &mut self.written {
            file.begin_sync();
        }
    }

    /// The file, as durable as its name is to be.
    fn synced(&mut self) -> io::Result<Unlinked> {
        let mut file = match self.written.take() {
            Some(file) => file,
            None => Unlinked::write(&self.folder, &self.name, &self.copy)?,
        };
        file.sync().map(|()| file)
    }
}

impl Slot for MaildirSlot<'_> {
    fn look(&mut self, _until: Instant) -> Result<Option<Receipt>, StoreError> {
        if self.is_missing {
            return Ok(None);
        }
        let sought = self.copy.sought();
        let mut found = copies::find(&self.folder, &self.name, &sought)?;
        if found.is_empty() {
            // Its record may have been lost, and another delivery's be on record since.
            found = of_other_times(&self.folder, &self.name, &sought)?;
        }
        Ok(found.into_iter().next().map(|found| found.receipt))
    }

    fn append(&mut self) -> Result<Receipt, StoreError> {
        // New mail goes to new/; a file with flags belongs in cur/.
        let target = if self.destination.shared {
            self.folder.join("cur").join(format!("{}:2,S", self.name))
        } else {
            self.folder.join("new").join(&self.name)
        };
        if self.is_missing {
            let text = format!("{} is no Maildir", self.folder.display());
            return Err(StoreError::Refused(text));
        }
        // Its owner's mail program may have made it a moment ago.
        if let Some(inbox) = self.folder.parent().filter(|_| self.destination.stand_in().is_some())
        {
            for folder in [&self.folder, inbox] {
                sync_folder(folder).map_err(|error| at(folder, &error))?;
            }
        }
        let file = self
            .synced()
            .map_err(|error| not_made(self.destination, &self.folder.join("tmp"), &error))?;
        self.deadline
            .pass_point_of_no_return()
            .map_err(|error| StoreError::NotStored(error.to_string()))?;
        match file.link(&target, &self.folder, &self.name, &self.copy) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // Over NFS the answer may be lost and the link made; the caller will look.
            Err(error) if !is_refusal(&error) => {
                return Err(StoreError::InDoubt(format!("{}: {error}", target.display())));
            }
            Err(error) => return Err(not_made(self.destination, &target, &error)),
        }
        let sub = target.parent().unwrap_or(&self.folder);
        sync_folder(sub)
            .map_err(|error| StoreError::InDoubt(format!("{}: {error}", sub.display())))?;
        Ok(Receipt::name(&self.name))
    }
}

impl Mailboxes for MaildirStore {
    fn find_all(
        &self,
        destination: &Destination,
        sought: &[CopySearch<'_>],
        _until: Instant,
    ) -> Result<Vec<Vec<FoundCopy>>, StoreError> {
        let folder = self.folder(destination)?;
        let names: Vec<String> =
            sought.iter().map(|sought| file_name(sought.key, sought.recorded_at)).collect();
        copies::undo_killed_removals(&folder)?;
        let of_our_name = copies::find_all(&folder, &names, sought)?;
        let mut all = Vec::new();
        for ((sought, name), ours) in sought.iter().zip(&names).zip(of_our_name) {
            let mut found =
                if sought.by_id { same_id::find(&folder, name, sought)? } else { vec![] };
            if sought.looks_back || sought.may_have_other_name(name) {
                found.extend(of_other_times(&folder, name, sought)?);
            }
            found.extend(ours);
            all.push(found);
        }
        Ok(all)
    }

    fn remove_double(
        &self,
        destination: &Destination,
        double: &Receipt,
        keeper: &Receipt,
        _until: Instant,
    ) -> Result<(), StoreError> {
        match double.as_name().zip(keeper.as_name()) {
            Some((double, keeper)) => {
                copies::remove_double(&self.folder(destination)?, double, keeper)
            }
            None => Err(StoreError::NotStored(format!("{double} and {keeper} name no two files"))),
        }
    }

    fn remove_handed_double(
        &self,
        _account: &str,
        _double: &FoundCopy,
        _keeper: &FoundCopy,
        _until: Instant,
    ) -> Result<(), StoreError> {
        Err(StoreError::NotStored("nothing is handed over here".to_owned()))
    }
}

impl Connections for MaildirStore {}

/// The file's name: time of recording, the copy's key, and the program that wrote it (Maildir's
/// `time.unique.host`).
fn file_name(key: &Hash, recorded_at: SystemTime) -> String {
    let seconds = recorded_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    format!("{seconds}.{}.onedrop", lock_key::hex(&key[..12]))
}

/// What stands of a copy under other names than its own: it was written under another time of
/// recording, and the key in a file's name says that it is this copy.
fn of_other_times(
    folder: &Path,
    name: &str,
    sought: &CopySearch<'_>,
) -> Result<Vec<FoundCopy>, StoreError> {
    let since = time_of(name).saturating_sub(DAY_SECS);
    let is_wanted =
        |other: &&String| *other != name && (sought.looks_back || time_of(other) >= since);
    let mut found = Vec::new();
    for other in copies::names_with(folder, key_of(name))?.iter().filter(is_wanted) {
        found.extend(copies::find(folder, other, sought)?);
    }
    Ok(found)
}

/// The time in a file's name, in seconds since 1970.
fn time_of(name: &str) -> u64 {
    name.split_once('.').and_then(|(time, _)| time.parse().ok()).unwrap_or(0)
}

/// A file's name without its time: the copy's key, and who wrote it.
fn key_of(name: &str) -> &str {
    name.split_once('.').map_or(name, |(_, key)| key)
}

/// Nothing marks a Maildir++ folder: the one for sent mail has the usual name.
fn name_of(destination: &Destination) -> &str {
    match destination.place() {
        SENT_ROLE => "Sent",
        name => name,
    }
}

/// Adds a mailbox to the `subscriptions` file that Maildir++ readers share, in the form that the
/// file has: Dovecot's version 2 puts a tab between the names of a hierarchy, before it there was a
/// dot.
fn subscribe(inbox: &Path, mailbox: &str) -> io::Result<()> {
    let path = inbox.join("subscriptions");
    let mut known = Vec::new();
    if let Ok(file) = own_file().create(false).read(true).open(&path) {
        file.take(LARGEST_SUBSCRIPTIONS).read_to_end(&mut known)?;
    }
    let known = String::from_utf8_lossy(&known);
    let separator = if known.starts_with("V\t2") { "\t" } else { "." };
    let mailbox = modified_utf7(mailbox).replace('/', separator);
    if known.lines().any(|line| line == mailbox) {
        return Ok(());
    }
    let mut file = own_file().append(true).open(path)?;
    file.write_all(format!("{mailbox}\n").as_bytes())
}

/// For a file that is there or is made. The folder may be its owner's: no link to elsewhere is
/// followed, and no pipe holds anybody up.
fn own_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options
}

/// Makes the parts of a Maildir that are not there.
fn make_missing(folder: &Path) -> Result<(), StoreError> {
    for sub in SUBFOLDERS.map(|sub| folder.join(sub)) {
        if !is_folder(&sub)? {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&sub);
            made.map_err(|error| not_stored(folder, &error))?;
        }
    }
    Ok(())
}

fn no_maildir(folder: &Path) -> String {
    format!("{} is no Maildir and store.create_mailboxes is false", folder.display())
}

/// Whether a folder is there, and open to us.
///
/// # Errors
/// It cannot be found out (NFS): as "not there" it would file the mail elsewhere for good.
fn is_folder(path: &Path) -> Result<bool, StoreError> {
    use io::ErrorKind as Kind;
    match fs::metadata(path) {
        Ok(found) => Ok(found.is_dir()),
        Err(error) => match error.kind() {
            Kind::NotFound | Kind::NotADirectory | Kind::PermissionDenied => Ok(false),
            _ => Err(not_stored(path, &error)),
        },
    }
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

/// Why the copy's file was not made at `path`. A mailbox that is not open to us counts as one that
/// is not there.
fn not_made(destination: &Destination, path: &Path, error: &io::Error) -> StoreError {
    match error.kind() {
        io::ErrorKind::PermissionDenied if destination.stand_in().is_some() => {
            StoreError::Refused(format!("{}: {error}", path.display()))
        }
        _ => not_stored(path, error),
    }
}

fn not_stored(path: &Path, error: &io::Error) -> StoreError {
    let text = format!("{}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::QuotaExceeded => StoreError::OverQuota(text),
        io::ErrorKind::FileTooLarge => StoreError::TooBig(text),
        _ => StoreError::NotStored(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mailbox_that_is_not_open_to_us_counts_as_one_that_is_not_there() {
        let closed = io::Error::from(io::ErrorKind::PermissionDenied);
        let own = |mailbox| Destination { shared: false, ..Destination::sent("doug", mailbox) };
        let why = |to: &Destination| not_made(to, Path::new("new/file"), &closed);
        assert!(matches!(why(&own("lists")), StoreError::Refused(_)));
        for without_other in [Destination::inbox("doug"), Destination::sent("doug", "Sent")] {
            assert!(matches!(why(&without_other), StoreError::NotStored(_)), "{without_other}");
        }
    }
}
