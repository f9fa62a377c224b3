//! Ends the process with an exit status for Postfix (pipe(8); global/pipe_command.c,
//! global/sys_exits.c). Only 71 and 75 defer. Every other non-zero status returns the mail to its
//! sender, also a panic's 101 and an argument parser's 2. So this module makes all exits: 0, 67 and
//! 69 for an explicit outcome, 75 for everything else. Commands that deliver nothing exit 0 or 75,
//! or 1 for a negative result; `with-lock` exits as its command does, and has numbers of its own;
//! `jobs check` exits as monitoring plugins do.
//!
//! On failure the output begins with `x.y.z text`, which overrides the exit status in Postfix; on
//! success it is one line, of which Postfix logs 100 characters. A full or closed pipe neither
//! changes the status nor blocks the process. The main thread, the watchdog and a signal may all
//! come to the end: the first one says its line and ends the process with its own status.

use std::fmt::{self, Display, Formatter};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigHandler, Signal, signal};
use sysexits::ExitCode;

use crate::deadline::Deadline;
use crate::outcome::{Outcome, Status};
use crate::text;

/// Bytes of the line; Postfix keeps 4096 bytes of output, and a pipe takes this many atomically.
const LONGEST_LINE: usize = 1000;
/// Time for a delivery to end by itself at its deadline.
const WATCHDOG_SLACK: Duration = Duration::from_millis(500);
/// If the watchdog wakes up this late, the process was frozen. With the slack this is less than the
/// second by which a lease outlasts the deadline at least, so a delivery that another one may have
/// overtaken has time to remove its copy.
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
        Outcome::Delivered(_) => outcome.text().into_owned(),
        Outcome::TempFail(..) | Outcome::PermFail(..) => {
            format!("{} {}", outcome.status(), outcome.text())
        }
    };
    text::within(&text::shown(&text), LONGEST_LINE).into_owned() + "\n"
}

/// The right to end the process, and to write its last words. There is one.
struct TheEnd(());

/// Whether it is taken.
static ENDING: AtomicBool = AtomicBool::new(false);

impl TheEnd {
    /// Whoever comes second waits until the first one has ended the process.
    fn of_all() -> TheEnd {
        loop {
            match TheEnd::if_first() {
                Some(end) => return end,
                // It may wake up for no reason.
                None => thread::park(),
            }
        }
    }

    /// `None` for whoever comes second. Async-signal-safe.
    fn if_first() -> Option<TheEnd> {
        // Made for the first one alone: its drop ends the process.
        (!ENDING.swap(true, Ordering::SeqCst)).then(|| TheEnd(()))
    }

    fn with(self, status: i32) -> ! {
        std::process::exit(status)
    }

    /// Writes the line, which a full or closed pipe keeps from nothing else.
    fn with_line(self, outcome: &Outcome) -> ! {
        say(std::io::stdout().as_fd(), line(outcome).as_bytes());
        self.with(status(outcome) as i32)
    }
}

/// The holder ends the process and drops nothing, unless it panics on the way. Then no other thread
/// may end the process, and all would wait, Postfix too.
impl Drop for TheEnd {
    fn drop(&mut self) {
        signal_hook::low_level::exit(ExitCode::TempFail as i32);
    }
}

/// Writes the line and ends the process.
pub fn end(outcome: &Outcome) -> ! {
    TheEnd::of_all().with_line(outcome)
}

/// The result of a command that delivers nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// 0: done.
    Done,
    /// 1: done, with a negative result: `trace` found nothing, `verify` left something to repair,
    /// `check` could not test something. Never for a process that may have a message on standard
    /// input: Postfix would return it.
    No,
    /// 75: not done, or an error was found.
    Failed,
    /// 201: `lock assert` found that the lock is not held, or not for long enough.
    Lost,
    /// The status that `jobs check` has for a monitoring system.
    Monitored(PluginStatus),
}

