//! The rules for a pipe(8) service that runs onedrop. They read the facts and state the problem,
//! its effect and the change to make.

use std::path::{Path, PathBuf};

use nix::unistd::AccessFlags;

use super::access::{self, Credentials};
use super::command::OnedropCommand;
use super::master::{Attributes, MasterService};
use super::postconf::Postconf;
use super::{ExpectedPostfix, Setup, routes, time_limit};
use crate::check::finding::{Remarks, Severity};
use crate::check::shown;
use onedrop_site::command_line::{Cli, CliCommand, DeliverArgs};
use onedrop_site::config::DEFAULT_FILE;

/// Flags of pipe(8) that a delivery agent should not be given.
const FLAGS: [(char, Severity, &str); 5] = [
    ('F', Severity::Warning, "prepends an mbox \"From \" line, which Onedrop only takes out again"),
    ('>', Severity::Error, "changes the message: lines that begin with \"From \" get a \">\""),
    ('.', Severity::Error, "changes the message: lines that begin with \".\" get another"),
    ('B', Severity::Warning, "changes the message: a blank line is added"),
    (
        'q',
        Severity::Warning,
        "quotes unusual addresses in argv, and no account has a name in quotes",
    ),
];

/// All flags of pipe(8).
const KNOWN_FLAGS: &str = "BDFORXhqu.>";

/// Macros of pipe(8) that stand for a recipient: it repeats a word that has one for each of them,
/// and not the word before.
const PER_RECIPIENT: [&str; 6] =
    ["${recipient}", "${original_recipient}", "${mailbox}", "${user}", "${extension}", "${domain}"];

/// A pipe(8) service that runs onedrop.
#[derive(Debug)]
pub(super) struct PipeTransport {
    pub(super) service: MasterService,
    attributes: Attributes,
    command: OnedropCommand,
    facts: HostFacts,
}

/// What other services and the host state about a transport.
#[derive(Debug, Default)]
struct HostFacts {
    /// `NAME_destination_recipient_limit` as the queue manager sees it.
    recipient_limit: String,
    /// `NAME_time_limit` as pipe(8) sees it.
    time_limit: String,
    /// Why pipe(8) runs nothing as `user=`, if so.
    refused_user: Option<String>,
    /// The configuration file that its deliveries read.
    config_file: PathBuf,
    /// Why the program cannot be run, if so.
    cannot_run: Option<String>,
    /// Accesses that a delivery needs and the transport's user does not have, a phrase each.
    lacks: Vec<String>,
}

impl PipeTransport {
    /// Reads the service of master.cf; `None` if it does not run onedrop.
    pub(super) fn read(service: &MasterService) -> Option<PipeTransport> {
        let attributes = Attributes::read(&service.arguments);
        let command = OnedropCommand::find(&attributes.argv)?;
        let (service, facts) = (service.clone(), HostFacts::default());
        Some(PipeTransport { service, attributes, command, facts })
    }

    pub(super) fn add_facts(
        &mut self,
        postconf: &Postconf,
        setup: &Setup,
        ours: &ExpectedPostfix,
    ) -> Result<(), String> {
        let limit = |overrides: &[(String, String)], name, default| {
            postconf.own_or_default(overrides, &self.service.name, name, default)
        };
        let credentials =
            Credentials::of_pipe(self.attributes.get("user"), setup.value("mail_owner"));
        let config_file = self.config_file(setup);
        // The content of another configuration file is not known here.
        let config = ours.config.as_ref().filter(|_| config_file == ours.config_file);
        let wanted = access::wanted(&config_file, config);
        self.facts = HostFacts {
            recipient_limit: limit(
                setup.queue_manager(),
                "destination_recipient_limit",
                "default_destination_recipient_limit",
            )?,
            time_limit: limit(&self.service.overrides, "time_limit", "command_time_limit")?,
            lacks: credentials.as_ref().map_or(vec![], |one| one.lacks(&wanted, postconf.until)),
            refused_user: credentials.err(),
            config_file,
            cannot_run: self.cannot_run(),
        };
        Ok(())
    }

