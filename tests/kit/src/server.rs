//! One server: a child process and its descendants, ended by pid and within a bound.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, OnceLock, mpsc};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{cache_dir, is_root, unix_user, wait_until};

/// How long a server may take to end by itself before it gets SIGKILL.
const STOP_LIMIT: Duration = Duration::from_secs(5);
/// How long processes may take to be gone after SIGKILL: the init of a container waits for all of
/// its own, and for what their files take to go.
const DEATH_LIMIT: Duration = Duration::from_secs(120);

/// A command that runs `program` as `user` (as ourselves without one, or when we are not root) and
/// gets `on_death` when this test process dies. setpriv(1) does both without `unsafe` here, and
/// execs, so the pid is the server's.
pub fn guarded(program: impl AsRef<Path>, user: Option<&str>, on_death: Signal) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", on_death.as_str().trim_start_matches("SIG")]);
    if let Some(user) = user.filter(|_| is_root()) {
        let user = unix_user(user);
        command.args([
            "--reuid",
            &user.uid.to_string(),
            "--regid",
            &user.gid.to_string(),
            "--init-groups",
        ]);
    }
    command.arg("--").arg(program.as_ref());
    command
}

/// Spawns from a thread that lives as long as this process: the parent-death signal is tied to the
/// thread that forked, and a test's own thread ends before a server that is shared through a
/// static.
fn spawn(command: Command) -> std::io::Result<Child> {
    type Job = (Command, mpsc::Sender<std::io::Result<Child>>);
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Job>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, inbox) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, reply) in inbox {
                let _ = reply.send(command.spawn());
            }
        });
        Mutex::new(jobs)
    });
    let (reply, answer) = mpsc::channel();
    spawner
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .send((command, reply))
        .expect("spawner thread");
    answer.recv().expect("spawner thread")
}

/// A running server. `Drop` ends it with SIGKILL after [`STOP_LIMIT`], and prints its log if the
/// test is panicking.
pub struct Server {
    name: &'static str,
    child: Child,
    stop_signal: Signal,
    log: PathBuf,
    ended: Option<ExitStatus>,
    /// Descendants that [`Server::stop_main`] left running, with their start times.
    left_running: HashMap<u32, u64>,
}

impl Server {
    /// Starts `command`; `stop_signal` is what `Drop` sends first (SIGKILL: to all its processes).
    pub fn start(name: &'static str, command: Command, stop_signal: Signal, log: &Path) -> Self {
        let child = spawn(command).unwrap_or_else(|error| panic!("{name}: {error}"));
        Self {
            name,
            child,
            stop_signal,
            log: log.to_path_buf(),
            ended: None,
            left_running: HashMap::new(),
        }
    }

    /// Waits until the server answers; panics with its log if it ends, or takes longer than 60 s.
    pub fn wait_ready(&mut self, mut ready: impl FnMut() -> bool) {
        let mut gone = false;
        let up = wait_until(Duration::from_secs(60), || {
            gone = self.ended();
            gone || ready()
        });
        assert!(up && !gone, "{} did not start:\n{}", self.name, tail(&self.log));
    }

    /// Leaves it to whoever guards it.
    pub fn leave(self) {
        std::mem::forget(self);
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// True once the server's main process has ended.
    pub fn ended(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("wait for our child");
        }
        self.ended.is_some()
    }

    /// How the main process ended, once [`Server::ended`] has seen it.
    pub fn status(&self) -> Option<ExitStatus> {
        self.ended
    }

    /// Sends `signal` to the main process only.
    pub fn signal(&mut self, signal: Signal) {
        if !self.ended() {
            let _ = kill(raw(self.child.id()), signal);
        }
    }

    /// Freezes the main process, then its descendants (in this order no new one appears).
    pub fn pause(&mut self) {
        self.signal(Signal::SIGSTOP);
        for (pid, _) in self.descendants() {
            let _ = kill(raw(pid), Signal::SIGSTOP);
        }
    }

    pub fn resume(&mut self) {
        for (pid, _) in self.descendants() {
            let _ = kill(raw(pid), Signal::SIGCONT);
        }
        self.signal(Signal::SIGCONT);
    }

    /// Ends the server with `signal`, and with SIGKILL what is left of it after the bound.
    pub fn stop(&mut self, signal: Signal) {
        if self.ended() {
            return;
        }
        if signal == Signal::SIGKILL {
            return self.kill_all();
        }
        let family = self.descendants();
        self.resume();
        self.signal(signal);
        if !wait_until(STOP_LIMIT, || self.ended()) {
            self.signal(Signal::SIGKILL);
            self.ended = Some(self.child.wait().expect("wait for our child"));
        }
        // Orphans are no longer our children: their pid is theirs only while the start time is the
        // same.
        let left = || family.iter().filter(|(pid, started)| start_time(**pid) == Some(**started));
        if !wait_until(STOP_LIMIT, || left().next().is_none()) {
            for (pid, _) in left() {
                let _ = kill(raw(*pid), Signal::SIGKILL);
            }
        }
    }

