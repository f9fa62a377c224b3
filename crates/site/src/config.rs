//! The configuration: what an administrator may set, what holds when nothing is set, and how it is
//! read.
//!
//! [`Config::load`] reads one file, the `conf.d/*.toml` beside it in name order, then
//! `ONEDROP__SECTION__KEY` variables; each layer overrides the ones before it (tables merge, lists
//! are replaced). Whatever is wrong in any of them is reported at once, each problem with its file
//! and line or its variable: a [`Loaded`] configuration has passed every check, so its URLs,
//! numbers and passwords do not fail later. No password is ever part of [`Config`].
//!
//! Each key has its default and its check in `config/schema.rs`, and its type and meaning here;
//! those of `[jobs.NAME]` are in `config/jobs.rs`.
//! Rules between keys are in `config/rules.rs`, the order of layers in `config/load.rs`.

mod digests;
mod filing;
mod job_rules;
mod jobs;
mod layer;
mod listen;
mod load;
mod password;
mod problem;
mod rules;
mod schema;
mod shared;
mod suggest;
mod unknown;
mod url;
mod variables;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de::Error};

use crate::filing::FileRule;
use onedrop_core::deliver::Policy;
use onedrop_core::directory::{AccountTemplate, Detail, Directory, Home};
use onedrop_core::duration;
use onedrop_core::login::LoginForm;
use onedrop_core::message::DedupBy;
use onedrop_core::outcome::{OverQuota, UnknownAccount};
use onedrop_core::sender::Trust;
use onedrop_core::store::TrustSearch;
use onedrop_net::lmtp::LmtpPlace;
use onedrop_net::postgres_url::Prepare;
use onedrop_net::tls::Tls;

pub use jobs::job_keys;
pub use listen::{Listen, SocketMode};
pub use load::{DEFAULT_FILE, Loaded, named_file, shown_file};
pub use onedrop_locks::jobs::{Backfill, JobSettings, JobsSettings, RunIn};
pub use password::fault as password_fault;
pub use problem::{ConfigErrors, Origin, Problem};
pub use rules::OWN_ROLE;
pub use schema::known_keys;
pub use suggest::closest;
pub use url::{LedgerUrl, StoreUrl};

/// What a command opens, and so whose passwords and certificates are read. Deliveries need more
/// than those who ask what is on record: another user may read the ledger's password alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opens {
    /// Ledger, store and directory.
    Everything,
    /// Ledger and store.
    Mailboxes,
    Ledger,
    /// The ledger, by the role of the pages if they have one of their own.
    Pages,
}

/// Everything an administrator may set. [`Config::load`] is the way to get one that has been
/// checked; the default has what holds when nothing is set.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub ledger: LedgerSettings,
    pub retention: RetentionSettings,
    pub store: StoreSettings,
    pub directory: DirectorySettings,
    /// `[[file]]`: the first rule that applies names the mailbox.
    #[serde(default)]
    pub file: Vec<FileRule>,
    pub sent: SentSettings,
    pub dedup: DedupSettings,
    pub lock: LockSettings,
    pub limits: LimitSettings,
    pub deliver: DeliverSettings,
    pub lmtp: LmtpSettings,
    pub web: WebSettings,
    pub pool: PoolSettings,
    pub jobs: JobsSettings,
}

/// `[ledger]`: the SQL record.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct LedgerSettings {
    /// Engine and place.
    #[serde(deserialize_with = "parsed")]
    pub url: LedgerUrl,
    /// File that holds the password, already read by [`Loaded::ledger_password`].
    pub password_file: Option<PathBuf>,
    /// PEM file of the CA that signed the server's certificate; `None`: the system's roots.
    pub ca_file: Option<PathBuf>,
    pub prepare: Prepare,
    /// Announce each new message by NOTIFY.
    pub notify: bool,
    /// Keep each message's bytes in the ledger, too.
    pub keep_raw: bool,
}

/// `[retention]`: what `onedrop purge` takes out of the ledger.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct RetentionSettings {
    /// Days after which a message, its copies and attempts are forgotten.
    pub days: u64,
    /// Days after which it is forgotten who wrote to whom about what.
    pub facts_days: u64,
    /// Days after which the bytes of messages go, and of Sent copies that could not be placed.
    pub raw_days: u64,
}

