//! What several keys must agree on, and what the files they name must be. Runs on the merged
//! configuration.
//!
//! A rule is skipped where one of its keys has already been refused: its default is not what was
//! meant. A problem is reported where the last of the keys in question was set.

use std::path::{Path, PathBuf};

use secrecy::SecretString;

use super::JobSettings;
use super::layer::Reading;
use super::listen::Listen;
use super::problem::{Origin, shown_name, shown_path};
use super::url::{LedgerUrl, StoreUrl};
use super::{Config, Opens, password};
use onedrop_core::directory::{Detail, FolderTemplate, is_same_domain};
use onedrop_core::login::LoginForm;
use onedrop_net::{is_loopback, lmtp::LmtpPlace, tls::Tls};

/// Postfix's default for `command_time_limit`: going over it returns the mail to its sender.
const POSTFIX_LIMIT_SECS: u64 = 1000;

/// Postfix's default for `lmtp_data_done_timeout`, and what the way there and back may take of it.
const POSTFIX_LMTP_SECS: u64 = 600;
const LMTP_MARGIN_SECS: u64 = 60;

/// The passwords of a configuration: those of what is opened.
#[derive(Debug, Default, Clone)]
pub(super) struct Passwords {
    pub ledger: Option<SecretString>,
    pub directory: Option<SecretString>,
    pub store: Option<SecretString>,
}

/// Applies every rule, and reads the passwords and certificates of what is opened: others need not
/// be readable to whoever runs the command.
pub(super) fn check(
    config: &Config,
    opens: Opens,
    credentials_directory: Option<&Path>,
    reading: &mut Reading,
) -> Passwords {
    if reading.incomplete {
        return Passwords::default();
    }
    times(config, reading);
    store(config, reading);
    server(config, reading);
    pages(config, reading);
    sent(config, reading);
    shared_accounts(config, reading);
    every_domain_in_one(config, reading);
    accounts_without_folder(config, reading);
    relative_paths(config, reading);
    handed_over(config, reading);
    if config.directory.knows_nobody()
        && reading.knows(&[
            "directory.domains",
            "directory.accounts",
            "directory.query",
            "directory.userdb",
        ])
    {
        let text =
            "directory: no domains, no accounts, no query and no userdb: nobody can get mail";
        reading.warning(reading.origin("directory.domains"), text.to_owned());
    }
    let (ledger, store, directory) = (&config.ledger, &config.store, &config.directory);
    if directory.url.is_some() && directory.query.is_none() {
        let text = "directory.url: nothing is asked there without directory.query".to_owned();
        reading.doubtful(&["directory.url", "directory.query"], text);
    }
    let opens_directory = opens == Opens::Everything;
    let opens_store = opens_directory || opens == Opens::Mailboxes;
    for (key, path, is_used) in [
        ("ledger.ca_file", &ledger.ca_file, true),
        ("store.ca_file", &store.ca_file, opens_store),
        ("directory.ca_file", &directory.ca_file, opens_directory),
    ] {
        if let Some(path) = path
            && is_used
            && let Err(why) = password::open_regular(path)
        {
            let text = format!("{key}: {}: {why}", shown_path(path));
            reading.problem(reading.origin(key), text);
        }
    }
    let mut read = |key, path: &Option<PathBuf>, hint: &str| {
        let password = password::read(path.as_deref()?, credentials_directory);
        let told = |why| reading.problem(reading.origin(key), format!("{key}: {why}{hint}"));
        password.map_err(told).ok()
    };
    let of_the_ledger = match (opens, &config.web.ledger_url) {
        (Opens::Pages, Some(_)) => {
            read("web.ledger_password_file", &config.web.ledger_password_file, "")
        }
        (Opens::Pages, None) => read("ledger.password_file", &ledger.password_file, OWN_ROLE),
        _ => read("ledger.password_file", &ledger.password_file, ""),
    };
    let mut read_if = |is_used: bool, key, path| is_used.then(|| read(key, path, "")).flatten();
    Passwords {
        ledger: of_the_ledger,
        directory: read_if(opens_directory, "directory.password_file", &directory.password_file),
        store: read_if(opens_store, "store.password_file", &store.password_file),
    }
}

/// What helps the pages where they may not read the password of deliveries, or are refused.
pub const OWN_ROLE: &str = "; give the pages a role of their own (web.ledger_url)";

