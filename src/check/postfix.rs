//! The local Postfix in `onedrop check`: which services and parameters run onedrop, and whether
//! they lose, return or change messages. `facts.rs` gathers facts from `postconf` and the user
//! database; rules without I/O judge them (`transport.rs` for pipe(8), `lmtp.rs` for
//! lmtp(8), `site.rs`, `domains.rs`, `recipients.rs`). Nothing is changed.
//!
//! Sources: pipe(8), lmtp(8), local(8), master(5), postconf(5); Postfix's src/pipe/pipe.c,
//! src/util/exec_command.c.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::finding::{Finding, Remarks, Severity};
use crate::config::{Config, Listen, Loaded};

mod access;
mod ask;
mod command;
mod domains;
mod facts;
mod lmtp;
mod master;
mod recipients;
mod routes;
mod site;
mod transport;

use command::OnedropCommand;
pub use command::{Arguments, Understand, Understood};

/// The socket of systemd/onedrop-lmtp.socket.
const SOCKET: &str = "/run/onedrop/lmtp.sock";

/// What Postfix is compared with.
#[derive(Debug, Clone)]
pub(super) struct ExpectedPostfix {
    /// `None` if the configuration has errors.
    config: Option<Config>,
    /// The configuration file that is checked.
    config_file: PathBuf,
    /// `ONEDROP...` variables that are set for this check.
    variables: Vec<String>,
    understand: Understand,
}

impl ExpectedPostfix {
    pub(super) fn new(
        loaded: Option<&Loaded>,
        config_file: &Path,
        understand: Understand,
    ) -> ExpectedPostfix {
        let names = std::env::vars_os().map(|(name, _)| name.to_string_lossy().into_owned());
        ExpectedPostfix {
            config: loaded.map(|loaded| loaded.config.clone()),
            config_file: facts::canonical(config_file),
            variables: names.filter(|name| name.starts_with("ONEDROP__")).collect(),
            understand,
        }
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
    folder: PathBuf,
    /// main.cf and Postfix's defaults, with `$name` expanded.
    main: BTreeMap<String, String>,
    /// Every service of master.cf.
    services: Vec<master::MasterService>,
    /// The pipe(8) services that run onedrop.
    transports: Vec<PipeTransport>,
    /// The lmtp(8) services that hand mail to our server.
    lmtp: Vec<Lmtp>,
    /// The `mailbox_command`s that run onedrop.
    mailbox_commands: Vec<MailboxCommand>,
}

impl Setup {
    /// A parameter's value; empty if Postfix does not know it.
    fn value(&self, name: &str) -> &str {
        self.main.get(name).map_or("", String::as_str)
    }
}

/// A pipe(8) service that runs onedrop.
#[derive(Debug)]
struct PipeTransport {
    service: master::MasterService,
    attributes: master::Attributes,
    command: OnedropCommand,
    /// `NAME_destination_recipient_limit` as the queue manager sees it.
    recipient_limit: String,
    /// `NAME_time_limit` as pipe(8) sees it.
    time_limit: String,
    rights: UserRights,
    /// The configuration file that its deliveries read.
    config_file: PathBuf,
    /// Why the program cannot be run, if so.
    cannot_run: Option<String>,
    /// Accesses that a delivery needs and the transport's user does not have, each in words.
    lacks: Vec<String>,
}

impl PipeTransport {
    /// Reads the service of master.cf; `None` if it does not run onedrop. Facts about the host are
    /// added later.
    fn read(service: &master::MasterService, understand: Understand) -> Option<PipeTransport> {
        let attributes = master::Attributes::read(&service.arguments);
        let command = OnedropCommand::find(&attributes.argv, understand)?;
        Some(PipeTransport {
            service: service.clone(),
            recipient_limit: String::new(),
            time_limit: String::new(),
            rights: UserRights::Fine,
            config_file: command.delivery().and_then(|one| one.config.clone()).unwrap_or_default(),
            cannot_run: None,
            lacks: Vec::new(),
            attributes,
            command,
        })
    }
}

/// An lmtp(8) service that hands mail to our server.
#[derive(Debug)]
struct Lmtp {
    service: master::MasterService,
    /// The last `flags=` of the service.
    flags: String,
    /// Parameters as the service sees them.
    values: BTreeMap<String, String>,
    /// `NAME_destination_recipient_limit` and `NAME_destination_concurrency_limit` as the queue
    /// manager sees them.
    recipient_limit: String,
    concurrency_limit: String,
    /// The settings that route mail to it, as written.
    routes: Vec<String>,
    /// The sockets without a listener, and the error of connecting.
    deaf: Vec<(PathBuf, String)>,
    /// The sockets that Postfix's own user may not connect to, in words.
    lacks: Vec<String>,
}

/// Whether pipe(8) accepts a `user=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UserRights {
    Fine,
    NotSet,
    Unknown,
    Root,
    MailOwner,
}

