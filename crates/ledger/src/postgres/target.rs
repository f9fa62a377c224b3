//! Where the ledger is: the URL read into one set of connection parameters per host, and TLS.
//! Promises that the address of a server off this host is never spoken to in clear text or
//! unverified unless the URL says so, and that no error shows the URL or the password.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use postgres::Error;
use postgres::config::{Host, SslMode, TargetSessionAttrs};
use secrecy::{ExposeSecret, SecretString};
use tokio_postgres::Config;
use tokio_postgres::config::LoadBalanceHosts;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::errors::text_of;
use crate::given_up::{GivenUp, no_answer};
use onedrop_core::deadline::{KEEPALIVE, UNACKNOWLEDGED};
use onedrop_core::ledger::{LedgerError, Program};
use onedrop_core::text;
use onedrop_net::postgres_url::{PostgresUrl, Prepare};
use onedrop_net::{is_loopback, is_loopback_address, tls};

/// How to reach the ledger.
pub struct PostgresSettings {
    pub url: PostgresUrl,
    /// Goes before a password in the URL.
    pub password: Option<SecretString>,
    /// Certificates (PEM) of the authorities to trust in place of the system's.
    pub ca_file: Option<PathBuf>,
    pub prepare: Prepare,
    /// Announce each new message to those who LISTEN to `onedrop_message`. Commits that do so wait
    /// for each other.
    pub notify: bool,
}

/// The hosts of one URL, in the order to try them.
pub(super) struct Target {
    pub hosts: Vec<HostTarget>,
    tls: Option<MakeRustlsConnect>,
    prepare: Prepare,
    /// A server has lost a prepared statement.
    lost_one: AtomicBool,
    pub notify: bool,
    pub given_up: GivenUp,
    pub program: Program,
}

/// One host and how to speak to it.
pub(super) struct HostTarget {
    /// For messages.
    pub name: String,
    pub config: Config,
}

impl HostTarget {
    /// Its Unix socket.
    pub fn socket(&self) -> Option<PathBuf> {
        let Some(Host::Unix(folder)) = self.config.get_hosts().first() else { return None };
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        Some(folder.join(format!(".s.PGSQL.{port}")))
    }

    /// The same, where nothing is to be heeded but the login.
    pub fn plain_socket(&self) -> Option<PathBuf> {
        let heeds_more = self.config.get_connect_timeout().is_some()
            || self.config.get_target_session_attrs() != TargetSessionAttrs::Any;
        self.socket().filter(|_| !heeds_more)
    }
}

impl Target {
    /// With the role that we log in as, which the server does not say.
    pub fn with_role(&self, text: String) -> String {
        match self.hosts.first().and_then(|host| host.config.get_user()) {
            Some(role) => text::within(&format!("{text}, role {role}"), 400).into_owned(),
            None => text,
        }
    }

