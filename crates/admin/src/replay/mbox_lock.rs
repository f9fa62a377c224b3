//! Waits until no program writes to an mbox: one that was opened in the midst of a message would be
//! read up to there. Programs that deliver into an mbox hold a lock meanwhile, of the kinds that
//! Postfix' mailbox_delivery_lock names: fcntl(2), flock(2), or a file beside it (`mbox.lock`).
//! Ours are held for a moment only, so that a long run keeps no mail from the mbox.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, Flock, FlockArg, fcntl};
use nix::libc;

/// How long a program may write; it takes milliseconds.
pub const LOCK_TIME: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

/// The facts of the file as of a moment when no program wrote to it. `tell` is called once with the
/// program that does.
///
/// # Errors
/// A program writes all the time; or the file cannot be asked.
pub fn wait(
    file: &File,
    path: &Path,
    patience: Duration,
    tell: &mut dyn FnMut(&str),
) -> Result<Metadata, String> {
    let until = Instant::now() + patience;
    let mut is_told = false;
    loop {
        let by = match settled(file, path, File::metadata).map_err(|error| error.to_string())? {
            Ok(facts) => return Ok(facts),
            Err(by) => by,
        };
        if Instant::now() >= until {
            return Err(format!("{by}: replay it again"));
        }
        if !is_told {
            tell(&by);
            is_told = true;
        }
        thread::sleep(PAUSE);
    }
}

/// The file's facts, or who writes to it. A program that holds `mbox.lock` while `facts` are taken
/// either holds it still when they are there, or has written all by then, so that they differ from
/// those taken after.
fn settled(
    file: &File,
    path: &Path,
    mut facts: impl FnMut(&File) -> io::Result<Metadata>,
) -> io::Result<Result<Metadata, String>> {
    let by_lock = || "another program has it locked".to_owned();
    // A file system without locks shows none.
    let _fcntl = match OpenLock::shared(file) {
        Err(Errno::EAGAIN) => return Ok(Err(by_lock())),
        lock => lock,
    };
    let _flock = match Flock::lock(file.try_clone()?, FlockArg::LockSharedNonblock) {
        Err((_, Errno::EWOULDBLOCK)) => return Ok(Err(by_lock())),
        lock => lock,
    };
    let taken = facts(file)?;
    // Beside the file itself, too, where a link leads to it.
    let own = fs::canonicalize(path).ok();
    let mut beside = [Some(path), own.as_deref()].into_iter().flatten().map(beside);
    if let Some(found) = beside.find(|beside| fs::symlink_metadata(beside).is_ok()) {
        return Ok(Err(format!("another program has it locked by {}", found.display())));
    }
    let after = facts(file)?;
    match (after.len(), after.modified()?) == (taken.len(), taken.modified()?) {
        true => Ok(Ok(taken)),
        false => Ok(Err("another program writes to it".to_owned())),
    }
}

/// Where a program puts a file while it writes.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

/// A shared lock of fcntl(2) on a whole file, of the kind that belongs to what is open (OFD): one
/// of the process would end when it closes the file anywhere.
struct OpenLock<'a>(&'a File);

impl OpenLock<'_> {
    fn shared(file: &File) -> Result<OpenLock<'_>, Errno> {
        fcntl(file, FcntlArg::F_OFD_SETLK(&whole(libc::F_RDLCK)))?;
        Ok(OpenLock(file))
    }
}

impl Drop for OpenLock<'_> {
    fn drop(&mut self) {
        // It ends with the file at the latest.
        let _ = fcntl(self.0, FcntlArg::F_OFD_SETLK(&whole(libc::F_UNLCK)));
    }
}

