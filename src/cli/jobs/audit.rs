//! `onedrop jobs audit`: where the ledger and the configuration differ about jobs.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{CommandOutcome, ended};
use crate::cli::terminal::{Paint, Screen};
use onedrop_core::duration::brief;
use onedrop_core::ledger::{
    JobLedger, JobRow, LockHolder, LockRequest, LockTry, RandomValue, of_the_ledger,
};
use onedrop_core::os::host_name;
use onedrop_core::text;
use onedrop_locks::jobs;
use onedrop_locks::jobs::job_status::{
    JobStanding, JobState, JobsSeen, is_current, is_running, since,
};
use onedrop_locks::lock;
use onedrop_site::config::JobSettings;

/// How long the lock of a ghost is held at most.
const LEASE: Duration = Duration::from_secs(60);

/// One difference.
struct JobFinding {
    job: String,
    kind: &'static str,
    text: String,
    /// Nothing is left to do about it.
    is_settled: bool,
}

pub(super) fn run(
    jobs: &[JobSettings],
    ledger: &dyn JobLedger,
    remove_ghosts: bool,
    json: bool,
    until: Instant,
    screen: Screen,
) -> Result<CommandOutcome, String> {
    let seen = JobsSeen::read(ledger, until).map_err(of_the_ledger)?;
    let mut findings: Vec<JobFinding> = Vec::new();
    for job in jobs {
        findings.extend(of_job(&JobStanding::of(job, jobs, &seen), &seen));
    }
    for row in &seen.rows {
        if jobs.iter().all(|job| job.name != row.name) {
            findings.push(of_ghost(row, &seen, ledger, remove_ghosts, until)?);
        }
    }
    let is_well = findings.iter().all(|finding| finding.is_settled);
    let out = match json {
        true => {
            let all = findings.iter().map(|one| {
                json!({
                    "job": one.job, "kind": one.kind, "text": one.text, "settled": one.is_settled,
                })
            });
            format!("{:#}", Value::from_iter(all))
        }
        false => findings.iter().map(|one| line(one, screen)).collect(),
    };
    Ok(ended(out, is_well))
}

fn line(finding: &JobFinding, screen: Screen) -> String {
    let JobFinding { job, kind, text, is_settled } = finding;
    let first = format!("{kind:<10}");
    let paint = if *is_settled { Paint::Good } else { Paint::Doubtful };
    screen.line(&first, paint, &format!("{job}: {text}"), first.len())
}

fn of_job(standing: &JobStanding<'_>, seen: &JobsSeen) -> Vec<JobFinding> {
    let mut found = Vec::new();
    let mut find = |kind, text: String| {
        let job = standing.job.name.clone();
        found.push(JobFinding { job, kind, text, is_settled: false });
    };
    let ago = |then| brief(since(then, seen.now));
    let Some(row) = standing.row else {
        if standing.job.enabled {
            find("never run", "it is not on record yet (does onedrop jobs tick run?)".to_owned());
        }
        return found;
    };
    if standing.state == JobState::Crashed
        && let Some((_, try_no)) = row.open
    {
        let began = ago(row.last_start.unwrap_or(row.seen_at));
        find(
            "open run",
            format!("try {try_no}, begun {began} ago, has no process: a tick settles it soon"),
        );
    }
    if standing.job.enabled && row.last_start.is_none() {
        find("never run", format!("on record since {}", ago(row.first_seen)));
    }
    if standing.job.enabled && !is_current(standing.job, row) {
        let (on_record, configured) = (text::shown(&row.schedule), &standing.job.schedule);
        find(
            "schedule",
            format!(
                "\"{on_record}\" on record, \"{configured}\" here: the next tick takes this \
                 (hosts may have different ones)"
            ),
        );
    }
    found
}

/// A job that the configuration does not have.
fn of_ghost(
    row: &JobRow,
    seen: &JobsSeen,
    ledger: &dyn JobLedger,
    remove: bool,
    until: Instant,
) -> Result<JobFinding, String> {
    let ago = brief(since(row.seen_at, seen.now));
    let mut text = format!("not in the configuration, which last had it {ago} ago");
    let mut is_settled = false;
    if is_running(row, seen.holders.get(&row.name)) {
        text.push_str("; it runs");
    }
    if remove {
        match removed(row, ledger, until)? {
            Ok(()) => {
                text.push_str("; removed, with its runs");
                is_settled = true;
            }
            Err(why) => text.push_str(&format!("; not removed: {why}")),
        }
    }
    let job = text::shown(&row.name).into_owned();
    Ok(JobFinding { job, kind: "ghost", text, is_settled })
}

/// Removes a job while no other process can have its lock; or says why not.
fn removed(
    row: &JobRow,
    ledger: &dyn JobLedger,
    until: Instant,
) -> Result<Result<(), String>, String> {
    let Ok(name) = jobs::lock_name(&row.name) else {
        // No process can have such a lock, nor such a job.
        return remove(row, ledger, until);
    };
    let holder = LockHolder {
        host: host_name(),
        pid: std::process::id(),
        command: "onedrop".to_owned(),
        note: "jobs audit --remove-ghosts".to_owned(),
        slots: 1,
    };
    let owner = RandomValue::default();
    let request = LockRequest {
        name: &name,
        slots: &[1],
        owner,
        lease: LEASE,
        holder: &holder,
        waiting: None,
    };
    let claim = match ledger.take_lock(&request, until).map_err(of_the_ledger)? {
        LockTry::Taken { claim, .. } => claim,
        LockTry::Busy(busy) => {
            return Ok(Err(format!("its lock is held: {}", lock::described(&busy.held))));
        }
    };
    let removed = remove(row, ledger, until);
    // Should this fail, the lease runs out.
    let _ = ledger.release_lock(&claim, until);
    removed
}

fn remove(
    row: &JobRow,
    ledger: &dyn JobLedger,
    until: Instant,
) -> Result<Result<(), String>, String> {
    Ok(match ledger.remove_job(&row.name, row.revision, until).map_err(of_the_ledger)? {
        true => Ok(()),
        false => Err("it has changed meanwhile; ask again".to_owned()),
    })
}