fn times(config: &Config, reading: &mut Reading) {
    let (deadline, answer) = (config.limits.deadline_secs, config.limits.answer_secs);
    let (wait, lease) = (config.lock.wait_secs, config.lock.lease_secs);
    if deadline >= lease {
        let text = format!(
            "limits.deadline_secs ({deadline}) must be less than lock.lease_secs ({lease}): \
             whoever writes must have given up before another may"
        );
        reading.broken(&["limits.deadline_secs", "lock.lease_secs"], text);
    }
    if deadline >= POSTFIX_LIMIT_SECS {
        let text = format!(
            "limits.deadline_secs ({deadline}) must be less than {POSTFIX_LIMIT_SECS}: \
             at Postfix's command_time_limit the mail goes back to its sender"
        );
        reading.broken(&["limits.deadline_secs"], text);
    }
    if answer >= deadline {
        let text = format!(
            "limits.answer_secs ({answer}) must be less than limits.deadline_secs ({deadline}), of \
             which it is a part"
        );
        reading.broken(&["limits.deadline_secs", "limits.answer_secs"], text);
    } else if wait >= deadline - answer {
        let left = deadline - answer;
        let text = format!(
            "lock.wait_secs ({wait}) must be less than limits.deadline_secs without \
             limits.answer_secs ({left}): nothing would be left for the delivery"
        );
        reading.broken(&["lock.wait_secs", "limits.deadline_secs", "limits.answer_secs"], text);
    }
    let most = POSTFIX_LMTP_SECS - LMTP_MARGIN_SECS;
    if deadline + answer > most {
        let text = format!(
            "limits.deadline_secs ({deadline}) + limits.answer_secs ({answer}) is more than \
             {most}: \"onedrop lmtp\" may answer after Postfix has lost patience \
             (lmtp_data_done_timeout, {POSTFIX_LMTP_SECS} s) and tries again"
        );
        reading.doubtful(&["limits.deadline_secs", "limits.answer_secs"], text);
    }
}

fn store(config: &Config, reading: &mut Reading) {
    let store = &config.store;
    let StoreUrl::Imap { host, tls, .. } = store.kind() else {
        if store.lmtp.is_some() {
            let text = "store.lmtp: needs a store.url of imap:// or imaps://: a copy in doubt is \
                        looked for, and copies for Sent are written, by IMAP";
            reading.broken(&["store.url", "store.lmtp"], text.to_owned());
        }
        return;
    };
    if !reading.knows(&["store.url", "store.starttls"]) {
        return;
    }
    if store.user.is_empty() {
        let text = "store.user: an IMAP store needs a user to log in as".to_owned();
        reading.broken(&["store.url", "store.user"], text);
    }
    if let LoginForm::Template(template) = &store.login
        && let Err(why) = template.name("account", &store.user)
    {
        reading.broken(&["store.user", "store.login"], why);
    }
    if store.password_file.is_none() {
        let text = "store.password_file: an IMAP store needs the password of store.user".to_owned();
        reading.broken(&["store.url", "store.password_file"], text);
    }
    if tls == Tls::None && !is_loopback(&host) {
        let text =
            format!("store.starttls: false sends the password and all mail to {host} unprotected");
        reading.doubtful(&["store.starttls"], text);
    }
    if let Some(LmtpPlace::Tcp { host, .. }) = &store.lmtp
        && !store.starttls
        && !is_loopback(host)
    {
        let text = format!("store.starttls: false sends all mail to {host} unprotected");
        reading.doubtful(&["store.starttls", "store.lmtp"], text);
    }
}

fn sent(config: &Config, reading: &mut Reading) {
    let settles = |job: &JobSettings| {
        job.enabled && job.command.iter().any(|word| word.split_whitespace().any(|w| w == "settle"))
    };
    if !config.sent.after.is_zero() && !config.jobs.jobs.iter().any(settles) {
        let text =
            "sent.after: no job runs \"onedrop settle\", which writes the copies that are left \
                    for later ([jobs.settle])"
                .to_owned();
        reading.doubtful(&["sent.after"], text);
    }
    if !config.sent.after.is_zero() && config.sent.mailbox.eq_ignore_ascii_case("INBOX") {
        let text =
            "sent.after: not with sent.mailbox = \"INBOX\": what a sender writes to themselves \
                    would wait as well"
                .to_owned();
        reading.broken(&["sent.after", "sent.mailbox"], text);
    }
}