    /// Sends `signal` to the main process and waits for it alone (SIGKILL after the bound).
    /// Descendants that outlive it are left to themselves until `Drop`.
    pub fn stop_main(&mut self, signal: Signal) {
        self.left_running.extend(self.descendants());
        self.signal(signal);
        if !wait_until(STOP_LIMIT, || self.ended()) {
            self.signal(Signal::SIGKILL);
            self.ended = Some(self.child.wait().expect("wait for our child"));
        }
    }

    /// Crashes it: SIGKILL to the main process and all its descendants.
    pub fn kill_all(&mut self) {
        self.pause();
        let family = self.descendants();
        self.signal(Signal::SIGKILL);
        for pid in family.keys() {
            let _ = kill(raw(*pid), Signal::SIGKILL);
        }
        if !self.ended() {
            self.ended = Some(self.child.wait().expect("wait for our child"));
        }
        let gone = || family.iter().all(|(pid, started)| start_time(*pid) != Some(*started));
        let is_gone = wait_until(DEATH_LIMIT, gone);
        // A test that fails already says why.
        assert!(is_gone || std::thread::panicking(), "{} does not die", self.name);
    }

    /// Processor time that it and its descendants have used, also those that have ended and were
    /// waited for.
    pub fn cpu(&self) -> Duration {
        let family = self.descendants();
        std::iter::once(self.child.id()).chain(family.keys().copied()).filter_map(cpu_of).sum()
    }

    /// Pids of all descendants with their start times.
    pub fn descendants(&self) -> HashMap<u32, u64> {
        let mut found = HashMap::new();
        if self.ended.is_some() {
            return found;
        }
        let mut pending = vec![self.child.id()];
        let all = processes();
        while let Some(parent) = pending.pop() {
            for (pid, _, started) in all.iter().filter(|(_, ppid, _)| *ppid == parent) {
                found.insert(*pid, *started);
                pending.push(*pid);
            }
        }
        found
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(self.stop_signal);
        for (pid, started) in &self.left_running {
            if start_time(*pid) == Some(*started) {
                let _ = kill(raw(*pid), Signal::SIGKILL);
            }
        }
        if std::thread::panicking() {
            eprintln!("--- {} log ({}) ---\n{}", self.name, self.log.display(), tail(&self.log));
        }
    }
}

pub fn pid_of(child: &Child) -> Pid {
    raw(child.id())
}

fn raw(pid: u32) -> Pid {
    Pid::from_raw(i32::try_from(pid).expect("a pid fits"))
}

fn processes() -> Vec<(u32, u32, u64)> {
    let entries = fs::read_dir("/proc").expect("/proc");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| stat(pid).map(|(parent, started)| (pid, parent, started))).collect()
}

/// When a process that still runs was started.
pub fn start_time(pid: u32) -> Option<u64> {
    stat(pid).map(|(_, started)| started)
}

/// Parent and start time of a process that is not a zombie. Fields after the last ")" (proc(5)):
/// state is the first.
fn stat(pid: u32) -> Option<(u32, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    if matches!(*fields.first()?, "Z" | "X") {
        return None;
    }
    Some((fields.get(1)?.parse().ok()?, fields.get(19)?.parse().ok()?))
}

/// Processor time of a process, also of threads that have ended, and of those children that it has
/// waited for. The kernel gives it in ticks of 10 ms, too rough for hundreds of processes that each
/// do little, and that of living threads exactly.
fn cpu_of(pid: u32) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let ticks: Vec<u64> = fields.skip(11).take(4).filter_map(|field| field.parse().ok()).collect();
    let &[user, system, children_user, children_system] = ticks.as_slice() else { return None };
    let living = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten().filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_ascii_whitespace().next()?.parse().ok().map(Duration::from_nanos)
    });
    let own = living.sum::<Duration>().max(Duration::from_millis((user + system) * 10));
    Some(own + Duration::from_millis((children_user + children_system) * 10))
}

/// A data folder to be copied by every test: the first that wants it makes it, with `build`, which
/// is given the folder around it, and it.
pub fn template(name: &str, build: impl FnOnce(&Path, &Path)) -> PathBuf {
    let home = cache_dir().join(name);
    fs::create_dir_all(&home).expect("template folder");
    let lock = File::create(home.join("lock")).expect("template lock");
    lock.lock().expect("template lock");
    let data = home.join("data");
    if !home.join("complete").exists() {
        let _ = fs::remove_dir_all(&data);
        build(&home, &data);
        File::create(home.join("complete")).expect("template mark");
    }
    data
}

/// The last 200 lines of a log file.
pub fn tail(path: &Path) -> String {
    let text = fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let text = text.unwrap_or_else(|error| format!("{}: {error}", path.display()));
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(200)..].join("\n")
}
