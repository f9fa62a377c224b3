//! `onedrop web`: reads the configuration, opens the listener (systemd's, else `--listen`, else
//! `web.listen`), serves pages until SIGTERM or SIGINT.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};

use super::lmtp::{listen_at, systemds_listeners};
use onedrop_admin::http;
use onedrop_admin::web::{self, AT_A_TIME, ConfiguredJobs, PagesState};
use onedrop_core::ledger::of_the_ledger;
use onedrop_core::os::host_name;
use onedrop_net::listener::Listener;
use onedrop_net::pool::Limits;
use onedrop_site::command_line::WebArgs;
use onedrop_site::config::{Loaded, Opens, Problem};
use onedrop_site::service::{Adapters, Site};

/// The permission bits of a Unix socket that is made here: for a proxy of the same group.
const SOCKET_MODE: u32 = 0o660;
/// A session of the ledger that was not used for this time is closed when attempts are counted
/// next.
const IDLE: Duration = Duration::from_secs(60);

pub(super) fn run(args: &WebArgs, config: Option<&Path>, adapters: Adapters) -> Result<(), String> {
    // Before the log, which has a thread.
    let passed = systemds_listeners()?;
    let mut listeners: Vec<_> = passed.into_iter().map(|(listener, _)| listener).collect();
    let _log = onedrop_site::telemetry::start_for_a_server();
    let site = Site::new(super::load_despite_jobs(config, Opens::Pages)?, adapters);
    let loaded = &site.loaded;
    if listeners.is_empty() {
        let place = args.listen.as_ref().or(loaded.config.web.listen.as_ref());
        let place = place.ok_or(
            "nowhere to listen: give --listen, set web.listen, or start it by systemd's socket",
        )?;
        listeners.push(listen_at(place, None, SOCKET_MODE)?);
    }
    warn(loaded, &listeners);
    let password = loaded.web_password()?;
    let limits = Limits { used: AT_A_TIME, per_key: AT_A_TIME, kept: AT_A_TIME, idle: IDLE };
    let ledger = site.reading(limits).map_err(of_the_ledger)?;
    let pages = PagesState::new(&loaded.config, ledger, password, host_name());
    let pages = Arc::new(pages.reads(loaded.shown_file()));
    pages.know_jobs(ConfiguredJobs::of(loaded));
    let failed = |error: std::io::Error| format!("cannot serve: {error}");
    let (stop, waker) = UnixStream::pair().map_err(failed)?;
    for signal in [SIGTERM, SIGINT] {
        let waker = waker.try_clone().map_err(failed)?;
        signal_hook::low_level::pipe::register(signal, waker).map_err(failed)?;
    }
    let read_jobs = {
        let config = config.map(Path::to_owned);
        move || ConfiguredJobs::read(config.as_deref())
    };
    web::keep_counting(&pages, web::COUNTING, read_jobs).map_err(failed)?;
    tracing::info!("serves pages");
    http::run(listeners, web::router(pages), web::LIMITS, AT_A_TIME, stop).map_err(failed)
}

/// Logs what is doubtful: in the configuration, and of the places that are really listened at.
fn warn(loaded: &Loaded, listeners: &[Listener]) {
    let is_of_place = |warning: &Problem| warning.text.starts_with("web.listen: ");
    for warning in loaded.warnings.iter().filter(|one| !is_of_place(one)) {
        tracing::warn!("configuration: {warning}");
    }
    for problem in &loaded.job_problems {
        tracing::warn!("configuration: {problem}; {}", web::NOT_JUDGED);
    }
    for place in listeners.iter().filter_map(Listener::address) {
        if let Some(why) = loaded.config.web.open_to_others(place) {
            tracing::warn!("{why}");
        }
    }
}
