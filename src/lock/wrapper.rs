//! The process that was started: asks for the lock, passes signals on, and ends as its command
//! does. It forks the [`guardian`](super::guardian) before it has a second thread; from then on one
//! thread waits for signals, for the guardian and for the [`keeper`](super::keeper)'s news, and
//! never for the ledger. Should the guardian be stopped or killed, it ends the command itself.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, kill, raise, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stdin, fork, getpgrp};

use super::boot_timer::BootTimer;
use super::descendants::signal_all;
use super::frames::{CommandStatus, Notice, Order};
use super::guardian::{self, Caller, CommandPlan, Company};
use super::keeper::{Closing, Keeper, LockNews, LockWish, described};
use super::output::{CommandStreams, Output, OutputPipes, PassingOn};
use super::record::{CommandEnd, EndRecord, RunRecord};
use super::{LockTerms, MARGIN, since_boot};
use crate::exit::{self, LockEnding};
use crate::ledger::{LedgerError, LockRow, Locks};

/// What is passed on to the command.
const PASSED_ON: [Signal; 9] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

/// A command, the lock that it needs, and how long it may run.
pub struct Wrapping {
    pub wish: LockWish,
    pub plan: CommandPlan,
    pub timeout: Option<Duration>,
    /// Says something to the caller while the command waits or runs.
    pub say: fn(&str),
}

/// Runs the command under its lock; returns how that ended. This process must have one thread.
pub fn run(wrapping: &Wrapping, ledger: Arc<dyn Locks>, record: Box<dyn RunRecord>) -> LockEnding {
    let wrapper = block_signals().and_then(|(signals, callers_mask)| {
        let is_alone = wrapping.plan.company == Company::Alone;
        let pipes = is_alone.then(OutputPipes::new).transpose()?;
        let (guardian, pid, pipes) = fork_guardian(&wrapping.plan, &callers_mask, pipes)?;
        let output = pipes.map(OutputPipes::read).transpose()?;
        let keeper = Keeper::start(ledger, wrapping.wish.clone(), record)?;
        Ok(Wrapper {
            wrapping,
            signals,
            guardian,
            guardian_pid: pid,
            timer: BootTimer::new()?,
            trust: None,
            timeout_at: None,
            forced_at: None,
            state: State::default(),
            keeper,
            output,
        })
    });
    match wrapper {
        Ok(mut wrapper) => {
            let ending = wrapper.watch();
            let ending =
                ending.unwrap_or_else(|error| LockEnding::Failed(format!("wrapper: {error}")));
            wrapper.finish(ending)
        }
        Err(error) => LockEnding::Failed(format!("cannot start: {error}")),
    }
}

/// The signals that this process hears by a descriptor, and the guardian not at all; and what the
/// caller had blocked.
fn block_signals() -> io::Result<(SignalFd, SigSet)> {
    // SAFETY: the default action is no handler. The caller may have ignored it, and then no child's
    // status could be known (wait(2)).
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    let all: SigSet = PASSED_ON.into_iter().collect();
    let callers_mask = all.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    Ok((SignalFd::with_flags(&all, flags)?, callers_mask))
}

fn fork_guardian(
    plan: &CommandPlan,
    callers_mask: &SigSet,
    pipes: Option<OutputPipes>,
) -> io::Result<(UnixStream, Pid, Option<OutputPipes>)> {
    prctl::set_child_subreaper(true)?;
    let (ours, theirs) = UnixStream::pair()?;
    let group = getpgrp();
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("another thread runs already"));
    }
    // SAFETY: this process has this one thread, as was just seen, and nobody else can start one. So
    // no lock is held by a thread that the child would not have, and the child may do whatever this
    // process may.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok((ours, child, pipes)),
        ForkResult::Child => {
            drop(ours);
            // Nothing of it reaches the caller of this function, which is the wrapper's. What went
            // wrong shows there as an end without a notice.
            let caller = Caller { group, mask: *callers_mask };
            let streams: Option<CommandStreams> = pipes.map(|pipes| pipes.writers);
            let guard = || guardian::guard(plan, &theirs, &caller, streams);
            let _ = catch_unwind(AssertUnwindSafe(guard));
            exit::end_guardian()
        }
    }
}

