//! Addresses and MIME parts of a message as its row holds them, in every engine: JSON arrays
//! `[["from","Lisa","lisa@x"],...]` and `[["1.2","text/plain",null,123],...]`, of role, name and
//! address, and of path, content type, name and size. NULL where there are none.

use serde::Serialize;

use super::LedgerError;
use crate::message::{AddressFact, PartFact};
use crate::text;

/// Bytes of a path or an address.
const SHORT: usize = 1000;
/// Bytes of any other text.
const LONG: usize = 4000;

/// The column `addresses`.
pub fn addresses(facts: &[AddressFact]) -> Option<String> {
    array(facts.iter().map(|fact| {
        let AddressFact { role, name, address } = fact;
        (role, name.as_deref().map(long), address.as_deref().map(short))
    }))
}

/// The column `parts`.
pub fn parts(facts: &[PartFact]) -> Option<String> {
    array(facts.iter().map(|fact| {
        let size_bytes = i64::try_from(fact.size_bytes).unwrap_or(i64::MAX);
        let (path, content_type) = (short(&fact.path), long(&fact.content_type));
        (path, content_type, fact.name.as_deref().map(long), size_bytes)
    }))
}

fn short(text: &str) -> std::borrow::Cow<'_, str> {
    text::within(text, SHORT)
}

fn long(text: &str) -> std::borrow::Cow<'_, str> {
    text::within(text, LONG)
}

/// `None` for none.
fn array<T: Serialize>(facts: impl ExactSizeIterator<Item = T>) -> Option<String> {
    if facts.len() == 0 {
        return None;
    }
    // Strings and numbers in tuples: that always can be written.
    serde_json::to_string(&facts.collect::<Vec<_>>()).ok()
}

/// Role, name, address.
pub type Address = (String, Option<String>, Option<String>);

/// Path, content type, name, size.
pub type Part = (String, String, Option<String>, i64);

/// Reads the column `addresses`.
pub fn read_addresses(column: Option<String>) -> Result<Vec<Address>, LedgerError> {
    read(column, "addresses")
}

/// Reads the column `parts`.
pub fn read_parts(column: Option<String>) -> Result<Vec<Part>, LedgerError> {
    read(column, "parts")
}

fn read<T: serde::de::DeserializeOwned>(
    column: Option<String>,
    name: &str,
) -> Result<Vec<T>, LedgerError> {
    let Some(text) = column else { return Ok(Vec::new()) };
    serde_json::from_str(&text)
        .map_err(|error| LedgerError::Broken(format!("{name} of a message: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_the_same_after_the_row() {
        let address = |role, name: Option<&str>, address: Option<&str>| AddressFact {
            role,
            name: name.map(str::to_owned),
            address: address.map(str::to_owned),
        };
        let facts = [
            address("from", Some("Lisa \"L\" Ö\\"), Some("lisa@gmail.com")),
            address("to", None, None),
        ];
        let column = addresses(&facts).expect("facts");
        assert_eq!(column, r#"[["from","Lisa \"L\" Ö\\","lisa@gmail.com"],["to",null,null]]"#);
        let facts = facts.map(|one| (one.role.to_owned(), one.name, one.address));
        assert_eq!(read_addresses(Some(column)).expect("addresses"), facts);
        let part = PartFact {
            path: "1.2".to_owned(),
            content_type: "text/plain".to_owned(),
            name: None,
            size_bytes: u64::MAX,
        };
        let column = parts(&[part]).expect("facts");
        assert_eq!(column, r#"[["1.2","text/plain",null,9223372036854775807]]"#);
        let part = ("1.2".to_owned(), "text/plain".to_owned(), None, i64::MAX);
        assert_eq!(read_parts(Some(column)).expect("parts"), [part]);
    }

    #[test]
    fn none_are_null_and_what_no_program_writes_is_said_so() {
        assert_eq!((addresses(&[]), parts(&[])), (None, None));
        assert!(read_addresses(None).expect("none").is_empty());
        let broken = read_parts(Some("[[1]]".to_owned())).expect_err("broken").to_string();
        assert!(broken.starts_with("holds what it should not: parts of a message: "), "{broken}");
    }
}
