//! What leads mail where: the parameters and tables of main.cf that name a transport, and the place
//! that a next hop means to lmtp(8).
//!
//! Sources: lmtp(8), postconf(5).

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use super::Setup;
use onedrop_net::is_loopback_address;
use onedrop_site::config::Listen;

/// `lmtp_tcp_port`, by default.
const PORT: u16 = 24;

/// Parameters that route mail to a transport.
pub(super) const PARAMETERS: [&str; 7] = [
    "virtual_transport",
    "local_transport",
    "mailbox_transport",
    "relay_transport",
    "default_transport",
    "fallback_transport",
    "content_filter",
];

/// Tables that may route mail.
pub(super) const MAPS: [&str; 3] =
    ["transport_maps", "mailbox_transport_maps", "fallback_transport_maps"];

/// A parameter that routes mail to a transport.
pub(super) struct Route<'a> {
    /// The parameter.
    pub(super) name: &'a str,
    pub(super) transport: &'a str,
    /// Often empty.
    pub(super) next_hop: &'a str,
    /// The setting as written.
    pub(super) shown: String,
}

/// All routes outside of tables.
pub(super) fn all(setup: &Setup) -> Vec<Route<'_>> {
    let everyones = PARAMETERS.map(|name| (name, setup.value(name), None));
    let own = setup.services.iter().flat_map(|service| {
        service.overrides.iter().map(|(name, value)| (&**name, &**value, Some(&service.name)))
    });
    let own = own.filter(|(name, ..)| PARAMETERS.contains(name));
    everyones.into_iter().chain(own).map(route).collect()
}

/// The route of a parameter with its value, and of the service that has it as its own.
fn route<'a>((name, value, service): (&'a str, &'a str, Option<&String>)) -> Route<'a> {
    let (transport, next_hop) = value.split_once(':').unwrap_or((value, ""));
    let shown = match service {
        None => format!("{name} = {value}"),
        Some(service) => format!("-o {name}={value} of {service} in master.cf"),
    };
    Route { name, transport, next_hop, shown }
}

/// The settings that route mail to the transport `name`, as written.
pub(super) fn to(setup: &Setup, name: &str) -> Vec<String> {
    let named = all(setup).into_iter().filter(|route| route.transport == name);
    named.map(|route| route.shown).collect()
}

/// The parameters that do, whoever's they are.
pub(super) fn names_to<'a>(setup: &'a Setup, name: &str) -> Vec<&'a str> {
    let named = all(setup).into_iter().filter(|route| route.transport == name);
    named.map(|route| route.name).collect()
}

/// The configured tables that may route mail.
pub(super) fn maps(setup: &Setup) -> Vec<&'static str> {
    MAPS.iter().copied().filter(|name| !setup.value(name).is_empty()).collect()
}

/// The parameters that route mail to onedrop.
pub(super) fn to_us(setup: &Setup) -> Vec<&str> {
    let leads_to_us = |route: &Route<'_>| {
        setup.transports.iter().any(|pipe| pipe.service.name == route.transport)
            || setup.lmtp.iter().any(|lmtp| lmtp.routes.contains(&route.shown))
    };
    all(setup).into_iter().filter(leads_to_us).map(|route| route.name).collect()
}

/// The place that lmtp(8) connects to for a next hop; `None` for a DNS name, or for none. A
/// relative path is below the queue directory; with chroot, every path is.
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

/// Whether a client that connects to `place` reaches a server that listens at one of `places`; of
/// the addresses that reach a wildcard, loopback ones alone are known to be this host's.
pub(super) fn leads_to(place: &Listen, places: &[Listen]) -> bool {
    places.iter().any(|ours| match (place, ours) {
        (Listen::Tcp(place), Listen::Tcp(ours)) => {
            let takes_all = ours.ip().is_unspecified() && is_loopback_address(place.ip());
            place.port() == ours.port() && (place.ip() == ours.ip() || takes_all)
        }
        _ => place == ours,
    })
}
