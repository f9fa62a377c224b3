//! Holds the dependency rule of `src/lib.rs` against the sources.
//!
//! Read from every file under `src`, as tokens, without what is for its own tests: each path that
//! begins with `crate`, `super` or `self`, the strings, and what ends a process. A module's own
//! children are a part of it, and it shows them to the outside: what a parent and its child use of
//! each other is their affair, and a name that a parent passes on (`use child::Name`) counts as the
//! child's. No circle then means: modules side by side, at the top and within each module, use each
//! other in one direction only, with all that is in them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use tree::{Module, Tree};

mod tree;

/// What a layer may use beside itself; modules of one layer may use each other but for the ports.
struct Layer {
    name: &'static str,
    modules: &'static [&'static str],
    may_use: &'static [&'static str],
}

/// From the bottom to the top. Every file at the top of `src` is in one.
const LAYERS: [Layer; 8] = [
    Layer {
        name: "values",
        modules: &[
            "clock",
            "deadline",
            "directory",
            "duration",
            "envelope",
            "filing",
            "lock_key",
            "lock_name",
            "login",
            "message",
            "outcome",
            "receipt",
            "schedule",
            "sender",
            "shared_config",
            "text",
            "trust_search",
        ],
        may_use: &["values"],
    },
    Layer {
        name: "tools",
        modules: &[
            "byte_lock",
            "durable",
            "exit",
            "group_commit",
            "hook",
            "http",
            "net",
            "owner",
            "pool",
            "userdb",
        ],
        may_use: &["values", "tools"],
    },
    Layer { name: "ports", modules: &["ledger", "store"], may_use: &["values", "tools"] },
    Layer {
        name: "configuration",
        modules: &["command_line", "config"],
        may_use: &["values", "tools"],
    },
    Layer {
        name: "flow",
        modules: &["deliver"],
        may_use: &["values", "tools", "ports", "configuration"],
    },
    Layer {
        name: "work",
        modules: &[
            "check",
            "delivery_log",
            "exit",
            "jobs",
            "lock",
            "mail_root",
            "replay",
            "retention",
            "routing",
            "service",
            "site_names",
            "status",
            "telemetry",
            "verify",
            "way",
            "web",
        ],
        may_use: &["values", "tools", "ports", "configuration", "flow", "work"],
    },
    Layer {
        name: "server",
        modules: &["lmtp"],
        may_use: &["values", "tools", "ports", "configuration", "flow", "work"],
    },
    Layer {
        name: "doors",
        modules: &["cli"],
        may_use: &["values", "tools", "ports", "configuration", "flow", "work", "server"],
    },
];

/// Modules that know their port, the values and the tools, and nothing else.
const ADAPTERS: [&str; 8] = [
    "ledger::mariadb",
    "ledger::memory",
    "ledger::postgres",
    "ledger::sqlite",
    "store::imap",
    "store::lmtp",
    "store::maildir",
    "store::memory",
];

/// Words that stand in strings, and where alone they may.
const WORDS: [(&str, &[&str], &str); 2] = [
    (
        "SQL",
        &["SELECT ", "INSERT INTO", "UPDATE ", "DELETE FROM", "CREATE TABLE", "pg_try_advisory"],
        "ledger",
    ),
    ("IMAP", &["APPEND ", "UID ", "AUTHENTICATE ", "EXPUNGE", "SELECT \""], "store::imap"),
];

/// Ways to give a process its exit number.
const ENDINGS: [&str; 4] = ["process::exit", "ExitCode", "sysexits", "libc::_exit"];

#[test]
fn the_sources_keep_to_the_layers() {
    let found = findings(&Tree::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")));
    let lines: String = found.iter().map(|text| format!("{text}\n")).collect();
    assert!(found.is_empty(), "{lines}");
}

/// Everything that breaks the rule, a line each.
fn findings(tree: &Tree) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (name, module) in &tree.modules {
        let Some(layer) = layer_of(name) else {
            if !["", "main"].contains(&top(name)) {
                found.insert(format!("{name} is in no layer"));
            }
            continue;
        };
        for used in &module.uses {
            if let Some(why) = breach(layer, name, used) {
                found.insert(format!("{name} uses {used}: {why}"));
            }
        }
        words(name, module, &mut found);
    }
    found.extend(circles(tree));
    found
}

