//! What is wrong and where: the problems that keep a configuration from being used, and warnings
//! that do not.
//!
//! Texts are for an administrator. They fit on one line, whatever bytes the file held, and never
//! show a value that could be a password: URLs and strings of the wrong kind are described, not
//! quoted.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use onedrop_core::text;

/// Longest [`ConfigErrors::first_line`], in bytes.
const FIRST_LINE: usize = 199;

/// Where a value or a problem comes from. Sorts in the order in which an administrator reads: files
/// as they are layered, each from its top, then variables, then what is not set.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Origin {
    /// A place in a file; line and column count from 1, and are 0 for the file as a whole.
    File { order: usize, path: Arc<Path>, line: usize, column: usize },
    /// An environment variable.
    Variable { name: String },
    /// The built-in default.
    Default,
}

/// One thing that is wrong, or that works but is probably not meant (a warning).
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd, thiserror::Error)]
#[error("{origin}: {text}")]
pub struct Problem {
    /// Where.
    pub origin: Origin,
    /// What, with the full key and, where there is one, a suggestion.
    pub text: String,
}

/// Every problem of a configuration, at least one, in the order of [`Origin`]; one a line.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{}", lines(.0))]
pub struct ConfigErrors(Vec<Problem>);

impl ConfigErrors {
    pub(super) fn new(mut problems: Vec<Problem>) -> Self {
        problems.sort();
        problems.dedup();
        Self(problems)
    }

    /// The problems, in order.
    pub fn problems(&self) -> &[Problem] {
        &self.0
    }

    /// One line under 200 bytes for Postfix's log: the first problem and how many more there are.
    pub fn first_line(&self) -> String {
        let first = self.0.first().map(Problem::to_string).unwrap_or_default();
        let suffix = match self.0.len() {
            0 | 1 => String::new(),
            count => format!(" (and {} more; run: onedrop check)", count - 1),
        };
        let line = format!("configuration: {first}");
        text::shortened(&line, FIRST_LINE - suffix.len()).into_owned() + &suffix
    }
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line: 0, .. } => f.write_str(&shown_path(path)),
            Self::File { path, line, column, .. } => {
                write!(f, "{}:{line}:{column}", shown_path(path))
            }
            Self::Variable { name } => f.write_str(name),
            Self::Default => f.write_str("default"),
        }
    }
}

/// Refuses a value where `holds` is not so.
pub(super) fn ensure(holds: bool, why: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why.to_owned()) }
}

pub(super) fn no_control_characters(text: &str) -> Result<(), String> {
    ensure(!text.contains(char::is_control), "must not hold control characters")
}

/// A path on one line.
pub(super) fn shown_path(path: &Path) -> String {
    text::escaped(&path.to_string_lossy())
}

/// A name from a file or the environment on one line, cut where it gets long.
pub(super) fn shown_name(name: &str) -> String {
    const LONGEST: usize = 60;
    match name.char_indices().nth(LONGEST) {
        Some((end, _)) => text::escaped(&name[..end]) + "...",
        None => text::escaped(name),
    }
}

/// What the system says about a file, without its number.
pub(super) fn shown_io(error: &std::io::Error) -> String {
    text::without_number(&error.to_string()).to_lowercase()
}
