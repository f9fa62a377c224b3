//! Messages of other projects' test suites, which stand beside the checkout (or at
//! `$ONEDROP_CORPUS`); in CI their absence is a failure.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::PROJECT;

/// The messages' files; `None`: the corpus is not there.
pub fn corpus() -> Option<Vec<PathBuf>> {
    let named = std::env::var_os("ONEDROP_CORPUS").filter(|named| !named.is_empty());
    let root = named.map_or_else(|| Path::new(PROJECT).join("../shared/corpus"), PathBuf::from);
    let index = match fs::read_to_string(root.join("INDEX.tsv")) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            assert!(std::env::var_os("CI").is_none(), "no corpus at {}", root.display());
            eprintln!("no corpus at {}: nothing to test", root.display());
            return None;
        }
        index => index.expect("the corpus' index"),
    };
    let path = |line: &str| {
        let mut columns = line.split('\t');
        let (repo, path) = (columns.next().expect("repo"), columns.next().expect("path"));
        root.join(repo.replace('/', "+")).join(path)
    };
    let files: Vec<PathBuf> = index.lines().skip(1).map(path).collect();
    assert!(files.len() >= 600, "{} files in the index", files.len());
    Some(files)
}
