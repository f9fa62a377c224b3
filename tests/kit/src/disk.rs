//! A small disk that a test can fill up: a tmpfs, unmounted on `Drop`. Needs root.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{chown_recursive, run};

pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts a disk of `size` (as in `96m`) on a new folder that belongs to `user`.
    pub fn mount(at: &Path, size: &str, user: &str) -> SmallDisk {
        fs::create_dir(at).expect("folder");
        let options = format!("mode=700,size={size}");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(at));
        chown_recursive(at, user);
        SmallDisk(at.to_owned())
    }

    /// Leaves no room at all.
    pub fn fill(&self) {
        let mut file = File::create(self.filler()).expect("filler");
        for size in [65536, 512] {
            while file.write(&vec![0; size]).is_ok_and(|written| written > 0) {}
        }
    }

    /// Takes back what `fill` took.
    pub fn make_room(&self) {
        fs::remove_file(self.filler()).expect("filler");
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        unmount(&self.0);
    }
}

/// Unmounts what is mounted at `at`, thawed: a disk that is frozen (fsfreeze(8)) would stay, and
/// with it every process that writes there. False if it is still mounted.
pub fn unmount(at: &Path) -> bool {
    let _ = Command::new("fsfreeze").arg("-u").arg(at).stderr(Stdio::null()).status();
    // Lazily: a server may still have files open on it.
    Command::new("umount").arg("-l").arg(at).status().is_ok_and(|status| status.success())
}

/// The same for whatever is mounted at `folder` or below, the last one first.
pub(super) fn unmount_below(folder: &Path) -> bool {
    let Ok(mounts) = fs::read("/proc/self/mountinfo") else { return false };
    let mounts = String::from_utf8_lossy(&mounts);
    let mut places = mounts.lines().rev().filter_map(|line| line.split(' ').nth(4)).map(Path::new);
    places.all(|at| !at.starts_with(folder) || unmount(at))
}
