//! One file, parsed with places and judged value by value; what is left is a layer of values that
//! fit their keys.
//!
//! The parser goes on after a syntax error, so a file shows all of its faults at once. Values on a
//! line with a syntax error are guesses of the parser and are not judged.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ::config::{ConfigError, Map, Source, Value, ValueKind};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::filing;
use super::jobs::{self, JobTables};
use super::problem::{Origin, Problem, shown_name};
use super::schema::{self, Key, Kind};
use super::unknown;

/// Values that passed the schema, by their keys' full names, as a source for the `config` crate.
#[derive(Clone, Debug, Default)]
pub(super) struct Layer(Map<String, Value>);

impl Source for Layer {
    fn clone_into_box(&self) -> Box<dyn Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, ConfigError> {
        Ok(self.0.clone())
    }
}

/// What reading the layers has given so far.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub layers: Vec<Layer>,
    pub problems: Vec<Problem>,
    /// Those of `[jobs]` and of jobs, without which mail can be delivered.
    pub job_problems: Vec<Problem>,
    pub warnings: Vec<Problem>,
    /// What the layers so far say of jobs, later ones over earlier ones.
    pub jobs: JobTables,
    /// Keys whose value is not known, because one was refused somewhere.
    pub refused: Vec<String>,
    /// Some text could not be read or parsed: which keys it sets is not known.
    pub incomplete: bool,
    /// Where a key was set last.
    origins: BTreeMap<String, Origin>,
}

impl Reading {
    /// Takes a value into the newest layer.
    pub(super) fn set(&mut self, key: &'static Key, value: ValueKind, origin: Origin) {
        if let Some(Layer(values)) = self.layers.last_mut() {
            values.insert(key.full.to_owned(), Value::new(None, value));
        }
        self.origins.insert(key.full.to_owned(), origin);
    }

    /// Takes the rules of `[[file]]` into the newest layer.
    pub(super) fn set_rules(&mut self, rules: Vec<Value>, origin: Origin) {
        if let Some(Layer(values)) = self.layers.last_mut() {
            values.insert(filing::SECTION.to_owned(), Value::new(None, rules));
        }
        self.origins.insert(filing::SECTION.to_owned(), origin);
    }

    /// That a job's table is there.
    pub(super) fn set_job(&mut self, job: &str, origin: Origin) {
        self.jobs.entry(job.to_owned()).or_default();
        self.origins.insert(jobs::full(job, ""), origin);
    }

    /// Takes a value of a job.
    pub(super) fn set_job_value(
        &mut self,
        job: &str,
        key: &'static Key,
        value: ValueKind,
        origin: Origin,
    ) {
        self.jobs.entry(job.to_owned()).or_default().insert(key.name(), value);
        self.origins.insert(jobs::full(job, key.name()), origin);
    }

    pub(super) fn problem(&mut self, origin: Origin, text: String) {
        self.problems.push(Problem { origin, text });
    }

    /// Puts the problems after the first `before` aside, as those of jobs.
    pub(super) fn set_aside(&mut self, before: usize) {
        self.job_problems.extend(self.problems.drain(before..));
    }

    /// A problem with the value of the key of this full name, which is thereby unknown.
    pub(super) fn refuse(&mut self, full: &str, origin: Origin, why: &str) {
        self.refused.push(full.to_owned());
        self.problem(origin, format!("{}: {why}", shown_name(full)));
    }

    /// A problem with a text, so that the keys in it are unknown.
    pub(super) fn unreadable(&mut self, origin: Origin, text: String) {
        self.incomplete = true;
        self.problem(origin, text);
    }

    pub(super) fn warning(&mut self, origin: Origin, text: String) {
        self.warnings.push(Problem { origin, text });
    }

    /// Where the value that holds comes from.
    pub(super) fn origin(&self, key: &str) -> Origin {
        self.origins.get(key).cloned().unwrap_or(Origin::Default)
    }
}

