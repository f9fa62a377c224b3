//! Locks on bytes of a file (open file description locks, fcntl(2)): on one, at the offset of the
//! lock's key, or on a range. They also exclude other threads of the same process, need no file of
//! their own, and end when the file is closed, so a crash leaves no lock. But while another thread
//! starts a program, the new process has the file, too, until its exec(2): who gives a lock back
//! unlocks it. Over NFS they depend on the mount's locking. By hand: the standard library locks
//! whole files.

use std::fs::File;
use std::io;
use std::ops::RangeInclusive;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

/// Tries to take the lock at `key`; returns whether it was free. A file offset has no sign, so the
/// key's sign is dropped.
///
/// # Errors
/// The file cannot be locked.
pub fn try_lock(file: &File, key: i64) -> io::Result<bool> {
    try_lock_range(file, Sharing::Alone, byte(key))
}

/// Releases the lock at `key`.
///
/// # Errors
/// The file cannot be unlocked.
pub fn unlock(file: &File, key: i64) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&range(libc::F_UNLCK, byte(key))))?;
    Ok(())
}

/// Who else may lock a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    Alone,
    /// Others that share it.
    Shared,
}

/// Tries to lock all bytes of `bytes`, which begins at 0 or later; returns whether they were free.
///
/// # Errors
/// The file cannot be locked.
pub fn try_lock_range(
    file: &File,
    sharing: Sharing,
    bytes: RangeInclusive<i64>,
) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&range(kind(sharing), bytes))) {
        Ok(_) => Ok(true),
        // Linux says EACCES where a security module forbids locks, and never for another's.
        Err(Errno::EAGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The same, but waits until they are free.
///
/// # Errors
/// The file cannot be locked.
pub fn lock_range(file: &File, sharing: Sharing, bytes: RangeInclusive<i64>) -> io::Result<()> {
    let range = range(kind(sharing), bytes);
    loop {
        match fcntl(file, FcntlArg::F_OFD_SETLKW(&range)) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether another has locked one of the bytes for itself alone. Takes no lock.
///
/// # Errors
/// The file cannot be locked.
pub fn is_locked_alone(file: &File, bytes: RangeInclusive<i64>) -> io::Result<bool> {
    let mut range = range(libc::F_RDLCK, bytes);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut range))?;
    Ok(i32::from(range.l_type) != libc::F_UNLCK)
}

fn kind(sharing: Sharing) -> libc::c_int {
    match sharing {
        Sharing::Alone => libc::F_WRLCK,
        Sharing::Shared => libc::F_RDLCK,
    }
}

/// A range must end below the largest offset.
fn byte(key: i64) -> RangeInclusive<i64> {
    let at = (key & i64::MAX).min(i64::MAX - 1);
    at..=at
}

fn range(kind: libc::c_int, bytes: RangeInclusive<i64>) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: *bytes.start(),
        // Zero would be a range without an end.
        l_len: (bytes.end() - bytes.start()).max(0) + 1,
        l_pid: 0,
    }
}
