//! How a process ends, as Postfix reads it (pipe(8); global/pipe_command.c, global/sys_exits.c).
//! Only 71 and 75 defer; every other non-zero status returns the mail to its sender, also a panic's
//! 101 and an argument parser's 2. So all endings meet here: 0, 67, 69 by an explicit decision of
//! `outcome.rs`, and 75 for everything else. Commands that deliver nothing end in 0, in 75, or in 1
//! for an answer in the negative.
//!
//! On failure the first bytes written are `x.y.z text`, which overrides the exit status in Postfix;
//! on success one line, of which Postfix logs 100 characters. A pipe that is full, closed or gone
//! changes nothing and blocks nobody.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, Signal, signal};
use sysexits::ExitCode;

use crate::deadline::Deadline;
use crate::deliver::Failure;
use crate::outcome::{Outcome, OverQuota, Status};
use crate::text;

/// The longest line written; Postfix keeps 4096 bytes of output, and a pipe takes this much in one
/// piece.
const LONGEST_LINE: usize = 1000;
/// A delivery that ends by itself at its deadline gets this long to say so.
const WATCHDOG_SLACK: Duration = Duration::from_millis(500);
/// A watchdog that wakes up this late was frozen, and so was the delivery. With the slack it is
/// less than the second by which a lease outlasts the deadline at least: whoever may have been
/// overtaken gets the time to take its copy out again.
const FROZEN: Duration = Duration::from_millis(250);

/// The exit status for `outcome`.
pub fn status(outcome: &Outcome) -> ExitCode {
    match outcome {
        Outcome::Delivered(_) => ExitCode::Ok,
        Outcome::TempFail(..) => ExitCode::TempFail,
        Outcome::PermFail(status, _) if *status == Status::UNKNOWN_MAILBOX => ExitCode::NoUser,
        Outcome::PermFail(..) => ExitCode::Unavailable,
    }
}

/// The one line about `outcome`, with its line end.
pub fn line(outcome: &Outcome) -> String {
    let text = match outcome {
        Outcome::Delivered(text) => text.clone(),
        Outcome::TempFail(status, text) | Outcome::PermFail(status, text) => {
            format!("{status} {text}")
        }
    };
    text::within(&text, LONGEST_LINE).into_owned() + "\n"
}

/// Writes the line and ends the process.
pub fn end(outcome: &Outcome) -> ! {
    say(&line(outcome));
    std::process::exit(status(outcome) as i32)
}

/// How a command ends that delivers nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// 0: done.
    Done,
    /// 1: done, and the answer is no: `trace` found nothing, `verify` left something to mend,
    /// `check` could not test something. Never the ending of a process that may have been given a
    /// message: Postfix would return it.
    No,
    /// 75: not done, or something is wrong.
    Failed,
}

/// Ends a command that delivers nothing: `out` goes to standard output, then `err` to standard
/// error. What could not be written to standard output was not done; a reader that went away (`|
/// head`) needs no words about it.
pub fn end_command(out: &str, err: &str, verdict: Verdict) -> ! {
    let written = print(out);
    let mut errors = std::io::stderr();
    // Nobody is left to tell of an error.
    if let Err(error) = &written
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        let _ = writeln!(errors, "standard output: {error}");
    }
    if !err.is_empty() {
        let _ = writeln!(errors, "{}", err.trim_end());
    }
    std::process::exit(match (written, verdict) {
        (Err(_), _) | (Ok(()), Verdict::Failed) => ExitCode::TempFail as i32,
        (Ok(()), Verdict::No) => 1,
        (Ok(()), Verdict::Done) => ExitCode::Ok as i32,
    })
}

fn print(out: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    if !out.is_empty() {
        stdout.write_all(format!("{}\n", out.trim_end()).as_bytes())?;
    }
    stdout.flush()
}

/// Runs `f`; a panic in it is a temporary failure.
pub fn guard(f: impl FnOnce() -> Outcome) -> Outcome {
    panic::set_hook(Box::new(|info| tracing::error!("panic: {info}")));
    panic::catch_unwind(AssertUnwindSafe(f))
        .unwrap_or_else(|payload| Failure::Internal(panic_text(payload)).outcome(OverQuota::Defer))
}

/// What a panic said.
pub fn panic_text(payload: Box<dyn std::any::Any + Send>) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic".to_owned())
}

/// local(8) limits the size of files that its commands write (`mailbox_size_limit`), and the signal
/// for that would end us without a word. Ignored, the write fails with EFBIG instead and is an
/// error like any other.
pub fn survive_file_size_limit() {
    // SAFETY: to ignore a signal installs no handler, so no code of ours runs in a signal's context
    // (signal-safety(7)).
    let ignored = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
    if let Err(error) = ignored {
        tracing::warn!(%error, "SIGXFSZ is not ignored");
    }
}

