//! The reference pages say what the program does: keys and defaults, endings, metrics, tables, and
//! the texts of failures.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use onedrop::config::{Config, job_keys};
use onedrop::deliver::{CopyEnd, Failure, Left};
use onedrop::directory::{Destination, UserdbError};
use onedrop::exit;
use onedrop::ledger::{LedgerError, SCHEMA_VERSION, SchemaVersion};
use onedrop::net::lmtp::{ServerReply, reply};
use onedrop::outcome::{Outcome, Reason};
use onedrop::store::StoreError;

use crate::page::{PROJECT, Page, code};
use crate::support::postgres::Postgres;
use crate::support::site::{Site, run};
use crate::support::{TempRoot, onedrop, wait_until};

/// The section of the configuration page on jobs.
const JOB: &str = "[jobs.NAME]";

/// `conf/onedrop.toml`: each key with its default; commented ones have none.
fn shipped_keys() -> BTreeMap<String, String> {
    let text = fs::read_to_string(Path::new(PROJECT).join("conf/onedrop.toml")).expect("conf");
    let (mut keys, mut section) = (BTreeMap::new(), String::new());
    let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            name.clone_into(&mut section);
        } else if section.starts_with("jobs.") {
            // The shipped jobs, not defaults.
        } else if let Some((key, default)) = line.split_once(" = ").filter(|(key, _)| is_name(key))
        {
            // A list over several lines.
            let default = if default == "[" { "[...]" } else { default };
            keys.insert(format!("{section}.{key}"), default.to_owned());
        } else if let Some((key, _)) =
            line.strip_prefix("# ").and_then(|line| line.split_once(" = "))
            && is_name(key)
        {
            keys.insert(format!("{section}.{key}"), String::new());
        }
    }
    keys
}

#[test]
fn what_must_be_alike_on_all_hosts_is_named() {
    let site = Site::embedded();
    let config = site.config("etc", "");
    assert!(run(&config, &["migrate"]).status.success());
    let on_record = site.ledger("SELECT config FROM onedrop_ledger").remove(0);
    let alike: serde_json::Value = serde_json::from_str(&on_record).expect("JSON");
    let alike = alike.as_object().expect("keys");
    assert!(alike.len() > 5, "{alike:?}");
    let named = Page::read("docs/upgrade.md").spans();
    let help = run(&config, &["migrate", "--help"]);
    let help = String::from_utf8_lossy(&help.stdout);
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for key in alike.keys() {
        let key = if key == "file" { "[[file]]" } else { key };
        assert!(named.iter().any(|span| span == key), "{key}: {named:?}");
        assert!(help.contains(key), "{key}: {help}");
    }
}

#[test]
fn the_configuration_page_has_every_key_with_its_default() {
    let mut shown = BTreeMap::new();
    let (page, web) = (Page::read("docs/configuration.md"), Page::read("docs/web.md"));
    let jobs = Page::read("docs/jobs-keys.md");
    let sections = page.sections().into_iter().map(|heading| (&page, heading));
    for (page, heading) in sections.chain([(&web, "[web]"), (&jobs, "[jobs]")]) {
        let section = heading.trim_matches(['[', ']']);
        for row in page.rows(heading) {
            let key = match code(&row[0]) {
                full if full.contains('.') => full.to_owned(),
                key => format!("{section}.{key}"),
            };
            assert!(!row[2].is_empty(), "{key} has no word");
            assert!(shown.insert(key.clone(), code(&row[1]).to_owned()).is_none(), "{key} twice");
        }
    }
    let shipped = shipped_keys();
    assert!(shipped.len() > 40, "{shipped:?}");
    assert_eq!(shown, shipped);
}

#[test]
fn the_page_of_jobs_keys_has_every_key_of_a_job_with_its_default() {
    let page = Page::read("docs/jobs-keys.md");
    let shown: Vec<(String, String)> = page
        .rows(JOB)
        .iter()
        .map(|row| {
            assert!(!row[2].is_empty(), "{} has no word", row[0]);
            let default = code(&row[1]).trim_matches(['"', '[', ']']);
            (code(&row[0]).to_owned(), default.to_owned())
        })
        .collect();
    let known = job_keys().map(|(key, default)| (key.to_owned(), default.to_owned()));
    assert_eq!(shown, known.collect::<Vec<_>>());
}

