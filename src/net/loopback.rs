//! Whether what is sent to a host leaves this machine. It decides where passwords and mail may
//! travel without TLS.

use std::net::IpAddr;

/// Whether `host` is this machine by its own word: an address that never leaves it, `localhost`, or
/// the path of a Unix socket. No name is looked up; another name may lead here today and elsewhere
/// tomorrow, one below `.localhost` too where a resolver does not keep to RFC 6761 section 6.3.
pub fn is_loopback(host: &str) -> bool {
    let name = host.strip_suffix('.').unwrap_or(host);
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    host.starts_with('/')
        || name.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(is_loopback_address)
}

/// 127.0.0.0/8 (RFC 1122 section 3.2.1.3) and `::1` (RFC 4291 section 2.5.3), the former also as an
/// IPv6 address.
pub fn is_loopback_address(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_on_this_machine_and_what_may_not() {
        for here in [
            "127.0.0.1",
            "127.255.255.254",
            "::1",
            "[::1]",
            "0:0:0:0:0:0:0:1",
            "::ffff:127.0.0.1",
            "[::ffff:127.9.9.9]",
            "::ffff:7f00:1",
            "localhost",
            "LocalHost",
            "localhost.",
            "/var/run/postgresql",
        ] {
            assert!(is_loopback(here), "{here}");
        }
        for elsewhere in [
            "",
            ".",
            "128.0.0.1",
            "0.0.0.0",
            "10.0.0.1",
            "::",
            "::2",
            "fe80::1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "localhost..",
            "db.localhost",
            "localhost.example",
            "127.0.0.1.example",
            "127.1",
            "var/run/postgresql",
        ] {
            assert!(!is_loopback(elsewhere), "{elsewhere}");
        }
    }
}
