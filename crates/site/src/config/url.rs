//! The URLs of a configuration, parsed once. What is here has been checked: nothing later has
//! to parse a URL.
//!
//! No error shows a URL, because that is where passwords end up by mistake.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::listen::socket_path;
use super::problem::{ensure, no_control_characters};
use super::suggest::closest;
use onedrop_core::directory::FolderTemplate;
use onedrop_net::lmtp::LmtpPlace;
use onedrop_net::mysql_url::MysqlUrl;
use onedrop_net::postgres_url::PostgresUrl;
use onedrop_net::tls::Tls;

/// The engine of an SQL database, and where it is: the ledger's, or that of the table of users.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LedgerUrl {
    /// `postgres://` or `postgresql://`; without a password.
    Postgres { url: PostgresUrl },
    /// `mysql://` or `mariadb://`; without a password.
    Mysql { url: MysqlUrl },
    /// `sqlite:///absolute` or `sqlite:relative` to the working folder.
    Sqlite { path: PathBuf },
}

/// The store's kind and where it is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum StoreUrl {
    /// `maildir:///absolute` or `maildir:relative` to the working folder; a folder or a
    /// [`FolderTemplate`].
    Maildir { root: PathBuf },
    /// `imap://` (port 143) or `imaps://` (port 993); an IPv6 address is without its brackets.
    Imap { host: String, port: u16, tls: Tls },
}

const LEDGER_SCHEMES: &[&str] = &["postgres", "postgresql", "mysql", "mariadb", "sqlite"];
const LEDGER_FORMS: &str = "postgres://HOST/DATABASE, mysql://USER@HOST/DATABASE or sqlite:///PATH";
const HAS_PASSWORD: &str = "must not hold a password (put it into a file and name that in \
                            password_file)";
const STORE_SCHEMES: &[&str] = &["maildir", "imap", "imaps"];
const STORE_FORMS: &str = "maildir:///FOLDER, imap://HOST or imaps://HOST";
const LMTP_FORMS: &str = "unix:/PATH, as in unix:/run/dovecot/lmtp, or lmtp://HOST:PORT";
const SLASHES: &str = "expected \"//\" after the scheme";

impl FromStr for LedgerUrl {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        no_control_characters(url)?;
        match url.split_once(':') {
            Some(("postgres" | "postgresql", rest)) => {
                ensure(rest.starts_with("//"), SLASHES)?;
                let url =
                    PostgresUrl::parse(url).map_err(|why| format!("cannot be used: {why}"))?;
                ensure(!url.has_password(), HAS_PASSWORD)?;
                Ok(Self::Postgres { url })
            }
            Some(("sqlite", rest)) => {
                let path = local_path("sqlite", rest)?;
                ensure(!rest.ends_with('/'), "names a folder, not the database's file")?;
                Ok(Self::Sqlite { path })
            }
            Some((scheme @ ("mysql" | "mariadb"), rest)) => {
                let is_built_in = cfg!(feature = "mariadb");
                let why = "is not built into this program (its feature \"mariadb\" was left out)";
                ensure(is_built_in, &format!("{scheme}:// {why}"))?;
                ensure(rest.starts_with("//"), SLASHES)?;
                let url = MysqlUrl::parse(url).map_err(|why| format!("cannot be used: {why}"))?;
                ensure(!url.has_password(), HAS_PASSWORD)?;
                Ok(Self::Mysql { url })
            }
            _ => Err(unknown_scheme(url, LEDGER_SCHEMES, LEDGER_FORMS)),
        }
    }
}

impl FromStr for StoreUrl {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        no_control_characters(url)?;
        match url.split_once(':') {
            Some(("maildir", rest)) => {
                let root = local_path("maildir", rest)?;
                FolderTemplate::parse(&root)?;
                Ok(Self::Maildir { root })
            }
            Some(("imap", rest)) => imap(rest, 143, Tls::StartTls),
            Some(("imaps", rest)) => imap(rest, 993, Tls::Implicit),
            _ => Err(unknown_scheme(url, STORE_SCHEMES, STORE_FORMS)),
        }
    }
}

