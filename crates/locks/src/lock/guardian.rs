//! The process that starts the command and ends it: at the latest when the lease does, whether the
//! wrapper lives, is stopped, or hears nothing from the ledger. It speaks only with the wrapper. It
//! has one thread and a process group of its own, so that a terminal's signals do not reach it; as
//! a subreaper it inherits the processes that the command leaves, and ends them, too, before it
//! says that the command has ended. It stays until the wrapper has given the lock back. Where the
//! wrapper was killed before that, or has ended without an answer of the ledger, it gives the lock
//! back itself, the one time that it asks the ledger: also where it was not yet ordered to start
//! the command.
//!
//! A crash of it kills the command (PR_SET_PDEATHSIG) and leaves the rest to the wrapper, or, where
//! that one was killed as well, the lock to its lease's end.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, SigSet, Signal, kill, killpg, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::{Mode, umask};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{
    Gid, Pid, Uid, chdir, dup2_stderr, dup2_stdin, dup2_stdout, getpid, getppid, setgid, setgroups,
    setpgid, setsid, setuid,
};

use super::boot_timer::BootTimer;
use super::descendants::signal_all;
use super::frames::{CommandStatus, EndCause, Notice, Order, Variables};
use super::keeper::{AGAIN, LEAVE, RELEASE, give_back, give_back_all_of};
use super::line::Line;
use super::output::CommandStreams;
use super::{LockTerms, since_boot, survives_until};
use onedrop_core::ledger::{LockClaim, Locks, RandomValue};
use onedrop_core::lock_key::hex;
use onedrop_core::lock_name::{LockName, LockToken};

/// Between the first rounds of SIGKILL, and the longest time between two.
const KILL_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// How often, and how long between, it is looked whether the wrapper is dead: its descriptors are
/// closed a moment before that.
const DEATH: (u32, Duration) = (200, Duration::from_millis(10));

/// The command, and what it gets to know about its lock.
#[derive(Debug, Clone)]
pub struct CommandSpec {
    pub program: OsString,
    pub args: Vec<OsString>,
    /// For its environment, beside what is there.
    pub variables: Variables,
    pub company: Company,
    pub umask: Mode,
    pub place: CommandPlace,
    /// Whoever works under the lock is none of ours, and is through when the command ends with 0.
    /// Otherwise it may go on: the lock is not given back, and lasts until its lease ends.
    pub is_hold: bool,
    pub name: LockName,
    pub slots: u32,
    pub owner: RandomValue,
    pub terms: LockTerms,
}

impl CommandSpec {
    /// Whether none goes on under the lock after this end of the command.
    pub(super) fn is_through(&self, status: CommandStatus) -> bool {
        !self.is_hold || status == CommandStatus::Exited(0)
    }
}

/// Where and as whom the command runs, if not as the wrapper does.
#[derive(Debug, Clone, Default)]
pub struct CommandPlace {
    /// Entered as that user.
    pub cwd: Option<PathBuf>,
    pub user: Option<CommandUser>,
    /// By how much it is nicer (nice(2)).
    pub nice: u8,
}

/// What the kernel knows of a user.
#[derive(Debug, Clone)]
pub struct CommandUser {
    pub uid: Uid,
    pub gid: Gid,
    /// All groups.
    pub groups: Vec<Gid>,
}

/// With whom the command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Company {
    /// In the caller's process group: a terminal's signals reach it by themselves.
    CallersGroup,
    /// In a process group of its own.
    OwnGroup,
    /// In a session of its own, without a terminal, without input and with pipes for its output;
    /// it is ended by the signals that others get to handle.
    Alone,
}

/// What the command inherits from the wrapper's caller.
pub(super) struct Caller {
    /// The process group.
    pub group: Pid,
    /// The signals that it had blocked.
    pub mask: SigSet,
    /// /dev/null, for what the command alone is to hold.
    pub null: File,
}

/// The wrapper, and what is done in its place where it was killed.
pub(super) struct WrapperSide<'a> {
    pub pid: Pid,
    pub stream: &'a UnixStream,
    /// No call was made on it before the fork: what this process does there is in a session of its
    /// own.
    pub ledger: &'a dyn Locks,
    pub line: Option<&'a Line>,
}

