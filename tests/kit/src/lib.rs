//! The test rig: real servers (Postgres, PgBouncer, MariaDB, Dovecot, Postfix).
//!
//! Promises: every server lives in its own folder under the system's temporary directory (a
//! database: under /dev/shm, if there is room) and on ports of its own, so tests may run in
//! parallel. One that a run shares (`shared`) ends with the run; any other is a child of the test
//! process and ends on `Drop`, also when the test panics (its log is then printed), and, by the
//! kernel's parent-death signal or a guard, when the test process is killed. What killed processes
//! have left goes when the next one makes a folder. No test touches the system's own instances.
//! Relies on the Debian paths of the servers and, for other users than our own, on running as root.

// Facts that are constants today are methods so that a server may choose them; what `new` makes is
// never a default.
#![allow(clippy::unused_self, clippy::doc_markdown, clippy::new_without_default)]

pub mod base_ledger;
pub mod bench;
pub mod corpus;
pub mod dialog;
pub mod directory;
pub mod disk;
pub mod dovecot;
pub mod dovecot_24;
pub mod escapes;
pub mod filters;
pub mod imap;
pub mod journal;
pub mod letters;
pub mod lmtp;
pub mod lmtp_client;
pub mod lmtp_peer;
pub mod lock_journal;
pub mod mariadb;
pub mod next;
pub mod page;
pub mod patroni;
pub mod pgbouncer;
pub mod place;
pub mod postfix;
pub mod postgres;
pub mod proxy;
pub mod sample;
pub mod script;
pub mod server;
pub mod shared;
pub mod shown;
pub mod site;
pub mod soak;
pub mod stream;
pub mod terminal;
pub mod trial;

use std::fs::{self, File, OpenOptions};
use std::net::TcpListener;
use std::ops::Deref;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex, Once};
use std::time::{Duration, Instant};

use nix::sys::statvfs;

use server::start_time;

/// The folder of the package under test.
pub const PROJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

const MEMORY: &str = "/dev/shm";
/// What must be free in memory before a database is put there; in bytes.
const MEMORY_WANTED: u64 = 4 << 30;

/// Whether every point of the sweeps is wanted (`tests/run --full`).
pub fn is_full() -> bool {
    std::env::var_os("ONEDROP_FULL").is_some_and(|value| value == "1")
}

/// What is left of the memory and of the file system in it; in bytes.
fn free_memory() -> u64 {
    let disk = statvfs::statvfs(MEMORY);
    let of_disk = disk.map_or(0, |at| at.blocks_available() * at.fragment_size());
    let told = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = told.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    of_disk.min(kilobytes.unwrap_or(0) * 1024)
}

/// A folder for one server or test, removed on `Drop`; if its owner was killed, by the next process
/// that makes one. Its path is short (a Unix socket's path may have 107 bytes) and every user may
/// traverse it, whatever the umask.
pub struct TempRoot(tempfile::TempDir);

impl TempRoot {
    pub fn new() -> Self {
        Self::of(std::process::id())
    }

    /// For a database server. In memory, where the test runner starts a sample of the tests: a
    /// copied data folder has a thousand files, and none of a test's kills takes the machine's
    /// power. On the disk in a full run, and where speed is measured.
    pub fn for_database() -> Self {
        Self::for_database_of(std::process::id())
    }

    /// The same, for as long as the process `owner` lives.
    pub fn for_database_of(owner: u32) -> Self {
        let by_the_runner = std::env::var_os("NEXTEST").is_some_and(|value| value == "1");
        let in_memory = by_the_runner && !is_full() && free_memory() > MEMORY_WANTED;
        let below_memory = || Self::below(Path::new(MEMORY), owner).ok();
        in_memory.then(below_memory).flatten().unwrap_or_else(|| Self::of(owner))
    }

    /// Keeps the folder at this path: the caller removes it.
    pub fn keep(self) -> PathBuf {
        self.0.keep()
    }

    fn of(owner: u32) -> Self {
        Self::below(&std::env::temp_dir(), owner).expect("temporary folder")
    }

    fn below(parent: &Path, owner: u32) -> std::io::Result<Self> {
        static CLEANED: Once = Once::new();
        let prefix = format!("{}-", name_of(owner));
        CLEANED.call_once(|| {
            for parent in [std::env::temp_dir(), MEMORY.into(), shared::runs()] {
                clean(&parent);
            }
        });
        let dir = tempfile::Builder::new().prefix(&prefix).rand_bytes(3).tempdir_in(parent)?;
        set_mode(dir.path(), 0o755);
        Ok(Self(dir))
    }

    /// Creates a folder below that belongs to `user` (to us when we are not root).
    pub fn dir_for(&self, name: &str, user: &str, mode: u32) -> PathBuf {
        let path = self.0.path().join(name);
        fs::create_dir_all(&path).expect("folder");
        set_mode(&path, mode);
        chown_recursive(&path, user);
        path
    }

    /// Writes a world-readable file below and returns its path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).expect("folder");
        }
        fs::write(&path, content).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        set_mode(&path, 0o644);
        path
    }
}

