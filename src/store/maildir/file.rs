//! A copy's file before it stands in a mailbox: without a name where the file system can, under
//! `tmp/` elsewhere. By hand: the crate `maildir` syncs no folder, and gives the copy of each
//! attempt another name.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::libc;
use nix::sys::stat::futimens;
use nix::sys::time::TimeSpec;

use super::sync::Syncing;
use crate::store::Copy;

/// Where this process' open files have names to link them by (proc(5)).
const OPEN_FILES: &str = "/proc/self/fd";

/// A file with a copy's content and date that is in no mailbox yet.
#[derive(Debug)]
pub struct Unlinked {
    file: Arc<File>,
    /// Its name under `tmp/`, if it has one.
    path: Option<PathBuf>,
}

impl Unlinked {
    /// Writes the file, and does not sync it. `name` is what it will be called.
    ///
    /// # Errors
    /// What the file system says.
    pub fn write(folder: &Path, name: &str, copy: &Copy<'_>) -> io::Result<Unlinked> {
        static HAVE_NAMES: LazyLock<bool> = LazyLock::new(|| Path::new(OPEN_FILES).exists());
        if !*HAVE_NAMES {
            return Unlinked::write_named(folder, name, copy);
        }
        let unnamed = OpenOptions::new()
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_TMPFILE)
            .open(folder.join("tmp"));
        match unnamed {
            Ok(file) => Unlinked { file: Arc::new(file), path: None }.filled(copy),
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)
                ) =>
            {
                Unlinked::write_named(folder, name, copy)
            }
            Err(error) => Err(error),
        }
    }

    fn write_named(folder: &Path, name: &str, copy: &Copy<'_>) -> io::Result<Unlinked> {
        // A crash leaves its file, and the next process may have its number: the time tells them
        // apart.
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
        Ok(Unlinked { file: Arc::new(file), path: Some(path) })
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

    /// Makes content and date durable.
    ///
    /// # Errors
    /// What the file system says.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// The same beside what the caller does meanwhile.
    pub fn begin_sync(&self) -> Syncing {
        Syncing::begin(&self.file)
    }

    /// Gives it its name in the mailbox. `copy` is what it was written from: where unnamed files
    /// cannot be linked (a hardened system, an odd file system), it is written once more.
    ///
    /// # Errors
    /// What the file system says; that the name is taken, too.
    pub fn link(
        &self,
        target: &Path,
        folder: &Path,
        name: &str,
        copy: &Copy<'_>,
    ) -> io::Result<()> {
        let Some(path) = &self.path else {
            // open(2), O_TMPFILE: without a capability a file is linked by way of /proc.
            let source = Path::new(OPEN_FILES).join(self.file.as_raw_fd().to_string());
            let linked = nix::unistd::linkat(
                AT_FDCWD,
                &source,
                AT_FDCWD,
                target,
                AtFlags::AT_SYMLINK_FOLLOW,
            );
            return match linked.map_err(io::Error::from) {
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
                    ) =>
                {
                    let named = Unlinked::write_named(folder, name, copy)?;
                    named.sync()?;
                    named.link(target, folder, name, copy)
                }
                linked => linked,
            };
        };
        fs::hard_link(path, target)
    }
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
