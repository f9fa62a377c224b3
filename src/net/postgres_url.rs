//! The address of a Postgres server or several, as a URL: read once, by tokio-postgres, which
//! libpq's `sslmode=verify-full` is said in other words. No error and no text shows the URL's
//! login: that is where passwords end up by mistake.

use std::fmt;

use tokio_postgres::Config;

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
    /// Reads `url`.
    ///
    /// # Errors
    /// Why it cannot be used, without a part of it.
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

    /// Whether it says anything about `option`.
    pub fn sets(&self, option: &str) -> bool {
        self.options.iter().any(|name| name == option)
    }

    /// Whether a password is in it, wherever it may stand.
    pub fn has_password(&self) -> bool {
        self.config.get_password().is_some()
    }
}

/// Without anything that belongs to a login: no user, no options.
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

#[cfg(test)]
mod tests {
    use tokio_postgres::config::SslMode;

    use super::*;

    fn read(url: &str) -> PostgresUrl {
        PostgresUrl::parse(url).unwrap_or_else(|why| panic!("{url}: {why}"))
    }

    #[test]
    fn no_login_is_shown() {
        for (url, shown) in [
            ("postgres://onedrop@db.example.net/onedrop", "postgres://db.example.net/onedrop"),
            ("postgresql://db/onedrop?user=me&sslmode=require", "postgres://db/onedrop"),
            (
                "postgres://u@h1:5432,h2/db?target_session_attrs=read-write",
                "postgres://h1:5432,h2/db",
            ),
            ("postgres://u:p?x=y@h/db", "postgres://h/db"),
        ] {
            assert_eq!(read(url).to_string(), shown);
        }
    }

    #[test]
    fn a_password_is_noticed_wherever_it_stands() {
        for url in [
            "postgres://u:secret@h/db",
            "postgres://u:@h/db",
            "postgres://u:a?b@h/db",
            "postgres://u@h/db?password=secret",
            "postgres://u@h/db?application_name=o&p%61ssword=secret",
        ] {
            assert!(read(url).has_password(), "{url}");
        }
        assert!(!read("postgres://u@h/db?application_name=password").has_password());
    }

    #[test]
    fn what_it_sets_is_told_from_what_it_leaves_open() {
        let url = read("postgres://u@h/db?sslmode=verify-full&keepalives_idle=5");
        assert!(url.sets("sslmode") && url.sets("keepalives_idle") && !url.sets("keepalives"));
        assert_eq!(url.config().get_ssl_mode(), SslMode::Require);
        assert!(!read("postgres://u:a?sslmode=x@h/db").sets("sslmode"));
    }

    #[test]
    fn a_broken_url_is_refused_without_showing_it() {
        for url in [
            "postgres://u@x:sec?ret=x@db/x",
            "mysql://u:secret@db/x",
            "postgres:u:secret@db/x",
            "postgres://u:secret@db:port/x",
            "postgres://u:secret@db/x?sslmode=verify-ca",
            "postgres://u:secret@db/x?secret=1",
            "postgres://u@db/x?sslpassword=secret",
        ] {
            let why = PostgresUrl::parse(url).err().unwrap_or_default();
            assert!(!why.is_empty() && !why.contains("sec"), "{url}: {why}");
        }
    }
}
