//! Servers that the tests of one run share: whichever test wants one first starts it, under a lock,
//! and writes down where it is. A run is what `cargo test` or `cargo nextest run` starts; a test
//! program that something else started is a run of its own.
//!
//! Such a server is no child of a test. It is guarded by a shell in a process group of its own, so
//! that no end of a test reaches it; the shell ends it and takes its folder away when the run's
//! process is gone, however that ended. If the shell is killed, the kernel ends the server
//! (parent-death signal), and the next run takes the folder away.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::signal::Signal;

use super::{TempRoot, cache_dir, name_of};

/// $1: the run's process; $2: what is written down; $3: the server's folder; $4: how it ends.
const GUARD: &str = r#"run=$1 told=$2 folder=$3 signal=$4; shift 4
"$@" &
tail --pid="$run" -s 0.2 -f /dev/null
kill -s "$signal" $!; wait
rm -rf "$folder" "$told" "${told%/*}/files"; rmdir "${told%/*}""#;

/// The process of our run.
fn run() -> u32 {
    let parent = nix::unistd::getppid().as_raw().unsigned_abs();
    let name = fs::read_to_string(format!("/proc/{parent}/comm")).unwrap_or_default();
    if name.starts_with("cargo") { parent } else { std::process::id() }
}

/// Where our run's servers are written down.
static TOLD: LazyLock<PathBuf> = LazyLock::new(|| {
    let told = told_by(run());
    fs::create_dir_all(&told).expect("folder of the run");
    told
});

fn told_by(run: u32) -> PathBuf {
    runs().join(name_of(run))
}

/// Where each run has a folder.
pub(super) fn runs() -> PathBuf {
    cache_dir().join("runs")
}

/// A server of our run.
#[derive(Debug, Clone)]
pub struct Shared {
    pub folder: PathBuf,
    pub port: u16,
}

impl Shared {
    fn written_in(told: &Path) -> Option<Shared> {
        let text = fs::read_to_string(told).ok()?;
        let (folder, port) = text.split_once('\n')?;
        Some(Shared { folder: folder.into(), port: port.parse().ok()? })
    }
}

/// Those of the run that this process is.
pub fn servers_of(run: u32) -> Vec<Shared> {
    let told = fs::read_dir(told_by(run)).into_iter().flatten().flatten();
    told.filter_map(|told| Shared::written_in(&told.path())).collect()
}

/// What starting a server for the run needs.
pub struct Starting {
    pub root: TempRoot,
    told: PathBuf,
}

impl Starting {
    /// `command` under a guard that ends it by `signal` when the run is over.
    pub fn guarded(&self, command: &Command, signal: Signal) -> Command {
        let mut guard = Command::new("sh");
        guard.args(["-c", GUARD, "guard", &run().to_string()]);
        guard.arg(&self.told).arg(&*self.root).arg(signal.as_str().trim_start_matches("SIG"));
        guard.arg(command.get_program()).args(command.get_args());
        guard.current_dir("/").stdin(Stdio::null()).process_group(0);
        guard
    }
}

/// The run's server of this name; if there is none yet, `start` starts it and returns its port.
pub fn server(name: &str, start: impl FnOnce(&Starting) -> u16) -> Shared {
    let told = TOLD.join(name);
    let lock = File::create(cache_dir().join(format!("{name}.lock"))).expect("lock");
    lock.lock().expect("lock");
    if let Some(shared) = Shared::written_in(&told) {
        return shared;
    }
    let starting = Starting { root: TempRoot::for_database_of(run()), told: told.clone() };
    let port = start(&starting);
    let folder = starting.root.keep();
    fs::write(&told, format!("{}\n{port}", folder.display())).expect("where the server is");
    Shared { folder, port }
}

/// The run's file of this name; if there is none yet, `make` makes it at the path that it is given.
/// It is gone with the run's servers, or when the next run begins.
pub fn file(name: &str, make: impl FnOnce(&Path)) -> PathBuf {
    let folder = TOLD.join("files");
    fs::create_dir_all(&folder).expect("folder");
    let lock = File::create(cache_dir().join(format!("{name}.lock"))).expect("lock");
    lock.lock().expect("lock");
    let (path, new) = (folder.join(name), folder.join(format!("new.{name}")));
    if !path.exists() {
        make(&new);
        fs::rename(&new, &path).expect("the file");
    }
    path
}

/// A name that no other test of the run gets: of a database, a role, an account.
pub fn unique_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("t{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}