fn server(config: &Config, reading: &mut Reading) {
    let (lmtp, pool) = (&config.lmtp, &config.pool);
    for (at, place) in lmtp.listen.iter().enumerate() {
        if lmtp.listen[..at].contains(place) {
            let text = format!("lmtp.listen: {} is there twice", shown_name(&place.to_string()));
            reading.broken(&["lmtp.listen"], text);
        }
        if let (Listen::Tcp(address), Some(metrics)) = (place, lmtp.metrics)
            && *address == metrics
            && metrics.port() != 0
        {
            let text = format!(
                "lmtp.metrics: {metrics} is also in lmtp.listen; give it a port of its own"
            );
            reading.broken(&["lmtp.listen", "lmtp.metrics"], text);
        }
    }
    if let Some(users) = &lmtp.users
        && (lmtp.listen.contains(&Listen::Unix(users.clone()))
            || config.deliver.via.as_ref() == Some(users))
    {
        let text = "lmtp.users: give it a socket of its own: who comes by it is not believed";
        reading.broken(&["lmtp.users", "lmtp.listen", "deliver.via"], text.to_owned());
    }
    let (side_by_side, per_account, sessions) = (lmtp.side_by_side, pool.per_account, pool.ledger);
    if side_by_side > sessions {
        let text = format!(
            "lmtp.side_by_side ({side_by_side}) is more than pool.ledger ({sessions}): \
             the recipients beyond that may wait for a ledger session"
        );
        reading.doubtful(&["lmtp.side_by_side", "pool.ledger"], text);
    }
    if per_account >= sessions {
        let text = format!(
            "pool.per_account ({per_account}) is not less than pool.ledger ({sessions}): \
             one mailbox that hangs holds every ledger session, and all mail waits"
        );
        reading.doubtful(&["pool.per_account", "pool.ledger"], text);
    }
}

fn pages(config: &Config, reading: &mut Reading) {
    let web = &config.web;
    if let Some(Listen::Tcp(place)) = web.listen
        && let Some(why) = web.open_to_others(place)
    {
        let text = format!("web.listen: {why}");
        reading.doubtful(&["web.listen", "web.password_file"], text);
    }
    let of_pages = web.ledger_url.as_ref().map(std::mem::discriminant);
    if of_pages.is_some_and(|engine| engine != std::mem::discriminant(&config.ledger.url)) {
        let text = "web.ledger_url: of another kind than ledger.url: the pages show another ledger \
                    than that of deliveries";
        reading.doubtful(&["ledger.url", "web.ledger_url"], text.to_owned());
    }
    if web.ledger_password_file.is_some() && web.ledger_url.is_none() {
        let text = "web.ledger_password_file: the password of a role that web.ledger_url names, \
                    which is not set";
        reading.broken(&["web.ledger_url", "web.ledger_password_file"], text.to_owned());
    }
}

/// No two people share an account because their addresses differ in the domain only.
fn shared_accounts(config: &Config, reading: &mut Reading) {
    let (template, domains) = (&config.directory.account, &config.directory.domains);
    // A query finds the accounts of all addresses, unless others are asked as well.
    let finds_all = config.directory.query.is_some() && config.directory.userdb.is_none();
    if finds_all || template.is_address() {
        return;
    }
    let mut pairs = domains
        .iter()
        .enumerate()
        .flat_map(|(at, one)| domains[..at].iter().map(move |other| (other, one)));
    let shares = |(one, other): &(&String, &String)| {
        !is_same_domain(one, other) && template.may_share(one, other)
    };
    let Some((one, other)) = pairs.find(shares) else { return };
    let (one, other) = (shown_name(one), shown_name(other));
    let text = format!(
        "directory.account: \"{template}\" may give one account to people in {one} and in {other}; \
         set directory.account = \"{{address}}\""
    );
    let keys = ["directory.domains", "directory.account", "directory.query", "directory.userdb"];
    reading.broken(&keys, text);
}

/// Without domains the userdb is asked for every address in the world: then for whole ones.
fn every_domain_in_one(config: &Config, reading: &mut Reading) {
    let directory = &config.directory;
    if directory.userdb.is_some() && directory.domains.is_empty() && !directory.account.is_address()
    {
        let text = format!(
            "directory.userdb: without directory.domains, directory.account = \"{}\" gives people \
             of all domains one account; set directory.domains, or directory.account = \
             \"{{address}}\"",
            directory.account
        );
        let keys = ["directory.userdb", "directory.domains", "directory.account"];
        reading.broken(&keys, text);
    }
}

