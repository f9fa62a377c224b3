//! The local Postfix in `onedrop check`: which services and parameters run onedrop, and whether
//! they lose, return or change messages. First the facts are gathered from `postconf`, the user
//! database and the file system; then rules without I/O judge them (`transport.rs` for pipe(8),
//! `lmtp.rs` for lmtp(8), `site.rs`, `domains.rs`). Nothing is changed.
//!
//! Sources: pipe(8), lmtp(8), local(8), master(5), postconf(5); Postfix's src/pipe/pipe.c,
//! src/util/exec_command.c.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::finding::{Finding, Remarks, Severity};
use super::program;
use onedrop_core::os::host_name;
use onedrop_site::config::{Config, DEFAULT_FILE, Listen, Loaded};
use onedrop_site::site_names::{self, SiteNames};

mod access;
mod command;
mod domains;
mod lmtp;
mod master;
mod postconf;
mod routes;
mod site;
mod transport;

use lmtp::LmtpTransport;
use master::MasterService;
use postconf::{Parameters, Postconf};
use site::MailboxCommand;
use transport::PipeTransport;

/// The socket of systemd/onedrop-lmtp.socket.
pub(super) const SOCKET: &str = "/run/onedrop/lmtp.sock";
/// The socket of systemd/onedrop-users.socket.
pub(super) const USERS: &str = "/run/onedrop/users.sock";

/// Further parameters of main.cf.
const MAIN: [&str; 10] = [
    "compatibility_level",
    "config_directory",
    "enable_long_queue_ids",
    "export_environment",
    "mail_owner",
    "maximal_queue_lifetime",
    "message_size_limit",
    "myhostname",
    "queue_directory",
    "soft_bounce",
];

/// What Postfix is compared with.
#[derive(Debug, Clone)]
pub(super) struct ExpectedPostfix {
    /// `None` if the configuration has errors.
    config: Option<Config>,
    /// The configuration file that is checked.
    config_file: PathBuf,
    /// `ONEDROP...` variables that are set for this check.
    variables: Vec<String>,
    /// How long the guard of `store.lmtp` remembers, if it was seen.
    pub(super) guard_remembers: Option<Duration>,
}

impl ExpectedPostfix {
    pub(super) fn new(loaded: Option<&Loaded>, config_file: &Path) -> ExpectedPostfix {
        let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
        ExpectedPostfix {
            config: loaded.map(|loaded| loaded.config.clone()),
            config_file: access::canonical(config_file),
            variables: names.filter(|name| name.starts_with("ONEDROP__")).collect(),
            guard_remembers: None,
        }
    }

    /// Whether it is what deliveries read that name no other.
    fn is_the_hosts(&self) -> bool {
        self.config_file == access::canonical(Path::new(DEFAULT_FILE))
    }

    /// The LMTP server's possible places: the socket of onedrop-lmtp.socket, and the configured
    /// ones.
    fn places(&self) -> Vec<Listen> {
        let mut places = vec![Listen::Unix(SOCKET.into())];
        if let Some(config) = &self.config {
            places.extend(config.deliver.via.clone().map(Listen::Unix));
            places.extend(config.lmtp.listen.iter().cloned());
        }
        places
    }
}

/// The relevant part of a Postfix configuration.
#[derive(Debug, Default)]
struct Setup {
    /// main.cf and Postfix's defaults, with `$name` expanded.
    main: Parameters,
    /// Every service of master.cf.
    services: Vec<MasterService>,
    /// The pipe(8) services that run onedrop.
    transports: Vec<PipeTransport>,
    /// The lmtp(8) services that hand mail to our server.
    lmtp: Vec<LmtpTransport>,
    /// The `mailbox_command`s that run onedrop.
    mailbox_commands: Vec<MailboxCommand>,
    /// What Onedrop takes for the site's own names.
    names: SiteNames,
}

