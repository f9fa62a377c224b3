//! A ledger and a folder for one test, and what it starts there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::server::pid_of;
use crate::site::{Files, Site, run};
use crate::{chown_recursive, onedrop, onedrop_path, wait_until};

/// Longer than anything takes that is not waited for by its own time.
pub const SOON: Duration = Duration::from_secs(30);

pub struct Place {
    pub site: Site<Files>,
    pub config: PathBuf,
}

/// How a process ended.
#[derive(Debug)]
pub struct End {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Place {
    /// With the ledger in a file.
    pub fn new() -> Place {
        Place::with("")
    }

    pub fn with(more: &str) -> Place {
        let site = Site::embedded();
        let config = site.config("etc", more);
        let migrated = run(&config, &["migrate"]);
        assert!(migrated.status.success(), "{migrated:?}");
        Place { site, config }
    }

    /// Gives all of it to the user `nobody`, and copies the program to where that user may run it.
    pub fn give_to_nobody(&self) -> PathBuf {
        let program = self.path("onedrop");
        fs::copy(onedrop_path(), &program).expect("the program");
        chown_recursive(&self.site.root, "nobody");
        program
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.site.root.join(name)
    }

    /// `onedrop with-lock ARGS`, in the folder.
    pub fn with_lock(&self, args: &[&str]) -> Command {
        let mut command = onedrop();
        command.arg("--config").arg(&self.config).arg("with-lock").args(args);
        command.current_dir(&*self.site.root).env_remove("MAIL_CONFIG").stdin(Stdio::null());
        command.env("ONEDROP", onedrop_path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a shell's commands under a lock.
    pub fn shell(&self, args: &[&str], script: &str) -> Command {
        self.with_lock(&[args, &["--", "sh", "-c", script]].concat())
    }

    pub fn lock(&self, args: &[&str]) -> End {
        end(run(&self.config, &[&["lock"], args].concat()))
    }

    pub fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The last line of what [`beating`](Place::beating) writes: nanoseconds since 1970.
    pub fn last_beat(&self, name: &str) -> u128 {
        let text = self.text(name);
        // The last line may be half written by a process that was killed.
        let lines = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
        lines.lines().next_back().and_then(|line| line.parse().ok()).unwrap_or(0)
    }

    /// A command that writes the time every 50 ms, for as long as it lives, and another process of
    /// its own that does the same in a session of its own, and that heeds no signal that it can
    /// ignore.
    pub fn beating(&self, args: &[&str]) -> Held {
        let script = "trap '' TERM INT HUP
            beat() { while :; do date +%s%N >>$1; sleep 0.1; done; }
            setsid sh -c 'while :; do date +%s%N >>deep; sleep 0.1; done' &
            beat beats";
        let child = self.shell(args, script).spawn().expect("binary");
        let held = Held { child };
        let began = || self.last_beat("beats") > 0 && self.last_beat("deep") > 0;
        assert!(wait_until(SOON, began), "no beat: {}", self.text("beats"));
        held
    }

    /// When the first command ran that got the lock after this call, nanoseconds since 1970.
    pub fn next_holder(&self, name: &str) -> u128 {
        let ended = end(self
            .with_lock(&[name, "--wait", "60s", "--", "date", "+%s%N"])
            .output()
            .expect("binary"));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.out.trim().parse().expect("a time")
    }
}

/// A `with-lock` that runs, killed at the end of its test.
pub struct Held {
    pub child: Child,
}

impl Drop for Held {
    fn drop(&mut self) {
        // All that is below it ends with it.
        let _ = kill(self.pid(), Signal::SIGCONT);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Held {
    pub fn pid(&self) -> Pid {
        pid_of(&self.child)
    }

    /// The process that guards the command.
    pub fn guardian(&self) -> Pid {
        let children = children(self.pid());
        let [guardian] = children[..] else { panic!("{children:?}") };
        guardian
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("our child");
    }

    /// Waits for its end.
    pub fn code(&mut self) -> Option<i32> {
        let mut status = None;
        let ended = wait_until(SOON, || {
            status = self.child.try_wait().expect("our child");
            status.is_some()
        });
        assert!(ended, "it goes on");
        status.and_then(|status| status.code())
    }
}

/// Whether it runs or waits: one that has ended and was not waited for does not.
pub fn is_alive(pid: Pid) -> bool {
    state(pid).is_some_and(|state| state != 'Z')
}

/// The state in proc_pid_stat(5): S, R, T, Z.
pub fn state(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether it goes on when it gets its SIGCONT, and not before.
pub fn is_stopped(pid: Pid) -> bool {
    match state(pid) {
        Some('T') => true,
        // In vfork(2) it waits for its child, which is stopped.
        Some('D') => children(pid).into_iter().any(is_stopped),
        _ => false,
    }
}

pub fn children(of: Pid) -> Vec<Pid> {
    let text = fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    text.split_whitespace().map(|pid| Pid::from_raw(pid.parse().expect("a pid"))).collect()
}

pub fn end(output: Output) -> End {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    End { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// Runs it to its end.
pub fn ended(command: &mut Command) -> End {
    end(command.output().expect("binary"))
}

/// Waits until a file is there and holds something.
#[track_caller]
pub fn appears(path: &Path) -> String {
    let mut text = String::new();
    let there = wait_until(SOON, || {
        text = fs::read_to_string(path).unwrap_or_default();
        text.ends_with('\n')
    });
    assert!(there, "{} is not there", path.display());
    text
}

pub fn nanos_now() -> u128 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_nanos()
}

/// Runs `work` and says how long it took.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    (work(), began.elapsed())
}
