//! `onedrop migrate`: brings the ledger's schema to this program's version. If several hosts run it
//! at the same time, each migration is applied once.

use std::time::{Duration, Instant};

use crate::config::Loaded;
use crate::ledger::SCHEMA_VERSION;
use crate::service::{Adapters, ONE};

/// Long, because a migration may rewrite a large table.
const TIME: Duration = Duration::from_secs(3600);

pub(super) fn run(loaded: &Loaded, adapters: Adapters) -> Result<String, String> {
    let applied = (adapters.ledger)(loaded, ONE)
        .and_then(|ledger| ledger.migrate(Instant::now() + TIME))
        .map_err(|error| format!("ledger: {error}"))?;
    let applied: String = applied.iter().map(|name| format!("applied {name}\n")).collect();
    Ok(format!("{applied}the ledger has schema version {SCHEMA_VERSION}"))
}
