//! The order of layers: one file, `conf.d/*.toml` beside it in name order, `ONEDROP__SECTION__KEY`
//! variables.
//!
//! Each layer is judged alone, so that every problem of every layer is known before any is
//! reported; the `config` crate then lays what is left over each other. Reading writes nothing and
//! takes no stdin: only regular files are read.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::config::ConfigError;
use secrecy::SecretString;

use super::digests::MergedValues;
use super::layer::{self, Layer, Reading};
use super::password::{self, open_regular};
use super::problem::{ConfigErrors, Origin, Problem, shown_io};
use super::rules::{self, Passwords};
use super::url::LedgerUrl;
use super::{Config, Opens, job_rules, schema, variables};

/// The configuration file, unless `--config` or `$ONEDROP_CONFIG` names another.
pub const DEFAULT_FILE: &str = "/etc/onedrop/onedrop.toml";

/// Largest configuration file, in bytes: every delivery reads it.
const LARGEST: u64 = 1 << 20;
/// Read at once.
const BLOCK: usize = 8 * 1024;

/// A configuration that has passed every check, with its passwords.
#[derive(Debug, Clone)]
pub struct Loaded {
    pub config: Config,
    /// What is wrong with jobs, of which `config` then has none; only by
    /// [`Config::load_despite_jobs`].
    pub job_problems: Vec<Problem>,
    /// What works but is probably not meant, in the order of its origin.
    pub warnings: Vec<Problem>,
    /// The files it was read from, in order.
    pub files: Vec<PathBuf>,
    /// Where `ledger.url` is set.
    pub ledger_set_in: Origin,
    merged: MergedValues,
    passwords: Passwords,
}

/// The file that is read: `explicit` (`--config`), else `$ONEDROP_CONFIG`, else the default.
pub fn named_file(explicit: Option<&Path>) -> PathBuf {
    let by_variable = || std::env::var_os("ONEDROP_CONFIG").filter(|path| !path.is_empty());
    let named = explicit.map(Path::to_owned).or_else(|| by_variable().map(PathBuf::from));
    named.unwrap_or_else(|| DEFAULT_FILE.into())
}

/// The same by its whole path.
pub fn shown_file(explicit: Option<&Path>) -> String {
    let named = named_file(explicit);
    std::path::absolute(&named).unwrap_or(named).to_string_lossy().into_owned()
}

impl Loaded {
    /// What its values are, by their keys, to be compared with another's.
    pub fn digests(&self) -> BTreeMap<String, String> {
        self.merged.digests()
    }

    /// Whether it is the file that is read if none is named.
    pub fn is_the_hosts(&self) -> bool {
        let resolved = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let default = resolved(Path::new(DEFAULT_FILE));
        self.files.first().is_some_and(|file| resolved(file) == default)
    }

    /// The first of its files, by its whole path.
    pub fn shown_file(&self) -> String {
        shown_file(self.files.first().map(PathBuf::as_path))
    }

    /// The password in `ledger.password_file`; for [`Opens::Pages`] that of [`pages_url`].
    ///
    /// [`pages_url`]: Loaded::pages_url
    pub fn ledger_password(&self) -> Option<&SecretString> {
        self.passwords.ledger.as_ref()
    }

    /// The ledger as the pages open it.
    pub fn pages_url(&self) -> &LedgerUrl {
        self.config.web.ledger_url.as_ref().unwrap_or(&self.config.ledger.url)
    }

    /// The password in `directory.password_file`, for [`Opens::Everything`].
    pub fn directory_password(&self) -> Option<&SecretString> {
        self.passwords.directory.as_ref()
    }

    /// The password in `web.password_file`, read now: deliveries need not be able to.
    ///
    /// # Errors
    /// What is wrong with the file, without what it holds.
    pub fn web_password(&self) -> Result<Option<SecretString>, String> {
        let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
        let path = self.config.web.password_file.as_deref();
        path.map(|path| password::read(path, credentials.as_deref()))
            .transpose()
            .map_err(|why| format!("web.password_file: {why}"))
    }

    /// The password in `store.password_file`, for [`Opens::Everything`]; an IMAP store always has
    /// one.
    pub fn store_password(&self) -> Option<&SecretString> {
        self.passwords.store.as_ref()
    }
}

impl Config {
    /// Reads the configuration from `explicit` (`--config`), else `$ONEDROP_CONFIG`, else
    /// [`DEFAULT_FILE`], with `conf.d` and the process's environment, for what `opens` says.
    ///
    /// # Errors
    /// All problems of all layers. A missing file is one, the default file, too: without it every
    /// recipient would be unknown.
    pub fn load(explicit: Option<&Path>, opens: Opens) -> Result<Loaded, ConfigErrors> {
        read_all(explicit, std::env::vars_os(), opens, JobMistakes::Count)
    }

    /// The configuration as [`Config::load`] reads it, for what runs no jobs: what is wrong with
    /// them is no error.
    ///
    /// # Errors
    /// Those of [`Config::load`], without those in `[jobs]` and `[jobs.NAME]`.
    pub fn load_despite_jobs(
        explicit: Option<&Path>,
        opens: Opens,
    ) -> Result<Loaded, ConfigErrors> {
        read_all(explicit, std::env::vars_os(), opens, JobMistakes::AreSetAside)
    }

    /// The configuration as [`Config::load`] reads it, with an environment given by the caller.
    ///
    /// # Errors
    /// Those of [`Config::load`].
    pub fn load_from(
        explicit: Option<&Path>,
        environment: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Loaded, ConfigErrors> {
        read_all(explicit, environment, Opens::Everything, JobMistakes::Count)
    }
}

/// Whether what is wrong with jobs keeps the configuration from being used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum JobMistakes {
    Count,
    AreSetAside,
}

