//! `onedrop check`: everything that would keep mail from being delivered, found before a message
//! has to wait for it. Configuration, both ends, the proof that two sessions exclude each other,
//! and the local Postfix: a line per finding, whatever else fails. Every step is bounded in time,
//! each on a thread of its own; one that hangs is reported and left behind. No migration, no
//! message, no file. Whether a mail server heeds for whom we log in goes on record; to find out it
//! may make an empty mailbox of `store.user`'s own, and takes it away again.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::{Adapters, CheckArgs, dovecot, postfix};
use crate::config::{Config, ConfigErrors, DEFAULT_FILE, Loaded, Origin, Problem};
use crate::exit::{self, Verdict};

mod ledger;
pub(super) mod program;
mod server;
mod store;
#[cfg(test)]
mod tests;

pub(super) use server::reach;

/// How long a step may take.
const TIME: Duration = Duration::from_secs(15);

/// Bytes of a finding: it may quote what somebody else wrote.
const LONGEST: usize = 4000;

/// What a finding means for mail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// As it should be, or worth knowing.
    Ok,
    /// Works, but is probably not meant.
    Warning,
    /// Not known: what is to be told could not be tested.
    Untested,
    /// Mail would wait, be returned, or not be what was sent.
    Error,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Untested => "untested",
            Level::Error => "error",
        }
    }
}

/// One line: what is so, where, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(super) struct Finding {
    pub(super) level: Level,
    pub(super) topic: &'static str,
    pub(super) text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) line: Option<usize>,
}

impl Finding {
    /// A finding on one line, whatever `text` quotes.
    pub(super) fn new(level: Level, topic: &'static str, text: impl AsRef<str>) -> Finding {
        let mut text = one_line(text.as_ref());
        if text.len() > LONGEST {
            text.truncate(text.floor_char_boundary(LONGEST));
            text.push_str(" ...");
        }
        Finding { level, topic, text, file: None, line: None }
    }

    pub(super) fn in_file(mut self, file: &Path) -> Finding {
        self.file = Some(file.to_string_lossy().into_owned());
        self
    }

    fn of_problem(level: Level, problem: &Problem) -> Finding {
        let finding = Finding::new(level, "configuration", problem.to_string());
        let Origin::File { path, line, .. } = &problem.origin else { return finding };
        Finding { line: Some(*line).filter(|line| *line > 0), ..finding.in_file(path) }
    }

    fn told(&self) -> String {
        format!("{:<7} {}: {}", self.level.name(), self.topic, self.text)
    }
}

/// What the command has to say.
pub(super) struct Report {
    /// For standard output.
    pub(super) text: String,
    /// For standard error, when there are errors or gaps.
    pub(super) said: Option<String>,
    /// Failed with errors; no where something was not tested.
    pub(super) verdict: Verdict,
}

impl Report {
    fn of(findings: &[Finding], json: bool) -> Report {
        let lines = || findings.iter().map(Finding::told).collect::<Vec<_>>().join("\n");
        let text = if json {
            serde_json::to_string_pretty(findings).unwrap_or_else(|_| lines())
        } else {
            lines()
        };
        let count = |level| findings.iter().filter(|finding| finding.level == level).count();
        let (errors, warnings, gaps) =
            (count(Level::Error), count(Level::Warning), count(Level::Untested));
        let counts = [(errors, "error"), (gaps, "gap"), (warnings, "warning")];
        let counts: Vec<_> = counts
            .iter()
            .filter(|(one, _)| *one > 0)
            .map(|(one, what)| counted(*one, what))
            .collect();
        let verdict = match (errors, gaps) {
            (0, 0) => Verdict::Done,
            (0, _) => Verdict::No,
            _ => Verdict::Failed,
        };
        Report { text, said: (verdict != Verdict::Done).then(|| counts.join(", ")), verdict }
    }
}

/// Checks everything.
pub(super) fn run(args: &CheckArgs, config: Option<&Path>, adapters: Adapters) -> Report {
    let mut findings = Vec::new();
    if nix::unistd::geteuid().is_root() {
        let text = "this check runs as root, and Postfix never runs a delivery agent as root: what root may read and \
                    write says nothing about the transport's user; check as that user (runuser -u USER -- onedrop check)";
        findings.push(Finding::new(Level::Warning, "configuration", text));
    }
    let named = config.map(Path::to_owned);
    let loaded = bounded(TIME, move || Config::load(named.as_deref()));
    let ours = postfix::Ours::new(
        loaded.as_ref().ok().and_then(|loaded| loaded.as_ref().ok()),
        &named_file(config),
    );
    let config_of_store =
        loaded.as_ref().ok().and_then(|loaded| loaded.as_ref().ok()).map(|one| one.config.clone());
    match loaded {
        Ok(loaded) => {
            findings.extend(of_configuration(loaded, args.account.as_deref(), adapters, TIME))
        }
        Err(why) => findings.push(Finding::new(Level::Error, "configuration", why)),
    }
    if let Some(config) = config_of_store {
        let file = args.dovecot.clone();
        findings.extend(
            bounded(TIME, move || dovecot::findings(file.as_deref(), &config, TIME))
                .unwrap_or_else(|why| vec![Finding::new(Level::Error, "dovecot", why)]),
        );
    }
    let folder = args.postfix.clone();
    findings.extend(
        bounded(TIME, move || postfix::findings(folder.as_deref(), &ours, TIME))
            .unwrap_or_else(|why| vec![Finding::new(Level::Error, "postfix", why)]),
    );
    Report::of(&findings, args.json)
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
                problems.map(|problem| Finding::of_problem(Level::Error, problem)).collect();
            let text = "neither ledger nor store tested: both need a configuration without errors";
            findings.push(Finding::new(Level::Warning, "ledger", text));
            return findings;
        }
    };
    let files: Vec<_> = loaded.files.iter().map(|file| file.to_string_lossy()).collect();
    let mut findings = vec![Finding::new(Level::Ok, "configuration", files.join(", "))];
    findings.extend(
        loaded.warnings.iter().map(|warning| Finding::of_problem(Level::Warning, &warning.0)),
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

/// What `f` returns, if it returns within `time`. A thread that hangs is left behind and ends with
/// the process.
///
/// # Errors
/// `f` took too long or panicked, in words for an administrator.
pub(super) fn bounded<T: Send + 'static>(
    time: Duration,
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let step = thread::Builder::new()
        .name("check".to_owned())
        .spawn(move || drop(sender.send(f()))) // nobody listens any more: it took too long
        .map_err(|error| format!("no thread to test it on: {error}"))?;
    match receiver.recv_timeout(time) {
        Ok(value) => Ok(value),
        Err(RecvTimeoutError::Timeout) => {
            Err(format!("no answer within {} s", time.as_secs_f64().ceil()))
        }
        Err(RecvTimeoutError::Disconnected) => {
            let text = step.join().err().map(exit::panic_text).unwrap_or_default();
            Err(format!("internal error: {text}"))
        }
    }
}

pub(super) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// An error of the system in words, without its number.
pub(super) fn shown(error: &io::Error) -> String {
    error.to_string().split(" (os error").next().unwrap_or_default().to_owned()
}

/// Nothing from a file, a server or a program may begin a line of its own or move a terminal's
/// cursor.
pub(super) fn one_line(text: &str) -> String {
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
