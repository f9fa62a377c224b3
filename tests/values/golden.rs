//! What identifies a message, byte for byte: the messages in `fixtures/identity` have the hashes in
//! `hashes.tsv` there, and a second implementation (`identity_reference.py`) comes to the same, on
//! these, on the corpus of odd messages and on messages spoilt at random.
//!
//! The hashes are part of the ledger's format. If one changes, everything that is in flight at an
//! upgrade is delivered twice: it takes new domain strings (`crates/core/src/lock_key.rs`) and a
//! migration that keeps retries single. Nothing here writes `hashes.tsv`. For a new message a line
//! is added by hand, as the reference prints it:
//!
//! ```sh
//! python3 tests/values/identity_reference.py fixtures/identity/NEW.eml
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use onedrop::lock_key::hex;
use onedrop::message::{DedupBy, Message, filter_variant, nul_variant};
use onedrop_kit::TempRoot;
use onedrop_kit::corpus::corpus;

use crate::fuzz;

/// By name: id hash, digest, copy hash; digest and copy hash by Message-ID; the variant where
/// filters run, and the one where NUL is kept, or `-`.
type Hashes = BTreeMap<String, Vec<String>>;

/// `dedup.filter_fields` by default.
const FIELDS: &str = "auto-submitted list-id precedence x-spam x-spam-flag x-spam-status";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn hashes_in(table: &str) -> Hashes {
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    let hashes = lines.map(|line| {
        let mut columns = line.split('\t').map(str::to_owned);
        let name = columns.next().expect("a name");
        (name, columns.collect::<Vec<_>>())
    });
    let mut all = Hashes::new();
    for (name, columns) in hashes {
        assert_eq!(columns.len(), 7, "{name}");
        assert_eq!(all.insert(name.clone(), columns), None, "{name} stands there twice");
    }
    all
}

fn computed(bytes: &[u8]) -> Vec<String> {
    let [by_content, by_id] = [DedupBy::Content, DedupBy::MessageId].map(|by| {
        let message = Message::new(bytes.to_vec(), by);
        let identity = message.identity();
        [identity.id_hash, identity.digest, identity.copy_key("scuba", "INBOX")]
            .map(|hash| hex(&hash))
    });
    assert_eq!(by_content[0], by_id[0]);
    let message = Message::new(bytes.to_vec(), DedupBy::Content);
    let variants = [filter_variant(&message, FIELDS), nul_variant(&message)];
    let variants = variants.map(|one| if one.is_empty() { "-".to_owned() } else { one });
    [&by_content[..], &by_id[1..], &variants].concat()
}

fn messages(folder: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "eml"));
    paths.sort();
    paths
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn each_message_has_the_hashes_on_file() {
    let folder = root().join("fixtures/identity");
    let table = fs::read_to_string(folder.join("hashes.tsv")).expect("hashes.tsv");
    let ours: Hashes = messages(&folder)
        .iter()
        .map(|path| {
            (path.file_stem().expect("name").to_string_lossy().into_owned(), computed(&read(path)))
        })
        .collect();
    assert!(ours.len() >= 40);
    let on_file = hashes_in(&table);
    let names = |hashes: &Hashes| hashes.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&ours), names(&on_file));
    let wrong: Vec<&String> = ours.keys().filter(|name| ours[*name] != on_file[*name]).collect();
    assert!(wrong.is_empty(), "another identity than the ledger's: {wrong:?}");
}

/// Runs the reference on all of these and compares.
fn agrees(paths: &[PathBuf]) {
    for paths in paths.chunks(500) {
        let names: Vec<String> = (0..paths.len()).map(|number| number.to_string()).collect();
        let links = TempRoot::new();
        // Names of the corpus are not unique, nor all UTF-8.
        let linked = names.iter().map(|name| links.join(name)).collect::<Vec<_>>();
        for (path, link) in paths.iter().zip(&linked) {
            std::os::unix::fs::symlink(path, link).expect("link");
        }
        let output = Command::new("python3")
            .arg(root().join("tests/values/identity_reference.py"))
            .args(&linked)
            .output();
        let output = output.expect("python3");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let theirs = hashes_in(&String::from_utf8(output.stdout).expect("UTF-8"));
        assert_eq!(theirs.len(), paths.len());
        for (path, name) in paths.iter().zip(&names) {
            let bytes = read(path);
            let shown = bytes[..bytes.len().min(2000)].escape_ascii();
            assert_eq!(computed(&bytes), theirs[name], "{}: {shown}", path.display());
        }
    }
}

#[test]
fn the_reference_agrees_on_the_fixtures() {
    agrees(&messages(&root().join("fixtures/identity")));
}

#[test]
fn the_reference_agrees_on_the_corpus() {
    let Some(paths) = corpus() else { return };
    agrees(&paths);
}

#[test]
fn the_reference_agrees_on_messages_spoilt_at_random() {
    let folder = TempRoot::new();
    let inputs =
        fuzz::harness::spoilt("identity", &fuzz::message::seeds(), fuzz::message::DICTIONARY, 1000);
    let paths: Vec<PathBuf> =
        (0..inputs.len()).map(|number| folder.join(number.to_string())).collect();
    for (path, input) in paths.iter().zip(&inputs) {
        fs::write(path, input).expect("input");
    }
    agrees(&paths);
}