    /// The configuration file of a delivery, found with Postfix's environment and working folder.
    fn config_file(&self, setup: &Setup) -> PathBuf {
        let mut exported = setup.value("export_environment").split([',', ' ', '\t']);
        let exported = exported.find_map(|setting| setting.strip_prefix("ONEDROP_CONFIG="));
        let file = self.command.config().or(exported.map(Path::new));
        let folder = self.attributes.get("directory").unwrap_or(setup.value("queue_directory"));
        access::canonical(&Path::new(folder).join(file.unwrap_or(Path::new(DEFAULT_FILE))))
    }

    /// Whether its deliveries read this configuration file.
    pub(super) fn reads(&self, config_file: &Path) -> bool {
        self.facts.config_file == config_file
    }

    fn cannot_run(&self) -> Option<String> {
        let program = Path::new(self.command.program());
        if !program.is_absolute() || self.attributes.get("chroot").is_some() {
            return None;
        }
        match program.metadata() {
            Err(error) => Some(shown(&error)),
            Ok(found) => {
                let runs =
                    found.is_file() && nix::unistd::access(program, AccessFlags::X_OK).is_ok();
                (!runs).then(|| "not an executable file".to_owned())
            }
        }
    }

    /// Remarks about the service. The last one names the routes to it; the first one summarizes it
    /// if nothing needs a change.
    pub(super) fn judged(&self, setup: &Setup, ours: &ExpectedPostfix) -> Remarks {
        let mut remarks = Remarks::default();
        let (facts, flags) = (&self.facts, &self.attributes.flags);
        self.service(setup, &mut remarks);
        self.command(&mut remarks);
        self.arguments(&mut remarks);
        self.recipient_limit(setup, &mut remarks);
        let time = format!("{}_time_limit", self.service.name);
        time_limit(&time, &facts.time_limit, ours, &mut remarks);
        self.attributes(setup, &mut remarks);
        if self.command.delivery().is_some() && facts.config_file != ours.config_file {
            let (read, checked) = (facts.config_file.display(), ours.config_file.display());
            remarks.warning(format!(
                "deliveries read {read}, and this check read {checked}; check with --config \
                 {read}, or name the other in argv"
            ));
        }
        variables(setup, ours, &mut remarks);
        for (flag, severity, what) in FLAGS.iter().filter(|(flag, ..)| flags.contains(*flag)) {
            remarks.add(*severity, format!("flags={flags}: {flag} {what}; leave it out"));
        }
        for lack in &facts.lacks {
            remarks.error(format!("user={lack}; every message waits until it can"));
        }
        self.route(setup, &mut remarks);
        remarks.summarize(|| {
            let user = self.attributes.get("user").unwrap_or_default();
            let (program, limit) = (self.command.program(), &facts.time_limit);
            format!("runs {program} deliver as {user}, one recipient at a time, time limit {limit}")
        });
        remarks
    }

    fn service(&self, setup: &Setup, remarks: &mut Remarks) {
        if self.service.unprivileged != "n" {
            remarks.error(
                "the column \"unpriv\" of master.cf is not n, so pipe(8) cannot become the user of \
                 user=, and every message waits; set it to n",
            );
        }
        if self.service.chroot == "y" {
            remarks.error(format!(
                "the column \"chroot\" of master.cf means y, so the program and its configuration \
                 are looked for inside {}, and every message waits; set it to n",
                setup.value("queue_directory")
            ));
        }
        if let Some(why) = &self.facts.refused_user {
            remarks.error(format!(
                "{why}, and every message waits; set user= to a user of Onedrop's own"
            ));
        }
    }