/// `[store]`: where mailboxes live.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct StoreSettings {
    /// Kind and place as written; [`StoreSettings::kind`] also heeds `starttls`.
    #[serde(deserialize_with = "parsed")]
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
    /// Where recipients' own copies are handed over to the mail server's delivery; `None`: they are
    /// written like all others.
    #[serde(default, deserialize_with = "lmtp_if_set")]
    pub lmtp: Option<LmtpPlace>,
    /// Create and subscribe a mailbox that is missing.
    pub create_mailboxes: bool,
    /// Whether a look believes the server's SEARCH.
    pub trust_search: TrustSearch,
    /// How long the server waits for a mailbox's lock at the least (`mail_max_lock_timeout` of
    /// Dovecot), in seconds.
    pub lock_timeout_secs: u64,
    /// What to do with mail for an account over its quota.
    pub over_quota: OverQuota,
}

/// `[directory]`: which address belongs to which account, and where that is asked.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(from = "DirectoryKeys")]
pub struct DirectorySettings {
    pub addresses: Directory,
    /// Where the query is asked; `None`: in the ledger's database.
    pub url: Option<LedgerUrl>,
    /// What the mail server's "no such account" means.
    pub unknown_account: UnknownAccount,
    /// File that holds the password, already read by [`Loaded::directory_password`].
    pub password_file: Option<PathBuf>,
    /// PEM file of the CA that signed the server's certificate; `None`: the system's roots.
    pub ca_file: Option<PathBuf>,
}

/// The file as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DirectoryKeys {
    domains: Vec<String>,
    account: AccountTemplate,
    recipient_delimiter: String,
    detail: Detail,
    accounts: BTreeMap<String, Home>,
    query: Option<String>,
    #[serde(default, deserialize_with = "parsed_if_set")]
    url: Option<LedgerUrl>,
    #[serde(default, deserialize_with = "socket_if_set")]
    userdb: Option<PathBuf>,
    unknown_account: UnknownAccount,
    password_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
}

impl From<DirectoryKeys> for DirectorySettings {
    fn from(keys: DirectoryKeys) -> DirectorySettings {
        let DirectoryKeys { domains, account, recipient_delimiter, detail, .. } = keys;
        let (accounts, query, userdb) = (keys.accounts, keys.query, keys.userdb);
        DirectorySettings {
            addresses: Directory {
                domains,
                account,
                recipient_delimiter,
                detail,
                accounts,
                query,
                userdb,
            },
            url: keys.url,
            unknown_account: keys.unknown_account,
            password_file: keys.password_file,
            ca_file: keys.ca_file,
        }
    }
}

/// What it says of addresses.
impl Deref for DirectorySettings {
    type Target = Directory;

    fn deref(&self) -> &Directory {
        &self.addresses
    }
}

/// `[sent]`: the copy in a local sender's Sent mailbox.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct SentSettings {
    /// When a From address is believed.
    pub trust: Trust,
    /// The authserv-id whose top-most Authentication-Results count (RFC 8601 section 2.5); empty:
    /// none do.
    pub authserv_id: String,
    /// How long the sender's own mail program gets to save its copy. Zero: ours is written with the
    /// delivery.
    #[serde(deserialize_with = "time")]
    pub after: Duration,
    /// The mailbox of the sender's copy.
    pub mailbox: String,
}

/// `[dedup]`
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct DedupSettings {
    /// What makes two messages the same.
    pub by: DedupBy,
    /// Further names by which the site's Postfix calls itself in Received.
    pub received_by: Vec<String>,
    /// What makes two copies of one message differ where filters run: names in lower case.
    pub filter_fields: Vec<String>,
}

/// `[lock]`: waiting for and holding a copy.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct LockSettings {
    /// Seconds to wait for another process before a temporary failure; 0: try once.
    pub wait_secs: u64,
    /// Seconds a copy stays ours after we claimed it.
    pub lease_secs: u64,
}

