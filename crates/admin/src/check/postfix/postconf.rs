//! Runs `postconf` and parses its output.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use crate::check::program;

/// Values by the names of their parameters.
pub(super) type Parameters = BTreeMap<String, String>;

/// The program postconf, with a configuration directory.
pub(super) struct Postconf {
    pub(super) program: PathBuf,
    pub(super) folder: Option<PathBuf>,
    /// When all runs must have ended.
    pub(super) until: Instant,
}

impl Postconf {
    /// master.cf, a line per service.
    pub(super) fn services(&self) -> Result<String, String> {
        program::output(self.command().arg("-M"), self.until)
    }

    /// Parameters with `$name` expanded, as a service with these `-o` overrides sees them.
    pub(super) fn values(
        &self,
        overrides: &[(String, String)],
        names: impl IntoIterator<Item: AsRef<OsStr>>,
    ) -> Result<Parameters, String> {
        let mut command = self.command();
        command.arg("-x");
        for (name, value) in overrides {
            command.arg("-o").arg(format!("{name}={value}"));
        }
        Ok(pairs(&program::output(command.args(names), self.until)?))
    }

    /// `NAME_parameter` of the service NAME as a service with these `-o` overrides sees it, else
    /// `default`.
    pub(super) fn own_or_default(
        &self,
        overrides: &[(String, String)],
        service: &str,
        parameter: &str,
        default: &str,
    ) -> Result<String, String> {
        let names = [format!("{service}_{parameter}"), default.to_owned()];
        let mut values = self.values(overrides, &names)?;
        let own = names.iter().find_map(|name| values.remove(name).filter(|one| !one.is_empty()));
        Ok(own.unwrap_or_default())
    }

    /// Parameters as they are written.
    pub(super) fn as_written(&self, names: &[&str]) -> Result<Parameters, String> {
        Ok(pairs(&program::output(self.command().args(names), self.until)?))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        if let Some(folder) = &self.folder {
            command.arg("-c").arg(folder);
        }
        command.env("LC_ALL", "C");
        command
    }
}

/// What `postconf` prints of main.cf.
pub(super) fn pairs(output: &str) -> Parameters {
    let pair = |line: &str| {
        line.split_once('=').map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
    };
    output.lines().filter_map(pair).collect()
}
