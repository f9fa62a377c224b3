//! Whose new files and folders are. What root makes (by a replay, a repair, a first `migrate`)
//! belongs to whoever owns the folder it is in: it must not shut out those who deliver there, or
//! read there. What is given away was made by this process, and is named by its descriptor: the
//! folder may be its user's, who can put another file in its place.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;

use nix::libc;
use nix::unistd::geteuid;

/// Gives what this process has just made in `folder` to the folder's owner, if root has made it.
///
/// # Errors
/// The folder is gone, or the file system does not let it.
pub fn give_away(made: &File, folder: &Path) -> io::Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let of = fs::metadata(folder)?;
    fchown(made, Some(of.uid()), Some(of.gid()))
}

/// Opens a file of mode 0600, not through a symbolic link; makes it if it is not there. `options`
/// say for what it is opened.
///
/// # Errors
/// It can be neither opened nor made.
pub fn open_or_make(path: &Path, options: &OpenOptions) -> io::Result<File> {
    let mut options = options.clone();
    options.mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    match options.clone().create_new(true).open(path) {
        Ok(made) => {
            let given = give_away(&made, folder_of(path));
            given.inspect_err(|_| drop(fs::remove_file(path)))?;
            Ok(made)
        }
        // Another was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options.open(path),
        Err(error) => Err(error),
    }
}

/// Makes a folder of mode 0700, and those above it that are not there.
///
/// # Errors
/// One of them cannot be made.
pub fn make_folder(folder: &Path) -> io::Result<()> {
    match make_one(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_folder(folder.parent().ok_or(error)?)?;
            make_one(folder)
        }
        made => made,
    }
}

fn make_one(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => {
            let flags = libc::O_NOFOLLOW | libc::O_DIRECTORY;
            let made = OpenOptions::new().read(true).custom_flags(flags).open(folder)?;
            give_away(&made, folder_of(folder))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// The folder that a name is in.
fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}
