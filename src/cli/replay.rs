//! `onedrop replay`: delivers again, from the ledger or from files.

use serde::Serialize;

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

/// An element of an array in JSON that is printed element by element; `before` came before it.
fn json_element(before: u64, element: &impl Serialize) -> String {
    let opening = if before == 0 { "[\n" } else { ",\n" };
    format!("{opening}{}", serde_json::to_string(element).unwrap_or_default())
}

/// The end of such an array after `elements`.
fn json_end(elements: u64) -> &'static str {
    if elements == 0 { "[]\n" } else { "\n]\n" }
}
