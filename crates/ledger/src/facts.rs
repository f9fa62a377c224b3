//! Addresses and MIME parts of a message as its row holds them, in every engine: JSON arrays
//! `[["from","lisa@x","Lisa"],["to","doug@x"]]` and `[["1.2","text/plain",123,"a.txt"],...]`, of
//! role, address and name, and of path, content type, size and name; no name, no element. NULL
//! where there are none. An In-Reply-To that References ends with, as most do, is an empty text.

use serde::{Deserialize, Serialize};

use onedrop_core::ledger::LedgerError;
use onedrop_core::message::{AddressFact, Facts, PartFact};
use onedrop_core::text;

/// Bytes of a path or an address.
const SHORT: usize = 1000;
/// Bytes of any other text.
const LONG: usize = 4000;
/// Bytes of a column: a page of messages must fit into an answer of the server, whatever senders
/// put into them. Further addresses and parts are not recorded.
const COLUMN: usize = 96 * 1024;

/// Role, address, name.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Address(
    pub String,
    pub Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")] pub Option<String>,
);

/// Path, content type, size, name.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Part(
    pub String,
    pub String,
    pub i64,
    #[serde(default, skip_serializing_if = "Option::is_none")] pub Option<String>,
);

/// The column `addresses`.
pub fn addresses(facts: &[AddressFact]) -> Option<String> {
    array(facts.iter().map(|fact| {
        let AddressFact { role, name, address } = fact;
        Address(
            (*role).to_owned(),
            address.as_deref().map(|text| text::within(text, SHORT).into_owned()),
            name.as_deref().map(|text| text::within(text, LONG).into_owned()),
        )
    }))
}

/// The column `parts`.
pub fn parts(facts: &[PartFact]) -> Option<String> {
    array(facts.iter().map(|fact| {
        Part(
            text::within(&fact.path, SHORT).into_owned(),
            text::within(&fact.content_type, LONG).into_owned(),
            i64::try_from(fact.size_bytes).unwrap_or(i64::MAX),
            fact.name.as_deref().map(|text| text::within(text, LONG).into_owned()),
        )
    }))
}

/// The column `in_reply_to`.
pub fn in_reply_to(facts: &Facts) -> Option<&str> {
    let answered = facts.in_reply_to.as_deref().filter(|answered| !answered.is_empty())?;
    let references = facts.references.as_deref().unwrap_or_default();
    let is_last =
        references.len() <= LONG && answered.len() <= SHORT && last_of(references) == answered;
    Some(if is_last { "" } else { answered })
}

/// Reads the column `in_reply_to`.
pub fn read_in_reply_to(column: Option<String>, references: Option<&str>) -> Option<String> {
    column.map(|text| match (text.is_empty(), references) {
        (true, Some(references)) => last_of(references).to_owned(),
        _ => text,
    })
}

/// In the form of the view `onedrop_message_text`.
fn last_of(references: &str) -> &str {
    references.rsplit(' ').next().unwrap_or_default()
}

/// `None` for none.
fn array<T: Serialize>(facts: impl Iterator<Item = T>) -> Option<String> {
    let mut json = String::new();
    for fact in facts {
        // Strings and numbers in tuples: that always can be written.
        let one = serde_json::to_string(&fact).ok()?;
        if json.len() + one.len() + 2 > COLUMN {
            break;
        }
        json.push(if json.is_empty() { '[' } else { ',' });
        json.push_str(&one);
    }
    if json.is_empty() {
        return None;
    }
    json.push(']');
    Some(json)
}

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
        assert_eq!(column, r#"[["from","lisa@gmail.com","Lisa \"L\" Ö\\"],["to",null]]"#);
        let facts = facts.map(|one| Address(one.role.to_owned(), one.address, one.name));
        assert_eq!(read_addresses(Some(column)).expect("addresses"), facts);
        let part = PartFact {
            path: "1.2".to_owned(),
            content_type: "text/plain".to_owned(),
            name: None,
            size_bytes: u64::MAX,
        };
        let column = parts(&[part]).expect("facts");
        assert_eq!(column, r#"[["1.2","text/plain",9223372036854775807]]"#);
        let part = Part("1.2".to_owned(), "text/plain".to_owned(), i64::MAX, None);
        assert_eq!(read_parts(Some(column)).expect("parts"), [part]);
    }

    #[test]
    fn a_column_is_bounded_whatever_a_sender_puts_into_a_message() {
        let part = |name: &str| PartFact {
            path: "1".repeat(2 * SHORT),
            content_type: "\"".repeat(2 * LONG),
            name: Some(name.to_owned()),
            size_bytes: 1,
        };
        let all: Vec<PartFact> = (0..200).map(|n| part(&n.to_string())).collect();
        let column = parts(&all).expect("parts");
        assert!(column.len() <= COLUMN && column.len() > COLUMN - 3 * LONG, "{}", column.len());
        let read = read_parts(Some(column)).expect("an array");
        let names: Vec<String> = (0..read.len()).map(|n| n.to_string()).collect();
        assert_eq!(read.into_iter().filter_map(|part| part.3).collect::<Vec<_>>(), names);
    }

    #[test]
    fn what_references_end_with_is_not_repeated() {
        let column = |answered: Option<&str>, references: Option<&str>| {
            let [in_reply_to, references] = [answered, references].map(|id| id.map(str::to_owned));
            let facts = Facts { in_reply_to, references, ..Facts::default() };
            let column = super::in_reply_to(&facts).map(str::to_owned);
            let read = read_in_reply_to(column.clone(), facts.references.as_deref());
            assert_eq!(read, facts.in_reply_to.filter(|id| !id.is_empty()));
            column
        };
        assert_eq!(column(Some("<2@x>"), Some("<1@x> <2@x>")).as_deref(), Some(""));
        assert_eq!(column(Some("<2@x>"), Some("<2@x>")).as_deref(), Some(""));
        for references in [None, Some(""), Some("<2@x> <1@x>"), Some("<12@x>")] {
            assert_eq!(column(Some("<2@x>"), references).as_deref(), Some("<2@x>"));
            assert_eq!((column(None, references), column(Some(""), references)), (None, None));
        }
        let long = format!("{} <2@x>", "x".repeat(LONG));
        assert_eq!(column(Some("<2@x>"), Some(&long)).as_deref(), Some("<2@x>"));
    }

    #[test]
    fn none_are_null_and_what_no_program_writes_is_said_so() {
        assert_eq!((addresses(&[]), parts(&[])), (None, None));
        assert!(read_addresses(None).expect("none").is_empty());
        let broken = read_parts(Some("[[1]]".to_owned())).expect_err("broken").to_string();
        assert!(broken.contains(", or was changed by hand: parts of a message: "), "{broken}");
    }
}
