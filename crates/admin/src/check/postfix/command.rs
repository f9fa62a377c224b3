//! The command line in Postfix's configuration that runs onedrop: the program, a wrapper before it,
//! and its arguments, read as `onedrop` itself reads them.

use std::path::Path;

use clap::Parser as _;

use onedrop_site::command_line::{Cli, CliCommand, DeliverArgs, usage_problem};

/// A command line with onedrop in it.
#[derive(Debug)]
pub(super) struct OnedropCommand {
    /// The words before onedrop: a wrapper or a shell; usually none.
    pub(super) before: Vec<String>,
    /// The program, and its arguments with macros as `${name}`.
    pub(super) words: Vec<String>,
    /// The parsed arguments, or why they are refused.
    pub(super) cli: Result<Cli, String>,
}

impl OnedropCommand {
    /// `None` if no word is the program onedrop, alone or in a shell's command line.
    pub(super) fn find(argv: &[String]) -> Option<OnedropCommand> {
        let mut before: Vec<_> = argv.iter().map(|word| with_braces(word)).collect();
        let at = before
            .iter()
            .position(|word| is_onedrop(word))
            .or_else(|| before.iter().position(|word| runs_onedrop(word)))?;
        let words = before.split_off(at);
        // A delivery's size is a number; all other macros may be any text.
        let with_size = words.iter().map(|word| word.replace("${size}", "0"));
        let cli = Cli::try_parse_from(with_size).map_err(|error| usage_problem(&error));
        Some(OnedropCommand { before, words, cli })
    }

    pub(super) fn program(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    /// Whether onedrop is only named inside a text for a shell.
    pub(super) fn is_shell_text(&self) -> bool {
        !is_onedrop(self.program())
    }

    /// The arguments, if the command is a delivery.
    pub(super) fn delivery(&self) -> Option<&DeliverArgs> {
        match &self.cli {
            Ok(Cli { command: CliCommand::Deliver(args), .. }) => Some(args),
            _ => None,
        }
    }

    /// The socket of the server to which a delivery hands its message.
    pub(super) fn via(&self) -> Option<&Path> {
        self.delivery()?.via.as_deref()
    }

    /// The configuration file that a delivery names.
    pub(super) fn config(&self) -> Option<&Path> {
        self.delivery().and(self.cli.as_ref().ok()?.config.as_deref())
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
    while let Some((before, after)) = rest.split_once('$') {
        let of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = after.find(|c| !of_name(c)).unwrap_or(after.len());
        let in_parentheses = after.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        let (shown, behind) = match (in_parentheses, after.chars().next()) {
            (Some((name, behind)), _) => (format!("${{{name}}}"), behind),
            (_, Some(c)) if c.is_ascii_alphabetic() => {
                (format!("${{{}}}", &after[..end]), &after[end..])
            }
            (_, Some('$')) => ("$$".to_owned(), &after[1..]),
            _ => ("$".to_owned(), after),
        };
        out = out + before + &shown;
        rest = behind;
    }
    out + rest
}