impl Default for TempRoot {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for TempRoot {
    type Target = Path;
    fn deref(&self) -> &Path {
        self.0.path()
    }
}

/// How the names of a process's folders begin. Of two processes with one pid, each has its own.
fn name_of(owner: u32) -> String {
    format!("od-{owner}-{}", start_time(owner).expect("the owner's process"))
}

/// Removes the folders below `parent` whose owners have ended, with what is mounted there. Other
/// processes may do the same at once: what one cannot remove now, another or a later one does.
pub fn clean(parent: &Path) {
    let has_ended = |name: &str| {
        let mut parts = name.strip_prefix("od-")?.split('-');
        let (pid, started): (u32, u64) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        // What cannot be read for another reason may live.
        let is_gone = || fs::exists(format!("/proc/{pid}")).is_ok_and(|exists| !exists);
        Some(start_time(pid).map_or_else(is_gone, |now| now != started))
    };
    let our_uid = nix::unistd::geteuid().as_raw();
    // As the kernel writes it where something is mounted.
    let Ok(entries) = parent.canonicalize().and_then(fs::read_dir) else { return };
    for entry in entries.flatten() {
        // As root, also those that a test has given to a server's user.
        let is_ours = || is_root() || entry.metadata().is_ok_and(|it| it.uid() == our_uid);
        if entry.file_name().to_str().and_then(has_ended) == Some(true)
            && is_ours()
            && disk::unmount_below(&entry.path())
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

pub fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .unwrap_or_else(|error| panic!("chmod {}: {error}", path.display()));
}

pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Gives `path` and all below it to `user` and the user's main group. Does nothing when we are not
/// root.
pub fn chown_recursive(path: &Path, user: &str) {
    if !is_root() {
        return;
    }
    let user = unix_user(user);
    let mut pending = vec![path.to_path_buf()];
    while let Some(path) = pending.pop() {
        std::os::unix::fs::lchown(&path, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
            .unwrap_or_else(|error| panic!("chown {}: {error}", path.display()));
        if fs::symlink_metadata(&path).is_ok_and(|entry| entry.is_dir()) {
            let entries =
                fs::read_dir(&path).expect("folder").map(|entry| entry.expect("entry").path());
            pending.extend(entries);
        }
    }
}

pub fn unix_user(name: &str) -> nix::unistd::User {
    nix::unistd::User::from_name(name)
        .expect("passwd")
        .unwrap_or_else(|| panic!("no Unix user {name}"))
}

/// Polls every 10 ms; false when `condition` did not come true within `timeout`.
#[must_use]
pub fn wait_until(timeout: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + timeout;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A port on 127.0.0.1 that no other test process of this user gets while we live.
///
/// Ports come from below the kernel's ephemeral range and each is held by a lock file until this
/// process ends: a bind to port 0 and close would let a parallel test, or any outgoing connection,
/// take it before the server does.
pub fn free_port() -> u16 {
    static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    let mut held = HELD.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let dir = cache_dir().join("ports");
    fs::create_dir_all(&dir).expect("port locks");
    let start = u16::try_from((std::process::id().wrapping_mul(97)) % u32::from(COUNT))
        .expect("below COUNT");
    for step in 0..COUNT {
        let port = FIRST + (start + step) % COUNT;
        let path = dir.join(port.to_string());
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)
            .expect("port lock");
        if file.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            held.push(file);
            return port;
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + COUNT);
}

/// What tests of one user share: initialised database templates and port locks.
pub fn cache_dir() -> PathBuf {
    let uid = nix::unistd::geteuid().as_raw();
    let dir = std::env::temp_dir().join(format!("onedrop-rig-{uid}"));
    fs::create_dir_all(&dir).expect("cache folder");
    let owner = fs::symlink_metadata(&dir).expect("cache folder").uid();
    assert_eq!(owner, uid, "{} belongs to someone else", dir.display());
    set_mode(&dir, 0o755);
    dir
}

/// Reads a file of the repository, by its path relative to Cargo.toml.
pub fn fixture(path: impl AsRef<Path>) -> Vec<u8> {
    let path = Path::new(crate::PROJECT).join(path);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn fixture_text(path: impl AsRef<Path>) -> String {
    String::from_utf8(fixture(path)).expect("UTF-8")
}

/// The copies in a mailbox (its name in Maildir++: empty, or `.Sent`) of a Maildir under `root`,
/// byte for byte.
pub fn maildir_copies(root: &Path, account: &str, mailbox: &str) -> Vec<Vec<u8>> {
    let maildir = root.join(account).join("Maildir").join(mailbox);
    let folders = ["new", "cur"].map(|name| maildir.join(name));
    let files = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    files.map(|file| fs::read(file.expect("file").path()).expect("copy")).collect()
}

/// The program under test: this build's, or the one that `$ONEDROP_TEST_PROGRAM` names, such as one
/// that will be shipped.
pub fn onedrop_path() -> &'static Path {
    static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
        std::env::var_os("ONEDROP_TEST_PROGRAM").map_or_else(built_program, PathBuf::from)
    });
    &PROGRAM
}

/// Cargo builds the program before the package's test programs and benchmarks, which lie in `deps`
/// beside it.
fn built_program() -> PathBuf {
    let test = std::env::current_exe().expect("the test program's path");
    let program = test.ancestors().nth(2).expect("a folder").join("onedrop");
    assert!(program.exists(), "{} is not there: cargo build", program.display());
    program
}

/// The program under test, with no `ONEDROP_*` variable of the caller's environment.
pub fn onedrop() -> Command {
    let mut command = Command::new(onedrop_path());
    remove_variables(&mut command);
    command
}

/// What runs `command` may have `ONEDROP_*` variables, which are not for it.
pub fn remove_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"ONEDROP_") {
            command.env_remove(name);
        }
    }
}

/// Runs a tool to its end and returns its stdout; panics with its stderr when it fails.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
