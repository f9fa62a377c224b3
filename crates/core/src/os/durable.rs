//! Durable names: a new folder and its content survive a power failure only if the folder above it
//! was synced (fsync(2)).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Makes the names in a folder durable.
///
/// # Errors
/// The folder cannot be opened or synced.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Makes the names in a folder durable, and its own name and those of the folders above it, up to
/// the mount point. A folder that this user may not read is skipped: this program did not create
/// it.
///
/// # Errors
/// A folder cannot be found, opened or synced.
pub fn sync_way_to(folder: &Path) -> io::Result<()> {
    sync_folder(folder)?;
    // A relative path has ancestors only after this.
    let folder = fs::canonicalize(folder)?;
    let device = fs::metadata(&folder)?.dev();
    for above in folder.ancestors().skip(1) {
        if fs::metadata(above)?.dev() != device {
            break;
        }
        match sync_folder(above) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            synced => synced?,
        }
    }
    Ok(())
}