/// The exit statuses of a monitoring plugin (Nagios plugin API), which its first line names, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PluginStatus {
    Ok = 0,
    Warning = 1,
    Critical = 2,
    Unknown = 3,
}

/// Ends a command that delivers nothing: writes `out` to standard output, then `err` to standard
/// error. If `out` cannot be written, the command has failed; it prints no error for a reader that
/// has closed the pipe (`| head`).
pub fn end_command(out: &str, err: &str, verdict: Verdict) -> ! {
    let end = TheEnd::of_all();
    let mut stdout = std::io::stdout();
    let written = match out {
        "" => Ok(()),
        out => writeln!(stdout, "{}", text::shown_output(out.trim_end())),
    };
    let written = written.and_then(|()| stdout.flush());
    let mut errors = std::io::stderr();
    // Errors of writing to standard error cannot be reported anywhere.
    if let Err(error) = &written
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        let _ = writeln!(errors, "standard output: {error}");
    }
    if !err.is_empty() {
        let _ = writeln!(errors, "{}", text::shown_output(err.trim_end()));
    }
    end.with(match verdict {
        Verdict::Done if written.is_ok() => ExitCode::Ok as i32,
        Verdict::No if written.is_ok() => 1,
        Verdict::Lost => LOST,
        Verdict::Monitored(status) if written.is_ok() => status as i32,
        Verdict::Monitored(_) => PluginStatus::Unknown as i32,
        Verdict::Done | Verdict::No | Verdict::Failed => ExitCode::TempFail as i32,
    })
}

/// How `with-lock` ended: as its command did, or a sentence that says why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockEnding {
    /// The command's own status.
    Exited(i32),
    /// The command, or `with-lock` while it waited for the lock, ended by this signal: 128 and its
    /// number.
    Killed(i32),
    /// 124: the command ran longer than it may.
    TimedOut(String),
    /// 143, as by SIGTERM: an administrator has ended the command.
    Stopped(String),
    /// 125: something failed before the command ran.
    Failed(String),
    /// 126: the command is there and cannot be run.
    NotExecutable(String),
    /// 127: the command is not there.
    NotFound(String),
    /// 200, unless the caller wants another one: others hold the lock.
    Busy(String),
    /// 201: the lock was lost before the command ended, or before it began.
    Lost(String),
    /// 0: the command need not run now, for this reason.
    NothingToDo(String),
}

impl Display for LockEnding {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            LockEnding::Exited(status) => write!(f, "exit status {status}"),
            LockEnding::Killed(signal) => match Signal::try_from(*signal) {
                Ok(signal) => write!(f, "ended by {signal}"),
                Err(_) => write!(f, "ended by signal {signal}"),
            },
            LockEnding::TimedOut(text)
            | LockEnding::Stopped(text)
            | LockEnding::Failed(text)
            | LockEnding::NotExecutable(text)
            | LockEnding::NotFound(text)
            | LockEnding::Busy(text)
            | LockEnding::Lost(text)
            | LockEnding::NothingToDo(text) => f.write_str(text),
        }
    }
}

/// timeout(1) and env(1) have the same numbers for the same endings.
const TIMED_OUT: i32 = 124;
const FAILED_BEFORE: i32 = 125;
pub const NOT_EXECUTABLE: i32 = 126;
pub const NOT_FOUND: i32 = 127;
const BY_SIGNAL: i32 = 128;
pub const BUSY: u8 = 200;
const LOST: i32 = 201;

/// What `with-lock`'s caller wants to hear.
#[derive(Debug, Clone, Copy)]
pub struct LockCodes {
    /// Every ending but the command's own status is a temporary failure for Postfix.
    pub mail: bool,
    /// The status of a lock that others hold.
    pub busy: u8,
    /// Nothing is said of such a lock.
    pub quiet: bool,
}

