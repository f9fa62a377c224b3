//! The rules for a pipe(8) service that runs onedrop, in the order of their table. A rule reads the
//! facts and states the problem, its effect and the change to make.

use super::command::Understood;
use super::{Advice, ExpectedPostfix, Level, PipeTransport, Setup, UserRights, routes, time_limit};

type Rule = fn(&PipeTransport, &Setup, &ExpectedPostfix) -> Option<Advice>;

const RULES: [Rule; 21] = [
    column_unprivileged,
    column_chroot,
    user,
    program,
    wrapper,
    arguments,
    recipient,
    recipient_form,
    joined_sender,
    sender,
    size_argument,
    queue_id_argument,
    recipient_limit,
    time,
    return_path_flag,
    unknown_flag,
    null_sender,
    size_attribute,
    end_of_line,
    config_file,
    variables,
];

/// Flags of pipe(8) that a delivery agent should not be given.
const FLAGS: [(char, Level, &str); 5] = [
    ('F', Level::Warning, "prepends an mbox \"From \" line, which Onedrop only takes out again"),
    ('>', Level::Error, "changes the message: lines that begin with \"From \" get a \">\""),
    ('.', Level::Error, "changes the message: lines that begin with \".\" get another"),
    ('B', Level::Warning, "changes the message: a blank line is added"),
    ('q', Level::Warning, "quotes unusual addresses in argv, and no account has a name in quotes"),
];

/// All flags of pipe(8).
const KNOWN_FLAGS: &str = "BDFORXhqu.>";

/// Findings about `transport`. The last one names the routes to it; the first one summarizes the
/// service if nothing needs a change.
pub(super) fn judged(
    transport: &PipeTransport,
    setup: &Setup,
    ours: &ExpectedPostfix,
) -> Vec<Advice> {
    let flags = FLAGS.iter().filter(|(flag, ..)| transport.attributes.flags.contains(*flag)).map(
        |(flag, level, what)| {
            (*level, format!("flags={}: {flag} {what}; leave it out", transport.attributes.flags))
        },
    );
    let mut advice: Vec<Advice> =
        RULES.iter().filter_map(|rule| rule(transport, setup, ours)).chain(flags).collect();
    let lacks = transport.lacks.iter();
    advice.extend(
        lacks.map(|lack| (Level::Error, format!("user={lack}; every message waits until it can"))),
    );
    advice.push(route(transport, setup));
    if advice.iter().all(|(level, _)| *level == Level::Ok) {
        let user = transport.attributes.user.as_deref().unwrap_or_default();
        let (program, limit) = (transport.command.program(), &transport.time_limit);
        let text = format!(
            "runs {program} deliver as {user}, one recipient at a time, time limit {limit}"
        );
        advice.insert(0, (Level::Ok, text));
    }
    advice
}

fn column_unprivileged(
    transport: &PipeTransport,
    _: &Setup,
    _: &ExpectedPostfix,
) -> Option<Advice> {
    let text = "the column \"unpriv\" of master.cf is not n, so pipe(8) cannot become the user of \
                user=, and every message waits; set it to n";
    (transport.service.unprivileged != "n").then(|| (Level::Error, text.to_owned()))
}

fn column_chroot(transport: &PipeTransport, setup: &Setup, _: &ExpectedPostfix) -> Option<Advice> {
    (transport.service.chroot == "y").then(|| {
        let folder = setup.value("queue_directory");
        let text = format!(
            "the column \"chroot\" of master.cf is y, so the program and its configuration are \
             looked for inside {folder}, and every message waits; set it to n"
        );
        (Level::Error, text)
    })
}

fn user(transport: &PipeTransport, _: &Setup, _: &ExpectedPostfix) -> Option<Advice> {
    let name = transport.attributes.user.as_deref().unwrap_or_default();
    let what = match transport.rights {
        UserRights::Fine => return None,
        UserRights::NotSet => "no user=; pipe(8) needs one".to_owned(),
        UserRights::Unknown => format!("user={name}: there is no such user or group on this host"),
        UserRights::Root => {
            format!("user={name}: pipe(8) runs nothing with the rights of root or group 0")
        }
        UserRights::MailOwner => {
            format!("user={name}: pipe(8) runs nothing with the rights of the mail system's owner")
        }
    };
    Some((
        Level::Error,
        format!("{what}, and every message waits; set user= to a user of Onedrop's own"),
    ))
}

fn program(transport: &PipeTransport, _: &Setup, _: &ExpectedPostfix) -> Option<Advice> {
    let why = transport.cannot_run.as_deref()?;
    let program = transport.command.program();
    Some((Level::Error, format!("argv={program}: {why}; every message waits until it is there")))
}

