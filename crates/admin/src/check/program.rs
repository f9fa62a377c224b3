//! Other programs that are asked (postconf, doveconf, postqueue): finding them, and running them
//! without input, within a time and a size. One that hangs is killed together with what it started.

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

/// Much more than a large master.cf, and a queue of 100,000 messages.
const LONGEST: u64 = 32 << 20;

/// The program `name` in PATH or one of the usual folders.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(FOLDERS.map(PathBuf::from));
    let mut programs = folders.filter(|folder| folder.is_absolute()).map(|one| one.join(name));
    programs.find(|program| program.is_file() && access(program, AccessFlags::X_OK).is_ok())
}

/// What `command` prints, which ends well before `until`.
///
/// # Errors
/// It cannot be run, fails (with the last line of its complaint) or takes longer.
pub fn output(command: &mut Command, until: Instant) -> Result<String, String> {
    output_of(command, "read the configuration", until).map_err(|error| error.text)
}

/// Why there is no output.
pub struct ProgramError {
    /// A sentence, with the last line of the program's complaint.
    pub text: String,
    /// All of that complaint.
    pub complaint: String,
}

impl From<String> for ProgramError {
    fn from(text: String) -> ProgramError {
        ProgramError { text, complaint: String::new() }
    }
}

/// The same of one that is to do something else than to read its configuration.
///
/// # Errors
/// Those of [`output`].
pub fn output_of(
    command: &mut Command,
    what: &str,
    until: Instant,
) -> Result<String, ProgramError> {
    output_and_complaint(command, what, until).map(|(output, _)| output)
}

/// The same, and what it complains of all the same.
///
/// # Errors
/// Those of [`output`].
pub fn output_and_complaint(
    command: &mut Command,
    what: &str,
    until: Instant,
) -> Result<(String, String), ProgramError> {
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
        return Err(format!("{program} did not answer in time").into());
    };
    let status = child.wait().map_err(|error| format!("{program}: {error}"))?;
    if !status.success() {
        let said =
            errors.lines().rfind(|line| !line.is_empty()).unwrap_or("it failed without a word");
        let text = format!("{program} cannot {what}: {said}");
        return Err(ProgramError { text, complaint: errors });
    }
    Ok((output, errors))
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