/// Where the Maildir's path has the domain, every account must have one.
fn accounts_without_folder(config: &Config, reading: &mut Reading) {
    let StoreUrl::Maildir { root } = &config.store.url else { return };
    let Ok(place) = FolderTemplate::parse(root) else { return };
    if !place.needs_domain() {
        return;
    }
    let directory = &config.directory;
    let template = &directory.account;
    let asks = directory.query.is_some() || directory.userdb.is_some();
    if !asks && !directory.domains.is_empty() && !template.is_address() {
        let text = format!(
            "store.url has {{domain}} in it, and an account by directory.account = \"{template}\" \
             has none; set directory.account = \"{{address}}\""
        );
        let keys = [
            "store.url",
            "directory.account",
            "directory.domains",
            "directory.query",
            "directory.userdb",
        ];
        reading.broken(&keys, text);
    }
    let mut homes = directory.accounts.iter();
    if let Some((address, home)) = homes.find(|(_, home)| place.folder(&home.account).is_none()) {
        let (address, account) = (shown_name(address), shown_name(&home.account));
        let text = format!(
            "directory.accounts: {address}: store.url has {{domain}} in it, and \"{account}\" is \
             not LOCAL@DOMAIN"
        );
        reading.broken(&["store.url", "directory.accounts"], text);
    }
}

/// What is handed over is filed by its account's own filters, and by nothing else.
fn handed_over(config: &Config, reading: &mut Reading) {
    let directory = &config.directory;
    let names_one = directory.accounts.values().any(|home| home.mailbox.is_some());
    let filed = [
        ("directory.detail", directory.detail == Detail::Mailbox),
        ("directory.accounts", names_one),
        ("file", !config.file.is_empty()),
    ];
    for (key, _) in filed.into_iter().filter(|(_, is_set)| *is_set) {
        let text = format!(
            "{key}: names mailboxes, and store.lmtp leaves it to each account's own filters \
             (Sieve) where a copy goes: file there"
        );
        if config.store.lmtp.is_some() {
            reading.broken(&["store.lmtp", key], text);
        }
    }
}

/// Postfix runs a pipe(8) command in its own queue folder, so relative paths are for trials.
fn relative_paths(config: &Config, reading: &mut Reading) {
    let (ledger, store, directory) = (&config.ledger, &config.store, &config.directory);
    let web = &config.web;
    let file = |url: &LedgerUrl| match url {
        LedgerUrl::Sqlite { path } => Some(path.clone()),
        LedgerUrl::Postgres { .. } | LedgerUrl::Mysql { .. } => None,
    };
    let (database, users) = (file(&ledger.url), directory.url.as_ref().and_then(file));
    let of_pages = web.ledger_url.as_ref().and_then(file);
    let root = match &store.url {
        StoreUrl::Maildir { root } => Some(root),
        StoreUrl::Imap { .. } => None,
    };
    for (key, path) in [
        ("ledger.url", database.as_ref()),
        ("ledger.password_file", ledger.password_file.as_ref()),
        ("ledger.ca_file", ledger.ca_file.as_ref()),
        ("directory.url", users.as_ref()),
        ("directory.password_file", directory.password_file.as_ref()),
        ("directory.ca_file", directory.ca_file.as_ref()),
        ("store.url", root),
        ("store.password_file", store.password_file.as_ref()),
        ("store.ca_file", store.ca_file.as_ref()),
        ("web.password_file", web.password_file.as_ref()),
        ("web.ledger_url", of_pages.as_ref()),
        ("web.ledger_password_file", web.ledger_password_file.as_ref()),
    ] {
        let Some(path) = path.filter(|path| path.is_relative()) else { continue };
        let shown = shown_path(path);
        let text = format!(
            "{key}: {shown} is relative to the working folder, under Postfix its queue directory"
        );
        reading.warning(reading.origin(key), text);
    }
}

impl Reading {
    /// A problem between these keys.
    pub(super) fn broken(&mut self, keys: &[&str], text: String) {
        if self.knows(keys) {
            self.problem(self.last_origin(keys), text);
        }
    }

    /// A warning about these keys.
    pub(super) fn doubtful(&mut self, keys: &[&str], text: String) {
        if self.knows(keys) {
            self.warning(self.last_origin(keys), text);
        }
    }

    pub(super) fn knows(&self, keys: &[&str]) -> bool {
        !self.refused.iter().any(|refused| keys.contains(&refused.as_str()))
    }

    fn last_origin(&self, keys: &[&str]) -> Origin {
        let origins = keys.iter().map(|key| self.origin(key));
        origins.filter(|origin| *origin != Origin::Default).max().unwrap_or(Origin::Default)
    }
}
