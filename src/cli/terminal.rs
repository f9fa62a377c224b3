//! What people see on a terminal: colours, and lines that fit its width. Other readers get neither,
//! so that they find whole lines and whole values.

use std::io::{self, IsTerminal as _};

use clap::builder::styling::{AnsiColor, Style};
use terminal_size::{Width, terminal_size_of};

use crate::command_line::ColorWhen;
use crate::text;

/// Narrower than that nothing is made to fit.
const NARROWEST: usize = 40;

/// Where a terminal does not say how wide it is.
const USUAL: usize = 80;

/// What standard output is.
#[derive(Clone, Copy)]
pub(super) struct Screen {
    colors: bool,
    /// Columns; `None`: no terminal.
    pub width: Option<usize>,
}

/// What a word of a line means.
#[derive(Clone, Copy)]
pub(super) enum Paint {
    Good,
    /// A person should look.
    Doubtful,
    Bad,
    /// What the line is about.
    Name,
}

impl Screen {
    pub fn of_stdout(colors: ColorWhen) -> Screen {
        let is_terminal = io::stdout().is_terminal();
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let takes_colors = || {
            let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
            // <https://no-color.org>
            is_terminal && !is_set("NO_COLOR") && !is_dumb
        };
        let columns = || terminal_size_of(io::stdout()).map_or(USUAL, |(Width(of), _)| of.into());
        let width = is_terminal.then(columns);
        let colors = match colors {
            ColorWhen::Always => true,
            ColorWhen::Never => false,
            ColorWhen::Auto => takes_colors(),
        };
        Screen { colors, width: width.map(|width| width.max(NARROWEST)) }
    }

    /// Whether text of clap's may have its colours.
    pub fn has_colors(self) -> bool {
        self.colors
    }

    /// `text` in its colour.
    pub fn painted(self, text: &str, paint: Paint) -> String {
        let style = match paint {
            Paint::Good => AnsiColor::Green.on_default(),
            Paint::Doubtful => AnsiColor::Yellow.on_default().bold(),
            Paint::Bad => AnsiColor::Red.on_default().bold(),
            Paint::Name => Style::new().bold(),
        };
        match self.colors {
            true => format!("{style}{text}{style:#}"),
            false => text.to_owned(),
        }
    }

    /// A line that begins with a word in its colour, and goes on, where it is too wide, below
    /// `indent` columns.
    pub fn line(self, first: &str, paint: Paint, rest: &str, indent: usize) -> String {
        let line = format!("{first}{rest}");
        let fitted = match self.width {
            Some(width) => text::fitted(&line, indent, width),
            None => line,
        };
        // No word of it is cut, as it is narrower than the indent.
        let rest = fitted.strip_prefix(first).unwrap_or(&fitted);
        let (word, blanks) = first.split_at(first.trim_end().len());
        format!("{}{blanks}{rest}\n", self.painted(word, paint))
    }
}
