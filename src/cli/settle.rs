//! `onedrop settle`: the copies for Sent that were left for later, those that a lease has left in
//! doubt, and how that ended.

use std::time::{Instant, UNIX_EPOCH};

use super::CommandOutcome;
use super::findings::Comparison;
use super::terminal::Screen;
use onedrop_core::ledger::{LedgerError, VerifyLedger, Window};
use onedrop_core::verify;
use onedrop_site::command_line::SettleArgs;
use onedrop_site::service::Site;

pub(super) fn run(
    args: &SettleArgs,
    site: &Site,
    screen: Screen,
) -> Result<CommandOutcome, String> {
    let comparison = Comparison {
        window: Window { since: UNIX_EPOCH, all: true },
        only: None,
        parallel: 1,
        repair: !args.dry_run,
        json: args.json,
        done: "looked at",
        account: first,
        work: verify::settle,
        resume: None,
    };
    comparison.run(site, screen)
}

fn first(ledger: &dyn VerifyLedger, until: Instant) -> Result<Option<String>, LedgerError> {
    let mut copies = ledger.copies_to_settle(false, None, 1, until)?;
    if copies.is_empty() {
        copies = ledger.copies_to_settle(true, None, 1, until)?;
    }
    if copies.is_empty() {
        copies = ledger.doubts_to_settle(None, 1, until)?;
    }
    Ok(copies.into_iter().next().map(|copy| copy.destination.account))
}
