//! Jobs: commands of the configuration that run when they are due, each on one host at a time
//! (`onedrop jobs`). That one process runs a job is a [named lock](crate::lock)'s affair,
//! [`lock_name`]; state and history are rows of the ledger. [`plan`] says what is to be done
//! about a job, [`run`] and [`tick`] do it, [`job_status`] says how jobs are.

use std::time::SystemTime;

use jiff::{RoundMode, Timestamp, TimestampRound, Unit};

use onedrop_core::ledger::LockRow;
use onedrop_core::lock_name::LockName;

mod ends;
mod hooks;
pub mod job_status;
pub mod own_program;
pub mod plan;
mod refused;
pub mod run;
mod settings;
pub mod tick;
pub mod ticker;

pub use ends::KeptEnds;
pub use hooks::program_of;
pub use settings::{Backfill, JobSettings, JobsSettings, RunIn};

/// What the names of jobs' locks begin with.
const LOCKS: &str = "jobs/";

/// The lock under which a job runs.
///
/// # Errors
/// The name is none that a lock may have, nor a job.
pub fn lock_name(job: &str) -> Result<LockName, String> {
    format!("{LOCKS}{job}").parse()
}

/// The job whose lock this row is, if anybody holds it. A run takes slot 1; other slots are those
/// of commands that were started with more.
pub fn held_job(row: &LockRow) -> Option<&str> {
    let job = row.name.as_str().strip_prefix(LOCKS)?;
    (row.slot == 1 && row.left.is_some()).then_some(job)
}

/// In UTC, without a part of a second: no time that has come seems to be one to come.
fn rfc_3339(time: SystemTime) -> String {
    let to_seconds = TimestampRound::new().smallest(Unit::Second).mode(RoundMode::Trunc);
    let time = Timestamp::try_from(time).and_then(|time| time.round(to_seconds));
    time.map(|time| time.to_string()).unwrap_or_default()
}
