//! What happens in one delivery: the calls at which it fails, and what others do in between.

use std::panic::resume_unwind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use onedrop_core::deliver::{CopyEnd, Ending, Phases, Placed, Watch};
use onedrop_core::directory::Destination;
use onedrop_core::hook::{Call, Hook};
use onedrop_core::ledger::memory::MemoryLedger;
use onedrop_core::ledger::{LedgerError, Recorded};
use onedrop_core::store::StoreError;

/// How a ledger's call goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LedgerFault {
    /// The statement fails and the session lives on.
    Refused,
    /// Another session holds the row for too long, or a deadlock was ended at this one's cost.
    Contended,
    /// The session is lost before the call.
    Lost,
    /// The session is lost after the call took effect.
    LostAfter,
    /// Like `Lost`, and no other session can be had.
    LostForGood,
    /// The process ends before the call.
    Crash,
    /// The process ends after the call took effect.
    CrashAfter,
}

impl LedgerFault {
    pub const ALL: [LedgerFault; 6] = [
        LedgerFault::Refused,
        LedgerFault::Lost,
        LedgerFault::LostAfter,
        LedgerFault::LostForGood,
        LedgerFault::Crash,
        LedgerFault::CrashAfter,
    ];
}

/// How a store's call goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreFault {
    /// Certainly nothing happens.
    Refused,
    /// It happens and the answer is lost.
    DoneInDoubt,
    /// It does not happen, and the caller cannot know.
    LostInDoubt,
    /// The process ends before the call.
    Crash,
    /// The process ends after the call took effect.
    CrashAfter,
}

impl StoreFault {
    pub const ALL: [StoreFault; 5] = [
        StoreFault::Refused,
        StoreFault::DoneInDoubt,
        StoreFault::LostInDoubt,
        StoreFault::Crash,
        StoreFault::CrashAfter,
    ];
}

/// What a delivery's watch heard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Watched {
    Recorded(Phases),
    NotRecorded(u32),
    Copy(Phases),
    Ended(usize, Phases),
}

type Deed = Box<dyn FnOnce() + Send>;

/// What happens in one delivery: at which calls it fails, and what others do in between.
#[derive(Default)]
pub struct Script {
    state: Mutex<State>,
    called: Condvar,
    pub ledger: OnceLock<Arc<MemoryLedger>>,
}

