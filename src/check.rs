//! `onedrop check`: everything that would keep mail from being delivered, found before a message
//! has to wait for it. Configuration, both ends, the proof that two sessions exclude each other,
//! and the local Postfix: a line per finding, whatever else fails. Every step is bounded in time,
//! each on a thread of its own; one that hangs is reported and left behind. No migration, no
//! message, no file. Whether a mail server heeds for whom we log in goes on record; to find out it
//! may make an empty mailbox of `store.user`'s own, and takes it away again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, ConfigErrors, DEFAULT_FILE, Loaded};
use crate::service::Adapters;

mod bounded;
mod dovecot;
mod finding;
mod ledger;
mod postfix;
mod program;
mod server;
mod store;
#[cfg(test)]
mod tests;

use bounded::bounded;
pub use dovecot::of_output as of_doveconf;
pub use finding::{Finding, Severity};
pub use postfix::{Arguments, Understand, Understood, of_output as of_postconf};

/// What to look at beside the configuration.
#[derive(Debug, Clone)]
pub struct Options {
    /// The account to log in for; one of the directory's or of the ledger's where there is none.
    pub account: Option<String>,
    /// Dovecot's configuration file, for doveconf.
    pub dovecot: Option<PathBuf>,
    /// Postfix's configuration directory.
    pub postfix: Option<PathBuf>,
    /// The parser of our own command line.
    pub understand: Understand,
}

/// How long a step may take.
const TIME: Duration = Duration::from_secs(15);

/// Checks everything; `config` is the file that was named.
pub fn run(args: &Options, config: Option<&Path>, adapters: Adapters) -> Vec<Finding> {
    let mut findings = Vec::new();
    if nix::unistd::geteuid().is_root() {
        let text = "this check runs as root, and Postfix never runs a delivery agent as root: what \
                    root may read and write says nothing about the transport's user; check as that \
                    user (runuser -u USER -- onedrop check)";
        findings.push(Finding::new(Severity::Warning, "configuration", text));
    }
    let named = config.map(Path::to_owned);
    let loaded = bounded(TIME, move || Config::load(named.as_deref()));
    let ours = postfix::ExpectedPostfix::new(
        loaded.as_ref().ok().and_then(|loaded| loaded.as_ref().ok()),
        &named_file(config),
        args.understand,
    );
    let config_of_store =
        loaded.as_ref().ok().and_then(|loaded| loaded.as_ref().ok()).map(|one| one.config.clone());
    match loaded {
        Ok(loaded) => {
            findings.extend(of_configuration(loaded, args.account.as_deref(), adapters, TIME))
        }
        Err(why) => findings.push(Finding::new(Severity::Error, "configuration", why)),
    }
    if let Some(config) = config_of_store {
        let file = args.dovecot.clone();
        findings.extend(
            bounded(TIME, move || dovecot::findings(file.as_deref(), &config, TIME))
                .unwrap_or_else(|why| vec![Finding::new(Severity::Error, "dovecot", why)]),
        );
    }
    let folder = args.postfix.clone();
    findings.extend(
        bounded(TIME, move || postfix::findings(folder.as_deref(), &ours, TIME))
            .unwrap_or_else(|why| vec![Finding::new(Severity::Error, "postfix", why)]),
    );
    findings
}

/// The configuration and, if it can be used, both ends.
fn of_configuration(
    loaded: Result<Loaded, ConfigErrors>,
    account: Option<&str>,
    adapters: Adapters,
    time: Duration,
) -> Vec<Finding> {
    let loaded = match loaded {
        Ok(loaded) => Arc::new(loaded),
        Err(errors) => {
            let problems = errors.problems().iter();
            let mut findings: Vec<_> =
                problems.map(|problem| Finding::of_problem(Severity::Error, problem)).collect();
            let text = "neither ledger nor store tested: both need a configuration without errors";
            findings.push(Finding::new(Severity::Warning, "ledger", text));
            return findings;
        }
    };
    let files: Vec<_> = loaded.files.iter().map(|file| file.to_string_lossy()).collect();
    let mut findings = vec![Finding::new(Severity::Ok, "configuration", files.join(", "))];
    findings.extend(
        loaded.warnings.iter().map(|warning| Finding::of_problem(Severity::Warning, warning)),
    );
    findings.extend(server::findings(&loaded));
    findings.extend(ledger::findings(&loaded, adapters, time));
    findings.extend(store::findings(&loaded, account, adapters, time));
    findings
}

/// The file that is read: as [`Config::load`] chooses it.
fn named_file(config: Option<&Path>) -> PathBuf {
    let by_variable = || std::env::var_os("ONEDROP_CONFIG").map(PathBuf::from);
    config.map(Path::to_owned).or_else(by_variable).unwrap_or_else(|| DEFAULT_FILE.into())
}
