//! A server's look at both of its ends, the ledger and the mail store: at the start, for the log,
//! and each minute, for the row that says that this host is there and for the gauges. It has a
//! ledger of its own for the moment: no delivery waits for it, and no session of theirs is used.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use onedrop_admin::status::{self, LedgerFacts, SeenByHost, StatusFigures, StatusGauges};
use onedrop_core::ledger::{LedgerError, StatusLedger};
use onedrop_core::os::host_name;
use onedrop_site::config::{Config, Loaded, Opens};
use onedrop_site::service::Site;

/// How long ledger and store may take to show that they are there.
const LOOK: Duration = Duration::from_secs(15);
/// Between two looks.
const MINUTE: Duration = Duration::from_secs(60);

/// What counts now: a server reads its configuration again.
pub(super) type CurrentSite = Arc<Mutex<Site>>;

/// Looks until the process ends. A server whose ends are away serves all the same: what it cannot
/// deliver stays in Postfix' queue.
pub(super) fn begin_to_look(current: CurrentSite, config: Option<PathBuf>, gauges: StatusGauges) {
    let work = move || {
        let mut is_first = true;
        loop {
            let site = current.lock().unwrap_or_else(PoisonError::into_inner).clone();
            look(&site, config.as_deref(), &gauges, is_first);
            is_first = false;
            thread::sleep(MINUTE);
        }
    };
    if let Err(error) = thread::Builder::new().name("look".to_owned()).spawn(work) {
        tracing::warn!(%error, "no thread to look whether ledger and store are there");
    }
}

fn look(site: &Site, config: Option<&Path>, gauges: &StatusGauges, is_first: bool) {
    const UNTIL: &str = "until that is mended all mail is deferred";
    let until = Instant::now() + LOOK;
    let (loaded, ledger) = (&*site.loaded, site.ledger());
    let checked = ledger.and_then(|ledger| {
        ledger.check_program(until)?;
        Ok(ledger)
    });
    if let Err(error) = &checked
        && is_first
    {
        tracing::error!("ledger: {error}; {UNTIL}");
    }
    let ledger = checked.as_deref().ok();
    let ledger_up = ledger.is_some_and(|ledger| is_noted(ledger, until));
    let figures = ledger.and_then(|ledger| {
        let figures = figures(ledger, loaded, until);
        figures.map_err(|error| tracing::warn!(%error, "the gauges could not be read")).ok()
    });
    let serves = status::store_serves(&loaded.config, ledger, Instant::now() + LOOK);
    if let Err(why) = &serves
        && is_first
    {
        tracing::error!("store: {why}; {UNTIL}");
    }
    // The next tick reads the file as it is now, whatever this server has begun with.
    let jobs_config_ok = Config::load_despite_jobs(config, Opens::Ledger)
        .is_ok_and(|now| now.job_problems.is_empty());
    let unrecorded = status::unrecorded_count(&loaded.shown_file(), Instant::now() + LOOK);
    let seen = SeenByHost { ledger_up, store_up: serves.is_ok(), jobs_config_ok, unrecorded };
    gauges.set(seen, figures.as_ref(), SystemTime::now());
}

/// Puts on record that this host is there; whether the ledger takes what is written. One that can
/// only be read, as where its disk is full, takes no mail. A grant that is missing for this alone
/// keeps none.
fn is_noted(ledger: &dyn StatusLedger, until: Instant) -> bool {
    let noted = ledger.note_host(&host_name(), env!("CARGO_PKG_VERSION"), until);
    let Err(error) = noted else { return true };
    tracing::warn!(%error, "that this host is there could not be put on record");
    matches!(error, LedgerError::Denied(_))
}

/// How things are.
fn figures(
    ledger: &dyn StatusLedger,
    loaded: &Loaded,
    until: Instant,
) -> Result<StatusFigures, LedgerError> {
    Ok(LedgerFacts::without_attempts(ledger, until)?.figures(&loaded.config.jobs.jobs))
}
