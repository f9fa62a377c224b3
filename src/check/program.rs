//! Other programs that `onedrop check` asks (postconf, doveconf): finding them, and running them
//! without input, within a time and a size. One that hangs is killed together with what it started.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::{AccessFlags, Pid, access};

/// Where distributions put them, which is in few users' PATH.
const FOLDERS: [&str; 5] =
    ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin", "/opt/postfix/sbin"];

/// Much more than a large master.cf.
const LONGEST: u64 = 4 << 20;

/// The program `name` in `path` or one of the usual folders.
pub(super) fn find(name: &str, path: Option<&OsStr>) -> Option<PathBuf> {
    let in_path =
        path.map(|path| std::env::split_paths(path).collect::<Vec<_>>()).unwrap_or_default();
    find_in(name, in_path.into_iter().chain(FOLDERS.map(PathBuf::from)))
}

fn find_in(name: &str, folders: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    let programs = folders.filter(|folder| folder.is_absolute()).map(|folder| folder.join(name));
    programs
        .into_iter()
        .find(|program| program.is_file() && access(program, AccessFlags::X_OK).is_ok())
}

/// What `command` prints, which ends well before `until`.
///
/// # Errors
/// It cannot be run, fails (with the last line of its complaint) or takes longer.
pub(super) fn output(mut command: Command, until: Instant) -> Result<String, String> {
    let program = Path::new(command.get_program()).display().to_string();
    command.process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{program} cannot be run: {error}"))?;
    let group = Pid::from_raw(child.id().cast_signed());
    let (output, errors) = (collect(child.stdout.take()), collect(child.stderr.take()));
    let left = || until.saturating_duration_since(Instant::now());
    let (Ok(output), Ok(errors)) = (output.recv_timeout(left()), errors.recv_timeout(left()))
    else {
        // It has not been waited for, so its id is still its own.
        let _ = killpg(group, Signal::SIGKILL);
        let _ = child.wait();
        return Err(format!("{program} did not answer in time"));
    };
    let status = child.wait().map_err(|error| format!("{program}: {error}"))?;
    if !status.success() {
        let said =
            errors.lines().rfind(|line| !line.is_empty()).unwrap_or("it failed without a word");
        return Err(format!("{program} cannot read the configuration: {said}"));
    }
    Ok(output)
}

/// All output of `pipe` up to its end.
fn collect(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            // What was read before an error counts.
            let _ = pipe.take(LONGEST).read_to_end(&mut bytes);
        }
        // Fails if the receiver has stopped waiting.
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use super::*;

    fn program(script: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("postconf");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
        (folder, path)
    }

    #[test]
    fn a_program_is_an_executable_file_in_an_absolute_folder() {
        let (folder, path) = program("");
        let folders =
            [PathBuf::from("relative"), PathBuf::from("/nonexistent"), folder.path().to_owned()];
        assert_eq!(find_in("postconf", folders.clone().into_iter()), Some(path.clone()));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("a mode");
        assert_eq!(find_in("postconf", folders.into_iter()), None);
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_what_it_started() {
        let (folder, path) = program(r#"sleep 600 & echo $! >"$0.pid"; wait"#);
        // Long enough for a script to start on a busy host; the test is over once the kill is seen.
        let error = output(Command::new(path), Instant::now() + Duration::from_secs(2))
            .expect_err("it hangs");
        assert!(error.ends_with("did not answer in time"), "{error}");
        let pid = fs::read_to_string(folder.path().join("postconf.pid")).expect("it was started");
        let state = || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).ok()?;
            stat.rsplit_once(") ").map(|(_, rest)| rest.chars().next())?
        };
        let until = Instant::now() + Duration::from_secs(10);
        while !matches!(state(), None | Some('Z')) {
            assert!(Instant::now() < until, "process {} still runs", pid.trim());
            thread::yield_now();
        }
    }

    #[test]
    fn a_programs_complaint_is_reported() {
        let (_folder, path) = program("echo 'postconf: fatal: no master.cf' >&2; exit 1");
        let error = output(Command::new(path), Instant::now() + Duration::from_secs(60))
            .expect_err("it fails");
        assert!(error.ends_with("postconf: fatal: no master.cf"), "{error}");
    }
}
