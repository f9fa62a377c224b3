//! The configuration: what an administrator may set, what holds when nothing is set, and how it is
//! read.
//!
//! [`Config::load`] reads one file, the `conf.d/*.toml` beside it in name order, then
//! `ONEDROP__SECTION__KEY` variables; each layer overrides the ones before it (tables merge, lists
//! are replaced). Whatever is wrong in any of them is reported at once, each problem with its file
//! and line or its variable: a [`Loaded`] configuration has passed every check, so its URLs,
//! numbers and passwords do not fail later. No password is ever part of [`Config`].
//!
//! Defaults live here and nowhere else; `conf/onedrop.toml` states them and a test compares the
//! two. The keys with their types are in `config/schema.rs`, rules between keys in
//! `config/rules.rs`, the order of layers in `config/load.rs`.

mod layer;
mod listen;
mod load;
mod password;
mod problem;
mod rules;
mod schema;
mod suggest;
mod unknown;
mod url;
mod variables;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

pub use listen::{Listen, ListenError, SocketMode};
pub use load::{DEFAULT_FILE, Loaded};
pub use problem::{ConfigErrors, Origin, Problem, Warning};
pub use schema::known_keys;
pub use url::{LedgerUrl, StoreUrl, Tls, UrlError};

pub use crate::directory::AccountTemplate;
pub use crate::login::LoginForm;
pub use crate::message::DedupBy;
pub use crate::outcome::OverQuota;
pub use crate::sender::Trust;

/// Everything an administrator may set. [`Config::load`] is the way to get one that has been
/// checked.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `[ledger]`: the SQL record.
    pub ledger: LedgerSettings,
    /// `[store]`: where mailboxes live.
    pub store: StoreSettings,
    /// `[directory]`: which address belongs to which account.
    pub directory: DirectorySettings,
    /// `[sent]`: the copy in a local sender's Sent mailbox.
    pub sent: SentSettings,
    /// `[dedup]`: what makes two messages the same.
    pub dedup: DedupSettings,
    /// `[lock]`: waiting for and holding a copy.
    pub lock: LockSettings,
    /// `[limits]`: time and size.
    pub limits: LimitSettings,
    /// `[deliver]`: one message on stdin.
    pub deliver: DeliverSettings,
    /// `[lmtp]`: the server.
    pub lmtp: LmtpSettings,
    /// `[pool]`: the connections that the server keeps.
    pub pool: PoolSettings,
}

/// `[ledger]`
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct LedgerSettings {
    /// Engine and place; see [`LedgerSettings::engine`].
    pub url: LedgerUrl,
    /// File that holds the password, already read by [`Loaded::ledger_password`].
    pub password_file: Option<PathBuf>,
    /// PEM file of the CA that signed the server's certificate; `None`: the system's roots.
    pub ca_file: Option<PathBuf>,
    /// Keep statements prepared in the connections; not by way of a pooler that cannot.
    pub prepare: bool,
    /// Keep each message's bytes in the ledger, too.
    pub keep_raw: bool,
}

/// `[store]`
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct StoreSettings {
    /// Kind and place as written; [`StoreSettings::kind`] also heeds `starttls`.
    pub url: StoreUrl,
    /// `imap://` only: demand STARTTLS before logging in.
    pub starttls: bool,
    /// Authentication identity.
    pub user: String,
    /// How a login names the account.
    pub login: LoginForm,
    /// File that holds the password, already read by [`Loaded::store_password`].
    pub password_file: Option<PathBuf>,
    /// PEM file of the CA that signed the server's certificate; `None`: the system's roots.
    pub ca_file: Option<PathBuf>,
    /// Create and subscribe a mailbox that is missing.
    pub create_mailboxes: bool,
    /// What to do with mail for an account over its quota.
    pub over_quota: OverQuota,
}

/// `[directory]`
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct DirectorySettings {
    /// Domains, in lower case, whose addresses are accounts.
    pub domains: Vec<String>,
    /// Names the account of an address in one of them.
    pub account: AccountTemplate,
    /// Each character of it ends the account's part of an address, as in Postfix; empty: none does.
    pub recipient_delimiter: String,
    /// Address in lower case to account; asked before `domains`.
    pub accounts: BTreeMap<String, String>,
    /// SQL that finds the account of the address `$1` (`$2`: with its detail) in the ledger's
    /// database.
    pub query: Option<String>,
}

/// `[sent]`
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct SentSettings {
    /// When a From address is believed.
    pub trust: Trust,
    /// Whose top-most Authentication-Results count; empty: nobody's.
    pub authserv_id: String,
    /// The mailbox of the sender's copy.
    pub mailbox: String,
}

/// `[dedup]`
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct DedupSettings {
    /// What makes two messages the same.
    pub by: DedupBy,
}

/// `[lock]`
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct LockSettings {
    /// Seconds to wait for another process before a temporary failure; 0: try once.
    pub wait_secs: u64,
    /// Seconds a copy stays ours after we claimed it.
    pub lease_secs: u64,
}