/// Reads the text of a file, the `order`th of the configuration, as a layer.
pub(super) fn read(text: &str, order: usize, path: &Arc<Path>, reading: &mut Reading) {
    reading.layers.push(Layer::default());
    let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
    let line_starts = std::iter::once(0).chain(newlines.map(|(at, _)| at + 1)).collect();
    let (table, errors) = DeTable::parse_recoverable(text);
    let broken_lines = BTreeSet::new();
    let mut file = FileReader { text, order, path, line_starts, broken_lines, reading };
    for error in errors {
        file.syntax_error(&error);
    }
    for (section, keys) in table.get_ref() {
        let before = file.reading.problems.len();
        file.section(section, keys);
        if section.get_ref() == jobs::SECTION {
            file.reading.set_aside(before);
        }
    }
}

struct FileReader<'a> {
    text: &'a str,
    order: usize,
    path: &'a Arc<Path>,
    line_starts: Vec<usize>,
    broken_lines: BTreeSet<usize>,
    reading: &'a mut Reading,
}

impl FileReader<'_> {
    fn syntax_error(&mut self, error: &toml::de::Error) {
        let span = error.span().unwrap_or_default();
        let (line, _) = self.place(span.start);
        if !self.broken_lines.insert(line) {
            return; // the first error of a line explains the others
        }
        let what = match error.message() {
            "duplicate key" => {
                let name = self.text.get(span.clone()).unwrap_or_default();
                format!("{} is set a second time", shown_name(name))
            }
            message => format!("syntax error: {message}"),
        };
        self.reading.unreadable(self.origin(&span), what);
    }

    fn section(&mut self, name: &Spanned<Cow<'_, str>>, value: &Spanned<DeValue<'_>>) {
        let (at, section) = (name.span(), name.get_ref().as_ref());
        if self.is_broken(&at) {
            return;
        }
        if section == filing::SECTION {
            return self.file_rules(&at, value);
        }
        if !schema::sections().any(|known| known == section) {
            return self.reading.problem(self.origin(&at), unknown::section(section));
        }
        let Some(keys) = value.get_ref().as_table() else {
            let found = described(value.get_ref(), false);
            let text = format!("{section}: expected a section, found {found}");
            return self.reading.problem(self.origin(&at), text);
        };
        for (name, value) in keys {
            let at = name.span();
            if self.is_broken(&at) || self.is_broken(&value.span()) {
                continue;
            }
            match (schema::find(section, name.get_ref()), value.get_ref()) {
                (Some(key), _) => {
                    if let Some(value) = self.judged(key, key.full, value) {
                        self.reading.set(key, value, self.origin(&at));
                    }
                }
                (None, DeValue::Table(table)) if section == jobs::SECTION => {
                    self.job(name.get_ref(), &at, table);
                }
                (None, _) => {
                    let text = unknown::key(section, name.get_ref());
                    self.reading.problem(self.origin(&at), text);
                }
            }
        }
    }

    /// `[[file]]`
    fn file_rules(&mut self, at: &Range<usize>, value: &Spanned<DeValue<'_>>) {
        let (rules, mistakes) = filing::rules(value);
        for (span, why) in mistakes {
            if !self.is_broken(&span) {
                self.reading.refuse(filing::SECTION, self.origin(&span), &why);
            }
        }
        self.reading.set_rules(rules, self.origin(at));
    }

    /// `[jobs.NAME]`
    fn job(&mut self, job: &str, at: &Range<usize>, table: &DeTable<'_>) {
        if let Err(why) = jobs::name(job) {
            return self.reading.problem(self.origin(at), why);
        }
        self.reading.set_job(job, self.origin(at));
        for (name, value) in table {
            let at = name.span();
            if self.is_broken(&at) || self.is_broken(&value.span()) {
                continue;
            }
            match jobs::find(name.get_ref()) {
                Some(key) => {
                    if let Some(value) = self.judged(key, &jobs::full(job, key.name()), value) {
                        self.reading.set_job_value(job, key, value, self.origin(&at));
                    }
                }
                None => {
                    let is_table = value.get_ref().as_table().is_some();
                    let text = jobs::unknown(job, name.get_ref(), is_table);
                    self.reading.problem(self.origin(&at), text);
                }
            }
        }
    }

    /// The value as it is kept; else there is a problem with the key of this full name.
    fn judged(
        &mut self,
        key: &'static Key,
        full: &str,
        value: &Spanned<DeValue<'_>>,
    ) -> Option<ValueKind> {
        let judged = match (value.get_ref(), &key.kind) {
            (DeValue::Boolean(flag), Kind::Flag) => Ok((*flag).into()),
            (DeValue::String(text), _) => key.text_value(text),
            (DeValue::Integer(number), Kind::Count(_)) => {
                key.number_value(number.as_str(), number.radix())
            }
            (DeValue::Array(list), Kind::List(keeps)) => Ok(self.list(key, full, list, *keeps)),
            (DeValue::Table(table), Kind::Accounts) => Ok(self.accounts(key, table)),
            (other, _) => {
                let found = described(other, key.may_be_quoted());
                Err(format!("expected {}, found {found}", key.expects()))
            }
        };
        judged.map_err(|why| self.refuse(full, value, &why)).ok()
    }

    /// The items that fit; a problem for each of the others.
    fn list(
        &mut self,
        key: &'static Key,
        full: &str,
        list: &[Spanned<DeValue<'_>>],
        keeps: fn(&str) -> Result<String, String>,
    ) -> ValueKind {
        let mut kept = Vec::new();
        for item in list {
            if self.is_broken(&item.span()) {
                continue;
            }
            let judged = match item.get_ref() {
                DeValue::String(text) => keeps(text),
                other => {
                    let found = described(other, false);
                    Err(format!("expected {}, found {found} in it", key.expects()))
                }
            };
            match judged {
                Ok(item) => kept.push(item),
                Err(why) => self.refuse(full, item, &why),
            }
        }
        kept.into()
    }

    /// The accounts that fit, by addresses in lower case; a problem for each of the others.
    fn accounts(&mut self, key: &'static Key, table: &DeTable<'_>) -> ValueKind {
        let mut accounts: Map<String, Value> = Map::new();
        for (address, account) in table {
            if self.is_broken(&address.span()) {
                continue;
            }
            let folded = address.get_ref().to_lowercase();
            let judged = match account.get_ref() {
                DeValue::Table(home) if home.contains_key("account") => filing::home(home),
                // An unquoted address is a dotted key, which makes tables.
                DeValue::Table(_) => {
                    Err("expected a string, found table (quote the address)".to_owned())
                }
                _ if !folded.contains('@') => Err("expected an address as the key".to_owned()),
                _ if accounts.contains_key(&folded) => {
                    Err("is there a second time (upper and lower case are the same)".to_owned())
                }
                DeValue::String(name) => filing::account(name).map(Value::from),
                other => Err(format!("expected a string, found {}", described(other, false))),
            };
            match judged {
                Ok(home) => drop(accounts.insert(folded, home)),
                Err(why) => {
                    let why = format!("{}: {why}", shown_name(address.get_ref()));
                    self.refuse(key.full, address, &why);
                }
            }
        }
        accounts.into()
    }

    fn refuse<T>(&mut self, full: &str, part: &Spanned<T>, why: &str) {
        self.reading.refuse(full, self.origin(&part.span()), why);
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

/// The kind of a value and, where that is harmless, the value.
fn described(value: &DeValue<'_>, quote: bool) -> String {
    match value {
        DeValue::Integer(number) if quote => format!("integer {}", shown_name(&number.to_string())),
        DeValue::Float(number) if quote => format!("float {}", shown_name(number.as_str())),
        DeValue::Boolean(flag) if quote => format!("boolean {flag}"),
        other => other.type_str().to_owned(),
    }
}
