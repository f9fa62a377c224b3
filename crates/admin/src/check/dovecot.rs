//! The local Dovecot in `onedrop check`: the settings that the promise about appends relies on, and
//! what Dovecot does for its own deliveries but not for an append. `conf.rs` parses the output of
//! `doveconf -n`, rules without I/O judge it. Only the Dovecot that has the mailboxes
//! is judged: on this host, or named by `--dovecot`. Nothing is changed.
//!
//! Sources: doveconf(1), doc/wiki of Dovecot 2.3, <https://doc.dovecot.org/2.4.1>.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::finding::{Finding, Remarks, Severity};
use super::program;
use onedrop_core::store::TrustSearch;
use onedrop_site::config::{Config, StoreUrl};

mod compiled;
mod conf;
mod guard;
mod handed;

use conf::Conf;
pub(super) use guard::SeenGuard;

/// Dovecot's default for `mail_max_userip_connections`.
const SESSIONS: u64 = 10;
/// The number of locks that an APPEND may wait for, one after the other.
const LOCKS: u64 = 3;

/// What Dovecot is compared with.
struct ExpectedDovecot<'a> {
    config: &'a Config,
    /// Our address as Dovecot sees it; `None` for Maildirs.
    client: Option<IpAddr>,
}

/// Findings about the Dovecot of this host, or the one with the configuration `file`, and what the
/// guard of `store.lmtp` is there, where copies are handed over. doveconf runs no longer than
/// `time`.
pub(super) fn findings(
    file: Option<&Path>,
    config: &Config,
    time: Duration,
) -> (Vec<Finding>, SeenGuard) {
    let is_named = file.is_some();
    let found = match settings(file, config, time) {
        Ok((conf, client)) => {
            let guard = match config.store.lmtp {
                Some(_) => guard::seen(&conf),
                None => SeenGuard::Unseen,
            };
            return (judged(&conf, &ExpectedDovecot { config, client }), guard);
        }
        Err(found) => found,
    };
    // Reports, rather than passes over, what no test could reach.
    let found = match &config.store.lmtp {
        Some(_) if found.is_empty() && !is_named => vec![Finding::new(
            Severity::Warning,
            "dovecot",
            "its settings cannot be seen from here: whether the guard of store.lmtp \
             (conf/dovecot/onedrop-guard.sieve) is in force was not tested; run onedrop check on \
             the mail server's host",
        )],
        _ => found,
    };
    (found, SeenGuard::Unseen)
}

/// Its settings, and our address as it sees it.
///
/// # Errors
/// They cannot be seen: what to say of that.
fn settings(
    file: Option<&Path>,
    config: &Config,
    time: Duration,
) -> Result<(Conf, Option<IpAddr>), Vec<Finding>> {
    let client = match config.store.kind() {
        StoreUrl::Maildir { .. } => None,
        StoreUrl::Imap { host, port, .. } => match our_address(&host, port) {
            Some((client, is_here)) if is_here || file.is_some() => Some(client),
            _ if file.is_some() => Some(Ipv4Addr::LOCALHOST.into()),
            _ => return Err(Vec::new()), // another host's settings are not here
        },
    };
    let finding = |level, text: &str| vec![Finding::new(level, "dovecot", text)];
    let Some(doveconf) = program::find("doveconf") else {
        return Err(match file {
            None => Vec::new(),
            Some(_) => finding(Severity::Error, "no program doveconf in PATH or /usr/bin"),
        });
    };
    let mut command = Command::new(doveconf);
    if let Some(file) = file {
        command.arg("-c").arg(file);
    }
    command.arg("-n").env("LC_ALL", "C");
    match program::output(&mut command, Instant::now() + time) {
        Ok(output) => Ok((Conf::read(&output), client)),
        // Often only root may read its files; a named file must be readable.
        Err(why) if file.is_some() => Err(finding(Severity::Error, &why)),
        Err(why) => {
            let severity = match &config.store.lmtp {
                Some(_) => Severity::Warning,
                None => Severity::Ok,
            };
            Err(finding(severity, &format!("nothing about Dovecot was tested: {why}")))
        }
    }
}

/// The findings for `output`, for IMAP from this host and for Maildirs, without I/O.
pub fn of_output(output: &str) -> Vec<Finding> {
    let (conf, config) = (Conf::read(output), Config::default());
    let clients = [Some(Ipv4Addr::LOCALHOST.into()), None];
    let ours = |client| ExpectedDovecot { config: &config, client };
    clients.into_iter().flat_map(|client| judged(&conf, &ours(client))).collect()
}

