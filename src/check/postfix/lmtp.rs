//! The rules for an lmtp(8) service that hands mail to "onedrop lmtp", and where such a service
//! takes mail. A rule sees facts only and says what is so, what comes of it, and what to write
//! instead.
//!
//! Sources: lmtp(8), postconf(5).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use super::{Level, Lmtp, Ours, Setup, Told, seconds, site};
use crate::config::Listen;
use crate::net::is_loopback_address;

pub(super) const LINE_LENGTH: &str = "lmtp_line_length_limit";
pub(super) const XFORWARD: &str = "lmtp_send_xforward_command";
pub(super) const DATA_DONE: &str = "lmtp_data_done_timeout";

/// `lmtp_tcp_port`, by default.
const PORT: u16 = 24;

type Rule = fn(&Lmtp, &Setup, &Ours) -> Option<Told>;

const RULES: [Rule; 7] = [
    socket,
    line_length,
    xforward,
    double_fields,
    one_recipient_each,
    answer_time,
    more_than_the_server_takes,
];

/// Findings about `lmtp`, at the end what leads mail to it; at the start a line that says what it
/// does if there is nothing to mend.
pub(super) fn judged(lmtp: &Lmtp, setup: &Setup, ours: &Ours) -> Vec<Told> {
    let mut told: Vec<Told> = RULES.iter().filter_map(|rule| rule(lmtp, setup, ours)).collect();
    let by = if lmtp.routes.is_empty() {
        format!("gets mail only if a table says so ({})", site::route_maps(setup).join(", "))
    } else {
        format!("gets mail by {}", lmtp.routes.join(", "))
    };
    let owner = setup.value("mail_owner");
    let lacks = lmtp.lacks.iter();
    told.extend(lacks.map(|lack| {
        let text = format!(
            "{lack}, and every message waits; give the socket to group {owner} with mode 0660 (SocketGroup= and SocketMode= of \
             onedrop-lmtp.socket; lmtp.socket_group), in a folder that {owner} may enter"
        );
        (Level::Error, text)
    }));
    told.push((Level::Ok, by));
    if told.iter().all(|(level, _)| *level == Level::Ok) {
        let recipients = match lmtp.recipient_limit.as_str() {
            "1" => "one recipient".to_owned(),
            limit => format!("up to {limit} recipients"),
        };
        told.insert(0, (Level::Ok, format!("hands mail to onedrop lmtp, {recipients} at a time")));
    }
    told
}

fn socket(lmtp: &Lmtp, setup: &Setup, _: &Ours) -> Option<Told> {
    let (path, why) = lmtp.deaf.first()?;
    let chroot = if lmtp.service.chroot == "y" {
        let folder = setup.value("queue_directory");
        format!(
            "the column \"chroot\" of master.cf is y, so the socket is looked for inside {folder}; set it to n"
        )
    } else {
        "start onedrop-lmtp.socket, or name the socket where it listens".to_owned()
    };
    Some((
        Level::Error,
        format!("nobody listens at {} ({why}), and every message waits; {chroot}", path.display()),
    ))
}

fn line_length(lmtp: &Lmtp, _: &Setup, _: &Ours) -> Option<Told> {
    let limit = value(lmtp, LINE_LENGTH);
    let text = format!(
        "{LINE_LENGTH} is {limit}: Postfix breaks longer lines, and with them signatures; add -o {LINE_LENGTH}=0 to the \
         service"
    );
    (limit != "0").then_some((Level::Warning, text))
}

fn xforward(lmtp: &Lmtp, _: &Setup, _: &Ours) -> Option<Told> {
    let text = format!(
        "{XFORWARD} is no: the server reads queue ids from Received fields, and learns nothing about clients; add \
         -o {XFORWARD}=yes to the service"
    );
    (value(lmtp, XFORWARD) != "yes").then_some((Level::Ok, text))
}

fn double_fields(lmtp: &Lmtp, _: &Setup, _: &Ours) -> Option<Told> {
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
        "flags={flags}: the server prepends {} by itself, and messages have them twice; leave these flags out",
        double.join(", ")
    );
    if flags.contains(['D', 'O']) && lmtp.recipient_limit != "1" {
        let (name, limit) = (&lmtp.service.name, &lmtp.recipient_limit);
        let needs = format!(
            "; D and O also need {name}_destination_recipient_limit = 1 (lmtp(8)), and it is {limit}"
        );
        return Some((Level::Warning, text + &needs));
    }
    Some((Level::Ok, text))
}

fn one_recipient_each(lmtp: &Lmtp, _: &Setup, _: &Ours) -> Option<Told> {
    let text = format!(
        "{}_destination_recipient_limit is 1: every recipient comes in a transaction of its own; leave it at its default",
        lmtp.service.name
    );
    (lmtp.recipient_limit == "1").then_some((Level::Ok, text))
}

