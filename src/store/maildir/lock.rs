//! The lock of a copy: a byte of a file in its mailbox' folder. It ends with the process that holds it, whatever becomes of
//! the ledger's session, and costs nothing to leave behind.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::libc;

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
        // The folder is its owner's: neither a link to elsewhere nor a pipe that nobody reads is followed.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).mode(0o600).custom_flags(flags).open(folder.join(LOCKS))?;
        Ok(byte_lock::try_lock(&file, lock_key::advisory_key(key))?.then_some(CopyLock(file)))
    }
}
