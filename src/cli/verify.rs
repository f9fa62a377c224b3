//! `onedrop verify`: what the comparison of ledger and mailboxes found, and how it ended.

use std::time::Instant;

use super::findings::Comparison;
use super::{CommandOutcome, since};
use crate::command_line::VerifyArgs;
use crate::config::Loaded;
use crate::ledger::{AnyLedger, LedgerError, Window};
use crate::service::Adapters;
use crate::verify;

pub(super) fn run(
    args: &VerifyArgs,
    loaded: &Loaded,
    adapters: Adapters,
) -> Result<CommandOutcome, String> {
    let comparison = Comparison {
        window: Window { since: since(&args.since)?, account: args.account.as_deref() },
        repair: args.repair,
        json: args.json,
        done: "compared",
        account: latest,
        work: verify::verify,
    };
    comparison.run(loaded, adapters)
}

/// Without a copy on record there is nothing to repair.
fn latest(ledger: &dyn AnyLedger, until: Instant) -> Result<Option<String>, LedgerError> {
    let copies = ledger.latest_copies(1, until)?;
    Ok(copies.into_iter().next().map(|(destination, _)| destination.account))
}