/// `[limits]`
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct LimitSettings {
    /// Seconds a delivery may take; shorter than the lease.
    pub deadline_secs: u64,
    /// Seconds of the deadline kept for the store's answer to an append.
    pub answer_secs: u64,
    /// Largest message taken, in bytes; 0: no limit.
    pub message_bytes: u64,
}

/// `[deliver]`
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct DeliverSettings {
    /// The socket of the LMTP server that takes the message; where nobody listens, and with `None`,
    /// the process delivers by itself.
    pub via: Option<PathBuf>,
}

/// `[lmtp]`
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct LmtpSettings {
    /// Where to listen, without systemd's sockets and `--listen`; no place twice.
    pub listen: Vec<Listen>,
    /// Who may connect to a Unix socket that is made for it.
    pub socket_mode: SocketMode,
    /// The group that such a socket gets, by its name; empty: the process' own, or that of a
    /// set-group-ID folder.
    pub socket_group: String,
    /// Clients at a time.
    pub connections: usize,
    /// What happens to a client beyond these.
    pub when_full: WhenFull,
    /// Recipients of a message; more get 452 4.5.3.
    pub recipients: usize,
    /// Recipients of one message that are placed at once.
    pub side_by_side: usize,
    /// Seconds without a word from the client until 421 4.4.2.
    pub idle_secs: u64,
    /// Bytes of a message that are kept in memory; a larger one goes to an unnamed file.
    pub spool_bytes: u64,
    /// The folder of these files, an absolute path.
    pub spool_dir: PathBuf,
    /// Where `/metrics` is served, without a password; `None`: nowhere.
    pub metrics: Option<SocketAddr>,
}

/// What happens to a client when `lmtp.connections` others are there.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum WhenFull {
    /// It is told 421 4.3.2, and closed.
    Refuse,
    /// It stays in the listen queue until another one leaves.
    Wait,
}

/// `[pool]`
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct PoolSettings {
    /// Ledger sessions at a time; each placing needs one.
    pub ledger: usize,
    /// IMAP sessions kept; 0: none.
    pub store: usize,
    /// Store sessions at a time for one account.
    pub per_account: usize,
    /// Seconds after which an unused session is closed.
    pub idle_secs: u64,
}

impl Default for LedgerSettings {
    fn default() -> Self {
        let path = PathBuf::from("/var/lib/onedrop/ledger.db");
        Self {
            url: LedgerUrl::Sqlite { path },
            password_file: None,
            ca_file: None,
            prepare: false,
            keep_raw: false,
        }
    }
}

impl Default for StoreSettings {
    fn default() -> Self {
        let root = PathBuf::from("/var/lib/onedrop/mail");
        Self {
            url: StoreUrl::Maildir { root },
            starttls: true,
            user: "mda".to_owned(),
            login: LoginForm::Sasl,
            password_file: None,
            ca_file: None,
            create_mailboxes: true,
            over_quota: OverQuota::Defer,
        }
    }
}

impl Default for DirectorySettings {
    fn default() -> Self {
        Self {
            domains: Vec::new(),
            account: AccountTemplate::default(),
            recipient_delimiter: "+".to_owned(),
            accounts: BTreeMap::new(),
            query: None,
        }
    }
}

impl Default for SentSettings {
    fn default() -> Self {
        Self { trust: Trust::Never, authserv_id: String::new(), mailbox: "Sent".to_owned() }
    }
}

impl Default for DedupSettings {
    fn default() -> Self {
        Self { by: DedupBy::Content }
    }
}

impl Default for LockSettings {
    fn default() -> Self {
        Self { wait_secs: 5, lease_secs: 90 }
    }
}

impl Default for LimitSettings {
    fn default() -> Self {
        Self { deadline_secs: 60, answer_secs: 20, message_bytes: 0 }
    }
}

impl Default for LmtpSettings {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            socket_mode: SocketMode(0o660),
            socket_group: String::new(),
            connections: 100,
            when_full: WhenFull::Refuse,
            recipients: 1000,
            side_by_side: 10,
            idle_secs: 300,
            spool_bytes: 1 << 20,
            spool_dir: PathBuf::from("/var/tmp"),
            metrics: None,
        }
    }
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self { ledger: 10, store: 256, per_account: 4, idle_secs: 60 }
    }
}

impl LedgerSettings {
    /// The engine to use and where it is.
    pub fn engine(&self) -> LedgerUrl {
        self.url.clone()
    }
}

impl StoreSettings {
    /// The kind of store, where it is, and how the way there is protected (`url` and `starttls`
    /// together).
    pub fn kind(&self) -> StoreUrl {
        match self.url.clone() {
            StoreUrl::Imap { host, port, tls: Tls::StartTls } if !self.starttls => {
                StoreUrl::Imap { host, port, tls: Tls::None }
            }
            other => other,
        }
    }
}

impl DirectorySettings {
    /// Whether no address can have an account, because nothing here names one.
    ///
    /// Whoever decides about a recipient should treat this as a broken configuration (temporary),
    /// not as an unknown recipient: an emptied file must not send all mail back.
    pub fn knows_nobody(&self) -> bool {
        self.domains.is_empty() && self.accounts.is_empty() && self.query.is_none()
    }
}
