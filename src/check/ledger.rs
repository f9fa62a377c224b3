//! The ledger in `onedrop check`: it answers, has this program's schema, and two sessions exclude
//! each other: A takes a lock, B finds it contended, A releases it, B gets it. A balancer that
//! leads the two sessions to different servers fails this test. A ledger in a file is opened only
//! if the file exists, because opening would create it. The latest copies on record show whether
//! other hosts write to another kind of store.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::unistd::{AccessFlags, access};

use super::bounded::bounded;
use super::finding::{Finding, Severity};
use crate::config::{LedgerUrl, Loaded, StoreUrl};
use crate::directory::Asked;
use crate::ledger::{AnyLedger, LedgerError, SCHEMA_VERSION};
use crate::service::{Adapters, ONE};
use crate::store::Receipt;

/// Calls end by themselves in time; after this much more a step is given up.
const SLACK: Duration = Duration::from_secs(1);

/// The number of copies whose kind of receipt is checked.
const LATEST: u32 = 1000;

/// A session, and how to open another.
struct Ends {
    loaded: Arc<Loaded>,
    adapters: Adapters,
    time: Duration,
    until: Instant,
}

/// Findings about the ledger.
pub(super) fn findings(loaded: &Arc<Loaded>, adapters: Adapters, time: Duration) -> Vec<Finding> {
    let url = loaded.config.ledger.url.clone();
    let place = url.to_string();
    if let LedgerUrl::Sqlite { path } = url {
        match bounded(time, move || not_to_be_opened(&path)) {
            Ok(None) => {}
            Ok(Some((level, why))) => {
                return vec![Finding::new(level, "ledger", format!("{place}: {why}"))];
            }
            Err(why) => {
                return vec![Finding::new(Severity::Error, "ledger", format!("{place}: {why}"))];
            }
        }
    }
    let ends =
        Ends { loaded: loaded.clone(), adapters, time: time + SLACK, until: Instant::now() + time };
    ends.findings(&place)
}

/// The account of the latest copy on record; `None` if there is none or the ledger does not answer.
pub(super) fn account_on_record(
    loaded: &Arc<Loaded>,
    adapters: Adapters,
    time: Duration,
) -> Option<String> {
    if let LedgerUrl::Sqlite { path } = loaded.config.ledger.url.clone()
        && bounded(time, move || not_to_be_opened(&path)) != Ok(None)
    {
        return None;
    }
    let ends =
        Ends { loaded: loaded.clone(), adapters, time: time + SLACK, until: Instant::now() + time };
    let copies = ends.ask(|ledger, until| ledger.latest_copies(1, until)).ok()?;
    copies.into_iter().next().map(|(destination, _)| destination.account)
}

impl Ends {
    fn findings(&self, place: &str) -> Vec<Finding> {
        let version = self.ask(|ledger, until| ledger.schema_version(until));
        let answers = !matches!(version, Err(LedgerError::Unavailable(_) | LedgerError::Login(_)));
        let is_readable = matches!(version, Ok(SCHEMA_VERSION));
        let mut findings = vec![of_version(place, version)];
        if answers {
            findings.push(self.exclusion(place));
            findings.extend(is_readable.then(|| self.written_otherwise()).flatten());
            findings
                .extend(self.loaded.config.directory.query.clone().map(|query| self.query(query)));
        }
        findings
    }

    /// All hosts of a ledger must write by IMAP, or all into Maildirs: the two do not exclude each
    /// other.
    fn written_otherwise(&self) -> Option<Finding> {
        let read = self.ask(|ledger, until| ledger.latest_copies(LATEST, until));
        let copies = match read {
            Ok(copies) => copies,
            Err(error) => {
                let text = format!("it cannot be read how the latest copies were written: {error}");
                return Some(Finding::new(Severity::Warning, "ledger", text));
            }
        };
        let into_maildirs = matches!(self.loaded.config.store.kind(), StoreUrl::Maildir { .. });
        let is_other = |receipt: &Receipt| matches!(receipt, Receipt::Name(_)) != into_maildirs;
        let (destination, _) = copies.iter().find(|(_, receipt)| is_other(receipt))?;
        let (was, is) = match into_maildirs {
            true => ("by IMAP", "into Maildirs"),
            false => ("into a Maildir", "by IMAP"),
        };
        let text = format!(
            "the copy {destination} was written {was}, and store.url writes {is}: under one ledger \
             all hosts must write the same way, or a copy may stand twice (told as long as it is \
             one of the latest {LATEST})"
        );
        Some(Finding::new(Severity::Warning, "ledger", text))
    }

