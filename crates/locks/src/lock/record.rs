//! What goes on record about a command's run while its lock is held: before it starts, and before
//! the lock is given back. `with-lock` keeps none, a job has a row for each run.

use std::time::Instant;

pub use super::frames::Variables;
use onedrop_core::exit::LockEnding;
use onedrop_core::ledger::{LedgerError, LockClaim};

/// The record of one run. Its calls come from one thread, while the lock is ours as far as is
/// known; one that failed because the ledger was out of reach is made again.
pub trait RunRecord: Send {
    /// The lock is ours. Returns whether the command is to run.
    ///
    /// # Errors
    /// It does not run.
    fn begin(&mut self, claim: &LockClaim, until: Instant) -> Result<Begun, LedgerError>;

    /// Who wants the command to end, and why; asked after each renewal.
    fn stop_wanted(&self, _: &LockClaim, _: Instant) -> Option<String> {
        None
    }

    /// Nothing of the command is left, or it did not start; `begin` had said that it runs.
    ///
    /// # Errors
    /// The ledger does not know how it ended.
    fn end(
        &mut self,
        claim: &LockClaim,
        end: &CommandEnd,
        until: Instant,
    ) -> Result<EndRecord, LedgerError>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// The command is to run, with these in its environment as well.
    Run(Variables),
    /// It need not run now, for this reason.
    NothingToDo(String),
    /// It cannot run as it is asked for.
    Refused(String),
}

/// How the command ended, as far as it is known before the lock is given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandEnd {
    pub ending: LockEnding,
    /// The last 4 KiB of its output, where that was read: UTF-8 without NUL.
    pub output: String,
}

/// What was done with the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndRecord {
    /// There is none: whether the lock was ours to the end is known by giving it back.
    NoRecord,
    /// The end is on record.
    Done,
    /// The run counted as ended already: another has taken it over. Its end is on record now.
    Late,
    /// The run is not on record any more.
    Refused,
}

/// For a command without a record.
pub struct NoRecord;

impl RunRecord for NoRecord {
    fn begin(&mut self, _: &LockClaim, _: Instant) -> Result<Begun, LedgerError> {
        Ok(Begun::Run(Variables::new()))
    }

    fn end(&mut self, _: &LockClaim, _: &CommandEnd, _: Instant) -> Result<EndRecord, LedgerError> {
        Ok(EndRecord::NoRecord)
    }
}