fn breach(layer: &Layer, name: &str, used: &str) -> Option<String> {
    if top(used) == top(name) {
        let adapter = |name: &str| ADAPTERS.iter().find(|adapter| is_in(name, adapter)).copied();
        let (mine, other) = (adapter(name), adapter(used)?);
        // A port names its adapters only to declare them.
        return (mine != Some(other)).then(|| "adapters are for main alone".to_owned());
    }
    let Some(other) = layer_of(used) else { return Some("that is in no layer".to_owned()) };
    if ADAPTERS.iter().any(|adapter| is_in(used, adapter)) {
        return Some("adapters are for main alone".to_owned());
    }
    let is_allowed =
        other.name == layer.name && layer.name != "ports" || layer.may_use.contains(&other.name);
    (!is_allowed).then(|| format!("{} may not use {}", layer.name, other.name))
}

fn words(name: &str, module: &Module, found: &mut BTreeSet<String>) {
    for (language, words, home) in WORDS {
        let is_home = is_in(name, home);
        for text in module.strings.iter().filter(|_| !is_home) {
            if words.iter().any(|word| text.contains(word)) {
                found.insert(format!("{name} speaks {language}: {text:?}"));
            }
        }
    }
    for ending in ENDINGS.iter().filter(|ending| name != "exit" && module.code.contains(**ending)) {
        found.insert(format!("{name} has {ending}, which is for exit alone"));
    }
}

/// Modules side by side that use each other, in a ring of any length.
fn circles(tree: &Tree) -> Vec<String> {
    let mut edges: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, module) in &tree.modules {
        for used in &module.reaches {
            if let Some((from, to)) = side_by_side(name, used) {
                edges.entry(from).or_default().insert(to);
            }
        }
    }
    let reaches = |from: &str, goal: &str| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(one) = open.pop() {
            for next in edges.get(one).into_iter().flatten() {
                if *next == goal {
                    return true;
                }
                if seen.insert(*next) {
                    open.push(next);
                }
            }
        }
        false
    };
    let pairs = edges.iter().flat_map(|(from, all)| all.iter().map(move |to| (*from, *to)));
    pairs
        .filter(|(from, to)| reaches(to, from))
        .map(|(from, to)| format!("{from} uses {to}, which leads back to it"))
        .collect()
}

/// Where the ways to two modules part: the ones side by side that they are, or are in. `None` where
/// one is in the other.
fn side_by_side<'a>(from: &'a str, to: &'a str) -> Option<(&'a str, &'a str)> {
    let (a, b): (Vec<_>, Vec<_>) = (from.split("::").collect(), to.split("::").collect());
    let same = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    let upto = |text: &'a str, parts: &[&str]| {
        let length: usize = parts[..=same].iter().map(|part| part.len() + 2).sum();
        &text[..length - 2]
    };
    (same < a.len() && same < b.len()).then(|| (upto(from, &a), upto(to, &b)))
}

fn layer_of(name: &str) -> Option<&'static Layer> {
    LAYERS.iter().find(|layer| layer.modules.contains(&top(name)))
}

fn top(name: &str) -> &str {
    name.split("::").next().unwrap_or_default()
}

