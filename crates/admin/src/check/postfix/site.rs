//! The rules for Postfix as a whole: whether anything runs onedrop, mailbox_command, queue ids.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::command::{OnedropCommand, runs_onedrop};
use super::postconf::Postconf;
use super::{ExpectedPostfix, MARGIN_SECS, Setup, USERS, access, routes, seconds, time_limit};
use crate::check::finding::Remarks;
use onedrop_core::deadline::TIME_FOR_THE_SERVER;
use onedrop_site::command_line::{Cli, CliCommand};
use onedrop_site::config::DEFAULT_FILE;

/// The characters of a command that local(8) runs without a shell (Postfix'
/// src/util/exec_command.c).
const NO_SHELL: &str = "!@%-_=+:,./ \t";

/// A `mailbox_command` that runs onedrop.
#[derive(Debug)]
pub(super) struct MailboxCommand {
    /// `mailbox_command`, or the service that overrides it.
    place: String,
    text: String,
    command: OnedropCommand,
    /// `local_command_shell`; if empty, a shell runs only if the text needs one.
    shell: String,
    time_limit: String,
    /// `local_delivery_status_filter`.
    filter: String,
    /// Of the socket that `--via` names: its path, and why not every user can connect.
    via: Option<(PathBuf, Option<String>)>,
}

impl MailboxCommand {
    /// Whether it reads this configuration file.
    pub(super) fn reads(&self, config_file: &Path) -> bool {
        let named = self.command.config().unwrap_or(Path::new(DEFAULT_FILE));
        access::canonical(named) == config_file
    }
}

/// The `mailbox_command`s that run onedrop, everyone's first.
pub(super) fn mailbox_commands(
    setup: &Setup,
    postconf: &Postconf,
) -> Result<Vec<MailboxCommand>, String> {
    const NAME: &str = "mailbox_command";
    let own = setup.services_of("local").filter_map(|service| {
        let place = format!("-o {NAME} of {} in master.cf", service.name);
        Some((place, service.own(NAME)?, Some(service)))
    });
    let reader = setup.services_of("local").find(|service| service.own(NAME).is_none());
    let everyones = (NAME.to_owned(), setup.value(NAME), reader);
    let mut found = Vec::new();
    for (place, text, reader) in std::iter::once(everyones).chain(own) {
        let words: Vec<_> = text.split_ascii_whitespace().map(str::to_owned).collect();
        let Some(command) = OnedropCommand::find(&words) else { continue };
        let overrides: &[_] = reader.map_or(&[], |reader| &reader.overrides);
        let names = ["command_time_limit", "local_command_shell", "local_delivery_status_filter"];
        let mut values = postconf.values(overrides, names)?;
        let mut value = |name: &str| values.remove(name).unwrap_or_default();
        let [time_limit, shell, filter] = names.map(&mut value);
        let via = command.via().map(|path| (path.to_owned(), not_for_all_users(path)));
        let text = text.to_owned();
        found.push(MailboxCommand { place, text, command, shell, time_limit, filter, via });
    }
    Ok(found)
}

/// Why not every user of this host can connect to the socket at `path`, if so.
fn not_for_all_users(path: &Path) -> Option<String> {
    let why = match std::fs::metadata(path) {
        Err(error) => error.to_string(),
        Ok(file) if !file.file_type().is_socket() => "it is no socket".to_owned(),
        // unix(7): connecting needs the right to write.
        Ok(file) if file.mode() & 0o002 == 0 => {
            format!("its mode {:04o} does not let every user connect", file.mode() & 0o7777)
        }
        Ok(_) => return None,
    };
    Some(why)
}

