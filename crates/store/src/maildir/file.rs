//! A copy's file before it stands in a mailbox: without a name where the file system can, under
//! `tmp/` elsewhere. By hand: the crate `maildir` syncs no folder, and gives the copy of each
//! attempt another name.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::libc;
use nix::sys::stat::futimens;
use nix::sys::time::TimeSpec;
use nix::unistd::linkat;

use super::sync;
use onedrop_core::store::Copy;

/// Where this process' open files have names to link them by (proc(5)).
const OPEN_FILES: &str = "/proc/self/fd";

/// A file with a copy's content and date that is in no mailbox yet.
#[derive(Debug)]
pub struct Unlinked {
    file: Arc<File>,
    /// Its name under `tmp/`, if it has one.
    path: Option<PathBuf>,
    /// A sync that has begun.
    syncing: Option<Receiver<io::Result<()>>>,
}

impl Unlinked {
    /// Writes the file, and does not sync it. `name` is what it will be called.
    pub fn write(folder: &Path, name: &str, copy: &Copy<'_>) -> io::Result<Unlinked> {
        static HAVE_NAMES: LazyLock<bool> = LazyLock::new(|| Path::new(OPEN_FILES).exists());
        let mut options = OpenOptions::new();
        options.write(true).mode(0o600).custom_flags(libc::O_TMPFILE);
        match HAVE_NAMES.then(|| options.open(folder.join("tmp"))) {
            Some(Ok(file)) => Unlinked::of(file, None).filled(copy),
            Some(Err(error)) if !lacks_unnamed_files(&error) => Err(error),
            Some(Err(_)) | None => Unlinked::write_named(folder, name, copy),
        }
    }

    fn of(file: File, path: Option<PathBuf>) -> Unlinked {
        Unlinked { file: Arc::new(file), path, syncing: None }
    }

    fn write_named(folder: &Path, name: &str, copy: &Copy<'_>) -> io::Result<Unlinked> {
        // A crash leaves its file, and the next process may have its number: the time distinguishes
        // them.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (number, now) = (NEXT.fetch_add(1, Ordering::Relaxed), SystemTime::now());
        let nanos = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let unique = format!("{name}.{}.{nanos}.{number}", std::process::id());
        Unlinked::create(folder.join("tmp").join(unique))?.filled(copy)
    }

    fn create(path: PathBuf) -> io::Result<Unlinked> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = file.map_err(|error| match error.kind() {
            // Only of the name in the mailbox may be said that it is taken: then the copy is there.
            io::ErrorKind::AlreadyExists => {
                io::Error::other(format!("{}: {error}", path.display()))
            }
            _ => error,
        })?;
        Ok(Unlinked::of(file, Some(path)))
    }

    fn filled(self, copy: &Copy<'_>) -> io::Result<Unlinked> {
        let mut file = &*self.file;
        file.write_all(copy.head)?;
        file.write_all(copy.bytes)?;
        let seconds = copy.recorded_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let time = TimeSpec::new(i64::try_from(seconds).unwrap_or(0), 0);
        futimens(file, &time, &time)?;
        Ok(self)
    }

    /// Makes content and date durable, beside what the caller does meanwhile, if a thread is free.
    pub fn begin_sync(&mut self) {
        self.syncing = sync::begin(&self.file);
    }

    /// Makes content and date durable. An error may be reported only once (fsync(2)): the file is
    /// of no use then.
    pub fn sync(&mut self) -> io::Result<()> {
        match self.syncing.take().map(|synced| synced.recv()) {
            Some(Ok(synced)) => synced,
            Some(Err(_)) => Err(io::Error::other("the thread that synced it is gone")),
            None => self.file.sync_all(),
        }
    }

    /// Gives it its name in the mailbox. `copy` is what it was written from: where unnamed files
    /// cannot be linked (a hardened system, an odd file system), it is written once more. It is an
    /// error that the name is taken.
    pub fn link(
        &self,
        target: &Path,
        folder: &Path,
        name: &str,
        copy: &Copy<'_>,
    ) -> io::Result<()> {
        if let Some(path) = &self.path {
            return fs::hard_link(path, target);
        }
        // open(2), O_TMPFILE: without a capability a file is linked by way of /proc.
        let source = Path::new(OPEN_FILES).join(self.file.as_raw_fd().to_string());
        let follow = AtFlags::AT_SYMLINK_FOLLOW;
        match linkat(AT_FDCWD, &source, AT_FDCWD, target, follow) {
            Err(Errno::ENOENT | Errno::EPERM | Errno::EACCES) => {
                let mut named = Unlinked::write_named(folder, name, copy)?;
                named.sync()?;
                named.link(target, folder, name, copy)
            }
            linked => Ok(linked?),
        }
    }
}

/// Writes a file in `folder`, links it, and takes both names out again.
///
/// # Errors
/// It cannot be made or written, or not be linked.
pub fn try_link(folder: &Path) -> io::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let name = |which| folder.join(format!(".onedrop-check.{}.{now}.{which}", std::process::id()));
    let (one, other) = (Unlinked::create(name("one"))?, name("other"));
    // A full disk takes empty files.
    (&*one.file).write_all(&[0; 64 * 1024])?;
    let linked = one.path.as_ref().map_or(Ok(()), |path| fs::hard_link(path, &other));
    if linked.is_ok() {
        fs::remove_file(&other)?;
    }
    linked
}

/// Whether the file system has no unnamed files (open(2), O_TMPFILE).
fn lacks_unnamed_files(error: &io::Error) -> bool {
    let codes = [libc::EOPNOTSUPP, libc::EISDIR, libc::EINVAL];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

impl Drop for Unlinked {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // What stays is litter under tmp/, which every Maildir reader clears away.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_under_tmp_is_no_copy_in_the_mailbox() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("name");
        fs::write(&path, "left by a crash").unwrap();
        let error = Unlinked::create(path.clone()).unwrap_err();
        assert_ne!(error.kind(), io::ErrorKind::AlreadyExists, "{error}");
        assert!(error.to_string().contains("name"), "{error}");
        assert!(path.exists(), "not ours to remove");
    }
}