/// Waits for the order to start, and guards the command to its end.
///
/// # Errors
/// What is missing here; the command is gone when the process is.
pub(super) fn guard(
    spec: &CommandSpec,
    wrapper: &WrapperSide<'_>,
    caller: &Caller,
    streams: Option<CommandStreams>,
) -> io::Result<()> {
    let stream = wrapper.stream;
    setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
    prctl::set_child_subreaper(true)?;
    let (mut order, mut asks) = (Order::receive(stream)?, false);
    if let Some(Order::Asks) = order {
        (order, asks) = (Order::receive(stream)?, true);
    }
    let mut variables = spec.variables.clone();
    if let Some(Order::Environment(more)) = order {
        variables.extend(more);
        order = Order::receive(stream)?;
    }
    let Some(Order::Start { slot, epoch, trust }) = order else {
        if asks && is_dead(wrapper.pid) {
            let _ = let_go_of_the_callers_streams(&caller.null);
            give_back_what_it_took(wrapper, spec);
        }
        return Ok(());
    };
    if let Remains::None = run(spec, (slot, epoch, trust), variables, stream, caller, streams)?
        && outlives(wrapper)
    {
        let claim = LockClaim { name: spec.name.clone(), slot, epoch, owner: spec.owner };
        give_back_in_its_place(wrapper, &claim);
    }
    Ok(())
}

/// Runs the command to its end, of which the wrapper hears.
fn run(
    spec: &CommandSpec,
    (slot, epoch, trust): (u32, i64, Duration),
    variables: Variables,
    wrapper: &UnixStream,
    caller: &Caller,
    streams: Option<CommandStreams>,
) -> io::Result<Remains> {
    if since_boot()? >= spec.terms.ends_at(trust) {
        let status = CommandStatus::Killed(Signal::SIGKILL as i32);
        // A wrapper that was killed meanwhile is found to be gone when it is heard.
        let cause = EndCause::Trust;
        let _ = Notice::Ended { status, cause, survivors: false }.send(wrapper);
        let _ = let_go_of_the_callers_streams(&caller.null);
        return Ok(Remains::None);
    }
    let mut command = Command::new(&spec.program);
    command.envs(variables);
    if spec.company == Company::Alone {
        command.stdin(Stdio::null());
    }
    if let Some([out, err]) = streams {
        command.stdout(out).stderr(err);
    }
    match start(command, spec, slot, epoch, caller) {
        Ok(command) => {
            let_go_of_the_callers_streams(&caller.null)?;
            let _ = Notice::Started.send(wrapper);
            Guardian::new(spec, command, trust, wrapper)?.watch()
        }
        Err(error) => {
            let number = error.raw_os_error().unwrap_or(Errno::EAGAIN as i32);
            let _ = Notice::NotStarted(number).send(wrapper);
            let _ = let_go_of_the_callers_streams(&caller.null);
            Ok(Remains::None)
        }
    }
}

/// Waits until the wrapper is gone: one that has given the lock back, or will not, ends this
/// process before.
fn outlives(wrapper: &WrapperSide<'_>) -> bool {
    while let Ok(Some(_)) = Order::receive(wrapper.stream) {}
    is_dead(wrapper.pid)
}

/// Whether the wrapper, this process's parent, is dead. One that lives, and has only closed its
/// socket, gives the lock back itself, after what it has to put on record.
fn is_dead(wrapper: Pid) -> bool {
    (0..DEATH.0).any(|_| {
        let is_dead = getppid() != wrapper;
        if !is_dead {
            thread::sleep(DEATH.1);
        }
        is_dead
    })
}

/// A claim that the wrapper could not use: what it asked for last may reach the ledger only now.
fn give_back_what_it_took(wrapper: &WrapperSide<'_>, spec: &CommandSpec) {
    let (ledger, line, end) = (wrapper.ledger, wrapper.line, Instant::now() + LEAVE);
    let own = (&spec.name, spec.owner);
    while !give_back_all_of(ledger, line, own, None, RELEASE) && Instant::now() < end {
        thread::sleep(AGAIN);
    }
}

/// Nothing of the command is left. The ledger refuses what was stolen, or is another's by now.
fn give_back_in_its_place(wrapper: &WrapperSide<'_>, claim: &LockClaim) {
    let lock = &claim.name;
    match give_back(wrapper.ledger, wrapper.line, claim, RELEASE) {
        Some(true) => tracing::warn!(%lock, "with-lock is gone; its lock was given back"),
        Some(false) => tracing::warn!(%lock, "with-lock is gone; its lock was lost before"),
        None => tracing::warn!(%lock, "with-lock is gone; its lock lasts until its lease ends"),
    }
}

