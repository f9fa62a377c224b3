//! What several keys must agree on, and what the files they name must be. Runs on the merged
//! configuration.
//!
//! A rule is skipped where one of its keys has already been refused: its default is not what was
//! meant. A problem is reported where the last of the keys in question was set.

use std::path::Path;

use secrecy::SecretString;

use super::layer::Findings;
use super::listen::Listen;
use super::problem::{Origin, shown_name, shown_path};
use super::url::{LedgerUrl, StoreUrl, Tls};
use super::{Config, password};
use crate::directory::FolderTemplate;
use crate::login::LoginForm;
use crate::net::is_loopback;

/// Postfix's default for `command_time_limit`: going over it returns the mail to its sender.
const POSTFIX_LIMIT_SECS: u64 = 1000;

/// Postfix's default for `lmtp_data_done_timeout`, and what the way there and back may take of it.
const POSTFIX_LMTP_SECS: u64 = 600;
const LMTP_MARGIN_SECS: u64 = 60;

/// The passwords of a configuration.
#[derive(Debug, Default)]
pub(super) struct Passwords {
    pub ledger: Option<SecretString>,
    pub store: Option<SecretString>,
}

/// Applies every rule, and reads the passwords while at it.
pub(super) fn check(
    config: &Config,
    credentials_directory: Option<&Path>,
    findings: &mut Findings,
) -> Passwords {
    if findings.incomplete {
        return Passwords::default();
    }
    times(config, findings);
    store(config, findings);
    server(config, findings);
    shared_accounts(config, findings);
    accounts_without_folder(config, findings);
    relative_paths(config, findings);
    if config.directory.knows_nobody()
        && knows(findings, &["directory.domains", "directory.accounts", "directory.query"])
    {
        let text = "directory: no domains, no accounts and no query: nobody can get mail";
        findings.warning(findings.origin("directory.domains"), text.to_owned());
    }
    let ledger = &config.ledger;
    certificate("ledger.ca_file", ledger.ca_file.as_deref(), findings);
    certificate("store.ca_file", config.store.ca_file.as_deref(), findings);
    let mut read = |key, path: Option<&Path>| match password::read(path?, credentials_directory) {
        Ok(password) => Some(password),
        Err(why) => {
            findings.problem(findings.origin(key), format!("{key}: {why}"));
            None
        }
    };
    Passwords {
        ledger: read("ledger.password_file", ledger.password_file.as_deref()),
        store: read("store.password_file", config.store.password_file.as_deref()),
    }
}

fn times(config: &Config, findings: &mut Findings) {
    let (deadline, answer) = (config.limits.deadline_secs, config.limits.answer_secs);
    let (wait, lease) = (config.lock.wait_secs, config.lock.lease_secs);
    if deadline >= lease {
        let text = format!(
            "limits.deadline_secs ({deadline}) must be less than lock.lease_secs ({lease}): \
             whoever writes must have given up before another may"
        );
        broken(findings, &["limits.deadline_secs", "lock.lease_secs"], text);
    }
    if deadline >= POSTFIX_LIMIT_SECS {
        let text = format!(
            "limits.deadline_secs ({deadline}) must be less than {POSTFIX_LIMIT_SECS}: \
             at Postfix's command_time_limit the mail goes back to its sender"
        );
        broken(findings, &["limits.deadline_secs"], text);
    }
    if answer >= deadline {
        let text = format!(
            "limits.answer_secs ({answer}) must be less than limits.deadline_secs ({deadline}), of \
             which it is a part"
        );
        broken(findings, &["limits.deadline_secs", "limits.answer_secs"], text);
    } else if wait >= deadline - answer {
        let left = deadline - answer;
        let text = format!(
            "lock.wait_secs ({wait}) must be less than limits.deadline_secs without \
             limits.answer_secs ({left}): nothing would be left for the delivery"
        );
        broken(findings, &["lock.wait_secs", "limits.deadline_secs", "limits.answer_secs"], text);
    }
    let most = POSTFIX_LMTP_SECS - LMTP_MARGIN_SECS;
    if deadline + answer > most {
        let text = format!(
            "limits.deadline_secs ({deadline}) + limits.answer_secs ({answer}) is more than \
             {most}: \"onedrop lmtp\" may answer after Postfix has lost patience \
             (lmtp_data_done_timeout, {POSTFIX_LMTP_SECS} s) and tries again"
        );
        doubtful(findings, &["limits.deadline_secs", "limits.answer_secs"], text);
    }
}

fn store(config: &Config, findings: &mut Findings) {
    if !knows(findings, &["store.url", "store.starttls"]) {
        return;
    }
    let StoreUrl::Imap { host, tls, .. } = config.store.kind() else { return };
    if config.store.user.is_empty() {
        broken(
            findings,
            &["store.url", "store.user"],
            "store.user: an IMAP store needs a user to log in as".to_owned(),
        );
    }
    if let LoginForm::Template(template) = &config.store.login
        && knows(findings, &["store.user", "store.login"])
        && let Err(why) = template.name("account", &config.store.user)
    {
        broken(findings, &["store.user", "store.login"], why);
    }
    if config.store.password_file.is_none() {
        let text = "store.password_file: an IMAP store needs the password of store.user".to_owned();
        broken(findings, &["store.url", "store.password_file"], text);
    }
    if tls == Tls::None && !is_loopback(&host) {
        let text =
            format!("store.starttls: false sends the password and all mail to {host} unprotected");
        findings.warning(last_origin(findings, &["store.starttls"]), text);
    }
}

