//! `onedrop migrate`: brings the ledger's schema to this program's version. If several hosts run it
//! at the same time, each migration is applied once.

use std::time::{Duration, Instant};

use crate::config::Loaded;
use crate::ledger::SCHEMA_VERSION;
use crate::service::{Adapters, ONE};

/// Long, because a migration may rewrite a large table.
const TIME: Duration = Duration::from_secs(3600);

pub(super) fn run(loaded: &Loaded, adapters: Adapters) -> Result<String, String> {
    let ledger = (adapters.ledger)(loaded, ONE).map_err(|error| format!("ledger: {error}"))?;
    let applied =
        ledger.migrate(Instant::now() + TIME).map_err(|error| format!("ledger: {error}"))?;
    let mut said: String = applied.iter().map(|name| format!("applied {name}\n")).collect();
    said.push_str(&format!("the ledger has schema version {SCHEMA_VERSION}"));
    Ok(said)
}
