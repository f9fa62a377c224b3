//! `onedrop jobs tick`: runs every job that is due.

use std::path::Path;

use nix::sys::stat::Mode;

use super::open;
use crate::cli::{CommandOutcome, load};
use crate::config::{Loaded, RunIn};
use crate::exit::Verdict;
use crate::jobs::own_program::OwnProgram;
use crate::jobs::tick::{TickEnd, tick};
use crate::service::Adapters;
use crate::telemetry;

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
    let loaded = load(config)?;
    let ledger = open(&loaded, adapters)?;
    let _log = telemetry::start_for_a_server();
    let program = OwnProgram { config: config.map(Path::to_owned), umask };
    let read = || load(config).map(|loaded| jobs_of(&loaded));
    let end = tick(jobs_of(&loaded), &read, &*ledger, program)?;
    let verdict = match end {
        TickEnd::Well => Verdict::Done,
        TickEnd::Failed => Verdict::No,
    };
    Ok(CommandOutcome { out: String::new(), err: String::new(), verdict })
}