fn wrapper(transport: &PipeTransport, _: &Setup, _: &ExpectedPostfix) -> Option<Advice> {
    let command = &transport.command;
    let through = command.before.first()?;
    if command.is_shell_text() {
        let text = format!(
            "argv starts onedrop by a text for {through}: addresses become part of it, and senders \
             choose theirs; write argv=/usr/bin/onedrop deliver ..."
        );
        return Some((Level::Error, text));
    }
    let text = format!(
        "argv starts onedrop through {through}: should that fail with another status than 71 or \
         75, Postfix returns the mail to its sender; start onedrop itself"
    );
    Some((Level::Warning, text))
}

fn arguments(transport: &PipeTransport, _: &Setup, _: &ExpectedPostfix) -> Option<Advice> {
    if transport.command.is_shell_text() {
        return None;
    }
    match &transport.command.understood {
        Understood::Deliver(_) => None,
        Understood::Other => {
            let text = "argv runs another command than \"onedrop deliver\": nothing is delivered, \
                        and every message waits";
            Some((Level::Error, text.to_owned()))
        }
        Understood::Refused(why) => {
            Some((Level::Error, format!("argv is refused, and every message waits: {why}")))
        }
    }
}

fn recipient(transport: &PipeTransport, _: &Setup, _: &ExpectedPostfix) -> Option<Advice> {
    if !transport.command.delivery()?.recipients.is_empty() {
        return None;
    }
    if transport.attributes.flags.contains('D') {
        let text = "argv lacks -d ${recipient}: it is taken from the Delivered-To field of \
                    flags=D; write -d ${recipient}";
        return Some((Level::Warning, text.to_owned()));
    }
    let text = "argv lacks -d ${recipient}: the recipient would be read from the message, where \
                its sender can write one";
    Some((Level::Error, text.to_owned()))
}

fn recipient_form(transport: &PipeTransport, _: &Setup, _: &ExpectedPostfix) -> Option<Advice> {
    let recipients = &transport.command.delivery()?.recipients;
    let given = recipients.first()?;
    let has = |name: &str| recipients.iter().any(|recipient| recipient.contains(name));
    let why = if has("${recipient}") || has("${user}@${domain}") || has("${mailbox}@${domain}") {
        return None;
    } else if has("${user}") || has("${mailbox}") {
        "the domain is lost, and accounts of several domains are mixed up"
    } else if has("${original_recipient}") {
        "that is the address before aliases and other rewriting"
    } else {
        "every message goes to the same account, whoever it was for"
    };
    Some((Level::Warning, format!("argv has -d {given}: {why}; write -d ${{recipient}}")))
}

fn joined_sender(transport: &PipeTransport, _: &Setup, _: &ExpectedPostfix) -> Option<Advice> {
    let joined = transport.command.words.iter().find(|word| word.starts_with("-f${sender}"))?;
    let text = format!(
        "argv has {joined}: for a bounce that is -f alone, which takes the next word; write -f \
         ${{sender}}"
    );
    Some((Level::Error, text))
}

fn sender(transport: &PipeTransport, _: &Setup, _: &ExpectedPostfix) -> Option<Advice> {
    let known =
        transport.command.delivery()?.has_sender || transport.attributes.flags.contains('R');
    let text =
        "argv lacks -f ${sender}: the sender would be read from the message; write -f ${sender}";
    (!known).then(|| (Level::Warning, text.to_owned()))
}

fn size_argument(transport: &PipeTransport, _: &Setup, _: &ExpectedPostfix) -> Option<Advice> {
    (!transport.command.delivery()?.has_size).then(|| {
        let text =
            "argv lacks --size ${size}: a message that is cut on its way to onedrop cannot be told \
             from a whole one";
        (Level::Warning, text.to_owned())
    })
}

fn queue_id_argument(transport: &PipeTransport, _: &Setup, _: &ExpectedPostfix) -> Option<Advice> {
    (!transport.command.delivery()?.has_queue_id).then(|| {
        let text = "argv lacks --queue-id ${queue_id}: \"onedrop trace QUEUE-ID\" finds nothing";
        (Level::Ok, text.to_owned())
    })
}

fn recipient_limit(transport: &PipeTransport, _: &Setup, _: &ExpectedPostfix) -> Option<Advice> {
    let limit = transport.recipient_limit.as_str();
    if limit == "1" {
        return None;
    }
    let name = format!("{}_destination_recipient_limit", transport.service.name);
    let flags = &transport.attributes.flags;
    let mend = format!("add {name} = 1 to main.cf");
    let lost = if transport.service.own(&name).is_some() {
        " (-o in master.cf does not reach the queue manager)"
    } else {
        ""
    };
    if flags.contains(['D', 'O']) {
        let text = format!(
            "flags={flags} and {name} is {limit}{lost}: Postfix defers every message with several \
             recipients (4.3.5), because D and O need a limit of 1 (pipe(8)); {mend}"
        );
        return Some((Level::Error, text));
    }
    let text = format!(
        "{name} is {limit}{lost}: one process gets several recipients, and all of them wait or are \
         returned when one fails; {mend}"
    );
    let one_each = |word: &String| word.contains("${recipient}");
    transport.command.words.iter().any(one_each).then_some((Level::Warning, text))
}

