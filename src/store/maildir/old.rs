//! Maildirs as the delivery uses them that is not yet moved to the port's handles.

use std::io;
use std::path::Path;
use std::time::{Instant, SystemTime};

use super::file::Unlinked;
use super::lock::{CopyLock, LOCKS};
use super::sync::Syncing;
use super::{copies, file_name, is_refusal, not_stored};
use crate::deadline::Deadline;
use crate::directory::Destination;
use crate::durable::sync_folder;
use crate::lock_key::Hash;
use crate::store::port::{Access, Mailboxes, Store as _};
use crate::store::{Copy, Found, Receipt, Sought, Store, StoreError, Way, Whose};

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
    store: super::MaildirStore,
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
    pub fn new(place: impl AsRef<Path>, create_mailboxes: bool) -> MaildirStore {
        MaildirStore { store: super::MaildirStore::new(place, create_mailboxes), held: None }
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
        copies::find(&self.store.folder(destination)?, &name, sought)
    }

    fn append(
        &mut self,
        destination: &Destination,
        copy: &Copy<'_>,
        deadline: &Deadline,
    ) -> Result<Receipt, StoreError> {
        let folder = self.store.folder(destination)?;
        if !self.holds(copy.key) {
            self.store.ensure(&folder, destination)?;
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
            && let Ok(folder) = self.store.folder(destination)
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
        let folder = self.store.folder(destination)?;
        self.store.ensure(&folder, destination)?;
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
        until: Instant,
    ) -> Result<(), StoreError> {
        self.store.remove(destination, receipt, until)
    }

    fn remove_double(
        &mut self,
        destination: &Destination,
        double: &Receipt,
        keeper: &Receipt,
        until: Instant,
    ) -> Result<(), StoreError> {
        self.store.remove_double(destination, double, keeper, until)
    }

    fn way(&self) -> Option<Way> {
        None
    }

    fn whose_mailboxes(&mut self, account: &str, until: Instant) -> Result<Whose, StoreError> {
        self.store.whose_mailboxes(account, until)
    }

    fn check(&mut self, account: &str, until: Instant) -> Result<Vec<String>, StoreError> {
        self.store.check(account, until)
    }
}
