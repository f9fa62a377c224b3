//! The form of the documentation: short pages, narrow lines, a contents list that names them all,
//! links that lead somewhere, and commands that a test runs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::page::{PROJECT, Page};
use crate::set_up::FOLLOWED;
use crate::shown::is_as_shown;

const CONTENTS: &str = "docs/README.md";

#[test]
fn the_pages_are_short_and_their_lines_are_narrow() {
    let mut wrong = Vec::new();
    for page in Page::all() {
        let most = if page.name == "README.md" { 130 } else { 150 };
        let lines = page.text.lines().count();
        if lines > most {
            wrong.push(format!("{}: {lines} lines, more than {most}", page.name));
        }
        for (at, line) in page.text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > 100 {
                wrong.push(format!("{}:{}: {columns} columns", page.name, at + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_an_administrator_edits_has_narrow_lines() {
    let mut names = vec!["CHANGELOG.md".to_owned()];
    for folder in ["conf", "conf/dovecot", "conf/pgbouncer", "conf/postfix", "systemd"] {
        for entry in fs::read_dir(Path::new(PROJECT).join(folder)).expect("a folder") {
            let entry = entry.expect("an entry");
            if entry.file_type().expect("a type").is_file() {
                names.push(format!("{folder}/{}", entry.file_name().to_string_lossy()));
            }
        }
    }
    assert!(names.len() > 8, "{names:?}");
    for name in names {
        let wide = |line: &&str| line.chars().count() > 100;
        let text = Page::read(&name).text;
        assert_eq!(text.lines().find(wide), None, "{name}");
    }
}

#[test]
fn the_contents_list_names_every_page_once() {
    let listed = Page::read(CONTENTS).links();
    let mut listed: Vec<_> = listed.iter().filter(|link| !link.contains('/')).cloned().collect();
    listed.sort();
    let pages = Page::all().into_iter().filter_map(|page| {
        let name = page.name.strip_prefix("docs/")?.to_owned();
        (page.name != CONTENTS).then_some(name)
    });
    assert_eq!(listed, pages.collect::<Vec<_>>());
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for page in Page::all()
        .into_iter()
        .chain(["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].map(Page::read))
    {
        for link in page.links() {
            count += 1;
            if link.starts_with("https://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => Path::new(PROJECT).join(&page.name),
                file => page.folder().join(file),
            };
            let is_there = fs::canonicalize(&target).is_ok_and(|target| {
                let project = fs::canonicalize(PROJECT).expect("the project");
                let name = target.strip_prefix(project).expect("inside the project");
                let name = name.to_string_lossy().into_owned();
                anchor.is_empty() || Page::read(&name).anchors().contains(&anchor.to_owned())
            });
            if !is_there {
                wrong.push(format!("{}: {link}", page.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 80, "only {count} links found");
}

#[test]
fn every_file_of_the_project_that_is_named_is_there() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for page in Page::all()
        .into_iter()
        .chain(["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].map(Page::read))
    {
        for span in page.spans() {
            let folders = ["src", "crates", "tests", "conf", "systemd", "fixtures", "docs", ".ci"];
            let first = span.split('/').next().unwrap_or_default();
            let is_path = folders.contains(&first) && !span.contains([' ', '*']);
            if is_path && span.contains('/') {
                count += 1;
                if !Path::new(PROJECT).join(&span).exists() {
                    wrong.push(format!("{}: {span}", page.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 20, "only {count} files are named");
}

#[test]
fn every_command_of_readme_and_of_the_set_up_pages_is_run() {
    let with_commands: BTreeSet<String> = Page::all()
        .into_iter()
        .filter(|page| !page.commands().is_empty())
        .map(|page| page.name)
        .collect();
    let followed: BTreeSet<String> = FOLLOWED.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(with_commands, followed, "the pages with sh blocks, and those that tests follow");
    for page in Page::all().iter().filter(|page| page.name.starts_with("docs/set-up-")) {
        assert!(followed.contains(&page.name), "{} has no commands", page.name);
    }
    // What is only to be read says so.
    let known = ["", "sh", "console", "toml", "ini", "sql", "bash", "php", "python"];
    for page in Page::all() {
        for block in page.blocks() {
            assert!(known.contains(&&*block.language), "{}: {}", page.name, block.language);
        }
    }
}

/// The one command that no test can run: it runs the tests.
#[test]
fn readme_names_the_test_command_that_ci_runs() {
    let readme = Page::read("README.md");
    let blocks = readme.blocks();
    let console: Vec<&str> = blocks
        .iter()
        .filter(|block| block.language == "console")
        .map(|block| block.text.trim())
        .collect();
    assert_eq!(console, ["tests/run"]);
    let ci = fs::read_to_string(Path::new(PROJECT).join(".ci/run")).expect(".ci/run");
    assert!(ci.ends_with("\nexec tests/run\n"), "{ci}");
}

#[test]
fn dots_stand_for_any_text() {
    for (said, shown, fit) in [
        ("a\nb\n", "a\nb\n", true),
        ("a\nb\n", "a\n", false),
        ("a\nb\n", "a\n...\n", true),
        ("a\n", "a\n...\n", true),
        ("a\nb\nc\n", "...\nc\n", true),
        ("name=1; x\n", "name=...; x\n", true),
        ("name=1; y\n", "name=...; x\n", false),
        ("a – b", "a ... b", true),
        ("", "", true),
        ("a", "", false),
    ] {
        assert_eq!(is_as_shown(said, shown), fit, "{said:?} {shown:?}");
    }
}