fn whole(kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn each_kind_of_lock_is_respected_and_ours_is_over_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("mbox");
        fs::write(&path, "From ").expect("a file");
        let open = || File::options().read(true).append(true).open(&path).expect("a file");
        let opened = File::open(&path).expect("a file");
        let (mut told, now) = (Vec::new(), Duration::ZERO);
        let mut wait = || wait(&opened, &path, now, &mut |by| told.push(by.to_owned()));
        assert!(wait().is_ok());

        let other = open();
        fcntl(&other, FcntlArg::F_OFD_SETLK(&whole(libc::F_WRLCK))).expect("locked");
        let locked = "another program has it locked: replay it again";
        assert_eq!(wait().err().as_deref(), Some(locked));
        drop(other);
        let other = Flock::lock(open(), FlockArg::LockExclusiveNonblock).expect("locked");
        assert_eq!(wait().err().as_deref(), Some(locked));
        drop(other);
        fs::write(folder.path().join("mbox.lock"), "").expect("a file");
        assert!(wait().is_err_and(|why| why.contains("/mbox.lock: replay it again")));
        fs::remove_file(folder.path().join("mbox.lock")).expect("a file");
        let mut other = open();
        other.write_all(b"more").expect("written");
        assert_eq!(wait().expect("facts").len(), 9);
        fcntl(&other, FcntlArg::F_OFD_SETLK(&whole(libc::F_WRLCK))).expect("ours is over");
        Flock::lock(open(), FlockArg::LockExclusiveNonblock).expect("ours is over");
        assert!(told.is_empty(), "it has not waited");
    }

    #[test]
    fn a_lock_beside_the_file_that_a_link_leads_to_is_respected() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("mbox");
        fs::write(&path, "From ").expect("a file");
        fs::create_dir(folder.path().join("links")).expect("a folder");
        let link = folder.path().join("links/mbox");
        symlink(&path, &link).expect("a link");
        let opened = File::open(&link).expect("a file");
        let wait = || wait(&opened, &link, Duration::ZERO, &mut |_| {});
        assert!(wait().is_ok());
        for lock in [beside(&path), beside(&link)] {
            fs::write(&lock, "").expect("a file");
            assert!(wait().is_err_and(|why| why.contains("has it locked by ")), "{lock:?}");
            fs::remove_file(&lock).expect("a file");
        }
        assert!(wait().is_ok());
    }

    #[test]
    fn a_lock_is_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("mbox");
        fs::write(&path, "From ").expect("a file");
        let (opened, lock) = (File::open(&path).expect("a file"), beside(&path));
        fs::write(&lock, "").expect("a file");
        let mut told = Vec::new();
        // Its owner is done when it is known that somebody waits.
        let facts = wait(&opened, &path, Duration::from_secs(60), &mut |by| {
            told.push(by.to_owned());
            fs::write(&path, "From all").expect("written");
            fs::remove_file(&lock).expect("a file");
        });
        assert_eq!(facts.expect("facts").len(), 8);
        assert_eq!(told, [format!("another program has it locked by {}", lock.display())]);
    }

    #[test]
    fn a_program_that_comes_while_the_facts_are_taken_is_seen() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("mbox");
        fs::write(&path, "From ").expect("a file");
        let (opened, lock) = (File::open(&path).expect("a file"), beside(&path));
        let add = |text: &str| {
            let mut writer = File::options().append(true).open(&path).expect("a file");
            writer.write_all(text.as_bytes()).expect("written");
        };
        // What a program does before and after each time that facts are taken.
        let settled = |steps: [&dyn Fn(); 4]| {
            let mut steps = steps.into_iter();
            let mut step = || {
                if let Some(step) = steps.next() {
                    step()
                }
            };
            let facts = settled(&opened, &path, |file| {
                step();
                let facts = file.metadata();
                step();
                facts
            });
            facts.expect("facts").map(|facts| facts.len())
        };
        let (nothing, locks) = (|| (), || fs::write(&lock, "").expect("a lock"));
        let ends = || {
            add("end");
            fs::remove_file(&lock).expect("a lock");
        };
        assert_eq!(settled([&nothing; 4]), Ok(5));
        // It holds the lock while they are taken, and still when they are there.
        let begins = || {
            locks();
            add("half");
        };
        let seen = settled([&begins, &nothing, &nothing, &nothing]);
        assert_eq!(seen, Err(format!("another program has it locked by {}", lock.display())));
        ends();
        // It has given the lock back by then.
        let seen = settled([&begins, &ends, &nothing, &nothing]);
        assert_eq!(seen, Err("another program writes to it".to_owned()));
        // It comes when the look is over: what it adds is not in the facts.
        let whole = fs::metadata(&path).expect("facts").len();
        assert_eq!(settled([&nothing, &nothing, &locks, &begins]), Ok(whole));
        ends();
        assert_eq!(settled([&nothing; 4]), Ok(whole + 7));
    }
}
