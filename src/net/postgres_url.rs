//! The address of a Postgres server or several, as a URL: read once, by tokio-postgres, which
//! libpq's `sslmode=verify-full` is said in other words. No error and no text shows the URL's
//! login: that is where passwords end up by mistake.

use std::fmt;

use tokio_postgres::Config;
use tokio_postgres::config::Host;

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
        let options = query.split('&').filter_map(|pair| pair.split_once('='));
        // libpq's word for what this program always does with TLS.
        let url = match options.clone().any(|option| option == ("sslmode", "verify-full")) {
            true => url.replace("sslmode=verify-full", "sslmode=require"),
            false => url.to_owned(),
        };
        Ok(PostgresUrl {
            config: Box::new(url.parse().map_err(|error| why(&error))?),
            options: options.map(|(name, _)| name.to_owned()).collect(),
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

fn why(error: &tokio_postgres::Error) -> String {
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    // The only cause that cannot quote a part of the URL, and with it a piece of a password.
    match cause.starts_with("invalid value for option") {
        true => cause,
        false => {
            "percent-encode what is not a letter or a digit in the user's name and the password"
                .to_owned()
        }
    }
}
