//! One file, parsed with places and judged value by value; what is left is a layer of values that
//! fit their keys.
//!
//! The parser goes on after a syntax error, so a file shows all of its faults at once. Values on a
//! line with a syntax error are guesses of the parser and are not judged.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ::config::{ConfigError, Map, Source, Value, ValueKind};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{Origin, Problem, Warning, shown_name};
use super::schema::{self, Key, Kind};
use super::unknown;
use crate::directory::is_account_name;

/// Values that passed the schema, as a source for the `config` crate.
#[derive(Clone, Debug, Default)]
pub(super) struct Layer {
    values: Map<String, Value>,
}

/// What was learned while reading all layers.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub problems: Vec<Problem>,
    pub warnings: Vec<Warning>,
    /// Keys whose value is not known, because one was refused somewhere.
    pub refused: Vec<&'static str>,
    /// Some text could not be read or parsed: which keys it sets is not known.
    pub incomplete: bool,
    /// Who set a key last.
    pub origins: Vec<(&'static str, Origin)>,
}

impl Findings {
    pub(super) fn problem(&mut self, origin: Origin, text: String) {
        self.problems.push(Problem { origin, text });
    }

    /// A problem with one key's value, which is thereby unknown.
    pub(super) fn refuse(&mut self, key: &'static Key, origin: Origin, why: &str) {
        self.refused.push(key.full);
        self.problem(origin, format!("{}: {why}", key.full));
    }

    pub(super) fn warning(&mut self, origin: Origin, text: String) {
        self.warnings.push(Warning(Problem { origin, text }));
    }

    /// Where the value that holds comes from.
    pub(super) fn origin(&self, key: &str) -> Origin {
        let last = self.origins.iter().rev().find(|(set, _)| *set == key);
        last.map_or(Origin::Default, |(_, origin)| origin.clone())
    }
}

impl Layer {
    pub(super) fn set(
        &mut self,
        key: &'static Key,
        value: ValueKind,
        origin: Origin,
        findings: &mut Findings,
    ) {
        let section = self
            .values
            .entry(key.section().to_owned())
            .or_insert_with(|| Map::<String, Value>::new().into());
        if let ValueKind::Table(section) = &mut section.kind {
            section.insert(key.name().to_owned(), Value::new(None, value));
        }
        findings.origins.push((key.full, origin));
    }
}

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, ConfigError> {
        Ok(self.values.clone())
    }
}

/// Reads the text of a file, the `order`th of the configuration.
pub(super) fn read(text: &str, order: usize, path: &Arc<Path>, findings: &mut Findings) -> Layer {
    let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
    let line_starts = std::iter::once(0).chain(newlines.map(|(at, _)| at + 1)).collect();
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut file = FileReader {
        text,
        order,
        path,
        line_starts,
        broken_lines: BTreeSet::new(),
        findings,
        layer: Layer::default(),
    };
    for error in errors {
        file.syntax_error(&error);
    }
    for (section, keys) in table.get_ref() {
        file.section(section, keys);
    }
    file.layer
}

struct FileReader<'a> {
    text: &'a str,
    order: usize,
    path: &'a Arc<Path>,
    line_starts: Vec<usize>,
    broken_lines: BTreeSet<usize>,
    findings: &'a mut Findings,
    layer: Layer,
}