    /// The program, and how it is started.
    fn command(&self, remarks: &mut Remarks) {
        let command = &self.command;
        if let Some(why) = &self.facts.cannot_run {
            let program = command.program();
            remarks.error(format!("argv={program}: {why}; every message waits until it is there"));
        }
        match command.before.first() {
            None => {}
            Some(through) if command.is_shell_text() => remarks.error(format!(
                "argv starts onedrop by a text for {through}: addresses become part of it, and \
                 senders choose theirs; write argv=/usr/bin/onedrop deliver ..."
            )),
            Some(through) => remarks.warning(format!(
                "argv starts onedrop through {through}: should that fail with another status than \
                 71 or 75, Postfix returns the mail to its sender; start onedrop itself"
            )),
        }
        match &command.cli {
            _ if command.is_shell_text() => {}
            Ok(Cli { command: CliCommand::Deliver(_), .. }) => {}
            Ok(_) => remarks.error(
                "argv runs another command than \"onedrop deliver\": nothing is delivered, and \
                 every message waits",
            ),
            Err(why) => remarks.error(format!("argv is refused, and every message waits: {why}")),
        }
    }

    /// What the command line says of the message; nothing if it is no delivery.
    fn arguments(&self, remarks: &mut Remarks) {
        let flags = &self.attributes.flags;
        let delivery = self.command.delivery();
        if let Some(delivery) = delivery {
            recipient(delivery, flags.contains('D'), remarks);
        }
        let joined = |word: &&String| word.starts_with("-f${sender}");
        if let Some(joined) = self.command.words.iter().find(joined) {
            remarks.error(format!(
                "argv has {joined}: for a bounce that is -f alone, which takes the next word; \
                 write -f ${{sender}}"
            ));
        }
        let Some(delivery) = delivery else { return };
        if delivery.sender.is_none() && !flags.contains('R') {
            remarks.warning(
                "argv lacks -f ${sender}: the sender would be read from the message; write -f \
                 ${sender}",
            );
        }
        if delivery.size.is_none() {
            remarks.warning(
                "argv lacks --size ${size}: a message that is cut on its way to onedrop cannot be \
                 told from a whole one",
            );
        }
        if delivery.queue_id.as_deref().unwrap_or_default().is_empty() {
            remarks
                .ok("argv lacks --queue-id ${queue_id}: \"onedrop trace QUEUE-ID\" finds nothing");
        }
    }

    fn recipient_limit(&self, setup: &Setup, remarks: &mut Remarks) {
        // local(8) asks for one recipient at a time.
        let by = routes::names_to(setup, &self.service.name);
        let is_locals = |name: &&str| LOCALS.contains(name);
        if !by.is_empty() && by.iter().all(is_locals) && routes::maps(setup).is_empty() {
            return;
        }
        let limit = self.facts.recipient_limit.as_str();
        let name = format!("{}_destination_recipient_limit", self.service.name);
        let flags = &self.attributes.flags;
        let lost = match self.service.own(&name) {
            Some(_) => " (-o in master.cf does not reach the queue manager)",
            None => "",
        };
        let has_recipient = |word: &&String| PER_RECIPIENT.iter().any(|one| word.contains(*one));
        let mut words = self.command.words.iter().filter(has_recipient);
        if limit == "1" {
        } else if flags.contains(['D', 'O']) {
            remarks.error(format!(
                "flags={flags} and {name} is {limit}{lost}: Postfix defers every message with \
                 several recipients (4.3.5), because D and O need a limit of 1 (pipe(8)); add \
                 {name} = 1 to main.cf"
            ));
        } else if let Some(word) = words.clone().find(|word| !word.starts_with('-')) {
            remarks.error(format!(
                "{name} is {limit}{lost}: for several recipients pipe(8) repeats the word {word} \
                 alone (-d a b), which onedrop refuses (usage), and every message to several waits \
                 until Postfix returns it; add {name} = 1 to main.cf"
            ));
        } else if words.next().is_some() {
            remarks.warning(format!(
                "{name} is {limit}{lost}: one process gets several recipients, and all of them \
                 wait or are returned when one fails; add {name} = 1 to main.cf"
            ));
        }
    }

