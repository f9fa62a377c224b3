//! Whether users' filters run for what is handed over by LMTP (`store.lmtp`), and whether the guard
//! against a second hand-over is in force (`conf/dovecot/onedrop-guard.sieve`): first of all
//! scripts, with a memory that is long enough, and one delivery for an account at a time.
//!
//! Sources: doc/wiki of Pigeonhole 0.5, <https://doc.dovecot.org/2.4.1>; RFC 7352 (`duplicate`).

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::compiled;
use super::conf::{self, Conf};
use crate::check::finding::{Remarks, Severity};

/// What stands before the time in the guard's text for which it asks Dovecot to remember a copy.
const OF_COPY: &str = "\"x-onedrop-copy\" :seconds ";
/// The same of an account: a guard with this text knows those of which Dovecot remembers nothing.
const OF_ACCOUNT: &str = ":handle \"onedrop-account\" :uniqueid \"remembers\" :seconds ";
const DAY: u64 = 86_400;
/// No guard is longer, and no other script is read further.
const LONGEST: u64 = 65_536;

/// The consequence for a copy that is handed over twice.
const OTHERWISE: &str = "a copy that is handed over a second time, because the answer to the first \
                         was lost, may be filtered, forwarded and answered twice";

/// The guard, as deliveries may rely on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::check) enum SeenGuard {
    /// Nothing is wrong with it, and this is how long it remembers.
    InForce(Duration),
    NotInForce,
    /// Not all can be seen from here.
    Unseen,
}

pub(super) fn seen(conf: &Conf) -> SeenGuard {
    let remembers = match find(conf) {
        Guard::First(script) => match compiled::remembered_secs(&script) {
            Ok(Some((secs, _))) => Some(secs),
            Ok(None) => asked(&script, OF_COPY),
            Err(_) => return SeenGuard::Unseen,
        },
        _ => None,
    };
    let mut remarks = Remarks::default();
    judge(conf, &mut remarks);
    match remembers {
        _ if remarks.has(Severity::Warning) => SeenGuard::NotInForce,
        Some(secs) if !remarks.has(Severity::Untested) => {
            SeenGuard::InForce(Duration::from_secs(secs))
        }
        _ => SeenGuard::Unseen,
    }
}

/// What is wrong with it; nothing where all is well.
pub(super) fn judge(conf: &Conf, remarks: &mut Remarks) {
    if !conf.plugins("lmtp").any(|plugin| plugin == "sieve") {
        remarks.warning(
            "store.lmtp is set, and the plugin sieve is not in mail_plugins of protocol lmtp: \
             users' filters do not run, and nothing keeps Dovecot from storing a copy twice that \
             is handed over a second time; see conf/dovecot/onedrop-lmtp.conf",
        );
        return;
    }
    match find(conf) {
        Guard::First(script) => memory(&script, conf, remarks),
        Guard::After(other, script) => {
            remarks.warning(format!(
                "the guard of store.lmtp runs after {}: what that script does is done twice for a \
                 copy that is handed over a second time; make the guard the first script of all",
                other.display()
            ));
            memory(&script, conf, remarks);
        }
        Guard::Unread(path, why) => remarks.untested(format!(
            "{}, which runs before users' scripts, could not be read: {why}; so it is not known \
             whether the guard of store.lmtp is the first script of all; run onedrop check as root",
            path.display()
        )),
        Guard::None => {
            remarks.warning(format!(
                "no script that runs before users' own is the guard of store.lmtp \
                 (conf/dovecot/onedrop-guard.sieve): {OTHERWISE}"
            ));
            return;
        }
    }
    one_at_a_time(conf, remarks);
}

