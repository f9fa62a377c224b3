//! The arguments of `jobs`.

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub struct JobsArgs {
    #[command(subcommand)]
    pub command: JobsCommand,
}

#[derive(Debug, Subcommand)]
pub enum JobsCommand {
    /// Show every job: how it stands, its last run, when it runs next
    List {
        /// Print as JSON, with times in UTC
        #[arg(long)]
        json: bool,
    },
    /// Show a job: its schedule and next times, its last runs, what the last one wrote
    Show {
        name: String,
        /// Print as JSON, with times in UTC
        #[arg(long)]
        json: bool,
    },
    /// Compare the ledger with the configuration, a line per finding; exits 1 if there is one
    Audit {
        /// Take jobs off the record, with their runs, that the configuration does not have
        #[arg(long)]
        remove_ghosts: bool,
        /// Print findings as JSON
        #[arg(long)]
        json: bool,
    },
    /// Tell a monitoring system how jobs are: one line with performance data; exits 0 (OK), 1
    /// (warning), 2 (critical) or 3 (unknown)
    Check {
        /// [default: every job]
        names: Vec<String>,
    },
}
