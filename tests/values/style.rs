//! The form of the sources: width of lines, headers, where a type's methods stand, names of types.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const WIDTH: usize = 100;

/// Types whose methods stand in several files still. One that is brought together goes from here,
/// and none is added.
const SCATTERED: [&str; 14] = [
    "AttemptRow",
    "Config",
    "CopyRow",
    "LmtpSession",
    "MemoryStore",
    "PagesState",
    "Planner",
    "Reading",
    "Rows",
    "Shared",
    "SqliteSession",
    "Verification",
    "Work",
    "Wrapper",
];

/// Words that named types once and say nothing to a newcomer.
const UNCLEAR: [&str; 25] = [
    "Answers",
    "Asking",
    "NoLogin",
    "Said",
    "Blow",
    "Calls",
    "Door",
    "Flight",
    "Flights",
    "Gate",
    "Group",
    "Held",
    "Lead",
    "LentLedger",
    "LentStore",
    "Made",
    "Ours",
    "Owned",
    "OwnedReceipt",
    "OwnedRecord",
    "Parcel",
    "Passage",
    "Passed",
    "Seat",
    "Telling",
];

/// Words of comments that hide who does what (`behind` where after is meant).
const HIDING: [&str; 14] = [
    "told",
    "tell",
    "tells",
    "telling",
    "nobody",
    "behind",
    "so many",
    "so long",
    "so much",
    "in words",
    "what came of",
    "what comes of",
    "what became of",
    "see the module",
];

/// The files in `places`, folders or files, whose names have this ending.
fn files(places: &[&str], ending: &str) -> Vec<(String, String)> {
    fn walk(path: &Path, ending: &str, found: &mut Vec<(String, String)>) {
        if path.is_dir() {
            for entry in fs::read_dir(path).expect("a folder of the tree") {
                walk(&entry.expect("an entry").path(), ending, found);
            }
        } else if path.to_string_lossy().ends_with(ending) {
            let name = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap_or(path);
            let text = fs::read_to_string(path).expect("UTF-8");
            found.push((name.display().to_string(), text));
        }
    }
    let mut found = Vec::new();
    for place in places {
        walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join(place), ending, &mut found);
    }
    assert!(found.len() > 1, "{ending} found in {found:?}");
    found
}

fn rust() -> Vec<(String, String)> {
    files(
        &["src", "crates", "tests", "benches", "examples", "fuzz/fuzz_targets", "build.rs"],
        ".rs",
    )
}

fn pages() -> Vec<(String, String)> {
    files(
        &[
            "docs",
            "fixtures",
            "tests",
            "README.md",
            "CHANGELOG.md",
            "CONTRIBUTING.md",
            "SECURITY.md",
        ],
        ".md",
    )
}

/// Whether a file is the program's, not of what tests it.
fn is_program(name: &str) -> bool {
    name.starts_with("src/") || name.starts_with("crates/") && name.contains("/src/")
}

fn is_wide(line: &str) -> bool {
    line.chars().count() > WIDTH
}

/// Numbers of the lines that are too wide, outside of tables and code blocks.
fn wide_prose(text: &str) -> Vec<usize> {
    let mut in_code = false;
    let mut wide = Vec::new();
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if is_wide(line) && !in_code && !line.trim_start().starts_with('|') {
            wide.push(at + 1);
        }
    }
    wide
}

/// The name of the type that a line defines.
fn defined_type(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = line.strip_prefix("pub").map_or(line, |rest| {
        rest.strip_prefix('(').and_then(|rest| rest.split_once(") ")).map_or(rest, |(_, rest)| rest)
    });
    let (kind, rest) = line.trim_start().split_once(' ')?;
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    (["struct", "enum", "trait", "union"].contains(&kind) && !name.is_empty()).then_some(name)
}

#[test]
fn lines_have_at_most_100_columns() {
    let mut wide = Vec::new();
    for (name, text) in rust() {
        // A table in a comment cannot be wrapped.
        let is_table = |line: &str| line.trim_start().starts_with("/// |");
        let lines = text.lines().enumerate().filter(|(_, line)| is_wide(line) && !is_table(line));
        wide.extend(lines.map(|(at, _)| format!("{name}:{}", at + 1)));
    }
    for (name, text) in pages() {
        wide.extend(wide_prose(&text).iter().map(|at| format!("{name}:{at}")));
    }
    assert!(wide.is_empty(), "{} lines are too wide:\n{}", wide.len(), wide.join("\n"));
}

#[test]
fn a_module_opens_with_what_it_promises() {
    let bare: Vec<_> = rust()
        .into_iter()
        .filter(|(name, text)| is_program(name) && !text.starts_with("//! "))
        .map(|(name, _)| name)
        .collect();
    assert!(bare.is_empty(), "{bare:#?}");
}

