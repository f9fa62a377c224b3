//! The rules for an lmtp(8) service that hands mail to "onedrop lmtp". A rule reads the facts and
//! states the problem, its effect and the change to make.
//!
//! Sources: lmtp(8), postconf(5).

use super::{Advice, ExpectedPostfix, Level, Lmtp, Setup, routes, seconds};

pub(super) const LINE_LENGTH: &str = "lmtp_line_length_limit";
pub(super) const XFORWARD: &str = "lmtp_send_xforward_command";
pub(super) const DATA_DONE: &str = "lmtp_data_done_timeout";

type Rule = fn(&Lmtp, &Setup, &ExpectedPostfix) -> Option<Advice>;

const RULES: [Rule; 7] = [
    socket,
    line_length,
    xforward,
    double_fields,
    one_recipient_each,
    answer_time,
    more_than_the_server_takes,
];

/// Findings about `lmtp`. The last one names the routes to it; the first one summarizes the service
/// if nothing needs a change.
pub(super) fn judged(lmtp: &Lmtp, setup: &Setup, ours: &ExpectedPostfix) -> Vec<Advice> {
    let mut advice: Vec<Advice> = RULES.iter().filter_map(|rule| rule(lmtp, setup, ours)).collect();
    let by = if lmtp.routes.is_empty() {
        format!("gets mail only if a table says so ({})", routes::maps(setup).join(", "))
    } else {
        format!("gets mail by {}", lmtp.routes.join(", "))
    };
    let owner = setup.value("mail_owner");
    let lacks = lmtp.lacks.iter();
    advice.extend(lacks.map(|lack| {
        let text = format!(
            "{lack}, and every message waits; give the socket to group {owner} with mode 0660 \
             (SocketGroup= and SocketMode= of onedrop-lmtp.socket; lmtp.socket_group), in a folder \
             that {owner} may enter"
        );
        (Level::Error, text)
    }));
    advice.push((Level::Ok, by));
    if advice.iter().all(|(level, _)| *level == Level::Ok) {
        let recipients = match lmtp.recipient_limit.as_str() {
            "1" => "one recipient".to_owned(),
            limit => format!("up to {limit} recipients"),
        };
        advice
            .insert(0, (Level::Ok, format!("hands mail to onedrop lmtp, {recipients} at a time")));
    }
    advice
}

fn socket(lmtp: &Lmtp, setup: &Setup, _: &ExpectedPostfix) -> Option<Advice> {
    let (path, why) = lmtp.deaf.first()?;
    let chroot = if lmtp.service.chroot == "y" {
        let folder = setup.value("queue_directory");
        format!(
            "the column \"chroot\" of master.cf is y, so the socket is looked for inside {folder}; \
             set it to n"
        )
    } else {
        "start onedrop-lmtp.socket, or name the socket where it listens".to_owned()
    };
    Some((
        Level::Error,
        format!("nobody listens at {} ({why}), and every message waits; {chroot}", path.display()),
    ))
}

fn line_length(lmtp: &Lmtp, _: &Setup, _: &ExpectedPostfix) -> Option<Advice> {
    let limit = value(lmtp, LINE_LENGTH);
    let text = format!(
        "{LINE_LENGTH} is {limit}: Postfix breaks longer lines, and with them signatures; add -o \
         {LINE_LENGTH}=0 to the service"
    );
    (limit != "0").then_some((Level::Warning, text))
}

fn xforward(lmtp: &Lmtp, _: &Setup, _: &ExpectedPostfix) -> Option<Advice> {
    let text = format!(
        "{XFORWARD} is no: the server reads queue ids from Received fields, and learns nothing \
         about clients; add -o {XFORWARD}=yes to the service"
    );
    (value(lmtp, XFORWARD) != "yes").then_some((Level::Ok, text))
}

fn double_fields(lmtp: &Lmtp, _: &Setup, _: &ExpectedPostfix) -> Option<Advice> {
    let fields = [('D', "Delivered-To"), ('O', "X-Original-To"), ('R', "Return-Path")];
    let double: Vec<_> = fields
        .iter()
        .filter(|(flag, _)| lmtp.flags.contains(*flag))
        .map(|(_, field)| *field)
        .collect();
    if double.is_empty() {
        return None;
    }
    let flags = &lmtp.flags;
    let text = format!(
        "flags={flags}: the server prepends {} by itself, and messages have them twice; leave \
         these flags out",
        double.join(", ")
    );
    if flags.contains(['D', 'O']) && lmtp.recipient_limit != "1" {
        let (name, limit) = (&lmtp.service.name, &lmtp.recipient_limit);
        let needs = format!(
            "; D and O also need {name}_destination_recipient_limit = 1 (lmtp(8)), and it is \
             {limit}"
        );
        return Some((Level::Warning, text + &needs));
    }
    Some((Level::Ok, text))
}

fn one_recipient_each(lmtp: &Lmtp, _: &Setup, _: &ExpectedPostfix) -> Option<Advice> {
    let text = format!(
        "{}_destination_recipient_limit is 1: every recipient comes in a transaction of its own; \
         leave it at its default",
        lmtp.service.name
    );
    (lmtp.recipient_limit == "1").then_some((Level::Ok, text))
}

/// Unlike a pipe(8) command, a server continues after Postfix's time-out, and Postfix delivers the
/// message again.
fn answer_time(lmtp: &Lmtp, _: &Setup, ours: &ExpectedPostfix) -> Option<Advice> {
    let limit = value(lmtp, DATA_DONE);
    let Some(secs) = seconds(limit) else {
        return Some((Level::Error, format!("{DATA_DONE} = {limit} is not a time")));
    };
    let limits = &ours.config.as_ref()?.limits;
    let longest = limits.deadline_secs + limits.answer_secs;
    let text = format!(
        "{DATA_DONE} = {limit} may end before a delivery does (limits.deadline_secs + \
         limits.answer_secs = {longest}), and then Postfix tries again what is already delivered; \
         set it to {}s or more",
        longest + super::MARGIN_SECS
    );
    (secs < longest + super::MARGIN_SECS).then_some((Level::Warning, text))
}

fn more_than_the_server_takes(lmtp: &Lmtp, _: &Setup, ours: &ExpectedPostfix) -> Option<Advice> {
    let connections = ours.config.as_ref()?.lmtp.connections;
    let limit: usize = lmtp.concurrency_limit.parse().ok()?;
    let text = format!(
        "{}_destination_concurrency_limit is {limit}, and the server takes {connections} clients \
         at a time (lmtp.connections); lower the one, or raise the other",
        lmtp.service.name
    );
    (limit == 0 || limit > connections).then_some((Level::Warning, text))
}

fn value<'a>(lmtp: &'a Lmtp, name: &str) -> &'a str {
    lmtp.values.get(name).map_or("", String::as_str)
}
