//! A stand-in for journald, or none: another socket in its place, in a mount namespace of the
//! command's own.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use serde_json::Value;

use super::{TempRoot, is_root, set_mode};

/// Runs `program` without a journal, so that a server logs to standard error. Only root can hide a
/// journal of this host: other users run the program as it is.
pub fn without_journal(program: impl AsRef<OsStr>) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("unshare");
    let hide = "if [ -e /run/systemd/journal ]; then mount -t tmpfs none /run/systemd/journal; fi; \
                exec \"$@\"";
    command.args(["--mount", "sh", "-c", hide, "sh"]).arg(program);
    command
}

/// Takes what a command sends to the journal.
pub struct Journal {
    folder: TempRoot,
    socket: UnixDatagram,
}

impl Journal {
    pub fn new() -> Journal {
        let folder = TempRoot::new();
        let socket = bind(&folder);
        Journal { folder, socket }
    }

    /// A prefix for a program and its arguments, which then take this for the journal.
    pub fn command(&self) -> Command {
        let script = "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && \
                      mount --bind \"$0\" /run/systemd/journal && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(&*self.folder);
        command
    }

    /// Ends, and begins anew at the same place. What was sent and not read is lost.
    pub fn restart(&mut self) {
        fs::remove_file(self.folder.join("socket")).expect("the old socket");
        self.socket = bind(&self.folder);
    }

    /// The records that have come since, in their order.
    pub fn records(&self) -> Vec<String> {
        let (mut told, mut bytes) = (Vec::new(), [0; 65536]);
        while let Ok(length) = self.socket.recv(&mut bytes) {
            told.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
        }
        told
    }
}

/// Makes `bin/journalctl` in this folder, which has these records, and notes in the file `asked`
/// what it is asked. Returns a PATH in which it is the first.
pub fn journalctl(folder: &Path, records: &[Value]) -> String {
    let bin = folder.join("bin");
    fs::create_dir_all(&bin).expect("a folder");
    let (delivered, others): (Vec<_>, Vec<_>) =
        records.iter().partition(|one| one["ONEDROP_OUTCOME"] == "delivered");
    let lines = |of: Vec<&Value>| of.iter().map(|one| format!("{one}\n")).collect::<String>();
    let (delivered, others, asked) = (lines(delivered), lines(others), folder.join("asked"));
    let script = format!(
        "#!/bin/sh
case \"$*\" in *ONEDROP_OUTCOME=delivered)
    cat <<'END'\n{delivered}END
    exit
esac
for one; do echo \"$one\"; done > {}
cat <<'END'\n{others}END\n",
        asked.display()
    );
    fs::write(bin.join("journalctl"), script).expect("a program");
    set_mode(&bin.join("journalctl"), 0o755);
    format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display())
}

fn bind(folder: &TempRoot) -> UnixDatagram {
    let socket = UnixDatagram::bind(folder.join("socket")).expect("socket");
    socket.set_nonblocking(true).expect("socket");
    socket
}

/// How `command` ended, given `input`, and the records that it sent to the journal, in their order.
pub fn told_to_the_journal(command: &Command, input: &[u8]) -> (ExitStatus, Vec<String>) {
    let journal = Journal::new();
    let mut inside = journal.command();
    inside.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => inside.env(name, value),
            None => inside.env_remove(name),
        };
    }
    let mut child = inside.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("unshare");
    // A command that ended early is judged by its status.
    let _ = child.stdin.take().expect("stdin").write_all(input);
    let status = child.wait().expect("end");
    (status, journal.records())
}
