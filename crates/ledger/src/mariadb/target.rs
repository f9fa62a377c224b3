//! Where the server is and how to speak to it: over its Unix socket; over TCP to this host; over
//! TCP to another one with TLS, whose certificate and name are verified.

use std::path::PathBuf;

use mysql_async::{Opts, OptsBuilder, SslOpts};
use secrecy::{ExposeSecret, SecretString};

use crate::given_up::GivenUp;
use onedrop_core::deadline::KEEPALIVE;
use onedrop_core::ledger::{LedgerError, Program};
use onedrop_net::mysql_url::MysqlUrl;
use onedrop_net::{is_loopback, tls};

/// What [`MariadbLedger::new`](super::MariadbLedger::new) takes.
#[derive(Debug, Clone)]
pub struct MariadbSettings {
    pub url: MysqlUrl,
    pub password: Option<SecretString>,
    /// Certificates (PEM) of the authorities to trust; without it the system's.
    pub ca_file: Option<PathBuf>,
}

/// Bytes of a packet, either way. What this program sends and asks for is shorter.
pub(super) const PACKET_BYTES: usize = 8 * 1024 * 1024;
/// The driver closes nothing for its age; the pool does.
const WAIT_TIMEOUT_SECS: usize = 0;

/// A server, and how to speak to it.
pub(super) struct MariadbTarget {
    /// For messages.
    pub name: String,
    pub opts: Opts,
    pub program: Program,
    pub given_up: GivenUp,
    /// It keeps no ledger, but has accounts to ask for.
    pub only_accounts: bool,
}

impl MariadbTarget {
    /// Reads `settings`; with TLS also the authorities' certificates.
    pub fn new(settings: MariadbSettings, program: Program) -> Result<MariadbTarget, LedgerError> {
        let MariadbSettings { url, password, ca_file } = settings;
        let needs_tls = url.socket.is_none() && url.tls.unwrap_or(!is_loopback(&url.host));
        let tls = match needs_tls {
            true => {
                let authorities = tls::authorities(ca_file.as_deref())
                    .map_err(|why| LedgerError::Unavailable(format!("TLS: {why}")))?;
                let roots = authorities.into_iter().map(|one| one.to_vec().into()).collect();
                Some(SslOpts::default().with_disable_built_in_roots(true).with_root_certs(roots))
            }
            false => None,
        };
        let socket = url.socket.as_ref().map(|path| path.to_string_lossy().into_owned());
        let name = socket.clone().unwrap_or_else(|| format!("{}:{}", url.host, url.port));
        // The driver asks the server for each of these that is not set.
        let opts = OptsBuilder::default()
            .ip_or_hostname(url.host)
            .tcp_port(url.port)
            .user(Some(url.user))
            .pass(password.map(|password| password.expose_secret().to_owned()))
            .db_name(Some(url.database))
            .socket(socket)
            .prefer_socket(false)
            .max_allowed_packet(Some(PACKET_BYTES))
            .wait_timeout(Some(WAIT_TIMEOUT_SECS))
            .stmt_cache_size(0)
            // A row that an UPDATE finds counts, also where nothing in it changes.
            .client_found_rows(true)
            .tcp_keepalive(Some(KEEPALIVE))
            .ssl_opts(tls)
            .into();
        let given_up = GivenUp::default();
        Ok(MariadbTarget { name, opts, program, given_up, only_accounts: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> MariadbTarget {
        let url = MysqlUrl::parse(url).expect("a URL");
        let settings = MariadbSettings { url, password: None, ca_file: None };
        MariadbTarget::new(settings, Program::default()).expect("a target")
    }

    #[test]
    fn clear_text_stays_on_the_host_unless_the_url_says_otherwise() {
        for (url, has_tls) in [
            ("mysql://u@localhost/x", false),
            ("mysql://u@127.0.0.1/x", false),
            ("mysql://u@[::1]/x", false),
            ("mysql://u@/x?socket=/run/s", false),
            ("mysql://u@db.example/x?socket=/run/s", false),
            ("mysql://u@db.example/x?sslmode=disable", false),
        ] {
            assert_eq!(target(url).opts.ssl_opts().is_some(), has_tls, "{url}");
        }
        let system = rustls_native_certs::load_native_certs().certs;
        if !system.is_empty() {
            for url in ["mysql://u@db.example/x", "mysql://u@localhost/x?sslmode=verify-full"] {
                let opts = target(url).opts;
                let tls = opts.ssl_opts().expect("TLS");
                assert!(!tls.accept_invalid_certs() && !tls.skip_domain_validation(), "{url}");
                assert_eq!(tls.tls_hostname_override(), None, "{url}");
                assert!(tls.disable_built_in_roots() && !tls.root_certs().is_empty(), "{url}");
            }
        }
    }

    #[test]
    fn nothing_is_asked_of_the_server_at_a_login_that_we_know() {
        let opts = target("mysql://u@localhost/x").opts;
        assert!(!opts.prefer_socket() && opts.client_found_rows());
        assert!(opts.max_allowed_packet().is_some() && opts.wait_timeout().is_some());
    }
}
