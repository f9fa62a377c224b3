//! `onedrop check`: everything that would keep mail from being delivered, found before a message
//! has to wait for it. Configuration, both ends, the proof that two sessions exclude each other,
//! and the local Postfix: a line per finding, whatever else fails. Every step is bounded in time,
//! each on a thread of its own; one that hangs is reported and left. No migration, no message, and
//! no file but one that is linked in the account's Maildir and taken out, and one without a name in
//! `lmtp.spool_dir`. The check records whether the mail server honours the authorization identity,
//! and whether the guard of `store.lmtp` is in force; for the first it may make an empty mailbox of
//! `store.user`'s own, and takes it away again.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use dovecot::SeenGuard;
use onedrop_core::ledger::{AnyLedger, LedgerError};
use onedrop_core::os::unnamed_file;
use onedrop_core::text;
use onedrop_site::command_line::CheckArgs;
use onedrop_site::config::{self, Config, Loaded, Opens};
use onedrop_site::service::{Adapters, Site};

mod directory;
mod dovecot;
mod filing;
mod finding;
mod jobs;
mod ledger;
mod postfix;
pub mod program;
mod running;
mod store;
mod web;

pub use dovecot::of_output as of_doveconf;
pub use finding::{Finding, Severity};
pub use postfix::{leads_to as postfix_leads_to, of_output as of_postconf};

/// Calls and programs end by themselves in time; after this much more a step is given up.
const SLACK: Duration = Duration::from_secs(1);

/// Connecting takes no time unless the queue of the listener is full.
const CONNECT: Duration = Duration::from_secs(2);
/// Opening a file takes no time unless its disk hangs.
const OPEN: Duration = Duration::from_secs(2);

/// The configuration, and how to open its ledger and store.
#[derive(Clone)]
struct CheckContext {
    site: Site,
    time: Duration,
}

impl CheckContext {
    /// What `f` returns; `f` is given the time by which to return.
    ///
    /// # Errors
    /// Those of [`bounded`].
    fn ask<T: Send + 'static>(
        &self,
        f: impl FnOnce(&CheckContext, Instant) -> T + Send + 'static,
    ) -> Result<T, String> {
        let (check, until) = (self.clone(), Instant::now() + self.time);
        bounded(self.time + SLACK, move || f(&check, until))
    }

    /// Asks a ledger of its own.
    fn ask_ledger<T: Send + 'static>(
        &self,
        f: impl FnOnce(&dyn AnyLedger, Instant) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, LedgerError> {
        self.ask(move |check, until| f(&*check.site.ledger()?, until))
            .map_err(LedgerError::Unavailable)?
    }
}

/// Checks everything; `config` is the file that was named, and no step takes longer than `time`.
pub fn run(
    args: &CheckArgs,
    config: Option<&Path>,
    adapters: Adapters,
    time: Duration,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    if nix::unistd::geteuid().is_root() {
        let text = "root may read what the delivery user may not: check as that user (runuser -u \
                    onedrop -- onedrop check)";
        findings.push(Finding::new(Severity::Warning, "configuration", text));
    }
    let named = config.map(Path::to_owned);
    let loaded = match bounded(time, move || Config::load(named.as_deref(), Opens::Everything)) {
        Ok(Ok(loaded)) => Some(Arc::new(loaded)),
        Ok(Err(errors)) => {
            let problems = errors.problems().iter();
            findings.extend(problems.map(|one| Finding::of_problem(Severity::Error, one)));
            let text = "neither ledger nor store tested: both need a configuration without errors";
            findings.push(Finding::new(Severity::Warning, "ledger", text));
            None
        }
        Err(why) => {
            findings.push(Finding::new(Severity::Error, "configuration", why));
            None
        }
    };
    let mut guard_remembers = None;
    if let Some(loaded) = &loaded {
        let check = CheckContext { site: Site::new(Arc::clone(loaded), adapters), time };
        let files: Vec<_> = loaded.files.iter().map(|file| file.to_string_lossy()).collect();
        findings.push(Finding::new(Severity::Ok, "configuration", files.join(", ")));
        let warnings = loaded.warnings.iter();
        findings.extend(warnings.map(|one| Finding::of_problem(Severity::Warning, one)));
        findings.extend(of_trial(&loaded.config));
        findings.extend(of_server(loaded));
        findings.extend(of_users(loaded));
        findings.extend(of_spool(loaded));
        findings.extend(jobs::findings(&loaded.config.jobs.jobs));
        findings.extend(running::findings(loaded));
        findings.extend(ledger::findings(&check));
        findings.extend(directory::findings(&check));
        findings.extend(directory::of_userdb(&check));
        findings.extend(directory::of_folders(&check));
        findings.extend(store::findings(&check, args.account.as_deref()));
        findings.extend(web::findings(&check, config));
        let (loaded, file) = (loaded.clone(), args.dovecot.clone());
        let seen = move || dovecot::findings(file.as_deref(), &loaded.config, time);
        match bounded(time + SLACK, seen) {
            Ok((found, guard)) => {
                findings.extend(found);
                findings.extend(match guard {
                    SeenGuard::InForce(time) => {
                        guard_remembers = Some(time);
                        store::of_the_guard(&check, Some(time))
                    }
                    SeenGuard::NotInForce => store::of_the_guard(&check, None),
                    SeenGuard::Unseen => None,
                });
            }
            Err(why) => findings.push(Finding::new(Severity::Error, "dovecot", why)),
        }
    }
    let mut expected =
        postfix::ExpectedPostfix::new(loaded.as_deref(), &config::named_file(config));
    expected.guard_remembers = guard_remembers;
    let folder = args.postfix.clone();
    findings.extend(step("postfix", time, move || {
        postfix::findings(folder.as_deref(), &expected, time)
    }));
    findings
}

