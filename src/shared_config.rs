//! What all hosts of a ledger must have alike in their configurations: the keys that decide who a
//! message and a copy are. The ledger keeps their values (`onedrop_ledger.config`); the first
//! delivery, or `onedrop migrate`, puts them there. A host that differs would deliver the same mail
//! a second time, so it delivers nothing until it agrees.

use std::collections::BTreeMap;

/// Why a host does not agree with what is on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigMismatch {
    /// Which keys differ, with both values, in words.
    Keys(String),
    /// It is no JSON object of strings.
    Unreadable(String),
}

/// Keys with their values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedConfig {
    keys: BTreeMap<String, String>,
    json: String,
}

impl SharedConfig {
    pub fn new<'a>(keys: impl IntoIterator<Item = (&'a str, String)>) -> SharedConfig {
        let keys = keys.into_iter().map(|(key, value)| (key.to_owned(), value));
        SharedConfig::of(keys.collect())
    }

    fn of(keys: BTreeMap<String, String>) -> SharedConfig {
        let json = serde_json::json!(keys).to_string();
        SharedConfig { keys, json }
    }

    /// As the ledger keeps it: a JSON object of strings, ordered by key. The same keys and values
    /// are the same text.
    pub fn json(&self) -> &str {
        &self.json
    }

    /// Whether what is on record has our value for each of our keys that it has. It may have more
    /// keys, of a later version, and lack some of ours, until a `migrate` of ours adds them. `None`
    /// on record agrees with everybody.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, on_record: Option<&str>) -> Result<(), ConfigMismatch> {
        let Some(on_record) = on_record.filter(|on_record| *on_record != self.json) else {
            return Ok(());
        };
        let theirs = parse(on_record)?;
        let differences: Vec<String> = self
            .keys
            .iter()
            .filter_map(|(key, ours)| Some((key, theirs.get(key)?, ours)))
            .filter(|(_, theirs, ours)| theirs != ours)
            .map(|(key, theirs, ours)| {
                format!("{key} is {theirs:?} in the ledger and {ours:?} on this host")
            })
            .collect();
        match differences.is_empty() {
            true => Ok(()),
            false => Err(ConfigMismatch::Keys(differences.join(", "))),
        }
    }

    /// What is to be on record where this is and lacks keys of ours; `None` where it lacks none.
    ///
    /// # Errors
    /// What is on record cannot be read.
    pub fn completed(&self, on_record: &str) -> Result<Option<String>, ConfigMismatch> {
        let mut keys = parse(on_record)?;
        let known = keys.len();
        for (key, value) in &self.keys {
            keys.entry(key.clone()).or_insert_with(|| value.clone());
        }
        Ok((keys.len() > known).then(|| SharedConfig::of(keys).json))
    }
}

fn parse(on_record: &str) -> Result<BTreeMap<String, String>, ConfigMismatch> {
    serde_json::from_str(on_record).map_err(|error| ConfigMismatch::Unreadable(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(by: &str, sent: &str) -> SharedConfig {
        SharedConfig::new([("sent.mailbox", sent.to_owned()), ("dedup.by", by.to_owned())])
    }

    #[test]
    fn the_same_keys_are_the_same_text_in_any_order() {
        assert_eq!(
            shared("content", "Sent").json(),
            r#"{"dedup.by":"content","sent.mailbox":"Sent"}"#
        );
    }

    #[test]
    fn what_differs_is_named_with_both_values() {
        let ours = shared("content", "Sent");
        assert!(ours.check(None).is_ok());
        assert!(ours.check(Some(ours.json())).is_ok());
        let later = r#"{"dedup.by":"content","new.key":"x","sent.mailbox":"Sent"}"#;
        assert!(ours.check(Some(later)).is_ok());
        assert_eq!(ours.completed(later), Ok(None));
        let earlier = r#"{"dedup.by":"content","old.key":"x"}"#;
        assert!(ours.check(Some(earlier)).is_ok());
        let both = r#"{"dedup.by":"content","old.key":"x","sent.mailbox":"Sent"}"#;
        assert_eq!(ours.completed(earlier), Ok(Some(both.to_owned())));
        let differs = ours.check(Some(shared("message-id", "Sent").json()));
        let named = r#"dedup.by is "message-id" in the ledger and "content" on this host"#;
        assert_eq!(differs, Err(ConfigMismatch::Keys(named.to_owned())));
        assert!(matches!(ours.check(Some("{")), Err(ConfigMismatch::Unreadable(_))));
    }
}
