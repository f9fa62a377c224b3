//! The rules for a pipe(8) service that runs onedrop. They read the facts and state the problem,
//! its effect and the change to make.

use super::command::{Arguments, Understood};
use super::{ExpectedPostfix, PipeTransport, Setup, UserRights, routes, time_limit};
use crate::check::finding::{Remarks, Severity};

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

/// Remarks about `transport`. The last one names the routes to it; the first one summarizes the
/// service if nothing needs a change.
pub(super) fn judged(transport: &PipeTransport, setup: &Setup, ours: &ExpectedPostfix) -> Remarks {
    let mut remarks = Remarks::default();
    service(transport, setup, &mut remarks);
    command(transport, &mut remarks);
    let delivery = transport.command.delivery();
    arguments(transport, delivery, &mut remarks);
    recipient_limit(transport, &mut remarks);
    let time = format!("{}_time_limit", transport.service.name);
    time_limit(&time, &transport.time_limit, ours, &mut remarks);
    attributes(transport, setup, &mut remarks);
    let (read, checked) = (transport.config_file.display(), ours.config_file.display());
    if delivery.is_some() && transport.config_file != ours.config_file {
        remarks.warning(format!(
            "deliveries read {read}, and this check read {checked}; check with --config {read}, or \
             name the other in argv"
        ));
    }
    variables(setup, ours, &mut remarks);
    let flags = &transport.attributes.flags;
    for (flag, severity, what) in FLAGS.iter().filter(|(flag, ..)| flags.contains(*flag)) {
        remarks.add(*severity, format!("flags={flags}: {flag} {what}; leave it out"));
    }
    for lack in &transport.lacks {
        remarks.error(format!("user={lack}; every message waits until it can"));
    }
    route(transport, setup, &mut remarks);
    if remarks.are_all_ok() {
        let user = transport.attributes.user.as_deref().unwrap_or_default();
        let (program, limit) = (transport.command.program(), &transport.time_limit);
        remarks.put_first(format!(
            "runs {program} deliver as {user}, one recipient at a time, time limit {limit}"
        ));
    }
    remarks
}

fn service(transport: &PipeTransport, setup: &Setup, remarks: &mut Remarks) {
    if transport.service.unprivileged != "n" {
        remarks.error(
            "the column \"unpriv\" of master.cf is not n, so pipe(8) cannot become the user of \
             user=, and every message waits; set it to n",
        );
    }
    if transport.service.chroot == "y" {
        remarks.error(format!(
            "the column \"chroot\" of master.cf is y, so the program and its configuration are \
             looked for inside {}, and every message waits; set it to n",
            setup.value("queue_directory")
        ));
    }
    let name = transport.attributes.user.as_deref().unwrap_or_default();
    let what = match transport.rights {
        UserRights::Fine => return,
        UserRights::NotSet => "no user=; pipe(8) needs one".to_owned(),
        UserRights::Unknown => format!("user={name}: there is no such user or group on this host"),
        UserRights::Root => {
            format!("user={name}: pipe(8) runs nothing with the rights of root or group 0")
        }
        UserRights::MailOwner => {
            format!("user={name}: pipe(8) runs nothing with the rights of the mail system's owner")
        }
    };
    remarks.error(format!("{what}, and every message waits; set user= to a user of Onedrop's own"));
}

/// The program, and how it is started.
fn command(transport: &PipeTransport, remarks: &mut Remarks) {
    let command = &transport.command;
    if let Some(why) = &transport.cannot_run {
        let program = command.program();
        remarks.error(format!("argv={program}: {why}; every message waits until it is there"));
    }
    match command.before.first() {
        None => {}
        Some(through) if command.is_shell_text() => remarks.error(format!(
            "argv starts onedrop by a text for {through}: addresses become part of it, and senders \
             choose theirs; write argv=/usr/bin/onedrop deliver ..."
        )),
        Some(through) => remarks.warning(format!(
            "argv starts onedrop through {through}: should that fail with another status than 71 \
             or 75, Postfix returns the mail to its sender; start onedrop itself"
        )),
    }
    match &command.understood {
        _ if command.is_shell_text() => {}
        Understood::Deliver(_) => {}
        Understood::Other => remarks.error(
            "argv runs another command than \"onedrop deliver\": nothing is delivered, and every \
             message waits",
        ),
        Understood::Refused(why) => {
            remarks.error(format!("argv is refused, and every message waits: {why}"));
        }
    }
}

