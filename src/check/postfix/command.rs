//! The command line in Postfix's configuration that runs onedrop: the program, a wrapper before it,
//! and its arguments, read by the parser of `onedrop deliver` itself.

use std::path::{Path, PathBuf};

/// Parses a command line, program first, with Postfix's macros as `${name}`.
pub type Understand = fn(&[String]) -> Understood;

/// The parsed arguments.
#[derive(Debug)]
pub enum Understood {
    Deliver(Arguments),
    /// Another command than `deliver`.
    Other,
    /// The error.
    Refused(String),
}

/// The arguments of a delivery.
#[derive(Debug)]
pub struct Arguments {
    pub config: Option<PathBuf>,
    pub recipients: Vec<String>,
    pub has_sender: bool,
    pub has_size: bool,
    pub has_queue_id: bool,
}

/// A command line with onedrop in it.
#[derive(Debug)]
pub(super) struct OnedropCommand {
    /// The words before onedrop: a wrapper or a shell; usually none.
    pub(super) before: Vec<String>,
    /// The program, and its arguments with macros as `${name}`.
    pub(super) words: Vec<String>,
    pub(super) understood: Understood,
}

impl OnedropCommand {
    /// `None` if no word is the program onedrop, alone or in a shell's command line.
    pub(super) fn find(argv: &[String], understand: Understand) -> Option<OnedropCommand> {
        let words: Vec<_> = argv.iter().map(|word| with_braces(word)).collect();
        let at = words
            .iter()
            .position(|word| is_onedrop(word))
            .or_else(|| words.iter().position(|w| runs_onedrop(w)))?;
        let (before, words) = words.split_at(at);
        // A delivery's size is a number; all other macros may be any text.
        let with_size: Vec<_> = words.iter().map(|word| word.replace("${size}", "0")).collect();
        let understood = understand(&with_size);
        Some(OnedropCommand { before: before.to_vec(), words: words.to_vec(), understood })
    }

    pub(super) fn program(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    /// Whether onedrop is only named inside a text for a shell.
    pub(super) fn is_shell_text(&self) -> bool {
        !is_onedrop(self.program())
    }

    /// The arguments, if the command is a delivery.
    pub(super) fn delivery(&self) -> Option<&Arguments> {
        match &self.understood {
            Understood::Deliver(arguments) => Some(arguments),
            Understood::Other | Understood::Refused(_) => None,
        }
    }
}

fn is_onedrop(word: &str) -> bool {
    Path::new(word).file_name().is_some_and(|name| name == "onedrop")
}

/// Whether a text for a shell, or for local(8), has the program onedrop in it.
pub(super) fn runs_onedrop(text: &str) -> bool {
    let separates = |c: char| c.is_whitespace() || "\"'`;|&()<>=".contains(c);
    text.split(separates).any(is_onedrop)
}

/// `$name` and `$(name)`, which mean the same to pipe(8), as `${name}`.
fn with_braces(word: &str) -> String {
    let mut out = String::new();
    let mut rest = word;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let (name, length) = match after.chars().next() {
            Some('(') => after.find(')').map_or((None, 0), |end| (Some(&after[1..end]), end + 1)),
            Some(c) if c.is_ascii_alphabetic() => {
                let end = after
                    .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                    .unwrap_or(after.len());
                (Some(&after[..end]), end)
            }
            Some('$') => (None, 1),
            _ => (None, 0),
        };
        match name {
            Some(name) => out.push_str(&format!("${{{name}}}")),
            None => {
                out.push('$');
                out.push_str(&after[..length]);
            }
        }
        rest = &after[length..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macros_have_one_form() {
        let cases = [
            ("${recipient}", "${recipient}"),
            ("-d$recipient", "-d${recipient}"),
            ("$(size)x", "${size}x"),
            ("a$$b$", "a$$b$"),
            ("$(open", "$(open"),
            ("$user@$domain", "${user}@${domain}"),
        ];
        for (word, expected) in cases {
            assert_eq!(with_braces(word), expected);
        }
    }

    #[test]
    fn onedrop_is_a_programs_name() {
        assert!(runs_onedrop("exec /usr/bin/onedrop deliver") && runs_onedrop("A=b;onedrop"));
        assert!(!runs_onedrop("/usr/bin/onedrops /etc/onedrop/onedrop.toml"));
    }
}