    /// Runs the administrator's query for an address without an account: a failing query would
    /// defer all mail.
    fn query(&self, query: String) -> Finding {
        let nobody = Asked::plain("nobody@onedrop-check.invalid");
        let asked = self.ask(move |ledger, until| ledger.account_by_query(&query, &nobody, until));
        match asked {
            Ok(None) => Finding::new(Severity::Ok, "ledger", "directory.query answers"),
            Ok(Some(account)) => {
                let text = format!(
                    "directory.query knows an address that nobody has, as account {account:?}"
                );
                Finding::new(Severity::Warning, "ledger", text)
            }
            Err(error) => {
                Finding::new(Severity::Error, "ledger", format!("directory.query: {error}"))
            }
        }
    }

    /// Asks a ledger of its own.
    fn ask<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn AnyLedger, Instant) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, LedgerError> {
        let (loaded, open, until) = (self.loaded.clone(), self.adapters.ledger, self.until);
        let work = move || ask(&*open(&loaded, ONE)?, until);
        bounded(self.time, work).map_err(LedgerError::Unavailable)?
    }

    fn exclusion(&self, place: &str) -> Finding {
        let proof = self
            .ask(|ledger, until| Ok(ledger.prove_exclusion(&lock_name(), until)))
            .unwrap_or_else(|error| Err(error.to_string()));
        match proof {
            Ok(()) => Finding::new(Severity::Ok, "lock", "two sessions exclude each other"),
            Err(why) => {
                let unproven = "it is not proven that deliveries exclude each other";
                Finding::new(Severity::Error, "lock", format!("{place}: {unproven}: {why}"))
            }
        }
    }
}

fn of_version(place: &str, version: Result<i64, LedgerError>) -> Finding {
    match version {
        Ok(SCHEMA_VERSION) => Finding::new(
            Severity::Ok,
            "ledger",
            format!("{place}, schema version {SCHEMA_VERSION}"),
        ),
        Ok(found) | Err(LedgerError::Version { found }) => Finding::new(
            Severity::Error,
            "schema",
            format!("{place} {}", LedgerError::Version { found }),
        ),
        Err(error) => Finding::new(Severity::Error, "ledger", format!("{place}: {error}")),
    }
}

/// A name that other checks do not use.
fn lock_name() -> String {
    let host = nix::unistd::gethostname().unwrap_or_default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("check {} {} {}", host.to_string_lossy(), std::process::id(), now.as_nanos())
}

/// Why a ledger in a file cannot be tested without a change; `None` if it can.
fn not_to_be_opened(path: &Path) -> Option<(Severity, String)> {
    const LATER: &str = "lock and schema can be tested then";
    let found = match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Some(to_be_made(path, LATER));
        }
        Err(error) => return Some((Severity::Error, error.to_string())),
        Ok(found) => found,
    };
    if !found.is_file() {
        return Some((Severity::Error, "not a regular file".to_owned()));
    }
    if found.len() == 0 {
        let text = format!("an empty file, to be made a ledger by the first delivery; {LATER}");
        return Some((Severity::Ok, text));
    }
    if is_in_rollback_mode(path) {
        let text = "an SQLite file that is not a ledger in use (no WAL): another program's? \
                    Nothing was tested; a ledger restored from a copy is in use again after a \
                    delivery";
        return Some((Severity::Warning, text.to_owned()));
    }
    let mut locks = path.as_os_str().to_owned();
    locks.push("-locks");
    let locks = PathBuf::from(locks);
    (!locks.exists()).then(|| {
        (
            Severity::Ok,
            format!("its lock file {} will be made by the next delivery; {LATER}", locks.display()),
        )
    })
}

fn to_be_made(path: &Path, later: &str) -> (Severity, String) {
    let folders = path.ancestors().skip(1);
    let here = Path::new(".");
    let nearest = folders
        .map(|folder| if folder.as_os_str().is_empty() { here } else { folder })
        .find(|f| f.exists());
    let nearest = nearest.unwrap_or(Path::new("/"));
    match access(nearest, AccessFlags::W_OK | AccessFlags::X_OK) {
        Ok(()) => (Severity::Ok, format!("not there yet, the first delivery makes it; {later}")),
        Err(error) => {
            let user = nix::unistd::geteuid();
            let text = format!(
                "not there yet, and user {user} cannot make it: {}: {error}",
                nearest.display()
            );
            (Severity::Error, text)
        }
    }
}

/// Whether the header says SQLite without WAL (<https://www.sqlite.org/fileformat.html>: magic,
/// then at 18 the version).
fn is_in_rollback_mode(path: &Path) -> bool {
    let mut header = [0; 19];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut header));
    read.is_ok() && header.starts_with(b"SQLite format 3\0") && header[18] == 1
}
