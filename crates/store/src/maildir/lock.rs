//! The lock of a copy: a byte of a file in its mailbox' folder. It ends with the process that holds
//! it, even when the ledger's session is lost, and leaves nothing to remove.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::libc;

use onedrop_core::lock_key::{self, Hash};
use onedrop_core::os::byte_lock;

/// The file in a mailbox' folder. No Maildir reader minds it.
pub const LOCKS: &str = "onedrop.lock";

/// How often to open it where others remove it.
const OPENINGS: usize = 5;

/// A copy's lock, held until it is dropped.
#[derive(Debug)]
pub struct CopyLock {
    file: File,
    key: i64,
}

impl Drop for CopyLock {
    fn drop(&mut self) {
        // Closing the file alone would not do (`byte_lock`). An error leaves that.
        let _ = byte_lock::unlock(&self.file, self.key);
    }
}

impl CopyLock {
    /// Takes the lock of the copy `key` in the mailbox at `folder`; `None`: another has it.
    pub fn try_take(folder: &Path, key: &Hash) -> io::Result<Option<CopyLock>> {
        let (path, key) = (folder.join(LOCKS), lock_key::advisory_key(key));
        for _ in 0..OPENINGS {
            let file = match options().open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => make(&path)?,
                opened => opened?,
            };
            if !byte_lock::try_lock(&file, key)? {
                return Ok(None);
            }
            // The file may have been cleared away meanwhile: others would lock a new one.
            let (ours, there) = (file.metadata()?, fs::symlink_metadata(&path));
            if there.is_ok_and(|there| there.ino() == ours.ino()) {
                return Ok(Some(CopyLock { file, key }));
            }
        }
        Err(io::Error::other("it is being removed all the time"))
    }

    /// Whether locks in the mailbox at `folder` keep two openers apart, as over NFS without locking
    /// they do not. `None`: there is no file for them yet, and none is made.
    pub fn keeps_others_out(folder: &Path) -> io::Result<Option<bool>> {
        let open = || options().open(folder.join(LOCKS));
        let first = match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let key = lock_key::advisory_key(&lock_key::name_hash("onedrop check"));
        // Whether it is ours or another's: it is taken.
        byte_lock::try_lock(&first, key)?;
        Ok(Some(!byte_lock::try_lock(&open()?, key)?))
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    // The folder is its owner's: neither a link to elsewhere nor a pipe without a reader is
    // followed.
    options.write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options
}

fn make(path: &Path) -> io::Result<File> {
    match options().create_new(true).open(path) {
        // Another was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options().open(path),
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_ends_where_a_program_is_being_started_beside_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let take = || CopyLock::try_take(folder.path(), &[7; 32]).expect("an answer");
        let lock = take().expect("it is free");
        assert!(take().is_none());
        // What the new process has of it until it runs the program.
        let _theirs = lock.file.try_clone().expect("a copy");
        drop(lock);
        assert!(take().is_some());
    }
}
