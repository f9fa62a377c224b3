//! A finding of `onedrop check`: one line, with its meaning for mail.

use std::path::Path;

use crate::config::{Origin, Problem};
use crate::text;

/// Bytes of a finding, which may quote foreign text.
const LONGEST: usize = 4000;

/// What a finding means for mail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Correct, or worth knowing.
    Ok,
    /// Works, but is probably not intended.
    Warning,
    /// Could not be tested.
    Untested,
    /// Mail would wait, be returned or be changed.
    Error,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Untested => "untested",
            Level::Error => "error",
        }
    }
}

/// One line: the fact, its place, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    pub level: Level,
    pub topic: &'static str,
    pub text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
}

impl Finding {
    /// A finding on one line, with `text` cleaned.
    pub fn new(level: Level, topic: &'static str, text: impl AsRef<str>) -> Finding {
        let text = text::shortened(text.as_ref().trim(), LONGEST).into_owned();
        Finding { level, topic, text, file: None, line: None }
    }

    pub fn in_file(mut self, file: &Path) -> Finding {
        self.file = Some(file.to_string_lossy().into_owned());
        self
    }

    pub(super) fn of_problem(level: Level, problem: &Problem) -> Finding {
        let finding = Finding::new(level, "configuration", problem.to_string());
        let Origin::File { path, line, .. } = &problem.origin else { return finding };
        Finding { line: Some(*line).filter(|line| *line > 0), ..finding.in_file(path) }
    }

    pub fn told(&self) -> String {
        format!("{:<7} {}: {}", self.level.name(), self.topic, self.text)
    }
}