/// Makes SIGTERM, SIGINT and SIGHUP end the process as a temporary failure. Death by a signal would
/// defer the mail as well, but not where a shell stands between (mailbox_command, a wrapper): that
/// would end in 128 and the signal's number, and Postfix would return the mail. Nothing is tidied
/// up: what has begun stays as a crash leaves it, and the next try goes on.
pub fn end_at_signals() {
    let texts = [
        (Signal::SIGTERM, "4.3.0 ended by SIGTERM\n"),
        (Signal::SIGINT, "4.3.0 ended by SIGINT\n"),
        (Signal::SIGHUP, "4.3.0 ended by SIGHUP\n"),
    ];
    for (signal, text) in texts {
        let end = move || {
            // SAFETY: standard output is open for the life of the process (Rust opens what is
            // closed at its start).
            let out = unsafe { BorrowedFd::borrow_raw(nix::libc::STDOUT_FILENO) };
            say_to(out, text);
            signal_hook::low_level::exit(ExitCode::TempFail as i32);
        };
        // SAFETY: in the signal's context `end` calls poll(2), write(2) and _exit(2), and nothing
        // else: all of them may be called there (signal-safety(7)), they allocate nothing and take
        // no lock.
        if let Err(error) = unsafe { signal_hook::low_level::register(signal as i32, end) } {
            tracing::warn!(%error, "{signal} would end a delivery without a word");
        }
    }
}

/// The thread that ends the process with a temporary failure when the deadline has passed, whatever
/// hangs: a name server, a disk, a peer. A delivery that was frozen while its last bytes were on
/// their way gets the time to hear the answer.
pub struct Watchdog(Sender<(Deadline, u64)>);

impl Watchdog {
    /// Starts it.
    ///
    /// # Errors
    /// The thread cannot be started; without it nothing should be delivered.
    pub fn start(deadline: &Deadline, deadline_secs: u64) -> std::io::Result<Watchdog> {
        let (next, nexts) = channel();
        let mut watched = (deadline.clone(), deadline_secs);
        thread::Builder::new().name("watchdog".to_owned()).spawn(move || {
            loop {
                let due = watched.0.end() + WATCHDOG_SLACK;
                match nexts.recv_timeout(due.saturating_duration_since(Instant::now())) {
                    Ok(next) => watched = next,
                    Err(RecvTimeoutError::Timeout) => break,
                    // Nobody can name another deadline any more: this one holds.
                    Err(RecvTimeoutError::Disconnected) => {
                        thread::sleep(due.saturating_duration_since(Instant::now()));
                        break;
                    }
                }
            }
            bite(&watched.0, watched.1);
        })?;
        Ok(Watchdog(next))
    }

    /// From now on `deadline` counts in place of the one before.
    pub fn watch(&self, deadline: &Deadline, deadline_secs: u64) {
        // The thread is there until the process ends.
        let _ = self.0.send((deadline.clone(), deadline_secs));
    }
}

fn bite(deadline: &Deadline, deadline_secs: u64) {
    if Instant::now() > deadline.end() + WATCHDOG_SLACK + FROZEN && deadline.is_answering() {
        thread::sleep(deadline.answer_until().saturating_duration_since(Instant::now()));
    }
    let doing =
        if deadline.is_answering() { "waiting for the store's answer" } else { "delivering" };
    let failure = Failure::Deadline { secs: deadline_secs, doing: doing.to_owned() };
    end(&failure.outcome(OverQuota::Defer));
}

/// Writes to standard output if it takes the text at once.
pub fn say(text: &str) {
    say_to(std::io::stdout().as_fd(), text);
}

fn say_to(out: BorrowedFd<'_>, text: &str) {
    if takes_output(out) {
        // Not through Rust's own buffer: its lock may be held by a thread that hangs. Nobody is
        // left to tell of an error.
        let _ = nix::unistd::write(out, text.as_bytes());
    }
}

/// A pipe that polls writable takes PIPE_BUF (4096) bytes without blocking (pipe(7)).
fn takes_output(out: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(out, PollFlags::POLLOUT)];
    matches!(poll(&mut fds, PollTimeout::ZERO), Ok(n) if n > 0)
        && fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLOUT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_begins_with_the_status_and_holds_no_control_characters() {
        let outcome = Outcome::TempFail(Status::TEMPORARY, "a\r\nb\0c".to_owned());
        assert_eq!(line(&outcome), "4.3.0 a  b c\n");
        assert_eq!(line(&Outcome::Delivered("é".repeat(LONGEST_LINE))).len(), LONGEST_LINE + 1);
    }

    #[test]
    fn a_panic_is_temporary() {
        let outcome = guard(|| panic!("boom"));
        assert_eq!(status(&outcome) as i32, 75);
        assert_eq!(line(&outcome), "4.3.0 internal error: boom\n");
    }
}
