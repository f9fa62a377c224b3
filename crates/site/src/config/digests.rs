//! What a configuration's values are, in a form that says of two whether they are equal, and not
//! what they are: `onedrop check` compares the files with what a running server has read.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::{filing, schema};
use onedrop_core::lock_key::hex;

/// Bytes of a digest: enough for two values of one key to differ.
const BYTES: usize = 4;
/// Sections that mean nothing to a server, or are read anew by each tick.
const OTHERS: [&str; 3] = ["deliver", "jobs", "web"];

/// The merged layers, and which of their keys are not from files.
#[derive(Debug, Default, Clone)]
pub(super) struct MergedValues {
    pub values: ::config::Config,
    pub by_variable: Vec<String>,
}

impl MergedValues {
    /// By the keys' full names; keys that a variable sets are left out.
    pub fn digests(&self) -> BTreeMap<String, String> {
        let keys = schema::known_keys().chain([filing::SECTION]);
        let is_ours = |key: &&str| {
            let section = key.split('.').next().unwrap_or_default();
            !OTHERS.contains(&section) && !self.by_variable.iter().any(|one| one == key)
        };
        let digest = |key: &str| {
            // Tables in the order of their keys; an empty value for a key that is not set.
            let value = self.values.get::<serde_json::Value>(key).unwrap_or_default();
            let digest = Sha256::digest(format!("{key}\0{value}"));
            (key.to_owned(), hex(&digest[..BYTES]))
        };
        keys.filter(is_ours).map(digest).collect()
    }
}
