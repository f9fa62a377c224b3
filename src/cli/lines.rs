//! What a command prints while it works: a line for each result, or an element of a JSON array.

use std::io::{self, Write as _};

use indicatif::ProgressBar;
use serde::Serialize;

use onedrop_core::text::shown_output;

/// The results of a run, each printed as it comes.
pub(super) struct Lines {
    json: bool,
    /// How many results there were.
    pub count: u64,
    /// Stands below them; shown on a terminal alone.
    pub bar: ProgressBar,
    /// The first error of standard output. It does not change what is done, but how it ends.
    written: io::Result<()>,
}

impl Lines {
    pub fn new(json: bool, bar: ProgressBar) -> Lines {
        Lines { json, count: 0, bar, written: Ok(()) }
    }

    /// Prints a result; `text` is it for people, with its line's end.
    pub fn print(&mut self, result: &impl Serialize, text: impl FnOnce() -> String) {
        let text = if self.json {
            let opening = if self.count == 0 { "[\n" } else { ",\n" };
            format!("{opening}{}", serde_json::to_string(result).unwrap_or_default())
        } else {
            text()
        };
        self.count += 1;
        self.write(&text);
    }

    fn write(&mut self, text: &str) {
        // What could not be printed leaves no hole: nothing follows. What says nothing disturbs no
        // bar.
        if self.written.is_ok() && !text.is_empty() {
            let print = || io::stdout().write_all(shown_output(text).as_bytes());
            self.written = self.bar.suspend(print);
        }
    }

    /// # Errors
    /// Not all could be printed.
    pub fn end(mut self) -> io::Result<()> {
        self.bar.finish_and_clear();
        if self.json {
            self.write(if self.count == 0 { "[]\n" } else { "\n]\n" });
        }
        self.written.and(io::stdout().flush())
    }
}