    /// Reads `settings`; with TLS also the authorities' certificates.
    pub fn new(settings: PostgresSettings, program: Program) -> Result<Target, LedgerError> {
        let url = &settings.url;
        let mut config = url.config().clone();
        if let Some(password) = &settings.password {
            config.password(password.expose_secret());
        }
        if config.get_application_name().is_none() {
            config.application_name("onedrop");
        }
        let several = config.get_hosts().len().max(config.get_hostaddrs().len()) > 1;
        if several && !url.sets("target_session_attrs") {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if !url.sets("tcp_user_timeout") {
            config.tcp_user_timeout(UNACKNOWLEDGED);
        }
        if !url.sets("keepalives_idle") {
            config.keepalives_idle(KEEPALIVE);
        }
        if !url.sets("keepalives_interval") {
            config.keepalives_interval(KEEPALIVE);
        }
        let hosts = split_hosts(&config, url.sets("sslmode"))?;
        let tls = match hosts.iter().any(|host| host.config.get_ssl_mode() != SslMode::Disable) {
            true => Some(MakeRustlsConnect::new(
                tls::client_config(settings.ca_file.as_deref())
                    .map_err(|why| LedgerError::Unavailable(format!("TLS: {why}")))?,
            )),
            false => None,
        };
        let (prepare, notify) = (settings.prepare, settings.notify);
        let given_up = GivenUp::default();
        let lost_one = AtomicBool::new(false);
        Ok(Target { hosts, tls, prepare, lost_one, notify, given_up, program })
    }

    /// Whether statements may be prepared now.
    pub fn prepares(&self) -> bool {
        self.may_prepare() && !self.lost_one.load(Ordering::Relaxed)
    }

    /// Whether they may be, or might have been.
    pub fn may_prepare(&self) -> bool {
        self.prepare != Prepare::Never
    }

    /// Whether a new connection keeps what is prepared; `None`: it is to be asked.
    pub fn keeps_prepared(&self) -> Option<bool> {
        match self.prepare {
            Prepare::Auto => None,
            Prepare::Always => Some(true),
            Prepare::Never => Some(false),
        }
    }

    /// A server has lost a prepared statement, with this error: none is prepared from here on.
    pub fn prepare_no_more(&self, error: &Error) {
        if !self.lost_one.swap(true, Ordering::Relaxed) {
            let why = text_of(error);
            tracing::warn!(
                "the ledger's server has lost a prepared statement ({why}), as through a pooler \
                 that does not keep them: this process prepares none from now on, as with \
                 ledger.prepare = \"never\""
            );
        }
    }

    /// See [`GivenUp::may_begin`].
    pub fn may_begin(&self, until: Instant) -> Result<(), LedgerError> {
        self.given_up.may_begin(until).map_err(no_answer)
    }

    /// The TLS to use with `host`, if any.
    pub fn tls_for(&self, host: &HostTarget) -> Option<MakeRustlsConnect> {
        self.tls.clone().filter(|_| host.config.get_ssl_mode() != SslMode::Disable)
    }
}

fn unusable(why: &str) -> LedgerError {
    LedgerError::Unavailable(format!("the ledger's URL cannot be used: {why}"))
}

/// One configuration per host, so that each gets its share of the time and its own TLS mode.
fn split_hosts(config: &Config, mode_given: bool) -> Result<Vec<HostTarget>, LedgerError> {
    let (hosts, addresses, ports) =
        (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
    if hosts.is_empty() && addresses.is_empty() {
        return Err(unusable(
            "it names no host; for a socket write postgres:///database?host=/socket/directory",
        ));
    }
    let count = hosts.len().max(addresses.len());
    let matches = |len: usize| len == 0 || len == count;
    if !matches(hosts.len())
        || !matches(addresses.len())
        || !(matches(ports.len()) || ports.len() == 1)
    {
        return Err(unusable(
            "it does not have as many ports and addresses as hosts: write host1:port,host2:port \
             before the database, and no host= or port=",
        ));
    }
    let mut found = Vec::with_capacity(count);
    for at in 0..count {
        let mut one = without_hosts(config);
        let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
        one.port(port);
        let (name, local) = match (hosts.get(at), addresses.get(at)) {
            (Some(Host::Unix(path)), _) => {
                one.host_path(path).ssl_mode(SslMode::Disable);
                (path.display().to_string(), true)
            }
            (Some(Host::Tcp(host)), address) => {
                one.host(host);
                address.map(|address| one.hostaddr(*address));
                (
                    format!("{host}:{port}"),
                    address
                        .map_or_else(|| is_loopback(host), |address| is_loopback_address(*address)),
                )
            }
            (None, Some(address)) => {
                one.hostaddr(*address);
                (format!("{address}:{port}"), is_loopback_address(*address))
            }
            (None, None) => continue,
        };
        if !mode_given {
            one.ssl_mode(if local { SslMode::Disable } else { SslMode::Require });
        }
        found.push(HostTarget { name, config: one });
    }
    if config.get_load_balance_hosts() == LoadBalanceHosts::Random {
        found.rotate_left(std::process::id() as usize % count);
    }
    Ok(found)
}

fn without_hosts(from: &Config) -> Config {
    let mut to = Config::new();
    from.get_user().map(|user| to.user(user));
    from.get_password().map(|password| to.password(password));
    from.get_dbname().map(|name| to.dbname(name));
    from.get_options().map(|options| to.options(options));
    from.get_application_name().map(|name| to.application_name(name));
    from.get_connect_timeout().map(|timeout| to.connect_timeout(*timeout));
    from.get_tcp_user_timeout().map(|timeout| to.tcp_user_timeout(*timeout));
    from.get_keepalives_interval().map(|interval| to.keepalives_interval(interval));
    from.get_keepalives_retries().map(|retries| to.keepalives_retries(retries));
    to.keepalives(from.get_keepalives())
        .keepalives_idle(from.get_keepalives_idle())
        .ssl_mode(from.get_ssl_mode())
        .ssl_negotiation(from.get_ssl_negotiation())
        .channel_binding(from.get_channel_binding())
        .target_session_attrs(from.get_target_session_attrs())
        .load_balance_hosts(from.get_load_balance_hosts());
    to
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn read(url: &str) -> PostgresUrl {
        PostgresUrl::parse(url).expect("a URL")
    }

    fn hosts(url: &str) -> Vec<HostTarget> {
        let settings = PostgresSettings {
            url: read(url),
            password: None,
            ca_file: None,
            prepare: Prepare::Auto,
            notify: false,
        };
        Target::new(settings, Program::default()).map(|target| target.hosts).unwrap_or_default()
    }

    #[test]
    fn clear_text_stays_on_the_host_unless_the_url_says_otherwise() {
        let url = read("postgres://a@localhost,[::1],127.0.0.9,db.example,%2Frun%2Fpg/x");
        let modes: Vec<_> = split_hosts(url.config(), false)
            .unwrap()
            .iter()
            .map(|host| host.config.get_ssl_mode())
            .collect();
        use SslMode::{Disable, Require};
        assert_eq!(modes, [Disable, Disable, Disable, Require, Disable]);
        assert_eq!(
            hosts("postgres://db.example/x?sslmode=disable")[0].config.get_ssl_mode(),
            Disable
        );
    }

    #[test]
    fn of_several_hosts_the_one_that_takes_writes_is_wanted() {
        let several = hosts("postgres://localhost:1,127.0.0.1:2/x");
        for host in &several {
            assert_eq!(host.config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        }
        assert_eq!(
            several.iter().map(|host| host.config.get_ports()[0]).collect::<Vec<_>>(),
            [1, 2]
        );
        assert_eq!(several[0].config.get_application_name(), Some("onedrop"));
        let one = hosts("postgres:///x?host=/run/pg&application_name=mine");
        assert_eq!(one[0].config.get_target_session_attrs(), TargetSessionAttrs::Any);
        assert_eq!(one[0].config.get_application_name(), Some("mine"));
    }

    #[test]
    fn a_host_that_is_gone_is_noticed_when_the_url_says() {
        let times = |url: &str| {
            let config = &hosts(url)[0].config;
            let keepalive = (config.get_keepalives_idle(), config.get_keepalives_interval());
            (config.get_tcp_user_timeout().copied(), config.get_keepalives(), keepalive)
        };
        let ours = (Some(UNACKNOWLEDGED), true, (KEEPALIVE, Some(KEEPALIVE)));
        assert_eq!(times("postgres://db.example,db2.example/x"), ours);
        let secs = Duration::from_secs;
        let theirs = times(
            "postgres://db.example/x?tcp_user_timeout=30&keepalives=0&\
             keepalives_idle=40&keepalives_interval=50",
        );
        assert_eq!(theirs, (Some(secs(30)), false, (secs(40), Some(secs(50)))));
        assert_eq!(times("postgres://db.example/x?tcp_user_timeout=0").0, None);
    }
}
