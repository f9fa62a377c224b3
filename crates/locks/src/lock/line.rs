//! The line of those of this host that wait for a lock: only the first asks the ledger, so that
//! the others hold no session. The line is a file in shared memory. Each in it has a number, and
//! has locked the byte at that number, until it leaves or dies; it waits for the byte of the one
//! before. The first says now and then that it is alive: those that are stopped are passed over.
//!
//! The bell is a pipe with a name beside it. It is no inotify: to close one takes 20 ms and more
//! (the kernel waits until no processor sees its watches), between the claim and the command.
//!
//! One that gives the lock back sends its session with the ledger to the one that will be first
//! next, by a socket beside the file: to open a session costs a server more than a turn. One that
//! is not first a few seconds later closes it.
//!
//! Order and cheapness alone depend on it, not exclusion. Processes that see another file (another
//! user's, another configuration's) or none at all ask the ledger on their own.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::stat::Mode;
use nix::unistd::{geteuid, mkfifo};

use super::since_boot;
use onedrop_core::ledger::RandomValue;
use onedrop_core::lock_key::{hex, name_hash};
use onedrop_core::lock_name::LockName;
use onedrop_core::os::byte_lock::{self, Sharing};
use onedrop_core::os::host_name;

/// Where memory is shared whatever a unit of systemd hides from its processes.
const FOLDER: &str = "/dev/shm";

/// The byte that is locked while a number is given out; numbers begin at 1.
const DOOR: i64 = 0;
/// How often one that finds the door closed tries again, and how long between.
const TRIES: (u32, Duration) = (200, Duration::from_millis(5));

/// In the file: the last number, the number of the first in the line, when that one last said that
/// it is alive, in milliseconds since the boot, the owner of the lock that one of the line took
/// last, zeros once it is given back, and the number that a session was sent to last. Locks are
/// apart from bytes.
const LAST: u64 = 0;
const FIRST: u64 = 8;
const BEAT: u64 = 16;
const TAKER: u64 = 24;
const SENT_TO: u64 = 40;

/// One that has said nothing for this long is stopped: longer than a call of the ledger with the
/// pause after it.
const SILENCE: Duration = Duration::from_secs(20);

/// The line of one lock.
#[derive(Debug, Clone)]
pub struct Line {
    path: PathBuf,
}

impl Line {
    /// `ledger` says which ledger has the lock. Those that want one of another number of slots have
    /// a line of their own: a slot may be free for them that the others do not want.
    pub fn of(ledger: &str, name: &LockName, slots: u32) -> Line {
        let hash = name_hash(&format!("{ledger}\0{}\0{slots}\0{name}", host_name()));
        let folder = PathBuf::from(FOLDER).join(format!("onedrop-{}", geteuid()));
        Line { path: folder.join(hex(&hash)) }
    }

    /// # Errors
    /// There is no such folder, or it is another's.
    pub(super) fn join(&self) -> io::Result<PlaceInLine> {
        self.make_folder()?;
        for _ in 0..TRIES.0 {
            let file = self.open(true)?;
            if !byte_lock::try_lock(&file, DOOR)? {
                thread::sleep(TRIES.1);
                continue;
            }
            // The last one to leave may just have removed it.
            if file.metadata()?.nlink() == 0 {
                continue;
            }
            // It is the first, and has not asked yet.
            if !byte_lock::is_locked_alone(&file, 1..=i64::MAX - 1)? {
                file.write_all_at(&millis_since_boot().to_ne_bytes(), BEAT)?;
            }
            let mut number = number_at(&file, LAST) + 1;
            while !byte_lock::try_lock(&file, number)? {
                number += 1;
            }
            // It is reached as soon as it is seen.
            let letterbox = self.letterbox(number);
            file.write_all_at(&number.to_ne_bytes(), LAST)?;
            byte_lock::unlock(&file, DOOR)?;
            return Ok(PlaceInLine { file, number, letterbox, line: self.clone() });
        }
        Err(io::Error::other("the door of the line stays closed"))
    }

