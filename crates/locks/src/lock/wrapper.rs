//! The process that was started: asks for the lock, passes signals on, and ends as its command
//! does. It forks the [`guardian`](super::guardian) before it has a second thread; from then on one
//! thread waits for signals, for the guardian and for the [`keeper`](super::keeper)'s news, and
//! never for the ledger. Should the guardian be stopped or killed, it ends the command itself. The
//! lock is given back only when nothing of the command is alive.

use std::fs::{self, File, OpenOptions};
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
use nix::unistd::{ForkResult, Pid, dup2_stdin, dup2_stdout, fork, getpgrp, getpid};

use super::boot_timer::BootTimer;
use super::descendants::all_run_below;
use super::frames::{CommandStatus, EndCause, Notice, Order};
use super::guardian::{self, Caller, CommandSpec, Company, WrapperSide};
use super::keeper::{Keeper, LockNews, LockWish, described};
use super::line::Line;
use super::output::{CommandStreams, HeldOutput, Output, OutputPipes};
use super::record::RunRecord;
use super::{LockTerms, MARGIN, since_boot, survives_until};
use onedrop_core::exit::{self, LockEnding};
use onedrop_core::ledger::{LockRow, Locks, of_the_ledger};

use finish::kill_all_until;

mod finish;

/// What is passed on to the command, unless the caller ignores it, as nohup(1) does.
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
    pub spec: CommandSpec,
    pub timeout: Option<Duration>,
    /// Postfix waits for the command (pipe(8)): what it writes counts only where the ending is its
    /// own, and waiting and running end before Postfix gives the message up.
    pub is_for_mail: bool,
    /// What each line of the output begins with.
    pub label: Option<String>,
    /// Says something to the caller while the command waits or runs.
    pub say: fn(&str),
}

/// For waiting and running under Postfix, in all: it returns the message after 1000 s
/// (`command_time_limit`).
const MAIL_TIME: Duration = Duration::from_secs(900);

/// Runs the command under its lock; returns how that ended. This process must have one thread.
pub fn run(wrapping: &Wrapping, ledger: Arc<dyn Locks>, record: Box<dyn RunRecord>) -> LockEnding {
    match Wrapper::start(wrapping, ledger, record) {
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
    let status = fs::read_to_string("/proc/self/status")?;
    if !shows_our_processes(&status) {
        return Err(io::Error::other(FOREIGN_PROC));
    }
    let ignored = ignored_signals(&status).ok_or_else(|| io::Error::other("no SigIgn in /proc"))?;
    let heeded = |signal: &Signal| ignored >> (*signal as u32 - 1) & 1 == 0;
    let all: SigSet = PASSED_ON.into_iter().filter(heeded).collect();
    let callers_mask = all.thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    Ok((SignalFd::with_flags(&all, flags)?, callers_mask))
}

const FOREIGN_PROC: &str = "/proc is that of another PID namespace, by whose numbers no process \
    of the command could be ended: mount one of this namespace's own (unshare --mount-proc)";

/// Whether /proc has the numbers that processes have here: it shows one for each namespace between
/// its own and this one, both included.
fn shows_our_processes(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    // A kernel without namespaces has no such line.
    line.is_none_or(|numbers| numbers.split_whitespace().count() == 1)
}

/// A bit for each signal (proc_pid_status(5)).
fn ignored_signals(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn fork_guardian(
    spec: &CommandSpec,
    callers_mask: &SigSet,
    pipes: Option<OutputPipes>,
    null: &File,
    (ledger, line): (&dyn Locks, Option<&Line>),
) -> io::Result<(UnixStream, Pid, Option<OutputPipes>)> {
    prctl::set_child_subreaper(true)?;
    let (ours, theirs) = UnixStream::pair()?;
    let (pid, group, null) = (getpid(), getpgrp(), null.try_clone()?);
    if fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("another thread runs already"));
    }
    // SAFETY: this process has this one thread, as was just seen, and nothing else can start one.
    // So no lock is held by a thread that the child would not have, and the child may do whatever
    // this process may.
    match unsafe { fork() }? {
        ForkResult::Parent { child } => Ok((ours, child, pipes)),
        ForkResult::Child => {
            drop(ours);
            // Nothing of it reaches the caller of this function, which is the wrapper's. What went
            // wrong shows there as an end without a notice.
            let caller = Caller { group, mask: *callers_mask, null };
            let wrapper = WrapperSide { pid, stream: &theirs, ledger, line };
            let streams: Option<CommandStreams> = pipes.map(|pipes| pipes.writers);
            let guard = || guardian::guard(spec, &wrapper, &caller, streams);
            let _ = catch_unwind(AssertUnwindSafe(guard));
            exit::end_guardian()
        }
    }
}