/// Unlike a pipe(8) command, a server goes on after Postfix has lost patience; Postfix then
/// delivers again.
fn answer_time(lmtp: &Lmtp, _: &Setup, ours: &Ours) -> Option<Told> {
    let limit = value(lmtp, DATA_DONE);
    let Some(secs) = seconds(limit) else {
        return Some((Level::Error, format!("{DATA_DONE} = {limit} is not a time")));
    };
    let limits = &ours.config.as_ref()?.limits;
    let longest = limits.deadline_secs + limits.answer_secs;
    let text = format!(
        "{DATA_DONE} = {limit} may end before a delivery does (limits.deadline_secs + limits.answer_secs = {longest}), and \
         then Postfix tries again what is already delivered; set it to {}s or more",
        longest + super::MARGIN_SECS
    );
    (secs < longest + super::MARGIN_SECS).then_some((Level::Warning, text))
}

fn more_than_the_server_takes(lmtp: &Lmtp, _: &Setup, ours: &Ours) -> Option<Told> {
    let connections = ours.config.as_ref()?.lmtp.connections;
    let limit: usize = lmtp.concurrency_limit.parse().ok()?;
    let text = format!(
        "{}_destination_concurrency_limit is {limit}, and the server takes {connections} clients at a time \
         (lmtp.connections); lower the one, or raise the other",
        lmtp.service.name
    );
    (limit == 0 || limit > connections).then_some((Level::Warning, text))
}

fn value<'a>(lmtp: &'a Lmtp, name: &str) -> &'a str {
    lmtp.values.get(name).map_or("", String::as_str)
}

/// The place that a next hop names, as lmtp(8) reads it; `None`: a name for the DNS, or nothing. A
/// relative path is one in the queue directory, and with chroot every path is.
pub(super) fn next_hop(text: &str, queue_directory: &str, is_chrooted: bool) -> Option<Listen> {
    if let Some(path) = text.strip_prefix("unix:") {
        let path = if is_chrooted { path.trim_start_matches('/') } else { path };
        return Some(Listen::Unix(Path::new(queue_directory).join(path)));
    }
    let text = text.strip_prefix("inet:").unwrap_or(text);
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (text, PORT),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let host = host.strip_prefix("ipv6:").unwrap_or(host);
    let address =
        if host == "localhost" { Ipv4Addr::LOCALHOST.into() } else { host.parse().ok()? };
    Some(Listen::Tcp(SocketAddr::new(address, port)))
}

/// Whether who connects to `place` meets a server that listens at one of `places`.
pub(super) fn leads_to(place: &Listen, places: &[Listen]) -> bool {
    places.iter().any(|ours| match (place, ours) {
        (Listen::Tcp(place), Listen::Tcp(ours)) => {
            place.port() == ours.port()
                && (place.ip() == ours.ip() || takes_all(ours.ip(), place.ip()))
        }
        _ => place == ours,
    })
}

/// Whether a server at the wildcard `ours` is reached by this host's own `address`.
fn takes_all(ours: IpAddr, address: IpAddr) -> bool {
    ours.is_unspecified() && is_loopback_address(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_next_hop_is_read_as_lmtp_does() {
        for (text, expected) in [
            ("unix:/run/onedrop/lmtp.sock", Some("unix:/run/onedrop/lmtp.sock")),
            ("unix:private/onedrop", Some("unix:/queue/private/onedrop")),
            ("inet:127.0.0.1:2400", Some("127.0.0.1:2400")),
            ("inet:[127.0.0.1]", Some("127.0.0.1:24")),
            ("[::1]:24", Some("[::1]:24")),
            ("inet:[ipv6:::1]", Some("[::1]:24")),
            ("localhost:24", Some("127.0.0.1:24")),
            ("mail.example", None),
            ("inet:[mail.example]:24", None),
            ("127.0.0.1:lmtp", None),
            ("", None),
        ] {
            assert_eq!(
                next_hop(text, "/queue", false).map(|place| place.to_string()).as_deref(),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn with_chroot_a_path_begins_in_the_queue_directory() {
        for text in ["unix:/run/a.sock", "unix:run/a.sock"] {
            assert_eq!(
                next_hop(text, "/queue", true),
                Some(Listen::Unix("/queue/run/a.sock".into()))
            );
        }
    }

    #[test]
    fn a_wildcard_takes_what_comes_from_this_host() {
        let leads = |to: &str, ours: &str| {
            let place = |text: &str| text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            leads_to(&place(to), &[place("unix:/run/x"), place(ours)])
        };
        assert!(leads("127.0.0.1:24", "0.0.0.0:24") && leads("127.0.0.1:24", "[::]:24"));
        assert!(leads("127.0.0.1:24", "127.0.0.1:24") && leads("unix:/run/x", "127.0.0.1:24"));
        assert!(!leads("127.0.0.1:24", "127.0.0.1:2400") && !leads("192.0.2.1:24", "0.0.0.0:24"));
    }
}
