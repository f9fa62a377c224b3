//! The two URLs of a configuration, parsed once. What is here has been checked: nothing later has
//! to parse a URL.
//!
//! No error shows a URL, because that is where passwords end up by mistake.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;

use super::suggest::closest;
use crate::directory::FolderTemplate;
use crate::net::postgres_url::PostgresUrl;

/// The ledger's engine and where it is.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
#[serde(try_from = "String")]
pub enum LedgerUrl {
    /// `postgres://` or `postgresql://`; without a password.
    Postgres { url: PostgresUrl },
    /// `sqlite:///absolute` or `sqlite:relative` to the working folder.
    Sqlite { path: PathBuf },
}

/// The store's kind and where it is.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
#[serde(try_from = "String")]
pub enum StoreUrl {
    /// `maildir:///absolute` or `maildir:relative` to the working folder; a folder or a
    /// [`FolderTemplate`].
    Maildir { root: PathBuf },
    /// `imap://` (port 143) or `imaps://` (port 993); an IPv6 address is without its brackets.
    Imap { host: String, port: u16, tls: Tls },
}

/// How the connection to an IMAP server is protected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Tls {
    /// From the first byte (`imaps://`).
    Implicit,
    /// By STARTTLS, before anything else is said; a server without it is refused.
    StartTls,
    /// Not at all (`starttls = false`).
    None,
}

/// Why a URL was refused, without the URL.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct UrlError(String);

const LEDGER_SCHEMES: &[&str] = &["postgres", "postgresql", "sqlite"];
const LEDGER_FORMS: &str = "postgres://HOST/DATABASE or sqlite:///PATH";
const STORE_SCHEMES: &[&str] = &["maildir", "imap", "imaps"];
const STORE_FORMS: &str = "maildir:///FOLDER, imap://HOST or imaps://HOST";

impl FromStr for LedgerUrl {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Self, UrlError> {
        refuse_control_characters(url)?;
        match url.split_once(':') {
            Some(("postgres" | "postgresql", rest)) => {
                if !rest.starts_with("//") {
                    return Err(error("expected \"//\" after the scheme"));
                }
                let url = PostgresUrl::parse(url)
                    .map_err(|why| UrlError(format!("cannot be used: {why}")))?;
                if url.has_password() {
                    return Err(error(
                        "must not hold a password (put it into a file and name that in \
                         ledger.password_file)",
                    ));
                }
                Ok(Self::Postgres { url })
            }
            Some(("sqlite", rest)) => {
                let path = local_path("sqlite", rest)?;
                if rest.ends_with('/') {
                    return Err(error("names a folder, not the database's file"));
                }
                Ok(Self::Sqlite { path })
            }
            Some((scheme @ ("mysql" | "mariadb"), _)) => Err(UrlError(format!(
                "{scheme}:// is not built into this version (expected {LEDGER_FORMS})"
            ))),
            _ => Err(unknown_scheme(url, LEDGER_SCHEMES, LEDGER_FORMS)),
        }
    }
}

impl FromStr for StoreUrl {
    type Err = UrlError;

    fn from_str(url: &str) -> Result<Self, UrlError> {
        refuse_control_characters(url)?;
        match url.split_once(':') {
            Some(("maildir", rest)) => {
                let root = local_path("maildir", rest)?;
                FolderTemplate::parse(&root).map_err(|why| UrlError(why.to_string()))?;
                Ok(Self::Maildir { root })
            }
            Some(("imap", rest)) => imap(rest, 143, Tls::StartTls),
            Some(("imaps", rest)) => imap(rest, 993, Tls::Implicit),
            _ => Err(unknown_scheme(url, STORE_SCHEMES, STORE_FORMS)),
        }
    }
}

impl TryFrom<String> for LedgerUrl {
    type Error = UrlError;

    fn try_from(url: String) -> Result<Self, UrlError> {
        url.parse()
    }
}

impl TryFrom<String> for StoreUrl {
    type Error = UrlError;

    fn try_from(url: String) -> Result<Self, UrlError> {
        url.parse()
    }
}

