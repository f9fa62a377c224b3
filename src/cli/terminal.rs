//! What people see on a terminal: colours, and lines that fit its width. Other readers get neither,
//! so that they find whole lines and whole values.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use clap::builder::styling::{AnsiColor, Style};
use terminal_size::{Width, terminal_size_of};

use onedrop_core::text;
use onedrop_site::command_line::ColorWhen;

/// Narrower than that nothing is made to fit.
const NARROWEST: usize = 40;

/// Where a terminal does not say how wide it is.
const USUAL: usize = 80;

/// Ends a word of a table's cell, and not the cell.
const NO_BREAK: &str = "\u{a0}";

/// What standard output or standard error is.
#[derive(Clone, Copy)]
pub(super) struct Screen {
    /// What `--color` says.
    asked: ColorWhen,
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
        Screen::of(io::stdout(), colors)
    }

    /// The same for standard error.
    pub fn of_stderr(self) -> Screen {
        Screen::of(io::stderr(), self.asked)
    }

    fn of(stream: impl AsFd + IsTerminal, asked: ColorWhen) -> Screen {
        let is_terminal = stream.is_terminal();
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let takes_colors = || {
            let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
            // <https://no-color.org>
            is_terminal && !is_set("NO_COLOR") && !is_dumb
        };
        let columns = || terminal_size_of(stream).map_or(USUAL, |(Width(of), _)| of.into());
        let width = is_terminal.then(columns);
        let colors = match asked {
            ColorWhen::Always => true,
            ColorWhen::Never => false,
            ColorWhen::Auto => takes_colors(),
        };
        Screen { asked, colors, width: width.map(|width| width.max(NARROWEST)) }
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

    /// `text`, each line of which goes on, where it is too wide, below `indent` columns.
    pub fn fitted(self, text: &str, indent: usize) -> String {
        let Some(width) = self.width else { return text.to_owned() };
        let lines = text.split('\n').map(|line| text::fitted(line, indent, width));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// A line that begins with a word in its colour, and goes on, where it is too wide, below
    /// `indent` columns.
    pub fn line(self, first: &str, paint: Paint, rest: &str, indent: usize) -> String {
        let (word, blanks) = first.split_at(first.trim_end().len());
        let line = format!("{}{blanks}{rest}", self.painted(word, paint));
        self.fitted(&line, indent) + "\n"
    }

    /// Lines with columns one below the other; the last is as long as it is. A line that is too
    /// wide goes on below its second column, with a whole cell if it is not the last.
    pub fn table(self, rows: &[Vec<String>]) -> String {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |at: usize| {
            rows.iter().filter_map(|row| row.get(at)).map(|cell| text::columns(cell)).max()
        };
        let widths: Vec<usize> = (0..columns).map(|at| width(at).unwrap_or(0)).collect();
        let indent = widths.first().map_or(0, |width| width + 2);
        let indent = self.width.map_or(indent, |width| indent.min(width / 2));
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).enumerate().map(|(at, (cell, width))| {
                let blanks = " ".repeat(width - text::columns(cell));
                match at + 1 < row.len() {
                    true => cell.replace(' ', NO_BREAK) + &blanks,
                    false => cell.to_owned(),
                }
            });
            let line = cells.collect::<Vec<_>>().join("  ");
            format!("{}\n", self.fitted(line.trim_end(), indent).replace(NO_BREAK, " "))
        };
        rows.iter().map(line).collect()
    }
}