/// Reads `store.lmtp`: `unix:/PATH` or `lmtp://HOST:PORT` (port 24).
pub fn lmtp_place(url: &str) -> Result<LmtpPlace, String> {
    no_control_characters(url)?;
    match url.split_once(':') {
        Some(("unix", path)) => socket_path(path).map(LmtpPlace::Unix),
        Some(("lmtp", rest)) => {
            let why = "must not hold a user or password: LMTP knows none";
            let (host, port) = server(rest, 24, "lmtp", why)?;
            let why = "port 25 belongs to SMTP, and LMTP must not be used there (RFC 2033)";
            ensure(port != 25, why)?;
            Ok(LmtpPlace::Tcp { host, port })
        }
        _ => Err(format!("expected {LMTP_FORMS}")),
    }
}

impl fmt::Display for LedgerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Postgres { url } => url.fmt(f),
            Self::Mysql { url } => url.fmt(f),
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

/// The path after `scheme:`: absolute after `//`, otherwise as it stands.
fn local_path(scheme: &str, rest: &str) -> Result<PathBuf, String> {
    let path = rest.strip_prefix("//").unwrap_or(rest);
    if path != rest && !path.starts_with('/') {
        return Err(format!(
            "two slashes name a host (expected {scheme}:///PATH, or {scheme}:PATH relative to the \
             working folder)"
        ));
    }
    if path.trim_end_matches('/').is_empty() {
        return Err(format!("names no path (expected {scheme}:///PATH)"));
    }
    ensure(!path.contains('?'), "takes no options after \"?\" (leave them out)")?;
    // SQLite gives names such as ":memory:" and "file:..." a meaning of their own.
    let is_plain = path.starts_with('/') || !path.contains(':');
    ensure(is_plain, "a relative path must not hold \":\"")?;
    Ok(PathBuf::from(path))
}

fn imap(rest: &str, default_port: u16, tls: Tls) -> Result<StoreUrl, String> {
    let why = "must not hold a user or password (set store.user and store.password_file)";
    let (host, port) = server(rest, default_port, "imap", why)?;
    Ok(StoreUrl::Imap { host, port, tls })
}

/// Host and port after `scheme:`; `no_user` says why there may be no user.
fn server(
    rest: &str,
    default_port: u16,
    scheme: &str,
    no_user: &str,
) -> Result<(String, u16), String> {
    let place = rest.strip_prefix("//").ok_or(SLASHES)?;
    ensure(!place.contains('@'), no_user)?;
    let place = place.strip_suffix('/').unwrap_or(place);
    ensure(!place.contains(['/', '?', '#']), "takes nothing after the host and port")?;
    let is_address = |host: &str| host.parse::<Ipv6Addr>().is_ok();
    let (host, port) = match place.strip_prefix('[') {
        Some(bracketed) => {
            let (host, behind) = bracketed.split_once(']').ok_or("lacks the closing \"]\"")?;
            ensure(is_address(host), "expected an IPv6 address in the brackets")?;
            (host, (!behind.is_empty()).then(|| behind.strip_prefix(':').unwrap_or("")))
        }
        None => {
            let why =
                format!("an IPv6 address goes in brackets, as in {scheme}://[::1]:{default_port}");
            ensure(!is_address(place), &why)?;
            let (host, port) = place.split_once(':').unzip();
            let host = host.unwrap_or(place);
            ensure(!host.is_empty(), "names no host")?;
            let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
            ensure(host.chars().all(is_name), "expected a host name or an address")?;
            (host, port)
        }
    };
    let port = match port {
        None => default_port,
        Some(port) if port.starts_with('+') => 0,
        Some(port) => port.parse().unwrap_or(0),
    };
    ensure(port != 0, "expected a port from 1 to 65535")?;
    Ok((host.to_owned(), port))
}

/// Shows the scheme only where it certainly is one, never the rest.
fn unknown_scheme(url: &str, known: &[&str], forms: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let scheme = url.split_once("://").map(|(scheme, _)| scheme);
    let scheme = scheme.filter(|scheme| (1..=16).contains(&scheme.len()));
    let Some(scheme) = scheme.filter(|scheme| scheme.chars().all(fits)) else {
        return format!("expected a URL: {forms}");
    };
    match closest(scheme, known.iter().copied()) {
        Some(near) => {
            let slashes = if matches!(near, "sqlite" | "maildir") { "///" } else { "//" };
            format!("unknown scheme {scheme}:// (did you mean {near}:{slashes}?)")
        }
        None => format!("unknown scheme {scheme}:// (expected {forms})"),
    }
}
