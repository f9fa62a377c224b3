//! A plan that the ledger has refused, although the job's row is unchanged: what of it is on record
//! already is passed over, and logged.

use std::collections::BTreeSet;
use std::time::{Instant, SystemTime};

use super::plan::{self, JobPlan, JobStep};
use super::rfc_3339;
use crate::jobs::JobSettings;
use onedrop_core::ledger::{JobOutcome, JobRun, JobTrigger, Jobs, LedgerError};

/// How many runs are looked through.
const NEWEST: u32 = 1000;
/// How many older ones are asked for, one by one.
const OLDER: usize = 200;

/// The plan without what is on record.
///
/// # Errors
/// The ledger's; [`LedgerError::Contended`] where too much of it is on record.
pub fn passed_over(
    job: &JobSettings,
    plan: &JobPlan,
    ledger: &dyn Jobs,
    until: Instant,
) -> Result<JobPlan, LedgerError> {
    let mut on_record = ledger.job_runs(&job.name, NEWEST, until)?;
    let mut asked = BTreeSet::new();
    for _ in 0..OLDER {
        let passed = plan::pass_over(job, plan.clone(), &on_record);
        let Some(due) = first_dues(&passed).into_iter().find(|due| !asked.contains(due)) else {
            tell(plan, &passed);
            return Ok(passed);
        };
        asked.insert(due);
        let last = ledger.last_try(&job.name, due, until)?;
        let is_known = on_record.iter().any(|run| run.due == due && run.try_no >= last);
        if last > 0 && !is_known {
            // Its run is too long ago to be known: it is not begun again.
            let outcome = Some(JobOutcome::Marked);
            let known = JobRun::new(&job.name, due, JobTrigger::Schedule, due);
            on_record.push(JobRun { try_no: last, outcome, ..known });
        }
    }
    Err(LedgerError::Contended)
}

/// The times that the plan has a row for.
fn first_dues(plan: &JobPlan) -> Vec<SystemTime> {
    let run = match plan.step {
        JobStep::Run { due, .. } => Some(due),
        _ => None,
    };
    plan.skipped.iter().map(|skip| skip.due).chain(run).collect()
}

fn tell(plan: &JobPlan, passed: &JobPlan) {
    let job = &plan.row.name;
    match (&plan.step, &passed.step) {
        (JobStep::Run { due, .. }, JobStep::Run { try_no, .. }) if plan.step != passed.step => {
            let due = rfc_3339(*due);
            tracing::warn!("job {job}: {due} is on record already: this is its try {try_no}");
        }
        (JobStep::Run { due, .. }, step) if *step != plan.step => {
            let due = rfc_3339(*due);
            tracing::warn!("job {job}: {due} is passed over: it is on record already");
        }
        _ if plan.skipped != passed.skipped => {
            tracing::warn!("job {job}: times that were to be skipped are on record already");
        }
        _ => {}
    }
}

/// That another schedule holds from now on; both ends of an argument between hosts say so.
pub fn tell_of_a_change(plan: &JobPlan) {
    if let Some(old) = &plan.replaced {
        let (job, new) = (&plan.row.name, &plan.row.schedule);
        let old = onedrop_core::text::one_line(old);
        tracing::warn!("job {job}: its schedule changed from \"{old}\" to \"{new}\"");
    }
}