/// What is known of the command and why it was ended.
#[derive(Default)]
struct State {
    is_ordered: bool,
    is_started: bool,
    is_lost: bool,
    is_timed_out: bool,
    /// Nothing of it is left, and how it ended.
    ended: Option<CommandStatus>,
}

struct Wrapper<'a> {
    wrapping: &'a Wrapping,
    signals: SignalFd,
    guardian: UnixStream,
    guardian_pid: Pid,
    timer: BootTimer,
    trust: Option<Duration>,
    timeout_at: Option<Duration>,
    /// When this process ends the command that the guardian was told to end.
    forced_at: Option<Duration>,
    state: State,
    keeper: Keeper,
    /// Where the command has none of the caller's streams.
    output: Option<Output>,
}

impl Wrapper<'_> {
    /// Until the command has ended, or it is known that it will not run.
    fn watch(&mut self) -> io::Result<LockEnding> {
        loop {
            let ends = [self.timeout_at, self.forced_at, self.trust.map(own_end)];
            let next = ends.into_iter().flatten().min();
            let fds = [self.signals.as_fd(), self.guardian.as_fd(), self.keeper.bell()];
            let [_, noticed, rung] = self.timer.wait(fds, next)?;
            if noticed && let Some(ending) = self.hear_guardian()? {
                return Ok(ending);
            }
            if rung && let Some(ending) = self.hear_keeper()? {
                return Ok(ending);
            }
            if let Some(ending) = self.hear_signals()? {
                return Ok(ending);
            }
            let now = since_boot()?;
            if self.timeout_at.is_some_and(|at| now >= at) {
                self.timeout_at = None;
                self.state.is_timed_out = true;
                self.order_the_end(now);
            }
            // The guardian is stopped.
            if self.forced_at.is_some_and(|at| now >= at) {
                self.kill_all();
                return Ok(self.ended(CommandStatus::Killed(libc::SIGKILL)));
            }
            // So it is here: it would have ended the command half a second ago.
            if self.trust.is_some_and(|trust| now >= own_end(trust)) {
                self.kill_all();
                return Ok(self.lost());
            }
        }
    }

    fn hear_guardian(&mut self) -> io::Result<Option<LockEnding>> {
        match Notice::receive(&self.guardian)? {
            Some(Notice::Started) => {
                self.state.is_started = true;
                // The command alone reads it now.
                dup2_stdin(OpenOptions::new().read(true).open("/dev/null")?)?;
                Ok(None)
            }
            Some(Notice::NotStarted(number)) => Ok(Some(self.not_started(number))),
            Some(Notice::Ended { status, by_trust }) => {
                self.state.is_lost |= by_trust;
                Ok(Some(self.ended(status)))
            }
            // It was killed, and the command with it; what that had started is below us.
            None => {
                self.kill_all();
                Ok(Some(match self.state.is_started {
                    true => self.ended(CommandStatus::Killed(libc::SIGKILL)),
                    false => LockEnding::Failed("the guarding process has ended".to_owned()),
                }))
            }
        }
    }

    fn hear_keeper(&mut self) -> io::Result<Option<LockEnding>> {
        let name = &self.wrapping.wish.name;
        for news in self.keeper.news() {
            match news {
                LockNews::Taken { claim, trust, others, variables } => {
                    self.warn_of_other_counts(&others);
                    self.trust = Some(trust);
                    self.timeout_at = match self.wrapping.timeout {
                        Some(timeout) => Some(since_boot()?.saturating_add(timeout)),
                        None => None,
                    };
                    self.state.is_ordered = true;
                    if !variables.is_empty() {
                        self.order(Order::Environment(variables));
                    }
                    self.order(Order::Start { slot: claim.slot, epoch: claim.epoch, trust });
                }
                LockNews::Renewed { trust } => {
                    self.trust = Some(trust);
                    self.order(Order::Trust(trust));
                }
                LockNews::Lost => {
                    self.state.is_lost = true;
                    self.order_the_end(since_boot()?);
                }
                LockNews::Busy(rows) => {
                    let holders = described(&rows);
                    return Ok(Some(LockEnding::Busy(format!("{name} is busy: {holders}"))));
                }
                LockNews::Waits(error) => {
                    (self.wrapping.say)(&format!("waiting for {name}: ledger: {error}"));
                }
                LockNews::NothingToDo(why) => return Ok(Some(LockEnding::NothingToDo(why))),
                LockNews::Refused(why) => return Ok(Some(LockEnding::Failed(why))),
                LockNews::Failed(error) => return Ok(Some(failed(&error))),
                // The keeper has it for the end.
                LockNews::Released(_) => {}
            }
        }
        Ok(None)
    }

    fn hear_signals(&mut self) -> io::Result<Option<LockEnding>> {
        while let Some(info) = self.signals.read_signal()? {
            let number = i32::try_from(info.ssi_signo).map_err(io::Error::other)?;
            let signal = Signal::try_from(number)?;
            let by_terminal = info.ssi_code > 0;
            let is_alone = self.wrapping.plan.company == Company::Alone;
            let ends = !matches!(signal, Signal::SIGWINCH | Signal::SIGTSTP | Signal::SIGCONT);
            match self.wrapping.plan.company {
                _ if !self.state.is_ordered && ends => {
                    return Ok(Some(LockEnding::Killed(number)));
                }
                _ if !self.state.is_ordered => {}
                Company::Alone if matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2) => {
                    self.order(Order::Forward(signal));
                }
                Company::Alone if ends => self.order_the_end(since_boot()?),
                Company::Alone => {}
                // The command has heard it as well.
                Company::CallersGroup if by_terminal => {}
                Company::CallersGroup | Company::OwnGroup => self.order(Order::Forward(signal)),
            }
            if signal == Signal::SIGTSTP && !is_alone {
                // Until SIGCONT; without renewals the guardian ends the command in time.
                raise(Signal::SIGSTOP)?;
            }
        }
        Ok(None)
    }

    /// The guardian may be gone; that is heard.
    fn order(&self, order: Order) {
        let _ = order.send(&self.guardian);
    }

    fn order_the_end(&mut self, now: Duration) {
        self.order(Order::End);
        self.forced_at = Some(now + self.wrapping.plan.terms.grace + 2 * MARGIN);
    }

    fn not_started(&self, number: i32) -> LockEnding {
        let program = self.wrapping.plan.program.to_string_lossy();
        let errno = Errno::from_raw(number);
        match errno {
            Errno::ENOENT => LockEnding::NotFound(format!("{program}: {}", errno.desc())),
            Errno::EAGAIN | Errno::ENOMEM | Errno::ENFILE | Errno::EMFILE => {
                LockEnding::Failed(format!("{program}: {}", errno.desc()))
            }
            _ if fs::metadata(&self.wrapping.plan.program).is_ok_and(|file| file.is_dir()) => {
                LockEnding::NotExecutable(format!("{program}: is a directory"))
            }
            _ => LockEnding::NotExecutable(format!("{program}: {}", errno.desc())),
        }
    }

    fn ended(&mut self, status: CommandStatus) -> LockEnding {
        self.state.ended = Some(status);
        if self.state.is_lost {
            return self.lost();
        }
        match status {
            _ if self.state.is_timed_out => {
                let secs = self.wrapping.timeout.unwrap_or_default().as_secs_f64();
                LockEnding::TimedOut(format!("the command ran longer than {secs} s and was ended"))
            }
            CommandStatus::Exited(code) => LockEnding::Exited(code),
            CommandStatus::Killed(signal) => LockEnding::Killed(signal),
        }
    }

    fn lost(&mut self) -> LockEnding {
        self.state.is_lost = true;
        let name = &self.wrapping.wish.name;
        tracing::warn!(lock = %name, "the lock was lost; the command was ended");
        LockEnding::Lost(format!("{name} was lost while the command ran; the command was ended"))
    }

    /// Two numbers of slots under one name: more may run than somebody wants.
    fn warn_of_other_counts(&self, others: &[LockRow]) {
        let LockWish { name, slots, .. } = &self.wrapping.wish;
        if let Some(other) = others.iter().find(|row| row.holder.slots != *slots) {
            let theirs = other.holder.slots;
            let text = format!("warning: {name} is held with --slots {theirs}, here with {slots}");
            tracing::warn!("{text}");
            (self.wrapping.say)(&text);
        }
    }

    /// Everything below this process, until nothing is left or the lease ends.
    fn kill_all(&self) {
        let end = self.trust.unwrap_or_default() + MARGIN;
        loop {
            signal_all(Signal::SIGKILL, None);
            loop {
                match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                    Err(Errno::ECHILD) => return,
                    Ok(WaitStatus::StillAlive) => break,
                    _ => {}
                }
            }
            if since_boot().is_ok_and(|now| now > end) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Gives the lock back. What the ledger says of it then counts for the ending.
    fn finish(self, ending: LockEnding) -> LockEnding {
        let Wrapper { keeper, state, guardian, guardian_pid, wrapping, output, trust, .. } = self;
        // It ends the command now, if it runs.
        drop(guardian);
        if state.ended.is_some() || !state.is_ordered {
            // It ends by itself, unless it is stopped.
            let _ = kill(guardian_pid, Signal::SIGKILL);
        }
        let _ = waitpid(guardian_pid, None);
        let (output, passing_on) = output.map(Output::end).unzip();
        let trust_left = trust.zip(since_boot().ok()).map(|(trust, now)| trust.saturating_sub(now));
        // Without a record there is nothing to tell until then.
        let patience = trust_left.filter(|_| output.is_some()).unwrap_or_default();
        let end = CommandEnd { ending: ending.clone(), output: output.unwrap_or_default() };
        let (was_ours, recorded) = match keeper.stop(end, patience) {
            Some(Closing { was_ours, recorded }) => (was_ours, recorded),
            None if wrapping.plan.company == Company::Alone => {
                (None, Err(LedgerError::TookTooLong("putting it on record".to_owned())))
            }
            None => (None, Ok(EndRecord::NoRecord)),
        };
        if let Some(left_out) = passing_on.map(PassingOn::finish).filter(|bytes| *bytes > 0) {
            tracing::warn!("{left_out} bytes of the command's output were read by nobody");
        }
        let name = &wrapping.wish.name;
        let is_by_command = state.ended.is_some() && !state.is_lost;
        let why = match recorded {
            Ok(EndRecord::NoRecord) if is_by_command && was_ours == Some(false) => {
                tracing::warn!(lock = %name, "the lock was lost before it was given back");
                "was lost while the command ran".to_owned()
            }
            Ok(EndRecord::NoRecord | EndRecord::Done) => return ending,
            Ok(EndRecord::Refused) => "was taken over by another while the command ran; \
                how this run ended is not on record"
                .to_owned(),
            Err(error) => format!(
                "lasted no longer than the ledger's failure: how this run ended \
                 ({ending}) is not on record: {error}"
            ),
        };
        LockEnding::Lost(format!("{name} {why}"))
    }
}

/// When this process ends the command if the guardian has not.
fn own_end(trust: Duration) -> Duration {
    LockTerms::killed_at(trust) + MARGIN / 2
}

fn failed(error: &LedgerError) -> LockEnding {
    LockEnding::Failed(format!("ledger: {error}"))
}
