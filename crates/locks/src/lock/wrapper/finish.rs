//! The end of a wrapped command: all that is left of it is ended, the lock given back if nothing
//! is, and what the ledger says of it then counts for the ending. What cannot be ended is named,
//! and keeps the lock until its lease has run out.

use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpid};

use super::{OutputWay, Wrapper};
use crate::lock::descendants::{below, signal_all};
use crate::lock::guardian::Company;
use crate::lock::keeper::{Closing, Stop};
use crate::lock::output::PassingOn;
use crate::lock::record::{CommandEnd, EndRecord};
use crate::lock::{MARGIN, since_boot};
use onedrop_core::exit::{self, LockEnding};
use onedrop_core::ledger::LedgerError;
use onedrop_core::lock_name::LockName;

impl Wrapper<'_> {
    /// Gives the lock back, if nothing of the command is left. What the ledger says of it then
    /// counts for the ending.
    pub(super) fn finish(self, ending: LockEnding) -> LockEnding {
        let Wrapper { keeper, state, guardian, guardian_pid, wrapping, output, trust, .. } = self;
        let name = &wrapping.wish.name;
        // Then the guardian stays until the lock is given back, and gives it back itself should
        // this process end before that.
        let guarded = Some(guardian).filter(|_| state.is_over || !state.is_ordered);
        let survivors = match guarded {
            Some(_) => None,
            None => end_all(guardian_pid, state.ended.is_some()),
        };
        // Whoever has the lock by `--hold` may go on, too.
        let is_through = match state.ended {
            Some(status) => wrapping.spec.is_through(status),
            None => state.is_over || !state.is_ordered || !wrapping.spec.is_hold,
        };
        let nothing_is_left = survivors.is_none() && is_through;
        let trust_left = trust.zip(since_boot().ok()).map(|(trust, now)| trust.saturating_sub(now));
        let ending = match survivors {
            None => ending,
            Some(pids) => not_ended(name, &pids, trust_left.unwrap_or_default()),
        };
        if !is_through {
            let secs = trust_left.unwrap_or_default().as_secs();
            tracing::warn!(lock = %name, "it is not given back, and runs out in {secs} s");
        }
        let (mut tail, mut passing_on, mut held_back) = (None, None, None);
        match output {
            OutputWay::Callers => {}
            OutputWay::PassedOn(output) => (tail, passing_on) = Some(output.end()).unzip(),
            OutputWay::HeldBack(output) => held_back = Some(output.end()),
        }
        // Without a record there is nothing to report until then.
        let patience = trust_left.filter(|_| tail.is_some()).unwrap_or_default();
        let is_waiter = !state.is_ordered && matches!(ending, LockEnding::Killed(_));
        let command = CommandEnd { ending: ending.clone(), output: tail.unwrap_or_default() };
        let stop = Stop { command, gives_back: nothing_is_left };
        let closing = match is_waiter {
            true => keeper.leave(stop),
            false => keeper.stop(stop, patience),
        };
        let is_answered = closing.as_ref().is_some_and(|closing| !closing.is_unclear);
        let (was_ours, recorded) = match closing {
            Some(Closing { was_ours, recorded, .. }) => (was_ours, recorded),
            // A run: one that waited for its lock still has begun nothing.
            None if wrapping.spec.company == Company::Alone && !is_waiter => {
                (None, Err(LedgerError::TookTooLong("putting it on record".to_owned())))
            }
            None => (None, Ok(EndRecord::NoRecord)),
        };
        match guarded {
            Some(_) if is_answered => end(guardian_pid),
            // The claim, or the release, may reach the ledger later. The guardian waits for the end
            // of this process, which closes the socket.
            Some(guardian) => std::mem::forget(guardian),
            None => {}
        }
        if let Some(left_out) = passing_on.map(PassingOn::finish).filter(|bytes| *bytes > 0) {
            tracing::warn!("{left_out} bytes of the command's output were read by nobody");
        }
        let is_by_command = state.ended.is_some() && !state.is_lost && nothing_is_left;
        let why = match recorded {
            Ok(EndRecord::NoRecord) if is_by_command && was_ours == Some(false) => {
                tracing::warn!(lock = %name, "the lock was lost before it was given back");
                "was lost while the command ran".to_owned()
            }
            // A record of the end was taken under this lock's epoch: what was lost later is no part
            // of the run.
            Ok(EndRecord::NoRecord | EndRecord::Done) => {
                if matches!(ending, LockEnding::Exited(_)) {
                    exit::say_for_command(&held_back.unwrap_or_default());
                }
                return ending;
            }
            Ok(EndRecord::Late) => format!(
                "was taken over by another while the command ran; how this run ended ({ending}) is \
                 on record"
            ),
            Ok(EndRecord::Refused) => {
                "and this run are not on record any more; nor is how it ended".to_owned()
            }
            Err(error) => format!(
                "lasted no longer than the ledger's failure: how this run ended ({ending}) is not \
                 on record yet: {error}"
            ),
        };
        LockEnding::Lost(format!("{name} {why}"))
    }
}

/// Ends the guardian, whose socket is closed, and all that is below it. `None`: nothing is left;
/// else those that could not be ended, as far as /proc shows them. `has_ended`: the command has.
fn end_all(guardian: Pid, has_ended: bool) -> Option<Vec<Pid>> {
    match has_ended {
        true => end(guardian),
        // It ends the command now.
        false => drop(waitpid(guardian, None)),
    }
    // What had a guardian is below this process now. It may be dying at this moment.
    if has_children() {
        kill_all_until(since_boot().unwrap_or_default() + MARGIN);
    }
    let found = if has_children() { below(getpid()) } else { Vec::new() };
    // The last may have ended since, and /proc may hide one that lives.
    has_children().then(|| found.into_iter().map(|(pid, _)| pid).collect())
}

/// Ends the guardian, unless it was waited for: then its number may be another's.
fn end(guardian: Pid) {
    if let Ok(WaitStatus::StillAlive) = waitpid(guardian, Some(WaitPidFlag::WNOHANG)) {
        let _ = kill(guardian, Signal::SIGKILL);
        let _ = waitpid(guardian, None);
    }
}

/// Kills everything below this process, until nothing is left or that time since boot has come.
pub fn kill_all_until(end: Duration) {
    let mut pause = Duration::from_millis(5);
    loop {
        signal_all(Signal::SIGKILL, None);
        if !has_children() || since_boot().is_ok_and(|now| now > end) {
            return;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// Reaps what has ended; returns whether a child is left.
fn has_children() -> bool {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Err(Errno::ECHILD) => return false,
            Ok(WaitStatus::StillAlive) => return true,
            _ => {}
        }
    }
}

/// Another user's, or one that waits for a disk that hangs. It may go on under a lock of another's,
/// once the lease has run out.
fn not_ended(name: &LockName, pids: &[Pid], left: Duration) -> LockEnding {
    let pids: Vec<String> = pids.iter().map(Pid::to_string).collect();
    let which = match pids.is_empty() {
        true => "processes that /proc hides".to_owned(),
        false => format!("the processes {}", pids.join(", ")),
    };
    let text = format!(
        "{name}: {which} could not be ended and may go on; the lock is not given back and runs out \
         in {} s",
        left.as_secs()
    );
    tracing::error!("{text}");
    LockEnding::Lost(text)
}
