//! `onedrop replay`: delivers again, from the ledger or from files.

use super::CommandOutcome;
use super::terminal::Screen;
use onedrop_site::command_line::ReplayArgs;
use onedrop_site::service::Site;

mod files;
mod from_ledger;

pub(super) fn run(args: &ReplayArgs, site: Site, screen: Screen) -> Result<CommandOutcome, String> {
    match args.from_ledger {
        true => from_ledger::run(args, &site, screen),
        false => files::run(args, site, screen),
    }
}
