//! What is called when a job's state changes: commands, or a URL that curl(1) asks for. One tick
//! changes the state in the job's row and calls; where several hosts see the change, the row lets
//! one of them do so. A process that is killed in between has called nothing.
//!
//! Promise: a hook that fails or hangs keeps no job from running, and ends after [`TIME`]; until
//! then it runs, also where the tick is to stop.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::sys::stat::Mode;
use nix::unistd::Pid;

use super::own_program::set_umask;
use crate::jobs::JobSettings;
use onedrop_core::ledger::JobRow;

/// How long a hook may run.
const TIME: Duration = Duration::from_secs(30);
/// How long one that was killed is waited for, and between two looks.
const DYING: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(10);
/// What a URL is asked with: its address comes by standard input, for it may hold a secret.
const CURL: [&str; 7] =
    ["curl", "--silent", "--show-error", "--fail", "--max-time", "20", "--config"];

const OK: &str = "ok";
const FAILING: &str = "failing";

/// A change of a job's state, and what is to be called for it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StateChange<'a> {
    /// What the row is to say, and with it a value of the change.
    pub state: &'static str,
    /// The keys of the hooks, and their words.
    pub hooks: Vec<(&'static str, &'a [String])>,
}

/// What has changed since hooks were last called for this job, if it has any.
pub(super) fn change<'a>(job: &'a JobSettings, row: &JobRow) -> Option<StateChange<'a>> {
    // A value of the change follows.
    let called = row.hooks_state.split(' ').next().unwrap_or_default();
    let state = match row {
        row if row.errors > 0 => FAILING,
        row if row.last_success.is_some() || called == FAILING => OK,
        _ => return None,
    };
    let all = [&job.on_failure, &job.on_success, &job.on_recovery];
    if called == state || all.iter().all(|hook| hook.is_empty()) {
        return None;
    }
    let wanted: [(&'static str, &[String], bool); 3] = [
        ("on_failure", &job.on_failure, state == FAILING),
        ("on_success", &job.on_success, state == OK),
        ("on_recovery", &job.on_recovery, state == OK && called == FAILING),
    ];
    let hooks = wanted.into_iter().filter(|(_, words, is_wanted)| *is_wanted && !words.is_empty());
    Some(StateChange { state, hooks: hooks.map(|(key, words, _)| (key, words)).collect() })
}

/// The URL that a hook asks, if it is one.
fn url_of(words: &[String]) -> Option<&str> {
    match words {
        [url] if url.starts_with("https://") || url.starts_with("http://") => Some(url),
        _ => None,
    }
}

/// The program that a hook needs; `None`: there is no hook.
pub fn program_of(words: &[String]) -> Option<&str> {
    url_of(words).map(|_| CURL[0]).or(words.first().map(String::as_str))
}

/// A hook that runs.
pub(super) struct HookProcess {
    job: String,
    key: &'static str,
    process: Child,
    ends_at: Instant,
}

impl HookProcess {
    /// Starts it, with this umask; what keeps it from that is logged.
    pub fn start(
        row: &JobRow,
        key: &'static str,
        words: &[String],
        umask: Mode,
    ) -> Option<HookProcess> {
        let job = &row.name;
        let (program, url) = (program_of(words)?, url_of(words));
        let state = if row.errors > 0 { FAILING } else { OK };
        let why = if row.errors > 0 { &*row.last_error } else { "" };
        let args: Vec<&str> = match url {
            Some(_) => CURL[1..].iter().copied().chain(["-"]).collect(),
            None => words.iter().skip(1).map(String::as_str).collect(),
        };
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        command.env("ONEDROP_JOB_NAME", job).env("ONEDROP_JOB_STATE", state);
        set_umask(&mut command, umask);
        command.env("ONEDROP_JOB_ERROR", why).env("ONEDROP_JOB_ERRORS", row.errors.to_string());
        let started = command.spawn().map(|mut process| {
            // It fits into the pipe. Without a reader the hook says so itself.
            if let (Some(url), Some(mut input)) = (url, process.stdin.take()) {
                let body = format!("{job} {state}: {why}");
                let text = format!("url = {}\ndata-raw = {}\n", quoted(url), quoted(&body));
                let _ = input.write_all(text.as_bytes());
            }
            process
        });
        match started {
            Ok(process) => {
                let ends_at = Instant::now() + TIME;
                Some(HookProcess { job: job.clone(), key, process, ends_at })
            }
            Err(error) => {
                tracing::warn!("job {job}: {key}: {program}: {error}");
                None
            }
        }
    }

    /// When it is ended.
    pub fn ends_at(&self) -> Instant {
        self.ends_at
    }

    /// Whether it has ended; a failure is logged. One whose time is over is killed.
    pub fn has_ended(&mut self) -> bool {
        let HookProcess { job, key, process, ends_at } = self;
        match process.try_wait() {
            Ok(Some(status)) if status.success() => true,
            Ok(Some(status)) => {
                tracing::warn!("job {job}: {key}: {status}");
                true
            }
            Ok(None) if Instant::now() < *ends_at => false,
            Ok(None) | Err(_) => {
                // It is not reaped yet, so the number is its own. One of another user (by sudo)
                // cannot be killed, and one that waits for a disk dies later: none keeps the tick
                // waiting, and what is left of it goes with this process.
                let pid = i32::try_from(process.id()).map(Pid::from_raw);
                let is_killed = matches!(pid.map(|pid| killpg(pid, Signal::SIGKILL)), Ok(Ok(())));
                let dies_until = Instant::now() + DYING;
                while is_killed
                    && matches!(process.try_wait(), Ok(None))
                    && Instant::now() < dies_until
                {
                    thread::sleep(LOOK);
                }
                let how = if is_killed { "was killed" } else { "cannot be killed" };
                tracing::warn!("job {job}: {key}: it did not end in time and {how}");
                true
            }
        }
    }
}

/// A text as curl's configuration has it.
fn quoted(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", text.replace(['\n', '\r'], " "))
}
