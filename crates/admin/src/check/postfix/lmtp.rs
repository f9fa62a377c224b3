//! The rules for an lmtp(8) service that hands mail to "onedrop lmtp". They read the facts and
//! state the problem, its effect and the change to make.
//!
//! Sources: lmtp(8), postconf(5).

use std::io;
use std::path::{Path, PathBuf};

use super::access::{self, Credentials};
use super::master::{Attributes, MasterService};
use super::postconf::{Parameters, Postconf};
use super::{ExpectedPostfix, MARGIN_SECS, Setup, routes, seconds};
use crate::check::finding::Remarks;
use crate::check::{reach, shown};
use onedrop_site::config::Listen;

const LINE_LENGTH: &str = "lmtp_line_length_limit";
const XFORWARD: &str = "lmtp_send_xforward_command";
const DATA_DONE: &str = "lmtp_data_done_timeout";

/// An lmtp(8) service that hands mail to our server.
#[derive(Debug)]
pub(super) struct LmtpTransport {
    pub(super) service: MasterService,
    /// The settings that route mail to it, as written.
    pub(super) routes: Vec<String>,
    /// Parameters as the service sees them.
    values: Parameters,
    /// `NAME_destination_recipient_limit` and `NAME_destination_concurrency_limit` as the queue
    /// manager sees them.
    recipient_limit: String,
    concurrency_limit: String,
    /// The first socket without a listener, and the error of connecting.
    deaf: Option<(PathBuf, String)>,
    /// The sockets that Postfix's own user may not connect to, a phrase each.
    lacks: Vec<String>,
}

/// The lmtp(8) services that take mail to one of `places`, or have our name and a table may route
/// mail to them.
pub(super) fn transports(
    setup: &Setup,
    postconf: &Postconf,
    places: &[Listen],
) -> Result<Vec<LmtpTransport>, String> {
    let read = |service| LmtpTransport::read(service, setup, postconf, places).transpose();
    setup.services_of("lmtp").filter_map(read).collect()
}

impl LmtpTransport {
    fn read(
        service: &MasterService,
        setup: &Setup,
        postconf: &Postconf,
        places: &[Listen],
    ) -> Result<Option<LmtpTransport>, String> {
        let is_named_ours = service.name.starts_with("onedrop");
        let leads_to_us = |place: &Listen| routes::leads_to(place, places);
        let (mut routes, mut deaf, mut sockets) = (Vec::new(), None, Vec::new());
        for route in routes::all(setup).into_iter().filter(|one| one.transport == service.name) {
            let next_hop = |is_chrooted| {
                routes::next_hop(route.next_hop, setup.value("queue_directory"), is_chrooted)
            };
            let (written, seen) = (next_hop(false), next_hop(service.chroot == "y"));
            if !is_named_ours && !written.iter().chain(&seen).any(leads_to_us) {
                continue;
            }
            routes.push(route.shown);
            if let Some(Listen::Unix(path)) = seen {
                match nobody_listens(&path) {
                    Some(why) => deaf = deaf.or(Some((path, why))),
                    None => sockets.push(access::socket(&path)),
                }
            }
        }
        if routes.is_empty() && (!is_named_ours || routes::maps(setup).is_empty()) {
            return Ok(None);
        }
        let limit = |name: &str| {
            let default = format!("default_{name}");
            postconf.own_or_default(setup.queue_manager(), &service.name, name, &default)
        };
        let owner = Credentials::of_daemon(setup.value("mail_owner"));
        Ok(Some(LmtpTransport {
            service: service.clone(),
            values: postconf.values(&service.overrides, [LINE_LENGTH, XFORWARD, DATA_DONE])?,
            recipient_limit: limit("destination_recipient_limit")?,
            concurrency_limit: limit("destination_concurrency_limit")?,
            routes,
            deaf,
            lacks: owner.map_or(Vec::new(), |owner| owner.lacks(&sockets, postconf.until)),
        }))
    }

    /// Remarks about the service. The last one names the routes to it; the first one summarizes it
    /// if nothing needs a change.
    pub(super) fn judged(&self, setup: &Setup, ours: &ExpectedPostfix) -> Remarks {
        let mut remarks = Remarks::default();
        let value = |name: &str| self.values.get(name).map_or("", String::as_str);
        let (name, limit) = (&self.service.name, self.recipient_limit.as_str());
        self.socket(setup, &mut remarks);
        if value(LINE_LENGTH) != "0" {
            remarks.warning(format!(
                "{LINE_LENGTH} is {}: Postfix breaks longer lines, and with them signatures; add \
                 -o {LINE_LENGTH}=0 to the service",
                value(LINE_LENGTH)
            ));
        }
        if value(XFORWARD) != "yes" {
            remarks.ok(format!(
                "{XFORWARD} is no: the server reads queue ids from Received fields, and learns \
                 nothing about clients; add -o {XFORWARD}=yes to the service"
            ));
        }
        double_fields(&self.service, limit, &mut remarks);
        if limit == "1" {
            remarks.ok(format!(
                "{name}_destination_recipient_limit is 1: every recipient comes in a transaction \
                 of its own; leave it at its default"
            ));
        }
        answer_time(value(DATA_DONE), ours, &mut remarks);
        if let (Some(config), Ok(most)) = (&ours.config, self.concurrency_limit.parse::<usize>())
            && (most == 0 || most > config.lmtp.connections)
        {
            remarks.warning(format!(
                "{name}_destination_concurrency_limit is {most}, and the server takes {} clients \
                 at a time (lmtp.connections); lower the one, or raise the other",
                config.lmtp.connections
            ));
        }
        let owner = setup.value("mail_owner");
        for lack in &self.lacks {
            remarks.error(format!(
                "{lack}, and every message waits; give the socket to group {owner} with mode 0660 \
                 (SocketGroup= and SocketMode= of onedrop-lmtp.socket; lmtp.socket_group), in a \
                 folder that {owner} may enter"
            ));
        }
        remarks.ok(match self.routes.is_empty() {
            true => {
                format!("gets mail only if a table says so ({})", routes::maps(setup).join(", "))
            }
            false => format!("gets mail by {}", self.routes.join(", ")),
        });
        remarks.summarize(|| {
            let recipients = match limit {
                "1" => "one recipient".to_owned(),
                limit => format!("up to {limit} recipients"),
            };
            format!("hands mail to onedrop lmtp, {recipients} at a time")
        });
        remarks
    }

    fn socket(&self, setup: &Setup, remarks: &mut Remarks) {
        let Some((path, why)) = &self.deaf else { return };
        let mend = match self.service.chroot.as_str() {
            "y" => format!(
                "the column \"chroot\" of master.cf means y, so the socket is looked for inside \
                 {}; set it to n",
                setup.value("queue_directory")
            ),
            _ => "restart onedrop-lmtp.service, or name the socket where it listens".to_owned(),
        };
        let path = path.display();
        remarks.error(format!("nobody listens at {path} ({why}), and every message waits; {mend}"));
    }
}

/// Why no server answers at a socket; `None` if one does, or if this user may not connect.
fn nobody_listens(path: &Path) -> Option<String> {
    let error = reach(path).err()?;
    (error.kind() != io::ErrorKind::PermissionDenied).then(|| shown(&error))
}

/// The fields that the server prepends by itself.
fn double_fields(service: &MasterService, limit: &str, remarks: &mut Remarks) {
    let (name, flags) = (&service.name, Attributes::read(&service.arguments).flags);
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
