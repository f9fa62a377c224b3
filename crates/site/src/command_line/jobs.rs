//! The arguments of `jobs`.

use std::ffi::OsString;
use std::path::PathBuf;

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
    /// Let no run of a job begin until it is resumed; one that runs goes on
    Pause {
        name: String,
        /// Why, for `onedrop jobs list`
        #[arg(long, value_name = "TEXT", default_value = "")]
        note: String,
        /// It is resumed by itself then: 2026-11-01T03:17:00Z, or 2026-11-01 03:17 in the job's
        /// time zone
        #[arg(long, value_name = "TIME")]
        until: Option<String>,
    },
    /// Let a paused job run again; `backfill` says what becomes of the times it has missed
    Resume { name: String },
    /// End the run of a job, on whatever host, and wait for that; it is not tried again
    Stop {
        name: String,
        /// Why, for the record
        #[arg(long, value_name = "TEXT", default_value = "")]
        note: String,
    },
    /// Forget a job's failures and what it has missed, and begin with its next time (with `every`
    /// at once); its runs stay on record
    Reset { name: String },
    /// Put the time that is due on record as done, without a run
    MarkDone {
        name: String,
        /// This time instead, and all before it: 2026-11-01T03:17:00Z, or 2026-11-01 03:17 in the
        /// job's time zone
        #[arg(long, value_name = "TIME")]
        due: Option<String>,
        /// It succeeded then, elsewhere: its next time is the one after that, which may have
        /// passed. Not where it has run here since
        #[arg(long, value_name = "TIME", conflicts_with = "due")]
        at: Option<String>,
    },
    /// Run a job if it is due and what it depends on has succeeded
    Run(JobsRunArgs),
    /// Run every job that is due, look again when one has ended and each minute while any runs
    Tick {
        /// `onedrop lmtp` has started it
        #[arg(long, hide = true)]
        by_server: bool,
    },
    /// Compare the ledger with the configuration, a line per finding
    Audit {
        /// Take jobs off the record, with their runs, that the configuration does not have
        #[arg(long)]
        remove_ghosts: bool,
        /// Print findings as JSON
        #[arg(long)]
        json: bool,
    },
    /// Write the lines of a crontab as jobs for the configuration
    Import {
        #[arg(value_name = "CRONTAB")]
        crontab: PathBuf,
        /// It has the form of /etc/crontab and /etc/cron.d: a user before each command
        #[arg(long)]
        system: bool,
    },
    /// Report how jobs are to a monitoring system: one line with performance data
    Check {
        /// [default: every job]
        names: Vec<String>,
        /// Print as JSON in place of the line
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub struct JobsRunArgs {
    pub name: String,
    /// Run it now, due or not, paused or not, whatever it depends on
    #[arg(long)]
    pub force: bool,
    /// Run it for this time of its schedule: 2026-11-01T03:17:00Z, or 2026-11-01 03:17 in the job's
    /// time zone
    #[arg(long, value_name = "TIME", requires = "force")]
    pub due: Option<String>,
    /// For the command, after its own arguments
    #[arg(last = true, value_name = "ARG")]
    pub args: Vec<OsString>,
    /// `onedrop jobs tick` has started it
    #[arg(long, hide = true, conflicts_with = "force")]
    pub by_tick: bool,
}
