//! The lock of a copy: a byte of a file in its mailbox' folder. It ends with the process that holds it, whatever becomes of
//! the ledger's session, and costs nothing to leave behind.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;

use nix::libc;
use nix::unistd::geteuid;

use crate::byte_lock;
use crate::lock_key::{self, Hash};

/// The file in a mailbox' folder. No Maildir reader minds it.
pub const LOCKS: &str = "onedrop.lock";

/// A copy's lock, held until it is dropped.
#[derive(Debug)]
pub struct CopyLock(#[expect(dead_code, reason = "the lock ends when the file is closed")] File);

impl CopyLock {
    /// Takes the lock of the copy `key` in the mailbox at `folder`; `None`: another has it.
    ///
    /// # Errors
    /// What the file system says.
    pub fn try_take(folder: &Path, key: &Hash) -> io::Result<Option<CopyLock>> {
        let path = folder.join(LOCKS);
        let file = match options().open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(folder, &path)?,
            opened => opened?,
        };
        Ok(byte_lock::try_lock(&file, lock_key::advisory_key(key))?.then_some(CopyLock(file)))
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    // The folder is its owner's: neither a link to elsewhere nor a pipe that nobody reads is followed.
    options.write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options
}

fn make(folder: &Path, path: &Path) -> io::Result<File> {
    match options().create_new(true).open(path) {
        Ok(file) => {
            // What root has tried once must not shut the mailbox for those who deliver to it.
            if geteuid().is_root() {
                let folder = fs::metadata(folder)?;
                fchown(&file, Some(folder.uid()), Some(folder.gid()))?;
            }
            Ok(file)
        }
        // Another was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options().open(path),
        Err(error) => Err(error),
    }
}
