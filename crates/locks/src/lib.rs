//! Locks and scheduled jobs for every program on the hosts: `lock` runs a command while it holds
//! one, `jobs` runs the configuration's commands when `schedule` says that they are due.
//!
//! They know the ledger's port, and no engine.

pub mod jobs;
pub mod lock;
pub mod schedule;
