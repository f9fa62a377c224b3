//! `onedrop jobs tick`: runs every job that is due.

use std::path::Path;

use nix::sys::stat::Mode;

use super::open;
use crate::cli::{CommandOutcome, load};
use crate::exit::Verdict;
use crate::jobs::own_program::OwnProgram;
use crate::jobs::tick::{TickEnd, tick};
use crate::service::Adapters;
use crate::telemetry;

pub(super) fn run(
    config: Option<&Path>,
    adapters: Adapters,
    umask: Mode,
) -> Result<CommandOutcome, String> {
    let loaded = load(config)?;
    let ledger = open(&loaded, adapters)?;
    let _log = telemetry::start_for_a_server();
    let program = OwnProgram { config: config.map(Path::to_owned), umask };
    let read = || load(config).map(|loaded| loaded.config.jobs);
    let end = tick(loaded.config.jobs.clone(), &read, &*ledger, program)?;
    let verdict = match end {
        TickEnd::Well => Verdict::Done,
        TickEnd::Failed => Verdict::No,
    };
    Ok(CommandOutcome { out: String::new(), err: String::new(), verdict })
}