fn server(config: &Config, findings: &mut Findings) {
    let lmtp = &config.lmtp;
    for (at, place) in lmtp.listen.iter().enumerate() {
        if lmtp.listen.iter().take(at).any(|before| before == place) {
            broken(
                findings,
                &["lmtp.listen"],
                format!("lmtp.listen: {} is there twice", shown_name(&place.to_string())),
            );
        }
        if let (Listen::Tcp(address), Some(metrics)) = (place, lmtp.metrics)
            && *address == metrics
            && metrics.port() != 0
        {
            let text = format!(
                "lmtp.metrics: {metrics} is also in lmtp.listen; give it a port of its own"
            );
            broken(findings, &["lmtp.listen", "lmtp.metrics"], text);
        }
    }
    let (side_by_side, sessions, per_account) =
        (lmtp.side_by_side, config.pool.ledger, config.pool.per_account);
    if side_by_side > sessions {
        let text = format!(
            "lmtp.side_by_side ({side_by_side}) is more than pool.ledger ({sessions}): \
             the recipients beyond that may wait for a ledger session"
        );
        doubtful(findings, &["lmtp.side_by_side", "pool.ledger"], text);
    }
    if per_account >= sessions {
        let text = format!(
            "pool.per_account ({per_account}) is not less than pool.ledger ({sessions}): \
             one mailbox that hangs holds every ledger session, and all mail waits"
        );
        doubtful(findings, &["pool.per_account", "pool.ledger"], text);
    }
}

/// No two people share an account because their addresses differ in the domain only.
fn shared_accounts(config: &Config, findings: &mut Findings) {
    let directory = &config.directory;
    if directory.query.is_some() {
        return; // it says whose account it is
    }
    let template = &directory.account;
    if template.is_address() {
        return;
    }
    let domains = &directory.domains;
    let pairs = domains
        .iter()
        .enumerate()
        .flat_map(|(at, one)| domains[..at].iter().map(move |other| (other, one)));
    let shares = |(one, other): &(&String, &String)| one != other && template.may_share(one, other);
    let Some((one, other)) = pairs.into_iter().find(shares) else { return };
    let (one, other) = (shown_name(one), shown_name(other));
    let text = format!(
        "directory.account: \"{template}\" may give one account to people in {one} and in {other}; \
         set directory.account = \"{{address}}\""
    );
    broken(findings, &["directory.domains", "directory.account", "directory.query"], text);
}

/// Where the Maildir's path has the domain, every account must have one.
fn accounts_without_folder(config: &Config, findings: &mut Findings) {
    let StoreUrl::Maildir { root } = config.store.kind() else { return };
    let Ok(place) = FolderTemplate::parse(&root) else { return };
    if !place.needs_domain() {
        return;
    }
    let directory = &config.directory;
    if directory.query.is_none() && !directory.domains.is_empty() && !directory.account.is_address()
    {
        let text = format!(
            "store.url has {{domain}} in it, and an account by directory.account = \"{}\" has \
             none; set directory.account = \"{{address}}\"",
            directory.account
        );
        broken(
            findings,
            &["store.url", "directory.account", "directory.domains", "directory.query"],
            text,
        );
    }
    if let Some((address, account)) =
        directory.accounts.iter().find(|(_, account)| place.folder(account).is_none())
    {
        let text = format!(
            "directory.accounts: {}: store.url has {{domain}} in it, and \"{}\" is not \
             LOCAL@DOMAIN",
            shown_name(address),
            shown_name(account)
        );
        broken(findings, &["store.url", "directory.accounts"], text);
    }
}

/// Postfix runs a pipe(8) command in its own queue folder, so relative paths are for trials.
fn relative_paths(config: &Config, findings: &mut Findings) {
    let mut paths = vec![
        ("ledger.password_file", config.ledger.password_file.clone()),
        ("ledger.ca_file", config.ledger.ca_file.clone()),
        ("store.password_file", config.store.password_file.clone()),
        ("store.ca_file", config.store.ca_file.clone()),
    ];
    if let LedgerUrl::Sqlite { path } = config.ledger.engine() {
        paths.push(("ledger.url", Some(path)));
    }
    if let StoreUrl::Maildir { root } = config.store.kind() {
        paths.push(("store.url", Some(root)));
    }
    for (key, path) in paths {
        let Some(path) = path.filter(|path| path.is_relative()) else { continue };
        let shown = shown_path(&path);
        let text = format!(
            "{key}: {shown} is relative to the working folder, under Postfix its queue directory"
        );
        findings.warning(findings.origin(key), text);
    }
}

fn certificate(key: &'static str, path: Option<&Path>, findings: &mut Findings) {
    let Some(path) = path else { return };
    if let Err(why) = password::open_regular(path) {
        findings.problem(findings.origin(key), format!("{key}: {}: {why}", shown_path(path)));
    }
}

fn broken(findings: &mut Findings, keys: &[&str], text: String) {
    if knows(findings, keys) {
        findings.problem(last_origin(findings, keys), text);
    }
}

fn doubtful(findings: &mut Findings, keys: &[&str], text: String) {
    if knows(findings, keys) {
        findings.warning(last_origin(findings, keys), text);
    }
}

fn knows(findings: &Findings, keys: &[&str]) -> bool {
    !findings.refused.iter().any(|refused| keys.contains(refused))
}

fn last_origin(findings: &Findings, keys: &[&str]) -> Origin {
    let origins =
        keys.iter().map(|key| findings.origin(key)).filter(|origin| *origin != Origin::Default);
    origins.max().unwrap_or(Origin::Default)
}
