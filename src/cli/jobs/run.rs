//! `onedrop jobs run`: one run of a job, under its lock. It ends as the job's command does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use nix::sys::stat::Mode;

use super::{configured, open};
use onedrop_core::exit::{self, BUSY, LockCodes, LockEnding};
use onedrop_core::os::host_name;
use onedrop_core::text;
use onedrop_locks::jobs::KeptEnds;
use onedrop_locks::jobs::run::{JobRequest, RunWhy, run as run_job};
use onedrop_site::command_line::JobsRunArgs;
use onedrop_site::service::{Adapters, Site};
use onedrop_site::telemetry;

/// Runs the job and ends the process.
pub(super) fn run(args: JobsRunArgs, config: Option<&Path>, adapters: Adapters, umask: Mode) -> ! {
    let (by_tick, name) = (args.by_tick, args.name.clone());
    let work = AssertUnwindSafe(|| run_named(args, config, adapters, umask));
    let ending = catch_unwind(work)
        .unwrap_or_else(|payload| Err(format!("internal error: {}", text::of_panic(payload))));
    let ending = named(ending.unwrap_or_else(LockEnding::Failed), &name);
    if by_tick {
        exit::end_run_of_tick(&ending)
    }
    exit::end_with_lock(&ending, LockCodes { mail: false, busy: BUSY, quiet: false })
}

/// The ending, in whose text the job's name is: several may end at a time.
fn named(ending: LockEnding, job: &str) -> LockEnding {
    let named = |text: String| match text.starts_with(&format!("{job}: ")) {
        true => text,
        false => format!("{}: {text}", text::escaped(job)),
    };
    match ending {
        LockEnding::TimedOut(text) => LockEnding::TimedOut(named(text)),
        LockEnding::Stopped(text) => LockEnding::Stopped(named(text)),
        LockEnding::Failed(text) => LockEnding::Failed(named(text)),
        LockEnding::NotExecutable(text) => LockEnding::NotExecutable(named(text)),
        LockEnding::NotFound(text) => LockEnding::NotFound(named(text)),
        // Their texts name the lock, jobs/NAME, or the job.
        LockEnding::Exited(_)
        | LockEnding::Killed(_)
        | LockEnding::Busy(_)
        | LockEnding::Lost(_)
        | LockEnding::NothingToDo(_) => ending,
    }
}

fn run_named(
    args: JobsRunArgs,
    config: Option<&Path>,
    adapters: Adapters,
    umask: Mode,
) -> Result<LockEnding, String> {
    let site = Site::new(crate::cli::load(config)?, adapters);
    let settings = &site.loaded.config.jobs;
    let all = settings.jobs.clone();
    let ends = KeptEnds::new(&settings.state_dir);
    let settle = Duration::from_secs(settings.settle_secs);
    let job = configured(&args.name, &all)?.clone();
    let why = match (args.force, args.due) {
        (false, _) => RunWhy::IfDue,
        (true, None) => RunWhy::Forced(None),
        (true, Some(text)) => {
            let told = |why| format!("--due {}: {why}", text::shown(&text));
            RunWhy::Forced(Some(job.schedule.named_time(&text).map_err(told)?))
        }
    };
    let ledger = open(&site)?;
    telemetry::start();
    let variables = match config.map(std::path::absolute) {
        Some(Ok(path)) => vec![("ONEDROP_CONFIG".into(), path.into())],
        _ => Vec::new(),
    };
    let (host, has_label, args) = (host_name(), args.by_tick, args.args);
    run_job(
        JobRequest { job, all, why, args, variables, umask, has_label, host, ends, settle },
        ledger,
    )
}
