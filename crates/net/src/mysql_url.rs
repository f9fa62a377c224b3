//! The address of a MariaDB server, as a URL: read once. By hand, because the driver's own reader
//! takes options that weaken TLS and a password. No error and no text shows the URL's login: that
//! is where passwords end up by mistake.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;

use super::url_options::{decoded, unknown};

/// `mysql://user@host:port/database?socket=/path&sslmode=disable`; a socket is a Unix socket of
/// this host, and then the URL needs no host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MysqlUrl {
    pub user: String,
    has_password: bool,
    /// A name or an address, without brackets; empty only with a socket.
    pub host: String,
    pub port: u16,
    pub database: String,
    pub socket: Option<PathBuf>,
    /// What `sslmode` says; else TLS is used unless the server is on this host.
    pub tls: Option<bool>,
}

/// The port of MySQL and MariaDB.
const PORT: u16 = 3306;

impl MysqlUrl {
    /// Reads `url`. An error says why it cannot be used, and quotes no part of its login.
    pub fn parse(url: &str) -> Result<MysqlUrl, String> {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        if !["mysql", "mariadb"].contains(&scheme) {
            return Err("it does not begin with mysql://".to_owned());
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        // A password may hold a slash and an @ by mistake: credentials end at the last @.
        let (login, place) = rest.rsplit_once('@').ok_or("it names no user (mysql://USER@...)")?;
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let (host, database) = place.split_once('/').ok_or("it names no database")?;
        let decoded = |text: &str| {
            let why = "percent-encode what is not a letter or a digit in the names";
            decoded(text).ok_or_else(|| why.to_owned())
        };
        let (user, database) = (decoded(user)?, decoded(database)?);
        if user.is_empty() {
            return Err("it names no user (mysql://USER@...)".to_owned());
        }
        if database.is_empty() || database.contains('/') {
            return Err("it names no database".to_owned());
        }
        let (mut socket, mut tls) = (None, None);
        for (name, value) in query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(value))
        }) {
            match (name?.as_str(), value?.as_str()) {
                ("socket", path) if path.starts_with('/') => socket = Some(PathBuf::from(path)),
                ("socket", _) => return Err("socket must be an absolute path".to_owned()),
                ("sslmode", "disable") => tls = Some(false),
                ("sslmode", "verify-full") => tls = Some(true),
                ("sslmode", _) => {
                    return Err("sslmode must be disable or verify-full".to_owned());
                }
                ("user" | "password" | "host" | "port" | "database", _) => {
                    return Err("write mysql://USER@HOST:PORT/DATABASE, and the password into \
                                password_file"
                        .to_owned());
                }
                (name, _) => return Err(unknown(name, &["socket", "sslmode"])),
            }
        }
        let (host, port) = host_and_port(host)?;
        if host.is_empty() && socket.is_none() {
            return Err("it names no host; for a Unix socket write \
                        mysql://USER@/DATABASE?socket=/run/mysqld/mysqld.sock"
                .to_owned());
        }
        if socket.is_some() && tls == Some(true) {
            return Err("a Unix socket has no TLS (leave out sslmode)".to_owned());
        }
        let has_password = login.contains(':') && !password.is_empty();
        Ok(MysqlUrl { user, has_password, host, port, database, socket, tls })
    }

    /// Whether a password is in it.
    pub fn has_password(&self) -> bool {
        self.has_password
    }
}

/// Without what belongs to a login.
impl fmt::Display for MysqlUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.socket {
            Some(socket) => write!(f, "mysql:///{}?socket={}", self.database, socket.display()),
            None if self.host.contains(':') => {
                write!(f, "mysql://[{}]:{}/{}", self.host, self.port, self.database)
            }
            None => write!(f, "mysql://{}:{}/{}", self.host, self.port, self.database),
        }
    }
}