impl FileReader<'_> {
    fn syntax_error(&mut self, error: &toml::de::Error) {
        self.findings.incomplete = true;
        let span = error.span().unwrap_or_default();
        let (line, _) = self.place(span.start);
        if !self.broken_lines.insert(line) {
            return; // the first error of a line explains the others
        }
        let what = match error.message() {
            "duplicate key" => {
                format!(
                    "{} is set a second time",
                    shown_name(self.text.get(span.clone()).unwrap_or_default())
                )
            }
            message => format!("syntax error: {message}"),
        };
        self.findings.problem(self.origin(&span), what);
    }

    fn section(&mut self, name: &Spanned<std::borrow::Cow<'_, str>>, value: &Spanned<DeValue<'_>>) {
        if self.is_broken(&name.span()) {
            return;
        }
        let section = name.get_ref().as_ref();
        if !schema::sections().any(|known| known == section) {
            self.findings.problem(self.origin(&name.span()), unknown::section(section));
            return;
        }
        let Some(keys) = value.get_ref().as_table() else {
            let found = described(value.get_ref(), false);
            self.findings.problem(
                self.origin(&name.span()),
                format!("{section}: expected a section, found {found}"),
            );
            return;
        };
        for (name, value) in keys {
            if self.is_broken(&name.span()) || self.is_broken(&value.span()) {
                continue;
            }
            match schema::find(section, name.get_ref()) {
                Some(key) => self.key(key, &name.span(), value),
                None => {
                    let text = unknown::key(section, name.get_ref());
                    self.findings.problem(self.origin(&name.span()), text);
                }
            }
        }
    }

    fn key(&mut self, key: &'static Key, at: &Range<usize>, value: &Spanned<DeValue<'_>>) {
        let judged = match (value.get_ref(), &key.kind) {
            (DeValue::Boolean(flag), Kind::Flag) => Ok((*flag).into()),
            (DeValue::String(text), _) => key.text_value(text),
            (DeValue::Integer(number), Kind::Count { .. }) => {
                key.number_value(number.as_str(), number.radix())
            }
            (DeValue::Array(list), Kind::List(keeps)) => return self.list(key, at, list, *keeps),
            (DeValue::Table(table), Kind::Accounts) => return self.accounts(key, at, table),
            (other, _) => Err(format!(
                "expected {}, found {}",
                key.expects(),
                described(other, key.may_be_quoted())
            )),
        };
        match judged {
            Ok(value) => self.layer.set(key, value, self.origin(at), self.findings),
            Err(why) => self.findings.refuse(key, self.origin(&value.span()), &why),
        }
    }

    fn list(
        &mut self,
        key: &'static Key,
        at: &Range<usize>,
        list: &[Spanned<DeValue<'_>>],
        keeps: fn(&str) -> Result<String, String>,
    ) {
        let mut kept = Vec::new();
        for item in list {
            if self.is_broken(&item.span()) {
                continue;
            }
            let judged = match item.get_ref() {
                DeValue::String(text) => keeps(text),
                other => Err(format!(
                    "expected {}, found {} in it",
                    key.expects(),
                    described(other, false)
                )),
            };
            match judged {
                Ok(item) => kept.push(item),
                Err(why) => self.findings.refuse(key, self.origin(&item.span()), &why),
            }
        }
        self.layer.set(key, kept.into(), self.origin(at), self.findings);
    }

    fn accounts(&mut self, key: &'static Key, at: &Range<usize>, table: &DeTable<'_>) {
        let mut accounts: Map<String, Value> = Map::new();
        for (address, account) in table {
            if self.is_broken(&address.span()) {
                continue;
            }
            let shown = shown_name(address.get_ref());
            let folded = address.get_ref().to_lowercase();
            let judged = match account.get_ref() {
                // An unquoted address is a dotted key, which makes tables.
                DeValue::Table(_) => {
                    Err("expected a string, found table (quote the address)".to_owned())
                }
                _ if !folded.contains('@') => Err("expected an address as the key".to_owned()),
                _ if accounts.contains_key(&folded) => {
                    Err("is there a second time (upper and lower case are the same)".to_owned())
                }
                DeValue::String(name) if is_account_name(name) => Ok(name.clone().into_owned()),
                DeValue::String(name) => Err(format!("\"{}\" {NO_ACCOUNT}", shown_name(name))),
                other => Err(format!("expected a string, found {}", described(other, false))),
            };
            match judged {
                Ok(account) => drop(accounts.insert(folded, account.into())),
                Err(why) => self.findings.refuse(
                    key,
                    self.origin(&address.span()),
                    &format!("{shown}: {why}"),
                ),
            }
        }
        self.layer.set(key, accounts.into(), self.origin(at), self.findings);
    }

    fn is_broken(&self, span: &Range<usize>) -> bool {
        !self.broken_lines.is_empty() && self.broken_lines.contains(&self.place(span.start).0)
    }

    fn origin(&self, span: &Range<usize>) -> Origin {
        let (line, column) = self.place(span.start);
        Origin::File { order: self.order, path: Arc::clone(self.path), line, column }
    }

    /// Line and column (in characters) of a byte, both from 1.
    fn place(&self, at: usize) -> (usize, usize) {
        let line = self.line_starts.partition_point(|start| *start <= at);
        let start = self.line_starts.get(line.saturating_sub(1)).copied().unwrap_or_default();
        let before = self.text.get(start..self.text.floor_char_boundary(at)).unwrap_or_default();
        (line, before.trim_start_matches('\u{feff}').chars().count() + 1)
    }
}

const NO_ACCOUNT: &str =
    "cannot be an account (1 to 255 bytes, no slashes or control characters, no \".\" in front)";

/// The kind of a value and, where that is harmless, the value.
fn described(value: &DeValue<'_>, quote: bool) -> String {
    match value {
        DeValue::Integer(number) if quote => format!("integer {}", shown_name(&number.to_string())),
        DeValue::Float(number) if quote => format!("float {}", shown_name(number.as_str())),
        DeValue::Boolean(flag) if quote => format!("boolean {flag}"),
        other => other.type_str().to_owned(),
    }
}
