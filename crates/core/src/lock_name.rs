//! The name of a lock that any program may take (`onedrop with-lock`), and the token that names one
//! holding of it. A name needs no registration. Rows hold it as it is, and are found by its hash
//! ([`name_hash`]), so that no engine's rules for comparing text count.

use std::fmt;
use std::str::FromStr;

use crate::lock_key::{Hash, name_hash};

/// Bytes of a name.
const LONGEST: usize = 200;

/// A lock's name: 1 to 200 bytes of UTF-8 without control characters, and without blanks at its
/// ends.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockName(String);

impl LockName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What rows are found by.
    pub fn hash(&self) -> Hash {
        name_hash(&self.0)
    }
}

impl FromStr for LockName {
    type Err = String;

    fn from_str(text: &str) -> Result<LockName, String> {
        let why = if text.is_empty() {
            "the name of a lock is empty".to_owned()
        } else if text.len() > LONGEST {
            format!("the name of a lock has {} bytes, more than {LONGEST}", text.len())
        } else if text.contains(char::is_control) {
            "the name of a lock holds a control character".to_owned()
        } else if text.trim() != text {
            "the name of a lock begins or ends with a blank".to_owned()
        } else {
            return Ok(LockName(text.to_owned()));
        };
        Err(why)
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One holding of a lock: `name#slot:epoch`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockToken {
    pub name: LockName,
    /// From 1.
    pub slot: u32,
    pub epoch: i64,
}

impl FromStr for LockToken {
    type Err = String;

    fn from_str(text: &str) -> Result<LockToken, String> {
        let parts = text.rsplit_once('#').and_then(|(name, rest)| {
            let (slot, epoch) = rest.split_once(':')?;
            Some((name, slot.parse().ok()?, epoch.parse().ok()?))
        });
        let (name, slot, epoch) =
            parts.ok_or_else(|| "a lock's token is NAME#SLOT:EPOCH".to_owned())?;
        Ok(LockToken { name: name.parse()?, slot, epoch })
    }
}

impl fmt::Display for LockToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}:{}", self.name, self.slot, self.epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_line_that_a_column_takes() {
        for name in ["nightly", "data.mailing.job.17", "Nachtlauf für alle", "a#b", "'; DROP"] {
            assert_eq!(name.parse::<LockName>().unwrap().as_str(), name);
        }
        for (name, why) in [
            ("".to_owned(), "is empty"),
            ("x".repeat(201), "has 201 bytes"),
            ("a\nb".to_owned(), "control character"),
            ("a\0".to_owned(), "control character"),
            (" a".to_owned(), "blank"),
        ] {
            assert!(name.parse::<LockName>().unwrap_err().contains(why), "{name:?}");
        }
    }

    #[test]
    fn a_token_is_read_as_it_is_written() {
        let token = LockToken { name: "a#1:2".parse().unwrap(), slot: 3, epoch: 4 };
        assert_eq!(token.to_string(), "a#1:2#3:4");
        assert_eq!("a#1:2#3:4".parse(), Ok(token));
        for wrong in ["a", "a#1", "a#x:1", "a#1:", "#1:1", "a#-1:1"] {
            assert!(wrong.parse::<LockToken>().is_err(), "{wrong}");
        }
    }
}
