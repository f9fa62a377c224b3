//! Where an LMTP server is.

use std::fmt;
use std::path::PathBuf;

use crate::is_loopback;

/// The address of an LMTP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LmtpPlace {
    /// `unix:/run/dovecot/lmtp`, always absolute.
    Unix(PathBuf),
    /// `lmtp://`; an IPv6 address is without its brackets.
    Tcp { host: String, port: u16 },
}

impl LmtpPlace {
    /// On another host this names another server.
    pub fn is_on_this_host(&self) -> bool {
        match self {
            LmtpPlace::Unix(_) => true,
            LmtpPlace::Tcp { host, .. } => is_loopback(host),
        }
    }
}

impl fmt::Display for LmtpPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LmtpPlace::Unix(path) => write!(f, "unix:{}", path.display()),
            LmtpPlace::Tcp { host, port } if host.contains(':') => {
                write!(f, "lmtp://[{host}]:{port}")
            }
            LmtpPlace::Tcp { host, port } => write!(f, "lmtp://{host}:{port}"),
        }
    }
}