#[derive(Default)]
pub struct State {
    pub ledger_calls: Vec<&'static str>,
    /// What reads or writes a mailbox.
    pub store_calls: Vec<&'static str>,
    /// What begins or reserves.
    pub reserved: Vec<&'static str>,
    pub appended: Vec<Destination>,
    pub ledger_fault: Option<(usize, LedgerFault)>,
    pub store_fault: Option<(usize, StoreFault)>,
    pub reserve_fault: Option<(usize, StoreFault)>,
    pub errors: Vec<(&'static str, StoreError)>,
    /// Before which call, the how many-th of its name, somebody does what.
    pub before: Vec<(&'static str, usize, Deed)>,
    pub after: Vec<(&'static str, Deed)>,
    pub placed: Vec<Placed>,
    pub watched: Vec<Watched>,
    pub is_dead: bool,
    is_lost_for_good: bool,
}

impl State {
    fn count(&self, name: &str) -> usize {
        let all = [&self.ledger_calls, &self.store_calls, &self.reserved];
        all.into_iter().flatten().filter(|call| **call == name).count()
    }
}

impl Script {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process ends here; what it calls later comes to nothing.
    fn die(&self, name: &str) -> ! {
        self.state().is_dead = true;
        resume_unwind(Box::new(format!("told to crash at {name}")))
    }

    /// Whether the process lives; it unwinds on and on where it does not.
    fn lives(&self, name: &str) -> bool {
        let is_dead = self.state().is_dead;
        if is_dead && !thread::panicking() {
            self.die(name);
        }
        !is_dead
    }

    /// What others do before this call.
    fn others_before(&self, name: &'static str) {
        self.called.notify_all();
        let deed = {
            let mut state = self.state();
            let count = state.count(name);
            let at = state.before.iter().position(|(call, nth, _)| (*call, *nth) == (name, count));
            at.map(|at| state.before.remove(at))
        };
        if let Some((_, _, deed)) = deed {
            deed();
        }
    }

    fn others_after(&self, name: &'static str) {
        let deed = {
            let mut state = self.state();
            let at = state.after.iter().position(|(call, _)| *call == name);
            at.map(|at| state.after.remove(at))
        };
        if let Some((_, deed)) = deed {
            deed();
        }
    }

    fn lose_session(&self) -> LedgerError {
        self.ledger.get().expect("a handle").lose_session();
        LedgerError::Unavailable("told to fail".to_owned())
    }

    fn ledger_fault(&self) -> Option<LedgerFault> {
        let state = self.state();
        state.ledger_fault.filter(|(at, _)| at + 1 == state.ledger_calls.len()).map(|(_, f)| f)
    }

    fn store_fault(&self, call: &Call<'_>) -> Option<StoreFault> {
        let state = self.state();
        let (fault, calls) = match call.name {
            "begin" | "reserve" => (state.reserve_fault, &state.reserved),
            _ => (state.store_fault, &state.store_calls),
        };
        fault.filter(|(at, _)| at + 1 == calls.len()).map(|(_, fault)| fault)
    }

    /// Waits until `what` was called so often, by another thread.
    pub fn wait_for(&self, what: &str, times: usize) {
        let begun = Instant::now();
        let mut state = self.state();
        while state.count(what) < times {
            assert!(begun.elapsed() < Duration::from_secs(30), "no {what:?} {times} times");
            let waited = self.called.wait_timeout(state, Duration::from_secs(1));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Hook<LedgerError> for Script {
    fn before(&self, call: &Call<'_>) -> Result<(), LedgerError> {
        if !self.lives(call.name) || self.state().is_lost_for_good {
            return Err(LedgerError::Unavailable("told to fail".to_owned()));
        }
        self.state().ledger_calls.push(call.name);
        self.others_before(call.name);
        match self.ledger_fault() {
            Some(LedgerFault::Refused) => Err(LedgerError::Refused("told to fail".to_owned())),
            Some(LedgerFault::Contended) => Err(LedgerError::Contended),
            Some(LedgerFault::Lost) => Err(self.lose_session()),
            Some(LedgerFault::LostForGood) => {
                self.state().is_lost_for_good = true;
                Err(self.lose_session())
            }
            Some(LedgerFault::Crash) => self.die(call.name),
            None | Some(LedgerFault::LostAfter | LedgerFault::CrashAfter) => Ok(()),
        }
    }

    fn after(&self, call: &Call<'_>) -> Result<(), LedgerError> {
        self.others_after(call.name);
        match self.ledger_fault() {
            Some(LedgerFault::LostAfter) => Err(self.lose_session()),
            Some(LedgerFault::CrashAfter) => self.die(call.name),
            _ => Ok(()),
        }
    }
}

impl Hook<StoreError> for Script {
    fn before(&self, call: &Call<'_>) -> Result<(), StoreError> {
        let not_stored = || StoreError::NotStored("told to fail".to_owned());
        if !self.lives(call.name) {
            return Err(not_stored());
        }
        match call.name {
            "begin" | "reserve" => self.state().reserved.push(call.name),
            name => self.state().store_calls.push(name),
        }
        if let Some(destination) = call.destination.filter(|_| call.name == "append") {
            self.state().appended.push(destination.clone());
        }
        self.others_before(call.name);
        let mut state = self.state();
        if let Some(at) = state.errors.iter().position(|(name, _)| *name == call.name) {
            return Err(state.errors.remove(at).1);
        }
        drop(state);
        match self.store_fault(call) {
            Some(StoreFault::Refused) => Err(not_stored()),
            Some(StoreFault::LostInDoubt) if call.name != "append" => {
                Err(StoreError::InDoubt("told to fail".to_owned()))
            }
            Some(StoreFault::Crash) => self.die(call.name),
            _ => Ok(()),
        }
    }

    fn within(&self, call: &Call<'_>) -> Result<(), StoreError> {
        match self.store_fault(call) {
            Some(StoreFault::LostInDoubt) => Err(StoreError::InDoubt("told to fail".to_owned())),
            _ => Ok(()),
        }
    }

    fn after(&self, call: &Call<'_>) -> Result<(), StoreError> {
        let fault = self.store_fault(call);
        if fault == Some(StoreFault::CrashAfter) {
            self.die(call.name);
        }
        self.others_after(call.name);
        match fault {
            Some(StoreFault::DoneInDoubt) => Err(StoreError::InDoubt("told to fail".to_owned())),
            _ => Ok(()),
        }
    }
}

impl Watch for Script {
    fn recorded(&self, _: &Recorded, phases: &Phases) {
        self.state().watched.push(Watched::Recorded(*phases));
    }

    fn not_recorded(&self, waits: u32) {
        self.state().watched.push(Watched::NotRecorded(waits));
    }

    fn copy_ended(&self, end: &CopyEnd, phases: &Phases) {
        let mut state = self.state();
        state.watched.push(Watched::Copy(*phases));
        state.placed.extend(end.placed().cloned());
    }

    fn ended(&self, recipient: usize, ending: &Ending) {
        self.state().watched.push(Watched::Ended(recipient, ending.phases));
    }
}
