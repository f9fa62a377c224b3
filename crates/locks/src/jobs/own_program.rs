//! This program, started again: as it was started, with the caller's umask, and with nothing that a
//! service manager said to the first.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nix::sys::stat::{Mode, umask};

/// What systemd passes to the process that it starts: sd_notify(3), sd_listen_fds(3),
/// sd_watchdog_enabled(3).
const SYSTEMDS: [&str; 6] = [
    "LISTEN_FDNAMES",
    "LISTEN_FDS",
    "LISTEN_PID",
    "NOTIFY_SOCKET",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
];

#[derive(Debug, Clone)]
pub struct OwnProgram {
    /// `--config`
    pub config: Option<PathBuf>,
    /// What files get that its jobs make.
    pub umask: Mode,
}

impl OwnProgram {
    /// Starts it without input.
    ///
    /// # Errors
    /// The system gives no process.
    pub fn start(&self, args: &[&str]) -> io::Result<Child> {
        // This file, also where an upgrade has replaced it.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("onedrop").stdin(Stdio::null());
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        command.args(args);
        for name in SYSTEMDS {
            command.env_remove(name);
        }
        set_umask(&mut command, self.umask);
        command.spawn()
    }
}

/// What `command` starts makes files with this umask.
pub fn set_umask(command: &mut Command, mask: Mode) {
    let prepare = move || {
        umask(mask);
        Ok(())
    };
    // SAFETY: `prepare` runs in the child between fork and exec and calls umask(2) alone, which
    // needs no memory and no lock.
    unsafe { command.pre_exec(prepare) };
}
