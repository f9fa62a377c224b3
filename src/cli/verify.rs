//! `onedrop verify`: what the comparison of ledger and mailboxes found, and how it ended.

use std::time::Instant;

use super::findings::Comparison;
use super::resume::{Resume, ResumedPlan};
use super::terminal::Screen;
use super::{CommandOutcome, since};
use onedrop_core::ledger::{LedgerError, VerifyLedger, Window};
use onedrop_core::verify;
use onedrop_site::command_line::VerifyArgs;
use onedrop_site::service::Site;

/// Accounts at a time, unless the command line or `pool.store` says otherwise.
const PARALLEL: usize = 4;

pub(super) fn run(
    args: &VerifyArgs,
    site: &Site,
    screen: Screen,
) -> Result<CommandOutcome, String> {
    let window = Window { since: since(&args.since)?, all: args.all };
    let asked = ResumedPlan { all: args.all, repair: args.repair };
    let open = |path| Resume::open(path, window.since, asked);
    let resume = args.resume.as_deref().map(open).transpose()?;
    let sessions = site.loaded.config.pool.store.max(1);
    let comparison = Comparison {
        window: resume.as_ref().map_or(window, Resume::window),
        only: args.account.as_deref(),
        parallel: args.parallel.map_or(PARALLEL.min(sessions), usize::from),
        repair: args.repair,
        json: args.json,
        done: "compared",
        account: latest,
        work: verify::verify,
        resume,
    };
    comparison.run(site, screen)
}

/// Without a copy on record there is nothing to repair.
fn latest(ledger: &dyn VerifyLedger, until: Instant) -> Result<Option<String>, LedgerError> {
    let copies = ledger.latest_copies(1, until)?;
    Ok(copies.into_iter().next().map(|(destination, _)| destination.account))
}
