//! The rules for an lmtp(8) service that hands mail to "onedrop lmtp". They read the facts and
//! state the problem, its effect and the change to make.
//!
//! Sources: lmtp(8), postconf(5).

use super::{ExpectedPostfix, Lmtp, MARGIN_SECS, Setup, routes, seconds};
use crate::check::finding::Remarks;

pub(super) const LINE_LENGTH: &str = "lmtp_line_length_limit";
pub(super) const XFORWARD: &str = "lmtp_send_xforward_command";
pub(super) const DATA_DONE: &str = "lmtp_data_done_timeout";

/// Remarks about `lmtp`. The last one names the routes to it; the first one summarizes the service
/// if nothing needs a change.
pub(super) fn judged(lmtp: &Lmtp, setup: &Setup, ours: &ExpectedPostfix) -> Remarks {
    let mut remarks = Remarks::default();
    let value = |name: &str| lmtp.values.get(name).map_or("", String::as_str);
    let (name, limit) = (&lmtp.service.name, lmtp.recipient_limit.as_str());
    socket(lmtp, setup, &mut remarks);
    if value(LINE_LENGTH) != "0" {
        remarks.warning(format!(
            "{LINE_LENGTH} is {}: Postfix breaks longer lines, and with them signatures; add -o \
             {LINE_LENGTH}=0 to the service",
            value(LINE_LENGTH)
        ));
    }
    if value(XFORWARD) != "yes" {
        remarks.ok(format!(
            "{XFORWARD} is no: the server reads queue ids from Received fields, and learns nothing \
             about clients; add -o {XFORWARD}=yes to the service"
        ));
    }
    double_fields(lmtp, &mut remarks);
    if limit == "1" {
        remarks.ok(format!(
            "{name}_destination_recipient_limit is 1: every recipient comes in a transaction of \
             its own; leave it at its default"
        ));
    }
    answer_time(value(DATA_DONE), ours, &mut remarks);
    if let (Some(config), Ok(most)) = (&ours.config, lmtp.concurrency_limit.parse::<usize>())
        && (most == 0 || most > config.lmtp.connections)
    {
        remarks.warning(format!(
            "{name}_destination_concurrency_limit is {most}, and the server takes {} clients at a \
             time (lmtp.connections); lower the one, or raise the other",
            config.lmtp.connections
        ));
    }
    let owner = setup.value("mail_owner");
    for lack in &lmtp.lacks {
        remarks.error(format!(
            "{lack}, and every message waits; give the socket to group {owner} with mode 0660 \
             (SocketGroup= and SocketMode= of onedrop-lmtp.socket; lmtp.socket_group), in a folder \
             that {owner} may enter"
        ));
    }
    remarks.ok(match lmtp.routes.is_empty() {
        true => format!("gets mail only if a table says so ({})", routes::maps(setup).join(", ")),
        false => format!("gets mail by {}", lmtp.routes.join(", ")),
    });
    if remarks.are_all_ok() {
        let recipients = match limit {
            "1" => "one recipient".to_owned(),
            limit => format!("up to {limit} recipients"),
        };
        remarks.put_first(format!("hands mail to onedrop lmtp, {recipients} at a time"));
    }
    remarks
}

fn socket(lmtp: &Lmtp, setup: &Setup, remarks: &mut Remarks) {
    let Some((path, why)) = lmtp.deaf.first() else { return };
    let mend = match lmtp.service.chroot.as_str() {
        "y" => format!(
            "the column \"chroot\" of master.cf is y, so the socket is looked for inside {}; set \
             it to n",
            setup.value("queue_directory")
        ),
        _ => "start onedrop-lmtp.socket, or name the socket where it listens".to_owned(),
    };
    let path = path.display();
    remarks.error(format!("nobody listens at {path} ({why}), and every message waits; {mend}"));
}

fn double_fields(lmtp: &Lmtp, remarks: &mut Remarks) {
    let (name, limit, flags) = (&lmtp.service.name, &lmtp.recipient_limit, &lmtp.flags);
    let fields = [('D', "Delivered-To"), ('O', "X-Original-To"), ('R', "Return-Path")];
    let double = fields.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, field)| *field);
    let double: Vec<_> = double.collect();
    if double.is_empty() {
        return;
    }
    let text = format!(
        "flags={flags}: the server prepends {} by itself, and messages have them twice; leave \
         these flags out",
        double.join(", ")
    );
    match flags.contains(['D', 'O']) && limit != "1" {
        true => remarks.warning(format!(
            "{text}; D and O also need {name}_destination_recipient_limit = 1 (lmtp(8)), and it is \
             {limit}"
        )),
        false => remarks.ok(text),
    }
}

/// Unlike a pipe(8) command, a server continues after Postfix's time-out, and Postfix delivers the
/// message again.
fn answer_time(limit: &str, ours: &ExpectedPostfix, remarks: &mut Remarks) {
    let Some(secs) = seconds(limit) else {
        return remarks.error(format!("{DATA_DONE} = {limit} is not a time"));
    };
    let Some(config) = &ours.config else { return };
    let longest = config.limits.deadline_secs + config.limits.answer_secs;
    let least = longest + MARGIN_SECS;
    if secs < least {
        remarks.warning(format!(
            "{DATA_DONE} = {limit} may end before a delivery does (limits.deadline_secs + \
             limits.answer_secs = {longest}), and then Postfix tries again what is already \
             delivered; set it to {least}s or more"
        ));
    }
}