fn time(transport: &PipeTransport, _: &Setup, ours: &ExpectedPostfix) -> Option<Advice> {
    time_limit(&format!("{}_time_limit", transport.service.name), &transport.time_limit, ours)
}

fn return_path_flag(transport: &PipeTransport, _: &Setup, _: &ExpectedPostfix) -> Option<Advice> {
    let flags = &transport.attributes.flags;
    let text = format!(
        "flags={flags} lacks R: the message has no Return-Path field; write flags={flags}R"
    );
    (!flags.contains('R')).then_some((Level::Warning, text))
}

fn unknown_flag(transport: &PipeTransport, _: &Setup, _: &ExpectedPostfix) -> Option<Advice> {
    let flags = &transport.attributes.flags;
    let unknown = flags.chars().find(|flag| !KNOWN_FLAGS.contains(*flag))?;
    Some((
        Level::Error,
        format!("flags={flags}: pipe(8) does not know {unknown}, and every message waits"),
    ))
}

fn null_sender(transport: &PipeTransport, _: &Setup, _: &ExpectedPostfix) -> Option<Advice> {
    let what = match transport.attributes.null_sender.as_deref() {
        Some("") => return None,
        None => "no null_sender=: bounces come with the sender MAILER-DAEMON".to_owned(),
        Some(other) => format!("null_sender={other}: bounces come with that sender"),
    };
    Some((
        Level::Warning,
        format!("{what} instead of the null sender; write null_sender= with nothing behind it"),
    ))
}

fn size_attribute(transport: &PipeTransport, setup: &Setup, _: &ExpectedPostfix) -> Option<Advice> {
    let size = transport.attributes.size.as_deref()?;
    let limit = setup.value("message_size_limit");
    let (Ok(own), Ok(all)) = (size.parse::<u64>(), limit.parse::<u64>()) else { return None };
    let none = if all == 0 { " (none)" } else { "" };
    let text = format!(
        "size={size} is less than message_size_limit = {limit}{none}: Postfix takes larger \
         messages and returns them here (5.2.3); leave size= out"
    );
    (own != 0 && (all == 0 || own < all)).then_some((Level::Warning, text))
}

fn end_of_line(transport: &PipeTransport, _: &Setup, _: &ExpectedPostfix) -> Option<Advice> {
    let eol = transport.attributes.eol.as_deref()?;
    let known = matches!(eol, "\\n" | "\\r\\n" | "\\012" | "\\015\\012");
    let text =
        format!("eol={eol} changes the message: its lines end in something else; leave eol= out");
    (!known).then_some((Level::Error, text))
}

fn config_file(transport: &PipeTransport, _: &Setup, ours: &ExpectedPostfix) -> Option<Advice> {
    transport.command.delivery()?;
    let (read, checked) = (&transport.config_file, &ours.config_file);
    let (shown_read, shown_checked) = (read.display(), checked.display());
    let text = format!(
        "deliveries read {shown_read}, and this check read {shown_checked}; check with --config \
         {shown_read}, or name the other in argv"
    );
    (read != checked).then_some((Level::Warning, text))
}

fn variables(_: &PipeTransport, setup: &Setup, ours: &ExpectedPostfix) -> Option<Advice> {
    let exported: Vec<_> = setup.value("export_environment").split([',', ' ', '\t']).collect();
    let is_exported = |name: &str| exported.iter().any(|word| word.split('=').next() == Some(name));
    let here: Vec<_> =
        ours.variables.iter().filter(|name| !is_exported(name)).map(String::as_str).collect();
    let text = format!(
        "{} set for this check, and Postfix gives deliveries only what export_environment names",
        here.join(", ") + if here.len() == 1 { " is" } else { " are" }
    );
    (!here.is_empty()).then_some((Level::Warning, text))
}

fn route(transport: &PipeTransport, setup: &Setup) -> Advice {
    let name = &transport.service.name;
    let by = routes::to(setup, name);
    if !by.is_empty() {
        return (Level::Ok, format!("gets mail by {}", by.join(", ")));
    }
    let maps = routes::maps(setup);
    if !maps.is_empty() {
        return (Level::Ok, format!("gets mail only if a table says so ({})", maps.join(", ")));
    }
    if let Some(other) = setup.lmtp.iter().find(|lmtp| !lmtp.routes.is_empty()) {
        return (Level::Ok, format!("nothing leads mail to it; {} gets it", other.service.name));
    }
    let text = format!(
        "nothing leads mail to it; set virtual_transport = {name}, or name it in transport_maps"
    );
    (Level::Warning, text)
}
