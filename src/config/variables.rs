//! The environment: which file to read, where systemd keeps credentials, and the layer of
//! `ONEDROP__SECTION__KEY`.
//!
//! Values are taken by the key's type and never guessed at: a user named `007` stays a string. Only
//! what concerns us is kept; the environment is given by the caller, so that a test need not change
//! its own.

use std::ffi::OsString;
use std::path::PathBuf;

use ::config::ValueKind;

use super::layer::{Findings, Layer};
use super::problem::{Origin, shown_name};
use super::schema::{self, Key, Kind};
use super::unknown;

const PREFIX: &str = "ONEDROP_";
const SEPARATOR: &str = "__";

/// The part of the environment that concerns the configuration.
#[derive(Debug, Default)]
pub(super) struct Environment {
    /// `$ONEDROP_CONFIG`, unless empty.
    pub config_file: Option<PathBuf>,
    /// `$CREDENTIALS_DIRECTORY`, unless empty (systemd.exec(5), "Credentials").
    pub credentials_directory: Option<PathBuf>,
    variables: Vec<(OsString, OsString)>,
}

impl Environment {
    pub(super) fn gather(variables: impl Iterator<Item = (OsString, OsString)>) -> Self {
        let mut environment = Self::default();
        for (name, value) in variables {
            if name == "ONEDROP_CONFIG" {
                environment.config_file = (!value.is_empty()).then(|| value.into());
            } else if name == "CREDENTIALS_DIRECTORY" {
                environment.credentials_directory = (!value.is_empty()).then(|| value.into());
            } else if has_prefix(name.as_encoded_bytes(), PREFIX) {
                environment.variables.push((name, value));
            }
        }
        environment.variables.sort();
        environment
    }

    /// The layer of variables.
    pub(super) fn layer(&self, findings: &mut Findings) -> Layer {
        let mut layer = Layer::default();
        let mut seen: Vec<(&str, &str)> = Vec::new();
        for (name, value) in &self.variables {
            let lossy = name.to_string_lossy();
            let origin = Origin::Variable { name: shown_name(&lossy) };
            let Some(name) = name.to_str() else {
                findings.problem(origin, "the variable's name is not UTF-8".to_owned());
                continue;
            };
            let Some(path) = strip_prefix(name, "ONEDROP__") else {
                if let Some(key) = meant(name) {
                    findings.warning(origin, format!("not read (did you mean {}?)", variable(key)));
                }
                continue;
            };
            let key = match find(path) {
                Ok(key) => key,
                Err(why) => {
                    findings.problem(origin, why);
                    continue;
                }
            };
            if let Some((other, _)) = seen.iter().find(|(_, full)| *full == key.full) {
                findings.refuse(key, origin, &format!("is also set by {other}"));
                continue;
            }
            seen.push((name, key.full));
            let judged = value.to_str().ok_or_else(|| "the value is not UTF-8".to_owned());
            match judged.and_then(|value| from_variable(key, value)) {
                Ok(value) => layer.set(key, value, origin, findings),
                Err(why) => findings.refuse(key, origin, &why),
            }
        }
        layer
    }
}

/// The key that a variable's name, without its prefix, stands for.
fn find(path: &str) -> Result<&'static Key, String> {
    let lower = path.to_ascii_lowercase();
    let Some((section, name)) = lower.split_once(SEPARATOR) else {
        let hint = meant(&format!("{PREFIX}{path}"))
            .map(|key| format!(" (did you mean {}?)", variable(key)));
        let form = "names no key: expected ONEDROP__SECTION__KEY";
        return Err(format!("{form}{}", hint.unwrap_or_default()));
    };
    if let Some(key) = schema::find(section, name) {
        return Ok(key);
    }
    if section == "directory" && name.starts_with("accounts__") {
        return Err(NO_ACCOUNTS.to_owned());
    }
    if schema::sections().any(|known| known == section) {
        return Err(unknown::key(section, name));
    }
    Err(unknown::section(section))
}

const NO_ACCOUNTS: &str =
    "directory.accounts cannot be set from the environment (use a file in conf.d)";

fn from_variable(key: &Key, value: &str) -> Result<ValueKind, String> {
    match key.kind {
        Kind::Flag if value.eq_ignore_ascii_case("true") => Ok(true.into()),
        Kind::Flag if value.eq_ignore_ascii_case("false") => Ok(false.into()),
        Kind::Flag => Err(format!("expected {}, found \"{}\"", key.expects(), shown_name(value))),
        Kind::Count { .. } => {
            let digits = value.strip_prefix('-').unwrap_or(value);
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(format!("expected {}, found \"{}\"", key.expects(), shown_name(value)));
            }
            key.number_value(value, 10)
        }
        Kind::List(keeps) => {
            let items = value.split(',').map(str::trim).filter(|item| !item.is_empty());
            items.map(keeps).collect::<Result<Vec<_>, _>>().map(ValueKind::from)
        }
        Kind::Accounts => {
            Err("cannot be set from the environment (use a file in conf.d)".to_owned())
        }
        Kind::Text(_) | Kind::OptionalText(_) | Kind::Choice(_) => key.text_value(value),
    }
}

/// The key that a name with the wrong underscores stands for.
fn meant(name: &str) -> Option<&'static Key> {
    let letters = |text: &str| text.replace(['_', '.'], "").to_ascii_lowercase();
    let wanted = letters(strip_prefix(name, PREFIX)?);
    schema::KEYS.iter().find(|key| letters(key.full) == wanted)
}

fn variable(key: &Key) -> String {
    format!("ONEDROP__{}", key.full.replace('.', SEPARATOR).to_ascii_uppercase())
}

fn strip_prefix<'a>(name: &'a str, prefix: &str) -> Option<&'a str> {
    has_prefix(name.as_bytes(), prefix).then(|| &name[prefix.len()..])
}

fn has_prefix(name: &[u8], prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
}