impl fmt::Display for LedgerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Postgres { url } => url.fmt(f),
            Self::Sqlite { path } => write_path(f, "sqlite", path),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Maildir { root } => write_path(f, "maildir", root),
            Self::Imap { host, port, tls } => {
                let scheme = if *tls == Tls::Implicit { "imaps" } else { "imap" };
                if host.contains(':') {
                    write!(f, "{scheme}://[{host}]:{port}")
                } else {
                    write!(f, "{scheme}://{host}:{port}")
                }
            }
        }
    }
}

fn write_path(f: &mut fmt::Formatter<'_>, scheme: &str, path: &Path) -> fmt::Result {
    let slashes = if path.is_absolute() { "//" } else { "" };
    write!(f, "{scheme}:{slashes}{}", path.display())
}

/// The path behind `scheme:`: absolute after `//`, otherwise as it stands.
fn local_path(scheme: &str, rest: &str) -> Result<PathBuf, UrlError> {
    let path = match rest.strip_prefix("//") {
        Some(path) if !path.starts_with('/') => {
            return Err(UrlError(format!(
                "two slashes name a host (expected {scheme}:///PATH, or {scheme}:PATH relative to \
                 the working folder)"
            )));
        }
        Some(path) => path,
        None => rest,
    };
    if path.trim_end_matches('/').is_empty() {
        return Err(UrlError(format!("names no path (expected {scheme}:///PATH)")));
    }
    if path.contains('?') {
        return Err(error("takes no options after \"?\""));
    }
    // SQLite gives names such as ":memory:" and "file:..." a meaning of their own.
    if !path.starts_with('/') && path.contains(':') {
        return Err(error("a relative path must not hold \":\""));
    }
    Ok(PathBuf::from(path))
}

fn imap(rest: &str, default_port: u16, tls: Tls) -> Result<StoreUrl, UrlError> {
    let place = rest.strip_prefix("//").ok_or_else(|| error("expected \"//\" after the scheme"))?;
    if place.contains('@') {
        return Err(error(
            "must not hold a user or password (set store.user and store.password_file)",
        ));
    }
    let place = place.strip_suffix('/').unwrap_or(place);
    if place.contains(['/', '?', '#']) {
        return Err(error("takes nothing after the host and port"));
    }
    let (host, port) = match place.strip_prefix('[') {
        Some(bracketed) => {
            let (host, port) =
                bracketed.split_once(']').ok_or_else(|| error("lacks the closing \"]\""))?;
            host.parse::<Ipv6Addr>()
                .map_err(|_| error("expected an IPv6 address in the brackets"))?;
            let port =
                if port.is_empty() { None } else { Some(port.strip_prefix(':').unwrap_or("")) };
            (host, port)
        }
        None if place.parse::<Ipv6Addr>().is_ok() => {
            return Err(error("an IPv6 address goes in brackets, as in imap://[::1]:143"));
        }
        None => match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        },
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if host.is_empty() {
        return Err(error("names no host"));
    }
    if !host.contains(':') && !host.chars().all(is_name) {
        return Err(error("expected a host name or an address"));
    }
    let port = match port {
        None => default_port,
        Some(port) if port.starts_with('+') => 0,
        Some(port) => port.parse().unwrap_or(0),
    };
    if port == 0 {
        return Err(error("expected a port from 1 to 65535"));
    }
    Ok(StoreUrl::Imap { host: host.to_owned(), port, tls })
}

fn refuse_control_characters(url: &str) -> Result<(), UrlError> {
    if url.chars().any(char::is_control) {
        return Err(error("must not hold control characters"));
    }
    Ok(())
}

/// Shows the scheme only where it certainly is one, never the rest.
fn unknown_scheme(url: &str, known: &[&str], forms: &str) -> UrlError {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme).filter(|scheme| {
        !scheme.is_empty()
            && scheme.len() <= 16
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    });
    match scheme {
        None => UrlError(format!("expected a URL: {forms}")),
        Some(scheme) => match closest(scheme, known.iter().copied()) {
            Some(near) => {
                let slashes = if matches!(near, "sqlite" | "maildir") { "///" } else { "//" };
                UrlError(format!("unknown scheme {scheme}:// (did you mean {near}:{slashes}?)"))
            }
            None => UrlError(format!("unknown scheme {scheme}:// (expected {forms})")),
        },
    }
}

fn error(text: &str) -> UrlError {
    UrlError(text.to_owned())
}
