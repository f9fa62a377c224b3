//! The network, one of each: the socket with a deadline and the listener that makes it, the buffer
//! that reads lines, TLS as a client, LMTP's form, xtext, the URLs of SQL servers, a pool of
//! sessions, group commit, and what counts as this machine. Adapters and servers share them; what
//! is said over them is theirs.

pub mod group_commit;
pub mod input;
pub mod listener;
pub mod lmtp;
pub mod mysql_url;
pub mod pool;
pub mod postgres_url;
pub mod socket;
pub mod tls;
mod url_options;
pub mod xtext;

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