    /// `owner` has given the lock back: the first in the line asks at once.
    pub(super) fn ring(&self, owner: RandomValue) {
        // The next one may write its own name at this moment. Then the first in the line after it
        // does not follow it, and asks the ledger.
        if let Ok(file) = self.open(false)
            && taker(&file) == Some(owner)
        {
            let _ = file.write_all_at(&[0; 16], TAKER);
        }
        // It is opened to read by those that wait; without one this fails.
        if let Ok(mut bell) = self.open_bell(OpenOptions::new().write(true)) {
            // One that is full rings already.
            let _ = bell.write(b"!");
        }
    }

    /// Where the one that waits for the first's turn is sent a session: the first has its own
    /// already, and those after it need none. `None`: one has such a session, and has not used it.
    pub(super) fn next_letterbox(&self) -> Option<UnixDatagram> {
        let file = self.open(false).ok()?;
        let waits =
            |number: &i64| byte_lock::is_locked_alone(&file, *number..=*number).unwrap_or(false);
        let next = (number_at(&file, FIRST) + 1..=number_at(&file, LAST)).take(100).find(waits)?;
        if number_at(&file, SENT_TO) > number_at(&file, FIRST) {
            return None;
        }
        let sender = UnixDatagram::unbound().ok()?;
        sender.connect(self.letterbox_path(next)).ok()?;
        file.write_all_at(&next.to_ne_bytes(), SENT_TO).ok()?;
        Some(sender)
    }

    /// That of one that has just got this number. Another that had it may have been killed.
    fn letterbox(&self, number: i64) -> Option<UnixDatagram> {
        let path = self.letterbox_path(number);
        let _ = fs::remove_file(&path);
        let letterbox = UnixDatagram::bind(path).ok()?;
        letterbox.set_nonblocking(true).ok()?;
        Some(letterbox)
    }

    fn letterbox_path(&self, number: i64) -> PathBuf {
        self.path.with_extension(number.to_string())
    }

    /// The files beside the line's own.
    fn remove_others(&self) -> io::Result<()> {
        let (Some(folder), Some(name)) = (self.path.parent(), self.path.file_name()) else {
            return Ok(());
        };
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.file_stem() == Some(name) && path != self.path {
                let _ = fs::remove_file(path);
            }
        }
        Ok(())
    }

    fn open_bell(&self, options: &mut OpenOptions) -> io::Result<File> {
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(self.bell_path())
    }

    fn bell_path(&self) -> PathBuf {
        self.path.with_extension("bell")
    }

    /// # Errors
    /// There is no such file, or its folder is another's.
    fn open(&self, makes: bool) -> io::Result<File> {
        self.is_ours()?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(makes).mode(0o600);
        options.custom_flags(libc::O_NOFOLLOW).open(&self.path)
    }

    fn make_folder(&self) -> io::Result<()> {
        let Some(folder) = self.path.parent() else { return Ok(()) };
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// Anyone may write to the folder above, and make this one before we do: sessions would go to
    /// whoever has made it.
    fn is_ours(&self) -> io::Result<()> {
        let Some(folder) = self.path.parent() else { return Ok(()) };
        let found = fs::symlink_metadata(folder)?;
        match found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o022 == 0 {
            true => Ok(()),
            false => Err(io::Error::other(format!("{} is another's", folder.display()))),
        }
    }
}

/// A place in the line, until it is dropped.
#[derive(Debug)]
pub(super) struct PlaceInLine {
    file: File,
    number: i64,
    /// What [`Line::next_letterbox`] leads to.
    letterbox: Option<UnixDatagram>,
    line: Line,
}

impl PlaceInLine {
    /// Whether all that came before it have left, or are passed over. Each that may be stopped has
    /// its own time to speak, so that no two after it pass it over at once.
    pub fn is_first(&self) -> io::Result<bool> {
        let before = number_at(&self.file, FIRST).max(1)..=self.number - 1;
        if !self.is_any_in_line(before.clone())? {
            return Ok(true);
        }
        let beat = Duration::from_millis(number_at(&self.file, BEAT).unsigned_abs());
        let silent = since_boot()?.saturating_sub(beat);
        if silent <= SILENCE {
            return Ok(false);
        }
        let mut stopped = 0;
        for number in before {
            stopped += u32::from(self.is_any_in_line(number..=number)?);
        }
        Ok(silent > SILENCE.saturating_mul(stopped))
    }