/// A `mailbox_command` that runs onedrop.
#[derive(Debug)]
struct MailboxCommand {
    /// `main.cf`, or the service that overrides it.
    place: String,
    text: String,
    command: OnedropCommand,
    /// `local_command_shell`; if empty, a shell runs only if the text needs one.
    shell: String,
    time_limit: String,
}

/// Findings about the Postfix whose configuration is in `folder`, or this host's. No program runs
/// longer than `time`.
pub(super) fn findings(
    folder: Option<&Path>,
    ours: &ExpectedPostfix,
    time: Duration,
) -> Vec<Finding> {
    let Some(postconf) = ask::find_postconf(std::env::var_os("PATH").as_deref()) else {
        return match folder {
            None => vec![Finding::new(Severity::Ok, "postfix", "none on this host")],
            Some(_) => vec![Finding::new(
                Severity::Error,
                "postfix",
                "no program postconf in PATH or /usr/sbin",
            )],
        };
    };
    let postconf = ask::Postconf::new(postconf, folder, Instant::now() + time);
    match facts::gather(&postconf, ours) {
        Ok(setup) => judged(&setup, ours),
        // A host may have the package and not use it; a named folder must be readable.
        Err(why) => {
            let level = if folder.is_some() { Severity::Error } else { Severity::Warning };
            vec![Finding::new(level, "postfix", why)]
        }
    }
}

/// The findings about `setup`; no I/O.
fn judged(setup: &Setup, ours: &ExpectedPostfix) -> Vec<Finding> {
    let pipes = setup
        .transports
        .iter()
        .map(|pipe| (&pipe.service.name, transport::judged(pipe, setup, ours)));
    let servers =
        setup.lmtp.iter().map(|lmtp| (&lmtp.service.name, lmtp::judged(lmtp, setup, ours)));
    let mut site = Remarks::default();
    site::judged(setup, ours, &mut site);
    domains::judged(setup, ours, &mut site);
    recipients::judged(setup, ours, &mut site);
    let (master, main) = (setup.folder.join("master.cf"), setup.folder.join("main.cf"));
    let of_services = pipes.chain(servers).flat_map(|(name, remarks)| {
        remarks.findings("postfix", &format!("transport {name}: ")).collect::<Vec<_>>()
    });
    of_services
        .map(|finding| finding.in_file(&master))
        .chain(site.findings("postfix", "").map(|finding| finding.in_file(&main)))
        .collect()
}

/// The findings for these outputs of postconf (main.cf, master.cf), without I/O.
pub fn of_output(main: &str, master: &str, understand: Understand) -> Vec<Finding> {
    let mut setup =
        Setup { main: ask::pairs(main), services: master::services(master), ..Setup::default() };
    let pipes = setup.services.iter().filter(|service| service.command == "pipe");
    setup.transports = pipes.filter_map(|pipe| PipeTransport::read(pipe, understand)).collect();
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
        understand,
    };
    judged(&setup, &ours)
}

/// Seconds of a Postfix time such as `1000s` or `2h`; without a unit they are seconds.
fn seconds(time: &str) -> Option<u64> {
    let (number, unit) = match time.trim().char_indices().last()? {
        (_, '0'..='9') => (time.trim(), 1),
        (at, unit) => {
            let seconds = match unit.to_ascii_lowercase() {
                's' => 1,
                'm' => 60,
                'h' => 3600,
                'd' => 86_400,
                'w' => 604_800,
                _ => return None,
            };
            (&time.trim()[..at], seconds)
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let cases = [
            ("1000s", Some(1000)),
            ("5", Some(5)),
            ("2M", Some(120)),
            ("1h", Some(3600)),
            ("1d", Some(86_400)),
        ];
        for (time, expected) in cases {
            assert_eq!(seconds(time), expected, "{time}");
        }
        for time in ["", "s", "-1s", "1.5h", "1y", "99999999999999999w", "1é"] {
            assert_eq!(seconds(time), None, "{time}");
        }
    }
}