impl Setup {
    /// # Errors
    /// Postfix's configuration cannot be read.
    fn gather(postconf: &Postconf, ours: &ExpectedPostfix) -> Result<Setup, String> {
        let names = [&MAIN[..], &routes::PARAMETERS, &routes::MAPS].concat();
        let mut main = postconf.values(&[], names.into_iter().chain(domains::parameters()))?;
        // This one is not expanded: its $names are for a shell.
        main.extend(postconf.as_written(&["mailbox_command", "mailbox_command_maps"])?);
        let mut setup = Setup::new(main, &postconf.services()?);
        setup.mailbox_commands = site::mailbox_commands(&setup, postconf)?;
        let mut pipes = setup.pipes();
        for transport in &mut pipes {
            transport.add_facts(postconf, &setup, ours)?;
        }
        setup.transports = pipes;
        if let Some(config) = &ours.config {
            let folder = Path::new(setup.value("config_directory"));
            setup.names = site_names::in_folder(config, &host_name(), folder);
        }
        setup.lmtp = lmtp::transports(&setup, postconf, &ours.places())?;
        Ok(setup)
    }

    /// The parameters and the services of master.cf, as postconf(1) prints these.
    fn new(main: Parameters, master: &str) -> Setup {
        let mut setup = Setup { main, services: master::services(master), ..Setup::default() };
        // COMPATIBILITY_README, "chroot=y".
        let level = setup.value("compatibility_level").split('.').next().unwrap_or_default();
        let chroot = if level.parse().unwrap_or(0) < 1 { "y" } else { "n" };
        for service in setup.services.iter_mut().filter(|service| service.chroot == "-") {
            service.chroot = chroot.to_owned();
        }
        setup
    }

    /// A parameter's value; empty if Postfix does not know it.
    fn value(&self, name: &str) -> &str {
        self.main.get(name).map_or("", String::as_str)
    }

    /// The setting by which Postfix takes larger messages than of `own` bytes; 0 is no limit.
    fn takes_more_than(&self, own: u64) -> Option<String> {
        let limit = self.value("message_size_limit");
        let all: u64 = limit.parse().ok()?;
        let none = if all == 0 { " (none)" } else { "" };
        let takes_more = own != 0 && (all == 0 || own < all);
        takes_more.then(|| format!("message_size_limit = {limit}{none}"))
    }

    /// The services of this daemon.
    fn services_of(&self, daemon: &str) -> impl Iterator<Item = &MasterService> {
        self.services.iter().filter(move |service| service.command == daemon)
    }

    /// The pipe(8) services that run onedrop, without facts about the host.
    fn pipes(&self) -> Vec<PipeTransport> {
        self.services_of("pipe").filter_map(PipeTransport::read).collect()
    }

    /// Whether a service or `mailbox_command` delivers by the configuration of `ours`, or may.
    fn leads_to(&self, ours: &ExpectedPostfix) -> bool {
        let by_pipe = self.transports.iter().any(|one| one.reads(&ours.config_file));
        let by_local = self.mailbox_commands.iter().any(|one| one.reads(&ours.config_file));
        // The socket of systemd's unit is that of the host's own configuration.
        let listens = ours.is_the_hosts() || ours.places().len() > 1;
        by_pipe || by_local || (listens && (!self.lmtp.is_empty() || self.may_lead_unseen()))
    }

    /// Whether an lmtp(8) service may get mail for our server by what is not looked into: a table,
    /// or a host's name.
    fn may_lead_unseen(&self) -> bool {
        let (folder, named) = (self.value("queue_directory"), routes::all(self));
        let is_unknown = |service: &MasterService| {
            named.iter().any(|route| {
                route.transport == service.name
                    && routes::next_hop(route.next_hop, folder, service.chroot == "y").is_none()
            })
        };
        self.services_of("lmtp").any(|one| !routes::maps(self).is_empty() || is_unknown(one))
    }

    /// The `-o` settings of the queue manager, which sees no other service's.
    fn queue_manager(&self) -> &[(String, String)] {
        let is_one = |service: &&MasterService| matches!(&*service.command, "qmgr" | "oqmgr");
        self.services.iter().find(is_one).map_or(&[], |service| &service.overrides)
    }
}

