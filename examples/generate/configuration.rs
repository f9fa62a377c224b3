//! onedrop.toml(5), from the comments of `conf/onedrop.toml`: a section for each table, an entry
//! for each key. Lines that are indented within their comment stand as they are.

use clap_mangen::roff::{Roff, bold, roman};

use super::man::{DATE, SOURCE};

const FILE: &str = include_str!("../../conf/onedrop.toml");

enum Entry<'a> {
    Table(&'a str),
    /// Keys with one comment for all.
    Keys(Vec<&'a str>, Vec<&'a str>),
    Words(Vec<&'a str>),
}

pub fn page() -> String {
    let mut roff = Roff::new();
    roff.control("TH", ["ONEDROP.TOML", "5", DATE, SOURCE, "Onedrop"]);
    roff.control("SH", ["NAME"]).text([roman("onedrop.toml - configuration of Onedrop")]);
    roff.control("SH", ["SYNOPSIS"]).text([bold("/etc/onedrop/onedrop.toml")]);
    roff.control("SH", ["DESCRIPTION"]);
    let entries = entries(FILE);
    let tables = entries.iter().position(|entry| matches!(entry, Entry::Table(_)));
    let (head, tables) = entries.split_at(tables.expect("a table"));
    write(&mut roff, head);
    roff.control("SH", ["KEYS"]);
    roff.text([roman("A key behind a # has no default; what it shows is an example.")]);
    write(&mut roff, tables);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman("onedrop(1), onedrop-check(1), onedrop-migrate(1)")]);
    roff.to_roff()
}

fn entries(text: &str) -> Vec<Entry<'_>> {
    let mut entries = Vec::new();
    for block in text.split("\n\n") {
        let mut words = Vec::new();
        // Whether the last entry's keys share a comment with one that follows.
        let mut shares = false;
        for line in block.lines() {
            if line.starts_with('[') {
                entries.push(Entry::Table(line));
                if !words.is_empty() {
                    entries.push(Entry::Words(std::mem::take(&mut words)));
                }
                shares = false;
            } else if is_key(line) {
                if let Some(Entry::Keys(keys, _)) = entries.last_mut()
                    && shares
                    && words.is_empty()
                {
                    keys.push(line);
                    continue;
                }
                // The first paragraphs below a table are about that.
                if matches!(entries.last(), Some(Entry::Table(_)))
                    && let Some(at) = words.iter().rposition(|word: &&str| word.is_empty())
                {
                    let about = words.split_off(at + 1);
                    entries.push(Entry::Words(std::mem::replace(&mut words, about)));
                }
                entries.push(Entry::Keys(vec![line], std::mem::take(&mut words)));
                shares = true;
            } else if let Some(word) = line.strip_prefix('#') {
                words.push(word.strip_prefix(' ').unwrap_or(word));
            }
        }
        if !words.is_empty() {
            entries.push(Entry::Words(words));
        }
    }
    entries
}

/// `name = value`, also after a `# `.
fn is_key(line: &str) -> bool {
    let name = line.strip_prefix("# ").unwrap_or(line).split_once(" = ").map(|(name, _)| name);
    name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'))
}

fn write(roff: &mut Roff, entries: &[Entry<'_>]) {
    let mut is_first = true;
    for entry in entries {
        match entry {
            Entry::Table(line) => {
                roff.control("SS", [*line]);
            }
            Entry::Words(words) => {
                if !is_first {
                    roff.control("PP", []);
                }
                prose(roff, words, "PP");
            }
            Entry::Keys(keys, words) => {
                for (at, key) in keys.iter().enumerate() {
                    roff.control(if at == 0 { "TP" } else { "TQ" }, []).text([bold(*key)]);
                }
                prose(roff, words, "IP");
            }
        }
        is_first = matches!(entry, Entry::Table(_));
    }
}

/// Comment lines as paragraphs, which begin with the macro `between`.
fn prose(roff: &mut Roff, words: &[&str], between: &str) {
    let mut as_it_is = false;
    let last = words.iter().rposition(|word| !word.is_empty()).map_or(0, |at| at + 1);
    for word in words[..last].iter().skip_while(|word| word.is_empty()) {
        let is_indented = word.starts_with("  ");
        if is_indented != as_it_is {
            roff.control(if is_indented { "nf" } else { "fi" }, []);
            as_it_is = is_indented;
        }
        if word.is_empty() {
            roff.control(between, []);
        } else {
            roff.text([roman(*word)]);
        }
    }
    if as_it_is {
        roff.control("fi", []);
    }
}