fn judged(conf: &Conf, ours: &ExpectedDovecot<'_>) -> Vec<Finding> {
    let mut remarks = Remarks::default();
    if let Some(client) = ours.client {
        lock_timeout(conf, ours, "imap", &mut remarks);
        login_penalty(conf, client, &mut remarks);
        sessions(conf, ours, &mut remarks);
        if conf.value("imap", "mail_fsync") == Some("never") {
            remarks.error(
                "mail_fsync = never: mail that was reported as delivered is lost when the power \
                 fails; set it to optimized, at least in protocol imap",
            );
        }
    }
    if ours.client.is_some() {
        index(conf, ours, &mut remarks);
    }
    place(conf, ours.config, &mut remarks);
    match ours.config.store.lmtp {
        Some(_) => {
            lock_timeout(conf, ours, "lmtp", &mut remarks);
            guard::judge(conf, &mut remarks);
            handed::judge(conf, ours.config, &mut remarks);
        }
        None => plugins(conf, ours, &mut remarks),
    }
    remarks.summarize(|| "its settings fit".to_owned());
    remarks.findings("dovecot", "").collect()
}

/// Maildirs that Dovecot does not serve have no reader. Its user database may name others.
fn place(conf: &Conf, config: &Config, remarks: &mut Remarks) {
    let StoreUrl::Maildir { root } = config.store.kind() else { return };
    let Some((driver, path)) = conf.mail_place() else { return };
    // The folder above the first that differs from user to user.
    let common = |path: &str| {
        let fixed = path.split(['%', '{']).next().unwrap_or_default();
        let above = fixed.rfind('/').map_or("", |at| &fixed[..at]);
        std::path::PathBuf::from(if fixed.len() < path.len() { above } else { fixed })
    };
    let (ours, theirs) = (common(&root.to_string_lossy()), common(path));
    let is_elsewhere = path.starts_with('/')
        && root.is_absolute()
        && !(ours.starts_with(&theirs) || theirs.starts_with(&ours));
    if driver != "maildir" || is_elsewhere {
        remarks.warning(format!(
            "Dovecot serves {driver}:{path}, and Onedrop writes Maildirs under {} (store.url): \
             unless a userdb says otherwise, no user sees what is delivered; \
             conf/dovecot/onedrop-maildirs.conf serves them, docs/set-up-maildirs.md writes where \
             Dovecot reads",
            root.display()
        ));
    }
}

/// What has no answer in time, an append or what is handed over, must not take effect later; and a
/// mailbox that a look sees as it was must take longer to open than one that is up to date.
fn lock_timeout(conf: &Conf, ours: &ExpectedDovecot<'_>, protocol: &str, remarks: &mut Remarks) {
    const NAME: &str = "mail_max_lock_timeout";
    const KEY: &str = "store.lock_timeout_secs";
    let answer = ours.config.limits.answer_secs;
    let (what, least) = match protocol {
        "imap" => ("an append", ours.config.store.lock_timeout_secs),
        _ => ("what is handed over", 1),
    };
    let fits = answer.saturating_sub(1) / LOCKS;
    let mend = match fits < least {
        true => format!(
            "set limits.answer_secs = {} or more, and {NAME} = {least} secs in protocol {protocol}",
            LOCKS * least + 1
        ),
        false => format!("set {NAME} = {} secs in protocol {protocol}", fits.min(least.max(5))),
    };
    let longer = format!(
        "{what} may take effect after another try has looked and found nothing, and the mailbox \
         has two copies until onedrop verify --repair"
    );
    let value = conf.value(protocol, NAME).unwrap_or("0");
    match conf::seconds(value) {
        Some(0) => remarks.warning(format!(
            "{NAME} is not set: Dovecot waits for a mailbox's lock for two minutes and more; \
             {longer}; {mend}"
        )),
        Some(secs) if secs * LOCKS >= answer => remarks.warning(format!(
            "{NAME} = {value}: {what} waits for up to {LOCKS} locks, longer than for its answer \
             (limits.answer_secs = {answer}); {longer}; {mend}"
        )),
        Some(secs) if secs < least => remarks.warning(format!(
            "{NAME} = {value}: Dovecot shows a mailbox whose lock it does not get as it last knew \
             it, and sooner than {KEY} = {least} says, so that a look cannot see the difference, \
             and {longer}; {mend}, or {KEY} to no more"
        )),
        Some(_) => {}
        None => remarks.warning(format!("{NAME} = {value} is not understood; {mend}")),
    }
}

