//! `onedrop migrate`: brings the ledger's schema to this program's version, beside deliveries, and
//! puts what all hosts' configurations must have alike on record. It makes what no delivery makes:
//! a ledger in a file, and the folder above all Maildirs with its mark (`mail_root`). If several
//! hosts run it at the same time, each step is done once; after a crash the next one goes on.
//!
//! That a ledger is the first of its site (`--first`) is the administrator's word: nothing in a
//! store proves that no Onedrop has delivered there. What can be seen of one refuses it.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;

use super::terminal::Screen;
use onedrop_core::duration;
use onedrop_core::ledger::{MigrateLedger, PlannedStep, SchemaVersion, of_the_ledger};
use onedrop_core::mail_root::{self, MailRoot};
use onedrop_core::os::host_name;
use onedrop_site::command_line::MigrateArgs;
use onedrop_site::config::{Opens, StoreUrl};
use onedrop_site::service::Site;

/// Long, because a migration may go through a large table.
const TIME: Duration = Duration::from_secs(24 * 3600);

/// In how many accounts `--first` looks for something of ours, and for how long in each.
const LOOKED_AT: usize = 10;
const ONE_LOOK: Duration = Duration::from_secs(60);

/// What it needs: whether a ledger is the first is asked of the mailboxes, too.
pub(super) fn opens(args: &MigrateArgs) -> Opens {
    if args.first { Opens::Mailboxes } else { Opens::Ledger }
}

pub(super) fn run(args: &MigrateArgs, site: Site, screen: Screen) -> Result<String, String> {
    let root = root_of_store(&site)?;
    // It makes a ledger in a file that is not there.
    let site = site.but(|loaded| loaded.config.deliver.trial |= !args.dry_run);
    let ledger = site.ledger().map_err(of_the_ledger)?;
    let text = match args.dry_run {
        true => plan(&*ledger, root.as_deref(), args.json)?,
        false => {
            let first = args.first.then_some(&site);
            migrate(&*ledger, root.as_deref(), args.accept_config, first)?
        }
    };
    Ok(if args.json { text } else { screen.fitted(&text, 2) })
}

/// The folder that deliveries want to find.
fn root_of_store(site: &Site) -> Result<Option<PathBuf>, String> {
    if !matches!(site.loaded.config.store.kind(), StoreUrl::Maildir { .. }) {
        return Ok(None);
    }
    let store = site.store().map_err(|error| error.to_string())?;
    Ok(store.root().map(Path::to_owned))
}

fn migrate(
    ledger: &dyn MigrateLedger,
    root: Option<&Path>,
    accept_config: bool,
    first: Option<&Site>,
) -> Result<String, String> {
    let until = Instant::now() + TIME;
    let applied = ledger.migrate(until).map_err(of_the_ledger)?;
    let mut done: String = applied.iter().map(|name| format!("applied {name}\n")).collect();
    let shared = ledger.share_config(accept_config, until);
    let version = shared.and_then(|()| ledger.schema_version(until));
    let version = version.map_err(|error| format!("{done}ledger: {error}"))?;
    if let Some(site) = first {
        let said = be_first(site, ledger, root, until);
        done.push_str(&said.map_err(|why| format!("{done}the ledger {version}\n--first: {why}"))?);
    }
    if let Some(root) = root {
        let marked = mail_root::mark(root, accept_config, &host_name(), ledger, until);
        let marked = marked.map_err(|why| format!("{done}the ledger {version}\nstore: {why}"))?;
        done.extend(marked.map(|what| format!("{what}\n")));
    }
    Ok(format!("{done}the ledger {version}"))
}

/// Puts on record that no ledger was before this one. Returns what was done, in lines.
///
/// # Errors
/// Something shows that one was.
fn be_first(
    site: &Site,
    ledger: &dyn MigrateLedger,
    root: Option<&Path>,
    until: Instant,
) -> Result<String, String> {
    let refused = |why: &str| {
        Err(format!(
            "this is not the first ledger of the site: {why}; without --first it looks for what \
             may have been delivered before"
        ))
    };
    if let Some(root) = root {
        let found = MailRoot::find(root).map_err(|why| format!("store: {why}"))?;
        if matches!(found, MailRoot::Marked(_))
            && let Err(why) = found.is_known(root, ledger, until)
        {
            return refused(&why.to_string());
        }
    }
    let mut done = String::new();
    let store = site.store().map_err(|error| error.to_string())?;
    let accounts = site.loaded.config.directory.accounts.values().map(|home| &home.account);
    let accounts: BTreeSet<&String> = accounts.collect();
    for account in accounts.into_iter().take(LOOKED_AT) {
        match store.trace_of_ours(account, until.min(Instant::now() + ONE_LOOK)) {
            Ok(None) => {}
            Ok(Some(seen)) => return refused(&seen),
            Err(error) => done.push_str(&format!("not looked at: account={account}: {error}\n")),
        }
    }
    match ledger.be_first(until).map_err(of_the_ledger)? {
        true => Ok(format!("{done}this ledger is the first of its site\n")),
        false => refused("the ledger has messages, or had some before a purge"),
    }
}

/// For the administrator, who would see nothing otherwise.
pub fn say_that_migrate_waits(for_whom: &str) {
    // Standard error may be closed.
    let _ = writeln!(std::io::stderr(), "{for_whom}: waiting for its end");
}

fn plan(ledger: &dyn MigrateLedger, root: Option<&Path>, json: bool) -> Result<String, String> {
    let until = Instant::now() + TIME;
    let planned = ledger.planned_migration(until).map_err(of_the_ledger)?;
    let found = ledger.schema_version(until).map_err(of_the_ledger)?;
    let of_root = match root {
        Some(root) => mail_root::planned_mark(root, found.found == 0, ledger, until),
        None => Ok(None),
    };
    if json {
        return Ok(as_json(&planned, found, of_root.map_err(|why| format!("store: {why}"))?));
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
    let of_root = of_root.map_err(|why| format!("{text}the ledger {found}\nstore: {why}"))?;
    text.extend(of_root.map(|what| format!("{what}\n")));
    Ok(format!("{text}the ledger {found}"))
}

fn as_json(planned: &[PlannedStep], found: SchemaVersion, root: Option<String>) -> String {
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
    format!("{:#}", json!({ "steps": steps, "mail_root": root, "ledger": ledger }))
}
