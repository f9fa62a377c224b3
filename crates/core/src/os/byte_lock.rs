//! Locks on single bytes of a file, at the offset of the lock's key (open file description locks,
//! fcntl(2)). They also exclude other threads of the same process, need no file of their own, and
//! end when the file is closed, so a crash leaves no lock. Over NFS they depend on the mount's
//! locking. By hand: the standard library locks whole files.

use std::fs::File;
use std::io;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

/// Tries to take the lock at `key`; returns whether it was free. A file offset has no sign, so the
/// key's sign is dropped.
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

/// Releases the lock at `key`.
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
        // A range must end below the largest offset.
        l_start: (key & i64::MAX).min(i64::MAX - 1),
        l_len: 1,
        l_pid: 0,
    }
}
