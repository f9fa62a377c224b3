//! Locks that are byte ranges of a file, one byte at the lock's key (open file description locks,
//! fcntl(2)): they end with whoever opened the file, leave nothing behind, and keep out others of
//! the same process as well. They cost no file each. Over NFS they are as good as the mount's
//! locking.

use std::fs::File;
use std::io;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

/// Tries for the lock at `key`; says whether it was free. Any byte offset that a file can have will
/// do, so the sign is dropped.
///
/// # Errors
/// The file cannot be locked.
pub fn try_lock(file: &File, key: i64) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&range(key, libc::F_WRLCK))) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Gives up the lock at `key`.
///
/// # Errors
/// The file cannot be unlocked.
pub fn unlock(file: &File, key: i64) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&range(key, libc::F_UNLCK)))?;
    Ok(())
}

fn range(key: i64, kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        // The last offset has no byte after it to end the range at.
        l_start: (key & i64::MAX).min(i64::MAX - 1),
        l_len: 1,
        l_pid: 0,
    }
}
