//! The address of a Postgres server or several, as a URL: read once, by tokio-postgres, which
//! libpq's `sslmode=verify-full` is said in other words. No error and no text shows the URL's
//! login: that is where passwords end up by mistake.

use std::fmt;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use super::url_options::{decoded, unknown};
use super::{is_loopback, is_loopback_address};

/// The options that tokio-postgres takes.
const OPTIONS: [&str; 19] = [
    "host",
    "hostaddr",
    "port",
    "user",
    "password",
    "dbname",
    "sslmode",
    "sslnegotiation",
    "channel_binding",
    "application_name",
    "options",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "target_session_attrs",
    "load_balance_hosts",
];

/// A URL that was read: `postgres://user@host1:port,host2/database?option=value`, or
/// `postgres:///database?host=/socket/directory`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PostgresUrl {
    config: Box<Config>,
    /// The names of the options it sets.
    options: Vec<String>,
    /// Host and database.
    place: String,
}

/// Whether statements are kept prepared in the connections (`ledger.prepare`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Prepare {
    /// Where the server itself is at the other end, and no pooler.
    Auto,
    Always,
    Never,
}

impl PostgresUrl {
    /// Reads `url`. An error says why it cannot be used, and quotes no part of it.
    pub fn parse(url: &str) -> Result<PostgresUrl, String> {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        if !["postgres", "postgresql"].contains(&scheme) {
            return Err("it does not begin with postgres://".to_owned());
        }
        // As tokio-postgres reads it: a password may hold a question mark, credentials end at the
        // first @.
        let rest = rest.split_once('@').map_or(rest, |(_, rest)| rest);
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut options = Vec::new();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').ok_or("an option lacks its \"=\"")?;
            let name = decoded(name).ok_or(NOT_ENCODED)?;
            if !OPTIONS.contains(&name.as_str()) {
                return Err(unknown(&name, &OPTIONS));
            }
            options.push((name, value));
        }
        let mode = options.iter().find(|(name, _)| name == "sslmode").map(|(_, value)| *value);
        // In tokio-postgres' words: what is encrypted is always verified here, and the server
        // decides about TLS at either of the two that leave it open.
        let url = match mode {
            Some("verify-full") => url.replace("sslmode=verify-full", "sslmode=require"),
            Some("allow") => url.replace("sslmode=allow", "sslmode=prefer"),
            None | Some("disable" | "prefer" | "require") => url.to_owned(),
            Some(_) => return Err("sslmode must be verify-full or disable".to_owned()),
        };
        let config: Config = url.parse().map_err(|error| why(&error))?;
        if mode.is_some() && config.get_ssl_mode() == SslMode::Prefer && !stays_here(&config) {
            return Err("to another host this sslmode gives anyone between the hosts the \
                        password: write sslmode=verify-full, or disable in a network that you \
                        trust"
                .to_owned());
        }
        Ok(PostgresUrl {
            config: Box::new(config),
            options: options.into_iter().map(|(name, _)| name).collect(),
            place: place.to_owned(),
        })
    }

    /// What it says; what it does not say is as tokio-postgres has it.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether it leads to Unix sockets alone.
    pub fn is_by_socket(&self) -> bool {
        let is_socket = |host: &Host| matches!(host, Host::Unix(_));
        self.config.get_hostaddrs().is_empty() && self.config.get_hosts().iter().all(is_socket)
    }

    /// Whether it says anything about `option`.
    pub fn sets(&self, option: &str) -> bool {
        self.options.iter().any(|name| name == option)
    }

    /// Whether a password is in it, wherever it may stand.
    pub fn has_password(&self) -> bool {
        self.config.get_password().is_some()
    }
}

/// Without what belongs to a login: no user, no options.
impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "postgres://{}", self.place)
    }
}

/// Whether every host is this one; its address counts where there is one.
fn stays_here(config: &Config) -> bool {
    let addresses = config.get_hostaddrs();
    let is_here = |host: &Host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => is_loopback(name),
    };
    match addresses {
        [] => config.get_hosts().iter().all(is_here),
        _ => addresses.iter().all(|address| is_loopback_address(*address)),
    }
}

const NOT_ENCODED: &str =
    "percent-encode what is not a letter or a digit in the user's name and the password";

fn why(error: &tokio_postgres::Error) -> String {
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    // The only cause that cannot quote a part of the URL, and with it a piece of a password.
    match cause.starts_with("invalid value for option") {
        true => cause,
        false => NOT_ENCODED.to_owned(),
    }
}