pub(super) fn judged(setup: &Setup, ours: &ExpectedPostfix, remarks: &mut Remarks) {
    for command in &setup.mailbox_commands {
        mailbox_command(command, ours, remarks);
    }
    let maps = setup.value("mailbox_command_maps");
    if runs_onedrop(maps) {
        remarks.warning(format!(
            "mailbox_command_maps = {maps} runs onedrop; what holds for mailbox_command holds for \
             it"
        ));
    }
    for name in ["onedrop", "onedrop-lmtp"] {
        let is_there = setup.services.iter().any(|service| service.name == name);
        for by in routes::to(setup, name).into_iter().filter(|_| !is_there) {
            remarks.error(format!(
                "{by} names a transport that master.cf does not have: mail waits; add the service \
                 {name}"
            ));
        }
    }
    let runs_none =
        setup.transports.is_empty() && setup.lmtp.is_empty() && setup.mailbox_commands.is_empty();
    match runs_none && !runs_onedrop(maps) {
        true if setup.may_lead_unseen() => remarks.warning(
            "no pipe(8) service's argv and no mailbox_command runs onedrop, and no lmtp(8) service \
             is seen to get mail for its socket; where a table or a host's name leads one there, \
             call it onedrop-lmtp, so that its settings are looked at",
        ),
        true => remarks.warning(
            "nothing in this Postfix runs onedrop: master.cf has no pipe(8) service whose argv \
             does, no lmtp(8) service gets mail for its socket, and mailbox_command does not run \
             it",
        ),
        false => {}
    }
    memory(setup, ours, remarks);
    largest(setup, ours, remarks);
    received_by(setup, ours, remarks);
    if setup.value("enable_long_queue_ids") == "no" {
        remarks.ok("enable_long_queue_ids = no: Postfix uses queue ids again, so \"onedrop trace \
             QUEUE-ID\" may show several messages");
    }
    if setup.value("soft_bounce") == "yes" {
        remarks.ok(
            "soft_bounce = yes: mail for unknown recipients waits in the queue instead of going \
             back",
        );
    }
}

/// What Postfix has taken, and Onedrop refuses, goes back to its sender.
fn largest(setup: &Setup, ours: &ExpectedPostfix, remarks: &mut Remarks) {
    let own = ours.config.as_ref().map_or(0, |config| config.limits.message_bytes);
    if let Some(limit) = setup.takes_more_than(own) {
        remarks.warning(format!(
            "limits.message_bytes = {own} is less than {limit}: Postfix takes larger messages, and \
             onedrop returns them (5.3.4); raise the one, or lower the other"
        ));
    }
}

/// A message may lie in the sender's queue as long as in this one, after an answer that was lost
/// (RFC 5321 section 4.5.4.1, RFC 1047); until then its record should stand.
fn memory(setup: &Setup, ours: &ExpectedPostfix, remarks: &mut Remarks) {
    const DAY: u64 = 86_400;
    let lifetime = setup.value("maximal_queue_lifetime");
    // Without a unit they are days (postconf(5)).
    let secs = match lifetime.parse::<u64>() {
        Ok(days) => days.checked_mul(DAY),
        Err(_) => seconds(lifetime),
    };
    let (Some(secs), Some(config)) = (secs, &ours.config) else { return };
    if let Some(remembers) = ours.guard_remembers
        && remembers.as_secs() < secs.saturating_add(DAY)
    {
        remarks.warning(format!(
            "maximal_queue_lifetime = {lifetime}, and the guard of store.lmtp remembers {} \
             seconds: a copy that comes again later may be forwarded and answered twice, and a \
             filter that Dovecot did not finish stays so; let the guard remember a day longer",
            remembers.as_secs()
        ));
    }
    let days = config.retention.days;
    let least = secs.saturating_mul(2).div_ceil(DAY).saturating_add(1);
    if days < least {
        remarks.warning(format!(
            "maximal_queue_lifetime = {lifetime}, and retention.days = {days}: mail that comes \
             again from a queue may be older than what the ledger remembers, and each such message \
             costs a look into its whole mailbox; set retention.days to {least} or more"
        ));
    }
}

/// What Postfix writes of itself in Received decides how old a message is taken to be.
fn received_by(setup: &Setup, ours: &ExpectedPostfix, remarks: &mut Remarks) {
    let own = setup.value("myhostname").to_owned();
    let overridden = setup.services.iter().filter_map(|service| service.own("myhostname"));
    let mut missing: Vec<&str> = std::iter::once(own.as_str()).chain(overridden).collect();
    missing.retain(|name| !name.is_empty() && !name.contains('$') && !setup.names.has(name));
    missing.dedup();
    if ours.config.is_none() || missing.is_empty() {
        return;
    }
    let names = missing.join(", ");
    remarks.warning(format!(
        "Postfix writes itself as {names} in Received, which is no name that Onedrop knows as the \
         site's own: how old a message is cannot be told, and each one is looked for in its whole \
         mailbox; add it to dedup.received_by"
    ));
}

