//! Where the LMTP server listens: an address with a port, or a Unix socket. The same text serves
//! `lmtp.listen` and `--listen`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;

/// One place to listen at.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
#[serde(try_from = "String")]
pub enum Listen {
    /// `127.0.0.1:24` or `[::1]:24`; port 0 lets the system choose.
    Tcp(SocketAddr),
    /// `unix:/run/onedrop/lmtp.sock`, always absolute.
    Unix(PathBuf),
}

/// Who may connect to a Unix socket that we make: permission bits (chmod(2)), as octal digits.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(try_from = "String")]
pub struct SocketMode(pub u32);

impl FromStr for SocketMode {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        let is_octal =
            (3..=4).contains(&text.len()) && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
        let mode = u32::from_str_radix(text, 8).ok().filter(|_| is_octal);
        let mode =
            mode.ok_or_else(|| error("expected three or four octal digits, as in \"0660\""))?;
        if mode > 0o777 {
            return Err(error("at most 0777: the bits above mean nothing for a socket"));
        }
        // unix(7): connecting needs write permission.
        if mode & 0o222 == 0 {
            return Err(error(
                "nobody could connect: that needs the right to write (2), as in \"0660\"",
            ));
        }
        Ok(Self(mode))
    }
}

impl TryFrom<String> for SocketMode {
    type Error = ListenError;

    fn try_from(text: String) -> Result<Self, ListenError> {
        text.parse()
    }
}

/// Why a text names no place to listen at.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct ListenError(String);

/// Longest path of a Unix socket, in bytes: `sun_path` with its final NUL is 108 (unix(7)).
const LONGEST_PATH: usize = 107;

impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        if text.starts_with('/') {
            return Err(error(
                "a Unix socket begins with \"unix:\", as in unix:/run/onedrop/lmtp.sock",
            ));
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return socket_path(path).map(Self::Unix).map_err(ListenError);
        }
        let place = address(text).map_err(ListenError)?;
        if place.port() == 25 {
            return Err(error(
                "port 25 belongs to SMTP, and LMTP must not be used there (RFC 2033); 24 is usual",
            ));
        }
        Ok(Self::Tcp(place))
    }
}

impl TryFrom<String> for Listen {
    type Error = ListenError;

    fn try_from(text: String) -> Result<Self, ListenError> {
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
    if !path.starts_with('/') {
        return Err(
            "expected the absolute path of a Unix socket, as in /run/onedrop/lmtp.sock".to_owned()
        );
    }
    if path.chars().any(char::is_control) {
        return Err("must not hold control characters".to_owned());
    }
    if path.ends_with('/') {
        return Err("names a folder, not a socket".to_owned());
    }
    if path.len() > LONGEST_PATH {
        return Err(format!(
            "the path of a Unix socket has {LONGEST_PATH} bytes at most, this one {}",
            path.len()
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

fn error(text: &str) -> ListenError {
    ListenError(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_octal_and_lets_somebody_connect() {
        for (text, mode) in
            [("0660", 0o660), ("660", 0o660), ("0600", 0o600), ("0777", 0o777), ("0020", 0o020)]
        {
            assert_eq!(text.parse(), Ok(SocketMode(mode)));
        }
        for text in [
            "",
            "0",
            "66",
            "0o660",
            "00660",
            "0668",
            "-660",
            "+660",
            "rw-rw----",
            "0440",
            "0000",
            "1660",
        ] {
            assert!(text.parse::<SocketMode>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_address_or_a_socket() {
        for text in ["127.0.0.1:24", "[::1]:24", "0.0.0.0:0", "unix:/run/onedrop/lmtp.sock"] {
            let listen: Listen = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(listen.to_string(), text);
        }
        assert_eq!("unix:/run/a b.sock".parse(), Ok(Listen::Unix("/run/a b.sock".into())));
    }

    #[test]
    fn everything_else_is_refused_with_what_was_meant() {
        let long = format!("unix:/{}", "x".repeat(LONGEST_PATH));
        for (text, hint) in [
            ("", "ADDRESS:PORT"),
            ("24", "ADDRESS:PORT"),
            ("127.0.0.1", "ADDRESS:PORT"),
            ("127.0.0.1:65536", "ADDRESS:PORT"),
            ("localhost:24", "not a host name"),
            ("*:24", "0.0.0.0 or [::]"),
            (":24", "0.0.0.0 or [::]"),
            ("::1:24", "brackets"),
            ("inet:127.0.0.1:24", "leave out"),
            ("127.0.0.1:25", "RFC 2033"),
            ("/run/onedrop/lmtp.sock", "\"unix:\""),
            ("unix:lmtp.sock", "absolute"),
            ("unix:", "absolute"),
            ("unix:/run/onedrop/", "a folder"),
            ("unix:/run/\u{1}", "control characters"),
            (long.as_str(), "107 bytes at most, this one 108"),
        ] {
            let error = text.parse::<Listen>().expect_err(text).to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}