    /// It is the first, and alive.
    pub fn beat(&self) {
        let stamp = [self.number.to_ne_bytes(), millis_since_boot().to_ne_bytes()].concat();
        let _ = self.file.write_all_at(&stamp, FIRST);
    }

    /// This one has the lock. It calls [`Line::ring`] when it gives it back.
    pub fn has_taken(&self, owner: RandomValue) {
        let _ = self.file.write_all_at(owner.bytes(), TAKER);
    }

    /// Whether one of this line has the lock, or died before it could give it back.
    pub fn is_taken(&self) -> bool {
        taker(&self.file).is_some()
    }

    pub fn letterbox(&self) -> Option<&UnixDatagram> {
        self.letterbox.as_ref()
    }

    /// Closes a session that was sent: the first may need it where the server takes no more.
    pub fn empty_letterbox(&self) {
        // Without room for it the kernel closes a descriptor (recvmsg(2), MSG_CTRUNC).
        while self.letterbox.as_ref().is_some_and(|letterbox| letterbox.recv(&mut [0]).is_ok()) {}
    }

    /// The one before it, to wait for: also after this place was left.
    pub fn one_before(&self) -> io::Result<OneBefore> {
        Ok(OneBefore { file: self.file.try_clone()?, number: self.number - 1 })
    }

    /// How many are before this one, and how many are not.
    pub fn others(&self) -> (u32, u32) {
        let (first, last) = (number_at(&self.file, FIRST).max(1), number_at(&self.file, LAST));
        let count = |numbers: std::ops::RangeInclusive<i64>| {
            let is_there = |number: &i64| self.is_any_in_line(*number..=*number).unwrap_or(false);
            u32::try_from(numbers.filter(is_there).count()).unwrap_or(u32::MAX)
        };
        // Those that left long ago are not counted one by one.
        (count(first..=self.number - 1), count(self.number + 1..=last))
    }

    /// Readable when [`Line::ring`] was called.
    pub fn bell(&self) -> io::Result<File> {
        match mkfifo(&self.line.bell_path(), Mode::S_IRUSR | Mode::S_IWUSR) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(error.into()),
        }
        // Without a writer of its own it would seem to have ended after each ring.
        self.line.open_bell(OpenOptions::new().read(true).write(true))
    }

    fn is_any_in_line(&self, numbers: std::ops::RangeInclusive<i64>) -> io::Result<bool> {
        Ok(!numbers.is_empty() && byte_lock::is_locked_alone(&self.file, numbers)?)
    }
}

/// The one before a place in the line.
#[derive(Debug)]
pub(super) struct OneBefore {
    file: File,
    number: i64,
}

impl OneBefore {
    /// Waits until it has left. Another may be first still.
    pub fn wait(&self) -> io::Result<()> {
        byte_lock::lock_range(&self.file, Sharing::Shared, self.number..=self.number)
    }
}

impl Drop for PlaceInLine {
    /// The last one to leave removes the files, but not those of a later line: its own may have
    /// been taken away (systemd's RemoveIPC=).
    fn drop(&mut self) {
        let id = |file: fs::Metadata| (file.dev(), file.ino());
        let is_alone = || -> io::Result<bool> {
            Ok(byte_lock::try_lock(&self.file, DOOR)?
                && !self.is_any_in_line(1..=self.number - 1)?
                && !self.is_any_in_line(self.number + 1..=i64::MAX - 1)?)
        };
        let is_there = || -> io::Result<bool> {
            Ok(id(fs::symlink_metadata(&self.line.path)?) == id(self.file.metadata()?))
        };
        if is_there().unwrap_or(false) {
            let _ = fs::remove_file(self.line.letterbox_path(self.number));
            if is_alone().unwrap_or(false) {
                let _ = self.line.remove_others();
                let _ = fs::remove_file(&self.line.path);
            }
        }
        // A `OneBefore` may keep the file open, and with it what is locked.
        for byte in [self.number, DOOR] {
            let _ = byte_lock::unlock(&self.file, byte);
        }
    }
}

