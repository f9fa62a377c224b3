//! Gathers a [`Setup`] from postconf, the user database and the file system.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, Group, User, access};

use super::access::{self, Credentials};
use super::ask::Postconf;
use super::command::OnedropCommand;
use super::master::{self, Attributes, MasterService};
use super::recipients;
use super::routes::{self, Route};
use super::{ExpectedPostfix, Lmtp, MailboxCommand, PipeTransport, Setup, UserRights, lmtp};
use crate::check::bounded::{reach, shown};
use crate::config::{DEFAULT_FILE, Listen};

/// Further parameters of main.cf.
const MAIN: [&str; 9] = [
    "config_directory",
    "enable_long_queue_ids",
    "export_environment",
    "mail_owner",
    "message_size_limit",
    "mydestination",
    "queue_directory",
    "soft_bounce",
    "virtual_mailbox_domains",
];

/// Parameters of an lmtp(8) service.
const LMTP: [&str; 3] = [lmtp::LINE_LENGTH, lmtp::XFORWARD, lmtp::DATA_DONE];

/// Gathers the facts.
///
/// # Errors
/// Postfix's configuration cannot be read.
pub(super) fn gather(postconf: &Postconf, ours: &ExpectedPostfix) -> Result<Setup, String> {
    let places = ours.places();
    let names: Vec<String> = MAIN
        .iter()
        .chain(&recipients::MAIN)
        .chain(&routes::PARAMETERS)
        .chain(&routes::MAPS)
        .map(|name| (*name).to_owned())
        .collect();
    let mut main = postconf.values(&[], &names)?;
    // This one is not expanded: its $names are for a shell.
    main.extend(postconf.as_written(&["mailbox_command", "mailbox_command_maps"])?);
    let services = master::services(&postconf.services()?);
    let mailbox_commands = mailbox_commands(postconf, &main, &services, ours)?;
    let folder = main.get("config_directory").map(PathBuf::from).unwrap_or_default();
    let mut setup =
        Setup { folder, main, mailbox_commands, services: services.clone(), ..Setup::default() };
    let queue_manager =
        services.iter().find(|service| matches!(service.command.as_str(), "qmgr" | "oqmgr"));
    for service in services.iter().filter(|service| service.command == "pipe") {
        if let Some(mut transport) = PipeTransport::read(service, ours.understand) {
            add_facts(&mut transport, postconf, &setup, queue_manager, ours)?;
            setup.transports.push(transport);
        }
    }
    let mut found = Vec::new();
    for service in services.iter().filter(|service| service.command == "lmtp") {
        found.extend(lmtp_service(postconf, &setup, service, queue_manager, &places)?);
    }
    setup.lmtp = found;
    Ok(setup)
}

/// Adds what other services and the host state about the transport.
fn add_facts(
    transport: &mut PipeTransport,
    postconf: &Postconf,
    setup: &Setup,
    queue_manager: Option<&MasterService>,
    ours: &ExpectedPostfix,
) -> Result<(), String> {
    let PipeTransport { service, attributes, command, .. } = &*transport;
    let value = |reader, name, default| own_or_default(postconf, service, reader, name, default);
    let recipient_limit =
        value(queue_manager, "destination_recipient_limit", "default_destination_recipient_limit")?;
    let time_limit = value(Some(service), "time_limit", "command_time_limit")?;
    let user = attributes.user.as_deref();
    let rights = rights(user, setup.value("mail_owner"));
    let config_file = config_file(command, attributes, setup);
    let identity = user.filter(|_| rights == UserRights::Fine).and_then(Credentials::of_pipe);
    // The content of another configuration file is not known here.
    let config = ours.config.as_ref().filter(|_| config_file == ours.config_file);
    let wanted = access::wanted(&config_file, config);
    let lacks = identity.map_or(Vec::new(), |identity| identity.lacks(&wanted, postconf.until()));
    let cannot_run = cannot_run(command, attributes);
    (transport.recipient_limit, transport.time_limit) = (recipient_limit, time_limit);
    (transport.rights, transport.config_file) = (rights, config_file);
    (transport.lacks, transport.cannot_run) = (lacks, cannot_run);
    Ok(())
}

/// `NAME_name` of the service as `reader` sees it, else `default`.
fn own_or_default(
    postconf: &Postconf,
    service: &MasterService,
    reader: Option<&MasterService>,
    name: &str,
    default: &str,
) -> Result<String, String> {
    let names = [format!("{}_{name}", service.name), default.to_owned()];
    let values = postconf.values(reader.map_or(&[], |reader| &reader.overrides), &names)?;
    let value = names.iter().find_map(|name| values.get(name).filter(|value| !value.is_empty()));
    Ok(value.cloned().unwrap_or_default())
}

