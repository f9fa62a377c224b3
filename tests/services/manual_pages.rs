//! The generated files, man/ and completions/: that they are the program's, that the tools which
//! read them find nothing wrong, and that each page shows examples and endings.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use onedrop::command_line::{described, manual};

use crate::page::PROJECT;
use crate::support::{TempRoot, onedrop};
use generated::{FOLDERS, generated};

#[path = "../../examples/generate/configuration.rs"]
mod configuration;
#[path = "../../examples/generate/generated.rs"]
mod generated;
#[path = "../../examples/generate/man.rs"]
mod man;

fn run(command: &mut Command) -> Output {
    command.current_dir(PROJECT).output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn the_generated_files_are_the_programs() {
    let wanted = generated();
    let mut wrong: Vec<String> = Vec::new();
    let mut kept = BTreeSet::new();
    for folder in FOLDERS {
        for entry in fs::read_dir(Path::new(PROJECT).join(folder)).expect("a folder") {
            let name = entry.expect("an entry").file_name();
            kept.insert(format!("{folder}/{}", name.to_string_lossy()));
        }
    }
    wrong.extend(kept.iter().filter(|name| !wanted.contains_key(*name)).cloned());
    for (name, text) in &wanted {
        if fs::read_to_string(Path::new(PROJECT).join(name)).ok().as_deref() != Some(text) {
            wrong.push(name.clone());
        }
    }
    assert!(
        wrong.is_empty(),
        "the command line or conf/onedrop.toml has changed: run `cargo run --example generate` and \
         commit man/ and completions/ (not as the program has it: {wrong:?})"
    );
}

/// For those who have the program alone.
#[test]
fn the_program_prints_its_pages_and_completions() {
    for (name, text) in generated() {
        let (folder, file) = name.split_once('/').expect("a folder");
        let mut command = onedrop();
        match (folder, file) {
            ("completions", "onedrop.bash") => command.args(["completions", "bash"]),
            ("completions", "_onedrop") => command.args(["completions", "zsh"]),
            ("completions", "onedrop.fish") => command.args(["completions", "fish"]),
            _ => {
                let named = file.trim_end_matches(".1").trim_end_matches(".5");
                command.args(["man", named.trim_start_matches("onedrop-")])
            }
        };
        let output = run(&mut command);
        assert!(output.status.success(), "{name}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), text.trim_end(), "{name}");
    }
    let words = run(onedrop().args(["man", "jobs", "list"]));
    assert!(told(&words).starts_with(".ie"), "{words:?}");
    let none = run(onedrop().args(["man", "nosuch"]));
    assert_eq!((none.status.code(), told(&none).lines().count()), (Some(75), 1), "{none:?}");
}

/// A command's one line says what it does; how it ends is in its own help.
#[test]
fn no_line_about_a_command_has_exit_statuses() {
    fn look(command: &clap::Command) {
        for sub in command.get_subcommands() {
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(!about.contains("exits"), "{}: {about}", sub.get_name());
            look(sub);
        }
    }
    look(&manual());
}

#[test]
fn every_command_shows_examples_and_how_it_ends() {
    fn look(command: &clap::Command, path: &str, without: &mut Vec<String>) {
        let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        if !help.contains("Examples:\n  onedrop") && !help.contains("Examples:\n  systemctl")
            || !help.contains("\n\nExit status:\n  ")
        {
            without.push(path.to_owned());
        }
        for sub in command.get_subcommands() {
            look(sub, &format!("{path} {}", sub.get_name()), without);
        }
    }
    let mut without = Vec::new();
    look(&manual(), "onedrop", &mut without);
    assert!(
        without.is_empty(),
        "crates/site/src/command_line/manual.txt needs a section, with examples and exit statuses, \
         for {without:?}; then `cargo run --example generate`"
    );
}

#[test]
fn every_text_of_the_manual_is_shown_by_one_command() {
    fn look(command: &clap::Command, path: &str, names: &mut Vec<String>) {
        names.push(path.to_owned());
        for sub in command.get_subcommands() {
            look(sub, &format!("{path} {}", sub.get_name()), names);
        }
    }
    let mut names = Vec::new();
    look(&manual(), "onedrop", &mut names);
    names.sort();
    let mut texts: Vec<&str> = described().collect();
    texts.sort_unstable();
    assert_eq!(texts, names, "the sections of crates/site/src/command_line/manual.txt, each once");
}

#[test]
fn the_long_help_ends_with_examples_and_endings() {
    for words in [&["help", "jobs", "run"][..], &["jobs", "run", "--help"]] {
        let output = run(crate::support::onedrop().args(words));
        let help = told(&output);
        assert!(output.status.success(), "{help}");
        let (_, end) = help.split_once("\nExamples:\n").unwrap_or_else(|| panic!("{help}"));
        assert!(end.contains("\nExit status:\n  N    the command's own"), "{help}");
    }
    let short = told(&run(crate::support::onedrop().args(["jobs", "run", "-h"])));
    assert!(!short.contains("Examples"), "{short}");
}

#[test]
fn tools_find_nothing_wrong_in_the_manual_pages() {
    let pages: Vec<String> =
        generated().into_keys().filter(|name| name.starts_with("man/")).collect();
    assert!(pages.len() > 25, "{pages:?}");
    let output = run(Command::new("mandoc").args(["-Tlint", "-W", "warning"]).args(&pages));
    assert!(output.status.success(), "{}", told(&output));
    for page in pages {
        // As lintian reads them.
        let mut man = Command::new("man");
        man.args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", &page]);
        man.env("LC_ALL", "C.UTF-8").env("MANROFFSEQ", "").env("MANWIDTH", "80");
        let output = run(&mut man);
        assert!(output.status.success() && output.stderr.is_empty(), "{page}: {}", told(&output));
    }
}

#[test]
fn shells_complete_a_commands_words() {
    let bash = "source completions/onedrop.bash; COMP_WORDS=(onedrop jobs ru); COMP_CWORD=2
        _onedrop onedrop ru jobs; echo \"${COMPREPLY[@]}\"";
    let output = run(Command::new("bash").args(["-uc", bash]));
    assert_eq!(told(&output), "run\n");
    let fish = "source completions/onedrop.fish; complete -C 'onedrop jobs ru'";
    let home = TempRoot::new();
    let output = run(Command::new("fish").args(["--no-config", "-c", fish]).env("HOME", &*home));
    assert!(told(&output).starts_with("run\tRun a job"), "{}", told(&output));
    // What zsh completes is seen on a terminal only; that it reads the file is seen here.
    let zsh = "autoload -U compinit && compinit -D -u && source completions/_onedrop && \
        whence -w _onedrop";
    let output = run(Command::new("zsh").args(["-fc", zsh]).env("HOME", &*home));
    assert!(told(&output).contains("_onedrop: function"), "{}", told(&output));
}