/// `[limits]`: time and size.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct LimitSettings {
    /// Seconds a delivery may take; shorter than the lease.
    pub deadline_secs: u64,
    /// Seconds of the deadline kept for the store's answer to an append.
    pub answer_secs: u64,
    /// Largest message taken, in bytes; 0: no limit.
    pub message_bytes: u64,
}

/// `[deliver]`: one message on stdin.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct DeliverSettings {
    /// The socket of the LMTP server that takes the message; if no server listens, and with `None`,
    /// the process delivers by itself.
    pub via: Option<PathBuf>,
    /// What is missing is made: the ledger's file, the root of Maildirs, an account's folder.
    pub trial: bool,
}

/// `[lmtp]`: the server.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct LmtpSettings {
    /// Where to listen, without systemd's sockets and `--listen`; no place twice.
    pub listen: Vec<Listen>,
    /// The Unix socket to which all users of the host may connect, each to deliver to its own
    /// account; `None`: there is none.
    pub users: Option<PathBuf>,
    /// The permission bits of a Unix socket that is made for it.
    #[serde(deserialize_with = "parsed")]
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
    /// It gets 421 4.3.2, and is closed.
    Refuse,
    /// It stays in the listen queue until another one leaves.
    Wait,
}

/// `[web]`: the pages.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct WebSettings {
    /// Where `onedrop web` listens, without systemd's sockets and `--listen`.
    #[serde(default, deserialize_with = "parsed_if_set")]
    pub listen: Option<Listen>,
    /// Names by which the pages may be asked for, beside localhost and addresses.
    pub hosts: Vec<String>,
    /// Whether subjects are shown and searched.
    pub show_subjects: bool,
    /// File with the password that browsers are asked for, read by [`Loaded::web_password`].
    pub password_file: Option<PathBuf>,
    /// The ledger as the pages open it; `None`: as deliveries do.
    #[serde(default, deserialize_with = "parsed_if_set")]
    pub ledger_url: Option<LedgerUrl>,
    /// File with the password for that, read by [`Loaded::ledger_password`] for [`Opens::Pages`].
    pub ledger_password_file: Option<PathBuf>,
}

impl WebSettings {
    /// What there is to say against listening there: others can reach it, and no password is asked.
    pub fn open_to_others(&self, place: SocketAddr) -> Option<String> {
        let is_open = !place.ip().is_loopback() && self.password_file.is_none();
        is_open.then(|| {
            format!(
                "{place} is open to other hosts, and the pages say who wrote to whom: set \
                 web.password_file, or listen on 127.0.0.1 or a Unix socket behind a proxy"
            )
        })
    }
}

/// `[pool]`: the connections that the server keeps.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
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

impl Config {
    /// What it says about a delivery.
    pub fn policy(&self) -> Policy {
        Policy {
            lease: Duration::from_secs(self.lock.lease_secs),
            wait: Duration::from_secs(self.lock.wait_secs),
            keep_raw: self.ledger.keep_raw,
            sent_after: self.sent.after,
            over_quota: self.store.over_quota,
            unknown_account: self.directory.unknown_account,
            begins_early: true,
            keeps_sessions: true,
            side_by_side: self.lmtp.side_by_side,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        let merged = load::merged(Vec::new()).and_then(::config::Config::try_deserialize);
        merged.expect("the schema's defaults fit their keys")
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

/// Reads a string by `FromStr`.
fn parsed<'de, D: Deserializer<'de>, T>(from: D) -> Result<T, D::Error>
where
    T: FromStr<Err: Display>,
{
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

/// The same, where there is one.
fn parsed_if_set<'de, D: Deserializer<'de>, T>(from: D) -> Result<Option<T>, D::Error>
where
    T: FromStr<Err: Display>,
{
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
}

/// Reads `store.lmtp`, where there is one.
fn lmtp_if_set<'de, D: Deserializer<'de>>(from: D) -> Result<Option<LmtpPlace>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    text.map(|text| url::lmtp_place(&text).map_err(D::Error::custom)).transpose()
}

/// Reads `unix:` and a path, where there is one.
fn socket_if_set<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    Ok(text.map(|text| text.strip_prefix("unix:").unwrap_or(&text).into()))
}

/// Reads a length of time.
fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    duration::parse(&String::deserialize(from)?).map_err(D::Error::custom)
}
