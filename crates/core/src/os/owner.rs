//! Root makes nothing in a folder of another user's. What it made there would shut out those who
//! deliver there; and a user can lead it elsewhere by a link, at any moment. So whoever repairs or
//! replays does it as the user that delivers; else the command says so and ends.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::{User, geteuid};

/// Why root is not to make anything at `path`: a folder on the way to it, or what stands there, is
/// another's.
pub fn keeps_root_out(path: &Path) -> Option<String> {
    if !geteuid().is_root() {
        return None;
    }
    // Those that are not there would be root's.
    let found = |at: &Path| {
        let own = fs::symlink_metadata(at).ok()?.uid();
        let behind = fs::metadata(at).map_or(own, |behind| behind.uid());
        Some((at.to_owned(), if own == 0 { behind } else { own }))
    };
    let (at, uid) = path.ancestors().filter_map(found).find(|(_, uid)| *uid != 0)?;
    let name = match User::from_uid(uid.into()) {
        Ok(Some(user)) => user.name,
        _ => format!("user id {uid}"),
    };
    Some(format!(
        "{} belongs to {name}, and root writes nothing there: run it as that user, by runuser -u \
         {name} -- ...",
        at.display()
    ))
}