#[test]
fn configurations_on_the_pages_are_read() {
    let folder = TempRoot::new();
    let file = folder.join("onedrop.toml");
    let mut count = 0;
    for page in Page::all() {
        for block in page.blocks().iter().filter(|block| block.language == "toml") {
            fs::write(&file, &block.text).expect("a file");
            let loaded = Config::load_from(Some(&file), std::iter::empty());
            let problems = loaded.err().map(|errors| errors.problems().to_vec());
            // The files that a page names are not on this host, nor is all on it that goes
            // together.
            let excused = ["no such file", "needs the password of store.user"];
            for problem in problems.unwrap_or_default() {
                let is_excused = excused.iter().any(|end| problem.text.ends_with(end));
                assert!(is_excused, "{}: {problem}\n{}", page.name, block.text);
            }
            count += 1;
        }
    }
    assert!(count >= 5, "only {count} found");
}

/// The options of commands, wherever a page names them beside their command.
#[test]
fn options_on_the_pages_are_the_commands_own() {
    let mut wrong = Vec::new();
    let mut helps: BTreeMap<&str, String> = BTreeMap::new();
    let commands = [
        "deliver",
        "lmtp",
        "web",
        "migrate",
        "check",
        "trace",
        "verify",
        "settle",
        "purge",
        "forget",
        "replay",
        "with-lock",
    ];
    let mut count = 0;
    for page in Page::all().into_iter().chain([Page::read("CHANGELOG.md")]) {
        let blocks = page.blocks().into_iter().map(|block| block.text.replace("\\\n", " "));
        let lines: Vec<String> =
            blocks.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
        for line in page.spans().into_iter().chain(lines) {
            let words: Vec<&str> = line.split([' ', '\n']).collect();
            let Some((at, command)) = words.windows(2).enumerate().find_map(|(at, pair)| {
                let is_ours = ["onedrop", "/usr/bin/onedrop", "--"].contains(&pair[0]);
                let command = commands.into_iter().find(|command| *command == pair[1])?;
                is_ours.then_some((at, command))
            }) else {
                continue;
            };
            let help = helps.entry(command).or_insert_with(|| {
                let output = onedrop().args([command, "--help"]).output();
                String::from_utf8(output.expect("onedrop").stdout).expect("text")
            });
            // Options after the two hyphens are another command's.
            let own = words[at + 2..].iter().take_while(|word| **word != "--");
            for option in own.filter(|word| word.starts_with("--")) {
                count += 1;
                if !help.contains(&format!("{option} ")) && !help.contains(&format!("{option}\n")) {
                    wrong.push(format!("{}: {command} {option}", page.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 20, "only {count} options found");
}

/// One failure of each kind.
fn failures() -> Vec<Failure> {
    let text = || "...".to_owned();
    let ledgers = [
        LedgerError::Contended,
        LedgerError::Version(SchemaVersion::bare(0, SCHEMA_VERSION)),
        LedgerError::OtherConfig(text()),
        LedgerError::Unavailable(text()),
        LedgerError::Login(text()),
        LedgerError::Denied(text()),
        LedgerError::Clock(text()),
        LedgerError::Busy(text()),
        LedgerError::TookTooLong(text()),
        LedgerError::Refused(text()),
        LedgerError::Forgotten,
        LedgerError::Broken(text()),
    ];
    let stores = [
        StoreError::NotStored(text()),
        StoreError::Setup(text()),
        StoreError::Refused(text()),
        StoreError::OverQuota(text()),
        StoreError::TooBig(text()),
        StoreError::NoAccount(text()),
        StoreError::Contended(text()),
        StoreError::Rejected(text()),
        StoreError::InDoubt(text()),
    ];
    let others = [
        Failure::UnknownRecipient(text()),
        Failure::TooLarge { limit: 1 },
        Failure::NoRecipient,
        Failure::Cut(text()),
        Failure::Input(text()),
        Failure::Directory(LedgerError::Unavailable(text())),
        Failure::Directory(LedgerError::Login(text())),
        Failure::Userdb(UserdbError::Away(text())),
        Failure::Userdb(UserdbError::Setup(text())),
        Failure::Userdb(UserdbError::NotNow(text())),
        Failure::MailboxFull(text()),
        Failure::NoSuchAccount { account: text(), why: text() },
        Failure::AccountGone { account: text(), why: text() },
        Failure::AddressGone { address: text(), account: text(), why: text() },
        Failure::Contended(text()),
        Failure::LooksBack(text()),
        Failure::Deadline { secs: 60, doing: text() },
        Failure::NotOnRecord(LedgerError::Unavailable(text())),
        Failure::Server(text()),
        Failure::Setup(text()),
        Failure::Internal(text()),
    ];
    let all = ledgers.map(Failure::from).into_iter().chain(stores.map(Failure::from)).chain(others);
    all.collect()
}

/// One of each kind of a copy that is left for later.
fn left() -> [Left; 2] {
    let destination = Destination::sent("lisa", "Sent");
    let (why, at) = ("...".to_owned(), SystemTime::UNIX_EPOCH);
    [Left::Kept { destination: destination.clone(), why }, Left::Due { destination, at }]
}

/// A kind that is new does not compile here: add it above.
fn is_known(failure: &Failure) {
    match failure {
        Failure::Ledger(
            LedgerError::Contended
            | LedgerError::Version(_)
            | LedgerError::OtherConfig(_)
            | LedgerError::Unavailable(_)
            | LedgerError::Login(_)
            | LedgerError::Denied(_)
            | LedgerError::Clock(_)
            | LedgerError::Busy(_)
            | LedgerError::TookTooLong(_)
            | LedgerError::Refused(_)
            | LedgerError::Forgotten
            | LedgerError::Broken(_),
        )
        | Failure::Store(
            StoreError::NotStored(_)
            | StoreError::Setup(_)
            | StoreError::Refused(_)
            | StoreError::OverQuota(_)
            | StoreError::TooBig(_)
            | StoreError::NoAccount(_)
            | StoreError::Contended(_)
            | StoreError::Rejected(_)
            | StoreError::InDoubt(_),
        )
        | Failure::Directory(_)
        | Failure::Userdb(UserdbError::Away(_) | UserdbError::Setup(_) | UserdbError::NotNow(_))
        | Failure::MailboxFull(_)
        | Failure::NoSuchAccount { .. }
        | Failure::AccountGone { .. }
        | Failure::AddressGone { .. }
        | Failure::UnknownRecipient(_)
        | Failure::TooLarge { .. }
        | Failure::NoRecipient
        | Failure::Cut(_)
        | Failure::Input(_)
        | Failure::Contended(_)
        | Failure::LooksBack(_)
        | Failure::Deadline { .. }
        | Failure::NotOnRecord(_)
        | Failure::Server(_)
        | Failure::Setup(_)
        | Failure::Internal(_) => {}
    }
}

#[test]
fn the_exits_page_has_every_ending() {
    let page = Page::read("docs/exits.md");
    let code_and_status = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    let (mut exits, mut replies) = (BTreeSet::new(), BTreeSet::new());
    for failure in failures() {
        is_known(&failure);
        let outcome = failure.outcome();
        exits.insert((format!("{}", exit::status(&outcome) as i32), outcome.status().to_string()));
        let line = String::from_utf8(reply(&outcome)).expect("ASCII");
        replies.insert(code_and_status(&line));
    }
    exits.insert(("0".to_owned(), Outcome::delivered("").status().to_string()));
    let rows = page.rows("onedrop deliver");
    let shown: BTreeSet<_> = rows
        .iter()
        .filter(|row| row.len() == 3)
        .map(|row| (row[0].clone(), row[1].clone()))
        .collect();
    assert_eq!(shown, exits);
    let rows = page.rows("onedrop lmtp");
    let shown = rows.iter().map(|row| row[0].as_str()).collect::<Vec<_>>().join(", ");
    let mut lines = ServerReply::ALL.iter().map(|reply| reply.line());
    let refusals = lines.clone().filter(|line| line.starts_with('4'));
    replies.extend(refusals.map(code_and_status));
    // Those of a client that does not speak LMTP have one row.
    let is_of_no_row = |line: &&str| {
        let (code, rest) = line.split_at(3);
        code >= "500" && (code > "503" || !rest.starts_with(" 5.5."))
    };
    assert_eq!(lines.find(is_of_no_row), None);
    let missing: Vec<_> = replies.iter().filter(|reply| !shown.contains(reply.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?} not in {shown}");
    // Nor is another ending in README's short form.
    let readme = Page::read("README.md");
    let short: BTreeSet<_> = readme
        .rows("How it ends")
        .iter()
        .flat_map(|row| row[0].split(", ").map(str::to_owned).collect::<Vec<_>>())
        .collect();
    assert_eq!(short, exits.into_iter().map(|(exit, _)| exit).collect());
}

#[test]
fn the_reasons_page_has_every_reason_with_its_statuses() {
    let left = left().map(CopyEnd::Left).map(|end| (end.reason(), end.outcome()));
    let delivered = (Reason::Delivered, Outcome::delivered(""));
    let failed = failures().into_iter().map(|failure| (failure.reason(), failure.outcome()));
    let mut reasons: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (reason, outcome) in failed.chain(left).chain([delivered]) {
        reasons.entry(reason.to_string()).or_default().insert(outcome.status().to_string());
    }
    let words: BTreeSet<_> = Reason::ALL.iter().map(|reason| reason.to_string()).collect();
    assert_eq!(words.len(), Reason::ALL.len(), "a word stands for one reason");
    assert_eq!(words, reasons.keys().cloned().collect(), "some failure has each word");
    let is_plain = |word: &String| word.bytes().all(|one| one.is_ascii_lowercase() || one == b'_');
    assert!(words.iter().all(is_plain), "{words:?}");
    let page = Page::read("docs/reasons.md");
    let rows = page.rows("");
    let shown: BTreeMap<_, BTreeSet<_>> = rows
        .iter()
        .map(|row| (code(&row[0]).to_owned(), row[1].split(", ").map(str::to_owned).collect()))
        .collect();
    assert_eq!(shown, reasons);
    assert!(rows.iter().all(|row| !row[2].is_empty()), "each says what it means");
}

/// The families of metrics that a server serves, without the ending of counters.
pub fn metrics_served() -> BTreeSet<String> {
    let site = Site::embedded();
    let lmtp = site.server("[jobs.report]\nevery = \"1h\"\ncommand = [\"true\"]\n");
    // A family without a sample is not served.
    let message = b"Subject: x\n\nbody\n";
    let reply = lmtp.client().deliver("", &["scuba@mail.axial.net"], message);
    assert!(reply.expect("a reply")[0].is_ok());
    let has_jobs = || lmtp.metrics().contains("onedrop_job_errors{");
    assert!(wait_until(Duration::from_secs(60), has_jobs), "{}", lmtp.metrics());
    let told = lmtp.metrics();
    let types = told.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    types.map(|name| name.trim_end_matches("_total").to_owned()).collect()
}

#[test]
fn the_metrics_page_has_every_metric() {
    let page = Page::read("docs/metrics.md");
    let family = |row: &Vec<String>| code(&row[0]).trim_end_matches("_total").to_owned();
    let shown: BTreeSet<_> = page.rows("").iter().map(family).collect();
    assert_eq!(shown, metrics_served());
}

/// The columns that the schema page names, by table.
fn columns_shown(page: &Page) -> BTreeMap<String, BTreeSet<String>> {
    let section = page.text.split("\n## Columns\n").nth(1).expect("the columns");
    let section = section.split("\n## ").next().unwrap_or_default();
    let entries = section.split("\n**").skip(1);
    let entry = |entry: &str| {
        let (table, rest) = entry.split_once("**").expect("a table");
        let rest = rest.split("\n\n").next().unwrap_or_default();
        // What stands in brackets explains the column before.
        let mut depth = 0;
        let bare: String = rest
            .chars()
            .filter(|c| {
                depth += i32::from(*c == '(');
                let is_bare = depth == 0;
                depth -= i32::from(*c == ')');
                is_bare
            })
            .collect();
        let columns = bare.split('`').skip(1).step_by(2).map(str::to_owned);
        (table.to_owned(), columns.collect())
    };
    entries.map(entry).collect()
}

#[test]
fn the_schema_page_has_every_table_and_column() {
    let postgres = Postgres::shared();
    let told = postgres.psql(
        "SELECT table_name || '.' || column_name FROM information_schema.columns
         WHERE table_schema = 'public' AND table_name LIKE 'onedrop%'",
    );
    let mut tables: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in told.lines() {
        let (table, column) = line.split_once('.').expect("a column");
        tables.entry(table.to_owned()).or_default().insert(column.to_owned());
    }
    let page = Page::read("docs/schema.md");
    assert_eq!(columns_shown(&page), tables);
    for name in ["docs/queries.md", "docs/backup.md"] {
        let page = Page::read(name);
        let blocks: Vec<_> =
            page.blocks().into_iter().filter(|block| block.language == "sql").collect();
        assert!(!blocks.is_empty(), "{name}");
        for block in blocks {
            // It panics where the server refuses a statement.
            postgres.psql(&block.text);
        }
    }
    let listed = page.rows("").into_iter().map(|row| code(&row[0]).to_owned());
    assert_eq!(listed.collect::<BTreeSet<_>>(), tables.into_keys().collect());
}

/// The words of the program's sources, each line end and each run of blanks as one blank; a string
/// that goes on in the next line is one.
fn source() -> String {
    let mut text = String::new();
    let mut folders: Vec<_> = ["src", "crates"].map(|one| Path::new(PROJECT).join(one)).into();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text.push_str(&fs::read_to_string(path).expect("a source"));
            }
        }
    }
    let text = text.replace("\\\n", " ").replace("\\\"", "\"");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Where a text has values, and where one text ends and the next one begins.
const BETWEEN: [&str; 11] = [
    "...",
    ": ",
    "HOST",
    "PORT",
    "NAME",
    "mda",
    "account=",
    "mailbox=Sent",
    "passed while ",
    "\"",
    "ledger:",
];

/// What is fixed in a text with values in it.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut parts = vec![text];
    for place in BETWEEN {
        parts = parts.into_iter().flat_map(|part| part.split(place)).collect();
    }
    parts
        .into_iter()
        .flat_map(|part| part.split(|c: char| c.is_ascii_digit()))
        .map(|part| part.trim_matches([' ', ':', ',', ';', '(', ')']))
        .filter(|part| part.chars().filter(char::is_ascii_alphabetic).count() >= 5)
}

const TROUBLE: [&str; 3] =
    ["docs/troubleshoot.md", "docs/troubleshoot-ledger.md", "docs/troubleshoot-store.md"];

/// Texts that are the system's or Postfix's, or stand for many.
const NOT_OURS: [&str; 4] = [
    "Permission denied",
    "No space left on device",
    "Read-only file system",
    "/run/onedrop/lmtp.sock",
];

#[test]
fn the_texts_on_the_trouble_pages_are_those_of_the_program() {
    let source = source();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for name in TROUBLE {
        let page = Page::read(name);
        let joined = page.prose().join("\n");
        let own = joined.split("\n## Postfix's own texts").next().unwrap_or_default().to_owned();
        let rest = joined.split("\n## It is delivered").nth(1).unwrap_or_default();
        for entry in format!("{own}\n{rest}").split("\n- `").skip(1) {
            let (text, _) = entry.split_once('`').expect("a text");
            count += 1;
            let text = NOT_OURS.iter().fold(text.to_owned(), |text, not| text.replace(not, "..."));
            let missing = pieces(&text).find(|piece| !source.contains(piece));
            if let Some(piece) = missing {
                wrong.push(format!("{name}: {piece:?} of {text:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "not in src/:\n{}", wrong.join("\n"));
    assert!(count > 70, "only {count} texts found");
}

#[test]
fn every_kind_of_failure_is_on_a_trouble_page() {
    let pages: String = TROUBLE.map(|name| Page::read(name).text).join("\n");
    let pages = pages.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut wrong = Vec::new();
    let failures = failures().into_iter().map(|failure| failure.to_string());
    for text in failures.chain(left().map(|left| left.to_string())) {
        let text = text.trim_start_matches("ledger: ").trim_start_matches("store: ");
        // What it begins with is how an operator finds it.
        let begin = pieces(text).next().and_then(|piece| piece.split([':', ',', ';']).next());
        wrong.extend(begin.filter(|begin| !pages.contains(begin)).map(str::to_owned));
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
