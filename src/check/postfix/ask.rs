//! Runs `postconf` and parses its output.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::check::program;

/// The program in `path` or one of the usual folders.
pub(super) fn find_postconf(path: Option<&OsStr>) -> Option<PathBuf> {
    program::find("postconf", path)
}

/// The program postconf, with a configuration directory.
pub(super) struct Postconf {
    program: PathBuf,
    folder: Option<PathBuf>,
    until: Instant,
}

impl Postconf {
    pub(super) fn new(program: PathBuf, folder: Option<&Path>, until: Instant) -> Postconf {
        Postconf { program, folder: folder.map(Path::to_owned), until }
    }

    /// When all runs must have ended.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// master.cf, a line per service.
    pub(super) fn services(&self) -> Result<String, String> {
        self.run(&["-M".into()])
    }

    /// Parameters with `$name` expanded, as a service with these `-o` overrides sees them.
    pub(super) fn values(
        &self,
        overrides: &[(String, String)],
        names: &[String],
    ) -> Result<BTreeMap<String, String>, String> {
        let mut arguments: Vec<OsString> = vec!["-x".into()];
        for (name, value) in overrides {
            arguments.extend(["-o".into(), format!("{name}={value}").into()]);
        }
        arguments.extend(names.iter().map(OsString::from));
        Ok(pairs(&self.run(&arguments)?))
    }

    /// Parameters as they are written.
    pub(super) fn as_written(&self, names: &[&str]) -> Result<BTreeMap<String, String>, String> {
        let names: Vec<_> = names.iter().map(OsString::from).collect();
        Ok(pairs(&self.run(&names)?))
    }

    fn run(&self, arguments: &[OsString]) -> Result<String, String> {
        let mut command = Command::new(&self.program);
        if let Some(folder) = &self.folder {
            command.arg("-c").arg(folder);
        }
        command.args(arguments).env("LC_ALL", "C");
        program::output(command, self.until)
    }
}

pub(super) fn pairs(output: &str) -> BTreeMap<String, String> {
    let pair = |line: &str| {
        line.split_once('=').map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
    };
    output.lines().filter_map(pair).collect()
}
