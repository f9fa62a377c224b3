//! A tick beside a ledger in memory.

use std::path::PathBuf;

use nix::sys::stat::Mode;

use super::*;
use crate::jobs::{Backfill, RunIn};
use crate::schedule::Schedule;
use onedrop_core::hook::{Call, Hook};
use onedrop_core::ledger::Jobs;
use onedrop_core::ledger::memory::MemoryLedger;

fn soon() -> Instant {
    Instant::now() + MINUTE
}

/// Makes the first change, and loses the answer to it.
struct LosesAnswer(AtomicBool);

impl Hook<LedgerError> for LosesAnswer {
    fn after(&self, call: &Call<'_>) -> Result<(), LedgerError> {
        match call.name == "change_job" && !self.0.swap(true, Ordering::SeqCst) {
            true => Err(LedgerError::Unavailable("the answer is lost".to_owned())),
            false => Ok(()),
        }
    }
}

/// A job with a hook.
fn job() -> JobSettings {
    JobSettings {
        name: "j".to_owned(),
        schedule: Schedule::every("1h", "UTC").unwrap(),
        command: vec!["true".to_owned()],
        timeout: None,
        retry: MINUTE,
        retry_most: HOUR,
        tries: 0,
        final_status: Vec::new(),
        backfill: Backfill::Latest,
        late: None,
        backfill_most: 1,
        splay: Duration::ZERO,
        depends_on: Vec::new(),
        ttl: MINUTE,
        grace: Duration::ZERO,
        env: Vec::new(),
        cwd: None,
        user: None,
        umask: None,
        nice: 0,
        keep: 0,
        on_failure: Vec::new(),
        on_success: vec!["true".to_owned()],
        on_recovery: Vec::new(),
        enabled: true,
    }
}

fn tick_of(ledger: &dyn JobLedger) -> Tick<'_> {
    let settings = JobsSettings {
        run_in: RunIn::Timer,
        timezone: "UTC".to_owned(),
        concurrency: 1,
        keep_runs_days: 1,
        state_dir: PathBuf::from("/nonexistent"),
        settle_secs: 1,
        jobs: Vec::new(),
    };
    Tick::new(settings, ledger, OwnProgram { config: None, umask: Mode::empty() })
}

/// No other tick sees a change any more.
#[test]
fn a_hook_is_called_also_where_the_answer_to_the_change_is_lost() {
    let (ledger, job, now) = (MemoryLedger::default(), job(), SystemTime::now());
    let new = JobRow::new(&job.name, job.schedule.to_string(), now, now);
    let row = JobRow { last_success: Some(now), ..new };
    let value = RandomValue::default();
    let change = JobChange { seen: None, value, row: &row, added: &[], ended: None };
    assert!(ledger.change_job(&change, soon()).unwrap());
    let deaf = ledger.with_hook(Arc::new(LosesAnswer(AtomicBool::new(false))));
    let mut rows = ledger.jobs(soon()).unwrap().jobs;
    let mut tick = tick_of(&deaf);
    tick.call_hooks(&job, &mut rows, soon()).unwrap();
    assert_eq!(tick.hooks.len(), 1);
    assert_eq!(ledger.jobs(soon()).unwrap().jobs, rows, "with the revision that is on record");
    assert_eq!(rows[0].hooks_state, "ok");
    // Another tick looks at the same time.
    tick.call_hooks(&job, &mut rows, soon()).unwrap();
    assert_eq!(tick.hooks.len(), 1);
    while !tick.hooks[0].has_ended() {
        thread::yield_now();
    }
}
