//! `[web]` in `onedrop check`: whether the service of the pages can read its passwords, and whether
//! `web.ledger_url` leads to the ledger of deliveries. A ledger is known by its newest message,
//! which must be in ours, and before the first one by the time that it remembers since. No mail
//! waits for pages: no finding is more than a warning. What another user alone may read is not
//! tested.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use nix::unistd::User;

use super::CheckContext;
use super::finding::{Finding, Severity};
use onedrop_core::duration;
use onedrop_core::ledger::{LedgerError, Numbered, SchemaVersion, StatusLedger};
use onedrop_site::config::{Config, LedgerUrl, Opens, password_fault};
use onedrop_site::service::ONE;

/// The user of onedrop-web.service.
const SERVICE: &str = "onedrop-web";
/// Where systemd puts what it gives to a service alone.
const CREDENTIALS: &str = "/run/credentials/";
/// A ledger whose newest message is this much older than ours is not that of deliveries any more.
const BEHIND: Duration = Duration::from_secs(3600);

/// Who reads a password of the pages.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PageReader {
    name: String,
    uid: u32,
}

/// Findings about the pages, `file` being the configuration that was named; none where nothing of
/// them is set up.
pub(super) fn findings(check: &CheckContext, file: Option<&Path>) -> Vec<Finding> {
    let web = &check.site.loaded.config.web;
    let of_ledger = web.ledger_url.as_ref().and_then(|url| of_ledger(check, url, file));
    let files = [
        ("web.password_file", &web.password_file),
        ("web.ledger_password_file", &web.ledger_password_file),
    ];
    let of_files = files.into_iter().filter_map(|(key, path)| {
        let path = path.clone()?;
        let judged = check.ask(move |check, _| judge(&path, reader(check).as_ref()));
        let (severity, text) = judged.unwrap_or_else(|why| (Severity::Warning, why));
        Some(finding(severity, format!("{key}: {text}")))
    });
    of_files.chain(of_ledger).collect()
}

fn finding(severity: Severity, text: impl AsRef<str>) -> Finding {
    Finding::new(severity, "web", text)
}

/// The service's user: by the drop-in for a ledger in a file, its owner. `None` where the service
/// is not installed.
fn reader(check: &CheckContext) -> Option<PageReader> {
    let named = |user: User| PageReader { name: user.name, uid: user.uid.as_raw() };
    let service = User::from_name(SERVICE).ok().flatten()?;
    match check.site.loaded.pages_url() {
        LedgerUrl::Sqlite { path } => {
            let owner = fs::metadata(path).ok()?.uid();
            User::from_uid(owner.into()).ok().flatten().map(named)
        }
        LedgerUrl::Postgres { .. } | LedgerUrl::Mysql { .. } => Some(named(service)),
    }
}

/// What is to be said of a password's file that `reader` must be able to read.
fn judge(path: &Path, reader: Option<&PageReader>) -> (Severity, String) {
    let shown = path.display();
    if path.starts_with(CREDENTIALS) {
        return (Severity::Ok, format!("{shown} is systemd's: its service alone can read it"));
    }
    if let Some(why) = password_fault(path) {
        return (Severity::Warning, why);
    }
    let Some(PageReader { name, uid }) = reader else { return (Severity::Ok, shown.to_string()) };
    match fs::metadata(path).map(|found| found.uid()) {
        Ok(owner) if owner == *uid => (Severity::Ok, format!("{shown} belongs to {name}")),
        Ok(owner) => {
            let owner = match User::from_uid(owner.into()) {
                Ok(Some(user)) => user.name,
                _ => format!("user id {owner}"),
            };
            let text = format!(
                "{shown} belongs to {owner}, and onedrop-web.service runs as {name}, who cannot \
                 read it: chown {name} {shown}"
            );
            (Severity::Warning, text)
        }
        Err(_) => (Severity::Ok, format!("{shown} is out of sight of this user")),
    }
}

