//! `onedrop replay`: delivers again, from the ledger or from files.

use super::CommandOutcome;
use crate::command_line::ReplayArgs;
use crate::config::Loaded;
use crate::service::Adapters;

mod files;
mod from_ledger;

pub(super) fn run(
    args: &ReplayArgs,
    loaded: Loaded,
    adapters: Adapters,
) -> Result<CommandOutcome, String> {
    match args.from_ledger {
        true => from_ledger::run(args, &loaded, adapters),
        false => files::run(args, loaded, adapters),
    }
}
