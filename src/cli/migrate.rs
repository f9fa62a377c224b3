//! `onedrop migrate`: brings the ledger's schema to this program's version, beside deliveries, and
//! puts what all hosts' configurations must have alike on record. If several hosts run it at the
//! same time, each step is done once; after a crash the next one goes on.

use std::io::Write as _;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::command_line::MigrateArgs;
use crate::config::Loaded;
use crate::duration;
use crate::ledger::{AnyLedger, LedgerError, PlannedStep, SchemaVersion};
use crate::service::{Adapters, ONE};

/// Long, because a migration may go through a large table.
const TIME: Duration = Duration::from_secs(24 * 3600);

pub(super) fn run(
    args: &MigrateArgs,
    loaded: &Loaded,
    adapters: Adapters,
) -> Result<String, String> {
    let of_the_ledger = |error: LedgerError| format!("ledger: {error}");
    let ledger = (adapters.ledger)(loaded, ONE).map_err(of_the_ledger)?;
    match args.dry_run {
        true => plan(&*ledger, args.json).map_err(of_the_ledger),
        false => migrate(&*ledger, args.accept_config),
    }
}

fn migrate(ledger: &dyn AnyLedger, accept_config: bool) -> Result<String, String> {
    let until = Instant::now() + TIME;
    let applied = ledger.migrate(until).map_err(|error| format!("ledger: {error}"))?;
    let applied: String = applied.iter().map(|name| format!("applied {name}\n")).collect();
    let shared = ledger.share_config(accept_config, until);
    match shared.and_then(|()| ledger.schema_version(until)) {
        Ok(version) => Ok(format!("{applied}the ledger {version}")),
        Err(error) => Err(format!("{applied}ledger: {error}")),
    }
}

/// For the administrator, who would see nothing otherwise.
pub fn say_that_migrate_waits(for_whom: &str) {
    // Nobody may be there to read it.
    let _ = writeln!(std::io::stderr(), "{for_whom}: waiting for its end");
}

fn plan(ledger: &dyn AnyLedger, json: bool) -> Result<String, LedgerError> {
    let until = Instant::now() + TIME;
    let planned = ledger.planned_migration(until)?;
    if json {
        return Ok(as_json(&planned, ledger.schema_version(until)?));
    }
    let mut text = String::new();
    for PlannedStep { migration, what, rows, about, .. } in &planned {
        let rows = rows.map_or(String::new(), |rows| format!(" (about {rows} rows)"));
        let about = duration::brief(*about);
        text.push_str(&format!("would do {migration}: {what}{rows}, about {about}\n"));
    }
    if let Some(last) = planned.last() {
        text.push_str(&format!(
            "the times are estimates from the ledger's statistics of its rows; after it, programs \
             of version {} and later may use the ledger\n",
            last.oldest_program
        ));
    }
    let found = ledger.schema_version(until)?;
    Ok(format!("{text}the ledger {found}"))
}

fn as_json(planned: &[PlannedStep], found: SchemaVersion) -> String {
    let steps: Vec<_> = planned
        .iter()
        .map(|PlannedStep { migration, oldest_program, what, rows, about }| {
            json!({
                "migration": migration,
                "what": what,
                "rows": rows,
                "about_secs": about.as_secs_f64(),
                "oldest_program": oldest_program,
            })
        })
        .collect();
    let SchemaVersion { found, oldest_program, program } = found;
    let ledger = json!({ "version": found, "oldest_program": oldest_program, "program": program });
    format!("{:#}", json!({ "steps": steps, "ledger": ledger }))
}
