//! A finding of `onedrop check`: one line, with its meaning for mail.

use std::fmt::{self, Display, Formatter};
use std::path::Path;

use serde::Serialize;

use onedrop_core::text;
use onedrop_site::config::{Origin, Problem};

/// Bytes of a finding, which may quote foreign text.
const LONGEST: usize = 4000;

/// What a finding means for mail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Correct, or worth knowing.
    Ok,
    /// Works, but is probably not intended.
    Warning,
    /// Could not be tested.
    Untested,
    /// Mail would wait, be returned or be changed.
    Error,
}

impl Display for Severity {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// One line: the fact, its place, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    #[serde(rename = "level")]
    pub severity: Severity,
    pub topic: &'static str,
    pub text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
}

impl Finding {
    /// A finding on one line, with `text` cleaned.
    pub(super) fn new(severity: Severity, topic: &'static str, text: impl AsRef<str>) -> Finding {
        let text = text::shortened(&text::shown(text.as_ref().trim()), LONGEST).into_owned();
        Finding { severity, topic, text, file: None, line: None }
    }

    pub(super) fn in_file(self, file: &Path) -> Finding {
        Finding { file: Some(file.to_string_lossy().into_owned()), ..self }
    }

    pub(super) fn of_problem(severity: Severity, problem: &Problem) -> Finding {
        let finding = Finding::new(severity, "configuration", problem.to_string());
        let Origin::File { path, line, .. } = &problem.origin else { return finding };
        Finding { line: Some(*line).filter(|line| *line > 0), ..finding.in_file(path) }
    }

    /// The finding as a line for an administrator.
    pub fn line(&self) -> String {
        format!("{:<7} {}: {}", self.severity, self.topic, self.text)
    }
}

/// What there is to say about one thing, in the order in which it is read.
#[derive(Debug, Default)]
pub(super) struct Remarks(Vec<(Severity, String)>);

impl Remarks {
    pub fn add(&mut self, severity: Severity, text: impl Into<String>) {
        self.0.push((severity, text.into()));
    }

    pub fn ok(&mut self, text: impl Into<String>) {
        self.add(Severity::Ok, text);
    }

    pub fn warning(&mut self, text: impl Into<String>) {
        self.add(Severity::Warning, text);
    }

    pub fn untested(&mut self, text: impl Into<String>) {
        self.add(Severity::Untested, text);
    }

    pub fn error(&mut self, text: impl Into<String>) {
        self.add(Severity::Error, text);
    }

    pub fn has(&self, severity: Severity) -> bool {
        self.0.iter().any(|(one, _)| *one == severity)
    }

    /// Puts `text` before all other remarks if nothing is there to mend.
    pub fn summarize(&mut self, text: impl FnOnce() -> String) {
        if self.0.iter().all(|(severity, _)| *severity == Severity::Ok) {
            self.0.insert(0, (Severity::Ok, text()));
        }
    }

    /// Findings about `topic`, each with `start` in front.
    pub fn findings(self, topic: &'static str, start: &str) -> impl Iterator<Item = Finding> {
        let finding =
            move |(severity, text)| Finding::new(severity, topic, format!("{start}{text}"));
        self.0.into_iter().map(finding)
    }
}