/// What is known of the command and why it was ended.
#[derive(Default)]
struct State {
    is_ordered: bool,
    /// Whether the command began; `None`: that is not known.
    has_begun: Option<bool>,
    is_lost: bool,
    /// Why the command was ordered to end.
    timed_out: Option<String>,
    stopped: Option<String>,
    /// How it ended.
    ended: Option<CommandStatus>,
    /// The guardian has said that nothing of it is left.
    is_over: bool,
}

struct Wrapper<'a> {
    wrapping: &'a Wrapping,
    signals: SignalFd,
    guardian: UnixStream,
    guardian_pid: Pid,
    timer: BootTimer,
    trust: Option<Duration>,
    timeout_at: Option<Duration>,
    /// When this process ends the command itself, after it has ordered the guardian to.
    forced_at: Option<Duration>,
    state: State,
    keeper: Keeper,
    output: OutputWay,
    /// /dev/null: opened while a failure can still be reported.
    null: File,
    /// When waiting and running end under Postfix.
    mail_ends_at: Option<Duration>,
}

/// Where the command's output goes.
enum OutputWay {
    /// It has the caller's streams.
    Callers,
    PassedOn(Output),
    HeldBack(HeldOutput),
}

impl<'a> Wrapper<'a> {
    fn start(
        wrapping: &'a Wrapping,
        ledger: Arc<dyn Locks>,
        record: Box<dyn RunRecord>,
    ) -> io::Result<Wrapper<'a>> {
        let Wrapping { wish, spec, is_for_mail, .. } = wrapping;
        let mut wish = wish.clone();
        let mut mail_ends_at = None;
        if *is_for_mail {
            wish.wait = wish.wait.min(mail_time(spec.terms));
            mail_ends_at = Some(since_boot()? + mail_time(spec.terms));
        }
        let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
        let (signals, callers_mask) = block_signals()?;
        let pipes = match spec.company {
            _ if *is_for_mail => Some(OutputPipes::together()?),
            Company::Alone => Some(OutputPipes::apart()?),
            Company::CallersGroup | Company::OwnGroup => None,
        };
        let lock = (&*ledger, wish.line.as_ref());
        let (guardian, guardian_pid, pipes) =
            fork_guardian(spec, &callers_mask, pipes, &null, lock)?;
        let output = match pipes {
            Some(pipes) if *is_for_mail => OutputWay::HeldBack(pipes.hold_back()?),
            Some(pipes) => OutputWay::PassedOn(pipes.read(wrapping.label.clone())?),
            None => OutputWay::Callers,
        };
        Ok(Wrapper {
            wrapping,
            signals,
            guardian_pid,
            timer: BootTimer::new()?,
            trust: None,
            timeout_at: None,
            forced_at: None,
            state: State::default(),
            keeper: Keeper::start(ledger, wish, record, guardian.try_clone()?)?,
            guardian,
            output,
            null,
            mail_ends_at,
        })
    }

    /// Until the command has ended, or it is known that it will not run.
    fn watch(&mut self) -> io::Result<LockEnding> {
        loop {
            let ends = [self.timeout_at, self.forced_at, self.trust.map(own_end)];
            let next = ends.into_iter().flatten().min();
            let signals = self.signals.as_fd();
            let bell = self.keeper.bell();
            let fds = [signals, self.guardian.as_fd(), bell.unwrap_or(signals)];
            let [_, noticed, rung] = self.timer.wait(fds, next)?;
            let rung = rung && bell.is_some();
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
                self.state.timed_out = Some(self.why_timed_out(now));
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
                self.state.has_begun = Some(true);
                // The command alone has them now; standard error is for what is to be said.
                dup2_stdin(&self.null)?;
                if matches!(self.output, OutputWay::Callers) {
                    dup2_stdout(&self.null)?;
                }
                Ok(None)
            }
            Some(Notice::NotStarted(number)) => {
                self.state.is_over = true;
                Ok(Some(self.not_started(number)))
            }
            Some(Notice::Ended { status, cause, survivors }) => {
                self.state.has_begun.get_or_insert(false);
                self.state.is_lost |= cause == EndCause::Trust;
                self.state.is_over = !survivors;
                // An order that came later ended no more than what it had left.
                if cause == EndCause::Itself {
                    (self.state.timed_out, self.state.stopped) = (None, None);
                }
                Ok(Some(self.ended(status)))
            }
            // It was killed, and the command with it, perhaps before it could say that this runs.
            // What that had started is below us.
            None => {
                self.kill_all();
                Ok(Some(match self.state.is_ordered {
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
                    let now = since_boot()?;
                    // The machine was asleep, or this process stopped, since the claim.
                    if now >= self.wrapping.spec.terms.ends_at(trust) {
                        self.state.has_begun = Some(false);
                        return Ok(Some(self.lost()));
                    }
                    let timeout_at =
                        self.wrapping.timeout.map(|timeout| now.saturating_add(timeout));
                    self.timeout_at = [timeout_at, self.mail_ends_at].into_iter().flatten().min();
                    self.state.is_ordered = true;
                    if !variables.is_empty() {
                        self.order(Order::Environment(variables));
                    }
                    self.order(Order::Start { slot: claim.slot, epoch: claim.epoch, trust });
                }
                LockNews::Renewed { trust } => {
                    self.trust = Some(trust);
                    self.order(Order::Trust(trust));
                    self.wake_the_guardian();
                }
                LockNews::Stop(by) => {
                    self.state.stopped = Some(format!("the command was stopped by {by}"));
                    self.order_the_end(since_boot()?);
                }
                LockNews::Lost => {
                    self.state.is_lost = true;
                    self.order_the_end(since_boot()?);
                }
                LockNews::Busy(rows) => {
                    let holders = match described(&rows) {
                        none if none.is_empty() => {
                            "others wait for it, another is claiming it, or a transaction has \
                             asserted it"
                                .to_owned()
                        }
                        holders => holders,
                    };
                    return Ok(Some(LockEnding::Busy(format!("{name} is busy: {holders}"))));
                }
                LockNews::InLine(others) => {
                    let text = format!("{name} is busy: {others} of this host wait for it still");
                    return Ok(Some(LockEnding::Busy(text)));
                }
                LockNews::Waits(error) => {
                    (self.wrapping.say)(&format!("waiting for {name}: ledger: {error}"));
                }
                LockNews::NothingToDo(why) => return Ok(Some(LockEnding::NothingToDo(why))),
                LockNews::Refused(why) => return Ok(Some(LockEnding::Failed(why))),
                LockNews::Failed(error) => {
                    return Ok(Some(LockEnding::Failed(of_the_ledger(error))));
                }
                // The keeper has it for the end.
                LockNews::Released(_) => {}
                LockNews::Gone if !self.state.is_ordered => {
                    let why = "the thread that asks for the lock has ended";
                    return Ok(Some(LockEnding::Failed(why.to_owned())));
                }
                // It is not renewed any more.
                LockNews::Gone => {
                    self.state.is_lost = true;
                    self.order_the_end(since_boot()?);
                }
            }
        }
        Ok(None)
    }

    fn hear_signals(&mut self) -> io::Result<Option<LockEnding>> {
        while let Some(info) = self.signals.read_signal()? {
            let number = i32::try_from(info.ssi_signo).map_err(io::Error::other)?;
            let signal = Signal::try_from(number)?;
            let by_terminal = info.ssi_code > 0;
            let is_alone = self.wrapping.spec.company == Company::Alone;
            let ends = !matches!(signal, Signal::SIGWINCH | Signal::SIGTSTP | Signal::SIGCONT);
            match self.wrapping.spec.company {
                _ if !self.state.is_ordered && ends => {
                    return Ok(Some(LockEnding::Killed(number)));
                }
                _ if !self.state.is_ordered => {}
                _ if ends && self.wrapping.spec.is_hold => self.order_the_end(since_boot()?),
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

    /// The guardian may be gone; that is heard. It may be stopped, and its socket full: then this
    /// process ends the command in time.
    fn order(&self, order: Order) {
        let _ = order.send(&self.guardian);
    }

    /// One that was stopped before it could say that the command has ended: the lock would be
    /// renewed for ever. To one that runs this signal is nothing.
    fn wake_the_guardian(&self) {
        if !all_run_below(self.guardian_pid) {
            let _ = kill(self.guardian_pid, Signal::SIGCONT);
        }
    }

    fn order_the_end(&mut self, now: Duration) {
        self.order(Order::End);
        self.forced_at = Some(now + self.wrapping.spec.terms.grace + 2 * MARGIN);
    }

    fn not_started(&self, number: i32) -> LockEnding {
        let program = self.wrapping.spec.program.to_string_lossy();
        if let Some(cwd) = self.wrapping.spec.place.cwd.as_ref().filter(|_| number < 0) {
            let why = match Errno::from_raw(-number) {
                Errno::ENOENT | Errno::ENOTDIR => "no such folder",
                errno => errno.desc(),
            };
            return LockEnding::NotExecutable(format!("{}: {why}", cwd.display()));
        }
        let errno = Errno::from_raw(number);
        match errno {
            Errno::ENOENT => LockEnding::NotFound(format!("{program}: {}", errno.desc())),
            Errno::EAGAIN | Errno::ENOMEM | Errno::ENFILE | Errno::EMFILE => {
                LockEnding::Failed(format!("{program}: {}", errno.desc()))
            }
            _ if fs::metadata(&self.wrapping.spec.program).is_ok_and(|file| file.is_dir()) => {
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
            _ if self.state.timed_out.is_some() => {
                LockEnding::TimedOut(self.state.timed_out.clone().unwrap_or_default())
            }
            _ if self.state.stopped.is_some() => {
                LockEnding::Stopped(self.state.stopped.clone().unwrap_or_default())
            }
            CommandStatus::Exited(code) => LockEnding::Exited(code),
            CommandStatus::Killed(signal) => LockEnding::Killed(signal),
        }
    }

    fn why_timed_out(&self, now: Duration) -> String {
        match self.wrapping.timeout {
            Some(timeout) if self.mail_ends_at.is_none_or(|at| now < at) => {
                let secs = timeout.as_secs_f64();
                format!("the command ran longer than {secs} s and was ended")
            }
            _ => format!(
                "waiting and running took longer than Postfix may wait ({} s), and the command was \
                 ended",
                MAIL_TIME.as_secs()
            ),
        }
    }

    fn lost(&mut self) -> LockEnding {
        self.state.is_lost = true;
        let name = &self.wrapping.wish.name;
        let how = match self.state.has_begun {
            Some(true) => "was lost while the command ran; the command was ended",
            Some(false) => "was lost before the command began",
            None => "was lost; the command was ended if it had begun",
        };
        tracing::warn!(lock = %name, "the lock {how}");
        LockEnding::Lost(format!("{name} {how}"))
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

    /// Everything below this process, until nothing is left or it is of no use.
    fn kill_all(&self) {
        let trust = self.trust.unwrap_or_default();
        kill_all_until(since_boot().map_or(trust, |now| survives_until(now, trust)));
    }
}

/// For waiting and running, and the grace after it.
fn mail_time(terms: LockTerms) -> Duration {
    MAIL_TIME.saturating_sub(terms.grace)
}

/// When this process ends the command if the guardian has not.
fn own_end(trust: Duration) -> Duration {
    LockTerms::killed_at(trust) + MARGIN / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_running_and_the_grace_end_before_postfix_gives_up() {
        let terms = |ttl, grace| {
            LockTerms::new(Duration::from_secs(ttl), Duration::from_secs(grace)).unwrap()
        };
        // The last call of the ledger and the last signals come on top.
        for (ttl, grace) in [(60, 5), (6, 0), (3600, 1000)] {
            let terms = terms(ttl, grace);
            assert!(mail_time(terms) + terms.grace.min(MAIL_TIME) <= Duration::from_secs(900));
        }
        assert_eq!(mail_time(terms(60, 5)), Duration::from_secs(895));
    }

    #[test]
    fn what_is_ignored_is_read_from_proc() {
        let status = "Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001003\n";
        assert_eq!(ignored_signals(status), Some(0x1003));
        assert!(shows_our_processes("NSpid:\t7\n") && shows_our_processes("Name:\tx\n"));
        assert!(!shows_our_processes("NSpid:\t21333\t1\n"));
        assert_eq!(ignored_signals("Name:\tx\n"), None);
        assert_eq!(ignored_signals("SigIgn:\tsoon\n"), None);
    }
}
