//! Holds what Cargo cannot see of the walls that `src/lib.rs` draws: words of SQL and IMAP in
//! strings, what ends a process, and which files of a crate name its adapters.
//!
//! Sources are read as tokens, without what is for their own tests, and not by `syn`, which leaves
//! what stands in macros as tokens.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Words that stand in strings, and below which folder alone they may.
const WORDS: [(&str, &[&str], &str); 2] = [
    (
        "SQL",
        &["SELECT ", "INSERT INTO", "UPDATE ", "DELETE FROM", "CREATE TABLE", "pg_try_advisory"],
        "crates/ledger/",
    ),
    (
        "IMAP",
        &["APPEND ", "UID ", "AUTHENTICATE ", "EXPUNGE", "SELECT \""],
        "crates/store/src/imap",
    ),
];

/// Ways to give a process its exit number, and the file that may.
const ENDINGS: [&str; 4] = ["process::exit", "ExitCode", "sysexits", "libc::_exit"];
const EXIT: &str = "crates/core/src/exit.rs";

/// Adapters, by the names of their modules and crates. Below `src/` the doors know ports alone,
/// and in the ledger's crate an engine's name stands in its own files: none knows another.
const ADAPTERS: [&str; 9] = [
    "onedrop_ledger",
    "onedrop_store",
    "postgres",
    "mariadb",
    "sqlite",
    "imap",
    "maildir",
    "LmtpStore",
    "HandOffSettings",
];
const WALLED: [&str; 2] = ["src/", "crates/ledger/src/"];
/// They put adapters together, hand them on, or read the rows of each driver.
const OPEN: [&str; 4] =
    ["src/main.rs", "src/lib.rs", "crates/ledger/src/lib.rs", "crates/ledger/src/rows.rs"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The sources of the program; `tests.rs` and `tests/` are for tests.
fn sources() -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![root().join("src"), root().join("crates")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.file_stem().is_some_and(|stem| stem == "tests") {
                continue;
            } else if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files
}

/// What stands in strings, and the code without blanks, tests and attributes.
#[derive(Default)]
struct Source {
    strings: BTreeSet<String>,
    code: String,
}

impl Source {
    fn of(text: &str) -> Source {
        let mut source = Source::default();
        source.read(text.parse().expect("Rust"));
        source
    }

    fn read(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            at += 1;
            match token {
                TokenTree::Punct(punct) if punct.as_char() == '#' => {
                    at += usize::from(is_punct(tokens.get(at), '!'));
                    let attribute = tokens.get(at).map(ToString::to_string).unwrap_or_default();
                    at += 1;
                    if attribute.replace(' ', "") == "[cfg(test)]" {
                        at = end_of_item(&tokens, at);
                    }
                }
                TokenTree::Group(group) => self.read(group.stream()),
                TokenTree::Literal(literal) => {
                    let text = literal.to_string();
                    let inside = text.split_once('"').and_then(|(_, rest)| rest.rsplit_once('"'));
                    self.strings.extend(inside.map(|(inside, _)| inside.to_owned()));
                }
                TokenTree::Ident(word) => {
                    // Words that follow each other are kept apart.
                    if !self.code.ends_with(':') {
                        self.code.push(' ');
                    }
                    self.code.push_str(&word.to_string());
                }
                TokenTree::Punct(punct) => self.code.push(punct.as_char()),
            }
        }
    }

    /// Everything in the file that breaks the rule, a line each.
    fn breaches(&self, file: &str) -> Vec<String> {
        let mut found = Vec::new();
        for (language, words, home) in WORDS {
            let speaks = |text: &&String| words.iter().any(|word| text.contains(word));
            let texts = self.strings.iter().filter(|_| !file.starts_with(home)).filter(speaks);
            found.extend(texts.map(|text| format!("{file} speaks {language}: {text:?}")));
        }
        let ends = |ending: &&&str| file != EXIT && self.code.contains(**ending);
        let endings = ENDINGS.iter().filter(ends);
        found.extend(endings.map(|ending| format!("{file} has {ending}, which is for exit alone")));
        let wall = WALLED.iter().find(|wall| file.starts_with(**wall) && !OPEN.contains(&file));
        if let Some(wall) = wall {
            let between = |c: char| !c.is_alphanumeric() && c != '_';
            let words: BTreeSet<&str> = self.code.split(between).collect();
            let is_own = |name: &str| file.starts_with(&format!("{wall}{name}"));
            let named = ADAPTERS.iter().filter(|name| words.contains(**name) && !is_own(name));
            found.extend(named.map(|name| format!("{file} names the adapter {name}")));
        }
        found
    }
}

fn is_punct(token: Option<&TokenTree>, c: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == c)
}

/// After the next `;` or braces.
fn end_of_item(tokens: &[TokenTree], from: usize) -> usize {
    let is_body = |token: &TokenTree| match token {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        _ => false,
    };
    let ends = |token: &TokenTree| is_punct(Some(token), ';') || is_body(token);
    tokens[from..].iter().position(ends).map_or(tokens.len(), |end| from + end + 1)
}

#[test]
fn sql_imap_exit_numbers_and_adapters_stand_where_they_belong() {
    let found: Vec<String> = sources()
        .iter()
        .flat_map(|path| {
            let file = path.strip_prefix(root()).expect("within").display().to_string();
            Source::of(&fs::read_to_string(path).expect("a source")).breaches(&file)
        })
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_breach_is_found() {
    for (file, text, expected) in [
        ("src/cli.rs", "#[cfg(test)] mod tests { const A: &str = \"UID 1\"; }", vec![]),
        ("src/cli.rs", "/// SELECT 1\n fn f() { crate::exit::end() }", vec![]),
        ("crates/ledger/src/a.rs", "const ALL: &str = \"SELECT * FROM message\";", vec![]),
        (EXIT, "pub fn end() -> ! { std::process::exit(75) }", vec![]),
        (
            "src/cli.rs",
            "const Q: &str = \"SELECT 1\"; fn f() { write!(b\"a1 UID STORE 1\") }",
            vec![
                "src/cli.rs speaks SQL: \"SELECT 1\"",
                "src/cli.rs speaks IMAP: \"a1 UID STORE 1\"",
            ],
        ),
        (
            "src/main.rs",
            "fn f() -> ! { std::process::exit(70) }",
            vec!["src/main.rs has process::exit, which is for exit alone"],
        ),
        ("src/main.rs", "use onedrop::store::imap::ImapStore;", vec![]),
        (
            "src/cli/web.rs",
            "use crate::{ledger::sqlite::SqliteLedger, store::LmtpStore};",
            vec![
                "src/cli/web.rs names the adapter sqlite",
                "src/cli/web.rs names the adapter LmtpStore",
            ],
        ),
        ("crates/ledger/src/sqlite/file.rs", "use crate::sqlite::migrate;", vec![]),
        (
            "crates/ledger/src/sqlite.rs",
            "fn f() { super::postgres::begin() }",
            vec!["crates/ledger/src/sqlite.rs names the adapter postgres"],
        ),
        (
            "crates/ledger/src/sql/claims.rs",
            "use crate::{mariadb, sql};",
            vec!["crates/ledger/src/sql/claims.rs names the adapter mariadb"],
        ),
    ] {
        assert_eq!(Source::of(text).breaches(file), expected, "{file}: {text}");
    }
}