/// Whether `web.ledger_url` answers, and is the ledger of deliveries.
fn of_ledger(check: &CheckContext, url: &LedgerUrl, file: Option<&Path>) -> Option<Finding> {
    let about = |severity, text: &str| finding(severity, format!("web.ledger_url: {url}{text}"));
    let ours = &check.site.loaded.config.ledger.url;
    if std::mem::discriminant(url) != std::mem::discriminant(ours) {
        return None; // the configuration's own warning
    }
    if let (LedgerUrl::Sqlite { path: theirs }, LedgerUrl::Sqlite { path: ours }) = (url, ours) {
        // Opening them could make files.
        let (theirs, ours) = (theirs.clone(), ours.clone());
        return Some(match check.ask(move |_, _| is_same_file(&theirs, &ours)) {
            Ok(true) => about(Severity::Ok, SAME),
            Ok(false) => about(Severity::Warning, DIFFERENT),
            Err(why) => about(Severity::Warning, &format!(": {why}")),
        });
    }
    let file = file.map(Path::to_owned);
    let loaded = check.ask(move |_, _| Config::load(file.as_deref(), Opens::Pages));
    let pages = match loaded {
        Ok(Ok(pages)) => pages,
        Ok(Err(errors)) => {
            let why = errors.problems().first().map(|one| one.text.clone()).unwrap_or_default();
            return Some(about(Severity::Ok, &format!(" was not asked: {why}")));
        }
        Err(why) => return Some(about(Severity::Warning, &format!(" was not asked: {why}"))),
    };
    let is_anothers = pages.ledger_password().is_none()
        && goes_by_user(url)
        && is_another(reader(check).as_ref(), nix::unistd::geteuid().as_raw());
    let asked = check.ask(move |check, until| {
        let theirs = check.site.with(pages).reading(ONE)?;
        let ours = check.site.ledger()?;
        compare(&*theirs, &*ours, until)
    });
    Some(match asked.map_err(LedgerError::Unavailable).flatten() {
        Ok(LedgersCompared::Same) => about(Severity::Ok, SAME),
        Ok(LedgersCompared::Behind(by)) => about(
            Severity::Warning,
            &format!(
                " is {} behind ledger.url: a copy of the ledger, or a standby that lags",
                duration::brief(by)
            ),
        ),
        Ok(LedgersCompared::Different) => about(Severity::Warning, DIFFERENT),
        Ok(LedgersCompared::OursUnknown) => about(
            Severity::Ok,
            " answers; whether it is the ledger of ledger.url is not known, which does not answer",
        ),
        Err(LedgerError::Login(why)) if is_anothers => about(
            Severity::Ok,
            &format!(
                " has no password, and lets this user not in, which says nothing of the service's \
                 (/healthz does): {why}"
            ),
        ),
        Err(error) => about(Severity::Warning, &format!(": {error}")),
    })
}

const SAME: &str = " is the ledger of ledger.url";
const DIFFERENT: &str =
    " is another ledger than ledger.url: the pages show nothing of these deliveries";

/// Whether the server may go by the user of the process, as it can by its socket alone.
fn goes_by_user(url: &LedgerUrl) -> bool {
    match url {
        LedgerUrl::Postgres { url } => url.is_by_socket(),
        LedgerUrl::Mysql { url } => url.socket.is_some(),
        LedgerUrl::Sqlite { .. } => false,
    }
}

/// Whether the service has a user, and not this one: what is refused here may not be there.
fn is_another(reader: Option<&PageReader>, uid: u32) -> bool {
    reader.is_some_and(|reader| reader.uid != uid)
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let id = |path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    match (id(one), id(other)) {
        (None, None) => one == other,
        (one, other) => one == other,
    }
}

/// What two ledgers are to each other.
#[derive(Debug, PartialEq, Eq)]
enum LedgersCompared {
    Same,
    /// It has our rows, but no newer ones: the time between both newest messages.
    Behind(Duration),
    Different,
    OursUnknown,
}