/// What the command line says of the message; `None` where `command` has said why it is none.
fn arguments(transport: &PipeTransport, delivery: Option<&Arguments>, remarks: &mut Remarks) {
    let flags = &transport.attributes.flags;
    if let Some(delivery) = delivery {
        recipient(&delivery.recipients, flags.contains('D'), remarks);
    }
    let joined = |word: &&String| word.starts_with("-f${sender}");
    if let Some(joined) = transport.command.words.iter().find(joined) {
        remarks.error(format!(
            "argv has {joined}: for a bounce that is -f alone, which takes the next word; write \
             -f ${{sender}}"
        ));
    }
    let Some(delivery) = delivery else { return };
    if !delivery.has_sender && !flags.contains('R') {
        remarks.warning(
            "argv lacks -f ${sender}: the sender would be read from the message; write -f \
             ${sender}",
        );
    }
    if !delivery.has_size {
        remarks.warning(
            "argv lacks --size ${size}: a message that is cut on its way to onedrop cannot be told \
             from a whole one",
        );
    }
    if !delivery.has_queue_id {
        remarks.ok("argv lacks --queue-id ${queue_id}: \"onedrop trace QUEUE-ID\" finds nothing");
    }
}

fn recipient(recipients: &[String], is_in_a_field: bool, remarks: &mut Remarks) {
    let has = |name: &str| recipients.iter().any(|recipient| recipient.contains(name));
    let Some(given) = recipients.first() else {
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

fn recipient_limit(transport: &PipeTransport, remarks: &mut Remarks) {
    let limit = transport.recipient_limit.as_str();
    let name = format!("{}_destination_recipient_limit", transport.service.name);
    let flags = &transport.attributes.flags;
    let lost = match transport.service.own(&name) {
        Some(_) => " (-o in master.cf does not reach the queue manager)",
        None => "",
    };
    if limit == "1" {
    } else if flags.contains(['D', 'O']) {
        remarks.error(format!(
            "flags={flags} and {name} is {limit}{lost}: Postfix defers every message with several \
             recipients (4.3.5), because D and O need a limit of 1 (pipe(8)); add {name} = 1 to \
             main.cf"
        ));
    } else if transport.command.words.iter().any(|word| word.contains("${recipient}")) {
        remarks.warning(format!(
            "{name} is {limit}{lost}: one process gets several recipients, and all of them wait or \
             are returned when one fails; add {name} = 1 to main.cf"
        ));
    }
}

/// The attributes that say what becomes of the message.
fn attributes(transport: &PipeTransport, setup: &Setup, remarks: &mut Remarks) {
    let attributes = &transport.attributes;
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
    let null_sender = match attributes.null_sender.as_deref() {
        Some("") => None,
        None => Some("no null_sender=: bounces come with the sender MAILER-DAEMON".to_owned()),
        Some(other) => Some(format!("null_sender={other}: bounces come with that sender")),
    };
    if let Some(what) = null_sender {
        remarks.warning(format!(
            "{what} instead of the null sender; write null_sender= with nothing behind it"
        ));
    }
    let size = attributes.size.as_deref().unwrap_or_default();
    let limit = setup.value("message_size_limit");
    if let (Ok(own), Ok(all)) = (size.parse::<u64>(), limit.parse::<u64>())
        && own != 0
        && (all == 0 || own < all)
    {
        let none = if all == 0 { " (none)" } else { "" };
        remarks.warning(format!(
            "size={size} is less than message_size_limit = {limit}{none}: Postfix takes larger \
             messages and returns them here (5.2.3); leave size= out"
        ));
    }
    if let Some(eol) = attributes.eol.as_deref()
        && !["\\n", "\\r\\n", "\\012", "\\015\\012"].contains(&eol)
    {
        remarks.error(format!(
            "eol={eol} changes the message: its lines end in something else; leave eol= out"
        ));
    }
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

fn route(transport: &PipeTransport, setup: &Setup, remarks: &mut Remarks) {
    let name = &transport.service.name;
    let (by, maps) = (routes::to(setup, name), routes::maps(setup));
    if !by.is_empty() {
        remarks.ok(format!("gets mail by {}", by.join(", ")));
    } else if !maps.is_empty() {
        remarks.ok(format!("gets mail only if a table says so ({})", maps.join(", ")));
    } else if let Some(other) = setup.lmtp.iter().find(|lmtp| !lmtp.routes.is_empty()) {
        remarks.ok(format!("nothing leads mail to it; {} gets it", other.service.name));
    } else {
        remarks.warning(format!(
            "nothing leads mail to it; set virtual_transport = {name}, or name it in transport_maps"
        ));
    }
}
