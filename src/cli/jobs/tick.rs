//! `onedrop jobs tick`: runs every job that is due.

use std::path::Path;

use nix::sys::stat::Mode;

use super::open;
use crate::cli::{CommandOutcome, load};
use onedrop_core::exit::Verdict;
use onedrop_locks::jobs::own_program::OwnProgram;
use onedrop_locks::jobs::tick::{TickEnd, tick};
use onedrop_site::config::{Loaded, RunIn};
use onedrop_site::service::{Adapters, Site};
use onedrop_site::telemetry;

/// `by_server`: a server has started it, and it is to end where that ticks no longer.
pub(super) fn run(
    by_server: bool,
    config: Option<&Path>,
    adapters: Adapters,
    umask: Mode,
) -> Result<CommandOutcome, String> {
    let jobs_of = |loaded: &Loaded| {
        let mut jobs = loaded.config.jobs.clone();
        if by_server && jobs.run_in != RunIn::Server {
            jobs.jobs.clear();
        }
        jobs
    };
    let site = Site::new(load(config)?, adapters);
    let ledger = open(&site)?;
    let _log = telemetry::start_for_a_server();
    let program = OwnProgram { config: config.map(Path::to_owned), umask };
    let read = || load(config).map(|loaded| jobs_of(&loaded));
    let end = tick(jobs_of(&site.loaded), &read, &*ledger, program)?;
    let verdict = match end {
        TickEnd::Well => Verdict::Done,
        TickEnd::Failed => Verdict::No,
    };
    Ok(CommandOutcome { out: String::new(), err: String::new(), verdict })
}
