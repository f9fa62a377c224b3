//! Where the LMTP server listens: an address with a port, or a Unix socket. The same text serves
//! `lmtp.listen` and `--listen`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;

use super::problem::{ensure, no_control_characters};

/// One place to listen at.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
#[serde(try_from = "String")]
pub enum Listen {
    /// `127.0.0.1:24` or `[::1]:24`; port 0 lets the system choose.
    Tcp(SocketAddr),
    /// `unix:/run/onedrop/lmtp.sock`, always absolute.
    Unix(PathBuf),
}

/// The permission bits (chmod(2)) of a Unix socket that we make, as octal digits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SocketMode(pub u32);

impl FromStr for SocketMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_octal = matches!(text.len(), 3 | 4) && text.bytes().all(|b| b.is_ascii_digit());
        let mode = u32::from_str_radix(text, 8).ok().filter(|_| is_octal);
        let mode = mode.ok_or("expected three or four octal digits, as in \"0660\"")?;
        ensure(mode <= 0o777, "at most 0777: the bits above mean nothing for a socket")?;
        // unix(7): connecting needs write permission.
        let why = "nobody could connect: that needs the right to write (2), as in \"0660\"";
        ensure(mode & 0o222 != 0, why)?;
        Ok(Self(mode))
    }
}

/// Longest path of a Unix socket, in bytes: `sun_path` with its final NUL is 108 (unix(7)).
const LONGEST_PATH: usize = 107;

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let why = "a Unix socket begins with \"unix:\", as in unix:/run/onedrop/lmtp.sock";
        ensure(!text.starts_with('/'), why)?;
        if let Some(path) = text.strip_prefix("unix:") {
            return socket_path(path).map(Self::Unix);
        }
        let place = address(text)?;
        let why =
            "port 25 belongs to SMTP, and LMTP must not be used there (RFC 2033); 24 is usual";
        ensure(place.port() != 25, why)?;
        Ok(Self::Tcp(place))
    }
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The path of a Unix socket.
///
/// # Errors
/// Why it cannot be one.
pub(super) fn socket_path(path: &str) -> Result<PathBuf, String> {
    let why = "expected the absolute path of a Unix socket, as in /run/onedrop/lmtp.sock";
    ensure(path.starts_with('/'), why)?;
    no_control_characters(path)?;
    ensure(!path.ends_with('/'), "names a folder, not a socket")?;
    let length = path.len();
    if length > LONGEST_PATH {
        return Err(format!(
            "the path of a Unix socket has {LONGEST_PATH} bytes at most, this one {length}"
        ));
    }
    Ok(PathBuf::from(path))
}

/// An address with its port. Host names are not looked up: what they lead to may change, or not be
/// there at boot.
///
/// # Errors
/// Why it is none, with what was probably meant.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let bare = text.strip_prefix("inet:").unwrap_or(text);
    let why = match text.parse() {
        Ok(address) => return Ok(address),
        Err(_) if bare != text && bare.parse::<SocketAddr>().is_ok() => "leave out \"inet:\"",
        Err(_) => match bare.rsplit_once(':') {
            Some((host, _)) if host.contains(':') && !host.starts_with('[') => {
                "an IPv6 address goes in brackets, as in [::1]:24"
            }
            Some(("" | "*", port)) if port.parse::<u16>().is_ok() => {
                "for every address of this host write 0.0.0.0 or [::]"
            }
            Some((_, port)) if port.parse::<u16>().is_ok() => {
                "expected an address, not a host name"
            }
            _ => "expected ADDRESS:PORT, as in 127.0.0.1:24",
        },
    };
    Err(why.to_owned())
}
