//! What `onedrop check`, and whoever asks for an account, wants to know of Maildirs. Nothing here
//! makes a folder.

use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{fs, io};

use super::lock::{CopyLock, LOCKS};
use super::{MaildirStore, at, file, is_folder, no_maildir};
use onedrop_core::directory::{Destination, FolderTemplate};
use onedrop_core::store::{Access, MailboxOwner, StoreError, Way, WitnessNames};

impl Access for MaildirStore {
    fn way(&self) -> Option<Way> {
        None
    }

    fn root(&self) -> Option<&Path> {
        self.template.as_ref().ok().map(FolderTemplate::root).filter(|_| !self.trial)
    }

    fn missing_place(&self, account: &str) -> Result<Option<PathBuf>, StoreError> {
        let place = self.template.as_ref().ok().and_then(|template| template.place(account));
        let Some(place) = place.filter(|_| !self.trial) else { return Ok(None) };
        // A link counts as made by hand, also where its disk is not mounted.
        match fs::symlink_metadata(&place) {
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some(place)),
            Err(error) => Err(at(&place, &error)),
        }
    }

    fn whose_mailboxes(&self, _: &str, _: Instant) -> Result<MailboxOwner, StoreError> {
        Ok(MailboxOwner::Accounts("no server stands between".to_owned()))
    }

    fn are_apart(&self, _: &str, _: &str, _: Instant) -> Result<bool, StoreError> {
        Ok(false)
    }

    fn name_witnesses(&self, _: WitnessNames) {}

    fn has_mailbox(&self, destination: &Destination, _: Instant) -> Result<bool, StoreError> {
        is_folder(&self.folder(destination)?.join("new"))
    }

    fn trace_of_ours(&self, account: &str, _: Instant) -> Result<Option<String>, StoreError> {
        let path = self.folder(&Destination::inbox(account))?.join(LOCKS);
        let is_there = path.try_exists().map_err(|error| at(&path, &error))?;
        Ok(is_there.then(|| format!("{} is there", path.display())))
    }

    fn check(&self, account: &str, _until: Instant) -> Result<Vec<String>, StoreError> {
        let inbox = self.folder(&Destination::inbox(account))?;
        let exists = is_folder(&inbox.join("new"))?;
        if !exists && !self.create_mailboxes {
            return Err(StoreError::Refused(no_maildir(&inbox)));
        }
        let nearest = inbox.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        let writable = nix::unistd::access(nearest, nix::unistd::AccessFlags::W_OK);
        writable.map_err(|errno| at(nearest, &io::Error::from(errno)))?;
        // Where it is, a name that a crash leaves is cleared away from tmp/.
        let within = if exists { inbox.join("tmp") } else { nearest.to_owned() };
        file::try_link(&within).map_err(|error| {
            StoreError::NotStored(format!(
                "{}: a file cannot be linked there ({error}), and no copy is placed without that: \
                 exFAT and some file systems by FUSE or CIFS have no hard links",
                within.display()
            ))
        })?;
        let state = if exists { "exists" } else { "will be made at the first delivery" };
        let mut facts =
            vec![format!("{} {state}; {} is writable", inbox.display(), nearest.display())];
        let path = inbox.join(LOCKS);
        let excludes = CopyLock::keeps_others_out(&inbox).map_err(|error| at(&path, &error))?;
        let path = path.display();
        match excludes {
            Some(true) => facts.push(format!("locks in {path} exclude each other")),
            Some(false) => {
                let text = format!("{path}: locks keep nobody out (NFS without locking?)");
                return Err(StoreError::NotStored(text));
            }
            None if exists => facts.push(format!("{path} will be made by the next delivery")),
            None => {}
        }
        Ok(facts)
    }
}
