//! What the operating system does for us, in the places that need it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::libc;

pub mod byte_lock;
pub mod durable;
pub mod owner;

/// This host's name.
pub fn host_name() -> String {
    let name = nix::unistd::gethostname();
    name.map_or_else(|_| "?".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// A new file without a name on the folder's file system: it is gone when it is closed.
///
/// # Errors
/// Those of open(2), also that the file system has no such files (O_TMPFILE).
pub fn unnamed_file(folder: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE).open(folder)
}