/// Ends `with-lock`.
pub fn end_with_lock(ending: &LockEnding, codes: LockCodes) -> ! {
    let (status, text) = match ending {
        LockEnding::Exited(status) => TheEnd::of_all().with(*status),
        LockEnding::Killed(signal) => {
            let name = Signal::try_from(*signal).map_or("a signal", Signal::as_str);
            (BY_SIGNAL + signal, Some(format!("ended by {name}")).filter(|_| codes.mail))
        }
        LockEnding::TimedOut(text) => (TIMED_OUT, Some(text.clone())),
        LockEnding::Stopped(text) => (BY_SIGNAL + Signal::SIGTERM as i32, Some(text.clone())),
        LockEnding::Failed(text) => (FAILED_BEFORE, Some(text.clone())),
        LockEnding::NotExecutable(text) => (NOT_EXECUTABLE, Some(text.clone())),
        LockEnding::NotFound(text) => (NOT_FOUND, Some(text.clone())),
        LockEnding::Busy(text) => (codes.busy.into(), Some(text.clone())),
        LockEnding::Lost(text) => (LOST, Some(text.clone())),
        LockEnding::NothingToDo(text) => end_command(text, "", Verdict::Done),
    };
    let end = TheEnd::of_all();
    if codes.mail {
        // Also a lock that is held: nothing was done with the mail.
        end.with_line(&Outcome::TempFail(Status::TEMPORARY, text.unwrap_or_default()));
    }
    if matches!(ending, LockEnding::Busy(_)) && codes.quiet {
        tracing::info!("{}", text.unwrap_or_default());
    } else if let Some(text) = text {
        tell(&text);
    }
    end.with(status)
}

/// Prints a line about what happens on standard error, unless that would block.
pub fn tell(text: &str) {
    let line = format!("onedrop: {}\n", text::shown(text));
    say(std::io::stderr().as_fd(), line.as_bytes());
}

/// How a run of a job ended that `jobs tick` has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunStatus {
    Well,
    /// Others hold the job's lock.
    Busy,
    Failed,
}

impl RunStatus {
    /// By its exit status; `None`: a signal ended it.
    pub fn of(status: Option<i32>) -> RunStatus {
        match status {
            Some(0) => RunStatus::Well,
            Some(status) if status == i32::from(BUSY) => RunStatus::Busy,
            Some(_) | None => RunStatus::Failed,
        }
    }
}

/// Ends a run of a job that `jobs tick` has started, which must not take the command's own status
/// for one of ours.
pub fn end_run_of_tick(ending: &LockEnding) -> ! {
    let codes = LockCodes { mail: false, busy: BUSY, quiet: true };
    match ending {
        LockEnding::Exited(status) if *status != 0 => TheEnd::of_all().with(1),
        LockEnding::NothingToDo(text) => {
            tracing::info!("{text}");
            TheEnd::of_all().with(0)
        }
        LockEnding::Stopped(text) => {
            tell(text);
            TheEnd::of_all().with(0)
        }
        ending => end_with_lock(ending, codes),
    }
}

/// Writes what a command has written for Postfix: at most 4096 bytes, which a pipe takes at once.
pub fn say_for_command(output: &[u8]) {
    if !output.is_empty() {
        say(std::io::stdout().as_fd(), output);
    }
}

/// A panic goes to the log: Postfix would take it for the output of the command.
pub fn log_panics() {
    panic::set_hook(Box::new(|info| tracing::error!("panic: {info}")));
}

/// Ends the process that guards the command of `with-lock`; its status is not used.
pub fn end_guardian() -> ! {
    TheEnd::of_all().with(0)
}

/// Runs `f` and turns a panic into a temporary failure.
pub fn guard(f: impl FnOnce() -> Outcome) -> Outcome {
    log_panics();
    panic::catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| {
        let text = format!("internal error: {}", text::of_panic(payload));
        Outcome::TempFail(Status::TEMPORARY, text)
    })
}

/// Ignores SIGXFSZ, so that a write beyond local(8)'s limit for files (`mailbox_size_limit`) fails
/// with EFBIG, as any other error, instead of killing the process.
pub fn survive_file_size_limit() {
    // SAFETY: ignoring a signal installs no handler, so no code runs in a signal's context
    // (signal-safety(7)).
    let ignored = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
    if let Err(error) = ignored {
        tracing::warn!(%error, "SIGXFSZ is not ignored");
    }
}

