//! What the long help of each command says below its options: examples, and how it ends. The manual
//! pages are made from the same text.

use clap::{Command, CommandFactory as _};

use super::Cli;

/// A section for each command, under its whole name.
const TEXTS: &str = include_str!("manual.txt");

/// All commands, with examples and exit statuses in their long help. Only who asks for help needs
/// these.
pub fn manual() -> Command {
    with_text(Cli::command(), "onedrop")
}

fn with_text(command: Command, path: &str) -> Command {
    let command = match text(path) {
        Some(text) => command.after_long_help(text),
        None => command,
    };
    command.mut_subcommands(|sub| {
        let path = format!("{path} {}", sub.get_name());
        with_text(sub, &path)
    })
}

/// The whole names of the commands that have a text.
pub fn described() -> impl Iterator<Item = &'static str> {
    sections().map(|(path, _)| path)
}

fn text(path: &str) -> Option<&'static str> {
    sections().find(|(name, _)| *name == path).map(|(_, text)| text.trim_end())
}

fn sections() -> impl Iterator<Item = (&'static str, &'static str)> {
    TEXTS.trim_start_matches("# ").split("\n# ").filter_map(|section| section.split_once('\n'))
}
