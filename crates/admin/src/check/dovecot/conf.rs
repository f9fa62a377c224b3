//! What `doveconf -n` prints (2.3 and 2.4): `name = value`, sections in braces, comments. By hand:
//! the format has no description but Dovecot's own writer, and no crate reads it. Whatever does not
//! look like it is passed over.

use std::collections::BTreeMap;

/// Deeper sections are ignored.
const DEEPEST: usize = 16;

/// A configuration: settings, and sections by the words before their brace.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Conf {
    settings: BTreeMap<String, String>,
    sections: BTreeMap<String, Conf>,
}

impl Conf {
    /// Reads doveconf's output; the last setting of a name counts.
    pub fn read(output: &str) -> Conf {
        let mut conf = Conf::default();
        // The names of the sections that are open.
        let mut open: Vec<String> = Vec::new();
        for line in output.lines().map(str::trim) {
            if line == "}" {
                open.pop();
            } else if let Some((name, value)) = setting(line) {
                if let Some(section) = conf.section(&open) {
                    section.settings.insert(name.to_owned(), unquoted(value).to_owned());
                }
            } else if let Some(words) = line.strip_suffix('{').filter(|_| !line.starts_with('#')) {
                let words = words.replace('"', "");
                open.push(words.split_whitespace().collect::<Vec<_>>().join(" "));
            }
        }
        conf
    }

    /// The section of this name within those, created if missing.
    fn section(&mut self, path: &[String]) -> Option<&mut Conf> {
        if path.len() > DEEPEST {
            return None;
        }
        Some(path.iter().fold(self, |conf, name| conf.sections.entry(name.clone()).or_default()))
    }

    /// A setting within sections.
    pub fn setting(&self, path: &[&str], name: &str) -> Option<&str> {
        let section = path.iter().try_fold(self, |conf, section| conf.sections.get(*section))?;
        section.settings.get(name).map(String::as_str)
    }

    /// A setting as a protocol sees it: its own, or the global one.
    pub fn value(&self, protocol: &str, name: &str) -> Option<&str> {
        let own = self.setting(&[&format!("protocol {protocol}")], name);
        own.or_else(|| self.setting(&[], name))
    }

    /// The kind of mailboxes and their path: `mail_location` (2.3), or two settings (2.4). `None`:
    /// not set, so that Dovecot looks for them.
    pub fn mail_place(&self) -> Option<(&str, &str)> {
        let of = |name| self.setting(&[], name).filter(|value| !value.is_empty());
        match of("mail_location") {
            Some(place) => place.split_once(':'),
            None => Some((of("mail_driver")?, of("mail_path")?)),
        }
    }

    /// Whether a passdb sets this field for whoever it lets in: as a word (2.3) or in a section
    /// (2.4).
    pub fn has_passdb_field(&self, field: &str) -> bool {
        let is_on = |value: &str| !["no", "n", "0", ""].contains(&value);
        let is_passdb = |name: &str| name == "passdb" || name.starts_with("passdb ");
        self.sections.iter().filter(|(name, _)| is_passdb(name)).any(|(_, passdb)| {
            let words = passdb.settings.get("override_fields").map_or("", String::as_str);
            let words = words.split_ascii_whitespace();
            let mut words = words.map(|word| word.split_once('=').unwrap_or((word, "y")));
            let fields = passdb.sections.get("fields").map(|fields| &fields.settings);
            words.any(|(name, value)| name == field && is_on(value))
                || fields.and_then(|fields| fields.get(field)).is_some_and(|value| is_on(value))
        })
    }

    /// A setting of the Sieve interpreter: in the section `plugin` (2.3), or as any other (2.4).
    pub fn sieve(&self, name: &str) -> Option<&str> {
        self.setting(&["plugin"], name).or_else(|| self.value("lmtp", name))
    }

    /// Where the scripts are that run before users' own, each with its place in the order:
    /// `sieve_before`, `sieve_before2` and so on (2.3), or sections with a precedence (2.4; without
    /// one they run last, in an order that is not kept here).
    pub fn scripts_before(&self) -> Vec<(u32, &str)> {
        let plugin = self.sections.get("plugin").into_iter().flat_map(|plugin| &plugin.settings);
        let mut numbered: Vec<(u32, &str)> = plugin
            .filter_map(|(name, value)| {
                let number = name.strip_prefix("sieve_before")?;
                let number = if number.is_empty() { 1 } else { number.parse().ok()? };
                Some((number, value.as_str()))
            })
            .collect();
        numbered.sort_unstable();
        // Dovecot runs no script after a number that is missing.
        let numbered = (1..).zip(numbered).filter(|(at, (number, _))| at == number);
        let numbered = numbered.map(|(_, script)| script);
        let own = self.sections.get("protocol lmtp");
        let sections = [Some(self), own].into_iter().flatten().flat_map(|conf| &conf.sections);
        let named = sections.filter_map(|(name, section)| {
            let of = |setting: &str| {
                let short = section.settings.get(setting);
                short.or_else(|| section.settings.get(&format!("sieve_script_{setting}")))
            };
            let is_before = name.starts_with("sieve_script ") && of("type")? == "before";
            let precedence = of("precedence").and_then(|number| number.parse().ok());
            is_before.then_some((precedence.unwrap_or(u32::MAX), of("path")?.as_str()))
        });
        let mut scripts: Vec<(u32, &str)> = numbered.chain(named).collect();
        scripts.sort_unstable();
        scripts
    }

    /// The mail plugins of a protocol: a list of words (2.3), or a section of switches (2.4).
    pub fn plugins(&self, protocol: &str) -> impl Iterator<Item = &str> {
        const NAME: &str = "mail_plugins";
        let words = self.value(protocol, NAME).unwrap_or_default().split([' ', ',', '\t']);
        let own = self.sections.get(&format!("protocol {protocol}"));
        let switches =
            [Some(self), own].into_iter().flatten().filter_map(|conf| conf.sections.get(NAME));
        let mut on: BTreeMap<&str, bool> = BTreeMap::new();
        for (name, value) in switches.flat_map(|section| &section.settings) {
            on.insert(name, value == "yes");
        }
        let on = on.into_iter().filter_map(|(name, is_on)| is_on.then_some(name));
        words.filter(|word| !word.is_empty()).chain(on)
    }
}

/// `name = value`; a value may be empty.
fn setting(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once('=')?;
    let name = name.trim();
    let is_name = !name.is_empty() && !name.contains([' ', '\t', '"', '#', '{']);
    is_name.then_some((name, value.trim()))
}

fn unquoted(text: &str) -> &str {
    text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text).trim()
}

/// Seconds of a time such as `5 secs`, `2 mins`, `1 hour` or `500 msecs` (rounded up); `0` is none.
pub fn seconds(time: &str) -> Option<u64> {
    let digits = time.find(|c: char| !c.is_ascii_digit()).unwrap_or(time.len());
    let (number, unit) = time.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" if number == 0 => 0,
        "ms" | "msec" | "msecs" | "millisecond" | "milliseconds" => {
            return Some(number.div_ceil(1000));
        }
        "s" | "sec" | "secs" | "second" | "seconds" => 1,
        "m" | "min" | "mins" | "minute" | "minutes" => 60,
        "h" | "hour" | "hours" => 3600,
        "d" | "day" | "days" => 86_400,
        "w" | "week" | "weeks" => 604_800,
        _ => return None,
    };
    number.checked_mul(factor)
}