fn read_all(
    explicit: Option<&Path>,
    environment: impl Iterator<Item = (OsString, OsString)>,
    opens: Opens,
    mistakes: JobMistakes,
) -> Result<Loaded, ConfigErrors> {
    let environment: Vec<_> = environment.collect();
    let path_in = |name: &str| {
        let set = environment.iter().rfind(|(known, _)| known == name);
        set.filter(|(_, path)| !path.is_empty()).map(|(_, path)| PathBuf::from(path))
    };
    let mut reading = Reading::default();
    let (main, chosen_by) = match (explicit, path_in("ONEDROP_CONFIG")) {
        (Some(path), _) => (path.to_owned(), "named by --config"),
        (None, Some(path)) => (path, "named by ONEDROP_CONFIG"),
        (None, None) => {
            (DEFAULT_FILE.into(), "the default; --config or ONEDROP_CONFIG names another")
        }
    };
    let beside = conf_d(&main, &mut reading);
    let files: Vec<PathBuf> = std::iter::once(main).chain(beside).collect();
    for (order, file) in files.iter().enumerate() {
        let path: Arc<Path> = Arc::from(file.as_path());
        match read(file) {
            // A disk that was full, or a copy that is under way, leaves such a one: without it
            // addresses would have no account, and mail would go back.
            Ok(text) if order > 0 && text.trim().is_empty() => {
                let why = "is empty: remove it, or write what was in it, or a comment";
                reading.unreadable(Origin::File { order, path, line: 0, column: 0 }, why.into());
            }
            Ok(text) => layer::read(&text, order, &path, &mut reading),
            Err((line, why)) => {
                let is_main = order == 0 && line == 0;
                let how = if is_main { format!(" ({chosen_by})") } else { String::new() };
                let origin = Origin::File { order, path, line, column: line.min(1) };
                reading.unreadable(origin, why + &how);
            }
        }
    }
    variables::read(&environment, &mut reading);
    let merged = merged(std::mem::take(&mut reading.layers));
    let values = merged.as_ref().map(Clone::clone).unwrap_or_default();
    let merged = merged.and_then(::config::Config::try_deserialize);
    let mut config = merged.unwrap_or_else(|error| {
        // The schema has accepted each value, so this is our own mistake; it must not pass for
        // a default.
        let text = format!("the layers do not fit together: {error}");
        reading.unreadable(Origin::Default, text);
        Config::default()
    });
    let before = reading.problems.len();
    config.jobs.jobs = job_rules::read(&config.jobs.timezone, &mut reading);
    reading.set_aside(before);
    // systemd.exec(5), "Credentials"
    let credentials = path_in("CREDENTIALS_DIRECTORY");
    let passwords = rules::check(&config, opens, credentials.as_deref(), &mut reading);
    let ledger_set_in = reading.origin("ledger.url");
    let is_by_variable = |key: &&str| matches!(reading.origin(key), Origin::Variable { .. });
    let by_variable = schema::known_keys().filter(is_by_variable).map(str::to_owned).collect();
    let merged = MergedValues { values, by_variable };
    let Reading { mut problems, mut job_problems, mut warnings, .. } = reading;
    if !job_problems.is_empty() {
        config.jobs.jobs.clear();
    }
    if mistakes == JobMistakes::Count {
        problems.append(&mut job_problems);
    }
    if !problems.is_empty() {
        return Err(ConfigErrors::new(problems));
    }
    warnings.sort();
    job_problems.sort();
    Ok(Loaded { config, job_problems, warnings, files, ledger_set_in, merged, passwords })
}

/// The text of a file, or the line that keeps it from being read (0: the file as a whole) and why.
fn read(path: &Path) -> Result<String, (usize, String)> {
    let whole = |why| (0, why);
    let file = open_regular(path).map_err(whole)?;
    // Into an empty vector the first reads would be small.
    let mut bytes = Vec::with_capacity(BLOCK);
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|error| whole(shown_io(&error)))?;
    if bytes.len() as u64 > LARGEST {
        let why = "larger than 1 MiB, and every delivery reads it (many accounts: directory.query)";
        return Err(whole(why.to_owned()));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
        (line, "this line is not UTF-8".to_owned())
    })
}

/// `conf.d/*.toml` beside the file, in name order; as in a shell, `*` finds no hidden files.
fn conf_d(main: &Path, reading: &mut Reading) -> Vec<PathBuf> {
    let folder = main.parent().unwrap_or(Path::new("")).join("conf.d");
    let listed = fs::read_dir(&folder)
        .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
    let mut names: Vec<OsString> = listed.unwrap_or_else(|error: io::Error| {
        if error.kind() != io::ErrorKind::NotFound {
            let path = Arc::from(folder.as_path());
            let origin = Origin::File { order: 1, path, line: 0, column: 0 };
            reading.unreadable(origin, shown_io(&error));
        }
        Vec::new()
    });
    names.retain(|name| {
        let name = name.as_encoded_bytes();
        name.ends_with(b".toml") && !name.starts_with(b".")
    });
    names.sort();
    names.into_iter().map(|name| folder.join(name)).collect()
}

/// The defaults, and the layers over them.
pub(super) fn merged(layers: Vec<Layer>) -> Result<::config::Config, ConfigError> {
    let mut builder = ::config::Config::builder();
    for key in schema::KEYS {
        let value = key.default_value().map_err(ConfigError::Message)?;
        builder = builder.set_default(key.full, value)?;
    }
    builder.add_source(layers).build()
}