fn mailbox_command(command: &MailboxCommand, ours: &ExpectedPostfix, remarks: &mut Remarks) {
    let place = &command.place;
    match &command.via {
        Some(via) => by_server(command, via, remarks),
        None => remarks.warning(format!(
            "{place}: local(8) replaces unusual characters of addresses by \"_\", gives neither \
             size nor queue id, and runs onedrop as the recipient's user, who must be able to use \
             the ledger and the store; with \"--via {USERS}\" the server does that in its place"
        )),
    }
    let why = match &command.command.cli {
        _ if !command.shell.is_empty() || needs_shell(&command.text) => {
            remarks.warning(format!(
                "{place}: it is run by a shell (local_command_shell, or characters such as quotes \
                 and $), and should onedrop be missing, the shell's status 127 returns the mail to \
                 its sender; write the program and plain words only: the recipient and sender come \
                 in the environment"
            ));
            None
        }
        Ok(Cli { command: CliCommand::Deliver(_), .. }) => None,
        Ok(_) => Some("it runs another command than \"onedrop deliver\"".to_owned()),
        Err(why) => Some(format!("it is refused: {why}")),
    };
    if let Some(why) = why {
        remarks.error(format!("{place}: {why}; nothing is delivered, and every message waits"));
    }
    match command.via {
        Some(_) => by_server_in_time(&command.time_limit, remarks),
        None => time_limit("command_time_limit", &command.time_limit, ours, remarks),
    }
}

/// Like [`time_limit`], for a command that waits for the server's answer.
fn by_server_in_time(limit: &str, remarks: &mut Remarks) {
    let most = TIME_FOR_THE_SERVER.as_secs();
    if seconds(limit).is_none_or(|secs| secs < most + MARGIN_SECS) {
        remarks.error(format!(
            "command_time_limit = {limit}: the command waits {most} s for the server, and then \
             Postfix would return the mail to its sender; set it to {}s or more",
            most + MARGIN_SECS
        ));
    }
}

/// The command hands the message to the server.
fn by_server(
    command: &MailboxCommand,
    (path, why_not): &(PathBuf, Option<String>),
    remarks: &mut Remarks,
) {
    let (place, path) = (&command.place, path.display());
    match why_not {
        None => remarks.ok(format!(
            "{place}: each user of this host delivers to its own account, by the server at {path}"
        )),
        Some(why) => remarks.error(format!(
            "{place}: {path}: {why}: all mail waits; enable onedrop-users.socket and restart \
             onedrop-lmtp.service"
        )),
    }
    if command.filter.is_empty() {
        remarks.warning(format!(
            "{place}: without local_delivery_status_filter mail is returned if the program cannot \
             begin (a library that is missing: 127); set it to \
             regexp:/usr/share/onedrop/postfix/onedrop-status"
        ));
    }
}

fn needs_shell(text: &str) -> bool {
    !text.chars().all(|c| c.is_ascii_alphanumeric() || NO_SHELL.contains(c))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use onedrop_site::config::Config;

    #[test]
    fn a_guard_that_forgets_before_postfix_gives_up_is_told() {
        let told = |lifetime: &str, days: u64| {
            let mut setup = Setup::default();
            setup.main.insert("maximal_queue_lifetime".to_owned(), lifetime.to_owned());
            let ours = ExpectedPostfix {
                config: Some(Config::default()),
                config_file: Default::default(),
                variables: Vec::new(),
                guard_remembers: Some(Duration::from_secs(days * 86_400)),
            };
            let mut remarks = Remarks::default();
            memory(&setup, &ours, &mut remarks);
            let texts = remarks.findings("postfix", "").map(|finding| finding.text);
            texts.filter(|text| text.contains("the guard of store.lmtp")).collect::<Vec<_>>()
        };
        for (lifetime, enough) in [("5d", 6), ("5", 6), ("36h", 3), ("1w", 8)] {
            assert_eq!(told(lifetime, enough), Vec::<String>::new(), "{lifetime}");
            let short = told(lifetime, enough - 1);
            let said = format!("maximal_queue_lifetime = {lifetime}, and the guard of store.lmtp ");
            assert!(short.iter().any(|text| text.starts_with(&said)), "{lifetime}: {short:?}");
        }
    }
}
