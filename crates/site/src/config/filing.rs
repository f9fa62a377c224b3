//! What names mailboxes in a file: `[[file]]` rules, and the accounts of `directory.accounts` that
//! have one. Both are tables with keys of their own, judged here.

use std::ops::Range;

use ::config::{Map, Value, ValueKind};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{ensure, shown_name};
use super::schema::own_mailbox;
use super::suggest::closest;
use onedrop_core::directory::is_account_name;

/// Where the rules are.
pub(super) const SECTION: &str = "file";

/// What is wrong, and where.
pub(super) type Mistake = (Range<usize>, String);

/// The name of a key, and what it takes, as it is kept.
type TextKey = (&'static str, fn(&str) -> Result<String, String>);

const RULE: &[TextKey] = &[("header", header), ("is", value), ("mailbox", own_mailbox)];

const HOME: &[TextKey] = &[("account", account), ("mailbox", own_mailbox)];

/// The rules that fit, in their order; and what is wrong with the others.
pub(super) fn rules(value: &Spanned<DeValue<'_>>) -> (Vec<Value>, Vec<Mistake>) {
    let DeValue::Array(list) = value.get_ref() else {
        let text = "expected rules, each as [[file]]".to_owned();
        return (Vec::new(), vec![(value.span(), text)]);
    };
    let (mut rules, mut mistakes) = (Vec::new(), Vec::new());
    for item in list {
        let Some(table) = item.get_ref().as_table() else {
            mistakes.push((item.span(), "expected a rule as [[file]]".to_owned()));
            continue;
        };
        match texts(table, &item.span(), RULE) {
            Ok(texts) => {
                let names = RULE.iter().map(|(name, _)| (*name).to_owned());
                let texts = texts.into_iter().map(Value::from);
                rules.push(Value::new(
                    None,
                    ValueKind::Table(names.zip(texts).collect::<Map<_, _>>()),
                ));
            }
            Err(mut wrong) => mistakes.append(&mut wrong),
        }
    }
    (rules, mistakes)
}

/// An account and its mailbox: a list, which a later file replaces as a whole.
///
/// # Errors
/// Why it is none.
pub(super) fn home(table: &DeTable<'_>) -> Result<Value, String> {
    let texts = texts(table, &(0..0), HOME)
        .map_err(|wrong| wrong.into_iter().next().map(|(_, text)| text).unwrap_or_default())?;
    Ok(texts.into())
}

/// An account's name, as it is kept.
pub(super) fn account(text: &str) -> Result<String, String> {
    match is_account_name(text) {
        true => Ok(text.to_owned()),
        false => Err(format!("\"{}\" {NO_ACCOUNT}", shown_name(text))),
    }
}

const NO_ACCOUNT: &str =
    "cannot be an account (1 to 255 bytes, no slashes or control characters, no \".\" in front)";

/// The values of `keys`, all of which `table` has to have, and no others.
fn texts(
    table: &DeTable<'_>,
    at: &Range<usize>,
    keys: &[TextKey],
) -> Result<Vec<String>, Vec<Mistake>> {
    let mut mistakes = Vec::new();
    for (name, _) in table {
        let is_known = keys.iter().any(|(known, _)| *known == name.get_ref().as_ref());
        if !is_known {
            mistakes.push((name.span(), unknown(name.get_ref(), keys)));
        }
    }
    let mut texts = Vec::new();
    for (key, keeps) in keys {
        let set = table.iter().find(|(name, _)| name.get_ref().as_ref() == *key);
        match set.map(|(name, value)| (name.span(), value.get_ref())) {
            Some((span, DeValue::String(text))) => match keeps(text) {
                Ok(text) => texts.push(text),
                Err(why) => mistakes.push((span, format!("{key}: {why}"))),
            },
            Some((span, other)) => {
                let text = format!("{key}: expected a string, found {}", other.type_str());
                mistakes.push((span, text));
            }
            None => mistakes.push((at.clone(), format!("{key} is missing"))),
        }
    }
    if mistakes.is_empty() { Ok(texts) } else { Err(mistakes) }
}

fn unknown(name: &str, keys: &[TextKey]) -> String {
    let names: Vec<&str> = keys.iter().map(|(name, _)| *name).collect();
    let hint = match closest(name, names.iter().copied()) {
        Some(known) => format!("did you mean {known}?"),
        None => format!("known keys: {}", names.join(", ")),
    };
    format!("unknown key {} ({hint})", shown_name(name))
}

/// The name of a field (RFC 5322 section 3.6.8).
fn header(text: &str) -> Result<String, String> {
    let fits =
        !text.is_empty() && text.bytes().all(|byte| matches!(byte, b'!'..=b'9' | b';'..=b'~'));
    ensure(fits, "expected the name of a field, without its colon")?;
    Ok(text.to_owned())
}

fn value(text: &str) -> Result<String, String> {
    let fits = !text.trim().is_empty() && !text.chars().any(char::is_control);
    ensure(fits, "expected the value of the field, without control characters")?;
    Ok(text.trim().to_owned())
}
