//! One process as Postfix's pipe(8) runs it: as the mail's user, in a process group of its own,
//! with the message in a pipe; timed from before the fork to after the wait.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

use crate::dovecot::MAIL_USER;
use crate::unix_user;

/// First argument of this program when it is the watcher of one process.
pub const WATCH: &str = "--watch";

/// `program` with `args`, to be run as the mail's user.
pub fn program(program: impl AsRef<Path>, args: &[&str]) -> Command {
    let mut command = Command::new(program.as_ref());
    command.args(args).current_dir("/").env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/");
    command
}

/// Runs `command` with `message` on its standard input and returns how long it took; panics if it
/// fails.
pub fn deliver(command: &mut Command, message: &[u8]) -> Duration {
    let user = unix_user(MAIL_USER);
    command.uid(user.uid.as_raw()).gid(user.gid.as_raw()).process_group(0);
    feed(command, message)
}

fn feed(command: &mut Command, message: &[u8]) -> Duration {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let began = Instant::now();
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let fed = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(message));
    let output = child.wait_with_output().expect("our child");
    let took = began.elapsed();
    let said = || {
        String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr)
    };
    assert!(output.status.success() && fed.is_ok(), "{command:?}: {}: {}", output.status, said());
    took
}

/// Like [`deliver`], and returns the peak memory in kilobytes as well. The kernel has it only for
/// all waited-for children together, so a process of our own in between has this one child only.
pub fn deliver_watched(command: &Command, message: &Path) -> (Duration, u64) {
    let out = message.with_extension("watched");
    let mut watcher = Command::new(std::env::current_exe().expect("our own path"));
    watcher.arg(WATCH).arg(&out).arg(command.get_program()).args(command.get_args());
    watcher.stdin(fs::File::open(message).expect("the message"));
    let status = watcher.status().expect("our own program");
    assert!(status.success(), "{command:?}: {status}");
    let told = fs::read_to_string(&out).expect("what the watcher saw");
    let (micros, kilobytes) = told.split_once(' ').expect("two numbers");
    let number = |text: &str| text.parse::<u64>().expect("a number");
    (Duration::from_micros(number(micros)), number(kilobytes))
}

/// The watcher: feeds its standard input to `program` in small pieces, and writes microseconds and
/// kilobytes to `out`.
pub fn watch(out: &str, line: &[String]) {
    let (name, args) = line.split_first().expect("a program");
    let user = unix_user(MAIL_USER);
    let mut command = program(name, &args.iter().map(String::as_str).collect::<Vec<_>>());
    command
        .uid(user.uid.as_raw())
        .gid(user.gid.as_raw())
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    let began = Instant::now();
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut pipe = child.stdin.take().expect("its pipe");
    let mut piece = [0; 64 * 1024];
    let mut source = io::stdin().lock();
    loop {
        match source.read(&mut piece).expect("the message") {
            0 => break,
            count => pipe.write_all(&piece[..count]).expect("a reader"),
        }
    }
    drop(pipe);
    let status = child.wait().expect("our child");
    let took = began.elapsed();
    assert!(status.success(), "{command:?}: {status}");
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("usage");
    fs::write(out, format!("{} {}", took.as_micros(), usage.max_rss())).expect("a file of ours");
}
