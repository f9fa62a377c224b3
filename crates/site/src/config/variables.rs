//! The layer of `ONEDROP__SECTION__KEY` variables. Values are taken by the key's type and never
//! guessed at: a user named `007` stays a string.

use std::ffi::OsString;

use super::jobs;
use super::layer::{Layer, Reading};
use super::problem::{Origin, shown_name};
use super::schema::{self, Key};
use super::unknown;

const PREFIX: &str = "ONEDROP_";
const SEPARATOR: &str = "__";

/// Reads the layer out of the whole environment.
pub(super) fn read(environment: &[(OsString, OsString)], reading: &mut Reading) {
    reading.layers.push(Layer::default());
    let mut variables: Vec<_> = environment
        .iter()
        .filter(|(name, _)| without_prefix(&name.to_string_lossy(), PREFIX).is_some())
        .collect();
    variables.sort();
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for (name, value) in variables {
        let origin = Origin::Variable { name: shown_name(&name.to_string_lossy()) };
        let Some(name) = name.to_str() else {
            reading.problem(origin, "the variable's name is not UTF-8".to_owned());
            continue;
        };
        let Some(path) = without_prefix(name, "ONEDROP__") else {
            if let Some(meant) = meant(name) {
                reading.warning(origin, format!("not read (did you mean {meant}?)"));
            }
            continue;
        };
        let before = reading.problems.len();
        match find(path) {
            Ok(key) => match seen.iter().find(|(_, full)| *full == key.full) {
                Some((other, _)) => {
                    reading.refuse(key.full, origin, &format!("is also set by {other}"));
                }
                None => {
                    seen.push((name, key.full));
                    set(key, value, origin, reading);
                }
            },
            Err(why) => reading.problem(origin, why),
        }
        if section_of(path) == jobs::SECTION {
            reading.set_aside(before);
        }
    }
}

fn set(key: &'static Key, value: &OsString, origin: Origin, reading: &mut Reading) {
    let value = value.to_str().ok_or_else(|| "the value is not UTF-8".to_owned());
    match value.and_then(|value| key.untyped_value(value)) {
        Ok(value) => reading.set(key, value, origin),
        Err(why) => reading.refuse(key.full, origin, &why),
    }
}

fn section_of(path: &str) -> String {
    path.split(SEPARATOR).next().unwrap_or_default().to_ascii_lowercase()
}

/// The key that a variable's name, without its prefix, stands for.
fn find(path: &str) -> Result<&'static Key, String> {
    let lower = path.to_ascii_lowercase();
    let Some((section, name)) = lower.split_once(SEPARATOR) else {
        let hint = meant(&format!("{PREFIX}{path}")).map(|key| format!(" (did you mean {key}?)"));
        let form = "names no key: expected ONEDROP__SECTION__KEY";
        return Err(format!("{form}{}", hint.unwrap_or_default()));
    };
    schema::find(section, name).ok_or_else(|| {
        if section == "directory" && name.starts_with("accounts__") {
            "directory.accounts cannot be set from the environment (use a file in conf.d)".into()
        } else if section == jobs::SECTION && name.contains(SEPARATOR) {
            "a job's keys cannot be set from the environment (use a file in conf.d)".into()
        } else if schema::sections().any(|known| known == section) {
            unknown::key(section, name)
        } else {
            unknown::section(section)
        }
    })
}

/// The variable that was meant by a name with the wrong underscores.
fn meant(name: &str) -> Option<String> {
    let letters = |text: &str| text.replace(['_', '.'], "").to_ascii_lowercase();
    let wanted = letters(without_prefix(name, PREFIX)?);
    let key = schema::KEYS.iter().find(|key| letters(key.full) == wanted)?;
    Some(format!("ONEDROP__{}", key.full.replace('.', SEPARATOR).to_ascii_uppercase()))
}

fn without_prefix<'a>(name: &'a str, prefix: &str) -> Option<&'a str> {
    let start = name.get(..prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then(|| &name[prefix.len()..])
}
