//! What leads mail where: the parameters and tables of main.cf that name a transport, and the place
//! that a next hop means to lmtp(8).
//!
//! Sources: lmtp(8), postconf(5).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use super::Setup;
use crate::config::Listen;
use crate::net::is_loopback_address;

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
    /// The transport.
    pub(super) transport: &'a str,
    /// The next hop; often empty.
    pub(super) next_hop: &'a str,
    /// The setting as written.
    pub(super) shown: String,
}

impl<'a> Route<'a> {
    fn new(name: &'a str, value: &'a str, shown: String) -> Self {
        let (transport, next_hop) = value.split_once(':').unwrap_or((value, ""));
        Self { name, transport, next_hop, shown }
    }
}

/// All routes outside of tables.
pub(super) fn all(setup: &Setup) -> Vec<Route<'_>> {
    let everyones = PARAMETERS.iter().map(|name| {
        let value = setup.value(name);
        Route::new(name, value, format!("{name} = {value}"))
    });
    let own = setup.services.iter().flat_map(|service| {
        let named =
            service.overrides.iter().filter(|(name, _)| PARAMETERS.contains(&name.as_str()));
        named.map(|(name, value)| {
            Route::new(name, value, format!("-o {name}={value} of {} in master.cf", service.name))
        })
    });
    everyones.chain(own).collect()
}

/// The settings that route mail to the transport `name`, as written.
pub(super) fn to(setup: &Setup, name: &str) -> Vec<String> {
    let named = all(setup).into_iter().filter(|route| route.transport == name);
    named.map(|route| route.shown).collect()
}

/// The configured tables that may route mail.
pub(super) fn maps(setup: &Setup) -> Vec<&'static str> {
    MAPS.iter().copied().filter(|name| !setup.value(name).is_empty()).collect()
}

/// The parameters that route mail to onedrop.
pub(super) fn to_us(setup: &Setup) -> Vec<&str> {
    let leads_to_us = |route: &Route<'_>| {
        let pipe =
            setup.transports.iter().any(|transport| transport.service.name == route.transport);
        pipe || setup.lmtp.iter().any(|lmtp| lmtp.routes.contains(&route.shown))
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

/// Whether a client that connects to `place` reaches a server that listens at one of `places`.
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