/// Starts it; nothing of its streams is left here.
fn start(
    mut command: Command,
    spec: &CommandSpec,
    slot: u32,
    epoch: i64,
    caller: &Caller,
) -> io::Result<Child> {
    let token = LockToken { name: spec.name.clone(), slot, epoch };
    command
        .args(&spec.args)
        .env("ONEDROP_LOCK_NAME", spec.name.as_str())
        .env("ONEDROP_LOCK_SLOT", slot.to_string())
        .env("ONEDROP_LOCK_SLOTS", spec.slots.to_string())
        .env("ONEDROP_LOCK_EPOCH", epoch.to_string())
        .env("ONEDROP_LOCK_OWNER", hex(spec.owner.bytes()))
        .env("ONEDROP_LOCK_TTL_SECS", spec.terms.ttl.as_secs().to_string())
        .env("ONEDROP_LOCK_TOKEN", token.to_string());
    match spec.company {
        Company::CallersGroup => command.process_group(caller.group.as_raw()),
        Company::OwnGroup => command.process_group(0),
        Company::Alone => &mut command,
    };
    let is_alone = spec.company == Company::Alone;
    let (guardian, file_mask, signal_mask) = (getpid(), spec.umask, caller.mask);
    let CommandPlace { cwd, user, nice } = spec.place.clone();
    let cwd = cwd.map(|cwd| CString::new(cwd.into_os_string().into_vec())).transpose()?;
    let prepare = move || {
        // SAFETY: it takes a number. A higher one is refused by a filter of system calls alone.
        unsafe { nix::libc::nice(nice.into()) };
        // Before the next line: a change of the user takes the signal back (PR_SET_PDEATHSIG).
        if let Some(CommandUser { uid, gid, groups }) = &user {
            setgroups(groups)?;
            setgid(*gid)?;
            setuid(*uid)?;
        }
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        // The guardian may have been killed before the line above.
        if getppid() != guardian {
            return Err(Errno::ESRCH.into());
        }
        // As the user: the folder may be closed to it, or to root (NFS).
        if let Some(cwd) = &cwd {
            chdir(cwd.as_c_str()).map_err(no_folder)?;
        }
        umask(file_mask);
        if is_alone {
            setsid()?;
        }
        // SAFETY: the default action is no handler, so no code runs in a signal's context.
        unsafe { signal(Signal::SIGXFSZ, SigHandler::SigDfl) }?;
        Ok(signal_mask.thread_set_mask()?)
    };
    // SAFETY: `prepare` runs in the child between fork and exec. It calls nice(2), setgroups(2),
    // setgid(2), setuid(2), prctl(2), getppid(2), chdir(2), umask(2), setsid(2), sigaction(2) and
    // pthread_sigmask(3) and allocates nothing (an Errno becomes an io::Error without allocation),
    // so it needs no lock that another thread could have held at the fork; and the guardian has
    // this one thread.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

/// Why the command's folder could not be entered. The number alone reaches the guardian, and by its
/// sign it is not why the program did not start.
fn no_folder(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(-(errno as i32))
}

/// The command alone holds them now, if it runs: who reads what it writes sees its end.
fn let_go_of_the_callers_streams(null: &File) -> io::Result<()> {
    dup2_stdin(null)?;
    dup2_stdout(null)?;
    dup2_stderr(null)?;
    Ok(())
}

/// How far the command's end has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    /// SIGTERM is sent, SIGKILL follows then.
    Ending {
        kill_at: Duration,
    },
    /// SIGKILL is sent again and again, less and less often. Whatever lives on then cannot be
    /// ended: it is another user's, or waits for a disk that hangs.
    Killing {
        pause: Duration,
        gives_up_at: Duration,
    },
}

/// What is left of the command.
enum Remains {
    None,
    /// Processes that could not be ended, or the one that `--hold` is for.
    Some,
}

struct Guardian<'a> {
    spec: &'a CommandSpec,
    wrapper: Option<&'a UnixStream>,
    command: Child,
    pid: Pid,
    children: SignalFd,
    timer: BootTimer,
    trust: Duration,
    stage: Stage,
    status: Option<CommandStatus>,
    cause: EndCause,
}