fn taker(file: &File) -> Option<RandomValue> {
    let mut bytes = [0; 16];
    file.read_exact_at(&mut bytes, TAKER).ok()?;
    Some(bytes).filter(|bytes| *bytes != [0; 16]).map(RandomValue::from)
}

/// Whether it has rung: heard once.
pub(super) fn drain(mut bell: &File) -> bool {
    let mut has_rung = false;
    while bell.read(&mut [0; 64]).is_ok_and(|count| count > 0) {
        has_rung = true;
    }
    has_rung
}

fn millis_since_boot() -> i64 {
    since_boot().map_or(0, |now| i64::try_from(now.as_millis()).unwrap_or(0))
}

/// A number of the file; 0 where it is not there yet.
fn number_at(file: &File, at: u64) -> i64 {
    let mut bytes = [0; 8];
    match file.read_exact_at(&mut bytes, at) {
        Ok(()) => i64::from_ne_bytes(bytes).max(0),
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::boot_timer::BootTimer;
    use std::os::fd::AsFd;

    fn line() -> Line {
        let own = format!("test {} {:?}", std::process::id(), thread::current().id());
        Line::of(&own, &"n".parse().unwrap(), 1)
    }

    #[test]
    fn the_one_that_came_first_is_first_until_it_leaves() {
        let line = line();
        let (a, b, c) = (line.join().unwrap(), line.join().unwrap(), line.join().unwrap());
        let first = |places: [&PlaceInLine; 3]| places.map(|place| place.is_first().unwrap());
        assert_eq!(first([&a, &b, &c]), [true, false, false]);
        assert_eq!((a.others(), b.others(), c.others()), ((0, 2), (1, 1), (2, 0)));
        a.beat();
        // One in the middle leaves before its turn.
        drop(b);
        assert_eq!((a.is_first().unwrap(), c.is_first().unwrap()), (true, false));
        c.one_before().unwrap().wait().unwrap();
        let d = line.join().unwrap();
        assert_eq!(first([&a, &c, &d]), [true, false, false]);
        drop(a);
        assert_eq!((c.is_first().unwrap(), d.is_first().unwrap()), (true, false));
        c.beat();
        drop(c);
        assert!(d.is_first().unwrap());
        assert!(line.path.exists());
        drop(d);
        assert!(!line.path.exists(), "the last one removes the file");
        assert!(line.join().unwrap().is_first().unwrap());
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let own = Line { path: folder.path().join("line") };
        let [a, _b] = [(), ()].map(|()| own.join().unwrap());
        a.beat();
        assert!(own.next_letterbox().is_some());
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(folder.path(), open).unwrap();
        assert!(own.next_letterbox().is_none() && own.join().is_err());
    }

    #[test]
    fn the_one_after_the_first_is_sent_something_once() {
        let line = line();
        let [a, b, c] = [(), (), ()].map(|()| line.join().unwrap());
        a.beat();
        let has_mail = |place: &PlaceInLine| place.letterbox().unwrap().recv(&mut [0]).is_ok();
        line.next_letterbox().unwrap().send(b"s").unwrap();
        assert!(line.next_letterbox().is_none(), "it has one");
        assert_eq!([&a, &b, &c].map(has_mail), [false, true, false]);
        drop(a);
        b.beat();
        line.next_letterbox().unwrap().send(b"s").unwrap();
        assert!(has_mail(&c));
        drop(b);
        c.beat();
        assert!(line.next_letterbox().is_none(), "no other waits");
        // One that was killed leaves its own.
        drop(UnixDatagram::bind(line.letterbox_path(9)).unwrap());
        let _bell = c.bell().unwrap();
        drop(c);
        assert!(line.next_letterbox().is_none(), "there is no line");
        let name = line.path.file_name().unwrap();
        let left = fs::read_dir(line.path.parent().unwrap()).unwrap();
        assert!(
            !left.map(|entry| entry.unwrap().path()).any(|path| path.file_stem() == Some(name))
        );
    }

    fn says_nothing_since(place: &PlaceInLine, secs: u64) {
        let then = since_boot().unwrap().saturating_sub(Duration::from_secs(secs));
        let millis = i64::try_from(then.as_millis()).unwrap();
        place.file.write_all_at(&millis.to_ne_bytes(), BEAT).unwrap();
    }

    #[test]
    fn one_that_is_stopped_before_its_turn_is_passed_over() {
        let line = line();
        let all: Vec<_> = (0..4).map(|_| line.join().unwrap()).collect();
        let [a, _b, c, d] = all.try_into().unwrap();
        a.beat();
        drop(a);
        // It is the second's turn, which is stopped.
        assert!(!c.is_first().unwrap());
        says_nothing_since(&c, SILENCE.as_secs() + 5);
        assert_eq!((c.is_first().unwrap(), d.is_first().unwrap()), (true, false));
        c.beat();
        assert!(!d.is_first().unwrap());
    }

    #[test]
    fn one_that_is_stopped_is_passed_over() {
        let line = line();
        let (a, b, c) = (line.join().unwrap(), line.join().unwrap(), line.join().unwrap());
        a.beat();
        says_nothing_since(&a, SILENCE.as_secs() - 5);
        assert!(!b.is_first().unwrap());
        says_nothing_since(&a, SILENCE.as_secs() + 5);
        assert_eq!((b.is_first().unwrap(), c.is_first().unwrap()), (true, false));
        b.beat();
        assert!(!c.is_first().unwrap());
        // The next one need not wait that long again.
        drop(b);
        assert!(c.is_first().unwrap());
        // It goes on, and its turn is before the others'.
        a.beat();
        assert!(!c.is_first().unwrap());
    }

    #[test]
    fn one_that_passed_a_stopped_one_over_leaves_while_it_waits_for_it() {
        let line = line();
        let [a, b, c] = [(), (), ()].map(|()| line.join().unwrap());
        says_nothing_since(&a, SILENCE.as_secs() + 5);
        assert!(b.is_first().unwrap());
        let before = b.one_before().unwrap();
        let waits = thread::spawn(move || before.wait());
        b.beat();
        drop(b);
        assert_eq!((c.is_first().unwrap(), a.others()), (true, (0, 1)));
        let d = line.join().expect("the door is open");
        c.beat();
        drop((c, d));
        assert!(!waits.is_finished());
        drop(a);
        waits.join().unwrap().unwrap();
        assert!(!line.path.exists(), "the last one removes the file");
    }

    #[test]
    fn one_whose_file_was_taken_away_leaves_those_of_the_next_line() {
        let line = line();
        let [first, second] = [(), ()].map(|()| line.join().unwrap());
        fs::remove_file(&line.path).unwrap();
        let other = line.join().unwrap();
        let _bell = other.bell().unwrap();
        drop(first);
        assert!(second.is_first().unwrap());
        drop(second);
        assert!(line.path.exists() && line.bell_path().exists(), "they are another's");
        drop(other);
        assert!(!line.path.exists() && !line.bell_path().exists());
    }

    #[test]
    fn only_the_first_hears_the_bell() {
        let line = line();
        let owner = RandomValue::default();
        line.ring(owner);
        assert!(!line.path.exists(), "nobody waits");
        let place = line.join().unwrap();
        let (bell, timer) = (place.bell().unwrap(), BootTimer::new().unwrap());
        let rings = |at| timer.wait([bell.as_fd()], Some(at)).unwrap()[0];
        let other = line.join().unwrap();
        other.beat();
        assert!(!rings(Duration::ZERO), "others come and go without it");
        other.has_taken(owner);
        assert!(place.is_taken());
        line.ring(RandomValue::default());
        assert!(drain(&bell) && place.is_taken(), "that was another's");
        line.ring(owner);
        assert!(!place.is_taken());
        assert!(rings(since_boot().unwrap() + Duration::from_secs(30)));
        assert!(drain(&bell) && !drain(&bell));
        assert!(!rings(Duration::ZERO), "it was heard");
        drop((place, other));
        assert!(!line.bell_path().exists(), "the last one removes it");
    }
}
