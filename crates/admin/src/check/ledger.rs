//! The ledger in `onedrop check`: it answers, has this program's schema, and two sessions exclude
//! each other: A takes a lock, B finds it contended, A releases it, B gets it. A balancer that
//! leads the two sessions to different servers fails this test. The clock that leases count by is
//! compared with this host's; settings and standbys say what a commit outlives. A ledger in a file
//! is opened only if the file is a ledger, because opening would change another one. The latest
//! copies on record show whether other hosts write to another kind of store.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::unistd::{AccessFlags, access};

use super::finding::{Finding, Severity};
use super::{CheckContext, directory};
use onedrop_core::duration;
use onedrop_core::ledger::{CLOCKS_DIFFER_BY, Lasting, LedgerError, SchemaVersion};
use onedrop_core::os::host_name;
use onedrop_core::store::Receipt;
use onedrop_site::config::{LedgerUrl, StoreUrl};

/// The number of copies whose kind of receipt is checked.
const LATEST: u32 = 1000;

/// A purge runs daily; after this it is missed.
const LATEST_PURGE: Duration = Duration::from_secs(2 * 86_400);

/// Findings about the ledger.
pub(super) fn findings(check: &CheckContext) -> Vec<Finding> {
    let place = check.site.loaded.config.ledger.url.to_string();
    if let Some((severity, why)) = cannot_be_opened(check) {
        return vec![Finding::new(severity, "ledger", format!("{place}: {why}"))];
    }
    let version = check.ask_ledger(|ledger, until| ledger.schema_version(until));
    let answers = !matches!(version, Err(LedgerError::Unavailable(_) | LedgerError::Login(_)));
    let is_readable = version.as_ref().is_ok_and(SchemaVersion::fits);
    let mut findings = vec![of_version(&place, version)];
    if answers {
        findings.push(exclusion(check, &place));
        findings.extend(clock(check));
        findings.extend(durability(check));
        findings.extend(is_readable.then(|| other_config(check)).flatten());
        findings.extend(is_readable.then(|| written_otherwise(check)).flatten());
        findings.extend(is_readable.then(|| not_purged(check)).flatten());
        findings.extend(directory::in_the_ledger(check));
    }
    findings
}

/// The account of the latest copy on record; `None` if there is none or the ledger does not answer.
pub(super) fn account_on_record(check: &CheckContext) -> Option<String> {
    if cannot_be_opened(check).is_some() {
        return None;
    }
    let copies = check.ask_ledger(|ledger, until| ledger.latest_copies(1, until)).ok()?;
    copies.into_iter().next().map(|(destination, _)| destination.account)
}

/// Why a ledger in a file cannot be tested without a change.
fn cannot_be_opened(check: &CheckContext) -> Option<(Severity, String)> {
    let LedgerUrl::Sqlite { path } = &check.site.loaded.config.ledger.url else { return None };
    let path = path.clone();
    check
        .ask(move |check, _| not_to_be_opened(&path, check.site.loaded.config.deliver.trial))
        .unwrap_or_else(|why| Some((Severity::Error, why)))
}

fn exclusion(check: &CheckContext, place: &str) -> Finding {
    let proof = check.ask_ledger(|ledger, until| Ok(ledger.prove_exclusion(&lock_name(), until)));
    let proof = proof.unwrap_or_else(|error| Err(error.to_string()));
    match proof {
        Ok(()) => Finding::new(Severity::Ok, "lock", "two sessions exclude each other"),
        Err(why) => {
            let unproven = "it is not proven that deliveries exclude each other";
            Finding::new(Severity::Error, "lock", format!("{place}: {unproven}: {why}"))
        }
    }
}

/// Whether leases can be counted, and by a clock that says what this host's does.
fn clock(check: &CheckContext) -> Option<Finding> {
    let asked = check.ask_ledger(|ledger, until| {
        let before = SystemTime::now();
        let said = ledger.clock(until)?;
        Ok(said.map(|said| clocks_apart(before, said, SystemTime::now())))
    });
    let (severity, text) = match asked {
        Ok(apart) => {
            let (by, way) = apart?.filter(|(by, _)| *by > CLOCKS_DIFFER_BY)?;
            let text = format!(
                "the ledger's clock is {:.0} s {way} this host's: times on record and in \
                 \"onedrop trace\" are the ledger's, those in logs and messages this host's, and \
                 one of the two may be set right in the middle of a delivery; keep both by NTP",
                by.as_secs_f64()
            );
            (Severity::Warning, text)
        }
        Err(error) => (Severity::Error, error.to_string()),
    };
    Some(Finding::new(severity, "clock", text))
}

/// The least by which a clock that said `said` between these two times differs from ours, and to
/// which side.
fn clocks_apart(
    before: SystemTime,
    said: SystemTime,
    after: SystemTime,
) -> Option<(Duration, &'static str)> {
    let ahead = said.duration_since(after).ok().map(|by| (by, "ahead of"));
    ahead.or_else(|| before.duration_since(said).ok().map(|by| (by, "behind")))
}

/// What a commit outlives.
fn durability(check: &CheckContext) -> Vec<Finding> {
    let finding = |severity, text| Finding::new(severity, "durability", text);
    match check.ask_ledger(|ledger, until| ledger.durability(until)) {
        Ok(words) => words
            .into_iter()
            .map(|one| match one {
                Lasting::Outlives(text) => finding(Severity::Ok, text),
                Lasting::MayBeLost(text) => finding(Severity::Warning, text),
                Lasting::Stuck(text) => finding(Severity::Error, text),
            })
            .collect(),
        Err(error) => {
            let text = format!("cannot read the server's durability settings: {error}");
            vec![finding(Severity::Warning, text)]
        }
    }
}

