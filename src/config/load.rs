//! The order of layers: one file, `conf.d/*.toml` beside it in name order, `ONEDROP__SECTION__KEY`
//! variables.
//!
//! Each layer is judged alone, so that every problem of every layer is known before any is
//! reported; the `config` crate then lays what is left over each other. Reading writes nothing and
//! takes no stdin: only regular files are read.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use secrecy::SecretString;

use super::Config;
use super::layer::{self, Findings, Layer};
use super::password::open_regular;
use super::problem::{ConfigErrors, Origin, Warning, shown_io};
use super::rules::{self, Passwords};
use super::variables::Environment;

/// The configuration file, unless `--config` or `$ONEDROP_CONFIG` names another.
pub const DEFAULT_FILE: &str = "/etc/onedrop/onedrop.toml";

/// Largest configuration file, in bytes: every delivery reads it.
const LARGEST: u64 = 1 << 20;

/// A configuration that has passed every check, with its passwords.
#[derive(Debug)]
pub struct Loaded {
    pub config: Config,
    /// What works but is probably not meant, in the order of its origin.
    pub warnings: Vec<Warning>,
    /// The files it was read from, in order.
    pub files: Vec<PathBuf>,
    passwords: Passwords,
}

impl Loaded {
    /// The password in `ledger.password_file`.
    pub fn ledger_password(&self) -> Option<&SecretString> {
        self.passwords.ledger.as_ref()
    }

    /// The password in `store.password_file`; an IMAP store always has one.
    pub fn store_password(&self) -> Option<&SecretString> {
        self.passwords.store.as_ref()
    }
}

impl Config {
    /// Reads the configuration from `explicit` (`--config`), else `$ONEDROP_CONFIG`, else
    /// [`DEFAULT_FILE`], with `conf.d` and the process's environment.
    ///
    /// # Errors
    /// All problems of all layers. A missing file is one, the default file, too: without it every
    /// recipient would be unknown.
    pub fn load(explicit: Option<&Path>) -> Result<Loaded, ConfigErrors> {
        Self::load_from(explicit, std::env::vars_os())
    }

    /// As [`Config::load`], with an environment given by the caller.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_from(
        explicit: Option<&Path>,
        environment: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Loaded, ConfigErrors> {
        let environment = Environment::gather(environment);
        let mut findings = Findings::default();
        let (main, chosen_by) = match (explicit, &environment.config_file) {
            (Some(path), _) => (path.to_owned(), "named by --config"),
            (None, Some(path)) => (path.clone(), "named by ONEDROP_CONFIG"),
            (None, None) => {
                (DEFAULT_FILE.into(), "the default; --config or ONEDROP_CONFIG names another")
            }
        };
        let beside = conf_d(&main, &mut findings);
        let files: Vec<PathBuf> = std::iter::once(main).chain(beside).collect();
        let mut layers = Vec::new();
        for (order, file) in files.iter().enumerate() {
            let path: Arc<Path> = Arc::from(file.as_path());
            let whole = |line| Origin::File {
                order,
                path: Arc::clone(&path),
                line,
                column: usize::from(line > 0),
            };
            match read(file) {
                Ok(text) => layers.push(layer::read(&text, order, &path, &mut findings)),
                Err(unreadable) => {
                    findings.incomplete = true;
                    let how = if order == 0 && unreadable.line == 0 {
                        format!(" ({chosen_by})")
                    } else {
                        String::new()
                    };
                    findings.problem(whole(unreadable.line), format!("{}{how}", unreadable.why));
                }
            }
        }
        layers.push(environment.layer(&mut findings));
        let config = merge(layers, &mut findings);
        let passwords =
            rules::check(&config, environment.credentials_directory.as_deref(), &mut findings);
        if !findings.problems.is_empty() {
            return Err(ConfigErrors::new(findings.problems));
        }
        findings.warnings.sort();
        Ok(Loaded { config, warnings: findings.warnings, files, passwords })
    }
}

/// Why a file could not be read; line 0: as a whole.
struct Unreadable {
    line: usize,
    why: String,
}

fn read(path: &Path) -> Result<String, Unreadable> {
    let whole = |why| Unreadable { line: 0, why };
    let file = open_regular(path).map_err(whole)?;
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|error| whole(shown_io(&error)))?;
    if bytes.len() as u64 > LARGEST {
        return Err(whole(
            "larger than 1 MiB, and every delivery reads it (many accounts: directory.query)"
                .to_owned(),
        ));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
        Unreadable { line, why: "this line is not UTF-8".to_owned() }
    })
}

/// `conf.d/*.toml` beside the file, in name order; as in a shell, `*` finds no hidden files.
fn conf_d(main: &Path, findings: &mut Findings) -> Vec<PathBuf> {
    let folder = main.parent().unwrap_or(Path::new("")).join("conf.d");
    let listed = fs::read_dir(&folder).and_then(|entries| {
        let names: Result<Vec<_>, io::Error> =
            entries.map(|entry| Ok(entry?.file_name())).collect();
        names
    });
    let mut names = match listed {
        Ok(names) => names,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => {
            findings.incomplete = true;
            let origin =
                Origin::File { order: 1, path: Arc::from(folder.as_path()), line: 0, column: 0 };
            findings.problem(origin, shown_io(&error));
            Vec::new()
        }
    };
    names.retain(|name| {
        let name = name.as_encoded_bytes();
        name.ends_with(b".toml") && !name.starts_with(b".")
    });
    names.sort();
    names.into_iter().map(|name| folder.join(name)).collect()
}

fn merge(layers: Vec<Layer>, findings: &mut Findings) -> Config {
    let sources = layers
        .into_iter()
        .fold(::config::Config::builder(), |builder, layer| builder.add_source(layer));
    match sources.build().and_then(::config::Config::try_deserialize) {
        Ok(config) => config,
        Err(error) => {
            // The schema has accepted each value, so this is our own mistake; it must not pass for
            // a default.
            findings.incomplete = true;
            findings.problem(Origin::Default, format!("the layers do not fit together: {error}"));
            Config::default()
        }
    }
}
