//! The generated files, by their names in the project.

use std::collections::BTreeMap;

use clap_complete::Shell;
use onedrop::command_line::manual;

use super::{configuration, man};

/// All that is in these is generated.
pub const FOLDERS: [&str; 2] = ["completions", "man"];

pub fn generated() -> BTreeMap<String, String> {
    let mut files: BTreeMap<String, String> = man::pages()
        .into_iter()
        .chain([("onedrop.toml.5".to_owned(), configuration::page())])
        .map(|(name, text)| (format!("man/{name}"), text))
        .collect();
    let shells =
        [(Shell::Bash, "onedrop.bash"), (Shell::Zsh, "_onedrop"), (Shell::Fish, "onedrop.fish")];
    for (shell, name) in shells {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut manual(), "onedrop", &mut text);
        let text = String::from_utf8(text).expect("completions are text");
        files.insert(format!("completions/{name}"), text);
    }
    files
}