/// The findings of `f`, or that it hangs.
fn step(
    topic: &'static str,
    time: Duration,
    f: impl FnOnce() -> Vec<Finding> + Send + 'static,
) -> Vec<Finding> {
    bounded(time + SLACK, f).unwrap_or_else(|why| vec![Finding::new(Severity::Error, topic, why)])
}

/// What a trial switches off.
fn of_trial(config: &Config) -> Option<Finding> {
    let text = "deliver.trial = true: deliveries make the ledger's file, the mail root and \
                accounts' folders where they are missing, so mail for a mistyped address, or while \
                a disk is not mounted, goes into new ones; leave it out on a real host, and run \
                \"onedrop migrate\"";
    config.deliver.trial.then(|| Finding::new(Severity::Warning, "configuration", text))
}

/// Whether "onedrop lmtp" listens where `deliver.via` sends messages.
fn of_server(loaded: &Loaded) -> Option<Finding> {
    let via = loaded.config.deliver.via.as_deref()?;
    let place = via.display();
    let (severity, text) = match reach(via) {
        Ok(()) => (Severity::Ok, format!("somebody listens at {place}")),
        Err(error) => {
            let text = format!(
                "nobody can be reached at {place} ({}): each delivery opens connections of its \
                 own; start onedrop-lmtp.socket, or leave the key out",
                shown(&error)
            );
            (Severity::Warning, text)
        }
    };
    Some(Finding::new(severity, "lmtp", format!("deliver.via: {text}")))
}

/// Whether users of the host may send messages without a limit.
fn of_users(loaded: &Loaded) -> Option<Finding> {
    let Config { lmtp, limits, .. } = &loaded.config;
    let of_the_host = Some(Path::new(postfix::USERS)).filter(|_| loaded.is_the_hosts());
    let by_systemd = of_the_host.filter(|socket| socket.exists());
    let socket = lmtp.users.as_deref().or(by_systemd)?;
    let text = format!(
        "limits.message_bytes is 0, and every user of this host may connect to {}: one message can \
         fill the disk of lmtp.spool_dir ({}); set it above Postfix's message_size_limit",
        socket.display(),
        lmtp.spool_dir.display()
    );
    (limits.message_bytes == 0).then(|| Finding::new(Severity::Warning, "lmtp", text))
}

/// Whether large messages find their place at "onedrop lmtp"; an error only where it is in use.
fn of_spool(loaded: &Loaded) -> Option<Finding> {
    let Config { lmtp, deliver, .. } = &loaded.config;
    let folder = lmtp.spool_dir.clone();
    let opened = bounded(OPEN, move || unnamed_file(&folder).map(drop));
    let why = opened.map_or_else(Some, |opened| opened.err().map(|error| shown(&error)))?;
    let by_systemd = loaded.is_the_hosts() && Path::new(postfix::SOCKET).exists();
    let is_used = by_systemd || !lmtp.listen.is_empty() || deliver.via.is_some();
    let severity = if is_used { Severity::Error } else { Severity::Warning };
    let text = format!(
        "lmtp.spool_dir: {}: {why}: mail above lmtp.spool_bytes ({}) waits and is returned; name \
         a folder that the server may write to, on a file system with unnamed files (O_TMPFILE)",
        lmtp.spool_dir.display(),
        lmtp.spool_bytes
    );
    Some(Finding::new(severity, "lmtp", text))
}

/// What `f` returns, if it returns within `time`. A thread that hangs is left and ends with the
/// process.
///
/// # Errors
/// A sentence for an administrator: `f` took too long or panicked.
fn bounded<T: Send + 'static>(
    time: Duration,
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let step = thread::Builder::new()
        .name("check".to_owned())
        .spawn(move || drop(sender.send(f()))) // fails after the time-out
        .map_err(|error| format!("no thread to test it on: {error}"))?;
    receiver.recv_timeout(time).map_err(|error| match error {
        RecvTimeoutError::Timeout => format!("no answer within {} s", time.as_secs_f64().ceil()),
        RecvTimeoutError::Disconnected => {
            let text = step.join().err().map(text::of_panic).unwrap_or_default();
            format!("internal error: {text}")
        }
    })
}

/// The text of an error of the system, without its number.
fn shown(error: &io::Error) -> String {
    text::without_number(&error.to_string()).to_owned()
}

/// Whether a server listens at a Unix socket.
///
/// # Errors
/// Why not, as connect(2) says it; [`io::ErrorKind::TimedOut`] where the listener takes no more
/// clients.
fn reach(path: &Path) -> io::Result<()> {
    let path = path.to_owned();
    let connected = bounded(CONNECT, move || UnixStream::connect(path).map(drop));
    connected.unwrap_or_else(|why| Err(io::Error::new(io::ErrorKind::TimedOut, why)))
}