/// The service, if it takes mail to one of `places`, or has our name and a table may route mail to
/// it.
fn lmtp_service(
    postconf: &Postconf,
    setup: &Setup,
    service: &MasterService,
    queue_manager: Option<&MasterService>,
    places: &[Listen],
) -> Result<Option<Lmtp>, String> {
    let is_named_ours = service.name.starts_with("onedrop");
    let next_hop = |route: &Route<'_>, is_chrooted| {
        routes::next_hop(route.next_hop, setup.value("queue_directory"), is_chrooted)
    };
    let leads_to_us = |place: &Option<Listen>| {
        place.as_ref().is_some_and(|place| routes::leads_to(place, places))
    };
    let (mut routes, mut deaf, mut sockets) = (Vec::new(), Vec::new(), Vec::new());
    for route in routes::all(setup).into_iter().filter(|route| route.transport == service.name) {
        let (written, seen) = (next_hop(&route, false), next_hop(&route, service.chroot == "y"));
        if !is_named_ours && !leads_to_us(&written) && !leads_to_us(&seen) {
            continue;
        }
        routes.push(route.shown);
        if let Some(Listen::Unix(path)) = seen {
            match nobody_listens(&path) {
                Some(why) => deaf.push((path, why)),
                None => sockets.push(access::socket(&path)),
            }
        }
    }
    let by_table = is_named_ours && !routes::maps(setup).is_empty();
    if routes.is_empty() && !by_table {
        return Ok(None);
    }
    let limit = |name: &str| {
        let default = format!("default_{name}");
        own_or_default(postconf, service, queue_manager, name, &default)
    };
    Ok(Some(Lmtp {
        flags: Attributes::read(&service.arguments).flags,
        values: postconf.values(&service.overrides, &LMTP.map(str::to_owned))?,
        recipient_limit: limit("destination_recipient_limit")?,
        concurrency_limit: limit("destination_concurrency_limit")?,
        routes,
        deaf,
        lacks: Credentials::of_daemon(setup.value("mail_owner"))
            .map_or(Vec::new(), |owner| owner.lacks(&sockets, postconf.until())),
        service: service.clone(),
    }))
}

/// Why no server answers at a socket; `None` if one does, or if this user may not connect.
fn nobody_listens(path: &Path) -> Option<String> {
    reach(path)
        .err()
        .filter(|error| error.kind() != io::ErrorKind::PermissionDenied)
        .map(|error| shown(&error))
}

/// As pipe(8) judges `user:group`.
fn rights(user: Option<&str>, mail_owner: &str) -> UserRights {
    let Some(name) = user else { return UserRights::NotSet };
    let (name, group) = name.split_once(':').unwrap_or((name, ""));
    let Ok(Some(user)) = User::from_name(name) else { return UserRights::Unknown };
    let gid = if group.is_empty() {
        Some(user.gid)
    } else {
        Group::from_name(group).ok().flatten().map(|g| g.gid)
    };
    let Some(gid) = gid else { return UserRights::Unknown };
    let owner = User::from_name(mail_owner).ok().flatten();
    if user.uid.is_root() || gid.as_raw() == 0 {
        UserRights::Root
    } else if owner.is_some_and(|owner| owner.uid == user.uid || owner.gid == gid) {
        UserRights::MailOwner
    } else {
        UserRights::Fine
    }
}

/// The configuration file of a delivery, found with Postfix's environment and working folder.
fn config_file(command: &OnedropCommand, attributes: &Attributes, setup: &Setup) -> PathBuf {
    let exported = || {
        let settings = setup.value("export_environment").split([',', ' ', '\t']);
        settings
            .filter_map(|setting| setting.strip_prefix("ONEDROP_CONFIG="))
            .next()
            .map(PathBuf::from)
    };
    let file = command
        .delivery()
        .and_then(|one| one.config.clone())
        .or_else(exported)
        .unwrap_or_else(|| DEFAULT_FILE.into());
    let folder = attributes.directory.as_deref().unwrap_or(setup.value("queue_directory"));
    canonical(&Path::new(folder).join(file))
}

/// The file's canonical name, if it can be resolved.
pub(super) fn canonical(file: &Path) -> PathBuf {
    file.canonicalize().or_else(|_| std::path::absolute(file)).unwrap_or_else(|_| file.to_owned())
}

fn cannot_run(command: &OnedropCommand, attributes: &Attributes) -> Option<String> {
    let program = Path::new(command.program());
    if !program.is_absolute() || attributes.chroot.is_some() {
        return None;
    }
    let runs = program.metadata().map_err(|error| shown(&error)).and_then(|found| {
        let runs = found.is_file() && access(program, AccessFlags::X_OK).is_ok();
        runs.then_some(()).ok_or_else(|| "not an executable file".to_owned())
    });
    runs.err()
}

fn mailbox_commands(
    postconf: &Postconf,
    main: &BTreeMap<String, String>,
    services: &[MasterService],
    ours: &ExpectedPostfix,
) -> Result<Vec<MailboxCommand>, String> {
    let locals = || services.iter().filter(|service| service.command == "local");
    let own = locals().filter_map(|service| {
        let text = service.own("mailbox_command")?;
        Some((format!("-o mailbox_command of {} in master.cf", service.name), text, Some(service)))
    });
    let everyones = main.get("mailbox_command").map(|text| {
        let reader = locals().find(|service| service.own("mailbox_command").is_none());
        ("mailbox_command".to_owned(), text.as_str(), reader)
    });
    let mut found = Vec::new();
    for (place, text, reader) in everyones.into_iter().chain(own) {
        let words: Vec<_> = text.split_ascii_whitespace().map(str::to_owned).collect();
        let Some(command) = OnedropCommand::find(&words, ours.understand) else { continue };
        let names = ["command_time_limit".to_owned(), "local_command_shell".to_owned()];
        let mut values = postconf.values(reader.map_or(&[], |reader| &reader.overrides), &names)?;
        let mut value = |name: &str| values.remove(name).unwrap_or_default();
        let (time_limit, shell) = (value("command_time_limit"), value("local_command_shell"));
        found.push(MailboxCommand { place, text: text.to_owned(), command, shell, time_limit });
    }
    Ok(found)
}
