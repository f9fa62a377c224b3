//! A disk that hangs under `onedrop lmtp`: nothing the delivery's thread does can end, and its
//! client is answered.

use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::disk::unmount;
use crate::support::letters::{ANN, from_ann};
use crate::support::lmtp_client::{LmtpClient, Reply};
use crate::support::site::Site;
use crate::support::{TempRoot, clean, run, wait_until};

const SCUBA: &str = "scuba@mail.axial.net";

/// A disk of its own that can be frozen (fsfreeze(8)): every write hangs. Thawed and unmounted
/// on `Drop`. Needs root.
struct Disk(PathBuf);

impl Disk {
    fn mount(image: &Path, at: &Path) -> Disk {
        std::fs::File::create(image).and_then(|file| file.set_len(32 << 20)).expect("image");
        run(Command::new("mkfs.ext4").arg("-q").arg(image));
        std::fs::create_dir(at).expect("folder");
        run(Command::new("mount").args(["-o", "loop"]).arg(image).arg(at));
        Disk(at.to_owned())
    }

    fn freeze(&self) {
        run(Command::new("fsfreeze").arg("-f").arg(&self.0));
    }

    fn thaw(&self) {
        run(Command::new("fsfreeze").arg("-u").arg(&self.0));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        unmount(&self.0);
    }
}

/// The folder has the name of one whose process had our pid and was started with the machine.
#[test]
fn a_frozen_disk_of_a_killed_test_goes_with_its_folder() {
    let parent = TempRoot::new();
    let folder = parent.join(format!("od-{}-0-x", std::process::id()));
    std::fs::create_dir(&folder).expect("folder");
    let disk = Disk::mount(&folder.join("image"), &folder.join("mail"));
    let opened = std::fs::File::open(&disk.0).expect("the disk");
    disk.freeze();
    clean(&parent);
    assert!(!folder.exists());
    // Only one that is not frozen can be.
    let opened = format!("/proc/{}/fd/{}", std::process::id(), opened.as_raw_fd());
    let fsfreeze = |what: &str| Command::new("fsfreeze").args([what, &opened]).status();
    let done = ["-f", "-u"].map(|what| fsfreeze(what).expect("fsfreeze").success());
    assert_eq!(done, [true, true], "it was frozen still");
}

#[test]
fn a_disk_that_hangs_costs_its_clients_a_deferral_and_nobody_a_message() {
    let site = Site::embedded();
    let disk = Disk::mount(&site.root.join("image"), &site.root.join("mail"));
    let server = site.server(
        "[limits]\ndeadline_secs = 3\nanswer_secs = 1\n[lock]\nlease_secs = 30\nwait_secs = 1\n",
    );
    let mut client = LmtpClient::welcome(&site.socket());
    let replies = client.deliver(ANN, &[SCUBA], from_ann("before")).expect("a reply");
    assert!(replies.iter().all(Reply::is_ok), "{replies:?}");

    disk.freeze();
    let began = Instant::now();
    let replies = client.deliver(ANN, &[SCUBA], from_ann("hangs")).expect("a reply");
    assert_eq!(replies.iter().map(|reply| reply.code).collect::<Vec<_>>(), [451], "{replies:?}");
    // The deadline, its answer and what a busy machine adds; lmtp(8) waits for 600 s.
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    assert!(client.command("NOOP").is_err(), "the thread of that connection still hangs");
    let mut other = LmtpClient::welcome(&site.socket());
    assert!(other.command("NOOP").expect("a reply").is_ok(), "others are served");

    disk.thaw();
    for name in ["hangs", "hangs", "after"] {
        let again = || {
            LmtpClient::welcome(&site.socket())
                .deliver(ANN, &[SCUBA], from_ann(name))
                .expect("a reply")
        };
        let stored = wait_until(Duration::from_secs(30), || again().iter().all(Reply::is_ok));
        assert!(stored, "{name}: {}", server.log());
    }
    site.inbox_has("scuba", ["before", "hangs", "after"].map(from_ann));
}
