//! What all hosts of a ledger must have alike in their configurations: the keys that decide who a
//! message and a copy are. The ledger keeps their values (`onedrop_ledger.config`); the first
//! delivery, or `onedrop migrate`, puts them there. A host that differs would deliver the same mail
//! a second time, so it delivers nothing until it agrees.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The fields that steer filters (`dedup.filter_fields`), and on record beside them the lists that
/// were in force before.
const FIELDS: &str = "dedup.filter_fields";
const FORMER: &str = "dedup.filter_fields.former";

/// For how long a former list is heeded: twice what Postfix keeps a message by default.
const IN_FLIGHT: Duration = Duration::from_secs(10 * 86_400);

/// Which fields distinguish a copy that goes through filters from another, according to the record:
/// the ledger's word counts, which `onedrop migrate` alone changes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FilterFields {
    /// Names in lower case, between blanks.
    pub list: String,
    /// The value on record; empty where there is none.
    former: String,
}

impl FilterFields {
    /// The lists that were in force while mail came that may be in flight still.
    pub fn former_lists(&self, now: SystemTime) -> Vec<String> {
        let lists = former_in(&self.former).into_iter();
        lists.filter(|(_, until)| *until > secs(now)).map(|(list, _)| list).collect()
    }
}

fn secs(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Each list, and until when it is heeded, in seconds since 1970.
fn former_in(on_record: &str) -> Vec<(String, u64)> {
    serde_json::from_str(on_record).unwrap_or_default()
}

/// Why a host does not agree with what is on record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigMismatch {
    /// A phrase: which keys differ, with both values.
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

    /// The form that the ledger keeps: a JSON object of strings, ordered by key. The same keys and
    /// values are the same text.
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
    pub fn completed(
        &self,
        on_record: &str,
        now: SystemTime,
    ) -> Result<Option<String>, ConfigMismatch> {
        let mut keys = parse(on_record)?;
        let (known, former) = (keys.len(), self.former(&keys, now));
        for (key, value) in &self.keys {
            keys.entry(key.clone()).or_insert_with(|| value.clone());
        }
        let is_whole = keys.len() == known;
        keys.extend(former.map(|former| (FORMER.to_owned(), former)));
        Ok((!is_whole).then(|| SharedConfig::of(keys).json))
    }

    /// What is to be on record in place of this: keys of a later version stay.
    pub fn replacing(&self, on_record: &str, now: SystemTime) -> String {
        let mut keys = parse(on_record).unwrap_or_default();
        let former = self.former(&keys, now);
        keys.remove(FORMER);
        keys.extend(self.keys.clone());
        keys.extend(former.map(|former| (FORMER.to_owned(), former)));
        SharedConfig::of(keys).json
    }

    /// The former lists of fields, once ours is on record in place of theirs.
    fn former(&self, theirs: &BTreeMap<String, String>, now: SystemTime) -> Option<String> {
        let ours = self.keys.get(FIELDS)?;
        let list = theirs.get(FIELDS).map_or("", String::as_str);
        let mut former = former_in(theirs.get(FORMER).map_or("", String::as_str));
        former.retain(|(one, until)| *until > secs(now) && one != list && one != ours);
        if list != ours {
            former.push((list.to_owned(), secs(now + IN_FLIGHT)));
        }
        (!former.is_empty()).then(|| serde_json::json!(former).to_string())
    }

    /// The list in force. Where the ledger has other keys and not this one, none was before.
    ///
    /// # Errors
    /// What is on record cannot be read.
    pub fn filter_fields(&self, on_record: Option<&str>) -> Result<FilterFields, ConfigMismatch> {
        let ours = || self.keys.get(FIELDS).cloned().unwrap_or_default();
        let Some(on_record) = on_record else {
            return Ok(FilterFields { list: ours(), former: String::new() });
        };
        let theirs = parse(on_record)?;
        Ok(FilterFields {
            list: theirs.get(FIELDS).map(|_| ours()).unwrap_or_default(),
            former: theirs.get(FORMER).cloned().unwrap_or_default(),
        })
    }

    /// The same as a delivery has it that names its copies by `fields`: on record must be just
    /// that.
    pub fn with(&self, fields: Option<&FilterFields>) -> SharedConfig {
        let Some(fields) = fields else { return self.clone() };
        let mut keys = self.keys.clone();
        keys.insert(FIELDS.to_owned(), fields.list.clone());
        keys.insert(FORMER.to_owned(), fields.former.clone());
        SharedConfig::of(keys)
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
    fn a_former_list_is_heeded_for_a_time() {
        let ours = |list: &str| SharedConfig::new([(FIELDS, list.to_owned())]);
        let day = |days: u64| UNIX_EPOCH + Duration::from_secs(days * 86_400);
        let lists = |on_record: &str, at| {
            ours("a").filter_fields(Some(on_record)).unwrap().former_lists(at)
        };
        // None was in force before the key came.
        let first = ours("a").completed("{}", day(1)).unwrap().unwrap();
        assert_eq!((lists(&first, day(10)), lists(&first, day(11))), (vec![String::new()], vec![]));
        let second = ours("b").replacing(&first, day(2));
        assert_eq!(lists(&second, day(3)), ["", "a"]);
        assert_eq!(lists(&second, day(11)), ["a"]);
        assert_eq!(ours("b").replacing(&second, day(20)), ours("b").json());
        // Back again: its copies go by the list in force.
        assert_eq!(lists(&ours("a").replacing(&second, day(3)), day(4)), ["", "b"]);

        // Named by what was on record a moment ago: what is there now differs.
        let known = ours("b").filter_fields(Some(&first)).unwrap();
        assert!(ours("b").with(Some(&known)).check(Some(&second)).is_err());
        let known = ours("b").filter_fields(Some(&second)).unwrap();
        assert_eq!(ours("b").with(Some(&known)).check(Some(&second)), Ok(()));
        let before = ours("a").filter_fields(Some("{}")).unwrap();
        assert_eq!((before.list.as_str(), before.former_lists(day(1))), ("", vec![]));
        assert_eq!(ours("a").with(Some(&before)).check(Some("{}")), Ok(()));
        assert!(ours("a").with(Some(&before)).check(Some(&first)).is_err());
        assert_eq!(ours("a").filter_fields(None).unwrap().list, "a");
    }

    #[test]
    fn what_differs_is_named_with_both_values() {
        let ours = shared("content", "Sent");
        assert!(ours.check(None).is_ok());
        assert!(ours.check(Some(ours.json())).is_ok());
        let later = r#"{"dedup.by":"content","new.key":"x","sent.mailbox":"Sent"}"#;
        assert!(ours.check(Some(later)).is_ok());
        assert_eq!(ours.completed(later, UNIX_EPOCH), Ok(None));
        assert_eq!(shared("message-id", "Sent").replacing(later, UNIX_EPOCH), {
            r#"{"dedup.by":"message-id","new.key":"x","sent.mailbox":"Sent"}"#
        });
        assert_eq!(ours.replacing("{", UNIX_EPOCH), ours.json());
        let earlier = r#"{"dedup.by":"content","old.key":"x"}"#;
        assert!(ours.check(Some(earlier)).is_ok());
        let both = r#"{"dedup.by":"content","old.key":"x","sent.mailbox":"Sent"}"#;
        assert_eq!(ours.completed(earlier, UNIX_EPOCH), Ok(Some(both.to_owned())));
        let differs = ours.check(Some(shared("message-id", "Sent").json()));
        let named = r#"dedup.by is "message-id" in the ledger and "content" on this host"#;
        assert_eq!(differs, Err(ConfigMismatch::Keys(named.to_owned())));
        assert!(matches!(ours.check(Some("{")), Err(ConfigMismatch::Unreadable(_))));
    }
}