/// Makes SIGTERM, SIGINT and SIGHUP end the process with a temporary failure. Death by a signal
/// defers the mail too, but not below a shell (mailbox_command, a wrapper): the shell exits with
/// 128 plus the signal's number, and Postfix returns the mail. Nothing is cleaned up: the next
/// attempt continues as after a crash.
pub fn end_at_signals() {
    let texts = [
        (Signal::SIGTERM, "4.3.0 ended by SIGTERM\n"),
        (Signal::SIGINT, "4.3.0 ended by SIGINT\n"),
        (Signal::SIGHUP, "4.3.0 ended by SIGHUP\n"),
    ];
    for (signal, text) in texts {
        let end = move || {
            // The process ends already, perhaps by the very thread that this signal interrupts.
            let Some(_end) = TheEnd::if_first() else { return };
            // SAFETY: standard output is open for the life of the process (Rust opens the standard
            // descriptors that are closed at its start).
            let out = unsafe { BorrowedFd::borrow_raw(nix::libc::STDOUT_FILENO) };
            say(out, text.as_bytes());
            signal_hook::low_level::exit(ExitCode::TempFail as i32);
        };
        // SAFETY: in the signal's context `end` swaps an atomic and calls only poll(2), write(2)
        // and _exit(2), which are async-signal-safe (signal-safety(7)), allocate nothing and take
        // no lock.
        if let Err(error) = unsafe { signal_hook::low_level::register(signal as i32, end) } {
            tracing::warn!(%error, "no handler for {signal}: it would kill the delivery");
        }
    }
}

/// A thread that ends the process with a temporary failure after the deadline, even if a name
/// server, a disk or a peer hangs. A delivery that was frozen after its last bytes gets the time to
/// read the server's answer.
pub struct Watchdog(Sender<(Deadline, u64)>);

impl Watchdog {
    /// # Errors
    /// The thread cannot be started; then the caller must not deliver.
    pub fn start(deadline: &Deadline, deadline_secs: u64) -> std::io::Result<Watchdog> {
        let (next, nexts) = channel();
        let mut watched = (deadline.clone(), deadline_secs);
        thread::Builder::new().name("watchdog".to_owned()).spawn(move || {
            loop {
                let due = watched.0.end() + WATCHDOG_SLACK;
                match nexts.recv_timeout(due.saturating_duration_since(Instant::now())) {
                    Ok(next) => watched = next,
                    Err(RecvTimeoutError::Timeout) => break,
                    // The handle was dropped: this deadline is the last one.
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

    /// Replaces the deadline.
    pub fn watch(&self, deadline: &Deadline, deadline_secs: u64) {
        // The thread receives until the process ends.
        let _ = self.0.send((deadline.clone(), deadline_secs));
    }
}

fn bite(deadline: &Deadline, deadline_secs: u64) {
    if Instant::now() > deadline.end() + WATCHDOG_SLACK + FROZEN && deadline.is_answering() {
        thread::sleep(deadline.answer_until().saturating_duration_since(Instant::now()));
    }
    let doing =
        if deadline.is_answering() { "waiting for the store's answer" } else { "delivering" };
    let text = format!("deadline of {deadline_secs} s passed while {doing}");
    end(&Outcome::TempFail(Status::TEMPORARY, text));
}

/// Writes to standard output or error, unless that would block.
fn say(out: BorrowedFd<'_>, text: &[u8]) {
    // A pipe that is writable takes PIPE_BUF (4096) bytes without blocking (pipe(7)).
    let mut fds = [PollFd::new(out, PollFlags::POLLOUT)];
    if poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
        && fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLOUT))
    {
        // Not through Rust's buffer: a hanging thread may hold its lock. An error cannot be
        // reported anywhere.
        let _ = nix::unistd::write(out, text);
    }
}