/// Findings about the Postfix whose configuration is in `folder`, or this host's. No program runs
/// longer than `time`.
pub(super) fn findings(
    folder: Option<&Path>,
    ours: &ExpectedPostfix,
    time: Duration,
) -> Vec<Finding> {
    // A host may have the package and not use it; a named folder must be readable.
    let (no_program, unreadable) = match folder {
        None => (Severity::Ok, Severity::Warning),
        Some(_) => (Severity::Error, Severity::Error),
    };
    let Some(program) = program::find("postconf") else {
        let text = match folder {
            None => "none on this host",
            Some(_) => "no program postconf in PATH or /usr/sbin",
        };
        return vec![Finding::new(no_program, "postfix", text)];
    };
    let folder = folder.map(Path::to_owned);
    let postconf = Postconf { program, folder, until: Instant::now() + time };
    match Setup::gather(&postconf, ours) {
        Ok(setup) => judged(&setup, ours),
        Err(why) => vec![Finding::new(unreadable, "postfix", why)],
    }
}

/// Whether the Postfix of this host delivers by this configuration; true if that cannot be found
/// out.
pub fn leads_to(loaded: &Loaded, until: Instant) -> bool {
    let Some(file) = loaded.files.first() else { return true };
    let ours = ExpectedPostfix::new(Some(loaded), file);
    let Some(program) = program::find("postconf") else { return true };
    let postconf = Postconf { program, folder: None, until };
    Setup::gather(&postconf, &ours).map_or(true, |setup| setup.leads_to(&ours))
}

/// The findings about `setup`; no I/O.
fn judged(setup: &Setup, ours: &ExpectedPostfix) -> Vec<Finding> {
    let pipes = setup.transports.iter().map(|pipe| (&pipe.service.name, pipe.judged(setup, ours)));
    let servers = setup.lmtp.iter().map(|lmtp| (&lmtp.service.name, lmtp.judged(setup, ours)));
    let mut site = Remarks::default();
    site::judged(setup, ours, &mut site);
    domains::judged(setup, ours, &mut site);
    let folder = Path::new(setup.value("config_directory"));
    let (master, main) = (folder.join("master.cf"), folder.join("main.cf"));
    let of_services = pipes.chain(servers).flat_map(|(name, remarks)| {
        remarks.findings("postfix", &format!("transport {name}: ")).collect::<Vec<_>>()
    });
    of_services
        .map(|finding| finding.in_file(&master))
        .chain(site.findings("postfix", "").map(|finding| finding.in_file(&main)))
        .collect()
}

/// The findings for these outputs of postconf (main.cf, master.cf), without I/O.
pub fn of_output(main: &str, master: &str) -> Vec<Finding> {
    let mut setup = Setup::new(postconf::pairs(main), master);
    setup.transports = setup.pipes();
    for route in routes::all(&setup) {
        for is_chrooted in [false, true] {
            let place =
                routes::next_hop(route.next_hop, setup.value("queue_directory"), is_chrooted);
            let _ =
                place.is_some_and(|place| routes::leads_to(&place, &[Listen::Unix(SOCKET.into())]));
        }
    }
    let ours = ExpectedPostfix {
        config: Some(Config::default()),
        config_file: PathBuf::from("/etc/onedrop/onedrop.toml"),
        variables: Vec::new(),
        guard_remembers: None,
    };
    judged(&setup, &ours)
}

/// Seconds of a Postfix time such as `1000s` or `2h`; without a unit they are seconds.
fn seconds(time: &str) -> Option<u64> {
    let time = time.trim();
    let (number, unit) = time.split_at(time.trim_end_matches(char::is_alphabetic).len());
    let unit = match unit.to_ascii_lowercase().as_str() {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

/// Time that a delivery may take to end after its deadline, on a busy host.
const MARGIN_SECS: u64 = 5;

/// A remark if `limit`, the value of `parameter`, does not leave a delivery the time to end.
fn time_limit(parameter: &str, limit: &str, ours: &ExpectedPostfix, remarks: &mut Remarks) {
    let Some(secs) = seconds(limit) else {
        return remarks.error(format!("{parameter} = {limit} is not a time"));
    };
    let Some(config) = &ours.config else { return };
    let deadline = config.limits.deadline_secs;
    let least = deadline + MARGIN_SECS;
    if secs < least {
        remarks.error(format!(
            "{parameter} = {limit} ends before a delivery does (limits.deadline_secs = \
             {deadline}), and then Postfix returns the mail to its sender; set it to {least}s or \
             more, or lower limits.deadline_secs"
        ));
    }
}
