//! Folders whose names last: a folder that was made is gone after a power failure, with all that is
//! in it, unless the one above it was synced (fsync(2)).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Makes the names in a folder durable.
///
/// # Errors
/// What the file system says.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Makes the names in a folder durable, and its own, and those of the folders above it up to where
/// its file system is mounted. One that we may not read was not made by us.
///
/// # Errors
/// What the file system says.
pub fn sync_way_to(folder: &Path) -> io::Result<()> {
    sync_folder(folder)?;
    // "ledger.db" lies in a folder as well.
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