fn is_in(name: &str, module: &str) -> bool {
    name.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// A tree that keeps to the rule, changed in one place at a time.
#[test]
fn every_breach_is_found() {
    let good = [
        ("lib", "pub mod message; mod ledger; mod store; mod check; mod cli; mod exit;"),
        ("main", "use onedrop::cli; fn main() { std::process::exit(0) }"),
        ("message", "mod facts; mod parts; pub use parts::Part; pub struct Message;"),
        ("message/facts", "use super::parts::{self, Part}; use super::Message;"),
        ("message/parts", "pub struct Part; /// crate::cli\n struct Quiet; // crate::cli"),
        ("ledger", "pub mod sqlite; use crate::message::Message; pub struct Claim;"),
        ("ledger/sqlite", "use super::Claim; const ALL: &str = \"SELECT * FROM message\";"),
        ("store", "use crate::{message::{self, Message}};"),
        ("check", "mod dovecot; mod finding; mod postfix; pub use finding::Finding;"),
        ("check/dovecot", "use super::finding::Finding;"),
        ("check/postfix", "#[cfg(test)] mod tests { use crate::cli; const A: &str = \"UID 1\"; }"),
        ("check/finding", "pub struct Finding;"),
        ("cli", "use crate::check; fn end() -> ! { crate::exit::end() }"),
        ("exit", "pub fn end() -> ! { std::process::exit(75) }"),
    ];
    let of = |changed: &str, text: &str| {
        let added = good.iter().all(|(file, _)| *file != changed).then_some((changed, text));
        let files = good.iter().copied().chain(added);
        let files = files.map(|(file, was)| (file, if file == changed { text } else { was }));
        findings(&Tree::of(files)).into_iter().collect::<Vec<_>>()
    };
    assert_eq!(of("exit", good[13].1), Vec::<String>::new(), "it keeps to the rule");
    let ring = |a: &str, b: &str| {
        [
            format!("{a} uses {b}, which leads back to it"),
            format!("{b} uses {a}, which leads back to it"),
        ]
    };
    for (file, text, expected) in [
        (
            "message/parts",
            "fn f() { crate::store::x() }",
            [
                vec!["message::parts uses store: values may not use ports".to_owned()],
                ring("message", "store").to_vec(),
            ]
            .concat(),
        ),
        (
            "store",
            "use crate::ledger::Claim;",
            vec!["store uses ledger: ports may not use ports".to_owned()],
        ),
        (
            "check",
            "fn f() { let _ = format!(\"{}\", crate::cli::x()); }",
            [
                vec!["check uses cli: work may not use doors".to_owned()],
                ring("check", "cli").to_vec(),
            ]
            .concat(),
        ),
        (
            "check/finding",
            "use crate::ledger::sqlite::Sqlite;",
            vec!["check::finding uses ledger::sqlite: adapters are for main alone".to_owned()],
        ),
        ("ledger/sqlite", "use crate::config::Config;", vec![]),
        ("check/finding", "use super::dovecot;", ring("check::dovecot", "check::finding").to_vec()),
        (
            "message/parts",
            "use crate::message::facts::Fact;",
            ring("message::facts", "message::parts").to_vec(),
        ),
        // By a name that the parent passes on.
        ("check/finding", "use super::postfix::x; pub struct Finding;", vec![]),
        (
            "cli",
            "const Q: &str = \"SELECT 1\"; fn f() { write(b\"a1 UID STORE 1\") }",
            vec![
                "cli speaks IMAP: \"a1 UID STORE 1\"".to_owned(),
                "cli speaks SQL: \"SELECT 1\"".to_owned(),
            ],
        ),
        (
            "cli",
            "fn f() -> ! { std::process::exit(70) }",
            vec!["cli has process::exit, which is for exit alone".to_owned()],
        ),
        ("nowhere", "use crate::message::Message;", vec!["nowhere is in no layer".to_owned()]),
    ] {
        let mut expected = expected;
        expected.sort();
        assert_eq!(of(file, text), expected, "{file}: {text}");
    }
    let by_parent = "use super::Finding;";
    let tree = |finding| {
        let files = good.iter().map(|(file, was)| match *file {
            "check/dovecot" => (*file, by_parent),
            "check/finding" => (*file, finding),
            _ => (*file, *was),
        });
        findings(&Tree::of(files)).into_iter().collect::<Vec<_>>()
    };
    assert_eq!(tree("pub struct Finding;"), Vec::<String>::new());
    let both = tree("use super::dovecot; pub struct Finding;");
    assert_eq!(both, ring("check::dovecot", "check::finding"));
}