/// Nothing purges the ledger, or the last purge was long ago.
fn not_purged(check: &CheckContext) -> Option<Finding> {
    let text = match check.ask_ledger(|ledger, until| ledger.remembered(until)) {
        Ok(is) => {
            let life = is.since.map(|_| is.since_ago);
            let ago = is.purged_ago.or(life)?;
            if ago <= LATEST_PURGE {
                return None;
            }
            let ago = duration::brief(ago);
            let when = match is.purged_ago {
                Some(_) => format!("the last purge ended {ago} ago"),
                None => format!("nothing has purged it in the {ago} of its life"),
            };
            format!("{when}: it grows; run \"onedrop purge\" daily ([jobs.purge])")
        }
        Err(error) => format!("cannot read when it was last purged: {error}"),
    };
    Some(Finding::new(Severity::Warning, "ledger", text))
}

/// All hosts of a ledger must write by IMAP, or all into Maildirs: the two do not exclude each
/// other.
fn written_otherwise(check: &CheckContext) -> Option<Finding> {
    let copies = match check.ask_ledger(|ledger, until| ledger.latest_copies(LATEST, until)) {
        Ok(copies) => copies,
        Err(error) => {
            let text = format!("cannot read how the latest copies were written: {error}");
            return Some(Finding::new(Severity::Warning, "ledger", text));
        }
    };
    let into_maildirs = matches!(check.site.loaded.config.store.kind(), StoreUrl::Maildir { .. });
    let is_other =
        |receipt: &Receipt| !receipt.is_elsewhere() && receipt.as_name().is_some() != into_maildirs;
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

/// This host's configuration is not what the ledger keeps for all hosts.
fn other_config(check: &CheckContext) -> Option<Finding> {
    match check.ask_ledger(|ledger, until| ledger.check_program(until)) {
        Err(error @ LedgerError::OtherConfig(_)) => {
            Some(Finding::new(Severity::Error, "config", error.to_string()))
        }
        _ => None,
    }
}

fn of_version(place: &str, version: Result<SchemaVersion, LedgerError>) -> Finding {
    let (severity, topic, text) = match version {
        Ok(seen) if seen.fits() && seen.found == seen.program => {
            (Severity::Ok, "ledger", format!(", schema version {}", seen.found))
        }
        Ok(seen) if seen.fits() => (Severity::Warning, "schema", format!(" {seen}")),
        Ok(seen) | Err(LedgerError::Version(seen)) => {
            (Severity::Error, "schema", format!(" {seen}"))
        }
        Err(error) => (Severity::Error, "ledger", format!(": {error}")),
    };
    Finding::new(severity, topic, format!("{place}{text}"))
}

/// A name that other checks do not use.
fn lock_name() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("check {} {} {}", host_name(), std::process::id(), now.as_nanos())
}

/// Why the file cannot be tested as a ledger without a change; `None` if it can.
fn not_to_be_opened(path: &Path, is_trial: bool) -> Option<(Severity, String)> {
    const LATER: &str = "lock and schema can be tested then";
    const NEW: &str = "a new ledger is made by \"onedrop migrate\"";
    let mut locks = path.as_os_str().to_owned();
    locks.push("-locks");
    let locks = Path::new(&locks);
    Some(match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => match cannot_be_made(path) {
            None if is_trial => {
                (Severity::Ok, format!("not there yet, the first delivery makes it; {LATER}"))
            }
            None => {
                let text = "not there: if its file system is not mounted, mount it";
                (Severity::Error, format!("{text}; {NEW}"))
            }
            Some(why) => (Severity::Error, format!("not there yet, and {why}")),
        },
        Err(error) => (Severity::Error, error.to_string()),
        Ok(found) if !found.is_file() => (Severity::Error, "not a regular file".to_owned()),
        Ok(found) if found.len() == 0 => (Severity::Error, format!("an empty file; {NEW}")),
        Ok(_) if is_in_rollback_mode(path) => {
            let text = "an SQLite file that is not a ledger in use (no WAL): another program's? \
                        Nothing was tested; a ledger restored from a copy is in use again after a \
                        delivery";
            (Severity::Warning, text.to_owned())
        }
        Ok(_) if !locks.exists() => {
            let name = locks.display();
            let text = format!("its lock file {name} will be made by the next delivery; {LATER}");
            (Severity::Ok, text)
        }
        Ok(_) => return None,
    })
}

/// Why this user cannot make the file; `None` if that is possible.
fn cannot_be_made(path: &Path) -> Option<String> {
    let mut folders = path.ancestors().skip(1).map(|folder| match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    });
    let nearest = folders.find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let error = access(nearest, AccessFlags::W_OK | AccessFlags::X_OK).err()?;
    let user = nix::unistd::geteuid();
    Some(format!("user {user} cannot make it: {}: {error}", nearest.display()))
}

/// Whether the header says SQLite without WAL (<https://www.sqlite.org/fileformat.html>: magic,
/// then at 18 the version).
fn is_in_rollback_mode(path: &Path) -> bool {
    let mut header = [0; 19];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut header));
    read.is_ok() && header.starts_with(b"SQLite format 3\0") && header[18] == 1
}