    /// The attributes that decide where the message goes and how it looks.
    fn attributes(&self, setup: &Setup, remarks: &mut Remarks) {
        let attributes = &self.attributes;
        let flags = &attributes.flags;
        if !flags.contains('R') {
            remarks.warning(format!(
                "flags={flags} lacks R: the message has no Return-Path field; write flags={flags}R"
            ));
        }
        if let Some(unknown) = flags.chars().find(|flag| !KNOWN_FLAGS.contains(*flag)) {
            remarks.error(format!(
                "flags={flags}: pipe(8) does not know {unknown}, and every message waits"
            ));
        }
        let null_sender = match attributes.get("null_sender") {
            Some("") => None,
            None => Some("no null_sender=: bounces come with the sender MAILER-DAEMON".to_owned()),
            Some(other) => Some(format!("null_sender={other}: bounces come with that sender")),
        };
        if let Some(what) = null_sender {
            remarks.warning(format!(
                "{what} instead of the null sender; write null_sender= with nothing behind it"
            ));
        }
        let size = attributes.get("size").unwrap_or_default();
        if let Some(limit) = size.parse().ok().and_then(|own| setup.takes_more_than(own)) {
            remarks.warning(format!(
                "size={size} is less than {limit}: Postfix takes larger messages and returns them \
                 here (5.2.3); leave size= out"
            ));
        }
        if let Some(eol) = attributes.get("eol")
            && !["\\n", "\\r\\n", "\\012", "\\015\\012"].contains(&eol)
        {
            remarks.error(format!(
                "eol={eol} changes the message: its lines end in something else; leave eol= out"
            ));
        }
    }

    fn route(&self, setup: &Setup, remarks: &mut Remarks) {
        let name = &self.service.name;
        let (by, maps) = (routes::to(setup, name), routes::maps(setup));
        if !by.is_empty() {
            remarks.ok(format!("gets mail by {}", by.join(", ")));
        } else if !maps.is_empty() {
            remarks.ok(format!("gets mail only if a table says so ({})", maps.join(", ")));
        } else if let Some(other) = setup.lmtp.iter().find(|lmtp| !lmtp.routes.is_empty()) {
            remarks.ok(format!("nothing leads mail to it; {} gets it", other.service.name));
        } else {
            remarks.warning(format!(
                "nothing leads mail to it; set virtual_transport = {name}, or name it in \
                 transport_maps"
            ));
        }
    }
}

/// The parameters by which local(8) leads mail to a transport.
const LOCALS: [&str; 2] = ["mailbox_transport", "fallback_transport"];

fn recipient(delivery: &DeliverArgs, is_in_a_field: bool, remarks: &mut Remarks) {
    let has = |name: &str| delivery.recipients.iter().any(|recipient| recipient.contains(name));
    let Some(given) = delivery.recipients.first() else {
        return match is_in_a_field {
            true => remarks.warning(
                "argv lacks -d ${recipient}: it is taken from the Delivered-To field of flags=D; \
                 write -d ${recipient}",
            ),
            false => remarks.error(
                "argv lacks -d ${recipient}: the recipient would be read from the message, where \
                 its sender can write one",
            ),
        };
    };
    let why = if has("${recipient}") || has("${user}@${domain}") || has("${mailbox}@${domain}") {
        return;
    } else if has("${user}") || has("${mailbox}") {
        "the domain is lost, and accounts of several domains are mixed up"
    } else if has("${original_recipient}") {
        "that is the address before aliases and other rewriting"
    } else {
        "every message goes to the same account, whoever it was for"
    };
    remarks.warning(format!("argv has -d {given}: {why}; write -d ${{recipient}}"));
}

/// Variables of ours that deliveries do not get.
fn variables(setup: &Setup, ours: &ExpectedPostfix, remarks: &mut Remarks) {
    let exported: Vec<_> = setup.value("export_environment").split([',', ' ', '\t']).collect();
    let is_exported = |name: &str| exported.iter().any(|word| word.split('=').next() == Some(name));
    let here: Vec<_> =
        ours.variables.iter().filter(|name| !is_exported(name)).map(String::as_str).collect();
    if !here.is_empty() {
        remarks.warning(format!(
            "{} {} set for this check, and Postfix gives deliveries only what export_environment \
             names",
            here.join(", "),
            if here.len() == 1 { "is" } else { "are" }
        ));
    }
}