/// # Errors
/// Those of `theirs`.
fn compare(
    theirs: &dyn StatusLedger,
    ours: &dyn StatusLedger,
    until: Instant,
) -> Result<LedgersCompared, LedgerError> {
    theirs.schema_version(until).and_then(SchemaVersion::check)?;
    let their_since = theirs.remembered(until)?.since;
    let their_last = theirs.last_row(Numbered::Message, until)?;
    let digest = |ledger: &dyn StatusLedger, number| -> Result<_, LedgerError> {
        Ok(ledger.story(number, until)?.map(|message| (message.digest, message.recorded_at)))
    };
    let their_digest = their_last.map(|(number, _)| digest(theirs, number)).transpose()?;
    let of_ours = || -> Result<LedgersCompared, LedgerError> {
        let our_last = ours.last_row(Numbered::Message, until)?;
        let Some((number, at)) = their_last else {
            let is_same = our_last.is_none() && ours.remembered(until)?.since == their_since;
            return Ok(if is_same { LedgersCompared::Same } else { LedgersCompared::Different });
        };
        if Some(digest(ours, number)?) != their_digest {
            return Ok(LedgersCompared::Different);
        }
        let is_behind = |(_, last): (i64, SystemTime)| last.duration_since(at).ok();
        let behind = our_last.and_then(is_behind).filter(|by| *by > BEHIND);
        Ok(behind.map_or(LedgersCompared::Same, LedgersCompared::Behind))
    };
    Ok(of_ours().unwrap_or(LedgersCompared::OursUnknown))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_that_the_service_cannot_read_is_told_with_what_helps() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("reader.password");
        let uid = nix::unistd::geteuid().as_raw();
        let ours = PageReader { name: "onedrop-web".to_owned(), uid };
        let anothers = PageReader { uid: uid + 1, ..ours.clone() };
        let mode = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
        };
        let told = |reader| judge(&path, reader);
        let missing = format!("{}: no such file", path.display());
        assert_eq!(told(Some(&ours)), (Severity::Warning, missing));
        fs::write(&path, "a-password\n").expect("a file");
        mode(0o640);
        let (severity, text) = told(Some(&ours));
        assert_eq!(severity, Severity::Warning);
        assert!(text.contains("(mode 0640; expected 0600 or 0400)"), "{text}");
        mode(0o600);
        let shown = path.display().to_string();
        let belongs = format!("{shown} belongs to onedrop-web");
        assert_eq!(told(Some(&ours)), (Severity::Ok, belongs));
        assert_eq!(told(None), (Severity::Ok, shown.clone()));
        let (severity, text) = told(Some(&anothers));
        assert_eq!(severity, Severity::Warning);
        let helps = format!(
            ", and onedrop-web.service runs as onedrop-web, who cannot read it: chown onedrop-web \
             {shown}"
        );
        assert!(text.ends_with(&helps), "{text}");
        let given = Path::new("/run/credentials/onedrop-web.service/reader");
        assert_eq!(judge(given, Some(&ours)).0, Severity::Ok);
    }

    #[test]
    fn a_refused_login_says_nothing_only_of_another_users_by_a_socket() {
        for (url, by_user) in [
            ("postgres://reader@/onedrop?host=/run/postgresql", true),
            ("postgres://reader@/onedrop?hostaddr=127.0.0.1", false),
            ("postgres://reader@db.example.net/onedrop", false),
            ("postgres://reader@/onedrop?host=/run/postgresql&host=db.example.net", false),
            ("mysql://reader@/onedrop?socket=/run/mysqld/mysqld.sock", true),
            ("mysql://reader@127.0.0.1/onedrop", false),
        ] {
            let parsed = url.parse().expect("a URL");
            assert_eq!(goes_by_user(&parsed), by_user, "{url}");
        }
        let service = PageReader { name: "onedrop-web".to_owned(), uid: 950 };
        assert!(is_another(Some(&service), 0));
        assert!(!is_another(Some(&service), 950));
        assert!(!is_another(None, 0), "no service is there that could be let in");
    }
}
