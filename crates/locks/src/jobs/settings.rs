//! What the configuration says of jobs. Values only; defaults, checks and rules between them are
//! the configuration's.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::schedule::Schedule;

/// `[jobs]`
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct JobsSettings {
    /// What looks for jobs that are due.
    pub run_in: RunIn,
    /// The time zone of schedules, by its name in the tz database.
    pub timezone: String,
    /// How many runs one tick has going at a time.
    pub concurrency: usize,
    /// Days that runs and skips stay on record.
    pub keep_runs_days: u64,
    /// The folder where this host keeps ends of runs that the ledger does not have yet.
    pub state_dir: PathBuf,
    /// How long the end of another host's run is waited for, once its lock is found free; of this
    /// host's less.
    pub settle_secs: u64,
    /// `[jobs.NAME]`: each after those that it depends on, else by name.
    #[serde(skip)]
    pub jobs: Vec<JobSettings>,
}

/// What looks for jobs that are due.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum RunIn {
    /// `onedrop jobs tick`, which a timer starts.
    Timer,
    /// That, and `onedrop lmtp`.
    Server,
}

/// `[jobs.NAME]`
#[derive(Clone, Debug, PartialEq)]
pub struct JobSettings {
    pub name: String,
    pub schedule: Schedule,
    /// The program and its arguments; no shell reads them.
    pub command: Vec<String>,
    /// It is ended after this time; `None`: never.
    pub timeout: Option<Duration>,
    /// How long after a failure it is tried again, doubled each time; 0: at its next time.
    pub retry: Duration,
    /// The longest such wait.
    pub retry_most: Duration,
    /// How often it is tried for a due time; 0: until it succeeds.
    pub tries: u32,
    /// Exit statuses after which it is not tried again.
    pub final_status: Vec<RangeInclusive<i32>>,
    /// What is made up for of the times that were missed.
    pub backfill: Backfill,
    /// It does not start longer after its time than this; `None`: however late.
    pub late: Option<Duration>,
    /// How many missed times are made up for, with [`Backfill::All`].
    pub backfill_most: u32,
    /// It starts up to this time after it is due; the delay of a job is always the same.
    pub splay: Duration,
    /// Jobs that must have succeeded first.
    pub depends_on: Vec<String>,
    /// How long its lock outlives a host that is gone.
    pub ttl: Duration,
    /// What the command gets to end after SIGTERM, before SIGKILL.
    pub grace: Duration,
    /// For the command's environment.
    pub env: Vec<(String, String)>,
    /// The command's working folder; `None`: that of what ticks.
    pub cwd: Option<PathBuf>,
    /// The user that the command runs as; `None`: the one that ticks.
    pub user: Option<String>,
    /// `None`: that of what ticks.
    pub umask: Option<u32>,
    /// By how much the command is nicer than what ticks.
    pub nice: u8,
    /// How many runs and skips stay on record; 0: those of `keep_runs_days`.
    pub keep: u32,
    /// Commands, or one URL each, for a change of its state.
    pub on_failure: Vec<String>,
    pub on_success: Vec<String>,
    pub on_recovery: Vec<String>,
    pub enabled: bool,
}

#[cfg(test)]
impl JobSettings {
    /// Every hour `true`, and nothing else.
    pub fn hourly(name: &str) -> JobSettings {
        JobSettings {
            name: name.to_owned(),
            schedule: Schedule::every("1h", "UTC").unwrap(),
            command: vec!["true".to_owned()],
            timeout: None,
            retry: Duration::from_secs(60),
            retry_most: Duration::from_secs(3600),
            tries: 0,
            final_status: Vec::new(),
            backfill: Backfill::Latest,
            late: None,
            backfill_most: 1,
            splay: Duration::ZERO,
            depends_on: Vec::new(),
            ttl: Duration::from_secs(60),
            grace: Duration::ZERO,
            env: Vec::new(),
            cwd: None,
            user: None,
            umask: None,
            nice: 0,
            keep: 0,
            on_failure: Vec::new(),
            on_success: Vec::new(),
            on_recovery: Vec::new(),
            enabled: true,
        }
    }
}

/// What is made up for of the times that were missed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Backfill {
    None,
    /// The newest.
    Latest,
    /// Each, the oldest first.
    All,
}