/// After a failed login, also for an unknown account, Dovecot delays all logins from that address,
/// trusted or not (src/auth/auth-penalty.c), unless the passdb says otherwise.
fn login_penalty(conf: &Conf, client: IpAddr, remarks: &mut Remarks) {
    let is_off = conf
        .setting(&["service anvil", "unix_listener anvil-auth-penalty"], "mode")
        .is_some_and(|mode| !mode.is_empty() && mode.chars().all(|digit| digit == '0'));
    if !is_off && !conf.has_passdb_field("nodelay") {
        remarks.warning(format!(
            "no passdb has override_fields = nodelay=y (2.4: fields {{ nodelay = yes }}): after a \
             failed login (an account that is not there) Dovecot lets every login from {client} \
             wait, by up to 15 s; add it to the master user's passdb"
        ));
    }
}

fn sessions(conf: &Conf, ours: &ExpectedDovecot<'_>, remarks: &mut Remarks) {
    const NAME: &str = "mail_max_userip_connections";
    let value = conf.value("imap", NAME);
    let Some(most) = value.map_or(Some(SESSIONS), |value| value.parse().ok()) else { return };
    let per_account = ours.config.pool.per_account as u64;
    let by_default = if value.is_none() { " (the default)" } else { "" };
    // 0 means no limit.
    if most != 0 && most <= per_account {
        remarks.warning(format!(
            "{NAME} = {most}{by_default}: onedrop lmtp may hold {per_account} sessions of an \
             account (pool.per_account), and its owner's mail programs at this address need some; \
             raise it"
        ));
    }
}

/// Looks are answered from an index, if there is one.
fn index(conf: &Conf, ours: &ExpectedDovecot<'_>, remarks: &mut Remarks) {
    let has_index = conf.plugins("imap").any(|plugin| plugin == "fts");
    if has_index && ours.config.store.trust_search != TrustSearch::Never {
        remarks.warning(
            "the plugin fts is in mail_plugins of protocol imap: if its index lags behind, \
             Onedrop's look for a copy in doubt may miss it, and the mailbox has two; set \
             store.trust_search = \"never\"",
        );
    }
}

/// What Dovecot would do for a delivery of its own.
fn plugins(conf: &Conf, ours: &ExpectedDovecot<'_>, remarks: &mut Remarks) {
    const ITS_OWN: [&str; 2] = ["lmtp", "lda"];
    let has = |plugin: &str, protocol: &str| conf.plugins(protocol).any(|one| one == plugin);
    let how = match ours.client {
        Some(_) => "appends by IMAP",
        None => "writes into the Maildirs",
    };
    if let Some(by) = ITS_OWN.into_iter().find(|protocol| has("sieve", protocol)) {
        remarks.warning(format!(
            "the plugin sieve is in mail_plugins of protocol {by}: users' Sieve filters do not \
             run, because Onedrop {how}"
        ));
    }
    let counting = ITS_OWN.into_iter().find(|protocol| has("quota", protocol));
    match counting {
        _ if ours.client.is_none() && (counting.is_some() || has("quota", "imap")) => {
            remarks.warning(
                "the plugin quota counts what Dovecot itself writes: Onedrop writes into the \
                 Maildirs, past users' quotas",
            );
        }
        Some(elsewhere) if !has("quota", "imap") => remarks.warning(format!(
            "the plugin quota is in mail_plugins of protocol {elsewhere} and not of protocol imap: \
             Onedrop's appends go past users' quotas; add it to protocol imap"
        )),
        _ => {}
    }
}

/// Our address as a server at `host` sees it, and whether the server is on this host. Sends
/// nothing.
fn our_address(host: &str, port: u16) -> Option<(IpAddr, bool)> {
    let server = (host, port).to_socket_addrs().ok()?.next()?;
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(server).ok()?;
    // Only this host's addresses can be bound.
    let is_here = UdpSocket::bind((server.ip(), 0)).is_ok();
    Some((socket.local_addr().ok()?.ip(), is_here))
}