fn host_and_port(place: &str) -> Result<(String, u16), String> {
    let (host, port) = match place.strip_prefix('[') {
        Some(bracketed) => {
            let (host, behind) = bracketed.split_once(']').ok_or("it lacks the closing \"]\"")?;
            if host.parse::<Ipv6Addr>().is_err() {
                return Err("expected an IPv6 address in the brackets".to_owned());
            }
            (host, behind.strip_prefix(':').or((!behind.is_empty()).then_some("")))
        }
        None => {
            let (host, port) = place.split_once(':').unzip();
            (host.unwrap_or(place), port)
        }
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':');
    if !host.chars().all(is_name) {
        return Err("expected one host name or address".to_owned());
    }
    let is_number = |port: &str| port.bytes().all(|digit| digit.is_ascii_digit());
    let port = match port {
        None => PORT,
        Some(port) => port.parse().ok().filter(|_| is_number(port)).unwrap_or(0),
    };
    match port {
        0 => Err("expected a port from 1 to 65535".to_owned()),
        port => Ok((host.to_owned(), port)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> MysqlUrl {
        MysqlUrl::parse(url).expect("a URL")
    }

    #[test]
    fn a_url_says_where_the_server_is() {
        let url = read("mysql://mail%40user@db.example/ledger");
        assert_eq!(
            (url.user.as_str(), url.host.as_str(), url.port),
            ("mail@user", "db.example", 3306)
        );
        assert_eq!((url.database.as_str(), url.socket, url.tls), ("ledger", None, None));
        let url = read("mariadb://u@[::1]:3307/x?sslmode=verify-full");
        assert_eq!((url.host.as_str(), url.port, url.tls), ("::1", 3307, Some(true)));
        assert_eq!(url.to_string(), "mysql://[::1]:3307/x");
        let url = read("mysql://u@/x?socket=/run/mysqld/mysqld.sock");
        assert_eq!(url.socket.as_deref(), Some("/run/mysqld/mysqld.sock".as_ref()));
        assert_eq!(url.to_string(), "mysql:///x?socket=/run/mysqld/mysqld.sock");
    }

    #[test]
    fn a_password_is_seen_and_never_shown() {
        for url in ["mysql://u:s3cr@t@h/x", "mysql://u:s3cr/t@h/x", "mysql://u:s3crt@h:99999/x"] {
            match MysqlUrl::parse(url) {
                Ok(read) => {
                    assert!(read.has_password(), "{url}");
                    assert!(!read.to_string().contains("s3cr"), "{url}");
                }
                Err(why) => assert!(!why.contains("s3cr"), "{why}"),
            }
        }
        assert!(!read("mysql://u@h/x").has_password());
    }

    #[test]
    fn what_cannot_be_used_is_said() {
        for (url, why) in [
            ("postgres://u@h/x", "mysql://"),
            ("mysql://h/x", "no user"),
            ("mysql://u@h", "no database"),
            ("mysql://u@h/", "no database"),
            ("mysql://u@/x", "no host"),
            ("mysql://u@h:0/x", "port"),
            ("mysql://u@h:+1/x", "port"),
            ("mysql://u@a,b/x", "one host"),
            ("mysql://u@[::g]/x", "IPv6"),
            ("mysql://u@h/x?ssl=1", "not known: ssl (write sslmode=verify-full"),
            ("mysql://u@h/x?ssl-mode=REQUIRED", "not known: ssl-mode (write sslmode)"),
            ("mysql://u@h/x?sslmode=verify-full&ssl-ca=/ca.pem", "not known: ssl-ca (name the"),
            ("mysql://u@h/x?ssl_cert=/c.pem", "not known: ssl_cert (there are no client"),
            ("mysql://u@h/x?unix_socket=/run/s", "not known: unix_socket (write host=/FOLDER"),
            ("mysql://u@h/x?charset=utf8mb4", "not known: charset (texts are UTF-8 always)"),
            ("mysql://u@h/x?a%62c=1", "not known (it takes socket, sslmode)"),
            ("mysql://u@h/x?password=x", "the password into password_file"),
            ("mysql://u@h/x?sslmode=prefer", "sslmode must be"),
            ("mysql://u@/x?socket=run", "absolute"),
            ("mysql://u@/x?socket=/run/s&sslmode=verify-full", "no TLS"),
            ("mysql://%zz@h/x", "percent-encode"),
        ] {
            let error = MysqlUrl::parse(url).expect_err(url);
            assert!(error.contains(why), "{url}: {error}");
        }
    }
}