/// How long it remembers: by its text, by its compiled form, which `sievec` cuts where Dovecot does
/// not know its new settings yet, and by Dovecot's own limit.
fn memory(script: &Path, conf: &Conf, remarks: &mut Remarks) {
    const NAME: &str = "sieve_duplicate_max_period";
    let shown = script.display();
    let Some(secs) = asked(script, OF_COPY) else {
        remarks.warning(format!(
            "the guard of store.lmtp ({shown}) does not say for how many :seconds it remembers a \
             copy: {OTHERWISE} once that time has passed; install conf/dovecot/onedrop-guard.sieve \
             and run sievec"
        ));
        return;
    };
    match asked(script, OF_ACCOUNT) {
        Some(of_account) if of_account >= secs => {}
        Some(of_account) => remarks.warning(format!(
            "the guard of store.lmtp ({shown}) remembers a copy for {secs} seconds and its account \
             for {of_account}: give both the same number, and run sievec"
        )),
        None => remarks.warning(format!(
            "the guard of store.lmtp ({shown}) is not the one that is shipped now, which tells \
             accounts of which Dovecot remembers nothing: a filter in the middle of which Dovecot \
             dies does not come to its end; install conf/dovecot/onedrop-guard.sieve and run sievec"
        )),
    }
    match compiled::remembered_secs(script) {
        Ok(Some((compiled, file))) if compiled < secs => remarks.warning(format!(
            "the guard of store.lmtp was compiled to remember {compiled} seconds ({}), and not the \
             {secs} of its text: {OTHERWISE} once that time has passed; compile it again: sievec \
             -c /etc/dovecot/dovecot.conf {shown}",
            file.display(),
        )),
        // Without a compiled form Dovecot compiles it for each delivery.
        Ok(_) => {}
        Err(why) => remarks.warning(format!(
            "how long the guard of store.lmtp remembers could not be read from its compiled form \
             ({}): {why}; run onedrop check as root",
            script.with_extension("svbin").display()
        )),
    }
    let (value, days) = (conf.sieve(NAME), secs.div_ceil(DAY) + 1);
    match value.map(conf::seconds) {
        Some(Some(most)) if most > secs => {}
        Some(Some(_)) | None => remarks.warning(format!(
            "{NAME} is {}: the guard of store.lmtp asks for {secs} seconds; set it to {days}d",
            value.unwrap_or("not set (2 days)")
        )),
        Some(None) => remarks.warning(format!(
            "{NAME} = {} is not understood; set it to {days}d",
            value.unwrap_or_default()
        )),
    }
}

/// The number that follows `before` in the script.
fn asked(script: &Path, before: &str) -> Option<u64> {
    let code = code_of(script).ok()?;
    let (_, after) = code.split_once(before)?;
    after.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn one_at_a_time(conf: &Conf, remarks: &mut Remarks) {
    const NAME: &str = "lmtp_user_concurrency_limit";
    let value = conf.value("lmtp", NAME);
    if value != Some("1") {
        remarks.warning(format!(
            "{NAME} is {}: deliveries for one account beside each other forget each other in what \
             the guard of store.lmtp remembers; set it to 1",
            value.unwrap_or("not set (no limit)")
        ));
    }
}

/// Where the guard stands among the scripts that run before users' own.
enum Guard {
    First(PathBuf),
    /// After this one.
    After(PathBuf, PathBuf),
    /// One of them cannot be read: it may be the guard, or run before it.
    Unread(PathBuf, io::Error),
    None,
}

fn find(conf: &Conf) -> Guard {
    let mut others: Vec<(u32, PathBuf)> = Vec::new();
    let mut unread: Option<(u32, PathBuf, io::Error)> = None;
    for (place, location) in conf.scripts_before() {
        let path = path_of(location);
        match the_guard(&path) {
            Ok(Some(script)) => {
                let other = others.into_iter().find(|(other, _)| *other < place);
                let unread = unread.filter(|(other, ..)| *other < place);
                return match (other, unread) {
                    (Some((_, other)), _) => Guard::After(other, script),
                    (None, Some((_, path, why))) => Guard::Unread(path, why),
                    (None, None) => Guard::First(script),
                };
            }
            Ok(None) => others.push((place, path)),
            Err(why) => unread = unread.or(Some((place, path, why))),
        }
    }
    unread.map_or(Guard::None, |(_, path, why)| Guard::Unread(path, why))
}

/// `file:/path;name=...` is a file or a folder of scripts, as is `/path`.
fn path_of(location: &str) -> PathBuf {
    let path = location.strip_prefix("file:").unwrap_or(location);
    path.split_once(';').map_or(path, |(path, _)| path).into()
}

/// The script, if it is the guard; one that is not there does nothing.
fn the_guard(path: &Path) -> io::Result<Option<PathBuf>> {
    if path.is_dir() {
        let mut scripts: Vec<PathBuf> =
            fs::read_dir(path)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
        // In this order they run.
        scripts.retain(|script| script.extension().is_some_and(|ending| ending == "sieve"));
        scripts.sort();
        return scripts.first().map_or(Ok(None), |script| the_guard(script));
    }
    let code = match code_of(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        code => code?,
    };
    let is_guard =
        ["duplicate ", "\"x-onedrop-copy\"", "discard"].iter().all(|word| code.contains(word));
    Ok(is_guard.then(|| path.to_owned()))
}

/// A script without its comments, in lower case, with single blanks.
fn code_of(script: &Path) -> io::Result<String> {
    let mut text = Vec::new();
    File::open(script)?.take(LONGEST).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let code = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let words = code.flat_map(str::split_whitespace);
    Ok(words.collect::<Vec<_>>().join(" ").to_ascii_lowercase())
}
