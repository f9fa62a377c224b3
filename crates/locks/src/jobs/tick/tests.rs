//! A tick beside a ledger in memory.

use std::path::PathBuf;

use nix::sys::stat::Mode;

use super::*;
use crate::jobs::RunIn;
use onedrop_core::hook::{Call, Hook};
use onedrop_core::ledger::Jobs;
use onedrop_core::ledger::memory::MemoryLedger;

fn soon() -> Instant {
    Instant::now() + MINUTE
}

/// Makes the first change, and loses the answer to it; before it is made again, another changes
/// the row if it is given.
struct LosesAnswer(AtomicBool, Option<MemoryLedger>);

impl Hook<LedgerError> for LosesAnswer {
    fn before(&self, call: &Call<'_>) -> Result<(), LedgerError> {
        if let Some(ledger) = &self.1
            && call.name == "change_job"
            && self.0.load(Ordering::SeqCst)
        {
            let row = ledger.jobs(soon()).unwrap().jobs.remove(0);
            let (seen, value) = (Some(row.revision), RandomValue::default());
            let row = JobRow { seen_at: row.seen_at + HOUR, ..row };
            let change = JobChange { seen, value, row: &row, added: &[], ended: None };
            assert!(ledger.change_job(&change, soon()).unwrap());
        }
        Ok(())
    }

    fn after(&self, call: &Call<'_>) -> Result<(), LedgerError> {
        match call.name == "change_job" && !self.0.swap(true, Ordering::SeqCst) {
            true => Err(LedgerError::Unavailable("the answer is lost".to_owned())),
            false => Ok(()),
        }
    }
}

/// A job with a hook.
fn job() -> JobSettings {
    JobSettings { on_success: vec!["true".to_owned()], ..JobSettings::hourly("j") }
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
    for has_another in [false, true] {
        let (ledger, job, now) = (MemoryLedger::default(), job(), SystemTime::now());
        let new = JobRow::new(&job.name, job.schedule.to_string(), now, now);
        let row = JobRow { last_success: Some(now), ..new };
        let value = RandomValue::default();
        let change = JobChange { seen: None, value, row: &row, added: &[], ended: None };
        assert!(ledger.change_job(&change, soon()).unwrap());
        let another = has_another.then(|| ledger.clone());
        let deaf = ledger.with_hook(Arc::new(LosesAnswer(AtomicBool::new(false), another)));
        let mut rows = ledger.jobs(soon()).unwrap().jobs;
        let mut tick = tick_of(&deaf);
        tick.call_hooks(&job, &mut rows, soon()).unwrap();
        assert_eq!(tick.hooks.len(), 1);
        assert_eq!(ledger.jobs(soon()).unwrap().jobs, rows, "with the revision that is on record");
        assert!(rows[0].hooks_state.starts_with("ok "), "{}", rows[0].hooks_state);
        // Another tick looks at the same time.
        tick.call_hooks(&job, &mut rows, soon()).unwrap();
        assert_eq!(tick.hooks.len(), 1);
        while !tick.hooks[0].has_ended() {
            thread::yield_now();
        }
    }
}

/// `jobs reset` ends failures also of a job that never succeeded: the next one calls again.
#[test]
fn a_reset_counts_as_a_recovery() {
    let calls = |name: &str| vec![name.to_owned()];
    let job = JobSettings { on_failure: calls("fails"), on_recovery: calls("recovers"), ..job() };
    let called = |row: &JobRow| {
        let change = hooks::change(&job, row)?;
        Some((change.state, change.hooks.iter().map(|(key, _)| *key).collect::<Vec<_>>()))
    };
    let now = SystemTime::now();
    let row = JobRow::new(&job.name, job.schedule.to_string(), now, now);
    assert_eq!(called(&row), None);
    let failing = JobRow { errors: 1, ..row };
    assert_eq!(called(&failing), Some(("failing", vec!["on_failure"])));
    let told = JobRow { hooks_state: "failing 01".to_owned(), ..failing };
    assert_eq!(called(&told), None);
    let reset = JobRow { errors: 0, ..told };
    assert_eq!(called(&reset), Some(("ok", vec!["on_success", "on_recovery"])));
    let again = JobRow { errors: 1, hooks_state: "ok 02".to_owned(), ..reset };
    assert_eq!(called(&again), Some(("failing", vec!["on_failure"])));
}