impl<'a> Guardian<'a> {
    fn new(
        spec: &'a CommandSpec,
        command: Child,
        trust: Duration,
        wrapper: &'a UnixStream,
    ) -> io::Result<Guardian<'a>> {
        let mut ended = SigSet::empty();
        ended.add(Signal::SIGCHLD);
        ended.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let pid = i32::try_from(command.id()).map_err(io::Error::other)?;
        Ok(Guardian {
            spec,
            wrapper: Some(wrapper),
            command,
            pid: Pid::from_raw(pid),
            children: SignalFd::with_flags(&ended, flags)?,
            timer: BootTimer::new()?,
            trust,
            stage: Stage::Running,
            status: None,
            cause: EndCause::Itself,
        })
    }

    fn watch(&mut self) -> io::Result<Remains> {
        loop {
            // All of them first: after a stop, the newest trust may be the last of them.
            self.hear_wrapper()?;
            let now = since_boot()?;
            let none_is_left = self.reap();
            let gives_up =
                matches!(self.stage, Stage::Killing { gives_up_at, .. } if now >= gives_up_at);
            if none_is_left || gives_up {
                let killed = CommandStatus::Killed(Signal::SIGKILL as i32);
                let status = self.status.unwrap_or(killed);
                self.tell(status, !none_is_left);
                let is_through = none_is_left && self.spec.is_through(status);
                return Ok(if is_through { Remains::None } else { Remains::Some });
            }
            let next = self.step(now);
            let nobody = self.children.as_fd();
            let orders = self.wrapper.map_or(nobody, AsFd::as_fd);
            self.timer.wait([nobody, orders], Some(next))?;
            while let Ok(Some(_)) = self.children.read_signal() {}
        }
    }

    fn hear_wrapper(&mut self) -> io::Result<()> {
        while let Some(wrapper) = self.wrapper.filter(|wrapper| Order::is_there(wrapper)) {
            match Order::receive(wrapper) {
                Ok(Some(order)) => self.obey(order)?,
                // The wrapper is gone, and with it the renewals.
                Ok(None) | Err(_) => {
                    self.wrapper = None;
                    self.end(since_boot()?, EndCause::Order);
                }
            }
        }
        Ok(())
    }

    /// Nothing of the command is left but what cannot be ended.
    fn tell(&self, status: CommandStatus, survivors: bool) {
        if let Some(wrapper) = self.wrapper {
            // It may have been killed since it was last heard.
            let _ = Notice::Ended { status, cause: self.cause, survivors }.send(wrapper);
        }
    }

    /// What is due; returns when to look again.
    fn step(&mut self, now: Duration) -> Duration {
        let (ends_at, killed_at) =
            (self.spec.terms.ends_at(self.trust), LockTerms::killed_at(self.trust));
        if now >= ends_at && self.status.is_none() {
            self.end(now, EndCause::Trust);
        }
        // The processes that the command has left.
        if self.status.is_some() {
            self.end(now, EndCause::Itself);
        }
        if let Stage::Ending { kill_at } = self.stage
            && now >= kill_at.min(killed_at)
        {
            let gives_up_at = survives_until(now, self.trust);
            self.stage = Stage::Killing { pause: KILL_PAUSE.0, gives_up_at };
        }
        match &mut self.stage {
            Stage::Running => ends_at,
            Stage::Ending { kill_at } => (*kill_at).min(killed_at),
            Stage::Killing { pause, gives_up_at } => {
                let command = self.status.is_none().then_some(self.pid);
                signal_all(Signal::SIGKILL, command);
                let next = (now + *pause).min(*gives_up_at);
                *pause = (*pause * 2).min(KILL_PAUSE.1);
                next
            }
        }
    }

    /// Begins to end all that is below, for this cause if the command runs.
    fn end(&mut self, now: Duration, cause: EndCause) {
        if self.stage == Stage::Running {
            if self.status.is_none() {
                self.cause = cause;
            }
            self.stage = Stage::Ending { kill_at: now + self.spec.terms.grace };
            let command = self.status.is_none().then_some(self.pid);
            signal_all(Signal::SIGTERM, command);
            // One that is stopped hears it only when it goes on.
            signal_all(Signal::SIGCONT, command);
        }
    }

    fn obey(&mut self, order: Order) -> io::Result<()> {
        match order {
            Order::Trust(trust) => self.trust = self.trust.max(trust),
            Order::End => {
                // The command may have ended just before.
                self.reap();
                self.end(since_boot()?, EndCause::Order);
            }
            // Until it is reaped the number is the command's. It may just have ended.
            Order::Forward(signal) if self.status.is_none() => {
                let _ = match self.spec.company {
                    Company::CallersGroup => kill(self.pid, signal),
                    Company::OwnGroup | Company::Alone => killpg(self.pid, signal),
                };
            }
            Order::Forward(_) | Order::Start { .. } | Order::Environment(_) | Order::Asks => {}
        }
        Ok(())
    }

    /// Reaps what has ended; returns whether nothing is left.
    fn reap(&mut self) -> bool {
        let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG;
        loop {
            // Looks first: the command is reaped by the standard library alone, which also knows
            // real-time signals; these have no name here.
            let pid = match waitid(Id::All, ended | WaitPidFlag::WNOWAIT) {
                Ok(WaitStatus::StillAlive) => return false,
                Ok(status) => status.pid(),
                Err(Errno::ECHILD) => {
                    self.status.get_or_insert(CommandStatus::Killed(Signal::SIGKILL as i32));
                    return true;
                }
                Err(_) => None,
            };
            let was_running = self.status.is_none();
            if was_running && let Ok(Some(status)) = self.command.try_wait() {
                self.status = Some(status_of(status));
            }
            // Not the command: it was reaped just now, or runs.
            if pid != Some(self.pid) && !(pid.is_none() && was_running && self.status.is_some()) {
                let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
            }
        }
    }
}

fn status_of(status: ExitStatus) -> CommandStatus {
    match (status.code(), status.signal()) {
        (Some(code), _) => CommandStatus::Exited(code),
        (None, signal) => CommandStatus::Killed(signal.unwrap_or(Signal::SIGKILL as i32)),
    }
}