/// The comments of a file, each with the number of its first line, from its slashes on: lines that
/// follow each other are one.
fn comments(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut last = None;
    for (at, line) in text.lines().enumerate() {
        let start = line.trim_start();
        let marker = ["///", "//!", "//"].into_iter().find(|marker| start.starts_with(marker));
        if let Some(marker) = marker {
            match found.last_mut() {
                Some((_, comment)) if last == Some(marker) => {
                    comment.push(' ');
                    comment.push_str(start[marker.len()..].trim());
                }
                _ => found.push((at + 1, start.to_owned())),
            }
        } else if let Some((_, comment)) = line.split_once(" // ").filter(|it| !it.0.contains('"'))
        {
            found.push((at + 1, comment.to_owned()));
        }
        last = marker;
    }
    found
}

/// What hides who does what in a comment: a word, or that it is only "As ..." of something else.
fn hiding(comment: &str) -> Option<&'static str> {
    let prose: String = comment.split('`').step_by(2).collect();
    let words: Vec<String> = prose
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    let padded = format!(" {} ", words.join(" "));
    let is_said = |phrase: &&&str| padded.contains(&format!(" {phrase} "));
    let word = HIDING.iter().find(is_said).copied();
    let is_only_as = ["/// As ", "//! As "].iter().any(|start| comment.starts_with(start))
        || comment.contains("# Errors As ");
    word.or(is_only_as.then_some("As ..."))
}

#[test]
fn a_comment_says_who_does_what() {
    let of = |text: &str| {
        let found = comments(text).into_iter();
        found.filter_map(|(at, one)| Some((at, hiding(&one)?))).collect::<Vec<_>>()
    };
    assert_eq!(of("/// Why, in\n/// words.\nlet it = \"so // many\";"), [(1, "in words")]);
    assert_eq!(of("let x = 0; // Nobody\n//! As [`list`].\n"), [(1, "nobody"), (2, "As ...")]);
    assert_eq!(of("/// `tell` hears it.\n/// As of now\n// One.\n/// As it is."), [(4, "As ...")]);
    let mut wrong = Vec::new();
    for (name, text) in rust() {
        wrong.extend(of(&text).iter().map(|(at, word)| format!("{name}:{at}: {word}")));
    }
    assert!(wrong.is_empty(), "{} comments hide who does what:\n{}", wrong.len(), wrong.join("\n"));
}

/// The name of the type whose own methods begin on this line.
fn methods_of(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    let rest = match rest.strip_prefix('<') {
        Some(rest) => {
            // After the parameters, whose bounds may have angles of their own.
            let mut open = 1;
            let closes = |c: char| {
                open += i32::from(c == '<') - i32::from(c == '>');
                open == 0
            };
            &rest[rest.find(closes)? + 1..]
        }
        None => rest,
    };
    let name = rest.trim_start().split([' ', '<', '{']).next()?;
    let is_of_a_trait = rest.contains(" for ");
    (!is_of_a_trait && !name.is_empty()).then(|| name.rsplit(':').next().unwrap_or(name))
}

#[test]
fn the_methods_of_a_type_stand_in_one_file() {
    assert_eq!(methods_of("impl<T: Into<u8>> crate::deliver::Ring<'_, T> {"), Some("Ring"));
    assert_eq!(methods_of("impl<T> From<T> for Ring {"), None);
    assert_eq!(methods_of("    impl Local {"), None);
    let mut files: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for (name, text) in rust().into_iter().filter(|(name, _)| is_program(name)) {
        let its_crate = name.split("src/").next().unwrap_or_default().to_owned();
        for owner in text.lines().filter_map(methods_of) {
            let key = (its_crate.clone(), owner.to_owned());
            files.entry(key).or_default().insert(name.clone());
        }
    }
    files.retain(|_, files| files.len() > 1);
    let mut scattered: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for ((_, owner), files) in files {
        scattered.entry(owner).or_default().extend(files);
    }
    let found: Vec<&str> = scattered.keys().map(String::as_str).collect();
    assert_eq!(found, SCATTERED, "{scattered:#?}");
}

#[test]
fn a_types_name_is_clear_and_means_one_thing() {
    assert_eq!(defined_type("    pub(super) struct Told<'a> {"), Some("Told"));
    assert_eq!(defined_type("    /// The struct of it"), None);
    let mut unclear = Vec::new();
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, text) in rust().into_iter().filter(|(name, _)| is_program(name)) {
        for defined in text.lines().filter_map(defined_type) {
            if UNCLEAR.contains(&defined) {
                unclear.push(format!("{name}: {defined}"));
            }
            places.entry(defined.to_owned()).or_default().push(name.clone());
        }
    }
    assert!(unclear.is_empty(), "{unclear:#?}");
    places.retain(|_, places| places.len() > 1);
    assert!(places.is_empty(), "names of several types: {places:#?}");
}
